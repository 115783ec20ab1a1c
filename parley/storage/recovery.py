"""Opens a log: turns the files in its directory into segments whose batches, indexes, epochs and producers agree.

Rules (docs/storage.md has them all):

1. After a clean shutdown nothing is scanned. After a crash, every segment that extends beyond the recovery point is
   scanned. A segment with a missing or invalid index is always scanned. A scan rebuilds the indexes.
2. Bad or missing batches below the recovery point are damage, which is reported, and everything after them is kept.
   Above the recovery point, this is only true if the machine has not restarted. If it has, the log ends at the first
   bad batch, because systems write to disk in any order. A cut is synced immediately, so the next crash cannot undo it.
   Segments that end early are not damage in a directory that only Apache Kafka has used: its compaction leaves them.
3. Leader epochs and producers are restored from the batches. Without a digest, a leader epoch counts as damage if the
   batch was not appended in it (``appended_epochs``), or, if that is unknown, if it does not fit between its neighbors
   (``altered_epochs``), unless only Apache Kafka wrote the log.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Collection, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

from parley.protocol.records.batch_header import BatchHeader, Buffer
from parley.protocol.records.errors import CorruptRecord
from parley.protocol.sentinels import NO_EPOCH
from parley.storage.checkpoints import sync_directory
from parley.storage.damage.checked_batches import CheckedBatches
from parley.storage.damage.damaged_ranges import DamagedBytes, DamagedRange, joined
from parley.storage.damage.segment_check import Extent, check
from parley.storage.damage.segment_digest import SegmentDigest, read_digest, remove_digest
from parley.storage.index import CorruptIndex
from parley.storage.log_config import LogConfig
from parley.storage.log_state import LastKnown, LoadedLog, LogState
from parley.storage.producer_recovery import replay
from parley.storage.producer_updates import marker_of
from parley.storage.readable_segment import UNSEALED
from parley.storage.segment import Segment
from parley.storage.segment_file import SegmentFile
from parley.storage.segment_names import DIGEST_SUFFIX, INDEX_SUFFIXES, LOG_SUFFIX, base_offset_of, file_name
from parley.storage.segment_scan import Scan
from parley.storage.swap_recovery import settle
from parley.storage.transaction_index import CorruptTransactionIndex
from parley.storage.transaction_recovery import TransactionScan

_log = logging.getLogger(__name__)


def with_log_start(known: LastKnown, directory: Path, state: LogState) -> LastKnown:
    """Return ``known`` with the log start from the leader epochs, if no checkpoint contains a log start and the epochs
    start before the first segment.

    A broker that is killed soon after its first startup has no checkpoint. Retention writes the checkpoint before it
    removes files. Without a checkpoint, retention has therefore removed no segments, and those that the epochs show are
    missing.
    """
    bases = _bases(directory)
    starts = [entries[0].start_offset for entries in (state.epochs.entries, state.appended_epochs.runs) if entries]
    is_parleys = known.highest_leader_epoch != NO_EPOCH  # Apache Kafka writes no checkpoint for most log starts
    if known.knows_log_start or not is_parleys or not bases or not starts or min(starts) >= bases[0]:
        return known
    return replace(known, log_start_offset=min(starts), knows_log_start=True)


def _retention_deleted(deleted: Sequence[int], first: int, known: LastKnown) -> bool:
    """Return True if the log starts at ``first`` because of an interrupted deletion of segments, whose base offsets are
    ``deleted``.

    A compaction also deletes segments, but new ones replace them: if the new ones do not exist, they are missing.
    Parley writes the log start before retention deletes a segment. Apache Kafka does not.
    """
    compacted = 0 if known.is_kafkas or known.cleaned_up_to is None else known.cleaned_up_to
    return any(compacted <= base < first for base in deleted)


def load(directory: Path, config: LogConfig, known: LastKnown, state: LogState, now_ms: int) -> LoadedLog:
    """Open the log in ``directory``; an empty directory becomes an empty log at the log start offset.

    Updates ``state`` to the log end. Blocks. Raises ``OSError``.
    """
    deleted = settle(directory)
    loader = _Loader(directory, config, with_log_start(known, directory, state), state, now_ms)
    if not deleted:
        loader.remove_what_follows_nothing()
    segments = loader.open_segments()
    loader.correct_log_start(segments)
    loader.repair(segments)
    loader.remove_what_ends_before_log_start(segments)
    was_found = bool(segments)
    if not segments:
        segments = [loader.new_segment()]
    if segments[-1].base_offset in loader.scanned:
        remove_digest(segments[-1].path_of(DIGEST_SUFFIX))  # the segment takes appends again
    for segment in segments:
        segment.rest()
    log_start, missing = loader.find_log_start(deleted)
    loader.limit_state(log_start)
    known, log_end = loader.known, loader.log_end
    if log_end < known.recovery_point:
        lost = f"{directory} ends at {log_end}, but had been synced up to {known.recovery_point}"
        _log.error("%s: the disk has lost records, or files were removed", lost)
    whole = known.clean and not loader.scanned
    return LoadedLog(
        tuple(segments),
        log_start,
        log_end,
        log_end if whole else min(known.recovery_point, log_end),
        state,
        tuple(missing),
        known.cleaned_up_to if known.cleaned_up_to is not None and known.cleaned_up_to <= log_end else None,
        whole and was_found,
    )


class _Loader:
    """Opens one log."""

    def __init__(self, directory: Path, config: LogConfig, known: LastKnown, state: LogState, now_ms: int) -> None:
        self._directory = directory
        self._config = config
        self.known = known
        self._producers = state.producers
        self._epochs = state.epochs
        self._epochs_noted = state.epochs.entries
        """The epochs in ``leader-epoch-checkpoint``."""
        self._appended_epochs = state.appended_epochs
        self._recorded_damage = state.recorded_damage
        self._now_ms = now_ms
        self.scanned: set[int] = set()
        """The base offsets of the segments that must be scanned."""
        self._scanned_from = UNSEALED
        """The lowest base offset at and after which all segments are scanned. The scan finds all epochs from there on,
        so it may remove wrong ones."""
        self._missing: list[DamagedRange] = []
        """The ranges between segments whose batches are in no file."""
        self.log_end = known.log_start_offset
        self._last_batch: BatchHeader | None = None
        """The last batch of the last segment, once ``_check_tail`` has found it."""
        self._first: int | None = None
        """The base offset of the first segment that was found."""
        self._scans: dict[int, Scan] = {}
        self._whole: dict[int, SegmentDigest] = {}
        """The digests of the segments whose files have the size in the digest, by base offset."""
        self._wrong: set[int] = set()
        """The base offsets of segments whose digest differs from their batches, which are good."""
        self._shrunk: set[int] = set()
        """The base offsets of segments whose files have another size than the digest contains."""
        self._without_transactions: set[int] = set()
        """The base offsets of segments whose transaction index differs from the digest."""

    def remove_what_follows_nothing(self) -> None:
        """Remove all segments of a log that was never synced, if a crash lost its first segment.

        Not called if there are ``.deleted`` files: retention, which also removes the first segments, leaves them until
        the recovery point is written.
        """
        start = self.known.log_start_offset
        if self.known.clean or self.known.recovery_point > start:
            return
        bases = _bases(self._directory)
        if not bases or bases[0] <= start:
            return
        if self.known.same_boot or any(entry.start_offset >= bases[0] for entry in self._epochs.entries[:1]):
            return  # files were removed; or the log started here, and only the checkpoints were lost
        _log.warning("%s lost its segments from %d to %d: deleting the rest", self._directory, start, bases[0] - 1)
        for path in sorted(self._directory.iterdir()):
            if base_offset_of(path.name) in bases:
                remove_digest(path) if path.suffix == DIGEST_SUFFIX else path.unlink()
        sync_directory(self._directory)

    def open_segments(self) -> list[Segment]:
        """Open all segments. Segments whose files cannot be trusted are returned empty, and will be scanned."""
        bases = _bases(self._directory)
        self._first = bases[0] if bases else None
        segments = []
        for base, following in zip(bases, [*bases, UNSEALED][1:], strict=True):
            segment = None if self._unflushed(following) else self._open(base)
            if following == UNSEALED:
                segment, end = self._check_last(base, segment)
            else:
                segment, end = self._check_sealed(base, segment, following)
            if segment is None:
                segment = self._to_be_scanned(base, following)
            segment.end_offset = end
            segments.append(segment)
        self._scan_unknown_epochs(segments)
        return segments

    def _to_be_scanned(self, base: int, following: int) -> Segment:
        """Return the segment at ``base``, empty, and mark it to be scanned. ``following`` is the base offset of the
        next segment."""
        self.scanned.add(base)
        trusted = not self._in_doubt(following) and base not in self._without_transactions
        return Segment.open_unindexed(self._directory, base, self._config, self._now_ms, keep_transactions=trusted)

    def _scan_unknown_epochs(self, segments: list[Segment]) -> None:
        """Scan the segments at the end of the log whose leader epochs are not in ``leader-epoch-checkpoint``.

        If there are such segments, the file was lost, or is older than the log. A replica that does not know the epoch
        of its last batch would not notice that its log differs from its leader's.
        """
        following = UNSEALED
        for number, segment in reversed([*enumerate(segments)]):
            base, end = segment.base_offset, segment.end_offset
            if base not in self.scanned and segment.size:
                last = self._last_batch if following == UNSEALED else _last_batch(segment)
                if not self._remove_wrong_epochs(last) and self._knows_epoch(last):
                    return
                _log.warning("scanning %r: %s lacks the leader epoch of its last batch", segment, self._epochs.path)
                segment.release()
                segments[number] = self._to_be_scanned(base, following)
                segments[number].end_offset = end
            following = base

    def _remove_wrong_epochs(self, last: BatchHeader | None) -> bool:
        """Remove the entries of ``leader-epoch-checkpoint`` that a segment's last batch contradicts, and all later
        entries. Returns True if there were any.

        A contradicted entry has a higher epoch for the batch's offset than the batch. Otherwise this broker, as a
        leader, would send its followers wrong end offsets of epochs, and they would conclude that their logs diverge.
        """
        if last is None:
            return False
        known, found = self._epochs.epoch_at(last.base_offset), last.partition_leader_epoch
        if known is None or not NO_EPOCH < found < known:
            return False
        _log.warning(
            "%s is wrong: it has leader epoch %d for offset %d, whose batch has %d",
            self._epochs.path, known, last.base_offset, found,
        )  # fmt: skip
        self._epochs.remove_above(found, last.base_offset)
        return True

    def _knows_epoch(self, last: BatchHeader | None) -> bool:
        """Return True if the leader epoch of a segment's last batch is known. All earlier epochs are then known,
        because epochs never decrease."""
        if last is None:
            return False
        known = self._epochs.epoch_at(last.base_offset)
        return last.partition_leader_epoch <= (NO_EPOCH if known is None else known)

    def _in_doubt(self, end_offset: int) -> bool:
        """Return True if a crash of the machine may have lost any part of the segment that ends at ``end_offset``."""
        return self._unflushed(end_offset) and not self.known.same_boot

    def _check_sealed(self, base: int, segment: Segment | None, following: int) -> tuple[Segment | None, int]:
        """Compare a sealed segment's size and end with its digest. ``following`` is the base offset of the next
        segment.

        Returns the segment, or None if it must be scanned, and the offset at which it ends. The offset is below
        ``following`` if segments between the two are missing.
        """
        if self._in_doubt(following):
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
            self._missing.append(DamagedRange(digest.end_offset, following - 1, "segments are missing"))
        if size == digest.size:
            self._whole[base] = digest
            return self._check_transactions(segment, digest), digest.end_offset
        self._shrunk.add(base)
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

        Then its size has changed, and all its batches are good. A segment that has become smaller must also lie in the
        compacted part of the log: otherwise its end was lost. ``following`` is the base offset of the next segment.
        Reads the whole segment.
        """
        cleaned_up_to = self.known.cleaned_up_to or 0
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

    def _unflushed(self, end_offset: int) -> bool:
        """Return True if the last shutdown was not clean and the segment that ends at ``end_offset`` was not synced."""
        return not self.known.clean and end_offset > self.known.recovery_point

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
        digest = read_digest(self._directory / file_name(base, DIGEST_SUFFIX)) if self.known.clean else None
        if digest is None or digest.end_offset <= base:
            return segment, UNSEALED
        size = os.stat(self._directory / file_name(base, LOG_SUFFIX)).st_size
        if segment is not None and (size, self.log_end) == (digest.size, digest.end_offset):
            self._whole[base] = digest
            return self._check_transactions(segment, digest), UNSEALED
        if self._is_intact(base, size, UNSEALED, may_have_gaps=size != digest.size):
            remove_digest(self._directory / file_name(base, DIGEST_SUFFIX))
            return segment, UNSEALED
        if size == digest.size:
            self._whole[base] = digest
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
        self.log_end = expected
        return segment

    def correct_log_start(self, segments: Sequence[Segment]) -> None:
        """Ignore a log start above the log end, unless a crash of the machine may have lost the end of the log."""
        known = self.known
        if segments and (known.clean or known.same_boot) and known.log_start_offset > self.log_end:
            _log.error(
                "%s ends at %d, so its log start cannot be %d: the checkpoint of log start offsets is damaged. The log "
                "begins at its first segment",
                self._directory,
                self.log_end,
                known.log_start_offset,
            )
            self.known = replace(known, log_start_offset=segments[0].base_offset)

    def repair(self, segments: list[Segment]) -> None:
        """Scan the segments that must be scanned, restore epochs and producers, and determine the log end."""
        if not segments:
            return
        start = max(self.known.log_start_offset, segments[0].base_offset)
        known_to = min(self.scanned, default=self.log_end)
        self._scanned_from = _start_of_suffix([each.base_offset for each in segments], self.scanned)
        in_doubt = [each.base_offset for each in segments if self._unflushed(each.end_offset)]
        highest_epoch = self.known.highest_leader_epoch
        if self._epochs.latest_epoch is not None:
            highest_epoch = max(highest_epoch, self._epochs.latest_epoch)
        if in_doubt:
            self._epochs.truncate_from_end(in_doubt[0])
        self._producers.remove_stray_snapshots({segment.base_offset for segment in segments})
        replay_from = self._producers.load(start, max(known_to, start), self._now_ms)
        is_whole = segments[0].base_offset <= start and not self._missing and not any(each.damage for each in segments)
        for number, segment in enumerate(segments):  # ``_drop`` may remove segments from the list meanwhile
            if segment.base_offset in self.scanned:
                transactions = TransactionScan(segment.transactions.entries())
                scan = Scan(segment, self._config, partial(self._learn, transactions))
                self._scans[segment.base_offset] = scan
                ends_here = self._in_doubt(segment.end_offset) and not self._was_compacted_by_kafka(segment)
                scan.run(
                    past_damage=not ends_here,
                    known=joined(self._recorded_damage.of(segment), self._unlike_digest(segment)),
                    is_honest=self._is_honest,
                    highest_epoch=None if self._are_epochs_covered(segment) else highest_epoch,
                    epoch_before=self._epochs.epoch_at(segment.base_offset - 1),
                )
                is_followed = segment.end_offset in (scan.end, UNSEALED) or self._may_end_early(segment)
                if ends_here and (scan.tail is not None or not is_followed):
                    self._drop(segments, number + 1)
                damage = segment.damage
                if scan.tail is not None and segment is not segments[-1]:  # else ``_settle_end`` removes the tail
                    damage = (*damage, scan.tail)
                self._rebuild_transactions(segment, transactions, damage, is_whole=is_whole)
                is_whole = is_whole and not damage
            elif replay_from < segment.end_offset and (replay_from < known_to or segment.base_offset > known_to):
                is_whole = replay(segment, replay_from, self._producers, self._now_ms) and is_whole
        self._settle_end(segments)
        sealed = [segment for segment in segments[:-1] if segment.base_offset in self._scans]
        for segment in sealed:
            self._close_gap(self._scans[segment.base_offset])
        # Before the new indexes and digests, which make another scan unnecessary.
        self._recorded_damage.record(segments)
        for segment in sealed:
            self._seal(segment)
            if segment.end_offset == segment.base_offset:  # the whole segment is missing
                segment.delete()
                segments.remove(segment)

    def _rebuild_transactions(
        self, segment: Segment, found: TransactionScan, damage: Sequence[DamagedBytes], *, is_whole: bool
    ) -> None:
        """Rebuild the transaction index of a scanned segment, unless the digest proves that it is intact."""
        digest, index = self._whole.get(segment.base_offset), segment.transactions
        if digest is None or digest.transactions != index.checksum():
            index.rewrite(found.entries(damage, is_whole=is_whole))

    def remove_what_ends_before_log_start(self, segments: list[Segment]) -> None:
        """Delete all segments of a log that ends before its log start."""
        log_start, log_end = self.known.log_start_offset, self.log_end
        if segments and log_start > log_end:
            _log.warning(
                "%s ends at %d, before its log start %d: deleting all of it", self._directory, log_end, log_start
            )
            while segments:
                segments.pop().delete()

    def new_segment(self) -> Segment:
        """Create the first segment of an empty log."""
        start = self.log_end = self.known.log_start_offset
        segment = Segment.create(self._directory, start, self._config, self._now_ms)
        self._producers.truncate_fully(start)
        self._epochs.clear()
        return segment

    def find_log_start(self, deleted: Sequence[int]) -> tuple[int, list[DamagedRange]]:
        """Return the log start, and the ranges after it whose batches are in no file.

        ``deleted`` contains the base offsets of segments whose deletion was interrupted.
        """
        start = self.known.log_start_offset
        missing = [each for each in self._missing if start <= each.last_offset < self.log_end]
        first = start if self._first is None else self._first
        if start < first and self.known.knows_log_start and not _retention_deleted(deleted, first, self.known):
            return start, [DamagedRange(start, first - 1, "the first segments are missing"), *missing]
        return max(start, first), missing

    def limit_state(self, log_start: int) -> None:
        """Remove everything about offsets outside the log from the state."""
        self._epochs.truncate_from_end(self.log_end)
        self._appended_epochs.truncate_from_end(self.log_end)
        self._epochs.truncate_from_start(log_start)
        self._producers.on_log_start_advanced(log_start)

    def _drop(self, segments: list[Segment], keep: int) -> None:
        segments[keep - 1].end_offset = UNSEALED
        while len(segments) > keep:
            dropped = segments.pop()
            _log.warning("deleting %r: it begins after the end of %s", dropped, self._directory)
            dropped.delete()
        sync_directory(self._directory)

    def _settle_end(self, segments: list[Segment]) -> None:
        """End the log after its last good batch."""
        while len(segments) > 1 and self._is_left_over(segments[-2], segments[-1]):
            self._drop(segments, len(segments) - 1)
        last = self._scans.get(segments[-1].base_offset)
        if last is not None:
            last.cut()
            self.log_end = last.end
        segments[-1].end_offset = UNSEALED

    def _is_left_over(self, previous: Segment, last: Segment) -> bool:
        """Return True if the last segment contains no good batch, and the previous segment lacks its last batches."""
        before, scan = self._scans.get(previous.base_offset), self._scans.get(last.base_offset)
        if before is None or scan is None or not scan.is_empty or not self._unflushed(previous.end_offset):
            return False
        if before.tail is None and self._may_end_early(previous):
            return False
        return before.tail is not None or before.end < previous.end_offset

    def _close_gap(self, scan: Scan) -> None:
        """Set the end of a scanned segment that is not the last one, and record the batches that are missing there."""
        segment = scan.segment
        if scan.tail is not None:
            segment.skip(scan.tail)
        elif scan.end < segment.end_offset and self._must_continue(segment):
            self._missing.append(DamagedRange(scan.end, segment.end_offset - 1, "the end of a segment is missing"))
            segment.end_offset = scan.end
            segment.transactions.truncate_to(scan.end)

    def _seal(self, segment: Segment) -> None:
        """Write the indexes and the digest of a scanned segment that is not the last one."""
        known = self._whole.get(segment.base_offset)
        if known is not None and known.covers_headers and segment.base_offset not in self._wrong:
            segment.keep_digest(known)
        segment.trim(segment.end_offset)

    def _unlike_digest(self, segment: Segment) -> tuple[DamagedBytes, ...]:
        """Return the damage that the digest reveals, so that the scan ignores batches with wrong offsets and leader
        epochs."""
        digest = self._whole.get(segment.base_offset)
        if digest is None:
            return ()
        extent = Extent(digest.size, segment.end_offset, digest, self._epochs, self._appended_epochs)
        checked = check(segment, 0, digest.size, extent)
        if checked.is_digest_wrong:
            _log.warning("the digest of %r is wrong: rewriting it", segment)
            self._wrong.add(segment.base_offset)
        return checked.damage

    def _are_epochs_covered(self, segment: Segment) -> bool:
        """Return True if leader epochs need no check, because the digest covers them or only Apache Kafka wrote the
        log."""
        base, digest = segment.base_offset, self._whole.get(segment.base_offset)
        has_digest = digest is not None and digest.covers_headers and base not in self._wrong
        return has_digest or self.known.highest_leader_epoch == NO_EPOCH

    def _is_honest(self, header: BatchHeader) -> bool | None:
        return self._appended_epochs.is_honest(header, self._epochs_noted)

    def _must_continue(self, segment: Segment) -> bool:
        """Return True if the batches after the last one of a sealed segment were lost, and not removed by
        compaction."""
        base = segment.base_offset
        if base in self._shrunk:
            return True
        is_unknown = base not in self._whole and self._unflushed(segment.end_offset)
        return is_unknown and not self._may_end_early(segment)

    def _may_end_early(self, segment: Segment) -> bool:
        """Return True if Apache Kafka may have removed the last batch of a segment.

        Kafka writes the offset up to which it has compacted a log only after it has compacted all segments, and may be
        killed before that.
        """
        return self.known.is_kafkas or self._was_compacted_by_kafka(segment)

    def _was_compacted_by_kafka(self, segment: Segment) -> bool:
        """Return True if Apache Kafka may have compacted, and therefore synced, a segment. Kafka also compacts above
        the recovery point."""
        return segment.end_offset <= (self.known.cleaned_up_to or 0)

    def _learn(self, transactions: TransactionScan, header: BatchHeader, batch: Buffer) -> None:
        if header.base_offset >= self._scanned_from:
            self._remove_wrong_epochs(header)
        latest, epoch = self._epochs.latest_epoch, header.partition_leader_epoch
        if latest is None or epoch > latest:
            self._epochs.assign(epoch, header.base_offset)
        elif header.base_offset >= self._scanned_from:
            self._epochs.insert(epoch, header.base_offset)  # a later, wrong epoch is removed when the scan reaches it
        if header.producer_id >= 0:
            seen_ms = min(header.max_timestamp, self._now_ms)
            transactions.note(header, marker_of(header, batch, 0), self._producers, seen_ms)


def _start_of_suffix(bases: Sequence[int], scanned: Collection[int]) -> int:
    """Return the lowest base offset such that it and all higher ones are in ``scanned``; UNSEALED if the last is
    not."""
    start = UNSEALED
    for base in reversed(bases):
        if base not in scanned:
            break
        start = base
    return start


def _last_batch(segment: Segment) -> BatchHeader | None:
    """Return the header of a segment's last batch; None if its index or batches are damaged. Raises ``OSError``."""
    last = None
    try:
        for _, header in segment.batches(segment.offset_index.last.position):
            last = header
    except CorruptRecord:
        return None
    return last


def _bases(directory: Path) -> list[int]:
    """Return the base offsets of the segments in the directory, lowest first.

    Removes indexes without a segment, except transaction indexes: they are needed to mend a missing segment.
    """
    names = {name for name in os.listdir(directory) if base_offset_of(name) is not None}
    for name in sorted(names):
        stem, _, kind = name.partition(".")
        if "." + kind in INDEX_SUFFIXES and kind != "txnindex" and stem + LOG_SUFFIX not in names:
            _log.warning("removing an index without a segment", extra={"path": str(directory / name)})
            remove_digest(directory / name) if "." + kind == DIGEST_SUFFIX else (directory / name).unlink()
    return sorted(base for name in names if name.endswith(LOG_SUFFIX) and (base := base_offset_of(name)) is not None)
