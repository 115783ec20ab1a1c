"""Finds the batches that one fetch returns, and loads them into the response.

Rules of this module:

* The batches of all partitions are located first (in memory if possible), and read when the fetch responds.
* Reads of ``SENT_FROM_FILE_BYTES`` or more are sent from the file. Smaller ones are copied.
* Aborted transactions are looked up when the fetch responds. A read whose segments were replaced in the meantime is
  located again, because compaction removes aborted records and then their entries in the transaction index.
* Records that are not in memory are loaded in a thread. The conversion for clients older than KIP-98 runs there, too.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from functools import partial
from typing import Any

from parley.broker.api.fetch.dependencies import FetchDependencies
from parley.broker.api.fetch.params import BATCHES_VERSION, FetchParams
from parley.broker.api.fetch.plan import Read, allowance
from parley.broker.api.fetch.render import error_data
from parley.broker.api.fetch.sessions import FetchTarget, PartitionData
from parley.broker.network.sending import FileSlice
from parley.broker.replication.partition import Isolation, Partition
from parley.protocol.errors import KafkaError
from parley.protocol.messages.fetch import FetchResponse
from parley.protocol.records.down_conversion import to_legacy
from parley.storage.log_reader import LogRead
from parley.storage.resource_exhaustion import no_memory

SENT_FROM_FILE_BYTES = 16 << 10
"""Reads of this size or more are sent from the file. For smaller reads, a copy costs less than an additional system
call."""

Found = dict[FetchTarget, PartitionData]
"""The response data of each partition. The records are added last."""


class FetchReads:
    """The reads of one fetch."""

    __slots__ = ("_dependencies", "_params", "_reads", "_removals", "_unlocated", "bytes", "max_bytes")

    def __init__(self, params: FetchParams, dependencies: FetchDependencies) -> None:
        self._params = params
        self._dependencies = dependencies
        self._reads: dict[FetchTarget, LogRead] = {}
        self._removals: dict[FetchTarget, int] = {}  # ``Log.removals`` immediately before the partition was read
        self._unlocated: list[FetchTarget] = []
        self.bytes = 0
        """The total size of all reads."""
        self.max_bytes = min(params.request.max_bytes, dependencies.max_bytes)
        """The size limit of the response."""

    @property
    def need_disk(self) -> bool:
        """True if the batches of some partitions must still be located on the disk."""
        return bool(self._unlocated)

    def locate(self, target: FetchTarget, partition: Partition, read: Read) -> bool:
        """Locate a partition's batches. Returns False if that requires reading the disk. ``fill`` then locates them in
        a thread.

        Raises KafkaError: OFFSET_OUT_OF_RANGE, and the errors of ``Partition.log``.
        """
        self._removals[target] = partition.log.removals
        try:
            located = partition.read(
                target.offset,
                read.max_bytes,
                isolation=self._params.isolation,
                min_one_batch=read.min_one_batch,
                nowait=True,
            )
        except BlockingIOError:
            self._unlocated.append(target)
            return False
        self._add(target, located)
        return True

    def _add(self, target: FetchTarget, located: LogRead) -> None:
        if located.size:
            self._reads[target] = located
            self.bytes += located.size

    def drop(self, target: FetchTarget) -> None:
        """Discard a partition's read, because the partition will be planned again."""
        located = self._reads.pop(target, None)
        if located is not None:
            self.bytes -= located.size

    def fill(self, found: Found) -> Coroutine[Any, Any, None] | None:
        """Add the records to ``found``. Returns None if all of them are added, or else a coroutine that adds the
        rest."""
        if self._params.isolation is Isolation.READ_COMMITTED:
            self._look_up_aborted(found)
        if self._unlocated:
            return self._locate_and_fill(found)
        if not self._reads:
            return None
        self._count()
        if self._params.context.api_version < BATCHES_VERSION:
            return self._convert(found)
        cold = self._fill_from_memory(found)
        return self._load(cold, found) if cold else None

    async def _locate_and_fill(self, found: Found) -> None:
        """Locate the remaining batches in a thread, then fill."""
        loop = asyncio.get_running_loop()
        targets, self._unlocated = self._unlocated, []
        for target in targets:
            partition, read = target.partition, allowance(target, self.bytes, self.max_bytes)
            assert partition is not None
            locate = partial(
                partition.read,
                target.offset,
                read.max_bytes,
                isolation=self._params.isolation,
                min_one_batch=read.min_one_batch,
            )
            try:
                self._removals[target] = partition.log.removals
                self._add(target, await loop.run_in_executor(self._dependencies.threads.reads, locate))
            except KafkaError as error:
                found[target] = error_data(target, error, self._params, self._dependencies)
        filling = self.fill(found)
        if filling is not None:
            await filling

    def _count(self) -> None:
        """Count the bytes of the response in the topics' counters and for the replication throttle."""
        is_follower, throttle = self._params.is_follower, self._dependencies.throttle
        is_converted = self._params.context.api_version < BATCHES_VERSION
        for target, read in self._reads.items():
            partition = target.partition
            assert partition is not None
            if is_follower:
                partition.counters.replication_bytes_out += read.size
                if throttle is not None and throttle.is_set:
                    image = self._dependencies.metadata.image
                    throttle.record_if_covered(image, partition.topic, partition.index, read.size)
            else:
                partition.counters.bytes_out += read.size
            if is_converted:
                partition.counters.fetch_conversions += 1

    def _fill_from_memory(self, found: Found) -> dict[FetchTarget, FileSlice | None]:
        """Add the records that are in memory. Returns the other partitions, each with the file slice to load if the
        read is large."""
        cold: dict[FetchTarget, FileSlice | None] = {}
        for target, read in self._reads.items():
            data = found[target]
            if read.size < SENT_FROM_FILE_BYTES:
                try:
                    data.records = read.try_read()
                except BlockingIOError:
                    cold[target] = None
                continue
            part = FileSlice(read.fd, read.position, read.size, read)
            data.records = [part]  # type: ignore[list-item]  # written by the connection's sender, not by the codec
            if not part.is_cached():
                cold[target] = part
        return cold

    def _look_up_aborted(self, found: Found) -> None:
        """Add the aborted transactions, and drop the reads that must be located again."""
        for target, read in list(self._reads.items()):
            partition = target.partition
            assert partition is not None
            try:
                found[target].aborted_transactions = self._aborted(target, read)
            except KafkaError as error:
                found[target] = error_data(target, error, self._params, self._dependencies)
                self.drop(target)
                continue
            if partition.log.removals != self._removals[target]:
                self.drop(target)
                self._unlocated.append(target)

    def _aborted(self, target: FetchTarget, read: LogRead) -> list[FetchResponse.AbortedTransaction]:
        partition = target.partition
        assert partition is not None
        end = partition.end_visible(self._params.isolation) if read.next_offset is None else read.next_offset
        return [
            FetchResponse.AbortedTransaction(producer_id=aborted.producer_id, first_offset=aborted.first_offset)
            for aborted in partition.log.aborted_transactions(read.offset, end)
        ]

    async def _load(self, cold: dict[FetchTarget, FileSlice | None], found: Found) -> None:
        """Read the records that are not in memory, in a thread."""
        loop, threads = asyncio.get_running_loop(), self._dependencies.threads.reads
        for target, part in cold.items():
            try:
                if part is not None:
                    await loop.run_in_executor(threads, _loaded, part)
                else:
                    found[target].records = await loop.run_in_executor(threads, self._reads[target].read)
            except KafkaError as error:
                found[target] = error_data(target, error, self._params, self._dependencies)

    async def _convert(self, found: Found) -> None:
        """Convert the batches to the message format that a client older than KIP-98 reads."""
        magic = 1 if self._params.context.api_version >= 2 else 0
        loop = asyncio.get_running_loop()
        room = self.max_bytes  # messages take more bytes than the batches that they are converted from
        for target, read in self._reads.items():
            if room <= 0:
                break
            try:
                async with self._dependencies.conversion:
                    convert = partial(_converted, read, magic, target.offset, min(room, target.max_bytes))
                    records = await loop.run_in_executor(self._dependencies.threads.records, convert)
                found[target].records = records
                room -= len(records)
            except KafkaError as error:
                found[target] = error_data(target, error, self._params, self._dependencies)


def _loaded(part: FileSlice) -> None:
    try:
        part.load()
    except MemoryError as error:
        raise no_memory("loading records") from error


def _converted(read: LogRead, magic: int, offset: int, max_bytes: int) -> bytes:
    try:
        return b"".join(to_legacy(read.read(), magic, first_offset=offset, max_bytes=max_bytes))
    except MemoryError as error:
        raise no_memory("converting records") from error
