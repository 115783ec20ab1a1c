"""A deadline that does not count time during which the event loop is frozen."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import cast

import pytest

from parley.broker.network.deadline import PARTS, Deadline


class Timers:
    """An event loop of which the test fires the timers, however late."""

    def __init__(self) -> None:
        self.seconds: list[float] = []
        self.waiting: list[Callable[[], None]] = []

    def call_later(self, seconds: float, call: Callable[[], None]) -> Timers:
        self.seconds.append(seconds)
        self.waiting.append(call)
        return self

    def cancel(self) -> None:
        self.waiting.clear()

    def fire(self) -> None:
        self.waiting.pop()()


def test_a_late_timer_is_one_part_of_the_time() -> None:
    timers, passed = Timers(), list[bool]()
    Deadline(cast(asyncio.AbstractEventLoop, timers), 30.0, lambda: passed.append(True))
    for _ in range(PARTS - 1):
        timers.fire()
    assert not passed
    timers.fire()
    assert passed == [True]
    assert not timers.waiting
    assert sum(timers.seconds) == pytest.approx(30.0)


@pytest.mark.parametrize("parts", [0, 1, PARTS - 1])
def test_a_cancelled_deadline_never_passes(parts: int) -> None:
    timers, passed = Timers(), list[bool]()
    deadline = Deadline(cast(asyncio.AbstractEventLoop, timers), 30.0, lambda: passed.append(True))
    for _ in range(parts):
        timers.fire()
    deadline.cancel()
    assert not timers.waiting
    assert not passed
