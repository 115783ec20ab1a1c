"""Converts a consumer group to a classic group when its last member of the consumer protocol leaves (KIP-848)."""

from __future__ import annotations

import logging
from collections.abc import Collection
from typing import TypeVar

from parley.broker.coordinators.decision import Decision
from parley.broker.coordinators.groups.classic.membership import GroupMember, GroupState, Membership
from parley.broker.coordinators.groups.classic.rebalance import MembershipChange
from parley.broker.coordinators.groups.consumer.consumer_group import ConsumerGroup
from parley.broker.coordinators.groups.consumer.consumer_protocol import CONSUMER_PROTOCOL, encoded_assignment
from parley.broker.coordinators.groups.consumer.consumer_records import group_tombstones
from parley.broker.coordinators.groups.consumer.member import NOTHING, Member
from parley.broker.coordinators.groups.consumer.migration_policy import migration_policy
from parley.broker.coordinators.groups.group_records import group_record
from parley.broker.coordinators.groups.group_shard import GroupShard
from parley.broker.coordinators.groups.timer_kinds import OF_CONSUMER_MEMBER, TimerKind

T = TypeVar("T")

_log = logging.getLogger(__name__)


def may_downgrade_without(
    group: ConsumerGroup, members: Collection[Member], shard: GroupShard, *, joining: int = 0
) -> bool:
    """Return True if the group should become a classic group when ``members`` leave and ``joining`` classic members
    join: if the migration policy allows it, and only classic members remain, at least one and at most
    ``group.max.size``."""
    config = shard.config()
    if not migration_policy(config).allows_downgrade:
        return False
    gone = {member.member_id for member in members}
    left = len(group.members) - len(gone) + joining
    if not 0 < left <= config.group_max_size:
        return False
    return all(member.details.classic is not None for member in group.members.values() if member.member_id not in gone)


def downgraded(
    group: ConsumerGroup,
    members: Collection[Member],
    reply: T,
    shard: GroupShard,
    now_ms: int,
    *,
    joining: tuple[Member, Member] | None = None,
    rebalances: bool = True,
) -> Decision[T] | None:
    """Convert the group to a classic group without ``members``. The remaining members keep their partitions and rejoin.

    Returns None, and the group stays a consumer group, if the record of the classic group would be too large for the
    topic: it contains all members.

    ``joining`` contains the old and the new incarnation of a static member that rejoins with the classic protocol. If
    ``rebalances`` is True, all members must rejoin immediately.
    """
    change = MembershipChange(shard, group.group_id, now_ms)
    gone = {member.member_id for member in members}
    kept = {member_id: member for member_id, member in group.members.items() if member_id not in gone}
    targets = dict(group.targets)
    if joining is not None:
        old, new = joining
        targets[new.member_id] = targets.pop(old.member_id, NOTHING)
        kept = {member_id: member for member_id, member in kept.items() if member_id != old.member_id}
        kept[new.member_id] = new
        gone.add(old.member_id)
    membership = Membership(
        state=GroupState.STABLE,
        state_since_ms=now_ms,
        generation=group.epoch,
        protocol_type=CONSUMER_PROTOCOL,
    )
    for member in kept.values():
        membership.add(_classic(member))
    membership.protocol = membership.choose_protocol()
    membership.assignments = {
        member_id: encoded_assignment(targets.get(member_id, NOTHING), _classic(member).protocols, shard.image())
        for member_id, member in kept.items()
    }
    if not shard.accepts(group_record(group.group_id, membership)):
        _log.warning("group is too large to become a classic group", extra={"group": group.group_id})
        return None
    change.membership = membership
    change.store_replacement()
    change.note("consumer group becomes a classic group", generation=group.epoch)
    for classic in membership.members.values():
        change.keep_alive(classic)
    if rebalances:
        change.rebalance("the group becomes a classic group")
    decision = change.decision(reply)
    every = [*kept, *gone]
    timers = dict(decision.timers) | {
        (kind, group.group_id, member_id): None for member_id in every for kind in OF_CONSUMER_MEMBER
    }
    timers[TimerKind.ASSIGN, group.group_id] = None
    return decision._replace(records=[*group_tombstones(group), *decision.records], timers=timers, is_divisible=True)


def _classic(member: Member) -> GroupMember:
    details = member.details
    assert details.classic is not None, "only members of the classic protocol are left"
    return GroupMember(
        member_id=member.member_id,
        group_instance_id=details.instance_id,
        client_id=details.client_id,
        client_host=details.client_host.removeprefix("/"),
        rebalance_timeout_ms=details.rebalance_timeout_ms,
        session_timeout_ms=details.classic.session_timeout_ms,
        protocols=details.classic.protocols,
    )
