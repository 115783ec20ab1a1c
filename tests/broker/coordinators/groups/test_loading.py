"""Loading the groups of a partition from a failing disk, in virtual time."""

from __future__ import annotations

import asyncio
import logging
from random import Random

import pytest

from parley.broker.config import BrokerConfig
from parley.broker.coordinators.groups.coordinator import GroupCoordinator
from parley.broker.coordinators.groups.group import Group
from parley.broker.coordinators.groups.group_log import GroupLog
from parley.broker.coordinators.groups.group_records import GroupReplay, group_record
from parley.broker.runtime.tasks import TaskSet
from parley.protocol.errors import ErrorCode, KafkaError
from tests.support.virtual_time import run


class Reader:
    """A partition with the group ``g``, which can be read after the given failures."""

    def __init__(self, *failures: Exception) -> None:
        self.failures = list(failures)
        self.times: list[float] = []

    async def replay(self, replay: GroupReplay) -> None:
        self.times.append(asyncio.get_running_loop().time())
        replay.apply(*group_record(Group("half read", replay.partition)))
        if self.failures:
            raise self.failures.pop(0)
        replay.generations.clear()
        replay.apply(*group_record(Group("g", replay.partition)))

    @property
    def pauses(self) -> list[float]:
        return [round(later - earlier, 3) for earlier, later in zip(self.times, self.times[1:], strict=False)]


class Nowhere:
    """A log that is not written."""

    async def append(self, partition: int, batch: bytearray) -> int:
        raise AssertionError("nothing is to be written")


def coordinator(reader: Reader) -> GroupCoordinator:
    config = BrokerConfig.from_properties({})
    return GroupCoordinator(
        lambda: config, GroupLog(Nowhere(), now_ms), reader, lambda: 1, now_ms, TaskSet(), Random(1)
    )


def now_ms() -> int:
    return int(asyncio.get_running_loop().time() * 1000)


def code_of(groups: GroupCoordinator) -> ErrorCode:
    try:
        groups.check_owned("g")
    except KafkaError as error:
        return error.code
    return ErrorCode.NONE


@pytest.mark.parametrize(
    "failure",
    [KafkaError(ErrorCode.KAFKA_STORAGE_ERROR), KafkaError(ErrorCode.CORRUPT_MESSAGE), OSError("no"), ValueError("?")],
    ids=repr,
)
def test_an_unreadable_partition_is_read_again_after_growing_pauses(
    failure: Exception, caplog: pytest.LogCaptureFixture
) -> None:
    async def scenario() -> None:
        reader = Reader(*[failure] * 10)
        groups = coordinator(reader)
        groups.on_elected(0, leader_epoch=1)
        assert code_of(groups) == ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
        await groups.until_loaded(timeout_s=30)
        assert code_of(groups) == ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
        await groups.until_loaded(timeout_s=30)
        assert code_of(groups) == ErrorCode.NONE
        assert [group.group_id for group in groups.all()] == ["g"]
        assert reader.pauses == [0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 6.4, 10, 10, 10]

    with caplog.at_level(logging.ERROR):
        run(scenario())
    (said,) = caplog.records
    assert bool(said.exc_info) is not isinstance(failure, KafkaError), "a defect shows where it is"


def test_a_new_reason_for_an_unreadable_partition_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    async def scenario() -> None:
        groups = coordinator(Reader(OSError("one"), OSError("one"), OSError("two"), OSError("one")))
        groups.on_elected(0, leader_epoch=1)
        await groups.until_loaded(timeout_s=60)
        assert code_of(groups) == ErrorCode.NONE

    with caplog.at_level(logging.ERROR):
        run(scenario())
    assert [record.__dict__["error"] for record in caplog.records] == ["one", "two", "one"]


def test_a_resigned_coordinator_stops_reading() -> None:
    async def scenario() -> None:
        reader = Reader(*[OSError("no")] * 100)
        groups = coordinator(reader)
        groups.on_elected(0, leader_epoch=1)
        await asyncio.sleep(1)
        groups.on_resigned(0)
        tried = len(reader.times)
        await asyncio.sleep(100)
        assert len(reader.times) == tried
        assert code_of(groups) == ErrorCode.NOT_COORDINATOR

    run(scenario())


def test_a_line_says_how_many_groups_were_loaded_if_there_are_any(caplog: pytest.LogCaptureFixture) -> None:
    class Empty(Reader):
        async def replay(self, replay: GroupReplay) -> None:
            pass

    async def load(reader: Reader) -> None:
        groups = coordinator(reader)
        groups.on_elected(0, leader_epoch=1)
        await groups.until_loaded(timeout_s=60)

    with caplog.at_level(logging.INFO):
        run(load(Empty()))
        assert not caplog.records
        run(load(Reader()))
    assert [(line.message, line.__dict__["groups"]) for line in caplog.records] == [("groups loaded", 1)]
