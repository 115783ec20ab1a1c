"""Streams groups."""

from __future__ import annotations

from parley.broker.config.key_definition import CLUSTER_WIDE, MAX_INT, Keys, integer


class StreamsGroupKeys(Keys, title="Streams groups"):
    """Groups of Kafka Streams applications whose tasks the coordinator assigns."""

    group_streams_session_timeout_ms = integer(
        "group.streams.session.timeout.ms",
        45_000,
        "The session timeout of members of streams groups: without a heartbeat in this time, a member is removed.",
        at_least=1,
        unit="ms",
        since="4.1 (KIP-1071)",
    )
    group_streams_min_session_timeout_ms = integer(
        "group.streams.min.session.timeout.ms",
        45_000,
        "The minimum that a group can set for streams.session.timeout.ms.",
        at_least=1,
        unit="ms",
        since="4.1 (KIP-1071)",
    )
    group_streams_max_session_timeout_ms = integer(
        "group.streams.max.session.timeout.ms",
        60_000,
        "The maximum that a group can set for streams.session.timeout.ms.",
        at_least=1,
        unit="ms",
        since="4.1 (KIP-1071)",
    )
    group_streams_heartbeat_interval_ms = integer(
        "group.streams.heartbeat.interval.ms",
        5_000,
        "How often members of streams groups send heartbeats.",
        at_least=1,
        unit="ms",
        since="4.1 (KIP-1071)",
    )
    group_streams_min_heartbeat_interval_ms = integer(
        "group.streams.min.heartbeat.interval.ms",
        5_000,
        "The minimum that a group can set for streams.heartbeat.interval.ms.",
        at_least=1,
        unit="ms",
        since="4.1 (KIP-1071)",
    )
    group_streams_max_heartbeat_interval_ms = integer(
        "group.streams.max.heartbeat.interval.ms",
        15_000,
        "The maximum that a group can set for streams.heartbeat.interval.ms.",
        at_least=1,
        unit="ms",
        since="4.1 (KIP-1071)",
    )
    group_streams_max_size = integer(
        "group.streams.max.size",
        MAX_INT,
        "The maximum number of members of a streams group; more are rejected.",
        at_least=1,
        unit="members",
        since="4.1 (KIP-1071)",
    )
    group_streams_num_standby_replicas = integer(
        "group.streams.num.standby.replicas",
        0,
        "The number of standby tasks that a streams group has for each stateful task. They keep copies of the state "
        "in other instances of the application, so that one of these can take over immediately.",
        at_least=0,
        unit="tasks",
        since="4.1 (KIP-1071)",
    )
    group_streams_max_standby_replicas = integer(
        "group.streams.max.standby.replicas",
        2,
        "The maximum that a group can set for streams.num.standby.replicas.",
        at_least=0,
        unit="tasks",
        since="4.1 (KIP-1071)",
    )
    group_streams_initial_rebalance_delay_ms = integer(
        "group.streams.initial.rebalance.delay.ms",
        3_000,
        "How long the first assignment of a streams group waits for more members, so that members that start "
        "together get their tasks in one assignment. 0 suits tests and single instances.",
        at_least=0,
        unit="ms",
        since="4.2 (KIP-1071)",
    )
    group_streams_assignment_interval_ms = integer(
        "group.streams.assignment.interval.ms",
        1_000,
        "The minimum time between two assignments of a streams group.",
        at_least=0,
        unit="ms",
        dynamic=CLUSTER_WIDE,
        since="4.3 (KIP-1263)",
    )
    group_streams_min_assignment_interval_ms = integer(
        "group.streams.min.assignment.interval.ms",
        0,
        "The minimum that a group can set for streams.assignment.interval.ms.",
        at_least=0,
        unit="ms",
        since="4.3 (KIP-1263)",
    )
    group_streams_max_assignment_interval_ms = integer(
        "group.streams.max.assignment.interval.ms",
        15_000,
        "The maximum that a group can set for streams.assignment.interval.ms.",
        at_least=0,
        unit="ms",
        since="4.3 (KIP-1263)",
    )
