"""One ZooKeeper session, as asyncio sees it: kazoo's thread on one side, futures on the other.

kazoo runs one thread for each connection, reconnects by itself, and keeps what is asked of it meanwhile in a queue
without bound or deadline. So here nothing is asked while there is no connection, what is asked at once is limited, and
an answer that stays out breaks the connection: kazoo's own pings do not notice while requests are being sent. It also
gives one server that does not answer a whole session timeout to connect, in which the session would be lost; here each
attempt gets a part of it.
"""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any

from kazoo.client import KazooClient
from kazoo.exceptions import AuthFailedError, ConnectionClosedError, ConnectionLoss, KazooException, SessionExpiredError
from kazoo.handlers.threading import SequentialThreadingHandler
from kazoo.protocol.serialization import Sync
from kazoo.protocol.states import KazooState, KeeperState, WatchedEvent
from kazoo.retry import KazooRetry

from parley.consensus.errors import Permanent, Unauthorized, Unavailable
from parley.consensus.keystores import Keystores

READ_FRACTION = 2 / 3
"""Of a session's timeout: a server that has not answered for so long is given up, as by every client of ZooKeeper."""
MAIN_TIMEOUT_MS = 6000
"""The session timeout of a connection that holds nothing ephemeral."""
_IN_FLIGHT_MAX = 128
_STOP_S = 5.0
_FORGOTTEN_S = 1.0
_ATTEMPT_S = 2.0

log = logging.getLogger("parley.consensus.zookeeper")
_kazoo_log = logging.getLogger("parley.consensus.zookeeper.client")
# At DEBUG kazoo writes the data of every request, secrets included.
_kazoo_log.addFilter(lambda record: record.levelno >= logging.INFO)

Watcher = Callable[[WatchedEvent], None]


@dataclass(frozen=True, slots=True)
class Endpoint:
    """Where the servers are and who we are to them.

    :ivar hosts: ``host:port`` of each, joined by commas.
    :ivar auth: pairs of scheme and credential, as ``digest``, ``user:password``.
    :ivar sasl: options of SASL as pure-sasl takes them; ``None`` for none.
    :ivar tls: kazoo's TLS options; empty for none.
    :ivar keystores: certificates that are not in the files which those name.
    """

    hosts: str
    auth: tuple[tuple[str, str], ...] = field(default=(), repr=False)
    sasl: dict[str, str] | None = field(default=None, repr=False)
    tls: dict[str, Any] = field(default_factory=dict, repr=False)
    keystores: Keystores = field(default=Keystores(), repr=False)

    def client(self, timeout_ms: int, handler: _Handler) -> KazooClient:
        """A client of kazoo, not started, that asks for this session timeout."""
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
    """kazoo's own client, for tools. Blocks.

    :raises Unavailable: no server answers in time.
    """
    client = endpoint.client(round(within_s * 1000), _Handler())
    try:
        client.start(within_s)
    except client.handler.timeout_exception as error:
        raise Unavailable(f"no ZooKeeper server of {endpoint.hosts} answers") from error
    try:
        yield client
    finally:
        client.stop()
        client.close()


def connect(endpoint: Endpoint, host: str, port: int, timeout_s: float) -> Any:
    """A socket connected to one of the servers, with TLS where that is meant. Blocks.

    :raises OSError: it does not answer, or not to us.
    """
    handler = _Handler()
    handler.keystores = endpoint.keystores
    try:
        return handler.create_connection((host, port), timeout=timeout_s, hostname=host, **endpoint.tls)
    except handler.timeout_exception as error:
        raise TimeoutError("no answer") from error


class LostAnswer(Exception):
    """The connection broke before the answer came; whether the request was carried out is not known."""


class Connection:
    """One session with ZooKeeper. ``on_state`` is called on the loop with True when connected, False when not, and
    ``None`` when the session of ZooKeeper is over; kazoo then begins another one by itself.

    :param pings: whether kazoo's thread keeps the session by itself. Without it only calls do, so that the session of
        a process whose event loop hangs runs out.
    """

    def __init__(
        self, endpoint: Endpoint, timeout_ms: int, on_state: Callable[[bool | None], None], *, pings: bool = True
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
        """Begin to connect."""
        self._client.start_async()

    async def connected(self, within_s: float) -> None:
        """Wait for the connection.

        :raises Unavailable: it did not come in time.
        :raises Permanent: it never will, for this reason.
        """
        if not self._connected.is_set() and not self._closed:
            with suppress(TimeoutError):
                await asyncio.wait_for(self._connected.wait(), within_s)
        if self._failure is not None:
            raise self._failure
        if not self._connected.is_set() or self._closed:
            raise Unavailable("there is no connection to ZooKeeper")

    async def call(self, request: Any, within_s: float) -> Any:
        """Ask and wait for the answer.

        :param within_s: how long to wait for a connection.
        :raises Unavailable: there is none; nothing was sent.
        :raises LostAnswer: it broke meanwhile.
        :raises Permanent: there never will be one.
        :raises KazooException: ZooKeeper answered with an error.
        """
        async with self._slots:
            await self.connected(within_s)
            return await self._ask(request)

    async def sync_and_call(self, request: Any, within_s: float) -> Any:
        """``call``, of a server that has caught up with its leader."""
        async with self._slots:
            await self.connected(within_s)
            synced = asyncio.ensure_future(self._ask(Sync("/")))
            try:
                answer = await self._ask(request)
                await synced
            except BaseException:
                synced.cancel()
                with suppress(BaseException):
                    await synced
                raise
            return answer

    async def _ask(self, request: Any) -> Any:
        answer = _Answer(self)
        deadline = self._loop.call_later(self.timeout_ms / 1000 * READ_FRACTION, self._overdue, answer)
        try:
            self._client._call(request, answer)
            return await answer.future
        except (ConnectionLoss, SessionExpiredError, ConnectionClosedError) as error:
            if not self._client.connected and self._failure is None:
                self._connected.clear()  # before kazoo says so: it answers what was pending first
            raise LostAnswer(f"the connection to ZooKeeper broke: {type(error).__name__}") from error
        except AuthFailedError as error:
            raise Unauthorized("ZooKeeper refuses these credentials") from error
        finally:
            deadline.cancel()

    def _overdue(self, answer: _Answer) -> None:
        """Break the connection that owes an answer; and if kazoo has forgotten who waits for it, tell him ourselves."""
        self.drop()
        self._loop.call_later(_FORGOTTEN_S, answer.set_exception, ConnectionLoss())

    @property
    def is_connected(self) -> bool:
        """Whether there is a connection now."""
        return self._connected.is_set() and self._failure is None

    def fail(self, failure: Permanent) -> None:
        """Nothing can come of this connection any more; nobody waits for it, and every call raises this."""
        self._failure = self._failure or failure
        self._connected.set()

    def drop(self) -> None:
        """Break the connection; kazoo makes another one."""
        with suppress(OSError, AttributeError):
            self._client._connection._socket.shutdown(socket.SHUT_RDWR)

    async def close(self) -> None:
        """End the session and the thread; an absent server is no error."""
        await self._end(self._client.stop)

    async def abandon(self) -> None:
        """End the thread without a word to the server."""

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
            with suppress(Exception):  # a server that cannot be reached; the thread ends by itself
                stop()
                self._client.close()

        ended = asyncio.ensure_future(asyncio.to_thread(end))
        done, _ = await asyncio.wait([ended], timeout=_STOP_S)
        if not done:
            self.drop()
            log.warning("ZooKeeper did not answer the farewell; its session runs out by itself")

    def post(self, call: Callable[..., object], *arguments: object) -> None:
        """From any thread: make this call on the loop."""
        with suppress(RuntimeError):  # the loop is closed
            self._loop.call_soon_threadsafe(call, *arguments)

    def _on_socket(self, attempt: Any) -> None:
        """A server took the connection; it has to make the session, too, before long."""
        self._loop.call_later(self._attempt_s, self._give_up, attempt)

    def _give_up(self, attempt: Any) -> None:
        if not self._client.connected and self._client._connection._socket is attempt:
            self.drop()

    def _on_kazoo_state(self, state: KazooState) -> None:
        if self._client.client_state == KeeperState.AUTH_FAILED:
            self.fail(Unauthorized("ZooKeeper refuses these credentials"))
        elif state == KazooState.CONNECTED and self._client.connected:
            self._connected.set()
        elif self._failure is None:
            self._connected.clear()
        if not self._closed:
            self._on_state({KazooState.CONNECTED: True, KazooState.SUSPENDED: False}.get(state))


class _Handler(SequentialThreadingHandler):  # type: ignore[misc]  # kazoo has no types
    """kazoo's handler, and the certificates that are in no file it can read."""

    keystores = Keystores()

    def create_connection(self, *arguments: Any, **options: Any) -> Any:
        """Connect to a server."""
        with self.keystores.as_options() as own:
            return super().create_connection(*arguments, **options | own)


class _LoopHandler(_Handler):
    """kazoo's handler without its two threads for callbacks: watches are told on the loop."""

    def __init__(self, post: Callable[..., None], on_socket: Callable[[Any], None], attempt_s: float) -> None:
        super().__init__()
        self._post = post
        self._on_socket = on_socket
        self._attempt_s = attempt_s

    def create_connection(self, *arguments: Any, **options: Any) -> Any:
        """Connect to a server."""
        options["timeout"] = self._attempt_s
        connection = super().create_connection(*arguments, **options)
        self._post(self._on_socket, connection)
        return connection

    def start(self) -> None:
        """There is nothing to start."""

    def stop(self) -> None:
        """There is nothing to stop."""

    def dispatch_callback(self, callback: Any) -> None:
        """Tell a watch."""
        self._post(callback.func, *callback.args)


class _Answer:
    """Where kazoo's thread puts the answer to a request."""

    def __init__(self, connection: Connection) -> None:
        self.future: asyncio.Future[Any] = connection._loop.create_future()
        self._connection = connection

    def set(self, value: Any = None) -> None:
        """For kazoo: the answer."""
        self._connection.post(self._settle, value, None)

    def set_exception(self, error: Exception) -> None:
        """For kazoo: what went wrong."""
        self._connection.post(self._settle, None, error)

    def _settle(self, value: Any, error: Exception | None) -> None:
        if self.future.done():
            return
        if error is not None:
            self.future.set_exception(error)
        else:
            self.future.set_result(value)


__all__ = ["Connection", "Endpoint", "KazooException", "LostAnswer", "Watcher"]
