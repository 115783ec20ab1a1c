"""Serving the API in the loop that is running: on the addresses of `listeners`, until it is closed."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Sequence
from contextlib import suppress
from types import TracebackType
from typing import Final, NamedTuple, Self
from urllib.parse import urlsplit

import uvicorn
from starlette.types import ASGIApp

from parley.pipeline.connect.errors import ConnectError

__all__ = ["DEFAULT_PORT", "Listener", "RestServer", "parse_listeners"]

DEFAULT_PORT: Final = 8083
_BACKLOG: Final = 128
_CONNECTIONS_MAX: Final = 1000
"""Beyond so many connections requests are answered with 503."""
_IDLE_SECONDS: Final = 60
_END_SECONDS: Final = 3


class Listener(NamedTuple):
    """Where the API listens; an empty host means every address of this machine."""

    host: str
    port: int


def parse_listeners(text: str) -> list[Listener]:
    """The addresses in `listeners`, as "http://:8083,http://[::1]:8084". Raises ConnectError.

    HTTPS is refused: there is no TLS here yet, put a proxy before it.
    """
    listeners = []
    for part in filter(None, (piece.strip() for piece in text.split(","))):
        try:
            url = urlsplit(part)
            host, port = url.hostname or "", DEFAULT_PORT if url.port is None else url.port
        except ValueError as error:
            raise ConnectError(f"listeners: {part!r} is no address: {error}") from None
        if url.scheme.lower() == "https":
            raise ConnectError(f"listeners: {part!r}: HTTPS is not served here; put a proxy before it, and use HTTP.")
        if url.scheme.lower() != "http" or url.path not in ("", "/"):
            raise ConnectError(f"listeners: {part!r} must look as HTTP://host:{DEFAULT_PORT}")
        listeners.append(Listener(host, port))
    if not listeners:
        raise ConnectError("listeners: no address is given; the default is http://:8083")
    return listeners


class RestServer:
    """``async with RestServer(listeners) as server: server.serve(app)``: the addresses are taken on entering.

    Taking them first lets whoever serves know its own URL, also where port 0 was asked for.
    """

    def __init__(self, listeners: Sequence[Listener]) -> None:
        self._listeners = listeners
        self._sockets: list[socket.socket] = []
        self._server: uvicorn.Server | None = None
        self._serving: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Self:
        try:
            for listener in self._listeners:
                self._sockets.append(_listen(listener))
        except BaseException:
            self._close_sockets()
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._server is not None and self._serving is not None:
            self._server.should_exit = True
            await self._serving
        self._close_sockets()

    @property
    def addresses(self) -> list[Listener]:
        """Where it listens, with the ports that the system chose."""
        return [Listener(*one.getsockname()[:2]) for one in self._sockets]

    def serve(self, app: ASGIApp) -> None:
        """Begin to answer."""
        config = uvicorn.Config(
            app,
            log_config=None,
            access_log=False,
            lifespan="off",
            server_header=False,
            limit_concurrency=_CONNECTIONS_MAX,
            timeout_keep_alive=_IDLE_SECONDS,
            timeout_graceful_shutdown=_END_SECONDS,
        )
        self._server = _Server(config)
        self._serving = asyncio.create_task(self._server.serve(sockets=self._sockets))

    def _close_sockets(self) -> None:
        for one in self._sockets:
            with suppress(OSError):
                one.close()
        self._sockets.clear()


class _Server(uvicorn.Server):
    """Leaves the signals to the program that it is part of."""

    def capture_signals(self):  # type: ignore[no-untyped-def]
        from contextlib import nullcontext

        return nullcontext()


def _listen(listener: Listener) -> socket.socket:
    """A socket that listens there. Raises ConnectError which says what to do."""
    family = socket.AF_INET6 if ":" in listener.host else socket.AF_INET
    taken = socket.socket(family, socket.SOCK_STREAM)
    try:
        taken.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        taken.bind((listener.host, listener.port))
        taken.listen(_BACKLOG)
    except OSError as error:
        taken.close()
        where = f"{listener.host or '*'}:{listener.port}"
        raise ConnectError(
            f"cannot listen on {where}: {error.strerror or error}. Is another worker running? Stop it, or give this "
            "one another address (listeners=http://127.0.0.1:8084)."
        ) from None
    taken.setblocking(False)
    return taken
