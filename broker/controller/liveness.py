"""A broker's life in the cluster: its session with the coordination store, its membership, its candidacy.

One session carries all of it. While the session lasts the broker is a member of the group of brokers and a candidate
for controller; when it is lost, everything is begun anew in another session, under a higher broker epoch. Whoever is
controller turns the members of the group into registrations in the metadata.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from dataclasses import replace
from random import Random

from broker.controller.brokers import UncleanAllowed, broker_joined, broker_lost
from broker.controller.controller import ELECTION, RETRY_SECONDS, Controller
from broker.metadata.current import Metadata
from broker.metadata.encoding import registration_from_bytes, registration_to_bytes
from broker.metadata.types import BrokerRegistration
from consensus.backend import Backend
from consensus.errors import AlreadyExists, BadConfig, CoordinationError, Lost, Retriable
from consensus.recipes.elections import Elections
from consensus.recipes.groups import Groups, Member
from consensus.recipes.keyvalue import KeyValue

log = logging.getLogger(__name__)

BROKERS_GROUP = "brokers"


class Liveness:
    """Keeps this broker a member, and while it is controller the metadata in step with the members."""

    def __init__(
        self,
        backend: Backend,
        registration: BrokerRegistration,
        metadata: Metadata,
        *,
        session_ttl_ms: int,
        unclean: UncleanAllowed,
        rng: Random,
    ) -> None:
        self._backend = backend
        self._registration = registration
        self._metadata = metadata
        self._session_ttl_ms = session_ttl_ms
        self._unclean = unclean
        self._rng = rng
        self._groups: Groups | None = None
        self.store = KeyValue(backend, rng)
        self.controller = Controller(registration.broker_id, self.store, metadata, in_office=self._follow_members)

    async def run(self) -> None:
        """Live session after session; runs until it is cancelled, or the store refuses for good."""
        while True:
            try:
                await self._live()
            except Lost as lost:
                log.warning("session with the coordination store lost", extra={"reason": str(lost)})
            except Retriable as error:
                log.warning("coordination store does not answer", extra={"reason": str(error)})
                await asyncio.sleep(RETRY_SECONDS)

    async def _live(self) -> None:
        session = await self._backend.open_session(self._session_ttl_ms)
        try:
            elections = Elections(self._backend, session, self._rng)
            await self._refuse_company(elections)
            self._groups = Groups(self._backend, session, self._rng)
            await self._join(self._groups)
            await self.controller.run(elections)
        finally:
            self._groups = None
            try:
                await session.close()
            except CoordinationError as error:
                log.info("session not closed", extra={"reason": str(error)})

    async def _refuse_company(self, elections: Elections) -> None:
        """Metadata does not travel between brokers yet: a second one would wait for it for ever."""
        leader = await elections.leader(ELECTION)
        if leader is not None and leader.candidate != str(self._registration.broker_id).encode():
            raise BadConfig(
                f"broker {leader.candidate.decode()} runs on this coordination store, and clusters of several brokers "
                "are not in this release: give each broker a store of its own (coordination.url)"
            )

    async def _join(self, groups: Groups) -> None:
        data = registration_to_bytes(self._registration)
        member_id = str(self._registration.broker_id)
        warned = False
        while True:
            try:
                await groups.join(BROKERS_GROUP, member_id, data)
                return
            except AlreadyExists:
                if not warned:
                    log.warning(
                        "another broker with this id is registered: waiting for its session to end",
                        extra={"broker": member_id},
                    )
                    warned = True
                await asyncio.sleep(RETRY_SECONDS)

    async def _follow_members(self) -> None:
        """While in office: register who joined, fence who is gone."""
        if self._groups is None:
            return
        async for members in self._groups.watch(BROKERS_GROUP):
            await self._reconcile(members)

    async def _reconcile(self, members: Mapping[str, Member]) -> None:
        live = {}
        for member in members.values():
            registration = replace(registration_from_bytes(member.data), epoch=member.incarnation)
            live[registration.broker_id] = registration
        for broker in self._metadata.image.live_brokers():
            if broker.broker_id not in live:
                await self.controller.submit(
                    lambda image, gone=broker.broker_id: broker_lost(image, gone, self._unclean)  # type: ignore[misc]
                )
        for registration in live.values():
            await self.controller.submit(
                lambda image, joined=registration: broker_joined(image, joined, self._unclean)  # type: ignore[misc]
            )

    async def until_registered(self) -> None:
        """Wait until the metadata knows this very incarnation of the broker as alive."""
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()

        def look(*_: object) -> None:
            known = self._metadata.image.brokers.get(self._registration.broker_id)
            this_one = known is not None and known.incarnation_id == self._registration.incarnation_id
            if known is not None and this_one and not known.fenced and not done.done():
                done.set_result(None)

        self._metadata.subscribe(look)
        look()
        await done
