"""Messages stored in ``__consumer_offsets`` for share groups (KIP-932).

A key's version is the kind of record: 10 a member, 11 a group, 12 the epoch of the target assignment, 13 a member's
target assignment, 14 a member's current assignment, 15 the share partitions with stored state.
"""

from __future__ import annotations

from parley.protocol.schema import Data, Struct, field, i8, i32, i64
from parley.protocol.uuids import UUID


class ShareGroupMemberMetadataKey(Data, versions="10"):
    """Key of a member."""

    group_id: str
    member_id: str


class ShareGroupMemberMetadataValue(Data, versions="0", flexible="0+"):
    """A member and its subscription."""

    rack_id: str | None
    client_id: str
    client_host: str
    subscribed_topic_names: list[str]


class ShareGroupMetadataKey(Data, versions="11"):
    """Key of a group."""

    group_id: str


class ShareGroupMetadataValue(Data, versions="0", flexible="0+"):
    """The epoch of a group."""

    epoch: i32
    metadata_hash: i64  # of the topics that its members subscribe to


class ShareGroupTargetAssignmentMetadataKey(Data, versions="12"):
    """Key of the epoch of a group's target assignment."""

    group_id: str


class ShareGroupTargetAssignmentMetadataValue(Data, versions="0", flexible="0+"):
    """The epoch of a group's target assignment."""

    assignment_epoch: i32
    assignment_timestamp: i64 = field(tag=0, tagged="0+", default=0, ignorable=True)  # ms since 1970


class ShareGroupTargetAssignmentMemberKey(Data, versions="13"):
    """Key of a member's target assignment."""

    group_id: str
    member_id: str


class ShareGroupTargetAssignmentMemberValue(Data, versions="0", flexible="0+"):
    """A member's target assignment."""

    class TopicPartition(Struct):
        """Partitions of one topic."""

        topic_id: UUID
        partitions: list[i32]

    topic_partitions: list[TopicPartition]


class ShareGroupCurrentMemberAssignmentKey(Data, versions="14"):
    """Key of a member's current assignment."""

    group_id: str
    member_id: str


class ShareGroupCurrentMemberAssignmentValue(Data, versions="0", flexible="0+"):
    """A member's current assignment."""

    class TopicPartitions(Struct):
        """Partitions of one topic."""

        topic_id: UUID
        partitions: list[i32]

    member_epoch: i32
    previous_member_epoch: i32
    state: i8
    assigned_partitions: list[TopicPartitions]


class ShareGroupStatePartitionMetadataKey(Data, versions="15"):
    """Key of the list of a group's share partitions with stored state."""

    group_id: str


class ShareGroupStatePartitionMetadataValue(Data, versions="0", flexible="0+"):
    """The share partitions whose state is stored, is about to be stored, or is being deleted."""

    class TopicPartitionsInfo(Struct):
        """Partitions of one topic."""

        topic_id: UUID
        topic_name: str
        partitions: list[i32]

    class TopicInfo(Struct):
        """A topic, by its id and its name."""

        topic_id: UUID
        topic_name: str

    initializing_topics: list[TopicPartitionsInfo]
    initialized_topics: list[TopicPartitionsInfo]
    deleting_topics: list[TopicInfo]
