"""The offset and time indexes: file format, lookups, growth and damage."""

from __future__ import annotations

import errno
import os
import struct
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from parley.storage.index import CorruptIndex
from parley.storage.offset_index import OffsetIndex, OffsetPosition
from parley.storage.time_index import TimeIndex, TimestampOffset
from tests.support.faulty_files import only_below

BASE = 1000


def offset_index(path: Path, entries: list[tuple[int, int]], room: int = 4096) -> OffsetIndex:
    index = OffsetIndex.create(path, BASE)
    index.resize(room)
    for entry in entries:
        index.append(*entry)
    return index


def time_index(path: Path, entries: list[tuple[int, int]], room: int = 4096) -> TimeIndex:
    index = TimeIndex.create(path, BASE)
    index.resize(room)
    for entry in entries:
        index.append(*entry)
    return index


def test_the_bytes_are_kafkas(tmp_path: Path) -> None:
    offsets = offset_index(tmp_path / "o", [(1010, 500), (1020, 900)])
    times = time_index(tmp_path / "t", [(17, 1010), (18, 1020)])
    offsets.seal()
    times.seal()
    assert (tmp_path / "o").read_bytes() == struct.pack(">iiii", 10, 500, 20, 900)
    assert (tmp_path / "t").read_bytes() == struct.pack(">qiqi", 17, 10, 18, 20)


def test_a_new_index_has_an_empty_file(tmp_path: Path) -> None:
    OffsetIndex.create(tmp_path / "o", BASE)
    assert (tmp_path / "o").stat().st_size == 0


def test_room_is_a_hole_until_it_is_used(tmp_path: Path) -> None:
    index = offset_index(tmp_path / "o", [], room=10 << 20)
    assert (tmp_path / "o").stat().st_size == 10 << 20
    assert (tmp_path / "o").stat().st_blocks == 0
    index.append(1001, 1)
    assert 0 < (tmp_path / "o").stat().st_blocks * 512 <= 8192


def test_room_is_trimmed_once(tmp_path: Path) -> None:
    index = offset_index(tmp_path / "o", [(1010, 500)])
    index.seal()
    index.seal()
    assert (tmp_path / "o").stat().st_size == 8
    assert index.lookup(2000) == OffsetPosition(1010, 500)


def test_a_sealed_index_takes_entries_again(tmp_path: Path) -> None:
    index = offset_index(tmp_path / "o", [(1010, 500)])
    index.seal()
    assert index.lookup(1010).position == 500
    index.resize(4096)
    index.append(1020, 900)
    assert index.entries() == [(1010, 500), (1020, 900)]


@pytest.mark.parametrize("bytes_of_room", [80, 81, 87])
def test_an_index_is_full(tmp_path: Path, bytes_of_room: int) -> None:
    index = offset_index(tmp_path / "o", [(1001 + n, n + 1) for n in range(9)], room=bytes_of_room)
    assert not index.is_full
    index.append(1100, 1000)
    assert index.is_full


def test_a_time_index_keeps_a_slot_for_the_largest_timestamp(tmp_path: Path) -> None:
    index = time_index(tmp_path / "t", [(n, 1000 + n) for n in range(9)], room=120)
    assert index.is_full
    index.append(100, 1100)
    assert index.last == (100, 1100)


def test_entries_go_beyond_the_room_where_they_must(tmp_path: Path) -> None:
    entries = [(1001 + n, n + 1) for n in range(2000)]
    index = offset_index(tmp_path / "o", entries, room=80)
    assert index.entries() == entries
    index.seal()
    assert OffsetIndex.open(tmp_path / "o", BASE, 1 << 20).entries() == entries


@given(steps=st.lists(st.tuples(st.integers(1, 50), st.integers(1, 5000)), max_size=60), probe=st.integers(900, 4500))
def test_offsets_and_positions_are_found(
    tmp_path_factory: pytest.TempPathFactory, steps: list[tuple[int, int]], probe: int
) -> None:
    entries, offset, position = [], BASE, 0
    for more, size in steps:
        offset, position = offset + more, position + size
        entries.append((offset, position))
    index = offset_index(tmp_path_factory.mktemp("i") / "o", entries)
    assert index.lookup(probe) == max([e for e in entries if e[0] <= probe], default=(BASE, 0))
    wanted = (probe - 900) * 30
    assert index.lookup_position(wanted) == max([e for e in entries if e[1] <= wanted], default=(BASE, 0))
    index.truncate_to(probe)
    assert index.entries() == [e for e in entries if e[0] < probe]


@given(steps=st.lists(st.tuples(st.integers(0, 9), st.integers(0, 50)), max_size=60), probe=st.integers(0, 400))
def test_times_are_found(tmp_path_factory: pytest.TempPathFactory, steps: list[tuple[int, int]], probe: int) -> None:
    entries: list[tuple[int, int]] = []
    timestamp, offset = 0, BASE
    index = time_index(tmp_path_factory.mktemp("i") / "t", [])
    for later, more in steps:
        timestamp, offset = timestamp + later, offset + more
        index.append(timestamp, offset)
        if not entries or timestamp > entries[-1][0]:
            entries.append((timestamp, offset))
    assert index.entries() == entries
    assert index.lookup(probe) == max([e for e in entries if e[0] <= probe], default=(-1, BASE))
    index.truncate_to(BASE + probe)
    assert index.entries() == [e for e in entries if e[1] < BASE + probe]


def test_a_missing_timestamp_is_not_indexed(tmp_path: Path) -> None:
    index = time_index(tmp_path / "t", [(-1, 1010)])
    assert index.last == TimestampOffset(-1, BASE)


@pytest.mark.parametrize("content", [b"1234567", bytes(8), struct.pack(">ii", -5, 10), struct.pack(">ii", 5, 10**6)])
def test_an_impossible_offset_index_is_refused(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "o").write_bytes(content)
    with pytest.raises(CorruptIndex):
        OffsetIndex.open(tmp_path / "o", BASE, 1000)


@pytest.mark.parametrize(
    "content", [b"1234567", bytes(24), struct.pack(">qi", 5, -1), struct.pack(">qiqi", 5, 1, 4, 2)]
)
def test_an_impossible_time_index_is_refused(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "t").write_bytes(content)
    with pytest.raises(CorruptIndex):
        TimeIndex.open(tmp_path / "t", BASE)


def test_a_full_disk_is_an_error_and_no_entry(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    index = offset_index(tmp_path / "o", [])

    def full(*_: Any) -> None:
        raise OSError(errno.ENOSPC, "full")

    monkeypatch.setattr(os, "posix_fallocate", only_below(tmp_path, full, os.posix_fallocate))
    with pytest.raises(OSError, match="full"):
        index.append(1001, 10)
    assert index.entries() == []


def test_an_offset_out_of_reach_is_refused(tmp_path: Path) -> None:
    index = offset_index(tmp_path / "o", [])
    with pytest.raises(ValueError, match="out of range for base offset"):
        index.append(BASE + (1 << 31), 10)
    with pytest.raises(ValueError, match="out of range for base offset"):
        index.append(BASE - 1, 10)
