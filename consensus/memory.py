"""A coordination store inside one process: for embedding, tests and simulation.

``memory:`` is a store of its own for each backend; ``memory://name`` is one store for all the backends of the process
that name it. Nothing outlives the last reference to the store. Everything happens on one event loop, in the order of
the calls and by that loop's timers: no threads, so a simulated loop replays it exactly.

For fault tests a client can be cut off (``disconnect``, ``reconnect``), one of its writes made ambiguous
(``lose_next_answer``), its calls delayed (``delay_s``), and in the store a session expired (``expire``) or everything
wiped (``wipe``).
"""

from __future__ import annotations

import asyncio
import random
import weakref
from bisect import bisect_left, bisect_right, insort
from collections.abc import Callable, Sequence
from contextvars import copy_context
from typing import Self

from consensus.backend import (
    ANY,
    LINEARIZABLE,
    Backend,
    Capabilities,
    Changed,
    Check,
    Delete,
    Entry,
    Event,
    Expectation,
    Op,
    Page,
    Presence,
    Put,
    Read,
    Removed,
    Revision,
    Session,
    SessionState,
    Snapshot,
    TxnResult,
    Watch,
    WatchCount,
    violation,
)
from consensus.errors import BadConfig, Closed, MaybeApplied, SessionLost, Unavailable, WrongStore

CAPABILITIES = Capabilities(
    name="memory",
    key_bytes_max=1024,
    value_bytes_max=1 << 20,
    txn_ops_max=1024,
    txn_bytes_max=8 << 20,
    list_limit_max=10_000,
    ttl_ms_min=10,
    ttl_ms_max=24 * 3600 * 1000,
    expiry_factor_max=1.5,
    crash_seen_ms_max=None,
)

_stores: weakref.WeakValueDictionary[str, MemoryStore] = weakref.WeakValueDictionary()


class MemoryStore:
    """The state that the clients of one name share. Its methods are the server's side: they take effect at once.

    :param capabilities: the limits to enforce, so that a test can have those of another store.
    :param rng: source of the identity.
    :param removed_max: how many deletions are remembered for watchers; one that is further behind gets a Snapshot.
    """

    def __init__(
        self,
        capabilities: Capabilities = CAPABILITIES,
        rng: random.Random | None = None,
        removed_max: int = 10_000,
    ) -> None:
        self.capabilities = capabilities
        self._rng = rng or random.Random()
        self._removed_max = removed_max
        self.identity = self._new_identity()
        self._entries: dict[str, Entry] = {}
        self._keys: list[str] = []
        self._sequence = 0
        self._order: dict[str, int] = {}  # key -> sequence of its last change, oldest change first
        self._removed = 0  # how many keys of _order are absent
        self._floor = 0  # watchers behind this sequence may have missed a deletion
        self._deadlines: dict[str, float] = {}  # session -> loop time
        self._session_count = 0
        self._clients: dict[MemoryBackend, None] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._context = copy_context()  # the timer is the server's, whichever client's call sets it
        self._loop: asyncio.AbstractEventLoop | None = None

    def _new_identity(self) -> str:
        return f"{self._rng.getrandbits(128):032x}"

    @classmethod
    def named(cls, name: str) -> MemoryStore:
        """The store of this name, made on first use; it lives as long as somebody holds it."""
        store = _stores.get(name)
        if store is None:
            store = _stores[name] = cls()
        return store

    def known_as(self, name: str) -> Self:
        """Be the store that ``memory://name`` means, for as long as somebody holds it."""
        _stores[name] = self
        return self

    @property
    def sessions(self) -> tuple[str, ...]:
        """The ids of the sessions alive."""
        return tuple(self._deadlines)

    def expire(self, session_id: str) -> None:
        """End a session as if its TTL had run out: its keys go, its client learns it as soon as it is connected."""
        if self._deadlines.pop(session_id, None) is None:
            return
        for key in [key for key, entry in self._entries.items() if entry.session == session_id]:
            self._remove(key)
        for client in tuple(self._clients):
            self._tell_expired(client, session_id)
        self._wake()

    def _tell_expired(self, client: MemoryBackend, session_id: str) -> None:
        client._expired(session_id)

    def wipe(self) -> None:
        """Lose everything, as a server whose data was deleted; the store is empty and of another identity."""
        self.identity = self._new_identity()
        self._entries.clear()
        self._keys.clear()
        self._order.clear()
        self._removed = 0
        self._floor = self._sequence
        self._deadlines.clear()
        for client in tuple(self._clients):
            client._wiped()

    def attach(self, client: MemoryBackend) -> None:
        """Let a client in.

        :raises BadConfig: the store is in use by another event loop.
        """
        loop = asyncio.get_running_loop()
        if self._clients and self._loop is not loop:
            raise BadConfig("a memory store belongs to one event loop; use local:// to share one between threads")
        self._loop = loop
        self._clients[client] = None
        self._expire_due()
        self._arm()

    def detach(self, client: MemoryBackend) -> None:
        """Let a client go."""
        self._clients.pop(client, None)
        if not self._clients and self._timer:
            self._timer.cancel()
            self._timer = None

    def new_session(self, deadline: float) -> str:
        """Start a session that expires at this loop time unless renewed."""
        self._session_count += 1
        session_id = f"session-{self._session_count}"
        self._deadlines[session_id] = deadline
        self._arm()
        return session_id

    def renew(self, session_id: str, deadline: float) -> bool:
        """Put off the expiry of a session; False if there is no such session."""
        if session_id not in self._deadlines:
            return False
        self._deadlines[session_id] = deadline
        return True

    def get(self, key: str) -> Entry | None:
        """The entry of a key."""
        return self._entries.get(key)

    def list(self, prefix: str, limit: int, after: str | None) -> Page:
        """A page of the keys that start with a prefix."""
        start = bisect_left(self._keys, prefix)
        if after is not None:
            start = max(start, bisect_right(self._keys, after))
        end = start
        while end < len(self._keys) and end - start <= limit and self._keys[end].startswith(prefix):
            end += 1
        keys = self._keys[start : min(end, start + limit)]
        return Page(tuple(self._entries[key] for key in keys), keys[-1] if end - start > limit else None)

    def apply(self, checks: Sequence[Check], ops: Sequence[Op]) -> TxnResult:
        """Apply a transaction or raise."""
        self._expire_due()
        for op in ops:
            if isinstance(op, Put) and op.session and op.session.id not in self._deadlines:
                raise SessionLost(f"session {op.session.id} is over")
        for check in checks:
            entry = self._entries.get(check.key)
            if error := violation(check, entry.revision if entry else None):
                raise error
        revisions: list[Revision | None] = []
        for op in ops:
            if isinstance(op, Delete):
                if op.key in self._entries:
                    self._remove(op.key)
                revisions.append(None)
            else:
                revisions.append(self._put(op))
        self._wake()
        return TxnResult(tuple(revisions))

    def changes(self, prefix: str, position: int) -> tuple[int, Sequence[Event]]:
        """What happened below a prefix since a position, last change of each key only, and the position reached."""
        if position < self._floor:
            entries = (self._entries[key] for key in self._keys if key.startswith(prefix))
            return self._sequence, [Snapshot(tuple(entries))]
        events: list[Event] = []
        for key, sequence in reversed(self._order.items()):
            if sequence <= position:
                break
            if key.startswith(prefix):
                entry = self._entries.get(key)
                events.append(Changed(entry) if entry else Removed(key))
        return self._sequence, events[::-1]

    def _put(self, op: Put) -> Revision:
        if op.key not in self._entries:
            insort(self._keys, op.key)
            self._removed -= op.key in self._order
        sequence = self._touch(op.key)
        entry = Entry(op.key, bytes(op.value), Revision(sequence), op.session.id if op.session else None)
        self._entries[op.key] = entry
        return entry.revision

    def _remove(self, key: str) -> None:
        del self._entries[key]
        del self._keys[bisect_left(self._keys, key)]
        self._touch(key)
        self._removed += 1
        if self._removed > 2 * self._removed_max:
            self._forget_removed()

    def _touch(self, key: str) -> int:
        self._sequence += 1
        self._order.pop(key, None)
        self._order[key] = self._sequence
        return self._sequence

    def _forget_removed(self) -> None:
        removed = [key for key in self._order if key not in self._entries]
        for key in removed[: -self._removed_max]:
            self._floor = self._order.pop(key)
            self._removed -= 1

    def _wake(self) -> None:
        for client in tuple(self._clients):
            client._wake()

    def _expire_due(self) -> None:
        now = asyncio.get_running_loop().time()
        for session_id in [session for session, deadline in self._deadlines.items() if deadline <= now]:
            self.expire(session_id)

    def _on_timer(self) -> None:
        self._timer = None
        self._expire_due()
        self._arm()

    def _arm(self) -> None:
        if not self._deadlines:
            return
        due = min(self._deadlines.values())
        if self._timer is not None and self._timer.when() <= due:
            return  # it looks again when it fires
        if self._timer is not None:
            self._timer.cancel()
        self._timer = asyncio.get_running_loop().call_at(due, self._on_timer, context=self._context)


class _MemorySession(Session):
    def __init__(self, backend: MemoryBackend, session_id: str, ttl_ms: int, sent_at: float) -> None:
        super().__init__(session_id, ttl_ms, sent_at)
        self._backend = backend
        self._renewal = self._loop.call_later(ttl_ms / 3000, self.renew)
        self.add_callback(self._on_change)

    def renew(self) -> None:
        """Renew now, and again in a third of the TTL."""
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
    """One client of a ``MemoryStore``.

    :ivar delay_s: called before and after each call for how long it shall take, in seconds; ``None`` for no delay.
    """

    def __init__(self, store: MemoryStore | None = None) -> None:
        self.store = store or MemoryStore()
        self._is_shared = store is not None
        self.delay_s: Callable[[], float] | None = None
        self.connected = False
        self._opened = False
        self._identity = ""
        self._sessions: dict[str, _MemorySession] = {}
        self._watches: dict[_MemoryWatch, None] = {}
        self._lost_answer: bool | None = None

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
    def identity(self) -> str:
        return self._identity

    @property
    def is_shared(self) -> bool:
        return self._is_shared

    async def open(self, *, expect_identity: str | None = None) -> None:
        if expect_identity not in (None, self.store.identity):
            message = f"expected the store {expect_identity}, found {self.store.identity}"
            raise WrongStore(message, found=self.store.identity)
        self.store.attach(self)
        self._identity = self.store.identity
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
        self._wake()

    async def abandon(self) -> None:
        self.disconnect()
        await self.close()

    def disconnect(self) -> None:
        """Cut this client off: calls raise Unavailable, sessions are SUSPENDED and not renewed, watches stand still."""
        self.connected = False
        for session in tuple(self._sessions.values()):
            session.suspend()

    def reconnect(self) -> None:
        """End ``disconnect``: sessions the store still knows are CONNECTED again, watches go on with a Snapshot."""
        self.connected = self._opened
        for session in tuple(self._sessions.values()):
            session.renew()
        for watch in self._watches:
            watch.position = -1
        self._wake()

    def lose_next_answer(self, *, applied: bool) -> None:
        """Make the next write raise MaybeApplied, after applying it or without."""
        self._lost_answer = applied

    async def open_session(self, ttl_ms: int) -> Session:
        await self._delay()
        self._require_open()
        ttl_ms = self.capabilities.ttl(ttl_ms)
        now = asyncio.get_running_loop().time()
        session = _MemorySession(self, self.store.new_session(now + ttl_ms / 1000), ttl_ms, now)
        self._sessions[session.id] = session
        return session

    async def get(self, key: str, *, read: Read = LINEARIZABLE) -> Entry | None:
        self.capabilities.admit_key(key)
        await self._delay()
        self._require_open()
        entry = self.store.get(key)
        await self._delay()
        return entry

    async def delete(self, key: str, *, expect: Expectation = ANY) -> bool:
        if expect is Presence.ABSENT:
            raise ValueError("a delete cannot expect ABSENT")
        self.capabilities.admit_key(key)
        await self._delay()
        self._require_open()
        existed = self.store.get(key) is not None
        self._write([Check(key, expect)], [Delete(key)])
        await self._delay()
        return existed

    async def list(self, prefix: str, *, limit: int, after: str | None = None, read: Read = LINEARIZABLE) -> Page:
        if limit < 1:
            raise ValueError("the limit must be at least 1")
        await self._delay()
        self._require_open()
        page = self.store.list(prefix, min(limit, self.capabilities.list_limit_max), after)
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
        watch = _MemoryWatch(self, prefix)
        self._watches[watch] = None
        return watch

    async def watch_count(self) -> WatchCount:
        return WatchCount(sum(len(client._watches) for client in self.store._clients), "this process")

    def _write(self, checks: Sequence[Check], ops: Sequence[Op]) -> TxnResult:
        for op in ops:
            if isinstance(op, Put) and op.session:
                op.session.require()
        lost_answer, self._lost_answer = self._lost_answer, None
        if lost_answer is False:
            raise MaybeApplied("the answer was lost")
        result = self.store.apply(checks, ops)
        if lost_answer:
            raise MaybeApplied("the answer was lost")
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

    def _forget(self, session: _MemorySession) -> None:
        self._sessions.pop(session.id, None)
        if self.connected:
            self.store.expire(session.id)

    def _expired(self, session_id: str) -> None:
        if self.connected and (session := self._sessions.get(session_id)):
            session.lose()

    def _wiped(self) -> None:
        for session in tuple(self._sessions.values()):
            session.lose()
        self._wake()

    def _wake(self) -> None:
        for watch in self._watches:
            watch.wake()


class _MemoryWatch(Watch):
    def __init__(self, backend: MemoryBackend, prefix: str) -> None:
        self.position = -1  # behind every floor: begin with a Snapshot
        self._backend = backend
        self._prefix = prefix
        self._events: list[Event] = []  # taken from the store, last one next
        self._woken = asyncio.Event()
        self._closed = False

    def wake(self) -> None:
        """There may be something new."""
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
