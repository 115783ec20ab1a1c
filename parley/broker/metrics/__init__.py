"""The metrics and the health of a broker, which ``/metrics`` and ``/healthz`` serve.

``catalogue`` defines every metric, ``Metrics`` collects the numbers of one broker, and ``exporter`` serves them. Import
``exporter`` only if ``metrics.listener`` is set: it imports prometheus_client.
"""

from __future__ import annotations

from parley.broker.metrics.catalogue.clients import (
    AuthorizationMetrics,
    ClientQuotaMetrics,
    FetchSessionMetrics,
    ListenerMetrics,
    LoadMetrics,
    PurgatoryMetrics,
    QuotaMetrics,
    RequestMetrics,
    TopicMetrics,
)
from parley.broker.metrics.catalogue.coordinators import (
    ConsumerGroupMetrics,
    CoordinatorMetrics,
    CoordinatorPartitionMetrics,
    GroupLagMetrics,
    GroupMemberMetrics,
    GroupMetrics,
    GroupOffsetMetrics,
    MarkerMetrics,
    ProducerMetrics,
    TransactionMetrics,
    VerificationMetrics,
)
from parley.broker.metrics.catalogue.logs import (
    CleanerMetrics,
    DamageMetrics,
    FlushMetrics,
    LogDirectoryMetrics,
    LogMetrics,
    UncleanableMetrics,
)
from parley.broker.metrics.catalogue.process import ProcessMetrics, ShortageMetrics
from parley.broker.metrics.catalogue.replication import (
    ClusterMetrics,
    ElectionMetrics,
    FetcherMetrics,
    ReplicaMetrics,
    TruncationMetrics,
)
from parley.broker.metrics.catalogue.share_groups import ShareGroupMetrics
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
    "GroupLagMetrics",
    "GroupMemberMetrics",
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
    "ShareGroupMetrics",
    "ShortageMetrics",
    "TopicMetrics",
    "TransactionMetrics",
    "TruncationMetrics",
    "UncleanableMetrics",
    "VerificationMetrics",
]
