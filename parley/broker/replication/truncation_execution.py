"""Truncation of followers' logs, which protects committed records.

A follower truncates its log to the offset up to which it agrees with its leader's log. If that offset is below the
follower's high watermark, the leader lacks committed records. This is logged at ``error``, and:

* If an unclean election explains it, or the topic allows unclean elections, the log is truncated. A ``.cut`` file keeps
  the removed records (``parley.storage.cut_files``).
* Otherwise the follower keeps its log. It stays outside the ISR until another replica leads, or the operator allows the
  loss (docs/storage.md, "Committed records that a truncation would remove").
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from functools import partial

from parley.broker.config import BrokerConfig
from parley.broker.logging.growing_interval import GrowingInterval
from parley.broker.metrics.catalogue.replication import TruncationMetrics
from parley.broker.replication.hosted_partitions import HostedPartitions
from parley.broker.replication.partition import Partition
from parley.broker.replication.truncation_decisions import (
    Loss,
    Removal,
    StartOver,
    Truncate,
    TruncateFully,
    loss_by,
)
from parley.protocol.sentinels import NO_EPOCH
from parley.storage.cut_files import KeptRecords, keep_records
from parley.storage.log import Log

_log = logging.getLogger(__name__)

REMEDY = (
    "to keep the records, stop the brokers of the ISR and elect this replica (parley elect-leaders --election-type "
    "unclean); to give them up, set unclean.leader.election.enable=true for the topic: a .cut file then keeps them"
)


class TruncationRefused(Exception):
    """Raised if the follower keeps its log, because the log contains records that may be needed. The message is the
    reason."""


class Truncations:
    """Truncates the logs of the partitions that this broker follows."""

    def __init__(
        self,
        partitions: HostedPartitions,
        config: Callable[[], BrokerConfig],
        leave_isr: Callable[[Partition], Awaitable[None]],
    ) -> None:
        """``leave_isr`` removes a replica from the ISR, the ELR and the last known ELR (``Healing.leave_isr``)."""
        self._partitions = partitions
        self._config = config
        self._leave_isr = leave_isr
        self._refusals: dict[Partition, tuple[int, GrowingInterval]] = {}
        """Partition -> the leader epoch of the last refusal, and when to log it again."""
        self.metrics = TruncationMetrics()

    async def truncate(self, partition: Partition, step: Removal, is_current: Callable[[], bool]) -> None:
        """Truncate a follower's log. A ``StartOver`` is refused if ``is_current`` returns False after the replica has
        left the ISR: the step came from another leader or fetcher.

        Raises TruncationRefused if the follower must keep its log, and KafkaError: KAFKA_STORAGE_ERROR or
        CORRUPT_MESSAGE if the log cannot be truncated, or an error of ``leave_isr``.
        """
        log, state = partition.log, partition.state
        facts = {
            "topic": partition.topic,
            "partition": partition.index,
            "leader": state.leader,
            "leader_epoch": state.leader_epoch,
            "log_end": log.log_end_offset,
            "high_watermark": log.high_watermark,
            "offset": step.offset,
        }
        if isinstance(step, StartOver):
            await self._start_over(partition, step, is_current, facts)
            return
        loss = loss_by(step, log, state.unclean_epoch)
        if loss is Loss.NONE:
            if step.offset < log.log_end_offset:
                _log.info("truncating a log to match its leader's", extra=facts)
            await self._partitions.truncate(partition, partial(_truncate, step=step))
        elif loss is Loss.UNEXPLAINED:
            self._refuse(partition, facts)
        else:
            await self._remove_committed(partition, step, facts)

    async def _start_over(
        self, partition: Partition, step: StartOver, is_current: Callable[[], bool], facts: dict[str, object]
    ) -> None:
        """Remove the log, to fetch it again. Nothing is lost: the leader has the same records, compacted further.

        Only a follower outside the ISR and the ELR may do this. Before a damaged log is removed, the follower leaves
        both, while it has no pending fetch after which the leader could add it to the ISR again. It first leaves the
        last known ELR, too, because it may have been the only other replica with all committed records. If its leader
        or its fetcher has changed meanwhile, it may have fetched since, and does not start over yet.
        """
        before = partition.before_start_over
        if before is not None or partition.broker_id in partition.state.last_known_elr:
            await (self._leave_isr(partition) if before is None else before())
            if not is_current():
                raise TruncationRefused("the leader has changed")
        if partition.is_leader or partition.broker_id in (*partition.state.isr, *partition.state.elr):
            raise TruncationRefused("members of the ISR and the ELR keep their logs")
        if partition.log.log_end_offset > partition.log.log_start_offset:
            self.metrics.started_over += 1
            why = "it lacks tombstones that its leader has removed"
            if before is not None:
                why = "its log is damaged, and no other replica was compacted in the same way"
            _log.warning("a replica starts over: %s", why, extra=facts)
        await self._partitions.truncate(partition, partial(_start_over, step=step))
        partition.before_start_over = None

    def _refuse(self, partition: Partition, facts: dict[str, object]) -> None:
        epoch = partition.state.leader_epoch
        known_epoch, interval = self._refusals.get(partition, (NO_EPOCH, None))
        if interval is None or known_epoch != epoch:
            interval = GrowingInterval(asyncio.get_running_loop().time)
            self._refusals = {each: last for each, last in self._refusals.items() if self._partitions.hosts(each)}
            self._refusals[partition] = (epoch, interval)
            self.metrics.refused += 1
        if interval.claim_line():
            _log.error(
                "a replica stops following: its leader lacks committed records that the replica has",
                extra={**facts, "remedy": REMEDY},
            )
        raise TruncationRefused("the leader lacks committed records")

    async def _remove_committed(
        self, partition: Partition, step: Truncate | TruncateFully, facts: dict[str, object]
    ) -> None:
        self._refusals.pop(partition, None)
        limit = self._config().log_cut_retention_bytes
        kept: list[KeptRecords] = []

        def keep_and_truncate(log: Log) -> None:
            kept.append(keep_records(log, step.offset, limit))
            _truncate(log, step)

        count = partition.log.high_watermark - max(step.offset, partition.log.log_start_offset)
        await self._partitions.truncate(partition, keep_and_truncate)
        self.metrics.truncations += 1
        self.metrics.records += count
        facts = {**facts, "committed_records": count, "kept": str(kept[0].path), "complete": kept[0].is_complete}
        _log.error("committed records were removed from a log to match its leader's", extra=facts)


def _start_over(log: Log, step: StartOver) -> None:
    log.truncate_fully_and_start_at(step.offset, tombstones_removed_up_to=step.tombstones_removed_up_to)


def _truncate(log: Log, step: Truncate | TruncateFully) -> None:
    if isinstance(step, Truncate):
        log.truncate_to(step.offset)
    else:
        log.truncate_fully_and_start_at(step.offset)
