"""Loading a coordinator's partition from a failing disk, in virtual time."""

from __future__ import annotations

import asyncio
import logging

import pytest

from parley.protocol.errors import ErrorCode, KafkaError
from tests.broker.coordinators.shards import write
from tests.broker.coordinators.test_runtime import Bench
from tests.support.virtual_time import run


@pytest.mark.parametrize(
    "failure",
    [KafkaError(ErrorCode.KAFKA_STORAGE_ERROR), KafkaError(ErrorCode.CORRUPT_MESSAGE), OSError("no"), ValueError("?")],
    ids=repr,
)
def test_an_unreadable_partition_is_read_again_after_growing_pauses(
    failure: Exception, caplog: pytest.LogCaptureFixture
) -> None:
    async def scenario() -> None:
        bench = Bench(*[failure] * 10)
        bench.runtime.on_elected(0, leader_epoch=1)
        assert bench.refusal() == ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
        await bench.runtime.until_loaded(timeout_s=30)
        assert bench.refusal() == ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
        await bench.runtime.until_loaded(timeout_s=30)
        assert bench.refusal() == ErrorCode.NONE
        assert bench.topic.pauses == [0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 6.4, 10, 10, 10]
        assert len(bench.states) == 11, "what was half read does not count"
        assert [state for _, state in bench.runtime.states()] == bench.states[-1:]

    with caplog.at_level(logging.ERROR):
        run(scenario())
    (said,) = caplog.records
    assert bool(said.exc_info) is not isinstance(failure, KafkaError), "a defect shows where it is"


def test_a_new_reason_for_an_unreadable_partition_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    async def scenario() -> None:
        bench = Bench(OSError("one"), OSError("one"), OSError("two"), OSError("one"))
        bench.runtime.on_elected(0, leader_epoch=1)
        await bench.runtime.until_loaded(timeout_s=60)
        assert bench.refusal() == ErrorCode.NONE

    with caplog.at_level(logging.ERROR):
        run(scenario())
    assert [record.__dict__["error"] for record in caplog.records] == ["one", "two", "one"]


def test_a_resigned_coordinator_stops_reading() -> None:
    async def scenario() -> None:
        bench = Bench(*[OSError("no")] * 100)
        bench.runtime.on_elected(0, leader_epoch=1)
        await asyncio.sleep(1)
        bench.runtime.on_resigned(0)
        tried = len(bench.topic.times)
        await asyncio.sleep(100)
        assert len(bench.topic.times) == tried
        assert bench.refusal() == ErrorCode.NOT_COORDINATOR

    run(scenario())


def test_a_line_says_how_much_was_loaded_if_there_is_anything(caplog: pytest.LogCaptureFixture) -> None:
    async def scenario() -> None:
        bench = Bench()
        for epoch in (1, 2):
            bench.runtime.on_elected(0, leader_epoch=epoch)
            await bench.runtime.until_loaded(timeout_s=60)
            assert len(caplog.records) == epoch - 1
            await bench.runtime.submit(0, write(b"k", b"1"))

    with caplog.at_level(logging.INFO):
        run(scenario())
    assert [(line.message, line.__dict__["records"]) for line in caplog.records] == [
        ("coordinator loaded a partition", 1)
    ]
