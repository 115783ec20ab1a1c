"""One producer of a log, a row of the table in ``producer_state``: its epoch, its last batches, its open transaction.

Sequence numbers wrap: the one after ``MAX_SEQUENCE`` is 0. The batches of earlier epochs are forgotten.
"""

from __future__ import annotations

from typing import NamedTuple

from parley.light_dataclasses import dataclass
from parley.protocol.records.batch_header import BatchHeader
from parley.protocol.sentinels import NO_EPOCH, NO_OFFSET, NO_SEQUENCE
from parley.storage.last_batches import BATCHES_KEPT, LastBatches
from parley.storage.producer_snapshots import ProducerEntry

MAX_SEQUENCE = (1 << 31) - 1


def advance(sequence: int, by: int) -> int:
    """Return the sequence number ``by`` places after ``sequence``. Numbers wrap at both ends, and 0 follows -1."""
    return (sequence + by) & MAX_SEQUENCE


@dataclass(frozen=True, slots=True)
class Duplicate:
    """The first append of a batch that was sent again: its offsets, and its largest timestamp (ms)."""

    first_offset: int
    last_offset: int
    timestamp: int


class Batch(NamedTuple):
    """A batch of the producer, but not a marker. ``offset_delta`` is the offset delta of its last record, ``timestamp``
    its largest timestamp (ms)."""

    first_sequence: int
    last_sequence: int
    last_offset: int
    offset_delta: int
    timestamp: int

    @property
    def first_offset(self) -> int:
        """The offset of the batch's first record."""
        return self.last_offset - self.offset_delta


class Producer:
    """One row of the table. ``seen_ms`` is the time of the producer's last write, from which its expiration time is
    counted.

    ``lacks_batches`` is True if batches earlier than those in ``batches`` may also count as retries if they are sent
    again.
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
        self.snapshots = snapshots  # the number of snapshots taken before the row was created; later ones share the row
        self.epoch = NO_EPOCH
        self.batches: list[Batch] = []
        self.lacks_batches = False
        self.next_sequence = 0
        self.coordinator_epoch = NO_EPOCH
        self.timestamp = -1
        self.seen_ms = -1
        self.transaction_first_offset = NO_OFFSET

    def copied(self, snapshots: int) -> Producer:
        """Return a copy that replaces this row in the table, because a snapshot shares this row. ``snapshots`` is the
        number of snapshots taken so far."""
        copy = Producer(snapshots)
        copy.epoch = self.epoch
        copy.batches = self.batches.copy()
        copy.lacks_batches = self.lacks_batches
        copy.next_sequence = self.next_sequence
        copy.coordinator_epoch = self.coordinator_epoch
        copy.timestamp = self.timestamp
        copy.seen_ms = self.seen_ms
        copy.transaction_first_offset = self.transaction_first_offset
        return copy

    def add(self, batch: Batch, epoch: int) -> None:
        """Record a batch that the producer has appended under this epoch."""
        self.adopt(epoch)
        batches = self.batches
        batches.append(batch)
        if len(batches) > BATCHES_KEPT:
            del batches[0]
            self.lacks_batches = False
        self.next_sequence = advance(batch.last_sequence, 1)
        self.timestamp = batch.timestamp

    def adopt(self, epoch: int) -> None:
        """Start a new epoch at sequence 0. Does nothing if ``epoch`` is the current epoch."""
        if epoch != self.epoch:
            self.epoch = epoch
            self.batches.clear()
            self.lacks_batches = False
            self.next_sequence = 0

    def first_append_of(self, header: BatchHeader) -> Duplicate | None:
        """Return the first append of a batch that was sent again; None if it is not one of the last batches."""
        first = header.base_sequence
        for batch in self.batches:
            if batch.first_sequence == first and batch.last_sequence == advance(first, header.last_offset_delta):
                return Duplicate(batch.first_offset, batch.last_offset, batch.timestamp)
        return None

    def used_in_ended_transaction(self, sequence: int) -> bool:
        """Return True if one of the last batches has this sequence number, and its transaction has ended."""
        began = self.transaction_first_offset
        return any(
            advance(sequence, -batch.first_sequence) <= batch.offset_delta and not 0 <= began <= batch.first_offset
            for batch in self.batches
        )

    def entry(self, producer_id: int) -> ProducerEntry:
        """Return the producer's snapshot entry."""
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

    def last_batches(self) -> LastBatches:
        """Return the offsets of the last batches. Compaction must keep these batches."""
        batches = self.batches
        return LastBatches(
            epoch=self.epoch,
            last_offset=batches[-1].last_offset if batches else NO_OFFSET,
            first_offset=batches[0].last_offset if batches else NO_OFFSET,
            is_complete=not self.lacks_batches,
        )

    @classmethod
    def restored(cls, entry: ProducerEntry, now_ms: int, snapshots: int) -> Producer:
        """Return the row of a producer restored from a snapshot, which contains only its last batch."""
        producer = cls(snapshots)
        producer.epoch = entry.epoch
        if entry.last_offset >= 0:
            last = entry.last_sequence
            first = advance(last, -entry.offset_delta) if last >= 0 else NO_SEQUENCE
            batch = Batch(first, last, entry.last_offset, entry.offset_delta, entry.timestamp)
            producer.add(batch, entry.epoch)
            producer.lacks_batches = True
        producer.timestamp = entry.timestamp
        producer.seen_ms = min(entry.timestamp, now_ms)
        producer.coordinator_epoch = entry.coordinator_epoch
        producer.transaction_first_offset = entry.transaction_first_offset
        return producer
