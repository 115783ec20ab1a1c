"""How topics are created, and the defaults of their settings."""

from __future__ import annotations

from parley.broker.config.key_definition import (
    CLUSTER_WIDE,
    HIGH,
    LOW,
    MAX_LONG,
    Keys,
    boolean,
    class_name,
    integer,
    long,
    string,
)
from parley.broker.config.keys.reasons import DOWN_CONVERSION, FORMAT

RECOVERY_STRATEGIES = ("Balanced", "Aggressive", "None")
RECOVERY_STRATEGY_DOC = (
    "How the controller elects a leader of a partition if every eligible replica has restarted uncleanly or lost its "
    "disk. Balanced: from all replicas that have reported their logs, once all replicas that were last eligible have "
    "done so. Aggressive: immediately, from the live replicas, even if an eligible one may come back; acknowledged "
    "records can be lost. None: only when an operator requests an unclean election."
)


class TopicDefaultKeys(Keys, title="Topics' defaults"):
    """How topics are created, and the defaults of their settings."""

    auto_create_topics_enable = boolean(
        "auto.create.topics.enable",
        True,
        "Whether a topic is created when a client requests one that does not exist. Turn it off if topics should "
        "only be created deliberately, so that a misspelled name is an error.",
        importance=HIGH,
    )
    delete_topic_enable = boolean(
        "delete.topic.enable",
        True,
        "Whether clients can delete topics.",
        importance=HIGH,
    )
    num_partitions = integer(
        "num.partitions",
        1,
        "The number of partitions of a topic that is created without specifying it.",
        at_least=1,
    )
    default_replication_factor = integer(
        "default.replication.factor",
        1,
        "The replication factor of a topic that is created without specifying it.",
        at_least=1,
    )
    create_topic_policy_class_name = class_name(
        "create.topic.policy.class.name",
        "Your own class, package.module.Class, that can reject the creation of a topic: its validate(request) raises "
        "parley.broker.controller.policies.PolicyViolation.",
        importance=LOW,
        since="0.10.2 (KIP-108)",
    )
    alter_config_policy_class_name = class_name(
        "alter.config.policy.class.name",
        "Your own class, package.module.Class, that can reject a change of configuration: its validate(request) "
        "raises parley.broker.controller.policies.PolicyViolation.",
        importance=LOW,
        since="0.11.0 (KIP-133)",
    )
    alter_config_policy_kraft_compatibility_enable = boolean(
        "alter.config.policy.kraft.compatibility.enable",
        False,
        "Whether Kafka, before KRaft, passes only the changed entries to an AlterConfigPolicy.",
        importance=LOW,
        since="3.9",
        ignored="A policy always receives all entries as they would be after the change.",
    )
    message_max_bytes = integer(
        "message.max.bytes",
        1_048_588,
        "The maximum size of a batch of records, after compression by the producer. Consumers and "
        "replica.fetch.max.bytes need not be raised with it. A topic can override it with max.message.bytes.",
        at_least=0,
        unit="bytes",
        dynamic=CLUSTER_WIDE,
        importance=HIGH,
    )
    compression_type = string(
        "compression.type",
        "producer",
        "The compression of records in the log: producer keeps the producer's choice, uncompressed removes "
        "compression, and the name of a codec recompresses every batch.",
        allowed=("uncompressed", "zstd", "lz4", "snappy", "gzip", "producer"),
        dynamic=CLUSTER_WIDE,
        importance=HIGH,
    )
    compression_gzip_level = integer(
        "compression.gzip.level",
        -1,
        "The level for compression.type=gzip, from 1 (fastest) to 9 (smallest); -1 is the codec's default.",
        special_values=(-1,),
        at_least=1,
        at_most=9,
        dynamic=CLUSTER_WIDE,
        since="3.8 (KIP-390)",
    )
    compression_lz4_level = integer(
        "compression.lz4.level",
        9,
        "The level for compression.type=lz4, from 1 (fastest) to 17 (smallest).",
        at_least=1,
        at_most=17,
        dynamic=CLUSTER_WIDE,
        since="3.8 (KIP-390)",
    )
    compression_zstd_level = integer(
        "compression.zstd.level",
        3,
        "The level for compression.type=zstd. 22 gives the smallest batches; lower levels, which can be negative, "
        "are faster.",
        at_least=-131_072,
        at_most=22,
        dynamic=CLUSTER_WIDE,
        since="3.8 (KIP-390)",
    )
    log_message_timestamp_type = string(
        "log.message.timestamp.type",
        "CreateTime",
        "The timestamp of records: CreateTime keeps the producer's timestamp, LogAppendTime replaces it with "
        "the time of the broker's clock.",
        allowed=("CreateTime", "LogAppendTime"),
        dynamic=CLUSTER_WIDE,
        since="0.10.0 (KIP-32)",
    )
    log_message_timestamp_before_max_ms = long(
        "log.message.timestamp.before.max.ms",
        MAX_LONG,
        "How far behind the broker's clock the timestamp of a record can be; older records are rejected. Only for "
        "CreateTime.",
        at_least=0,
        unit="ms",
        dynamic=CLUSTER_WIDE,
        since="3.6 (KIP-937)",
    )
    log_message_timestamp_after_max_ms = long(
        "log.message.timestamp.after.max.ms",
        3_600_000,
        "How far ahead of the broker's clock the timestamp of a record can be; later records are rejected. Only for "
        "CreateTime. This protects time-based retention from producers with wrong clocks.",
        at_least=0,
        unit="ms",
        dynamic=CLUSTER_WIDE,
        since="3.6 (KIP-937)",
    )
    log_message_timestamp_difference_max_ms = long(
        "log.message.timestamp.difference.max.ms",
        MAX_LONG,
        "Sets both log.message.timestamp.before.max.ms and log.message.timestamp.after.max.ms, which were one key "
        "before Kafka 3.6. Used for each of the two keys that is not set itself.",
        at_least=0,
        unit="ms",
        dynamic=CLUSTER_WIDE,
        since="0.10.0 (KIP-32)",
        deprecated="log.message.timestamp.before.max.ms, log.message.timestamp.after.max.ms",
    )
    log_message_format_version = string(
        "log.message.format.version",
        "3.0-IV1",
        "The message format of stored records, as the Kafka version that introduced it.",
        since="0.10.0",
        ignored=FORMAT,
    )
    log_message_downconversion_enable = boolean(
        "log.message.downconversion.enable",
        True,
        "Whether batches are converted for old consumers that cannot read them; otherwise their fetches fail.",
        dynamic=CLUSTER_WIDE,
        importance=LOW,
        since="2.0 (KIP-283)",
        ignored=DOWN_CONVERSION,
    )
    inter_broker_protocol_version = string(
        "inter.broker.protocol.version",
        "3.9-IV0",
        "The newest version of the protocol between brokers in a Kafka cluster of mixed versions.",
        ignored="Brokers negotiate the versions of their requests when they connect.",
    )
    min_insync_replicas = integer(
        "min.insync.replicas",
        1,
        "The minimum number of in-sync replicas, including the leader, for a partition to accept records with "
        "acks=all. With 3 replicas, a value of 2 preserves every acknowledged record if one broker is lost.",
        at_least=1,
        dynamic=CLUSTER_WIDE,
        importance=HIGH,
    )
    unclean_leader_election_enable = boolean(
        "unclean.leader.election.enable",
        False,
        "Whether a replica outside the ISR and the ELR can become leader if none of these is alive. The partition is "
        "available again, but acknowledged records can be lost. Equivalent to unclean.recovery.strategy=Aggressive.",
        dynamic=CLUSTER_WIDE,
        importance=HIGH,
    )
    unclean_recovery_strategy = string(
        "unclean.recovery.strategy",
        "Balanced",
        RECOVERY_STRATEGY_DOC,
        allowed=RECOVERY_STRATEGIES,
        dynamic=CLUSTER_WIDE,
        importance=HIGH,
        since="",
    )
    replica_selector_class = string(
        "replica.selector.class",
        None,
        "Your own class, package.module.Class, that selects the replica that a consumer reads from. "
        "parley.broker.replication.RackAwareReplicaSelector prefers a replica in the consumer's rack. By default "
        "consumers read from the leader.",
        since="2.4 (KIP-392)",
    )
