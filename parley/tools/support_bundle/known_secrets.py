"""Decide which settings of a configuration are secret, and find the secrets that their values contain.

A key whose definition has the type PASSWORD is secret. An unknown key is secret, too, as in the brokers' responses. If
the value of an unknown key is a reference to a config provider, the reference is not secret, but the resolved value is.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final
from urllib.parse import parse_qsl, unquote

from parley.broker.config import ConfigError
from parley.broker.config.broker_keys import base_key
from parley.broker.config.key_definition import Key
from parley.broker.config.retired import why_retired
from parley.broker.config.store_keys import third_party_keys
from parley.configuration.providers import is_about_providers
from parley.protocol.security.jaas import BadJaas, parse_jaas
from parley.tools.cli.common_options import CLIENT_SETTINGS
from parley.tools.secret_names import SECRET_NAME

_REFERENCE: Final = re.compile(r"\$\{[^}]+\}")
_NOT_SECRET: Final = frozenset(
    ("username", "principal", "servicename", "keytab", "usekeytab", "storekey", "useticketcache", "clientid", "scope")
)
"""Options of JAAS modules that are not secret, in lower case."""
_UNKNOWN_MIN: Final = 8
_URL: Final = re.compile(r"\b[a-z][a-z0-9+.-]{0,30}://([^\s/?#]*@)?[^\s?#]*(?:\?([^\s#]*))?", re.IGNORECASE)


def is_secret(name: str, value: str = "") -> bool:
    """Return True if the value of this setting must not be shown. The value matters only for an unknown key: a
    reference to a config provider is not secret."""
    key = base_key(name) or _of_other_stores(name)
    if key is not None:
        return bool(key.is_sensitive)
    if is_about_providers(name):
        return ".param." in name and bool(SECRET_NAME.search(name))
    if why_retired(name) or name in CLIENT_SETTINGS:
        return bool(SECRET_NAME.search(name))
    return not _REFERENCE.fullmatch(value.strip())


def _of_other_stores(name: str) -> Key[Any] | None:
    try:
        return third_party_keys([name]).get(name)
    except ConfigError:
        return None


def _is_known_secret(name: str) -> bool:
    return base_key(name) is not None or _of_other_stores(name) is not None or bool(SECRET_NAME.search(name))


def _may_be_password(value: str) -> bool:
    """Return True if the value of an unknown key may be a password, because it is neither short nor a number."""
    return len(value) >= _UNKNOWN_MIN and not value.isdecimal()


def secrets_in(settings: Mapping[str, str]) -> Iterator[str]:
    """Yield the secrets in the settings of a broker or client, including those in URLs. References must be resolved."""
    for name, value in settings.items():
        if is_secret(name, value) and (_is_known_secret(name) or _may_be_password(value)):
            yield value
            if "jaas" in name:
                yield from _of_jaas(value)
        yield from of_addresses(value)


def of_addresses(text: str) -> Iterator[str]:
    """Yield the passwords in the URLs of a text: those before the host, and the values of options such as
    ``password=``."""
    for match in _URL.finditer(text):
        login, query = match.groups()
        if login and ":" in login:
            password = login[:-1].partition(":")[2]
            yield password
            yield unquote(password)
        for name, value in parse_qsl(query or ""):
            if SECRET_NAME.search(name) and not name.endswith("-file"):
                yield value


def _of_jaas(text: str) -> Iterable[str]:
    try:
        modules = parse_jaas(text)
    except BadJaas:
        return []
    return [
        value
        for module in modules
        for name, value in module.options.items()
        if name.lower() not in _NOT_SECRET and value.lower() not in ("true", "false")
    ]
