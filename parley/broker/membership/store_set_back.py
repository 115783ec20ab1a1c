"""Detects, while this broker is the controller, that the coordination store was set back to an older state.

There are two signs. The first is the mark that a restore leaves in the store, or that the embedded store leaves after
it has lost writes. The second is a broker that has seen metadata which the store does not contain
(``parley.broker.metadata.terms``). Individual partitions with outdated epochs are found when their brokers register
(``parley.broker.controller.distrusted_partitions``).
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Collection
from contextlib import suppress
from functools import partial

from parley.broker.controller.controller import Controller, Outranked
from parley.broker.controller.distrusted_partitions import distrust_all
from parley.broker.coordinators.producer_ids import PRODUCER_IDS
from parley.broker.metadata.terms import contradicts
from parley.broker.metadata.types import BrokerRegistration
from parley.broker.metrics.catalogue.replication import ElectionMetrics
from parley.consensus.backend import At, Backend, Check, Delete
from parley.consensus.errors import PreconditionFailed
from parley.consensus.store_move.store_record import SET_BACK_KEY
from parley.protocol.sentinels import NO_EPOCH

_log = logging.getLogger(__name__)

PRODUCER_IDS_SKIPPED = 1_000_000
"""The number of producer ids that are skipped after the store was set back. A broker that is offline may have allocated
them."""


class StoreSetBack:
    """Makes the controller distrust a store that was set back."""

    def __init__(self, controller: Controller, metrics: ElectionMetrics) -> None:
        self._controller = controller
        self._metrics = metrics

    async def check_mark(
        self, store: Backend, members: Callable[[], Awaitable[Collection[BrokerRegistration]]]
    ) -> None:
        """Look for the mark in the store. Call this at the start of a term, before brokers are registered.

        ``members()`` reads the members from the store. Raises CoordinationError, and what ``Controller.submit`` raises.
        """
        mark = await store.get(SET_BACK_KEY)
        if mark is None:
            return
        await self._distrust(await members(), mark.value.decode("utf-8", "replace"))
        with suppress(PreconditionFailed):  # set back again, or another controller has dealt with it
            await store.txn([Check(SET_BACK_KEY, At(mark.revision))], [Delete(SET_BACK_KEY)])

    async def check_members(self, members: Collection[BrokerRegistration]) -> None:
        """Compare the terms in the store with the newest metadata that each member had seen when it joined.

        Raises Outranked if a member has seen a term whose epoch is not below this controller's epoch. Also raises
        CoordinationError, and what ``Controller.submit`` raises.
        """
        terms = self._controller.terms
        contradicting = [member for member in members if contradicts(terms, member.seen)]
        if not contradicting:
            return
        latest = max(contradicting, key=lambda member: member.seen)
        if latest.seen.epoch >= terms[-1].epoch:
            raise Outranked(latest.broker_id, latest.seen.epoch)
        seen = latest.seen
        reason = f"broker {latest.broker_id} has seen version {seen.version} of controller epoch {seen.epoch}"
        await self._distrust(members, reason)

    async def _distrust(self, members: Collection[BrokerRegistration], reason: str) -> None:
        present = {member.incarnation_id for member in members}
        await self._controller.store.next_id(PRODUCER_IDS, block=PRODUCER_IDS_SKIPPED)
        highest = max((member.seen_leader_epoch for member in members), default=NO_EPOCH)
        decide = partial(distrust_all, present=present, leader_epoch=highest)
        partitions = await self._controller.submit(decide, waits_for_store=True, is_slow=True)
        self._controller.forget_earlier_terms()  # only now: the next term needs them if this one ends earlier
        self._metrics.set_backs += 1
        _log.error(
            "the coordination store was set back to an older state: each partition gets a leader when all its replicas "
            "have reported their logs",
            extra={"partitions": partitions, "reason": reason},
        )
