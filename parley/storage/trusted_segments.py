"""Opens the segments of a log, and decides which of them recovery must scan.

Rules (docs/storage.md has them all):

1. After a clean shutdown nothing is scanned. After a crash, every segment that extends beyond the recovery point is
   scanned. A segment with a missing or invalid index is always scanned.
2. A segment whose size, end or transaction index differs from its digest is scanned, unless Apache Kafka has written to
   it since: then all its batches are good, and the digest is removed.
3. A segment at the end of the log is scanned if the leader epoch of its last batch is unknown.
4. If a segment ends before the next one begins, the segments between them are missing.
"""

from __future__ import annotations

import logging
import os
from pathlib import Path

from parley.protocol.records.batch_header import BatchHeader
from parley.protocol.records.errors import CorruptRecord
from parley.protocol.sentinels import NO_EPOCH
from parley.storage.damage.checked_batches import CheckedBatches
from parley.storage.damage.damaged_ranges import DamagedBytes, DamagedRange
from parley.storage.damage.segment_digest import SegmentDigest, read_digest, remove_digest
from parley.storage.index import CorruptIndex
from parley.storage.loaded_log import LastKnown, LogState
from parley.storage.log_config import LogConfig
from parley.storage.readable_segment import UNSEALED
from parley.storage.segment import Segment
from parley.storage.segment_file import SegmentFile
from parley.storage.segment_names import DIGEST_SUFFIX, INDEX_SUFFIXES, LOG_SUFFIX, base_offset_of, file_name
from parley.storage.transaction_index import CorruptTransactionIndex

_log = logging.getLogger(__name__)


class OpenedSegments:
    """The segments of a log, and the findings from their files and digests. The recovery scan updates this object."""

    def __init__(self, log_start_offset: int) -> None:
        self.segments: list[Segment] = []
        """All segments, lowest offset first. Those that must be scanned are empty."""
        self.first: int | None = None
        """The base offset of the first segment that was found."""
        self.log_end = log_start_offset
        """The log end. If the last segment must be scanned, the scan finds it."""
        self.scanned: set[int] = set()
        """The base offsets of the segments that must be scanned."""
        self.whole: dict[int, SegmentDigest] = {}
        """The digests of the segments whose files have the size in the digest, by base offset."""
        self.shrunk: set[int] = set()
        """The base offsets of segments whose files differ in size from the digest."""
        self.missing: list[DamagedRange] = []
        """The ranges between segments whose batches are in no file."""


def open_segments(directory: Path, config: LogConfig, known: LastKnown, state: LogState, now_ms: int) -> OpenedSegments:
    """Open all segments in ``directory``. Blocks. Raises ``OSError``."""
    return _Opener(directory, config, known, state, now_ms).open()


class _Opener:
    """Opens the segments of one log."""

    def __init__(self, directory: Path, config: LogConfig, known: LastKnown, state: LogState, now_ms: int) -> None:
        self._directory = directory
        self._config = config
        self._known = known
        self._epochs = state.epochs
        self._recorded_damage = state.recorded_damage
        self._now_ms = now_ms
        self._found = OpenedSegments(known.log_start_offset)
        self._last_batch: BatchHeader | None = None
        """The last batch of the last segment, once ``_check_tail`` has found it."""
        self._without_transactions: set[int] = set()
        """The base offsets of segments whose transaction index differs from the digest."""

    def open(self) -> OpenedSegments:
        bases = base_offsets_in(self._directory)
        self._found.first = bases[0] if bases else None
        segments = self._found.segments
        for base, following in zip(bases, [*bases, UNSEALED][1:], strict=True):
            segment = None if self._known.unflushed(following) else self._open(base)
            if following == UNSEALED:
                segment, end = self._check_last(base, segment)
            else:
                segment, end = self._check_sealed(base, segment, following)
            if segment is None:
                segment = self._to_be_scanned(base, following)
            segment.end_offset = end
            segments.append(segment)
        self._scan_unknown_epochs(segments)
        return self._found

    def _to_be_scanned(self, base: int, following: int) -> Segment:
        """Return the segment at ``base``, empty, and mark it to be scanned. ``following`` is the base offset of the
        next segment."""
        self._found.scanned.add(base)
        trusted = not self._known.in_doubt(following) and base not in self._without_transactions
        return Segment.open_unindexed(self._directory, base, self._config, self._now_ms, keep_transactions=trusted)

    def _scan_unknown_epochs(self, segments: list[Segment]) -> None:
        """Scan the segments at the end of the log whose leader epochs are not in ``leader-epoch-checkpoint``.

        If there are such segments, the file was lost, or is older than the log. A replica that does not know the epoch
        of its last batch would not notice that its log differs from its leader's.
        """
        following = UNSEALED
        for number, segment in reversed([*enumerate(segments)]):
            base, end = segment.base_offset, segment.end_offset
            if base not in self._found.scanned and segment.size:
                last = self._last_batch if following == UNSEALED else _last_batch(segment)
                was_wrong = last is not None and self._epochs.correct(last.partition_leader_epoch, last.base_offset)
                if not was_wrong and self._knows_epoch(last):
                    return
                _log.warning("scanning %r: %s lacks the leader epoch of its last batch", segment, self._epochs.path)
                segment.release()
                segments[number] = self._to_be_scanned(base, following)
                segments[number].end_offset = end
            following = base

    def _knows_epoch(self, last: BatchHeader | None) -> bool:
        """Return True if the leader epoch of a segment's last batch is known. All earlier epochs are then known,
        because epochs never decrease."""
        if last is None:
            return False
        known = self._epochs.epoch_at(last.base_offset)
        return last.partition_leader_epoch <= (NO_EPOCH if known is None else known)

    def _check_sealed(self, base: int, segment: Segment | None, following: int) -> tuple[Segment | None, int]:
        """Compare a sealed segment's size and end with its digest. ``following`` is the base offset of the next
        segment.

        Returns the segment, or None if it must be scanned, and the offset at which it ends. The offset is below
        ``following`` if segments between the two are missing.
        """
        if self._known.in_doubt(following):
            return segment, following
        digest = read_digest(self._directory / file_name(base, DIGEST_SUFFIX))
        if digest is None or not base < digest.end_offset <= following:
            return segment, following
        size = os.stat(self._directory / file_name(base, LOG_SUFFIX)).st_size
        if segment is not None and self._was_rewritten(segment, digest, following):
            _log.info("%r was changed by another program after its digest was written: removing the digest", segment)
            remove_digest(segment.path_of(DIGEST_SUFFIX))
            return segment, following
        if digest.end_offset < following:
            self._found.missing.append(DamagedRange(digest.end_offset, following - 1, "segments are missing"))
        if size == digest.size:
            self._found.whole[base] = digest
            return self._check_transactions(segment, digest), digest.end_offset
        self._found.shrunk.add(base)
        if segment is not None:
            _log.warning("scanning %r: its digest is for %d bytes", segment, digest.size)
            segment.release()
        return None, digest.end_offset

    def _check_transactions(self, segment: Segment | None, digest: SegmentDigest) -> Segment | None:
        """Compare the transaction index of a segment with the digest. Returns None if the segment must be scanned."""
        if segment is None or digest.transactions in (None, segment.transactions.checksum()):
            return segment
        _log.warning("scanning %r: its transaction index is damaged or missing", segment)
        self._without_transactions.add(segment.base_offset)
        segment.release()
        return None

    def _was_rewritten(self, segment: Segment, digest: SegmentDigest, following: int) -> bool:
        """Return True if Apache Kafka has appended to the segment, or compacted it, since its digest was written.

        In both cases its size has changed, and all its batches are good. A segment that has become smaller must also
        lie in the compacted part of the log: otherwise its end was lost. ``following`` is the base offset of the
        next segment. Reads the whole segment.
        """
        cleaned_up_to = self._known.cleaned_up_to or 0
        if segment.size == digest.size or (segment.size < digest.size and segment.base_offset >= cleaned_up_to):
            return False
        return self._is_intact(segment.base_offset, segment.size, following)

    def _is_intact(self, base: int, size: int, end_offset: int, *, may_have_gaps: bool = True) -> bool:
        """Return True if all batches of a segment are good and, without ``may_have_gaps``, their offsets have no gaps.

        Reads the whole segment.
        """
        file = SegmentFile(self._directory / file_name(base, LOG_SUFFIX))
        expected = base
        for found in CheckedBatches(file, size, base, end_offset).walk(0, size, base):
            if isinstance(found, DamagedBytes) or (found.header.base_offset != expected and not may_have_gaps):
                return False
            expected = found.header.next_offset
        return True

    def _open(self, base: int) -> Segment | None:
        try:
            segment = Segment.open(self._directory, base, self._now_ms)
        except (CorruptIndex, CorruptTransactionIndex, FileNotFoundError) as error:
            _log.warning("rebuilding the indexes of segment %d of %s: %s", base, self._directory, error)
            return None
        segment.damage = self._recorded_damage.of(segment)
        return segment

    def _check_last(self, base: int, segment: Segment | None) -> tuple[Segment | None, int]:
        """Find the log end. After a clean shutdown, compare the log end and the last segment's size with the segment's
        digest.

        Returns the segment, or None if it must be scanned, and an upper limit of the log end; UNSEALED if it has none.
        If the segment differs from the digest but is intact, Apache Kafka has written to it since.
        """
        if segment is not None:
            segment = self._check_tail(segment)
        digest = read_digest(self._directory / file_name(base, DIGEST_SUFFIX)) if self._known.clean else None
        if digest is None or digest.end_offset <= base:
            return segment, UNSEALED
        size = os.stat(self._directory / file_name(base, LOG_SUFFIX)).st_size
        if segment is not None and (size, self._found.log_end) == (digest.size, digest.end_offset):
            self._found.whole[base] = digest
            return self._check_transactions(segment, digest), UNSEALED
        if self._is_intact(base, size, UNSEALED, may_have_gaps=size != digest.size):
            remove_digest(self._directory / file_name(base, DIGEST_SUFFIX))
            return segment, UNSEALED
        if size == digest.size:
            self._found.whole[base] = digest
        if segment is not None:
            _log.warning(
                "scanning %r: its digest is for %d bytes up to offset %d", segment, digest.size, digest.end_offset
            )
            segment.release()
        return None, digest.end_offset

    def _check_tail(self, segment: Segment) -> Segment | None:
        """Find the log end from the last batches of the last segment. Returns None unless they fill the
        file exactly."""
        last = segment.offset_index.last
        end, expected = last.position, segment.base_offset
        try:
            for position, header in segment.batches(last.position):
                if header.base_offset < expected or (
                    position == last.position > 0 and header.last_offset > last.offset
                ):
                    raise CorruptRecord(f"offset {header.base_offset} is out of place")
                end, expected, self._last_batch = position + header.size_bytes, header.next_offset, header
            if end != segment.size:
                raise CorruptRecord(f"no batch ends at byte {segment.size}")
            if segment.transactions.last_offset >= expected:
                raise CorruptRecord(f"{segment.transactions.path} goes beyond the end")
        except CorruptRecord as error:
            _log.warning("scanning the last segment of %s: %s", self._directory, error)
            segment.release()
            return None
        self._found.log_end = expected
        return segment


def _last_batch(segment: Segment) -> BatchHeader | None:
    """Return the header of a segment's last batch; None if its index or batches are damaged. Raises ``OSError``."""
    last = None
    try:
        for _, header in segment.batches(segment.offset_index.last.position):
            last = header
    except CorruptRecord:
        return None
    return last


def base_offsets_in(directory: Path) -> list[int]:
    """Return the base offsets of the segments in the directory, lowest first.

    Removes indexes without a segment, except transaction indexes: they are needed to mend a missing segment. Raises
    ``OSError``.
    """
    names = {name for name in os.listdir(directory) if base_offset_of(name) is not None}
    for name in sorted(names):
        stem, _, kind = name.partition(".")
        if "." + kind in INDEX_SUFFIXES and kind != "txnindex" and stem + LOG_SUFFIX not in names:
            _log.warning("removing an index without a segment", extra={"path": str(directory / name)})
            remove_digest(directory / name) if "." + kind == DIGEST_SUFFIX else (directory / name).unlink()
    return sorted(base for name in names if name.endswith(LOG_SUFFIX) and (base := base_offset_of(name)) is not None)
