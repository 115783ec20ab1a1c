"""The scrubber reads everything within its interval and at its rate, even across a restart."""

from __future__ import annotations

import asyncio
import os
import shutil
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from types import TracebackType
from typing import Any, TypeVar

import pytest

from parley.protocol.errors import ErrorCode, KafkaError
from parley.protocol.topic_partition import TopicPartition
from parley.storage.damage.scrubber import NEVER_MS, Scrubber, ScrubSettings, _verified_ms
from parley.storage.log import Log
from parley.storage.log_directory import LogDirectory
from tests.storage.logs import NOW, fill, open_log, reopened
from tests.support.virtual_time import run

T = TypeVar("T")

HOUR_S = 3600.0
INTERVAL_S = 10 * HOUR_S
FAST = 1 << 40


@dataclass
class Directory:
    """One log in one directory, and the times at which pieces of it were verified."""

    path: Path
    log: Log
    home: LogDirectory
    jobs: list[float] = field(default_factory=list)
    failures: list[KafkaError] = field(default_factory=list)
    other: Log | None = None
    """Another log in the same directory."""
    verified: list[Log] = field(default_factory=list)
    """The log of each segment, in the order in which the segments were verified."""

    def is_copying(self, partition: TopicPartition) -> bool:
        return False

    def unwritten_mark(self, directory: LogDirectory) -> object:
        return None

    def logs_in(self, directory: LogDirectory) -> list[Log]:
        return [self.log] if self.other is None else [self.log, self.other]

    def directory_of(self, log: Log) -> LogDirectory:
        return self.home

    async def run(self, directory: LogDirectory, work: Callable[..., T], *args: Any) -> T:
        if args:
            self.jobs.append(asyncio.get_running_loop().time())
        if args[2:] == (0,):  # the first piece of a segment
            self.verified.append(args[0])
        if self.failures:
            raise self.failures.pop()
        return work(*args)


@pytest.fixture
def directory(tmp_path: Path) -> Directory:
    """Return a log of several sealed segments that has been closed and opened again."""
    (tmp_path / "topic-0").mkdir()
    log = open_log(tmp_path / "topic-0")
    fill(log, 100)
    home = LogDirectory(tmp_path)
    home.open("cluster", 1, Random(1))
    opened = Directory(tmp_path, reopened(log, clean=True), home)
    now_s = time.time()
    for digest in log.directory.glob("*.digest"):
        os.utime(digest, (now_s, now_s))  # all become due together, however long the machine took to write them
    return opened


def scrubber_of(directory: Directory, rate: int = FAST) -> Scrubber:
    """Return a scrubber whose wall clock begins at the time of the digests and advances with the loop's."""
    loop = asyncio.get_running_loop()
    written_ms = max(path.stat().st_mtime_ns for path in (directory.path / "topic-0").glob("*.digest")) // 1_000_000
    began_s = loop.time()
    return Scrubber(
        directory,
        [directory.home],
        lambda: ScrubSettings(int(INTERVAL_S * 1000), rate),
        now_ms=lambda: written_ms + int((loop.time() - began_s) * 1000),
        monotonic=loop.time,
    )


def scrubbed(directory: Directory, for_s: float, *, rate: int = FAST, require: bool = False) -> Scrubber:
    """Let a scrubber run for a time."""

    async def work() -> Scrubber:
        scrubber = scrubber_of(directory, rate)
        running = asyncio.ensure_future(scrubber.run(directory.home))
        if require:
            await asyncio.sleep(0)
            scrubber.require(directory.log, scrubber_now(scrubber) + 1)
        await asyncio.sleep(for_s)
        running.cancel()
        return scrubber

    return run(work())


def scrubber_now(scrubber: Scrubber) -> int:
    return next(iter(scrubber._scrubs.values()))._now_ms()


def size_of(log: Log) -> int:
    return sum(segment.size for segment in log.segments)


def test_nothing_is_read_before_the_interval_is_over_and_everything_after_it(directory: Directory) -> None:
    assert scrubbed(directory, INTERVAL_S - HOUR_S).verified_bytes == 0
    scrubber = scrubbed(directory, INTERVAL_S + HOUR_S)
    assert scrubber.verified_bytes == size_of(directory.log)
    assert scrubber.overdue_bytes == 0


def test_a_restart_does_not_make_verified_data_due(directory: Directory) -> None:
    scrubbed(directory, 1.5 * INTERVAL_S)
    directory.log = reopened(directory.log, clean=True)
    assert scrubbed(directory, INTERVAL_S - HOUR_S).verified_bytes == 0


def test_a_verification_in_the_future_is_not_believed(directory: Directory) -> None:
    segment = directory.log.segments[1]
    os.utime(segment.path_of(".digest"), (2_000_000_000, 2_000_000_000))
    assert _verified_ms(segment, 2_000_000_000_000) == 2_000_000_000_000
    assert _verified_ms(segment, 1_999_999_999_999) == NEVER_MS


def test_data_without_a_digest_is_due_at_once(directory: Directory) -> None:
    missing = directory.log.segments[1]
    missing.path_of(".digest").unlink()
    assert scrubbed(directory, HOUR_S).verified_bytes == missing.size


def test_data_that_this_process_has_written_is_not_due(directory: Directory) -> None:
    directory.log = reopened(directory.log, clean=True, now_ms=lambda: time.time_ns() // 1_000_000)
    written_from = directory.log.log_end_offset
    fill(directory.log, 100)
    scrubber = scrubbed(directory, HOUR_S)
    assert len([segment for segment in directory.log.segments if segment.base_offset > written_from]) > 1
    assert scrubber.verified_bytes == 0


def test_the_rate_is_bounded_and_omitted_lines_are_counted(directory: Directory) -> None:
    size = size_of(directory.log)
    scrubber = scrubbed(directory, INTERVAL_S + HOUR_S, rate=size // (2 * int(HOUR_S)))
    assert 0.2 * size < scrubber.verified_bytes < 0.8 * size
    assert scrubber.overdue_bytes == pytest.approx(size - scrubber.verified_bytes, abs=5000)


def test_an_operator_need_not_wait_for_the_interval(directory: Directory) -> None:
    scrubber = scrubbed(directory, 60.0, require=True)
    assert scrubber.verified_bytes == size_of(directory.log)
    since_ms = scrubber_now(scrubber)
    assert scrubber.unverified_bytes(directory.log, since_ms + 1) == size_of(directory.log)
    assert scrubber.unverified_bytes(directory.log, NOW - 10**12) == 0


def test_segments_that_are_rolled_after_an_operators_request_do_not_delay_it(directory: Directory) -> None:
    """The scrubber looks for new segments a minute later; meanwhile the log may roll others, without end."""
    asked_ms = time.time_ns() // 1_000_000
    directory.log = reopened(directory.log, clean=True, now_ms=lambda: asked_ms + 1)

    async def work() -> int:
        scrubber = scrubber_of(directory)
        running = asyncio.ensure_future(scrubber.run(directory.home))
        await asyncio.sleep(0)
        scrubber.require(directory.log, asked_ms)
        await asyncio.sleep(1.0)
        before = len(directory.log.segments)
        fill(directory.log, 100)
        assert len(directory.log.segments) > before
        running.cancel()
        return scrubber.unverified_bytes(directory.log, asked_ms)

    assert run(work()) == 0


def test_damage_is_found_and_the_rest_is_read(directory: Directory) -> None:
    victim = directory.log.segments[2]
    data = bytearray(victim.path_of(".log").read_bytes())
    data[1000] ^= 0xFF
    victim.path_of(".log").write_bytes(data)
    found = []
    directory.log.on_damage = lambda damage: found.append(damage)
    scrubber = scrubbed(directory, 1.5 * INTERVAL_S)
    assert scrubber.verified_bytes == size_of(directory.log)
    assert found == list(directory.log.damage)
    (damage,) = found
    assert victim.base_offset <= damage.first_offset <= damage.last_offset < victim.end_offset


def test_a_missing_file_is_named_as_damage_and_the_rest_is_read(directory: Directory) -> None:
    victim = directory.log.segments[2]
    victim.path_of(".log").unlink()
    scrubber = scrubbed(directory, 1.5 * INTERVAL_S)
    assert scrubber.verified_bytes == size_of(directory.log)
    (damage,) = directory.log.damage
    assert (damage.first_offset, damage.last_offset) == (victim.base_offset, victim.end_offset - 1)
    assert damage.reason == "the file is missing"


def test_a_log_verified_on_request_comes_first_only_once(directory: Directory, tmp_path: Path) -> None:
    log, count = directory.log, len(directory.log.segments)
    shutil.copytree(log.directory, tmp_path / "topic-1")
    directory.other = other = open_log(tmp_path / "topic-1", clean=True, recovery_point=log.recovery_point)
    scrubbed(directory, 1.5 * INTERVAL_S, require=True)
    assert directory.verified == [log] * count + [other] * count + [log] * count


def test_a_failure_pauses_the_scrubber(directory: Directory) -> None:
    directory.failures.append(KafkaError(ErrorCode.KAFKA_STORAGE_ERROR))
    assert scrubbed(directory, 1.5 * INTERVAL_S).verified_bytes == size_of(directory.log)


def test_the_scrubber_of_a_failed_directory_ends(directory: Directory) -> None:
    async def work() -> None:
        scrubber = scrubber_of(directory)
        directory.home.fail(OSError("gone"))
        await scrubber.run(directory.home)

    run(work())


class TruncatingLock:
    """The lock of a log. Before its second acquisition, another thread truncates the log by one record."""

    def __init__(self, log: Log) -> None:
        self._log = log
        self._acquired = 0

    def __enter__(self) -> None:
        self._acquired += 1
        if self._acquired == 2:
            self._log.truncate_to(self._log.log_end_offset - 1)
        self._log._lock.acquire()

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._log._lock.release()


def test_a_segment_is_verified_again_if_the_log_changed_meanwhile(directory: Directory) -> None:
    """The scrubber once counted such a segment as verified, without its damage: so healing one segment hid the damage
    of the next."""
    path = directory.log.segments[0].path_of(".log")
    whole = path.read_bytes()
    path.write_bytes(whole[:100] + bytes([whole[100] ^ 0xFF]) + whole[101:])
    directory.log._integrity._lock = TruncatingLock(directory.log)  # type: ignore[assignment]
    scrubbed(directory, 1, require=True)
    assert [(damaged.first_offset, damaged.last_offset) for damaged in directory.log.damage] == [(0, 0)]
