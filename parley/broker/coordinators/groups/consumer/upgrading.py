"""Converts a classic group to a consumer group when its first member of the consumer protocol joins (KIP-848).

The classic members stay in the group with their assignments, and keep using the classic protocol. Members that wait for
a rebalance must rejoin.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import field
from functools import partial

from parley.broker.coordinators.decision import KeyValue, Timer
from parley.broker.coordinators.groups.classic.membership import GroupMember, GroupState, Membership
from parley.broker.coordinators.groups.classic.responses import join_error, sync_error
from parley.broker.coordinators.groups.consumer.consumer_group import ConsumerGroup
from parley.broker.coordinators.groups.consumer.consumer_protocol import (
    CONSUMER_PROTOCOL,
    assignment_of,
    subscription_of,
)
from parley.broker.coordinators.groups.consumer.consumer_records import group_records
from parley.broker.coordinators.groups.consumer.member import ClassicMember, MemberDetails, Progress, in_epoch
from parley.broker.coordinators.groups.consumer.migration_policy import migration_policy
from parley.broker.coordinators.groups.consumer.sessions import session_of
from parley.broker.coordinators.groups.group import NO_MEMBERS, Group
from parley.broker.coordinators.groups.group_records import group_tombstone
from parley.broker.coordinators.groups.group_shard import GroupShard
from parley.broker.coordinators.groups.timer_kinds import TimerKind
from parley.light_dataclasses import dataclass
from parley.protocol.errors import ErrorCode, KafkaError, MalformedMessage


@dataclass(frozen=True, slots=True)
class Conversion:
    """The parts of a decision that convert a classic group to a consumer group. Empty if there was no classic group."""

    records: Sequence[KeyValue] = ()
    timers: Mapping[Hashable, Timer | None] = field(default_factory=dict)
    released: Mapping[Hashable, object] = field(default_factory=dict)
    effect: Callable[[], None] | None = None


def upgraded(known: Group, shard: GroupShard) -> tuple[ConsumerGroup, Conversion]:
    """Return the consumer group for a classic group, and the parts of the decision that convert it.

    Raises GROUP_ID_NOT_FOUND if the group cannot be converted.
    """
    membership = known.membership
    group_id = known.group_id
    effect = partial(_forget_membership, group_id, shard)
    tombstones = [group_tombstone(group_id)] if known.stored is not None else []
    pending: dict[Hashable, Timer | None] = dict.fromkeys(
        [(TimerKind.PENDING, group_id, member_id) for member_id in membership.pending]
    )
    if not membership.members and membership.state is GroupState.EMPTY:
        return ConsumerGroup(group_id), Conversion(tombstones, pending, effect=effect)
    _check_may_upgrade(group_id, membership, shard)
    group = ConsumerGroup(group_id, epoch=membership.generation, target_epoch=membership.generation, target_since_ms=0)
    for member in membership.members.values():
        try:
            _add(member, membership, group, shard)
        except MalformedMessage as error:
            raise KafkaError(
                ErrorCode.GROUP_ID_NOT_FOUND,
                f"Cannot upgrade classic group {group_id} to consumer group because the embedded consumer protocol is "
                "malformed.",
            ) from error
    timers: dict[Hashable, Timer | None] = dict.fromkeys([(TimerKind.REBALANCE, group_id), (TimerKind.SYNC, group_id)])
    timers |= pending
    for each in group.members.values():
        timers[TimerKind.SESSION, group_id, each.member_id] = None
        timers.update(session_of(shard, group_id, each))
    return group, Conversion([*tombstones, *group_records(group)], timers, _released(group_id, membership), effect)


def _check_may_upgrade(group_id: str, membership: Membership, shard: GroupShard) -> None:
    config = shard.config()
    may = (
        migration_policy(config).allows_upgrade
        and membership.protocol_type == CONSUMER_PROTOCOL
        and len(membership.members) <= config.group_consumer_max_size
    )
    if not may:
        raise KafkaError(ErrorCode.GROUP_ID_NOT_FOUND, f"Group {group_id} is not a consumer group.")


def _add(member: GroupMember, membership: Membership, group: ConsumerGroup, shard: GroupShard) -> None:
    """Add a classic member to the consumer group. Raises MalformedMessage if its subscription or assignment cannot be
    decoded."""
    metadata = member.metadata_for(membership.protocol) or member.protocols[0][1]
    subscription = subscription_of(metadata)
    assigned = assignment_of(membership.assignments.get(member.member_id, b""), shard.image())
    details = MemberDetails(
        instance_id=member.group_instance_id,
        rack_id=subscription.rack_id,
        client_id=member.client_id,
        client_host=f"/{member.client_host}",
        topics=tuple(sorted(set(subscription.topics))),
        rebalance_timeout_ms=member.rebalance_timeout_ms,
        classic=ClassicMember(member.session_timeout_ms, member.protocols),
    )
    group.put_details(member.member_id, details)
    progress = Progress(group.epoch, group.epoch, assigned=in_epoch(assigned, group.epoch))
    group.put_progress(member.member_id, progress)
    group.targets[member.member_id] = assigned


def _released(group_id: str, membership: Membership) -> dict[Hashable, object]:
    """Return the replies to waiting members, which must rejoin."""
    again = ErrorCode.REBALANCE_IN_PROGRESS
    released: dict[Hashable, object] = {}
    for member_id in membership.joining:
        released["join", group_id, member_id] = join_error(again, member_id)
    for member_id in membership.syncing:
        released["sync", group_id, member_id] = sync_error(again)
    return released


def _forget_membership(group_id: str, shard: GroupShard) -> None:
    group = shard.groups.get(group_id)
    if group is not None:
        group.membership = NO_MEMBERS
