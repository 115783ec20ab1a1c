"""Real etcd servers for tests: the server on the path, or the one that ``PARLEY_ETCD`` names."""

from __future__ import annotations

import os
import subprocess
import urllib.error
import urllib.request
from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass

from parley.consensus.conformance.stores.etcd import EtcdHarness
from parley.tools.store_servers import etcd_program
from tests.support.stores.servers import Node, OwnServers, Servers, serving


@dataclass(slots=True)
class EtcdServers(Servers):
    """etcd nodes. Each listens for clients and for its peers."""

    product = "etcd"
    ports_per_node = 2

    options: Sequence[str] = ()
    """Added to every node's command line."""
    scheme: str = "http"
    """The scheme of the client URLs."""

    @property
    def url(self) -> str:
        return f"etcd://{self.hosts}"

    def command(self, node: Node) -> list[str]:
        clients, peers = self._client_url(node), _peer_url(node)
        return [
            etcd_program(),
            f"--name={node.name}",
            f"--data-dir={node.data}",
            f"--listen-client-urls={clients}",
            f"--advertise-client-urls={clients}",
            f"--listen-peer-urls={peers}",
            f"--initial-advertise-peer-urls={peers}",
            f"--initial-cluster={','.join(f'{each.name}={_peer_url(each)}' for each in self.nodes)}",
            f"--initial-cluster-token=parley-{self.nodes[0].port}-{self.generation}",
            "--logger=zap",
            "--log-level=warn",
            *self.options,
        ]

    def serves(self, node: Node) -> bool:
        return "etcd_server_has_leader 1" in self._metrics(node)

    def leads(self, node: Node) -> bool:
        return "etcd_server_is_leader 1" in self._metrics(node)

    def etcdctl(self, *arguments: str) -> str:
        """Return the output of etcd's own tool."""
        endpoints = ",".join(map(self._client_url, self.nodes))
        # Its own limit of five seconds is short on a busy machine: to hash a password takes a tenth of a second alone.
        command = ["etcdctl", f"--endpoints={endpoints}", "--command-timeout=60s", *arguments]
        done = subprocess.run(
            command, env={**os.environ, "ETCDCTL_API": "3"}, capture_output=True, text=True, timeout=90, check=False
        )
        if done.returncode:
            raise RuntimeError(f"{' '.join(command)}: {done.stderr}")
        return done.stdout

    def _client_url(self, node: Node) -> str:
        return f"{self.scheme}://127.0.0.1:{node.port}"

    def _metrics(self, node: Node) -> str:
        named = [option.partition("=")[2] for option in self.options if option.startswith("--listen-metrics-urls=")]
        url = named[0] if named else self._client_url(node)
        try:
            with urllib.request.urlopen(f"{url}/metrics", timeout=2) as answer:
                text: str = answer.read().decode()
                return text
        except (OSError, urllib.error.URLError):
            return ""


def _peer_url(node: Node) -> str:
    return f"http://127.0.0.1:{node.ports[1]}"


def etcd_servers(
    count: int = 1, options: Sequence[str] = (), scheme: str = "http"
) -> AbstractContextManager[EtcdServers]:
    """Run servers whose wall clock can be moved."""
    return serving(lambda directory, clock: EtcdServers(directory, clock, options=options, scheme=scheme), count)


class OwnEtcdHarness(OwnServers, EtcdHarness):
    """The conformance kit's harness on separate servers."""

    def __init__(self, servers: EtcdServers) -> None:
        super().__init__(servers.url)
        self._servers = servers
