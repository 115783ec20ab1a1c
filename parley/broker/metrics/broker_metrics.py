"""Collects the values of a running broker for its metrics, by reading the state of its parts at each scrape."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any

from parley.broker.api.fetch.sessions import FetchSessions
from parley.broker.api.transactional.verifications import Verifications
from parley.broker.config import BrokerConfig
from parley.broker.controller.elections.unclean_recovery import UncleanRecovery
from parley.broker.coordinators.groups.coordinator import GroupCoordinator
from parley.broker.coordinators.runtime import CoordinatorRuntime
from parley.broker.coordinators.share_state.coordinator import ShareCoordinator
from parley.broker.coordinators.transactions.coordinator import TransactionCoordinator
from parley.broker.membership.lifecycle import BrokerLifecycle
from parley.broker.membership.measured_store import StoreCounts
from parley.broker.metadata.current import Metadata
from parley.broker.metadata.image import MetadataImage
from parley.broker.metadata.types import NO_LEADER
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
    LogDirectoryMetrics,
    LogMetrics,
    UncleanableMetrics,
)
from parley.broker.metrics.catalogue.replication import (
    ClusterMetrics,
    ControllerMetrics,
    ElectionMetrics,
    FetcherMetrics,
    ReplicaMetrics,
    TruncationMetrics,
)
from parley.broker.metrics.catalogue.share_groups import ShareGroupMetrics, ShareLagMetrics
from parley.broker.metrics.group_metrics import group_lags, group_members, known_end, share_group_lags
from parley.broker.metrics.log_directory_space import LogDirectorySpace
from parley.broker.metrics.registry import Labeled, Metrics
from parley.broker.network.connection_quotas import ConnectionQuotas
from parley.broker.network.dispatch import Route
from parley.broker.network.listener import Listener
from parley.broker.network.load import Load
from parley.broker.quotas.enforcement import QuotaEnforcement
from parley.broker.replication.fetcher_assignment import ReplicaFetchers
from parley.broker.replication.healing import Healing, HealingCounts
from parley.broker.replication.hosted_partitions import HostedPartitions
from parley.broker.replication.isr_maintenance import IsrChanges
from parley.broker.replication.partition import Partition, Purgatories
from parley.broker.security.authorization import Authorization
from parley.broker.security.authorizer import AclAuthorizer
from parley.broker.share.share_partitions import SharePartitions
from parley.light_dataclasses import dataclass
from parley.storage.compaction.log_cleaner import LogCleaner
from parley.storage.damage.scrubber import Scrubber
from parley.storage.log_manager import LogManager

LATE_MS = 300_000
"""A transaction counts as late if it has been open for this many milliseconds longer than the maximum timeout, as in
Kafka. Until then, its marker may still be on its way."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Observed:
    """The parts of a broker whose values are exported."""

    broker_id: int
    requests: Mapping[int, Route]
    listeners: Sequence[Listener]
    load: Load
    purgatories: Purgatories
    sessions: FetchSessions
    partitions: HostedPartitions
    isr_changes: IsrChanges
    fetchers: ReplicaFetchers
    metadata: Metadata
    recovery: UncleanRecovery
    logs: LogManager
    groups: GroupCoordinator
    runtimes: Sequence[CoordinatorRuntime[Any]]
    transactions: TransactionCoordinator
    healing: Healing
    scrubber: Scrubber
    verifications: Verifications
    config: Callable[[], BrokerConfig]
    wall_ms: Callable[[], int]
    log_cleaner: LogCleaner
    authorization: Authorization
    quotas: QuotaEnforcement
    share_partitions: SharePartitions
    share_state: ShareCoordinator
    lifecycle: BrokerLifecycle
    connection_quotas: ConnectionQuotas
    store_counts: StoreCounts
    space: LogDirectorySpace


def watch(metrics: Metrics, broker: Observed) -> None:
    """Export the values of ``broker`` through ``metrics``, which reads them at each scrape."""
    metrics.watch(FetcherMetrics, broker.fetchers.metrics)
    metrics.watch(TruncationMetrics, lambda: [((), broker.fetchers.truncations.metrics)])
    metrics.watch(RequestMetrics, lambda: request_metrics(broker.requests.values()))
    metrics.watch(ListenerMetrics, lambda: [((each.name,), each.metrics) for each in broker.listeners])
    metrics.watch(ConnectionLimitMetrics, lambda: [((), ConnectionLimitMetrics(limit=broker.connection_quotas.limit))])
    metrics.watch(ClientQuotaMetrics, broker.quotas.metrics)
    metrics.watch(QuotaMetrics, lambda: [((), quota_metrics(broker.listeners, broker.quotas))])
    metrics.watch(LoadMetrics, lambda: [((), broker.load)])
    metrics.watch(
        PurgatoryMetrics,
        lambda: [(("produce",), broker.purgatories.produce), (("fetch",), broker.purgatories.fetch)],
    )
    metrics.watch(FetchSessionMetrics, lambda: [((), broker.sessions)])
    metrics.watch(ReplicaMetrics, lambda: [((), replica_metrics(broker.partitions, broker.isr_changes))])
    metrics.watch(
        ProducerMetrics, lambda: [((), producer_metrics(broker.partitions, broker.config(), broker.wall_ms()))]
    )
    metrics.watch(VerificationMetrics, lambda: [((), broker.verifications.metrics)])
    metrics.watch(ClusterMetrics, lambda: [((), cluster_metrics(broker.metadata.image, broker.broker_id))])
    metrics.watch(ControllerMetrics, lambda: [((), broker.lifecycle.controller.metrics)])
    metrics.watch(ElectionMetrics, lambda: [((), broker.recovery.metrics)])
    metrics.watch(LogMetrics, lambda: log_metrics(broker.logs))
    metrics.watch(LogDirectoryMetrics, lambda: directory_metrics(broker.logs, broker.space))
    metrics.watch(
        DamageMetrics, lambda: [((), damage_metrics(broker.partitions, broker.healing.counts, broker.scrubber))]
    )
    metrics.watch(CleanerMetrics, lambda: [((), cleaner_metrics(broker.log_cleaner))])
    metrics.watch(UncleanableMetrics, lambda: uncleanable_metrics(broker.logs, broker.log_cleaner))
    metrics.watch(GroupMetrics, lambda: group_metrics(broker.groups))
    metrics.watch(ConsumerGroupMetrics, lambda: consumer_group_metrics(broker.groups))
    metrics.watch(StreamsGroupMetrics, lambda: streams_group_metrics(broker.groups))
    metrics.watch(ShareGroupStateMetrics, lambda: share_group_states(broker.groups))
    metrics.watch(
        GroupMemberMetrics,
        lambda: group_members(broker.groups.loaded_groups(), broker.config().metrics_group_partitions_max),
    )
    metrics.watch(
        GroupLagMetrics,
        lambda: group_lags(
            broker.groups.loaded_groups(),
            partial(known_end, broker.partitions.by_topic, broker.broker_id),
            broker.config().metrics_group_partitions_max,
        ),
    )
    metrics.watch(
        ShareLagMetrics,
        lambda: share_group_lags(
            broker.share_state.runtime,
            broker.metadata.image.topic_names,
            partial(known_end, broker.partitions.by_topic, broker.broker_id),
            broker.config().metrics_group_partitions_max,
        ),
    )
    metrics.watch(GroupOffsetMetrics, lambda: [((), broker.groups.metrics())])
    metrics.watch(CoordinatorPartitionMetrics, lambda: coordinator_partitions(broker.runtimes))
    metrics.watch(CoordinatorMetrics, lambda: [((each.topic,), each.metrics()) for each in broker.runtimes])
    metrics.watch(TransactionMetrics, lambda: transaction_metrics(broker.transactions))
    metrics.watch(MarkerMetrics, lambda: [((), marker_metrics(broker.transactions))])
    metrics.watch(ShareGroupMetrics, lambda: [((), broker.share_partitions.measured())])
    store = broker.store_counts
    metrics.watch(StoreMetrics, lambda: store.store_metrics(broker.lifecycle.store_move.store, broker.lifecycle.outage))
    metrics.watch(StoreCallMetrics, store.call_metrics)
    metrics.watch(StoreErrorMetrics, store.error_metrics)
    metrics.watch(StoreSessionMetrics, store.session_metrics)
    metrics.watch(AuthorizationMetrics, lambda: [((), authorization_metrics(broker.authorization))])


def request_metrics(routes: Iterable[Route]) -> Iterable[Labeled]:
    """Yield the metrics of each API. Fetches of consumers and of followers have separate metrics, under the names that
    Kafka gives them: FetchConsumer and FetchFollower."""
    for route in routes:
        if route.follower_metrics is route.metrics:
            yield (route.name,), route.metrics
        else:
            yield (f"{route.name}Consumer",), route.metrics
            yield (f"{route.name}Follower",), route.follower_metrics


def quota_metrics(listeners: Iterable[Listener], quotas: QuotaEnforcement) -> QuotaMetrics:
    """Return the number of throttled connections, and the time spent on requests that are exempt from quotas."""
    return QuotaMetrics(
        throttled_connections=sum(listener.throttled_connections for listener in listeners),
        exempt_seconds=quotas.exempt_seconds,
    )


def authorization_metrics(authorization: Authorization) -> AuthorizationMetrics:
    """Return the number of allowed and denied operations, and the number of ACLs. All are 0 without an authorizer."""
    audit, authorizer = authorization.audit, authorization.authorizer
    return AuthorizationMetrics(
        allowed=0 if audit is None else audit.allowed,
        denied=0 if audit is None else audit.denied,
        acls=len(authorizer.index) if isinstance(authorizer, AclAuthorizer) else 0,
    )


def replica_metrics(partitions: Iterable[Partition], isr_changes: IsrChanges) -> ReplicaMetrics:
    """Count the replicas of this broker by state, and its changes to ISRs."""
    counts: Counter[str] = Counter(isr_shrinks=isr_changes.shrinks, isr_expands=isr_changes.expands)
    for partition in partitions:
        counts["partitions"] += 1
        counts["offline"] += partition.has_failed
        if partition.is_leader and partition.is_open:
            in_sync, wanted = len(partition.state.isr), partition.min_in_sync
            counts["leaders"] += 1
            counts["under_replicated"] += in_sync < len(partition.state.replicas)
            counts["at_min_isr"] += in_sync == wanted
            counts["under_min_isr"] += in_sync < wanted
    return ReplicaMetrics(**counts)


def producer_metrics(partitions: Iterable[Partition], config: BrokerConfig, now_ms: int) -> ProducerMetrics:
    """Count the producers, open transactions, and partitions with a late transaction, over the partitions that this
    broker leads."""
    late_ms = config.transaction_max_timeout_ms + LATE_MS
    counts: Counter[str] = Counter()
    for partition in partitions:
        if partition.is_leader and partition.is_open and partition.log.is_written:
            producers = partition.log.producers
            counts["producers"] += len(producers)
            counts["open_transactions"] += producers.open_transactions
            counts["late_partitions"] += producers.has_late_transaction(now_ms, late_ms)
    return ProducerMetrics(**counts)


def damage_metrics(partitions: Iterable[Partition], healed: HealingCounts, scrubber: Scrubber) -> DamageMetrics:
    """Count the damaged partitions and ranges in the logs of this broker, and what was repaired since the broker
    started."""
    counts: Counter[str] = Counter()
    for partition in partitions:
        if partition.is_open and (damage := partition.log.damage):
            counts["damaged_partitions"] += 1
            counts["ranges"] += len(damage)
            counts["ranges_without_copy"] += sum(map(partition.has_no_copy, damage))
    return DamageMetrics(
        **counts,
        healed_ranges=healed.ranges,
        healed_bytes=healed.bytes,
        handed_over=healed.handed_over,
        scrubbed_bytes=scrubber.verified_bytes,
        overdue_bytes=scrubber.overdue_bytes,
    )


def cleaner_metrics(cleaner: LogCleaner) -> CleanerMetrics:
    """Return the current and the past work of the log cleaner."""
    runs, counts = cleaner.last_runs, cleaner.counts
    read, kept = sum(run.stats.bytes_read for run in runs), sum(run.stats.bytes_kept for run in runs)
    return CleanerMetrics(
        running=cleaner.running,
        max_dirty_percent=100 * cleaner.max_dirty_ratio,
        since_last_look_seconds=cleaner.since_last_look_s,
        recopy_percent=100 * kept / read if read else 0,
        map_utilization_percent=100 * max((run.stats.map_utilization for run in runs), default=0.0),
        max_run_seconds=max((run.duration_s for run in runs), default=0.0),
        max_delay_seconds=max((run.delay_s for run in runs), default=0.0),
        runs=counts.runs,
        failures=counts.failures,
        dead_workers=counts.worker_deaths,
        bytes_read=counts.bytes_read,
        bytes_kept=counts.bytes_kept,
        records_read=counts.records_read,
        records_kept=counts.records_kept,
    )


def uncleanable_metrics(logs: LogManager, cleaner: LogCleaner) -> Iterable[Labeled]:
    """Yield, for each log directory, the number and the size of the logs that cannot be compacted."""
    set_aside = cleaner.set_aside
    for directory in logs.directories:
        here = [log for log in logs.logs_in(directory) if log in set_aside]
        yield (
            (str(directory),),
            UncleanableMetrics(partitions=len(here), size_bytes=sum(log.size_bytes for log in here)),
        )


def cluster_metrics(image: MetadataImage, broker_id: int) -> ClusterMetrics:
    """Return the number of brokers, topics and partitions in the metadata of broker ``broker_id``."""
    counts: Counter[str] = Counter(topics=len(image.topics))
    counts["active_controller"] = image.controller_id == broker_id
    for broker in image.brokers.values():
        counts["fenced_brokers" if broker.fenced else "brokers"] += 1
    for _, _, state in image.partitions():
        counts["partitions"] += 1
        counts["offline_partitions"] += state.leader == NO_LEADER
        counts["not_preferred"] += state.leader not in (NO_LEADER, state.replicas[0])
    return ClusterMetrics(**counts)


def log_metrics(logs: LogManager) -> Iterable[Labeled]:
    """Yield the size, the number of segments and the offsets of every log."""
    for log in logs.logs:
        numbers = LogMetrics(
            size_bytes=log.size_bytes,
            segments=len(log.segments) if log.is_written else 1,  # as in Kafka, whose logs always have one
            log_start_offset=log.log_start_offset,
            log_end_offset=log.log_end_offset,
        )
        yield (log.topic, str(log.partition)), numbers


def directory_metrics(logs: LogManager, space: LogDirectorySpace) -> Iterable[Labeled]:
    """Yield, for each log directory, whether it is offline, and its space and stray logs as of the previous scrape.
    Starts the measurement for the next scrape."""
    space.begin(directory.path for directory in logs.directories)
    for directory in logs.directories:
        total, free, strays = space.of(directory.path)
        yield (
            (str(directory),),
            LogDirectoryMetrics(offline=not directory.online, total_bytes=total, free_bytes=free, stray_logs=strays),
        )


def group_metrics(groups: GroupCoordinator) -> Iterable[Labeled]:
    """Yield the number of classic groups in each state."""
    for state, count in groups.counts_by_state().items():
        yield (state.value,), GroupMetrics(groups=count)


def consumer_group_metrics(groups: GroupCoordinator) -> Iterable[Labeled]:
    """Yield the number of groups of the consumer protocol in each state."""
    for state, count in groups.consumer_counts_by_state().items():
        yield (state.value,), ConsumerGroupMetrics(consumer_groups=count)


def streams_group_metrics(groups: GroupCoordinator) -> Iterable[Labeled]:
    """Yield the number of streams groups in each state."""
    for state, count in groups.streams_counts_by_state().items():
        yield (state.value,), StreamsGroupMetrics(streams_groups=count)


def share_group_states(groups: GroupCoordinator) -> Iterable[Labeled]:
    """Yield the number of share groups in each state."""
    for state, count in groups.share_counts_by_state().items():
        yield (state.value,), ShareGroupStateMetrics(share_groups=count)


def transaction_metrics(transactions: TransactionCoordinator) -> Iterable[Labeled]:
    """Yield the number of transactional ids in each state."""
    for state, count in transactions.counts_by_state().items():
        yield (state.value,), TransactionMetrics(transactional_ids=count)


def marker_metrics(transactions: TransactionCoordinator) -> MarkerMetrics:
    """Return the number of transactions whose markers are being written, and the number of attempts to write a marker
    to a partition without a leader."""
    return MarkerMetrics(transactions=len(transactions.markers), leaderless=transactions.markers.leaderless)


def coordinator_partitions(runtimes: Iterable[CoordinatorRuntime[Any]]) -> Iterable[Labeled]:
    """Yield the number of partitions of each internal topic in each state."""
    for runtime in runtimes:
        for phase, count in runtime.phases().items():
            yield (runtime.topic, phase.value), CoordinatorPartitionMetrics(partitions=count)
