"""The invariants of compacted topics.

* **LastValuePerKey**: every log contains the last record of each key, unless it is a tombstone; an older record of the
  key never comes back.
* **OffsetsNeverChange**: a record that compaction has not removed keeps its offset, key, value and headers, in every
  log and for every reader.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator

from parley.broker.replication.partition import Partition
from parley.protocol.records.batch import records
from parley.protocol.records.batch_header import headers
from parley.protocol.topic_partition import TopicPartition
from parley.storage.log import Log
from parley.storage.segment import Segment
from parley.tools.simulation.broker_invariants import log_of, partitions_of
from parley.tools.simulation.client_invariants import Ledger, Violations
from parley.tools.simulation.keyed_records import is_tombstone, last_of_each_key, text_of
from parley.tools.simulation.machines import Machine
from parley.tools.simulation.world import World

_READ_BYTES = 1 << 20


class CompactionInvariants:
    """The invariants of the compacted topics of a world. ``check`` and ``judge`` report those that are violated."""

    def __init__(self, world: World, ledger: Ledger, violations: Violations) -> None:
        self._world = world
        self._ledger = ledger
        self._violations = violations
        self._known: defaultdict[TopicPartition, dict[int, str]] = defaultdict(dict)
        self._checked: dict[Log, tuple[tuple[Segment, ...], int]] = {}

    def check(self) -> None:
        """Compare the new records of each log with the other logs. If segments were replaced, compare the whole log."""
        for machine, partition, log in self._logs():
            segments, position = self._checked.get(log, ((), log.log_start_offset))
            sealed = log.segments[:-1]
            if sealed[: len(segments)] != segments or position > log.log_end_offset:
                position = log.log_start_offset
            end = min(log.high_watermark, log.log_end_offset)
            self._checked[log] = sealed, end
            at = (partition.topic, partition.index)
            for offset, text in _texts(log, position, end):
                known = self._known[at].setdefault(offset, text)
                if known != text:
                    self._violations.report(
                        "OffsetsNeverChange",
                        f"{machine.host} has in {at[0]}-{at[1]} at {offset} {text}; another log has, or had, {known}",
                    )

    def judge(self) -> None:
        """Compare the last record of each key, in every log and in what the final reader has read, with the last that
        was sent. Call it at the end of the run."""
        for at, texts in self._ledger.final_reads().items():
            self._judge(at, texts, "the final reader")
        for machine, partition, log in self._logs():
            texts = [text for _, text in _texts(log, log.log_start_offset, log.high_watermark)]
            self._judge((partition.topic, partition.index), texts, machine.host)

    def _judge(self, at: TopicPartition, texts: Iterable[str], who: str) -> None:
        found = last_of_each_key(texts)
        for key, last in self._ledger.last_sent(at).items():
            if found.get(key) != last and not (is_tombstone(last) and key not in found):
                has = found.get(key, "no record")
                text = f"{who} has {has} as the last record of {key} in {at[0]}-{at[1]}, not {last}"
                self._violations.report("LastValuePerKey", text)

    def _logs(self) -> Iterator[tuple[Machine, Partition, Log]]:
        """Yield each open log of a compacted topic, with its machine."""
        for machine in self._world.machines.values():
            for partition in partitions_of(machine) if machine.serves else ():
                log = log_of(partition)
                if log is not None and partition.topic in self._ledger.compacted:
                    yield machine, partition, log


def _texts(log: Log, position: int, end: int) -> Iterator[tuple[int, str]]:
    """Yield the records of a log in [position, end) with their offsets, or up to the first position without data."""
    while position < end:
        data = bytes(log.read(position, _READ_BYTES, up_to=end).read())
        if not data:
            return
        for at, header in headers(data):
            for record in records(data[at : at + header.size_bytes]):
                if position <= record.offset < end:
                    yield record.offset, text_of(record)
            position = max(position, header.next_offset)
