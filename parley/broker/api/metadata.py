"""Metadata, DescribeTopicPartitions: the topics, the leaders of their partitions, and the addresses of the brokers.

Responses come from the broker's metadata image, with one exception: this broker is not named as the leader of a
partition until it has opened the log, because a client that connected at once would be refused. Brokers are listed with
their address on the listener that the request came through: only that one is known to be reachable for the client.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable
from functools import partial
from typing import Protocol, TypeVar
from uuid import UUID

from parley.broker.api.listener_view import ListenerView
from parley.broker.api.outages import Outages
from parley.broker.api.requested_names import in_slices
from parley.broker.controller.topics import NewTopic, TopicOutcome
from parley.broker.metadata.current import Metadata
from parley.broker.metadata.image import MetadataImage
from parley.broker.metadata.topic_names import INTERNAL_TOPICS, check_topic_name
from parley.broker.metadata.types import BrokerRegistration, PartitionState, TopicImage
from parley.broker.network.dispatch import Handler, RequestContext
from parley.broker.security.operations import CLUSTER_OPERATIONS, NOT_ASKED, TOPIC_OPERATIONS
from parley.protocol.errors import ErrorCode, KafkaError
from parley.protocol.messages.metadata import (
    DescribeTopicPartitionsRequest,
    DescribeTopicPartitionsResponse,
    MetadataRequest,
    MetadataResponse,
)
from parley.protocol.schema import ZERO_UUID

P = TypeVar("P")

TOPIC_IDS_SINCE = 12
"""The first version of Metadata in which a client can name a topic by its id."""
PARTITIONS_PER_RESPONSE_MAX = 2000
"""The most partitions in one DescribeTopicPartitions response, whatever the client asks for (KIP-966)."""

OPENED_MAX_S = 0.5
"""How long a request waits at most for the logs of new partitions.

Opening a few logs takes milliseconds. Thanks to the wait a client that has just created a topic, perhaps through
another broker, finds its leaders.
"""

CREATED_PER_REQUEST_MAX = 100
"""The most topics that one Metadata request creates automatically. The client asks again for those still missing."""


class TopicCreation(Protocol):
    """Creates the missing topics of a Metadata request."""

    async def create_for_client(self, topics: list[NewTopic]) -> list[TopicOutcome]:
        """Create the topics with the cluster's defaults. A topic that has appeared meanwhile counts as created."""
        ...

    @property
    def automatic(self) -> bool:
        """True if a Metadata request creates missing topics (``auto.create.topics.enable``)."""
        ...


async def _at_once(within_s: float) -> None:
    """Wait for nothing."""


class MetadataApi:
    """Handlers of Metadata and DescribeTopicPartitions."""

    def __init__(
        self,
        metadata: Metadata,
        creation: TopicCreation,
        outages: Outages,
        *,
        lacks_log: Callable[[str, int], bool] = lambda topic, index: False,
        opened: Callable[[float], Awaitable[None]] = _at_once,
    ) -> None:
        """``lacks_log(topic, index)`` returns True if this broker leads the partition but has not opened its log yet.

        ``opened(within_s)`` waits until the logs of new partitions are open, for at most this time.
        """
        self._metadata = metadata
        self._creation = creation
        self._outages = outages
        self._lacks_log = lacks_log
        self._opened = opened

    def routes(self) -> dict[int, Handler]:
        return {
            MetadataRequest.API_KEY: self.metadata,
            DescribeTopicPartitionsRequest.API_KEY: self.describe_topic_partitions,
        }

    async def metadata(self, context: RequestContext, request: MetadataRequest) -> MetadataResponse:
        """Describe the requested topics, or all; first create missing ones if the client and the broker allow it."""
        if request.topics is not None and request.allow_auto_topic_creation and self._creation.automatic:
            await self._create_absent(topic.name for topic in request.topics if topic.name is not None)
        await self._outages.settled()
        await self._opened(OPENED_MAX_S)
        image = self._metadata.image
        operations = TOPIC_OPERATIONS if request.include_topic_authorized_operations else NOT_ASKED
        # Clients know LISTENER_NOT_FOUND since version 6 (KIP-207).
        unreachable = ErrorCode.LISTENER_NOT_FOUND if context.api_version >= 6 else ErrorCode.LEADER_NOT_AVAILABLE
        view = ListenerView(image, context.listener, without_listener=unreachable, lacks_log=self._lacks_log)
        if request.topics is None or (context.api_version == 0 and not request.topics):
            topics = await in_slices(partial(_topic, view, operations), image.topics.values())
        else:
            once = {(asked.name, asked.topic_id): asked for asked in request.topics}
            describe = _asked_topic if context.api_version >= TOPIC_IDS_SINCE else _named_topic
            topics = await in_slices(partial(describe, image, view, operations), once.values())
            for topic in topics:
                if topic.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
                    topic.error_code = self._outages.absent
        return MetadataResponse(
            brokers=_brokers(self._outages.listed(image), context.listener),
            cluster_id=image.cluster_id,
            controller_id=view.controller_id,
            topics=topics,
            cluster_authorized_operations=(
                CLUSTER_OPERATIONS if request.include_cluster_authorized_operations else NOT_ASKED
            ),
        )

    async def _create_absent(self, names: Iterable[str]) -> None:
        image = self._metadata.image
        absent = [NewTopic(name) for name in dict.fromkeys(names) if name not in image.topics and _is_legal(name)]
        if absent:
            await self._creation.create_for_client(absent[:CREATED_PER_REQUEST_MAX])

    async def describe_topic_partitions(
        self, context: RequestContext, request: DescribeTopicPartitionsRequest
    ) -> DescribeTopicPartitionsResponse:
        """Describe topics page by page, sorted by name (KIP-966)."""
        await self._opened(OPENED_MAX_S)
        image = self._metadata.image
        names = sorted({topic.name for topic in request.topics} if request.topics else image.topics)
        first_partition = 0
        if request.cursor is not None:
            names = [name for name in names if name >= request.cursor.topic_name]
            if names and names[0] == request.cursor.topic_name:
                first_partition = max(0, request.cursor.partition_index)
        room = min(max(1, request.response_partition_limit), PARTITIONS_PER_RESPONSE_MAX)
        view = ListenerView(image, context.listener, lacks_log=self._lacks_log)
        answer = DescribeTopicPartitionsResponse(topics=[])
        for name in names:
            if room <= 0:
                answer.next_cursor = DescribeTopicPartitionsResponse.Cursor(topic_name=name, partition_index=0)
                break
            described = _described_topic(image, view, name, first_partition, room)
            answer.topics.append(described)
            room -= max(1, len(described.partitions))  # an unknown topic takes up room in the response, too
            reached = first_partition + len(described.partitions)
            first_partition = 0
            if described.error_code == ErrorCode.NONE and reached < len(image.topics[name].partitions):
                answer.next_cursor = DescribeTopicPartitionsResponse.Cursor(topic_name=name, partition_index=reached)
                break
        return answer


def _is_legal(name: str) -> bool:
    try:
        check_topic_name(name)
    except KafkaError:
        return False
    return True


def _brokers(brokers: Iterable[BrokerRegistration], listener: str) -> list[MetadataResponse.MetadataResponseBroker]:
    return [
        MetadataResponse.MetadataResponseBroker(
            node_id=broker.broker_id, host=endpoint.host, port=endpoint.port, rack=broker.rack
        )
        for broker in brokers
        if (endpoint := broker.endpoint(listener)) is not None
    ]


def _topic_error(name: str | None, topic_id: UUID, code: ErrorCode) -> MetadataResponse.MetadataResponseTopic:
    return MetadataResponse.MetadataResponseTopic(error_code=code, name=name, topic_id=topic_id, partitions=[])


def _named_topic(
    image: MetadataImage, view: ListenerView, operations: int, asked: MetadataRequest.MetadataRequestTopic
) -> MetadataResponse.MetadataResponseTopic:
    if asked.name is None or asked.topic_id != ZERO_UUID:  # versions 10 and 11 have the field but do not support ids
        return _topic_error(asked.name or "", ZERO_UUID, ErrorCode.INVALID_REQUEST)
    return _asked_topic(image, view, operations, asked)


def _asked_topic(
    image: MetadataImage, view: ListenerView, operations: int, asked: MetadataRequest.MetadataRequestTopic
) -> MetadataResponse.MetadataResponseTopic:
    if asked.topic_id != ZERO_UUID:
        name = image.topic_names.get(asked.topic_id)
        if name is None:
            return _topic_error(None, asked.topic_id, ErrorCode.UNKNOWN_TOPIC_ID)
    elif asked.name is None:
        return _topic_error(None, ZERO_UUID, ErrorCode.INVALID_REQUEST)
    else:
        name = asked.name
    topic = image.topics.get(name)
    if topic is None:
        return _topic_error(name, ZERO_UUID, _error_of_missing(name))
    return _topic(view, operations, topic)


def _error_of_missing(name: str) -> ErrorCode:
    return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION if _is_legal(name) else ErrorCode.INVALID_TOPIC_EXCEPTION


def _topic(view: ListenerView, operations: int, topic: TopicImage) -> MetadataResponse.MetadataResponseTopic:
    return MetadataResponse.MetadataResponseTopic(
        error_code=ErrorCode.NONE,
        name=topic.name,
        topic_id=topic.topic_id,
        is_internal=topic.name in INTERNAL_TOPICS,
        partitions=[
            _partition(MetadataResponse.MetadataResponsePartition, view, topic.name, index, state)
            for index, state in enumerate(topic.partitions)
        ],
        topic_authorized_operations=operations,
    )


def _partition(make: Callable[..., P], view: ListenerView, topic: str, index: int, state: PartitionState) -> P:
    """A partition of either response: both have these fields."""
    leader, error = view.leader(topic, index, state)
    return make(
        error_code=error,
        partition_index=index,
        leader_id=leader,
        leader_epoch=state.leader_epoch,
        replica_nodes=list(state.replicas),
        isr_nodes=list(state.isr),
        offline_replicas=view.offline(state),
    )


def _described_topic(
    image: MetadataImage, view: ListenerView, name: str, first_partition: int, room: int
) -> DescribeTopicPartitionsResponse.DescribeTopicPartitionsResponseTopic:
    topic = image.topics.get(name)
    if topic is None:
        return DescribeTopicPartitionsResponse.DescribeTopicPartitionsResponseTopic(
            error_code=_error_of_missing(name), name=name, topic_id=ZERO_UUID, partitions=[]
        )
    states = topic.partitions[first_partition : first_partition + room]
    return DescribeTopicPartitionsResponse.DescribeTopicPartitionsResponseTopic(
        error_code=ErrorCode.NONE,
        name=name,
        topic_id=topic.topic_id,
        is_internal=name in INTERNAL_TOPICS,
        partitions=[
            _described_partition(view, name, index, state) for index, state in enumerate(states, start=first_partition)
        ],
        topic_authorized_operations=TOPIC_OPERATIONS,
    )


def _described_partition(
    view: ListenerView, topic: str, index: int, state: PartitionState
) -> DescribeTopicPartitionsResponse.DescribeTopicPartitionsResponsePartition:
    make = partial(
        DescribeTopicPartitionsResponse.DescribeTopicPartitionsResponsePartition,
        eligible_leader_replicas=list(state.elr),
        last_known_elr=list(state.last_known_elr),
    )
    return _partition(make, view, topic, index, state)
