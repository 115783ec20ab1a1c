"""A worker as a process: its herder and its REST API, from a configuration, until it is told to stop."""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from typing import Final

from parley.pipeline.connect.distributed.configs import ConfigStore
from parley.pipeline.connect.distributed.herder import HerderSettings, WorkerHerder
from parley.pipeline.connect.distributed.log import Log, MemoryLog, TopicLog
from parley.pipeline.connect.distributed.membership import Alone, Group, Membership
from parley.pipeline.connect.distributed.offsets import TopicOffsetStore
from parley.pipeline.connect.distributed.settings import config_topic, group_settings, offset_topic, status_topic
from parley.pipeline.connect.distributed.statuses import StatusStore
from parley.pipeline.connect.errors import ConnectError
from parley.pipeline.connect.herder import Herder
from parley.pipeline.connect.offsets import FileOffsetStore, OffsetStore
from parley.pipeline.connect.placement import FENCE_S
from parley.pipeline.connect.plugins import Plugins
from parley.pipeline.connect.rest.app import application
from parley.pipeline.connect.rest.forwarding import Forwarder
from parley.pipeline.connect.rest.server import Listener, RestServer, parse_listeners
from parley.pipeline.connect.tasks.peer import SILENCE_S
from parley.pipeline.connect.worker import Worker, WorkerEvents
from parley.pipeline.connect.worker_config import WorkerConfig
from parley.protocol.client import Client
from parley.protocol.errors import KafkaError

__all__ = ["MakeWorker", "distributed", "standalone"]

_STOP_EXTRA_MS: Final = 5_000
"""How long a connector may take to stop besides what its tasks may."""
_LOST_HOST_MS: Final = int((SILENCE_S + FENCE_S) * 1000)
"""Until when nothing can run any longer in a host of tasks that does not answer
(:mod:`parley.pipeline.connect.spark`); less
than ``rebalance.timeout.ms`` by default, since a group may have to wait for it before others take the tasks over."""

MakeWorker = Callable[[WorkerConfig, Plugins, OffsetStore, WorkerEvents], Worker]
_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class _Parts:
    """What distributed and standalone workers differ in."""

    configs: Log
    statuses: Log
    offsets: OffsetStore
    membership: Membership
    group_id: str = ""


@asynccontextmanager
async def distributed(
    config: WorkerConfig, make_worker: MakeWorker, now_ms: Callable[[], int]
) -> AsyncIterator[tuple[Herder, str]]:
    """A worker of a group: its herder, and the URL of its REST API, which others are told.

    Raises ConnectError where it cannot start; a worker that cannot go on cancels whoever is inside, and raises then.
    """
    client_id = config["client.id"] or f"connect-{config['group.id']}"

    def topic(plan_of: Callable[[WorkerConfig], object]) -> TopicLog:
        return TopicLog(config.bootstrap, plan_of(config), client_id=client_id, now_ms=now_ms)  # type: ignore[arg-type]

    parts = _Parts(
        topic(config_topic),
        topic(status_topic),
        TopicOffsetStore(topic(offset_topic), asyncio.get_running_loop()),
        Group(config.bootstrap, group_settings(config), client_id=client_id),
        config["group.id"],
    )
    async with _serving(config, parts, make_worker, now_ms) as serving:
        yield serving


@asynccontextmanager
async def standalone(
    config: WorkerConfig, make_worker: MakeWorker, now_ms: Callable[[], int]
) -> AsyncIterator[tuple[Herder, str]]:
    """As `distributed`, for a worker that is alone: offsets are kept in a file, all else in memory."""
    offsets = FileOffsetStore(config["offset.storage.file.filename"])
    parts = _Parts(MemoryLog(), MemoryLog(), offsets, Alone())
    async with _serving(config, parts, make_worker, now_ms) as serving:
        yield serving


@asynccontextmanager
async def _serving(
    config: WorkerConfig, parts: _Parts, make_worker: MakeWorker, now_ms: Callable[[], int]
) -> AsyncIterator[tuple[Herder, str]]:
    plugins = Plugins(config["plugin.path"])
    cluster_id = await _cluster_id(config)
    async with RestServer(parse_listeners(",".join(config["listeners"]))) as server:
        url = _advertised(config, server.addresses[0])
        herder = WorkerHerder(
            _settings(config, url, cluster_id, parts.group_id),
            lambda events: make_worker(config, plugins, parts.offsets, events),
            plugins,
            ConfigStore(parts.configs),
            StatusStore(parts.statuses),
            parts.membership,
            now_ms=now_ms,
        )
        forwarder = Forwarder()
        server.serve(
            application(
                herder,
                forwarder,
                allow_origin=config["access.control.allow.origin"],
                allow_methods=config["access.control.allow.methods"],
            )
        )
        running = asyncio.create_task(herder.run())
        try:
            async with _cancelled_with(running):
                yield herder, url
        finally:
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)
            await forwarder.close()


@asynccontextmanager
async def _cancelled_with(running: asyncio.Task[None]) -> AsyncIterator[None]:
    """Whoever is inside is cancelled when the task ends by itself, and gets its error."""
    inside = asyncio.current_task()
    assert inside is not None
    ended = False

    def end(_: object) -> None:
        nonlocal ended
        ended = True
        inside.cancel()

    running.add_done_callback(end)
    try:
        yield
    except asyncio.CancelledError:
        if ended and not running.cancelled() and (error := running.exception()) is not None:
            inside.uncancel()
            raise error from None
        raise
    finally:
        running.remove_done_callback(end)


def _settings(config: WorkerConfig, url: str, cluster_id: str, group_id: str) -> HerderSettings:
    lost_host_ms = 0 if config["tasks.engine"] == "threads" else _LOST_HOST_MS
    tracking = config["topic.tracking.enable"], config["topic.tracking.allow.reset"]
    alone = HerderSettings(
        url,
        cluster_id,
        stop_timeout_ms=config["task.shutdown.graceful.timeout.ms"] + _STOP_EXTRA_MS + lost_host_ms,
        tracks_topics=tracking[0],
        allows_topic_reset=tracking[1],
    )
    if not group_id:
        return alone
    return replace(
        alone,
        group_id=group_id,
        max_delay_ms=config["scheduled.rebalance.max.delay.ms"],
        sync_timeout_ms=config["worker.sync.timeout.ms"],
        key_ttl_ms=config["inter.worker.key.ttl.ms"],
    )


def _advertised(config: WorkerConfig, listener: Listener) -> str:
    """The URL that others are told: the advertised host and port, else where it listens."""
    host = config["rest.advertised.host.name"] or listener.host
    if host in ("", "0.0.0.0", "::"):
        host = socket.getfqdn()
    port = config["rest.advertised.port"] or listener.port
    return f"http://[{host}]:{port}/" if ":" in host else f"http://{host}:{port}/"


async def _cluster_id(config: WorkerConfig) -> str:
    """The id of the cluster. Raises ConnectError where none of the brokers answers."""
    try:
        async with Client(config.bootstrap) as client:
            return (await client.metadata([])).cluster_id or ""
    except KafkaError as error:
        raise ConnectError(f"bootstrap.servers={config.bootstrap}: {error}. Are the brokers running?") from error
