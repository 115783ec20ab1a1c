"""Logs that may lack committed records: when each is settled, and what its successor inherits."""

import asyncio
from pathlib import Path

import pytest

from parley.storage.log import Log
from parley.storage.log_directory import LogDirectory
from parley.storage.unsettled_logs import UnsettledLogs
from tests.storage.logs import open_log


class Directories:
    """Records for which directories the list of a power cut's victims was written, and for which it was emptied."""

    def __init__(self) -> None:
        self.written: list[LogDirectory] = []
        self.emptied: list[LogDirectory] = []
        self.unsettled = UnsettledLogs(self._write, self.emptied.append)

    async def _write(self, directory: LogDirectory) -> None:
        self.written.append(directory)


def log_in(path: Path) -> Log:
    path.mkdir()
    return open_log(path)


@pytest.fixture
def directories() -> Directories:
    return Directories()


def test_a_log_is_settled_in_every_respect_at_once(directories: Directories, tmp_path: Path) -> None:
    unsettled, home, log = directories.unsettled, LogDirectory(tmp_path), log_in(tmp_path / "a-0")
    unsettled.lost_below[log] = 7
    unsettled.unproven[log] = 3
    unsettled.note_power_cut(home, {log})
    assert unsettled.known_high_watermark(log) == 7
    assert unsettled.is_unproven(log)
    assert unsettled.may_be_cut_by_power(log)
    unsettled.settle(log)
    assert unsettled.logs == []
    assert unsettled.known_high_watermark(log) == 0


def test_the_list_of_a_directory_is_emptied_once_its_last_log_is_settled(
    directories: Directories, tmp_path: Path
) -> None:
    unsettled, home = directories.unsettled, LogDirectory(tmp_path)
    first, second = log_in(tmp_path / "a-0"), log_in(tmp_path / "a-1")
    unsettled.note_power_cut(home, {first, second})
    unsettled.settle(first)
    assert directories.emptied == []
    assert unsettled.cut_by_power_in(home) == [second]
    unsettled.settle(second)
    assert directories.emptied == [home]


def test_the_list_of_an_offline_directory_stays_as_it_is(directories: Directories, tmp_path: Path) -> None:
    unsettled, home, log = directories.unsettled, LogDirectory(tmp_path), log_in(tmp_path / "a-0")
    unsettled.note_power_cut(home, {log})
    unsettled.went_offline(home)
    unsettled.settle(log)
    assert directories.emptied == []


def test_a_copy_that_replaces_a_log_may_lack_the_same_records(directories: Directories, tmp_path: Path) -> None:
    unsettled, home, other = directories.unsettled, LogDirectory(tmp_path / "d0"), LogDirectory(tmp_path / "d1")
    log, copy = log_in(tmp_path / "a-0"), log_in(tmp_path / "a-0.future")
    unsettled.lost_below[log], unsettled.unproven[log] = 7, 3
    unsettled.note_power_cut(home, {log})
    asyncio.run(unsettled.prepare_successor(log, copy, other))
    assert directories.written == [other], "the list is on disk before the copy replaces the log"
    assert unsettled.may_be_cut_by_power(log)
    unsettled.succeed(log, copy)
    assert (unsettled.lost_below, unsettled.unproven) == ({copy: 7}, {copy: 3})
    assert unsettled.may_be_cut_by_power(copy)
    assert not unsettled.may_be_cut_by_power(log)


def test_a_copy_of_a_log_without_a_power_cut_needs_no_list(directories: Directories, tmp_path: Path) -> None:
    log, copy = log_in(tmp_path / "a-0"), log_in(tmp_path / "a-0.future")
    asyncio.run(directories.unsettled.prepare_successor(log, copy, LogDirectory(tmp_path)))
    assert directories.written == []
    assert directories.unsettled.logs == []
