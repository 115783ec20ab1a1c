"""Compaction compared with a dictionary and a list of all records, through random steps chosen by Hypothesis."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from parley.protocol.records import legacy
from parley.protocol.records.batch import build
from parley.protocol.records.batch_header import MAGIC_V2, BatchHeader
from parley.protocol.records.compression import Compression
from parley.protocol.records.control_batch import ControlType
from parley.protocol.records.record import Record
from parley.storage.log import Log
from parley.storage.log_config import LogConfig
from parley.storage.producer_snapshots import snapshot_path
from tests.storage.compaction.compactions import committed, compacted, end_transaction, settled, table
from tests.storage.logs import NOW, check_segment, open_log, reopened
from tests.support.proportion import examples

DELETE_RETENTION_MS = 1000
CONFIG = LogConfig(
    segment_bytes=1200,
    segment_index_bytes=600,
    index_interval_bytes=150,
    cleanup_policy=frozenset({"compact"}),
    delete_retention_ms=DELETE_RETENTION_MS,
)
KEYS = st.sampled_from([b"", b"a", b"b", b"c", b"dd", b"long" * 30])
VALUES = st.one_of(st.none(), st.none(), st.binary(max_size=60))
RECORDS = st.lists(
    st.tuples(
        KEYS,
        VALUES,
        st.integers(-5000, 5000),
        st.lists(st.tuples(st.sampled_from(["h", "ü"]), st.one_of(st.none(), st.binary(max_size=3))), max_size=2),
    ),
    min_size=1,
    max_size=6,
)
PRODUCERS = st.integers(1, 3)


Made = tuple[bytes, bytes | None, int, list[tuple[str, bytes | None]]]


@dataclass
class Producer:
    """The model's state of a producer. ``began`` is True while its transaction is open."""

    epoch: int = 0
    sequence: int = 0
    began: bool = False


class CompactedModel(RuleBasedStateMachine):
    """``history`` contains every data record ever appended, by offset; ``aborted`` contains the offsets of aborted
    records."""

    def __init__(self) -> None:
        super().__init__()
        self.directory = Path(tempfile.mkdtemp())
        self.now = NOW
        self.history: dict[int, Record] = {}
        self.aborted: set[int] = set()
        self.producers: dict[int, Producer] = {}
        self.open: dict[int, list[int]] = {}
        self.seen_ms: dict[int, int] = {}
        """The time at which the first finished compaction covered each record."""
        self.log: Log = open_log(self.directory, CONFIG, now_ms=lambda: self.now)

    def teardown(self) -> None:
        self.log.release()
        shutil.rmtree(self.directory)

    @initialize(segment_bytes=st.sampled_from([1200, 5000]), fixed=st.booleans())
    def configure(self, segment_bytes: int, fixed: bool) -> None:
        kind = "LogAppendTime" if fixed else "CreateTime"
        self.log.config = replace(CONFIG, segment_bytes=segment_bytes, message_timestamp_type=kind)

    # --- Growing ---

    def _append(self, found: list[Made], **fields: object) -> None:
        first = self.log.log_end_offset
        records = [Record(0, self.now + later, key, value, tuple(headers)) for key, value, later, headers in found]
        self.log.append_as_leader(build(records, **fields), leader_epoch=0, now_ms=self.now)  # type: ignore[arg-type]
        fixed = self.log.config.message_timestamp_type == "LogAppendTime"
        for n, record in enumerate(records):
            stamp = self.now if fixed else record.timestamp
            self.history[first + n] = record._replace(offset=first + n, timestamp=stamp)
        if fields.get("transactional"):
            producer_id = fields["producer_id"]
            assert isinstance(producer_id, int)
            self.open.setdefault(producer_id, []).extend(range(first, first + len(records)))

    @rule(found=RECORDS, codec=st.sampled_from(Compression))
    def append(self, found: list[Made], codec: Compression) -> None:
        self._append(found, compression=codec)

    @rule(found=RECORDS, codec=st.sampled_from(Compression), producer_id=PRODUCERS, transactional=st.booleans())
    def produce(
        self,
        found: list[Made],
        codec: Compression,
        producer_id: int,
        transactional: bool,
    ) -> None:
        producer = self.producers.setdefault(producer_id, Producer())
        producer.began = producer.began or transactional
        self._append(
            found,
            compression=codec,
            producer_id=producer_id,
            producer_epoch=producer.epoch,
            base_sequence=producer.sequence,
            transactional=producer.began,
        )
        producer.sequence += len(found)

    @rule(producer_id=PRODUCERS, commits=st.booleans(), bumps=st.booleans())
    def end(self, producer_id: int, commits: bool, bumps: bool) -> None:
        """End a transaction. Without an open transaction, the marker fences the producer."""
        producer = self.producers.setdefault(producer_id, Producer())
        if bumps:
            producer.epoch += 1
            producer.sequence = 0
        kind = ControlType.COMMIT if commits else ControlType.ABORT
        end_transaction(self.log, producer_id, producer.epoch, kind, self.now)
        producer.began = False
        ended = self.open.pop(producer_id, [])
        if not commits:
            self.aborted.update(ended)

    @rule(found=RECORDS, magic=st.integers(0, 1), codec=st.sampled_from([Compression.NONE, Compression.GZIP]))
    def copy_old_format(
        self,
        found: list[Made],
        magic: int,
        codec: Compression,
    ) -> None:
        """Append messages of an old format, as in a log that an old broker wrote."""
        first = self.log.log_end_offset
        records = [
            Record(first + n, self.now + later if magic else -1, key, value)
            for n, (key, value, later, _) in enumerate(found)
        ]
        self.log.append_as_follower(legacy.build(records, magic, compression=codec))
        assert self.log.log_end_offset == first + len(records)
        self.history |= {record.offset: record for record in records}

    @rule()
    def roll(self) -> None:
        self.log.roll()

    @rule(ms=st.sampled_from([1, 100, DELETE_RETENTION_MS]))
    def wait(self, ms: int) -> None:
        self.now += ms

    # --- Compacting ---

    @rule(map_bytes=st.sampled_from([1, 1 << 20]))
    def compact(self, map_bytes: int) -> None:
        before = {record.offset: record for _, record in self._records()}
        end = self._cleanable_end()
        result = compacted(self.log, now_ms=self.now, map_bytes=map_bytes)
        assert self.log.cleaned_up_to == result.cleaned_up_to
        if map_bytes > 1:
            assert result.cleaned_up_to == end
        self._check_removed(before, result.cleaned_up_to)
        for offset in self.history:
            if offset < result.cleaned_up_to:
                self.seen_ms.setdefault(offset, self.now)

    def _cleanable_end(self) -> int:
        settled(self.log)
        return self.log.dirtiness(self.now).end_offset

    def _records(self) -> Iterator[tuple[BatchHeader, Record]]:
        return committed(self.log)

    def _check_removed(self, before: dict[int, Record], end: int) -> None:
        """Check that this compaction removed only records that it may remove, and all that it must remove."""
        after = {record.offset for _, record in self._records()}
        last: dict[bytes | None, int] = {}
        for offset, record in sorted(self.history.items()):
            if offset < self.log.last_stable_offset and offset not in self.aborted:
                last[record.key] = offset
        last_clean: dict[bytes | None, int] = {}
        for offset, record in sorted(self.history.items()):
            if offset < end and offset not in self.aborted:
                last_clean[record.key] = offset
        for offset, record in before.items():
            is_last = offset == last_clean.get(record.key)
            if offset in after:
                assert offset >= end or is_last, f"{record} is superseded, and still there"
            else:
                expired = (
                    record.value is None
                    and offset in self.seen_ms
                    and self.seen_ms[offset] + DELETE_RETENTION_MS <= self.now
                )
                assert offset < last[record.key] or expired, f"{record} was removed too early"

    @rule(clean=st.booleans())
    def reopen(self, clean: bool) -> None:
        settled(self.log)
        cleaned = self.log.cleaned_up_to
        self.log = reopened(self.log, clean=clean, cleaned_up_to=cleaned, now_ms=lambda: self.now)
        assert self.log.cleaned_up_to == cleaned
        settled(self.log)

    @rule()
    def read_back(self) -> None:
        """Check that the producer state is unchanged, even if it must be rebuilt from the batches."""
        settled(self.log)
        known = {
            each.producer_id: (each.epoch, each.last_sequence, each.last_offset) for each in self.log.producers.entries
        }
        for offset in self.log.producers.snapshots:
            snapshot_path(self.directory, offset).unlink(missing_ok=True)
        self.log = reopened(
            self.log,
            clean=False,
            recovery_point=0,
            same_boot=True,
            cleaned_up_to=self.log.cleaned_up_to,
            now_ms=lambda: self.now,
        )
        found = {
            each.producer_id: (each.epoch, each.last_sequence, each.last_offset) for each in self.log.producers.entries
        }
        assert found == known
        settled(self.log)

    # --- What always holds ---

    @invariant()
    def the_log_is_sound(self) -> None:
        for segment in self.log.segments:
            check_segment(segment)
        for segment, following in zip(self.log.segments, self.log.segments[1:], strict=False):
            assert segment.end_offset == following.base_offset

    @invariant()
    def records_are_what_they_were(self) -> None:
        for header, record in self._records():
            assert header.magic < MAGIC_V2 or header.base_offset <= record.offset <= header.last_offset
            if record.offset not in {offset for offsets in self.open.values() for offset in offsets}:
                assert record.offset not in self.aborted
            assert record == self.history[record.offset]

    @invariant()
    def the_table_is_that_of_all_records(self) -> None:
        expected: dict[bytes, bytes] = {}
        for offset, record in sorted(self.history.items()):
            if offset not in self.aborted:
                assert record.key is not None
                if record.value is None:
                    expected.pop(record.key, None)
                else:
                    expected[record.key] = record.value
        assert table(self.log) == expected


TestCompactedModel = CompactedModel.TestCase
TestCompactedModel.settings = settings(max_examples=examples(200), stateful_step_count=40, deadline=None)
TestCompactedModel = pytest.mark.slow(TestCompactedModel)
