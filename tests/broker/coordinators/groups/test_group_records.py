"""What groups write to the log, and the order in which it counts."""

from __future__ import annotations

import asyncio
import random

import pytest

from parley.broker.config import BrokerConfig
from parley.broker.coordinators.groups.coordinator import GroupCoordinator
from parley.broker.coordinators.groups.group import CommittedOffset, Group, GroupState
from parley.broker.coordinators.groups.group_log import GroupLog
from parley.broker.coordinators.groups.group_records import GroupReplay
from parley.broker.runtime.tasks import TaskSet
from parley.protocol.errors import KafkaError
from parley.protocol.records.batch import records


class Log:
    """A log whose appends are acknowledged by hand."""

    def __init__(self) -> None:
        self.acknowledged: list[asyncio.Event] = []
        self.batches: list[bytearray] = []

    async def append(self, partition: int, batch: bytearray) -> int:
        offset = len(self.acknowledged)
        self.batches.append(batch)
        self.acknowledged.append(asyncio.Event())
        await self.acknowledged[offset].wait()
        return offset


def at(offset: int) -> CommittedOffset:
    return CommittedOffset(offset=offset, leader_epoch=-1, metadata="", commit_timestamp_ms=0)


async def test_of_two_commits_in_progress_the_later_one_in_the_log_counts() -> None:
    log, group = Log(), Group("g", 0)
    group_log = GroupLog(log, lambda: 0)
    commits = [asyncio.ensure_future(group_log.store_offsets(group, {("t", 0): at(offset)})) for offset in (10, 20)]
    await asyncio.sleep(0)
    for written, commit in zip(reversed(log.acknowledged), reversed(commits), strict=True):
        written.set()
        await commit
    assert group.offsets["t", 0].offset == 20


async def test_a_dead_group_writes_nothing() -> None:
    log, group = Log(), Group("g", 0, state=GroupState.DEAD)
    with pytest.raises(KafkaError, match="NOT_COORDINATOR"):
        await GroupLog(log, lambda: 0).store_group(group)
    assert not log.acknowledged


class Coordinated:
    """A coordinator of one partition, with an empty group that has committed, and the log that it writes."""

    def __init__(self) -> None:
        self.log = Log()
        group_log = GroupLog(self.log, lambda: 0)
        config = BrokerConfig.from_properties({})
        self.groups = GroupCoordinator(
            lambda: config, group_log, Nothing(), lambda: 1, lambda: 0, TaskSet(), random.Random(1)
        )
        self.group_log = group_log

    async def begin(self) -> Group:
        self.groups.on_elected(0, 1)
        await self.groups.until_loaded(1)
        return self.groups.find_or_create("g")

    def commit(self, group: Group, partition: int, offset: int) -> asyncio.Future[None]:
        return asyncio.ensure_future(self.group_log.store_offsets(group, {("t", partition): at(offset)}))

    def of_group(self) -> dict[tuple[str, int], int]:
        """Return the offsets of the group as the log has them."""
        replay = GroupReplay(0)
        for batch in self.log.batches:
            for record in records(batch):
                replay.apply(record.key, record.value)
        return {p: offset.offset for group in replay.groups() for p, offset in group.offsets.items()}


class Nothing:
    """An empty partition."""

    async def replay(self, replay: GroupReplay) -> None:
        pass


@pytest.mark.parametrize("first", ["commit", "deletion"])
async def test_a_group_deleted_during_a_commit_is_deleted_in_the_log_too(first: str) -> None:
    bench = Coordinated()
    group = await bench.begin()
    commit = bench.commit(group, 0, 10)
    await asyncio.sleep(0)
    deletion = asyncio.ensure_future(bench.groups.delete("g"))
    await asyncio.sleep(0)
    acknowledged = bench.log.acknowledged if first == "commit" else bench.log.acknowledged[::-1]
    for written in acknowledged:
        written.set()
        await asyncio.sleep(0)
        await asyncio.sleep(0)
    await commit
    await deletion
    bench.groups.drop_unused(group)  # as the commit's handler does
    assert bench.groups.find("g") is None
    assert bench.of_group() == {}


async def test_offsets_committed_after_the_tombstone_stay() -> None:
    bench = Coordinated()
    group = await bench.begin()
    deletion = asyncio.ensure_future(bench.groups.delete("g"))
    await asyncio.sleep(0)
    commit = bench.commit(group, 0, 20)
    await asyncio.sleep(0)
    for written in bench.log.acknowledged:
        written.set()
    await deletion
    await commit
    assert bench.groups.find("g") is group
    assert {p: offset.offset for p, offset in group.offsets.items()} == bench.of_group() == {("t", 0): 20}


async def test_commits_in_progress_for_a_deleted_topic_are_removed_too() -> None:
    bench = Coordinated()
    group = await bench.begin()
    commit = bench.commit(group, 0, 10)
    await asyncio.sleep(0)
    deletion = asyncio.ensure_future(bench.groups.on_topic_deleted("t"))
    await asyncio.sleep(0)
    for written in bench.log.acknowledged[::-1]:
        written.set()
        await asyncio.sleep(0)
        await asyncio.sleep(0)
    await asyncio.gather(commit, deletion)
    assert group.offsets == bench.of_group() == {}
