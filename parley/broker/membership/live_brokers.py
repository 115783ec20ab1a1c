"""The controller's view of who is alive: turns the members of the group of brokers into registrations, and fences.

A broker is fenced

* at once, when its process is known to be gone (``watchdog``), or when it is no member: its session has ended. Only
  where our own session is new is a broker without one given time to appear: the store, and with it every session, may
  have been away;
* after a silence: when it has not asked for metadata for as long, be it a member or not. One that cannot hear of
  changes must not lead. The silence of a controller that was deposed for it counts already. Where less than half of all
  brokers are heard, ourselves included, it may be us whom the others cannot reach, and the store still can: fencing
  them would leave nobody in sync but ourselves, and nobody to lead once they have deposed us (``silence``). Then it is
  the sessions alone that tell who is gone. Exactly half are enough, since no other half can depose us.

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

from parley.broker.controller.brokers import UncleanAllowed, fence_broker, register_broker
from parley.broker.controller.controller import Controller
from parley.broker.controller.metadata_publisher import MetadataPublisher
from parley.broker.membership.watchdog import until_gone
from parley.broker.metadata.current import Metadata
from parley.broker.metadata.encoding import registration_from_bytes
from parley.broker.metadata.types import BrokerRegistration
from parley.broker.runtime.tasks import TaskSet, race
from parley.consensus.recipes.groups import Groups, Member
from parley.protocol.errors import ErrorCode, KafkaError

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
        publisher: MetadataPublisher,
        *,
        listener: str,
        unclean: UncleanAllowed,
        silence_s: float,
        monotonic: Callable[[], float],
    ) -> None:
        self._broker_id = broker_id
        self._controller = controller
        self._metadata = metadata
        self._publisher = publisher
        self._listener = listener
        self._unclean = unclean
        self._silence_s = silence_s
        self._monotonic = monotonic
        self._present: set[int] | None = None  # the members, once they are known
        self._seen: set[int] = set()  # who has been a member in this term
        self._trusted_s = 0.0  # from when on who is no member counts as gone
        self._since: dict[tuple[int, int], float] = {}  # (broker, epoch) -> when its silence began to count
        self._watched: dict[tuple[int, int], asyncio.Task[None]] = {}
        self._held_for_gone: set[UUID] = set()  # incarnations
        self._distrusted: UUID | None = None  # the incarnation whose silence has made us the controller

    async def run(self, groups: Groups, session_since_s: float) -> None:
        """Follow until cancelled. Raises what ends the watch of the members, and NOT_CONTROLLER.

        Our own session with the store lasts since ``session_since_s``.
        """
        watches = TaskSet()
        self._present = None
        self._trusted_s = session_since_s + self._silence_s
        self._seen.clear()
        self._since.clear()
        self._watched.clear()
        self._held_for_gone.clear()
        self._tend(watches)
        try:
            await race(self._follow(groups, watches), self._fence_the_silent(watches))
        finally:
            await watches.close()

    def distrust(self, incarnation_id: UUID) -> None:
        """This broker was the controller, and is deposed for its silence. That counts once, where a term begins."""
        self._distrusted = incarnation_id

    def trust_all(self) -> None:
        """Another broker is the controller now."""
        self._distrusted = None

    async def _follow(self, groups: Groups, watches: TaskSet) -> None:
        async for members in groups.watch(BROKERS_GROUP):
            await self._reconcile(members)
            self._tend(watches)

    async def _reconcile(self, members: Mapping[str, Member]) -> None:
        live: dict[int, BrokerRegistration] = {}
        for member in members.values():
            registration = replace(registration_from_bytes(member.data), epoch=member.incarnation)
            live[registration.broker_id] = registration
        self._present = set(live)
        await self._fence_the_absent()
        self._seen |= live.keys()
        for registration in live.values():
            await self._controller.submit(
                lambda image, joined=registration: register_broker(image, joined, self._unclean)  # type: ignore[misc]
            )

    async def _fence_the_absent(self) -> None:
        if self._present is None:
            return
        all_count = self._monotonic() >= self._trusted_s
        for broker in self._metadata.image.live_brokers():
            if broker.broker_id not in self._present and (all_count or broker.broker_id in self._seen):
                await self._fence(broker.broker_id, broker.epoch, "it has no session with the coordination store")

    async def _fence(self, broker_id: int, epoch: int, reason: str) -> None:
        if await self._controller.submit(lambda image: fence_broker(image, broker_id, self._unclean, epoch=epoch)):
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
            is_silent = self._distrusted is not None and living[key].incarnation_id == self._distrusted
            if is_silent:
                self._distrusted = None
            self._since[key] = now - self._silence_s if is_silent else now
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
            try:
                await self._fence(broker.broker_id, broker.epoch, "its process is gone: connections are refused")
            except KafkaError as error:
                if error.code != ErrorCode.NOT_CONTROLLER:
                    raise
                return  # the term is over, and its watches with it
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
            await self._fence_the_absent()
            for broker_id, epoch in self._silent(now):
                await self._fence(broker_id, epoch, f"it has not asked for metadata for {self._silence_s:g} s")
            self._tend(watches)

    def _silent(self, now: float) -> list[tuple[int, int]]:
        """The brokers to fence for their silence, with their epochs.

        Those that a cut parts from us at one moment do not fall silent at one moment, but within the time between two
        of their questions, a third of the silence. So who counts as heard has asked in the last half of it.
        """
        lasts = {broker: now - self._heard_s(*broker, since) for broker, since in self._since.items()}
        heard = 1 + sum(each <= self._silence_s / 2 for each in lasts.values())
        if 2 * heard < len(self._metadata.image.brokers):
            return []
        return [broker for broker, each in lasts.items() if each > self._silence_s]

    def _heard_s(self, broker_id: int, epoch: int, since: float) -> float:
        hearer = self._publisher.followers.get(broker_id)
        if hearer is None or hearer.broker_epoch != epoch:
            return since
        return max(hearer.fetched_s, since)
