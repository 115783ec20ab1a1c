"""The records of ``__transaction_state``. Keys are transactional ids, values are ``Transaction``s, or null to delete
the id.

The formats are Kafka's, so that Kafka's tools can read the topic. Values are written in version 1, and read in versions
0 and 1. Kafka does not store the last epoch of a producer. Parley adds it in a tag that Kafka's readers skip (KIP-915),
so that the next coordinator recognizes a retry, too.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

from parley.broker.coordinators.transactions.transaction import (
    EPOCH_MAX,
    PREPARED,
    Transaction,
    TransactionState,
    by_topic,
)
from parley.protocol.codec import decode_stored, encode_stored
from parley.protocol.errors import MalformedMessage
from parley.protocol.messages.stored import TransactionLogKey, TransactionLogValue
from parley.protocol.sentinels import NO_EPOCH, NO_PRODUCER_ID
from parley.protocol.topic_partition import TopicPartition

KEY_VERSION: Final = 0
VALUE_VERSION: Final = 1

LAST_EPOCH_TAG: Final = 10_000
"""The tag of ``Transaction.last_epoch``: two bytes, big-endian. Kafka numbers its own tags from 0 upwards."""

STATUS: Final[Mapping[TransactionState, int]] = {
    TransactionState.EMPTY: 0,
    TransactionState.ONGOING: 1,
    TransactionState.PREPARE_COMMIT: 2,
    TransactionState.PREPARE_ABORT: 3,
    TransactionState.COMPLETE_COMMIT: 4,
    TransactionState.COMPLETE_ABORT: 5,
}
"""The stored number of each state. Kafka numbers DEAD and PREPARE_EPOCH_FENCE, too, but never stores them."""

_STATE_OF: Final = {status: state for state, status in STATUS.items()}

_WITH_PARTITIONS: Final = PREPARED | {TransactionState.ONGOING}


def transaction_record(transactional_id: str, transaction: Transaction) -> tuple[bytes, bytes]:
    """Return the record that stores a transactional id."""
    value = TransactionLogValue(
        producer_id=transaction.producer_id,
        previous_producer_id=transaction.previous_producer_id,
        next_producer_id=transaction.next_producer_id,
        producer_epoch=transaction.producer_epoch,
        transaction_timeout_ms=transaction.timeout_ms,
        transaction_status=STATUS[transaction.state],
        transaction_partitions=None if transaction.state is TransactionState.EMPTY else _topics(transaction.partitions),
        transaction_last_update_timestamp_ms=transaction.updated_ms,
        transaction_start_timestamp_ms=transaction.started_ms,
        client_transaction_version=transaction.version,
    )
    if transaction.last_epoch != NO_EPOCH:
        value.unknown_tags = ((LAST_EPOCH_TAG, transaction.last_epoch.to_bytes(2, "big")),)
    return _key(transactional_id), encode_stored(value, VALUE_VERSION)


def transaction_tombstone(transactional_id: str) -> tuple[bytes, None]:
    """Return the record that deletes a transactional id."""
    return _key(transactional_id), None


def _key(transactional_id: str) -> bytes:
    return encode_stored(TransactionLogKey(transactional_id=transactional_id), KEY_VERSION)


def _topics(partitions: Iterable[TopicPartition]) -> list[TransactionLogValue.PartitionsSchema]:
    return [
        TransactionLogValue.PartitionsSchema(topic=topic, partition_ids=indexes)
        for topic, indexes in by_topic(partitions).items()
    ]


def read_key(key: bytes | None) -> str:
    """Decode the transactional id from a key. Raises MalformedMessage if it cannot be decoded."""
    if key is None:
        raise MalformedMessage("a record of __transaction_state has no key")
    return decode_stored(TransactionLogKey, key)[0].transactional_id


def read_value(value: bytes) -> Transaction:
    """Decode the state of a transactional id from a value. Raises MalformedMessage if the value cannot be decoded, or
    contains numbers that no coordinator writes."""
    stored, _ = decode_stored(TransactionLogValue, value)
    state = _STATE_OF.get(stored.transaction_status)
    if state is None:
        raise MalformedMessage(f"unknown transaction status {stored.transaction_status}")
    if stored.producer_id < 0 or not 0 <= stored.producer_epoch <= EPOCH_MAX:
        raise MalformedMessage(f"invalid producer id {stored.producer_id} or epoch {stored.producer_epoch}")
    partitions = frozenset(
        (topic.topic, index) for topic in stored.transaction_partitions or () for index in topic.partition_ids
    )
    if partitions and state not in _WITH_PARTITIONS:
        raise MalformedMessage(f"a transactional id in the state {state.value} cannot have partitions")
    return Transaction(
        producer_id=stored.producer_id,
        producer_epoch=stored.producer_epoch,
        state=state,
        timeout_ms=stored.transaction_timeout_ms,
        updated_ms=stored.transaction_last_update_timestamp_ms,
        started_ms=stored.transaction_start_timestamp_ms,
        partitions=partitions,
        last_epoch=_last_epoch(stored),
        previous_producer_id=max(NO_PRODUCER_ID, stored.previous_producer_id),
        next_producer_id=max(NO_PRODUCER_ID, stored.next_producer_id),
        version=stored.client_transaction_version,
    )


def _last_epoch(stored: TransactionLogValue) -> int:
    raw = dict(stored.unknown_tags).get(LAST_EPOCH_TAG, b"")
    epoch = int.from_bytes(raw, "big") if len(raw) == 2 else NO_EPOCH
    return epoch if epoch <= EPOCH_MAX else NO_EPOCH
