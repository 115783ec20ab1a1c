"""All logs of a broker: opening, creating, deleting, closing and maintenance in several directories, some of which
fail."""

from __future__ import annotations

import asyncio
import errno
import logging
import os
import shutil
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any

import pytest

from parley.broker.runtime.tasks import TaskSet
from parley.protocol.errors import ErrorCode, KafkaError
from parley.protocol.records.batch import build
from parley.protocol.records.record import Record
from parley.protocol.uuids import UUID
from parley.storage import directory_loader, log_maintenance
from parley.storage.boot_id import BOOT_FILE, POWER_CUT_FILE, is_same_boot, note_power_cut
from parley.storage.checkpoints import RECOVERY_POINTS, OffsetCheckpoint
from parley.storage.clean_shutdown import CLEAN_SHUTDOWN_FILE
from parley.storage.directory_loader import DirectoryLoader, MisplacedLog, TwinLogs
from parley.storage.log import Log
from parley.storage.log_config import DAY_MS, NEVER, LogConfig
from parley.storage.log_directory import DirectoryInUse, LogDirectory
from parley.storage.log_maintenance import MaintenanceIntervals
from parley.storage.log_manager import LogManager, NoLogDirectory
from parley.storage.log_place import LogPlace, LogSettings
from parley.storage.meta_properties import InconsistentClusterId
from parley.storage.partition_metadata import PartitionMetadata, read_partition_metadata
from parley.storage.resource_exhaustion import DESCRIPTORS, MEMORY
from parley.storage.segment import Segment
from parley.storage.unwritten_logs import LATER, UNWRITTEN_LOGS, UnwrittenLog
from parley.tools.simulation.disk import EARLIER_BOOT
from tests.storage.logs import apply_retention, values_of
from tests.support.descriptors import open_descriptors
from tests.support.faulty_files import only_below

NOW = 1_790_000_000_000
TOPIC_ID = UUID(int=7)
IDLE = MaintenanceIntervals(
    retention_check_ms=NEVER,
    flush_check_ms=NEVER,
    recovery_point_checkpoint_ms=NEVER,
    log_start_checkpoint_ms=NEVER,
    high_watermark_checkpoint_ms=NEVER,
    producer_expiration_check_ms=NEVER,
)
CONFIG = LogConfig(segment_index_bytes=4096)


@dataclass
class Home:
    """The log directories of a broker that is started repeatedly."""

    paths: list[Path]
    now_ms: int = NOW
    random: Random = field(default_factory=lambda: Random(1))
    offline: list[tuple[LogDirectory, list[Log]]] = field(default_factory=list)
    all_offline: asyncio.Event = field(default_factory=asyncio.Event)
    tasks: TaskSet = field(default_factory=TaskSet)

    def manager(self, intervals: MaintenanceIntervals = IDLE, **options: Any) -> LogManager:
        return LogManager(
            self.paths,
            default_config=CONFIG,
            now_ms=lambda: self.now_ms,
            random=self.random,
            start_task=self.tasks.start,
            intervals=intervals,
            on_offline=lambda directory, logs: self.offline.append((directory, logs)),
            on_all_offline=self.all_offline.set,
            **options,
        )

    @asynccontextmanager
    async def opened(self, intervals: MaintenanceIntervals = IDLE, **options: Any) -> AsyncIterator[LogManager]:
        manager = self.manager(intervals, **options)
        await manager.open("cluster", 1)
        try:
            yield manager
        finally:
            await manager.close()

    async def crash(self, manager: LogManager) -> None:
        """End the broker such that its files are as after kill -9."""
        manager._open = False
        await manager._maintenance.stop()
        for log in manager.logs:
            log.release()
        for directory in manager.directories:
            directory.close()


@pytest.fixture
def home(tmp_path: Path) -> Home:
    return Home([tmp_path / "d0", tmp_path / "d1"])


def append(log: Log, value: bytes, *, timestamp: int = NOW, **producer: Any) -> None:
    batch = build([Record(0, timestamp, b"key", value, ())], **producer)
    log.append_as_leader(batch, leader_epoch=0, now_ms=timestamp)
    log.high_watermark = log.log_end_offset


def names(path: Path) -> set[str]:
    return {entry.name for entry in path.iterdir() if entry.is_dir()}


def segments_with_files(log: Log) -> set[int]:
    """Return the base offsets of the segments that have files, including renamed files."""
    return {int(name[:20]) for name in os.listdir(log.directory) if name[:20].isdigit()}


async def until(condition: Callable[[], bool]) -> None:
    """Wait for the effect of another thread or a timer."""
    while not condition():  # noqa: ASYNC110 (files and other threads set no event)
        await asyncio.sleep(0.005)


# Opening and closing


async def test_logs_are_there_again_after_a_stop(home: Home, caplog: pytest.LogCaptureFixture) -> None:
    async with home.opened() as manager:
        log = await manager.get_or_create("a.topic", 0, topic_id=TOPIC_ID)
        append(log, b"first")
        append(log, b"second")
        assert manager.get("a.topic", 0) is log
        assert manager.get("a.topic", 1) is None
    caplog.clear()
    async with home.opened() as manager:
        again = manager.get("a.topic", 0)
        assert again is not None
        assert (again.log_end_offset, again.high_watermark, again.recovery_point) == (2, 2, 2)
        assert again.topic_id == TOPIC_ID
    assert "recovering" not in caplog.text


async def test_after_a_crash_logs_are_recovered(home: Home, caplog: pytest.LogCaptureFixture) -> None:
    async with home.opened() as manager:
        append(await manager.get_or_create("topic", 0), b"kept")
    manager = home.manager()
    await manager.open("cluster", 1)
    log = manager.get("topic", 0)
    assert log is not None
    append(log, b"not flushed")
    await home.crash(manager)
    async with home.opened() as manager:
        again = manager.get("topic", 0)
        assert again is not None
        assert (again.log_end_offset, again.high_watermark) == (2, 1)
    assert "a log directory was not shut down cleanly: its logs are recovered" in caplog.messages


async def test_a_broker_that_dies_while_it_recovers_leaves_the_rest_to_the_next_start(home: Home) -> None:
    """The machine has restarted, so logs may be torn. The next start must not treat that as damage."""
    async with home.opened() as manager:
        append(await manager.get_or_create("topic", 0), b"kept")
    path, settings = home.paths[0], LogSettings(config=CONFIG, now_ms=lambda: NOW, random=Random(1))
    (path / BOOT_FILE).write_bytes(EARLIER_BOOT)
    (path / CLEAN_SHUTDOWN_FILE).unlink()
    for is_recovered in (False, True):
        loader = DirectoryLoader(LogDirectory(path), settings, lambda error: None)
        loader.prepare("cluster", 1)
        assert not is_same_boot(path)
        loader.work()
        if is_recovered:
            loader.finish()
        loader.release()
    assert is_same_boot(path)


async def test_a_start_that_fails_after_an_orderly_restart_of_the_machine_is_no_power_cut(home: Home) -> None:
    async with home.opened() as manager:
        append(await manager.get_or_create("topic", 0), b"kept")
    path, settings = home.paths[0], LogSettings(config=CONFIG, now_ms=lambda: NOW, random=Random(1))
    (path / BOOT_FILE).write_bytes(EARLIER_BOOT)
    loader = DirectoryLoader(LogDirectory(path), settings, lambda error: None)
    loader.prepare("cluster", 1)
    loader.release()
    async with home.opened() as manager:
        assert manager.previous_broker_epoch == -1, "the stop was not clean"
        assert manager.unsettled.logs == []


async def test_the_first_start_on_a_directory_of_kafka_brings_its_logs_to_disk(home: Home) -> None:
    """Kafka was killed in a compaction. Once Parley appends, only the recovery point shows what it may have removed."""
    async with home.opened() as manager:
        for value in (b"kept", b"kept too"):
            append(await manager.get_or_create("topic", 0), value)
    path = home.paths[0]
    for name in (BOOT_FILE, RECOVERY_POINTS, CLEAN_SHUTDOWN_FILE):
        (path / name).unlink()
    manager = home.manager()
    await manager.open("cluster", 1)
    assert OffsetCheckpoint(path / RECOVERY_POINTS).read() == {("topic", 0): 2}
    assert is_same_boot(path)
    await home.crash(manager)


async def test_logs_that_a_power_cut_may_have_cut_are_known_until_all_are_settled(home: Home) -> None:
    first, second = home.paths
    async with home.opened() as manager:
        for index in range(3):
            append(await manager.get_or_create("topic", index), b"kept")
        kept = {log.partition for log in manager.logs_in(manager.directories[0])}
    (first / CLEAN_SHUTDOWN_FILE).unlink()
    (first / BOOT_FILE).unlink()
    for _ in range(2):  # after another restart, they still lack what they lacked
        async with home.opened() as manager:
            assert {log.partition for log in manager.logs if manager.unsettled.may_be_cut_by_power(log)} == kept
            assert {log.partition for log in manager.unsettled.logs} == kept
    async with home.opened() as manager:
        manager.unsettled.settle(manager.unsettled.logs[0])
    async with home.opened() as manager:
        assert len(manager.unsettled.logs) == len(kept) - 1, "the others do not keep a settled log in the note"
        for log in manager.unsettled.logs:
            assert (first / POWER_CUT_FILE).exists()
            manager.unsettled.settle(log)
        assert not any(map(manager.unsettled.may_be_cut_by_power, manager.logs))
        await asyncio.gather(*home.tasks._tasks)
    async with home.opened() as manager:
        assert manager.unsettled.logs == []
    assert not (second / POWER_CUT_FILE).exists()


async def test_an_unproven_log_without_files_is_forgotten(home: Home) -> None:
    async with home.opened() as manager:
        for index, since in enumerate((None, 5)):
            await manager.get_or_create("topic", index, topic_id=TOPIC_ID, unproven_since=since)
        assert [(log.partition, since) for log, since in manager.unsettled.unproven.items()] == [(1, 5)]
        await manager.get_or_create("topic", 0, unproven_since=5)  # it exists
        assert len(manager.unsettled.unproven) == 1
    async with home.opened() as manager:
        assert [log.partition for log in manager.logs] == [0]
        log = await manager.get_or_create("topic", 1, topic_id=TOPIC_ID, unproven_since=5)
        manager.unsettled.settle(log)
    async with home.opened() as manager:
        assert [log.partition for log in manager.logs] == [0, 1]
        assert not manager.unsettled.unproven


async def test_an_altered_checkpoint_of_log_starts_hides_no_records(home: Home) -> None:
    """A leader with a higher log start would make all replicas delete the records."""
    async with home.opened() as manager:
        log = await manager.get_or_create("topic", 0)
        for _ in range(3):
            append(log, b"kept")
        path = manager.directory_of(log).path / "log-start-offset-checkpoint"
    path.write_text(path.read_text().replace("topic 0 0", "topic 0 2"))
    async with home.opened() as manager:
        log = await manager.get_or_create("topic", 0)
        assert (log.log_start_offset, list(values_of(log))) == (0, [0, 1, 2])


@pytest.mark.parametrize("note", [b"", b"0\n1\n", b"0\n1\ntopic\n", b"0\n1\ntopic x\n"])
async def test_a_damaged_note_of_a_power_cut_means_all_logs(home: Home, note: bytes) -> None:
    async with home.opened() as manager:
        append(await manager.get_or_create("topic", 0), b"kept")
    (home.paths[0] / POWER_CUT_FILE).write_bytes(note)
    async with home.opened() as manager:
        assert [log.partition for log in manager.unsettled.logs] == [0]


async def test_a_disk_that_fails_while_a_power_cut_is_forgotten_goes_offline(home: Home) -> None:
    async with home.opened() as manager:
        append(await manager.get_or_create("topic", 0), b"kept")
    note_power_cut(home.paths[0], [("topic", 0)])
    async with home.opened() as manager:
        (home.paths[0] / POWER_CUT_FILE).unlink()
        (home.paths[0] / POWER_CUT_FILE).mkdir()
        manager.unsettled.settle(manager.unsettled.logs[0])
        await asyncio.gather(*home.tasks._tasks)
        assert not manager.directories[0].online
        assert manager.unsettled.logs == []


async def test_a_power_cut_of_a_directory_without_logs_is_forgotten(home: Home) -> None:
    async with home.opened():
        note_power_cut(home.paths[0], [("topic", 0)])
    async with home.opened() as manager:
        append(await manager.get_or_create("topic", 0), b"new")
    async with home.opened() as manager:
        assert manager.unsettled.logs == []


async def test_a_clean_stop_leaves_the_epoch_of_the_registration(home: Home) -> None:
    async with home.opened() as manager:
        assert manager.previous_broker_epoch == -1
        manager.broker_epoch = lambda: 5
    async with home.opened() as manager:
        assert manager.previous_broker_epoch == 5
    async with home.opened() as manager:  # the previous process was never registered, so it wrote nothing
        assert manager.previous_broker_epoch == 5
    crashed = home.manager()
    await crashed.open("cluster", 1)
    await home.crash(crashed)
    async with home.opened() as manager:
        assert manager.previous_broker_epoch == -1


async def test_a_stop_is_not_clean_if_one_directory_was_shut_down_otherwise(home: Home) -> None:
    async with home.opened() as manager:
        manager.broker_epoch = lambda: 5
    (home.paths[1] / ".kafka_cleanshutdown").unlink()
    async with home.opened() as manager:
        assert manager.previous_broker_epoch == -1


async def test_a_directory_that_was_emptied_does_not_make_the_stop_unclean_for_the_others(home: Home) -> None:
    async with home.opened() as manager:
        manager.broker_epoch = lambda: 5
        ids = manager.online_ids()
    for path in home.paths[1].iterdir():
        path.unlink()
    async with home.opened() as manager:
        assert manager.previous_broker_epoch == 5
        assert manager.online_ids()[0] == ids[0]
        assert manager.online_ids()[1] not in ids


async def test_a_log_that_ends_below_its_persisted_high_watermark_is_named(
    home: Home, caplog: pytest.LogCaptureFixture
) -> None:
    async with home.opened() as manager:
        log = await manager.get_or_create("topic", 0)
        append(log, b"first")
        append(log, b"second")
        first = log.read(0, 1, up_to=1)
        end_of_first = first.size
        segment = log.segments[0].paths[0]
        assert not manager.unsettled.lost_below
    os.truncate(segment, end_of_first)
    for _ in range(2):  # a restart does not make the broker forget what it has lost
        async with home.opened() as manager:
            assert [(log.log_end_offset, lost) for log, lost in manager.unsettled.lost_below.items()] == [(1, 2)]
            await manager.checkpoint(next(iter(manager.unsettled.lost_below)))
    async with home.opened() as manager:
        manager.unsettled.lost_below.clear()
    async with home.opened() as manager:
        assert not manager.unsettled.lost_below
    assert "a log lacks committed records" in caplog.text


async def test_logs_that_were_removed_by_hand_are_named(home: Home, caplog: pytest.LogCaptureFixture) -> None:
    async with home.opened() as manager:
        for index in range(12):
            append(await manager.get_or_create("topic", index), b"record")
        await manager.get_or_create("empty", 0, topic_id=TOPIC_ID)
        append(await manager.get_or_create("deleted", 0), b"record")
        removed = [manager.get("topic", index).directory for index in range(11)]  # type: ignore[union-attr]
        await manager.delete("deleted", 0)
    for path in removed:
        shutil.rmtree(path)
    for _ in range(2):  # a restart does not make the broker forget what it has lost
        caplog.clear()
        async with home.opened() as manager:
            lines = [each for each in caplog.records if "logs with committed records are missing" in each.message]
            lost = {log.directory: (log.log_end_offset, offset) for log, offset in manager.unsettled.lost_below.items()}
            assert lost == dict.fromkeys(removed, (0, 1))
        named = " ".join(vars(line)["names"] for line in lines).split()
        assert sum(vars(line)["partitions"] for line in lines) == 11
        assert set(named) <= {path.name for path in removed}
    async with home.opened() as manager:
        manager.unsettled.lost_below.clear()
    caplog.clear()
    async with home.opened():
        assert "missing" not in caplog.text


async def test_a_log_that_moved_to_another_directory_is_not_missing(
    home: Home, caplog: pytest.LogCaptureFixture
) -> None:
    async with home.opened() as manager:
        log = await manager.get_or_create("topic", 0)
        append(log, b"record")
        directory = log.directory
    _, there = sorted(home.paths, key=lambda path: path != directory.parent)
    shutil.move(directory, there / directory.name)
    async with home.opened() as manager:
        assert manager.get("topic", 0) is not None
    assert "missing" not in caplog.text


async def test_many_logs_are_opened_by_several_threads(home: Home) -> None:
    async with home.opened() as manager:
        logs = await asyncio.gather(*(manager.get_or_create("topic", index) for index in range(60)))
        for log in logs:
            append(log, b"%d" % log.partition)
    async with home.opened(recovery_threads_per_directory=3) as manager:
        assert len(manager.logs) == 60
        assert all(log.log_end_offset == 1 for log in manager.logs)


async def test_a_long_recovery_logs_its_progress(
    home: Home, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with home.opened() as manager:
        append(await manager.get_or_create("topic", 0), b"value")
    monkeypatch.setattr("parley.storage.io_threads.PROGRESS_SECONDS", 0.01)
    report, reported = directory_loader.report, threading.Event()
    monkeypatch.setattr("parley.storage.log_manager.report", lambda loaders: (report(loaders), reported.set()))
    real = Log.open

    def slow(*args: Any, **options: Any) -> Log:
        assert reported.wait(30)
        return real(*args, **options)

    monkeypatch.setattr(Log, "open", slow)
    with caplog.at_level(logging.INFO):
        async with home.opened() as manager:
            assert manager.get("topic", 0) is not None
    assert "0 of 1 logs are open" in caplog.text


async def test_a_log_that_was_found_takes_the_configuration_of_its_topic(home: Home) -> None:
    special = LogConfig(segment_bytes=12345)
    async with home.opened() as manager:
        assert (await manager.get_or_create("a", 0)).config is CONFIG
        log = await manager.get_or_create("b", 0, config=special)
        assert log.config is special
        append(log, b"value")
    async with home.opened() as manager:
        (found,) = (log for log in manager.logs if log.topic == "b")
        assert await manager.get_or_create("b", 0, config=special) is found
        assert found.config is special


async def test_a_second_broker_is_refused_and_harms_nothing(home: Home) -> None:
    async with home.opened() as manager:
        with pytest.raises(DirectoryInUse):
            await home.manager().open("cluster", 1)
        append(await manager.get_or_create("topic", 0), b"still works")
    with pytest.raises(InconsistentClusterId):
        await home.manager().open("other", 1)
    async with home.opened() as manager:
        assert len(manager.logs) == 1


async def test_one_log_in_two_directories_is_refused(home: Home) -> None:
    for path in home.paths:
        (path / "topic-0").mkdir(parents=True)
    with pytest.raises(TwinLogs, match=r"topic-0 is in .*d0 and in .*d1"):
        await home.manager().open("cluster", 1)
    (home.paths[1] / "topic-0").rmdir()
    async with home.opened() as manager:
        assert len(manager.logs) == 1


async def test_exchanged_directories_of_two_partitions_are_refused(home: Home) -> None:
    async with Home(home.paths[:1]).opened() as manager:
        for index in range(2):
            append(await manager.get_or_create("topic", index, topic_id=TOPIC_ID), b"%d" % index)
    one, other = (home.paths[0] / name for name in ("topic-0", "topic-1"))
    exchange(one, other)
    with pytest.raises(MisplacedLog, match=r"topic-[01] contains the log of partition [01],"):
        await Home(home.paths[:1]).manager().open("cluster", 1)
    exchange(one, other)
    async with Home(home.paths[:1]).opened() as manager:
        assert sorted(log.partition for log in manager.logs) == [0, 1]


@pytest.mark.parametrize("lines", [2, 3], ids=["as Apache Kafka writes it", "without a checksum"])
async def test_the_first_start_writes_the_partition_and_a_checksum_into_older_logs(home: Home, lines: int) -> None:
    home = Home(home.paths[:1])
    async with home.opened() as manager:
        for index in range(2):
            append(await manager.get_or_create("topic", index, topic_id=TOPIC_ID), b"%d" % index)
    files = [home.paths[0] / name / "partition.metadata" for name in ("topic-0", "topic-1")]
    for file in files:
        file.write_text("\n".join(line.rstrip() for line in file.read_text().splitlines()[:lines]))
    seen = []
    for _ in range(2):
        async with home.opened():
            seen.append([(read_partition_metadata(file.parent), file.stat().st_ino) for file in files])
    assert [found for found, _ in seen[0]] == [PartitionMetadata(TOPIC_ID, index) for index in range(2)]
    assert seen[0] == seen[1], "they are not written again"
    exchange(files[0].parent, files[1].parent)
    with pytest.raises(MisplacedLog):
        await home.manager().open("cluster", 1)


def exchange(one: Path, other: Path) -> None:
    between = one.with_name("between")
    one.rename(between)
    other.rename(one)
    between.rename(other)


async def twins(home: Home, ids: tuple[UUID | None, UUID | None]) -> None:
    """Create a log of ``topic-0`` in each directory, with these topic ids and a record that identifies
    the directory."""
    for path, topic_id in zip(home.paths, ids, strict=True):
        async with Home([path]).opened() as manager:
            append(await manager.get_or_create("topic", 0, topic_id=topic_id), path.name.encode())


@pytest.mark.parametrize("ids", [(TOPIC_ID, TOPIC_ID), (None, TOPIC_ID), (None, None)])
async def test_twins_with_the_same_or_no_topic_id_are_refused(home: Home, ids: tuple[UUID | None, UUID | None]) -> None:
    await twins(home, ids)
    with pytest.raises(TwinLogs):
        await home.manager().open("cluster", 1)


@pytest.mark.parametrize("right", [0, 1])
async def test_of_twins_the_one_of_the_topic_counts_and_the_other_is_kept(
    home: Home, right: int, caplog: pytest.LogCaptureFixture
) -> None:
    ids = (TOPIC_ID, UUID(int=8))
    await twins(home, ids)
    async with home.opened() as manager:
        log = await manager.get_or_create("topic", 0, topic_id=ids[right])
        assert log.directory.parent.name == f"d{right}"
        assert manager.get("topic", 0) is log
        assert log.log_end_offset == 1
        append(log, b"still works")
        (aside,) = names(home.paths[1 - right])
        assert aside.endswith("-stray")
    assert "set aside" in caplog.text
    async with home.opened() as manager:
        assert [log.log_end_offset for log in manager.logs] == [2]
        assert names(home.paths[1 - right]) == {aside}, "kept, after a restart too"


async def test_a_topic_that_neither_twin_belongs_to_gets_a_new_log(home: Home) -> None:
    await twins(home, (TOPIC_ID, UUID(int=8)))
    async with home.opened() as manager:
        with pytest.raises(KafkaError, match="INCONSISTENT_TOPIC_ID"):
            await manager.get_or_create("topic", 0, topic_id=UUID(int=9))
        other = manager.get("topic", 0)
        assert other is not None
        assert await manager.delete("topic", 0, topic_id=other.topic_id)
        log = await manager.get_or_create("topic", 0, topic_id=UUID(int=9))
        assert log.log_end_offset == 0


async def test_logs_that_are_not_wanted_any_more_are_set_aside(home: Home, caplog: pytest.LogCaptureFixture) -> None:
    async with home.opened() as manager:
        for partition in range(4):
            append(await manager.get_or_create("topic", partition, topic_id=TOPIC_ID), b"value")
    async with home.opened() as manager:
        await manager.strays.set_all_aside(lambda log: log.partition == 0)
        assert [log.partition for log in manager.logs] == [0]
        found = sorted(name for path in home.paths for name in names(path))
        assert [name.partition(".")[0] for name in found] == [f"topic-{partition}" for partition in range(4)]
        assert [name.endswith("-stray") for name in found] == [False, True, True, True]
        again = await manager.get_or_create("topic", 1, topic_id=UUID(int=8))
        assert again.log_end_offset == 0
    assert caplog.text.count("a stray log is set aside") == 3


def test_a_directory_named_twice_is_refused(home: Home) -> None:
    home.paths.append(home.paths[0] / ".." / "d0")
    with pytest.raises(ValueError, match="more than once"):
        home.manager()


async def test_closing_twice_changes_nothing(home: Home) -> None:
    manager = home.manager()
    await manager.open("cluster", 1)
    append(await manager.get_or_create("topic", 0), b"value")
    await manager.close()
    await manager.close()
    async with home.opened() as manager:
        log = manager.get("topic", 0)
        assert log is not None
        assert log.high_watermark == 1


async def test_a_fault_in_opening_gives_everything_back(home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    async with home.opened() as manager:
        for index in range(2):
            append(await manager.get_or_create("topic", index), b"value")
    with monkeypatch.context() as patch:

        def faulty(*args: Any, **options: Any) -> Log:
            raise RuntimeError("a fault")

        patch.setattr(Log, "open", faulty)
        with pytest.raises(RuntimeError, match="a fault"):
            await home.manager().open("cluster", 1)
    async with home.opened() as manager:
        assert len(manager.logs) == 2


# Creating


async def test_new_logs_go_where_the_fewest_are(home: Home) -> None:
    async with home.opened() as manager:
        await asyncio.gather(*(manager.get_or_create("topic", index) for index in range(7)))
        assert sorted(len(manager.logs_in(directory)) for directory in manager.directories) == [3, 4]
        for log in manager.logs:
            assert log.directory.parent == manager.directory_of(log).path


async def test_two_concurrent_callers_get_the_same_log(home: Home) -> None:
    async with home.opened() as manager:
        first, second = await asyncio.gather(
            manager.get_or_create("topic", 0, topic_id=TOPIC_ID), manager.get_or_create("topic", 0, topic_id=TOPIC_ID)
        )
        assert first is second
        assert first.topic_id == TOPIC_ID


async def test_a_topic_learns_its_id_and_keeps_it(home: Home) -> None:
    async with home.opened() as manager:
        log = await manager.get_or_create("topic", 0)
        assert log.topic_id is None
        append(log, b"value")
        assert await manager.get_or_create("topic", 0, topic_id=TOPIC_ID) is log
        assert read_partition_metadata(log.directory) == PartitionMetadata(TOPIC_ID, 0)
        with pytest.raises(KafkaError) as caught:
            await manager.get_or_create("topic", 0, topic_id=UUID(int=8))
        assert caught.value.code is ErrorCode.INCONSISTENT_TOPIC_ID
        (log.directory / "partition.metadata").write_text("garbage")
    async with home.opened() as manager:
        again = await manager.get_or_create("topic", 0, topic_id=TOPIC_ID)
        assert read_partition_metadata(again.directory) == PartitionMetadata(TOPIC_ID, 0)


async def test_a_name_too_long_for_a_directory_is_refused(home: Home) -> None:
    async with home.opened() as manager:
        with pytest.raises(KafkaError) as caught:
            await manager.get_or_create("t" * 249, 1_000_000)
        assert caught.value.code is ErrorCode.INVALID_TOPIC_EXCEPTION
        assert len(manager.online()) == 2
        await manager.get_or_create("t" * 249, 99_999)


async def test_a_new_log_has_no_files_before_its_first_record(home: Home) -> None:
    async with home.opened() as manager:
        log = await manager.get_or_create("topic", 0, topic_id=TOPIC_ID)
        log.leader_epochs.assign(3, 0)
        log.flush()
        log.truncate_to(0)
        assert log.read(0, 1000, up_to=0).size == 0
        assert log.offset_for_timestamp(0) is None
        assert not apply_retention(log, home.now_ms)
        assert not log.directory.exists()
        append(log, b"value")
        assert read_partition_metadata(log.directory) == PartitionMetadata(TOPIC_ID, 0)
        assert segments_with_files(log) == {0}


async def test_a_log_without_files_keeps_its_directory_and_its_topic(home: Home) -> None:
    async with home.opened() as manager:
        homes = {}
        for index in range(4):
            log = await manager.get_or_create("topic", index, topic_id=TOPIC_ID)
            homes[index] = log.directory
        await manager.delete("topic", 2)
    async with home.opened() as manager:
        found = {log.partition: log for log in manager.logs}
        assert {index: log.directory for index, log in found.items()} == {index: homes[index] for index in (0, 1, 3)}
        assert {log.topic_id for log in found.values()} == {TOPIC_ID}
        append(found[0], b"value")
        await home.crash(manager)  # the file still lists the log that exists now
    async with home.opened() as manager:
        assert {log.partition: log.log_end_offset for log in manager.logs} == {0: 1, 1: 0, 3: 0}


async def test_a_kill_after_note_new_logs_loses_no_log_without_files(home: Home) -> None:
    async with home.opened() as manager:
        log = await manager.get_or_create("topic", 0, topic_id=TOPIC_ID)
        await manager.note_new_logs()
        await home.crash(manager)
    async with home.opened() as manager:
        (found,) = manager.logs
        assert (found.directory, found.topic_id) == (log.directory, TOPIC_ID)


async def test_new_logs_in_a_single_directory_cost_no_sync(home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    home.paths = home.paths[:1]
    note = home.paths[0] / UNWRITTEN_LOGS
    manager = home.manager()
    await manager.open("cluster", 1)
    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", None)
        for name in ("topic", "other", "deleted"):
            await manager.get_or_create(name, 0, topic_id=TOPIC_ID)
            await manager.note_new_logs()
        await manager.delete("deleted", 0)
    assert not note.exists()
    await home.crash(manager)
    with note.with_name(UNWRITTEN_LOGS + LATER).open("a") as file:
        file.write("torn 0")
    manager = home.manager()
    await manager.open("cluster", 1)
    assert {log.topic for log in manager.logs} == {"topic", "other", "deleted"}
    await manager.delete("deleted", 0)
    await manager._maintenance.checkpoint_unwritten(manager.directories[0])
    assert not note.with_name(UNWRITTEN_LOGS + LATER).exists()
    await home.crash(manager)
    async with home.opened() as manager:
        assert [log.topic for log in manager.logs] == ["topic", "other"]


async def test_a_restart_of_the_machine_ends_what_an_unsynced_file_proves(home: Home) -> None:
    home.paths = home.paths[:1]
    manager = home.manager()
    await manager.open("cluster", 1)
    await manager.get_or_create("topic", 0, topic_id=TOPIC_ID)
    await manager.note_new_logs()
    await home.crash(manager)
    (home.paths[0] / BOOT_FILE).write_bytes(EARLIER_BOOT)
    async with home.opened() as manager:
        assert not manager.logs


@pytest.mark.parametrize("directories", [1, 2])
@pytest.mark.parametrize("checkpointed", ["never", "before the append", "during the append"])
async def test_a_used_log_whose_directory_is_gone_is_not_an_unused_one(
    home: Home, directories: int, checkpointed: str
) -> None:
    """The broker was killed before the next checkpoint. It must not report an empty log that lacks nothing."""
    home.paths = home.paths[:directories]
    manager = home.manager()
    await manager.open("cluster", 1)
    used = await manager.get_or_create("used", 0, topic_id=TOPIC_ID)
    await manager.get_or_create("unused", 0, topic_id=TOPIC_ID)
    await manager.note_new_logs()
    directory = manager.directory_of(used)
    if checkpointed == "before the append":
        await manager._maintenance.checkpoint_unwritten(directory)
    append(used, b"value")
    if checkpointed == "during the append":
        directory.unwritten_logs.write({("used", 0): UnwrittenLog(TOPIC_ID), ("unused", 0): UnwrittenLog(TOPIC_ID)})
    await home.crash(manager)
    shutil.rmtree(used.directory)
    manager = home.manager()
    await manager.open("cluster", 1)
    assert [log.topic for log in manager.logs] == ["unused"]
    again = await manager.get_or_create("used", 0, topic_id=UUID(int=8))
    await manager.note_new_logs()
    await manager._maintenance.checkpoint_unwritten(manager.directory_of(again))
    await home.crash(manager)
    async with home.opened() as manager:
        assert sorted(log.topic for log in manager.logs) == ["unused", "used"]


async def test_each_change_of_the_logs_without_files_is_noted_and_otherwise_no_log_is_asked(
    home: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    home.paths = home.paths[:1]
    asked = 0

    def unwritten_logs(*args: Any) -> Any:
        nonlocal asked
        asked += 1
        return ask(*args)

    ask = log_maintenance.unwritten_logs
    monkeypatch.setattr(log_maintenance, "unwritten_logs", unwritten_logs)
    async with home.opened() as manager:
        directory = manager.directories[0]

        async def noted() -> set[int]:
            await manager._maintenance.checkpoint_unwritten(directory)
            before = asked
            await manager._maintenance.checkpoint_unwritten(directory)
            assert asked == before
            return {index for _, index in directory.unwritten_logs.read(same_boot=True)}

        for index, since in enumerate((None, None, 5, None)):
            topic_id = None if index == 3 else TOPIC_ID
            await manager.get_or_create("topic", index, topic_id=topic_id, unproven_since=since)
        first, _, unproven, _ = manager.logs
        assert await noted() == {0, 1}
        append(first, b"value")
        assert await noted() == {1}
        manager.unsettled.settle(unproven)
        assert await noted() == {1, 2}
        await manager.get_or_create("topic", 3, topic_id=TOPIC_ID)
        assert await noted() == {1, 2, 3}
        await manager.delete("topic", 1)
        assert await noted() == {2, 3}


@contextmanager
def unreadable(path: Path) -> Iterator[None]:
    """A log directory whose disk fails."""
    (path / "meta.properties").rename(path / "aside")
    (path / "meta.properties").mkdir()
    yield
    (path / "meta.properties").rmdir()
    (path / "aside").rename(path / "meta.properties")


async def test_logs_without_files_are_there_if_another_directory_fails(home: Home) -> None:
    async with home.opened() as manager:
        log = await manager.get_or_create("topic", 0, topic_id=TOPIC_ID)
        other = next(path for path in home.paths if path != log.directory.parent)
    with unreadable(other):
        async with home.opened() as manager:
            assert [each.directory for each in manager.logs] == [log.directory]
            append(manager.logs[0], b"value")


async def test_a_log_without_files_waits_for_the_directory_that_it_was_moving_to(home: Home) -> None:
    async with home.opened() as manager:
        log = await manager.get_or_create("topic", 0, topic_id=TOPIC_ID)
        other = next(each for each in manager.directories if each is not manager.directory_of(log))
        copy = await manager.copies.begin(log, other)
        await manager.copies.prepare(log, copy)
        manager.copies.replace(log, copy)
        append(copy, b"value")
        await home.crash(manager)
    with unreadable(other.path):
        async with home.opened() as manager:
            assert manager.logs == []
            with pytest.raises(KafkaError, match="which is offline"):
                await manager.get_or_create("topic", 0, topic_id=TOPIC_ID, is_new=False)
            await manager.note_new_logs()
    async with home.opened() as manager:
        assert [(each.directory.parent, each.log_end_offset) for each in manager.logs] == [(other.path, 1)]


async def test_the_move_of_a_log_without_files_goes_on_after_a_restart(home: Home) -> None:
    async with home.opened() as manager:
        log = await manager.get_or_create("topic", 0, topic_id=TOPIC_ID)
        other = next(each for each in manager.directories if each is not manager.directory_of(log))
        copy = await manager.copies.begin(log, other)
        await manager.copies.prepare(log, copy)
        await home.crash(manager)
    async with home.opened() as manager:
        assert [each.directory for each in manager.logs] == [log.directory]
        assert {key: each.path for key, each in manager.copies.begun.items()} == {("topic", 0): other.path}
        await until(lambda: names(other.path) == set())


async def test_a_directory_left_by_a_failed_first_append_is_deleted_with_its_log(
    home: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with home.opened() as manager:
        log = await manager.get_or_create("topic", 0, topic_id=TOPIC_ID)
        with monkeypatch.context() as patch:
            patch.setattr(Segment, "create", out_of_files)
            with pytest.raises(KafkaError, match="Too many open files"):
                append(log, b"value")
        assert log.directory.exists()
        directory = log.directory
        assert await manager.delete("topic", 0)
        assert not directory.exists()


async def test_a_log_without_files_has_no_record_of_any_time(home: Home) -> None:
    async with home.opened() as manager:
        log = await manager.get_or_create("topic", 0)
        assert log.segments[0].largest_timestamp_ms == home.now_ms


async def test_the_first_flush_makes_the_name_of_a_new_logs_directory_durable(
    home: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with home.opened() as manager:
        log = await manager.get_or_create("topic", 0)
        append(log, b"value")
        synced: list[Path] = []
        monkeypatch.setattr("parley.storage.durability.sync_directory", synced.append)
        log.flush()
        assert synced == [log.directory, log.directory.parent]
        append(log, b"value")
        log.flush()
        assert len(synced) == 2


async def test_a_copy_takes_over_from_a_log_without_files(home: Home) -> None:
    async with home.opened() as manager:
        log = await manager.get_or_create("topic", 0, topic_id=TOPIC_ID)
        here = manager.directory_of(log)
        there = next(each for each in manager.directories if each is not here)
        copy = await manager.copies.begin(log, there)
        await manager.copies.prepare(log, copy)
        manager.copies.replace(log, copy)
        await manager.copies.retire(log, here)
        append(copy, b"value")
    async with home.opened() as manager:
        (found,) = manager.logs
        assert (found.directory.parent, found.log_end_offset) == (there.path, 1)


# Deleting


async def test_a_deleted_log_is_set_aside_and_removed_later(home: Home) -> None:
    async with home.opened() as manager:
        log = await manager.get_or_create("topic", 0, config=LogConfig(file_delete_delay_ms=50))
        append(log, b"value")
        path = log.directory
        assert await manager.delete("topic", 0)
        assert not await manager.delete("topic", 0)
        assert manager.get("topic", 0) is None
        assert not path.exists()
        (aside,) = names(path.parent)
        assert aside.startswith("topic-0.")
        assert aside.endswith("-delete")
        again = await manager.get_or_create("topic", 0)
        assert again.log_end_offset == 0
        await until(lambda: not any(name.endswith("-delete") for path in home.paths for name in names(path)))
        append(again, b"value")


async def test_removal_is_resumed_at_the_next_start(home: Home) -> None:
    async with home.opened() as manager:
        append(await manager.get_or_create("topic", 0), b"value")
        await manager.delete("topic", 0)
    assert [name.endswith("-delete") for path in home.paths for name in names(path)] == [True]
    async with home.opened() as manager:
        await until(lambda: not any(names(path) for path in home.paths))


async def test_a_new_log_inherits_nothing_of_a_deleted_one(home: Home) -> None:
    home.paths = home.paths[:1]
    async with home.opened() as manager:
        log = await manager.get_or_create("topic", 0, config=LogConfig(segment_bytes=100))
        for _ in range(5):
            append(log, b"value")
        log.advance_log_start(3)
        await manager.checkpoint(log)
        assert "topic 0 3" in manager.directories[0].log_start_offsets.path.read_text()
        await manager.delete("topic", 0)
        for checkpoint in ("recovery_points", "log_start_offsets", "high_watermarks"):
            assert getattr(manager.directories[0], checkpoint).read() == {}
        append(await manager.get_or_create("topic", 0), b"value")
    async with home.opened() as manager:
        again = manager.get("topic", 0)
        assert again is not None
        assert (again.log_start_offset, again.log_end_offset) == (0, 1)


async def test_the_directory_of_a_deleted_log_is_unknown(home: Home) -> None:
    """Callers that hold a log across an ``await`` must not mistake the directory of the next log for its own."""
    async with home.opened() as manager:
        log = await manager.get_or_create("topic", 0)
        append(log, b"value")
        assert manager.directory_of(log).path == log.directory.parent
        await manager.delete("topic", 0)
        for _ in range(2):
            with pytest.raises(KafkaError, match="no longer exists") as refused:
                manager.directory_of(log)
            assert refused.value.code is ErrorCode.KAFKA_STORAGE_ERROR
            await manager.get_or_create("topic", 0)


async def test_a_deletion_applies_only_to_the_given_topic_id(home: Home) -> None:
    async with home.opened() as manager:
        log = await manager.get_or_create("topic", 0, topic_id=TOPIC_ID)
        assert not await manager.delete("topic", 0, topic_id=UUID(int=8))
        assert manager.get("topic", 0) is log
        assert await manager.delete("topic", 0, topic_id=TOPIC_ID)
        await manager.get_or_create("topic", 0)
        assert await manager.delete("topic", 0, topic_id=TOPIC_ID), "a log of no known topic goes too"


async def test_a_log_is_deleted_after_it_has_its_id(home: Home) -> None:
    async with home.opened() as manager:
        log = await manager.get_or_create("topic", 0)
        append(log, b"value")
        identified, deleted = await asyncio.gather(
            manager.get_or_create("topic", 0, topic_id=TOPIC_ID), manager.delete("topic", 0, topic_id=TOPIC_ID)
        )
        assert identified is log
        assert deleted
        assert len(manager.online()) == 2
        assert read_partition_metadata(log.directory) == PartitionMetadata(TOPIC_ID, 0)


async def test_creating_and_deleting_one_log_at_once_takes_turns(home: Home) -> None:
    async with home.opened() as manager:
        for _ in range(10):
            outcomes = await asyncio.gather(
                manager.get_or_create("topic", 0),
                manager.delete("topic", 0),
                manager.get_or_create("topic", 0),
                manager.delete("topic", 0),
            )
            assert isinstance(outcomes[0], Log)
            log = await manager.get_or_create("topic", 0)
            append(log, b"value")
            assert log.log_end_offset == 1
            await manager.delete("topic", 0)


# Disks that fail


def fail_io(log: Log, monkeypatch: pytest.MonkeyPatch) -> None:
    """Make every sync of the log's files fail."""
    real = os.fsync

    def broken(fd: int) -> None:
        if str(log.directory.parent) in os.readlink(f"/proc/self/fd/{fd}"):
            raise OSError(5, "Input/output error")
        real(fd)

    monkeypatch.setattr(os, "fsync", broken)
    monkeypatch.setattr(os, "fdatasync", broken)


async def test_a_failing_directory_takes_only_its_own_logs(
    home: Home, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async with home.opened() as manager:
        lost, kept = [await manager.get_or_create("topic", index) for index in range(2)]
        append(lost, b"value")
        append(kept, b"value")
        fail_io(lost, monkeypatch)
        with pytest.raises(KafkaError) as caught:
            await asyncio.to_thread(lost.flush)
        assert caught.value.code is ErrorCode.KAFKA_STORAGE_ERROR
        await until(lambda: bool(home.offline))
        (directory, logs) = home.offline[0]
        assert (directory.path, logs) == (lost.directory.parent, [lost])
        assert not directory.online
        assert manager.logs == [kept]
        with pytest.raises(KafkaError) as caught:
            manager.get("topic", 0)
        assert caught.value.code is ErrorCode.KAFKA_STORAGE_ERROR
        with pytest.raises(KafkaError):
            await manager.get_or_create("topic", 0)
        with pytest.raises(KafkaError):
            await manager.delete("topic", 0)
        with pytest.raises(KafkaError):
            await manager.get_or_create("was-here-before", 0, is_new=False)
        assert manager.directory_of(await manager.get_or_create("new", 0)) is manager.directory_of(kept)
        append(kept, b"value")
        kept.flush()
        assert not home.all_offline.is_set()
        assert "The other log directories stay online. Repair or replace its disk" in caplog.text
    monkeypatch.undo()
    assert not (lost.directory.parent / ".kafka_cleanshutdown").exists()
    async with home.opened() as manager:
        again = manager.get("topic", 0)
        assert again is not None
        assert again.log_end_offset == 1


async def test_with_the_last_directory_the_broker_must_stop(
    home: Home, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    home.paths = home.paths[:1]
    async with home.opened() as manager:
        log = await manager.get_or_create("topic", 0)
        append(log, b"value")
        fail_io(log, monkeypatch)
        with pytest.raises(KafkaError):
            await manager.delete("topic", 0)
        await home.all_offline.wait()
        with pytest.raises(KafkaError) as caught:
            await manager.get_or_create("other", 0)
        assert caught.value.code is ErrorCode.KAFKA_STORAGE_ERROR
        assert "No other log directory is online" in caplog.text


async def test_a_full_disk_asks_for_room(
    home: Home, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    home.paths = home.paths[:1]
    async with home.opened() as manager:
        log = await manager.get_or_create("topic", 0)

        def full(*_: object) -> int:
            raise OSError(errno.ENOSPC, "No space left on device")

        with monkeypatch.context() as patch:
            patch.setattr(os, "pwrite", only_below(home.paths[0], full, os.pwrite))
            with pytest.raises(KafkaError, match="KAFKA_STORAGE_ERROR"):
                append(log, b"value")
        await home.all_offline.wait()
        assert "No other log directory is online. Make room on its disk, then restart the broker" in caplog.text


async def test_the_log_of_a_topic_deleted_meanwhile_is_removed_at_once_though_the_disk_is_full(
    home: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    home.paths = home.paths[:1]
    async with home.opened() as manager:
        append(await manager.get_or_create("deleted", 0, topic_id=TOPIC_ID), b"value")
        append(await manager.get_or_create("unknown", 0, topic_id=UUID(int=8)), b"value")

    def full(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    async with home.opened() as manager:
        manager.strays.was_deleted = lambda topic_id: topic_id == TOPIC_ID
        with monkeypatch.context() as patch:
            patch.setattr("parley.storage.checkpoints.write_atomically", full)
            await manager.strays.set_all_aside(lambda log: log.topic == "unknown")
        assert names(home.paths[0]) == {"unknown-0"}
    async with home.opened() as manager:
        await manager.strays.set_all_aside(lambda log: False)
        (kept,) = names(home.paths[0])
        assert kept.endswith("-stray"), "no evidence that its topic was deleted"


async def test_a_directory_that_fails_at_the_start_leaves_the_others(home: Home) -> None:
    async with home.opened() as manager:
        for index in range(2):
            append(await manager.get_or_create("topic", index), b"value")
    broken = home.paths[0] / "recovery-point-offset-checkpoint"
    broken.unlink()
    broken.mkdir()
    async with home.opened() as manager:
        assert [directory.online for directory in manager.directories] == [False, True]
        assert len(manager.logs) == 1
    broken.rmdir()
    home.paths[0].rename(home.paths[0].with_name("unplugged"))
    home.paths[0].write_text("not a directory")
    async with home.opened() as manager:
        assert len(manager.logs) == 1
    home.paths.pop()
    with pytest.raises(NoLogDirectory, match="d0"):
        await home.manager().open("cluster", 1)


async def test_a_log_that_cannot_be_opened_takes_its_directory_offline(
    home: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with home.opened() as manager:
        for index in range(2):
            append(await manager.get_or_create("topic", index), b"value")
        bad = next(log.directory for log in manager.logs if log.partition == 0)
    real = Log.open

    def failing(place: LogPlace, *args: Any) -> Log:
        if place.directory == bad:
            raise OSError(5, "Input/output error")
        return real(place, *args)

    monkeypatch.setattr(Log, "open", failing)
    async with home.opened() as manager:
        assert len(manager.online()) == 1
        with pytest.raises(KafkaError):
            manager.get("topic", 0)
        assert manager.get("topic", 1) is not None


def out_of_files(*args: Any, **options: Any) -> Log:
    raise OSError(errno.EMFILE, "Too many open files")


async def test_no_memory_is_not_the_disks_fault(home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    async with home.opened() as manager:
        log = await manager.get_or_create("topic", 0)
        append(log, b"value")

        def no_memory(*_: Any, **__: Any) -> None:
            raise OSError(errno.ENOMEM, "Cannot allocate memory")

        with monkeypatch.context() as patch:
            patch.setattr(os, "fsync", only_below(log.directory.parent, no_memory, os.fsync))
            with pytest.raises(KafkaError, match="Cannot allocate memory"):
                log.flush()
            with pytest.raises(KafkaError, match="Cannot allocate memory"):
                await manager.checkpoint(log)
        await asyncio.sleep(0)
        assert len(manager.online()) == 2
        append(log, b"another")


async def test_logs_whose_files_rest_go_on(home: Home) -> None:
    config = LogConfig(segment_bytes=100, segment_index_bytes=4096)
    async with home.opened() as manager:
        log = await manager.get_or_create("topic", 0, config=config)
        for _ in range(4):
            append(log, b"value")
        before = open_descriptors(str(log.directory))
        assert len(log.read(0, 1000, up_to=4).read()) > 0
        manager.rest()
        assert open_descriptors(str(log.directory)) < before
        append(log, b"value")
        assert values_of(log) == dict.fromkeys(range(5), b"value")


async def test_a_shortage_lets_the_files_of_logs_rest_until_the_manager_is_closed(
    home: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    rested: list[Log] = []

    def rest(log: Log) -> None:  # a built-in function would not become a method
        rested.append(log)

    monkeypatch.setattr("parley.storage.new_log.NewLog.rest", rest)
    async with home.opened() as manager:
        log = await manager.get_or_create("topic", 0)
        DESCRIPTORS.make_room()
        MEMORY.make_room()
        assert rested.count(log) == 2
    DESCRIPTORS.make_room()
    assert rested.count(log) == 2


async def test_a_log_whose_append_ended_in_its_middle_is_not_closed_cleanly(
    home: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with home.opened() as manager:
        log = await manager.get_or_create("topic", 0)
        append(log, b"value")

        def no_memory(*_: Any, **__: Any) -> None:
            raise MemoryError

        with monkeypatch.context() as patch:
            patch.setattr("parley.storage.segments.Segments.appended", no_memory)
            with pytest.raises(MemoryError):
                append(log, b"written, perhaps")
        with pytest.raises(KafkaError, match="is closed"):
            append(log, b"refused")
        folder = log.directory.parent
    assert not (folder / CLEAN_SHUTDOWN_FILE).exists()
    async with home.opened() as manager:
        log = manager.logs[0]
        append(log, b"after the recovery")
        assert list(values_of(log).values()) == [b"value", b"written, perhaps", b"after the recovery"]


async def test_too_many_open_files_are_not_the_disks_fault(home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    async with home.opened() as manager:
        with monkeypatch.context() as patch:
            patch.setattr(Path, "mkdir", out_of_files)
            log = await manager.get_or_create("topic", 0)
            with pytest.raises(KafkaError, match="Too many open files"):
                append(log, b"value")
        assert len(manager.online()) == 2
        append(await manager.get_or_create("topic", 0), b"value")
    with monkeypatch.context() as patch:
        patch.setattr(Log, "open", out_of_files)
        with pytest.raises(OSError, match="Too many open files"):
            await home.manager().open("cluster", 1)
    async with home.opened() as manager:
        assert len(manager.logs) == 1


# LogMaintenance


def only(**intervals: int) -> MaintenanceIntervals:
    return MaintenanceIntervals(**{name: intervals.get(name, NEVER) for name in IDLE.__dataclass_fields__})


async def test_old_segments_are_deleted_and_their_files_removed(home: Home) -> None:
    config = LogConfig(segment_bytes=100, retention_ms=1000, file_delete_delay_ms=20, segment_index_bytes=4096)
    async with home.opened(only(retention_check_ms=10)) as manager:
        log = await manager.get_or_create("topic", 0, config=config)
        for _ in range(4):
            append(log, b"value")
        home.now_ms += 2000
        append(log, b"young", timestamp=home.now_ms)
        await until(lambda: segments_with_files(log) == {4})  # the last effect of a round, after the other two
        assert log.log_start_offset == 4
        assert [segment.base_offset for segment in log.segments] == [4]


async def test_nothing_is_deleted_before_the_configuration_of_its_topic_is_known(
    home: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with home.opened() as manager:
        append(await manager.get_or_create("topic", 0), b"old", timestamp=NOW - 8 * DAY_MS)
    rounds: list[str] = []
    real = Log.pass_old_segments

    def counted(log: Log, now_ms: int) -> int | None:
        rounds.append("begun")
        return real(log, now_ms)

    monkeypatch.setattr(Log, "pass_old_segments", counted)
    async with home.opened(only(retention_check_ms=1)) as manager:
        (log,) = manager.logs
        await until(lambda: len(rounds) > 1)
        assert log.log_start_offset == 0
        await manager.get_or_create("topic", 0, config=CONFIG)
        await until(lambda: log.log_start_offset == 1)


async def test_a_log_start_is_durable_before_retention_deletes_a_segment(
    home: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    durable: list[dict[tuple[str, int], int]] = []
    real = Log.delete_segments_below

    def checked(log: Log, offset: int) -> list[Path]:
        durable.append(manager.directories[0].log_start_offsets.read())
        return real(log, offset)

    monkeypatch.setattr(Log, "delete_segments_below", checked)
    async with home.opened(only(retention_check_ms=10)) as manager:
        log = await manager.get_or_create("topic", 0, config=CONFIG)
        append(log, b"old", timestamp=NOW - 8 * DAY_MS)
        log.high_watermark = 1
        await until(lambda: bool(durable))
        assert durable[0] == {("topic", 0): 1}


async def test_logs_are_flushed_when_it_is_due(home: Home) -> None:
    async with home.opened(only(flush_check_ms=5)) as manager:
        log = await manager.get_or_create("topic", 0, config=LogConfig(flush_messages=3))
        append(log, b"1")
        append(log, b"2")
        assert log.recovery_point == 0
        append(log, b"3")
        await until(lambda: log.recovery_point == 3)


async def test_checkpoints_follow_the_logs(home: Home) -> None:
    home.paths = home.paths[:1]
    every = only(recovery_point_checkpoint_ms=5, log_start_checkpoint_ms=5, high_watermark_checkpoint_ms=5)
    async with home.opened(every) as manager:
        directory = manager.directories[0]
        log = await manager.get_or_create("topic", 0, config=LogConfig(segment_bytes=100))
        for _ in range(3):
            append(log, b"value")
        await until(lambda: directory.high_watermarks.read() == {("topic", 0): 3})
        await until(lambda: directory.recovery_points.read() == {("topic", 0): 2})
        await until(lambda: directory.log_start_offsets.read() == {("topic", 0): 0})
        log.flush()
        log.advance_log_start(1)
        await until(lambda: directory.recovery_points.read() == {("topic", 0): 3})
        await until(lambda: directory.log_start_offsets.read() == {("topic", 0): 1})
        written = directory.high_watermarks.path.stat().st_ino
        await asyncio.sleep(0.05)
        assert directory.high_watermarks.path.stat().st_ino == written


async def test_silent_producers_are_forgotten(home: Home) -> None:
    async with home.opened(only(producer_expiration_check_ms=5), producer_expiration_ms=1000) as manager:
        log = await manager.get_or_create("topic", 0)
        append(log, b"value", producer_id=1, producer_epoch=0, base_sequence=0)
        assert len(log.producers) == 1
        home.now_ms += 1000
        await until(lambda: len(log.producers) == 0)


async def test_a_fault_in_one_round_does_not_end_the_rounds(
    home: Home, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async with home.opened(only(flush_check_ms=5)) as manager:
        log = await manager.get_or_create("topic", 0, config=LogConfig(flush_messages=1))
        append(log, b"value")
        with monkeypatch.context() as patch:
            patch.setattr(Log, "flush_due", lambda log, now_ms: 1 / 0)
            await until(lambda: "the next attempt is in" in caplog.text)
        append(log, b"value")
        await until(lambda: log.recovery_point == 2)


async def test_a_disk_that_hangs_keeps_no_other_waiting(home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    async with home.opened(only(flush_check_ms=5)) as manager:
        logs = [await manager.get_or_create("topic", index, config=LogConfig(flush_messages=1)) for index in range(2)]
        hung, healthy = sorted(logs, key=lambda log: log.directory)
        answers, real = threading.Event(), Log.flush

        def flush(log: Log) -> None:
            if log is hung:
                assert answers.wait(30)
            real(log)

        monkeypatch.setattr(Log, "flush", flush)
        append(hung, b"value")
        append(healthy, b"value")
        await until(lambda: healthy.recovery_point == 1)
        assert hung.recovery_point == 0
        append(healthy, b"value")
        await until(lambda: healthy.recovery_point == 2)
        answers.set()
        await until(lambda: hung.recovery_point == 1)


async def test_concurrent_deletions_share_the_checkpoints(home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    home.paths = home.paths[:1]
    written: list[str] = []
    async with home.opened() as manager:
        for index in range(40):
            append(await manager.get_or_create("topic", index), b"value")
        await manager.checkpoint(manager.logs[0])
        file = manager.directories[0].recovery_points
        real = file.write
        monkeypatch.setattr(file, "write", lambda offsets: (written.append(""), real(offsets)))
        assert all(await asyncio.gather(*(manager.delete("topic", index) for index in range(40))))
        assert file.read() == {}
        assert len(written) < 40
