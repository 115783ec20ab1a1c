"""The transaction coordinator: submits the requests of producers and of other brokers to shards as events."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any, Final, TypeVar

from parley.broker.config import BrokerConfig
from parley.broker.coordinators.decision import Decision, KeyValue, ProducerIdentity
from parley.broker.coordinators.producer_ids import ProducerIds
from parley.broker.coordinators.runtime import CoordinatorRuntime
from parley.broker.coordinators.shard import size_in_batch
from parley.broker.coordinators.transactions.adding import add, verify
from parley.broker.coordinators.transactions.ending import RESUME_MARKERS, end, resume_markers
from parley.broker.coordinators.transactions.id_expiry import EXPIRED, expire
from parley.broker.coordinators.transactions.initialization import initialize
from parley.broker.coordinators.transactions.listing import Filter, describe, select
from parley.broker.coordinators.transactions.marker_sender import MarkerSender
from parley.broker.coordinators.transactions.shard import TransactionShard
from parley.broker.coordinators.transactions.timeouts import TIMED_OUT, abort_timed_out
from parley.broker.coordinators.transactions.transaction import NO_TIMEOUT_MS, Transaction, TransactionState
from parley.broker.coordinators.transactions.transaction_records import transaction_record
from parley.protocol.errors import ErrorCode, KafkaError
from parley.protocol.topic_partition import TopicPartition

T = TypeVar("T")

HELD_S: Final = 0.5
"""How long a request waits for the markers of the previous transaction, in seconds. Clients wait longer for a
response."""

_OUT_OF_TOUCH: Final = "This broker has lost contact with the controller and may no longer be the coordinator."


def make_shard(
    config: Callable[[], BrokerConfig],
    batch_bytes_max: Callable[[], int],
    markers: MarkerSender,
    partition: int,
    coordinator_epoch: int,
) -> TransactionShard:
    """Return the empty state of a partition of ``__transaction_state``.

    ``batch_bytes_max()`` returns the size of the largest batch that the partition accepts.
    """
    periodic = {TIMED_OUT: abort_timed_out, RESUME_MARKERS: resume_markers, EXPIRED: expire}
    return TransactionShard(partition, coordinator_epoch, config, batch_bytes_max, markers, periodic)


class TransactionCoordinator:
    """The transactional ids that this broker coordinates.

    Each method, or the future that it returns, fails with the errors of the decision that it submits and of
    ``CoordinatorRuntime.submit``. An empty transactional id gets INVALID_REQUEST.

    A coordinator that may have been superseded does not reject a request with a final error, because the new
    coordinator may have later state. It does not confirm that a partition belongs to a transaction, either: that needs
    no append, which would prove that this broker still coordinates, and the new coordinator may have ended the
    transaction. In both cases it raises NOT_COORDINATOR, and the producer or the partition's leader retries.

    Another broker may also have become the coordinator although this broker is in contact with the controller: the
    change just has not reached this broker yet. Therefore, before this broker returns a final error, it stores once
    more the state that causes the error, and waits for the in-sync replicas: they accept records only from the current
    coordinator. Otherwise, a producer could get INVALID_TXN_STATE because of its previous transaction.
    """

    def __init__(
        self,
        runtime: CoordinatorRuntime[TransactionShard],
        markers: MarkerSender,
        producer_ids: ProducerIds,
        config: Callable[[], BrokerConfig],
        may_be_superseded: Callable[[], bool],
    ) -> None:
        self.runtime = runtime
        self._may_be_superseded = may_be_superseded
        self.markers = markers
        self._producer_ids = producer_ids
        self._config = config
        markers.serve(runtime)

    async def initialize(
        self,
        transactional_id: str,
        timeout_ms: int,
        expected: ProducerIdentity | None,
        *,
        two_phase_commit: bool = False,
        keep_prepared: bool = False,
    ) -> ProducerIdentity:
        """Return the identity of a producer that starts, or that continues after an error. Waits at most ``HELD_S`` for
        the markers of the previous transaction.

        ``timeout_ms`` is the timeout of its transactions; with ``two_phase_commit`` (KIP-939), they never time out.
        ``expected`` is the identity that the producer names, or None.

        Raises INVALID_TRANSACTION_TIMEOUT; TRANSACTIONAL_ID_AUTHORIZATION_FAILED for two-phase commit unless
        ``transaction.two.phase.commit.enable`` is set; UNSUPPORTED_VERSION for ``keep_prepared``, as in Kafka; and the
        errors of ``initialization.initialize``, for example PRODUCER_FENCED or CONCURRENT_TRANSACTIONS.
        """
        _check_named(transactional_id)
        config = self._config()
        if two_phase_commit and not config.transaction_two_phase_commit_enable:
            raise KafkaError(ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED)
        if keep_prepared:
            raise KafkaError(ErrorCode.UNSUPPORTED_VERSION)
        if two_phase_commit:
            timeout_ms = NO_TIMEOUT_MS
        elif not 0 < timeout_ms <= config.transaction_max_timeout_ms:
            raise KafkaError(ErrorCode.INVALID_TRANSACTION_TIMEOUT)
        decide = partial(initialize, transactional_id=transactional_id, timeout_ms=timeout_ms, expected=expected)
        return await self._after_previous_markers(transactional_id, lambda: self._initialize(transactional_id, decide))

    async def _initialize(
        self, transactional_id: str, decide: Callable[..., Decision[ProducerIdentity | ErrorCode | None]]
    ) -> ProducerIdentity:
        result = await self._store(transactional_id, partial(decide, new_id=None))
        if result is None:
            decide = partial(decide, new_id=await self._new_id())
            result = await self._store(transactional_id, decide)
        if not isinstance(result, ProducerIdentity):
            raise KafkaError(result or ErrorCode.UNKNOWN_SERVER_ERROR)
        return result

    async def _after_previous_markers(self, transactional_id: str, attempt: Callable[[], Awaitable[T]]) -> T:
        """Return the result of ``attempt``. If it raises CONCURRENT_TRANSACTIONS, call it again when the markers of the
        previous transaction have been written.

        If the client had to retry instead, it would wait longer than it takes to write the markers. Raises
        CONCURRENT_TRANSACTIONS if the markers take longer than ``HELD_S``.
        """
        loop = asyncio.get_running_loop()
        deadline = loop.time() + HELD_S
        while True:
            try:
                return await attempt()
            except KafkaError as error:
                if error.code is not ErrorCode.CONCURRENT_TRANSACTIONS:
                    raise
                left_s = deadline - loop.time()
                partition = self.runtime.shard_of(transactional_id)
                if left_s <= 0 or not await self.markers.until_completed(partition, transactional_id, left_s):
                    raise

    async def add_when_ended(
        self, transactional_id: str, producer: ProducerIdentity, partitions: frozenset[TopicPartition], version: int
    ) -> None:
        """Add partitions like ``add``, but first wait for the markers of the producer's previous transaction. Raises
        CONCURRENT_TRANSACTIONS if they take longer than ``HELD_S``, and the errors of ``add``."""
        await self._after_previous_markers(
            transactional_id, lambda: self.add(transactional_id, producer, partitions, version)
        )

    async def add(
        self, transactional_id: str, producer: ProducerIdentity, partitions: frozenset[TopicPartition], version: int
    ) -> None:
        """Add partitions to the producer's transaction. ``version`` is the client's transaction version. Raises the
        errors of ``adding.add``, but UNKNOWN_SERVER_ERROR instead of MESSAGE_TOO_LARGE."""
        _check_named(transactional_id)
        decide = partial(
            add, transactional_id=transactional_id, producer=producer, partitions=partitions, version=version
        )
        await self._store(transactional_id, decide)

    def verify(
        self, transactional_id: str, producer: ProducerIdentity, partitions: frozenset[TopicPartition]
    ) -> asyncio.Future[dict[TopicPartition, ErrorCode]]:
        """Return a future of a code for each partition: NONE if it belongs to the producer's transaction, otherwise
        TRANSACTION_ABORTABLE. If the producer is unknown or fenced, all partitions get that error. The future fails
        with CONCURRENT_TRANSACTIONS while the transaction completes."""
        _check_named(transactional_id)
        decide = partial(self._verify, transactional_id=transactional_id, producer=producer, partitions=partitions)
        return self._submit(transactional_id, decide)

    def verify_at_once(
        self, transactional_id: str, producer: ProducerIdentity, partitions: frozenset[TopicPartition]
    ) -> dict[TopicPartition, ErrorCode] | None:
        """Return the result of ``verify`` without waiting, or None if it would have to wait for the in-sync replicas.
        Raises the errors with which the future of ``verify`` fails."""
        _check_named(transactional_id)
        decide = partial(self._verify, transactional_id=transactional_id, producer=producer, partitions=partitions)
        return self.runtime.read(transactional_id, partial(self._decide, decide))

    async def end(
        self, transactional_id: str, producer: ProducerIdentity, version: int, *, committed: bool
    ) -> ProducerIdentity:
        """Commit the producer's transaction, or abort it if ``committed`` is False. Returns the identity for its next
        one. ``version`` is the client's transaction version. Raises the errors of ``ending.end``, for example
        PRODUCER_FENCED or INVALID_TXN_STATE."""
        _check_named(transactional_id)
        decide = partial(
            end, transactional_id=transactional_id, producer=producer, committed=committed, version=version
        )
        result = await self._store(transactional_id, partial(decide, new_id=None))
        if result is None:
            decide = partial(decide, new_id=await self._new_id())
            result = await self._store(transactional_id, decide)
        if result is None:
            raise KafkaError(ErrorCode.UNKNOWN_SERVER_ERROR)
        return result

    def describe(self, transactional_id: str) -> asyncio.Future[Transaction]:
        """Return a future of the state of a transactional id, which fails with TRANSACTIONAL_ID_NOT_FOUND if the id
        does not exist."""
        _check_named(transactional_id)
        return self._submit(transactional_id, partial(describe, transactional_id=transactional_id))

    async def select(self, filter: Filter) -> list[tuple[str, Transaction]]:
        """Return the transactional ids on this broker that match the filter, with their states. Raises
        COORDINATOR_LOAD_IN_PROGRESS while a partition is being loaded."""
        if self.runtime.is_loading:
            raise KafkaError(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)
        decide = partial(select, filter=filter)
        found = await asyncio.gather(
            *(self.runtime.submit(partition, decide) for partition, _ in self.runtime.states())
        )
        return [each for selected in found for each in selected]

    def counts_by_state(self) -> dict[TransactionState, int]:
        """Return the number of transactional ids in each state."""
        counts = dict.fromkeys(TransactionState, 0)
        for _, shard in self.runtime.states():
            for state, count in shard.counts.items():
                counts[state] += count
        return counts

    async def _new_id(self) -> int:
        """Return an unused producer id. Raises the errors of ``ProducerIds.take``."""
        await asyncio.sleep(0)  # yield: the store uses timeouts, which need a task, and ``at_once`` runs without one
        return await self._producer_ids.take()

    async def _store(self, transactional_id: str, decide: Callable[[TransactionShard, int], Decision[T]]) -> T:
        """Submit a decision that may have records, and return its reply. Raises UNKNOWN_SERVER_ERROR if they are too
        large for the topic."""

        def decide_or_prove(shard: TransactionShard, now_ms: int) -> Decision[Any]:
            try:
                return self._decide(decide, shard, now_ms)
            except KafkaError as refusal:
                proof = [] if refusal.code.retriable else _proof(shard, transactional_id)
                if not proof:
                    raise
                return Decision(refusal, proof)

        try:
            reply = await self.runtime.submit(transactional_id, decide_or_prove, at_once=True)
            if isinstance(reply, KafkaError):
                raise reply
            decided: T = reply
            return decided
        except KafkaError as error:
            if error.code is not ErrorCode.MESSAGE_TOO_LARGE:
                raise
            raise KafkaError(ErrorCode.UNKNOWN_SERVER_ERROR, str(error)) from error

    def _submit(
        self, transactional_id: str, decide: Callable[[TransactionShard, int], Decision[T]]
    ) -> asyncio.Future[T]:
        return self.runtime.submit(transactional_id, partial(self._decide, decide), at_once=True)

    def _decide(
        self, decide: Callable[[TransactionShard, int], Decision[T]], shard: TransactionShard, now_ms: int
    ) -> Decision[T]:
        try:
            return decide(shard, now_ms)
        except KafkaError as refusal:
            if refusal.code.retriable or not self._may_be_superseded():
                raise
            raise KafkaError(
                ErrorCode.NOT_COORDINATOR, f"{_OUT_OF_TOUCH} If it still is, the error is: {refusal}"
            ) from refusal

    def _verify(
        self,
        shard: TransactionShard,
        now_ms: int,
        *,
        transactional_id: str,
        producer: ProducerIdentity,
        partitions: frozenset[TopicPartition],
    ) -> Decision[dict[TopicPartition, ErrorCode]]:
        if self._may_be_superseded():
            raise KafkaError(ErrorCode.NOT_COORDINATOR, _OUT_OF_TOUCH)
        try:
            codes = verify(shard, transactional_id=transactional_id, producer=producer, partitions=partitions)
        except KafkaError as refusal:
            if refusal.code.retriable:
                raise
            codes = dict.fromkeys(partitions, refusal.code)
        return Decision(codes, _proof(shard, transactional_id) if any(codes.values()) else ())


def _proof(shard: TransactionShard, transactional_id: str) -> list[KeyValue]:
    """Return the record that stores the state of a transactional id again; nothing if the id is unknown, or the topic
    does not accept the record."""
    known = shard.transactions.get(transactional_id)
    record = None if known is None else transaction_record(transactional_id, known)
    return [record] if record is not None and shard.accepts(size_in_batch([record])) else []


def _check_named(transactional_id: str) -> None:
    if not transactional_id:
        raise KafkaError(ErrorCode.INVALID_REQUEST, "The transactional id is empty.")
