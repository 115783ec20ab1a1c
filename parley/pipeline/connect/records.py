"""The records of source and sink connectors, and their headers (KIP-26, KIP-145, KIP-793).

A source task returns ``SourceRecord``, a sink task receives ``SinkRecord``. Records never change: a transform creates a
new one (``dataclasses.replace``). Timestamps are milliseconds since 1970, or None.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Any

from parley.pipeline.client.fetching import TopicPartition
from parley.pipeline.connect.data import Schema

__all__ = ["ConnectRecord", "Header", "SinkRecord", "SourceRecord", "TimestampType", "TopicPartition"]


class TimestampType(IntEnum):
    """The meaning of a record's timestamp, as numbered in Spark's Kafka schema."""

    NONE = -1
    CREATE_TIME = 0
    LOG_APPEND_TIME = 1


@dataclass(frozen=True, slots=True)
class Header:
    """A header: its name, its value, and the value's schema or None."""

    key: str
    value: Any
    schema: Schema | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ConnectRecord:
    """Base class of the records of sources and sinks."""

    topic: str
    kafka_partition: int | None = None
    """None in a source's record means that the key determines the partition."""
    key_schema: Schema | None = None
    key: Any = None
    value_schema: Schema | None = None
    value: Any = None
    timestamp: int | None = None
    headers: tuple[Header, ...] = ()

    def header(self, key: str) -> Header | None:
        """Return the last header with this name, which is the valid one; None if there is none."""
        return next((one for one in reversed(self.headers) if one.key == key), None)


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceRecord(ConnectRecord):
    """A record that a source task returns, to be written to a topic.

    ``source_partition`` is the part of the source from which it was read, and ``source_offset`` the position after it.
    Both are JSON objects. After a crash the task gets the last stored offset of the partition.
    """

    source_partition: Mapping[str, Any] = field(default_factory=dict)
    source_offset: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class SinkRecord(ConnectRecord):
    """A record from a topic.

    ``original_*`` are its topic, partition and offset in Kafka, even if a transform changes its topic (KIP-793). The
    runtime sets them, and uses them for offsets.
    """

    kafka_offset: int
    timestamp_type: TimestampType = TimestampType.CREATE_TIME
    original_topic: str = ""
    original_kafka_partition: int = -1
    original_kafka_offset: int = -1
    raw: object = field(default=None, repr=False, compare=False)
    """The record as stored in its topic. Only the runtime uses it, to send it to a dead letter topic if necessary."""
