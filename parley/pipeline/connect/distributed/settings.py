"""The settings of a distributed worker, in addition to those of every worker, with Kafka's names and defaults."""

from __future__ import annotations

from typing import Any, Final

from parley.pipeline.connect.config import (
    HIGH,
    INT,
    LIST,
    LOW,
    MEDIUM,
    SHORT,
    STRING,
    ConfigDef,
    Validator,
    at_least,
    between,
    non_empty,
    one_of,
)
from parley.pipeline.connect.distributed.membership import GroupSettings
from parley.pipeline.connect.distributed.signing import ALGORITHMS, KEY_BITS_MIN, SigningRules
from parley.pipeline.connect.distributed.topics import TopicPlan
from parley.pipeline.connect.errors import ConnectError
from parley.pipeline.connect.worker_config import COMMON, WorkerConfig

_REPLICAS: Final = "The replication factor with which the topic is created; -1 means the brokers' default."
_replicas: Final = between(-1, 32767)


def _some_of(*allowed: str) -> Validator:
    def check(name: str, value: Any) -> None:
        non_empty(name, value)
        one_of(*allowed)(name, value)

    return check


DISTRIBUTED: Final = COMMON + (
    ConfigDef()
    .define("group.id", STRING, importance=HIGH, validator=non_empty)
    .doc("The group to which this worker belongs. No consumer group may have the same name.")
    .define("config.storage.topic", STRING, importance=HIGH, validator=non_empty)
    .doc("The topic that stores the configurations of connectors. It has one partition.")
    .define("config.storage.replication.factor", SHORT, 3, LOW, validator=_replicas)
    .doc(_REPLICAS)
    .define("offset.storage.topic", STRING, importance=HIGH, validator=non_empty)
    .doc("The topic that stores the offsets of source connectors.")
    .define("offset.storage.replication.factor", SHORT, 3, LOW, validator=_replicas)
    .doc(_REPLICAS)
    .define("offset.storage.partitions", INT, 25, LOW, validator=at_least(1))
    .doc("The number of partitions with which the topic is created.")
    .define("status.storage.topic", STRING, importance=HIGH, validator=non_empty)
    .doc("The topic that stores the states of connectors and tasks.")
    .define("status.storage.replication.factor", SHORT, 3, LOW, validator=_replicas)
    .doc(_REPLICAS)
    .define("status.storage.partitions", INT, 5, LOW, validator=at_least(1))
    .doc("The number of partitions with which the topic is created.")
    .define("session.timeout.ms", INT, 10_000, HIGH, validator=at_least(1))
    .doc("The time without a heartbeat, in ms, after which a worker is removed from the group.")
    .define("rebalance.timeout.ms", INT, 60_000, HIGH, validator=at_least(1))
    .doc("How long a rebalance waits for each worker, in ms.")
    .define("heartbeat.interval.ms", INT, 3_000, HIGH, validator=at_least(1))
    .doc("How often a worker sends a heartbeat, in ms.")
    .define("worker.sync.timeout.ms", INT, 3_000, MEDIUM, validator=at_least(1))
    .doc("How long a worker that is behind in the configuration topic may take to catch up, in ms.")
    .define("scheduled.rebalance.max.delay.ms", INT, 300_000, LOW, validator=at_least(0))
    .doc("How long the work of a departed worker is kept for its return, in ms, before other workers get it.")
    .define("connect.protocol", STRING, "sessioned", LOW, validator=one_of("eager", "compatible", "sessioned"))
    .doc("The rebalance protocol of the workers: eager, compatible (KIP-415) or sessioned (KIP-507).")
    .define(
        "exactly.once.source.support",
        STRING,
        "disabled",
        HIGH,
        validator=one_of("disabled", "preparing", "enabled", ignore_case=True),
    )
    .doc(
        "Whether sources write exactly once (KIP-618): enabled. To migrate, first set preparing on all workers of the "
        "group, then enabled."
    )
    .define("inter.worker.key.ttl.ms", INT, 3_600_000, LOW, validator=at_least(0))
    .doc("The time, in ms, after which workers replace the key that signs requests between them.")
    .define("inter.worker.key.generation.algorithm", STRING, "HmacSHA256", LOW, validator=one_of(*ALGORITHMS))
    .doc("The algorithm for which workers generate the key that signs requests between them.")
    .define(
        "inter.worker.key.size",
        INT,
        None,
        LOW,
        validator=lambda name, value: None if value is None else at_least(KEY_BITS_MIN)(name, value),
    )
    .doc("The length of that key in bits. The default is the length of the algorithm's digest.")
    .define("inter.worker.signature.algorithm", STRING, "HmacSHA256", LOW, validator=one_of(*ALGORITHMS))
    .doc("The algorithm with which this worker signs requests to other workers.")
    .define("inter.worker.verification.algorithms", LIST, ["HmacSHA256"], LOW, validator=_some_of(*ALGORITHMS))
    .doc("The signatures of other workers that this worker accepts; its own algorithm must be one of them.")
)


def config_topic(config: WorkerConfig) -> TopicPlan:
    """Return the plan for the config topic."""
    return _plan(config, "config", 1)


def status_topic(config: WorkerConfig) -> TopicPlan:
    """Return the plan for the status topic."""
    return _plan(config, "status", config["status.storage.partitions"])


def offset_topic(config: WorkerConfig) -> TopicPlan:
    """Return the plan for the topic of source offsets."""
    return _plan(config, "offset", config["offset.storage.partitions"])


def has_transactional_leader(config: WorkerConfig) -> bool:
    """Return True if the leader writes configurations in transactions, so that an earlier leader cannot write
    (KIP-618)."""
    return str(config["exactly.once.source.support"]).lower() != "disabled"


def _plan(config: WorkerConfig, what: str, partitions: int) -> TopicPlan:
    """Return the plan of a topic, with its other settings (such as ``config.storage.min.insync.replicas``)."""
    prefix = f"{what}.storage."
    own = {"topic", "partitions", "replication.factor", "cleanup.policy", "file.filename"}
    more = {key: value for key, value in config.with_prefix(prefix).items() if key not in own}
    return TopicPlan(
        config[f"{prefix}topic"], f"{prefix}topic", partitions, config[f"{prefix}replication.factor"], more
    )


def group_settings(config: WorkerConfig) -> GroupSettings:
    """Return the settings of the worker's membership in its group."""
    protocol = config["connect.protocol"]
    return GroupSettings(
        config["group.id"],
        config["session.timeout.ms"],
        config["rebalance.timeout.ms"],
        config["heartbeat.interval.ms"],
        "default" if protocol == "eager" else protocol,
    )


def signing_rules(config: WorkerConfig) -> SigningRules:
    """Return the rules for signing requests between workers. Raises ConnectError if this worker would reject its own
    signatures."""
    rules = SigningRules(
        config["inter.worker.key.generation.algorithm"],
        config["inter.worker.key.size"],
        config["inter.worker.signature.algorithm"],
        tuple(config["inter.worker.verification.algorithms"]),
        config["inter.worker.key.ttl.ms"],
    )
    if rules.algorithm not in rules.accepted:
        raise ConnectError(
            f"inter.worker.verification.algorithms must contain {rules.algorithm}, which is the "
            "inter.worker.signature.algorithm"
        )
    return rules
