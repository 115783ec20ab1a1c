"""A log that was created but not used yet: it behaves like an empty log, and gets its files when it is first used."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from random import Random
from threading import Barrier

import pytest

from parley.protocol.errors import ErrorCode, KafkaError
from parley.protocol.uuids import UUID
from parley.storage.log import Log
from parley.storage.log_place import LogEvents, LogSettings, SharedByLogs
from parley.storage.new_log import NewLog
from tests.storage.logs import NOW, SMALL, append, check, open_log, values_of

TOPIC_ID = UUID(int=7)


@pytest.fixture
def log(tmp_path: Path) -> NewLog:
    settings = LogSettings(config=SMALL, now_ms=lambda: NOW, random=Random(1))
    return NewLog(("topic", 0), TOPIC_ID, SharedByLogs(tmp_path, settings, LogEvents()))


QUESTIONS: dict[str, Callable[[Log], object]] = {
    "offsets": lambda log: (log.log_start_offset, log.high_watermark, log.last_stable_offset, log.log_end_offset),
    "size": lambda log: log.size_bytes,
    "recovery point": lambda log: log.recovery_point,
    "removals": lambda log: log.removals,
    "tombstones": lambda log: log.tombstones_removed_up_to,
    "damage": lambda log: log.damage,
    "latest epoch": lambda log: log.latest_epoch,
    "read": lambda log: (log.read(0, 100, up_to=0).next_offset, log.read(0, 100, up_to=0).size),
    "name": repr,
}


@pytest.mark.parametrize("question", QUESTIONS)
def test_it_answers_as_an_empty_log_without_its_parts(log: NewLog, tmp_path: Path, question: str) -> None:
    (tmp_path / "other").mkdir()
    empty = open_log(tmp_path / "other")
    assert QUESTIONS[question](log) == QUESTIONS[question](empty)
    log.begin_leading(4)
    empty.begin_leading(4)
    log.high_watermark = empty.high_watermark = 9
    assert QUESTIONS[question](log) == QUESTIONS[question](empty)
    assert type(log) is NewLog


def test_it_refuses_a_read_outside_of_it(log: NewLog) -> None:
    with pytest.raises(KafkaError) as refusal:
        log.read(1, 100, up_to=0)
    assert refusal.value.code == ErrorCode.OFFSET_OUT_OF_RANGE


def test_the_first_append_makes_it_a_log_and_creates_its_files(log: NewLog, tmp_path: Path) -> None:
    config = replace(SMALL, segment_bytes=SMALL.segment_bytes + 1)
    damaged: list[object] = []
    log.config, log.on_damage = config, damaged.append
    log.begin_leading(3)
    log.begin_leading(5)
    assert not list(tmp_path.iterdir())
    append(log, b"a", epoch=5)
    assert type(log) is Log
    assert values_of(log) == {0: b"a"}
    assert (log.config, log.on_damage, log.topic_id) == (config, damaged.append, TOPIC_ID)
    assert [entry.epoch for entry in log.leader_epochs.entries] == [5]
    assert (tmp_path / "topic-0" / "partition.metadata").exists()
    check(log)


def test_its_parts_are_made_without_files_and_once(log: NewLog, tmp_path: Path) -> None:
    together = Barrier(8)

    def producers(_: int) -> object:
        together.wait()
        return log.producers

    with ThreadPoolExecutor(8) as threads:
        assert len({id(found) for found in threads.map(producers, range(8))}) == 1
    assert type(log) is Log
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("end", [Log.close, Log.release])
def test_once_closed_it_takes_no_record(log: NewLog, tmp_path: Path, end: Callable[[Log], None]) -> None:
    getattr(log, end.__name__)()
    uses: tuple[Callable[[], object], ...] = (lambda: log.read(0, 100, up_to=0), lambda: append(log, b"a"))
    for use in uses:
        with pytest.raises(KafkaError) as refusal:
            use()
        assert refusal.value.code == ErrorCode.KAFKA_STORAGE_ERROR
    assert not list(tmp_path.iterdir())


def test_calls_that_began_on_a_new_log_end_on_the_created_log(log: NewLog) -> None:
    begin_leading, close = log.begin_leading, log.close
    append(log, b"a", epoch=0)
    begin_leading(2)
    assert log.latest_epoch == 2
    close()
    with pytest.raises(KafkaError):
        append(log, b"b", epoch=2)


def test_it_has_no_attribute_that_a_log_lacks(log: NewLog) -> None:
    assert not hasattr(log, "no_such_part")
