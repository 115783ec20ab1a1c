"""Fetch: reading record batches, by consumers and by following replicas."""

from __future__ import annotations

from parley.protocol.schema import ZERO, ZERO_UUID, Records, Request, Response, Struct, field, i8, i16, i32, i64
from parley.protocol.uuids import UUID


class FetchRequest(Request, key=1, versions="0-18", flexible="12+"):
    """Read batches from partitions led by the receiving broker, waiting for enough bytes if necessary.

    Consumers and followers use the same request; a follower identifies itself by its replica id. The tags from 10000 on
    exist only between brokers of Parley (docs/coordination.md, "Stored epochs").

    Versions:
        1: the response says how long the client was throttled (KIP-13).
        2: the reader understands message format v1 (KIP-32).
        3: max_bytes for the whole response; partitions are read in the order of the request (KIP-74).
        4: isolation_level; the reader understands record batches of format v2 (KIP-98).
        5: followers report their log_start_offset, for the deletion of records (KIP-107).
        6: the reader understands KAFKA_STORAGE_ERROR (KIP-112).
        7: incremental fetch sessions: session id and epoch, forgotten topics (KIP-227).
        8: the client enforces throttle_time_ms itself (KIP-219).
        9: current_leader_epoch fences readers with old metadata (KIP-320).
        10: batches may be compressed with zstd (KIP-110).
        11: rack_id, to read from the nearest replica (KIP-392).
        12: last_fetched_epoch, to detect a diverged log in the fetch itself (KIP-595); flexible encoding (KIP-482).
        13: topics by id instead of name (KIP-516).
        14: the reader understands OFFSET_MOVED_TO_TIERED_STORAGE (KIP-405).
        15: replica_state with the broker's epoch replaces replica_id, to fence restarted followers (KIP-903).
        16: the response may contain the address of the new leader (KIP-951).
        17: replica_directory_id, for metadata quorum voters (KIP-853).
        18: followers report their high watermark, so that they receive a new one immediately (KIP-1166).
    """

    class ReplicaState(Struct):
        """The follower that fetches."""

        replica_id: i32 = -1
        replica_epoch: i64 = -1  # broker epoch

    class FetchTopic(Struct):
        """The partitions of one topic."""

        topic: str = field("0-12", default="", ignorable=True)
        topic_id: UUID = field("13+", default=ZERO_UUID, ignorable=True)
        partitions: list[FetchRequest.FetchPartition]

    class FetchPartition(Struct):
        """The position from which to read one partition."""

        partition: i32
        current_leader_epoch: i32 = field("9+", default=-1, ignorable=True)  # -1: do not check
        fetch_offset: i64
        # the leader epoch of the record before fetch_offset; -1: unknown
        last_fetched_epoch: i32 = field("12+", default=-1)
        log_start_offset: i64 = field("5+", default=-1, ignorable=True)  # of the follower's log; -1 from a consumer
        partition_max_bytes: i32  # soft, like max_bytes
        replica_directory_id: UUID = field("17+", tag=0, tagged="17+", default=ZERO_UUID, ignorable=True)
        # -1: unknown; the maximum value: not reported
        high_watermark: i64 = field("18+", tag=1, tagged="18+", default=0x7FFF_FFFF_FFFF_FFFF, ignorable=True)
        # the epoch that the follower's log stores beyond last_fetched_epoch; -1: none
        stored_epoch: i32 = field("12+", tag=10000, tagged="12+", default=-1, ignorable=True)

    class ForgottenTopic(Struct):
        """Partitions to remove from the session."""

        topic: str = field("7-12", default="", ignorable=True)
        topic_id: UUID = field("13+", default=ZERO_UUID, ignorable=True)
        partitions: list[i32]

    # checked by the metadata quorum only
    cluster_id: str | None = field("12+", tag=0, tagged="12+", default=None, ignorable=True)
    # -1: a consumer; -2: a debugging consumer that may read past the high watermark
    replica_id: i32 = field("0-14", default=-1)
    replica_state: ReplicaState = field("15+", tag=1, tagged="15+", default=ZERO)
    max_wait_ms: i32  # how long to wait for min_bytes
    min_bytes: i32
    # soft: the first batch is sent whole even if larger
    max_bytes: i32 = field("3+", default=0x7FFF_FFFF, ignorable=True)
    # 0: read uncommitted; 1: read committed, up to the last stable offset
    isolation_level: i8 = field("4+", default=0, ignorable=True)
    session_id: i32 = field("7+", default=0, ignorable=True)  # 0: no session, or a request for a new one
    # -1: no session; 0: open one; n: the nth incremental fetch
    session_epoch: i32 = field("7+", default=-1, ignorable=True)
    topics: list[FetchTopic]
    forgotten_topics_data: list[ForgottenTopic] = field("7+", default=[])
    rack_id: str = field("11+", default="", ignorable=True)  # of the consumer
    # the follower understands must_store_epoch; an incremental fetch leaves it out
    stores_epochs: bool = field("12+", tag=10000, tagged="12+", default=False, ignorable=True)


class FetchResponse(Response, key=1, versions="0-18", flexible="12+"):
    """The batches read, and how far each partition may be read.

    The tag 10000 exists only between brokers of Parley (docs/coordination.md, "Stored epochs").

    Versions:
        1: throttle_time_ms (KIP-13).
        2: message sets of format v1 (KIP-32).
        3: same layout; limited by max_bytes (KIP-74).
        4: last_stable_offset and aborted_transactions; batches of format v2 (KIP-98).
        5: log_start_offset (KIP-107).
        6: KAFKA_STORAGE_ERROR may occur (KIP-112).
        7: a top-level error and session_id; a session's response leaves out unchanged partitions (KIP-227).
        8: sent before the client is throttled, not after (KIP-219).
        9: FENCED_LEADER_EPOCH and UNKNOWN_LEADER_EPOCH may occur (KIP-320).
        10: batches may be compressed with zstd (KIP-110).
        11: preferred_read_replica (KIP-392).
        12: diverging_epoch, current_leader, snapshot_id (KIP-595); flexible encoding (KIP-482).
        13: topics by id instead of name (KIP-516).
        14: OFFSET_MOVED_TO_TIERED_STORAGE may occur (KIP-405).
        15: same layout; replica_state in the request (KIP-903).
        16: node_endpoints, with current_leader (KIP-951).
        17: same layout; directory ids in the request (KIP-853).
        18: same layout; high watermarks in the request (KIP-1166).
    """

    class FetchableTopicResponse(Struct):
        """The batches of one topic."""

        topic: str = field("0-12", default="", ignorable=True)
        topic_id: UUID = field("13+", default=ZERO_UUID, ignorable=True)
        partitions: list[FetchResponse.PartitionData]

    class PartitionData(Struct):
        """The batches of one partition."""

        partition_index: i32
        error_code: i16 = 0
        high_watermark: i64
        # all transactions below it have ended; -1: unknown
        last_stable_offset: i64 = field("4+", default=-1, ignorable=True)
        log_start_offset: i64 = field("5+", default=-1, ignorable=True)  # -1: unknown
        diverging_epoch: FetchResponse.EpochEndOffset = field("12+", tag=0, tagged="12+", default=ZERO)
        current_leader: FetchResponse.LeaderIdAndEpoch = field("12+", tag=1, tagged="12+", default=ZERO)
        snapshot_id: FetchResponse.SnapshotId = field("12+", tag=2, tagged="12+", default=ZERO)
        # the follower's log must store the leader's epoch at its end before it counts
        must_store_epoch: bool = field("12+", tag=10000, tagged="12+", default=False, ignorable=True)
        # None: read uncommitted
        aborted_transactions: list[FetchResponse.AbortedTransaction] | None = field("4+", default=None, ignorable=True)
        preferred_read_replica: i32 = field("11+", default=-1)  # the broker to read from instead; -1: none
        records: Records

    class EpochEndOffset(Struct):
        """The last epoch that both logs may share; the follower truncates its log to end_offset."""

        epoch: i32 = -1
        end_offset: i64 = -1

    class LeaderIdAndEpoch(Struct):
        """The current leader of the partition."""

        leader_id: i32 = -1
        leader_epoch: i32 = -1

    class SnapshotId(Struct):
        """A metadata quorum snapshot to load instead of records.

        Parley's leaders also use it in other partitions: a follower that fetches below ``end_offset`` may lack
        tombstones that compaction has removed below that offset.
        """

        end_offset: i64 = -1
        epoch: i32 = -1

    class AbortedTransaction(Struct):
        """A transaction whose records a read-committed consumer must skip."""

        producer_id: i64
        first_offset: i64  # skip the producer's records from here to its abort marker

    class NodeEndpoint(Struct):
        """The address of a broker that is named as current leader."""

        node_id: i32
        host: str
        port: i32
        rack: str | None = None

    throttle_time_ms: i32 = field("1+", default=0, ignorable=True)
    error_code: i16 = field("7+", default=0, ignorable=True)  # of the session, not of a partition
    session_id: i32 = field("7+", default=0)  # 0: the response to a full fetch that opened no session
    responses: list[FetchableTopicResponse]
    node_endpoints: list[NodeEndpoint] = field("16+", tag=0, tagged="16+", default=[])
