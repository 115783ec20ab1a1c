"""The statements of docs/configuration.md are true: about keys, about presets, and about what a broker starts with."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from parley import Broker
from parley.broker.config import BrokerConfig, ConfigError
from parley.broker.config.keys.group_level import GroupLevelKeys
from parley.broker.config.keys.topic_level import TopicKeys
from parley.broker.config.presets import COMMAND, EMBEDDED
from parley.broker.config.retired import RETIRED
from parley.broker.server import BrokerServer
from parley.consensus.errors import BadConfig
from parley.consensus.registry import schemes
from parley.tools.cli import start

ROOT = Path(__file__).parents[2]

SHIPPED = """\
process.roles=broker,controller
node.id=1
controller.quorum.bootstrap.servers=localhost:9093
listeners=PLAINTEXT://:0,CONTROLLER://:9093
inter.broker.listener.name=PLAINTEXT
advertised.listeners=PLAINTEXT://localhost:9092,CONTROLLER://localhost:9093
controller.listener.names=CONTROLLER
listener.security.protocol.map=CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT,SSL:SSL,\\
  SASL_PLAINTEXT:SASL_PLAINTEXT,SASL_SSL:SASL_SSL
num.network.threads=3
num.io.threads=8
socket.send.buffer.bytes=102400
socket.receive.buffer.bytes=102400
socket.request.max.bytes=104857600
log.dirs={folder}
num.partitions=1
num.recovery.threads.per.data.dir=1
offsets.topic.replication.factor=1
share.coordinator.state.topic.replication.factor=1
share.coordinator.state.topic.min.isr=1
transaction.state.log.replication.factor=1
transaction.state.log.min.isr=1
log.retention.hours=168
log.segment.bytes=1073741824
log.retention.check.interval.ms=300000
"""
"""The settings of the server.properties of Apache Kafka 4, but for the port and the folder."""


async def test_the_file_that_comes_with_kafka_starts_a_broker(tmp_path: Path) -> None:
    path = tmp_path / "server.properties"
    path.write_text(SHIPPED.format(folder=tmp_path / "data"))
    config = start.configuration(path, [])
    assert not [warning for warning in config.warnings if "is not a configuration key" in warning], "every key is known"
    server = BrokerServer(config)
    await server.start()
    try:
        assert server.identity.broker_id == 1
        assert len(server.serving.listeners) == 1, "the controller's is not opened"
    finally:
        await server.stop()


@pytest.mark.parametrize(
    "given",
    [
        {"listeners": "PLAINTEXT://127.0.0.1:0,SSL://127.0.0.1:0"},
        {"super.users": "admin"},
    ],
)
def test_settings_that_restrict_access_and_cannot_are_refused(given: dict[str, str]) -> None:
    with pytest.raises(ConfigError):
        BrokerConfig.from_properties(given)


async def test_a_store_that_is_not_there_is_refused() -> None:
    with pytest.raises(BadConfig):
        await Broker({"coordination.url": "nosuch://127.0.0.1:1"}).__aenter__()


def test_the_stores_that_are_named_are_those_there_are() -> None:
    assert "docs/stores.md" in BrokerConfig.KEYS["coordination.url"].doc
    named = re.findall(r"^\| `([a-z]+):", (ROOT / "docs" / "stores.md").read_text(), re.MULTILINE)
    assert set(named) == set(schemes())


def test_brokers_start_with_the_presets(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    given = dict(start.configuration(None, []).static)
    assert given.pop("log.dirs") == str((tmp_path / COMMAND["log.dirs"]).absolute())
    assert given.pop("metrics.listener") in (COMMAND["metrics.listener"], "127.0.0.1:0")
    assert given == {name: value for name, value in COMMAND.items() if name not in ("log.dirs", "metrics.listener")}
    assert dict(Broker()._config("folder").static) == {**EMBEDDED, "log.dirs": "folder"}
    with_folder = {**EMBEDDED, "log.dirs": str(tmp_path)}
    del with_folder["coordination.url"]
    assert dict(Broker(data_dir=tmp_path)._config("").static) == with_folder


def test_keys_that_are_not_said_to_have_no_effect_are_read() -> None:
    """Each is read as an attribute or by its name, or through a key that takes its value from it."""
    folders = (
        ROOT / "parley" / name for name in ("broker", "configuration", "consensus", "protocol", "storage", "tools")
    )
    source = "\n".join(
        path.read_text()
        for folder in folders
        for path in folder.rglob("*.py")
        if path.parent.name != "keys" and path.name != "config_keys.py"
    )
    words = set(re.findall(r"\.([a-z_0-9]+)\b", source)) | set(re.findall(r"\"[a-z_.0-9]+\"", source))
    read_through = {name for key in BrokerConfig.KEYS.values() for name, _ in key.or_else}
    read_through |= {key.server for key in GroupLevelKeys.KEYS.values()}
    read_through |= {key.server for key in TopicKeys.KEYS.values() if not key.ignored}
    unread = [
        name
        for name, key in BrokerConfig.KEYS.items()
        if not key.ignored
        and not words & {key.attribute, f'"{name}"', f'"{key.attribute}"'}
        and name not in read_through
    ]
    assert unread == []
    assert [name for name, key in GroupLevelKeys.KEYS.items() if not words & {key.attribute}] == []
    assert [
        name for name, key in TopicKeys.KEYS.items() if not key.ignored and not words & {key.attribute, f'"{name}"'}
    ] == []


def test_keys_that_are_said_to_have_no_effect_are_not_read() -> None:
    """Rules about their values may name them (``validation``, ``dynamic_changes``), and so may the tools, which pass
    settings to clients."""
    folders = (ROOT / "parley" / name for name in ("broker", "consensus", "storage"))
    source = "\n".join(
        path.read_text()
        for folder in folders
        for path in folder.rglob("*.py")
        if path.parent.name != "keys" and path.name not in ("validation.py", "dynamic_changes.py")
    )
    read = set(re.findall(r"\.([a-z_0-9]+)\b", source))
    assert [name for name, key in BrokerConfig.KEYS.items() if key.ignored and key.attribute in read] == []
    assert [name for name, key in TopicKeys.KEYS.items() if key.ignored and key.attribute in read] == []


def test_keys_that_are_not_used_are_no_keys() -> None:
    assert not RETIRED.keys() & BrokerConfig.KEYS.keys()
