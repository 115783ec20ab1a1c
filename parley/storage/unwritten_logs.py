"""Logs that have no files yet, because no record was ever written to them.

The directory and the files of a new log are created with its first batch, so an unused partition needs no disk access.
A checkpoint file in the log directory lists such logs with their topic ids, so that the next startup knows that they
belong to this directory. It is written before clients learn of a new log, and with the other checkpoints. If a listed
log has a directory, the line is ignored. A line that ends in ``moving`` was written before a copy in another directory
could replace the log: the copy may have received records before this file was written again.

A second file lists the logs that were created, or whose files were created, since the checkpoint. After a kill, the
next startup then does not mistake an unused log for a lost log, or a log whose directory was removed for an unused one.
The second file is not synced, so it is valid only until the machine restarts.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import suppress
from functools import partial
from pathlib import Path
from threading import Lock
from typing import Final

from parley.light_dataclasses import dataclass
from parley.protocol.topic_partition import TopicPartition
from parley.protocol.uuids import UUID
from parley.storage.checkpoints import INT32_MAX, MalformedCheckpoint, read, whole_number, write, write_atomically
from parley.storage.meta_properties import MalformedIdentity
from parley.storage.partition_metadata import decode_id, encode_id
from parley.storage.resource_exhaustion import with_room

UNWRITTEN_LOGS: Final = "unwritten-log-checkpoint"
LATER: Final = ".later"
_MOVING: Final = "moving"
_WRITTEN: Final = "written"


@dataclass(frozen=True, slots=True)
class UnwrittenLog:
    """The checkpoint's entry for a log without files."""

    topic_id: UUID
    is_moving: bool = False
    """True if another directory had a copy that was about to replace the log."""


class UnwrittenLogs:
    """The two files in one log directory. Their lines have the form ``topic partition topic-id [moving]``.

    In the second file, a line that ends in ``written`` removes a log from the list.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._later = path.with_name(path.name + LATER)
        self._begun: dict[TopicPartition, UUID] = {}  # the logs that got files since the file was last written
        self._lock = Lock()  # for ``_later`` and ``_begun``

    def read(self, *, same_boot: bool) -> dict[TopicPartition, UnwrittenLog]:
        """Return the logs in the list. A missing or malformed file counts as empty. Raises ``OSError``.

        ``same_boot`` is True if the machine has not restarted since the files were written.
        """
        entry = partial(_log, {})
        found = dict(read(self.path, entry))
        for line in self._later_lines() if same_boot else ():
            words = line.split()
            is_written = words[3:] == [_WRITTEN]
            with suppress(MalformedCheckpoint):  # damage, or an incomplete line because the disk was full
                key, log = entry(words[:3] if is_written else words)
                if not is_written:
                    found[key] = log
                elif key in found and found[key].topic_id == log.topic_id:
                    del found[key]
        return found

    def _later_lines(self) -> list[str]:
        try:
            return self._later.read_text("utf-8", "replace").splitlines()
        except FileNotFoundError:
            return []

    def write(self, logs: Mapping[TopicPartition, UnwrittenLog]) -> None:
        """Replace the list in the first file with these logs, and empty the second file, except for logs whose files
        have been created since the list was made. Blocks until the first file is on disk. Raises ``OSError``."""
        write(self.path, (_line(*key, log) for key, log in logs.items()))
        with self._lock:
            self._begun = {key: each for key, each in self._begun.items() if key in logs and logs[key].topic_id == each}
            lines = [_written_line(*key, topic_id) for key, topic_id in self._begun.items()]  # since ``logs`` was taken
            if lines:
                write_atomically(self._later, _text(lines), sync=False)
            else:
                self._later.unlink(missing_ok=True)

    def add(self, logs: Mapping[TopicPartition, UnwrittenLog]) -> None:
        """Add logs to the second file, without a sync. Raises ``OSError``."""
        with self._lock:
            self._append(_line(*key, log) for key, log in logs.items())

    def begin(self, topic: str, partition: int, topic_id: UUID) -> None:
        """Record in the second file, without a sync, that the files of a log are about to be created. Raises
        ``OSError``."""
        with self._lock:
            self._begun[topic, partition] = topic_id
            self._append((_written_line(topic, partition, topic_id),))

    def _append(self, lines: Iterable[str]) -> None:
        with with_room(open, self._later, "ab") as file:
            file.write(_text(lines))


def _text(lines: Iterable[str]) -> bytes:
    return "".join(line + "\n" for line in lines).encode()


def _written_line(topic: str, partition: int, topic_id: UUID) -> str:
    return f"{topic} {partition} {encode_id(topic_id)} {_WRITTEN}"


def _line(topic: str, partition: int, log: UnwrittenLog) -> str:
    line = f"{topic} {partition} {encode_id(log.topic_id)}"
    return f"{line} {_MOVING}" if log.is_moving else line


def _log(known: dict[tuple[str, bool], UnwrittenLog], words: list[str]) -> tuple[TopicPartition, UnwrittenLog]:
    """Return the entry of one line. ``known`` caches the values, because thousands of partitions of a topic share
    one."""
    is_moving = len(words) == 4 and words[3] == _MOVING
    if len(words) != 3 and not is_moving:
        raise MalformedCheckpoint(f"{' '.join(words)[:80]!r} is not a topic, a partition and a topic id")
    topic, partition, topic_id = words[:3]
    found = known.get((topic_id, is_moving))
    if found is None:
        try:
            found = known[topic_id, is_moving] = UnwrittenLog(decode_id(topic_id), is_moving)
        except MalformedIdentity as error:
            raise MalformedCheckpoint(str(error)) from None
    return (topic, whole_number(partition, INT32_MAX)), found
