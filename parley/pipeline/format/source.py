"""``spark.read.format("parley")`` and ``readStream``: topics as tables, with the options of Spark's Kafka source.

The driver resolves positions and plans tasks (``positions``, ``offset_decisions``). Each task fetches and decodes its
range to Arrow (``parley.pipeline.client``). Offsets in a checkpoint have the form of Spark's Kafka source.

Rules:

* A batch is the offsets between two positions. If it is read again, it has the same rows in the same tasks.
* A stream's small ranges share tasks, because a task in Python costs far more than reading a few rows.
* A loss is never silent: with ``failOnDataLoss`` the query fails, and the text says what is lost. Without it, each loss
  is a warning.
* With the option ``pushFilters``, filters narrow what a batch fetches (``pushdown``). Spark passes none to streams.
* The end position of batch 0 contains its start (``_beginning``): Spark stores only the ends of batches, and
  requests the start again after a restart, when ``latest`` is another offset.
"""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final

from pyspark.sql.datasource import DataSourceReader, DataSourceStreamReader, Filter, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxRows,
    ReadMinRows,
    SupportsTriggerAvailableNow,
)
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    IntegerType,
    LongType,
    StringType,
    StructType,
    TimestampType,
)

from parley.pipeline.client.cluster import LATEST, Isolation, LogEnded, OffsetOutOfRange, TopicPartition, shared_cluster
from parley.pipeline.client.decode import decode
from parley.pipeline.format.offset_decisions import (
    Range,
    as_json,
    from_json,
    limited,
    losses,
    new_rows,
    packed,
    pieces,
    ranges,
)
from parley.pipeline.format.options import OptionError, SourceOptions
from parley.pipeline.format.positions import (
    check_order,
    chosen_partitions,
    earliest,
    latest,
    not_before,
    resolve_end,
    resolve_start,
)
from parley.pipeline.format.pushdown import EVERYTHING, Narrowing, narrowing
from parley.pipeline.format.typed import typed_rows
from parley.pipeline.spark.shipping import Travels
from parley.protocol.errors import ErrorCode, KafkaError

if TYPE_CHECKING:
    import pyarrow as pa


_COLUMNS: Final = (
    StructType()
    .add("key", BinaryType())
    .add("value", BinaryType())
    .add("topic", StringType())
    .add("partition", IntegerType())
    .add("offset", LongType())
    .add("timestamp", TimestampType())
    .add("timestampType", IntegerType())
)
_HEADERS: Final = ArrayType(StructType().add("key", StringType()).add("value", BinaryType()))

_FETCH_BYTES_MIN: Final = 64 * 1024
_OFFSET_BYTES: Final = 4 * 1024
"""The bytes to fetch for each offset of a small range. Bytes after the range would be fetched in vain."""

_log = logging.getLogger(__name__)


class DataLoss(Exception):
    """Raised if data that a query should have read no longer exists. The message names the data, and the option to
    continue without it.
    """


def source_schema(include_headers: bool, typed: StructType | None = None) -> StructType:
    """Return the columns of Spark's Kafka source, with the types in ``typed`` in place of bytes."""
    own = {} if typed is None else {one.name: one for one in typed.fields}
    schema = StructType([own.get(one.name, one) for one in _COLUMNS.fields])
    return schema.add("headers", _HEADERS) if include_headers else schema


def check_schema(schema: StructType, options: SourceOptions, typed: StructType | None = None) -> None:
    """Raise ``OptionError`` if Spark's schema is not that of the source, because the user has given another one."""
    if schema != source_schema(options.include_headers, typed):
        raise OptionError(
            "a topic's columns are fixed: leave out schema(...), and parse values with from_json or cast"
            " (the option 'includeHeaders' adds a column of headers)"
        )


@dataclass(frozen=True)
class OffsetRanges(InputPartition):
    """The ranges that one task reads, one after another."""

    ranges: tuple[Range, ...]


class KafkaBatchReader(Travels, DataSourceReader):
    """Reads topics between two positions, once."""

    def __init__(self, options: SourceOptions) -> None:
        self._options = options
        self._narrowing: Narrowing = EVERYTHING

    def partitions(self) -> list[InputPartition]:
        options = self._options
        cluster = shared_cluster(options.connection)
        there = chosen_partitions(cluster, options.chosen)
        start = resolve_start(cluster, options, there)
        end = resolve_end(cluster, options, there)
        check_order(start, end)
        wanted = self._narrowing.applied(ranges(start, end, {}))
        if self._narrowing.since_ms is not None:
            wanted = not_before(cluster, self._narrowing.since_ms, wanted)
        return [OffsetRanges((one,)) for one in _cut(wanted, options)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return _read(partition, self._options)


class NarrowedBatchReader(KafkaBatchReader):
    """Reads the part of a batch that the filters of its query select.

    This is wrong for a DataFrame that several queries share: Spark 4.2 plans each of them with the filters of the last
    query that had any. Therefore it is not the default. While ``spark.sql.python.filterPushdown.enabled`` is false,
    Spark refuses to read.
    """

    def pushFilters(self, filters: list[Filter]) -> list[Filter]:
        self._narrowing, left = narrowing(filters)
        return left


class KafkaStreamReader(Travels, DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Reads topics from a position on, batch by batch."""

    def __init__(self, options: SourceOptions, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._options = options
        self._monotonic = monotonic
        self._first: dict[str, Any] | None = None
        self._latest: dict[TopicPartition, int] | None = None
        self._target: dict[TopicPartition, int] | None = None
        self._last_batch: float | None = None

    # The end of a batch.

    def initialOffset(self) -> dict[str, Any]:
        cluster = shared_cluster(self._options.connection)
        there = chosen_partitions(cluster, self._options.chosen)
        self._first = as_json(resolve_start(cluster, self._options, there))
        return self._first

    def prepareForTriggerAvailableNow(self) -> None:
        self._target = self._ask_latest()

    def getDefaultReadLimit(self) -> ReadLimit:
        options = self._options
        if options.max_offsets_per_trigger is not None:
            return ReadMaxRows(options.max_offsets_per_trigger)
        if options.min_offsets_per_trigger is not None:
            return ReadMinRows(options.min_offsets_per_trigger)
        return ReadAllAvailable()

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        begin = from_json(start)
        self._latest = self._not_before(begin, self._ask_latest() if self._target is None else self._target)
        if not isinstance(limit, ReadAllAvailable) and self._is_too_early(begin, self._latest):
            return start
        end = self._latest
        if isinstance(limit, ReadMaxRows):
            end = limited(limit.max_rows, begin, end, self._earliest(end.keys() - begin.keys()))
        if end == begin:
            return start
        return as_json(end) | ({json.dumps(start): {}} if start == self._first else {})

    def reportLatestOffset(self) -> dict[str, Any] | None:
        return None if self._latest is None else as_json(self._latest)

    def _is_too_early(self, begin: Mapping[TopicPartition, int], end: Mapping[TopicPartition, int]) -> bool:
        """Return True if ``minOffsetsPerTrigger`` requires waiting. If the query reads only what exists now, it never
        waits.
        """
        fewest = self._options.min_offsets_per_trigger
        if fewest is None or self._target is not None:
            return False
        now, last = self._monotonic(), self._last_batch
        waited = last is None or (now - last) * 1000 >= self._options.max_trigger_delay_ms
        if not waited and new_rows(begin, end, self._earliest(end.keys() - begin.keys())) < fewest:
            return True
        self._last_batch = now
        return False

    def _ask_latest(self) -> dict[TopicPartition, int]:
        cluster = shared_cluster(self._options.connection)
        missing_ok = not self._options.fail_on_data_loss
        return latest(cluster, chosen_partitions(cluster, self._options.chosen, missing_ok=missing_ok), self._options)

    def _not_before(
        self, begin: Mapping[TopicPartition, int], ends: dict[TopicPartition, int]
    ) -> dict[TopicPartition, int]:
        """Return the ends. If an open transaction keeps an end below the query's position, return the position instead.

        That happens if the query has read uncommitted records before, or has started inside the transaction.
        """
        early = [partition for partition, end in ends.items() if end < begin.get(partition, end)]
        if not early or self._options.isolation is Isolation.READ_UNCOMMITTED:
            return ends
        log_ends = shared_cluster(self._options.connection).offsets(dict.fromkeys(early, LATEST))
        return ends | {one: begin[one] for one in early if begin[one] <= log_ends[one]}

    def _earliest(self, new: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        """Return the earliest offsets of new partitions, except partitions that were deleted in the meantime."""
        cluster = shared_cluster(self._options.connection)
        found = {}
        for partition in new:
            try:
                found.update(earliest(cluster, [partition]))
            except KafkaError as error:
                if error.code is not ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
                    raise
        return found

    # The content of a batch.

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        first, last = from_json(_beginning(end, start)), from_json(end)
        earliest_of_new = self._earliest(last.keys() - first.keys())
        for loss in losses(first, last, earliest_of_new):
            _lost(loss.text, self._options)
        todo = _cut(ranges(first, last, earliest_of_new), self._options)
        if self._options.min_partitions is self._options.max_records_per_partition is None:
            return [OffsetRanges(some) for some in packed(todo)]
        return [OffsetRanges((one,)) for one in todo]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return _read(partition, self._options)


class RefusedStreamReader(DataSourceStreamReader):
    """Raises the error of invalid options at Spark's first call, because PySpark loses errors raised before.

    PySpark's runner would fail with an unrelated error about a local variable, and the user would see only that error.
    """

    def __init__(self, error: OptionError) -> None:
        self._error = error

    def initialOffset(self) -> dict[str, Any]:
        raise self._error

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        raise self._error

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        raise self._error

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        raise self._error


def _beginning(end: dict[str, Any], start: dict[str, Any]) -> dict[str, Any]:
    """Return the start of the batch whose end is ``end``. ``start`` is the start that Spark assumes.

    The end of batch 0 contains its start as a topic without partitions, whose name is the JSON. Spark's Kafka source,
    which may take over the checkpoint, reads nothing from it, and no topic has such a name.
    """
    return next((json.loads(name) for name in end if name.startswith("{")), start)


def _cut(whole: list[Range], options: SourceOptions) -> list[Range]:
    return pieces(whole, options.min_partitions, options.max_records_per_partition)


def _read(task: InputPartition, options: SourceOptions) -> Iterator[pa.RecordBatch]:
    if isinstance(task, OffsetRanges):  # otherwise it is Spark's placeholder for a read without tasks
        for one in task.ranges:
            yield from _read_range(one, options)


def _read_range(whole: Range, options: SourceOptions) -> Iterator[pa.RecordBatch]:
    cluster = shared_cluster(options.connection)
    todo: Range | None = whole
    while todo is not None:
        max_bytes = min(options.fetch_bytes, max(_FETCH_BYTES_MIN, _OFFSET_BYTES * len(todo)))
        try:
            for fetched in cluster.fetch(todo.partition, todo.start, todo.end, options.isolation, max_bytes=max_bytes):
                for rows in decode(fetched, todo.start, todo.end, include_headers=options.include_headers):
                    yield typed_rows(rows, options.typed)
                todo = replace(todo, start=fetched.next_offset)
            return
        except OffsetOutOfRange as gone:
            todo = _without_what_is_gone(todo, gone, options)
        except LogEnded as ended:
            _lost(f"{ended.message}; offsets {todo.start} to {todo.end - 1} cannot be read", options)
            return


def _without_what_is_gone(todo: Range, gone: OffsetOutOfRange, options: SourceOptions) -> Range | None:
    """Return the rest of the range, from the log start on; None if nothing remains. Raises ``DataLoss`` with
    ``failOnDataLoss``.
    """
    first_left = min(todo.end, gone.log_start) if gone.offset < gone.log_start else todo.end
    _lost(f"{gone.message}; offsets {todo.start} to {first_left - 1} cannot be read", options)
    return replace(todo, start=first_left) if first_left < todo.end else None


def _lost(text: str, options: SourceOptions) -> None:
    if options.fail_on_data_loss:
        raise DataLoss(
            f"{text}. Retention may be too short for this query, or a topic was deleted or truncated while it ran."
            " To continue with the remaining records, set the option 'failOnDataLoss' to false"
        )
    _log.warning("%s. Continuing without it, because 'failOnDataLoss' is false.", text)
