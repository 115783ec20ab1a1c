"""Brokers in this process with secured listeners, on a store in memory, and the properties of their clients."""

from __future__ import annotations

import itertools
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

from parley.broker.config import BrokerConfig
from parley.broker.server import BrokerServer
from parley.protocol.client import Client
from parley.protocol.security.client_security import client_security
from tests.support.certificates import Authority

MODULES = "org.apache.kafka.common.security"
PLAIN = f"{MODULES}.plain.PlainLoginModule required"
USERS = {"broker": "broker's secret", "alice": "alice's secret"}
_stores = itertools.count(1)


def plain_line(username: str, users: Mapping[str, str] | None = None) -> str:
    """Return the JAAS entry of a client or, with ``users``, of a listener."""
    accepted = "".join(f' user_{name}="{password}"' for name, password in (users or {}).items())
    return f'{PLAIN} username="{username}" password="{USERS[username]}"{accepted};'


@dataclass
class SecuredBrokers:
    """How to start brokers with one listener, SECURE, and what their clients need."""

    folder: Path
    authority: Authority = field(default_factory=Authority)
    store: str = field(default_factory=lambda: f"memory://secured-{next(_stores)}")

    def settings(self, broker_id: int, protocol: str = "SASL_SSL") -> dict[str, str]:
        issued = self.authority.issue(f"CN=broker-{broker_id}", "127.0.0.1", "localhost")
        key_store = self.folder / f"broker-{broker_id}.pem"
        issued.write_pem(key_store.with_suffix(".new")).rename(key_store)  # in one step, for the same reason
        return {
            "broker.id": str(broker_id),
            "log.dirs": str(self.folder / f"broker-{broker_id}"),
            "coordination.url": self.store,
            "coordination.session.timeout.ms": "20000",  # a machine that stands still must not fence a broker
            "listeners": "SECURE://127.0.0.1:0",
            "listener.security.protocol.map": f"SECURE:{protocol}",
            "inter.broker.listener.name": "SECURE",
            "ssl.keystore.location": str(key_store),
            "ssl.truststore.location": self.trust,
            "sasl.enabled.mechanisms": "PLAIN",
            "sasl.mechanism.inter.broker.protocol": "PLAIN",
            "listener.name.secure.plain.sasl.jaas.config": plain_line("broker", USERS),
            "offsets.topic.num.partitions": "1",
            "transaction.state.log.num.partitions": "1",
            "group.initial.rebalance.delay.ms": "0",
        }

    def __post_init__(self) -> None:
        self.authority.write(Path(self.trust))  # once: brokers that run must not read half of it

    @property
    def trust(self) -> str:
        """The path of the trust store."""
        return str(self.folder / "trust.pem")

    def client_properties(self, username: str = "alice", protocol: str = "SASL_SSL") -> dict[str, str]:
        return {
            "security.protocol": protocol,
            "ssl.truststore.location": self.trust,
            "sasl.mechanism": "PLAIN",
            "sasl.jaas.config": plain_line(username),
        }

    def client(self, server: BrokerServer, username: str = "alice", protocol: str = "SASL_SSL") -> Client:
        return Client(bootstrap(server), security=client_security(self.client_properties(username, protocol)))

    @asynccontextmanager
    async def running(self, *settings: Mapping[str, str]) -> AsyncIterator[list[BrokerServer]]:
        """Start a broker with each of the settings. They are stopped in reverse order."""
        async with AsyncExitStack() as stack:
            servers = []
            for given in settings:
                server = BrokerServer(BrokerConfig.from_properties(given))
                await server.start()
                stack.push_async_callback(server.stop)
                servers.append(server)
            yield servers


def bootstrap(server: BrokerServer, listener: str = "SECURE") -> str:
    endpoint = next(each for each in server.endpoints if each.listener == listener)
    return f"{endpoint.host}:{endpoint.port}"
