"""The state of a transactional id: its producer id and epoch, and its open transaction, if any.

A ``Transaction`` is immutable: a decision returns a new one, and ``entered`` checks the step against ``ENTERED_FROM``.
``docs/transactions.md`` explains the states, and how producer epochs grow.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from enum import Enum
from typing import Any, Final, NamedTuple

from parley.broker.coordinators.decision import ProducerIdentity
from parley.broker.runtime.states import IllegalStep
from parley.protocol.sentinels import NO_EPOCH, NO_PRODUCER_ID
from parley.protocol.topic_partition import TopicPartition

NO_TIME: Final = -1

EPOCH_MAX: Final = (1 << 15) - 1
"""The last epoch of a producer id. Only markers use it, so that the coordinator can always fence a producer."""

NO_TIMEOUT_MS: Final = (1 << 31) - 1
"""The timeout of transactions that an external coordinator ends (KIP-939), in milliseconds: they never time out."""

FIRST_VERSION: Final = 0
EPOCH_PER_TRANSACTION: Final = 2
"""Transaction versions (KIP-890). From version 2 on the producer gets a new epoch when each transaction ends."""


class TransactionState(Enum):
    """The state of a transactional id. The values are the names in ListTransactions and DescribeTransactions."""

    EMPTY = "Empty"
    ONGOING = "Ongoing"
    PREPARE_COMMIT = "PrepareCommit"
    PREPARE_ABORT = "PrepareAbort"
    COMPLETE_COMMIT = "CompleteCommit"
    COMPLETE_ABORT = "CompleteAbort"
    DEAD = "Dead"
    """Never stored: a tombstone removes an expired transactional id. Clients may name the state in a filter."""
    PREPARE_EPOCH_FENCE = "PrepareEpochFence"
    """Never stored: fencing a producer goes directly to PREPARE_ABORT. Clients may name the state in a filter."""


_S = TransactionState

ENTERED_FROM: Final[Mapping[TransactionState, frozenset[TransactionState]]] = {
    _S.EMPTY: frozenset({_S.EMPTY, _S.COMPLETE_COMMIT, _S.COMPLETE_ABORT}),
    _S.ONGOING: frozenset({_S.EMPTY, _S.ONGOING, _S.COMPLETE_COMMIT, _S.COMPLETE_ABORT}),
    _S.PREPARE_COMMIT: frozenset({_S.ONGOING}),
    # From transaction version 2 on, a producer may abort before it has added a partition.
    _S.PREPARE_ABORT: frozenset({_S.ONGOING, _S.EMPTY, _S.COMPLETE_COMMIT, _S.COMPLETE_ABORT}),
    _S.COMPLETE_COMMIT: frozenset({_S.PREPARE_COMMIT}),
    # Only to replace a producer id, if the coordinator has aborted the transaction under the last epoch.
    _S.COMPLETE_ABORT: frozenset({_S.PREPARE_ABORT, _S.COMPLETE_ABORT}),
    _S.DEAD: frozenset(),
    _S.PREPARE_EPOCH_FENCE: frozenset(),
}
"""The legal steps: the states from which each state may be entered."""

PREPARED: Final = frozenset({_S.PREPARE_COMMIT, _S.PREPARE_ABORT})
"""The states in which the outcome is decided and stored, and markers are being written."""

AT_REST: Final = frozenset({_S.EMPTY, _S.COMPLETE_COMMIT, _S.COMPLETE_ABORT})
"""The states in which no transaction is open."""


class Transaction(NamedTuple):
    """The stored state of a transactional id. Times are in milliseconds since 1970.

    A tuple, for speed: every step creates two, one to be written and one decoded from the record.
    """

    producer_id: int
    producer_epoch: int
    state: TransactionState
    timeout_ms: int
    updated_ms: int
    """When the state was last stored. The transactional id expires ``transactional.id.expiration.ms`` later."""
    started_ms: int = NO_TIME
    partitions: frozenset[TopicPartition] = frozenset()
    """The partitions that contain, or may soon contain, records of the transaction. They need its marker."""
    last_epoch: int = NO_EPOCH
    """The epoch of the same producer id before the current one. A retry of the request that raised the epoch contains
    it."""
    previous_producer_id: int = NO_PRODUCER_ID
    """The producer id before the last step. A retry of the request that replaced the id contains the previous one."""
    next_producer_id: int = NO_PRODUCER_ID
    """The producer id that replaces an exhausted one when the transaction completes."""
    version: int = FIRST_VERSION
    """The transaction version of the client whose request led to this state."""

    @property
    def identity(self) -> ProducerIdentity:
        """The producer id and epoch."""
        return ProducerIdentity(self.producer_id, self.producer_epoch)

    @property
    def next_identity(self) -> ProducerIdentity:
        """The identity of the producer's next transaction. The producer gets it before the markers are written."""
        if self.next_producer_id != NO_PRODUCER_ID:
            return ProducerIdentity(self.next_producer_id, 0)
        return self.identity

    def is_awaited_by(self, producer: ProducerIdentity) -> bool:
        """Return True if the producer must wait before it begins its next transaction, because markers are still being
        written."""
        return self.state in PREPARED and producer == self.next_identity and producer.producer_epoch < EPOCH_MAX

    @property
    def is_committing(self) -> bool:
        """True if the outcome of the transaction is to commit."""
        return self.state in (_S.PREPARE_COMMIT, _S.COMPLETE_COMMIT)

    @property
    def is_exhausted(self) -> bool:
        """True if the producer id has no epoch left that a client may use."""
        return self.producer_epoch >= EPOCH_MAX - 1

    def entered(self, state: TransactionState, now_ms: int, **changes: Any) -> Transaction:
        """Return a copy in ``state``, with ``changes``. Raises IllegalStep if ``ENTERED_FROM`` does not allow the
        step."""
        if self.state not in ENTERED_FROM[state]:
            raise IllegalStep("transactional id", self.state, state)
        changes.setdefault("previous_producer_id", self.producer_id)
        return self._replace(state=state, updated_ms=now_ms, **changes)


def by_topic(partitions: Iterable[TopicPartition]) -> dict[str, list[int]]:
    """Return the indexes of partitions by topic, both in ascending order.

    This is faster than sorting pairs, which would take 100 ms for the 60,000 partitions that a transaction may have.
    """
    indexes: dict[str, list[int]] = defaultdict(list)
    for topic, index in partitions:
        indexes[topic].append(index)
    return {topic: sorted(indexes[topic]) for topic in sorted(indexes)}
