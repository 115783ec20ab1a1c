"""The client of a store in ZooKeeper: its calls, its sessions and its watches."""

from __future__ import annotations

import asyncio
import dataclasses
import random
from collections.abc import Callable, Coroutine, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any, Self

from kazoo.exceptions import KazooException
from kazoo.protocol.states import KazooState

from parley.consensus.backend import (
    LINEARIZABLE,
    Backend,
    Capabilities,
    Check,
    Delete,
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
from parley.consensus.errors import Closed, CoordinationError, SessionLost, Unavailable, WrongStore
from parley.consensus.protection import Protection
from parley.consensus.zookeeper.address import Address, parse
from parley.consensus.zookeeper.change_feed import ChangeFeed
from parley.consensus.zookeeper.change_log_trimming import ChangeLogTrimmer
from parley.consensus.zookeeper.config_keys import CONFIG
from parley.consensus.zookeeper.connection import MAIN_TIMEOUT_MS, Connection
from parley.consensus.zookeeper.consistent_reads import Reader
from parley.consensus.zookeeper.identity import open_store, verify_store
from parley.consensus.zookeeper.key_layout import KeyLayout
from parley.consensus.zookeeper.protection import protection_of
from parley.consensus.zookeeper.session import SessionConnection, ZookeeperSession, create_session_znode
from parley.consensus.zookeeper.session_timeout_bounds import session_timeout_bounds
from parley.consensus.zookeeper.transactions import Applied, Writer
from parley.consensus.zookeeper.watch import ZookeeperWatch
from parley.consensus.zookeeper.watch_count import watch_count

CAPABILITIES = Capabilities(
    name="ZooKeeper",
    key_bytes_max=1024,
    value_bytes_max=256 << 10,
    txn_ops_max=256,
    txn_bytes_max=400 << 10,  # a request is at most 1 MiB (jute.maxbuffer), and names each key up to three times
    list_limit_max=1000,
    ttl_ms_min=4000,  # ZooKeeper's defaults, 2 and 20 ticks of 2 s; after ``open`` the server's bounds
    ttl_ms_max=40_000,
    expiry_factor_max=2.0,  # rounded up to the next tick, and reported to ZooKeeper's leader half a tick late
    crash_seen_ms_max=None,
)
_WAIT_S = 5.0
_VERIFY_AFTER_S, _VERIFY_AFTER_MAX_S = 0.5, 4.0


class ZookeeperBackend(Backend):
    """A client of the store below a path of a ZooKeeper ensemble.

    ``rng`` is the source of names; two clients must never generate the same name.
    """

    config = CONFIG

    def __init__(self, address: Address, *, rng: random.Random | None = None) -> None:
        self._address = address
        self._rng = rng or random.SystemRandom()
        self._layout = KeyLayout(address.root)
        self._capabilities = CAPABILITIES
        self._opened = False
        self._wrong: WrongStore | None = None
        self._connection: Connection | None = None
        self._session_connections: dict[int, SessionConnection] = {}
        self._watches: dict[ZookeeperWatch, None] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._following: asyncio.Task[None] | None = None
        self._verifying: asyncio.Task[None] | None = None

    @classmethod
    def from_url(cls, url: str, **options: object) -> Self:
        return cls(parse(url, options))

    @property
    def capabilities(self) -> Capabilities:
        return self._capabilities

    async def watch_count(self) -> WatchCount:
        return await asyncio.to_thread(watch_count, self._address.endpoint)

    async def protection(self) -> Protection:
        if not self._opened:
            raise Closed("the backend is not open")
        try:
            return await asyncio.to_thread(protection_of, self._address)
        except KazooException as error:
            raise Unavailable(f"the ACLs of the tree cannot be read: {error!r}") from error

    async def open(self, *, expect_identity: str | None = None) -> None:
        if self._opened:
            return
        await self._learn_bounds()
        connection = Connection(self._address.endpoint, self._main_timeout_ms(), self._on_state)
        connection.start()
        try:
            await connection.connected(self._address.connect_s)
            identity = await open_store(connection, self._address, self._layout, expect_identity, self._rng)
        except BaseException:
            await connection.close()
            raise
        acl = self._address.acl
        self._connection, self._identity, self._wrong = connection, identity, None
        self._reader = Reader(connection, self._layout, identity, _WAIT_S)
        self._writer = Writer(connection, self._reader, self._layout, identity, acl, _WAIT_S)
        self._feed = ChangeFeed(connection, self._reader, self._layout, self._wake_watches)
        self._trimmer = ChangeLogTrimmer(connection, self._layout)
        self._opened = True

    async def _learn_bounds(self) -> None:
        try:
            endpoint, connect_s = self._address.endpoint, self._address.connect_s
            shortest, longest = await asyncio.to_thread(session_timeout_bounds, endpoint, connect_s)
        except OSError as error:
            raise Unavailable(f"no ZooKeeper server of {self._address.endpoint.hosts} responds: {error}") from error
        self._capabilities = dataclasses.replace(CAPABILITIES, ttl_ms_min=shortest, ttl_ms_max=longest)

    def _main_timeout_ms(self) -> int:
        return self._capabilities.ttl(MAIN_TIMEOUT_MS)

    async def close(self) -> None:
        await self._close(Connection.close)

    async def abandon(self) -> None:
        await self._close(Connection.abandon)

    async def _close(self, end: Callable[[Connection], Coroutine[Any, Any, None]]) -> None:
        connection, self._connection = self._connection, None
        if connection is None:
            return
        self._opened = False
        self._wake_watches()
        shared = list(self._session_connections.values())
        sessions = [session for each in shared for session in each.sessions.values()]
        tasks = [*self._tasks, *([self._following] if self._following else [])]
        self._tasks.clear()
        self._following = None
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        shared = list(self._session_connections.values())
        self._session_connections.clear()
        for session in sessions:
            session.lose()
        keys = [key for session in sessions for key in session.keys]
        await asyncio.gather(*(end(each.connection) for each in shared))
        if keys and end is Connection.close:
            with suppress(CoordinationError):
                await self._writer.sweep(keys)
        await end(connection)

    async def open_session(self, ttl_ms: int) -> Session:
        self._require_open()
        ttl_ms = self._capabilities.ttl(ttl_ms)
        shared = self._session_connections.get(ttl_ms)
        if shared is None:
            shared = SessionConnection(self._address.endpoint, ttl_ms, self._spawn)
            self._session_connections[ttl_ms] = shared
        session_id = f"{self._rng.getrandbits(64):016x}"
        shared.opening += 1
        try:
            sent_at = await create_session_znode(
                shared, self._layout, self.identity, session_id, self._address.acl, _WAIT_S
            )
            path = self._layout.session(session_id)
            return ZookeeperSession(session_id, ttl_ms, sent_at, shared, path, self._spawn, self._on_session_end)
        except WrongStore as error:
            raise self._become_wrong(error) from error
        finally:
            shared.opening -= 1
            self._drop_idle(shared)

    async def get(self, key: str, *, read: Read = LINEARIZABLE) -> Entry | None:
        self._capabilities.admit_key(key)
        self._require_open()
        with self._noticing_wrong_store():
            stored = (await self._reader.state([key], fresh=read is LINEARIZABLE)).keys[key]
        return stored.entry() if stored is not None and stored.alive else None

    async def _delete(self, check: Check, delete: Delete) -> bool:
        return (await self._apply([check], [delete])).deleted > 0

    async def list(self, prefix: str, *, limit: int, after: str | None = None, read: Read = LINEARIZABLE) -> Page:
        limit = self._capabilities.admit_limit(limit)
        self._require_open()
        with self._noticing_wrong_store():
            found = await self._reader.range(prefix, fresh=read is LINEARIZABLE, limit=limit, after=after)
        if found.dead:
            self._sweep(found.dead)
        entries = tuple(stored.entry() for stored in found.stored)
        return Page(entries, entries[-1].key if found.more else None)

    async def txn(self, checks: Sequence[Check], ops: Sequence[Op]) -> TxnResult:
        return TxnResult((await self._apply(checks, ops)).revisions)

    def watch(self, prefix: str) -> Watch:
        self._require_open()
        watch = ZookeeperWatch(prefix, self._reader, self._feed, self._sweep, self._on_watch_closed)
        self._watches[watch] = None
        if self._following is None:
            self._following = asyncio.get_running_loop().create_task(self._follow(), name="coordination change feed")
        return watch

    async def _apply(self, checks: Sequence[Check], ops: Sequence[Op]) -> Applied:
        self._capabilities.admit(checks, ops)
        self._require_open()
        bound = [(op.session, op.key) for op in ops if isinstance(op, Put) and op.session]
        for session, key in bound:
            session.require()
            if isinstance(session, ZookeeperSession):
                session.keys[key] = None
        try:
            with self._noticing_wrong_store():
                applied = await self._writer.apply(checks, ops)
        except SessionLost:
            for session, _ in bound:
                await self._lose_if_ended(session)
            raise
        if applied.entry is not None and self._trimmer.is_due(applied.entry):
            self._spawn(self._trimmer.trim(applied.entry), "trimming of the change log")
        return applied

    async def _lose_if_ended(self, session: Session) -> None:
        """Make a session LOST if it has ended, before the caller receives the error."""
        if isinstance(session, ZookeeperSession) and self._opened:
            with suppress(CoordinationError):
                if session.id not in (await self._reader.state(fresh=True)).sessions:
                    session.lose()

    # --- Background work ---

    def _require_open(self) -> None:
        if not self._opened:
            raise Closed("the backend is not open")
        if self._wrong is not None:
            raise WrongStore(str(self._wrong))

    @contextmanager
    def _noticing_wrong_store(self) -> Iterator[None]:
        """Wrap calls to the store: WrongStore ends all sessions and watches, not only the call that raises it."""
        try:
            yield
        except WrongStore as error:
            raise self._become_wrong(error) from error

    def _become_wrong(self, error: WrongStore) -> WrongStore:
        """End all sessions and watches, and fail every further call, because the store was deleted or replaced."""
        if self._wrong is None:
            self._wrong = error
            if self._connection is not None:
                self._connection.fail(error)
            for shared in tuple(self._session_connections.values()):
                shared.connection.fail(error)
                for session in tuple(shared.sessions.values()):
                    session.lose()
            self._feed.error = self._feed.error or error
            self._wake_watches()
        return error

    async def _follow(self) -> None:
        await self._feed.run()
        if isinstance(self._feed.error, WrongStore):
            self._become_wrong(self._feed.error)

    def _on_state(self, state: KazooState) -> None:
        if not self._opened:
            return
        if state == KazooState.CONNECTED:
            self._spawn(self._verify_by_read(), "verification of the store")
        elif self._verifying is None or self._verifying.done():
            self._verifying = self._spawn(self._verify_while_disconnected(), "verification of the store")

    async def _verify_while_disconnected(self) -> None:
        """While there is no connection, verify over a separate connection that the store still exists.

        A server whose data was deleted rejects every client that has seen a later state, without giving this reason.
        """
        connection, pause_s = self._connection, _VERIFY_AFTER_S
        while connection is not None and not connection.is_connected:
            await asyncio.sleep(pause_s)
            pause_s = min(2 * pause_s, _VERIFY_AFTER_MAX_S)
            if connection.is_connected or self._wrong is not None:
                return
            with suppress(CoordinationError), self._noticing_wrong_store():
                await verify_store(self._address, self._layout, self.identity, _WAIT_S)

    async def _verify_by_read(self) -> None:
        with suppress(CoordinationError), self._noticing_wrong_store():
            await self._reader.state(fresh=True)

    def _on_session_end(self, session: ZookeeperSession) -> None:
        if not self._opened:
            return
        self._spawn(self._clear(session), f"cleanup after session {session.id}")

    async def _clear(self, session: ZookeeperSession) -> None:
        """Delete the znode of a session that has ended, and the znodes of its keys."""
        shared = self._session_connections.get(session.ttl_ms)
        if shared is not None:
            shared.opening += 1
            try:
                with suppress(CoordinationError):
                    await session.remove()
            finally:
                shared.opening -= 1
                self._drop_idle(shared)
        if session.keys and self._wrong is None:
            with suppress(CoordinationError):
                await self._writer.sweep(list(session.keys))

    def _drop_idle(self, shared: SessionConnection) -> None:
        ttl_ms = shared.connection.timeout_ms
        if shared.idle and self._session_connections.get(ttl_ms) is shared:
            del self._session_connections[ttl_ms]
            self._spawn(shared.connection.close(), "end of a connection without sessions")

    def _on_watch_closed(self, watch: ZookeeperWatch) -> None:
        self._watches.pop(watch, None)

    def _wake_watches(self) -> None:
        for watch in tuple(self._watches):
            if not self._opened:
                watch.end()
            watch.wake()

    def _sweep(self, dead: Sequence[str]) -> None:
        if self._opened:
            self._spawn(self._swept(dead), "deletion of dead keys")

    async def _swept(self, dead: Sequence[str]) -> None:
        with suppress(CoordinationError):
            await self._writer.sweep(dead)

    def _spawn(self, work: Coroutine[Any, Any, None], name: str) -> asyncio.Task[None]:
        task = asyncio.get_running_loop().create_task(work, name=name)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task
