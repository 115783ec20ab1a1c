"""ElectLeaders, AlterPartitionReassignments, ListPartitionReassignments: moving leaders and replicas."""

from __future__ import annotations

from parley.protocol.schema import Request, Response, Struct, field, i8, i16, i32


class ElectLeadersRequest(Request, key=43, versions="0-2", flexible="2+"):
    """Elect the leaders of partitions: the preferred replica, or any live one (KIP-183).

    Versions:
        1: election_type; before, only the preferred replica could be elected (KIP-460).
        2: flexible encoding (KIP-482).
    """

    class TopicPartitions(Struct):
        """The partitions of one topic."""

        topic: str
        partitions: list[i32]

    election_type: i8 = field("1+", default=0)  # 0: preferred; 1: unclean
    topic_partitions: list[TopicPartitions] | None  # None: all
    timeout_ms: i32 = 60000


class ElectLeadersResponse(Response, key=43, versions="0-2", flexible="2+"):
    """The outcome for each partition.

    Versions:
        1: error_code for the request as a whole (KIP-460).
        2: flexible encoding (KIP-482).
    """

    class ReplicaElectionResult(Struct):
        """The outcome for one topic."""

        topic: str
        partition_result: list[ElectLeadersResponse.PartitionResult]

    class PartitionResult(Struct):
        """The outcome for one partition; ELECTION_NOT_NEEDED if the right replica leads already."""

        partition_id: i32
        error_code: i16 = 0
        error_message: str | None = None

    throttle_time_ms: i32 = 0
    error_code: i16 = field("1+", default=0)
    replica_election_results: list[ReplicaElectionResult]


class AlterPartitionReassignmentsRequest(Request, key=45, versions="0-1", flexible="0+"):
    """Reassign partitions to other replicas, or cancel the reassignment (KIP-455).

    Versions:
        1: allow_replication_factor_change, to ensure that the number of replicas stays the same (KIP-860).
    """

    class ReassignableTopic(Struct):
        """The partitions of one topic."""

        name: str
        partitions: list[AlterPartitionReassignmentsRequest.ReassignablePartition]

    class ReassignablePartition(Struct):
        """A partition and the replicas that it should have."""

        partition_index: i32
        replicas: list[i32] | None = None  # None: cancel the reassignment

    timeout_ms: i32 = 60000
    allow_replication_factor_change: bool = field("1+", default=True)  # False: reject a list of another length
    topics: list[ReassignableTopic]


class AlterPartitionReassignmentsResponse(Response, key=45, versions="0-1", flexible="0+"):
    """The outcome for each partition: started or cancelled. ListPartitionReassignments shows the progress.

    Versions:
        1: allow_replication_factor_change, copied from the request (KIP-860).
    """

    class ReassignableTopicResponse(Struct):
        """The outcome for one topic."""

        name: str
        partitions: list[AlterPartitionReassignmentsResponse.ReassignablePartitionResponse]

    class ReassignablePartitionResponse(Struct):
        """The outcome for one partition."""

        partition_index: i32
        error_code: i16 = 0
        error_message: str | None = None

    throttle_time_ms: i32 = 0
    allow_replication_factor_change: bool = field("1+", default=True, ignorable=True)
    error_code: i16 = 0
    error_message: str | None = None
    responses: list[ReassignableTopicResponse]


class ListPartitionReassignmentsRequest(Request, key=46, versions="0", flexible="0+"):
    """Request the reassignments in progress (KIP-455)."""

    class ListPartitionReassignmentsTopics(Struct):
        """The partitions of one topic."""

        name: str
        partition_indexes: list[i32]

    timeout_ms: i32 = 60000
    topics: list[ListPartitionReassignmentsTopics] | None = None  # None: all


class ListPartitionReassignmentsResponse(Response, key=46, versions="0", flexible="0+"):
    """The reassignments in progress."""

    class OngoingTopicReassignment(Struct):
        """The reassignments in one topic."""

        name: str
        partitions: list[ListPartitionReassignmentsResponse.OngoingPartitionReassignment]

    class OngoingPartitionReassignment(Struct):
        """The reassignment of one partition."""

        partition_index: i32
        replicas: list[i32]  # all current replicas, including those being added or removed
        adding_replicas: list[i32]
        removing_replicas: list[i32]

    throttle_time_ms: i32 = 0
    error_code: i16 = 0
    error_message: str | None = None
    topics: list[OngoingTopicReassignment]
