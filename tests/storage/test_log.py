"""A partition's log: appending, rolling, truncating at both ends, and failing disks."""

from __future__ import annotations

import errno
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from parley.protocol.errors import ErrorCode, KafkaError
from parley.protocol.records.batch import build, records
from parley.protocol.records.batch_header import headers
from parley.protocol.records.control_batch import ControlMarker, ControlType, build_marker
from parley.protocol.records.record import Record
from parley.protocol.uuids import UUID
from parley.storage import timestamp_lookup
from parley.storage.damage.appended_epochs import APPENDED_EPOCHS, AppendedEpochs
from parley.storage.log import AppendInfo, Log, Origin
from parley.storage.log_config import LogConfig
from parley.storage.log_reader import LogReader
from parley.storage.resource_exhaustion import MEMORY
from parley.storage.segment import Segment
from tests.storage.logs import (
    NOW,
    SMALL,
    append,
    apply_retention,
    batch_of,
    batches_in,
    check,
    fill,
    open_log,
    reopened,
    values_of,
)
from tests.support.descriptors import open_descriptors
from tests.support.faulty_files import only_below


@pytest.fixture
def log(tmp_path: Path) -> Log:
    return open_log(tmp_path)


def refused(log: Log, batches: bytearray, **how: Any) -> ErrorCode:
    end, size = log.log_end_offset, log.size_bytes
    with pytest.raises(KafkaError) as refusal:
        log.append_as_leader(batches, leader_epoch=0, now_ms=NOW, **how)
    assert (log.log_end_offset, log.size_bytes) == (end, size)
    return refusal.value.code


class TestAppending:
    def test_offsets_and_epoch_are_patched_in_place(self, log: Log) -> None:
        append(log, b"a", b"b")
        batch = batch_of(b"c", b"d", b"e")
        info = log.append_as_leader(batch, leader_epoch=7, now_ms=NOW)
        assert info == AppendInfo(2, 4, NOW, -1, 0, False, 3, len(batch))
        header = next(headers(batch))[1]
        assert (header.base_offset, header.partition_leader_epoch) == (2, 7)
        assert log.end_offset_for_epoch(0) == (0, 2)
        assert log.end_offset_for_epoch(7) == (7, 5)
        check(log)

    def test_a_view_of_a_request_is_patched_in_place_too(self, log: Log) -> None:
        frame = bytearray(b"head") + batch_of(b"a") + b"tail"
        log.append_as_leader(memoryview(frame)[4:-4], leader_epoch=0, now_ms=NOW)
        assert values_of(log) == {0: b"a"}

    def test_several_batches_at_once(self, log: Log) -> None:
        info = log.append_as_leader(batch_of(b"a") + batch_of(b"b", b"c"), leader_epoch=0, now_ms=NOW)
        assert (info.first_offset, info.last_offset, info.record_count) == (0, 2, 3)
        assert values_of(log) == {0: b"a", 1: b"b", 2: b"c"}

    def test_log_append_time(self, tmp_path: Path) -> None:
        log = open_log(tmp_path, replace(SMALL, message_timestamp_type="LogAppendTime"))
        info = log.append_as_leader(batch_of(b"a", timestamp=5), leader_epoch=0, now_ms=NOW + 3)
        assert (info.log_append_time_ms, info.max_timestamp) == (NOW + 3, NOW + 3)
        assert [r.timestamp for _, data in batches_in(log) for r in records(data)] == [NOW + 3]
        assert reopened(log, clean=False).log_end_offset == 1

    def test_batches_larger_than_the_topic_allows_are_refused(self, tmp_path: Path) -> None:
        log = open_log(tmp_path, replace(SMALL, max_message_bytes=500, segment_bytes=900))
        assert refused(log, batch_of(b"v" * 500)) == ErrorCode.MESSAGE_TOO_LARGE
        assert refused(log, batch_of(b"v" * 300) * 3) == ErrorCode.RECORD_LIST_TOO_LARGE

    def test_bytes_that_are_not_a_batch(self, log: Log) -> None:
        assert refused(log, bytearray()) == ErrorCode.CORRUPT_MESSAGE
        assert refused(log, batch_of(b"a")[:-1]) == ErrorCode.CORRUPT_MESSAGE
        assert refused(log, batch_of(b"a") + b"more") == ErrorCode.CORRUPT_MESSAGE
        legacy = batch_of(b"a")
        legacy[16] = 1
        assert refused(log, legacy) == ErrorCode.INVALID_RECORD

    def test_an_idempotent_batch_is_written_once(self, log: Log) -> None:
        append(log, b"x")
        batch = batch_of(b"a", b"b", producer_id=9, producer_epoch=0, base_sequence=0)
        first = log.append_as_leader(bytearray(batch), leader_epoch=0, now_ms=NOW)
        append(log, b"y")
        again = log.append_as_leader(batch, leader_epoch=0, now_ms=NOW)
        assert (again.first_offset, again.last_offset, again.duplicate) == (1, 2, True)
        assert not first.duplicate
        assert values_of(log) == {0: b"x", 1: b"a", 2: b"b", 3: b"y"}
        gap = batch_of(b"c", producer_id=9, producer_epoch=0, base_sequence=5)
        assert refused(log, gap) == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
        check(log)

    def test_a_closed_log_takes_nothing(self, log: Log) -> None:
        log.close()
        log.close()
        assert refused(log, batch_of(b"a")) == ErrorCode.KAFKA_STORAGE_ERROR
        with pytest.raises(KafkaError):
            log.read(0, 100, up_to=0)


class TestFollowing:
    def test_batches_go_in_as_they_are(self, log: Log, tmp_path: Path) -> None:
        (tmp_path / "f").mkdir()
        follower = open_log(tmp_path / "f")
        fill(log, 50)
        append(log, b"z", epoch=4)
        while follower.log_end_offset < log.log_end_offset:
            read = log.read(follower.log_end_offset, 700, up_to=log.log_end_offset)
            info = follower.append_as_follower(read.read())
            assert info.last_offset == follower.log_end_offset - 1
        assert [data for _, data in batches_in(follower)] == [data for _, data in batches_in(log)]
        assert follower.leader_epochs.entries == log.leader_epochs.entries
        check(follower)

    @pytest.mark.parametrize("sizes", [(10, 300, 80), (300, 10, 80)])
    def test_batches_of_different_sizes_in_one_response(self, log: Log, sizes: tuple[int, ...]) -> None:
        values = [b"v" * size for size in sizes]
        fetched = b"".join(batch_of(value, base_offset=n) for n, value in enumerate(values))
        assert log.append_as_follower(fetched).size_bytes == len(fetched)
        assert values_of(log) == dict(enumerate(values))
        check(log)

    def test_a_batch_cut_off_at_the_end_is_left_out(self, log: Log) -> None:
        info = log.append_as_follower(batch_of(b"a") + batch_of(b"b", base_offset=1)[:-1])
        assert (info.first_offset, info.last_offset, info.record_count) == (0, 0, 1)
        info = log.append_as_follower(batch_of(b"b", base_offset=1)[:-1])
        assert (info.first_offset, info.last_offset, info.record_count) == (1, 0, 0)

    def test_gaps_are_kept(self, log: Log) -> None:
        log.append_as_follower(batch_of(b"a", base_offset=5) + batch_of(b"b", base_offset=100))
        assert log.log_end_offset == 101
        assert values_of(log) == {5: b"a", 100: b"b"}
        assert log.read(50, 1000, up_to=101).size > 0
        check(log)

    def test_an_offset_out_of_reach_of_the_segment_begins_a_new_one(self, log: Log) -> None:
        log.append_as_follower(batch_of(b"a"))
        log.append_as_follower(batch_of(b"b", base_offset=1 << 40))
        assert values_of(log) == {0: b"a", 1 << 40: b"b"}
        assert len(log.segments) == 2
        check(log)
        check(reopened(log, clean=False))

    @pytest.mark.parametrize("base", [0, 1])
    def test_offsets_that_do_not_rise_are_refused(self, log: Log, base: int) -> None:
        append(log, b"a", b"b")
        with pytest.raises(KafkaError) as refusal:
            log.append_as_follower(batch_of(b"c", base_offset=base))
        assert refusal.value.code == ErrorCode.CORRUPT_MESSAGE
        assert log.log_end_offset == 2

    def test_a_wrong_checksum_is_refused(self, log: Log) -> None:
        batch = batch_of(b"a")
        batch[-1] ^= 1
        with pytest.raises(KafkaError):
            log.append_as_follower(batch)
        assert log.log_end_offset == 0

    def test_an_answer_larger_than_a_segment_fills_several(self, log: Log) -> None:
        answer = b"".join(batch_of(b"v" * 900, base_offset=n) for n in range(20))
        answer += batch_of(b"v" * 9000, base_offset=20)
        info = log.append_as_follower(answer)
        assert (info.first_offset, info.last_offset, info.record_count, info.size_bytes) == (0, 20, 21, len(answer))
        assert max(segment.size for segment in log.segments[:-1]) <= SMALL.segment_bytes
        check(log)


class TestRolling:
    def test_by_size(self, log: Log) -> None:
        values = fill(log, 200)
        assert len(log.segments) > 5
        assert all(segment.size <= SMALL.segment_bytes for segment in log.segments)
        assert values_of(log) == dict(enumerate(values))
        check(log)

    def test_sealed_segments_are_trimmed(self, log: Log) -> None:
        fill(log, 100)
        *sealed, active = log.segments
        for segment in sealed:
            assert segment.path_of(".index").stat().st_size == 8 * segment.offset_index.count
            assert segment.path_of(".timeindex").stat().st_size == 12 * segment.time_index.count
        assert active.path_of(".index").stat().st_size == SMALL.segment_index_bytes

    def test_by_record_time(self, tmp_path: Path) -> None:
        log = open_log(tmp_path, LogConfig(segment_ms=1000))
        append(log, b"a", timestamp=NOW)
        append(log, b"b", timestamp=NOW + 1000)
        assert len(log.segments) == 1
        append(log, b"c", timestamp=NOW + 1001)
        assert [segment.base_offset for segment in log.segments] == [0, 2]

    def test_by_the_wall_clock_without_record_times(self, tmp_path: Path) -> None:
        log = open_log(tmp_path, LogConfig(segment_ms=1000))
        for now in (NOW, NOW + 1000, NOW + 1001):
            log.append_as_leader(batch_of(b"a", timestamp=-1), leader_epoch=0, now_ms=now)
        assert [segment.base_offset for segment in log.segments] == [0, 2]

    def test_jitter_makes_it_earlier(self, tmp_path: Path) -> None:
        log = open_log(tmp_path, LogConfig(segment_ms=1000, segment_jitter_ms=1000))
        append(log, b"a", timestamp=NOW)
        append(log, b"b", timestamp=NOW + 1000)
        assert len(log.segments) == 2

    def test_by_a_full_index(self, tmp_path: Path) -> None:
        log = open_log(tmp_path, LogConfig(segment_index_bytes=80, index_interval_bytes=10))
        fill(log, 50)
        assert len(log.segments) > 3
        check(log)

    def test_a_preallocated_segment_is_trimmed(self, tmp_path: Path) -> None:
        log = open_log(tmp_path, replace(SMALL, preallocate=True))
        values = fill(log, 60)
        *sealed, active = log.segments
        assert active.path_of(".log").stat().st_size == SMALL.segment_bytes
        assert all(segment.path_of(".log").stat().st_size == segment.size for segment in sealed)
        log = reopened(reopened(log, clean=False), clean=True)
        assert values_of(log) == dict(enumerate(values))

    def test_on_demand_but_not_when_empty(self, log: Log) -> None:
        log.roll()
        append(log, b"a")
        log.roll()
        log.roll()
        assert [segment.base_offset for segment in log.segments] == [0, 1]
        assert log.producers.snapshots == (1,)

    def test_not_by_a_restart(self, log: Log) -> None:
        for clean in (True, False, True):
            fill(log, 5)
            log = reopened(log, clean=clean)
            assert len(log.segments) == 1
            check(log)


def test_only_batches_of_idempotent_producers_leave_a_state(log: Log) -> None:
    append(log, b"plain")
    log.append_as_follower(batch_of(b"fetched", base_offset=1))
    assert len(log.producers) == 0
    for _ in range(2):
        assert append(log, b"v", producer_id=0, producer_epoch=0, base_sequence=0) == 2, "the second is a duplicate"
    assert [entry.producer_id for entry in log.producers.entries] == [0]


class TestTransactions:
    def test_the_last_stable_offset_waits_for_the_marker_to_be_replicated(self, log: Log) -> None:
        append(log, b"a")
        append(log, b"b", producer_id=9, producer_epoch=0, base_sequence=0, transactional=True)
        log.high_watermark = 2
        assert log.last_stable_offset == 1
        self.end(log, ControlType.COMMIT)
        assert log.last_stable_offset == 1
        log.high_watermark = 3
        assert log.last_stable_offset == 3
        assert log.aborted_transactions(0, 3) == []

    def test_a_follower_learns_of_aborted_transactions_within_the_fetched_records(
        self, log: Log, tmp_path: Path
    ) -> None:
        fill(log, 5)
        append(log, b"b" * 3000, producer_id=9, producer_epoch=0, transactional=True, base_sequence=0)
        self.end(log, ControlType.ABORT)
        fill(log, 5)
        end = log.log_end_offset
        folder = tmp_path / "follower"
        folder.mkdir()
        follower = open_log(folder)
        while follower.log_end_offset < end:
            follower.append_as_follower(log.read(follower.log_end_offset, 1 << 20, up_to=end).read())
        log.high_watermark = follower.high_watermark = end
        assert follower.last_stable_offset == end
        assert follower.aborted_transactions(0, end) == log.aborted_transactions(0, end) != []
        check(follower)

    def test_the_last_stable_offset_is_not_beyond_the_high_watermark(self, log: Log) -> None:
        fill(log, 2)
        append(log, b"b", producer_id=9, producer_epoch=0, base_sequence=0, transactional=True)
        for high_watermark in (0, 1, 2):
            log.high_watermark = high_watermark
            assert log.last_stable_offset == high_watermark

    def test_aborted_ones_are_found_in_any_later_segment(self, log: Log) -> None:
        append(log, b"b", producer_id=9, producer_epoch=0, base_sequence=0, transactional=True)
        fill(log, 100)
        self.end(log, ControlType.ABORT)
        fill(log, 50)
        log.high_watermark = log.log_end_offset
        for clean in (True, False):
            (found,) = log.aborted_transactions(0, 1)
            assert (found.producer_id, found.first_offset, found.last_offset) == (9, 0, 101)
            assert log.aborted_transactions(102, 110) == []
            log = reopened(log, clean=clean)
            check(log)

    def test_a_transaction_can_end_however_small_the_batches_that_the_topic_accepts(self, tmp_path: Path) -> None:
        log = open_log(tmp_path)
        append(log, b"a", producer_id=9, producer_epoch=0, base_sequence=0, transactional=True)
        log.config = replace(log.config, max_message_bytes=10)
        assert refused(log, batch_of(b"b")) == ErrorCode.MESSAGE_TOO_LARGE
        self.end(log, ControlType.COMMIT)
        assert log.log_end_offset == 2
        assert log.producers.first_unstable_offset == 0, "until the marker is replicated"
        log.high_watermark = 2
        assert log.last_stable_offset == 2

    @staticmethod
    def end(log: Log, kind: ControlType) -> None:
        marker = build_marker(ControlMarker(kind, 0), producer_id=9, producer_epoch=0, timestamp=NOW)
        log.append_as_leader(marker, leader_epoch=0, now_ms=NOW, origin=Origin.COORDINATOR)


class TestRetention:
    def test_by_size(self, tmp_path: Path) -> None:
        log = open_log(tmp_path, replace(SMALL, retention_bytes=10_000))
        values = fill(log, 200)
        log.high_watermark = log.log_end_offset
        paths = apply_retention(log, NOW)
        assert 10_000 <= log.size_bytes < 10_000 + SMALL.segment_bytes
        assert log.log_start_offset == log.segments[0].base_offset > 0
        assert all(path.name.endswith(".deleted") and path.exists() for path in paths)
        assert values_of(log) == dict(list(enumerate(values))[log.log_start_offset :])
        assert min(log.producers.snapshots) >= log.log_start_offset
        check(log)

    def test_by_age_even_the_active_one(self, tmp_path: Path) -> None:
        log = open_log(tmp_path, replace(SMALL, retention_ms=1000))
        fill(log, 100, timestamp=NOW)
        log.high_watermark = log.log_end_offset
        assert apply_retention(log, NOW + 1000) == []
        assert apply_retention(log, NOW + 1001)
        assert (log.log_start_offset, log.size_bytes, len(log.segments)) == (100, 0, 1)
        assert apply_retention(log, NOW + 5000) == []
        check(log)

    def test_records_without_time_age_by_their_file(self, tmp_path: Path) -> None:
        log = open_log(tmp_path, replace(SMALL, retention_ms=1000))
        fill(log, 10, timestamp=-1)
        log.high_watermark = log.log_end_offset
        os.utime(log.segments[0].path_of(".log"), ns=(0, NOW * 1_000_000))
        assert not apply_retention(log, NOW + 1000)
        assert apply_retention(log, NOW + 1001)

    def test_only_segments_below_the_offset_that_was_passed_are_deleted(self, tmp_path: Path) -> None:
        """The log start offset has moved on in the meantime, and no checkpoint contains the new one."""
        log = open_log(tmp_path, replace(SMALL, retention_ms=0))
        fill(log, 100)
        log.high_watermark = log.segments[1].base_offset
        end = log.pass_old_segments(NOW + 1)
        assert end == log.log_start_offset == log.segments[1].base_offset
        log.high_watermark = 100
        log.advance_log_start(90)
        assert log.delete_segments_below(end)
        assert log.segments[0].base_offset == end

    def test_retention_keeps_uncommitted_records(self, tmp_path: Path) -> None:
        log = open_log(tmp_path, replace(SMALL, retention_ms=0))
        fill(log, 100)
        log.high_watermark = log.segments[2].base_offset + 1
        apply_retention(log, NOW + 1)
        assert log.log_start_offset == log.high_watermark - 1

    def test_compacted_topics_keep_everything(self, tmp_path: Path) -> None:
        log = open_log(
            tmp_path, replace(SMALL, retention_ms=0, retention_bytes=0, cleanup_policy=frozenset({"compact"}))
        )
        fill(log, 100)
        log.high_watermark = 100
        assert apply_retention(log, NOW + 10) == []

    def test_all_committed_records_can_be_deleted(self, log: Log) -> None:
        fill(log, 10)
        log.high_watermark = 8
        assert log.advance_log_start(8) == 8

    def test_records_below_the_new_log_start_are_not_read(self, log: Log) -> None:
        values = fill(log, 100)
        log.high_watermark = 80
        assert log.advance_log_start(70) == 70
        assert log.advance_log_start(60) == 70
        with pytest.raises(KafkaError) as refusal:
            log.advance_log_start(81)
        assert refusal.value.code == ErrorCode.OFFSET_OUT_OF_RANGE
        with pytest.raises(KafkaError):
            log.read(69, 100, up_to=80)
        assert values_of(log) == dict(list(enumerate(values))[70:])
        assert apply_retention(log, NOW)
        assert log.segments[0].base_offset <= 70 < log.segments[1].base_offset
        assert values_of(reopened(log, clean=False)) == dict(list(enumerate(values))[70:])

    def test_a_read_outlives_its_segment(self, tmp_path: Path) -> None:
        log = open_log(tmp_path, replace(SMALL, retention_ms=0))
        fill(log, 100)
        log.high_watermark = 100
        read = log.read(0, 1000, up_to=100)
        for path in apply_retention(log, NOW + 1):
            path.unlink()
        assert next(headers(read.read()))[1].base_offset == 0
        assert os.pread(read.fd, 8, read.position) == bytes(8)
        fd = read.fd
        del read
        with pytest.raises(OSError, match="Bad file descriptor"):
            os.fstat(fd)


@pytest.mark.parametrize("recovery_point", [0, 50])
def test_the_first_flush_after_a_crash_syncs_each_segment_above_the_recovery_point(
    log: Log, monkeypatch: pytest.MonkeyPatch, recovery_point: int
) -> None:
    fill(log, 100)
    log = reopened(log, clean=False, recovery_point=recovery_point)
    synced: list[int] = []
    monkeypatch.setattr(Segment, "sync", lambda segment, *, indexes: synced.append(segment.base_offset))
    log.flush()
    above = [segment.base_offset for segment in log.segments if segment.end_offset > recovery_point]
    assert synced == above
    assert len(above) > 2


class TestTruncating:
    @pytest.mark.parametrize("offset", [0, 1, 37, 99, 100, 150])
    def test_to_an_offset(self, log: Log, offset: int) -> None:
        values = fill(log, 100)
        log.high_watermark = 100
        log.flush()
        log.truncate_to(offset)
        kept = min(offset, 100)
        assert (log.log_end_offset, log.high_watermark) == (kept, kept)
        assert log.recovery_point <= kept
        assert values_of(log) == dict(enumerate(values[:kept]))
        check(log)
        assert fill(log, 100)[0].startswith(b"%d:" % kept)
        check(log)
        for clean in (True, False):
            log = reopened(log, clean=clean)
            check(log)
            assert log.log_end_offset == kept + 100

    def test_a_batch_is_not_halved(self, log: Log) -> None:
        append(log, b"a")
        append(log, b"b", b"c", b"d")
        log.truncate_to(3)
        assert log.log_end_offset == 1
        check(log)

    def test_producers_and_epochs_go_back_too(self, log: Log) -> None:
        for n in range(60):
            append(log, b"v" * 200, epoch=n // 20, producer_id=9, producer_epoch=0, base_sequence=n)
        log.truncate_to(30)
        assert log.leader_epochs.latest_epoch == 1
        check(log)
        append(log, b"v", epoch=3, producer_id=9, producer_epoch=0, base_sequence=30)
        check(log)

    @pytest.mark.parametrize("offset", [10, 25, 37, 55])
    def test_a_producer_goes_on_from_the_last_batch_that_is_left(self, log: Log, offset: int) -> None:
        for n in range(60):
            append(log, b"v" * 200, producer_id=9, producer_epoch=0, base_sequence=n)
        log.truncate_to(offset)
        assert refused(log, batch_of(b"v", producer_id=9, producer_epoch=0, base_sequence=offset + 1)) == (
            ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
        )
        assert append(log, b"v", producer_id=9, producer_epoch=0, base_sequence=offset) == offset

    def test_a_truncation_below_the_first_segment_empties_the_log(self, log: Log) -> None:
        log.truncate_fully_and_start_at(50)
        fill(log, 100)
        log.truncate_to(20)
        assert (log.log_start_offset, log.log_end_offset) == (20, 20)
        check(log)

    def test_a_full_truncation_starts_the_log_at_another_offset(self, log: Log) -> None:
        fill(log, 100, producer_id=-1)
        log.flush()
        log.truncate_fully_and_start_at(500)
        assert (log.log_start_offset, log.high_watermark, log.log_end_offset, log.recovery_point) == (500,) * 4
        assert AppendedEpochs.open(log.directory / APPENDED_EPOCHS, same_boot=True).runs == ()
        assert append(log, b"x") == 500
        check(log)
        assert values_of(reopened(log, clean=False)) == {500: b"x"}


class TestFlushing:
    def test_the_recovery_point_moves(self, log: Log) -> None:
        fill(log, 10)
        log.flush(5)
        assert log.recovery_point == 5
        log.flush()
        assert log.recovery_point == 10

    def test_a_flush_is_due_after_so_many_messages_or_so_long(self, tmp_path: Path) -> None:
        log = open_log(tmp_path, replace(SMALL, flush_messages=3))
        assert not log.flush_due(NOW)
        append(log, b"a", b"b")
        assert not log.flush_due(NOW)
        append(log, b"c")
        assert log.flush_due(NOW)
        log.flush()
        assert not log.flush_due(NOW)
        log.config = replace(SMALL, flush_ms=1000)
        append(log, b"d")
        assert not log.flush_due(NOW + 999)
        assert log.flush_due(NOW + 1000)

    def test_a_flush_does_not_cover_records_truncated_meanwhile(
        self, log: Log, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        fill(log, 10)
        log.leader_epochs.flush()
        sync, real = os.fsync, log._durability.sync

        def cutting(fd: int) -> None:
            monkeypatch.setattr(os, "fsync", sync)
            log.truncate_to(5)
            fill(log, 20)
            sync(fd)

        monkeypatch.setattr(os, "fsync", only_below(log.directory, cutting, sync))
        synced = []
        monkeypatch.setattr(log._durability, "sync", lambda *how: synced.append(real(*how)) or synced[-1])
        log.flush()
        assert synced == [False, True]
        assert log.recovery_point == 25


class TestFailingDisk:
    @pytest.fixture
    def errors(self) -> list[OSError]:
        return []

    @pytest.fixture
    def log(self, tmp_path: Path, errors: list[OSError]) -> Log:
        return open_log(tmp_path, on_io_error=errors.append)

    @pytest.mark.parametrize("written", [0, 1, 60, 100])
    @pytest.mark.parametrize("code", [errno.ENOSPC, errno.EIO])
    def test_a_write_in_part_is_cut_off(
        self, log: Log, errors: list[OSError], monkeypatch: pytest.MonkeyPatch, written: int, code: int
    ) -> None:
        values = fill(log, 20)
        pwrite = os.pwrite

        def failing(fd: int, data: bytes, position: int) -> int:
            if len(data) <= 100:
                raise OSError(code, "no")
            return pwrite(fd, memoryview(data)[: min(len(data) - 100, written)], position) if written else 0

        with monkeypatch.context() as patch:
            patch.setattr(os, "pwrite", only_below(log.directory, failing, pwrite))
            assert refused(log, batch_of(b"v" * 200)) == ErrorCode.KAFKA_STORAGE_ERROR
        assert len(errors) == 1
        segment = log.segments[-1]
        assert segment.path_of(".log").stat().st_size == segment.size
        values += fill(log, 20)
        for clean in (True, False):
            assert values_of(log) == dict(enumerate(values))
            check(log)
            log = reopened(log, clean=clean)

    def test_an_index_that_cannot_grow(self, log: Log, errors: list[OSError], monkeypatch: pytest.MonkeyPatch) -> None:
        def failing(*_: Any) -> None:
            raise OSError(errno.ENOSPC, "no")

        with monkeypatch.context() as patch:
            patch.setattr(os, "posix_fallocate", only_below(log.directory, failing, os.posix_fallocate))
            with pytest.raises(KafkaError):
                fill(log, 20)
        values = log.log_end_offset
        check(log)
        fill(log, 20)
        assert len(values_of(log)) == values + 20
        check(log)

    def test_a_segment_that_cannot_begin(
        self, log: Log, errors: list[OSError], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        fill(log, 10)
        real = os.open

        def failing(path: Any, flags: int, *rest: Any) -> int:
            if flags & os.O_CREAT and str(path).endswith(".timeindex"):
                raise OSError(errno.ENOSPC, "no")
            return real(path, flags, *rest)

        with monkeypatch.context() as patch:
            patch.setattr(os, "open", only_below(log.directory, failing, real))
            with pytest.raises(KafkaError):
                log.roll()
        assert errors
        assert len(log.segments) == 1
        fill(log, 100)
        check(log)
        check(reopened(log, clean=False))

    def test_a_read_that_fails(self, log: Log, errors: list[OSError], monkeypatch: pytest.MonkeyPatch) -> None:
        fill(log, 10)
        read = log.read(0, 1000, up_to=10)

        def failing(*_: Any) -> int:
            raise OSError(errno.EIO, "no")

        monkeypatch.setattr(os, "preadv", only_below(log.directory, failing, os.preadv))
        with pytest.raises(KafkaError) as refusal:
            read.try_read()
        assert refusal.value.code == ErrorCode.KAFKA_STORAGE_ERROR
        assert len(errors) == 1

    @pytest.mark.parametrize("is_removed", [True, False], ids=["removed", "failed"])
    @pytest.mark.parametrize("what", ["plan", "search"])
    def test_a_missing_file_is_looked_for_again_only_if_a_segment_was_removed_meanwhile(
        self, log: Log, errors: list[OSError], monkeypatch: pytest.MonkeyPatch, what: str, is_removed: bool
    ) -> None:
        fill(log, 10)
        owner: Any = LogReader if what == "plan" else timestamp_lookup
        name = "plan" if what == "plan" else "first_at_or_after"
        real, tries = getattr(owner, name), iter(range(2))

        def fails_once(*words: Any, **named: Any) -> Any:
            if next(tries) == 0:
                log._durability.removals += is_removed
                raise FileNotFoundError(errno.ENOENT, "no")
            return real(*words, **named)

        monkeypatch.setattr(owner, name, fails_once)

        def use() -> bool:
            found: Any = log.read(0, 1000, up_to=10) if what == "plan" else log.offset_for_timestamp(NOW)
            return found is not None

        if is_removed:
            assert use()
        else:
            with pytest.raises(KafkaError) as refusal:
                use()
            assert refusal.value.code == ErrorCode.KAFKA_STORAGE_ERROR
        assert len(errors) == (not is_removed)

    def test_too_many_open_files_say_nothing_of_the_disk(
        self, log: Log, errors: list[OSError], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        fill(log, 100)
        log = reopened(log, clean=True, on_io_error=errors.append)

        def failing(*_: Any) -> int:
            raise OSError(errno.EMFILE, "no")

        with monkeypatch.context() as patch:
            patch.setattr(os, "open", only_below(log.directory, failing, os.open))
            with pytest.raises(KafkaError):
                log.read(0, 1000, up_to=100)
        assert not errors
        assert log.read(0, 1000, up_to=100).size

    def test_reading_without_memory_changes_nothing(
        self, log: Log, errors: list[OSError], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        fill(log, 100)
        before, lost = MEMORY.shortages, MEMORY.lost_work

        def failing(*_: Any, **__: Any) -> None:
            raise MemoryError

        with monkeypatch.context() as patch:
            patch.setattr("parley.storage.log_reader.LogReader.plan", failing)
            patch.setattr("parley.storage.timestamp_lookup.latest", failing)
            patch.setattr("parley.storage.damage.log_integrity.LogIntegrity.verify", failing)
            for work in (
                lambda: log.read(0, 1000, up_to=100),
                log.max_timestamp,
                lambda: log.verify_segment(log.segments[0], 0, 100),
            ):
                with pytest.raises(KafkaError, match="Not enough memory") as refusal:
                    work()
                assert refusal.value.code == ErrorCode.KAFKA_STORAGE_ERROR
        assert MEMORY.shortages == before + 3
        assert MEMORY.lost_work is lost, "the broker goes on"
        assert not errors
        assert log.read(0, 1000, up_to=100).size

    def test_a_sync_that_fails_moves_nothing(
        self, log: Log, errors: list[OSError], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        fill(log, 10)

        def failing(fd: int) -> None:
            raise OSError(errno.EIO, "no")

        with monkeypatch.context() as patch:
            patch.setattr(os, "fsync", only_below(log.directory, failing, os.fsync))
            with pytest.raises(KafkaError) as refusal:
                log.flush()
        assert refusal.value.code == ErrorCode.KAFKA_STORAGE_ERROR
        assert log.recovery_point == 0
        assert errors


class TestCleanStop:
    @pytest.fixture
    def syncs(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
        """Return a list that receives the names of the files below the directory as they are synced."""
        synced: list[str] = []
        real = os.fsync

        def noted(fd: int) -> None:
            synced.append(Path(os.readlink(f"/proc/self/fd/{fd}")).name)
            real(fd)

        monkeypatch.setattr(os, "fsync", only_below(tmp_path, noted, real))
        return synced

    def test_a_log_that_nothing_has_changed_is_not_synced_again(self, tmp_path: Path, syncs: list[str]) -> None:
        log = open_log(tmp_path)
        fill(log, 10)
        log = reopened(log, clean=True)
        syncs.clear()
        log = reopened(log, clean=True)
        assert not syncs
        assert len(values_of(log)) == 10

    @pytest.mark.parametrize("clean", [True, False])
    def test_records_that_may_not_be_on_disk_are_synced_with_their_indexes(
        self, tmp_path: Path, syncs: list[str], clean: bool
    ) -> None:
        log = open_log(tmp_path)
        fill(log, 10)
        log = reopened(log, clean=clean, recovery_point=10)
        if clean:
            append(log, b"one more")
        syncs.clear()
        log.close()
        assert {f"{0:020d}{kind}" for kind in (".log", ".index", ".timeindex")} < set(syncs)

    def test_a_topic_id_that_was_learned_later_is_synced(self, tmp_path: Path, syncs: list[str]) -> None:
        log = open_log(tmp_path)
        fill(log, 10)
        log = reopened(log, clean=True)
        log.identify(UUID(int=7))
        syncs.clear()
        log.close()
        assert "partition.metadata" in syncs


def open_files(directory: Path) -> int:
    """Return the files below a directory that this process has open."""
    return open_descriptors(f"{directory}/")


@pytest.mark.parametrize("clean", [True, False])
def test_an_idle_log_holds_no_file(tmp_path: Path, clean: bool) -> None:
    before = open_files(tmp_path)
    log = open_log(tmp_path)
    assert open_files(tmp_path) == before
    fill(log, 5)
    assert open_files(tmp_path) == before + 3
    log = reopened(log, clean=clean)
    assert open_files(tmp_path) == before
    assert len(values_of(log)) == 5
    log.close()
    assert open_files(tmp_path) == before
    assert sorted(os.listdir(tmp_path)) == [
        "00000000000000000000.digest",
        "00000000000000000000.index",
        "00000000000000000000.log",
        "00000000000000000000.timeindex",
        "00000000000000000005.snapshot",
        "leader-epoch-checkpoint",
    ]


def test_a_log_of_many_segments_keeps_few_files_open(tmp_path: Path) -> None:
    log = open_log(tmp_path, replace(SMALL, segment_bytes=500))
    fill(log, 300)
    assert len(log.segments) > 50
    before = open_files(tmp_path)
    values_of(log)
    log.offset_for_timestamp(NOW)
    log.max_timestamp()
    log.high_watermark = 300
    log.config = replace(log.config, retention_ms=10**6)
    apply_retention(log, NOW)
    assert open_files(tmp_path) <= before + 30
    log = reopened(log, clean=False)
    assert open_files(tmp_path) <= before


def test_a_log_moves_with_its_directory(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    log = open_log(tmp_path / "a")
    values = fill(log, 100)
    (tmp_path / "a").rename(tmp_path / "b")
    log.moved(tmp_path / "b")
    values += fill(log, 100)
    assert values_of(log) == dict(enumerate(values))
    log = reopened(log, clean=True)
    check(log)


def test_a_new_configuration_counts_from_the_next_append(log: Log) -> None:
    fill(log, 10)
    log.config = replace(SMALL, segment_bytes=300)
    fill(log, 10)
    assert len(log.segments) >= 5
    check(log)


def test_keys_and_headers_come_back(log: Log) -> None:
    batch = build([Record(0, NOW, None, None, (("h", b"1"), ("h", None)))])
    log.append_as_leader(batch, leader_epoch=0, now_ms=NOW)
    ((_, data),) = batches_in(log)
    assert list(records(data)) == [Record(0, NOW, None, None, (("h", b"1"), ("h", None)))]
