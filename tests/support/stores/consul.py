"""Real Consul servers for tests. ``make peers`` provides the server; ``PARLEY_CONSUL`` names another one."""

from __future__ import annotations

import json
import ssl
import urllib.error
import urllib.request
from collections.abc import Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any

from parley.consensus.conformance.stores.consul import ConsulHarness
from parley.tools.store_servers import consul_ports_off, consul_program
from tests.support.http import HTTP_TIMEOUT_S
from tests.support.stores.servers import Node, OwnServers, Servers, serving

TTL_MS_MIN = 500
"""The minimum TTL of servers in tests. With Consul's default of 10 s, tests that wait for an expiry would
take minutes."""
LOOK_SECONDS = 5
"""How long a look at the state of a node takes at most. It is repeated, and some nodes are frozen."""


@dataclass(slots=True)
class ConsulServers(Servers):
    """Consul nodes. Each listens for HTTP, for RPC and for gossip."""

    product = "Consul"
    ports_per_node = 3

    settings: Mapping[str, Any] = field(default_factory=dict)
    """Added to every node's configuration."""
    ttl_ms_min: int = TTL_MS_MIN
    """Their ``session_ttl_min``."""
    token: str = ""
    """The token for requests that the tests make themselves."""
    tls: ssl.SSLContext | None = None
    """TLS for these requests; None for plain HTTP."""

    @property
    def query(self) -> str:
        """Return the options of a store URL for these servers."""
        return f"session-ttl-min-ms={self.ttl_ms_min}"

    @property
    def url(self) -> str:
        return f"consul://{self.hosts}?{self.query}"

    def command(self, node: Node) -> list[str]:
        config = self.directory / f"{node.name}.json"
        config.write_text(json.dumps(self._config(node)))
        return [consul_program(), "agent", f"-config-file={config}", "-log-level=warn"]

    def serves(self, node: Node) -> bool:
        # Sessions can be made as soon as the node is in the catalog.
        is_known = f"/v1/catalog/node/{node.name}?consistent"
        return all(self.ask(node, path, wait_s=LOOK_SECONDS) for path in ("/v1/status/leader", is_known))

    def leads(self, node: Node) -> bool:
        return bool(self.ask(node, "/v1/status/leader", wait_s=LOOK_SECONDS) == f"127.0.0.1:{node.ports[1]}")

    def ask(
        self, node: Node, path: str, method: str = "GET", body: object = None, *, wait_s: float = HTTP_TIMEOUT_S
    ) -> Any:
        """Return a node's response, or None if it does not respond or refuses the request."""
        url = f"{'https' if self.tls else 'http'}://127.0.0.1:{node.port}{path}"
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(url, data=data, method=method, headers={"X-Consul-Token": self.token})
        try:
            with urllib.request.urlopen(request, timeout=wait_s, context=self.tls) as answer:
                return json.loads(answer.read())
        except (OSError, urllib.error.URLError, ValueError):
            return None

    def _config(self, node: Node) -> dict[str, Any]:
        http, rpc, gossip = node.ports
        ports = {"http": http} if self.tls is None else {"http": -1, "https": http}
        return {
            "server": True,
            "node_name": node.name,
            "data_dir": str(node.data),
            "bind_addr": "127.0.0.1",
            "client_addr": "127.0.0.1",
            "bootstrap_expect": len(self.nodes),
            "retry_join": [f"127.0.0.1:{each.ports[2]}" for each in self.nodes if each is not node],
            "retry_interval": "500ms",
            "ports": {**ports, "server": rpc, "serf_lan": gossip, **consul_ports_off()},
            "performance": {"raft_multiplier": 1},
            # Else a server that was killed loses its vote, and has it again ten seconds after it is back.
            "autopilot": {"cleanup_dead_servers": False},
            "disable_update_check": True,
            "connect": {"enabled": False},
            "session_ttl_min": f"{self.ttl_ms_min}ms",
            **self.settings,
        }


def consul_servers(count: int = 1, ttl_ms_min: int = TTL_MS_MIN, **more: Any) -> AbstractContextManager[ConsulServers]:
    """Run servers whose wall clock can be moved. ``more`` is passed to ``ConsulServers``."""
    return serving(lambda directory, clock: ConsulServers(directory, clock, ttl_ms_min=ttl_ms_min, **more), count)


class OwnConsulHarness(OwnServers, ConsulHarness):
    """The conformance kit's harness on separate servers."""

    def __init__(self, servers: ConsulServers) -> None:
        super().__init__(servers.url)
        self._servers = servers
