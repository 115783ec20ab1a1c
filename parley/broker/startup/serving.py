"""Two phases of startup: one creates the request handlers and accepts connections, and a later one serves clients.

The controller asks a broker about its logs before it registers the broker. A broker therefore accepts connections
before it is registered, but until then all requests wait except those in ``SERVED_FIRST``.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from functools import partial
from typing import TYPE_CHECKING

from parley.broker.api.division_table import divisions
from parley.broker.metadata.types import Endpoint
from parley.broker.metrics.broker_metrics import Observed, watch
from parley.broker.metrics.log_directory_space import LogDirectorySpace
from parley.broker.network.dispatch import Dispatcher
from parley.broker.network.handshakes import Handshakes
from parley.broker.network.listener import Listener
from parley.broker.replication.rolling_restart import needed, out_of_sync
from parley.broker.security.listener_security import ListenerSecurity
from parley.broker.security.reload import SecurityReload
from parley.broker.startup.binding import Bound
from parley.broker.startup.composition import Parts
from parley.broker.startup.environment import Environment
from parley.broker.startup.routes import routes
from parley.light_dataclasses import dataclass
from parley.protocol.messages.api_versions import ApiVersionsRequest
from parley.protocol.messages.replication import GetReplicaLogInfoRequest
from parley.protocol.messages.sasl import SaslAuthenticateRequest, SaslHandshakeRequest

if TYPE_CHECKING:
    from parley.broker.metrics.exporter import Exporter
    from parley.broker.startup.console_process import ConsoleProcess

STOP_GRACE_S = 5.0
"""How long, in seconds, a stopping broker waits for requests in progress, and for clients to read their responses."""


SERVED_FIRST = (
    ApiVersionsRequest.API_KEY,
    SaslHandshakeRequest.API_KEY,
    SaslAuthenticateRequest.API_KEY,
    GetReplicaLogInfoRequest.API_KEY,
)
"""The APIs that a broker serves before it is registered."""


@dataclass(frozen=True, slots=True)
class Listening:
    """The network side of a broker that accepts connections but does not serve clients yet."""

    dispatcher: Dispatcher
    listeners: tuple[Listener, ...]


@dataclass(frozen=True, slots=True)
class Serving:
    """The network side of a broker that serves clients."""

    dispatcher: Dispatcher
    listeners: tuple[Listener, ...]
    exporter: Exporter | None
    """Serves ``metrics.listener``; None if the key is not set."""
    console: ConsoleProcess | None = None
    """The process of ``console.listener``; None if the key is not set."""


async def accept(environment: Environment, bound: Bound, parts: Parts) -> Listening:
    """Accept connections. All requests wait, except those of the APIs in ``SERVED_FIRST``.

    Raises OSError if a listener cannot be opened, and ConfigError if its security settings are unusable.
    """
    environment.health.starting("accepting connections")
    security = await _security(environment, parts)
    for each in security.values():
        environment.undo.callback(each.close)
    handlers = routes(environment, parts, tuple(security.values()))
    dispatcher = Dispatcher(
        handlers,
        monotonic=environment.clock.monotonic,
        throttling=parts.quotas,
        threads=environment.threads,
        divisions=divisions(parts.config, parts.metadata, parts.authorization),
        is_broker=parts.authorization.is_broker,
    )
    dispatcher.serve_only(SERVED_FIRST)
    reload = SecurityReload(tuple(security.values()), parts.config, environment.threads.upkeep)
    environment.tasks.start(reload.run(), name="reload of listeners' security")
    handshakes = Handshakes(environment.threads.handshakes)
    listeners = tuple(
        Listener(
            name,
            dispatcher,
            limits=parts.connection_quotas.limits,
            load=parts.load,
            quotas=parts.connection_quotas,
            tasks=environment.tasks,
            monotonic=environment.clock.monotonic,
            security=security[name],
            handshakes=handshakes,
            is_broker=parts.authorization.is_broker,
        )
        for name in bound.sockets
    )
    for listener, sock in zip(listeners, bound.sockets.values(), strict=True):
        environment.undo.push_async_callback(listener.close, 0)
        await listener.start(
            sock,
            backlog=environment.config.socket_listen_backlog_size,
            open_shared=bound.open_shared.get(listener.name),
        )
    return Listening(dispatcher, listeners)


async def _security(environment: Environment, parts: Parts) -> dict[str, ListenerSecurity]:
    """Read the security settings of each listener. Raises ConfigError if they are unusable."""
    config, wall_ms = environment.config, environment.clock.wall_ms

    def read() -> dict[str, ListenerSecurity]:
        return {each.name: ListenerSecurity(each, config, parts.credentials, wall_ms) for each in config.bound}

    return await asyncio.get_running_loop().run_in_executor(environment.threads.upkeep, read)


async def serve(environment: Environment, parts: Parts, listening: Listening, endpoints: Iterable[Endpoint]) -> Serving:
    """Export the metrics, release the waiting requests, and start the console.

    Raises OSError or ConfigError if ``metrics.listener`` cannot be opened, and ConfigError if the console cannot run.
    """
    watch(
        environment.metrics,
        Observed(
            broker_id=parts.identity.broker_id,
            requests=listening.dispatcher.routes,
            listeners=listening.listeners,
            load=parts.load,
            purgatories=parts.purgatories,
            sessions=parts.sessions,
            partitions=parts.partitions,
            isr_changes=parts.isr.changes,
            fetchers=parts.fetchers,
            metadata=parts.metadata,
            recovery=parts.recovery,
            logs=parts.logs,
            groups=parts.groups,
            runtimes=(parts.groups.runtime, parts.transactions.runtime, parts.share_state.runtime),
            transactions=parts.transactions,
            healing=parts.healing,
            scrubber=parts.scrubber,
            verifications=parts.verifications,
            config=parts.config,
            wall_ms=environment.clock.wall_ms,
            log_cleaner=parts.log_cleaner,
            authorization=parts.authorization,
            quotas=parts.quotas,
            share_partitions=parts.share_partitions,
            share_state=parts.share_state,
            lifecycle=parts.lifecycle,
            connection_quotas=parts.connection_quotas,
            store_counts=parts.store_counts,
            space=await _measured_space(environment, parts),
        ),
    )
    console = _console(environment, endpoints)
    environment.health.starting("opening metrics.listener")
    exporter = await _export_metrics(environment, parts)
    serving = Serving(listening.dispatcher, listening.listeners, exporter, console)

    async def close() -> None:
        await close_listeners(parts, serving)

    environment.undo.push_async_callback(close)
    serving.dispatcher.serve_all()
    for listener in serving.listeners:
        listener.proceed()
    if console is not None:
        environment.undo.push_async_callback(asyncio.get_running_loop().run_in_executor, None, console.close)
        console.start()
    return serving


def _console(environment: Environment, endpoints: Iterable[Endpoint]) -> ConsoleProcess | None:
    """Return the process of ``console.listener``, not started yet. Raises ConfigError if the console cannot run."""
    if not environment.config.console_listener:
        return None
    from parley.broker.startup.console_process import ConsoleProcess, console_settings

    return ConsoleProcess(console_settings(environment.config, endpoints), environment.clock.monotonic)


async def _measured_space(environment: Environment, parts: Parts) -> LogDirectorySpace:
    """Return the space of the log directories. It is measured only if ``metrics.listener`` is set."""
    space = LogDirectorySpace(environment.threads.upkeep)
    if environment.config.metrics_address is not None:
        await space.measure(directory.path for directory in parts.logs.directories)
    return space


async def _export_metrics(environment: Environment, parts: Parts) -> Exporter | None:
    """Serve ``metrics.listener``. Raises OSError or ConfigError if it cannot be opened."""
    address = environment.config.metrics_address
    if address is None:
        return None
    from parley.broker.metrics.access import MetricsAccess
    from parley.broker.metrics.exporter import Exporter

    loop = asyncio.get_running_loop()
    access = await loop.run_in_executor(environment.threads.upkeep, MetricsAccess, parts.config)
    host, port = address
    exporter = Exporter(
        environment.metrics,
        environment.health,
        loop=loop,
        clock=environment.clock,
        host=host,
        port=port,
        access=access,
        out_of_sync=partial(out_of_sync, parts.partitions, parts.identity.broker_id),
        needed=partial(needed, parts.partitions, parts.identity.broker_id),
    )
    environment.undo.push_async_callback(loop.run_in_executor, None, exporter.close)
    return exporter


async def close_listeners(parts: Parts, serving: Serving) -> None:
    """Complete every waiting request, stop all coordinators, send the responses, and close the connections."""
    for listener in serving.listeners:
        listener.stop_accepting()
    parts.purgatories.produce.expire_all()
    parts.purgatories.fetch.expire_all()
    parts.share_partitions.waiting.expire_all()
    parts.groups.runtime.resign_all()
    parts.transactions.runtime.resign_all()
    parts.share_state.runtime.resign_all()
    await asyncio.gather(*(listener.close(STOP_GRACE_S) for listener in serving.listeners))
