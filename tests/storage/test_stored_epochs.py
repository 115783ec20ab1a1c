"""Leader epochs that a log stores without a record: the log contains all records from before them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from parley.protocol.errors import KafkaError
from parley.storage.future_log import copy_some
from parley.storage.leader_epoch_cache import CHECKPOINT, EpochStart, LeaderEpochCache
from parley.storage.log import Log
from tests.storage.logs import append, apply_retention, batch_of, check, fill, open_log, reopened


def pairs(log: Log) -> list[tuple[int, int]]:
    return [(entry.epoch, entry.start_offset) for entry in log.leader_epochs.entries]


def on_disk(log: Log) -> list[EpochStart]:
    return list(LeaderEpochCache(log.directory / CHECKPOINT).entries)


@pytest.fixture
def log(tmp_path: Path) -> Log:
    """A log with two records of epoch 3 that has stored epoch 7."""
    log = open_log(tmp_path)
    fill(log, 2, epoch=3)
    log.high_watermark = 2
    log.store_epoch(7)
    return log


def test_a_stored_epoch_is_on_disk_and_an_epoch_that_only_began_is_not(log: Log) -> None:
    assert on_disk(log) == [EpochStart(3, 0), EpochStart(7, 2)]
    assert (log.stored_epoch, log.latest_epoch, log.epochs_at_end) == (7, 7, (3, 7))
    log.begin_leading(9)
    log.flush()
    assert on_disk(log) == [EpochStart(3, 0), EpochStart(7, 2)]
    assert (log.stored_epoch, log.latest_epoch, log.epochs_at_end) == (7, 9, (3, 7))
    assert log.end_offset_for_epoch(9) == (9, 2), "a leader knows its own epoch"
    append(log, epoch=9)
    assert (log.stored_epoch, log.epochs_at_end) == (9, (9, -1))
    assert pairs(log) == [(3, 0), (9, 2)]


def test_an_older_epoch_is_not_stored(log: Log) -> None:
    log.begin_leading(9)
    for epoch in (-1, 3, 7, 8):
        log.store_epoch(epoch)
    assert log.stored_epoch == 7
    log.store_epoch(9)
    assert log.stored_epoch == 9
    assert pairs(log) == [(3, 0), (9, 2)]


def test_an_epoch_that_cannot_be_written_is_not_shown(log: Log, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(log.leader_epochs, "path", log.directory / "missing" / CHECKPOINT)
        with pytest.raises(KafkaError):
            log.store_epoch(9)
    assert log.epochs_at_end == (3, -1)
    log.store_epoch(9)
    assert log.epochs_at_end == (3, 9)
    assert on_disk(log) == [EpochStart(3, 0), EpochStart(9, 2)]


def test_records_of_an_older_epoch_replace_an_epoch_that_began_here(log: Log) -> None:
    """This broker has led without a record. The next leader had records that this log lacked."""
    log.begin_leading(9)
    append(log, epoch=3)
    assert pairs(log) == [(3, 0)]
    log.begin_leading(9)
    append(log, epoch=5)
    assert pairs(log) == [(3, 0), (5, 3)]


@pytest.mark.parametrize("known", [{"clean": True}, {"clean": False, "same_boot": True}, {"clean": False}])
@pytest.mark.parametrize("recovery_point", [0, 2])
def test_it_survives_restarts(log: Log, known: dict[str, bool], recovery_point: int) -> None:
    log = reopened(log, **known, recovery_point=recovery_point, highest_leader_epoch=7)
    assert (log.log_end_offset, log.epochs_at_end) == (2, (3, 7))
    check(log)
    append(log, epoch=7)
    log = reopened(log, **known, recovery_point=recovery_point, highest_leader_epoch=7)
    assert pairs(log) == [(3, 0), (7, 2)]


def test_records_that_follow_it_are_lost_with_the_machine_and_it_stays(log: Log) -> None:
    append(log, epoch=7)
    log.flush()
    log.release()
    segment = log.segments[-1].path_of(".log")
    segment.write_bytes(segment.read_bytes()[: log.segments[-1].size - 10])
    log = open_log(log.directory)
    assert (log.log_end_offset, log.epochs_at_end) == (2, (3, 7))


@pytest.mark.parametrize(
    ("step", "expected"),
    [
        (lambda log: log.truncate_to(2), (3, 7)),
        (lambda log: log.truncate_to(5), (3, 7)),
        (lambda log: log.truncate_to(1), (3, -1)),
        (lambda log: log.truncate_fully_and_start_at(2), (-1, -1)),
        (lambda log: log.advance_log_start(1), (3, 7)),
        (lambda log: log.advance_log_start(2), (-1, 7)),
        (lambda log: log.roll(), (3, 7)),
    ],
)
def test_it_stays_while_the_log_contains_the_records_before_it(
    log: Log, step: Callable[[Log], None], expected: tuple[int, int]
) -> None:
    step(log)
    assert log.epochs_at_end == expected
    log = reopened(log, clean=False, same_boot=True)
    assert log.epochs_at_end == expected


@pytest.mark.parametrize("epoch", [7, 9])
def test_records_that_follow_a_gap_replace_it(log: Log, epoch: int) -> None:
    """Compaction of the leader removed records at 2 and 3. If they were of epoch 8, a replica with records of epoch 7
    there must truncate its log."""
    log.roll()
    log.flush()
    log.append_as_follower(batch_of(base_offset=4, partition_leader_epoch=epoch))
    assert pairs(log) == [(3, 0), (epoch, 4)]
    log = reopened(log, clean=False, recovery_point=2, highest_leader_epoch=9)
    assert pairs(log) == [(3, 0), (epoch, 4)]
    assert log.end_offset_for_epoch(6) == (3, 4)


def test_a_truncation_to_the_first_record_of_an_epoch_keeps_the_epoch(log: Log) -> None:
    """The records may be unacknowledged, but the log still has everything that their leader had committed before."""
    append(log, epoch=7)
    log.truncate_to(2)
    assert log.epochs_at_end == (3, 7)
    assert on_disk(log) == [EpochStart(3, 0), EpochStart(7, 2)]


def test_it_survives_retention(log: Log) -> None:
    log.roll()
    end = apply_retention(log, log._now_ms() + 10**10)
    assert end
    assert (log.log_start_offset, log.epochs_at_end) == (2, (-1, 7))
    log = reopened(log, clean=True, knows_log_start=True)
    assert (log.log_start_offset, log.epochs_at_end) == (2, (-1, 7))


def test_a_copy_in_another_directory_has_it_on_disk(log: Log, tmp_path: Path) -> None:
    (tmp_path / "copy").mkdir()
    copy = open_log(tmp_path / "copy")
    while copy_some(log, copy, 1 << 20):
        pass
    assert on_disk(copy) == on_disk(log)
    log.begin_leading(9)
    copy_some(log, copy, 1)
    assert (copy.stored_epoch, copy.latest_epoch) == (7, 9)
    log.store_epoch(9)
    copy_some(log, copy, 1)
    assert on_disk(copy) == on_disk(log) == [EpochStart(3, 0), EpochStart(9, 2)]


def test_a_copy_is_cut_where_the_records_differ_and_not_where_an_empty_epoch_begins(tmp_path: Path) -> None:
    logs = []
    for name in ("log", "copy"):
        (tmp_path / name).mkdir()
        logs.append(open_log(tmp_path / name))
    log, copy = logs
    fill(log, 8, epoch=1)
    fill(copy, 10, epoch=1)
    copy.store_epoch(5)
    fill(log, 2, epoch=3)
    log.store_epoch(6)
    while copy_some(log, copy, 1 << 20):
        pass
    assert pairs(copy) == pairs(log) == [(1, 0), (3, 8), (6, 10)]
