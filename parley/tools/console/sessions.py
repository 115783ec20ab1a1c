"""The sessions of the console, by cookie. Each has a view of the cluster and a CSRF token.

If no login is required, all sessions share one view. A session ends when it has not been used for ``IDLE_S`` and has no
live stream. If a login is required, the console does not store the sessions of visitors who have not logged in: it
recognizes their cookies by a signature. Therefore a large number of visitors cannot end the sessions of users.

Only a few logins are tried at a time, and each failure is delayed, so that guessing passwords takes time. A login that
is delayed counts towards the limit of its address, but does not keep logins from other addresses waiting.
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import secrets
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Final

from starlette.exceptions import HTTPException

from parley.broker.runtime.clock import SYSTEM_CLOCK
from parley.protocol.errors import ErrorCode, KafkaError
from parley.tools.console.cluster_view import ClusterView
from parley.tools.console.sampling import sample_forever
from parley.tools.console.settings import ConsoleSettings

COOKIE: Final = "parley_console"
IDLE_S: Final = 1800.0
SESSIONS_MAX: Final = 200
USER_SESSIONS_MAX: Final = 10
STREAMS_MAX: Final = 8
"""The maximum number of live streams of a session. Each stream may hold connections to brokers."""
ADDRESS_LOGINS_MAX: Final = 8
"""The maximum number of logins in progress from one address: waiting, being tried, or delayed after a failure."""
LOGINS_MAX: Final = 64
"""The maximum number of logins in progress from all addresses together."""
_LOGINS_AT_ONCE: Final = 4
_REFUSAL_DELAY_S: Final = 1.0
_RETRY_S: Final = 1


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
        self._key = secrets.token_bytes(32)
        self._places = asyncio.Semaphore(_LOGINS_AT_ONCE)
        self._logins: Counter[str] = Counter()
        """The number of logins in progress, by address."""

    def start(self) -> None:
        """Start to take samples, if no login is required. With logins, each user may see only a part of the cluster, so
        samples are taken for each user while that user has a session."""
        if not self._settings.needs_login:
            self._shared_view()

    def find(self, cookie: str | None) -> Session | None:
        """Return the session of a cookie, and note that it was used. Returns None if the session does not exist or has
        expired. Before the visitor logs in, the session has no view."""
        session = self._sessions.get(cookie or "")
        if session is None or _is_expired(session):
            return self._recognised(cookie or "")
        session.used_at = SYSTEM_CLOCK.monotonic()
        return session

    async def begin(self) -> Session:
        """Start a session. It is logged in only if the cluster requires no login."""
        if self._settings.needs_login:
            return self._visit(secrets.token_urlsafe(32))
        return await self._kept(self._shared_view())

    async def log_in(self, session: Session, user: str, password: str, address: str) -> Session:
        """Log in, end ``session``, and return a new one. Raises KafkaError if the cluster rejects the login or does not
        respond, and HTTPException (429) if too many logins are in progress."""
        if self._logins[address] >= ADDRESS_LOGINS_MAX or self._logins.total() >= LOGINS_MAX:
            raise HTTPException(429, "Too many logins are in progress. Try again.", {"retry-after": f"{_RETRY_S}"})
        self._logins[address] += 1
        try:
            view = await self._authenticated(user, password)
        finally:
            self._logins[address] -= 1
            if not self._logins[address]:
                del self._logins[address]
        await self.end(session)  # a new identity gets a new cookie
        new = await self._kept(view)
        new.sampler = asyncio.create_task(sample_forever(view, self._settings.data_dir))
        return new

    async def end(self, session: Session) -> None:
        """Forget a session, stop its samples, and close the connections of its user."""
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

    def _recognised(self, cookie: str) -> Session | None:
        """Return the session of a visitor without a login if this console has signed the cookie; otherwise None."""
        nonce, _, seal = cookie.partition(".")
        return self._visit(nonce) if hmac.compare_digest(seal.encode(), self._seal(nonce).encode()) else None

    def _visit(self, nonce: str) -> Session:
        cookie = f"{nonce}.{self._seal(nonce)}"
        return Session(cookie, self._seal(cookie))

    def _seal(self, text: str) -> str:
        return hmac.new(self._key, text.encode(), hashlib.sha256).hexdigest()

    async def _authenticated(self, user: str, password: str) -> ClusterView:
        view = ClusterView(self._settings, user, password)
        try:
            async with self._places:
                await view.client.metadata([])
        except BaseException as error:
            await view.close()
            if isinstance(error, KafkaError) and error.code is ErrorCode.SASL_AUTHENTICATION_FAILED:
                await asyncio.sleep(_REFUSAL_DELAY_S)
            raise
        return view

    async def _kept(self, view: ClusterView) -> Session:
        """Store a new session with this view. If its user, or the console, has too many sessions, the least recently
        used one ends."""
        await self._expire()
        while (surplus := self._surplus(view)) is not None:
            await self.end(surplus)
        session = Session(secrets.token_urlsafe(32), secrets.token_urlsafe(32), view, SYSTEM_CLOCK.monotonic())
        self._sessions[session.id] = session
        return session

    def _surplus(self, view: ClusterView) -> Session | None:
        crowd = list(self._sessions.values())
        if len(crowd) < SESSIONS_MAX:
            crowd = [one for one in crowd if one.view is not None and one.view.user == view.user]
            if view is self._shared or len(crowd) < USER_SESSIONS_MAX:
                return None
        return min(crowd, key=lambda one: one.used_at)

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
