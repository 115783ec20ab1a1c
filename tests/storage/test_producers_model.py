"""The producer state compared with a model that derives everything from the whole log."""

from __future__ import annotations

import tempfile
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from parley.protocol.errors import ErrorCode, KafkaError
from parley.protocol.records.batch_header import BatchHeader
from parley.protocol.records.control_batch import ControlMarker
from parley.storage.producer_row import MAX_SEQUENCE, Duplicate
from parley.storage.producer_snapshots import ProducerEntry
from parley.storage.producer_state import ProducerState
from tests.storage.producer_batches import NOW, abort, batch, commit
from tests.support.proportion import examples

EXPIRATION_MS = 1000


@dataclass
class Appended:
    header: BatchHeader
    control: ControlMarker | None
    seen_ms: int


@dataclass
class Row:
    """The model's state of a producer: all its batches of the current epoch, and its open transaction."""

    epoch: int = -1
    batches: list[BatchHeader] = field(default_factory=list)
    coordinator_epoch: int = -1
    timestamp: int = -1
    seen_ms: int = -1
    began: int = -1


def expected_outcome(row: Row | None, header: BatchHeader, control: ControlMarker | None) -> object:
    """Return None, a Duplicate or an ErrorCode by Kafka's rules, except that batches of an ended transaction cannot be
    retried."""
    if row is None:
        return None
    if header.producer_epoch < row.epoch:
        return ErrorCode.INVALID_PRODUCER_EPOCH
    if control is not None:
        return ErrorCode.TRANSACTION_COORDINATOR_FENCED if control.coordinator_epoch < row.coordinator_epoch else None
    same_epoch = header.producer_epoch == row.epoch
    following = (row.batches[-1].last_sequence + 1) % (MAX_SEQUENCE + 1) if same_epoch and row.batches else 0
    if header.base_sequence != following:
        for known in row.batches[-5:] if same_epoch else []:
            has_ended = not 0 <= row.began <= known.base_offset
            sequences = {(known.base_sequence + number) % (MAX_SEQUENCE + 1) for number in range(known.record_count)}
            if header.is_transactional and has_ended and header.base_sequence in sequences:
                return ErrorCode.UNKNOWN_PRODUCER_ID
            if (known.base_sequence, known.last_sequence) == (header.base_sequence, header.last_sequence):
                return Duplicate(known.base_offset, known.last_offset, known.max_timestamp)
        return ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    if row.began >= 0 and not header.is_transactional:
        return ErrorCode.INVALID_TXN_STATE
    return None


class Producers(RuleBasedStateMachine):
    """Appends, retries, markers, time, snapshots, restarts and truncations in any order."""

    def __init__(self) -> None:
        super().__init__()
        self.folder = tempfile.TemporaryDirectory(prefix="producers")
        self.directory = Path(self.folder.name)
        self.now = NOW
        self.log: list[Appended] = []
        self.start = self.end = 0
        self.table_end = 0  # after the last batch in the table, or after the snapshot from which it was loaded
        self.completed: list[tuple[int, int]] = []
        self.snapshots: dict[int, dict[int, Row]] = {}
        self.rows: dict[int, Row] = {}
        self.state = ProducerState(self.directory, expiration_ms=EXPIRATION_MS)

    @initialize()
    def load(self) -> None:
        assert self.state.load(0, 0, self.now) == 0

    def teardown(self) -> None:
        self.folder.cleanup()

    # The model's steps

    def apply(self, header: BatchHeader, control: ControlMarker | None) -> None:
        self.forget_if_expired(header.producer_id)
        row = self.rows.get(header.producer_id)
        expected = expected_outcome(row, header, control)
        try:
            outcome: object = None
            if control is None:
                outcome = self.state.check_append(header, from_client=True, now_ms=self.now)
            else:
                self.state.check_marker(header, control, now_ms=self.now, transaction_version=0)
        except KafkaError as error:
            outcome = error.code
        assert outcome == expected
        if outcome is not None:
            return
        open_before = {row.began for row in self.rows.values() if row.began >= 0}
        completed = self.state.apply(header, now_ms=self.now, control=control)
        if control is not None and row is not None and row.began >= 0:
            assert completed is not None
            others = open_before - {row.began}
            stable = min(others, default=header.last_offset + 1)
            assert (completed.first_offset, completed.last_offset) == (row.began, header.base_offset)
            assert completed.last_stable_offset == stable
            self.completed.append((row.began, header.base_offset))
        else:
            assert completed is None
        self.learn(Appended(header, control, self.now))
        self.log.append(Appended(header, control, self.now))
        self.end = self.table_end = header.next_offset

    def learn(self, item: Appended) -> None:
        producer_id = item.header.producer_id
        before = self.rows.get(producer_id)
        row = before or Row()
        if item.header.producer_epoch != row.epoch:
            row.epoch, row.batches = item.header.producer_epoch, []
        row.timestamp, row.seen_ms = item.header.max_timestamp, item.seen_ms
        if item.control is not None:
            row.coordinator_epoch, row.began = item.control.coordinator_epoch, -1
        else:
            row.batches = [*row.batches, item.header]
            if item.header.is_transactional and row.began < 0:
                row.began = item.header.base_offset
        self.rows[producer_id] = row

    def forget_if_expired(self, producer_id: int) -> bool:
        row = self.rows.get(producer_id)
        if row is not None and row.began < 0 and self.now - row.seen_ms >= EXPIRATION_MS:
            del self.rows[producer_id]
            return True
        return False

    # The steps

    @rule(
        producer=st.integers(1, 3),
        epoch_step=st.sampled_from([0, 0, 0, 0, 1, -1]),
        sequence_step=st.sampled_from([0, 0, 0, 0, 1, -1, MAX_SEQUENCE - 1]),
        records=st.integers(1, 3),
        transactional=st.booleans(),
        age=st.integers(0, 300),
    )
    def produce(
        self, producer: int, epoch_step: int, sequence_step: int, records: int, transactional: bool, age: int
    ) -> None:
        row = self.rows.get(producer)
        epoch = max(0, (row.epoch if row else 0) + epoch_step)
        following = (row.batches[-1].last_sequence + 1) if row and row.batches and epoch == row.epoch else 0
        sequence = (following + sequence_step) % (MAX_SEQUENCE + 1)
        header = batch(
            self.end,
            producer=producer,
            epoch=epoch,
            sequence=sequence,
            records=records,
            transactional=transactional,
            timestamp=self.now - age,
        )
        self.apply(header, None)

    @rule(producer=st.integers(1, 3), back=st.integers(1, 7))
    def retry(self, producer: int, back: int) -> None:
        row = self.rows.get(producer)
        if row is not None and len(row.batches) >= back:
            self.apply(row.batches[-back]._replace(base_offset=self.end), None)

    @rule(
        producer=st.integers(1, 3),
        epoch_step=st.sampled_from([0, 0, 0, 1, -1]),
        coordinator_epoch=st.integers(0, 2),
        aborted=st.booleans(),
    )
    def end_transaction(self, producer: int, epoch_step: int, coordinator_epoch: int, aborted: bool) -> None:
        row = self.rows.get(producer)
        epoch = max(0, (row.epoch if row else 0) + epoch_step)
        make = abort if aborted else commit
        header, control = make(
            self.end, producer=producer, epoch=epoch, coordinator_epoch=coordinator_epoch, timestamp=self.now
        )
        self.apply(header, control)

    @rule(records=st.integers(1, 3))
    def produce_without_a_producer(self, records: int) -> None:
        header = batch(self.end, producer=-1, epoch=-1, sequence=-1, records=records)
        assert self.state.check_append(header, from_client=True, now_ms=self.now) is None
        assert self.state.apply(header, now_ms=self.now) is None
        self.end = header.next_offset

    @rule(ms=st.sampled_from([1, 50, 400, EXPIRATION_MS]))
    def wait(self, ms: int) -> None:
        self.now += ms

    @rule()
    def expire(self) -> None:
        expired = [producer for producer in list(self.rows) if self.forget_if_expired(producer)]
        assert self.state.expire(self.now) == len(expired)

    @rule(sync=st.booleans())
    def take_snapshot(self, sync: bool) -> None:
        self.state.take_snapshot(self.end, sync=sync)
        if self.end not in self.snapshots:
            self.snapshots[self.end] = {
                producer: Row(
                    row.epoch,
                    # One timestamp is kept: the marker's if a marker followed the batch.
                    [last._replace(max_timestamp=row.timestamp) for last in row.batches[-1:]],
                    row.coordinator_epoch,
                    row.timestamp,
                    row.timestamp,
                    row.began,
                )
                for producer, row in self.rows.items()
            }

    @rule(share=st.floats(0, 1))
    def advance_log_start(self, share: float) -> None:
        self.start += int((self.end - self.start) * share)
        self.state.on_log_start_advanced(self.start)
        self.completed = [(first, marker) for first, marker in self.completed if marker >= self.start]

    @rule(share=st.floats(0, 1))
    def raise_high_watermark(self, share: float) -> None:
        high_watermark = self.start + int((self.end - self.start) * share)
        self.state.on_high_watermark(high_watermark)
        self.completed = [(first, marker) for first, marker in self.completed if marker >= high_watermark]

    @rule(damage=st.booleans())
    def restart(self, damage: bool) -> None:
        self.state.flush()
        if damage and self.snapshots:
            newest = max(self.snapshots)
            (self.directory / f"{newest:020d}.snapshot").write_bytes(b"\0" * 10)
            del self.snapshots[newest]
        self.state = ProducerState(self.directory, expiration_ms=EXPIRATION_MS)
        self.reload()

    @rule(share=st.floats(0, 1))
    def truncate(self, share: float) -> None:
        end = self.start + int((self.end - self.start) * share)
        cut = [item for item in self.log if item.header.next_offset > end]
        if cut:
            end = min(end, cut[0].header.base_offset)
        self.start = min(self.start, end)
        self.end = end
        self.log = [item for item in self.log if item.header.next_offset <= end]
        self.state.truncate(end)
        if self.table_end > end:
            self.reload()
        else:
            self.snapshots = {at: rows for at, rows in self.snapshots.items() if self.start <= at <= end}
            assert self.state.load(self.start, end, self.now) == end
            self.completed = [(first, marker) for first, marker in self.completed if marker >= self.start]

    @rule()
    def truncate_fully(self) -> None:
        self.start = self.end = self.table_end = self.end + 10
        self.log, self.snapshots, self.rows, self.completed = [], {}, {}, []
        self.state.truncate_fully(self.end)

    @rule(share=st.floats(0, 1))
    def remove_snapshots(self, share: float) -> None:
        before = self.start + int((self.end - self.start) * share)
        self.state.remove_snapshots_before(before)
        self.snapshots = {at: rows for at, rows in self.snapshots.items() if at >= before}

    def reload(self) -> None:
        """Load the state as the log does, then append the batches from the returned offset on."""
        self.snapshots = {at: rows for at, rows in self.snapshots.items() if self.start <= at <= self.end}
        known_to = max(self.snapshots, default=self.start)
        assert self.state.load(self.start, self.end, self.now) == known_to
        self.completed = []
        self.rows = {}
        self.table_end = known_to
        for producer, row in self.snapshots.get(known_to, {}).items():
            self.rows[producer] = Row(
                row.epoch,
                list(row.batches),
                row.coordinator_epoch,
                row.timestamp,
                min(row.seen_ms, self.now),
                row.began,
            )
            self.forget_if_expired(producer)
        for item in self.log:
            if item.header.base_offset >= known_to:
                owner = self.rows.get(item.header.producer_id)
                if item.control is not None and owner is not None and owner.began >= 0:
                    self.completed.append((owner.began, item.header.base_offset))
                self.state.apply(item.header, now_ms=item.seen_ms, control=item.control)
                self.learn(item)
                self.table_end = item.header.next_offset

    @invariant()
    def the_tables_agree(self) -> None:
        expected = {
            ProducerEntry(
                producer,
                row.epoch,
                row.batches[-1].last_sequence if row.batches else -1,
                row.batches[-1].last_offset if row.batches else -1,
                row.batches[-1].last_offset_delta if row.batches else 0,
                row.timestamp,
                row.coordinator_epoch,
                row.began,
            )
            for producer, row in self.rows.items()
        }
        assert set(self.state.entries) == expected
        assert len(self.state) == len(expected)

    @invariant()
    def the_first_unstable_offset_agrees(self) -> None:
        unstable = [row.began for row in self.rows.values() if row.began >= 0]
        unstable += [first for first, _ in self.completed]
        assert self.state.first_unstable_offset == min(unstable, default=None)

    @rule()
    def flush(self) -> None:
        self.state.flush()
        assert self.on_disk() == set(self.snapshots)

    def on_disk(self) -> set[int]:
        return {int(path.name[:20]) for path in self.directory.glob("*.snapshot")}

    @invariant()
    def the_snapshots_are_known(self) -> None:
        assert self.state.snapshots == tuple(sorted(self.snapshots))
        assert self.on_disk() <= set(self.snapshots)


TestProducers = Producers.TestCase
TestProducers.settings = settings(max_examples=examples(240), stateful_step_count=50, deadline=None)
TestProducers = pytest.mark.slow(TestProducers)
