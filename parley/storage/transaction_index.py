"""The transaction index of a segment (``.txnindex``): the aborted transactions whose markers lie in the segment.

A read_committed fetch needs the transactions in its range that were aborted. Rules:

1. Entries are in the order of their markers, so last offsets increase. A transaction is indexed in the segment that
   contains its marker, although its first records may be in an earlier segment.
2. An entry contains the last stable offset at the abort, which ``producer_state.py`` determines. No transaction that is
   aborted later can start below it, so a search ends at the first entry whose last stable offset reaches the end of
   the range.
3. The first abort creates the file; most segments have no such file.
4. The segment's digest contains the checksum of the entries.
"""

from __future__ import annotations

import errno
import os
import struct
from collections.abc import Iterator, Sequence
from pathlib import Path

from parley.light_dataclasses import dataclass
from parley.protocol.records.crc32c import crc32c

_VERSION = 0
_ENTRY = struct.Struct(">hqqqq")
"""Version, producer id, first offset, last offset, last stable offset."""
_ENTRIES_FIRST_READ, _ENTRIES_PER_READ = 8, 1024
"""The number of entries read at a time. Most searches end after a few entries, so the first read is small."""


class CorruptTransactionIndex(ValueError):
    """Raised if a transaction index is damaged. Its segment must be recovered."""


@dataclass(frozen=True, slots=True)
class AbortedTransaction:
    """A transaction that ended with an abort marker.

    ``first_offset`` is the offset of its first record, ``last_offset`` the offset of the marker. ``last_stable_offset``
    is the log's last stable offset just after the abort.
    """

    producer_id: int
    first_offset: int
    last_offset: int
    last_stable_offset: int


def _packed(aborted: AbortedTransaction) -> bytes:
    return _ENTRY.pack(
        _VERSION, aborted.producer_id, aborted.first_offset, aborted.last_offset, aborted.last_stable_offset
    )


class TransactionIndex:
    """The index file at ``path``, whose name starts with the base offset of its segment. The file is created by the
    first ``append``."""

    def __init__(self, path: Path, *, is_new: bool = False) -> None:
        """Open the file if it exists. ``is_new`` means that the segment has no files yet, so it cannot exist. Raises
        ``OSError``, and ``CorruptTransactionIndex`` if the file is truncated meanwhile."""
        self.path = path
        self._fd = -1
        self._size = 0
        self._checksum: int | None = 0  # None: not known
        self._last_offset = -1
        self._last_search = (0, 0)  # an offset, and the first entry whose marker lies at or after it
        if not is_new and path.exists():
            self._open()

    @property
    def count(self) -> int:
        """The number of aborted transactions in the index."""
        return self._size // _ENTRY.size

    @property
    def last_offset(self) -> int:
        """The offset of the marker of the transaction that was aborted last; -1 if there is none."""
        return self._last_offset

    def checksum(self) -> int:
        """Return the CRC-32C of all entries; 0 if there are none. Reads the file the first time. Raises ``OSError``."""
        if self._checksum is None:
            self._checksum = crc32c(os.pread(self._fd, self._size, 0))
        return self._checksum

    def append(self, aborted: AbortedTransaction) -> None:
        """Add the transaction that was aborted last. Raises ``ValueError`` if its marker does not come after all
        others, and ``OSError``."""
        if aborted.last_offset <= self._last_offset:
            raise ValueError(f"{aborted} does not come after offset {self._last_offset} in {self.path}")
        if self._fd < 0:
            self._open()
        entry = _packed(aborted)
        if os.pwrite(self._fd, entry, self._size) < _ENTRY.size:
            raise OSError(errno.ENOSPC, "an entry of the transaction index was written only partly", str(self.path))
        if self._checksum is not None:
            self._checksum = crc32c(entry, self._checksum)
        self._size += _ENTRY.size
        self._last_offset = aborted.last_offset

    def find(self, start: int, end: int) -> tuple[list[AbortedTransaction], bool]:
        """Return the aborted transactions with offsets in [``start``, ``end``), and True if the search is complete.

        If it is not, the next segment's index must also be searched. Reads the file. Raises ``OSError``, and
        ``CorruptTransactionIndex`` if the file was truncated or an entry has an unknown version.
        """
        found: list[AbortedTransaction] = []
        if start > self._last_offset:
            return found, False
        for aborted in self._entries(self._first_ending_at(start)):
            if aborted.first_offset < end:
                found.append(aborted)
            if aborted.last_stable_offset >= end:
                return found, True
        return found, False

    def entries(self) -> list[AbortedTransaction]:
        """Return all entries. Reads the file. Raises the same errors as ``find``."""
        return list(self._entries(0))

    def rewrite(self, entries: Sequence[AbortedTransaction]) -> None:
        """Replace all entries. The file stays as it is if it contains exactly these. Raises ``OSError``."""
        data = b"".join(map(_packed, entries))
        if len(data) == self._size and crc32c(data) == self.checksum():
            return
        if self._fd < 0:
            self._open()
        if os.pwrite(self._fd, data, 0) < len(data):
            raise OSError(errno.ENOSPC, "the transaction index was written only partly", str(self.path))
        os.ftruncate(self._fd, len(data))
        self._size, self._checksum = len(data), crc32c(data)
        self._last_offset = entries[-1].last_offset if entries else -1
        self._last_search = (0, 0)

    def truncate_to(self, offset: int) -> None:
        """Remove the transactions whose markers lie at or after ``offset``. Raises ``OSError``, and
        ``CorruptTransactionIndex`` if the file has become shorter."""
        kept = self._first_ending_at(offset)
        if kept < self.count:
            self._resize(kept)

    def reset(self) -> None:
        """Remove all entries. The caller rebuilds them from the segment. Raises ``OSError``."""
        if self._fd >= 0:
            self._resize(0)

    def sanity_check(self) -> None:
        """Raise ``CorruptTransactionIndex`` unless the file consists of whole entries of this segment, in order and of
        the supported version. Raises ``OSError`` if the disk fails."""
        if self._fd < 0:
            return
        if os.fstat(self._fd).st_size != self._size:
            raise CorruptTransactionIndex(f"{self.path} ends inside an entry")
        previous = int(self.path.name.split(".")[0]) - 1
        for aborted in self._entries(0):
            if aborted.last_offset <= previous:
                raise CorruptTransactionIndex(f"{self.path}: {aborted} does not come after offset {previous}")
            if aborted.first_offset > aborted.last_offset:
                raise CorruptTransactionIndex(f"{self.path}: {aborted} ends before it begins")
            previous = aborted.last_offset

    def flush(self) -> None:
        """Sync the entries to disk. Blocks. Raises ``OSError``."""
        if self._fd >= 0:
            os.fsync(self._fd)

    def moved_to(self, path: Path) -> None:
        """Record that the file, if it exists, was renamed to ``path``."""
        self.path = path

    def close(self) -> None:
        """Close the file. Idempotent. After this, only ``delete`` may be called."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def delete(self) -> None:
        """Close and remove the file, if it exists. Raises ``OSError``."""
        self.close()
        self.path.unlink(missing_ok=True)

    def _open(self) -> None:
        self._fd = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        size = os.fstat(self._fd).st_size
        self._size = size - size % _ENTRY.size
        if self._size:
            self._checksum = None
            self._last_offset = self._last_offset_of(self.count - 1)

    def _resize(self, count: int) -> None:
        os.ftruncate(self._fd, count * _ENTRY.size)
        self._size = count * _ENTRY.size
        self._checksum = None if count else 0
        self._last_offset = self._last_offset_of(count - 1) if count else -1
        self._last_search = (0, 0)

    def _last_offset_of(self, index: int) -> int:
        entry = os.pread(self._fd, _ENTRY.size, index * _ENTRY.size)
        if len(entry) < _ENTRY.size:
            raise CorruptTransactionIndex(f"{self.path} was truncated")
        last_offset: int = _ENTRY.unpack(entry)[3]
        return last_offset

    def _first_ending_at(self, offset: int) -> int:
        """Return the number of the first entry whose marker lies at or after ``offset``. The search starts at the entry
        that the last search found."""
        before, low = self._last_search
        if before > offset:
            low = 0
        high, step, count = low, 1, self.count
        while high < count and self._last_offset_of(high) < offset:
            low = high + 1
            high += step
            step *= 2
        high = min(high, count)
        while low < high:
            middle = (low + high) // 2
            if self._last_offset_of(middle) < offset:
                low = middle + 1
            else:
                high = middle
        self._last_search = (offset, low)
        return low

    def _entries(self, first: int) -> Iterator[AbortedTransaction]:
        position, at_once = first * _ENTRY.size, _ENTRIES_FIRST_READ
        while position < self._size:
            wanted = min(self._size - position, at_once * _ENTRY.size)
            at_once = min(4 * at_once, _ENTRIES_PER_READ)
            chunk = os.pread(self._fd, wanted, position)
            if len(chunk) < wanted:
                raise CorruptTransactionIndex(f"{self.path} was truncated")
            for version, producer_id, first_offset, last_offset, last_stable_offset in _ENTRY.iter_unpack(chunk):
                if version != _VERSION:
                    raise CorruptTransactionIndex(f"{self.path}: an entry has version {version}, expected {_VERSION}")
                yield AbortedTransaction(producer_id, first_offset, last_offset, last_stable_offset)
            position += wanted
