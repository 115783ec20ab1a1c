"""The read-only decisions: describing a transactional id, and listing those that match a filter (KIP-664, KIP-994,
KIP-1152)."""

from __future__ import annotations

from parley.broker.coordinators.decision import Decision
from parley.broker.coordinators.transactions.shard import TransactionShard
from parley.broker.coordinators.transactions.transaction import Transaction, TransactionState
from parley.light_dataclasses import dataclass
from parley.protocol.errors import ErrorCode, KafkaError


@dataclass(frozen=True, slots=True)
class Filter:
    """The selection of transactional ids to list. If ``states`` is None, all states match. If ``producer_ids`` is
    empty, all producer ids match."""

    states: frozenset[TransactionState] | None = None
    producer_ids: frozenset[int] = frozenset()
    open_longer_than_ms: int = -1
    """Only transactions that have been open for more than this number of milliseconds match. A negative number matches
    all."""

    def matches(self, transaction: Transaction, now_ms: int) -> bool:
        """Return True if the filter matches a transactional id.

        As in Kafka, ``open_longer_than_ms`` also matches an id that has never opened a transaction.
        """
        return (
            (self.states is None or transaction.state in self.states)
            and (not self.producer_ids or transaction.producer_id in self.producer_ids)
            and (self.open_longer_than_ms < 0 or now_ms - transaction.started_ms > self.open_longer_than_ms)
        )


def describe(shard: TransactionShard, now_ms: int, *, transactional_id: str) -> Decision[Transaction]:
    """Return the state of a transactional id. Raises TRANSACTIONAL_ID_NOT_FOUND if it does not exist."""
    known = shard.transactions.get(transactional_id)
    if known is None:
        raise KafkaError(ErrorCode.TRANSACTIONAL_ID_NOT_FOUND)
    return Decision(known)


def select(shard: TransactionShard, now_ms: int, *, filter: Filter) -> Decision[list[tuple[str, Transaction]]]:
    """Return the transactional ids that match a filter, with their states."""
    return Decision([each for each in shard.transactions.items() if filter.matches(each[1], now_ms)])
