"""InitProducerId and DescribeProducers: ids for idempotent producers, and the producers active in a partition."""

from __future__ import annotations

from parley.protocol.schema import Request, Response, Struct, field, i16, i32, i64


class InitProducerIdRequest(Request, key=22, versions="0-6", flexible="2+"):
    """Request a producer id and epoch. For a transactional id, fences older producers and aborts their transactions
    (KIP-98).

    Versions:
        1: the client enforces throttle_time_ms itself (KIP-219).
        2: flexible encoding (KIP-482).
        3: a producer may request a higher epoch of its id, to continue after an error (KIP-360).
        4: the sender understands PRODUCER_FENCED (KIP-588).
        5: the sender understands TRANSACTION_ABORTABLE (KIP-890).
        6: two-phase commit with an external coordinator (KIP-939).
    """

    transactional_id: str | None  # None: idempotent only
    transaction_timeout_ms: i32  # the coordinator aborts a transaction that has been open for longer
    producer_id: i64 = field("3+", default=-1)  # -1: a new id
    producer_epoch: i16 = field("3+", default=-1)  # -1: a new epoch
    # the transaction takes part in a two-phase commit and never times out
    enable2_pc: bool = field("6+", default=False)
    keep_prepared_txn: bool = field("6+", default=False)  # keep a prepared transaction open, to end it later


class InitProducerIdResponse(Response, key=22, versions="0-6", flexible="2+"):
    """The producer id and epoch for the producer's batches.

    Versions:
        1: sent before the client is throttled, not after (KIP-219).
        2: flexible encoding (KIP-482).
        3: same layout; a higher epoch of the same id (KIP-360).
        4: PRODUCER_FENCED may occur (KIP-588).
        5: TRANSACTION_ABORTABLE may occur (KIP-890).
        6: the transaction that was kept open (KIP-939).
    """

    throttle_time_ms: i32 = field(default=0, ignorable=True)
    error_code: i16 = 0
    producer_id: i64 = -1
    producer_epoch: i16
    ongoing_txn_producer_id: i64 = field("6+", default=-1)  # -1: no transaction was kept open
    ongoing_txn_producer_epoch: i16 = field("6+", default=-1)


class DescribeProducersRequest(Request, key=61, versions="0", flexible="0+"):
    """Request the active producers of partitions from their leaders (KIP-664)."""

    class TopicRequest(Struct):
        """The partitions of one topic."""

        name: str
        partition_indexes: list[i32]

    topics: list[TopicRequest]


class DescribeProducersResponse(Response, key=61, versions="0", flexible="0+"):
    """The active producers of each partition."""

    class TopicResponse(Struct):
        """The producers of one topic."""

        name: str
        partitions: list[DescribeProducersResponse.PartitionResponse]

    class PartitionResponse(Struct):
        """The producers of one partition."""

        partition_index: i32
        error_code: i16 = 0
        error_message: str | None = None
        active_producers: list[DescribeProducersResponse.ProducerState]

    class ProducerState(Struct):
        """A producer that the partition's leader knows."""

        producer_id: i64
        producer_epoch: i32
        last_sequence: i32 = -1  # -1: none yet
        last_timestamp: i64 = -1  # of its last batch, in milliseconds since 1970; -1: none yet
        coordinator_epoch: i32  # of the last transaction marker
        current_txn_start_offset: i64 = -1  # -1: no open transaction here

    throttle_time_ms: i32 = 0
    topics: list[TopicResponse]
