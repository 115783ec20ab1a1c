"""A disk fails under a broker that lives: its partitions are led by others, and nobody waits for it."""

from __future__ import annotations

import errno
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path

import pytest

from broker.config import BrokerConfig
from broker.server import BrokerServer
from protocol.client import Client
from protocol.messages.topics import CreateTopicsRequest

PATIENCE_S = 30


@pytest.fixture
async def servers(tmp_path: Path) -> AsyncIterator[list[BrokerServer]]:
    """Three brokers with two log directories each."""
    async with AsyncExitStack() as stack:
        found = []
        for broker_id in (1, 2, 3):
            settings = {
                "broker.id": str(broker_id),
                "listeners": "PLAINTEXT://127.0.0.1:0",
                "log.dirs": f"{tmp_path}/{broker_id}/a,{tmp_path}/{broker_id}/b",
                "coordination.url": f"local://{tmp_path}/store",
                "replica.lag.time.max.ms": "600000",
            }
            server = BrokerServer(BrokerConfig.from_properties(settings))
            await server.start()
            stack.push_async_callback(server.stop)
            found.append(server)
        yield found


async def test_leaders_move_from_a_failed_disk_and_isrs_go_on_without_it(servers: list[BrokerServer]) -> None:
    new = CreateTopicsRequest.CreatableTopic(
        name="t", num_partitions=6, replication_factor=3, assignments=[], configs=[]
    )
    async with Client(servers[0].bootstrap_servers) as client:
        await client.send(CreateTopicsRequest(topics=[new]))
    for victim in servers[1:]:
        own = victim.identity.broker_id
        directory = victim.logs.directories[0]
        lost = {log.partition for log in victim.logs.logs_in(directory)}
        assert 0 < len(lost) < 6
        before = victim.metadata.image.topics["t"].partitions
        victim.logs._on_io_error(directory, OSError(errno.EIO, "injected"))
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
