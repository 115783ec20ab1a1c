"""Reading a log: the batches that a read returns, its limits, and damaged indexes."""

from __future__ import annotations

import os
import struct
import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from parley.protocol.errors import ErrorCode, KafkaError
from parley.protocol.records.batch_header import headers
from parley.storage.log import Log
from parley.storage.segment_file import SegmentFile
from tests.storage.logs import NOW, SMALL, append, apply_retention, batch_of, check, fill, open_log, reopened, values_of
from tests.support.memory import nothing_is_in_memory


@pytest.fixture
def log(tmp_path: Path) -> Log:
    """Return a log of 200 batches with the offsets 0-2, 3-5, ... in several segments."""
    log = open_log(tmp_path)
    for n in range(200):
        append(log, b"%d" % n * 20, b"b", b"c", timestamp=NOW + n)
    return log


def offsets(log: Log, offset: int, max_bytes: int, **how: Any) -> list[int]:
    """Return the base offsets of the batches that a read returns."""
    how.setdefault("up_to", log.log_end_offset)
    return [header.base_offset for _, header in headers(log.read(offset, max_bytes, **how).read())]


@pytest.mark.parametrize("cold", [False, True])
def test_every_offset_is_found(log: Log, cold: bool) -> None:
    for offset in range(600):
        if cold:
            log._segments.reader.show(log.segments, log.log_end_offset)  # forgets the boundaries of batches
        assert offsets(log, offset, 1)[0] == offset - offset % 3


def test_a_read_ends_with_a_whole_batch_within_its_bounds(log: Log) -> None:
    for offset in range(0, 600, 7):
        for size in (1, 150, 700, 5000):
            read = log.read(offset, size, up_to=600)
            data = read.read()
            found = [header for _, header in headers(data)]
            assert sum(header.size_bytes for header in found) == len(data) == read.size
            assert len(found) == 1 or read.size <= size
            assert [header.base_offset for header in found] == list(
                range(offset - offset % 3, found[-1].next_offset, 3)
            )
            assert read.next_offset in (None, found[-1].next_offset)


def test_no_batch_at_all_where_none_fits_and_none_must_come(log: Log) -> None:
    assert offsets(log, 0, 10, min_one_batch=False) == []
    assert offsets(log, 0, 10, min_one_batch=True) == [0]
    size = next(log.segments[0].batches())[1].size_bytes
    assert offsets(log, 0, size, min_one_batch=False) == [0]
    assert offsets(log, 0, size - 1, min_one_batch=False) == []


@pytest.mark.parametrize("up_to", [0, 1, 2, 3, 4, 299, 300, 301, 600, 10**9])
def test_nothing_at_or_above_the_bound(log: Log, up_to: int) -> None:
    seen: list[int] = []
    while True:
        some = offsets(log, 3 * len(seen), 1 << 20, up_to=up_to)
        if not some:
            break
        seen += some
    assert seen == [base for base in range(0, 600, 3) if base + 3 <= up_to]


def test_reads_at_the_end_and_outside_of_the_log(log: Log) -> None:
    assert log.read(600, 100, up_to=600).size == 0
    assert log.read(600, 100, up_to=600).read() == b""
    assert log.read(600, 100, up_to=600).fd == -1
    for offset in (-1, 601):
        with pytest.raises(KafkaError) as refusal:
            log.read(offset, 100, up_to=600)
        assert refusal.value.code == ErrorCode.OFFSET_OUT_OF_RANGE


def test_a_consumer_at_the_end_needs_no_file(log: Log, monkeypatch: pytest.MonkeyPatch) -> None:
    def touched(*_: Any) -> None:
        raise AssertionError

    append(log, b"v")
    monkeypatch.setattr(SegmentFile, "read", touched)
    monkeypatch.setattr(SegmentFile, "read_into", touched)
    before, end = log.log_end_offset - 1, log.log_end_offset
    read = log.read(before, 1 << 20, up_to=end)
    assert (read.next_offset, read.segment_base_offset) == (end, log.segments[-1].base_offset)


def test_a_read_can_be_sent_as_it_is(log: Log) -> None:
    read = log.read(0, 1000, up_to=600)
    assert os.pread(read.fd, read.size, read.position) == read.try_read() == read.read()


def test_without_waiting(log: Log, monkeypatch: pytest.MonkeyPatch) -> None:
    assert log.read(299, 1000, up_to=600, nowait=True).try_read()
    nothing_is_in_memory(monkeypatch)
    log = reopened(log, clean=True)
    with pytest.raises(BlockingIOError):
        log.read(299, 1000, up_to=600, nowait=True)
    read = log.read(299, 1000, up_to=600)
    with pytest.raises(BlockingIOError):
        read.try_read()
    assert next(headers(read.read()))[1].base_offset == 297


def test_a_file_system_that_cannot_tell_is_read_all_the_same(log: Log, monkeypatch: pytest.MonkeyPatch) -> None:
    real = os.preadv

    def unable(fd: int, buffers: Any, position: int, flags: int = 0) -> int:
        if flags:
            raise OSError(95, "not supported")
        return real(fd, buffers, position)

    monkeypatch.setattr(os, "preadv", unable)
    monkeypatch.setattr(SegmentFile, "nowait_flag", SegmentFile.nowait_flag)
    assert log.read(0, 1000, up_to=600).try_read()


def test_reads_that_come_in_pieces(log: Log, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = log.read(0, 1000, up_to=600).read()
    real = os.preadv

    def piecemeal(fd: int, buffers: Any, position: int, flags: int = 0) -> int:
        return real(fd, [memoryview(buffers[0])[:100]], position, flags)

    monkeypatch.setattr(os, "preadv", piecemeal)
    assert log.read(0, 1000, up_to=600).try_read() == whole


@pytest.mark.parametrize("entry", [(1, 4), (10**6, 5), (3, 77), (2**31 - 1, 1)])
def test_an_index_that_lies_costs_time_only(log: Log, entry: tuple[int, int]) -> None:
    log.close()
    index = log.segments[0].path_of(".index")
    entries = index.read_bytes()
    index.write_bytes(struct.pack(">ii", *entry) + entries[8:])
    log = open_log(log.directory, clean=True, recovery_point=600)
    for offset in range(200):
        assert offsets(log, offset, 1) == [offset - offset % 3]
        assert offsets(log, offset, 400)[0] == offset - offset % 3


def test_a_damaged_batch_is_an_error(log: Log) -> None:
    path = log.segments[0].path_of(".log")
    log.close()
    data = bytearray(path.read_bytes())
    data[16] = 9
    path.write_bytes(data)
    log = open_log(log.directory, clean=True, recovery_point=600)
    with pytest.raises(KafkaError) as refusal:
        log.read(1, 100, up_to=600)
    assert refusal.value.code == ErrorCode.CORRUPT_MESSAGE


class TestByTime:
    def test_the_first_record_at_or_after(self, log: Log) -> None:
        for clean in (True, False):
            for n in range(0, 200, 9):
                assert log.offset_for_timestamp(NOW + n) == (NOW + n, 3 * n, 0)
            assert log.offset_for_timestamp(0) == (NOW, 0, 0)
            assert log.offset_for_timestamp(NOW + 200) is None
            log = reopened(log, clean=clean)

    def test_times_that_do_not_rise(self, tmp_path: Path) -> None:
        log = open_log(tmp_path)
        times = [NOW + (n * 37) % 101 for n in range(300)]
        for n, timestamp in enumerate(times):
            append(log, b"v" * 50, timestamp=timestamp, epoch=n // 100)
        for wanted in range(NOW - 1, NOW + 101):
            first = next(n for n, timestamp in enumerate(times) if timestamp >= wanted)
            assert log.offset_for_timestamp(wanted) == (times[first], first, first // 100)
        assert log.max_timestamp() == (max(times), times.index(max(times)), times.index(max(times)) // 100)

    def test_below_the_start_nothing_is_found(self, log: Log) -> None:
        log.high_watermark = 600
        log.advance_log_start(302)
        assert log.offset_for_timestamp(0) == (NOW + 100, 302, 0)

    def test_the_record_within_a_batch(self, tmp_path: Path) -> None:
        log = open_log(tmp_path)
        for base in range(0, 30, 3):
            batch = batch_of(b"a", timestamp=NOW + base) + batch_of(b"b", timestamp=NOW + base + 2)
            log.append_as_leader(batch, leader_epoch=0, now_ms=NOW)
        assert log.offset_for_timestamp(NOW + 1) == (NOW + 2, 1, 0)
        assert log.max_timestamp() == (NOW + 29, 19, 0)

    def test_records_without_time_are_not_found(self, tmp_path: Path) -> None:
        log = open_log(tmp_path)
        append(log, b"a", timestamp=-1)
        assert log.offset_for_timestamp(0) is None
        assert log.max_timestamp() is None

    def test_an_empty_log(self, tmp_path: Path) -> None:
        assert open_log(tmp_path).offset_for_timestamp(0) is None
        assert open_log(tmp_path).max_timestamp() is None


@pytest.mark.slow
@pytest.mark.parametrize("appends", [400, pytest.param(1500, marks=pytest.mark.soak)])
def test_readers_beside_appends_and_deletions(tmp_path: Path, appends: int) -> None:
    log = open_log(tmp_path, replace(SMALL, retention_bytes=20_000))
    failures: list[BaseException] = []
    done = threading.Event()

    def consume() -> None:
        try:
            while not done.is_set():
                offset = log.log_start_offset
                while offset < log.high_watermark:
                    try:
                        read = log.read(offset, 700, up_to=log.high_watermark)
                        log.offset_for_timestamp(NOW + offset)
                    except KafkaError as error:
                        if error.code != ErrorCode.OFFSET_OUT_OF_RANGE:
                            raise
                        break
                    found = [header for _, header in headers(read.read())]
                    assert found[0].base_offset == offset
                    assert found[-1].next_offset <= log.log_end_offset
                    offset = found[-1].next_offset
        except BaseException as error:
            failures.append(error)
            raise

    threads = [threading.Thread(target=consume) for _ in range(3)]
    for thread in threads:
        thread.start()
    try:
        for n in range(appends):
            append(log, b"v" * 100, timestamp=NOW + n)
            log.high_watermark = log.log_end_offset
            if n % 50 == 0:
                for path in apply_retention(log, NOW):
                    path.unlink()
                log.flush()
    finally:
        done.set()
        for thread in threads:
            thread.join()
    assert not failures
    check(log)
    assert len(values_of(log)) == log.log_end_offset - log.log_start_offset
    assert fill(log, 1)
