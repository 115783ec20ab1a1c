"""ConsumerGroupHeartbeat, ConsumerGroupDescribe: groups of the consumer protocol (KIP-848).

The handlers validate requests, and translate between messages and ``parley.broker.coordinators.groups.consumer``.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any, Final

from parley.broker.api.groups import GROUP_OPERATIONS, responding
from parley.broker.coordinators.groups.consumer.consumer_group import ConsumerGroup
from parley.broker.coordinators.groups.consumer.heartbeats import JOIN
from parley.broker.coordinators.groups.consumer.member import LEFT_FOR_NOW, Assignment, Member, Progress, partitions_of
from parley.broker.coordinators.groups.consumer.target_assignment import preferred_assignor
from parley.broker.coordinators.groups.coordinator import GroupCoordinator
from parley.broker.coordinators.groups.group import Group
from parley.broker.metadata.current import Metadata
from parley.broker.metadata.feature_support import serves_consumer_groups
from parley.broker.network.request_context import Handler, RequestContext
from parley.broker.security.operations import NOT_REQUESTED
from parley.protocol.errors import ErrorCode, KafkaError
from parley.protocol.messages.consumer_groups import (
    ConsumerGroupDescribeRequest,
    ConsumerGroupDescribeResponse,
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
)
from parley.protocol.uuids import UUID

LEAVE: Final = -1
"""The member epoch in the heartbeat of a member that leaves."""

CHOOSES_ID_SINCE: Final = 1
"""The first version of ConsumerGroupHeartbeat whose members choose their own ids (KIP-1082)."""

MEMBER_ID_MAX: Final = 8_192
"""The maximum length, in characters, of the member id, the group id and the instance id together: they must fit in the
keys of records."""

CLASSIC_TYPE, CONSUMER_TYPE = 0, 1
"""The member types in ConsumerGroupDescribe: the protocol that a member uses."""


class ConsumerGroupsApi:
    """Handlers of requests about consumer groups."""

    def __init__(self, coordinator: GroupCoordinator, metadata: Metadata) -> None:
        self._coordinator = coordinator
        self._metadata = metadata

    def routes(self) -> dict[int, Handler]:
        return {
            ConsumerGroupHeartbeatRequest.API_KEY: self.heartbeat,
            ConsumerGroupDescribeRequest.API_KEY: self.describe,
        }

    # --- ConsumerGroupHeartbeat ---

    def heartbeat(
        self, context: RequestContext, request: ConsumerGroupHeartbeatRequest
    ) -> ConsumerGroupHeartbeatResponse | asyncio.Future[ConsumerGroupHeartbeatResponse]:
        """Join a group, stay in it, or leave it. The response contains the member's partitions if they have changed, or
        an error code. It is a future if the group's changes must be stored first."""
        try:
            self._check_offered()
            _check(context.api_version, request, self._coordinator)
            outcome = self._coordinator.consumer_heartbeat(context, request)
            return responding(outcome, lambda response: response, _failed)
        except KafkaError as error:
            return _failed(error)

    def _check_offered(self) -> None:
        if not serves_consumer_groups(self._metadata.image):
            raise KafkaError(
                ErrorCode.UNSUPPORTED_VERSION,
                "The cluster does not support the consumer protocol: group.version is 0, or a broker is too old.",
            )

    # --- ConsumerGroupDescribe ---

    async def describe(
        self, context: RequestContext, request: ConsumerGroupDescribeRequest
    ) -> ConsumerGroupDescribeResponse:
        """Describe groups: their state, epochs, members and assignments. A group that cannot be described gets an error
        code. Responds when the in-sync replicas have everything that the response contains."""
        operations = GROUP_OPERATIONS if request.include_authorized_operations else NOT_REQUESTED
        groups = []
        for group_id in dict.fromkeys(request.group_ids):
            try:
                self._check_offered()
                if not group_id:
                    raise KafkaError(ErrorCode.INVALID_GROUP_ID)
                groups.append(await self._coordinator.read(group_id, self._describer(group_id, operations)))
            except KafkaError as error:
                groups.append(undescribed_consumer_group(group_id, error.code, error.message or None))
        return ConsumerGroupDescribeResponse(groups=groups)

    def _describer(self, group_id: str, operations: int) -> Any:
        names = self._metadata.image.topic_names

        def described(group: Group | None) -> ConsumerGroupDescribeResponse.DescribedGroup:
            if group is None:
                raise KafkaError(ErrorCode.GROUP_ID_NOT_FOUND, f"Group {group_id} not found.")
            if group.consumer is None:
                raise KafkaError(ErrorCode.GROUP_ID_NOT_FOUND, f"Group {group_id} is not a consumer group.")
            return self._described(group.consumer, names, operations)

        return described

    def _described(
        self, group: ConsumerGroup, names: Mapping[UUID, str], operations: int
    ) -> ConsumerGroupDescribeResponse.DescribedGroup:
        assignor = preferred_assignor(group.members.values(), self._coordinator.assignors)
        return ConsumerGroupDescribeResponse.DescribedGroup(
            group_id=group.group_id,
            group_state=group.state().value,
            group_epoch=group.epoch,
            assignment_epoch=group.target_epoch,
            assignor_name=assignor.name,
            members=[_described_member(member, group, names) for member in group.members.values()],
            authorized_operations=operations,
        )


def _described_member(
    member: Member, group: ConsumerGroup, names: Mapping[UUID, str]
) -> ConsumerGroupDescribeResponse.Member:
    details = member.details
    return ConsumerGroupDescribeResponse.Member(
        member_id=member.member_id,
        instance_id=details.instance_id,
        rack_id=details.rack_id,
        member_epoch=member.progress.epoch,
        client_id=details.client_id,
        client_host=details.client_host,
        subscribed_topic_names=list(details.topics),
        subscribed_topic_regex=details.regex or None,
        assignment=_described_assignment(_still_had(member.progress), names),
        target_assignment=_described_assignment(group.target_of(member.member_id, details.instance_id), names),
        member_type=CONSUMER_TYPE if details.classic is None else CLASSIC_TYPE,
    )


def _still_had(progress: Progress) -> dict[UUID, tuple[int, ...]]:
    """Return the partitions assigned to a member, including those that it has not revoked yet."""
    had = partitions_of(progress.assigned)
    for topic, partitions in progress.revoking.items():
        had[topic] = tuple(sorted({*had.get(topic, ()), *partitions}))
    return had


def _described_assignment(
    assignment: Assignment, names: Mapping[UUID, str]
) -> ConsumerGroupDescribeResponse.Assignment:
    """Return the partitions by topic, without topics that no longer exist."""
    return ConsumerGroupDescribeResponse.Assignment(
        topic_partitions=[
            ConsumerGroupDescribeResponse.TopicPartitions(
                topic_id=topic, topic_name=names[topic], partitions=list(partitions)
            )
            for topic, partitions in assignment.items()
            if topic in names
        ]
    )


def undescribed_consumer_group(
    group_id: str, code: ErrorCode, message: str | None = None
) -> ConsumerGroupDescribeResponse.DescribedGroup:
    """Return the result for a group that cannot be described."""
    return ConsumerGroupDescribeResponse.DescribedGroup(
        error_code=code,
        error_message=message,
        group_id=group_id,
        group_state="",
        group_epoch=0,
        assignment_epoch=0,
        assignor_name="",
        members=[],
    )


def _failed(error: KafkaError) -> ConsumerGroupHeartbeatResponse:
    too_large = error.code is ErrorCode.MESSAGE_TOO_LARGE
    code = ErrorCode.UNKNOWN_SERVER_ERROR if too_large else error.code
    return ConsumerGroupHeartbeatResponse(
        error_code=code, error_message=error.message or None, member_epoch=0, heartbeat_interval_ms=0
    )


# --- Checks ---


def _check(version: int, request: ConsumerGroupHeartbeatRequest, coordinator: GroupCoordinator) -> None:
    """Raise KafkaError (INVALID_REQUEST, UNSUPPORTED_ASSIGNOR) if a heartbeat violates one of Kafka's rules."""
    epoch = request.member_epoch
    if version >= CHOOSES_ID_SINCE or epoch > JOIN or epoch == LEAVE:
        _not_blank(request.member_id, "MemberId")
    _not_blank(request.group_id, "GroupId")
    _not_blank(request.instance_id, "InstanceId")
    _not_blank(request.rack_id, "RackId")
    if len(request.group_id) + len(request.member_id) + len(request.instance_id or "") > MEMBER_ID_MAX:
        raise KafkaError(
            ErrorCode.INVALID_REQUEST,
            f"GroupId, MemberId and InstanceId together have more than {MEMBER_ID_MAX} characters: use shorter ones.",
        )
    if epoch == JOIN:
        _check_joining(request)
    elif epoch < LEFT_FOR_NOW:
        raise KafkaError(ErrorCode.INVALID_REQUEST, "MemberEpoch is invalid.")
    if epoch == LEFT_FOR_NOW and request.instance_id is None:
        raise KafkaError(ErrorCode.INVALID_REQUEST, "InstanceId can't be null.")
    assignors = coordinator.assignors
    if request.server_assignor is not None and request.server_assignor not in assignors:
        raise KafkaError(
            ErrorCode.UNSUPPORTED_ASSIGNOR,
            f"ServerAssignor {request.server_assignor} is not supported. Supported assignors: {', '.join(assignors)}.",
        )


def _check_joining(request: ConsumerGroupHeartbeatRequest) -> None:
    if request.rebalance_timeout_ms == -1:
        raise KafkaError(ErrorCode.INVALID_REQUEST, "RebalanceTimeoutMs must be provided in first request.")
    if request.topic_partitions is None or request.topic_partitions:
        raise KafkaError(ErrorCode.INVALID_REQUEST, "TopicPartitions must be empty when (re-)joining.")
    if request.subscribed_topic_names is None and request.subscribed_topic_regex is None:
        raise KafkaError(
            ErrorCode.INVALID_REQUEST,
            "Either SubscribedTopicNames or SubscribedTopicRegex must be non-null when (re-)joining.",
        )


def _not_blank(value: str | None, name: str) -> None:
    if value is not None and not value.strip():
        raise KafkaError(ErrorCode.INVALID_REQUEST, f"{name} can't be empty.")
