"""Connector tasks that tests drive as the runtime does."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from parley.pipeline.connect.connector import SinkTask, SourceTask
from parley.pipeline.connect.offset_stores import key_of
from parley.pipeline.connect.records import SinkRecord, SourceRecord, TopicPartition

NAME = "tested"


@dataclass
class StoredReader:
    """The stored offsets that a source task reads."""

    stored: dict[str, Mapping[str, Any]] = field(default_factory=dict)

    def offset(self, partition: Mapping[str, Any]) -> Mapping[str, Any] | None:
        return self.offsets([partition])[0]

    def offsets(self, partitions: Iterable[Mapping[str, Any]]) -> list[Mapping[str, Any] | None]:
        return [self.stored.get(key_of(NAME, one)) for one in partitions]

    def put(self, record: SourceRecord) -> None:
        """Store the offset of a record."""
        self.stored[key_of(NAME, record.source_partition)] = record.source_offset


@dataclass
class Context:
    """The part of the runtime's task context that these connectors use."""

    configs: Mapping[str, str]
    offsets: StoredReader = field(default_factory=StoredReader)
    errant_records: Any = None
    assignment: frozenset[TopicPartition] = frozenset()
    retry_ms: int | None = None

    def timeout(self, ms: int) -> None:
        self.retry_ms = ms


def started(task: Any, props: Mapping[str, str], **context: Any) -> Any:
    """Start the task with this configuration, and return it."""
    assert isinstance(task, SinkTask | SourceTask)
    props = {"name": NAME, **props}
    task.initialize(Context(props, **context))  # type: ignore[arg-type]
    task.start(props)
    return task


def polled(task: SourceTask, *, until_empty: int = 1) -> list[SourceRecord]:
    """Return the records that the task polls until it has returned nothing this many times."""
    records: list[SourceRecord] = []
    while until_empty:
        found = task.poll()
        records += found or []
        until_empty -= not found
    return records


def record(offset: int, value: Any = None, *, topic: str = "t", partition: int = 0, **more: Any) -> SinkRecord:
    """Return a record of a topic."""
    return SinkRecord(
        topic=topic,
        kafka_partition=partition,
        kafka_offset=offset,
        value=value,
        original_topic=topic,
        original_kafka_partition=partition,
        original_kafka_offset=offset,
        **more,
    )
