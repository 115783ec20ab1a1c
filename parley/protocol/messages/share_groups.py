"""Share groups: consumers that acquire single records of the same partitions and acknowledge each one (KIP-932).

Kinds of acknowledgment: 0 no such record, 1 accept, 2 release to other members, 3 reject permanently, 4 renew the
lock.
"""

from __future__ import annotations

from parley.protocol.schema import Records, Request, Response, Struct, field, i8, i16, i32, i64
from parley.protocol.uuids import UUID


class ShareGroupHeartbeatRequest(Request, key=76, versions="1", flexible="1+"):
    """Join, stay in or leave a share group; unchanged values are left out (KIP-932)."""

    group_id: str
    member_id: str  # a UUID that the member generated
    member_epoch: i32  # 0: join; -1: leave
    rack_id: str | None = None  # None: none, or unchanged
    subscribed_topic_names: list[str] | None = None  # None: unchanged


class ShareGroupHeartbeatResponse(Response, key=76, versions="1", flexible="1+"):
    """The member's epoch, and its assignment if that changed."""

    class Assignment(Struct):
        """All partitions of the member."""

        topic_partitions: list[ShareGroupHeartbeatResponse.TopicPartitions]

    class TopicPartitions(Struct):
        """The member's partitions of one topic."""

        topic_id: UUID
        partitions: list[i32]

    throttle_time_ms: i32 = 0
    error_code: i16 = 0
    error_message: str | None = None
    member_id: str | None = None  # None on error
    member_epoch: i32
    heartbeat_interval_ms: i32  # when to send the next heartbeat
    assignment: Assignment | None = None  # None: unchanged


class ShareGroupDescribeRequest(Request, key=77, versions="1", flexible="1+"):
    """Request the state and the members of share groups (KIP-932)."""

    group_ids: list[str]
    include_authorized_operations: bool = False


class ShareGroupDescribeResponse(Response, key=77, versions="1", flexible="1+"):
    """The state and the members of the requested groups."""

    class DescribedGroup(Struct):
        """A share group, as its coordinator describes it."""

        error_code: i16 = 0
        error_message: str | None = None
        group_id: str
        group_state: str  # Empty, Stable or Dead
        group_epoch: i32
        assignment_epoch: i32
        assignor_name: str
        members: list[ShareGroupDescribeResponse.Member]
        authorized_operations: i32 = -0x8000_0000  # bit n: operation n is allowed; the lowest int32: not requested

    class Member(Struct):
        """A member of the share group, with its subscription and its assignment."""

        member_id: str
        rack_id: str | None = None
        member_epoch: i32
        client_id: str
        client_host: str
        subscribed_topic_names: list[str]
        assignment: ShareGroupDescribeResponse.Assignment

    class Assignment(Struct):
        """The partitions of one member."""

        topic_partitions: list[ShareGroupDescribeResponse.TopicPartitions]

    class TopicPartitions(Struct):
        """Partitions of one topic."""

        topic_id: UUID
        topic_name: str
        partitions: list[i32]

    throttle_time_ms: i32 = 0
    groups: list[DescribedGroup]


class ShareFetchRequest(Request, key=78, versions="1-2", flexible="1+"):
    """Acquire records for a limited time, and acknowledge earlier ones (KIP-932).

    Versions:
        2: share_acquire_mode, to limit the number of records exactly (KIP-1206); renewal of locks (KIP-1222).
    """

    class FetchTopic(Struct):
        """The partitions of one topic."""

        topic_id: UUID
        partitions: list[ShareFetchRequest.FetchPartition]

    class FetchPartition(Struct):
        """A partition to fetch, and acknowledgments of its records."""

        partition_index: i32
        acknowledgement_batches: list[ShareFetchRequest.AcknowledgementBatch]

    class AcknowledgementBatch(Struct):
        """Consecutive records to acknowledge, both ends included."""

        first_offset: i64
        last_offset: i64
        acknowledge_types: list[i8]  # one for each record, or a single one for all

    class ForgottenTopic(Struct):
        """Partitions to remove from the session."""

        topic_id: UUID
        partitions: list[i32]

    group_id: str | None = None
    member_id: str | None
    share_session_epoch: i32  # 0: open a session; -1: close it; n: the nth request
    max_wait_ms: i32
    min_bytes: i32
    max_bytes: i32 = 0x7FFF_FFFF  # soft: the first batch is sent whole even if larger
    max_records: i32  # soft in mode 0, because batches are not split
    batch_size: i32  # the consumer's preferred number of records per batch of acquired records
    share_acquire_mode: i8 = field("2+", default=0, ignorable=True)  # 0: whole batches; 1: never more than max_records
    is_renew_ack: bool = field("2+", default=False)  # the acknowledgments renew locks; nothing is fetched
    topics: list[FetchTopic]
    forgotten_topics_data: list[ForgottenTopic]


class ShareFetchResponse(Response, key=78, versions="1-2", flexible="1+"):
    """The acquired records, and the outcome for the acknowledgments.

    Versions:
        2: same layout; modes and renewal in the request (KIP-1206, KIP-1222).
    """

    class ShareFetchableTopicResponse(Struct):
        """The records acquired from one topic."""

        topic_id: UUID
        partitions: list[ShareFetchResponse.PartitionData]

    class PartitionData(Struct):
        """The records acquired from one partition."""

        partition_index: i32
        error_code: i16 = 0
        error_message: str | None = None
        acknowledge_error_code: i16
        acknowledge_error_message: str | None = None
        current_leader: ShareFetchResponse.LeaderIdAndEpoch
        records: Records = field(nullable="none")  # whole batches, of which the consumer may use only acquired_records
        acquired_records: list[ShareFetchResponse.AcquiredRecords]

    class LeaderIdAndEpoch(Struct):
        """The current leader of the partition."""

        leader_id: i32
        leader_epoch: i32

    class AcquiredRecords(Struct):
        """Consecutive acquired records, both ends included."""

        first_offset: i64
        last_offset: i64
        delivery_count: i16  # how many times they have been delivered

    class NodeEndpoint(Struct):
        """The address of a broker that is named as current leader."""

        node_id: i32
        host: str
        port: i32
        rack: str | None = None

    throttle_time_ms: i32 = 0
    error_code: i16 = 0
    error_message: str | None = None
    acquisition_lock_timeout_ms: i32  # the time after which unacknowledged records are delivered again
    responses: list[ShareFetchableTopicResponse]
    node_endpoints: list[NodeEndpoint]


class ShareAcknowledgeRequest(Request, key=79, versions="1-2", flexible="1+"):
    """Acknowledge records without fetching more (KIP-932).

    Versions:
        2: renewal of locks (KIP-1222).
    """

    class AcknowledgeTopic(Struct):
        """The partitions of one topic."""

        topic_id: UUID
        partitions: list[ShareAcknowledgeRequest.AcknowledgePartition]

    class AcknowledgePartition(Struct):
        """A partition, and acknowledgments of its records."""

        partition_index: i32
        acknowledgement_batches: list[ShareAcknowledgeRequest.AcknowledgementBatch]

    class AcknowledgementBatch(Struct):
        """Consecutive records to acknowledge, both ends included."""

        first_offset: i64
        last_offset: i64
        acknowledge_types: list[i8]  # one for each record, or a single one for all

    group_id: str | None = None
    member_id: str | None
    share_session_epoch: i32  # -1: close the session; n: the nth request
    is_renew_ack: bool = field("2+", default=False)  # the acknowledgments renew locks
    topics: list[AcknowledgeTopic]


class ShareAcknowledgeResponse(Response, key=79, versions="1-2", flexible="1+"):
    """The outcome for the acknowledgments.

    Versions:
        2: acquisition_lock_timeout_ms, for renewed locks (KIP-1222).
    """

    class ShareAcknowledgeTopicResponse(Struct):
        """The outcome for one topic."""

        topic_id: UUID
        partitions: list[ShareAcknowledgeResponse.PartitionData]

    class PartitionData(Struct):
        """The outcome for one partition."""

        partition_index: i32
        error_code: i16 = 0
        error_message: str | None = None
        current_leader: ShareAcknowledgeResponse.LeaderIdAndEpoch

    class LeaderIdAndEpoch(Struct):
        """The current leader of the partition."""

        leader_id: i32
        leader_epoch: i32

    class NodeEndpoint(Struct):
        """The address of a broker that is named as current leader."""

        node_id: i32
        host: str
        port: i32
        rack: str | None = None

    throttle_time_ms: i32 = 0
    error_code: i16 = 0
    error_message: str | None = None
    acquisition_lock_timeout_ms: i32 = field("2+", default=0, ignorable=True)
    responses: list[ShareAcknowledgeTopicResponse]
    node_endpoints: list[NodeEndpoint]


class DescribeShareGroupOffsetsRequest(Request, key=90, versions="0-1", flexible="0+"):
    """Request the offsets of share groups (KIP-932).

    Versions:
        1: the response has the lag (KIP-1226).
    """

    class DescribeShareGroupOffsetsRequestGroup(Struct):
        """A group whose offsets are requested."""

        group_id: str
        topics: list[DescribeShareGroupOffsetsRequest.DescribeShareGroupOffsetsRequestTopic] | None  # None: all

    class DescribeShareGroupOffsetsRequestTopic(Struct):
        """The partitions of one topic."""

        topic_name: str
        partitions: list[i32]

    groups: list[DescribeShareGroupOffsetsRequestGroup]


class DescribeShareGroupOffsetsResponse(Response, key=90, versions="0-1", flexible="0+"):
    """The offsets of the share groups.

    Versions:
        1: lag (KIP-1226).
    """

    class DescribeShareGroupOffsetsResponseGroup(Struct):
        """The offsets of one group, or the error for it."""

        group_id: str
        topics: list[DescribeShareGroupOffsetsResponse.DescribeShareGroupOffsetsResponseTopic]
        error_code: i16 = 0
        error_message: str | None = None

    class DescribeShareGroupOffsetsResponseTopic(Struct):
        """The partitions of one topic."""

        topic_name: str
        topic_id: UUID
        partitions: list[DescribeShareGroupOffsetsResponse.DescribeShareGroupOffsetsResponsePartition]

    class DescribeShareGroupOffsetsResponsePartition(Struct):
        """The group's offset in one partition."""

        partition_index: i32
        start_offset: i64  # of the first record whose delivery is not complete
        leader_epoch: i32
        lag: i64 = field("1+", default=-1, ignorable=True)  # records whose delivery is not complete; -1: unknown
        error_code: i16 = 0
        error_message: str | None = None

    throttle_time_ms: i32 = 0
    groups: list[DescribeShareGroupOffsetsResponseGroup]


class AlterShareGroupOffsetsRequest(Request, key=91, versions="0", flexible="0+"):
    """Set the offsets from which a share group without members will continue (KIP-932)."""

    class AlterShareGroupOffsetsRequestTopic(Struct):
        """The partitions of one topic."""

        topic_name: str
        partitions: list[AlterShareGroupOffsetsRequest.AlterShareGroupOffsetsRequestPartition]

    class AlterShareGroupOffsetsRequestPartition(Struct):
        """A partition, and the offset from which the group will continue."""

        partition_index: i32
        start_offset: i64

    group_id: str
    topics: list[AlterShareGroupOffsetsRequestTopic]


class AlterShareGroupOffsetsResponse(Response, key=91, versions="0", flexible="0+"):
    """The outcome for each partition."""

    class AlterShareGroupOffsetsResponseTopic(Struct):
        """The outcome for one topic."""

        topic_name: str
        topic_id: UUID
        partitions: list[AlterShareGroupOffsetsResponse.AlterShareGroupOffsetsResponsePartition]

    class AlterShareGroupOffsetsResponsePartition(Struct):
        """The outcome for one partition."""

        partition_index: i32
        error_code: i16 = 0
        error_message: str | None = None

    throttle_time_ms: i32 = 0
    error_code: i16 = 0
    error_message: str | None = None
    responses: list[AlterShareGroupOffsetsResponseTopic]


class DeleteShareGroupOffsetsRequest(Request, key=92, versions="0", flexible="0+"):
    """Delete the offsets of a share group without members in some topics (KIP-932)."""

    class DeleteShareGroupOffsetsRequestTopic(Struct):
        """A topic whose offsets are deleted."""

        topic_name: str

    group_id: str
    topics: list[DeleteShareGroupOffsetsRequestTopic]


class DeleteShareGroupOffsetsResponse(Response, key=92, versions="0", flexible="0+"):
    """The outcome for each topic."""

    class DeleteShareGroupOffsetsResponseTopic(Struct):
        """The outcome for one topic."""

        topic_name: str
        topic_id: UUID
        error_code: i16 = 0
        error_message: str | None = None

    throttle_time_ms: i32 = 0
    error_code: i16 = 0
    error_message: str | None = None
    responses: list[DeleteShareGroupOffsetsResponseTopic]
