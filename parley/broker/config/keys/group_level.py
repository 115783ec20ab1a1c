"""The keys of groups, and the keys of the broker that have their defaults."""

from __future__ import annotations

from parley.broker.config.definition import Keys, integer


class GroupLevelKeys(Keys, title="Settings of one group"):
    """The keys of groups, and the keys of the broker that have their defaults."""

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
        "The minimum time between two assignments of the group, if it uses the consumer protocol.",
        at_least=0,
        unit="ms",
        since="4.3 (KIP-1263)",
        server="group.consumer.assignment.interval.ms",
    )
