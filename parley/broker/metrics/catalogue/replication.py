"""Metrics of replicas, fetchers, the cluster and its elections."""

from __future__ import annotations

from parley.broker.metrics.instruments import Histogram, Instruments, counter, gauge, seconds_histogram

_REPLICAS = "kafka.server:type=ReplicaManager,name={}"
_CONTROLLER = "kafka.controller:type=KafkaController,name={}"
_CONTROLLER_STATS = "kafka.controller:type=ControllerStats,name={}"


class ReplicaMetrics(Instruments, title="Replicas"):
    """The replicas that this broker hosts."""

    partitions: int = gauge("parley_replicas", "Hosted replicas.", _REPLICAS.format("PartitionCount"))
    leaders: int = gauge("parley_leader_replicas", "Hosted replicas that are leaders.", _REPLICAS.format("LeaderCount"))
    under_replicated: int = gauge(
        "parley_under_replicated_partitions",
        "Partitions led by this broker that have replicas outside the ISR.",
        _REPLICAS.format("UnderReplicatedPartitions"),
    )
    at_min_isr: int = gauge(
        "parley_at_min_isr_partitions",
        "Partitions led by this broker with exactly min.insync.replicas in the ISR.",
        _REPLICAS.format("AtMinIsrPartitionCount"),
    )
    under_min_isr: int = gauge(
        "parley_under_min_isr_partitions",
        "Partitions led by this broker with fewer than min.insync.replicas in the ISR: they reject acks=all.",
        _REPLICAS.format("UnderMinIsrPartitionCount"),
    )
    offline: int = gauge(
        "parley_offline_replicas",
        "Replicas in failed log directories.",
        _REPLICAS.format("OfflineReplicaCount"),
    )
    isr_shrinks: int = counter(
        "parley_isr_shrinks", "Removals of a replica from an ISR.", _REPLICAS.format("IsrShrinksPerSec")
    )
    isr_expands: int = counter(
        "parley_isr_expands", "Additions of a replica to an ISR.", _REPLICAS.format("IsrExpandsPerSec")
    )


class FetcherMetrics(Instruments, title="Replica fetchers", labels=("leader", "fetcher")):
    """A connection through which this broker fetches from a leader."""

    partitions: int = gauge(
        "parley_replica_fetcher_partitions",
        "Partitions fetched through this connection.",
        "kafka.server:type=FetcherLagMetrics,name=ConsumerLag,clientId=*,topic=*,partition=*",
    )
    failing: int = gauge(
        "parley_replica_fetcher_failing_partitions",
        "Partitions of this connection that failed and will be retried.",
        "kafka.server:type=ReplicaFetcherManager,name=FailedPartitionsCount,clientId=Replica",
    )
    max_lag: int = gauge(
        "parley_replica_fetcher_max_lag_records",
        "Committed records that the follower furthest behind has not fetched yet.",
        "kafka.server:type=ReplicaFetcherManager,name=MaxLag,clientId=Replica",
    )
    requests: int = counter(
        "parley_replica_fetcher_requests",
        "Fetch responses received.",
        "kafka.server:type=FetcherStats,name=RequestsPerSec,clientId=*,brokerHost=*,brokerPort=*",
    )
    fetched_bytes: int = counter(
        "parley_replica_fetcher_bytes",
        "Bytes of records fetched.",
        "kafka.server:type=FetcherStats,name=BytesPerSec,clientId=*,brokerHost=*,brokerPort=*",
    )


class TruncationMetrics(Instruments, title="Truncations of committed records"):
    """Truncations of followers' logs below their high watermark. A cleanly elected leader requires none, except for
    compacted logs that are fetched again."""

    truncations: int = counter(
        "parley_committed_truncations",
        "Truncations that removed committed records. The records are kept in .cut files.",
    )
    records: int = counter("parley_committed_truncated_records", "Committed records removed by these truncations.")
    refused: int = counter(
        "parley_committed_truncations_refused",
        "Replicas that stopped following because their leader lacks committed records.",
    )
    started_over: int = counter(
        "parley_replicas_started_over",
        "Replicas that removed a compacted log to fetch it again, because it lacked tombstones or could not be healed.",
    )


class ClusterMetrics(Instruments, title="Cluster"):
    """The cluster in this broker's metadata. It is the same on every broker that is up to date."""

    active_controller: int = gauge(
        "parley_active_controller",
        "1 if this broker is the controller.",
        _CONTROLLER.format("ActiveControllerCount"),
    )
    brokers: int = gauge("parley_active_brokers", "Live brokers.", _CONTROLLER.format("ActiveBrokerCount"))
    fenced_brokers: int = gauge("parley_fenced_brokers", "Fenced brokers.", _CONTROLLER.format("FencedBrokerCount"))
    topics: int = gauge("parley_topics", "Topics.", _CONTROLLER.format("GlobalTopicCount"))
    partitions: int = gauge("parley_partitions", "Partitions.", _CONTROLLER.format("GlobalPartitionCount"))
    offline_partitions: int = gauge(
        "parley_offline_partitions", "Partitions without a leader.", _CONTROLLER.format("OfflinePartitionsCount")
    )
    not_preferred: int = gauge(
        "parley_preferred_leader_imbalance",
        "Partitions whose leader is not the preferred replica.",
        _CONTROLLER.format("PreferredReplicaImbalanceCount"),
    )


class ControllerMetrics(Instruments, title="Controller"):
    """The decisions that this broker makes as the controller."""

    leader_elections: int = counter(
        "parley_leader_elections",
        "Partitions for which this controller elected another leader, not counting new partitions.",
        _CONTROLLER_STATS.format("LeaderElectionRateAndTimeMs"),
    )
    decision_time: Histogram = seconds_histogram(
        "parley_controller_decision_duration_seconds",
        "Time to carry out decisions that change the metadata, until the coordination store contains the changes.",
        _CONTROLLER_STATS.format("LeaderElectionRateAndTimeMs"),
    )


class ElectionMetrics(Instruments, title="Elections"):
    """Leaders that this broker has elected as the controller."""

    recovered: int = counter(
        "parley_recovered_leaders",
        "Leaders elected from the reports of replicas, because no replica was eligible.",
    )
    unclean: int = counter(
        "parley_unclean_leader_elections",
        "Leaders elected in this way that may lack acknowledged records.",
        _CONTROLLER_STATS.format("UncleanLeaderElectionsPerSec"),
    )
    set_backs: int = counter(
        "parley_store_set_backs",
        "The number of times that the coordination store was found to have been rolled back to an older state.",
    )
