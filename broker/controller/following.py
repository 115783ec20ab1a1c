"""Where this broker gets its metadata from: the controller that the store names, whichever that is.

A controller whose process is gone is deposed: this broker campaigns in its place without waiting for the end of its
session. That is safe whatever it does, since its writes are guarded (``controller``). One that merely does not answer
is left to the store: maybe only the two of us cannot reach each other, and then deposing would go to and fro.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Callable

from broker.controller.watchdog import RETRY_S, is_gone
from broker.metadata import follower
from broker.metadata.current import Metadata
from broker.metadata.encoding import registration_from_bytes
from broker.metadata.types import Endpoint
from broker.peers import Peers
from consensus.recipes.elections import Leader
from protocol.client import Client
from protocol.errors import ErrorCode, KafkaError

DEPOSE_PAUSE_S = 1.0
"""Between two controllers found gone: where it is a firewall that refuses, no storm of elections comes of it."""

log = logging.getLogger(__name__)

_NO_ANSWER = (ErrorCode.NETWORK_EXCEPTION, ErrorCode.BROKER_NOT_AVAILABLE, ErrorCode.REQUEST_TIMED_OUT)


class Following:
    """Pulls the metadata from one controller after another."""

    def __init__(
        self,
        broker_id: int,
        candidate: bytes,
        metadata: Metadata,
        peers: Peers,
        *,
        listener: str,
        broker_epoch: Callable[[], int],
        depose: Callable[[Leader], None],
        stale: Callable[[], None],
        heartbeat_s: float,
        silence_s: float,
    ) -> None:
        """``candidate`` is what this broker says of itself as a candidate.

        ``depose(leader)`` is called when that one is dead, ``stale()`` when this broker must register anew.
        """
        self._broker_id = broker_id
        self._candidate = candidate
        self._metadata = metadata
        self._peers = peers
        self._listener = listener
        self._broker_epoch = broker_epoch
        self._depose = depose
        self._stale = stale
        self._heartbeat_s = heartbeat_s
        self._silence_s = silence_s
        self._leader: Leader | None = None
        self._last_deposed = -math.inf
        self._changed = asyncio.Event()

    def controller_is(self, leader: Leader | None) -> None:
        """The store names another controller, or none."""
        if leader != self._leader:
            self._leader = leader
            self._changed.set()

    async def run(self) -> None:
        """Follow until cancelled."""
        while True:
            self._changed.clear()
            following = None if self._leader is None else asyncio.ensure_future(self._follow(self._leader))
            try:
                await self._changed.wait()
            finally:
                if following is not None:
                    following.cancel()
                    await asyncio.wait({following})

    async def _follow(self, leader: Leader) -> None:
        registration = registration_from_bytes(leader.candidate)
        endpoint = registration.endpoint(self._listener)
        if registration.broker_id == self._broker_id and leader.candidate != self._candidate:
            self._depose(leader)  # it was this broker in an earlier life
        if registration.broker_id == self._broker_id or endpoint is None:
            return
        client = self._peers.client_at(endpoint, "metadata")
        try:
            await self._pull_from(client, leader, endpoint)
        except Exception:
            log.exception("metadata cannot be followed", extra={"controller": registration.broker_id})
        finally:
            await client.close()

    async def _pull_from(self, client: Client, leader: Leader, endpoint: Endpoint) -> None:
        """Pull until cancelled. Each failure is followed by a pause."""
        is_whole = False
        while True:
            try:
                await follower.pull(
                    client,
                    self._metadata,
                    broker_id=self._broker_id,
                    broker_epoch=self._broker_epoch(),
                    is_whole=is_whole,
                    max_wait_ms=int(self._heartbeat_s * 1000),
                    timeout_s=self._heartbeat_s + self._silence_s,
                )
                is_whole = False
                continue
            except KafkaError as error:
                reason = error
            if reason.code in _NO_ANSWER:
                if await is_gone(endpoint, timeout_s=RETRY_S):
                    await self._depose_gone(leader, endpoint)
            else:
                is_whole = reason.code is ErrorCode.CORRUPT_MESSAGE
                if reason.code is ErrorCode.STALE_BROKER_EPOCH:
                    self._stale()
            await asyncio.sleep(RETRY_S)

    async def _depose_gone(self, leader: Leader, endpoint: Endpoint) -> None:
        loop = asyncio.get_running_loop()
        await asyncio.sleep(self._last_deposed + DEPOSE_PAUSE_S - loop.time())
        self._last_deposed = loop.time()
        facts = {"controller": f"{endpoint.host}:{endpoint.port}", "epoch": leader.epoch}
        log.warning("the controller is gone: another is elected", extra=facts)
        self._depose(leader)
