"""Writes the markers of prepared transactions to the leaders of their partitions, and then completes the transactions.

Markers for the same broker share requests. If a leader cannot write a marker now, the sender retries with the
partition's current leader until the marker is written or the topic is deleted. When this broker no longer coordinates
the transaction's shard, the sender stops, and the next coordinator starts again from the log. A marker may therefore be
written twice. ``docs/transactions.md`` explains why that is harmless, except with some old clients.
"""

from __future__ import annotations

import asyncio
import logging
from collections import defaultdict, deque
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import field
from functools import partial
from typing import Final, Protocol

from parley.broker.coordinators.decision import Decision
from parley.broker.coordinators.transactions.ending import complete
from parley.broker.coordinators.transactions.shard import TransactionShard
from parley.broker.coordinators.transactions.transaction import PREPARED, Transaction, by_topic
from parley.broker.logging.unexpected_errors import FailureLog
from parley.broker.metadata.current import Metadata
from parley.broker.metadata.types import NO_LEADER
from parley.broker.runtime.first_step import at_once
from parley.broker.runtime.tasks import TaskSet
from parley.light_dataclasses import dataclass
from parley.protocol.errors import ErrorCode, KafkaError
from parley.protocol.messages.transactions import WriteTxnMarkersRequest, WriteTxnMarkersResponse
from parley.protocol.topic_partition import TopicPartition

_log = logging.getLogger(__name__)

RETRY_FIRST_S: Final = 0.02
RETRY_MAX_S: Final = 1.0
"""The first and the longest pause before a marker is sent again, in seconds. The pause doubles after each attempt."""

REQUESTS_IN_FLIGHT: Final = 5
"""The maximum number of requests to one broker at a time. Further markers for that broker wait for the next request."""

PARTITIONS_PER_REQUEST: Final = 5_000
"""The maximum number of partitions in a request, so that the leader handles it in a few turns of its event loop."""

_FINAL_RESULTS: Final = frozenset(
    {
        ErrorCode.NONE,
        # The partition knows a later epoch of the producer: the marker was written, or the transaction ended earlier.
        ErrorCode.INVALID_PRODUCER_EPOCH,
        # The partition cannot contain records of a transaction.
        ErrorCode.UNSUPPORTED_FOR_MESSAGE_FORMAT,
    }
)
"""The results after which a partition needs no further attempt. Any other result is retried."""

Ask = Callable[[int, WriteTxnMarkersRequest], Awaitable[WriteTxnMarkersResponse]]
"""A function that sends a request to a broker, or handles it locally if that is this broker. Raises KafkaError or
OSError."""


class Submits(Protocol):
    """The part of ``CoordinatorRuntime`` that the sender needs to complete transactions."""

    def submit(
        self, key: int, decide: Callable[[TransactionShard, int], Decision[None]], *, at_once: bool
    ) -> asyncio.Future[None]: ...


@dataclass(slots=True, eq=False)
class _PendingMarkers:
    """A prepared transaction, and the partitions that have not confirmed its marker."""

    shard: TransactionShard
    transactional_id: str
    transaction: Transaction
    unconfirmed: set[TopicPartition]
    retry_s: float = RETRY_FIRST_S
    stopped: bool = False
    finished: asyncio.Future[None] = field(default_factory=lambda: asyncio.get_running_loop().create_future())


_Part = tuple[_PendingMarkers, list[TopicPartition]]
"""A transaction, and those of its partitions that one broker leads."""


class MarkerSender:
    """The sender of the markers of all transactions that this broker coordinates. It retries until they are written."""

    def __init__(self, broker_id: int, metadata: Metadata, ask: Ask, tasks: TaskSet) -> None:
        self._broker_id = broker_id
        self._metadata = metadata
        self._ask = ask
        self._tasks = tasks
        self._pending: dict[tuple[int, str], _PendingMarkers] = {}
        self._queues: dict[int, deque[_Part]] = defaultdict(deque)
        self._in_flight: dict[int, int] = defaultdict(int)
        self._runtime: Submits | None = None
        self._failures = FailureLog(_log)
        self.leaderless = 0
        """The number of times that a marker could not be sent because its partition had no leader."""

    def serve(self, runtime: Submits) -> None:
        """Complete transactions through ``runtime``. Call this before the first ``enqueue``."""
        self._runtime = runtime

    def __len__(self) -> int:
        """Return the number of transactions whose markers are being written."""
        return len(self._pending)

    def enqueue(self, shard: TransactionShard, transactional_id: str, transaction: Transaction) -> None:
        """Queue the markers of a prepared transaction for the leaders of its partitions.

        Does nothing if the markers are already queued, or if ``transaction`` is no longer the state of the
        transactional id.
        """
        key = (shard.partition, transactional_id)
        known = self._pending.get(key)
        if known is not None and known.transaction == transaction:
            return
        if shard.transactions.get(transactional_id) != transaction or transaction.state not in PREPARED:
            return
        if known is not None:
            self._drop(known)
        pending = _PendingMarkers(shard, transactional_id, transaction, set(transaction.partitions))
        self._pending[key] = pending
        self._queue_for_leaders(pending, sorted(transaction.partitions))

    def stop(self, shard: TransactionShard) -> None:
        """Stop writing the markers of a shard's transactions."""
        for pending in [pending for pending in self._pending.values() if pending.shard is shard]:
            self._drop(pending)

    async def until_completed(self, partition: int, transactional_id: str, timeout_s: float) -> bool:
        """Wait until a transaction is complete, or this broker no longer coordinates it, and return True.

        Returns False after ``timeout_s`` seconds, or immediately if no markers of the transaction are being written.
        """
        pending = self._pending.get((partition, transactional_id))
        if pending is None:
            return False
        await asyncio.wait((pending.finished,), timeout=timeout_s)
        return pending.finished.done()

    def _drop(self, pending: _PendingMarkers) -> None:
        pending.stopped = True
        if not pending.finished.done():
            pending.finished.set_result(None)
        key = (pending.shard.partition, pending.transactional_id)
        if self._pending.get(key) is pending:
            del self._pending[key]

    # --- Requests ---

    def _queue_for_leaders(self, pending: _PendingMarkers, partitions: Iterable[TopicPartition]) -> None:
        """Queue markers for the current leaders of partitions. Partitions of deleted topics need no marker."""
        if pending.stopped:
            return
        image = self._metadata.image
        by_leader: dict[int, list[TopicPartition]] = defaultdict(list)
        for partition in partitions:
            state = image.partition(*partition)
            if state is None:
                pending.unconfirmed.discard(partition)
            else:
                by_leader[state.leader].append(partition)
        without_leader = by_leader.pop(NO_LEADER, [])
        if without_leader:
            self.leaderless += len(without_leader)
            self._retry_later(pending, without_leader)
        for leader, led in by_leader.items():
            if not self._queues[leader]:
                asyncio.get_running_loop().call_soon(self._drain, leader)
            self._queues[leader].append((pending, led))
        self._complete_if_written(pending)

    def _retry_later(self, pending: _PendingMarkers, partitions: list[TopicPartition]) -> None:
        if pending.stopped or not partitions:
            return
        asyncio.get_running_loop().call_later(pending.retry_s, self._queue_for_leaders, pending, partitions)
        pending.retry_s = min(RETRY_MAX_S, 2 * pending.retry_s)

    def _drain(self, leader: int) -> None:
        """Send the queued markers to a broker, up to its limit of requests in flight."""
        while self._queues[leader] and self._in_flight[leader] < REQUESTS_IN_FLIGHT:
            queue, parts, count = self._queues[leader], list[_Part](), 0
            while queue and count < PARTITIONS_PER_REQUEST:
                pending, partitions = queue.popleft()
                if not pending.stopped:
                    parts.append((pending, partitions))
                    count += len(partitions)
            if parts:
                self._in_flight[leader] += 1
                writing = self._write(leader, parts)
                left = at_once(writing) if leader == self._broker_id else writing
                if left is not None:
                    self._tasks.start(left, name=f"write markers at {leader}")

    async def _write(self, leader: int, parts: list[_Part]) -> None:
        try:
            response = await self._ask(leader, _request(parts))
            results = _results(response)
        except (KafkaError, OSError) as error:
            _log.debug("markers were not written", extra={"broker": leader, "error": str(error)})
            results = {}
        except Exception as error:
            now_s = asyncio.get_running_loop().time()
            self._failures.report("writing markers failed", error, now_s, broker=leader)
            results = {}
        finally:
            self._in_flight[leader] -= 1
            if self._queues[leader]:
                self._drain(leader)
        for pending, partitions in parts:
            self._settle(pending, partitions, results)

    def _settle(
        self,
        pending: _PendingMarkers,
        partitions: list[TopicPartition],
        results: dict[tuple[int, TopicPartition], ErrorCode],
    ) -> None:
        """Record the results of a request. Retry partitions without a final result or without any result."""
        if pending.stopped:
            return
        retried: list[TopicPartition] = []
        for partition in partitions:
            code = results.get((pending.transaction.producer_id, partition))
            if code is ErrorCode.TRANSACTION_COORDINATOR_FENCED:
                _log.warning(
                    "a partition rejects markers of this coordinator: a newer coordinator has written to it",
                    extra={"transactional_id": pending.transactional_id, "partition": "-".join(map(str, partition))},
                )
                self._drop(pending)
                return
            if code in _FINAL_RESULTS:
                pending.unconfirmed.discard(partition)
            else:
                retried.append(partition)
        self._retry_later(pending, retried)
        self._complete_if_written(pending)

    # --- Completion ---

    def _complete_if_written(self, pending: _PendingMarkers) -> None:
        if pending.stopped or pending.unconfirmed or self._runtime is None:
            return
        decide = partial(complete, transactional_id=pending.transactional_id, producer=pending.transaction.identity)
        try:
            completing = self._runtime.submit(pending.shard.partition, decide, at_once=True)
        except KafkaError as error:
            self._retry_completion(pending, error)
        else:
            if completing.done():
                self._on_completed(pending, completing)
            else:
                completing.add_done_callback(partial(self._on_completed, pending))

    def _on_completed(self, pending: _PendingMarkers, completing: asyncio.Future[None]) -> None:
        if completing.cancelled():
            self._drop(pending)
            return
        error = completing.exception()
        if isinstance(error, KafkaError):
            self._retry_completion(pending, error)
            return
        if error is not None:
            self._failures.report("completing a transaction failed", error, asyncio.get_running_loop().time())
        self._drop(pending)

    def _retry_completion(self, pending: _PendingMarkers, error: KafkaError) -> None:
        """Retry the completion after a pause, unless this broker no longer coordinates the transaction."""
        if error.code is ErrorCode.NOT_COORDINATOR:
            self._drop(pending)
        elif not pending.stopped:
            asyncio.get_running_loop().call_later(pending.retry_s, self._complete_if_written, pending)
            pending.retry_s = min(RETRY_MAX_S, 2 * pending.retry_s)


def _request(parts: list[_Part]) -> WriteTxnMarkersRequest:
    return WriteTxnMarkersRequest(
        markers=[
            WriteTxnMarkersRequest.WritableTxnMarker(
                producer_id=pending.transaction.producer_id,
                producer_epoch=pending.transaction.producer_epoch,
                transaction_result=pending.transaction.is_committing,
                topics=[
                    WriteTxnMarkersRequest.WritableTxnMarkerTopic(name=topic, partition_indexes=indexes)
                    for topic, indexes in by_topic(partitions).items()
                ],
                coordinator_epoch=pending.shard.coordinator_epoch,
                transaction_version=pending.transaction.version,
            )
            for pending, partitions in parts
        ]
    )


def _results(response: WriteTxnMarkersResponse) -> dict[tuple[int, TopicPartition], ErrorCode]:
    return {
        (marker.producer_id, (topic.name, partition.partition_index)): ErrorCode(partition.error_code)
        for marker in response.markers
        for topic in marker.topics
        for partition in topic.partitions
    }
