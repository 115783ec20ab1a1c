"""Parley's coordinator of streams groups and Apache Kafka's respond alike to any order of requests (KIP-1071)."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any

import pytest

from parley import Broker
from parley.protocol.client import Client
from parley.protocol.errors import ErrorCode
from parley.protocol.messages.consumer_groups import ConsumerGroupDescribeRequest
from parley.protocol.messages.group_offsets import OffsetCommitRequest, OffsetDeleteRequest, OffsetFetchRequest
from parley.protocol.messages.groups import (
    DeleteGroupsRequest,
    FindCoordinatorRequest,
    HeartbeatRequest,
    JoinGroupRequest,
    ListGroupsRequest,
)
from parley.protocol.messages.metadata import MetadataRequest
from parley.protocol.messages.streams_groups import StreamsGroupDescribeRequest, StreamsGroupHeartbeatRequest
from parley.protocol.messages.topics import CreateTopicsRequest
from tests.broker.coordinators.groups.streams import bench
from tests.broker.coordinators.groups.streams.bench import ids, said, subtopology, topic, topology
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
TOPICS = {"t": 4, "u": 4, "v": 3}
LONG_MS = 1_800_000
"""Timeouts that do not expire during the test."""
SETTINGS = {
    "group.streams.assignment.interval.ms": "0",
    "group.streams.initial.rebalance.delay.ms": "0",
    "group.streams.session.timeout.ms": str(LONG_MS),
    "group.streams.max.session.timeout.ms": str(LONG_MS),
    "group.streams.max.size": "4",
}

Tasks = dict[str, list[int]]


def topologies(group: str) -> dict[str, StreamsGroupHeartbeatRequest.Topology]:
    """Return topologies of an application: with internal topics, joined topics, missing topics, and invalid ones."""
    r, store = f"{group}-r", f"{group}-store"
    counts = (
        subtopology("0", ["t"], sinks=(r,)),
        subtopology("1", ["u"], repartitions=(topic(r),), changelogs=(store,), together=True),
    )
    return {
        "counts": topology(*counts, epoch=2),
        "older": topology(*counts, epoch=1),
        "newer": topology(*counts, epoch=3),
        "plain": topology(subtopology("0", ["t"]), subtopology("1", ["v"]), epoch=2),
        "unequal": topology(subtopology("0", ["t", "v"], together=True), epoch=2),
        "missing": topology(subtopology("0", ["t", "none"]), epoch=2),
        "fixed": topology(
            subtopology("0", ["t"], sinks=(r,)),
            subtopology("1", ["u"], repartitions=(topic(r, 3),), together=True),
            epoch=2,
        ),
        "loop": topology(subtopology("0", [], sinks=(r,), repartitions=(topic(r),)), epoch=2),
        "internal": topology(subtopology("0", ["__consumer_offsets"]), epoch=2),
        "illegal": topology(subtopology("0", ["a b"]), epoch=2),
        "no sources": topology(subtopology("0", [], changelogs=(store,)), epoch=2),
        "negative": topology(subtopology("0", ["t"]), epoch=-1),
        "twice": topology(subtopology("0", ["t"]), subtopology("0", ["t"]), epoch=2),
    }


GOOD = ("counts", "plain")


@dataclass
class Slot:
    """A client of the script, and its state."""

    name: str
    member_id: str = ""
    epoch: int = 0
    earlier: list[int] = field(default_factory=list)
    active: Tasks = field(default_factory=dict)
    standby: Tasks = field(default_factory=dict)


class Script:
    """A random order of requests about one group; the same seed gives the same requests.

    Which of several equal members gets a task depends on the order of Java's hash tables. So the script compares only
    epochs, states, errors, numbers of tasks, and whether each task has an owner.
    """

    def __init__(self, client: Client, seed: int) -> None:
        self.client, self.rng = client, Random(seed)
        self.group = f"s-{seed}"
        self.topologies = topologies(self.group)
        self.usual = self.rng.choice([*GOOD, *GOOD, "unequal", "missing", "fixed"])
        self.slots = [Slot(f"m{each}") for each in range(5)]
        self.joins = 0

    async def transcript(self) -> list[object]:
        find = FindCoordinatorRequest(key_type=0, coordinator_keys=[self.group])
        await self._send(find, 4, lambda response: response.coordinators[0].error_code)
        steps = [self.beat_all] * 10 + [self.join] * 6 + [self.leave] * 2
        steps += [self.wrong, self.foreign, self.commit, self.forget, self.delete]
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

    async def join(self, slot: Slot) -> object:
        """Join, or join again; sometimes with another topology."""
        kind = self.usual if self.rng.random() < 0.8 else self.rng.choice(sorted(self.topologies))
        if not slot.epoch:
            self.joins += 1
            slot.member_id = f"{slot.name}-{self.joins:03}"
        response = await self._beat(
            slot.member_id,
            0,
            topology=self.topologies[kind],
            process_id=f"p{int(slot.name[1:]) % 3}",
            rebalance_timeout_ms=LONG_MS,
            active_tasks=[],
            standby_tasks=[],
            warmup_tasks=[],
        )
        self._note(slot, response)
        await self._until_created(response)
        return kind, self._shown(response)

    async def _until_created(self, response: Any) -> None:
        """Wait until the internal topics exist, and the coordinator knows them."""
        if not any(status.status_code == 3 for status in response.status or ()):
            return
        names = [f"{self.group}-r", f"{self.group}-store"]
        make = MetadataRequest.MetadataRequestTopic
        request = MetadataRequest(topics=[make(name=name) for name in names], allow_auto_topic_creation=False)
        await until(
            lambda found: all(each.error_code == ErrorCode.NONE for each in found.topics),
            lambda: self.client.send(request, version=12),
            who=f"{self.group}: {request}",
        )
        await asyncio.sleep(0.3)

    async def beat_all(self, slot: Slot) -> object:
        """Let every member send heartbeats until nothing changes, so that it does not matter whose tasks moved."""
        shown: object = None
        for _ in range(8):
            for each in self.slots:
                if each.epoch:
                    response = await self._beat(
                        each.member_id,
                        each.epoch,
                        active_tasks=ids(each.active),
                        standby_tasks=ids(each.standby),
                        warmup_tasks=[],
                    )
                    if each is slot:
                        shown = ErrorCode(response.error_code).name
                    self._note(each, response)
                    await self._until_created(response)
        return shown

    def _note(self, slot: Slot, response: Any) -> None:
        if response.error_code:
            slot.epoch, slot.earlier, slot.active, slot.standby = 0, [], {}, {}
            return
        if response.member_epoch != slot.epoch:
            slot.earlier = [*slot.earlier, slot.epoch][-2:]
            slot.epoch = response.member_epoch
        if response.active_tasks is not None:
            slot.active, slot.standby = said(response.active_tasks) or {}, said(response.standby_tasks) or {}

    async def leave(self, slot: Slot) -> object:
        response = await self._beat(slot.member_id or "unknown", -1)
        slot.epoch, slot.earlier, slot.active, slot.standby = 0, [], {}, {}
        return self._shown(response)

    async def wrong(self, slot: Slot) -> object:
        """Send an invalid request of a member."""
        member, epoch = slot.member_id or "x", max(slot.epoch, 1)
        none: Mapping[str, Any] = {"active_tasks": [], "standby_tasks": [], "warmup_tasks": []}
        joins = {**none, "rebalance_timeout_ms": 5, "topology": self.topologies["counts"]}
        kinds: list[tuple[str, int, Mapping[str, Any]]] = [
            (member, epoch + 7, {}),
            ("unknown", epoch, {}),
            (member, -2, {}),
            (member, -3, {}),
            ("", epoch, {}),
            (member, 0, none),
            (member, 0, {**joins, "topology": None}),
            (member, 0, {**joins, "rebalance_timeout_ms": -1}),
            (member, 0, {**joins, "active_tasks": ids({"0": [0]})}),
            (member, 0, {**joins, "instance_id": "i"}),
            (member, 0, {**joins, "rack_id": ""}),
            (member, epoch, {"active_tasks": []}),
            (member, epoch, {"topology": self.topologies["counts"]}),
            (member, epoch, {**none, "warmup_tasks": ids({"0": [0]})}),
            (member, epoch, {"task_offsets": []}),
            (member, epoch, {**none, "active_tasks": ids({"9": [0]})}),
            (member, epoch, {**none, "active_tasks": ids({"0": [99]})}),
        ]
        number = self.rng.randrange(len(kinds))
        return number, self._shown(await self._beat(*kinds[number][:2], **kinds[number][2]))

    async def _beat(self, member_id: str, epoch: int, **fields: Any) -> Any:
        request = StreamsGroupHeartbeatRequest(
            group_id=self.group, member_id=member_id, member_epoch=epoch, endpoint_information_epoch=-1, **fields
        )
        return await self._send(request, 0)

    def _shown(self, response: Any) -> object:
        code = ErrorCode(response.error_code)
        if code is not ErrorCode.NONE:
            return code.name
        return (
            code.name,
            response.member_id,
            response.member_epoch,
            response.heartbeat_interval_ms,
            [(each.status_code, sorted(re.split(r"[ ,]+", each.status_detail))) for each in response.status],
            response.active_tasks is None,
        )

    # --- Offsets and other protocols ---

    async def commit(self, slot: Slot) -> object:
        """Commit for the first task of a member, in an epoch that may be wrong, or as a client without a member."""
        tasks = sorted((name, index) for name, indexes in slot.active.items() for index in indexes)
        epoch = self.rng.choice([slot.epoch, *slot.earlier, slot.epoch + 1]) if slot.epoch else -1
        kind = OffsetCommitRequest
        partition = tasks[0][1] if tasks else 0
        offset = kind.OffsetCommitRequestPartition(partition_index=partition, committed_offset=7, committed_metadata="")
        read = (
            "v"
            if tasks and tasks[0][0] == "1" and self.usual == "plain"
            else "u"
            if tasks and tasks[0][0] == "1"
            else "t"
        )
        request = kind(
            group_id=self.group,
            member_id=slot.member_id if slot.epoch else "",
            generation_id_or_member_epoch=epoch,
            topics=[kind.OffsetCommitRequestTopic(name=read, partitions=[offset])],
        )
        response = await self._send(request, 9, lambda r: r.topics[0].partitions[0].error_code)
        fetch = OffsetFetchRequest.OffsetFetchRequestGroup(
            group_id=self.group, member_id=slot.member_id or None, member_epoch=epoch, topics=None
        )
        found = await self._send(OffsetFetchRequest(groups=[fetch]), 9, lambda r: r.groups[0].error_code)
        is_current = epoch == slot.epoch or epoch > slot.epoch or not tasks
        code = ErrorCode(response.topics[0].partitions[0].error_code).name
        return code if is_current else None, ErrorCode(found.groups[0].error_code).name

    async def forget(self, slot: Slot) -> object:
        kind = OffsetDeleteRequest
        name = self.rng.choice(["t", "v"])
        if not any(kind_of == "streams" for _, kind_of, _ in await self._listed()):
            return None  # Parley forgets a group of another type with its last offset, Kafka some time later
        partitions = [kind.OffsetDeleteRequestPartition(partition_index=0)]
        request = kind(group_id=self.group, topics=[kind.OffsetDeleteRequestTopic(name=name, partitions=partitions)])
        response = await self._send(request, 0)
        return ErrorCode(response.error_code).name, [
            ErrorCode(each.error_code).name for topic in response.topics for each in topic.partitions
        ]

    async def foreign(self, slot: Slot) -> object:
        """Send requests of the classic protocol while the group has members."""
        kind = JoinGroupRequest
        join = kind(
            group_id=self.group,
            session_timeout_ms=LONG_MS,
            rebalance_timeout_ms=LONG_MS,
            member_id="",
            protocol_type="consumer",
            protocols=[kind.JoinGroupRequestProtocol(name="range", metadata=b"")],
        )
        if not any(each.epoch for each in self.slots):
            return None
        beat = HeartbeatRequest(group_id=self.group, generation_id=1, member_id="x")
        consumer = await self._send(
            ConsumerGroupDescribeRequest(group_ids=[self.group]), 1, lambda r: r.groups[0].error_code
        )
        return (
            ErrorCode((await self._send(join, 3)).error_code).name,
            ErrorCode((await self._send(beat, 4)).error_code).name,
            ErrorCode(consumer.groups[0].error_code).name,
        )

    async def delete(self, slot: Slot) -> object:
        response = await self._send(
            DeleteGroupsRequest(groups_names=[self.group]), 2, lambda response: response.results[0].error_code
        )
        return ErrorCode(response.results[0].error_code).name

    # --- What can be seen ---

    async def state(self) -> object:
        mine = await self._listed()
        request = StreamsGroupDescribeRequest(group_ids=[self.group])
        (group,) = (await self._send(request, 0, lambda r: r.groups[0].error_code)).groups
        if group.error_code:
            return mine, ErrorCode(group.error_code).name
        members = sorted(
            (each.member_id, each.member_epoch, each.topology_epoch, each.process_id) for each in group.members
        )
        targets = sorted(
            (task.subtopology_id, index)
            for each in group.members
            for task in each.target_assignment.active_tasks
            for index in task.partitions
        )
        is_stable = group.group_state == "Stable"
        owned = sorted(
            (task.subtopology_id, index)
            for each in group.members
            for task in each.assignment.active_tasks
            for index in task.partitions
        )
        loads = sorted(sum(len(t.partitions) for t in each.target_assignment.active_tasks) for each in group.members)
        if len({each.process_id for each in group.members}) < len(group.members):
            loads = []  # between programs with different numbers of threads, the order of Java's hash tables decides
        epochs = [each[1] for each in members] if is_stable else None
        ids_only = [(member_id, topology, process) for member_id, _, topology, process in members]
        return (
            mine,
            (group.group_state, group.group_epoch, group.assignment_epoch) if is_stable else group.group_epoch,
            (
                ids_only,
                epochs,
                targets if is_stable else None,
                owned if is_stable else None,
                loads if is_stable else None,
            ),
            self._topology(group.topology),
        )

    async def _listed(self) -> list[tuple[str, str, str]]:
        listed = await self._send(ListGroupsRequest(), 5)
        mine = [each for each in listed.groups if each.group_id == self.group]
        return [(each.group_state, each.group_type, each.protocol_type) for each in mine]

    def _topology(self, found: Any) -> object:
        return found.epoch, [
            (
                each.subtopology_id,
                each.source_topics,
                each.repartition_sink_topics,
                [(topic.name, topic.partitions) for topic in each.state_changelog_topics],
                [(topic.name, topic.partitions) for topic in each.repartition_source_topics],
            )
            for each in found.subtopologies
        ]


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
    compare_with_kafka(theirs, check, script=[Path(__file__), Path(bench.__file__)], label=str(seeds))


def test_any_order_of_requests_has_the_same_responses(tmp_path: Path) -> None:
    compare(tmp_path, range(3))


@pytest.mark.soak
def test_many_orders_of_requests_have_the_same_responses(tmp_path: Path) -> None:
    compare(tmp_path, range(3, 30))
