"""The two indexes beside each segment, memory-mapped: where an offset is, and from which offset on a time is reached.

Rules:

1. Entries are Kafka's, big-endian. ``.index``: offset relative to the segment's base (i32), position in the ``.log``
   file (i32); the batch at that position ends with that offset. ``.timeindex``: the largest timestamp so far (i64), the
   relative offset of the batch that has it (i32). Both rise from entry to entry.
2. The index of the segment that takes appends is preallocated to ``segment.index.bytes`` (a hole, so it costs no disk)
   and is trimmed to its entries when the segment is sealed. How many entries a preallocated file holds is known only
   in memory: after a crash it is rebuilt from the log.
3. An index is a hint. What it says is checked against the batch header it leads to, and a file that cannot be right
   is rebuilt; so a damaged index costs time, and no answer is wrong unless the damage happens to agree with a batch.
4. Nothing is opened before it is needed: an idle log maps nothing. Blocks are allocated before they are written
   through the map, so that a full disk is an ``OSError`` here and not a SIGBUS.
5. One thread appends and truncates; any thread looks up at the same time, on the entries it saw when it began. A map is
   dropped, never closed, so a lookup under way keeps its own.
"""

from __future__ import annotations

import mmap
import os
import struct
from pathlib import Path
from typing import ClassVar, Final, Self

MAX_RELATIVE_OFFSET: Final = (1 << 31) - 1
_FIRST_BLOCKS: Final = 4096
_MORE_BLOCKS: Final = 65536


class CorruptIndex(ValueError):
    """The file cannot be what was written; the caller rebuilds it from the segment."""


class MappedIndex:
    """What both indexes share: the file, its map, its growth and its trimming."""

    ENTRY: ClassVar[struct.Struct]
    __slots__ = ("_allocated", "_map", "_max_entries", "base_offset", "count", "path", "writable")

    def __init__(self, path: Path, base_offset: int, count: int) -> None:
        self.path = path
        self.base_offset = base_offset
        self.count = count
        self.writable = False
        """Whether :meth:`resize` made room for entries, and :meth:`seal` did not end that."""
        self._max_entries = count
        self._map: mmap.mmap | None = None
        self._allocated = 0

    @classmethod
    def create(cls, path: Path, base_offset: int) -> Self:
        """A new, empty index, in place of whatever file was there. Raises ``OSError``."""
        os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o644))
        return cls(path, base_offset, 0)

    @property
    def full(self) -> bool:
        """Whether the segment must be rolled because this index takes no more entries."""
        return self.count >= self._max_entries

    def reset(self) -> None:
        """Forget every entry, before they are found again by reading the segment."""
        self.count = 0

    def resize(self, max_bytes: int) -> None:
        """Make room for ``max_bytes`` of entries: the segment takes appends. Raises ``OSError``."""
        self._max_entries = max(max_bytes // self.ENTRY.size, self.count)
        fd = os.open(self.path, os.O_RDWR | os.O_CLOEXEC)
        try:
            # Cut first: what lies behind the valid entries must read as zeros.
            os.ftruncate(fd, self.count * self.ENTRY.size)
            os.ftruncate(fd, self._max_entries * self.ENTRY.size)
        finally:
            os.close(fd)
        self._map = None
        self._allocated = 0
        self.writable = True

    def seal(self) -> None:
        """Trim the file to its entries: the segment takes no more appends. Idempotent; raises ``OSError``."""
        if self.writable:
            os.truncate(self.path, self.count * self.ENTRY.size)
            self.writable = False
            self._map = None

    def sync(self) -> None:
        """Bring the entries to disk. Blocks; raises ``OSError``."""
        fd = os.open(self.path, os.O_RDWR | os.O_CLOEXEC)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)

    def release(self) -> None:
        """Drop the map until it is needed again."""
        self._map = None
        self._allocated = 0

    def _mapped(self, count: int) -> mmap.mmap:
        mapped = self._map
        if mapped is None or len(mapped) < count * self.ENTRY.size:
            fd = os.open(self.path, (os.O_RDWR if self.writable else os.O_RDONLY) | os.O_CLOEXEC)
            try:
                mapped = mmap.mmap(fd, 0, access=mmap.ACCESS_WRITE if self.writable else mmap.ACCESS_READ)
            finally:
                os.close(fd)
            self._map = mapped
        return mapped

    def _room(self) -> mmap.mmap:
        """The map, with blocks on disk below the next entry."""
        end = (self.count + 1) * self.ENTRY.size
        if end > self._allocated:
            self._allocate(end)
        return self._mapped(self.count + 1)

    def _allocate(self, end: int) -> None:
        limit = self._max_entries * self.ENTRY.size
        wanted = min(_FIRST_BLOCKS if end <= _FIRST_BLOCKS else end + _MORE_BLOCKS, max(limit, end))
        fd = os.open(self.path, os.O_RDWR | os.O_CLOEXEC)
        try:
            os.posix_fallocate(fd, 0, wanted)
        finally:
            os.close(fd)
        self._allocated = wanted

    def _check_relative(self, offset: int) -> int:
        relative = offset - self.base_offset
        if not 0 <= relative <= MAX_RELATIVE_OFFSET:
            raise ValueError(f"offset {offset} cannot be indexed from {self.base_offset} in {self.path}")
        return relative


def entries_in(path: Path, entry_size: int) -> int:
    size = os.stat(path).st_size
    if size % entry_size:
        raise CorruptIndex(f"{path}: {size} bytes are no whole number of entries")
    return size // entry_size
