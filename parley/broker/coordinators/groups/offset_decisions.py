"""Decisions about committed offsets and about the deletion of groups: pure functions of a shard and the time.

A commit in a transaction is pending until the transaction ends (KIP-98). When the transaction's marker is in the log,
the commit takes effect or is dropped. Until then, a reader may require a stable offset (KIP-447).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Final

from parley.broker.coordinators.decision import Decision, KeyValue, ProducerIdentity
from parley.broker.coordinators.groups.classic.membership import GroupState
from parley.broker.coordinators.groups.classic.rebalance import session
from parley.broker.coordinators.groups.committed_offsets import CommittedOffset
from parley.broker.coordinators.groups.consumer.commits import MEMBER_EPOCHS_SINCE, check_may_commit_to, partition_check
from parley.broker.coordinators.groups.consumer.consumer_records import group_tombstones
from parley.broker.coordinators.groups.consumer.sessions import session_of
from parley.broker.coordinators.groups.group import Group
from parley.broker.coordinators.groups.group_records import group_tombstone, offset_record, offset_tombstone
from parley.broker.coordinators.groups.group_shard import GroupShard
from parley.broker.coordinators.groups.offset_expiry import CONSUMER_PROTOCOL, expired_offsets, subscribes_to
from parley.broker.coordinators.groups.share import share_records
from parley.broker.coordinators.groups.streams import commits as streams_commits
from parley.broker.coordinators.groups.streams import streams_records
from parley.light_dataclasses import dataclass
from parley.protocol.errors import ErrorCode, KafkaError
from parley.protocol.topic_partition import TopicPartition

OPEN_TRANSACTIONS_MAX: Final = 100_000
"""The maximum number of producers with pending offsets in one shard, which bounds memory. A log has the same limit."""

NEWEST: Final = 1 << 15
"""An API version that is newer than all others."""

TOMBSTONES_MAX: Final = 1_000
"""The maximum number of offsets that one background decision removes, so that their batch does not become too large."""


@dataclass(frozen=True, slots=True)
class Committer:
    """The sender of a commit: a member of a generation, or a client that is not a member (generation -1, empty id)."""

    group_id: str
    member_id: str
    group_instance_id: str | None
    generation: int
    """The generation of a classic group, or the member epoch of a consumer or streams group. Negative if the client
    names none."""
    api_version: int = NEWEST
    """The version of OffsetCommit. Members of consumer and streams groups must use a version with member epochs."""


def check_may_commit(group: Group | None, committer: Committer) -> None:
    """Raise KafkaError if a client is not allowed to commit offsets now, for example UNKNOWN_MEMBER_ID,
    ILLEGAL_GENERATION, STALE_MEMBER_EPOCH or REBALANCE_IN_PROGRESS.

    If the group does not exist, a client that names a generation gets GROUP_ID_NOT_FOUND if its version has member
    epochs, otherwise ILLEGAL_GENERATION (KIP-848). A client without a generation may commit while the group has no
    members, even if it names a member id: librdkafka's consumers of the consumer protocol do so before they join.
    """
    if group is None:
        if committer.generation >= 0:
            knows = committer.api_version >= MEMBER_EPOCHS_SINCE
            raise KafkaError(ErrorCode.GROUP_ID_NOT_FOUND if knows else ErrorCode.ILLEGAL_GENERATION)
        group = Group(committer.group_id, -1)
    check_has_offsets(group)
    if group.consumer is not None:
        check_may_commit_to(group.consumer, committer.member_id, committer.generation, committer.api_version)
        return
    if group.streams is not None:
        streams_commits.check_may_commit_to(
            group.streams, committer.member_id, committer.generation, committer.api_version
        )
        return
    if committer.generation < 0 and not group.membership.members:
        return  # a consumer that assigns its partitions itself, or an administrator
    group.membership.current_member(committer.member_id, committer.group_instance_id, committer.generation)
    if group.membership.state is GroupState.COMPLETING_REBALANCE:
        raise KafkaError(ErrorCode.REBALANCE_IN_PROGRESS)


def check_has_offsets(group: Group) -> None:
    """Raise GROUP_ID_NOT_FOUND for a share group, which commits no offsets."""
    if group.share is not None:
        raise KafkaError(ErrorCode.GROUP_ID_NOT_FOUND, f"Group {group.group_id} is not a consumer group.")


def check_may_commit_transactional(group: Group | None, committer: Committer) -> None:
    """Raise KafkaError if a transactional producer is not allowed to commit offsets now, for example UNKNOWN_MEMBER_ID,
    ILLEGAL_GENERATION or STALE_MEMBER_EPOCH.

    If the group does not exist (``group`` is None), a producer that names a generation gets ILLEGAL_GENERATION. A
    producer that names no member, as before KIP-447, is fenced only by its epoch.
    """
    if group is None:
        if committer.generation >= 0:
            raise KafkaError(ErrorCode.ILLEGAL_GENERATION)
        group = Group(committer.group_id, -1)
    check_has_offsets(group)
    if committer.generation < 0 and not committer.member_id and committer.group_instance_id is None:
        return
    if group.consumer is not None:
        check_may_commit_to(group.consumer, committer.member_id, committer.generation, NEWEST)
        return
    if group.streams is not None:
        streams_commits.check_may_commit_to(group.streams, committer.member_id, committer.generation, NEWEST)
        return
    if committer.generation < 0 and group.membership.state is GroupState.EMPTY:
        return  # a consumer that assigns its partitions itself, and has an instance id
    group.membership.current_member(committer.member_id, committer.group_instance_id, committer.generation)


def check_commit(committer: Committer, shard: GroupShard, now_ms: int) -> Decision[None]:
    """Raise the errors of ``check_may_commit`` if a client is not allowed to commit offsets now. Otherwise, restart the
    session of a member of the classic protocol: its commit counts as a heartbeat."""
    group = shard.groups.get(committer.group_id)
    check_may_commit(group, committer)
    if group is not None and group.consumer is not None:
        known = group.consumer.members.get(committer.member_id)
        is_classic = known is not None and known.details.classic is not None
        return Decision(
            None, timers=session_of(shard, committer.group_id, known) if known is not None and is_classic else {}
        )
    member = None if group is None else group.membership.members.get(committer.member_id)
    return Decision(None, timers={} if member is None else session(committer.group_id, member))


def commit(
    shard: GroupShard, committer: Committer, offsets: Mapping[TopicPartition, CommittedOffset]
) -> Decision[None]:
    """Commit offsets. Raises the errors of ``check_may_commit``. Also raises STALE_MEMBER_EPOCH, or ILLEGAL_GENERATION
    for a member of the classic protocol, if the member was assigned one of the partitions only after the epoch in its
    request."""
    group = shard.groups.get(committer.group_id)
    check_may_commit(group, committer)
    _check_partitions(group, committer, offsets, shard)
    return Decision(None, _offset_records(committer.group_id, offsets))


def _check_partitions(
    group: Group | None,
    committer: Committer,
    offsets: Mapping[TopicPartition, CommittedOffset],
    shard: GroupShard,
) -> None:
    """Raise STALE_MEMBER_EPOCH or ILLEGAL_GENERATION if a member was assigned one of the partitions only after the
    epoch in its request."""
    if group is None:
        return
    if group.streams is not None:
        of_tasks = streams_commits.partition_check(group.streams, committer.member_id, committer.generation)
        if of_tasks is not None:
            for each in offsets:
                of_tasks(*each)
        return
    if group.consumer is None:
        return
    check = partition_check(group.consumer, committer.member_id, committer.generation)
    if check is not None:
        for topic, partition in offsets:
            known = shard.image().topics.get(topic)
            check(None if known is None else known.topic_id, partition)


def commit_transactional(
    shard: GroupShard,
    committer: Committer,
    producer: ProducerIdentity,
    offsets: Mapping[TopicPartition, CommittedOffset],
) -> Decision[None]:
    """Commit offsets in a producer's transaction. They are pending until the transaction's marker is in the log.

    Raises the errors of ``check_may_commit_transactional``, but ILLEGAL_GENERATION instead of STALE_MEMBER_EPOCH.
    Raises COORDINATOR_LOAD_IN_PROGRESS if there are too many open transactions.

    The caller must have verified that the transaction is open and includes the group. The log rejects a fenced epoch.
    """
    group = shard.groups.get(committer.group_id)
    try:
        check_may_commit_transactional(group, committer)
        _check_partitions(group, committer, offsets, shard)
    except KafkaError as error:
        if error.code is not ErrorCode.STALE_MEMBER_EPOCH:
            raise
        # TxnOffsetCommit has no such error: the producers would take it for fatal, and could not abort.
        raise KafkaError(ErrorCode.ILLEGAL_GENERATION) from error
    transactions = shard.open_transactions
    if producer.producer_id not in transactions and len(transactions) >= OPEN_TRANSACTIONS_MAX:
        raise KafkaError(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, "Too many open transactions. Retry later.")
    return Decision(None, _offset_records(committer.group_id, offsets), producer=producer)


def _offset_records(group_id: str, offsets: Mapping[TopicPartition, CommittedOffset]) -> list[KeyValue]:
    return [offset_record(group_id, partition, offset) for partition, offset in offsets.items()]


def delete_offsets(
    shard: GroupShard, group_id: str, wanted: Mapping[TopicPartition, ErrorCode]
) -> Decision[dict[TopicPartition, ErrorCode]]:
    """Delete committed offsets, except for topics that a member reads (KIP-496).

    ``wanted`` maps each partition to NONE, or to the error that prevents the deletion of its offset. The reply contains
    the outcome of each partition. Raises GROUP_ID_NOT_FOUND, or NON_EMPTY_GROUP for a group with members whose
    subscriptions are unknown.
    """
    group = shard.groups.get(group_id)
    if group is None:
        raise KafkaError(ErrorCode.GROUP_ID_NOT_FOUND)
    check_has_offsets(group)
    if group.is_classic and group.membership.members and group.membership.protocol_type != CONSUMER_PROTOCOL:
        raise KafkaError(ErrorCode.NON_EMPTY_GROUP)
    are_read = {topic: subscribes_to(group, topic) for topic in {topic for topic, _ in wanted}}
    codes = {
        partition: ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC
        if refusal is ErrorCode.NONE and are_read[partition[0]]
        else refusal
        for partition, refusal in wanted.items()
    }
    known = group.partitions_in_log()
    gone = [partition for partition, code in codes.items() if code is ErrorCode.NONE and partition in known]
    return Decision(codes, _tombstones(group, gone), is_divisible=True)


def delete_group(shard: GroupShard, group_id: str) -> Decision[None]:
    """Delete the offsets of a group without members, then the group. Raises NON_EMPTY_GROUP or GROUP_ID_NOT_FOUND."""
    group = shard.groups.get(group_id)
    if group is None:
        raise KafkaError(ErrorCode.GROUP_ID_NOT_FOUND)
    if not group.is_empty:
        raise KafkaError(ErrorCode.NON_EMPTY_GROUP)
    records = [*_tombstones(group, group.partitions_in_log()), *_end_of(group)]
    return Decision(None, records, is_divisible=True)


def _end_of(group: Group) -> list[KeyValue]:
    """Return the records that delete a group without members."""
    if group.share is not None:
        return share_records.group_tombstones(group.share)
    if group.streams is not None:
        return streams_records.group_tombstones(group.streams)
    return [group_tombstone(group.group_id)] if group.consumer is None else group_tombstones(group.consumer)


def forget_topic(group_id: str, topic: str, latest: int, shard: GroupShard, now_ms: int) -> Decision[int]:
    """Remove offsets that a group committed for a deleted topic.

    The reply is the number of removed offsets. If it is not 0, more may remain: submit the event again. ``latest`` is
    the log offset of the group's last commit for the topic: a later commit is for a new topic with the same name.
    """
    group = shard.groups.get(group_id)
    if group is None:
        return Decision(0)
    of_topic = [each for each in group.partitions_in_log() if each[0] == topic]
    gone = [each for each in of_topic if group.latest_commit(each) <= latest][:TOMBSTONES_MAX]
    return Decision(len(gone), _tombstones(group, gone))


def expire(group_id: str, at_ms: int, retention_ms: int, shard: GroupShard, now_ms: int) -> Decision[int]:
    """Remove offsets of a group that have expired by ``at_ms``, and the group if it then has no members and no offsets.

    The reply is the number of removed offsets. If it is not 0, more may remain: submit the event again.
    """
    group = shard.groups.get(group_id)
    if group is None:
        return Decision(0)
    expired = expired_offsets(group, at_ms, retention_ms)[:TOMBSTONES_MAX]
    records = _tombstones(group, expired)
    is_left = group.membership.pending or group.pending_offsets or len(expired) < len(group.offsets)
    if group.is_empty and not is_left and group.share is None:  # a share group stays until it is deleted
        records += _end_of(group)
    return Decision(len(expired), records)


def _tombstones(group: Group, partitions: Collection[TopicPartition]) -> list[KeyValue]:
    return [offset_tombstone(group.group_id, partition) for partition in partitions]
