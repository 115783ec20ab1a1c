"""AlterPartition: a leader reports the replicas in sync to the controller (KIP-497)."""

from __future__ import annotations

from uuid import UUID

from parley.protocol.schema import ZERO_UUID, Request, Response, Struct, field, i8, i16, i32, i64


class AlterPartitionRequest(Request, key=56, versions="0-3", flexible="0+"):
    """Ask the controller to change the in-sync replicas of partitions the sender leads.

    Versions:
        1: leader_recovery_state, after an unclean election (KIP-704).
        2: topics by id instead of name; replicas that may not join are refused one by one (KIP-841).
        3: each replica with its broker's epoch, so that a broker that restarted meanwhile is refused (KIP-903).
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
        partition_epoch: i32  # of the state the sender knows; the controller refuses others

    class BrokerState(Struct):
        """A replica of the requested ISR."""

        broker_id: i32
        broker_epoch: i64 = -1  # -1: do not check

    broker_id: i32
    broker_epoch: i64 = -1  # -1: unknown
    topics: list[TopicData]


class AlterPartitionResponse(Response, key=56, versions="0-3", flexible="0+"):
    """The state of each partition after the change, or the reason for its refusal.

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
