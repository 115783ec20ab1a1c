"""The committed offsets of one group, in a compact form: a cluster may have millions of them.

Most offsets are plain: they contain neither metadata nor a retention time. A plain offset is kept as bytes: the value
of its record, and its log offset. The bytes take a third of the memory of the same numbers as objects, and the garbage
collector does not visit them. Readers get a ``CommittedOffset``.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, MutableMapping
from struct import Struct
from typing import NamedTuple

from parley.named_tuples import new_tuple
from parley.protocol.topic_partition import TopicPartition

OFFSET_VALUE_VERSION = 3
"""The version of the value of a record that stores an offset without a retention time."""

_PLAIN = Struct(">hqihqq")
"""The value of a plain offset's record in that version (the length of its metadata is 0), and its log offset."""
_VALUE_SIZE = _PLAIN.size - 8
_VERSION = OFFSET_VALUE_VERSION.to_bytes(2)
_NO_METADATA = bytes(2)


class CommittedOffset(NamedTuple):
    """The offset that a group has committed for a partition. ``expire_at_ms`` is -1 unless the client chose a retention
    time."""

    offset: int
    leader_epoch: int
    metadata: str
    commit_timestamp_ms: int
    expire_at_ms: int = -1
    log_offset: int = -1
    """The log offset of the commit's record, or -1 until it is written. The commit with the highest log offset is
    valid."""


def is_plain(value: bytes) -> bool:
    """Return True if this is the value of a plain offset's record."""
    return len(value) == _VALUE_SIZE and value[:2] == _VERSION and value[14:16] == _NO_METADATA


class CommittedOffsets(MutableMapping[TopicPartition, CommittedOffset]):
    """The committed offsets of one group, by partition."""

    __slots__ = ("_kept",)

    def __init__(self, offsets: Mapping[TopicPartition, CommittedOffset] | None = None) -> None:
        self._kept: dict[TopicPartition, bytes | CommittedOffset] = {}
        self.update(offsets or {})

    def __repr__(self) -> str:
        return repr(dict(self))

    def __getitem__(self, partition: TopicPartition) -> CommittedOffset:
        return _unpacked(self._kept[partition])

    def __setitem__(self, partition: TopicPartition, committed: CommittedOffset) -> None:
        self._kept[partition] = _packed(committed)

    def set_plain(self, partition: TopicPartition, value: bytes, log_offset: int) -> None:
        """Set a plain offset from the value of its record, for which ``is_plain`` is true."""
        self._kept[partition] = value + log_offset.to_bytes(8, signed=True)

    def __delitem__(self, partition: TopicPartition) -> None:
        del self._kept[partition]

    def __contains__(self, partition: object) -> bool:
        return partition in self._kept

    def __iter__(self) -> Iterator[TopicPartition]:
        return iter(self._kept)

    def __len__(self) -> int:
        return len(self._kept)


def _unpacked(kept: bytes | CommittedOffset) -> CommittedOffset:
    """Return the committed offset for its compact form."""
    if isinstance(kept, CommittedOffset):
        return kept
    _, offset, leader_epoch, _, commit_timestamp_ms, log_offset = _PLAIN.unpack(kept)
    return new_tuple(CommittedOffset, (offset, leader_epoch, "", commit_timestamp_ms, -1, log_offset))


def _packed(committed: CommittedOffset) -> bytes | CommittedOffset:
    offset, leader_epoch, metadata, commit_timestamp_ms, expire_at_ms, log_offset = committed
    if metadata or expire_at_ms != -1:
        return committed
    return _PLAIN.pack(OFFSET_VALUE_VERSION, offset, leader_epoch, 0, commit_timestamp_ms, log_offset)
