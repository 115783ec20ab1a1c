"""The committed offsets of one group, as small as they can be: a cluster may have millions.

Most are plain: without metadata, and without a retention of their own. Of these, only the value of the record and the
place of the record in the log are kept, as bytes: that is a third of what the same numbers take as objects, and the
garbage collector does not visit it. Readers get a ``CommittedOffset``.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, MutableMapping
from struct import Struct
from typing import NamedTuple

OFFSET_VALUE_VERSION = 3
"""The version of the records' values in which offsets without a retention of their own are stored."""

_PLAIN = Struct(">hqihqq")
"""The value of the record of a plain offset in that version (the length of its metadata is 0), and its log offset."""
_VALUE_SIZE = _PLAIN.size - 8
_VERSION = OFFSET_VALUE_VERSION.to_bytes(2)
_NO_METADATA = bytes(2)

_new = tuple.__new__  # a quarter of the time that the constructor takes


class CommittedOffset(NamedTuple):
    """The offset that a group has committed for a partition. ``expire_at_ms`` is set if the client gave a retention."""

    offset: int
    leader_epoch: int
    metadata: str
    commit_timestamp_ms: int
    expire_at_ms: int = -1
    log_offset: int = -1
    """Offset of the commit's record in the log; -1 until it is written. Of two commits, the later one counts."""


TopicPartition = tuple[str, int]


def is_plain(value: bytes) -> bool:
    """True if the value of a record is that of a plain offset."""
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
        """Set an offset whose record has this value, which ``is_plain``."""
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
    """Return the offset that is kept."""
    if isinstance(kept, CommittedOffset):
        return kept
    _, offset, leader_epoch, _, commit_timestamp_ms, log_offset = _PLAIN.unpack(kept)
    return _new(CommittedOffset, (offset, leader_epoch, "", commit_timestamp_ms, -1, log_offset))


def _packed(committed: CommittedOffset) -> bytes | CommittedOffset:
    offset, leader_epoch, metadata, commit_timestamp_ms, expire_at_ms, log_offset = committed
    if metadata or expire_at_ms != -1:
        return committed
    return _PLAIN.pack(OFFSET_VALUE_VERSION, offset, leader_epoch, 0, commit_timestamp_ms, log_offset)
