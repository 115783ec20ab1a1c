"""What every connector can be told beside its own keys, with Kafka's names and defaults, and how it is all checked."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Final, cast

from pipeline.connect.config import (
    ConfigDef,
    ConfigInfo,
    ConfigInfos,
    ConfigKey,
    ConfigType,
    ConfigValue,
    Importance,
    at_least,
    non_empty,
    one_of,
    regular_expression,
)
from pipeline.connect.connector import Connector, SinkConnector
from pipeline.connect.converters import Converter, HeaderConverter
from pipeline.connect.errors import ConfigError
from pipeline.connect.plugins import Plugins
from pipeline.connect.transforms import Predicate, Transform

__all__ = ["SINK", "SOURCE", "definition_of", "is_sink", "stage_names", "subscribed", "validated"]

_HIGH, _MEDIUM, _LOW = Importance.HIGH, Importance.MEDIUM, Importance.LOW
_ANY_DELAY: Final = -1

_COMMON: Final = (
    ConfigDef()
    .define(
        "name",
        ConfigType.STRING,
        importance=_HIGH,
        doc="The connector's name.",
        validator=non_empty,
        group="Common",
        display_name="Connector name",
    )
    .define(
        "connector.class",
        ConfigType.STRING,
        importance=_HIGH,
        group="Common",
        display_name="Connector class",
        doc="The connector's class: its name, or its name without the last part of it.",
    )
    .define(
        "tasks.max",
        ConfigType.INT,
        1,
        _HIGH,
        "How many tasks there may be.",
        validator=at_least(1),
        group="Common",
        display_name="Tasks max",
    )
    .define(
        "tasks.max.enforce",
        ConfigType.BOOLEAN,
        True,
        _LOW,
        "Whether a connector that makes more tasks fails.",
        group="Common",
        display_name="Enforce tasks max",
    )
    .define(
        "key.converter",
        ConfigType.CLASS,
        None,
        _LOW,
        "What keys are in the topic; else as the worker says.",
        group="Common",
        display_name="Key converter class",
    )
    .define(
        "value.converter",
        ConfigType.CLASS,
        None,
        _LOW,
        "What values are in the topic; else as the worker says.",
        group="Common",
        display_name="Value converter class",
    )
    .define(
        "header.converter",
        ConfigType.CLASS,
        None,
        _LOW,
        "What headers' values are; else as the worker says.",
        group="Common",
        display_name="Header converter class",
    )
    .define(
        "config.action.reload",
        ConfigType.STRING,
        "restart",
        _LOW,
        validator=one_of("none", "restart"),
        doc="What a change of an outer configuration does.",
        group="Common",
        display_name="Reload Action",
    )
    .define(
        "transforms",
        ConfigType.LIST,
        [],
        _LOW,
        "Names for the transforms of records, in their order.",
        group="Transforms",
        display_name="Transforms",
    )
    .define(
        "predicates",
        ConfigType.LIST,
        [],
        _LOW,
        "Names for the predicates that transforms use.",
        group="Predicates",
        display_name="Predicates",
    )
    .define(
        "errors.retry.timeout",
        ConfigType.LONG,
        0,
        _MEDIUM,
        group="Error Handling",
        doc="How long a failed step is tried again, in ms; 0: not at all, -1: without end.",
        validator=at_least(_ANY_DELAY),
        display_name="Retry Timeout for Errors",
    )
    .define(
        "errors.retry.delay.max.ms",
        ConfigType.LONG,
        60_000,
        _MEDIUM,
        "The longest pause between two tries, in ms.",
        validator=at_least(1),
        group="Error Handling",
        display_name="Maximum Delay Between Retries for Errors",
    )
    .define(
        "errors.tolerance",
        ConfigType.STRING,
        "none",
        _MEDIUM,
        group="Error Handling",
        doc="Whether a record that cannot be converted or transformed fails the task (none) or is left out (all).",
        validator=one_of("none", "all"),
        display_name="Error Tolerance",
    )
    .define(
        "errors.log.enable",
        ConfigType.BOOLEAN,
        False,
        _MEDIUM,
        "Whether each such record is logged.",
        group="Error Handling",
        display_name="Log Errors",
    )
    .define(
        "errors.log.include.messages",
        ConfigType.BOOLEAN,
        False,
        _MEDIUM,
        group="Error Handling",
        doc="Whether the log has its topic, partition, offset and timestamp.",
        display_name="Log Error Details",
    )
)

SOURCE: Final = _COMMON + (
    ConfigDef()
    .define(
        "topic.creation.groups",
        ConfigType.LIST,
        [],
        _LOW,
        "Names for groups of topics with settings of their own.",
        group="Topic Creation",
        display_name="Topic Creation Groups",
    )
    .define(
        "topic.creation.default.replication.factor",
        ConfigType.SHORT,
        None,
        _LOW,
        group="Topic Creation",
        doc="Replicas of topics made for this connector; -1: as the broker says.",
    )
    .define(
        "topic.creation.default.partitions",
        ConfigType.INT,
        None,
        _LOW,
        group="Topic Creation",
        doc="Partitions of topics made for this connector; -1: as the broker says.",
    )
    .define(
        "exactly.once.support",
        ConfigType.STRING,
        "requested",
        _MEDIUM,
        group="Exactly Once Support",
        doc="Whether the connector must be able to do exactly-once: required, or requested.",
        validator=one_of("requested", "required", ignore_case=True),
        display_name="Exactly once support",
    )
)

SINK: Final = _COMMON + (
    ConfigDef()
    .define("topics", ConfigType.LIST, [], _HIGH, "The topics to read.", group="Common", display_name="Topics")
    .define(
        "topics.regex",
        ConfigType.STRING,
        "",
        _HIGH,
        "The topics to read, as a regular expression of whole names.",
        validator=regular_expression,
        group="Common",
        display_name="Topics regex",
    )
    .define(
        "errors.deadletterqueue.topic.name",
        ConfigType.STRING,
        "",
        _MEDIUM,
        group="Error Handling",
        doc="The topic that gets the records that were left out; empty: none.",
        display_name="Dead Letter Queue Topic Name",
    )
    .define(
        "errors.deadletterqueue.topic.replication.factor",
        ConfigType.SHORT,
        3,
        _MEDIUM,
        group="Error Handling",
        doc="How many replicas that topic is made with.",
        display_name="Dead Letter Queue Topic Replication Factor",
    )
    .define(
        "errors.deadletterqueue.context.headers.enable",
        ConfigType.BOOLEAN,
        False,
        _MEDIUM,
        "Whether such a record says in headers (__connect.errors.*) what went wrong.",
        group="Error Handling",
        display_name="Enable Error Context Headers",
    )
)


def is_sink(connector: type[Connector]) -> bool:
    return issubclass(connector, SinkConnector)


def subscribed(config: Mapping[str, str]) -> list[str] | re.Pattern[str]:
    """The topics that a sink reads: their names, or a pattern of them. Raises ConfigError unless it is one of both."""
    values = SINK.parse(
        {key: value for key, value in config.items() if key.startswith("topics")}
        | {"name": "-", "connector.class": "-"}
    )
    names, pattern = [one for one in values["topics"] if one], values["topics.regex"]
    if names and pattern:
        raise ConfigError("topics and topics.regex are mutually exclusive options, but both are set.")
    if not names and not pattern:
        raise ConfigError("Must configure one of topics or topics.regex")
    return names or re.compile(pattern)


def stage_names(config: Mapping[str, Any], key: str) -> list[str]:
    """The names listed under ``transforms`` or ``predicates``. Raises ConfigError if one is there twice."""
    given = config.get(key) or ""
    names = [one.strip() for one in given.split(",") if one.strip()] if isinstance(given, str) else list(given)
    if len(set(names)) != len(names):
        raise ConfigError(f"Duplicate alias provided in {key}: {given}")
    return names


def definition_of(connector: type[Connector], config: Mapping[str, Any], plugins: Plugins) -> ConfigDef:
    """The keys of a connector of this class, with those of the transforms and predicates that its configuration has.

    Raises ConfigError for transforms that are not there.
    """
    made = SINK if is_sink(connector) else SOURCE
    for name in stage_names(config, "predicates"):
        made += _stage(f"predicates.{name}.", config, Predicate, plugins)
    for name in stage_names(config, "transforms"):
        made += _stage(f"transforms.{name}.", config, Transform, plugins)
    return made


def _stage(prefix: str, config: Mapping[str, Any], base: Any, plugins: Plugins) -> ConfigDef:
    """The keys of one transform or predicate, each behind the prefix."""
    group = prefix.replace(".", ": ", 1).rstrip(".").capitalize()
    keys = [
        ConfigKey(
            name=prefix + "type",
            type=ConfigType.CLASS,
            importance=_HIGH,
            group=group,
            order=0,
            doc=f"The class of the {base.__name__.lower()}.",
        )
    ]
    if base is Transform:
        keys.append(
            ConfigKey(
                name=prefix + "predicate",
                type=ConfigType.STRING,
                default="",
                group=group,
                order=1,
                doc="The predicate that says which records are transformed.",
            )
        )
        keys.append(
            ConfigKey(
                name=prefix + "negate",
                type=ConfigType.BOOLEAN,
                default=False,
                group=group,
                order=2,
                doc="Whether the others are.",
            )
        )
    if config.get(prefix + "type"):
        own = plugins.load(config[prefix + "type"], base).config_def
        keys += [
            replace(key, name=prefix + key.name, group=group, order=3 + at) for at, key in enumerate(own.keys.values())
        ]
    return ConfigDef(keys)


def validated(plugin: str, config: Mapping[str, str | None], plugins: Plugins, *, policy: str = "All") -> ConfigInfos:
    """Everything that can be said of a connector's configuration without starting it.

    Raises ConfigError if there is no connector class of that name.
    """
    connector: type[Connector] = plugins.load(plugin, cast(Any, Connector))
    given = {key: value for key, value in config.items() if value is not None}
    common = SINK if is_sink(connector) else SOURCE
    problems: dict[str, str] = {}
    try:
        common = definition_of(connector, given, plugins)
    except ConfigError as error:
        problems["transforms"] = str(error)
    values = {one.name: one for one in common.validate(given)}
    own = connector().validate(given)
    values |= {one.name: one for one in own if one.name not in values}
    problems |= _class_problems(given, plugins) | _relations(connector, given) | _overrides(given, policy)
    for name, text in problems.items():
        values.setdefault(name, ConfigValue(name, given.get(name))).errors.append(text)
    definition = ConfigDef([*common.keys.values(), *connector.config_def.keys.values()])
    infos = tuple(ConfigInfo(definition.keys.get(name), one) for name, one in values.items())
    return ConfigInfos(str(given.get("connector.class", plugin)), definition.groups, infos)


def _class_problems(given: Mapping[str, str], plugins: Plugins) -> dict[str, str]:
    """What is wrong with the converters named."""
    problems = {}
    for name, base in (
        ("key.converter", Converter),
        ("value.converter", Converter),
        ("header.converter", HeaderConverter),
    ):
        if given.get(name):
            try:
                own = plugins.load(given[name], cast(Any, base))
                prefix = name + "."
                own.config_def.parse(
                    {key.removeprefix(prefix): value for key, value in given.items() if key.startswith(prefix)}
                )
            except ConfigError as error:
                problems[name] = f"Invalid value {given[name]} for configuration {name}: {error}"
    return problems


def _relations(connector: type[Connector], given: Mapping[str, str]) -> dict[str, str]:
    """What several keys say together that cannot be."""
    problems = {}
    if given.get("exactly.once.support", "").lower() == "required":
        problems["exactly.once.support"] = "Exactly-once for sources is not there: records are written at least once."
    if is_sink(connector):
        try:
            topics = subscribed(given)
        except ConfigError as error:
            problems["topics"] = str(error)
            return problems
        dead = given.get("errors.deadletterqueue.topic.name", "")
        reads_dead = dead in topics if isinstance(topics, list) else bool(topics.fullmatch(dead))
        if dead and reads_dead:
            problems["errors.deadletterqueue.topic.name"] = f"The dead letter queue topic {dead} is one of those read."
    known = set(_listed(given, "predicates"))
    for name in _listed(given, "transforms"):
        used = given.get(f"transforms.{name}.predicate")
        if used and used not in known:
            key = f"transforms.{name}.predicate"
            problems[key] = f"Invalid value {used} for configuration {key}: Unknown predicate"
    return problems


def _listed(given: Mapping[str, str], key: str) -> list[str]:
    try:
        return stage_names(given, key)
    except ConfigError:
        return []


_CLIENTS: Final = ("producer.override.", "consumer.override.", "admin.override.")


def _overrides(given: Mapping[str, str], policy: str) -> dict[str, str]:
    """Client settings that the worker's policy keeps from connectors (KIP-458)."""
    if policy == "All":
        return {}
    return {
        name: f"The '{policy}' policy does not allow '{name}' to be overridden in the connector configuration."
        for name in given
        if name.startswith(_CLIENTS)
        and not (policy == "Principal" and name.split(".override.")[1].startswith(("security.", "sasl.")))
    }
