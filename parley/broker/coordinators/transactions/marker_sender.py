"""Writes the markers of prepared transactions to the leaders of their partitions, and then has them completed.

Markers for the same broker share requests. A partition whose leader cannot take the marker now is tried again, at its
current leader, until it has the marker or its topic is deleted. The work belongs to a shard: when this broker no longer
coordinates it, the work stops, and the next coordinator begins it again from the log. So a marker may be written twice:
``docs/transactions.md`` says why that does no harm, and for which old clients it may.
"""

from __future__ import annotations

import asyncio
import logging
from collections import defaultdict, deque
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass, field
from functools import partial
from typing import Final, Protocol

from parley.broker.coordinators.decision import Decision
from parley.broker.coordinators.transactions.ending import complete
from parley.broker.coordinators.transactions.shard import TransactionShard
from parley.broker.coordinators.transactions.transaction import PREPARED, TopicPartition, Transaction
from parley.broker.logging.unexpected_errors import FailureLog
from parley.broker.metadata.current import Metadata
from parley.broker.metadata.types import NO_LEADER
from parley.broker.runtime.first_step import at_once
from parley.broker.runtime.tasks import TaskSet
from parley.protocol.errors import ErrorCode, KafkaError
from parley.protocol.messages.transactions import WriteTxnMarkersRequest, WriteTxnMarkersResponse

_log = logging.getLogger(__name__)

RETRY_FIRST_S: Final = 0.02
RETRY_MAX_S: Final = 1.0
"""The pause before a partition without its marker is tried again. It doubles from the first to the longest."""

REQUESTS_IN_FLIGHT: Final = 5
"""Requests to one broker at a time. While so many are under way, the markers for it gather for the next one."""

PARTITIONS_PER_REQUEST: Final = 5_000
"""The most partitions in one request, so that a leader appends to them in a few turns of its event loop."""

_WRITTEN: Final = frozenset(
    {
        ErrorCode.NONE,
        # The partition has a later epoch of the producer: it has this marker, or its transaction ended in another way.
        ErrorCode.INVALID_PRODUCER_EPOCH,
        # The partition cannot have records of a transaction.
        ErrorCode.UNSUPPORTED_FOR_MESSAGE_FORMAT,
    }
)

Ask = Callable[[int, WriteTxnMarkersRequest], Awaitable[WriteTxnMarkersResponse]]
"""Sends a request to a broker, or has it handled here if it is this broker. Raises KafkaError."""


class Submits(Protocol):
    """The part of ``CoordinatorRuntime`` that completes transactions."""

    def submit(
        self, key: int, decide: Callable[[TransactionShard, int], Decision[None]], *, at_once: bool
    ) -> asyncio.Future[None]: ...


@dataclass(slots=True, eq=False)
class _Ending:
    """A prepared transaction, and the partitions that have not confirmed its marker."""

    shard: TransactionShard
    transactional_id: str
    transaction: Transaction
    waiting: set[TopicPartition]
    retry_s: float = RETRY_FIRST_S
    stopped: bool = False
    ended: asyncio.Future[None] = field(default_factory=lambda: asyncio.get_running_loop().create_future())


_Part = tuple[_Ending, list[TopicPartition]]
"""The partitions of a transaction that one broker leads."""


class MarkerSender:
    """Writes the markers of all shards of this broker."""

    def __init__(self, broker_id: int, metadata: Metadata, ask: Ask, tasks: TaskSet) -> None:
        self._broker_id = broker_id
        self._metadata = metadata
        self._ask = ask
        self._tasks = tasks
        self._endings: dict[tuple[int, str], _Ending] = {}
        self._queues: dict[int, deque[_Part]] = defaultdict(deque)
        self._in_flight: dict[int, int] = defaultdict(int)
        self._runtime: Submits | None = None
        self._failures = FailureLog(_log)
        self.leaderless = 0
        """Partitions without a leader that were to get a marker, each time they were tried."""

    def serve(self, runtime: Submits) -> None:
        """Complete transactions through ``runtime``. To be called before there are any."""
        self._runtime = runtime

    def __len__(self) -> int:
        """The number of transactions whose markers are being written."""
        return len(self._endings)

    def send(self, shard: TransactionShard, transactional_id: str, transaction: Transaction) -> None:
        """Write the markers of a prepared transaction, unless they are being written or its state has changed since."""
        key = (shard.partition, transactional_id)
        known = self._endings.get(key)
        if known is not None and known.transaction == transaction:
            return
        if shard.transactions.get(transactional_id) != transaction or transaction.state not in PREPARED:
            return
        if known is not None:
            self._drop(known)
        ending = _Ending(shard, transactional_id, transaction, set(transaction.partitions))
        self._endings[key] = ending
        self._enqueue(ending, sorted(transaction.partitions))

    def stop(self, shard: TransactionShard) -> None:
        """Stop writing markers on behalf of a shard."""
        for ending in [ending for ending in self._endings.values() if ending.shard is shard]:
            self._drop(ending)

    async def until_ended(self, partition: int, transactional_id: str, timeout_s: float) -> bool:
        """Wait until a transaction is complete, or has another coordinator. False after ``timeout_s``, or if no markers
        are being written."""
        ending = self._endings.get((partition, transactional_id))
        if ending is None:
            return False
        await asyncio.wait((ending.ended,), timeout=timeout_s)
        return ending.ended.done()

    def _drop(self, ending: _Ending) -> None:
        ending.stopped = True
        if not ending.ended.done():
            ending.ended.set_result(None)
        key = (ending.shard.partition, ending.transactional_id)
        if self._endings.get(key) is ending:
            del self._endings[key]

    # --- Requests ---

    def _enqueue(self, ending: _Ending, partitions: Iterable[TopicPartition]) -> None:
        """Queue markers for the leaders of partitions. Partitions of deleted topics need none."""
        if ending.stopped:
            return
        image = self._metadata.image
        by_leader: dict[int, list[TopicPartition]] = defaultdict(list)
        for partition in partitions:
            state = image.partition(*partition)
            if state is None:
                ending.waiting.discard(partition)
            else:
                by_leader[state.leader].append(partition)
        without_leader = by_leader.pop(NO_LEADER, [])
        if without_leader:
            self.leaderless += len(without_leader)
            self._retry_later(ending, without_leader)
        for leader, led in by_leader.items():
            if not self._queues[leader]:
                asyncio.get_running_loop().call_soon(self._drain, leader)
            self._queues[leader].append((ending, led))
        self._complete_if_written(ending)

    def _retry_later(self, ending: _Ending, partitions: list[TopicPartition]) -> None:
        if ending.stopped or not partitions:
            return
        asyncio.get_running_loop().call_later(ending.retry_s, self._enqueue, ending, partitions)
        ending.retry_s = min(RETRY_MAX_S, 2 * ending.retry_s)

    def _drain(self, leader: int) -> None:
        """Send the queued markers to a broker, as far as its requests in flight allow."""
        while self._queues[leader] and self._in_flight[leader] < REQUESTS_IN_FLIGHT:
            queue, parts, count = self._queues[leader], list[_Part](), 0
            while queue and count < PARTITIONS_PER_REQUEST:
                ending, partitions = queue.popleft()
                if not ending.stopped:
                    parts.append((ending, partitions))
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
        for ending, partitions in parts:
            self._settle(ending, partitions, results)

    def _settle(
        self,
        ending: _Ending,
        partitions: list[TopicPartition],
        results: dict[tuple[int, TopicPartition], ErrorCode],
    ) -> None:
        """Take note of the outcomes. A partition without one is tried again."""
        if ending.stopped:
            return
        retried: list[TopicPartition] = []
        for partition in partitions:
            code = results.get((ending.transaction.producer_id, partition))
            if code is ErrorCode.TRANSACTION_COORDINATOR_FENCED:
                _log.warning(
                    "a partition refuses markers of this coordinator: another one has written there",
                    extra={"transactional_id": ending.transactional_id, "partition": "-".join(map(str, partition))},
                )
                self._drop(ending)
                return
            if code in _WRITTEN:
                ending.waiting.discard(partition)
            else:
                retried.append(partition)
        self._retry_later(ending, retried)
        self._complete_if_written(ending)

    # --- Completion ---

    def _complete_if_written(self, ending: _Ending) -> None:
        if ending.stopped or ending.waiting or self._runtime is None:
            return
        decide = partial(complete, transactional_id=ending.transactional_id, producer=ending.transaction.identity)
        try:
            completing = self._runtime.submit(ending.shard.partition, decide, at_once=True)
        except KafkaError as error:
            self._not_completed(ending, error)
        else:
            if completing.done():
                self._completed(ending, completing)
            else:
                completing.add_done_callback(partial(self._completed, ending))

    def _completed(self, ending: _Ending, completing: asyncio.Future[None]) -> None:
        if completing.cancelled():
            self._drop(ending)
            return
        error = completing.exception()
        if isinstance(error, KafkaError):
            self._not_completed(ending, error)
            return
        if error is not None:
            self._failures.report("completing a transaction failed", error, asyncio.get_running_loop().time())
        self._drop(ending)

    def _not_completed(self, ending: _Ending, error: KafkaError) -> None:
        """Try again, unless this broker no longer coordinates the transaction."""
        if error.code is ErrorCode.NOT_COORDINATOR:
            self._drop(ending)
        elif not ending.stopped:
            asyncio.get_running_loop().call_later(ending.retry_s, self._complete_if_written, ending)
            ending.retry_s = min(RETRY_MAX_S, 2 * ending.retry_s)


def _request(parts: list[_Part]) -> WriteTxnMarkersRequest:
    return WriteTxnMarkersRequest(
        markers=[
            WriteTxnMarkersRequest.WritableTxnMarker(
                producer_id=ending.transaction.producer_id,
                producer_epoch=ending.transaction.producer_epoch,
                transaction_result=ending.transaction.is_committing,
                topics=[
                    WriteTxnMarkersRequest.WritableTxnMarkerTopic(name=topic, partition_indexes=indexes)
                    for topic, indexes in _by_topic(partitions).items()
                ],
                coordinator_epoch=ending.shard.coordinator_epoch,
                transaction_version=ending.transaction.version,
            )
            for ending, partitions in parts
        ]
    )


def _by_topic(partitions: Iterable[TopicPartition]) -> dict[str, list[int]]:
    by_topic: dict[str, list[int]] = defaultdict(list)
    for topic, index in partitions:
        by_topic[topic].append(index)
    return by_topic


def _results(response: WriteTxnMarkersResponse) -> dict[tuple[int, TopicPartition], ErrorCode]:
    return {
        (marker.producer_id, (topic.name, partition.partition_index)): ErrorCode(partition.error_code)
        for marker in response.markers
        for topic in marker.topics
        for partition in topic.partitions
    }
