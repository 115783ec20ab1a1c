"""The read side of a log: its segments, offsets and damage, reads at any offset, and lookups by time and epoch.

``parley.storage.log`` contains the write side. Any thread may call any method. Reads do not take the lock.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import cast
from weakref import proxy

from parley.protocol.errors import ErrorCode, KafkaError
from parley.protocol.sentinels import NO_EPOCH
from parley.storage import timestamp_lookup
from parley.storage.compaction.tombstone_checkpoint import CHECKPOINT as TOMBSTONE_CHECKPOINT
from parley.storage.compaction.tombstone_checkpoint import TombstoneCheckpoint
from parley.storage.damage.appended_epochs import AppendedEpochs
from parley.storage.damage.damaged_ranges import DamagedRange
from parley.storage.damage.log_integrity import ClosedLog, LogIntegrity
from parley.storage.durability import Durability
from parley.storage.leader_epoch_cache import LeaderEpochCache
from parley.storage.loaded_log import LoadedLog
from parley.storage.log_place import LogPlace, LogSettings
from parley.storage.log_reader import LogRead
from parley.storage.producer_state import ProducerState
from parley.storage.resource_exhaustion import no_memory, reserve_for
from parley.storage.segment import Segment
from parley.storage.segments import Segments
from parley.storage.timestamp_lookup import FoundRecord
from parley.storage.transaction_index import AbortedTransaction, CorruptTransactionIndex


def ignore_damage(damaged: DamagedRange) -> None:
    """Do nothing. This is the ``on_damage`` of a log that no partition owns."""


class ReadableLog:
    """The readable state of a partition's log. ``config`` may be assigned at any time."""

    __slots__ = (
        "__weakref__",
        "_appended_epochs",
        "_closed",
        "_durability",
        "_events",
        "_high_watermark",
        "_integrity",
        "_lock",
        "_now_ms",
        "_segments",
        "_tombstone_checkpoint",
        "config",
        "directory",
        "is_written",
        "leader_epochs",
        "log_end_offset",
        "log_start_offset",
        "on_damage",
        "partition",
        "producers",
        "topic",
        "topic_id",
    )

    def __init__(self, place: LogPlace, settings: LogSettings, loaded: LoadedLog) -> None:
        self.directory = place.directory
        self.topic = place.topic
        self.partition = place.partition
        self.topic_id = place.topic_id
        self.config = settings.config
        self.producers: ProducerState = loaded.state.producers
        self.leader_epochs: LeaderEpochCache = loaded.state.epochs
        self._appended_epochs: AppendedEpochs = loaded.state.appended_epochs
        self.log_start_offset = loaded.log_start_offset
        self.log_end_offset = loaded.log_end_offset
        self._high_watermark = loaded.log_start_offset
        self._now_ms = settings.now_ms
        self._events = place.events
        self._lock = threading.RLock()
        unsynced = [segment for segment in loaded.segments[:-1] if segment.end_offset > loaded.recovery_point]
        self._durability = Durability(
            loaded.recovery_point,
            unsynced,
            self._lock,
            settings.now_ms(),
            is_on_disk=loaded.is_on_disk,
            measured=settings.measured_flush,
        )
        self.on_damage: Callable[[DamagedRange], None] = ignore_damage
        """Called, in any thread, for each damaged range that a read or ``verify_segment`` finds. The owner assigns it
        after ``open``, and then reads ``damage``, which contains the ranges found before."""
        self._tombstone_checkpoint = TombstoneCheckpoint(
            self.directory / TOMBSTONE_CHECKPOINT, loaded.log_end_offset, is_new=not loaded.is_written
        )
        log = cast(ReadableLog, proxy(self))  # a part that refers to the log would keep a deleted log in memory
        self._integrity = LogIntegrity(
            f"{self.topic}-{self.partition}",
            self._lock,
            lambda: log.log_start_offset,
            lambda: log.log_end_offset,
            self._durability,
            loaded.state.epochs,
            loaded.state.appended_epochs,
            loaded.state.recorded_damage,
            lambda: log.segments,
            loaded.missing,
            lambda: log._closed,
            lambda damaged: log.on_damage(damaged),
        )
        self._segments = Segments(
            self.directory,
            loaded.segments,
            loaded.log_end_offset,
            self._durability,
            self._integrity,
            settings.random,
            self._failed,
        )
        self._closed = False
        self.is_written = loaded.is_written
        """False if the log is new and has no directory and no files yet; its first append creates them."""
        for damaged in self.damage:
            self._integrity.report(damaged)

    def __repr__(self) -> str:
        return f"Log({self.topic}-{self.partition}, {self.log_start_offset} to {self.log_end_offset})"

    # --- Properties ---

    @property
    def segments(self) -> tuple[Segment, ...]:
        """The segments, oldest first; the last one takes the appends."""
        return self._segments.all

    @property
    def tombstones_removed_up_to(self) -> int:
        """The offset below which tombstones and transaction markers may be missing, together with the records that they
        delete or end."""
        return self._tombstone_checkpoint.up_to

    @property
    def size_bytes(self) -> int:
        """The size of all segments, without indexes."""
        return sum(segment.size for segment in self.segments)

    @property
    def recovery_point(self) -> int:
        """The offset below which everything is on disk."""
        return self._durability.recovery_point

    @property
    def latest_epoch(self) -> int | None:
        """The newest leader epoch that the log knows, from a record or because this broker became leader; None if there
        is none."""
        return self.leader_epochs.latest_epoch

    @property
    def stored_epoch(self) -> int:
        """The newest leader epoch that is stored: the log contains a record of it, or all of the leader's records from
        before it (``parley.storage.leader_epoch_cache``). NO_EPOCH if there is none."""
        return self.leader_epochs.latest_stored

    @property
    def epochs_at_end(self) -> tuple[int, int]:
        """The leader epoch of the last record, and the stored epoch if it is newer. Each is NO_EPOCH if there is
        none."""
        epochs, end = self.leader_epochs, self.log_end_offset
        return (epochs.latest_stored, NO_EPOCH) if epochs.latest_start < end else epochs.at_end(end)

    @property
    def damage(self) -> tuple[DamagedRange, ...]:
        """The ranges known to be damaged or missing, in order. A read into one raises CORRUPT_MESSAGE."""
        return self._integrity.damage(self.segments, self.log_start_offset)

    @property
    def high_watermark(self) -> int:
        """The offset below which all records are committed. The partition sets it; values outside the log are limited
        to the log start or the log end."""
        return self._high_watermark

    @high_watermark.setter
    def high_watermark(self, offset: int) -> None:
        if offset > self.log_end_offset:
            offset = self.log_end_offset
        if offset < self.log_start_offset:
            offset = self.log_start_offset
        self._high_watermark = offset
        if self.producers.first_unstable_offset is not None:
            with self._lock:
                self.producers.on_high_watermark(offset)

    @property
    def last_stable_offset(self) -> int:
        """The start of the earliest transaction that is open, or whose marker is not replicated yet; otherwise the high
        watermark. Consumers with ``read_committed`` stop there."""
        unstable = self.producers.first_unstable_offset
        if unstable is None or unstable >= self._high_watermark:
            return self._high_watermark
        return max(unstable, self.log_start_offset)

    # --- Reading ---

    def read(
        self, offset: int, max_bytes: int, *, up_to: int, min_one_batch: bool = True, nowait: bool = False
    ) -> LogRead:
        """Plan a read of whole batches, from the batch that contains ``offset`` up to, excluding, ``up_to``
        (``parley.storage.log_reader``).

        Reads no records yet, and usually touches no file. The read has at most ``max_bytes``, except that, with
        ``min_one_batch``, the first batch may be larger. With ``nowait``, raises ``BlockingIOError`` if planning would
        have to wait for the disk: the caller then repeats it in a thread, without ``nowait``. Raises ``KafkaError``:
        OFFSET_OUT_OF_RANGE (``offset`` below the log start or above the log end), CORRUPT_MESSAGE (``offset`` lies in
        ``damage``), KAFKA_STORAGE_ERROR.
        """
        if self._closed:
            raise KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, f"{self!r} is closed")
        if not self.log_start_offset <= offset <= self.log_end_offset:
            raise self._outside(offset)
        while True:
            removals = self._durability.removals
            try:
                read = self._segments.reader.plan(offset, max_bytes, up_to, min_one_batch=min_one_batch, nowait=nowait)
            except BlockingIOError:
                raise
            except OSError as error:
                if self._durability.is_unchanged_since(removals):
                    raise self._failed(error) from error
                continue  # a segment was removed between finding and opening it
            except MemoryError as error:
                raise no_memory(f"a read of {self!r}") from error
            if offset < self.log_start_offset:  # checked last: the log start may have moved meanwhile
                raise self._outside(offset)
            return read

    def verify_segment(self, segment: Segment, position: int, max_bytes: int) -> int:
        """Verify the bytes of a segment from ``position`` on: ``max_bytes``, or somewhat more if they end inside a
        batch or a block of the digest. Reads them from the file. Returns the position after them.

        Damage is added to ``damage`` and reported to ``on_damage``. Returns ``position`` if batches or segments were
        removed from the log meanwhile: if the log still contains the segment, the caller repeats the call. Returns the
        size of the segment if the log was closed: its files may have been renamed or removed. Blocks. Raises
        ``KafkaError`` KAFKA_STORAGE_ERROR.
        """
        removals = self._durability.removals
        try:
            verified_to, _ = self._integrity.verify(segment, position, position + max_bytes)
        except ClosedLog:
            return segment.size
        except OSError as error:
            if self._closed:
                return segment.size
            if self._durability.is_unchanged_since(removals):
                raise self._failed(error) from error
            return position
        except MemoryError as error:
            raise no_memory(f"verifying {segment!r}") from error
        return position if verified_to is None else verified_to

    def write_missing_digest(self, segment: Segment) -> None:
        """Verify a sealed segment without a complete digest, and write its digest if all batches are good. Blocks.

        Raises ``KafkaError`` KAFKA_STORAGE_ERROR.
        """
        with self._disk():
            self._integrity.write_missing_digest(segment)

    def _outside(self, offset: int) -> KafkaError:
        return KafkaError(ErrorCode.OFFSET_OUT_OF_RANGE, f"offset {offset} is outside {self!r}")

    # --- Lookups ---

    @property
    def removals(self) -> int:
        """The number of times that batches or segments of the log were removed or replaced."""
        return self._durability.removals

    def aborted_transactions(self, start: int, end: int) -> list[AbortedTransaction]:
        """Return the aborted transactions with records in [``start``, ``end``), for a read_committed fetch.

        They apply to records that were located before this call, unless ``removals`` has changed since. Reads the
        transaction indexes of the segments from ``start`` on. Raises ``KafkaError`` KAFKA_STORAGE_ERROR, also if an
        index was damaged since it was opened: the next start builds it again.
        """
        found: list[AbortedTransaction] = []
        with self._lock, self._disk():
            for segment in self._segments.reader.view.from_offset(start):
                if not segment.transactions.count:
                    continue
                try:
                    some, complete = segment.transactions.find(start, end)
                except CorruptTransactionIndex as error:
                    raise KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, str(error)) from error
                found += some
                if complete:
                    return found
        return found

    def offset_for_timestamp(self, timestamp_ms: int) -> FoundRecord | None:
        """Return the first record whose timestamp is at least ``timestamp_ms``, or None. Blocks.

        Raises ``KafkaError`` CORRUPT_MESSAGE, INVALID_RECORD, MESSAGE_TOO_LARGE (decompressed), KAFKA_STORAGE_ERROR.
        """
        return self._search(
            lambda: timestamp_lookup.first_at_or_after(self.segments, timestamp_ms, self.log_start_offset)
        )

    def max_timestamp(self) -> FoundRecord | None:
        """Return the first record with the largest timestamp (KIP-734), or None if no record has a timestamp. Blocks.

        Raises ``KafkaError`` CORRUPT_MESSAGE, INVALID_RECORD, MESSAGE_TOO_LARGE (decompressed), KAFKA_STORAGE_ERROR.
        """
        return self._search(lambda: timestamp_lookup.latest(self.segments, self.log_start_offset))

    def _search(self, search: Callable[[], FoundRecord | None]) -> FoundRecord | None:
        while True:
            removals = self._durability.removals
            try:
                return search()
            except OSError as error:
                if self._durability.is_unchanged_since(removals):
                    raise self._failed(error) from error
            except MemoryError as error:
                raise no_memory(f"a search in {self!r}") from error

    def end_offset_for_epoch(self, epoch: int) -> tuple[int, int]:
        """Return the largest known epoch not above ``epoch``, and its end offset; (-1, -1) if ``epoch`` is -1 or newer
        than all known epochs (``LeaderEpochCache.end_offset_for``)."""
        return self.leader_epochs.end_offset_for(epoch, self.log_end_offset)

    # --- Failing disks ---

    @contextmanager
    def _disk(self) -> Iterator[None]:
        """Report a disk failure inside the block and raise it as KAFKA_STORAGE_ERROR."""
        try:
            yield
        except OSError as error:
            raise self._failed(error) from error

    def _failed(self, error: OSError) -> KafkaError:
        # After a close, or if the process lacks descriptors or memory, an error does not mean that the disk has failed.
        reserve = reserve_for(error)
        if reserve is not None:
            reserve.make_room()
        elif not self._closed:
            self._events.on_io_error(error)
        return KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, f"{self!r}: {error}")
