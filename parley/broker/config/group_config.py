"""The effective settings of a group: its own entries, else the broker's configuration."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NoReturn

from parley.broker.config.broker_config import BrokerConfig
from parley.broker.config.definition import closest, parse_all
from parley.broker.config.errors import ConfigError, Problem, UnknownKey
from parley.broker.config.keys.group_level import GroupLevelKeys


class GroupConfig(GroupLevelKeys):
    """Every key of groups as a typed attribute (``group.consumer_session_timeout_ms``). Immutable."""

    overrides: Mapping[str, str]
    """The entries of the group itself, as written."""

    def __init__(self, config: BrokerConfig, overrides: Mapping[str, str]) -> None:
        """Entries that cannot be understood count as absent: a later version may have stored them."""
        values, _ = parse_all(self.KEYS, overrides)
        for key in self.KEYS.values():
            if key.attribute not in values:
                values[key.attribute] = getattr(config, key.server.replace(".", "_"))
        self.__dict__.update(values, overrides=overrides)

    def __setattr__(self, name: str, value: object) -> NoReturn:
        raise AttributeError(f"a configuration is immutable: make another one instead of setting {name}")


def check_group(config: BrokerConfig, overrides: Mapping[str, str]) -> None:
    """Raise ConfigError if a group must not have these entries. Clients receive it as INVALID_CONFIG."""
    keys = GroupConfig.KEYS
    _, problems = parse_all(keys, overrides)
    problems += [UnknownKey(name, text, closest(name, keys)) for name, text in overrides.items() if name not in keys]
    group = GroupConfig(config, overrides)
    for each, value, low, high in _bounded(config, group):
        name = f"consumer.{each}"
        if name in overrides and not low <= value <= high:
            range_of = f"from group.consumer.min.{each}={low} to group.consumer.max.{each}={high}"
            problems.append(Problem(name, str(value), range_of))
    if group.consumer_session_timeout_ms <= group.consumer_heartbeat_interval_ms:
        text = str(group.consumer_session_timeout_ms)
        problems.append(Problem("consumer.session.timeout.ms", text, "more than consumer.heartbeat.interval.ms"))
    if problems:
        raise ConfigError(problems)


def _bounded(config: BrokerConfig, group: GroupConfig) -> tuple[tuple[str, int, int, int], ...]:
    """The keys after ``consumer.`` that the broker bounds: value, minimum and maximum of each."""
    return (
        (
            "session.timeout.ms",
            group.consumer_session_timeout_ms,
            config.group_consumer_min_session_timeout_ms,
            config.group_consumer_max_session_timeout_ms,
        ),
        (
            "heartbeat.interval.ms",
            group.consumer_heartbeat_interval_ms,
            config.group_consumer_min_heartbeat_interval_ms,
            config.group_consumer_max_heartbeat_interval_ms,
        ),
        (
            "assignment.interval.ms",
            group.consumer_assignment_interval_ms,
            config.group_consumer_min_assignment_interval_ms,
            config.group_consumer_max_assignment_interval_ms,
        ),
    )
