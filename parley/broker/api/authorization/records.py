"""Guards of requests for records and offsets: Produce, Fetch, ListOffsets, OffsetForLeaderEpoch, DeleteRecords, ..."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from inspect import isawaitable
from operator import attrgetter
from typing import Any

from parley.broker.api.authorization.elements import Checks, listed, made_of, refusal, with_refused
from parley.broker.network.request_context import Disconnect, Handler, RequestContext
from parley.broker.runtime.steps import Steps
from parley.broker.security.operations import Operation
from parley.broker.security.resources import ResourceType
from parley.light_dataclasses import dataclass
from parley.protocol.errors import ErrorCode
from parley.protocol.messages.fetch import FetchRequest, FetchResponse
from parley.protocol.messages.offsets import (
    ListOffsetsResponse,
    OffsetForLeaderEpochResponse,
)
from parley.protocol.messages.produce import ProduceRequest, ProduceResponse
from parley.protocol.messages.producers import DescribeProducersRequest, DescribeProducersResponse
from parley.protocol.messages.topics import DeleteRecordsResponse

_REFUSED = ErrorCode.TOPIC_AUTHORIZATION_FAILED
_TOPIC = ResourceType.TOPIC
_NOT_ALLOWED = "a produce request with acks=0 is not allowed"
_FORMAT = 2
_MAGIC_AT, _ATTRIBUTES_AT, _TRANSACTIONAL = 16, 22, 0x10
"""In a batch of format 2: the positions of the magic byte and of the attributes byte, and the transactional bit."""


def _produce(checks: Checks, handler: Handler, context: RequestContext, request: ProduceRequest) -> Steps[Any]:
    may = checks.authorization.may
    if _is_transactional(request):
        name = request.transactional_id
        if name is None or not may(context, Operation.WRITE, ResourceType.TRANSACTIONAL_ID, name):
            code = ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
            refused = yield from made_of(request.topic_data, lambda topic: _refused_topic(topic, code))
            return _without_records(request, refused)
    kept, without = yield from checks.divide(context, Operation.WRITE, _TOPIC, request.topic_data, checks.name_of)
    if not without:
        return handler(context, request)
    results = yield from made_of(without, lambda topic: _refused_topic(topic, checks.code_of(topic)))
    if not kept:
        return _without_records(request, results)
    if request.acks == 0:
        request.topic_data = kept
        return _disconnected_after(handler(context, request))
    return with_refused(handler, context, request, "topic_data", kept, results, "responses")


def _is_transactional(request: ProduceRequest) -> bool:
    for topic in request.topic_data:
        for data in topic.partition_data:
            records: Any = data.records
            if records is None or len(records) <= _ATTRIBUTES_AT or records[_MAGIC_AT] != _FORMAT:
                continue
            if records[_ATTRIBUTES_AT] & _TRANSACTIONAL:
                return True
    return False


async def _disconnected_after(appending: Any) -> None:
    """Wait until the permitted records are appended, then raise Disconnect, which is how Kafka reports errors with
    acks=0."""
    if isawaitable(appending):
        await appending
    raise Disconnect(_NOT_ALLOWED)


def _without_records(request: ProduceRequest, results: list[ProduceResponse.TopicProduceResponse]) -> ProduceResponse:
    """Return a response with the errors. With acks=0, raise Disconnect instead, as Kafka does."""
    if request.acks == 0:
        raise Disconnect(_NOT_ALLOWED)
    return ProduceResponse(responses=results)


def _refused_topic(
    topic: ProduceRequest.TopicProduceData, code: ErrorCode
) -> Steps[ProduceResponse.TopicProduceResponse]:
    partitions = yield from listed(
        ProduceResponse.PartitionProduceResponse(index=data.index, error_code=code, base_offset=-1)
        for data in topic.partition_data
    )
    return ProduceResponse.TopicProduceResponse(
        name=topic.name, topic_id=topic.topic_id, partition_responses=partitions
    )


def is_of_follower(request: FetchRequest) -> bool:
    """Return True if the client identifies itself as a follower."""
    return max(request.replica_id, request.replica_state.replica_id) >= 0


def _fetch(checks: Checks, handler: Handler, context: RequestContext, request: FetchRequest) -> Any:
    """Refuse a client that poses as a follower but does not have ClusterAction. The handler itself checks which topics
    a consumer may read."""
    if not is_of_follower(request) or checks.authorization.may_on_cluster(context, Operation.CLUSTER_ACTION):
        return handler(context, request)
    return refused_fetch(request)


def refused_fetch(request: FetchRequest) -> FetchResponse:
    """Return the response to a client that poses as a follower: TOPIC_AUTHORIZATION_FAILED for each partition."""
    return FetchResponse(
        responses=[
            FetchResponse.FetchableTopicResponse(
                topic=topic.topic,
                topic_id=topic.topic_id,
                partitions=[
                    FetchResponse.PartitionData(
                        partition_index=each.partition, error_code=_REFUSED, high_watermark=-1, records=b""
                    )
                    for each in topic.partitions
                ],
            )
            for topic in request.topics
        ]
    )


def _by_topic(
    checks: Checks,
    handler: Handler,
    context: RequestContext,
    request: Any,
    operation: Operation,
    refused_topic: Callable[[Any], Steps[Any]],
    name_of: Callable[[Any], str] = attrgetter("name"),
) -> Steps[Any]:
    """Refuse the topics on which the client may not perform the operation. ``refused_topic`` returns the result of a
    refused topic."""
    kept, refused = yield from checks.divide(context, operation, _TOPIC, request.topics, name_of)
    results = yield from made_of(refused, refused_topic)
    return with_refused(handler, context, request, "topics", kept, results, "topics")


@dataclass(frozen=True, slots=True)
class _TopicsOfPartitions:
    """The guard of a request that contains topics with partitions, and whose response has an error code per
    partition."""

    operation: Operation
    topic: Callable[..., Any]
    """Creates the result of a topic from its name and its partitions."""
    partition: Callable[..., Any]
    """Creates the result of a partition that the client may not use."""
    name: str = "name"
    """The field of a topic that contains its name."""
    index: str = "partition_index"
    """The field of a partition that contains its number."""
    followers_may: bool = False
    """True if a follower, which has ClusterAction on the cluster, may send the request without rights on the topics."""

    def __call__(self, checks: Checks, handler: Handler, context: RequestContext, request: Any) -> Any:
        authorization = checks.authorization
        if self.followers_may and authorization.may_on_cluster(context, Operation.CLUSTER_ACTION, is_probe=True):
            return handler(context, request)
        return _by_topic(checks, handler, context, request, self.operation, self._refused, attrgetter(self.name))

    def _refused(self, topic: Any) -> Steps[Any]:
        partitions = yield from listed(
            self.partition(**{self.index: getattr(each, self.index)}, error_code=_REFUSED) for each in topic.partitions
        )
        return self.topic(**{self.name: getattr(topic, self.name)}, partitions=partitions)


_list_offsets = _TopicsOfPartitions(
    Operation.DESCRIBE,
    ListOffsetsResponse.ListOffsetsTopicResponse,
    ListOffsetsResponse.ListOffsetsPartitionResponse,
)
_epoch_ends = _TopicsOfPartitions(
    Operation.DESCRIBE,
    OffsetForLeaderEpochResponse.OffsetForLeaderTopicResult,
    OffsetForLeaderEpochResponse.EpochEndOffset,
    name="topic",
    index="partition",
    followers_may=True,
)
_delete_records = _TopicsOfPartitions(
    Operation.DELETE,
    DeleteRecordsResponse.DeleteRecordsTopicResult,
    partial(DeleteRecordsResponse.DeleteRecordsPartitionResult, low_watermark=-1),
)


def _producers(checks: Checks, handler: Handler, context: RequestContext, request: DescribeProducersRequest) -> Any:
    make = partial(DescribeProducersResponse.PartitionResponse, error_code=_REFUSED)

    def refused_topic(topic: DescribeProducersRequest.TopicRequest) -> Steps[DescribeProducersResponse.TopicResponse]:
        text = refusal(context, Operation.READ, _TOPIC, topic.name)
        partitions = yield from listed(
            make(partition_index=index, error_message=text, active_producers=[]) for index in topic.partition_indexes
        )
        return DescribeProducersResponse.TopicResponse(name=topic.name, partitions=partitions)

    return _by_topic(checks, handler, context, request, Operation.READ, refused_topic)


GUARDS: dict[str, Callable[..., Any]] = {
    "Produce": _produce,
    "Fetch": _fetch,
    "ListOffsets": _list_offsets,
    "OffsetForLeaderEpoch": _epoch_ends,
    "DeleteRecords": _delete_records,
    "DescribeProducers": _producers,
}
