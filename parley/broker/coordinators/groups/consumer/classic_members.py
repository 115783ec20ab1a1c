"""Members of the classic protocol in a consumer group, while the group moves from one protocol to the other.

* A JoinGroup is treated like a full heartbeat: it moves the member toward its target assignment, and the response is
  sent immediately. Its generation is the member epoch.
* A SyncGroup returns the member's assignment. A Heartbeat returns REBALANCE_IN_PROGRESS if the member must rejoin: the
  group has a newer assignment, or the member must revoke partitions, or partitions that it waits for are free.
* A member must rejoin, and then request its assignment, within its rebalance timeout.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial

from parley.broker.coordinators.decision import Decision
from parley.broker.coordinators.groups.classic.membership import Protocols
from parley.broker.coordinators.groups.classic.responses import join_error
from parley.broker.coordinators.groups.consumer.consumer_group import ConsumerGroup, is_waiting_for_release
from parley.broker.coordinators.groups.consumer.consumer_protocol import (
    CONSUMER_PROTOCOL,
    encoded_assignment,
    owned_partitions,
    subscription_of,
)
from parley.broker.coordinators.groups.consumer.downgrading import downgraded, may_downgrade_without
from parley.broker.coordinators.groups.consumer.group_change import GroupChange
from parley.broker.coordinators.groups.consumer.leaving import remove_members
from parley.broker.coordinators.groups.consumer.member import (
    ClassicMember,
    Member,
    MemberDetails,
    MemberState,
    partitions_of,
)
from parley.broker.coordinators.groups.consumer.member_steps import reconcile, require_static
from parley.broker.coordinators.groups.consumer.migration_policy import MigrationPolicy, migration_policy
from parley.broker.coordinators.groups.consumer.regexes import update_regex
from parley.broker.coordinators.groups.consumer.sessions import classic_timer, session_of
from parley.broker.coordinators.groups.group_members import require_member
from parley.broker.coordinators.groups.group_shard import GroupShard
from parley.broker.coordinators.groups.timer_kinds import TimerKind
from parley.broker.network.request_context import RequestContext
from parley.protocol.errors import ErrorCode, KafkaError, MalformedMessage
from parley.protocol.messages.groups import (
    HeartbeatRequest,
    JoinGroupRequest,
    JoinGroupResponse,
    LeaveGroupRequest,
    SyncGroupRequest,
    SyncGroupResponse,
)
from parley.protocol.messages.stored import ConsumerProtocolSubscription

KNOWN_MEMBER_REQUIRED_SINCE = 4
"""The first version of JoinGroup in which a new member gets its id before it joins (KIP-394)."""


# --- JoinGroup ---


def join(
    request: JoinGroupRequest,
    context: RequestContext,
    new_id: str,
    group: ConsumerGroup,
    shard: GroupShard,
    now_ms: int,
) -> Decision[JoinGroupResponse]:
    """Let a member join or rejoin: move it toward its target assignment.

    From version 4 of the request on, a dynamic member without an id gets the reply MEMBER_ID_REQUIRED, with a new id.
    Raises the KafkaError that the client gets, for example INCONSISTENT_GROUP_PROTOCOL or GROUP_MAX_SIZE_REACHED.
    """
    _check_migration(group, shard)
    protocols = tuple([(each.name, each.metadata) for each in request.protocols])
    _check_size(group, request.member_id, shard)
    _check_protocols(group, request.protocol_type, protocols)
    is_new = not request.member_id
    if is_new and request.group_instance_id is None and context.api_version >= KNOWN_MEMBER_REQUIRED_SINCE:
        return Decision(join_error(ErrorCode.MEMBER_ID_REQUIRED, new_id, context.api_version))
    change = GroupChange(shard, group, now_ms)
    static = group.members.get(group.static_ids.get(request.group_instance_id or "", ""))
    is_last = static is not None and may_downgrade_without(group, [static], shard, joining=1)
    known = _member(request, new_id, static, change)
    before = known if known is not None else Member(request.member_id or new_id)
    details = _details(request, context, protocols, before.details)
    member = before
    if known is None or details != before.details:
        member = change.put_details(before.member_id, details)
    regex = update_regex(context, before.details.regex, details.regex, change)
    bump = details.topics != before.details.topics or regex.has_changed
    if bump or not group.metadata_checked:
        change.check_metadata(bump=bump)
    owned = [(each.topic, each.partitions) for each in _subscription(protocols).owned_partitions]
    reported = owned_partitions(owned, shard.image())
    if static is not None and is_last:
        now = member if bump else reconcile(member, reported, False, change)
        decision = downgraded(group, (), _joined(now), shard, now_ms, joining=(static, now), rebalances=bump)
        if decision is not None:
            return decision
    change.update_target()
    member = reconcile(member, reported, bump, change)
    for kind in (TimerKind.MEMBER_JOIN, TimerKind.MEMBER_REBALANCE):
        change.timers[kind, group.group_id, member.member_id] = None
    change.afterwards(partial(group.joining_again.discard, member.member_id))
    change.timers.update(session_of(shard, group.group_id, member))
    change.timers.update(classic_timer(TimerKind.MEMBER_SYNC, group.group_id, member))
    return change.decision(_joined(member))


def _check_migration(group: ConsumerGroup, shard: GroupShard) -> None:
    if migration_policy(shard.config()) is MigrationPolicy.DISABLED:
        raise KafkaError(
            ErrorCode.INCONSISTENT_GROUP_PROTOCOL,
            f"Group {group.group_id} uses the consumer protocol, and group.consumer.migration.policy is disabled.",
        )


def _check_size(group: ConsumerGroup, member_id: str, shard: GroupShard) -> None:
    if len(group.members) >= shard.config().group_consumer_max_size and member_id not in group.members:
        raise KafkaError(ErrorCode.GROUP_MAX_SIZE_REACHED)


def _check_protocols(group: ConsumerGroup, protocol_type: str, protocols: Protocols) -> None:
    """Raise INCONSISTENT_GROUP_PROTOCOL if the protocol type is not that of consumers, if the member has no strategy
    that all classic members support, or if its subscription cannot be decoded."""
    classic = [each.details.classic for each in group.members.values() if each.details.classic is not None]
    common = {name for name, _ in protocols}
    for each in classic:
        common &= {name for name, _ in each.protocols}
    if protocol_type != CONSUMER_PROTOCOL or not common:
        raise KafkaError(ErrorCode.INCONSISTENT_GROUP_PROTOCOL)
    _subscription(protocols)


def _subscription(protocols: Protocols) -> ConsumerProtocolSubscription:
    try:
        return subscription_of(protocols[0][1])
    except MalformedMessage as error:
        raise KafkaError(ErrorCode.INCONSISTENT_GROUP_PROTOCOL, str(error)) from error


def _member(request: JoinGroupRequest, new_id: str, static: Member | None, change: GroupChange) -> Member | None:
    """Return the member that joins, or None if it is new. Raises UNKNOWN_MEMBER_ID or FENCED_INSTANCE_ID."""
    if request.group_instance_id is None:
        return change.group.members.get(request.member_id)
    if request.member_id:
        return require_static(static, request.member_id, request.group_instance_id)
    return None if static is None else change.replace_static(static, new_id)


def _details(
    request: JoinGroupRequest, context: RequestContext, protocols: Protocols, before: MemberDetails
) -> MemberDetails:
    subscription = _subscription(protocols)
    return replace(
        before,
        instance_id=request.group_instance_id or before.instance_id,
        rack_id=subscription.rack_id or before.rack_id,
        rebalance_timeout_ms=request.rebalance_timeout_ms
        if request.rebalance_timeout_ms >= 0
        else request.session_timeout_ms,
        topics=tuple(sorted(set(subscription.topics))),
        regex="" if before.regex is not None else None,
        client_id=context.client_id or "",
        client_host=f"/{context.client_host}",
        classic=ClassicMember(request.session_timeout_ms, protocols),
    )


def _joined(member: Member) -> JoinGroupResponse:
    classic = member.details.classic
    assert classic is not None, "the member has just joined with the classic protocol"
    return JoinGroupResponse(
        error_code=ErrorCode.NONE,
        generation_id=member.progress.epoch,
        protocol_type=CONSUMER_PROTOCOL,
        protocol_name=classic.protocols[0][0],
        leader="",
        member_id=member.member_id,
        members=[],
    )


# --- SyncGroup, Heartbeat, LeaveGroup ---


def sync(
    request: SyncGroupRequest, group: ConsumerGroup, shard: GroupShard, now_ms: int
) -> Decision[SyncGroupResponse]:
    """Reply with a member's assignment.

    Raises UNKNOWN_MEMBER_ID, FENCED_INSTANCE_ID, ILLEGAL_GENERATION, INCONSISTENT_GROUP_PROTOCOL, or
    REBALANCE_IN_PROGRESS if the member must rejoin first.
    """
    member, classic = _require(group, request.member_id, request.group_instance_id, request.generation_id)
    if request.protocol_type not in (None, CONSUMER_PROTOCOL) or (
        request.protocol_name not in (None, classic.protocols[0][0])
    ):
        raise KafkaError(ErrorCode.INCONSISTENT_GROUP_PROTOCOL)
    if group.epoch > member.progress.epoch and member.progress.state is not MemberState.UNREVOKED_PARTITIONS:
        raise KafkaError(ErrorCode.REBALANCE_IN_PROGRESS)
    return Decision(
        SyncGroupResponse(
            error_code=ErrorCode.NONE,
            protocol_type=request.protocol_type,
            protocol_name=request.protocol_name,
            assignment=encoded_assignment(partitions_of(member.progress.assigned), classic.protocols, shard.image()),
        ),
        timers={
            **session_of(shard, group.group_id, member),
            (TimerKind.MEMBER_SYNC, group.group_id, member.member_id): None,
        },
    )


def heartbeat(request: HeartbeatRequest, group: ConsumerGroup, shard: GroupShard, now_ms: int) -> Decision[ErrorCode]:
    """Keep a member alive. The reply is REBALANCE_IN_PROGRESS if the member must rejoin, and otherwise NONE.

    Raises UNKNOWN_MEMBER_ID, FENCED_INSTANCE_ID or ILLEGAL_GENERATION.
    """
    member, _ = _require(group, request.member_id, request.group_instance_id, request.generation_id)
    progress = member.progress
    target = group.target_of(member.member_id, member.details.instance_id)
    timers = dict(session_of(shard, group.group_id, member))
    must_join = (
        progress.epoch < group.target_epoch
        or progress.state is MemberState.UNREVOKED_PARTITIONS
        or (progress.state is MemberState.UNRELEASED_PARTITIONS and not is_waiting_for_release(group, member, target))
    )
    if not must_join:
        return Decision(ErrorCode.NONE, timers=timers)
    if member.member_id not in group.joining_again:
        timers.update(classic_timer(TimerKind.MEMBER_JOIN, group.group_id, member))
    return Decision(
        ErrorCode.REBALANCE_IN_PROGRESS,
        timers=timers,
        change=partial(group.joining_again.add, member.member_id),
    )


def _require(
    group: ConsumerGroup, member_id: str, instance_id: str | None, generation: int
) -> tuple[Member, ClassicMember]:
    """Return the member that sent a request. Raises UNKNOWN_MEMBER_ID, FENCED_INSTANCE_ID or ILLEGAL_GENERATION."""
    if instance_id is None:
        member = require_member(group, member_id)
    else:
        static = group.members.get(group.static_ids.get(instance_id, ""))
        member = require_static(static, member_id, instance_id)
    if member.details.classic is None:
        raise KafkaError(ErrorCode.UNKNOWN_MEMBER_ID, f"Member {member_id} does not use the classic protocol.")
    if member.progress.epoch != generation:
        raise KafkaError(ErrorCode.ILLEGAL_GENERATION)
    return member, member.details.classic


def leave(
    leaving: Sequence[LeaveGroupRequest.MemberIdentity], group: ConsumerGroup, shard: GroupShard, now_ms: int
) -> Decision[list[ErrorCode]]:
    """Remove members that leave. The reply contains an error code for each of them, in the same order: NONE,
    UNKNOWN_MEMBER_ID or FENCED_INSTANCE_ID."""
    codes: list[ErrorCode] = []
    gone: dict[str, Member] = {}
    for each in leaving:
        try:
            member = _leaver(each, group)
        except KafkaError as error:
            codes.append(error.code)
        else:
            gone[member.member_id] = member
            codes.append(ErrorCode.NONE)
    if not gone:
        return Decision(codes)
    return remove_members(group, list(gone.values()), codes, "member left", shard, now_ms)


def _leaver(leaving: LeaveGroupRequest.MemberIdentity, group: ConsumerGroup) -> Member:
    """Return the member that leaves. It may use either protocol, because administrators remove members of both
    protocols with LeaveGroup. Raises UNKNOWN_MEMBER_ID or FENCED_INSTANCE_ID."""
    if leaving.group_instance_id is None:
        return require_member(group, leaving.member_id)
    static = group.members.get(group.static_ids.get(leaving.group_instance_id, ""))
    known_id = leaving.member_id or (static.member_id if static is not None else "")
    return require_static(static, known_id, leaving.group_instance_id)
