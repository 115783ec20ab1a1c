"""The bytes of MirrorMaker 2's own records (KIP-382, KIP-545). Its Java classes have these names.

Numbers are big-endian, a string is its length as an int16 and UTF-8. Keys and values are::

    Heartbeat     source, target                 | int16 version 0, int64 timestamp (ms)
    Checkpoint    group, topic, int32 partition  | int16 version 0, int64 upstream, int64 downstream, metadata
    OffsetSync    topic, int32 partition         | int64 upstream, int64 downstream
    StoredOffset  JSON of Connect's offset topic | JSON

Upstream is an offset in the source's partition, downstream one in the target's. Parley's heartbeats also have headers
(``Progress``), which MirrorMaker ignores.
"""

from __future__ import annotations

import json
import struct
from dataclasses import dataclass
from typing import Final, NamedTuple, Self, TypeAlias

_VERSION: Final = 0
_I16, _I32, _I64, _TWO_I64 = (struct.Struct(f">{code}") for code in ("h", "i", "q", "qq"))
_CONNECTOR: Final = "MirrorSourceConnector"
_PROGRESS: Final = ("parley.topics", "parley.records", "parley.bytes", "parley.lag")

Headers: TypeAlias = tuple[tuple[str, bytes | None], ...]


class MalformedRecord(ValueError):
    """Raised if a record does not belong in its internal topic."""


class Encoded(NamedTuple):
    """Key, value and headers of a record."""

    key: bytes
    value: bytes
    headers: Headers = ()


def _string(text: str) -> bytes:
    data = text.encode()
    return _I16.pack(len(data)) + data


class _Reader:
    def __init__(self, data: bytes | None) -> None:
        self._data, self._at = data or b"", 0

    def number(self, kind: struct.Struct) -> int:
        try:
            (value,) = kind.unpack_from(self._data, self._at)
        except struct.error as error:
            raise MalformedRecord(str(error)) from None
        self._at += kind.size
        return int(value)

    def string(self) -> str:
        length = self.number(_I16)
        part = self._data[self._at : self._at + length]
        if length < 0 or len(part) < length:
            raise MalformedRecord("a string is shorter than its length")
        self._at += length
        try:
            return part.decode()
        except UnicodeDecodeError as error:
            raise MalformedRecord(str(error)) from None

    def version(self) -> None:
        version = self.number(_I16)
        if version != _VERSION:
            raise MalformedRecord(f"unknown version {version}")


@dataclass(frozen=True, slots=True)
class Progress:
    """The progress of a flow: its topics, the records and bytes copied since its mirror was started, and the number of
    source offsets not yet copied (``lag``).

    The headers contain decimal numbers, so that any consumer can show them.
    """

    flow: str
    topics: int
    records: int
    size_bytes: int
    lag: int

    def encode(self) -> Headers:
        numbers = (self.topics, self.records, self.size_bytes, self.lag)
        return tuple((name, b"%d" % number) for name, number in zip(_PROGRESS, numbers, strict=True))

    @classmethod
    def decode(cls, flow: str, headers: Headers) -> Self | None:
        """Return the progress in a heartbeat's headers; None if they are missing or malformed, as in a heartbeat of
        MirrorMaker.
        """
        found = dict(headers)
        try:
            topics, records, size_bytes, lag = (int(found[name] or b"") for name in _PROGRESS)
        except (KeyError, ValueError):
            return None
        return cls(flow, topics, records, size_bytes, lag)


@dataclass(frozen=True, slots=True)
class Heartbeat:
    """A sign that the flow from ``source`` to ``target`` was alive at ``timestamp`` (ms).

    ``progress`` is None if MirrorMaker wrote the heartbeat, or if the flow copies no topics.
    """

    source: str
    target: str
    timestamp: int
    progress: Progress | None = None

    def encode(self) -> Encoded:
        value = _I16.pack(_VERSION) + _I64.pack(self.timestamp)
        headers = () if self.progress is None else self.progress.encode()
        return Encoded(_string(self.source) + _string(self.target), value, headers)

    @classmethod
    def decode(cls, key: bytes | None, value: bytes | None, headers: Headers = ()) -> Self:
        """Decode a record. Raises MalformedRecord."""
        names, data = _Reader(key), _Reader(value)
        data.version()
        source, target = names.string(), names.string()
        return cls(source, target, data.number(_I64), Progress.decode(f"{source}->{target}", headers))


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A consumer group's committed offset for a partition, in the source (upstream) and in the target (downstream).

    ``topic`` is the topic's name on the target.
    """

    group: str
    topic: str
    partition: int
    upstream: int
    downstream: int
    metadata: str = ""

    def encode(self) -> Encoded:
        key = _string(self.group) + _string(self.topic) + _I32.pack(self.partition)
        value = _I16.pack(_VERSION) + _TWO_I64.pack(self.upstream, self.downstream) + _string(self.metadata)
        return Encoded(key, value)

    @classmethod
    def decode(cls, key: bytes | None, value: bytes | None) -> Self:
        """Decode a record. Raises MalformedRecord."""
        names, data = _Reader(key), _Reader(value)
        data.version()
        place = names.string(), names.string(), names.number(_I32)
        return cls(*place, data.number(_I64), data.number(_I64), data.string())


@dataclass(frozen=True, slots=True)
class OffsetSync:
    """A pair of offsets: the record ``upstream`` of a source's partition is, or will be, record ``downstream`` of the
    target's.
    """

    topic: str
    partition: int
    upstream: int
    downstream: int

    def encode(self) -> Encoded:
        return Encoded(_string(self.topic) + _I32.pack(self.partition), _TWO_I64.pack(self.upstream, self.downstream))

    @classmethod
    def decode(cls, key: bytes | None, value: bytes | None) -> Self:
        """Decode a record. Raises MalformedRecord."""
        names, data = _Reader(key), _Reader(value)
        return cls(names.string(), names.number(_I32), data.number(_I64), data.number(_I64))


@dataclass(frozen=True, slots=True)
class StoredOffset:
    """The offset of the last copied record of a source's partition, as Connect stores it for MirrorMaker 2.

    The other fields are Parley's. If the target's partition has nothing more of ``producer`` (id and epoch) from offset
    ``downstream`` on, record ``offset`` + 1 is the next to copy, as number ``sequence`` of the producer. ``topic_id``
    is that of the source's topic (empty if its brokers have none). MirrorMaker 2 ignores these fields and does not
    write them (None). It refuses offsets with fields that are neither numbers nor strings.
    """

    cluster: str
    topic: str
    partition: int
    offset: int
    downstream: int | None = None
    producer: tuple[int, int] | None = None
    sequence: int | None = None
    topic_id: str = ""

    def encode(self) -> Encoded:
        where = {"cluster": self.cluster, "partition": self.partition, "topic": self.topic}
        value: dict[str, object] = {"offset": self.offset}
        if self.downstream is not None:
            value["downstream"] = self.downstream
        if self.producer is not None:
            value["producerId"], value["producerEpoch"] = self.producer
        if self.sequence is not None:
            value["sequence"] = self.sequence
        if self.topic_id:
            value["topicId"] = self.topic_id
        return Encoded(_json([_CONNECTOR, where]), _json(value))

    @classmethod
    def decode(cls, key: bytes | None, value: bytes | None) -> Self | None:
        """Decode a record. Returns None for another connector's record or a tombstone. Raises MalformedRecord."""
        if not value:
            return None
        try:
            connector, where = json.loads(key or b"")
            offset = json.loads(value)
            if connector != _CONNECTOR or not isinstance(offset, dict):
                return None
            downstream, producer, sequence = (offset.get(one) for one in ("downstream", "producerId", "sequence"))
            return cls(
                where["cluster"],
                where["topic"],
                int(where["partition"]),
                int(offset["offset"]),
                None if downstream is None else int(downstream),
                None if producer is None else (int(producer), int(offset["producerEpoch"])),
                None if sequence is None else int(sequence),
                str(offset.get("topicId", "")),
            )
        except (ValueError, TypeError, LookupError) as error:
            raise MalformedRecord(f"not a stored offset: {error}") from None


def _json(value: object) -> bytes:
    return json.dumps(value, separators=(",", ":")).encode()
