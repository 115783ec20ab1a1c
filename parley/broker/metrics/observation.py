"""Where the numbers of a running broker are, for the metrics: looked at when somebody asks, kept by nobody twice."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import TYPE_CHECKING

from parley.broker.metadata.types import NO_LEADER
from parley.broker.metrics import (
    ClusterMetrics,
    FetchSessionMetrics,
    GroupMetrics,
    ListenerMetrics,
    LoadMetrics,
    LogDirectoryMetrics,
    LogMetrics,
    Metrics,
    PurgatoryMetrics,
    ReplicaMetrics,
    RequestMetrics,
)
from parley.broker.metrics.registry import Labelled

if TYPE_CHECKING:
    from parley.broker.server import BrokerServer


def watch(metrics: Metrics, server: BrokerServer) -> None:
    """Export what the parts of ``server`` count."""
    metrics.watch(
        RequestMetrics, lambda: [((route.name,), route.metrics) for route in server.dispatcher.routes.values()]
    )
    metrics.watch(ListenerMetrics, lambda: [((each.name,), each.metrics) for each in server.listeners])
    metrics.watch(LoadMetrics, lambda: [((), server.load)])
    metrics.watch(
        PurgatoryMetrics,
        lambda: [(("produce",), server.purgatories.produce), (("fetch",), server.purgatories.fetch)],
    )
    metrics.watch(FetchSessionMetrics, lambda: [((), server.sessions)])
    metrics.watch(ReplicaMetrics, lambda: [((), replica_metrics(server))])
    metrics.watch(ClusterMetrics, lambda: [((), cluster_metrics(server))])
    metrics.watch(LogMetrics, lambda: log_metrics(server))
    metrics.watch(LogDirectoryMetrics, lambda: directory_metrics(server))
    metrics.watch(GroupMetrics, lambda: group_metrics(server))


def replica_metrics(server: BrokerServer) -> ReplicaMetrics:
    """The replicas of one broker, counted."""
    changes = server.in_sync.changes
    counts: Counter[str] = Counter(isr_shrinks=changes.shrinks, isr_expands=changes.expands)
    for partition in server.partitions:
        counts["partitions"] += 1
        counts["offline"] += partition.has_failed
        if partition.is_leader and partition.is_open:
            in_sync, wanted = len(partition.state.isr), partition.min_in_sync
            counts["leaders"] += 1
            counts["under_replicated"] += in_sync < len(partition.state.replicas)
            counts["at_min_isr"] += in_sync == wanted
            counts["under_min_isr"] += in_sync < wanted
    return ReplicaMetrics(**counts)


def cluster_metrics(server: BrokerServer) -> ClusterMetrics:
    """The cluster as the broker knows it, counted."""
    image = server.metadata.image
    counts: Counter[str] = Counter(topics=len(image.topics))
    counts["active_controller"] = image.controller_id == server.identity.broker_id
    for broker in image.brokers.values():
        counts["fenced_brokers" if broker.fenced else "brokers"] += 1
    for _, _, state in image.partitions():
        counts["partitions"] += 1
        counts["offline_partitions"] += state.leader == NO_LEADER
        counts["not_preferred"] += state.leader not in (NO_LEADER, state.replicas[0])
    return ClusterMetrics(**counts)


def log_metrics(server: BrokerServer) -> Iterable[Labelled]:
    """Size and offsets of every log."""
    for log in server.logs.logs:
        numbers = LogMetrics(
            size_bytes=log.size_bytes,
            segments=len(log.segments),
            log_start_offset=log.log_start_offset,
            log_end_offset=log.log_end_offset,
        )
        yield (log.topic, str(log.partition)), numbers


def directory_metrics(server: BrokerServer) -> Iterable[Labelled]:
    """Whether each log directory works."""
    for directory in server.logs.directories:
        yield (str(directory),), LogDirectoryMetrics(offline=not directory.online)


def group_metrics(server: BrokerServer) -> Iterable[Labelled]:
    """How many groups are in each state."""
    for state, count in server.groups.counts_by_state().items():
        yield (state.value,), GroupMetrics(groups=count)
