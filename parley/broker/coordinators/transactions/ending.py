"""The decisions that end a transaction: its outcome (EndTxn), its markers, its completion.

A transaction ends in two stored steps. PREPARE_COMMIT or PREPARE_ABORT decides the outcome, which then survives any
failure. COMPLETE_COMMIT or COMPLETE_ABORT follows when every partition has its marker. The client gets its response
after the first step. ``docs/transactions.md`` contains the table of responses for transaction version 2. Timeouts are
in ``timeouts.py``.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Final

from parley.broker.coordinators.decision import Decision, ProducerIdentity, Timer
from parley.broker.coordinators.transactions.shard import TransactionShard
from parley.broker.coordinators.transactions.transaction import (
    EPOCH_MAX,
    EPOCH_PER_TRANSACTION,
    FIRST_VERSION,
    PREPARED,
    Transaction,
    TransactionState,
)
from parley.broker.coordinators.transactions.transaction_records import transaction_record
from parley.protocol.errors import ErrorCode, KafkaError
from parley.protocol.sentinels import NO_PRODUCER_ID

RESUME_MARKERS: Final = "resume-markers"
"""The key of the timer that resumes writing markers."""

Ended = ProducerIdentity | None
"""The identity for the producer's next transaction, or None if the decision needs a new producer id."""

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
    """Decide on EndTxn from a client of transaction version ``version``, which aborts the transaction if ``committed``
    is False.

    ``new_id`` is an unused producer id, or None. If the decision needs an id and ``new_id`` is None, the reply is None:
    the caller then submits the event again with an id.

    Raises INVALID_PRODUCER_ID_MAPPING, PRODUCER_FENCED, CONCURRENT_TRANSACTIONS while the markers of this or the
    previous transaction are being written, or INVALID_TXN_STATE if no transaction is open or the other outcome was
    decided.
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
        following = _repeated(known, committed)
        if known.producer_epoch < EPOCH_MAX:
            return Decision(following)
        return _replace_id(now_ms, transactional_id, known, new_id)
    if producer != known.identity or known.producer_epoch == EPOCH_MAX:
        raise KafkaError(ErrorCode.PRODUCER_FENCED)
    if committed and known.state is not TransactionState.ONGOING:
        raise KafkaError(ErrorCode.INVALID_TXN_STATE)
    if known.is_exhausted and new_id is None:
        return Decision(None)
    next_id = NO_PRODUCER_ID if new_id is None or not known.is_exhausted else new_id
    prepared = _with_next_epoch(known, now_ms, committed=committed, version=version, next_producer_id=next_id)
    return _store_outcome(shard, now_ms, transactional_id, prepared)


def _end_keeping_epoch(
    shard: TransactionShard,
    now_ms: int,
    transactional_id: str,
    known: Transaction,
    producer: ProducerIdentity,
    committed: bool,
) -> Decision[Ended]:
    """Decide on EndTxn from a client whose epoch does not change with each transaction. Raises the errors of
    ``end``."""
    if producer.producer_id != known.producer_id:
        raise KafkaError(ErrorCode.INVALID_PRODUCER_ID_MAPPING)
    if producer != known.identity or known.producer_epoch == EPOCH_MAX:
        raise KafkaError(ErrorCode.PRODUCER_FENCED)
    if known.state is not TransactionState.ONGOING:
        # A superseded coordinator may know only the previous transaction, which has the same epoch. So store the
        # outcome again: a reply that waits for an append proves that this broker is still the coordinator.
        return Decision(_repeated(known, committed), [transaction_record(transactional_id, known)])
    prepared = known.entered(_outcome(committed), now_ms, version=FIRST_VERSION)
    return _store_outcome(shard, now_ms, transactional_id, prepared)


def _repeated(known: Transaction, committed: bool) -> ProducerIdentity:
    """Return the result of a retried EndTxn: the same as that of the first EndTxn.

    Raises CONCURRENT_TRANSACTIONS while the markers are being written, or INVALID_TXN_STATE if the transaction had the
    other outcome.
    """
    if known.state not in (_COMMITS if committed else _ABORTS):
        raise KafkaError(ErrorCode.INVALID_TXN_STATE)
    if known.state in PREPARED:
        raise KafkaError(ErrorCode.CONCURRENT_TRANSACTIONS)
    return known.identity


def _replace_id(now_ms: int, transactional_id: str, known: Transaction, new_id: int | None) -> Decision[Ended]:
    """Decide on EndTxn for a transaction that the coordinator has aborted in the last epoch of its producer id.

    No producer may use that epoch, so the producer continues with a new id.
    """
    if new_id is None:
        return Decision(None)
    replaced = known.entered(TransactionState.COMPLETE_ABORT, now_ms, producer_id=new_id, producer_epoch=0)
    return Decision(replaced.identity, [transaction_record(transactional_id, replaced)])


def _outcome(committed: bool) -> TransactionState:
    return TransactionState.PREPARE_COMMIT if committed else TransactionState.PREPARE_ABORT


def _with_next_epoch(
    known: Transaction, now_ms: int, *, committed: bool, version: int, next_producer_id: int = NO_PRODUCER_ID
) -> Transaction:
    """Return the prepared transaction with the next epoch, which fences late writes in the old epoch (KIP-890)."""
    return known.entered(
        _outcome(committed),
        now_ms,
        producer_epoch=min(EPOCH_MAX, known.producer_epoch + 1),
        last_epoch=known.producer_epoch,
        next_producer_id=next_producer_id,
        started_ms=known.started_ms if known.state is TransactionState.ONGOING else now_ms,
        version=version,
    )


def _store_outcome(
    shard: TransactionShard, now_ms: int, transactional_id: str, prepared: Transaction
) -> Decision[ProducerIdentity | None]:
    """Return the decision that stores the outcome. A transaction without partitions needs no markers, and completes in
    the same batch."""
    records = [transaction_record(transactional_id, prepared)]
    if not prepared.partitions:
        complete = completed_transaction(prepared, now_ms)
        return Decision(complete.identity, [*records, transaction_record(transactional_id, complete)])
    return Decision(prepared.next_identity, records, then=partial(enqueue_markers, shard, {transactional_id: prepared}))


# --- Markers ---


def enqueue_markers(shard: TransactionShard, prepared: Mapping[str, Transaction]) -> None:
    """Queue the markers of prepared transactions. Call this when the in-sync replicas have the outcomes."""
    for transactional_id, transaction in prepared.items():
        shard.markers.enqueue(shard, transactional_id, transaction)


def resume_markers(shard: TransactionShard, now_ms: int) -> Decision[None]:
    """Queue the markers of all prepared transactions, and set the timer again.

    The first call, when the shard has been loaded, continues the work of the previous coordinator, which may have
    failed before it wrote all markers. Later calls are for transactions whose completion failed unexpectedly. Markers
    that are already queued are not queued again.
    """
    prepared = {each: shard.transactions[each] for each in shard.prepared}
    pause_ms = shard.config().transaction_abort_timed_out_transaction_cleanup_interval_ms
    return Decision(
        None,
        timers={RESUME_MARKERS: Timer(pause_ms, resume_markers)},
        then=partial(enqueue_markers, shard, prepared) if prepared else None,
    )


# --- Completion ---


def completed_transaction(prepared: Transaction, now_ms: int) -> Transaction:
    """Return the state that follows ``prepared`` when every partition has its marker."""
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
    """Store that the transaction of ``producer`` is complete, after all its markers have been written.

    Does nothing if it is already complete.
    """
    known = shard.transactions.get(transactional_id)
    if known is None or known.state not in PREPARED or known.identity != producer:
        return Decision(None)
    return Decision(None, [transaction_record(transactional_id, completed_transaction(known, now_ms))])


# --- Aborts by the coordinator ---


def aborted_by_coordinator(ongoing: Transaction, now_ms: int, next_producer_id: int = NO_PRODUCER_ID) -> Transaction:
    """Return the state that follows ``ongoing`` when the coordinator aborts it. The next epoch fences its producer.

    ``next_producer_id`` replaces an exhausted id. Without it, the id is replaced when the producer continues.
    """
    return _with_next_epoch(
        ongoing, now_ms, committed=False, version=EPOCH_PER_TRANSACTION, next_producer_id=next_producer_id
    )
