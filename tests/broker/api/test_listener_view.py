"""Metadata for clients if some brokers are down, or do not have the client's listener."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from parley.broker.api.describe_cluster import DescribeClusterApi
from parley.broker.api.failing_brokers import FailingBrokers
from parley.broker.api.metadata import MetadataApi
from parley.broker.api.topic_partitions import TopicPartitionsApi
from parley.broker.metadata.current import Metadata
from parley.broker.metadata.image import MetadataImage
from parley.broker.metadata.types import NO_LEADER, Endpoint, PartitionState
from parley.protocol.errors import ErrorCode
from parley.protocol.messages.metadata import (
    DescribeClusterRequest,
    DescribeTopicPartitionsRequest,
    MetadataRequest,
)
from tests.broker.api.bench import answered, context
from tests.broker.controller.clusters import TOPIC, image_with

LED_BY_ALL = [
    PartitionState((1, 1), (1,), 1),
    PartitionState((2, 1), (2,), 2),
    PartitionState((3, 1), (), NO_LEADER, elr=(3,), last_known_elr=(1,)),
    PartitionState((4, 1), (4,), 4),
]


def image(controller_id: int = 1) -> MetadataImage:
    """Broker 3 is fenced; broker 2 is on another listener; broker 4 is no longer registered."""
    known = image_with(*LED_BY_ALL, brokers=3, fenced=[3])
    brokers = {
        i: replace(broker, endpoints=(Endpoint("OTHER" if i == 2 else "PLAINTEXT", "PLAINTEXT", f"host{i}", 9000),))
        for i, broker in known.brokers.items()
    }
    return replace(known, brokers=brokers, controller_id=controller_id)


class NoCreation:
    """Never creates topics automatically."""

    automatic = False

    async def create_for_client(self, topics: Any) -> Any:
        raise AssertionError


async def described(version: int, controller_id: int = 1) -> Any:
    metadata = Metadata(image(controller_id))
    api = MetadataApi(metadata, NoCreation(), FailingBrokers(metadata, lambda broker: None, lambda: True))
    return await answered(api, context(version), MetadataRequest(topics=None if version else []))


@pytest.mark.parametrize(
    ("version", "elsewhere"), [(5, ErrorCode.LEADER_NOT_AVAILABLE), (6, ErrorCode.LISTENER_NOT_FOUND)]
)
async def test_partitions_tell_why_their_leader_cannot_be_used(version: int, elsewhere: ErrorCode) -> None:
    answer = await described(version)
    (topic,) = answer.topics
    assert [(each.leader_id, each.error_code) for each in topic.partitions] == [
        (1, ErrorCode.NONE),
        (-1, elsewhere),
        (-1, ErrorCode.LEADER_NOT_AVAILABLE),
        (-1, ErrorCode.LEADER_NOT_AVAILABLE),
    ]
    assert [each.offline_replicas for each in topic.partitions] == [[], [2], [3], [4]]
    assert [broker.node_id for broker in answer.brokers] == [1]


async def test_pages_of_partitions_tell_the_same() -> None:
    metadata = Metadata(image())
    api = TopicPartitionsApi(metadata, FailingBrokers(metadata, lambda broker: None, lambda: True))
    asked = DescribeTopicPartitionsRequest.TopicRequest(name=TOPIC)
    answer = await api.describe_topic_partitions(context(0), DescribeTopicPartitionsRequest(topics=[asked]))
    (topic,) = answer.topics
    assert [(each.leader_id, each.error_code) for each in topic.partitions][1:3] == [
        (-1, ErrorCode.LISTENER_NOT_FOUND),
        (-1, ErrorCode.LEADER_NOT_AVAILABLE),
    ]
    assert [each.offline_replicas for each in topic.partitions] == [[], [2], [3], [4]]
    assert [each.eligible_leader_replicas for each in topic.partitions] == [[], [], [3], []]
    assert [each.last_known_elr for each in topic.partitions] == [[], [], [1], []]


@pytest.mark.parametrize("controller_id", [1, 2, 3, 9])
async def test_the_controller_in_a_response_is_reachable(controller_id: int) -> None:
    assert (await described(12, controller_id)).controller_id == 1
    answer = DescribeClusterApi(Metadata(image(controller_id))).describe_cluster(context(0), DescribeClusterRequest())
    assert answer.controller_id == 1


def test_fenced_brokers_are_shown_on_request() -> None:
    api = DescribeClusterApi(Metadata(image()))
    shown = api.describe_cluster(context(2), DescribeClusterRequest(include_fenced_brokers=True)).brokers
    assert [(broker.broker_id, broker.is_fenced) for broker in shown] == [(1, False), (3, True)]
    shown = api.describe_cluster(context(2), DescribeClusterRequest()).brokers
    assert [broker.broker_id for broker in shown] == [1]
