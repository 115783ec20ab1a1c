"""Share groups, and the coordinator that stores their state."""

from __future__ import annotations

from parley.broker.config.key_definition import CLUSTER_WIDE, HIGH, LOW, Keys, integer, short, strings
from parley.broker.config.keys.reasons import LOOP, PURGATORY


class ShareGroupKeys(Keys, title="Share groups"):
    """Share groups, and the coordinator that stores their state."""

    group_share_session_timeout_ms = integer(
        "group.share.session.timeout.ms",
        45_000,
        "The session timeout of members of share groups: without a heartbeat in this time, a member is removed.",
        at_least=1,
        unit="ms",
        since="4.1 (KIP-932)",
    )
    group_share_min_session_timeout_ms = integer(
        "group.share.min.session.timeout.ms",
        45_000,
        "The minimum that a group can set for share.session.timeout.ms.",
        at_least=1,
        unit="ms",
        since="4.1 (KIP-932)",
    )
    group_share_max_session_timeout_ms = integer(
        "group.share.max.session.timeout.ms",
        60_000,
        "The maximum that a group can set for share.session.timeout.ms.",
        at_least=1,
        unit="ms",
        since="4.1 (KIP-932)",
    )
    group_share_heartbeat_interval_ms = integer(
        "group.share.heartbeat.interval.ms",
        5_000,
        "How often members of share groups send heartbeats.",
        at_least=1,
        unit="ms",
        since="4.1 (KIP-932)",
    )
    group_share_min_heartbeat_interval_ms = integer(
        "group.share.min.heartbeat.interval.ms",
        5_000,
        "The minimum that a group can set for share.heartbeat.interval.ms.",
        at_least=1,
        unit="ms",
        since="4.1 (KIP-932)",
    )
    group_share_max_heartbeat_interval_ms = integer(
        "group.share.max.heartbeat.interval.ms",
        15_000,
        "The maximum that a group can set for share.heartbeat.interval.ms.",
        at_least=1,
        unit="ms",
        since="4.1 (KIP-932)",
    )
    group_share_assignment_interval_ms = integer(
        "group.share.assignment.interval.ms",
        1_000,
        "The minimum time between two assignments of a share group.",
        at_least=0,
        unit="ms",
        dynamic=CLUSTER_WIDE,
        since="4.3 (KIP-1263)",
    )
    group_share_min_assignment_interval_ms = integer(
        "group.share.min.assignment.interval.ms",
        0,
        "The minimum that a group can set for share.assignment.interval.ms.",
        at_least=0,
        unit="ms",
        since="4.3 (KIP-1263)",
    )
    group_share_max_assignment_interval_ms = integer(
        "group.share.max.assignment.interval.ms",
        15_000,
        "The maximum that a group can set for share.assignment.interval.ms.",
        at_least=0,
        unit="ms",
        since="4.3 (KIP-1263)",
    )
    group_share_max_size = integer(
        "group.share.max.size",
        200,
        "The maximum number of members of a share group.",
        at_least=1,
        at_most=1_000,
        unit="members",
        since="4.1 (KIP-932)",
    )
    group_share_assignors = strings(
        "group.share.assignors",
        ("simple",),
        "The server-side assignors of share groups. The first one is used.",
        since="4.1 (KIP-932)",
    )
    group_share_record_lock_duration_ms = integer(
        "group.share.record.lock.duration.ms",
        30_000,
        "How long a record that a member of a share group has acquired is locked for the other members.",
        at_least=1_000,
        at_most=3_600_000,
        unit="ms",
        since="4.1 (KIP-932)",
    )
    group_share_min_record_lock_duration_ms = integer(
        "group.share.min.record.lock.duration.ms",
        15_000,
        "The minimum that a group can set for share.record.lock.duration.ms.",
        at_least=1_000,
        at_most=30_000,
        unit="ms",
        since="4.1 (KIP-932)",
    )
    group_share_max_record_lock_duration_ms = integer(
        "group.share.max.record.lock.duration.ms",
        60_000,
        "The maximum that a group can set for share.record.lock.duration.ms.",
        at_least=30_000,
        at_most=3_600_000,
        unit="ms",
        since="4.1 (KIP-932)",
    )
    group_share_delivery_count_limit = integer(
        "group.share.delivery.count.limit",
        5,
        "The maximum number of times that a record is delivered to a share group.",
        at_least=2,
        at_most=10,
        unit="deliveries",
        since="4.1 (KIP-932)",
    )
    group_share_min_delivery_count_limit = integer(
        "group.share.min.delivery.count.limit",
        2,
        "The minimum that a group can set for share.delivery.count.limit.",
        at_least=2,
        at_most=5,
        unit="deliveries",
        since="4.3 (KIP-1240)",
    )
    group_share_max_delivery_count_limit = integer(
        "group.share.max.delivery.count.limit",
        10,
        "The maximum that a group can set for share.delivery.count.limit.",
        at_least=5,
        at_most=25,
        unit="deliveries",
        since="4.3 (KIP-1240)",
    )
    group_share_partition_max_record_locks = integer(
        "group.share.partition.max.record.locks",
        2_000,
        "The maximum number of records of a partition that members of a share group may have acquired at a time.",
        at_least=100,
        at_most=10_000,
        unit="records",
        since="4.1 (KIP-932)",
    )
    group_share_min_partition_max_record_locks = integer(
        "group.share.min.partition.max.record.locks",
        100,
        "The minimum that a group can set for share.partition.max.record.locks.",
        at_least=100,
        at_most=2_000,
        unit="records",
        since="4.3 (KIP-1240)",
    )
    group_share_max_partition_max_record_locks = integer(
        "group.share.max.partition.max.record.locks",
        4_000,
        "The maximum that a group can set for share.partition.max.record.locks.",
        at_least=2_000,
        at_most=10_000,
        unit="records",
        since="4.3 (KIP-1240)",
    )
    group_share_max_share_sessions = integer(
        "group.share.max.share.sessions",
        2_000,
        "The maximum number of share sessions of a broker.",
        at_least=1,
        unit="sessions",
        since="4.1 (KIP-932)",
    )
    share_fetch_purgatory_purge_interval_requests = integer(
        "share.fetch.purgatory.purge.interval.requests",
        1_000,
        "The number of requests after which Kafka removes completed share fetches from its purgatory.",
        unit="requests",
        since="4.1 (KIP-932)",
        ignored=PURGATORY,
    )
    share_coordinator_state_topic_num_partitions = integer(
        "share.coordinator.state.topic.num.partitions",
        50,
        "The number of partitions of the topic that stores the state of share groups. Used only when the "
        "topic is created.",
        at_least=1,
        importance=HIGH,
        since="4.1 (KIP-932)",
    )
    share_coordinator_state_topic_replication_factor = short(
        "share.coordinator.state.topic.replication.factor",
        3,
        "The replication factor of the topic that stores the state of share groups.",
        at_least=1,
        importance=HIGH,
        since="4.1 (KIP-932)",
    )
    share_coordinator_state_topic_min_isr = short(
        "share.coordinator.state.topic.min.isr",
        2,
        "min.insync.replicas of the topic that stores the state of share groups.",
        at_least=1,
        importance=HIGH,
        since="4.1 (KIP-932)",
    )
    share_coordinator_state_topic_segment_bytes = integer(
        "share.coordinator.state.topic.segment.bytes",
        104_857_600,
        "The segment size of the topic that stores the state of share groups.",
        at_least=1,
        unit="bytes",
        importance=HIGH,
        since="4.1 (KIP-932)",
    )
    share_coordinator_state_topic_compression_codec = integer(
        "share.coordinator.state.topic.compression.codec",
        0,
        "The number of the codec with which Kafka's share coordinator compresses its records; 0 means none.",
        importance=HIGH,
        since="4.1 (KIP-932)",
        ignored="Records of share groups are small; they are not compressed.",
    )
    share_coordinator_state_topic_prune_interval_ms = integer(
        "share.coordinator.state.topic.prune.interval.ms",
        300_000,
        "How often the share coordinator deletes records that later ones have superseded.",
        at_least=1,
        unit="ms",
        importance=LOW,
        since="4.1 (KIP-932)",
    )
    share_coordinator_cold_partition_snapshot_interval_ms = integer(
        "share.coordinator.cold.partition.snapshot.interval.ms",
        300_000,
        "How often the share coordinator rewrites the state of unchanged partitions, so that older records can be "
        "deleted.",
        at_least=1,
        unit="ms",
        importance=LOW,
        since="4.1 (KIP-932)",
    )
    share_coordinator_snapshot_update_records_per_snapshot = integer(
        "share.coordinator.snapshot.update.records.per.snapshot",
        500,
        "The number of changes of a share partition that the share coordinator writes before it writes the whole "
        "state again.",
        at_least=0,
        at_most=500,
        unit="records",
        since="4.1 (KIP-932)",
    )
    share_coordinator_write_timeout_ms = integer(
        "share.coordinator.write.timeout.ms",
        5_000,
        "How long a change of a share partition waits for the replicas of the topic that stores it.",
        at_least=1,
        unit="ms",
        importance=HIGH,
        since="4.1 (KIP-932)",
    )
    share_coordinator_load_buffer_size = integer(
        "share.coordinator.load.buffer.size",
        5_242_880,
        "The number of bytes of its topic that Kafka's share coordinator reads at a time when it loads share "
        "partitions.",
        at_least=1,
        unit="bytes",
        importance=HIGH,
        since="4.1 (KIP-932)",
        ignored="The broker chooses the size of its reads from the topic.",
    )
    share_coordinator_append_linger_ms = integer(
        "share.coordinator.append.linger.ms",
        -1,
        "How long Kafka's share coordinator collects changes to write them together. -1 means until the write in "
        "progress is complete.",
        at_least=-1,
        unit="ms",
        since="4.1 (KIP-932)",
        ignored="Changes are appended once per turn of the event loop.",
    )
    share_coordinator_threads = integer(
        "share.coordinator.threads",
        1,
        "The number of threads of Kafka's share coordinator.",
        at_least=1,
        since="4.1 (KIP-932)",
        ignored=LOOP,
    )
    share_coordinator_cached_buffer_max_bytes = integer(
        "share.coordinator.cached.buffer.max.bytes",
        1_048_588,
        "The size of the largest buffer that Kafka's share coordinator keeps for reuse.",
        at_least=524_288,
        unit="bytes",
        dynamic=CLUSTER_WIDE,
        since="4.3",
        ignored="Buffers are not pooled.",
    )
