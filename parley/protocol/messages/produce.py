"""Produce: appends record batches to partitions."""

from __future__ import annotations

from parley.protocol.schema import ZERO, ZERO_UUID, Records, Request, Response, Struct, field, i16, i32, i64
from parley.protocol.uuids import UUID


class ProduceRequest(Request, key=0, versions="0-13", flexible="9+"):
    """Append record batches to partitions whose leader is the receiving broker.

    With ``acks=0`` the broker sends no response, not even for an error.

    Versions:
        1: the response says how long the client was throttled (KIP-13).
        2: message sets may be of format v1, with timestamps (KIP-32).
        3: transactional_id, and batches of format v2 only (KIP-98).
        4: the sender understands KAFKA_STORAGE_ERROR, a failed log directory (KIP-112).
        5: the response contains the log start offset, to distinguish expired producer state from lost records.
        6: the client enforces throttle_time_ms itself; the broker responds immediately (KIP-219).
        7: batches may be compressed with zstd (KIP-110).
        8: the response lists the records that made a batch invalid (KIP-467).
        9: flexible encoding (KIP-482).
        10: the response may contain the new leader (KIP-951).
        11: the sender understands TRANSACTION_ABORTABLE (KIP-890).
        12: a transactional write implicitly adds its partition to the transaction (KIP-890, part 2).
        13: topics by id instead of name (KIP-516).
    """

    class TopicProduceData(Struct):
        """The batches for one topic."""

        name: str = field("0-12", default="", ignorable=True)
        topic_id: UUID = field("13+", default=ZERO_UUID, ignorable=True)
        partition_data: list[ProduceRequest.PartitionProduceData]

    class PartitionProduceData(Struct):
        """The batches for one partition."""

        index: i32
        records: Records  # v0-2: a message set of format 0 or 1; later: one batch of format 2

    transactional_id: str | None = field("3+", default=None)
    acks: i16  # 0: no response; 1: respond when the leader has the records; -1: when every in-sync replica has them
    timeout_ms: i32  # how long the leader may wait for the replicas
    topic_data: list[TopicProduceData]


class ProduceResponse(Response, key=0, versions="0-13", flexible="9+"):
    """The outcome for each partition's batches.

    Versions:
        1: throttle_time_ms (KIP-13).
        2: log_append_time_ms (KIP-32).
        3: same layout; batches of format v2 (KIP-98).
        4: KAFKA_STORAGE_ERROR may occur (KIP-112).
        5: log_start_offset, so that an idempotent producer can distinguish forgotten state from lost records.
        6: sent before the client is throttled, not after (KIP-219).
        7: same layout; zstd (KIP-110).
        8: record_errors and error_message (KIP-467).
        9: flexible encoding (KIP-482).
        10: current_leader and node_endpoints, which save a metadata request after a change of leader (KIP-951).
        11: TRANSACTION_ABORTABLE may occur (KIP-890).
        12: same layout; implicit addition to transactions (KIP-890, part 2).
        13: topics by id; UNKNOWN_TOPIC_ID may occur (KIP-516).
    """

    class TopicProduceResponse(Struct):
        """The outcome for one topic."""

        name: str = field("0-12", default="", ignorable=True)
        topic_id: UUID = field("13+", default=ZERO_UUID, ignorable=True)
        partition_responses: list[ProduceResponse.PartitionProduceResponse]

    class PartitionProduceResponse(Struct):
        """The outcome for one partition."""

        index: i32
        error_code: i16 = 0
        base_offset: i64  # the offset assigned to the first record; -1 on error
        # -1 unless the topic stamps records with the append time
        log_append_time_ms: i64 = field("2+", default=-1, ignorable=True)
        log_start_offset: i64 = field("5+", default=-1, ignorable=True)
        record_errors: list[ProduceResponse.BatchIndexAndErrorMessage] = field("8+", default=[], ignorable=True)
        error_message: str | None = field("8+", default=None, ignorable=True)
        current_leader: ProduceResponse.LeaderIdAndEpoch = field("10+", tag=0, tagged="10+", default=ZERO)

    class BatchIndexAndErrorMessage(Struct):
        """A record that made the whole batch invalid."""

        batch_index: i32  # the index of the record in its batch
        batch_index_error_message: str | None = None

    class LeaderIdAndEpoch(Struct):
        """The current leader of the partition; sent with NOT_LEADER_OR_FOLLOWER or FENCED_LEADER_EPOCH."""

        leader_id: i32 = -1
        leader_epoch: i32 = -1

    class NodeEndpoint(Struct):
        """The address of a broker that is named as current leader."""

        node_id: i32
        host: str
        port: i32
        rack: str | None = None

    responses: list[TopicProduceResponse]
    throttle_time_ms: i32 = field("1+", default=0, ignorable=True)
    node_endpoints: list[NodeEndpoint] = field("10+", tag=0, tagged="10+", default=[])
