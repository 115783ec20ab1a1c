"""Partitions, leaders and brokers that move, in a cluster over real sockets."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from broker.cluster import Cluster
from broker.metadata.image import MetadataImage
from broker.server import BrokerServer
from protocol.client import Client
from protocol.errors import ErrorCode
from protocol.messages.elections import (
    AlterPartitionReassignmentsRequest,
    ElectLeadersRequest,
    ListPartitionReassignmentsRequest,
)
from protocol.messages.quorum import UnregisterBrokerRequest
from protocol.messages.topics import CreateTopicsRequest
from protocol.schema import Request

PATIENCE_S = 30
TOPIC = "t"


def server(cluster: Cluster, broker_id: int) -> BrokerServer:
    return cluster.brokers[broker_id].server


async def seen(cluster: Cluster, holds: Callable[[MetadataImage], bool]) -> None:
    """Wait until every running broker sees it so."""
    for broker in cluster.brokers.values():
        if broker.is_running:
            metadata = broker.server.metadata
            assert await metadata.until(holds, PATIENCE_S), metadata.image


async def ask(cluster: Cluster, broker_id: int, request: Request) -> Any:
    async with Client(server(cluster, broker_id).bootstrap_servers) as client:
        return await client.send(request)


async def create(cluster: Cluster, *replicas: int) -> None:
    assignment = CreateTopicsRequest.CreatableReplicaAssignment(partition_index=0, broker_ids=list(replicas))
    topic = CreateTopicsRequest.CreatableTopic(
        name=TOPIC, num_partitions=-1, replication_factor=-1, assignments=[assignment], configs=[]
    )
    answer = await ask(cluster, 1, CreateTopicsRequest(topics=[topic]))
    assert answer.topics[0].error_code == ErrorCode.NONE


def move(*replicas: int) -> AlterPartitionReassignmentsRequest:
    partition = AlterPartitionReassignmentsRequest.ReassignablePartition(partition_index=0, replicas=list(replicas))
    topic = AlterPartitionReassignmentsRequest.ReassignableTopic(name=TOPIC, partitions=[partition])
    return AlterPartitionReassignmentsRequest(topics=[topic])


def partition_is(**facts: Any) -> Callable[[MetadataImage], bool]:
    """Whether the partition's state has these values."""

    def holds(image: MetadataImage) -> bool:
        state = image.partition(TOPIC, 0)
        return state is not None and all(getattr(state, name) == value for name, value in facts.items())

    return holds


async def test_a_partition_moves_to_other_brokers_and_its_leader_with_it() -> None:
    async with Cluster(brokers=3) as cluster:
        await create(cluster, 1, 2)
        answer = await ask(cluster, 2, move(3, 2))
        assert answer.error_code == ErrorCode.NONE
        await seen(cluster, partition_is(replicas=(3, 2), leader=3, adding=(), removing=()))
        listed = await ask(cluster, 1, ListPartitionReassignmentsRequest(topics=None))
        assert listed.topics == []


async def test_a_broker_that_returns_leads_again_when_asked() -> None:
    async with Cluster(brokers=3) as cluster:
        await create(cluster, 1, 2, 3)
        await cluster.stop(1)
        await seen(cluster, partition_is(leader=2))
        await cluster.restart(1)
        await seen(cluster, lambda image: 1 in getattr(image.partition(TOPIC, 0), "isr", ()))
        answer = await ask(cluster, 3, ElectLeadersRequest(topic_partitions=None))
        assert answer.error_code == ErrorCode.NONE
        await seen(cluster, partition_is(leader=1))


async def test_a_broker_is_taken_out_of_the_cluster_for_good() -> None:
    async with Cluster(brokers=3) as cluster:
        await create(cluster, 1, 2)
        alive = await ask(cluster, 2, UnregisterBrokerRequest(broker_id=1))
        assert alive.error_code == ErrorCode.INVALID_REQUEST
        await ask(cluster, 2, move(2, 3))
        await seen(cluster, partition_is(replicas=(2, 3), adding=(), removing=()))
        await cluster.stop(1)
        await seen(cluster, lambda image: image.brokers[1].fenced)
        gone = await ask(cluster, 2, UnregisterBrokerRequest(broker_id=1))
        assert gone.error_code == ErrorCode.NONE
        await seen(cluster, lambda image: 1 not in image.brokers)
