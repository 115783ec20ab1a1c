"""Why some of Kafka's keys have no effect in Parley.

The documentation, the broker's log and ``parley configs`` show these reasons.
"""

TLS = "TLS is not supported yet."
SASL = "SASL is not supported yet."
ACLS = "Authorization is not supported yet."
QUOTAS = "Quotas are not supported yet."
DOWN_CONVERSION = "Batches are always converted for consumers that cannot read them."
NEW_GROUPS = "Only consumer groups of the classic protocol are supported yet."
METRICS_PUSH = "Metrics pushed by clients are not supported yet."

JAVA = "It configures a part of the Java platform."
KRAFT = "Parley has no metadata quorum: the store of coordination.url coordinates the cluster."
LOOP = "A broker is served by one event loop. To use more cores, run more brokers."
PURGATORY = "A completed request leaves nothing in the purgatory."
FORMAT = "Records are stored in message format v2 only (KIP-724)."
METRICS = "Prometheus scrapes the metrics from metrics.listener."
CLEANER_BUFFER = "The buffers of the log cleaner are as large as the largest batch that it reads."
TIERED = "Tiered storage is not supported."
