"""Checks whether a member of a consumer group may commit or read offsets.

A member may commit in its current epoch. In an earlier epoch, it may commit only for partitions that it has owned since
then, because another member may have owned any other partition in between (KIP-1251).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from parley.broker.coordinators.groups.consumer.consumer_group import ConsumerGroup
from parley.broker.coordinators.groups.consumer.member import NOTHING, Member
from parley.broker.coordinators.groups.group_members import require_member
from parley.protocol.errors import ErrorCode, KafkaError
from parley.protocol.uuids import UUID

MEMBER_EPOCHS_SINCE: Final = 9
"""The first version of OffsetCommit and OffsetFetch that has member epochs."""


def check_may_commit_to(group: ConsumerGroup, member_id: str, epoch: int, api_version: int) -> None:
    """Raise KafkaError if a client is not allowed to commit now: UNKNOWN_MEMBER_ID, STALE_MEMBER_EPOCH,
    ILLEGAL_GENERATION, or UNSUPPORTED_VERSION if its version of the request has no member epochs.

    A client without a member epoch, for which ``epoch`` is negative, may commit if the group has no members.
    """
    if epoch < 0 and not group.members:
        return
    member = require_member(group, member_id)
    if member.details.classic is None and api_version < MEMBER_EPOCHS_SINCE:
        raise KafkaError(
            ErrorCode.UNSUPPORTED_VERSION,
            "OffsetCommit version 9 or above must be used by members using the consumer group protocol",
        )
    if epoch > member.progress.epoch:
        raise _stale(member)


def partition_check(group: ConsumerGroup, member_id: str, epoch: int) -> Callable[[UUID | None, int], None] | None:
    """Return a function that checks whether a member may commit for a partition, or None if it may commit for all.

    The function takes the topic id (None if it is unknown) and the partition. It raises STALE_MEMBER_EPOCH, or
    ILLEGAL_GENERATION for a member of the classic protocol, if the member is not allowed to commit.
    """
    member = group.members.get(member_id)
    if member is None or epoch == member.progress.epoch:
        return None
    progress = member.progress

    def check(topic: UUID | None, partition: int) -> None:
        for owned in (progress.assigned, progress.revoking):
            since = owned.get(topic, NOTHING).get(partition) if topic is not None else None
            if since is not None and since <= epoch:
                return
        raise _stale(member)

    return check


def check_may_read(group: ConsumerGroup, member_id: str, epoch: int) -> None:
    """Raise UNKNOWN_MEMBER_ID if the group has no such member. Raise STALE_MEMBER_EPOCH, or ILLEGAL_GENERATION for a
    member of the classic protocol, if its member epoch is not ``epoch``."""
    member = require_member(group, member_id)
    if member.progress.epoch != epoch:
        raise _stale(member)


def _stale(member: Member) -> KafkaError:
    is_classic = member.details.classic is not None
    return KafkaError(ErrorCode.ILLEGAL_GENERATION if is_classic else ErrorCode.STALE_MEMBER_EPOCH)
