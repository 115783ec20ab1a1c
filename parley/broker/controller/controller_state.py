"""The states of a broker as a candidate for controller, and the events that change them.

::

    IDLE       --STARTED-->         CANDIDATE    the broker has a session with the store and campaigns
    CANDIDATE  --ELECTED-->         LOADING      it reads the metadata from the store
    LOADING    --LOADED-->          ACTIVE       it is the controller: it carries out decisions
    LOADING    --LOADING_FAILED-->  CANDIDATE    its next campaign replaces the leadership that it still holds
    ACTIVE     --TERM_ENDED-->      RESIGNING    deposed, failed, or stopping: it carries out nothing more
    RESIGNING  --RESIGNED-->        CANDIDATE    it has given the leadership back, or has tried to
    CANDIDATE  --STOPPED-->         IDLE         the session or the broker ends
"""

from __future__ import annotations

from enum import Enum, auto

from parley.broker.runtime.states import step


class ControllerState(Enum):
    """The states of a broker as a candidate for controller, or as the controller."""

    IDLE = auto()
    CANDIDATE = auto()
    LOADING = auto()
    ACTIVE = auto()
    RESIGNING = auto()


class ControllerEvent(Enum):
    """The events that change a ``ControllerState``."""

    STARTED = auto()
    ELECTED = auto()
    LOADED = auto()
    LOADING_FAILED = auto()
    TERM_ENDED = auto()
    RESIGNED = auto()
    STOPPED = auto()


TRANSITIONS: dict[tuple[ControllerState, ControllerEvent], ControllerState] = {
    (ControllerState.IDLE, ControllerEvent.STARTED): ControllerState.CANDIDATE,
    (ControllerState.CANDIDATE, ControllerEvent.ELECTED): ControllerState.LOADING,
    (ControllerState.LOADING, ControllerEvent.LOADED): ControllerState.ACTIVE,
    (ControllerState.LOADING, ControllerEvent.LOADING_FAILED): ControllerState.CANDIDATE,
    (ControllerState.ACTIVE, ControllerEvent.TERM_ENDED): ControllerState.RESIGNING,
    (ControllerState.RESIGNING, ControllerEvent.RESIGNED): ControllerState.CANDIDATE,
    (ControllerState.CANDIDATE, ControllerEvent.STOPPED): ControllerState.IDLE,
}


def next_state(state: ControllerState, event: ControllerEvent) -> ControllerState:
    """Return the next state. Raises IllegalStep if the table does not contain the step."""
    return step("controller", TRANSITIONS, state, event)
