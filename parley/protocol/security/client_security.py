"""Converts Java client properties to a ``ClientSecurity``, which secures a client's connections.

``security.protocol`` determines which other keys are read: ``ssl.*`` for SSL and SASL_SSL, ``sasl.*`` for
SASL_PLAINTEXT and SASL_SSL. Files are read once, together with the properties. Java classes in the values are
recognized by name; unknown classes are rejected. docs/security.md lists the keys.
"""

from __future__ import annotations

import logging
import math
import ssl
from collections.abc import Callable, Mapping
from dataclasses import field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import unquote, urlsplit

from parley.configuration.tls import tls_settings
from parley.light_dataclasses import dataclass
from parley.protocol.security.jaas import LoginModule, single_login_module
from parley.protocol.security.logins import BearerLogin, Login, PlainLogin, ScramLogin
from parley.protocol.security.scram import HASHES

if TYPE_CHECKING:
    from parley.protocol.security.tokens import FreshTokens, UnsecuredTokens

__all__ = [
    "NO_SECURITY",
    "PLAINTEXT",
    "BadSecurity",
    "ClientSecurity",
    "MissingJaas",
    "SecurityProperties",
    "client_security",
    "is_security_key",
    "login_of",
]

_log = logging.getLogger(__name__)

_PROTOCOLS: Final = ("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL")
_MODULES: Final = {
    "PLAIN": "PlainLoginModule",
    **dict.fromkeys(HASHES, "ScramLoginModule"),
    "OAUTHBEARER": "OAuthBearerLoginModule",
    "GSSAPI": "Krb5LoginModule",
}
_DEFAULT_MECHANISM: Final = "GSSAPI"
_KEYS: Final = ("security.protocol", "sasl.", "ssl.")
_IGNORED: Final = frozenset({"ssl.protocol", "ssl.provider", "ssl.keymanager.algorithm", "ssl.trustmanager.algorithm"})
_JAVA_ONLY: Final = ("ssl.engine.factory.class", "sasl.login.class", "sasl.client.callback.handler.class")
_UNSECURED_HANDLER: Final = "OAuthBearerUnsecuredLoginCallbackHandler"
_TOKEN_HANDLER: Final = "OAuthBearerLoginCallbackHandler"


class BadSecurity(ValueError):
    """The properties do not describe a usable security setup. The message names the key, says what to do, and contains
    no secret."""


class MissingJaas(BadSecurity):
    """A client must log in, but ``sasl.jaas.config`` is not set."""


@dataclass(frozen=True, slots=True)
class ClientSecurity:
    """The security settings with which a client opens each connection. Without TLS, ``tls`` is None; without SASL,
    ``login`` is None."""

    tls: ssl.SSLContext | None = None
    login: Login | None = None
    trusted: str = ""
    """The certificates that the client trusts and the setting that names them, as words for error messages."""

    @property
    def protocol(self) -> str:
        """The security protocol, such as SASL_SSL."""
        return _PROTOCOLS[(self.tls is not None) + 2 * (self.login is not None)]


PLAINTEXT: Final = ClientSecurity()


@dataclass(frozen=True, slots=True)
class SecurityProperties:
    """The security settings of a client, in a form that can be pickled and passed to another process. ``repr`` hides
    them."""

    items: tuple[tuple[str, str], ...] = field(default=(), repr=False)

    @classmethod
    def of(cls, properties: Mapping[str, str]) -> SecurityProperties:
        """Return the security settings among the properties of a Java client."""
        return cls(tuple(sorted((key, value) for key, value in properties.items() if is_security_key(key))))

    def read(self) -> ClientSecurity:
        """Return the settings for connections, after reading the files that they name. Blocks. Raises the ValueErrors
        of ``client_security``."""
        return client_security(dict(self.items))


NO_SECURITY: Final = SecurityProperties()


def is_security_key(name: str) -> bool:
    """Return True if a client property is a security setting and has an effect outside Java."""
    return name.startswith(_KEYS) and name not in _IGNORED


def client_security(properties: Mapping[str, str]) -> ClientSecurity:
    """Return the security settings in the properties of a Java client and in the files that they name. Blocks.

    Ignores all other keys. Raises ValueError (``BadSecurity``, ``BadKeyStore``, ``BadJaas``, ``BadKerberos``). No
    message contains a secret.
    """
    protocol = properties.get("security.protocol", "PLAINTEXT").strip().upper()
    if protocol not in _PROTOCOLS:
        raise BadSecurity(f"security.protocol={protocol}: expected one of {', '.join(_PROTOCOLS)}")
    if java_only := [key for key in _JAVA_ONLY if properties.get(key)]:
        raise BadSecurity(f"{java_only[0]} names a Java class, which Parley cannot run; remove it")
    tls = tls_settings(properties).client_context() if protocol in ("SSL", "SASL_SSL") else None
    login = login_of(properties) if protocol.startswith("SASL") else None
    return ClientSecurity(tls, login, "" if tls is None else _trusted(properties))


def _trusted(properties: Mapping[str, str]) -> str:
    if location := properties.get("ssl.truststore.location"):
        return f"the certificates in ssl.truststore.location={location}"
    if properties.get("ssl.truststore.certificates"):
        return "the certificates in ssl.truststore.certificates"
    return "the authorities of the operating system, because ssl.truststore.location is not set"


def login_of(properties: Mapping[str, str]) -> Login:
    """Return the login for ``sasl.mechanism`` and ``sasl.jaas.config``. Blocks. Raises the ValueErrors of
    ``client_security``."""
    mechanism = properties.get("sasl.mechanism", _DEFAULT_MECHANISM).strip()
    line = properties.get("sasl.jaas.config")
    if mechanism not in _MODULES:
        raise BadSecurity(f"sasl.mechanism={mechanism} is not supported. Supported: {', '.join(_MODULES)}")
    if not line:
        raise MissingJaas(f"{_chosen(properties, mechanism)} needs sasl.jaas.config with the {_MODULES[mechanism]}")
    module = single_login_module(line)
    if module.name != _MODULES[mechanism]:
        needed = _MODULES[mechanism]
        raise BadSecurity(f"{_chosen(properties, mechanism)} needs the {needed}, not the {module.name}")
    if mechanism == "PLAIN":
        return PlainLogin(module.option("username"), module.option("password"))
    if mechanism in HASHES:
        is_token = module.options.get("tokenauth", "").lower() == "true"
        return ScramLogin(mechanism, module.option("username"), module.option("password"), is_token=is_token)
    if mechanism == "GSSAPI":
        from parley.protocol.security.kerberos import GssapiLogin  # rarely needed

        return GssapiLogin.of(module, properties.get("sasl.kerberos.service.name", "").strip())
    return BearerLogin(_tokens(module, properties))


def _chosen(properties: Mapping[str, str], mechanism: str) -> str:
    """Describe the setting that chose the mechanism, for error messages. If the default applies, suggest a key that may
    be a misspelled ``sasl.mechanism``."""
    if "sasl.mechanism" in properties:
        return f"sasl.mechanism={mechanism}"
    from difflib import get_close_matches  # needed for mistakes only

    similar = get_close_matches("sasl.mechanism", list(properties), n=1, cutoff=0.8)
    meant = f" (did you mean it by {similar[0]}?)" if similar else ""
    return f"sasl.mechanism is not set{meant}, and its default {mechanism}"


# --- OAUTHBEARER ---


def _tokens(module: LoginModule, properties: Mapping[str, str]) -> FreshTokens:
    from parley.protocol.security.tokens import FreshTokens  # imported here, because it is slow to import

    handler = properties.get("sasl.login.callback.handler.class", _UNSECURED_HANDLER).rpartition(".")[2]
    window = _window(properties.get("sasl.login.refresh.window.factor", "0.8"))
    fetch: Callable[[], str]
    if handler == _UNSECURED_HANDLER:
        fetch, prefix = _unsecured(module), "unsecuredLoginExtension_"
    elif handler == _TOKEN_HANDLER:
        fetch, prefix = _endpoint(module, properties), "extension_"
    else:
        raise BadSecurity(f"sasl.login.callback.handler.class={handler}: expected {_TOKEN_HANDLER}")
    named = {name.removeprefix(prefix): value for name, value in module.options.items() if name.startswith(prefix)}
    return FreshTokens(fetch, named, window=window)


def _unsecured(module: LoginModule) -> UnsecuredTokens:
    from parley.protocol.security.tokens import UnsecuredTokens

    claims: dict[str, Any] = {}
    for name, value in module.options.items():
        kind, _, claim = name.partition("_")
        match kind:
            case "unsecuredLoginStringClaim":
                claims[claim] = value
            case "unsecuredLoginNumberClaim":
                claims[claim] = _finite(value)
                if claims[claim] is None:
                    raise BadSecurity(f"the option {name} in sasl.jaas.config: expected a number")
            case "unsecuredLoginListClaim":
                claims[claim] = value[1:].split(value[:1]) if value else []
    principal = module.options.get("unsecuredLoginPrincipalClaimName", "sub")
    if principal not in claims:
        raise BadSecurity(
            f"an unsecured token needs the option unsecuredLoginStringClaim_{principal}; for a token of an issuer set "
            f"sasl.login.callback.handler.class to org.apache.kafka.common.security.oauthbearer.{_TOKEN_HANDLER}"
        )
    lifetime = module.options.get("unsecuredLoginLifetimeSeconds", "3600")
    if not lifetime.isdecimal():
        raise BadSecurity(
            "the option unsecuredLoginLifetimeSeconds in sasl.jaas.config: expected a whole number of seconds"
        )
    return UnsecuredTokens(claims, int(lifetime))


def _endpoint(module: LoginModule, properties: Mapping[str, str]) -> Callable[[], str]:
    from parley.protocol.security.tokens import ClientCredentials, FileTokens

    url = properties.get("sasl.oauthbearer.token.endpoint.url", "").strip()
    parts = urlsplit(url)
    if parts.scheme == "file":
        return FileTokens(Path(unquote(parts.path)))
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise BadSecurity(f"sasl.oauthbearer.token.endpoint.url={url}: expected https://... or file:///...")
    if parts.scheme == "http" and parts.hostname not in ("localhost", "127.0.0.1", "::1"):
        _log.warning("the secret of a client is sent to its token endpoint without TLS", extra={"host": parts.hostname})
    options = {
        "clientId": properties.get("sasl.oauthbearer.client.credentials.client.id"),
        "clientSecret": properties.get("sasl.oauthbearer.client.credentials.client.secret"),
        "scope": properties.get("sasl.oauthbearer.scope"),
    }
    given = {name: value or module.options.get(name, "") for name, value in options.items()}
    if missing := [name for name in ("clientId", "clientSecret") if not given[name]]:
        raise BadSecurity(f"a token endpoint needs the option {missing[0]} in sasl.jaas.config")
    ssl_options = {name: value for name, value in module.options.items() if name.startswith("ssl.")}
    return ClientCredentials(
        url,
        given["clientId"],
        given["clientSecret"],
        given["scope"],
        tls_settings(ssl_options).client_context() if parts.scheme == "https" else None,
        timeout_s=_seconds(properties, "sasl.login.read.timeout.ms", "10000"),
        backoff_s=_seconds(properties, "sasl.login.retry.backoff.ms", "100"),
        backoff_max_s=_seconds(properties, "sasl.login.retry.backoff.max.ms", "10000"),
        encodes_header=properties.get("sasl.oauthbearer.header.urlencode", "").lower() == "true",
    )


def _window(text: str) -> float:
    window = _finite(text)
    if window is None:
        raise BadSecurity(f"sasl.login.refresh.window.factor={text}: expected a number such as 0.8")
    return window


def _finite(text: str) -> float | None:
    """Return ``text`` as a number, or None if it is not a finite number."""
    try:
        number = float(text)
    except ValueError:
        return None
    return number if math.isfinite(number) else None


def _seconds(properties: Mapping[str, str], key: str, default: str) -> float:
    text = properties.get(key, default)
    if not text.isdecimal():
        raise BadSecurity(f"{key}={text}: expected a whole number of milliseconds")
    return int(text) / 1000
