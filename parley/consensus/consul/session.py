"""A session in Consul, renewed every third of its TTL and at least every five seconds.

A renewal writes nothing; it only restarts a timer on Consul's leader. It also lets an idle client notice that its
session or its store no longer exists.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import Protocol

from parley.consensus.errors import Closed, CoordinationError, WrongStore
from parley.consensus.session import Session, SessionState

RENEW_S_MAX = 5.0
RETRY_S = 0.2


class Sessions(Protocol):
    """The interface that a session requires of its backend."""

    async def renew(self, session_id: str, timeout_s: float) -> bool:
        """Renew a session. Returns False if Consul does not know it."""

    async def destroy(self, session_id: str) -> None:
        """End a session. Consul deletes its keys."""

    def forget(self, session: ConsulSession) -> None:
        """Forget a session that is LOST, and end it in Consul unless ``ended_in_store``."""


class ConsulSession(Session):
    """A session of this client. ``ended_in_store`` is True if Consul has ended the session, or has received a request
    to end it."""

    def __init__(self, sessions: Sessions, session_id: str, ttl_ms: int, sent_at: float) -> None:
        super().__init__(session_id, ttl_ms, sent_at)
        self.ended_in_store = False
        self._sessions = sessions
        self._task = self._loop.create_task(self._renew_until_lost(), name=f"session {session_id}")
        self.add_callback(self._on_change)

    def lose_ended(self) -> None:
        """Become LOST because Consul has ended the session."""
        self.ended_in_store = True
        self.lose()

    async def close(self) -> None:
        if self._state is SessionState.LOST:
            return
        self.ended_in_store = True  # ``destroy`` below ends it; if that fails, the session expires in Consul
        self.lose()
        await self._sessions.destroy(self.id)

    async def _renew_until_lost(self) -> None:
        between_s = min(self.ttl_ms / 3000, RENEW_S_MAX)
        pause_s = between_s
        while True:
            await asyncio.sleep(pause_s)
            if self.state is SessionState.LOST:
                return
            sent_at = self._loop.time()
            try:
                alive = await self._sessions.renew(self.id, max(between_s, 1.0))
            except (Closed, WrongStore):
                self.lose_ended()
                return
            except CoordinationError:
                self.suspend()
                pause_s = min(RETRY_S, between_s)
                continue
            if not alive:
                self.lose_ended()
                return
            self.renewed(sent_at)
            pause_s = between_s

    def _on_change(self, state: SessionState) -> None:
        if state is SessionState.LOST:
            with suppress(RuntimeError):  # the loop is closed
                self._task.cancel()
            self._sessions.forget(self)
