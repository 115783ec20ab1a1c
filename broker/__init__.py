"""The broker: network, request handlers, partitions, controller, groups."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from broker.embedded import Broker

__all__ = ["Broker"]


def __getattr__(name: str) -> object:
    """Import the embedded broker when it is first asked for: tools that only read a configuration need none of it."""
    if name == "Broker":
        from broker.embedded import Broker

        return Broker
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
