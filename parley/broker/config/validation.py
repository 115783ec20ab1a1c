"""Rules between keys: values that are valid individually but not in combination."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from parley.broker.config.broker_keys import BrokerKeys
from parley.broker.config.errors import Problem
from parley.broker.config.key_definition import split_list

_MAP_BYTES_MIN = 1 << 20
"""The minimum size of the log cleaner's key table per thread, as in Kafka."""


class Rule(NamedTuple):
    """A condition on a configuration. If it does not hold, ``key`` is reported, and ``allowed`` completes
    "it must be". ``allowed`` may contain attributes of ``config`` in braces.
    """

    key: str
    holds: Callable[[BrokerKeys], bool]
    allowed: str


def _same_id(config: BrokerKeys) -> bool:
    return config.broker_id == config.node_id


def _dirs_exist(config: BrokerKeys) -> bool:
    cordoned = config.cordoned_log_dirs
    return cordoned == ("*",) or set(cordoned) <= set(config.data_dirs)


def _admits(config: BrokerKeys, name: str) -> bool:
    """Return True if the broker's limit and each listener's own limit allow at least one connection."""
    own = (text for key, text in config.given.items() if key.startswith("listener.name.") and key.endswith(f".{name}"))
    return all(int(text) > 0 for text in (config.given.get(name, "1"), *own))


def _admits_some_address(overrides: str) -> bool:
    return any(int(pair.rpartition(":")[2]) > 0 for pair in overrides.split(",") if pair.strip())


def _of_listener(config: BrokerKeys, listener: str, name: str) -> str:
    """Return the text of a key for a listener, or an empty string if it is not set."""
    given = config.given
    return given.get(f"listener.name.{listener.lower()}.{name}", given.get(name, "")).strip()


def _have_keys(config: BrokerKeys) -> bool:
    return all(
        _of_listener(config, each.name, "ssl.keystore.location") or _of_listener(config, each.name, "ssl.keystore.key")
        for each in config.bound
        if each.is_tls
    )


def _metrics_keys_count(config: BrokerKeys) -> bool:
    return _tls_keys_count(config, "metrics", config.metrics_listener)


def _console_keys_count(config: BrokerKeys) -> bool:
    return not config.console_listener or _tls_keys_count(config, "console", config.console_listener)


def _tls_keys_count(config: BrokerKeys, name: str, address: str) -> bool:
    own = [key for key in config.given if key.startswith(f"listener.name.{name}.ssl.")]
    is_of_another = any(each.name == name.upper() for each in config.bound)
    return not own or is_of_another or address.startswith("https://")


def _login_problems(config: BrokerKeys) -> list[Problem]:
    """Return a problem if the brokers cannot log in to each other, because the listener does not offer the
    mechanism."""
    inter_broker = next((each for each in config.bound if each.name == config.inter_broker_listener), None)
    if inter_broker is None or not inter_broker.is_sasl:
        return []
    enabled = _of_listener(config, inter_broker.name, "sasl.enabled.mechanisms")
    mechanisms = split_list(enabled) if enabled else config.sasl_enabled_mechanisms
    used = config.sasl_mechanism_inter_broker_protocol
    if used in mechanisms:
        return []
    similar = next((each for each in mechanisms if _letters(each) == _letters(used)), "")
    allowed = f"among the sasl.enabled.mechanisms of the inter-broker listener, which are {', '.join(mechanisms)}"
    hint = f". Did you mean {used} by {similar}?" if similar else ""
    return [Problem("sasl.mechanism.inter.broker.protocol", used, allowed + hint)]


def _letters(mechanism: str) -> str:
    """Return a mechanism's name with only its letters and digits, in upper case.

    If the names of two mechanisms differ only in other characters, such as hyphens, one is probably a misspelling.
    """
    return "".join(filter(str.isalnum, mechanism)).upper()


def _between_bounds(name: str) -> tuple[Rule, Rule]:
    """Return the rules for a key of groups, whose value must lie between the keys for its minimum and maximum."""
    kind, rest = name.split(".", 2)[1:]
    lowest, highest = (f"group.{kind}.{bound}.{rest}" for bound in ("min", "max"))

    def value(config: BrokerKeys, key: str) -> int:
        return int(getattr(config, key.replace(".", "_")))

    return (
        Rule(name, lambda c: value(c, lowest) <= value(c, name), f"at least {lowest}"),
        Rule(name, lambda c: value(c, name) <= value(c, highest), f"at most {highest}"),
    )


RULES = (
    Rule("node.id", _same_id, "the same as broker.id if both are set"),
    Rule(
        "broker.id",
        lambda c: (
            "broker.id" not in c.static or c.broker_id <= c.reserved_broker_max_id or not c.broker_id_generation_enable
        ),
        "at most {config.reserved_broker_max_id} (reserved.broker.max.id), because the cluster assigns higher ids. If "
        "it assigned this one, leave out broker.id: meta.properties in each log directory contains it. Otherwise "
        "raise reserved.broker.max.id",
    ),
    Rule(
        "broker.id",
        lambda c: c.broker_id >= 0 or c.broker_id_generation_enable,
        "set if broker.id.generation.enable is false",
    ),
    Rule("log.dirs", lambda c: bool(c.data_dirs) and all(c.data_dirs), "at least one directory, none of them empty"),
    Rule("cordoned.log.dirs", _dirs_exist, "among the directories in log.dirs, or *"),
    Rule(
        "inter.broker.listener.name",
        lambda c: not ("inter.broker.listener.name" in c.given and "security.inter.broker.protocol" in c.given),
        "omitted if security.inter.broker.protocol is set",
    ),
    Rule("log.retention.ms", lambda c: c.log_retention_ms != 0, "-1 (forever), or at least 1"),
    Rule(
        "log.cleaner.min.compaction.lag.ms",
        lambda c: c.log_cleaner_min_compaction_lag_ms <= c.log_cleaner_max_compaction_lag_ms,
        "at most log.cleaner.max.compaction.lag.ms",
    ),
    Rule(
        "log.cleaner.dedupe.buffer.size",
        lambda c: c.log_cleaner_dedupe_buffer_size > c.log_cleaner_threads * _MAP_BYTES_MIN,
        f"more than {_MAP_BYTES_MIN} (1 MiB) for each of log.cleaner.threads",
    ),
    Rule(
        "group.min.session.timeout.ms",
        lambda c: c.group_min_session_timeout_ms <= c.group_max_session_timeout_ms,
        "at most group.max.session.timeout.ms",
    ),
    *_between_bounds("group.share.session.timeout.ms"),
    *_between_bounds("group.share.heartbeat.interval.ms"),
    *_between_bounds("group.share.assignment.interval.ms"),
    *_between_bounds("group.share.record.lock.duration.ms"),
    *_between_bounds("group.share.delivery.count.limit"),
    *_between_bounds("group.share.partition.max.record.locks"),
    Rule(
        "group.share.heartbeat.interval.ms",
        lambda c: c.group_share_heartbeat_interval_ms < c.group_share_session_timeout_ms,
        "less than group.share.session.timeout.ms",
    ),
    Rule(
        "group.share.max.share.sessions",
        lambda c: c.group_share_max_share_sessions >= c.group_share_max_size,
        "at least group.share.max.size",
    ),
    *_between_bounds("group.streams.session.timeout.ms"),
    *_between_bounds("group.streams.heartbeat.interval.ms"),
    *_between_bounds("group.streams.assignment.interval.ms"),
    Rule(
        "group.streams.heartbeat.interval.ms",
        lambda c: c.group_streams_heartbeat_interval_ms < c.group_streams_session_timeout_ms,
        "less than group.streams.session.timeout.ms",
    ),
    Rule(
        "group.streams.num.standby.replicas",
        lambda c: c.group_streams_num_standby_replicas <= c.group_streams_max_standby_replicas,
        "at most group.streams.max.standby.replicas",
    ),
    Rule("group.share.assignors", lambda c: c.group_share_assignors == ("simple",), "simple"),
    Rule(
        "replica.fetch.wait.max.ms",
        lambda c: c.replica_fetch_wait_max_ms <= c.replica_lag_time_max_ms,
        "at most replica.lag.time.max.ms, so that followers stay in sync",
    ),
    Rule(
        "replica.fetch.wait.max.ms",
        lambda c: c.replica_fetch_wait_max_ms <= c.replica_socket_timeout_ms,
        "at most replica.socket.timeout.ms, so that followers wait for the response",
    ),
    Rule(
        "socket.connection.setup.timeout.ms",
        lambda c: c.socket_connection_setup_timeout_ms <= c.socket_connection_setup_timeout_max_ms,
        "at most socket.connection.setup.timeout.max.ms",
    ),
    Rule(
        "connection.failed.authentication.delay.ms",
        lambda c: (
            c.connections_max_idle_ms < 0 or c.connection_failed_authentication_delay_ms < c.connections_max_idle_ms
        ),
        "less than connections.max.idle.ms",
    ),
    Rule(
        "max.connections.per.ip",
        lambda c: c.max_connections_per_ip > 0 or _admits_some_address(c.max_connections_per_ip_overrides),
        "at least 1, or 0 with an address in max.connections.per.ip.overrides; otherwise no client could connect",
    ),
    # No client could connect, not even to change the limits back.
    Rule(
        "max.connections",
        lambda c: _admits(c, "max.connections"),
        "at least 1; otherwise no client could connect",
    ),
    Rule(
        "max.connection.creation.rate",
        lambda c: _admits(c, "max.connection.creation.rate"),
        "at least 1; otherwise no client could connect",
    ),
    Rule(
        "queued.max.request.bytes",
        lambda c: c.queued_max_request_bytes <= 0 or c.queued_max_request_bytes >= c.socket_request_max_bytes,
        "at least socket.request.max.bytes; otherwise a request of that size could never be read",
    ),
    Rule(
        "ssl.keystore.location",
        _have_keys,
        "set, or ssl.keystore.key must be set: a listener with TLS needs a certificate",
    ),
    Rule("console.listener", _console_keys_count, "https://host:port if keys listener.name.console.ssl.* are set"),
    Rule("metrics.listener", _metrics_keys_count, "https://host:port if keys listener.name.metrics.ssl.* are set"),
)


def problems_between(config: BrokerKeys, *, is_of_one_listener: bool) -> list[Problem]:
    """Return a problem for every rule that the configuration violates. Each value must already be valid individually.

    Pass ``is_of_one_listener`` for a configuration that contains the keys of one listener without their prefix. Logins
    between brokers are then not checked: they depend on the keys of the inter-broker listener, which such a
    configuration has overwritten.
    """
    broken = [rule for rule in RULES if not rule.holds(config)]
    problems = [Problem(rule.key, _value(config, rule.key), rule.allowed.format(config=config)) for rule in broken]
    return problems if is_of_one_listener else problems + _login_problems(config)


def _value(config: BrokerKeys, name: str) -> str:
    given = config.given
    if name in given:
        return given[name]
    return config.KEYS[name].text(getattr(config, name.replace(".", "_"))) or ""
