"""Guards of requests about streams groups."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from parley.broker.api.authorization.elements import Checks, after, listed, with_refused
from parley.broker.api.streams_groups import check_topic_names, topics_of, undescribed_streams_group
from parley.broker.network.dispatch import Handler, RequestContext
from parley.broker.runtime.steps import Steps
from parley.broker.security.operations import Operation
from parley.broker.security.resources import ResourceType
from parley.protocol.errors import ErrorCode, KafkaError
from parley.protocol.messages.streams_groups import (
    StreamsGroupDescribeRequest,
    StreamsGroupDescribeResponse,
    StreamsGroupHeartbeatRequest,
)

_TOPIC, _GROUP = ResourceType.TOPIC, ResourceType.GROUP
_TOPIC_REFUSED, _GROUP_REFUSED = ErrorCode.TOPIC_AUTHORIZATION_FAILED, ErrorCode.GROUP_AUTHORIZATION_FAILED


def _heartbeat(
    checks: Checks, handler: Handler, context: RequestContext, request: StreamsGroupHeartbeatRequest
) -> Steps[Any]:
    if not checks.authorization.may(context, Operation.READ, _GROUP, request.group_id):
        raise KafkaError(_GROUP_REFUSED)
    check_topic_names(request)  # before the authorization, as in Kafka
    names = set(topics_of(request))
    if names and (yield from checks.allowed(context, Operation.DESCRIBE, _TOPIC, names)) != names:
        raise KafkaError(_TOPIC_REFUSED)
    return handler(context, request)


def _describe(
    checks: Checks, handler: Handler, context: RequestContext, request: StreamsGroupDescribeRequest
) -> Steps[Any]:
    kept, refused = yield from checks.divide(
        context, Operation.DESCRIBE, _GROUP, request.group_ids, lambda group: group
    )
    results = yield from listed(undescribed_streams_group(group, _GROUP_REFUSED) for group in dict.fromkeys(refused))
    result = with_refused(handler, context, request, "group_ids", kept, results, "groups")
    return after(result, partial(_limit, checks, context, request.include_authorized_operations))


def _limit(
    checks: Checks, context: RequestContext, with_operations: bool, response: StreamsGroupDescribeResponse
) -> StreamsGroupDescribeResponse:
    """If a group's topology contains topics that the client may not describe, replace the group with an error."""
    for index, group in enumerate(response.groups):
        if group.error_code != ErrorCode.NONE:
            continue
        names = _topics(group)
        if names != checks.authorization.allowed(context, Operation.DESCRIBE, _TOPIC, names):
            text = "The described group uses topics that the client is not authorized to describe."
            response.groups[index] = undescribed_streams_group(group.group_id, _TOPIC_REFUSED, text)
        elif with_operations:
            group.authorized_operations = checks.authorization.operations(context, _GROUP, group.group_id)
    return response


def _topics(group: StreamsGroupDescribeResponse.DescribedGroup) -> set[str]:
    names: set[str] = set()
    for each in () if group.topology is None else group.topology.subtopologies or ():
        names.update(each.source_topics, each.repartition_sink_topics)
        names.update(topic.name for topic in (*each.repartition_source_topics, *each.state_changelog_topics))
    return names


GUARDS: dict[str, Callable[..., Any]] = {
    "StreamsGroupHeartbeat": _heartbeat,
    "StreamsGroupDescribe": _describe,
}
