"""Heals damaged logs: fetches damaged and missing records from other replicas, and puts them in place.

Rules of this module:

* A leader first hands over its leadership, if another live member of the ISR can lead. If none can, it heals its log as
  the leader.
* A range is fetched from one replica at a time, checked (``range_fetch``), and put in place by the log, which checks
  the batches again. Nothing outside the range changes.
* The records of a replica that was compacted differently are not used if a deleted key could come back. If only such
  replicas contain a range, a follower fetches its whole log again: it leaves the ISR, unless that would make the ISR
  too small, and the fetcher removes the log. A leader first hands over its leadership.
* If no live replica contains a range, the records around it stay readable, and fetches of the range get
  CORRUPT_MESSAGE. The replicas are asked again after growing pauses, and immediately when a broker registers.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import Any, NamedTuple

from parley.broker.config.dynamic_config import DynamicConfig
from parley.broker.logging.unexpected_errors import FailureLog
from parley.broker.metadata.changes import BrokerRegistered, Delta
from parley.broker.metadata.current import Metadata
from parley.broker.metadata.image import MetadataImage
from parley.broker.metadata.types import NO_LEADER
from parley.broker.network.peers import Peers
from parley.broker.replication.damaged_partition import DamagedPartition, HealEvent, HealState, sources
from parley.broker.replication.hosted_partitions import HostedPartitions
from parley.broker.replication.partition import Partition
from parley.broker.replication.range_fetch import FetchedBatches, LackedRecords, fetch_batches
from parley.broker.replication.unhealed_range import UnhealedRange
from parley.broker.runtime.tasks import TaskSet
from parley.light_dataclasses import dataclass
from parley.protocol.errors import ErrorCode, KafkaError
from parley.protocol.messages.cluster_metadata import HandOverLeadershipRequest, HandOverLeadershipResponse
from parley.protocol.records.batch_header import headers
from parley.storage.damage.damaged_ranges import DamagedRange
from parley.storage.damage.mending import CompactedOtherwise, Mending
from parley.storage.log_manager import LogManager

_log = logging.getLogger(__name__)

AT_ONCE = 2
"""The maximum number of partitions that are healed at the same time."""
HAND_OVER_S = 5.0
"""How long a leader waits for the metadata to name another leader."""
PURPOSE = "healing"


class HealingInterrupted(Exception):
    """Raised if the damaged records cannot be replaced now, because of this broker's disk or log."""


class _Refused(NamedTuple):
    """A damaged range that no live replica can supply, and the reason for each replica: its error, or that it is
    down."""

    damage: DamagedRange
    reasons: Mapping[int, KafkaError]

    @property
    def facts(self) -> dict[str, object]:
        """The range and the reasons, for the log."""
        replicas = "; ".join(f"broker {replica}: {reason}" for replica, reason in self.reasons.items())
        return {**facts_of(self.damage), "replicas": replicas or "there is no other replica"}

    @property
    def unhealed(self) -> UnhealedRange:
        """The range, and the replicas that do not have it."""
        lacked_by = (replica for replica, reason in self.reasons.items() if isinstance(reason, LackedRecords))
        return UnhealedRange(self.damage, frozenset(lacked_by))

    @property
    def is_compacted_otherwise(self) -> bool:
        """True if another replica contains the records, but was compacted differently."""
        return any(isinstance(reason, CompactedOtherwise) for reason in self.reasons.values())


def facts_of(damage: DamagedRange) -> dict[str, object]:
    """Return the fields that name a damaged range in a log line."""
    return {"first_offset": damage.first_offset, "last_offset": damage.last_offset, "damage": damage.reason}


@dataclass(slots=True)
class HealingCounts:
    """The numbers, since the broker started, of healed ranges, of bytes fetched for them, and of leaderships handed
    over because of damage."""

    ranges: int = 0
    bytes: int = 0
    handed_over: int = 0


class Healing:
    """Heals the damaged logs of the hosted partitions."""

    def __init__(
        self,
        broker_id: int,
        partitions: HostedPartitions,
        logs: LogManager,
        metadata: Metadata,
        peers: Peers,
        config: DynamicConfig,
        ask_controller: Callable[[Any], Awaitable[Any]],
        tasks: TaskSet,
        *,
        epoch: Callable[[], int],
        monotonic: Callable[[], float],
    ) -> None:
        """``epoch`` returns this broker's epoch."""
        self.counts = HealingCounts()
        self._broker_id = broker_id
        self._partitions = partitions
        self._logs = logs
        self._metadata = metadata
        self._peers = peers
        self._config = config
        self._ask_controller = ask_controller
        self._tasks = tasks
        self._epoch = epoch
        self._monotonic = monotonic
        self._damaged: dict[Partition, DamagedPartition] = {}
        self._at_once = asyncio.Semaphore(AT_ONCE)
        self._failures = FailureLog(_log)

    @property
    def in_progress(self) -> list[DamagedPartition]:
        """The hosted partitions with damaged logs."""
        return list(self._damaged.values())

    def watch(self, partition: Partition) -> None:
        """Heal a partition's log, which has just been opened or truncated, if it is damaged now or later."""
        loop = asyncio.get_running_loop()

        def found(damage: DamagedRange) -> None:  # in any thread
            if not loop.is_closed():
                loop.call_soon_threadsafe(self._begin, partition)

        partition.log.on_damage = found
        if partition in self._damaged:
            self._damaged[partition].wakeup.set()  # the replica has started over, so the damage may be repaired
        self._begin(partition)

    def _begin(self, partition: Partition) -> None:
        if partition.is_open and partition.log.damage and partition not in self._damaged:
            damaged = self._damaged[partition] = DamagedPartition(partition, self._monotonic)
            self._tasks.start(self._heal(damaged), name=f"healing of {partition!r}")

    def apply(self, delta: Delta, image: MetadataImage) -> None:
        """Ask the replicas again if a broker has registered, because it may have the damaged records."""
        if self._damaged and any(isinstance(change, BrokerRegistered) for change in delta.changes):
            for damaged in self._damaged.values():
                damaged.wakeup.set()

    async def _heal(self, damaged: DamagedPartition) -> None:
        try:
            while True:
                damaged.wakeup.clear()
                try:
                    await self._attempt(damaged)
                except Exception as error:
                    self._failures.report("healing a log failed", error, self._monotonic(), **damaged.facts)
                    damaged.step(HealEvent.FAIL)
                    damaged.failures += 1
                if damaged.state is not HealState.WAITING:
                    return
                await damaged.until_retry()
        finally:
            del self._damaged[damaged.partition]

    async def _attempt(self, damaged: DamagedPartition) -> None:
        """Hand over the leadership if ``must_hand_over``, then fetch the damaged ranges from the other replicas."""
        partition = damaged.partition
        if damaged.must_hand_over(self._metadata.image.live_broker_ids(), self._monotonic()):
            damaged.step(HealEvent.HAND_OVER)
            await self._hand_over(damaged)
        damaged.step(HealEvent.FETCH)
        async with self._at_once:
            refused, interrupted = await self._fetch_all(partition)
        if not (self._partitions.hosts(partition) and partition.is_open):
            damaged.step(HealEvent.LEAVE)
            return
        partition.unhealed = tuple(each.unhealed for each in refused)
        if not partition.log.damage:
            partition.before_start_over = None
            damaged.step(HealEvent.HEAL)
            return
        starts_over = any(each.is_compacted_otherwise for each in refused) and self._may_start_over(partition)
        partition.before_start_over = partial(self.leave_isr, partition) if starts_over else None
        damaged.step(HealEvent.FAIL)
        damaged.failures += 1
        if interrupted and damaged.interruptions.claim_line():
            for damage, reason in interrupted.items():
                _log.warning(
                    "healing a log was interrupted",
                    extra={**damaged.facts, **facts_of(damage), "reason": reason},
                )
        if refused and damaged.reports.claim_line():
            for each in refused:
                _log.error(
                    "damaged records have no intact copy: fetches of them return CORRUPT_MESSAGE",
                    extra={**damaged.facts, **each.facts},
                )

    # --- Handing over ---

    async def _hand_over(self, damaged: DamagedPartition) -> None:
        """Ask the controller for another leader, and wait until the metadata names it.

        A failed attempt is not repeated here: the leader then heals the log itself.
        """
        damaged.handed_over_s = self._monotonic()
        partition = damaged.partition
        try:
            await self._report(partition, starts_over=False)
        except KafkaError as error:
            _log.warning(
                "a leader with a damaged log failed to hand over its leadership",
                extra={**damaged.facts, "reason": str(error)},
            )
            return
        is_given_up = await self._metadata.until(lambda image: not partition.is_leader, HAND_OVER_S)
        if is_given_up and partition.state.leader != NO_LEADER:
            self.counts.handed_over += 1
            facts = {**damaged.facts, "leader": partition.state.leader}
            _log.warning("a leader with a damaged log has handed over its leadership", extra=facts)

    def _may_start_over(self, partition: Partition) -> bool:
        """Return True if this replica is a follower, and the ISR is large enough without it. The controller decides."""
        state = partition.state
        others = self._metadata.image.live_broker_ids() & set(state.isr) - {self._broker_id}
        min_isr = min(partition.log.config.min_insync_replicas, len(state.replicas))
        return state.leader in others and len(others) >= min_isr

    async def leave_isr(self, partition: Partition) -> None:
        """Ask the controller to remove this replica from the ISR, the ELR and the last known ELR, and wait until the
        metadata shows that.

        The request is needed even if the replica is in none of them, because its leader may be about to add it to the
        ISR. Also returns if the leader has changed: the fetcher checks that. Raises ``KafkaError``: NOT_ENOUGH_REPLICAS
        if the ISR would be too small without the replica, REQUEST_TIMED_OUT if the metadata has not changed after
        ``HAND_OVER_S``, or an error of the controller.
        """
        known = partition.state

        def has_left(image: MetadataImage) -> bool:
            state = partition.state
            return state.leader_epoch != known.leader_epoch or (
                state.partition_epoch > known.partition_epoch
                and self._broker_id not in (*state.isr, *state.elr, *state.last_known_elr)
            )

        if self._broker_id in (*known.isr, *known.elr) and not self._may_start_over(partition):
            partition.before_start_over = None  # until a later attempt to heal finds that the replica may
            raise KafkaError(ErrorCode.NOT_ENOUGH_REPLICAS, "the ISR would be too small without the replica")
        await self._report(partition, starts_over=True)
        if not await self._metadata.until(has_left, HAND_OVER_S):
            raise KafkaError(ErrorCode.REQUEST_TIMED_OUT, "the replica has not left the ISR, ELR and last known ELR")

    async def _report(self, partition: Partition, *, starts_over: bool) -> None:
        """Report to the controller that a log is damaged. Raises ``KafkaError``."""
        topic = HandOverLeadershipRequest.Topic(topic_id=partition.topic_id, partitions=[partition.index])
        request = HandOverLeadershipRequest(
            broker_id=self._broker_id, broker_epoch=self._epoch(), topics=[topic], starts_over=starts_over
        )
        response: HandOverLeadershipResponse = await self._ask_controller(request)
        if response.error_code:
            raise KafkaError(ErrorCode(response.error_code), response.error_message or "")

    # --- Fetching ---

    async def _fetch_all(self, partition: Partition) -> tuple[list[_Refused], dict[DamagedRange, str]]:
        """Fetch every damaged range of the log.

        Returns the ranges that no live replica can supply, and the ranges that this broker cannot replace now, with the
        reasons.
        """
        refused: dict[DamagedRange, _Refused] = {}
        interrupted: dict[DamagedRange, str] = {}
        healed: set[DamagedRange] = set()
        while damage := next(
            (each for each in _damage_of(partition) if each not in refused and each not in interrupted), None
        ):
            if damage in healed:
                interrupted[damage] = "it was replaced, and is damaged again"
                continue
            try:
                reasons = await self._fetch_from_any(partition, damage)
            except HealingInterrupted as error:
                interrupted[damage] = str(error)
                continue
            if reasons is None:
                healed.add(damage)
            else:
                refused[damage] = _Refused(damage, reasons)
        return list(refused.values()), interrupted

    async def _fetch_from_any(self, partition: Partition, damage: DamagedRange) -> dict[int, KafkaError] | None:
        """Replace a range with the records of the first replica that contains them.

        Returns None, or, if no replica could supply the records, the reason for each replica, by broker id. Raises
        ``HealingInterrupted``.
        """
        live = self._metadata.image.live_broker_ids()
        dead = set(partition.state.replicas) - live - {self._broker_id}
        reasons = {replica: KafkaError(ErrorCode.BROKER_NOT_AVAILABLE, "it is down") for replica in sorted(dead)}
        for source in sources(partition.state, self._broker_id, live):
            try:
                async with self._logs.compaction_paused(partition.log):
                    await self._fetch(partition, source, damage)
            except KafkaError as error:
                reasons[source] = error
            else:
                return None
        return reasons

    async def _fetch(self, partition: Partition, source: int, damage: DamagedRange) -> None:
        """Replace a range with the records of one replica. If the range is missing, replace at most one segment of it.

        Raises ``KafkaError`` if that replica does not have the records or is unreachable, and ``HealingInterrupted`` if
        this broker cannot replace them now. In both cases the log is unchanged.
        """
        log = partition.log
        with _own_errors_interrupt():
            if self._logs.get(partition.topic, partition.index) is not log:
                raise HealingInterrupted(f"{log!r} is no longer there")
            run = partial(self._logs.run, self._logs.directory_of(log))
            mending = await run(log.mend, damage)
        try:
            fetched_bytes = 0
            while not (mending.is_complete or mending.is_full):
                fetched = await fetch_batches(
                    partial(self._peers.ask, source, purpose=PURPOSE),
                    partition,
                    mending.next_offset,
                    damage.last_offset,
                    max_bytes=self._config().replica_fetch_max_bytes,
                    has_gaps=log.config.compact,
                )
                mending.lacks_tombstones |= fetched.lacks_tombstones
                with _own_errors_interrupt():
                    await run(_add, mending, fetched)
                fetched_bytes += len(fetched.data)
            last_offset = mending.next_offset - 1
            with _own_errors_interrupt():
                await self._logs.finish_mending(log, mending)
        finally:
            with _own_errors_interrupt():
                await run(mending.abandon)
        self.counts.ranges += 1
        if (damaged := self._damaged.get(partition)) is not None:
            damaged.healed_ranges += 1
        self.counts.bytes += fetched_bytes
        facts = {"topic": partition.topic, "partition": partition.index, "source": source, "bytes": fetched_bytes}
        _log.warning(
            "damaged records were replaced from another replica",
            extra={**facts, "first_offset": damage.first_offset, "last_offset": last_offset, "damage": damage.reason},
        )


def _damage_of(partition: Partition) -> tuple[DamagedRange, ...]:
    """Return the damage of a partition's log, or no damage if the log can no longer be used."""
    return partition.log.damage if partition.is_open else ()


@contextmanager
def _own_errors_interrupt() -> Iterator[None]:
    """Raise an error of this broker's log as ``HealingInterrupted``: it does not show that the other replica lacks the
    records."""
    try:
        yield
    except KafkaError as error:
        if error.code not in (ErrorCode.KAFKA_STORAGE_ERROR, ErrorCode.OFFSET_OUT_OF_RANGE):
            raise  # CORRUPT_MESSAGE: the other replica's records do not match
        raise HealingInterrupted(str(error)) from error


def _add(mending: Mending, fetched: FetchedBatches) -> None:
    """Add fetched batches to the replacement of a range. Offsets may be missing between them. Blocks."""
    for at, header in headers(fetched.data):
        mending.skip_to(header.base_offset)
        mending.add(fetched.data[at : at + header.size_bytes])
    mending.skip_to(fetched.next_offset)
