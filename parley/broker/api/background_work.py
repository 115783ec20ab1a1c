"""DescribeBackgroundWork: the log compactions, verifications and repairs in progress on this broker. The controller's
response also contains the recoveries of brokers that are starting."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from typing import Final

from parley.broker.membership.recovery_notes import RecoveryNote
from parley.broker.network.request_context import Handler, RequestContext
from parley.broker.replication.damaged_partition import DamagedPartition, HealState
from parley.broker.replication.healing import Healing
from parley.consensus.errors import CoordinationError
from parley.protocol.messages.background_work import (
    COMPACTION,
    HEALING,
    RECOVERY,
    VERIFICATION,
    DescribeBackgroundWorkRequest,
    DescribeBackgroundWorkResponse,
)
from parley.storage.compaction.log_cleaner import LogCleaner
from parley.storage.damage.scrubber import Scrubber

_READ_MAX_S: Final = 2.0
"""The maximum time, in seconds, that the response waits for the store."""

Work = DescribeBackgroundWorkResponse.Work


class BackgroundWorkApi:
    """Handler of DescribeBackgroundWork."""

    def __init__(
        self,
        broker_id: int,
        cleaner: LogCleaner,
        scrubber: Scrubber,
        healing: Healing,
        *,
        recovery_notes: Callable[[], Awaitable[Iterable[RecoveryNote]]],
        is_controller: Callable[[], bool],
        monotonic: Callable[[], float],
    ) -> None:
        """``recovery_notes`` reads the notes of starting brokers from the store, and may raise CoordinationError."""
        self._broker_id = broker_id
        self._cleaner = cleaner
        self._scrubber = scrubber
        self._healing = healing
        self._recovery_notes = recovery_notes
        self._is_controller = is_controller
        self._monotonic = monotonic

    def routes(self) -> dict[int, Handler]:
        return {DescribeBackgroundWorkRequest.API_KEY: self.describe}

    async def describe(
        self, context: RequestContext, request: DescribeBackgroundWorkRequest
    ) -> DescribeBackgroundWorkResponse:
        """Return the work in progress on this broker and, if it is the controller, the recoveries of starting brokers.

        The recoveries are omitted if the store fails, or does not respond within ``_READ_MAX_S``.
        """
        works = [*self._compactions(), *self._verifications(), *map(self._healed, self._healing.in_progress)]
        if self._is_controller():
            works += await self._recoveries()
        return DescribeBackgroundWorkResponse(works=works)

    def _compactions(self) -> Iterable[Work]:
        for each in self._cleaner.in_progress:
            yield Work(
                kind=COMPACTION,
                broker_id=self._broker_id,
                topic=each.log.topic,
                partition_index=each.log.partition,
                log_dir=str(each.log.directory.parent),
                done=each.done_bytes,
                total=each.bytes_to_read,
                elapsed_ms=round(1000 * each.elapsed_s),
            )

    def _verifications(self) -> Iterable[Work]:
        for each in self._scrubber.in_progress:
            yield Work(
                kind=VERIFICATION,
                broker_id=self._broker_id,
                topic=None,
                partition_index=-1,
                log_dir=str(each.directory),
                done=each.verified_bytes,
                total=each.due_bytes,
                elapsed_ms=round(1000 * each.elapsed_s),
                detail=f"now {each.log.topic}-{each.log.partition}",
            )

    def _healed(self, damaged: DamagedPartition) -> Work:
        partition = damaged.partition
        log = partition.log if partition.is_open else None
        left = () if log is None else log.damage
        return Work(
            kind=HEALING,
            broker_id=self._broker_id,
            topic=partition.topic,
            partition_index=partition.index,
            log_dir=None if log is None else str(log.directory.parent),
            done=damaged.healed_ranges,
            total=damaged.healed_ranges + len(left),
            elapsed_ms=round(1000 * (self._monotonic() - damaged.found_s)),
            detail=_healing_detail(damaged, sum(map(partition.has_no_copy, left))),
        )

    async def _recoveries(self) -> list[Work]:
        try:
            async with asyncio.timeout(_READ_MAX_S):
                notes = await self._recovery_notes()
        except (CoordinationError, TimeoutError):
            return []
        return [
            Work(
                kind=RECOVERY,
                broker_id=note.broker_id,
                topic=None,
                partition_index=-1,
                log_dir=None,
                done=note.opened,
                total=note.logs,
                elapsed_ms=note.elapsed_ms,
            )
            for note in notes
        ]


def _healing_detail(damaged: DamagedPartition, without_copy: int) -> str:
    if damaged.state is not HealState.WAITING:
        return damaged.state.name.lower().replace("_", " ")
    if without_copy:
        return "no live replica has an intact copy; retrying after a pause"
    return "asking the replicas again after a pause"
