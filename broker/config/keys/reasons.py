"""Why some of Kafka's keys have no effect here: said once each, shown in the documentation and to whoever sets one."""

TLS = "TLS is not in this release."
SASL = "SASL is not in this release."
ACLS = "Authorization is not in this release."
QUOTAS = "Quotas are not in this release."
COMPACTION = "Compaction is not in this release."
TRANSACTIONS = "Transactions are not in this release."
NEW_GROUPS = "Only groups of the classic protocol are in this release."
REPLICATION = "It belongs to clusters of several brokers, which are not in this release."
METRICS_PUSH = "Metrics pushed by clients are not in this release."
ZOOKEEPER = (
    "TLS with ZooKeeper is as the system allows it, with PEM files. A key's password goes into the key-password-file "
    "of coordination.url."
)

JAVA = "It names a part of the Java platform."
KRAFT = "There is no metadata quorum: the cluster is coordinated by the store of coordination.url."
LOOP = "One event loop serves a broker. To use more cores, run more brokers."
PURGATORY = "An answered request leaves nothing behind among the waiting ones."
FORMAT = "Records are stored in format v2 only (KIP-724)."
METRICS = "Metrics are read from metrics.listener by Prometheus."
TIERED = "There is no tiered storage."
