"""ListOffsets and OffsetForLeaderEpoch: find offsets by time, by position and by leader epoch."""

from __future__ import annotations

from parley.protocol.schema import Request, Response, Struct, field, i8, i16, i32, i64


class ListOffsetsRequest(Request, key=2, versions="0-11", flexible="6+"):
    """Find an offset in each partition, by a timestamp or a special position.

    Negative timestamps are positions: -1 latest, -2 earliest, -3 the record with the greatest timestamp, -4 earliest on
    local disk, -5 latest in remote storage, -6 earliest not yet in remote storage.

    Versions:
        1: one exact offset, found with the time index, instead of a list (KIP-79).
        2: isolation_level: for a read-committed consumer, "latest" is the last stable offset (KIP-98).
        3: the client enforces throttle_time_ms itself (KIP-219).
        4: current_leader_epoch fences readers with old metadata (KIP-320).
        5: the sender understands OFFSET_NOT_AVAILABLE (KIP-207).
        6: flexible encoding (KIP-482).
        7: -3, the greatest timestamp (KIP-734).
        8: -4, the earliest offset on local disk (KIP-405).
        9: -5, the latest offset in remote storage (KIP-1005).
        10: timeout_ms, because remote storage takes time to search (KIP-1075).
        11: -6, the earliest offset not yet uploaded (KIP-1023).
    """

    class ListOffsetsTopic(Struct):
        """The partitions of one topic."""

        name: str
        partitions: list[ListOffsetsRequest.ListOffsetsPartition]

    class ListOffsetsPartition(Struct):
        """The timestamp or position to find in one partition."""

        partition_index: i32
        current_leader_epoch: i32 = field("4+", default=-1, ignorable=True)  # -1: do not check
        timestamp: i64  # milliseconds since 1970, or a special position
        max_num_offsets: i32 = field("0", default=1)  # v0 returns the base offsets of segments, newest first

    replica_id: i32  # -1: a consumer; -2: a debugging consumer
    isolation_level: i8 = field("2+", default=0)  # 0: read uncommitted; 1: read committed
    topics: list[ListOffsetsTopic]
    timeout_ms: i32 = field("10+", default=0, ignorable=True)  # for lookups in remote storage


class ListOffsetsResponse(Response, key=2, versions="0-11", flexible="6+"):
    """The offset found in each partition.

    Versions:
        1: one timestamp and offset instead of a list (KIP-79).
        2: throttle_time_ms (KIP-124).
        3: sent before the client is throttled, not after (KIP-219).
        4: leader_epoch of the record found (KIP-320).
        5: OFFSET_NOT_AVAILABLE while a new leader does not know its high watermark yet (KIP-207).
        6: flexible encoding (KIP-482).
        7: same layout; position -3 (KIP-734).
        8: same layout; position -4 (KIP-405).
        9: same layout; position -5 (KIP-1005).
        10: same layout; REQUEST_TIMED_OUT for lookups in remote storage (KIP-1075).
        11: same layout; position -6 (KIP-1023).
    """

    class ListOffsetsTopicResponse(Struct):
        """The offsets of one topic."""

        name: str
        partitions: list[ListOffsetsResponse.ListOffsetsPartitionResponse]

    class ListOffsetsPartitionResponse(Struct):
        """The offset found in one partition."""

        partition_index: i32
        error_code: i16 = 0
        old_style_offsets: list[i64] = field("0", default=[])
        timestamp: i64 = field("1+", default=-1)  # of the record found; -1 for positions without a record
        offset: i64 = field("1+", default=-1)  # -1: no record has such a timestamp
        leader_epoch: i32 = field("4+", default=-1)

    throttle_time_ms: i32 = field("2+", default=0, ignorable=True)
    topics: list[ListOffsetsTopicResponse]


class OffsetForLeaderEpochRequest(Request, key=23, versions="0-4", flexible="4+"):
    """Request the end offset of a leader epoch, with which a follower or consumer detects a diverged log (KIP-101).

    Versions:
        1: the response contains the epoch, which may be lower than the requested one (KIP-279).
        2: current_leader_epoch fences senders with old metadata; consumers may send the request too (KIP-320).
        3: replica_id; for a consumer, the offset is at most the high watermark (KIP-392).
        4: flexible encoding (KIP-482).
    """

    class OffsetForLeaderTopic(Struct):
        """The partitions of one topic."""

        topic: str
        partitions: list[OffsetForLeaderEpochRequest.OffsetForLeaderPartition]

    class OffsetForLeaderPartition(Struct):
        """The epoch to look up in one partition."""

        partition: i32
        current_leader_epoch: i32 = field("2+", default=-1, ignorable=True)  # -1: do not check
        leader_epoch: i32

    # broker id of a follower; -1: a consumer; -2: a debugging consumer
    replica_id: i32 = field("3+", default=-2, ignorable=True)
    topics: list[OffsetForLeaderTopic]


class OffsetForLeaderEpochResponse(Response, key=23, versions="0-4", flexible="4+"):
    """The greatest epoch not above the requested one, and the offset at which it ends.

    Versions:
        1: leader_epoch (KIP-279).
        2: throttle_time_ms (KIP-320).
        3: same layout; replica_id in the request (KIP-392).
        4: flexible encoding (KIP-482).
    """

    class OffsetForLeaderTopicResult(Struct):
        """The end offsets for one topic."""

        topic: str
        partitions: list[OffsetForLeaderEpochResponse.EpochEndOffset]

    class EpochEndOffset(Struct):
        """The end offset for one partition."""

        error_code: i16 = 0
        partition: i32
        leader_epoch: i32 = field("1+", default=-1, ignorable=True)  # -1: no such epoch is known
        end_offset: i64 = -1  # the first offset after the epoch; -1: unknown

    throttle_time_ms: i32 = field("2+", default=0, ignorable=True)
    topics: list[OffsetForLeaderTopicResult]
