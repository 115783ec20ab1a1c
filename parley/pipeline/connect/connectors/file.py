"""Reads lines of a file into a topic, and writes records as lines to a file (step 7 of Kafka's quick start).

The classes have the same configs as Kafka's ``FileStreamSource`` and ``FileStreamSink``. The source's partition is
``{"filename": ...}``, and its offset is ``{"position": bytes}``. Without ``file``, the source reads standard input,
which has no offsets, and the sink writes to standard output.
"""

from __future__ import annotations

import logging
import os
import select
import sys
from collections import deque
from collections.abc import Mapping, Sequence
from typing import Any, BinaryIO, Final

from parley.pipeline.connect.config import HIGH, LOW, ConfigDef, ConfigType, at_least, non_empty
from parley.pipeline.connect.connector import SinkConnector, SinkTask, SourceConnector, SourceTask
from parley.pipeline.connect.data import STRING
from parley.pipeline.connect.errors import ConnectError
from parley.pipeline.connect.java_notation import java_text
from parley.pipeline.connect.records import SinkRecord, SourceRecord, TopicPartition

FILENAME: Final = "filename"
POSITION: Final = "position"
_CHUNK_BYTES: Final = 256 * 1024
_LINE_BYTES_MAX: Final = 16 * 1024 * 1024
_STDIN_SECONDS: Final = 0.1
_VERSION: Final = "1.0"

_log = logging.getLogger(__name__)


class FileStreamSourceTask(SourceTask):
    """Reads whole lines, starting at the stored position. The last line is read only when it ends with a newline."""

    version = _VERSION

    def start(self, props: Mapping[str, str]) -> None:
        config = FileStreamSourceConnector.config_def.parse(props)
        self._path: str | None = config["file"]
        self._topic: str = config["topic"]
        self._batch: int = config["batch.size"]
        self._file: BinaryIO | None = None
        self._lines: deque[bytes] = deque()
        self._rest = b""  # the start of a line whose newline has not been read yet
        self._position = 0  # of the first line in ``_lines``
        self._partition = {} if self._path is None else {FILENAME: self._path}
        self._waits = False
        if self._path is None:
            _log.warning("no 'file' is set: the task for topic '%s' reads the standard input", self._topic)

    def poll(self) -> Sequence[SourceRecord] | None:
        file = self._opened()
        if file is None:
            return None
        if not self._lines:
            *lines, self._rest = (self._rest + self._read(file)).split(b"\n")
            self._lines.extend(lines)
            if len(self._rest) > _LINE_BYTES_MAX:
                raise ConnectError(f"{self._path}: the line at {self._position} has more than {_LINE_BYTES_MAX} bytes")
        return [self._record(self._lines.popleft()) for _ in range(min(self._batch, len(self._lines)))] or None

    def _opened(self) -> BinaryIO | None:
        """Return the file at its last position; None while it does not exist. Raises ConnectError."""
        if self._file is not None:
            return self._file
        if self._path is None:
            self._file = sys.stdin.buffer
            return self._file
        try:
            self._file = open(self._path, "rb", buffering=0)  # noqa: SIM115 - ``stop`` closes it
        except FileNotFoundError:
            if not self._waits:
                _log.warning("%s does not exist: the task waits for it", self._path)
            self._waits = True
            return None
        except OSError as error:
            raise ConnectError(f"{self._path} cannot be read: {error.strerror}") from error
        stored = self.context.offsets.offset(self._partition)
        if stored is not None:
            position = stored.get(POSITION)
            if not isinstance(position, int):
                raise ConnectError(f"the offset stored for {self._path} has no position: {stored}")
            self._position = self._file.seek(position)
        return self._file

    def _read(self, file: BinaryIO) -> bytes:
        if self._path is None and not select.select([file], [], [], _STDIN_SECONDS)[0]:
            return b""
        return os.read(file.fileno(), _CHUNK_BYTES)

    def _record(self, line: bytes) -> SourceRecord:
        self._position += len(line) + 1
        return SourceRecord(
            topic=self._topic,
            value_schema=STRING,
            value=line.removesuffix(b"\r").decode(errors="replace"),
            source_partition=self._partition,
            source_offset={} if self._path is None else {POSITION: self._position},
        )

    def stop(self) -> None:
        file, self._file = self._file, None
        if file is not None and self._path is not None:
            file.close()


class FileStreamSourceConnector(SourceConnector):
    """A source that reads lines of a file or of standard input, with one task."""

    version = _VERSION
    task_class = FileStreamSourceTask
    config_def = (
        ConfigDef()
        .define("file", ConfigType.STRING, None, HIGH)
        .doc("Source filename. If not specified, the standard input will be used")
        .define("topic", ConfigType.STRING, importance=HIGH, validator=non_empty)
        .doc("The topic to publish data to")
        .define("batch.size", ConfigType.INT, 2000, LOW, validator=at_least(1))
        .doc("The maximum number of records the source task can read from the file each time it is polled")
    )

    def exactly_once_support(self, props: Mapping[str, str]) -> bool:
        """Return True for a file, which can be read again from any position; False for standard input."""
        return bool(props.get("file"))

    def alter_offsets(
        self, props: Mapping[str, str], offsets: Mapping[str, tuple[Mapping[str, Any], Mapping[str, Any] | None]]
    ) -> bool:
        if not props.get("file"):
            raise ConnectError(
                "Offsets cannot be modified if the 'file' configuration is unspecified. This is because stdin is used "
                "for input and offsets are not tracked."
            )
        for partition, offset in offsets.values():
            if offset is None:
                continue  # any offset may be deleted
            if not isinstance(partition.get(FILENAME), str):
                raise ConnectError(f"Partition objects should contain the key '{FILENAME}'")
            _check_position(offset)
        return True


def _check_position(offset: Mapping[str, Any]) -> None:
    if POSITION not in offset:
        raise ConnectError(f"Offset objects should either be null or contain the key '{POSITION}'")
    position = offset[POSITION]
    if isinstance(position, bool) or not isinstance(position, int):
        raise ConnectError(f"The value for the '{POSITION}' key in the offset is expected to be a Long value")
    if position < 0:
        raise ConnectError(f"The value for the '{POSITION}' key in the offset should be a non-negative value")


class FileStreamSinkTask(SinkTask):
    """Appends a line for each record."""

    version = _VERSION

    def start(self, props: Mapping[str, str]) -> None:
        path = FileStreamSinkConnector.config_def.parse(props)["file"]
        self._is_stdout, self._file = True, sys.stdout
        if path is None:
            return
        try:
            self._file = open(path, "a", encoding="utf-8", newline="")  # noqa: SIM115 - ``stop`` closes it
        except OSError as error:
            raise ConnectError(f"Couldn't find or create file '{path}' for FileStreamSinkTask: {error}") from error
        self._is_stdout = False

    def put(self, records: Sequence[SinkRecord]) -> None:
        self._file.writelines(f"{java_text(record.value)}\n" for record in records)
        if self._is_stdout:
            self._file.flush()

    def flush(self, offsets: Mapping[TopicPartition, int]) -> None:
        self._file.flush()
        if not self._is_stdout:
            os.fsync(self._file.fileno())

    def stop(self) -> None:
        if not self._is_stdout:
            self._file.close()


class FileStreamSinkConnector(SinkConnector):
    """A sink that writes records as lines to a file or to standard output. All tasks append to the same file."""

    version = _VERSION
    task_class = FileStreamSinkTask
    config_def = (
        ConfigDef()
        .define("file", ConfigType.STRING, None, HIGH)
        .doc("Destination filename. If not specified, the standard output will be used")
    )

    def alter_offsets(self, props: Mapping[str, str], offsets: Mapping[TopicPartition, int | None]) -> bool:
        return True
