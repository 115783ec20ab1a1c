"""The calls of the interface, carried out by PostgreSQL. README.md has the design."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Coroutine, Sequence
from typing import Any, NoReturn, Self

from parley.consensus.backend import (
    ANY,
    LINEARIZABLE,
    At,
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
    Snapshot,
    TxnResult,
    Watch,
    violation,
)
from parley.consensus.errors import BadConfig, Closed, CoordinationError, SessionLost, WrongStore
from parley_postgresql.address import Address, parse
from parley_postgresql.config_keys import CONFIG
from parley_postgresql.connection import Lanes, Row, Rows
from parley_postgresql.keeper import Keeper
from parley_postgresql.schema import Statements, creation
from parley_postgresql.session import PostgresqlSession
from parley_postgresql.watch import BEGINNING, PostgresqlWatch

CAPABILITIES = Capabilities(
    name="postgresql",
    key_bytes_max=1024,
    value_bytes_max=1 << 20,
    txn_ops_max=1024,
    txn_bytes_max=8 << 20,
    list_limit_max=1000,
    ttl_ms_min=1000,
    ttl_ms_max=24 * 3600 * 1000,
    expiry_factor_max=2.0,
    crash_seen_ms_max=None,
)
LANES = 4
_FAREWELL_S = 2.0
_KINDS = {Presence.ABSENT: 0, Presence.PRESENT: 1}
_AT = 2
_NO_REVISION = -1
_REVISION_MAX = 2**63 - 1
_PROBE = b" "  # no key is like it


class PostgresqlBackend(Backend):
    """A client of a store in PostgreSQL.

    :param rng: source of names; two clients must never draw the same.
    """

    config = CONFIG

    def __init__(self, address: Address, *, rng: random.Random | None = None) -> None:
        self._address = address
        self._rng = rng or random.SystemRandom()
        self._statements = Statements(address.schema)
        self._lanes: Lanes | None = None
        self._renewals: Lanes | None = None
        self._keeper: Keeper | None = None
        self._identity: str | None = None
        self._wrong: CoordinationError | None = None
        self.reached = 0
        self._sessions: dict[str, PostgresqlSession] = {}
        self._watches: dict[PostgresqlWatch, None] = {}
        self._ending: set[asyncio.Task[None]] = set()

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
        if self._lanes is not None:
            return
        self._wrong, self.reached = None, 0
        lanes = Lanes(self._address, LANES)
        try:
            identity = await self._find_identity(lanes, expect_identity)
            # Deletes nothing, and needs every privilege that a write needs.
            (row,) = await lanes.call(self._statements.txn, identity, 0, [], [], [], [_PROBE], [None], [None])
        except BaseException:
            lanes.drop()
            raise
        self._identity, self._lanes, self.reached = identity, lanes, row["reached"]
        self._renewals = Lanes(self._address, 1)  # renewals never wait for other calls
        self._keeper = Keeper(self, self._address, self._statements)

    async def _find_identity(self, lanes: Lanes, expected: str | None) -> str:
        try:
            (row,) = await lanes.call(self._statements.exists)
            if not row["there"]:
                if expected is not None:
                    raise WrongStore(f"{self._address.shown} has no store; {expected} was expected")
                await lanes.script(creation(self._address.schema, f"{self._rng.getrandbits(128):032x}"))
            (row, *_) = await lanes.call(self._statements.look)
        except WrongStore as error:
            if expected is None:
                raise BadConfig(f"{self._address.shown}: {error}") from error
            raise
        identity: str = row["identity"]
        if expected not in (None, identity):
            raise WrongStore(f"expected the store {expected}, found {identity}", found=identity)
        return identity

    async def close(self) -> None:
        if self._lanes is None:
            return
        for session in tuple(self._sessions.values()):
            session.lose()
        if self._ending:
            await asyncio.wait(self._ending, timeout=_FAREWELL_S)
        await self.abandon()

    async def abandon(self) -> None:
        lanes, self._lanes = self._lanes, None
        if lanes is None:
            return
        for session in tuple(self._sessions.values()):
            session.lose()
        for ending in tuple(self._ending):
            ending.cancel()
        for watch in tuple(self._watches):
            await watch.close()
        assert self._keeper is not None
        assert self._renewals is not None
        await self._keeper.close()
        await asyncio.gather(lanes.close(), self._renewals.close())

    async def open_session(self, ttl_ms: int) -> Session:
        lanes = self._require_open()
        ttl_ms = CAPABILITIES.ttl(ttl_ms)
        session_id = f"{self._rng.getrandbits(128):032x}"
        sent_at = asyncio.get_running_loop().time()
        rows = await self._call(self._statements.begin_session, self.identity, self.reached, session_id, ttl_ms)
        self._status(rows)
        if self._lanes is not lanes:
            raise Closed("the backend is closed")
        session = self._sessions[session_id] = PostgresqlSession(self, session_id, ttl_ms, sent_at)
        return session

    async def get(self, key: str, *, read: Read = LINEARIZABLE) -> Entry | None:
        CAPABILITIES.admit_key(key)
        (row,) = await self._read(self._statements.get, key.encode("ascii"))
        return _entry(row) if row["key"] is not None else None

    async def delete(self, key: str, *, expect: Expectation = ANY) -> bool:
        if expect is Presence.ABSENT:
            raise ValueError("a delete cannot expect ABSENT")
        row = await self._write([Check(key, expect)], [Delete(key)])
        return bool(row["states"][0])

    async def list(self, prefix: str, *, limit: int, after: str | None = None, read: Read = LINEARIZABLE) -> Page:
        if limit < 1:
            raise ValueError("the limit must be at least 1")
        limit = min(limit, CAPABILITIES.list_limit_max)
        first, end = _range(prefix)
        if after is not None:
            first = max(first, _bytes(after) + b"\0")
        rows = await self._read(self._statements.page, first, end, limit + 1)
        entries = tuple(_entry(row) for row in rows[:limit] if row["key"] is not None)
        return Page(entries, entries[-1].key if len(rows) > limit else None)

    async def txn(self, checks: Sequence[Check], ops: Sequence[Op]) -> TxnResult:
        row = await self._write(checks, ops)
        revision = Revision(row["reached"])  # that of every key it wrote
        return TxnResult(tuple(revision if isinstance(op, Put) else None for op in ops))

    def watch(self, prefix: str) -> Watch:
        self._require_open()
        watch = PostgresqlWatch(self, prefix)
        self._watches[watch] = None
        return watch

    # --- For watches ---

    async def changes(self, prefix: str, position: int) -> tuple[int, Sequence[Event]]:
        """See ``watch.Source``."""
        first, end = _range(prefix)
        if position != BEGINNING:
            rows = await self._read(self._statements.changes, first, end, position)
            if rows[0]["floor"] <= position:
                return rows[0]["reached"], [_change(row) for row in rows if row["key"] is not None]
        rows = await self._read(self._statements.snapshot, first, end)
        return rows[0]["reached"], [Snapshot(tuple(_entry(row) for row in rows if row["key"] is not None))]

    def forget(self, watch: PostgresqlWatch) -> None:
        """See ``watch.Source``."""
        self._watches.pop(watch, None)

    # --- For sessions ---

    async def renew(self, session_id: str, timeout_s: float) -> bool:
        """See ``session.Sessions``."""
        self._require_open()
        assert self._renewals is not None
        rows = await self._noting(
            self._renewals.call(
                self._statements.renew_session, self.identity, self.reached, session_id, timeout_s=timeout_s
            )
        )
        return self._status(rows) == "done"

    def end(self, session: PostgresqlSession) -> asyncio.Future[None]:
        """See ``session.Sessions``."""
        self._sessions.pop(session.id, None)
        ending = asyncio.get_running_loop().create_task(self._end(session.id), name=f"end of session {session.id}")
        self._ending.add(ending)
        ending.add_done_callback(self._ended)
        return ending

    async def _end(self, session_id: str) -> None:
        if self._lanes is not None and self._wrong is None:
            self._status(await self._call(self._statements.end_session, self.identity, self.reached, session_id, None))

    def _ended(self, ending: asyncio.Task[None]) -> None:
        self._ending.discard(ending)
        if not ending.cancelled():
            ending.exception()  # mark it as retrieved; close() awaits the same future

    # --- For the keeper ---

    def own_sessions(self) -> frozenset[str]:
        """See ``keeper.Client``."""
        return frozenset(self._sessions)

    def on_over(self, session_id: str) -> None:
        """See ``keeper.Client``."""
        if session := self._sessions.get(session_id):
            session.lose()

    def on_up(self) -> None:
        """See ``keeper.Client``."""
        for session in tuple(self._sessions.values()):
            session.renew_now()
        self.on_news(None)

    def on_down(self) -> None:
        """See ``keeper.Client``."""
        for session in tuple(self._sessions.values()):
            session.suspend()

    def on_news(self, keys: Sequence[str] | None) -> None:
        """See ``keeper.Client``."""
        for watch in self._watches:
            watch.tell(keys)

    def on_wrong(self, error: CoordinationError) -> None:
        """See ``keeper.Client``."""
        if isinstance(error, WrongStore):
            self._wrong = self._wrong or error
            for session in tuple(self._sessions.values()):
                session.lose()
        for watch in tuple(self._watches):
            watch.end(type(error)(*error.args))

    def heed(self, row: Row | None, reached: int) -> None:
        """See ``keeper.Client``."""
        found = None if row is None else row["identity"]
        if row is None or found != self._identity:
            what = "has no store any more" if found is None else f"is the store {found}"
            self._become_wrong(f"expected the store {self._identity}; {self._address.shown} {what}")
        if row["reached"] < reached:
            self._become_wrong(self._put_back())
        self.reached = max(self.reached, row["reached"])

    # --- Requests ---

    async def _write(self, checks: Sequence[Check], ops: Sequence[Op]) -> Row:
        CAPABILITIES.admit(checks, ops)
        self._require_open()
        for op in ops:
            if isinstance(op, Put) and op.session is not None:
                op.session.require()
        conditions = [check for check in checks if check.expect is not ANY]
        row = await self._txn(conditions, ops)
        if row["status"] == "over":
            bound = [op.session for op in ops if isinstance(op, Put) and op.session is not None]
            if len({session.id for session in bound}) == 1:
                self.on_over(bound[0].id)
            raise SessionLost("a session of the transaction is over")
        if row["status"] == "refused":
            for check, found in zip(conditions, row["states"], strict=True):
                if error := violation(check, None if found is None else Revision(found)):
                    raise error
            raise AssertionError(f"PostgreSQL refused a transaction whose checks hold: {conditions}")
        return row

    async def _txn(self, conditions: Sequence[Check], ops: Sequence[Op]) -> Row:
        puts = [op if isinstance(op, Put) else None for op in ops]
        rows = await self._call(
            self._statements.txn,
            self.identity,
            self.reached,
            [check.key.encode("ascii") for check in conditions],
            [_KINDS[check.expect] if isinstance(check.expect, Presence) else _AT for check in conditions],
            [_number(check.expect) for check in conditions],
            [op.key.encode("ascii") for op in ops],
            [put and bytes(put.value) for put in puts],
            [put and put.session and put.session.id for put in puts],
            writes=bool(ops),
        )
        self._status(rows)
        return rows[0]

    async def _read(self, statement: str, *arguments: object) -> Rows:
        self._require_open()
        reached = self.reached
        rows = await self._call(statement, *arguments)
        self.heed(rows[0] if rows else None, reached)
        return rows

    async def _call(self, statement: str, *arguments: object, writes: bool = False) -> Rows:
        return await self._noting(self._require_open().call(statement, *arguments, writes=writes))

    async def _noting(self, call: Coroutine[Any, Any, Rows]) -> Rows:
        """Await a call. If it shows that the store no longer exists, end everything that uses the store."""
        try:
            return await call
        except WrongStore as error:
            self._become_wrong(str(error))
            raise

    def _status(self, rows: Rows) -> str:
        (row,) = rows
        if row["status"] == "wrong":
            self._become_wrong(f"{self._address.shown} is no longer the store {self._identity}")
        if row["status"] == "older":
            self._become_wrong(self._put_back())
        self.reached = max(self.reached, row["reached"])
        status: str = row["status"]
        return status

    def _put_back(self) -> str:
        return f"the store {self._identity} has been at revision {self.reached}; it was rolled back to an older state"

    def _become_wrong(self, message: str) -> NoReturn:
        self.on_wrong(WrongStore(message))
        raise WrongStore(message)

    def _require_open(self) -> Lanes:
        if self._lanes is None:
            raise Closed("the backend is not open")
        if self._wrong is not None:
            raise WrongStore(*self._wrong.args)
        return self._lanes


def _number(expect: Expectation) -> int:
    """Return the expected revision; a number that no key has if it is not a revision of this store, or does not
    matter."""
    token = expect.revision.token if isinstance(expect, At) else None
    return token if type(token) is int and 0 < token <= _REVISION_MAX else _NO_REVISION


def _entry(row: Row) -> Entry:
    return Entry(row["key"].decode("ascii"), row["value"], Revision(row["revision"]), row["session"])


def _change(row: Row) -> Event:
    return Removed(row["key"].decode("ascii")) if row["value"] is None else Changed(_entry(row))


def _range(prefix: str) -> tuple[bytes, bytes]:
    """Return the first key that starts with a prefix, and the end of the range of all such keys."""
    first = _bytes(prefix)
    return first, first[:-1] + bytes([first[-1] + 1]) if first else b"\xff"  # no byte of UTF-8 is 0xFF


def _bytes(text: str) -> bytes:
    return text.encode("utf-8", "surrogatepass")
