"""The records that a compaction keeps and removes, and how the log adopts its result."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from dataclasses import replace
from errno import EIO, ENOSPC
from pathlib import Path
from typing import Any

import pytest

from parley.protocol.errors import ErrorCode, KafkaError
from parley.protocol.records import legacy
from parley.protocol.records.batch import build, records
from parley.protocol.records.batch_header import MAGIC_V2, BatchHeader, read_header
from parley.protocol.records.compression import Compression
from parley.protocol.records.control_batch import ControlMarker, ControlType, read_marker
from parley.protocol.records.record import Record
from parley.storage import producer_row
from parley.storage.append_checks import AppendInfo
from parley.storage.checkpoints import sync_directory
from parley.storage.compaction import compacted_segments, segment_replacement
from parley.storage.compaction.batch_retention import InconsistentTransactions, TransactionsSeen
from parley.storage.compaction.compactor import CompactedGroup, Uncleanable, compact
from parley.storage.compaction.dirtiness import Dirtiness, choose
from parley.storage.compaction.log_cleaner import Verdict, verdict
from parley.storage.compaction.tombstone_checkpoint import CHECKPOINT, TombstoneCheckpoint
from parley.storage.last_batches import LastBatches
from parley.storage.log import Log
from parley.storage.log_config import LogConfig
from parley.storage.log_place import LogEvents
from parley.storage.segment import Segment
from parley.storage.segment_names import LOG_SUFFIX, path_in
from parley.storage.transaction_index import AbortedTransaction
from tests.storage.compaction.compactions import batches, committed, compacted, end_transaction, settled, table
from tests.storage.logs import NOW, apply_retention, check_segment, open_log, reopened
from tests.support.faulty_files import only_below

CONFIG = LogConfig(
    segment_bytes=1000,
    segment_index_bytes=1000,
    index_interval_bytes=200,
    cleanup_policy=frozenset({"compact"}),
    delete_retention_ms=1000,
)
Content = list[tuple[int, bytes | None, bytes | None]]


@pytest.fixture
def log(tmp_path: Path) -> Log:
    folder = tmp_path / "topic-0"
    folder.mkdir()
    return open_log(folder, CONFIG)


def put(log: Log, *content: tuple[bytes | None, bytes | None], **fields: Any) -> int:
    """Append one batch of keys and values. Returns its first offset."""
    made = [Record(0, NOW, key, value) for key, value in content]
    return log.append_as_leader(build(made, **fields), leader_epoch=0, now_ms=NOW).first_offset


def content_of(log: Log) -> Content:
    """Return the offset, key and value of each data record, committed or not."""
    return [
        (record.offset, record.key, record.value)
        for header, data in batches(log)
        if not header.is_control
        for record in records(data)
    ]


def headers_of(log: Log) -> list[BatchHeader]:
    return [header for header, _ in batches(log)]


def names_in(log: Log, *suffixes: str) -> list[str]:
    return [path.name for path in log.directory.iterdir() if path.suffix in suffixes]


def remove(paths: list[Path]) -> None:
    for path in paths:
        path.unlink()


# --- What stays ---


def test_the_last_record_of_each_key_stays_at_its_offset(log: Log) -> None:
    put(log, (b"a", b"1"), (b"b", b"1"), (b"a", b"2"))
    put(log, (b"b", b"2"), (b"c", b"1"))
    log.roll()
    put(log, (b"c", b"2"))
    result = compacted(log)
    assert content_of(log) == [(2, b"a", b"2"), (3, b"b", b"2"), (4, b"c", b"1"), (5, b"c", b"2")]
    assert [(header.base_offset, header.last_offset) for header in headers_of(log)] == [(0, 2), (3, 4), (5, 5)]
    assert (result.stats.records_read, result.stats.records_kept, result.stats.map_keys) == (5, 3, 3)
    assert log.cleaned_up_to == 5


def test_records_without_a_key_are_removed_and_counted(log: Log) -> None:
    put(log, (None, b"1"), (b"a", b"1"), (None, None))
    log.roll()
    assert compacted(log).stats.records_invalid == 2
    assert content_of(log) == [(1, b"a", b"1")]


def test_a_tombstone_stays_for_the_delete_retention_after_older_values_are_removed(log: Log) -> None:
    put(log, (b"a", b"1"), (b"b", b"1"))
    put(log, (b"a", None), (b"a2", b"x"))
    log.roll()
    compacted(log, now_ms=NOW + 50)
    assert content_of(log) == [(1, b"b", b"1"), (2, b"a", None), (3, b"a2", b"x")]
    assert [header.delete_horizon_ms for header in headers_of(log)] == [None, NOW + 1050]
    assert {record.timestamp for _, record in committed(log)} == {NOW}
    put(log, (b"c", b"1"))
    log.roll()
    compacted(log, now_ms=NOW + 1049)
    assert (2, b"a", None) in content_of(log)
    put(log, (b"c", b"2"))
    log.roll()
    compacted(log, now_ms=NOW + 1050)
    assert content_of(log) == [(1, b"b", b"1"), (3, b"a2", b"x"), (5, b"c", b"2")]


def test_a_tombstone_of_a_client_without_a_clock_is_compacted(log: Log) -> None:
    log.append_as_leader(build([Record(0, 0, b"a", None)]), leader_epoch=0, now_ms=NOW)
    log.roll()
    put(log, (b"b", b"active"))
    compacted(log)
    assert headers_of(log)[0].delete_horizon_ms == NOW + CONFIG.delete_retention_ms


def test_a_tombstone_behind_a_full_table_gets_no_horizon(log: Log) -> None:
    for n in range(40):
        put(log, (b"%d" % n, b"v"))
    put(log, (b"0", None))
    log.roll()
    result = compacted(log, map_bytes=1)
    assert 0 < result.cleaned_up_to < 40
    assert all(header.delete_horizon_ms is None for header in headers_of(log))
    while log.cleaned_up_to != 41:
        compacted(log, map_bytes=1)
    assert headers_of(log)[-1].delete_horizon_ms == NOW + 1000
    assert (0, b"0", b"v") not in content_of(log)


def with_removed_tombstone(log: Log) -> int:
    """Let compaction remove a tombstone. Returns the offset after its batch."""
    put(log, (b"a", b"1"), (b"b", b"1"))
    tombstone = put(log, (b"a", None), (b"b", b"2"))
    log.roll()
    compacted(log)
    assert log.tombstones_removed_up_to == 0
    put(log, (b"c", b"1"))
    put(log, (b"d", None))
    log.roll()
    put(log, (b"c", b"active"))
    compacted(log, now_ms=NOW + 1000)
    assert content_of(log) == [(3, b"b", b"2"), (4, b"c", b"1"), (5, b"d", None), (6, b"c", b"active")]
    return tombstone + 2


@pytest.mark.parametrize("is_clean", [True, False], ids=["clean", "crash"])
def test_a_log_knows_up_to_where_its_tombstones_were_removed(log: Log, is_clean: bool) -> None:
    end = with_removed_tombstone(log)
    assert log.tombstones_removed_up_to == end
    log = reopened(log, clean=is_clean, cleaned_up_to=log.cleaned_up_to)
    assert log.tombstones_removed_up_to == end
    log.truncate_to(5)
    assert log.tombstones_removed_up_to == end
    log.truncate_to(end - 1)
    assert reopened(log, clean=True).tombstones_removed_up_to == end - 1


def test_a_log_that_starts_over_lacks_the_tombstones_of_the_log_that_it_copies(log: Log) -> None:
    with_removed_tombstone(log)
    log.truncate_fully_and_start_at(2, tombstones_removed_up_to=1000)
    assert log.tombstones_removed_up_to == 1000
    log = reopened(log, clean=True)
    assert (log.log_start_offset, log.log_end_offset, log.tombstones_removed_up_to) == (2, 2, 1000)
    log.truncate_fully_and_start_at(2)
    assert reopened(log, clean=True).tombstones_removed_up_to == 0


def test_the_offset_of_removed_tombstones_is_on_disk_before_they_are_removed(
    log: Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(log, (b"a", b"1"))
    put(log, (b"a", None))
    log.roll()
    compacted(log)
    put(log, (b"b", b"1"))
    log.roll()
    put(log, (b"c", b"active"))
    stored: list[int] = []
    rename = Segment.rename

    def note_and_rename(segment: Segment, suffix: str) -> None:
        stored.append(TombstoneCheckpoint(log.directory / CHECKPOINT, 0).up_to)
        rename(segment, suffix)

    monkeypatch.setattr(Segment, "rename", note_and_rename)
    compacted(log, now_ms=NOW + 1000)
    assert content_of(log) == [(2, b"b", b"1"), (3, b"c", b"active")]
    assert stored
    assert set(stored) == {2}


def test_tombstones_and_markers_that_a_replica_has_yet_to_fetch_stay(log: Log) -> None:
    put(log, (b"a", b"1"))
    put(log, (b"a", None))
    put(log, (b"b", b"aborted"), producer_id=7, producer_epoch=0, base_sequence=0, transactional=True)
    end_transaction(log, 7, 0, ControlType.ABORT)
    put(log, (b"b", b"1"), producer_id=7, producer_epoch=0, base_sequence=1)
    put(log, (b"c", None))
    log.roll()
    for n in range(3):
        put(log, (b"d", b"%d" % n))
        log.roll()
        compacted(log, now_ms=NOW + n * 1000, tombstones_kept_from=2)
    assert log.tombstones_removed_up_to == 2
    assert [header.base_offset for header in headers_of(log) if header.is_control] == [3]
    assert [(offset, key) for offset, key, value in content_of(log) if value is None] == [(5, b"c")]
    put(log, (b"d", b"active"))
    log.roll()
    compacted(log, now_ms=NOW + 9000)
    assert log.tombstones_removed_up_to == 6
    assert [header.base_offset for header in headers_of(log) if header.is_control] == []


def test_with_a_malformed_checkpoint_tombstones_may_be_missing_from_the_whole_log(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / CHECKPOINT
    assert TombstoneCheckpoint(path, 9).up_to == 0
    for data in (b"0\n1\n7 8\n", b"0\n1\nx\n", b"\xff"):
        path.write_bytes(data)
        assert TombstoneCheckpoint(path, 9).up_to == 9
    assert "tombstones may be missing" in caplog.text
    path.write_bytes(b"0\n1\n7\n")  # as an older version writes it
    assert TombstoneCheckpoint(path, 9).up_to == 7


def test_a_log_with_a_malformed_checkpoint_sends_its_end(log: Log) -> None:
    put(log, (b"a", b"1"), (b"b", b"2"))
    (log.directory / CHECKPOINT).write_bytes(b"0\n1\nx\n")
    again = reopened(log, clean=True)
    assert again.tombstones_removed_up_to == again.log_end_offset == 2
    again.close()


def test_a_batch_of_more_keys_than_the_table_takes_is_reported(log: Log) -> None:
    put(log, *((b"%d" % n, b"v") for n in range(30)))
    log.roll()
    with pytest.raises(Uncleanable, match=r"log\.cleaner\.dedupe\.buffer\.size"):
        compacted(log, map_bytes=1)
    assert len(content_of(log)) == 30


def test_aborted_records_go_at_once_and_their_marker_later(log: Log) -> None:
    transaction: dict[str, Any] = {"producer_id": 7, "producer_epoch": 0, "transactional": True}
    put(log, (b"a", b"1"))
    put(log, (b"a", b"aborted"), base_sequence=0, **transaction)
    marker = end_transaction(log, 7, 0, ControlType.ABORT)
    put(log, (b"b", b"1"), base_sequence=1, **transaction)
    end_transaction(log, 7, 0, ControlType.COMMIT)
    log.roll()
    seen = []
    for n in range(3):
        compacted(log, now_ms=NOW + n * 1000)
        seen.append([header.base_offset for header, data in batches(log) if header.is_control and read_marker(data)])
        assert [(offset, key) for offset, key, _ in content_of(log)][:2] == [(0, b"a"), (3, b"b")]
        assert len(log.aborted_transactions(0, 100)) == (n == 0)
        put(log, (b"z", b"%d" % n))
        log.roll()
    assert seen == [[marker, 4], [marker, 4], [4]]


def test_a_transaction_may_be_aborted_in_a_segment_that_is_not_compacted_yet(log: Log) -> None:
    put(log, (b"a", b"committed"))
    put(log, (b"a", b"aborted"), producer_id=7, producer_epoch=0, base_sequence=0, transactional=True)
    log.roll()
    end_transaction(log, 7, 0, ControlType.ABORT)
    log.roll()
    put(log, (b"b", b"active"))
    first = log.segments[0]
    due = replace(settled(log).dirtiness(NOW), end_offset=first.end_offset)
    with log.begin_compaction(due, now_ms=NOW, map_bytes=1 << 20) as compaction:
        result = compact(compaction.request, lambda group: remove(compaction.adopt(group)))
        compaction.finish(result)
    assert result.cleaned_up_to == first.end_offset
    assert table(log) == {b"a": b"committed", b"b": b"active"}


def test_the_dirty_part_may_begin_after_an_aborted_transaction_of_its_segment(log: Log) -> None:
    put(log, (b"a", b"aborted"), producer_id=7, producer_epoch=0, base_sequence=0, transactional=True)
    end_transaction(log, 7, 0, ControlType.ABORT)
    begin = put(log, (b"a", b"1"))
    put(log, (b"a", b"2"))
    log.roll()
    put(log, (b"b", b"active"))
    settled(log).advance_log_start(begin)
    compacted(log)
    assert table(log) == {b"a": b"2", b"b": b"active"}


def test_the_last_batch_of_a_producer_stays_without_its_records(log: Log) -> None:
    put(log, (b"a", b"1"), (b"b", b"1"), producer_id=5, producer_epoch=2, base_sequence=0)
    put(log, (b"a", b"2"), (b"b", b"2"))
    put(log, (b"a", b"3"), producer_id=6, producer_epoch=0, base_sequence=0)
    log.roll()
    compacted(log)
    first = headers_of(log)[0]
    assert (first.record_count, first.base_offset, first.last_offset, first.last_sequence) == (0, 0, 1, 1)
    again = log.append_as_leader(
        build(
            [Record(0, NOW, b"a", b"1"), Record(0, NOW, b"b", b"1")], producer_id=5, producer_epoch=2, base_sequence=0
        ),
        leader_epoch=0,
        now_ms=NOW,
    )
    assert again.duplicate
    assert again.first_offset == 0


@pytest.mark.parametrize("restarts_before", [False, True])
def test_batches_that_count_as_retries_stay_without_their_records(log: Log, restarts_before: bool) -> None:
    """This includes batches that a producer snapshot lacks, and batches that an earlier compaction has emptied."""

    def send(number: int) -> AppendInfo:
        batch = build([Record(0, NOW, b"a", b"%d" % number)], producer_id=5, producer_epoch=2, base_sequence=number)
        return log.append_as_leader(batch, leader_epoch=0, now_ms=NOW)

    for number in range(7):
        send(number)
    log.roll()
    for _ in range(2):
        if restarts_before:
            log = reopened(log, clean=True)
        put(log, (b"a", b"of another"))
        log.roll()
        compacted(log)
    assert [header.base_sequence for header in headers_of(log) if header.producer_id == 5] == [2, 3, 4, 5, 6]
    log = reopened(log, clean=True)
    for number in range(2, 7):
        again = send(number)
        assert (again.first_offset, again.duplicate) == (number, True)
    with pytest.raises(KafkaError, match="has sequence 1 instead of 7"):
        send(1)


def test_a_retry_in_a_transaction_that_has_ended_does_not_stay(log: Log) -> None:
    for number in range(3):
        put(log, (b"a", b"1"), producer_id=7, producer_epoch=0, base_sequence=number, transactional=True)
    end_transaction(log, 7, 0, ControlType.COMMIT)
    put(log, (b"a", b"2"))
    log.roll()
    compacted(log)
    assert [header.base_sequence for header in headers_of(log) if not header.is_control] == [2, -1]


def test_a_replica_can_copy_a_log_of_which_nothing_is_left(log: Log, tmp_path: Path) -> None:
    for _ in range(3):
        put(log, (b"a", None))
    log.roll()
    compacted(log)
    put(log, (b"a", b"1"))
    log.roll()
    put(log, (b"a", None))
    log.roll()
    for n in range(1, 4):
        compacted(log, now_ms=NOW + n * 2000)
    assert not content_of(log)
    folder = tmp_path / "copy-0"
    folder.mkdir()
    copy = open_log(folder, CONFIG)
    while copy.log_end_offset < log.log_end_offset:
        assert copy.append_as_follower(log.read(copy.log_end_offset, 1000, up_to=log.log_end_offset).read()).size_bytes


@pytest.mark.parametrize("codec", [codec for codec in Compression if codec is not Compression.ZSTD])
@pytest.mark.parametrize("magic", [0, 1])
def test_old_formats_become_v2(log: Log, magic: int, codec: Compression) -> None:
    old = [Record(n, NOW + n if magic else -1, b"k%d" % (n % 4), b"v%d" % n) for n in range(9)]
    log.append_as_follower(legacy.build(old, magic, compression=codec))
    log.roll()
    compacted(log)
    assert [(record.offset, record.key, record.value) for _, record in committed(log)] == [
        (record.offset, record.key, record.value) for record in old[-4:]
    ]
    assert {header.magic for header in headers_of(log)} == {MAGIC_V2}
    assert {header.compression for header in headers_of(log)} == {codec}
    assert {record.timestamp for _, record in committed(log)} == ({NOW + n for n in (5, 6, 7, 8)} if magic else {-1})


@pytest.mark.parametrize("codec", Compression)
def test_headers_compression_and_timestamps_stay(log: Log, codec: Compression) -> None:
    kept = Record(0, NOW + 7, b"b", b"v" * 50, (("h", b"1"), ("", None)))
    batch = build([Record(0, NOW + 9, b"a", b"1"), kept], compression=codec)
    log.append_as_leader(batch, leader_epoch=3, now_ms=NOW)
    put(log, (b"a", b"2"))
    log.roll()
    compacted(log)
    header, record = next(iter(committed(log)))
    assert record == kept._replace(offset=1)
    assert (header.compression, header.partition_leader_epoch, header.max_timestamp) == (codec, 3, NOW + 7)


def test_segments_are_joined_but_not_over_a_gap_of_more_than_two_billion_offsets(log: Log) -> None:
    far = (1 << 31) + 5
    for base in (0, 10, far, far + 10):
        log.append_as_follower(build([Record(base, NOW, b"%d" % base, b"v")], base_offset=base, keep_offsets=True))
        log.roll()
    compacted(log)
    assert [len(list(segment.batches())) for segment in log.segments] == [2, 1, 1, 0]  # the third begins at 11
    assert [offset for offset, _, _ in content_of(log)] == [0, 10, far, far + 10]
    for segment in log.segments:
        check_segment(segment)


def test_a_segment_that_cannot_grow_is_followed_by_another(log: Log, monkeypatch: pytest.MonkeyPatch) -> None:
    for n in range(30):
        put(log, (b"%d" % (n % 25), b"v" * 20))
    log.roll()
    expected, before = table(log), len(log.segments)
    monkeypatch.setattr(compacted_segments, "INT32_MAX", 300)
    compacted(log)
    assert len(log.segments) > before
    for segment, following in zip(log.segments, log.segments[1:], strict=False):
        assert segment.end_offset == following.base_offset
        check_segment(segment)
    assert table(log) == expected
    assert table(reopened(log, clean=False, cleaned_up_to=log.cleaned_up_to)) == expected


def test_a_consumer_that_began_before_sees_the_last_value_of_each_key(log: Log) -> None:
    values: dict[bytes | None, bytes | None] = {}
    position = 0
    for n in range(60):
        put(log, (b"%d" % (n % 7), b"%d" % n if n % 5 else None), (b"x%d" % n, b"v" * 30))
        if n % 9 == 8:
            log.roll()
            compacted(log, now_ms=NOW + n)
        if n % 4 == 0:  # the consumer is slow
            for header, data in list(batches(log, position))[:2]:
                values |= {record.key: record.value for record in records(data)}
                position = header.next_offset
    for _, data in batches(log, position):
        values |= {record.key: record.value for record in records(data)}
    assert {key: value for key, value in values.items() if value is not None} == table(log)


# --- Damage ---


def test_a_damaged_batch_ends_the_compaction_and_nothing_is_removed(log: Log) -> None:
    for n in range(30):
        put(log, (b"a", b"%d" % n * 20))
    log.roll()
    settled(log)
    path = log.segments[1].path_of(".log")
    before = path.read_bytes()
    path.write_bytes(before[:-5] + bytes([before[-5] ^ 1]) + before[-4:])
    sizes = [segment.size for segment in log.segments]
    with pytest.raises(Uncleanable, match="is damaged at byte"):
        compacted(log)
    assert [segment.size for segment in log.segments] == sizes
    assert names_in(log, ".cleaned", ".swap", ".deleted") == []
    path.write_bytes(before)
    compacted(log)
    assert [value for _, _, value in content_of(log)] == [b"29" * 20]


def test_known_damage_is_refused(log: Log) -> None:
    for n in range(30):
        put(log, (b"a", b"%d" % n * 20))
    log.roll()
    log = reopened(log, clean=True)
    path = log.segments[1].path_of(".log")
    path.write_bytes(b"\xff" * 100 + path.read_bytes()[100:])
    with pytest.raises(KafkaError):
        log.read(log.segments[1].base_offset, 1, up_to=30)
    with pytest.raises(KafkaError) as refused:
        compacted(log)
    assert refused.value.code == ErrorCode.CORRUPT_MESSAGE


def test_a_transaction_index_that_lacks_an_aborted_transaction_ends_the_compaction(log: Log) -> None:
    put(log, (b"a", b"1"))
    put(log, (b"a", b"2"), producer_id=7, producer_epoch=0, base_sequence=0, transactional=True)
    end_transaction(log, 7, 0, ControlType.ABORT)
    log.roll()
    log.segments[0].path_of(".txnindex").write_bytes(b"")
    with pytest.raises(Uncleanable, match="does not agree with the marker"):
        compacted(log)
    assert (0, b"a", b"1") in content_of(log)


def test_an_entry_of_a_transaction_that_has_ended_aborts_no_later_one() -> None:
    seen = TransactionsSeen([AbortedTransaction(7, 0, 5, 5)])
    assert not seen.is_aborted(_header(10, 7))
    with pytest.raises(InconsistentTransactions):
        _end(seen, _header(11, 7), ControlType.ABORT)


def _header(offset: int, producer_id: int) -> BatchHeader:
    batch = build([(offset, NOW, b"k", b"v", ())], base_offset=offset, producer_id=producer_id, transactional=True)
    return read_header(batch)


def _end(seen: TransactionsSeen, header: BatchHeader, kind: ControlType) -> None:
    seen.end(header, ControlMarker(kind, 0))


# --- Beside other work on the log ---


def filled(log: Log) -> Log:
    for n in range(60):
        put(log, (b"%d" % (n % 5), b"%d" % n * 10))
    log.roll()
    return settled(log)


def test_retention_deletes_segments_of_a_log_that_is_being_compacted(tmp_path: Path) -> None:
    """A topic with both policies (KIP-71): the compaction ends and will be retried, and the next one continues."""
    config = replace(CONFIG, cleanup_policy=frozenset({"compact", "delete"}), retention_ms=1000)
    log = open_log(tmp_path, config)
    for number in range(60):
        record = Record(0, NOW + 100 * number, b"key-%d" % (number % 30), bytes(100))
        log.append_as_leader(build([record]), leader_epoch=0, now_ms=NOW)
    settled(log)
    now_ms = NOW + 4_000
    with log.begin_compaction(log.dirtiness(now_ms), now_ms=now_ms) as compaction:
        for path in apply_retention(log, now_ms):
            path.unlink()
        assert 0 < log.log_start_offset < 31
        with pytest.raises(FileNotFoundError) as overtaken:
            compact(compaction.request, lambda group: remove(compaction.adopt(group)))
        assert verdict(overtaken.value, deaths=0) is Verdict.RETRY
    compacted(log, now_ms=now_ms)
    last = {number % 30: number for number in range(log.log_start_offset, 60)}
    assert set(last.values()) <= {record.offset for _, record in committed(log)}
    assert len(table(log)) == 30
    log = reopened(log, clean=False, cleaned_up_to=log.cleaned_up_to)
    assert len(table(log)) == 30
    assert not log.damage


@pytest.mark.parametrize(
    "change",
    [
        lambda log: log.truncate_to(5),
        lambda log: log.truncate_fully_and_start_at(100),
        lambda log: log.release(),
        lambda log: (log.advance_log_start(30), apply_retention(log, NOW)),
    ],
    ids=["truncated", "restarted", "closed", "deleted"],
)
def test_nothing_is_adopted_by_a_log_that_has_changed(log: Log, change: Callable[[Log], object]) -> None:
    filled(log)
    with log.begin_compaction(log.dirtiness(NOW), now_ms=NOW) as compaction:

        def adopt(group: CompactedGroup) -> None:
            change(log)
            compaction.adopt(group)

        with pytest.raises(KafkaError, match="changed while it was compacted"):
            compact(compaction.request, adopt)
        assert compaction.is_cancelled
    assert names_in(log, ".cleaned", ".swap") == []
    assert log.cleaned_up_to is None


def test_a_truncation_lowers_the_clean_offset(log: Log) -> None:
    filled(log)
    compacted(log)
    assert log.cleaned_up_to == 60
    log.truncate_to(58)
    assert log.cleaned_up_to == 58


def test_a_truncation_inside_a_batch_makes_the_whole_batch_dirty(log: Log) -> None:
    filled(log)
    put(log, (b"a", b"v"), (b"b", b"v"), (b"c", b"v"))
    log.roll()
    compacted(log)
    assert log.cleaned_up_to == 63
    log.truncate_to(62)
    assert log.log_end_offset == log.cleaned_up_to == 60


@pytest.mark.parametrize("is_clean", [True, False], ids=["clean", "dirty"])
def test_a_log_that_was_truncated_after_it_was_measured_is_not_compacted(log: Log, is_clean: bool) -> None:
    filled(log)
    if is_clean:
        compacted(log)
    measured = log.dirtiness(NOW)
    log.truncate_to(50)
    for _ in range(20):
        put(log, (b"key", b"v"))
    log.roll()
    with pytest.raises(KafkaError, match="changed after it was measured"):
        log.begin_compaction(measured, now_ms=NOW)
    compacted(log)


def test_a_mended_range_is_dirty_again(log: Log) -> None:
    filled(log)
    compacted(log)
    segment = log.segments[0]
    with path_in(log.directory, segment.base_offset, LOG_SUFFIX).open("r+b") as file:
        file.seek(-1, os.SEEK_END)
        file.write(b"\xff")
    log.verify_segment(segment, 0, segment.size)
    (damaged,) = log.damage
    log.mend(damaged).abandon()
    assert log.cleaned_up_to == damaged.first_offset
    measured = log.dirtiness(NOW)
    assert measured.first_dirty_offset == damaged.first_offset


def test_a_checkpoint_beyond_the_end_of_the_log_is_not_believed(log: Log) -> None:
    filled(log)
    assert reopened(log, clean=True, cleaned_up_to=61).cleaned_up_to is None


def test_one_compaction_at_a_time(log: Log) -> None:
    filled(log)
    with (
        log.begin_compaction(log.dirtiness(NOW), now_ms=NOW),
        pytest.raises(KafkaError, match="being compacted"),
    ):
        log.begin_compaction(log.dirtiness(NOW), now_ms=NOW)
    compacted(log)


def test_appends_go_on_while_a_compaction_lists_the_producers(log: Log, monkeypatch: pytest.MonkeyPatch) -> None:
    def put_as_producer(sequence: int) -> None:
        put(log, (b"key", b"v"), producer_id=1, producer_epoch=0, base_sequence=sequence)

    put_as_producer(0)
    filled(log)
    rows: list[threading.Thread] = []
    last_batches = producer_row.Producer.last_batches

    def beside_an_append(producer: producer_row.Producer) -> LastBatches:
        beside = threading.Thread(target=put_as_producer, args=(1,), daemon=True)
        rows.append(beside)
        beside.start()
        beside.join(60)
        assert not beside.is_alive(), "the lock is held while the producers are listed"
        return last_batches(producer)

    measured = log.dirtiness(NOW)
    monkeypatch.setattr(producer_row.Producer, "last_batches", beside_an_append)
    with log.begin_compaction(measured, now_ms=NOW) as compaction:
        assert {key: last.last_offset for key, last in compaction.request.producers.items()} == {1: 0}
    assert len(rows) == 1
    assert log.log_end_offset == 62


def test_appends_and_reads_go_on_while_the_disk_syncs(log: Log, monkeypatch: pytest.MonkeyPatch) -> None:
    filled(log)
    syncs = 0

    def sync(path: Path) -> None:
        nonlocal syncs
        syncs += 1
        beside = threading.Thread(target=lambda: (put(log, (b"new", b"v")), table(log)), daemon=True)
        beside.start()
        beside.join(60)
        assert not beside.is_alive(), "the lock is held while the disk syncs"
        sync_directory(path)

    monkeypatch.setattr(segment_replacement, "sync_directory", sync)
    compacted(log)
    assert syncs >= 4
    assert log.log_end_offset == 60 + syncs


def test_reads_during_renames_find_their_files(log: Log, monkeypatch: pytest.MonkeyPatch) -> None:
    filled(log)
    failures: list[OSError] = []
    monkeypatch.setattr(log, "_events", LogEvents(failures.append))
    readers: list[threading.Thread] = []
    expected, found = table(log), []
    rename = Path.rename

    def renamed(path: Path, target: Path) -> Path:
        log.rest()
        reader = threading.Thread(target=lambda: found.append(table(log)))
        reader.start()
        readers.append(reader)
        result = rename(path, target)
        log.rest()
        return result

    monkeypatch.setattr(Path, "rename", renamed)

    def end_reads(removed: list[Path]) -> None:
        for reader in readers:
            reader.join()

    compacted(log, removed=end_reads)
    end_reads([])
    assert not failures
    assert len(found) == len(readers) > 20
    assert all(each == expected for each in found)


@pytest.mark.slow
@pytest.mark.parametrize("error", [EIO, ENOSPC])
def test_a_disk_that_fails_at_any_step_leaves_the_log_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: int
) -> None:
    monkeypatch.setattr(os, "fsync", lambda fd: None)
    rename, sync, step = Path.rename, sync_directory, 0
    failed = True
    while failed:
        folder = tmp_path / str(step)
        folder.mkdir()
        log = filled(open_log(folder, replace(CONFIG, segment_bytes=3000)))
        expected, calls, failed = table(log), 0, False

        def fail(failing: int = step + 1) -> None:
            nonlocal calls, failed
            calls += 1
            if calls == failing:
                failed = True
                raise OSError(error, "no")

        with monkeypatch.context() as patch:
            failing = only_below(folder, lambda path, target: (fail(), rename(path, target))[1], rename)
            patch.setattr(Path, "rename", failing)
            for module in (segment_replacement, compacted_segments):
                patch.setattr(module, "sync_directory", lambda path: (fail(), sync(path))[1])
            try:
                compacted(log)
            except (KafkaError, OSError):
                assert failed
        log = reopened(log, clean=False)
        assert table(log) == expected
        compacted(log)
        assert table(log) == expected
        assert names_in(log, ".cleaned", ".swap") == []
        log.release()
        step += 1
    assert step > 15


# --- Which log is next ---


def dirtiness(clean: int, cleanable: int, *, overdue_ms: int = 0) -> Dirtiness:
    return Dirtiness(
        first_dirty_offset=0,
        end_offset=10,
        clean_bytes=clean,
        cleanable_bytes=cleanable,
        overdue_ms=overdue_ms,
        min_ratio=0.5,
    )


def test_the_dirtiest_log_is_next() -> None:
    logs = {"a": dirtiness(10, 20), "b": dirtiness(10, 30), "c": dirtiness(10, 5)}
    assert choose(logs) == "b"
    assert choose({"c": logs["c"], "half": dirtiness(10, 10), "empty": dirtiness(0, 0)}) is None
    assert choose({"c": logs["c"], "late": dirtiness(10, 1, overdue_ms=1)}) == "late"


def test_sealed_segments_are_cleanable_when_committed_and_on_disk(log: Log) -> None:
    filled(log)
    bases = [segment.base_offset for segment in log.segments]
    found = log.dirtiness(NOW)
    assert (found.first_dirty_offset, found.end_offset, found.clean_bytes, found.ratio) == (0, 60, 0, 1.0)
    log.cleaned_up_to = bases[3]
    found = log.dirtiness(NOW)
    assert found.clean_bytes == sum(segment.size for segment in log.segments[:3])
    put(log, (b"a", b"v"), producer_id=1, producer_epoch=0, base_sequence=0, transactional=True)
    log.roll()
    put(log, (b"a", b"v"))
    log.roll()
    assert log.dirtiness(NOW).end_offset == 60  # neither committed nor synced
    settled(log)
    assert log.dirtiness(NOW).end_offset == 60  # the transaction is open
    end_transaction(log, 1, 0, ControlType.COMMIT)
    assert settled(log).dirtiness(NOW).end_offset == 62


def test_min_and_max_compaction_lag(log: Log) -> None:
    filled(log)
    log.config = replace(CONFIG, min_compaction_lag_ms=100, max_compaction_lag_ms=200)
    assert log.dirtiness(NOW + 99).cleanable_bytes == 0
    assert log.dirtiness(NOW + 100).end_offset == 60
    assert [log.dirtiness(NOW + ms).overdue_ms for ms in (200, 201)] == [0, 1]
    assert log.config.roll_ms() == 200
    assert replace(log.config, cleanup_policy=frozenset({"delete"})).roll_ms() == CONFIG.segment_ms
