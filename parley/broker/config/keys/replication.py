"""Replicas, leaders, and the orderly stop of a broker."""

from __future__ import annotations

from parley.broker.config.definition import CLUSTER_WIDE, HIGH, Keys, boolean, integer, long
from parley.broker.config.keys.reasons import TIERED


class ReplicationKeys(Keys, title="Replication"):
    """Replicas, leaders, and the orderly stop of a broker."""

    replica_lag_time_max_ms = long(
        "replica.lag.time.max.ms",
        30_000,
        "How long a follower may not have caught up with its leader before it no longer counts as in sync.",
        at_least=1,
        unit="ms",
        importance=HIGH,
    )
    replica_fetch_max_bytes = integer(
        "replica.fetch.max.bytes",
        1_048_576,
        "How many bytes of a partition a follower asks for at a time. A larger batch still comes whole.",
        at_least=0,
        unit="bytes",
    )
    replica_fetch_response_max_bytes = integer(
        "replica.fetch.response.max.bytes",
        10_485_760,
        "How many bytes a follower asks for at a time in all its partitions.",
        at_least=0,
        unit="bytes",
        since="0.10.1 (KIP-74)",
    )
    replica_fetch_min_bytes = integer(
        "replica.fetch.min.bytes",
        1,
        "How many bytes have to be there before a follower is answered, unless replica.fetch.wait.max.ms is over.",
        at_least=1,
        unit="bytes",
        importance=HIGH,
    )
    replica_fetch_wait_max_ms = integer(
        "replica.fetch.wait.max.ms",
        500,
        "How long a follower's fetch may wait for replica.fetch.min.bytes. Less than replica.lag.time.max.ms, "
        "so that followers of quiet partitions stay in sync.",
        at_least=1,
        unit="ms",
        importance=HIGH,
    )
    replica_fetch_backoff_ms = integer(
        "replica.fetch.backoff.ms",
        1_000,
        "How long a follower waits after a failed fetch of a partition.",
        at_least=0,
        unit="ms",
    )
    replica_socket_timeout_ms = integer(
        "replica.socket.timeout.ms",
        30_000,
        "How long a follower waits for the answer to a fetch. At least replica.fetch.wait.max.ms.",
        at_least=1,
        unit="ms",
        importance=HIGH,
    )
    replica_socket_receive_buffer_bytes = integer(
        "replica.socket.receive.buffer.bytes",
        65_536,
        "The receive buffer of connections to leaders; -1 leaves it to the operating system.",
        at_least=-1,
        unit="bytes",
        importance=HIGH,
        ignored="The operating system sizes the buffer by what the connection needs.",
    )
    replica_high_watermark_checkpoint_interval_ms = long(
        "replica.high.watermark.checkpoint.interval.ms",
        5_000,
        "How often it is noted up to where each partition is committed.",
        at_least=1,
        unit="ms",
        importance=HIGH,
    )
    num_replica_fetchers = integer(
        "num.replica.fetchers",
        1,
        "Connections on which this broker follows each other broker. Raise it when followers fall behind "
        "though the network has room.",
        at_least=1,
        dynamic=CLUSTER_WIDE,
        importance=HIGH,
    )
    auto_leader_rebalance_enable = boolean(
        "auto.leader.rebalance.enable",
        True,
        "Whether partitions go back to their preferred leader by themselves after it was away.",
        importance=HIGH,
    )
    leader_imbalance_check_interval_seconds = long(
        "leader.imbalance.check.interval.seconds",
        300,
        "How often it is looked whether leaders should go back.",
        at_least=1,
        unit="s",
        importance=HIGH,
    )
    leader_imbalance_per_broker_percentage = integer(
        "leader.imbalance.per.broker.percentage",
        10,
        "What part of a broker's preferred partitions may be led elsewhere before they go back.",
        at_least=0,
        at_most=100,
        unit="%",
        importance=HIGH,
    )
    unclean_leader_election_interval_ms = long(
        "unclean.leader.election.interval.ms",
        300_000,
        "How often partitions without a leader are looked over for an unclean election.",
        at_least=1,
        unit="ms",
        since="3.9 (KIP-966)",
    )
    eligible_leader_replicas_enable = boolean(
        "eligible.leader.replicas.enable",
        False,
        "Whether Kafka remembered replicas that left the ISR but hold every committed record.",
        importance=HIGH,
        since="3.7 (KIP-966)",
        ignored="It is a feature of Kafka's own metadata quorum.",
    )
    controlled_shutdown_enable = boolean(
        "controlled.shutdown.enable",
        True,
        "Whether a stopping broker hands its partitions to others first, so that clients wait less.",
    )
    controlled_shutdown_max_retries = integer(
        "controlled.shutdown.max.retries",
        3,
        "How often a stopping broker asks the controller again before it stops all the same.",
        at_least=0,
    )
    controlled_shutdown_retry_backoff_ms = long(
        "controlled.shutdown.retry.backoff.ms",
        5_000,
        "How long a stopping broker waits before it asks the controller again.",
        at_least=0,
        unit="ms",
    )
    controller_socket_timeout_ms = integer(
        "controller.socket.timeout.ms",
        30_000,
        "How long this broker waits for the controller's answer.",
        at_least=1,
        unit="ms",
        ignored="request.timeout.ms bounds the requests to the controller.",
    )
    broker_heartbeat_interval_ms = integer(
        "broker.heartbeat.interval.ms",
        2_000,
        "How often at least this broker asks the controller what is new, which is its heartbeat. A third of "
        "coordination.session.timeout.ms is the most that counts.",
        at_least=1,
        unit="ms",
        since="2.8 (KIP-631)",
    )
    broker_session_timeout_ms = integer(
        "broker.session.timeout.ms",
        9_000,
        "How long a Kafka broker could be silent before its quorum gave it up.",
        unit="ms",
        since="2.8 (KIP-631)",
        ignored="coordination.session.timeout.ms says it here.",
    )
    initial_broker_registration_timeout_ms = integer(
        "initial.broker.registration.timeout.ms",
        60_000,
        "How long a starting broker tries to join its cluster before it gives up.",
        at_least=1,
        unit="ms",
        since="2.8 (KIP-631)",
        ignored="A start goes on until the broker has joined, or is told to stop.",
    )
    follower_fetch_last_tiered_offset_enable = boolean(
        "follower.fetch.last.tiered.offset.enable",
        False,
        "Whether an empty follower begins behind what is tiered.",
        dynamic=CLUSTER_WIDE,
        since="4.3 (KIP-1023)",
        ignored=TIERED,
    )
