"""How topics come into being, and the rules for their records where a topic says nothing else."""

from __future__ import annotations

from parley.broker.config.definition import (
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


class TopicDefaultKeys(Keys, title="Topics' defaults"):
    """How topics come into being, and the rules for their records where a topic says nothing else."""

    auto_create_topics_enable = boolean(
        "auto.create.topics.enable",
        True,
        "Whether a topic is made when a client asks for one that does not exist. Turn it off where topics are "
        "made on purpose, so that a misspelt name is an error.",
        importance=HIGH,
    )
    delete_topic_enable = boolean(
        "delete.topic.enable",
        True,
        "Whether clients may delete topics.",
        importance=HIGH,
    )
    num_partitions = integer(
        "num.partitions",
        1,
        "The partitions of a topic that is created without saying how many.",
        at_least=1,
    )
    default_replication_factor = integer(
        "default.replication.factor",
        1,
        "The replicas of a topic that is created without saying how many.",
        at_least=1,
    )
    create_topic_policy_class_name = class_name(
        "create.topic.policy.class.name",
        "A class of your own, package.module.Class, that may refuse the creation of a topic: its "
        "validate(request) raises parley.broker.controller.policies.PolicyViolation.",
        importance=LOW,
        since="0.10.2 (KIP-108)",
    )
    alter_config_policy_class_name = class_name(
        "alter.config.policy.class.name",
        "A class of your own, package.module.Class, that may refuse a change of configuration: its "
        "validate(request) raises parley.broker.controller.policies.PolicyViolation.",
        importance=LOW,
        since="0.11.0 (KIP-133)",
    )
    alter_config_policy_kraft_compatibility_enable = boolean(
        "alter.config.policy.kraft.compatibility.enable",
        False,
        "Whether Kafka, before it had a metadata quorum, showed an AlterConfigPolicy only the changed entries.",
        importance=LOW,
        since="3.9",
        ignored="A policy always sees the entries as they would be after the change.",
    )
    message_max_bytes = integer(
        "message.max.bytes",
        1_048_588,
        "The longest batch of records a producer may send, as compressed by it. Consumers and "
        "replica.fetch.max.bytes need not be raised with it. Topics may say otherwise with max.message.bytes.",
        at_least=0,
        unit="bytes",
        dynamic=CLUSTER_WIDE,
        importance=HIGH,
    )
    compression_type = string(
        "compression.type",
        "producer",
        "What records are compressed with in the log: producer keeps what the producer chose, uncompressed "
        "removes it, a codec's name recompresses whatever comes.",
        allowed=("uncompressed", "zstd", "lz4", "snappy", "gzip", "producer"),
        dynamic=CLUSTER_WIDE,
        importance=HIGH,
    )
    compression_gzip_level = integer(
        "compression.gzip.level",
        -1,
        "The level for compression.type=gzip: 1 fast to 9 small, -1 the codec's own default.",
        besides=(-1,),
        at_least=1,
        at_most=9,
        dynamic=CLUSTER_WIDE,
        since="3.8 (KIP-390)",
    )
    compression_lz4_level = integer(
        "compression.lz4.level",
        9,
        "The level for compression.type=lz4: 1 fast to 17 small.",
        at_least=1,
        at_most=17,
        dynamic=CLUSTER_WIDE,
        since="3.8 (KIP-390)",
    )
    compression_zstd_level = integer(
        "compression.zstd.level",
        3,
        "The level for compression.type=zstd: 22 is smallest; the lower (also below zero) the faster.",
        at_least=-131_072,
        at_most=22,
        dynamic=CLUSTER_WIDE,
        since="3.8 (KIP-390)",
    )
    log_message_timestamp_type = string(
        "log.message.timestamp.type",
        "CreateTime",
        "Whose clock stamps records: CreateTime keeps the producer's, LogAppendTime writes the broker's.",
        allowed=("CreateTime", "LogAppendTime"),
        dynamic=CLUSTER_WIDE,
        since="0.10.0 (KIP-32)",
    )
    log_message_timestamp_before_max_ms = long(
        "log.message.timestamp.before.max.ms",
        MAX_LONG,
        "How much older than the broker's clock a record's timestamp may be; older ones are refused. Only for "
        "CreateTime.",
        at_least=0,
        unit="ms",
        dynamic=CLUSTER_WIDE,
        since="3.6 (KIP-937)",
    )
    log_message_timestamp_after_max_ms = long(
        "log.message.timestamp.after.max.ms",
        3_600_000,
        "How far ahead of the broker's clock a record's timestamp may be; later ones are refused. Only for "
        "CreateTime. Protects retention by time against producers whose clock is wrong.",
        at_least=0,
        unit="ms",
        dynamic=CLUSTER_WIDE,
        since="3.6 (KIP-937)",
    )
    log_message_timestamp_difference_max_ms = long(
        "log.message.timestamp.difference.max.ms",
        MAX_LONG,
        "Both log.message.timestamp.before.max.ms and log.message.timestamp.after.max.ms, as the two were one "
        "before Kafka 3.6. Used for each of them that is not given itself.",
        at_least=0,
        unit="ms",
        dynamic=CLUSTER_WIDE,
        since="0.10.0 (KIP-32)",
        deprecated="log.message.timestamp.before.max.ms, log.message.timestamp.after.max.ms",
    )
    log_message_format_version = string(
        "log.message.format.version",
        "3.0-IV1",
        "The format records are stored in, by the Kafka version that brought it.",
        since="0.10.0",
        ignored=FORMAT,
    )
    log_message_downconversion_enable = boolean(
        "log.message.downconversion.enable",
        True,
        "Whether batches are converted for consumers so old that they cannot read them; if not, their fetches fail.",
        dynamic=CLUSTER_WIDE,
        importance=LOW,
        since="2.0 (KIP-283)",
        ignored=DOWN_CONVERSION,
    )
    inter_broker_protocol_version = string(
        "inter.broker.protocol.version",
        "3.9-IV0",
        "The newest requests brokers of a mixed Kafka cluster sent each other.",
        ignored="Brokers find out what each other speaks when they connect.",
    )
    min_insync_replicas = integer(
        "min.insync.replicas",
        1,
        "How many replicas in sync, the leader included, a record of a producer with acks=all needs to be "
        "accepted. With 3 replicas, 2 keeps every acknowledged record through the loss of one broker.",
        at_least=1,
        dynamic=CLUSTER_WIDE,
        importance=HIGH,
    )
    unclean_leader_election_enable = boolean(
        "unclean.leader.election.enable",
        False,
        "Whether a replica that is behind may lead when none in sync is left: available again at the price of "
        "records that had been acknowledged.",
        dynamic=CLUSTER_WIDE,
        importance=HIGH,
    )
    replica_selector_class = string(
        "replica.selector.class",
        None,
        "A class of your own, package.module.Class, that chooses the replica a consumer reads from; "
        "parley.broker.replication.RackAwareReplicaSelector is one that prefers the consumer's rack. By default the "
        "leader.",
        since="2.4 (KIP-392)",
    )
