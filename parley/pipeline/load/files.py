"""Writes one range of offsets to files: the work of a Spark task.

A file is written below ``_parley/pending`` and moved into place when it is complete, so readers of the folder see only
complete files. A task that outlives its load (the driver was killed, and the load was started again) moves nothing,
because the folder's mark no longer names its load.
"""

from __future__ import annotations

import os
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

import pyarrow as pa
import pyarrow.csv as pa_csv
import pyarrow.fs as pa_fs
import pyarrow.parquet as pa_parquet

from parley.pipeline.client.cluster import Connection, Isolation, shared_cluster
from parley.pipeline.client.decode import decode
from parley.pipeline.durable_files import to_disk
from parley.pipeline.load.columns import FOLDERS, Layout, header_value, rows
from parley.pipeline.load.ranges import OffsetRange
from parley.pipeline.load.statistics import statistics
from parley.pipeline.load.value_reading import jsonable
from parley.pipeline.values.json_text import dumps
from parley.pipeline.values.widening import iceberg_columns

OURS: Final = "_parley"
"""Parley's own folder. Readers of the files ignore names that begin with an underscore."""
DELTA_LOG: Final = "_delta_log"
"""The folder by which a Delta table is recognized."""
EXTENSIONS: Final = {"parquet": "parquet", "delta": "parquet", "iceberg": "parquet", "csv": "csv", "json": "json"}
OPEN_MAX: Final = 128
"""The maximum number of open files of a task. To open another, the task closes the oldest; its folder gets a new file
later."""


class NotOurs(Exception):
    """Raised if another load has taken over the folder."""


@dataclass(frozen=True, slots=True)
class Destination:
    """The folder for the files, and their format. ``load_id`` identifies the running load."""

    uri: str
    format: str
    load_id: str

    def filesystem(self) -> tuple[pa_fs.FileSystem, str]:
        """Return the file system and the folder in it. Raises ValueError if there is no file system for the URI."""
        return filesystem(self.uri)


@dataclass(frozen=True, slots=True)
class Written:
    """A written file: its path below the folder, the range of its records, and its size."""

    path: str
    range: OffsetRange
    records: int
    size_bytes: int
    statistics: str = ""
    """The statistics of a file of a Delta table, as in Delta's log."""


@dataclass(frozen=True, slots=True)
class Task:
    """A range to write, and everything that a task needs to write it."""

    connection: Connection
    isolation: Isolation
    range: OffsetRange
    layout: Layout
    destination: Destination


def filesystem(uri: str) -> tuple[pa_fs.FileSystem, str]:
    """Return the file system of a URI or a local path, and the folder in it. Raises ValueError if there is no file
    system for the URI.
    """
    if "://" in uri:
        address = uri.replace("s3a://", "s3://", 1) if uri.startswith("s3a://") else uri
        found: tuple[pa_fs.FileSystem, str] = pa_fs.FileSystem.from_uri(address)
        return found
    return pa_fs.LocalFileSystem(), os.path.abspath(uri)


def mark_path(root: str) -> str:
    """Return the path of the file that names the running load."""
    return f"{root}/{OURS}/running"


def take_folder(uri: str, load_id: str) -> None:
    """Take over a folder from another load: write this load's mark, and delete unfinished files.

    After that, tasks of the other load fail when they try to move a file into place. Raises OSError.
    """
    system, root = filesystem(uri)
    system.create_dir(f"{root}/{OURS}", recursive=True)
    with system.open_output_stream(mark_path(root)) as mark:
        mark.write(load_id.encode())
    pending = f"{root}/{OURS}/pending"
    system.create_dir(pending, recursive=True)
    system.delete_dir_contents(pending)


def write_range(task: Task) -> list[Written]:
    """Write the records of a range, and return the files. Deletes the unfinished files if this fails.

    Raises KafkaError, ``columns.BadRecord``, OSError, and NotOurs if another load has taken over the folder.
    """
    folder = _Folder(task)
    partition, first, end = task.range.partition, task.range.first, task.range.end
    try:
        for fetched in shared_cluster(task.connection).fetch(partition, first, end, task.isolation):
            for batch in decode(fetched, first, end, include_headers=True):
                for names, made in rows(task.layout, batch):
                    folder.write(names, made)
    except BaseException:
        folder.give_up()
        raise
    return folder.finish()


class _Folder:
    """The files of a range that are being written: at least one for each folder that its records belong to."""

    def __init__(self, task: Task) -> None:
        self._task = task
        self._filesystem, self._root = task.destination.filesystem()
        self._open: dict[tuple[str, ...], _File] = {}
        self._numbers: dict[tuple[str, ...], int] = {}
        self._done: list[_File] = []

    def write(self, names: tuple[str, ...], made: pa.RecordBatch) -> None:
        file = self._open.get(names)
        if file is None:
            if len(self._open) >= OPEN_MAX:
                self._close(next(iter(self._open)))
            file = self._open[names] = self._begin(names)
        file.write(made)

    def _begin(self, names: tuple[str, ...]) -> _File:
        number = self._numbers.get(names, 0)
        self._numbers[names] = number + 1
        by = self._task.layout.partition_by
        parts = [f"{key}={name}" for (key, _), name in zip(FOLDERS[by], names, strict=True)] if by else []
        name = self._task.range.file_name(EXTENSIONS[self._task.destination.format], number)
        pending = f"{self._root}/{OURS}/pending/{uuid.uuid4().hex}-{name}"
        self._filesystem.create_dir(os.path.dirname(pending), recursive=True)
        return _File(self._filesystem, pending, "/".join([*parts, name]), self._task)

    def _close(self, names: tuple[str, ...]) -> None:
        file = self._open.pop(names)
        file.close()
        self._done.append(file)

    def finish(self) -> list[Written]:
        for names in list(self._open):
            self._close(names)
        with self._filesystem.open_input_stream(mark_path(self._root)) as mark:
            if mark.read().decode() != self._task.destination.load_id:
                self.give_up()
                raise NotOurs(f"another load has started in {self._task.destination.uri}, so this load ends")
        return [file.moved(self._root) for file in self._done]

    def give_up(self) -> None:
        for file in [*self._open.values(), *self._done]:
            file.delete()


class _File:
    def __init__(self, filesystem: pa_fs.FileSystem, pending: str, path: str, task: Task) -> None:
        self._filesystem, self._pending, self._path, self._task = filesystem, pending, path, task
        self._stream = filesystem.open_output_stream(pending)
        kind, columns = task.destination.format, task.layout.columns
        self._columns = iceberg_columns(columns) if kind == "iceberg" else columns
        self._writer = _writer(kind, self._stream, self._columns)
        self._records = 0

    def write(self, made: pa.RecordBatch) -> None:
        self._writer.write(made if made.schema == self._columns else made.cast(self._columns))
        self._records += made.num_rows

    def close(self) -> None:
        self._writer.close()
        self._stream.close()
        if isinstance(self._filesystem, pa_fs.LocalFileSystem):
            to_disk(self._pending)

    def moved(self, root: str) -> Written:
        target = f"{root}/{self._path}"
        self._filesystem.create_dir(os.path.dirname(target), recursive=True)
        self._filesystem.move(self._pending, target)
        size = self._filesystem.get_file_info(target).size
        content = statistics(self._writer.writer.metadata) if self._task.destination.format == "delta" else ""
        return Written(self._path, self._task.range, self._records, size, content)

    def delete(self) -> None:
        if not self._stream.closed:
            self._stream.close()
        if self._filesystem.get_file_info(self._pending).type is not pa_fs.FileType.NotFound:
            self._filesystem.delete_file(self._pending)


class _JsonLines:
    """Writes each record as one line of JSON."""

    def __init__(self, stream: Any, columns: pa.Schema) -> None:
        self._stream, self._columns = stream, columns
        self._headers = "_headers" if "_headers" in columns.names else "headers"

    def write(self, made: pa.RecordBatch) -> None:
        for row in made.to_pylist():
            line = {one.name: jsonable(row[one.name], one.type) for one in self._columns}
            if row[self._headers]:
                line[self._headers] = [{**one, "value": header_value(one["value"])} for one in row[self._headers]]
            self._stream.write(dumps(line).encode() + b"\n")

    def close(self) -> None:
        return


def _writer(kind: str, stream: Any, columns: pa.Schema) -> Any:
    if kind == "csv":
        return pa_csv.CSVWriter(stream, columns)
    if kind == "json":
        return _JsonLines(stream, columns)
    return pa_parquet.ParquetWriter(stream, columns, compression="zstd")


def data_files(filesystem: pa_fs.FileSystem, root: str) -> Iterator[tuple[str, str]]:
    """Yield the path and name of every file below a folder, except the files in ``OURS`` and in Delta's log."""
    selector = pa_fs.FileSelector(root, recursive=True, allow_not_found=True)
    for info in filesystem.get_file_info(selector):
        below = info.path.removeprefix(root).lstrip("/")
        if info.type is pa_fs.FileType.File and not below.startswith((OURS, DELTA_LOG)):
            yield info.path, os.path.basename(info.path)
