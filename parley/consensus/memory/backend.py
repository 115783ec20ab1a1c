"""A client of the memory store."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Self

from parley.consensus.backend import (
    LINEARIZABLE,
    Backend,
    Capabilities,
    Check,
    Delete,
    Entry,
    Event,
    Op,
    Page,
    Put,
    Read,
    Session,
    SessionState,
    TxnResult,
    Watch,
    WatchCount,
)
from parley.consensus.errors import BadConfig, Closed, MaybeApplied, Unavailable, WrongStore
from parley.consensus.memory.store import MemoryStore
from parley.consensus.protection import Finding, Guard, Protection
from parley.consensus.store_identity import require_identity


class MemorySession(Session):
    """A session that renews itself every third of its TTL while its client is connected."""

    def __init__(self, backend: MemoryBackend, session_id: str, ttl_ms: int, sent_at: float) -> None:
        super().__init__(session_id, ttl_ms, sent_at)
        self._backend = backend
        self._renewal = self._loop.call_later(ttl_ms / 3000, self.renew)
        self.add_callback(self._on_change)

    def renew(self) -> None:
        """Renew now, and again after a third of the TTL."""
        self._renewal.cancel()
        self._renewal = self._loop.call_later(self.ttl_ms / 3000, self.renew)
        if self.state is SessionState.LOST or not self._backend.connected:
            return
        now = self._loop.time()
        if self._backend.store.renew(self.id, now + self.ttl_ms / 1000):
            self.renewed(now)
        else:
            self.lose()

    def _on_change(self, state: SessionState) -> None:
        if state is SessionState.LOST:
            self._renewal.cancel()
            self._backend._forget(self)

    async def close(self) -> None:
        self.lose()
        if not self._backend.connected:
            raise Unavailable("disconnected")
        self._backend.store.expire(self.id)


class MemoryBackend(Backend):
    """One client of a ``MemoryStore``."""

    def __init__(self, store: MemoryStore | None = None) -> None:
        self.store = store or MemoryStore()
        self._is_shared = store is not None
        self.delay_s: Callable[[], float] | None = None
        """Called before and after each call; returns the delay in seconds. ``None`` for no delay."""
        self.connected = False
        self._opened = False
        self._sessions: dict[str, MemorySession] = {}
        self._watches: dict[MemoryWatch, None] = {}
        self._lost_response: bool | None = None

    @classmethod
    def from_url(cls, url: str, **options: object) -> Self:
        scheme, _, rest = url.partition(":")
        if scheme != "memory" or (rest and not rest.startswith("//")) or options:
            raise BadConfig(f"{url!r} {options or ''}: expected memory: or memory://name, without options")
        name = rest.removeprefix("//")
        return cls(MemoryStore.named(name) if name else None)

    @property
    def capabilities(self) -> Capabilities:
        return self.store.capabilities

    @property
    def is_shared(self) -> bool:
        return self._is_shared

    async def open(self, *, expect_identity: str | None = None) -> None:
        self._identity = require_identity(self.store.identity, expect_identity, "this process")
        self.store.attach(self)
        self._opened = self.connected = True

    async def close(self) -> None:
        if not self._opened:
            return
        self._opened = False
        for session in tuple(self._sessions.values()):
            session.lose()
            if self.connected:
                self.store.expire(session.id)
        self.connected = False
        self.store.detach(self)
        self.wake()

    async def abandon(self) -> None:
        self.disconnect()
        await self.close()

    def disconnect(self) -> None:
        """Disconnect this client: calls raise Unavailable, sessions are SUSPENDED and not renewed, watches pause."""
        self.connected = False
        for session in tuple(self._sessions.values()):
            session.suspend()

    def reconnect(self) -> None:
        """End ``disconnect``. Sessions that the store still knows become CONNECTED again, and watches restart with a
        Snapshot."""
        self.connected = self._opened
        for session in tuple(self._sessions.values()):
            session.renew()
        for watch in self._watches:
            watch.position = -1
        self.wake()

    def lose_next_response(self, *, applied: bool) -> None:
        """Make the next write raise MaybeApplied. If ``applied``, the store applies the write first; otherwise the
        write is lost."""
        self._lost_response = applied

    async def open_session(self, ttl_ms: int) -> Session:
        await self._delay()
        self._require_open()
        ttl_ms = self.capabilities.ttl(ttl_ms)
        now = asyncio.get_running_loop().time()
        session = MemorySession(self, self.store.new_session(now + ttl_ms / 1000), ttl_ms, now)
        self._sessions[session.id] = session
        return session

    async def get(self, key: str, *, read: Read = LINEARIZABLE) -> Entry | None:
        self.capabilities.admit_key(key)
        await self._delay()
        self._require_open()
        entry = self.store.get(key)
        await self._delay()
        return entry

    async def _delete(self, check: Check, delete: Delete) -> bool:
        self.capabilities.admit_key(delete.key)
        await self._delay()
        self._require_open()
        existed = self.store.get(delete.key) is not None
        self._write([check], [delete])
        await self._delay()
        return existed

    async def list(self, prefix: str, *, limit: int, after: str | None = None, read: Read = LINEARIZABLE) -> Page:
        limit = self.capabilities.admit_limit(limit)
        await self._delay()
        self._require_open()
        page = self.store.list(prefix, limit, after)
        await self._delay()
        return page

    async def txn(self, checks: Sequence[Check], ops: Sequence[Op]) -> TxnResult:
        self.capabilities.admit(checks, ops)
        await self._delay()
        self._require_open()
        result = self._write(checks, ops)
        await self._delay()
        return result

    def watch(self, prefix: str) -> Watch:
        if not self._opened:
            raise Closed("the backend is not open")
        watch = MemoryWatch(self, prefix)
        self._watches[watch] = None
        return watch

    @property
    def watches(self) -> int:
        """The number of open watches of this client."""
        return len(self._watches)

    async def watch_count(self) -> WatchCount:
        return WatchCount(self.store.watches, "this process")

    async def protection(self) -> Protection:
        closed = Finding(Guard.CLOSED, "only this process can use it")
        return Protection(closed, closed)

    def _write(self, checks: Sequence[Check], ops: Sequence[Op]) -> TxnResult:
        for op in ops:
            if isinstance(op, Put) and op.session:
                op.session.require()
        lost_response, self._lost_response = self._lost_response, None
        if lost_response is False:
            raise MaybeApplied("the response was lost")
        result = self.store.apply(checks, ops)
        if lost_response:
            raise MaybeApplied("the response was lost")
        return result

    def _require_open(self) -> None:
        if not self._opened:
            raise Closed("the backend is not open")
        if not self.connected:
            raise Unavailable("disconnected")
        if self.store.identity != self._identity:
            raise WrongStore(f"the store {self._identity} has become {self.store.identity}")

    async def _delay(self) -> None:
        if self.delay_s:
            await asyncio.sleep(self.delay_s())

    def _forget(self, session: MemorySession) -> None:
        self._sessions.pop(session.id, None)
        if self.connected:
            self.store.expire(session.id)

    def expired(self, session_id: str) -> None:
        if self.connected and (session := self._sessions.get(session_id)):
            session.lose()

    def wiped(self) -> None:
        for session in tuple(self._sessions.values()):
            session.lose()
        self.wake()

    def wake(self) -> None:
        for watch in self._watches:
            watch.wake()


class MemoryWatch(Watch):
    """A watch that keeps its position in the store's order of changes, and reads the changes when it is iterated."""

    def __init__(self, backend: MemoryBackend, prefix: str) -> None:
        self.position = -1  # below every floor, so that the first event is a Snapshot
        self._backend = backend
        self._prefix = prefix
        self._events: list[Event] = []  # taken from the store, in reverse order
        self._woken = asyncio.Event()
        self._closed = False

    def wake(self) -> None:
        """Record that the content of the store may have changed."""
        self._woken.set()

    async def _next(self) -> Event:
        while True:
            if self._closed or not self._backend._opened:
                raise Closed("the watch is closed")
            if self._backend.connected:
                self._backend._require_open()
                if self.position < 0:
                    self._events.clear()
                if self._events:
                    return self._events.pop()
                self.position, events = self._backend.store.changes(self._prefix, self.position)
                self._events = list(reversed(events))
                if events:
                    continue
            self._woken.clear()
            await self._woken.wait()

    async def close(self) -> None:
        self._closed = True
        self._backend._watches.pop(self, None)
        self.wake()
