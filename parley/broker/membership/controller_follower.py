"""Pulls this broker's metadata from the controller that the store names, and detects that this controller is dead.

A controller whose process has ended is deposed: this broker campaigns in its place without waiting for the controller's
session to expire. That is always safe, because a deposed controller's writes are rejected (``controller``). A
controller that merely does not respond is deposed only if most brokers have not heard from it (``controller_silence``).
Otherwise this broker waits for the controller's session to expire: if only these two brokers could not reach each
other, they would keep deposing each other.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Callable

from parley.broker.logging.growing_interval import GrowingInterval
from parley.broker.membership.controller_silence import ASK_S, ControllerSilence, is_silent_for_most
from parley.broker.membership.dead_process_detection import RETRY_S, is_gone
from parley.broker.metadata import pulling
from parley.broker.metadata.current import Metadata
from parley.broker.metadata.encoding import registration_from_bytes
from parley.broker.metadata.types import Endpoint
from parley.broker.network.peers import Peers
from parley.consensus.recipes.elections import Leader
from parley.protocol.client import Client
from parley.protocol.errors import ErrorCode, KafkaError
from parley.protocol.sentinels import NO_EPOCH

FAILURE_PAUSE_S = 1.0
"""The pause after this broker failed to apply a response. The next response may well cause the same failure."""
DEPOSE_PAUSE_S = 1.0
"""The minimum pause between deposing two controllers. It prevents a storm of elections if a firewall rejects
connections."""

_log = logging.getLogger(__name__)

_NO_RESPONSE = (ErrorCode.NETWORK_EXCEPTION, ErrorCode.BROKER_NOT_AVAILABLE, ErrorCode.REQUEST_TIMED_OUT)


class ControllerFollower:
    """Follows the current controller, and pulls the metadata from it."""

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
        silence: ControllerSilence,
        why_no_election: Callable[[], str],
        heartbeat_s: float,
        silence_s: float,
        monotonic: Callable[[], float],
    ) -> None:
        """``candidate`` is the data that this broker publishes as a candidate in elections.

        ``depose(leader, is_silent)`` is called when the controller ``leader`` is dead, or silent for most brokers;
        ``stale()`` is called when this broker must register again. ``why_no_election()`` returns the reason why no
        controller can currently be elected, or "" if it is unknown. The controller may hold each request for metadata
        open for ``heartbeat_s``. It counts as silent after ``silence_s`` without a response.
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
        self._why_no_election = why_no_election
        self._no_election_interval = GrowingInterval(monotonic)
        self._heartbeat_s = heartbeat_s
        self._silence_s = silence_s
        self._leader: Leader | None = None
        self._deposed: Leader | None = None
        self._last_deposed = -math.inf
        self._changed = asyncio.Event()

    def follow(self, leader: Leader | None) -> None:
        """Follow the controller that the store now names, or none if ``leader`` is None."""
        if leader != self._leader:
            self._leader = leader
            self._changed.set()

    async def run(self) -> None:
        """Follow the controller until cancelled."""
        while True:
            self._changed.clear()
            self._silence.begin(NO_EPOCH if self._leader is None else self._leader.epoch)
            following = (
                None if self._leader is None else asyncio.ensure_future(self._pull_until_cancelled(self._leader))
            )
            try:
                await self._changed.wait()
            finally:
                if following is not None:
                    following.cancel()
                    await asyncio.wait({following})

    async def _pull_until_cancelled(self, leader: Leader) -> None:
        registration = registration_from_bytes(leader.candidate)
        endpoint = registration.endpoint(self._listener)
        if registration.broker_id == self._broker_id and leader.candidate != self._candidate:
            self._depose(leader, False)  # the leader is an earlier incarnation of this broker
        if registration.broker_id == self._broker_id or endpoint is None:
            return
        client = self._peers.client_at(endpoint, "metadata")
        is_whole = False
        try:
            while True:
                try:
                    await self._pull_from(client, leader, endpoint, is_whole=is_whole)
                except Exception:
                    _log.exception(
                        "failed to follow the metadata of the controller", extra={"controller": registration.broker_id}
                    )
                is_whole = True
                await asyncio.sleep(FAILURE_PAUSE_S)
        finally:
            await client.close()

    async def _pull_from(self, client: Client, leader: Leader, endpoint: Endpoint, *, is_whole: bool) -> None:
        """Pull metadata until cancelled, pausing after each failure. The first response is a whole image if
        ``is_whole``."""
        while True:
            is_due = self._silence.duration_s >= self._silence_s  # if this request gets no response, judge soon
            self._silence.request_sent()
            try:
                await pulling.pull(
                    client,
                    self._metadata,
                    broker_id=self._broker_id,
                    broker_epoch=self._broker_epoch(),
                    is_whole=is_whole,
                    max_wait_ms=int(self._heartbeat_s * 1000),
                    timeout_s=self._heartbeat_s + (ASK_S if is_due else self._silence_s),
                )
                self._silence.responded(with_metadata=True)
                is_whole = False
                continue
            except KafkaError as error:
                reason = error
            if reason.code in _NO_RESPONSE:
                self._silence.did_not_respond()
                await self._judge_silent(leader, endpoint)
            else:
                self._silence.responded(with_metadata=False)
                is_whole = reason.code is ErrorCode.CORRUPT_MESSAGE
                if reason.code is ErrorCode.STALE_BROKER_EPOCH:
                    self._stale()
            await asyncio.sleep(RETRY_S)

    async def _judge_silent(self, leader: Leader, endpoint: Endpoint) -> None:
        """Depose a controller that does not respond, if its process has ended or most brokers have not heard from
        it."""
        if await is_gone(endpoint, timeout_s=RETRY_S):
            await self._depose_after_pause(leader, endpoint, "its process has ended", is_silent=False)
        elif self._silence.duration_s >= self._silence_s and await is_silent_for_most(
            self._peers,
            self._metadata.image,
            self._broker_id,
            registration_from_bytes(leader.candidate).broker_id,
            leader.epoch,
            self._silence_s,
        ):
            reason = f"most brokers have not heard from it for {self._silence_s:g} s"
            await self._depose_after_pause(leader, endpoint, reason, is_silent=True)

    async def _depose_after_pause(self, leader: Leader, endpoint: Endpoint, reason: str, *, is_silent: bool) -> None:
        loop = asyncio.get_running_loop()
        await asyncio.sleep(self._last_deposed + DEPOSE_PAUSE_S - loop.time())
        self._last_deposed = loop.time()
        self._log_deposed(leader, {"controller": f"{endpoint.host}:{endpoint.port}", "epoch": leader.epoch}, reason)
        self._depose(leader, is_silent)

    def _log_deposed(self, leader: Leader, facts: dict[str, object], reason: str) -> None:
        """Log the first time that a controller is deposed. After that, log at growing intervals that no other
        controller has been elected yet."""
        if leader != self._deposed:
            self._deposed = leader
            self._no_election_interval.restart()
            if self._no_election_interval.claim_line():
                _log.warning("the controller is dead: electing another one", extra={**facts, "reason": reason})
        elif self._no_election_interval.claim_line():
            why = self._why_no_election() or "no broker has won the election yet"
            _log.warning("no controller can be elected", extra={**facts, "reason": why})
