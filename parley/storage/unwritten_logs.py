"""Logs that have no files yet, because no record was ever written to them.

A new log gets its directory and its files with its first batch, so that a partition that is not used costs no disk
access. One checkpoint file of the log directory names such logs with their topics' ids: then the next start knows that
they lie in this directory. It is written before clients hear of a new log, and with the other checkpoints. If a log has
a directory although the file names it, the directory counts.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Final
from uuid import UUID

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


class UnwrittenLogs:
    """The file of ``topic partition topic-id`` lines in one log directory."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def read(self) -> dict[TopicPartition, UUID]:
        """The topic id of each log in the file; empty if it is missing or malformed. Raises ``OSError``."""
        return dict(read(self.path, _log))

    def write(self, logs: Mapping[TopicPartition, UUID]) -> None:
        """Replace the file. Blocks until it is on disk. Raises ``OSError``."""
        lines = (f"{topic} {partition} {encode_id(topic_id)}" for (topic, partition), topic_id in logs.items())
        write_atomically(self.path, encode(lines))


def _log(words: list[str]) -> tuple[TopicPartition, UUID]:
    if len(words) != 3:
        raise MalformedCheckpoint(f"{' '.join(words)[:80]!r} is not a topic, a partition and a topic id")
    topic, partition, topic_id = words
    try:
        return (topic, whole_number(partition, INT32_MAX)), decode_id(topic_id)
    except MalformedIdentity as error:
        raise MalformedCheckpoint(str(error)) from None
