"""Quotas of clients, throttles of replication, and the time windows in which both are measured."""

from __future__ import annotations

from parley.broker.config.key_definition import CLUSTER_WIDE, HIGH, LOW, MAX_LONG, Keys, class_name, integer, long
from parley.broker.config.keys.reasons import QUOTA_DEFAULTS


class QuotaKeys(Keys, title="Quotas"):
    """Quotas of clients, throttles of replication, and the time windows in which both are measured."""

    quota_producer_default = long(
        "quota.producer.default",
        MAX_LONG,
        "The default produce quota of a client id.",
        at_least=1,
        unit="bytes/s",
        importance=HIGH,
        deprecated="the quota of the default client id",
        ignored=QUOTA_DEFAULTS,
    )
    quota_consumer_default = long(
        "quota.consumer.default",
        MAX_LONG,
        "The default fetch quota of a client id.",
        at_least=1,
        unit="bytes/s",
        importance=HIGH,
        deprecated="the quota of the default client id",
        ignored=QUOTA_DEFAULTS,
    )
    quota_window_num = integer(
        "quota.window.num",
        11,
        "The number of time windows over which client quotas are measured.",
        at_least=1,
        importance=LOW,
    )
    quota_window_size_seconds = integer(
        "quota.window.size.seconds",
        1,
        "The length of a time window of client quotas.",
        at_least=1,
        unit="s",
        importance=LOW,
    )
    replication_quota_window_num = integer(
        "replication.quota.window.num",
        11,
        "The number of time windows over which replication throttles are measured.",
        at_least=1,
        importance=LOW,
        since="0.10.1 (KIP-73)",
    )
    replication_quota_window_size_seconds = integer(
        "replication.quota.window.size.seconds",
        1,
        "The length of a time window of replication throttles.",
        at_least=1,
        unit="s",
        importance=LOW,
        since="0.10.1 (KIP-73)",
    )
    alter_log_dirs_replication_quota_window_num = integer(
        "alter.log.dirs.replication.quota.window.num",
        11,
        "The number of time windows over which the throttle of moves between directories is measured.",
        at_least=1,
        importance=LOW,
        since="1.1 (KIP-113)",
    )
    alter_log_dirs_replication_quota_window_size_seconds = integer(
        "alter.log.dirs.replication.quota.window.size.seconds",
        1,
        "The length of a time window of the throttle of moves between directories.",
        at_least=1,
        unit="s",
        importance=LOW,
        since="1.1 (KIP-113)",
    )
    controller_quota_window_num = integer(
        "controller.quota.window.num",
        11,
        "The number of time windows over which quotas for changes of topics and partitions are measured.",
        at_least=1,
        importance=LOW,
        since="2.7 (KIP-599)",
    )
    controller_quota_window_size_seconds = integer(
        "controller.quota.window.size.seconds",
        1,
        "The length of a time window of quotas for changes of topics and partitions.",
        at_least=1,
        unit="s",
        importance=LOW,
        since="2.7 (KIP-599)",
    )
    client_quota_callback_class = class_name(
        "client.quota.callback.class",
        "Your own class that determines the quotas of clients in place of the stored quotas: an entry point of "
        "parley.quota_callbacks, or package.module.Class.",
        importance=LOW,
        since="2.0 (KIP-257)",
    )
    leader_replication_throttled_rate = long(
        "leader.replication.throttled.rate",
        MAX_LONG,
        "The maximum rate at which this broker, as a leader, sends records of throttled partitions to followers. It "
        "is set dynamically during reassignments. A topic's leader.replication.throttled.replicas lists the "
        "throttled replicas.",
        at_least=0,
        unit="bytes/s",
        dynamic=CLUSTER_WIDE,
        importance=LOW,
        since="0.10.1 (KIP-73)",
    )
    follower_replication_throttled_rate = long(
        "follower.replication.throttled.rate",
        MAX_LONG,
        "The maximum rate at which this broker, as a follower, fetches records of throttled partitions.",
        at_least=0,
        unit="bytes/s",
        dynamic=CLUSTER_WIDE,
        importance=LOW,
        since="0.10.1 (KIP-73)",
    )
    replica_alter_log_dirs_io_max_bytes_per_second = long(
        "replica.alter.log.dirs.io.max.bytes.per.second",
        MAX_LONG,
        "The maximum rate at which partitions move between directories.",
        at_least=0,
        unit="bytes/s",
        dynamic=CLUSTER_WIDE,
        importance=LOW,
        since="1.1 (KIP-113)",
    )
