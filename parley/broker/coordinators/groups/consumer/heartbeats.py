"""Decisions about ConsumerGroupHeartbeat (KIP-848): members join, report their partitions, and leave.

A heartbeat is decided in three steps, unless it changes nothing.

1. Add or update the member. A new subscription starts a new group epoch.
2. If the group epoch is higher than the target epoch, compute a new target assignment.
3. Move the member toward its target assignment.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial

from parley.broker.coordinators.decision import Decision
from parley.broker.coordinators.groups.consumer.consumer_group import ConsumerGroup
from parley.broker.coordinators.groups.consumer.group_change import GroupChange
from parley.broker.coordinators.groups.consumer.leaving import leave
from parley.broker.coordinators.groups.consumer.member import (
    LEFT_FOR_NOW,
    Assignment,
    Member,
    MemberDetails,
    Progress,
)
from parley.broker.coordinators.groups.consumer.member_steps import reconcile, require_static
from parley.broker.coordinators.groups.consumer.reconciliation import reports_only_assigned
from parley.broker.coordinators.groups.consumer.regexes import update_regex
from parley.broker.coordinators.groups.consumer.sessions import rebalance_timer, session, timers_of_consumer_protocol
from parley.broker.coordinators.groups.consumer.upgrading import Conversion, upgraded
from parley.broker.coordinators.groups.group_shard import GroupShard
from parley.broker.network.request_context import RequestContext
from parley.light_dataclasses import dataclass
from parley.protocol.errors import ErrorCode, KafkaError
from parley.protocol.messages.consumer_groups import ConsumerGroupHeartbeatRequest, ConsumerGroupHeartbeatResponse
from parley.protocol.uuids import UUID

JOIN = 0
"""The epoch that a joining member sends."""


@dataclass(frozen=True, slots=True)
class Sender:
    """The client that sends a heartbeat. ``new_id`` becomes its member id if it has none."""

    context: RequestContext
    new_id: str


def heartbeat(
    request: ConsumerGroupHeartbeatRequest, sender: Sender, shard: GroupShard, now_ms: int
) -> Decision[ConsumerGroupHeartbeatResponse]:
    """Let a member join, stay or leave, and move it toward its target assignment. Raises the KafkaError that the client
    gets, for example UNKNOWN_MEMBER_ID or FENCED_MEMBER_EPOCH."""
    if request.member_epoch < JOIN:
        return leave(request, shard, now_ms)
    if changes_nothing(request, sender.context, shard):
        return _stayed(request, shard)
    return in_all_steps(request, sender, shard, now_ms)


def in_all_steps(
    request: ConsumerGroupHeartbeatRequest, sender: Sender, shard: GroupShard, now_ms: int
) -> Decision[ConsumerGroupHeartbeatResponse]:
    """Decide on the heartbeat of a member that joins or stays, in all three steps. Raises the KafkaError that the
    client gets, for example UNKNOWN_MEMBER_ID or FENCED_MEMBER_EPOCH."""
    joins = request.member_epoch == JOIN
    group, conversion = _group_and_conversion(request.group_id, shard, joins=joins)
    _check_size(group, request.member_id, shard)
    change = GroupChange(shard, group, now_ms, conversion.records)
    change.timers.update(conversion.timers)
    change.released = conversion.released
    if conversion.effect is not None:
        change.afterwards(conversion.effect)
    known = _member(request, sender, change, joins=joins)
    before = known if known is not None else Member(request.member_id or sender.new_id)
    member, subscription_changed = _updated(request, sender, before, known is None, change)
    change.update_target()
    member = _reconciled(request, member, subscription_changed, change)
    settings = shard.settings(request.group_id)
    change.timers.update(session(request.group_id, member.member_id, settings.session_timeout_ms))
    response = ConsumerGroupHeartbeatResponse(
        member_id=member.member_id,
        member_epoch=member.progress.epoch,
        heartbeat_interval_ms=settings.heartbeat_interval_ms,
    )
    if joins or _is_full(request) or _assignment_changed(before.progress, member.progress):
        response.assignment = _assignment(member.progress)
    return change.decision(response)


# --- Most heartbeats ---


def changes_nothing(request: ConsumerGroupHeartbeatRequest, context: RequestContext, shard: GroupShard) -> bool:
    """Return True if a heartbeat only keeps the member alive, and the member already has its target assignment.

    This is true of most heartbeats. This check is cheaper than the three steps, which would change nothing.
    """
    if (
        request.topic_partitions is not None
        or request.subscribed_topic_names is not None
        or request.subscribed_topic_regex is not None
        or request.server_assignor is not None
        or request.rack_id is not None
        or request.rebalance_timeout_ms != -1
    ):
        return False
    group = shard.consumer_group(request.group_id)
    if group is None or group.epoch > group.target_epoch or not group.metadata_checked or group.regex_subscribers:
        return False
    member = group.members.get(request.member_id)
    if member is None or member.progress.epoch != request.member_epoch:
        return False
    details = member.details
    return (
        details.instance_id == request.instance_id
        and details.client_id == (context.client_id or "")
        and details.client_host == f"/{context.client_host}"
        and details.classic is None
        and member.progress.is_reconciled_to(group.target_epoch)
    )


def _stayed(request: ConsumerGroupHeartbeatRequest, shard: GroupShard) -> Decision[ConsumerGroupHeartbeatResponse]:
    settings = shard.settings(request.group_id)
    response = ConsumerGroupHeartbeatResponse(
        member_id=request.member_id,
        member_epoch=request.member_epoch,
        heartbeat_interval_ms=settings.heartbeat_interval_ms,
    )
    timers = session(request.group_id, request.member_id, settings.session_timeout_ms)
    return Decision(response, is_divisible=True, timers=timers)


# --- The group ---


def _group_and_conversion(group_id: str, shard: GroupShard, *, joins: bool) -> tuple[ConsumerGroup, Conversion]:
    """Return the group of a heartbeat. For a joining member, create the group, or convert a classic group to it.

    Raises GROUP_ID_NOT_FOUND if there is no such group, or if a group of another type cannot be converted.
    """
    known = shard.groups.get(group_id)
    if known is not None and known.consumer is not None:
        return known.consumer, Conversion()
    if known is None and not joins:
        raise KafkaError(ErrorCode.GROUP_ID_NOT_FOUND, f"Consumer group {group_id} not found.")
    if known is None:
        return ConsumerGroup(group_id), Conversion()
    if not joins or not known.is_classic:
        raise KafkaError(ErrorCode.GROUP_ID_NOT_FOUND, f"Group {group_id} is not a consumer group.")
    return upgraded(known, shard)


def _check_size(group: ConsumerGroup, member_id: str, shard: GroupShard) -> None:
    size = shard.config().group_consumer_max_size
    if len(group.members) >= size and member_id not in group.members:
        raise KafkaError(
            ErrorCode.GROUP_MAX_SIZE_REACHED,
            f"The consumer group has reached its maximum capacity of {size} members.",
        )


# --- The member ---


def _member(
    request: ConsumerGroupHeartbeatRequest, sender: Sender, change: GroupChange, *, joins: bool
) -> Member | None:
    """Return the member that sent a heartbeat, or None if it is new. Raises UNKNOWN_MEMBER_ID, FENCED_MEMBER_EPOCH,
    FENCED_INSTANCE_ID or UNRELEASED_INSTANCE_ID."""
    group = change.group
    if request.instance_id is None:
        member = group.members.get(request.member_id)
        if member is None and not joins:
            raise KafkaError(
                ErrorCode.UNKNOWN_MEMBER_ID,
                f"Member {request.member_id} is not a member of group {group.group_id}.",
            )
        if member is not None:
            _check_epoch(request, member.progress)
        return member
    static = group.members.get(group.static_ids.get(request.instance_id, ""))
    if not joins:
        static = require_static(static, request.member_id, request.instance_id)
        _check_epoch(request, static.progress)
        return static
    if static is None:
        return group.members.get(request.member_id)
    if static.details.classic is None and static.progress.epoch != LEFT_FOR_NOW:
        raise KafkaError(
            ErrorCode.UNRELEASED_INSTANCE_ID,
            f"Static member {request.member_id} with instance id {request.instance_id} cannot join the group because "
            f"the instance id is owned by {static.member_id} member.",
        )
    return change.replace_static(static, request.member_id or sender.new_id)


def _check_epoch(request: ConsumerGroupHeartbeatRequest, progress: Progress) -> None:
    """Raise FENCED_MEMBER_EPOCH unless the member is in its current epoch, or is in the previous one because the
    response with the current epoch was lost."""
    epoch = request.member_epoch
    if epoch in (JOIN, progress.epoch):
        return
    is_retry = epoch == progress.previous_epoch and reports_only_assigned(_reported(request), progress.assigned)
    if epoch > progress.epoch or not is_retry:
        relation = "greater" if epoch > progress.epoch else "smaller"
        raise KafkaError(
            ErrorCode.FENCED_MEMBER_EPOCH,
            f"The consumer group member has a {relation} member epoch ({epoch}) than the one known by the group "
            f"coordinator ({progress.epoch}). The member must abandon all its partitions and rejoin.",
        )


def _updated(
    request: ConsumerGroupHeartbeatRequest, sender: Sender, before: Member, is_new: bool, change: GroupChange
) -> tuple[Member, bool]:
    """Step 1: add or update the member. Returns the member, and True if its subscription has changed."""
    details = _details(request, sender.context, before.details)
    member = before
    if is_new or details != before.details:
        member = change.put_details(before.member_id, details)
    if before.details.classic is not None:
        change.timers.update(timers_of_consumer_protocol(change.group_id, member))
        change.afterwards(partial(change.group.joining_again.discard, member.member_id))
    names_changed = details.topics != before.details.topics
    regex = update_regex(sender.context, before.details.regex, details.regex, change)
    bump = names_changed or regex.is_resolved
    if bump or not change.group.metadata_checked:
        change.check_metadata(bump=bump)
    return member, names_changed or regex.has_changed


def _details(request: ConsumerGroupHeartbeatRequest, context: RequestContext, before: MemberDetails) -> MemberDetails:
    """Return a member's details after a heartbeat: the same object if nothing has changed."""
    host = f"/{context.client_host}"
    client_id = context.client_id or ""
    names = request.subscribed_topic_names
    is_unchanged = (
        names is None
        and request.subscribed_topic_regex is None
        and request.rebalance_timeout_ms == -1
        and request.server_assignor is None
        and request.rack_id is None
        and before.instance_id == request.instance_id
        and before.client_id == client_id
        and before.client_host == host
        and before.classic is None
    )
    if is_unchanged:
        return before
    return replace(
        before,
        instance_id=before.instance_id if request.instance_id is None else request.instance_id,
        rack_id=before.rack_id if request.rack_id is None else request.rack_id,
        client_id=client_id,
        client_host=host,
        topics=before.topics if names is None else tuple(sorted(set(names))),
        regex=before.regex if request.subscribed_topic_regex is None else request.subscribed_topic_regex,
        rebalance_timeout_ms=before.rebalance_timeout_ms
        if request.rebalance_timeout_ms == -1
        else request.rebalance_timeout_ms,
        assignor=before.assignor if request.server_assignor is None else request.server_assignor,
        classic=None,
    )


# --- The assignment ---


def _reconciled(
    request: ConsumerGroupHeartbeatRequest, member: Member, subscription_changed: bool, change: GroupChange
) -> Member:
    """Step 3: move the member toward its target assignment. Restarts its rebalance timeout only if its progress has
    changed: a heartbeat alone does not prolong the timeout."""
    before = member.progress
    member = reconcile(member, _reported(request), subscription_changed, change)
    if member.progress is not before:
        change.timers.update(rebalance_timer(change.group_id, member))
    return member


def _reported(request: ConsumerGroupHeartbeatRequest) -> Assignment | None:
    if request.topic_partitions is None:
        return None
    reported: dict[UUID, list[int]] = {}
    for each in request.topic_partitions:
        reported.setdefault(each.topic_id, []).extend(each.partitions)
    return {topic: tuple(partitions) for topic, partitions in reported.items()}


def _is_full(request: ConsumerGroupHeartbeatRequest) -> bool:
    """Return True if the heartbeat contains all fields. A member sends all of them if it may have missed a response."""
    subscribes = request.subscribed_topic_names is not None or request.subscribed_topic_regex is not None
    return request.rebalance_timeout_ms != -1 and subscribes and request.topic_partitions is not None


def _assignment_changed(before: Progress, now: Progress) -> bool:
    return before.assigned is not now.assigned and before.assigned != now.assigned


def _assignment(progress: Progress) -> ConsumerGroupHeartbeatResponse.Assignment:
    return ConsumerGroupHeartbeatResponse.Assignment(
        topic_partitions=[
            ConsumerGroupHeartbeatResponse.TopicPartitions(topic_id=topic, partitions=list(partitions))
            for topic, partitions in progress.assigned.items()
        ]
    )
