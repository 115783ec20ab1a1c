"""Error messages in responses do not contain the name of the error code, which the response has in another field."""

from __future__ import annotations

from typing import Any

from parley import Broker
from parley.protocol.client import Client
from parley.protocol.errors import ErrorCode
from parley.protocol.messages.consumer_groups import ConsumerGroupDescribeRequest, ConsumerGroupHeartbeatRequest
from parley.protocol.messages.producers import DescribeProducersRequest
from parley.protocol.messages.share_groups import (
    AlterShareGroupOffsetsRequest,
    DeleteShareGroupOffsetsRequest,
    DescribeShareGroupOffsetsRequest,
    ShareGroupDescribeRequest,
    ShareGroupHeartbeatRequest,
)
from parley.protocol.messages.share_state import ReadShareGroupStateRequest
from parley.protocol.messages.streams_groups import StreamsGroupHeartbeatRequest
from parley.protocol.schema import ZERO_UUID, Request

ABSENT = "absent"
MEMBER = "00000000-0000-0000-0000-000000000001"


def refused() -> dict[str, tuple[Request, Any]]:
    """Return requests that fail, each with a function that gets the part of the response with the error."""
    offsets = DescribeShareGroupOffsetsRequest.DescribeShareGroupOffsetsRequestGroup(group_id="", topics=None)
    state = ReadShareGroupStateRequest.ReadStateData(
        topic_id=ZERO_UUID, partitions=[ReadShareGroupStateRequest.PartitionData(partition=0, leader_epoch=0)]
    )
    producers = DescribeProducersRequest.TopicRequest(name=ABSENT, partition_indexes=[0])
    return {
        "share heartbeat": (
            ShareGroupHeartbeatRequest(group_id=ABSENT, member_id=MEMBER, member_epoch=5),
            lambda response: response,
        ),
        "share describe": (ShareGroupDescribeRequest(group_ids=[ABSENT]), lambda response: response.groups[0]),
        "share offsets": (DescribeShareGroupOffsetsRequest(groups=[offsets]), lambda response: response.groups[0]),
        "alter": (AlterShareGroupOffsetsRequest(group_id="", topics=[]), lambda response: response),
        "delete": (DeleteShareGroupOffsetsRequest(group_id=ABSENT, topics=[]), lambda response: response),
        "share state": (
            ReadShareGroupStateRequest(group_id=ABSENT, topics=[state]),
            lambda response: response.results[0].partitions[0],
        ),
        "consumer heartbeat": (
            ConsumerGroupHeartbeatRequest(group_id=ABSENT, member_id=MEMBER, member_epoch=5),
            lambda response: response,
        ),
        "consumer describe": (ConsumerGroupDescribeRequest(group_ids=[ABSENT]), lambda response: response.groups[0]),
        "streams heartbeat": (
            StreamsGroupHeartbeatRequest(
                group_id=ABSENT, member_id=MEMBER, member_epoch=5, endpoint_information_epoch=-1
            ),
            lambda response: response,
        ),
        "producers": (DescribeProducersRequest(topics=[producers]), lambda response: response.topics[0].partitions[0]),
    }


async def test_an_error_message_is_the_message_alone() -> None:
    async with Broker() as broker, Client(broker.bootstrap_servers) as client:
        node = await client.coordinator(ABSENT)
        found = {
            name: error_of(await client.send(request, node=node)) for name, (request, error_of) in refused().items()
        }
    for name, error in found.items():
        code = ErrorCode(error.error_code)
        assert code is not ErrorCode.NONE, name
        assert error.error_message, name
        assert code.name not in error.error_message, name


async def test_share_groups_cannot_continue_at_a_negative_offset() -> None:
    make = AlterShareGroupOffsetsRequest.AlterShareGroupOffsetsRequestTopic
    part = AlterShareGroupOffsetsRequest.AlterShareGroupOffsetsRequestPartition
    partitions = [part(partition_index=index, start_offset=start) for index, start in enumerate((-5, -2, 3))]
    request = AlterShareGroupOffsetsRequest(group_id="g", topics=[make(topic_name=ABSENT, partitions=partitions)])
    async with Broker() as broker, Client(broker.bootstrap_servers) as client:
        response = await client.send(request, node=await client.coordinator("g"))
    assert response.error_code == ErrorCode.NONE
    assert {each.partition_index: each.error_code for each in response.responses[0].partitions} == {
        0: ErrorCode.INVALID_REQUEST,
        1: ErrorCode.INVALID_REQUEST,
        2: ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    }
