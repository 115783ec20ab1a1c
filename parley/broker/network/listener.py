"""A listener: one address, its connections, and the limits that all listeners of a broker share.

Rules of this module:

* What is beyond the limits of :mod:`parley.broker.network.connection_quotas` waits to be accepted, or is closed with a log
  line.
* Connections that have asked nothing for ``connections.max.idle.ms`` are closed by one timer per listener.
* Complaints about peers are log lines at a bounded rate: garbage on the port cannot fill the disk.
"""

from __future__ import annotations

import asyncio
import logging
import math
import socket
from collections.abc import Callable
from typing import Any

from parley.broker.metrics import ListenerMetrics
from parley.broker.network.acceptor import Acceptor
from parley.broker.network.connection import Connection
from parley.broker.network.connection_quotas import ConnectionQuotas, Limits
from parley.broker.network.dispatch import Dispatcher, Peer
from parley.broker.runtime.tasks import TaskSet

_log = logging.getLogger(__name__)

COMPLAINTS_PER_SECOND = 10


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


class Listener:
    """Accepts connections on one address. Also what its connections see of the broker."""

    def __init__(
        self,
        name: str,
        dispatcher: Dispatcher,
        *,
        limits: Limits,
        load: Load,
        admission: ConnectionQuotas,
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
        self._connections: dict[Connection, None] = {}  # in the order of their coming
        self._entered = 0
        self._acceptor: Acceptor | None = None
        self._idle_timer: asyncio.TimerHandle | None = None
        self._all_closed: asyncio.Event = asyncio.Event()
        self._complaints = 0
        self._complaints_since = 0.0

    def __len__(self) -> int:
        """How many connections have been accepted and not ended."""
        return self._entered

    async def start(self, sock: socket.socket, *, backlog: int) -> None:
        """Accept connections on a bound socket, which the listener owns from now on."""
        self.port = sock.getsockname()[1]
        self._admission.add(self)
        self._acceptor = Acceptor(sock, wait_s=self._wait_s, accepted=self._accepted, name=self.name)
        self._acceptor.start(backlog)
        self._watch_idle()

    def _wait_s(self) -> float:
        assert self._acceptor is not None
        wait_s = self._admission.wait_s(self.name, self.monotonic())
        if wait_s == math.inf:
            self._admission.call_when_changed(self._acceptor.go_on)
        return wait_s

    def _accepted(self, sock: socket.socket, address: Any) -> None:
        host = str(address[0]).removeprefix("::ffff:")  # as IPv4 peers appear on a listener for both
        peer = Peer(host, int(address[1]), self.name, "User:ANONYMOUS")
        self.metrics.accepted += 1
        self._entered += 1
        refusal = self._admission.enter(self.name, host)
        if refusal:
            self.metrics.refused += 1
            self._log(peer, refusal)
            sock.close()
            self._leave(peer)
        else:
            self.tasks.start(self._connect(sock, peer), name=f"connection of {host}")

    async def _connect(self, sock: socket.socket, peer: Peer) -> None:
        connection = Connection(self, peer)
        try:
            await asyncio.get_running_loop().connect_accepted_socket(lambda: connection, sock)
        except OSError as error:  # it has gone away again
            self._log(peer, str(error))
            sock.close()
            if connection not in self._connections:
                self._leave(peer)

    def _leave(self, peer: Peer) -> None:
        self._entered -= 1
        self._admission.leave(peer.client_host)

    def stop_accepting(self) -> None:
        """Close the listening socket; open connections stay."""
        if self._acceptor is not None:
            self._acceptor.close()
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

    # For its connections.

    def made(self, connection: Connection) -> None:
        """A connection has its transport."""
        self._connections[connection] = None
        self.metrics.connections += 1

    def forget(self, connection: Connection, peer: Peer) -> None:
        """A connection has ended."""
        self._connections.pop(connection, None)
        self.metrics.connections -= 1
        self._leave(peer)
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

    def idle_since(self) -> float:
        """When the connection idle longest was last active, in monotonic seconds; infinite if there is none."""
        return min((each.last_active for each in self._connections if not each.is_busy), default=math.inf)

    def close_idlest(self) -> None:
        """Close the connection that is idle longest, in favour of one between brokers."""
        idle = [each for each in self._connections if not each.is_busy]
        if idle:
            self.metrics.idle_closed += 1
            min(idle, key=lambda each: each.last_active).close()

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
