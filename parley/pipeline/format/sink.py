"""``df.write.format("parley")`` and ``writeStream``: rows to topics, with the options of Spark's Kafka sink.

Columns: ``value`` and, if they exist, ``key``, ``headers``, ``partition`` and ``topic``. Other columns are ignored. The
option ``topic`` takes precedence over the column. Rows with the same key keep their order, in the partition that
Kafka's clients choose.

Rules:

* A task is done when the cluster has acknowledged all its rows (``acks=all``).
* The producer of a task is idempotent, and kept for the next task of its process
  (``parley.pipeline.format.kept_producers``).
* With ``deliveryGuarantee`` exactly-once (the default), a task or an epoch that runs again writes only the missing
  rows. See the rules in ``parley.pipeline.format.exactly_once``.
* With ``transactionalIdPrefix``, the rows of a task and its note are one transaction, aborted if the task fails.
* Rows that cannot be written fail the task before any row of their batch is sent.
"""

from __future__ import annotations

import logging
import time
import uuid
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage
from pyspark.sql.types import ArrayType, BinaryType, DataType, IntegerType, StringType, StructType

from parley.pipeline.client.cluster import Cluster, shared_cluster
from parley.pipeline.client.writing import Producer, Writing
from parley.pipeline.format.exactly_once import (
    CLOCK_MARGIN_MS,
    Earlier,
    Epoch,
    Note,
    fence,
    forget,
    kept,
    leave,
    look_up,
)
from parley.pipeline.format.kept_producers import kept_producer
from parley.pipeline.format.options import OptionError, SinkOptions
from parley.pipeline.format.typed import bytes_of
from parley.pipeline.spark.shipping import Travels
from parley.protocol.errors import ErrorCode, KafkaError

if TYPE_CHECKING:
    import pyarrow as pa


_COLUMNS: Final = ("topic", "key", "value", "headers", "partition")
_QUERY_ID: Final = "sql.streaming.queryId"
_BATCH_ID: Final = "streaming.sql.batchId"
"""The local property with which Spark passes the batch's number to the tasks of a streaming query."""

_log = logging.getLogger(__name__)


def check_columns(schema: StructType, options: SinkOptions, typed: Sequence[str] = ()) -> None:
    """Raise ``OptionError`` for columns that cannot be records. The columns in ``typed`` have a schema, so any type is
    allowed."""
    kinds = {field.name: field.dataType for field in schema.fields}
    if "value" not in kinds:
        raise OptionError(
            f"column 'value' is missing. Columns: {', '.join(kinds)}. Create it, for example with"
            " selectExpr('to_json(struct(*)) AS value')"
        )
    for name in ("key", "value"):
        if name in kinds and name not in typed and not isinstance(kinds[name], StringType | BinaryType):
            raise _wrong(name, kinds[name], f"string or binary; cast it, as with CAST({name} AS STRING)")
    if options.topic is None:
        if "topic" not in kinds:
            raise OptionError("no topic is given; set the option 'topic', or add a column 'topic'")
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
    """The result of a task: the group of its note, or None if it has left no note."""

    group: str | None = None


class KafkaBatchWriter(Travels, DataSourceArrowWriter):
    """Writes the rows of a DataFrame once."""

    def __init__(self, options: SinkOptions) -> None:
        self._options = options
        self._id = str(uuid.uuid4())

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        epoch = self._epoch(_task().partitionId()) if self._options.exactly_once else None
        return _write(iterator, self._options, epoch)

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        """Delete the notes. With transactions, fence the tasks instead: a copy of a task may start only now, and must
        find the note. The notes stay until they expire.
        """
        self._end({one.group for one in messages if isinstance(one, Done) and one.group is not None})

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        """Delete the notes of a failed write. With transactions, fence all of its tasks instead, even killed tasks,
        which have sent no message.
        """
        if self._options.transactional_id_prefix is None:
            self.commit(messages)
        else:
            self._end({self._epoch(task).group for task in range(len(messages))})

    def _epoch(self, task: int) -> Epoch:
        return Epoch(self._id, 0, task, self._options.transactional_id_prefix)

    def _end(self, groups: set[str]) -> None:
        options = self._options
        cluster, names = shared_cluster(options.connection), ", ".join(sorted(groups))
        try:
            if options.transactional_id_prefix is None:
                forget(cluster, groups)
            else:
                fence(cluster, groups, options.writing.transaction_timeout_ms)
        except KafkaError as error:  # the rows are written, so this must not fail the task
            if options.transactional_id_prefix is None:
                _log.warning("The notes of the groups %s stay until they expire: %s", names, error)
            else:
                _log.warning(
                    "The tasks of %s could not be fenced, so transactions of killed tasks stay open until they time "
                    "out: %s",
                    names,
                    error,
                )


class KafkaStreamWriter(Travels, DataSourceStreamArrowWriter):
    """Writes the rows of a streaming query, one epoch after another."""

    def __init__(self, options: SinkOptions) -> None:
        self._options = options

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        epoch = None
        if self._options.exactly_once:
            task = _task()
            query, batch = task.getLocalProperty(_QUERY_ID), task.getLocalProperty(_BATCH_ID)
            if query is None or batch is None:
                raise OptionError(
                    "this Spark version does not report the id of the micro-batch; set 'deliveryGuarantee' to "
                    "at-least-once"
                )
            epoch = Epoch(query, int(batch), task.partitionId(), self._options.transactional_id_prefix)
        return _write(iterator, self._options, epoch)


def _task() -> TaskContext:
    task = TaskContext.get()
    assert task is not None, "rows are written by Spark's tasks"
    return task


def _write(batches: Iterator[pa.RecordBatch], options: SinkOptions, epoch: Epoch | None) -> Done:
    cluster = shared_cluster(options.connection)
    attempt: _Attempt | None = None
    with _producer(cluster, options.writing, epoch) as producer:
        for rows in filter(len, (_records(batch, options) for batch in batches)):
            if epoch is None:
                producer.write(rows, topic=options.topic)
                continue
            if attempt is None:
                attempt = _Attempt(cluster, producer, epoch, options.topic or rows.column("topic")[0].as_py())
            attempt.write(rows, options.topic)
        if attempt is not None:
            attempt.finish()
        producer.flush()
    return Done(epoch.group if epoch is not None and attempt is not None else None)


def _producer(cluster: Cluster, writing: Writing, epoch: Epoch | None) -> AbstractContextManager[Producer]:
    if epoch is None or epoch.transactional_id is None:
        return kept_producer(cluster, writing)
    return Producer(cluster, replace(writing, transactional_id=epoch.transactional_id))


class _Attempt:
    """A task of an epoch from its first row on: it fences older attempts and leaves its note (see ``exactly_once``).

    ``topic`` is one of the topics that it writes to. Raises KafkaError.
    """

    def __init__(self, cluster: Cluster, producer: Producer, epoch: Epoch, topic: str) -> None:
        self._cluster, self._producer, self._epoch, self._topic = cluster, producer, epoch, topic
        self._wrote = False
        producer.partition_count(topic)  # creates the topic, if the cluster allows it
        since_ms = time.time_ns() // 1_000_000 - CLOCK_MARGIN_MS
        if epoch.transactional_id is not None:
            _open(producer, epoch.transactional_id)
        own = Note(epoch.number, epoch.task, since_ms, (producer.identity(),))
        try:
            self._found = look_up(cluster, epoch)
            self._note = own.follows(self._found)
            if epoch.transactional_id is None:
                leave(cluster, epoch, topic, self._note)
        except KafkaError as error:
            if error.code is ErrorCode.PRODUCER_FENCED:
                raise
            text = "the sink's notes cannot be stored; 'deliveryGuarantee' at-least-once needs none"
            raise KafkaError(error.code, f"{error.message}: {text}") from error
        self._earlier = None if self._found is None else Earlier(cluster, self._found)

    def write(self, rows: pa.RecordBatch, topic: str | None) -> None:
        """Write the rows that no earlier attempt has written. Raises KafkaError."""
        missing = rows if self._earlier is None else self._earlier.without(rows, topic)
        self._wrote = self._wrote or missing.num_rows > 0
        self._producer.write(missing, topic=topic)

    def finish(self) -> None:
        """Commit the transaction, if there is one. If any row was written, the note is part of it. Raises
        KafkaError.
        """
        if self._epoch.transactional_id is None:
            return
        if self._wrote:
            self._producer.flush()
            self._producer.add_offsets(self._epoch.group, kept(self._note, self._topic))
            self._check_found()
        self._producer.commit()

    def _check_found(self) -> None:
        """Look for the note again, now that the group's coordinator has accepted the new note. Raises KafkaError if the
        result has changed.

        The first request may have gone to a broker that was no longer the coordinator, without knowing it.
        """
        if look_up(self._cluster, self._epoch, stable=False) != self._found:
            raise KafkaError(
                ErrorCode.NOT_COORDINATOR,
                f"the broker that returned the note of {self._epoch.group!r} was no longer its coordinator: the"
                " task must be run again",
            )


def _open(producer: Producer, transactional_id: str) -> None:
    """Fence older attempts of the task, and open its transaction. Raises KafkaError."""
    try:
        producer.begin()
    except KafkaError as error:
        hints = {
            ErrorCode.INVALID_TRANSACTION_TIMEOUT: "set 'kafka.transaction.timeout.ms' to at most the brokers'"
            " transaction.max.timeout.ms",
            ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED: "allow the ids that begin with 'transactionalIdPrefix'",
        }
        if error.code not in hints:
            raise
        raise KafkaError(error.code, f"{error.message} ({transactional_id!r}): {hints[error.code]}") from error


def _records(batch: pa.RecordBatch, options: SinkOptions) -> pa.RecordBatch:
    names = [name for name in _COLUMNS if name in batch.schema.names and (name != "topic" or options.topic is None)]
    rows = bytes_of(batch.select(names), options.typed)
    if "topic" in names and rows.column("topic").null_count:
        raise OptionError("column 'topic' is null in some rows; set the option 'topic', or leave those rows out")
    return rows
