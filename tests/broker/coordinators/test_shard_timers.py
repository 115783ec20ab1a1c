"""Timers that are extended, replaced and canceled, before and after they are due. In virtual time."""

from __future__ import annotations

import asyncio
from functools import partial

import pytest

from parley.broker.coordinators.decision import Decision, Timer
from parley.broker.coordinators.waiting_replies import NotCommittedInTime
from parley.protocol.errors import ErrorCode
from tests.broker.coordinators.shards import Values
from tests.broker.coordinators.test_shard import TIMEOUT_MS, Bench, turn
from tests.support.virtual_time import VirtualTimeLoop, run


class Fired:
    """Events that note when they happen."""

    def __init__(self) -> None:
        self.at: list[tuple[str, float]] = []

    def timer(self, delay_ms: float, name: str, *, is_patient: bool = False) -> Timer:
        return Timer(delay_ms, partial(self._happen, name), is_patient)

    def _happen(self, name: str, state: Values, now_ms: int) -> Decision[None]:
        self.at.append((name, asyncio.get_running_loop().time()))
        return Decision(None)


def test_a_timer_that_is_prolonged_again_and_again_fires_once_with_its_last_event() -> None:
    async def scenario() -> None:
        timers, fired = Bench().shard.timers, Fired()
        began = asyncio.get_running_loop().time()
        timers.set({"t": fired.timer(1_000, "first")})
        alarm = timers._running["t"].alarm
        for _ in range(5):
            await asyncio.sleep(0.75)
            timers.set({"t": fired.timer(1_000, "last")})
        assert timers._running["t"].alarm is alarm, "that is cheaper than another one"
        await asyncio.sleep(10)
        assert fired.at == [("last", began + 5 * 0.75 + 1)]
        assert not timers._running

    run(scenario())


def test_a_timer_that_becomes_due_sooner_or_patient_is_replaced() -> None:
    async def scenario() -> None:
        timers, fired = Bench().shard.timers, Fired()
        began = asyncio.get_running_loop().time()
        timers.set({"t": fired.timer(10_000, "late"), "u": fired.timer(1_000, "once")})
        timers.set({"t": fired.timer(1_000, "sooner"), "u": fired.timer(1_000, "patient", is_patient=True)})
        timers.set({"unknown": None})
        await asyncio.sleep(20)
        assert fired.at == [("sooner", began + 1), ("patient", began + 1)]

    run(scenario())


def test_an_event_does_nothing_if_its_timer_is_set_again_or_cancelled_before_its_turn() -> None:
    async def scenario() -> None:
        timers, fired = Bench().shard.timers, Fired()
        loop = asyncio.get_running_loop()
        for name in ("renewed", "cancelled", "left"):
            timers.set({name: fired.timer(1_000, name)})
        again = fired.timer(1_000, "renewed")
        loop.call_later(1, lambda: timers.set({"renewed": again, "cancelled": None}))  # after they are due
        began = loop.time()
        await asyncio.sleep(10)
        assert fired.at == [("left", began + 1), ("renewed", began + 2)]

    run(scenario())


@pytest.mark.parametrize("cancels", [True, False])
def test_an_event_that_was_applied_is_not_repeated_because_the_replicas_are_slow(cancels: bool) -> None:
    """What it was about is gone, and something else may have the name: a member that joins again with its id."""

    async def scenario() -> None:
        bench = Bench(follows=False)
        happened: list[int] = []

        def event(state: Values, now: int) -> Decision[None]:
            happened.append(now)
            return Decision(None, [(b"k", b"1")], timers={"t": None} if cancels else {})

        bench.shard.timers.set({"t": Timer(1_000, event)})
        await asyncio.sleep(1.001)
        assert len(happened) == 1
        if not cancels:
            bench.shard.timers.set({"t": None})
        await asyncio.sleep(10 * TIMEOUT_MS / 1000)
        assert len(happened) == 1

    run(scenario())


def test_a_cancelled_event_stays_cancelled_if_the_replicas_are_slow() -> None:
    async def scenario() -> None:
        bench = Bench(follows=False)
        fired = Fired()
        bench.shard.timers.set({"t": fired.timer(1_000, "t")})
        asyncio.get_running_loop().call_later(1, lambda: bench.shard.timers.set({"t": None}))  # after it is due
        writing = bench.shard.submit(lambda state, now: Decision(None, [(b"k", b"1")]))
        await asyncio.sleep(10 * TIMEOUT_MS / 1000)
        assert isinstance(writing.exception(), NotCommittedInTime)
        assert not fired.at

    run(scenario())


def test_an_event_that_was_refused_is_repeated() -> None:
    async def scenario() -> None:
        bench, fired = Bench(), Fired()

        def event(state: Values, now: int) -> Decision[None]:
            fired.at.append(("t", asyncio.get_running_loop().time()))
            return Decision(None, [(b"k", b"1")], timers={"t": None})

        bench.log.unwritable = ErrorCode.NOT_ENOUGH_REPLICAS
        began = asyncio.get_running_loop().time()
        bench.shard.timers.set({"t": Timer(1_000, event)})
        asyncio.get_running_loop().call_later(2.2, lambda: setattr(bench.log, "unwritable", None))
        await asyncio.sleep(10)
        assert [at - began for _, at in fired.at] == [1, 1.5, 2, 2.5]
        assert bench.state.values == {b"k": b"1"}

    run(scenario())


def test_only_a_patient_timer_waits_until_the_loop_is_no_longer_late() -> None:
    async def scenario() -> None:
        timers, fired = Bench().shard.timers, Fired()
        loop = asyncio.get_running_loop()
        assert isinstance(loop, VirtualTimeLoop)
        timers.set({"p": fired.timer(1_000, "patient", is_patient=True), "i": fired.timer(1_000, "impatient")})
        for _ in range(5):
            loop.now += 6
            await turn()
        assert [name for name, _ in fired.at] == ["impatient"]
        await asyncio.sleep(10)
        assert [name for name, _ in fired.at] == ["impatient", "patient"]

    run(scenario())


def test_no_timer_is_left_of_a_closed_shard() -> None:
    async def scenario() -> None:
        timers, fired = Bench().shard.timers, Fired()
        timers.set({"t": fired.timer(1_000, "t")})
        timers.close()
        await asyncio.sleep(10)
        assert not fired.at

    run(scenario())
