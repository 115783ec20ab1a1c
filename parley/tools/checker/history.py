"""The history of a run: the records that were sent, acknowledged and read.

A record is identified by its producer's name and a number that the producer counts up from 0. Both are part of the
record's value, with a checksum. Every record that is read can therefore be traced to its producer, and an invented
record is recognized. The methods may be called from any thread. All times are in seconds of the same monotonic clock.
"""

from __future__ import annotations

import zlib
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Final, NamedTuple

UNKNOWN: Final = -1
"""The offset of a record whose outcome the producer does not know: it may be in the log, or may still appear there."""

SOMEWHERE: Final = -2
"""The offset of a record that was acknowledged without an offset, because a retry found it already in the log."""


@dataclass(frozen=True, slots=True)
class Guarantees:
    """The guarantees for the records of a producer with ``acks=all``.

    An idempotent producer has both: each record is in the partition exactly once, and the records are in the order in
    which they were sent.
    """

    ordered: bool = True
    once: bool = True


class Outcome(Enum):
    """The outcome of a transaction, as its producer knows it."""

    UNKNOWN = "unknown"
    """The transaction is open, or its end was requested and no response came. Eventually all of its records are
    visible, or none."""
    COMMITTED = "committed"
    ABORTED = "aborted"


@dataclass(slots=True)
class Transaction:
    """A transaction: the producer's records from number ``first`` to the start of its next transaction."""

    first: int
    outcome: Outcome = Outcome.UNKNOWN


class Seen(NamedTuple):
    """A record that was read. ``producer`` is None if the value was not created by ``payload``."""

    offset: int
    producer: str | None
    number: int


@dataclass(slots=True)
class Producer:
    """A producer, with the partition and the offset of each of its records, indexed by record number."""

    guarantees: Guarantees
    partitions: list[int] = field(default_factory=list)
    offsets: list[int] = field(default_factory=list)
    acknowledged_at: list[tuple[float, int]] = field(default_factory=list)
    """The time and the partition of each acknowledgement."""
    ended_at: float | None = None
    transactions: list[Transaction] = field(default_factory=list)
    """The producer's transactions, in order. If there are any, each of its records belongs to one of them."""
    commits_after_fencing: int = 0
    """The number of commits that the cluster accepted after another instance had taken over the transactional id."""

    def outcome_of(self, number: int) -> Outcome | None:
        """Return the outcome of the transaction that contains this record, or None if the producer uses no
        transactions."""
        at = bisect_right(self.transactions, number, key=lambda each: each.first)
        return self.transactions[at - 1].outcome if at else None


@dataclass(slots=True)
class Partition:
    """A partition at the end of the run: its start and end offsets, and all records between them."""

    start: int
    end: int
    records: list[Seen] = field(default_factory=list)


class History:
    """The history of a run. Clients record it with ``sent``, ``acknowledged``, ``saw`` and ``final``."""

    def __init__(self) -> None:
        self.producers: dict[str, Producer] = {}
        self.readers: dict[str, dict[int, list[Seen]]] = {}
        self.partitions: dict[int, Partition] = {}
        self.failures: list[str] = []
        """Errors of records that were not acknowledged, and other unexpected errors of producers."""

    def producer(self, name: str, guarantees: Guarantees = Guarantees()) -> Producer:
        """Add a producer and return it. A producer that is reopened needs a new name. Raises ValueError if the name is
        taken or contains a colon."""
        if ":" in name or name in self.producers:
            raise ValueError(f"invalid producer name {name!r}: it is taken or contains a colon")
        found = self.producers[name] = Producer(guarantees)
        return found

    def sent(self, name: str, partition: int) -> int:
        """Record that a record is about to be sent to a partition. Returns the record's number."""
        producer = self.producers[name]
        producer.partitions.append(partition)
        producer.offsets.append(UNKNOWN)
        return len(producer.offsets) - 1

    def began(self, name: str) -> None:
        """Record that a producer begins a transaction. The records that it sends from now on belong to it."""
        producer = self.producers[name]
        producer.transactions.append(Transaction(len(producer.offsets)))

    def ended(self, name: str, outcome: Outcome) -> None:
        """Record the outcome of a producer's latest transaction."""
        self.producers[name].transactions[-1].outcome = outcome

    def acknowledged(self, name: str, number: int, partition: int, offset: int | None, *, at: float) -> None:
        """Record that the cluster acknowledged a record. ``offset`` is None if the response contained no offset. ``at``
        is the time in seconds. Records a failure instead if the record was sent to another partition."""
        producer = self.producers[name]
        if partition != producer.partitions[number]:
            self.failures.append(f"{name}:{number} was acknowledged in partition {partition}, but was not sent there")
            return
        producer.offsets[number] = SOMEWHERE if offset is None else offset
        producer.acknowledged_at.append((at, partition))

    def failed(self, name: str, number: int, reason: str) -> None:
        """Record that the producer gave up on a record, which may or may not be in the log."""
        self.failures.append(f"{name}:{number}: {reason}")

    def saw(self, reader: str, partition: int, offset: int, value: bytes | None) -> None:
        """Record that a reader has read a record. The reader must report every record of the partition that it reads,
        in order."""
        self.readers.setdefault(reader, {}).setdefault(partition, []).append(seen(offset, value))

    def final(self, partition: int, start: int, end: int, records: Sequence[tuple[int, bytes | None]]) -> None:
        """Record the content of a partition at the end of the run: its start and end offsets, and the offset and value
        of each record."""
        self.partitions[partition] = Partition(start, end, [seen(offset, value) for offset, value in records])

    def counts(self) -> Mapping[str, int]:
        """Return the numbers of records sent, acknowledged and finally found. If there were transactions, also those
        committed and aborted."""
        outcomes = [one.outcome for each in self.producers.values() for one in each.transactions]
        transactions = {
            "committed": outcomes.count(Outcome.COMMITTED),
            "aborted": outcomes.count(Outcome.ABORTED),
        }
        return {
            **(transactions if outcomes else {}),
            "sent": sum(len(each.offsets) for each in self.producers.values()),
            "acknowledged": sum(sum(o != UNKNOWN for o in each.offsets) for each in self.producers.values()),
            "found": sum(len(each.records) for each in self.partitions.values()),
        }


def payload(producer: str, number: int, size: int = 0) -> bytes:
    """Return the value of a record: its producer and number, a checksum, and padding up to ``size`` bytes."""
    head = f"{producer}:{number}:".encode()
    padding = b"." * (size - len(head) - 9)
    return b"%s%08x:%s" % (head, zlib.crc32(head + padding), padding)


def seen(offset: int, value: bytes | None) -> Seen:
    """Return the record that this value identifies. Its producer is None if the value was not created by
    ``payload``."""
    try:
        producer, number, checksum, padding = (value or b"").split(b":", 3)
        if int(checksum, 16) == zlib.crc32(b"%s:%s:%s" % (producer, number, padding)):
            return Seen(offset, producer.decode(), int(number))
    except ValueError:
        pass
    return Seen(offset, None, UNKNOWN)
