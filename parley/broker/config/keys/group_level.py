"""The keys of groups, and the broker's keys that contain their defaults."""

from __future__ import annotations

from parley.broker.config.key_definition import Keys, boolean, integer, string
from parley.broker.config.share_offset_reset import is_reset


class GroupLevelKeys(Keys, title="Settings of one group"):
    """The keys of groups, and the broker's keys that contain their defaults."""

    consumer_session_timeout_ms = integer(
        "consumer.session.timeout.ms",
        45_000,
        "The session timeout of the group's members, if it uses the consumer protocol: without a heartbeat in this "
        "time, a member is removed.",
        at_least=1,
        unit="ms",
        since="3.9 (KIP-848)",
        server="group.consumer.session.timeout.ms",
    )
    consumer_heartbeat_interval_ms = integer(
        "consumer.heartbeat.interval.ms",
        5_000,
        "How often the group's members send heartbeats, if it uses the consumer protocol.",
        at_least=1,
        unit="ms",
        since="3.9 (KIP-848)",
        server="group.consumer.heartbeat.interval.ms",
    )
    consumer_assignment_interval_ms = integer(
        "consumer.assignment.interval.ms",
        1_000,
        "The minimum time between two assignments in the group, if it uses the consumer protocol.",
        at_least=0,
        unit="ms",
        since="4.3 (KIP-1263)",
        server="group.consumer.assignment.interval.ms",
    )
    share_session_timeout_ms = integer(
        "share.session.timeout.ms",
        45_000,
        "The session timeout of the group's members, if it is a share group: without a heartbeat in this time, a "
        "member is removed.",
        at_least=1,
        unit="ms",
        since="4.1 (KIP-932)",
        server="group.share.session.timeout.ms",
    )
    share_heartbeat_interval_ms = integer(
        "share.heartbeat.interval.ms",
        5_000,
        "How often the group's members send heartbeats, if it is a share group.",
        at_least=1,
        unit="ms",
        since="4.1 (KIP-932)",
        server="group.share.heartbeat.interval.ms",
    )
    share_record_lock_duration_ms = integer(
        "share.record.lock.duration.ms",
        30_000,
        "How long a record that a member has acquired is locked for the other members, if it is a share group.",
        at_least=1_000,
        unit="ms",
        since="4.1 (KIP-932)",
        server="group.share.record.lock.duration.ms",
    )
    share_delivery_count_limit = integer(
        "share.delivery.count.limit",
        5,
        "The maximum number of times that a record is delivered to the group, if it is a share group.",
        at_least=2,
        unit="deliveries",
        since="4.3 (KIP-1240)",
        server="group.share.delivery.count.limit",
    )
    share_partition_max_record_locks = integer(
        "share.partition.max.record.locks",
        2_000,
        "The maximum number of records of a partition that members may have acquired at a time, if it is a share "
        "group.",
        at_least=100,
        unit="records",
        since="4.3 (KIP-1240)",
        server="group.share.partition.max.record.locks",
    )
    share_auto_offset_reset = string(
        "share.auto.offset.reset",
        "latest",
        "The position at which a share group starts in a partition that it has not consumed before.",
        check=is_reset,
        form="latest, earliest, or by_duration: followed by a duration such as PT1H30M",
        since="4.1 (KIP-932)",
    )
    share_isolation_level = string(
        "share.isolation.level",
        "read_uncommitted",
        "Whether a share group receives records of aborted and open transactions.",
        allowed=("read_committed", "read_uncommitted"),
        since="4.1 (KIP-932)",
    )
    share_renew_acknowledge_enable = boolean(
        "share.renew.acknowledge.enable",
        True,
        "Whether members of a share group may renew the locks of records that they have acquired.",
        since="4.2 (KIP-1222)",
    )
    share_assignment_interval_ms = integer(
        "share.assignment.interval.ms",
        1_000,
        "The minimum time between two assignments in the group, if it is a share group.",
        at_least=0,
        unit="ms",
        since="4.3 (KIP-1263)",
        server="group.share.assignment.interval.ms",
    )
    streams_session_timeout_ms = integer(
        "streams.session.timeout.ms",
        45_000,
        "The session timeout of the group's members, if it is a streams group: without a heartbeat in this time, a "
        "member is removed.",
        at_least=1,
        unit="ms",
        since="4.1 (KIP-1071)",
        server="group.streams.session.timeout.ms",
    )
    streams_heartbeat_interval_ms = integer(
        "streams.heartbeat.interval.ms",
        5_000,
        "How often the group's members send heartbeats, if it is a streams group.",
        at_least=1,
        unit="ms",
        since="4.1 (KIP-1071)",
        server="group.streams.heartbeat.interval.ms",
    )
    streams_num_standby_replicas = integer(
        "streams.num.standby.replicas",
        0,
        "The number of standby tasks for each stateful task, if it is a streams group.",
        at_least=0,
        unit="tasks",
        since="4.1 (KIP-1071)",
        server="group.streams.num.standby.replicas",
    )
    streams_initial_rebalance_delay_ms = integer(
        "streams.initial.rebalance.delay.ms",
        3_000,
        "How long the first assignment waits for more members, if it is a streams group.",
        at_least=0,
        unit="ms",
        since="4.2 (KIP-1071)",
        server="group.streams.initial.rebalance.delay.ms",
    )
    streams_assignment_interval_ms = integer(
        "streams.assignment.interval.ms",
        1_000,
        "The minimum time between two assignments in the group, if it is a streams group.",
        at_least=0,
        unit="ms",
        since="4.3 (KIP-1263)",
        server="group.streams.assignment.interval.ms",
    )
