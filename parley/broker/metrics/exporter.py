"""The HTTP server of ``metrics.listener``: ``/metrics`` for Prometheus, and the pages for probes (``PROBES``).

Rules of this module:

* It runs in its own threads and never blocks the event loop: the loop only copies numbers, once per scrape.
* Its resources are limited: connections in total and per address, each for a few seconds even if its client is slow.
  A request takes one of a few places only when its header has been read, so incomplete requests cannot block complete
  ones; probes have places of their own. When there is no room, a connection is cut (``_to_be_cut``): incomplete
  requests first, then clients that wait because their login was refused, the oldest of the address with the most.
* If the event loop does not respond in time, all pages return status 503 with this reason. Time during which the whole
  process is suspended (for example with its machine) does not count.
* If users are configured, the probe pages show their status to everyone but their details only to users. Everything
  else requires a login.
"""

from __future__ import annotations

import asyncio
import json
import logging
import select
import socket
import ssl
from collections import Counter, deque
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future, wait
from contextlib import suppress
from functools import partial
from socketserver import ThreadingMixIn
from threading import BoundedSemaphore, Event, Lock, Thread, Timer
from typing import Any, TypeAlias, TypeVar
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer
from wsgiref.types import StartResponse, WSGIEnvironment

from prometheus_client import CollectorRegistry, GCCollector, PlatformCollector, ProcessCollector, make_wsgi_app

from parley.broker.metrics.access import AccessRules, MetricsAccess
from parley.broker.metrics.collector import BrokerCollector
from parley.broker.metrics.health import Health
from parley.broker.metrics.registry import Metrics, Snapshot
from parley.broker.runtime.clock import Clock
from parley.protocol.security.passwords import basic_credentials
from parley.storage.resource_exhaustion import MEMORY

_log = logging.getLogger(__name__)

PLACES = 4
"""The maximum number of scrapes that are processed concurrently, and of probes."""
CONNECTIONS_MAX = 64
"""The maximum number of connections, most of which are still sending their requests. Each has a thread."""
CONNECTIONS_PER_ADDRESS_MAX = 32
"""The maximum number of connections of one client address."""
HEADER_TIMEOUT_S = 5.0
"""How long a client may take for the TLS handshake and the header of its request together."""
READ_TIMEOUT_S = 5.0
"""How long a client may take to send each part of its request, and to read each part of the response."""
CONNECTION_S = 10.0
"""The maximum duration of a connection after its header has been read."""
BACKLOG = 1024
"""The maximum number of connections that wait to be accepted. A client that finds the backlog full retries after a
second."""
HEADER_PEEK_BYTES = 4096
"""How much of a request that has not been read yet is searched for the end of its header."""
PLACE_TIMEOUT_S = 1.0
"""How long a new connection waits for the connection that it replaces to end."""
ACCEPT_PAUSE_S = 0.1
"""The pause after accepting a connection has failed."""
LOOP_TIMEOUT_S = 2.0
"""How long the event loop may take to respond before it counts as stuck."""
LOOP_WAITS = 20
"""The number of parts into which this wait is divided. If the whole process is suspended, only one part elapses."""

LIVENESS = "/livez"
IN_SYNC = "/insyncz"
MAY_STOP = "/stopz"
PROBES = ("/healthz", "/readyz", LIVENESS, IN_SYNC, MAY_STOP)

WAIT_REFUSED = "parley.wait_refused"
"""The environment's key for the function that makes a client with a wrong password wait (seconds)."""

NAMES_MAX = 20
"""The maximum number of partitions that a page names."""

T = TypeVar("T")


class LoopStuck(Exception):
    """The event loop did not respond within ``LOOP_TIMEOUT_S``, or is closed."""


class Exporter:
    """Serves the metrics and the health of one broker until ``close``."""

    def __init__(
        self,
        metrics: Metrics,
        health: Health,
        *,
        loop: asyncio.AbstractEventLoop,
        clock: Clock,
        host: str,
        port: int,
        access: MetricsAccess | None = None,
        out_of_sync: Callable[[], Sequence[str]] = tuple,
        needed: Callable[[], Sequence[str]] = tuple,
    ) -> None:
        """Open the address. With port 0, any free port is used; see ``port``. Raises OSError that names the address.

        ``access`` returns the access rules; None means that every client has access. ``out_of_sync`` and ``needed``
        name the partitions that a rolling restart waits for (``parley.broker.replication.rolling_restart``); they run
        in the event loop.
        """
        self._access = access
        self._waited_for = {IN_SYNC: out_of_sync, MAY_STOP: needed}
        self._metrics = metrics
        self._health = health
        self._loop = loop
        self._clock = clock
        registry = CollectorRegistry()
        registry.register(BrokerCollector(self._snapshot))
        ProcessCollector(registry=registry)
        PlatformCollector(registry=registry)
        GCCollector(registry=registry)
        self._prometheus = make_wsgi_app(registry)
        try:
            self._server = _Server(host, port, access)
        except OSError as error:
            kind = socket.gaierror if isinstance(error, socket.gaierror) else OSError
            reason = f"cannot listen on {host}:{port} for metrics.listener: {error.strerror}"
            raise kind(error.errno, reason) from error
        self._server.set_app(self._answer)
        self.port: int = self._server.server_port
        self._thread = Thread(target=self._server.accept_until_closed, name="metrics", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Stop serving. May be called in the event loop's thread, because it does not wait for the loop."""
        self._server.close()
        self._thread.join()

    def _answer(self, environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
        path = environ["PATH_INFO"]
        is_user = self._is_user(environ, must_be=path not in PROBES)
        if path == LIVENESS:
            return self._answer_liveness(start_response)
        if path in self._waited_for:
            return self._answer_waited_for(start_response, path, is_user)
        if path in PROBES:
            return self._answer_health(start_response, is_user)
        if not is_user:
            start_response("401 Unauthorized", [*_plain(), ("WWW-Authenticate", 'Basic realm="parley"')])
            return [b"A user of the metrics listener must log in.\n"]
        if path == "/metrics":
            return self._answer_metrics(environ, start_response)
        start_response("404 Not Found", _plain())
        return [f"There are /metrics, {', '.join(PROBES)}.\n".encode()]

    def _is_user(self, environ: WSGIEnvironment, *, must_be: bool) -> bool:
        """Return True if no login is required, or the client has sent a valid name and password.

        The response to a wrong password is delayed, so that guessing takes time. With ``must_be``, so is the response
        to a client without a login.
        """
        rules = AccessRules() if self._access is None else self._access.current()
        if self._access is None or rules.users is None:
            return True
        login = environ.get("HTTP_AUTHORIZATION", "")
        name, password = basic_credentials(login)
        is_user = rules.users.verify(name, password)
        if not is_user and (must_be or login):
            if name:
                self._access.refused(environ["REMOTE_ADDR"], "wrong user or password", user=name)
            environ[WAIT_REFUSED](rules.refusal_delay_s)
        return is_user

    def _answer_metrics(self, environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
        try:
            answer: Iterable[bytes] = self._prometheus(environ, start_response)
        except LoopStuck as stuck:
            start_response("503 Service Unavailable", _plain())
            return [f"{stuck}\n".encode()]
        except Exception:
            _log.exception("the metrics could not be collected")
            start_response("500 Internal Server Error", _plain())
            return [b"The metrics could not be collected: see the broker's log.\n"]
        return answer

    def _answer_liveness(self, start_response: StartResponse) -> Iterable[bytes]:
        """Respond with the state of the event loop alone, because only a restart helps if the loop is stuck."""
        try:
            self._in_loop(lambda: None)
        except LoopStuck as stuck:
            start_response("503 Service Unavailable", _plain())
            return [f"{stuck}\n".encode()]
        start_response("200 OK", _plain())
        return [b"The event loop responds.\n"]

    def _answer_health(self, start_response: StartResponse, has_facts: bool) -> Iterable[bytes]:
        fine, body = self._health.report()
        try:
            self._in_loop(lambda: None)
        except LoopStuck as stuck:
            fine = False
            body.setdefault("problems", {})["event loop"] = str(stuck)
        start_response("200 OK" if fine else "503 Service Unavailable", [("Content-Type", "application/json")])
        return [json.dumps(body if has_facts else {"status": body["status"]}).encode() + b"\n"]

    def _answer_waited_for(self, start_response: StartResponse, path: str, has_facts: bool) -> Iterable[bytes]:
        """Respond whether a rolling restart may continue after this broker (``/insyncz``), or stop it (``/stopz``)."""
        serves, health = self._health.report()
        body: dict[str, Any] = {"status": health["status"]}
        fine = serves or path == MAY_STOP
        try:
            names = self._in_loop(self._waited_for[path])
        except LoopStuck as stuck:
            fine, body["problem"] = False, str(stuck)
        else:
            fine = fine and not names
            body["partitions"] = len(names)
            if has_facts and names:
                body["first"] = list(names[:NAMES_MAX])
        start_response("200 OK" if fine else "503 Service Unavailable", [("Content-Type", "application/json")])
        return [json.dumps(body).encode() + b"\n"]

    def _snapshot(self) -> Snapshot:
        asked = self._clock.monotonic()

        def snapshot() -> Snapshot:
            self._metrics.process.loop_delay_seconds = self._clock.monotonic() - asked
            return self._metrics.snapshot()

        return self._in_loop(snapshot)

    def _in_loop(self, ask: Callable[[], T]) -> T:
        """Call ``ask`` in the event loop's thread and return its result. Raises LoopStuck."""
        answer: Future[T] = Future()

        def run() -> None:
            if not answer.set_running_or_notify_cancel():
                return  # the caller has stopped waiting
            try:
                answer.set_result(ask())
            except BaseException as error:
                answer.set_exception(error)

        try:
            self._loop.call_soon_threadsafe(run)
        except RuntimeError as closed:
            raise LoopStuck("the event loop is closed") from closed
        for _ in range(LOOP_WAITS):
            if wait([answer], LOOP_TIMEOUT_S / LOOP_WAITS).done:
                return answer.result()
        answer.cancel()
        raise LoopStuck(f"the event loop has not responded within {LOOP_TIMEOUT_S:g} s")


def _plain() -> list[tuple[str, str]]:
    """Return the headers of a plain text. ``wsgiref`` adds the length of the response to the list."""
    return [("Content-Type", "text/plain; charset=utf-8")]


_Accepted: TypeAlias = tuple[Any, Any]
"""The socket and the address of a connection."""


def _is_readable(sock: socket.socket) -> bool:
    """Return True if a read, or an accept, would not wait. Raises ValueError if the socket is closed."""
    readable = select.poll()
    readable.register(sock, select.POLLIN)
    return bool(readable.poll(0))


def _header_is_there(sock: socket.socket) -> bool:
    """Return True if the complete header of a request has arrived and has not been read yet."""
    with suppress(OSError, ValueError):  # the connection has ended
        # A bare recv would wait for the timeout of the socket, whatever its flags.
        return _is_readable(sock) and b"\r\n\r\n" in sock.recv(HEADER_PEEK_BYTES, socket.MSG_PEEK)
    return False


class _Connection:
    """A client's connection, and the progress of its request."""

    def __init__(self, connected: socket.socket, address: str) -> None:
        self.address = address
        self.is_whole = False
        """True if the header of the request has arrived completely."""
        self.is_refused = False
        """True if the client waits because its login was refused."""
        self.place: BoundedSemaphore | None = None
        self._cut = Event()
        self._connected = connected
        self._deadline: Timer | None = None

    @property
    def is_cut(self) -> bool:
        return self._cut.is_set()

    def look_for_header(self) -> None:
        """Check if the header has arrived: the connection's thread may not have run since. Does nothing under TLS."""
        if not self.is_whole and not isinstance(self._connected, ssl.SSLSocket):
            self.is_whole = _header_is_there(self._connected)

    def wait_refused(self, seconds: float) -> None:
        """Let the client wait without a place, unless the connection is cut meanwhile."""
        self.is_refused = True
        self.leave_place()
        self._cut.wait(seconds)

    def leave_place(self) -> None:
        """Free the place of the request, if it has one."""
        if self.place is not None:
            self.place.release()
            self.place = None

    def limit(self, seconds: float) -> None:
        """Cut the connection after ``seconds``, instead of at the previous deadline. Raises RuntimeError if memory has
        run out."""
        self.no_limit()
        self._deadline = Timer(seconds, self.cut)
        self._deadline.daemon = True
        self._deadline.start()

    def no_limit(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()

    def cut(self) -> None:
        """Shut down the connection. The thread that serves it then ends."""
        self._cut.set()
        with suppress(OSError):  # it has already ended
            # Not SSLSocket.shutdown: it ends TLS first, and the thread would continue in plaintext.
            socket.socket.shutdown(self._connected, socket.SHUT_RDWR)


def _to_be_cut(connections: Sequence[_Connection]) -> _Connection | None:
    """Return the connection to cut to make room: the oldest of the address with the most connections.

    ``connections`` are ordered oldest first. Incomplete requests are cut first, then clients that wait because their
    login was refused.
    """
    halves = [each for each in connections if not each.is_whole]
    candidates = halves or [each for each in connections if each.is_refused] or connections
    crowds = Counter(each.address for each in candidates)
    return max(candidates, key=lambda each: crowds[each.address], default=None)  # of equals, the first


class _Server(ThreadingMixIn, WSGIServer):
    daemon_threads = True
    block_on_close = False
    request_queue_size = BACKLOG

    def __init__(self, host: str, port: int, access: MetricsAccess | None) -> None:
        self._access = access
        self._room = BoundedSemaphore(CONNECTIONS_MAX)
        self._places = BoundedSemaphore(PLACES)
        self._probe_places = BoundedSemaphore(PLACES)
        self._closed = Event()
        self._open: dict[socket.socket, _Connection] = {}  # oldest first
        self._lock = Lock()
        self.address_family = socket.AF_INET6 if ":" in host else socket.AF_INET
        super().__init__((host, port), _Request)

    def server_bind(self) -> None:
        # HTTPServer would look up its own name in the DNS here, which can be slow and is not needed.
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self.socket.bind(self.server_address)
        self.server_name, self.server_port = self.socket.getsockname()[:2]
        self.setup_environ()

    def accept_until_closed(self) -> None:
        """Accept connections in the server's thread. (``serve_forever`` would wake up periodically.)

        Starting a thread for a connection takes much longer than accepting it. So complete requests are served first,
        and of the incomplete ones only the latest.
        """
        incomplete: deque[_Accepted] = deque()
        while not self._closed.is_set():
            try:
                while not incomplete or _is_readable(self.socket):
                    accepted = self.get_request()
                    if _header_is_there(accepted[0]):
                        self._serve(accepted)
                        continue
                    incomplete.append(accepted)
                    if len(incomplete) > CONNECTIONS_PER_ADDRESS_MAX:
                        self._serve_or_cut(incomplete.popleft())
            except (OSError, ValueError):  # closed, or the process is out of descriptors
                self._closed.wait(ACCEPT_PAUSE_S)
            if incomplete:
                self._serve(incomplete.popleft())
        for request, _ in incomplete:
            self.shutdown_request(request)

    def _serve_or_cut(self, accepted: _Accepted) -> None:
        if _header_is_there(accepted[0]):
            self._serve(accepted)
        else:
            self.shutdown_request(accepted[0])

    def _serve(self, accepted: _Accepted) -> None:
        request, address = accepted
        try:
            self.process_request(request, address)
        except (RuntimeError, MemoryError):  # no memory for a thread
            MEMORY.make_room()
            self.shutdown_request(request)
        except Exception:
            _log.exception("a connection to the metrics listener failed")
            self.shutdown_request(request)

    def close(self) -> None:
        self._closed.set()
        with suppress(OSError):  # it is not connected
            self.socket.shutdown(socket.SHUT_RDWR)
        self.server_close()

    def _secured(self, connection: socket.socket) -> socket.socket:
        """Return the connection, wrapped in TLS if required. The handshake follows in the connection's thread.

        Raises OSError if the client has already disconnected.
        """
        tls = None if self._access is None else self._access.current().tls
        if tls is None:
            return connection
        with connection:  # which is empty afterwards
            return tls.context.wrap_socket(connection, server_side=True, do_handshake_on_connect=False)

    def finish_request(self, request: Any, client_address: Any) -> None:
        if isinstance(request, ssl.SSLSocket):
            assert self._access is not None
            request.settimeout(READ_TIMEOUT_S)
            try:
                request.do_handshake()
            except OSError as error:
                reason = getattr(error, "verify_message", "") or getattr(error, "reason", "") or type(error).__name__
                self._access.refused(client_address[0], f"TLS handshake failed: {reason}")
                return
        super().finish_request(request, client_address)

    def process_request(self, request: Any, client_address: Any) -> None:
        try:
            request = self._secured(request)
        except OSError:
            return
        connection = _Connection(request, client_address[0])
        if not self._take_room(connection.address):
            self.shutdown_request(request)
            return
        try:
            with self._lock:
                self._open[request] = connection
            connection.limit(HEADER_TIMEOUT_S)
            super().process_request(request, client_address)
        except BaseException:
            self._leave(request)
            raise

    def _take_room(self, address: str) -> bool:
        """Reserve room for one more connection of the address. Returns False if there is none in time."""
        own = self._open_connections(lambda each: each.address == address)
        if len(own) >= CONNECTIONS_PER_ADDRESS_MAX:
            _cut_one(own)
        if self._room.acquire(blocking=False):
            return True
        _cut_one(self._open_connections(lambda _: True))
        return self._room.acquire(timeout=PLACE_TIMEOUT_S)

    def take_place(self, request: Any, path: str) -> bool:
        """Reserve a place for a request whose header has been read. Returns False if the request cannot be
        processed."""
        connection = self._open[request]
        places = self._probe_places if path.partition("?")[0] in PROBES else self._places
        if connection.is_cut:
            return False  # the end of the connection also ends the header
        connection.is_whole = True
        connection.limit(CONNECTION_S)
        if not places.acquire(blocking=False):
            _cut_one(self._open_connections(lambda each: each.place is places))
            if not places.acquire(timeout=PLACE_TIMEOUT_S):
                return False
        connection.place = places
        return True

    def wait_refused(self, request: Any, seconds: float) -> None:
        """Let a client whose login was refused wait for its response."""
        self._open[request].wait_refused(seconds)

    def _open_connections(self, which: Callable[[_Connection], bool]) -> list[_Connection]:
        """Return the connections that have not been cut, oldest first."""
        with self._lock:
            return [each for each in self._open.values() if not each.is_cut and which(each)]

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._leave(request)

    def _leave(self, request: Any) -> None:
        with self._lock:
            connection = self._open.pop(request)
        connection.no_limit()
        connection.leave_place()
        self._room.release()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Do not log that a client has disconnected early."""


def _cut_one(connections: Sequence[_Connection]) -> None:
    for each in connections:
        each.look_for_header()
    found = _to_be_cut(connections)
    if found is not None:
        found.cut()


class _Request(WSGIRequestHandler):
    timeout = READ_TIMEOUT_S
    server: _Server

    def parse_request(self) -> bool:
        """Read the header, and wait for a place."""
        return super().parse_request() and self.server.take_place(self.connection, self.path)

    def get_environ(self) -> Any:
        return super().get_environ() | {WAIT_REFUSED: partial(self.server.wait_refused, self.connection)}

    def log_message(self, format: str, *args: Any) -> None:
        """Do not log scrapes, which come every few seconds."""

    def get_stderr(self) -> Any:
        return _NOWHERE


class _Nowhere:
    def write(self, text: str) -> None: ...
    def flush(self) -> None: ...


_NOWHERE = _Nowhere()
