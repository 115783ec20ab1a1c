"""How this broker secures its connections to the other brokers, over the inter-broker listener.

As a client, a broker uses the listener's ``ssl.*`` keys. To log in, it uses the listener's JAAS entry for the mechanism
in ``sasl.mechanism.inter.broker.protocol``, which also configures the server side of that mechanism.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from threading import Lock

from parley.broker.config import BrokerConfig
from parley.broker.config.broker_keys import LISTENER_PREFIX
from parley.broker.config.errors import ConfigError, Problem
from parley.broker.config.listeners import ListenerAddress
from parley.broker.security.tls.server import check_between_brokers, client_auth_of
from parley.configuration.file_changes import fingerprint_of
from parley.configuration.tls import CRL_FILE, tls_settings
from parley.protocol.security.client_security import PLAINTEXT, ClientSecurity, MissingJaas, client_security

_log = logging.getLogger(__name__)

_FILES = ("ssl.keystore.location", "ssl.truststore.location", CRL_FILE)


def inter_broker_properties(config: BrokerConfig) -> dict[str, str]:
    """Return the inter-broker listener's keys as client properties; empty for PLAINTEXT."""
    address = _listener(config)
    if address.protocol == "PLAINTEXT":
        return {}
    mechanism = config.sasl_mechanism_inter_broker_protocol
    texts = config.texts_for_listener(address.name, mechanism)
    properties = {key: text for key, text in texts.items() if key.startswith(("ssl.", "sasl."))}
    return properties | {"security.protocol": address.protocol, "sasl.mechanism": mechanism}


def _listener(config: BrokerConfig) -> ListenerAddress:
    return next(listener for listener in config.bound if listener.name == config.inter_broker_listener)


class InterBrokerSecurity:
    """Holds the current ``ClientSecurity``, which follows changes to the configuration and to key store files."""

    def __init__(self, config: Callable[[], BrokerConfig]) -> None:
        """Read the settings from the configuration that ``config`` returns. Blocks on the disk. Raises ConfigError if
        the settings cannot secure a connection."""
        self._config = config
        self._lock = Lock()
        self._read_from: tuple[Mapping[str, str], tuple[object, ...]] | None = None
        self._security = PLAINTEXT
        properties = inter_broker_properties(config())
        try:
            self._read(properties)
        except ConfigError:
            raise
        except ValueError as error:
            raise ConfigError([_problem(config(), error)]) from error

    @property
    def is_plaintext(self) -> bool:
        """True if connections are neither encrypted nor authenticated. ``current`` then reads no files."""
        return not inter_broker_properties(self._config())

    def current(self) -> ClientSecurity:
        """Return the security settings for the next connection. Blocks. If the new settings are unusable, logs an error
        and returns the previous settings."""
        with self._lock:
            properties = inter_broker_properties(self._config())
            if self._read_from is None or self._read_from != (properties, _stamps(properties)):
                try:
                    self._read(properties)
                except ValueError as error:
                    _log.error(
                        "could not change the security of inter-broker connections: the previous settings stay in use",
                        extra={"reason": str(error)},
                    )
            return self._security

    def _read(self, properties: Mapping[str, str]) -> None:
        stamps = _stamps(properties)
        self._read_from = (properties, stamps)  # even if reading fails: one log line is enough
        security = client_security(properties)
        self._check_own_certificate(properties)
        self._security = security

    def _check_own_certificate(self, properties: Mapping[str, str]) -> None:
        """Raise ConfigError if the other brokers, which demand a certificate, would refuse this broker's."""
        config = self._config()
        address = _listener(config)
        if address.is_tls and client_auth_of(address, config) != "none":
            check_between_brokers(address, config, tls_settings(properties))


def _problem(config: BrokerConfig, error: ValueError) -> Problem:
    """Return the setting to correct: the JAAS entry if it is missing, the setting of the file that the error names, or
    else the inter-broker listener."""
    if isinstance(error, MissingJaas):
        return _missing_login(config, error)
    for key, path in inter_broker_properties(config).items():
        if key in _FILES and path and path in str(error):
            return Problem(key, path, f"usable: {error}")
    return Problem(
        "inter.broker.listener.name", config.inter_broker_listener, f"a listener with valid settings. {error}"
    )


def _missing_login(config: BrokerConfig, error: MissingJaas) -> Problem:
    """Return the problem of a broker without a login for the other brokers. It names the keys that do not apply."""
    listener, mechanism = config.inter_broker_listener.lower(), config.sasl_mechanism_inter_broker_protocol.lower()
    needed = f"{LISTENER_PREFIX}{listener}.{mechanism}.sasl.jaas.config"
    bound = tuple(f"{LISTENER_PREFIX}{each.name.lower()}." for each in config.bound)
    unused = [key for key in config.given if key.endswith("sasl.jaas.config") and not key.startswith(bound)]
    remark = f". {' and '.join(unused)} {'has' if len(unused) == 1 else 'have'} no effect" if unused else ""
    return Problem(needed, "", f"set for the logins between brokers ({error}){remark}")


def _stamps(properties: Mapping[str, str]) -> tuple[object, ...]:
    """Return a value that changes when the key store, trust store or CRL file changes."""
    return fingerprint_of(properties[key] for key in _FILES if properties.get(key))
