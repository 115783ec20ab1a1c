"""A listener's security settings: TLS and the rules for logins, from the configuration.

The settings are replaced when the configuration, or a file that it names, changes. Existing connections keep the
settings with which they were accepted. An unusable change leaves the current settings in place.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import field, replace
from datetime import UTC, datetime

from parley.broker.config import BrokerConfig, ConfigError, Problem
from parley.broker.config.broker_keys import LISTENER_PREFIX
from parley.broker.config.listeners import ListenerAddress
from parley.broker.security.principal_builder import PrincipalBuilder, load_principal_builder
from parley.broker.security.sasl.credential_source import CredentialSource
from parley.broker.security.sasl.login import LoginRules
from parley.broker.security.sasl.mechanism import Mechanism, MechanismSetup
from parley.broker.security.sasl.plugins import maker
from parley.broker.security.session import ClientSession
from parley.broker.security.tls.server import ServerTls, check_between_brokers, check_replacement, server_tls
from parley.configuration.file_changes import fingerprint_of
from parley.light_dataclasses import dataclass
from parley.protocol.security.jaas import BadJaas, LoginModule, single_login_module

_log = logging.getLogger(__name__)

_LOGIN_KEYS = ("sasl.", "principal.builder.", "connections.max.reauth.ms", "connection.failed.")

Fingerprint = tuple[object, ...]
"""A value that changes when the listener's security settings must be rebuilt."""


@dataclass(frozen=True, slots=True)
class SecuritySettings:
    """A snapshot of a listener's settings, and the fingerprints of their sources."""

    tls: ServerTls | None
    login_rules: LoginRules | None
    builder: PrincipalBuilder | None
    tls_from: Fingerprint = field(repr=False)
    rules_from: Fingerprint = field(repr=False)


class ListenerSecurity:
    """The current security settings of one listener (``parley.broker.network.listener.Security``)."""

    def __init__(
        self,
        address: ListenerAddress,
        config: BrokerConfig,
        credentials: CredentialSource,
        wall_ms: Callable[[], int],
    ) -> None:
        """Read the settings from the configuration and the files that it names. Blocks. Raises ConfigError if the
        listener cannot use them."""
        self.address = address
        self._credentials = credentials
        self._wall_ms = wall_ms
        self._settings = SecuritySettings(None, None, None, (), ())
        self.replace(self.read(config))

    @property
    def tls(self) -> ServerTls | None:
        """The TLS settings for new connections; None on a listener without TLS."""
        return self._settings.tls

    @property
    def login_rules(self) -> LoginRules | None:
        """The rules for the logins of new clients; None on a listener without SASL."""
        return self._settings.login_rules

    def identified(self, session: ClientSession) -> ClientSession:
        """Return the session with the principal that ``principal.builder.class`` assigns. Raises the errors of that
        class."""
        builder = self._settings.builder
        return session if builder is None else replace(session, principal=builder.build(session))

    @property
    def current(self) -> Fingerprint:
        """The ``fingerprint`` of the current settings."""
        return self._settings.tls_from + self._settings.rules_from

    def fingerprint(self, config: BrokerConfig) -> Fingerprint:
        """Return a value that differs from ``current`` if the listener's settings must be read again. Blocks on the
        disk."""
        own = config.for_listener(self.address.name)
        return self._tls_fingerprint(own) + self._rules_fingerprint(own)

    def read(self, config: BrokerConfig) -> SecuritySettings:
        """Return the settings for a configuration, reusing current settings that have not changed.

        Blocks while it reads files. Raises ConfigError if the configuration cannot be used.
        """
        now, own = self._settings, config.for_listener(self.address.name)
        tls, tls_from = now.tls, self._tls_fingerprint(own)
        if self.address.is_tls and tls_from != now.tls_from:
            tls = server_tls(self.address, config)
            if self.address.name == config.inter_broker_listener:
                check_between_brokers(self.address, config, tls.settings)
            if now.tls is not None:
                check_replacement(now.tls, tls, own)
        rules, rules_from = now.login_rules, self._rules_fingerprint(own)
        if self.address.is_sasl and rules_from != now.rules_from:
            rules = self._login_rules(own)
        builder = now.builder
        if (tls_from, rules_from) != (now.tls_from, now.rules_from):
            builder = load_principal_builder(own.principal_builder_class)
        return SecuritySettings(tls, rules, builder, tls_from, rules_from)

    def replace(self, settings: SecuritySettings) -> None:
        """Use these settings, which ``read`` returned, for new connections, and release the resources of the previous
        ones."""
        old, self._settings = self._settings, settings
        if settings.tls is not None and settings.tls is not old.tls:
            self._warn_if_expired(settings.tls)
        if old.login_rules is not None and old.login_rules is not settings.login_rules:
            for mechanism in old.login_rules.mechanisms.values():
                mechanism.close()

    def discard(self, settings: SecuritySettings) -> None:
        """Release the resources of settings that will not become current."""
        if settings.login_rules is not None and settings.login_rules is not self._settings.login_rules:
            for mechanism in settings.login_rules.mechanisms.values():
                mechanism.close()

    def close(self) -> None:
        """Release the resources of the mechanisms."""
        if self._settings.login_rules is not None:
            for mechanism in self._settings.login_rules.mechanisms.values():
                mechanism.close()

    def _warn_if_expired(self, tls: ServerTls) -> None:
        if tls.expires_at * 1000 < self._wall_ms():
            _log.warning(
                "the certificate of a listener has expired: clients refuse it",
                extra={
                    "listener": self.address.name,
                    "files": ", ".join(tls.settings.files),
                    "expired_at": datetime.fromtimestamp(tls.expires_at, UTC).isoformat(),
                },
            )

    def _tls_fingerprint(self, own: BrokerConfig) -> Fingerprint:
        if not self.address.is_tls:
            return ()
        stores = (own.ssl_keystore_location, own.ssl_truststore_location, own.ssl_crl_location)
        return (_texts(own, "ssl.", "principal.builder."), *fingerprint_of(filter(None, stores)))

    def _rules_fingerprint(self, own: BrokerConfig) -> Fingerprint:
        if not self.address.is_sasl:
            return ()
        return (_texts(own, *_LOGIN_KEYS, *[f"{each.lower()}." for each in own.sasl_enabled_mechanisms]),)

    def _login_rules(self, own: BrokerConfig) -> LoginRules:
        return LoginRules(
            mechanisms={name: self._mechanism(name, own) for name in own.sasl_enabled_mechanisms},
            max_reauth_ms={name: max_reauth_ms(self.address.name, name, own) for name in own.sasl_enabled_mechanisms},
            receive_bytes_max=own.sasl_server_max_receive_size,
            refusal_delay_s=own.connection_failed_authentication_delay_ms / 1000,
        )

    def _mechanism(self, name: str, own: BrokerConfig) -> Mechanism:
        jaas = self._login_module(name, own)
        setup = MechanismSetup(
            name,
            own,
            self._credentials,
            self._wall_ms,
            options={} if jaas is None else jaas.options,
            login_module="" if jaas is None else jaas.class_name,
            callback_handler=_per_mechanism(self.address.name, name, own, "sasl.server.callback.handler.class"),
        )
        return maker(name)(setup)

    def _login_module(self, mechanism: str, own: BrokerConfig) -> LoginModule | None:
        text = _per_mechanism(self.address.name, mechanism, own, "sasl.jaas.config")
        if not text:
            return None
        try:
            return single_login_module(text)
        except BadJaas as error:
            key = f"{LISTENER_PREFIX}{self.address.name.lower()}.{mechanism.lower()}.sasl.jaas.config"
            raise ConfigError([Problem(key, "[hidden]", f"a JAAS entry: {error}")]) from None


def _texts(own: BrokerConfig, *prefixes: str) -> Fingerprint:
    """Return the configuration entries whose names begin with one of the prefixes."""
    return tuple(sorted((name, text) for name, text in own.given.items() if name.startswith(prefixes)))


def _per_mechanism(listener: str, mechanism: str, own: BrokerConfig, key: str) -> str:
    return own.given.get(f"{LISTENER_PREFIX}{listener.lower()}.{mechanism.lower()}.{key}", "").strip()


def max_reauth_ms(listener: str, mechanism: str, own: BrokerConfig) -> int:
    """Return how long a session of this mechanism lasts, in milliseconds; 0 for sessions without an end.

    ``own`` are the listener's own settings.
    """
    key = own.KEYS["connections.max.reauth.ms"]
    text = _per_mechanism(listener, mechanism, own, key.name)
    value: int = key.parse(text) if text else own.connections_max_reauth_ms
    return value
