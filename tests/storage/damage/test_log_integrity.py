"""What a verification reports as damage."""

from __future__ import annotations

import logging
from pathlib import Path
from types import TracebackType

import pytest

from parley.protocol.errors import ErrorCode, KafkaError
from parley.storage.damage.damaged_ranges import DamagedRange
from parley.storage.damage.log_integrity import NEXT_READ, DamagedOffset
from parley.storage.damage.recorded_damage import RECORDED_DAMAGE
from parley.storage.damage.segment_check import Checked, Extent, check
from parley.storage.log import Log
from parley.storage.log_config import LogConfig
from parley.storage.segment import Segment
from tests.storage import logs
from tests.storage.logs import append, fill, open_log, reopened, values_of


class AppendingLock:
    """The lock of a log. Before each acquisition, another thread appends a batch."""

    def __init__(self, log: Log) -> None:
        self._log = log

    def __enter__(self) -> None:
        append(self._log, b"another thread's")
        self._log._lock.acquire()

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._log._lock.release()


def test_records_appended_during_a_verification_are_not_damage(tmp_path: Path) -> None:
    """A verification once read the log's end before an append and its size after it, and cut the new batch out of the
    log."""
    log = open_log(tmp_path)
    values = fill(log, 5)
    active = log.segments[-1]
    log._integrity._lock = AppendingLock(log)  # type: ignore[assignment]
    log.verify_segment(active, 0, active.size)
    assert log.damage == ()
    assert list(values_of(log).values())[: len(values)] == values
    logs.check(log)


def test_damage_below_the_log_start_is_not_reported(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """The operator deleted the damaged records. Their segment also contains records that are kept."""
    log = open_log(tmp_path)
    fill(log, 5)
    path = log.segments[-1].path_of(".log")
    log.close()
    whole = path.read_bytes()
    path.write_bytes(whole[:100] + bytes([whole[100] ^ 0xFF]) + whole[101:])
    log = open_log(tmp_path, clean=True, recovery_point=5, log_start_offset=2)
    reported: list[DamagedRange] = []
    log.on_damage = reported.append
    with caplog.at_level(logging.ERROR):
        log.verify_segment(log.segments[-1], 0, log.segments[-1].size)
    assert (reported, caplog.records, log.damage) == ([], [], ())
    assert list(values_of(log)) == [2, 3, 4]


class VerifyingLock:
    """The lock of a log. Before its second acquisition, another thread verifies the active segment."""

    def __init__(self, log: Log) -> None:
        self._log = log
        self._acquired = 0

    def __enter__(self) -> None:
        self._acquired += 1
        if self._acquired == 2:
            segment = self._log.segments[-1]
            self._log.verify_segment(segment, 0, segment.size)
        self._log._lock.acquire()

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._log._lock.release()


@pytest.mark.parametrize("damaged", [0, 3])
def test_two_threads_that_verify_the_same_bytes_both_see_the_damage(tmp_path: Path, damaged: int) -> None:
    """A consumer once read an altered record: the scrubber had found the damage first, so for the read it was not
    new."""
    log = open_log(tmp_path)
    fill(log, 5)
    path = log.segments[-1].path_of(".log")
    log.close()
    whole = bytearray(path.read_bytes())
    whole[(damaged + 1) * len(whole) // 5 - 1] ^= 0xFF  # the last byte of the batch
    path.write_bytes(whole)
    log = open_log(tmp_path, clean=True, recovery_point=5)
    log._integrity._lock = VerifyingLock(log)  # type: ignore[assignment]
    if damaged:
        read = log.read(0, 1 << 20, up_to=5)
        assert (read.size, read.next_offset) == (damaged * len(whole) // 5, damaged)
    else:
        with pytest.raises(DamagedOffset):
            log.read(0, 1 << 20, up_to=5)


def test_a_read_verifies_no_byte_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The second read begins before the end of the verified bytes."""
    size = NEXT_READ // 6
    log = open_log(tmp_path, LogConfig())
    fill(log, 12, size=size)
    log.close()
    log = open_log(tmp_path, LogConfig(), clean=True, recovery_point=12)
    pieces: list[tuple[int, int]] = []

    def checked(segment: Segment, begin: int, end: int, extent: Extent) -> Checked:
        found = check(segment, begin, end, extent)
        pieces.append((begin, found.end))
        return found

    monkeypatch.setattr("parley.storage.damage.log_integrity.check", checked)
    assert log.read(0, size, up_to=12).next_offset == 1
    assert log.read(4, 6 * size, up_to=12).next_offset == 9
    (first_begin, first_end), (begin, end) = pieces
    assert (first_begin, begin, end) == (0, first_end, log.segments[-1].size)


def test_reads_in_order_verify_longer_and_longer_pieces(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each piece is as long as all before it, within limits. A read elsewhere verifies little."""
    monkeypatch.setattr("parley.storage.damage.log_integrity.NEXT_READ", 1 << 20)
    monkeypatch.setattr("parley.storage.damage.log_integrity.LONGEST_READ", 4 << 20)
    log = open_log(tmp_path, LogConfig())
    fill(log, 500, size=32 << 10)
    log.close()
    log = open_log(tmp_path, LogConfig(), clean=True, recovery_point=500)
    segment = log.segments[-1]
    lengths = []
    while segment.unverified[0][0] < 9 << 20:
        before = segment.unverified[0][0]
        assert not log._integrity.verify_read(segment, before, before + 1)
        lengths.append(round((segment.unverified[0][0] - before) / (1 << 20)))
    assert lengths == [1, 1, 2, 4, 4]
    log._integrity.verify_read(segment, 15 << 20, (15 << 20) + 1)
    assert segment.unverified[0][1] > 14 << 20


class DeletingLock:
    """The lock of a log. After its first release, another thread closes the log and renames its directory."""

    def __init__(self, log: Log, renamed: Path) -> None:
        self._log = log
        self._renamed = renamed

    def __enter__(self) -> None:
        self._log._lock.acquire()

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._log._lock.release()
        if not self._renamed.exists():
            delete(self._log, self._renamed)


def delete(log: Log, renamed: Path) -> None:
    """Do the first steps of a deletion. The last one tells the log its new path."""
    log.release()
    log.directory.rename(renamed)


def deleted_during(tmp_path: Path, *, before: bool) -> tuple[Log, Path]:
    """Return an unverified log that is deleted ``before``, or during, its next verification."""
    (tmp_path / "topic-0").mkdir()
    log = open_log(tmp_path / "topic-0")
    fill(log, 5)
    log = reopened(log, clean=True)
    aside = tmp_path / "topic-0.1-delete"
    if before:
        delete(log, aside)
    else:
        log._integrity._lock = DeletingLock(log, aside)  # type: ignore[assignment]
    return log, aside


@pytest.mark.parametrize("before", [False, True])
def test_a_log_that_is_deleted_meanwhile_is_not_damaged(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, before: bool
) -> None:
    """A verification once reported every record of a deleted log as missing, because its directory was renamed."""
    log, aside = deleted_during(tmp_path, before=before)
    reported: list[DamagedRange] = []
    log.on_damage = reported.append
    segment = log.segments[-1]
    with caplog.at_level(logging.ERROR):
        assert log.verify_segment(segment, 0, 1) == segment.size, "nothing is left to verify"
        log.write_missing_digest(segment)
    assert (reported, caplog.records, log.damage) == ([], [], ())
    assert not (aside / RECORDED_DAMAGE).exists()


def test_a_read_of_a_log_that_is_deleted_meanwhile_ends(tmp_path: Path) -> None:
    log, _ = deleted_during(tmp_path, before=False)
    with pytest.raises(KafkaError) as refused:
        log.read(0, 1 << 20, up_to=5)
    assert refused.value.code is ErrorCode.KAFKA_STORAGE_ERROR
