"""The content of a log after a power cut: everything below the recovery point, and nothing that was never written.

The tests use the simulation's disk: it keeps any part of the unsynced data, names and pages in any order.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from random import Random

import pytest

from parley.protocol.records.batch_header import headers
from parley.protocol.uuids import UUID
from parley.storage import durability
from parley.storage.checkpoints import sync_directory
from parley.storage.log import Log
from parley.storage.log_directory import LogDirectory
from parley.storage.partition_metadata import PartitionMetadata, read_partition_metadata, write_partition_metadata
from parley.tools.simulation.disk import Disk, Disks
from tests.storage.logs import NOW, SMALL, append, apply_retention, check, fill, open_log, reopened, values_of

Batch = tuple[int, int, int]
"""The base offset, leader epoch and checksum of a batch."""
STEPS = ("append", "append", "append", "append", "flush", "flush sealed", "truncate", "checkpoint")


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Disk]:
    with Disks(tmp_path) as disks:
        yield disks.disk("machine")


def open_on(disk: Disk, recovery_point: int = 0) -> Log:
    folder = disk.path / "topic-0"
    folder.mkdir(exist_ok=True)
    sync_directory(disk.path)
    return open_log(folder, recovery_point=recovery_point)


def after_crash(log: Log, disk: Disk, rng: Random, recovery_point: int) -> Log:
    """Cut the power, and open the log again."""
    log.release()
    disk.machine_crashed(rng)
    return open_on(disk, recovery_point)


@pytest.mark.parametrize("seed", range(5))
def test_a_log_directory_survives_if_it_was_made_just_before(disk: Disk, seed: int) -> None:
    directory = LogDirectory(disk.path / "logs" / "1")
    directory.open("cluster", 1, Random(seed))
    directory.close()
    disk.machine_crashed(Random(seed))
    again = LogDirectory(disk.path / "logs" / "1")
    again.open("cluster", 1, Random(seed))
    again.close()
    assert again.id == directory.id
    assert not again.is_new


@pytest.mark.parametrize("seed", range(5))
def test_a_segment_that_begins_during_a_flush_is_synced_by_the_next_one(
    disk: Disk, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    log = open_on(disk)
    values = fill(log, 30)

    def sync_and_roll(path: Path) -> None:
        sync_directory(path)
        monkeypatch.undo()
        log.roll()
        values.extend(fill(log, 5))

    monkeypatch.setattr(durability, "sync_directory", sync_and_roll)
    log.flush()
    log.flush()
    log = after_crash(log, disk, Random(seed), log.recovery_point)
    assert values_of(log) == dict(enumerate(values))


@pytest.mark.parametrize("seed", range(5))
def test_records_truncated_before_a_clean_shutdown_do_not_come_back(disk: Disk, seed: int) -> None:
    log = open_on(disk)
    values = fill(log, 100)
    log.flush()
    log.truncate_to(50)
    log.close()
    disk.machine_crashed(Random(seed))
    log = open_log(disk.path / "topic-0", clean=True, recovery_point=log.recovery_point)
    assert values_of(log) == dict(enumerate(values[:50]))
    check(log)


@pytest.mark.parametrize(
    "seed", [28, 116, *range(10), *(pytest.param(seed, marks=pytest.mark.soak) for seed in range(200, 500))]
)
def test_a_log_after_a_power_cut_is_one_that_once_was(disk: Disk, seed: int) -> None:
    """Two logs that contain a batch of the same offset and epoch are equal up to that batch. Followers rely on this
    rule when they truncate."""
    rng = Random(seed)
    log = open_on(disk)
    checkpoint, epoch = 0, 0
    content: list[Batch] = []
    written: dict[tuple[int, int], list[Batch]] = {}
    """The log up to each batch ever written."""
    for _ in range(rng.randint(2, 5)):
        for _ in range(rng.randint(5, 40)):
            match rng.choice(
                ("append", "append", "append", "append", "flush", "flush sealed", "truncate", "checkpoint")
            ):
                case "append":
                    for _ in range(rng.randint(1, 20)):
                        append(log, b"v" * rng.choice((100, 100, 200)), epoch=epoch, base_sequence=-1)
                        content.append(last_batch(log))
                        written[content[-1][:2]] = list(content)
                case "flush":
                    log.flush()
                case "flush sealed":
                    log.flush(log.segments[-1].base_offset)
                case "checkpoint":
                    checkpoint = log.recovery_point
                case "truncate" if rng.random() < 0.5:
                    log.truncate_to(rng.randint(log.log_end_offset * 2 // 3, log.log_end_offset))
                    content = content[: log.log_end_offset]
                    checkpoint = min(checkpoint, log.recovery_point)
                    epoch += 1
        before = content
        log = after_crash(log, disk, rng, checkpoint)
        check(log)
        content = batches_of(log)
        assert content[:checkpoint] == before[:checkpoint]
        if content:
            assert content == written[content[-1][:2]]
        for base, batch_epoch, _ in content:
            assert log.leader_epochs.epoch_at(base) == batch_epoch
        checkpoint = min(checkpoint, log.recovery_point)
        epoch += 1


def test_an_index_lost_in_a_crash_costs_no_leader_epoch(disk: Disk) -> None:
    log = open_on(disk)
    for epoch in range(5):
        fill(log, 30, epoch=epoch)
    log.flush()
    before = log.leader_epochs.entries
    log.segments[0].path_of(".index").unlink()
    log = reopened(log, clean=False, recovery_point=log.recovery_point - 10)
    assert log.leader_epochs.entries == before


def batches_of(log: Log) -> list[Batch]:
    found = []
    for segment in log.segments:
        data = segment.path_of(".log").read_bytes()[: segment.size]
        found += [(each.base_offset, each.partition_leader_epoch, each.crc) for _, each in headers(data)]
    return found


def last_batch(log: Log) -> Batch:
    data = log.read(log.log_end_offset - 1, 1, up_to=log.log_end_offset, min_one_batch=True).read()
    header = next(headers(data))[1]
    return header.base_offset, header.partition_leader_epoch, header.crc


@pytest.mark.parametrize("files_are_removed", [False, True])
def test_segments_removed_by_retention_are_not_taken_for_lost_ones(tmp_path: Path, files_are_removed: bool) -> None:
    log = open_log(tmp_path, replace(SMALL, retention_ms=0))
    fill(log, 100)
    log.high_watermark = 70
    removed = apply_retention(log, NOW + 1)
    checkpoint = 0
    if files_are_removed:  # after the checkpoint is written, and not before
        checkpoint = log.recovery_point
        for path in removed:
            path.unlink()
    before = values_of(log)
    log = reopened(log, clean=False, recovery_point=checkpoint)
    assert values_of(log) == before
    assert log.log_start_offset > 0


@pytest.mark.parametrize("seed", range(5))
def test_a_flushed_log_keeps_its_topic_id(disk: Disk, seed: int) -> None:
    log = open_on(disk)
    write_partition_metadata(log.directory, UUID(int=7), 0)
    fill(log, 5)
    log.flush()
    after_crash(log, disk, Random(seed), log.recovery_point)
    assert read_partition_metadata(disk.path / "topic-0") == PartitionMetadata(UUID(int=7), 0)
