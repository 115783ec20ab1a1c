"""The files that hold a log's producers as they were at one offset: ``<offset>.snapshot``, Kafka's version 1.

Layout, big endian: version int16, CRC-32C uint32 of all that follows it, number of entries int32, then the entries of
46 bytes. A file is written once and never changed; whatever a crash makes of it fails the checksum.
"""

from __future__ import annotations

import os
import re
import struct
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

from crc32c import crc32c

from storage.checkpoints import INT64_MAX, sync_directory

_VERSION = 1
_HEAD = struct.Struct(">hIi")
_CHECKED_FROM = 6
_ENTRY = struct.Struct(">qhiqiqiq")
_NAME = re.compile(r"([0-9]{20})\.snapshot", re.ASCII)


class CorruptSnapshot(ValueError):
    """The file is not a whole snapshot of a version known here."""


class ProducerEntry(NamedTuple):
    """What is known of one producer. Offsets and sequences are -1 where there is none.

    ``last_sequence``, ``last_offset`` and ``timestamp`` (ms) are those of its last batch, ``offset_delta`` that batch's
    last offset less its first; ``timestamp`` is the marker's if that came later. ``transaction_first_offset`` is where
    its open transaction begins.
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
    """The file of the snapshot at ``offset``."""
    return directory / f"{offset:020d}.snapshot"


def snapshot_offsets(directory: Path) -> list[int]:
    """The offsets of the snapshots in ``directory``, lowest first. Raises ``OSError``."""
    offsets = (int(name[1]) for entry in os.scandir(directory) if (name := _NAME.fullmatch(entry.name)))
    return sorted(offset for offset in offsets if offset <= INT64_MAX)


def encode_snapshot(entries: Iterable[ProducerEntry]) -> bytes:
    """The bytes of a snapshot file."""
    packed = [_ENTRY.pack(*entry) for entry in entries]
    body = b"".join(packed)
    checksum = crc32c(body, crc32c(struct.pack(">i", len(packed))))
    return _HEAD.pack(_VERSION, checksum, len(packed)) + body


def decode_snapshot(data: bytes) -> list[ProducerEntry]:
    """The producers of a snapshot file. Raises :class:`CorruptSnapshot`."""
    if len(data) < _HEAD.size:
        raise CorruptSnapshot(f"{len(data)} bytes are too few")
    version, checksum, count = _HEAD.unpack_from(data)
    if version != _VERSION:
        raise CorruptSnapshot(f"version {version} instead of {_VERSION}")
    if crc32c(memoryview(data)[_CHECKED_FROM:]) != checksum:
        raise CorruptSnapshot("the checksum does not match")
    if count < 0 or len(data) != _HEAD.size + count * _ENTRY.size:
        raise CorruptSnapshot(f"{len(data)} bytes do not hold {count} producers")
    return [ProducerEntry(*fields) for fields in _ENTRY.iter_unpack(memoryview(data)[_HEAD.size :])]


def read_snapshot(path: Path) -> list[ProducerEntry]:
    """The producers in the file at ``path``. Raises :class:`CorruptSnapshot`, or ``OSError``."""
    return decode_snapshot(path.read_bytes())


def sync_snapshot(path: Path) -> None:
    """Bring a snapshot to disk, unless it was removed meanwhile. Blocks; raises ``OSError``."""
    try:
        fd = os.open(path, os.O_RDONLY)
    except FileNotFoundError:
        return
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
    sync_directory(path.parent)
