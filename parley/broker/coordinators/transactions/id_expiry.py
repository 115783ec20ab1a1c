"""The decision that removes transactional ids that were not used for ``transactional.id.expiration.ms``.

The timeout of an open transaction is in ``timeouts.py``.
"""

from __future__ import annotations

from typing import Final

from parley.broker.coordinators.decision import Decision, KeyValue, Timer
from parley.broker.coordinators.shard import size_in_batch
from parley.broker.coordinators.transactions.shard import TransactionShard
from parley.broker.coordinators.transactions.transaction import AT_REST
from parley.broker.coordinators.transactions.transaction_records import transaction_tombstone

EXPIRED: Final = "expired"
"""The key of the timer that removes expired transactional ids."""


def expire(shard: TransactionShard, now_ms: int) -> Decision[None]:
    """Remove the expired transactional ids, and set the timer again."""
    config = shard.config()
    pause_ms = config.transaction_remove_expired_transaction_cleanup_interval_ms
    expired_before_ms = now_ms - config.transactional_id_expiration_ms
    records: list[KeyValue] = []
    size = 0
    for transactional_id, transaction in shard.transactions.items():
        if transaction.state not in AT_REST or transaction.updated_ms > expired_before_ms:
            continue
        record = transaction_tombstone(transactional_id)
        record_size = size_in_batch([record])
        if not shard.accepts(record_size):
            continue
        size += record_size
        if records and not shard.has_room(size):
            pause_ms = 0
            break
        records.append(record)
    return Decision(None, records, timers={EXPIRED: Timer(pause_ms, expire)})
