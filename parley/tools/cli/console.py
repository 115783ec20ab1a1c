"""``parley console``: the web console of a cluster."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import typer

from parley.configuration.extras import how_to_install
from parley.tools.cli.app import App
from parley.tools.cli.common_options import DEFAULT_BOOTSTRAP, CommandConfig, OnlyBootstrapServer, client_properties
from parley.tools.cli.spark import requires_library
from parley.tools.cli.until_stopped import run_until_stopped

DEFAULT_LISTENER = "http://127.0.0.1:8090"

app = App(
    "Show a cluster in a browser, and change it: topics, records, groups, users, rights, and the coordination store. "
    "It works with any Kafka cluster, and shows more of a Parley cluster.\n\n"
    "If the cluster's listener requires a login, each user of the console logs in with a name and a password of the "
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
            "with records decoded by the schemas of a registry",
        ),
    ],
)


@app.only_command()
def console(
    bootstrap_server: OnlyBootstrapServer = DEFAULT_BOOTSTRAP,
    command_config: CommandConfig = None,
    listen: Annotated[
        str, typer.Option("--listen", help="Where to listen: host:port, http://host:port or https://host:port.")
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
    connect_url: Annotated[
        list[str],
        typer.Option(
            "--connect-url",
            metavar="URL",
            help="Show the connectors of this Connect worker and its group, such as http://host:8083; repeatable. Its "
            "login and TLS are connect.* in --command-config.",
        ),
    ] = [],  # noqa: B006 - read only
    data_dir: Annotated[
        Path | None,
        typer.Option(
            "--data-dir",
            help="Where the console keeps the samples of its charts; ~/.local/state/parley unless given.",
        ),
    ] = None,
) -> None:
    """Run the console until SIGINT or SIGTERM."""
    from parley.tools.cli.store_client import store_address
    from parley.tools.console.preparation import Wanted, prepared

    plan = prepared(
        Wanted(
            bootstrap=bootstrap_server,
            listen=listen,
            properties=client_properties(command_config),
            broker_properties=client_properties(config),
            read_only=read_only,
            host_names=host_name,
            store=None if coordination_url is None and config is None else store_address(coordination_url, config),
            schema_registry=schema_registry,
            schemas=schema,
            key_schemas=key_schema,
            connect_urls=connect_url,
            data_dir=data_dir or _default_data_dir(),
        )
    )
    with requires_library("The console", how_to_install("console")):
        from parley.tools.console.serving import run_console
    run_until_stopped(lambda stopping: run_console(plan, stopping, _say_ready))


def _default_data_dir() -> Path:
    base = os.environ.get("XDG_STATE_HOME", "")
    return (Path(base) if base else Path.home() / ".local" / "state") / "parley"


def _say_ready(url: str) -> None:
    print(f"The console is ready: {url}", flush=True)
