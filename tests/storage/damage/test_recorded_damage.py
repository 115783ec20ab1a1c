"""Damage that was found stays recorded over restarts until it is mended, no matter what revealed it."""

from __future__ import annotations

import errno
import os
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from parley.protocol.errors import KafkaError
from parley.storage import checkpoints
from parley.storage.damage.damaged_ranges import DamagedBytes
from parley.storage.damage.recorded_damage import RECORDED_DAMAGE, RecordedDamage
from parley.storage.log import Log
from tests.storage.damage.test_mending import mend
from tests.storage.logs import SMALL, append, check, fill, open_log, values_of

LARGE = replace(SMALL, segment_bytes=1 << 20, segment_index_bytes=1 << 16)
EPOCH_AT = 12
RESTARTS = {
    "stopped": {"clean": True, "same_boot": True, "highest_leader_epoch": 9},
    "killed": {"same_boot": True, "highest_leader_epoch": 9},
    "power cut": {"highest_leader_epoch": 9},
}


def flip(log: Log, segment: int, batch: int, at: int, bit: int = 0) -> int:
    """Flip a bit of byte ``at`` of a batch. Returns the batch's offset."""
    found = log.segments[segment]
    position, header = list(found.batches())[batch]
    path = found.path_of(".log")
    content = bytearray(path.read_bytes())
    content[position + at] ^= 1 << bit
    path.write_bytes(content)
    return header.base_offset


def restart(log: Log, how: str) -> Log:
    """Open the log again after a stop, a kill or a power cut that lost nothing."""
    if how == "stopped":
        log.close()
    else:
        log.flush()
        log.release()
    return open_log(log.directory, log.config, recovery_point=log.recovery_point, **RESTARTS[how])


def ranges(log: Log) -> list[tuple[int, int]]:
    return [(each.first_offset, each.last_offset) for each in log.damage]


def verify(log: Log) -> None:
    for segment in log.segments:
        log.verify_segment(segment, 0, segment.size)
        log.write_missing_digest(segment)


@pytest.fixture
def copied(tmp_path: Path) -> tuple[Log, Log]:
    """Return a log with several segments and epochs, without digests, and an intact copy of it."""
    (tmp_path / "log").mkdir()
    log = open_log(tmp_path / "log", replace(SMALL, segment_bytes=3000))
    for epoch in (3, 5, 7):
        fill(log, 40, epoch=epoch)
    log.flush()
    for digest in log.directory.glob("*.digest"):
        digest.unlink()
    shutil.copytree(log.directory, tmp_path / "intact")
    return log, open_log(tmp_path / "intact", log.config)


@pytest.mark.parametrize("how", RESTARTS)
def test_an_altered_epoch_that_only_the_first_startup_could_find(copied: tuple[Log, Log], how: str) -> None:
    """The file of appended epochs reveals it. A restart of the machine removes that file."""
    log, intact = copied
    log.release()
    altered = flip(log, 1, 0, EPOCH_AT + 3, 1)  # 3 becomes 1
    log = open_log(log.directory, log.config, **RESTARTS["killed"])
    assert ranges(log) == [(altered, altered)]
    for _ in range(2):
        log = restart(log, "power cut")
        log = restart(log, how)
        assert ranges(log) == [(altered, altered)]
        assert log.log_end_offset == intact.log_end_offset
        verify(log)
        check(log)
    mend(log, intact, log.damage[0])
    assert not (log.directory / RECORDED_DAMAGE).exists()
    log = restart(log, how)
    verify(log)
    assert not log.damage
    assert values_of(log) == values_of(intact)


@pytest.mark.parametrize("how", RESTARTS)
def test_an_altered_epoch_that_a_running_broker_has_found(copied: tuple[Log, Log], how: str) -> None:
    log, intact = copied
    log.release()
    log = open_log(log.directory, log.config, recovery_point=log.log_end_offset, same_boot=True)
    altered = flip(log, 1, 1, EPOCH_AT + 3, 1)
    verify(log)
    assert ranges(log) == [(altered, altered)]
    log = restart(log, "power cut")
    log = restart(log, how)
    assert ranges(log) == [(altered, altered)]
    assert log.log_end_offset == intact.log_end_offset


def test_the_digest_of_an_active_segment_is_gone_after_a_kill(tmp_path: Path) -> None:
    log = open_log(tmp_path, LARGE)
    fill(log, 40, epoch=3)
    log = restart(log, "stopped")
    (tmp_path / "appended-leader-epochs").unlink()  # the machine had restarted before
    log = restart(log, "stopped")
    flip(log, 0, 0, EPOCH_AT + 3, 1)  # 3 becomes 1: no neighbor contradicts it
    verify(log)
    found = ranges(log)
    assert found[0][0] == 0
    append(log, b"more", epoch=3)
    log = restart(log, "killed")
    assert ranges(log) == found


@pytest.mark.parametrize("at", [EPOCH_AT + 3, 70])
def test_a_stop_keeps_the_log_end_behind_a_damaged_last_batch(tmp_path: Path, at: int) -> None:
    log = open_log(tmp_path, LARGE)
    values = fill(log, 40, epoch=3)
    log = restart(log, "stopped")
    flip(log, 0, 39, at)
    verify(log)
    assert ranges(log)[-1][1] == 39
    first = ranges(log)[0][0]
    for _ in range(2):
        log = restart(log, "stopped")
        assert (log.log_end_offset, ranges(log)) == (40, [(first, 39)])
        check(log)
    assert append(log, b"more", epoch=3) == 40
    assert values_of(log) == {**dict(enumerate(values[:first])), 40: b"more"}


def test_what_is_left_after_a_mending_is_recorded_at_its_new_place(copied: tuple[Log, Log]) -> None:
    log, intact = copied
    log.release()
    altered = [flip(log, 1, number, EPOCH_AT + 3, 1) for number in (0, 2, 4)]
    log = open_log(log.directory, log.config, **RESTARTS["killed"])
    assert ranges(log) == [(offset, offset) for offset in altered]
    mend(log, intact, log.damage[1])
    left = [(offset, offset) for offset in (altered[0], altered[2])]
    for how in RESTARTS:
        log = restart(log, how)
        assert ranges(log) == left


def test_a_range_that_was_damaged_further(copied: tuple[Log, Log]) -> None:
    log, _ = copied
    log.release()
    altered = flip(log, 1, 2, EPOCH_AT + 3, 1)
    log = open_log(log.directory, log.config, **RESTARTS["killed"])
    log.release()
    number = list(log.segments[1].batches())
    before = next(i for i, (_, header) in enumerate(number) if header.base_offset == altered - 1)
    flip(log, 1, before, 70)
    for index in log.directory.glob("*.index"):
        index.unlink()  # so that the segments are scanned
    log = open_log(log.directory, log.config, recovery_point=log.log_end_offset)
    assert ranges(log) == [(altered - 1, altered)]
    check(log)


def test_a_truncation_removes_the_record(copied: tuple[Log, Log]) -> None:
    log, intact = copied
    log.release()
    altered = flip(log, 1, 0, EPOCH_AT + 3, 1)
    log = open_log(log.directory, log.config, **RESTARTS["killed"])
    log.truncate_to(altered)
    assert not (log.directory / RECORDED_DAMAGE).exists()
    while log.log_end_offset < intact.log_end_offset:
        log.append_as_follower(intact.read(log.log_end_offset, 5000, up_to=intact.log_end_offset).read())
    for how in RESTARTS:
        log = restart(log, how)
        assert not log.damage


def test_a_full_disk_does_not_stop_the_log(
    copied: tuple[Log, Log], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    log, _ = copied
    log.release()
    altered = flip(log, 1, 0, EPOCH_AT + 3, 1)

    def full(*args: object, **kwargs: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr("parley.storage.damage.recorded_damage.write_atomically", full)
    log = open_log(log.directory, log.config, **RESTARTS["killed"])
    assert ranges(log) == [(altered, altered)]
    assert "cannot record the damage" in caplog.text


def test_damage_that_cannot_be_recorded_is_not_reported_before(
    copied: tuple[Log, Log], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise a power cut after the report could forget it."""
    log, _ = copied
    flip(log, 1, 1, 70)
    log.release()
    log = open_log(log.directory, log.config, recovery_point=log.log_end_offset)
    reported: list[object] = []
    log.on_damage = reported.append

    def fail(*args: object, **kwargs: object) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr(checkpoints, "sync_directory", fail)
    with pytest.raises(KafkaError):
        verify(log)
    assert not reported


@pytest.mark.parametrize("lost", ["the end", "the next segment"])
def test_a_missing_range_behind_damage(tmp_path: Path, lost: str) -> None:
    log = open_log(tmp_path, replace(SMALL, segment_bytes=3000))
    fill(log, 100, epoch=3)
    log = restart(log, "stopped")
    log.release()
    damaged = flip(log, 1, 2, 70)
    path = log.segments[1].path_of(".log")
    if lost == "the end":
        position, header = list(log.segments[1].batches())[-3]
        os.truncate(path, position)
        missing = (header.base_offset, log.segments[2].base_offset - 1)
    else:
        log.segments[2].path_of(".log").unlink()
        missing = (log.segments[2].base_offset, log.segments[3].base_offset - 1)
    log = open_log(log.directory, log.config, recovery_point=100, **RESTARTS["killed"])
    verify(log)
    for how in ("power cut", *RESTARTS):
        assert ranges(log) == [(damaged, damaged), missing]
        log = restart(log, how)
        verify(log)


@pytest.mark.parametrize(
    "stop_at",
    [
        "parley.storage.recovery_scan.Scan.run",
        "parley.storage.segment.write_digest",
        "parley.storage.damage.recorded_damage.write_atomically",
    ],
)
def test_a_broker_that_is_killed_while_it_recovers_the_log(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, stop_at: str
) -> None:
    """The digests reveal an altered offset and a missing end. They must stay until the damage is recorded."""
    log = open_log(tmp_path, replace(SMALL, segment_bytes=3000))
    fill(log, 100, epoch=3)
    log.close()
    flip(log, 1, 0, 3)  # the first batch's offset is lower than its segment's
    flip(log, 2, 0, EPOCH_AT + 3, 1)
    os.truncate(log.segments[3].path_of(".log"), list(log.segments[3].batches())[-3][0])
    for index in tmp_path.glob("*.index"):
        index.unlink()
    known = {"recovery_point": 100, **RESTARTS["killed"]}
    shutil.copytree(tmp_path, tmp_path / "copy")
    expected = ranges(open_log(tmp_path / "copy", log.config, **known))
    assert len(expected) == 3

    def killed(*args: object, **kwargs: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(stop_at, killed)
        with pytest.raises(KeyboardInterrupt):
            open_log(tmp_path, log.config, **known)
    log = open_log(tmp_path, log.config, **known)
    assert ranges(log) == expected


class TestFile:
    @pytest.fixture
    def log(self, tmp_path: Path) -> Log:
        log = open_log(tmp_path, LARGE)
        fill(log, 20)
        (first, _), *_, (last, _) = log.segments[0].batches()
        log.segments[0].damage = (DamagedBytes(first, last, 0, 18, "it is bad"),)
        RecordedDamage(tmp_path / RECORDED_DAMAGE).record(log.segments)
        return log

    def recorded(self, log: Log) -> tuple[DamagedBytes, ...]:
        return RecordedDamage.open(log.directory / RECORDED_DAMAGE).of(log.segments[0])

    def test_it_contains_the_damage(self, log: Log) -> None:
        assert self.recorded(log) == log.segments[0].damage

    def test_an_entry_counts_as_long_as_its_bytes_are_the_same(self, log: Log) -> None:
        path = log.segments[0].path_of(".log")
        content = bytearray(path.read_bytes())
        content[-1] ^= 1
        path.write_bytes(content)
        assert self.recorded(log)
        content[500] ^= 1
        path.write_bytes(content)
        assert not self.recorded(log)
        os.truncate(path, 100)
        assert not self.recorded(log)

    def test_an_entry_of_another_segment_does_not_count(self, log: Log) -> None:
        log.segments[0].base_offset = 7
        assert not RecordedDamage.open(log.directory / RECORDED_DAMAGE).of(log.segments[0])

    def test_no_altered_byte_makes_other_bytes_damaged(self, log: Log) -> None:
        path, expected = log.directory / RECORDED_DAMAGE, log.segments[0].damage
        intact = path.read_bytes()
        for at in range(len(intact)):
            path.write_bytes(intact[:at] + bytes([intact[at] ^ 1]) + intact[at + 1 :])
            assert self.recorded(log) in ((), expected)

    @pytest.mark.parametrize("content", [b"", b"0\n1\n1 2 3\n", b"\xff", b"0\n1\n1 0 -1 2 3 4\n"])
    def test_a_malformed_file_is_ignored(self, log: Log, content: bytes) -> None:
        (log.directory / RECORDED_DAMAGE).write_bytes(content)
        assert not self.recorded(log)
