"""DescribeLogDirs and AlterReplicaLogDirs: the log directories of partitions (KIP-113)."""

from __future__ import annotations

from parley.protocol.schema import Request, Response, Struct, field, i16, i32, i64


class AlterReplicaLogDirsRequest(Request, key=34, versions="0-2", flexible="2+"):
    """Move replicas of the receiving broker to other log directories, or choose the directory of new replicas
    (KIP-113).

    Versions:
        1: the client enforces throttle_time_ms itself (KIP-219).
        2: flexible encoding (KIP-482).
    """

    class AlterReplicaLogDir(Struct):
        """One directory, and the partitions to move to it."""

        path: str  # absolute, one of the broker's `log.dirs`
        topics: list[AlterReplicaLogDirsRequest.AlterReplicaLogDirTopic]

    class AlterReplicaLogDirTopic(Struct):
        """The partitions of one topic."""

        name: str
        partitions: list[i32]

    dirs: list[AlterReplicaLogDir]


class AlterReplicaLogDirsResponse(Response, key=34, versions="0-2", flexible="2+"):
    """The outcome for each partition; a move may still be in progress.

    Versions:
        1: sent before the client is throttled, not after (KIP-219).
        2: flexible encoding (KIP-482).
    """

    class AlterReplicaLogDirTopicResult(Struct):
        """The outcome for one topic."""

        topic_name: str
        partitions: list[AlterReplicaLogDirsResponse.AlterReplicaLogDirPartitionResult]

    class AlterReplicaLogDirPartitionResult(Struct):
        """The outcome for one partition."""

        partition_index: i32
        error_code: i16 = 0

    throttle_time_ms: i32 = 0
    results: list[AlterReplicaLogDirTopicResult]


class DescribeLogDirsRequest(Request, key=35, versions="0-5", flexible="2+"):
    """Request the contents of the broker's log directories (KIP-113).

    Versions:
        1: the client enforces throttle_time_ms itself (KIP-219).
        2: flexible encoding (KIP-482).
        3: the response has a top-level error (KIP-784).
        4: the response has the sizes of the volumes (KIP-827).
        5: the response says which directories accept no new replicas (KIP-1066).
    """

    class DescribableLogDirTopic(Struct):
        """The partitions of one topic."""

        topic: str
        partitions: list[i32]

    topics: list[DescribableLogDirTopic] | None  # None: all


class DescribeLogDirsResponse(Response, key=35, versions="0-5", flexible="2+"):
    """The log directories of the broker, and the size of each replica in them.

    Versions:
        1: sent before the client is throttled, not after (KIP-219).
        2: flexible encoding (KIP-482).
        3: error_code for the request as a whole (KIP-784).
        4: total_bytes and usable_bytes (KIP-827).
        5: is_cordoned (KIP-1066).
    """

    class DescribeLogDirsResult(Struct):
        """A log directory: its replicas, its space, and its error if it has failed."""

        error_code: i16 = 0
        log_dir: str
        topics: list[DescribeLogDirsResponse.DescribeLogDirsTopic]
        total_bytes: i64 = field("4+", default=-1, ignorable=True)  # the size of the directory's volume; -1: unknown
        usable_bytes: i64 = field("4+", default=-1, ignorable=True)  # free on that volume; -1: unknown
        is_cordoned: bool = field("5+", default=False, ignorable=True)  # accepts no new replicas

    class DescribeLogDirsTopic(Struct):
        """The partitions of one topic."""

        name: str
        partitions: list[DescribeLogDirsResponse.DescribeLogDirsPartition]

    class DescribeLogDirsPartition(Struct):
        """A replica in the directory, with its size and its lag."""

        partition_index: i32
        partition_size: i64  # of all its segments, in bytes
        offset_lag: i64  # the lag behind the high watermark; for a future replica, behind the current replica
        is_future_key: bool  # True for the copy that a move between directories creates

    throttle_time_ms: i32 = 0
    error_code: i16 = field("3+", default=0, ignorable=True)
    results: list[DescribeLogDirsResult]
