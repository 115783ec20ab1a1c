"""The decisions about the partitions of a transaction: adding them, and verifying that they were added (KIP-890)."""

from __future__ import annotations

from typing import Final

from parley.broker.coordinators.decision import Decision, ProducerIdentity
from parley.broker.coordinators.shard import RECORD_BYTES
from parley.broker.coordinators.transactions.shard import TransactionShard
from parley.broker.coordinators.transactions.transaction import (
    AT_REST,
    EPOCH_MAX,
    EPOCH_PER_TRANSACTION,
    Transaction,
    TransactionState,
)
from parley.broker.coordinators.transactions.transaction_records import transaction_record
from parley.protocol.errors import ErrorCode, KafkaError
from parley.protocol.topic_partition import TopicPartition

RECORD_RESERVE_BYTES: Final = RECORD_BYTES + 64
"""The space, in bytes, that the record of an open transaction must leave in the largest batch. The record that ends
the transaction contains more fields: without this reserve, a transaction could begin and never end."""


def add(
    shard: TransactionShard,
    now_ms: int,
    *,
    transactional_id: str,
    producer: ProducerIdentity,
    partitions: frozenset[TopicPartition],
    version: int,
) -> Decision[None]:
    """Add partitions to the producer's transaction, and open the transaction if it is not open. ``version`` is the
    client's transaction version.

    Raises INVALID_PRODUCER_ID_MAPPING, PRODUCER_FENCED, CONCURRENT_TRANSACTIONS while the previous transaction
    completes, POLICY_VIOLATION if the transaction would have too many partitions, or MESSAGE_TOO_LARGE if the topic
    does not even accept the record of a transaction with one partition.
    """
    known = _of_producer(shard, transactional_id, producer)
    if known.state is TransactionState.ONGOING and partitions <= known.partitions and version >= EPOCH_PER_TRANSACTION:
        return Decision(None)
    # Before version 2, a superseded coordinator cannot distinguish this transaction from an earlier one. Store the
    # record again: only the current coordinator can append.
    opened = known.entered(
        TransactionState.ONGOING,
        now_ms,
        partitions=known.partitions | partitions,
        started_ms=now_ms if known.state in AT_REST else known.started_ms,
        version=version,
    )
    key, value = transaction_record(transactional_id, opened)
    if not shard.accepts(len(key) + len(value) + RECORD_RESERVE_BYTES):
        limit = f"its record would exceed max.message.bytes={shard.batch_bytes_max()} of __transaction_state."
        if len(opened.partitions) == 1:
            raise KafkaError(ErrorCode.MESSAGE_TOO_LARGE, f"The transaction cannot be stored: {limit}")
        raise KafkaError(ErrorCode.POLICY_VIOLATION, f"The transaction has too many partitions: {limit}")
    return Decision(None, [(key, value)])


def verify(
    shard: TransactionShard, *, transactional_id: str, producer: ProducerIdentity, partitions: frozenset[TopicPartition]
) -> dict[TopicPartition, ErrorCode]:
    """Return NONE for each partition of the producer's open transaction, and TRANSACTION_ABORTABLE for any other.

    Raises INVALID_PRODUCER_ID_MAPPING, PRODUCER_FENCED, or CONCURRENT_TRANSACTIONS while the transaction completes.
    """
    known = _of_producer(shard, transactional_id, producer)
    return {
        each: ErrorCode.NONE if each in known.partitions else ErrorCode.TRANSACTION_ABORTABLE for each in partitions
    }


def _of_producer(shard: TransactionShard, transactional_id: str, producer: ProducerIdentity) -> Transaction:
    known = shard.transactions.get(transactional_id)
    if known is not None and known.is_awaited_by(producer):
        raise KafkaError(ErrorCode.CONCURRENT_TRANSACTIONS)
    if known is None or known.producer_id != producer.producer_id:
        raise KafkaError(ErrorCode.INVALID_PRODUCER_ID_MAPPING)
    if known.producer_epoch != producer.producer_epoch or known.producer_epoch == EPOCH_MAX:
        raise KafkaError(ErrorCode.PRODUCER_FENCED)
    return known
