"""A coordinator's shard without a broker: a counter per key, and a log whose high watermark the test moves."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Hashable, Mapping
from typing import Any

from parley.broker.coordinators.decision import Decision, KeyValue, ProducerIdentity, ShardState, Timer
from parley.broker.coordinators.internal_topic import ReadBack, ShardLog
from parley.broker.runtime.purgatory import Subscriber
from parley.protocol.errors import ErrorCode, KafkaError, MalformedMessage
from parley.protocol.records.batch import records
from parley.protocol.records.batch_header import read_header
from parley.protocol.records.control_batch import ControlType, read_marker


def now_ms() -> int:
    return int(asyncio.get_running_loop().time() * 1000)


class Values:
    """A state that holds the last value of each key, and separately the values of open transactions."""

    def __init__(self, partition: int = 0) -> None:
        self.partition = partition
        self.values: dict[bytes, bytes] = {}
        self.open: dict[int, list[KeyValue]] = {}
        self.offsets: list[int] = []
        self.timers: dict[Hashable, Timer] = {}
        self.told: list[str] = []

    def replay(self, key: bytes, value: bytes | None, producer: ProducerIdentity | None, offset: int) -> None:
        if key == b"poison":
            raise MalformedMessage("poison")
        if key == b"defect":
            raise ZeroDivisionError
        self.offsets.append(offset)
        if producer is not None:
            self.open.setdefault(producer.producer_id, []).append((key, value))
        elif value is None:
            self.values.pop(key, None)
        else:
            self.values[key] = value

    def replay_marker(self, producer_id: int, producer_epoch: int, committed: bool, offset: int) -> None:
        self.offsets.append(offset)
        for key, value in self.open.pop(producer_id, []):
            if committed:
                self.replay(key, value, None, offset)

    def loaded(self, now_ms: int) -> Mapping[Hashable, Timer]:
        self.told.append("loaded")
        return self.timers

    def unloaded(self) -> None:
        self.told.append("unloaded")


class FakeLog:
    """The in-memory log of a shard. ``high_watermark`` moves with each append, or when the test moves it."""

    def __init__(self, *, follows: bool = True) -> None:
        self.batches: list[bytes] = []
        self.end_offset = 0
        self.high_watermark = 0
        self.follows = follows
        self.batch_bytes_max = 1 << 20
        self.unwritable: ErrorCode | None = None
        self.failure: KafkaError | None = None
        self.code: ErrorCode | None = None
        self.subscribers: list[Subscriber] = []

    def check_writable(self) -> None:
        if self.unwritable is not None:
            raise KafkaError(self.unwritable)

    def append(self, batch: bytearray, *, transaction_version: int = 0) -> int:
        if self.failure is not None:
            raise self.failure
        self.batches.append(bytes(batch))
        self.end_offset += read_header(batch).record_count
        if self.follows:
            self.moves_to(self.end_offset)
        return self.end_offset - 1

    def outcome(self, offset: int) -> ErrorCode | None:
        return self.code or (ErrorCode.NONE if self.high_watermark > offset else None)

    def is_committed(self, offset: int) -> bool:
        return self.high_watermark > offset

    def subscribe(self, subscriber: Subscriber) -> None:
        self.subscribers.append(subscriber)

    def unsubscribe(self, subscriber: Subscriber) -> None:
        self.subscribers.remove(subscriber)

    def moves_to(self, high_watermark: int) -> None:
        """Move the high watermark."""
        self.high_watermark = high_watermark
        self.notify()

    def notify(self) -> None:
        for subscriber in tuple(self.subscribers):
            subscriber.on_change(self, 0)

    def fails_with(self, code: ErrorCode) -> None:
        """Make the partition fail."""
        self.code = code
        self.notify()

    def rows(self) -> list[list[KeyValue]]:
        """Return the keys and values in the log, batch by batch."""
        return [[(record.key or b"", record.value) for record in records(batch)] for batch in self.batches]

    def replay(self, state: ShardState) -> ReadBack:
        """Apply the whole log to a state."""
        found, offset = ReadBack(end_offset=self.end_offset), 0
        for batch in self.batches:
            header = read_header(batch)
            producer = ProducerIdentity(header.producer_id, header.producer_epoch) if header.is_transactional else None
            if header.is_control:
                marker = read_marker(batch)
                assert marker is not None
                committed = marker.type is ControlType.COMMIT
                state.replay_marker(header.producer_id, header.producer_epoch, committed, offset)
                offset += 1
                continue
            for record in records(batch):
                found.records += 1
                try:
                    state.replay(record.key or b"", record.value, producer, offset)
                except MalformedMessage as error:
                    found.skip(offset, error)
                offset += 1
        return found


class FakeTopic:
    """The partitions of an internal topic in memory. The first reads fail with the errors in ``failures``."""

    def __init__(self, *failures: Exception, name: str = "__topic", follows: bool = True) -> None:
        self.name = name
        self.logs: dict[int, FakeLog] = {}
        self.failures = list(failures)
        self.times: list[float] = []
        self.may_read = asyncio.Event()
        self.may_read.set()
        self._follows = follows

    def log(self, partition: int) -> FakeLog:
        """Return the log of a partition. It is created if it does not exist."""
        return self.logs.setdefault(partition, FakeLog(follows=self._follows))

    async def read(self, partition: int, state: ShardState) -> ReadBack:
        self.times.append(asyncio.get_running_loop().time())
        await self.may_read.wait()
        found = self.log(partition).replay(state)
        if self.failures:
            raise self.failures.pop(0)
        return found

    def open(self, partition: int) -> ShardLog:
        return self.log(partition)

    @property
    def pauses(self) -> list[float]:
        """The times between the attempts to read."""
        return [round(later - earlier, 3) for earlier, later in zip(self.times, self.times[1:], strict=False)]


def write(key: bytes, value: bytes | None, reply: Any = None, **more: Any) -> Callable[[Values, int], Decision[Any]]:
    """Return a decision that writes one record."""
    return lambda state, now: Decision(reply, [(key, value)], **more)


def read(key: bytes) -> Callable[[Values, int], Decision[bytes | None]]:
    """Return a decision that reads a value."""
    return lambda state, now: Decision(state.values.get(key))
