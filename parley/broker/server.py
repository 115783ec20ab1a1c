"""One broker: its startup, phase by phase, its shutdown, and a simulated kill.

``parley.broker.startup`` contains the phases and the parts that each of them creates. Every step that must be undone is
registered when it is done. ``stop`` undoes these steps in reverse order, even if startup was not complete.
"""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Callable
from contextlib import AsyncExitStack
from random import Random, SystemRandom

from parley.broker.config import BrokerConfig
from parley.broker.membership.identity import Identity
from parley.broker.metadata.current import Metadata
from parley.broker.metadata.types import Endpoint
from parley.broker.metrics.health import Health, State
from parley.broker.metrics.registry import Metrics
from parley.broker.network.listener import bind
from parley.broker.runtime.clock import SYSTEM_CLOCK, Clock
from parley.broker.runtime.exhaustion_watch import ExhaustionWatch
from parley.broker.runtime.tasks import TaskSet
from parley.broker.runtime.threads import Threads
from parley.broker.startup.background_tasks import start_background_tasks, watch_for_exhaustion
from parley.broker.startup.binding import bind_listeners
from parley.broker.startup.cluster_joining import adopt_topics, join_cluster
from parley.broker.startup.composition import Parts, compose
from parley.broker.startup.credentials import read_broker_listeners, read_credentials
from parley.broker.startup.environment import Environment
from parley.broker.startup.logs import open_logs
from parley.broker.startup.serving import Serving, accept, serve
from parley.broker.startup.store import join_store
from parley.protocol.errors import KafkaError

_log = logging.getLogger(__name__)


class BrokerServer:
    """One broker. ``start`` it, use it, ``stop`` it. It cannot be started again."""

    def __init__(
        self,
        config: BrokerConfig,
        *,
        clock: Clock = SYSTEM_CLOCK,
        rng: Random | None = None,
        bind: Callable[..., socket.socket] = bind,
        owns_process: bool = False,
    ) -> None:
        """``bind`` creates the sockets to listen on, as ``parley.broker.network.listener.bind`` does. With
        ``owns_process``, the broker guards against running out of file descriptors and memory
        (``parley.broker.runtime.exhaustion_watch``)."""
        self.environment = Environment(
            config=config,
            clock=clock,
            rng=rng or SystemRandom(),
            bind=bind,
            metrics=Metrics(),
            health=Health(),
            owns_process=owns_process,
            failed=asyncio.Event(),
            threads=Threads.made(config.num_recovery_threads_per_data_dir * len(config.data_dirs)),
            tasks=TaskSet(),
            maintenance=TaskSet(),
            membership=TaskSet(),
            undo=AsyncExitStack(),
        )
        self.endpoints: tuple[Endpoint, ...] = ()
        """The addresses that clients connect to, one per listener; empty before the sockets are bound."""
        self.failed_step = ""
        """The step in which startup failed, or an empty string."""
        self._parts: Parts | None = None
        self._serving: Serving | None = None
        self._exhaustion: ExhaustionWatch | None = None
        self._stopped = False

    # --- The interface of a running broker ---

    @property
    def bootstrap_servers(self) -> str:
        """``host:port`` of the first listener, for the configuration of clients. Raises IndexError before the sockets
        are bound."""
        first = self.endpoints[0]
        return f"[{first.host}]:{first.port}" if ":" in first.host else f"{first.host}:{first.port}"

    @property
    def identity(self) -> Identity:
        """The broker id and the cluster id. Raises RuntimeError before startup has determined them."""
        return self.parts.identity

    @property
    def metadata(self) -> Metadata:
        """The cluster metadata as this broker knows it. Raises RuntimeError before startup has created it."""
        return self.parts.metadata

    @property
    def health(self) -> Health:
        """The health that ``/healthz`` reports."""
        return self.environment.health

    @property
    def failed(self) -> asyncio.Event:
        """Set when the broker cannot continue and should be stopped, for example after its last log directory has
        failed."""
        return self.environment.failed

    @property
    def starved(self) -> str:
        """The reason why the broker must end if its process has run out of file descriptors or memory; otherwise an
        empty string."""
        return "" if self._exhaustion is None else self._exhaustion.reason

    @property
    def exhaustion_checks(self) -> int | None:
        """The number of checks for shortages so far; None before the checks begin."""
        return None if self._exhaustion is None else self._exhaustion.beats

    @property
    def parts(self) -> Parts:
        """The parts of the broker. Raises RuntimeError before startup has created them."""
        if self._parts is None:
            raise RuntimeError("the broker has no parts yet: wait until start() has returned")
        return self._parts

    @property
    def serving(self) -> Serving:
        """The network side of the broker. Raises RuntimeError before startup has created it."""
        if self._serving is None:
            raise RuntimeError("the broker does not serve yet: wait until start() has returned")
        return self._serving

    # --- Start and stop ---

    async def start(self) -> None:
        """Start the broker. It serves clients when this method returns.

        If startup fails, everything is undone, and ``failed_step`` and a note on the error name the failed step. Raises
        OSError (an address or a disk), ConfigError (a setting that cannot be used), CoordinationError (the store),
        DuplicateBrokerId if another live broker uses this id, and the errors of ``parley.broker.membership.identity``
        and ``parley.storage`` for data directories that belong to another broker.
        """
        try:
            await self._start()
        except BaseException as error:
            self.failed_step = self.health.step
            error.add_note(f"The broker did not start: it was {self.failed_step}.")
            await self.stop()
            raise
        self.health.ready()
        self.environment.metrics.process.start_time_seconds = self.environment.clock.wall_ms() / 1000
        facts = {
            "cluster": self.identity.cluster_id,
            "broker": self.identity.broker_id,
            "listeners": ",".join(map(_address, self.endpoints)),
        }
        exporter, metrics = self.serving.exporter, self.environment.config.metrics_address
        if exporter is not None and metrics is not None:
            facts["metrics"] = f"{metrics[0]}:{exporter.port}"  # which may be any free port
            exporter.prepare()
        _log.info("broker started", extra=facts)

    async def _start(self) -> None:
        environment = self.environment
        for warning in environment.config.warnings:
            _log.warning("a setting is not used as it is written", extra={"warning": warning})
        environment.undo.push_async_callback(environment.threads.close)
        bound = await bind_listeners(environment)
        self.endpoints = bound.endpoints
        joined = await join_store(environment)
        opened = await open_logs(environment, joined)
        self._parts = parts = compose(environment, bound, joined, opened)
        await read_credentials(environment, parts)
        await read_broker_listeners(environment, parts)
        listening = await accept(environment, bound, parts)
        await join_cluster(environment, parts)
        start_background_tasks(environment, parts)
        if joined.identity.is_new:
            await adopt_topics(environment, parts)
        self.health.starting("opening its partitions")
        await parts.partitions.until_opened()
        await parts.logs.strays.set_all_aside(parts.partitions.wants)
        self._serving = await serve(environment, parts, listening, bound.endpoints)
        if environment.owns_process:
            self._exhaustion = watch_for_exhaustion(environment, parts)

    async def stop(self) -> None:
        """Stop the broker: hand over leadership, complete the requests in progress, close the logs. Idempotent."""
        if self._stopped:
            return
        self._stopped = True
        was_ready = self.health.state is State.READY
        self.health.stopping()
        if was_ready:
            await self._hand_over()
        await self.environment.membership.close()
        await self.environment.undo.aclose()
        if was_ready:
            _log.info("broker stopped", extra={"broker": self.identity.broker_id})

    async def _hand_over(self) -> None:
        """Controlled shutdown: have the controller move the leadership of this broker's partitions to other brokers."""
        config = self.parts.config()
        if config.controlled_shutdown_enable:
            try:
                await self.parts.lifecycle.leave(
                    retries=config.controlled_shutdown_max_retries,
                    pause_s=config.controlled_shutdown_retry_backoff_ms / 1000,
                )
            except KafkaError as error:
                _log.warning("controlled shutdown failed: the broker stops without it", extra={"reason": str(error)})

    async def give_up(self) -> None:
        """Hand over leadership, then end like a killed process, because the data in memory can no longer be trusted.

        The next start recovers the logs. Idempotent. Raises RuntimeError if the broker was not started.
        """
        if not self._stopped:
            self.health.stopping()
            await self._hand_over()
            await self.kill()

    async def kill(self) -> None:
        """End like a killed process: send no response, flush nothing, release nothing, notify no other broker.

        The next start finds the written data, because the operating system keeps it for a killed process. This is for
        embedded brokers, and for ``give_up``. Raises RuntimeError if the broker was not started.
        """
        if self._stopped:
            return
        environment, parts, serving = self.environment, self.parts, self.serving
        self._stopped = True
        if self.health.state is not State.STOPPING:
            self.health.stopping()
        environment.undo.pop_all()
        for listener in serving.listeners:
            listener.stop_accepting()
        await parts.store_move.abandon()
        await asyncio.gather(*(listener.close(0) for listener in serving.listeners))
        for runtime in (parts.groups.runtime, parts.transactions.runtime, parts.share_state.runtime):
            runtime.resign_all()  # their timers would append to closed logs
        for tasks in (environment.tasks, environment.membership):
            await tasks.close()
        await parts.peers.close()
        await parts.logs.abandon()
        await environment.maintenance.close()
        await environment.threads.close()
        if serving.console is not None:
            await asyncio.get_running_loop().run_in_executor(None, serving.console.close)
        if serving.exporter is not None:
            await asyncio.get_running_loop().run_in_executor(None, serving.exporter.close)


def _address(endpoint: Endpoint) -> str:
    return f"{endpoint.listener}://{endpoint.host}:{endpoint.port}"
