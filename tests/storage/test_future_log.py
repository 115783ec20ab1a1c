"""Future logs (copies in other directories): they follow the log, and a crash at any moment of the replacement loses
nothing."""

from __future__ import annotations

from pathlib import Path
from random import Random

import pytest

from parley.protocol.records.batch import build
from parley.protocol.records.record import Record
from parley.storage.boot_id import note_power_cut
from parley.storage.cut_files import cut_files, keep_records
from parley.storage.future_log import REPLACES, copy_some
from parley.storage.log import Log
from parley.storage.log_config import LogConfig
from parley.storage.log_place import LogPlace, LogSettings
from tests.storage.test_log_manager import Home, append, names

NOW = 1_790_000_000_000


def opened(directory: Path) -> Log:
    directory.mkdir()
    return Log.open(LogPlace(directory, "t", 0), LogSettings(config=LogConfig(), now_ms=lambda: NOW, random=Random(1)))


def write(log: Log, *values: bytes, epoch: int = 0) -> None:
    batch = build([Record(i, NOW, None, value, ()) for i, value in enumerate(values)])
    log.append_as_leader(batch, leader_epoch=epoch, now_ms=NOW)


def content(log: Log) -> bytes:
    return bytes(log.read(log.log_start_offset, 1 << 20, up_to=log.log_end_offset).read())


def copy_all(log: Log, copy: Log) -> None:
    while copy_some(log, copy, 1):
        pass
    assert content(copy) == content(log)
    assert copy.leader_epochs.entries == log.leader_epochs.entries
    assert (copy.log_start_offset, copy.log_end_offset) == (log.log_start_offset, log.log_end_offset)


def test_a_copy_starts_over_if_it_lacks_removed_tombstones(tmp_path: Path) -> None:
    """A compaction between two starts of the broker may remove tombstones that the copy has not reached."""
    log, copy = opened(tmp_path / "log"), opened(tmp_path / "copy")
    for values in ((b"a", b"b"), (b"c",), (b"d", b"e")):
        write(log, *values)
    copy_some(log, copy, 1)
    log._tombstone_checkpoint.set(2)
    copy_some(log, copy, 1)
    assert (copy.log_end_offset, copy.tombstones_removed_up_to) == (3, 0), "it had everything up to there"
    log._tombstone_checkpoint.set(4)
    copy_some(log, copy, 1)
    assert (copy.log_end_offset, copy.tombstones_removed_up_to) == (2, 4), "it has begun again"
    copy_all(log, copy)


def test_a_copy_follows_its_log(tmp_path: Path) -> None:
    log, copy = opened(tmp_path / "log"), opened(tmp_path / "copy")
    for epoch in range(3):
        write(log, b"a", b"b", epoch=epoch)
    log.leader_epochs.assign(7, log.log_end_offset)
    log.high_watermark = 4
    copy_all(log, copy)
    assert copy.high_watermark == 4
    log.high_watermark = 6
    log.advance_log_start(3)
    copy_all(log, copy)
    log.truncate_to(4)
    write(log, b"c", b"d", b"e", epoch=8)
    copy_all(log, copy)
    log.truncate_fully_and_start_at(20)
    copy_all(log, copy)
    write(log, b"f", epoch=9)
    copy_all(log, copy)


async def test_a_log_changes_its_directory(tmp_path: Path) -> None:
    home = Home([tmp_path / "d0", tmp_path / "d1"])
    async with home.opened() as manager:
        log = await manager.get_or_create("t", 0)
        append(log, b"value")
        other = next(each for each in manager.directories if each is not manager.directory_of(log))
        old = manager.directory_of(log)
        copy = await manager.copies.begin(log, other)
        assert manager.copies.in_progress == {("t", 0): (copy, other)}
        copy_all(log, copy)
        keep_records(log, 0, 1 << 20)
        await manager.copies.prepare(log, copy)
        manager.copies.replace(log, copy)
        assert manager.get("t", 0) is copy
        assert names(old.path) == names(other.path) == {"t-0"}
        append(copy, b"another")
        await manager.copies.retire(log, old)
        assert (names(other.path), names(old.path) & {"t-0"}) == ({"t-0"}, set())
        assert not (copy.directory / REPLACES).exists()
        assert [file.first_offset for file in cut_files(copy.directory)] == [0]
    async with home.opened() as manager:
        assert manager.logs[0].log_end_offset == 2


async def test_after_a_crash_in_the_exchange_the_successor_counts(tmp_path: Path) -> None:
    home = Home([tmp_path / "d0", tmp_path / "d1"])
    manager = home.manager()
    await manager.open("cluster", 1)
    log = await manager.get_or_create("t", 0)
    append(log, b"value")
    old = manager.directory_of(log)
    other = next(each for each in manager.directories if each is not old)
    copy = await manager.copies.begin(log, other)
    copy_all(log, copy)
    await manager.copies.prepare(log, copy)
    manager.copies.replace(log, copy)
    append(copy, b"another")
    await home.crash(manager)
    log.release()
    for _ in range(2):
        async with home.opened() as again:
            (found,) = again.logs
            assert again.directory_of(found).path == other.path
            assert found.log_end_offset == 2


@pytest.mark.parametrize("is_replaced", [True, False])
async def test_a_copy_of_a_log_that_a_power_cut_may_have_cut_lacks_the_same_records(
    tmp_path: Path, is_replaced: bool
) -> None:
    home = Home([tmp_path / "d0", tmp_path / "d1"])
    async with home.opened() as manager:
        log = await manager.get_or_create("t", 0)
        append(log, b"value")
        old = manager.directory_of(log).path
    note_power_cut(old, [("t", 0)])
    manager = home.manager()
    await manager.open("cluster", 1)
    (log,) = manager.unsettled.logs
    other = next(each for each in manager.directories if each.path != old)
    copy = await manager.copies.begin(log, other)
    copy_all(log, copy)
    await manager.copies.prepare(log, copy)
    if is_replaced:
        manager.copies.replace(log, copy)
        log.release()
    else:
        await manager.copies.drop(copy)
    assert manager.unsettled.logs == [copy if is_replaced else log]
    await home.crash(manager)
    async with home.opened() as again:
        assert [again.directory_of(log).path == other.path for log in again.unsettled.logs] == [is_replaced]


async def test_an_unfinished_copy_is_found_and_discarded(tmp_path: Path) -> None:
    home = Home([tmp_path / "d0", tmp_path / "d1"])
    async with home.opened() as manager:
        log = await manager.get_or_create("t", 0)
        append(log, b"value")
        other = next(each for each in manager.directories if each is not manager.directory_of(log))
        copy = await manager.copies.begin(log, other)
        manager.copies.leave(copy)
    async with home.opened() as manager:
        assert [(key, each.path) for key, each in manager.copies.begun.items()] == [(("t", 0), other.path)]
        assert manager.logs[0].log_end_offset == 1
        await manager.delete("t", 0)


async def test_a_log_is_made_where_it_was_wanted(tmp_path: Path) -> None:
    home = Home([tmp_path / "d0", tmp_path / "d1"])
    async with home.opened() as manager:
        last = manager.directories[-1]
        for index in range(3):
            manager.prefer("t", index, last)
            assert manager.directory_of(await manager.get_or_create("t", index)) is last
        assert manager.directory_of(await manager.get_or_create("t", 3)) is not last
