"""Removes members from a consumer group, when they leave or are expelled."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection
from dataclasses import replace
from typing import TypeVar

from parley.broker.coordinators.decision import Decision
from parley.broker.coordinators.groups.consumer.consumer_group import ConsumerGroup
from parley.broker.coordinators.groups.consumer.downgrading import downgraded, may_downgrade_without
from parley.broker.coordinators.groups.consumer.group_change import GroupChange
from parley.broker.coordinators.groups.consumer.member import LEFT_FOR_NOW, NOTHING, Member, in_epoch, partitions_of
from parley.broker.coordinators.groups.consumer.member_steps import require_static
from parley.broker.coordinators.groups.group_members import require_member
from parley.broker.coordinators.groups.group_shard import GroupShard
from parley.broker.coordinators.groups.timer_kinds import TimerKind
from parley.protocol.messages.consumer_groups import ConsumerGroupHeartbeatRequest, ConsumerGroupHeartbeatResponse

T = TypeVar("T")


def leave(
    request: ConsumerGroupHeartbeatRequest, shard: GroupShard, now_ms: int
) -> Decision[ConsumerGroupHeartbeatResponse]:
    """Remove a member that leaves. A static member that leaves temporarily keeps its partitions until its session
    expires.

    Raises GROUP_ID_NOT_FOUND, UNKNOWN_MEMBER_ID or FENCED_INSTANCE_ID.
    """
    group = require_group(request.group_id, shard)
    response = ConsumerGroupHeartbeatResponse(
        member_id=request.member_id, member_epoch=request.member_epoch, heartbeat_interval_ms=0
    )
    if request.instance_id is None:
        member = require_member(group, request.member_id)
    else:
        known = group.members.get(group.static_ids.get(request.instance_id, ""))
        member = require_static(known, request.member_id, request.instance_id)
        if request.member_epoch == LEFT_FOR_NOW:
            change = GroupChange(shard, group, now_ms)
            change.note("static member left temporarily", member=member.member_id)
            # The member keeps its partitions, whatever its next epoch is: let it commit in any epoch.
            kept = in_epoch(partitions_of(member.progress.assigned), 0)
            change.put_progress(member, replace(member.progress, epoch=LEFT_FOR_NOW, assigned=kept, revoking=NOTHING))
            change.timers[TimerKind.MEMBER_REBALANCE, group.group_id, member.member_id] = None
            return change.decision(response)
    return remove_members(group, [member], response, "member left", shard, now_ms)


def require_group(group_id: str, shard: GroupShard) -> ConsumerGroup:
    """Return the consumer group with this id. Raises GROUP_ID_NOT_FOUND if there is none."""
    return shard.require_group(group_id, lambda known: known.consumer, "consumer")


def remove_members(
    group: ConsumerGroup, members: Collection[Member], reply: T, reason: str, shard: GroupShard, now_ms: int
) -> Decision[T]:
    """Remove members, and start a new group epoch. The decision has the reply ``reply``. ``reason`` is logged.

    If only members of the classic protocol are left, the group becomes a classic group, unless it is too large or the
    migration policy does not allow it.
    """
    if may_downgrade_without(group, members, shard):
        decision = downgraded(group, members, reply, shard, now_ms)
        if decision is not None:
            return decision
    change = GroupChange(shard, group, now_ms)
    subscribed = Counter(member.details.regex for member in members)
    for member in members:
        change.note(reason, member=member.member_id)
        change.remove(member)
    for regex in subscribed:
        if regex and not change.subscribers_of(regex):
            change.remove_regex(regex)
    change.bump()
    return change.decision(reply)
