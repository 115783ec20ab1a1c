"""Replicas, leaders, and controlled shutdown."""

from __future__ import annotations

from parley.broker.config.key_definition import CLUSTER_WIDE, HIGH, Keys, boolean, integer, long
from parley.broker.config.keys.reasons import TIERED


class ReplicationKeys(Keys, title="Replication"):
    """Replicas, leaders, and controlled shutdown."""

    replica_lag_time_max_ms = long(
        "replica.lag.time.max.ms",
        30_000,
        "How long a follower can lag behind its leader before it is removed from the ISR.",
        at_least=1,
        unit="ms",
        importance=HIGH,
    )
    replica_fetch_max_bytes = integer(
        "replica.fetch.max.bytes",
        1_048_576,
        "The maximum number of bytes that a follower requests per partition in one fetch. A larger batch is still "
        "returned whole.",
        at_least=0,
        unit="bytes",
    )
    replica_fetch_response_max_bytes = integer(
        "replica.fetch.response.max.bytes",
        10_485_760,
        "The maximum number of bytes that a follower requests in one fetch for all its partitions.",
        at_least=0,
        unit="bytes",
        since="0.10.1 (KIP-74)",
    )
    replica_fetch_min_bytes = integer(
        "replica.fetch.min.bytes",
        1,
        "The minimum number of bytes with which the leader responds to a follower's fetch before "
        "replica.fetch.wait.max.ms has passed.",
        at_least=1,
        unit="bytes",
        importance=HIGH,
    )
    replica_fetch_wait_max_ms = integer(
        "replica.fetch.wait.max.ms",
        500,
        "How long the leader holds a follower's fetch until replica.fetch.min.bytes are available. Must be less "
        "than replica.lag.time.max.ms, so that followers of idle partitions stay in sync.",
        at_least=1,
        unit="ms",
        importance=HIGH,
    )
    replica_fetch_backoff_ms = integer(
        "replica.fetch.backoff.ms",
        1_000,
        "How long a follower waits after a failed fetch of a partition before it retries.",
        at_least=0,
        unit="ms",
    )
    replica_socket_timeout_ms = integer(
        "replica.socket.timeout.ms",
        30_000,
        "How long a follower waits for the response to a fetch. Must be at least replica.fetch.wait.max.ms.",
        at_least=1,
        unit="ms",
        importance=HIGH,
    )
    replica_socket_receive_buffer_bytes = integer(
        "replica.socket.receive.buffer.bytes",
        65_536,
        "The size of the receive buffer of connections to leaders. With -1 the operating system chooses it.",
        at_least=-1,
        unit="bytes",
        importance=HIGH,
        ignored="The operating system adapts the buffer to the connection.",
    )
    replica_high_watermark_checkpoint_interval_ms = long(
        "replica.high.watermark.checkpoint.interval.ms",
        5_000,
        "How often the broker checkpoints the high watermarks of its partitions.",
        at_least=1,
        unit="ms",
        importance=HIGH,
    )
    num_replica_fetchers = integer(
        "num.replica.fetchers",
        1,
        "The number of connections through which this broker fetches from each other broker. Raise it if "
        "followers fall behind although the network has capacity. At most 64, even if the value is higher. While "
        "brokers run, one change may at most double or halve it.",
        at_least=1,
        dynamic=CLUSTER_WIDE,
        importance=HIGH,
    )
    auto_leader_rebalance_enable = boolean(
        "auto.leader.rebalance.enable",
        True,
        "Whether the controller moves the leadership of a partition back to its preferred leader when that broker is "
        "available again.",
        importance=HIGH,
    )
    leader_imbalance_check_interval_seconds = long(
        "leader.imbalance.check.interval.seconds",
        300,
        "How often the controller checks whether leaderships should move back to preferred leaders.",
        at_least=1,
        unit="s",
        importance=HIGH,
    )
    leader_imbalance_per_broker_percentage = integer(
        "leader.imbalance.per.broker.percentage",
        10,
        "The percentage of a broker's preferred partitions that other brokers can lead before the controller "
        "moves their leadership back.",
        at_least=0,
        at_most=100,
        unit="%",
        importance=HIGH,
    )
    unclean_leader_election_interval_ms = long(
        "unclean.leader.election.interval.ms",
        300_000,
        "How often the controller looks for partitions whose leader, ISR or ELR does not fit the live brokers and "
        "the configuration. Normally each change already leads to a correct state.",
        at_least=1,
        unit="ms",
        since="3.9 (KIP-966)",
    )
    eligible_leader_replicas_enable = boolean(
        "eligible.leader.replicas.enable",
        False,
        "Whether Kafka tracks replicas that have left the ISR but contain every committed record.",
        importance=HIGH,
        since="3.7 (KIP-966)",
        ignored="This is a feature of KRaft. Parley always tracks them.",
    )
    controlled_shutdown_enable = boolean(
        "controlled.shutdown.enable",
        True,
        "Whether a stopping broker first moves the leadership of its partitions to other brokers, so that clients "
        "wait less.",
    )
    controlled_shutdown_max_retries = integer(
        "controlled.shutdown.max.retries",
        3,
        "The number of times that a stopping broker repeats its request to the controller before it stops without a "
        "handover.",
        at_least=0,
    )
    controlled_shutdown_retry_backoff_ms = long(
        "controlled.shutdown.retry.backoff.ms",
        5_000,
        "How long a stopping broker waits before it repeats its request to the controller.",
        at_least=0,
        unit="ms",
    )
    controller_socket_timeout_ms = integer(
        "controller.socket.timeout.ms",
        30_000,
        "How long this broker waits for a response from the controller.",
        at_least=1,
        unit="ms",
        ignored="request.timeout.ms limits requests to the controller.",
    )
    broker_heartbeat_interval_ms = integer(
        "broker.heartbeat.interval.ms",
        2_000,
        "The maximum time between two requests of this broker to the controller, which serve as heartbeats. The "
        "effective maximum is a third of coordination.session.timeout.ms.",
        at_least=1,
        unit="ms",
        since="2.8 (KIP-631)",
    )
    broker_session_timeout_ms = integer(
        "broker.session.timeout.ms",
        9_000,
        "How long Kafka's controller waits for a heartbeat before it fences a broker.",
        unit="ms",
        since="2.8 (KIP-631)",
        ignored="Use coordination.session.timeout.ms.",
    )
    initial_broker_registration_timeout_ms = integer(
        "initial.broker.registration.timeout.ms",
        60_000,
        "How long a starting broker tries to register with its cluster before it gives up.",
        at_least=1,
        unit="ms",
        since="2.8 (KIP-631)",
        ignored="A starting broker tries to register until it succeeds or is stopped.",
    )
    follower_fetch_last_tiered_offset_enable = boolean(
        "follower.fetch.last.tiered.offset.enable",
        False,
        "Whether an empty follower starts after the records in tiered storage.",
        dynamic=CLUSTER_WIDE,
        since="4.3 (KIP-1023)",
        ignored=TIERED,
    )
