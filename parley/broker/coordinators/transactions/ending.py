"""The decisions that end transactions: EndTxn, the completion after all markers, and aborts by the coordinator.

A transaction ends in two stored steps. PREPARE_COMMIT or PREPARE_ABORT decides the outcome, which is then kept through
any failure. COMPLETE_COMMIT or COMPLETE_ABORT follows when every partition has its marker. The client gets its response
after the first step. ``docs/transactions.md`` has the table of responses for transaction version 2.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Final

from parley.broker.coordinators.decision import Decision, KeyValue, ProducerIdentity, Timer
from parley.broker.coordinators.shard import RECORD_BYTES
from parley.broker.coordinators.transactions.shard import TransactionShard
from parley.broker.coordinators.transactions.transaction import (
    EPOCH_MAX,
    EPOCH_PER_TRANSACTION,
    FIRST_VERSION,
    NO_TIMEOUT_MS,
    PREPARED,
    Transaction,
    TransactionState,
)
from parley.broker.coordinators.transactions.transaction_records import transaction_record
from parley.protocol.errors import ErrorCode, KafkaError
from parley.protocol.sentinels import NO_PRODUCER_ID

_log = logging.getLogger(__name__)

OVERDUE: Final = "overdue"
"""The key of the timer that looks for overdue transactions."""

Ended = ProducerIdentity | None
"""The identity for the producer's next transaction, or None: the decision needs a new producer id."""

_COMMITS: Final = frozenset({TransactionState.PREPARE_COMMIT, TransactionState.COMPLETE_COMMIT})
_ABORTS: Final = frozenset({TransactionState.PREPARE_ABORT, TransactionState.COMPLETE_ABORT})


def end(
    shard: TransactionShard,
    now_ms: int,
    *,
    transactional_id: str,
    producer: ProducerIdentity,
    committed: bool,
    version: int,
    new_id: int | None,
) -> Decision[Ended]:
    """Decide about EndTxn from a client of transaction version ``version``.

    ``new_id`` is an unused producer id; without it, the decision may be None, which asks the caller to submit the event
    again with an id.

    Raises INVALID_PRODUCER_ID_MAPPING, PRODUCER_FENCED, CONCURRENT_TRANSACTIONS while the markers of this transaction
    or of the previous one are written, and INVALID_TXN_STATE if no transaction is open or the other outcome is decided.
    """
    known = shard.transactions.get(transactional_id)
    if known is None:
        raise KafkaError(ErrorCode.INVALID_PRODUCER_ID_MAPPING)
    if version < EPOCH_PER_TRANSACTION:
        return _end_keeping_epoch(shard, now_ms, transactional_id, known, producer, committed)
    if known.is_awaited_by(producer):
        raise KafkaError(ErrorCode.CONCURRENT_TRANSACTIONS)
    after_rotation = (
        producer == (known.previous_producer_id, EPOCH_MAX - 1)
        and known.producer_epoch == 0
        and known.producer_id != producer.producer_id
    )
    if producer.producer_id != known.producer_id and not after_rotation:
        raise KafkaError(ErrorCode.INVALID_PRODUCER_ID_MAPPING)
    is_retry = after_rotation or producer.producer_epoch + 1 == known.producer_epoch
    if is_retry and known.state in _COMMITS | _ABORTS:
        return Decision(_repeated(known, committed))
    if producer != known.identity or known.producer_epoch == EPOCH_MAX:
        raise KafkaError(ErrorCode.PRODUCER_FENCED)
    if committed and known.state is not TransactionState.ONGOING:
        raise KafkaError(ErrorCode.INVALID_TXN_STATE)
    if known.is_exhausted and new_id is None:
        return Decision(None)
    next_id = NO_PRODUCER_ID if new_id is None or not known.is_exhausted else new_id
    prepared = _with_next_epoch(known, now_ms, committed=committed, version=version, next_producer_id=next_id)
    return _decided(shard, now_ms, transactional_id, prepared)


def _end_keeping_epoch(
    shard: TransactionShard,
    now_ms: int,
    transactional_id: str,
    known: Transaction,
    producer: ProducerIdentity,
    committed: bool,
) -> Decision[Ended]:
    """Decide about EndTxn from a client whose epoch stays the same from transaction to transaction."""
    if producer.producer_id != known.producer_id:
        raise KafkaError(ErrorCode.INVALID_PRODUCER_ID_MAPPING)
    if producer != known.identity:
        raise KafkaError(ErrorCode.PRODUCER_FENCED)
    if known.state is not TransactionState.ONGOING:
        # A coordinator that was superseded may not know the transaction, only the one before with the same epoch: the
        # outcome is stored again, since a reply that waits for an append proves that this is still the coordinator.
        return Decision(_repeated(known, committed), [transaction_record(transactional_id, known)])
    prepared = known.entered(_outcome(committed), now_ms, version=FIRST_VERSION)
    return _decided(shard, now_ms, transactional_id, prepared)


def _repeated(known: Transaction, committed: bool) -> ProducerIdentity:
    """Return the result of the first EndTxn for a repeated one.

    Raises CONCURRENT_TRANSACTIONS, INVALID_TXN_STATE, and PRODUCER_FENCED if the coordinator has aborted the
    transaction under the last epoch, which no producer may have.
    """
    if known.state not in (_COMMITS if committed else _ABORTS):
        raise KafkaError(ErrorCode.INVALID_TXN_STATE)
    if known.state in PREPARED:
        raise KafkaError(ErrorCode.CONCURRENT_TRANSACTIONS)
    if known.producer_epoch == EPOCH_MAX:
        raise KafkaError(ErrorCode.PRODUCER_FENCED)
    return known.identity


def _outcome(committed: bool) -> TransactionState:
    return TransactionState.PREPARE_COMMIT if committed else TransactionState.PREPARE_ABORT


def _with_next_epoch(
    known: Transaction, now_ms: int, *, committed: bool, version: int, next_producer_id: int = NO_PRODUCER_ID
) -> Transaction:
    """Return the prepared transaction under its next epoch, which keeps out late writes of the ended one (KIP-890)."""
    return known.entered(
        _outcome(committed),
        now_ms,
        producer_epoch=min(EPOCH_MAX, known.producer_epoch + 1),
        last_epoch=known.producer_epoch,
        next_producer_id=next_producer_id,
        started_ms=known.started_ms if known.state is TransactionState.ONGOING else now_ms,
        version=version,
    )


def _decided(
    shard: TransactionShard, now_ms: int, transactional_id: str, prepared: Transaction
) -> Decision[ProducerIdentity | None]:
    """Store the outcome. A transaction without partitions needs no markers: it completes in the same batch."""
    records = [transaction_record(transactional_id, prepared)]
    if not prepared.partitions:
        complete = completed(prepared, now_ms)
        return Decision(complete.identity, [*records, transaction_record(transactional_id, complete)])
    return Decision(prepared.next_identity, records, then=send_markers(shard, {transactional_id: prepared}))


def send_markers(shard: TransactionShard, prepared: Mapping[str, Transaction]) -> Callable[[], None]:
    """Return the effect of a decision that has prepared these transactions: their markers are written."""

    def send() -> None:
        for transactional_id, transaction in prepared.items():
            shard.markers.send(shard, transactional_id, transaction)

    return send


# --- Completion ---


def completed(prepared: Transaction, now_ms: int) -> Transaction:
    """Return a prepared transaction as it is when every partition has its marker."""
    producer = prepared.next_identity
    return prepared.entered(
        TransactionState.COMPLETE_COMMIT if prepared.is_committing else TransactionState.COMPLETE_ABORT,
        now_ms,
        partitions=frozenset(),
        producer_id=producer.producer_id,
        producer_epoch=producer.producer_epoch,
        next_producer_id=NO_PRODUCER_ID,
    )


def complete(
    shard: TransactionShard, now_ms: int, *, transactional_id: str, producer: ProducerIdentity
) -> Decision[None]:
    """Complete the transaction of ``producer``, whose markers are all written. Does nothing if it is complete."""
    known = shard.transactions.get(transactional_id)
    if known is None or known.state not in PREPARED or known.identity != producer:
        return Decision(None)
    return Decision(None, [transaction_record(transactional_id, completed(known, now_ms))])


# --- Aborts by the coordinator ---


def aborted_by_coordinator(ongoing: Transaction, now_ms: int) -> Transaction:
    """Return an open transaction as it is when the coordinator has decided to abort it. Its producer is fenced."""
    return _with_next_epoch(ongoing, now_ms, committed=False, version=EPOCH_PER_TRANSACTION)


def end_overdue(shard: TransactionShard, now_ms: int) -> Decision[None]:
    """End the overdue transactions: abort the open ones that have timed out, and send the markers of the prepared ones.

    Markers that are being sent are not sent twice. A timer looks again some time later. After an election, the first
    look sends the markers that the previous coordinator may not have sent. If the topic's limit was lowered, an abort
    may be too large for it: that transaction stays open, and the others go on.
    """
    records: list[KeyValue] = []
    aborted: dict[str, Transaction] = {}
    pause_ms = shard.config().transaction_abort_timed_out_transaction_cleanup_interval_ms
    too_large: list[str] = []
    size = 0
    for transactional_id in shard.ongoing:
        known = shard.transactions[transactional_id]
        if known.timeout_ms == NO_TIMEOUT_MS or now_ms <= known.started_ms + known.timeout_ms:
            continue
        transaction = aborted_by_coordinator(known, now_ms)
        key, value = transaction_record(transactional_id, transaction)
        record_size = len(key) + len(value) + RECORD_BYTES
        if not shard.accepts(record_size):
            too_large.append(transactional_id)
            continue
        size += record_size
        if records and not shard.has_room(size):
            pause_ms = 0
            break
        records.append((key, value))
        aborted[transactional_id] = transaction
    prepared = {each: shard.transactions[each] for each in shard.prepared}
    return Decision(
        None,
        records,
        timers={OVERDUE: Timer(pause_ms, end_overdue)},
        then=partial(_continue, shard, aborted, prepared, too_large),
    )


def _continue(
    shard: TransactionShard,
    aborted: Mapping[str, Transaction],
    prepared: Mapping[str, Transaction],
    too_large: Sequence[str],
) -> None:
    if too_large:
        _log.error(
            "transactions have timed out that cannot be aborted: raise max.message.bytes of __transaction_state",
            extra={"partition": shard.partition, "transactions": len(too_large), "transactional_id": too_large[0]},
        )
    for transactional_id, transaction in aborted.items():
        _log.info(
            "transaction timed out: it is aborted and its producer is fenced",
            extra={
                "transactional_id": transactional_id,
                "producer_id": transaction.producer_id,
                "producer_epoch": transaction.producer_epoch,
                "timeout_ms": transaction.timeout_ms,
            },
        )
    send_markers(shard, {**prepared, **aborted})()
