"""What groups write to the log, and the order in which it counts."""

from __future__ import annotations

import asyncio
import logging
import random
from dataclasses import replace

import pytest

from parley.broker.config import BrokerConfig
from parley.broker.coordinators.groups.coordinator import GroupCoordinator
from parley.broker.coordinators.groups.group import CommittedOffset, Group, GroupMember, GroupState
from parley.broker.coordinators.groups.group_log import GroupLog
from parley.broker.coordinators.groups.group_records import (
    OFFSET_VALUE_VERSION,
    OFFSET_WITH_EXPIRY_VALUE_VERSION,
    GroupReplay,
    group_partition,
    group_record,
    group_tombstone,
    offset_record,
    offset_tombstone,
)
from parley.broker.coordinators.patient_timer import PatientTimer
from parley.broker.runtime.tasks import TaskSet
from parley.protocol.errors import ErrorCode, KafkaError
from parley.protocol.records.batch import records
from parley.protocol.sentinels import NO_EPOCH


class Log:
    """A log whose appends are acknowledged by hand."""

    def __init__(self) -> None:
        self.acknowledged: list[asyncio.Event] = []
        self.batches: list[bytearray] = []
        self.failure: ErrorCode | None = None

    async def append(self, partition: int, batch: bytearray) -> int:
        if self.failure is not None:
            raise KafkaError(self.failure)
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


@pytest.mark.parametrize(
    ("group_id", "java_hash"),
    [
        ("", 0),
        ("hello", 99_162_322),
        ("日本語", 25_921_943),
        ("polygenelubricants", 0),  # Integer.MIN_VALUE, which Kafka takes for 0
    ],
)
def test_the_partition_of_a_group_is_kafkas(group_id: str, java_hash: int) -> None:
    assert group_partition(group_id, 1 << 31) == java_hash
    assert group_partition(group_id, 50) == java_hash % 50


@pytest.mark.parametrize(
    ("expire_at_ms", "epoch_read", "version"),
    [(-1, 7, OFFSET_VALUE_VERSION), (0, NO_EPOCH, OFFSET_WITH_EXPIRY_VALUE_VERSION), (90, NO_EPOCH, 1)],
)
def test_only_an_offset_with_a_retention_of_its_own_is_written_in_the_old_version(
    expire_at_ms: int, epoch_read: int, version: int
) -> None:
    given = CommittedOffset(5, 7, "m", 80, expire_at_ms)
    key, value = offset_record("g", ("t", 3), given)
    assert value is not None
    assert (int.from_bytes(key[:2], "big"), int.from_bytes(value[:2], "big")) == (1, version)
    replay = GroupReplay(0)
    replay.apply(key, value)
    assert replay.groups()[0].offsets == {("t", 3): replace(given, leader_epoch=epoch_read)}


def test_offsets_with_the_oldest_keys_are_read_and_records_without_keys_skipped() -> None:
    key, value = offset_record("g", ("t", 0), at(5))
    replay = GroupReplay(0)
    replay.apply(b"\x00\x00" + key[2:], value)
    assert replay.groups()[0].offsets["t", 0].offset == 5
    for nothing in (None, b"", b"\x00"):
        replay.apply(nothing, value)
    assert (replay.skipped, replay.why_skipped) == (3, "a record of the offsets topic has no key")


def test_a_tombstone_removes_one_offset_and_the_last_one_the_group() -> None:
    replay = GroupReplay(0)
    for partition in (0, 1):
        replay.apply(*offset_record("g", ("t", partition), at(partition)))
    replay.apply(*offset_tombstone("g", ("t", 0)))
    assert [set(group.offsets) for group in replay.groups()] == [{("t", 1)}]
    replay.apply(*offset_tombstone("g", ("t", 1)))
    replay.apply(*offset_tombstone("absent", ("t", 1)))
    assert replay.groups() == []
    replay.apply(*group_record(Group("g", 0, generation=1)))
    assert [group.generation for group in replay.groups()] == [1]
    replay.apply(*group_tombstone("g"))
    assert (replay.groups(), replay.skipped) == ([], 0)


def test_the_largest_generation_that_has_a_successor_is_read() -> None:
    replay = GroupReplay(0)
    replay.apply(*group_record(Group("g", 0, generation=(1 << 31) - 2)))
    assert [group.generation for group in replay.groups()] == [(1 << 31) - 2]


@pytest.mark.parametrize("protocol_type", ["consumer", None])
def test_a_group_comes_back_as_it_was_written(protocol_type: str | None) -> None:
    group = Group("g", 3, GroupState.STABLE, 70, 5, protocol_type, "range")
    for name in ("b", "a"):
        group.add(GroupMember(name, f"i-{name}", "c", "h", 30, 20, (("range", name.encode()),), assignment=b"all"))
    replay = GroupReplay(3)
    replay.apply(*group_record(group))
    (found,) = replay.groups()
    assert (found.group_id, found.partition, found.state, found.state_since_ms) == ("g", 3, GroupState.STABLE, 70)
    assert (found.generation, found.protocol_type, found.protocol) == (5, protocol_type, "range")
    assert (found.leader_id, found.static_ids) == ("b", {"i-b": "b", "i-a": "a"})
    assert [(m.member_id, m.client_id, m.client_host, m.session_timeout_ms) for m in found.members.values()] == [
        ("b", "c", "h", 20),
        ("a", "c", "h", 20),
    ]
    assert [(m.metadata_for("range"), m.metadata_for("other"), m.assignment) for m in found.members.values()] == [
        (b"b", b"", b"all"),
        (b"a", b"", b"all"),
    ]
    assert not any(member.is_new or member.is_waiting for member in found.members.values())


def test_a_member_without_a_rebalance_timeout_has_its_session_timeout_for_it() -> None:
    group = Group("g", 0, GroupState.STABLE, generation=1, protocol_type="consumer", protocol="range")
    for name, rebalance_ms in (("old", -1), ("zero", 0), ("new", 30)):
        group.add(GroupMember(name, None, "c", "h", rebalance_ms, 20, (("range", b""),)))
    replay = GroupReplay(0)
    replay.apply(*group_record(group))
    (found,) = replay.groups()
    assert {member.member_id: member.rebalance_timeout_ms for member in found.members.values()} == {
        "old": 20,
        "zero": 0,
        "new": 30,
    }


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


async def test_offsets_that_cannot_be_removed_now_stay_and_are_named(caplog: pytest.LogCaptureFixture) -> None:
    bench = Coordinated()
    group = await bench.begin()
    group.offsets["t", 0] = group.offsets["u", 0] = at(5)
    bench.log.failure = ErrorCode.NOT_ENOUGH_REPLICAS
    with caplog.at_level(logging.WARNING):
        await bench.groups.on_topic_deleted("t")
        bench.groups._now_ms = lambda: 1 << 50
        await bench.groups.expire_group(group)
    assert [line.message for line in caplog.records] == [
        "offsets of a deleted topic remain",
        "expired offsets were not removed",
    ]
    assert set(group.offsets) == {("t", 0), ("u", 0)}
    assert bench.groups.find("g") is group


async def test_only_old_clients_commits_may_leave_the_group_unnamed() -> None:
    bench = Coordinated()
    await bench.begin()
    unnamed = bench.groups.find_or_create("", may_be_unnamed=True)
    assert bench.groups.find("", may_be_unnamed=True) is unnamed
    for refused in (bench.groups.check_owned, bench.groups.find, bench.groups.find_or_create):
        with pytest.raises(KafkaError, match="INVALID_GROUP_ID"):
            refused("")
    bench.groups.check_owned("g")


async def test_a_partition_is_loaded_again_in_a_later_epoch_only() -> None:
    bench = Coordinated()
    group = await bench.begin()
    bench.groups.on_elected(0, 1)
    bench.groups.on_elected(0, 0)
    assert bench.groups.find("g") is group
    bench.groups.on_elected(0, 2)
    await bench.groups.until_loaded(1)
    assert bench.groups.find("g") is None


@pytest.mark.parametrize(
    ("state", "expected"),
    [
        (GroupState.STABLE, ErrorCode.NON_EMPTY_GROUP),
        (GroupState.PREPARING_REBALANCE, ErrorCode.NON_EMPTY_GROUP),
        (GroupState.DEAD, ErrorCode.GROUP_ID_NOT_FOUND),
    ],
)
async def test_only_an_empty_group_can_be_deleted(state: GroupState, expected: ErrorCode) -> None:
    bench = Coordinated()
    group = await bench.begin()
    group.state = state
    for name, code in (("g", expected), ("absent", ErrorCode.GROUP_ID_NOT_FOUND)):
        with pytest.raises(KafkaError) as refused:
            await bench.groups.delete(name)
        assert refused.value.code is code
    assert not bench.log.batches


async def test_a_group_with_an_id_given_out_or_a_commit_in_progress_does_not_expire() -> None:
    bench = Coordinated()
    group = await bench.begin()
    group.generation = 1
    group.pending["m"] = timer = PatientTimer(60, lambda: None)
    await bench.groups.expire_group(group)
    timer.cancel()
    group.pending.clear()
    commit = bench.commit(group, 0, 10)
    await asyncio.sleep(0)
    written = len(bench.log.batches)
    await bench.groups.expire_group(group)
    assert len(bench.log.batches) == written == 1, "nothing but the commit"
    bench.log.acknowledged[0].set()
    await commit
    assert bench.groups.all() == [group]


async def test_a_group_belongs_to_the_partition_that_its_id_gives() -> None:
    bench = Coordinated()
    with pytest.raises(KafkaError, match="NOT_COORDINATOR"):
        bench.groups.check_owned("g")
    await bench.begin()
    bench.groups.check_owned("g")
    bench.groups._partition_count = lambda: 0
    with pytest.raises(KafkaError, match="NOT_COORDINATOR"):
        bench.groups.check_owned("g")
