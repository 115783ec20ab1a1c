"""The requests of group members and administrators (classic group protocol).

The handlers translate between messages and ``parley.broker.coordinators.groups``. Committed offsets are in
``parley.broker.api.group_offsets``.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial

from parley.broker.api.requested_names import in_slices
from parley.broker.config import BrokerConfig
from parley.broker.coordinators.groups.coordinator import GroupCoordinator
from parley.broker.coordinators.groups.group import Group, GroupState
from parley.broker.coordinators.groups.responses import join_error
from parley.broker.network.dispatch import Handler, RequestContext
from parley.broker.security.operations import GROUP_OPERATIONS, NOT_ASKED
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

CLASSIC = "classic"
"""The type of these groups in ListGroups (KIP-848)."""

DESCRIBES_ABSENT_AS_ERROR = 6
"""The first version of DescribeGroups that returns an error for an unknown group, not a dead group (KIP-1043)."""


class GroupsApi:
    """Handlers of the requests to the group coordinator."""

    def __init__(
        self,
        coordinator: GroupCoordinator,
        config: Callable[[], BrokerConfig],
    ) -> None:
        self._coordinator = coordinator
        self._membership = coordinator.membership
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
        """Join a group. The response waits for the other members to join."""
        try:
            self._coordinator.check_owned(request.group_id)
            config = self._config()
            shortest, longest = config.group_min_session_timeout_ms, config.group_max_session_timeout_ms
            if not shortest <= request.session_timeout_ms <= longest:
                raise KafkaError(ErrorCode.INVALID_SESSION_TIMEOUT)
            if sum(len(protocol.metadata) for protocol in request.protocols) > config.message_max_bytes:
                raise KafkaError(
                    ErrorCode.INVALID_REQUEST
                )  # a record cannot hold it: such a group would never become stable
            group = self._coordinator.find(request.group_id)
            if group is None:
                if request.member_id:
                    raise KafkaError(ErrorCode.UNKNOWN_MEMBER_ID)
                if not request.protocols or not request.protocol_type:
                    raise KafkaError(ErrorCode.INCONSISTENT_GROUP_PROTOCOL)
                group = self._coordinator.find_or_create(request.group_id)
            return self._membership.join(group, context, request)
        except KafkaError as error:
            return join_error(error.code, request.member_id, context.api_version)

    def sync_group(
        self, context: RequestContext, request: SyncGroupRequest
    ) -> SyncGroupResponse | asyncio.Future[SyncGroupResponse]:
        """Return the member's assignment in this generation. The leader sends the assignments of all members."""
        try:
            # KIP-559: from version 5 on a member names the protocol that it expects.
            if context.api_version >= 5 and (request.protocol_type is None or request.protocol_name is None):
                raise KafkaError(ErrorCode.INCONSISTENT_GROUP_PROTOCOL)
            return self._membership.sync(self._existing(request.group_id), request)
        except KafkaError as error:
            return SyncGroupResponse(error_code=error.code, assignment=b"")

    def heartbeat(self, context: RequestContext, request: HeartbeatRequest) -> HeartbeatResponse:
        """Extend the session of a member."""
        try:
            self._membership.heartbeat(self._existing(request.group_id), request)
        except KafkaError as error:
            if error.code == ErrorCode.COORDINATOR_LOAD_IN_PROGRESS:
                return HeartbeatResponse(error_code=ErrorCode.NONE)  # no member expires while the group is being loaded
            return HeartbeatResponse(error_code=error.code)
        return HeartbeatResponse(error_code=ErrorCode.NONE)

    def leave_group(self, context: RequestContext, request: LeaveGroupRequest) -> LeaveGroupResponse:
        """Leave a group. From version 3 on an administrator can remove several members (KIP-345)."""
        try:
            group = self._existing(request.group_id)
        except KafkaError as error:
            return LeaveGroupResponse(error_code=error.code, members=[])
        if context.api_version < 3:
            identity = LeaveGroupRequest.MemberIdentity(member_id=request.member_id)
            return LeaveGroupResponse(error_code=self._leave(group, identity), members=[])
        return LeaveGroupResponse(
            error_code=ErrorCode.NONE,
            members=[
                LeaveGroupResponse.MemberResponse(
                    member_id=member.member_id,
                    group_instance_id=member.group_instance_id,
                    error_code=self._leave(group, member),
                )
                for member in request.members
            ],
        )

    def _leave(self, group: Group, member: LeaveGroupRequest.MemberIdentity) -> ErrorCode:
        try:
            self._membership.leave(group, member)
        except KafkaError as error:
            return error.code
        return ErrorCode.NONE

    def _existing(self, group_id: str) -> Group:
        group = self._coordinator.find(group_id)
        if group is None:
            raise KafkaError(ErrorCode.UNKNOWN_MEMBER_ID)
        return group

    # --- Administration ---

    async def describe_groups(self, context: RequestContext, request: DescribeGroupsRequest) -> DescribeGroupsResponse:
        """Describe groups: their state, members and assignments."""
        operations = GROUP_OPERATIONS if request.include_authorized_operations else NOT_ASKED
        return DescribeGroupsResponse(
            groups=await in_slices(
                partial(self._described, context.api_version, operations), dict.fromkeys(request.groups)
            )
        )

    def _described(self, version: int, operations: int, group_id: str) -> DescribeGroupsResponse.DescribedGroup:
        try:
            group = self._coordinator.find(group_id)
        except KafkaError as error:
            return _undescribed(group_id, error.code, "", None, NOT_ASKED)
        if group is None or group.state is GroupState.DEAD:
            if version >= DESCRIBES_ABSENT_AS_ERROR:
                text = f"Group {group_id} not found."
                return _undescribed(group_id, ErrorCode.GROUP_ID_NOT_FOUND, GroupState.DEAD.value, text, operations)
            return _undescribed(group_id, ErrorCode.NONE, GroupState.DEAD.value, None, operations)
        settled = group.state is GroupState.STABLE
        return DescribeGroupsResponse.DescribedGroup(
            error_code=ErrorCode.NONE,
            group_id=group_id,
            group_state=group.state.value,
            protocol_type=group.protocol_type or "",
            protocol_data=(group.protocol or "") if settled else "",
            members=[
                DescribeGroupsResponse.DescribedGroupMember(
                    member_id=member.member_id,
                    group_instance_id=member.group_instance_id,
                    client_id=member.client_id,
                    client_host=f"/{member.client_host}",
                    member_metadata=member.metadata_for(group.protocol) if settled else b"",
                    member_assignment=member.assignment if settled else b"",
                )
                for member in group.members.values()
            ],
            authorized_operations=operations,
        )

    def list_groups(self, context: RequestContext, request: ListGroupsRequest) -> ListGroupsResponse:
        """List the groups that this broker coordinates, filtered by state and type."""
        try:
            groups = self._coordinator.all()
        except KafkaError as error:
            return ListGroupsResponse(error_code=error.code, groups=[])
        states = {state.lower() for state in request.states_filter}
        types = {kind.lower() for kind in request.types_filter}
        if types and CLASSIC not in types:
            groups = []
        return ListGroupsResponse(
            error_code=ErrorCode.NONE,
            groups=[
                ListGroupsResponse.ListedGroup(
                    group_id=group.group_id,
                    protocol_type=group.protocol_type or "",
                    group_state=group.state.value,
                    group_type=CLASSIC,
                )
                for group in groups
                if not states or group.state.value.lower() in states
            ],
        )

    async def delete_groups(self, context: RequestContext, request: DeleteGroupsRequest) -> DeleteGroupsResponse:
        """Delete groups without members, with their offsets (KIP-229)."""
        results = []
        for group_id in dict.fromkeys(request.groups_names):
            code = ErrorCode.NONE
            try:
                await self._coordinator.delete(group_id)
            except KafkaError as error:
                code = error.code
            results.append(DeleteGroupsResponse.DeletableGroupResult(group_id=group_id, error_code=code))
            await asyncio.sleep(0)  # else thousands of groups that need no waiting would block the event loop
        return DeleteGroupsResponse(results=results)


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
