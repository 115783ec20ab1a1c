"""The responses to JoinGroup and SyncGroup."""

from __future__ import annotations

from parley.broker.coordinators.groups.classic.membership import GroupMember, Membership
from parley.broker.coordinators.runtime import NotCommittedInTime
from parley.protocol.errors import ErrorCode, KafkaError
from parley.protocol.messages.groups import JoinGroupResponse, SyncGroupResponse


def join_response(membership: Membership, member: GroupMember) -> JoinGroupResponse:
    """Return the response to a JoinGroup: the generation and, for the leader of the group, all members."""
    leads = member.member_id == membership.leader_id
    return JoinGroupResponse(
        error_code=ErrorCode.NONE,
        generation_id=membership.generation,
        protocol_type=membership.protocol_type,
        protocol_name=membership.protocol,
        leader=membership.leader_id or "",
        member_id=member.member_id,
        members=[
            JoinGroupResponse.JoinGroupResponseMember(
                member_id=other.member_id,
                group_instance_id=other.group_instance_id,
                metadata=other.metadata_for(membership.protocol),
            )
            for other in membership.members.values()
        ]
        if leads
        else [],
    )


def sync_response(membership: Membership, member_id: str) -> SyncGroupResponse:
    """Return the response to a SyncGroup: the member's assignment."""
    return SyncGroupResponse(
        error_code=ErrorCode.NONE,
        protocol_type=membership.protocol_type,
        protocol_name=membership.protocol,
        assignment=membership.assignments.get(member_id, b""),
    )


def join_error(code: ErrorCode, member_id: str, api_version: int = 0) -> JoinGroupResponse:
    """Return the response to a failed JoinGroup. From version 7 on, its protocol name is null."""
    return JoinGroupResponse(
        error_code=code,
        protocol_name=None if api_version >= 7 else "",
        leader="",
        member_id=member_id,
        members=[],
    )


def sync_error(code: ErrorCode) -> SyncGroupResponse:
    """Return the response to a failed SyncGroup."""
    return SyncGroupResponse(error_code=code, assignment=b"")


def code_for_members(error: KafkaError) -> ErrorCode:
    """Return the error code for the members of a generation that could not be stored because of ``error``. If the
    replicas are only slow, the code is REBALANCE_IN_PROGRESS, so that the members rejoin."""
    if isinstance(error, NotCommittedInTime):
        return ErrorCode.REBALANCE_IN_PROGRESS
    if error.code is ErrorCode.MESSAGE_TOO_LARGE:
        return ErrorCode.UNKNOWN_SERVER_ERROR
    return error.code
