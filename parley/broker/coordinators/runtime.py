"""The runtime that coordinators have in common: shards follow the leadership of an internal topic's partitions.

When this broker becomes the leader of a partition, the runtime reads its records into a new state; until then, requests
get COORDINATOR_LOAD_IN_PROGRESS. When another broker is elected, the state is dropped, and everything that waits fails
with NOT_COORDINATOR. In between, ``submit`` is the only way to change the lasting state, and the safe way to read it:

    await runtime.submit(group_id, lambda shard, now_ms: Decision(reply=..., records=[...]))

``decision.py`` says what a decision is, ``shard.py`` how it is carried out, ``internal_topic.py`` how it is stored.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import Enum
from typing import Final, Generic, TypeVar

from parley.broker.coordinators.decision import Decision, ShardState
from parley.broker.coordinators.internal_topic import ReadBack, ShardLog, ShardStore, partition_of
from parley.broker.coordinators.shard import NotCommittedInTime, Shard
from parley.broker.metrics.catalogue.coordinators import CoordinatorMetrics
from parley.broker.runtime.tasks import TaskSet
from parley.protocol.errors import ErrorCode, KafkaError

__all__ = ["CoordinatorRuntime", "NotCommittedInTime", "ShardPhase"]

T = TypeVar("T")
S = TypeVar("S", bound=ShardState)

_log = logging.getLogger(__name__)

READ_AGAIN_FIRST_S, READ_AGAIN_MAX_S = 0.1, 10.0
"""The pause before a partition that cannot be read is read again. It doubles from the first to the longest."""

LOADS_AT_ONCE: Final = 4
"""Partitions that are read at the same time. More would not be faster, and each holds one read in memory."""


class ShardPhase(Enum):
    """Where a shard of this broker stands, under the names of Kafka's metric ``num-partitions``."""

    LOADING = "loading"
    ACTIVE = "active"
    FAILED = "failed"
    """The last attempt to read the partition failed. It is read again after a pause."""


@dataclass(slots=True)
class _Hosted(Generic[S]):
    """A partition that this broker leads. It has a shard once it is loaded."""

    partition: int
    leader_epoch: int
    shard: Shard[S] | None = None
    loading: asyncio.Task[None] | None = None
    has_failed: bool = False
    loaded_at: float = 0.0
    """The loop time of the last load's end."""
    pause_s: float = 0.0
    """The pause before the next load."""


class CoordinatorRuntime(Generic[S]):
    """The shards of one internal topic on this broker."""

    def __init__(
        self,
        store: ShardStore,
        make_state: Callable[[int], S],
        partition_count: Callable[[], int],
        *,
        now_ms: Callable[[], int],
        timeout_ms: Callable[[], int],
        tasks: TaskSet,
    ) -> None:
        """``make_state(partition)`` makes an empty state; a partition that is read again gets another one.

        ``partition_count()`` is the number of partitions of the topic, 0 while it does not exist. ``timeout_ms()`` is
        how long a reply waits for the in-sync replicas.
        """
        self.topic = store.name
        self._store = store
        self._make_state = make_state
        self._partition_count = partition_count
        self._now_ms = now_ms
        self._timeout_ms = timeout_ms
        self._tasks = tasks
        self._hosted: dict[int, _Hosted[S]] = {}
        self._loads = asyncio.Semaphore(LOADS_AT_ONCE)
        self._metrics = CoordinatorMetrics()

    # --- Partitions that this broker leads ---

    def on_elected(self, partition: int, leader_epoch: int) -> None:
        """Load a partition that this broker now leads. Does nothing for a leader epoch that is known already."""
        known = self._hosted.get(partition)
        if known is not None and known.leader_epoch >= leader_epoch:
            return
        self.on_resigned(partition)
        hosted = self._hosted[partition] = _Hosted[S](partition, leader_epoch)
        self._start_loading(hosted)

    def on_resigned(self, partition: int) -> None:
        """Drop the shard of a partition that this broker no longer leads."""
        hosted = self._hosted.pop(partition, None)
        if hosted is None:
            return
        if hosted.loading is not None:
            hosted.loading.cancel()
        if hosted.shard is not None:
            hosted.shard.close(ErrorCode.NOT_COORDINATOR)

    def resign_all(self) -> None:
        """Drop all shards: the broker stops, or the topic was deleted."""
        for partition in list(self._hosted):
            self.on_resigned(partition)

    async def until_loaded(self, timeout_s: float, key: str | None = None) -> None:
        """Wait at most ``timeout_s`` until all partitions of this broker are loaded, or only the one of a key."""
        found = self._hosted.values() if key is None else [self._hosted_of(key)]
        loading = [hosted.loading for hosted in found if hosted is not None and hosted.loading is not None]
        if loading:
            await asyncio.wait(loading, timeout=timeout_s)

    # --- Loading ---

    def _start_loading(self, hosted: _Hosted[S]) -> None:
        hosted.loading = self._tasks.start(self._load(hosted), name=f"load {self.topic}-{hosted.partition}")

    async def _load(self, hosted: _Hosted[S]) -> None:
        loop = asyncio.get_running_loop()
        if hosted.pause_s:
            await asyncio.sleep(hosted.pause_s)
        began = loop.time()
        log, state, found = await self._read(hosted)
        facts = {"topic": self.topic, "partition": hosted.partition}
        hosted.shard = Shard(
            log,
            state,
            loaded_offset=found.end_offset,
            now_ms=self._now_ms,
            timeout_ms=self._timeout_ms,
            metrics=self._metrics,
            on_lost=lambda shard: self._read_back(hosted),
            facts=facts,
        )
        hosted.loading = None
        hosted.loaded_at = loop.time()
        hosted.shard.timers.set(state.loaded(self._now_ms()))
        took_us = round(1_000_000 * (loop.time() - began))
        self._metrics.load_time.observe(took_us)
        self._metrics.skipped += found.skipped
        if found.records:
            _log.info(
                "coordinator loaded a partition", extra={**facts, "records": found.records, "ms": took_us // 1000}
            )
        if found.skipped:
            _log.warning(
                "a coordinator skipped records that it does not understand",
                extra={**facts, "records": found.skipped, "first": found.first_skipped},
            )

    async def _read(self, hosted: _Hosted[S]) -> tuple[ShardLog, S, ReadBack]:
        """Read a partition, and repeat that until it succeeds. It is cancelled when another broker is elected.

        Logs why the partition cannot be read whenever the reason changes.
        """
        pause_s, known_reason = READ_AGAIN_FIRST_S, ""
        while True:
            state = self._make_state(hosted.partition)
            try:
                async with self._loads:
                    found = await self._store.read(hosted.partition, state)
                log = self._store.open(hosted.partition)
                hosted.has_failed = False
                return log, state, found
            except Exception as error:
                hosted.has_failed = True
                reason = repr(error)
                if reason != known_reason:
                    _log.error(
                        "a coordinator cannot read a partition: its clients wait until it can",
                        exc_info=None if isinstance(error, KafkaError) else error,
                        extra={"topic": self.topic, "partition": hosted.partition, "error": str(error)},
                    )
                known_reason = reason
            await asyncio.sleep(pause_s)
            pause_s = min(2 * pause_s, READ_AGAIN_MAX_S)

    def _read_back(self, hosted: _Hosted[S]) -> None:
        """Load a partition again whose state may differ from its log.

        If that happens again soon after a load, pause first: a client that can cause it must not keep this broker busy
        with reading.
        """
        hosted.shard = None
        if self._hosted.get(hosted.partition) is hosted:
            lasted_s = asyncio.get_running_loop().time() - hosted.loaded_at
            longer_s = min(max(2 * hosted.pause_s, READ_AGAIN_FIRST_S), READ_AGAIN_MAX_S)
            hosted.pause_s = longer_s if lasted_s < READ_AGAIN_MAX_S else 0.0
            self._start_loading(hosted)

    # --- Events ---

    def shard_of(self, key: str) -> int:
        """Return the partition that stores a key. Raises NOT_COORDINATOR while the topic does not exist."""
        count = self._partition_count()
        if not count:
            raise KafkaError(ErrorCode.NOT_COORDINATOR)
        return partition_of(key, count)

    def _hosted_of(self, key: str | int) -> _Hosted[S] | None:
        if isinstance(key, int):
            return self._hosted.get(key)
        count = self._partition_count()
        return self._hosted.get(partition_of(key, count)) if count else None

    def _active(self, key: str | int) -> Shard[S]:
        hosted = self._hosted_of(key)
        if hosted is None:
            raise KafkaError(ErrorCode.NOT_COORDINATOR)
        if hosted.shard is None:
            raise KafkaError(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)
        return hosted.shard

    def state_of(self, key: str | int) -> S:
        """Return the state of a key's, or a partition's, shard. Raises NOT_COORDINATOR, COORDINATOR_LOAD_IN_PROGRESS.

        The state may have records that will be lost. A reply that shows lasting state must come from ``submit``.
        """
        return self._active(key).state

    def submit(
        self, key: str | int, decide: Callable[[S, int], Decision[T]], *, at_once: bool = False
    ) -> asyncio.Future[T]:
        """Let the shard of a key, or of a partition, decide: ``decide(state, now_ms)``, in the next turn of the loop.

        With ``at_once`` it decides before this returns, unless other events wait: the future may be done then. Few
        decisions share an append that way, so it is for shards with few events at a time.

        A decision without records is a read. The reply is given when all in-sync replicas have everything that the
        shard had written when it decided. ``decide`` must change nothing, and may raise KafkaError: the future fails
        with it.

        Raises NOT_COORDINATOR, or COORDINATOR_LOAD_IN_PROGRESS while the partition is being loaded or has too many
        events. The future fails with

        * NOT_COORDINATOR if the shard is lost; the records may have been written;
        * ``NotCommittedInTime`` (COORDINATOR_NOT_AVAILABLE) if the replicas are slow; they may still take the records;
        * COORDINATOR_NOT_AVAILABLE if there are too few in-sync replicas;
        * MESSAGE_TOO_LARGE if the topic does not accept the records, and then nothing was written.
        """
        return self._active(key).submit(decide, at_once=at_once)

    def read(self, key: str | int, decide: Callable[[S, int], Decision[T]]) -> T | None:
        """Return the reply of a decision without records, at once and without a task.

        Events that wait for their turn come after it. Returns None if the reply would have to wait for the in-sync
        replicas: submit the decision then. Raises NOT_COORDINATOR, COORDINATOR_LOAD_IN_PROGRESS, and what ``decide``
        raises.
        """
        return self._active(key).read(decide)

    def decide_at_once(self, key: str | int, decide: Callable[[S, int], Decision[T]]) -> T | asyncio.Future[T]:
        """Let the shard of a key, or of a partition, decide now, before the events that wait for their turn.

        This is for events about what is not stored: the reply shows nothing that may be lost, so it waits for no
        replica. A decision with records, or with an effect (``then``), is dropped, and the event submitted as
        ``submit`` does.

        Returns the reply, or a future if the decision holds the reply or was submitted. Raises as ``submit`` and
        ``decide`` do.
        """
        return self._active(key).decide_at_once(decide)

    def decide_when_committed(self, key: str | int, decide: Callable[[S, int], Decision[T]]) -> T | asyncio.Future[T]:
        """Decide now if nothing has to be written and the replicas have everything; else in the next turn of the loop.

        This is for frequent events that show lasting state and rarely change it. Returns and raises as
        ``decide_at_once`` does.
        """
        return self._active(key).decide_when_committed(decide)

    def append_marker(
        self,
        partition: int,
        producer_id: int,
        producer_epoch: int,
        *,
        committed: bool,
        coordinator_epoch: int,
        transaction_version: int = 0,
    ) -> asyncio.Future[None]:
        """Append the marker that ends a producer's transaction in a partition of this topic, and apply it.

        ``transaction_version`` is that of the transaction: from version 2 on, each has an epoch of its own.
        Raises, and fails, as ``submit`` does, and with INVALID_PRODUCER_EPOCH or TRANSACTION_COORDINATOR_FENCED if the
        log knows a later epoch.
        """
        return self._active(partition).append_marker(
            producer_id,
            producer_epoch,
            committed=committed,
            coordinator_epoch=coordinator_epoch,
            transaction_version=transaction_version,
        )

    def states(self) -> Iterator[tuple[int, S]]:
        """Return the partitions that are loaded, with their states, for listings and metrics."""
        return iter([(each.partition, each.shard.state) for each in self._hosted.values() if each.shard is not None])

    # --- Observation ---

    @property
    def is_loading(self) -> bool:
        """True while a partition that this broker leads is not loaded."""
        return any(hosted.shard is None for hosted in self._hosted.values())

    def metrics(self) -> CoordinatorMetrics:
        """Return the numbers of all shards."""
        self._metrics.queued = sum(each.shard.queued for each in self._hosted.values() if each.shard is not None)
        return self._metrics

    def phases(self) -> dict[ShardPhase, int]:
        """Return the number of partitions in each phase."""
        counts = dict.fromkeys(ShardPhase, 0)
        for hosted in self._hosted.values():
            if hosted.shard is not None:
                counts[ShardPhase.ACTIVE] += 1
            else:
                counts[ShardPhase.FAILED if hosted.has_failed else ShardPhase.LOADING] += 1
        return counts
