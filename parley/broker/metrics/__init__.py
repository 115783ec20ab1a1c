"""The metrics and the health of a broker, which ``/metrics`` and ``/healthz`` serve.

``catalogue`` defines every metric, ``Metrics`` collects the numbers of one broker, and ``exporter`` serves them. Import
``exporter`` only if ``metrics.listener`` is set: it imports prometheus_client.
"""

from __future__ import annotations

from parley.broker.metrics.catalogue import (
    AuthorizationMetrics,
    CleanerMetrics,
    ClientQuotaMetrics,
    ClusterMetrics,
    ConsumerGroupMetrics,
    CoordinatorMetrics,
    CoordinatorPartitionMetrics,
    DamageMetrics,
    ElectionMetrics,
    FetcherMetrics,
    FetchSessionMetrics,
    FlushMetrics,
    GroupMetrics,
    GroupOffsetMetrics,
    ListenerMetrics,
    LoadMetrics,
    LogDirectoryMetrics,
    LogMetrics,
    MarkerMetrics,
    ProcessMetrics,
    ProducerMetrics,
    PurgatoryMetrics,
    QuotaMetrics,
    ReplicaMetrics,
    RequestMetrics,
    ShortageMetrics,
    TopicMetrics,
    TransactionMetrics,
    TruncationMetrics,
    UncleanableMetrics,
    VerificationMetrics,
)
from parley.broker.metrics.health import Health
from parley.broker.metrics.instruments import Histogram
from parley.broker.metrics.registry import Metrics

__all__ = [
    "AuthorizationMetrics",
    "CleanerMetrics",
    "ClientQuotaMetrics",
    "ClusterMetrics",
    "ConsumerGroupMetrics",
    "CoordinatorMetrics",
    "CoordinatorPartitionMetrics",
    "DamageMetrics",
    "ElectionMetrics",
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
    "MarkerMetrics",
    "Metrics",
    "ProcessMetrics",
    "ProducerMetrics",
    "PurgatoryMetrics",
    "QuotaMetrics",
    "ReplicaMetrics",
    "RequestMetrics",
    "ShortageMetrics",
    "TopicMetrics",
    "TransactionMetrics",
    "TruncationMetrics",
    "UncleanableMetrics",
    "VerificationMetrics",
]
