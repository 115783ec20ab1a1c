"""``parley connect``: run connectors between topics and other systems, as Kafka Connect does."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from parley.configuration.extras import how_to_install
from parley.tools.cli.app import App, example_text
from parley.tools.cli.common_options import client_properties
from parley.tools.cli.invocation import CommandError, pairs
from parley.tools.cli.spark import requires_library
from parley.tools.cli.supervisor import supervise
from parley.tools.cli.until_stopped import run_until_stopped

if TYPE_CHECKING:
    from parley.pipeline.connect.config import ConfigDef
    from parley.pipeline.connect.run_worker import ConnectorFile
    from parley.pipeline.connect.worker_config import WorkerConfig

_EXAMPLES = {
    "standalone": [
        ("parley connect standalone worker.properties source.properties sink.json", "two connectors, until Ctrl-C"),
        (
            "parley connect standalone worker.properties source.properties --supervise",
            "the same, restarted if it is killed",
        ),
    ],
    "distributed": [
        (
            "parley connect distributed worker.properties",
            "one worker of a group; connectors are created through its REST API",
        ),
    ],
}

app = App(
    "Run connectors between topics and other systems, with the configuration files, the REST API (port 8083) and the "
    "plugin names of Kafka Connect.\n\n"
    "`parley connect COMMAND --help` describes a subcommand.",
    examples=[each[0] for each in _EXAMPLES.values()],
)

_HOW = how_to_install("connect")

_Worker = Annotated[Path, typer.Argument(metavar="WORKER.PROPERTIES", help="The worker's configuration.")]
_Override = Annotated[
    list[str], typer.Option("--override", metavar="KEY=VALUE", help="A setting that overrides the file; repeatable.")
]
_Supervise = Annotated[
    bool, typer.Option("--supervise", help="Run the worker in a child process, and restart it if it dies.")
]


@app.command(epilog=example_text(_EXAMPLES["standalone"]))
def standalone(
    worker: _Worker,
    connectors: Annotated[
        list[Path] | None,
        typer.Argument(metavar="[CONNECTOR...]", help="Connector configurations: .properties or JSON files."),
    ] = None,
    override: _Override = [],  # noqa: B006 - read only
    supervised: _Supervise = False,
) -> None:
    """Run a single worker with the connectors of these files; it keeps source offsets in a file."""
    ready = _supervised(supervised)
    with requires_library("Connect", _HOW):
        from parley.pipeline.connect.run_worker import run_standalone
        from parley.pipeline.connect.worker_config import STANDALONE

    config = _configuration(worker, override, STANDALONE)
    files = [_connector(path) for path in connectors or []]
    run_until_stopped(lambda stopping: run_standalone(config, files, stopping, ready))


@app.command(epilog=example_text(_EXAMPLES["distributed"]))
def distributed(
    worker: _Worker,
    override: _Override = [],  # noqa: B006 - read only
    supervised: _Supervise = False,
) -> None:
    """Run one worker of a group that distributes connectors and tasks among its workers; its state is in topics."""
    ready = _supervised(supervised)
    with requires_library("Connect", _HOW):
        from parley.pipeline.connect.distributed.settings import DISTRIBUTED
        from parley.pipeline.connect.run_worker import run_distributed

    config = _configuration(worker, override, DISTRIBUTED)
    run_until_stopped(lambda stopping: run_distributed(config, stopping, ready))


def _configuration(path: Path, overrides: list[str], definition: ConfigDef) -> WorkerConfig:
    """Read the worker's configuration. Raises ``CommandError`` with a line for every invalid setting."""
    from parley.pipeline.connect.errors import ConfigError
    from parley.pipeline.connect.worker_config import WorkerConfig

    given = {**client_properties(path), **dict(pairs(overrides, "--override"))}
    try:
        return WorkerConfig.parse(given, definition)
    except ConfigError as error:
        raise CommandError("\n".join([f"{path} cannot be used:", *error.messages])) from error


def _connector(path: Path) -> ConnectorFile:
    """Read a connector's file: properties, JSON, or JSON ``{"name": ..., "config": {...}}`` as for the REST API.

    Raises ``CommandError`` if the file cannot be read or does not describe a connector.
    """
    from parley.pipeline.connect.herder_results import TargetState
    from parley.pipeline.connect.run_worker import ConnectorFile

    states = {"RUNNING": TargetState.STARTED, "PAUSED": TargetState.PAUSED, "STOPPED": TargetState.STOPPED}
    given: dict[str, Any] = _as_json(path) or {}
    if not given:
        given.update(client_properties(path))
    initial = None
    if isinstance(given.get("config"), dict):
        initial = states.get(given.get("initial_state", "RUNNING"))
        if initial is None:
            raise CommandError(f"{path}: initial_state must be RUNNING, PAUSED or STOPPED.")
        given = {"name": given.get("name"), **given["config"]}
    config = {key: value if isinstance(value, str) else json.dumps(value) for key, value in given.items()}
    if not isinstance(given.get("name"), str) or not config.get("connector.class"):
        raise CommandError(f"{path} does not describe a connector: it needs name and connector.class.")
    return ConnectorFile(str(path), config["name"], config, initial)


def _as_json(path: Path) -> dict[str, Any] | None:
    """Read the object in a JSON file. Returns None if the file contains anything else."""
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return found if isinstance(found, dict) else None


def _supervised(is_wanted: bool) -> Callable[[str], None]:
    """Return the function that the worker calls with its URL when it is ready. If ``is_wanted``, this function returns
    in a supervised child process (see ``supervise``)."""
    child = supervise() if is_wanted else None

    def ready(url: str) -> None:
        print(f"Connect is ready: {url}", flush=True)
        if child is not None:
            child.report_ready()

    return ready
