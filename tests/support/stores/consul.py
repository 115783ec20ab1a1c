"""Real Consul servers for tests: one node or several, on free ports, each with data of its own.

``make peers`` provides the server; ``PARLEY_CONSUL`` names another one.
"""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import signal
import ssl
import subprocess
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from consensus.conformance.processes import WallClock
from consensus.conformance.stores.consul import ConsulHarness
from tests.support.stores.etcd import free_ports
from tools.store_servers import consul_program

START_SECONDS = 60
TTL_MS_MIN = 500
"""Of servers in tests; Consul's own default is 10 s, and everything that waits for an expiry would take minutes."""


@dataclass(slots=True)
class Node:
    """One server."""

    name: str
    http_port: int
    rpc_port: int
    serf_port: int
    data: Path
    process: subprocess.Popen[bytes] | None = None


@dataclass(slots=True)
class ConsulServers:
    """A cluster of one or more servers.

    :ivar settings: added to every node's configuration.
    :ivar ttl_ms_min: their ``session_ttl_min``.
    :ivar token: for what is asked of them here.
    :ivar tls: how to encrypt what is asked of them here; None for plain HTTP.
    """

    directory: Path
    clock: WallClock
    nodes: list[Node] = field(default_factory=list)
    settings: Mapping[str, Any] = field(default_factory=dict)
    ttl_ms_min: int = TTL_MS_MIN
    token: str = ""
    tls: ssl.SSLContext | None = None

    @property
    def hosts(self) -> str:
        """Where all nodes listen."""
        return ",".join(f"127.0.0.1:{node.http_port}" for node in self.nodes)

    @property
    def query(self) -> str:
        """What an address has to say of these servers."""
        return f"session-ttl-min-ms={self.ttl_ms_min}"

    @property
    def url(self) -> str:
        """The address of all nodes."""
        return f"consul://{self.hosts}?{self.query}"

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
        """The number of the node that leads; waits until one does."""
        deadline = time.monotonic() + START_SECONDS
        while time.monotonic() < deadline:
            for node in self.nodes:
                leader = str(self.ask(node, "/v1/status/leader") or "")
                for number, each in enumerate(self.nodes):
                    if leader == f"127.0.0.1:{each.rpc_port}":
                        return number
            time.sleep(0.05)
        raise TimeoutError("no Consul node has become the leader")

    def ask(self, node: Node, path: str, method: str = "GET", body: object = None) -> Any:
        """What a node answers; ``None`` if it does not, or refuses."""
        url = f"{'https' if self.tls else 'http'}://127.0.0.1:{node.http_port}{path}"
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(url, data=data, method=method, headers={"X-Consul-Token": self.token})
        try:
            with urllib.request.urlopen(request, timeout=5, context=self.tls) as answer:
                return json.loads(answer.read())
        except (OSError, urllib.error.URLError, ValueError):
            return None

    def stop(self) -> None:
        """End all nodes, whatever state they are in."""
        for node in self.nodes:
            if node.process is not None:
                node.process.kill()
                node.process.wait()

    def _launch(self, node: Node) -> None:
        config = self.directory / f"{node.name}.json"
        config.write_text(json.dumps(self._config(node)))
        command = [consul_program(), "agent", f"-config-file={config}", "-log-level=warn"]
        with (self.directory / f"{node.name}.log").open("ab") as log:
            environment = {**os.environ, **self.clock.environment}
            node.process = subprocess.Popen(command, stdout=log, stderr=log, env=environment)

    def _config(self, node: Node) -> dict[str, Any]:
        ports = {"http": node.http_port, "server": node.rpc_port, "serf_lan": node.serf_port}
        if self.tls is not None:
            ports |= {"http": -1, "https": node.http_port}
        return {
            "server": True,
            "node_name": node.name,
            "data_dir": str(node.data),
            "bind_addr": "127.0.0.1",
            "client_addr": "127.0.0.1",
            "bootstrap_expect": len(self.nodes),
            "retry_join": [f"127.0.0.1:{each.serf_port}" for each in self.nodes if each is not node],
            "retry_interval": "500ms",
            "ports": {**ports, "serf_wan": -1, "dns": -1, "grpc": -1},
            "performance": {"raft_multiplier": 1},
            # Else a server that was killed loses its vote, and has it again ten seconds after it is back.
            "autopilot": {"cleanup_dead_servers": False},
            "disable_update_check": True,
            "connect": {"enabled": False},
            "session_ttl_min": f"{self.ttl_ms_min}ms",
            **self.settings,
        }

    def _wait(self, node: Node) -> None:
        deadline = time.monotonic() + START_SECONDS
        while time.monotonic() < deadline:
            assert node.process is not None
            if node.process.poll() is not None:
                break
            # Sessions can be made as soon as the node is in the catalog.
            if self.ask(node, "/v1/status/leader") and self.ask(node, f"/v1/catalog/node/{node.name}?consistent"):
                return
            time.sleep(0.05)
        log = (self.directory / f"{node.name}.log").read_text(errors="replace")
        raise RuntimeError(f"Consul did not start:\n{log[-3000:]}")

    def _signal(self, number: int, what: signal.Signals) -> None:
        process = self.nodes[number].process
        assert process is not None
        process.send_signal(what)


@contextmanager
def consul_servers(count: int = 1, ttl_ms_min: int = TTL_MS_MIN, **more: Any) -> Iterator[ConsulServers]:
    """Running servers; gone at the end, whatever happened. ``more`` is for ``ConsulServers``."""
    with tempfile.TemporaryDirectory(prefix="parley-consul-") as name:
        servers = ConsulServers(Path(name), WallClock(Path(name)), ttl_ms_min=ttl_ms_min, **more)
        ports = free_ports(3 * count)
        for n in range(count):
            http, rpc, serf = ports[3 * n : 3 * n + 3]
            servers.nodes.append(Node(f"n{n}", http, rpc, serf, Path(name, f"n{n}")))
        try:
            servers.start()
            yield servers
        finally:
            servers.stop()


class OwnConsulHarness(ConsulHarness):
    """The kit's harness on a server of one's own, which can be wiped and restarted, and whose clock can be moved."""

    def __init__(self, servers: ConsulServers) -> None:
        super().__init__(servers.url)
        self._servers = servers

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
