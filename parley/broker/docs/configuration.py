"""Generates ``docs/configuration.md`` from the definitions of the keys."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from parley.broker.config.broker_config import BrokerConfig
from parley.broker.config.broker_keys import BrokerKeys
from parley.broker.config.key_definition import ConfigType, Dynamic, Key, Keys
from parley.broker.config.keys.group_level import GroupLevelKeys
from parley.broker.config.keys.topic_level import TopicKeys
from parley.broker.config.presets import COMMAND, EMBEDDED, of_cluster
from parley.broker.config.retired import RETIRED
from parley.broker.config.store_keys import keys_of
from parley.consensus.built_in_stores import CONFIGS
from parley.consensus.store_config import StoreConfig

_INTRODUCTION = """\
# Configuration

`make docs` generates this page from the definitions in `parley/broker/config/keys/`; do not edit it.

A broker reads its configuration from a file of `key=value` lines, with Kafka's names and defaults. The
`server.properties` that comes with Apache Kafka 4 starts a broker, and so does yours.

A key that has no effect in Parley is accepted, and the broker logs a warning with the reason. An unknown key is
accepted, too; the warning then names the key that you probably meant. If values are not allowed, the broker does not
start, and reports all of them together.

Some keys can be changed while brokers run, with `parley configs` or Kafka's `kafka-configs`: **cluster-wide** keys for
all brokers at once or for one broker, **per-broker** keys for one broker. A value for one broker overrides the value
for all brokers, which overrides the file. All other keys are **read-only**: brokers read them when they start.

A change of a key that has no effect is also accepted, so that scripts written for Kafka work. `parley configs` and
`parley topics --create` print a warning, and the broker logs one.

A key that can be set for a single listener says so. Write it as `listener.name.<name in lower case>.<key>`.
"""

_TOPICS = """\
## Topics

Settings of a topic, given when the topic is created or later. If a topic does not set a key, the broker's key applies.
All of them can be changed while brokers run.
"""

_GROUPS = """\
## Settings of one group

Settings of a group, given at any time with `parley configs --alter --entity-type groups`. If a group does not set a
key, the broker's key applies.
"""

_RETIRED = """\
## Keys of Kafka that are accepted and not used

If a configuration contains one of these, the broker starts and logs a warning.

| key | reason |
|---|---|
"""


_PRESETS = """\
## Without a file

`parley start` without a file, and a broker that a program embeds, use these values instead of the defaults of the keys.
What you set yourself (`--override`, or the arguments of `Broker`) overrides them. With a file they do not apply.

Each broker of `parley start --brokers N` has its own port, and the folder `broker-ID` in log.dirs. The embedded store
is in the folder `coordination` there. With two brokers, topics have two replicas, and
`transaction.state.log.min.isr` and `share.coordinator.state.topic.min.isr` are 1. A broker that you add to such a
cluster needs [the same values](operations.md#adding-and-removing-brokers).

| key | default | `parley start` | `parley start --brokers 3` | `Broker()` |
|---|---|---|---|---|
"""

_NOTES = {
    ("parley start", "metrics.listener"): ", or any free port if that one is taken",
    ("parley start --brokers 3", "listeners"): " and the next ports",
    ("parley start --brokers 3", "metrics.listener"): " and the next ports, or any free port if one is taken",
    ("parley start --brokers 3", "log.dirs"): ", a folder in it for each",
    ("parley start --brokers 3", "coordination.url"): "the folder `coordination` in log.dirs",
    ("Broker()", "listeners"): ", which is any free port",
    ("Broker()", "log.dirs"): "a temporary folder",
    ("Broker()", "coordination.url"): ", but empty if a data folder is given",
}
"""Additional notes on preset values, by preset and key."""


def configuration_page() -> str:
    """Return the whole page, as Markdown."""
    parts = [_INTRODUCTION, _contents(), _presets()]
    parts += [_section(keys) for keys in BrokerKeys.__bases__]
    parts += [_store_section(store) for store in CONFIGS.values()]
    parts += [_TOPICS, *(_entry(key) for key in _sorted(TopicKeys.KEYS))]
    parts += [_GROUPS, *(_entry(key) for key in _sorted(GroupLevelKeys.KEYS))]
    rows = (f"| `{name}{'*' if name.endswith('.') else ''}` | {why} |" for name, why in RETIRED.items())
    parts.append(_RETIRED + "\n".join(rows) + "\n")
    return "\n".join(parts)


def _contents() -> str:
    own = [f"`{name}`" for name, key in sorted(BrokerConfig.KEYS.items()) if not key.since]
    return f"These keys are Parley's own; Kafka does not have them: {', '.join(own)}.\n"


def _presets() -> str:
    several = {**of_cluster(3), **{key: COMMAND[key] for key in ("listeners", "log.dirs", "metrics.listener")}}
    ways = {"parley start": COMMAND, "parley start --brokers 3": several, "Broker()": EMBEDDED}
    names = dict.fromkeys(name for preset in ways.values() for name in preset)
    rows = (
        f"| `{name}` | {_default(BrokerConfig.KEYS[name])} | "
        + " | ".join(_preset(preset.get(name), _NOTES.get((way, name), "")) for way, preset in ways.items())
        + " |\n"
        for name in names
    )
    return _PRESETS + "".join(rows)


def _preset(value: str | None, note: str) -> str:
    return (f"`{value}`" if value else "") + note or "the default"


def _section(keys: type) -> str:
    assert issubclass(keys, Keys)
    return "\n".join(
        [f"## {keys.TITLE}\n", f"{_escaped(keys.__doc__ or '')}\n", *(_entry(key) for key in _sorted(keys.KEYS))]
    )


def _store_section(store: StoreConfig) -> str:
    head = [f"## The coordination store {store.title}\n", f"{_escaped(store.doc)}\n"]
    return "\n".join([*head, *(_entry(key) for key in _sorted(keys_of(store)))])


def _sorted(keys: Mapping[str, Key[Any]]) -> list[Key[Any]]:
    """Return the keys by importance, with the keys that have no effect last."""
    order = list(type(next(iter(keys.values())).importance))
    return sorted(keys.values(), key=lambda key: (bool(key.ignored), order.index(key.importance)))


def _entry(key: Key[Any]) -> str:
    lines = [f"### `{key.name}`\n", f"{_escaped(key.doc)}\n"]
    if key.ignored:
        lines.append(f"**No effect.** {_escaped(key.ignored)}\n")
    if key.deprecated:
        lines.append(f"**Deprecated:** use {_escaped(key.deprecated)}.\n")
    lines.append("".join(f"- {fact}\n" for fact in _facts(key)))
    return "\n".join(lines)


def _facts(key: Key[Any]) -> Iterator[str]:
    unit = f", in {key.unit}" if key.unit else ""
    yield f"type: {key.type.name.lower()}{unit}"
    yield f"default: {_default(key)}"
    if key.allowed or key.form or key.at_least is not None or key.at_most is not None:
        yield f"allowed: {_escaped(key.allowed_text)}"
    if key.server:
        yield f"default of the topic: the broker's `{key.server}`"
    elif key.name in BrokerConfig.KEYS and key.dynamic is not Dynamic.READ_ONLY:
        yield f"can be changed at run time: {key.dynamic.value}"
    yield f"importance: {key.importance.value}"
    if key.since:
        yield f"in Kafka since {key.since}"


def _default(key: Key[Any]) -> str:
    default = key.text(key.default)
    if key.or_else:
        return "the value of " + ", then ".join(f"`{name}`" for name, _ in key.or_else)
    if default is None:
        return "none"
    readable = f" ({spelt})" if (spelt := _spelt_out(key)) else ""
    return f"`{default}`{readable}" if default else "empty"


_TIMES = (("days", 86_400_000), ("hours", 3_600_000), ("min", 60_000), ("s", 1000))
_SIZES = (("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10))


def _spelt_out(key: Key[Any]) -> str:
    """Return the default in a larger unit if it is a number of milliseconds or bytes, "no limit" if it is the largest
    number, and otherwise an empty string."""
    value = key.default
    if key.type not in (ConfigType.INT, ConfigType.LONG):
        return ""
    if value in ((1 << 31) - 1, (1 << 63) - 1):
        return "no limit"
    for unit, size in {"ms": _TIMES, "bytes": _SIZES}.get(key.unit, ()):
        if value >= size and value % size == 0:
            return f"{value // size} {unit}"
    return ""


def _escaped(text: str) -> str:
    return text.replace("<", "&lt;").replace("*", "\\*").replace("_", "\\_")
