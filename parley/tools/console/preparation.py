"""The settings with which a command or a broker starts a console, and their checks before the console serves."""

from __future__ import annotations

import ssl
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Final
from urllib.parse import urlsplit

from parley.configuration.extras import how_to_install
from parley.protocol.client import parse_bootstrap
from parley.tools.cli.invocation import CommandError
from parley.tools.cli.spark import requires_library
from parley.tools.console.settings import MECHANISMS, ConnectSettings, ConsoleSettings

if TYPE_CHECKING:
    from parley.consensus.registry import BackendFactory
    from parley.pipeline.service.server import Listener
    from parley.tools.console.record_schemas import SchemaSettings


_PORT: Final = 8090
_LOGIN: Final = "sasl.jaas.config"
_CONNECT: Final = "connect."
"""The prefix of the settings for Connect workers: ``connect.basic.auth.user.info`` and ``connect.ssl.*``."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """The settings of a console as the operator gave them."""

    bootstrap: str
    listen: str
    properties: Mapping[str, str] = field(default_factory=dict, repr=False)
    """The settings of a client of the cluster, and ``schema.registry.*``."""
    broker_properties: Mapping[str, str] = field(default_factory=dict, repr=False)
    """The settings of a broker. ``listener.name.console.ssl.*`` configure TLS of the console itself."""
    read_only: bool = False
    host_names: Sequence[str] = ()
    store: tuple[str, BackendFactory] | None = None
    schema_registry: str | None = None
    schemas: Sequence[str] = ()
    key_schemas: Sequence[str] = ()
    connect_urls: Sequence[str] = ()
    data_dir: Path | None = None
    """The folder in which samples are stored."""


@dataclass(frozen=True, slots=True)
class Prepared:
    """The checked settings of a console, with its listeners and their TLS context."""

    settings: ConsoleSettings
    listeners: Sequence[Listener]
    tls: ssl.SSLContext | None


def prepared(wanted: Wanted) -> Prepared:
    """Check the requested settings, and read the files that they name. Blocks. Raises ``CommandError`` if a setting, a
    file or a library is missing or wrong."""
    with requires_library("The console", how_to_install("console")):
        from parley.pipeline.service.errors import ServiceError
        from parley.pipeline.service.server import parse_listeners
        from parley.pipeline.service.tls import server_context

    try:
        settings = _settings(wanted)
        listen = wanted.listen if "://" in wanted.listen else f"http://{wanted.listen}"
        listeners = parse_listeners(listen, _PORT, key="--listen")
        return Prepared(
            settings, listeners, server_context(wanted.broker_properties, "listener.name.console.", listeners)
        )
    except ServiceError as error:
        raise CommandError(str(error)) from error


def _settings(wanted: Wanted) -> ConsoleSettings:
    properties = dict(wanted.properties)
    if properties.pop(_LOGIN, None) is not None:
        print(
            f"Warning: {_LOGIN} in --command-config is not used: users log in to the console with their own passwords, "
            "so it needs no credentials.",
            file=sys.stderr,
        )
    settings = ConsoleSettings(
        wanted.bootstrap,
        properties,
        wanted.read_only,
        frozenset(map(str.lower, wanted.host_names)),
        wanted.store,
        _schemas(wanted),
        _connect(wanted) if wanted.connect_urls else None,
        wanted.data_dir,
    )
    if settings.needs_login and settings.mechanism not in MECHANISMS:
        raise CommandError(
            f"sasl.mechanism must be one of {', '.join(MECHANISMS)}: users of the console type passwords."
        )
    try:
        parse_bootstrap(wanted.bootstrap)
        settings.security("user", "password")
    except ValueError as error:
        raise CommandError(f"The settings of the connection to the cluster cannot be used: {error}.") from error
    return settings


def _schemas(wanted: Wanted) -> SchemaSettings | None:
    has_registry = wanted.schema_registry or any(key.startswith("schema.registry.") for key in wanted.properties)
    if not has_registry and not wanted.schemas and not wanted.key_schemas:
        return None
    with requires_library("Decoding records", how_to_install("console", "registry")):
        for library in ("confluent_kafka.schema_registry", "fastavro", "google.protobuf", "jsonschema"):
            import_module(library)
        from parley.tools.console.schema_settings import schema_settings

    try:
        return schema_settings(wanted.schema_registry, wanted.properties, wanted.schemas, wanted.key_schemas)
    except ValueError as error:
        raise CommandError(f"The schemas cannot be used: {error}.") from error


def _connect(wanted: Wanted) -> ConnectSettings:
    from parley.pipeline.service.tls import client_context

    with requires_library("Showing connectors", how_to_install("console", "connect")):
        import_module("httpx")
    urls = tuple(url.strip().rstrip("/") for url in wanted.connect_urls)
    for url in urls:
        try:
            parts = urlsplit(url)
            is_url = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
        except ValueError:
            is_url = False
        if not is_url:
            raise CommandError("The URL of a Connect worker must look like http://host:8083.")
    tls = client_context(wanted.properties, _CONNECT) if any(url.startswith("https:") for url in urls) else None
    info = wanted.properties.get(f"{_CONNECT}basic.auth.user.info", "")
    user, colon, password = info.partition(":")
    if info and not colon:
        raise CommandError(f"{_CONNECT}basic.auth.user.info must be user:password.")
    return ConnectSettings(urls, tls, (user, password) if info else None)
