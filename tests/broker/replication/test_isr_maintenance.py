"""The ISR of real partitions: followers join and leave, and the high watermark waits for the right ones."""

from __future__ import annotations

import asyncio
import logging
import time
from pathlib import Path
from typing import Any

import pytest

from parley.broker.logging import growing_interval
from parley.broker.replication import hosted_partitions, isr_maintenance
from parley.broker.replication.isr_maintenance import NAMED_MAX
from parley.protocol.errors import ErrorCode
from parley.protocol.messages.replication import AlterPartitionResponse
from tests.broker.replication.bench import batch, eventually, nodes, now_ms, values_of


async def test_a_follower_that_stops_leaves_the_isr_and_joins_again(tmp_path: Path) -> None:
    hour_s = 3600
    async with nodes(tmp_path, 3, replica_lag_time_max_ms=str(hour_s * 1000)) as cluster:
        await cluster.create("t", [1, 2, 3])
        leader = cluster[1].partition("t")
        leader.append(batch(b"a"), acks=-1, now_ms=now_ms())
        await eventually(lambda: leader.high_watermark == 1)
        await cluster[3].stop()
        leader.append(batch(b"b"), acks=-1, now_ms=now_ms())
        await eventually(lambda: leader.followers.progress[2].log_end_offset == 2)
        cluster[1].in_sync._check_all(leader, time.monotonic() + 2 * hour_s)  # the search in two hours
        await eventually(lambda: leader.high_watermark == 2)
        assert cluster.state("t").isr == (1, 2)
        await eventually(lambda: cluster[1].in_sync.changes.shrinks == 1)
        await cluster.start(3)
        await eventually(lambda: cluster.state("t").isr == (1, 2, 3))
        await eventually(lambda: cluster[1].in_sync.changes.expands == 1)
        assert values_of(cluster[3].log("t")) == [b"a", b"b"]


async def test_a_follower_joins_under_a_steady_load(tmp_path: Path) -> None:
    async with nodes(tmp_path, 2) as cluster:
        await cluster.create("t", [1, 2])
        cluster.alter("t", isr=(1,))
        leader = cluster[1].partition("t")

        async def load() -> None:
            while True:
                leader.append(batch(b"v" * 100), acks=1, now_ms=now_ms())
                await asyncio.sleep(0)

        loading = asyncio.ensure_future(load())
        await eventually(lambda: cluster.state("t").isr == (1, 2))
        loading.cancel()


async def test_a_broker_that_is_fenced_stays_out_until_it_is_not(tmp_path: Path) -> None:
    async with nodes(tmp_path, 2) as cluster:
        await cluster.create("t", [1, 2])
        cluster.fence(2, fenced=True)
        cluster.alter("t", isr=(1,))
        leader = cluster[1].partition("t")
        leader.append(batch(b"a"), acks=1, now_ms=now_ms())
        await eventually(lambda: cluster[2].partition("t").high_watermark == 1)
        assert cluster.state("t").isr == (1,)
        cluster.fence(2, fenced=False)
        await eventually(lambda: cluster.state("t").isr == (1, 2))


async def test_all_partitions_that_a_broker_follows_are_looked_at_when_it_is_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hosted_partitions, "LOOKED_AT_IN_A_TURN", 1)
    async with nodes(tmp_path, 2, replica_lag_time_max_ms="3600000") as cluster:
        names = ["a", "b", "c"]
        for name in names:
            await cluster.create(name, [1, 2])
        cluster.fence(2, fenced=True)
        for name in names:
            cluster.alter(name, isr=(1,))
            leader = cluster[1].partition(name)
            leader.append(batch(b"a"), acks=1, now_ms=now_ms())
            await eventually(lambda: leader.followers.progress[2].log_end_offset == 1)  # noqa: B023
        cluster.fence(2, fenced=False)
        await eventually(lambda: all(cluster.state(name).isr == (1, 2) for name in names))


async def test_both_isrs_count_until_the_controller_has_responded(tmp_path: Path) -> None:
    async with nodes(tmp_path, 2) as cluster:
        asked, answer = asyncio.Event(), asyncio.Event()
        decide = cluster[1].controller

        async def slow(request: Any) -> Any:
            asked.set()
            await answer.wait()
            return await decide(request)

        cluster[1].controller = slow
        await cluster.create("t", [1, 2])
        cluster.alter("t", isr=(1,))
        leader = cluster[1].partition("t")
        await asked.wait()
        await cluster[2].stop()
        leader.append(batch(b"a"), acks=-1, now_ms=now_ms())
        assert not leader.followers.is_outsider(2)
        assert leader.high_watermark == 0
        assert leader.append_outcome(0) is None
        answer.set()
        await eventually(lambda: not leader.followers.has_proposed_isr)
        assert leader.state.isr == cluster.state("t").isr == (1, 2)


async def test_a_refused_isr_is_withdrawn(tmp_path: Path) -> None:
    async with nodes(tmp_path, 2) as cluster:
        decide, refuse = cluster[1].controller, True

        async def controller(request: Any) -> Any:
            if not refuse:
                return await decide(request)
            answer = AlterPartitionResponse.PartitionData(
                partition_index=0,
                error_code=ErrorCode.INELIGIBLE_REPLICA,
                leader_id=0,
                leader_epoch=0,
                isr=[],
                partition_epoch=0,
            )
            topic = AlterPartitionResponse.TopicData(topic_id=request.topics[0].topic_id, partitions=[answer])
            return AlterPartitionResponse(topics=[topic])

        cluster[1].controller = controller
        await cluster.create("t", [1, 2])
        cluster.alter("t", isr=(1,))
        leader = cluster[1].partition("t")
        await eventually(lambda: len(cluster[1].asked) == 1 and not leader.followers.has_proposed_isr)
        await cluster[2].stop()
        leader.append(batch(b"a"), acks=-1, now_ms=now_ms())
        assert leader.followers.is_outsider(2)


async def test_many_proposals_are_sent_in_several_requests_without_a_pause(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(isr_maintenance, "PROPOSED_MAX", 2)
    monkeypatch.setattr(isr_maintenance, "RETRY_FIRST_S", 3600.0)
    async with nodes(tmp_path, 2) as cluster:
        for index in range(5):
            await cluster.create(f"t{index}", [1, 2])
        asked, decide = [], cluster[1].controller

        async def controller(request: Any) -> Any:
            asked.append(sum(len(topic.partitions) for topic in request.topics))
            return await decide(request)

        cluster[1].controller = controller
        for index in range(5):
            cluster.alter(f"t{index}", isr=(1,))
        await eventually(lambda: all(cluster.state(f"t{index}").isr == (1, 2) for index in range(5)))
        assert max(asked) <= 2


async def test_a_proposal_is_sent_until_the_controller_responds_and_logged_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(growing_interval, "FIRST_PAUSE_S", 3600.0)  # longer than this test takes anywhere
    caplog.set_level(logging.INFO, "parley.broker.replication.isr_maintenance")
    async with nodes(tmp_path, 2) as cluster:
        decide, failures = cluster[1].controller, [ErrorCode.NOT_CONTROLLER] * 3

        async def controller(request: Any) -> Any:
            if failures:
                return AlterPartitionResponse(error_code=failures.pop(), topics=[])
            return await decide(request)

        cluster[1].controller = controller
        await cluster.create("t", [1, 2])
        cluster.alter("t", isr=(1,))
        await eventually(lambda: cluster.state("t").isr == (1, 2))
        assert not failures
    repeated = [record for record in caplog.records if "retrying to send proposed ISRs" in record.message]
    assert len(repeated) == 1


async def test_the_epochs_of_the_members_are_named(tmp_path: Path) -> None:
    async with nodes(tmp_path, 2) as cluster:
        await cluster[2].stop()
        await cluster.start(2)
        await cluster.create("t", [1, 2])
        cluster.alter("t", isr=(1,))
        await eventually(lambda: cluster.state("t").isr == (1, 2))
        (partition,) = cluster[1].asked[-1].topics[0].partitions
        assert [(each.broker_id, each.broker_epoch) for each in partition.new_isr_with_epochs] == [(1, 1), (2, 2)]


async def test_a_leader_that_loses_one_log_goes_on_asking_for_the_others(tmp_path: Path) -> None:
    async with nodes(tmp_path, 2, replica_lag_time_max_ms="400") as cluster:
        decide, is_away = cluster[1].controller, True

        async def controller(request: Any) -> Any:
            return (
                AlterPartitionResponse(error_code=ErrorCode.NOT_CONTROLLER, topics=[])
                if is_away
                else await decide(request)
            )

        cluster[1].controller = controller
        await cluster.create("lost", [1, 2])
        await cluster.create("kept", [1, 2])
        for topic in ("lost", "kept"):
            cluster.alter(topic, isr=(1,))
        await eventually(
            lambda: all(cluster[1].partition(topic).followers.has_proposed_isr for topic in ("lost", "kept"))
        )
        cluster[1].partition("lost").lose_log()
        is_away = False
        await eventually(lambda: cluster.state("kept").isr == (1, 2))


async def test_many_isrs_that_change_alike_are_one_line_of_the_log(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "parley.broker.replication.isr_maintenance")
    count = NAMED_MAX + 2
    async with nodes(tmp_path, 2, replica_lag_time_max_ms="2000") as cluster:
        await cluster.create("t", [1, 2], partitions=count)
        led = [cluster[1].partition("t", index) for index in range(count)]
        await eventually(lambda: all(each.state.isr == (1, 2) and not each.followers.has_proposed_isr for each in led))
        caplog.clear()  # a machine that stands still has changed them before
        await cluster[2].stop()
        for partition in led:
            partition.append(batch(b"a"), acks=1, now_ms=now_ms())
        await eventually(lambda: all(each.state.isr == (1,) and not each.followers.has_proposed_isr for each in led))
    lines: list[Any] = [record for record in caplog.records if record.message == "the ISR has changed"]
    assert sum(line.partitions for line in lines) == count
    assert len(lines) < count
    assert {(line.before, line.requested) for line in lines} == {("1,2", "1")}
    assert all(len(line.names.split()) == line.partitions for line in lines if line.partitions <= NAMED_MAX)
    assert all(
        line.names.endswith(f"and {line.partitions - NAMED_MAX} more") for line in lines if line.partitions > NAMED_MAX
    )
