"""The page ``docs/configuration.md``, made of the definitions."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from parley.broker.config.broker_config import BrokerConfig
from parley.broker.config.broker_keys import BrokerKeys
from parley.broker.config.definition import ConfigType, Dynamic, Key, Keys
from parley.broker.config.keys.topic_level import TopicKeys
from parley.broker.config.presets import COMMAND, EMBEDDED
from parley.broker.config.retired import RETIRED
from parley.broker.config.store_keys import keys_of
from parley.consensus.built_in_stores import CONFIGS
from parley.consensus.store_config import StoreConfig

_INTRODUCTION = """\
# Configuration

This page is made from the definitions in `parley/broker/config/keys/` by `make docs`; do not edit it.

A broker is configured by a file of `key=value` lines, with Kafka's names and defaults. The `server.properties` that
comes with Apache Kafka 4 starts a broker; so does one of your own, unless it asks for what is not in this release:
listeners with `SSL` or `SASL`, or `authorizer.class.name`. What is meant to keep others out is refused, not ignored.

A key without effect is a warning that says why, a key that nobody knows is one with the key that was probably meant. A
value that is not allowed stops the start, and all such values are reported at once.

Some keys may be changed while brokers run, with `parley configs` or Kafka's own `kafka-configs`: **cluster-wide** keys
for all brokers at once or for one, **per-broker** keys for one. What was set for one broker comes before what was set
for all, which comes before the file. All other keys are **read-only**: they are read at the start.

Keys may be given for one listener, as `listener.name.<name in small letters>.<key>`, where they say so.
"""

_TOPICS = """\
## Topics

What a topic may set for itself, when it is created or later; where it sets nothing, the broker's key counts. These may
all be changed while brokers run.
"""

_RETIRED = """\
## Keys of Kafka that are accepted and not used

A configuration that has them starts with a warning for each.

| key | why |
|---|---|
"""


_PRESETS = """\
## Without a file

`parley start` without a file, and a broker that a program embeds, begin with these instead of the keys' defaults. What
you give beside them (`--override`, or the arguments of `Broker`) counts more. With a file none of them counts.

| key | default | `parley start` | `Broker()` |
|---|---|---|---|
"""

_NOTES = {
    ("parley start", "metrics.listener"): ", or any free port where that one is taken",
    ("Broker()", "listeners"): ", which is any free port",
    ("Broker()", "log.dirs"): "a temporary folder",
    ("Broker()", "coordination.url"): ", but empty where a folder is named",
}
"""What a preset does not say by itself."""


def configuration_page() -> str:
    """The whole page, in Markdown."""
    parts = [_INTRODUCTION, _contents(), _presets()]
    parts += [_section(keys) for keys in BrokerKeys.__bases__]
    parts += [_store_section(store) for store in CONFIGS.values()]
    parts += [_TOPICS, *(_entry(key) for key in _sorted(TopicKeys.KEYS))]
    rows = (f"| `{name}{'*' if name.endswith('.') else ''}` | {why} |" for name, why in RETIRED.items())
    parts.append(_RETIRED + "\n".join(rows) + "\n")
    return "\n".join(parts)


def _contents() -> str:
    own = [f"`{name}`" for name, key in sorted(BrokerConfig.KEYS.items()) if not key.since]
    return f"Kafka has no such keys as these, which are Parley's own: {', '.join(own)}.\n"


def _presets() -> str:
    ways = {"parley start": COMMAND, "Broker()": EMBEDDED}
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
    """Those that matter most first; keys without effect at the end."""
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
        yield f"taken from the broker's: `{key.server}`"
    elif key.name in BrokerConfig.KEYS and key.dynamic is not Dynamic.READ_ONLY:
        yield f"can be changed at run time: {key.dynamic.value}"
    yield f"importance: {key.importance.value}"
    if key.since:
        yield f"in Kafka since {key.since}"


def _default(key: Key[Any]) -> str:
    default = key.text(key.default)
    if key.or_else:
        return "that of " + ", then ".join(f"`{name}`" for name, _ in key.or_else)
    if default is None:
        return "none"
    readable = f" ({spelt})" if (spelt := _spelt_out(key)) else ""
    return f"`{default}`{readable}" if default else "empty"


_TIMES = (("days", 86_400_000), ("hours", 3_600_000), ("min", 60_000), ("s", 1000))
_SIZES = (("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10))


def _spelt_out(key: Key[Any]) -> str:
    """A large number of milliseconds or bytes in a larger unit; the largest number there is as what it means."""
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
