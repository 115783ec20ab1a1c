"""Every metric of the broker, with the corresponding MBean of Kafka."""

from __future__ import annotations

from parley.broker.metrics.instruments import Histogram, Instruments, counter, gauge, seconds_histogram

_TOPIC = "kafka.server:type=BrokerTopicMetrics,name={},topic=*"
_REQUEST = "kafka.network:type=RequestMetrics,name={},request=*"
_REPLICAS = "kafka.server:type=ReplicaManager,name={}"
_LOG = "kafka.log:type=Log,name={},topic=*,partition=*"
_CLEANER = "kafka.log:type=LogCleaner,name={}"
_CLEANER_MANAGER = "kafka.log:type=LogCleanerManager,name={}"
_CONTROLLER = "kafka.controller:type=KafkaController,name={}"


class TopicMetrics(Instruments, title="Topics", labels=("topic",)):
    """Traffic of a topic at this broker. For totals, sum over the topics in the query."""

    bytes_in: int = counter(
        "parley_topic_in_bytes", "Bytes of records accepted from producers.", _TOPIC.format("BytesInPerSec")
    )
    bytes_out: int = counter(
        "parley_topic_out_bytes", "Bytes of records sent to consumers.", _TOPIC.format("BytesOutPerSec")
    )
    records_in: int = counter(
        "parley_topic_in_records", "Records accepted from producers.", _TOPIC.format("MessagesInPerSec")
    )
    bytes_rejected: int = counter(
        "parley_topic_rejected_bytes",
        "Bytes of batches rejected because they are too large.",
        _TOPIC.format("BytesRejectedPerSec"),
    )
    invalid_records: int = counter(
        "parley_topic_invalid_batches",
        "Batches rejected because they are corrupt, out of order, or lack the key that compaction needs.",
        "kafka.server:type=BrokerTopicMetrics,name=Invalid*RecordsPerSec",
    )
    produce_requests: int = counter(
        "parley_topic_produce_requests",
        "Partitions of this topic in produce requests.",
        _TOPIC.format("TotalProduceRequestsPerSec"),
    )
    failed_produce_requests: int = counter(
        "parley_topic_failed_produce_requests",
        "Partitions of this topic in produce requests that failed.",
        _TOPIC.format("FailedProduceRequestsPerSec"),
    )
    fetch_requests: int = counter(
        "parley_topic_fetch_requests",
        "Partitions of this topic in fetch requests of consumers.",
        _TOPIC.format("TotalFetchRequestsPerSec"),
    )
    failed_fetch_requests: int = counter(
        "parley_topic_failed_fetch_requests",
        "Partitions of this topic in fetch requests that failed.",
        _TOPIC.format("FailedFetchRequestsPerSec"),
    )
    produce_conversions: int = counter(
        "parley_topic_produce_conversions",
        "Batches of producers converted from an old message format.",
        _TOPIC.format("ProduceMessageConversionsPerSec"),
    )
    fetch_conversions: int = counter(
        "parley_topic_fetch_conversions",
        "Fetch responses converted to an old message format.",
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
    """The requests of one API, and the time they spend in each stage; every request passes the stages in this order."""

    requests: int = counter("parley_requests", "Requests started.", _REQUEST.format("RequestsPerSec"))
    failures: int = counter(
        "parley_request_failures",
        "Requests whose response was an error as a whole.",
        "kafka.network:type=RequestMetrics,name=ErrorsPerSec,request=*,error=*",
    )
    request_bytes: int = counter("parley_request_bytes", "Bytes of requests.", _REQUEST.format("RequestBytes"))
    response_bytes: int = counter("parley_response_bytes", "Bytes of responses.", _REQUEST.format("ResponseBytes"))
    queue_seconds: float = counter(
        "parley_request_queue_seconds",
        "Time from the arrival of requests to the start of their handlers.",
        _REQUEST.format("RequestQueueTimeMs"),
    )
    local_seconds: float = counter(
        "parley_request_local_seconds", "Time spent in this broker's handlers.", _REQUEST.format("LocalTimeMs")
    )
    remote_seconds: float = counter(
        "parley_request_remote_seconds",
        "Time responses waited for replicas, for records, or for background work.",
        _REQUEST.format("RemoteTimeMs"),
    )
    throttle_seconds: float = counter(
        "parley_request_throttle_seconds",
        "Time for which clients were throttled because of quotas.",
        _REQUEST.format("ThrottleTimeMs"),
    )
    response_queue_seconds: float = counter(
        "parley_response_queue_seconds",
        "Time finished responses waited for earlier responses on the same connection.",
        _REQUEST.format("ResponseQueueTimeMs"),
    )
    send_seconds: float = counter(
        "parley_response_send_seconds",
        "Time from writing responses to the socket until the socket accepted them.",
        _REQUEST.format("ResponseSendTimeMs"),
    )
    total_time: Histogram = seconds_histogram(
        "parley_request_duration_seconds",
        "Time from the arrival of a request until its response is written to the socket.",
        _REQUEST.format("TotalTimeMs"),
    )


class ListenerMetrics(Instruments, title="Connections", labels=("listener",)):
    """The connections of one listener."""

    connections: int = gauge(
        "parley_connections",
        "Open connections.",
        "kafka.server:type=socket-server-metrics,listener=*,networkProcessor=*: connection-count",
    )
    accepted: int = counter(
        "parley_connections_accepted",
        "Connections accepted.",
        "kafka.server:type=socket-server-metrics,listener=*,networkProcessor=*: connection-creation-total",
    )
    refused: int = counter(
        "parley_connections_refused",
        "Connections rejected because of max.connections.per.ip.",
    )
    rate_closed: int = counter(
        "parley_connections_closed_for_rate",
        "Connections not served but closed: their address opens too many per second (connection_creation_rate).",
        "kafka.server:type=socket-server-metrics,listener=*: ip-connection-accept-throttle-time",
    )
    killed: int = counter(
        "parley_connections_closed_for_errors",
        "Connections closed because of invalid data.",
        "kafka.network:type=SocketServer,name=ExpiredConnectionsKilledCount",
    )
    idle_closed: int = counter(
        "parley_connections_closed_for_idleness", "Connections closed after connections.max.idle.ms."
    )
    authentications: int = counter(
        "parley_authentications",
        "Clients that have authenticated, by a SASL login or a TLS handshake.",
        "kafka.server:type=socket-server-metrics,listener=*,networkProcessor=*: successful-authentication-total",
    )
    authentications_without_reauthentication: int = counter(
        "parley_authentications_without_reauthentication",
        "Logins whose session expires, of clients that cannot re-authenticate (before KIP-368).",
        "kafka.server:type=socket-server-metrics,listener=*,networkProcessor=*: "
        "successful-authentication-no-reauth-total",
    )
    reauthentications: int = counter(
        "parley_reauthentications",
        "Clients that have renewed their login.",
        "kafka.server:type=socket-server-metrics,listener=*,networkProcessor=*: successful-reauthentication-total",
    )
    failed_authentications: int = counter(
        "parley_failed_authentications",
        "SASL logins and TLS handshakes that failed.",
        "kafka.server:type=socket-server-metrics,listener=*,networkProcessor=*: failed-authentication-total",
    )
    failed_reauthentications: int = counter(
        "parley_failed_reauthentications",
        "Clients that failed to renew their login.",
        "kafka.server:type=socket-server-metrics,listener=*,networkProcessor=*: failed-reauthentication-total",
    )
    expired: int = counter(
        "parley_connections_closed_for_expired_sessions",
        "Connections closed because their clients did not renew their login in time.",
        "kafka.server:type=socket-server-metrics,listener=*,networkProcessor=*: expired-connections-killed-count",
    )
    certificate_expires_at: float = gauge(
        "parley_certificate_expiry_timestamp_seconds",
        "When the listener's certificate, or one of its chain, expires, in seconds since 1970; 0 without TLS.",
    )
    revocation_lists_expire_at: float = gauge(
        "parley_revocation_list_expiry_timestamp_seconds",
        "When the first of the listener's revocation lists expires, in seconds since 1970; 0 without lists.",
    )
    evicted: int = counter(
        "parley_connections_evicted",
        "Connections of clients closed, those that were idle longest first, because the process's limit of open files "
        "does not allow more.",
    )


class ClientQuotaMetrics(Instruments, title="Client quotas", labels=("quota", "user", "client_id")):
    """The use of one quota by those who share it: produce, fetch, request, controller_mutation.

    An empty label means that the quota does not depend on it. Of each quota the 1,000 entries used last are exported.
    """

    limit: float = gauge(
        "parley_client_quota_limit", "The quota: bytes per second, percent of one core, or partitions per second."
    )
    level: float = gauge(
        "parley_client_quota_level",
        "The rate that is compared with the quota. For controller_mutation: the tokens left, negative while changes "
        "are refused.",
        "kafka.server:type=Produce|Fetch,user=*,client-id=*: byte-rate; kafka.server:type=Request,user=*,client-id=*: "
        "request-time; kafka.server:type=ControllerMutation,user=*,client-id=*: tokens",
    )
    used: float = counter(
        "parley_client_quota_used",
        "What was used: bytes, percent-seconds of one core, or partitions created and deleted.",
        "kafka.server:type=ControllerMutation,user=*,client-id=*: mutation-rate",
    )
    throttles: int = counter("parley_client_quota_throttles", "Responses whose client was throttled by this quota.")
    throttle_seconds: float = counter(
        "parley_client_quota_throttle_seconds",
        "Throttle times of these responses. Divided by their number it is Kafka's average.",
        "kafka.server:type=Produce|Fetch|Request|ControllerMutation,user=*,client-id=*: throttle-time",
    )


class QuotaMetrics(Instruments, title="Quotas"):
    """The quotas of all clients together."""

    throttled_connections: int = gauge(
        "parley_throttled_connections",
        "Connections that are not read from because their client is throttled.",
        "kafka.server:type=Produce|Fetch|Request|ControllerMutation: queue-size",
    )
    exempt_seconds: float = counter(
        "parley_exempt_request_seconds",
        "Request time that counts for no quota, of brokers and logins, while there are quotas.",
        "kafka.server:type=Request: exempt-request-time",
    )


class LoadMetrics(Instruments, title="Load"):
    """The work in progress."""

    requests_in_progress: int = gauge(
        "parley_requests_in_progress",
        "Requests in progress; the limit is queued.max.requests.",
        "kafka.network:type=RequestChannel,name=RequestQueueSize",
    )
    request_bytes_held: int = gauge(
        "parley_request_held_bytes",
        "Bytes of requests in progress; the limit is queued.max.request.bytes.",
        "kafka.server:type=socket-server-metrics: MemoryPoolUsed",
    )


class PurgatoryMetrics(Instruments, title="Purgatories", labels=("operation",)):
    """Responses that wait for an event."""

    waiting: int = gauge(
        "parley_purgatory_size",
        "Responses that wait for replicas, for records, or for members of a group.",
        "kafka.server:type=DelayedOperationPurgatory,name=PurgatorySize,delayedOperation=*",
    )


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


class ProducerMetrics(Instruments, title="Producers and transactions"):
    """The producers that are known to the partitions which this broker leads, and their transactions."""

    producers: int = gauge(
        "parley_producers",
        "Idempotent and transactional producers. One that writes to three partitions counts three times.",
        _REPLICAS.format("ProducerIdCount"),
    )
    open_transactions: int = gauge(
        "parley_open_transactions", "Open transactions. One in three partitions counts three times."
    )
    late_partitions: int = gauge(
        "parley_late_transaction_partitions",
        "Partitions whose earliest transaction should have been ended by its timeout: readers of committed records "
        "wait behind it.",
        _REPLICAS.format("PartitionsWithLateTransactionsCount"),
    )


class VerificationMetrics(Instruments, title="Verification of transactions"):
    """The questions of this broker to transaction coordinators: whether a partition belongs to a transaction."""

    failures: int = counter(
        "parley_transaction_verification_failures",
        "Partitions that a coordinator refused, or about which none could be asked.",
        "kafka.server:type=AddPartitionsToTxnManager,name=VerificationFailureRate",
    )
    duration: Histogram = seconds_histogram(
        "parley_transaction_verification_duration_seconds",
        "Time until the coordinator's response.",
        "kafka.server:type=AddPartitionsToTxnManager,name=VerificationTimeMs",
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
    """Truncations of followers' logs below their high watermark. A leader that was elected cleanly requires none, apart
    from compacted logs that are fetched again."""

    truncations: int = counter(
        "parley_committed_truncations", "Truncations that removed committed records. The records are in .cut files."
    )
    records: int = counter("parley_committed_truncated_records", "Committed records that were removed so.")
    refused: int = counter(
        "parley_committed_truncations_refused",
        "Replicas that stopped following because their leader lacks committed records.",
    )
    started_over: int = counter(
        "parley_replicas_started_over",
        "Replicas that removed a compacted log to fetch it again: they lacked tombstones, or could not be healed.",
    )


class ClusterMetrics(Instruments, title="Cluster"):
    """The cluster in this broker's metadata; the same at every broker that is up to date."""

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


class ElectionMetrics(Instruments, title="Elections"):
    """Leaders that this broker has elected as the controller."""

    recovered: int = counter(
        "parley_recovered_leaders",
        "Leaders elected by the reports of replicas, because none was eligible.",
    )
    unclean: int = counter(
        "parley_unclean_leader_elections",
        "Those of them that may lack acknowledged records.",
        "kafka.controller:type=ControllerStats,name=UncleanLeaderElectionsPerSec",
    )
    set_backs: int = counter(
        "parley_store_set_backs",
        "How often the coordination store was found to be restored to an older state.",
    )


class LogMetrics(Instruments, title="Logs", labels=("topic", "partition")):
    """The log of one partition at this broker."""

    size_bytes: int = gauge("parley_log_size_bytes", "Bytes of all segments.", _LOG.format("Size"))
    segments: int = gauge("parley_log_segments", "Segments.", _LOG.format("NumLogSegments"))
    log_start_offset: int = gauge("parley_log_start_offset", "Log start offset.", _LOG.format("LogStartOffset"))
    log_end_offset: int = gauge("parley_log_end_offset", "Log end offset.", _LOG.format("LogEndOffset"))


class LogDirectoryMetrics(Instruments, title="Log directories", labels=("directory",)):
    """A data directory."""

    offline: int = gauge(
        "parley_log_directory_offline",
        "1 if the directory has failed.",
        "kafka.log:type=LogManager,name=LogDirectoryOffline,logDirectory=*",
    )


class DamageMetrics(Instruments, title="Damaged records"):
    """Damaged and missing records in the logs of this broker."""

    damaged_partitions: int = gauge("parley_damaged_partitions", "Hosted replicas with damaged records.")
    ranges: int = gauge("parley_damaged_ranges", "Ranges of damaged records that are not replaced yet.")
    ranges_without_copy: int = gauge(
        "parley_damaged_ranges_without_copy",
        "Ranges of damaged records that no live replica has: fetches of them get CORRUPT_MESSAGE.",
    )
    healed_ranges: int = counter(
        "parley_damage_healed_ranges", "Ranges of damaged records replaced from another replica."
    )
    healed_bytes: int = counter("parley_damage_healed_bytes", "Bytes of records fetched to replace damaged ones.")
    handed_over: int = counter(
        "parley_damage_handed_over_leaderships", "Leaderships given up because the leader's log was damaged."
    )
    scrubbed_bytes: int = counter("parley_scrubbed_bytes", "Bytes read again by the scrubber.")
    overdue_bytes: int = gauge(
        "parley_scrub_overdue_bytes",
        "Bytes that the scrubber has not read within log.scrub.interval.ms.",
    )


class CleanerMetrics(Instruments, title="Log cleaner"):
    """The compaction of logs with ``cleanup.policy=compact``. Logs here are partitions at this broker."""

    running: int = gauge("parley_cleaner_running", "Logs being compacted; the limit is log.cleaner.threads.")
    max_dirty_percent: float = gauge(
        "parley_cleaner_max_dirty_percent",
        "The part of the dirtiest log that compaction has not processed yet, when the cleaner last looked.",
        _CLEANER_MANAGER.format("max-dirty-percent"),
    )
    since_last_look_seconds: float = gauge(
        "parley_cleaner_since_last_look_seconds",
        "Time since the cleaner last looked for logs to compact.",
        _CLEANER_MANAGER.format("time-since-last-run-ms"),
    )
    recopy_percent: float = gauge(
        "parley_cleaner_recopy_percent",
        "The part of the data read that the last compactions kept.",
        _CLEANER.format("cleaner-recopy-percent"),
    )
    map_utilization_percent: float = gauge(
        "parley_cleaner_max_buffer_utilization_percent",
        "How full the table of keys became in the last compactions. If it is full, a log needs several runs: see "
        "log.cleaner.dedupe.buffer.size.",
        _CLEANER.format("max-buffer-utilization-percent"),
    )
    max_run_seconds: float = gauge(
        "parley_cleaner_max_clean_seconds",
        "The longest of the last compactions.",
        _CLEANER.format("max-clean-time-secs"),
    )
    max_delay_seconds: float = gauge(
        "parley_cleaner_max_compaction_delay_seconds",
        "By how much the oldest record of the last compactions exceeded max.compaction.lag.ms.",
        _CLEANER.format("max-compaction-delay-secs"),
    )
    runs: int = counter("parley_cleaner_runs", "Compactions that succeeded.")
    failures: int = counter("parley_cleaner_failures", "Compactions that failed.")
    dead_workers: int = counter(
        "parley_cleaner_dead_workers",
        "Worker processes of the cleaner that ended unexpectedly. They are replaced.",
        _CLEANER.format("DeadThreadCount"),
    )
    bytes_read: int = counter("parley_cleaner_read_bytes", "Bytes of logs that were compacted, before it.")
    bytes_kept: int = counter("parley_cleaner_kept_bytes", "Bytes of logs that were compacted, after it.")
    records_read: int = counter("parley_cleaner_read_records", "Records in logs that were compacted, before it.")
    records_kept: int = counter("parley_cleaner_kept_records", "Records in logs that were compacted, after it.")


class UncleanableMetrics(Instruments, title="Uncleanable logs", labels=("directory",)):
    """The logs in a data directory that cannot be compacted: their compaction failed, or they have damaged records."""

    partitions: int = gauge(
        "parley_uncleanable_partitions",
        "Logs that cannot be compacted.",
        _CLEANER_MANAGER.format("uncleanable-partitions-count,logDirectory=*"),
    )
    size_bytes: int = gauge(
        "parley_uncleanable_bytes",
        "Bytes of logs that cannot be compacted.",
        _CLEANER_MANAGER.format("uncleanable-bytes,logDirectory=*"),
    )


class FlushMetrics(Instruments, title="Flushes"):
    """Flushes of logs to disk."""

    flushes: Histogram = seconds_histogram(
        "parley_log_flush_seconds",
        "Duration of a flush of a log to disk.",
        "kafka.log:type=LogFlushStats,name=LogFlushRateAndTimeMs",
    )


class FetchSessionMetrics(Instruments, title="Fetch sessions"):
    """Fetch sessions (KIP-227)."""

    sessions: int = gauge(
        "parley_fetch_sessions",
        "Cached sessions; the limit is max.incremental.fetch.session.cache.slots.",
        "kafka.server:type=FetchSessionCache,name=NumIncrementalFetchSessions",
    )
    partitions: int = gauge(
        "parley_fetch_session_partitions",
        "Partitions in the cached sessions.",
        "kafka.server:type=FetchSessionCache,name=NumIncrementalFetchPartitionsCached",
    )
    evictions: int = counter(
        "parley_fetch_session_evictions",
        "Sessions evicted in favour of others.",
        "kafka.server:type=FetchSessionCache,name=IncrementalFetchSessionEvictionsPerSec",
    )


class TransactionMetrics(Instruments, title="Transactional ids", labels=("state",)):
    """The transactional ids that this broker coordinates, by state."""

    transactional_ids: int = gauge("parley_transactional_ids", "Transactional ids in this state.")


class MarkerMetrics(Instruments, title="Markers of transactions"):
    """The markers that this broker, as the coordinator, has the leaders of partitions write."""

    transactions: int = gauge(
        "parley_transactions_completing", "Transactions whose outcome is stored and whose markers are being written."
    )
    leaderless: int = counter(
        "parley_transaction_markers_leaderless",
        "Attempts to write a marker to a partition without a leader.",
        "kafka.coordinator.transaction:type=TransactionMarkerChannelManager,name=UnknownDestinationQueueSize",
    )


class GroupMetrics(Instruments, title="Groups", labels=("state",)):
    """The groups of the classic protocol that this broker coordinates, by state."""

    groups: int = gauge(
        "parley_groups",
        "Groups in this state.",
        "kafka.coordinator.group:type=GroupMetadataManager,name=NumGroups*",
    )


class ConsumerGroupMetrics(Instruments, title="Groups of the consumer protocol", labels=("state",)):
    """The groups of the consumer protocol (KIP-848) that this broker coordinates, by state."""

    consumer_groups: int = gauge(
        "parley_consumer_groups",
        "Groups of the consumer protocol in this state.",
        "kafka.server:type=group-coordinator-metrics,name=consumer-group-count,state=*",
    )


class GroupMemberMetrics(Instruments, title="Members of groups", labels=("group", "type")):
    """The groups with members that this broker coordinates, at most ``metrics.group.partitions.max`` of them. ``type``
    is classic or consumer."""

    members: int = gauge("parley_group_members", "Members of the group.")
    epoch: int = gauge(
        "parley_group_epoch",
        "The epoch of the group; its generation if it uses the classic protocol. Each rebalance raises it.",
    )


class GroupLagMetrics(Instruments, title="Lag of groups", labels=("group", "topic", "partition")):
    """What groups that this broker coordinates have committed, for at most ``metrics.group.partitions.max`` partitions,
    and how far behind they are. The lag is that to the high watermark which this broker knows: it is left out if this
    broker has no replica of the partition, or one that is not in sync."""

    lag: int = gauge(
        "parley_group_lag_records",
        "Records from the committed offset to the end of the partition. A follower may know the end some moments late.",
        "kafka.consumer:type=consumer-fetch-manager-metrics,partition=*,topic=*,client-id=*: records-lag",
    )
    offset: int = gauge("parley_group_committed_offset", "The committed offset.")


class GroupOffsetMetrics(Instruments, title="Committed offsets"):
    """The work of the group coordinator."""

    offsets: int = gauge(
        "parley_group_offsets",
        "Stored committed offsets.",
        "kafka.coordinator.group:type=GroupMetadataManager,name=NumOffsets",
    )
    commits: int = counter(
        "parley_group_offset_commits",
        "Commits of offsets.",
        "kafka.server:type=group-coordinator-metrics: offset-commit-count",
    )
    expired: int = counter(
        "parley_group_offset_expirations",
        "Committed offsets that expired after offsets.retention.minutes.",
        "kafka.server:type=group-coordinator-metrics: offset-expiration-count",
    )
    rebalances: int = counter(
        "parley_group_rebalances",
        "Completed rebalances of groups of the classic protocol.",
        "kafka.server:type=group-coordinator-metrics: group-completed-rebalance-count",
    )
    consumer_rebalances: int = counter(
        "parley_consumer_group_rebalances",
        "Epochs that groups of the consumer protocol have begun.",
        "kafka.server:type=group-coordinator-metrics: consumer-group-rebalance-count",
    )


_COORDINATOR = "kafka.server:type=*-coordinator-metrics: {}"


class CoordinatorPartitionMetrics(Instruments, title="Coordinators: partitions", labels=("topic", "state")):
    """The partitions of each internal topic that this broker leads, by state: loading, active, or failed (the last
    attempt to read it failed)."""

    partitions: int = gauge(
        "parley_coordinator_partitions", "Partitions in this state.", _COORDINATOR.format("num-partitions")
    )


class CoordinatorMetrics(Instruments, title="Coordinators", labels=("topic",)):
    """The work of the coordinators of groups and of transactions, by their internal topic."""

    queued: int = gauge(
        "parley_coordinator_queued_events", "Events that wait for their turn.", _COORDINATOR.format("event-queue-size")
    )
    appends: int = counter(
        "parley_coordinator_appends",
        "Batches of records written. Several events share one.",
        _COORDINATOR.format("batch-flush-rate"),
    )
    commit_time: Histogram = seconds_histogram(
        "parley_coordinator_commit_seconds",
        "The time from an append until all in-sync replicas have it.",
        _COORDINATOR.format("event-purgatory-time-ms-*"),
    )
    load_time: Histogram = seconds_histogram(
        "parley_coordinator_load_seconds",
        "The time that it took to load a partition after an election.",
        _COORDINATOR.format("partition-load-time-*"),
    )
    skipped: int = counter(
        "parley_coordinator_skipped_records",
        "Records that were skipped while a partition was loaded, because they could not be understood.",
    )


_AUTHORIZER = "kafka.server:type=authorizer-metrics,name={}"


class AuthorizationMetrics(Instruments, title="Authorization"):
    """What clients were allowed and denied. Without an authorizer everything is 0."""

    allowed: int = counter(
        "parley_authorization_allowed",
        "Checks of operations that clients wanted to perform and may perform.",
        _AUTHORIZER.format("authorization-allowed-rate-per-minute"),
    )
    denied: int = counter(
        "parley_authorization_denied",
        "Checks of operations that clients wanted to perform and may not perform. The audit log has them.",
        _AUTHORIZER.format("authorization-denied-rate-per-minute"),
    )
    acls: int = gauge("parley_acls", "ACLs of the cluster.", _AUTHORIZER.format("acls-total-count"))


class ProcessMetrics(Instruments, title="Process"):
    """The process of this broker, in addition to the ``process_*`` and ``python_gc_*`` of Prometheus' client."""

    loop_delay_seconds: float = gauge(
        "parley_event_loop_delay_seconds",
        "How long the scrape waited for the event loop. A request arriving at that moment would have waited as long.",
        "kafka.network:type=SocketServer,name=NetworkProcessorAvgIdlePercent",
    )
    start_time_seconds: float = gauge(
        "parley_start_time_seconds", "The time when the broker became ready, in seconds since 1970-01-01 UTC."
    )


class ShortageMetrics(Instruments, title="Shortages", labels=("resource",)):
    """What the process has run out of: file descriptors, memory."""

    shortages: int = counter("parley_shortages", "Work that met a shortage since the process began.")
    is_short: int = gauge("parley_short", "1 while the broker lives on its reserve, or cannot refill it.")


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
    GroupMemberMetrics,
    GroupLagMetrics,
    GroupOffsetMetrics,
    CoordinatorPartitionMetrics,
    CoordinatorMetrics,
    AuthorizationMetrics,
    ProcessMetrics,
    ShortageMetrics,
)
"""All classes of instruments, in the order of the documentation."""
