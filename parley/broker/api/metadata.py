"""Metadata: the topics, the leaders of their partitions, and the addresses of the brokers.

Responses come from the broker's metadata image, with one exception: this broker is not named as the leader of a
partition until it has opened the log, because it would reject the client's first requests. Brokers are listed with
their address on the listener that received the request, because only this listener is known to be reachable for the
client.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Iterable, Set
from functools import partial
from typing import Final, Protocol, TypeVar, cast

from parley.broker.api.encoded_topics import ENCODED_BYTES_MAX, EncodedTopics, ShownTopics
from parley.broker.api.failing_brokers import FailingBrokers
from parley.broker.api.listener_view import ListenerView
from parley.broker.api.requested_names import SLICE, in_slices
from parley.broker.controller.topics import NewTopic, TopicOutcome
from parley.broker.metadata.current import Metadata
from parley.broker.metadata.topic_names import INTERNAL_TOPICS, check_topic_name
from parley.broker.metadata.types import BrokerRegistration, PartitionState, TopicImage
from parley.broker.network.request_context import Handler, RequestContext
from parley.broker.quotas.mutations import NEVER_STRICT, UNLIMITED, QuotaOf
from parley.broker.security.authorization import EVERYONE_MAY, Authorization
from parley.broker.security.operations import NOT_REQUESTED, Operation
from parley.broker.security.resources import ResourceType
from parley.protocol.codec import EncodedArray, encode_element
from parley.protocol.errors import ErrorCode, KafkaError
from parley.protocol.messages.metadata import (
    MetadataRequest,
    MetadataResponse,
)
from parley.protocol.schema import ZERO_UUID
from parley.protocol.uuids import UUID

P = TypeVar("P")
T = TypeVar("T")

TOPIC_IDS_SINCE = 12
"""The first version of Metadata in which a client can name a topic by its id."""
OPENED_MAX_S = 0.5
"""The maximum time, in seconds, that a request waits for the logs of new partitions to open.

Opening a few logs takes milliseconds. The wait lets a client that has just created a topic, perhaps through another
broker, find its leaders.
"""

CREATED_PER_REQUEST_MAX = 100
"""The maximum number of topics that one Metadata request creates automatically. The client requests the remaining
topics again."""

ENCODED_PER_TURN = 2000
"""The number of partitions that are encoded before the event loop serves other requests. Each takes 3 microseconds."""

_OperationsOf = Callable[[str], int]
"""Returns the operations that the client may perform on a topic, as a bit field."""
_DescribeRequested = Callable[[MetadataRequest.MetadataRequestTopic], bytes]


def _not_requested(topic: str) -> int:
    return NOT_REQUESTED


class TopicCreation(Protocol):
    """The part that creates the missing topics of a Metadata request."""

    async def create_for_client(self, topics: list[NewTopic]) -> list[TopicOutcome]:
        """Create the topics with the cluster's defaults, and return the outcome of each, which may be an error. A topic
        that already exists counts as created."""
        ...

    @property
    def automatic(self) -> bool:
        """True if Metadata requests create missing topics (``auto.create.topics.enable``)."""
        ...


class HostedLogs(Protocol):
    """The logs of this broker's partitions."""

    @property
    def is_opening(self) -> bool:
        """True while the logs of new partitions are being opened."""
        ...

    def opens_logs_of(self, topic: str) -> bool:
        """Return True if logs of the topic are being opened."""
        ...

    def lacks_log(self, topic: str, index: int) -> bool:
        """Return True if this broker leads the partition but has not opened its log yet."""
        ...

    async def until_opened(self, within_s: float | None = None) -> None:
        """Wait until the logs of new partitions are open, for at most ``within_s`` seconds; None means no limit."""


class _AllOpen:
    is_opening = False

    def opens_logs_of(self, topic: str) -> bool:
        return False

    def lacks_log(self, topic: str, index: int) -> bool:
        return False

    async def until_opened(self, within_s: float | None = None) -> None:
        return


ALL_OPEN: Final = _AllOpen()
"""The logs of a broker that has opened all of them."""


class MetadataApi:
    """Handler of Metadata."""

    def __init__(
        self,
        metadata: Metadata,
        creation: TopicCreation,
        failing_brokers: FailingBrokers,
        *,
        authorization: Authorization = EVERYONE_MAY,
        logs: HostedLogs = ALL_OPEN,
        quota_of: QuotaOf = lambda context, strict_since: UNLIMITED,
        encoded_bytes_max: int = ENCODED_BYTES_MAX,
    ) -> None:
        """``quota_of(context, strict_since)`` returns the quota for the topics that one request creates. Requests of
        versions before ``strict_since`` may exceed it, and are throttled afterwards."""
        self._metadata = metadata
        self._creation = creation
        self._failing_brokers = failing_brokers
        self._authorization = authorization
        self._logs = logs
        self._quota_of = quota_of
        self._encoded = EncodedTopics(_encoded_topic, bytes_max=encoded_bytes_max)

    def routes(self) -> dict[int, Handler]:
        return {MetadataRequest.API_KEY: self.metadata}

    def metadata(
        self, context: RequestContext, request: MetadataRequest
    ) -> MetadataResponse | Awaitable[MetadataResponse]:
        """Describe the requested topics, or all topics. Missing topics are created first if the client and the broker
        allow it."""
        if self._logs.is_opening or self._failing_brokers.may_be_unsettled or self._creates_topics(context, request):
            return self._when_settled(context, request)
        return self._described(context, request, frozenset(), 0)

    def _creates_topics(self, context: RequestContext, request: MetadataRequest) -> bool:
        """Return True if the request creates missing topics, or names so many that this must be checked in slices.

        Only topics that the client may describe count: the response time must not reveal whether other topics exist.
        """
        if not (request.topics and request.allow_auto_topic_creation and self._creation.automatic):
            return False
        if len(request.topics) > SLICE:
            return True
        topics, may_describe = self._metadata.image.topics, self._test_of_description(context)
        return any(
            topic.name is not None and may_describe(topic.name) and topic.name not in topics for topic in request.topics
        )

    def _test_of_description(self, context: RequestContext) -> Callable[[str], bool]:
        return self._authorization.probe(context, Operation.DESCRIBE, ResourceType.TOPIC)

    async def _when_settled(self, context: RequestContext, request: MetadataRequest) -> MetadataResponse:
        """Create missing topics, wait for failing brokers and opening logs to settle, then describe the topics."""
        uncreatable: Set[str] = frozenset()
        throttle_ms = 0
        if self._creates_topics(context, request):
            names = (topic.name for topic in request.topics or () if topic.name is not None)
            uncreatable, throttle_ms = await self._create_absent(context, names)
        await self._failing_brokers.settled()
        if self._logs.is_opening:
            await self._logs.until_opened(OPENED_MAX_S)
        response = self._described(context, request, uncreatable, throttle_ms)
        return response if isinstance(response, MetadataResponse) else await response

    def _described(
        self, context: RequestContext, request: MetadataRequest, uncreatable: Set[str], throttle_ms: int
    ) -> MetadataResponse | Awaitable[MetadataResponse]:
        """Return the response, or a coroutine that returns it if it describes many topics."""
        shown = self._shown(context, request)
        response = MetadataResponse(
            throttle_time_ms=throttle_ms,
            brokers=_brokers(self._failing_brokers.listed(shown.image), context.listener),
            cluster_id=shown.image.cluster_id,
            controller_id=shown.view.controller_id,
            topics=[],
            cluster_authorized_operations=(
                self._authorization.described_cluster_operations(context)
                if request.include_cluster_authorized_operations
                else NOT_REQUESTED
            ),
        )
        if request.topics is not None and (request.topics or context.api_version > 0):
            once = {(requested.name, requested.topic_id): requested for requested in request.topics}
            describe = self._requested(context, shown, uncreatable, self._topic_operations(context, request))
            return _with_topics(response, shown.version, describe, list(once.values()))
        topics = shown.image.topics.values()
        if self._authorization.is_enforced:
            return _with_topics(response, shown.version, self._if_visible(context, shown), topics)
        if shown.all is not None:
            response.topics = cast("list[MetadataResponse.MetadataResponseTopic]", shown.all)
            return response
        partitions = shown.partitions_to_encode(topics)
        if partitions > ENCODED_PER_TURN:
            size = max(1, min(SLICE, ENCODED_PER_TURN * len(topics) // partitions))
            return _in_slices(response, shown.version, shown.encoded, topics, shown.keep_all, size)
        return _with_topics(response, shown.version, shown.encoded, topics, shown.keep_all)

    def _shown(self, context: RequestContext, request: MetadataRequest) -> ShownTopics:
        image, version = self._metadata.image, context.api_version
        # Clients know LISTENER_NOT_FOUND since version 6 (KIP-207).
        unreachable = ErrorCode.LISTENER_NOT_FOUND if version >= 6 else ErrorCode.LEADER_NOT_AVAILABLE
        with_operations, logs = request.include_topic_authorized_operations, self._logs
        if not with_operations and not logs.is_opening:
            return self._encoded.shown(image, context.listener, version, unreachable)
        view = ListenerView(image, context.listener, without_listener=unreachable, lacks_log=logs.lacks_log)
        if with_operations:
            operations = self._topic_operations(context, request)
            return ShownTopics(image, version, view, partial(_encoded_topic, operations=operations))
        return self._encoded.shown(image, context.listener, version, unreachable).while_opening(
            view, logs.opens_logs_of
        )

    async def _create_absent(self, context: RequestContext, names: Iterable[str]) -> tuple[set[str], int]:
        """Create the missing topics that the client may describe and create.

        Returns the topics that the client may not create, and the throttle time, in milliseconds, for the created
        topics.
        """
        image, may = self._metadata.image, self._authorization
        may_describe = self._test_of_description(context)

        def is_absent(name: str) -> bool:
            return may_describe(name) and name not in image.topics and is_legal_topic_name(name)

        absent = await _filtered(is_absent, dict.fromkeys(names))
        if not absent:
            return set(), 0
        uncreatable: set[str] = set()
        if not may.may_on_cluster(context, Operation.CREATE, is_probe=True):
            may_create = partial(may.may, context, Operation.CREATE, ResourceType.TOPIC)
            uncreatable = set(absent).difference(await _filtered(may_create, absent))
        creatable = [NewTopic(name) for name in absent if name not in uncreatable]
        if not creatable:
            return uncreatable, 0
        quota = self._quota_of(context, NEVER_STRICT)
        for outcome in await self._creation.create_for_client(creatable[:CREATED_PER_REQUEST_MAX]):
            if outcome.error is None and outcome.name not in INTERNAL_TOPICS:
                quota.charge(outcome.name, 1 if outcome.topic is None else len(outcome.topic.partitions))
        return uncreatable, quota.throttle_ms()

    def _if_visible(self, context: RequestContext, shown: ShownTopics) -> Callable[[TopicImage], bytes | None]:
        """Return a function that encodes a topic for a response about all topics, and returns None if the client may
        not see the topic."""
        may_describe = self._test_of_description(context)
        return lambda topic: shown.encoded(topic) if may_describe(topic.name) else None

    def _topic_operations(self, context: RequestContext, request: MetadataRequest) -> _OperationsOf:
        if not request.include_topic_authorized_operations:
            return _not_requested
        return partial(self._authorization.operations, context, ResourceType.TOPIC)

    def _requested(
        self, context: RequestContext, shown: ShownTopics, uncreatable: Set[str], operations: _OperationsOf
    ) -> _DescribeRequested:
        """Return a function that encodes the description of a requested topic, or an error if the client may not see
        it.

        A topic id is not secret, but the name that belongs to it is. A missing topic that the client may describe has
        operations, too: the client's rights do not depend on whether the topic exists.
        """
        version, names, topics = shown.version, shown.image.topic_names, shown.image.topics
        may, is_enforced = self._authorization.may, self._authorization.is_enforced

        def failed(name: str | None, topic_id: UUID, code: ErrorCode, allowed: int = NOT_REQUESTED) -> bytes:
            return encode_element(MetadataResponse, version, _topic_error(name, topic_id, code, allowed))

        def described(requested: MetadataRequest.MetadataRequestTopic) -> bytes:
            name, topic_id = requested.name, requested.topic_id
            by_id = topic_id is not ZERO_UUID and topic_id != ZERO_UUID
            # Versions 10 and 11 contain the field of the id, but do not support it.
            if version < TOPIC_IDS_SINCE and (name is None or by_id):
                return failed(name or "", ZERO_UUID, ErrorCode.INVALID_REQUEST)
            if by_id:
                name = names.get(topic_id)
            if name is None:
                return failed(None, topic_id, ErrorCode.UNKNOWN_TOPIC_ID if by_id else ErrorCode.INVALID_REQUEST)
            if is_enforced and (name in uncreatable or not may(context, Operation.DESCRIBE, ResourceType.TOPIC, name)):
                return failed(None if by_id else name, topic_id, ErrorCode.TOPIC_AUTHORIZATION_FAILED)
            topic = topics.get(name)
            if topic is not None:
                return shown.encoded(topic)
            return failed(
                name,
                ZERO_UUID,
                self._failing_brokers.absent if is_legal_topic_name(name) else ErrorCode.INVALID_TOPIC_EXCEPTION,
                operations(name),
            )

        return described


async def _filtered(is_wanted: Callable[[str], bool], names: Collection[str]) -> list[str]:
    """Return the names for which ``is_wanted`` returns True. With many names, other requests are served in between."""
    wanted = await in_slices(is_wanted, names)
    return [name for name, keep in zip(names, wanted, strict=True) if keep]


def is_legal_topic_name(name: str) -> bool:
    """Return True if a topic may have this name."""
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


def _topic_error(
    name: str | None, topic_id: UUID, code: ErrorCode, operations: int
) -> MetadataResponse.MetadataResponseTopic:
    return MetadataResponse.MetadataResponseTopic(
        error_code=code, name=name, topic_id=topic_id, partitions=[], topic_authorized_operations=operations
    )


def _with_topics(
    response: MetadataResponse,
    version: int,
    describe: Callable[[T], bytes | None],
    wanted: Collection[T],
    keep: Callable[[EncodedArray], None] | None = None,
) -> MetadataResponse | Awaitable[MetadataResponse]:
    """Add the encoded topics to the response, in slices if there are many."""
    if len(wanted) > SLICE:
        return _in_slices(response, version, describe, wanted, keep)
    return _filled(response, version, map(describe, wanted), keep)


async def _in_slices(
    response: MetadataResponse,
    version: int,
    describe: Callable[[T], bytes | None],
    wanted: Collection[T],
    keep: Callable[[EncodedArray], None] | None,
    size: int = SLICE,
) -> MetadataResponse:
    return _filled(response, version, await in_slices(describe, wanted, size), keep)


def _filled(
    response: MetadataResponse,
    version: int,
    described: Iterable[bytes | None],
    keep: Callable[[EncodedArray], None] | None,
) -> MetadataResponse:
    topics = EncodedArray(version, [encoded for encoded in described if encoded is not None])
    if keep is not None:
        keep(topics)
    response.topics = cast("list[MetadataResponse.MetadataResponseTopic]", topics)
    return response


def _encoded_topic(
    version: int, view: ListenerView, topic: TopicImage, *, operations: _OperationsOf = _not_requested
) -> bytes:
    described = MetadataResponse.MetadataResponseTopic(
        error_code=ErrorCode.NONE,
        name=topic.name,
        topic_id=topic.topic_id,
        is_internal=topic.name in INTERNAL_TOPICS,
        partitions=[
            described_partition(MetadataResponse.MetadataResponsePartition, view, topic.name, index, state)
            for index, state in enumerate(topic.partitions)
        ],
        topic_authorized_operations=operations(topic.name),
    )
    return encode_element(MetadataResponse, version, described)


def described_partition(make: Callable[..., P], view: ListenerView, topic: str, index: int, state: PartitionState) -> P:
    """Return the description of a partition, built by ``make``, for a Metadata or DescribeTopicPartitions response.
    Both have these fields."""
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
