"""Guards of requests about share groups."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from parley.broker.api.authorization.described_groups import DescribeGuard
from parley.broker.api.authorization.elements import Checks, after, listed, made_of
from parley.broker.api.share_groups import check_member_id, undescribed_share_group
from parley.broker.network.request_context import Handler, RequestContext
from parley.broker.runtime.steps import Steps
from parley.broker.security.operations import Operation
from parley.broker.security.resources import ResourceType
from parley.protocol.errors import ErrorCode, KafkaError
from parley.protocol.messages.share_groups import (
    AlterShareGroupOffsetsRequest,
    AlterShareGroupOffsetsResponse,
    DeleteShareGroupOffsetsRequest,
    DeleteShareGroupOffsetsResponse,
    DescribeShareGroupOffsetsRequest,
    DescribeShareGroupOffsetsResponse,
    ShareGroupDescribeResponse,
    ShareGroupHeartbeatRequest,
)
from parley.protocol.schema import ZERO_UUID

_TOPIC, _GROUP = ResourceType.TOPIC, ResourceType.GROUP
_TOPIC_REFUSED, _GROUP_REFUSED = ErrorCode.TOPIC_AUTHORIZATION_FAILED, ErrorCode.GROUP_AUTHORIZATION_FAILED


def _heartbeat(
    checks: Checks, handler: Handler, context: RequestContext, request: ShareGroupHeartbeatRequest
) -> Steps[Any]:
    if not checks.authorization.may(context, Operation.READ, _GROUP, request.group_id):
        raise KafkaError(_GROUP_REFUSED)
    check_member_id(request)  # before the topics, as in Kafka
    names = set(request.subscribed_topic_names or ())
    if names and (yield from checks.allowed(context, Operation.DESCRIBE, _TOPIC, names)) != names:
        raise KafkaError(_TOPIC_REFUSED)
    return handler(context, request)


def _topics_of(group: ShareGroupDescribeResponse.DescribedGroup) -> set[str]:
    return {topic.topic_name for member in group.members for topic in member.assignment.topic_partitions}


def _describe_offsets(
    checks: Checks, handler: Handler, context: RequestContext, request: DescribeShareGroupOffsetsRequest
) -> Steps[Any]:
    kept, refused = yield from checks.divide(
        context, Operation.DESCRIBE, _GROUP, request.groups, lambda group: group.group_id
    )
    make = DescribeShareGroupOffsetsResponse.DescribeShareGroupOffsetsResponseGroup
    results = yield from listed(
        make(group_id=group.group_id, topics=[], error_code=_GROUP_REFUSED) for group in refused
    )
    about_all = {group.group_id for group in kept if group.topics is None}
    hidden: dict[str, list[Any]] = {}
    for group in kept:
        if group.topics is not None:
            group.topics, unseen = yield from checks.divide(
                context, Operation.DESCRIBE, _TOPIC, group.topics, lambda topic: topic.topic_name
            )
            hidden.setdefault(group.group_id, []).extend((yield from made_of(unseen, _undescribed)))

    def complete(response: DescribeShareGroupOffsetsResponse) -> DescribeShareGroupOffsetsResponse:
        for group in response.groups:
            if group.error_code == ErrorCode.NONE and group.group_id in about_all:
                names = {topic.topic_name for topic in group.topics}
                allowed = checks.authorization.allowed(context, Operation.DESCRIBE, _TOPIC, names, is_probe=True)
                group.topics = [topic for topic in group.topics if topic.topic_name in allowed]
            unseen = hidden.pop(group.group_id, ())
            if group.error_code == ErrorCode.NONE:
                group.topics.extend(unseen)
        response.groups.extend(results)
        return response

    if not kept and results:
        return DescribeShareGroupOffsetsResponse(groups=results)
    request.groups = kept
    return after(handler(context, request), complete)


def _undescribed(
    topic: DescribeShareGroupOffsetsRequest.DescribeShareGroupOffsetsRequestTopic,
) -> Steps[DescribeShareGroupOffsetsResponse.DescribeShareGroupOffsetsResponseTopic]:
    make = DescribeShareGroupOffsetsResponse.DescribeShareGroupOffsetsResponsePartition
    partitions = yield from listed(
        make(
            partition_index=index,
            start_offset=-1,
            leader_epoch=0,
            error_code=_TOPIC_REFUSED,
            error_message=_TOPIC_REFUSED.message,
        )
        for index in topic.partitions
    )
    return DescribeShareGroupOffsetsResponse.DescribeShareGroupOffsetsResponseTopic(
        topic_name=topic.topic_name, topic_id=ZERO_UUID, partitions=partitions
    )


def _alter_offsets(
    checks: Checks, handler: Handler, context: RequestContext, request: AlterShareGroupOffsetsRequest
) -> Steps[Any]:
    if not checks.authorization.may(context, Operation.READ, _GROUP, request.group_id):
        raise KafkaError(_GROUP_REFUSED)
    kept, refused = yield from checks.divide(
        context, Operation.READ, _TOPIC, request.topics, lambda topic: topic.topic_name
    )
    make = AlterShareGroupOffsetsResponse.AlterShareGroupOffsetsResponsePartition

    def unaltered(
        topic: AlterShareGroupOffsetsRequest.AlterShareGroupOffsetsRequestTopic,
    ) -> Steps[AlterShareGroupOffsetsResponse.AlterShareGroupOffsetsResponseTopic]:
        partitions = yield from listed(
            make(partition_index=each.partition_index, error_code=_TOPIC_REFUSED, error_message=_TOPIC_REFUSED.message)
            for each in topic.partitions
        )
        return AlterShareGroupOffsetsResponse.AlterShareGroupOffsetsResponseTopic(
            topic_name=topic.topic_name, topic_id=ZERO_UUID, partitions=partitions
        )

    results = yield from made_of(refused, unaltered)
    return _with_results(handler, context, request, kept, results)


def _delete_offsets(
    checks: Checks, handler: Handler, context: RequestContext, request: DeleteShareGroupOffsetsRequest
) -> Steps[Any]:
    if not checks.authorization.may(context, Operation.DELETE, _GROUP, request.group_id):
        raise KafkaError(_GROUP_REFUSED)
    kept, refused = yield from checks.divide(
        context, Operation.READ, _TOPIC, request.topics, lambda topic: topic.topic_name
    )
    make = DeleteShareGroupOffsetsResponse.DeleteShareGroupOffsetsResponseTopic
    results = yield from listed(
        make(
            topic_name=topic.topic_name,
            topic_id=ZERO_UUID,
            error_code=_TOPIC_REFUSED,
            error_message=_TOPIC_REFUSED.message,
        )
        for topic in refused
    )
    return _with_results(handler, context, request, kept, results)


def _with_results(handler: Handler, context: RequestContext, request: Any, kept: list[Any], results: list[Any]) -> Any:
    """Call the handler with the topics ``kept``, and add ``results`` to its response.

    The handler is called even if no topic is left. If it returns an error of the group, ``results`` are left out.
    """
    request.topics = kept

    def add(response: Any) -> Any:
        if not response.error_code:
            response.responses.extend(results)
        return response

    return after(handler(context, request), add)


GUARDS: dict[str, Callable[..., Any]] = {
    "ShareGroupHeartbeat": _heartbeat,
    "ShareGroupDescribe": DescribeGuard(
        undescribed_share_group,
        _topics_of,
        "The group has described topic(s) that the client is not authorized to describe.",
    ),
    "DescribeShareGroupOffsets": _describe_offsets,
    "AlterShareGroupOffsets": _alter_offsets,
    "DeleteShareGroupOffsets": _delete_offsets,
}
