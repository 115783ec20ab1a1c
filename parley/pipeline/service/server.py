"""Serves an API in the running event loop, on the addresses of ``listeners``, until it is closed."""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import Sequence
from contextlib import suppress
from types import TracebackType
from typing import Final, NamedTuple, Self
from urllib.parse import urlsplit

import uvicorn
from starlette.types import ASGIApp

from parley.pipeline.service.errors import ServiceError

DEFAULT_PORT: Final = 8083
_IF_TAKEN: Final = (
    "Is another worker running? Stop it, or give this one another address (listeners=http://127.0.0.1:8084)."
)
_BACKLOG: Final = 128
_CONNECTIONS_MAX: Final = 1000
"""Requests on connections beyond this number get status 503."""
_IDLE_SECONDS: Final = 60
_END_SECONDS: Final = 3


class Listener(NamedTuple):
    """An address of the API. An empty host means all addresses of this machine."""

    host: str
    port: int
    is_tls: bool = False

    @property
    def protocol(self) -> str:
        """The scheme of the listener's URLs."""
        return "https" if self.is_tls else "http"


def parse_listeners(text: str, default_port: int = DEFAULT_PORT, *, key: str = "listeners") -> list[Listener]:
    """Parse the addresses of a setting, such as "http://:8083,https://[::1]:8443". ``key`` is its name, for the error.

    Raises ServiceError.
    """
    listeners = []
    for part in filter(None, (piece.strip() for piece in text.split(","))):
        try:
            url = urlsplit(part)
            host, port = url.hostname or "", default_port if url.port is None else url.port
        except ValueError as error:
            raise ServiceError(f"{key}: {part!r} is not an address: {error}") from None
        if url.scheme.lower() not in ("http", "https") or url.path not in ("", "/"):
            raise ServiceError(f"{key}: {part!r} must have the form HTTP://host:{default_port} or HTTPS://host:8443")
        listeners.append(Listener(host, port, url.scheme.lower() == "https"))
    if not listeners:
        raise ServiceError(f"{key}: no address is given, for example http://127.0.0.1:{default_port}")
    return listeners


class RestServer:
    """A server for one application: ``async with RestServer(listeners) as server: server.serve(app)``.

    Entering the context binds the addresses, and raises ServiceError if that fails. They are bound before the
    application exists, so that a worker knows its own URL even if the configured port is 0.
    """

    def __init__(
        self, listeners: Sequence[Listener], tls: ssl.SSLContext | None = None, *, if_taken: str = _IF_TAKEN
    ) -> None:
        """``tls`` is the context of the listeners with TLS. ``if_taken`` says what to do if an address is in use.

        Raises ValueError if a listener needs a context and there is none.
        """
        if tls is None and any(one.is_tls for one in listeners):
            raise ValueError("a listener with TLS needs a context")
        self._listeners = listeners
        self._tls = tls
        self._if_taken = if_taken
        self._sockets: list[socket.socket] = []
        self._servers: list[uvicorn.Server] = []
        self._serving: list[asyncio.Task[None]] = []

    async def __aenter__(self) -> Self:
        try:
            for listener in self._listeners:
                self._sockets.append(_listen(listener, self._if_taken))
        except BaseException:
            self._close_sockets()
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        for server in self._servers:
            server.should_exit = True
        await asyncio.gather(*self._serving)
        self._close_sockets()

    @property
    def addresses(self) -> list[Listener]:
        """The bound addresses, with the ports that the system chose."""
        named = zip(self._listeners, (one.getsockname()[:2] for one in self._sockets), strict=True)
        return [listener._replace(host=host, port=port) for listener, (host, port) in named]

    def serve(self, app: ASGIApp) -> None:
        """Start serving the application. Call this inside the context."""
        pairs = list(zip(self._listeners, self._sockets, strict=True))
        for is_tls in (False, True):
            sockets = [taken for listener, taken in pairs if listener.is_tls is is_tls]
            if sockets:
                server = _Server(_config(app, self._tls if is_tls else None))
                self._servers.append(server)
                self._serving.append(asyncio.create_task(server.serve(sockets=sockets)))

    def _close_sockets(self) -> None:
        for one in self._sockets:
            with suppress(OSError):
                one.close()
        self._sockets.clear()


def _config(app: ASGIApp, tls: ssl.SSLContext | None) -> uvicorn.Config:
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
    config.load()
    config.ssl = tls  # uvicorn itself makes contexts from PEM files only
    return config


class _Server(uvicorn.Server):
    """A uvicorn server that leaves signal handling to the program."""

    def capture_signals(self):  # type: ignore[no-untyped-def]
        from contextlib import nullcontext

        return nullcontext()


def _listen(listener: Listener, if_taken: str) -> socket.socket:
    """Return a listening socket. Raises ServiceError, which ends with ``if_taken``."""
    family = socket.AF_INET6 if ":" in listener.host else socket.AF_INET
    taken = socket.socket(family, socket.SOCK_STREAM)
    try:
        taken.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        taken.bind((listener.host, listener.port))
        taken.listen(_BACKLOG)
    except OSError as error:
        taken.close()
        where = f"{listener.host or '*'}:{listener.port}"
        raise ServiceError(f"cannot listen on {where}: {error.strerror or error}. {if_taken}") from None
    taken.setblocking(False)
    return taken
