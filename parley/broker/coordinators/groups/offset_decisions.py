"""Decisions about committed offsets and about the deletion of groups: pure functions of a shard and the time.

A commit in a transaction is pending until the transaction ends (KIP-98): it counts, or is forgotten, when the marker of
the transaction is in the log. Until then a reader may insist on a stable offset (KIP-447).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Final

from parley.broker.coordinators.decision import Decision, KeyValue, ProducerIdentity
from parley.broker.coordinators.groups.group import CommittedOffset, Group, GroupState, TopicPartition
from parley.broker.coordinators.groups.group_records import group_tombstone, offset_record, offset_tombstone
from parley.broker.coordinators.groups.group_shard import GroupShard
from parley.broker.coordinators.groups.offset_expiry import CONSUMER_PROTOCOL, expired_offsets, subscribes_to
from parley.protocol.errors import ErrorCode, KafkaError

OPEN_TRANSACTIONS_MAX: Final = 100_000
"""The most producers with pending offsets in one shard: as many as one log keeps. Their memory must be bounded."""

TOMBSTONES_MAX: Final = 1_000
"""The most offsets that one decision removes in the background: their batch must not become too large."""


@dataclass(frozen=True, slots=True)
class Committer:
    """The sender of a commit: a member in a generation, or a client that is not a member (generation -1, no id)."""

    group_id: str
    member_id: str
    group_instance_id: str | None
    generation: int


def check_may_commit(group: Group | None, committer: Committer) -> None:
    """Check that a client may commit offsets now. Raises KafkaError if not."""
    if group is None:
        if committer.generation >= 0:
            raise KafkaError(ErrorCode.ILLEGAL_GENERATION)
        group = Group(committer.group_id, -1)
    if committer.generation < 0 and not committer.member_id and committer.group_instance_id is None:
        if group.members:
            raise KafkaError(ErrorCode.UNKNOWN_MEMBER_ID)
        return  # a consumer that assigns partitions itself, or an administrator
    group.current_member(committer.member_id, committer.group_instance_id, committer.generation)
    if group.state is GroupState.COMPLETING_REBALANCE:
        raise KafkaError(ErrorCode.REBALANCE_IN_PROGRESS)


def check_may_commit_transactional(group: Group | None, committer: Committer) -> None:
    """Check that a transactional producer may commit offsets now. Raises KafkaError if not.

    A producer that names no member, as those before KIP-447 do, is fenced by its epoch alone.
    """
    if group is None:
        if committer.generation >= 0:
            raise KafkaError(ErrorCode.ILLEGAL_GENERATION)
        group = Group(committer.group_id, -1)
    if committer.generation < 0 and not committer.member_id and committer.group_instance_id is None:
        return
    group.current_member(committer.member_id, committer.group_instance_id, committer.generation)


def commit(
    shard: GroupShard, committer: Committer, offsets: Mapping[TopicPartition, CommittedOffset]
) -> Decision[None]:
    """Commit offsets. Raises KafkaError if the client may not."""
    check_may_commit(shard.groups.get(committer.group_id), committer)
    return Decision(None, _offset_records(committer.group_id, offsets))


def commit_transactional(
    shard: GroupShard,
    committer: Committer,
    producer: ProducerIdentity,
    offsets: Mapping[TopicPartition, CommittedOffset],
) -> Decision[None]:
    """Commit offsets in a producer's transaction: they are pending until its marker. Raises KafkaError.

    The caller has verified that the transaction is open and includes the group. The log refuses a fenced epoch.
    """
    check_may_commit_transactional(shard.groups.get(committer.group_id), committer)
    transactions = shard.open_transactions
    if producer.producer_id not in transactions and len(transactions) >= OPEN_TRANSACTIONS_MAX:
        raise KafkaError(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, "Too many open transactions: retry later.")
    return Decision(None, _offset_records(committer.group_id, offsets), producer=producer)


def _offset_records(group_id: str, offsets: Mapping[TopicPartition, CommittedOffset]) -> list[KeyValue]:
    return [offset_record(group_id, partition, offset) for partition, offset in offsets.items()]


def delete_offsets(
    shard: GroupShard, group_id: str, wanted: Mapping[TopicPartition, ErrorCode]
) -> Decision[dict[TopicPartition, ErrorCode]]:
    """Delete those committed offsets whose topic no member reads (KIP-496).

    ``wanted`` has an error for a partition whose offset cannot be deleted for another reason, else NONE. The reply has
    the errors of all of them. Raises GROUP_ID_NOT_FOUND, and
    NON_EMPTY_GROUP for a group with members whose subscriptions are unknown.
    """
    group = shard.groups.get(group_id)
    if group is None or group.state is GroupState.DEAD:
        raise KafkaError(ErrorCode.GROUP_ID_NOT_FOUND)
    if group.members and group.protocol_type != CONSUMER_PROTOCOL:
        raise KafkaError(ErrorCode.NON_EMPTY_GROUP)
    are_read = {topic: subscribes_to(group, topic) for topic in {topic for topic, _ in wanted}}
    codes = {
        partition: ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC if are_read[partition[0]] else refusal
        for partition, refusal in wanted.items()
    }
    known = group.partitions_in_log()
    gone = [partition for partition, code in codes.items() if code is ErrorCode.NONE and partition in known]
    return Decision(codes, _tombstones(group, gone))


def delete_group(shard: GroupShard, group_id: str) -> Decision[None]:
    """Delete a group without members, and its offsets. Raises NON_EMPTY_GROUP or GROUP_ID_NOT_FOUND."""
    group = shard.groups.get(group_id)
    if group is None or group.state is GroupState.DEAD:
        raise KafkaError(ErrorCode.GROUP_ID_NOT_FOUND)
    if group.state is not GroupState.EMPTY:
        raise KafkaError(ErrorCode.NON_EMPTY_GROUP)
    return Decision(None, [*_tombstones(group, group.partitions_in_log()), group_tombstone(group_id)])


def forget_topic(group_id: str, topic: str, shard: GroupShard, now_ms: int) -> Decision[int]:
    """Remove offsets that a group committed for a deleted topic. The reply is their number; more may be left if it is
    not 0."""
    group = shard.groups.get(group_id)
    if group is None:
        return Decision(0)
    gone = [each for each in group.partitions_in_log() if each[0] == topic][:TOMBSTONES_MAX]
    return Decision(len(gone), _tombstones(group, gone))


def expire(group_id: str, at_ms: int, retention_ms: int, shard: GroupShard, now_ms: int) -> Decision[int]:
    """Remove offsets of a group that have expired at ``at_ms``, and the group itself if it then has neither members nor
    offsets. The reply is the number of offsets; more may be left if it is not 0."""
    group = shard.groups.get(group_id)
    if group is None:
        return Decision(0)
    expired = expired_offsets(group, at_ms, retention_ms)[:TOMBSTONES_MAX]
    records = _tombstones(group, expired)
    is_left = group.pending or group.pending_offsets or len(expired) < len(group.offsets)
    if group.state is GroupState.EMPTY and not is_left:
        records.append(group_tombstone(group_id))
    return Decision(len(expired), records)


def _tombstones(group: Group, partitions: Collection[TopicPartition]) -> list[KeyValue]:
    return [offset_tombstone(group.group_id, partition) for partition in partitions]
