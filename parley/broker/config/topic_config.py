"""The effective settings of a topic. The topic's entries override the broker's configuration, which overrides the
defaults."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, NoReturn

from parley.broker.config.broker_config import BrokerConfig
from parley.broker.config.errors import ConfigError, Problem
from parley.broker.config.key_definition import parse_all, unknown_keys
from parley.broker.config.keys.topic_level import TopicKeys

if TYPE_CHECKING:
    from parley.storage.log_config import LogConfig


class TopicConfig(TopicKeys):
    """Every topic key as a typed attribute (``topic.retention_ms``). Immutable."""

    overrides: Mapping[str, str]
    """The topic's own entries, as written."""

    def __init__(self, config: BrokerConfig, overrides: Mapping[str, str]) -> None:
        """Combine the topic's entries with the broker's configuration. Raises ConfigError with all problems of
        ``overrides``, including unknown keys."""
        values, problems = parse_all(self.KEYS, overrides)
        problems += unknown_keys(overrides, self.KEYS)
        for key in self.KEYS.values():
            if key.attribute not in values:
                values[key.attribute] = getattr(config, key.server.replace(".", "_")) if key.server else key.default
        for name in ("message.timestamp.before.max.ms", "message.timestamp.after.max.ms"):
            if "message.timestamp.difference.max.ms" in overrides and name not in overrides:
                values[name.replace(".", "_")] = values["message_timestamp_difference_max_ms"]
        if values["min_compaction_lag_ms"] > values["max_compaction_lag_ms"]:
            problems.append(
                Problem("min.compaction.lag.ms", str(values["min_compaction_lag_ms"]), "at most max.compaction.lag.ms")
            )
        if problems:
            raise ConfigError(problems)
        self.__dict__.update(values, overrides=overrides)

    def __setattr__(self, name: str, value: object) -> NoReturn:
        raise AttributeError(f"a configuration is immutable: create a new one instead of setting {name}")

    def __repr__(self) -> str:
        return f"<TopicConfig {dict(self.overrides)}>"


def warnings_about_topic(names: Iterable[str]) -> tuple[str, ...]:
    """Return a warning for each of these topic keys that has no effect. Unknown keys are skipped."""
    known = (TopicConfig.KEYS.get(name) for name in names)
    return tuple(f"{key.name} has no effect: {key.ignored}" for key in known if key is not None and key.ignored)


def check_topic(config: BrokerConfig, overrides: Mapping[str, str]) -> None:
    """Raise ConfigError if these entries are invalid for a topic. Clients receive it as INVALID_CONFIG."""
    TopicConfig(config, overrides)


def log_config(config: BrokerConfig, overrides: Mapping[str, str]) -> LogConfig:
    """Return the log configuration for a topic with these entries. Raises ConfigError if the entries are invalid."""
    from dataclasses import fields

    from parley.storage.log_config import LogConfig

    topic = TopicConfig(config, overrides)
    values: dict[str, Any] = {field.name: getattr(topic, field.name) for field in fields(LogConfig)}
    values["cleanup_policy"] = frozenset(topic.cleanup_policy)
    return LogConfig(**values)
