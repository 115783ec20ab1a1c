"""The time index of a segment (``.timeindex``): timestamp -> offset.

An entry is the largest timestamp so far (int64), and the last offset of its batch, relative to the segment's base
offset (int32). Both increase from entry to entry.
"""

from __future__ import annotations

import struct
from bisect import bisect_right
from pathlib import Path
from typing import Final, NamedTuple

from parley.storage.index import CorruptIndex, MappedIndex, entries_in

_TIME_ENTRY: Final = struct.Struct(">qi")
_LONG: Final = struct.Struct(">q")


class TimestampOffset(NamedTuple):
    """A timestamp (ms), and the offset of its record or the last offset of its batch."""

    timestamp: int
    offset: int


class TimeIndex(MappedIndex):
    """The time index. One entry is reserved for the largest timestamp, which is recorded when the segment is sealed."""

    ENTRY = _TIME_ENTRY
    RESERVED = 1
    __slots__ = ()

    @classmethod
    def open(cls, path: Path, base_offset: int) -> TimeIndex:
        """Open the index of a segment that was sealed or closed.

        Raises ``CorruptIndex`` if its size or last entry is invalid, ``FileNotFoundError`` if it is missing, and
        ``OSError`` if the disk fails.
        """
        count = entries_in(path, cls.ENTRY.size)
        index = cls(path, base_offset, count)
        if count:
            first, (timestamp, relative) = index._entry(0), index._entry(count - 1)
            index.release()
            if (count > 1 and timestamp <= first[0]) or timestamp < 0 or relative < 0:
                raise CorruptIndex(f"{path}: the last entry is ({timestamp}, {relative})")
        return index

    @property
    def is_zero(self) -> bool:
        """True if there is one entry, and it is zero: timestamp 0 at the base offset. The file looks the same after a
        power cut that preserved its size but not its contents."""
        return self.count == 1 and self._entry(0) == (0, 0)

    @property
    def last(self) -> TimestampOffset:
        """The last entry; (-1, base offset) if there is none."""
        if not self.count:
            return TimestampOffset(-1, self.base_offset)
        timestamp, relative = self._entry(self.count - 1)
        return TimestampOffset(timestamp, self.base_offset + relative)

    def append(self, timestamp: int, offset: int) -> None:
        """Record the largest timestamp so far and its offset. Does nothing unless it exceeds the last entry's
        timestamp.

        Raises ``OSError`` if the disk is full, and ``ValueError`` if ``offset`` is too far from the base offset.
        """
        at, entries = self.count * 12, self._room()
        if timestamp <= (_LONG.unpack_from(entries, at - 12)[0] if at else -1):
            return
        _TIME_ENTRY.pack_into(entries, at, timestamp, self._check_relative(offset))
        self.count += 1

    def lookup(self, timestamp: int) -> TimestampOffset:
        """Return the last entry whose timestamp is at most ``timestamp``. No earlier record in the segment has a later
        timestamp than the entry. Returns (-1, base offset) if there is none. May open the file. Raises ``OSError``."""
        count = self.count
        if not count:
            return TimestampOffset(-1, self.base_offset)
        entries, read = self._mapped(count), _LONG.unpack_from
        found = bisect_right(range(count), timestamp, key=lambda at: read(entries, at * 12)[0]) - 1
        if found < 0:
            return TimestampOffset(-1, self.base_offset)
        stamp, relative = _TIME_ENTRY.unpack_from(entries, found * 12)
        return TimestampOffset(stamp, self.base_offset + relative)

    def entries(self) -> list[TimestampOffset]:
        """Return all entries, for verification and tools."""
        return [TimestampOffset(t, self.base_offset + o) for t, o in map(self._entry, range(self.count))]

    def truncate_to(self, offset: int) -> None:
        """Remove the entries at or after ``offset``."""
        relative = offset - self.base_offset
        self.count = bisect_right(range(self.count), relative - 1, key=lambda at: self._entry(at)[1])

    def _entry(self, at: int) -> tuple[int, int]:
        entry: tuple[int, int] = _TIME_ENTRY.unpack_from(self._mapped(self.count), at * 12)
        return entry
