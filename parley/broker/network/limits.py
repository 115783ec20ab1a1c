"""The limits of a broker's network side, as its configuration gives them."""

from __future__ import annotations

import math

from parley.broker.config import BrokerConfig
from parley.broker.network.connection_quotas import UNLIMITED, Limits, ListenerLimits


def limits_of(config: BrokerConfig) -> Limits:
    """What ``config`` allows, of the broker and of each listener."""
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
        idle_s=math.inf if config.connections_max_idle_ms < 0 else config.connections_max_idle_ms / 1000,
    )


def _listener_limits(config: BrokerConfig, name: str) -> ListenerLimits:
    """The limits given for a listener by its name; those of the broker hold for all listeners together."""
    own, prefix = config.for_listener(name), f"listener.name.{name.lower()}."
    return ListenerLimits(
        connections=own.max_connections if f"{prefix}max.connections" in config.given else UNLIMITED,
        connection_rate=(
            own.max_connection_creation_rate if f"{prefix}max.connection.creation.rate" in config.given else UNLIMITED
        ),
    )
