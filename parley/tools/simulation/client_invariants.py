"""The ledger of the records that clients sent and read, and the invariants that it checks.

* **NoCommittedLoss**: a record that was acknowledged, or read once, stays at its offset forever, for every reader.
* **NoAlteredRecord**: no reader receives a batch with a wrong checksum.
* **NoDuplicateFromIdempotent**: no record of an idempotent producer is at two offsets.
* **HighWatermarkNeverBack**: the end offset that a reader sees never decreases, and the reader's position stays in
  range.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass

from parley.protocol.errors import ErrorCode
from parley.protocol.topic_partition import TopicPartition
from parley.tools.simulation.event_history import History
from parley.tools.simulation.keyed_records import last_of_each_key


@dataclass(frozen=True, slots=True)
class Violation:
    """A violated invariant: its name and a text. ``at`` is in seconds of virtual time."""

    invariant: str
    at: float
    text: str

    def __str__(self) -> str:
        return f"{self.invariant} at {self.at:.4f}: {self.text}"


class Violations:
    """The violations found in a run."""

    def __init__(self, history: History) -> None:
        self.found: list[Violation] = []
        self._history = history

    def report(self, invariant: str, text: str) -> None:
        """Add a violation, unless it was reported before."""
        if not any(each.invariant == invariant and each.text == text for each in self.found):
            self.found.append(Violation(invariant, self._history.now(), text))
            self._history.note("INVARIANT", f"{invariant}: {text.partition(chr(10))[0]}")

    @property
    def first(self) -> Violation | None:
        """The first violation found, or None."""
        return self.found[0] if self.found else None


class Ledger:
    """The records that the clients of a run have sent, acknowledged and read, by offset. Contradictions are reported as
    violations."""

    def __init__(self, history: History, violations: Violations, *, compacted: Collection[str] = ()) -> None:
        """``compacted`` are the compacted topics, whose invariants are in ``compaction_invariants.py``."""
        self.history = history
        self.compacted = compacted
        self.acknowledged_end: defaultdict[TopicPartition, int] = defaultdict(int)
        """The offset after the last acknowledged record."""
        self.acknowledged_at: defaultdict[TopicPartition, float] = defaultdict(float)
        """The virtual time, in seconds, of the last acknowledgement."""
        self._violations = violations
        self._value_at: defaultdict[TopicPartition, dict[int, str]] = defaultdict(dict)
        self._offset_of: defaultdict[TopicPartition, dict[str, int]] = defaultdict(dict)
        self._acknowledged_values: defaultdict[TopicPartition, dict[str, None]] = defaultdict(dict)
        self._reached: defaultdict[tuple[str, str, int], int] = defaultdict(int)
        self._read_by_final_reader: defaultdict[TopicPartition, dict[str, None]] = defaultdict(dict)
        self._sent: defaultdict[TopicPartition, list[str]] = defaultdict(list)

    @property
    def records_acknowledged(self) -> int:
        """The number of records acknowledged to producers."""
        return sum(map(len, self._acknowledged_values.values()))

    # --- Reports of producers ---

    def sent(self, who: str, topic: str, partition: int, values: list[str]) -> None:
        """Record that a batch was sent for the first time."""
        if topic in self.compacted:
            self._sent[topic, partition] += values
        self.history.note(who, f"sends {topic}-{partition} {' '.join(values)}")

    def acknowledged(self, who: str, topic: str, partition: int, values: list[str], offset: int, node: int) -> None:
        """Record that a batch was acknowledged. ``offset`` is -1 if the broker responded without an offset, because the
        batch is a duplicate that it no longer remembers."""
        where = f"at {offset}" if offset >= 0 else "as a duplicate"
        self.history.note(who, f"  acknowledged by {node} {topic}-{partition} {' '.join(values)} {where}")
        at = (topic, partition)
        self._acknowledged_values[at] |= dict.fromkeys(values)
        self.acknowledged_at[at] = self.history.now()
        if offset >= 0:
            self.acknowledged_end[at] = max(self.acknowledged_end[at], offset + len(values))
            for i, value in enumerate(values):
                self._settle(at, offset + i, value, f"acknowledged to {who} by broker {node}")

    def refused(self, who: str, topic: str, partition: int, values: list[str], code: ErrorCode, node: int) -> None:
        """Report that a batch was rejected with an error that implies the loss of acknowledged records."""
        text = f"broker {node} responds with {code.name} to {who} for {topic}-{partition} {values[0]}"
        self._violations.report("NoCommittedLoss", text)

    # --- Reports of readers ---

    def read(self, who: str, topic: str, partition: int, offset: int, value: str, node: int) -> None:
        """Record that a reader has read a record, and report a violation if the record was known at another offset, or
        another record at this offset."""
        self.history.note(who, f"reads {topic}-{partition} {value} at {offset} from {node}")
        at = (topic, partition)
        self._settle(at, offset, value, f"read by {who} from broker {node}")
        self._reach(who, topic, partition, offset + 1)
        if who == FINAL_READER:
            self._read_by_final_reader[at][value] = None

    def read_damaged(self, who: str, topic: str, partition: int, offset: int, node: int, error: str) -> None:
        """Report that a reader has received a batch that differs from what a producer sent."""
        text = f"broker {node} serves {who} a damaged batch at {offset} in {topic}-{partition}: {error}"
        self._violations.report("NoAlteredRecord", text)

    def saw_end(self, who: str, topic: str, partition: int, end: int, node: int, epoch: int) -> None:
        """Record the end offset that a broker returned to a reader. Reports a violation if the reader had already
        reached a higher offset."""
        reached = self._reached[who, topic, partition]
        if end < reached:
            self._violations.report(
                "HighWatermarkNeverBack",
                f"{who} had reached {reached} in {topic}-{partition}; "
                f"broker {node}, leader of epoch {epoch}, responds with the end {end}",
            )
        self._reach(who, topic, partition, end)

    def out_of_range(self, who: str, topic: str, partition: int, position: int, node: int, epoch: int) -> None:
        """Report that a reader's fetch was rejected at a position that the reader had already reached."""
        self._violations.report(
            "HighWatermarkNeverBack",
            f"{position} in {topic}-{partition} is out of range for {who} at broker {node}, leader of epoch {epoch}",
        )

    def _reach(self, who: str, topic: str, partition: int, end: int) -> None:
        self._reached[who, topic, partition] = max(self._reached[who, topic, partition], end)

    def _settle(self, at: TopicPartition, offset: int, value: str, how: str) -> None:
        name = f"{at[0]}-{at[1]}"
        known = self._value_at[at].setdefault(offset, value)
        if known != value:
            invariant = "OffsetsNeverChange" if at[0] in self.compacted else "NoCommittedLoss"
            self._violations.report(invariant, f"{name} at {offset} was {known}, and is {value} ({how})")
        before = self._offset_of[at].setdefault(value, offset)
        if before != offset:
            text = f"{value} is in {name} at {before} and at {offset} ({how})"
            self._violations.report("NoDuplicateFromIdempotent", text)

    # --- The end of the run ---

    def read_to_end(self, who: str, topic: str, partition: int, end: int) -> None:
        """Record that a reader has reached the end of a partition."""
        self.history.note(who, f"has read {topic}-{partition} to its end {end}")

    def judge(self) -> None:
        """Report the acknowledged records that ``FINAL_READER`` did not find."""
        for (topic, partition), value in self._missing():
            self._violations.report("NoCommittedLoss", f"the acknowledged record {value} is not in {topic}-{partition}")

    def final_reads(self) -> Mapping[TopicPartition, Sequence[str]]:
        """Return the records that ``FINAL_READER`` has read from compacted topics, in order, by partition."""
        return {at: list(values) for at, values in self._read_by_final_reader.items() if at[0] in self.compacted}

    def last_sent(self, at: TopicPartition) -> Mapping[str, str]:
        """Return the last record sent for each key. Each key has only one producer, so the order of sending is the
        order of the log."""
        return last_of_each_key(self._sent[at])

    def _missing(self) -> Iterator[tuple[TopicPartition, str]]:
        for at, values in self._acknowledged_values.items():
            for value in values if at[0] not in self.compacted else ():
                if value not in self._read_by_final_reader[at]:
                    yield at, value


FINAL_READER = "final-reader"
"""The name of the reader that reads everything once more at the end of the run."""
