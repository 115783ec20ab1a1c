"""Describes a log to the compactor, and replaces the log's segments with those that the compaction wrote.

Rules (docs/storage.md, "Compaction"):

1. A log is never compacted and mended at the same time: both write ``.cleaned`` files.
2. The new segments replace the old ones in steps that a crash may interrupt anywhere. The broker holds the log's lock
   only for renames, never while the disk syncs. Other removals of segments wait until all steps are done.
3. Before tombstones are removed, the log records the offset up to which they will be missing
   (``parley.storage.compaction.tombstone_checkpoint``).
4. The compactor replaces consecutive segments in groups. If a segment of a group was removed, truncated or found
   damaged meanwhile, the group is not adopted, and the compaction ends.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from threading import RLock
from types import TracebackType
from typing import Self

from parley.light_dataclasses import dataclass
from parley.protocol.errors import ErrorCode, KafkaError
from parley.storage.checkpoints import sync_directory
from parley.storage.compaction.compactor import CompactedGroup, CompactionRequest, CompactionResult, SourceSegment
from parley.storage.compaction.dirtiness import Dirtiness
from parley.storage.compaction.tombstone_checkpoint import TombstoneCheckpoint
from parley.storage.index import CorruptIndex
from parley.storage.last_batches import LastBatches
from parley.storage.log_config import LogConfig
from parley.storage.producer_state import ProducerState
from parley.storage.segment import Segment
from parley.storage.segment_names import CLEANED, SWAP, base_offset_of
from parley.storage.segments import Segments
from parley.storage.transaction_index import CorruptTransactionIndex


@dataclass(frozen=True, slots=True, kw_only=True)
class LogToCompact:
    """The state and callbacks that a compaction takes from a log when it starts."""

    name: str
    config: LogConfig
    segments: Segments
    producers: ProducerState
    last_batches: Mapping[int, LastBatches]
    lock: RLock
    removal_lock: RLock
    """Held during every removal of segments, even while it waits for the disk. Acquired before ``lock``."""
    now_ms: int
    writing: Callable[[], AbstractContextManager[None]]
    """Returns a context manager that reports a disk failure inside its block and raises it as KAFKA_STORAGE_ERROR."""
    tombstone_checkpoint: TombstoneCheckpoint
    tombstones_kept_from: int
    is_closed: Callable[[], bool]
    ended: Callable[[int | None], None]
    """Called once when the compaction has ended, with the new offset up to which the log is clean, or None if that
    offset is unchanged."""


class SegmentReplacement:
    """The replacement of a log's segments by one compaction. Run ``compact`` with ``request`` and ``adopt``, then call
    ``finish``.

    Leave the ``with`` block, or call ``abandon``, only after ``compact`` has returned or raised: until then it writes
    files in the log's directory. Every method blocks.
    """

    def __init__(self, log: LogToCompact, dirtiness: Dirtiness, *, map_bytes: int, map_load_factor: float) -> None:
        self._log = log
        self._is_open = True
        self._next_offset = log.segments.all[0].base_offset
        sources = [each for each in log.segments.all[:-1] if each.end_offset <= dirtiness.end_offset]
        self._sources = {segment.base_offset: segment for segment in sources}
        self._is_exchanging = False
        self.is_cancelled = False
        """True if no more groups can be adopted, because the log has changed, an adoption failed, or ``cancel`` was
        called. The caller should end the compaction."""
        config = log.config
        self.request = CompactionRequest(
            directory=log.segments.directory,
            name=log.name,
            segments=tuple(
                SourceSegment(base_offset=each.base_offset, end_offset=each.end_offset, size=each.size)
                for each in sources
            ),
            index_base_offsets=tuple(each.base_offset for each in log.segments.all),
            first_dirty_offset=dirtiness.first_dirty_offset,
            now_ms=log.now_ms,
            producers=log.last_batches,
            segment_bytes=config.segment_bytes,
            segment_index_bytes=config.segment_index_bytes,
            index_interval_bytes=config.index_interval_bytes,
            delete_retention_ms=config.delete_retention_ms,
            tombstones_kept_from=log.tombstones_kept_from,
            map_bytes=map_bytes,
            map_load_factor=map_load_factor,
        )
        """The argument for ``compact``."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.abandon()

    def adopt(self, group: CompactedGroup) -> list[Path]:
        """Replace the old segments of a group with the new ones. Returns the renamed files of the old segments, to be
        removed later.

        Raises ``ValueError`` if groups are not adopted in log order, and ``KafkaError`` KAFKA_STORAGE_ERROR if the
        segments were changed meanwhile or the disk fails. After any exception, nothing more can be adopted.
        """
        try:
            with self._log.removal_lock:
                old = self._replaced(group)
                return self._replace(self._opened(group, old[-1].end_offset), old, group.tombstones_removed_up_to)
        except BaseException:
            self.is_cancelled = True
            raise

    def finish(self, result: CompactionResult) -> None:
        """Record that the log is clean up to ``result.cleaned_up_to``. Call this after all groups have been adopted.

        The caller writes the checkpoint of cleaner offsets next. Raises ``KafkaError`` KAFKA_STORAGE_ERROR if the log
        was changed meanwhile.
        """
        with self._log.lock:
            if self.is_cancelled:
                raise self._changed()
            self._end(result.cleaned_up_to)

    def cancel(self) -> None:
        """Adopt no more groups. The compaction ends at its next group, or when its caller sees ``is_cancelled``."""
        self.is_cancelled = True

    def abandon(self) -> None:
        """End the compaction, unless ``finish`` was called. Adopted groups stay. Idempotent. Raises ``OSError``."""
        self._end(None)

    # --- Internals ---

    def _end(self, cleaned_up_to: int | None) -> None:
        if self._is_open:
            self._is_open = False
            try:
                if not self._is_exchanging:  # otherwise the disk has failed, and recovery finishes the replacement
                    self._remove_leftovers()
            finally:
                self._log.ended(cleaned_up_to)

    def _changed(self) -> KafkaError:
        return KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, f"{self._log.name} was changed while it was compacted")

    def _check(self, old: Sequence[Segment]) -> None:
        """Raise KAFKA_STORAGE_ERROR unless the log still has the original segments. The caller holds the lock."""
        log = self._log
        if self.is_cancelled or not self._is_open or log.is_closed() or any(each.damage for each in old):
            raise self._changed()
        present = log.segments.all
        first = present.index(old[0]) if old[0] in present else len(present)
        if tuple(present[first : first + len(old)]) != tuple(old):
            raise self._changed()

    def _replaced(self, group: CompactedGroup) -> list[Segment]:
        old = [self._sources.pop(base) for base in group.replaced]
        if not old or old[0].base_offset < self._next_offset:
            raise ValueError(f"{group} begins before offset {self._next_offset}, up to which groups have been adopted")
        self._next_offset = old[-1].end_offset
        return old

    def _opened(self, group: CompactedGroup, end_offset: int) -> list[Segment]:
        """Open the new segments. This process has not read their files before, so damage raises KAFKA_STORAGE_ERROR."""
        log = self._log
        try:
            with log.writing():
                new = [Segment.open(log.segments.directory, base, log.now_ms, CLEANED) for base in group.written]
        except (CorruptIndex, CorruptTransactionIndex) as error:
            raise KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, f"the compacted {log.name} is damaged: {error}") from error
        for segment, end in zip(new, [*group.written[1:], end_offset], strict=True):
            segment.end_offset = end
        return new

    def _replace(self, new: Sequence[Segment], old: Sequence[Segment], tombstones_removed_up_to: int) -> list[Path]:
        """Carry out the steps of docs/storage.md, "Replacing segments". Syncs run between them, without the
        log's lock."""
        log = self._log
        directory = log.segments.directory
        with log.writing():
            # Recovery takes .cleaned files before a .swap file for an unfinished replacement, and undoes all of it.
            for base, path in self._files(CLEANED):
                if base < new[0].base_offset:
                    path.unlink(missing_ok=True)
            with log.lock:
                self._check(old)
            log.tombstone_checkpoint.set(max(log.tombstone_checkpoint.up_to, tombstones_removed_up_to))
            for segment in reversed(new):
                segment.rename(SWAP)
                sync_directory(directory)
            self._is_exchanging = True
            with log.lock:
                removed = log.segments.exchange(new, old)
            sync_directory(directory)
            with log.lock:
                log.segments.settle(new)
                log.producers.remove_stray_snapshots({segment.base_offset for segment in log.segments.all})
            sync_directory(directory)
            with log.lock:
                for segment in new:
                    if not segment.transactions.count:
                        segment.transactions.delete()  # only crash recovery needs the empty file
            self._is_exchanging = False
        return removed

    def _remove_leftovers(self) -> None:
        """Remove the files that the compaction wrote and the log did not adopt."""
        for suffix in (SWAP, CLEANED):  # in this order: without .cleaned files, a .swap file counts as complete
            for _, path in self._files(suffix):
                path.unlink(missing_ok=True)

    def _files(self, suffix: str) -> list[tuple[int, Path]]:
        """Return the segment files in the directory that end with ``suffix``, with their base offsets."""
        directory = self._log.segments.directory
        try:
            names = [name for name in os.listdir(directory) if name.endswith(suffix)]
        except FileNotFoundError:
            return []  # the log was deleted
        return [(base, directory / name) for name in names if (base := base_offset_of(name)) is not None]
