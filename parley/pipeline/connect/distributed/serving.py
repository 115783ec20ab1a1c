"""Runs a worker as a process: its herder and its REST API, until it is stopped."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from typing import Final

from parley.pipeline.client.cluster import Connection
from parley.pipeline.connect.distributed.configs import ConfigStore
from parley.pipeline.connect.distributed.herder import Herder, HerderSettings
from parley.pipeline.connect.distributed.leader_writes import TransactionalWrites, leader_id
from parley.pipeline.connect.distributed.log import Log, MemoryLog, TopicLog
from parley.pipeline.connect.distributed.membership import Alone, Group, Membership
from parley.pipeline.connect.distributed.offset_topic import TopicOffsetStore
from parley.pipeline.connect.distributed.settings import (
    config_topic,
    group_settings,
    has_transactional_leader,
    offset_topic,
    signing_rules,
    status_topic,
)
from parley.pipeline.connect.distributed.signing import DEFAULT_RULES, SigningRules
from parley.pipeline.connect.distributed.statuses import StatusStore
from parley.pipeline.connect.errors import ConnectError
from parley.pipeline.connect.offset_stores import FileOffsetStore, OffsetStore
from parley.pipeline.connect.plugins import Plugins
from parley.pipeline.connect.rest.app import application
from parley.pipeline.connect.rest.endpoints import ADMIN
from parley.pipeline.connect.rest.forwarding import Forwarder
from parley.pipeline.connect.rest.settings import RestSettings
from parley.pipeline.connect.worker import Worker
from parley.pipeline.connect.worker_config import WorkerConfig
from parley.pipeline.service.server import RestServer
from parley.protocol.client import Client
from parley.protocol.errors import KafkaError

_STOP_EXTRA_MS: Final = 5_000
"""How long a connector may take to stop, in addition to its tasks' time."""
_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class _Parts:
    """The parts in which distributed and standalone workers differ."""

    configs: ConfigStore
    statuses: Log
    offsets: OffsetStore
    membership: Membership
    group_id: str = ""
    signatures: SigningRules = DEFAULT_RULES


@asynccontextmanager
async def distributed(config: WorkerConfig, now_ms: Callable[[], int]) -> AsyncIterator[tuple[Herder, str]]:
    """Run a worker of a group. Yields its herder, and the advertised URL of its REST API.

    Raises ConnectError if it cannot start. If the worker cannot continue, the body of ``with`` is cancelled, and the
    worker's error is raised.
    """
    client_id = config["client.id"] or f"connect-{config['group.id']}"
    security = config.security.read()

    def topic(plan_of: Callable[[WorkerConfig], object]) -> TopicLog:
        return TopicLog(config.bootstrap, plan_of(config), client_id=client_id, security=security, now_ms=now_ms)  # type: ignore[arg-type]

    def own_offsets(connection: Connection, name: str) -> TopicLog:
        plan = replace(offset_topic(config), name=name, key="offsets.storage.topic")
        return TopicLog(
            connection.bootstrap, plan, client_id=client_id, security=connection.security.read(), now_ms=now_ms
        )

    group = Group(config.bootstrap, group_settings(config), client_id=client_id, security=security)
    leader_writes: TransactionalWrites | None = None
    if has_transactional_leader(config):
        leader_writes = TransactionalWrites(
            Connection(bootstrap=config.bootstrap, client_id=client_id, security=config.security),
            config_topic(config).name,
            leader_id(config["group.id"]),
            on_lost=group.rejoin,
        )
    parts = _Parts(
        ConfigStore(topic(config_topic), leader_writes),
        topic(status_topic),
        TopicOffsetStore(topic(offset_topic), asyncio.get_running_loop(), own_offsets),
        group,
        config["group.id"],
        signing_rules(config),
    )
    async with _serving(config, parts, now_ms) as serving:
        yield serving


@asynccontextmanager
async def standalone(config: WorkerConfig, now_ms: Callable[[], int]) -> AsyncIterator[tuple[Herder, str]]:
    """Run a standalone worker, which keeps offsets in a file and everything else in memory.

    Yields and raises the same as ``distributed``.
    """
    offsets = FileOffsetStore(config["offset.storage.file.filename"])
    parts = _Parts(ConfigStore(MemoryLog()), MemoryLog(), offsets, Alone())
    async with _serving(config, parts, now_ms) as serving:
        yield serving


@asynccontextmanager
async def _serving(config: WorkerConfig, parts: _Parts, now_ms: Callable[[], int]) -> AsyncIterator[tuple[Herder, str]]:
    rest = RestSettings.of(config)
    plugins = Plugins(config["plugin.path"])
    cluster_id = await _cluster_id(config)
    async with RestServer(rest.listeners, rest.tls) as server, RestServer(rest.admin, rest.admin_tls) as admin:
        url = rest.advertised_url(server.addresses)
        herder = Herder(
            _settings(config, url, cluster_id, parts, rest),
            lambda events: Worker(config, plugins, parts.offsets, events),
            plugins,
            parts.configs,
            StatusStore(parts.statuses),
            parts.membership,
            now_ms=now_ms,
        )
        forwarder = Forwarder(tls=rest.client_tls)
        server.serve(application(herder, forwarder, rest.routers, login=rest.login, cors=rest.cors))
        admin.serve(application(herder, forwarder, [ADMIN], login=rest.login, cors=rest.cors))
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
    """Cancel the body of ``with`` if the task ends by itself, and raise the task's error instead."""
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


def _settings(config: WorkerConfig, url: str, cluster_id: str, parts: _Parts, rest: RestSettings) -> HerderSettings:
    tracking = config["topic.tracking.enable"], config["topic.tracking.allow.reset"]
    alone = HerderSettings(
        url,
        cluster_id,
        stop_timeout_ms=config["task.shutdown.graceful.timeout.ms"] + _STOP_EXTRA_MS,
        signatures=parts.signatures,
        requires_signatures=rest.login is not None,
        tls=rest.client_tls,
        tracks_topics=tracking[0],
        allows_topic_reset=tracking[1],
    )
    if not parts.group_id:
        return alone
    return replace(
        alone,
        group_id=parts.group_id,
        max_delay_ms=config["scheduled.rebalance.max.delay.ms"],
        sync_timeout_ms=config["worker.sync.timeout.ms"],
    )


async def _cluster_id(config: WorkerConfig) -> str:
    """Return the id of the cluster. Raises ConnectError if no broker responds."""
    try:
        async with Client(config.bootstrap, security=config.security.read()) as client:
            return (await client.metadata([])).cluster_id or ""
    except KafkaError as error:
        raise ConnectError(f"bootstrap.servers={config.bootstrap}: {error}. Are the brokers running?") from error
