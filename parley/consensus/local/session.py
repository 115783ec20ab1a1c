"""A session of the embedded store: a row with a TTL, which this process renews three times per TTL."""

from __future__ import annotations

import asyncio
from typing import Protocol

from parley.consensus.backend import Session, SessionState
from parley.consensus.errors import Retriable


class Sessions(Protocol):
    """The interface that a session requires of its backend."""

    def send_renewal(self, session_id: str) -> asyncio.Future[bool] | None:
        """Start renewing a session. The future's result is False if the session has ended. Returns None if the backend
        is closed."""

    def forget(self, session_id: str) -> None:
        """Forget a session that is LOST, and end it in the store if it has not ended there yet."""

    async def end(self, session_id: str) -> None:
        """End a session in the store, and delete its keys."""


class LocalSession(Session):
    """A session of this process with the embedded store."""

    def __init__(self, sessions: Sessions, session_id: str, ttl_ms: int, sent_at: float) -> None:
        super().__init__(session_id, ttl_ms, sent_at)
        self._sessions = sessions
        self._timer = self._loop.call_later(ttl_ms / 3000, self._renew)
        self.add_callback(self._on_change)

    def _renew(self) -> None:
        if self.state is SessionState.LOST:
            return
        sent_at = self._loop.time()
        renewal = self._sessions.send_renewal(self.id)
        if renewal is None:
            return
        self._timer = self._loop.call_later(self.ttl_ms / 3000, self._renew)

        def on_result(renewal: asyncio.Future[bool]) -> None:
            if renewal.cancelled():
                return
            if (error := renewal.exception()) is None:
                if renewal.result():
                    self.renewed(sent_at)
                else:
                    self.lose()
            elif not isinstance(error, Retriable):
                self.lose()

        renewal.add_done_callback(on_result)

    def _on_change(self, state: SessionState) -> None:
        if state is SessionState.LOST:
            self._timer.cancel()
            self._sessions.forget(self.id)

    async def close(self) -> None:
        if self._state is SessionState.LOST:
            return
        self.lose()
        await self._sessions.end(self.id)
