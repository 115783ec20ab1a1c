"""Requests that name the same resource many times get one result, and do not block other requests."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from parley import Broker
from parley.broker.api.fetch.sessions import PARTITIONS_MAX
from parley.broker.api.requested_names import SLICE, in_slices, named_twice, once
from parley.broker.controller.configs import ENTRIES_MAX
from parley.protocol.client import Client
from parley.protocol.codec import encode
from parley.protocol.errors import ErrorCode
from parley.protocol.messages.configs import AlterConfigsRequest, DescribeConfigsRequest, IncrementalAlterConfigsRequest
from parley.protocol.messages.fetch import FetchRequest
from parley.protocol.messages.group_offsets import OffsetFetchRequest
from parley.protocol.messages.groups import DeleteGroupsRequest, DescribeGroupsRequest, FindCoordinatorRequest
from parley.protocol.messages.metadata import DescribeTopicPartitionsRequest, MetadataRequest
from parley.protocol.messages.offsets import ListOffsetsRequest, OffsetForLeaderEpochRequest
from parley.protocol.messages.producers import DescribeProducersRequest
from parley.protocol.messages.topics import (
    CreatePartitionsRequest,
    CreateTopicsRequest,
    DeleteRecordsRequest,
    DeleteTopicsRequest,
)
from parley.protocol.messages.transactions import AddPartitionsToTxnRequest, DescribeTransactionsRequest
from parley.protocol.schema import Request

TIMES = 15_000
ANSWER_BYTES_MAX = 50_000
"""More than any one thing below takes, and a few bytes for each naming."""


def made(cls: type[Any], **values: Any) -> Any:
    """Return a message or a part of one, with all other fields at their defaults."""
    one = cls.blank()
    for name, value in values.items():
        assert hasattr(one, name)
        setattr(one, name, value)
    return one


CONFIG = {"resource_type": 2, "resource_name": "t"}
LISTED = made(ListOffsetsRequest.ListOffsetsPartition, timestamp=-1)
BY_TIME = made(ListOffsetsRequest.ListOffsetsPartition, timestamp=1)
FETCHED = made(FetchRequest.FetchPartition, partition_max_bytes=1)
EPOCH = made(OffsetForLeaderEpochRequest.OffsetForLeaderPartition)
ADDED = made(AddPartitionsToTxnRequest.AddPartitionsToTxnTopic, name="t", partitions=[0])
NAMINGS: list[tuple[type[Any], int, str, Any]] = [
    (MetadataRequest, 12, "topics", made(MetadataRequest.MetadataRequestTopic, name="t")),
    (MetadataRequest, 12, "topics", made(MetadataRequest.MetadataRequestTopic, name="none")),
    (DescribeTopicPartitionsRequest, 0, "topics", made(DescribeTopicPartitionsRequest.TopicRequest, name="t")),
    (DescribeConfigsRequest, 4, "resources", made(DescribeConfigsRequest.DescribeConfigsResource, **CONFIG)),
    (AlterConfigsRequest, 2, "resources", made(AlterConfigsRequest.AlterConfigsResource, **CONFIG)),
    (
        IncrementalAlterConfigsRequest,
        1,
        "resources",
        made(IncrementalAlterConfigsRequest.AlterConfigsResource, **CONFIG),
    ),
    (ListOffsetsRequest, 7, "topics", made(ListOffsetsRequest.ListOffsetsTopic, name="t", partitions=[LISTED])),
    (ListOffsetsRequest, 7, "topics", made(ListOffsetsRequest.ListOffsetsTopic, name="t", partitions=[BY_TIME])),
    (
        OffsetForLeaderEpochRequest,
        4,
        "topics",
        made(OffsetForLeaderEpochRequest.OffsetForLeaderTopic, topic="t", partitions=[EPOCH]),
    ),
    (FetchRequest, 12, "topics", made(FetchRequest.FetchTopic, topic="t", partitions=[FETCHED])),
    (FetchRequest, 4, "topics", made(FetchRequest.FetchTopic, topic="none", partitions=[FETCHED])),
    (OffsetFetchRequest, 8, "groups", made(OffsetFetchRequest.OffsetFetchRequestGroup, group_id="g", topics=None)),
    (
        OffsetFetchRequest,
        7,
        "topics",
        made(OffsetFetchRequest.OffsetFetchRequestTopic, name="t", partition_indexes=[0]),
    ),
    (FindCoordinatorRequest, 4, "coordinator_keys", "g"),
    (DescribeGroupsRequest, 5, "groups", "g"),
    (DescribeTransactionsRequest, 0, "transactional_ids", "x"),
    (
        AddPartitionsToTxnRequest,
        5,
        "transactions",
        made(AddPartitionsToTxnRequest.AddPartitionsToTxnTransaction, transactional_id="x", topics=[ADDED]),
    ),
    (AddPartitionsToTxnRequest, 3, "v3_and_below_topics", ADDED),
    (DeleteGroupsRequest, 2, "groups_names", "g"),
    (
        DescribeProducersRequest,
        0,
        "topics",
        made(DescribeProducersRequest.TopicRequest, name="t", partition_indexes=[0]),
    ),
    (
        DeleteRecordsRequest,
        2,
        "topics",
        made(
            DeleteRecordsRequest.DeleteRecordsTopic,
            name="t",
            partitions=[made(DeleteRecordsRequest.DeleteRecordsPartition)],
        ),
    ),
    (CreateTopicsRequest, 7, "topics", made(CreateTopicsRequest.CreatableTopic, name="n", num_partitions=1)),
    (CreatePartitionsRequest, 3, "topics", made(CreatePartitionsRequest.CreatePartitionsTopic, name="t", count=5)),
    (DeleteTopicsRequest, 5, "topic_names", "t"),
]


def request(cls: type[Any], field: str, things: list[Any]) -> Request:
    values: dict[str, Any] = {field: things}
    if cls in (FetchRequest, ListOffsetsRequest, OffsetForLeaderEpochRequest):
        values["replica_id"] = -1
    if cls is FetchRequest:
        values |= {"session_epoch": -1, "max_bytes": 1}
    if cls is OffsetFetchRequest and field == "topics":
        values["group_id"] = "g"
    return made(cls, **values)  # type: ignore[no-any-return]


@pytest.mark.slow
async def test_a_resource_named_several_times_has_one_result() -> None:
    async with Broker() as broker, Client(broker.bootstrap_servers) as client:
        topic = made(CreateTopicsRequest.CreatableTopic, name="t", num_partitions=3, replication_factor=1)
        await client.send(made(CreateTopicsRequest, topics=[topic]))
        await client.send(made(FindCoordinatorRequest, coordinator_keys=["g"]))
        for cls, version, field, thing in NAMINGS:
            answer = await client.send(request(cls, field, [thing] * TIMES), version=version)
            size = len(encode(answer, version))
            assert size < ANSWER_BYTES_MAX, f"{cls.__name__} v{version} answers {size} bytes"


async def test_a_new_topic_with_more_entries_than_there_are_keys_is_refused_alone() -> None:
    async with Broker() as broker, Client(broker.bootstrap_servers) as client:
        entry = made(CreateTopicsRequest.CreatableTopicConfig, name="retention.ms", value="1")
        topics = [
            made(CreateTopicsRequest.CreatableTopic, name=name, num_partitions=1, replication_factor=1, configs=configs)
            for name, configs in (("few", [entry]), ("many", [entry] * (ENTRIES_MAX + 1)))
        ]
        results = (await client.send(made(CreateTopicsRequest, topics=topics))).topics
        assert {result.name: result.error_code for result in results} == {
            "few": ErrorCode.NONE,
            "many": ErrorCode.INVALID_REQUEST,
        }


async def test_configs_named_twice_are_shown_with_all_keys_asked_for() -> None:
    async with Broker() as broker, Client(broker.bootstrap_servers) as client:
        resource = DescribeConfigsRequest.DescribeConfigsResource
        asked = [
            made(
                resource, resource_type=4, resource_name=str(broker.server.identity.broker_id), configuration_keys=[key]
            )
            for key in ("log.dirs", "num.partitions", "log.dirs")
        ]
        (shown,) = (await client.send(made(DescribeConfigsRequest, resources=asked))).results
        assert sorted(entry.name for entry in shown.configs) == ["log.dirs", "num.partitions"]
        everything = made(resource, resource_type=4, resource_name=asked[0].resource_name, configuration_keys=None)
        (shown,) = (await client.send(made(DescribeConfigsRequest, resources=[*asked, everything, *asked]))).results
        assert len(shown.configs) > 100


@pytest.mark.slow
async def test_too_many_partitions_of_one_fetch_are_refused() -> None:
    async with Broker() as broker, Client(broker.bootstrap_servers) as client:
        partitions = [made(FetchRequest.FetchPartition, partition=n) for n in range(PARTITIONS_MAX)]
        topics = [made(FetchRequest.FetchTopic, topic="t", partitions=partitions)]
        full = made(FetchRequest, replica_id=-1, topics=topics, session_epoch=0)
        answer = await client.send(full, version=12)
        assert answer.error_code == ErrorCode.NONE
        one_more = made(FetchRequest.FetchTopic, topic="u", partitions=[FETCHED])
        more = made(FetchRequest, replica_id=-1, topics=[one_more], session_epoch=1, session_id=answer.session_id)
        assert (await client.send(more, version=12)).error_code == ErrorCode.INVALID_REQUEST
        assert broker.server.parts.sessions.sessions == 0
        full.topics.append(one_more)
        assert (await client.send(full, version=12)).error_code == ErrorCode.INVALID_REQUEST


async def test_in_slices_the_loop_serves_others() -> None:
    served = 0

    async def other() -> None:
        nonlocal served
        while True:
            served += 1
            await asyncio.sleep(0)

    task = asyncio.ensure_future(other())
    await asyncio.sleep(0)
    assert await in_slices(str, range(SLICE - 1)) == [str(n) for n in range(SLICE - 1)]
    assert served == 1
    assert await in_slices(str, range(5 * SLICE)) == [str(n) for n in range(5 * SLICE)]
    assert served == 11  # a turn begins in the round of the loop after the one that gave it
    task.cancel()


def test_duplicates_are_found_and_merged() -> None:
    assert named_twice("abca") == {"a"}
    assert once([("t", [1, 2, 1]), ("u", [1]), ("t", [3, 2])], int) == {"t": {1: 1, 2: 2, 3: 3}, "u": {1: 1}}
