"""One segment of a log: a ``.log`` file of batches, its indexes, its transaction index, and its digest.

Rules:

1. Only the last segment of a log takes appends. Sealing a segment fixes its end, records its largest timestamp and
   trims preallocated space. After that, its batches do not change; its files may be renamed or removed.
2. ``size`` counts whole batches of the log. The file may be longer during an append, after a failed write, or because
   of preallocation: nothing after ``size`` is ever read.

``readable_segment.py`` contains the reads, ``segment_names.py`` the names of the files.
"""

from __future__ import annotations

import logging
import os
from pathlib import Path

from parley.protocol.records.batch_header import BatchHeader, Buffer
from parley.storage.damage.damaged_ranges import DamagedBytes
from parley.storage.damage.segment_digest import (
    DigestBuilder,
    SegmentDigest,
    read_digest,
    remove_digest,
    sync_digest,
    write_digest,
)
from parley.storage.damage.unverified_spans import without
from parley.storage.index import CorruptIndex
from parley.storage.log_config import LogConfig
from parley.storage.offset_index import OffsetIndex
from parley.storage.readable_segment import UNSEALED, ReadableSegment
from parley.storage.segment_file import SegmentFile
from parley.storage.segment_names import (
    DIGEST_SUFFIX,
    LOG_SUFFIX,
    OFFSET_INDEX_SUFFIX,
    SUFFIXES,
    TIME_INDEX_SUFFIX,
    TRANSACTION_INDEX_SUFFIX,
    file_name,
)
from parley.storage.time_index import TimeIndex, TimestampOffset
from parley.storage.transaction_index import CorruptTransactionIndex, TransactionIndex

_log = logging.getLogger(__name__)


class Segment(ReadableSegment):
    """A segment that takes appends while it is the last one of its log."""

    __slots__ = ("_digest", "_unindexed")

    def __init__(
        self,
        directory: Path,
        base_offset: int,
        *,
        size: int,
        offset_index: OffsetIndex,
        time_index: TimeIndex,
        now_ms: int,
        suffix: str = "",
        transactions: TransactionIndex | None = None,
    ) -> None:
        """Open the transaction index, unless ``transactions`` is passed."""
        super().__init__(
            directory,
            base_offset,
            size=size,
            offset_index=offset_index,
            time_index=time_index,
            now_ms=now_ms,
            suffix=suffix,
            transactions=transactions,
        )
        self._digest: DigestBuilder | None = None if size else DigestBuilder()
        self._unindexed = 0

    # --- Creating and opening ---

    @classmethod
    def create(cls, directory: Path, base_offset: int, config: LogConfig, now_ms: int, suffix: str = "") -> Segment:
        """Create an empty segment, replacing any files of the same names. Raises ``OSError``."""
        path = directory / file_name(base_offset, LOG_SUFFIX + suffix)
        (directory / file_name(base_offset, TRANSACTION_INDEX_SUFFIX + suffix)).unlink(missing_ok=True)
        remove_digest(directory / file_name(base_offset, DIGEST_SUFFIX + suffix))
        file = SegmentFile(path, create=True)
        os.ftruncate(file.fd, 0)
        if config.preallocate:
            os.ftruncate(file.fd, config.segment_bytes)
        try:
            return cls._with_new_indexes(directory, base_offset, now_ms, suffix)
        except OSError:
            path.unlink()  # otherwise recovery would treat the file as a segment
            raise

    @classmethod
    def unwritten(cls, directory: Path, now_ms: int) -> Segment:
        """Return the empty segment of a log that has no files yet. A segment from ``create`` must replace it before the
        first append.

        Its indexes are never written, so they have no real paths.
        """
        return cls(
            directory,
            0,
            size=0,
            offset_index=OffsetIndex(directory, 0, 0),
            time_index=TimeIndex(directory, 0, 0),
            transactions=TransactionIndex(directory, is_new=True),
            now_ms=now_ms,
        )

    @classmethod
    def open(cls, directory: Path, base_offset: int, now_ms: int, suffix: str = "") -> Segment:
        """Open a segment that was sealed, or closed cleanly.

        Raises ``CorruptIndex``, ``CorruptTransactionIndex`` or ``FileNotFoundError`` if an index must be rebuilt first,
        and ``OSError`` if the disk fails.
        """

        def path_of(kind: str) -> Path:
            return directory / file_name(base_offset, kind + suffix)

        size = os.stat(path_of(LOG_SUFFIX)).st_size
        offset_index = OffsetIndex.open(path_of(OFFSET_INDEX_SUFFIX), base_offset, size)
        time_index = TimeIndex.open(path_of(TIME_INDEX_SUFFIX), base_offset)
        segment = cls(
            directory,
            base_offset,
            size=size,
            offset_index=offset_index,
            time_index=time_index,
            now_ms=now_ms,
            suffix=suffix,
        )
        try:
            segment.transactions.sanity_check()
            if time_index.is_zero and segment._timestamp_of_first_batch() != 0:
                raise CorruptIndex(f"{time_index.path}: the only entry is zero, but the first batch's timestamp is not")
        except BaseException:
            segment.release()
            raise
        return segment

    @classmethod
    def open_unindexed(
        cls,
        directory: Path,
        base_offset: int,
        config: LogConfig,
        now_ms: int,
        suffix: str = "",
        *,
        keep_transactions: bool = False,
    ) -> Segment:
        """Open a segment with new, empty indexes and a ``size`` of 0. The caller adds its batches with ``adopt``.

        The digest on disk stays until ``trim`` replaces it, so that a broker that is killed meanwhile finds the same
        damage again. With ``keep_transactions``, keeps a valid transaction index, because damaged batches cannot be
        indexed again. Raises ``OSError``.
        """
        segment = cls._with_new_indexes(directory, base_offset, now_ms, suffix)
        try:
            segment.transactions.sanity_check()
        except CorruptTransactionIndex:
            keep_transactions = False
        if not keep_transactions:
            segment.transactions.reset()
        segment.reopen(config)
        return segment

    @classmethod
    def _with_new_indexes(cls, directory: Path, base_offset: int, now_ms: int, suffix: str) -> Segment:
        def path_of(kind: str) -> Path:
            return directory / file_name(base_offset, kind + suffix)

        return cls(
            directory,
            base_offset,
            size=0,
            offset_index=OffsetIndex.create(path_of(OFFSET_INDEX_SUFFIX), base_offset),
            time_index=TimeIndex.create(path_of(TIME_INDEX_SUFFIX), base_offset),
            now_ms=now_ms,
            suffix=suffix,
        )

    @property
    def paths(self) -> list[Path]:
        """The paths of the segment's files that exist."""
        return [path for path in map(self.path_of, SUFFIXES) if path.is_file()]

    # --- Growing (``parley.storage.segment_appends`` has the appends) ---

    def adopt(self, header: BatchHeader, data: Buffer | None, index_interval: int) -> None:
        """Count and index a batch that is already in the file, directly after ``size``. Scans use this instead of an
        append.

        If ``data``, the verified bytes of the batch, is None, the segment's digest will have no checksums.
        """
        if self._digest is not None:
            if data is None:
                self._digest = None
            else:
                self._digest.add(data, (header,))
        if header.max_timestamp > self.largest[0]:
            self._largest = TimestampOffset(header.max_timestamp, header.last_offset)
        if self._unindexed > index_interval:
            self.offset_index.append(header.last_offset, self.size)
            self.time_index.append(*self.largest)
            self._unindexed = 0
        if not self.size:
            self._first_timestamp = header.max_timestamp
        self._unindexed += header.size_bytes
        self.size += header.size_bytes

    def skip(self, damaged: DamagedBytes) -> None:
        """Count the bytes directly after ``size`` as damaged. The segment's digest will have no checksums, because they
        would hide the damage."""
        self.damage = (*self.damage, damaged)
        self.size = damaged.end
        self._digest = None

    def seal(self, end_offset: int) -> None:
        """End the segment at ``end_offset``, because it takes no more appends. Raises ``OSError``."""
        self.trim(end_offset)
        self.end_offset = end_offset

    def trim(self, end_offset: int) -> None:
        """Record the largest timestamp, trim the files to their contents, and write the digest of a segment that ends
        at ``end_offset``. Idempotent. Raises ``OSError``."""
        if not self.is_writable():
            return
        if self.largest.timestamp >= 0:
            self.time_index.append(*self.largest)
        self.offset_index.seal()
        self.time_index.seal()
        path = self.path_of(LOG_SUFFIX)
        if os.stat(path).st_size != self.size:  # some file systems would record a change (``verified_files``)
            os.truncate(path, self.size)
        if not self.size:
            remove_digest(self.path_of(DIGEST_SUFFIX))
        else:
            transactions = self.transactions.checksum()
            write_digest(
                self.path_of(DIGEST_SUFFIX),
                SegmentDigest.without_checksums(self.size, end_offset, transactions)
                if self._digest is None
                else self._digest.digest(end_offset, transactions),
            )
        self._digest = None

    def is_writable(self) -> bool:
        """Return True if ``append`` may be called, False if ``reopen`` must be called first."""
        return self.offset_index.writable

    def reopen(self, config: LogConfig) -> None:
        """Prepare the files for appends, because the segment becomes the active one, or was trimmed while it was
        active. Raises ``OSError``."""
        if self._digest is None:
            known = self.digest()
            self._digest = DigestBuilder.of(known) if known is not None else None
            remove_digest(self.path_of(DIGEST_SUFFIX))
        self.offset_index.resize(config.segment_index_bytes)
        self.time_index.resize(config.segment_index_bytes)
        self.end_offset = UNSEALED

    def truncate_to(self, offset: int, config: LogConfig) -> int:
        """Remove the batch that contains ``offset`` and everything after it; the segment becomes the active one.

        Returns the new log end, after the last batch. It is below ``offset`` if ``offset`` lies inside a batch or in a
        gap. Raises ``OSError``, ``CorruptRecord``.
        """
        found = self.find(offset)
        position = found[0] if found is not None else self.size
        for damaged in reversed(self.damage):  # no segment ends with damage
            if damaged.end == position:
                position, offset = damaged.position, min(offset, damaged.first_offset)
        if position < self.size:
            self.offset_index.truncate_to(offset)
            self.time_index.truncate_to(offset)
            self.transactions.truncate_to(offset)
            self.size = position
            self.unverified = without(self.unverified, position, UNSEALED)
            self.damage = tuple(damaged for damaged in self.damage if damaged.position < position)
            remove_digest(self.path_of(DIGEST_SUFFIX))
            self._digest = None if position else DigestBuilder()
            os.truncate(self.path_of(LOG_SUFFIX), position)
            self._largest = None if self.size else TimestampOffset(-1, self.base_offset)
            self._unindexed = 0
        self.reopen(config)
        return self._end()

    def _end(self) -> int:
        """Return the offset after the last batch."""
        end = self.base_offset
        if self.size:
            last = self._before_damage(self.offset_index.lookup_position(self.size - 1))
            for _, header in self.batches(last.position):
                end = header.next_offset
        return end

    # --- The digest ---

    def digest(self) -> SegmentDigest | None:
        """Return the digest of the first ``size`` bytes, from memory or else from the file; None if there is none.

        Raises ``OSError``.
        """
        if self._digest is not None:
            return self._digest.digest(self.end_offset)
        digest = read_digest(self.path_of(DIGEST_SUFFIX))
        return digest if digest is not None and digest.size == self.size else None

    def keep_digest(self, digest: SegmentDigest) -> None:
        """Use ``digest``, which was computed when the batches were appended, instead of a digest of the scanned
        bytes."""
        self._digest = DigestBuilder.of(digest)

    def forget_digest(self) -> None:
        """Leave the checksums out of the digest, because checksums of the current bytes would hide damage."""
        self._digest = None

    def remove_digest(self) -> None:
        """Remove a digest that is wrong. Raises ``OSError``."""
        self._digest = None
        remove_digest(self.path_of(DIGEST_SUFFIX))

    # --- Files ---

    def sync(self, *, indexes: bool) -> None:
        """Sync the batches to disk; with ``indexes``, the indexes too. Blocks. Raises ``OSError``."""
        file = self.file  # this reference keeps the file open if another thread closes the segment
        os.fsync(file.fd)
        if indexes:
            self.offset_index.sync()
            self.time_index.sync()
            self.transactions.flush()
            sync_digest(self.path_of(DIGEST_SUFFIX))

    def rename(self, suffix: str) -> None:
        """Change the second suffix of the files ("" for none). Raises ``OSError``."""
        self._move(self._directory, suffix)

    def moved(self, directory: Path) -> None:
        """Record that the log's directory was renamed."""
        self._directory = directory
        self._renamed()

    def _move(self, directory: Path, suffix: str) -> None:
        for kind in SUFFIXES:
            source, target = self.path_of(kind), directory / file_name(self.base_offset, kind + suffix)
            if kind == DIGEST_SUFFIX and (source.is_dir() or target.is_dir()):
                remove_digest(source)
                continue
            try:
                source.rename(target)
            except FileNotFoundError:
                if kind == LOG_SUFFIX:
                    raise
        self._suffix = suffix
        self._renamed()

    def _renamed(self) -> None:
        self.offset_index.path = self.path_of(OFFSET_INDEX_SUFFIX)
        self.time_index.path = self.path_of(TIME_INDEX_SUFFIX)
        self.transactions.moved_to(self.path_of(TRANSACTION_INDEX_SUFFIX))

    def release(self) -> None:
        """Close the files permanently, without flushing."""
        self.rest()
        self.transactions.close()

    def delete(self) -> None:
        """Remove the files. Reads in progress can continue. Raises ``OSError``."""
        self.release()
        for kind in SUFFIXES:
            path = self.path_of(kind)
            remove_digest(path) if kind == DIGEST_SUFFIX else path.unlink(missing_ok=True)

    def cut(self) -> None:
        """Try to remove the bytes after ``size``. If this fails, the next append overwrites them."""
        try:
            os.truncate(self.path_of(LOG_SUFFIX), self.size)
        except OSError as error:
            _log.error("cannot truncate %s to %d bytes: %s", self.path_of(LOG_SUFFIX), self.size, error)
