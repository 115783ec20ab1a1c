"""The broker in a Python program, in the program's loop or in a thread."""

from __future__ import annotations

import socket
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient

from parley import Broker
from parley.broker.config import ConfigError
from parley.broker.server import BrokerServer
from parley.consensus.errors import Unavailable
from parley.protocol.client import Client
from parley.protocol.messages.metadata import MetadataRequest
from parley.storage.log_directory import DirectoryInUse
from parley.tools.cli.start import configuration
from tests.support.ports import free_port

PLAIN = "org.apache.kafka.common.security.plain.PlainLoginModule"


async def topics(broker: Broker, *names: str) -> list[Any]:
    """Request metadata of topics, which creates them; return the response."""
    assert broker.bootstrap_servers == f"127.0.0.1:{broker.port}"
    async with Client(broker.bootstrap_servers) as client:
        wanted = [MetadataRequest.MetadataRequestTopic(name=name) for name in names]
        answer: Any = await client.send(MetadataRequest(topics=wanted, allow_auto_topic_creation=True))
        return list(answer.topics)


async def test_in_the_running_loop() -> None:
    async with Broker(num_partitions=3) as broker:
        (topic,) = await topics(broker, "t")
        assert (topic.name, len(topic.partitions)) == ("t", 3)
    with pytest.raises(RuntimeError, match="inside its with block"):
        _ = broker.bootstrap_servers


def test_a_shared_address_has_the_security_of_its_listener_and_leads_to_the_brokers_own(tmp_path: Path) -> None:
    port = free_port()
    settings = {
        "listeners": "PLAINTEXT://127.0.0.1:0,USERS://127.0.0.1:0",
        "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,USERS:SASL_PLAINTEXT",
        "inter.broker.listener.name": "PLAINTEXT",
        "bootstrap.listeners": f"USERS://127.0.0.1:{port}",
        "listener.name.users.sasl.enabled.mechanisms": "PLAIN",
        "listener.name.users.plain.sasl.jaas.config": f'{PLAIN} required user_alice="a";',
    }
    login = {"security.protocol": "SASL_PLAINTEXT", "sasl.mechanism": "PLAIN", "sasl.username": "alice"}
    with Broker(settings, data_dir=tmp_path) as broker:
        own = next(each.port for each in broker.server.endpoints if each.listener == "USERS")
        client: dict[str, str | int | float] = {"bootstrap.servers": f"127.0.0.1:{port}", **login, "log_level": 0}
        found = AdminClient({**client, "sasl.password": "a"}).list_topics(timeout=30)
        assert [each.port for each in found.brokers.values()] == [own]
        refused = AdminClient({**client, "sasl.password": "wrong"})
        with pytest.raises(KafkaException):
            refused.list_topics(timeout=1)


def test_a_shared_address_that_is_taken_is_found_before_the_data_is_touched(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        with (
            pytest.raises(OSError, match=address),
            Broker({"bootstrap.listeners": f"PLAINTEXT://{address}"}, data_dir=tmp_path),
        ):
            pytest.fail("it started")
    assert not list(tmp_path.iterdir())


async def test_the_log_names_the_port_of_the_metrics(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level("INFO", "parley.broker.server"):
        async with Broker({"metrics.listener": "127.0.0.1:0"}) as broker:
            exporter = broker.server.serving.exporter
            assert exporter is not None
    (started,) = [each for each in caplog.records if each.getMessage() == "broker started"]
    assert vars(started)["metrics"] == f"127.0.0.1:{exporter.port}"


async def test_in_a_thread() -> None:
    with Broker({"num.partitions": "2"}, auto_create_topics_enable=True) as broker:
        (topic,) = await topics(broker, "t")
        assert len(topic.partitions) == 2


async def test_several_side_by_side() -> None:
    async with Broker() as first, Broker() as second:
        await topics(first, "t")
        assert "t" in first.server.metadata.image.topics
        assert not second.server.metadata.image.topics


async def test_data_in_a_given_directory_is_kept(tmp_path: Path) -> None:
    for _ in range(2):
        async with Broker(data_dir=tmp_path) as broker:
            (topic,) = await topics(broker, "t")
            assert topic.error_code == 0
            known = topic.topic_id
    async with Broker(data_dir=tmp_path) as broker:
        assert broker.server.metadata.image.topics["t"].topic_id == known


async def test_temporary_data_is_deleted() -> None:
    async with Broker() as broker:
        directory = Path(broker.server.parts.logs.directories[0].path)
        assert directory.exists()  # noqa: ASYNC240
    assert not directory.exists()  # noqa: ASYNC240


def test_mistakes_are_reported_by_the_constructor(tmp_path: Path) -> None:
    with pytest.raises(TypeError, match="no_such_key"):
        Broker(no_such_key=1)
    with pytest.raises(ConfigError, match=r"num\.partitions"):
        Broker(num_partitions=0)
    with Broker(data_dir=tmp_path), pytest.raises(DirectoryInUse), Broker(data_dir=tmp_path):
        pytest.fail("two brokers on one directory")


def test_values_are_written_as_in_python() -> None:
    broker = Broker(log_cleanup_policy=["delete", "compact"], delete_topic_enable=False)
    config = broker._config("unused")
    assert tuple(config.log_cleanup_policy) == ("delete", "compact")
    assert config.delete_topic_enable is False
    config = Broker({"num.partitions": 3, "auto.create.topics.enable": False})._config("unused")
    assert (config.num_partitions, config.auto_create_topics_enable) == (3, False)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"num.partitions": None}, r"num\.partitions=None .* leave"),
        ({"num.partitions": b"3"}, r"num\.partitions=b'3' .* use a string"),
        ({1: "x"}, "the key 1 .* server.properties"),
        ("server.properties", "read_configuration"),
    ],
)
def test_illegal_properties(given: Any, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        Broker(given)


def test_settings_that_contradict_each_other(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"data_dir and log\.dirs"):
        Broker({"log.dirs": str(tmp_path)}, data_dir=tmp_path)
    with pytest.raises(ValueError, match="port and listeners"):
        Broker(port=9092, listeners="PLAINTEXT://127.0.0.1:9093")
    with pytest.raises(TypeError, match="did you mean num_partitions"):
        Broker(num_partition=1)
    with pytest.raises(ValueError, match="broker_rack=None"):
        Broker(broker_rack=None)  # type: ignore[arg-type]


async def test_entering_twice() -> None:
    broker = Broker()
    async with broker:
        with pytest.raises(RuntimeError, match="another Broker"):
            await broker.__aenter__()
        with pytest.raises(RuntimeError, match="another Broker"):
            broker.__enter__()
        assert await topics(broker, "t"), "the first one goes on"
    async with broker:
        assert not broker.server.metadata.image.topics, "afterwards it is a new one"


@pytest.mark.parametrize("below", ["", "x"])
async def test_a_folder_that_cannot_be_written(tmp_path: Path, below: str) -> None:
    (tmp_path / "file").write_text("")
    broker = Broker(data_dir=tmp_path / "file" / below)
    for _ in range(2):  # also when tried again
        with pytest.raises(RuntimeError, match=r"(is not writable|cannot be created) .* data_dir"):
            await broker.__aenter__()
        with pytest.raises(RuntimeError, match=r"(is not writable|cannot be created) .* data_dir"):
            broker.__enter__()


async def test_data_in_log_dirs_stays_too(tmp_path: Path) -> None:
    for _ in range(2):
        async with Broker(log_dirs=tmp_path) as broker:
            await topics(broker, "t")
    async with Broker(data_dir=tmp_path) as broker:
        assert "t" in broker.server.metadata.image.topics


async def test_the_broker_id_comes_from_the_folder_or_is_generated(tmp_path: Path) -> None:
    async with Broker(data_dir=tmp_path / "a", broker_id=7):
        pass
    async with Broker(data_dir=tmp_path / "a") as broker:
        assert broker.server.identity.broker_id == 7
    server = BrokerServer(configuration(None, [f"log.dirs={tmp_path / 'b'}", "listeners=PLAINTEXT://127.0.0.1:0"]))
    await server.start()
    await server.stop()
    async with Broker(data_dir=tmp_path / "b") as broker:
        assert broker.server.identity == replace(server.identity, is_new=False)
    async with Broker() as broker:
        assert broker.server.identity.broker_id == server.identity.broker_id == 1001


async def test_a_configured_store_is_used() -> None:
    settings = {"zookeeper.connect": "127.0.0.1:1", "zookeeper.connection.timeout.ms": "100"}
    with pytest.raises(Unavailable, match=r"no ZooKeeper server of 127\.0\.0\.1:1 responds") as refused:
        await Broker(settings).__aenter__()
    assert refused.value.__notes__ == ["The broker did not start: it was opening the coordination store."]
