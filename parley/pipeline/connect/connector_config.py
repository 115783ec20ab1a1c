"""The keys that all connectors have, with Kafka's names and defaults."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import Any, Final

from parley.pipeline.connect.config import (
    BOOLEAN,
    CLASS,
    HIGH,
    INT,
    LIST,
    LONG,
    LOW,
    MEDIUM,
    SHORT,
    STRING,
    ConfigDef,
    ConfigKey,
    Validator,
    at_least,
    distinct,
    non_empty,
    one_of,
    printable,
)
from parley.pipeline.connect.connector import Connector, SinkConnector
from parley.pipeline.connect.converters import Converter, HeaderConverter
from parley.pipeline.connect.errors import ConfigError
from parley.pipeline.connect.java_notation import java_pattern, java_regex
from parley.pipeline.connect.plugins import Plugins
from parley.pipeline.connect.transforms import Predicate, Transform
from parley.pipeline.connect.worker_config import HEADER_CONVERTER

_CONVERTERS: Final[Mapping[str, Any]] = {
    "key.converter": Converter,
    "value.converter": Converter,
    "header.converter": HeaderConverter,
}
_ANY_DELAY: Final = -1


def _aliases(name: str, value: Any) -> None:
    """Raise ConfigError if a name occurs twice. This is a validator."""
    if len(set(value)) != len(value):
        raise ConfigError(f"Invalid value [{', '.join(value)}] for configuration {name}: Duplicate alias provided.")


_COMMON: Final = (
    ConfigDef()
    .group("Common")
    .define("name", STRING, importance=HIGH, validator=printable, display_name="Connector name")
    .doc("The connector's name.")
    .define("connector.class", STRING, importance=HIGH, display_name="Connector class")
    .doc("The connector's class: its full name, its simple name, or its simple name without the ending Connector.")
    .define("tasks.max", INT, 1, HIGH, validator=at_least(1), display_name="Tasks max")
    .doc("The largest number of tasks of this connector.")
    .define("tasks.max.enforce", BOOLEAN, True, LOW, display_name="Enforce tasks max")
    .doc("Whether a connector fails if it generates more than tasks.max tasks.")
    .define("key.converter", CLASS, None, LOW, display_name="Key converter class")
    .doc("The converter of record keys. The default is the worker's.")
    .define("value.converter", CLASS, None, LOW, display_name="Value converter class")
    .doc("The converter of record values. The default is the worker's.")
    .define("header.converter", CLASS, HEADER_CONVERTER, LOW, display_name="Header converter class")
    .doc("The converter of header values. The default is the worker's.")
    .define(
        "config.action.reload",
        STRING,
        "restart",
        LOW,
        validator=one_of("none", "restart"),
        display_name="Reload Action",
    )
    .doc("What happens when a value from a configuration provider changes.")
    .group("Transforms")
    .define("transforms", LIST, [], LOW, validator=_aliases, display_name="Transforms")
    .doc("Aliases of the transforms, in the order in which they are applied to records.")
    .group("Predicates")
    .define("predicates", LIST, [], LOW, validator=_aliases, display_name="Predicates")
    .doc("Aliases of the predicates that transforms use.")
    .group("Error Handling")
    .define(
        "errors.retry.timeout", LONG, 0, MEDIUM, validator=at_least(_ANY_DELAY), display_name="Retry Timeout for Errors"
    )
    .doc("How long a failed operation is retried, in ms. With 0 it is not retried, with -1 it is retried forever.")
    .define(
        "errors.retry.delay.max.ms",
        LONG,
        60_000,
        MEDIUM,
        validator=at_least(1),
        display_name="Maximum Delay Between Retries for Errors",
    )
    .doc("The longest pause between two attempts, in ms.")
    .define("errors.tolerance", STRING, "none", MEDIUM, validator=one_of("none", "all"), display_name="Error Tolerance")
    .doc("Whether a record that cannot be converted or transformed fails the task (none) or is skipped (all).")
    .define("errors.log.enable", BOOLEAN, False, MEDIUM, display_name="Log Errors")
    .doc("Whether each failed record is logged.")
    .define("errors.log.include.messages", BOOLEAN, False, MEDIUM, display_name="Log Error Details")
    .doc("Whether the log line contains the topic, partition, offset and timestamp of the record.")
)

SOURCE: Final = _COMMON + (
    ConfigDef()
    .group("Topic Creation")
    .define("topic.creation.groups", LIST, [], LOW, validator=_aliases, display_name="Topic Creation Groups")
    .doc("Aliases of groups of topics that are created with their own settings.")
    .define("topic.creation.default.replication.factor", SHORT, None, LOW)
    .doc("The replication factor of topics created for this connector; -1 means the broker's default.")
    .define("topic.creation.default.partitions", INT, None, LOW)
    .doc("The partitions of topics created for this connector; -1 means the broker's default.")
    .group("Exactly Once Support")
    .define(
        "exactly.once.support",
        STRING,
        "requested",
        MEDIUM,
        validator=one_of("required", "requested", ignore_case=True),
        display_name="Exactly once support",
    )
    .doc("Whether the connector must support exactly-once delivery (required), or uses it if it can (requested).")
    .define(
        "transaction.boundary",
        STRING,
        "poll",
        MEDIUM,
        validator=one_of("interval", "poll", "connector", ignore_case=True),
        display_name="Transaction Boundary",
    )
    .doc(
        "When transactions end if sources write exactly once: after each poll, after an interval, or when the "
        "connector requests it."
    )
    .define(
        "transaction.boundary.interval.ms",
        LONG,
        None,
        LOW,
        validator=lambda name, value: None if value is None else at_least(0)(name, value),
        display_name="Transaction boundary interval",
    )
    .doc("How long a transaction lasts with transaction.boundary=interval, in ms; else offset.flush.interval.ms.")
    .group("offsets.topic")
    .define("offsets.storage.topic", STRING, None, LOW, validator=non_empty, display_name="Offsets topic")
    .doc("The topic for this connector's offsets; without it, the worker's topic. Only distributed workers use it.")
)

SINK: Final = _COMMON + (
    ConfigDef()
    .group("Common")
    .define("topics", LIST, [], HIGH, validator=distinct, display_name="Topics")
    .doc("The topics to read.")
    .define("topics.regex", STRING, "", HIGH, validator=java_regex, display_name="Topics regex")
    .doc("A regular expression that matches the whole names of the topics to read.")
    .group("Error Handling")
    .define("errors.deadletterqueue.topic.name", STRING, "", MEDIUM, display_name="Dead Letter Queue Topic Name")
    .doc("The topic to which skipped records are written. If it is empty, they are not written anywhere.")
    .define(
        "errors.deadletterqueue.topic.replication.factor",
        SHORT,
        3,
        MEDIUM,
        display_name="Dead Letter Queue Topic Replication Factor",
    )
    .doc("The replication factor with which that topic is created.")
    .define(
        "errors.deadletterqueue.context.headers.enable",
        BOOLEAN,
        False,
        MEDIUM,
        display_name="Enable Error Context Headers",
    )
    .doc("Whether headers (__connect.errors.*) of such a record describe the error.")
)


def is_sink(connector: type[Connector]) -> bool:
    return issubclass(connector, SinkConnector)


def keys_of_all(connector: type[Connector]) -> Collection[ConfigKey]:
    """Return the keys that all sinks have, or all sources, depending on the connector's kind."""
    return (SINK if is_sink(connector) else SOURCE).keys.values()


def subscribed(config: Mapping[str, str]) -> list[str] | re.Pattern[str]:
    """Return the topics that a sink reads: names, or a pattern. Raises ConfigError unless exactly one is configured."""
    values = SINK.parse(
        {key: value for key, value in config.items() if key.startswith("topics")}
        | {"name": "-", "connector.class": "-"}
    )
    names, pattern = [one for one in values["topics"] if one], values["topics.regex"]
    if names and pattern:
        raise ConfigError("topics and topics.regex are mutually exclusive options, but both are set.")
    if not names and not pattern:
        raise ConfigError("Must configure one of topics or topics.regex")
    return names or java_pattern(pattern, "topics.regex")


def stage_names(config: Mapping[str, Any], key: str) -> list[str]:
    """Return the names under ``transforms`` or ``predicates``. Raises ConfigError if a name occurs twice."""
    given = config.get(key) or ""
    names = [one.strip() for one in given.split(",") if one.strip()] if isinstance(given, str) else list(given)
    _aliases(key, names)
    return names


def definition_of(connector: type[Connector], config: Mapping[str, Any], plugins: Plugins) -> ConfigDef:
    """Return the keys of a connector, with those of its configured converters, transforms and predicates.

    An unknown class has no keys: the key that names it reports the error.
    """
    made = SINK if is_sink(connector) else SOURCE
    for key, base in _CONVERTERS.items():
        made += _prefixed(key + ".", config.get(key), base, plugins, made.keys[key].group)
    for name in dict.fromkeys(_listed(config, "transforms")):
        made += _stage(f"transforms.{name}.", config, Transform, plugins)
    for name in dict.fromkeys(_listed(config, "predicates")):
        made += _stage(f"predicates.{name}.", config, Predicate, plugins)
    return made


def _stage(prefix: str, config: Mapping[str, Any], base: Any, plugins: Plugins) -> ConfigDef:
    """Return the keys of one transform or predicate, each with the prefix."""
    group = prefix.replace(".", ": ", 1).rstrip(".").capitalize()
    keys = (
        ConfigDef()
        .define(prefix + "type", CLASS, importance=HIGH, group=group, order=0, validator=class_of(plugins, base))
        .doc(f"The class of the {base.__name__.lower()}.")
    )
    if base is Transform:
        keys.define(prefix + "negate", BOOLEAN, False, MEDIUM, group=group, order=1).doc(
            "Whether the records that do not match are transformed instead."
        )
        keys.define(prefix + "predicate", STRING, None, MEDIUM, group=group, order=2).doc(
            "The predicate that selects the records to be transformed."
        )
    return keys + _prefixed(prefix, config.get(prefix + "type"), base, plugins, group)


def _prefixed(prefix: str, given: str | None, base: Any, plugins: Plugins, group: str | None) -> ConfigDef:
    """Return the keys of a named class, each with the prefix; none if there is no such class."""
    if not given:
        return ConfigDef()
    try:
        own = plugins.load(given, base).config_def
    except ConfigError:
        return ConfigDef()
    return ConfigDef(
        replace(key, name=prefix + key.name, group=group, order=3 + at) for at, key in enumerate(own.keys.values())
    )


def class_of(plugins: Plugins, base: Any) -> Validator:
    """Return a validator that accepts the name of an existing class of the required kind."""

    def check(name: str, value: Any) -> None:
        if value:
            try:
                plugins.load(value, base)
            except ConfigError as error:
                raise ConfigError(f"Invalid value {value} for configuration {name}: {error}") from error

    return check


def _listed(config: Mapping[str, Any], key: str) -> list[str]:
    return [one for one in (piece.strip() for piece in (config.get(key) or "").split(",")) if one]
