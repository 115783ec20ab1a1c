"""Consumer groups and their committed offsets."""

from __future__ import annotations

from parley.broker.config.key_definition import (
    CLUSTER_WIDE,
    HIGH,
    MAX_INT,
    Keys,
    boolean,
    integer,
    long,
    short,
    string,
    strings,
)
from parley.broker.config.keys.reasons import LOOP, NEW_GROUPS


def _migration_policy(text: str) -> bool:
    return text.lower() in ("disabled", "downgrade", "upgrade", "bidirectional")


class GroupKeys(Keys, title="Groups"):
    """Consumer groups and their committed offsets."""

    group_min_session_timeout_ms = integer(
        "group.min.session.timeout.ms",
        6_000,
        "The shortest session timeout that a consumer may request. A lower limit detects dead consumers sooner "
        "and costs more heartbeats.",
        at_least=0,
        unit="ms",
    )
    group_max_session_timeout_ms = integer(
        "group.max.session.timeout.ms",
        1_800_000,
        "The longest session timeout that a consumer may request.",
        at_least=0,
        unit="ms",
    )
    group_initial_rebalance_delay_ms = integer(
        "group.initial.rebalance.delay.ms",
        3_000,
        "How long the first rebalance of an empty group waits for more members, so that members that start "
        "together get their partitions in one rebalance. 0 suits tests and single consumers.",
        at_least=0,
        unit="ms",
        since="0.11.0 (KIP-134)",
    )
    group_max_size = integer(
        "group.max.size",
        MAX_INT,
        "The maximum number of members of a group; more are rejected.",
        at_least=1,
        unit="members",
        since="2.2 (KIP-389)",
    )
    group_coordinator_rebalance_protocols = strings(
        "group.coordinator.rebalance.protocols",
        ("classic", "consumer", "streams"),
        "The group protocols that the broker supports.",
        since="3.7 (KIP-848)",
        ignored=NEW_GROUPS,
    )
    group_coordinator_new_enable = boolean(
        "group.coordinator.new.enable",
        False,
        "Whether Kafka 3.7 to 3.9 uses its newer group coordinator.",
        since="3.5 (KIP-848)",
        ignored="Parley has only one group coordinator.",
    )
    group_coordinator_threads = integer(
        "group.coordinator.threads",
        4,
        "The number of threads of Kafka's group coordinator.",
        at_least=1,
        importance=HIGH,
        since="3.5 (KIP-848)",
        ignored=LOOP,
    )
    group_coordinator_background_threads = integer(
        "group.coordinator.background.threads",
        2,
        "The number of threads for slow work of Kafka's group coordinator.",
        at_least=1,
        importance=HIGH,
        since="4.3",
        ignored=LOOP,
    )
    group_coordinator_append_linger_ms = integer(
        "group.coordinator.append.linger.ms",
        -1,
        "How long Kafka's coordinator collects changes of groups to write them together. -1 means until the write in "
        "progress is complete.",
        at_least=-1,
        unit="ms",
        since="3.8 (KIP-848)",
        ignored="Changes are appended once per turn of the event loop.",
    )
    group_coordinator_cached_buffer_max_bytes = integer(
        "group.coordinator.cached.buffer.max.bytes",
        1_048_588,
        "The size of the largest buffer that Kafka's coordinator keeps for reuse.",
        at_least=524_288,
        unit="bytes",
        dynamic=CLUSTER_WIDE,
        since="4.3",
        ignored="Buffers are not pooled.",
    )
    group_consumer_session_timeout_ms = integer(
        "group.consumer.session.timeout.ms",
        45_000,
        "The session timeout of members of groups that use the consumer protocol.",
        at_least=1,
        unit="ms",
        since="3.5 (KIP-848)",
    )
    group_consumer_min_session_timeout_ms = integer(
        "group.consumer.min.session.timeout.ms",
        45_000,
        "The minimum that a group can set for group.consumer.session.timeout.ms.",
        at_least=1,
        unit="ms",
        since="3.5 (KIP-848)",
    )
    group_consumer_max_session_timeout_ms = integer(
        "group.consumer.max.session.timeout.ms",
        60_000,
        "The maximum that a group can set for group.consumer.session.timeout.ms.",
        at_least=1,
        unit="ms",
        since="3.5 (KIP-848)",
    )
    group_consumer_heartbeat_interval_ms = integer(
        "group.consumer.heartbeat.interval.ms",
        5_000,
        "How often members of groups that use the consumer protocol send heartbeats.",
        at_least=1,
        unit="ms",
        since="3.5 (KIP-848)",
    )
    group_consumer_min_heartbeat_interval_ms = integer(
        "group.consumer.min.heartbeat.interval.ms",
        5_000,
        "The minimum that a group can set for group.consumer.heartbeat.interval.ms.",
        at_least=1,
        unit="ms",
        since="3.5 (KIP-848)",
    )
    group_consumer_max_heartbeat_interval_ms = integer(
        "group.consumer.max.heartbeat.interval.ms",
        15_000,
        "The maximum that a group can set for group.consumer.heartbeat.interval.ms.",
        at_least=1,
        unit="ms",
        since="3.5 (KIP-848)",
    )
    group_consumer_assignment_interval_ms = integer(
        "group.consumer.assignment.interval.ms",
        1_000,
        "The minimum time between two assignments of a group that uses the consumer protocol.",
        at_least=0,
        unit="ms",
        dynamic=CLUSTER_WIDE,
        since="4.3 (KIP-1263)",
    )
    group_consumer_min_assignment_interval_ms = integer(
        "group.consumer.min.assignment.interval.ms",
        0,
        "The minimum that a group can set for group.consumer.assignment.interval.ms.",
        at_least=0,
        unit="ms",
        since="4.3 (KIP-1263)",
    )
    group_consumer_max_assignment_interval_ms = integer(
        "group.consumer.max.assignment.interval.ms",
        15_000,
        "The maximum that a group can set for group.consumer.assignment.interval.ms.",
        at_least=0,
        unit="ms",
        since="4.3 (KIP-1263)",
    )
    group_consumer_max_size = integer(
        "group.consumer.max.size",
        MAX_INT,
        "The maximum number of members of a group that uses the consumer protocol.",
        at_least=1,
        unit="members",
        since="3.5 (KIP-848)",
    )
    group_consumer_assignors = strings(
        "group.consumer.assignors",
        ("uniform", "range"),
        "The server-side assignors. A group that does not choose an assignor uses the first one.",
        since="3.5 (KIP-848)",
    )
    group_consumer_migration_policy = string(
        "group.consumer.migration.policy",
        "bidirectional",
        "Whether a group can change its protocol while it has members: upgrade to the consumer protocol, downgrade "
        "to the classic one, both (bidirectional), or neither (disabled).",
        check=_migration_policy,
        form="one of disabled, downgrade, upgrade, bidirectional",
        since="3.8 (KIP-848)",
    )
    group_consumer_regex_refresh_interval_ms = integer(
        "group.consumer.regex.refresh.interval.ms",
        600_000,
        "How often the regular expressions of groups are matched against the topics again.",
        at_least=10_000,
        unit="ms",
        since="4.1 (KIP-848)",
    )
    offset_metadata_max_bytes = integer(
        "offset.metadata.max.bytes",
        4_096,
        "The maximum size of the metadata that a consumer can attach to a committed offset.",
        at_least=0,
        unit="bytes",
        importance=HIGH,
    )
    offsets_retention_minutes = integer(
        "offsets.retention.minutes",
        10_080,
        "How long the committed offsets of an empty group, or of a topic that a group no longer subscribes to, "
        "are kept.",
        at_least=1,
        unit="min",
        importance=HIGH,
    )
    offsets_retention_check_interval_ms = long(
        "offsets.retention.check.interval.ms",
        600_000,
        "How often the broker looks for expired offsets.",
        at_least=1,
        unit="ms",
        importance=HIGH,
    )
    offsets_commit_timeout_ms = integer(
        "offsets.commit.timeout.ms",
        5_000,
        "How long a commit, or another change of a group, waits for the replicas of the offsets topic.",
        at_least=1,
        unit="ms",
        importance=HIGH,
    )
    offsets_commit_required_acks = short(
        "offsets.commit.required.acks",
        -1,
        "The acknowledgements that a commit waits for: -1 means all in-sync replicas.",
        importance=HIGH,
        deprecated="nothing: leave it at -1",
        ignored="A commit always waits for all in-sync replicas.",
    )
    offsets_load_buffer_size = integer(
        "offsets.load.buffer.size",
        5_242_880,
        "The number of bytes of the offsets topic that are read at a time when a coordinator loads groups.",
        at_least=1,
        unit="bytes",
        importance=HIGH,
        ignored="The broker chooses the size of its reads from the offsets topic.",
    )
    offsets_topic_num_partitions = integer(
        "offsets.topic.num.partitions",
        50,
        "The number of partitions of the offsets topic, over which groups are distributed. Used only when the topic "
        "is created, because a later change would lose groups.",
        at_least=1,
        importance=HIGH,
    )
    offsets_topic_replication_factor = short(
        "offsets.topic.replication.factor",
        3,
        "The replication factor of the offsets topic, which is created when the first group needs it. Groups do not "
        "work until the cluster has that many brokers, so a single broker needs 1.",
        at_least=1,
        importance=HIGH,
    )
    offsets_topic_segment_bytes = integer(
        "offsets.topic.segment.bytes",
        104_857_600,
        "The segment size of the offsets topic. It is small so that compaction keeps the topic short, and loading "
        "fast.",
        at_least=1,
        unit="bytes",
        importance=HIGH,
    )
    offsets_topic_compression_codec = integer(
        "offsets.topic.compression.codec",
        0,
        "The compression of records in the offsets topic: 0 none, 1 gzip, 2 snappy, 3 lz4, 4 zstd.",
        at_least=0,
        at_most=4,
        importance=HIGH,
        ignored="The records of the offsets topic are not compressed.",
    )
