"""Guards of requests that change topics, and of requests about configurations."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from inspect import isawaitable
from typing import Any, TypeVar

from parley.broker.api.authorization.elements import Checks, after, listed, refusal, with_refused
from parley.broker.api.requested_names import in_slices
from parley.broker.metadata.types import ResourceType as ConfiguredType
from parley.broker.network.request_context import Handler, RequestContext
from parley.broker.runtime.steps import Steps
from parley.broker.security.operations import Operation
from parley.broker.security.resources import CLUSTER_NAME, ResourceType
from parley.protocol.errors import ErrorCode
from parley.protocol.messages.configs import (
    AlterConfigsRequest,
    AlterConfigsResponse,
    DescribeConfigsRequest,
    DescribeConfigsResponse,
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResponse,
)
from parley.protocol.messages.topics import (
    CreatePartitionsRequest,
    CreatePartitionsResponse,
    CreateTopicsRequest,
    CreateTopicsResponse,
    DeleteTopicsRequest,
    DeleteTopicsResponse,
)
from parley.protocol.schema import ZERO_UUID
from parley.protocol.uuids import UUID

R = TypeVar("R")

_REFUSED = ErrorCode.TOPIC_AUTHORIZATION_FAILED
_TOPIC = ResourceType.TOPIC

# --- Topics ---


def _create_topics(
    checks: Checks, handler: Handler, context: RequestContext, request: CreateTopicsRequest
) -> Steps[Any]:
    may = checks.authorization
    names = {topic.name for topic in request.topics}
    refused: list[CreateTopicsRequest.CreatableTopic] = []
    if may.may_on_cluster(context, Operation.CREATE, is_probe=True):
        kept = request.topics
    else:
        kept, refused = yield from checks.divide(
            context, Operation.CREATE, _TOPIC, request.topics, lambda topic: topic.name
        )
    make = CreateTopicsResponse.CreatableTopicResult
    results = yield from listed(
        make(name=name, error_code=_REFUSED, error_message=refusal(context, Operation.CREATE, _TOPIC, name))
        for name in dict.fromkeys(topic.name for topic in refused)
    )
    visible = yield from checks.allowed(context, Operation.DESCRIBE_CONFIGS, _TOPIC, names, is_probe=True)
    result = with_refused(handler, context, request, "topics", kept, results, "topics")
    if visible == names:
        return result
    return after(result, partial(_hide_configs, visible))


def _hide_configs(visible: set[str], response: CreateTopicsResponse) -> CreateTopicsResponse:
    for topic in response.topics:
        if topic.error_code == ErrorCode.NONE and topic.name not in visible:
            topic.topic_config_error_code = _REFUSED
            topic.num_partitions = topic.replication_factor = -1
            topic.configs = []
    return response


_Deletion = tuple[Any, str | None, UUID]
"""An element of a request, with the name and the id of its topic."""


def _delete_topics(checks: Checks, handler: Handler, context: RequestContext, request: DeleteTopicsRequest) -> Any:
    if checks.authorization.may_on_cluster(context, Operation.DELETE, is_probe=True):
        return handler(context, request)
    return _delete_permitted(checks, handler, context, request)


async def _delete_permitted(
    checks: Checks, handler: Handler, context: RequestContext, request: DeleteTopicsRequest
) -> Any:
    """Delete the topics that the client may delete. Its rights are checked in slices, because a request can name 65,000
    topics."""
    requested: list[_Deletion]
    field = "topics" if request.topics else "topic_names"
    if request.topics:
        requested = [(topic, topic.name, topic.topic_id) for topic in request.topics]
    else:
        requested = [(name, name, ZERO_UUID) for name in request.topic_names]
    refusals = await in_slices(partial(_refusal_of_deletion, checks, context), requested)
    kept = [element for (element, _, _), refused in zip(requested, refusals, strict=True) if refused is None]
    once = dict.fromkeys(filter(None, refusals))
    results = await in_slices(partial(_refused_deletion, context), once)
    result = with_refused(handler, context, request, field, kept, results, "responses")
    while isawaitable(result):
        result = await result
    return result


def _refusal_of_deletion(
    checks: Checks, context: RequestContext, requested: _Deletion
) -> tuple[str | None, UUID, ErrorCode] | None:
    """Return the error for a topic that the client may not delete, with the name and the id to report. Returns None if
    the client may delete the topic.

    If the client may not describe the topic, neither its name nor its id is confirmed.
    """
    _, name, topic_id = requested
    may, found = checks.authorization, checks.topic_name(name, topic_id)
    if found is None:
        return name, topic_id, ErrorCode.UNKNOWN_TOPIC_ID
    if not may.may(context, Operation.DESCRIBE, _TOPIC, found):
        return name, topic_id, _REFUSED
    if may.may(context, Operation.DELETE, _TOPIC, found):
        return None
    # The client may learn whether the topic exists. A nonexistent topic is refused, too, because it may be created
    # before the handler runs.
    exists = found in checks.metadata.image.topics
    return found, topic_id, _REFUSED if exists else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


def _refused_deletion(
    context: RequestContext, refused: tuple[str | None, UUID, ErrorCode]
) -> DeleteTopicsResponse.DeletableTopicResult:
    name, topic_id, code = refused
    text = refusal(context, Operation.DELETE, _TOPIC, name) if name and code is _REFUSED else code.message
    return DeleteTopicsResponse.DeletableTopicResult(name=name, topic_id=topic_id, error_code=code, error_message=text)


def _create_partitions(
    checks: Checks, handler: Handler, context: RequestContext, request: CreatePartitionsRequest
) -> Steps[Any]:
    kept, refused = yield from checks.divide(context, Operation.ALTER, _TOPIC, request.topics, lambda topic: topic.name)
    make = CreatePartitionsResponse.CreatePartitionsTopicResult
    names = dict.fromkeys(topic.name for topic in refused)
    results = yield from listed(
        make(name=name, error_code=_REFUSED, error_message=refusal(context, Operation.ALTER, _TOPIC, name))
        for name in names
    )
    return with_refused(handler, context, request, "topics", kept, results, "results")


# --- Configurations ---

_RESOURCES = {
    ConfiguredType.TOPIC.value: ResourceType.TOPIC,
    ConfiguredType.GROUP.value: ResourceType.GROUP,
    ConfiguredType.BROKER.value: ResourceType.CLUSTER,
    ConfiguredType.BROKER_LOGGER.value: ResourceType.CLUSTER,
    ConfiguredType.CLIENT_METRICS.value: ResourceType.CLUSTER,
}
"""The type of resource on which a right is needed, by the type of the configured resource."""
_ERRORS = {
    ResourceType.TOPIC: ErrorCode.TOPIC_AUTHORIZATION_FAILED,
    ResourceType.GROUP: ErrorCode.GROUP_AUTHORIZATION_FAILED,
    ResourceType.CLUSTER: ErrorCode.CLUSTER_AUTHORIZATION_FAILED,
}


def _configs(
    operation: Operation,
    into: str,
    make: Callable[..., Any],
    checks: Checks,
    handler: Handler,
    context: RequestContext,
    request: Any,
) -> Steps[Any]:
    kept, results = [], []
    for requested in request.resources:
        yield
        kind = _RESOURCES.get(requested.resource_type)
        name = CLUSTER_NAME if kind is ResourceType.CLUSTER else requested.resource_name
        if kind is None or checks.authorization.may(context, operation, kind, name):
            kept.append(requested)
            continue
        code = _ERRORS[kind]
        results.append(
            make(
                error_code=code,
                error_message=refusal(context, operation, kind, name),
                resource_type=requested.resource_type,
                resource_name=requested.resource_name,
            )
        )
    return with_refused(handler, context, request, "resources", kept, results, into)


def _described(**fields: Any) -> DescribeConfigsResponse.DescribeConfigsResult:
    return DescribeConfigsResponse.DescribeConfigsResult(configs=[], **fields)


GUARDS: dict[str, Callable[..., Any]] = {
    "CreateTopics": _create_topics,
    "DeleteTopics": _delete_topics,
    "CreatePartitions": _create_partitions,
    DescribeConfigsRequest.__name__.removesuffix("Request"): partial(
        _configs, Operation.DESCRIBE_CONFIGS, "results", _described
    ),
    AlterConfigsRequest.__name__.removesuffix("Request"): partial(
        _configs, Operation.ALTER_CONFIGS, "responses", AlterConfigsResponse.AlterConfigsResourceResponse
    ),
    IncrementalAlterConfigsRequest.__name__.removesuffix("Request"): partial(
        _configs, Operation.ALTER_CONFIGS, "responses", IncrementalAlterConfigsResponse.AlterConfigsResourceResponse
    ),
}
