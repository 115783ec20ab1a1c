"""Checks whether a member of a streams group may commit or read offsets.

A member may commit in its current epoch. In an earlier epoch, it may commit only for partitions of tasks that it has
owned since then, because another member may have owned any other task in between (KIP-1251).
"""

from __future__ import annotations

from collections.abc import Callable

from parley.broker.coordinators.groups.consumer.commits import MEMBER_EPOCHS_SINCE
from parley.broker.coordinators.groups.group_members import require_member
from parley.broker.coordinators.groups.streams.streams_group import StreamsGroup
from parley.protocol.errors import ErrorCode, KafkaError


def check_may_commit_to(group: StreamsGroup, member_id: str, epoch: int, api_version: int) -> None:
    """Raise KafkaError if a client is not allowed to commit now: UNKNOWN_MEMBER_ID, STALE_MEMBER_EPOCH, or
    UNSUPPORTED_VERSION if its version of the request has no member epochs.

    A client without a member epoch, for which ``epoch`` is negative, may commit if the group has no members.
    """
    if epoch < 0 and not group.members:
        return
    member = require_member(group, member_id)
    if api_version < MEMBER_EPOCHS_SINCE:
        raise KafkaError(
            ErrorCode.UNSUPPORTED_VERSION,
            "OffsetCommit version 9 or above must be used by members using the streams group protocol",
        )
    if epoch > member.progress.epoch:
        raise KafkaError(ErrorCode.STALE_MEMBER_EPOCH)


def partition_check(group: StreamsGroup, member_id: str, epoch: int) -> Callable[[str, int], None] | None:
    """Return a function that checks whether a member may commit for a partition, or None if it may commit for all.

    The function takes the name of the topic and the partition. It raises STALE_MEMBER_EPOCH if the member is not
    allowed to commit.
    """
    member = group.members.get(member_id)
    if member is None or epoch == member.progress.epoch:
        return None
    progress, topology = member.progress, group.topology

    def check(topic: str, partition: int) -> None:
        subtopology = None if topology is None else topology.readers.get(topic)
        for tasks in (progress.assigned, progress.revoking):
            since = None if subtopology is None else tasks.active.get(subtopology, {}).get(partition)
            if since is not None and since <= epoch:
                return
        raise KafkaError(ErrorCode.STALE_MEMBER_EPOCH)

    return check


def check_may_read(group: StreamsGroup, member_id: str, epoch: int) -> None:
    """Raise UNKNOWN_MEMBER_ID if the group has no such member, or STALE_MEMBER_EPOCH if its member epoch is not
    ``epoch``."""
    if require_member(group, member_id).progress.epoch != epoch:
        raise KafkaError(ErrorCode.STALE_MEMBER_EPOCH)
