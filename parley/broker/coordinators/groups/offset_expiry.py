"""Which committed offsets a group may forget (KIP-211): pure rules over a group and the time.

An offset lives ``offsets.retention.minutes`` after

* the group became empty, for a group of the consumer protocol or any other (not before, however old the commit);
* its commit, for a group that never had members (a consumer that assigns its partitions itself);
* its commit, for a topic that no member of a consumer group with members subscribes to any more;

and never longer than an explicit retention that an old client gave with the commit.
"""

from __future__ import annotations

from parley.broker.coordinators.groups.group import CommittedOffset, Group, GroupState, TopicPartition
from parley.protocol.codec import decode_stored
from parley.protocol.errors import MalformedMessage
from parley.protocol.messages.stored import ConsumerProtocolSubscription

CONSUMER_PROTOCOL = "consumer"


def expired_offsets(group: Group, now_ms: int, retention_ms: int) -> list[TopicPartition]:
    """The partitions whose committed offsets have outlived their retention."""
    subscribed = _subscribed_topics(group)
    return [
        partition
        for partition, offset in group.offsets.items()
        if _has_expired(group, partition, offset, subscribed, now_ms, retention_ms)
    ]


def _has_expired(
    group: Group,
    partition: TopicPartition,
    offset: CommittedOffset,
    subscribed: set[str] | None,
    now_ms: int,
    retention_ms: int,
) -> bool:
    if group.state is GroupState.EMPTY:
        if offset.expire_at_ms >= 0:
            return now_ms >= offset.expire_at_ms
        if group.protocol_type is None:
            return now_ms - offset.commit_timestamp_ms >= retention_ms
        # A state from before versions that kept its time counts from the commit.
        since = max(group.state_since_ms, offset.commit_timestamp_ms)
        return now_ms - since >= retention_ms
    if subscribed is None or partition[0] in subscribed:
        return False
    return now_ms - offset.commit_timestamp_ms >= retention_ms


def subscribes_to(group: Group, topic: str) -> bool:
    """Whether a living consumer group reads the topic: its offsets must not be deleted under it (KIP-496)."""
    subscribed = _subscribed_topics(group)
    return subscribed is None or topic in subscribed


def _subscribed_topics(group: Group) -> set[str] | None:
    """The topics the members read; None where that cannot be told, or changes right now."""
    if not group.members:
        return set()
    if group.protocol_type != CONSUMER_PROTOCOL or group.state is not GroupState.STABLE:
        return None
    topics: set[str] = set()
    for member in group.members.values():
        try:
            subscription, _ = decode_stored(ConsumerProtocolSubscription, member.metadata_for(group.protocol))
            topics.update(subscription.topics)
        except MalformedMessage:
            return None
    return topics
