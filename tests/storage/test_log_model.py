"""A log compared with a list, through random steps chosen by Hypothesis."""

from __future__ import annotations

import shutil
import tempfile
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from parley.protocol.records.batch import records
from parley.protocol.records.batch_header import headers
from parley.storage.log import Log
from parley.storage.log_config import LogConfig
from tests.storage.logs import NOW, apply_retention, batch_of, check, open_log, reopened
from tests.support.proportion import examples

SMALL_CONFIG = LogConfig(segment_bytes=1500, segment_index_bytes=200, index_interval_bytes=150)


@dataclass(frozen=True)
class Batch:
    """The model's description of a batch in the log."""

    first: int
    values: tuple[bytes, ...]
    timestamp: int
    epoch: int
    producer: int

    @property
    def next(self) -> int:
        return self.first + len(self.values)


class LogModel(RuleBasedStateMachine):
    """``batches`` is the content of the log; ``start`` is its log start offset."""

    def __init__(self) -> None:
        super().__init__()
        self.directory = Path(tempfile.mkdtemp())
        self.batches: list[Batch] = []
        self.start = 0
        self.end = 0
        self.flushed = 0
        self.epoch = 0
        self.next_sequence: dict[int, int] = {}
        self.log: Log = open_log(self.directory, SMALL_CONFIG)

    def teardown(self) -> None:
        self.log.release()
        shutil.rmtree(self.directory)

    @initialize(
        preallocate=st.booleans(), interval=st.sampled_from([0, 150, 100_000]), segment_ms=st.sampled_from([50, 10**9])
    )
    def configure(self, preallocate: bool, interval: int, segment_ms: int) -> None:
        self.log.config = replace(
            SMALL_CONFIG, preallocate=preallocate, index_interval_bytes=interval, segment_ms=segment_ms
        )

    # Growing

    @rule(
        sizes=st.lists(st.integers(0, 300), min_size=1, max_size=4),
        later=st.integers(-20, 40),
        producer=st.sampled_from([-1, -1, 5, 6]),
        new_epoch=st.booleans(),
    )
    def append(self, sizes: list[int], later: int, producer: int, new_epoch: bool) -> None:
        self.epoch += new_epoch
        values = tuple(b"%d" % (self.end + n) + b"v" * size for n, size in enumerate(sizes))
        timestamp = (self.batches[-1].timestamp if self.batches else NOW) + later
        fields = {}
        if producer >= 0:
            sequence = self.next_sequence.get(producer, 0)
            fields = {"producer_id": producer, "producer_epoch": 0, "base_sequence": sequence}
            self.next_sequence[producer] = sequence + len(values)
        batch = batch_of(*values, timestamp=timestamp, **fields)
        info = self.log.append_as_leader(batch, leader_epoch=self.epoch, now_ms=NOW)
        assert (info.first_offset, info.last_offset) == (self.end, self.end + len(values) - 1)
        assert (info.max_timestamp, info.record_count, info.size_bytes) == (timestamp, len(values), len(batch))
        self.batches.append(Batch(self.end, values, timestamp, self.epoch, producer))
        self.end = self.batches[-1].next

    @rule(gap=st.integers(0, 5), count=st.integers(1, 12))
    def follow(self, gap: int, count: int) -> None:
        answer = bytearray()
        for n in range(count):
            first = self.end + (gap if n == count // 2 else 0)
            batch = Batch(first, (b"%d" % first + b"f" * 100,), NOW + first, self.epoch, -1)
            answer += batch_of(
                *batch.values, timestamp=batch.timestamp, base_offset=first, partition_leader_epoch=self.epoch
            )
            self.batches.append(batch)
            self.end = batch.next
        assert self.log.append_as_follower(answer).record_count == count

    @rule()
    def roll(self) -> None:
        self.log.roll()

    @rule(part=st.floats(0, 1))
    def commit(self, part: float) -> None:
        self.log.high_watermark = int(self.start + (self.end - self.start) * part)

    # Cutting

    @rule(part=st.floats(0, 1))
    def truncate(self, part: float) -> None:
        self.cut_to(int(self.start + (self.end - self.start) * part))

    def cut_to(self, offset: int) -> None:
        self.log.truncate_to(offset)
        if offset < self.end:
            self.batches = [batch for batch in self.batches if batch.next <= offset]
            self.end = self.batches[-1].next if self.batches else self.log.segments[0].base_offset
        offset = self.end
        self.start = min(self.start, offset)
        self.flushed = min(self.flushed, offset)
        self.count_sequences()

    def count_sequences(self) -> None:
        """Update the next sequence number of each producer; producers whose batches were truncated begin at 0."""
        last: dict[int, int] = {}
        for producer in (5, 6):
            known = next((e for e in self.log.producers.entries if e.producer_id == producer), None)
            last[producer] = known.last_sequence + 1 if known is not None and known.last_sequence >= 0 else 0
        self.next_sequence = last

    @rule(ahead=st.integers(0, 100))
    @precondition(lambda self: len(self.batches) > 30)
    def start_anew(self, ahead: int) -> None:
        offset = self.end + ahead
        self.log.truncate_fully_and_start_at(offset)
        self.batches = []
        self.start = self.end = self.flushed = offset
        self.next_sequence = {}

    @rule(part=st.floats(0, 1))
    def delete_records(self, part: float) -> None:
        self.start = max(self.start, int(self.start + (self.log.high_watermark - self.start) * part))
        assert self.log.advance_log_start(self.start) == self.start

    @rule(keep=st.integers(-1, 6000))
    def retain(self, keep: int) -> None:
        self.log.config = replace(self.log.config, retention_bytes=keep, retention_ms=-1)
        for path in apply_retention(self.log, NOW):
            path.unlink()
        first = self.log.segments[0].base_offset
        self.flushed = max(self.flushed, first)  # nothing below the first segment has to be on disk
        assert self.start >= first or first <= self.log.high_watermark
        self.start = max(self.start, first)
        self.batches = [batch for batch in self.batches if batch.next > first]

    # Stopping

    @rule(part=st.floats(0, 1))
    def flush(self, part: float) -> None:
        self.flushed = max(self.flushed, int(self.end * part))
        self.log.flush(self.flushed)
        assert self.log.recovery_point == self.flushed

    @rule(clean=st.booleans())
    def reopen(self, clean: bool) -> None:
        high_watermark = self.log.high_watermark
        self.log = reopened(self.log, clean=clean)
        assert self.log.log_end_offset == self.end
        self.log.high_watermark = high_watermark
        if clean:
            self.flushed = self.end
        self.count_sequences()

    @rule(cut=st.integers(1, 400))
    @precondition(lambda self: self.log.segments[-1].size and self.flushed < self.end)
    def tear(self, cut: int) -> None:
        """Crash, and lose the end of the unflushed data."""
        active = self.log.segments[-1]
        unflushed = [batch for batch in self.batches if batch.next > max(self.flushed, active.base_offset)]
        if not unflushed:
            return
        position = next((at for at, header in active.batches() if header.last_offset >= unflushed[0].first), 0)
        self.log.release()
        path = active.path_of(".log")
        end = max(position, active.size - cut)
        with open(path, "r+b") as file:
            file.truncate(end)
        self.log = open_log(
            self.directory, self.log.config, recovery_point=self.log.recovery_point, log_start_offset=self.start
        )
        kept = self.log.log_end_offset
        assert kept >= self.flushed or kept >= self.start
        lost = [batch for batch in self.batches if batch.next > kept]
        assert all(batch.next > self.flushed for batch in lost)
        self.batches = [batch for batch in self.batches if batch.next <= kept]
        self.start = self.log.log_start_offset
        self.end = kept
        self.flushed = min(self.flushed, kept)
        self.count_sequences()

    # Comparing

    @invariant()
    def agrees(self) -> None:
        assert (self.log.log_start_offset, self.log.log_end_offset) == (self.start, self.end)
        assert self.log.size_bytes == sum(segment.size for segment in self.log.segments)

    @rule()
    def everything_is_consistent(self) -> None:
        check(self.log)

    @rule(part=st.floats(0, 1), size=st.integers(0, 2000), bound=st.floats(0, 1))
    def read(self, part: float, size: int, bound: float) -> None:
        offset = int(self.start + (self.end - self.start) * part)
        up_to = int(self.start + (self.end - self.start) * bound)
        found = []
        data = self.log.read(offset, size, up_to=up_to).read()
        for position, header in headers(data):
            found.append((header.base_offset, tuple(record.value for record in records(data, position))))
        expected = [(b.first, b.values) for b in self.batches if b.next > offset and b.next <= up_to]
        unreached = next((b for b in self.batches if b.next > offset and b.next > up_to), None)
        if unreached is not None:
            expected = [pair for pair in expected if pair[0] < unreached.first]
        if offset >= up_to:
            expected = []
        assert found == expected[: len(found)]
        assert bool(found) == bool(expected)
        assert len(found) <= 1 or len(data) <= size

    @rule(part=st.floats(-0.1, 1.1))
    def by_time(self, part: float) -> None:
        live = [
            (batch.timestamp, batch.first + n, batch.epoch)
            for batch in self.batches
            for n in range(len(batch.values))
            if batch.first + n >= self.start
        ]
        low, high = (min(live)[0], max(live)[0]) if live else (NOW, NOW)
        wanted = int(low + (high - low) * part)
        assert self.log.offset_for_timestamp(wanted) == next((found for found in live if found[0] >= wanted), None)
        if live and all(batch.first >= self.start for batch in self.batches):
            assert self.log.max_timestamp() == next(found for found in live if found[0] == high)


TestLogModel = LogModel.TestCase
TestLogModel.settings = settings(max_examples=examples(200), stateful_step_count=40, deadline=None)
TestLogModel = pytest.mark.slow(TestLogModel)
