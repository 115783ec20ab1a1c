"""Which connections a broker takes on, how many, and how fast (KIP-402, KIP-612).

Rules of this module:

* An address with too many connections (``max.connections.per.ip``) is refused: accepted, and closed at once.
* Everything else that is too much waits, unaccepted, until a connection ends or time has passed:
  ``max.connections`` of the broker or the listener, and ``max.connection.creation.rate`` of either.
* The listener between brokers is not held up by the broker's limits if there is another one: for each connection on it
  beyond ``max.connections`` the one that has been idle longest elsewhere is closed.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Protocol

UNLIMITED = 2**31 - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class ListenerLimits:
    """What one listener takes on, under the names of its configuration; the rate is in connections a second."""

    connections: int = UNLIMITED
    connection_rate: int = UNLIMITED


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """What one broker takes on, under the names of its configuration. ``queued_bytes`` < 0 sets no limit."""

    request_bytes: int = 100 << 20
    queued_requests: int = 500
    queued_bytes: int = -1
    connections: int = UNLIMITED
    connections_per_ip: int = UNLIMITED
    connections_per_ip_overrides: Mapping[str, int] = field(default_factory=dict)
    connection_rate: int = UNLIMITED
    by_listener: Mapping[str, ListenerLimits] = field(default_factory=dict)
    idle_s: float = 600.0


class ListenerConnections(Protocol):
    """The connections of one listener."""

    @property
    def name(self) -> str: ...

    def __len__(self) -> int: ...

    def idle_since(self) -> float:
        """When the one idle longest was last active; infinite if there is none."""
        ...

    def close_idlest(self) -> None:
        """Close the one idle longest."""
        ...


class ConnectionRate:
    """So many connections a second; those of an idle second may come at once."""

    def __init__(self) -> None:
        self._left = math.inf
        self._at = 0.0

    def wait_s(self, per_second: int, now_s: float) -> float:
        """How long no connection may be accepted."""
        self._left = min(float(per_second), self._left + (now_s - self._at) * per_second)
        self._at = now_s
        return 0.0 if self._left >= 1 else (1 - self._left) / per_second

    def take(self) -> None:
        """One is accepted."""
        self._left -= 1


class ConnectionQuotas:
    """Counts the connections of a broker over all its listeners, and holds up or refuses those beyond the limits."""

    def __init__(self, limits: Limits, inter_broker_listener: str = "") -> None:
        self.connections = 0
        self._limits = limits
        self._inter_broker_listener = inter_broker_listener
        self._by_host: Counter[str] = Counter()
        self._crowds: dict[str, ListenerConnections] = {}
        self._rate = ConnectionRate()
        self._rates: dict[str, ConnectionRate] = {}
        self._waiting: list[Callable[[], None]] = []

    @property
    def limits(self) -> Limits:
        """May be replaced; connections that are there stay."""
        return self._limits

    @limits.setter
    def limits(self, limits: Limits) -> None:
        self._limits = limits
        self._wake()

    def add(self, crowd: ListenerConnections) -> None:
        """Connections come in here, too."""
        self._crowds[crowd.name] = crowd
        self._rates[crowd.name] = ConnectionRate()

    def wait_s(self, listener: str, now_s: float) -> float:
        """How long nothing may be accepted on a listener; infinite: until :meth:`call_when_changed` says so."""
        limits, own = self._limits, self._limits.by_listener.get(listener, ListenerLimits())
        if len(self._crowds[listener]) >= own.connections:
            return math.inf
        wait_s = self._rates[listener].wait_s(own.connection_rate, now_s)
        if self._is_protected(listener):
            return wait_s
        if self.connections >= limits.connections:
            return math.inf
        return max(wait_s, self._rate.wait_s(limits.connection_rate, now_s))

    def _is_protected(self, listener: str) -> bool:
        return listener == self._inter_broker_listener and len(self._crowds) > 1

    def enter(self, listener: str, host: str) -> str:
        """Count an accepted connection in; :meth:`leave` must follow. Answers why it must be refused, if so."""
        self.connections += 1
        self._by_host[host] += 1
        self._rates[listener].take()
        if not self._is_protected(listener):
            self._rate.take()
        allowed = self._limits.connections_per_ip_overrides.get(host, self._limits.connections_per_ip)
        if self._by_host[host] > allowed:
            return f"more than {allowed} connections from this address (max.connections.per.ip)"
        if self.connections > self._limits.connections and self._is_protected(listener):
            others = [crowd for name, crowd in self._crowds.items() if name != listener]
            min(others, key=lambda crowd: crowd.idle_since()).close_idlest()
        return ""

    def leave(self, host: str) -> None:
        """Count a connection out."""
        self.connections -= 1
        self._by_host[host] -= 1
        if not self._by_host[host]:
            del self._by_host[host]
        self._wake()

    def call_when_changed(self, changed: Callable[[], None]) -> None:
        """Call ``changed`` once, when a connection has ended or the limits are others."""
        self._waiting.append(changed)

    def _wake(self) -> None:
        waiting, self._waiting = self._waiting, []
        for changed in waiting:
            changed()
