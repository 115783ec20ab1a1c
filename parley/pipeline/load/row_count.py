"""Counts the rows of files that a load sends to a topic, so that its progress has a total.

The count reads only the footers of Parquet files, but every byte of JSON files, so it runs in a thread beside the load.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterable
from typing import Final

import pyarrow as pa
import pyarrow.fs as pa_fs
import pyarrow.parquet as pa_parquet

from parley.pipeline.load.files import filesystem

_CHUNK_BYTES: Final = 1024 * 1024

_log = logging.getLogger(__name__)


class RowCount:
    """Counts the rows of the files in a thread. ``known`` is the number, or None until it is known.

    The rows of CSV files are not counted: that would take as long as reading them.
    """

    def __init__(self, uri: str, kind: str, files: Iterable[str]) -> None:
        """Start to count. ``files`` are paths relative to the folder ``uri``."""
        self.known: int | None = None
        self._thread = threading.Thread(
            target=self._count, args=(uri, kind, tuple(files)), name="count of rows", daemon=True
        )
        if kind != "csv":
            self._thread.start()

    def _count(self, uri: str, kind: str, files: tuple[str, ...]) -> None:
        system, root = filesystem(uri)
        count_of = _json_lines if kind == "json" else _parquet_rows
        try:
            self.known = sum(count_of(system, f"{root}/{path}") for path in files)
        except (OSError, pa.ArrowException) as error:
            _log.info("the rows to send cannot be counted, so the progress is shown without a total: %s", error)


def _parquet_rows(system: pa_fs.FileSystem, path: str) -> int:
    with system.open_input_file(path) as stream:
        return int(pa_parquet.ParquetFile(stream).metadata.num_rows)


def _json_lines(system: pa_fs.FileSystem, path: str) -> int:
    lines, last = 0, b"\n"
    with system.open_input_stream(path) as stream:
        while chunk := stream.read(_CHUNK_BYTES):
            lines += chunk.count(b"\n")
            last = chunk[-1:]
    return lines + (last != b"\n")
