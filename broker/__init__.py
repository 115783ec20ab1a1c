"""The broker: network, request handlers, partitions, controller, groups."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from broker.cluster import Cluster
    from broker.embedded import Broker

__all__ = ["Broker", "Cluster"]


def __getattr__(name: str) -> object:
    """Import what is embedded when it is first asked for: tools that only read a configuration need none of it."""
    if name == "Broker":
        from broker.embedded import Broker

        return Broker
    if name == "Cluster":
        from broker.cluster import Cluster

        return Cluster
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
