"""The sessions of the console, by cookie. Each has a view of the cluster and a CSRF token.

If no login is required, all sessions share one view. A session ends when it has not been used for ``IDLE_S`` and has no
live stream. Only a few logins are tried at a time, and each failure is delayed, so that guessing passwords takes time.
"""

from __future__ import annotations

import asyncio
import secrets
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Final

from parley.broker.runtime.clock import SYSTEM_CLOCK
from parley.protocol.errors import ErrorCode, KafkaError
from parley.tools.console.cluster_view import ClusterView
from parley.tools.console.sampling import sample_forever
from parley.tools.console.settings import ConsoleSettings

COOKIE: Final = "parley_console"
IDLE_S: Final = 1800.0
SESSIONS_MAX: Final = 200
STREAMS_MAX: Final = 8
"""The maximum number of live streams of a session. Each stream may hold connections to brokers."""
_LOGINS_AT_ONCE: Final = 4
_REFUSAL_DELAY_S: Final = 0.5


@dataclass(slots=True)
class Session:
    """The session of a browser. ``view`` is None before the login."""

    id: str
    csrf: str
    view: ClusterView | None = None
    used_at: float = 0.0
    streams: int = 0
    sampler: asyncio.Task[None] | None = field(default=None, repr=False)


class Sessions:
    """The sessions of a console."""

    def __init__(self, settings: ConsoleSettings) -> None:
        self._settings = settings
        self._sessions: dict[str, Session] = {}
        self._shared: ClusterView | None = None
        self._sampler: asyncio.Task[None] | None = None
        self._logging_in = asyncio.Semaphore(_LOGINS_AT_ONCE)

    def start(self) -> None:
        """Start to take samples, if no login is required. With logins, each user may see only a part of the cluster, so
        samples are taken for each user while that user has a session."""
        if not self._settings.needs_login:
            self._shared_view()

    def find(self, cookie: str | None) -> Session | None:
        """Return the session of a cookie, or None if it does not exist or has expired."""
        session = self._sessions.get(cookie or "")
        if session is None or _is_expired(session):
            return None
        session.used_at = SYSTEM_CLOCK.monotonic()
        return session

    async def begin(self) -> Session:
        """Start a session. It is logged in only if the cluster requires no login. If there are too many sessions, the
        least recently used session ends."""
        await self._expire()
        session = Session(secrets.token_urlsafe(32), secrets.token_urlsafe(32), used_at=SYSTEM_CLOCK.monotonic())
        if not self._settings.needs_login:
            session.view = self._shared_view()
        while len(self._sessions) >= SESSIONS_MAX:
            await self.end(min(self._sessions.values(), key=lambda one: one.used_at))
        self._sessions[session.id] = session
        return session

    async def log_in(self, session: Session, user: str, password: str) -> Session:
        """Log in and return a new session. Raises KafkaError if the cluster rejects the login or does not respond."""
        async with self._logging_in:
            view = ClusterView(self._settings, user, password)
            try:
                await view.client.metadata([])
            except BaseException as error:
                await view.close()
                if isinstance(error, KafkaError) and error.code is ErrorCode.SASL_AUTHENTICATION_FAILED:
                    await asyncio.sleep(_REFUSAL_DELAY_S)
                raise
        await self.end(session)  # a new identity gets a new cookie
        new = await self.begin()
        new.view = view
        new.sampler = asyncio.create_task(sample_forever(view, self._settings.data_dir))
        return new

    async def end(self, session: Session) -> None:
        """Forget a session and close the connections of its user."""
        self._sessions.pop(session.id, None)
        await _cancel(session.sampler)
        if session.view is not None and session.view is not self._shared:
            await session.view.close()

    async def close(self) -> None:
        """End all sessions."""
        for session in list(self._sessions.values()):
            await self.end(session)
        await _cancel(self._sampler)
        if self._shared is not None:
            await self._shared.close()

    def _shared_view(self) -> ClusterView:
        if self._shared is None:
            self._shared = ClusterView(self._settings)
            self._sampler = asyncio.create_task(sample_forever(self._shared, self._settings.data_dir))
        return self._shared

    async def _expire(self) -> None:
        for session in [one for one in self._sessions.values() if _is_expired(one)]:
            await self.end(session)


def _is_expired(session: Session) -> bool:
    return not session.streams and session.used_at < SYSTEM_CLOCK.monotonic() - IDLE_S


async def _cancel(task: asyncio.Task[None] | None) -> None:
    if task is not None:
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task
