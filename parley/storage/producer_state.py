"""What one log knows of the producers that write to it: idempotence, fencing, transactions (KIP-98, KIP-360).

Rules:

1. A producer (its id) writes with an epoch and consecutive sequence numbers, counted per record from 0 to 2**31 - 1 and
   around again. A batch that does not continue the last one is refused, unless nothing is known of the producer: it may
   have been forgotten, so any sequence is taken (KIP-360).
2. A batch with the first and last sequence of one of the last five is a retry: it is answered with the first append's
   offsets and not written again. A snapshot has but the last one; the others are looked up in the log once a batch
   comes that may be one of them (:meth:`ProducerState.recall`).
3. A newer epoch begins at sequence 0 and fences the older ones for good. A coordinator's epoch fences likewise.
4. The first transactional batch begins a transaction, a marker ends it. Records from the first offset of the earliest
   open transaction on are unstable, and so are those of a completed one until its marker is replicated.
5. The table at any offset follows from the batches before it. Snapshots only save reading them all: one is taken when
   a segment begins and when the log closes. An unreadable one is deleted, and an older one serves. Those are kept that
   were taken where a segment begins, and the latest.
6. A producer not heard of for the expiration time is forgotten, unless its transaction is open. Appends count from the
   wall clock, what a snapshot says from the timestamp of the last batch.
7. Of more than :data:`PRODUCERS_MAX` producers, the one not heard of for longest is forgotten early.
8. A row that a waiting snapshot shares is copied before it changes: taking a snapshot costs no pass over the rows.

The log calls from one thread at a time; only :meth:`ProducerState.flush` may run beside it, in any number of threads.
"""

from __future__ import annotations

import logging
from collections import OrderedDict
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import NamedTuple

from parley.protocol.errors import ErrorCode, KafkaError
from parley.protocol.records.batch_header import BatchHeader
from parley.protocol.records.control_batch import ControlMarker, ControlType
from parley.protocol.sentinels import NO_EPOCH, NO_OFFSET, NO_SEQUENCE
from parley.storage.producer_snapshots import (
    CorruptSnapshot,
    ProducerEntry,
    SnapshotFiles,
    read_snapshot,
)

MAX_SEQUENCE = (1 << 31) - 1
BATCHES_KEPT = 5
"""An idempotent client has at most five requests in flight, so no retry can be older."""
PRODUCERS_MAX = 100_000
"""Producers that one log knows: 40 MB. Whoever makes up producer ids must not fill the memory with them."""

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Duplicate:
    """Where a batch that is sent again was written the first time, and with which maximum timestamp (ms)."""

    first_offset: int
    last_offset: int
    timestamp: int


@dataclass(frozen=True, slots=True)
class CompletedTransaction:
    """A transaction whose marker was appended.

    ``first_offset`` is its first record, ``last_offset`` the marker; ``last_stable_offset`` is where the log is stable
    up to once the marker is replicated: the start of the next open transaction, or the end.
    """

    producer_id: int
    first_offset: int
    last_offset: int
    last_stable_offset: int
    aborted: bool


class _Batch(NamedTuple):
    first_sequence: int
    last_sequence: int
    last_offset: int
    offset_delta: int
    timestamp: int


class _Producer:
    """One row of the table. ``seen_ms`` is when it was last heard of, for expiry.

    ``lacks_batches``: there may have been batches before the first of ``batches`` that were retried if they came again.
    """

    __slots__ = (
        "batches",
        "coordinator_epoch",
        "epoch",
        "lacks_batches",
        "next_sequence",
        "seen_ms",
        "snapshots",
        "timestamp",
        "transaction_first_offset",
    )

    def __init__(self, snapshots: int = 0) -> None:
        self.snapshots = snapshots  # how many had been taken when the row was made: later ones share it
        self.epoch = NO_EPOCH
        self.batches: list[_Batch] = []
        self.lacks_batches = False
        self.next_sequence = 0
        self.coordinator_epoch = NO_EPOCH
        self.timestamp = -1
        self.seen_ms = -1
        self.transaction_first_offset = NO_OFFSET

    def copied(self, snapshots: int) -> _Producer:
        copy = _Producer(snapshots)
        copy.epoch = self.epoch
        copy.batches = self.batches.copy()
        copy.lacks_batches = self.lacks_batches
        copy.next_sequence = self.next_sequence
        copy.coordinator_epoch = self.coordinator_epoch
        copy.timestamp = self.timestamp
        copy.seen_ms = self.seen_ms
        copy.transaction_first_offset = self.transaction_first_offset
        return copy

    def add(self, batch: _Batch, epoch: int) -> None:
        self.adopt(epoch)
        batches = self.batches
        batches.append(batch)
        if len(batches) > BATCHES_KEPT:
            del batches[0]
            self.lacks_batches = False
        self.next_sequence = advance(batch.last_sequence, 1)
        self.timestamp = batch.timestamp

    def adopt(self, epoch: int) -> None:
        if epoch != self.epoch:
            self.epoch = epoch
            self.batches.clear()
            self.lacks_batches = False
            self.next_sequence = 0

    def first_append_of(self, header: BatchHeader) -> Duplicate | None:
        first = header.base_sequence
        for batch in self.batches:
            if batch.first_sequence == first and batch.last_sequence == advance(first, header.last_offset_delta):
                return Duplicate(batch.last_offset - batch.offset_delta, batch.last_offset, batch.timestamp)
        return None

    def entry(self, producer_id: int) -> ProducerEntry:
        last = self.batches[-1] if self.batches else None
        return ProducerEntry(
            producer_id,
            self.epoch,
            last.last_sequence if last else NO_SEQUENCE,
            last.last_offset if last else NO_OFFSET,
            last.offset_delta if last else 0,
            self.timestamp,
            self.coordinator_epoch,
            self.transaction_first_offset,
        )

    @classmethod
    def restored(cls, entry: ProducerEntry, now_ms: int, snapshots: int) -> _Producer:
        producer = cls(snapshots)
        producer.epoch = entry.epoch
        if entry.last_offset >= 0:
            last = entry.last_sequence
            first = advance(last, -entry.offset_delta) if last >= 0 else NO_SEQUENCE
            batch = _Batch(first, last, entry.last_offset, entry.offset_delta, entry.timestamp)
            producer.add(batch, entry.epoch)
            producer.lacks_batches = True
        producer.timestamp = entry.timestamp
        producer.seen_ms = min(entry.timestamp, now_ms)
        producer.coordinator_epoch = entry.coordinator_epoch
        producer.transaction_first_offset = entry.transaction_first_offset
        return producer


def _entries(rows: Iterable[tuple[int, _Producer]]) -> list[ProducerEntry]:
    return [producer.entry(producer_id) for producer_id, producer in rows]


def advance(sequence: int, by: int) -> int:
    """The sequence number ``by`` places after ``sequence``, wrapping at both ends; the one after none is 0."""
    return (sequence + by) & MAX_SEQUENCE


class ProducerState:
    """The producers of the log in ``directory``. Knows nothing until :meth:`load`."""

    def __init__(self, directory: Path, *, expiration_ms: int = 86_400_000) -> None:
        self.expiration_ms = expiration_ms
        self.first_unstable_offset: int | None = None
        """The first offset of the earliest transaction that is open, or completed but not replicated."""
        self._producers: OrderedDict[int, _Producer] = OrderedDict()  # least recently heard of first
        self._open: dict[int, int] = {}  # first offset -> producer id, lowest offset first
        self._unreplicated: dict[int, int] = {}  # first offset -> marker's offset, lowest marker first
        self._files = SnapshotFiles(directory)
        self._taken = 0  # snapshots that share rows with the table
        self._end = 0  # no batch of a producer at or after this offset is in the table
        self._loaded = False

    def __len__(self) -> int:
        return len(self._producers)

    @property
    def entries(self) -> list[ProducerEntry]:
        """What is known of each producer now."""
        return _entries(self._producers.items())

    @property
    def directory(self) -> Path:
        """Where the snapshots lie; assign the new place when the log's directory is renamed."""
        return self._files.directory

    @directory.setter
    def directory(self, directory: Path) -> None:
        self._files.directory = directory

    @property
    def snapshots(self) -> tuple[int, ...]:
        """The offsets of the snapshots, lowest first; the latest may be still to be written (:meth:`flush`)."""
        return self._files.offsets

    # Appending

    def check_append(
        self, header: BatchHeader, *, from_client: bool, now_ms: int, control: ControlMarker | None = None
    ) -> Duplicate | None:
        """Whether the batch may be appended: None if so; a :class:`Duplicate` if it was already, and must not be again.

        ``from_client`` is False for what coordinators write: offset commits have no sequence numbers, and markers
        (``control``) come from a coordinator. Batches of a leader are not checked by its followers. Changes nothing,
        but that a producer past its expiration is forgotten.

        Raises :class:`KafkaError`: OUT_OF_ORDER_SEQUENCE_NUMBER, INVALID_PRODUCER_EPOCH,
        TRANSACTION_COORDINATOR_FENCED, INVALID_TXN_STATE (records outside the producer's open transaction),
        INVALID_RECORD (no sequence or no epoch).
        """
        producer_id = header.producer_id
        if producer_id < 0:
            return None
        producer = self._producers.get(producer_id)
        if producer is None or self._is_expired(producer, now_ms):
            self._producers.pop(producer_id, None)
            if from_client and (header.base_sequence < 0 or header.producer_epoch < 0):
                raise self._error(ErrorCode.INVALID_RECORD, header, "has no sequence number or no epoch")
            return None
        epoch = header.producer_epoch
        if epoch < producer.epoch:
            raise self._error(ErrorCode.INVALID_PRODUCER_EPOCH, header, f"is fenced by epoch {producer.epoch}")
        if control is not None:
            if control.coordinator_epoch < producer.coordinator_epoch:
                problem = f"is ended by coordinator epoch {control.coordinator_epoch} < {producer.coordinator_epoch}"
                raise self._error(ErrorCode.TRANSACTION_COORDINATOR_FENCED, header, problem)
            return None
        if from_client and header.base_sequence != (producer.next_sequence if epoch == producer.epoch else 0):
            if epoch == producer.epoch and (duplicate := producer.first_append_of(header)) is not None:
                return duplicate
            expected = producer.next_sequence if epoch == producer.epoch else 0
            problem = f"has sequence {header.base_sequence} instead of {expected}"
            raise self._error(ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, header, problem)
        if producer.transaction_first_offset >= 0 and not header.is_transactional:
            raise self._error(ErrorCode.INVALID_TXN_STATE, header, "writes outside of its open transaction")
        return None

    def expects(self, header: BatchHeader) -> bool:
        """Whether the batch follows the last one known of its producer and epoch, or is a retry of one known."""
        producer = self._producers.get(header.producer_id)
        if producer is None or producer.epoch != header.producer_epoch:
            return False
        return header.base_sequence == producer.next_sequence or producer.first_append_of(header) is not None

    def lacks_batches(self, header: BatchHeader) -> bool:
        """Whether a batch that seems out of order may be a retry of one not known: :meth:`recall` those."""
        producer = self._producers.get(header.producer_id)
        return producer is not None and producer.lacks_batches and producer.epoch == header.producer_epoch

    def recall(self, producer_id: int, batches: Iterable[BatchHeader]) -> None:
        """These are the last batches of a producer in the log, in its order."""
        producer = self._row(producer_id)
        known = producer.batches
        earlier = [
            _Batch(each.base_sequence, each.last_sequence, each.last_offset, each.last_offset_delta, each.max_timestamp)
            for each in batches
            if each.producer_epoch == producer.epoch and each.last_offset < known[0].last_offset
        ]
        known[:0] = earlier[len(known) - BATCHES_KEPT :]
        producer.lacks_batches = False

    def append(
        self, header: BatchHeader, *, now_ms: int, control: ControlMarker | None = None
    ) -> CompletedTransaction | None:
        """Note a batch that is in the log, with its offsets; in the order of the log, live or when it is read again.

        ``control`` is the marker in a control batch; None there means one that compaction emptied, which says nothing.
        Returns the transaction that the marker ended, if it was open: the caller indexes it when it was aborted.
        """
        producer_id = header.producer_id
        if producer_id < 0 or (header.is_control and control is None):
            return None
        producer = self._row(producer_id)
        producer.seen_ms = now_ms
        delta = header.last_offset_delta
        first_offset = header.base_offset
        last_offset = first_offset + delta
        self._end = last_offset + 1
        if control is not None:
            completed = self._complete(producer_id, producer, first_offset, control)
            producer.adopt(header.producer_epoch)
            producer.coordinator_epoch = control.coordinator_epoch
            producer.timestamp = header.max_timestamp
            return completed
        first = header.base_sequence
        last = advance(first, delta) if first >= 0 else NO_SEQUENCE
        batch = _Batch(first, last, last_offset, delta, header.max_timestamp)
        producer.add(batch, header.producer_epoch)
        if producer.transaction_first_offset < 0 and header.is_transactional:
            producer.transaction_first_offset = first_offset
            self._open[first_offset] = producer_id
            self._find_first_unstable()
        return None

    def on_high_watermark(self, high_watermark: int) -> None:
        """Completed transactions whose markers lie below ``high_watermark`` are stable."""
        if not self._unreplicated:
            return
        stable = [first for first, marker in self._unreplicated.items() if marker < high_watermark]
        for first in stable:
            del self._unreplicated[first]
        self._find_first_unstable()

    def _row(self, producer_id: int) -> _Producer:
        """The producer's row, to be changed; that of the one not heard of for longest gives way if there are many."""
        producers = self._producers
        producer = producers.get(producer_id)
        if producer is None:
            producer = producers[producer_id] = _Producer(self._taken)
            if len(producers) > PRODUCERS_MAX:
                self._forget_longest_silent()
            return producer
        producers.move_to_end(producer_id)
        if producer.snapshots != self._taken:
            producer = producers[producer_id] = producer.copied(self._taken)
        return producer

    def _forget_longest_silent(self) -> None:
        for producer_id, producer in self._producers.items():
            if producer.transaction_first_offset < 0:
                del self._producers[producer_id]
                return

    def expire(self, now_ms: int) -> int:
        """Forget the producers not heard of for the expiration time; how many they were."""
        expired = [key for key, producer in self._producers.items() if self._is_expired(producer, now_ms)]
        for producer_id in expired:
            del self._producers[producer_id]
        return len(expired)

    # Snapshots, and the ends of the log

    def load(self, log_start: int, log_end: int, now_ms: int) -> int:
        """Know the producers again after a start or :meth:`truncate`, from the newest snapshot inside the log.

        Returns the offset from which the caller must pass every batch to :meth:`append`, up to ``log_end``: that is
        ``log_end`` itself if the table is right already. Snapshots outside the log are deleted. Raises ``OSError``.
        """
        self._files.flush()
        self._files.remove([offset for offset in self.snapshots if not log_start <= offset <= log_end])
        if self._loaded and self._end <= log_end:
            self.on_log_start_advanced(log_start)
            return log_end
        self._forget()
        self._end = log_start
        while self.snapshots:
            offset = self.snapshots[-1]
            path = self._files.path(offset)
            try:
                entries = read_snapshot(path)
            except (CorruptSnapshot, FileNotFoundError) as error:
                _log.warning("Cannot use the producer snapshot %s: %s", path, error)
                self._files.remove([offset])
                continue
            self._restore(entries, now_ms)
            self._end = offset
            break
        self._loaded = True
        return self._end

    def take_snapshot(self, offset: int, *, sync: bool = True) -> None:
        """Write the table to disk as it is now, at ``offset``, where every batch before it has been appended.

        With ``sync=False`` :meth:`flush` writes it later, as it is now. Nothing to do when there is a snapshot at
        ``offset``. Raises ``OSError``.
        """
        if sync:
            self._files.flush()
            self._files.write(offset, self.entries)
        elif offset not in self.snapshots:
            rows = list(self._producers.items())
            self._taken += 1
            self._files.write_later(offset, len(rows), partial(_entries, rows))

    def flush(self) -> None:
        """Write the snapshots that wait, and bring them to disk. Blocks; raises ``OSError``."""
        self._files.flush()

    def truncate(self, offset: int) -> None:
        """The log now ends at ``offset``: call :meth:`load` next. Later snapshots are deleted. Raises ``OSError``."""
        self._files.remove([snapshot for snapshot in self.snapshots if snapshot > offset])
        if self._end > offset:
            self._forget()
            self._loaded = False

    def truncate_fully(self, offset: int) -> None:
        """The log is empty and begins at ``offset``: nobody is known, all snapshots go. Raises ``OSError``."""
        self._files.remove(self.snapshots)
        self._forget()
        self._end = offset
        self._loaded = True

    def on_log_start_advanced(self, offset: int) -> None:
        """The log begins at ``offset``. Its producers stay known, those of deleted records too (KIP-360)."""
        self.on_high_watermark(offset)

    def remove_snapshots_before(self, offset: int) -> None:
        """Delete the snapshots below ``offset``, once the segments that they begin are gone. Raises ``OSError``."""
        self._files.remove([snapshot for snapshot in self.snapshots if snapshot < offset])

    def remove_stray_snapshots(self, bases: Collection[int]) -> None:
        """Delete the snapshots where no segment begins, but the latest of all. Raises ``OSError``."""
        self._files.remove([snapshot for snapshot in self.snapshots[:-1] if snapshot not in bases])

    # Inside

    def _complete(
        self, producer_id: int, producer: _Producer, marker: int, control: ControlMarker
    ) -> CompletedTransaction | None:
        first_offset = producer.transaction_first_offset
        if first_offset < 0:
            return None
        producer.transaction_first_offset = NO_OFFSET
        self._open.pop(first_offset, None)
        self._unreplicated[first_offset] = marker
        self._find_first_unstable()
        stable = next(iter(self._open), marker + 1)
        return CompletedTransaction(producer_id, first_offset, marker, stable, control.type is ControlType.ABORT)

    def _find_first_unstable(self) -> None:
        open_first = next(iter(self._open), None)
        first = min(self._unreplicated, default=open_first)
        self.first_unstable_offset = first if open_first is None or first is None else min(first, open_first)

    def _is_expired(self, producer: _Producer, now_ms: int) -> bool:
        return now_ms - producer.seen_ms >= self.expiration_ms and producer.transaction_first_offset < 0

    def _restore(self, entries: list[ProducerEntry], now_ms: int) -> None:
        for entry in sorted(entries, key=lambda entry: entry.timestamp):
            producer = _Producer.restored(entry, now_ms, self._taken)
            if not self._is_expired(producer, now_ms):
                self._producers[entry.producer_id] = producer
                if len(self._producers) > PRODUCERS_MAX:
                    self._forget_longest_silent()
        began = ((entry.transaction_first_offset, entry.producer_id) for entry in entries)
        self._open = dict(sorted(pair for pair in began if pair[0] >= 0))
        self._find_first_unstable()

    def _forget(self) -> None:
        self._producers.clear()
        self._open.clear()
        self._unreplicated.clear()
        self.first_unstable_offset = None

    def _error(self, code: ErrorCode, header: BatchHeader, problem: str) -> KafkaError:
        return KafkaError(
            code, f"{self.directory.name}: producer {header.producer_id} epoch {header.producer_epoch} {problem}"
        )
