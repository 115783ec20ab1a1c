"""Delayed responses: completed by a change, timed out, or canceled. They leave nothing behind."""

from __future__ import annotations

import asyncio
from collections.abc import Hashable

import pytest

from parley.broker.runtime.purgatory import Delayed, Purgatory


class Counting(Delayed[str]):
    """Is complete when the sum of the amounts reaches a target."""

    def __init__(self, target: int, *, in_line: bool = False) -> None:
        super().__init__()
        self.missing = target
        self.in_line = in_line

    def on_change(self, key: Hashable, amount: int) -> bool:
        self.missing -= amount
        if self.missing <= 0:
            self.complete(f"news of {key}")
            return True
        return not self.in_line

    def expired(self) -> None:
        self.complete("time is up")


async def test_news_complete_the_answer_and_it_is_forgotten() -> None:
    purgatory = Purgatory()
    delayed = Counting(10)
    purgatory.watch(delayed, ["a", "b"], 60)
    purgatory.notify("a", 4)
    purgatory.notify("c", 100)
    assert purgatory.waiting == 1
    purgatory.notify("b", 6)
    assert await delayed == "news of b"
    assert purgatory.waiting == 0
    assert not purgatory._watchers


async def test_time_ends_the_wait() -> None:
    purgatory = Purgatory()
    delayed = Counting(10)
    purgatory.watch(delayed, ["a"], 0.01)
    assert await delayed == "time is up"
    assert purgatory.waiting == 0
    purgatory.notify("a", 100)


async def test_a_cancelled_wait_is_forgotten() -> None:
    purgatory = Purgatory()
    delayed = Counting(10)
    purgatory.watch(delayed, ["a"], 60)
    delayed.cancel()
    assert purgatory.waiting == 0
    purgatory.notify("a", 100)
    with pytest.raises(asyncio.CancelledError):
        await delayed


async def test_watchers_behind_one_that_still_waits_are_not_notified() -> None:
    purgatory = Purgatory()
    first, second = Counting(10, in_line=True), Counting(20, in_line=True)
    purgatory.watch(first, ["a"], 60)
    purgatory.watch(second, ["a"], 60)
    purgatory.notify("a", 4)
    assert (first.missing, second.missing) == (6, 20)
    purgatory.notify("a", 6)
    assert first.done()
    assert second.missing == 14
    second.cancel()


async def test_all_can_be_ended_at_once() -> None:
    purgatory = Purgatory()
    waiting = [Counting(10) for _ in range(3)]
    for delayed in waiting:
        purgatory.watch(delayed, ["a", "b"], 60)
    purgatory.expire_all()
    assert await asyncio.gather(*waiting) == ["time is up"] * 3
    assert purgatory.waiting == 0


async def test_an_absurd_timeout_is_bounded() -> None:
    purgatory = Purgatory()
    delayed = Counting(1)
    purgatory.watch(delayed, ["a"], 2.0**31)
    purgatory.notify("a", 1)
    assert await delayed == "news of a"


async def test_a_failing_response_does_not_keep_others_waiting() -> None:
    class Failing(Delayed[str]):
        def on_change(self, key: object, amount: int) -> bool:
            raise RuntimeError("planted")

        def expired(self) -> None:
            self.complete("late")

    class Fine(Failing):
        def on_change(self, key: object, amount: int) -> bool:
            self.complete("fine")
            return True

    purgatory = Purgatory()
    failing, fine = Failing(), Fine()
    for delayed in (failing, fine):
        purgatory.watch(delayed, ["k"], 60)
    purgatory.notify("k")
    assert await fine == "fine"
    assert isinstance(failing.exception(), RuntimeError)
    assert purgatory.waiting == 0
