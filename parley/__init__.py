"""Parley: a Kafka-wire-compatible broker cluster whose coordination store is chosen by configuration.

``import parley`` is cheap: each name below is imported on first use. ``python -m parley`` runs the command.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Final

from parley import compiled as _compiled

if TYPE_CHECKING:
    from parley.broker.embedded.broker import Broker
    from parley.broker.embedded.cluster import Cluster
    from parley.pipeline.client.tables import read_topic, scan_topic

__all__ = ["Broker", "Cluster", "read_topic", "scan_topic"]

_HOMES: Final = {
    "Broker": "parley.broker.embedded.broker",
    "Cluster": "parley.broker.embedded.cluster",
    "read_topic": "parley.pipeline.client.tables",
    "scan_topic": "parley.pipeline.client.tables",
}

_compiled.install_guard()


def __getattr__(name: str) -> object:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        return getattr(import_module(home), name)
    except ModuleNotFoundError as missing:
        if missing.name in ("pyarrow", "numpy"):
            from parley.configuration.extras import how_to_install

            needed = f"{missing.name} is not installed: {how_to_install('arrow')}"
            raise ModuleNotFoundError(needed, name=missing.name) from missing
        raise
