"""The rules that a history is checked against. Each has the name of its violation.

1. LOST: an acknowledged record is in the partition at the end, unless the partition starts after it.
2. MOVED: an acknowledged record is at the offset of its acknowledgement.
3. INVENTED: every record in the partition was sent, and to that partition.
4. DUPLICATED: a record of a producer with the guarantee ``once`` is in the partition only once.
5. REORDERED: the records of a producer with the guarantee ``ordered`` are in the order in which they were sent.
6. VANISHED: a record that a reader has read is still in the partition at the end.
7. CHANGED: a record that a reader has read is still the same record at the same offset.
8. SKIPPED: a reader has read every record between its first and its last.

Readers see committed records only. A record of a transaction counts as acknowledged if the transaction was committed.

9. UNCOMMITTED: no reader reads a record of an aborted transaction.
10. TORN: if the producer does not know the outcome of a transaction, all of its records are in the partitions, or none.
11. NOT_FENCED: an instance of a producer commits nothing after another instance has taken over its transactional id.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Set
from dataclasses import dataclass
from enum import Enum
from typing import Final

from parley.tools.checker.history import SOMEWHERE, UNKNOWN, History, Outcome, Partition, Producer, Seen, Transaction

_SHOWN_MAX: Final = 10


class Kind(Enum):
    """The rules that a history can violate."""

    LOST = "lost"
    MOVED = "moved"
    INVENTED = "invented"
    DUPLICATED = "duplicated"
    REORDERED = "reordered"
    VANISHED = "vanished"
    CHANGED = "changed"
    SKIPPED = "skipped"
    UNCOMMITTED = "uncommitted"
    TORN = "torn"
    NOT_FENCED = "not fenced"


@dataclass(frozen=True, slots=True)
class Violation:
    """A violation of a rule, with a description."""

    kind: Kind
    text: str


@dataclass(frozen=True, slots=True)
class Verdict:
    """The result of checking a history."""

    violations: tuple[Violation, ...]
    counts: Mapping[str, int]
    longest_pause_s: float
    """The longest time, in seconds, that a producer waited for the next acknowledgement from the same partition."""

    @property
    def ok(self) -> bool:
        """True if no rule was violated."""
        return not self.violations

    def __str__(self) -> str:
        counts = ", ".join(f"{count} {name}" for name, count in self.counts.items())
        lines = [f"{counts}; longest pause {self.longest_pause_s:.3f} s"]
        for kind, count in Counter(each.kind for each in self.violations).items():
            texts = [each.text for each in self.violations if each.kind is kind]
            lines.append(f"{count} {kind.value}:")
            lines += [f"  {text}" for text in texts[:_SHOWN_MAX]]
            lines += [f"  and {count - _SHOWN_MAX} more"] * (count > _SHOWN_MAX)
        return "\n".join(lines)


def check(history: History) -> Verdict:
    """Check a history whose partitions have been read to their ends."""
    violations = (
        *_of_acknowledged(history),
        *(each for index, one in history.partitions.items() for each in _of_partition(history, index, one)),
        *_of_readers(history),
        *_of_transactions(history),
    )
    return Verdict(violations, history.counts(), longest_pause_s(history))


def _of_acknowledged(history: History) -> Iterator[Violation]:
    places = {
        (index, one.producer, one.number): one.offset
        for index, partition in history.partitions.items()
        for one in reversed(partition.records)  # the first of several duplicates counts
    }
    for name, producer in history.producers.items():
        for number, (index, offset) in enumerate(zip(producer.partitions, producer.offsets, strict=True)):
            partition = history.partitions.get(index)
            match producer.outcome_of(number):
                case Outcome.COMMITTED if offset == UNKNOWN:
                    offset = SOMEWHERE  # the commit acknowledges it
                case Outcome.ABORTED | Outcome.UNKNOWN:
                    continue
            if offset == UNKNOWN or partition is None or 0 <= offset < partition.start:
                continue
            found = places.get((index, name, number))
            what = f"{name}:{number}, acknowledged {_place(index, offset)}"
            if found is None and (offset != SOMEWHERE or not partition.start):
                yield Violation(Kind.LOST, f"{what}, is not there; the partition ends at {partition.end}")
            elif found is not None and offset not in (found, SOMEWHERE) and producer.guarantees.once:
                yield Violation(Kind.MOVED, f"{what}, is at {found}")


def _place(index: int, offset: int) -> str:
    return f"in {index}" if offset == SOMEWHERE else f"at {index}@{offset}"


def _of_partition(history: History, index: int, partition: Partition) -> Iterator[Violation]:
    first_at: dict[tuple[str, int], int] = {}
    newest: dict[str, Seen] = {}
    for one in partition.records:
        producer = history.producers.get(one.producer or "")
        if producer is None or one.producer is None or not _was_sent(producer, one.number, index):
            name = "a value of no producer" if one.producer is None else f"{one.producer}:{one.number}"
            yield Violation(Kind.INVENTED, f"{name} is at {index}@{one.offset}, where no producer sent it")
            continue
        if producer.outcome_of(one.number) is Outcome.ABORTED:
            text = f"{one.producer}:{one.number} of an aborted transaction is at {index}@{one.offset}"
            yield Violation(Kind.UNCOMMITTED, text)
        record = (one.producer, one.number)
        if record in first_at:
            if producer.guarantees.once:
                where = f"{index}@{first_at[record]} and at {index}@{one.offset}"
                yield Violation(Kind.DUPLICATED, f"{one.producer}:{one.number} is at {where}")
            continue
        first_at[record] = one.offset
        before = newest.get(one.producer)
        if producer.guarantees.ordered and before is not None and before.number > one.number:
            text = f"{one.producer}:{one.number} is at {index}@{one.offset}, after {before.number} at {before.offset}"
            yield Violation(Kind.REORDERED, text)
        else:
            newest[one.producer] = one


def _was_sent(producer: Producer, number: int, partition: int) -> bool:
    return 0 <= number < len(producer.partitions) and producer.partitions[number] == partition


def _of_readers(history: History) -> Iterator[Violation]:
    for reader, partitions in history.readers.items():
        for index, seen in partitions.items():
            partition = history.partitions.get(index)
            if partition is not None and seen:
                yield from _of_reader(history, reader, index, partition, seen)


def _of_reader(
    history: History, reader: str, index: int, partition: Partition, seen: list[Seen]
) -> Iterator[Violation]:
    there = {one.offset: one for one in partition.records}
    for one in seen:
        found = there.get(one.offset)
        what = f"{reader} saw {one.producer}:{one.number} at {index}@{one.offset}"
        producer = history.producers.get(one.producer or "")
        if producer is not None and producer.outcome_of(one.number) is Outcome.ABORTED:
            yield Violation(Kind.UNCOMMITTED, f"{what}, of an aborted transaction")
        elif found is None and one.offset >= partition.start:
            yield Violation(Kind.VANISHED, f"{what}, where there is no record; the partition ends at {partition.end}")
        elif found is not None and found != one:
            yield Violation(Kind.CHANGED, f"{what}, where {found.producer}:{found.number} is")
    offsets = {one.offset for one in seen}
    for offset in there.keys() - offsets:
        if min(offsets) < offset < max(offsets):
            yield Violation(Kind.SKIPPED, f"{reader} did not see {index}@{offset}, but records before and after it")


def _of_transactions(history: History) -> Iterator[Violation]:
    there = {(one.producer, one.number) for partition in history.partitions.values() for one in partition.records}
    for name, producer in history.producers.items():
        if producer.commits_after_fencing:
            text = f"{name} committed {producer.commits_after_fencing} times after its transactional id was taken over"
            yield Violation(Kind.NOT_FENCED, text)
        end = len(producer.offsets)
        for one in reversed(producer.transactions):
            if one.outcome is Outcome.UNKNOWN:
                yield from _of_unknown(history, there, name, one, end)
            end = one.first


def _of_unknown(
    history: History, there: Set[tuple[str | None, int]], name: str, one: Transaction, end: int
) -> Iterator[Violation]:
    """Yield a violation if only some records of a transaction with unknown outcome are in the partitions."""
    partitions = history.producers[name].partitions
    whole = {index for index, partition in history.partitions.items() if not partition.start}
    judged = [number for number in range(one.first, end) if partitions[number] in whole]
    missing = [number for number in judged if (name, number) not in there]
    if missing and len(missing) < len(judged):
        text = f"of the records {name}:{one.first} to {end - 1} of one transaction, {len(missing)} are missing"
        yield Violation(Kind.TORN, f"{text}, the first is {missing[0]}; the others are present")


def longest_pause_s(history: History) -> float:
    """Return the longest time, in seconds, that a producer waited for the next acknowledgement from the same partition.

    The time from the last acknowledgement to the end of the producer counts, too. Returns 0 if nothing was
    acknowledged.
    """
    longest = 0.0
    for producer in history.producers.values():
        last: dict[int, float] = {}
        for at, partition in producer.acknowledged_at:
            longest = max(longest, at - last.get(partition, at))
            last[partition] = at
        if producer.ended_at is not None:
            longest = max([longest, *(producer.ended_at - at for at in last.values())])
    return longest
