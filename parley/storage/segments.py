"""The list of a log's segments: which one takes appends, when the log rolls to a new one, how old ones are removed.

Rules:

1. The last segment is the active one. Only the active segment takes appends; the others are sealed.
2. The log rolls to a new segment if a batch does not fit (size, offset index, time index, offsets more than 2**31 - 1
   above the base), or if the active segment has taken appends for ``segment.ms`` by record time, minus a random part
   of ``segment.jitter.ms``.
3. A segment is removed in this order: it is hidden from readers, the removal is counted, its files are renamed or
   deleted. A reader that still uses the segment sees that the count has changed (``Durability.is_unchanged_since``).
   Files of visible segments are renamed inside ``Durability.renaming``.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from random import Random

from parley.named_tuples import new_tuple
from parley.storage.checkpoints import sync_directory
from parley.storage.damage.log_integrity import LogIntegrity
from parley.storage.durability import Durability
from parley.storage.log_config import LogConfig
from parley.storage.log_reader import Failed, LogEnd, LogReader
from parley.storage.segment import Segment
from parley.storage.segment_names import DELETED, LOG_SUFFIX


class Segments:
    """The segments of the log in ``directory``, which ends at ``end_offset``. The log calls every method under its
    lock."""

    def __init__(
        self,
        directory: Path,
        segments: Sequence[Segment],
        end_offset: int,
        durability: Durability,
        integrity: LogIntegrity,
        random: Random,
        failed: Failed,
    ) -> None:
        self.directory = directory
        self.end_offset = end_offset
        self.active = segments[-1]
        self.reader = LogReader(tuple(segments), end_offset, integrity, failed)
        self._durability = durability
        self._integrity = integrity
        self._random = random
        self._jitter = random.random()
        self._age_max: tuple[LogConfig, float] | None = None

    @property
    def all(self) -> tuple[Segment, ...]:
        """The segments, oldest first."""
        return self.reader.view.segments

    def begin_files(self, config: LogConfig, now_ms: int) -> None:
        """Create the files of the only segment of a log that had none. Raises ``OSError``."""
        self._show([Segment.create(self.directory, self.active.base_offset, config, now_ms)])

    def appended(self, end_offset: int) -> None:
        """Record that batches were appended to the active segment, so that the log now ends at ``end_offset``."""
        self.end_offset = end_offset
        active = self.active
        self.reader.appended(new_tuple(LogEnd, (end_offset, active, active.size)))

    def age_max_ms(self, config: LogConfig) -> float:
        """Return the age, by record time, up to which the active segment takes appends."""
        known = self._age_max
        if known is None or known[0] is not config:
            roll = config.roll_ms()
            known = self._age_max = (config, roll - self._jitter * min(config.segment_jitter_ms, roll))
        return known[1]

    def roll(self, base_offset: int, config: LogConfig, now_ms: int) -> None:
        """Start a new segment at ``base_offset``, unless the active one starts there. Raises ``OSError``."""
        sealed = self.active
        if sealed.base_offset == base_offset:
            return
        begun = Segment.create(self.directory, base_offset, config, now_ms)
        try:
            sealed.seal(base_offset)
        except OSError:
            begun.delete()
            raise
        self._durability.sealed(sealed)
        self._jitter, self._age_max = self._random.random(), None
        self._show([*self.all, begun])

    def drop_first(self, count: int) -> list[Path]:
        """Remove the ``count`` oldest segments, which must be sealed. Returns their renamed files. Raises
        ``OSError``."""
        dropped, kept = self.all[:count], self.all[count:]
        self._show(kept)
        self._durability.begins_at(kept[0].base_offset)
        return self._set_aside(dropped)

    def exchange(self, new: Sequence[Segment], old: Sequence[Segment]) -> list[Path]:
        """Replace adjacent sealed segments with ``.swap`` segments that are complete and on disk.

        Returns the renamed files of the old segments. The caller syncs the directory, then calls ``settle``. If this
        raises ``OSError``, recovery finishes the replacement.
        """
        segments = self.all
        first = segments.index(old[0])
        self._show([*segments[:first], *new, *segments[first + len(old) :]])
        return self._set_aside(old)

    def settle(self, new: Sequence[Segment]) -> None:
        """Rename the ``.swap`` segments that have replaced other segments to their final names. Raises ``OSError``."""
        with self._durability.renaming():
            for segment in new:
                segment.rename("")

    def put_in_place(self, new: Segment, old: Segment | None) -> list[Path]:
        """Replace ``old`` with a ``.swap`` segment that is complete and on disk; without ``old``, insert it between two
        segments.

        Returns the renamed files of ``old``. The caller syncs the directory, then calls ``settle``. If this raises
        ``OSError``, recovery finishes the replacement.
        """
        kept = [segment for segment in self.all if segment is not old]
        self._show(sorted([*kept, new], key=lambda segment: segment.base_offset))
        if old is None:
            return []
        old.path_of(LOG_SUFFIX).touch()  # the file may be missing
        return self._set_aside([old])

    def cut(self, offset: int, config: LogConfig) -> int:
        """Remove everything from ``offset`` on. Returns the new log end, which is a batch boundary.

        ``offset`` must not be below the first segment. Raises ``OSError``, ``CorruptRecord``.
        """
        dropped = [segment for segment in self.all if segment.base_offset > offset]
        kept = self.all[: len(self.all) - len(dropped)]
        self._durability.removed(dropped)
        for segment in reversed(dropped):
            segment.delete()
        self.end_offset = kept[-1].truncate_to(offset, config)
        # Otherwise, after a crash, the removed batches could reappear next to batches that were appended later.
        kept[-1].sync(indexes=False)
        sync_directory(self.directory)
        self._durability.cut(self.end_offset, kept[-1])
        self._integrity.cut(self.end_offset)
        self._show(kept)
        return self.end_offset

    def restart(self, offset: int, config: LogConfig, now_ms: int) -> None:
        """Remove all segments and start a new one at ``offset``. Raises ``OSError``."""
        self._durability.removed(self.all)
        for segment in reversed(self.all):
            segment.delete()
        self.end_offset = offset
        self._durability.restart(offset)
        self._integrity.cut(0)
        begun = Segment.create(self.directory, offset, config, now_ms)
        sync_directory(self.directory)
        self._show([begun])

    def moved(self, directory: Path) -> None:
        """Record that the directory was renamed."""
        self.directory = directory
        for segment in self.all:
            segment.moved(directory)

    def release(self) -> None:
        """Close the files without flushing. Reads in progress keep their files open."""
        for segment in self.all:
            segment.release()
        self.reader.release()

    def _show(self, segments: Sequence[Segment]) -> None:
        self.active = segments[-1]
        self.reader.show(tuple(segments), self.end_offset)

    def _set_aside(self, segments: Sequence[Segment]) -> list[Path]:
        removed: list[Path] = []
        self._durability.removed(segments)
        for segment in segments:
            segment.rename(DELETED)
            removed += segment.paths
            segment.release()
        return removed
