"""A disk fails while its broker lives: other brokers lead its partitions, and the ISRs shrink."""

from __future__ import annotations

import asyncio
import errno
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from functools import partial
from pathlib import Path

import pytest

from parley.broker.config import BrokerConfig
from parley.broker.controller.elections.leader_reconciliation import reconcile_leaders
from parley.broker.controller.elections.requested_elections import ElectionType
from parley.broker.metadata.image import MetadataImage
from parley.broker.metadata.types import NO_LEADER, UNASSIGNED_DIRECTORY, PartitionState
from parley.broker.replication.offline_replicas import OfflineReplicas
from parley.broker.server import BrokerServer
from parley.protocol.client import Client
from parley.protocol.errors import ErrorCode
from parley.protocol.messages.cluster_metadata import ReportOfflineReplicasRequest, ReportOfflineReplicasResponse
from parley.protocol.messages.elections import ElectLeadersRequest
from parley.protocol.messages.topics import CreateTopicsRequest
from tests.broker.api.bench import BROKER, OTHER, Bench

pytestmark = pytest.mark.slow

PATIENCE_S = 30


@pytest.fixture
async def servers(tmp_path: Path) -> AsyncIterator[list[BrokerServer]]:
    """Three brokers with two log directories each."""
    async with AsyncExitStack() as stack:
        yield [await started(broker_id, tmp_path, stack) for broker_id in (1, 2, 3)]


async def started(broker_id: int, directory: Path, stack: AsyncExitStack) -> BrokerServer:
    settings = {
        "broker.id": str(broker_id),
        "listeners": "PLAINTEXT://127.0.0.1:0",
        "log.dirs": f"{directory}/{broker_id}/a,{directory}/{broker_id}/b",
        "coordination.url": f"local://{directory}/store",
        "replica.lag.time.max.ms": "600000",
    }
    server = BrokerServer(BrokerConfig.from_properties(settings))
    await server.start()
    stack.push_async_callback(server.stop)
    return server


def has_all_directories(image: MetadataImage) -> bool:
    """Return True if the metadata has the log directory of every replica."""
    return all(
        state.directory(broker) != UNASSIGNED_DIRECTORY
        for _, _, state in image.partitions()
        for broker in state.replicas
    )


async def test_leaders_move_from_a_failed_disk_and_isrs_go_on_without_it(servers: list[BrokerServer]) -> None:
    new = CreateTopicsRequest.CreatableTopic(
        name="t", num_partitions=6, replication_factor=3, assignments=[], configs=[]
    )
    async with Client(servers[0].bootstrap_servers) as client:
        await client.send(CreateTopicsRequest(topics=[new]))
    for server in servers:  # one broker has responded; the others may not know the topic yet
        assert await server.metadata.until(lambda image: "t" in image.topics, PATIENCE_S)
        await server.parts.partitions.until_opened()
        assert await server.metadata.until(has_all_directories, PATIENCE_S)
    for victim in servers[1:]:
        own = victim.identity.broker_id
        directory = victim.parts.logs.directories[0]
        lost = {log.partition for log in victim.parts.logs.logs_in(directory)}
        assert 0 < len(lost) < 6
        before = victim.metadata.image.topics["t"].partitions
        victim.parts.logs.failures.on_io_error(directory, OSError(errno.EIO, "injected"))
        assert await servers[0].metadata.until(
            lambda image, own=own, lost=lost: all(  # type: ignore[misc]
                own not in state.isr and state.leader not in (own, -1)
                for index, state in enumerate(image.topics["t"].partitions)
                if index in lost
            ),
            PATIENCE_S,
        )
        after = servers[0].metadata.image.topics["t"].partitions
        assert [state for index, state in enumerate(after) if index not in lost] == [
            state for index, state in enumerate(before) if index not in lost
        ]


async def test_the_last_replica_in_sync_has_no_disk_and_another_is_elected_on_demand(
    servers: list[BrokerServer], tmp_path: Path
) -> None:
    """The broker with the failed disk is alive, but is not elected repeatedly."""
    first, failing, behind = servers
    assignment = CreateTopicsRequest.CreatableReplicaAssignment(partition_index=0, broker_ids=[2, 3])
    new = CreateTopicsRequest.CreatableTopic(
        name="t", num_partitions=-1, replication_factor=-1, assignments=[assignment], configs=[]
    )

    def state_of(image: MetadataImage) -> PartitionState:
        return image.topics["t"].partitions[0]

    async with Client(first.bootstrap_servers) as client, AsyncExitStack() as stack:
        await client.send(CreateTopicsRequest(topics=[new]))
        assert await first.metadata.until(has_all_directories, PATIENCE_S)
        await behind.stop()
        assert await first.metadata.until(lambda image: state_of(image).isr == (2,), PATIENCE_S)
        (log,) = [log for log in failing.parts.logs.logs if log.topic == "t"]
        failing.parts.logs.failures.on_io_error(failing.parts.logs.directory_of(log), OSError(errno.EIO, "injected"))
        assert await first.metadata.until(lambda image: state_of(image).leader == NO_LEADER, PATIENCE_S)
        left = state_of(first.metadata.image)
        await started(3, tmp_path, stack)
        reconcile = partial(reconcile_leaders, rules=first.parts.rules)
        await first.parts.lifecycle.controller.submit(reconcile)
        assert state_of(first.metadata.image) == left
        topics = [ElectLeadersRequest.TopicPartitions(topic="t", partitions=[0])]
        request = ElectLeadersRequest(election_type=ElectionType.UNCLEAN, topic_partitions=topics, timeout_ms=1000)
        answer = await client.send(request)
        (result,) = answer.replica_election_results[0].partition_result
        assert result.error_code == ErrorCode.NONE
        assert await first.metadata.until(lambda image: state_of(image).leader == 3, PATIENCE_S)


async def test_the_last_replica_in_sync_has_no_disk_and_an_aggressive_recovery_elects_another(
    servers: list[BrokerServer], tmp_path: Path
) -> None:
    """The partition has a leader again as soon as the other replica is back, without a request."""
    first, failing, behind = servers
    new = CreateTopicsRequest.CreatableTopic(
        name="t",
        num_partitions=-1,
        replication_factor=-1,
        assignments=[CreateTopicsRequest.CreatableReplicaAssignment(partition_index=0, broker_ids=[2, 3])],
        configs=[CreateTopicsRequest.CreatableTopicConfig(name="unclean.recovery.strategy", value="Aggressive")],
    )

    def state_of(image: MetadataImage) -> PartitionState:
        return image.topics["t"].partitions[0]

    async with Client(first.bootstrap_servers) as client, AsyncExitStack() as stack:
        await client.send(CreateTopicsRequest(topics=[new]))
        await behind.stop()
        assert await first.metadata.until(lambda image: state_of(image).isr == (2,), PATIENCE_S)
        (log,) = [log for log in failing.parts.logs.logs if log.topic == "t"]
        failing.parts.logs.failures.on_io_error(failing.parts.logs.directory_of(log), OSError(errno.EIO, "injected"))
        assert await first.metadata.until(lambda image: state_of(image).last_known_elr == (2,), PATIENCE_S)
        await started(3, tmp_path, stack)
        assert await first.metadata.until(lambda image: state_of(image).leader == 3, PATIENCE_S)
        state = state_of(first.metadata.image)
        assert (state.isr, state.unclean_epoch) == ((3,), state.leader_epoch)


@pytest.mark.parametrize(("leader", "reported"), [(OTHER, [1]), (NO_LEADER, [])])
async def test_a_failed_replica_is_reported_before_a_later_recovery_would_wait_for_it(
    tmp_path: Path, leader: int, reported: list[int]
) -> None:
    """Without a leader, a recovery waits for it in any case, and a report would change nothing."""
    bench = Bench(tmp_path)
    await bench.create("t", partitions=2, replicas=(BROKER, OTHER))
    bench.alter("t", 0, leader=OTHER, isr=(OTHER,))
    bench.alter("t", 1, leader=leader, isr=(OTHER,), last_known_elr=(BROKER,))
    asked = asyncio.get_running_loop().create_future()

    async def ask(request: ReportOfflineReplicasRequest) -> ReportOfflineReplicasResponse:
        asked.set_result([index for topic in request.topics for index in topic.partitions])
        return ReportOfflineReplicasResponse()

    replicas = OfflineReplicas(BROKER, bench.partitions, ask, epoch=lambda: 1)
    for index in (0, 1):
        bench.partition("t", index).lose_log()
    replicas.report()
    reporting = asyncio.ensure_future(replicas.run())
    for _ in range(5):
        await bench.idle()
    assert (asked.result() if asked.done() else []) == reported
    reporting.cancel()
    await bench.tasks.close()
