"""Administration of the metadata quorum: DescribeQuorum, AddRaftVoter, RemoveRaftVoter, UnregisterBroker.

Parley stores its metadata in a coordination store and has no such quorum, but tools send these requests.
"""

from __future__ import annotations

from parley.protocol.schema import ZERO_UUID, Request, Response, Struct, field, i16, i32, i64, u16
from parley.protocol.uuids import UUID


class DescribeQuorumRequest(Request, key=55, versions="0-2", flexible="0+"):
    """Request the progress of the voters and observers of the metadata log (KIP-595).

    Versions:
        1: the response has times (KIP-836).
        2: the response has error messages, directory ids and addresses (KIP-853).
    """

    class TopicData(Struct):
        """The partitions of one topic."""

        topic_name: str
        partitions: list[DescribeQuorumRequest.PartitionData]

    class PartitionData(Struct):
        """A partition whose quorum is requested."""

        partition_index: i32

    topics: list[TopicData]


class DescribeQuorumResponse(Response, key=55, versions="0-2", flexible="0+"):
    """The leader, voters and observers of the metadata log.

    Versions:
        1: last_fetch_timestamp and last_caught_up_timestamp (KIP-836).
        2: error messages, replica_directory_id and nodes (KIP-853).
    """

    class TopicData(Struct):
        """The partitions of one topic."""

        topic_name: str
        partitions: list[DescribeQuorumResponse.PartitionData]

    class PartitionData(Struct):
        """The quorum of one partition."""

        partition_index: i32
        error_code: i16 = 0
        error_message: str | None = field("2+", default=None, ignorable=True)
        leader_id: i32
        leader_epoch: i32
        high_watermark: i64
        current_voters: list[DescribeQuorumResponse.ReplicaState]
        observers: list[DescribeQuorumResponse.ReplicaState]

    class ReplicaState(Struct):
        """The progress of one replica."""

        replica_id: i32
        replica_directory_id: UUID = field("2+", default=ZERO_UUID)
        log_end_offset: i64
        # leader's clock, in milliseconds since 1970; -1: never
        last_fetch_timestamp: i64 = field("1+", default=-1, ignorable=True)
        # leader's clock, in milliseconds since 1970; -1: never
        last_caught_up_timestamp: i64 = field("1+", default=-1, ignorable=True)

    class Node(Struct):
        """The listener of one replica."""

        node_id: i32
        listeners: list[DescribeQuorumResponse.Listener]

    class Listener(Struct):
        """A listener of the node."""

        name: str
        host: str
        port: u16

    error_code: i16 = 0
    error_message: str | None = field("2+", default=None, ignorable=True)
    topics: list[TopicData]
    nodes: list[Node] = field("2+", default=[])


class UnregisterBrokerRequest(Request, key=64, versions="0", flexible="0+"):
    """Unregister a broker that will not return (KIP-631)."""

    broker_id: i32


class UnregisterBrokerResponse(Response, key=64, versions="0", flexible="0+"):
    """The outcome of unregistering the broker."""

    throttle_time_ms: i32 = 0
    error_code: i16 = 0
    error_message: str | None = None


class AddRaftVoterRequest(Request, key=80, versions="0-1", flexible="0+"):
    """Make a controller a voter of the metadata quorum (KIP-853).

    Versions:
        1: ack_when_committed (KIP-1186).
    """

    class Listener(Struct):
        """A listener of the new voter."""

        name: str
        host: str
        port: u16

    cluster_id: str | None
    timeout_ms: i32
    voter_id: i32
    voter_directory_id: UUID
    listeners: list[Listener]
    # False: respond as soon as the leader has appended the change to its log
    ack_when_committed: bool = field("1+", default=True)


class AddRaftVoterResponse(Response, key=80, versions="0-1", flexible="0+"):
    """The outcome of adding the voter.

    Versions:
        1: same layout; ack_when_committed in the request (KIP-1186).
    """

    throttle_time_ms: i32 = 0
    error_code: i16 = 0
    error_message: str | None = field(default=None, ignorable=True)


class RemoveRaftVoterRequest(Request, key=81, versions="0", flexible="0+"):
    """Remove a voter from the metadata quorum (KIP-853)."""

    cluster_id: str | None
    voter_id: i32
    voter_directory_id: UUID


class RemoveRaftVoterResponse(Response, key=81, versions="0", flexible="0+"):
    """The outcome of removing the voter."""

    throttle_time_ms: i32 = 0
    error_code: i16 = 0
    error_message: str | None = field(default=None, ignorable=True)
