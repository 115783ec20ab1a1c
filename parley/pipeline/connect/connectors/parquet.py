"""Writes topics to Parquet files, on a disk or in any store that Arrow supports (S3, GCS, Azure, HDFS).

A file holds a range of offsets of a partition, and its name states the range::

    <url>/<topic>/partition=<n>/<topic>+<n>+<first offset>+<end offset>.parquet

So each record is stored exactly once. After a crash, the task lists the files and continues after the last one. A file
appears only when it is complete: by a rename, or as an object in a store. A task that another task has replaced finds
newer files and fails. On a disk, the task locks the folder from this check until the file has its name, so that two
tasks cannot pass the check together. Elsewhere only the worker prevents this: it starts a task only if no other task
with the same number runs.
"""

from __future__ import annotations

import fcntl
import os
import re
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext, suppress
from typing import Any, Final
from urllib.parse import quote

import pyarrow as pa
import pyarrow.parquet as pq
from pyarrow import fs

from parley.pipeline.connect.config import LOW, STRING, ConfigValue, one_of
from parley.pipeline.connect.connector import OffsetRange, SinkConnector
from parley.pipeline.connect.connectors.columns import Columns, FileColumns
from parley.pipeline.connect.connectors.ranges import RangeTask, range_keys
from parley.pipeline.connect.errors import ConfigError, ConnectError, RetriableError
from parley.pipeline.connect.records import SinkRecord, TopicPartition
from parley.pipeline.durable_files import to_disk

_NAME: Final = re.compile(r"[^+/]+\+[0-9]{1,10}\+[0-9]{1,19}\+(?P<end>[0-9]{1,19})\.parquet")
_OBJECT_STORES: Final = frozenset({"s3", "gcs", "abfs"})
"""The stores, by Arrow's names, in which a rename is only a copy and not always possible."""
_CODECS: Final = ("none", "snappy", "gzip", "zstd", "lz4", "brotli")


def _opened(url: str) -> tuple[fs.FileSystem, str]:
    """Return the file system of a URL or path, and the path in it. Raises ConfigError."""
    try:
        return fs.FileSystem.from_uri(url) if "://" in url else (fs.LocalFileSystem(), url)
    except (pa.ArrowException, ValueError, OSError) as error:
        raise ConfigError(f"Invalid value {url} for configuration url: {error}") from error


class ParquetSinkTask(RangeTask):
    """Writes a file for each range."""

    config_def = (
        range_keys("url", "Where the files go: a folder, or s3://bucket/path, gs://..., abfs://..., hdfs://...")
        .define("parquet.codec", STRING, "snappy", LOW, validator=one_of(*_CODECS))
        .doc(f"The compression of the files: {', '.join(_CODECS)}.")
    )

    def begin(self, config: Mapping[str, Any], props: Mapping[str, str]) -> None:
        self._codec: str = config["parquet.codec"]
        self._files, base = _opened(config["url"])
        self._base = base.rstrip("/")
        self._is_local = isinstance(self._files, fs.LocalFileSystem)
        self._renames = self._files.type_name not in _OBJECT_STORES

    def committed(self, partitions: Sequence[TopicPartition]) -> Mapping[TopicPartition, int]:
        for one in partitions:
            self._forget_unfinished(one)
        ends = {one: self._end(one) for one in partitions}
        return {one: end for one, end in ends.items() if end is not None}

    def _listed(self, partition: TopicPartition) -> list[fs.FileInfo]:
        try:
            found: list[fs.FileInfo] = self._files.get_file_info(
                fs.FileSelector(self._folder(partition), allow_not_found=True)
            )
            return found
        except OSError as error:
            raise RetriableError(f"{self._folder(partition)} cannot be listed: {error}") from error

    def _forget_unfinished(self, partition: TopicPartition) -> None:
        """Delete temporary files. A task that was about to rename one of them has lost the partition."""
        for one in self._listed(partition):
            if one.base_name.startswith(".") and one.base_name.endswith(".tmp"):
                with suppress(OSError):
                    self._files.delete_file(one.path)

    def _end(self, partition: TopicPartition) -> int | None:
        names = (_NAME.fullmatch(one.base_name) for one in self._listed(partition))
        return max((int(name["end"]) for name in names if name is not None), default=None)

    def write_range(self, offsets: OffsetRange, records: Sequence[SinkRecord]) -> None:
        folder = self._folder(offsets.topic_partition)
        path = f"{folder}/{_safe(offsets.topic)}+{offsets.partition}+{offsets.start}+{offsets.end}.parquet"
        content = self._content(offsets, records)
        if content is None:
            return
        try:
            self._files.create_dir(folder, recursive=True)
            written = f"{folder}/.{uuid.uuid4().hex}.tmp" if self._renames else path
            if self._renames:
                self._write(written, content)
            with _locked(folder) if self._is_local else nullcontext():
                self._check_is_next(offsets)
                if self._renames:
                    self._files.move(written, path)
                else:
                    self._write(path, content)
        except OSError as error:
            raise RetriableError(f"{path} cannot be written: {error}") from error

    def _content(self, offsets: OffsetRange, records: Sequence[SinkRecord]) -> pa.Buffer | None:
        """Return the content of the file; None if all records are refused. Raises ConnectError.

        It is complete before the file is opened, because a store may finish an object that its writer has abandoned.
        """
        made = pa.BufferOutputStream()
        table = self._rows(records, Columns({}, FileColumns()))
        if not table.num_rows:
            return None
        try:
            pq.write_table(table, made, compression=self._codec)
        except pa.ArrowException as error:
            raise ConnectError(f"{offsets} cannot be written as Parquet: {error}") from error
        return made.getvalue()

    def _check_is_next(self, offsets: OffsetRange) -> None:
        end = self._end(offsets.topic_partition)
        if end is not None and end > offsets.start:
            raise ConnectError(f"{offsets} was written by another task: there are files up to {end}")

    def _write(self, path: str, content: pa.Buffer) -> None:
        with self._files.open_output_stream(path) as stream:
            stream.write(content)
        if self._is_local:
            to_disk(path)

    def _folder(self, partition: TopicPartition) -> str:
        return f"{self._base}/{_safe(partition.topic)}/partition={partition.partition}"


@contextmanager
def _locked(folder: str) -> Iterator[None]:
    """Lock the folder for this process. Raises OSError if another process has the lock."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield
    finally:
        os.close(descriptor)


def _safe(topic: str) -> str:
    return quote(topic, safe="")


class ParquetSinkConnector(SinkConnector):
    """A sink that writes Parquet files. See the module docstring."""

    version = "1.0"
    task_class = ParquetSinkTask
    config_def = ParquetSinkTask.config_def

    def validate(self, props: Mapping[str, str]) -> list[ConfigValue]:
        found = super().validate(props)
        url = next(one for one in found if one.name == "url")
        if url.value and not url.errors:
            try:
                _opened(url.value)
            except ConfigError as error:
                url.errors += error.messages
        return found

    def alter_offsets(self, props: Mapping[str, str], offsets: Mapping[TopicPartition, int | None]) -> bool:
        raise ConnectError(
            "The files define the connector's offsets, so they cannot be changed here: move the files that "
            "are to be written again out of the way."
        )
