"""Compacts one log: keeps the last record of each key, at its original offset (docs/storage.md, "Compaction").

A compaction has two passes. The first reads the dirty segments and records the last offset of each key in the offset
map. The second copies all segments, starting with the first segment of the log, without the superseded records. Both
work on files, not on a ``Log``, so a compaction may run in another process. For each group of adjacent segments it
writes and syncs ``.cleaned`` segments and passes them to ``adopt``, which replaces the old segments
(``segment_replacement.py``). Each group is adopted before the next one is written, in log order: the log is correct
after each.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from parley.light_dataclasses import dataclass
from parley.protocol.errors import KafkaError
from parley.protocol.records.batch import payload
from parley.protocol.records.batch_header import COMPRESSION_MASK, HEADER_SIZE, BatchHeader
from parley.protocol.records.control_batch import read_marker
from parley.storage.compaction._offset_map import SLOT_BYTES, OffsetMap, note_keys, select
from parley.storage.compaction.batch_retention import (
    InconsistentTransactions,
    TransactionsSeen,
    retention_of_control,
    retention_of_data,
)
from parley.storage.compaction.compacted_batches import Batch, emptied, verified_batches, with_records
from parley.storage.compaction.compacted_segments import CompactedSegments
from parley.storage.compaction.delete_horizon import is_expired, with_delete_horizon
from parley.storage.index import MAX_RELATIVE_OFFSET
from parley.storage.last_batches import LastBatches
from parley.storage.log_config import LogConfig
from parley.storage.segment_names import LOG_SUFFIX, TRANSACTION_INDEX_SUFFIX, path_in
from parley.storage.time_index import TimeIndex
from parley.storage.transaction_index import AbortedTransaction, TransactionIndex

MAP_BYTES: Final = 128 << 20
"""The default of ``log.cleaner.dedupe.buffer.size``."""
MAP_LOAD_FACTOR: Final = 0.9
"""The default of ``log.cleaner.io.buffer.load.factor``."""
_SLOTS_MIN: Final = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceSegment:
    """A sealed segment to be compacted: its offsets, and the size in bytes of its whole batches."""

    base_offset: int
    end_offset: int
    size: int


@dataclass(frozen=True, slots=True, kw_only=True)
class CompactionRequest:
    """What to compact, and how: plain data that can be sent to another process."""

    directory: Path
    name: str
    """``topic-partition``, for error messages."""
    segments: tuple[SourceSegment, ...]
    """All sealed segments to compact, starting with the first segment of the log."""
    index_base_offsets: tuple[int, ...]
    """The base offsets of all segments, including the active one. A transaction in a compacted segment may be aborted,
    and therefore indexed, in any later segment."""
    first_dirty_offset: int
    now_ms: int
    producers: Mapping[int, LastBatches]
    segment_bytes: int
    segment_index_bytes: int
    index_interval_bytes: int
    delete_retention_ms: int
    tombstones_kept_from: int
    """Tombstones and markers at or above this offset stay even if they have expired, because a replica has not fetched
    them yet."""
    map_bytes: int
    """The memory for the offset map (from ``log.cleaner.dedupe.buffer.size``)."""
    map_load_factor: float
    """The maximum load of the offset map, from 0 to 1 (``log.cleaner.io.buffer.load.factor``)."""
    decompressed_bytes_max: int = 1 << 30
    """A batch whose decompressed size exceeds this makes the log uncleanable."""

    @property
    def bytes_to_read(self) -> int:
        """The bytes that both passes read: the dirty segments for their keys, then all segments to copy them. They read
        less if the offset map becomes full."""
        dirty = sum(each.size for each in self.segments if each.end_offset > self.first_dirty_offset)
        return dirty + sum(each.size for each in self.segments)


@dataclass(frozen=True, slots=True, kw_only=True)
class CompactedGroup:
    """The base offsets of adjacent segments of a log, and of the ``.cleaned`` segments that replace them."""

    replaced: tuple[int, ...]
    written: tuple[int, ...]
    tombstones_removed_up_to: int = 0
    """The offset after the last batch from which the compaction has removed, or may have removed, tombstones or a
    marker; 0 if there is none."""


@dataclass(slots=True, kw_only=True)
class CompactionStats:
    """The results of a compaction so far. Records and bytes are those of the copy pass only."""

    records_read: int = 0
    records_kept: int = 0
    records_invalid: int = 0
    """The number of removed records without a key."""
    bytes_read: int = 0
    """The bytes of the batches that the copy pass has read. The reads of the first pass, for the keys, do not
    count: they are only part of the progress (``Worker.done_bytes``)."""
    bytes_kept: int = 0
    map_keys: int = 0
    map_utilization: float = 0.0
    """How full the offset map became, from 0 to 1."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CompactionResult:
    """The outcome of a compaction: the log is clean below ``cleaned_up_to``."""

    cleaned_up_to: int
    stats: CompactionStats


class Uncleanable(Exception):
    """Raised if the log cannot be compacted, because it is damaged or the offset map is too small. The message is for
    the operator."""


def compact(
    request: CompactionRequest,
    adopt: Callable[[CompactedGroup], None],
    *,
    throttle: Callable[[int], None] = lambda size: None,
    report_progress: Callable[[int], None] = lambda size: None,
) -> CompactionResult:
    """Compact a log. Blocks, perhaps for hours.

    Calls ``throttle`` with the size in bytes of each batch read and each write: it may sleep, and it may raise to end
    the compaction. An exception from ``adopt`` also ends the compaction. Calls ``report_progress`` after each batch
    with the bytes that both passes have read so far. Raises ``Uncleanable`` and ``OSError``. After any exception,
    adopted groups stay, and ``.cleaned`` files may be left over.
    """
    return _Compaction(request, adopt, throttle, report_progress).run()


def grouped(segments: Sequence[SourceSegment], request: CompactionRequest) -> list[list[SourceSegment]]:
    """Return the segments in groups that each fit in one new segment, within its limits of size, index entries and
    offset range."""
    entries = request.segment_index_bytes // TimeIndex.ENTRY.size
    limit = min(request.segment_bytes, entries * max(request.index_interval_bytes, HEADER_SIZE))
    groups: list[list[SourceSegment]] = []
    size = 0
    for segment in segments:
        last_offset = min(segment.end_offset - 1, segment.base_offset + MAX_RELATIVE_OFFSET)
        is_near = bool(groups) and last_offset - groups[-1][0].base_offset <= MAX_RELATIVE_OFFSET
        if is_near and size + segment.size <= limit:
            groups[-1].append(segment)
            size += segment.size
        else:
            groups.append([segment])
            size = segment.size
    return groups


def table_for(request: CompactionRequest) -> OffsetMap:
    """Return an empty offset map within the limits of the request, but no larger than the dirty records may need."""
    first, factor = request.first_dirty_offset, request.map_load_factor
    dirty = sum(max(0, each.end_offset - max(first, each.base_offset)) for each in request.segments)
    slots = max(_SLOTS_MIN, request.map_bytes // SLOT_BYTES)
    slots = min(slots, _SLOTS_MIN + int(dirty / max(factor, 0.01)))
    return OffsetMap(slots, max(1, min(slots - 1, int(slots * factor))))


class _Compaction:
    """One run of ``compact``."""

    def __init__(
        self,
        request: CompactionRequest,
        adopt: Callable[[CompactedGroup], None],
        throttle: Callable[[int], None],
        report_progress: Callable[[int], None],
    ) -> None:
        self._request = request
        self._adopt = adopt
        self._throttle = throttle
        self._report_progress = report_progress
        self._done_bytes = 0
        self._stats = CompactionStats()
        self._keys = table_for(request)
        self._end = request.first_dirty_offset
        """The offset up to which the offset map contains the keys of all dirty records (exclusive)."""
        self._tombstones_removed_up_to = 0

    def run(self) -> CompactionResult:
        request = self._request
        with self._failures_as_uncleanable():
            self._fill_map()
            transactions = TransactionsSeen(self._aborted(0))
        for group in grouped([each for each in request.segments if each.base_offset < self._end], request):
            with self._failures_as_uncleanable():
                written = self._copy(group, transactions)
            if written:
                self._adopt(
                    CompactedGroup(
                        replaced=tuple(each.base_offset for each in group),
                        written=written,
                        tombstones_removed_up_to=self._tombstones_removed_up_to,
                    )
                )
        stats, keys = self._stats, self._keys
        stats.map_keys = keys.count
        stats.map_utilization = int(keys.count) / int(keys.slots)
        return CompactionResult(cleaned_up_to=self._end, stats=stats)

    @contextmanager
    def _failures_as_uncleanable(self) -> Iterator[None]:
        """Raise the errors of damaged or malformed records as ``Uncleanable``, with the name of the log."""
        try:
            yield
        except (InconsistentTransactions, ValueError, KafkaError) as error:
            raise Uncleanable(f"{self._request.name} cannot be compacted: {error}") from error

    # --- The offset map ---

    def _fill_map(self) -> None:
        """Fill the offset map from the dirty segments. Set ``_end`` to the base offset of the batch that did not fit,
        or to the end of the segments.

        Raises ``Uncleanable`` if not even the first dirty batch fits.
        """
        request = self._request
        dirty = [each for each in request.segments if each.end_offset > request.first_dirty_offset]
        transactions = TransactionsSeen(self._aborted(dirty[0].base_offset) if dirty else ())
        for source in dirty:
            is_full = False
            for batch in self._batches(source):  # to the end of the segment, so that it is verified
                if not is_full and not self._add_keys_of(batch, transactions):
                    is_full = True
                    self._end = max(self._end, batch.header.base_offset)
            if is_full:
                break
            self._end = source.end_offset
        if dirty and self._end == request.first_dirty_offset:
            raise Uncleanable(
                f"{request.name} cannot be compacted: the keys of one batch do not fit in the offset map of "
                f"{self._keys.slots} slots. Increase log.cleaner.dedupe.buffer.size, or decrease log.cleaner.threads"
            )

    def _add_keys_of(self, batch: Batch, transactions: TransactionsSeen) -> bool:
        """Record the keys of a batch. Returns True if they fit in the offset map, False if the map became full."""
        header, start = batch.header, self._request.first_dirty_offset
        if header.is_control:
            marker = read_marker(batch.data)
            if marker is not None:
                transactions.end(header, marker)
            return True
        if transactions.is_aborted(header) or header.last_offset < start or not header.record_count:
            return True
        return note_keys(self._payload(batch), header.record_count, header.base_offset, start, self._keys)

    # --- Copying ---

    def _copy(self, group: Sequence[SourceSegment], transactions: TransactionsSeen) -> tuple[int, ...]:
        """Write the batches of a group of segments that the compaction keeps. Returns the base offsets of the new
        segments; an empty tuple if the group is one segment and all of it is kept."""
        request = self._request
        last = next((each for each in reversed(group) if each.size), None)
        config = LogConfig(
            segment_bytes=request.segment_bytes,
            segment_index_bytes=request.segment_index_bytes,
            index_interval_bytes=request.index_interval_bytes,
        )
        base, end = group[0].base_offset, group[-1].end_offset
        modified_ns = os.stat(path_in(request.directory, group[-1].base_offset, LOG_SUFFIX)).st_mtime_ns
        changed = len(group) > 1
        with CompactedSegments(request.directory, base, end, config, request.now_ms, self._throttle) as writer:
            for source in group:
                for batch in self._batches(source):
                    is_last = source is last and batch.end == source.size
                    kept, entry = self._kept(batch, transactions, is_last=is_last)
                    changed = changed or kept is not batch
                    self._stats.bytes_read += batch.header.size_bytes
                    self._stats.records_read += batch.header.record_count
                    if kept is not None:
                        self._stats.bytes_kept += kept.header.size_bytes
                        self._stats.records_kept += kept.header.record_count
                        writer.add(kept.header, kept.data)
                    if entry is not None:
                        writer.add_aborted(entry)
            return writer.finish(modified_ns) if changed else ()

    def _kept(
        self, batch: Batch, transactions: TransactionsSeen, *, is_last: bool
    ) -> tuple[Batch | None, AbortedTransaction | None]:
        """Return what to keep of a batch (the batch itself, a replacement, or None), and the index entry of an abort
        marker."""
        header, entry = batch.header, None
        producer = self._request.producers.get(header.producer_id)
        if header.is_control:
            covers = False
            if header.record_count:
                marker = read_marker(batch.data)
                covers = marker is None  # an unknown control record is never removed
                if marker is not None:
                    covers, entry = transactions.end(header, marker)
            retention = retention_of_control(
                header, producer, covers_batches=covers, is_last=is_last, is_expired=self._is_expired(header)
            )
            kept: Batch | None = batch if retention.keeps_records and header.record_count else None
            if kept is None and header.record_count:
                self._tombstones_removed_up_to = header.next_offset
        else:
            is_aborted = transactions.is_aborted(header)
            retention = retention_of_data(header, producer, is_aborted=is_aborted, is_last=is_last)
            kept = self._filtered(batch) if retention.keeps_records and header.record_count else None
        if kept is None:
            return (emptied(batch) if retention.keeps_empty else None), entry
        if retention.expires:
            kept = with_delete_horizon(kept, self._horizon_ms, self._payload(kept))
        return kept, entry

    def _filtered(self, batch: Batch) -> Batch | None:
        """Return the batch with the records that no later record supersedes; None if there are none."""
        header = batch.header
        drops = self._is_expired(header)
        payload = self._payload(batch)
        found = select(payload, header.record_count, header.base_offset, self._end, drops, self._keys)
        self._stats.records_invalid += found.without_key
        if drops and found.records is not None:
            self._tombstones_removed_up_to = header.next_offset  # perhaps only superseded records were removed
        if not found.count:
            return None
        kept = batch
        if found.records is not None:
            payload = found.records
            kept = with_records(batch, payload, found.count, header.base_timestamp + found.max_delta)
        # At or above ``_end`` the offset map is incomplete: older records of this key may remain, so set no horizon.
        if found.tombstones and header.delete_horizon_ms is None and header.last_offset < self._end:
            kept = with_delete_horizon(kept, self._horizon_ms, payload)
        return kept

    def _is_expired(self, header: BatchHeader) -> bool:
        return is_expired(header, self._request.now_ms, self._request.tombstones_kept_from)

    @property
    def _horizon_ms(self) -> int:
        return self._request.now_ms + self._request.delete_retention_ms

    # --- Reading ---

    def _payload(self, batch: Batch) -> bytes:
        """Return the decompressed records of a batch."""
        if not batch.header.attributes & COMPRESSION_MASK:
            return bytes(memoryview(batch.data)[HEADER_SIZE:])
        return payload(batch.data, 0, batch.header, self._request.decompressed_bytes_max)

    def _batches(self, source: SourceSegment) -> Iterator[Batch]:
        request = self._request
        return verified_batches(
            request.directory,
            source.base_offset,
            source.end_offset,
            source.size,
            request.decompressed_bytes_max,
            self._note_read,
        )

    def _note_read(self, size: int) -> None:
        """Count a read of either pass. ``CompactionStats.bytes_read`` counts only those of the copy pass."""
        self._done_bytes += size
        self._report_progress(self._done_bytes)
        self._throttle(size)

    def _aborted(self, start: int) -> list[AbortedTransaction]:
        """Return the aborted transactions that end at or after ``start``, from the indexes of all segments."""
        request, found = self._request, []
        end = request.segments[-1].end_offset if request.segments else 0
        for base in request.index_base_offsets:
            index = TransactionIndex(path_in(request.directory, base, TRANSACTION_INDEX_SUFFIX))
            try:
                some, is_complete = index.find(start, end)
            finally:
                index.close()
            found += some
            if is_complete:
                break
        return found
