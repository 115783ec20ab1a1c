"""The file ``store.latest`` next to the embedded store's database: the number of the latest change that is on disk.

The file is written after the change itself. So the database always contains at least this change, unless it has lost
writes because its WAL was deleted or an older copy was put in its place. No caller waits for this file to reach the
disk; after a power failure it may contain an older number than the database.
"""

from __future__ import annotations

import os
import zlib
from pathlib import Path

FILE = "store.latest"
_LENGTH_MAX = 100
_DIGITS = 20
_NUMBERS_END = 1 << 62  # the database's numbers are int64, and rise one by one


class LatestChange:
    """The file, open for reading and writing. All processes that use the store write to it."""

    def __init__(self, directory: Path, identity: str) -> None:
        """``identity`` is the identity of the store: a number that another store has written is ignored. Raises
        OSError."""
        self._identity = identity
        self._file = os.open(directory / FILE, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)

    def read(self) -> int:
        """Return the latest change that was on disk, or 0 if the file is new, damaged or belongs to another store.

        Raises OSError.
        """
        line = os.pread(self._file, _LENGTH_MAX, 0)
        identity, _, rest = line.decode("ascii", "replace").partition(" ")
        number = rest[:_DIGITS]
        if identity != self._identity or len(number) != _DIGITS or not number.isdecimal():
            return 0
        without_checksum = f"{identity} {number}\n".encode()  # as an older version wrote it
        if line not in (self._line(int(number)), without_checksum):
            return 0
        return int(number) if int(number) < _NUMBERS_END else 0

    def write(self, sequence: int) -> None:
        """Record that all changes up to this one are on disk. Raises OSError."""
        os.pwrite(self._file, self._line(sequence), 0)

    def _line(self, sequence: int) -> bytes:
        text = f"{self._identity} {sequence:0{_DIGITS}d} ".encode()
        return b"%s%08x\n" % (text, zlib.crc32(text))

    def close(self) -> None:
        """Close the file."""
        os.close(self._file)
