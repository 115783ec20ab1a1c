"""Opens a log: from the files in its directory to segments whose batches, indexes, epochs and producers agree.

Rules (docs/storage.md has them all):

1. After a clean shutdown nothing is scanned. After a crash, every segment that reaches beyond the recovery point is,
   and so is any segment with a missing or impossible index. A scan rebuilds the indexes.
2. A segment is cut at its first bad batch. Above the recovery point the log ends there, and later segments are deleted.
   What is cut is synced at once: otherwise the next crash could bring it back, beside batches appended since.
3. Leader epochs and producers are learned from the batches again.
"""

from __future__ import annotations

import logging
import os
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from crc32c import crc32c

from parley.protocol.records.batch_header import (
    ATTRIBUTES_AT,
    HEADER_SIZE,
    MAGIC_AT,
    MAGIC_V2,
    BatchHeader,
    Buffer,
    read_header,
)
from parley.protocol.records.crc import verify_crc
from parley.protocol.records.errors import CorruptRecord
from parley.storage.checkpoints import sync_directory
from parley.storage.index import MAX_RELATIVE_OFFSET, CorruptIndex
from parley.storage.leader_epoch_cache import LeaderEpochCache
from parley.storage.log_config import LogConfig
from parley.storage.producer_state import ProducerState
from parley.storage.producer_updates import marker_of, note
from parley.storage.segment import INDEX_SUFFIXES, LOG_SUFFIX, UNSEALED, Segment, base_offset_of
from parley.storage.segment_file import LOOKUP_CHUNK, SCAN_CHUNK, read_batch
from parley.storage.swap_recovery import settle
from parley.storage.transaction_index import CorruptTransactionIndex

LARGE_BATCH: Final = 128 << 20
"""A batch up to this size is read as a whole to check it."""

RECALLED_BYTES: Final = 4 << 20
"""How far back from the log end a producer's batches are searched that were in flight when a broker stopped: a few
milliseconds' work."""

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class LastKnown:
    """What is known of a log before it is opened: whether the last broker shut down cleanly, and the checkpoints."""

    clean: bool = False
    recovery_point: int = 0
    log_start_offset: int = 0


@dataclass(frozen=True, slots=True)
class LoadedLog:
    """A log after recovery; its last segment is the active one."""

    segments: tuple[Segment, ...]
    log_start_offset: int
    log_end_offset: int
    recovery_point: int
    producers: ProducerState
    epochs: LeaderEpochCache


def load(
    directory: Path,
    config: LogConfig,
    known: LastKnown,
    producers: ProducerState,
    epochs: LeaderEpochCache,
    now_ms: int,
) -> LoadedLog:
    """Open the log in ``directory``; an empty directory becomes an empty log at the log start offset.

    Brings ``producers`` and ``epochs`` to their state at the log end. Blocks for the disk. Raises ``OSError``.
    """
    deleted = settle(directory)
    loader = _Loader(directory, config, known, producers, epochs, now_ms)
    if not deleted:
        loader.remove_what_follows_nothing()
    segments = loader.open_segments()
    loader.repair(segments)
    log_start, log_end = known.log_start_offset, loader.log_end
    if segments and log_start > log_end:
        _log.warning("%s ends at %d, before its log start %d: deleting all of it", directory, log_end, log_start)
        while segments:
            segments.pop().delete()
    if not segments:
        segments = [Segment.create(directory, log_start, config, now_ms)]
        log_end = log_start
        producers.truncate_fully(log_start)
        epochs.clear()
    for segment in segments:
        segment.rest()
    log_start = max(log_start, segments[0].base_offset)
    epochs.truncate_from_end(log_end)
    epochs.truncate_from_start(log_start)
    producers.on_log_start_advanced(log_start)
    if log_end < known.recovery_point:
        lost = f"{directory} ends at {log_end}, but was on disk up to {known.recovery_point}"
        _log.error("%s: the disk has lost records, or files were removed", lost)
    whole = known.clean and not loader.scanned
    recovery_point = log_end if whole else min(known.recovery_point, log_end)
    return LoadedLog(tuple(segments), log_start, log_end, recovery_point, producers, epochs)


def replay(segment: Segment, offset: int, producers: ProducerState, now_ms: int) -> None:
    """Learn the producers from the batches of a segment from ``offset`` on; its transactions are indexed already.

    Batches behind a damaged one are not learned from. Blocks. Raises ``OSError``.
    """
    try:
        begin = segment.find(offset)
        for position, header in segment.batches(begin[0]) if begin is not None else ():
            if header.producer_id >= 0 and header.base_offset >= offset:
                marker = None
                if header.is_control:
                    marker = marker_of(header, read_batch(segment.file, position, header), 0)
                producers.append(header, now_ms=min(header.max_timestamp, now_ms), control=marker)
    except CorruptRecord as error:
        _log.error("cannot restore all producers of %r: %s", segment, error)


def recall(segments: Sequence[Segment], producers: ProducerState, producer_id: int) -> None:
    """Learn the last batches of a producer of which a snapshot had only one, as far as they lie near the log end.

    Reads headers in the last ``RECALLED_BYTES``, once for each producer of a snapshot. Raises ``OSError``.
    """
    found: list[BatchHeader] = []
    left = RECALLED_BYTES
    try:
        for segment in reversed(segments):
            begin = segment.offset_index.lookup_position(max(0, segment.size - left)).position
            walk = segment.batches(begin, chunk=LOOKUP_CHUNK)
            found[:0] = [header for _, header in walk if header.producer_id == producer_id and not header.is_control]
            left -= segment.size - begin
            if left <= 0:
                break
    except CorruptRecord as error:
        _log.error("cannot find all batches of producer %d: %s", producer_id, error)
    producers.recall(producer_id, found)


class _Loader:
    """The opening of one log."""

    def __init__(
        self,
        directory: Path,
        config: LogConfig,
        known: LastKnown,
        producers: ProducerState,
        epochs: LeaderEpochCache,
        now_ms: int,
    ) -> None:
        self._directory = directory
        self._config = config
        self._known = known
        self._producers = producers
        self._epochs = epochs
        self._now_ms = now_ms
        self.scanned: set[int] = set()
        """The base offsets of the segments that must be scanned."""
        self.log_end = known.log_start_offset

    def remove_what_follows_nothing(self) -> None:
        """Remove all segments of a log that was never synced, if a crash took its first segment.

        Retention, too, removes the first segments; until the recovery point is written, it leaves ``.deleted`` files.
        """
        bases, start = _bases(self._directory), self._known.log_start_offset
        if self._known.clean or self._known.recovery_point > start or not bases or bases[0] <= start:
            return
        _log.warning("%s lost its segments from %d to %d: deleting the rest", self._directory, start, bases[0] - 1)
        for path in sorted(self._directory.iterdir()):
            if base_offset_of(path.name) in bases:
                path.unlink()
        sync_directory(self._directory)

    def open_segments(self) -> list[Segment]:
        """The segments whose files can be trusted; the others are returned empty, to be scanned."""
        bases = _bases(self._directory)
        segments = []
        for base, end in zip(bases, [*bases, UNSEALED][1:], strict=True):
            segment = None if self._unflushed(end) else self._open(base)
            if segment is not None and end == UNSEALED:
                segment = self._check_tail(segment)
            if segment is None:
                self.scanned.add(base)
                segment = Segment.open_unindexed(self._directory, base, self._config, self._now_ms)
            segment.end_offset = end
            segments.append(segment)
        return segments

    def _unflushed(self, end_offset: int) -> bool:
        """True if a crash may have damaged the segment that ends at ``end_offset``."""
        return not self._known.clean and end_offset > self._known.recovery_point

    def _open(self, base: int) -> Segment | None:
        try:
            return Segment.open(self._directory, base, self._now_ms)
        except (CorruptIndex, CorruptTransactionIndex, FileNotFoundError) as error:
            _log.warning("rebuilding the indexes of segment %d of %s: %s", base, self._directory, error)
            return None

    def _check_tail(self, segment: Segment) -> Segment | None:
        """Find the log end from the last batches of the last segment; None unless they fill the file exactly."""
        last = segment.offset_index.last
        end, expected = last.position, segment.base_offset
        try:
            for position, header in segment.batches(last.position):
                if header.base_offset < expected or (
                    position == last.position > 0 and header.last_offset > last.offset
                ):
                    raise CorruptRecord(f"offset {header.base_offset} is out of place")
                end, expected = position + header.size_bytes, header.next_offset
            if end != segment.size:
                raise CorruptRecord(f"no batch ends at byte {segment.size}")
        except CorruptRecord as error:
            _log.warning("scanning the last segment of %s: %s", self._directory, error)
            segment.release()
            return None
        self.log_end = expected
        return segment

    def repair(self, segments: list[Segment]) -> None:
        """Scan the segments that must be scanned, learn epochs and producers, and delete what a crash left behind a bad
        batch."""
        if not segments:
            return
        start = max(self._known.log_start_offset, segments[0].base_offset)
        known_to = min(self.scanned, default=self.log_end)
        in_doubt = [each.base_offset for each in segments if self._unflushed(each.end_offset)]
        if in_doubt:
            self._epochs.truncate_from_end(in_doubt[0])
        self._producers.remove_stray_snapshots({segment.base_offset for segment in segments})
        replay_from = self._producers.load(start, max(known_to, start), self._now_ms)
        for number, segment in enumerate(segments):  # becomes shorter at a bad batch
            if segment.base_offset in self.scanned:
                scan = _Scan(segment, self._config, self._learn)
                end = scan.run()
                is_followed = scan.whole and segment.end_offset in (end, UNSEALED)
                if not is_followed and self._unflushed(segment.end_offset):
                    self._drop(segments, number + 1)
                if segment.end_offset == UNSEALED:
                    self.log_end = end
                else:
                    segment.trim()
            elif replay_from < segment.end_offset and (replay_from < known_to or segment.base_offset > known_to):
                replay(segment, replay_from, self._producers, self._now_ms)

    def _drop(self, segments: list[Segment], keep: int) -> None:
        segments[keep - 1].end_offset = UNSEALED
        while len(segments) > keep:
            dropped = segments.pop()
            _log.warning("deleting %r behind the end of %s", dropped, self._directory)
            dropped.delete()
        sync_directory(self._directory)

    def _learn(self, header: BatchHeader, batch: Buffer, segment: Segment) -> None:
        latest = self._epochs.latest_epoch
        if latest is None or header.partition_leader_epoch > latest:
            self._epochs.assign(header.partition_leader_epoch, header.base_offset)
        if header.producer_id >= 0:
            seen_ms = min(header.max_timestamp, self._now_ms)
            note(header, marker_of(header, batch, 0), self._producers, segment, seen_ms)


class _Scan:
    """Reads one segment from its beginning and adopts its batches; cuts the file at the first bad one."""

    def __init__(
        self, segment: Segment, config: LogConfig, learn: Callable[[BatchHeader, Buffer, Segment], None]
    ) -> None:
        self._segment = segment
        self._file = segment.file
        self._file_bytes = os.fstat(segment.file.fd).st_size
        self._interval = config.index_interval_bytes
        self._learn = learn
        self._data: bytes | bytearray = b""
        self._begin = 0
        self.whole = True
        """True if every byte of the file belongs to a good batch."""

    def run(self) -> int:
        """Adopt the batches, and return the offset after the last one. Raises ``OSError``."""
        segment = self._segment
        expected = segment.base_offset
        while segment.size < self._file_bytes:
            try:
                header = self._header(segment.size)
                self._check(header, expected)
            except CorruptRecord as error:
                self._cut(error)
                break
            at = segment.size - self._begin
            with memoryview(self._data) as view:
                self._learn(header, view[at : at + header.size_bytes], segment)
            segment.adopt(header, self._interval)
            expected = header.next_offset
        return expected

    def _header(self, position: int) -> BatchHeader:
        if len(self._data) - (position - self._begin) < HEADER_SIZE:
            self._fill(position, SCAN_CHUNK)
        return read_header(self._data, position - self._begin)

    def _fill(self, position: int, size: int) -> None:
        self._data = self._file.read(min(size, self._file_bytes - position), position)
        self._begin = position

    def _check(self, header: BatchHeader, expected: int) -> None:
        segment = self._segment
        position, size = segment.size, header.size_bytes
        if position + size > self._file_bytes:
            raise CorruptRecord("the file ends inside a batch")
        if header.base_offset < expected or header.last_offset_delta < 0:
            raise CorruptRecord(f"offsets {header.base_offset} to {header.last_offset} follow {expected - 1}")
        if header.last_offset >= segment.end_offset or header.last_offset - segment.base_offset > MAX_RELATIVE_OFFSET:
            raise CorruptRecord(f"offset {header.last_offset} does not belong in the segment")
        if position + size > self._begin + len(self._data):
            if size > LARGE_BATCH:
                return self._check_piecewise(header)
            self._fill(position, max(size, SCAN_CHUNK))
        return verify_crc(self._data, position - self._begin, header)

    def _check_piecewise(self, header: BatchHeader) -> None:
        """Check the checksum of a batch that is too large to be trusted and read into memory as a whole."""
        start, end = self._segment.size, self._segment.size + header.size_bytes
        position, crc = start + (ATTRIBUTES_AT if header.magic == MAGIC_V2 else MAGIC_AT), 0
        while position < end:
            piece = self._file.read(min(SCAN_CHUNK, end - position), position)
            if not piece:
                raise CorruptRecord("the file became shorter")
            crc = crc32c(piece, crc) if header.magic == MAGIC_V2 else zlib.crc32(piece, crc)
            position += len(piece)
        if crc != header.crc:
            raise CorruptRecord(f"a batch has the checksum {crc:08x}, its header says {header.crc:08x}")

    def _cut(self, error: CorruptRecord) -> None:
        segment = self._segment
        lost = self._file_bytes - segment.size
        _log.warning("cutting %d bytes off %s: %s", lost, segment.path_of(LOG_SUFFIX), error)
        os.ftruncate(self._file.fd, segment.size)
        os.fsync(self._file.fd)
        self.whole = False


def _bases(directory: Path) -> list[int]:
    """The base offsets of the segments in the directory, lowest first. Removes indexes without a segment."""
    names = {name for name in os.listdir(directory) if base_offset_of(name) is not None}
    for name in names:
        stem, _, kind = name.partition(".")
        if "." + kind in INDEX_SUFFIXES and stem + LOG_SUFFIX not in names:
            _log.warning("removing %s, which has no segment", directory / name)
            (directory / name).unlink()
    return sorted(base for name in names if name.endswith(LOG_SUFFIX) and (base := base_offset_of(name)) is not None)
