"""Writes the ``.cleaned`` segments that replace a group of adjacent segments.

Usually one new segment replaces several, so small segments are merged. A second one is started only if converted or
recompressed batches take more room than before and the first one is full.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Final, Self

from parley.protocol.records.batch_header import INT32_MAX, BatchHeader, Buffer
from parley.storage.checkpoints import sync_directory
from parley.storage.index import MAX_RELATIVE_OFFSET
from parley.storage.log_config import LogConfig
from parley.storage.segment import Segment
from parley.storage.segment_appends import append
from parley.storage.segment_names import CLEANED, LOG_SUFFIX, TRANSACTION_INDEX_SUFFIX
from parley.storage.transaction_index import AbortedTransaction

WRITE_BYTES: Final = 1 << 20
"""Batches are buffered up to this size and written with one call."""


class CompactedSegments:
    """Writes the new segments from ``base_offset`` up to ``end_offset``. A context manager, which removes the segments
    on exit unless ``finish`` was called.

    Every method may raise ``OSError``.
    """

    def __init__(
        self,
        directory: Path,
        base_offset: int,
        end_offset: int,
        config: LogConfig,
        now_ms: int,
        throttle: Callable[[int], None],
    ) -> None:
        self._directory = directory
        self._end_offset = end_offset
        self._config = config
        self._now_ms = now_ms
        self._throttle = throttle
        self._segments: list[Segment] = []
        self._headers: list[BatchHeader] = []
        self._data = bytearray()
        self._is_finished = False
        self._begin(base_offset)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        if not self._is_finished:
            for segment in self._segments:
                with suppress(FileNotFoundError):
                    segment.delete()

    def add(self, header: BatchHeader, data: Buffer) -> None:
        """Append a batch."""
        segment = self._segments[-1]
        if (
            segment.size + len(self._data) + len(data) > INT32_MAX
            or header.last_offset - segment.base_offset > MAX_RELATIVE_OFFSET
        ):
            self._write()
            self._begin(header.base_offset)
        self._headers.append(header)
        self._data += data
        if len(self._data) >= WRITE_BYTES:
            self._write()

    def add_aborted(self, aborted: AbortedTransaction) -> None:
        """Add an aborted transaction to the transaction index. Its marker must be the batch that was added last."""
        self._segments[-1].transactions.append(aborted)

    def finish(self, modified_ns: int) -> tuple[int, ...]:
        """Sync the segments to disk and return their base offsets. Blocks.

        ``modified_ns`` becomes their modification time, which retention uses for records without a timestamp.
        """
        self._write()
        ends = [*(segment.base_offset for segment in self._segments[1:]), self._end_offset]
        for segment, end in zip(self._segments, ends, strict=True):
            segment.seal(end)
            segment.path_of(TRANSACTION_INDEX_SUFFIX).touch()  # so that recovery notices if a file is missing
            segment.sync(indexes=True)
            os.utime(segment.path_of(LOG_SUFFIX), ns=(modified_ns, modified_ns))
            segment.release()
        sync_directory(self._directory)
        self._is_finished = True
        return tuple(segment.base_offset for segment in self._segments)

    def _begin(self, base_offset: int) -> None:
        segment = Segment.create(self._directory, base_offset, self._config, self._now_ms, CLEANED)
        self._segments.append(segment)
        segment.reopen(self._config)

    def _write(self) -> None:
        if self._headers:
            append(self._segments[-1], self._data, self._headers, self._config.index_interval_bytes)
            self._throttle(len(self._data))
            self._headers, self._data = [], bytearray()
