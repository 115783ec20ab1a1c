"""Finds records by time: ListOffsets with a timestamp (KIP-79), and the record with the largest timestamp (KIP-734).

Timestamps need not increase with offsets. The first record at or after a time lies in the first segment whose largest
timestamp reaches that time. In that segment, the time index gives the position at which to start, and the largest
timestamp in each batch header shows which batch to read.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from parley.protocol.records.batch import records
from parley.storage.segment import Segment
from parley.storage.segment_file import read_batch


class FoundRecord(NamedTuple):
    """A record found by time: its timestamp (ms), its offset, and the leader epoch of its batch (-1 if there is
    none)."""

    timestamp: int
    offset: int
    leader_epoch: int


def first_at_or_after(segments: Sequence[Segment], timestamp_ms: int, start_offset: int) -> FoundRecord | None:
    """Return the first record from ``start_offset`` on whose timestamp is at least ``timestamp_ms``, or None.

    Usually reads and decompresses one batch. Raises ``KafkaError`` if the batch is damaged, and ``OSError``.
    """
    for segment in segments:
        if segment.end_offset > start_offset and segment.largest.timestamp >= timestamp_ms:
            found = _first_in(segment, timestamp_ms, start_offset)
            segment.rest_if_sealed()
            if found is not None:
                return found
    return None


def _first_in(segment: Segment, timestamp_ms: int, start_offset: int) -> FoundRecord | None:
    for position, header in segment.batches(segment.find_timestamp(timestamp_ms)):
        if header.max_timestamp < timestamp_ms or header.last_offset < start_offset:
            continue
        for record in records(read_batch(segment.file, position, header)):
            if record.timestamp >= timestamp_ms and record.offset >= start_offset:
                return FoundRecord(record.timestamp, record.offset, header.partition_leader_epoch)
    return None


def latest(segments: Sequence[Segment], start_offset: int) -> FoundRecord | None:
    """Return the first record with the largest timestamp in the log; None if no record has a timestamp. If that record
    lies before ``start_offset``, returns the timestamp with the last offset of its batch, which may lie before it, too.

    Reads and decompresses one batch. Raises ``KafkaError`` if the batch is damaged, and ``OSError``.
    """
    best = max(segments, key=lambda segment: segment.largest.timestamp)
    largest = best.largest
    found = best.find(largest.offset) if largest.timestamp >= 0 else None
    if found is None:
        return None
    position, header = found
    batch = read_batch(best.file, position, header)
    best.rest_if_sealed()
    for record in records(batch):
        if record.timestamp == largest.timestamp and record.offset >= start_offset:
            return FoundRecord(record.timestamp, record.offset, header.partition_leader_epoch)
    return FoundRecord(largest.timestamp, largest.offset, header.partition_leader_epoch)
