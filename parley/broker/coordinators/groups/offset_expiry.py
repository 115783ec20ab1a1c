"""The rules for the expiry of committed offsets (KIP-211), as pure functions of a group and the time.

An offset expires ``offsets.retention.minutes`` after

* the classic group became empty, however old the commit is;
* the commit, if the group never had members, because its consumers assign their partitions themselves;
* the commit, if the classic or consumer group has members and none of them subscribes to the topic;
* the commit, if the consumer group has no members;
* the commit, if the streams group has no members, or its topology does not read the topic.

If an old client sent a retention with the commit, that retention applies instead, except while a classic group has
members.
"""

from __future__ import annotations

from parley.broker.coordinators.groups.classic.membership import GroupState
from parley.broker.coordinators.groups.committed_offsets import CommittedOffset
from parley.broker.coordinators.groups.group import Group
from parley.protocol.codec import decode_stored
from parley.protocol.errors import MalformedMessage
from parley.protocol.messages.stored import ConsumerProtocolSubscription
from parley.protocol.topic_partition import TopicPartition

CONSUMER_PROTOCOL = "consumer"


def expired_offsets(group: Group, now_ms: int, retention_ms: int) -> list[TopicPartition]:
    """Return the partitions whose committed offsets have expired.

    An offset does not expire while an open transaction contains another commit for the same partition.
    """
    subscribed = _subscribed_topics(group)
    return [
        partition
        for partition, offset in group.offsets.items()
        if _has_expired(group, partition, offset, subscribed, now_ms, retention_ms)
        and not group.has_pending_offset(partition)
    ]


def _has_expired(
    group: Group,
    partition: TopicPartition,
    offset: CommittedOffset,
    subscribed: set[str] | None,
    now_ms: int,
    retention_ms: int,
) -> bool:
    if group.consumer is not None or group.streams is not None:
        is_read = subscribed is not None and partition[0] in subscribed
        expires_ms = offset.expire_at_ms if offset.expire_at_ms >= 0 else offset.commit_timestamp_ms + retention_ms
        return not is_read and now_ms >= expires_ms
    if group.membership.state is GroupState.EMPTY:
        if offset.expire_at_ms >= 0:
            return now_ms >= offset.expire_at_ms
        if group.membership.protocol_type is None:
            return now_ms - offset.commit_timestamp_ms >= retention_ms
        # Old versions did not store when the group entered its state: use the time of the commit instead.
        since = max(group.membership.state_since_ms, offset.commit_timestamp_ms)
        return now_ms - since >= retention_ms
    if subscribed is None or partition[0] in subscribed:
        return False
    return now_ms - offset.commit_timestamp_ms >= retention_ms


def subscribes_to(group: Group, topic: str) -> bool:
    """Return True if members of the group may read the topic, so that its offsets must not be deleted (KIP-496)."""
    subscribed = _subscribed_topics(group)
    return subscribed is None or topic in subscribed


def _subscribed_topics(group: Group) -> set[str] | None:
    """Return the topics that the members subscribe to, or None if these are unknown or about to change."""
    if group.consumer is not None:
        return group.consumer.subscribed_topics()
    if group.streams is not None:
        topology = group.streams.topology if group.streams.members else None
        return set() if topology is None else set(topology.readers)
    if not group.membership.members:
        return set()
    if group.membership.protocol_type != CONSUMER_PROTOCOL or group.membership.state is not GroupState.STABLE:
        return None
    topics: set[str] = set()
    for member in group.membership.members.values():
        try:
            subscription, _ = decode_stored(
                ConsumerProtocolSubscription, member.metadata_for(group.membership.protocol)
            )
            topics.update(subscription.topics)
        except MalformedMessage:
            return None
    return topics
