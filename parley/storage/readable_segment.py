"""The read side of a segment: its batches, looked up by offset and by time in its indexes.

``size`` counts whole batches of the log. The file may be longer during an append, after a failed write, or because of
preallocation: nothing after ``size`` is ever read. Damage found during a read causes an error or a longer search, but
never returns a batch that does not exist.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from parley.protocol.records.batch_header import HEADER_SIZE, MAGIC_V2, BatchHeader
from parley.protocol.records.errors import CorruptRecord
from parley.storage.damage.damaged_ranges import DamagedBytes
from parley.storage.damage.unverified_spans import Spans
from parley.storage.offset_index import OffsetIndex, OffsetPosition
from parley.storage.segment_file import LOOKUP_CHUNK, SCAN_CHUNK, SegmentFile, batches
from parley.storage.segment_names import LOG_SUFFIX, TRANSACTION_INDEX_SUFFIX, file_name
from parley.storage.time_index import TimeIndex, TimestampOffset
from parley.storage.transaction_index import TransactionIndex

UNSEALED: Final = 2**63 - 1
"""The end offset of the active segment."""

_log = logging.getLogger(__name__)


class ReadableSegment:
    """The read side of a segment, which contains the offsets [``base_offset``, ``end_offset``) in ``size`` bytes.
    ``end_offset`` is the next segment's base offset, or UNSEALED."""

    __slots__ = (
        "_directory",
        "_file",
        "_first_timestamp",
        "_largest",
        "_suffix",
        "base_offset",
        "created_ms",
        "damage",
        "end_offset",
        "offset_index",
        "size",
        "time_index",
        "transactions",
        "unverified",
    )

    def __init__(
        self,
        directory: Path,
        base_offset: int,
        *,
        size: int,
        offset_index: OffsetIndex,
        time_index: TimeIndex,
        now_ms: int,
        suffix: str,
        transactions: TransactionIndex | None,
    ) -> None:
        self._directory = directory
        self._suffix = suffix
        self.base_offset = base_offset
        self.end_offset = UNSEALED
        self.size = size
        self.offset_index = offset_index
        self.time_index = time_index
        self.transactions = transactions or TransactionIndex(self.path_of(TRANSACTION_INDEX_SUFFIX))
        self.created_ms = now_ms
        self.damage: tuple[DamagedBytes, ...] = ()
        """The known damaged bytes, in order. No read returns them."""
        self.unverified: Spans = ((0, size),) if size else ()
        """The bytes that are neither written nor verified by this process, or by an earlier one if the file has not
        changed since (``verified_files``). A read verifies them first."""
        self._file: SegmentFile | None = None
        self._first_timestamp: int | None = None
        self._largest = None if size else TimestampOffset(-1, base_offset)

    def __repr__(self) -> str:
        return f"Segment({self.base_offset}, {self.size} bytes, {self._directory.name}{self._suffix})"

    def path_of(self, kind: str) -> Path:
        """Return the path of one of the segment's files. ``kind`` is its suffix, such as LOG_SUFFIX."""
        return self._directory / file_name(self.base_offset, kind + self._suffix)

    @property
    def file(self) -> SegmentFile:
        """The ``.log`` file, which is opened when it is first needed. Raises ``OSError``."""
        opened = self._file
        if opened is None:
            opened = self._file = SegmentFile(self.path_of(LOG_SUFFIX))
        return opened

    # --- Batches ---

    def batches(
        self, position: int = 0, *, chunk: int = SCAN_CHUNK, nowait: bool = False
    ) -> Iterator[tuple[int, BatchHeader]]:
        """Yield the position and the header of each batch, starting at ``position``, which must be a batch boundary.
        Leaves out known damage. ``chunk`` is the number of bytes read at a time. Raises ``CorruptRecord``, ``OSError``;
        with ``nowait``, ``BlockingIOError`` if it would have to wait for the disk.
        """
        if not self.size:
            return iter(())
        if not self.damage:
            return batches(self.file, position, self.size, chunk=chunk, nowait=nowait)
        return self._undamaged(position, chunk, nowait)

    def _undamaged(self, position: int, chunk: int, nowait: bool) -> Iterator[tuple[int, BatchHeader]]:
        for damaged in self.damage:
            if position < damaged.end:
                yield from batches(self.file, position, damaged.position, chunk=chunk, nowait=nowait)
                position = damaged.end
        yield from batches(self.file, position, self.size, chunk=chunk, nowait=nowait)

    def find(self, offset: int, *, nowait: bool = False) -> tuple[int, BatchHeader] | None:
        """Return the position and the header of the first batch that ends at or after ``offset``, or None if there is
        none in the segment.

        Raises ``CorruptRecord``, ``OSError``; ``BlockingIOError`` only with ``nowait``.
        """
        start = self._before_damage(self.offset_index.lookup(offset))
        if start.position and self._indexed(start, nowait=nowait) is None:
            start = self._start
        walk = self.batches(start.position, chunk=LOOKUP_CHUNK, nowait=nowait)
        return next((found for found in walk if found[1].last_offset >= offset), None)

    def boundary(self, start: int, limit: int, *, nowait: bool = False) -> tuple[int, int | None]:
        """Return the end of a read from ``start``: a batch boundary at or before ``limit``, and the offset that
        follows, if known.

        Because the index is sparse, the read may leave out some batches that would have fit. Returns ``start`` only if
        not even the first batch fits. Raises ``CorruptRecord``, ``OSError``; ``BlockingIOError`` only with ``nowait``.
        """
        indexed = self._before_damage(self.offset_index.lookup_position(limit))
        if indexed.position > start:
            header = self._indexed(indexed, nowait=nowait)
            if header is not None:
                return indexed.position, header.base_offset if header.magic == MAGIC_V2 else None
        end, following = start, None
        for position, header in self.batches(start, chunk=LOOKUP_CHUNK, nowait=nowait):
            if position + header.size_bytes > limit:
                break
            end, following = position + header.size_bytes, header.next_offset
        return end, following

    def _before_damage(self, hint: OffsetPosition) -> OffsetPosition:
        """Return the index entry ``hint``, or, if it points into damage, the last entry before that damage."""
        for damaged in reversed(self.damage):
            if damaged.position <= hint.position < damaged.end:
                hint = self.offset_index.lookup_position(damaged.position - 1) if damaged.position else self._start
        return hint

    @property
    def _start(self) -> OffsetPosition:
        return OffsetPosition(self.base_offset, 0)

    def _indexed(self, hint: OffsetPosition, *, nowait: bool) -> BatchHeader | None:
        """Return the header of the batch that an index entry points to. If no such batch is there, empty the index and
        return None."""
        if 0 <= hint.position < self.size:
            try:
                _, found = next(batches(self.file, hint.position, self.size, chunk=HEADER_SIZE, nowait=nowait))
                if self.base_offset <= found.base_offset and found.last_offset <= hint.offset:
                    return found
            except CorruptRecord:
                pass
        _log.error("%s is damaged at %s: reading without the index", self.offset_index.path, hint)
        self.offset_index.reset()
        return None

    def find_timestamp(self, timestamp: int) -> int:
        """Return the position from which to search for the first batch with a timestamp of at least ``timestamp``.

        Uses the entry of the time index if it agrees with the batch that it points to; otherwise returns 0. Uses only
        earlier timestamps: an altered entry with ``timestamp`` itself may point past the first of several such batches.
        Raises ``CorruptRecord``, ``OSError``.
        """
        return self._reaching(self.time_index.lookup(timestamp - 1))

    def _reaching(self, hint: TimestampOffset) -> int:
        found = self.find(hint.offset) if hint.timestamp >= 0 else None
        return found[0] if found is not None and found[1].max_timestamp == hint.timestamp else 0

    @property
    def first_timestamp(self) -> int:
        """The largest timestamp in the first batch; -1 if the batch has no timestamp or cannot be read. Raises
        ``OSError``."""
        if self._first_timestamp is None:
            if not self.size:
                return -1
            try:
                first = next(self.batches(chunk=HEADER_SIZE), None)
                self._first_timestamp = -1 if first is None else first[1].max_timestamp
            except CorruptRecord as error:
                _log.error("%r is damaged: %s", self, error)
                self._first_timestamp = -1
        return self._first_timestamp

    @property
    def largest(self) -> TimestampOffset:
        """The largest timestamp, and the last offset of its batch; (-1, base offset) if no batch has a timestamp.

        The first use reads the time index and the batches after its last entry, but ignores batches after an unreadable
        batch. Raises ``OSError``.
        """
        largest = self._largest
        if largest is None:
            largest = TimestampOffset(-1, self.base_offset)
            try:
                for _, header in self.batches(self._reaching(self.time_index.last)):
                    if header.max_timestamp > largest.timestamp:
                        largest = TimestampOffset(header.max_timestamp, header.last_offset)
            except CorruptRecord as error:
                _log.error("%r is damaged: %s", self, error)
            self._largest = largest
            self.rest_if_sealed()
        return largest

    @property
    def largest_timestamp_ms(self) -> int:
        """The time by which retention judges the segment's age: the largest record timestamp; if there is none, the
        file's modification time; for an empty segment, its creation time."""
        if not self.size:
            return self.created_ms
        timestamp = self.largest.timestamp
        return timestamp if timestamp >= 0 else os.stat(self.path_of(LOG_SUFFIX)).st_mtime_ns // 1_000_000

    def _timestamp_of_first_batch(self) -> int:
        """Return the largest timestamp of the first batch; -1 if there is no batch or it is damaged."""
        try:
            return next((header.max_timestamp for _, header in self.batches(chunk=LOOKUP_CHUNK)), -1)
        except CorruptRecord:
            return -1

    # --- Open files ---

    def rest(self) -> None:
        """Close the files until they are needed again; a read in progress keeps its file."""
        self._file = None
        self.offset_index.release()
        self.time_index.release()

    def rest_if_sealed(self) -> None:
        """Close the files if the segment is sealed. Called by work that goes through all segments."""
        if self.end_offset != UNSEALED:
            self.rest()
