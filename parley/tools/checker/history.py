"""What is written down while clients run: what was sent, what was acknowledged, what was read.

Every record of a history is named by its producer and a number that counts up from 0 within it, and the name is part of
the record's value, with a checksum: so that a record read can be traced back, and one that nobody sent is known.
The methods may be called from any thread. Times are in seconds of one monotonic clock.
"""

from __future__ import annotations

import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple

UNKNOWN: Final = -1
"""The offset of a record of which its producer knows nothing for sure: it may be there or not, or there later."""

SOMEWHERE: Final = -2
"""The offset of a record that was acknowledged without one: the cluster had it already when it was sent again."""


@dataclass(frozen=True, slots=True)
class Guarantees:
    """What a producer may rely on, if every record is sent with acks=all.

    An idempotent producer has both: its records lie in a partition in the order they were sent, each of them once.
    """

    ordered: bool = True
    once: bool = True


class Seen(NamedTuple):
    """A record as a reader saw it; ``producer`` is None for a value that is none of a history's."""

    offset: int
    producer: str | None
    number: int


@dataclass(slots=True)
class Producer:
    """One producer: the partition and the offset of each of its records, by number."""

    guarantees: Guarantees
    partitions: list[int] = field(default_factory=list)
    offsets: list[int] = field(default_factory=list)
    acknowledged_at: list[tuple[float, int]] = field(default_factory=list)
    """When an acknowledgement came, and for which partition."""
    ended_at: float | None = None


@dataclass(slots=True)
class Partition:
    """A partition as it lay there in the end: all its records, and the offsets of its beginning and its end."""

    start: int
    end: int
    records: list[Seen] = field(default_factory=list)


class History:
    """What happened. Written by :meth:`sent`, :meth:`acknowledged`, :meth:`saw` and :meth:`final`."""

    def __init__(self) -> None:
        self.producers: dict[str, Producer] = {}
        self.readers: dict[str, dict[int, list[Seen]]] = {}
        self.partitions: dict[int, Partition] = {}
        self.failures: list[str] = []
        """What producers were told of records that were not acknowledged."""

    def producer(self, name: str, guarantees: Guarantees = Guarantees()) -> Producer:
        """Begin with a producer. Its name has no colon. An instance that is opened anew is another producer."""
        if ":" in name or name in self.producers:
            raise ValueError(f"{name!r} is no name for a new producer")
        found = self.producers[name] = Producer(guarantees)
        return found

    def sent(self, name: str, partition: int) -> int:
        """A record is about to be sent to a partition; its number."""
        producer = self.producers[name]
        producer.partitions.append(partition)
        producer.offsets.append(UNKNOWN)
        return len(producer.offsets) - 1

    def acknowledged(self, name: str, number: int, partition: int, offset: int | None, *, at: float) -> None:
        """The cluster has said that a record is at this offset, or that it is there."""
        producer = self.producers[name]
        if partition != producer.partitions[number]:
            self.failures.append(f"{name}:{number} was acknowledged in partition {partition}, where it was not sent")
            return
        producer.offsets[number] = SOMEWHERE if offset is None else offset
        producer.acknowledged_at.append((at, partition))

    def failed(self, name: str, number: int, reason: str) -> None:
        """A record was given up: it may be there or not."""
        self.failures.append(f"{name}:{number}: {reason}")

    def saw(self, reader: str, partition: int, offset: int, value: bytes | None) -> None:
        """A reader that follows a partition without leaving anything out has read this."""
        self.readers.setdefault(reader, {}).setdefault(partition, []).append(seen(offset, value))

    def final(self, partition: int, start: int, end: int, records: Sequence[tuple[int, bytes | None]]) -> None:
        """What the partition has after all is over."""
        self.partitions[partition] = Partition(start, end, [seen(offset, value) for offset, value in records])

    def counts(self) -> Mapping[str, int]:
        """How many records were sent, acknowledged, and found in the end."""
        return {
            "sent": sum(len(each.offsets) for each in self.producers.values()),
            "acknowledged": sum(sum(o != UNKNOWN for o in each.offsets) for each in self.producers.values()),
            "found": sum(len(each.records) for each in self.partitions.values()),
        }


def payload(producer: str, number: int, size: int = 0) -> bytes:
    """The value of a record: its name, a checksum of it all, and what it takes to be ``size`` bytes."""
    head = f"{producer}:{number}:".encode()
    padding = b"." * (size - len(head) - 9)
    return b"%s%08x:%s" % (head, zlib.crc32(head + padding), padding)


def seen(offset: int, value: bytes | None) -> Seen:
    """The record that a value names."""
    try:
        producer, number, checksum, padding = (value or b"").split(b":", 3)
        if int(checksum, 16) == zlib.crc32(b"%s:%s:%s" % (producer, number, padding)):
            return Seen(offset, producer.decode(), int(number))
    except ValueError:
        pass
    return Seen(offset, None, UNKNOWN)
