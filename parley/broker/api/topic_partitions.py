"""DescribeTopicPartitions: topics page by page, sorted by name (KIP-966).

The cost of a page depends only on its contents: the sorted names of all topics are kept until topics change, and the
client's rights are checked topic by topic until the page is full. Topics that the client may not describe are omitted,
unless the request names them.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TypeAlias

from parley.broker.api.failing_brokers import FailingBrokers
from parley.broker.api.listener_view import ListenerView
from parley.broker.api.metadata import ALL_OPEN, OPENED_MAX_S, HostedLogs, described_partition, is_legal_topic_name
from parley.broker.api.requested_names import SLICE
from parley.broker.metadata.current import Metadata
from parley.broker.metadata.image import MetadataImage
from parley.broker.metadata.topic_names import INTERNAL_TOPICS
from parley.broker.metadata.types import PartitionState, TopicImage
from parley.broker.network.request_context import Handler, RequestContext
from parley.broker.runtime.turns import next_turn
from parley.broker.security.authorization import EVERYONE_MAY, Authorization
from parley.broker.security.operations import NOT_REQUESTED, Operation
from parley.broker.security.resources import ResourceType
from parley.protocol.errors import ErrorCode
from parley.protocol.messages.metadata import DescribeTopicPartitionsRequest, DescribeTopicPartitionsResponse
from parley.protocol.schema import ZERO_UUID

PARTITIONS_PER_RESPONSE_MAX = 2000
"""The maximum number of partitions in one response, even if the client requests more."""

_REFUSED = ErrorCode.TOPIC_AUTHORIZATION_FAILED
_Topic: TypeAlias = DescribeTopicPartitionsResponse.DescribeTopicPartitionsResponseTopic
_Partition: TypeAlias = DescribeTopicPartitionsResponse.DescribeTopicPartitionsResponsePartition
_Cursor: TypeAlias = DescribeTopicPartitionsResponse.Cursor


class TopicPartitionsApi:
    """Handler of DescribeTopicPartitions."""

    def __init__(
        self,
        metadata: Metadata,
        failing_brokers: FailingBrokers,
        *,
        authorization: Authorization = EVERYONE_MAY,
        logs: HostedLogs = ALL_OPEN,
    ) -> None:
        self._metadata = metadata
        self._failing_brokers = failing_brokers
        self._authorization = authorization
        self._logs = logs
        self._sorted: tuple[Mapping[str, TopicImage], list[str]] = ({}, [])

    def routes(self) -> dict[int, Handler]:
        return {DescribeTopicPartitionsRequest.API_KEY: self.describe_topic_partitions}

    async def describe_topic_partitions(
        self, context: RequestContext, request: DescribeTopicPartitionsRequest
    ) -> DescribeTopicPartitionsResponse:
        """Describe one page of the requested topics, or of all topics, starting at the request's cursor. If more pages
        follow, ``next_cursor`` in the response is the cursor of the next page."""
        await self._failing_brokers.settled()
        if self._logs.is_opening:
            await self._logs.until_opened(OPENED_MAX_S)
        image = self._metadata.image
        cursor = request.cursor
        names = self._names_from("" if cursor is None else cursor.topic_name, request, image)
        may_describe = self._test_of_rights(context, is_about_all=not request.topics)
        describe = self._description(context, image)
        room = min(max(1, request.response_partition_limit), PARTITIONS_PER_RESPONSE_MAX)
        page = DescribeTopicPartitionsResponse(topics=[])
        for number, name in enumerate(names, 1):
            if not number % SLICE:
                await next_turn()
            is_refused = not may_describe(name)
            if is_refused and not request.topics:
                continue
            if room <= 0:
                page.next_cursor = _Cursor(topic_name=name, partition_index=0)
                break
            first = max(0, cursor.partition_index) if cursor is not None and cursor.topic_name == name else 0
            topic = _undescribed(name, _REFUSED) if is_refused else describe(name, first, room)
            page.topics.append(topic)
            room -= max(1, len(topic.partitions))  # a topic with an error takes up room in the response, too
            reached = first + len(topic.partitions)
            if topic.error_code == ErrorCode.NONE and reached < len(image.topics[name].partitions):
                page.next_cursor = _Cursor(topic_name=name, partition_index=reached)
                break
        return page

    def _names_from(self, first: str, request: DescribeTopicPartitionsRequest, image: MetadataImage) -> Sequence[str]:
        """Return the sorted names of the requested topics, or of all topics, starting at the name ``first``."""
        if request.topics:
            return sorted({topic.name for topic in request.topics if topic.name >= first})
        if self._sorted[0] is not image.topics:
            self._sorted = (image.topics, sorted(image.topics))
        names = self._sorted[1]
        return names[bisect_left(names, first) :]

    def _test_of_rights(self, context: RequestContext, *, is_about_all: bool) -> Callable[[str], bool]:
        """Return a function that checks whether the client may describe a topic. Checks of named topics are audited."""
        access = (context, Operation.DESCRIBE, ResourceType.TOPIC)
        return self._authorization.probe(*access) if is_about_all else partial(self._authorization.may, *access)

    def _description(self, context: RequestContext, image: MetadataImage) -> Callable[[str, int, int], _Topic]:
        """Return a function with the parameters ``name`` (of a topic), ``first_partition`` and ``room``.

        It describes up to ``room`` partitions of the topic, starting at ``first_partition``.
        """
        view = ListenerView(image, context.listener, lacks_log=self._logs.lacks_log)

        def describe(name: str, first_partition: int, room: int) -> _Topic:
            topic = image.topics.get(name)
            operations = self._authorization.operations(context, ResourceType.TOPIC, name)
            if topic is None:
                legal, illegal = self._failing_brokers.absent, ErrorCode.INVALID_TOPIC_EXCEPTION
                return _undescribed(name, legal if is_legal_topic_name(name) else illegal, operations)
            states = topic.partitions[first_partition : first_partition + room]
            return _Topic(
                error_code=ErrorCode.NONE,
                name=name,
                topic_id=topic.topic_id,
                is_internal=name in INTERNAL_TOPICS,
                partitions=[
                    _described(view, name, index, state) for index, state in enumerate(states, start=first_partition)
                ],
                topic_authorized_operations=operations,
            )

        return describe


def _undescribed(name: str, code: ErrorCode, operations: int = NOT_REQUESTED) -> _Topic:
    return _Topic(error_code=code, name=name, topic_id=ZERO_UUID, partitions=[], topic_authorized_operations=operations)


def _described(view: ListenerView, topic: str, index: int, state: PartitionState) -> _Partition:
    make = partial(_Partition, eligible_leader_replicas=list(state.elr), last_known_elr=list(state.last_known_elr))
    return described_partition(make, view, topic, index, state)
