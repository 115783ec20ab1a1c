"""Real servers of a coordination store: one node or several, on free ports, each with data of its own.

A store's own module says how a node is launched, and when it serves; everything else is the same for all of them.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import subprocess
import tempfile
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar, Final, TypeVar

from parley.consensus.conformance.processes import ProcessHarness, WallClock
from tests.support.ports import free_port

_MEMORY: Final = "/dev/shm"
_MEMORY_BYTES_MIN: Final = 4 << 30
"""Much more than all servers of a run of the tests use."""


@dataclass(slots=True)
class Node:
    """One server."""

    number: int
    """Its place among the nodes, from 0."""
    ports: Sequence[int]
    """Where it listens, the first for clients."""
    data: Path
    process: subprocess.Popen[bytes] | None = None

    @property
    def name(self) -> str:
        """What it is called, and its files."""
        return f"n{self.number}"

    @property
    def port(self) -> int:
        """Where clients find it."""
        return self.ports[0]


@dataclass(slots=True)
class Servers(ABC):
    """A cluster of one or more nodes."""

    product: ClassVar[str]
    """The name of the product, for messages."""
    ports_per_node: ClassVar[int]
    """How many ports each of the nodes needs."""
    start_seconds: ClassVar[float] = 60

    directory: Path
    """Where the nodes' configurations and logs are."""
    clock: WallClock
    """Moves the wall clock of all nodes."""
    nodes: list[Node] = field(default_factory=list)
    generation: int = field(default=0, kw_only=True)
    """How often the servers were wiped."""

    @property
    def hosts(self) -> str:
        """Where all nodes listen."""
        return ",".join(f"127.0.0.1:{node.port}" for node in self.nodes)

    @property
    @abstractmethod
    def url(self) -> str:
        """The address of all nodes, without a path."""

    @abstractmethod
    def command(self, node: Node) -> list[str]:
        """What starts a node; writes its configuration."""

    @abstractmethod
    def serves(self, node: Node) -> bool:
        """Whether a node can be used."""

    @abstractmethod
    def leads(self, node: Node) -> bool:
        """Whether a node is the leader."""

    def start(self, *numbers: int) -> None:
        """Start these nodes, or all, and wait until each serves."""
        chosen = [self.nodes[number] for number in numbers] or self.nodes
        for node in chosen:
            with self._log(node).open("ab") as log:
                environment = {**os.environ, **self.clock.environment}
                node.process = subprocess.Popen(self.command(node), stdout=log, stderr=log, env=environment)
        for node in chosen:
            self._wait(node)

    def kill(self, number: int = 0) -> None:
        """End a node as SIGKILL does."""
        process = self._process(number)
        process.kill()
        process.wait()

    def pause(self, number: int = 0) -> None:
        """Let a node stand still."""
        self._process(number).send_signal(signal.SIGSTOP)

    def resume(self, number: int = 0) -> None:
        """Let it go on."""
        self._process(number).send_signal(signal.SIGCONT)

    def restart(self, number: int = 0) -> None:
        """Kill a node and start it again on its data."""
        self.kill(number)
        self.start(number)

    def wipe(self) -> None:
        """Kill all nodes, delete what they have, and start them as a new cluster at the same addresses."""
        for node in self.nodes:
            self.kill(node.number)
            shutil.rmtree(node.data)
        self.generation += 1
        self.start()

    def leader(self) -> int:
        """The number of the node that leads; waits until one does."""
        deadline = time.monotonic() + self.start_seconds
        while time.monotonic() < deadline:
            for node in self.nodes:
                if self.leads(node):
                    return node.number
            time.sleep(0.05)
        raise TimeoutError(f"no {self.product} node has become the leader")

    def stop(self) -> None:
        """End all nodes, whatever state they are in."""
        for node in self.nodes:
            if node.process is not None:
                self.kill(node.number)

    def _wait(self, node: Node) -> None:
        deadline = time.monotonic() + self.start_seconds
        while time.monotonic() < deadline and self._process(node.number).poll() is None:
            if self.serves(node):
                return
            time.sleep(0.02)
        raise RuntimeError(f"{self.product} did not start:\n{self._log(node).read_text(errors='replace')[-3000:]}")

    def _log(self, node: Node) -> Path:
        return self.directory / f"{node.name}.log"

    def _process(self, number: int) -> subprocess.Popen[bytes]:
        process = self.nodes[number].process
        assert process is not None
        return process


def data_place() -> str | None:
    """Where the nodes' data go: into memory where there is enough of it, unless TMPDIR says another place.

    A node that is killed finds there what it wrote, as on a disk; no test takes the machine's power away.
    """
    if "TMPDIR" in os.environ or not os.access(_MEMORY, os.W_OK):
        return None
    return _MEMORY if shutil.disk_usage(_MEMORY).free >= _MEMORY_BYTES_MIN else None


ServersT = TypeVar("ServersT", bound=Servers)


@contextmanager
def serving(make: Callable[[Path, WallClock], ServersT], count: int) -> Iterator[ServersT]:
    """So many nodes in operation; gone at the end, whatever happened."""
    with ExitStack() as folders:
        made = (tempfile.TemporaryDirectory(prefix="parley-servers-", dir=place) for place in (None, data_place()))
        directory, data = (Path(folders.enter_context(each)) for each in made)
        servers = make(directory, WallClock(directory))
        each = servers.ports_per_node
        ports = free_ports(each * count)
        for n in range(count):
            servers.nodes.append(Node(n, ports[each * n : each * (n + 1)], data / f"n{n}"))
        try:
            servers.start()
            yield servers
        finally:
            servers.stop()


def free_ports(count: int) -> list[int]:
    """Return this many free ports, which stay reserved while a node is down."""
    return [free_port() for _ in range(count)]


class OwnServers(ProcessHarness):
    """Goes before a store's harness: servers of one's own, which are wiped and restarted, and whose clock is moved."""

    _servers: Servers

    async def start(self) -> None:
        await super().start()
        self._clock = self._servers.clock

    async def stop(self) -> None:
        await self.move_wall_clock(0)
        await super().stop()

    async def wipe(self) -> None:
        await asyncio.to_thread(self._servers.wipe)

    async def restart(self) -> None:
        await asyncio.to_thread(self._servers.restart)
