"""Parley's share coordinator and Apache Kafka's give the same responses to the same requests, valid or not (KIP-932).

The cases run in a fixed order, each with one share partition. Error texts and topic ids are not compared.
"""

from __future__ import annotations

import asyncio
import base64
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from parley import Broker
from parley.protocol.client import Client
from parley.protocol.errors import ErrorCode
from parley.protocol.messages.groups import FindCoordinatorRequest
from parley.protocol.messages.share_state import (
    DeleteShareGroupStateRequest,
    InitializeShareGroupStateRequest,
    ReadShareGroupStateRequest,
    ReadShareGroupStateSummaryRequest,
    WriteShareGroupStateRequest,
)
from parley.protocol.messages.topics import CreateTopicsRequest
from parley.protocol.uuids import UUID
from tests.support.kafka import Kafka4
from tests.support.kafka_answers import compare_with_kafka
from tests.system import test_share_groups_like_kafka
from tests.system.patience import until
from tests.system.test_share_groups_like_kafka import EARLY, SETTINGS

pytestmark = [pytest.mark.slow, pytest.mark.system]

GROUP, OTHER_GROUP = "state", "fenced"
UNKNOWN, ZERO = UUID(int=7), UUID(int=0)
VERSIONS: dict[type[Any], int] = {WriteShareGroupStateRequest: 1, ReadShareGroupStateSummaryRequest: 1}

FENCED_HERE_ONLY = {
    "write, a leader that has not read": "docs/groups.md: a leader can replace only the state that it has read",
    "write, higher state epoch": "the epochs of a group that was made again begin again, so no higher one is known",
}
"""Writes that Parley rejects with FENCED_STATE_EPOCH and Kafka stores, each with the reason."""

Batches = list[tuple[int, int, int, int]]


def initialize(topic: UUID, index: int, state: int, start: int, group: str = GROUP) -> InitializeShareGroupStateRequest:
    kind = InitializeShareGroupStateRequest
    part = kind.PartitionData(partition=index, state_epoch=state, start_offset=start)
    return kind(group_id=group, topics=[kind.InitializeStateData(topic_id=topic, partitions=[part])])


def read(topic: UUID, index: int, leader: int, group: str = GROUP) -> ReadShareGroupStateRequest:
    kind = ReadShareGroupStateRequest
    part = kind.PartitionData(partition=index, leader_epoch=leader)
    return kind(group_id=group, topics=[kind.ReadStateData(topic_id=topic, partitions=[part])])


def summarize(topic: UUID, index: int, leader: int, group: str = GROUP) -> ReadShareGroupStateSummaryRequest:
    kind = ReadShareGroupStateSummaryRequest
    part = kind.PartitionData(partition=index, leader_epoch=leader)
    return kind(group_id=group, topics=[kind.ReadStateSummaryData(topic_id=topic, partitions=[part])])


def write(
    topic: UUID,
    index: int,
    leader: int,
    state: int,
    start: int,
    batches: Batches,
    group: str = GROUP,
    complete: int = 0,
) -> WriteShareGroupStateRequest:
    kind = WriteShareGroupStateRequest
    part = kind.PartitionData(
        partition=index,
        leader_epoch=leader,
        state_epoch=state,
        start_offset=start,
        delivery_complete_count=complete,
        state_batches=[
            kind.StateBatch(first_offset=first, last_offset=last, delivery_state=delivery, delivery_count=count)
            for first, last, delivery, count in batches
        ],
    )
    return kind(group_id=group, topics=[kind.WriteStateData(topic_id=topic, partitions=[part])])


def delete(topic: UUID, index: int, group: str = GROUP) -> DeleteShareGroupStateRequest:
    kind = DeleteShareGroupStateRequest
    part = kind.PartitionData(partition=index)
    return kind(group_id=group, topics=[kind.DeleteStateData(topic_id=topic, partitions=[part])])


def cases(t: UUID) -> Iterator[tuple[str, Any]]:
    """Return each request with its name. ``t`` has two partitions."""
    for label, topic, index, group in (
        ("no group", t, 0, ""),
        ("an unknown topic", UNKNOWN, 0, GROUP),
        ("the topic zero", ZERO, 0, GROUP),
        ("an unknown partition", t, 9, GROUP),
        ("a negative partition", t, -1, GROUP),
        ("nothing stored", t, 0, GROUP),
    ):
        yield f"read, {label}", read(topic, index, 0, group)
        yield f"summary, {label}", summarize(topic, index, 0, group)
        yield f"write, {label}", write(topic, index, 0, 0, 0, [], group)
        yield f"delete, {label}", delete(topic, index, group)
        if label != "nothing stored":
            yield f"initialize, {label}", initialize(topic, index, 1, 0, group)
    yield "initialize, negative epoch", initialize(t, 0, -1, 0)
    yield "initialize, without an offset", initialize(t, 0, 3, -1)
    yield "summary, without an offset", summarize(t, 0, 0)
    yield "initialize, start -2", initialize(t, 0, 4, -2)
    yield "read, start -2", read(t, 0, 2)
    yield "initialize, lower epoch", initialize(t, 0, 2, 5)
    yield "initialize", initialize(t, 0, 5, 5)
    yield "initialize, same epoch", initialize(t, 0, 5, 6)
    yield "read", read(t, 0, 5)
    yield "read, lower epoch", read(t, 0, 3)
    yield "read, without an epoch", read(t, 0, -1)
    yield "write, lower leader epoch", write(t, 0, 4, 5, 5, [])
    yield "write, lower state epoch", write(t, 0, 5, 4, 5, [])
    yield "write", write(t, 0, 5, 5, 6, [(6, 8, 0, 1)])
    yield "write, unchanged start", write(t, 0, 5, 5, -1, [(9, 12, 4, 2)], complete=3)
    yield "write, batches that overlap", write(t, 0, 5, 5, -1, [(10, 12, 2, 1), (11, 14, 4, 2)], complete=3)
    yield "read what was written", read(t, 0, 5)
    yield "write, without epochs", write(t, 0, -1, -1, 7, [], complete=2)
    yield "summary of what was written", summarize(t, 0, 5)
    yield "summary, lower epoch", summarize(t, 0, 1)
    yield "summary, negative epoch", summarize(t, 0, -1)
    yield "write, a lower start", write(t, 0, 5, 5, 2, [])
    yield "read after a lower start", read(t, 0, 6)
    yield "delete", delete(t, 0)
    yield "delete again", delete(t, 0)
    yield "read what was deleted", read(t, 0, 6)
    yield "write to what was deleted", write(t, 0, 6, 5, 2, [])
    yield "initialize, the other partition", initialize(t, 1, 5, 5, OTHER_GROUP)
    yield "read, the other partition", read(t, 1, 6, OTHER_GROUP)
    yield "write, higher state epoch", write(t, 1, 6, 9, 6, [], OTHER_GROUP)
    yield "write, a leader that has not read", write(t, 1, 7, 5, 6, [], OTHER_GROUP)


def shown(value: Any) -> Any:
    """Return a message as plain data, without error texts and topic ids."""
    if isinstance(value, list):
        return [shown(each) for each in value]
    if not type(value).__module__.startswith("parley.protocol.messages"):
        return value
    names = (each for each in type(value).__slots__ if each not in ("error_message", "topic_id", "unknown_tags"))
    return {
        name: ErrorCode(getattr(value, name)).name if name == "error_code" else shown(getattr(value, name))
        for name in names
    }


async def transcript(bootstrap_servers: str) -> dict[str, Any]:
    """Return a broker's response to each case."""
    async with Client(bootstrap_servers) as client:
        topic = CreateTopicsRequest.CreatableTopic(
            name="t", num_partitions=2, replication_factor=1, assignments=[], configs=[]
        )
        made = await client.send(CreateTopicsRequest(topics=[topic], timeout_ms=10_000))
        t: UUID = made.topics[0].topic_id
        text = base64.urlsafe_b64encode(t.bytes).decode().rstrip("=")
        find = FindCoordinatorRequest(key_type=2, coordinator_keys=[f"{GROUP}:{text}:0"])
        await until(
            lambda response: response.coordinators[0].error_code not in EARLY,
            lambda: client.send(find, version=6),
            who=str(find),
        )
        found = {}
        for label, request in cases(t):
            found[label] = await _response(client, request)
        return found


async def _response(client: Client, request: Any) -> Any:
    """Return the response, once the coordinator is loaded and knows the new topic."""

    async def ask() -> Any:
        return shown(await client.send(request, version=VERSIONS.get(type(request), 0)))

    def is_final(response: Any) -> bool:
        codes = {each["error_code"] for result in response["results"] for each in result["partitions"]}
        return codes.isdisjoint(code.name for code in EARLY)

    return await until(is_final, ask, who=str(request))


def test_the_share_coordinator_responds_as_kafkas(tmp_path: Path) -> None:
    async def ours() -> dict[str, Any]:
        async with Broker(SETTINGS) as broker:
            return await transcript(broker.bootstrap_servers)

    def theirs() -> dict[str, Any]:
        kafka = Kafka4(tmp_path, SETTINGS)
        try:
            return asyncio.run(transcript(kafka.bootstrap_servers))
        finally:
            kafka.close()

    def check(answers: dict[str, Any]) -> None:
        for label, their in answers.items():
            if label in FENCED_HERE_ONLY:
                assert [_code(mine[label]), _code(their)] == ["FENCED_STATE_EPOCH", "NONE"], label
            else:
                assert mine[label] == their, label

    mine = asyncio.run(ours())
    compare_with_kafka(theirs, check, script=[Path(__file__), Path(test_share_groups_like_kafka.__file__)])


def _code(response: Any) -> str:
    return str(response["results"][0]["partitions"][0]["error_code"])
