"""Parley's coordinator of share groups and Apache Kafka's respond alike to any order of requests (KIP-932)."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any

import pytest

from parley import Broker
from parley.protocol.client import Client
from parley.protocol.errors import ErrorCode
from parley.protocol.messages.consumer_groups import ConsumerGroupDescribeRequest, ConsumerGroupHeartbeatRequest
from parley.protocol.messages.group_offsets import OffsetFetchRequest
from parley.protocol.messages.groups import (
    DeleteGroupsRequest,
    DescribeGroupsRequest,
    FindCoordinatorRequest,
    HeartbeatRequest,
    JoinGroupRequest,
    ListGroupsRequest,
)
from parley.protocol.messages.share_groups import (
    AlterShareGroupOffsetsRequest,
    DeleteShareGroupOffsetsRequest,
    DescribeShareGroupOffsetsRequest,
    ShareGroupDescribeRequest,
    ShareGroupHeartbeatRequest,
)
from parley.protocol.messages.topics import CreateTopicsRequest
from tests.support.kafka import Kafka4
from tests.support.kafka_answers import compare_with_kafka
from tests.system.patience import until

pytestmark = [pytest.mark.slow, pytest.mark.system]

STEPS = 25
EARLY = (
    ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
    ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.NOT_COORDINATOR,
)
"""Errors after which a client retries."""
TOPICS = {"t": 3, "u": 2}
LONG_MS = 1_800_000
"""Timeouts that do not expire during the test."""
SETTINGS = {
    "group.share.assignment.interval.ms": "0",
    "group.share.session.timeout.ms": str(LONG_MS),
    "group.share.max.session.timeout.ms": str(LONG_MS),
    "group.share.max.size": "3",
    "share.coordinator.state.topic.num.partitions": "2",
    "share.coordinator.state.topic.replication.factor": "1",
    "share.coordinator.state.topic.min.isr": "1",
}


@dataclass
class Slot:
    """A client of the script, and its state."""

    name: str
    member_id: str = ""
    epoch: int = 0
    topics: tuple[str, ...] = ("t",)
    earlier: list[int] = field(default_factory=list)


class Script:
    """A random order of requests about one group; the same seed gives the same requests."""

    def __init__(self, client: Client, seed: int) -> None:
        self.client, self.rng = client, Random(seed)
        self.group = f"s-{seed}"
        self.slots = [Slot(f"m{each}") for each in range(4)]
        self.joins = 0

    async def transcript(self) -> list[object]:
        find = FindCoordinatorRequest(key_type=0, coordinator_keys=[self.group])
        await self._send(find, 4, lambda response: response.coordinators[0].error_code)
        steps = (
            [self.heartbeat] * 8 + [self.leave] * 3 + [self.wrong, self.foreign, self.alter, self.forget, self.delete]
        )
        transcript: list[object] = []
        for _ in range(STEPS):
            step, slot = self.rng.choice(steps), self.rng.choice(self.slots)
            transcript.append([step.__name__, slot.name, await step(slot), await self.state()])
        return transcript

    async def _send(self, request: Any, version: int, code: Any = lambda response: response.error_code) -> Any:
        return await until(
            lambda response: code(response) not in EARLY,
            lambda: self.client.send(request, version=version),
            who=f"{self.group}: {request}",
        )

    # --- Members ---

    async def heartbeat(self, slot: Slot) -> object:
        """Join, or send the next heartbeat; sometimes with another subscription, or in an earlier epoch."""
        names = None
        if not slot.epoch:
            self.joins += 1
            slot.member_id = f"{slot.name}-{self.joins:03}"
        if not slot.epoch or self.rng.random() < 0.3:
            slot.topics = self.rng.choice([("t",), ("u",), ("t", "u"), ("t", "none")])
            names = list(slot.topics)
        epoch = self.rng.choice(slot.earlier) if slot.epoch and slot.earlier and self.rng.random() < 0.2 else slot.epoch
        response = await self._beat(slot.member_id, epoch, subscribed_topic_names=names)
        if response.error_code:
            slot.epoch, slot.earlier = 0, []
        elif response.member_epoch != slot.epoch:
            slot.earlier = [*slot.earlier, slot.epoch][-2:]
            slot.epoch = response.member_epoch
        return self._shown(response, is_full=names is not None)

    async def leave(self, slot: Slot) -> object:
        response = await self._beat(slot.member_id or "unknown", -1)
        slot.epoch, slot.earlier = 0, []
        return self._shown(response)

    async def wrong(self, slot: Slot) -> object:
        """Send an invalid request of a member."""
        kind = self.rng.randrange(6)
        member, epoch = slot.member_id or "x", max(slot.epoch, 1)
        fields: dict[str, Any] = {}
        if kind == 0:
            epoch += 7
        elif kind == 1:
            epoch = -2
        elif kind == 2:
            member = "unknown"
        elif kind == 3:
            epoch = 0
        elif kind == 4:
            member = self.rng.choice(["", "m" * 37])
        else:
            epoch, fields = 0, {"subscribed_topic_names": []}
        return kind, self._shown(await self._beat(member, epoch, **fields))

    async def _beat(self, member_id: str, epoch: int, **fields: Any) -> Any:
        request = ShareGroupHeartbeatRequest(group_id=self.group, member_id=member_id, member_epoch=epoch, **fields)
        return await self._send(request, 1)

    def _shown(self, response: Any, *, is_full: bool = False) -> object:
        code = ErrorCode(response.error_code)
        if code is not ErrorCode.NONE:
            return code.name
        # Which of several equal members gets a partition depends on the order of Java's hash tables. So does whether a
        # member's assignment changes; but the response to a full request always has it.
        has_assignment = response.assignment is not None if is_full else None
        return code.name, response.member_id, response.member_epoch, response.heartbeat_interval_ms, has_assignment

    async def foreign(self, slot: Slot) -> object:
        """Send requests of other group protocols."""
        kind = JoinGroupRequest
        join = kind(
            group_id=self.group,
            session_timeout_ms=LONG_MS,
            rebalance_timeout_ms=LONG_MS,
            member_id="",
            group_instance_id="i",
            protocol_type="consumer",
            protocols=[kind.JoinGroupRequestProtocol(name="range", metadata=b"")],
        )
        fetch = OffsetFetchRequest(
            groups=[OffsetFetchRequest.OffsetFetchRequestGroup(group_id=self.group, topics=None)]
        )
        if not await self._listed():
            return None
        beat = HeartbeatRequest(group_id=self.group, generation_id=1, member_id="x")
        new = ConsumerGroupHeartbeatRequest(
            group_id=self.group,
            member_id="c",
            member_epoch=0,
            rebalance_timeout_ms=LONG_MS,
            subscribed_topic_names=["t"],
            topic_partitions=[],
        )
        return (
            ErrorCode((await self._send(join, 9)).error_code).name,
            ErrorCode((await self._send(beat, 4)).error_code).name,
            ErrorCode((await self._send(new, 1)).error_code).name,
            ErrorCode((await self._send(fetch, 9, lambda r: r.groups[0].error_code)).groups[0].error_code).name,
        )

    # --- Administration ---

    async def alter(self, slot: Slot) -> object:
        kind = AlterShareGroupOffsetsRequest
        offsets = [(self.rng.choice(["t", "u", "none"]), self.rng.randrange(4), self.rng.randrange(9))]
        topics = [
            kind.AlterShareGroupOffsetsRequestTopic(
                topic_name=name,
                partitions=[kind.AlterShareGroupOffsetsRequestPartition(partition_index=index, start_offset=offset)],
            )
            for name, index, offset in offsets
        ]
        response = await self._send(kind(group_id=self.group, topics=topics), 0)
        code = ErrorCode(response.error_code).name
        return code, [
            (topic.topic_name, each.partition_index, ErrorCode(each.error_code).name)
            for topic in response.responses
            for each in topic.partitions
        ]

    async def forget(self, slot: Slot) -> object:
        kind = DeleteShareGroupOffsetsRequest
        names = self.rng.choice([["t"], ["u"], ["t", "u"], ["none", "t"]])
        topics = [kind.DeleteShareGroupOffsetsRequestTopic(topic_name=name) for name in names]
        response = await self._send(kind(group_id=self.group, topics=topics), 0)
        code = ErrorCode(response.error_code).name
        return code, sorted((each.topic_name, ErrorCode(each.error_code).name) for each in response.responses)

    async def delete(self, slot: Slot) -> object:
        response = await self._send(
            DeleteGroupsRequest(groups_names=[self.group]), 2, lambda response: response.results[0].error_code
        )
        return ErrorCode(response.results[0].error_code).name

    # --- What can be seen ---

    async def state(self) -> object:
        """Return the group as all requests show it, after its share partitions are initialized."""
        offsets = await self._settled_offsets()
        listed = await self._listed()
        other = await self._send(DescribeGroupsRequest(groups=[self.group]), 6, lambda r: r.groups[0].error_code)
        consumer = await self._send(
            ConsumerGroupDescribeRequest(group_ids=[self.group]), 1, lambda r: r.groups[0].error_code
        )
        codes = [ErrorCode(each.groups[0].error_code).name for each in (other, consumer)]
        response = await self._send(
            ShareGroupDescribeRequest(group_ids=[self.group]), 1, lambda r: r.groups[0].error_code
        )
        (group,) = response.groups
        if group.error_code:
            return listed, codes, offsets, ErrorCode(group.error_code).name
        members = sorted(
            (each.member_id, each.member_epoch, tuple(sorted(each.subscribed_topic_names))) for each in group.members
        )
        assigned = sorted(
            {
                (topic.topic_name, index)
                for each in group.members
                for topic in each.assignment.topic_partitions
                for index in topic.partitions
            }
        )
        if any(each.member_epoch != group.group_epoch for each in group.members):
            assigned = []  # members that lag behind have what the order of Java's hash tables gave them
        return listed, codes, offsets, group.group_state, group.group_epoch, group.assignment_epoch, members, assigned

    async def _listed(self) -> list[tuple[str, str, str]]:
        listed = await self._send(ListGroupsRequest(), 5)
        mine = [each for each in listed.groups if each.group_id == self.group]
        return [(each.group_state, each.group_type, each.protocol_type) for each in mine]

    async def _settled_offsets(self) -> object:
        """Return the offsets, once all partitions that members subscribe to are initialized."""
        response = await self._send(
            ShareGroupDescribeRequest(group_ids=[self.group]), 1, lambda r: r.groups[0].error_code
        )
        topics = {name for each in response.groups[0].members for name in each.subscribed_topic_names if name in TOPICS}
        expected = {(name, index) for name in topics for index in range(TOPICS[name])}
        return await until(
            lambda described: expected <= {(name, index) for name, index, *_ in described[1]},
            self._offsets,
            who=f"{self.group}: the offsets of {expected}",
        )

    async def _offsets(self) -> tuple[str, list[tuple[str, int, int, int, int]]]:
        kind = DescribeShareGroupOffsetsRequest
        request = kind(groups=[kind.DescribeShareGroupOffsetsRequestGroup(group_id=self.group, topics=None)])
        (group,) = (await self._send(request, 1, lambda r: r.groups[0].error_code)).groups
        return ErrorCode(group.error_code).name, sorted(
            (topic.topic_name, each.partition_index, each.start_offset, each.leader_epoch, each.lag)
            for topic in group.topics
            for each in topic.partitions
        )


async def transcripts(bootstrap_servers: str, seeds: range) -> list[list[object]]:
    async with Client(bootstrap_servers) as client:
        make = CreateTopicsRequest.CreatableTopic
        topics = [
            make(name=name, num_partitions=count, replication_factor=1, assignments=[], configs=[])
            for name, count in TOPICS.items()
        ]
        await client.send(CreateTopicsRequest(topics=topics, timeout_ms=10_000))
        return [await Script(client, seed).transcript() for seed in seeds]


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
    compare(tmp_path, range(2))


@pytest.mark.soak
def test_many_orders_of_requests_have_the_same_responses(tmp_path: Path) -> None:
    compare(tmp_path, range(2, 30))
