"""Responses to requests that are refused as a whole, for APIs whose clients expect the error in each element."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, Final

from parley.broker.network.request_context import RequestContext
from parley.protocol.errors import ErrorCode, KafkaError
from parley.protocol.messages.acls import CreateAclsRequest, CreateAclsResponse, DeleteAclsRequest, DeleteAclsResponse
from parley.protocol.messages.configs import (
    AlterConfigsRequest,
    AlterConfigsResponse,
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResponse,
)
from parley.protocol.messages.elections import (
    AlterPartitionReassignmentsRequest,
    AlterPartitionReassignmentsResponse,
    ElectLeadersRequest,
    ElectLeadersResponse,
)
from parley.protocol.messages.log_dirs import (
    AlterReplicaLogDirsRequest,
    AlterReplicaLogDirsResponse,
    DescribeLogDirsRequest,
    DescribeLogDirsResponse,
)
from parley.protocol.messages.quotas import AlterClientQuotasRequest, AlterClientQuotasResponse
from parley.protocol.messages.scram import AlterUserScramCredentialsRequest, AlterUserScramCredentialsResponse
from parley.protocol.messages.share_state import (
    DeleteShareGroupStateRequest,
    DeleteShareGroupStateResponse,
    InitializeShareGroupStateRequest,
    InitializeShareGroupStateResponse,
    ReadShareGroupStateRequest,
    ReadShareGroupStateResponse,
    ReadShareGroupStateSummaryRequest,
    ReadShareGroupStateSummaryResponse,
    WriteShareGroupStateRequest,
    WriteShareGroupStateResponse,
)
from parley.protocol.messages.topics import (
    CreatePartitionsRequest,
    CreatePartitionsResponse,
    CreateTopicsRequest,
    CreateTopicsResponse,
    DeleteTopicsRequest,
    DeleteTopicsResponse,
)
from parley.protocol.schema import ZERO_UUID, Response, Struct

LOG_DIRS_ERROR_SINCE = 3
"""The first version of DescribeLogDirs whose response has an error code for the whole request."""
ELECTIONS_ERROR_SINCE = 1
"""The first version of ElectLeaders whose response has an error code for the whole request."""


def refuse(context: RequestContext, request: Any, error: KafkaError) -> Response:
    """Return the response to a request that is refused as a whole.

    Raises ``error`` if the response's top-level error code suffices. The dispatcher then builds the response.
    """
    renderer = _WITH_ELEMENTS.get(type(request))
    if renderer is None:
        raise error
    return renderer(context, request, error)


def _refused_topics(context: RequestContext, request: CreateTopicsRequest, error: KafkaError) -> Response:
    result = CreateTopicsResponse.CreatableTopicResult
    names = dict.fromkeys(topic.name for topic in request.topics)
    return CreateTopicsResponse(
        topics=[result(name=name, error_code=error.code, error_message=error.message) for name in names]
    )


def _refused_deletions(context: RequestContext, request: DeleteTopicsRequest, error: KafkaError) -> Response:
    result = DeleteTopicsResponse.DeletableTopicResult
    by_name = [(name, ZERO_UUID) for name in request.topic_names]
    requested = dict.fromkeys([(topic.name, topic.topic_id) for topic in request.topics] or by_name)
    return DeleteTopicsResponse(
        responses=[
            result(name=name, topic_id=topic_id, error_code=error.code, error_message=error.message)
            for name, topic_id in requested
        ]
    )


def _refused_partitions(context: RequestContext, request: CreatePartitionsRequest, error: KafkaError) -> Response:
    result = CreatePartitionsResponse.CreatePartitionsTopicResult
    names = dict.fromkeys(topic.name for topic in request.topics)
    return CreatePartitionsResponse(
        results=[result(name=name, error_code=error.code, error_message=error.message) for name in names]
    )


def _refused_configs(
    response: Callable[..., Response],
    result: Callable[..., Struct],
    context: RequestContext,
    request: AlterConfigsRequest | IncrementalAlterConfigsRequest,
    error: KafkaError,
) -> Response:
    resources = dict.fromkeys((each.resource_type, each.resource_name) for each in request.resources)
    return response(
        responses=[
            result(error_code=error.code, error_message=error.message, resource_type=kind, resource_name=name)
            for kind, name in resources
        ]
    )


def _refused_elections(context: RequestContext, request: ElectLeadersRequest, error: KafkaError) -> Response:
    response = ElectLeadersResponse
    result = partial(response.PartitionResult, error_code=error.code, error_message=error.message)
    return response(
        error_code=error.code if context.api_version >= ELECTIONS_ERROR_SINCE else ErrorCode.NONE,
        replica_election_results=[
            response.ReplicaElectionResult(
                topic=topic.topic, partition_result=[result(partition_id=index) for index in topic.partitions]
            )
            for topic in request.topic_partitions or ()
        ],
    )


def _refused_reassignments(
    context: RequestContext, request: AlterPartitionReassignmentsRequest, error: KafkaError
) -> Response:
    response = AlterPartitionReassignmentsResponse
    result = partial(response.ReassignablePartitionResponse, error_code=error.code, error_message=error.message)
    by_topic: dict[str, set[int]] = {}
    for topic in request.topics:
        by_topic.setdefault(topic.name, set()).update(each.partition_index for each in topic.partitions)
    return response(
        allow_replication_factor_change=request.allow_replication_factor_change,
        error_code=error.code,
        error_message=error.message,
        responses=[
            response.ReassignableTopicResponse(
                name=name, partitions=[result(partition_index=index) for index in sorted(indexes)]
            )
            for name, indexes in by_topic.items()
        ],
    )


def _refused_acls(context: RequestContext, request: CreateAclsRequest, error: KafkaError) -> Response:
    refused = CreateAclsResponse.AclCreationResult(error_code=error.code, error_message=error.message)
    return CreateAclsResponse(results=[refused for _ in request.creations])


def _refused_filters(context: RequestContext, request: DeleteAclsRequest, error: KafkaError) -> Response:
    refused = DeleteAclsResponse.DeleteAclsFilterResult(
        error_code=error.code, error_message=error.message, matching_acls=[]
    )
    return DeleteAclsResponse(filter_results=[refused for _ in request.filters])


def _refused_users(context: RequestContext, request: AlterUserScramCredentialsRequest, error: KafkaError) -> Response:
    users = dict.fromkeys((*(each.name for each in request.deletions), *(each.name for each in request.upsertions)))
    result = AlterUserScramCredentialsResponse.AlterUserScramCredentialsResult
    return AlterUserScramCredentialsResponse(
        results=[result(user=user, error_code=error.code, error_message=error.message) for user in users]
    )


def _refused_quotas(context: RequestContext, request: AlterClientQuotasRequest, error: KafkaError) -> Response:
    response = AlterClientQuotasResponse
    return response(
        entries=[
            response.EntryData(
                error_code=error.code,
                error_message=error.message,
                entity=[
                    response.EntityData(entity_type=each.entity_type, entity_name=each.entity_name)
                    for each in entry.entity
                ],
            )
            for entry in request.entries
        ]
    )


def _refused_moves(context: RequestContext, request: AlterReplicaLogDirsRequest, error: KafkaError) -> Response:
    response = AlterReplicaLogDirsResponse
    return response(
        results=[
            response.AlterReplicaLogDirTopicResult(
                topic_name=topic.name,
                partitions=[
                    response.AlterReplicaLogDirPartitionResult(partition_index=index, error_code=error.code)
                    for index in topic.partitions
                ],
            )
            for each in request.dirs
            for topic in each.topics
        ]
    )


def _refused_log_dirs(context: RequestContext, request: DescribeLogDirsRequest, error: KafkaError) -> Response:
    if context.api_version < LOG_DIRS_ERROR_SINCE:
        return DescribeLogDirsResponse(results=[])
    return DescribeLogDirsResponse(error_code=error.code, results=[])


def _refused_share_partitions(
    response: Callable[..., Response],
    topic_result: Callable[..., Struct],
    result: Callable[..., Struct],
    context: RequestContext,
    request: Any,
    error: KafkaError,
) -> Response:
    return response(
        results=[
            topic_result(
                topic_id=topic.topic_id,
                partitions=[
                    result(partition=each.partition, error_code=error.code, error_message=error.message)
                    for each in topic.partitions
                ],
            )
            for topic in request.topics
        ]
    )


_WITH_ELEMENTS: Final[dict[type[Any], Callable[[RequestContext, Any, KafkaError], Response]]] = {
    CreateTopicsRequest: _refused_topics,
    DeleteTopicsRequest: _refused_deletions,
    CreatePartitionsRequest: _refused_partitions,
    AlterConfigsRequest: partial(
        _refused_configs, AlterConfigsResponse, AlterConfigsResponse.AlterConfigsResourceResponse
    ),
    IncrementalAlterConfigsRequest: partial(
        _refused_configs, IncrementalAlterConfigsResponse, IncrementalAlterConfigsResponse.AlterConfigsResourceResponse
    ),
    ElectLeadersRequest: _refused_elections,
    AlterPartitionReassignmentsRequest: _refused_reassignments,
    CreateAclsRequest: _refused_acls,
    DeleteAclsRequest: _refused_filters,
    AlterUserScramCredentialsRequest: _refused_users,
    AlterClientQuotasRequest: _refused_quotas,
    AlterReplicaLogDirsRequest: _refused_moves,
    DescribeLogDirsRequest: _refused_log_dirs,
    InitializeShareGroupStateRequest: partial(
        _refused_share_partitions,
        InitializeShareGroupStateResponse,
        InitializeShareGroupStateResponse.InitializeStateResult,
        InitializeShareGroupStateResponse.PartitionResult,
    ),
    ReadShareGroupStateRequest: partial(
        _refused_share_partitions,
        ReadShareGroupStateResponse,
        ReadShareGroupStateResponse.ReadStateResult,
        partial(ReadShareGroupStateResponse.PartitionResult, state_epoch=0, start_offset=-1, state_batches=[]),
    ),
    WriteShareGroupStateRequest: partial(
        _refused_share_partitions,
        WriteShareGroupStateResponse,
        WriteShareGroupStateResponse.WriteStateResult,
        WriteShareGroupStateResponse.PartitionResult,
    ),
    DeleteShareGroupStateRequest: partial(
        _refused_share_partitions,
        DeleteShareGroupStateResponse,
        DeleteShareGroupStateResponse.DeleteStateResult,
        DeleteShareGroupStateResponse.PartitionResult,
    ),
    ReadShareGroupStateSummaryRequest: partial(
        _refused_share_partitions,
        ReadShareGroupStateSummaryResponse,
        ReadShareGroupStateSummaryResponse.ReadStateSummaryResult,
        partial(ReadShareGroupStateSummaryResponse.PartitionResult, state_epoch=0, leader_epoch=0, start_offset=-1),
    ),
}
"""Functions that build the refusal of a request whose response repeats the error in each element, or lacks a top-level
error code in some versions. Java's admin client counts the elements."""
