"""A producer's requests to the coordinator: for its id, and for the transactions of its transactional id (KIP-98).

Uses the versions before the second part of KIP-890, which every broker since 0.11 supports.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final

from parley.pipeline.client.fetching import TopicPartition
from parley.pipeline.client.group_offsets import Committed
from parley.pipeline.client.sending import ProducerId
from parley.protocol.client import Client
from parley.protocol.errors import ErrorCode, KafkaError, check_code
from parley.protocol.messages.producers import InitProducerIdRequest
from parley.protocol.messages.transactions import (
    AddOffsetsToTxnRequest,
    AddPartitionsToTxnRequest,
    EndTxnRequest,
    TxnOffsetCommitRequest,
)

_TRANSACTION: Final = 1
"""The key type with which ``Client.coordinator`` finds the coordinator of a transactional id."""
_CURRENT_ID_VERSION: Final = 3
_ADD_VERSION_MAX: Final = 3
_ADD_OFFSETS_VERSION_MAX: Final = 3
_COMMIT_OFFSETS_VERSION_MAX: Final = 4
_END_VERSION_MAX: Final = 4


async def producer_id(
    client: Client, transactional_id: str | None, timeout_ms: int, current: ProducerId | None = None
) -> ProducerId:
    """Get a producer id. With a transactional id, this fences older producers and aborts their open transaction.

    ``timeout_ms`` is the transaction timeout. ``current`` is the id that the caller has used so far. With it, raises
    KafkaError(PRODUCER_FENCED) or KafkaError(INVALID_PRODUCER_EPOCH) if another producer has fenced the caller
    (KIP-360; brokers before 2.5 do not check this).
    """
    node = None if transactional_id is None else await client.coordinator(transactional_id, _TRANSACTION)
    request = InitProducerIdRequest(transactional_id=transactional_id, transaction_timeout_ms=timeout_ms)
    if current is not None and await client.version_for(InitProducerIdRequest, node=node) >= _CURRENT_ID_VERSION:
        request.producer_id, request.producer_epoch = current
    answer = await client.send(request, node=node)
    check_code(answer.error_code, f"no producer id for {transactional_id or 'an idempotent producer'}")
    return ProducerId(answer.producer_id, answer.producer_epoch)


async def add_partitions(
    client: Client, transactional_id: str, producer: ProducerId, partitions: Iterable[TopicPartition]
) -> None:
    """Add partitions to the transaction, before anything is written to them. The first call opens the transaction.
    Raises KafkaError.
    """
    topics: dict[str, list[int]] = {}
    for topic, partition in partitions:
        topics.setdefault(topic, []).append(partition)
    node = await client.coordinator(transactional_id, _TRANSACTION)
    version = min(await client.version_for(AddPartitionsToTxnRequest, node=node), _ADD_VERSION_MAX)
    request = AddPartitionsToTxnRequest(
        v3_and_below_transactional_id=transactional_id,
        v3_and_below_producer_id=producer.producer_id,
        v3_and_below_producer_epoch=producer.epoch,
        v3_and_below_topics=[
            AddPartitionsToTxnRequest.AddPartitionsToTxnTopic(name=name, partitions=ids) for name, ids in topics.items()
        ],
    )
    answer = await client.send(request, node=node, version=version)
    codes = {
        one.partition_error_code for topic in answer.results_by_topic_v3_and_below for one in topic.results_by_partition
    }
    # If a partition is refused, the others get OPERATION_NOT_ATTEMPTED, which explains nothing.
    for code in sorted(codes - {ErrorCode.NONE}, key=lambda code: code == ErrorCode.OPERATION_NOT_ATTEMPTED):
        raise KafkaError(ErrorCode(code), f"adding partitions to the transaction of {transactional_id!r}")


async def add_group(client: Client, transactional_id: str, producer: ProducerId, group: str) -> None:
    """Add a group to the transaction, and open the transaction if necessary. Call this before ``commit_offsets``.
    Raises KafkaError.
    """
    node = await client.coordinator(transactional_id, _TRANSACTION)
    version = min(await client.version_for(AddOffsetsToTxnRequest, node=node), _ADD_OFFSETS_VERSION_MAX)
    request = AddOffsetsToTxnRequest(
        transactional_id=transactional_id,
        producer_id=producer.producer_id,
        producer_epoch=producer.epoch,
        group_id=group,
    )
    response = await client.send(request, node=node, version=version)
    check_code(response.error_code, f"adding group {group!r} to the transaction of {transactional_id!r}")


async def commit_offsets(
    client: Client,
    transactional_id: str,
    producer: ProducerId,
    group: str,
    offsets: Mapping[TopicPartition, Committed],
) -> None:
    """Commit offsets of a group without members. They take effect when the transaction is committed.

    Raises KafkaError.
    """
    kind = TxnOffsetCommitRequest
    topics: dict[str, Any] = {}
    for place, one in offsets.items():
        topic = topics.setdefault(place.topic, kind.TxnOffsetCommitRequestTopic(name=place.topic, partitions=[]))
        topic.partitions.append(
            kind.TxnOffsetCommitRequestPartition(
                partition_index=place.partition, committed_offset=one.offset, committed_metadata=one.metadata
            )
        )
    node = await client.coordinator(group)
    version = min(await client.version_for(kind, node=node), _COMMIT_OFFSETS_VERSION_MAX)
    request = kind(
        transactional_id=transactional_id,
        group_id=group,
        producer_id=producer.producer_id,
        producer_epoch=producer.epoch,
        topics=list(topics.values()),
    )
    response = await client.send(request, node=node, version=version)
    for found in response.topics:
        for one in found.partitions:
            check_code(one.error_code, f"committing offsets of group {group!r} in a transaction")


async def end(client: Client, transactional_id: str, producer: ProducerId, *, committed: bool) -> None:
    """Commit or abort the open transaction. If there is no response, call this again. Raises KafkaError."""
    node = await client.coordinator(transactional_id, _TRANSACTION)
    version = min(await client.version_for(EndTxnRequest, node=node), _END_VERSION_MAX)
    request = EndTxnRequest(
        transactional_id=transactional_id,
        producer_id=producer.producer_id,
        producer_epoch=producer.epoch,
        committed=committed,
    )
    answer = await client.send(request, node=node, version=version)
    what = "commit" if committed else "abort"
    check_code(answer.error_code, f"cannot {what} the transaction of {transactional_id!r}")
