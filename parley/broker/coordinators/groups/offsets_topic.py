"""The partitions of ``__consumer_offsets`` as the coordinator uses them: appended to and read back."""

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
"""Bytes read at once while groups are loaded (``offsets.load.buffer.size`` of Kafka)."""

BATCH_BYTES_MAX = 256 << 20
"""What a batch may come to decompressed: only an administrator's client could have written a larger one."""


class _Acknowledgement(Delayed[ErrorCode]):
    """Waits until the ISR has what was appended up to ``offset``."""

    def __init__(self, partition: Partition, offset: int) -> None:
        super().__init__()
        self._partition = partition
        self._offset = offset

    def on_change(self, key: Hashable, amount: int) -> bool:
        code = self._partition.is_acknowledged(self._offset)
        if code is None:
            return False  # nobody who waits for a later offset is further
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
        """Append a batch and wait until the whole ISR has it. Answers its last offset; raises KafkaError."""
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
        """Feed every record of its partition to ``replay``, in a thread. Raises KafkaError."""
        await self._partitions.opened()
        log = self._partitions.find(OFFSETS_TOPIC, replay.partition).log
        await asyncio.get_running_loop().run_in_executor(None, _replay, log, replay)


def _replay(log: Log, replay: GroupReplay) -> None:
    offset, end = log.log_start_offset, log.log_end_offset
    while offset < end:
        data = memoryview(log.read(offset, READ_BYTES, up_to=end, min_one_batch=True).read())
        if not data:
            return  # a compacted tail: nothing is left below the end
        for position, header in headers(data):
            if not header.is_control:
                _replay_batch(data, position, replay)
            offset = header.next_offset


def _replay_batch(data: memoryview, position: int, replay: GroupReplay) -> None:
    """Feed one batch's records; from the one on that cannot be read the rest is left out."""
    try:
        for record in records(data, position, max_bytes=BATCH_BYTES_MAX):
            replay.apply(record.key, record.value)
    except (InvalidRecord, DecompressedTooLarge) as error:
        replay.skip(error)
