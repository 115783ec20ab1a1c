"""CreateTopics, DeleteTopics, CreatePartitions, DeleteRecords."""

from __future__ import annotations

from parley.protocol.schema import ZERO_UUID, Request, Response, Struct, field, i8, i16, i32, i64
from parley.protocol.uuids import UUID


class CreateTopicsRequest(Request, key=19, versions="0-7", flexible="5+"):
    """Create topics (KIP-4).

    Versions:
        1: validate_only (KIP-108).
        2: the response says how long the client was throttled (KIP-124).
        3: the client enforces throttle_time_ms itself (KIP-219).
        4: -1 for the broker's default number of partitions or replicas (KIP-464).
        5: the response has the topic's configuration (KIP-525); flexible encoding (KIP-482).
        6: the sender understands THROTTLING_QUOTA_EXCEEDED (KIP-599).
        7: the response has the topic's id (KIP-516).
    """

    class CreatableTopic(Struct):
        """A topic to create."""

        name: str
        num_partitions: i32  # -1: given by assignments or, from version 4 on, by the broker's default
        replication_factor: i16  # -1: given by assignments or, from version 4 on, by the broker's default
        assignments: list[CreateTopicsRequest.CreatableReplicaAssignment]  # empty: the controller places the replicas
        configs: list[CreateTopicsRequest.CreatableTopicConfig]

    class CreatableReplicaAssignment(Struct):
        """The brokers of one partition, the preferred leader first."""

        partition_index: i32
        broker_ids: list[i32]

    class CreatableTopicConfig(Struct):
        """One topic setting that differs from the default."""

        name: str
        value: str | None

    topics: list[CreatableTopic]
    timeout_ms: i32 = 60000  # how long to wait until all brokers know the topics
    validate_only: bool = field("1+", default=False)


class CreateTopicsResponse(Response, key=19, versions="0-7", flexible="5+"):
    """The outcome for each topic.

    Versions:
        1: error_message (KIP-108).
        2: throttle_time_ms (KIP-124).
        3: sent before the client is throttled, not after (KIP-219).
        4: same layout; defaults in the request (KIP-464).
        5: partitions, replicas and configuration of the topic (KIP-525); flexible encoding (KIP-482).
        6: THROTTLING_QUOTA_EXCEEDED may occur (KIP-599).
        7: topic_id (KIP-516).
    """

    class CreatableTopicResult(Struct):
        """The outcome for one topic."""

        name: str
        topic_id: UUID = field("7+", default=ZERO_UUID, ignorable=True)
        error_code: i16 = 0
        error_message: str | None = field("1+", default=None, ignorable=True)
        # the reason why configs are missing although the topic was created
        topic_config_error_code: i16 = field("5+", tag=0, tagged="5+", default=0, ignorable=True)
        num_partitions: i32 = field("5+", default=-1, ignorable=True)  # -1: unknown
        replication_factor: i16 = field("5+", default=-1, ignorable=True)  # -1: unknown
        # None: the client must not see them, or there was an error
        configs: list[CreateTopicsResponse.CreatableTopicConfigs] | None = field("5+", default=None, ignorable=True)

    class CreatableTopicConfigs(Struct):
        """A setting of the created topic."""

        name: str
        value: str | None  # None: sensitive
        read_only: bool
        config_source: i8 = field(default=-1, ignorable=True)  # as in DescribeConfigsResponse
        is_sensitive: bool

    throttle_time_ms: i32 = field("2+", default=0, ignorable=True)
    topics: list[CreatableTopicResult]


class DeleteTopicsRequest(Request, key=20, versions="0-6", flexible="4+"):
    """Delete topics and all their records (KIP-4).

    Versions:
        1: the response says how long the client was throttled (KIP-124).
        2: the client enforces throttle_time_ms itself (KIP-219).
        3: the sender understands TOPIC_DELETION_DISABLED (KIP-322).
        4: flexible encoding (KIP-482).
        5: the response has an error message; the sender understands THROTTLING_QUOTA_EXCEEDED (KIP-599).
        6: topics by name or by id (KIP-516).
    """

    class DeleteTopicState(Struct):
        """One topic, by its name, or by its id and None as the name."""

        name: str | None = None
        topic_id: UUID

    topics: list[DeleteTopicState] = field("6+", default=[])
    topic_names: list[str] = field("0-5", default=[], ignorable=True)
    timeout_ms: i32  # how long to wait until the topics are deleted


class DeleteTopicsResponse(Response, key=20, versions="0-6", flexible="4+"):
    """The outcome for each topic.

    Versions:
        1: throttle_time_ms (KIP-124).
        2: sent before the client is throttled, not after (KIP-219).
        3: TOPIC_DELETION_DISABLED may occur (KIP-322).
        4: flexible encoding (KIP-482).
        5: error_message; THROTTLING_QUOTA_EXCEEDED may occur (KIP-599).
        6: topic_id; UNKNOWN_TOPIC_ID may occur (KIP-516).
    """

    class DeletableTopicResult(Struct):
        """The outcome for one topic."""

        name: str | None = field(nullable="6+")  # None: the broker does not know the requested id
        topic_id: UUID = field("6+", default=ZERO_UUID, ignorable=True)
        error_code: i16 = 0
        error_message: str | None = field("5+", default=None, ignorable=True)

    throttle_time_ms: i32 = field("1+", default=0, ignorable=True)
    responses: list[DeletableTopicResult]


class CreatePartitionsRequest(Request, key=37, versions="0-3", flexible="2+"):
    """Add partitions to topics (KIP-195).

    Versions:
        1: the client enforces throttle_time_ms itself (KIP-219).
        2: flexible encoding (KIP-482).
        3: the sender understands THROTTLING_QUOTA_EXCEEDED (KIP-599).
    """

    class CreatePartitionsTopic(Struct):
        """A topic to add partitions to."""

        name: str
        count: i32  # of all partitions, old and new
        # of the new partitions; None: the controller places the replicas
        assignments: list[CreatePartitionsRequest.CreatePartitionsAssignment] | None

    class CreatePartitionsAssignment(Struct):
        """The brokers of one new partition, the preferred leader first."""

        broker_ids: list[i32]

    topics: list[CreatePartitionsTopic]
    timeout_ms: i32  # how long to wait until all brokers know the partitions
    validate_only: bool = False


class CreatePartitionsResponse(Response, key=37, versions="0-3", flexible="2+"):
    """The outcome for each topic.

    Versions:
        1: sent before the client is throttled, not after (KIP-219).
        2: flexible encoding (KIP-482).
        3: THROTTLING_QUOTA_EXCEEDED may occur (KIP-599).
    """

    class CreatePartitionsTopicResult(Struct):
        """The outcome for one topic."""

        name: str
        error_code: i16 = 0
        error_message: str | None = None

    throttle_time_ms: i32 = 0
    results: list[CreatePartitionsTopicResult]


class DeleteRecordsRequest(Request, key=21, versions="0-2", flexible="2+"):
    """Delete the records before an offset in each partition (KIP-107).

    Versions:
        1: the client enforces throttle_time_ms itself (KIP-219).
        2: flexible encoding (KIP-482).
    """

    class DeleteRecordsTopic(Struct):
        """The partitions of one topic."""

        name: str
        partitions: list[DeleteRecordsRequest.DeleteRecordsPartition]

    class DeleteRecordsPartition(Struct):
        """The first offset to keep in one partition."""

        partition_index: i32
        offset: i64  # of the first record to keep; -1: the high watermark

    topics: list[DeleteRecordsTopic]
    timeout_ms: i32  # how long to wait for the other replicas


class DeleteRecordsResponse(Response, key=21, versions="0-2", flexible="2+"):
    """The lowest remaining offset in each partition.

    Versions:
        1: sent before the client is throttled, not after (KIP-219).
        2: flexible encoding (KIP-482).
    """

    class DeleteRecordsTopicResult(Struct):
        """The outcome for one topic."""

        name: str
        partitions: list[DeleteRecordsResponse.DeleteRecordsPartitionResult]

    class DeleteRecordsPartitionResult(Struct):
        """The outcome for one partition."""

        partition_index: i32
        low_watermark: i64  # the lowest log start offset of all replicas; -1 on error
        error_code: i16 = 0

    throttle_time_ms: i32 = 0
    topics: list[DeleteRecordsTopicResult]
