"""The producers of one log: idempotence, fencing, transactions (KIP-98, KIP-360).

Rules (docs/storage.md has them all):

1. A batch that does not continue its producer's last batch is rejected, unless the producer is unknown (KIP-360). A
   batch equal to one of the last five is a retry, unless the transaction of that batch has ended.
2. A newer epoch starts at sequence 0 and permanently fences all older epochs.
3. The state at any offset follows from the batches before that offset. Snapshots merely save rereading them all.
4. Calls must be serialized, except that any number of threads may run ``ProducerState.flush`` at any time.
"""

from __future__ import annotations

import logging
from collections import OrderedDict
from collections.abc import Callable, Collection, Iterable
from functools import partial
from pathlib import Path

from parley.light_dataclasses import dataclass
from parley.protocol.errors import ErrorCode, KafkaError
from parley.protocol.records.batch_header import BatchHeader
from parley.protocol.records.control_batch import ControlMarker, ControlType
from parley.protocol.sentinels import NO_OFFSET, NO_SEQUENCE
from parley.storage.last_batches import BATCHES_KEPT, LastBatches
from parley.storage.producer_row import Batch, Duplicate, Producer, advance
from parley.storage.producer_snapshots import (
    CorruptSnapshot,
    ProducerEntry,
    SnapshotFiles,
    read_snapshot,
    snapshot_offsets,
)

PRODUCERS_MAX = 100_000
"""The maximum number of producers that one log keeps (40 MB), so that a client that makes up producer ids cannot
exhaust the memory."""
REMEMBERED_MS = 900_000
"""The minimum time (ms) that a producer is kept after its last write, even if a new producer needs its place. A
producer retries for ``delivery.timeout.ms``, 2 minutes by default, and its retry must not be appended again."""
OPEN_TRANSACTIONS_MAX = 20_000
"""The maximum number of transactions that clients may have open in one log. The producers of open transactions are not
forgotten to make room."""
STRICT_MARKERS_VERSION = 2
"""From this transaction version on, a marker has a higher epoch than the records of its transaction (KIP-890)."""

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class CompletedTransaction:
    """A transaction whose marker was appended.

    ``first_offset`` is the offset of its first record, ``last_offset`` the offset of the marker. ``last_stable_offset``
    is the log's last stable offset once the marker is replicated: the start of the next open transaction, or the log
    end.
    """

    producer_id: int
    first_offset: int
    last_offset: int
    last_stable_offset: int
    aborted: bool


def _last_batches(rows: Iterable[tuple[int, Producer]]) -> dict[int, LastBatches]:
    return {producer_id: producer.last_batches() for producer_id, producer in rows}


def _entries(rows: Iterable[tuple[int, Producer]]) -> list[ProducerEntry]:
    return [producer.entry(producer_id) for producer_id, producer in rows]


class ProducerState:
    """The producers of the log in ``directory``. It is empty until ``load``."""

    def __init__(self, directory: Path, *, expiration_ms: int = 86_400_000, is_new: bool = False) -> None:
        """``is_new`` means that the log has no files yet, so there are no snapshots to list. Raises ``OSError``."""
        self.expiration_ms = expiration_ms
        self.first_unstable_offset: int | None = None
        """The first offset of the earliest transaction that is open, or completed but not replicated; None if there is
        none."""
        self._producers: OrderedDict[int, Producer] = OrderedDict()
        # The producer that has been idle longest comes first. Producers with an open transaction may be further back.
        self._open: dict[int, int] = {}  # first offset -> producer id, lowest offset first
        self._unreplicated: dict[int, int] = {}  # first offset -> marker's offset, lowest marker first
        self._files = SnapshotFiles(directory, () if is_new else snapshot_offsets(directory))
        self._taken = 0  # snapshots and frozen states that share rows with the table
        self._end = 0  # the table contains no batch at or above this offset
        self._loaded = False
        self._refused_ms = 0  # the time of the last warning that new producers are refused

    def __len__(self) -> int:
        return len(self._producers)

    def highest_id(self, below: int) -> int:
        """Return the highest id of a known producer that is less than ``below``; -1 if there is none."""
        return max((producer_id for producer_id in list(self._producers) if producer_id < below), default=-1)

    @property
    def entries(self) -> list[ProducerEntry]:
        """The current state of each producer."""
        return _entries(self._producers.items())

    def frozen(self) -> Callable[[], list[ProducerEntry]]:
        """Return a function that returns the state of each producer as of this call. Any thread may call the function,
        without the log's lock."""
        return partial(_entries, self._frozen_rows())

    def frozen_batches(self) -> Callable[[], dict[int, LastBatches]]:
        """Return a function that returns the last batches of each producer as of this call. Any thread may call the
        function, without the log's lock."""
        return partial(_last_batches, self._frozen_rows())

    def _frozen_rows(self) -> list[tuple[int, Producer]]:
        self._taken += 1
        return list(self._producers.items())

    @property
    def directory(self) -> Path:
        """The directory of the snapshots. To be assigned when the log's directory is renamed."""
        return self._files.directory

    @directory.setter
    def directory(self, directory: Path) -> None:
        self._files.directory = directory

    @property
    def snapshots(self) -> tuple[int, ...]:
        """The offsets of the snapshots, lowest first; the latest may not be written yet (``flush``)."""
        return self._files.offsets

    # --- Appending ---

    def check_append(self, header: BatchHeader, *, from_client: bool, now_ms: int) -> Duplicate | None:
        """Return None if the batch may be appended, or a ``Duplicate`` if it was appended before and must not be
        appended again.

        ``from_client`` is False for batches of coordinators: offset commits have no sequence numbers. Followers do not
        check the batches of their leader. Changes nothing, except that an expired producer is removed.

        Raises ``KafkaError``: OUT_OF_ORDER_SEQUENCE_NUMBER, UNKNOWN_PRODUCER_ID (a sequence number of a transaction
        that has ended), INVALID_PRODUCER_EPOCH, INVALID_TXN_STATE (records outside the producer's open transaction),
        INVALID_RECORD (no sequence number or no epoch), NOT_ENOUGH_REPLICAS (which clients retry) for a new producer if
        each of ``PRODUCERS_MAX`` producers has an open transaction or has written within ``REMEMBERED_MS``.
        """
        producer_id = header.producer_id
        if producer_id < 0:
            return None
        producer = self._producers.get(producer_id)
        if producer is None or self._is_expired(producer, now_ms):
            self._producers.pop(producer_id, None)
            if from_client and (header.base_sequence < 0 or header.producer_epoch < 0):
                raise self._error(ErrorCode.INVALID_RECORD, header, "has no sequence number or no epoch")
            if from_client and len(self._producers) >= PRODUCERS_MAX:
                self._check_room(header, now_ms)
            return None
        epoch = header.producer_epoch
        if epoch < producer.epoch:
            raise self._error(ErrorCode.INVALID_PRODUCER_EPOCH, header, f"is fenced by epoch {producer.epoch}")
        if from_client and header.base_sequence != (producer.next_sequence if epoch == producer.epoch else 0):
            if epoch == producer.epoch:
                if header.is_transactional and producer.used_in_ended_transaction(header.base_sequence):
                    problem = f"repeats sequence {header.base_sequence} of a transaction that has ended"
                    raise self._error(ErrorCode.UNKNOWN_PRODUCER_ID, header, problem)
                if (duplicate := producer.first_append_of(header)) is not None:
                    return duplicate
            expected = producer.next_sequence if epoch == producer.epoch else 0
            problem = f"has sequence {header.base_sequence} instead of {expected}"
            raise self._error(ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, header, problem)
        if producer.transaction_first_offset >= 0 and not header.is_transactional:
            raise self._error(ErrorCode.INVALID_TXN_STATE, header, "writes outside its open transaction")
        return None

    def _check_room(self, header: BatchHeader, now_ms: int) -> None:
        """Raise NOT_ENOUGH_REPLICAS if no producer may be forgotten to make room for a new one."""
        silent = self._longest_silent()
        remembered_ms = min(REMEMBERED_MS, self.expiration_ms)
        if silent is not None and now_ms - self._producers[silent].seen_ms >= remembered_ms:
            return
        if now_ms - self._refused_ms >= remembered_ms:
            self._refused_ms = now_ms
            _log.warning("new producers are refused", extra={"log": self.directory.name, "producers": PRODUCERS_MAX})
        problem = f"is new, and {PRODUCERS_MAX} others have written in the last {remembered_ms} ms: retry later"
        raise self._error(ErrorCode.NOT_ENOUGH_REPLICAS, header, problem)

    def check_marker(
        self, header: BatchHeader, marker: ControlMarker, *, now_ms: int, transaction_version: int
    ) -> None:
        """Check a marker before it is appended. Changes nothing, except that an expired producer is removed.

        From transaction version 2 on, the coordinator raises the producer's epoch for each marker. A marker with the
        current epoch is then late, unless it repeats the marker that ended the last transaction (KIP-1228).

        Raises ``KafkaError``: INVALID_PRODUCER_EPOCH, TRANSACTION_COORDINATOR_FENCED.
        """
        producer = self._producers.get(header.producer_id)
        if producer is None or self._is_expired(producer, now_ms):
            self._producers.pop(header.producer_id, None)
            return
        epoch = header.producer_epoch
        is_late = transaction_version >= STRICT_MARKERS_VERSION and producer.transaction_first_offset >= 0
        if epoch < producer.epoch or (epoch == producer.epoch and is_late):
            raise self._error(ErrorCode.INVALID_PRODUCER_EPOCH, header, f"is fenced by epoch {producer.epoch}")
        if marker.coordinator_epoch < producer.coordinator_epoch:
            problem = (
                f"has a marker of coordinator epoch {marker.coordinator_epoch}, after {producer.coordinator_epoch}"
            )
            raise self._error(ErrorCode.TRANSACTION_COORDINATOR_FENCED, header, problem)

    def knows(self, producer_id: int) -> bool:
        """Return True if the producer has written to this log and has not been forgotten."""
        return producer_id in self._producers

    def has_open_transaction(self, producer_id: int, epoch: int) -> bool:
        """Return True if the producer has an open transaction, and ``epoch`` is its current epoch."""
        producer = self._producers.get(producer_id)
        return producer is not None and producer.transaction_first_offset >= 0 and producer.epoch == epoch

    def has_late_transaction(self, now_ms: int, late_ms: int) -> bool:
        """Return True if the producer of the earliest open transaction has not written for more than ``late_ms``."""
        earliest = next(iter(self._open.values()), None)
        producer = None if earliest is None else self._producers.get(earliest)
        return producer is not None and now_ms - producer.seen_ms > late_ms

    @property
    def open_transactions(self) -> int:
        """The number of open transactions."""
        return len(self._open)

    def expects(self, header: BatchHeader) -> bool:
        """Return True if the batch continues the last known batch of its producer and epoch, or is a retry of a known
        batch."""
        producer = self._producers.get(header.producer_id)
        if producer is None or producer.epoch != header.producer_epoch:
            return False
        return header.base_sequence == producer.next_sequence or producer.first_append_of(header) is not None

    def lacks_batches(self, header: BatchHeader) -> bool:
        """Return True if a batch that seems out of order may be a retry of a batch that is only in the log. The caller
        then passes the producer's last batches to ``recall`` and checks the batch again."""
        producer = self._producers.get(header.producer_id)
        return producer is not None and producer.lacks_batches and producer.epoch == header.producer_epoch

    def recall(self, producer_id: int, batches: Iterable[BatchHeader]) -> None:
        """Complete the producer's last batches with those found at the end of the log. ``batches`` are its batches
        there, in log order."""
        producer = self._row(producer_id)
        known = producer.batches
        earlier = [
            Batch(each.base_sequence, each.last_sequence, each.last_offset, each.last_offset_delta, each.max_timestamp)
            for each in batches
            if each.producer_epoch == producer.epoch and each.last_offset < known[0].last_offset
        ]
        known[:0] = earlier[len(known) - BATCHES_KEPT :]
        producer.lacks_batches = False

    def apply(
        self, header: BatchHeader, *, now_ms: int, control: ControlMarker | None = None
    ) -> CompletedTransaction | None:
        """Update the state with a batch that is in the log. Must be called in log order, after appends and during
        recovery.

        ``control`` is the marker in a control batch. A control batch without a marker is ignored: compaction has
        emptied it. Returns the transaction that the marker ended, if one was open. If it was aborted, the caller adds
        it to the transaction index.
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
        batch = Batch(first, last, last_offset, delta, header.max_timestamp)
        producer.add(batch, header.producer_epoch)
        if producer.transaction_first_offset < 0 and header.is_transactional:
            producer.transaction_first_offset = first_offset
            self._open[first_offset] = producer_id
            self._find_first_unstable()
        return None

    def on_high_watermark(self, high_watermark: int) -> None:
        """Record that the completed transactions whose markers lie below ``high_watermark`` are stable."""
        if not self._unreplicated:
            return
        stable = [first for first, marker in self._unreplicated.items() if marker < high_watermark]
        for first in stable:
            del self._unreplicated[first]
        self._find_first_unstable()

    def _row(self, producer_id: int) -> Producer:
        """Return the producer's row, which the caller may change. Creates the row if it is missing; if there are then
        too many rows, removes the producer that has been idle longest."""
        producers = self._producers
        producer = producers.get(producer_id)
        if producer is None:
            producer = producers[producer_id] = Producer(self._taken)
            if len(producers) > PRODUCERS_MAX:
                self._forget_longest_silent()
            return producer
        producers.move_to_end(producer_id)
        if producer.snapshots != self._taken:
            producer = producers[producer_id] = producer.copied(self._taken)
        return producer

    def _forget_longest_silent(self) -> None:
        """Remove the producer that has been idle longest, unless all others have an open transaction."""
        producer_id = self._longest_silent()
        if producer_id is not None:
            del self._producers[producer_id]

    def _longest_silent(self) -> int | None:
        """Return the producer without an open transaction that has been idle longest, but never the last writer.

        Moves producers with an open transaction to the end of the table, so that the next search does not find them
        again. Their markers will move them there anyway.
        """
        producers = self._producers
        for _ in range(len(producers) - 1):
            producer_id = next(iter(producers))
            if producers[producer_id].transaction_first_offset < 0:
                return producer_id
            producers.move_to_end(producer_id)
        return None

    def expire(self, now_ms: int) -> int:
        """Remove the producers that have not written for the expiration time. Returns their number."""
        expired = [key for key, producer in self._producers.items() if self._is_expired(producer, now_ms)]
        for producer_id in expired:
            del self._producers[producer_id]
        return len(expired)

    # --- Snapshots and truncation ---

    def load(self, log_start: int, log_end: int, now_ms: int) -> int:
        """Restore the table from the newest snapshot inside the log, after a startup or ``truncate``.

        Returns an offset: the caller must pass the batches in [that offset, ``log_end``) to ``apply``. It is
        ``log_end`` if the table is up to date. Deletes snapshots outside the log. Raises ``OSError``.
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
                _log.warning("cannot use the producer snapshot %s: %s", path, error)
                self._files.remove([offset])
                continue
            self._restore(entries, now_ms)
            self._end = offset
            break
        self._loaded = True
        return self._end

    def as_of(self, offset: int, now_ms: int) -> tuple[ProducerState, int]:
        """Return a separate state, restored from the newest snapshot at or before ``offset``, and that snapshot's
        offset.

        Without a usable snapshot, returns an empty state and 0. Does not change this state. Raises ``OSError``.
        """
        state = ProducerState(self.directory, expiration_ms=self.expiration_ms)
        for snapshot in reversed(self.snapshots):
            if snapshot <= offset:
                try:
                    entries = read_snapshot(self._files.path(snapshot))
                except (CorruptSnapshot, FileNotFoundError):
                    continue
                state._restore(entries, now_ms)
                return state, snapshot
        return state, 0

    def take_snapshot(self, offset: int, *, sync: bool = True) -> None:
        """Write the current table to disk as the snapshot at ``offset``. Every batch below ``offset`` must have been
        applied.

        With ``sync=False``, a later ``flush`` writes the table as it is now. Does nothing if a snapshot exists at
        ``offset``. Raises ``OSError``.
        """
        if sync:
            self._files.flush()
            self._files.write(offset, self.entries)
        elif offset not in self.snapshots:
            self._files.write_later(offset, len(self._producers), self.frozen())

    def flush(self) -> None:
        """Write the pending snapshots and sync them to disk. Blocks. Raises ``OSError``."""
        self._files.flush()

    def truncate(self, offset: int) -> None:
        """Delete the snapshots above ``offset``, the new log end. The caller calls ``load`` next. Raises
        ``OSError``."""
        self._files.remove([snapshot for snapshot in self.snapshots if snapshot > offset])
        if self._end > offset:
            self._forget()
            self._loaded = False

    def truncate_fully(self, offset: int) -> None:
        """Remove all producers and snapshots, because the log is empty and starts at ``offset``. Raises ``OSError``."""
        self._files.remove(self.snapshots)
        self._forget()
        self._end = offset
        self._loaded = True

    def on_log_start_advanced(self, offset: int) -> None:
        """Record that the log starts at ``offset``. Producers stay known even if all their records were deleted
        (KIP-360)."""
        self.on_high_watermark(offset)

    def remove_snapshots_before(self, offset: int) -> None:
        """Delete the snapshots below ``offset``, because the segments below it are deleted. Raises ``OSError``."""
        self._files.remove([snapshot for snapshot in self.snapshots if snapshot < offset])

    def remove_stray_snapshots(self, bases: Collection[int]) -> None:
        """Delete the snapshots at offsets that are not in ``bases``, the base offsets of the segments, except the
        latest snapshot. Raises ``OSError``."""
        self._files.remove([snapshot for snapshot in self.snapshots[:-1] if snapshot not in bases])

    # --- Internals ---

    def _complete(
        self, producer_id: int, producer: Producer, marker: int, control: ControlMarker
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

    def _is_expired(self, producer: Producer, now_ms: int) -> bool:
        return now_ms - producer.seen_ms >= self.expiration_ms and producer.transaction_first_offset < 0

    def _restore(self, entries: list[ProducerEntry], now_ms: int) -> None:
        for entry in sorted(entries, key=lambda entry: entry.timestamp):
            producer = Producer.restored(entry, now_ms, self._taken)
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
