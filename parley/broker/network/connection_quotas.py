"""Connection quotas: which connections a broker accepts, how many, and how fast (KIP-402, KIP-612).

Rules of this module:

* If an address has too many connections (``max.connections.per.ip``), a new one is accepted and closed immediately. If
  an address opens connections too fast (``connection_creation_rate``), a new one is closed after a delay.
* All other excess connections wait in the backlog until a connection ends or the rate allows one more. This applies to
  ``max.connections`` and ``max.connection.creation.rate``, of the broker and of a listener.
* If there is more than one listener, the broker's limits do not delay the inter-broker listener. For each of its
  connections beyond ``max.connections``, the longest-idle connection of another listener is closed.
* If there are more connections than file descriptors allow (``descriptors_max``), connections of any listener are
  closed, except those of other brokers: first of clients that are slow to log in, then the longest idle. If no
  descriptor is left, connections that wait to be closed because of their address's rate are closed before all others.
"""

from __future__ import annotations

import math
import socket
from collections import Counter
from collections.abc import Callable, Sequence
from heapq import nsmallest
from typing import Protocol

from parley.broker.network.configured_limits import UNLIMITED, Limits, ListenerLimits
from parley.broker.network.refused_connections import RefusedConnections

EVICTED_SHARE = 50
"""About one in this many connections is closed at a time, and at least one, so that a flood of new connections does not
cause a search for each of them."""


class Evictable(Protocol):
    """A connection that may be closed to make room."""

    @property
    def is_busy(self) -> bool:
        """True if the client awaits a response, or has not completely read one."""
        ...

    @property
    def is_slow_to_log_in(self) -> bool:
        """True if the client has not authenticated within a time that is enough for every well-behaved client."""
        ...

    @property
    def last_active(self) -> float:
        """When the client last sent something, in monotonic seconds."""
        ...

    @property
    def is_closed(self) -> bool:
        """True if the connection is closing or has closed."""
        ...

    def abort(self) -> None:
        """Close the connection immediately."""
        ...


class ListenerConnections(Protocol):
    """The connections of one listener."""

    @property
    def name(self) -> str: ...

    def __len__(self) -> int: ...

    def idle_since(self) -> float:
        """Return when the longest-idle connection was last active, in monotonic seconds; infinity if none is idle."""
        ...

    def close_idlest(self) -> None:
        """Close the connection that has been idle longest. Does nothing if no connection is idle."""
        ...

    def evictable(self) -> Sequence[Evictable]:
        """Return the connections that may be closed to make room."""
        ...

    def evict(self, connection: Evictable) -> None:
        """Close one of the ``evictable`` connections."""
        ...


class HostRates(Protocol):
    """Limits on how fast each address may open connections (``connection_creation_rate``)."""

    def open(self, host: str, now_s: float) -> float:
        """Count a new connection. Returns 0 if it may be served.

        Otherwise it is not counted, and must be closed after the returned number of seconds.
        """
        ...


def _worth(connection: Evictable) -> tuple[bool, bool, float]:
    """Return the sort key for eviction: the connection with the lowest key is closed first."""
    return not connection.is_slow_to_log_in, connection.is_busy, connection.last_active


class ConnectionRate:
    """A limit in connections per second. After an idle second, one second's worth of connections is accepted at
    once."""

    def __init__(self) -> None:
        self._left = math.inf
        self._at = 0.0

    def wait_s(self, per_second: int, now_s: float) -> float:
        """Return the number of seconds for which no connection may be accepted under a limit of ``per_second``; 0 if
        one may be accepted now."""
        self._left = min(float(per_second), self._left + (now_s - self._at) * per_second)
        self._at = now_s
        return 0.0 if self._left >= 1 else (1 - self._left) / per_second

    def take(self) -> None:
        """Count an accepted connection."""
        self._left -= 1


class ConnectionQuotas:
    """Counts a broker's connections on all listeners, and delays or refuses connections beyond the limits."""

    def __init__(self, limits: Limits, inter_broker_listener: str = "", rates_by_host: HostRates | None = None) -> None:
        """``rates_by_host`` limits how fast addresses may open connections; None means no limits."""
        self.connections = 0
        self.descriptors_max = UNLIMITED
        """The number of connections that the process's limit of file descriptors allows."""
        self._limits = limits
        self._inter_broker_listener = inter_broker_listener
        self._by_host: Counter[str] = Counter()
        self._listeners: dict[str, ListenerConnections] = {}
        self._rate = ConnectionRate()
        self._rates: dict[str, ConnectionRate] = {}
        self._rates_by_host = rates_by_host
        self._waiting: list[Callable[[], None]] = []
        self._throttled = RefusedConnections()

    @property
    def limit(self) -> int:
        """The maximum number of connections of this broker."""
        return min(self._limits.connections, self.descriptors_max)

    @property
    def limits(self) -> Limits:
        """The current limits. New limits do not close existing connections."""
        return self._limits

    @limits.setter
    def limits(self, limits: Limits) -> None:
        self._limits = limits
        self._wake()

    def add(self, listener: ListenerConnections) -> None:
        """Apply the quotas to a listener."""
        self._listeners[listener.name] = listener
        self._rates[listener.name] = ConnectionRate()

    def wait_s(self, listener: str, now_s: float) -> float:
        """Return the number of seconds for which a listener must not accept connections. Infinity means until
        ``call_when_changed`` calls back."""
        limits, own = self._limits, self._limits.by_listener.get(listener, ListenerLimits())
        if len(self._listeners[listener]) >= own.connections:
            return math.inf
        wait_s = self._rates[listener].wait_s(own.connection_rate, now_s)
        if self._is_protected(listener):
            return wait_s
        if self.connections >= limits.connections:
            return math.inf
        return max(wait_s, self._rate.wait_s(limits.connection_rate, now_s))

    def _is_protected(self, listener: str) -> bool:
        return listener == self._inter_broker_listener and len(self._listeners) > 1

    def throttle_s(self, host: str, now_s: float) -> float:
        """Count a new connection of an address. Returns 0 if it may be served.

        Otherwise the caller must close it after the returned number of seconds. It is not counted, and ``enter`` must
        not be called for it.
        """
        return 0.0 if self._rates_by_host is None else self._rates_by_host.open(host, now_s)

    def enter(self, listener: str, host: str) -> str:
        """Count an accepted connection. Returns an empty string, or the reason why the caller must close the
        connection. In both cases, the caller must call ``leave`` when the connection has ended."""
        self.connections += 1
        self._by_host[host] += 1
        self._rates[listener].take()
        if not self._is_protected(listener):
            self._rate.take()
        allowed = self._limits.connections_per_ip_overrides.get(host, self._limits.connections_per_ip)
        if self._by_host[host] > allowed:
            return f"more than {allowed} connections from this address (max.connections.per.ip)"
        if self.connections > self._limits.connections and self._is_protected(listener):
            others = [other for name, other in self._listeners.items() if name != listener]
            min(others, key=lambda other: other.idle_since()).close_idlest()
        self.keep_to_descriptors()
        return ""

    def keep_to_descriptors(self) -> None:
        """Close connections if there are more than ``descriptors_max``."""
        if self.connections > self.descriptors_max:
            self._evict(self.connections - self.descriptors_max)

    def hold(self, sock: socket.socket, seconds: float) -> None:
        """Close a socket after ``seconds``, the result of ``throttle_s`` for it, or earlier if descriptors run
        short."""
        self._throttled.hold(sock, seconds, self.descriptors_max)

    def close_held(self) -> None:
        """Close the unserved sockets. Idempotent."""
        self._throttled.close()

    def close_least_active(self, count: int = 1) -> None:
        """Free ``count`` descriptors: close unserved sockets and, if they are too few, connections.

        If connections must be closed, at least one of every ``EVICTED_SHARE`` is closed. Clients that are slow to log
        in come first, then idle ones, by last activity. Connections of other brokers stay.
        """
        lacking = count - len(self._throttled)
        self._throttled.close()
        if lacking > 0:
            self._evict(lacking)

    def _evict(self, count: int) -> None:
        found = [(each, listener) for listener in self._listeners.values() for each in listener.evictable()]
        count = max(count, len(found) // EVICTED_SHARE)
        for connection, listener in nsmallest(count, found, key=lambda pair: _worth(pair[0])):
            listener.evict(connection)

    def leave(self, host: str) -> None:
        """Count the end of a connection from ``host`` that ``enter`` has counted. Calls back the listeners that wait
        for this."""
        self.connections -= 1
        self._by_host[host] -= 1
        if not self._by_host[host]:
            del self._by_host[host]
        self._wake()

    def call_when_changed(self, changed: Callable[[], None]) -> None:
        """Call ``changed`` once, when a connection has ended or the limits have changed."""
        self._waiting.append(changed)

    def _wake(self) -> None:
        waiting, self._waiting = self._waiting, []
        for changed in waiting:
            changed()
