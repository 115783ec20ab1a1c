"""The client of a store in etcd: its calls, its sessions and its watches."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Sequence
from contextlib import suppress
from typing import Self

from parley.consensus.backend import (
    LINEARIZABLE,
    STALE,
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
from parley.consensus.errors import Closed, CoordinationError, OlderStore, SessionLost, Unavailable, WrongStore
from parley.consensus.etcd import etcd_pb2 as pb
from parley.consensus.etcd import transactions
from parley.consensus.etcd.address import Address, parse, read_secrets
from parley.consensus.etcd.connection import Connection
from parley.consensus.etcd.grpc_errors import ResponseTooLarge
from parley.consensus.etcd.grpc_methods import GRANT, KEEP_ALIVE, REVOKE, TXN
from parley.consensus.etcd.identity import EtcdIdentity
from parley.consensus.etcd.key_layout import KeyLayout
from parley.consensus.etcd.protection import protection_of
from parley.consensus.etcd.server_connection import REQUEST_S, RequestFailed, ServerConnection
from parley.consensus.etcd.session import EtcdSession
from parley.consensus.etcd.watch import EtcdWatch
from parley.consensus.etcd.watch_count import watch_count
from parley.consensus.protection import Protection
from parley.consensus.store_identity import open_identity

CAPABILITIES = Capabilities(
    name="etcd",
    key_bytes_max=1024,
    value_bytes_max=1 << 20,
    txn_ops_max=127,  # etcd allows 128 comparisons; one of them checks the identity
    txn_bytes_max=5 << 18,  # etcd allows 1.5 MiB; the rest is for keys named twice, prefixes and framing
    list_limit_max=10_000,
    ttl_ms_min=2000,  # a server with the default election timeout raises shorter TTLs to this value
    ttl_ms_max=24 * 3600 * 1000,
    expiry_factor_max=2.0,
    crash_seen_ms_max=None,
)
_CLOSE_S = 2.0
_PAGE = 1000


class EtcdBackend(Backend):
    """A client of a store in etcd.

    ``rng`` determines the identity of a new store, the order in which servers are tried, and the pauses between
    attempts.
    """

    def __init__(self, address: Address, *, rng: random.Random | None = None) -> None:
        self._address = address
        self._rng = rng or random.SystemRandom()
        self.layout = KeyLayout(address.prefix)
        self._connection: Connection | None = None
        self._wrong: WrongStore | None = None
        self._reached = 0  # the highest revision seen
        self._sessions: dict[EtcdSession, None] = {}
        self._watches: dict[EtcdWatch, None] = {}
        self._ending: set[asyncio.Future[None]] = set()
        self._verifying: asyncio.Task[None] | None = None

    @classmethod
    def from_url(cls, url: str, **options: object) -> Self:
        return cls(parse(url, options))

    @property
    def capabilities(self) -> Capabilities:
        return CAPABILITIES

    async def open(self, *, expect_identity: str | None = None) -> None:
        if self._connection is not None:
            return
        secrets = await asyncio.to_thread(read_secrets, self._address)
        self._wrong, self._reached = None, 0
        connection = self._connection = Connection(self._address, secrets, self._rng, self._on_up, self._on_down)
        try:
            storage = EtcdIdentity(connection, self.layout, self.note_revision)
            self._identity = await open_identity(storage, expect_identity, self._rng)
        except BaseException:
            await self.abandon()
            raise

    async def watch_count(self) -> WatchCount:
        return await watch_count(self._address)

    async def protection(self) -> Protection:
        return await protection_of(self._connected(), self._address)

    async def close(self) -> None:
        if self._connection is None:
            return
        for session in tuple(self._sessions):
            session.lose()
        if self._ending:
            await asyncio.wait(self._ending, timeout=_CLOSE_S)
        await self.abandon()

    async def abandon(self) -> None:
        connection, self._connection = self._connection, None
        if connection is None:
            return
        for session in tuple(self._sessions):
            session.lose()
        for ending in tuple(self._ending):
            ending.cancel()
        if self._verifying is not None:
            self._verifying.cancel()
        for watch in tuple(self._watches):
            await watch.close()
        await connection.close()

    async def open_session(self, ttl_ms: int) -> Session:
        ttl_ms = CAPABILITIES.ttl(ttl_ms)
        await self.verify()
        sent_at = asyncio.get_running_loop().time()
        request = pb.LeaseGrantRequest(TTL=-(-ttl_ms // 1000))
        granted = await self._connected().call(GRANT, request, writes=False)  # a lease that no client knows of expires
        session = EtcdSession(self, granted.ID, ttl_ms, sent_at)
        self._sessions[session] = None
        return session

    async def get(self, key: str, *, read: Read = LINEARIZABLE) -> Entry | None:
        CAPABILITIES.admit_key(key)
        found, _ = await self._range(pb.RangeRequest(key=self.layout.key(key)), read)
        return self.layout.entry(found.kvs[0]) if found.kvs else None

    async def _delete(self, check: Check, delete: Delete) -> bool:
        response = await self._write([check], [delete])
        return response.responses[0].response_delete_range.deleted > 0

    async def list(self, prefix: str, *, limit: int, after: str | None = None, read: Read = LINEARIZABLE) -> Page:
        limit = CAPABILITIES.admit_limit(limit)
        start, end = self.layout.range(prefix, after)
        if start >= end:
            await self.verify()
            return Page((), None)
        while True:
            try:
                found, _ = await self._range(pb.RangeRequest(key=start, range_end=end, limit=limit), read)
                break
            except ResponseTooLarge:
                limit = max(1, limit // 2)
        entries = tuple(map(self.layout.entry, found.kvs))
        return Page(entries, entries[-1].key if found.more else None)

    async def txn(self, checks: Sequence[Check], ops: Sequence[Op]) -> TxnResult:
        return transactions.result(ops, await self._write(checks, ops))

    def watch(self, prefix: str) -> Watch:
        self._connected()
        watch = EtcdWatch(self, prefix)
        self._watches[watch] = None
        return watch

    # --- For sessions ---

    async def keep_alive(self, lease: int, timeout_s: float) -> int:
        """Renew a lease, as ``session.Leases`` describes."""
        deadline = asyncio.get_running_loop().time() + timeout_s
        server = await self._connected().server(deadline)
        try:
            async with asyncio.timeout_at(deadline):
                async with server.stream(KEEP_ALIVE, pb.LeaseKeepAliveRequest(ID=lease)) as read:
                    response: pb.LeaseKeepAliveResponse = await read()
        except TimeoutError:
            server.retire()
            raise Unavailable(f"{server.endpoint} does not renew a lease within {timeout_s:.1f} s") from None
        except RequestFailed as error:
            raise Unavailable(str(error)) from error
        self._verify_soon()
        return response.TTL

    def _verify_soon(self) -> None:
        """Verify in the background that the store still exists.

        A lease survives the deletion of all keys, and an idle client sends no other request that would reveal the
        deletion.
        """
        if self._connection is not None and (self._verifying is None or self._verifying.done()):
            self._verifying = asyncio.get_running_loop().create_task(self._verify_quietly(), name="etcd identity")

    async def _verify_quietly(self) -> None:
        with suppress(CoordinationError):  # WrongStore has taken effect; other errors will recur
            await self.verify()

    def end(self, session: EtcdSession) -> asyncio.Future[None]:
        """Revoke the lease of a session that is LOST, as ``session.Leases`` describes."""
        self._sessions.pop(session, None)
        ending = asyncio.ensure_future(self._revoke(session.lease))
        self._ending.add(ending)
        ending.add_done_callback(self._ended)
        return ending

    def _ended(self, ending: asyncio.Future[None]) -> None:
        self._ending.discard(ending)
        if not ending.cancelled():
            ending.exception()  # so that asyncio does not log it as never retrieved; a waiting caller still gets it

    async def _revoke(self, lease: int) -> None:
        if self._connection is None:
            return
        with suppress(SessionLost):  # etcd's response if the lease does not exist
            await self._connection.call(REVOKE, pb.LeaseRevokeRequest(ID=lease), writes=False)

    # --- For watches ---

    async def snapshot(self, prefix: str) -> tuple[Sequence[Entry], int]:
        """Return the entries below a prefix, and their revision, as ``watch.Source`` describes."""
        start, end = self.layout.range(prefix)
        entries: list[Entry] = []
        revision, limit = 0, _PAGE
        while True:
            request = pb.RangeRequest(key=start, range_end=end, limit=limit, revision=revision)
            try:
                found, reached = await self._range(request, LINEARIZABLE)
            except ResponseTooLarge:
                limit = max(1, limit // 2)
                continue
            revision = revision or reached
            entries += map(self.layout.entry, found.kvs)
            if not found.more:
                return entries, revision
            start = found.kvs[-1].key + b"\0"

    async def server(self) -> ServerConnection:
        """Return the connection in use (for ``watch.Source``). Raises Unavailable if none is established in time."""
        return await self._connected().server(asyncio.get_running_loop().time() + REQUEST_S)

    async def verify(self, server: ServerConnection | None = None) -> None:
        """Raise WrongStore if the store no longer exists (for ``watch.Source``)."""
        await self._range(pb.RangeRequest(key=self.layout.identity, count_only=True), LINEARIZABLE, server)

    def note_revision(self, revision: int) -> None:
        """Record a revision that the store has reached (for ``watch.Source``)."""
        self._reached = max(self._reached, revision)

    def forget(self, watch: EtcdWatch) -> None:
        """Forget a closed watch (for ``watch.Source``)."""
        self._watches.pop(watch, None)

    # --- Requests ---

    async def _range(
        self, request: pb.RangeRequest, how: Read, server: ServerConnection | None = None
    ) -> tuple[pb.RangeResponse, int]:
        """Read a range. Returns the response and the revision of the store."""
        request.serializable = how is STALE
        txn = transactions.read(self.layout, self.identity, request, stale=how is STALE)
        response = await self._send(txn, server=server, fresh=how is not STALE)
        if not response.succeeded:
            if how is STALE:  # a server that lags far behind may not have seen the store's creation yet
                return await self._range(request, LINEARIZABLE)
            raise self._refused([], response)
        return response.responses[0].response_range, response.header.revision

    async def _write(self, checks: Sequence[Check], ops: Sequence[Op]) -> pb.TxnResponse:
        CAPABILITIES.admit(checks, ops)
        self._connected()
        request = transactions.write(self.layout, self.identity, checks, ops)
        try:
            response = await self._send(request, writes=bool(ops))
        except SessionLost:
            await self._drop_ended(ops)
            raise
        if not response.succeeded:
            raise self._refused(checks, response)
        return response

    async def _send(
        self,
        request: pb.TxnRequest,
        *,
        writes: bool = False,
        server: ServerConnection | None = None,
        fresh: bool = True,
    ) -> pb.TxnResponse:
        connection, reached = self._connected(), self._reached
        if server is None:
            response = await connection.call(TXN, request, writes=writes)
        else:
            try:
                response = await server.unary(TXN, request, REQUEST_S)
            except RequestFailed as error:
                raise (error.failure.error or Unavailable(str(error))) from error
        if fresh and response.header.revision < reached:
            self._become_wrong(
                OlderStore(
                    f"the store {self.identity} was rolled back to an older state: it was at revision {reached} and is "
                    f"now at {response.header.revision}"
                )
            )
            raise self._wrong or AssertionError
        self.note_revision(response.header.revision)
        return response

    def _refused(self, checks: Sequence[Check], response: pb.TxnResponse) -> CoordinationError:
        error = transactions.refusal(self.layout, checks, self.identity, response)
        if isinstance(error, WrongStore):
            self._become_wrong(error)
        return error

    def _become_wrong(self, error: WrongStore) -> None:
        """End all sessions and watches, and fail every further call with this error."""
        self._wrong = self._wrong or error
        for session in tuple(self._sessions):
            session.lose()
        for watch in tuple(self._watches):
            watch.end(type(error)(str(error)))

    async def _drop_ended(self, ops: Sequence[Op]) -> None:
        """Mark the sessions that etcd no longer knows as LOST, before the caller receives the error."""
        for session in {op.session for op in ops if isinstance(op, Put) and op.session}:
            if isinstance(session, EtcdSession):
                with suppress(CoordinationError):
                    if await self.keep_alive(session.lease, REQUEST_S) <= 0:
                        session.lose()

    def _connected(self) -> Connection:
        if self._connection is None:
            raise Closed("the backend is not open")
        if self._wrong is not None:
            raise type(self._wrong)(str(self._wrong))
        return self._connection

    def _on_up(self) -> None:
        for session in self._sessions:
            session.renew_now()

    def _on_down(self) -> None:
        for session in tuple(self._sessions):
            session.suspend()
