"""Checkpoint files: small text files with offsets. They contain a version line, a count line, and one line per entry.

Rules:

1. A checkpoint is replaced as a whole: a new file is written beside the old one, synced and renamed over it, and the
   directory is synced. A crash leaves the old file or the new one, never a mixture.
2. A malformed file is treated as missing, and logged. Its contents can be recovered from the log (recovery points,
   leader epochs) or are safe to lose.
3. Kafka's format has no checksum, so Parley adds one: an altered log start would hide records, an altered high
   watermark would raise a false alarm, and an altered leader epoch would make followers keep records that differ from
   their leader's. ``OffsetCheckpoint`` adds a line with the checksum; ``write`` encodes it in blanks after the last
   line.
4. A disk error does not make a file malformed: ``OSError`` is passed on, so that the directory goes offline.
"""

from __future__ import annotations

import logging
import os
import re
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import TypeVar

from parley.protocol.records.crc32c import crc32c
from parley.protocol.topic_partition import TopicPartition
from parley.storage.resource_exhaustion import with_room

Entry = TypeVar("Entry")

RECOVERY_POINTS = "recovery-point-offset-checkpoint"
"""The offset up to which each log is known to be on disk. Recovery after a crash starts there."""
HIGH_WATERMARKS = "replication-offset-checkpoint"
"""The last known high watermark of each replica."""
LOG_START_OFFSETS = "log-start-offset-checkpoint"
"""The log start offset of each log."""
CLEANER_OFFSETS = "cleaner-offset-checkpoint"
"""The offset up to which each log was last compacted."""

CHECKSUM = ":crc32c:"
"""The word in place of the topic name in the checksum line. It is not a valid topic name, even if one byte is
altered."""

INT64_MAX = (1 << 63) - 1
INT32_MAX = (1 << 31) - 1

_NO_TOPIC = b":"
_VERSION = 0
_DIGITS = re.compile(r"[0-9]{1,19}", re.ASCII)

_log = logging.getLogger(__name__)


class MalformedCheckpoint(ValueError):
    """Raised if a checkpoint file cannot be parsed, or its checksum is wrong."""


def write_atomically(path: Path, data: bytes, *, sync: bool = True) -> None:
    """Replace the contents of the file at ``path`` with ``data``. A crash leaves either the old contents or the new.

    Blocks for two syncs. With ``sync=False``, nothing is synced: the new file survives a crash of the process, but
    perhaps not a crash of the machine. If this raises ``OSError``, the file still has its old contents, unless only the
    last sync failed: then it has the new ones.
    """
    temporary = path.with_name(path.name + ".tmp")
    with with_room(open, temporary, "wb") as file:
        file.write(data)
        if sync:
            file.flush()
            os.fsync(file.fileno())
    os.replace(temporary, path)
    if sync:
        sync_directory(path.parent)


def sync_directory(path: Path) -> None:
    """Make created, renamed and removed names in the directory ``path`` durable. Raises ``OSError``."""
    _sync(path, os.O_DIRECTORY)


def make_directories(path: Path) -> None:
    """Create a directory and its missing parents, and sync all of them to disk. Raises ``OSError``."""
    missing = [each for each in (path, *path.parents) if not each.exists()]
    path.mkdir(parents=True, exist_ok=True)
    for each in missing:
        sync_directory(each.parent)


def sync_file(path: Path) -> None:
    """Sync a file that was written earlier. Blocks. Raises ``OSError``."""
    _sync(path, 0)


def _sync(path: Path, kind: int) -> None:
    fd = with_room(os.open, path, os.O_RDONLY | os.O_CLOEXEC | kind)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def whole_number(text: str, maximum: int) -> int:
    """Parse a decimal number from 0 to ``maximum``. Raises ``MalformedCheckpoint`` for anything else."""
    if not _DIGITS.fullmatch(text) or (number := int(text)) > maximum:
        raise MalformedCheckpoint(f"{text[:40]!r} is not a whole number from 0 to {maximum}")
    return number


def encode(lines: Iterable[str]) -> bytes:
    """Return the contents of a checkpoint file with one entry per line."""
    entries = list(lines)
    return "".join(f"{line}\n" for line in (str(_VERSION), str(len(entries)), *entries)).encode()


def decode(data: bytes, entry: Callable[[list[str]], Entry]) -> list[Entry]:
    """Return the entries of a checkpoint file; ``entry`` parses the words of one line.

    An empty file has no entries, because Kafka creates its checkpoints empty. Raises ``MalformedCheckpoint`` if the
    version, the count or the encoding is wrong, and the errors of ``entry``.
    """
    try:
        lines = data.decode("utf-8").replace("\r\n", "\n").removesuffix("\n").split("\n")
    except UnicodeDecodeError as error:
        raise MalformedCheckpoint(f"not UTF-8 text: {error.reason} at byte {error.start}") from None
    if lines == [""]:
        return []
    if lines[0] != str(_VERSION):
        raise MalformedCheckpoint(f"version {lines[0][:40]!r} instead of {_VERSION}")
    if len(lines) == 1:
        return []
    count = whole_number(lines[1], INT32_MAX)
    if count != len(lines) - 2:
        raise MalformedCheckpoint(f"{len(lines) - 2} entries, but the count line says {count}")
    return [entry(line.split()) for line in lines[2:]]


def write(path: Path, lines: Iterable[str], *, sync: bool = True) -> None:
    """Replace the checkpoint file at ``path``, with one entry per line and a checksum. Blocks until it is on disk,
    unless ``sync`` is False (``write_atomically``).

    A checkpoint without entries gets no checksum, because Kafka reads the last line of such a file as a number. Raises
    ``OSError``.
    """
    entries = list(lines)
    data = encode(entries)
    write_atomically(path, with_blank_checksum(data) if entries else data, sync=sync)


def read(path: Path, entry: Callable[[list[str]], Entry]) -> list[Entry]:
    """Return the entries of the checkpoint file at ``path``; none if it is missing or malformed (rule 2).

    Raises ``OSError`` if the disk fails.
    """
    try:
        return read_well_formed(path, entry) or []
    except MalformedCheckpoint as error:
        _log.warning("%s is malformed (%s): treating it as missing", path, error)
        return []


def read_well_formed(path: Path, entry: Callable[[list[str]], Entry]) -> list[Entry] | None:
    """Return the entries of the checkpoint file at ``path``, or None if it is missing.

    Raises ``MalformedCheckpoint``, and ``OSError`` if the disk fails.
    """
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        return None
    verify_blank_checksum(data)
    return decode(data, entry)


def with_blank_checksum(data: bytes) -> bytes:
    """Return ``data``, the contents of a text file, with the CRC-32C of the text appended to the last line.

    Each bit is a space or a tab, which Apache Kafka ignores there. The checksum has no line of its own, because Kafka
    accepts no line in ``leader-epoch-checkpoint`` that is not an epoch.
    """
    text = data.removesuffix(b"\n")
    return text + _blanks(crc32c(text)) + b"\n"


def verify_blank_checksum(data: bytes) -> bool:
    """Return True if the last line ends with the checksum of the text, or False if it does not end with blanks.

    An older version, or Apache Kafka, writes no blanks there. Raises ``MalformedCheckpoint`` if the blanks are not the
    checksum.
    """
    line = data.removesuffix(b"\n")
    text = line.rstrip(b" \t")
    if len(text) < len(line) and line != text + _blanks(crc32c(text)):
        raise MalformedCheckpoint("its checksum is wrong")
    return len(text) < len(line)


def _blanks(crc: int) -> bytes:
    return f"{crc:032b}".replace("0", " ").replace("1", "\t").encode()


def has_valid_checksum(data: bytes) -> bool:
    """Return True if the last line of a file of offsets is the checksum of the lines before it."""
    head, _, last = data.removesuffix(b"\n").rpartition(b"\n")
    return last == _checksum_line_of(crc32c(b"\n".join(head.split(b"\n")[2:])))


class OffsetCheckpoint:
    """A file of ``topic partition offset`` lines in one log directory, such as ``RECOVERY_POINTS``.

    The last line contains the CRC-32C of the lines with offsets, twice, so that an altered checksum can be
    distinguished from altered offsets. To Apache Kafka, the line looks like the offset of a nonexistent partition, so
    Kafka ignores it. Kafka's own files have no such line.
    """

    def __init__(self, path: Path) -> None:
        self.path = path

    def read(self) -> dict[TopicPartition, int]:
        """Return the offsets in the file; empty if it is missing, malformed or altered. Raises ``OSError`` if the disk
        fails."""
        try:
            data = self.path.read_bytes()
        except FileNotFoundError:
            return {}
        try:
            return dict(self._checked(data))
        except MalformedCheckpoint as error:
            _log.error("%s is damaged (%s): treating it as missing", self.path, error)
            return {}

    def write(self, offsets: Mapping[TopicPartition, int]) -> None:
        """Replace the file. Blocks until it is on disk. Raises ``OSError``."""
        lines = [f"{topic} {index} {offset}" for (topic, index), offset in offsets.items()]
        write_atomically(self.path, encode([*lines, _checksum_line(lines)]))

    def _checked(self, data: bytes) -> list[tuple[TopicPartition, int]]:
        head, _, last = data.removesuffix(b"\n").rpartition(b"\n")
        if _NO_TOPIC not in last:  # an older version or Apache Kafka wrote the file
            return decode(data, _partition_offset)
        entries = head.split(b"\n")[2:]
        if has_valid_checksum(data):
            return [_partition_offset(line.decode("ascii").split()) for line in entries]
        if _claimed_crc(last) is not None:
            raise MalformedCheckpoint("its checksum is wrong")
        _log.warning("%s has a damaged checksum: its offsets are not verified", self.path)
        return decode(head + b"\n" + _checksum_line_of(0), _partition_offset)[:-1]


def _checksum_line(lines: Iterable[str]) -> str:
    return _checksum_line_of(crc32c("\n".join(lines).encode())).decode()


def _checksum_line_of(crc: int) -> bytes:
    return b"%s %d %d" % (CHECKSUM.encode(), crc & INT32_MAX, crc)


def _claimed_crc(line: bytes) -> int | None:
    """Return the CRC in the line with the checksum; None if the line is damaged."""
    crc = line.rpartition(b" ")[2]
    return int(crc) if crc.isdigit() and _checksum_line_of(int(crc)) == line else None


def _partition_offset(words: list[str]) -> tuple[TopicPartition, int]:
    if len(words) != 3:
        raise MalformedCheckpoint(f"{' '.join(words)[:80]!r} is not a topic, a partition and an offset")
    topic, partition, offset = words
    return (topic, whole_number(partition, INT32_MAX)), whole_number(offset, INT64_MAX)
