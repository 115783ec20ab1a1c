"""``df.write.format("parley")`` and ``writeStream``: rows to topics, with the options of Spark's Kafka sink.

Columns: ``value`` and, if they are there, ``key``, ``headers``, ``partition`` and ``topic``; others are left alone. The
option ``topic`` wins over the column. Rows of a key keep their order and go where every Kafka client would put them.

Rules:

* A task is done when the cluster has acknowledged all its rows (``acks=all``).
* The producer of a task is idempotent, and with ``deliveryGuarantee`` exactly-once (the default) a task or an epoch
  that is run again writes what is missing only: see `parley.pipeline.epochs` for what that takes.
* Rows that cannot be written fail the task before any of their batch are sent.
"""

from __future__ import annotations

import logging
import time
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage
from pyspark.sql.types import ArrayType, BinaryType, DataType, IntegerType, StringType, StructType

from parley.pipeline.cluster import Cluster
from parley.pipeline.epochs import CLOCK_MARGIN_MS, Earlier, Epoch, Note, forget, group_of, leave, look_up
from parley.pipeline.options import OptionError, SinkOptions
from parley.pipeline.positions import shared_cluster
from parley.pipeline.writing import Producer
from parley.protocol.errors import KafkaError

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["KafkaBatchWriter", "KafkaStreamWriter", "check_columns"]

_COLUMNS: Final = ("topic", "key", "value", "headers", "partition")
_QUERY_ID: Final = "sql.streaming.queryId"
_BATCH_ID: Final = "streaming.sql.batchId"
"""What Spark tells the tasks of a streaming query."""

_log = logging.getLogger(__name__)


def check_columns(schema: StructType, options: SinkOptions) -> None:
    """Raises `OptionError` for columns that cannot be records."""
    kinds = {field.name: field.dataType for field in schema.fields}
    if "value" not in kinds:
        raise OptionError(
            f"there is no column 'value' among {', '.join(kinds)}; make one, as with"
            " selectExpr('to_json(struct(*)) AS value')"
        )
    for name in ("key", "value"):
        if name in kinds and not isinstance(kinds[name], StringType | BinaryType):
            raise _wrong(name, kinds[name], f"string or binary; cast it, as with CAST({name} AS STRING)")
    if options.topic is None:
        if "topic" not in kinds:
            raise OptionError("say where the rows go, with the option 'topic' or a column 'topic'")
        if not isinstance(kinds["topic"], StringType):
            raise _wrong("topic", kinds["topic"], "string")
    if "partition" in kinds and not isinstance(kinds["partition"], IntegerType):
        raise _wrong("partition", kinds["partition"], "int")
    if "headers" in kinds and not _are_headers(kinds["headers"]):
        raise _wrong("headers", kinds["headers"], "array<struct<key: string, value: binary>>")


def _wrong(name: str, kind: DataType, right: str) -> OptionError:
    return OptionError(f"column '{name}' is {kind.simpleString()}; it must be {right}")


def _are_headers(kind: DataType) -> bool:
    if not isinstance(kind, ArrayType) or not isinstance(kind.elementType, StructType):
        return False
    fields = kind.elementType.fields
    return (
        [field.name for field in fields] == ["key", "value"]
        and isinstance(fields[0].dataType, StringType)
        and isinstance(fields[1].dataType, BinaryType)
    )


@dataclass
class Done(WriterCommitMessage):
    """What a task has left behind."""

    group: str | None = None


class KafkaBatchWriter(DataSourceArrowWriter):
    """One write of a DataFrame."""

    def __init__(self, options: SinkOptions) -> None:
        self._options = options
        self._id = str(uuid.uuid4())

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        epoch = Epoch(self._id, 0, _task().partitionId()) if self._options.exactly_once else None
        return _write(iterator, self._options, epoch)

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        groups = {message.group for message in messages if isinstance(message, Done) and message.group is not None}
        try:
            forget(shared_cluster(self._options.connection), groups)
        except KafkaError as error:  # the rows are written: this must not make a failure of it
            _log.warning("The notes of the groups %s stay until they expire: %s", ", ".join(sorted(groups)), error)

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        self.commit(messages)


class KafkaStreamWriter(DataSourceStreamArrowWriter):
    """The epochs of a streaming query."""

    def __init__(self, options: SinkOptions) -> None:
        self._options = options

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        epoch = None
        if self._options.exactly_once:
            task = _task()
            query, batch = task.getLocalProperty(_QUERY_ID), task.getLocalProperty(_BATCH_ID)
            if query is None or batch is None:
                raise OptionError(
                    "this Spark does not tell which micro-batch it writes; set 'deliveryGuarantee' to at-least-once"
                )
            epoch = Epoch(query, int(batch), task.partitionId())
        return _write(iterator, self._options, epoch)


def _task() -> TaskContext:
    task = TaskContext.get()
    assert task is not None, "rows are written by Spark's tasks"
    return task


def _write(batches: Iterator[pa.RecordBatch], options: SinkOptions, epoch: Epoch | None) -> Done:
    cluster = shared_cluster(options.connection)
    begun, earlier = False, None
    with Producer(cluster, options.writing) as producer:
        for rows in filter(len, (_records(batch, options) for batch in batches)):
            if epoch is not None and not begun:
                topic = options.topic or rows.column("topic")[0].as_py()
                begun, earlier = True, _begin(cluster, producer, epoch, topic)
            producer.write(rows if earlier is None else earlier.without(rows, options.topic), topic=options.topic)
        producer.flush()
    return Done(group_of(epoch) if epoch is not None and begun else None)


def _begin(cluster: Cluster, producer: Producer, epoch: Epoch, topic: str) -> Earlier | None:
    """Leave the task's note, before anything is written; what an earlier attempt has written."""
    producer.partition_count(topic)  # makes the topic, where the cluster does that
    since_ms = time.time_ns() // 1_000_000 - CLOCK_MARGIN_MS
    own = Note(epoch.number, epoch.task, since_ms, (producer.identity().producer_id,))
    try:
        note = look_up(cluster, epoch)
        leave(cluster, epoch, topic, own.follows(note))
    except KafkaError as error:
        text = "the sink's notes cannot be kept; with 'deliveryGuarantee' at-least-once it does without them"
        raise KafkaError(error.code, f"{error.message}: {text}") from error
    return None if note is None else Earlier(cluster, note)


def _records(batch: pa.RecordBatch, options: SinkOptions) -> pa.RecordBatch:
    names = [name for name in _COLUMNS if name in batch.schema.names and (name != "topic" or options.topic is None)]
    rows = batch.select(names)
    if "topic" in names and rows.column("topic").null_count:
        raise OptionError("column 'topic' is null in some rows; set the option 'topic', or leave those rows out")
    return rows
