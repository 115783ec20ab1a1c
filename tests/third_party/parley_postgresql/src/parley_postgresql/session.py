"""A session: a row in the server, and a task that increments its counter."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import Protocol

from parley.consensus.backend import Session, SessionState
from parley.consensus.errors import Closed, CoordinationError, Retriable
from parley_postgresql.connection import REQUEST_S

_RETRY_S = 0.05


class Sessions(Protocol):
    """What a session needs of its backend."""

    async def renew(self, session_id: str, timeout_s: float) -> bool:
        """Increment the counter of a session. Returns False if the store does not know the session."""

    def end(self, session: PostgresqlSession) -> asyncio.Future[None]:
        """End a session in the store after it became LOST. The future is done when its keys are deleted."""


class PostgresqlSession(Session):
    """See ``Session``."""

    def __init__(self, sessions: Sessions, session_id: str, ttl_ms: int, sent_at: float) -> None:
        super().__init__(session_id, ttl_ms, sent_at)
        self._sessions = sessions
        self._urgent = asyncio.Event()
        self._end: asyncio.Future[None] | None = None
        self._renewing = self._loop.create_task(self._renew_until_lost(), name=f"session {session_id}")
        self.add_callback(self._on_change)

    def renew_now(self) -> None:
        """Renew without waiting for the next due time, because the connection is back."""
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
            with suppress(TimeoutError):
                async with asyncio.timeout(pause_s):
                    await self._urgent.wait()
            self._urgent.clear()
            sent_at = self._loop.time()
            try:
                alive = await self._sessions.renew(self.id, min(interval_s, REQUEST_S))
            except Retriable:
                pause_s = _RETRY_S
                continue
            except Closed:
                return
            except CoordinationError:
                self.lose()
                return
            if not alive or not self.renewed(sent_at):
                self.lose()
            pause_s = interval_s - (self._loop.time() - sent_at)

    def _on_change(self, state: SessionState) -> None:
        if state is SessionState.LOST:
            self._renewing.cancel()
            self._end = self._sessions.end(self)
