"""The ``.cut`` files of a log: their content, and the limit of their size."""

from __future__ import annotations

from pathlib import Path
from random import Random

import pytest

from parley.protocol.records.batch import build, records
from parley.protocol.records.batch_header import headers
from parley.protocol.records.record import Record
from parley.storage.cut_files import cut_files, keep_records
from parley.storage.loaded_log import LastKnown
from parley.storage.log import Log
from parley.storage.log_config import LogConfig
from parley.storage.log_place import LogPlace, LogSettings

NOW = 1_790_000_000_000
UNLIMITED = 1 << 30


def log_in(directory: Path, known: LastKnown = LastKnown(), *, segment_bytes: int = 1 << 20) -> Log:  # noqa: B008
    directory.mkdir(exist_ok=True)
    config = LogConfig(segment_index_bytes=4096, segment_bytes=segment_bytes)
    return Log.open(
        LogPlace(directory, "t", 0), LogSettings(config=config, now_ms=lambda: NOW, random=Random(1)), known
    )


def append(log: Log, *batches: list[bytes]) -> None:
    for values in batches:
        batch = build([Record(i, NOW, None, value, ()) for i, value in enumerate(values)])
        log.append_as_leader(batch, leader_epoch=3, now_ms=NOW)


def values_in(path: Path) -> list[tuple[int, bytes]]:
    data = memoryview(path.read_bytes())
    return [
        (header.base_offset + number, bytes(record.value or b""))
        for position, header in headers(data)
        for number, record in enumerate(records(data, position))
    ]


def test_the_removed_batches_are_kept_as_they_were(tmp_path: Path) -> None:
    log = log_in(tmp_path / "t-0", segment_bytes=300)
    append(log, [b"a" * 100], [b"b" * 100, b"c" * 100], [b"d" * 100])
    assert len(log.segments) == 3
    kept = keep_records(log, 1, UNLIMITED)
    assert (kept.end_offset, kept.is_complete) == (4, True)
    (file,) = cut_files(log.directory)
    assert (file.path, file.first_offset, file.number) == (kept.path, 1, 1)
    assert values_in(file.path) == [(1, b"b" * 100), (2, b"c" * 100), (3, b"d" * 100)]
    assert file.size_bytes == file.path.stat().st_size


def test_a_truncation_below_the_log_start_keeps_all_records(tmp_path: Path) -> None:
    log = log_in(tmp_path / "t-0")
    log.truncate_fully_and_start_at(7)
    append(log, [b"a"])
    kept = keep_records(log, 3, UNLIMITED)
    assert kept.path is not None
    assert values_in(kept.path) == [(7, b"a")]


def test_records_that_do_not_fit_are_left_out_at_the_end(tmp_path: Path) -> None:
    log = log_in(tmp_path / "t-0")
    append(log, [b"a" * 100], [b"b" * 100])
    size = log.read(0, 1, up_to=2).size
    kept = keep_records(log, 0, size + 1)
    assert (kept.end_offset, kept.is_complete) == (1, False)
    assert kept.path is not None
    assert values_in(kept.path) == [(0, b"a" * 100)]


def test_nothing_is_kept_without_room(tmp_path: Path) -> None:
    log = log_in(tmp_path / "t-0")
    append(log, [b"a"])
    assert keep_records(log, 0, 0).path is None
    assert [path.name for path in log.directory.iterdir() if "cut" in path.name] == []


def test_the_oldest_files_give_way_to_the_newest(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    log = log_in(tmp_path / "t-0")
    append(log, [b"a" * 100])
    size = log.read(0, 1, up_to=1).size
    for _ in range(4):
        keep_records(log, 0, 2 * size)
    assert [file.number for file in cut_files(log.directory)] == [3, 4]
    removed = [vars(line)["path"] for line in caplog.records if "deleted to make room" in line.message]
    assert removed == [str(log.directory / f"{0:020}-{number}.cut") for number in (1, 2)]


@pytest.mark.parametrize("is_reopened", [False, True])
@pytest.mark.parametrize("segment_bytes", [200, 1 << 20])
def test_the_batches_behind_a_damaged_one_are_kept(tmp_path: Path, segment_bytes: int, is_reopened: bool) -> None:
    log = log_in(tmp_path / "t-0", segment_bytes=segment_bytes)
    append(log, [b"a" * 100], [b"b" * 100], [b"c" * 100])
    segment = log.segments[len(log.segments) // 2]
    with open(segment.path_of(".log"), "r+b") as file:
        file.seek(0 if segment.base_offset else log.read(0, 1, up_to=1).size)
        file.write(bytes(61))
    if is_reopened:
        log.release()
        log = log_in(tmp_path / "t-0", LastKnown(clean=True, recovery_point=3), segment_bytes=segment_bytes)
    kept = keep_records(log, 0, UNLIMITED)
    assert (kept.end_offset, kept.is_complete) == (3, False)
    assert kept.path is not None
    assert values_in(kept.path) == [(0, b"a" * 100), (2, b"c" * 100)]


def test_records_after_damage_are_not_kept(tmp_path: Path) -> None:
    log = log_in(tmp_path / "t-0", segment_bytes=200)
    append(log, [b"a" * 100], [b"b" * 100])
    with open(log.segments[1].path_of(".log"), "r+b") as file:
        file.write(bytes(61))
    kept = keep_records(log, 0, UNLIMITED)
    assert (kept.end_offset, kept.is_complete) == (1, False)


def test_a_log_opens_beside_its_cut_files(tmp_path: Path) -> None:
    log = log_in(tmp_path / "t-0")
    append(log, [b"a"], [b"b"])
    keep_records(log, 1, UNLIMITED)
    log.truncate_to(1)
    log.release()
    for clean in (False, True):
        again = log_in(tmp_path / "t-0", LastKnown(clean, 1, 0))
        assert again.log_end_offset == 1
        assert len(cut_files(again.directory)) == 1
        again.close()
