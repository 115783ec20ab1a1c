"""Every metric of the broker, with Kafka's MBean for the same thing."""

from __future__ import annotations

from parley.broker.metrics.instruments import Histogram, Instruments, counter, gauge, seconds_histogram

_TOPIC = "kafka.server:type=BrokerTopicMetrics,name={},topic=*"
_REQUEST = "kafka.network:type=RequestMetrics,name={},request=*"
_REPLICAS = "kafka.server:type=ReplicaManager,name={}"
_LOG = "kafka.log:type=Log,name={},topic=*,partition=*"
_CONTROLLER = "kafka.controller:type=KafkaController,name={}"


class TopicMetrics(Instruments, title="Topics", labels=("topic",)):
    """What goes in and out of a topic at this broker. Sums over topics are left to who asks."""

    bytes_in: int = counter(
        "parley_topic_in_bytes", "Bytes of records taken from producers.", _TOPIC.format("BytesInPerSec")
    )
    bytes_out: int = counter(
        "parley_topic_out_bytes", "Bytes of records sent to consumers.", _TOPIC.format("BytesOutPerSec")
    )
    records_in: int = counter(
        "parley_topic_in_records", "Records taken from producers.", _TOPIC.format("MessagesInPerSec")
    )
    bytes_rejected: int = counter(
        "parley_topic_rejected_bytes",
        "Bytes of batches refused because they are too large.",
        _TOPIC.format("BytesRejectedPerSec"),
    )
    invalid_records: int = counter(
        "parley_topic_invalid_batches",
        "Batches refused because they are damaged, out of order, or lack a key that compaction needs.",
        "kafka.server:type=BrokerTopicMetrics,name=Invalid*RecordsPerSec",
    )
    produce_requests: int = counter(
        "parley_topic_produce_requests",
        "Partitions of this topic in produce requests.",
        _TOPIC.format("TotalProduceRequestsPerSec"),
    )
    failed_produce_requests: int = counter(
        "parley_topic_failed_produce_requests",
        "Partitions of this topic in produce requests that were answered with an error.",
        _TOPIC.format("FailedProduceRequestsPerSec"),
    )
    fetch_requests: int = counter(
        "parley_topic_fetch_requests",
        "Partitions of this topic in fetch requests of consumers.",
        _TOPIC.format("TotalFetchRequestsPerSec"),
    )
    failed_fetch_requests: int = counter(
        "parley_topic_failed_fetch_requests",
        "Partitions of this topic in fetch requests that were answered with an error.",
        _TOPIC.format("FailedFetchRequestsPerSec"),
    )
    produce_conversions: int = counter(
        "parley_topic_produce_conversions",
        "Batches converted from an old format on the way in.",
        _TOPIC.format("ProduceMessageConversionsPerSec"),
    )
    fetch_conversions: int = counter(
        "parley_topic_fetch_conversions",
        "Answers converted to an old format on the way out.",
        _TOPIC.format("FetchMessageConversionsPerSec"),
    )
    replication_bytes_in: int = counter(
        "parley_topic_replication_in_bytes",
        "Bytes of records fetched from leaders.",
        "kafka.server:type=BrokerTopicMetrics,name=ReplicationBytesInPerSec",
    )
    replication_bytes_out: int = counter(
        "parley_topic_replication_out_bytes",
        "Bytes of records sent to followers.",
        "kafka.server:type=BrokerTopicMetrics,name=ReplicationBytesOutPerSec",
    )


class RequestMetrics(Instruments, title="Requests", labels=("api",)):
    """The requests of one API, and where their time goes: a request waits in each of these places in turn."""

    requests: int = counter("parley_requests", "Requests begun.", _REQUEST.format("RequestsPerSec"))
    failures: int = counter(
        "parley_request_failures",
        "Requests whose whole answer was an error.",
        "kafka.network:type=RequestMetrics,name=ErrorsPerSec,request=*,error=*",
    )
    request_bytes: int = counter("parley_request_bytes", "Bytes of requests.", _REQUEST.format("RequestBytes"))
    response_bytes: int = counter("parley_response_bytes", "Bytes of answers.", _REQUEST.format("ResponseBytes"))
    queue_seconds: float = counter(
        "parley_request_queue_seconds",
        "Time between the arrival of requests and their beginning.",
        _REQUEST.format("RequestQueueTimeMs"),
    )
    local_seconds: float = counter(
        "parley_request_local_seconds", "Time spent in this broker's handlers.", _REQUEST.format("LocalTimeMs")
    )
    remote_seconds: float = counter(
        "parley_request_remote_seconds",
        "Time answers waited for replicas, for records, or for work in the background.",
        _REQUEST.format("RemoteTimeMs"),
    )
    throttle_seconds: float = counter(
        "parley_request_throttle_seconds",
        "Time clients were told to wait because of quotas.",
        _REQUEST.format("ThrottleTimeMs"),
    )
    response_queue_seconds: float = counter(
        "parley_response_queue_seconds",
        "Time finished answers waited for earlier ones of their connection.",
        _REQUEST.format("ResponseQueueTimeMs"),
    )
    send_seconds: float = counter(
        "parley_response_send_seconds",
        "Time between handing answers to the socket and the socket having taken them.",
        _REQUEST.format("ResponseSendTimeMs"),
    )
    total_time: Histogram = seconds_histogram(
        "parley_request_duration_seconds",
        "From the arrival of a request to its answer being handed to the socket.",
        _REQUEST.format("TotalTimeMs"),
    )


class ListenerMetrics(Instruments, title="Connections", labels=("listener",)):
    """The connections of one listener."""

    connections: int = gauge(
        "parley_connections",
        "Connections open.",
        "kafka.server:type=socket-server-metrics,listener=*,networkProcessor=*: connection-count",
    )
    accepted: int = counter(
        "parley_connections_accepted",
        "Connections accepted.",
        "kafka.server:type=socket-server-metrics,listener=*,networkProcessor=*: connection-creation-total",
    )
    refused: int = counter(
        "parley_connections_refused",
        "Connections closed at once because of max.connections.per.ip.",
    )
    killed: int = counter(
        "parley_connections_closed_for_errors",
        "Connections closed because of what arrived on them.",
        "kafka.network:type=SocketServer,name=ExpiredConnectionsKilledCount",
    )
    idle_closed: int = counter(
        "parley_connections_closed_for_idleness", "Connections closed by connections.max.idle.ms."
    )


class LoadMetrics(Instruments, title="Load"):
    """What the broker is busy with."""

    requests_in_progress: int = gauge(
        "parley_requests_in_progress",
        "Requests being worked on, of the queued.max.requests there may be.",
        "kafka.network:type=RequestChannel,name=RequestQueueSize",
    )
    request_bytes_held: int = gauge(
        "parley_request_held_bytes",
        "Bytes of requests being worked on, of the queued.max.request.bytes there may be.",
        "kafka.server:type=socket-server-metrics: MemoryPoolUsed",
    )


class PurgatoryMetrics(Instruments, title="Purgatories", labels=("operation",)):
    """Answers that wait for an event."""

    waiting: int = gauge(
        "parley_purgatory_size",
        "Answers that wait: for replicas, for records, for members of a group.",
        "kafka.server:type=DelayedOperationPurgatory,name=PurgatorySize,delayedOperation=*",
    )


class ReplicaMetrics(Instruments, title="Replicas"):
    """The replicas this broker holds."""

    partitions: int = gauge("parley_replicas", "Replicas of partitions held.", _REPLICAS.format("PartitionCount"))
    leaders: int = gauge("parley_leader_replicas", "Of these, those that lead.", _REPLICAS.format("LeaderCount"))
    under_replicated: int = gauge(
        "parley_under_replicated_partitions",
        "Partitions led here of which not every replica is in sync.",
        _REPLICAS.format("UnderReplicatedPartitions"),
    )
    at_min_isr: int = gauge(
        "parley_at_min_isr_partitions",
        "Partitions led here with just min.insync.replicas in sync.",
        _REPLICAS.format("AtMinIsrPartitionCount"),
    )
    under_min_isr: int = gauge(
        "parley_under_min_isr_partitions",
        "Partitions led here with fewer than min.insync.replicas in sync: acks=all is refused.",
        _REPLICAS.format("UnderMinIsrPartitionCount"),
    )
    offline: int = gauge(
        "parley_offline_replicas",
        "Replicas whose directory has failed.",
        _REPLICAS.format("OfflineReplicaCount"),
    )
    isr_shrinks: int = counter(
        "parley_isr_shrinks", "Times a replica fell out of sync.", _REPLICAS.format("IsrShrinksPerSec")
    )
    isr_expands: int = counter(
        "parley_isr_expands", "Times a replica came back in sync.", _REPLICAS.format("IsrExpandsPerSec")
    )


class FetcherMetrics(Instruments, title="Replica fetchers", labels=("leader", "fetcher")):
    """One connection on which this broker follows another one."""

    partitions: int = gauge(
        "parley_replica_fetcher_partitions",
        "Partitions followed on this connection.",
        "kafka.server:type=FetcherLagMetrics,name=ConsumerLag,clientId=*,topic=*,partition=*",
    )
    failing: int = gauge(
        "parley_replica_fetcher_failing_partitions",
        "Of these, those that cannot be followed now and are tried again.",
        "kafka.server:type=ReplicaFetcherManager,name=FailedPartitionsCount,clientId=Replica",
    )
    max_lag: int = gauge(
        "parley_replica_fetcher_max_lag_records",
        "How many committed records the partition that is furthest behind lacks.",
        "kafka.server:type=ReplicaFetcherManager,name=MaxLag,clientId=Replica",
    )
    requests: int = counter(
        "parley_replica_fetcher_requests",
        "Fetches answered.",
        "kafka.server:type=FetcherStats,name=RequestsPerSec,clientId=*,brokerHost=*,brokerPort=*",
    )
    fetched_bytes: int = counter(
        "parley_replica_fetcher_bytes",
        "Bytes of records fetched.",
        "kafka.server:type=FetcherStats,name=BytesPerSec,clientId=*,brokerHost=*,brokerPort=*",
    )


class ClusterMetrics(Instruments, title="Cluster"):
    """The cluster as this broker's metadata has it; the same at every broker that is up to date."""

    active_controller: int = gauge(
        "parley_active_controller",
        "1 at the broker that is the controller.",
        _CONTROLLER.format("ActiveControllerCount"),
    )
    brokers: int = gauge("parley_active_brokers", "Brokers alive.", _CONTROLLER.format("ActiveBrokerCount"))
    fenced_brokers: int = gauge(
        "parley_fenced_brokers", "Brokers known but not alive.", _CONTROLLER.format("FencedBrokerCount")
    )
    topics: int = gauge("parley_topics", "Topics.", _CONTROLLER.format("GlobalTopicCount"))
    partitions: int = gauge("parley_partitions", "Partitions.", _CONTROLLER.format("GlobalPartitionCount"))
    offline_partitions: int = gauge(
        "parley_offline_partitions", "Partitions without a leader.", _CONTROLLER.format("OfflinePartitionsCount")
    )
    not_preferred: int = gauge(
        "parley_preferred_leader_imbalance",
        "Partitions led by another than their preferred replica.",
        _CONTROLLER.format("PreferredReplicaImbalanceCount"),
    )


class LogMetrics(Instruments, title="Logs", labels=("topic", "partition")):
    """The log of one partition at this broker."""

    size_bytes: int = gauge("parley_log_size_bytes", "Bytes of all segments.", _LOG.format("Size"))
    segments: int = gauge("parley_log_segments", "Segments.", _LOG.format("NumLogSegments"))
    log_start_offset: int = gauge("parley_log_start_offset", "The first offset.", _LOG.format("LogStartOffset"))
    log_end_offset: int = gauge("parley_log_end_offset", "The next offset.", _LOG.format("LogEndOffset"))


class LogDirectoryMetrics(Instruments, title="Log directories", labels=("directory",)):
    """One of the directories for data."""

    offline: int = gauge(
        "parley_log_directory_offline",
        "1 when the directory has failed.",
        "kafka.log:type=LogManager,name=LogDirectoryOffline,logDirectory=*",
    )


class FlushMetrics(Instruments, title="Flushes"):
    """Logs being forced to the disk."""

    flushes: Histogram = seconds_histogram(
        "parley_log_flush_seconds",
        "How long forcing a log to the disk took.",
        "kafka.log:type=LogFlushStats,name=LogFlushRateAndTimeMs",
    )


class FetchSessionMetrics(Instruments, title="Fetch sessions"):
    """Fetch sessions (KIP-227)."""

    sessions: int = gauge(
        "parley_fetch_sessions",
        "Sessions kept, of the max.incremental.fetch.session.cache.slots there may be.",
        "kafka.server:type=FetchSessionCache,name=NumIncrementalFetchSessions",
    )
    partitions: int = gauge(
        "parley_fetch_session_partitions",
        "Partitions in them.",
        "kafka.server:type=FetchSessionCache,name=NumIncrementalFetchPartitionsCached",
    )
    evictions: int = counter(
        "parley_fetch_session_evictions",
        "Sessions given up for others.",
        "kafka.server:type=FetchSessionCache,name=IncrementalFetchSessionEvictionsPerSec",
    )


class GroupMetrics(Instruments, title="Groups", labels=("state",)):
    """The groups this broker coordinates, by their state."""

    groups: int = gauge(
        "parley_groups",
        "Groups in this state.",
        "kafka.coordinator.group:type=GroupMetadataManager,name=NumGroups*",
    )


class GroupOffsetMetrics(Instruments, title="Committed offsets"):
    """What the coordinator of groups does."""

    offsets: int = gauge(
        "parley_group_offsets",
        "Committed offsets kept.",
        "kafka.coordinator.group:type=GroupMetadataManager,name=NumOffsets",
    )
    commits: int = counter(
        "parley_group_offset_commits",
        "Offsets committed.",
        "kafka.server:type=group-coordinator-metrics: offset-commit-count",
    )
    expired: int = counter(
        "parley_group_offset_expirations",
        "Committed offsets forgotten after offsets.retention.minutes.",
        "kafka.server:type=group-coordinator-metrics: offset-expiration-count",
    )
    rebalances: int = counter(
        "parley_group_rebalances",
        "Rebalances completed.",
        "kafka.server:type=group-coordinator-metrics: group-completed-rebalance-count",
    )


class ProcessMetrics(Instruments, title="Process"):
    """The process that serves this broker. Prometheus' own ``process_*`` and ``python_gc_*`` stand beside these."""

    loop_delay_seconds: float = gauge(
        "parley_event_loop_delay_seconds",
        "How long the scrape waited for the event loop: what a request arriving at that moment would have waited.",
        "kafka.network:type=SocketServer,name=NetworkProcessorAvgIdlePercent",
    )
    start_time_seconds: float = gauge(
        "parley_start_time_seconds", "When the broker was ready, in seconds since 1970-01-01 UTC."
    )


CATALOGUE: tuple[type[Instruments], ...] = (
    TopicMetrics,
    RequestMetrics,
    ListenerMetrics,
    LoadMetrics,
    PurgatoryMetrics,
    ReplicaMetrics,
    FetcherMetrics,
    ClusterMetrics,
    LogMetrics,
    LogDirectoryMetrics,
    FlushMetrics,
    FetchSessionMetrics,
    GroupMetrics,
    GroupOffsetMetrics,
    ProcessMetrics,
)
"""Every class of instruments, in the order of the documentation."""
