"""The states of a followed partition, and the log lines about partitions that fail."""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path
from typing import Any

import pytest

from parley.broker.replication import fetch_failures
from parley.broker.replication.fetch_failures import FetchFailures
from parley.broker.replication.followed_partition import _STEPS, FollowedPartition, FollowEvent, FollowState
from parley.broker.runtime.states import IllegalStep
from tests.broker.api.bench import OTHER, Bench


async def test_a_followed_partition_takes_only_the_steps_of_its_table(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    await bench.create("t", replicas=(OTHER, 1), leader=OTHER)
    followed = FollowedPartition(bench.partition("t"))
    assert followed.is_current
    assert (followed.lag, followed.failures) == (-1, 0), "the lag is unknown until the first response"
    followed.step(FollowEvent.FETCH)
    followed.step(FollowEvent.TRUNCATE)
    with pytest.raises(IllegalStep, match="THROTTLE is not legal in the state TRUNCATING"):
        followed.step(FollowEvent.THROTTLE)
    fired: list[int] = []
    followed.step(FollowEvent.FAIL)
    followed.timer = asyncio.get_running_loop().call_later(0, fired.append, 1)
    followed.step(FollowEvent.LEAVE)
    await asyncio.sleep(0.01)
    assert (followed.timer, fired) == (None, []), "a step ends the timer of the state before"
    assert not any((FollowState.LEFT, event) in _STEPS for event in FollowEvent)
    await bench.tasks.close()


async def test_a_partition_is_followed_while_it_is_open_and_in_the_same_epoch(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    await bench.create("t", replicas=(OTHER, 1, 3), leader=OTHER)
    partition = bench.partition("t")
    before = FollowedPartition(partition)
    bench.alter("t", leader=3)
    assert not before.is_current, "the leader has changed"
    now = FollowedPartition(partition)
    assert now.is_current
    bench.partitions.lose_logs([partition.log])
    assert not now.is_current, "the log is lost"
    await bench.tasks.close()


def test_a_partition_that_waits_is_fetched_again_superseded_or_left() -> None:
    for state in (FollowState.BACKING_OFF, FollowState.THROTTLED):
        legal = {event for event in FollowEvent if (state, event) in _STEPS}
        assert legal == {FollowEvent.FETCH, FollowEvent.SUPERSEDE, FollowEvent.LEAVE}
    assert [event for event in FollowEvent if (FollowState.SUPERSEDED, event) in _STEPS] == [FollowEvent.LEAVE]


async def test_repeated_failures_are_logged_after_growing_pauses(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(fetch_failures, "GATHERED_S", 0.0)
    bench = Bench(tmp_path)
    await bench.create("t", 12, replicas=(OTHER, 1), leader=OTHER)
    partitions = list(bench.partitions)
    failures = FetchFailures(OTHER)

    async def fail(reason: str) -> list[Any]:
        caplog.clear()
        for partition in partitions:
            failures.note(partition, reason, is_expected=False)
        await asyncio.sleep(0.01)
        return [(line.levelno, line.__dict__["reason"], line.__dict__["partitions"]) for line in caplog.records]

    assert await fail("KAFKA_STORAGE_ERROR") == [(logging.WARNING, "KAFKA_STORAGE_ERROR", 12)]
    assert caplog.records[0].__dict__["names"].count("t-") == fetch_failures.NAMED_MAX
    assert await fail("KAFKA_STORAGE_ERROR") == [], "the next line comes after a pause"
    assert await fail("CORRUPT_MESSAGE") == [(logging.WARNING, "CORRUPT_MESSAGE", 12)], "another reason"
    failures.all_recovered()
    assert await fail("KAFKA_STORAGE_ERROR") == [(logging.WARNING, "KAFKA_STORAGE_ERROR", 12)], "a new trouble"
    await bench.tasks.close()


async def test_a_failure_between_a_recovery_and_the_line_about_the_last_failure_is_in_that_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(fetch_failures, "GATHERED_S", 0.0)
    bench = Bench(tmp_path)
    await bench.create("t", 2, replicas=(OTHER, 1), leader=OTHER)
    one, other = bench.partitions
    failures = FetchFailures(OTHER)
    failures.note(one, "NOT_LEADER_OR_FOLLOWER", is_expected=False)
    failures.all_recovered()
    failures.note(other, "NOT_LEADER_OR_FOLLOWER", is_expected=False)
    await asyncio.sleep(0.01)
    assert [(line.name, line.__dict__.get("names")) for line in caplog.records] == [
        (fetch_failures.__name__, "t-0 t-1")
    ]
    await bench.tasks.close()
