"""Connections to the server, requests on them, and what became of a request that failed."""

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
# The server goes down or the connection broke: a write under way may have been committed all the same.
_UNKNOWN = ("57P", "08")
_NOT_OURS = ("3D000", "3F000", "42P01", "42883")  # no such database, schema, table, function
_FORBIDDEN = ("28", "42501")

Row = Any
Rows = Sequence[Row]
OnNotice = Callable[[Any, int, str, str], None]
"""Given the connection, the process that notifies, the channel and what it says."""


class NotSent(Exception):
    """A request that the server did not get."""


def refusal(error: BaseException, *, sent: bool, writes: bool) -> CoordinationError:
    """What an exception of the driver means to the caller."""
    text = f"PostgreSQL: {error or type(error).__name__}"
    code = getattr(error, "sqlstate", None) or ""
    if code.startswith(_FORBIDDEN):
        return Unauthorized(text)
    if code in _NOT_OURS:
        return WrongStore(text)
    answered = code and not code.startswith(_UNKNOWN)
    return MaybeApplied(text) if sent and writes and not answered else Unavailable(text)


class Lane:
    """One connection, made when it is needed, and made anew when it broke. One request at a time."""

    def __init__(self, address: Address) -> None:
        self._address = address
        self._connection: Any = None

    @property
    def connected(self) -> bool:
        """Whether a request needs no new connection, as far as is known."""
        return self._connection is not None and not self._connection.is_closed()

    async def connect(self, deadline: float) -> Any:
        """The connection.

        :param deadline: the loop time until which to try.
        :raises CoordinationError: none came.
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
        """What a statement answers, by a new connection if there is none.

        :raises NotSent: the connection was gone before.
        :raises CoordinationError: it was refused, or has no answer.
        """
        await self.connect(deadline)
        return await self.ask(statement, arguments, deadline, writes=writes)

    async def ask(self, statement: str, arguments: Sequence[object], deadline: float, *, writes: bool) -> Rows:
        """What a statement answers by the connection there is. See ``request``."""
        if not self.connected:
            raise NotSent("the connection is gone")
        try:
            return await self._send(statement, arguments, deadline)
        except asyncpg.InterfaceError as error:  # the driver's own: nothing was sent
            self.drop()
            raise NotSent(str(error)) from error
        except (asyncpg.PostgresError, OSError, TimeoutError) as error:
            raise refusal(error, sent=True, writes=writes) from error

    async def listen(self, channel: str, on_notice: OnNotice, on_gone: Callable[[Any], None]) -> None:
        """Have notifications told, and the end of the connection.

        :raises CoordinationError: that was refused, or has no answer.
        """
        deadline = asyncio.get_running_loop().time() + REQUEST_S
        connection = await self.connect(deadline)
        connection.add_termination_listener(on_gone)
        await self._done(connection.add_listener(channel, on_notice), deadline)

    async def script(self, text: str) -> None:
        """Run statements that answer nothing, all or none.

        :raises CoordinationError: they were refused, or have no answer.
        """
        deadline = asyncio.get_running_loop().time() + REQUEST_S
        connection = await self.connect(deadline)
        await self._done(connection.execute(text), deadline)

    async def _done(self, asked: Coroutine[Any, Any, Any], deadline: float) -> None:
        try:
            await self._answer(asked, deadline)
        except (asyncpg.PostgresError, asyncpg.InterfaceError, OSError, TimeoutError) as error:
            self.drop()
            raise refusal(error, sent=True, writes=False) from error

    async def _send(self, statement: str, arguments: Sequence[object], deadline: float) -> Rows:
        rows: Rows = await self._answer(self._connection.fetch(statement, *arguments), deadline)
        return rows

    async def _answer(self, asked: Coroutine[Any, Any, Any], deadline: float) -> Any:
        # The driver is never cancelled: that would open a connection to say so, which may hang as this one does.
        asking = asyncio.ensure_future(asked)
        try:
            await asyncio.wait([asking], timeout=deadline - asyncio.get_running_loop().time())
        finally:
            if not asking.done():
                self.drop()
                asking.add_done_callback(_heed)
        if not asking.done():
            raise TimeoutError("no answer")
        return asking.result()

    def drop(self) -> None:
        """Break the connection, if there is one."""
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.terminate()

    async def close(self) -> None:
        """Say goodbye."""
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
    """A few connections, for so many requests of one client at once."""

    def __init__(self, address: Address, count: int) -> None:
        self._free = [Lane(address) for _ in range(count)]
        self._all = tuple(self._free)
        self._turn = asyncio.Semaphore(count)
        self._closed = False

    async def call(
        self, statement: str, *arguments: object, writes: bool = False, timeout_s: float = REQUEST_S
    ) -> Rows:
        """What a statement answers; sent again where that is safe.

        :raises Unavailable: not applied.
        :raises MaybeApplied: of one that writes: unknown.
        :raises CoordinationError: what else the server said.
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
        """See ``Lane``."""
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
        """Close them all. What is under way is broken off."""
        self._closed = True
        busy = [lane for lane in self._all if lane not in self._free]
        for lane in busy:
            lane.drop()
        await asyncio.gather(*(lane.close() for lane in self._all))

    def drop(self) -> None:
        """Break them all, for ever."""
        self._closed = True
        for lane in self._all:
            lane.drop()
