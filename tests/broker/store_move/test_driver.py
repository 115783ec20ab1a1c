"""The driver's and the participant's states: an illegal step raises."""

from __future__ import annotations

from random import Random
from typing import Any

import pytest

from parley.broker.store_move.driver import DriverEvent, StoreMoveDriver
from parley.broker.store_move.participant import MoveEvent, StoreMoveParticipant


async def test_a_driver_moves_nothing_outside_a_term() -> None:
    nothing: Any = None
    driver = StoreMoveDriver(nothing, nothing, Random(1))
    driver._on(DriverEvent.TERM_BEGAN)
    driver._on(DriverEvent.MOVE_REQUESTED)
    driver._on(DriverEvent.MOVE_BEGAN)
    driver._on(DriverEvent.TERM_ENDED)
    with pytest.raises(AssertionError, match="MOVE_ENDED is not legal in state OUT_OF_OFFICE"):
        driver._on(DriverEvent.MOVE_ENDED)


async def test_requests_wait_from_the_freeze_until_the_new_store_has_a_controller() -> None:
    nothing: Any = None
    participant = StoreMoveParticipant(nothing, nothing, nothing, Random(1))
    participant._left_epoch = 7
    settled = []
    for event in (MoveEvent.STORE_FROZEN, MoveEvent.STORE_MOVED, MoveEvent.STORE_FOUND, MoveEvent.STORE_WRITABLE):
        participant._on(event)
        settled.append(participant.is_settled)
    participant.controller_elected(7)
    settled.append(participant.is_settled)
    participant.controller_elected(8)
    assert settled == [False] * 5
    assert participant.is_settled
    participant.controller_elected(9)
    with pytest.raises(AssertionError, match="CONTROLLER_ELECTED is not legal in state SETTLED"):
        participant._on(MoveEvent.CONTROLLER_ELECTED)
