"""Connections to the server, requests over them, and the fate of a request that failed."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, TypeVar

import asyncpg

from parley.consensus.errors import (
    BadConfig,
    Closed,
    CoordinationError,
    MaybeApplied,
    Unauthorized,
    Unavailable,
    Unsupported,
    WrongStore,
)
from parley_postgresql.address import Address

REQUEST_S = 5.0
VERSION_MIN = 12
_PAUSE_S = 0.05
_T = TypeVar("_T")
_SETTINGS = {
    "application_name": "parley",
    "default_transaction_isolation": "read committed",
    "statement_timeout": "0",
    "jit": "off",
}
_CHECK = (
    "SELECT current_setting('server_version_num')::int / 10000 AS version, "
    "CASE WHEN current_setting('synchronous_commit') IN ('off', 'local') "
    "THEN set_config('synchronous_commit', 'on', false) END"
)
# The server is shutting down or the connection broke: a write in progress may have been committed nevertheless.
_UNKNOWN = ("57P", "08")
_NOT_OURS = ("3D000", "3F000", "42P01", "42883")  # no such database, schema, table, function
_FORBIDDEN = ("28", "42501")

Row = Any
Rows = Sequence[Row]
OnNotice = Callable[[Any, int, str, str], None]
"""Called with the connection, the id of the notifying process, the channel and the payload."""


class NotSent(Exception):
    """The request did not reach the server."""


def refusal(error: BaseException, *, sent: bool, writes: bool) -> CoordinationError:
    """Return the coordination error for an exception of the driver."""
    text = f"PostgreSQL: {error or type(error).__name__}"
    code = getattr(error, "sqlstate", None) or ""
    if code.startswith(_FORBIDDEN):
        return Unauthorized(text)
    if code in _NOT_OURS:
        return WrongStore(text)
    answered = code and not code.startswith(_UNKNOWN)
    return MaybeApplied(text) if sent and writes and not answered else Unavailable(text)


class Lane:
    """One connection, made when it is first needed, and again after it broke. It carries one request at a time."""

    def __init__(self, address: Address) -> None:
        self._address = address
        self._connection: Any = None

    @property
    def connected(self) -> bool:
        """True if there is a connection that is not known to be broken."""
        return self._connection is not None and not self._connection.is_closed()

    async def connect(self, deadline: float) -> Any:
        """Return the connection; try to make one until ``deadline`` (loop time).

        Raises CoordinationError if no connection can be made.
        """
        if self.connected:
            return self._connection
        left_s = deadline - asyncio.get_running_loop().time()
        connecting = asyncio.ensure_future(
            asyncpg.connect(
                self._address.dsn,
                password=self._address.password,
                timeout=max(left_s, 0.1),
                server_settings=_SETTINGS,
                target_session_attrs="primary",
            )
        )
        try:
            self._connection = await connecting
            await self._prepare(deadline)
        except (asyncpg.PostgresError, asyncpg.InterfaceError, asyncpg.InternalClientError, OSError) as error:
            self.drop()
            if isinstance(error, asyncpg.ClientConfigurationError):
                raise BadConfig(f"{self._address.shown}: {error}") from None
            raise refusal(error, sent=False, writes=False) from error
        except BaseException:
            self.drop()
            raise
        return self._connection

    async def _prepare(self, deadline: float) -> None:
        (found,) = await self._send(_CHECK, (), deadline)
        if found["version"] < VERSION_MIN:
            raise Unsupported(f"PostgreSQL {VERSION_MIN} or later is needed; the server is {found['version']}")

    async def request(self, statement: str, arguments: Sequence[object], deadline: float, *, writes: bool) -> Rows:
        """Run a statement and return its rows. Connects first if necessary.

        Raises NotSent if the connection broke before the request was sent, and CoordinationError if the server refused
        it or did not respond.
        """
        await self.connect(deadline)
        return await self.ask(statement, arguments, deadline, writes=writes)

    async def ask(self, statement: str, arguments: Sequence[object], deadline: float, *, writes: bool) -> Rows:
        """Run a statement over the existing connection; otherwise like ``request``."""
        if not self.connected:
            raise NotSent("the connection is broken")
        try:
            return await self._send(statement, arguments, deadline)
        except asyncpg.InterfaceError as error:  # the driver's own: nothing was sent
            self.drop()
            raise NotSent(str(error)) from error
        except (asyncpg.PostgresError, OSError, TimeoutError) as error:
            raise refusal(error, sent=True, writes=writes) from error

    async def listen(self, channel: str, on_notice: OnNotice, on_gone: Callable[[Any], None]) -> None:
        """Call ``on_notice`` for each notification, and ``on_gone`` when the connection ends.

        Raises CoordinationError if the server refuses or does not respond.
        """
        deadline = asyncio.get_running_loop().time() + REQUEST_S
        connection = await self.connect(deadline)
        connection.add_termination_listener(on_gone)
        await self._done(connection.add_listener(channel, on_notice), deadline)

    async def script(self, text: str) -> None:
        """Run statements without results in one transaction.

        Raises CoordinationError if the server refuses them or does not respond.
        """
        deadline = asyncio.get_running_loop().time() + REQUEST_S
        connection = await self.connect(deadline)
        await self._done(connection.execute(text), deadline)

    async def _done(self, asked: Coroutine[Any, Any, Any], deadline: float) -> None:
        try:
            await self._within(asked, deadline)
        except (asyncpg.PostgresError, asyncpg.InterfaceError, OSError, TimeoutError) as error:
            self.drop()
            raise refusal(error, sent=True, writes=False) from error

    async def _send(self, statement: str, arguments: Sequence[object], deadline: float) -> Rows:
        rows: Rows = await self._within(self._connection.fetch(statement, *arguments), deadline)
        return rows

    async def _within(self, asked: Coroutine[Any, Any, Any], deadline: float) -> Any:
        # Never cancel the driver's call: the driver would open another connection for that, which may hang as well.
        asking = asyncio.ensure_future(asked)
        try:
            await asyncio.wait([asking], timeout=deadline - asyncio.get_running_loop().time())
        finally:
            if not asking.done():
                self.drop()
                asking.add_done_callback(_heed)
        if not asking.done():
            raise TimeoutError("no response in time")
        return asking.result()

    def drop(self) -> None:
        """Break the connection, if there is one."""
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.terminate()

    async def close(self) -> None:
        """Close the connection in an orderly way."""
        connection, self._connection = self._connection, None
        if connection is not None and not connection.is_closed():
            try:
                await connection.close(timeout=1)
            except (asyncpg.PostgresError, asyncpg.InterfaceError, OSError, TimeoutError):
                connection.terminate()


def _heed(asking: asyncio.Future[Any]) -> None:
    if not asking.cancelled():
        asking.exception()


class Lanes:
    """Several connections, for as many concurrent requests of one client."""

    def __init__(self, address: Address, count: int) -> None:
        self._free = [Lane(address) for _ in range(count)]
        self._all = tuple(self._free)
        self._turn = asyncio.Semaphore(count)
        self._closed = False

    async def call(
        self, statement: str, *arguments: object, writes: bool = False, timeout_s: float = REQUEST_S
    ) -> Rows:
        """Run a statement and return its rows; send it again if that is safe.

        Raises Unavailable if it was not applied, MaybeApplied if it writes and its fate is unknown, and other
        coordination errors that the server's response means.
        """
        loop = asyncio.get_running_loop()
        deadline = loop.time() + timeout_s
        while True:
            try:
                return await self._once(lambda lane: lane.request(statement, arguments, deadline, writes=writes))
            except (Unavailable, NotSent) as error:
                if loop.time() + _PAUSE_S >= deadline:
                    raise Unavailable(str(error)) from error
            await asyncio.sleep(_PAUSE_S)

    async def script(self, text: str) -> None:
        """See ``Lane.script``."""
        await self._once(lambda lane: lane.script(text))

    async def _once(self, use: Callable[[Lane], Coroutine[Any, Any, _T]]) -> _T:
        async with self._turn:
            if self._closed:
                raise Closed("the backend is closed")
            lane = next((each for each in self._free if each.connected), self._free[0])
            self._free.remove(lane)
            try:
                return await use(lane)
            except (Unavailable, MaybeApplied, NotSent):
                if self._closed:
                    raise Closed("the backend is closed") from None
                raise
            finally:
                self._free.append(lane)

    async def close(self) -> None:
        """Close all connections. Requests in progress fail."""
        self._closed = True
        busy = [lane for lane in self._all if lane not in self._free]
        for lane in busy:
            lane.drop()
        await asyncio.gather(*(lane.close() for lane in self._all))

    def drop(self) -> None:
        """Break all connections for good."""
        self._closed = True
        for lane in self._all:
            lane.drop()
