"""The log cleaner compacts logs that are due, pauses for other work on a log, and continues after a failure."""

from __future__ import annotations

import asyncio
import errno
import gc
import logging
import threading
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from itertools import pairwise
from pathlib import Path
from random import Random
from typing import Any

import pytest

from parley.broker.runtime.tasks import TaskSet
from parley.protocol.errors import ErrorCode, KafkaError
from parley.protocol.records.batch import build
from parley.protocol.records.record import Record
from parley.storage.checkpoints import OffsetCheckpoint
from parley.storage.compaction.cleaner_worker import Adopt, WorkerEnded, WorkerNotStarted
from parley.storage.compaction.compactor import CompactionRequest, CompactionResult, Uncleanable, compact
from parley.storage.compaction.log_cleaner import (
    IDLE_S,
    MAP_BYTES_MIN,
    WORKER_DEATHS_MAX,
    CleanerSettings,
    LogCleaner,
    Verdict,
    verdict,
)
from parley.storage.log import Log
from parley.storage.log_config import LogConfig
from parley.storage.log_manager import LogManager
from tests.storage.logs import NOW, values_of
from tests.storage.test_log_manager import IDLE
from tests.support.virtual_time import run

COMPACTED = LogConfig(
    segment_index_bytes=4096,
    cleanup_policy=frozenset({"compact"}),
    min_cleanable_dirty_ratio=0.1,
    file_delete_delay_ms=0,
)
BACKOFF_S = 15.0
SETTINGS = CleanerSettings(
    threads=1,
    map_bytes=8 * MAP_BYTES_MIN,
    map_load_factor=0.9,
    bytes_per_second=1e300,
    backoff_ms=int(BACKOFF_S * 1000),
)


@dataclass
class Workers:
    """Creates the workers of a cleaner. Each compaction fails with the next of ``failures``; once there are none left,
    it succeeds."""

    failures: list[Exception] = field(default_factory=list)
    requests: list[CompactionRequest] = field(default_factory=list)
    made: list[Compactor] = field(default_factory=list)
    takes_long: bool = False
    """If True, a compaction ends only when its worker is stopped."""
    began: threading.Semaphore = field(default_factory=lambda: threading.Semaphore(0))
    """Released by each compaction that begins."""

    def __call__(self) -> Compactor:
        self.made.append(Compactor(self))
        return self.made[-1]

    @property
    def names(self) -> list[str]:
        return [request.name for request in self.requests]


class Compactor:
    """A worker whose compactions fail as the test requests."""

    def __init__(self, workers: Workers) -> None:
        self.workers = workers
        self.is_closed = False
        self.done_bytes = 0
        self.stopped = threading.Event()

    def compact(self, request: CompactionRequest, adopt: Adopt, bytes_per_second: float) -> CompactionResult:
        self.workers.requests.append(request)
        self.workers.began.release()
        if self.workers.takes_long:
            self.stopped.wait()
            raise WorkerEnded("stopped")
        if self.workers.failures:
            raise self.workers.failures.pop(0)
        return compact(request, adopt)

    def stop(self) -> None:
        self.stopped.set()

    def close(self) -> None:
        self.stop()
        self.is_closed = True


@dataclass
class Bench:
    """A running cleaner of the logs of a manager."""

    manager: LogManager
    workers: Workers
    cleaner: LogCleaner
    tasks: TaskSet
    settings: CleanerSettings = SETTINGS

    async def dirty(self, topic: str, *, records: int = 20, config: LogConfig = COMPACTED) -> Log:
        """Return a log with records that a compaction removes."""
        log = await self.manager.get_or_create(topic, 0, config=config)
        await self.more(log, records)
        return log

    async def more(self, log: Log, records: int = 20) -> None:
        for number in range(records):
            batch = build([Record(0, NOW, b"key-%d" % (number % 4), b"value-%d" % number)])
            log.append_as_leader(batch, leader_epoch=0, now_ms=NOW)
        log.roll()
        log.high_watermark = log.log_end_offset
        log.flush()
        await self.manager.checkpoint(log)

    async def compaction_begun(self) -> None:
        """Wait for the next compaction to begin."""
        await asyncio.get_running_loop().run_in_executor(None, self.workers.began.acquire)

    def start(self) -> None:
        self.tasks.start(self.cleaner.run(), name="cleaner")


@asynccontextmanager
async def bench(folder: Path, directories: int = 1, **options: object) -> AsyncIterator[Bench]:
    tasks, loop = TaskSet(), asyncio.get_running_loop()
    manager = LogManager(
        [folder / f"d{number}" for number in range(directories)],
        default_config=LogConfig(segment_index_bytes=4096),
        now_ms=lambda: NOW,
        random=Random(1),
        start_task=tasks.start,
        intervals=IDLE,
    )
    await manager.open("cluster", 1)
    workers = Workers()
    cleaner = LogCleaner(
        manager,
        lambda: made.settings,
        workers,
        tasks.start,
        None,
        now_ms=lambda: NOW,
        monotonic=loop.time,
    )
    made = Bench(manager, workers, cleaner, tasks)
    manager.compaction_paused = cleaner.paused
    try:
        yield made
    finally:
        await tasks.close()
        await manager.close()


def in_virtual_time(folder: Path, test: Callable[[Bench], Awaitable[None]], directories: int = 1) -> None:
    async def main() -> None:
        async with bench(folder, directories) as made:
            await test(made)

    run(main())


def last_values(log: Log) -> list[bytes | None]:
    return list(values_of(log).values())


def test_the_dirtiest_log_comes_first_and_nothing_is_compacted_twice(tmp_path: Path) -> None:
    async def test(bench: Bench) -> None:
        log = await bench.dirty("less")
        await bench.dirty("more", records=40)
        await bench.dirty("kept", config=LogConfig(segment_index_bytes=4096))
        bench.start()
        await asyncio.sleep(1)
        assert sorted(bench.workers.names) == ["less-0", "more-0"]
        assert last_values(log) == [b"value-16", b"value-17", b"value-18", b"value-19"]
        await bench.more(log, 4)
        await asyncio.sleep(4 * BACKOFF_S)
        assert bench.workers.names[2:] == ["less-0"]
        assert bench.cleaner.counts.runs == 3
        assert bench.cleaner.counts.records_read > bench.cleaner.counts.records_kept > 0
        assert [path for path in log.directory.iterdir() if path.suffix in (".deleted", ".cleaned", ".swap")] == []

    in_virtual_time(tmp_path, test)


def test_a_log_that_is_due_is_flushed_and_compacted_at_once(tmp_path: Path) -> None:
    """Its sealed segments must be on disk, but the next periodic flush may be a minute away."""

    async def test(bench: Bench) -> None:
        log = await bench.manager.get_or_create("topic", 0, config=COMPACTED)
        for number in range(20):
            batch = build([Record(0, NOW, b"key-%d" % (number % 4), b"value-%d" % number)])
            log.append_as_leader(batch, leader_epoch=0, now_ms=NOW)
        log.roll()
        log.high_watermark = log.log_end_offset
        assert log.recovery_point == 0
        bench.start()
        await asyncio.sleep(1)
        assert bench.workers.names == ["topic-0"]
        assert last_values(log) == [b"value-16", b"value-17", b"value-18", b"value-19"]
        assert OffsetCheckpoint(tmp_path / "d0" / "recovery-point-offset-checkpoint").read() == {("topic", 0): 20}

    in_virtual_time(tmp_path, test)


def test_a_restart_does_not_make_a_clean_log_due(tmp_path: Path) -> None:
    async def compact_once(bench: Bench) -> None:
        await bench.dirty("topic")
        bench.start()
        await asyncio.sleep(1)
        assert bench.cleaner.counts.runs == 1

    async def start_again(bench: Bench) -> None:
        await bench.manager.get_or_create("topic", 0, config=COMPACTED)
        bench.start()
        await asyncio.sleep(BACKOFF_S)
        assert bench.workers.names == []

    in_virtual_time(tmp_path, compact_once)
    in_virtual_time(tmp_path, start_again)


def test_a_log_whose_move_will_be_resumed_is_not_compacted_before(tmp_path: Path) -> None:
    async def leave_a_copy(bench: Bench) -> None:
        log = await bench.dirty("topic")
        other = next(each for each in bench.manager.directories if each is not bench.manager.directory_of(log))
        bench.manager.copies.leave(await bench.manager.copies.begin(log, other))

    async def start_again(bench: Bench) -> None:
        log = await bench.manager.get_or_create("topic", 0, config=COMPACTED)
        bench.start()
        await asyncio.sleep(4 * BACKOFF_S)
        assert bench.workers.names == []
        directory = bench.manager.copies.begun.pop(("topic", 0))  # as the move begins again
        copy = await bench.manager.copies.begin(log, directory)
        await asyncio.sleep(4 * BACKOFF_S)
        assert bench.workers.names == []
        await bench.manager.copies.drop(copy)
        await asyncio.sleep(BACKOFF_S)
        assert bench.workers.names == ["topic-0"]

    in_virtual_time(tmp_path, leave_a_copy, directories=2)
    in_virtual_time(tmp_path, start_again, directories=2)


def test_nothing_is_compacted_while_the_cleaner_is_turned_off(tmp_path: Path) -> None:
    async def test(bench: Bench) -> None:
        await bench.dirty("topic")
        bench.settings = replace(SETTINGS, threads=0)
        bench.start()
        await asyncio.sleep(4 * BACKOFF_S)
        assert bench.workers.made == []
        bench.settings = SETTINGS
        await asyncio.sleep(BACKOFF_S)
        assert bench.workers.names == ["topic-0"]

    in_virtual_time(tmp_path, test)


def test_a_worker_ends_after_a_time_without_work(tmp_path: Path) -> None:
    async def test(bench: Bench) -> None:
        log = await bench.dirty("topic")
        bench.start()
        await asyncio.sleep(IDLE_S / 2)
        await bench.more(log)
        await asyncio.sleep(IDLE_S)
        assert [worker.is_closed for worker in bench.workers.made] == [False]
        assert bench.cleaner.counts.runs == 2
        await asyncio.sleep(IDLE_S)
        assert [worker.is_closed for worker in bench.workers.made] == [True]

    in_virtual_time(tmp_path, test)


def test_a_log_that_cannot_be_compacted_is_set_aside_and_the_others_go_on(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def test(bench: Bench) -> None:
        bench.workers.failures.append(Uncleanable("a producer has two transactions at a time"))
        for topic in ("a", "b"):
            await bench.dirty(topic)
        bench.start()
        await asyncio.sleep(10 * BACKOFF_S)
        bad, good = bench.workers.names
        assert {bad, good} == {"a-0", "b-0"}
        assert [log.topic for log in bench.cleaner.set_aside] == [bad.removesuffix("-0")]
        await bench.manager.delete(bad.removesuffix("-0"), 0)
        assert not bench.cleaner.set_aside

    in_virtual_time(tmp_path, test)
    (error,) = [record for record in caplog.records if record.levelno == logging.ERROR]
    assert vars(error)["reason"] == "a producer has two transactions at a time"


def test_a_failure_that_may_pass_is_tried_again_after_growing_pauses(tmp_path: Path) -> None:
    async def test(bench: Bench) -> None:
        bench.workers.failures += [OSError(errno.ENOSPC, "full")] * 3
        await bench.dirty("topic")
        bench.start()
        began, tried_s = asyncio.get_running_loop().time(), list[float]()
        while len(tried_s) < 4:
            await asyncio.sleep(1)
            while len(tried_s) < len(bench.workers.requests):
                tried_s.append(asyncio.get_running_loop().time() - began)
        pauses = [later - sooner for sooner, later in pairwise(tried_s)]
        assert pauses == sorted(pauses)
        assert pauses[0] >= BACKOFF_S - 1
        assert pauses[2] >= 4 * BACKOFF_S - 1
        assert (bench.cleaner.counts.runs, bench.cleaner.counts.failures) == (1, 3)
        assert bench.manager.online()
        assert not bench.cleaner.set_aside

    in_virtual_time(tmp_path, test)


def test_memory_that_runs_out_makes_the_table_of_keys_smaller(tmp_path: Path) -> None:
    async def test(bench: Bench) -> None:
        bench.workers.failures += [MemoryError(), WorkerEnded("killed"), *[MemoryError()] * 4]
        log = await bench.dirty("topic")
        bench.start()
        await asyncio.sleep(1000 * BACKOFF_S)
        sizes = [request.map_bytes // MAP_BYTES_MIN for request in bench.workers.requests]
        assert sizes == [8, 4, 2, 1, 1, 1, 1]
        for size in (2, 4, 8, 8):
            await bench.more(log)
            await asyncio.sleep(10 * BACKOFF_S)
            assert bench.workers.requests[-1].map_bytes // MAP_BYTES_MIN == size

    in_virtual_time(tmp_path, test)


def test_a_log_with_which_workers_die_is_set_aside(tmp_path: Path) -> None:
    async def test(bench: Bench) -> None:
        bench.workers.failures += [WorkerEnded("killed")] * WORKER_DEATHS_MAX
        await bench.dirty("topic")
        bench.start()
        await asyncio.sleep(1000 * BACKOFF_S)
        assert bench.cleaner.set_aside
        assert bench.cleaner.counts.worker_deaths == WORKER_DEATHS_MAX

    in_virtual_time(tmp_path, test)


def test_a_disk_that_fails_takes_its_directory_offline(tmp_path: Path) -> None:
    async def test(bench: Bench) -> None:
        bench.workers.failures.append(OSError(errno.EIO, "bad sector"))
        log = await bench.dirty("topic")
        home = bench.manager.directory_of(log)
        await bench.dirty("other")
        bench.start()
        await asyncio.sleep(10 * BACKOFF_S)
        assert len(bench.manager.online()) == 1
        assert (home.online, bench.workers.names[0]) in ((False, "topic-0"), (True, "other-0"))
        assert not bench.cleaner.set_aside

    in_virtual_time(tmp_path, test, directories=2)


def test_a_mended_range_is_dirty_after_a_crash_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def test(bench: Bench) -> None:
        log = await bench.dirty("topic")
        bench.start()
        await asyncio.sleep(1)
        checkpoint, segment = bench.manager.directory_of(log).cleaner_offsets, log.segments[0]
        assert checkpoint.read() == {("topic", 0): 20}
        path = segment.path_of(".log")
        intact = path.read_bytes()
        path.write_bytes(intact[:-1] + bytes([intact[-1] ^ 1]))
        log.verify_segment(segment, 0, segment.size)
        (damaged,) = log.damage
        mending = log.mend(damaged)
        mending.add(intact)
        finish, written = mending.finish, []
        monkeypatch.setattr(mending, "finish", lambda: (written.append(checkpoint.read()), finish())[1])
        await bench.manager.finish_mending(log, mending)
        assert not log.damage
        assert written == [{("topic", 0): damaged.first_offset}]

    in_virtual_time(tmp_path, test)


def test_a_damaged_log_waits_until_it_is_healed(tmp_path: Path) -> None:
    async def test(bench: Bench) -> None:
        log = await bench.dirty("topic")
        await bench.manager.close()
        await bench.manager.open("cluster", 1)
        log = await bench.manager.get_or_create("topic", 0, config=COMPACTED)
        path = log.segments[0].path_of(".log")
        intact = path.read_bytes()
        path.write_bytes(intact[:100] + bytes([intact[100] ^ 1]) + intact[101:])
        bench.start()
        await asyncio.sleep(10 * BACKOFF_S)
        assert log.damage
        assert bench.cleaner.set_aside == {log: "damaged records"}
        assert len(bench.workers.requests) == 1
        (damaged,) = log.damage
        with log.mend(damaged) as mending:
            mending.add(intact)
            bench.manager.remove_replaced(log, mending.finish())
        await asyncio.sleep(10 * BACKOFF_S)
        assert not bench.cleaner.set_aside
        assert last_values(log) == [b"value-16", b"value-17", b"value-18", b"value-19"]

    in_virtual_time(tmp_path, test)


def test_a_log_that_is_copied_to_another_directory_is_compacted_afterwards(tmp_path: Path) -> None:
    async def test(bench: Bench) -> None:
        log = await bench.dirty("topic")
        home = bench.manager.directory_of(log)
        (other,) = [directory for directory in bench.manager.directories if directory is not home]
        copy = await bench.manager.copies.begin(log, other)
        bench.start()
        await asyncio.sleep(4 * BACKOFF_S)
        assert bench.workers.names == []
        await bench.manager.copies.drop(copy)
        await asyncio.sleep(BACKOFF_S)
        assert bench.workers.names == ["topic-0"]

    in_virtual_time(tmp_path, test, directories=2)


# During a slow compaction. In real time, because a thread has to wait.


async def test_a_deletion_stops_the_compaction(tmp_path: Path) -> None:
    async with bench(tmp_path) as made:
        made.workers.takes_long = True
        await made.dirty("topic")
        made.start()
        await made.compaction_begun()
        assert await made.manager.delete("topic", 0)
        (worker,) = made.workers.made
        assert worker.is_closed
        assert (made.cleaner.running, made.cleaner.counts.failures) == (0, 0)


async def test_a_truncation_stops_the_compaction_and_none_begins_until_it_is_done(tmp_path: Path) -> None:
    async with bench(tmp_path) as made:
        made.settings = replace(SETTINGS, backoff_ms=0)
        made.workers.takes_long = True
        log = await made.dirty("topic")
        made.start()
        await made.compaction_begun()
        running: list[int] = []
        await made.manager.cut(log, lambda log: running.append(made.cleaner.running))
        assert running == [0]
        await made.compaction_begun()
        assert made.workers.names == ["topic-0", "topic-0"]


async def test_as_many_logs_are_compacted_at_a_time_as_there_are_threads(tmp_path: Path) -> None:
    async with bench(tmp_path) as made:
        made.settings = replace(SETTINGS, threads=2)
        made.workers.takes_long = True
        for topic in ("a", "b", "c"):
            await made.dirty(topic)
        made.start()
        for _ in range(2):
            await made.compaction_begun()
        assert made.cleaner.running == 2
        assert {request.map_bytes for request in made.workers.requests} == {SETTINGS.map_bytes // 2}
        made.workers.takes_long = False
        made.workers.made[0].stopped.set()  # ends with a failure, and the third log follows
        await made.compaction_begun()
        assert sorted(made.workers.names) == ["a-0", "b-0", "c-0"]


async def test_the_end_of_the_broker_stops_the_compaction(tmp_path: Path) -> None:
    unretrieved: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda loop, context: unretrieved.append(context))
    async with bench(tmp_path) as made:
        made.workers.takes_long = True
        log = await made.dirty("topic")
        made.start()
        await made.compaction_begun()
        await made.tasks.close()
        assert [worker.is_closed for worker in made.workers.made] == [True]
        assert len(values_of(log)) == 20
    del made
    gc.collect()
    assert unretrieved == []


# The consequences of a failure


@pytest.mark.parametrize(
    ("error", "follows"),
    [
        (WorkerEnded("killed"), Verdict.SHRINK),
        (MemoryError(), Verdict.SHRINK),
        (WorkerNotStarted("fork"), Verdict.RETRY),
        (OSError(errno.ENOSPC, ""), Verdict.RETRY),
        (OSError(errno.EMFILE, ""), Verdict.RETRY),
        (FileNotFoundError(errno.ENOENT, ""), Verdict.RETRY),
        (OSError(errno.EIO, ""), Verdict.DISK),
        (KafkaError(ErrorCode.KAFKA_STORAGE_ERROR), Verdict.RETRY),
        (KafkaError(ErrorCode.CORRUPT_MESSAGE), Verdict.SET_ASIDE),
        (Uncleanable(""), Verdict.SET_ASIDE),
        (ZeroDivisionError(), Verdict.SET_ASIDE),
    ],
)
def test_the_verdict_on_a_failed_compaction(error: Exception, follows: Verdict) -> None:
    assert verdict(error, 1) is follows
    if isinstance(error, WorkerEnded):
        assert verdict(error, WORKER_DEATHS_MAX) is Verdict.SET_ASIDE
