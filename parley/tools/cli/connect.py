"""``parley connect``: connectors between topics and other systems, run as Kafka Connect runs them."""

from __future__ import annotations

import asyncio
import json
import logging
import signal
import sys
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from parley.tools.cli.app import App, example_text
from parley.tools.cli.common_options import client_properties
from parley.tools.cli.invocation import CommandError, pairs
from parley.tools.cli.spark import said_if_missing

if TYPE_CHECKING:
    from parley.pipeline.connect.config import ConfigDef
    from parley.pipeline.connect.running import ConnectorFile
    from parley.pipeline.connect.worker_config import WorkerConfig

_EXAMPLES = {
    "standalone": [
        ("parley connect standalone worker.properties source.properties sink.json", "some connectors, until Ctrl-C"),
        (
            "parley connect standalone worker.properties source.properties --override tasks.engine=threads",
            "in this process, without Spark",
        ),
    ],
    "distributed": [
        ("parley connect distributed worker.properties", "one worker of a group; connectors come by its REST API"),
    ],
}

app = App(
    "Run connectors between topics and other systems, as Kafka Connect does: on Spark, with its configuration files, "
    "its REST API (port 8083), and its names of plugins.\n\n"
    "`parley connect COMMAND --help` explains one.",
    examples=[each[0] for each in _EXAMPLES.values()],
)

_HOW = "'parley-broker[connect]', or 'parley-broker[spark]' to run tasks on Spark"

_Worker = Annotated[Path, typer.Argument(metavar="WORKER.PROPERTIES", help="The worker's configuration.")]
_Override = Annotated[
    list[str], typer.Option("--override", metavar="KEY=VALUE", help="A setting that counts more than the file.")
]


@app.command(epilog=example_text(_EXAMPLES["standalone"]))
def standalone(
    worker: _Worker,
    connectors: Annotated[
        list[Path] | None,
        typer.Argument(metavar="[CONNECTOR...]", help="Connectors, each a .properties or a JSON file."),
    ] = None,
    override: _Override = [],  # noqa: B006 - read only
) -> None:
    """Run one worker with some connectors; source offsets are kept in a file."""
    with said_if_missing("Connect", _HOW):
        from parley.pipeline.connect.running import run_standalone
        from parley.pipeline.connect.worker_config import STANDALONE

    config = _configuration(worker, override, STANDALONE)
    files = [_connector(path) for path in connectors or []]
    _run(lambda stopping: run_standalone(config, files, stopping, _ready))


@app.command(epilog=example_text(_EXAMPLES["distributed"]))
def distributed(
    worker: _Worker,
    override: _Override = [],  # noqa: B006 - read only
) -> None:
    """Run one worker of a group, which shares out connectors and tasks; all state is in topics."""
    with said_if_missing("Connect", _HOW):
        from parley.pipeline.connect.distributed.settings import DISTRIBUTED
        from parley.pipeline.connect.running import run_distributed

    config = _configuration(worker, override, DISTRIBUTED)
    _run(lambda stopping: run_distributed(config, stopping, _ready))


def _configuration(path: Path, overrides: list[str], definition: ConfigDef) -> WorkerConfig:
    """The worker's configuration. Raises CommandError with every problem on a line of its own."""
    from parley.pipeline.connect.errors import ConfigError
    from parley.pipeline.connect.worker_config import WorkerConfig

    given = {**client_properties(path), **dict(pairs(overrides, "--override"))}
    try:
        return WorkerConfig.parse(given, definition)
    except ConfigError as error:
        raise CommandError("\n".join([f"{path} cannot be used:", *error.messages])) from error


def _connector(path: Path) -> ConnectorFile:
    """What a connector's file says. Raises CommandError.

    It is a properties file, or JSON: the configuration itself, or ``{"name": ..., "config": {...}}`` as the REST API
    takes it.
    """
    from parley.pipeline.connect.herder import TargetState
    from parley.pipeline.connect.running import ConnectorFile

    states = {"RUNNING": TargetState.STARTED, "PAUSED": TargetState.PAUSED, "STOPPED": TargetState.STOPPED}
    given: dict[str, Any] = _as_json(path) or {}
    if not given:
        given.update(client_properties(path))
    initial = None
    if isinstance(given.get("config"), dict):
        initial = states.get(given.get("initial_state", "RUNNING"))
        if initial is None:
            raise CommandError(f"{path}: initial_state is RUNNING, PAUSED or STOPPED.")
        given = {"name": given.get("name"), **given["config"]}
    config = {key: value if isinstance(value, str) else json.dumps(value) for key, value in given.items()}
    if not isinstance(given.get("name"), str) or not config.get("connector.class"):
        raise CommandError(f"{path} describes no connector: it needs name and connector.class.")
    return ConnectorFile(str(path), config["name"], config, initial)


def _as_json(path: Path) -> dict[str, Any] | None:
    """The object in a JSON file; None where the file is something else."""
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return found if isinstance(found, dict) else None


def _run(work: Callable[[asyncio.Event], Coroutine[Any, Any, None]]) -> None:
    """Run a worker until it is told to stop."""
    from parley.pipeline.connect.errors import ConnectError
    from parley.pipeline.connect.herder import HerderError
    from parley.pipeline.java import JavaMissing
    from parley.pipeline.session import SparkMissing
    from parley.protocol.errors import KafkaError

    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s", stream=sys.stderr)
    for library in ("py4j", "httpx"):  # a line for each request among workers says nothing
        logging.getLogger(library).setLevel(logging.WARNING)

    async def until_stopped() -> None:
        stopping = asyncio.Event()
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, stopping.set)
        await work(stopping)

    try:
        asyncio.run(until_stopped())
    except (ConnectError, HerderError, SparkMissing, JavaMissing) as error:
        raise CommandError(str(error)) from error
    except KafkaError as error:
        raise CommandError(f"The cluster cannot be used: {error.code.name}: {error.message}") from error


def _ready(url: str) -> None:
    print(f"Connect is ready: {url}", flush=True)
