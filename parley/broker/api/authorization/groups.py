"""Guards of requests about groups and their offsets."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

from parley.broker.api.authorization.described_groups import DescribeGuard
from parley.broker.api.authorization.elements import Checks, R, after, listed, made_of, refusal, with_refused
from parley.broker.api.consumer_groups import undescribed_consumer_group
from parley.broker.api.find_coordinator import GROUP_KEY, TRANSACTION_KEY
from parley.broker.coordinators.groups.classic.responses import join_error
from parley.broker.network.request_context import Handler, RequestContext
from parley.broker.runtime.steps import Steps
from parley.broker.security.operations import Operation
from parley.broker.security.resources import ResourceType
from parley.protocol.errors import ErrorCode, KafkaError
from parley.protocol.messages.consumer_groups import (
    ConsumerGroupDescribeResponse,
    ConsumerGroupHeartbeatRequest,
)
from parley.protocol.messages.group_offsets import (
    OffsetCommitRequest,
    OffsetCommitResponse,
    OffsetDeleteRequest,
    OffsetDeleteResponse,
    OffsetFetchRequest,
    OffsetFetchResponse,
)
from parley.protocol.messages.groups import (
    DeleteGroupsRequest,
    DeleteGroupsResponse,
    DescribeGroupsRequest,
    DescribeGroupsResponse,
    FindCoordinatorRequest,
    FindCoordinatorResponse,
    JoinGroupRequest,
    ListGroupsRequest,
    ListGroupsResponse,
)
from parley.protocol.sentinels import NO_EPOCH, NO_OFFSET

_TOPIC_REFUSED, _GROUP_REFUSED = ErrorCode.TOPIC_AUTHORIZATION_FAILED, ErrorCode.GROUP_AUTHORIZATION_FAILED
_TOPIC, _GROUP = ResourceType.TOPIC, ResourceType.GROUP

_OF_GROUPS = 8
"""The first version of OffsetFetch that can name several groups."""
_WITH_ERROR_CODE = 2
"""The first version of OffsetFetch with an error code for the whole response."""
_KEYS_SINCE = 4
"""The first version of FindCoordinator that can contain several keys."""
_SHARE_KEY = 2
"""The key type of share coordinators."""

# --- Members ---


def _member(checks: Checks, handler: Handler, context: RequestContext, request: Any) -> Any:
    if checks.authorization.may(context, Operation.READ, _GROUP, request.group_id):
        return handler(context, request)
    if isinstance(request, JoinGroupRequest):
        return join_error(_GROUP_REFUSED, request.member_id, context.api_version)
    raise KafkaError(_GROUP_REFUSED)


def _consumer_member(
    checks: Checks, handler: Handler, context: RequestContext, request: ConsumerGroupHeartbeatRequest
) -> Steps[Any]:
    if not checks.authorization.may(context, Operation.READ, _GROUP, request.group_id):
        raise KafkaError(_GROUP_REFUSED)
    names = set(request.subscribed_topic_names or ())
    if names and (yield from checks.allowed(context, Operation.DESCRIBE, _TOPIC, names)) != names:
        raise KafkaError(_TOPIC_REFUSED)
    return handler(context, request)


def _find_coordinator(
    checks: Checks, handler: Handler, context: RequestContext, request: FindCoordinatorRequest
) -> Steps[Any]:
    if request.key_type == _SHARE_KEY and not checks.authorization.may_on_cluster(context, Operation.CLUSTER_ACTION):
        if context.api_version < _KEYS_SINCE:
            raise KafkaError(ErrorCode.CLUSTER_AUTHORIZATION_FAILED)
        return FindCoordinatorResponse(
            coordinators=(yield from listed(map(_no_share_coordinator, dict.fromkeys(request.coordinator_keys))))
        )
    kinds = {
        GROUP_KEY: (_GROUP, _GROUP_REFUSED),
        TRANSACTION_KEY: (ResourceType.TRANSACTIONAL_ID, ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED),
    }
    kind = kinds.get(request.key_type)
    if kind is None:
        return handler(context, request)
    type, code = kind
    if context.api_version < _KEYS_SINCE:
        if checks.authorization.may(context, Operation.DESCRIBE, type, request.key):
            return handler(context, request)
        text = refusal(context, Operation.DESCRIBE, type, request.key)
        return FindCoordinatorResponse(error_code=code, error_message=text, node_id=-1, host="", port=-1)
    if not request.coordinator_keys:  # the handler would create the internal topic
        return FindCoordinatorResponse(coordinators=[])
    kept, refused = yield from checks.divide(
        context, Operation.DESCRIBE, type, request.coordinator_keys, lambda key: key
    )
    make = FindCoordinatorResponse.Coordinator
    results = yield from listed(
        make(
            key=key,
            node_id=-1,
            host="",
            port=-1,
            error_code=code,
            error_message=refusal(context, Operation.DESCRIBE, type, key),
        )
        for key in dict.fromkeys(refused)
    )
    return with_refused(handler, context, request, "coordinator_keys", kept, results, "coordinators")


def _no_share_coordinator(key: str) -> FindCoordinatorResponse.Coordinator:
    return FindCoordinatorResponse.Coordinator(
        key=key,
        node_id=-1,
        host="",
        port=-1,
        error_code=ErrorCode.CLUSTER_AUTHORIZATION_FAILED,
        error_message=ErrorCode.CLUSTER_AUTHORIZATION_FAILED.message,
    )


# --- Administration ---


def _describe_groups(
    checks: Checks, handler: Handler, context: RequestContext, request: DescribeGroupsRequest
) -> Steps[Any]:
    kept, refused = yield from checks.divide(context, Operation.DESCRIBE, _GROUP, request.groups, lambda group: group)
    results = yield from listed(
        DescribeGroupsResponse.DescribedGroup(
            error_code=_GROUP_REFUSED, group_id=group, group_state="", protocol_type="", protocol_data="", members=[]
        )
        for group in dict.fromkeys(refused)
    )
    result = with_refused(handler, context, request, "groups", kept, results, "groups")
    return after(result, partial(_add_operations, checks, context)) if request.include_authorized_operations else result


def _topics_of_consumer_group(group: ConsumerGroupDescribeResponse.DescribedGroup) -> set[str]:
    return {
        topic.topic_name
        for member in group.members
        for assignment in (member.assignment, member.target_assignment)
        for topic in assignment.topic_partitions
    }


def _add_operations(
    checks: Checks, context: RequestContext, response: DescribeGroupsResponse
) -> DescribeGroupsResponse:
    for group in response.groups:
        if group.error_code == ErrorCode.NONE:
            group.authorized_operations = checks.authorization.operations(context, _GROUP, group.group_id)
    return response


def _delete_groups(
    checks: Checks, handler: Handler, context: RequestContext, request: DeleteGroupsRequest
) -> Steps[Any]:
    kept, refused = yield from checks.divide(
        context, Operation.DELETE, _GROUP, request.groups_names, lambda group: group
    )
    make = DeleteGroupsResponse.DeletableGroupResult
    results = yield from listed(make(group_id=group, error_code=_GROUP_REFUSED) for group in dict.fromkeys(refused))
    return with_refused(handler, context, request, "groups_names", kept, results, "results")


def _list_groups(checks: Checks, handler: Handler, context: RequestContext, request: ListGroupsRequest) -> Any:
    if checks.authorization.may_on_cluster(context, Operation.DESCRIBE, is_probe=True):
        return handler(context, request)

    def visible(response: ListGroupsResponse) -> ListGroupsResponse:
        names = {group.group_id for group in response.groups}
        allowed = checks.authorization.allowed(context, Operation.DESCRIBE, _GROUP, names, is_probe=True)
        response.groups = [group for group in response.groups if group.group_id in allowed]
        return response

    return after(handler(context, request), visible)


# --- Offsets ---


def _commit(checks: Checks, handler: Handler, context: RequestContext, request: OffsetCommitRequest) -> Steps[Any]:
    if not checks.authorization.may(context, Operation.READ, _GROUP, request.group_id):
        refused = yield from made_of(request.topics, lambda topic: _uncommitted(topic, _GROUP_REFUSED))
        return OffsetCommitResponse(topics=refused)
    kept, unreadable = yield from checks.divide(context, Operation.READ, _TOPIC, request.topics, checks.name_of)
    results = yield from made_of(unreadable, lambda topic: _uncommitted(topic, checks.code_of(topic)))
    return with_refused(handler, context, request, "topics", kept, results, "topics")


def _uncommitted(
    topic: OffsetCommitRequest.OffsetCommitRequestTopic, code: ErrorCode
) -> Steps[OffsetCommitResponse.OffsetCommitResponseTopic]:
    make = OffsetCommitResponse.OffsetCommitResponsePartition
    partitions = yield from listed(
        make(partition_index=each.partition_index, error_code=code) for each in topic.partitions
    )
    return OffsetCommitResponse.OffsetCommitResponseTopic(
        name=topic.name, topic_id=topic.topic_id, partitions=partitions
    )


def _fetch(checks: Checks, handler: Handler, context: RequestContext, request: OffsetFetchRequest) -> Steps[Any]:
    if context.api_version >= _OF_GROUPS:
        return (yield from _fetch_groups(checks, handler, context, request))
    if not checks.authorization.may(context, Operation.DESCRIBE, _GROUP, request.group_id):
        if context.api_version >= _WITH_ERROR_CODE:
            return OffsetFetchResponse(error_code=_GROUP_REFUSED, topics=[])
        refused = yield from made_of(request.topics or (), lambda topic: _unfetched(topic, _GROUP_REFUSED))
        return OffsetFetchResponse(topics=refused)
    if request.topics is None:
        return after(handler(context, request), partial(_visible_topics, checks, context))
    kept, unseen = yield from checks.divide(
        context, Operation.DESCRIBE, _TOPIC, request.topics, lambda topic: topic.name
    )
    results = yield from made_of(unseen, lambda topic: _unfetched(topic, _TOPIC_REFUSED))
    return with_refused(handler, context, request, "topics", kept, results, "topics")


def _visible_topics(checks: Checks, context: RequestContext, response: Any) -> Any:
    """Remove the topics that the client may not describe from a response about all topics of a group. Returns the
    response."""
    names = {topic.name for topic in response.topics}
    allowed = checks.authorization.allowed(context, Operation.DESCRIBE, _TOPIC, names, is_probe=True)
    response.topics = [topic for topic in response.topics if topic.name in allowed]
    return response


def _unfetched(
    topic: OffsetFetchRequest.OffsetFetchRequestTopic, code: ErrorCode
) -> Steps[OffsetFetchResponse.OffsetFetchResponseTopic]:
    make = OffsetFetchResponse.OffsetFetchResponsePartition
    partitions = yield from _without_offsets(make, topic.partition_indexes, code)
    return OffsetFetchResponse.OffsetFetchResponseTopic(name=topic.name, partitions=partitions)


def _without_offsets(make: Callable[..., R], indexes: Iterable[int], code: ErrorCode) -> Steps[list[R]]:
    """Return a result for each partition of a topic, with the error instead of a committed offset."""
    return (
        yield from listed(
            make(
                partition_index=index,
                committed_offset=NO_OFFSET,
                committed_leader_epoch=NO_EPOCH,
                metadata="",
                error_code=code,
            )
            for index in indexes
        )
    )


def _fetch_groups(checks: Checks, handler: Handler, context: RequestContext, request: OffsetFetchRequest) -> Steps[Any]:
    kept, refused = yield from checks.divide(
        context, Operation.DESCRIBE, _GROUP, request.groups, lambda group: group.group_id
    )
    make = OffsetFetchResponse.OffsetFetchResponseGroup
    results = yield from listed(
        make(group_id=group, topics=[], error_code=_GROUP_REFUSED)
        for group in dict.fromkeys(each.group_id for each in refused)
    )
    hidden: dict[str, list[OffsetFetchResponse.OffsetFetchResponseTopics]] = {}
    about_all: set[str] = set()
    for group in kept:
        if group.topics is None:
            about_all.add(group.group_id)
            continue
        group.topics, unseen = yield from checks.divide(
            context,
            Operation.DESCRIBE,
            _TOPIC,
            group.topics,
            lambda topic: checks.topic_name(topic.name, topic.topic_id),
        )
        results_of_group = yield from made_of(unseen, lambda topic: _unfetched_of_group(topic, checks.code_of(topic)))
        hidden.setdefault(group.group_id, []).extend(results_of_group)

    def complete(response: OffsetFetchResponse) -> OffsetFetchResponse:
        for group in response.groups:
            if group.error_code == ErrorCode.NONE:
                if group.group_id in about_all:
                    _visible_topics(checks, context, group)
                group.topics.extend(hidden.get(group.group_id, ()))
        response.groups.extend(results)
        return response

    if not kept:
        return OffsetFetchResponse(groups=results)
    request.groups = kept
    return after(handler(context, request), complete)


def _unfetched_of_group(
    topic: OffsetFetchRequest.OffsetFetchRequestTopics, code: ErrorCode
) -> Steps[OffsetFetchResponse.OffsetFetchResponseTopics]:
    make = OffsetFetchResponse.OffsetFetchResponsePartitions
    partitions = yield from _without_offsets(make, topic.partition_indexes, code)
    return OffsetFetchResponse.OffsetFetchResponseTopics(
        name=topic.name, topic_id=topic.topic_id, partitions=partitions
    )


def _delete_offsets(
    checks: Checks, handler: Handler, context: RequestContext, request: OffsetDeleteRequest
) -> Steps[Any]:
    if not checks.authorization.may(context, Operation.DELETE, _GROUP, request.group_id):
        raise KafkaError(_GROUP_REFUSED)
    kept, refused = yield from checks.divide(context, Operation.READ, _TOPIC, request.topics, lambda topic: topic.name)
    make = OffsetDeleteResponse.OffsetDeleteResponsePartition

    def undeleted(
        topic: OffsetDeleteRequest.OffsetDeleteRequestTopic,
    ) -> Steps[OffsetDeleteResponse.OffsetDeleteResponseTopic]:
        partitions = yield from listed(
            make(partition_index=each.partition_index, error_code=_TOPIC_REFUSED) for each in topic.partitions
        )
        return OffsetDeleteResponse.OffsetDeleteResponseTopic(name=topic.name, partitions=partitions)

    results = yield from made_of(refused, undeleted)
    request.topics = kept

    def add(response: OffsetDeleteResponse) -> OffsetDeleteResponse:
        if not response.error_code:  # an error of the group takes precedence, even if no topic is left
            response.topics.extend(results)
        return response

    return after(handler(context, request), add)


GUARDS: dict[str, Callable[..., Any]] = {
    "JoinGroup": _member,
    "SyncGroup": _member,
    "Heartbeat": _member,
    "LeaveGroup": _member,
    "ConsumerGroupHeartbeat": _consumer_member,
    "ConsumerGroupDescribe": DescribeGuard(
        undescribed_consumer_group,
        _topics_of_consumer_group,
        "The group has described topic(s) that the client is not authorized to describe.",
    ),
    "FindCoordinator": _find_coordinator,
    "DescribeGroups": _describe_groups,
    "DeleteGroups": _delete_groups,
    "ListGroups": _list_groups,
    "OffsetCommit": _commit,
    "OffsetFetch": _fetch,
    "OffsetDelete": _delete_offsets,
}
