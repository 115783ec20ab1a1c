"""Detects, while this broker is the controller, that the coordination store was rolled back to an older state.

There are two signs. The first is the mark that a restore leaves in the store, or that the embedded store leaves after
it has lost writes. The second is metadata that this or another broker has seen and that the store does not contain
(``parley.broker.metadata.terms``). Individual partitions with outdated epochs are found when their brokers register
(``parley.broker.controller.distrusted_partitions``).

Both signs may appear during a term. The controller's own metadata is then newer than the store's. So the term ends, and
the next one begins with the metadata in the store.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Collection
from contextlib import suppress
from functools import partial

from parley.broker.controller.controller import Controller, Outranked, StoreChanged
from parley.broker.controller.distrusted_partitions import distrust_all
from parley.broker.controller.elections.election_rules import RulesOf
from parley.broker.controller.elections.unclean_recovery import UncleanRecovery
from parley.broker.controller.stored_metadata import TERMS
from parley.broker.coordinators.producer_ids import PRODUCER_IDS
from parley.broker.metadata.terms import NO_TERM, Term, contradicts, terms_from_bytes
from parley.broker.metadata.types import BrokerRegistration
from parley.broker.runtime.tasks import race
from parley.consensus.backend import At, Backend, Check, Delete, Entry
from parley.consensus.errors import PreconditionFailed
from parley.consensus.recipes.listeners import View
from parley.consensus.store_move.store_record import ROLLED_BACK_KEY
from parley.protocol.sentinels import NO_EPOCH

_log = logging.getLogger(__name__)

PRODUCER_IDS_SKIPPED = 1_000_000
"""The number of producer ids that are skipped after the store was rolled back. A broker that is offline may have
allocated them."""


class StoreRollback:
    """Makes the controller distrust a store that was rolled back."""

    def __init__(self, controller: Controller, rules: RulesOf, recovery: UncleanRecovery) -> None:
        self._controller = controller
        self._rules = rules
        self._recovery = recovery

    async def check_store(
        self, store: Backend, members: Callable[[], Awaitable[Collection[BrokerRegistration]]]
    ) -> None:
        """Check whether the store was rolled back. If it was, remove the leaders of all partitions (``distrust_all``).

        The signs are the mark in the store, and metadata that this broker had before its term and the store does not
        have. Call this at the start of a term, before brokers are registered. ``members()`` reads the members from the
        store. Raises CoordinationError, and the errors of ``Controller.submit``.
        """
        mark, missing = await store.get(ROLLED_BACK_KEY), self._controller.missing
        if mark is not None:
            await self._distrust(await members(), mark.value.decode("utf-8", "replace"))
            with suppress(PreconditionFailed):  # rolled back again, or another controller has dealt with it
                await store.txn([Check(ROLLED_BACK_KEY, At(mark.revision))], [Delete(ROLLED_BACK_KEY)])
        elif missing is not None:
            seen = f"version {missing.version} of controller epoch {missing.controller_epoch}"
            await self._distrust(await members(), f"this broker has seen {seen}")

    async def until_rolled_back(self, store: Backend) -> None:
        """Wait until the store is rolled back during the term. Call this after ``check_store``.

        Raises StoreChanged when that happens, or the CoordinationError that ended a watch.
        """
        await race(self._until_marked(store), self._until_terms_disappear())

    async def _until_marked(self, store: Backend) -> None:
        view = View()
        async with store.watch(ROLLED_BACK_KEY) as watch:
            async for event in watch:
                view.apply(event)
                if (mark := view.entries.get(ROLLED_BACK_KEY)) is not None:
                    raise StoreChanged(mark.value.decode("utf-8", "replace"))

    async def _until_terms_disappear(self) -> None:
        """Watch the list of terms. Raises StoreChanged if its last entry, which is the current term, gets a lower
        version.

        Every write of metadata causes an event. An event with a lower version may only mean that the watch lags behind,
        so the list is then read again from the store.
        """
        store, latest, view = self._controller.store, self._controller.terms[-1]._replace(version=0), View()
        async with store.watch(TERMS) as watch:
            async for event in watch:
                view.apply(event)
                last = _last_term(view.entries.get(TERMS))
                if last < latest:
                    last = _last_term(await store.get(TERMS))
                if last < latest:
                    raise StoreChanged("it no longer contains the latest metadata")
                latest = last

    async def check_members(self, members: Collection[BrokerRegistration]) -> None:
        """Compare the terms in the store with the newest metadata that each member had seen when it joined.

        If a member has seen metadata that the store does not contain, remove the leaders of all partitions
        (``distrust_all``). Raises Outranked if that metadata is of a term whose epoch is not below this controller's
        epoch. Also raises CoordinationError, and the errors of ``Controller.submit``.
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
        missing = self._controller.missing
        if missing is not None and any(member.seen > missing.term for member in members):
            missing = None  # it may name outdated ISRs, too
        decide = partial(distrust_all, present=present, leader_epoch=highest, missing=missing, rules=self._rules)
        distrusted = await self._controller.submit(decide, waits_for_store=True, is_slow=True)
        self._controller.forget_earlier_terms()  # only now: the next term needs them if this one ends earlier
        self._recovery.accept_quorums(distrusted.quorums)
        self._recovery.metrics.set_backs += 1
        _log.error(
            "the coordination store was rolled back to an older state: each partition gets a leader when the replicas "
            "that may have its last records have reported their logs",
            extra={"partitions": distrusted.partitions, "reason": reason},
        )


def _last_term(entry: Entry | None) -> Term:
    return NO_TERM if entry is None else terms_from_bytes(entry.value)[-1]
