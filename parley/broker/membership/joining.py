"""Joins the group of brokers in the coordination store, under an id that no other live broker uses.

A broker immediately takes the place of an earlier incarnation of itself: a member with its own address, or a member
whose process is known to have ended. If another address accepts connections under this broker's id, either a living
broker uses that id, or the process there is stalled and its session is about to expire. So this broker waits until the
session of a dead broker would have expired. If the id is still taken after that, its owner is alive, and joining fails.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from dataclasses import replace

from parley.broker.membership.dead_process_detection import is_gone
from parley.broker.membership.remembered_epochs import RememberedEpochs
from parley.broker.metadata.encoding import registration_from_bytes, registration_to_bytes
from parley.broker.metadata.types import BrokerRegistration
from parley.consensus.errors import AlreadyExists
from parley.consensus.recipes.groups import Groups, Member, Membership
from parley.protocol.sentinels import NO_EPOCH

_log = logging.getLogger(__name__)

BROKERS_GROUP = "brokers"
PROBE_S = 1.0
"""How long a broker with this broker's id may take to accept a connection, and the pause between two attempts."""


class DuplicateBrokerId(Exception):
    """Raised if another live broker uses this broker's id."""


class Joining:
    """Makes this broker a member of the group of brokers. The controller then registers it."""

    def __init__(self, broker: BrokerRegistration, listener: str) -> None:
        """``listener`` is the name of the inter-broker listener."""
        self.broker = broker
        self.data = registration_to_bytes(broker)
        self._listener = listener
        self._member_id = str(broker.broker_id)

    async def join(
        self, groups: Groups, known: RememberedEpochs, remember: Callable[[int], Awaitable[None]]
    ) -> Membership:
        """Join the group under a broker epoch above the ``known`` one. Waits for the id to become free if necessary.

        ``remember(epoch)`` writes to disk which epoch this broker is about to take. The controller registers the broker
        as soon as it has joined. If the broker were killed before the epoch was on disk, its data directories would
        look like an older copy at the next start.

        Raises CoordinationError, or DuplicateBrokerId if another live broker uses the id.
        """
        loop = asyncio.get_running_loop()
        wait_s = groups.session.ttl_ms / 1000 * groups.backend.capabilities.expiry_factor_max
        deadline: float | None = None
        epoch = NO_EPOCH
        data = registration_to_bytes(replace(self.broker, seen=known.metadata, seen_leader_epoch=known.leader_epoch))
        while True:
            present = (await groups.members(BROKERS_GROUP)).get(self._member_id)
            latest = await groups.latest_incarnation(BROKERS_GROUP, self._member_id)
            epoch, remembered = max(latest, known.broker_epoch) + 1, epoch
            if epoch != remembered:
                await remember(epoch)
            replaced = present if present is not None and await self._is_dead(present) else None
            try:
                return await groups.join(BROKERS_GROUP, self._member_id, data, replace=replaced, min_incarnation=epoch)
            except AlreadyExists:
                address = self._address_of(present)
            if deadline is None:
                deadline = loop.time() + wait_s
                facts = {"broker": self._member_id, "address": address, "wait_s": wait_s}
                _log.warning("another broker with this id is a member: waiting until its session expires", extra=facts)
            elif loop.time() >= deadline:
                raise DuplicateBrokerId(
                    f"broker.id {self._member_id} is used by another broker that is alive, at {address}: give this "
                    "broker an id of its own, or stop the other one first"
                )
            await asyncio.sleep(PROBE_S)

    async def refuse_successor(self, groups: Groups, epoch: int) -> None:
        """Raise DuplicateBrokerId if another process has taken this broker's place under its id.

        ``epoch`` is this broker's own epoch. A member with a lower epoch is an earlier process of this broker: the
        store was rolled back, and contains that process again. Raises CoordinationError if the members cannot be read.
        """
        present = (await groups.members(BROKERS_GROUP)).get(self._member_id)
        if present is not None and present.incarnation > epoch:
            other = registration_from_bytes(present.data)
            if other.incarnation_id != self.broker.incarnation_id:
                raise DuplicateBrokerId(
                    f"another process with the same address has joined as broker {other.broker_id}: "
                    "give each broker an id and an advertised address of its own"
                )

    async def _is_dead(self, member: Member) -> bool:
        """Return True if the member with this id is an earlier incarnation of this broker, or a process that has
        ended."""
        other = registration_from_bytes(member.data)
        if other.incarnation_id == self.broker.incarnation_id:
            return True
        endpoint = other.endpoint(self._listener)
        if endpoint is None or endpoint == self.broker.endpoint(self._listener):
            return True  # this broker has bound this address, so the other process cannot be listening on it
        return await is_gone(endpoint, timeout_s=PROBE_S)

    def _address_of(self, member: Member | None) -> str:
        endpoint = None if member is None else registration_from_bytes(member.data).endpoint(self._listener)
        return "an unknown address" if endpoint is None else f"{endpoint.host}:{endpoint.port}"
