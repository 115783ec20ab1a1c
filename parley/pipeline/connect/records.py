"""The records that connectors make and take, and their headers (KIP-26, KIP-145, KIP-793).

A source task makes :class:`SourceRecord`, a sink task takes :class:`SinkRecord`. Records never change: a transform
makes another one (:func:`dataclasses.replace`). Timestamps are milliseconds since 1970, None where there is none.
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
    """What a record's timestamp says, as numbered in Spark's Kafka schema."""

    NONE = -1
    CREATE_TIME = 0
    LOG_APPEND_TIME = 1


@dataclass(frozen=True, slots=True)
class Header:
    """A header: its name, its value, and the value's schema where it has one."""

    key: str
    value: Any
    schema: Schema | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ConnectRecord:
    """What records of sources and of sinks have in common."""

    topic: str
    kafka_partition: int | None = None
    """For a source's record None lets the key decide."""
    key_schema: Schema | None = None
    key: Any = None
    value_schema: Schema | None = None
    value: Any = None
    timestamp: int | None = None
    headers: tuple[Header, ...] = ()

    def header(self, key: str) -> Header | None:
        """The last header of that name, which is the one that counts; None if there is none."""
        return next((one for one in reversed(self.headers) if one.key == key), None)


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceRecord(ConnectRecord):
    """A record on its way into a topic.

    ``source_partition`` says which part of the source it came from, ``source_offset`` where to go on behind it: both
    are JSON objects. After a crash the task is handed the last offset stored for the partition.
    """

    source_partition: Mapping[str, Any] = field(default_factory=dict)
    source_offset: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class SinkRecord(ConnectRecord):
    """A record that came from a topic.

    ``original_*`` are where it lies in Kafka whatever a transform made of its topic (KIP-793); they are set by the
    runtime and are what offsets are counted by.
    """

    kafka_offset: int
    timestamp_type: TimestampType = TimestampType.CREATE_TIME
    original_topic: str = ""
    original_kafka_partition: int = -1
    original_kafka_offset: int = -1
    raw: object = field(default=None, repr=False, compare=False)
    """As it lies in its topic; for the runtime, which may have to send it to a dead letter topic."""
