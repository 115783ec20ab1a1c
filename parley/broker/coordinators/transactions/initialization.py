"""The decision about InitProducerId with a transactional id: which producer id and epoch the producer gets.

The new epoch fences every older producer of the transactional id. A producer that names its current identity continues
with it (KIP-360); any other producer starts over. An open transaction is aborted first, and the producer must retry.
"""

from __future__ import annotations

from functools import partial

from parley.broker.coordinators.decision import Decision, ProducerIdentity
from parley.broker.coordinators.transactions.ending import aborted_by_coordinator, enqueue_markers
from parley.broker.coordinators.transactions.shard import TransactionShard
from parley.broker.coordinators.transactions.transaction import (
    EPOCH_MAX,
    NO_TIME,
    PREPARED,
    Transaction,
    TransactionState,
)
from parley.broker.coordinators.transactions.transaction_records import transaction_record
from parley.protocol.errors import ErrorCode, KafkaError
from parley.protocol.sentinels import NO_EPOCH, NO_PRODUCER_ID

Initialized = ProducerIdentity | ErrorCode | None
"""The producer's identity; or an error for the caller, although the decision contains records; or None if the decision
needs a new producer id."""


def initialize(
    shard: TransactionShard,
    now_ms: int,
    *,
    transactional_id: str,
    timeout_ms: int,
    expected: ProducerIdentity | None,
    new_id: int | None,
) -> Decision[Initialized]:
    """Decide on InitProducerId.

    ``expected`` is the identity that the request names, or None. ``new_id`` is an unused producer id, or None. If the
    decision needs an id and ``new_id`` is None, the reply is None: the caller then submits the event again with an id.
    If the decision aborts an open transaction, the reply is CONCURRENT_TRANSACTIONS, and the producer must retry.

    Raises CONCURRENT_TRANSACTIONS while the previous transaction completes, PRODUCER_FENCED if a newer producer uses
    the transactional id, or POLICY_VIOLATION if the shard contains too many transactional ids.
    """
    known = shard.transactions.get(transactional_id)
    if known is None:
        return _first(shard, now_ms, transactional_id, timeout_ms, new_id)
    if expected is not None and not _may_continue(known, expected) and not known.is_awaited_by(expected):
        raise KafkaError(ErrorCode.PRODUCER_FENCED)
    if known.state in PREPARED:
        raise KafkaError(ErrorCode.CONCURRENT_TRANSACTIONS)
    if known.state is TransactionState.ONGOING:
        if expected is not None and expected != known.identity:
            raise KafkaError(ErrorCode.PRODUCER_FENCED)  # a delayed request: the producer has continued without it
        if known.is_exhausted and new_id is None:
            return Decision(None)
        next_id = NO_PRODUCER_ID if new_id is None or not known.is_exhausted else new_id
        aborted = aborted_by_coordinator(known, now_ms, next_id)
        return Decision(
            ErrorCode.CONCURRENT_TRANSACTIONS,
            [transaction_record(transactional_id, aborted)],
            then=partial(enqueue_markers, shard, {transactional_id: aborted}),
        )
    if expected is not None and expected != known.identity and known.producer_epoch < EPOCH_MAX:
        # A retry: the response to the first request was lost. The producer may repeat it any number of times, but only
        # once if it named its previous id: as in Kafka, this step makes the current id the previous one.
        again = known.entered(TransactionState.EMPTY, now_ms, timeout_ms=timeout_ms, started_ms=NO_TIME)
        return Decision(again.identity, [transaction_record(transactional_id, again)])
    if known.is_exhausted and new_id is None:
        return Decision(None)
    identity = ProducerIdentity(known.producer_id, known.producer_epoch + 1)
    if known.is_exhausted and new_id is not None:
        identity = ProducerIdentity(new_id, 0)
    begun = known.entered(
        TransactionState.EMPTY,
        now_ms,
        producer_id=identity.producer_id,
        producer_epoch=identity.producer_epoch,
        last_epoch=NO_EPOCH if expected is None else expected.producer_epoch,
        timeout_ms=timeout_ms,
        started_ms=NO_TIME,
    )
    return Decision(identity, [transaction_record(transactional_id, begun)])


def _may_continue(known: Transaction, expected: ProducerIdentity) -> bool:
    """Return True if the producer names the current identity, or the previous one because it does not know the current
    one."""
    if expected.producer_epoch == known.last_epoch:
        return expected.producer_id == known.producer_id or (
            expected.producer_id == known.previous_producer_id and expected.producer_epoch >= EPOCH_MAX - 1
        )
    return expected == known.identity


def _first(
    shard: TransactionShard, now_ms: int, transactional_id: str, timeout_ms: int, new_id: int | None
) -> Decision[Initialized]:
    if len(shard.transactions) >= shard.config().transactional_ids_max_per_partition:
        raise KafkaError(
            ErrorCode.POLICY_VIOLATION,
            "Too many transactional ids. Use fewer, or raise transactional.ids.max.per.partition.",
        )
    if new_id is None:
        return Decision(None)
    begun = Transaction(
        producer_id=new_id,
        producer_epoch=0,
        state=TransactionState.EMPTY,
        timeout_ms=timeout_ms,
        updated_ms=now_ms,
        previous_producer_id=new_id,
    )
    return Decision(begun.identity, [transaction_record(transactional_id, begun)])
