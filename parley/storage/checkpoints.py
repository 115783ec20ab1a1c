"""The small text files that remember offsets: a version line, a count line, then one entry on each line.

Rules:

1. A checkpoint is replaced whole: written beside the old one, synced, renamed over it, and the directory synced. A
   crash leaves the old file or the new one, never a mixture.
2. A file that cannot be understood is worth nothing in part. It is treated as missing, with one line in the log: what
   it would have said is found again by reading the log (recovery points, leader epochs) or is safe to lose.
3. An error of the disk is not a malformed file: ``OSError`` is passed on, so that the directory goes offline.
"""

from __future__ import annotations

import logging
import os
import re
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import TypeVar

Entry = TypeVar("Entry")
TopicPartition = tuple[str, int]

RECOVERY_POINTS = "recovery-point-offset-checkpoint"
"""Up to which offset each log is known to be on disk: recovery after a crash begins there."""
HIGH_WATERMARKS = "replication-offset-checkpoint"
"""The last known high watermark of each replica."""
LOG_START_OFFSETS = "log-start-offset-checkpoint"
"""Log start offsets that lie above the first segment's base offset (after DeleteRecords)."""

INT64_MAX = (1 << 63) - 1
INT32_MAX = (1 << 31) - 1

_VERSION = 0
_DIGITS = re.compile(r"[0-9]{1,19}", re.ASCII)

_log = logging.getLogger(__name__)


class MalformedCheckpoint(ValueError):
    """A checkpoint file whose text is not what the format says."""


def write_atomically(path: Path, data: bytes, *, sync: bool = True) -> None:
    """Replace the file at ``path`` with ``data`` so that a crash leaves either the old content or the new.

    Blocks for two syncs. With ``sync=False`` for none: then it withstands the death of the process, not that of the
    machine. Raises ``OSError``; the old file is then still whole.
    """
    temporary = path.with_name(path.name + ".tmp")
    with open(temporary, "wb") as file:
        file.write(data)
        if sync:
            file.flush()
            os.fsync(file.fileno())
    os.replace(temporary, path)
    if sync:
        sync_directory(path.parent)


def sync_directory(path: Path) -> None:
    """Make the names created, renamed or removed in the directory ``path`` durable. Raises ``OSError``."""
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def whole_number(text: str, maximum: int) -> int:
    """The decimal number ``text`` stands for. Raises :class:`MalformedCheckpoint` beyond 0 to ``maximum``."""
    if not _DIGITS.fullmatch(text) or (number := int(text)) > maximum:
        raise MalformedCheckpoint(f"{text[:40]!r} is not a whole number from 0 to {maximum}")
    return number


def encode(lines: Iterable[str]) -> bytes:
    """The bytes of a checkpoint file with one entry on each of ``lines``."""
    entries = list(lines)
    return "".join(f"{line}\n" for line in (str(_VERSION), str(len(entries)), *entries)).encode()


def decode(data: bytes, entry: Callable[[list[str]], Entry]) -> list[Entry]:
    """The entries of a checkpoint file, each made by ``entry`` from the words of its line.

    An empty file has no entries: Kafka creates its checkpoints so. Raises :class:`MalformedCheckpoint`.
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
        raise MalformedCheckpoint(f"{len(lines) - 2} entries where {count} were announced")
    return [entry(line.split()) for line in lines[2:]]


def read(path: Path, entry: Callable[[list[str]], Entry]) -> list[Entry]:
    """The entries of the checkpoint file at ``path``: none when it is missing or (rule 2) malformed.

    Raises ``OSError`` when the disk fails.
    """
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        return []
    try:
        return decode(data, entry)
    except MalformedCheckpoint as error:
        _log.warning("%s is malformed (%s): going on as if it were missing", path, error)
        return []


class OffsetCheckpoint:
    """A file of ``topic partition offset`` lines, such as :data:`RECOVERY_POINTS`, in one log directory."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def read(self) -> dict[TopicPartition, int]:
        """What the file says; empty when it is missing or malformed. Raises ``OSError`` when the disk fails."""
        return dict(read(self.path, _partition_offset))

    def write(self, offsets: Mapping[TopicPartition, int]) -> None:
        """Replace the file. Blocks until it is on disk; raises ``OSError``."""
        write_atomically(self.path, encode(f"{topic} {index} {offset}" for (topic, index), offset in offsets.items()))


def _partition_offset(words: list[str]) -> tuple[TopicPartition, int]:
    if len(words) != 3:
        raise MalformedCheckpoint(f"{' '.join(words)[:80]!r} is not a topic, a partition and an offset")
    topic, partition, offset = words
    return (topic, whole_number(partition, INT32_MAX)), whole_number(offset, INT64_MAX)
