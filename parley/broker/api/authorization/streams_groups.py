"""Guards of requests about streams groups."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from parley.broker.api.authorization.described_groups import DescribeGuard
from parley.broker.api.authorization.elements import Checks
from parley.broker.api.streams_groups import check_topic_names, topics_of, undescribed_streams_group
from parley.broker.network.request_context import Handler, RequestContext
from parley.broker.runtime.steps import Steps
from parley.broker.security.operations import Operation
from parley.broker.security.resources import ResourceType
from parley.protocol.errors import ErrorCode, KafkaError
from parley.protocol.messages.streams_groups import (
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


def _topics_of_group(group: StreamsGroupDescribeResponse.DescribedGroup) -> set[str]:
    names: set[str] = set()
    for each in () if group.topology is None else group.topology.subtopologies or ():
        names.update(each.source_topics, each.repartition_sink_topics)
        names.update(topic.name for topic in (*each.repartition_source_topics, *each.state_changelog_topics))
    return names


GUARDS: dict[str, Callable[..., Any]] = {
    "StreamsGroupHeartbeat": _heartbeat,
    "StreamsGroupDescribe": DescribeGuard(
        undescribed_streams_group,
        _topics_of_group,
        "The described group uses topics that the client is not authorized to describe.",
    ),
}
