"""A large target assignment is computed in a thread. Members keep the previous one until it is stored."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from parley.broker.coordinators.decision import Decision
from parley.broker.coordinators.groups.background import BackgroundWork
from parley.broker.coordinators.groups.consumer import group_change as consumer_change
from parley.broker.coordinators.groups.consumer.consumer_group import ConsumerGroupState
from parley.broker.coordinators.groups.group_shard import GroupShard
from parley.broker.coordinators.groups.offset_decisions import delete_group
from parley.broker.coordinators.groups.streams import group_change as streams_change
from parley.broker.coordinators.groups.streams.configuration import StatusCode
from parley.broker.coordinators.groups.streams.streams_group import StreamsGroupState
from parley.broker.runtime.tasks import TaskSet
from tests.broker.coordinators.groups.consumer.bench import GROUP, ConsumerBench, with_topics
from tests.broker.coordinators.groups.streams.bench import StreamsBench, said


async def decide_in_thread(group: ConsumerBench | StreamsBench, meanwhile: Callable[[], object] = lambda: None) -> None:
    """Decide the target of the group; ``meanwhile`` is called before it is stored."""

    def submit(_partition: int, decide: Callable[[GroupShard, int], Decision[None]]) -> asyncio.Future[None]:
        meanwhile()
        group.decide(decide)
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        done.set_result(None)
        return done

    tasks = TaskSet()
    BackgroundWork(submit, lambda _context, names: set(names), tasks, None).assign(group.shard, GROUP)
    await asyncio.gather(*asyncio.all_tasks() - {asyncio.current_task()})
    await tasks.close()


async def test_a_large_consumer_group_keeps_its_target_while_a_thread_decides(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(consumer_change, "LARGE", 5)
    group = ConsumerBench(with_topics(a=4))
    group.join("m1", "a")
    assert (group.targets(), group.group.state()) == ({}, ConsumerGroupState.ASSIGNING)
    await decide_in_thread(group)
    assert (group.targets(), group.group.target_epoch) == ({"m1": {"a": (0, 1, 2, 3)}}, group.group.epoch)


async def test_a_large_streams_group_keeps_its_target_while_a_thread_decides(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(streams_change, "LARGE", 5)
    group = StreamsBench(with_topics(a=4, store=4))
    joined = group.join("m")
    assert (said(joined.active_tasks), group.assigning) == ({}, [GROUP])
    assert [each.status_code for each in joined.status or ()] == [StatusCode.ASSIGNMENT_DELAYED]

    def members_change() -> None:
        group.join("n")
        group.join("o")
        group.leave("o")

    await decide_in_thread(group, members_change)
    assert group.assigning == [GROUP], "a thread decided already"
    assert list(group.group.targets) == ["m"]
    assert group.group.state() is StreamsGroupState.ASSIGNING, "of the epoch in which n and o were not members"
    assert said(group.heartbeat("m", 1).active_tasks) == {"0": [0, 1, 2, 3]}
    assert group.assigning == [GROUP, GROUP]
    await decide_in_thread(group)
    assert sorted(group.group.targets) == ["m", "n"]
    assert said(group.heartbeat("m", 2).active_tasks) == {"0": [0, 1]}


async def test_a_target_is_not_stored_for_another_group_of_the_same_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(streams_change, "LARGE", 5)
    group = StreamsBench(with_topics(a=4, store=4))
    group.join("m")

    def replace() -> None:
        group.leave("m")
        group.decide(lambda shard, now_ms: delete_group(shard, GROUP))
        group.join("m")

    await decide_in_thread(group, replace)
    assert (group.group.targets, group.group.state()) == ({}, StreamsGroupState.ASSIGNING)


async def test_a_target_passes_to_the_member_that_replaced_a_static_one_meanwhile(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The thread has encoded the record for the old member."""
    monkeypatch.setattr(consumer_change, "LARGE", 5)
    group = ConsumerBench(with_topics(a=4))
    group.join("m1", "a", instance_id="i")

    def restart() -> None:
        group.heartbeat("m1", -2, instance_id="i")
        group.join("m2", "a", instance_id="i")

    await decide_in_thread(group, restart)
    assert group.targets() == {"m2": {"a": (0, 1, 2, 3)}}
    group.reload()
    assert group.targets() == {"m2": {"a": (0, 1, 2, 3)}}
