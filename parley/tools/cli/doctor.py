"""``parley doctor``: what is wrong with a cluster, or with a broker that does not start, and what to do next."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from parley.tools.cli.app import App
from parley.tools.cli.colors import alarming
from parley.tools.cli.common_options import DEFAULT_BOOTSTRAP, CommandConfig, OutputFormat, client_properties
from parley.tools.cli.invocation import INCOMPLETE, CommandError, Ended, pairs, silence_store_clients
from parley.tools.cli.output import print_data

if TYPE_CHECKING:
    from parley.tools.doctor.findings import Diagnosis

_ADDRESS: Final = re.compile(r"[^/]+:[0-9]+(,[^/]+:[0-9]+)*")

app = App(
    "Show what is wrong with a cluster, or with a broker that does not start, and what to do next.\n\n"
    "With --bootstrap-server it examines any Kafka cluster, and a Parley cluster in more detail. With a broker's "
    "properties file it examines the file, this machine, its log directories and its coordination store. It changes "
    "nothing.\n\n"
    "The exit code is 0 if nothing is wrong, 1 if there are warnings, 2 if there are errors, and 3 if no problem "
    "was found but not everything could be examined. `docs/doctor.md` lists all findings.",
    examples=[
        ("parley doctor --bootstrap-server broker1:9092", "a running cluster"),
        (
            "parley doctor --bootstrap-server broker1:9092 --config broker.properties",
            "its coordination store, too, as this machine reaches it",
        ),
        ("parley doctor broker.properties", "a broker that does not start, on its machine"),
        ("parley doctor --bootstrap-server broker1:9092 --output json", "for a program"),
    ],
)


@app.only_command()
def doctor(
    file: Annotated[Path | None, typer.Argument(metavar="[FILE]", help="A broker's properties file.")] = None,
    bootstrap_server: Annotated[
        str | None,
        typer.Option(
            "--bootstrap-server",
            help=f"A running cluster, instead of a file: host:port,host:port,... ({DEFAULT_BOOTSTRAP} without a file).",
        ),
    ] = None,
    command_config: CommandConfig = None,
    config: Annotated[
        Path | None,
        typer.Option("--config", "-c", help="With --bootstrap-server: a broker's file, to examine its store too."),
    ] = None,
    metrics: Annotated[
        list[str] | None,
        typer.Option(
            "--metrics", help="A broker's metrics: ID=[https://]host:port, instead of its own setting. Repeatable."
        ),
    ] = None,
    interval: Annotated[
        float,
        typer.Option("--interval", min=0, max=600, help="Seconds between the two samples of groups and reassignments."),
    ] = 10.0,
    time_limit: Annotated[
        float, typer.Option("--time-limit", min=1, max=86_400, help="Seconds for the whole examination.")
    ] = 120.0,
    output_format: OutputFormat = None,
) -> None:
    if file is not None and bootstrap_server is not None:
        raise CommandError("Name a broker's properties file, or a running cluster with --bootstrap-server, not both.")
    if file is not None and _ADDRESS.fullmatch(str(file)) and not file.exists():
        raise CommandError(f"The file {file} does not exist. To examine a running cluster: --bootstrap-server {file}")
    cluster = bootstrap_server or DEFAULT_BOOTSTRAP
    silence_store_clients()
    try:
        found = (
            _of_file(file, time_limit)
            if file is not None
            else _of_cluster(cluster, command_config, config, metrics or [], interval, time_limit)
        )
    except CommandError as error:
        print(f"{alarming('Error:')} {error}", file=sys.stderr)
        raise Ended(INCOMPLETE) from error
    from parley.tools.doctor.report import as_data, as_text, exit_code

    if output_format:
        print_data(as_data(found), output_format)
    else:
        for line in as_text(found):
            print(line)
    raise Ended(exit_code(found))


def _of_file(file: Path, time_limit: float) -> Diagnosis:
    from parley.tools.doctor.examination import examine_file

    return examine_file(file, progress(), time_limit)


def _of_cluster(
    bootstrap: str,
    command_config: Path | None,
    config: Path | None,
    metrics: list[str],
    interval: float,
    time_limit: float,
) -> Diagnosis:
    from parley.tools.doctor.examination import diagnosed, snapshot
    from parley.tools.doctor.gathering_cluster import Request

    request = Request(
        bootstrap,
        client_properties(command_config),
        metrics_of(metrics),
        None if config is None else client_properties(config),
        interval,
        time_limit,
        progress(),
    )
    return diagnosed(snapshot(request))


def metrics_of(texts: list[str]) -> dict[int, str]:
    """Parse ``ID=host:port`` texts. Returns the URLs of brokers' metrics by broker id. Raises ``CommandError`` for any
    other format."""
    found = {}
    for id_, address in pairs(texts, "--metrics").items():
        if not id_.isdecimal():
            raise CommandError(f"--metrics takes ID=host:port, such as 1=broker1:9464, not '{id_}={address}'.")
        found[int(id_)] = address if "://" in address else f"http://{address}"
    return found


def progress() -> Callable[[str], None]:
    """Return a function that shows on a terminal what is being examined. It prints nothing if there is no terminal."""
    if not sys.stderr.isatty():
        return lambda text: None
    return lambda text: print(f"examining {text} ...", file=sys.stderr, flush=True)
