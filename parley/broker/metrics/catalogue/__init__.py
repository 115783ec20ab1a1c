"""Every metric of the broker, with the corresponding MBean of Kafka: a module for each subject."""

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
    StreamsGroupMetrics,
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
from parley.broker.metrics.instruments import Instruments

CATALOGUE: tuple[type[Instruments], ...] = (
    TopicMetrics,
    RequestMetrics,
    ListenerMetrics,
    ClientQuotaMetrics,
    QuotaMetrics,
    LoadMetrics,
    PurgatoryMetrics,
    ReplicaMetrics,
    ProducerMetrics,
    VerificationMetrics,
    FetcherMetrics,
    TruncationMetrics,
    ClusterMetrics,
    ElectionMetrics,
    LogMetrics,
    LogDirectoryMetrics,
    DamageMetrics,
    CleanerMetrics,
    UncleanableMetrics,
    FlushMetrics,
    FetchSessionMetrics,
    TransactionMetrics,
    MarkerMetrics,
    GroupMetrics,
    ConsumerGroupMetrics,
    StreamsGroupMetrics,
    GroupMemberMetrics,
    GroupLagMetrics,
    GroupOffsetMetrics,
    CoordinatorPartitionMetrics,
    CoordinatorMetrics,
    AuthorizationMetrics,
    ProcessMetrics,
    ShortageMetrics,
)
