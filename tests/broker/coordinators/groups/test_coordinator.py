"""The group coordinator of a whole broker: what happens to groups if their topic is deleted or cannot be read."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from parley import Broker
from parley.broker.coordinators.decision import ShardState
from parley.broker.coordinators.internal_topic import InternalTopic, ReadBack, partition_of
from parley.broker.metadata.types import ResourceType
from parley.protocol.client import Client
from parley.protocol.errors import ErrorCode, KafkaError
from parley.protocol.messages.configs import IncrementalAlterConfigsRequest
from parley.protocol.messages.group_offsets import OffsetCommitRequest, OffsetDeleteRequest, OffsetFetchRequest
from parley.protocol.messages.groups import (
    DeleteGroupsRequest,
    FindCoordinatorRequest,
    JoinGroupRequest,
    LeaveGroupRequest,
    ListGroupsRequest,
)
from parley.protocol.messages.topics import CreateTopicsRequest, DeleteTopicsRequest

OFFSETS_TOPIC = "__consumer_offsets"


class Groups:
    """Requests of a client about groups. The partition ``t-0`` exists."""

    def __init__(self, broker: Broker, client: Client) -> None:
        self.broker = broker
        self.client = client

    async def create(self, topic: str, partitions: int = 1) -> ErrorCode:
        wanted = CreateTopicsRequest.CreatableTopic(
            name=topic, num_partitions=partitions, replication_factor=1, assignments=[], configs=[]
        )
        answer: Any = await self.client.send(CreateTopicsRequest(topics=[wanted], timeout_ms=5000))
        return ErrorCode(answer.topics[0].error_code)

    async def delete(self, topic: str) -> ErrorCode:
        answer: Any = await self.client.send(DeleteTopicsRequest(topic_names=[topic], timeout_ms=5000), version=5)
        return ErrorCode(answer.responses[0].error_code)

    async def configure(self, topic: str, key: str, value: str) -> ErrorCode:
        """Set an entry of a topic's configuration."""
        entry = IncrementalAlterConfigsRequest.AlterableConfig(name=key, config_operation=0, value=value)
        wanted = IncrementalAlterConfigsRequest.AlterConfigsResource(
            resource_type=ResourceType.TOPIC, resource_name=topic, configs=[entry]
        )
        answer: Any = await self.client.send(IncrementalAlterConfigsRequest(resources=[wanted], validate_only=False))
        return ErrorCode(answer.responses[0].error_code)

    async def find_coordinator(self, group: str = "g") -> ErrorCode:
        answer: Any = await self.client.send(FindCoordinatorRequest(key=group, key_type=0), version=2)
        return ErrorCode(answer.error_code)

    async def commit(
        self,
        offset: int,
        group: str = "g",
        *,
        topic: str = "t",
        member: str = "",
        generation: int = -1,
        kept_ms: int = -1,
    ) -> ErrorCode:
        partition = OffsetCommitRequest.OffsetCommitRequestPartition(
            partition_index=0, committed_offset=offset, committed_metadata=""
        )
        wanted = OffsetCommitRequest.OffsetCommitRequestTopic(name=topic, partitions=[partition])
        request = OffsetCommitRequest(
            group_id=group,
            generation_id_or_member_epoch=generation,
            member_id=member,
            topics=[wanted],
            retention_time_ms=kept_ms,
        )
        answer: Any = await self.client.send(request, version=8 if kept_ms < 0 else 4)
        return ErrorCode(answer.topics[0].partitions[0].error_code)

    async def committed(self, group: str = "g") -> list[int] | ErrorCode:
        """Return the offsets that a group has committed, or the error."""
        answer: Any = await self.client.send(OffsetFetchRequest(group_id=group, topics=None), version=5)
        if answer.error_code:
            return ErrorCode(answer.error_code)
        return [partition.committed_offset for topic in answer.topics for partition in topic.partitions]

    async def delete_offset(self, group: str) -> ErrorCode:
        """Delete the offset that a group committed for ``t-0``."""
        partition = OffsetDeleteRequest.OffsetDeleteRequestPartition(partition_index=0)
        wanted = OffsetDeleteRequest.OffsetDeleteRequestTopic(name="t", partitions=[partition])
        answer: Any = await self.client.send(OffsetDeleteRequest(group_id=group, topics=[wanted]))
        return ErrorCode(answer.topics[0].partitions[0].error_code)

    async def expire(self) -> None:
        """Run one round of expiry."""
        for group in self.broker.server.parts.groups.all():
            await self.broker.server.parts.groups.expire_group(group)

    async def join(self, group: str, member: str = "", *, version: int = 5, metadata: bytes = b"") -> Any:
        offered = JoinGroupRequest.JoinGroupRequestProtocol(name="range", metadata=metadata)
        request = JoinGroupRequest(
            group_id=group,
            session_timeout_ms=10_000,
            rebalance_timeout_ms=10_000,
            member_id=member,
            protocol_type="consumer",
            protocols=[offered],
        )
        return await self.client.send(request, version=version)

    async def leave(self, group: str, member: str) -> ErrorCode:
        answer: Any = await self.client.send(LeaveGroupRequest(group_id=group, member_id=member), version=2)
        return ErrorCode(answer.error_code)

    async def listed(self) -> dict[str, str]:
        """Return the groups with their states."""
        answer: Any = await self.client.send(ListGroupsRequest(), version=4)
        assert answer.error_code == ErrorCode.NONE
        return {group.group_id: group.group_state for group in answer.groups}


@pytest.fixture
async def groups() -> AsyncIterator[Groups]:
    async with (
        Broker(offsets_topic_num_partitions=2) as broker,
        Client(broker.bootstrap_servers) as client,
    ):
        asked = Groups(broker, client)
        assert await asked.create("t") == ErrorCode.NONE
        assert await asked.find_coordinator() == ErrorCode.NONE
        yield asked


async def test_a_commit_waits_for_its_own_partition_only(groups: Groups, monkeypatch: pytest.MonkeyPatch) -> None:
    """A partition that cannot be read does not delay the groups of other partitions."""
    coordinator = groups.broker.server.parts.groups
    read, may_read = InternalTopic.read, asyncio.Event()
    loaded, waits = coordinator.runtime.until_loaded, asyncio.Event()

    async def read_when_allowed(topic: InternalTopic, partition: int, state: ShardState) -> ReadBack:
        if partition == partition_of("g", 2):
            await may_read.wait()
        return await read(topic, partition, state)

    async def wait_until_loaded(timeout_s: float, group_id: str | None = None) -> None:
        waits.set()
        await loaded(timeout_s, group_id)

    assert await groups.commit(5) == ErrorCode.NONE
    monkeypatch.setattr(InternalTopic, "read", read_when_allowed)
    for partition in (0, 1):
        coordinator.runtime.on_resigned(partition)
        coordinator.runtime.on_elected(partition, leader_epoch=9)
    assert partition_of("h", 2) != partition_of("g", 2)
    assert await groups.commit(6, "h") == ErrorCode.NONE
    assert await groups.committed() == ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
    monkeypatch.setattr(coordinator.runtime, "until_loaded", wait_until_loaded)
    commit = asyncio.ensure_future(groups.commit(7))
    await asyncio.wait([commit, asyncio.ensure_future(waits.wait())], return_when=asyncio.FIRST_COMPLETED)
    may_read.set()
    assert await commit == ErrorCode.NONE
    assert await groups.committed() == [7]


async def test_groups_start_again_when_the_offsets_topic_is_deleted(groups: Groups) -> None:
    for group in ("g", "h", "i"):
        assert await groups.commit(5, group) == ErrorCode.NONE
    assert await groups.delete(OFFSETS_TOPIC) == ErrorCode.NONE
    assert await groups.commit(6) == ErrorCode.NOT_COORDINATOR
    assert await groups.listed() == {}
    assert await groups.create("after") == ErrorCode.NONE, "the controller lives"
    assert await groups.find_coordinator() == ErrorCode.NONE
    assert OFFSETS_TOPIC in groups.broker.server.metadata.image.topics
    assert await groups.committed() == []
    assert await groups.commit(7) == ErrorCode.NONE
    assert await groups.committed() == [7]


async def test_a_deleted_topic_that_stays_in_share_groups_is_logged_once(
    groups: Groups, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """It was once logged for each partition of the offsets topic, without the topic's name."""

    async def refuse(*_: object) -> None:
        raise KafkaError(ErrorCode.NOT_COORDINATOR)

    coordinator = groups.broker.server.parts.groups
    assert len(list(coordinator.runtime.states())) == 2
    monkeypatch.setattr(coordinator.runtime, "submit", refuse)
    assert await groups.delete("t") == ErrorCode.NONE
    async with asyncio.timeout(10):
        while not (found := [each for each in caplog.records if "still contain a deleted topic" in each.message]):  # noqa: ASYNC110
            await asyncio.sleep(0.01)
    assert [(each.__dict__["topic"], each.__dict__["shards"]) for each in found] == [("t", 2)]


async def test_members_get_an_error_when_the_offsets_topic_is_deleted(groups: Groups) -> None:
    joined = await groups.join("g", version=2)
    assert joined.error_code == ErrorCode.NONE
    assert await groups.delete(OFFSETS_TOPIC) == ErrorCode.NONE
    assert (await groups.join("g", joined.member_id)).error_code == ErrorCode.NOT_COORDINATOR
    assert await groups.find_coordinator() == ErrorCode.NONE
    assert (await groups.join("g", joined.member_id)).error_code == ErrorCode.UNKNOWN_MEMBER_ID


async def test_a_group_that_was_never_used_is_removed_at_once(groups: Groups) -> None:
    told = await groups.join("abandoned")
    assert told.error_code == ErrorCode.MEMBER_ID_REQUIRED
    assert await groups.listed() == {"abandoned": "Empty"}
    assert await groups.leave("abandoned", told.member_id) == ErrorCode.NONE
    assert await groups.commit(1, "refused", topic="nothing") == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert await groups.commit(1, "stranger", member="x", generation=1) == ErrorCode.ILLEGAL_GENERATION
    assert await groups.listed() == {}


async def test_each_member_of_a_group_that_does_not_exist_is_unknown(groups: Groups) -> None:
    """As in Apache Kafka: the error of the whole response would be one that administrators' clients do not know."""
    assert await groups.leave("none", "m") == ErrorCode.UNKNOWN_MEMBER_ID
    kind = LeaveGroupRequest.MemberIdentity
    request = LeaveGroupRequest(
        group_id="none", members=[kind(member_id="m"), kind(member_id="", group_instance_id="i")]
    )
    answer: Any = await groups.client.send(request, version=5)
    assert answer.error_code == ErrorCode.NONE
    assert [each.error_code for each in answer.members] == [ErrorCode.UNKNOWN_MEMBER_ID] * 2


async def test_groups_with_offsets_or_a_generation_stay_until_they_expire(groups: Groups) -> None:
    assert await groups.commit(1, "offsets") == ErrorCode.NONE
    joined = await groups.join("generation", version=2)
    assert await groups.leave("generation", joined.member_id) == ErrorCode.NONE
    assert await groups.listed() == {"offsets": "Empty", "generation": "Empty"}
    await groups.expire()
    assert await groups.listed() == {"offsets": "Empty"}
    assert await groups.delete_offset("offsets") == ErrorCode.NONE
    assert await groups.listed() == {}


async def test_each_offset_expires_after_the_retention_time(groups: Groups, monkeypatch: pytest.MonkeyPatch) -> None:
    coordinator = groups.broker.server.parts.groups
    now_ms, retention_ms = coordinator._now_ms, 7 * 24 * 60 * 60_000
    assert await groups.create("u") == ErrorCode.NONE
    assert await groups.commit(1) == ErrorCode.NONE
    assert await groups.commit(2, topic="u", kept_ms=2**63 - 1) == ErrorCode.NONE
    for late_ms, left in ((-60_000, [1, 2]), (60_000, [2])):
        monkeypatch.setattr(coordinator, "_now_ms", lambda late_ms=late_ms: now_ms() + retention_ms + late_ms)
        await groups.expire()
        assert await groups.committed() == left
    assert {state.name: count for state, count in coordinator.counts_by_state().items() if count} == {"EMPTY": 1}


async def test_commits_are_flushed_first_if_the_topic_is_configured_so(groups: Groups) -> None:
    server = groups.broker.server
    index = partition_of("g", 2)
    log = server.parts.partitions.find(OFFSETS_TOPIC, index).log
    assert await groups.commit(1) == ErrorCode.NONE
    assert log.recovery_point < log.log_end_offset
    assert await groups.configure(OFFSETS_TOPIC, "flush.messages", "1") == ErrorCode.NONE
    assert await groups.commit(2) == ErrorCode.NONE
    assert log.recovery_point == log.log_end_offset


async def test_commit_metadata_too_large_for_a_record_is_refused(groups: Groups) -> None:
    assert (await groups.join("h", metadata=bytes(1 << 20))).error_code == ErrorCode.MEMBER_ID_REQUIRED
    assert (await groups.join("g", metadata=bytes((1 << 20) + 13))).error_code == ErrorCode.INVALID_REQUEST
    assert "g" not in await groups.listed()


async def test_an_offset_may_be_kept_for_ever(groups: Groups) -> None:
    assert await groups.commit(5, kept_ms=2**63 - 1) == ErrorCode.NONE
    await groups.expire()
    assert await groups.committed() == [5]


async def test_deleting_many_groups_does_not_block_the_loop(groups: Groups) -> None:
    names = [f"g{i}" for i in range(50)]
    for name in names:
        await groups.commit(1, name)
    turns = 0
    deletion = asyncio.ensure_future(groups.client.send(DeleteGroupsRequest(groups_names=names)))
    while not deletion.done():
        await asyncio.sleep(0)
        turns += 1
    assert {group.error_code for group in (await deletion).results} == {0}
    assert turns > len(names)
