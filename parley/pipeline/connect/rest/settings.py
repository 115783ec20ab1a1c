"""How a worker serves its REST API, read from its configuration: addresses, TLS, login, admin endpoints."""

from __future__ import annotations

import socket
import ssl
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Self

from fastapi import APIRouter

from parley.pipeline.connect.errors import ConnectError
from parley.pipeline.connect.rest.app import CrossOrigin
from parley.pipeline.connect.rest.endpoints import ADMIN, CONNECT
from parley.pipeline.connect.worker_config import ADMIN_TLS, LISTENERS_TLS, WorkerConfig
from parley.pipeline.service.login import BasicLogin, jaas_file_of
from parley.pipeline.service.server import Listener, parse_listeners
from parley.pipeline.service.tls import client_context, server_context


@dataclass(frozen=True, slots=True)
class RestSettings:
    """All settings of the REST API."""

    listeners: Sequence[Listener]
    tls: ssl.SSLContext | None
    """The context of listeners with TLS; None if there are none."""
    client_tls: ssl.SSLContext | None
    """The context of requests to other workers; None if they use HTTP."""
    login: BasicLogin | None = field(repr=False)
    cors: CrossOrigin
    admin: Sequence[Listener] = ()
    """The addresses of the admin endpoints, if they are served separately."""
    admin_tls: ssl.SSLContext | None = None
    has_admin: bool = True
    """True if the listeners also serve the admin endpoints."""
    advertised_protocol: str = "http"
    advertised_host: str = ""
    advertised_port: int | None = None

    @classmethod
    def of(cls, config: WorkerConfig) -> Self:
        """Read the settings and the files that they name (so this blocks). Raises ServiceError, for example
        ConnectError, if a setting or a file cannot be used.
        """
        listeners = parse_listeners(",".join(config["listeners"]))
        admin = config["admin.listeners"]
        admin_listeners = parse_listeners(",".join(admin)) if admin else []
        protocol = _advertised_protocol(config["rest.advertised.listener"], listeners)
        login = BasicLogin(jaas_file_of(config.given)) if config["rest.extension.classes"] else None
        if login is not None and config.values.get("connect.protocol", "sessioned") != "sessioned":
            raise ConnectError(
                "rest.extension.classes needs connect.protocol=sessioned: otherwise requests between workers "
                "have neither a login nor a signature"
            )
        return cls(
            listeners,
            server_context(config.given, LISTENERS_TLS, listeners),
            client_context(config.given, LISTENERS_TLS) if protocol == "https" else None,
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
    def routers(self) -> Sequence[APIRouter]:
        """The routers that the listeners serve."""
        return (CONNECT, ADMIN) if self.has_admin else (CONNECT,)

    def advertised_url(self, addresses: Sequence[Listener]) -> str:
        """Return the URL for other workers: the advertised host and port, or the listener's.

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
    """Return the given protocol. The default is HTTP, or HTTPS if all listeners use TLS, as in Kafka."""
    if given:
        return given.lower()
    return "https" if all(one.is_tls for one in listeners) else "http"
