"""Appending to, waiting for and reading the partitions of an internal topic."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Hashable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from parley.broker.coordinators.internal_topic import InternalPartition, InternalTopic, ReadBack
from parley.broker.runtime.purgatory import Purgatory
from parley.protocol.errors import ErrorCode, KafkaError
from parley.protocol.records.batch import build
from parley.protocol.records.compression import Compression
from parley.protocol.records.control_batch import ControlMarker, ControlType, build_marker
from parley.protocol.records.crc import seal
from parley.protocol.records.record import Record
from parley.storage.loaded_log import LastKnown
from parley.storage.log import Log, Origin
from parley.storage.log_config import LogConfig
from parley.storage.log_place import LogPlace, LogSettings
from tests.broker.coordinators.shards import Values
from tests.support.virtual_time import run

NOW_MS = 77


class Replica:
    """A stub of ``Partition``: the test sets its high watermark."""

    def __init__(self) -> None:
        self.end = 0
        self.high_watermark = 0
        self.failure: ErrorCode | None = None
        self.must_be_flushed = False
        self.flushing: asyncio.Future[None] | None = None
        self.is_leader = self.is_open = self.has_enough_replicas = True
        self.flush_error: OSError | None = None
        self.log = SimpleNamespace(
            flush=self._flush,
            log_end_offset=3,
            config=SimpleNamespace(max_message_bytes=100, segment_bytes=80),
        )

    def _flush(self) -> None:
        if self.flush_error is not None:
            raise self.flush_error

    def append(
        self, batch: bytearray, *, acks: int, now_ms: int, origin: Origin, transaction_version: int
    ) -> SimpleNamespace:
        assert (acks, now_ms, origin, transaction_version) == (-1, NOW_MS, Origin.COORDINATOR, 0)
        self.end += 1
        return SimpleNamespace(last_offset=self.end - 1)

    def check_leader(self) -> None:
        if not self.is_leader:
            raise KafkaError(ErrorCode.NOT_LEADER_OR_FOLLOWER)

    def must_flush(self, now_ms: int) -> bool:
        assert now_ms == NOW_MS
        return self.must_be_flushed

    def append_outcome(self, offset: int) -> ErrorCode | None:
        return self.failure or (ErrorCode.NONE if offset < self.high_watermark else None)


class Noted:
    """A subscriber that counts its calls."""

    def __init__(self) -> None:
        self.calls = 0

    def on_change(self, key: Hashable, amount: int) -> None:
        self.calls += 1


class Bench:
    def __init__(self) -> None:
        self.replica = Replica()
        self.purgatory = Purgatory()
        partitions: Any = SimpleNamespace(find=lambda topic, index: self.replica)
        self.topic = InternalTopic("__topic", partitions, self.purgatory, lambda: NOW_MS)
        self.partition = self.topic.open(0)

    def append(self) -> int:
        return self.partition.append(bytearray(b"batch"))


def test_an_append_is_done_once_the_isr_has_it() -> None:
    bench = Bench()
    assert [bench.append(), bench.append()] == [0, 1]
    assert [bench.partition.outcome(offset) for offset in (0, 1)] == [None, None]
    bench.replica.high_watermark = 1
    assert [bench.partition.outcome(offset) for offset in (0, 1)] == [ErrorCode.NONE, None]
    assert [bench.partition.is_committed(offset) for offset in (0, 1)] == [True, False]


@pytest.mark.parametrize("failure", [ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND])
def test_an_append_fails_with_the_error_of_the_partition(failure: ErrorCode) -> None:
    bench = Bench()
    bench.append()
    bench.replica.failure = failure
    assert bench.partition.outcome(0) is failure


def test_subscribers_learn_of_changes_until_they_unsubscribe() -> None:
    bench, noted = Bench(), Noted()
    bench.partition.subscribe(noted)
    bench.purgatory.notify(bench.replica)
    bench.partition.unsubscribe(noted)
    bench.purgatory.notify(bench.replica)
    assert noted.calls == 1


def test_an_append_is_flushed_first_if_it_must_be() -> None:
    async def scenario(failure: OSError | None, expected: ErrorCode) -> None:
        bench, noted = Bench(), Noted()
        bench.replica.must_be_flushed, bench.replica.high_watermark = True, 1
        bench.replica.flush_error = failure
        bench.partition.subscribe(noted)
        bench.append()
        assert bench.partition.outcome(0) is None
        assert not bench.partition.is_committed(0)
        await asyncio.sleep(0.001)
        assert (bench.partition.outcome(0), noted.calls) == (expected, 1)

    run(scenario(None, ErrorCode.NONE))
    run(scenario(OSError("disk"), ErrorCode.KAFKA_STORAGE_ERROR))


def test_the_state_of_a_partition_is_known_before_an_append() -> None:
    bench = Bench()
    assert (bench.partition.end_offset, bench.partition.batch_bytes_max) == (3, 80)
    assert bench.topic.batch_bytes_max(0) == 80
    bench.partition.check_writable()
    for attribute, expected in (
        ("has_enough_replicas", ErrorCode.NOT_ENOUGH_REPLICAS),
        ("is_leader", ErrorCode.NOT_LEADER_OR_FOLLOWER),
    ):
        setattr(bench.replica, attribute, False)
        with pytest.raises(KafkaError) as refused:
            bench.partition.check_writable()
        assert refused.value.code is expected
        assert not bench.partition.is_committed(-1) or attribute == "has_enough_replicas"


def test_a_partition_whose_disk_has_failed_says_so() -> None:
    class Failed(Replica):
        is_open = False

        @property
        def log(self) -> Any:
            raise KafkaError(ErrorCode.KAFKA_STORAGE_ERROR)

        @log.setter
        def log(self, value: Any) -> None:
            pass

    failed: Any = Failed()
    failed.is_open = False
    partition = InternalPartition(failed, Purgatory(), lambda: NOW_MS)
    with pytest.raises(KafkaError, match="KAFKA_STORAGE_ERROR"):
        partition.check_writable()
    assert not partition.is_committed(-1)


# --- Reading ---


async def read_back(
    log: Log, state: Values, *, is_lost: bool = True, truncate: Callable[[], None] = lambda: None
) -> ReadBack:
    """Read a log as the partition of an internal topic. ``truncate`` is what a truncation that has begun removes."""

    async def until_opened() -> None:
        pass

    async def until_truncated(partition: object) -> None:
        assert partition is replica
        truncate()

    replica = SimpleNamespace(log=log, is_lost=lambda damaged: is_lost)
    partitions: Any = SimpleNamespace(
        until_opened=until_opened, find=lambda topic, index: replica, until_truncated=until_truncated
    )
    return await InternalTopic("__topic", partitions, Purgatory(), lambda: 0).read(0, state)


def filled(path: Path, *batches: bytearray, known: LastKnown | None = None) -> Log:
    settings = LogSettings(config=LogConfig(), now_ms=lambda: 0, random=random.Random(1))
    log = Log.open(LogPlace(path, "__topic", 0), settings, known or LastKnown())
    for batch in batches:
        log.append_as_leader(batch, leader_epoch=0, now_ms=0, origin=Origin.COORDINATOR)
    return log


def batch_of(*keys: bytes | None, **more: Any) -> bytearray:
    return build([Record(0, 0, key, b"value", ()) for key in keys], **more)


def _nonsense() -> bytearray:
    """Return a batch with a valid checksum whose records are not records."""
    batch = batch_of(b"k", b"k", b"k")
    batch[-8:] = b"\xff" * 8
    seal(batch, 0, len(batch))
    return batch


async def test_records_that_a_truncation_removes_do_not_become_part_of_the_state(tmp_path: Path) -> None:
    """A follower truncates its log, and is elected before it has done so: it keeps its role until then."""
    log = filled(tmp_path, batch_of(b"kept"), batch_of(b"removed"))
    state = Values()
    found = await read_back(log, state, truncate=lambda: log.truncate_to(1))
    assert sorted(state.values) == [b"kept"]
    assert found.end_offset == log.log_end_offset == 1
    log.close()


async def test_an_unreadable_batch_or_record_does_not_affect_the_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("parley.broker.coordinators.internal_topic.BATCH_BYTES_MAX", 100_000)
    bomb = build([Record(0, 0, b"k", bytes(200_000), ())], compression=Compression.GZIP)
    log = filled(tmp_path, batch_of(b"a"), _nonsense(), bomb, batch_of(None, b"poison", b"b"))
    state = Values()
    found = await read_back(log, state)
    assert sorted(state.values) == [b"a", b"b"]
    assert (found.skipped, found.end_offset) == (4, log.log_end_offset)
    assert found.first_skipped.startswith("offset 1: ")
    log.close()


def damaged(path: Path) -> Log:
    """Return a log of three batches, the second of which is damaged on disk."""
    batches = [batch_of(key) for key in (b"a", b"b", b"c")]
    filled(path, *batches).close()
    (segment,) = path.glob("*.log")
    data = bytearray(segment.read_bytes())
    data[len(batches[0]) + len(batches[1]) - 3] ^= 1
    segment.write_bytes(data)
    return filled(path, known=LastKnown(clean=True, recovery_point=3))


async def test_damaged_records_are_skipped_only_if_no_replica_can_have_them(tmp_path: Path) -> None:
    log = damaged(tmp_path)
    with pytest.raises(KafkaError, match="CORRUPT_MESSAGE"):
        await read_back(log, Values(), is_lost=False)
    state = Values()
    found = await read_back(log, state)
    assert (sorted(state.values), found.skipped, found.end_offset) == ([b"a", b"c"], 1, 3)
    assert found.first_skipped.startswith("offset 1: ")
    log.close()


async def test_batches_larger_than_a_read_are_loaded_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("parley.broker.coordinators.internal_topic.READ_BYTES", 10)
    log = filled(tmp_path, batch_of(b"a"), batch_of(b"b"), batch_of(b"c"))
    state = Values()
    found = await read_back(log, state)
    assert (sorted(state.values), state.offsets, found.records) == ([b"a", b"b", b"c"], [0, 1, 2], 3)
    log.close()


async def test_large_records_are_loaded_as_kafka_loads_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In reads of 5 MiB, which is the default of Kafka's ``offsets.load.buffer.size``."""
    log = filled(tmp_path, build([Record(0, 0, b"large", bytes(1 << 20), ())], compression=Compression.GZIP))
    sizes: list[int] = []
    read = Log.read

    def noted(log: Log, offset: int, max_bytes: int, **how: Any) -> Any:
        sizes.append(max_bytes)
        return read(log, offset, max_bytes, **how)

    monkeypatch.setattr(Log, "read", noted)
    state = Values()
    await read_back(log, state)
    assert state.values == {b"large": bytes(1 << 20)}
    assert sizes == [5_242_880]
    log.close()


async def test_transactions_are_read_back_with_their_markers(tmp_path: Path) -> None:
    def in_transaction(key: bytes, producer_id: int) -> bytearray:
        return batch_of(key, producer_id=producer_id, producer_epoch=0, transactional=True)

    def marker(kind: ControlType, producer_id: int) -> bytearray:
        return build_marker(ControlMarker(kind, 0), producer_id=producer_id, producer_epoch=0, timestamp=0)

    log = filled(
        tmp_path,
        in_transaction(b"a", 1),
        in_transaction(b"b", 2),
        in_transaction(b"c", 3),
        marker(ControlType.COMMIT, 1),
        marker(ControlType.ABORT, 2),
    )
    state = Values()
    found = await read_back(log, state)
    assert state.values == {b"a": b"value"}
    assert state.open == {3: [(b"c", b"value")]}
    assert (found.records, found.skipped, found.end_offset) == (3, 0, 5)
    log.close()
