"""Decisions about the requests of members of a classic group: JoinGroup, SyncGroup, Heartbeat and LeaveGroup.

They are pure functions of a shard and the time. Each raises the KafkaError that the member gets. See KIP-134, KIP-345,
KIP-394 and KIP-814.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from parley.broker.coordinators.decision import Decision
from parley.broker.coordinators.groups.classic.membership import GroupMember, GroupState, Membership, Protocols
from parley.broker.coordinators.groups.classic.rebalance import MembershipChange, session
from parley.broker.coordinators.groups.classic.responses import join_error, join_response, sync_response
from parley.broker.coordinators.groups.group_shard import GroupShard
from parley.light_dataclasses import dataclass
from parley.protocol.errors import ErrorCode, KafkaError
from parley.protocol.messages.groups import (
    HeartbeatRequest,
    JoinGroupRequest,
    JoinGroupResponse,
    LeaveGroupRequest,
    SyncGroupRequest,
    SyncGroupResponse,
)

KNOWN_MEMBER_REQUIRED_SINCE: Final = 4
"""The first version of JoinGroup in which a new member gets its id before it joins (KIP-394)."""

SKIPS_ASSIGNMENT_SINCE: Final = 9
"""The first version of JoinGroup whose response can tell the leader to keep the assignment (KIP-814)."""


@dataclass(frozen=True, slots=True)
class Joiner:
    """The client that sends a JoinGroup. ``new_id`` becomes its member id if it has none."""

    client_id: str
    client_host: str
    api_version: int
    new_id: str


# --- JoinGroup ---


def join(request: JoinGroupRequest, joiner: Joiner, shard: GroupShard, now_ms: int) -> Decision[JoinGroupResponse]:
    """Let a member join or rejoin. The reply is usually held until the next generation begins.

    From version 4 of the request on, a dynamic member without an id gets the reply MEMBER_ID_REQUIRED, with a new id.
    Raises UNKNOWN_MEMBER_ID, FENCED_INSTANCE_ID, INCONSISTENT_GROUP_PROTOCOL or GROUP_MAX_SIZE_REACHED.
    """
    group_id = request.group_id
    if request.member_id and group_id not in shard.groups:
        raise KafkaError(ErrorCode.UNKNOWN_MEMBER_ID)
    membership = shard.membership_of(group_id)
    protocols = _protocols(request)
    if not protocols or not request.protocol_type:
        raise KafkaError(ErrorCode.INCONSISTENT_GROUP_PROTOCOL)
    instead_of = request.member_id or membership.static_ids.get(request.group_instance_id or "", "")
    if not membership.accepts(request.protocol_type, protocols, instead_of=instead_of):
        raise KafkaError(ErrorCode.INCONSISTENT_GROUP_PROTOCOL)
    if request.member_id == "":
        return _join_unknown(request, joiner, shard, now_ms)
    if request.member_id in membership.pending:
        if request.group_instance_id is not None:
            raise KafkaError(ErrorCode.UNKNOWN_MEMBER_ID)
        return _add(request, joiner, request.member_id, shard, now_ms)
    membership.require_member(request.member_id, request.group_instance_id)
    return _join_known(request, shard, now_ms)


def _join_unknown(
    request: JoinGroupRequest, joiner: Joiner, shard: GroupShard, now_ms: int
) -> Decision[JoinGroupResponse]:
    membership = shard.membership_of(request.group_id)
    if request.group_instance_id is not None:
        if request.group_instance_id in membership.static_ids:
            return _replace_static(request, joiner, shard, now_ms)
    elif joiner.api_version >= KNOWN_MEMBER_REQUIRED_SINCE:
        _check_size(membership, joiner.new_id, shard)
        change = MembershipChange(shard, request.group_id, now_ms)
        change.give_id(joiner.new_id, request.session_timeout_ms)
        return change.decision(join_error(ErrorCode.MEMBER_ID_REQUIRED, joiner.new_id, joiner.api_version))
    return _add(request, joiner, joiner.new_id, shard, now_ms)


def _check_size(membership: Membership, member_id: str, shard: GroupShard) -> None:
    size = len(membership.members) + len(membership.pending) - (member_id in membership.pending)
    if size >= shard.config().group_max_size:
        raise KafkaError(ErrorCode.GROUP_MAX_SIZE_REACHED)


def _add(
    request: JoinGroupRequest, joiner: Joiner, member_id: str, shard: GroupShard, now_ms: int
) -> Decision[JoinGroupResponse]:
    _check_size(shard.membership_of(request.group_id), member_id, shard)
    change = MembershipChange(shard, request.group_id, now_ms)
    if member_id in change.membership.pending:
        change.end_pending(member_id)
    if not change.membership.members:
        change.membership.protocol_type = request.protocol_type
    change.add(_member(request, joiner.client_id, joiner.client_host, member_id))
    return change.decision_for_waiting()


def _join_known(request: JoinGroupRequest, shard: GroupShard, now_ms: int) -> Decision[JoinGroupResponse]:
    membership = shard.membership_of(request.group_id)
    member = membership.members[request.member_id]
    changed = member.protocols != _protocols(request)
    if membership.state is GroupState.COMPLETING_REBALANCE and not changed:
        return Decision(join_response(membership, member))  # the first response was lost: repeat it
    if membership.state is GroupState.STABLE and not changed and member.member_id != membership.leader_id:
        return Decision(join_response(membership, member))
    if membership.state is GroupState.EMPTY:
        raise KafkaError(ErrorCode.UNKNOWN_MEMBER_ID)
    change = MembershipChange(shard, request.group_id, now_ms)
    again = _member(request, member.client_id, member.client_host, member.member_id, member.group_instance_id)
    change.membership.add(again)
    change.wait_to_join(again)
    change.rebalance(f"member {again.member_id} rejoins")
    return change.decision_for_waiting()


def _replace_static(
    request: JoinGroupRequest, joiner: Joiner, shard: GroupShard, now_ms: int
) -> Decision[JoinGroupResponse]:
    """Replace a static member's previous incarnation with the restarted one, which keeps its assignment."""
    change = MembershipChange(shard, request.group_id, now_ms)
    membership = change.membership
    old_id = membership.static_ids[request.group_instance_id or ""]
    member = _member(request, joiner.client_id, joiner.client_host, joiner.new_id)
    change.replace_static(member, old_id)
    if membership.state is not GroupState.STABLE or membership.choose_protocol() != membership.protocol:
        change.wait_to_join(member)
        change.rebalance(f"static member {member.group_instance_id} is replaced")
        return change.decision_for_waiting()
    change.store_replacement()
    response = join_response(membership, member)
    if member.member_id == membership.leader_id:
        # The assignment stays. A new client obeys skip_assignment; an old one must not act as the leader.
        response.skip_assignment = joiner.api_version >= SKIPS_ASSIGNMENT_SINCE
        if not response.skip_assignment:
            response.leader, response.members = old_id, []
    return change.decision(response)


def _member(
    request: JoinGroupRequest, client_id: str, client_host: str, member_id: str, instance_id: str | None = None
) -> GroupMember:
    return GroupMember(
        member_id=member_id,
        group_instance_id=request.group_instance_id if instance_id is None else instance_id,
        client_id=client_id,
        client_host=client_host,
        # JoinGroup v0 has no rebalance timeout, so the session timeout serves as both (KIP-62).
        rebalance_timeout_ms=request.rebalance_timeout_ms
        if request.rebalance_timeout_ms >= 0
        else request.session_timeout_ms,
        session_timeout_ms=request.session_timeout_ms,
        protocols=_protocols(request),
    )


def _protocols(request: JoinGroupRequest) -> Protocols:
    return tuple([(protocol.name, protocol.metadata) for protocol in request.protocols])


# --- SyncGroup, Heartbeat, LeaveGroup ---


def sync(request: SyncGroupRequest, shard: GroupShard, now_ms: int) -> Decision[SyncGroupResponse]:
    """Reply with a member's assignment, as soon as the leader of the group has sent it and the in-sync replicas have
    stored it.

    Raises UNKNOWN_MEMBER_ID, FENCED_INSTANCE_ID, ILLEGAL_GENERATION, INCONSISTENT_GROUP_PROTOCOL or
    REBALANCE_IN_PROGRESS.
    """
    membership = shard.membership_of(request.group_id)
    member = membership.current_member(request.member_id, request.group_instance_id, request.generation_id)
    if (request.protocol_type is not None and request.protocol_type != membership.protocol_type) or (
        request.protocol_name is not None and request.protocol_name != membership.protocol
    ):
        raise KafkaError(ErrorCode.INCONSISTENT_GROUP_PROTOCOL)
    if membership.state is GroupState.PREPARING_REBALANCE:
        raise KafkaError(ErrorCode.REBALANCE_IN_PROGRESS)
    if membership.state is GroupState.STABLE:
        return Decision(sync_response(membership, member.member_id), timers=session(request.group_id, member))
    change = MembershipChange(shard, request.group_id, now_ms)
    change.keep_alive(member)
    change.wait_to_sync(member)
    if member.member_id == membership.leader_id:
        change.assign({each.member_id: each.assignment for each in request.assignments})
    return change.decision_for_waiting()


def heartbeat(request: HeartbeatRequest, shard: GroupShard, now_ms: int) -> Decision[ErrorCode]:
    """Keep a member's session alive. The reply is REBALANCE_IN_PROGRESS if the member must rejoin, and otherwise NONE.

    Raises UNKNOWN_MEMBER_ID, FENCED_INSTANCE_ID or ILLEGAL_GENERATION.
    """
    membership = shard.membership_of(request.group_id)
    member = membership.current_member(request.member_id, request.group_instance_id, request.generation_id)
    must_rejoin = membership.state is GroupState.PREPARING_REBALANCE
    code = ErrorCode.REBALANCE_IN_PROGRESS if must_rejoin else ErrorCode.NONE
    return Decision(code, timers=session(request.group_id, member))


def leave(
    group_id: str, leaving: Sequence[LeaveGroupRequest.MemberIdentity], shard: GroupShard, now_ms: int
) -> Decision[list[ErrorCode]]:
    """Remove members that leave. The reply contains an error code for each of them, in the same order: NONE,
    UNKNOWN_MEMBER_ID or FENCED_INSTANCE_ID."""
    if group_id not in shard.groups:
        return Decision([ErrorCode.UNKNOWN_MEMBER_ID] * len(leaving))
    change = MembershipChange(shard, group_id, now_ms)
    return change.decision([_leave(each, change) for each in leaving])


def _leave(leaving: LeaveGroupRequest.MemberIdentity, change: MembershipChange) -> ErrorCode:
    membership = change.membership
    if leaving.group_instance_id is None and leaving.member_id in membership.pending:
        change.end_pending(leaving.member_id)
        change.complete_if_all_joined()
        return ErrorCode.NONE
    member_id = leaving.member_id
    if leaving.group_instance_id is not None and member_id == "":
        member_id = membership.static_ids.get(leaving.group_instance_id, "")
    try:
        member = membership.require_member(member_id, leaving.group_instance_id)
    except KafkaError as error:
        return error.code
    change.expel([member], f"member {member_id} leaves")
    return ErrorCode.NONE
