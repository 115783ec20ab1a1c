"""The offset index of a segment (``.index``): offset -> position in the ``.log`` file.

An entry is an offset relative to the segment's base offset (int32), and the position (int32) of the batch that ends
with that offset. Both increase from entry to entry.
"""

from __future__ import annotations

import mmap
import struct
from bisect import bisect_right
from pathlib import Path
from typing import Final, NamedTuple

from parley.storage.index import CorruptIndex, MappedIndex, entries_in

_OFFSET_ENTRY: Final = struct.Struct(">ii")
_INT: Final = struct.Struct(">i")


class OffsetPosition(NamedTuple):
    """An entry: the batch that ends with ``offset`` starts at byte ``position``."""

    offset: int
    position: int


class OffsetIndex(MappedIndex):
    """The offset index. It contains at most one entry per ``index.interval.bytes`` of the log, so after each lookup a
    few batches must be read."""

    ENTRY = _OFFSET_ENTRY
    __slots__ = ()

    @classmethod
    def open(cls, path: Path, base_offset: int, log_bytes: int) -> OffsetIndex:
        """Open the index of a segment that was sealed or closed and contains ``log_bytes`` of records.

        Raises ``CorruptIndex`` if its size or last entry is invalid, ``FileNotFoundError`` if it is missing, and
        ``OSError`` if the disk fails.
        """
        count = entries_in(path, cls.ENTRY.size)
        index = cls(path, base_offset, count)
        if count:
            relative, position = index._entry(count - 1)
            index.release()
            if relative <= 0 or not 0 < position < log_bytes:
                raise CorruptIndex(f"{path}: the last entry is ({relative}, {position}) of {log_bytes} bytes")
        return index

    @property
    def last(self) -> OffsetPosition:
        """The last entry; the start of the segment if there is none."""
        if not self.count:
            return OffsetPosition(self.base_offset, 0)
        relative, position = self._entry(self.count - 1)
        return OffsetPosition(self.base_offset + relative, position)

    def append(self, offset: int, position: int) -> None:
        """Record that the batch that ends with ``offset`` starts at ``position``. Raises ``OSError`` if the disk is
        full, and ``ValueError`` if ``offset`` is too far from the base offset."""
        _OFFSET_ENTRY.pack_into(self._room(), self.count * 8, self._check_relative(offset), position)
        self.count += 1

    def lookup(self, offset: int) -> OffsetPosition:
        """Return the last entry whose offset is at most ``offset``, or the start of the segment. A search for the batch
        starts there. May open the file. Raises ``OSError``."""
        count = self.count
        if not count:
            return OffsetPosition(self.base_offset, 0)
        entries, read = self._mapped(count), _INT.unpack_from
        found = bisect_right(range(count), offset - self.base_offset, key=lambda at: read(entries, at * 8)[0])
        return self._at(entries, found - 1)

    def lookup_position(self, position: int) -> OffsetPosition:
        """Return the last entry at or before byte ``position``, or the start of the segment; always a batch
        boundary, unless the index is damaged. May open the file. Raises ``OSError``."""
        count = self.count
        if not count:
            return OffsetPosition(self.base_offset, 0)
        entries, read = self._mapped(count), _INT.unpack_from
        found = bisect_right(range(count), position, key=lambda at: read(entries, at * 8 + 4)[0])
        return self._at(entries, found - 1)

    def entries(self) -> list[OffsetPosition]:
        """Return all entries, for verification and tools."""
        return [OffsetPosition(self.base_offset + o, p) for o, p in map(self._entry, range(self.count))]

    def truncate_to(self, offset: int) -> None:
        """Remove the entries of batches that end at or after ``offset``."""
        relative = offset - self.base_offset
        self.count = bisect_right(range(self.count), relative - 1, key=lambda at: self._entry(at)[0])

    def _at(self, entries: mmap.mmap, at: int) -> OffsetPosition:
        if at < 0:
            return OffsetPosition(self.base_offset, 0)
        relative, position = _OFFSET_ENTRY.unpack_from(entries, at * 8)
        return OffsetPosition(self.base_offset + relative, position)

    def _entry(self, at: int) -> tuple[int, int]:
        entry: tuple[int, int] = _OFFSET_ENTRY.unpack_from(self._mapped(self.count), at * 8)
        return entry
