"""A group of any type: its committed offsets, and its state by type (for a classic group, its membership)."""

from __future__ import annotations

from dataclasses import field
from typing import Final

from parley.broker.coordinators.groups.classic.membership import GroupState, Membership
from parley.broker.coordinators.groups.committed_offsets import CommittedOffset, CommittedOffsets
from parley.broker.coordinators.groups.consumer.consumer_group import ConsumerGroup, ConsumerGroupState
from parley.broker.coordinators.groups.share.share_group import ShareGroup, ShareGroupState
from parley.broker.coordinators.groups.streams.streams_group import StreamsGroup, StreamsGroupState
from parley.light_dataclasses import dataclass
from parley.protocol.messages.stored import GroupMetadataValue
from parley.protocol.topic_partition import TopicPartition

CLASSIC: Final = "classic"
"""The type of groups whose members assign the partitions among themselves."""

CONSUMER: Final = "consumer"
"""The type of groups whose partitions the coordinator assigns (KIP-848)."""

SHARE: Final = "share"
"""The type of groups whose members acquire individual records (KIP-932)."""

STREAMS: Final = "streams"
"""The type of groups whose members share the tasks of a Kafka Streams application (KIP-1071)."""

NO_MEMBERS: Final = Membership()
"""The membership of a group without members. Memberships are values, so all such groups share this one."""

REMOVED: Final = Membership(GroupState.DEAD)
"""The membership of a group that was removed from its shard."""


@dataclass(slots=True, eq=False)
class Group:
    """A group and its committed offsets."""

    group_id: str
    partition: int
    """The partition of ``__consumer_offsets`` that stores the group."""
    membership: Membership = field(default_factory=lambda: NO_MEMBERS)
    offsets: CommittedOffsets = field(default_factory=CommittedOffsets)
    pending_offsets: dict[int, dict[TopicPartition, CommittedOffset]] = field(default_factory=dict)
    """The offsets committed in open transactions, by producer id."""
    pending_producers: dict[TopicPartition, set[int]] = field(default_factory=dict)
    """The producers with a pending offset for each partition. An index, because thousands of transactions may be
    open."""
    stored: GroupMetadataValue | None = None
    """The latest generation in the log, or None. During a rebalance, ``membership`` is ahead of it."""
    consumer: ConsumerGroup | None = None
    """Set for a consumer group, whose ``membership`` has no members."""
    share: ShareGroup | None = None
    """Set for a share group, whose ``membership`` has no members, and which has no offsets."""
    streams: StreamsGroup | None = None
    """Set for a streams group, whose ``membership`` has no members."""

    @property
    def type(self) -> str:
        """The type of the group, as ListGroups returns it."""
        if self.share is not None:
            return SHARE
        if self.streams is not None:
            return STREAMS
        return CLASSIC if self.consumer is None else CONSUMER

    @property
    def is_classic(self) -> bool:
        """True for a group of the classic protocol, or a group that contains only offsets."""
        return self.consumer is None and self.share is None and self.streams is None

    @property
    def state_name(self) -> str:
        """The state of the group, as ListGroups returns it."""
        state: GroupState | ConsumerGroupState | ShareGroupState | StreamsGroupState = self.membership.state
        if self.share is not None:
            state = self.share.state()
        elif self.streams is not None:
            state = self.streams.state()
        elif self.consumer is not None:
            state = self.consumer.state()
        return str(state.value)

    @property
    def is_empty(self) -> bool:
        """True if the group has no members, and no rebalance is in progress."""
        if self.share is not None:
            return not self.share.members
        if self.streams is not None:
            return not self.streams.members
        if self.consumer is not None:
            return not self.consumer.members
        return self.membership.state is GroupState.EMPTY

    @property
    def is_unused(self) -> bool:
        """True if the group can be removed: it is a classic group, and has no members, no pending members, no offsets
        and no generation."""
        has_offsets = self.offsets or self.pending_offsets
        membership = self.membership
        is_stored = self.stored is not None or not self.is_classic
        in_use = membership.members or membership.pending or has_offsets or is_stored
        return membership.state is GroupState.EMPTY and membership.generation == 0 and not in_use

    def partitions_in_log(self) -> set[TopicPartition]:
        """Return the partitions for which the log contains offsets, including pending ones."""
        return set(self.offsets) | self.pending_producers.keys()

    def latest_commit(self, partition: TopicPartition) -> int:
        """Return the log offset of the latest commit for a partition, or -1 if there is none. Includes pending
        commits."""
        committed = self.offsets.get(partition)
        pending = [self.pending_offsets[each][partition] for each in self.pending_producers.get(partition, ())]
        return max((each.log_offset for each in (committed, *pending) if each is not None), default=-1)

    def latest_commit_for(self, topic: str) -> int | None:
        """Return the log offset of the latest commit for a topic, or None if there is none. Includes pending
        commits."""
        commits = [self.latest_commit(each) for each in self.partitions_in_log() if each[0] == topic]
        return max(commits, default=None)

    def has_pending_offset(self, partition: TopicPartition) -> bool:
        """Return True if an open transaction contains a commit for the partition (KIP-447)."""
        return partition in self.pending_producers

    def add_pending_offset(self, producer_id: int, partition: TopicPartition, offset: CommittedOffset) -> None:
        """Add an offset that a producer has committed in an open transaction."""
        self.pending_offsets.setdefault(producer_id, {})[partition] = offset
        self.pending_producers.setdefault(partition, set()).add(producer_id)

    def remove_pending_offset(self, producer_id: int, partition: TopicPartition) -> None:
        """Remove an offset of an open transaction, and the transaction if it contains no other offset. The offset must
        exist."""
        pending = self.pending_offsets[producer_id]
        del pending[partition]
        if not pending:
            del self.pending_offsets[producer_id]
        producers = self.pending_producers[partition]
        producers.remove(producer_id)
        if not producers:
            del self.pending_producers[partition]
