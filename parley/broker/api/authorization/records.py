"""Guards of requests for records and offsets: Produce, Fetch, ListOffsets, OffsetForLeaderEpoch, DeleteRecords, ..."""

from __future__ import annotations

from collections.abc import Callable
from inspect import isawaitable
from typing import Any

from parley.broker.api.authorization.elements import Checks, with_refused
from parley.broker.network.dispatch import Disconnect, Handler, RequestContext
from parley.broker.security.operations import Operation
from parley.broker.security.resources import ResourceType
from parley.protocol.errors import ErrorCode
from parley.protocol.messages.fetch import FetchRequest, FetchResponse
from parley.protocol.messages.offsets import (
    ListOffsetsRequest,
    ListOffsetsResponse,
    OffsetForLeaderEpochRequest,
    OffsetForLeaderEpochResponse,
)
from parley.protocol.messages.produce import ProduceRequest, ProduceResponse
from parley.protocol.messages.producers import DescribeProducersRequest, DescribeProducersResponse
from parley.protocol.messages.topics import DeleteRecordsRequest, DeleteRecordsResponse

_REFUSED = ErrorCode.TOPIC_AUTHORIZATION_FAILED
_TOPIC = ResourceType.TOPIC
_NOT_ALLOWED = "a produce request with acks=0 is not allowed"
_FORMAT = 2
_MAGIC_AT, _ATTRIBUTES_AT, _TRANSACTIONAL = 16, 22, 0x10
"""Places in a batch of format 2: its magic byte, and the byte of its attributes with the transactional bit."""


def _produce(checks: Checks, handler: Handler, context: RequestContext, request: ProduceRequest) -> Any:
    may = checks.authorization.may
    if _is_transactional(request):
        name = request.transactional_id
        if name is None or not may(context, Operation.WRITE, ResourceType.TRANSACTIONAL_ID, name):
            code = ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
            return _without_records(request, [_refused_topic(topic, code) for topic in request.topic_data])
    kept, refused = checks.divide(context, Operation.WRITE, _TOPIC, request.topic_data, checks.name_of)
    if not refused:
        return handler(context, request)
    results = [_refused_topic(topic, checks.code_of(topic)) for topic in refused]
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
    """Wait for the records that are allowed. Raises Disconnect, which is how Kafka reports an error with acks=0."""
    if isawaitable(appending):
        await appending
    raise Disconnect(_NOT_ALLOWED)


def _without_records(request: ProduceRequest, results: list[ProduceResponse.TopicProduceResponse]) -> ProduceResponse:
    """Return the errors. Raises Disconnect if the client wants no response: that is how Kafka reports them."""
    if request.acks == 0:
        raise Disconnect(_NOT_ALLOWED)
    return ProduceResponse(responses=results)


def _refused_topic(topic: ProduceRequest.TopicProduceData, code: ErrorCode) -> ProduceResponse.TopicProduceResponse:
    return ProduceResponse.TopicProduceResponse(
        name=topic.name,
        topic_id=topic.topic_id,
        partition_responses=[
            ProduceResponse.PartitionProduceResponse(index=data.index, error_code=code, base_offset=-1)
            for data in topic.partition_data
        ],
    )


def _fetch(checks: Checks, handler: Handler, context: RequestContext, request: FetchRequest) -> Any:
    """Refuse clients that pose as followers. The topics of consumers are checked where they are looked up."""
    replica_id = max(request.replica_id, request.replica_state.replica_id)
    if replica_id < 0 or checks.authorization.may_on_cluster(context, Operation.CLUSTER_ACTION):
        return handler(context, request)
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


def _list_offsets(checks: Checks, handler: Handler, context: RequestContext, request: ListOffsetsRequest) -> Any:
    kept, refused = checks.divide(context, Operation.DESCRIBE, _TOPIC, request.topics, lambda topic: topic.name)
    make = ListOffsetsResponse.ListOffsetsPartitionResponse
    results = [
        ListOffsetsResponse.ListOffsetsTopicResponse(
            name=topic.name,
            partitions=[make(partition_index=p.partition_index, error_code=_REFUSED) for p in topic.partitions],
        )
        for topic in refused
    ]
    return with_refused(handler, context, request, "topics", kept, results, "topics")


def _epoch_ends(checks: Checks, handler: Handler, context: RequestContext, request: OffsetForLeaderEpochRequest) -> Any:
    if checks.authorization.may_on_cluster(context, Operation.CLUSTER_ACTION, is_probe=True):
        return handler(context, request)
    kept, refused = checks.divide(context, Operation.DESCRIBE, _TOPIC, request.topics, lambda topic: topic.topic)
    make = OffsetForLeaderEpochResponse.EpochEndOffset
    results = [
        OffsetForLeaderEpochResponse.OffsetForLeaderTopicResult(
            topic=topic.topic,
            partitions=[make(partition=each.partition, error_code=_REFUSED) for each in topic.partitions],
        )
        for topic in refused
    ]
    return with_refused(handler, context, request, "topics", kept, results, "topics")


def _delete_records(checks: Checks, handler: Handler, context: RequestContext, request: DeleteRecordsRequest) -> Any:
    kept, refused = checks.divide(context, Operation.DELETE, _TOPIC, request.topics, lambda topic: topic.name)
    make = DeleteRecordsResponse.DeleteRecordsPartitionResult
    results = [
        DeleteRecordsResponse.DeleteRecordsTopicResult(
            name=topic.name,
            partitions=[
                make(partition_index=p.partition_index, low_watermark=-1, error_code=_REFUSED) for p in topic.partitions
            ],
        )
        for topic in refused
    ]
    return with_refused(handler, context, request, "topics", kept, results, "topics")


def _producers(checks: Checks, handler: Handler, context: RequestContext, request: DescribeProducersRequest) -> Any:
    kept, refused = checks.divide(context, Operation.READ, _TOPIC, request.topics, lambda topic: topic.name)
    make = DescribeProducersResponse.PartitionResponse
    results = [
        DescribeProducersResponse.TopicResponse(
            name=topic.name,
            partitions=[
                make(partition_index=index, error_code=_REFUSED, error_message=_REFUSED.message, active_producers=[])
                for index in topic.partition_indexes
            ],
        )
        for topic in refused
    ]
    return with_refused(handler, context, request, "topics", kept, results, "topics")


GUARDS: dict[str, Callable[..., Any]] = {
    "Produce": _produce,
    "Fetch": _fetch,
    "ListOffsets": _list_offsets,
    "OffsetForLeaderEpoch": _epoch_ends,
    "DeleteRecords": _delete_records,
    "DescribeProducers": _producers,
}
