"""AlterPartition: a leader asks the controller to change the in-sync replicas (KIP-497).

GetReplicaLogInfo: the controller requests the state of a broker's logs (KIP-966). AssignReplicasToDirs: a broker
reports the log directories of its replicas to the controller (KIP-858).
"""

from __future__ import annotations

from parley.protocol.schema import ZERO_UUID, Request, Response, Struct, field, i8, i16, i32, i64
from parley.protocol.uuids import UUID


class AlterPartitionRequest(Request, key=56, versions="0-3", flexible="0+"):
    """Ask the controller to change the in-sync replicas of partitions that the sender leads.

    Versions:
        1: leader_recovery_state, after an unclean election (KIP-704).
        2: topics by id instead of name; the controller rejects replicas that are not eligible for the ISR (KIP-841).
        3: each replica with its broker's epoch, so that a broker that restarted meanwhile is rejected (KIP-903).
    """

    class TopicData(Struct):
        """The partitions of one topic."""

        topic_name: str = field("0-1", default="", ignorable=True)
        topic_id: UUID = field("2+", default=ZERO_UUID, ignorable=True)
        partitions: list[AlterPartitionRequest.PartitionData]

    class PartitionData(Struct):
        """The requested ISR of one partition."""

        partition_index: i32
        leader_epoch: i32
        new_isr: list[i32] = field("0-2", default=[])
        new_isr_with_epochs: list[AlterPartitionRequest.BrokerState] = field("3+", default=[])
        leader_recovery_state: i8 = field("1+", default=0)  # 0: recovered; 1: still recovering from an unclean election
        partition_epoch: i32  # of the state that the sender knows; the controller rejects any other

    class BrokerState(Struct):
        """A replica of the requested ISR."""

        broker_id: i32
        broker_epoch: i64 = -1  # -1: do not check

    broker_id: i32
    broker_epoch: i64 = -1  # -1: unknown
    topics: list[TopicData]


class AlterPartitionResponse(Response, key=56, versions="0-3", flexible="0+"):
    """The state of each partition after the change, or the reason for its rejection.

    Versions:
        1: leader_recovery_state (KIP-704).
        2: topics by id; INELIGIBLE_REPLICA, NEW_LEADER_ELECTED and UNKNOWN_TOPIC_ID may occur (KIP-841).
        3: same layout; broker epochs in the request (KIP-903).
    """

    class TopicData(Struct):
        """The partitions of one topic."""

        topic_name: str = field("0-1", default="", ignorable=True)
        topic_id: UUID = field("2+", default=ZERO_UUID, ignorable=True)
        partitions: list[AlterPartitionResponse.PartitionData]

    class PartitionData(Struct):
        """The state of one partition."""

        partition_index: i32
        error_code: i16 = 0
        leader_id: i32
        leader_epoch: i32
        isr: list[i32]
        # 0: recovered; 1: still recovering from an unclean election
        leader_recovery_state: i8 = field("1+", default=0, ignorable=True)
        partition_epoch: i32

    throttle_time_ms: i32 = 0
    error_code: i16 = 0
    topics: list[TopicData]


class AssignReplicasToDirsRequest(Request, key=73, versions="0", flexible="0+"):
    """Report the replicas in each of the sender's log directories to the controller (KIP-858)."""

    class DirectoryData(Struct):
        """A log directory, and the replicas in it."""

        id: UUID
        topics: list[AssignReplicasToDirsRequest.TopicData]

    class TopicData(Struct):
        """The replicas of one topic in the directory."""

        topic_id: UUID
        partitions: list[AssignReplicasToDirsRequest.PartitionData]

    class PartitionData(Struct):
        """A replica in the directory."""

        partition_index: i32

    broker_id: i32
    broker_epoch: i64 = -1
    directories: list[DirectoryData]


class AssignReplicasToDirsResponse(Response, key=73, versions="0", flexible="0+"):
    """The outcome for each replica, and an error for the request as a whole.

    Errors: NOT_CONTROLLER, STALE_BROKER_EPOCH; for a replica UNKNOWN_TOPIC_ID, UNKNOWN_TOPIC_OR_PARTITION,
    NOT_LEADER_OR_FOLLOWER (the sender is not among the partition's replicas).
    """

    class DirectoryData(Struct):
        """A log directory, and the outcome for the replicas in it."""

        id: UUID
        topics: list[AssignReplicasToDirsResponse.TopicData]

    class TopicData(Struct):
        """The replicas of one topic in the directory."""

        topic_id: UUID
        partitions: list[AssignReplicasToDirsResponse.PartitionData]

    class PartitionData(Struct):
        """The outcome for one replica."""

        partition_index: i32
        error_code: i16

    throttle_time_ms: i32 = 0
    error_code: i16 = 0
    directories: list[DirectoryData]


class GetReplicaLogInfoRequest(Request, key=93, versions="0", flexible="0+"):
    """Request the end of a broker's logs (KIP-966). A broker also responds before it is registered.

    The tagged fields exist only in Parley. The response to a request for all logs is split into pages, in the order of
    topic name and partition, and each request contains the last log of the previous page.
    """

    class TopicPartitions(Struct):
        """The partitions of one topic."""

        topic_id: UUID = field("0+", default=ZERO_UUID, ignorable=True)
        partitions: list[i32]

    topic_partitions: list[TopicPartitions] | None = field("0+", nullable="0+")  # None: all logs
    after_topic: str = field("0+", tag=10000, tagged="0+", default="", ignorable=True)
    after_partition: i32 = field("0+", tag=10001, tagged="0+", default=-1, ignorable=True)


class GetReplicaLogInfoResponse(Response, key=93, versions="0", flexible="0+"):
    """The logs of the broker, at most 1,000 of them (KIP-966).

    If a log is missing in a complete response to a request for all logs, it does not exist on the broker, or its log
    directory is offline and cannot be read. Errors of a log: KAFKA_STORAGE_ERROR (its log directory is offline),
    UNKNOWN_TOPIC_OR_PARTITION (the broker has no such log, or only a new one in place of a lost log), UNKNOWN_TOPIC_ID
    (the broker has a log without topic id that may be this one), CORRUPT_MESSAGE (a part of the log is damaged or
    missing; the offsets are valid).

    The tagged fields exist only in Parley. A log whose ``high_watermark`` is above its ``log_end_offset`` lacks
    committed records: its end was lost after the high watermark was persisted, and it has not been in sync since.
    """

    class TopicPartitionLogInfo(Struct):
        """The logs of one topic."""

        topic_id: UUID  # zero: the log does not know its topic id
        partition_log_info: list[GetReplicaLogInfoResponse.PartitionLogInfo]
        topic_name: str = field("0+", tag=10000, tagged="0+", default="", ignorable=True)

    class PartitionLogInfo(Struct):
        """The end of one log, or the error for it."""

        partition: i32
        # of the last record, or a newer one that the log stores without a record; -1: there is no record
        last_written_leader_epoch: i32
        current_leader_epoch: i32  # the highest leader epoch that the broker knows for the partition; -1: none
        log_end_offset: i64  # -1: unknown
        error_code: i16
        directory_id: UUID = field("0+", tag=10000, tagged="0+", default=ZERO_UUID, ignorable=True)
        high_watermark: i64 = field("0+", tag=10001, tagged="0+", default=-1, ignorable=True)  # the highest known one
        partition_epoch: i32 = field("0+", tag=10002, tagged="0+", default=-1, ignorable=True)  # -1: unknown
        # records may be missing that were not synced before a power cut
        may_be_cut_by_power: bool = field("0+", tag=10003, tagged="0+", default=False, ignorable=True)

    throttle_time_ms: i32 = 0
    broker_epoch: i64  # of the sender's registration; -1: it is not registered
    truncated: bool  # there are more logs than this response contains
    topic_partition_log_info_list: list[TopicPartitionLogInfo]
    # of the broker's process, as in its registration
    incarnation_id: UUID = field("0+", tag=10000, tagged="0+", default=ZERO_UUID, ignorable=True)
    # a log directory is offline, which may contain logs that are missing in this response
    is_any_directory_offline: bool = field("0+", tag=10001, tagged="0+", default=False, ignorable=True)
