"""The calls of the interface over etcd. The package has the rules."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Sequence
from contextlib import suppress
from typing import Self

from parley.consensus.backend import (
    ANY,
    LINEARIZABLE,
    STALE,
    Backend,
    Capabilities,
    Check,
    Delete,
    Entry,
    Expectation,
    Op,
    Page,
    Presence,
    Put,
    Read,
    Session,
    TxnResult,
    Watch,
    WatchCount,
)
from parley.consensus.errors import (
    BadConfig,
    Closed,
    CoordinationError,
    SessionLost,
    Unavailable,
    Unsupported,
    WrongStore,
)
from parley.consensus.etcd import etcd_pb2 as pb
from parley.consensus.etcd import transactions as transaction
from parley.consensus.etcd.address import Address, parse, read_secrets
from parley.consensus.etcd.connection import REQUEST_S, Broken, Connection, Link
from parley.consensus.etcd.grpc_methods import GRANT, KEEP_ALIVE, REVOKE, TXN, AnswerTooLarge
from parley.consensus.etcd.key_layout import Keyspace
from parley.consensus.etcd.session import EtcdSession
from parley.consensus.etcd.watch import EtcdWatch
from parley.consensus.etcd.watch_count import watch_count

CAPABILITIES = Capabilities(
    name="etcd",
    key_bytes_max=1024,
    value_bytes_max=1 << 20,
    txn_ops_max=127,  # etcd takes 128 comparisons, one of which is that of the identity
    txn_bytes_max=5 << 18,  # etcd takes 1.5 MiB; the rest is for keys named twice, prefixes and framing
    list_limit_max=10_000,
    ttl_ms_min=2000,  # shorter ones are raised to this by a server with the default election timeout
    ttl_ms_max=24 * 3600 * 1000,
    expiry_factor_max=2.0,
    crash_seen_ms_max=None,
)
_FAREWELL_S = 2.0
_SERVER_TXN_OPS = 128
_PAGE = 1000


class EtcdBackend(Backend):
    """A client of a store in etcd.

    :param rng: source of the identity, of the order of servers and of pauses.
    """

    def __init__(self, address: Address, *, rng: random.Random | None = None) -> None:
        self._address = address
        self._rng = rng or random.SystemRandom()
        self.keyspace = Keyspace(address.prefix)
        self._identity: str | None = None
        self._connection: Connection | None = None
        self._wrong: WrongStore | None = None
        self._reached = 0  # the highest revision that was seen
        self._sessions: dict[EtcdSession, None] = {}
        self._watches: dict[EtcdWatch, None] = {}
        self._ending: set[asyncio.Future[None]] = set()
        self._looking: asyncio.Task[None] | None = None

    @classmethod
    def from_url(cls, url: str, **options: object) -> Self:
        return cls(parse(url, options))

    @property
    def capabilities(self) -> Capabilities:
        return CAPABILITIES

    @property
    def identity(self) -> str:
        if self._identity is None:
            raise Closed("the backend has not been opened")
        return self._identity

    async def open(self, *, expect_identity: str | None = None) -> None:
        if self._connection is not None:
            return
        secrets = await asyncio.to_thread(read_secrets, self._address)
        self._wrong, self._reached = None, 0
        self._connection = Connection(self._address, secrets, self._rng, self._on_up, self._on_down)
        try:
            self._identity = await self._find_identity(expect_identity)
        except BaseException:
            await self.abandon()
            raise

    async def watch_count(self) -> WatchCount:
        return await watch_count(self._address)

    async def close(self) -> None:
        if self._connection is None:
            return
        for session in tuple(self._sessions):
            session.lose()
        if self._ending:
            await asyncio.wait(self._ending, timeout=_FAREWELL_S)
        await self.abandon()

    async def abandon(self) -> None:
        connection, self._connection = self._connection, None
        if connection is None:
            return
        for session in tuple(self._sessions):
            session.lose()
        for ending in tuple(self._ending):
            ending.cancel()
        if self._looking is not None:
            self._looking.cancel()
        for watch in tuple(self._watches):
            await watch.close()
        await connection.close()

    async def open_session(self, ttl_ms: int) -> Session:
        ttl_ms = CAPABILITIES.ttl(ttl_ms)
        await self.verify()
        sent_at = asyncio.get_running_loop().time()
        request = pb.LeaseGrantRequest(TTL=-(-ttl_ms // 1000))
        granted = await self._connected().call(GRANT, request, writes=False)  # one that nobody knows of runs out
        session = EtcdSession(self, granted.ID, ttl_ms, sent_at)
        self._sessions[session] = None
        return session

    async def get(self, key: str, *, read: Read = LINEARIZABLE) -> Entry | None:
        CAPABILITIES.admit_key(key)
        found, _ = await self._range(pb.RangeRequest(key=self.keyspace.key(key)), read)
        return self.keyspace.entry(found.kvs[0]) if found.kvs else None

    async def delete(self, key: str, *, expect: Expectation = ANY) -> bool:
        if expect is Presence.ABSENT:
            raise ValueError("a delete cannot expect ABSENT")
        answer = await self._write([Check(key, expect)], [Delete(key)])
        return answer.responses[0].response_delete_range.deleted > 0

    async def list(self, prefix: str, *, limit: int, after: str | None = None, read: Read = LINEARIZABLE) -> Page:
        if limit < 1:
            raise ValueError("the limit must be at least 1")
        start, end = self.keyspace.range(prefix, after)
        limit = min(limit, CAPABILITIES.list_limit_max)
        if start >= end:
            await self.verify()
            return Page((), None)
        while True:
            try:
                found, _ = await self._range(pb.RangeRequest(key=start, range_end=end, limit=limit), read)
                break
            except AnswerTooLarge:
                limit = max(1, limit // 2)
        entries = tuple(map(self.keyspace.entry, found.kvs))
        return Page(entries, entries[-1].key if found.more else None)

    async def txn(self, checks: Sequence[Check], ops: Sequence[Op]) -> TxnResult:
        return transaction.result(ops, await self._write(checks, ops))

    def watch(self, prefix: str) -> Watch:
        self._connected()
        watch = EtcdWatch(self, prefix)
        self._watches[watch] = None
        return watch

    # For sessions.

    async def keep_alive(self, lease: int, timeout_s: float) -> int:
        """Renew a lease; the seconds it has now, 0 or less if there is none."""
        deadline = asyncio.get_running_loop().time() + timeout_s
        link = await self._connected().link(deadline)
        try:
            async with asyncio.timeout_at(deadline):
                async with link.stream(KEEP_ALIVE, pb.LeaseKeepAliveRequest(ID=lease)) as read:
                    answer: pb.LeaseKeepAliveResponse = await read()
        except TimeoutError:
            link.distrust()
            raise Unavailable(f"{link.endpoint} does not renew a lease within {timeout_s:.1f} s") from None
        except Broken as error:
            raise Unavailable(str(error)) from error
        self._look_at_identity()
        return answer.TTL

    def _look_at_identity(self) -> None:
        """See soon that the store is still there: a lease outlives the deletion of all keys, and who is idle asks
        nothing else."""
        if self._connection is not None and (self._looking is None or self._looking.done()):
            self._looking = asyncio.get_running_loop().create_task(self._look(), name="etcd identity")

    async def _look(self) -> None:
        with suppress(CoordinationError):  # WrongStore has had its effect; the others are for the next time
            await self.verify()

    def end(self, session: EtcdSession) -> asyncio.Future[None]:
        """End the lease of a session that is LOST, in case etcd has not yet; done when its keys are gone."""
        self._sessions.pop(session, None)
        ending = asyncio.ensure_future(self._revoke(session.lease))
        self._ending.add(ending)
        ending.add_done_callback(self._ended)
        return ending

    def _ended(self, ending: asyncio.Future[None]) -> None:
        self._ending.discard(ending)
        if not ending.cancelled():
            ending.exception()  # who wants to know asks too

    async def _revoke(self, lease: int) -> None:
        if self._connection is None:
            return
        with suppress(SessionLost):  # what etcd says of a lease that is not there
            await self._connection.call(REVOKE, pb.LeaseRevokeRequest(ID=lease), writes=False)

    # For watches.

    async def snapshot(self, prefix: str) -> tuple[Sequence[Entry], int]:
        """Everything below a prefix and the revision it is of."""
        start, end = self.keyspace.range(prefix)
        entries: list[Entry] = []
        revision, limit = 0, _PAGE
        while True:
            request = pb.RangeRequest(key=start, range_end=end, limit=limit, revision=revision)
            try:
                found, reached = await self._range(request, LINEARIZABLE)
            except AnswerTooLarge:
                limit = max(1, limit // 2)
                continue
            revision = revision or reached
            entries += map(self.keyspace.entry, found.kvs)
            if not found.more:
                return entries, revision
            start = found.kvs[-1].key + b"\0"

    async def link(self) -> Link:
        """The connection there is."""
        return await self._connected().link(asyncio.get_running_loop().time() + REQUEST_S)

    async def verify(self, link: Link | None = None) -> None:
        """See that the store is still there."""
        await self._range(pb.RangeRequest(key=self.keyspace.identity, count_only=True), LINEARIZABLE, link)

    def seen(self, revision: int) -> None:
        """A revision that the store has reached."""
        self._reached = max(self._reached, revision)

    def forget(self, watch: EtcdWatch) -> None:
        """A watch is closed."""
        self._watches.pop(watch, None)

    # Requests.

    async def _range(
        self, request: pb.RangeRequest, how: Read, link: Link | None = None
    ) -> tuple[pb.RangeResponse, int]:
        """What a range answers, and the revision of the store then."""
        request.serializable = how is STALE
        txn = transaction.read(self.keyspace, self.identity, request, stale=how is STALE)
        answer = await self._send(txn, link=link, fresh=how is not STALE)
        if not answer.succeeded:
            if how is STALE:  # a server that lags far behind may not have heard of the store yet
                return await self._range(request, LINEARIZABLE)
            raise self._refused([], answer)
        return answer.responses[0].response_range, answer.header.revision

    async def _write(self, checks: Sequence[Check], ops: Sequence[Op]) -> pb.TxnResponse:
        CAPABILITIES.admit(checks, ops)
        self._connected()
        request = transaction.write(self.keyspace, self.identity, checks, ops)
        try:
            answer = await self._send(request, writes=bool(ops))
        except SessionLost:
            await self._drop_ended(ops)
            raise
        if not answer.succeeded:
            raise self._refused(checks, answer)
        return answer

    async def _send(
        self, request: pb.TxnRequest, *, writes: bool = False, link: Link | None = None, fresh: bool = True
    ) -> pb.TxnResponse:
        connection, reached = self._connected(), self._reached
        if link is None:
            answer = await connection.call(TXN, request, writes=writes)
        else:
            try:
                answer = await link.unary(TXN, request, REQUEST_S)
            except Broken as error:
                raise (error.failure.error or Unavailable(str(error))) from error
        if fresh and answer.header.revision < reached:
            self._become_wrong(
                WrongStore(
                    f"the store {self.identity} was at revision {reached} and is at {answer.header.revision}: it was "
                    "put back to an older state"
                )
            )
            raise self._wrong or AssertionError
        self.seen(answer.header.revision)
        return answer

    def _refused(self, checks: Sequence[Check], answer: pb.TxnResponse) -> CoordinationError:
        error = transaction.refusal(checks, self.identity, answer)
        if isinstance(error, WrongStore):
            self._become_wrong(error)
        return error

    def _become_wrong(self, error: WrongStore) -> None:
        self._wrong = self._wrong or error
        for session in tuple(self._sessions):
            session.lose()
        for watch in tuple(self._watches):
            watch.end(WrongStore(str(error)))

    async def _drop_ended(self, ops: Sequence[Op]) -> None:
        """Let the sessions that etcd does not know be LOST before anybody hears of it."""
        for session in {op.session for op in ops if isinstance(op, Put) and op.session}:
            if isinstance(session, EtcdSession):
                with suppress(CoordinationError):
                    if await self.keep_alive(session.lease, REQUEST_S) <= 0:
                        session.lose()

    def _connected(self) -> Connection:
        if self._connection is None:
            raise Closed("the backend is not open")
        if self._wrong is not None:
            raise WrongStore(str(self._wrong))
        return self._connection

    def _on_up(self) -> None:
        for session in self._sessions:
            session.renew_now()

    def _on_down(self) -> None:
        for session in tuple(self._sessions):
            session.suspend()

    # Which store it is.

    async def _find_identity(self, expected: str | None) -> str:
        while True:
            found = await self._probe()
            if found is not None:
                if expected not in (None, found):
                    raise transaction.wrong_store(expected or "", found.encode("ascii"))
                return found
            if expected is not None:
                raise transaction.wrong_store(expected, None)
            await self._initialise()

    async def _probe(self) -> str | None:
        """Read the identity, and see that all that will be done can be done.

        :raises Unsupported: transactions may not be as large as needed.
        """
        space = self.keyspace
        start, end = space.range("")
        asked = [
            pb.RequestOp(request_range=pb.RangeRequest(key=space.identity)),
            pb.RequestOp(request_range=pb.RangeRequest(key=start, range_end=end, limit=1, keys_only=True)),
            pb.RequestOp(request_delete_range=pb.DeleteRangeRequest(key=space.probe)),
        ]
        more = pb.RequestOp(request_range=pb.RangeRequest(key=space.identity, count_only=True))
        request = pb.TxnRequest(success=[*asked, *[more] * (_SERVER_TXN_OPS - len(asked))])
        connection = self._connected()
        try:
            answer = await connection.call(TXN, request, writes=False)
        except Unsupported:
            raise
        except CoordinationError as error:
            if "too many operations" in str(error):
                raise Unsupported(f"etcd's --max-txn-ops must be at least {_SERVER_TXN_OPS}") from error
            raise
        self.seen(answer.header.revision)
        identities, others = (answer.responses[n].response_range.kvs for n in (0, 1))
        if identities:
            return identities[0].value.decode("ascii", "replace")
        if others:
            raise BadConfig(f"below {self._address.prefix} there are keys, but no store of Parley's")
        return None

    async def _initialise(self) -> None:
        """Give an empty store an identity, unless another client was faster."""
        space = self.keyspace
        identity = f"{self._rng.getrandbits(128):032x}"
        request = pb.TxnRequest(
            compare=[pb.Compare(key=space.identity, target=pb.Compare.VERSION, version=0)],
            success=[pb.RequestOp(request_put=pb.PutRequest(key=space.identity, value=identity.encode("ascii")))],
        )
        await self._connected().call(TXN, request, writes=False)  # then it is read, whoever wrote
