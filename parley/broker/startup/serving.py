"""Last phase of a start: make the request handlers and the listeners, export the metrics, accept connections."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import TYPE_CHECKING

from parley.broker.network.dispatch import Dispatcher
from parley.broker.network.listener import Listener
from parley.broker.startup.binding import Bound
from parley.broker.startup.composition import Parts
from parley.broker.startup.environment import Environment
from parley.broker.startup.observation import Observed, watch
from parley.broker.startup.routes import routes

if TYPE_CHECKING:
    from parley.broker.metrics.exporter import Exporter

STOP_GRACE_S = 5.0
"""How long a stop waits for requests in progress, and for clients to read their responses."""


@dataclass(frozen=True, slots=True)
class Serving:
    """The network side of a broker."""

    dispatcher: Dispatcher
    listeners: tuple[Listener, ...]
    exporter: Exporter | None
    """Serves ``metrics.listener``; None if that is not set."""


async def serve(environment: Environment, bound: Bound, parts: Parts) -> Serving:
    """Accept connections. Raises OSError if ``metrics.listener`` or a listener cannot be opened."""
    dispatcher = Dispatcher(routes(environment, parts), monotonic=environment.clock.monotonic)
    listeners = tuple(
        Listener(
            name,
            dispatcher,
            limits=parts.connection_quotas.limits,
            load=parts.load,
            quotas=parts.connection_quotas,
            tasks=environment.tasks,
            monotonic=environment.clock.monotonic,
        )
        for name in bound.sockets
    )
    watch(
        environment.metrics,
        Observed(
            broker_id=parts.identity.broker_id,
            requests=dispatcher.routes,
            listeners=listeners,
            load=parts.load,
            purgatories=parts.purgatories,
            sessions=parts.sessions,
            partitions=parts.partitions,
            isr_changes=parts.isr.changes,
            fetchers=parts.fetchers,
            metadata=parts.metadata,
            logs=parts.logs,
            groups=parts.groups,
        ),
    )
    environment.health.starting("opening metrics.listener")
    serving = Serving(dispatcher, listeners, _export_metrics(environment))

    async def close() -> None:
        await close_listeners(parts, serving)

    environment.undo.push_async_callback(close)
    environment.health.starting("accepting connections")
    for listener, sock in zip(listeners, bound.sockets.values(), strict=True):
        await listener.start(sock, backlog=environment.config.socket_listen_backlog_size)
    return serving


def _export_metrics(environment: Environment) -> Exporter | None:
    address = environment.config.metrics_address
    if address is None:
        return None
    from parley.broker.metrics.exporter import Exporter  # imports prometheus_client, which is slow

    loop = asyncio.get_running_loop()
    host, port = address
    exporter = Exporter(
        environment.metrics, environment.health, loop=loop, clock=environment.clock, host=host, port=port
    )
    environment.undo.push_async_callback(loop.run_in_executor, None, exporter.close)
    return exporter


async def close_listeners(parts: Parts, serving: Serving) -> None:
    """Complete every waiting request, send the responses, and close the connections."""
    for listener in serving.listeners:
        listener.stop_accepting()
    parts.purgatories.produce.expire_all()
    parts.purgatories.fetch.expire_all()
    parts.groups.resign_all()
    await asyncio.gather(*(listener.close(STOP_GRACE_S) for listener in serving.listeners))
