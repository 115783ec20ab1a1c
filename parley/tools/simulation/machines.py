"""Simulated machines with one broker each, and their shared store: start, stop, kill, crash, loss of the store."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Mapping, Sequence
from contextvars import Context
from random import Random
from typing import Any

from parley.broker.config import BrokerConfig
from parley.broker.server import BrokerServer
from parley.consensus.backend import Check, Delete, Op, Put, TxnResult
from parley.consensus.memory import MemoryBackend, MemoryStore
from parley.consensus.memory.store import StoreClient
from parley.tools.simulation.disk import Disk
from parley.tools.simulation.disk_damage import adopt, damage
from parley.tools.simulation.event_history import History
from parley.tools.simulation.faults import Kind
from parley.tools.simulation.links import Links
from parley.tools.simulation.network import Network
from parley.tools.simulation.processes import CURRENT, Process
from parley.tools.simulation.virtual_time_loop import SimulatedLoop

EPOCH_MS = 1_700_000_000_000
"""The wall clock time of the simulated machines at time 0 of the loop, in milliseconds since 1970."""
PORT = 9092


class MachineClock:
    """The clock of a machine. Its wall clock differs from the loop's time by ``skew_s``."""

    def __init__(self, loop: SimulatedLoop) -> None:
        self._loop = loop
        self.skew_s = 0.0

    def wall_ms(self) -> int:
        """Return the machine's wall clock time in milliseconds since 1970."""
        return EPOCH_MS + int((self._loop.time() + self.skew_s) * 1000)

    def monotonic(self) -> float:
        """Return the loop's time in seconds, which no skew affects."""
        return self._loop.time()


class SharedStore(MemoryStore):
    """The coordination store of all machines, simulated as a server that takes time to reach."""

    def __init__(self, rng: Random, latency: Callable[[], float]) -> None:
        super().__init__(rng=rng)
        self.latency = latency
        self.clients: dict[Process, MemoryBackend] = {}
        """The store's clients by the process that opened them."""
        self.on_write: Callable[[Sequence[Op]], None] = lambda ops: None
        """Called with the operations of each transaction after it was applied."""

    def copy(self) -> dict[str, bytes]:
        """Return all entries except those that belong to a session, as a backup contains them."""
        return {key: entry.value for key, entry in self._entries.items() if entry.session is None}

    def restore(self, copy: Mapping[str, bytes]) -> None:
        """End all sessions, and replace all entries with those of a copy. Does not call ``on_write``."""
        for session in self.sessions:
            self.expire(session)
        gone = [Delete(key) for key in self._entries if key not in copy]
        super().apply((), [*gone, *(Put(key, value) for key, value in copy.items())])

    def apply(self, checks: Sequence[Check], ops: Sequence[Op]) -> TxnResult:
        result = super().apply(checks, ops)
        self.on_write(ops)
        return result

    def attach(self, client: StoreClient) -> None:
        assert isinstance(client, MemoryBackend)
        process = CURRENT.get()
        if process is not None:
            client.delay_s = self.latency
            client.txn = _arriving(client.txn)  # type: ignore[method-assign]
            self.clients[process] = client
        super().attach(client)

    def _tell_expired(self, client: StoreClient, session_id: str) -> None:
        """Notify a client that a session has expired. If its process is stopped, it is notified once it runs again."""
        process = next((process for process, each in self.clients.items() if each is client), None)
        context = process.context if process is not None else None
        asyncio.get_running_loop().call_soon(client.expired, session_id, context=context)


def _arriving(txn: Callable[..., Coroutine[Any, Any, TxnResult]]) -> Callable[..., Coroutine[Any, Any, TxnResult]]:
    """Wrap ``txn``, so that the store applies a transaction that was sent, even if the caller is cancelled."""

    async def arrive(checks: Sequence[Check], ops: Sequence[Op]) -> TxnResult:
        sent = asyncio.ensure_future(txn(checks, ops))
        sent.add_done_callback(lambda done: done.cancelled() or done.exception())
        return await asyncio.shield(sent)

    return arrive


class Machine:
    """A machine and its broker. Each can be up or down."""

    def __init__(
        self,
        broker_id: int,
        properties: Mapping[str, str],
        *,
        loop: SimulatedLoop,
        links: Links,
        network: Network,
        disk: Disk,
        directories: Sequence[str],
        store: SharedStore,
        history: History,
        seed: str,
    ) -> None:
        """``directories`` are the names of the log directories on the disk; "" is the disk itself."""
        self.broker_id = broker_id
        self.host = f"broker-{broker_id}"
        self.clock = MachineClock(loop)
        self.process: Process | None = None
        """The broker's process. None while no broker runs."""
        self.server: BrokerServer | None = None
        self.is_stopping = False
        """True while the broker is shutting down."""
        self.starts = 0
        self.past: list[Process] = []
        """The processes that died on this machine."""
        self.has_foreign_disk = False
        """True if the log directories belong to another broker."""
        self._properties = properties
        self._loop = loop
        self._links = links
        self._network = network
        self._disk = disk
        self._directories = directories
        self._store = store
        self._history = history
        self._seed = seed
        self._ready = False

    @property
    def address(self) -> tuple[str, int]:
        """The host and port of the broker."""
        return self.host, PORT

    @property
    def serves(self) -> bool:
        """True if the broker has finished its start and is running."""
        return self.process is not None and self.process.runs and self._ready

    def start(self) -> None:
        """Start the broker, unless it already has a process. A start that fails is retried, as by a supervisor."""
        if self.process is not None:
            return
        self.starts += 1
        process = self.process = Process(self.host, self.host)
        self._history.note("world", f"start {self.host}")
        process.start(self._run(process), name=f"life of {self.host}, {self.starts}")

    async def _run(self, process: Process) -> None:
        config = BrokerConfig.from_properties(
            {
                **self._properties,
                "broker.id": str(self.broker_id),
                "listeners": f"PLAINTEXT://{self.host}:{PORT}",
                "log.dirs": ",".join(str(self._disk.path / name) for name in self._directories),
            }
        )
        attempt = 0
        while True:
            attempt += 1
            rng = Random(f"{self._seed}/{self.host}/{self.starts}/{attempt}")
            server = BrokerServer(config, clock=self.clock, rng=rng, bind=self._network.bind)
            self.server = server
            try:
                await server.start()
            except Exception as error:
                self._history.note(self.host, f"did not start: {type(error).__name__}: {error}")
                await asyncio.sleep(1.0)
                continue
            self._ready = True
            await server.failed.wait()
            self._history.note(self.host, "gave up")
            self._ready = False
            await server.stop()
            await asyncio.sleep(1.0)

    def shut_down(self) -> None:
        """SIGTERM: shut the broker down cleanly. Its process exits some time later."""
        process, server = self.process, self.server
        if process is None or server is None or not process.runs:
            return
        self._history.note("world", f"shut down {self.host}")

        async def stop() -> None:
            await server.stop()
            # Not in the context of the process that is about to exit.
            self._loop.call_soon(self._exited, process, context=Context())

        self._ready = False
        self.is_stopping = True
        process.start(stop(), name=f"shutdown of {self.host}, {self.starts}")

    def _exited(self, process: Process) -> None:
        if self.process is process:
            self._history.note("world", f"{self.host} exits")
            self._forget(process, silently=False)
            self._disk.process_died()
            self._disk.keep_copy()

    def kill(self) -> None:
        """SIGKILL: end the broker's process. Its writes to the disk remain."""
        if (process := self.process) is not None:
            self._history.note("world", f"kill {self.host}")
            self._forget(process, silently=False)
            self._disk.process_died()
            self._disk.keep_copy()

    def damage_disk(self, kind: Kind, rng: Random) -> None:
        """Inflict one of the kinds of damage in ``faults.DAMAGE`` on the disk. The broker must not be running."""
        assert self.process is None
        self._history.note("world", f"  {self.host} has {damage(self._disk, kind, rng) or 'nothing to damage'}")

    def exchange_disks(self, other: Machine) -> None:
        """Swap the disks of two machines. Neither broker may be running."""
        assert self.process is other.process is None
        self._history.note("world", f"  {self.host} and {other.host} have exchanged their disks")
        self._disk, other._disk = other._disk, self._disk
        for machine in (self, other):
            machine.has_foreign_disk = not machine.has_foreign_disk

    def adopt_disk(self) -> None:
        """Make this machine's broker the owner of the log directories on its disk. The broker must not be running."""
        adopt(self._disk, self.broker_id)
        self.has_foreign_disk = False

    def crash(self, rng: Random) -> None:
        """Cut the machine's power. Its peers are not notified, and unsynced writes may be lost. ``boot``
        restarts it."""
        self._history.note("world", f"crash {self.host}")
        if (process := self.process) is not None:
            self._forget(process, silently=True)
        self._links.host_down(self.host)
        for line in self._disk.machine_crashed(rng):
            self._history.note("world", f"  {self.host} lost: {line}")

    def boot(self) -> None:
        """Boot the machine, and start its broker."""
        self._links.host_up(self.host)
        self.start()

    def _forget(self, process: Process, *, silently: bool) -> None:
        process.die()
        self.past.append(process)
        self._network.process_died(process, silently=silently)
        self.process = self.server = None
        self._ready = self.is_stopping = False

    def stop(self) -> None:
        """SIGSTOP: freeze the broker."""
        if self.process is not None:
            self._history.note("world", f"stop {self.host}")
            self.process.stop()

    def resume(self) -> None:
        """SIGCONT: let the broker continue."""
        if self.process is not None:
            self._history.note("world", f"resume {self.host}")
            self.process.resume(self._loop.take_back)

    def cut_from_store(self, seconds: float, *, silently: bool) -> None:
        """Cut the broker off from the coordination store, until ``join_store``.

        Its requests fail. If ``silently``, they reach the store ``seconds`` late instead.
        """
        until = self._loop.time() + seconds

        def cut(client: MemoryBackend) -> None:
            client.disconnect()
            if silently:
                client.delay_s = lambda: max(0.0, until - self._loop.time()) + self._store.latency()

        self._in_process("store cut off", cut)

    def join_store(self) -> None:
        """Reconnect the broker to the coordination store after ``cut_from_store``."""

        def join(client: MemoryBackend) -> None:
            client.delay_s = self._store.latency
            client.reconnect()

        self._in_process("store back", join)

    def lose_store_response(self, *, applied: bool) -> None:
        """Lose the response to the broker's next write to the store. Unless ``applied``, the write itself is lost
        too."""
        self._in_process(f"response lost, applied={applied}", lambda client: client.lose_next_response(applied=applied))

    def _in_process(self, what: str, work: Callable[[MemoryBackend], None]) -> None:
        if self.process is not None and (client := self._store.clients.get(self.process)) is not None:
            self._history.note("world", f"{self.host}: {what}")
            self._loop.call_soon(work, client, context=self.process.context)
