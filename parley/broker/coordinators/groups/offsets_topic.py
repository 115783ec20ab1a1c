"""The partitions of ``__consumer_offsets`` on this broker, as the group coordinator appends to them and reads them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Hashable

from parley.broker.config import BrokerConfig
from parley.broker.coordinators.groups.group_records import GroupReplay
from parley.broker.metadata.topic_names import OFFSETS_TOPIC
from parley.broker.replication.hosted_partitions import HostedPartitions
from parley.broker.replication.partition import Partition
from parley.broker.runtime.purgatory import Delayed, Purgatory
from parley.protocol.errors import ErrorCode, KafkaError
from parley.protocol.records.batch import records
from parley.protocol.records.batch_header import headers
from parley.protocol.records.errors import DecompressedTooLarge, InvalidRecord
from parley.storage.log import Log

READ_BYTES = 5 * 1024 * 1024
"""Bytes that one read takes while groups are loaded (Kafka's ``offsets.load.buffer.size``)."""

BATCH_BYTES_MAX = 256 << 20
"""The size of a batch after decompression at most. Only an administrator's client could write a larger one."""


class _Acknowledgement(Delayed[ErrorCode]):
    """Waits until the whole ISR has the records up to ``offset``."""

    def __init__(self, partition: Partition, offset: int) -> None:
        super().__init__()
        self._partition = partition
        self._offset = offset

    def on_change(self, key: Hashable, amount: int) -> bool:
        code = self._partition.is_acknowledged(self._offset)
        if code is None:
            return False  # requests that wait for a later offset need not look
        self.complete(code)
        return True

    def expired(self) -> None:
        self.complete(ErrorCode.REQUEST_TIMED_OUT)


class OffsetsTopic:
    """Appends to and reads the partitions of the topic that this broker leads."""

    def __init__(
        self,
        partitions: HostedPartitions,
        purgatory: Purgatory,
        config: Callable[[], BrokerConfig],
        now_ms: Callable[[], int],
    ) -> None:
        self._partitions = partitions
        self._purgatory = purgatory
        self._config = config
        self._now_ms = now_ms

    async def append(self, partition: int, batch: bytearray) -> int:
        """Append a batch, wait until the whole ISR has it, and return its last offset. Raises KafkaError."""
        replica = self._partitions.find(OFFSETS_TOPIC, partition)
        now_ms = self._now_ms()
        info = replica.append(batch, acks=-1, now_ms=now_ms)
        if replica.must_flush(now_ms):
            await asyncio.get_running_loop().run_in_executor(None, replica.log.flush)
        code = replica.is_acknowledged(info.last_offset)
        if code is None:
            wait = _Acknowledgement(replica, info.last_offset)
            self._purgatory.watch(wait, (replica,), self._config().offsets_commit_timeout_ms / 1000)
            code = await wait
        if code is not ErrorCode.NONE:
            raise KafkaError(code)
        return info.last_offset

    async def replay(self, replay: GroupReplay) -> None:
        """Apply every record of the partition to ``replay``, in a thread. Raises KafkaError."""
        await self._partitions.opened()
        log = self._partitions.find(OFFSETS_TOPIC, replay.partition).log
        await asyncio.get_running_loop().run_in_executor(None, _replay, log, replay)


def _replay(log: Log, replay: GroupReplay) -> None:
    offset, end = log.log_start_offset, log.log_end_offset
    while offset < end:
        data = memoryview(log.read(offset, READ_BYTES, up_to=end, min_one_batch=True).read())
        if not data:
            return  # compaction has removed all records up to the end
        for position, header in headers(data):
            if not header.is_control:
                _replay_batch(data, position, replay)
            offset = header.next_offset


def _replay_batch(data: memoryview, position: int, replay: GroupReplay) -> None:
    """Apply the records of one batch. If one cannot be read, it and the records after it are skipped."""
    try:
        for record in records(data, position, max_bytes=BATCH_BYTES_MAX):
            replay.apply(record.key, record.value)
    except (InvalidRecord, DecompressedTooLarge) as error:
        replay.skip(error)
