"""The base class of a segment's offset index and time index: a memory-mapped file of fixed-size entries.

Rules (docs/storage.md has them all):

1. The index of the active segment is preallocated, and trimmed to its entries when the segment is sealed.
2. An index is a hint: its entries are checked against the batches that they point to, and an invalid file is rebuilt.
3. Blocks are allocated before they are written through the map, so a full disk raises ``OSError`` instead of SIGBUS.
4. One thread appends and truncates; any thread may look up. A map is dropped, never closed, so a lookup in progress
   can still use the old map.
"""

from __future__ import annotations

import mmap
import os
import struct
from pathlib import Path
from typing import ClassVar, Final, Self

from parley.storage.resource_exhaustion import with_room

MAX_RELATIVE_OFFSET: Final = (1 << 31) - 1
_FIRST_BLOCKS: Final = 4096
_MORE_BLOCKS: Final = 65536


class CorruptIndex(ValueError):
    """Raised if an index file is damaged. The caller rebuilds it from the segment."""


class MappedIndex:
    """A memory-mapped file of index entries: preallocated while the segment takes appends, and trimmed when it is
    sealed."""

    ENTRY: ClassVar[struct.Struct]
    __slots__ = ("_allocated", "_map", "_max_entries", "base_offset", "count", "full_at", "path", "writable")

    RESERVED: ClassVar[int] = 0
    """The number of entries that appends leave free."""

    def __init__(self, path: Path, base_offset: int, count: int) -> None:
        self.path = path
        self.base_offset = base_offset
        self.count = count
        self.writable = False
        """True between ``resize``, which makes room for entries, and ``seal``."""
        self._max_entries = count
        self.full_at = count - self.RESERVED
        """The number of entries at which the index counts as full."""
        self._map: mmap.mmap | None = None
        self._allocated = 0

    @classmethod
    def create(cls, path: Path, base_offset: int) -> Self:
        """Create an empty index, replacing any existing file. Raises ``OSError``."""
        os.close(with_room(os.open, path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o644))
        return cls(path, base_offset, 0)

    @property
    def is_full(self) -> bool:
        """True if appends must not add another entry, so the segment must be rolled."""
        return self.count >= self.full_at

    def reset(self) -> None:
        """Remove all entries. The caller rebuilds them from the segment."""
        self.count = 0

    def resize(self, max_bytes: int) -> None:
        """Make room for ``max_bytes`` of entries, because the segment takes appends. Raises ``OSError``."""
        self._max_entries = max(max_bytes // self.ENTRY.size, self.count)
        self.full_at = self._max_entries - self.RESERVED
        fd = with_room(os.open, self.path, os.O_RDWR | os.O_CLOEXEC)
        try:
            # Cut the file first, so that the bytes after the valid entries are zeros.
            os.ftruncate(fd, self.count * self.ENTRY.size)
            os.ftruncate(fd, self._max_entries * self.ENTRY.size)
        finally:
            os.close(fd)
        self._map = None
        self._allocated = 0
        self.writable = True

    def seal(self) -> None:
        """Trim the file to its entries, because the segment takes no more appends. Idempotent. Raises ``OSError``."""
        if self.writable:
            os.truncate(self.path, self.count * self.ENTRY.size)
            self.writable = False
            self._map = None

    def sync(self) -> None:
        """Sync the entries to disk. Blocks. Raises ``OSError``."""
        fd = with_room(os.open, self.path, os.O_RDWR | os.O_CLOEXEC)
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
            fd = with_room(os.open, self.path, (os.O_RDWR if self.writable else os.O_RDONLY) | os.O_CLOEXEC)
            try:
                access = mmap.ACCESS_WRITE if self.writable else mmap.ACCESS_READ
                mapped = with_room(mmap.mmap, fd, 0, access=access)  # the map holds its own file descriptor
                mapped.madvise(mmap.MADV_RANDOM)  # otherwise the first entry would read 32 pages into memory
            finally:
                os.close(fd)
            self._map = mapped
        return mapped

    def _room(self) -> mmap.mmap:
        """Return the map, with disk blocks allocated for the next entry."""
        end = (self.count + 1) * self.ENTRY.size
        if end > self._allocated:
            self._allocate(end)
        return self._mapped(self.count + 1)

    def _allocate(self, end: int) -> None:
        limit = self._max_entries * self.ENTRY.size
        wanted = min(_FIRST_BLOCKS if end <= _FIRST_BLOCKS else end + _MORE_BLOCKS, max(limit, end))
        fd = with_room(os.open, self.path, os.O_RDWR | os.O_CLOEXEC)
        try:
            os.posix_fallocate(fd, 0, wanted)
        finally:
            os.close(fd)
        self._allocated = wanted

    def _check_relative(self, offset: int) -> int:
        relative = offset - self.base_offset
        if not 0 <= relative <= MAX_RELATIVE_OFFSET:
            raise ValueError(f"offset {offset} is out of range for base offset {self.base_offset} in {self.path}")
        return relative


def entries_in(path: Path, entry_size: int) -> int:
    """Return the number of entries in the file. Raises ``CorruptIndex`` if the file ends inside an entry, and
    ``OSError``."""
    size = os.stat(path).st_size
    if size % entry_size:
        raise CorruptIndex(f"{path}: {size} bytes are not a whole number of entries")
    return size // entry_size
