"""Appends to the active segment of a log. These are functions, because this module is compiled and ``Segment`` is not.

``parley.storage.appending`` explains why: threads read a segment's attributes without a lock.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Sequence
from typing import TYPE_CHECKING

from parley.named_tuples import new_tuple
from parley.protocol.records.batch_header import BatchHeader
from parley.storage.index import MAX_RELATIVE_OFFSET
from parley.storage.log_config import LogConfig
from parley.storage.time_index import TimestampOffset

if TYPE_CHECKING:
    from parley.storage.segment import Segment
    from parley.storage.segments import Segments


def takes(
    segments: Segments, size: int, last_offset: int, latest_timestamp: int, config: LogConfig, now_ms: int
) -> bool:
    """Return True if batches of ``size`` bytes may be appended to the active segment now.

    Otherwise the log must roll to a new segment first, or the active one must be reopened. ``last_offset`` is the last
    offset of the batches. By record time, the age of the segment is the time from the timestamp of its first batch to
    ``latest_timestamp``. If its first batch has no timestamp, it is the time since the segment was created or opened.
    """
    active = segments.active
    offsets, times = active.offset_index, active.time_index
    if not offsets.writable or last_offset - active.base_offset > MAX_RELATIVE_OFFSET:
        return False
    used = active.size
    if not used:
        return True
    if used + size > config.segment_bytes or offsets.count >= offsets.full_at or times.count >= times.full_at:
        return False
    first = active._first_timestamp
    if first is None:
        first = active.first_timestamp
    age = latest_timestamp - first if first >= 0 else now_ms - active.created_ms
    return age <= segments.age_max_ms(config)


def append(
    segment: Segment, data: bytes | bytearray | memoryview, headers: Sequence[BatchHeader], index_interval: int
) -> None:
    """Write whole batches with assigned offsets after the last batch of a segment, and index them.

    If this raises ``OSError``, nothing was appended.
    """
    position, unindexed = segment.size, segment._unindexed
    begin, largest = position, segment._largest or segment.largest
    offsets, times = segment.offset_index, segment.time_index
    indexed = offsets.count, times.count
    file = segment._file or segment.file
    try:
        _write(file.fd, data, position)
        for header in headers:
            last, size = header.last_offset, header.size_bytes
            if header.max_timestamp > largest[0]:
                largest = new_tuple(TimestampOffset, (header.max_timestamp, last))
            if unindexed > index_interval:
                offsets.append(last, position)
                times.append(largest[0], largest[1])
                unindexed = 0
            position += size
            unindexed += size
    except OSError:
        offsets.count, times.count = indexed
        segment.cut()
        raise
    if not begin:
        segment._first_timestamp = headers[0].max_timestamp
    segment._largest = largest
    segment._unindexed = unindexed
    segment.size = position
    digest = segment._digest
    if digest is not None:
        digest.add(data, headers)


def _write(fd: int, data: bytes | bytearray | memoryview, position: int) -> None:
    """Write all of ``data``, usually in one call. Raises ``OSError``."""
    written = os.pwrite(fd, data, position)
    while written < len(data):
        more = os.pwrite(fd, memoryview(data)[written:], position + written)
        if not more:
            raise OSError(errno.ENOSPC, "the disk is full")
        written += more
