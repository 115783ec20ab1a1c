"""``parley console``: the web console of a cluster."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from parley.configuration.extras import how_to_install
from parley.tools.cli.app import App
from parley.tools.cli.common_options import DEFAULT_BOOTSTRAP, CommandConfig, OnlyBootstrapServer, client_properties
from parley.tools.cli.invocation import CommandError
from parley.tools.cli.spark import requires_library
from parley.tools.cli.until_stopped import run_until_stopped

if TYPE_CHECKING:
    from parley.tools.console.record_schemas import SchemaSettings
    from parley.tools.console.settings import ConsoleSettings

DEFAULT_LISTENER = "http://127.0.0.1:8090"

app = App(
    "Show a cluster in a browser, and change it: topics, records, groups, users, rights, and the coordination store. "
    "It serves any Kafka cluster; of a Parley cluster it shows more.\n\n"
    "If the cluster's listener demands a login, each user of the console logs in with a name and a password of the "
    "cluster, and has that user's rights. Otherwise everyone who reaches the console has the rights of the console.",
    examples=[
        ("parley console", "the cluster at 127.0.0.1:9092, at http://127.0.0.1:8090"),
        ("parley console --bootstrap-server broker:9092 --read-only", "another cluster, without changes"),
        (
            "parley console --bootstrap-server broker:9093 --command-config client.properties "
            "--config server.properties",
            "with logins, and the content of the coordination store",
        ),
        (
            "parley console --schema-registry http://127.0.0.1:8081",
            "with records decoded that have schemas of a registry",
        ),
    ],
)


@app.only_command()
def console(
    bootstrap_server: OnlyBootstrapServer = DEFAULT_BOOTSTRAP,
    command_config: CommandConfig = None,
    listen: Annotated[
        str, typer.Option("--listen", help="Where to listen: http://host:port or https://host:port.")
    ] = DEFAULT_LISTENER,
    read_only: Annotated[bool, typer.Option("--read-only", help="Refuse every change.")] = False,
    config: Annotated[
        Path | None,
        typer.Option("--config", "-c", help="A broker's properties file: its coordination store, and TLS of https."),
    ] = None,
    coordination_url: Annotated[
        str | None, typer.Option("--coordination-url", help="The coordination store to show, instead of --config.")
    ] = None,
    host_name: Annotated[
        list[str],
        typer.Option("--host-name", help="A name under which browsers reach the console; repeatable."),
    ] = [],  # noqa: B006 - read only
    schema_registry: Annotated[
        str | None,
        typer.Option(
            "--schema-registry",
            metavar="URL",
            help="Decode Avro, JSON Schema and Protobuf with this schema registry. Its login and TLS are "
            "schema.registry.* in --command-config.",
        ),
    ] = None,
    schema: Annotated[
        list[str],
        typer.Option(
            "--schema",
            metavar="TOPIC=FILE",
            help="Decode the values of a topic with a file (.avsc, .json, .proto); repeatable.",
        ),
    ] = [],  # noqa: B006 - read only
    key_schema: Annotated[
        list[str], typer.Option("--key-schema", metavar="TOPIC=FILE", help="The same for keys; repeatable.")
    ] = [],  # noqa: B006 - read only
) -> None:
    """Run the console until SIGINT or SIGTERM."""
    with requires_library("The console", how_to_install("console")):
        from parley.pipeline.service.errors import ServiceError
        from parley.pipeline.service.server import parse_listeners
        from parley.pipeline.service.tls import server_context
        from parley.tools.console.serving import run_console

    properties = client_properties(command_config)
    settings = _settings(bootstrap_server, properties, read_only, host_name, config, coordination_url)
    settings = replace(settings, schemas=_schemas(schema_registry, properties, schema, key_schema))
    try:
        listeners = parse_listeners(listen, 8090)
        tls = server_context(client_properties(config), "listener.name.console.", listeners)
    except ServiceError as error:
        raise CommandError(str(error)) from error
    run_until_stopped(lambda stopping: run_console(settings, listeners, tls, stopping, _say_ready))


def _settings(
    bootstrap: str,
    properties: Mapping[str, str],
    read_only: bool,
    hosts: list[str],
    config: Path | None,
    url: str | None,
) -> ConsoleSettings:
    """Return the settings of the console. Raises ``CommandError`` if they are invalid."""
    from parley.protocol.client import parse_bootstrap
    from parley.tools.cli.store_client import store_address
    from parley.tools.console.settings import MECHANISMS, ConsoleSettings

    if "sasl.jaas.config" in properties:
        raise CommandError(
            "Remove sasl.jaas.config from --command-config: each user of the console logs in with a password of "
            "their own, so the console needs no credentials."
        )
    store = store_address(url, config) if url is not None or config is not None else None
    settings = ConsoleSettings(bootstrap, properties, read_only, frozenset(map(str.lower, hosts)), store)
    if settings.needs_login and settings.mechanism not in MECHANISMS:
        raise CommandError(
            f"sasl.mechanism must be one of {', '.join(MECHANISMS)}: users of the console type passwords."
        )
    try:
        parse_bootstrap(bootstrap)
        settings.security("user", "password")
    except ValueError as error:
        raise CommandError(f"The connection to the cluster: {error}.") from error
    return settings


def _schemas(
    url: str | None, properties: Mapping[str, str], values: Sequence[str], keys: Sequence[str]
) -> SchemaSettings | None:
    """Return where schemas come from. Raises ``CommandError`` if they cannot be used."""
    if url is None and not values and not keys and not any(key.startswith("schema.registry.") for key in properties):
        return None
    with requires_library("Decoding records", how_to_install("console", "registry")):
        for library in ("confluent_kafka.schema_registry", "fastavro", "google.protobuf", "jsonschema"):
            import_module(library)
        from parley.tools.console.schema_settings import schema_settings

    try:
        return schema_settings(url, properties, values, keys)
    except ValueError as error:
        raise CommandError(f"The schemas: {error}.") from error


def _say_ready(url: str) -> None:
    print(f"The console is ready: {url}", flush=True)
