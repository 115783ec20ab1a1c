"""Responses to JoinGroup and SyncGroup, and the requests of members that wait for them.

A request that has to wait is a future of its member. The code that ends the wait completes the future here, once.
"""

from __future__ import annotations

import asyncio

from parley.broker.coordinators.groups.group import Group, GroupMember
from parley.protocol.errors import ErrorCode
from parley.protocol.messages.groups import JoinGroupResponse, SyncGroupResponse


def new_join_reply(member: GroupMember) -> asyncio.Future[JoinGroupResponse]:
    """Let a JoinGroup wait for the end of the rebalance; one that already waits ends with REBALANCE_IN_PROGRESS."""
    respond_to_join(member, join_error(ErrorCode.REBALANCE_IN_PROGRESS, member.member_id))
    member.join_reply = asyncio.get_running_loop().create_future()
    return member.join_reply


def respond_to_join(member: GroupMember, response: JoinGroupResponse) -> None:
    """Respond to the member's waiting JoinGroup, if there is one."""
    reply, member.join_reply = member.join_reply, None
    if reply is not None and not reply.done():
        reply.set_result(response)


def respond_to_sync(member: GroupMember, response: SyncGroupResponse) -> None:
    """Respond to the member's waiting SyncGroup, if there is one."""
    reply, member.sync_reply = member.sync_reply, None
    if reply is not None and not reply.done():
        reply.set_result(response)


def join_response(group: Group, member: GroupMember) -> JoinGroupResponse:
    """Return the response to a JoinGroup: the generation and, for the group's leader, all members."""
    leads = member.member_id == group.leader_id
    return JoinGroupResponse(
        error_code=ErrorCode.NONE,
        generation_id=group.generation,
        protocol_type=group.protocol_type,
        protocol_name=group.protocol,
        leader=group.leader_id or "",
        member_id=member.member_id,
        members=[
            JoinGroupResponse.JoinGroupResponseMember(
                member_id=other.member_id,
                group_instance_id=other.group_instance_id,
                metadata=other.metadata_for(group.protocol),
            )
            for other in group.members.values()
        ]
        if leads
        else [],
    )


def sync_response(group: Group, member: GroupMember) -> SyncGroupResponse:
    """Return the response to a SyncGroup: the member's assignment."""
    return SyncGroupResponse(
        error_code=ErrorCode.NONE,
        protocol_type=group.protocol_type,
        protocol_name=group.protocol,
        assignment=member.assignment,
    )


def join_error(code: ErrorCode, member_id: str, api_version: int = 0) -> JoinGroupResponse:
    """Return the response to a JoinGroup that failed. Since version 7 its protocol name is null."""
    return JoinGroupResponse(
        error_code=code,
        protocol_name=None if api_version >= 7 else "",
        leader="",
        member_id=member_id,
        members=[],
    )
