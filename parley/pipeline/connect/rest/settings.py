"""How a worker serves its REST API, read from its configuration: addresses, TLS, login, admin endpoints."""

from __future__ import annotations

import socket
import ssl
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, Self

from parley.configuration.followed_tls import FollowedContext
from parley.configuration.tls import TlsSettings
from parley.pipeline.connect.errors import ConnectError
from parley.pipeline.connect.rest.app import CrossOrigin
from parley.pipeline.connect.rest.endpoints import ENDPOINTS, Endpoint
from parley.pipeline.connect.rest.login import BasicLogin, jaas_file_of
from parley.pipeline.connect.rest.server import Listener, parse_listeners
from parley.pipeline.connect.rest_config import ADMIN_TLS, LISTENERS_TLS
from parley.pipeline.connect.worker_config import WorkerConfig, with_prefix

__all__ = ["RestSettings", "server_context"]

_CLIENT_AUTH: Final = "ssl.client.auth"


@dataclass(frozen=True, slots=True)
class RestSettings:
    """Everything the REST API is served with."""

    listeners: Sequence[Listener]
    tls: ssl.SSLContext | None
    """The context of listeners with TLS; None if there are none."""
    client_tls: ssl.SSLContext | None
    """The context of requests to other workers; None if they use HTTP."""
    login: BasicLogin | None = field(repr=False)
    cors: CrossOrigin
    admin: Sequence[Listener] = ()
    """The addresses of the admin endpoints, if they have their own."""
    admin_tls: ssl.SSLContext | None = None
    has_admin: bool = True
    """True if the listeners serve the admin endpoints, too."""
    advertised_protocol: str = "http"
    advertised_host: str = ""
    advertised_port: int | None = None

    @classmethod
    def of(cls, config: WorkerConfig) -> Self:
        """Blocks: it reads the files. Raises ConnectError if the worker cannot serve what is asked for."""
        listeners = parse_listeners(",".join(config["listeners"]))
        admin = config["admin.listeners"]
        admin_listeners = parse_listeners(",".join(admin)) if admin else []
        protocol = _advertised_protocol(config["rest.advertised.listener"], listeners)
        login = BasicLogin(jaas_file_of(config.given)) if config["rest.extension.classes"] else None
        if login is not None and config.values.get("connect.protocol", "sessioned") != "sessioned":
            raise ConnectError(
                "rest.extension.classes needs connect.protocol=sessioned: otherwise requests among workers have "
                "neither a login nor a signature"
            )
        return cls(
            listeners,
            server_context(config.given, LISTENERS_TLS, listeners),
            _client_context(config.given) if protocol == "https" else None,
            login,
            CrossOrigin(config["access.control.allow.origin"], config["access.control.allow.methods"]),
            admin=admin_listeners,
            admin_tls=server_context(config.given, ADMIN_TLS, admin_listeners),
            has_admin=admin is None,
            advertised_protocol=protocol,
            advertised_host=config["rest.advertised.host.name"] or "",
            advertised_port=config["rest.advertised.port"],
        )

    @property
    def endpoints(self) -> Sequence[Endpoint]:
        """What the listeners serve."""
        return [one for one in ENDPOINTS if self.has_admin or not one.is_admin]

    @property
    def admin_endpoints(self) -> Sequence[Endpoint]:
        """What the admin listeners serve."""
        return [one for one in ENDPOINTS if one.is_admin]

    def advertised_url(self, addresses: Sequence[Listener]) -> str:
        """The URL that other workers are told: the advertised host and port, else where it listens.

        Raises ConnectError if no listener has the advertised protocol and no other address is given.
        """
        listener = next((one for one in addresses if one.protocol == self.advertised_protocol), None)
        if listener is None and not (self.advertised_host and self.advertised_port):
            raise ConnectError(
                f"rest.advertised.listener={self.advertised_protocol}: no listener has this protocol; if there is a "
                "proxy in front, set rest.advertised.host.name and rest.advertised.port"
            )
        host = self.advertised_host or (listener.host if listener else "")
        port = self.advertised_port or (listener.port if listener else 0)
        if host in ("", "0.0.0.0", "::"):
            host = socket.getfqdn()
        return f"{self.advertised_protocol}://{f'[{host}]' if ':' in host else host}:{port}/"


def _advertised_protocol(given: str | None, listeners: Sequence[Listener]) -> str:
    """HTTP unless all listeners have TLS, as in Kafka."""
    if given:
        return given.lower()
    return "https" if all(one.is_tls for one in listeners) else "http"


def _properties(given: Mapping[str, str], prefix: str) -> Mapping[str, str]:
    """The keys with the prefix, or, if there is none, those without: all or nothing, as in Kafka."""
    return with_prefix(given, prefix) or given


def server_context(given: Mapping[str, str], prefix: str, listeners: Sequence[Listener]) -> ssl.SSLContext | None:
    """The context of listeners with TLS, from ``<prefix>ssl.*`` or ``ssl.*``; None if no listener has TLS.

    Raises ConnectError.
    """
    if not any(one.is_tls for one in listeners):
        return None
    properties = _properties(given, prefix)
    client_auth = properties.get(_CLIENT_AUTH, "none").strip() or "none"
    if client_auth not in ("none", "requested", "required"):
        raise ConnectError(f"{prefix}{_CLIENT_AUTH}={client_auth}: expected none, requested or required")

    def make(settings: TlsSettings) -> ssl.SSLContext:
        if client_auth != "none" and not settings.authorities:
            raise ValueError(
                f"{_CLIENT_AUTH}={client_auth} needs ssl.truststore.location or ssl.truststore.certificates; without "
                "them, anyone with a certificate of a public authority would be let in"
            )
        context = settings.server_context(client_auth)
        context.options |= ssl.OP_NO_RENEGOTIATION
        return context

    return _followed(properties, prefix, make)


def _client_context(given: Mapping[str, str]) -> ssl.SSLContext:
    return _followed(_properties(given, LISTENERS_TLS), LISTENERS_TLS, TlsSettings.client_context)


def _followed(
    properties: Mapping[str, str], prefix: str, make: Callable[[TlsSettings], ssl.SSLContext]
) -> ssl.SSLContext:
    try:
        return FollowedContext(properties, make)
    except ValueError as error:
        raise ConnectError(f"{prefix}ssl.*: {error}") from error
