"""Guards of requests from producers and about transactions."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from parley.broker.api.authorization.elements import Checks, after, listed, made_of, with_refused
from parley.broker.api.transactions import BATCHED
from parley.broker.metadata.topic_names import INTERNAL_TOPICS
from parley.broker.network.request_context import Handler, RequestContext
from parley.broker.runtime.steps import Steps
from parley.broker.security.operations import Operation
from parley.broker.security.resources import ResourceType
from parley.protocol.errors import ErrorCode, KafkaError
from parley.protocol.messages.producers import InitProducerIdRequest, InitProducerIdResponse
from parley.protocol.messages.transactions import (
    AddOffsetsToTxnRequest,
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnResponse,
    DescribeTransactionsRequest,
    DescribeTransactionsResponse,
    EndTxnRequest,
    ListTransactionsRequest,
    ListTransactionsResponse,
    TxnOffsetCommitRequest,
    TxnOffsetCommitResponse,
    WriteTxnMarkersRequest,
    WriteTxnMarkersResponse,
)
from parley.protocol.sentinels import NO_EPOCH, NO_PRODUCER_ID

_ID_REFUSED = ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
_GROUP_REFUSED = ErrorCode.GROUP_AUTHORIZATION_FAILED
_TOPIC_REFUSED = ErrorCode.TOPIC_AUTHORIZATION_FAILED
_CLUSTER_REFUSED = ErrorCode.CLUSTER_AUTHORIZATION_FAILED
_TOPIC, _GROUP, _ID = ResourceType.TOPIC, ResourceType.GROUP, ResourceType.TRANSACTIONAL_ID


def _init_producer_id(checks: Checks, handler: Handler, context: RequestContext, request: InitProducerIdRequest) -> Any:
    code = _init_refusal(checks, context, request)
    if code is None:
        return handler(context, request)
    return InitProducerIdResponse(error_code=code, producer_id=NO_PRODUCER_ID, producer_epoch=NO_EPOCH)


def _init_refusal(checks: Checks, context: RequestContext, request: InitProducerIdRequest) -> ErrorCode | None:
    may = checks.authorization
    name = request.transactional_id
    if name is None:
        if may.may_on_cluster(context, Operation.IDEMPOTENT_WRITE, is_probe=True):
            return None
        return None if may.may_on_any(context, Operation.WRITE, _TOPIC) else _CLUSTER_REFUSED
    if not may.may(context, Operation.WRITE, _ID, name):
        return _ID_REFUSED
    if request.enable2_pc and not may.may(context, Operation.TWO_PHASE_COMMIT, _ID, name):
        return _ID_REFUSED
    return None


def _add_partitions(
    checks: Checks, handler: Handler, context: RequestContext, request: AddPartitionsToTxnRequest
) -> Steps[Any]:
    """Check AddPartitionsToTxn. Only brokers may send the newer versions. In a client's request, one forbidden topic
    makes all other topics fail."""
    may = checks.authorization
    if context.api_version >= BATCHED:
        if not may.may_on_cluster(context, Operation.CLUSTER_ACTION):
            raise KafkaError(_CLUSTER_REFUSED)
        return handler(context, request)
    topics = request.v3_and_below_topics
    if not may.may(context, Operation.WRITE, _ID, request.v3_and_below_transactional_id):
        return (yield from _added(request, lambda topic, index: _ID_REFUSED))
    names = {topic.name for topic in topics if topic.name not in INTERNAL_TOPICS}
    allowed = yield from checks.allowed(context, Operation.WRITE, _TOPIC, names)
    if allowed == {topic.name for topic in topics}:
        return handler(context, request)
    image = checks.metadata.image

    def code(topic: str, index: int) -> ErrorCode:
        if topic not in allowed:
            return _TOPIC_REFUSED
        known = image.partition(topic, index) is not None
        return ErrorCode.OPERATION_NOT_ATTEMPTED if known else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION

    return (yield from _added(request, code))


def _added(
    request: AddPartitionsToTxnRequest, code: Callable[[str, int], ErrorCode]
) -> Steps[AddPartitionsToTxnResponse]:
    response = AddPartitionsToTxnResponse

    def added(
        topic: AddPartitionsToTxnRequest.AddPartitionsToTxnTopic,
    ) -> Steps[AddPartitionsToTxnResponse.AddPartitionsToTxnTopicResult]:
        partitions = yield from listed(
            response.AddPartitionsToTxnPartitionResult(
                partition_index=index, partition_error_code=code(topic.name, index)
            )
            for index in topic.partitions
        )
        return response.AddPartitionsToTxnTopicResult(name=topic.name, results_by_partition=partitions)

    return response(results_by_topic_v3_and_below=(yield from made_of(request.v3_and_below_topics, added)))


def _add_offsets(checks: Checks, handler: Handler, context: RequestContext, request: AddOffsetsToTxnRequest) -> Any:
    if not checks.authorization.may(context, Operation.WRITE, _ID, request.transactional_id):
        raise KafkaError(_ID_REFUSED)
    if not checks.authorization.may(context, Operation.READ, _GROUP, request.group_id):
        raise KafkaError(_GROUP_REFUSED)
    return handler(context, request)


def _end(checks: Checks, handler: Handler, context: RequestContext, request: EndTxnRequest) -> Any:
    if not checks.authorization.may(context, Operation.WRITE, _ID, request.transactional_id):
        raise KafkaError(_ID_REFUSED)
    return handler(context, request)


def _commit_offsets(
    checks: Checks, handler: Handler, context: RequestContext, request: TxnOffsetCommitRequest
) -> Steps[Any]:
    if not checks.authorization.may(context, Operation.WRITE, _ID, request.transactional_id):
        refused = yield from made_of(request.topics, lambda topic: _uncommitted(topic, _ID_REFUSED))
        return TxnOffsetCommitResponse(topics=refused)
    if not checks.authorization.may(context, Operation.READ, _GROUP, request.group_id):
        refused = yield from made_of(request.topics, lambda topic: _uncommitted(topic, _GROUP_REFUSED))
        return TxnOffsetCommitResponse(topics=refused)
    kept, unreadable = yield from checks.divide(
        context, Operation.READ, _TOPIC, request.topics, lambda topic: topic.name
    )
    results = yield from made_of(unreadable, lambda topic: _uncommitted(topic, _TOPIC_REFUSED))
    return with_refused(handler, context, request, "topics", kept, results, "topics")


def _uncommitted(
    topic: TxnOffsetCommitRequest.TxnOffsetCommitRequestTopic, code: ErrorCode
) -> Steps[TxnOffsetCommitResponse.TxnOffsetCommitResponseTopic]:
    make = TxnOffsetCommitResponse.TxnOffsetCommitResponsePartition
    partitions = yield from listed(
        make(partition_index=each.partition_index, error_code=code) for each in topic.partitions
    )
    return TxnOffsetCommitResponse.TxnOffsetCommitResponseTopic(name=topic.name, partitions=partitions)


def _write_markers(checks: Checks, handler: Handler, context: RequestContext, request: WriteTxnMarkersRequest) -> Any:
    may = checks.authorization.may_on_cluster
    if may(context, Operation.ALTER, is_probe=True) or may(context, Operation.CLUSTER_ACTION):
        return handler(context, request)
    response = WriteTxnMarkersResponse
    make = response.WritableTxnMarkerPartitionResult
    return response(
        markers=[
            response.WritableTxnMarkerResult(
                producer_id=marker.producer_id,
                topics=[
                    response.WritableTxnMarkerTopicResult(
                        name=topic.name,
                        partitions=[
                            make(partition_index=index, error_code=_CLUSTER_REFUSED)
                            for index in topic.partition_indexes
                        ],
                    )
                    for topic in marker.topics
                ],
            )
            for marker in request.markers
        ]
    )


def _describe(
    checks: Checks, handler: Handler, context: RequestContext, request: DescribeTransactionsRequest
) -> Steps[Any]:
    kept, refused = yield from checks.divide(
        context, Operation.DESCRIBE, _ID, request.transactional_ids, lambda name: name
    )
    make = DescribeTransactionsResponse.TransactionState
    results = yield from listed(
        make(
            error_code=_ID_REFUSED,
            transactional_id=name,
            transaction_state="",
            transaction_timeout_ms=0,
            transaction_start_time_ms=0,
            producer_id=0,
            producer_epoch=0,
            topics=[],
        )
        for name in dict.fromkeys(refused)
    )
    result = with_refused(handler, context, request, "transactional_ids", kept, results, "transaction_states")
    return after(result, partial(_visible_topics, checks, context))


def _visible_topics(
    checks: Checks, context: RequestContext, response: DescribeTransactionsResponse
) -> DescribeTransactionsResponse:
    names = {topic.topic for state in response.transaction_states for topic in state.topics}
    allowed = checks.authorization.allowed(context, Operation.DESCRIBE, _TOPIC, names, is_probe=True)
    for state in response.transaction_states:
        state.topics = [topic for topic in state.topics if topic.topic in allowed]
    return response


def _list(checks: Checks, handler: Handler, context: RequestContext, request: ListTransactionsRequest) -> Any:
    def visible(response: ListTransactionsResponse) -> ListTransactionsResponse:
        names = {state.transactional_id for state in response.transaction_states}
        allowed = checks.authorization.allowed(context, Operation.DESCRIBE, _ID, names, is_probe=True)
        response.transaction_states = [each for each in response.transaction_states if each.transactional_id in allowed]
        return response

    return after(handler(context, request), visible)


GUARDS: dict[str, Callable[..., Any]] = {
    "InitProducerId": _init_producer_id,
    "AddPartitionsToTxn": _add_partitions,
    "AddOffsetsToTxn": _add_offsets,
    "EndTxn": _end,
    "TxnOffsetCommit": _commit_offsets,
    "WriteTxnMarkers": _write_markers,
    "DescribeTransactions": _describe,
    "ListTransactions": _list,
}
