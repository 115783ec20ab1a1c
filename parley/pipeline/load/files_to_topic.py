"""Sends files to a topic: files that were loaded, or any rows. Each row becomes one record, even if the load is killed.

The column ``partition`` names a row's partition, if the topic has it. Otherwise the key decides, as in Kafka's clients;
without a key, each file gets the next partition. Key, value, timestamp and headers come from the columns with these
names, with or without an underscore. A row without ``value`` becomes a record of its other columns as JSON.

The topic itself shows the progress. Before the first record is sent, a note in ``_parley/back`` beside the files names
the files, the ends of the partitions' logs, and a producer id that is used for nothing else. Records are appended under
that id as in a mirror, numbered in the order of the rows (``parley.pipeline.mirror.appending`` gives the guarantee).
Therefore a task sees which rows the topic already contains, whatever other producers write, and continues with the next
row. At the end, the note is marked as finished, and the next load sends new files under a new note. If two loads start
at the same time, the second uses the note of the first: the log accepts every row once.
"""

from __future__ import annotations

import base64
import json
import logging
import os
import time
import uuid
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass, replace
from decimal import Decimal
from itertools import islice
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
import pyarrow.csv as pa_csv
import pyarrow.fs as pa_fs
import pyarrow.parquet as pa_parquet

from parley.pipeline.client.cluster import LATEST, Cluster, Connection, TopicPartition
from parley.pipeline.client.partitioner import partition_of
from parley.pipeline.client.sending import ProducerId
from parley.pipeline.load.columns import BadRecord
from parley.pipeline.load.files import DELTA_LOG, EXTENSIONS, OURS, data_files, filesystem
from parley.pipeline.load.manifest import LoadConflict, named_files, write_new
from parley.pipeline.load.ranges import range_of
from parley.pipeline.load.spark_tasks import run_tasks
from parley.pipeline.load.value_reading import NOT_FITTING, jsonable, moment
from parley.pipeline.mirror.appending import Appender, Batch, Overtaken, new_producer, tail
from parley.pipeline.values.json_text import dumps
from parley.protocol.records.batch import build
from parley.protocol.records.batch_header import HEADER_SIZE, read_header
from parley.protocol.records.compression import Compression
from parley.protocol.records.record import Record

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_ROWS: Final = 500
"""The number of rows in a batch."""
_BATCHES: Final = 20
_ATTEMPTS: Final = 5
_NOBODY: Final = ProducerId(-1, -1)
_HIDDEN: Final = ("topic", "offset", "timestampType", "partition", "timestamp", "key", "headers")
_TEXTS: Final = ("key", "value", "headers", "timestamp")
_AS_WRITTEN: Final = pa_csv.ConvertOptions(
    column_types=dict.fromkeys([*_TEXTS, *(f"_{name}" for name in _TEXTS)], pa.string()),
    null_values=[""],
    strings_can_be_null=True,
    quoted_strings_can_be_null=False,
)
"""Options for reading CSV as it was written: 007 is text, and a quoted empty value is not null."""

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class SendTask:
    """The rows of ``files`` that belong to one partition of the topic, in order.

    They are numbered as records of ``producer``, which has no records in the partition before offset ``start``.
    """

    connection: Connection
    partition: TopicPartition
    partitions: int
    start: int
    producer: ProducerId
    uri: str
    format: str
    files: tuple[str, ...]
    base64: bool = False


@dataclass(frozen=True, slots=True)
class SendSettings:
    """The files to send, and the topic. With ``base64``, keys and values in the files are base64."""

    connection: Connection
    topic: str
    uri: str
    format: str
    base64: bool = False


Run = Callable[[list[SendTask]], Iterable[int]]


def on_spark(session: SparkSession) -> Run:
    """Return a function that sends each partition's rows in a Spark task. It raises ``spark_tasks.TaskFailed``."""
    return lambda tasks: run_tasks(session, send_rows, tasks)


@dataclass(frozen=True, slots=True)
class _Note:
    """The note of a load into a topic. ``files`` are the files that it sends, ``sent`` the files of earlier loads."""

    number: int
    finished: bool
    files: list[str]
    sent: list[str]
    starts: list[int]
    producer: ProducerId
    topic_id: str = ""


def send_files(
    settings: SendSettings,
    run: Run,
    *,
    on_begin: Callable[[dict[TopicPartition, int], list[str]], None] = lambda starts, files: None,
) -> int:
    """Send the files that have not been sent to the topic yet. Returns the number of records sent by this call.

    ``run`` executes the tasks (``on_spark``, or a loop that calls ``send_rows``). Before the first record, calls
    ``on_begin`` with the files, and with the offset in each partition at which this load's records begin. Raises
    KafkaError, OSError, LoadConflict, what ``run`` raises, and ValueError for a folder without files to send.
    """
    system, root = filesystem(settings.uri)
    notes = _Notes(system, root, settings.topic)
    with Cluster(settings.connection) as cluster:
        count = len(cluster.partitions([settings.topic])[settings.topic])
        note = _begin(settings, cluster, count, notes)
    if note is None:
        return 0
    if len(note.starts) != count:
        raise LoadConflict(
            f"the number of partitions of {settings.topic} has changed since this load began, so the load cannot "
            "be finished"
        )
    tasks = [
        SendTask(
            settings.connection,
            TopicPartition(settings.topic, one),
            count,
            start,
            note.producer,
            settings.uri,
            settings.format,
            tuple(note.files),
            settings.base64,
        )
        for one, start in enumerate(note.starts)
    ]
    on_begin({task.partition: task.start for task in tasks}, note.files)
    records = sum(run(tasks))
    notes.finish(note)
    return records


def _begin(settings: SendSettings, cluster: Cluster, partitions: int, notes: _Notes) -> _Note | None:
    """Return the note of an unfinished load, or a new one; None if there is nothing to send. Raises KafkaError, and the
    errors of ``_files``.
    """
    topic_id = cluster.topic_id(settings.topic)
    while True:
        last = notes.last()
        if last is not None and last.topic_id not in ("", topic_id):
            _log.warning("%s was created again after rows were sent to it: sending all rows again", settings.topic)
            last = replace(last, finished=True, files=[], sent=[])
        if last is not None and not last.finished and last.producer != _NOBODY:
            return last
        if last is not None and not last.finished:
            _log.warning(
                "an older version had started sending rows to %s without recording its producer id: resending them;"
                " some may be duplicated",
                settings.topic,
            )
            last = replace(last, files=[])
        sent = [] if last is None else last.sent + last.files
        files = [path for path in _files(settings, notes.system, notes.root) if path not in set(sent)]
        if not files:
            return None
        places = [TopicPartition(settings.topic, one) for one in range(partitions)]
        ends = cluster.offsets(dict.fromkeys(places, LATEST))
        starts = [ends[place] for place in places]
        number = 1 if last is None else last.number + 1
        note = _Note(number, False, files, sent, starts, new_producer(cluster), topic_id)
        if notes.add(note):
            return note


class _Notes:
    """The notes of the loads into a topic: ``_parley/back/<topic>/<number>.json``, numbered without gaps.

    An older version kept one file for all of them, without producer ids.
    """

    def __init__(self, system: pa_fs.FileSystem, root: str, topic: str) -> None:
        self.system = system
        self.root = root
        self._folder = f"{root}/{OURS}/back/{topic}"
        self._older = f"{root}/{OURS}/back-{topic}.json"

    def last(self) -> _Note | None:
        """Return the newest note; None if there is none."""
        found = self.system.get_file_info(pa_fs.FileSelector(self._folder, allow_not_found=True))
        paths = sorted(info.path for info in found if info.path.endswith(".json"))
        if paths:
            known = self._read(paths[-1])
            return _Note(**{**known, "producer": ProducerId(*known["producer"])})
        if self.system.get_file_info(self._older).type is pa_fs.FileType.NotFound:
            return None
        return _Note(number=0, producer=_NOBODY, **self._read(self._older))

    def _read(self, path: str) -> Any:
        with self.system.open_input_stream(path) as stream:
            return json.loads(stream.read())

    def add(self, note: _Note) -> bool:
        """Write a new note. Returns False if another load has taken its number."""
        self.system.create_dir(self._folder, recursive=True)
        try:
            write_new(self.system, self._path(note), json.dumps(asdict(note)).encode())
        except LoadConflict:
            return False
        return True

    def finish(self, note: _Note) -> None:
        """Mark a note as finished: all its files were sent."""
        path = self._path(note)
        temporary = f"{path}.{uuid.uuid4().hex}"
        with self.system.open_output_stream(temporary) as stream:
            stream.write(json.dumps(asdict(replace(note, finished=True))).encode())
        self.system.move(temporary, path)

    def _path(self, note: _Note) -> str:
        return f"{self._folder}/{note.number:010d}.json"


def _files(settings: SendSettings, system: pa_fs.FileSystem, root: str) -> list[str]:
    """Return the files below the folder, as relative paths, in the order in which their rows are sent.

    If the folder is the target of a load, only committed files count: a killed load may have left other files. Raises
    ValueError if there are no files of the format, and LoadConflict if the folder is a Delta table but the format is
    another one.
    """
    if settings.format == "delta":
        from deltalake import DeltaTable
        from deltalake.exceptions import TableNotFoundError

        try:
            table = DeltaTable(settings.uri)
        except TableNotFoundError:
            raise ValueError(f"{settings.uri} is not a Delta table") from None
        found = [path.split(f"{root}/", 1)[-1] for path in table.file_uris()]
    elif system.get_file_info(f"{root}/{DELTA_LOG}").type is not pa_fs.FileType.NotFound:
        raise LoadConflict(f"{settings.uri} is a Delta table: use --format delta")
    else:
        end = f".{EXTENSIONS[settings.format]}"
        there = named_files(system, root)
        if there is None:
            there = [path.removeprefix(f"{root}/") for path, _ in data_files(system, root)]
        found = [path for path in there if path.endswith(end)]
    if not found:
        raise ValueError(f"{settings.uri} contains no {settings.format} files")
    return sorted(found, key=lambda path: (os.path.basename(path), path))


def send_rows(task: SendTask) -> int:
    """Send the rows of one partition that the topic does not contain yet. Returns their number.

    Raises KafkaError and OSError, BadRecord if a file or a row cannot be read, and Overtaken if the topic's log
    contradicts the note.
    """
    with Cluster(task.connection) as cluster:
        refused: list[int] = []
        while len(refused) < _ATTEMPTS:
            try:
                return _send(cluster, task)
            except Overtaken as overtaken:
                if refused and refused[-1] != overtaken.sequence:  # the other task makes progress
                    refused.clear()
                refused.append(overtaken.sequence)
    raise Overtaken(
        refused[-1],
        f"{task.partition} rejects the next row. If another load of these files is running, start this load"
        f" again after it. If records that were sent have been deleted from the topic, remove {OURS}/back/"
        f"{task.partition.topic} from the folder to send all rows again",
    )


def _send(cluster: Cluster, task: SendTask) -> int:
    found = tail(cluster, task.partition, task.producer, task.start)
    if found.end < task.start:
        _log.warning("%s has lost records since this load began: it ends at offset %d", task.partition, found.end)
        found = tail(cluster, task.partition, task.producer, 0)
    missing = islice(_records(task), found.count_since(0), None)
    appender = Appender(cluster, task.partition, task.producer, found.sequence or 0, found.end)
    sent = 0
    while some := list(islice(missing, _ROWS * _BATCHES)):
        batches = [_batch(some[at : at + _ROWS]) for at in range(0, len(some), _ROWS)]
        appender.append(batches)
        sent += len(some)
    return sent


def _batch(some: list[Record]) -> Batch:
    made = build(some, compression=Compression.ZSTD)
    return Batch(read_header(made), memoryview(made)[HEADER_SIZE:])


def _records(task: SendTask) -> Iterator[Record]:
    """Yield the records of the task's partition, in the order of files and rows. Raises BadRecord."""
    system, root = filesystem(task.uri)
    for number, path in enumerate(task.files):
        named = range_of(os.path.basename(path))
        own = None if named is None or named.partition.partition >= task.partitions else named.partition.partition
        if own is not None and own != task.partition.partition:
            continue
        for row in _rows(system, f"{root}/{path}", task.format):
            record = _checked_record(row, task.base64, path)
            partition = own if own is not None else _partition(row, record.key, number, task.partitions)
            if partition == task.partition.partition:
                yield record


def _rows(system: pa_fs.FileSystem, path: str, kind: str) -> Iterator[dict[str, Any]]:
    """Yield the rows of a file. Raises BadRecord if the file does not have this format."""
    try:
        if kind == "json":
            with system.open_input_stream(path) as stream:
                for line in stream.read().splitlines():
                    yield json.loads(line, parse_float=Decimal)
        elif kind == "csv":
            with system.open_input_stream(path) as stream:
                options = pa_csv.ParseOptions(newlines_in_values=True)
                for batch in pa_csv.open_csv(stream, parse_options=options, convert_options=_AS_WRITTEN):
                    yield from _plain_rows(batch)
        else:
            with system.open_input_file(path) as stream:
                for batch in pa_parquet.ParquetFile(stream).iter_batches():
                    yield from _plain_rows(batch)
    except (ValueError, pa.ArrowException) as error:
        raise BadRecord(f"{path} is not a valid {kind} file, or contains several kinds of rows: {error}") from None


def _plain_rows(batch: pa.RecordBatch) -> Iterator[dict[str, Any]]:
    """Yield the rows. Bytes outside keys, values and headers become base64, as a load writes them to JSON."""
    columns = []
    for field, column in zip(batch.schema, batch.columns, strict=True):
        found, name = column.to_pylist(), field.name.removeprefix("_")
        is_bytes = name == "headers" or (name in ("key", "value") and not pa.types.is_nested(field.type))
        columns.append(found if is_bytes else [jsonable(one, field.type) for one in found])
    for row in zip(*columns, strict=True):
        yield dict(zip(batch.schema.names, row, strict=True))


def _partition(row: dict[str, Any], key: bytes | None, file_number: int, partitions: int) -> int:
    wanted = _named(row, "partition")
    if isinstance(wanted, int) and 0 <= wanted < partitions:
        return wanted
    return file_number % partitions if key is None else partition_of(key, partitions)


def _named(row: dict[str, Any], name: str) -> Any:
    return row[name] if name in row else row.get(f"_{name}")


def _checked_record(row: dict[str, Any], as_base64: bool, path: str) -> Record:
    """Return the record that a row describes. Raises BadRecord, which names the file, if a field has a wrong form."""
    try:
        return _record(row, as_base64)
    except NOT_FITTING as error:
        raise BadRecord(f"{path} has a row with an invalid timestamp or invalid headers: {error!r}") from None


def _record(row: dict[str, Any], as_base64: bool) -> Record:
    if "value" in row:
        value = row["value"]
    else:
        value = {
            name: one for name, one in row.items() if name not in _HIDDEN and name.removeprefix("_") not in _HIDDEN
        }
    return Record(
        0,
        _timestamp(_named(row, "timestamp")),
        _bytes(_named(row, "key"), as_base64),
        _bytes(value, as_base64),
        _headers(_named(row, "headers")),
    )


def _timestamp(value: Any) -> int:
    """Return the timestamp in ms. A row without a timestamp gets the current time."""
    if value is None:
        return time.time_ns() // 1_000_000
    found = moment(value) if isinstance(value, str | int) else moment(value.isoformat())
    return round(found.timestamp() * 1000)


def _bytes(value: Any, as_base64: bool) -> bytes | None:
    if value is None or isinstance(value, bytes):
        return value
    if isinstance(value, str):
        return _from_base64(value) if as_base64 else value.encode()
    return dumps(value, separators=(",", ":")).encode()


def _headers(value: Any) -> tuple[tuple[str, bytes | None], ...]:
    if not value:
        return ()
    pairs = json.loads(value) if isinstance(value, str) else [(one["key"], one["value"]) for one in value]
    return tuple((name, _header_value(one)) for name, one in pairs)


def _header_value(value: Any) -> bytes | None:
    is_base64 = isinstance(value, dict) and value.keys() == {"base64"}
    return _from_base64(value["base64"]) if is_base64 else _bytes(value, False)


def _from_base64(text: str) -> bytes:
    try:
        return base64.b64decode(text, validate=True)
    except ValueError:
        raise BadRecord("a key, a value or a header is not base64") from None
