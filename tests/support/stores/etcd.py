"""Real etcd servers for tests: one node or several, on free ports, each with data of its own.

``etcd`` is the server on the path, or the one that ``PARLEY_ETCD`` names.
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
import urllib.error
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from consensus.conformance.stores.etcd import EtcdHarness
from tools.store_servers import etcd_program

START_SECONDS = 60


@dataclass(slots=True)
class Node:
    """One server."""

    name: str
    client_port: int
    peer_port: int
    data: Path
    process: subprocess.Popen[bytes] | None = None


@dataclass(slots=True)
class EtcdServers:
    """A cluster of one or more nodes.

    :ivar options: added to every node's command line.
    :ivar scheme: of the client's side.
    """

    directory: Path
    nodes: list[Node] = field(default_factory=list)
    options: Sequence[str] = ()
    scheme: str = "http"
    _generation: int = 0

    @property
    def url(self) -> str:
        """The address of all nodes, without a prefix."""
        return "etcd://" + ",".join(f"127.0.0.1:{node.client_port}" for node in self.nodes)

    def start(self, *numbers: int) -> None:
        """Start these nodes, or all, and wait until each answers."""
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
        """Kill all nodes, delete what they have, and start them as a new cluster at the same addresses."""
        for number, node in enumerate(self.nodes):
            self.kill(number)
            shutil.rmtree(node.data)
        self._generation += 1
        self.start()

    def leader(self) -> int:
        """The number of the node that leads; waits until one does."""
        deadline = time.monotonic() + START_SECONDS
        while time.monotonic() < deadline:
            for number, node in enumerate(self.nodes):
                if "etcd_server_is_leader 1" in (self._metrics(node) or ""):
                    return number
            time.sleep(0.05)
        raise TimeoutError("no etcd node has become the leader")

    def etcdctl(self, *arguments: str) -> str:
        """What etcd's own tool answers."""
        endpoints = ",".join(f"{self.scheme}://127.0.0.1:{node.client_port}" for node in self.nodes)
        command = ["etcdctl", f"--endpoints={endpoints}", *arguments]
        done = subprocess.run(
            command, env={**os.environ, "ETCDCTL_API": "3"}, capture_output=True, text=True, timeout=60, check=False
        )
        if done.returncode:
            raise RuntimeError(f"{' '.join(command)}: {done.stderr}")
        return done.stdout

    def stop(self) -> None:
        """End all nodes, whatever state they are in."""
        for node in self.nodes:
            if node.process is not None:
                node.process.kill()
                node.process.wait()

    def _launch(self, node: Node) -> None:
        peers = ",".join(f"{each.name}=http://127.0.0.1:{each.peer_port}" for each in self.nodes)
        command = [
            etcd_program(),
            f"--name={node.name}",
            f"--data-dir={node.data}",
            f"--listen-client-urls={self.scheme}://127.0.0.1:{node.client_port}",
            f"--advertise-client-urls={self.scheme}://127.0.0.1:{node.client_port}",
            f"--listen-peer-urls=http://127.0.0.1:{node.peer_port}",
            f"--initial-advertise-peer-urls=http://127.0.0.1:{node.peer_port}",
            f"--initial-cluster={peers}",
            f"--initial-cluster-token=parley-{self.nodes[0].peer_port}-{self._generation}",
            "--logger=zap",
            "--log-level=warn",
            *self.options,
        ]
        with (self.directory / f"{node.name}.log").open("ab") as log:
            node.process = subprocess.Popen(command, stdout=log, stderr=log)

    def _wait(self, node: Node) -> None:
        deadline = time.monotonic() + START_SECONDS
        while time.monotonic() < deadline:
            assert node.process is not None
            if node.process.poll() is not None:
                break
            if "etcd_server_has_leader 1" in (self._metrics(node) or ""):
                return
            time.sleep(0.02)
        log = (self.directory / f"{node.name}.log").read_text(errors="replace")
        raise RuntimeError(f"etcd did not start:\n{log[-3000:]}")

    def _metrics(self, node: Node) -> str | None:
        try:
            with urllib.request.urlopen(f"{self._metrics_url(node)}/metrics", timeout=2) as answer:
                text: str = answer.read().decode()
                return text
        except (OSError, urllib.error.URLError):
            return None

    def _metrics_url(self, node: Node) -> str:
        for option in self.options:
            if option.startswith("--listen-metrics-urls="):
                return option.partition("=")[2]
        return f"{self.scheme}://127.0.0.1:{node.client_port}"

    def _signal(self, number: int, what: signal.Signals) -> None:
        process = self.nodes[number].process
        assert process is not None
        process.send_signal(what)


@contextmanager
def etcd_servers(count: int = 1, options: Sequence[str] = (), scheme: str = "http") -> Iterator[EtcdServers]:
    """Running servers; gone at the end, whatever happened."""
    with tempfile.TemporaryDirectory(prefix="parley-etcd-") as name:
        servers = EtcdServers(Path(name), options=options, scheme=scheme)
        ports = free_ports(2 * count)
        for n in range(count):
            servers.nodes.append(Node(f"n{n}", ports[2 * n], ports[2 * n + 1], Path(name, f"n{n}")))
        try:
            servers.start()
            yield servers
        finally:
            servers.stop()


def free_ports(count: int) -> list[int]:
    """Ports that nobody listened on a moment ago."""
    with ExitStack() as stack:
        listeners = [stack.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in range(count)]
        return [listener.getsockname()[1] for listener in listeners]


class OwnEtcdHarness(EtcdHarness):
    """The kit's harness on servers of one's own, which can be wiped and restarted."""

    def __init__(self, servers: EtcdServers) -> None:
        super().__init__(servers.url)
        self._servers = servers

    async def wipe(self) -> None:
        await asyncio.to_thread(self._servers.wipe)

    async def restart(self) -> None:
        await asyncio.to_thread(self._servers.restart)
