"""Mends a damaged or missing range of a log with batches of an intact replica.

A new segment is written as ``.cleaned``: the good batches before the damage, the batches of the intact replica, and the
good batches after the damage. It is scanned, compared with the digest of the old segment and synced, and then replaces
the old segment (docs/storage.md, "Replacing segments"). A crash at any moment leaves either the whole old segment or
the whole new one. A missing range becomes a separate segment. Batches of a replica that was compacted differently are
rejected if a deleted key could reappear (docs/storage.md, "Mending").
"""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import AbstractContextManager, suppress
from dataclasses import replace
from pathlib import Path
from threading import RLock
from types import TracebackType
from typing import Self

from parley.light_dataclasses import dataclass
from parley.protocol.errors import ErrorCode, KafkaError
from parley.protocol.records.batch_header import BatchHeader, Buffer, headers
from parley.protocol.records.crc import verify_crc
from parley.protocol.records.errors import CorruptRecord
from parley.protocol.sentinels import NO_EPOCH
from parley.storage.checkpoints import sync_directory
from parley.storage.damage.appended_epochs import AppendedEpochs
from parley.storage.damage.damaged_ranges import DamagedBytes, DamagedRange, joined
from parley.storage.damage.log_integrity import LogIntegrity
from parley.storage.damage.segment_check import Extent, check
from parley.storage.durability import Durability
from parley.storage.index import MAX_RELATIVE_OFFSET
from parley.storage.leader_epoch_cache import LeaderEpochCache
from parley.storage.log_config import LogConfig
from parley.storage.producer_recovery import replay
from parley.storage.producer_state import ProducerState
from parley.storage.producer_updates import marker_of
from parley.storage.segment import Segment
from parley.storage.segment_file import SCAN_CHUNK, SegmentFile
from parley.storage.segment_names import CLEANED, LOG_SUFFIX, SWAP, TRANSACTION_INDEX_SUFFIX, path_in, paths_in
from parley.storage.segment_scan import Scan
from parley.storage.segments import Segments
from parley.storage.transaction_recovery import TransactionScan


class CompactedOtherwise(CorruptRecord):
    """Raised if the two replicas were compacted differently: one lacks tombstones for records in the other, so that
    deleted keys could reappear."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MendedLog:
    """The parts of a log that ``Mending`` needs: its state at the start, and callbacks."""

    config: LogConfig
    segments: Segments
    integrity: LogIntegrity
    durability: Durability
    producers: ProducerState
    epochs: LeaderEpochCache
    appended_epochs: AppendedEpochs
    tombstones_removed_up_to: int
    lock: RLock
    removal_lock: RLock
    now_ms: int
    writing: Callable[[], AbstractContextManager[None]]
    """Returns a context manager that reports a disk failure inside its block and raises it as KAFKA_STORAGE_ERROR. If
    the disk is only full, it raises without reporting."""
    is_closed: Callable[[], bool]
    ended: Callable[[], None]
    """Called once when the mending has ended."""


class Mending:
    """The mending of ``damaged``. Add batches from ``next_offset`` on, then call ``finish``. Leaving the ``with`` block
    before that abandons the mending.

    ``old`` is the segment that contains the damage, and ``found`` its damaged bytes; both are None if the range is
    missing. Every method blocks and, like the constructor, raises KAFKA_STORAGE_ERROR if the disk fails; only
    ``abandon`` raises ``OSError``. If segments are removed or the log is truncated meanwhile, ``finish`` raises
    KAFKA_STORAGE_ERROR, too.
    """

    def __init__(self, log: MendedLog, damaged: DamagedRange, old: Segment | None, found: DamagedBytes | None) -> None:
        self.damaged = damaged
        self.next_offset = damaged.first_offset
        """The offset from which the next batch is needed."""
        self.lacks_tombstones = False
        """Set by the caller: True if compaction of the other replica may have removed tombstones from the added
        batches, or between them."""
        self._log = log
        self._old = old
        self._found = found
        self._removals = log.durability.removals
        self._base = old.base_offset if old is not None else damaged.first_offset
        self._epoch = log.epochs.epoch_at(damaged.first_offset - 1) if damaged.first_offset else None
        later = (entry.epoch for entry in log.epochs.entries if entry.start_offset > damaged.last_offset)
        self._last_epoch = next(later, log.epochs.latest_epoch)
        self._size = 0
        self._is_open = True
        try:
            with log.writing():
                path = path_in(log.segments.directory, self._base, LOG_SUFFIX + CLEANED)
                self._file = SegmentFile(path, create=True)
                os.ftruncate(self._file.fd, 0)
                if old is not None and found is not None:
                    self._copy(old, 0, found.position)
        except BaseException:
            self.abandon()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.abandon()

    @property
    def is_complete(self) -> bool:
        """True if the range needs no more batches."""
        return self.next_offset > self.damaged.last_offset

    @property
    def is_full(self) -> bool:
        """True if a missing range needs more than one segment: call ``finish``, then mend the rest of the range."""
        if self._found is not None:
            return False
        too_far = self.next_offset - self._base > MAX_RELATIVE_OFFSET
        return self._size >= self._log.config.segment_bytes or too_far

    def add(self, batches: Buffer) -> int:
        """Add the next batches of the range, starting at ``next_offset``. Returns the number of bytes added.

        Batches outside the range, and an incomplete batch at the end, are left out. Raises ``KafkaError``:
        CORRUPT_MESSAGE (a wrong checksum, a gap, a batch that overlaps intact records, a leader epoch that is out of
        order), KAFKA_STORAGE_ERROR. After CORRUPT_MESSAGE, the caller may continue with the batches of another replica.
        """
        view, used = memoryview(batches), 0
        for at, header in headers(batches):
            if self.is_complete or self.is_full or header.base_offset > self.damaged.last_offset:
                break
            if header.last_offset < self.next_offset:
                continue
            self._check(batches, at, header)
            with self._log.writing():
                self._write(view[at : at + header.size_bytes])
            self._epoch = max(header.partition_leader_epoch, NO_EPOCH if self._epoch is None else self._epoch)
            self.next_offset = header.next_offset
            used += header.size_bytes
        return used

    def skip_to(self, offset: int) -> None:
        """Continue at ``offset``, because the intact replica has no batch in [``next_offset``, ``offset``)."""
        self.next_offset = max(self.next_offset, min(offset, self.damaged.last_offset + 1))

    def finish(self) -> list[Path]:
        """Put the new segment in place. Returns the renamed files of the old segment, to be removed later.

        If ``is_complete`` is False, the rest of a missing range stays missing. Raises ``KafkaError``: CORRUPT_MESSAGE
        if the batches differ from the original ones (``CompactedOtherwise`` if a deleted key could reappear), or
        KAFKA_STORAGE_ERROR. Raises ``ValueError`` if damaged bytes have not been replaced completely.
        """
        if self._found is not None and not self.is_complete:
            raise ValueError(f"{self.damaged} is mended only up to {self.next_offset}")
        try:
            return self._finish()
        finally:
            self.abandon()

    def abandon(self) -> None:
        """End the mending. The log remains unchanged, unless ``finish`` was called before. Idempotent. Raises
        ``OSError``."""
        if self._is_open:
            self._is_open = False
            try:
                for path in paths_in(self._log.segments.directory, self._base, CLEANED):
                    path.unlink(missing_ok=True)
            finally:
                self._log.ended()

    # --- Internals ---

    def _check(self, batches: Buffer, at: int, header: BatchHeader) -> None:
        verify_crc(batches, at, header)
        first, last = header.base_offset, header.last_offset
        if first != self.next_offset or last < first:
            raise CorruptRecord(f"offsets {first} to {last} do not continue at {self.next_offset}")
        if last > self.damaged.last_offset:
            raise CorruptRecord(f"offsets {first} to {last} overlap intact records after {self.damaged.last_offset}")
        epoch = header.partition_leader_epoch
        if epoch >= 0 and (
            (self._epoch is not None and epoch < self._epoch)
            or (self._last_epoch is not None and epoch > self._last_epoch)
        ):
            raise CorruptRecord(f"leader epoch {epoch} is not between {self._epoch} and {self._last_epoch}")

    def _copy(self, source: Segment, begin: int, end: int) -> None:
        while begin < end:
            piece = source.file.read(min(SCAN_CHUNK, end - begin), begin)
            if not piece:
                raise CorruptRecord(f"{source!r} has become shorter")
            self._write(piece)
            begin += len(piece)

    def _write(self, data: Buffer) -> None:
        written = 0
        while written < len(data):
            written += os.pwrite(self._file.fd, memoryview(data)[written:], self._size + written)
        self._size += len(data)

    def _finish(self) -> list[Path]:
        log = self._log
        mended = self._size
        with log.writing():
            if self._old is not None and self._found is not None:
                self._copy(self._old, self._found.end, self._old.size)
            new = self._scanned(mended)
            new.sync(indexes=True)
            epochs = self._epochs_in(new)
        with log.removal_lock, log.writing():
            return self._replace(new, epochs)

    def _replace(self, new: Segment, epochs: list[tuple[int, int]]) -> list[Path]:
        """Carry out the steps of docs/storage.md, "Replacing segments". Syncs run between them, without the
        log's lock."""
        log, directory = self._log, self._log.segments.directory
        with log.lock:
            if self._removals != log.durability.removals or log.is_closed():
                new.delete()
                raise KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, f"{self.damaged} was changed while it was mended")
        try:
            if new.damage:  # at other positions than in the old segment
                log.integrity.record(new)
            new.rename(SWAP)
            sync_directory(directory)
        except OSError:
            with suppress(OSError):
                new.delete()  # otherwise the next startup would put the file in place, even if the log has changed
            raise
        with log.lock:
            removed = log.segments.put_in_place(new, self._old)
            for epoch, start_offset in epochs:
                log.epochs.insert(epoch, start_offset)
            if self._found is None:
                log.integrity.restored(self.damaged, self.next_offset)
        sync_directory(directory)
        with log.lock:
            log.segments.settle([new])
        sync_directory(directory)
        log.integrity.record()
        return removed

    def _scanned(self, mended: int) -> Segment:
        """Return the new segment, indexed and verified. The added batches end at byte ``mended``."""
        log, old, found = self._log, self._old, self._found
        end_offset = self.next_offset if old is None or found is None else old.end_offset
        directory, transactions = log.segments.directory, TRANSACTION_INDEX_SUFFIX
        with suppress(FileNotFoundError):
            source = path_in(directory, self._base, transactions)
            path_in(directory, self._base, transactions + CLEANED).write_bytes(source.read_bytes())
        new = Segment.open_unindexed(directory, self._base, log.config, log.now_ms, CLEANED, keep_transactions=True)
        new.end_offset = end_offset
        producers, aborted = self._producers_before(), TransactionScan(new.transactions.entries())

        def learn(header: BatchHeader, batch: Buffer) -> None:
            if header.producer_id >= 0:
                aborted.note(header, marker_of(header, batch, 0), producers, log.now_ms)

        scan = Scan(new, log.config, learn)
        scan.run(past_damage=True)
        if scan.tail is not None:
            new.skip(scan.tail)
        is_same = old is not None and found is not None and self._compare(new, old, found, mended)
        if not is_same and (self.lacks_tombstones or log.tombstones_removed_up_to > self.damaged.last_offset + 1):
            raise CompactedOtherwise(f"cannot mend {self.damaged}: the other replica was compacted differently")
        new.transactions.rewrite(aborted.entries(new.damage, is_whole=False))
        new.seal(end_offset)
        return new

    def _producers_before(self) -> ProducerState:
        """Return the producers as of the start of the new segment, from which the segment's transaction index is
        rebuilt."""
        producers, known_to = self._log.producers.as_of(self._base, self._log.now_ms)
        for segment in self._log.segments.all:
            if segment.end_offset > known_to and segment.base_offset < self._base:
                replay(segment, known_to, producers, self._log.now_ms)
        return producers

    def _compare(self, new: Segment, old: Segment, found: DamagedBytes, mended: int) -> bool:
        """Carry over the other damage of the old segment, and its digest if the new segment matches the digest.

        Returns True if the digest proves that the batches are the original ones.
        """
        shift = mended - found.end
        others = [
            each
            if each.position < found.position
            else replace(each, position=each.position + shift, end=each.end + shift)
            for each in old.damage
            if each != found
        ]
        new.damage = joined(new.damage, others)
        # Compactions of two replicas keep the same records, in batches that may differ.
        may_differ = self._log.config.compact
        log, digest = self._log, old.digest()
        if digest is None or digest.size != new.size or not digest.covers_headers:
            if new.damage:
                new.forget_digest()
            return False
        extent = Extent(new.size, new.end_offset, digest, log.epochs, log.appended_epochs)
        checked = check(new, found.position, mended, extent)
        differs = any(each.position < mended and found.position < each.end for each in checked.damage)
        if not differs and not checked.is_digest_wrong:
            new.keep_digest(digest)
            return True
        if not may_differ:
            raise CorruptRecord(f"the batches of {self.damaged} differ from the digest of {old!r}")
        if new.damage:
            new.forget_digest()
        return False

    def _epochs_in(self, new: Segment) -> list[tuple[int, int]]:
        """Return the leader epochs of the batches in the range, each with the offset of its first batch."""
        found: list[tuple[int, int]] = []
        for _, header in new.batches():
            if self.damaged.first_offset <= header.base_offset <= self.damaged.last_offset:
                epoch = header.partition_leader_epoch
                if not found or found[-1][0] != epoch:
                    found.append((epoch, header.base_offset))
        return found
