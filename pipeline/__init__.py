"""The data pipeline: topics of any Kafka cluster as tables, on Spark or without it.

Nothing here knows a broker: a cluster is reached through the protocol only. ``import pipeline`` imports neither Spark
nor Arrow; what a part needs is imported when the part is.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import protocol  # noqa: F401 (before any module of ours that may be compiled: it keeps stale ones out)

if TYPE_CHECKING:
    from pipeline.tables import read_topic, scan_topic

__all__ = ["read_topic", "scan_topic"]


def __getattr__(name: str) -> object:
    """What reads tables is imported when it is first asked for."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        from pipeline import tables
    except ModuleNotFoundError as missing:
        raise ModuleNotFoundError(
            f"{missing.name} is not installed: pip install 'parley[arrow]'", name=missing.name
        ) from missing
    return getattr(tables, name)
