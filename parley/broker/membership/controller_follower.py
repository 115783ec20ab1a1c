"""Where this broker gets its metadata from: the controller that the store names, whichever that is.

A controller whose process is gone is deposed: this broker campaigns in its place without waiting for the end of its
session. That is safe whatever it does, since its writes are guarded (``controller``). One that merely does not answer
is deposed where most brokers have not heard of it (``silence``), and else left to the store: maybe only the two of us
cannot reach each other, and then deposing would go to and fro.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Callable

from parley.broker.membership.controller_silence import ASK_S, Silence, is_silent_for_most
from parley.broker.membership.watchdog import RETRY_S, is_gone
from parley.broker.metadata import pulling as follower
from parley.broker.metadata.current import Metadata
from parley.broker.metadata.encoding import registration_from_bytes
from parley.broker.metadata.types import Endpoint
from parley.broker.network.peers import Peers
from parley.consensus.recipes.elections import Leader
from parley.protocol.client import Client
from parley.protocol.errors import ErrorCode, KafkaError

FAILURE_PAUSE_S = 1.0
"""After a failure of our own, which the next answer may well lead to again."""
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
        depose: Callable[[Leader, bool], None],
        stale: Callable[[], None],
        silence: Silence,
        heartbeat_s: float,
        silence_s: float,
    ) -> None:
        """``candidate`` is what this broker says of itself as a candidate.

        ``depose(leader, is_silent)`` is called when that one is dead, or silent for most brokers, ``stale()`` when
        this broker must register anew. ``silence_s`` is how long a controller may say nothing.
        """
        self._broker_id = broker_id
        self._candidate = candidate
        self._metadata = metadata
        self._peers = peers
        self._listener = listener
        self._broker_epoch = broker_epoch
        self._depose = depose
        self._stale = stale
        self._silence = silence
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
            self._silence.begin(-1 if self._leader is None else self._leader.epoch)
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
            self._depose(leader, False)  # it was this broker in an earlier life
        if registration.broker_id == self._broker_id or endpoint is None:
            return
        client = self._peers.client_at(endpoint, "metadata")
        is_whole = False
        try:
            while True:
                try:
                    await self._pull_from(client, leader, endpoint, is_whole=is_whole)
                except Exception:
                    log.exception("metadata cannot be followed", extra={"controller": registration.broker_id})
                is_whole = True
                await asyncio.sleep(FAILURE_PAUSE_S)
        finally:
            await client.close()

    async def _pull_from(self, client: Client, leader: Leader, endpoint: Endpoint, *, is_whole: bool) -> None:
        """Pull, at first a whole image if ``is_whole``, until cancelled. Each failure is followed by a pause."""
        while True:
            is_due = self._silence.lasts_s >= self._silence_s  # to be judged as soon as it says nothing once more
            self._silence.asking()
            try:
                await follower.pull(
                    client,
                    self._metadata,
                    broker_id=self._broker_id,
                    broker_epoch=self._broker_epoch(),
                    is_whole=is_whole,
                    max_wait_ms=int(self._heartbeat_s * 1000),
                    timeout_s=self._heartbeat_s + (ASK_S if is_due else self._silence_s),
                )
                self._silence.answered(news=True)
                is_whole = False
                continue
            except KafkaError as error:
                reason = error
            if reason.code in _NO_ANSWER:
                self._silence.unanswered()
                await self._look_at_silent(leader, endpoint)
            else:
                self._silence.answered(news=False)
                is_whole = reason.code is ErrorCode.CORRUPT_MESSAGE
                if reason.code is ErrorCode.STALE_BROKER_EPOCH:
                    self._stale()
            await asyncio.sleep(RETRY_S)

    async def _look_at_silent(self, leader: Leader, endpoint: Endpoint) -> None:
        """It does not answer: is it gone, or silent for the others too?"""
        if await is_gone(endpoint, timeout_s=RETRY_S):
            await self._depose_one(leader, endpoint, "it is gone", is_silent=False)
        elif self._silence.lasts_s >= self._silence_s and await is_silent_for_most(
            self._peers,
            self._metadata.image,
            self._broker_id,
            registration_from_bytes(leader.candidate).broker_id,
            leader.epoch,
            self._silence_s,
        ):
            reason = f"most brokers have not heard of it for {self._silence_s:g} s"
            await self._depose_one(leader, endpoint, reason, is_silent=True)

    async def _depose_one(self, leader: Leader, endpoint: Endpoint, reason: str, *, is_silent: bool) -> None:
        loop = asyncio.get_running_loop()
        await asyncio.sleep(self._last_deposed + DEPOSE_PAUSE_S - loop.time())
        self._last_deposed = loop.time()
        facts = {"controller": f"{endpoint.host}:{endpoint.port}", "epoch": leader.epoch, "reason": reason}
        log.warning("the controller is gone: another is elected", extra=facts)
        self._depose(leader, is_silent)
