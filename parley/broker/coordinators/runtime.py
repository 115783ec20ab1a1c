"""The runtime that all coordinators share: its shards follow the leadership of an internal topic's partitions.

When this broker becomes the leader of a partition, the runtime reads the partition's records into a new state. Until
that is done, requests get COORDINATOR_LOAD_IN_PROGRESS. When another broker is elected, the runtime drops the state,
and everything that waits fails with NOT_COORDINATOR. In between, ``submit`` is the only way to change the stored state,
and the safe way to read it:

    await runtime.submit(group_id, lambda shard, now_ms: Decision(reply=..., records=[...]))

``decision.py`` defines decisions, ``shard.py`` carries them out, and ``internal_topic.py`` stores their records.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterator
from enum import Enum
from typing import Final, Generic, TypeVar

from parley.broker.coordinators.decision import Decision, ShardState
from parley.broker.coordinators.internal_topic import ReadBack, ShardLog, ShardStore, partition_of
from parley.broker.coordinators.shard import Shard
from parley.broker.coordinators.waiting_replies import NotCommittedInTime
from parley.broker.metrics.catalogue.coordinators import CoordinatorMetrics
from parley.broker.runtime.tasks import TaskSet
from parley.light_dataclasses import dataclass
from parley.protocol.errors import ErrorCode, KafkaError

__all__ = ["CoordinatorRuntime", "NotCommittedInTime", "ShardPhase"]

T = TypeVar("T")
S = TypeVar("S", bound=ShardState)

_log = logging.getLogger(__name__)

READ_AGAIN_FIRST_S, READ_AGAIN_MAX_S = 0.1, 10.0
"""The first and the longest pause before a failed load is retried, in seconds. The pause doubles after each attempt."""

LOADS_AT_ONCE: Final = 4
"""The maximum number of partitions to load at the same time. Loading more at once would not be faster, and each load
holds up to ``READ_BYTES`` in memory."""


class ShardPhase(Enum):
    """The phase of a partition that this broker leads. The values are the states in Kafka's metric
    ``num-partitions``."""

    LOADING = "loading"
    ACTIVE = "active"
    FAILED = "failed"
    """The last attempt to load the partition failed. It is retried after a pause."""


@dataclass(slots=True)
class _Hosted(Generic[S]):
    """A partition that this broker leads. ``shard`` is set when the partition has been loaded."""

    partition: int
    leader_epoch: int
    shard: Shard[S] | None = None
    loading: asyncio.Task[None] | None = None
    has_failed: bool = False
    loaded_at: float = 0.0
    """The loop time at which the last load finished."""
    pause_s: float = 0.0
    """The pause before the next load, in seconds."""


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
        """``make_state(partition)`` returns a new, empty state. It is called for each load of a partition.

        ``partition_count()`` returns the number of partitions of the topic, or 0 while it does not exist.
        ``timeout_ms()`` returns how long a reply waits for the in-sync replicas.
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
        """Load a partition that this broker now leads. Does nothing if ``leader_epoch`` is not newer than the known
        one."""
        known = self._hosted.get(partition)
        if known is not None and known.leader_epoch >= leader_epoch:
            return
        self.on_resigned(partition)
        hosted = self._hosted[partition] = _Hosted[S](partition, leader_epoch)
        self._start_loading(hosted)

    def on_resigned(self, partition: int) -> None:
        """Drop the shard of a partition that this broker no longer leads, and fail everything that waits in it with
        NOT_COORDINATOR. Does nothing if there is no such shard."""
        hosted = self._hosted.pop(partition, None)
        if hosted is None:
            return
        if hosted.loading is not None:
            hosted.loading.cancel()
        if hosted.shard is not None:
            hosted.shard.close(ErrorCode.NOT_COORDINATOR)

    def resign_all(self) -> None:
        """Drop all shards, as ``on_resigned`` does, because the broker is stopping or the topic was deleted."""
        for partition in list(self._hosted):
            self.on_resigned(partition)

    async def until_loaded(self, timeout_s: float, key: str | None = None) -> None:
        """Wait until all partitions that this broker leads are loaded, or, with ``key``, only the partition that stores
        it.

        Returns after ``timeout_s`` seconds at the latest, without an error, even if they are not loaded.
        """
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
                "coordinator skipped records that it cannot decode",
                extra={**facts, "records": found.skipped, "first": found.first_skipped},
            )

    async def _read(self, hosted: _Hosted[S]) -> tuple[ShardLog, S, ReadBack]:
        """Read a partition, and retry until it can be read, or until the task is cancelled because another broker was
        elected.

        Logs why the partition cannot be read, once for each new reason.
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
                        "coordinator cannot read a partition and keeps retrying: the partition's clients wait",
                        exc_info=None if isinstance(error, KafkaError) else error,
                        extra={"topic": self.topic, "partition": hosted.partition, "error": str(error)},
                    )
                known_reason = reason
            await asyncio.sleep(pause_s)
            pause_s = min(2 * pause_s, READ_AGAIN_MAX_S)

    def _read_back(self, hosted: _Hosted[S]) -> None:
        """Reload a partition whose state may differ from its log.

        Pauses first if the last load was recent: a client that can cause reloads must not keep this broker busy.
        """
        hosted.shard = None
        if self._hosted.get(hosted.partition) is hosted:
            lasted_s = asyncio.get_running_loop().time() - hosted.loaded_at
            longer_s = min(max(2 * hosted.pause_s, READ_AGAIN_FIRST_S), READ_AGAIN_MAX_S)
            hosted.pause_s = longer_s if lasted_s < READ_AGAIN_MAX_S else 0.0
            self._start_loading(hosted)

    # --- Events ---

    def shard_of(self, key: str) -> int:
        """Return the number of the partition that stores ``key``. Raises NOT_COORDINATOR if the topic does not
        exist."""
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
        """Return the state of a shard. ``key`` is a key that the shard stores, or the number of its partition.

        The state may include records that are not committed and may be lost. To reply with stored state, use
        ``submit``. Raises NOT_COORDINATOR or COORDINATOR_LOAD_IN_PROGRESS.
        """
        return self._active(key).state

    def submit(
        self, key: str | int, decide: Callable[[S, int], Decision[T]], *, at_once: bool = False
    ) -> asyncio.Future[T]:
        """Call ``decide(state, now_ms)`` for a shard in the next turn of the event loop, and return a future of its
        reply.

        ``key`` is a key that the shard stores, or the number of its partition. With ``at_once``, the shard decides
        before this method returns, unless other events are queued, and the future may already be done. Such decisions
        rarely share an append, so use ``at_once`` for shards with few events at a time.

        A decision without records is a read. The reply is sent when all in-sync replicas have everything that the shard
        had written when it decided. ``decide`` must change nothing.

        Raises NOT_COORDINATOR, or COORDINATOR_LOAD_IN_PROGRESS if the partition is being loaded or has too many events.
        The future fails with

        * the KafkaError that ``decide`` raises, or UNKNOWN_SERVER_ERROR if it raises another exception. In this case,
          nothing was written.
        * NOT_COORDINATOR if this broker no longer coordinates the shard, or must reload it. The records may have been
          written.
        * ``NotCommittedInTime`` (COORDINATOR_NOT_AVAILABLE) if the replicas are slow. They may still store the records.
        * COORDINATOR_NOT_AVAILABLE if there are too few in-sync replicas.
        * MESSAGE_TOO_LARGE if the topic does not accept the records. In this case, nothing was written.
        """
        return self._active(key).submit(decide, at_once=at_once)

    def read(self, key: str | int, decide: Callable[[S, int], Decision[T]]) -> T | None:
        """Return the reply of a decision without records, immediately and without a task.

        The decision is made before the queued events. Only its reply is used: its timers and effects are ignored.
        Returns None if the reply would have to wait for the in-sync replicas, or the decision contains records. In this
        case, call ``submit``. Raises NOT_COORDINATOR, COORDINATOR_LOAD_IN_PROGRESS, and the errors of ``decide``.
        """
        return self._active(key).read(decide)

    def decide_at_once(self, key: str | int, decide: Callable[[S, int], Decision[T]]) -> T | asyncio.Future[T]:
        """Decide now for the shard of a key, or of a partition, before the queued events.

        This is for events about state that is not stored: their replies do not depend on records that may be lost, so
        they wait for no replica. If the decision contains records or an effect (``then``), it is discarded, and the
        event is passed to ``submit``.

        Returns the reply, or a future if the reply is ``Held`` or the event was submitted. Raises the errors of
        ``submit`` and ``decide``.
        """
        return self._active(key).decide_at_once(decide)

    def decide_when_committed(self, key: str | int, decide: Callable[[S, int], Decision[T]]) -> T | asyncio.Future[T]:
        """Decide now if the decision writes nothing and all earlier records are committed. Otherwise, pass the event to
        ``submit``.

        This is for frequent events that reply with stored state and rarely change it. Returns and raises the same as
        ``decide_at_once``.
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
        """Append the marker that ends a producer's transaction in a partition of this topic, and apply it. The marker
        aborts the transaction if ``committed`` is False.

        ``coordinator_epoch`` is the epoch of the transaction coordinator. ``transaction_version`` is the version of the
        transaction: from version 2 on, each transaction has its own epoch. Raises and fails like ``submit``. The future
        also fails with INVALID_PRODUCER_EPOCH or TRANSACTION_COORDINATOR_FENCED if the log contains a later epoch.
        """
        return self._active(partition).append_marker(
            producer_id,
            producer_epoch,
            committed=committed,
            coordinator_epoch=coordinator_epoch,
            transaction_version=transaction_version,
        )

    def states(self) -> Iterator[tuple[int, S]]:
        """Iterate over the loaded partitions and their states, for listings and metrics."""
        return iter([(each.partition, each.shard.state) for each in self._hosted.values() if each.shard is not None])

    # --- Observation ---

    @property
    def is_loading(self) -> bool:
        """True if a partition that this broker leads is not loaded yet."""
        return any(hosted.shard is None for hosted in self._hosted.values())

    def metrics(self) -> CoordinatorMetrics:
        """Return the metrics of all shards together."""
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
