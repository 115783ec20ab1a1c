"""Requests of group members (classic group protocol) and of administrators of groups.

The handlers translate between messages and ``parley.broker.coordinators.groups``. ``parley.broker.api.group_offsets``
handles committed offsets.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from typing import TypeVar

from parley.broker.api.requested_names import in_slices
from parley.broker.config import BrokerConfig
from parley.broker.coordinators.groups.classic.membership import GroupState
from parley.broker.coordinators.groups.classic.responses import code_for_members, join_error, sync_error
from parley.broker.coordinators.groups.consumer.consumer_protocol import CONSUMER_PROTOCOL
from parley.broker.coordinators.groups.coordinator import GroupCoordinator
from parley.broker.coordinators.groups.group import SHARE, STREAMS, Group
from parley.broker.network.request_context import Handler, RequestContext
from parley.broker.runtime.turns import next_turn
from parley.broker.security.operations import NOT_REQUESTED, bit_field
from parley.broker.security.resources import SUPPORTED_OPERATIONS, ResourceType
from parley.protocol.errors import ErrorCode, KafkaError
from parley.protocol.messages.groups import (
    DeleteGroupsRequest,
    DeleteGroupsResponse,
    DescribeGroupsRequest,
    DescribeGroupsResponse,
    HeartbeatRequest,
    HeartbeatResponse,
    JoinGroupRequest,
    JoinGroupResponse,
    LeaveGroupRequest,
    LeaveGroupResponse,
    ListGroupsRequest,
    ListGroupsResponse,
    SyncGroupRequest,
    SyncGroupResponse,
)

T = TypeVar("T")
R = TypeVar("R")

GROUP_OPERATIONS = bit_field(SUPPORTED_OPERATIONS[ResourceType.GROUP])
"""A bit field of all operations on a group. If the broker has an authorizer, a guard removes the operations that the
client may not perform."""

DESCRIBES_ABSENT_AS_ERROR = 6
"""The first version of DescribeGroups that returns an error for an unknown group instead of a dead group (KIP-1043)."""


class GroupsApi:
    """Handlers of requests to the group coordinator."""

    def __init__(
        self,
        coordinator: GroupCoordinator,
        config: Callable[[], BrokerConfig],
    ) -> None:
        self._coordinator = coordinator
        self._config = config

    def routes(self) -> dict[int, Handler]:
        return {
            JoinGroupRequest.API_KEY: self.join_group,
            SyncGroupRequest.API_KEY: self.sync_group,
            HeartbeatRequest.API_KEY: self.heartbeat,
            LeaveGroupRequest.API_KEY: self.leave_group,
            DescribeGroupsRequest.API_KEY: self.describe_groups,
            ListGroupsRequest.API_KEY: self.list_groups,
            DeleteGroupsRequest.API_KEY: self.delete_groups,
        }

    # --- Members ---

    def join_group(
        self, context: RequestContext, request: JoinGroupRequest
    ) -> JoinGroupResponse | asyncio.Future[JoinGroupResponse]:
        """Join a group. The response is sent when the rebalance is complete: all members have joined, or the rebalance
        timeout has expired. A refused request gets its error code immediately."""

        def failed(error: KafkaError) -> JoinGroupResponse:
            return join_error(code_for_members(error), request.member_id, context.api_version)

        try:
            self._coordinator.check_owned(request.group_id)
            config = self._config()
            shortest, longest = config.group_min_session_timeout_ms, config.group_max_session_timeout_ms
            if not shortest <= request.session_timeout_ms <= longest:
                raise KafkaError(ErrorCode.INVALID_SESSION_TIMEOUT)
            if sum(len(protocol.metadata) for protocol in request.protocols) > config.message_max_bytes:
                # No record could contain the metadata: the group would never become stable.
                raise KafkaError(ErrorCode.INVALID_REQUEST)
            return responding(self._coordinator.join(context, request), lambda response: response, failed)
        except KafkaError as error:
            return failed(error)

    def sync_group(
        self, context: RequestContext, request: SyncGroupRequest
    ) -> SyncGroupResponse | asyncio.Future[SyncGroupResponse]:
        """Return the member's assignment in this generation. The group's leader sends the assignments of all members;
        until then, the responses to the other members wait."""

        def failed(error: KafkaError) -> SyncGroupResponse:
            return sync_error(code_for_members(error))

        try:
            # KIP-559: from version 5 on, a member names the protocol that it expects.
            if context.api_version >= 5 and (request.protocol_type is None or request.protocol_name is None):
                raise KafkaError(ErrorCode.INCONSISTENT_GROUP_PROTOCOL)
            return responding(self._coordinator.sync(request), lambda response: response, failed)
        except KafkaError as error:
            return failed(error)

    def heartbeat(self, context: RequestContext, request: HeartbeatRequest) -> HeartbeatResponse:
        """Extend the session of a member. The error code is REBALANCE_IN_PROGRESS if the member must rejoin, and NONE
        while the group is being loaded."""
        try:
            return HeartbeatResponse(error_code=self._coordinator.heartbeat(request))
        except KafkaError as error:
            if error.code == ErrorCode.COORDINATOR_LOAD_IN_PROGRESS:
                return HeartbeatResponse(error_code=ErrorCode.NONE)  # no member expires while the group is being loaded
            return HeartbeatResponse(error_code=error.code)

    def leave_group(
        self, context: RequestContext, request: LeaveGroupRequest
    ) -> LeaveGroupResponse | asyncio.Future[LeaveGroupResponse]:
        """Leave a group. From version 3 on, an administrator can remove several members (KIP-345), each of which gets
        an error code."""
        if context.api_version < 3:
            leaving = [LeaveGroupRequest.MemberIdentity(member_id=request.member_id)]
        else:
            leaving = request.members

        def responded(codes: list[ErrorCode]) -> LeaveGroupResponse:
            if context.api_version < 3:
                return LeaveGroupResponse(error_code=codes[0], members=[])
            return LeaveGroupResponse(
                error_code=ErrorCode.NONE,
                members=[
                    LeaveGroupResponse.MemberResponse(
                        member_id=member.member_id, group_instance_id=member.group_instance_id, error_code=code
                    )
                    for member, code in zip(leaving, codes, strict=True)
                ],
            )

        def failed(error: KafkaError) -> LeaveGroupResponse:
            return LeaveGroupResponse(error_code=error.code, members=[])

        try:
            return responding(self._coordinator.leave(request.group_id, leaving), responded, failed)
        except KafkaError as error:
            return failed(error)

    # --- Administration ---

    async def describe_groups(self, context: RequestContext, request: DescribeGroupsRequest) -> DescribeGroupsResponse:
        """Describe classic groups: their state, members and assignments. A group of another type counts as unknown. An
        unknown group gets GROUP_ID_NOT_FOUND or, before version 6, the state Dead."""
        operations = GROUP_OPERATIONS if request.include_authorized_operations else NOT_REQUESTED
        return DescribeGroupsResponse(
            groups=await in_slices(
                partial(self._described, context.api_version, operations), dict.fromkeys(request.groups)
            )
        )

    def _described(self, version: int, operations: int, group_id: str) -> DescribeGroupsResponse.DescribedGroup:
        try:
            group = self._coordinator.find(group_id)
        except KafkaError as error:
            return _undescribed(group_id, error.code, "", None, NOT_REQUESTED)
        if group is not None and not group.is_classic:
            group = None  # ConsumerGroupDescribe and similar requests describe these
            if version >= DESCRIBES_ABSENT_AS_ERROR:
                text = f"Group {group_id} is not a classic group."
                dead = GroupState.DEAD.value
                return _undescribed(group_id, ErrorCode.GROUP_ID_NOT_FOUND, dead, text, operations)
        if group is None:
            if version >= DESCRIBES_ABSENT_AS_ERROR:
                text = f"Group {group_id} not found."
                return _undescribed(group_id, ErrorCode.GROUP_ID_NOT_FOUND, GroupState.DEAD.value, text, operations)
            return _undescribed(group_id, ErrorCode.NONE, GroupState.DEAD.value, None, operations)
        membership = group.membership
        settled = membership.state is GroupState.STABLE
        return DescribeGroupsResponse.DescribedGroup(
            error_code=ErrorCode.NONE,
            group_id=group_id,
            group_state=membership.state.value,
            protocol_type=membership.protocol_type or "",
            protocol_data=(membership.protocol or "") if settled else "",
            members=[
                DescribeGroupsResponse.DescribedGroupMember(
                    member_id=member.member_id,
                    group_instance_id=member.group_instance_id,
                    client_id=member.client_id,
                    client_host=f"/{member.client_host}",
                    member_metadata=member.metadata_for(membership.protocol) if settled else b"",
                    member_assignment=membership.assignments.get(member.member_id, b"") if settled else b"",
                )
                for member in membership.members.values()
            ],
            authorized_operations=operations,
        )

    def list_groups(self, context: RequestContext, request: ListGroupsRequest) -> ListGroupsResponse:
        """List the groups that this broker coordinates, filtered by state and type; an empty filter selects all. The
        error code is COORDINATOR_LOAD_IN_PROGRESS while a partition of the offsets topic is being loaded."""
        try:
            groups = self._coordinator.all()
        except KafkaError as error:
            return ListGroupsResponse(error_code=error.code, groups=[])
        states = {state.lower() for state in request.states_filter}
        types = {kind.lower() for kind in request.types_filter}
        return ListGroupsResponse(
            error_code=ErrorCode.NONE,
            groups=[
                ListGroupsResponse.ListedGroup(
                    group_id=group.group_id,
                    protocol_type=_protocol_type(group),
                    group_state=group.state_name,
                    group_type=group.type,
                )
                for group in groups
                if (not states or group.state_name.lower() in states) and (not types or group.type in types)
            ],
        )

    async def delete_groups(self, context: RequestContext, request: DeleteGroupsRequest) -> DeleteGroupsResponse:
        """Delete groups without members, with their offsets (KIP-229). Each deletion succeeds or fails
        independently."""
        results = []
        for group_id in dict.fromkeys(request.groups_names):
            code = ErrorCode.NONE
            try:
                await self._coordinator.delete(group_id)
            except KafkaError as error:
                code = error.code
            results.append(DeleteGroupsResponse.DeletableGroupResult(group_id=group_id, error_code=code))
            await next_turn()  # otherwise groups that need no wait would block the event loop
        return DeleteGroupsResponse(results=results)


def _protocol_type(group: Group) -> str:
    if group.is_classic:
        return group.membership.protocol_type or ""
    return group.type if group.type in (SHARE, STREAMS) else CONSUMER_PROTOCOL


def responding(
    outcome: T | asyncio.Future[T], responded: Callable[[T], R], failed: Callable[[KafkaError], R]
) -> R | asyncio.Future[R]:
    """Convert a coordinator's result to the response: immediately or, if the result is a future, when it completes.

    ``failed`` returns the response if the future fails with a KafkaError.
    """
    if not isinstance(outcome, asyncio.Future):
        return responded(outcome)
    response: asyncio.Future[R] = asyncio.get_running_loop().create_future()

    def done(outcome: asyncio.Future[T]) -> None:
        error = outcome.exception()
        if response.done():
            return
        if error is None:
            response.set_result(responded(outcome.result()))
        elif isinstance(error, KafkaError):
            response.set_result(failed(error))
        else:
            response.set_exception(error)

    outcome.add_done_callback(done)
    return response


def _undescribed(
    group_id: str, code: ErrorCode, state: str, message: str | None, operations: int
) -> DescribeGroupsResponse.DescribedGroup:
    return DescribeGroupsResponse.DescribedGroup(
        error_code=code,
        error_message=message,
        group_id=group_id,
        group_state=state,
        protocol_type="",
        protocol_data="",
        members=[],
        authorized_operations=operations,
    )
