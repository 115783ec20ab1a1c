"""Metrics of client activity: topics, requests, connections, quotas, fetch sessions, authorization."""

from __future__ import annotations

from parley.broker.metrics.instruments import Histogram, Instruments, counter, gauge, seconds_histogram

_TOPIC = "kafka.server:type=BrokerTopicMetrics,name={},topic=*"
_REQUEST = "kafka.network:type=RequestMetrics,name={},request=*"
_AUTHORIZER = "kafka.server:type=authorizer-metrics,name={}"


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
    """The requests of one API, and the time they spend in each stage. Every request passes through the stages in this
    order. Fetch is split into FetchConsumer and FetchFollower."""

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
        "Time that responses waited for the client to read them. Responses that the socket accepts immediately do "
        "not count.",
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
        "Connections closed without being served, because their address opens too many per second "
        "(connection_creation_rate).",
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
        "Logins with an expiring session by clients that cannot re-authenticate (before KIP-368).",
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
        "When the first certificate in the listener's chain expires, in seconds since 1970; 0 without TLS.",
    )
    revocation_lists_expire_at: float = gauge(
        "parley_revocation_list_expiry_timestamp_seconds",
        "When the first of the listener's revocation lists expires, in seconds since 1970; 0 without lists.",
    )
    evicted: int = counter(
        "parley_connections_evicted",
        "Client connections closed, longest idle first, because the process's limit of open files does not allow more.",
    )


class ClientQuotaMetrics(Instruments, title="Client quotas", labels=("quota", "user", "client_id")):
    """The use of one quota by the clients that share it: produce, fetch, request, controller_mutation.

    An empty label means that the quota does not depend on it. The 1,000 most recently used entries of each quota are
    exported.
    """

    limit: float = gauge(
        "parley_client_quota_limit", "The quota: bytes per second, percent of one core, or partitions per second."
    )
    level: float = gauge(
        "parley_client_quota_level",
        "The rate that is compared with the quota. For controller_mutation: the remaining tokens, negative while "
        "changes are rejected.",
        "kafka.server:type=Produce|Fetch,user=*,client-id=*: byte-rate; kafka.server:type=Request,user=*,client-id=*: "
        "request-time; kafka.server:type=ControllerMutation,user=*,client-id=*: tokens",
    )
    used: float = counter(
        "parley_client_quota_used",
        "The amount used: bytes, percent-seconds of one core, or partitions created and deleted.",
        "kafka.server:type=ControllerMutation,user=*,client-id=*: mutation-rate",
    )
    throttles: int = counter("parley_client_quota_throttles", "Responses whose client was throttled by this quota.")
    throttle_seconds: float = counter(
        "parley_client_quota_throttle_seconds",
        "Total throttle time of these responses. Divided by their number, it is Kafka's average.",
        "kafka.server:type=Produce|Fetch|Request|ControllerMutation,user=*,client-id=*: throttle-time",
    )


class QuotaMetrics(Instruments, title="Quotas"):
    """The quotas of all clients combined."""

    throttled_connections: int = gauge(
        "parley_throttled_connections",
        "Connections from which the broker does not read, because their client is throttled.",
        "kafka.server:type=Produce|Fetch|Request|ControllerMutation: queue-size",
    )
    exempt_seconds: float = counter(
        "parley_exempt_request_seconds",
        "Request time of brokers and logins, which is exempt from quotas. Measured only while there are quotas.",
        "kafka.server:type=Request: exempt-request-time",
    )


class ConnectionLimitMetrics(Instruments, title="Limit of connections"):
    """The connection limit that all listeners of this broker share."""

    limit: int = gauge(
        "parley_connections_limit",
        "Connections that this broker accepts: max.connections, or fewer if the limit of open files allows fewer.",
    )


class LoadMetrics(Instruments, title="Load"):
    """The requests in progress, and the memory that they take."""

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
    """Responses waiting for an event."""

    waiting: int = gauge(
        "parley_purgatory_size",
        "Responses that wait for replicas, for records, or for members of a group.",
        "kafka.server:type=DelayedOperationPurgatory,name=PurgatorySize,delayedOperation=*",
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
        "Sessions evicted to make room for others.",
        "kafka.server:type=FetchSessionCache,name=IncrementalFetchSessionEvictionsPerSec",
    )


class AuthorizationMetrics(Instruments, title="Authorization"):
    """Operations that clients were allowed and denied. Without an authorizer everything is 0."""

    allowed: int = counter(
        "parley_authorization_allowed",
        "Checks that allowed an operation that a client attempted.",
        _AUTHORIZER.format("authorization-allowed-rate-per-minute"),
    )
    denied: int = counter(
        "parley_authorization_denied",
        "Checks that denied an operation that a client attempted. The audit log lists them.",
        _AUTHORIZER.format("authorization-denied-rate-per-minute"),
    )
    acls: int = gauge("parley_acls", "ACLs in the cluster.", _AUTHORIZER.format("acls-total-count"))
