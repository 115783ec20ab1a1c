"""Scans the segments of a log that recovery cannot trust: restores what they contain, and finds the log end.

Rules (docs/storage.md has them all):

1. A scan rebuilds the indexes of its segment, and restores leader epochs and producers from the batches. Producers are
   also restored from the batches of other segments, if their snapshots are older.
2. Bad or missing batches below the recovery point are damage, which is reported, and everything after them is kept.
   Above the recovery point, this is only true if the machine has not restarted. If it has, the log ends at the first
   bad batch, because systems write to disk in any order. A cut is synced immediately, so the next crash cannot undo it.
   Segments that end early are not damage in a directory that only Apache Kafka has used: its compaction leaves them.
3. Without a digest, a leader epoch counts as damage if the batch was not appended in it (``appended_epochs``), or, if
   that is unknown, if it does not fit between its neighbors (``altered_epochs``), unless only Apache Kafka wrote the
   log.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Sequence
from functools import partial
from pathlib import Path

from parley.protocol.records.batch_header import BatchHeader, Buffer
from parley.protocol.sentinels import NO_EPOCH
from parley.storage.checkpoints import sync_directory
from parley.storage.damage.damaged_ranges import DamagedBytes, DamagedRange, joined
from parley.storage.damage.segment_check import Extent, check
from parley.storage.leader_epoch_cache import EpochStart, epoch_at
from parley.storage.loaded_log import LastKnown, LogState
from parley.storage.log_config import LogConfig
from parley.storage.producer_recovery import replay
from parley.storage.producer_updates import marker_of
from parley.storage.readable_segment import UNSEALED
from parley.storage.segment import Segment
from parley.storage.segment_scan import Scan
from parley.storage.transaction_recovery import TransactionScan
from parley.storage.trusted_segments import OpenedSegments

_log = logging.getLogger(__name__)


class RecoveryScan:
    """Scans the segments of one log. Updates ``opened``, and ``state`` to the log end."""

    def __init__(
        self,
        directory: Path,
        config: LogConfig,
        known: LastKnown,
        state: LogState,
        opened: OpenedSegments,
        *,
        noted_epochs: Sequence[EpochStart],
        now_ms: int,
    ) -> None:
        """``noted_epochs`` are the epochs in ``leader-epoch-checkpoint``."""
        self._directory = directory
        self._config = config
        self._known = known
        self._producers = state.producers
        self._epochs = state.epochs
        self._noted_epochs = noted_epochs
        self._appended_epochs = state.appended_epochs
        self._recorded_damage = state.recorded_damage
        self._opened = opened
        self._now_ms = now_ms
        self._scanned_from = UNSEALED
        """The base offset from which on all segments are scanned. The scan finds all epochs from there on, so it may
        remove wrong ones."""
        self._scans: dict[int, Scan] = {}
        self._wrong: set[int] = set()
        """The base offsets of segments whose digest differs from their batches, which are good."""

    def run(self) -> None:
        """Scan the segments that must be scanned, restore epochs and producers, and determine the log end.

        Blocks. Raises ``OSError``.
        """
        opened, segments = self._opened, self._opened.segments
        if not segments:
            return
        start = max(self._known.log_start_offset, segments[0].base_offset)
        known_to = min(opened.scanned, default=opened.log_end)
        self._scanned_from = _start_of_suffix([each.base_offset for each in segments], opened.scanned)
        in_doubt = [each.base_offset for each in segments if self._known.unflushed(each.end_offset)]
        highest_epoch = self._known.highest_leader_epoch
        if self._epochs.latest_epoch is not None:
            highest_epoch = max(highest_epoch, self._epochs.latest_epoch)
        if in_doubt:
            self._epochs.remove_from(in_doubt[0])  # the scan finds those that start there
        self._producers.remove_stray_snapshots({segment.base_offset for segment in segments})
        replay_from = self._producers.load(start, max(known_to, start), self._now_ms)
        is_whole = segments[0].base_offset <= start and not opened.missing and not any(each.damage for each in segments)
        for number, segment in enumerate(segments):  # ``_drop`` may remove segments from the list meanwhile
            if segment.base_offset in opened.scanned:
                transactions = TransactionScan(segment.transactions.entries())
                scan = Scan(segment, self._config, partial(self._learn, transactions))
                self._scans[segment.base_offset] = scan
                ends_here = self._known.in_doubt(segment.end_offset) and not self._was_compacted_by_kafka(segment)
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
                elif segment is segments[-1] and not self._known.in_doubt(segment.end_offset):
                    self._keep_complete_batches(scan)
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

    def _keep_complete_batches(self, scan: Scan) -> None:
        """Keep the damaged batches at the end of the log, and the leader epochs in which they were appended."""
        appended, latest = self._appended_epochs.runs, self._epochs.latest_epoch
        scan.keep_complete_batches(
            lambda header: header.partition_leader_epoch == latest or epoch_at(appended, header.base_offset) is not None
        )
        for each in appended:
            if (latest is None or each.epoch > latest) and each.start_offset < scan.end:
                self._epochs.assign(each.epoch, each.start_offset)

    def _rebuild_transactions(
        self, segment: Segment, found: TransactionScan, damage: Sequence[DamagedBytes], *, is_whole: bool
    ) -> None:
        """Rebuild the transaction index of a scanned segment, unless the digest proves that it is intact."""
        digest, index = self._opened.whole.get(segment.base_offset), segment.transactions
        if digest is None or digest.transactions != index.checksum():
            index.rewrite(found.entries(damage, is_whole=is_whole))

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
            self._opened.log_end = last.end
        segments[-1].end_offset = UNSEALED

    def _is_left_over(self, previous: Segment, last: Segment) -> bool:
        """Return True if the last segment contains no good batch, and the previous segment lacks its last batches."""
        before, scan = self._scans.get(previous.base_offset), self._scans.get(last.base_offset)
        if before is None or scan is None or not scan.is_empty or not self._known.unflushed(previous.end_offset):
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
            self._opened.missing.append(
                DamagedRange(scan.end, segment.end_offset - 1, "the end of a segment is missing")
            )
            segment.end_offset = scan.end
            segment.transactions.truncate_to(scan.end)

    def _seal(self, segment: Segment) -> None:
        """Write the indexes and the digest of a scanned segment that is not the last one."""
        known = self._opened.whole.get(segment.base_offset)
        if known is not None and known.covers_headers and segment.base_offset not in self._wrong:
            segment.keep_digest(known)
        segment.trim(segment.end_offset)

    def _unlike_digest(self, segment: Segment) -> tuple[DamagedBytes, ...]:
        """Return the damage that the digest reveals, so that the scan ignores batches with wrong offsets and leader
        epochs."""
        digest = self._opened.whole.get(segment.base_offset)
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
        base, digest = segment.base_offset, self._opened.whole.get(segment.base_offset)
        has_digest = digest is not None and digest.covers_headers and base not in self._wrong
        return has_digest or self._known.highest_leader_epoch == NO_EPOCH

    def _is_honest(self, header: BatchHeader) -> bool | None:
        return self._appended_epochs.is_honest(header, self._noted_epochs)

    def _must_continue(self, segment: Segment) -> bool:
        """Return True if the batches after the last one of a sealed segment were lost, and not removed by
        compaction."""
        base = segment.base_offset
        if base in self._opened.shrunk:
            return True
        is_unknown = base not in self._opened.whole and self._known.unflushed(segment.end_offset)
        return is_unknown and not self._may_end_early(segment)

    def _may_end_early(self, segment: Segment) -> bool:
        """Return True if Apache Kafka may have removed the last batch of a segment.

        Kafka writes the offset up to which it has compacted a log only after it has compacted all segments, and may be
        killed before that.
        """
        return self._known.is_kafkas or self._was_compacted_by_kafka(segment)

    def _was_compacted_by_kafka(self, segment: Segment) -> bool:
        """Return True if Apache Kafka may have compacted, and therefore synced, a segment. Kafka also compacts above
        the recovery point."""
        return segment.end_offset <= (self._known.cleaned_up_to or 0)

    def _learn(self, transactions: TransactionScan, header: BatchHeader, batch: Buffer) -> None:
        if header.base_offset >= self._scanned_from:
            self._epochs.correct(header.partition_leader_epoch, header.base_offset)
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
