"""The configuration of one broker, validated as a whole and immutable.

Values come from four layers. The first layer that contains a value takes precedence (KIP-226):

1. entries for this broker, set while it runs,
2. entries for all brokers, set while they run,
3. the properties that the broker was started with,
4. the defaults of the keys.

A change creates a new ``BrokerConfig``; the old object keeps its values.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, NoReturn

from parley.broker.config import listeners as _listeners
from parley.broker.config.broker_keys import LISTENER_PREFIX, BrokerKeys, base_key
from parley.broker.config.errors import ConfigError, Problem, UnknownKey
from parley.broker.config.key_definition import Key, closest, parse_all, unknown_keys
from parley.broker.config.listeners import ListenerAddress
from parley.broker.config.retired import why_retired
from parley.broker.config.store_keys import SESSION_TIMEOUTS, third_party_keys
from parley.broker.config.validation import problems_between
from parley.configuration.providers import is_about_providers

NOTHING: Mapping[str, str] = MappingProxyType({})


class BrokerConfig(BrokerKeys):
    """Every key as a typed attribute (``config.log_segment_bytes``), and values that are derived from several keys.

    Immutable. Create one with ``from_properties``; ``BrokerConfig.from_properties({})`` contains the defaults.
    """

    def __init__(
        self,
        static: Mapping[str, str],
        cluster_default: Mapping[str, str],
        per_broker: Mapping[str, str],
        third_party_keys: Mapping[str, Key[Any]],
        *,
        is_of_one_listener: bool = False,
    ):
        """Parse and check all layers. Raises ConfigError with all problems.

        The first three arguments are layers of the configuration (see the module docstring), and ``third_party_keys``
        contains the keys of third-party stores by name. With ``is_of_one_listener``, ``per_broker`` also contains the
        keys of one listener, without their prefix.
        """
        given = {**static, **cluster_default, **per_broker}
        keys = {**self.KEYS, **third_party_keys} if third_party_keys else self.KEYS
        parsed, problems = parse_all(keys, given)
        problems += _listener_key_problems(given)
        values = {**_DEFAULTS, **{key.attribute: key.default for key in third_party_keys.values()}, **parsed}
        problems += _resolve(values, given)
        values |= {
            "static": MappingProxyType(dict(static)),
            "cluster_default": MappingProxyType(dict(cluster_default)),
            "per_broker": MappingProxyType(dict(per_broker)),
            "third_party_keys": third_party_keys,
            "warnings": _warnings(given, keys),
        }
        self.__dict__.update(values)
        if not problems:
            problems = problems_between(self, is_of_one_listener=is_of_one_listener)
        if problems:
            raise ConfigError(problems)

    @classmethod
    def from_properties(cls, properties: Mapping[str, str]) -> BrokerConfig:
        """Return the configuration for the properties of a file. Raises ConfigError with every problem found."""
        unknown = [name for name in properties if base_key(name) is None]
        third_party = third_party_keys(unknown)
        try:
            return cls(properties, NOTHING, NOTHING, third_party)
        except ConfigError as error:  # the broker does not start, so it will not warn about misspelled keys
            raise ConfigError([*error.problems, *_misspelled(properties, third_party)]) from None

    def with_dynamic(self, cluster_default: Mapping[str, str], per_broker: Mapping[str, str]) -> BrokerConfig:
        """Return a copy of this configuration with new dynamic layers. Raises ConfigError if the result is invalid.

        Both arguments are whole layers, not changes to them. To check a change that a client requests, use
        ``parley.broker.config.dynamic_changes.check_change``.
        """
        return BrokerConfig(self.static, cluster_default, per_broker, self.third_party_keys)

    def for_listener(self, name: str) -> BrokerConfig:
        """Return the configuration for one listener: ``listener.name.<name>.<key>`` overrides ``<key>`` (KIP-103).

        Returns this object itself if no key is set for the listener. Raises ConfigError if the values are not valid in
        combination.
        """
        prefix = f"{LISTENER_PREFIX}{name.lower()}."
        own = {key.removeprefix(prefix): value for key, value in self.given.items() if key.startswith(prefix)}
        if not own:
            return self
        layer = {**self.per_broker, **own}
        return BrokerConfig(self.static, self.cluster_default, layer, self.third_party_keys, is_of_one_listener=True)

    def texts_for_listener(self, name: str, mechanism: str = "") -> dict[str, str]:
        """Return the text of each key that is set, for one listener and one SASL mechanism.

        ``listener.name.<name>.<mechanism>.<key>`` overrides ``listener.name.<name>.<key>``, which overrides ``<key>``
        (KIP-103, KIP-86). As in Kafka, ``sasl.jaas.config`` has no effect without a listener's prefix.
        """
        given = {key: value for key, value in self.given.items() if key != "sasl.jaas.config"}
        texts = {key: value for key, value in given.items() if not key.startswith(LISTENER_PREFIX)}
        prefixes = [f"{LISTENER_PREFIX}{name.lower()}."]
        if mechanism:
            prefixes.append(f"{prefixes[0]}{mechanism.lower()}.")
        for prefix in prefixes:
            texts |= {key.removeprefix(prefix): value for key, value in given.items() if key.startswith(prefix)}
        return texts

    def advertised_at(self, ports: Mapping[str, int], hostname: str) -> tuple[ListenerAddress, ...]:
        """Return the addresses to advertise. ``ports`` are the opened ports, by listener name.

        ``hostname`` is the name of this machine. It is used for listeners that are bound to every interface and have no
        advertised host.
        """
        return tuple(
            listener.at(host=listener.host or hostname, port=listener.port or ports[listener.name])
            for listener in self.advertised
        )

    @property
    def session_timeout_ms(self) -> int:
        """The timeout of this broker's session with the coordination store: ``coordination.session.timeout.ms``, or a
        key of the store (``SESSION_TIMEOUTS``) if only that is set."""
        given = self.given
        names = SESSION_TIMEOUTS if "coordination.session.timeout.ms" not in given else ()
        name = next((each for each in names if each in given), "coordination.session.timeout.ms")
        timeout_ms: int = getattr(self, self.KEYS[name].attribute)
        return timeout_ms

    @property
    def metrics_address(self) -> tuple[str, int] | None:
        """Host and port of ``metrics.listener``; None if it is not set."""
        host, separator, port = self.metrics_listener.rpartition("//")[2].rpartition(":")
        return (host.strip("[]"), int(port)) if separator else None

    @property
    def metrics_is_tls(self) -> bool:
        """True if ``metrics.listener`` is HTTPS."""
        return self.metrics_listener.startswith("https://")

    def __setattr__(self, name: str, value: object) -> NoReturn:
        raise AttributeError(f"a configuration is immutable: create a new one instead of setting {name}")

    def __delattr__(self, name: str) -> NoReturn:
        raise AttributeError(f"a configuration is immutable: {name} cannot be deleted")

    def __repr__(self) -> str:
        return f"<BrokerConfig of broker {self.broker_id}>"


_DEFAULTS: Mapping[str, Any] = {key.attribute: key.default for key in BrokerKeys.KEYS.values()}


def _listener_key_problems(given: Mapping[str, str]) -> list[Problem]:
    problems = []
    for name, text in given.items():
        key = base_key(name) if name.startswith(LISTENER_PREFIX) else None
        if key is not None:
            try:
                key.parse(text)
            except Problem as problem:
                problems.append(Problem(name, problem.value, problem.allowed))
    return problems


def warning_about(name: str, keys: Mapping[str, Key[Any]]) -> str:
    """Return a warning if a setting has no effect, is deprecated or is unknown; otherwise an empty string.

    ``keys`` are the known keys, including those of third-party stores.
    """
    key = base_key(name) or keys.get(name)
    if key is None:
        if why := why_retired(name):
            return f"{name} has no effect: {why}"
        meant = closest(name, keys)
        return f"{name} is not a configuration key" + (f": did you mean {meant}?" if meant else "")
    if key.ignored:
        return f"{name} has no effect: {key.ignored}"
    return f"{name} is deprecated: use {key.deprecated}" if key.deprecated else ""


def _warnings(given: Mapping[str, str], keys: Mapping[str, Key[Any]]) -> tuple[str, ...]:
    return tuple(warning for name in given if not is_about_providers(name) and (warning := warning_about(name, keys)))


def _misspelled(given: Mapping[str, str], third_party_keys: Mapping[str, Key[Any]]) -> list[Problem]:
    """Return a problem for each unknown key that resembles a known one."""
    unknown = unknown_keys(given, {**BrokerKeys.KEYS, **third_party_keys})
    return [each for each in unknown if isinstance(each, UnknownKey) and each.meant and base_key(each.key) is None]


# --- Values that are derived from several keys ---


def _resolve(values: dict[str, Any], given: Mapping[str, str]) -> list[Problem]:
    """Fill in the values that are derived from several keys, and return the problems found."""
    _take_over(values, given)
    values["data_dirs"] = tuple(dict.fromkeys(values["log_dirs"] or values["log_dir"]))
    id_ = values["broker_id"] if "broker.id" in given else values["node_id"]
    values["broker_id"] = id_
    values["node_id"] = values["node_id"] if "node.id" in given else id_
    try:
        _resolve_listeners(values, given)
    except Problem as problem:
        return [problem]
    return []


def _take_over(values: dict[str, Any], given: Mapping[str, str]) -> None:
    """Fill in each key that is not set from the key that supplies its value, and convert the unit."""
    for key in _TAKING_OVER:
        if values[key.attribute] is None:
            other, factor = next(
                (value, factor) for name, factor in key.or_else if (value := values[name.replace(".", "_")]) is not None
            )
            values[key.attribute] = other if other < 0 else other * factor
    if "log.message.timestamp.difference.max.ms" in given:
        for side in ("before", "after"):
            if f"log.message.timestamp.{side}.max.ms" not in given:
                values[f"log_message_timestamp_{side}_max_ms"] = values["log_message_timestamp_difference_max_ms"]


_TAKING_OVER = tuple(key for key in BrokerKeys.KEYS.values() if key.or_else)


def _resolve_listeners(values: dict[str, Any], given: Mapping[str, str]) -> None:
    protocols = _listeners.parse_protocol_map(values["listener_security_protocol_map"])
    texts = values["listeners"]
    if "listeners" not in given and ("host.name" in given or "port" in given):
        texts = (f"PLAINTEXT://{values['host_name']}:{values['port']}",)
    bound = _listeners.parse_listeners("listeners", _without_controllers(texts, values), protocols)
    _listeners.check_ports("listeners", bound)
    bootstrap = _listeners.parse_shared("bootstrap.listeners", values["bootstrap_listeners"], protocols, bound)

    advertised = bound
    if values["advertised_listeners"] is not None:
        texts = _without_controllers(values["advertised_listeners"], values)
        advertised = _listeners.parse_listeners("advertised.listeners", texts, protocols)
    elif "listeners" not in given:
        host, port = values["advertised_host_name"], values["advertised_port"]
        advertised = tuple(listener.at(host=host, port=port) for listener in bound)
    _listeners.check_advertised("advertised.listeners", advertised, bound, bootstrap)
    values |= {
        "bound": bound,
        "advertised": advertised,
        "bootstrap": bootstrap,
        "inter_broker_listener": _listeners.inter_broker_listener(values, given, bound),
    }


def _without_controllers(texts: tuple[str, ...], values: dict[str, Any]) -> tuple[str, ...]:
    """Return the listeners without those of Kafka's controller, which a KRaft configuration for both roles includes."""
    controllers = {name.upper() for name in values["controller_listener_names"]}
    return tuple(text for text in texts if text.partition("://")[0].strip().upper() not in controllers)
