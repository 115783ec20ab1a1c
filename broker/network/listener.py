"""A listener: one address, its connections, and the limits that all listeners of a broker share.

Rules of this module:

* A connection beyond a limit is closed as soon as it is accepted, with a log line.
* Connections that have asked nothing for ``connections.max.idle.ms`` are closed by one timer per listener.
* Complaints about peers are log lines at a bounded rate: garbage on the port cannot fill the disk.
"""

from __future__ import annotations

import asyncio
import logging
import socket
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from broker.metrics import ListenerMetrics
from broker.network.connection import Connection
from broker.network.dispatch import Dispatcher, Peer
from broker.tasks import TaskSet

_log = logging.getLogger(__name__)

COMPLAINTS_PER_SECOND = 10
UNLIMITED = 2**31 - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """What one broker takes on, under the names of its configuration. ``queued_bytes`` < 0 sets no limit."""

    request_bytes: int = 100 << 20
    queued_requests: int = 500
    queued_bytes: int = -1
    connections: int = UNLIMITED
    connections_per_ip: int = UNLIMITED
    connections_per_ip_overrides: Mapping[str, int] = field(default_factory=dict)
    idle_s: float = 600.0


class Load:
    """What the broker is busy with, against its limits.

    Requests being worked on, not those that merely wait for an event (``queued.max.requests``): at the limit
    connections begin no more. Bytes of large requests being received or worked on (``queued.max.request.bytes``; small
    ones are bounded by their number): a connection whose large request would exceed the limit reads no further, unless
    it is the only one. Whoever had to wait goes on when something has ended.
    """

    def __init__(self, requests_max: int, bytes_max: int) -> None:
        self._requests_max = requests_max
        self._bytes_max = bytes_max
        self._waiting: list[Callable[[], None]] = []
        self.requests_in_progress = 0
        self.request_bytes_held = 0

    @property
    def is_full(self) -> bool:
        """Whether no further request may be begun."""
        return self.requests_in_progress >= self._requests_max

    def begin(self) -> None:
        """Work on a request begins."""
        self.requests_in_progress += 1

    def end(self) -> None:
        """Work on a request has ended."""
        self.requests_in_progress -= 1
        self._ease()

    def reserve(self, size: int) -> bool:
        """Take memory for a large request; False if it must wait."""
        held = self.request_bytes_held
        if held and 0 <= self._bytes_max < held + size:
            return False
        self.request_bytes_held = held + size
        return True

    def release(self, size: int) -> None:
        """Give back what was reserved."""
        self.request_bytes_held -= size
        self._ease()

    def call_when_eased(self, eased: Callable[[], None]) -> None:
        """Call ``eased`` once, when something has ended; it must look for itself whether there is room."""
        self._waiting.append(eased)

    def _ease(self) -> None:
        if self._waiting:
            waiting, self._waiting = self._waiting, []
            for eased in waiting:
                eased()


class Admission:
    """Counts the connections of a broker over all its listeners, and refuses those beyond the limits."""

    def __init__(self, limits: Limits) -> None:
        self.limits = limits
        """May be replaced; connections that are there stay."""
        self._by_host: Counter[str] = Counter()
        self.connections = 0

    def enter(self, host: str) -> str:
        """Count a connection in; :meth:`leave` must follow. Answers why it must be refused, "" if it may stay."""
        self.connections += 1
        self._by_host[host] += 1
        allowed = self.limits.connections_per_ip_overrides.get(host, self.limits.connections_per_ip)
        if self._by_host[host] > allowed:
            return f"more than {allowed} connections from this address (max.connections.per.ip)"
        if self.connections > self.limits.connections:
            return f"more than {self.limits.connections} connections (max.connections)"
        return ""

    def leave(self, host: str) -> None:
        self.connections -= 1
        self._by_host[host] -= 1
        if not self._by_host[host]:
            del self._by_host[host]


class Listener:
    """Accepts connections on one address. Also what its connections see of the broker."""

    def __init__(
        self,
        name: str,
        dispatcher: Dispatcher,
        *,
        limits: Limits,
        load: Load,
        admission: Admission,
        tasks: TaskSet,
        monotonic: Callable[[], float],
    ) -> None:
        self.name = name
        self.dispatcher = dispatcher
        self.limits = limits
        self.load = load
        self.tasks = tasks
        self.monotonic = monotonic
        self.metrics = ListenerMetrics()
        self.port = 0
        """The port bound, once started."""
        self._admission = admission
        self._connections: set[Connection] = set()
        self._server: asyncio.Server | None = None
        self._idle_timer: asyncio.TimerHandle | None = None
        self._all_closed: asyncio.Event = asyncio.Event()
        self._complaints = 0
        self._complaints_since = 0.0

    def __len__(self) -> int:
        """How many connections are open."""
        return len(self._connections)

    async def start(self, sock: socket.socket, *, backlog: int) -> None:
        """Accept connections on a bound socket, which the listener owns from now on."""
        loop = asyncio.get_running_loop()
        self._server = await loop.create_server(lambda: Connection(self), sock=sock, backlog=backlog)
        self.port = sock.getsockname()[1]
        self._watch_idle()

    def stop_accepting(self) -> None:
        """Close the listening socket; open connections stay."""
        if self._server is not None:
            self._server.close()
        if self._idle_timer is not None:
            self._idle_timer.cancel()

    async def close(self, grace_s: float) -> None:
        """Stop accepting, let every connection send the answers it owes within ``grace_s``, then close them all."""
        self.stop_accepting()
        for connection in tuple(self._connections):
            connection.finish()
        if self._connections:
            self._all_closed.clear()
            try:
                await asyncio.wait_for(self._all_closed.wait(), grace_s)
            except TimeoutError:
                _log.warning(
                    "connections cut at the end of the grace period",
                    extra={"listener": self.name, "connections": len(self._connections)},
                )
                for connection in tuple(self._connections):
                    connection.abort()
                await self._all_closed.wait()
        if self._server is not None:
            await self._server.wait_closed()

    # For its connections.

    def admit(self, connection: Connection, peer: Peer) -> bool:
        """Count a connection in; False if it must be closed at once."""
        self._connections.add(connection)
        self.metrics.connections += 1
        self.metrics.accepted += 1
        refusal = self._admission.enter(peer.client_host)
        if refusal:
            self.metrics.refused += 1
            self._log(peer, refusal)
        return not refusal

    def forget(self, connection: Connection, peer: Peer) -> None:
        """Count a connection out."""
        self._connections.discard(connection)
        self.metrics.connections -= 1
        self._admission.leave(peer.client_host)
        if not self._connections:
            self._all_closed.set()

    def complain(self, peer: Peer, reason: str) -> None:
        """Count and log a connection that is closed because of what its peer did."""
        self.metrics.killed += 1
        self._log(peer, reason)

    def _log(self, peer: Peer, reason: str) -> None:
        now = self.monotonic()
        if now - self._complaints_since >= 1:
            if self._complaints > COMPLAINTS_PER_SECOND:
                _log.warning("more connections closed", extra={"count": self._complaints - COMPLAINTS_PER_SECOND})
            self._complaints, self._complaints_since = 0, now
        self._complaints += 1
        if self._complaints <= COMPLAINTS_PER_SECOND:
            facts = {"listener": self.name, "peer": f"{peer.client_host}:{peer.client_port}", "reason": reason}
            _log.warning("connection closed", extra=facts)

    # Idle connections.

    def _watch_idle(self) -> None:
        interval = max(0.05, min(self.limits.idle_s / 4, 30.0))
        self._idle_timer = asyncio.get_running_loop().call_later(interval, self._close_idle)

    def _close_idle(self) -> None:
        before = self.monotonic() - self.limits.idle_s
        for connection in tuple(self._connections):
            if connection.is_idle(before):
                self.metrics.idle_closed += 1
                connection.close()
        self._watch_idle()


def bind(host: str, port: int, *, send_buffer: int = -1, receive_buffer: int = -1) -> socket.socket:
    """A bound socket; "" binds every interface, port 0 any free one, a buffer of -1 leaves the size to the system.

    The options are set here because accepted sockets inherit them, and the receive window is settled by the handshake.
    Raises OSError naming the address.
    """
    if not host:
        host = "::" if socket.has_dualstack_ipv6() else "0.0.0.0"
    family, kind, proto, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    sock = socket.socket(family, kind, proto)
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
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
