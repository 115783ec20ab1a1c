"""The transactional ids of one partition of ``__transaction_state``, rebuilt from its records (``ShardState``)."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping
from typing import Final, Protocol

from parley.broker.config import BrokerConfig
from parley.broker.coordinators.decision import Decision, ProducerIdentity, Timer
from parley.broker.coordinators.transactions.transaction import PREPARED, Transaction, TransactionState
from parley.broker.coordinators.transactions.transaction_records import read_key, read_value
from parley.protocol.records.batch_header import HEADER_SIZE

PERIODIC_BYTES_MAX: Final = 256 * 1024
"""The maximum size of a batch that a periodic event writes, unless a single record is larger."""


class Markers(Protocol):
    """The part of ``MarkerSender`` that a shard needs: it writes the markers of prepared transactions, and then
    completes the transactions."""

    def enqueue(self, shard: TransactionShard, transactional_id: str, transaction: Transaction) -> None:
        """Queue the markers of a prepared transaction, unless they are already queued."""
        ...

    def stop(self, shard: TransactionShard) -> None:
        """Stop writing markers for a shard that this broker no longer coordinates."""
        ...


Periodic = Callable[["TransactionShard", int], Decision[None]]


class TransactionShard:
    """The transactional ids of one partition."""

    def __init__(
        self,
        partition: int,
        coordinator_epoch: int,
        config: Callable[[], BrokerConfig],
        batch_bytes_max: Callable[[], int],
        markers: Markers,
        periodic: Mapping[str, Periodic],
    ) -> None:
        """``coordinator_epoch`` is the partition's leader epoch, which markers contain. ``batch_bytes_max()`` returns
        the size of the largest batch that the topic accepts. ``periodic`` maps the keys of timers to the events that
        start when the shard is loaded."""
        self.partition = partition
        self.coordinator_epoch = coordinator_epoch
        self.config = config
        self.batch_bytes_max = batch_bytes_max
        self.markers = markers
        self.transactions: dict[str, Transaction] = {}
        self.ongoing: dict[str, None] = {}
        """The ids of open transactions, in the order in which they were opened."""
        self.prepared: dict[str, None] = {}
        """The ids of transactions whose markers are being written."""
        self.counts = dict.fromkeys(TransactionState, 0)
        """The number of transactional ids in each state."""
        self._periodic = periodic

    def replay(self, key: bytes, value: bytes | None, producer: ProducerIdentity | None, offset: int) -> None:
        """Apply one record. Raises MalformedMessage if it cannot be decoded."""
        transactional_id = read_key(key)
        transaction = None if value is None else read_value(value)
        state = None if transaction is None else transaction.state
        before = self.transactions.pop(transactional_id, None)
        if before is not None:
            self.counts[before.state] -= 1
        if transaction is not None:
            self.transactions[transactional_id] = transaction
            self.counts[transaction.state] += 1
        _note(self.ongoing, transactional_id, state is TransactionState.ONGOING)
        _note(self.prepared, transactional_id, state in PREPARED)

    def replay_marker(self, producer_id: int, producer_epoch: int, committed: bool, offset: int) -> None:
        """Do nothing: the records of this topic do not belong to transactions."""

    def loaded(self, now_ms: int) -> Mapping[Hashable, Timer]:
        """Return the timers of the periodic events. All are due immediately: the previous coordinator may have failed
        before it had written all markers."""
        return {key: Timer(0, event) for key, event in self._periodic.items()}

    def has_room(self, size: int) -> bool:
        """Return True if records of ``size`` bytes in total fit in the one batch that a periodic event (a timeout or an
        id expiry) may write. Raises KafkaError if the partition has no log on this broker."""
        return HEADER_SIZE + size <= min(PERIODIC_BYTES_MAX, self.batch_bytes_max())

    def accepts(self, size: int) -> bool:
        """Return True if the topic accepts a record of ``size`` bytes. Raises KafkaError if the partition has no log on
        this broker."""
        return HEADER_SIZE + size <= self.batch_bytes_max()

    def unloaded(self) -> None:
        """Stop writing markers."""
        self.markers.stop(self)


def _note(ids: dict[str, None], transactional_id: str, belongs: bool) -> None:
    if belongs:
        ids[transactional_id] = None
    else:
        ids.pop(transactional_id, None)
