"""A shard of transactional ids without a log: decisions take effect immediately, as if all replicas were in sync."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TypeVar

from parley.broker.config import BrokerConfig
from parley.broker.coordinators.decision import Decision, Held, KeyValue, ProducerIdentity
from parley.broker.coordinators.transactions.adding import add, verify
from parley.broker.coordinators.transactions.ending import complete, end, resume_markers
from parley.broker.coordinators.transactions.id_expiry import expire
from parley.broker.coordinators.transactions.initialization import Initialized, initialize
from parley.broker.coordinators.transactions.shard import TransactionShard
from parley.broker.coordinators.transactions.timeouts import abort_timed_out
from parley.broker.coordinators.transactions.transaction import Transaction
from parley.protocol.errors import ErrorCode, KafkaError
from parley.protocol.topic_partition import TopicPartition

T = TypeVar("T")

ID = "payments"
P0, P1 = ("t", 0), ("t", 1)


class SentMarkers:
    """Records the transactions whose markers would be written."""

    def __init__(self) -> None:
        self.sent: list[tuple[str, Transaction]] = []

    def enqueue(self, shard: TransactionShard, transactional_id: str, transaction: Transaction) -> None:
        self.sent.append((transactional_id, transaction))

    def stop(self, shard: TransactionShard) -> None:
        self.sent.clear()


class DrivenShard:
    """A shard, its records, and a clock that the test moves."""

    def __init__(self, **settings: object) -> None:
        self.config = BrokerConfig.from_properties({key: str(value) for key, value in settings.items()})
        self.markers = SentMarkers()
        self.now_ms = 1_000_000
        self.log: list[KeyValue] = []
        self.next_id = 100
        self.batch_bytes_max = 1 << 20
        self.state = self._empty()

    def _empty(self) -> TransactionShard:
        return TransactionShard(0, 7, lambda: self.config, lambda: self.batch_bytes_max, self.markers, {})

    @property
    def transaction(self) -> Transaction:
        return self.state.transactions[ID]

    def set(self, **changes: object) -> None:
        """Change the stored transaction, to begin a test in a state that is laborious to reach."""
        self.state.transactions[ID] = self.transaction._replace(**changes)  # type: ignore[arg-type]

    def submit(self, decide: Callable[[TransactionShard, int], Decision[T]]) -> T:
        decision = decide(self.state, self.now_ms)
        for key, value in decision.records:
            self.state.replay(key, value, None, len(self.log))
            self.log.append((key, value))
        if decision.then is not None:
            decision.then()
        assert not isinstance(decision.reply, Held)
        return decision.reply

    def read_back(self) -> TransactionShard:
        """Return the state that a new coordinator would load."""
        state = self._empty()
        for offset, (key, value) in enumerate(self.log):
            state.replay(key, value, None, offset)
        return state

    # --- Events ---

    def initialize(
        self, expected: ProducerIdentity | None = None, *, transactional_id: str = ID, timeout_ms: int = 60_000
    ) -> ProducerIdentity:
        """InitProducerId. Raises KafkaError."""
        decide = partial(initialize, transactional_id=transactional_id, timeout_ms=timeout_ms, expected=expected)
        result: Initialized = self.submit(partial(decide, new_id=None))
        if result is None:
            self.next_id += 1
            result = self.submit(partial(decide, new_id=self.next_id))
        if isinstance(result, ErrorCode):
            raise KafkaError(result)
        assert result is not None
        return result

    def add(
        self, producer: ProducerIdentity, *partitions: TopicPartition, transactional_id: str = ID, version: int = 2
    ) -> None:
        """AddPartitionsToTxn. Raises KafkaError."""
        self.submit(
            partial(
                add,
                transactional_id=transactional_id,
                producer=producer,
                partitions=frozenset(partitions),
                version=version,
            )
        )

    def verify(self, producer: ProducerIdentity, *partitions: TopicPartition) -> dict[TopicPartition, ErrorCode]:
        """AddPartitionsToTxn to verify only. Raises KafkaError."""
        return verify(self.state, transactional_id=ID, producer=producer, partitions=frozenset(partitions))

    def end(
        self, producer: ProducerIdentity, *, committed: bool, transactional_id: str = ID, version: int = 2
    ) -> ProducerIdentity:
        """EndTxn. Raises KafkaError."""
        decide = partial(
            end, transactional_id=transactional_id, producer=producer, committed=committed, version=version
        )
        result = self.submit(partial(decide, new_id=None))
        if result is None:
            self.next_id += 1
            result = self.submit(partial(decide, new_id=self.next_id))
        assert result is not None
        return result

    def complete(self, transactional_id: str = ID) -> None:
        """Report that all markers of the prepared transaction are written."""
        producer = self.state.transactions[transactional_id].identity
        self.submit(partial(complete, transactional_id=transactional_id, producer=producer))

    def run_timers(self) -> None:
        """Run the periodic events that resume markers and abort timed-out transactions."""
        self.submit(resume_markers)
        self.submit(abort_timed_out)

    def expire(self) -> None:
        """Run the periodic search for expired transactional ids."""
        self.submit(expire)


def refusal(call: Callable[[], object]) -> ErrorCode:
    """Return the error that ``call`` raises."""
    try:
        call()
    except KafkaError as error:
        return error.code
    return ErrorCode.NONE
