"""Validates configuration changes while brokers run (KIP-226), before anything is stored."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field
from enum import IntEnum

from parley.broker.config.broker_config import BrokerConfig
from parley.broker.config.errors import ConfigError, Problem, ThreadCountStep
from parley.broker.config.key_definition import Dynamic, Key, Password
from parley.light_dataclasses import dataclass

_OPENED_AT_START = ("listeners", "listener.security.protocol.map", "principal.builder.class")
"""Keys that Kafka can change while it runs, but that Parley reads only at startup. A client must not be able to make a
running broker load code (``principal.builder.class``) or open other addresses."""
_PER_LISTENER_ONLY = ("ssl.", "sasl.jaas.config")
THREAD_COUNTS = (
    BrokerConfig.num_io_threads,
    BrokerConfig.num_network_threads,
    BrokerConfig.background_threads,
    BrokerConfig.num_recovery_threads_per_data_dir,
    BrokerConfig.num_replica_fetchers,
)
"""Keys that one change may at most double or halve, as in Kafka."""


class Operation(IntEnum):
    """The operations of IncrementalAlterConfigs on one entry, with their numbers in the API."""

    SET = 0
    DELETE = 1
    APPEND = 2
    SUBTRACT = 3


@dataclass(frozen=True, slots=True)
class EntryChange:
    """One operation on one entry. Only DELETE has no ``value``."""

    name: str
    operation: Operation
    value: str | None = field(repr=False)


def check_change(config: BrokerConfig, layer: Mapping[str, str], *, per_broker: bool) -> BrokerConfig:
    """Return the configuration that would result if ``layer`` replaced the dynamic entries of this broker
    (``per_broker``), or of all brokers.

    ``config`` is the broker's current configuration. Raises ConfigError if a key cannot be changed at run time or
    cannot be set for all brokers, if a value is invalid, alone or in combination with others, or if the number of
    threads of a key in ``THREAD_COUNTS`` would more than double or fall below half. Unknown names are accepted, as in
    Kafka; ``BrokerConfig.warnings`` lists them.
    """
    problems = [
        Problem(name, Password.HIDDEN if key.is_sensitive else text, why)
        for name, text in layer.items()
        if (key := config.key(name)) is not None and (why := _refusal(name, key, per_broker=per_broker))
    ]
    if problems:
        raise ConfigError(problems)
    if per_broker:
        changed = config.with_dynamic(config.cluster_default, layer)
    else:
        changed = config.with_dynamic(layer, config.per_broker)
    steps = [step for key in THREAD_COUNTS if (step := _too_large_a_step(key, config, changed)) is not None]
    if steps:
        raise ConfigError(steps)
    return changed


def _too_large_a_step(key: Key[int], before: BrokerConfig, after: BrokerConfig) -> Problem | None:
    """Return a problem if a thread count changes by more than a factor of two, else None."""
    current: int = getattr(before, key.attribute)
    wanted: int = getattr(after, key.attribute)
    if wanted < current // 2:
        return ThreadCountStep(key.name, str(wanted), f"be at least half the current value {current}")
    if wanted > current * 2:
        return ThreadCountStep(key.name, str(wanted), f"not be greater than double the current value {current}")
    return None


def _refusal(name: str, key: Key[object], *, per_broker: bool) -> str:
    if key.dynamic is Dynamic.PER_BROKER and not per_broker:
        return "set for one broker, not for all at once"
    if key.dynamic is Dynamic.READ_ONLY or key.name in _OPENED_AT_START:
        return "set in the properties file, because it takes effect when a broker starts"
    if name == key.name and name.startswith(_PER_LISTENER_ONLY):
        return f"set for one listener: listener.name.<name>.{name}"
    return ""
