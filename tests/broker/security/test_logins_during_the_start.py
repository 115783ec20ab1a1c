"""Users can log in to a broker as soon as it accepts connections: a refusal is final for a client."""

from __future__ import annotations

from pathlib import Path

import pytest

from parley.broker.config import BrokerConfig
from parley.broker.server import BrokerServer
from parley.broker.startup.cluster_joining import join_cluster
from parley.broker.startup.composition import Parts
from parley.broker.startup.environment import Environment
from parley.consensus.registry import backend_factory
from parley.protocol.client import Client
from parley.protocol.messages.api_versions import ApiVersionsRequest
from parley.protocol.security.client_security import client_security
from parley.tools.cli.scram_users import alter_in_store, alterations
from tests.broker.security.secured_brokers import SecuredBrokers, bootstrap

MECHANISM = "SCRAM-SHA-256"
LINE = 'org.apache.kafka.common.security.scram.ScramLoginModule required username="broker" password="secret";'


async def test_a_broker_knows_the_users_before_it_accepts_connections(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    secured = SecuredBrokers(tmp_path)
    settings = secured.settings(1) | {
        "sasl.enabled.mechanisms": MECHANISM,
        "sasl.mechanism.inter.broker.protocol": MECHANISM,
        "listener.name.secure.scram-sha-256.sasl.jaas.config": LINE,
    }
    properties = secured.client_properties() | {"sasl.mechanism": MECHANISM, "sasl.jaas.config": LINE}
    starting = BrokerServer(BrokerConfig.from_properties(settings))
    logged_in = []

    async def log_in_and_join(environment: Environment, parts: Parts) -> None:
        assert not parts.metadata.image.scram_users
        async with Client(bootstrap(starting), security=client_security(properties)) as client:
            await client.send(ApiVersionsRequest())
        logged_in.append(True)
        await join_cluster(environment, parts)

    monkeypatch.setattr("parley.broker.server.join_cluster", log_in_and_join)
    async with await backend_factory({})(secured.store) as store:
        await alter_in_store(store, alterations("broker", {MECHANISM: "password=secret"}, ()))
        try:
            await starting.start()
            assert logged_in
        finally:
            await starting.stop()
