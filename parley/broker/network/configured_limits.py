"""The limits on connections and requests, read from the configuration."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import field

from parley.broker.config import BrokerConfig
from parley.light_dataclasses import dataclass

UNLIMITED = 2**31 - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class ListenerLimits:
    """The limits of one listener. ``connection_rate`` is in connections per second."""

    connections: int = UNLIMITED
    connection_rate: int = UNLIMITED


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """The limits of one broker. ``connection_rate`` is in connections per second. A negative ``queued_bytes`` means no
    limit. If ``idle_s`` is infinite, idle connections stay open."""

    request_bytes: int = 100 << 20
    queued_requests: int = 500
    queued_bytes: int = -1
    connections: int = UNLIMITED
    connections_per_ip: int = UNLIMITED
    connections_per_ip_overrides: Mapping[str, int] = field(default_factory=dict)
    connection_rate: int = UNLIMITED
    by_listener: Mapping[str, ListenerLimits] = field(default_factory=dict)
    idle_s: float = 600.0
    login_s: float = 30.0
    """The maximum time, in seconds, for a client's TLS handshake, and for its login."""


def limits_of(config: BrokerConfig) -> Limits:
    """Return the limits of the broker and of each of its listeners."""
    overrides = (pair.rpartition(":") for pair in config.max_connections_per_ip_overrides.split(",") if pair.strip())
    return Limits(
        request_bytes=config.socket_request_max_bytes,
        queued_requests=config.queued_max_requests,
        queued_bytes=config.queued_max_request_bytes,
        connections=config.max_connections,
        connections_per_ip=config.max_connections_per_ip,
        connections_per_ip_overrides={host.strip(): int(count) for host, _, count in overrides},
        connection_rate=config.max_connection_creation_rate,
        by_listener={each.name: _listener_limits(config, each.name) for each in config.bound},
        login_s=config.connections_max_unauthenticated_ms / 1000,
        idle_s=math.inf if config.connections_max_idle_ms < 0 else config.connections_max_idle_ms / 1000,
    )


def _listener_limits(config: BrokerConfig, name: str) -> ListenerLimits:
    """Return the limits that are configured for one listener. The broker-wide limits apply to all listeners
    together."""
    own, prefix = config.for_listener(name), f"listener.name.{name.lower()}."
    return ListenerLimits(
        connections=own.max_connections if f"{prefix}max.connections" in config.given else UNLIMITED,
        connection_rate=(
            own.max_connection_creation_rate if f"{prefix}max.connection.creation.rate" in config.given else UNLIMITED
        ),
    )
