"""Decisions about ShareGroupHeartbeat (KIP-932): members join, stay, and leave.

A heartbeat is decided in three steps.

1. Add or update the member. A new subscription starts a new group epoch.
2. If the group epoch is higher than the target epoch, compute a new target assignment.
3. Let the member enter the target's epoch. It gets its partitions immediately, because members share partitions.

Partitions that members subscribe to for the first time are initialized at the share coordinator before they are
assigned (``initialization.py``).
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from dataclasses import replace
from functools import partial

from parley.broker.coordinators.decision import Decision, Timer
from parley.broker.coordinators.groups.consumer.topics import topic_ids
from parley.broker.coordinators.groups.group_shard import GroupShard
from parley.broker.coordinators.groups.share.group_change import ShareGroupChange
from parley.broker.coordinators.groups.share.initialization import (
    begin_initialization,
    forget_deleted_topics,
    is_assignment_pending,
)
from parley.broker.coordinators.groups.share.share_group import Assignment, ShareGroup, ShareMember
from parley.broker.coordinators.groups.timer_kinds import TimerKind
from parley.broker.network.request_context import RequestContext
from parley.protocol.errors import ErrorCode, KafkaError
from parley.protocol.messages.share_groups import ShareGroupHeartbeatRequest, ShareGroupHeartbeatResponse

JOIN, LEAVE = 0, -1
"""The epochs in the heartbeats of members that join and of members that leave."""


def heartbeat(
    request: ShareGroupHeartbeatRequest, context: RequestContext, shard: GroupShard, now_ms: int
) -> Decision[ShareGroupHeartbeatResponse]:
    """Let a member join, stay or leave, and return its partitions. Raises the KafkaError that the client gets, for
    example UNKNOWN_MEMBER_ID or FENCED_MEMBER_EPOCH."""
    if request.member_epoch == LEAVE:
        return _leave(request, shard, now_ms)
    joins = request.member_epoch == JOIN
    group = _group(request.group_id, shard, joins=joins)
    _check_size(group, request.member_id, shard)
    before = _member(request, group, joins=joins)
    change = ShareGroupChange(shard, group, now_ms)
    member, bumped = _updated(request, context, before, change)
    change.update_target()
    member = _reconciled(member, bumped, change)
    begin_initialization(change)
    settings = shard.share_settings(request.group_id)
    change.timers.update(session(request.group_id, member.member_id, settings.session_timeout_ms))
    response = ShareGroupHeartbeatResponse(
        member_id=member.member_id, member_epoch=member.epoch, heartbeat_interval_ms=settings.heartbeat_interval_ms
    )
    if joins or request.subscribed_topic_names is not None or member.assigned != before.assigned:
        response.assignment = _assignment(member.assigned)
    return change.decision(response)


def _group(group_id: str, shard: GroupShard, *, joins: bool) -> ShareGroup:
    known = shard.groups.get(group_id)
    if known is None and joins:
        return ShareGroup(group_id)
    return require_group(group_id, shard)


def require_group(group_id: str, shard: GroupShard, absent: str = "Share group {} not found.") -> ShareGroup:
    """Return the share group with this id. Raises GROUP_ID_NOT_FOUND if there is none.

    ``absent`` is the error message if no group of any type has this id, with ``{}`` in place of the id.
    """
    return shard.require_group(group_id, lambda known: known.share, "share", absent)


def require_empty(group_id: str, shard: GroupShard) -> ShareGroup:
    """Return the share group with this id. Raises GROUP_ID_NOT_FOUND if there is none, or NON_EMPTY_GROUP if it has
    members."""
    group = require_group(group_id, shard, "Group {} not found.")
    if group.members:
        raise KafkaError(ErrorCode.NON_EMPTY_GROUP)
    return group


def _check_size(group: ShareGroup, member_id: str, shard: GroupShard) -> None:
    size = shard.config().group_share_max_size
    if len(group.members) >= size and member_id not in group.members:
        raise KafkaError(
            ErrorCode.GROUP_MAX_SIZE_REACHED, f"The share group has reached its maximum capacity of {size} members."
        )


def _member(request: ShareGroupHeartbeatRequest, group: ShareGroup, *, joins: bool) -> ShareMember:
    """Return the member that sent a heartbeat. Raises UNKNOWN_MEMBER_ID or FENCED_MEMBER_EPOCH."""
    member = group.members.get(request.member_id)
    if member is None:
        if not joins:
            raise _unknown(request)
        return ShareMember(request.member_id)
    epoch = request.member_epoch
    if joins or epoch in (member.epoch, member.previous_epoch):
        return member
    known = f"({epoch}) than the one known by the group coordinator ({member.epoch})"
    if epoch > member.epoch:
        text = f"The share group member has a greater member epoch {known}."
    else:
        text = (
            f"The share group member has a smaller member epoch {known}, and it does not match the previous member "
            f"epoch ({member.previous_epoch})."
        )
    raise KafkaError(ErrorCode.FENCED_MEMBER_EPOCH, f"{text} The member must abandon all its partitions and rejoin.")


def _unknown(request: ShareGroupHeartbeatRequest) -> KafkaError:
    return KafkaError(
        ErrorCode.UNKNOWN_MEMBER_ID, f"Member {request.member_id} is not a member of group {request.group_id}."
    )


def _updated(
    request: ShareGroupHeartbeatRequest, context: RequestContext, before: ShareMember, change: ShareGroupChange
) -> tuple[ShareMember, bool]:
    """Step 1: add or update the member. Returns the member, and True if the group has started a new epoch."""
    names = request.subscribed_topic_names
    member = replace(
        before,
        rack_id=before.rack_id if request.rack_id is None else request.rack_id,
        client_id=context.client_id or "",
        client_host=f"/{context.client_host}",
        topics=before.topics if names is None else tuple(sorted(set(names))),
    )
    if member != before or member.member_id not in change.group.members:
        change.put_member(member)
    bump = member.topics != before.topics
    group = change.group
    if group.target_epoch >= group.epoch:
        bump = bump or is_assignment_pending(group, change.shard.image())
    bumped = (bump or not group.metadata_checked) and change.check_metadata(bump=bump)
    return member, bumped


def _reconciled(member: ShareMember, bumped: bool, change: ShareGroupChange) -> ShareMember:
    """Step 3: let the member enter the target's epoch, with the partitions of the topics that it subscribes to."""
    if not bumped and member.epoch == change.target_epoch:
        return member
    subscribed = topic_ids(change.shard.image(), member.topics)
    target = change.target_of(member.member_id)
    assigned = {topic: partitions for topic, partitions in target.items() if topic in subscribed}
    now = replace(member, assigned=assigned)
    if member.epoch != change.target_epoch:
        now = replace(now, epoch=change.target_epoch, previous_epoch=member.epoch)
    if now != member:
        change.put_progress(now)
    return now


def _assignment(assigned: Assignment) -> ShareGroupHeartbeatResponse.Assignment:
    make = ShareGroupHeartbeatResponse.TopicPartitions
    return ShareGroupHeartbeatResponse.Assignment(
        topic_partitions=[make(topic_id=topic, partitions=sorted(each)) for topic, each in assigned.items()]
    )


# --- Members that leave ---


def _leave(
    request: ShareGroupHeartbeatRequest, shard: GroupShard, now_ms: int
) -> Decision[ShareGroupHeartbeatResponse]:
    group = require_group(request.group_id, shard, "Group {} not found.")
    member = group.members.get(request.member_id)
    if member is None:
        raise _unknown(request)
    change = ShareGroupChange(shard, group, now_ms)
    change.remove(member)
    return change.decision(
        ShareGroupHeartbeatResponse(member_id=request.member_id, member_epoch=LEAVE, heartbeat_interval_ms=0)
    )


# --- Sessions ---


def session(group_id: str, member_id: str, timeout_ms: int) -> Mapping[Hashable, Timer]:
    """Return the session timer of a member under its key, for ``Decision.timers``. Setting the timer restarts the
    session."""
    return {
        (TimerKind.SHARE_SESSION, group_id, member_id): Timer(timeout_ms, partial(_expired, group_id, member_id), True)
    }


def loaded_timers(shard: GroupShard, group: ShareGroup) -> dict[Hashable, Timer]:
    """Return the timers of a loaded group: the session of each member.

    Another timer removes the topics that were deleted while no broker coordinated the group.
    """
    timeout_ms = shard.share_settings(group.group_id).session_timeout_ms
    timers: dict[Hashable, Timer] = {TimerKind.SHARE_TOPICS: Timer(0, forget_deleted_topics)}
    for member_id in group.members:
        timers.update(session(group.group_id, member_id, timeout_ms))
    return timers


def _expired(group_id: str, member_id: str, shard: GroupShard, now_ms: int) -> Decision[None]:
    """Remove a member whose session has expired."""
    group = shard.share_group(group_id)
    member = None if group is None else group.members.get(member_id)
    if group is None or member is None:
        return Decision(None)
    change = ShareGroupChange(shard, group, now_ms)
    change.remove(member)
    return change.decision(None)
