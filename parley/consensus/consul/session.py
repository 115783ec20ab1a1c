"""A session in Consul: renewed every third of its TTL, and at least every five seconds.

A renewal is no write there, only a timer of the leader's set anew; it is what tells an idle client that its session or
its store is gone.
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
    """What a session needs of its backend."""

    async def renew(self, session_id: str, timeout_s: float) -> bool:
        """Put off the expiry; False if Consul knows no such session."""

    async def destroy(self, session_id: str) -> None:
        """End it, with its keys."""

    def forget(self, session: ConsulSession) -> None:
        """It is LOST: end it in Consul if that may not know yet."""


class ConsulSession(Session):
    """See ``Session``.

    :ivar known_gone: Consul said that it is over, or was told so.
    """

    def __init__(self, sessions: Sessions, session_id: str, ttl_ms: int, sent_at: float) -> None:
        super().__init__(session_id, ttl_ms, sent_at)
        self.known_gone = False
        self._sessions = sessions
        self._task = self._loop.create_task(self._keep(), name=f"session {session_id}")
        self.add_callback(self._on_change)

    def gone(self) -> None:
        """Consul said that it is over."""
        self.known_gone = True
        self.lose()

    async def close(self) -> None:
        if self._state is SessionState.LOST:
            return
        self.known_gone = True  # as far as this can be made so; else it expires
        self.lose()
        await self._sessions.destroy(self.id)

    async def _keep(self) -> None:
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
                self.gone()
                return
            except CoordinationError:
                self.suspend()
                pause_s = min(RETRY_S, between_s)
                continue
            if not alive:
                self.gone()
                return
            self.renewed(sent_at)
            pause_s = between_s

    def _on_change(self, state: SessionState) -> None:
        if state is SessionState.LOST:
            with suppress(RuntimeError):  # the loop is closed
                self._task.cancel()
            self._sessions.forget(self)
