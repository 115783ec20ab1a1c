"""ShareGroupHeartbeat, ShareGroupDescribe, and the offsets of share groups (KIP-932).

The handlers validate requests, and translate between messages and ``parley.broker.coordinators.groups.share``.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any, Final

from parley.broker.api.groups import GROUP_OPERATIONS, responding
from parley.broker.api.requested_names import once
from parley.broker.coordinators.groups.coordinator import GroupCoordinator
from parley.broker.coordinators.groups.group import Group
from parley.broker.coordinators.groups.share.heartbeats import JOIN, LEAVE
from parley.broker.coordinators.groups.share.share_group import ShareGroup, ShareMember
from parley.broker.coordinators.groups.share.share_groups import UNKNOWN_LAG, SharePartitionOffset
from parley.broker.coordinators.groups.share.simple_assignor import SIMPLE
from parley.broker.coordinators.share_state.persister import UNINITIALIZED_OFFSET
from parley.broker.metadata.current import Metadata
from parley.broker.metadata.feature_support import serves_share_groups
from parley.broker.network.request_context import Handler, RequestContext
from parley.broker.security.operations import NOT_REQUESTED
from parley.protocol.errors import ErrorCode, KafkaError
from parley.protocol.messages.share_groups import (
    AlterShareGroupOffsetsRequest,
    AlterShareGroupOffsetsResponse,
    DeleteShareGroupOffsetsRequest,
    DeleteShareGroupOffsetsResponse,
    DescribeShareGroupOffsetsRequest,
    DescribeShareGroupOffsetsResponse,
    ShareGroupDescribeRequest,
    ShareGroupDescribeResponse,
    ShareGroupHeartbeatRequest,
    ShareGroupHeartbeatResponse,
)
from parley.protocol.schema import ZERO_UUID
from parley.protocol.uuids import UUID

MEMBER_ID_MAX: Final = 36
"""The maximum length, in characters, of a member id, which is a UUID."""

GROUP_ID_MAX: Final = 8_192
"""The maximum length, in characters, of a group id, which must fit in the keys of records."""


class ShareGroupsApi:
    """Handlers of requests about share groups."""

    def __init__(self, coordinator: GroupCoordinator, metadata: Metadata) -> None:
        self._coordinator = coordinator
        self._metadata = metadata

    def routes(self) -> dict[int, Handler]:
        return {
            ShareGroupHeartbeatRequest.API_KEY: self.heartbeat,
            ShareGroupDescribeRequest.API_KEY: self.describe,
            DescribeShareGroupOffsetsRequest.API_KEY: self.describe_offsets,
            AlterShareGroupOffsetsRequest.API_KEY: self.alter_offsets,
            DeleteShareGroupOffsetsRequest.API_KEY: self.delete_offsets,
        }

    def _check(self, group_id: str) -> None:
        """Check that the cluster offers share groups and that this broker coordinates the group.

        Raises KafkaError: UNSUPPORTED_VERSION, INVALID_GROUP_ID, or the error of a broker that does not coordinate the
        group.
        """
        self._check_offered()
        self._coordinator.check_owned(group_id)

    def _check_offered(self) -> None:
        if not serves_share_groups(self._metadata.image):
            raise KafkaError(
                ErrorCode.UNSUPPORTED_VERSION,
                "The cluster does not support share groups: share.version is 0, or a broker is too old.",
            )

    # --- ShareGroupHeartbeat ---

    def heartbeat(
        self, context: RequestContext, request: ShareGroupHeartbeatRequest
    ) -> ShareGroupHeartbeatResponse | asyncio.Future[ShareGroupHeartbeatResponse]:
        """Join a group, stay in it, or leave it. The response contains the member's partitions if they have changed, or
        an error code. It is a future if the group's changes must be stored first."""
        try:
            self._check_offered()
            _check_heartbeat(request)
            outcome = self._coordinator.share.heartbeat(context, request)
            return responding(outcome, lambda response: response, _failed)
        except KafkaError as error:
            return _failed(error)

    # --- ShareGroupDescribe ---

    async def describe(self, context: RequestContext, request: ShareGroupDescribeRequest) -> ShareGroupDescribeResponse:
        """Describe groups: their state, epochs, members and assignments. A group that cannot be described gets an error
        code. Responds when the in-sync replicas have everything that the response contains."""
        operations = GROUP_OPERATIONS if request.include_authorized_operations else NOT_REQUESTED
        groups = []
        for group_id in dict.fromkeys(request.group_ids):
            try:
                self._check(group_id)
                groups.append(await self._coordinator.read(group_id, self._describer(group_id, operations)))
            except KafkaError as error:
                groups.append(undescribed_share_group(group_id, error.code, error.message or None))
        return ShareGroupDescribeResponse(groups=groups)

    def _describer(self, group_id: str, operations: int) -> Any:
        names = self._metadata.image.topic_names

        def described(group: Group | None) -> ShareGroupDescribeResponse.DescribedGroup:
            if group is None:
                raise KafkaError(ErrorCode.GROUP_ID_NOT_FOUND, f"Group {group_id} not found.")
            if group.share is None:
                raise KafkaError(ErrorCode.GROUP_ID_NOT_FOUND, f"Group {group_id} is not a share group.")
            return _described(group.share, names, operations)

        return described

    # --- Offsets ---

    async def describe_offsets(
        self, context: RequestContext, request: DescribeShareGroupOffsetsRequest
    ) -> DescribeShareGroupOffsetsResponse:
        """Describe the start offset and the lag of each requested share partition, or of all share partitions of a
        group. Groups and partitions that cannot be described get an error code."""
        return DescribeShareGroupOffsetsResponse(
            groups=[await self._offsets_of(requested) for requested in request.groups]
        )

    async def _offsets_of(
        self, requested: DescribeShareGroupOffsetsRequest.DescribeShareGroupOffsetsRequestGroup
    ) -> DescribeShareGroupOffsetsResponse.DescribeShareGroupOffsetsResponseGroup:
        make = DescribeShareGroupOffsetsResponse.DescribeShareGroupOffsetsResponseGroup
        topics = requested.topics
        if topics is not None and not topics:
            return make(group_id=requested.group_id, topics=[])  # as in Kafka, which then does not look up the group
        wanted = None if topics is None else once(((t.topic_name, t.partitions) for t in topics), int)
        try:
            self._check(requested.group_id)
            found = await self._coordinator.share.describe_offsets(requested.group_id, wanted)
        except KafkaError as error:
            return make(
                group_id=requested.group_id, topics=[], error_code=error.code, error_message=error.message or None
            )
        kind = DescribeShareGroupOffsetsResponse.DescribeShareGroupOffsetsResponseTopic
        return make(
            group_id=requested.group_id,
            topics=[
                kind(
                    topic_name=name,
                    topic_id=self._topic_id(name),
                    partitions=[_described_offset(index, offset) for index, offset in partitions.items()],
                )
                for name, partitions in found.items()
            ],
        )

    async def alter_offsets(
        self, context: RequestContext, request: AlterShareGroupOffsetsRequest
    ) -> AlterShareGroupOffsetsResponse:
        """Set the start offsets of a group without members. Creates the group if it does not exist.

        Offset -1 means the offset that the group's reset policy selects. A partition with a lower offset gets
        INVALID_REQUEST, although Kafka would store any number. For an error of the group, such as NON_EMPTY_GROUP, the
        response contains only an error code.
        """
        make = AlterShareGroupOffsetsResponse.AlterShareGroupOffsetsResponsePartition
        named = once(((t.topic_name, t.partitions) for t in request.topics), lambda each: each.partition_index)
        wanted = {name: {index: each.start_offset for index, each in found.items()} for name, found in named.items()}
        negative = {
            name: [index for index, start in starts.items() if start < UNINITIALIZED_OFFSET]
            for name, starts in wanted.items()
        }
        possible = {
            name: {index: start for index, start in starts.items() if start >= UNINITIALIZED_OFFSET}
            for name, starts in wanted.items()
        }
        try:
            self._check(request.group_id)
            outcomes = await self._coordinator.share.alter_offsets(request.group_id, possible)
        except KafkaError as error:
            return AlterShareGroupOffsetsResponse(
                error_code=error.code, error_message=error.message or None, responses=[]
            )
        for name, indexes in negative.items():
            outcomes[name] = {**outcomes[name], **dict.fromkeys(indexes, ErrorCode.INVALID_REQUEST)}
        return AlterShareGroupOffsetsResponse(
            responses=[
                AlterShareGroupOffsetsResponse.AlterShareGroupOffsetsResponseTopic(
                    topic_name=name,
                    topic_id=self._topic_id(name),
                    partitions=[
                        make(partition_index=index, error_code=code, error_message=code.message if code else None)
                        for index, code in codes.items()
                    ],
                )
                for name, codes in outcomes.items()
            ]
        )

    async def delete_offsets(
        self, context: RequestContext, request: DeleteShareGroupOffsetsRequest
    ) -> DeleteShareGroupOffsetsResponse:
        """Delete the start offsets of the requested topics from a group without members. Each topic's deletion succeeds
        or fails independently. For an error of the group, such as NON_EMPTY_GROUP, the response contains only an error
        code."""
        try:
            self._check(request.group_id)
            outcomes = await self._coordinator.share.delete_offsets(
                request.group_id, [topic.topic_name for topic in request.topics]
            )
        except KafkaError as error:
            return DeleteShareGroupOffsetsResponse(
                error_code=error.code, error_message=error.message or None, responses=[]
            )
        make = DeleteShareGroupOffsetsResponse.DeleteShareGroupOffsetsResponseTopic
        return DeleteShareGroupOffsetsResponse(
            responses=[
                make(topic_name=name, topic_id=self._topic_id(name))
                if error is None
                else make(topic_name=name, topic_id=ZERO_UUID, error_code=error.code, error_message=error.message)
                for name, error in outcomes.items()
            ]
        )

    def _topic_id(self, name: str) -> UUID:
        topic = self._metadata.image.topics.get(name)
        return ZERO_UUID if topic is None else topic.topic_id


def _described(
    group: ShareGroup, names: Mapping[UUID, str], operations: int
) -> ShareGroupDescribeResponse.DescribedGroup:
    return ShareGroupDescribeResponse.DescribedGroup(
        group_id=group.group_id,
        group_state=group.state().value,
        group_epoch=group.epoch,
        assignment_epoch=group.target_epoch,
        assignor_name=SIMPLE,
        members=[_described_member(member, names) for member in group.members.values()],
        authorized_operations=operations,
    )


def _described_member(member: ShareMember, names: Mapping[UUID, str]) -> ShareGroupDescribeResponse.Member:
    make = ShareGroupDescribeResponse.TopicPartitions
    return ShareGroupDescribeResponse.Member(
        member_id=member.member_id,
        rack_id=member.rack_id,
        member_epoch=member.epoch,
        client_id=member.client_id,
        client_host=member.client_host,
        subscribed_topic_names=list(member.topics),
        assignment=ShareGroupDescribeResponse.Assignment(
            topic_partitions=[
                make(topic_id=topic, topic_name=names[topic], partitions=sorted(partitions))
                for topic, partitions in member.assigned.items()
                if topic in names
            ]
        ),
    )


def undescribed_share_group(
    group_id: str, code: ErrorCode, message: str | None = None
) -> ShareGroupDescribeResponse.DescribedGroup:
    """Return the result for a group that cannot be described."""
    return ShareGroupDescribeResponse.DescribedGroup(
        error_code=code,
        error_message=message,
        group_id=group_id,
        group_state="",
        group_epoch=0,
        assignment_epoch=0,
        assignor_name="",
        members=[],
    )


def _described_offset(
    index: int, offset: SharePartitionOffset
) -> DescribeShareGroupOffsetsResponse.DescribeShareGroupOffsetsResponsePartition:
    error = offset.error
    return DescribeShareGroupOffsetsResponse.DescribeShareGroupOffsetsResponsePartition(
        partition_index=index,
        start_offset=offset.start_offset,
        leader_epoch=offset.leader_epoch,
        # The start offset can be beyond the end of the log. Kafka's lag is then negative.
        lag=offset.lag if offset.lag == UNKNOWN_LAG else max(0, offset.lag),
        error_code=ErrorCode.NONE if error is None else error.code,
        error_message=None if error is None else error.message,
    )


def _failed(error: KafkaError) -> ShareGroupHeartbeatResponse:
    too_large = error.code is ErrorCode.MESSAGE_TOO_LARGE
    code = ErrorCode.UNKNOWN_SERVER_ERROR if too_large else error.code
    return ShareGroupHeartbeatResponse(
        error_code=code, error_message=error.message or None, member_epoch=0, heartbeat_interval_ms=0
    )


def check_member_id(request: ShareGroupHeartbeatRequest) -> None:
    """Raise KafkaError (INVALID_REQUEST) if the member id is invalid."""
    if not request.member_id or len(request.member_id) > MEMBER_ID_MAX:
        raise KafkaError(ErrorCode.INVALID_REQUEST, "Invalid member id in the request.")


def _check_heartbeat(request: ShareGroupHeartbeatRequest) -> None:
    """Raise KafkaError (INVALID_REQUEST) if a heartbeat violates one of Kafka's rules."""
    check_member_id(request)
    for value, name in ((request.member_id, "MemberId"), (request.group_id, "GroupId"), (request.rack_id, "RackId")):
        if value is not None and not value.strip():
            raise KafkaError(ErrorCode.INVALID_REQUEST, f"{name} can't be empty.")
    if len(request.group_id) > GROUP_ID_MAX:
        raise KafkaError(ErrorCode.INVALID_REQUEST, f"GroupId has more than {GROUP_ID_MAX} characters.")
    if request.member_epoch == JOIN:
        if not request.subscribed_topic_names:
            raise KafkaError(ErrorCode.INVALID_REQUEST, "SubscribedTopicNames must be set in first request.")
    elif request.member_epoch < LEAVE:
        raise KafkaError(ErrorCode.INVALID_REQUEST, "MemberEpoch is invalid.")
