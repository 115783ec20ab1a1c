"""The entries that DescribeConfigs returns for brokers and topics (KIP-133, KIP-226, KIP-569).

Every entry names the source of its value. Its synonyms are all the places that set it, in order of precedence. For
example, ``retention.ms`` of a topic can come from the topic, from ``log.retention.ms`` set for this broker, for all
brokers or in the properties file, or from the default of ``log.retention.hours``.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from enum import IntEnum
from itertools import dropwhile
from typing import Any

from parley.broker.config.broker_config import BrokerConfig, warning_about
from parley.broker.config.broker_keys import BrokerKeys
from parley.broker.config.group_config import GroupConfig
from parley.broker.config.key_definition import ConfigType, Dynamic, Key
from parley.broker.config.sealed_passwords import UnreadablePasswords
from parley.broker.config.topic_config import TopicConfig, warnings_about_topic
from parley.light_dataclasses import dataclass

IN_PARLEY = "In Parley: "
"""The prefix of the warning in the documentation of an entry that has no effect. ``parley configs`` searches for it."""
CANNOT_BE_READ = (
    "has no effect: it was set with another password.encoder.secret and cannot be decrypted. Set it again, or give the "
    "brokers the earlier secret as password.encoder.old.secret"
)
ALL_READABLE = UnreadablePasswords()


class ConfigSource(IntEnum):
    """The sources of values, with their numbers in the DescribeConfigs API."""

    TOPIC = 1
    PER_BROKER = 2
    CLUSTER_DEFAULT = 3
    STATIC = 4
    DEFAULT = 5
    LOGGER = 6
    GROUP = 8


@dataclass(frozen=True, slots=True)
class Synonym:
    """One place that sets the value of an entry."""

    name: str
    value: str | None
    source: ConfigSource


@dataclass(frozen=True, slots=True)
class Entry:
    """The description of one key of a resource. ``value`` is None for secrets, and if there is no value."""

    name: str
    value: str | None
    source: ConfigSource
    is_sensitive: bool
    read_only: bool
    synonyms: tuple[Synonym, ...]
    type: ConfigType
    documentation: str

    @property
    def is_default(self) -> bool:
        """True if the value is the default (a field of DescribeConfigs version 0)."""
        return self.source is ConfigSource.DEFAULT


def describe_broker(config: BrokerConfig, unreadable: UnreadablePasswords = ALL_READABLE) -> list[Entry]:
    """Describe every key of a broker, including unknown keys that are set. The values of unknown keys are hidden,
    because they may be secrets. Passwords that cannot be decrypted have a warning in their documentation."""
    layers = tuple(_layers(config))
    if any(unreadable):
        layers = tuple((source, {**layer, **_unreadable(unreadable, source)}) for source, layer in layers)
    names = dict.fromkeys((*BrokerConfig.KEYS, *config.third_party_keys, *config.given, *sorted(_union(unreadable))))
    return [_broker_entry(config, name, layers, unreadable) for name in names]


def describe_cluster_default(config: BrokerConfig, unreadable: UnreadablePasswords = ALL_READABLE) -> list[Entry]:
    """Describe the dynamic entries for all brokers, including passwords that cannot be decrypted (``unreadable``)."""
    source = ConfigSource.CLUSTER_DEFAULT
    layer = (source, {**config.cluster_default, **_unreadable(unreadable, source)})
    return [_broker_entry(config, name, (layer,), unreadable) for name in layer[1]]


def _unreadable(unreadable: UnreadablePasswords, source: ConfigSource) -> Mapping[str, str]:
    """Return the unreadable entries of a source, with empty texts, because passwords are not shown."""
    if source is ConfigSource.PER_BROKER:
        return dict.fromkeys(unreadable.per_broker, "")
    return dict.fromkeys(unreadable.cluster_default if source is ConfigSource.CLUSTER_DEFAULT else (), "")


def _union(unreadable: UnreadablePasswords) -> frozenset[str]:
    return unreadable.cluster_default | unreadable.per_broker


def describe_topic(config: BrokerConfig, overrides: Mapping[str, str]) -> list[Entry]:
    """Describe every key of a topic with the entries ``overrides``. Raises ConfigError if the entries are invalid."""
    topic, layers = TopicConfig(config, overrides), tuple(_layers(config))
    return [_topic_entry(layers, topic, key) for key in TopicConfig.KEYS.values()]


def describe_group(config: BrokerConfig, overrides: Mapping[str, str]) -> list[Entry]:
    """Describe every key of a group with the entries ``overrides``. An entry that cannot be parsed has no effect on the
    value, because a later version may have stored it."""
    group, layers = GroupConfig(config, overrides), tuple(_layers(config))
    return [_level_entry(layers, group, ConfigSource.GROUP, key, "") for key in GroupConfig.KEYS.values()]


_Layer = tuple[ConfigSource, Mapping[str, str]]


def _layers(config: BrokerConfig) -> Iterator[_Layer]:
    yield ConfigSource.PER_BROKER, config.per_broker
    yield ConfigSource.CLUSTER_DEFAULT, config.cluster_default
    yield ConfigSource.STATIC, config.static
    third_party = config.third_party_keys
    yield ConfigSource.DEFAULT, {**_DEFAULT_TEXTS, **_default_texts(third_party)} if third_party else _DEFAULT_TEXTS


def _default_texts(keys: Mapping[str, Key[Any]]) -> Mapping[str, str]:
    return {key.name: text for key in keys.values() if (text := key.text(key.default)) is not None}


_DEFAULT_TEXTS = _default_texts(BrokerConfig.KEYS)


def _broker_entry(
    config: BrokerConfig, name: str, layers: tuple[_Layer, ...], unreadable: UnreadablePasswords
) -> Entry:
    key = config.key(name)
    sensitive = key is None or key.is_sensitive
    places = _synonyms(layers, _names(name, key), sensitive=sensitive)
    # As in Kafka: a key of another name is used only after this name's own places. It does not outrank them, even if
    # its layer does.
    synonyms = tuple(dropwhile(lambda place: place.name != name, places))
    written = next((synonym.value for synonym in synonyms if synonym.name == name), None)
    if synonyms and synonyms[0].name in _unreadable(unreadable, synonyms[0].source):
        warning = f"{name} {CANNOT_BE_READ}"
    else:
        warning = _broker_warning(config, name, written)
    return Entry(
        name=name,
        value=written if written is None or key is None else key.text(key.parse(written)),
        source=synonyms[0].source if synonyms else ConfigSource.DEFAULT,
        is_sensitive=sensitive,
        read_only=key is None or key.dynamic is Dynamic.READ_ONLY,
        synonyms=synonyms,
        type=ConfigType.UNKNOWN if key is None else key.type,
        documentation=_documentation(key, warning),
    )


def _broker_warning(config: BrokerConfig, name: str, written: str | None) -> str:
    key = config.key(name)
    if key is None or written is not None:
        return warning_about(name, {**BrokerKeys.KEYS, **config.third_party_keys})
    return f"{name} has no effect: {key.ignored}" if key.ignored else ""


def _topic_entry(layers: tuple[_Layer, ...], topic: TopicConfig, key: Key[Any]) -> Entry:
    return _level_entry(layers, topic, ConfigSource.TOPIC, key, " ".join(warnings_about_topic([key.name])))


def _level_entry(
    layers: tuple[_Layer, ...], level: TopicConfig | GroupConfig, source: ConfigSource, key: Key[Any], warning: str
) -> Entry:
    """Describe a key of a topic or a group. ``source`` is the source of the topic's or the group's own entries."""
    value = key.text(getattr(level, key.attribute))
    synonyms: tuple[Synonym, ...] = ()
    if key.name in level.overrides:
        synonyms = (Synonym(key.name, value, source),)
    if key.server:
        names = _names(key.server, BrokerConfig.KEYS[key.server])
        synonyms += _synonyms(layers, names, sensitive=key.is_sensitive)
    elif (
        source is ConfigSource.GROUP
    ):  # as in Kafka, which lists no default for topic keys without a corresponding broker key
        synonyms += (Synonym(key.name, key.text(key.default), ConfigSource.DEFAULT),)
    return Entry(
        name=key.name,
        value=value,
        source=synonyms[0].source if synonyms else ConfigSource.DEFAULT,
        is_sensitive=key.is_sensitive,
        read_only=False,
        synonyms=synonyms,
        type=key.type,
        documentation=_documentation(key, warning),
    )


def _documentation(key: Key[Any] | None, warning: str) -> str:
    """Return the documentation of a key, followed by the warning about its current value, if any."""
    return " ".join(filter(None, ("" if key is None else key.doc, f"{IN_PARLEY}{warning}" if warning else "")))


def _synonyms(layers: tuple[_Layer, ...], names: tuple[str, ...], *, sensitive: bool) -> tuple[Synonym, ...]:
    return tuple(
        Synonym(name, None if sensitive else layer[name], source)
        for source, layer in layers
        for name in names
        if name in layer
    )


def _names(name: str, key: Key[Any] | None) -> tuple[str, ...]:
    """Return the names under which a value can be set, in order of precedence."""
    if key is None:
        return (name,)
    if name != key.name:  # listener.name.<listener>.<key>
        return (name, key.name)
    return (name, *(other for other, _ in key.or_else))
