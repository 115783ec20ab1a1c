"""Translates the security settings of Java's client to librdkafka's.

librdkafka does not read JAAS configurations and trust stores. Key stores are therefore converted to PEM text, a JAAS
line to a user name and a password, and tokens are supplied by a callback. Settings that have the same name in
librdkafka, and librdkafka's other settings, are kept.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping
from typing import Any, Final

from parley.configuration.cipher_suites import openssl_ciphers
from parley.configuration.tls import TlsSettings, tls_settings
from parley.protocol.security.client_security import BadSecurity, login_of
from parley.protocol.security.logins import BearerLogin, Login, PlainLogin, ScramLogin, TokenSource
from parley.protocol.security.tokens import expiry_of

__all__ = ["librdkafka_settings", "unused_settings"]

_TLS: Final = (
    "ssl.keystore.location",
    "ssl.keystore.type",
    "ssl.keystore.password",
    "ssl.keystore.key",
    "ssl.keystore.certificate.chain",
    "ssl.key.password",
    "ssl.truststore.location",
    "ssl.truststore.type",
    "ssl.truststore.password",
    "ssl.truststore.certificates",
    "ssl.endpoint.identification.algorithm",
    "ssl.cipher.suites",
)
_LOGIN: Final = "sasl.jaas.config"
_OF_LOGIN: Final = (_LOGIN, "sasl.login.callback.handler.class")

_LASTING_S: Final = 3600
"""The lifetime in seconds of a token that does not expire, as librdkafka is told, because it requires one. It fetches
the next token before this time is over."""

Settings = dict[str, Any]
"""Settings of librdkafka: strings, and the callback for tokens."""


def librdkafka_settings(settings: Mapping[str, Any]) -> Settings:
    """Return the settings with the security settings translated, and all others unchanged. Blocks: it reads key stores.

    Raises the ValueErrors of ``client_security``. The message contains no secret.
    """
    protocol = _protocol(settings)
    java = {name: str(value) for name, value in settings.items() if isinstance(value, str)}
    found: Settings = {name: value for name, value in settings.items() if name not in (*_TLS, *_OF_LOGIN)}
    if "security.protocol" in found:
        found["security.protocol"] = protocol
    if protocol in ("SSL", "SASL_SSL"):
        found |= _of_tls(tls_settings({name: java[name] for name in _TLS if name in java}))
    if protocol.startswith("SASL") and _LOGIN in java:
        found |= _of_login(login_of(java))
    return found


def unused_settings(settings: Mapping[str, Any]) -> list[str]:
    """Return the names of the security settings that have no effect with this ``security.protocol``."""
    protocol = _protocol(settings)
    unused = (() if protocol.endswith("SSL") else _TLS) + (() if protocol.startswith("SASL") else _OF_LOGIN)
    return [name for name in unused if name in settings]


def _protocol(settings: Mapping[str, Any]) -> str:
    return str(settings.get("security.protocol", "PLAINTEXT")).upper()


def _of_tls(tls: TlsSettings) -> Settings:
    found = {"ssl.endpoint.identification.algorithm": "https" if tls.verify_host else "none"}
    if tls.authorities:
        found["ssl.ca.pem"] = tls.authorities
    if tls.identity is not None:
        found |= {"ssl.certificate.pem": tls.identity.chain, "ssl.key.pem": tls.identity.key}
        found |= {"ssl.key.password": tls.identity.password} if tls.identity.password else {}
    ciphers = openssl_ciphers(tls.cipher_suites)
    return found | ({"ssl.cipher.suites": ciphers} if ciphers else {})


def _of_login(login: Login) -> Settings:
    match login:
        case ScramLogin() if login.is_token:
            raise BadSecurity("librdkafka cannot log in with a delegation token")
        case PlainLogin() | ScramLogin():
            return {
                "sasl.mechanism": login.mechanism,
                "sasl.username": login.username,
                "sasl.password": login.password,
            }
        case BearerLogin():
            return {"sasl.mechanism": login.mechanism, "oauth_cb": _callback(login.tokens)}
    raise BadSecurity(f"the librdkafka of confluent-kafka cannot log in with {login.mechanism}: use another mechanism")


def _callback(tokens: TokenSource) -> Callable[[str], tuple[str, float, str, dict[str, str]]]:
    """Return a function that librdkafka calls for a token, in any of its threads."""

    def token(_: str) -> tuple[str, float, str, dict[str, str]]:
        found = asyncio.run(tokens.token())
        expires = expiry_of(found.value)
        if expires is None:
            expires = time.time() + _LASTING_S
        return found.value, expires, "", dict(found.extensions)

    return token
