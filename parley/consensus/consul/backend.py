"""The client of a store in Consul: its calls, its sessions and its watches."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Coroutine, Mapping, Sequence
from contextlib import suppress
from typing import Any, Self, TypeVar

from parley.consensus.backend import (
    LINEARIZABLE,
    Backend,
    Capabilities,
    Check,
    Entry,
    Op,
    Page,
    Put,
    Read,
    Session,
    TxnResult,
    Watch,
    WatchCount,
)
from parley.consensus.consul.address import Address
from parley.consensus.consul.http_client import Response
from parley.consensus.consul.protection import protection_of
from parley.consensus.consul.session import ConsulSession
from parley.consensus.consul.store_requests import Store, UnknownSession
from parley.consensus.consul.transactions import KV, Plan, entry, plan_read, plan_txn, revisions
from parley.consensus.consul.watch import FEEDS_MAX, WAIT_S, ConsulWatch, Feed
from parley.consensus.errors import Closed, CoordinationError, NotFound, SessionLost, WrongStore
from parley.consensus.protection import Protection

VERIFY_S = 3.0
_T = TypeVar("_T")


class ConsulBackend(Backend):
    """A client of the store at an address.

    ``rng`` is the source of names and revisions; two clients must never generate the same name or revision.
    """

    def __init__(self, address: Address, rng: random.Random | None = None) -> None:
        self._rng = rng or random.SystemRandom()
        self._address = address
        self._store = Store(address, self._rng)
        self._opened = False
        self._sessions: dict[str, ConsulSession] = {}
        self._feeds: dict[str, Feed] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._verify_at = 0.0

    @classmethod
    def from_url(cls, url: str, **options: object) -> Self:
        return cls(Address.parse(url, options))

    @property
    def capabilities(self) -> Capabilities:
        return self._store.capabilities

    async def open(self, *, expect_identity: str | None = None) -> None:
        if self._opened:
            return
        await self._store.open(expect_identity)
        self._identity = self._store.identity
        self._opened = True

    async def watch_count(self) -> WatchCount:
        return await self._store.watch_count()

    async def protection(self) -> Protection:
        self._require_open()
        return await protection_of(self._address, self._store.layout)

    async def close(self) -> None:
        await self._close(ending_sessions=True)

    async def abandon(self) -> None:
        await self._close(ending_sessions=False)

    async def _close(self, *, ending_sessions: bool) -> None:
        if not self._opened:
            return
        self._opened = False
        ended = list(self._sessions.values())
        for session in ended:
            session.lose_ended()
        self._end_feeds(Closed("the backend is closed"))
        if ending_sessions:
            await asyncio.gather(*(self._store.try_to_destroy_session(session.id) for session in ended), *self._tasks)
        for task in self._tasks:
            task.cancel()
        await self._store.close()

    async def open_session(self, ttl_ms: int) -> Session:
        self._require_open()
        ttl_ms = self.capabilities.ttl(ttl_ms)
        sent_at = asyncio.get_running_loop().time()
        session_id = await self._store.create_session(ttl_ms)
        try:
            await self._noting_loss(self._store.verify())
            self._require_open()
        except CoordinationError:
            self._start(self._store.try_to_destroy_session(session_id))
            raise
        session = ConsulSession(self, session_id, ttl_ms, sent_at)
        self._sessions[session_id] = session
        return session

    async def get(self, key: str, *, read: Read = LINEARIZABLE) -> Entry | None:
        self.capabilities.admit_key(key)
        try:
            found = await self._run(self._plan_read("get", key), read)
        except NotFound:
            return None
        return entry(self._store.layout, found[0])

    async def list(self, prefix: str, *, limit: int, after: str | None = None, read: Read = LINEARIZABLE) -> Page:
        """Return a page, as ``Backend.list`` describes. Consul has no pages: it always sends everything below the
        prefix, regardless of the limit."""
        limit = self.capabilities.admit_limit(limit)
        layout = self._store.layout
        # For Consul a NUL in the prefix matches the end of a key.
        found = [
            kv
            for kv in await self._run(self._plan_read("get-tree", prefix), read)
            if (key := layout.key(kv["Key"])).startswith(prefix) and key > (after or "")
        ]
        page = tuple(entry(layout, kv) for kv in found[:limit])
        return Page(page, page[-1].key if len(found) > limit else None)

    async def txn(self, checks: Sequence[Check], ops: Sequence[Op]) -> TxnResult:
        self.capabilities.admit(checks, ops)
        self._require_open()
        for op in ops:
            if isinstance(op, Put) and op.session:
                op.session.require()
        store = self._store
        found = await self._run(plan_txn(store.layout, store.identity, checks, ops, self._rng))
        return TxnResult(revisions(store.layout, ops, found))

    def watch(self, prefix: str) -> Watch:
        self._require_open()
        feed_prefix = prefix if prefix in self._feeds or len(self._feeds) < FEEDS_MAX else ""
        feed = self._feeds.get(feed_prefix)
        if feed is None:
            feed = self._feeds[feed_prefix] = Feed(self, feed_prefix)
        feed.watches += 1
        return ConsulWatch(feed, prefix, self._on_watch_closed)

    # --- For feeds and sessions ---

    async def wait_for_change(self, prefix: str, index: int) -> Response:
        """Wait until something below a prefix may have changed since this index (for ``watch.Source``)."""
        return await self._store.wait_for_change(prefix, index, WAIT_S)

    async def read_state(self, prefix: str, known: Mapping[str, Entry]) -> Mapping[str, Entry]:
        """Read the entries below a prefix, sorted. Unchanged entries are the objects in ``known`` (for
        ``watch.Source``)."""
        layout, state = self._store.layout, dict[str, Entry]()
        for kv in await self._run(self._plan_read("get-tree", prefix)):
            key = layout.key(kv["Key"])
            same = known.get(key)
            state[key] = same if same and same.revision.token == kv["ModifyIndex"] else entry(layout, kv)
        return state

    async def renew(self, session_id: str, timeout_s: float) -> bool:
        """Renew a session, and periodically verify the store, because sessions outlive its keys (for
        ``session.Sessions``). Returns False if Consul does not know the session."""
        alive = await self._store.renew_session(session_id, timeout_s)
        now = asyncio.get_running_loop().time()
        if alive and now >= self._verify_at:
            self._verify_at = now + VERIFY_S
            await self._noting_loss(self._store.verify())
        return alive

    async def destroy(self, session_id: str) -> None:
        """End a session in Consul, which deletes its keys (for ``session.Sessions``)."""
        with suppress(Closed):
            await self._store.destroy_session(session_id)

    def forget(self, session: ConsulSession) -> None:
        """Forget a session that is LOST, and end it in Consul if it has not ended there (for ``session.Sessions``)."""
        self._sessions.pop(session.id, None)
        if not session.ended_in_store and self._opened:
            self._start(self._store.try_to_destroy_session(session.id))

    # --- Internals ---

    def _plan_read(self, verb: str, key: str) -> Plan:
        return plan_read(self._store.layout, self._store.identity, verb, key)

    async def _run(self, plan: Plan, read: Read = LINEARIZABLE) -> Sequence[KV]:
        self._require_open()
        return await self._noting_loss(self._store.run(plan, read))

    async def _noting_loss(self, call: Coroutine[Any, Any, _T]) -> _T:
        """Await a call. If it fails, end the lost sessions and watches before the caller receives the error."""
        try:
            return await call
        except UnknownSession as unknown:
            if session := self._sessions.get(unknown.session.id):
                session.lose_ended()
            raise SessionLost(*unknown.args) from None
        except WrongStore as error:
            for session in tuple(self._sessions.values()):
                session.lose_ended()
            self._end_feeds(error)
            raise

    def _end_feeds(self, error: CoordinationError) -> None:
        feeds, self._feeds = self._feeds, {}
        for feed in feeds.values():
            feed.end(error)

    def _on_watch_closed(self, watch: ConsulWatch) -> None:
        feed = watch.feed
        feed.watches -= 1
        if not feed.watches and self._feeds.get(feed.prefix) is feed:
            del self._feeds[feed.prefix]
            feed.end(Closed("the watch is closed"))

    def _start(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _require_open(self) -> None:
        if not self._opened:
            raise Closed("the backend is not open")
