"""Why some of Kafka's keys have no effect in Parley.

The documentation, the broker's log and ``parley configs`` show these reasons.
"""

TICKETS = "Tickets from a keytab are fetched when a login needs them. Another program renews those in a ticket cache."
TLS_VERSIONS = "ssl.enabled.protocols lists the allowed versions. The newest version that both sides support is used."
TOKEN_REFRESH = "A login fetches a new token if the last one is about to expire. There is no schedule."
QUOTA_DEFAULTS = "Kafka 3.0 removed it: give the default client id a quota (parley configs --entity-type clients)."
DOWN_CONVERSION = "Batches are always converted for consumers that cannot read them."
NEW_GROUPS = "The feature group.version decides whether groups may use the consumer protocol."
METRICS_PUSH = "Metrics pushed by clients are not supported yet."

JAVA = "It configures a part of the Java platform."
KRAFT = "Parley has no metadata quorum: the store of coordination.url coordinates the cluster."
LOOP = "A broker is served by one event loop. To use more cores, run more brokers."
PURGATORY = "A completed request leaves nothing in the purgatory."
FORMAT = "Records are stored in message format v2 only (KIP-724)."
METRICS = "Prometheus scrapes the metrics from metrics.listener."
CLEANER_BUFFER = "The buffers of the log cleaner are as large as the largest batch that it reads."
TIERED = "Tiered storage is not supported."
