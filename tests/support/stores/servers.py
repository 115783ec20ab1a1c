"""Real servers of a coordination store: one or several nodes, on free ports, each with its own data.

A store's own module defines how a node is started, and when it is ready. Everything else is common to all stores.
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
from typing import ClassVar, TypeVar

from parley.consensus.conformance.processes import ProcessHarness, WallClock
from tests.support.fast_folder import fast_folder
from tests.support.ports import free_port


@dataclass(slots=True)
class Node:
    """A server."""

    number: int
    """The index of the node, from 0."""
    ports: Sequence[int]
    """The node's ports, the first for clients."""
    data: Path
    process: subprocess.Popen[bytes] | None = None

    @property
    def name(self) -> str:
        """The name of the node and of its files."""
        return f"n{self.number}"

    @property
    def port(self) -> int:
        """The port for clients."""
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
        """Write the configuration of a node, and return the command that starts it."""

    @abstractmethod
    def serves(self, node: Node) -> bool:
        """Return True if a node can be used."""

    @abstractmethod
    def leads(self, node: Node) -> bool:
        """Return True if a node is the leader."""

    def start(self, *numbers: int) -> None:
        """Start these nodes, or all nodes, and wait until they serve."""
        chosen = [self.nodes[number] for number in numbers] or self.nodes
        for node in chosen:
            with self._log(node).open("ab") as log:
                environment = {**os.environ, **self.clock.environment}
                node.process = subprocess.Popen(self.command(node), stdout=log, stderr=log, env=environment)
        for node in chosen:
            self._wait(node)

    def kill(self, number: int = 0) -> None:
        """End a node with SIGKILL."""
        process = self._process(number)
        process.kill()
        process.wait()

    def end(self, number: int = 0) -> None:
        """End a node with SIGTERM."""
        process = self._process(number)
        process.terminate()
        process.wait()

    def pause(self, number: int = 0) -> None:
        """Freeze a node."""
        self._process(number).send_signal(signal.SIGSTOP)

    def resume(self, number: int = 0) -> None:
        """Let a frozen node continue."""
        self._process(number).send_signal(signal.SIGCONT)

    def restart(self, number: int = 0) -> None:
        """Kill a node and restart it with its data."""
        self.kill(number)
        self.start(number)

    def wipe(self) -> None:
        """Kill all nodes, delete their data, and start them as a new cluster at the same addresses."""
        for node in self.nodes:
            self.kill(node.number)
            shutil.rmtree(node.data)
        self.generation += 1
        self.start()

    def leader(self) -> int:
        """Return the number of the leading node. Waits until there is one."""
        deadline = time.monotonic() + self.start_seconds
        while time.monotonic() < deadline:
            for node in self.nodes:
                if self.leads(node):
                    return node.number
            time.sleep(0.05)
        raise TimeoutError(f"no {self.product} node has become the leader")

    def stop(self) -> None:
        """End all nodes, whatever their state."""
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


ServersT = TypeVar("ServersT", bound=Servers)


@contextmanager
def serving(make: Callable[[Path, WallClock], ServersT], count: int) -> Iterator[ServersT]:
    """Run this many servers inside the context."""
    with ExitStack() as folders:
        made = (tempfile.TemporaryDirectory(prefix="parley-servers-", dir=place) for place in (None, fast_folder()))
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
    """A mixin for a store's harness: separate servers that are wiped and restarted, and whose clock is moved."""

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
