"""The history of a run: the records that were sent, acknowledged and read.

A record is named by its producer and a number that the producer counts up from 0. The name is part of the record's
value, with a checksum, so that every record read can be traced to its producer, and an invented one is recognised.
The methods may be called from any thread. Times are seconds of one monotonic clock.
"""

from __future__ import annotations

import zlib
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Final, NamedTuple

UNKNOWN: Final = -1
"""The offset of a record whose fate its producer does not know: it may or may not be in the log, now or later."""

SOMEWHERE: Final = -2
"""The offset of a record acknowledged without one: the cluster already had it when it was sent again."""


@dataclass(frozen=True, slots=True)
class Guarantees:
    """The guarantees that a producer with acks=all has for its records.

    An idempotent producer has both: its records are in a partition in the order in which they were sent, each once.
    """

    ordered: bool = True
    once: bool = True


class Outcome(Enum):
    """What became of a transaction, as far as its producer knows."""

    UNKNOWN = "unknown"
    """Still open, or its end was requested without a response: all of its records are visible in the end, or none."""
    COMMITTED = "committed"
    ABORTED = "aborted"


@dataclass(slots=True)
class Transaction:
    """One transaction: the producer's records from number ``first`` to the start of its next transaction."""

    first: int
    outcome: Outcome = Outcome.UNKNOWN


class Seen(NamedTuple):
    """A record that was read. ``producer`` is None if the value was not made by ``payload``."""

    offset: int
    producer: str | None
    number: int


@dataclass(slots=True)
class Producer:
    """A producer, with the partition and the offset of each of its records, by number."""

    guarantees: Guarantees
    partitions: list[int] = field(default_factory=list)
    offsets: list[int] = field(default_factory=list)
    acknowledged_at: list[tuple[float, int]] = field(default_factory=list)
    """The time and the partition of each acknowledgement."""
    ended_at: float | None = None
    transactions: list[Transaction] = field(default_factory=list)
    """Its transactions in order; empty if it uses none. All of its records belong to one of them."""
    commits_after_fencing: int = 0
    """Commits that the cluster accepted after another instance had taken over the transactional id."""

    def outcome_of(self, number: int) -> Outcome | None:
        """The outcome of the transaction with a record; None if the producer uses no transactions."""
        at = bisect_right(self.transactions, number, key=lambda each: each.first)
        return self.transactions[at - 1].outcome if at else None


@dataclass(slots=True)
class Partition:
    """A partition at the end of the run: all its records, and its start and end offsets."""

    start: int
    end: int
    records: list[Seen] = field(default_factory=list)


class History:
    """The history of one run. The clients write it with ``sent``, ``acknowledged``, ``saw`` and ``final``."""

    def __init__(self) -> None:
        self.producers: dict[str, Producer] = {}
        self.readers: dict[str, dict[int, list[Seen]]] = {}
        self.partitions: dict[int, Partition] = {}
        self.failures: list[str] = []
        """The errors of records that were not acknowledged."""

    def producer(self, name: str, guarantees: Guarantees = Guarantees()) -> Producer:
        """Add a producer. Its name must not contain a colon. A reopened instance is another producer."""
        if ":" in name or name in self.producers:
            raise ValueError(f"{name!r} is not a name for a new producer: it is taken or contains a colon")
        found = self.producers[name] = Producer(guarantees)
        return found

    def sent(self, name: str, partition: int) -> int:
        """Note that a record is about to be sent to a partition. Returns its number."""
        producer = self.producers[name]
        producer.partitions.append(partition)
        producer.offsets.append(UNKNOWN)
        return len(producer.offsets) - 1

    def began(self, name: str) -> None:
        """Note that a producer begins a transaction: the records that it sends from now on belong to it."""
        producer = self.producers[name]
        producer.transactions.append(Transaction(len(producer.offsets)))

    def ended(self, name: str, outcome: Outcome) -> None:
        """Note the outcome of a producer's latest transaction."""
        self.producers[name].transactions[-1].outcome = outcome

    def acknowledged(self, name: str, number: int, partition: int, offset: int | None, *, at: float) -> None:
        """Note that the cluster has acknowledged a record, at this offset or (None) without one."""
        producer = self.producers[name]
        if partition != producer.partitions[number]:
            self.failures.append(f"{name}:{number} was acknowledged in partition {partition}, where it was not sent")
            return
        producer.offsets[number] = SOMEWHERE if offset is None else offset
        producer.acknowledged_at.append((at, partition))

    def failed(self, name: str, number: int, reason: str) -> None:
        """Note that the producer has given up a record, which may or may not be in the log."""
        self.failures.append(f"{name}:{number}: {reason}")

    def saw(self, reader: str, partition: int, offset: int, value: bytes | None) -> None:
        """Note a record read by a reader that follows the partition without leaving anything out."""
        self.readers.setdefault(reader, {}).setdefault(partition, []).append(seen(offset, value))

    def final(self, partition: int, start: int, end: int, records: Sequence[tuple[int, bytes | None]]) -> None:
        """Note the content of a partition at the end of the run."""
        self.partitions[partition] = Partition(start, end, [seen(offset, value) for offset, value in records])

    def counts(self) -> Mapping[str, int]:
        """The numbers of records sent, acknowledged and found in the end, and of transactions if there were any."""
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
    """The value of a record: its name, a checksum of the whole, and padding up to ``size`` bytes."""
    head = f"{producer}:{number}:".encode()
    padding = b"." * (size - len(head) - 9)
    return b"%s%08x:%s" % (head, zlib.crc32(head + padding), padding)


def seen(offset: int, value: bytes | None) -> Seen:
    """The record that a value made by ``payload`` names."""
    try:
        producer, number, checksum, padding = (value or b"").split(b":", 3)
        if int(checksum, 16) == zlib.crc32(b"%s:%s:%s" % (producer, number, padding)):
            return Seen(offset, producer.decode(), int(number))
    except ValueError:
        pass
    return Seen(offset, None, UNKNOWN)
