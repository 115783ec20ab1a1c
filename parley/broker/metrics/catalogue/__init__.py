"""Every metric of the broker, with the corresponding MBean of Kafka. Each subject has a module."""

from __future__ import annotations

from parley.broker.metrics.catalogue.clients import (
    AuthorizationMetrics,
    ClientQuotaMetrics,
    ConnectionLimitMetrics,
    FetchSessionMetrics,
    ListenerMetrics,
    LoadMetrics,
    PurgatoryMetrics,
    QuotaMetrics,
    RequestMetrics,
    TopicMetrics,
)
from parley.broker.metrics.catalogue.coordination import (
    StoreCallMetrics,
    StoreErrorMetrics,
    StoreMetrics,
    StoreSessionMetrics,
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
    ShareGroupStateMetrics,
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
    ControllerMetrics,
    ElectionMetrics,
    FetcherMetrics,
    ReplicaMetrics,
    TruncationMetrics,
)
from parley.broker.metrics.catalogue.share_groups import ShareGroupMetrics, ShareLagMetrics
from parley.broker.metrics.instruments import Instruments

CATALOGUE: tuple[type[Instruments], ...] = (
    TopicMetrics,
    RequestMetrics,
    ListenerMetrics,
    ConnectionLimitMetrics,
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
    ControllerMetrics,
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
    ShareGroupStateMetrics,
    GroupMemberMetrics,
    GroupLagMetrics,
    GroupOffsetMetrics,
    ShareGroupMetrics,
    ShareLagMetrics,
    CoordinatorPartitionMetrics,
    CoordinatorMetrics,
    StoreMetrics,
    StoreCallMetrics,
    StoreErrorMetrics,
    StoreSessionMetrics,
    AuthorizationMetrics,
    ProcessMetrics,
    ShortageMetrics,
)
