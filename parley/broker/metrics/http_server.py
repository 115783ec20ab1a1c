"""The HTTP server of ``metrics.listener``, in a thread with a separate event loop.

Rules of this module:

* A connection is in one ``Stage`` at a time. Each stage limits its connections, in total and for each address. If a
  limit is exceeded, the server closes the oldest connection in this stage from the address with the most connections.
  Clients that send half a request, or wait because their login was rejected, therefore cannot keep other clients out.
* Connections have no threads, so waiting clients do not slow down the others.
* A connection ends after its response, and after a few seconds even if its client is slow.
"""

from __future__ import annotations

import asyncio
import logging
import socket
import ssl
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable
from functools import partial
from http import HTTPStatus
from threading import Thread
from typing import Any, Final, TypeAlias, cast

import uvloop

from parley.broker.metrics.http_messages import (
    HEADER_BYTES_MAX,
    HttpRequest,
    HttpResponse,
    Stage,
    asks_for_body,
    error_page,
    parse_header,
)
from parley.broker.network.acceptor import Acceptor
from parley.broker.runtime.tasks import TaskSet
from parley.storage.resource_exhaustion import MEMORY

_log = logging.getLogger(__name__)

CONNECTIONS_MAX: Final = 64
"""The maximum number of connections in one stage."""
CONNECTIONS_PER_ADDRESS_MAX: Final = 32
"""The maximum number of connections of one client address in one stage."""
REFUSED_MAX: Final = 32
"""The maximum number of connections whose clients wait because their login failed. At most half of them may come from
one address."""
LARGE_ANSWERS_MAX: Final = 4
"""The maximum number of large responses: each takes memory until its client has read it."""
HEADER_TIMEOUT_S = 5.0
"""The time that a client may take for the TLS handshake and the header of its request together."""
CONNECTION_S = 10.0
"""The maximum duration of a connection after its header has been read."""
BACKLOG: Final = 1024
"""The maximum number of connections that wait to be accepted. A client that finds the backlog full retries after a
second."""

Answer: TypeAlias = Callable[[HttpRequest], Awaitable[HttpResponse]]
"""Returns the response to a request. Runs in the event loop of the server."""


class HttpServer:
    """Serves one address until ``close``."""

    def __init__(
        self,
        host: str,
        port: int,
        answer: Answer,
        *,
        tls: Callable[[], ssl.SSLContext | None],
        handshake_failed: Callable[[str, str], None],
    ) -> None:
        """Open the address. With port 0, any free port is used; see ``port``. Raises OSError.

        ``tls`` returns the TLS settings of the next connection, or None. ``handshake_failed`` is called with the
        address of a client and the reason.
        """
        self._answer = answer
        self._tls = tls
        self._handshake_failed = handshake_failed
        self._socket = _bound(host, port)
        self.port: int = self._socket.getsockname()[1]
        self._stages: dict[Stage, dict[HttpConnection, None]] = {stage: {} for stage in Stage}
        self._loop = uvloop.new_event_loop()
        self._tasks = TaskSet()
        self._stop = asyncio.Event()
        self._thread = Thread(target=self._run, name="metrics", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Stop serving: connections are cut. Blocks until the thread has ended."""
        self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join()

    def _run(self) -> None:
        with asyncio.Runner(loop_factory=lambda: self._loop) as runner:
            runner.run(self._serve())

    async def _serve(self) -> None:
        acceptor = Acceptor(
            self._socket, wait_s=lambda: 0.0, accepted=self._accepted, starved=self._cut_one, name="METRICS"
        )
        acceptor.start(BACKLOG)
        await self._stop.wait()
        acceptor.close()
        for connections in self._stages.values():
            for connection in tuple(connections):
                connection.cut()
        await self._tasks.close()

    def connections(self, stage: Stage) -> Iterable[HttpConnection]:
        """Return the connections in a stage, the oldest first."""
        return self._stages[stage]

    def _accepted(self, sock: socket.socket, address: Any) -> None:
        connection = HttpConnection(self, str(address[0]))
        self.enter(connection, Stage.HEADER)
        connection.task = self._tasks.start(self._connect(sock, connection), name="metrics connection")

    async def _connect(self, sock: socket.socket, connection: HttpConnection) -> None:
        try:
            context = self._tls()
            await self._loop.connect_accepted_socket(
                lambda: connection, sock, ssl=context, ssl_handshake_timeout=HEADER_TIMEOUT_S if context else None
            )
        except OSError as error:  # of the TLS handshake, or the client has disconnected
            sock.close()
            if isinstance(error, ssl.SSLError):
                reason = getattr(error, "verify_message", "") or error.reason or type(error).__name__
                self._handshake_failed(connection.address, f"TLS handshake failed: {reason}")
            self.leave(connection)
        except asyncio.CancelledError:
            sock.close()
            raise
        except Exception:
            sock.close()
            _log.exception("a connection to the metrics listener failed")
            self.leave(connection)

    def enter(self, connection: HttpConnection, stage: Stage) -> None:
        """Move a connection to a stage. If the stage then has too many connections, cut the one that has been in it
        longest, from the same address or from the address with the most connections."""
        self.leave(connection)
        connection.stage = stage
        connections = self._stages[stage]
        connections[connection] = None
        limit, own_limit = _LIMITS.get(stage, _USUAL_LIMITS)
        own = [each for each in connections if each.address == connection.address]
        if len(own) > own_limit:
            own[0].cut()
        elif len(connections) > limit:
            to_be_cut(connections).cut()

    def leave(self, connection: HttpConnection) -> None:
        """Remove a connection that has ended. Idempotent."""
        self._stages[connection.stage].pop(connection, None)

    def _cut_one(self) -> None:
        """Cut a connection, because the process needs its file descriptor."""
        for stage in (Stage.REFUSED, Stage.HEADER):
            if self._stages[stage]:
                to_be_cut(self._stages[stage]).cut()
                return

    def whole(self, connection: HttpConnection, header: bytes) -> None:
        """Start a task that responds to the request with this header, which has arrived completely."""
        self.enter(connection, Stage.ANSWER)
        connection.task = self._tasks.start(self._respond(connection, header), name="metrics request")

    async def _respond(self, connection: HttpConnection, header: bytes) -> None:
        request = parse_header(header, connection.address, partial(self.enter, connection))
        if isinstance(request, HTTPStatus):
            connection.send(error_page(request))
            return
        try:
            response = await self._answer(request)
        except (RuntimeError, MemoryError):  # no memory, or none for a thread
            MEMORY.make_room()
            connection.cut()
            return
        except Exception:
            _log.exception("a connection to the metrics listener failed")
            response = error_page(HTTPStatus.INTERNAL_SERVER_ERROR)
        connection.send(response)


_USUAL_LIMITS: Final = (CONNECTIONS_MAX, CONNECTIONS_PER_ADDRESS_MAX)
_LIMITS: Final = {
    Stage.LARGE_ANSWER: (LARGE_ANSWERS_MAX, LARGE_ANSWERS_MAX),
    Stage.REFUSED: (REFUSED_MAX, REFUSED_MAX // 2),
}


def to_be_cut(connections: Iterable[HttpConnection]) -> HttpConnection:
    """Return the connection to cut to make room: the oldest one from the address with the most connections.

    ``connections`` are ordered oldest first, and must not be empty.
    """
    crowds = Counter(each.address for each in connections)
    return max(connections, key=lambda each: crowds[each.address])  # the first one if several are equal


def _bound(host: str, port: int) -> socket.socket:
    sock = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET, socket.SOCK_STREAM)
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.bind((host, port))
        sock.listen(BACKLOG)  # the caller may connect immediately
        sock.setblocking(False)
    except OSError:
        sock.close()
        raise
    return sock


class HttpConnection(asyncio.Protocol):
    """One connection, which serves one request and then ends."""

    def __init__(self, server: HttpServer, address: str) -> None:
        self.address = address
        self.stage = Stage.HEADER
        self.task: asyncio.Task[None] | None = None
        """The task that serves the connection."""
        self._server = server
        self._transport: asyncio.Transport | None = None
        self._header = bytearray()
        self._asks_for_body = True
        self._is_cut = False
        self._deadline = asyncio.get_running_loop().call_later(HEADER_TIMEOUT_S, self.cut)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        if self._is_cut:
            self._transport.abort()

    def data_received(self, data: bytes) -> None:
        if self.stage is not Stage.HEADER or self._is_cut or self._transport is None:
            return  # a request has arrived: what follows it is ignored
        searched = max(0, len(self._header) - 3)
        self._header += data
        end = self._header.find(b"\r\n\r\n", searched)
        if end < 0 and len(self._header) <= HEADER_BYTES_MAX:
            return
        self._transport.pause_reading()
        self._asks_for_body = asks_for_body(self._header)
        self._limit(CONNECTION_S)
        if end < 0:
            self.send(error_page(HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE))
            return
        header = bytes(self._header[: end + 4])
        self._header.clear()
        self._server.whole(self, header)

    def connection_lost(self, exc: Exception | None) -> None:
        self.cut()

    def send(self, response: HttpResponse) -> None:
        """Send the response, and end the connection once the client has read it. Does nothing if the client has
        disconnected before the connection was set up."""
        if self._transport is not None:
            self._transport.write(response.encoded(with_body=self._asks_for_body))
            self._transport.close()

    def cut(self) -> None:
        """End the connection and its task now, and discard unsent bytes. Idempotent."""
        self._is_cut = True
        self._deadline.cancel()
        self._server.leave(self)
        if self.task is not None:
            self.task.cancel()
        if self._transport is not None:
            self._transport.abort()

    def _limit(self, seconds: float) -> None:
        """Cut the connection after ``seconds``, instead of at the previous deadline."""
        self._deadline.cancel()
        self._deadline = asyncio.get_running_loop().call_later(seconds, self.cut)
