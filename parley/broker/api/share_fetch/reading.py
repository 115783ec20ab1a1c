"""Reads for share fetches: the headers of a partition's batches, and their positions in the file.

This module does not read the records. They are read or sent from the file later, like the records of other fetches.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from parley.broker.replication.partition import Isolation, Partition
from parley.broker.share.share_partition import Acquired, LogBatch
from parley.protocol.records.batch_header import MAGIC_V2
from parley.storage.log_reader import LogRead

BATCHES_MAX: Final = 2_000
"""The maximum number of batches that a fetch scans in one look at a partition. That takes a few milliseconds."""


class Headers(NamedTuple):
    """The batches of a read, each with its start and end in the file."""

    read: LogRead
    batches: list[LogBatch]
    places: list[tuple[int, int]]

    def part(self, acquired: list[Acquired]) -> LogRead:
        """Return the part of the read that covers the batches with the acquired records."""
        holding = [
            index
            for index, batch in enumerate(self.batches)
            if batch.last >= acquired[0].first and batch.first <= acquired[-1].last
        ]
        return self.read.part(self.places[holding[0]][0], self.places[holding[-1]][1])

    def split(self, acquired: list[Acquired], batch_size: int) -> list[Acquired]:
        """Split acquired records at batch boundaries into parts of ``batch_size`` or slightly more records. If
        ``batch_size`` is not positive, nothing is split."""
        if batch_size <= 0 or all(each.last - each.first < batch_size for each in acquired):
            return acquired
        parts: list[Acquired] = []
        for first, last, count in acquired:
            for batch in self.batches:
                if first + batch_size <= batch.first <= last:
                    parts.append(Acquired(first, batch.first - 1, count))
                    first = batch.first
            parts.append(Acquired(first, last, count))
        return parts


def read_headers(
    partition: Partition, offset: int, max_bytes: int, records: int, isolation: Isolation, *, nowait: bool
) -> Headers:
    """Return the batches from ``offset`` on, until they cover ``records`` offsets (without control batches), but at
    most ``max_bytes`` bytes (at least one batch) and ``BATCHES_MAX`` batches.

    Raises the errors of ``Partition.read``. With ``nowait``, raises BlockingIOError if the batches must be read from
    the disk.
    """
    while True:
        log = partition.log
        removals = log.removals
        read = partition.read(offset, max_bytes, isolation=isolation, min_one_batch=True, nowait=nowait)
        headers = _headers(partition, read, offset, records, isolation, nowait)
        if isolation is not Isolation.READ_COMMITTED or log.removals == removals:
            return headers


def _headers(
    partition: Partition, read: LogRead, offset: int, records: int, isolation: Isolation, nowait: bool
) -> Headers:
    batches: list[LogBatch] = []
    places: list[tuple[int, int]] = []
    producers: list[int] = []
    following, live = offset, 0
    for position, header in read.headers(nowait=nowait):
        first = header.base_offset if header.magic == MAGIC_V2 else following
        batches.append(LogBatch(first, header.last_offset, header.is_control))
        places.append((position, position + header.size_bytes))
        producers.append(header.producer_id if header.is_transactional else -1)
        following = header.last_offset + 1
        live += 0 if header.is_control else following - max(first, offset)
        if live >= records or len(batches) >= BATCHES_MAX:
            break
    if isolation is Isolation.READ_COMMITTED and max(producers, default=-1) >= 0:
        aborted = partition.log.aborted_transactions(offset, following)
        for index, (batch, producer) in enumerate(zip(batches, producers, strict=True)):
            if any(
                each.producer_id == producer and each.first_offset <= batch.first <= each.last_offset
                for each in aborted
            ):
                batches[index] = batch._replace(is_dead=True)
    return Headers(read, batches, places)
