"""The harness for the conformance kit. Peers are processes. A proxy for each client and a private server inject
faults."""

from __future__ import annotations

import asyncio
import atexit
import functools
import secrets
from collections.abc import Iterator
from contextlib import ExitStack
from urllib.parse import urlsplit

from parley.consensus.backend import Backend
from parley.consensus.conformance.processes import ProcessHarness
from parley.consensus.conformance.proxy import Proxy, Tap
from parley.consensus.registry import backend_class
from parley_postgresql.proving.server import PostgresqlServer, running

_SCHEME = "postgresql"
_LENGTH = 4


@functools.cache
def _own_server() -> PostgresqlServer:
    """Return the server that this process starts for itself; it runs until the process ends."""
    stack = ExitStack()
    atexit.register(stack.close)
    return stack.enter_context(running())


class PostgresqlHarness(ProcessHarness):
    """A store in a new schema of ``server``, by default of a private server that is started when it is first needed."""

    def __init__(self, server: PostgresqlServer | None = None) -> None:
        super().__init__()
        self._server = server or _own_server()
        self._schema = ""
        self._proxies: dict[Backend, _LossyProxy] = {}

    @property
    def url(self) -> str:
        return f"{self._server.url}&schema={self._schema}"

    @property
    def backend(self) -> str:
        return "parley_postgresql:PostgresqlBackend"

    async def start(self) -> None:
        await super().start()
        self._schema = f"conformance_{secrets.token_hex(8)}"

    async def stop(self) -> None:
        for proxy in self._proxies.values():
            await proxy.close()
        self._proxies.clear()
        self._server.clock.move(0)
        await super().stop()

    def client(self) -> Backend:
        address = urlsplit(self.url)
        proxy = _LossyProxy(str(address.hostname), address.port or 0)
        through = address._replace(netloc=f"{address.username}@127.0.0.1:{proxy.port}")
        client = _proxied_class().from_url(through.geturl())
        client.__dict__["proxy"] = self._proxies[client] = proxy
        return client

    async def cut(self, client: Backend) -> None:
        self._proxies[client].cut()

    async def restore(self, client: Backend) -> None:
        self._proxies[client].restore()

    async def lose_response(self, client: Backend, *, applied: bool) -> None:
        self._proxies[client].lose = applied

    async def wipe(self) -> None:
        await asyncio.to_thread(self._server.wipe)

    async def restart(self) -> None:
        await asyncio.to_thread(self._server.restart)

    async def move_wall_clock(self, seconds: float) -> None:
        self._server.clock.move(seconds)
        await super().move_wall_clock(seconds)


@functools.cache
def _proxied_class() -> type[Backend]:
    """Return the backend class that the entry point names, extended to close its proxy."""
    found = backend_class(_SCHEME)

    class Proxied(found):  # type: ignore[misc, valid-type]
        proxy: Proxy

        async def close(self) -> None:
            await super().close()
            await self.proxy.close()

    return Proxied


class _LossyProxy(Proxy):
    """A proxy that recognizes writes."""

    def __init__(self, host: str, port: int) -> None:
        super().__init__(host, port, lambda: _Tap(self))
        self.lose: bool | None = None
        """Break the connection at the next write: True: after the server has responded, False: before the write reaches
        it."""


class _Tap(Tap):
    """One connection. A write is the execution (Bind) of a statement that was prepared (Parse) with a call of txn."""

    def __init__(self, proxy: _LossyProxy) -> None:
        self._proxy = proxy
        self._rest = b""
        self._begun = False
        self._writes: set[bytes] = set()
        self._losing = False

    def to_server(self, data: bytes) -> bytes | None:
        for kind, body in self._messages(data):
            if kind == b"P":
                name, statement, *_ = body.split(b"\0", 2)
                if b".txn(" in statement:
                    self._writes.add(name)
            elif kind == b"B" and self._proxy.lose is not None and body.split(b"\0", 2)[1] in self._writes:
                self._losing, self._proxy.lose = self._proxy.lose, None
                if not self._losing:
                    return None
        return data

    def to_client(self, data: bytes) -> bytes | None:
        return None if self._losing else data

    def _messages(self, data: bytes) -> Iterator[tuple[bytes, bytes]]:
        """Yield the messages that are complete with these bytes, as kind and body."""
        self._rest += data
        while True:
            kind = 1 if self._begun else 0  # the first message of a connection has none
            end = kind + int.from_bytes(self._rest[kind : kind + _LENGTH], "big")
            if len(self._rest) < kind + _LENGTH or len(self._rest) < end:
                return
            message, self._rest, self._begun = self._rest[:end], self._rest[end:], True
            yield message[:kind], message[kind + _LENGTH :]
