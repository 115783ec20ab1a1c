"""The shards of a coordinator when their partitions change leaders and fail, in virtual time."""

from __future__ import annotations

import asyncio
import logging

import pytest

from parley.broker.coordinators.decision import Timer
from parley.broker.coordinators.internal_topic import partition_of
from parley.broker.coordinators.runtime import CoordinatorRuntime, ShardPhase
from parley.broker.runtime.tasks import TaskSet
from parley.protocol.errors import ErrorCode, KafkaError
from tests.broker.coordinators.shards import FakeTopic, Values, now_ms, read, write
from tests.broker.coordinators.test_shard import code_of, turn
from tests.support.virtual_time import run


class Bench:
    def __init__(self, *failures: Exception, partitions: int = 1, follows: bool = True) -> None:
        self.topic = FakeTopic(*failures, follows=follows)
        self.partitions = partitions
        self.states: list[Values] = []
        self.runtime = CoordinatorRuntime(
            self.topic,
            self.make_state,
            lambda: self.partitions,
            now_ms=now_ms,
            timeout_ms=lambda: 5_000,
            tasks=TaskSet(),
        )

    def make_state(self, partition: int) -> Values:
        self.states.append(Values(partition))
        return self.states[-1]

    def refusal(self, key: str | int = "g") -> ErrorCode:
        try:
            self.runtime.state_of(key)
        except KafkaError as error:
            return error.code
        return ErrorCode.NONE


def test_a_shard_serves_from_its_election_until_its_resignation() -> None:
    async def scenario() -> None:
        bench = Bench()
        assert bench.refusal() is ErrorCode.NOT_COORDINATOR
        bench.runtime.on_elected(0, leader_epoch=3)
        assert bench.refusal() is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
        await bench.runtime.until_loaded(1)
        writing = bench.runtime.submit("g", write(b"k", b"1", "done"))
        assert bench.runtime.metrics().queued == 1
        assert await writing == "done"
        assert bench.runtime.metrics().queued == 0
        bench.runtime.on_elected(0, leader_epoch=3)
        assert await bench.runtime.submit(0, read(b"k")) == b"1", "the epoch was known already"
        bench.runtime.on_resigned(0)
        bench.runtime.on_resigned(0)
        assert bench.refusal() is ErrorCode.NOT_COORDINATOR
        assert bench.states[0].told == ["loaded", "unloaded"]
        bench.runtime.on_elected(0, leader_epoch=5)
        await bench.runtime.until_loaded(1)
        assert await bench.runtime.submit("g", read(b"k")) == b"1", "read back from the log"
        assert [(partition, state.values) for partition, state in bench.runtime.states()] == [(0, {b"k": b"1"})]

    run(scenario())


def test_a_new_epoch_of_the_same_broker_fails_waiting_requests_and_reads_the_log_again() -> None:
    async def scenario() -> None:
        bench = Bench(follows=False)
        bench.runtime.on_elected(0, leader_epoch=1)
        await bench.runtime.until_loaded(1)
        writing = bench.runtime.submit("g", write(b"k", b"1"))
        await turn()
        bench.runtime.on_elected(0, leader_epoch=2)
        assert await code_of(writing) is ErrorCode.NOT_COORDINATOR
        await bench.runtime.until_loaded(1)
        assert bench.states[1].values == {b"k": b"1"}

    run(scenario())


def test_keys_are_spread_over_the_partitions_as_kafka_does() -> None:
    async def scenario() -> None:
        bench = Bench(partitions=50)
        assert bench.runtime.shard_of("my-group") == partition_of("my-group", 50)
        for partition in (partition_of("g", 50), partition_of("h", 50)):
            bench.runtime.on_elected(partition, leader_epoch=1)
        bench.topic.may_read.clear()
        await bench.runtime.until_loaded(1, "i")  # of another broker: there is nothing to wait for
        assert bench.refusal("i") is ErrorCode.NOT_COORDINATOR
        bench.topic.may_read.set()
        await bench.runtime.until_loaded(1, "g")
        await bench.runtime.submit("g", write(b"k", b"g"))
        assert await bench.runtime.submit("h", read(b"k")) is None
        bench.partitions = 0
        assert bench.refusal() is ErrorCode.NOT_COORDINATOR
        with pytest.raises(KafkaError):
            bench.runtime.shard_of("g")

    run(scenario())


@pytest.mark.parametrize(
    ("key", "java_hash"),
    [
        ("", 0),
        ("hello", 99_162_322),
        ("日本語", 25_921_943),
        ("polygenelubricants", 0),  # Integer.MIN_VALUE, which Kafka takes for 0
    ],
)
def test_the_partition_of_a_key_is_kafkas(key: str, java_hash: int) -> None:
    assert partition_of(key, 1 << 31) == java_hash
    assert partition_of(key, 50) == java_hash % 50


def test_one_partition_that_cannot_be_read_does_not_delay_the_others() -> None:
    async def scenario() -> None:
        bench = Bench(KafkaError(ErrorCode.KAFKA_STORAGE_ERROR), partitions=2)
        for partition in (0, 1):
            bench.runtime.on_elected(partition, leader_epoch=1)
        await asyncio.sleep(0.05)
        assert bench.runtime.phases() == {ShardPhase.LOADING: 0, ShardPhase.ACTIVE: 1, ShardPhase.FAILED: 1}
        assert bench.runtime.is_loading
        assert (bench.refusal(0), bench.refusal(1)) == (ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, ErrorCode.NONE)
        await bench.runtime.until_loaded(1)
        assert not bench.runtime.is_loading
        assert sum(bench.runtime.metrics().load_time.buckets) == 2

    run(scenario())


def test_a_shard_whose_append_failed_is_read_back(caplog: pytest.LogCaptureFixture) -> None:
    async def scenario() -> None:
        bench = Bench()
        bench.runtime.on_elected(0, leader_epoch=1)
        await bench.runtime.until_loaded(1)
        await bench.runtime.submit("g", write(b"k", b"1"))
        bench.topic.log(0).failure = KafkaError(ErrorCode.KAFKA_STORAGE_ERROR)
        assert await code_of(bench.runtime.submit("g", write(b"k", b"2"))) is ErrorCode.NOT_COORDINATOR
        bench.topic.log(0).failure = None
        await bench.runtime.until_loaded(1)
        assert await bench.runtime.submit("g", read(b"k")) == b"1"
        assert bench.states[0].told == ["loaded", "unloaded"]

    run(scenario())


def test_a_partition_that_is_lost_again_and_again_is_read_after_growing_pauses() -> None:
    async def scenario() -> None:
        bench = Bench()
        bench.runtime.on_elected(0, leader_epoch=1)
        for _ in range(10):
            await bench.runtime.until_loaded(60)
            assert await code_of(bench.runtime.submit("g", write(b"defect", b""))) is ErrorCode.NOT_COORDINATOR
        assert bench.topic.pauses == [0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 6.4, 10.0, 10.0]
        await bench.runtime.until_loaded(60)
        await asyncio.sleep(60)
        assert await code_of(bench.runtime.submit("g", write(b"defect", b""))) is ErrorCode.NOT_COORDINATOR
        await bench.runtime.until_loaded(60)
        assert bench.topic.pauses[-1] == 60.0, "it had served for a while: no pause"

    run(scenario())


def test_timers_of_a_loaded_state_fire() -> None:
    async def scenario() -> None:
        bench = Bench()
        make_state = bench.make_state

        def with_timer(partition: int) -> Values:
            state = make_state(partition)
            state.timers["t"] = Timer(2_000, write(b"fired", b"1"))
            return state

        bench.runtime._make_state = with_timer
        bench.runtime.on_elected(0, leader_epoch=1)
        await asyncio.sleep(1.9)
        assert b"fired" not in bench.states[0].values
        await asyncio.sleep(0.2)
        assert bench.states[0].values == {b"fired": b"1"}

    run(scenario())


def test_markers_reach_the_shard_of_their_partition() -> None:
    async def scenario() -> None:
        bench = Bench(partitions=2)
        with pytest.raises(KafkaError) as refused:
            bench.runtime.append_marker(1, 7, 0, committed=True, coordinator_epoch=1)
        assert refused.value.code is ErrorCode.NOT_COORDINATOR
        bench.runtime.on_elected(1, leader_epoch=1)
        await bench.runtime.until_loaded(1)
        await bench.runtime.append_marker(1, 7, 0, committed=True, coordinator_epoch=1)
        assert bench.states[0].offsets == [0]

    run(scenario())


def test_skipped_records_are_counted_and_the_first_is_named(caplog: pytest.LogCaptureFixture) -> None:
    async def scenario() -> None:
        bench = Bench()
        bench.runtime.on_elected(0, leader_epoch=1)
        await bench.runtime.until_loaded(1)
        log, state = bench.topic.log(0), bench.states[0]
        state.replay = lambda *record: None  # type: ignore[method-assign]
        for key in (b"good", b"poison", b"poison"):
            await bench.runtime.submit(0, write(key, b"1"))
        assert log.end_offset == 3
        bench.runtime.on_elected(0, leader_epoch=2)
        await bench.runtime.until_loaded(1)
        assert bench.states[1].values == {b"good": b"1"}
        assert bench.runtime.metrics().skipped == 2

    with caplog.at_level(logging.WARNING):
        run(scenario())
    (said,) = caplog.records
    assert (said.__dict__["records"], said.__dict__["first"]) == (2, "offset 1: poison")
