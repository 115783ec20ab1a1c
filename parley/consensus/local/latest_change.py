"""The file ``store.latest`` beside the embedded store's database: the number of the latest change that is on disk.

It is written after the change itself, so the database never has less than it says, unless the database has lost writes:
its WAL was deleted, or an older copy was put in its place. Nothing waits for this file to reach the disk; after a power
failure it may say less than the database has.
"""

from __future__ import annotations

import os
from pathlib import Path

FILE = "store.latest"
_LENGTH_MAX = 100
_NUMBERS_END = 1 << 62  # the database's numbers are int64, and rise one by one


class LatestChange:
    """The open file. All processes that use the store write it."""

    def __init__(self, directory: Path, identity: str) -> None:
        """``identity`` is that of the store. Raises OSError."""
        self._identity = identity
        self._file = os.open(directory / FILE, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)

    def read(self) -> int:
        """Return the latest change that was on disk; 0 if the file is new, damaged or another store's."""
        words = os.pread(self._file, _LENGTH_MAX, 0).decode("ascii", "replace").split()
        if len(words) != 2 or words[0] != self._identity or not words[1].isdecimal():
            return 0
        number = int(words[1])
        return number if number < _NUMBERS_END else 0

    def write(self, sequence: int) -> None:
        """Note that everything up to this change is on disk."""
        os.pwrite(self._file, f"{self._identity} {sequence:020d}\n".encode(), 0)

    def close(self) -> None:
        """Close the file."""
        os.close(self._file)
