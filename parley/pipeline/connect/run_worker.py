"""A worker from its configuration until it is told to stop: standalone with some connectors, or one of a group."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from parley.pipeline.connect.distributed.serving import distributed, standalone
from parley.pipeline.connect.distributed.worker_herder import Herder
from parley.pipeline.connect.herder import Config, HerderError, TargetState
from parley.pipeline.connect.worker_config import WorkerConfig

__all__ = ["ConnectorFile", "run_distributed", "run_standalone"]

_READY_POLL_S = 0.05
_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class ConnectorFile:
    """A connector as a file describes it; `path` is said where it cannot be made."""

    path: str
    name: str
    config: Config
    initial: TargetState | None = None


async def run_standalone(
    config: WorkerConfig, connectors: Sequence[ConnectorFile], stopping: asyncio.Event, on_ready: Callable[[str], None]
) -> None:
    """Run a worker that is alone, with these connectors, until `stopping` is set.

    `on_ready` is called with the URL of its REST API once all connectors were made. Raises ConnectError where it cannot
    start, HerderError where one of the connectors cannot be made.
    """
    _warn_of_spark(config)
    async with standalone(config, _now_ms) as (herder, url):
        await _ready(herder)
        for one in connectors:
            try:
                await herder.put_connector(one.name, one.config, initial=one.initial)
            except HerderError as error:
                raise HerderError(f"{one.path}: {error}") from error
        on_ready(url)
        await stopping.wait()


async def run_distributed(config: WorkerConfig, stopping: asyncio.Event, on_ready: Callable[[str], None]) -> None:
    """Run a worker of a group until `stopping` is set. Raises ConnectError where it cannot start or go on."""
    _warn_of_spark(config)
    async with distributed(config, _now_ms) as (herder, url):
        await _ready(herder)
        on_ready(url)
        await stopping.wait()


def _warn_of_spark(config: WorkerConfig) -> None:
    """Name the keys that told earlier versions how to run tasks on Spark."""
    without_effect = [key for key in config.given if key == "tasks.engine" or key.startswith("spark.")]
    if without_effect:
        _log.warning("%s have no effect: tasks run in the worker's own process.", ", ".join(without_effect))


async def _ready(herder: Herder) -> None:
    while not herder.is_ready:  # noqa: ASYNC110 - a herder says nothing when it is
        await asyncio.sleep(_READY_POLL_S)


def _now_ms() -> int:
    return time.time_ns() // 1_000_000
