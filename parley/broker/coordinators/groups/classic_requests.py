"""Requests of the classic protocol, for groups of any type. A consumer group may have members of that protocol, too."""

from __future__ import annotations

from collections.abc import Sequence

from parley.broker.coordinators.decision import Decision, KeyValue
from parley.broker.coordinators.groups.classic import member_decisions
from parley.broker.coordinators.groups.classic.member_decisions import Joiner
from parley.broker.coordinators.groups.consumer import classic_members
from parley.broker.coordinators.groups.consumer.consumer_group import ConsumerGroup
from parley.broker.coordinators.groups.consumer.consumer_records import group_tombstones
from parley.broker.coordinators.groups.group_shard import GroupShard
from parley.broker.coordinators.groups.streams import streams_records
from parley.broker.network.request_context import RequestContext
from parley.protocol.errors import ErrorCode, KafkaError
from parley.protocol.messages.groups import (
    HeartbeatRequest,
    JoinGroupRequest,
    JoinGroupResponse,
    LeaveGroupRequest,
    SyncGroupRequest,
    SyncGroupResponse,
)


def join(
    request: JoinGroupRequest, joiner: Joiner, context: RequestContext, shard: GroupShard, now_ms: int
) -> Decision[JoinGroupResponse]:
    """Let a member join or rejoin. A consumer or streams group without members becomes a classic group.

    Raises the KafkaError that the client gets, for example INCONSISTENT_GROUP_PROTOCOL if the group is a share group,
    or a streams group with members.
    """
    streams = shard.streams_group(request.group_id)
    if shard.share_group(request.group_id) is not None or (streams is not None and streams.members):
        raise KafkaError(ErrorCode.INCONSISTENT_GROUP_PROTOCOL)
    if streams is not None:
        return _replacing(streams_records.group_tombstones(streams), request, joiner, shard, now_ms)
    group = shard.consumer_group(request.group_id)
    if group is None:
        return member_decisions.join(request, joiner, shard, now_ms)
    if group.members:
        return classic_members.join(request, context, joiner.new_id, group, shard, now_ms)
    return _replacing(group_tombstones(group), request, joiner, shard, now_ms)


def _replacing(
    tombstones: Sequence[KeyValue], request: JoinGroupRequest, joiner: Joiner, shard: GroupShard, now_ms: int
) -> Decision[JoinGroupResponse]:
    """Add the first member of a classic group, and delete the group of another type that it replaces.

    ``tombstones`` are the records that delete the other group. Raises the KafkaError that the client gets.
    """
    if request.member_id:
        raise KafkaError(ErrorCode.UNKNOWN_MEMBER_ID)
    decision = member_decisions.join(request, joiner, shard, now_ms)
    return decision._replace(records=[*tombstones, *decision.records])


def sync(request: SyncGroupRequest, shard: GroupShard, now_ms: int) -> Decision[SyncGroupResponse]:
    """Reply with a member's assignment. Raises the KafkaError that the client gets, for example UNKNOWN_MEMBER_ID,
    ILLEGAL_GENERATION or REBALANCE_IN_PROGRESS."""
    group = _with_members(request.group_id, shard)
    if group is None:
        return member_decisions.sync(request, shard, now_ms)
    return classic_members.sync(request, group, shard, now_ms)


def heartbeat(request: HeartbeatRequest, shard: GroupShard, now_ms: int) -> Decision[ErrorCode]:
    """Keep a member alive. The reply is REBALANCE_IN_PROGRESS if the member must rejoin, and otherwise NONE.

    Raises UNKNOWN_MEMBER_ID, FENCED_INSTANCE_ID or ILLEGAL_GENERATION.
    """
    group = _with_members(request.group_id, shard)
    if group is None:
        return member_decisions.heartbeat(request, shard, now_ms)
    return classic_members.heartbeat(request, group, shard, now_ms)


def leave(
    group_id: str, leaving: Sequence[LeaveGroupRequest.MemberIdentity], shard: GroupShard, now_ms: int
) -> Decision[list[ErrorCode]]:
    """Remove members that leave. The reply contains an error code for each of them, in the same order: NONE,
    UNKNOWN_MEMBER_ID or FENCED_INSTANCE_ID."""
    group = _with_members(group_id, shard)
    if group is None:
        return member_decisions.leave(group_id, leaving, shard, now_ms)
    return classic_members.leave(leaving, group, shard, now_ms)


def _with_members(group_id: str, shard: GroupShard) -> ConsumerGroup | None:
    group = shard.consumer_group(group_id)
    return group if group is not None and group.members else None
