"""The broker in a Python program, in its own loop or in a thread."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from broker import Broker
from broker.config import ConfigError
from protocol.client import Client
from protocol.messages.metadata import MetadataRequest
from storage.directory import DirectoryInUse


async def topics(broker: Broker, *names: str) -> list[Any]:
    """Mention topics, so that they are created; what is said of them."""
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


async def test_in_a_thread() -> None:
    with Broker({"num.partitions": "2"}, auto_create_topics_enable=True) as broker:
        (topic,) = await topics(broker, "t")
        assert len(topic.partitions) == 2


async def test_several_side_by_side() -> None:
    async with Broker() as first, Broker() as second:
        await topics(first, "t")
        assert "t" in first.server.metadata.image.topics
        assert not second.server.metadata.image.topics


async def test_data_stays_where_a_directory_is_named(tmp_path: Path) -> None:
    for _ in range(2):
        async with Broker(data_dir=tmp_path) as broker:
            (topic,) = await topics(broker, "t")
            assert topic.error_code == 0
            known = topic.topic_id
    async with Broker(data_dir=tmp_path) as broker:
        assert broker.server.metadata.image.topics["t"].topic_id == known


async def test_temporary_data_goes() -> None:
    async with Broker() as broker:
        directory = Path(broker.server.logs.directories[0].path)
        assert directory.exists()  # noqa: ASYNC240
    assert not directory.exists()  # noqa: ASYNC240


def test_what_is_wrong_is_said_at_once(tmp_path: Path) -> None:
    with pytest.raises(TypeError, match="no_such_key"):
        Broker(no_such_key=1)
    with pytest.raises(ConfigError, match=r"num\.partitions"):
        Broker(num_partitions=0)
    with Broker(data_dir=tmp_path), pytest.raises(DirectoryInUse), Broker(data_dir=tmp_path):
        pytest.fail("two brokers on one directory")


def test_lists_and_booleans_are_written_as_properties() -> None:
    broker = Broker(log_cleanup_policy=["delete", "compact"], delete_topic_enable=False)
    config = broker._config("unused")
    assert tuple(config.log_cleanup_policy) == ("delete", "compact")
    assert config.delete_topic_enable is False
