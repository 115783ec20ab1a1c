"""A simulated world: machines, network, disks, store and clients, determined by a seed."""

from __future__ import annotations

import asyncio
import gc
import shutil
import tempfile
from collections.abc import Awaitable, Callable, Mapping
from contextlib import ExitStack
from pathlib import Path
from random import Random
from types import TracebackType
from typing import Any, Self, TypeVar

from parley.tools.simulation.disk import Disks
from parley.tools.simulation.event_history import History, LogCapture
from parley.tools.simulation.links import Links, Weather
from parley.tools.simulation.machines import Machine, SharedStore
from parley.tools.simulation.network import Network
from parley.tools.simulation.processes import Process
from parley.tools.simulation.virtual_time_loop import SimulatedLoop, run

T = TypeVar("T")

MEMORY_FOLDER = Path("/dev/shm")
"""The folder of the simulated disks, if it exists: a fast file system."""

PROPERTIES: Mapping[str, str] = {
    "coordination.session.timeout.ms": "6000",
    "default.replication.factor": "3",
    "min.insync.replicas": "2",
    "num.partitions": "2",
    "offsets.topic.num.partitions": "2",
    "offsets.topic.replication.factor": "3",
    "transaction.state.log.num.partitions": "2",
    "share.coordinator.state.topic.num.partitions": "2",
    "auto.create.topics.enable": "false",
    "replica.lag.time.max.ms": "3000",
    "replica.fetch.wait.max.ms": "200",
    "replica.fetch.backoff.ms": "100",
    "replica.socket.timeout.ms": "3000",
    "log.index.interval.bytes": "128",
    "log.index.size.max.bytes": "256",
    "log.flush.offset.checkpoint.interval.ms": "2000",
    "log.flush.start.offset.checkpoint.interval.ms": "2000",
    "replica.high.watermark.checkpoint.interval.ms": "500",
    "log.retention.check.interval.ms": "5000",
    "log.retention.ms": "-1",
    "log.cleaner.backoff.ms": "500",
    "log.cleaner.dedupe.buffer.size": "2000000",
    "controlled.shutdown.enable": "true",
}
"""The configuration of every simulated broker. Its timeouts are short and its segments small, so that much happens in a
minute."""


class World:
    """A simulated world. A context manager: enter it, then call ``run``. Exiting deletes everything."""

    def __init__(self, seed: str, *, properties: Mapping[str, str] | None = None) -> None:
        self.seed = seed
        self.rng = self.random("world")
        timing = self.random("executor")
        self.loop = SimulatedLoop(executor_delay=lambda: timing.uniform(0.0, 0.003))
        self.history = History(self.loop.time)
        self.links = Links(self.loop, self.random("network"), Weather.drawn(self.random("weather")))
        self.links.on_arrival = self.history.trace
        self.network = self.loop.sockets = Network(self.links)
        self.machines: dict[int, Machine] = {}
        self.failures: list[str] = []
        """Tracebacks and unhandled errors of any process."""
        self.loop.on_error = self._on_error
        store_timing = self.random("store latency")
        self.store = SharedStore(self.random("store"), lambda: store_timing.uniform(0.0002, 0.01))
        self._url = f"memory://simulation-{id(self)}"
        self.store.known_as(self._url.removeprefix("memory://"))
        self.directories: tuple[str, ...] = ("",)
        """The names of the log directories on each disk; "" is the disk itself."""
        self.properties = {**PROPERTIES, **(properties or {}), "coordination.url": self._url}
        self._exit = ExitStack()
        self._clients: list[Process] = []

    def random(self, purpose: str) -> Random:
        """Return a random generator for one purpose, so that additional draws for one purpose do not affect
        the others."""
        return Random(f"{self.seed}/{purpose}")

    def __enter__(self) -> Self:
        base = MEMORY_FOLDER if MEMORY_FOLDER.is_dir() else None
        folder = Path(tempfile.mkdtemp(prefix="parley-simulation-", dir=base)).resolve()
        self._exit.callback(shutil.rmtree, folder, ignore_errors=True)
        self._disks = self._exit.enter_context(Disks(folder))
        self._exit.enter_context(LogCapture(self.history, str(folder), self.failures.append))
        if gc.isenabled():
            gc.disable()  # otherwise objects would be collected at different times in each run
            self._exit.callback(gc.enable)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._exit.close()
        gc.collect()

    def run(self, work: Callable[[World], Awaitable[T]]) -> T:
        """Run ``work`` in virtual time, and return its result. Call it only once.

        Raises the error of ``work``, or Stuck if ``work`` can never end.
        """

        async def main() -> T:
            try:
                return await work(self)
            finally:
                self._bury()

        return run(self.loop, main())

    def add_machine(self, broker_id: int) -> Machine:
        """Add a machine with an empty disk. Its broker is not started."""
        machine = self.machines[broker_id] = Machine(
            broker_id,
            self.properties,
            loop=self.loop,
            links=self.links,
            network=self.network,
            disk=self._disks.disk(f"broker-{broker_id}"),
            directories=self.directories,
            store=self.store,
            history=self.history,
            seed=self.seed,
        )
        return machine

    def client_process(self, name: str, *, host: str | None = None) -> Process:
        """Return a client process on a host, by default on a new host."""
        process = Process(name, host or name)
        self._clients.append(process)
        return process

    @property
    def hosts(self) -> list[str]:
        """All hosts: brokers, then clients."""
        hosts = [each.host for each in self.machines.values()] + [each.host for each in self._clients]
        return list(dict.fromkeys(hosts))

    async def until(
        self, condition: Callable[[], bool], *, timeout: float = 120.0, every: float = 0.05, what: str = ""
    ) -> None:
        """Wait in virtual time for a condition, evaluated every ``every`` seconds. Raises TimeoutError, with ``what``
        in its text, after ``timeout`` seconds."""
        deadline = self.loop.time() + timeout
        while not condition():
            if self.loop.time() > deadline:
                raise TimeoutError(f"not within {timeout:g} s of virtual time: {what}")
            await asyncio.sleep(every)

    def _bury(self) -> None:
        self.history.close()
        for machine in self.machines.values():
            for process in (*machine.past, *filter(None, [machine.process])):
                process.bury(self.loop.take_back)
        for process in self._clients:
            process.bury(self.loop.take_back)

    def _on_error(self, context: dict[str, Any]) -> None:
        error = context.get("exception")
        self.history.note("asyncio", f"{context.get('message')}: {error!r}")
        self.failures.append(f"{context.get('message')}: {error!r}")
