"""Brokers communicate over a secured listener: the controller's metadata, replication, forwarding."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from parley.broker.config import BrokerConfig, ConfigError
from parley.broker.security.inter_broker_security import InterBrokerSecurity
from parley.broker.security.tls import server
from parley.broker.server import BrokerServer
from parley.consensus.registry import backend_factory
from parley.protocol.client import Client
from parley.protocol.errors import ErrorCode
from parley.protocol.messages.cluster_metadata import FetchMetadataRequest
from parley.protocol.messages.produce import ProduceRequest
from parley.protocol.records.batch import build
from parley.protocol.records.record import Record
from parley.protocol.security.client_security import PLAINTEXT, client_security
from tests.broker.security.secured_brokers import SecuredBrokers
from tests.broker.test_server import create, end_offset, produce
from tests.support.certificates import Authority


@pytest.mark.parametrize("protocol", ["SSL", "SASL_PLAINTEXT", "SASL_SSL"])
async def test_brokers_replicate_and_forward(tmp_path: Path, protocol: str) -> None:
    secured = SecuredBrokers(tmp_path)
    async with (
        secured.running(*(secured.settings(each, protocol) for each in (1, 2))) as servers,
        secured.client(servers[1], protocol=protocol) as client,
    ):
        await create(client, "t", replicas=2)
        leader = await client.leader("t", 0)
        assert await produce(client, "t", [b"a", b"b"], node=leader) == 0
        assert await end_offset(client, "t", node=leader) == 2


@pytest.mark.parametrize("unused", ["sasl.jaas.config", "listener.name.saslplaintext.scram-sha-512.sasl.jaas.config"])
def test_a_login_between_brokers_under_another_key_is_recognized(unused: str) -> None:
    settings = {
        "listeners": "SASL_PLAINTEXT://:9092",
        "security.inter.broker.protocol": "SASL_PLAINTEXT",
        "sasl.enabled.mechanisms": "SCRAM-SHA-512",
        "sasl.mechanism.inter.broker.protocol": "SCRAM-SHA-512",
        unused: 'ScramLoginModule required username="a" password="marked";',
    }
    with pytest.raises(ConfigError) as refused:
        InterBrokerSecurity(lambda: BrokerConfig.from_properties(settings))
    assert str(refused.value) == (
        "listener.name.sasl_plaintext.scram-sha-512.sasl.jaas.config is empty: it must be set for the logins between "
        "brokers (sasl.mechanism=SCRAM-SHA-512 needs sasl.jaas.config with the ScramLoginModule). "
        f"{unused} has no effect"
    )


OPEN = {"listeners": "PLAINTEXT://127.0.0.1:0", "inter.broker.listener.name": "PLAINTEXT"}
BOTH = {"listeners": "PLAINTEXT://127.0.0.1:0,SECURE://127.0.0.1:0", "inter.broker.listener.name": "PLAINTEXT"}
MOVED = BOTH | {"inter.broker.listener.name": "SECURE"}
CLOSED = {"listeners": "SECURE://127.0.0.1:0", "inter.broker.listener.name": "SECURE"}
PROTOCOLS = {"listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,SECURE:SASL_SSL"}


@pytest.mark.slow
async def test_a_running_cluster_is_secured_broker_by_broker(tmp_path: Path) -> None:
    """Records are written to both replicas at each step: followers keep up, and clients find the leader."""
    secured = SecuredBrokers(tmp_path)
    brokers: dict[int, BrokerServer] = {}

    async def restart(broker_id: int, stage: dict[str, str]) -> None:
        if broker_id in brokers:
            await brokers[broker_id].stop()
        config = BrokerConfig.from_properties(secured.settings(broker_id) | PROTOCOLS | stage)
        brokers[broker_id] = BrokerServer(config)
        await brokers[broker_id].start()

    async def write(stage: dict[str, str]) -> None:
        listener = "SECURE" if stage is CLOSED else "PLAINTEXT"
        security = client_security(secured.client_properties()) if listener == "SECURE" else PLAINTEXT
        async with Client([endpoint(each, listener) for each in brokers.values()], security=security) as client:
            if stage is OPEN:
                await create(client, "t", replicas=2)
            await write_to_both(client)

    async with await backend_factory({})(secured.store):  # a store in memory lasts as long as one of its backends
        try:
            for stage in (OPEN, BOTH, MOVED, CLOSED):
                for broker_id in (1, 2):
                    await restart(broker_id, stage)
                await write(stage)
                if stage is MOVED:
                    for broker in brokers.values():
                        await until_closed_to_brokers(endpoint(broker, "PLAINTEXT"))
        finally:
            for broker in brokers.values():
                await broker.stop()


def endpoint(server: BrokerServer, listener: str) -> tuple[str, int]:
    found = next(each for each in server.endpoints if each.listener == listener)
    return found.host, found.port


async def until_closed_to_brokers(address: tuple[str, int]) -> None:
    """Ask for the metadata as a broker does, until the broker knows that no other broker uses the listener."""
    async with Client([address], client_id="broker-2") as client:
        request = FetchMetadataRequest(broker_id=2, controller_epoch=-1, version=-1, max_wait_ms=0)
        while (await client.send(request)).error_code != ErrorCode.CLUSTER_AUTHORIZATION_FAILED:  # noqa: ASYNC110
            await asyncio.sleep(0.02)


async def write_to_both(client: Client) -> None:
    """Write a record when both replicas are in the ISR. Leaders change after restarts: a client tries again then."""
    data = ProduceRequest.PartitionProduceData(index=0, records=build([Record(0, 1, None, b"a", ())]))
    sent = ProduceRequest.TopicProduceData(name="t", partition_data=[data])
    request = ProduceRequest(acks=-1, timeout_ms=1000, topic_data=[sent])
    while True:
        (topic,) = (await client.metadata(["t"])).topics
        if topic.partitions and topic.partitions[0].leader_id >= 0 and len(topic.partitions[0].isr_nodes) == 2:
            response = await client.send(request, version=9, node=topic.partitions[0].leader_id)
            code = ErrorCode(response.responses[0].partition_responses[0].error_code)
            if code is ErrorCode.NONE:
                return
            assert code.retriable
        await asyncio.sleep(0.02)


def test_a_replaced_key_store_is_read_again(tmp_path: Path) -> None:
    secured = SecuredBrokers(tmp_path)
    config = BrokerConfig.from_properties(secured.settings(1))
    security = InterBrokerSecurity(lambda: config)
    first = security.current()
    assert first.protocol == "SASL_SSL"
    assert security.current() is first
    (tmp_path / "broker-1.pem").write_text("damaged and longer")
    assert security.current() is first
    secured.settings(1)  # issues another certificate
    second = security.current()
    assert second is not first
    assert security.current() is second


@pytest.mark.parametrize("client_auth", ["none", "required"])
def test_a_certificate_that_other_brokers_refuse_is_not_sent(tmp_path: Path, client_auth: str) -> None:
    secured = SecuredBrokers(tmp_path)
    config = BrokerConfig.from_properties(secured.settings(1, "SSL") | {"ssl.client.auth": client_auth})
    security = InterBrokerSecurity(lambda: config)
    first = security.current()
    replacing = Authority("other").issue("CN=broker-1", "127.0.0.1", "localhost")
    replacing.write_pem(tmp_path / "broker-1.new").rename(tmp_path / "broker-1.pem")
    if client_auth == "none":  # then no broker sees it
        assert security.current() is not first
        return
    assert security.current() is first
    with pytest.raises(ConfigError, match=r"^ssl.keystore.location=.*unable to get local issuer certificate"):
        InterBrokerSecurity(lambda: config)


def test_a_listener_and_its_outgoing_connections_try_their_certificate_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tried = []
    monkeypatch.setattr(server, "refusal_of_own", lambda *settings: tried.append(settings))
    secured = SecuredBrokers(tmp_path)
    config = BrokerConfig.from_properties(secured.settings(1, "SSL") | {"ssl.client.auth": "required"})
    address = next(each for each in config.bound if each.name == config.inter_broker_listener)
    for _ in range(2):
        InterBrokerSecurity(lambda: config)
        server.check_between_brokers(address, config, server.server_tls(address, config).settings)
    assert len(tried) == 1
    secured.settings(1, "SSL")  # issues another certificate
    InterBrokerSecurity(lambda: config)
    assert len(tried) == 2


def test_changed_credentials_are_used_for_new_connections(tmp_path: Path) -> None:
    settings = SecuredBrokers(tmp_path).settings(1)
    current = [BrokerConfig.from_properties(settings)]
    security = InterBrokerSecurity(lambda: current[0])
    before = security.current()
    key = "listener.name.secure.plain.sasl.jaas.config"
    current[0] = BrokerConfig.from_properties(settings | {key: settings[key].replace("broker's", "other")})
    assert security.current().login != before.login


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"ssl.truststore.location": "/nowhere"}, "^ssl.truststore.location=/nowhere .*cannot be read"),
        ({"listener.name.secure.plain.sasl.jaas.config": 'a.PlainLoginModule required password="marked";'}, "username"),
        ({"sasl.mechanism.inter.broker.protocol": "GSSAPI", "sasl.enabled.mechanisms": "GSSAPI"}, "Krb5LoginModule"),
    ],
)
def test_invalid_security_settings_are_refused_at_startup(tmp_path: Path, changes: dict[str, str], reason: str) -> None:
    config = BrokerConfig.from_properties(SecuredBrokers(tmp_path).settings(1) | changes)
    with pytest.raises(ConfigError, match=reason) as raised:
        InterBrokerSecurity(lambda: config)
    assert "marked" not in str(raised.value)


def test_plaintext_needs_no_thread() -> None:
    assert InterBrokerSecurity(lambda: BrokerConfig.from_properties({})).is_plaintext
