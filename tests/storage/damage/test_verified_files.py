"""Segments that a restart of the broker does not have verified again, and every change that has them verified."""

from __future__ import annotations

import mmap
import os
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from random import Random

import pytest

from parley.broker.runtime.tasks import TaskSet
from parley.storage.boot_id import BOOT_FILE
from parley.storage.clean_shutdown import CLEAN_SHUTDOWN_FILE
from parley.storage.damage.verified_files import (
    COARSE_SETTLED_NS,
    SETTLED_NS,
    VERIFIED_SEGMENTS,
    FileVersion,
    count_unchanged_as_verified,
    take_verified,
)
from parley.storage.log import Log
from parley.storage.log_config import LogConfig
from parley.storage.log_manager import LogManager
from parley.storage.segment_names import LOG_SUFFIX
from parley.tools.simulation.disk import EARLIER_BOOT
from tests.storage.logs import NOW, append, values_of
from tests.storage.test_log_manager import IDLE

VALUES = [b"value %d" % number for number in range(6)]
ALTERED = 3
"""The value that the changes alter. It is in the second of three segments."""
FILE = f"{2:020}{LOG_SUFFIX}"


class Broker:
    """A broker with one log of three segments, which is started repeatedly on one log directory."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.manager = self._new_manager()

    @property
    def log(self) -> Log:
        log = self.manager.get("topic", 0)
        assert log is not None
        return log

    @property
    def file(self) -> Path:
        return self.path / "topic-0" / FILE

    def _new_manager(self) -> LogManager:
        return LogManager(
            [self.path],
            default_config=LogConfig(segment_index_bytes=4096),
            now_ms=lambda: NOW,
            random=Random(1),
            start_task=TaskSet().start,
            intervals=IDLE,
        )

    async def start(self) -> None:
        self.manager = self._new_manager()
        await self.manager.open("cluster", 1)

    async def stop(self) -> None:
        """Stop cleanly, once a change of the files would show in their times."""
        for segment in self.log.segments:
            version = FileVersion.of(segment.path_of(LOG_SUFFIX))
            while not version.is_settled(time.time_ns()):
                time.sleep(0.01)  # noqa: ASYNC251 (nothing else runs)
        await self.manager.close()

    def unverified(self) -> list[int]:
        """Return the base offsets of the segments that a read would verify."""
        return [segment.base_offset for segment in self.log.segments if segment.unverified]

    def values(self) -> list[bytes | None]:
        """Return the values of all records that can be read."""
        return list(values_of(self.log).values())


@pytest.fixture
async def stopped(tmp_path: Path) -> Broker:
    """A broker that wrote its log and stopped cleanly."""
    broker = Broker(tmp_path / "data")
    await broker.start()
    log = await broker.manager.get_or_create("topic", 0)
    for number, value in enumerate(VALUES):
        if number in (2, 4):
            log.roll()
        append(log, value)
    await broker.stop()
    return broker


async def test_a_restart_of_the_broker_alone_has_nothing_verified_again(stopped: Broker) -> None:
    for _ in range(2):
        await stopped.start()
        assert stopped.unverified() == []
        assert not (stopped.path / VERIFIED_SEGMENTS).exists()
        assert stopped.values() == VALUES
        await stopped.stop()


def _altered(path: Path) -> bytes:
    data = path.read_bytes()
    return data.replace(VALUES[ALTERED], b"other 3")


def overwrite(path: Path) -> None:
    """Alter a byte in place, and restore the times that can be set."""
    before = path.stat()
    path.write_bytes(_altered(path))
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))


def replace(path: Path) -> None:
    """Replace the file with a copy of the same size and times."""
    copy = path.with_suffix(".copy")
    shutil.copy2(path, copy)
    altered = _altered(path)
    copy.write_bytes(altered)
    shutil.copystat(path, copy)
    copy.replace(path)


def map_into_memory(path: Path) -> None:
    """Alter bytes through a map."""
    altered = _altered(path)
    with path.open("r+b") as file, mmap.mmap(file.fileno(), 0) as mapped:
        mapped[:] = altered


def write_and_restore(path: Path) -> None:
    """Cut the file and write it again, with altered bytes."""
    altered = _altered(path)
    with path.open("r+b") as file:
        file.truncate(10)
        file.seek(0)
        file.write(altered)


@pytest.mark.parametrize("change", [overwrite, replace, map_into_memory, write_and_restore])
async def test_a_changed_file_is_verified_and_never_served_altered(
    stopped: Broker, change: Callable[[Path], None]
) -> None:
    assert _altered(stopped.file) != stopped.file.read_bytes()
    change(stopped.file)
    await stopped.start()
    assert stopped.unverified() == [2]
    assert stopped.values() == [*VALUES[:ALTERED], *VALUES[ALTERED + 1 :]]
    await stopped.stop()
    await stopped.start()
    assert stopped.unverified() == [2], "a damaged segment is verified again"
    assert stopped.values() == [*VALUES[:ALTERED], *VALUES[ALTERED + 1 :]]
    await stopped.stop()


def restart_machine(path: Path) -> None:
    (path / BOOT_FILE).write_bytes(EARLIER_BOOT)


def forget_stop(path: Path) -> None:
    (path / CLEAN_SHUTDOWN_FILE).unlink()


def damage_list(path: Path) -> None:
    listed = path / VERIFIED_SEGMENTS
    listed.write_bytes(listed.read_bytes().replace(b"topic", b"topiC"))


def remove_list(path: Path) -> None:
    (path / VERIFIED_SEGMENTS).unlink()


@pytest.mark.parametrize("change", [restart_machine, forget_stop, damage_list, remove_list])
async def test_the_segments_are_verified_unless_the_list_is_valid(
    stopped: Broker, change: Callable[[Path], None]
) -> None:
    change(stopped.path)
    await stopped.start()
    assert {0, 2} <= {*stopped.unverified()}, "after a crash, the start itself scans the last segment"
    assert not (stopped.path / VERIFIED_SEGMENTS).exists()
    await stopped.stop()


async def test_a_list_of_an_earlier_boot_stays_invalid_after_a_kill(stopped: Broker) -> None:
    restart_machine(stopped.path)
    await stopped.start()
    await stopped.manager.abandon()
    await stopped.start()
    assert {0, 2} <= {*stopped.unverified()}
    await stopped.stop()


async def test_segments_that_were_verified_only_in_part_are_verified_again(stopped: Broker) -> None:
    restart_machine(stopped.path)
    await stopped.start()
    stopped.log.read(2, 1, up_to=stopped.log.log_end_offset)  # verifies its small segment as a whole
    await stopped.stop()
    await stopped.start()
    assert stopped.unverified() == [0, 4]
    await stopped.stop()


async def test_a_file_that_changed_just_before_the_stop_is_not_listed(
    stopped: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    await stopped.start()
    changed_ns = FileVersion.of(stopped.file).changed_ns
    monkeypatch.setattr(time, "time_ns", lambda: changed_ns + 1_000_000)
    await stopped.manager.close()
    await stopped.start()
    assert 2 in stopped.unverified()
    await stopped.manager.close()


def test_a_version_is_settled_when_the_clock_of_the_file_system_has_moved_on() -> None:
    fine, coarse = FileVersion(1, 1, 1_000_000_001), FileVersion(1, 1, 1_000_000_000)
    assert not fine.is_settled(fine.changed_ns + SETTLED_NS - 1)
    assert fine.is_settled(fine.changed_ns + SETTLED_NS)
    assert not coarse.is_settled(coarse.changed_ns + COARSE_SETTLED_NS - 1)
    assert coarse.is_settled(coarse.changed_ns + COARSE_SETTLED_NS)
    assert not fine.is_settled(fine.changed_ns - 1), "the clock was set back"


async def test_a_segment_that_goes_missing_is_not_counted_as_verified(stopped: Broker) -> None:
    listed = take_verified(stopped.path, is_valid=True)["topic", 0]
    await stopped.start()
    stopped.file.unlink()
    count_unchanged_as_verified(stopped.log.segments, listed)
    assert stopped.unverified() == [2]
    await stopped.manager.abandon()
