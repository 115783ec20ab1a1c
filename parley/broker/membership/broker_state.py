"""The states of a broker's membership in the cluster, and the events that change them.

The states::

    CONNECTING    the broker has no session with the coordination store, and opens one
    JOINING       it has a session, and joins the group of brokers, or waits until its id is free
    REGISTERING   it is a member under a new broker epoch; the controller has not registered it yet
    ACTIVE        the metadata shows this registration as alive
    FENCED        the metadata shows this registration as fenced, or the controller rejects its epoch: it joins again
    LEAVING       controlled shutdown: the controller moves its leaderships, then fences it
    STOPPED       the lifecycle has ended

    CONNECTING -> JOINING -> REGISTERING -> ACTIVE -> FENCED -> JOINING under a higher epoch
    any but STOPPED -> CONNECTING when the session is lost
    any but STOPPED -> LEAVING, which only leads to STOPPED; while it leaves, a broker keeps its membership alive

Nothing here does I/O: ``lifecycle`` reports the events.
"""

from __future__ import annotations

from enum import Enum, auto

from parley.broker.runtime.states import step


class BrokerState(Enum):
    """The states of a broker's membership. The module docstring explains each one."""

    CONNECTING = auto()
    JOINING = auto()
    REGISTERING = auto()
    ACTIVE = auto()
    FENCED = auto()
    LEAVING = auto()
    STOPPED = auto()


class BrokerEvent(Enum):
    """The events that change a ``BrokerState``."""

    SESSION_OPENED = auto()
    JOINED = auto()
    REGISTERED = auto()
    """The metadata shows this broker's current registration as alive."""
    FENCED = auto()
    """The metadata shows the current registration as fenced, or the controller has rejected its epoch."""
    MEMBERSHIP_ENDED = auto()
    """The current membership has ended, or is useless because the broker was fenced."""
    SESSION_ENDED = auto()
    LEAVE = auto()
    STOP = auto()


_S, _E = BrokerState, BrokerEvent

_MEMBERSHIP: dict[tuple[BrokerState, BrokerEvent], BrokerState] = {
    (_S.CONNECTING, _E.SESSION_OPENED): _S.JOINING,
    (_S.JOINING, _E.JOINED): _S.REGISTERING,
    (_S.REGISTERING, _E.REGISTERED): _S.ACTIVE,
    (_S.ACTIVE, _E.REGISTERED): _S.ACTIVE,
    (_S.REGISTERING, _E.FENCED): _S.FENCED,
    (_S.ACTIVE, _E.FENCED): _S.FENCED,
    (_S.REGISTERING, _E.MEMBERSHIP_ENDED): _S.JOINING,
    (_S.ACTIVE, _E.MEMBERSHIP_ENDED): _S.JOINING,
    (_S.FENCED, _E.MEMBERSHIP_ENDED): _S.JOINING,
    # The controller's view of an earlier registration changes nothing.
    **{
        (state, event): state
        for state in (_S.CONNECTING, _S.JOINING, _S.FENCED)
        for event in (_E.REGISTERED, _E.FENCED)
    },
    **{(state, _E.SESSION_ENDED): _S.CONNECTING for state in (_S.JOINING, _S.REGISTERING, _S.ACTIVE, _S.FENCED)},
}

_IS_LEAVING: dict[tuple[BrokerState, BrokerEvent], BrokerState] = {
    **{(state, _E.LEAVE): _S.LEAVING for state in _S if state is not _S.STOPPED},
    **{(_S.LEAVING, event): _S.LEAVING for event in _E if event is not _E.STOP},
}

_END: dict[tuple[BrokerState, BrokerEvent], BrokerState] = {
    **{(state, _E.STOP): _S.STOPPED for state in _S if state is not _S.STOPPED},
    **{(_S.STOPPED, event): _S.STOPPED for event in (_E.LEAVE, _E.REGISTERED, _E.FENCED)},
}

TRANSITIONS: dict[tuple[BrokerState, BrokerEvent], BrokerState] = {**_MEMBERSHIP, **_IS_LEAVING, **_END}


def next_state(state: BrokerState, event: BrokerEvent) -> BrokerState:
    """Return the state that follows ``event``. Raises IllegalStep if the table does not contain the step, which is a
    defect of this program."""
    return step("broker membership", TRANSITIONS, state, event)
