"""Real ZooKeeper servers for tests: Debian's package, or the class path that ``PARLEY_ZOOKEEPER`` names."""

from __future__ import annotations

import socket
from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass

from parley.consensus.conformance.stores.zookeeper import ZookeeperHarness
from parley.tools.store_servers import zookeeper_class_path
from tests.support.java_archives import small_zookeeper
from tests.support.stores.servers import Node, OwnServers, Servers, serving

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
class ZookeeperServers(Servers):
    """A ZooKeeper server or ensemble. A node listens for clients, for its peers, and for elections."""

    product = "ZooKeeper"
    ports_per_node = 3
    start_seconds = 90

    settings: str = ""
    """Added to every node's configuration."""
    java: Sequence[str] = ()
    """Added to every node's command line."""

    @property
    def url(self) -> str:
        return f"zookeeper://{self.hosts}"

    def command(self, node: Node) -> list[str]:
        config = self.directory / f"{node.name}.cfg"
        node.data.mkdir(parents=True, exist_ok=True)
        config.write_text(self._config(node).replace("{port}", str(node.port)) + "\n")
        java = ["java", "-Xms16m", "-Xmx128m", *small_zookeeper()]
        options = ["-Dzookeeper.jmx.log4j.disable=true", "-Dzookeeper.preAllocSize=1024"]
        options += ["-Dorg.slf4j.simpleLogger.defaultLogLevel=warn", *self.java]
        main = ["-cp", zookeeper_class_path(), "org.apache.zookeeper.server.quorum.QuorumPeerMain", str(config)]
        return [*java, *options, *main]

    def serves(self, node: Node) -> bool:
        return b"Mode:" in self._ask(node)

    def leads(self, node: Node) -> bool:
        return b"Mode: leader" in self._ask(node)

    def _config(self, node: Node) -> str:
        lines = [_CONFIG.format(tick=TICK_MS, data=node.data, shortest=TTL_MS_MIN), self.settings]
        if "secureClientPort" not in self.settings:
            lines.append(f"clientPort={node.port}\nclientPortAddress=127.0.0.1")
        if len(self.nodes) > 1:
            (node.data / "myid").write_text(f"{node.number + 1}\n")
            lines += [f"server.{n}=127.0.0.1:{each.ports[1]}:{each.ports[2]}" for n, each in enumerate(self.nodes, 1)]
        return "\n".join(lines)

    def _ask(self, node: Node) -> bytes:
        secure = "secureClientPort" in self.settings
        try:
            with socket.create_connection(("127.0.0.1", node.port), timeout=2) as connection:
                if secure:
                    return b"Mode: unknown"
                connection.sendall(b"srvr")
                answer = b""
                while part := connection.recv(4096):
                    answer += part
                return answer
        except OSError:
            return b""


def zookeeper_servers(
    count: int = 1, settings: str = "", java: Sequence[str] = ()
) -> AbstractContextManager[ZookeeperServers]:
    """Run servers whose wall clock can be moved. ``{port}`` in settings stands for the node's port for clients."""
    return serving(lambda directory, clock: ZookeeperServers(directory, clock, settings=settings, java=java), count)


class OwnZookeeperHarness(OwnServers, ZookeeperHarness):
    """The conformance kit's harness on separate servers."""

    def __init__(self, servers: ZookeeperServers) -> None:
        super().__init__(servers.url)
        self._servers = servers
