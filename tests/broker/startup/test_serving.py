"""The requests that a broker serves before it is registered."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest

from parley.broker import server as broker_server
from parley.broker.config import BrokerConfig
from parley.broker.server import BrokerServer
from parley.broker.startup.cluster_joining import join_cluster
from parley.protocol.client import Client
from parley.protocol.errors import KafkaError
from parley.protocol.messages.metadata import MetadataRequest
from parley.protocol.messages.replication import GetReplicaLogInfoRequest


def server_in(directory: Path) -> BrokerServer:
    settings = {"listeners": "PLAINTEXT://127.0.0.1:0", "log.dirs": str(directory), "broker.id": "1"}
    return BrokerServer(BrokerConfig.from_properties(settings))


async def test_a_broker_reports_its_logs_before_it_is_registered_and_serves_clients_afterwards(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = server_in(tmp_path)
    early: list[Any] = []

    async with AsyncExitStack() as stack:

        async def asked_before(*arguments: Any) -> None:
            client = await stack.enter_async_context(Client(server.bootstrap_servers))
            clients = await stack.enter_async_context(Client(server.bootstrap_servers))
            early.append(asyncio.ensure_future(clients.send(MetadataRequest(topics=None))))
            early.append(await client.send(GetReplicaLogInfoRequest(topic_partitions=None)))
            await client.send(GetReplicaLogInfoRequest(topic_partitions=None))
            assert not early[0].done()
            await join_cluster(*arguments)

        monkeypatch.setattr(broker_server, "join_cluster", asked_before)
        await server.start()
        stack.push_async_callback(server.stop)
        metadata = await early[0]
        assert [broker.node_id for broker in metadata.brokers] == [1]
        assert early[1].broker_epoch == -1
        assert early[1].incarnation_id == server.parts.lifecycle.incarnation_id
        client = await stack.enter_async_context(Client(server.bootstrap_servers))
        again = await client.send(GetReplicaLogInfoRequest(topic_partitions=None))
        assert again.broker_epoch == server.parts.lifecycle.registered_epoch > 0


async def test_a_client_that_waits_is_cut_off_if_the_start_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = server_in(tmp_path)
    async with AsyncExitStack() as stack:
        waiting: list[asyncio.Future[Any]] = []

        async def failing(*arguments: Any) -> None:
            client = await stack.enter_async_context(Client(server.bootstrap_servers))
            waiting.append(asyncio.ensure_future(client.send(MetadataRequest(topics=None))))
            await client.send(GetReplicaLogInfoRequest(topic_partitions=None))
            raise OSError("no")

        monkeypatch.setattr(broker_server, "join_cluster", failing)
        with pytest.raises(OSError, match="no"):
            await server.start()
        with pytest.raises(KafkaError):
            await waiting[0]
