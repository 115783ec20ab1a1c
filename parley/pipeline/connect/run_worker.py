"""Runs a worker from its configuration until it is stopped: standalone with some connectors, or as a member
of a group."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from parley.pipeline.connect.distributed.herder import Herder
from parley.pipeline.connect.distributed.serving import distributed, standalone
from parley.pipeline.connect.herder_results import Config, HerderError, TargetState
from parley.pipeline.connect.tasks.host import wall_clock_ms
from parley.pipeline.connect.worker_config import WorkerConfig

_READY_POLL_S = 0.05
_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class ConnectorFile:
    """A connector's configuration, read from the file ``path``. Errors name the file."""

    path: str
    name: str
    config: Config
    initial: TargetState | None = None


async def run_standalone(
    config: WorkerConfig, connectors: Sequence[ConnectorFile], stopping: asyncio.Event, on_ready: Callable[[str], None]
) -> None:
    """Run a standalone worker with these connectors until ``stopping`` is set.

    Calls ``on_ready`` with the URL of its REST API once all connectors have been created. Raises ConnectError if it
    cannot start, HerderError if a connector cannot be created.
    """
    _warn_of_spark(config)
    async with standalone(config, wall_clock_ms) as (herder, url):
        await _ready(herder)
        for one in connectors:
            try:
                await herder.put_connector(one.name, one.config, initial=one.initial)
            except HerderError as error:
                raise HerderError(f"{one.path}: {error}") from error
        on_ready(url)
        await stopping.wait()


async def run_distributed(config: WorkerConfig, stopping: asyncio.Event, on_ready: Callable[[str], None]) -> None:
    """Run a worker of a group until ``stopping`` is set. Raises ConnectError if it cannot start or continue."""
    _warn_of_spark(config)
    async with distributed(config, wall_clock_ms) as (herder, url):
        await _ready(herder)
        on_ready(url)
        await stopping.wait()


def _warn_of_spark(config: WorkerConfig) -> None:
    """Log a warning if the configuration has keys with which earlier versions configured tasks on Spark."""
    without_effect = [key for key in config.given if key == "tasks.engine" or key.startswith("spark.")]
    if without_effect:
        _log.warning("%s have no effect: tasks run in the worker's own process.", ", ".join(without_effect))


async def _ready(herder: Herder) -> None:
    while not herder.is_ready:  # noqa: ASYNC110 - a herder has no event for this
        await asyncio.sleep(_READY_POLL_S)
