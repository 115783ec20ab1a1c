"""Parley's coordinator of consumer groups and Apache Kafka's respond alike to any order of requests (KIP-848)."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any

import pytest

from parley import Broker
from parley.protocol.client import Client
from parley.protocol.codec import encode_stored
from parley.protocol.errors import ErrorCode
from parley.protocol.messages.consumer_groups import ConsumerGroupDescribeRequest, ConsumerGroupHeartbeatRequest
from parley.protocol.messages.group_offsets import OffsetCommitRequest, OffsetFetchRequest
from parley.protocol.messages.groups import (
    DeleteGroupsRequest,
    DescribeGroupsRequest,
    FindCoordinatorRequest,
    HeartbeatRequest,
    JoinGroupRequest,
    LeaveGroupRequest,
    ListGroupsRequest,
    SyncGroupRequest,
)
from parley.protocol.messages.metadata import MetadataRequest
from parley.protocol.messages.stored import ConsumerProtocolSubscription
from parley.protocol.messages.topics import CreateTopicsRequest
from parley.protocol.uuids import UUID
from tests.support.kafka import Kafka4
from tests.support.kafka_answers import compare_with_kafka
from tests.system.patience import until

pytestmark = [pytest.mark.slow, pytest.mark.system]

STEPS = 30
EARLY = (
    ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
    ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.NOT_COORDINATOR,
)
"""Errors after which a client retries."""
TOPICS = {"t": 7, "u": 4}
LONG_MS = 1_800_000
"""Timeouts that do not expire during the test."""
SETTINGS = {
    "group.consumer.assignors": "range,uniform",
    "group.consumer.assignment.interval.ms": "0",
    "group.consumer.session.timeout.ms": str(LONG_MS),
    "group.consumer.max.session.timeout.ms": str(LONG_MS),
}
"""The assignor range gives the same result everywhere. Without a delay, the assignment depends only on requests."""

Partitions = tuple[tuple[str, int], ...]


@dataclass
class Slot:
    """A client of the script, and its state."""

    name: str
    instance: str | None
    is_classic: bool = False
    member_id: str = ""
    epoch: int = 0
    owned: Partitions = ()
    topics: tuple[str, ...] = ("t",)
    earlier: list[int] = field(default_factory=list)
    """Epochs that it had before."""


class Script:
    """A random order of requests about one group; the same seed gives the same requests."""

    def __init__(self, client: Client, ids: dict[str, UUID], seed: int) -> None:
        self.client, self.ids, self.rng = client, ids, Random(seed)
        self.names = {topic_id: name for name, topic_id in ids.items()}
        self.group = f"g-{seed}"
        self.slots = [Slot(f"m{each}", f"i{each}" if each < 2 else None) for each in range(4)]
        self.slots.append(Slot("c0", "c0", is_classic=True))
        self.restarts = 0

    async def transcript(self) -> list[object]:
        find = FindCoordinatorRequest(key_type=0, coordinator_keys=[self.group])
        await self._send(find, 4, lambda response: response.coordinators[0].error_code)
        transcript: list[object] = []
        for _ in range(STEPS):
            step = self.rng.choice(
                [self.heartbeat] * 8
                + [
                    self.leave,
                    self.wrong,
                    self.commit,
                    self.commit,
                    self.fetch,
                    self.classic,
                    self.classic,
                    self.delete,
                ]
            )
            slot = self.rng.choice(self.slots)
            transcript.append([step.__name__, slot.name, await step(slot), await self.state()])
        return transcript

    async def _send(self, request: Any, version: int, code: Any = lambda response: response.error_code) -> Any:
        return await until(
            lambda response: code(response) not in EARLY,
            lambda: self.client.send(request, version=version),
            who=f"{self.group}: {request}",
        )

    # --- Members of the consumer protocol ---

    async def heartbeat(self, slot: Slot) -> object:
        """Join, or send the next heartbeat; sometimes with another subscription, or all that the member knows."""
        if slot.is_classic:
            return None
        fields: dict[str, Any] = {}
        has_revoked = self.rng.random() < 0.8
        if not slot.epoch:
            slot.topics = self.rng.choice([("t",), ("u",), ("t", "u"), ("t", "none")])
            self.restarts += 1
            slot.member_id = f"{slot.name}-{self.restarts:03}"
        elif self.rng.random() < 0.2:
            slot.topics = self.rng.choice([("t",), ("u",), ("t", "u")])
            fields = {"subscribed_topic_names": list(slot.topics)}
        if not slot.epoch or self.rng.random() < 0.2:
            fields = {"subscribed_topic_names": list(slot.topics), "rebalance_timeout_ms": LONG_MS}
        if slot.epoch and (has_revoked or fields):
            fields["topic_partitions"] = self._reported(slot.owned)
        elif not slot.epoch:
            fields["topic_partitions"] = []
        response = await self._beat(slot, slot.epoch, **fields)
        if response.error_code:
            slot.epoch, slot.owned = 0, ()
            return self._shown(response)
        if response.member_epoch != slot.epoch:
            slot.earlier.append(slot.epoch)
        slot.epoch = response.member_epoch
        if response.assignment is not None:
            slot.owned = self._named(response.assignment.topic_partitions)
        return self._shown(response)

    async def _beat(self, slot: Slot, epoch: int, **fields: Any) -> Any:
        request = ConsumerGroupHeartbeatRequest(
            group_id=self.group, member_id=slot.member_id, instance_id=slot.instance, member_epoch=epoch, **fields
        )
        return await self._send(request, 1)

    def _shown(self, response: Any) -> object:
        assignment = response.assignment
        code = ErrorCode(response.error_code)
        if code is not ErrorCode.NONE:
            return code.name
        owned = None if assignment is None else self._named(assignment.topic_partitions)
        return code.name, response.member_id, response.member_epoch, response.heartbeat_interval_ms, owned

    def _reported(self, owned: Partitions) -> list[ConsumerGroupHeartbeatRequest.TopicPartitions]:
        kind = ConsumerGroupHeartbeatRequest.TopicPartitions
        names = dict.fromkeys(name for name, _ in owned)
        return [kind(topic_id=self.ids[name], partitions=[p for n, p in owned if n == name]) for name in names]

    def _named(self, topics: Any) -> Partitions:
        return tuple(sorted((self.names[each.topic_id], p) for each in topics for p in each.partitions))

    async def leave(self, slot: Slot) -> object:
        """Leave. A static member sometimes leaves temporarily."""
        if not slot.epoch or slot.is_classic:
            return None
        epoch = self.rng.choice([-1, -2]) if slot.instance is not None else -1
        response = await self._beat(slot, epoch)
        slot.epoch, slot.owned = 0, ()
        return self._shown(response)

    async def wrong(self, slot: Slot) -> object:
        """Send an invalid request of a member."""
        kind = self.rng.randrange(8)
        fields: dict[str, Any] = {}
        asked = Slot(slot.name, slot.instance, member_id=slot.member_id or "x", epoch=slot.epoch)
        epoch = slot.epoch + self.rng.choice([1, 7]) if kind == 0 else -3 if kind == 1 else max(slot.epoch, 1)
        if kind == 2:
            asked.member_id = "somebody"
        elif kind == 3:
            asked.instance = "i9" if slot.instance is None else None
            if slot.instance is not None:
                return None
        elif kind == 4:
            epoch, fields = 0, {"subscribed_topic_names": ["t"]}
        elif kind == 5:
            epoch, fields = 0, {"rebalance_timeout_ms": 1, "topic_partitions": []}
        elif kind == 6:
            fields = {"server_assignor": "unknown"}
        elif kind == 7:
            asked.member_id = ""
        if slot.is_classic and kind not in (1, 2, 4, 5, 6, 7):
            return None
        if epoch == max(slot.epoch, 1) and kind not in (2, 3, 6, 7):
            return None
        return self._shown(await self._beat(asked, epoch, **fields))

    # --- Offsets ---

    async def commit(self, slot: Slot) -> object:
        """Commit an offset in the member's epoch, in an earlier or a later one, or not as a member."""
        epoch = self.rng.choice([slot.epoch, *slot.earlier[-2:], slot.epoch + 3, -1])
        kind = OffsetCommitRequest
        index = self.rng.randrange(4)
        request = kind(
            group_id=self.group,
            member_id=slot.member_id if epoch >= 0 else "",
            generation_id_or_member_epoch=epoch,
            topics=[
                kind.OffsetCommitRequestTopic(
                    name="t",
                    partitions=[
                        kind.OffsetCommitRequestPartition(
                            partition_index=index, committed_offset=1, committed_metadata=None
                        )
                    ],
                )
            ],
        )
        response = await self._send(
            request, self.rng.choice([8, 9, 9]), lambda response: response.topics[0].partitions[0].error_code
        )
        return ErrorCode(response.topics[0].partitions[0].error_code).name, index, epoch

    async def fetch(self, slot: Slot) -> object:
        """Read offsets as a member."""
        epoch = self.rng.choice([slot.epoch, slot.epoch + 1])
        group = OffsetFetchRequest.OffsetFetchRequestGroup(
            group_id=self.group, member_id=slot.member_id, member_epoch=epoch, topics=None
        )
        response = await self._send(
            OffsetFetchRequest(groups=[group]), 9, lambda response: response.groups[0].error_code
        )
        return ErrorCode(response.groups[0].error_code).name

    # --- Members of the classic protocol ---

    async def classic(self, slot: Slot) -> object:
        """The classic member joins a group with members of the consumer protocol, or takes its next step."""
        slot = self.slots[-1]
        described = await self._described()
        if described is None or not described.members:
            return None
        if slot.epoch and any(each.member_id == slot.member_id for each in described.members):
            action = self.rng.randrange(4)
            if action == 0 and len(described.members) > 1:
                identity = LeaveGroupRequest.MemberIdentity(member_id=slot.member_id, group_instance_id=slot.instance)
                response = await self._send(LeaveGroupRequest(group_id=self.group, members=[identity]), 5)
                slot.epoch = 0
                return ErrorCode(response.error_code).name, ErrorCode(response.members[0].error_code).name
            if action == 1:
                beat = HeartbeatRequest(
                    group_id=self.group,
                    generation_id=slot.epoch,
                    member_id=slot.member_id,
                    group_instance_id=slot.instance,
                )
                return ErrorCode((await self._send(beat, 4)).error_code).name
            member_id = slot.member_id
        else:
            member_id = ""
        return await self._classic_join(slot, member_id)

    async def _classic_join(self, slot: Slot, member_id: str) -> object:
        kind = JoinGroupRequest
        metadata = encode_stored(ConsumerProtocolSubscription(topics=["t"]), 3)
        request = kind(
            group_id=self.group,
            session_timeout_ms=LONG_MS,
            rebalance_timeout_ms=LONG_MS,
            member_id=member_id,
            group_instance_id=slot.instance,
            protocol_type="consumer",
            protocols=[kind.JoinGroupRequestProtocol(name="range", metadata=metadata)],
        )
        joined = await self._send(request, 9)
        if joined.error_code:
            slot.epoch = 0
            return ErrorCode(joined.error_code).name
        slot.member_id, slot.epoch = joined.member_id, joined.generation_id
        sync = SyncGroupRequest(
            group_id=self.group,
            generation_id=slot.epoch,
            member_id=slot.member_id,
            group_instance_id=slot.instance,
            protocol_type="consumer",
            protocol_name="range",
            assignments=[],
        )
        synced = await self._send(sync, 5)
        return (
            (joined.generation_id, joined.protocol_name, joined.leader == "", len(joined.members)),
            ErrorCode(synced.error_code).name,
            bytes(synced.assignment).hex(),
        )

    # --- Administration ---

    async def delete(self, slot: Slot) -> object:
        """Delete the group, which usually has members."""
        if self.rng.random() < 0.5:
            return None
        response = await self._send(
            DeleteGroupsRequest(groups_names=[self.group]), 2, lambda response: response.results[0].error_code
        )
        return ErrorCode(response.results[0].error_code).name

    async def _described(self) -> Any:
        response = await self._send(
            ConsumerGroupDescribeRequest(group_ids=[self.group]), 1, lambda response: response.groups[0].error_code
        )
        (group,) = response.groups
        return None if group.error_code else group

    async def state(self) -> object:
        """Return the group as ConsumerGroupDescribe, DescribeGroups and ListGroups show it."""
        listed = await self._send(ListGroupsRequest(), 5)
        mine = [each for each in listed.groups if each.group_id == self.group]
        entry = [(each.group_state, each.group_type, each.protocol_type) for each in mine]
        classic = await self._send(
            DescribeGroupsRequest(groups=[self.group]), 6, lambda response: response.groups[0].error_code
        )
        old = ErrorCode(classic.groups[0].error_code).name, classic.groups[0].group_state
        group = await self._described()
        if group is None:
            return entry, old
        members = sorted(
            (
                "c0" if each.instance_id == "c0" else each.member_id,
                each.instance_id or "",
                each.member_epoch,
                sorted(each.subscribed_topic_names),
                each.subscribed_topic_regex or "",
                self._named(each.assignment.topic_partitions),
                self._named(each.target_assignment.topic_partitions),
                each.member_type,
            )
            for each in group.members
        )
        return entry, old, group.group_state, group.group_epoch, group.assignment_epoch, group.assignor_name, members


async def transcripts(bootstrap_servers: str, seeds: range) -> list[list[object]]:
    async with Client(bootstrap_servers) as client:
        topics = [
            CreateTopicsRequest.CreatableTopic(
                name=name, num_partitions=count, replication_factor=1, assignments=[], configs=[]
            )
            for name, count in TOPICS.items()
        ]
        await client.send(CreateTopicsRequest(topics=topics, timeout_ms=10_000))
        described: Any = await client.send(MetadataRequest(topics=None), version=12)
        ids = {topic.name: topic.topic_id for topic in described.topics if topic.name in TOPICS}
        return [await Script(client, ids, seed).transcript() for seed in seeds]


def compare(folder: Path, seeds: range) -> None:
    async def ours() -> list[list[object]]:
        settings = {"offsets.topic.num.partitions": "1", "group.initial.rebalance.delay.ms": "0", **SETTINGS}
        async with Broker(settings) as broker:
            return await transcripts(broker.bootstrap_servers, seeds)

    def theirs() -> list[list[object]]:
        kafka = Kafka4(folder, SETTINGS)
        try:
            return asyncio.run(transcripts(kafka.bootstrap_servers, seeds))
        finally:
            kafka.close()

    def check(wanted: list[list[object]]) -> None:
        for seed, mine, their_steps in zip(seeds, found, wanted, strict=True):
            for step, (my, their) in enumerate(zip(mine, their_steps, strict=True)):
                assert my == their, (seed, step)

    found = asyncio.run(ours())
    compare_with_kafka(theirs, check, script=[Path(__file__)], label=str(seeds))


def test_any_order_of_requests_has_the_same_responses(tmp_path: Path) -> None:
    compare(tmp_path, range(8))


@pytest.mark.soak
def test_many_orders_of_requests_have_the_same_responses(tmp_path: Path) -> None:
    compare(tmp_path, range(8, 200))
