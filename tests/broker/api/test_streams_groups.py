"""Heartbeats of streams groups at a real broker: internal topics are created in the client's name."""

from __future__ import annotations

import asyncio
from typing import Any

from parley import Broker
from parley.broker.coordinators.groups.streams.internal_topics import ERRORS_MAX, InternalTopics
from parley.broker.coordinators.groups.streams.topology import InternalTopic
from parley.broker.network.request_context import RequestContext
from parley.broker.runtime.tasks import TaskSet
from parley.protocol.client import Client
from parley.protocol.errors import ErrorCode, KafkaError
from parley.protocol.messages.streams_groups import StreamsGroupHeartbeatRequest, StreamsGroupHeartbeatResponse
from parley.protocol.messages.topics import CreateTopicsRequest, CreateTopicsResponse
from tests.broker.coordinators.groups.consumer.bench import context
from tests.broker.coordinators.groups.streams.bench import said, subtopology, topology

POLL_S = 0.01


def application(group: str, **config: str) -> StreamsGroupHeartbeatRequest.Topology:
    """Return a topology whose only store has a changelog with these settings."""
    found = topology(subtopology("0", ["input"], changelogs=(f"{group}-store-changelog",)))
    make = StreamsGroupHeartbeatRequest.KeyValue
    for changelog in found.subtopologies[0].state_changelog_topics:
        changelog.topic_configs = [make(key=key.replace("_", "."), value=value) for key, value in config.items()]
    return found


class Member:
    """A member that sends heartbeats as it is told."""

    def __init__(self, client: Client, group: str) -> None:
        self._client, self._group, self._epoch = client, group, 0

    async def beat(self, **fields: Any) -> StreamsGroupHeartbeatResponse:
        request = StreamsGroupHeartbeatRequest(
            group_id=self._group, member_id="m", member_epoch=self._epoch, endpoint_information_epoch=-1, **fields
        )
        response: StreamsGroupHeartbeatResponse = await self._client.send(
            request, node=await self._client.coordinator(self._group)
        )
        if not response.error_code:
            self._epoch = response.member_epoch
        return response

    async def join(self, wanted: StreamsGroupHeartbeatRequest.Topology) -> StreamsGroupHeartbeatResponse:
        owned: dict[str, Any] = {"active_tasks": [], "standby_tasks": [], "warmup_tasks": []}
        return await self.beat(topology=wanted, process_id="p", rebalance_timeout_ms=1000, **owned)


def details(response: StreamsGroupHeartbeatResponse) -> str:
    return " ".join(each.status_detail for each in response.status or ())


async def test_a_heartbeat_has_the_internal_topics_created_or_says_why_not() -> None:
    settings = {
        "group.streams.initial.rebalance.delay.ms": "0",
        "group.streams.assignment.interval.ms": "0",
        "num.partitions": "2",
    }
    async with Broker(settings) as broker, Client(broker.bootstrap_servers) as client:
        make = CreateTopicsRequest.CreatableTopic
        source = make(name="input", num_partitions=2, replication_factor=1, assignments=[], configs=[])
        await client.send(CreateTopicsRequest(topics=[source]))

        member = Member(client, "good")
        response = await member.join(application("good", cleanup_policy="compact", retention_ms="1000"))
        assert details(response) == "Internal topics are missing: good-store-changelog"
        while not said(response.active_tasks):
            await asyncio.sleep(POLL_S)
            response = await member.beat()
        assert said(response.active_tasks) == {"0": [0, 1]}
        (found,) = (await client.metadata(["good-store-changelog"])).topics
        assert len(found.partitions) == 2

        member = Member(client, "bad")
        response = await member.join(application("bad", cleanup_policy="nonsense"))
        while "Creation failed" not in details(response):
            await asyncio.sleep(POLL_S)
            response = await member.beat()
        assert "bad-store-changelog (" in details(response)
        for wrong in ("__consumer_offsets", "a b"):
            refused = await Member(client, "wrong").join(topology(subtopology("0", [wrong])))
            assert refused.error_code == ErrorCode.STREAMS_INVALID_TOPOLOGY


async def test_a_creation_is_not_repeated_while_it_runs_or_has_just_failed() -> None:
    asked: list[list[str]] = []
    now_s = 0.0
    go_on = asyncio.Event()

    async def create(context: RequestContext, request: CreateTopicsRequest) -> CreateTopicsResponse:
        asked.append([topic.name for topic in request.topics])
        await go_on.wait()
        raise KafkaError(ErrorCode.TOPIC_AUTHORIZATION_FAILED, "no right")

    tasks = TaskSet()
    topics = InternalTopics(create, tasks, lambda: now_s, lambda: 1000)
    wanted = [InternalTopic("a", 1, 0, ()), InternalTopic("b", 1, 0, ())]
    for _ in range(3):
        topics.begin(context(0), wanted[:1], 10_000)
        await asyncio.sleep(0)
    topics.begin(context(0), wanted, 10_000)
    await asyncio.sleep(0)
    assert asked == [["a"], ["b"]]
    go_on.set()
    while len(topics.errors(["a", "b"])) < 2:  # noqa: ASYNC110
        await asyncio.sleep(0)
    assert topics.errors(["a", "c"]) == {"a": "no right"}
    topics.begin(context(0), wanted, 10_000)
    await asyncio.sleep(0)
    assert len(asked) == 2
    now_s = 10.0
    assert topics.errors(["a"]) == {}
    for number in range(ERRORS_MAX + 5):
        topics.begin(context(0), [InternalTopic(f"t{number}", 1, 0, ())], 10_000)
        if number % 100 == 0:
            await asyncio.sleep(0)
    for _ in range(10):
        await asyncio.sleep(0)
    assert len(topics.errors([f"t{number}" for number in range(ERRORS_MAX + 5)])) <= ERRORS_MAX
    await tasks.close()
