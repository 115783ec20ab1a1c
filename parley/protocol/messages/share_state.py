"""The stored state of share partitions: the requests of brokers to the share coordinator (KIP-932).

A share partition is a partition together with a share group that reads it. Delivery states are 0 available, 2
acknowledged, 4 archived.
"""

from __future__ import annotations

from parley.protocol.schema import Request, Response, Struct, field, i8, i16, i32, i64
from parley.protocol.uuids import UUID


class InitializeShareGroupStateRequest(Request, key=83, versions="0", flexible="0+"):
    """Initialize the state of share partitions, replacing any stored state."""

    class InitializeStateData(Struct):
        """The partitions of one topic."""

        topic_id: UUID
        partitions: list[InitializeShareGroupStateRequest.PartitionData]

    class PartitionData(Struct):
        """A partition whose state is initialized."""

        partition: i32
        state_epoch: i32
        start_offset: i64  # -1: the group has none yet
        # Only in Parley: the epoch of the leader that initializes the state again; -1: the group coordinator sent this.
        leader_epoch: i32 = field("0+", tag=10000, tagged="0+", default=-1, ignorable=True)

    group_id: str
    topics: list[InitializeStateData]


class InitializeShareGroupStateResponse(Response, key=83, versions="0", flexible="0+"):
    """The outcome for each partition."""

    class InitializeStateResult(Struct):
        """The outcome for one topic."""

        topic_id: UUID
        partitions: list[InitializeShareGroupStateResponse.PartitionResult]

    class PartitionResult(Struct):
        """The outcome for one partition."""

        partition: i32
        error_code: i16 = 0
        error_message: str | None = None

    results: list[InitializeStateResult]


class ReadShareGroupStateRequest(Request, key=84, versions="0", flexible="0+"):
    """Request the state of share partitions. The leader of the partitions sends this."""

    class ReadStateData(Struct):
        """The partitions of one topic."""

        topic_id: UUID
        partitions: list[ReadShareGroupStateRequest.PartitionData]

    class PartitionData(Struct):
        """A partition whose state is requested."""

        partition: i32
        leader_epoch: i32

    group_id: str
    topics: list[ReadStateData]


class ReadShareGroupStateResponse(Response, key=84, versions="0", flexible="0+"):
    """The state of share partitions."""

    class ReadStateResult(Struct):
        """The partitions of one topic."""

        topic_id: UUID
        partitions: list[ReadShareGroupStateResponse.PartitionResult]

    class PartitionResult(Struct):
        """The state of one partition."""

        partition: i32
        error_code: i16 = 0
        error_message: str | None = None
        state_epoch: i32
        start_offset: i64  # -1: the group has none yet
        state_batches: list[ReadShareGroupStateResponse.StateBatch]

    class StateBatch(Struct):
        """Consecutive records with the same state, both ends included."""

        first_offset: i64
        last_offset: i64
        delivery_state: i8
        delivery_count: i16

    results: list[ReadStateResult]


class WriteShareGroupStateRequest(Request, key=85, versions="0-1", flexible="0+"):
    """Store changes in the state of share partitions.

    Versions:
        1: delivery_complete_count (KIP-1226).
    """

    class WriteStateData(Struct):
        """The partitions of one topic."""

        topic_id: UUID
        partitions: list[WriteShareGroupStateRequest.PartitionData]

    class PartitionData(Struct):
        """The changed state of one partition."""

        partition: i32
        state_epoch: i32
        leader_epoch: i32
        start_offset: i64  # -1: unchanged
        delivery_complete_count: i32 = field("1+", default=-1, ignorable=True)  # final records from start_offset on
        state_batches: list[WriteShareGroupStateRequest.StateBatch]

    class StateBatch(Struct):
        """Consecutive records with the same state, both ends included."""

        first_offset: i64
        last_offset: i64
        delivery_state: i8
        delivery_count: i16

    group_id: str
    topics: list[WriteStateData]


class WriteShareGroupStateResponse(Response, key=85, versions="0-1", flexible="0+"):
    """The outcome for each partition.

    Versions:
        1: same layout; the request has delivery_complete_count (KIP-1226).
    """

    class WriteStateResult(Struct):
        """The outcome for one topic."""

        topic_id: UUID
        partitions: list[WriteShareGroupStateResponse.PartitionResult]

    class PartitionResult(Struct):
        """The outcome for one partition."""

        partition: i32
        error_code: i16 = 0
        error_message: str | None = None

    results: list[WriteStateResult]


class DeleteShareGroupStateRequest(Request, key=86, versions="0", flexible="0+"):
    """Delete the state of share partitions."""

    class DeleteStateData(Struct):
        """The partitions of one topic."""

        topic_id: UUID
        partitions: list[DeleteShareGroupStateRequest.PartitionData]

    class PartitionData(Struct):
        """A partition whose state is deleted."""

        partition: i32
        # Only in Parley: state with a higher epoch was initialized later and is kept; -1: delete any state.
        state_epoch: i32 = field("0+", tag=10000, tagged="0+", default=-1, ignorable=True)

    group_id: str
    topics: list[DeleteStateData]


class DeleteShareGroupStateResponse(Response, key=86, versions="0", flexible="0+"):
    """The outcome for each partition."""

    class DeleteStateResult(Struct):
        """The outcome for one topic."""

        topic_id: UUID
        partitions: list[DeleteShareGroupStateResponse.PartitionResult]

    class PartitionResult(Struct):
        """The outcome for one partition."""

        partition: i32
        error_code: i16 = 0
        error_message: str | None = None

    results: list[DeleteStateResult]


class ReadShareGroupStateSummaryRequest(Request, key=87, versions="0-1", flexible="0+"):
    """Request the state of share partitions without their batches.

    Versions:
        1: the response has delivery_complete_count (KIP-1226).
    """

    class ReadStateSummaryData(Struct):
        """The partitions of one topic."""

        topic_id: UUID
        partitions: list[ReadShareGroupStateSummaryRequest.PartitionData]

    class PartitionData(Struct):
        """A partition whose state is requested."""

        partition: i32
        leader_epoch: i32

    group_id: str
    topics: list[ReadStateSummaryData]


class ReadShareGroupStateSummaryResponse(Response, key=87, versions="0-1", flexible="0+"):
    """The state of share partitions without their batches.

    Versions:
        1: delivery_complete_count (KIP-1226).
    """

    class ReadStateSummaryResult(Struct):
        """The partitions of one topic."""

        topic_id: UUID
        partitions: list[ReadShareGroupStateSummaryResponse.PartitionResult]

    class PartitionResult(Struct):
        """The state of one partition."""

        partition: i32
        error_code: i16 = 0
        error_message: str | None = None
        state_epoch: i32
        leader_epoch: i32
        start_offset: i64
        delivery_complete_count: i32 = field("1+", default=-1, ignorable=True)

    results: list[ReadStateSummaryResult]
