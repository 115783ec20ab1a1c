"""Logs that have no files yet, because no record was ever written to them.

A new log gets its directory and its files with its first batch, so a partition that is not used costs no disk access.
One checkpoint file of the log directory lists such logs with their topics' ids, so that the next startup knows that
they are in this directory. It is written before clients learn of a new log, and with the other checkpoints. If a listed
log has a directory, the directory takes precedence. A line that ends in ``moving`` was written before a copy in another
directory could replace the log: the copy may have received records before this file was written again.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final

from parley.protocol.uuids import UUID
from parley.storage.checkpoints import (
    INT32_MAX,
    MalformedCheckpoint,
    TopicPartition,
    encode,
    read,
    whole_number,
    write_atomically,
)
from parley.storage.meta_properties import MalformedIdentity
from parley.storage.partition_metadata import decode_id, encode_id

UNWRITTEN_LOGS: Final = "unwritten-log-checkpoint"
_MOVING: Final = "moving"


@dataclass(frozen=True, slots=True)
class UnwrittenLog:
    """What the checkpoint file records about a log without files."""

    topic_id: UUID
    is_moving: bool = False
    """True if another directory had a copy that was about to replace the log."""


class UnwrittenLogs:
    """The file of ``topic partition topic-id [moving]`` lines in one log directory."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def read(self) -> dict[TopicPartition, UnwrittenLog]:
        """Return the logs that the file names; none if the file is missing or malformed. Raises ``OSError``."""
        return dict(read(self.path, partial(_log, {})))

    def write(self, logs: Mapping[TopicPartition, UnwrittenLog]) -> None:
        """Replace the file. Blocks until it is on disk. Raises ``OSError``."""
        write_atomically(self.path, encode(_line(*key, log) for key, log in logs.items()))


def _line(topic: str, partition: int, log: UnwrittenLog) -> str:
    line = f"{topic} {partition} {encode_id(log.topic_id)}"
    return f"{line} {_MOVING}" if log.is_moving else line


def _log(known: dict[tuple[str, bool], UnwrittenLog], words: list[str]) -> tuple[TopicPartition, UnwrittenLog]:
    """Return the entry of one line. ``known`` collects the values of the file: thousands of partitions of a topic share
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
