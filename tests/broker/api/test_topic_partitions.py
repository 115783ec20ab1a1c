"""DescribeTopicPartitions: pages, the cost of a page, and what it waits for."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import cast

from parley.broker.api.failing_brokers import HOLD_S, FailingBrokers
from parley.broker.api.topic_partitions import TopicPartitionsApi
from parley.broker.metadata.current import Metadata
from parley.broker.metadata.image import MetadataImage
from parley.broker.metadata.types import BrokerRegistration, PartitionState, TopicImage
from parley.broker.network.request_context import RequestContext
from parley.broker.security.authorization import Authorization
from parley.broker.security.operations import NOT_REQUESTED, Operation
from parley.broker.security.resources import ResourceType
from parley.protocol.errors import ErrorCode
from parley.protocol.messages.metadata import DescribeTopicPartitionsRequest, DescribeTopicPartitionsResponse
from parley.protocol.uuids import UUID
from tests.broker.api.bench import context
from tests.support.virtual_time import run

Response = DescribeTopicPartitionsResponse
ALLOWED = 1 << Operation.DESCRIBE
"""The operations that the client may perform on a topic that it may describe."""


class Rights:
    """The client may describe the topics in ``visible``. ``checked`` records the topics whose permissions
    were checked."""

    def __init__(self, visible: set[str]) -> None:
        self.visible = visible
        self.checked: list[str] = []

    def may(self, request: RequestContext, operation: Operation, type: ResourceType, name: str) -> bool:
        self.checked.append(name)
        return name in self.visible

    def probe(self, request: RequestContext, operation: Operation, type: ResourceType) -> Callable[[str], bool]:
        return lambda name: self.may(request, operation, type, name)

    def operations(self, request: RequestContext, type: ResourceType, name: str) -> int:
        return ALLOWED


def served(
    topics: dict[str, int], rights: Rights, lost: Callable[[int], float | None] = lambda broker: None
) -> TopicPartitionsApi:
    state = PartitionState((1,), (1,), 1)
    images = {name: TopicImage(name, UUID(int=1), (state,) * count) for name, count in topics.items()}
    brokers = {i: BrokerRegistration(i, 1, UUID(int=i), ()) for i in (1, 2)}
    metadata = Metadata(MetadataImage("test", brokers=brokers, topics=images))
    failing_brokers = FailingBrokers(metadata, lost, lambda: True)
    return TopicPartitionsApi(metadata, failing_brokers, authorization=cast("Authorization", rights))


async def pages(api: TopicPartitionsApi, *names: str, limit: int) -> list[Response]:
    """Request one page after another, up to the last."""
    found: list[Response] = []
    asked = [DescribeTopicPartitionsRequest.TopicRequest(name=name) for name in names]
    request = DescribeTopicPartitionsRequest(topics=asked, response_partition_limit=limit)
    while True:
        found.append(await api.describe_topic_partitions(context(0), request))
        cursor = found[-1].next_cursor
        if cursor is None:
            return found
        request.cursor = DescribeTopicPartitionsRequest.Cursor(
            topic_name=cursor.topic_name, partition_index=cursor.partition_index
        )


def shown(page: Response) -> list[tuple[str | None, list[int]]]:
    return [(topic.name, [each.partition_index for each in topic.partitions]) for topic in page.topics]


def test_a_page_checks_the_rights_of_its_own_topics_only() -> None:
    rights = Rights({"a", "c", "d", "e"})
    api = served({"e": 1, "d": 1, "c": 3, "b": 1, "a": 1}, rights)

    async def story() -> None:
        request = DescribeTopicPartitionsRequest(topics=[], response_partition_limit=3)
        first = await api.describe_topic_partitions(context(0), request)
        assert shown(first) == [("a", [0]), ("c", [0, 1])]
        assert rights.checked == ["a", "b", "c"]
        assert [shown(page) for page in await pages(api, limit=3)] == [
            [("a", [0]), ("c", [0, 1])],
            [("c", [2]), ("d", [0]), ("e", [0])],
        ]

    run(story())


def test_every_named_topic_is_on_one_page_with_its_error_and_its_operations() -> None:
    api = served({"a": 2, "hidden": 1}, Rights({"a", "missing", "no/name"}))

    async def story() -> None:
        first, second = await pages(api, "missing", "hidden", "a", "no/name", limit=4)
        topics = (*first.topics, *second.topics)
        assert [(topic.name, topic.error_code, topic.topic_authorized_operations) for topic in topics] == [
            ("a", ErrorCode.NONE, ALLOWED),
            ("hidden", ErrorCode.TOPIC_AUTHORIZATION_FAILED, NOT_REQUESTED),
            ("missing", ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ALLOWED),
            ("no/name", ErrorCode.INVALID_TOPIC_EXCEPTION, ALLOWED),
        ]

    run(story())


def test_a_page_waits_for_the_decision_about_a_broker_that_has_just_failed() -> None:
    async def story() -> None:
        loop = asyncio.get_running_loop()
        lost_at = loop.time()
        api = served({"a": 1}, Rights({"a"}), lambda broker: lost_at if broker == 2 else None)
        await pages(api, limit=10)
        assert loop.time() - lost_at >= HOLD_S

    run(story())
