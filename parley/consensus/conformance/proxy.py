"""A proxy between a client and its server that injects network faults.

It runs on the event loop of the check. Create one for each client and server. ``port`` is known immediately.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable
from contextlib import suppress

_CHUNK = 1 << 16


class Tap:
    """Inspects, and may change, the bytes of one connection. A method that returns ``None`` breaks the connection."""

    def to_server(self, data: bytes) -> bytes | None:
        """Return the bytes to send to the server instead of ``data``."""
        return data

    def to_client(self, data: bytes) -> bytes | None:
        """Return the bytes to send to the client instead of ``data``."""
        return data


class Proxy:
    """Listens on a free port of 127.0.0.1, the attribute ``port``, and forwards the connections to a server.

    :param host: the server's IP address.
    :param port: the server's port.
    :param make_tap: called for each connection; returns the tap that inspects it.
    """

    def __init__(self, host: str, port: int, make_tap: Callable[[], Tap] = Tap) -> None:
        self._target = (host, port)
        self._make_tap = make_tap
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=128)
        self._listener.setblocking(False)
        self.port: int = self._listener.getsockname()[1]
        self._passing = asyncio.Event()
        self._passing.set()
        self._connections: set[asyncio.Task[None]] = set()
        self._accepting = asyncio.get_running_loop().create_task(self._accept(), name="proxy")

    def cut(self) -> None:
        """Stop forwarding in both directions without closing a connection, as if a cable had been pulled."""
        self._passing.clear()

    def restore(self) -> None:
        """End ``cut``: break all connections, and drop the bytes in transit. Does nothing without a ``cut``."""
        if not self._passing.is_set():
            self._passing.set()
            self.break_all()

    def break_all(self) -> None:
        """Break all connections. New ones are accepted."""
        for connection in self._connections:
            connection.cancel()

    async def close(self) -> None:
        """Break all connections and stop listening. Idempotent."""
        tasks = [self._accepting, *self._connections]
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)
        self._listener.close()

    async def _accept(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            client, _ = await loop.sock_accept(self._listener)
            connection = loop.create_task(self._carry(client), name="proxy connection")
            self._connections.add(connection)
            connection.add_done_callback(self._connections.discard)

    async def _carry(self, client: socket.socket) -> None:
        server = socket.socket(socket.AF_INET6 if ":" in self._target[0] else socket.AF_INET, socket.SOCK_STREAM)
        server.setblocking(False)
        tap = self._make_tap()
        try:
            with suppress(OSError):
                await self._passing.wait()
                await asyncio.get_running_loop().sock_connect(server, self._target)
                for each in (client, server):
                    each.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                ways = [self._pump(client, server, tap.to_server), self._pump(server, client, tap.to_client)]
                tasks = [asyncio.ensure_future(way) for way in ways]
                try:
                    await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
                finally:
                    for task in tasks:
                        task.cancel()
                    await asyncio.wait(tasks)
        finally:
            for each in (client, server):
                with suppress(OSError):
                    each.setsockopt(
                        socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0"
                    )  # send a reset instead of an orderly end
                each.close()

    async def _pump(self, source: socket.socket, sink: socket.socket, look: Callable[[bytes], bytes | None]) -> None:
        loop = asyncio.get_running_loop()
        with suppress(OSError):
            while data := await loop.sock_recv(source, _CHUNK):
                if not self._passing.is_set():
                    await self._passing.wait()
                    return  # what arrived meanwhile is lost
                passed_on = look(data)
                if passed_on is None:
                    return
                await loop.sock_sendall(sink, passed_on)
