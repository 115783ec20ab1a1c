"""The effective settings of a group. The group's entries override the broker's configuration."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NoReturn

from parley.broker.config.broker_config import BrokerConfig
from parley.broker.config.errors import ConfigError, Problem
from parley.broker.config.key_definition import parse_all, unknown_keys
from parley.broker.config.keys.group_level import GroupLevelKeys

_BOUNDED = {
    "consumer.session.timeout.ms": (
        "group.consumer.min.session.timeout.ms",
        "group.consumer.max.session.timeout.ms",
    ),
    "consumer.heartbeat.interval.ms": (
        "group.consumer.min.heartbeat.interval.ms",
        "group.consumer.max.heartbeat.interval.ms",
    ),
    "consumer.assignment.interval.ms": (
        "group.consumer.min.assignment.interval.ms",
        "group.consumer.max.assignment.interval.ms",
    ),
    "share.session.timeout.ms": (
        "group.share.min.session.timeout.ms",
        "group.share.max.session.timeout.ms",
    ),
    "share.heartbeat.interval.ms": (
        "group.share.min.heartbeat.interval.ms",
        "group.share.max.heartbeat.interval.ms",
    ),
    "share.assignment.interval.ms": (
        "group.share.min.assignment.interval.ms",
        "group.share.max.assignment.interval.ms",
    ),
    "share.record.lock.duration.ms": (
        "group.share.min.record.lock.duration.ms",
        "group.share.max.record.lock.duration.ms",
    ),
    "share.delivery.count.limit": (
        "group.share.min.delivery.count.limit",
        "group.share.max.delivery.count.limit",
    ),
    "share.partition.max.record.locks": (
        "group.share.min.partition.max.record.locks",
        "group.share.max.partition.max.record.locks",
    ),
    "streams.session.timeout.ms": (
        "group.streams.min.session.timeout.ms",
        "group.streams.max.session.timeout.ms",
    ),
    "streams.heartbeat.interval.ms": (
        "group.streams.min.heartbeat.interval.ms",
        "group.streams.max.heartbeat.interval.ms",
    ),
    "streams.assignment.interval.ms": (
        "group.streams.min.assignment.interval.ms",
        "group.streams.max.assignment.interval.ms",
    ),
}
"""For each key of groups with bounds, the broker's keys that contain the minimum and the maximum."""


class GroupConfig(GroupLevelKeys):
    """Every key of groups as a typed attribute (``group.consumer_session_timeout_ms``). Immutable."""

    overrides: Mapping[str, str]
    """The group's own entries, as written."""

    def __init__(self, config: BrokerConfig, overrides: Mapping[str, str]) -> None:
        """Combine the group's entries with the broker's configuration. Entries that cannot be parsed are ignored,
        because a later version may have stored them."""
        values, _ = parse_all(self.KEYS, overrides)
        for key in self.KEYS.values():
            if key.attribute not in values:
                inherited = getattr(config, key.server.replace(".", "_")) if key.server else key.default
                values[key.attribute] = inherited
        self.__dict__.update(values, overrides=overrides)

    def __setattr__(self, name: str, value: object) -> NoReturn:
        raise AttributeError(f"a configuration is immutable: create a new one instead of setting {name}")


def check_group(config: BrokerConfig, overrides: Mapping[str, str]) -> None:
    """Raise ConfigError if these entries are invalid for a group. Clients receive it as INVALID_CONFIG."""
    keys = GroupConfig.KEYS
    _, problems = parse_all(keys, overrides)
    problems += unknown_keys(overrides, keys)
    group = GroupConfig(config, overrides)
    for name, bounds in _BOUNDED.items():
        value = _value(group, name)
        low, high = (_value(config, bound) for bound in bounds)
        if name in overrides and not low <= value <= high:
            problems.append(Problem(name, str(value), f"from {bounds[0]}={low} to {bounds[1]}={high}"))
    for kind in ("consumer", "share", "streams"):
        session_ms = _value(group, f"{kind}.session.timeout.ms")
        if session_ms <= _value(group, f"{kind}.heartbeat.interval.ms"):
            allowed = f"more than {kind}.heartbeat.interval.ms"
            problems.append(Problem(f"{kind}.session.timeout.ms", str(session_ms), allowed))
    replicas, most = group.streams_num_standby_replicas, config.group_streams_max_standby_replicas
    if "streams.num.standby.replicas" in overrides and replicas > most:
        allowed = f"at most group.streams.max.standby.replicas={most}"
        problems.append(Problem("streams.num.standby.replicas", str(replicas), allowed))
    if problems:
        raise ConfigError(problems)


def _value(config: BrokerConfig | GroupConfig, name: str) -> int:
    return int(getattr(config, name.replace(".", "_")))
