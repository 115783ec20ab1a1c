"""Decides which of a log's oldest segments to delete, by log start offset, by size and by age. The log deletes them.

Rules:

1. Segments are deleted as a whole, oldest first, and never if they contain an offset at or above the high watermark,
   which followers still need.
2. A segment that ends at or below the log start offset (DeleteRecords) is deleted under any clean-up policy.
3. With the policy ``delete``, a segment is deleted if the log without it still has at least ``retention.bytes``, or if
   its largest record timestamp (without one, the file's modification time) is older than ``retention.ms``.
4. The active segment, if not empty, may also be deleted by size or by age. The log starts a new one first.
"""

from __future__ import annotations

from collections.abc import Sequence

from parley.storage.log_config import LogConfig
from parley.storage.readable_segment import UNSEALED
from parley.storage.segment import Segment


def ending_by(offset: int, segments: Sequence[Segment], log_end_offset: int) -> int:
    """Return the number of oldest segments that end at or below ``offset``; an empty active segment does not count."""
    ends = (_end_of(segment, log_end_offset) for segment in segments if segment.size or segment is not segments[-1])
    return sum(end <= offset for end in ends)


def _end_of(segment: Segment, log_end_offset: int) -> int:
    return segment.end_offset if segment.end_offset != UNSEALED else log_end_offset


def expired(
    segments: Sequence[Segment],
    config: LogConfig,
    *,
    log_start_offset: int,
    log_end_offset: int,
    high_watermark: int,
    now_ms: int,
) -> int:
    """Return how many of the oldest segments to delete. May read their largest timestamps. Raises ``OSError``."""
    surplus = sum(segment.size for segment in segments) - config.retention_bytes
    count = 0
    for segment in segments:
        active = segment is segments[-1]
        if _end_of(segment, log_end_offset) > high_watermark or (active and not segment.size):
            break
        by_start = not active and segment.end_offset <= log_start_offset
        by_size = config.delete and config.retention_bytes >= 0 and surplus >= segment.size
        by_age = (
            config.delete and config.retention_ms >= 0 and now_ms - segment.largest_timestamp_ms > config.retention_ms
        )
        if not (by_start or by_size or by_age):
            break
        surplus -= segment.size
        count += 1
    return count
