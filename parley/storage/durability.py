"""Tracks which part of a log is on disk: the recovery point, and what must be synced to advance it.

Rules:

1. Everything below ``recovery_point`` is on disk: batches, and the indexes of sealed segments. After a crash, recovery
   trusts everything below it and scans the rest.
2. A sync runs in another thread, concurrently with appends and without the log's lock. If batches or segments are
   removed meanwhile, the sync proves nothing about the current log: the recovery point stays, and the caller repeats
   the sync.
3. A created, renamed or removed file name is not on disk until the directory is synced after the change. The sync that
   advances the recovery point includes the directory. If a name changes during a sync, only the next sync makes it
   durable.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from pathlib import Path
from threading import RLock

from parley.storage.checkpoints import sync_directory, sync_file
from parley.storage.leader_epoch_cache import LeaderEpochCache
from parley.storage.log_config import LogConfig
from parley.storage.partition_metadata import PARTITION_FILE
from parley.storage.producer_state import ProducerState
from parley.storage.segment import Segment


class Durability:
    """The recovery point of one log. ``lock`` is the log's lock, which the caller holds for every method except
    ``sync`` and ``is_unchanged_since``."""

    def __init__(
        self,
        recovery_point: int,
        unsynced: Iterable[Segment],
        lock: RLock,
        now_ms: int,
        *,
        is_on_disk: bool,
        measured: Callable[[], AbstractContextManager[object]],
    ) -> None:
        """``is_on_disk`` is True if the whole log is on disk, as a clean shutdown left it. Each sync that writes to
        disk runs in the context manager that ``measured`` returns."""
        self.recovery_point = recovery_point
        self.checkpointed = recovery_point
        """A lower bound on the recovery point in the checkpoint. Below it, recovery accepts gaps between batches after
        a crash."""
        self.removals = 0
        """The number of times that batches or segments were removed, incremented before their files change."""
        self._is_renaming = False
        self._unsynced = list(unsynced)
        self._lock = lock
        self._measured = measured
        self._synced_ms = now_ms
        self._changes = 0 if is_on_disk else 1
        """The number of times that a file name changed or batches were cut off. 0 means that nothing but the active
        segment has changed since a clean shutdown."""
        self._changes_synced = 0
        self._is_directory_new = False

    def topic_id_written(self) -> None:
        """Record that the file with the topic id was written and must be synced."""
        self._changes += 1

    def directory_created(self) -> None:
        """Record that the log's directory was created, so its name must be synced too."""
        self._is_directory_new = True
        self._changes += 1

    def sealed(self, segment: Segment) -> None:
        """Record that the segment takes no more appends because the log has a new active segment."""
        self._unsynced.append(segment)
        self._changes += 1

    @property
    def has_changes(self) -> bool:
        """True unless the files of the log are as a clean shutdown left them, except for appends to the active
        segment."""
        return self._changes > 0

    def is_unchanged_since(self, removals: int) -> bool:
        """Return True if no file was removed or renamed since ``removals`` was read, and none is being renamed now.

        Any thread may call this, without the lock. If it returns False, a failure to open a file does not mean that the
        disk has failed.
        """
        return removals == self.removals and not self._is_renaming

    @contextmanager
    def renaming(self) -> Iterator[None]:
        """Context manager for a block that renames files of segments that readers can see."""
        self.removals += 1
        self._changes += 1
        self._is_renaming = True
        try:
            yield
        finally:
            self._is_renaming = False
            self.removals += 1

    def removed(self, segments: Iterable[Segment]) -> None:
        """Record that the segments are about to be removed."""
        self.removals += 1
        self._changes += 1
        for segment in segments:
            if segment in self._unsynced:
                self._unsynced.remove(segment)

    def cut(self, end_offset: int, active: Segment) -> None:
        """Record that the log was truncated to ``end_offset``, which lies in ``active``."""
        self.removed([active])
        self.recovery_point = min(self.recovery_point, end_offset)
        self.checkpointed = min(self.checkpointed, end_offset)

    def begins_at(self, offset: int) -> None:
        """Record that the log starts at ``offset``. Nothing below it needs to be on disk."""
        self.recovery_point = max(self.recovery_point, offset)

    def restart(self, offset: int) -> None:
        """Record that the log is empty and starts at ``offset``."""
        self.recovery_point = offset
        self.checkpointed = min(self.checkpointed, offset)
        self._changes += 1

    def written(self, offset: int) -> None:
        """Record that the checkpoint contains ``offset``, which was the recovery point when the checkpoint was
        written."""
        self.checkpointed = min(offset, self.recovery_point)

    def due(self, end_offset: int, config: LogConfig, now_ms: int) -> bool:
        """Return True if ``flush.messages`` or ``flush.ms`` requires a flush up to ``end_offset`` now."""
        unsynced = end_offset - self.recovery_point
        return unsynced >= config.flush_messages or (unsynced > 0 and now_ms - self._synced_ms >= config.flush_ms)

    def sync(
        self,
        directory: Path,
        end_offset: int,
        active: Segment,
        producers: ProducerState,
        epochs: LeaderEpochCache,
        now_ms: int,
    ) -> bool:
        """Sync everything below ``end_offset`` and advance the recovery point to it. Blocks.

        ``active`` is the active segment as of that offset. Returns False if batches or segments were removed meanwhile:
        the caller then reads the log end again and repeats the call. Raises ``OSError``.
        """
        with self._lock:
            sealed, removals, changes = list(self._unsynced), self.removals, self._changes
        try:
            # These come first, because recovery does not read batches below the recovery point.
            producers.flush()
            epochs.flush()
            if end_offset <= self.recovery_point and changes == self._changes_synced:
                return True
            with self._measured():
                for segment in sealed:
                    segment.sync(indexes=True)
                if end_offset > active.base_offset and active not in sealed:
                    active.sync(indexes=False)
                if changes != self._changes_synced:
                    _sync_topic_id(directory)
                    sync_directory(directory)
                    if self._is_directory_new:
                        sync_directory(directory.parent)
        except OSError:
            if removals != self.removals:
                return False  # another thread removed a file meanwhile
            raise
        with self._lock:
            if removals != self.removals:
                return False
            self._unsynced = [segment for segment in self._unsynced if segment not in sealed]
            self._changes_synced = max(self._changes_synced, changes)
            self._is_directory_new = False
            self.recovery_point = max(self.recovery_point, end_offset)
            self._synced_ms = now_ms
            return True


def _sync_topic_id(directory: Path) -> None:
    """Sync the file with the topic id, which was written without a sync when the log was created."""
    with suppress(FileNotFoundError):
        sync_file(directory / PARTITION_FILE)
