"""Checks a connector's configuration before it is used: each key, and the relations between keys.

The messages and their keys are Kafka's if Kafka makes the same check. Some errors that fail a task in Kafka (an
undefined predicate) are found here.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Any, Final, cast

from parley.pipeline.connect.config import ConfigDef, ConfigInfo, ConfigInfos, ConfigValue
from parley.pipeline.connect.connector import Connector, SourceConnector
from parley.pipeline.connect.connector_config import class_of, definition_of, is_sink, subscribed
from parley.pipeline.connect.converters import Converter, HeaderConverter
from parley.pipeline.connect.errors import ConfigError
from parley.pipeline.connect.groups import group_of
from parley.pipeline.connect.plugins import Plugins

_CONVERTERS: Final = {"key.converter": Converter, "value.converter": Converter, "header.converter": HeaderConverter}
_CLIENTS: Final = ("producer.override.", "consumer.override.", "admin.override.")
_GROUP: Final = "consumer.override.group.id"
_ONCE: Final[Mapping[bool | None, str]] = {
    True: "",
    False: "The connector does not support exactly-once semantics with the provided configuration.",
    None: "The connector does not implement the API required for preflight validation of exactly-once source support. "
    "Please consult the documentation for the connector to determine whether it supports exactly-once semantics, and "
    'then consider reconfiguring the connector to use the value "requested" for this property (which will disable '
    "this preflight check and allow the connector to be created).",
}
_NO_BOUNDARIES: Final = (
    "The connector does not support connector-defined transaction boundaries with the given configuration. "
    "Please reconfigure it to use a different transaction boundary definition."
)
_log = logging.getLogger(__name__)

Problem = tuple[str, str]
"""The key of an error, and its message."""


def validated(
    plugin: str,
    config: Mapping[str, str | None],
    plugins: Plugins,
    *,
    policy: str = "All",
    worker: Mapping[str, str] | None = None,
) -> ConfigInfos:
    """Check a connector's configuration without starting the connector.

    ``policy`` (``All``, ``None`` or ``Principal``) decides which client settings a connector may override. ``worker``
    is the worker's own configuration: its converters are the defaults, and no sink may read in its group. Raises
    ConfigError if there is no connector class with this name.
    """
    connector = _connector(plugin, plugins)
    worker = worker or {}
    given = {key: value for key, value in config.items() if value is not None}
    common = _with_defaults(definition_of(connector, given, plugins), worker, plugins)
    values = {one.name: one for one in common.validate(given)}
    made = connector()
    own = made.validate(given)
    values |= {one.name: one for one in own if one.name not in values}
    for found in (_relations(made, given, worker), _group(connector, given, worker), _overrides(given, policy)):
        for name, text in found:
            values.setdefault(name, ConfigValue(name, given.get(name))).errors.append(text)
    definition = ConfigDef([*common.keys.values(), *connector.config_def.keys.values()])
    infos = tuple(ConfigInfo(definition.keys.get(name), one) for name, one in values.items())
    return ConfigInfos(str(given.get("connector.class", plugin)), definition.groups, infos)


def _connector(plugin: str, plugins: Plugins) -> type[Connector]:
    try:
        return cast(type[Connector], plugins.load(plugin, cast(Any, Connector)))
    except ConfigError as error:
        there = ", ".join(one.name for one in plugins.all() if {"source", "sink"} & {*one.kinds})
        raise ConfigError(
            f"Failed to find any class that implements Connector and which name matches {plugin}, available connectors "
            f"are: {there} ({error})"
        ) from error


def _with_defaults(definition: ConfigDef, worker: Mapping[str, str], plugins: Plugins) -> ConfigDef:
    """Return the definition with the worker's converters as defaults."""
    keys = [
        replace(key := definition.keys[name], default=worker.get(name, key.default), validator=class_of(plugins, base))
        for name, base in _CONVERTERS.items()
    ]
    return definition + ConfigDef(keys)


def _relations(connector: Connector, given: Mapping[str, str], worker: Mapping[str, str]) -> Iterator[Problem]:
    """Yield the errors in keys that depend on other keys."""
    if isinstance(connector, SourceConnector):
        yield from _exactly_once(connector, given, worker)
    else:
        yield from _topics(given)
    predicates = {one.strip() for one in given.get("predicates", "").split(",")}
    for name in dict.fromkeys(one.strip() for one in given.get("transforms", "").split(",")):
        used = given.get(f"transforms.{name}.predicate")
        if used and used not in predicates:
            key = f"transforms.{name}.predicate"
            yield key, f"Invalid value {used} for configuration {key}: Unknown predicate"


def _topics(given: Mapping[str, str]) -> Iterator[Problem]:
    """Yield the errors in a sink's ``topics``, ``topics.regex`` and dead letter topic, in addition to those of single
    keys.
    """
    both = bool(given.get("topics", "").strip()), bool(given.get("topics.regex", "").strip())
    if both == (True, True):
        text = "topics and topics.regex are mutually exclusive options, but both are set."
        yield from (("topics", text), ("topics.regex", text))
    if both == (False, False):
        text = "Must configure one of topics or topics.regex"
        yield from (("topics", text), ("topics.regex", text))
    dead = given.get("errors.deadletterqueue.topic.name", "").strip()
    if not dead:
        return
    try:
        topics = subscribed(given)
    except ConfigError:
        return
    if isinstance(topics, list):
        if dead in topics:
            yield (
                "topics",
                f"The DLQ topic '{dead}' may not be included in the list of topics "
                f"('topics=[{', '.join(topics)}]') consumed by the connector",
            )
    elif topics.fullmatch(dead):
        yield (
            "topics.regex",
            f"The DLQ topic '{dead}' may not be matched by the regex for the topics "
            f"('topics.regex={topics.pattern}') consumed by the connector",
        )


def _exactly_once(connector: SourceConnector, given: Mapping[str, str], worker: Mapping[str, str]) -> Iterator[Problem]:
    """Yield the settings for exactly-once (KIP-618) that the worker or the connector does not support."""
    if given.get("exactly.once.support", "").strip().lower() == "required":
        if worker.get("exactly.once.source.support", "").strip().lower() != "enabled":
            yield "exactly.once.support", "This worker does not have exactly-once source support enabled."
        problem = _problem_from(lambda: _ONCE[connector.exactly_once_support(given)])
        if problem:
            yield "exactly.once.support", problem
    if given.get("transaction.boundary", "").strip().lower() == "connector":
        problem = _problem_from(lambda: "" if connector.can_define_transaction_boundaries(given) else _NO_BOUNDARIES)
        if problem:
            yield "transaction.boundary", problem


def _problem_from(call: Callable[[], str]) -> str:
    """Call a method of the connector. Returns its result, or the error message if it raises."""
    try:
        return call()
    except Exception as error:
        _log.error("a connector failed while its configuration was validated", exc_info=error)
        return f"An unexpected error occurred during validation: {error}"


def _group(connector: type[Connector], given: Mapping[str, str], worker: Mapping[str, str]) -> Iterator[Problem]:
    """Yield an error if a sink connector's group is the workers' own group: it would force every worker out of the
    group.
    """
    workers, name = worker.get("group.id"), given.get("name", "")
    if not workers or not is_sink(connector) or group_of(name, given) != workers:
        return
    if given.get(_GROUP):
        yield _GROUP, f"Consumer group {workers} conflicts with Connect worker group {workers}"
    else:
        yield (
            "name",
            f"Consumer group for sink connector named {name} conflicts with Connect worker group {workers}",
        )


def _overrides(given: Mapping[str, str], policy: str) -> Iterator[Problem]:
    """Yield the client settings that the worker's policy does not allow in connectors (KIP-458)."""
    if policy == "All":
        return
    for name in given:
        is_principal = policy == "Principal" and name.partition(".override.")[2].startswith(("security.", "sasl."))
        if name.startswith(_CLIENTS) and not is_principal:
            yield (
                name,
                f"The '{policy}' policy does not allow '{name}' to be overridden in the connector configuration.",
            )
