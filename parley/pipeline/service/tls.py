"""The TLS context of listeners, from ``ssl.*``."""

from __future__ import annotations

import ssl
from collections.abc import Callable, Mapping, Sequence
from typing import Final

from parley.configuration.followed_tls import FollowedContext
from parley.configuration.tls import TlsSettings
from parley.pipeline.service.errors import ServiceError
from parley.pipeline.service.server import Listener

_CLIENT_AUTH: Final = "ssl.client.auth"


def server_context(given: Mapping[str, str], prefix: str, listeners: Sequence[Listener]) -> ssl.SSLContext | None:
    """Return the context for listeners with TLS, from ``<prefix>ssl.*`` or ``ssl.*``; None if no listener uses TLS.

    Raises ServiceError if the settings cannot be used.
    """
    if not any(one.is_tls for one in listeners):
        return None
    properties = _properties(given, prefix)
    client_auth = properties.get(_CLIENT_AUTH, "none").strip() or "none"
    if client_auth not in ("none", "requested", "required"):
        raise ServiceError(f"{prefix}{_CLIENT_AUTH}={client_auth}: expected none, requested or required")

    def make(settings: TlsSettings) -> ssl.SSLContext:
        if client_auth != "none" and not settings.authorities:
            raise ValueError(
                f"{_CLIENT_AUTH}={client_auth} needs ssl.truststore.location or ssl.truststore.certificates; without "
                "them, anyone with a certificate from a public authority could connect"
            )
        context = settings.server_context(client_auth)
        context.options |= ssl.OP_NO_RENEGOTIATION
        return context

    return _followed(properties, prefix, make)


def client_context(given: Mapping[str, str], prefix: str) -> ssl.SSLContext:
    """Return the context for requests to other servers of the group, from the same settings as the listeners'.

    Raises ServiceError.
    """
    return _followed(_properties(given, prefix), prefix, TlsSettings.client_context)


def _properties(given: Mapping[str, str], prefix: str) -> Mapping[str, str]:
    """Return the settings with the prefix. If there are none, return all settings: as in Kafka, the two are never
    mixed.
    """
    own = {key.removeprefix(prefix): value for key, value in given.items() if key.startswith(prefix)}
    return own or given


def _followed(
    properties: Mapping[str, str], prefix: str, make: Callable[[TlsSettings], ssl.SSLContext]
) -> ssl.SSLContext:
    try:
        return FollowedContext(properties, make)
    except ValueError as error:
        raise ServiceError(f"{prefix}ssl.*: {error}") from error
