"""The access rules of the metrics listener: TLS and a login, as configured for the listener ``METRICS``.

``metrics.listener=https://host:port`` uses ``listener.name.metrics.ssl.*``, or else the broker's ``ssl.*``. The users
in ``listener.name.metrics.plain.sasl.jaas.config`` log in with HTTP basic authentication. Changes to the configuration
and to the files apply from the next connection on. ``current`` blocks: call it in the exporter's threads.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from dataclasses import field
from threading import Lock
from typing import Final

from parley.broker.config import BrokerConfig, ConfigError, Problem
from parley.broker.config.listeners import ListenerAddress
from parley.broker.security.sasl.login import SHOWN_NAME_MAX
from parley.broker.security.sasl.plain import jaas_users
from parley.broker.security.tls.server import ServerTls, server_tls
from parley.configuration.file_changes import fingerprint_of
from parley.light_dataclasses import dataclass
from parley.protocol.security.jaas import BadJaas, single_login_module
from parley.protocol.security.passwords import Passwords

_log = logging.getLogger(__name__)

NAME: Final = "METRICS"
USERS_KEY: Final = "listener.name.metrics.plain.sasl.jaas.config"
LOG_PERIOD_S: Final = 1.0
"""The minimum interval, in seconds, between two log lines about rejected clients."""


@dataclass(frozen=True, slots=True)
class AccessRules:
    """The conditions for access to the metrics listener. By default, every client has access, without TLS."""

    tls: ServerTls | None = None
    users: Passwords | None = None
    refusal_delay_s: float = field(default=0.0, compare=False)


class MetricsAccess:
    """The current access rules, from the configuration and the files that it names."""

    def __init__(self, config: Callable[[], BrokerConfig]) -> None:
        """Read the rules from the configuration that ``config`` returns, which blocks on the disk. Raises ConfigError
        if the listener cannot be opened as configured."""
        self._config = config
        self._lock = Lock()
        read = config()
        self._read_from = read
        self._files = _files(read)
        self._fingerprint: object = fingerprint_of(self._files)
        self._current = _access_rules(read)
        self._logged_at = -LOG_PERIOD_S

    def current(self) -> AccessRules:
        """Return the rules for the next client. Blocks on the disk. If the configuration or the files have changed and
        cannot be used, logs the problem and returns the previous rules."""
        with self._lock:
            config = self._config()
            is_same = config is self._read_from  # each change creates a new configuration
            files = self._files if is_same else _files(config)
            fingerprint = fingerprint_of(files)
            if not is_same or fingerprint != self._fingerprint:
                self._read_from, self._files, self._fingerprint = config, files, fingerprint
                self._read(config)
            return self._current

    def _read(self, config: BrokerConfig) -> None:
        try:
            self._current = _access_rules(config)
        except ValueError as error:  # ConfigError, or a certificate that cannot be read
            _log.error(
                "could not change the security settings of a listener: the previous settings stay in use",
                extra={"listener": NAME, "reason": str(error)},
            )

    def refused(self, peer: str, reason: str, *, user: str = "") -> None:
        """Log that a client was rejected. Logs at most one rejection in ``LOG_PERIOD_S``. ``peer`` is the address of
        the client, and ``user`` the name that it claimed."""
        with self._lock:
            now = time.monotonic()
            if now - self._logged_at < LOG_PERIOD_S:
                return
            self._logged_at = now
        shown = user[:SHOWN_NAME_MAX]
        _log.warning(
            "authentication failed", extra={"listener": NAME, "peer": peer, "reason": reason, "claimed_user": shown}
        )


def _files(config: BrokerConfig) -> tuple[str, ...]:
    """Return the files from which the rules are read. This takes a millisecond."""
    own = config.for_listener(NAME)
    return tuple(filter(None, (own.ssl_keystore_location, own.ssl_truststore_location, own.ssl_crl_location)))


def _access_rules(config: BrokerConfig) -> AccessRules:
    """Return the rules for a configuration. Raises ConfigError if it cannot be used."""
    assert config.metrics_address is not None, "there is a metrics listener"
    users = _users(config.given.get(USERS_KEY, ""))
    delay_s = config.connection_failed_authentication_delay_ms / 1000
    if not config.metrics_is_tls:
        return AccessRules(None, users, delay_s)
    protocol = "SSL" if users is None else "SASL_SSL"
    return AccessRules(server_tls(ListenerAddress(NAME, protocol, *config.metrics_address), config), users, delay_s)


def _users(line: str) -> Passwords | None:
    """Return the users in a JAAS entry, or None without an entry. Raises ConfigError."""
    if not line.strip():
        return None
    try:
        module = single_login_module(line)
    except BadJaas as error:
        raise ConfigError([Problem(USERS_KEY, "[hidden]", f"a JAAS entry: {error}")]) from None
    users = jaas_users(module.options)
    if module.name != "PlainLoginModule" or not users:
        raise ConfigError([Problem(USERS_KEY, "[hidden]", 'a PlainLoginModule with users, as user_prometheus="..."')])
    return users
