"""What the broker counts, and how it is read: by Prometheus at ``/metrics``, by whoever asks at ``/healthz``.

``parley.broker.metrics.catalogue`` has every metric; ``Metrics`` is where one broker's numbers are found;
``parley.broker.metrics.exporter`` serves them (import it only where ``metrics.listener`` is set: it is not needed
else).
"""

from __future__ import annotations

from parley.broker.metrics.catalogue import (
    ClusterMetrics,
    FetcherMetrics,
    FetchSessionMetrics,
    FlushMetrics,
    GroupMetrics,
    GroupOffsetMetrics,
    ListenerMetrics,
    LoadMetrics,
    LogDirectoryMetrics,
    LogMetrics,
    ProcessMetrics,
    PurgatoryMetrics,
    ReplicaMetrics,
    RequestMetrics,
    TopicMetrics,
)
from parley.broker.metrics.health import Health
from parley.broker.metrics.instruments import Histogram
from parley.broker.metrics.registry import Metrics

__all__ = [
    "ClusterMetrics",
    "FetchSessionMetrics",
    "FetcherMetrics",
    "FlushMetrics",
    "GroupMetrics",
    "GroupOffsetMetrics",
    "Health",
    "Histogram",
    "ListenerMetrics",
    "LoadMetrics",
    "LogDirectoryMetrics",
    "LogMetrics",
    "Metrics",
    "ProcessMetrics",
    "PurgatoryMetrics",
    "ReplicaMetrics",
    "RequestMetrics",
    "TopicMetrics",
]
