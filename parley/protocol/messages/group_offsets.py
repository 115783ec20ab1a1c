"""OffsetCommit, OffsetFetch, OffsetDelete: the committed offsets of groups."""

from __future__ import annotations

from parley.protocol.schema import ZERO_UUID, Request, Response, Struct, field, i16, i32, i64
from parley.protocol.uuids import UUID


class OffsetCommitRequest(Request, key=8, versions="0-10", flexible="8+"):
    """Commit the offsets of a group.

    Only members of the current generation may commit. If the group has no members, any client may.

    Versions:
        1: offsets are stored in Kafka, membership is checked, and each partition has a timestamp (0.8.2).
        2: one retention_time_ms instead of the timestamps (0.9).
        3: the response says how long the client was throttled (KIP-124).
        4: the client enforces throttle_time_ms itself (KIP-219).
        5: no retention_time_ms: offsets are kept while the group exists (KIP-211).
        6: committed_leader_epoch, so that a reader can notice lost records (KIP-320).
        7: group_instance_id, to fence a second member with the same id (KIP-345).
        8: flexible encoding (KIP-482).
        9: same layout; members of the new group protocol send their epoch as the generation (KIP-848).
        10: topics by id instead of name (KIP-848).
    """

    class OffsetCommitRequestTopic(Struct):
        """The offsets of one topic."""

        name: str = field("0-9", default="", ignorable=True)
        topic_id: UUID = field("10+", default=ZERO_UUID, ignorable=True)
        partitions: list[OffsetCommitRequest.OffsetCommitRequestPartition]

    class OffsetCommitRequestPartition(Struct):
        """The committed offset of one partition."""

        partition_index: i32
        committed_offset: i64  # of the next record to read
        committed_leader_epoch: i32 = field("6+", default=-1, ignorable=True)  # of the last record read; -1: unknown
        commit_timestamp: i64 = field("1", default=-1)  # -1: now
        committed_metadata: str | None

    group_id: str
    generation_id_or_member_epoch: i32 = field("1+", default=-1, ignorable=True)  # -1: the sender is not a member
    member_id: str = field("1+", default="", ignorable=True)
    group_instance_id: str | None = field("7+", default=None)  # None: a dynamic member
    retention_time_ms: i64 = field("2-4", default=-1, ignorable=True)  # -1: the broker's configuration applies
    topics: list[OffsetCommitRequestTopic]


class OffsetCommitResponse(Response, key=8, versions="0-10", flexible="8+"):
    """The outcome for each partition's offset.

    Versions:
        1: same layout; membership is checked (0.8.2).
        2: same layout; retention in the request (0.9).
        3: throttle_time_ms (KIP-124).
        4: sent before the client is throttled, not after (KIP-219).
        5: same layout; no retention in the request (KIP-211).
        6: same layout; leader epochs in the request (KIP-320).
        7: FENCED_INSTANCE_ID may occur (KIP-345).
        8: flexible encoding (KIP-482).
        9: STALE_MEMBER_EPOCH and GROUP_ID_NOT_FOUND may occur (KIP-848).
        10: topics by id; UNKNOWN_TOPIC_ID may occur (KIP-848).
    """

    class OffsetCommitResponseTopic(Struct):
        """The outcome for one topic."""

        name: str = field("0-9", default="", ignorable=True)
        topic_id: UUID = field("10+", default=ZERO_UUID, ignorable=True)
        partitions: list[OffsetCommitResponse.OffsetCommitResponsePartition]

    class OffsetCommitResponsePartition(Struct):
        """The outcome for one partition."""

        partition_index: i32
        error_code: i16 = 0

    throttle_time_ms: i32 = field("3+", default=0, ignorable=True)
    topics: list[OffsetCommitResponseTopic]


class OffsetFetchRequest(Request, key=9, versions="0-10", flexible="6+"):
    """Fetch the committed offsets of groups.

    Versions:
        1: offsets that are stored in Kafka; version 0 fetched those in ZooKeeper (0.8.2).
        2: topics may be None for all; the response has a top-level error (KIP-88).
        3: the response says how long the client was throttled (KIP-124).
        4: the client enforces throttle_time_ms itself (KIP-219).
        5: the response has leader epochs (KIP-320).
        6: flexible encoding (KIP-482).
        7: require_stable: an error instead of the offset if a transactional commit is undecided (KIP-447).
        8: several groups at once (KIP-709).
        9: member_id and member_epoch, which are checked for members of the new group protocol (KIP-848).
        10: topics by id instead of name (KIP-848).
    """

    class OffsetFetchRequestTopic(Struct):
        """The partitions of one topic."""

        name: str
        partition_indexes: list[i32]

    class OffsetFetchRequestGroup(Struct):
        """The partitions to fetch for one group."""

        group_id: str
        member_id: str | None = field("9+", default=None, ignorable=True)  # None: the sender is not a member
        member_epoch: i32 = field("9+", default=-1, ignorable=True)  # -1: the sender is not a member
        topics: list[OffsetFetchRequest.OffsetFetchRequestTopics] | None  # None: all with a committed offset

    class OffsetFetchRequestTopics(Struct):
        """The partitions of one topic."""

        name: str = field("8-9", default="", ignorable=True)
        topic_id: UUID = field("10+", default=ZERO_UUID, ignorable=True)
        partition_indexes: list[i32]

    group_id: str = field("0-7", default="")
    # None: all with a committed offset
    topics: list[OffsetFetchRequestTopic] | None = field("0-7", nullable="2-7", default=None)
    groups: list[OffsetFetchRequestGroup] = field("8+", default=[])
    # UNSTABLE_OFFSET_COMMIT while a transactional commit is undecided
    require_stable: bool = field("7+", default=False)


class OffsetFetchResponse(Response, key=9, versions="0-10", flexible="6+"):
    """The committed offsets of the groups.

    Versions:
        1: same layout; offsets stored in Kafka (0.8.2).
        2: error_code for the group as a whole (KIP-88).
        3: throttle_time_ms (KIP-124).
        4: sent before the client is throttled, not after (KIP-219).
        5: committed_leader_epoch (KIP-320).
        6: flexible encoding (KIP-482).
        7: UNSTABLE_OFFSET_COMMIT may occur (KIP-447).
        8: several groups at once (KIP-709).
        9: STALE_MEMBER_EPOCH and UNKNOWN_MEMBER_ID may occur (KIP-848).
        10: topics by id; UNKNOWN_TOPIC_ID may occur (KIP-848).
    """

    class OffsetFetchResponseTopic(Struct):
        """The offsets of one topic."""

        name: str
        partitions: list[OffsetFetchResponse.OffsetFetchResponsePartition]

    class OffsetFetchResponsePartition(Struct):
        """The committed offset of one partition."""

        partition_index: i32
        committed_offset: i64  # of the next record to read; -1: none was committed
        committed_leader_epoch: i32 = field("5-7", default=-1, ignorable=True)
        metadata: str | None
        error_code: i16 = 0

    class OffsetFetchResponseGroup(Struct):
        """The offsets of one group."""

        group_id: str
        topics: list[OffsetFetchResponse.OffsetFetchResponseTopics]
        error_code: i16 = 0

    class OffsetFetchResponseTopics(Struct):
        """The offsets of one topic."""

        name: str = field("8-9", default="", ignorable=True)
        topic_id: UUID = field("10+", default=ZERO_UUID, ignorable=True)
        partitions: list[OffsetFetchResponse.OffsetFetchResponsePartitions]

    class OffsetFetchResponsePartitions(Struct):
        """The committed offset of one partition."""

        partition_index: i32
        committed_offset: i64  # of the next record to read; -1: none was committed
        committed_leader_epoch: i32 = field(default=-1, ignorable=True)
        metadata: str | None
        error_code: i16 = 0

    throttle_time_ms: i32 = field("3+", default=0, ignorable=True)
    topics: list[OffsetFetchResponseTopic] = field("0-7", default=[])
    error_code: i16 = field("2-7", default=0, ignorable=True)
    groups: list[OffsetFetchResponseGroup] = field("8+", default=[])


class OffsetDeleteRequest(Request, key=47, versions="0"):
    """Delete a group's offsets for partitions of topics to which it no longer subscribes (KIP-496)."""

    class OffsetDeleteRequestTopic(Struct):
        """The partitions of one topic."""

        name: str
        partitions: list[OffsetDeleteRequest.OffsetDeleteRequestPartition]

    class OffsetDeleteRequestPartition(Struct):
        """A partition whose committed offset is deleted."""

        partition_index: i32

    group_id: str
    topics: list[OffsetDeleteRequestTopic]


class OffsetDeleteResponse(Response, key=47, versions="0"):
    """The outcome for each offset to be deleted."""

    class OffsetDeleteResponseTopic(Struct):
        """The outcome for one topic."""

        name: str
        partitions: list[OffsetDeleteResponse.OffsetDeleteResponsePartition]

    class OffsetDeleteResponsePartition(Struct):
        """The outcome for one partition; GROUP_SUBSCRIBED_TO_TOPIC if the group still subscribes to the topic."""

        partition_index: i32
        error_code: i16 = 0

    error_code: i16 = 0  # errors of the group as a whole
    throttle_time_ms: i32 = field(default=0, ignorable=True)
    topics: list[OffsetDeleteResponseTopic]
