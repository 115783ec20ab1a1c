"""The settings of a console: its cluster, its address, and what it may do."""

from __future__ import annotations

import re
import ssl
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Final

from parley.protocol.security.client_security import PLAINTEXT, ClientSecurity, client_security

if TYPE_CHECKING:
    from parley.consensus.registry import BackendFactory
    from parley.tools.console.record_schemas import SchemaSettings

_LOGIN: Final = re.compile(r"//[^/@]*@")
MECHANISMS: Final = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512")
"""The mechanisms with a user name and a password, which a person can type."""


@dataclass(frozen=True, slots=True)
class ConnectSettings:
    """The Connect workers of a console: one URL for each group of workers, and the console's login."""

    urls: tuple[str, ...] = field(repr=False)
    tls: ssl.SSLContext | None = None
    login: tuple[str, str] | None = field(default=None, repr=False)

    @property
    def shown_urls(self) -> tuple[str, ...]:
        """The workers' URLs without the user and the password that they may contain."""
        return tuple(_LOGIN.sub("//", url) for url in self.urls)


@dataclass(frozen=True, slots=True)
class ConsoleSettings:
    """The settings of a console. ``properties`` are those of a client, without credentials."""

    bootstrap: str
    properties: Mapping[str, str] = field(default_factory=dict, repr=False)
    read_only: bool = False
    hosts: frozenset[str] = frozenset()
    """Host names under which browsers may reach this console, in addition to localhost and IP addresses."""
    store: tuple[str, BackendFactory] | None = None
    """The coordination store, if the console should show it."""
    schemas: SchemaSettings | None = None
    """The schemas with which records are decoded."""
    connect: ConnectSettings | None = None
    """The Connect workers, if the console should show connectors."""
    data_dir: Path | None = None
    """The folder in which samples are kept; None keeps them in memory only."""

    @property
    def needs_login(self) -> bool:
        """True if the listener requires a login."""
        return self.properties.get("security.protocol", "PLAINTEXT").startswith("SASL_")

    @property
    def mechanism(self) -> str:
        """The SASL mechanism of logins."""
        return self.properties.get("sasl.mechanism", "SCRAM-SHA-512")

    def security(self, user: str = "", password: str = "") -> ClientSecurity:
        """Return the security settings of a user's connections. The name and the password are ignored if no login is
        required. Raises ValueError if the settings are invalid."""
        if not self.needs_login:
            return client_security(self.properties) if self.properties else PLAINTEXT
        module = "plain.PlainLoginModule" if self.mechanism == "PLAIN" else "scram.ScramLoginModule"
        jaas = (
            f"org.apache.kafka.common.security.{module} required username={_quoted(user)} password={_quoted(password)};"
        )
        return client_security({**self.properties, "sasl.mechanism": self.mechanism, "sasl.jaas.config": jaas})


def _quoted(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'
