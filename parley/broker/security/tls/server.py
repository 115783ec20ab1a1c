"""The TLS settings of one listener: its context, and the principal of a client's certificate.

A context is created from the configuration and the files that it names. Existing connections keep their context; new
connections use the newest context. A client whose certificate matches no mapping rule is rejected.
"""

from __future__ import annotations

import logging
import math
import ssl
from collections.abc import Iterable
from dataclasses import field, replace
from datetime import UTC, datetime
from functools import lru_cache
from typing import TYPE_CHECKING

from parley.broker.config import BrokerConfig, ConfigError, Problem
from parley.broker.config.broker_keys import LISTENER_PREFIX
from parley.broker.config.errors import MissingExtra
from parley.broker.config.listeners import ListenerAddress
from parley.broker.security.principal import ANONYMOUS, Principal, user
from parley.broker.security.tls.distinguished_name import subject_of
from parley.broker.security.tls.kernel import KeyLog, kernel_suites
from parley.broker.security.tls.principal_mapping import PrincipalMapping
from parley.configuration.tls import CRL_FILE, TlsSettings, tls_settings
from parley.light_dataclasses import dataclass

if TYPE_CHECKING:
    from cryptography.x509 import Certificate, CertificateRevocationList

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class OwnCertificate:
    """The subject of the broker's own certificate, and its subject alternative names."""

    subject: str
    names: frozenset[str]


@dataclass(frozen=True, slots=True)
class ServerTls:
    """The certificates that a listener presents in TLS handshakes, and its requirements for clients."""

    context: ssl.SSLContext = field(repr=False)
    mapping: PrincipalMapping
    settings: TlsSettings
    expires_at: float = 0.0
    """The earliest time, in seconds since 1970, at which a certificate of the chain expires."""
    lists_expire_at: float = 0.0
    """The earliest time, in seconds since 1970, at which an issuer's newest revocation list expires; 0 if none
    expires."""
    key_log: KeyLog | None = field(default=None, repr=False)
    """The source of keys for the kernel, if it encrypts."""

    def principal_of(self, certificate: bytes | None) -> Principal:
        """Return the principal of a client's DER certificate, or ANONYMOUS if there is no certificate.

        Raises NoRuleMatches if no mapping rule matches the name in the certificate, or ValueError if the certificate
        cannot be read.
        """
        if not certificate:
            return ANONYMOUS
        return user(self.mapping.name_of(subject_of(certificate)))

    def certificate(self) -> OwnCertificate:
        """Return the names in the broker's own certificate. Raises ValueError if the certificate cannot be read."""
        from cryptography.hazmat.primitives.serialization import Encoding
        from cryptography.x509 import load_pem_x509_certificates

        assert self.settings.identity is not None, "a listener with TLS has a certificate"
        own = load_pem_x509_certificates(self.settings.identity.chain.encode())[0]
        return OwnCertificate(subject_of(own.public_bytes(Encoding.DER)), _alternative_names(own))


def _alternative_names(certificate: Certificate) -> frozenset[str]:
    from cryptography.x509 import ExtensionNotFound, GeneralName, SubjectAlternativeName

    try:
        names: Iterable[GeneralName] = certificate.extensions.get_extension_for_class(SubjectAlternativeName).value
    except ExtensionNotFound:
        return frozenset()
    return frozenset(str(each.value) for each in names)


def server_tls(address: ListenerAddress, config: BrokerConfig) -> ServerTls:
    """Create the TLS settings of a listener. Blocks while it reads files. Raises ConfigError if the configuration
    cannot be used."""
    own = config.for_listener(address.name)
    _check_library(address)
    prefix = f"{LISTENER_PREFIX}{address.name.lower()}."
    client_auth = client_auth_of(address, config)
    try:
        settings = tls_settings(own.given)
        if client_auth != "none" and not settings.authorities:
            raise ValueError(
                f"ssl.client.auth={client_auth} needs ssl.truststore.location or ssl.truststore.certificates; without "
                "them, anyone with a certificate from a public authority could connect"
            )
        context = settings.server_context(client_auth)
        expires_at = _expiry(settings)
        lists = _revocation_lists(settings)
    except ValueError as error:  # BadKeyStore, or a certificate that OpenSSL accepts and ``cryptography`` does not
        raise ConfigError([_problem(address, config, str(error))]) from error
    for each in lists:
        if each.next_update_utc is not None and each.next_update_utc < datetime.now(UTC):
            _log.warning(
                "a revocation list has expired: clients with certificates of its issuer are refused",
                extra={
                    "listener": address.name,
                    "issuer": each.issuer.rfc4514_string(),
                    "expired_at": each.next_update_utc.isoformat(),
                },
            )
    context.options |= ssl.OP_NO_RENEGOTIATION
    try:
        mapping = PrincipalMapping(own.ssl_principal_mapping_rules)
    except ValueError as error:
        rules = own.ssl_principal_mapping_rules
        raise ConfigError([Problem(f"{prefix}ssl.principal.mapping.rules", rules, f"usable: {error}")]) from error
    return ServerTls(context, mapping, settings, expires_at, _lists_expiry(lists), _key_log(address, own, context))


def _key_log(address: ListenerAddress, own: BrokerConfig, context: ssl.SSLContext) -> KeyLog | None:
    """Return the source of keys for the kernel, or None if OpenSSL encrypts. Raises ConfigError if there is no
    source."""
    if not own.ssl_ktls_enable:
        return None
    try:
        if suites := kernel_suites():
            return KeyLog(context, suites)
    except OSError as error:
        need = f"false on this machine, because the source of keys cannot be opened: {error}"
        raise ConfigError([Problem("ssl.ktls.enable", "true", need)]) from error
    _log.warning(
        "the kernel cannot encrypt, so OpenSSL does: load the kernel's module with `modprobe tls`",
        extra={"listener": address.name},
    )
    return None


def _expiry(settings: TlsSettings) -> float:
    from cryptography.x509 import load_pem_x509_certificates

    assert settings.identity is not None, "a listener with TLS has a certificate"
    chain = load_pem_x509_certificates(settings.identity.chain.encode())
    return min(each.not_valid_after_utc.timestamp() for each in chain)


def _revocation_lists(settings: TlsSettings) -> list[CertificateRevocationList]:
    """Read the revocation lists. Raises ValueError if one is malformed."""
    from cryptography.x509 import load_pem_x509_crl

    end = "-----END X509 CRL-----\n"
    return [load_pem_x509_crl((each + end).encode()) for each in settings.revocation_lists.split(end) if each]


def _lists_expiry(lists: Iterable[CertificateRevocationList]) -> float:
    """Return when the first issuer is left without an unexpired revocation list; 0 if that never happens."""
    by_issuer: dict[str, float] = {}
    for each in lists:
        expiry = math.inf if each.next_update_utc is None else each.next_update_utc.timestamp()
        issuer = each.issuer.rfc4514_string()
        by_issuer[issuer] = max(expiry, by_issuer.get(issuer, 0.0))
    first = min(by_issuer.values(), default=math.inf)
    return 0.0 if first == math.inf else first


def _check_library(address: ListenerAddress) -> None:
    try:
        import cryptography  # noqa: F401  reads certificates
    except ImportError as error:
        raise ConfigError([MissingExtra("listeners", str(address), "security", str(error))]) from error


def check_replacement(old: ServerTls, new: ServerTls, own: BrokerConfig) -> None:
    """Raise ConfigError if the identity in a new certificate differs from the old certificate's (KIP-978).

    ``own`` is the configuration of the listener, which may allow other names.
    """
    before, after = old.certificate(), new.certificate()
    if before.subject != after.subject and not own.ssl_allow_dn_changes:
        allowed = f"for {before.subject}, as before; to change the name, set ssl.allow.dn.changes=true"
        raise ConfigError([Problem("ssl.keystore", after.subject, allowed)])
    if (lost := before.names - after.names) and not own.ssl_allow_san_changes:
        allowed = f"for {', '.join(sorted(lost))}, as before; to drop names, set ssl.allow.san.changes=true"
        raise ConfigError([Problem("ssl.keystore", after.subject, allowed)])


def check_between_brokers(address: ListenerAddress, config: BrokerConfig, settings: TlsSettings) -> None:
    """Raise ConfigError if the brokers could not connect to each other over the listener with these settings.

    As in Kafka, a broker stands for the others: a client with the listener's settings connects to a server with them.
    Host names are not verified. Blocks.
    """
    try:
        _accept_own(settings, client_auth_of(address, config))
    except _OwnRefused as reason:
        key, path = _key_store(address, config)
        allowed = (
            f"a certificate that the other brokers accept: they use the listener {address.name}, too, and refuse this "
            f"certificate ({reason}). Replace it by an unexpired certificate that an authority in "
            f"{_trust_store(address, config)} has issued, or correct the trust store"
        )
        raise ConfigError([Problem(key, path, allowed)]) from None


class _OwnRefused(Exception):
    """A broker's certificate would be refused by a broker with the same settings."""


@lru_cache(maxsize=1)
def _accept_own(settings: TlsSettings, client_auth: str) -> None:
    """Raise _OwnRefused with the reason if a client with these settings cannot connect to a server with them.

    Settings that were accepted are not tried again: at a start, the listener and the outgoing connections, which may
    use different certificates, usually have the same. A refusal is tried again, because it may depend on the time.
    """
    reason = refusal_of_own(settings, client_auth)
    if reason is not None:
        raise _OwnRefused(reason)


def refusal_of_own(settings: TlsSettings, client_auth: str) -> str | None:
    """Return why a client with these settings cannot connect to a server with them; None if it can.

    Revocation lists do not count, because expired lists must not keep a broker from starting.
    """
    plain = replace(settings, revocation_lists="", verify_host=False)
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    client = plain.client_context().wrap_bio(to_client, to_server)
    server = plain.server_context(client_auth).wrap_bio(to_server, to_client, server_side=True)
    waiting = [client, server]
    # A handshake needs few rounds. With TLS 1.3 the client ends it before the server has verified its certificate.
    while waiting:
        for side in (*waiting,):
            try:
                side.do_handshake()
                waiting.remove(side)
            except ssl.SSLWantReadError:
                continue
            except ssl.SSLCertVerificationError as error:
                return str(error.verify_message)
            except ssl.SSLError as error:
                return error.reason or str(error)
    return None


def client_auth_of(address: ListenerAddress, config: BrokerConfig) -> str:
    """Return the listener's ``ssl.client.auth``. The broker-wide one does not apply to SASL listeners (KIP-684)."""
    demands = not address.is_sasl or f"{LISTENER_PREFIX}{address.name.lower()}.ssl.client.auth" in config.given
    client_auth: str = config.for_listener(address.name).ssl_client_auth if demands else "none"
    return client_auth


def key_in_use(address: ListenerAddress, config: BrokerConfig, name: str) -> str:
    """Return the key from which a listener's setting comes: the listener's own key, or the key of all listeners."""
    own = f"{LISTENER_PREFIX}{address.name.lower()}.{name}"
    return own if own in config.given else name


def _problem(address: ListenerAddress, config: BrokerConfig, error: str) -> Problem:
    """Return the setting to correct: the setting that the error names, or whose file it names, or the key store."""
    given = config.for_listener(address.name).given
    for name in sorted(given):
        if name.startswith("ssl.") and error.startswith((f"{name}:", f"{name}=")):
            key = key_in_use(address, config, name)
            return Problem(key, given[name], f"usable: {error.removeprefix(f'{name}:').strip()}")
    for name in ("ssl.truststore.location", CRL_FILE):
        if given.get(name) and error.startswith(given[name]):
            return Problem(key_in_use(address, config, name), given[name], f"usable: {error}")
    return Problem(*_key_store(address, config), f"usable: {error}")


def _trust_store(address: ListenerAddress, config: BrokerConfig) -> str:
    own = config.for_listener(address.name)
    if own.ssl_truststore_location:
        return f"{key_in_use(address, config, 'ssl.truststore.location')} ({own.ssl_truststore_location})"
    if own.ssl_truststore_certificates is not None:
        return key_in_use(address, config, "ssl.truststore.certificates")
    return "the operating system's trust store (ssl.truststore.location is not set)"


def _key_store(address: ListenerAddress, config: BrokerConfig) -> tuple[str, str]:
    """Return the key of the listener's key store, and its value. PEM certificates in the configuration are hidden."""
    own = config.for_listener(address.name)
    if own.ssl_keystore_location is None and own.ssl_keystore_key is not None:
        return key_in_use(address, config, "ssl.keystore.key"), "[hidden]"
    return key_in_use(address, config, "ssl.keystore.location"), own.ssl_keystore_location or ""
