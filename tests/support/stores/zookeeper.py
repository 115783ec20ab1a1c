"""Real ZooKeeper servers for tests: one node or several, on free ports, each with data of its own.

The server is that of Debian's package, or whatever ``PARLEY_ZOOKEEPER`` names as a Java class path.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from consensus.conformance.processes import WallClock
from consensus.conformance.stores.zookeeper import ZookeeperHarness
from tests.support.stores.etcd import free_ports
from tools.store_servers import zookeeper_class_path

START_SECONDS = 90
TICK_MS = 200
TTL_MS_MIN = 600
_CONFIG = """\
tickTime={tick}
initLimit=50
syncLimit=25
dataDir={data}
admin.enableServer=false
minSessionTimeout={shortest}
maxSessionTimeout=60000
maxClientCnxns=0
4lw.commands.whitelist=srvr,ruok,wchs
"""


@dataclass(slots=True)
class Node:
    """One server."""

    number: int
    client_port: int
    quorum_port: int
    election_port: int
    data: Path
    process: subprocess.Popen[bytes] | None = None


@dataclass(slots=True)
class ZookeeperServers:
    """A server, or an ensemble of several.

    :ivar settings: added to every node's configuration.
    :ivar java: added to every node's command line.
    :ivar environment: added to every node's environment.
    """

    directory: Path
    nodes: list[Node] = field(default_factory=list)
    settings: str = ""
    java: Sequence[str] = ()
    environment: Mapping[str, str] = field(default_factory=dict)
    clock: WallClock | None = None

    @property
    def url(self) -> str:
        """The address of all nodes, without a chroot."""
        return "zookeeper://" + ",".join(f"127.0.0.1:{node.client_port}" for node in self.nodes)

    def start(self, *numbers: int) -> None:
        """Start these nodes, or all, and wait until each serves."""
        chosen = [self.nodes[number] for number in numbers] or self.nodes
        for node in chosen:
            self._launch(node)
        for node in chosen:
            self._wait(node)

    def kill(self, number: int = 0) -> None:
        """End a node as SIGKILL does."""
        self._signal(number, signal.SIGKILL)
        process = self.nodes[number].process
        assert process is not None
        process.wait()

    def pause(self, number: int = 0) -> None:
        """Let a node stand still."""
        self._signal(number, signal.SIGSTOP)

    def resume(self, number: int = 0) -> None:
        """Let it go on."""
        self._signal(number, signal.SIGCONT)

    def restart(self, number: int = 0) -> None:
        """Kill a node and start it again on its data."""
        self.kill(number)
        self.start(number)

    def wipe(self) -> None:
        """Kill all nodes, delete what they have, and start them at the same addresses."""
        for number, node in enumerate(self.nodes):
            self.kill(number)
            shutil.rmtree(node.data)
        self.start()

    def leader(self) -> int:
        """The index of the node that leads; waits until one does."""
        deadline = time.monotonic() + START_SECONDS
        while time.monotonic() < deadline:
            for index, node in enumerate(self.nodes):
                if b"Mode: leader" in self._ask(node):
                    return index
            time.sleep(0.05)
        raise TimeoutError("no ZooKeeper node has become the leader")

    def stop(self) -> None:
        """End all nodes, whatever state they are in."""
        for node in self.nodes:
            if node.process is not None:
                node.process.kill()
                node.process.wait()

    def _launch(self, node: Node) -> None:
        node.data.mkdir(parents=True, exist_ok=True)
        lines = [_CONFIG.format(tick=TICK_MS, data=node.data, shortest=TTL_MS_MIN), self.settings]
        if "secureClientPort" not in self.settings:
            lines.append(f"clientPort={node.client_port}\nclientPortAddress=127.0.0.1")
        if len(self.nodes) > 1:
            (node.data / "myid").write_text(f"{node.number}\n")
            lines += [f"server.{each.number}=127.0.0.1:{each.quorum_port}:{each.election_port}" for each in self.nodes]
        config = self.directory / f"n{node.number}.cfg"
        config.write_text("\n".join(lines).replace("{port}", str(node.client_port)) + "\n")
        java = ["java", "-Xms16m", "-Xmx128m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1"]
        options = ["-Dzookeeper.jmx.log4j.disable=true", "-Dzookeeper.preAllocSize=1024"]
        options += ["-Dorg.slf4j.simpleLogger.defaultLogLevel=warn", *self.java]
        main = ["-cp", zookeeper_class_path(), "org.apache.zookeeper.server.quorum.QuorumPeerMain", str(config)]
        with (self.directory / f"n{node.number}.log").open("ab") as log:
            environment = {**os.environ, **self.environment}
            node.process = subprocess.Popen([*java, *options, *main], stdout=log, stderr=log, env=environment)

    def _wait(self, node: Node) -> None:
        deadline = time.monotonic() + START_SECONDS
        while time.monotonic() < deadline:
            assert node.process is not None
            if node.process.poll() is not None:
                break
            if b"Mode:" in self._ask(node):
                return
            time.sleep(0.02)
        log = (self.directory / f"n{node.number}.log").read_text(errors="replace")
        raise RuntimeError(f"ZooKeeper did not start:\n{log[-3000:]}")

    def _ask(self, node: Node) -> bytes:
        if "secureClientPort" in self.settings:
            return self._listens(node)
        try:
            with socket.create_connection(("127.0.0.1", node.client_port), timeout=2) as connection:
                connection.sendall(b"srvr")
                answer = b""
                while part := connection.recv(4096):
                    answer += part
                return answer
        except OSError:
            return b""

    def _listens(self, node: Node) -> bytes:
        try:
            socket.create_connection(("127.0.0.1", node.client_port), timeout=2).close()
        except OSError:
            return b""
        return b"Mode: unknown"

    def _signal(self, number: int, what: signal.Signals) -> None:
        process = self.nodes[number].process
        assert process is not None
        process.send_signal(what)


@contextmanager
def zookeeper_servers(count: int = 1, settings: str = "", java: Sequence[str] = ()) -> Iterator[ZookeeperServers]:
    """Running servers, whose wall clock can be moved; gone at the end, whatever happened."""
    with tempfile.TemporaryDirectory(prefix="parley-zookeeper-") as name:
        clock = WallClock(Path(name))
        servers = ZookeeperServers(Path(name), settings=settings, java=java, environment=clock.environment, clock=clock)
        ports = free_ports(3 * count)
        for n in range(count):
            client, quorum, election = ports[3 * n : 3 * n + 3]
            servers.nodes.append(Node(n + 1, client, quorum, election, Path(name, f"n{n + 1}")))
        try:
            servers.start()
            yield servers
        finally:
            servers.stop()


class OwnZookeeperHarness(ZookeeperHarness):
    """The kit's harness on a server of one's own, which can be wiped and restarted, and whose clock can be moved."""

    def __init__(self, servers: ZookeeperServers) -> None:
        super().__init__(servers.url)
        self._servers = servers

    async def start(self) -> None:
        await super().start()
        assert self._servers.clock is not None
        self._clock = self._servers.clock

    async def stop(self) -> None:
        await self.move_wall_clock(0)
        await super().stop()

    async def wipe(self) -> None:
        await asyncio.to_thread(self._servers.wipe)

    async def restart(self) -> None:
        await asyncio.to_thread(self._servers.restart)
