"""Secrets are replaced while the cluster runs, by the steps of docs/security.md: records are written at each step."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from parley.broker.config import BrokerConfig
from parley.broker.server import BrokerServer
from parley.consensus.registry import backend_factory
from parley.protocol.client import Client
from parley.protocol.errors import KafkaError
from parley.protocol.messages.api_versions import ApiVersionsRequest
from parley.protocol.security.client_security import ClientSecurity, client_security
from parley.tools.cli.scram_users import alter, alter_in_store, alterations
from tests.broker.security.secured_brokers import SecuredBrokers
from tests.broker.security.test_inter_broker_security import endpoint, write_to_both
from tests.broker.test_server import create
from tests.support.certificates import Authority

MECHANISM = "SCRAM-SHA-256"
KEY = "listener.name.secure.scram-sha-256.sasl.jaas.config"


def scram_line(user: str) -> str:
    """Return the JAAS line of a user, whose password is its name."""
    return f'org.apache.kafka.common.security.scram.ScramLoginModule required username="{user}" password="{user}";'


class Cluster:
    """Two brokers that are restarted one after the other."""

    def __init__(self) -> None:
        self.brokers: dict[int, BrokerServer] = {}

    async def restart(self, broker_id: int, settings: dict[str, str]) -> None:
        if broker_id in self.brokers:
            await self.brokers[broker_id].stop()
        self.brokers[broker_id] = BrokerServer(BrokerConfig.from_properties(settings))
        await self.brokers[broker_id].start()

    def client(self, security: ClientSecurity) -> Client:
        return Client([endpoint(each, "SECURE") for each in self.brokers.values()], security=security)

    async def stop(self) -> None:
        for broker in self.brokers.values():
            await broker.stop()


@pytest.mark.slow
async def test_the_brokers_change_their_own_account(tmp_path: Path) -> None:
    secured, cluster = SecuredBrokers(tmp_path), Cluster()
    base = {
        "sasl.enabled.mechanisms": MECHANISM,
        "sasl.mechanism.inter.broker.protocol": MECHANISM,
        "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
    }
    stages = (
        {"super.users": "User:admin;User:first", KEY: scram_line("first")},
        {"super.users": "User:admin;User:first;User:second", KEY: scram_line("first")},
        {"super.users": "User:admin;User:first;User:second", KEY: scram_line("second")},
        {"super.users": "User:admin;User:second", KEY: scram_line("second")},
    )
    properties = secured.client_properties() | {"sasl.mechanism": MECHANISM, "sasl.jaas.config": scram_line("admin")}
    admin = client_security(properties)
    async with await backend_factory({})(secured.store) as store:
        for user in ("first", "admin"):
            await alter_in_store(store, alterations(user, {MECHANISM: f"password={user}"}, ()))
        try:
            for number, stage in enumerate(stages):
                if number == 1:
                    async with cluster.client(admin) as client:
                        await alter(client, alterations("second", {MECHANISM: "password=second"}, ()))
                if number == 3:
                    async with cluster.client(admin) as client:
                        await alter(client, alterations("first", {}, [MECHANISM]))
                for broker_id in (1, 2):
                    await cluster.restart(broker_id, secured.settings(broker_id) | base | stage)
                async with cluster.client(admin) as client:
                    if number == 0:
                        await create(client, "t", replicas=2)
                    await write_to_both(client)
        finally:
            await cluster.stop()


@pytest.mark.slow
async def test_another_authority_takes_over_without_a_restart(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("parley.broker.security.reload.FILES_LOOKED_AT_S", 0.05)
    secured, cluster, new = SecuredBrokers(tmp_path), Cluster(), Authority("another authority")
    trust = Path(secured.trust)
    settings = {broker_id: secured.settings(broker_id) for broker_id in (1, 2)}
    of_new = new.write(tmp_path / "new.pem")
    with_old = client_security(secured.client_properties())
    with_new = client_security(secured.client_properties() | {"ssl.truststore.location": str(of_new)})
    async with await backend_factory({})(secured.store):
        try:
            for broker_id in (1, 2):
                await cluster.restart(broker_id, settings[broker_id])
            async with cluster.client(with_old) as client:
                await create(client, "t", replicas=2)
                await write_to_both(client)
            _replace(trust, secured.authority.pem + new.pem)
            for broker_id in (1, 2):
                issued = new.issue(f"CN=broker-{broker_id}", "127.0.0.1", "localhost")
                _replace(tmp_path / f"broker-{broker_id}.pem", issued.key() + issued.chain)
            for broker in cluster.brokers.values():
                await _until_accepted(endpoint(broker, "SECURE"), with_new)
            _replace(trust, new.pem)
            await cluster.restart(2, settings[2])  # it connects to the other one with the new authority only
            async with cluster.client(with_new) as client:
                await write_to_both(client)
        finally:
            await cluster.stop()


def _replace(path: Path, content: str) -> None:
    """Replace a file in one step: a broker must not read half of it."""
    draft = path.with_suffix(".new")
    draft.write_text(content)
    draft.rename(path)


async def _until_accepted(address: tuple[str, int], security: ClientSecurity) -> None:
    """Wait until the broker has a certificate that the client accepts."""
    while True:
        try:
            async with Client([address], security=security) as client:
                await client.send(ApiVersionsRequest())
        except KafkaError:
            await asyncio.sleep(0.02)
        else:
            return
