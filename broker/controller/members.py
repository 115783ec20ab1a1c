"""The controller's view of who is alive: turns the members of the group of brokers into registrations, and fences.

A broker is fenced

* at once, when its process is known to be gone (``watchdog``), or it has been a member in this term and is no more;
* after a silence: when it has not asked for metadata for as long, be it a member or not. One that cannot hear of
  changes must not lead. At the beginning of a term everybody has this time to appear: the store, and with it every
  session, may have been away.

Fencing is always safe, and never final: a broker that lives learns of it and comes back under a higher epoch. Where one
comes back that was held for gone, something on the way refuses connections in its name: from then on only its silence
counts.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from dataclasses import replace
from uuid import UUID

from broker.controller.brokers import UncleanAllowed, broker_joined, broker_lost
from broker.controller.controller import Controller
from broker.controller.publication import Publication
from broker.controller.watchdog import until_gone
from broker.metadata.current import Metadata
from broker.metadata.encoding import registration_from_bytes
from broker.metadata.types import BrokerRegistration
from broker.tasks import TaskSet, race
from consensus.recipes.groups import Groups, Member

log = logging.getLogger(__name__)

BROKERS_GROUP = "brokers"
CHECKS_PER_SILENCE = 10


class Members:
    """Follows the members while this broker is in office."""

    def __init__(
        self,
        broker_id: int,
        controller: Controller,
        metadata: Metadata,
        publication: Publication,
        *,
        listener: str,
        unclean: UncleanAllowed,
        silence_s: float,
        monotonic: Callable[[], float],
    ) -> None:
        self._broker_id = broker_id
        self._controller = controller
        self._metadata = metadata
        self._publication = publication
        self._listener = listener
        self._unclean = unclean
        self._silence_s = silence_s
        self._monotonic = monotonic
        self._seen: dict[int, int] = {}  # members of this term, with the epochs they came under
        self._since: dict[tuple[int, int], float] = {}  # (broker, epoch) -> when its silence began to count
        self._watched: dict[tuple[int, int], asyncio.Task[None]] = {}
        self._held_for_gone: set[UUID] = set()  # incarnations

    async def run(self, groups: Groups) -> None:
        """Follow until cancelled. Raises what ends the watch of the members, and NOT_CONTROLLER."""
        watches = TaskSet()
        self._seen.clear()
        self._since.clear()
        self._watched.clear()
        self._held_for_gone.clear()
        self._tend(watches)
        try:
            await race(self._follow(groups, watches), self._fence_the_silent(watches))
        finally:
            await watches.close()

    async def _follow(self, groups: Groups, watches: TaskSet) -> None:
        async for members in groups.watch(BROKERS_GROUP):
            await self._reconcile(members)
            self._tend(watches)

    async def _reconcile(self, members: Mapping[str, Member]) -> None:
        live: dict[int, BrokerRegistration] = {}
        for member in members.values():
            registration = replace(registration_from_bytes(member.data), epoch=member.incarnation)
            live[registration.broker_id] = registration
        for broker_id, epoch in list(self._seen.items()):
            if broker_id not in live:
                del self._seen[broker_id]
                await self._fence(broker_id, epoch, "its session with the coordination store has ended")
        for registration in live.values():
            self._seen[registration.broker_id] = registration.epoch
            await self._controller.submit(
                lambda image, joined=registration: broker_joined(image, joined, self._unclean)  # type: ignore[misc]
            )

    async def _fence(self, broker_id: int, epoch: int, reason: str) -> None:
        if await self._controller.submit(lambda image: broker_lost(image, broker_id, self._unclean, epoch=epoch)):
            log.warning("broker fenced", extra={"broker": broker_id, "epoch": epoch, "reason": reason})

    # -- brokers whose process ends --------------------------------------------------------------------------------

    def _tend(self, watches: TaskSet) -> None:
        """Watch every living broker but this one, and nobody else."""
        living = {(b.broker_id, b.epoch): b for b in self._metadata.image.live_brokers()}
        living.pop((self._broker_id, self._own_epoch()), None)
        for key in self._watched.keys() - living.keys():
            self._watched.pop(key).cancel()
            self._since.pop(key, None)
        now = self._monotonic()
        for key in living.keys() - self._watched.keys():
            self._since[key] = now
            self._watched[key] = watches.start(self._watch(living[key], watches), name=f"watch over broker {key[0]}")

    def _own_epoch(self) -> int:
        own = self._metadata.image.brokers.get(self._broker_id)
        return -1 if own is None else own.epoch

    async def _watch(self, broker: BrokerRegistration, watches: TaskSet) -> None:
        endpoint = broker.endpoint(self._listener)
        if broker.incarnation_id in self._held_for_gone:
            log.warning("a living broker cannot be reached from the controller", extra={"broker": broker.broker_id})
        elif endpoint is not None:
            await until_gone(endpoint)
            self._held_for_gone.add(broker.incarnation_id)
            await self._fence(broker.broker_id, broker.epoch, "its process is gone: connections are refused")
            self._tend(watches)

    # -- brokers that say nothing ----------------------------------------------------------------------------------

    async def _fence_the_silent(self, watches: TaskSet) -> None:
        pause_s = self._silence_s / CHECKS_PER_SILENCE
        before = self._monotonic()
        while True:
            await asyncio.sleep(pause_s)
            now = self._monotonic()
            if now - before > 3 * pause_s:  # this process was stopped itself, and could not hear anybody
                self._since = dict.fromkeys(self._since, now)
            before = now
            for broker_id, epoch in self._silent(now):
                await self._fence(broker_id, epoch, f"it has not asked for metadata for {self._silence_s:g} s")
            self._tend(watches)

    def _silent(self, now: float) -> list[tuple[int, int]]:
        silent = []
        for (broker_id, epoch), since in self._since.items():
            hearer = self._publication.hearers.get(broker_id)
            heard = hearer.heard_s if hearer is not None and hearer.broker_epoch == epoch else since
            if now - max(heard, since) > self._silence_s:
                silent.append((broker_id, epoch))
        return silent
