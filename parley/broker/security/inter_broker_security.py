"""How this broker secures its connections to the other brokers, over the inter-broker listener.

As a client, a broker uses the listener's own ``ssl.*`` keys, and for a login the JAAS line of the listener and of
``sasl.mechanism.inter.broker.protocol``: the line that also configures the server's side of that mechanism.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from threading import Lock

from parley.broker.config import BrokerConfig
from parley.broker.config.errors import ConfigError, Problem
from parley.configuration.file_changes import fingerprint_of
from parley.configuration.tls import CRL_FILE
from parley.protocol.security.client_security import PLAINTEXT, ClientSecurity, client_security

_log = logging.getLogger(__name__)

_FILES = ("ssl.keystore.location", "ssl.truststore.location", CRL_FILE)


def inter_broker_properties(config: BrokerConfig) -> dict[str, str]:
    """The inter-broker listener's keys as the properties of a client; empty for PLAINTEXT."""
    name = config.inter_broker_listener
    protocol = next(listener.protocol for listener in config.bound if listener.name == name)
    if protocol == "PLAINTEXT":
        return {}
    mechanism = config.sasl_mechanism_inter_broker_protocol
    texts = config.texts_for_listener(name, mechanism)
    properties = {key: text for key, text in texts.items() if key.startswith(("ssl.", "sasl."))}
    return properties | {"security.protocol": protocol, "sasl.mechanism": mechanism}


class InterBrokerSecurity:
    """The current ``ClientSecurity``: it follows the configuration, and key stores that are replaced."""

    def __init__(self, config: Callable[[], BrokerConfig]) -> None:
        """Blocks. Raises ConfigError if the configuration cannot secure a connection."""
        self._config = config
        self._lock = Lock()
        self._read_from: tuple[Mapping[str, str], tuple[object, ...]] | None = None
        self._security = PLAINTEXT
        properties = inter_broker_properties(config())
        try:
            self._read(properties)
        except ValueError as error:
            raise ConfigError([_problem(config(), error)]) from error

    @property
    def is_plaintext(self) -> bool:
        """True if connections are neither encrypted nor authenticated, and ``current`` does not block."""
        return not inter_broker_properties(self._config())

    def current(self) -> ClientSecurity:
        """What the next connection needs. Blocks. After a failure, which is logged, returns what was needed before."""
        with self._lock:
            properties = inter_broker_properties(self._config())
            if self._read_from is None or self._read_from != (properties, _stamps(properties)):
                try:
                    self._read(properties)
                except ValueError as error:
                    _log.error(
                        "the security of connections between brokers cannot be changed: the previous one stays in use",
                        extra={"reason": str(error)},
                    )
            return self._security

    def _read(self, properties: Mapping[str, str]) -> None:
        stamps = _stamps(properties)
        self._read_from = (properties, stamps)  # also if it fails: one line in the log is enough
        self._security = client_security(properties)


def _problem(config: BrokerConfig, error: ValueError) -> Problem:
    """The setting to correct: the one with the file that the error names, or the listener of the brokers."""
    for key, path in inter_broker_properties(config).items():
        if key in _FILES and path and path in str(error):
            return Problem(key, path, f"usable: {error}")
    return Problem("inter.broker.listener.name", config.inter_broker_listener, f"a listener of valid keys. {error}")


def _stamps(properties: Mapping[str, str]) -> tuple[object, ...]:
    """What changes when a key store is replaced."""
    return fingerprint_of(properties[key] for key in _FILES if properties.get(key))
