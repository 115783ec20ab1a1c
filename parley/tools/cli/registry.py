"""``parley registry``: a schema registry for Avro, JSON Schema and Protobuf, with Confluent's REST API."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Annotated

import typer

from parley.broker.config.key_definition import closest
from parley.configuration.extras import how_to_install
from parley.tools.cli.app import App
from parley.tools.cli.common_options import CommandConfig, client_properties
from parley.tools.cli.invocation import CommandError, pairs
from parley.tools.cli.spark import requires_library
from parley.tools.cli.until_stopped import run_until_stopped

app = App(
    "Serve schemas of Avro, JSON Schema and Protobuf to producers and consumers, with the REST API of Confluent's "
    "schema registry. It listens on 127.0.0.1, port 8081; `--listeners` lets other machines in.\n\n"
    "The schemas are in a compacted topic, _schemas, in Confluent's format. Several instances may serve the same "
    "topic, and all of them accept reads and writes.",
    examples=[
        ("parley registry --bootstrap-server broker:9092", "until Ctrl-C, at http://127.0.0.1:8081"),
        ("parley registry schema-registry.properties", "with the settings of a file"),
        (
            "parley registry --bootstrap-server broker:9093 --command-config client.properties --listeners http://:8082",
            "on a cluster with TLS or logins, at another port, and for other machines, too",
        ),
    ],
)


@app.only_command()
def registry(
    properties: Annotated[
        Path | None, typer.Argument(metavar="[REGISTRY.PROPERTIES]", help="The registry's configuration.")
    ] = None,
    bootstrap_server: Annotated[
        str | None, typer.Option("--bootstrap-server", help="The cluster: kafkastore.bootstrap.servers.")
    ] = None,
    command_config: CommandConfig = None,
    listeners: Annotated[
        str | None, typer.Option("--listeners", help="Where to listen: http://host:port or https://host:port.")
    ] = None,
    override: Annotated[
        list[str],
        typer.Option("--override", metavar="KEY=VALUE", help="A setting that overrides the file; repeatable."),
    ] = [],  # noqa: B006 - read only
) -> None:
    """Run the registry until SIGINT or SIGTERM."""
    with requires_library("The registry", how_to_install("registry")):
        import jsonschema  # noqa: F401 - needed when the first schema arrives

        from parley.pipeline.registry.config import RegistryConfig
        from parley.pipeline.registry.serving import run_registry
    from parley.pipeline.service.errors import ServiceError

    client = {f"kafkastore.{key}": value for key, value in client_properties(command_config).items()}
    named = {"kafkastore.bootstrap.servers": bootstrap_server, "listeners": listeners}
    given = {**client_properties(properties), **client, **{key: value for key, value in named.items() if value}}
    try:
        config = RegistryConfig.parse({**given, **dict(pairs(override, "--override"))})
    except ServiceError as error:
        raise CommandError("\n".join(["The registry cannot be started:", str(error)])) from error
    _warn_of(config.unknown, config.values)
    run_until_stopped(lambda stopping: run_registry(config, stopping, _say_ready))


def _warn_of(unknown: Iterable[str], known: Iterable[str]) -> None:
    """Warn about settings that have no effect. They are not errors, because files of Confluent's registry contain more
    settings."""
    for name in unknown:
        meant = closest(name, known)
        hint = f": did you mean {meant}?" if meant else ""
        print(f"Warning: {name} is not a setting of the registry and has no effect{hint}", file=sys.stderr)


def _say_ready(url: str) -> None:
    print(f"The schema registry is ready: {url}", flush=True)
