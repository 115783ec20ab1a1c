"""A cluster in a Python program; stopping, killing and restarting its brokers."""

from __future__ import annotations

import errno
import socket
from pathlib import Path
from typing import Any

import pytest

from parley import Cluster
from parley.broker.config import ConfigError
from parley.protocol.client import Client
from parley.protocol.errors import KafkaError
from parley.protocol.messages.metadata import DescribeClusterRequest, MetadataRequest
from parley.protocol.messages.topics import CreateTopicsRequest


async def create(client: Client, name: str, replicas: list[list[int]]) -> None:
    request = CreateTopicsRequest
    topic = request.CreatableTopic(
        name=name,
        num_partitions=-1,
        replication_factor=-1,
        configs=[],
        assignments=[
            request.CreatableReplicaAssignment(partition_index=index, broker_ids=brokers)
            for index, brokers in enumerate(replicas)
        ],
    )
    answer = await client.send(CreateTopicsRequest(topics=[topic]), node=await client.controller())
    assert answer.topics[0].error_code == 0, answer


async def partitions(client: Client, name: str) -> list[Any]:
    (topic,) = (await client.metadata([name])).topics
    return sorted(topic.partitions, key=lambda one: one.partition_index)


async def brokers(client: Client) -> list[int]:
    return sorted(broker.broker_id for broker in (await client.send(DescribeClusterRequest())).brokers)


async def seen(cluster: Cluster, ids: list[int]) -> None:
    """Wait until every running broker sees exactly these brokers as alive."""
    for broker in cluster.brokers.values():
        if broker.is_running:
            async with Client(broker.bootstrap_servers) as client:
                while await brokers(client) != ids:
                    pass


async def test_a_killed_broker_is_replaced_and_comes_back() -> None:
    async with Cluster(brokers=3) as cluster:
        await seen(cluster, [1, 2, 3])
        port = cluster.brokers[1].port
        async with Client(cluster.bootstrap_servers.split(",")[1]) as client:
            await create(client, "t", [[1, 2, 3], [2, 3, 1]])
            assert [one.leader_id for one in await partitions(client, "t")] == [1, 2]
            await cluster.kill(1)
            assert not cluster.brokers[1].is_running
            await seen(cluster, [2, 3])
            assert all(one.leader_id in (2, 3) for one in await partitions(client, "t"))
            await cluster.restart(1)
            assert cluster.brokers[1].port == port
            await seen(cluster, [1, 2, 3])


async def test_connections_of_a_killed_broker_are_cut() -> None:
    async with Cluster(brokers=2) as cluster, Client(cluster.brokers[2].bootstrap_servers) as client:
        await client.metadata([])
        await cluster.kill(2)
        with pytest.raises(KafkaError):
            await client.send(MetadataRequest(topics=[]), node=2)


async def test_a_killed_broker_has_not_closed_its_logs(tmp_path: Path) -> None:
    async with Cluster(brokers=2, data_dir=tmp_path) as cluster:
        await seen(cluster, [1, 2])
        async with Client(cluster.bootstrap_servers) as client:
            await create(client, "t", [[1], [2]])
        await cluster.kill(1)
        await cluster.stop(2)
        assert not (tmp_path / "broker-1" / ".kafka_cleanshutdown").exists()
        assert (tmp_path / "broker-2" / ".kafka_cleanshutdown").exists()
    async with Cluster(brokers=2, data_dir=tmp_path) as cluster:
        await seen(cluster, [1, 2])
        async with Client(cluster.bootstrap_servers) as client:
            assert [one.replica_nodes for one in await partitions(client, "t")] == [[1], [2]]


async def test_all_may_be_down_for_a_while() -> None:
    async with Cluster(brokers=2) as cluster:
        await seen(cluster, [1, 2])
        async with Client(cluster.bootstrap_servers) as client:
            await create(client, "t", [[1]])
        await cluster.stop(1)
        await cluster.kill(2)
        await cluster.restart(2)
        await cluster.restart(1)
        await seen(cluster, [1, 2])
        async with Client(cluster.bootstrap_servers) as client:
            while (await partitions(client, "t"))[0].leader_id != 1:
                pass


async def test_no_other_program_gets_the_port_of_a_stopped_broker() -> None:
    async with Cluster(brokers=1) as cluster:
        broker = cluster.brokers[1]
        address = "127.0.0.1", broker.port
        await cluster.stop(1)
        with socket.socket() as other, pytest.raises(OSError, match="in use"):
            other.bind(address)
        with socket.socket() as client:
            assert client.connect_ex(address) == errno.ECONNREFUSED
        await cluster.restart(1)
        await seen(cluster, [1])
        assert broker.port == address[1]
    assert broker._kept is not None
    assert broker._kept.fileno() == -1, "it is closed with the cluster"


@pytest.mark.slow
def test_in_a_thread_methods_are_done_when_they_return() -> None:
    cluster = Cluster({"num.partitions": 2}, brokers=2, auto_create_topics_enable=False)
    with pytest.raises(RuntimeError, match="inside its with block"):
        _ = cluster.bootstrap_servers
    for _ in range(2):
        with cluster:
            assert len(cluster.bootstrap_servers.split(",")) == 2
            cluster.kill(1)
            assert not cluster.brokers[1].is_running
            with pytest.raises(RuntimeError, match="broker 1 is not running"):
                _ = cluster.brokers[1].server
            cluster.restart(1)
            assert cluster.brokers[1].server.metadata.image.brokers
            with pytest.raises(ValueError, match="no broker 3"):
                cluster.kill(3)
            with pytest.raises(RuntimeError, match="is already running"), cluster:
                pass


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        ({"brokers": 0}, ValueError),
        ({"properties": {"broker.id": 1}}, ValueError),
        ({"listeners": "PLAINTEXT://:9092"}, ValueError),
        ({"log_dirs": "/tmp"}, ValueError),
        ({"num_partitions": 0}, ConfigError),
        ({"no_such_setting": 0}, TypeError),
    ],
)
def test_contradictory_arguments_are_rejected(arguments: dict[str, Any], error: type[Exception]) -> None:
    with pytest.raises(error):
        Cluster(**arguments)


async def test_an_unknown_broker_id_is_named_in_the_error() -> None:
    async with Cluster(brokers=2) as cluster:
        for ask in (cluster.kill, cluster.stop, cluster.restart):
            with pytest.raises(ValueError, match="there is no broker 0 in this cluster; the ids are 1, 2"):
                await ask(0)
    with pytest.raises(ValueError, match="the ids are unknown outside its with block"):
        await cluster.kill(1)
