"""Messages stored in ``__consumer_offsets`` for groups of the consumer protocol (KIP-848).

A key's version is the kind of record: 3 a group, 4 its topics (older brokers only), 5 a member, 6 the epoch of
the target assignment, 7 a member's target assignment, 8 a member's current assignment, 16 a regular expression.
"""

from __future__ import annotations

from parley.protocol.schema import Data, Struct, field, i8, i32, i64
from parley.protocol.uuids import UUID


class ConsumerGroupMetadataKey(Data, versions="3"):
    """Key of a group."""

    group_id: str


class ConsumerGroupMetadataValue(Data, versions="0", flexible="0+"):
    """The epoch of a group."""

    epoch: i32
    metadata_hash: i64 = field(tag=0, tagged="0+", default=0)  # of the topics that its members subscribe to (KIP-1101)


class ConsumerGroupPartitionMetadataKey(Data, versions="4"):
    """Key of a group's topics, as brokers before Kafka 4.1 stored them."""

    group_id: str


class ConsumerGroupPartitionMetadataValue(Data, versions="0", flexible="0+"):
    """A group's topics, as brokers before Kafka 4.1 stored them."""

    class TopicMetadata(Struct):
        """A topic to which members of the group subscribe."""

        topic_id: UUID
        topic_name: str
        num_partitions: i32
        partition_metadata: list[ConsumerGroupPartitionMetadataValue.PartitionMetadata]

    class PartitionMetadata(Struct):
        """The racks of one partition's replicas."""

        partition: i32
        racks: list[str]

    topics: list[TopicMetadata]


class ConsumerGroupMemberMetadataKey(Data, versions="5"):
    """Key of a member."""

    group_id: str
    member_id: str


class ConsumerGroupMemberMetadataValue(Data, versions="0", flexible="0+"):
    """A member and its subscription."""

    class ClassicMemberMetadata(Struct):
        """The data of a member that still uses the classic protocol while its group moves between the protocols."""

        session_timeout_ms: i32
        supported_protocols: list[ConsumerGroupMemberMetadataValue.ClassicProtocol]

    class ClassicProtocol(Struct):
        """An assignment strategy that the member supports."""

        name: str
        metadata: bytes

    instance_id: str | None
    rack_id: str | None
    client_id: str
    client_host: str
    subscribed_topic_names: list[str]
    subscribed_topic_regex: str | None
    rebalance_timeout_ms: i32 = -1
    server_assignor: str | None
    classic_member_metadata: ClassicMemberMetadata | None = field(tag=0, tagged="0+")


class ConsumerGroupTargetAssignmentMetadataKey(Data, versions="6"):
    """Key of the epoch of a group's target assignment."""

    group_id: str


class ConsumerGroupTargetAssignmentMetadataValue(Data, versions="0", flexible="0+"):
    """The group epoch that the target assignment is for."""

    assignment_epoch: i32
    # the time of the assignment, in milliseconds since 1970 (KIP-1263)
    assignment_timestamp: i64 = field(tag=0, tagged="0+", default=0, ignorable=True)


class ConsumerGroupTargetAssignmentMemberKey(Data, versions="7"):
    """Key of a member's target assignment."""

    group_id: str
    member_id: str


class ConsumerGroupTargetAssignmentMemberValue(Data, versions="0", flexible="0+"):
    """A member's target assignment."""

    class TopicPartition(Struct):
        """The partitions of one topic."""

        topic_id: UUID
        partitions: list[i32]

    topic_partitions: list[TopicPartition]


class ConsumerGroupCurrentMemberAssignmentKey(Data, versions="8"):
    """Key of a member's current assignment."""

    group_id: str
    member_id: str


class ConsumerGroupCurrentMemberAssignmentValue(Data, versions="0", flexible="0+"):
    """A member's current assignment, and its progress toward the target assignment."""

    class TopicPartitions(Struct):
        """The partitions of one topic."""

        topic_id: UUID
        partitions: list[i32]
        # the member epoch in which each partition was assigned; commits of earlier epochs are rejected
        assignment_epochs: list[i32] | None = field(tag=0, tagged="0+")

    member_epoch: i32
    previous_member_epoch: i32  # a member that did not receive its last response still has this epoch
    state: i8  # 0 stable, 1 unrevoked partitions, 2 unreleased partitions
    assigned_partitions: list[TopicPartitions]
    partitions_pending_revocation: list[TopicPartitions]


class ConsumerGroupRegularExpressionKey(Data, versions="16"):
    """Key of a regular expression that members subscribe to."""

    group_id: str
    regular_expression: str


class ConsumerGroupRegularExpressionValue(Data, versions="0", flexible="0+"):
    """The topics that match a regular expression."""

    topics: list[str]
    version: i64  # the version of the metadata with which the expression was matched
    timestamp: i64  # milliseconds since 1970
