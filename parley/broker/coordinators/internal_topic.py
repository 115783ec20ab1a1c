"""Internal topics, whose partitions store the state of coordinators: appending to them, and reading them back.

A key, such as a group id or a transactional id, is stored in the partition that it hashes to, as in Kafka.

Rules for reading back a damaged log:

* A range that another replica may have is not skipped, even if that replica is down: the read fails, the runtime
  repeats it, and clients get COORDINATOR_LOAD_IN_PROGRESS, until the range is healed. An older state would undo
  acknowledged changes: a group would continue at an earlier offset, a transaction whose commit was acknowledged would
  be aborted after its timeout, and a fenced producer could write again. Reading the range later would not help.
* A range is skipped if it is lost: no other replica of the assignment can supply all of it, or there is no other
  replica (``Partition.is_lost``). Waiting would not help then. An operator gives up replicas that are down by removing
  them from the assignment.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import lru_cache
from typing import Final, Protocol

from parley.broker.coordinators.decision import ProducerIdentity, ShardState
from parley.broker.replication.hosted_partitions import HostedPartitions
from parley.broker.replication.partition import Partition
from parley.broker.runtime.purgatory import Purgatory, Subscriber
from parley.light_dataclasses import dataclass
from parley.protocol.errors import ErrorCode, KafkaError, MalformedMessage
from parley.protocol.records.batch import records
from parley.protocol.records.batch_header import BatchHeader, headers
from parley.protocol.records.control_batch import ControlType, read_marker
from parley.protocol.records.errors import CorruptRecord, DecompressedTooLarge, InvalidRecord
from parley.storage.damage.damaged_ranges import DamagedRange
from parley.storage.damage.log_integrity import DamagedOffset
from parley.storage.log import Log, Origin

READ_BYTES: Final = 5 * 1024 * 1024
"""The size of one read while a shard is loaded, in bytes (Kafka's default for ``*.load.buffer.size``)."""

KEYS_MAX: Final = 1_000
"""The number of keys whose partitions are cached, because each request needs the partition of its key several times.
Clients choose the keys, so the cache may take up to 32 MB."""

BATCH_BYTES_MAX: Final = 256 << 20
"""The maximum size of a decompressed batch. Only an administrator's client could write a larger one."""

_UNAVAILABLE: Final = {
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION: ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.NOT_ENOUGH_REPLICAS: ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND: ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.NOT_LEADER_OR_FOLLOWER: ErrorCode.NOT_COORDINATOR,
    ErrorCode.KAFKA_STORAGE_ERROR: ErrorCode.NOT_COORDINATOR,
}
"""Maps errors of the partition to errors of its coordinator."""


def coordinator_error(error: KafkaError) -> KafkaError:
    """Translate an error of a coordinator's partition into the error for the coordinator's clients: for example,
    NOT_LEADER_OR_FOLLOWER into NOT_COORDINATOR. Returns any other error unchanged."""
    code = _UNAVAILABLE.get(error.code)
    return error if code is None else KafkaError(code, str(error))


@lru_cache(maxsize=KEYS_MAX)
def partition_of(key: str, partitions: int) -> int:
    """Return the number of the partition that stores ``key`` in a topic with ``partitions`` partitions.

    As in Kafka, this is Java's ``String.hashCode`` of the key, without its sign bit, modulo ``partitions``.
    """
    units = key.encode("utf-16-be", "surrogatepass")
    hashed = 0
    for i in range(0, len(units), 2):
        hashed = (31 * hashed + (units[i] << 8 | units[i + 1])) & 0xFFFFFFFF
    return (hashed & 0x7FFFFFFF) % partitions


@dataclass(slots=True)
class ReadBack:
    """The result of reading a partition."""

    end_offset: int = 0
    """The log end offset: everything before it has been read."""
    records: int = 0
    skipped: int = 0
    """The number of records, whole batches and lost ranges that were skipped."""
    first_skipped: str = ""
    """The offset of the first skipped record, batch or range, and the reason."""

    def skip(self, offset: int, error: Exception) -> None:
        """Count a record, a whole batch or a damaged range that is skipped, and note why if it is the first one."""
        self.skipped += 1
        self.first_skipped = self.first_skipped or f"offset {offset}: {error}"


class ShardLog(Protocol):
    """The partition that stores one shard, on the broker that leads it."""

    @property
    def end_offset(self) -> int:
        """The offset that the next record gets. Raises KafkaError if there is no log."""
        ...

    @property
    def batch_bytes_max(self) -> int:
        """The size of the largest batch that the topic accepts. Raises KafkaError if there is no log."""
        ...

    def check_writable(self) -> None:
        """Raise KafkaError if an append would be rejected now: this broker is not the leader or has no log of the
        partition, or there are too few in-sync replicas."""
        ...

    def append(self, batch: bytearray, *, transaction_version: int = 0) -> int:
        """Append a batch and return its last offset. Raises KafkaError if it was not appended.

        ``transaction_version`` is the version of the transaction that the batch ends, if the batch is a marker.
        """
        ...

    def outcome(self, offset: int) -> ErrorCode | None:
        """Return ``ErrorCode.NONE`` if all in-sync replicas have the records up to and including ``offset``, None while
        an in-sync replica lacks some of them, or the error with which their appends have failed."""
        ...

    def is_committed(self, offset: int) -> bool:
        """Return True if this broker leads the partition and all in-sync replicas have the records up to and including
        ``offset``."""
        ...

    def subscribe(self, subscriber: Subscriber) -> None:
        """Call ``subscriber.on_change`` whenever ``outcome`` may have changed."""
        ...

    def unsubscribe(self, subscriber: Subscriber) -> None:
        """Stop calling ``subscriber``."""
        ...


class ShardStore(Protocol):
    """The partitions of one internal topic."""

    name: str

    async def read(self, partition: int, state: ShardState) -> ReadBack:
        """Apply all records of a partition, up to its log end offset, to ``state``. Raises KafkaError if the partition
        cannot be read."""
        ...

    def open(self, partition: int) -> ShardLog:
        """Return the log of a partition that has been read. Raises KafkaError if there is no log."""
        ...


class InternalTopic:
    """The partitions of one internal topic that this broker leads. Implements ``ShardStore``."""

    def __init__(
        self, name: str, partitions: HostedPartitions, purgatory: Purgatory, now_ms: Callable[[], int]
    ) -> None:
        """``purgatory`` must be ``Purgatories.produce``, which is notified when a high watermark moves."""
        self.name = name
        self._partitions = partitions
        self._purgatory = purgatory
        self._now_ms = now_ms

    async def read(self, partition: int, state: ShardState) -> ReadBack:
        """Apply all records of a partition, up to its log end offset, to ``state``, in a thread.

        This broker may have been elected while it was still truncating the log as a follower. This method first waits
        for the truncation, because removed records must not become part of the state. It skips a damaged range if it is
        lost. Raises KafkaError if the log cannot be read, or while a damaged range may still be healed.
        """
        await self._partitions.until_opened()
        replica = self._partitions.find(self.name, partition)
        await self._partitions.until_truncated(replica)
        return await asyncio.get_running_loop().run_in_executor(None, read_back, replica.log, state, replica.is_lost)

    def open(self, partition: int) -> InternalPartition:
        """Return the log of a partition that this broker leads. Raises KafkaError if it is not hosted here."""
        return InternalPartition(self._partitions.find(self.name, partition), self._purgatory, self._now_ms)

    def batch_bytes_max(self, partition: int) -> int:
        """Return the size of the largest batch that a partition accepts. Raises KafkaError if this broker has no log of
        the partition."""
        return self.open(partition).batch_bytes_max


class InternalPartition:
    """The log of one shard: a partition of an internal topic. Implements ``ShardLog``."""

    def __init__(self, replica: Partition, purgatory: Purgatory, now_ms: Callable[[], int]) -> None:
        self._replica = replica
        self._purgatory = purgatory
        self._now_ms = now_ms
        self._subscriber: Subscriber | None = None
        self._flushes = 0
        self._flush_failed = False

    @property
    def end_offset(self) -> int:
        """The offset that the next record gets. Raises KafkaError if there is no log."""
        return self._replica.log.log_end_offset

    @property
    def batch_bytes_max(self) -> int:
        """The size of the largest batch that the topic accepts. Raises KafkaError if there is no log."""
        config = self._replica.log.config
        return min(config.max_message_bytes, config.segment_bytes)

    def check_writable(self) -> None:
        """Raise KafkaError if an append would be rejected now: this broker is not the leader or has no log of the
        partition, or there are too few in-sync replicas."""
        replica = self._replica
        replica.check_leader()
        if not replica.is_open:
            _ = replica.log  # raises KafkaError with the reason
        if not replica.has_enough_replicas:
            raise KafkaError(ErrorCode.NOT_ENOUGH_REPLICAS)

    def append(self, batch: bytearray, *, transaction_version: int = 0) -> int:
        """Append a batch and return its last offset. Raises KafkaError if it was not appended.

        ``transaction_version`` is the version of the transaction that the batch ends, if the batch is a marker.
        """
        now_ms = self._now_ms()
        info = self._replica.append(
            batch, acks=-1, now_ms=now_ms, origin=Origin.COORDINATOR, transaction_version=transaction_version
        )
        if self._replica.must_flush(now_ms):
            self._flushes += 1
            flushing = asyncio.get_running_loop().run_in_executor(None, self._replica.log.flush)
            flushing.add_done_callback(self._flushed)
        return info.last_offset

    def _flushed(self, flushing: asyncio.Future[None]) -> None:
        self._flushes -= 1
        self._flush_failed |= flushing.cancelled() or flushing.exception() is not None
        if self._subscriber is not None:
            self._subscriber.on_change(self._replica, 0)

    def outcome(self, offset: int) -> ErrorCode | None:
        """Return ``ErrorCode.NONE`` if all in-sync replicas have the records up to and including ``offset`` and this
        broker has finished its flushes, None until then, or the error with which the appends or a flush have failed."""
        if self._flush_failed:
            return ErrorCode.KAFKA_STORAGE_ERROR
        code = self._replica.append_outcome(offset)
        return None if code is ErrorCode.NONE and self._flushes else code

    def is_committed(self, offset: int) -> bool:
        """Return True if this broker leads the partition, all in-sync replicas have the records up to and including
        ``offset``, and this broker has finished its flushes."""
        replica = self._replica
        return replica.is_leader and replica.is_open and replica.high_watermark > offset and not self._flushes

    def subscribe(self, subscriber: Subscriber) -> None:
        """Call ``subscriber.on_change`` whenever ``outcome`` may have changed."""
        self._subscriber = subscriber
        self._purgatory.subscribe(self._replica, subscriber)

    def unsubscribe(self, subscriber: Subscriber) -> None:
        """Stop calling ``subscriber``."""
        self._subscriber = None
        self._purgatory.unsubscribe(self._replica, subscriber)


def read_back(log: Log, state: ShardState, is_lost: Callable[[DamagedRange], bool]) -> ReadBack:
    """Apply all records of a log to ``state``. Blocks while it reads from disk.

    Skips a damaged range that can never be healed: one for which ``is_lost`` returns True. Raises KafkaError if the log
    cannot be read.
    """
    found = ReadBack()
    offset, end = log.log_start_offset, log.log_end_offset
    found.end_offset = end
    while offset < end:
        try:
            data = memoryview(log.read(offset, READ_BYTES, up_to=end, min_one_batch=True).read())
        except DamagedOffset as error:
            if not is_lost(error.damaged):
                raise
            found.skip(offset, error)
            offset = error.damaged.last_offset + 1
            continue
        if not data:
            break  # compaction has removed all records up to the end
        for position, header in headers(data):
            try:
                if header.is_control:
                    _apply_marker(data, position, header, state)
                else:
                    _apply_batch(data, position, header, state, found)
            except (CorruptRecord, InvalidRecord, DecompressedTooLarge) as error:
                found.skip(header.base_offset, error)
            offset = header.next_offset
    return found


def _apply_batch(data: memoryview, position: int, header: BatchHeader, state: ShardState, found: ReadBack) -> None:
    """Apply the records of one batch. Raises CorruptRecord, InvalidRecord or DecompressedTooLarge at the first record
    that cannot be read; the records before it have been applied."""
    producer = ProducerIdentity(header.producer_id, header.producer_epoch) if header.is_transactional else None
    replay = state.replay
    for record in records(data, position, max_bytes=BATCH_BYTES_MAX):
        key = record.key
        found.records += 1
        if key is None:
            found.skip(record.offset, MalformedMessage("a record has no key"))
            continue
        try:
            replay(key, record.value, producer, record.offset)
        except MalformedMessage as error:
            found.skip(record.offset, error)


def _apply_marker(data: memoryview, position: int, header: BatchHeader, state: ShardState) -> None:
    marker = read_marker(data, position)
    if marker is not None:
        committed = marker.type is ControlType.COMMIT
        state.replay_marker(header.producer_id, header.producer_epoch, committed, header.base_offset)
