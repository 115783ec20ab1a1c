"""A broker that runs out of resources: how it divides file descriptors, when it frees some, and when it gives up."""

from __future__ import annotations

import os
import threading
from typing import Any

import pytest

from parley.broker.metrics.health import Health
from parley.broker.network.load import Load
from parley.broker.runtime.exhaustion_watch import (
    Allowance,
    ExhaustionWatch,
    Judgment,
    LastResort,
    Supply,
    limit_advised,
)
from parley.broker.runtime.states import IllegalStep
from parley.storage.resource_exhaustion import DESCRIPTORS, MEMORY, DescriptorReserve, Reserve
from tests.support.descriptors import open_descriptors


class Scripted(Reserve):
    """A reserve that can be refilled when the test allows it."""

    def __init__(self, name: str = DESCRIPTORS.name) -> None:
        super().__init__(name)
        self.is_free = True
        self.is_held = True

    def hold(self, amount: int) -> None:
        raise NotImplementedError

    @property
    def is_released(self) -> bool:
        return not self.is_held

    def release(self) -> None:
        self.is_held = False

    def refill(self) -> bool:
        self.is_held = self.is_free
        return self.is_free


class Connections:
    def __init__(self) -> None:
        self.descriptors_max = 0
        self.kept: list[int] = []
        self.closed = 0

    def keep_to_descriptors(self) -> None:
        self.kept.append(self.descriptors_max)

    def close_least_active(self, count: int = 1) -> None:
        self.closed += count


class Watched:
    """A watch over one scripted reserve, whose clock the test moves."""

    def __init__(self, reserve: Reserve, partitions: int = 0) -> None:
        self.now_s = 100.0
        self.limit = 1024
        self.health = Health()
        self.health.ready()
        self.connections = Connections()
        self.load = Load(500, -1)
        self.ended = 0
        self.partitions = partitions
        self.watch = ExhaustionWatch(
            self.health,
            self.connections,
            self.load,
            partitions=lambda: self.partitions,
            end=self._end,
            patience_s=6.0,
            monotonic=lambda: self.now_s,
            allowance=lambda: Allowance(self.limit),
            reserves=(reserve,),
        )

    def _end(self) -> None:
        self.ended += 1

    def check(self, after_s: float = 0.5) -> None:
        self.now_s += after_s
        self.watch.check()

    @property
    def is_short(self) -> float:
        return self.watch.metrics()[0][1].is_short

    @property
    def problems(self) -> dict[str, Any]:
        return self.health.report()[1].get("problems", {})  # type: ignore[no-any-return]


@pytest.mark.parametrize(("limit", "partitions"), [(256, 10), (1024, 100), (4096, 700), (100_000, 10_000)])
def test_a_limit_is_divided_without_remainder(limit: int, partitions: int) -> None:
    allowance = Allowance(limit)
    assert allowance.is_enough_for(partitions)
    assert allowance.connections_max(partitions) + allowance.own + 3 * partitions == limit
    assert 0 < allowance.reserved < allowance.own


def test_connections_keep_a_quarter_of_a_limit_that_is_too_low() -> None:
    assert not Allowance(1024).is_enough_for(300)
    assert Allowance(1024).connections_max(300) == 256
    assert Allowance(1024).connections_max(100_000) == 256
    assert Allowance.of_process().limit > 0


@pytest.mark.parametrize("partitions", [0, 1, 100, 1000, 50_000])
def test_the_advised_limit_is_enough(partitions: int) -> None:
    assert Allowance(limit_advised(partitions)).is_enough_for(partitions)


def test_patience_begins_with_the_shortage_and_ends_with_it() -> None:
    judged = Judgment(6.0)
    assert judged.judge(0, is_whole=True, has_lost_work=False) is Supply.ENOUGH
    assert judged.judge(10, is_whole=False, has_lost_work=False) is Supply.SHORT
    assert judged.judge(15.9, is_whole=False, has_lost_work=False) is Supply.SHORT
    assert judged.short_s(15.9) == pytest.approx(5.9)
    assert judged.judge(16.0, is_whole=True, has_lost_work=False) is Supply.ENOUGH
    assert judged.short_s(16.0) == 0
    assert judged.judge(17, is_whole=False, has_lost_work=False) is Supply.SHORT
    assert judged.judge(23, is_whole=False, has_lost_work=False) is Supply.ENDING
    assert judged.judge(24, is_whole=True, has_lost_work=False) is Supply.ENDING, "it has begun to end"


def test_lost_work_ends_the_broker_at_once() -> None:
    assert Judgment(6.0).judge(0, is_whole=True, has_lost_work=True) is Supply.ENDING


def test_a_broker_adapts_to_its_limit_and_its_partitions(caplog: pytest.LogCaptureFixture) -> None:
    broker = Watched(Scripted(), partitions=100)
    broker.check()
    assert broker.connections.kept == [1024 - 256 - 300]
    broker.limit = 512  # as by prlimit
    broker.check()
    assert broker.connections.kept[-1] == 128
    broker.check()
    assert [record.message[:38] for record in caplog.records] == ["the limit of open files is too low for"]
    assert caplog.records[0].__dict__["advised"] == 1200
    broker.partitions = 1
    broker.check()
    broker.partitions = 100
    broker.check()
    assert len(caplog.records) == 2


def test_the_reserve_follows_the_limit() -> None:
    reserve = DescriptorReserve()
    broker = Watched(reserve)
    before = open_descriptors(os.devnull)
    for limit, reserved in ((1024, 64), (160, 10), (320, 20)):
        broker.limit = limit
        broker.check()
        assert not reserve.is_released
        assert open_descriptors(os.devnull) - before == reserved
    reserve.release()


def test_files_are_closed_before_connections_are() -> None:
    reserve = Scripted()
    broker = Watched(reserve)
    broker.check()

    def close_files() -> None:
        reserve.is_free = True

    reserve.call_when_short(close_files)
    reserve.is_free = False
    broker.check()
    assert not broker.is_short
    assert not broker.connections.closed
    assert not broker.problems


def test_a_shortage_is_reported_until_it_is_over(caplog: pytest.LogCaptureFixture) -> None:
    reserve = Scripted()
    broker = Watched(reserve)
    reserve.is_free = False
    reserve.make_room()
    broker.check()
    assert broker.is_short
    assert broker.connections.closed > 0
    assert "is using its reserve" in caplog.text
    assert "LimitNOFILE" in broker.problems[DESCRIPTORS.name]
    assert broker.health.report()[0], "it serves, if less than it should"
    broker.check(5.0)
    assert not broker.ended
    reserve.is_free = True
    broker.check()
    assert not broker.problems
    assert not broker.is_short
    assert broker.watch.reason == ""
    assert broker.watch.metrics()[0][1].shortages == 1


def test_a_broker_that_stays_short_for_a_session_ends(caplog: pytest.LogCaptureFixture) -> None:
    reserve = Scripted()
    broker = Watched(reserve)
    reserve.is_free = False
    for _ in range(12):
        broker.check()
    assert not broker.ended
    broker.check()
    assert broker.ended == 1
    assert not broker.health.report()[0]
    assert "is handing over its leaderships and shutting down" in caplog.text
    assert broker.watch.reason.startswith("the broker has been short of file descriptors for 6.0 s. Raise the limit")
    reserve.is_free = True
    broker.check()
    assert broker.ended == 1, "only once"


async def test_the_watch_itself_ends_with_the_broker(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(MEMORY, "lost_work", MemoryError())
    monkeypatch.setattr(MEMORY, "refill", lambda: True)
    broker = Watched(MEMORY)
    await broker.watch.run()
    assert broker.ended == 1
    assert "ran out of memory in the middle of its work" in broker.watch.reason
    assert broker.load.lacks_memory


class Receiving:
    """A connection that receives a large request."""

    def count_receiving(self, seconds: float) -> None:
        raise AssertionError("no second has passed")

    def close_if_slow(self) -> None:
        raise AssertionError("no second has passed")


async def test_large_requests_come_one_at_a_time_while_memory_is_short() -> None:
    load, receiver = Load(500, -1), Receiving()
    load.lacks_memory = True
    assert load.reserve(1 << 20, receiver)
    assert not load.reserve(1, receiver)
    load.received(receiver)
    load.release(1 << 20)
    assert load.reserve(1 << 20, receiver)
    load.lacks_memory = False
    assert load.reserve(1 << 20, receiver)


def test_the_table_has_no_way_from_enough_to_the_end_of_patience() -> None:
    from parley.broker.runtime.exhaustion_watch import SupplyEvent

    with pytest.raises(IllegalStep):
        Judgment(1.0)._on(SupplyEvent.PATIENCE_OVER)


# --- The last resort ---


def test_the_process_ends_if_the_watch_stands_still_during_a_shortage() -> None:
    reserve, ended = Scripted(), threading.Event()
    reserve.release()
    resort = LastResort(lambda: 7, ended.set, patience_s=0.003, reserves=(reserve,), tick_s=0.001)
    assert ended.wait(30)
    resort.close()


@pytest.mark.parametrize("why", ["the watch goes on", "no shortage", "not started yet"])
def test_the_process_does_not_end(why: str) -> None:
    reserve, ended, asked = Scripted(), threading.Event(), threading.Semaphore(0)
    if why != "no shortage":
        reserve.release()
    count = 0

    def beats() -> int | None:
        nonlocal count
        count += why == "the watch goes on"
        asked.release()
        return None if why == "not started yet" else count

    resort = LastResort(beats, ended.set, patience_s=0.003, reserves=(reserve,), tick_s=0.001)
    for _ in range(10):
        assert asked.acquire(timeout=30)
    resort.close()
    assert not ended.is_set()
