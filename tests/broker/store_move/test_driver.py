"""The states of the driver of store moves: an illegal step raises."""

from __future__ import annotations

from random import Random
from typing import Any

import pytest

from parley.broker.runtime.states import IllegalStep
from parley.broker.store_move.driver import DriverEvent, StoreMoveDriver


async def test_a_driver_moves_nothing_outside_a_term() -> None:
    nothing: Any = None
    driver = StoreMoveDriver(nothing, nothing, Random(1))
    driver._on(DriverEvent.TERM_BEGAN)
    driver._on(DriverEvent.MOVE_REQUESTED)
    driver._on(DriverEvent.MOVE_BEGAN)
    driver._on(DriverEvent.TERM_ENDED)
    with pytest.raises(IllegalStep, match="MOVE_ENDED is not legal in the state OUT_OF_OFFICE"):
        driver._on(DriverEvent.MOVE_ENDED)
