"""A session in etcd: a lease, and a task that renews it every third of its TTL."""

from __future__ import annotations

import asyncio
from typing import Protocol

from parley.consensus.backend import Session, SessionState
from parley.consensus.errors import Closed, CoordinationError, Retriable
from parley.consensus.etcd.key_layout import session_id
from parley.consensus.etcd.server_connection import REQUEST_S

_RETRY_S = 0.05


class Leases(Protocol):
    """The interface that a session requires of its backend."""

    async def keep_alive(self, lease: int, timeout_s: float) -> int:
        """Renew a lease. Returns its remaining time in seconds; 0 or less if the lease does not exist.

        Raises Unavailable if it is unknown whether the lease was renewed.
        """

    def end(self, session: EtcdSession) -> asyncio.Future[None]:
        """Revoke the lease of a session that is LOST.

        The future is done when the keys of the session are deleted, and fails if etcd cannot be reached.
        """


class EtcdSession(Session):
    """A session of this client, backed by a lease."""

    def __init__(self, leases: Leases, lease: int, ttl_ms: int, sent_at: float) -> None:
        super().__init__(session_id(lease), ttl_ms, sent_at)
        self.lease = lease
        self._leases = leases
        self._urgent = asyncio.Event()
        self._end: asyncio.Future[None] | None = None
        self._renewing = self._loop.create_task(self._renew_until_lost(), name=f"etcd lease {self.id}")
        self.add_callback(self._on_change)

    def renew_now(self) -> None:
        """Renew the session immediately, because the connection has been re-established."""
        self._urgent.set()

    async def close(self) -> None:
        if self._state is SessionState.LOST:
            return
        self.lose()
        assert self._end is not None
        await asyncio.shield(self._end)

    async def _renew_until_lost(self) -> None:
        interval_s = self.ttl_ms / 3000
        pause_s = interval_s
        while self.state is not SessionState.LOST:
            await _wait_at_most(self._urgent, pause_s)
            self._urgent.clear()
            sent_at = self._loop.time()
            try:
                left_s = await self._leases.keep_alive(self.lease, min(interval_s, REQUEST_S))
            except Retriable:
                pause_s = _RETRY_S
                continue
            except Closed:
                return
            except CoordinationError:
                self.lose()
                return
            if left_s <= 0 or not self.renewed(sent_at):
                self.lose()
            pause_s = interval_s - (self._loop.time() - sent_at)

    def _on_change(self, state: SessionState) -> None:
        if state is SessionState.LOST:
            self._renewing.cancel()
            self._end = self._leases.end(self)


async def _wait_at_most(event: asyncio.Event, seconds: float) -> None:
    try:
        async with asyncio.timeout(seconds):
            await event.wait()
    except TimeoutError:
        pass
