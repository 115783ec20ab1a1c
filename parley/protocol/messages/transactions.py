"""Transactions: the requests of producers to their coordinator, and of coordinators to partition leaders (KIP-98)."""

from __future__ import annotations

from parley.protocol.schema import Request, Response, Struct, field, i8, i16, i32, i64


class AddPartitionsToTxnRequest(Request, key=24, versions="0-5", flexible="3+"):
    """Add partitions to a transaction before writing to them. Brokers also send this to check that they were added.

    Clients use versions up to 3, with the ``v3_and_below`` fields; brokers use later versions.

    Versions:
        1: the client enforces throttle_time_ms itself (KIP-219).
        2: the sender understands PRODUCER_FENCED (KIP-588).
        3: flexible encoding (KIP-482).
        4: several transactions at once, and verify_only (KIP-890).
        5: the sender understands TRANSACTION_ABORTABLE (KIP-890).
    """

    class AddPartitionsToTxnTransaction(Struct):
        """One transaction and its partitions."""

        transactional_id: str
        producer_id: i64
        producer_epoch: i16
        verify_only: bool = False  # only check that the partitions were added
        topics: list[AddPartitionsToTxnRequest.AddPartitionsToTxnTopic]

    class AddPartitionsToTxnTopic(Struct):
        """The partitions of one topic."""

        name: str
        partitions: list[i32]

    transactions: list[AddPartitionsToTxnTransaction] = field("4+", default=[])
    v3_and_below_transactional_id: str = field("0-3", default="")
    v3_and_below_producer_id: i64 = field("0-3", default=0)
    v3_and_below_producer_epoch: i16 = field("0-3", default=0)
    v3_and_below_topics: list[AddPartitionsToTxnTopic] = field("0-3", default=[])


class AddPartitionsToTxnResponse(Response, key=24, versions="0-5", flexible="3+"):
    """The outcome for each partition.

    Versions:
        1: sent before the client is throttled, not after (KIP-219).
        2: PRODUCER_FENCED may occur (KIP-588).
        3: flexible encoding (KIP-482).
        4: results by transaction, and a top-level error (KIP-890).
        5: TRANSACTION_ABORTABLE may occur (KIP-890).
    """

    class AddPartitionsToTxnResult(Struct):
        """The outcome for one transaction."""

        transactional_id: str
        topic_results: list[AddPartitionsToTxnResponse.AddPartitionsToTxnTopicResult]

    class AddPartitionsToTxnTopicResult(Struct):
        """The outcome for one topic."""

        name: str
        results_by_partition: list[AddPartitionsToTxnResponse.AddPartitionsToTxnPartitionResult]

    class AddPartitionsToTxnPartitionResult(Struct):
        """The outcome for one partition."""

        partition_index: i32
        partition_error_code: i16

    throttle_time_ms: i32 = 0
    error_code: i16 = field("4+", default=0, ignorable=True)
    results_by_transaction: list[AddPartitionsToTxnResult] = field("4+", default=[])
    results_by_topic_v3_and_below: list[AddPartitionsToTxnTopicResult] = field("0-3", default=[])


class AddOffsetsToTxnRequest(Request, key=25, versions="0-4", flexible="3+"):
    """Add a group's offsets to the open transaction, before TxnOffsetCommit.

    Versions:
        1: the client enforces throttle_time_ms itself (KIP-219).
        2: the sender understands PRODUCER_FENCED (KIP-588).
        3: flexible encoding (KIP-482).
        4: the sender understands TRANSACTION_ABORTABLE (KIP-890).
    """

    transactional_id: str
    producer_id: i64
    producer_epoch: i16
    group_id: str


class AddOffsetsToTxnResponse(Response, key=25, versions="0-4", flexible="3+"):
    """The outcome of adding the group.

    Versions:
        1: sent before the client is throttled, not after (KIP-219).
        2: PRODUCER_FENCED may occur (KIP-588).
        3: flexible encoding (KIP-482).
        4: TRANSACTION_ABORTABLE may occur (KIP-890).
    """

    throttle_time_ms: i32 = 0
    error_code: i16 = 0


class EndTxnRequest(Request, key=26, versions="0-5", flexible="3+"):
    """Commit or abort the open transaction.

    Versions:
        1: the client enforces throttle_time_ms itself (KIP-219).
        2: the sender understands PRODUCER_FENCED (KIP-588).
        3: flexible encoding (KIP-482).
        4: the sender understands TRANSACTION_ABORTABLE (KIP-890).
        5: the producer receives a new epoch after each transaction, which fences late writes (KIP-890, part 2).
    """

    transactional_id: str
    producer_id: i64
    producer_epoch: i16
    committed: bool  # True: commit; False: abort


class EndTxnResponse(Response, key=26, versions="0-5", flexible="3+"):
    """The outcome. The decision is durable, but markers may not have been written yet.

    Versions:
        1: sent before the client is throttled, not after (KIP-219).
        2: PRODUCER_FENCED may occur (KIP-588).
        3: flexible encoding (KIP-482).
        4: TRANSACTION_ABORTABLE may occur (KIP-890).
        5: the id and epoch for the next transaction (KIP-890, part 2).
    """

    throttle_time_ms: i32 = 0
    error_code: i16 = 0
    producer_id: i64 = field("5+", default=-1, ignorable=True)  # -1: unchanged
    producer_epoch: i16 = field("5+", default=-1, ignorable=True)  # -1: unchanged


class WriteTxnMarkersRequest(Request, key=27, versions="0-2", flexible="1+"):
    """Write transaction markers to the logs; sent by the coordinator to the partition leaders.

    Versions:
        1: flexible encoding (KIP-482).
        2: transaction_version, so that the leader knows how strictly to check epochs (KIP-1228).
    """

    class WritableTxnMarker(Struct):
        """The end of one transaction."""

        producer_id: i64
        producer_epoch: i16
        transaction_result: bool  # True: commit; False: abort
        topics: list[WriteTxnMarkersRequest.WritableTxnMarkerTopic]
        coordinator_epoch: i32  # a leader rejects a marker with a lower epoch than an earlier marker
        transaction_version: i8 = field("2+", default=0, ignorable=True)  # 0 and 1: before KIP-890; 2: since KIP-890

    class WritableTxnMarkerTopic(Struct):
        """The partitions of one topic."""

        name: str
        partition_indexes: list[i32]

    markers: list[WritableTxnMarker]


class WriteTxnMarkersResponse(Response, key=27, versions="0-2", flexible="1+"):
    """The outcome for each marker.

    Versions:
        1: flexible encoding (KIP-482).
        2: same layout; transaction_version in the request (KIP-1228).
    """

    class WritableTxnMarkerResult(Struct):
        """The outcome for one producer."""

        producer_id: i64
        topics: list[WriteTxnMarkersResponse.WritableTxnMarkerTopicResult]

    class WritableTxnMarkerTopicResult(Struct):
        """The outcome for one topic."""

        name: str
        partitions: list[WriteTxnMarkersResponse.WritableTxnMarkerPartitionResult]

    class WritableTxnMarkerPartitionResult(Struct):
        """The outcome for one partition."""

        partition_index: i32
        error_code: i16 = 0

    markers: list[WritableTxnMarkerResult]


class TxnOffsetCommitRequest(Request, key=28, versions="0-5", flexible="3+"):
    """Commit the offsets of a group; they take effect only if the transaction commits.

    Versions:
        1: the client enforces throttle_time_ms itself (KIP-219).
        2: committed_leader_epoch, so that a reader can notice lost records (KIP-320).
        3: the member's identity, to fence members of old generations (KIP-447); flexible encoding (KIP-482).
        4: the sender understands TRANSACTION_ABORTABLE (KIP-890).
        5: implicitly adds the group to the transaction, without AddOffsetsToTxn (KIP-890, part 2).
    """

    class TxnOffsetCommitRequestTopic(Struct):
        """The offsets of one topic."""

        name: str
        partitions: list[TxnOffsetCommitRequest.TxnOffsetCommitRequestPartition]

    class TxnOffsetCommitRequestPartition(Struct):
        """The committed offset of one partition."""

        partition_index: i32
        committed_offset: i64  # of the next record to read
        committed_leader_epoch: i32 = field("2+", default=-1, ignorable=True)  # of the last record read; -1: unknown
        committed_metadata: str | None

    transactional_id: str
    group_id: str
    producer_id: i64
    producer_epoch: i16
    generation_id: i32 = field("3+", default=-1)  # -1: the sender is not a member
    member_id: str = field("3+", default="")  # empty: the sender is not a member
    group_instance_id: str | None = field("3+", default=None)  # None: a dynamic member
    topics: list[TxnOffsetCommitRequestTopic]


class TxnOffsetCommitResponse(Response, key=28, versions="0-5", flexible="3+"):
    """The outcome for each partition's offset.

    Versions:
        1: sent before the client is throttled, not after (KIP-219).
        2: same layout; leader epochs in the request (KIP-320).
        3: ILLEGAL_GENERATION, FENCED_INSTANCE_ID, UNKNOWN_MEMBER_ID may occur (KIP-447); flexible encoding (KIP-482).
        4: TRANSACTION_ABORTABLE may occur (KIP-890).
        5: same layout; implicit addition to the transaction (KIP-890, part 2).
    """

    class TxnOffsetCommitResponseTopic(Struct):
        """The outcome for one topic."""

        name: str
        partitions: list[TxnOffsetCommitResponse.TxnOffsetCommitResponsePartition]

    class TxnOffsetCommitResponsePartition(Struct):
        """The outcome for one partition."""

        partition_index: i32
        error_code: i16 = 0

    throttle_time_ms: i32 = 0
    topics: list[TxnOffsetCommitResponseTopic]


class DescribeTransactionsRequest(Request, key=65, versions="0", flexible="0+"):
    """Request the state of transactional ids from their coordinator (KIP-664)."""

    transactional_ids: list[str]


class DescribeTransactionsResponse(Response, key=65, versions="0", flexible="0+"):
    """The state of each transactional id."""

    class TransactionState(Struct):
        """The state of a transactional id, and the partitions of its open transaction."""

        error_code: i16 = 0
        transactional_id: str
        transaction_state: str  # Empty, Ongoing, PrepareCommit, PrepareAbort, CompleteCommit, CompleteAbort, ...
        transaction_timeout_ms: i32
        transaction_start_time_ms: i64  # milliseconds since 1970; -1: no transaction is open
        producer_id: i64
        producer_epoch: i16
        topics: list[DescribeTransactionsResponse.TopicData]

    class TopicData(Struct):
        """The partitions of one topic in the transaction."""

        topic: str
        partitions: list[i32]

    throttle_time_ms: i32 = 0
    transaction_states: list[TransactionState]


class ListTransactionsRequest(Request, key=66, versions="0-2", flexible="0+"):
    """Request the transactional ids that a broker coordinates (KIP-664).

    Versions:
        1: duration_filter, to find hanging transactions (KIP-994).
        2: transactional_id_pattern (KIP-1152).
    """

    state_filters: list[str]  # empty: all states
    producer_id_filters: list[i64]  # empty: all producers
    duration_filter: i64 = field("1+", default=-1)  # the minimum time for which they have been open, in ms; -1: all
    transactional_id_pattern: str | None = field("2+", default=None)  # a regular expression; None: all


class ListTransactionsResponse(Response, key=66, versions="0-2", flexible="0+"):
    """The transactional ids that this broker coordinates.

    Versions:
        1: same layout; filter by duration in the request (KIP-994).
        2: INVALID_REGULAR_EXPRESSION may occur (KIP-1152).
    """

    class TransactionState(Struct):
        """A transactional id, and the state of its transaction."""

        transactional_id: str
        producer_id: i64
        transaction_state: str

    throttle_time_ms: i32 = 0
    error_code: i16 = 0
    unknown_state_filters: list[str]  # names of requested states that do not exist
    transaction_states: list[TransactionState]
