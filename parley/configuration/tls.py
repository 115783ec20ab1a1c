"""Converts Kafka's ``ssl.*`` keys to settings of Python's ``ssl``: for listeners, clients, and brokers as clients.

Versions before TLS 1.2 are rejected, unlike in Java. As in Java, every certificate in a trust store is trusted, whether
it is self-signed or not. With revocation lists, the issuer of every certificate in a chain must have an unexpired list.
"""

from __future__ import annotations

import ssl
from collections.abc import Mapping
from dataclasses import field
from typing import Final

from parley.configuration.cipher_suites import BadSuite, choose_suites, is_tls_1_3
from parley.configuration.key_stores import (
    BadKeyStore,
    Identity,
    identity_of_text,
    pem_certificates,
    pem_file,
    read_identity,
    read_revocation_lists,
    read_trusted,
)
from parley.light_dataclasses import dataclass

__all__ = ["CRL_FILE", "DEFAULT_VERSIONS", "TlsSettings", "tls_settings"]

CRL_FILE: Final = "ssl.crl.location"
"""The key that names the file with the revocation lists. Kafka has no such key; librdkafka has one of this name."""

DEFAULT_VERSIONS: Final = ("TLSv1.2", "TLSv1.3")
_VERSIONS: Final = {"TLSv1.2": ssl.TLSVersion.TLSv1_2, "TLSv1.3": ssl.TLSVersion.TLSv1_3}
_STORE_TYPES: Final = ("JKS", "PKCS12", "PEM")
"""The allowed store types. JKS is Kafka's default, but most files for which it is configured are actually PKCS #12."""
_CLIENT_AUTH: Final = {"none": ssl.CERT_NONE, "requested": ssl.CERT_OPTIONAL, "required": ssl.CERT_REQUIRED}


@dataclass(frozen=True, slots=True)
class TlsSettings:
    """The settings from which a context is created. Equal settings create contexts that behave the same."""

    identity: Identity | None = None
    authorities: str = field(default="", repr=False)
    """The certificates to trust, as PEM; empty means those of the operating system."""
    versions: tuple[str, ...] = DEFAULT_VERSIONS
    cipher_suites: tuple[str, ...] = ()
    verify_host: bool = True
    """True if a client verifies that the server's certificate is for the server's host name."""
    revocation_lists: str = field(default="", repr=False)
    """Certificate revocation lists, as PEM; empty means that revocation is not checked."""
    files: tuple[str, ...] = ()
    """The files from which the settings were read."""

    def client_context(self) -> ssl.SSLContext:
        """Return a context for connections to servers. Blocks. Raises BadKeyStore if a certificate, a key or a cipher
        suite is unusable."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.check_hostname = self.verify_host
        self._set_up(context)
        return context

    def server_context(self, client_auth: str = "none") -> ssl.SSLContext:
        """Return a context for accepted connections. ``client_auth`` is a value of ``ssl.client.auth``: none, requested
        or required.

        Blocks. Raises BadKeyStore if there is no identity, or if a certificate, a key or a cipher suite is unusable.
        """
        if self.identity is None:
            raise BadKeyStore("a TLS listener needs ssl.keystore.location or ssl.keystore.key")
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.verify_mode = _CLIENT_AUTH[client_auth]
        self._set_up(context)
        return context

    def _set_up(self, context: ssl.SSLContext) -> None:
        context.minimum_version, context.maximum_version = self._version_range()
        context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
        try:
            choose_suites(context, self.cipher_suites)
        except BadSuite as error:
            raise BadKeyStore(f"ssl.cipher.suites: {error}") from None
        try:
            if self.authorities:
                context.load_verify_locations(cadata=self.authorities)
            else:
                context.load_default_certs(
                    ssl.Purpose.CLIENT_AUTH if context.protocol == ssl.PROTOCOL_TLS_SERVER else ssl.Purpose.SERVER_AUTH
                )
            if self.revocation_lists:
                context.verify_flags |= ssl.VERIFY_CRL_CHECK_CHAIN
                with pem_file(self.revocation_lists) as path:
                    context.load_verify_locations(cafile=path)
            if self.identity is not None:
                with pem_file(self.identity.pem) as path:
                    context.load_cert_chain(path, password=self.identity.password)
        except (ssl.SSLError, OSError, ValueError) as error:
            reason = getattr(error, "reason", None) or type(error).__name__
            raise BadKeyStore(
                f"the certificates and the key ({', '.join(self.files) or 'given as text'}) cannot be used: {reason}; "
                "the key's password may be wrong, or the key may belong to another certificate"
            ) from None

    def _version_range(self) -> tuple[ssl.TLSVersion, ssl.TLSVersion]:
        kinds = {is_tls_1_3(suite) for suite in self.cipher_suites} or {True, False}
        usable = [_VERSIONS[name] for name in sorted(self.versions) if (name == "TLSv1.3") in kinds]
        if not usable:
            raise BadKeyStore("ssl.cipher.suites has no suite for the versions of ssl.enabled.protocols")
        return usable[0], usable[-1]


def tls_settings(properties: Mapping[str, str]) -> TlsSettings:
    """Return the settings in the ``ssl.*`` keys and the files that they name. Other keys are ignored. Blocks.

    Raises BadKeyStore if a file is unusable, a value is not supported, or keys contradict each other.
    """
    versions = _list(properties, "ssl.enabled.protocols") or DEFAULT_VERSIONS
    if unknown := [name for name in versions if name not in _VERSIONS]:
        raise BadKeyStore(f"ssl.enabled.protocols: {unknown[0]} is not supported, only {', '.join(_VERSIONS)}")
    for key in ("ssl.keystore.type", "ssl.truststore.type"):
        if properties.get(key, "JKS").upper() not in _STORE_TYPES:
            raise BadKeyStore(f"{key}={properties[key]}: expected PEM or PKCS12")
    algorithm = properties.get("ssl.endpoint.identification.algorithm", "https").strip().lower()
    if algorithm not in ("", "https"):
        raise BadKeyStore(f"ssl.endpoint.identification.algorithm={algorithm}: expected https or nothing")
    files = [properties.get(key, "") for key in ("ssl.keystore.location", "ssl.truststore.location", CRL_FILE)]
    return TlsSettings(
        _identity(properties),
        _authorities(properties),
        tuple(versions),
        tuple(_list(properties, "ssl.cipher.suites")),
        bool(algorithm),
        read_revocation_lists(properties[CRL_FILE]) if properties.get(CRL_FILE) else "",
        tuple(filter(None, files)),
    )


def _identity(properties: Mapping[str, str]) -> Identity | None:
    location, key = properties.get("ssl.keystore.location"), properties.get("ssl.keystore.key")
    chain = properties.get("ssl.keystore.certificate.chain")
    password = properties.get("ssl.key.password", "")
    if location and (key or chain):
        raise BadKeyStore("ssl.keystore.location and ssl.keystore.key are both set; leave out one of them")
    if location:
        return read_identity(location, properties.get("ssl.keystore.password", ""), password)
    if bool(key) != bool(chain):
        raise BadKeyStore("ssl.keystore.key and ssl.keystore.certificate.chain need each other")
    return identity_of_text(chain or "", key, password, source="ssl.keystore.key") if key else None


def _authorities(properties: Mapping[str, str]) -> str:
    location, text = properties.get("ssl.truststore.location"), properties.get("ssl.truststore.certificates")
    if location and text:
        raise BadKeyStore("ssl.truststore.location and ssl.truststore.certificates are both set; leave out one of them")
    if location:
        return read_trusted(location, properties.get("ssl.truststore.password", ""))
    if text and not (certificates := pem_certificates(text)):
        raise BadKeyStore("ssl.truststore.certificates contains no certificate in PEM")
    return certificates if text else ""


def _list(properties: Mapping[str, str], key: str) -> list[str]:
    return [item for item in (part.strip() for part in properties.get(key, "").split(",")) if item]
