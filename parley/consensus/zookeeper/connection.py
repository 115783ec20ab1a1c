"""A connection to ZooKeeper for asyncio: kazoo's thread on one side, futures on the other.

kazoo runs one thread per connection and reconnects by itself. Meanwhile it queues requests without a limit or a
deadline. So this module sends nothing while there is no connection, and limits the requests in flight. It breaks the
connection if a response is overdue, which kazoo's pings do not notice while requests are being sent. kazoo also lets
one silent server use up a whole session timeout for a connection attempt, during which the session would be lost; here
each attempt gets a part of that timeout.
"""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import field
from typing import Any

from kazoo.client import KazooClient
from kazoo.exceptions import AuthFailedError, ConnectionClosedError, ConnectionLoss, KazooException, SessionExpiredError
from kazoo.handlers.threading import SequentialThreadingHandler
from kazoo.protocol.serialization import Sync
from kazoo.protocol.states import KazooState, KeeperState, WatchedEvent
from kazoo.retry import KazooRetry

from parley.configuration.key_stores import Identity, pem_file
from parley.consensus.errors import Permanent, Unauthorized, Unavailable
from parley.light_dataclasses import dataclass

READ_FRACTION = 2 / 3
"""The fraction of the session timeout after which a silent server is abandoned, as in every client of ZooKeeper."""
MAIN_TIMEOUT_MS = 6000
"""The session timeout of a connection without ephemeral znodes."""
_IN_FLIGHT_MAX = 128
_STOP_S = 5.0
_FORGOTTEN_S = 1.0
_ATTEMPT_S = 2.0

_log = logging.getLogger(__name__)
_kazoo_log = logging.getLogger("parley.consensus.zookeeper.client")
# At DEBUG kazoo logs the data of every request, including secrets.
_kazoo_log.addFilter(lambda record: record.levelno >= logging.INFO)

Watcher = Callable[[WatchedEvent], None]


@dataclass(frozen=True, slots=True)
class Keystores:
    """The content of PKCS #12 files, which kazoo cannot read. ``authorities`` is PEM, or empty without a trust
    store."""

    identity: Identity | None = None
    authorities: str = field(default="", repr=False)

    @contextmanager
    def as_options(self) -> Iterator[dict[str, str]]:
        """Yield kazoo's options for the content. The files that they name exist only inside the ``with`` block."""
        with ExitStack() as files:
            options: dict[str, str] = {}
            if self.identity is not None:
                path = files.enter_context(pem_file(self.identity.pem))
                options |= {"certfile": path, "keyfile": path}
            if self.authorities:
                options["ca"] = files.enter_context(pem_file(self.authorities))
            yield options


@dataclass(frozen=True, slots=True)
class Endpoint:
    """The servers, and this client's credentials.

    ``hosts`` is the ``host:port`` of each server, joined by commas. ``auth`` contains pairs of scheme and credential,
    such as ``digest`` and ``user:password``. ``sasl`` contains the options of pure-sasl, and ``tls`` kazoo's TLS
    options.
    """

    hosts: str
    auth: tuple[tuple[str, str], ...] = field(default=(), repr=False)
    sasl: dict[str, str] | None = field(default=None, repr=False)
    tls: dict[str, Any] = field(default_factory=dict, repr=False)
    keystores: Keystores = field(default=Keystores(), repr=False)

    @property
    def has_credentials(self) -> bool:
        """True if this client identifies itself: with a user, or with a certificate in a file or a keystore."""
        return bool(self.auth or self.sasl or self.tls.get("certfile") or self.keystores.identity)

    def client(self, timeout_ms: int, handler: _Handler) -> KazooClient:
        """Return a kazoo client with this session timeout, not yet started."""
        handler.keystores = self.keystores
        return KazooClient(
            hosts=self.hosts,
            timeout=timeout_ms / 1000,
            handler=handler,
            auth_data=list(self.auth),
            sasl_options=dict(self.sasl) if self.sasl else None,
            connection_retry=KazooRetry(max_tries=-1, delay=0.05, max_delay=1.0, max_jitter=0.3),
            logger=_kazoo_log,
            **self.tls,
        )


@contextmanager
def synchronous_client(endpoint: Endpoint, within_s: float = 15.0) -> Iterator[KazooClient]:
    """Yield a kazoo client for blocking code, such as tools. Raises Unavailable if no server responds in time."""
    client = endpoint.client(round(within_s * 1000), _Handler())
    try:
        client.start(within_s)
    except client.handler.timeout_exception as error:
        raise Unavailable(f"no ZooKeeper server of {endpoint.hosts} responds within {within_s:g} s") from error
    try:
        yield client
    finally:
        client.stop()
        client.close()


def connect(endpoint: Endpoint, host: str, port: int, timeout_s: float) -> Any:
    """Return a socket connected to one of the servers, with TLS if configured. Blocks. Raises OSError if that fails."""
    handler = _Handler()
    handler.keystores = endpoint.keystores
    try:
        return handler.create_connection((host, port), timeout=timeout_s, hostname=host, **endpoint.tls)
    except handler.timeout_exception as error:
        raise TimeoutError("no response") from error


class ResponseLost(Exception):
    """The connection broke before the response arrived. The request may or may not have been carried out."""


class Connection:
    """A connection with one ZooKeeper session at a time.

    ``on_state`` is called on the loop with each ``KazooState``. LOST means that the ZooKeeper session has ended; kazoo
    then starts another one. Without ``pings`` only calls renew the session, not kazoo's thread, so that the session of
    a process whose event loop hangs expires.
    """

    def __init__(
        self, endpoint: Endpoint, timeout_ms: int, on_state: Callable[[KazooState], None], *, pings: bool = True
    ) -> None:
        self.timeout_ms = timeout_ms
        self._loop = asyncio.get_running_loop()
        self._on_state = on_state
        self._connected = asyncio.Event()
        self._failure: Permanent | None = None
        self._closed = False
        self._slots = asyncio.Semaphore(_IN_FLIGHT_MAX)
        self._attempt_s = min(timeout_ms / 3000, _ATTEMPT_S)
        self._client = endpoint.client(timeout_ms, _LoopHandler(self.post, self._on_socket, self._attempt_s))
        if not pings:
            self._client._connection._send_ping = lambda connect_timeout: None
        self._client.add_listener(lambda state: self.post(self._on_kazoo_state, state))

    def start(self) -> None:
        """Start to connect. kazoo's thread reconnects from then on."""
        self._client.start_async()

    async def connected(self, within_s: float) -> None:
        """Wait at most ``within_s`` seconds for a connection.

        Raises Unavailable if there is none by then, and Permanent if none can ever be established.
        """
        if not self._connected.is_set() and not self._closed:
            with suppress(TimeoutError):
                await asyncio.wait_for(self._connected.wait(), within_s)
        if self._failure is not None:
            raise self._failure
        if not self._connected.is_set() or self._closed:
            raise Unavailable("there is no connection to ZooKeeper")

    async def call(self, request: Any, within_s: float) -> Any:
        """Send a request, after waiting at most ``within_s`` for a connection, and return the response.

        Raises Unavailable if there is no connection; nothing was sent. Raises ResponseLost if the connection broke in
        the meantime. Raises Permanent if no connection can ever be established. Raises KazooException if ZooKeeper
        responds with an error.
        """
        async with self._slots:
            await self.connected(within_s)
            return await self._send(request)

    async def sync_and_call(self, request: Any, within_s: float) -> Any:
        """Send a request like ``call``, but only after the server has caught up with ZooKeeper's leader."""
        async with self._slots:
            await self.connected(within_s)
            synced = asyncio.ensure_future(self._send(Sync("/")))
            try:
                response = await self._send(request)
                await synced
            except BaseException:
                synced.cancel()
                with suppress(BaseException):
                    await synced
                raise
            return response

    async def _send(self, request: Any) -> Any:
        pending = _PendingResponse(self)
        deadline = self._loop.call_later(self.timeout_ms / 1000 * READ_FRACTION, self._on_overdue, pending)
        try:
            self._client._call(request, pending)
            return await pending.future
        except (ConnectionLoss, SessionExpiredError, ConnectionClosedError) as error:
            if not self._client.connected and self._failure is None:
                self._connected.clear()  # kazoo reports the loss only after it has failed all pending requests
            raise ResponseLost(f"the connection to ZooKeeper broke: {type(error).__name__}") from error
        except AuthFailedError as error:
            raise Unauthorized("ZooKeeper rejects these credentials") from error
        finally:
            deadline.cancel()

    def _on_overdue(self, pending: _PendingResponse) -> None:
        """Break the connection on which a response is overdue. Fail the request here if kazoo has forgotten it."""
        self.drop()
        self._loop.call_later(_FORGOTTEN_S, pending.set_exception, ConnectionLoss())

    @property
    def is_connected(self) -> bool:
        """True if there is currently a connection."""
        return self._connected.is_set() and self._failure is None

    def fail(self, failure: Permanent) -> None:
        """Make every waiting and future call raise this error, because the connection is no longer usable."""
        self._failure = self._failure or failure
        self._connected.set()

    def drop(self) -> None:
        """Break the connection. kazoo establishes another one."""
        with suppress(OSError, AttributeError):
            self._client._connection._socket.shutdown(socket.SHUT_RDWR)

    async def close(self) -> None:
        """End the session and the thread. An unreachable server is not an error."""
        await self._end(self._client.stop)

    async def abandon(self) -> None:
        """End the thread without notifying the server, so that the session expires."""

        def leave() -> None:
            self._client._stopped.set()
            self.drop()
            with suppress(OSError, AttributeError):
                self._client._connection._write_sock.send(b"\0")
            self._client._safe_close()

        await self._end(leave)

    async def _end(self, stop: Callable[[], None]) -> None:
        if self._closed:
            return
        self._closed = True

        def end() -> None:
            with suppress(Exception):  # the server cannot be reached; the thread ends by itself
                stop()
                self._client.close()

        ended = asyncio.ensure_future(asyncio.to_thread(end))
        done, _ = await asyncio.wait([ended], timeout=_STOP_S)
        if not done:
            self.drop()
            _log.warning("the store did not confirm the end of the session, which will expire")

    def post(self, call: Callable[..., object], *arguments: object) -> None:
        """Call a function on the loop, from any thread."""
        with suppress(RuntimeError):  # the loop is closed
            self._loop.call_soon_threadsafe(call, *arguments)

    def _on_socket(self, attempt: Any) -> None:
        """Give the server that accepted a connection a limited time to establish the session."""
        self._loop.call_later(self._attempt_s, self._give_up, attempt)

    def _give_up(self, attempt: Any) -> None:
        if not self._client.connected and self._client._connection._socket is attempt:
            self.drop()

    def _on_kazoo_state(self, state: KazooState) -> None:
        if self._client.client_state == KeeperState.AUTH_FAILED:
            self.fail(Unauthorized("ZooKeeper rejects these credentials"))
        elif state == KazooState.CONNECTED and self._client.connected:
            self._connected.set()
        elif self._failure is None:
            self._connected.clear()
        if not self._closed:
            self._on_state(state)


class _Handler(SequentialThreadingHandler):  # type: ignore[misc]  # kazoo has no types
    """kazoo's handler, which can also use certificates from PKCS #12 files."""

    keystores = Keystores()

    def create_connection(self, *arguments: Any, **options: Any) -> Any:
        """Connect to a server, with the certificates from PKCS #12 files, if any."""
        with self.keystores.as_options() as own:
            return super().create_connection(*arguments, **options | own)


class _LoopHandler(_Handler):
    """kazoo's handler without its two threads for callbacks: watches are called on the loop."""

    def __init__(self, post: Callable[..., None], on_socket: Callable[[Any], None], attempt_s: float) -> None:
        super().__init__()
        self._post = post
        self._on_socket = on_socket
        self._attempt_s = attempt_s

    def create_connection(self, *arguments: Any, **options: Any) -> Any:
        """Connect to a server, within the time for an attempt. Then ``on_socket`` is called on the loop."""
        options["timeout"] = self._attempt_s
        connection = super().create_connection(*arguments, **options)
        self._post(self._on_socket, connection)
        return connection

    def start(self) -> None:
        """Do nothing: there are no threads."""

    def stop(self) -> None:
        """Do nothing: there are no threads."""

    def dispatch_callback(self, callback: Any) -> None:
        """Call a watch's function on the loop."""
        self._post(callback.func, *callback.args)


class _PendingResponse:
    """The future of a response, which kazoo's thread completes."""

    def __init__(self, connection: Connection) -> None:
        self.future: asyncio.Future[Any] = connection._loop.create_future()
        self._connection = connection

    def set(self, value: Any = None) -> None:
        """For kazoo: set the response."""
        self._connection.post(self._settle, value, None)

    def set_exception(self, error: Exception) -> None:
        """For kazoo: fail the request."""
        self._connection.post(self._settle, None, error)

    def _settle(self, value: Any, error: Exception | None) -> None:
        if self.future.done():
            return
        if error is not None:
            self.future.set_exception(error)
        else:
            self.future.set_result(value)


__all__ = ["Connection", "Endpoint", "KazooException", "ResponseLost", "Watcher"]
