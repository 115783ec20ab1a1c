"""Steps of the decisions about members of a consumer group, for members of both protocols."""

from __future__ import annotations

from parley.broker.coordinators.groups.consumer.group_change import GroupChange
from parley.broker.coordinators.groups.consumer.member import Assignment, Member
from parley.broker.coordinators.groups.consumer.reconciliation import Situation, Target, reconciled
from parley.broker.coordinators.groups.consumer.target_assignment import subscribed_names
from parley.broker.coordinators.groups.consumer.topics import topic_ids
from parley.protocol.errors import ErrorCode, KafkaError


def require_static(static: Member | None, member_id: str, instance_id: str) -> Member:
    """Return ``static``, the group's member with the instance id ``instance_id``.

    Raises UNKNOWN_MEMBER_ID if it is None, because there is no such member, or FENCED_INSTANCE_ID if its member id is
    not ``member_id``.
    """
    if static is None:
        raise KafkaError(ErrorCode.UNKNOWN_MEMBER_ID, f"Instance id {instance_id} is unknown.")
    if static.member_id != member_id:
        raise KafkaError(
            ErrorCode.FENCED_INSTANCE_ID,
            f"Static member {member_id} with instance id {instance_id} was fenced by member {static.member_id}.",
        )
    return static


def reconcile(member: Member, reported: Assignment | None, subscription_changed: bool, change: GroupChange) -> Member:
    """Move a member toward its target assignment, and return the changed member.

    ``reported`` contains the partitions that the member reports as its own, or is None if it does not report them.
    ``subscription_changed`` is True if its current request has changed its subscription. Raises FENCED_MEMBER_EPOCH for
    a member in an unknown state, unless it reports that it owns no partitions.
    """
    if not subscription_changed and member.progress.is_reconciled_to(change.target_epoch):
        return member
    group = change.group
    situation = Situation(
        Target(change.target_epoch, change.target_of(member)),
        topic_ids(change.shard.image(), subscribed_names(member, change.regexes)),
        subscription_changed,
        reported,
        lambda topic, partition: group.owner(topic, partition) is None,
    )
    progress = reconciled(member.progress, situation)
    return member if progress is member.progress else change.put_progress(member, progress)
