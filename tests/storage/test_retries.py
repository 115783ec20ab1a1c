"""A restarted broker recognizes retries of batches that idempotent producers had in flight when it stopped."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from parley.protocol.errors import ErrorCode, KafkaError
from parley.protocol.records.batch import build
from parley.protocol.records.record import Record
from parley.storage.log import Log
from tests.storage.logs import NOW, fill, open_log, reopened

Return = Callable[[Log], Log]


def stopped(log: Log) -> Log:
    return reopened(log, clean=True)


def killed(log: Log) -> Log:
    return reopened(log, clean=False, recovery_point=0)


def rolled_and_cut(log: Log) -> Log:
    """Return a follower's log that has rolled a segment, with a producer snapshot, and was truncated to that segment's
    beginning."""
    end = log.log_end_offset
    log.roll()
    append(log, 10, producer=8)
    log.truncate_to(end)
    return log


def append(log: Log, sequence: int, *, producer: int = 7, epoch: int = 0, padding: int = 0) -> tuple[int, bool]:
    """Append a batch of two records. Returns its first offset, and True if the batch was a duplicate."""
    record = [Record(0, NOW, None, b"%d" % (sequence + i) + b"." * padding, ()) for i in range(2)]
    data = build(record, producer_id=producer, producer_epoch=epoch, base_sequence=sequence)
    info = log.append_as_leader(data, leader_epoch=0, now_ms=NOW)
    return info.first_offset, info.duplicate


@pytest.mark.parametrize("gone_and_back", [stopped, killed, rolled_and_cut])
def test_the_last_five_are_known_again(tmp_path: Path, gone_and_back: Return) -> None:
    log = open_log(tmp_path)
    offsets = []
    for number in range(8):
        offsets.append(append(log, number * 2)[0])
        append(log, number * 2, producer=9)
    log = gone_and_back(log)
    assert [append(log, number * 2) for number in range(3, 8)] == [(offset, True) for offset in offsets[3:]]
    assert append(log, 16)[1] is False
    with pytest.raises(KafkaError) as refused:
        append(log, 4)
    assert refused.value.code is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER


def test_they_may_lie_in_segments_of_before(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    offsets = [append(log, number * 2, padding=900)[0] for number in range(6)]
    assert len(log.segments) > 2
    log = stopped(log)
    assert append(log, 2) == (offsets[1], True)


def test_some_may_have_come_since(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    offsets = [append(log, number * 2)[0] for number in range(4)]
    log = stopped(log)
    offsets.append(append(log, 8)[0])
    assert [append(log, number * 2) for number in range(5)] == [(offset, True) for offset in offsets]


def test_those_of_an_older_epoch_are_none(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    for epoch in range(3):
        append(log, 0, epoch=epoch)
        append(log, 2, epoch=epoch)
    log = stopped(log)
    assert append(log, 0, epoch=2) == (8, True)
    with pytest.raises(KafkaError):
        append(log, 2, epoch=1)


def test_they_are_looked_for_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log = open_log(tmp_path)
    append(log, 0)
    log = stopped(log)
    with pytest.raises(KafkaError):
        append(log, 50)
    monkeypatch.setattr("parley.storage.producer_recovery.recall", None)
    with pytest.raises(KafkaError):
        append(log, 50)


def test_they_are_looked_for_near_the_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("parley.storage.producer_recovery.RECALLED_BYTES", 1000)
    log = open_log(tmp_path)
    append(log, 0)
    fill(log, 50)
    append(log, 2)
    append(log, 4)
    log = stopped(log)
    assert append(log, 2)[1]
    with pytest.raises(KafkaError):
        append(log, 0)
