"""Producer snapshots: files with the state of a log's producers at one offset (``<offset>.snapshot``, version 1).

A snapshot that is taken during appends is written later, by ``SnapshotFiles.flush`` in another thread. A crash before
that loses nothing, because the recovery point does not pass a snapshot that is not on disk.

Layout, big-endian: version int16, CRC-32C uint32 of everything after it, number of entries int32, then entries of 46
bytes. A file is written once and never changed, so the checksum reveals any damage.
"""

from __future__ import annotations

import os
import re
import struct
import threading
from collections import deque
from collections.abc import Callable, Collection, Iterable
from pathlib import Path
from typing import Final, NamedTuple

from parley.protocol.records.crc32c import crc32c
from parley.storage.checkpoints import INT64_MAX, sync_directory

_VERSION = 1
_HEAD = struct.Struct(">hIi")
_CHECKED_FROM = 6
_ENTRY = struct.Struct(">qhiqiqiq")
_NAME = re.compile(r"([0-9]{20})\.snapshot", re.ASCII)

WAITING_PRODUCERS_MAX: Final = 200_000
"""The maximum number of producers in all unwritten snapshots of a log. Beyond this, the oldest unwritten snapshots are
dropped."""


class CorruptSnapshot(ValueError):
    """Raised if the contents of a file are not a valid snapshot of a supported version."""


class ProducerEntry(NamedTuple):
    """The state of one producer. Offsets and sequence numbers that do not exist are -1.

    ``last_sequence`` and ``last_offset`` are those of the producer's last batch; ``offset_delta`` is the batch's last
    offset minus its first. ``timestamp`` (ms) is the largest timestamp of that batch or of a later marker.
    ``transaction_first_offset`` is the first offset of the producer's open transaction.
    """

    producer_id: int
    epoch: int
    last_sequence: int
    last_offset: int
    offset_delta: int
    timestamp: int
    coordinator_epoch: int
    transaction_first_offset: int


def snapshot_path(directory: Path, offset: int) -> Path:
    """Return the path of the snapshot at ``offset``."""
    return directory / f"{offset:020d}.snapshot"


def snapshot_offsets(directory: Path) -> list[int]:
    """Return the offsets of the snapshots in ``directory``, lowest first. Raises ``OSError``."""
    offsets = (int(name[1]) for entry in os.scandir(directory) if (name := _NAME.fullmatch(entry.name)))
    return sorted(offset for offset in offsets if offset <= INT64_MAX)


def encode_snapshot(entries: Iterable[ProducerEntry]) -> bytes:
    """Return the contents of a snapshot file."""
    packed = [_ENTRY.pack(*entry) for entry in entries]
    body = b"".join(packed)
    checksum = crc32c(body, crc32c(struct.pack(">i", len(packed))))
    return _HEAD.pack(_VERSION, checksum, len(packed)) + body


def decode_snapshot(data: bytes) -> list[ProducerEntry]:
    """Return the producers in the contents of a snapshot file. Raises ``CorruptSnapshot``."""
    if len(data) < _HEAD.size:
        raise CorruptSnapshot(f"{len(data)} bytes are too few for a snapshot")
    version, checksum, count = _HEAD.unpack_from(data)
    if version != _VERSION:
        raise CorruptSnapshot(f"unknown version {version}; expected {_VERSION}")
    if crc32c(memoryview(data)[_CHECKED_FROM:]) != checksum:
        raise CorruptSnapshot("the checksum does not match")
    if count < 0 or len(data) != _HEAD.size + count * _ENTRY.size:
        raise CorruptSnapshot(f"{len(data)} bytes is the wrong length for {count} producers")
    return [ProducerEntry(*fields) for fields in _ENTRY.iter_unpack(memoryview(data)[_HEAD.size :])]


def read_snapshot(path: Path) -> list[ProducerEntry]:
    """Return the producers in the snapshot file at ``path``. Raises ``CorruptSnapshot``, ``OSError``."""
    return decode_snapshot(path.read_bytes())


class _Waiting(NamedTuple):
    offset: int
    producers: int
    entries: Callable[[], Iterable[ProducerEntry]]


class SnapshotFiles:
    """The snapshots of the log in ``directory``, including those that are not written yet.

    Calls must be serialized, except that any number of threads may run ``flush`` at any time. Methods that remove files
    wait for a flush in progress; methods that add files do not.
    """

    def __init__(self, directory: Path, offsets: Iterable[int]) -> None:
        """``offsets`` are the offsets of the existing snapshots, lowest first."""
        self.directory = directory
        """The directory of the files. To be assigned when the log's directory is renamed."""
        self._offsets = list(offsets)
        self._waiting: deque[_Waiting] = deque()
        self._writing = threading.Lock()

    @property
    def offsets(self) -> tuple[int, ...]:
        """The offsets of the snapshots, lowest first."""
        return tuple(self._offsets)

    def path(self, offset: int) -> Path:
        """Return the path of the snapshot at ``offset``, which may not be written yet."""
        return snapshot_path(self.directory, offset)

    def write(self, offset: int, entries: Iterable[ProducerEntry]) -> None:
        """Write a snapshot and sync it to disk, unless one exists at ``offset``. Blocks. Raises ``OSError``."""
        if offset not in self._offsets:
            self._write(offset, entries)
            self._add(offset)

    def write_later(self, offset: int, producers: int, entries: Callable[[], Iterable[ProducerEntry]]) -> None:
        """Add a snapshot that the next ``flush`` will write, unless one exists at ``offset``. ``flush`` calls
        ``entries``, perhaps in another thread; it must return the state of ``producers`` producers as of this call."""
        if offset in self._offsets:
            return
        self._waiting.append(_Waiting(offset, producers, entries))
        self._add(offset)
        while len(self._waiting) > 1 and sum(each.producers for each in tuple(self._waiting)) > WAITING_PRODUCERS_MAX:
            try:
                self._offsets.remove(self._waiting.popleft().offset)
            except IndexError:
                return

    def flush(self) -> None:
        """Write the pending snapshots and sync them to disk. Blocks. Raises ``OSError``."""
        with self._writing:
            while self._waiting:
                try:
                    waiting = self._waiting.popleft()
                except IndexError:
                    return
                try:
                    self._write(waiting.offset, waiting.entries())
                except FileNotFoundError:
                    return  # the log was deleted meanwhile, and its directory renamed or removed

    def remove(self, offsets: Collection[int]) -> None:
        """Delete snapshots, or cancel those that are not written yet. Blocks. Raises ``OSError``."""
        if not offsets:
            return
        with self._writing:
            self._waiting = deque(each for each in self._waiting if each.offset not in offsets)
            for offset in offsets:
                self.path(offset).unlink(missing_ok=True)
                self._offsets.remove(offset)

    def _add(self, offset: int) -> None:
        self._offsets.append(offset)
        self._offsets.sort()

    def _write(self, offset: int, entries: Iterable[ProducerEntry]) -> None:
        path = self.path(offset)
        with path.open("wb") as file:
            file.write(encode_snapshot(entries))
            file.flush()
            os.fsync(file.fileno())
        sync_directory(path.parent)
