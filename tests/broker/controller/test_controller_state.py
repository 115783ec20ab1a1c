"""The states of a controller: the table contains every legal step, and every other step raises."""

from __future__ import annotations

from itertools import product

import pytest

from parley.broker.controller.controller_state import TRANSITIONS, ControllerEvent, ControllerState, next_state
from parley.broker.runtime.states import IllegalStep


def test_a_life_with_two_terms() -> None:
    state = ControllerState.IDLE
    events = ["STARTED", "ELECTED", "LOADING_FAILED", "ELECTED", "LOADED", "TERM_ENDED", "RESIGNED", "STOPPED"]
    for event in events:
        state = next_state(state, ControllerEvent[event])
    assert state is ControllerState.IDLE


@pytest.mark.parametrize(
    ("state", "event"), [step for step in product(ControllerState, ControllerEvent) if step not in TRANSITIONS]
)
def test_an_illegal_step_raises(state: ControllerState, event: ControllerEvent) -> None:
    with pytest.raises(IllegalStep, match=f"{event.name} is not legal in the state {state.name}"):
        next_state(state, event)
