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
from parley.broker.quotas.mutations import NEVER_STRICT, UNLIMITED, QuotaOf
from parley.broker.security.authorization import EVERYONE_MAY, Authorization
from parley.broker.security.operations import NOT_ASKED, Operation
from parley.broker.security.resources import ResourceType
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


_OperationsOf = Callable[[str], int]
"""Returns the operations that the client may perform on a topic, as a bit field."""
_DescribeAsked = Callable[[MetadataRequest.MetadataRequestTopic], MetadataResponse.MetadataResponseTopic]


def _not_asked(topic: str) -> int:
    return NOT_ASKED


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
        authorization: Authorization = EVERYONE_MAY,
        lacks_log: Callable[[str, int], bool] = lambda topic, index: False,
        opened: Callable[[float], Awaitable[None]] = _at_once,
        quota_of: QuotaOf = lambda context, strict_since: UNLIMITED,
    ) -> None:
        """``lacks_log(topic, index)`` returns True if this broker leads the partition but has not opened its log yet.

        ``opened(within_s)`` waits until the logs of new partitions are open, for at most this time.
        ``quota_of(context, version)`` returns the quota for the topics that one request creates.
        """
        self._metadata = metadata
        self._creation = creation
        self._outages = outages
        self._authorization = authorization
        self._lacks_log = lacks_log
        self._opened = opened
        self._quota_of = quota_of

    def routes(self) -> dict[int, Handler]:
        return {
            MetadataRequest.API_KEY: self.metadata,
            DescribeTopicPartitionsRequest.API_KEY: self.describe_topic_partitions,
        }

    async def metadata(self, context: RequestContext, request: MetadataRequest) -> MetadataResponse:
        """Describe the requested topics, or all; first create missing ones if the client and the broker allow it."""
        uncreatable: set[str] = set()
        throttle_ms = 0
        if request.topics is not None and request.allow_auto_topic_creation and self._creation.automatic:
            names = (topic.name for topic in request.topics if topic.name is not None)
            uncreatable, throttle_ms = await self._create_absent(context, names)
        await self._outages.settled()
        await self._opened(OPENED_MAX_S)
        image = self._metadata.image
        operations = self._topic_operations(context) if request.include_topic_authorized_operations else _not_asked
        # Clients know LISTENER_NOT_FOUND since version 6 (KIP-207).
        unreachable = ErrorCode.LISTENER_NOT_FOUND if context.api_version >= 6 else ErrorCode.LEADER_NOT_AVAILABLE
        view = ListenerView(image, context.listener, without_listener=unreachable, lacks_log=self._lacks_log)
        if request.topics is None or (context.api_version == 0 and not request.topics):
            visible = filter(self._may_see(context), image.topics.values())
            topics = await in_slices(partial(_topic, view, operations), visible)
        else:
            once = {(asked.name, asked.topic_id): asked for asked in request.topics}
            describe = _asked_topic if context.api_version >= TOPIC_IDS_SINCE else _named_topic
            described: _DescribeAsked = partial(describe, image, view, operations)
            if self._authorization.is_enforced:
                described = self._unless_refused(context, image, uncreatable, described)
            topics = await in_slices(described, once.values())
            for topic in topics:
                if topic.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
                    topic.error_code = self._outages.absent
        return MetadataResponse(
            throttle_time_ms=throttle_ms,
            brokers=_brokers(self._outages.listed(image), context.listener),
            cluster_id=image.cluster_id,
            controller_id=view.controller_id,
            topics=topics,
            cluster_authorized_operations=(
                self._authorization.described_cluster_operations(context)
                if request.include_cluster_authorized_operations
                else NOT_ASKED
            ),
        )

    async def _create_absent(self, context: RequestContext, names: Iterable[str]) -> tuple[set[str], int]:
        """Create the missing topics that the client may describe and create.

        Returns those it may not create, and for how many milliseconds the client is throttled for the others.
        """
        image, may = self._metadata.image, self._authorization
        absent = [name for name in dict.fromkeys(names) if name not in image.topics and _is_legal(name)]
        if not absent:
            return set(), 0
        visible = may.allowed(context, Operation.DESCRIBE, ResourceType.TOPIC, absent, is_probe=True)
        absent = [name for name in absent if name in visible]
        uncreatable: set[str] = set()
        if not may.may_on_cluster(context, Operation.CREATE, is_probe=True):
            uncreatable = set(absent) - may.allowed(context, Operation.CREATE, ResourceType.TOPIC, absent)
        creatable = [NewTopic(name) for name in absent if name not in uncreatable]
        if not creatable:
            return uncreatable, 0
        quota = self._quota_of(context, NEVER_STRICT)
        for outcome in await self._creation.create_for_client(creatable[:CREATED_PER_REQUEST_MAX]):
            if outcome.error is None and outcome.name not in INTERNAL_TOPICS:
                quota.charge(outcome.name, 1 if outcome.topic is None else len(outcome.topic.partitions))
        return uncreatable, quota.throttle_ms()

    def _may_see(self, context: RequestContext) -> Callable[[TopicImage], bool] | None:
        """Return the test for topics in a response about all of them; None if the client may see all."""
        if not self._authorization.is_enforced:
            return None
        may_describe = self._authorization.probe(context, Operation.DESCRIBE, ResourceType.TOPIC)
        return lambda topic: may_describe(topic.name)

    def _topic_operations(self, context: RequestContext) -> _OperationsOf:
        return partial(self._authorization.operations, context, ResourceType.TOPIC)

    def _unless_refused(
        self, context: RequestContext, image: MetadataImage, uncreatable: set[str], describe: _DescribeAsked
    ) -> _DescribeAsked:
        """Return ``describe`` for topics that the client may describe and, if they are missing, may create.

        A topic id is no secret, but the name that belongs to it is.
        """
        may = self._authorization.may

        def described(asked: MetadataRequest.MetadataRequestTopic) -> MetadataResponse.MetadataResponseTopic:
            by_id = asked.topic_id != ZERO_UUID
            name = image.topic_names.get(asked.topic_id) if by_id else asked.name
            if name is None or (name not in uncreatable and may(context, Operation.DESCRIBE, ResourceType.TOPIC, name)):
                return describe(asked)
            return _topic_error(None if by_id else name, asked.topic_id, ErrorCode.TOPIC_AUTHORIZATION_FAILED)

        return described

    async def describe_topic_partitions(
        self, context: RequestContext, request: DescribeTopicPartitionsRequest
    ) -> DescribeTopicPartitionsResponse:
        """Describe topics page by page, sorted by name (KIP-966)."""
        await self._opened(OPENED_MAX_S)
        image = self._metadata.image
        asked = {topic.name for topic in request.topics} or set(image.topics)
        visible = self._authorization.allowed(
            context, Operation.DESCRIBE, ResourceType.TOPIC, asked, is_probe=not request.topics
        )
        names = sorted(visible)
        first_partition = 0
        if request.cursor is not None:
            names = [name for name in names if name >= request.cursor.topic_name]
            if names and names[0] == request.cursor.topic_name:
                first_partition = max(0, request.cursor.partition_index)
        room = min(max(1, request.response_partition_limit), PARTITIONS_PER_RESPONSE_MAX)
        view = ListenerView(image, context.listener, lacks_log=self._lacks_log)
        operations = self._topic_operations(context)
        answer = DescribeTopicPartitionsResponse(topics=[])
        for name in names:
            if room <= 0:
                answer.next_cursor = DescribeTopicPartitionsResponse.Cursor(topic_name=name, partition_index=0)
                break
            described = _described_topic(image, view, name, first_partition, room, operations)
            answer.topics.append(described)
            room -= max(1, len(described.partitions))  # an unknown topic takes up room in the response, too
            reached = first_partition + len(described.partitions)
            first_partition = 0
            if described.error_code == ErrorCode.NONE and reached < len(image.topics[name].partitions):
                answer.next_cursor = DescribeTopicPartitionsResponse.Cursor(topic_name=name, partition_index=reached)
                break
        if request.topics:
            refused = ErrorCode.TOPIC_AUTHORIZATION_FAILED
            answer.topics += [_undescribed_topic(name, refused) for name in sorted(asked - visible)]
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
    image: MetadataImage, view: ListenerView, operations: _OperationsOf, asked: MetadataRequest.MetadataRequestTopic
) -> MetadataResponse.MetadataResponseTopic:
    if asked.name is None or asked.topic_id != ZERO_UUID:  # versions 10 and 11 have the field but do not support ids
        return _topic_error(asked.name or "", ZERO_UUID, ErrorCode.INVALID_REQUEST)
    return _asked_topic(image, view, operations, asked)


def _asked_topic(
    image: MetadataImage, view: ListenerView, operations: _OperationsOf, asked: MetadataRequest.MetadataRequestTopic
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


def _topic(view: ListenerView, operations: _OperationsOf, topic: TopicImage) -> MetadataResponse.MetadataResponseTopic:
    return MetadataResponse.MetadataResponseTopic(
        error_code=ErrorCode.NONE,
        name=topic.name,
        topic_id=topic.topic_id,
        is_internal=topic.name in INTERNAL_TOPICS,
        partitions=[
            _partition(MetadataResponse.MetadataResponsePartition, view, topic.name, index, state)
            for index, state in enumerate(topic.partitions)
        ],
        topic_authorized_operations=operations(topic.name),
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
    image: MetadataImage, view: ListenerView, name: str, first_partition: int, room: int, operations: _OperationsOf
) -> DescribeTopicPartitionsResponse.DescribeTopicPartitionsResponseTopic:
    topic = image.topics.get(name)
    if topic is None:
        return _undescribed_topic(name, _error_of_missing(name))
    states = topic.partitions[first_partition : first_partition + room]
    return DescribeTopicPartitionsResponse.DescribeTopicPartitionsResponseTopic(
        error_code=ErrorCode.NONE,
        name=name,
        topic_id=topic.topic_id,
        is_internal=name in INTERNAL_TOPICS,
        partitions=[
            _described_partition(view, name, index, state) for index, state in enumerate(states, start=first_partition)
        ],
        topic_authorized_operations=operations(name),
    )


def _undescribed_topic(
    name: str, code: ErrorCode
) -> DescribeTopicPartitionsResponse.DescribeTopicPartitionsResponseTopic:
    return DescribeTopicPartitionsResponse.DescribeTopicPartitionsResponseTopic(
        error_code=code, name=name, topic_id=ZERO_UUID, partitions=[]
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
