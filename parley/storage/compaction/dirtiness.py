"""Measures how much of a log has not been compacted yet, and chooses the next log (KIP-58, KIP-354).

Rules:

1. Compaction reads whole sealed segments that are below the last stable offset and below the checkpointed recovery
   point. With ``min.compaction.lag.ms``, it stops before the first segment that contains a record younger than that.
2. The dirty part starts at the offset that the last compaction reached. The dirtiest log is compacted first.
3. A log is due if more than ``min.cleanable.dirty.ratio`` of it is dirty, or if a dirty segment starts with a record
   older than ``max.compaction.lag.ms``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TypeVar

from parley.light_dataclasses import dataclass
from parley.storage.log_config import NEVER, LogConfig
from parley.storage.segment import Segment

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class Dirtiness:
    """How much of a log is dirty. It is clean below ``first_dirty_offset``, and can be compacted up to
    ``end_offset``."""

    first_dirty_offset: int
    end_offset: int
    """The offset up to which the log may be compacted now (exclusive): the end of a sealed segment, or
    ``first_dirty_offset``."""
    clean_bytes: int
    cleanable_bytes: int
    overdue_ms: int
    """How much older the oldest dirty record is than ``max.compaction.lag.ms`` allows; 0 if it is not too old."""
    min_ratio: float
    """``min.cleanable.dirty.ratio`` of the topic."""

    @property
    def ratio(self) -> float:
        """The dirty fraction of the bytes that compaction may read, from 0 to 1."""
        total = self.clean_bytes + self.cleanable_bytes
        return self.cleanable_bytes / total if total else 0.0

    @property
    def is_due(self) -> bool:
        """True if the log should be compacted now."""
        return self.cleanable_bytes > 0 and (self.overdue_ms > 0 or self.ratio > self.min_ratio)


def choose(logs: Mapping[T, Dirtiness]) -> T | None:
    """Return the dirtiest of the logs that are due, or None if no log is due."""
    due = [log for log, dirtiness in logs.items() if dirtiness.is_due]
    return max(due, key=lambda log: logs[log].ratio, default=None)


def measure(
    segments: Sequence[Segment], config: LogConfig, *, first_dirty_offset: int, limit: int, now_ms: int
) -> Dirtiness:
    """Measure the log that consists of these segments. Only segments that end at or below the offset ``limit`` may be
    compacted.

    Reads timestamps from the files of dirty segments if the topic has a compaction lag. Raises ``OSError``.
    """
    sealed = [segment for segment in segments[:-1] if segment.end_offset <= limit]
    dirty = [segment for segment in sealed if segment.end_offset > first_dirty_offset]
    clean = sealed[: len(sealed) - len(dirty)]
    if config.min_compaction_lag_ms > 0:
        youngest = now_ms - config.min_compaction_lag_ms
        old = next((n for n, segment in enumerate(dirty) if segment.largest.timestamp > youngest), len(dirty))
        dirty = dirty[:old]
    overdue_ms = 0
    if config.max_compaction_lag_ms < NEVER:
        first = min((stamp for segment in dirty if (stamp := segment.first_timestamp) > 0), default=now_ms)
        overdue_ms = max(0, now_ms - config.max_compaction_lag_ms - first)
    return Dirtiness(
        first_dirty_offset=first_dirty_offset,
        end_offset=dirty[-1].end_offset if dirty else first_dirty_offset,
        clean_bytes=sum(segment.size for segment in clean),
        cleanable_bytes=sum(segment.size for segment in dirty),
        overdue_ms=overdue_ms,
        min_ratio=config.min_cleanable_dirty_ratio,
    )
