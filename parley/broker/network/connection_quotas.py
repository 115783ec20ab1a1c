"""Connection quotas: which connections a broker accepts, how many, and how fast (KIP-402, KIP-612).

Rules of this module:

* A connection from an address that has too many (``max.connections.per.ip``) is refused: accepted, and closed at once.
* Every other excess waits in the backlog until a connection ends or time has passed: ``max.connections`` of the broker
  or the listener, and ``max.connection.creation.rate`` of either.
* The broker's limits do not hold up the inter-broker listener if there is another listener. For each connection on it
  beyond ``max.connections``, the connection that has been idle longest on another listener is closed.
* Beyond what the process's limit of file descriptors allows (``descriptors_max``), the connections that have been idle
  longest are closed, on any listener, except those of other brokers.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable
from heapq import nsmallest
from typing import Protocol

from parley.broker.network.configured_limits import UNLIMITED, Limits, ListenerLimits
from parley.broker.network.connection import Connection

EVICTED_SHARE = 50
"""One connection in this many is closed at a time, so that a flood of new ones costs one search in as many."""


class ListenerConnections(Protocol):
    """The connections of one listener."""

    @property
    def name(self) -> str: ...

    def __len__(self) -> int: ...

    def idle_since(self) -> float:
        """Return when the connection that is idle longest was last active; infinity if there is none."""
        ...

    def close_idlest(self) -> None:
        """Close the connection that is idle longest."""
        ...

    def evictable(self) -> list[Connection]:
        """Return the connections that may be closed to make room."""
        ...

    def evict(self, connection: Connection) -> None:
        """Close one of them."""
        ...


class ConnectionRate:
    """A rate limit in connections per second. What one idle second did not use may come at once."""

    def __init__(self) -> None:
        self._left = math.inf
        self._at = 0.0

    def wait_s(self, per_second: int, now_s: float) -> float:
        """Return how long no connection may be accepted."""
        self._left = min(float(per_second), self._left + (now_s - self._at) * per_second)
        self._at = now_s
        return 0.0 if self._left >= 1 else (1 - self._left) / per_second

    def take(self) -> None:
        """Count an accepted connection."""
        self._left -= 1


class ConnectionQuotas:
    """Counts a broker's connections on all listeners, and delays or refuses those beyond the limits."""

    def __init__(self, limits: Limits, inter_broker_listener: str = "") -> None:
        self.connections = 0
        self.descriptors_max = UNLIMITED
        """How many connections the process's limit of file descriptors allows."""
        self._limits = limits
        self._inter_broker_listener = inter_broker_listener
        self._by_host: Counter[str] = Counter()
        self._listeners: dict[str, ListenerConnections] = {}
        self._rate = ConnectionRate()
        self._rates: dict[str, ConnectionRate] = {}
        self._waiting: list[Callable[[], None]] = []

    @property
    def limits(self) -> Limits:
        """The limits now. New limits do not close existing connections."""
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
        """Return how long a listener must not accept; infinity means until ``call_when_changed`` calls back."""
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

    def enter(self, listener: str, host: str) -> str:
        """Count an accepted connection in; ``leave`` must follow. Returns why it is refused, "" if it is not."""
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
            self.close_least_active(self.connections - self.descriptors_max)

    def close_least_active(self, count: int = 1) -> None:
        """Close ``count`` connections, or a small share of all if that is more: idle ones first, by last activity.

        Connections of other brokers stay.
        """
        found = [(each, listener) for listener in self._listeners.values() for each in listener.evictable()]
        count = max(count, len(found) // EVICTED_SHARE)
        for connection, listener in nsmallest(count, found, key=lambda pair: (pair[0].is_busy, pair[0].last_active)):
            listener.evict(connection)

    def leave(self, host: str) -> None:
        """Count a connection out."""
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
