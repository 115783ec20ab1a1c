"""``partition.metadata``: the topic id (KIP-516) and the partition that a partition's directory belongs to.

The id distinguishes a topic from an earlier, deleted topic of the same name. Parley adds a line that Apache Kafka
ignores. It contains the partition, because nothing else in a log shows that the directories of two partitions of a
topic were swapped. It ends with a checksum (``with_blank_checksum``), because a log with an altered id would belong to
no topic.
"""

from __future__ import annotations

import base64
import binascii
import os
import re
from collections.abc import Mapping
from pathlib import Path

from parley.light_dataclasses import dataclass
from parley.protocol.uuids import UUID
from parley.storage.checkpoints import (
    MalformedCheckpoint,
    verify_blank_checksum,
    with_blank_checksum,
    write_atomically,
)
from parley.storage.meta_properties import MalformedIdentity

PARTITION_FILE = "partition.metadata"
_TEMPORARY = PARTITION_FILE + ".tmp"

_PARTITION = re.compile(
    r"version: ?([0-9]+)\s+topic_id: ?([A-Za-z0-9_-]{22})(?:\s+partition: ?([0-9]{1,10}))?\s*", re.ASCII
)


def encode_id(value: UUID) -> str:
    """Return the id in Kafka's text form: base64url of the 16 bytes, without padding."""
    return base64.urlsafe_b64encode(value.bytes).decode("ascii").rstrip("=")


def decode_id(text: str) -> UUID:
    """Return the id that ``encode_id`` has encoded. Raises ``MalformedIdentity``."""
    try:
        data = base64.b64decode(text + "==", altchars=b"-_", validate=True)
        return UUID(bytes=data)
    except (binascii.Error, ValueError):
        raise MalformedIdentity(f"{text[:40]!r} is not an id of 22 base64url characters") from None


@dataclass(frozen=True, slots=True)
class PartitionMetadata:
    """The contents of a ``partition.metadata`` file."""

    topic_id: UUID
    partition: int | None
    """None if Apache Kafka or an older version of Parley wrote the file."""
    has_checksum: bool = True
    """False if Apache Kafka or an older version of Parley wrote the file."""


def read_partition_metadata(partition_directory: Path) -> PartitionMetadata | None:
    """Return the contents of ``partition.metadata``; None if the file is missing (topics older than Kafka 2.8).

    Raises ``MalformedIdentity``, and ``OSError`` if the disk fails.
    """
    path = partition_directory / PARTITION_FILE
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        return None
    match = _PARTITION.fullmatch(data.decode("latin-1"))
    if match is None:
        raise MalformedIdentity(f"{path} is malformed: it must contain a version and a topic_id")
    if match[1] != "0":
        raise MalformedIdentity(f"{path} has unknown version {match[1]}")
    try:
        has_checksum = verify_blank_checksum(data)
    except MalformedCheckpoint as error:
        raise MalformedIdentity(f"{path} is malformed: {error}") from None
    return PartitionMetadata(decode_id(match[2]), None if match[3] is None else int(match[3]), has_checksum)


def write_partition_metadata(partition_directory: Path, topic_id: UUID, partition: int) -> None:
    """Write ``partition.metadata`` without a sync; the first flush of the log syncs it. Raises ``OSError``."""
    write_atomically(partition_directory / PARTITION_FILE, _encode(topic_id, partition), sync=False)


def rewrite_partition_metadata(files: Mapping[Path, tuple[UUID, int]]) -> None:
    """Replace the ``partition.metadata`` file in each of these directories, with the given topic id and partition.

    One sync covers all new files before they replace the old ones: syncing thousands of files one by one would take
    minutes. A crash leaves the old or the new file in each directory. Raises ``OSError``.
    """
    for directory, (topic_id, partition) in files.items():
        (directory / _TEMPORARY).write_bytes(_encode(topic_id, partition))
    if files:
        os.sync()
    for directory in files:
        os.replace(directory / _TEMPORARY, directory / PARTITION_FILE)


def _encode(topic_id: UUID, partition: int) -> bytes:
    return with_blank_checksum(f"version: 0\ntopic_id: {encode_id(topic_id)}\npartition: {partition}\n".encode())
