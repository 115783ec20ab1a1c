"""Limits for clients and for replication, and the windows they are measured in."""

from __future__ import annotations

from parley.broker.config.definition import CLUSTER_WIDE, HIGH, LOW, MAX_LONG, Keys, class_name, integer, long
from parley.broker.config.keys.reasons import QUOTAS


class QuotaKeys(Keys, title="Quotas"):
    """Limits for clients and for replication, and the windows they are measured in."""

    quota_producer_default = long(
        "quota.producer.default",
        MAX_LONG,
        "How much a client id may produce to this broker where it has no quota of its own.",
        at_least=1,
        unit="bytes/s",
        importance=HIGH,
        deprecated="quotas set with the quota API",
        ignored=QUOTAS,
    )
    quota_consumer_default = long(
        "quota.consumer.default",
        MAX_LONG,
        "How much a client id may fetch from this broker where it has no quota of its own.",
        at_least=1,
        unit="bytes/s",
        importance=HIGH,
        deprecated="quotas set with the quota API",
        ignored=QUOTAS,
    )
    quota_window_num = integer(
        "quota.window.num",
        11,
        "How many windows client quotas are measured over.",
        at_least=1,
        importance=LOW,
        ignored=QUOTAS,
    )
    quota_window_size_seconds = integer(
        "quota.window.size.seconds",
        1,
        "How long a window of client quotas is.",
        at_least=1,
        unit="s",
        importance=LOW,
        ignored=QUOTAS,
    )
    replication_quota_window_num = integer(
        "replication.quota.window.num",
        11,
        "How many windows the throttles of replication are measured over.",
        at_least=1,
        importance=LOW,
        since="0.10.1 (KIP-73)",
    )
    replication_quota_window_size_seconds = integer(
        "replication.quota.window.size.seconds",
        1,
        "How long a window of replication throttles is.",
        at_least=1,
        unit="s",
        importance=LOW,
        since="0.10.1 (KIP-73)",
    )
    alter_log_dirs_replication_quota_window_num = integer(
        "alter.log.dirs.replication.quota.window.num",
        11,
        "How many windows the throttle of moves between directories is measured over.",
        at_least=1,
        importance=LOW,
        since="1.1 (KIP-113)",
    )
    alter_log_dirs_replication_quota_window_size_seconds = integer(
        "alter.log.dirs.replication.quota.window.size.seconds",
        1,
        "How long a window of the throttle of moves between directories is.",
        at_least=1,
        unit="s",
        importance=LOW,
        since="1.1 (KIP-113)",
    )
    controller_quota_window_num = integer(
        "controller.quota.window.num",
        11,
        "How many windows quotas of topic and partition changes are measured over.",
        at_least=1,
        importance=LOW,
        since="2.7 (KIP-599)",
        ignored=QUOTAS,
    )
    controller_quota_window_size_seconds = integer(
        "controller.quota.window.size.seconds",
        1,
        "How long a window of quotas of topic and partition changes is.",
        at_least=1,
        unit="s",
        importance=LOW,
        since="2.7 (KIP-599)",
        ignored=QUOTAS,
    )
    client_quota_callback_class = class_name(
        "client.quota.callback.class",
        "A class of your own that decides the quota of a client.",
        importance=LOW,
        since="2.0 (KIP-257)",
        ignored=QUOTAS,
    )
    leader_replication_throttled_rate = long(
        "leader.replication.throttled.rate",
        MAX_LONG,
        "How fast this broker sends records of throttled partitions to followers. Set dynamically while "
        "partitions are moved; which are throttled, topics say with leader.replication.throttled.replicas.",
        at_least=0,
        unit="bytes/s",
        dynamic=CLUSTER_WIDE,
        importance=LOW,
        since="0.10.1 (KIP-73)",
    )
    follower_replication_throttled_rate = long(
        "follower.replication.throttled.rate",
        MAX_LONG,
        "How fast this broker fetches records of throttled partitions.",
        at_least=0,
        unit="bytes/s",
        dynamic=CLUSTER_WIDE,
        importance=LOW,
        since="0.10.1 (KIP-73)",
    )
    replica_alter_log_dirs_io_max_bytes_per_second = long(
        "replica.alter.log.dirs.io.max.bytes.per.second",
        MAX_LONG,
        "How fast partitions are moved between directories.",
        at_least=0,
        unit="bytes/s",
        dynamic=CLUSTER_WIDE,
        importance=LOW,
        since="1.1 (KIP-113)",
    )
