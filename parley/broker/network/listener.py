"""A listener: its address, the address that it shares with other brokers, and the connections accepted on them.

Rules of this module:

* Connections beyond the quotas (``connection_quotas``) wait to be accepted, or are closed with a log line. A broker
  without a free place closes its socket on the shared address, so that the kernel gives connections to other brokers.
* One timer per listener closes connections that have sent nothing for ``connections.max.idle.ms``.
* The rate of log lines about clients is limited, so that garbage sent to the port cannot fill the disk.
"""

from __future__ import annotations

import asyncio
import logging
import math
import socket
from collections.abc import Callable
from dataclasses import replace
from typing import Any, Final, Protocol

from parley.broker.metrics.catalogue.clients import ListenerMetrics
from parley.broker.network.acceptor import Acceptor
from parley.broker.network.configured_limits import Limits
from parley.broker.network.connection import Connection
from parley.broker.network.connection_quotas import ConnectionQuotas, Evictable
from parley.broker.network.dispatch import Dispatcher
from parley.broker.network.handshakes import Handshakes
from parley.broker.network.load import Load
from parley.broker.network.request_context import ConnectedClient
from parley.broker.network.tls_channel import RECEIVE_BYTES, TlsChannel
from parley.broker.runtime.tasks import TaskSet
from parley.broker.security.principal import Principal
from parley.broker.security.sasl.login import SHOWN_NAME_MAX, Login, LoginRules
from parley.broker.security.session import ClientSession, anonymous
from parley.broker.security.tls.server import ServerTls
from parley.light_dataclasses import dataclass
from parley.storage.resource_exhaustion import reserve_for

_log = logging.getLogger(__name__)

SHARED_RETRY_S = 1.0
"""How long, in seconds, a listener waits before it tries to open the shared address again."""
CLOSED_LOGGED_PER_SECOND = 10
"""The number of closed connections that are logged individually in each second. The rest are only counted."""


class Security(Protocol):
    """A listener's current security requirements. A connection keeps the requirements that were in effect when it was
    accepted."""

    @property
    def tls(self) -> ServerTls | None:
        """The TLS settings of new connections; None without TLS."""

    @property
    def login_rules(self) -> LoginRules | None:
        """The SASL rules for new connections; None without SASL."""

    def identified(self, session: ClientSession) -> ClientSession:
        """Return the session with the principal that the operator's principal builder returns.

        Raises the errors of the principal builder.
        """


@dataclass(frozen=True, slots=True)
class _OpenToAll:
    tls: None = None
    login_rules: None = None

    def identified(self, session: ClientSession) -> ClientSession:
        return session


OPEN_TO_ALL: Final = _OpenToAll()
"""Neither TLS nor SASL (``PLAINTEXT``)."""


class Listener:
    """Accepts connections on one address, and owns them (``ConnectionOwner``)."""

    def __init__(
        self,
        name: str,
        dispatcher: Dispatcher,
        *,
        limits: Limits,
        load: Load,
        quotas: ConnectionQuotas,
        tasks: TaskSet,
        monotonic: Callable[[], float],
        security: Security = OPEN_TO_ALL,
        handshakes: Handshakes | None = None,
        is_broker: Callable[[ClientSession], bool] = lambda session: True,
    ) -> None:
        """``security`` defines how clients authenticate. All listeners of a broker share ``handshakes``.

        ``is_broker`` checks clients that identify themselves as brokers: connections of brokers are not evicted.
        """
        self.name = name
        self.dispatcher = dispatcher
        self.limits = limits
        self.load = load
        self.tasks = tasks
        self.monotonic = monotonic
        self.security = security
        self._handshakes = handshakes or Handshakes(None)
        self._is_broker = is_broker
        self._channels: dict[TlsChannel, ConnectedClient] = {}  # still in their handshakes
        self._receive_buffer = memoryview(bytearray(RECEIVE_BYTES)) if security.tls is not None else memoryview(b"")
        self.metrics = ListenerMetrics()
        self.port = 0
        """The bound port after ``start``, 0 before."""
        self.quotas = quotas
        self.throttled_connections = 0
        """The number of connections that are not read because their client is throttled."""
        self._connections: dict[Connection, None] = {}  # in order of arrival
        self._entered = 0
        self._acceptor: Acceptor | None = None
        self._shared: Acceptor | None = None
        self._open_shared: Callable[[], socket.socket] | None = None
        self._backlog = 0
        self._idle_timer: asyncio.TimerHandle | None = None
        self._all_closed: asyncio.Event = asyncio.Event()
        self._logged = 0
        self._logged_since = 0.0

    def __len__(self) -> int:
        """Return the number of connections that were accepted and have not ended."""
        return self._entered

    async def start(
        self, sock: socket.socket, *, backlog: int, open_shared: Callable[[], socket.socket] | None = None
    ) -> None:
        """Accept connections on a bound socket, which the listener now owns.

        ``open_shared`` returns a socket that is bound to the address shared with other brokers. Raises OSError if a
        socket cannot listen, and the errors of ``open_shared``.
        """
        self.port = sock.getsockname()[1]
        self.quotas.add(self)
        self._backlog = backlog
        self._acceptor = self._accepting(sock)
        if open_shared is not None:
            self._open_shared = open_shared
            self._shared = self._accepting(open_shared())
        self._note_certificate()
        self._watch_idle()

    def _accepting(self, sock: socket.socket) -> Acceptor:
        acceptor = Acceptor(
            sock,
            wait_s=self._wait_s,
            accepted=self._accepted,
            starved=self.quotas.close_least_active,
            name=self.name,
        )
        acceptor.start(self._backlog)
        return acceptor

    def _note_certificate(self) -> None:
        tls = self.security.tls
        self.metrics.certificate_expires_at = 0.0 if tls is None else tls.expires_at
        self.metrics.revocation_lists_expire_at = 0.0 if tls is None else tls.lists_expire_at

    def _wait_s(self) -> float:
        wait_s = self.quotas.wait_s(self.name, self.monotonic())
        if wait_s == math.inf:
            self.quotas.call_when_changed(self._resume)
            self._leave_shared()
        return wait_s

    def _resume(self) -> None:
        assert self._acceptor is not None
        self._acceptor.resume()
        if self._open_shared is None or self._shared is not None or self._wait_s() == math.inf:
            return
        try:
            self._shared = self._accepting(self._open_shared())
        except OSError as error:
            if (reserve := reserve_for(error)) is not None:
                reserve.make_room()
            _log.warning(
                "cannot listen on the address of bootstrap.listeners again", extra={"reason": str(error) or repr(error)}
            )
            asyncio.get_running_loop().call_later(SHARED_RETRY_S, self._resume)

    def _leave_shared(self) -> None:
        """Leave new connections of the shared address to the other brokers. The kernel resets those that waited."""
        shared, self._shared = self._shared, None
        if shared is not None:
            shared.close()

    def _accepted(self, sock: socket.socket, address: Any) -> None:
        host = str(address[0]).removeprefix("::ffff:")  # how a dual-stack listener shows IPv4 clients
        throttle_s = self.quotas.throttle_s(host, self.monotonic())
        if throttle_s > 0:
            self.quotas.hold(sock, throttle_s)
            self.metrics.rate_closed += 1
            return
        client = self._client(anonymous(host, self.name), int(address[1]))
        self.metrics.accepted += 1
        self._entered += 1
        refusal = self.quotas.enter(self.name, host)
        if refusal:
            self.metrics.refused += 1
            self._log("connection closed", client, refusal)
            sock.close()
            self._leave(client)
        else:
            self.tasks.start(self._connect(sock, client), name=f"connection of {host}")

    def _client(self, session: ClientSession, port: int) -> ConnectedClient:
        rules = self.security.login_rules
        if rules is None:
            return ConnectedClient(session, port)
        return ConnectedClient(session, port, Login(rules, session, lambda: self.security.login_rules))

    async def _connect(self, sock: socket.socket, client: ConnectedClient) -> None:
        if self.security.tls is not None:
            await self._connect_channel(sock, client, self.security.tls)
            return
        connection = Connection(self, client)
        try:
            await asyncio.get_running_loop().connect_accepted_socket(lambda: connection, sock)
        except (OSError, MemoryError) as error:  # usually the client has disconnected already
            if (reserve := reserve_for(error)) is not None:
                reserve.make_room()
            self._log("connection closed", client, str(error) or repr(error))
            sock.close()
            if connection not in self._connections:
                self._leave(client)

    async def _connect_channel(self, sock: socket.socket, client: ConnectedClient, tls: ServerTls) -> None:
        channel = TlsChannel(
            self,
            tls,
            buffer=self._receive_buffer,
            handshakes=self._handshakes,
            handshake_s=self.limits.login_s,
            host=client.client_host,
        )
        self._channels[channel] = client
        try:
            await asyncio.get_running_loop().connect_accepted_socket(lambda: channel, sock)
        except (OSError, MemoryError) as error:
            if (reserve := reserve_for(error)) is not None:
                reserve.make_room()
            self._log("connection closed", client, str(error) or repr(error))
            sock.close()
            self.ended(channel)

    def _leave(self, client: ConnectedClient) -> None:
        self._entered -= 1
        self.quotas.leave(client.client_host)

    def proceed(self) -> None:
        """Begin the requests that waited for ``Dispatcher.serve_all``."""
        for connection in tuple(self._connections):
            connection.proceed()

    def stop_accepting(self) -> None:
        """Close the listening sockets. Open connections stay open."""
        self._open_shared = None
        self._leave_shared()
        if self._acceptor is not None:
            self._acceptor.close()
        self.quotas.close_held()
        if self._idle_timer is not None:
            self._idle_timer.cancel()

    async def close(self, grace_s: float) -> None:
        """Stop accepting, let connections send pending responses for up to ``grace_s`` seconds, then abort the rest."""
        self.stop_accepting()
        for channel in tuple(self._channels):
            channel.abort()
        for connection in tuple(self._connections):
            connection.drain()
        if self._connections:
            self._all_closed.clear()
            try:
                await asyncio.wait_for(self._all_closed.wait(), grace_s)
            except TimeoutError:
                if self._connections:  # the last connection may have ended meanwhile
                    _log.warning(
                        "aborting connections at the end of the grace period",
                        extra={"listener": self.name, "connections": len(self._connections)},
                    )
                for connection in tuple(self._connections):
                    connection.abort()
                await self._all_closed.wait()

    # --- ChannelOwner ---

    def agreed(self, channel: TlsChannel, principal: Principal) -> Connection:
        """Return the connection of a client whose TLS handshake has succeeded.

        Raises the errors of ``principal.builder.class``.
        """
        client = self._channels[channel]
        if client.login is None:
            client.session = self.security.identified(replace(client.session, principal=principal))
            self.metrics.authentications += 1
        del self._channels[channel]
        return Connection(self, client)

    def handshake_failed(self, channel: TlsChannel, reason: str) -> None:
        """Count and log a failed TLS handshake."""
        self.metrics.failed_authentications += 1
        self._log("authentication failed", self._channels[channel], reason)

    def ended(self, channel: TlsChannel) -> None:
        """Remove a channel that ended before its connection existed."""
        client = self._channels.pop(channel, None)
        if client is not None:
            self._leave(client)

    # --- ConnectionOwner ---

    def connected(self, connection: Connection) -> None:
        """Add a connection whose transport is ready."""
        self._connections[connection] = None
        self.metrics.connections += 1

    def disconnected(self, connection: Connection, client: ConnectedClient) -> None:
        """Remove a connection that has ended."""
        self._connections.pop(connection, None)
        self.metrics.connections -= 1
        self._leave(client)
        if not self._connections:
            self._all_closed.set()

    def logged_in(self, client: ConnectedClient, *, again: bool) -> None:
        """Identify the client and count its login; ``again`` is True for a re-authentication.

        Raises the errors of ``principal.builder.class``.
        """
        login = client.login
        assert login is not None, "a client without a login does not log in"
        client.session = self.security.identified(login.session)
        if again:
            self.metrics.reauthentications += 1
        else:
            self.metrics.authentications += 1
            if not login.can_reauthenticate and client.session.expires_at is not None:
                self.metrics.authentications_without_reauthentication += 1

    def login_failed(self, client: ConnectedClient, reason: str) -> None:
        """Count and log a failed login. The connection is closed later, to slow down password guessing."""
        login = client.login
        if login is not None and login.is_reauthentication:
            self.metrics.failed_reauthentications += 1
        else:
            self.metrics.failed_authentications += 1
        facts = {} if login is None else {"mechanism": login.mechanism, "user": login.user[:SHOWN_NAME_MAX]}
        self._log("authentication failed", client, reason, **facts)

    def session_expired(self) -> None:
        """Count a connection that is closed because its client did not re-authenticate in time."""
        self.metrics.expired += 1

    def muted(self, change: int) -> None:
        """Add ``change`` (1 or -1) to the number of throttled connections."""
        self.throttled_connections += change

    def report_closed(self, client: ConnectedClient, reason: str) -> None:
        """Count and log a connection that the broker closes because its client misbehaved."""
        self.metrics.killed += 1
        self._log("connection closed", client, reason)

    def _log(self, event: str, client: ConnectedClient, reason: str, **facts: str) -> None:
        now = self.monotonic()
        if now - self._logged_since >= 1:
            if self._logged > CLOSED_LOGGED_PER_SECOND:
                _log.warning("more connections were closed", extra={"count": self._logged - CLOSED_LOGGED_PER_SECOND})
            self._logged, self._logged_since = 0, now
        self._logged += 1
        if self._logged <= CLOSED_LOGGED_PER_SECOND:
            peer = f"{client.client_host}:{client.client_port}"
            _log.warning(event, extra={"listener": self.name, "peer": peer, "reason": reason, **facts})

    # --- Idle connections ---

    def idle_since(self) -> float:
        """Return when the longest-idle connection was last active, in monotonic seconds; infinity if none is idle."""
        return min((each.last_active for each in self._connections if not each.is_busy), default=math.inf)

    def close_idlest(self) -> None:
        """Close the connection that has been idle longest, to make room for an inter-broker connection. Does nothing if
        no connection is idle."""
        idle = [each for each in self._connections if not each.is_busy]
        if idle:
            self.metrics.idle_closed += 1
            min(idle, key=lambda each: each.last_active).close()

    def evictable(self) -> list[Evictable]:
        """Return the connections that may be closed to make room. Connections of other brokers are not among them."""
        return [*self._channels, *(each for each in self._connections if not self._is_spared(each))]

    def _is_spared(self, connection: Connection) -> bool:
        """Return True if the client identifies itself as a broker and is authorized as one."""
        return connection.is_peer and not connection.is_slow_to_log_in and self._is_broker(connection.session)

    def evict(self, connection: Evictable) -> None:
        """Close one of the ``evictable`` connections, because the process needs its file descriptor. Idempotent."""
        if not connection.is_closed:
            self.metrics.evicted += 1
            connection.abort()

    def _watch_idle(self) -> None:
        interval = max(0.05, min(self.limits.idle_s / 4, 30.0))
        self._idle_timer = asyncio.get_running_loop().call_later(interval, self._close_idle)

    def _close_idle(self) -> None:
        before = self.monotonic() - self.limits.idle_s
        for connection in tuple(self._connections):
            if connection.is_idle(before):
                self.metrics.idle_closed += 1
                connection.close()
        self._note_certificate()
        self._watch_idle()


def bind(
    host: str, port: int, *, send_buffer: int = -1, receive_buffer: int = -1, is_shared: bool = False
) -> socket.socket:
    """Return a bound socket. Host "" means every interface, port 0 any free port, and a buffer size of -1 the default.
    If ``is_shared`` is true, other processes of the same user can bind to the same address.

    The options are set before the socket is bound: accepted sockets inherit them, and the TCP handshake fixes the
    receive window. Raises OSError; its message contains the address.
    """
    if not host:
        host = "::" if socket.has_dualstack_ipv6() else "0.0.0.0"
    try:
        family, kind, proto, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    except socket.gaierror as error:
        raise socket.gaierror(error.errno, f"cannot listen on {host}:{port}: {error.strerror}") from error
    sock = socket.socket(family, kind, proto)
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if is_shared:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        if send_buffer >= 0:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, send_buffer)
        if receive_buffer >= 0:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
        if host == "::":
            sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
        sock.bind(address)
        sock.setblocking(False)
    except OSError as error:
        sock.close()
        raise OSError(error.errno, f"cannot listen on {host}:{port}: {error.strerror}") from error
    return sock
