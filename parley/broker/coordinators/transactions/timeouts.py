"""The decision that aborts transactions that have been open for longer than their timeouts."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Final

from parley.broker.coordinators.decision import Decision, KeyValue, Timer
from parley.broker.coordinators.shard import size_in_batch
from parley.broker.coordinators.transactions.ending import aborted_by_coordinator, enqueue_markers
from parley.broker.coordinators.transactions.shard import TransactionShard
from parley.broker.coordinators.transactions.transaction import NO_TIMEOUT_MS, Transaction
from parley.broker.coordinators.transactions.transaction_records import transaction_record

_log = logging.getLogger(__name__)

TIMED_OUT: Final = "timed-out"
"""The key of the timer that aborts transactions that have timed out."""


def abort_timed_out(shard: TransactionShard, now_ms: int) -> Decision[None]:
    """Abort the open transactions that have timed out, fence their producers, and set the timer again.

    The records of one call fit in one batch. If more transactions have timed out, the timer is due immediately. If the
    topic's size limit was lowered, the record of an abort may be too large. Such a transaction stays open, and the
    other transactions are still aborted.
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
        record = transaction_record(transactional_id, transaction)
        record_size = size_in_batch([record])
        if not shard.accepts(record_size):
            too_large.append(transactional_id)
            continue
        size += record_size
        if records and not shard.has_room(size):
            pause_ms = 0
            break
        records.append(record)
        aborted[transactional_id] = transaction
    return Decision(
        None,
        records,
        timers={TIMED_OUT: Timer(pause_ms, abort_timed_out)},
        then=partial(_log_and_enqueue_markers, shard, aborted, too_large) if aborted or too_large else None,
    )


def _log_and_enqueue_markers(
    shard: TransactionShard, aborted: Mapping[str, Transaction], too_large: Sequence[str]
) -> None:
    if too_large:
        _log.error(
            "cannot abort timed-out transactions: raise max.message.bytes of __transaction_state",
            extra={"partition": shard.partition, "transactions": len(too_large), "transactional_id": too_large[0]},
        )
    for transactional_id, transaction in aborted.items():
        _log.info(
            "transaction timed out: aborting it and fencing its producer",
            extra={
                "transactional_id": transactional_id,
                "producer_id": transaction.producer_id,
                "producer_epoch": transaction.producer_epoch,
                "timeout_ms": transaction.timeout_ms,
            },
        )
    enqueue_markers(shard, aborted)
