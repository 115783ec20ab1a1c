"""What members of a group are answered when they join and ask for their assignment.

A request that has to wait is a future of the member; whoever ends the wait completes it here, once.
"""

from __future__ import annotations

import asyncio

from parley.broker.coordinators.groups.group import Group, GroupMember
from parley.broker.network.dispatch import RequestContext
from parley.protocol.errors import ErrorCode
from parley.protocol.messages.groups import JoinGroupResponse, SyncGroupResponse


def await_join(member: GroupMember) -> asyncio.Future[JoinGroupResponse]:
    """A new wait for the end of the rebalance; an earlier one of the member is told to ask again."""
    answer_join(member, join_failed(ErrorCode.REBALANCE_IN_PROGRESS, member.member_id))
    member.join_reply = asyncio.get_running_loop().create_future()
    return member.join_reply


def answer_join(member: GroupMember, response: JoinGroupResponse) -> None:
    """Answer the JoinGroup of the member that waits, if one does."""
    reply, member.join_reply = member.join_reply, None
    if reply is not None and not reply.done():
        reply.set_result(response)


def answer_sync(member: GroupMember, response: SyncGroupResponse) -> None:
    """Answer the SyncGroup of the member that waits, if one does."""
    reply, member.sync_reply = member.sync_reply, None
    if reply is not None and not reply.done():
        reply.set_result(response)


def joined(group: Group, member: GroupMember) -> JoinGroupResponse:
    """The answer to a JoinGroup: the generation, and for its leader the members."""
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


def synced(group: Group, member: GroupMember) -> SyncGroupResponse:
    """The answer to a SyncGroup: what the member was assigned."""
    return SyncGroupResponse(
        error_code=ErrorCode.NONE,
        protocol_type=group.protocol_type,
        protocol_name=group.protocol,
        assignment=member.assignment,
    )


def join_error(code: ErrorCode, context: RequestContext, member_id: str) -> JoinGroupResponse:
    """The answer to a JoinGroup that failed, in the form its version wants."""
    response = join_failed(code, member_id)
    response.protocol_name = None if context.api_version >= 7 else ""
    return response


def join_failed(code: ErrorCode, member_id: str) -> JoinGroupResponse:
    """The answer to a JoinGroup that waited in vain."""
    return JoinGroupResponse(error_code=code, protocol_name="", leader="", member_id=member_id, members=[])
