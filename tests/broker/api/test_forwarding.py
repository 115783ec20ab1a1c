"""Requests for the controller while there is none: they wait for the next one, or fail and name the store."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Coroutine
from typing import Any

import pytest

from parley.broker.api import forwarding
from parley.broker.controller import controller, topic_auto_creation
from parley.broker.embedded.cluster import Cluster
from parley.consensus.memory import MemoryBackend
from parley.protocol.client import Client
from parley.protocol.errors import ErrorCode
from parley.protocol.messages.configs import IncrementalAlterConfigsRequest
from parley.protocol.messages.metadata import MetadataRequest
from parley.protocol.messages.topics import CreateTopicsRequest
from parley.tools.cli.metadata import view

PATIENCE_S = 0.4
TICK_S = 0.02
TOPICS = CreateTopicsRequest(
    topics=[
        CreateTopicsRequest.CreatableTopic(name="t", num_partitions=1, replication_factor=1, assignments=[], configs=[])
    ]
)
CONFIGS = IncrementalAlterConfigsRequest(
    resources=[
        IncrementalAlterConfigsRequest.AlterConfigsResource(
            resource_type=4,
            resource_name="",
            configs=[
                IncrementalAlterConfigsRequest.AlterableConfig(
                    name="log.retention.ms", config_operation=0, value="600000"
                )
            ],
        )
    ],
    validate_only=False,
)


def backends(cluster: Cluster) -> list[MemoryBackend]:
    """Each broker's client of the store."""
    found = [broker.server.parts.store_move.store.backend for broker in cluster.brokers.values()]
    assert all(isinstance(backend, MemoryBackend) for backend in found)
    return found  # type: ignore[return-value]


async def refusals(bootstrap_servers: str) -> list[tuple[int, str | None, float]]:
    """The error code, message and duration of creating a topic, and of changing the configuration."""
    found = []
    async with Client(bootstrap_servers) as client:
        for request in (TOPICS, CONFIGS):
            response, took_s = await timed(client.send(request))
            first = response.topics[0] if request is TOPICS else response.responses[0]
            found.append((first.error_code, first.error_message, took_s))
    return found


async def timed(work: Coroutine[Any, Any, Any]) -> tuple[Any, float]:
    """Return the result and its duration. For how long the whole process stood still meanwhile does not count."""
    task, ticks = asyncio.ensure_future(work), 0
    while not task.done():
        await asyncio.wait({task}, timeout=TICK_S)
        ticks += 1
    return task.result(), ticks * TICK_S


@pytest.mark.parametrize("session_ttl_ms", [60_000, 1_000], ids=["controller keeps its office", "controller resigns"])
async def test_with_the_store_away_a_change_fails_in_time_and_names_the_store(
    session_ttl_ms: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(forwarding, "ELECTED_MAX_S", PATIENCE_S)
    monkeypatch.setattr(controller, "STORE_PATIENCE_S", PATIENCE_S)
    monkeypatch.setattr(controller, "STORE_CHECK_S", 0.02)
    async with Cluster(brokers=2, coordination_session_timeout_ms=session_ttl_ms) as cluster:
        servers = [broker.server for broker in cluster.brokers.values()]
        for backend in backends(cluster):
            backend.disconnect()
        if session_ttl_ms < 10_000:
            (leadership,) = filter(None, (server.parts.lifecycle.controller._leadership for server in servers))
            await leadership.lost.wait()
        for server in servers:
            for code, message, took_s in await refusals(server.bootstrap_servers):
                assert code == ErrorCode.REQUEST_TIMED_OUT
                assert message is not None
                assert re.match(
                    r"The coordination store \(memory\) (does not respond|has not responded for \d+ s)", message
                )
                assert took_s < 5 * PATIENCE_S
            async with Client(server.bootstrap_servers) as client:
                (warning,) = (await view(client)).warnings
            assert re.match(
                r"the coordination store (does not respond|\(memory\) has not responded for \d+ s).*: no broker",
                warning,
            )
        for backend in backends(cluster):
            backend.reconnect()


async def test_automatic_topic_creation_waits_for_the_next_controller(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(topic_auto_creation, "ELECTED_MAX_S", 60.0)
    async with Cluster(brokers=3, coordination_session_timeout_ms=600_000) as cluster:
        first = cluster.brokers[1].server.metadata.image.controller_id
        follower = cluster.brokers[first % 3 + 1].server
        await cluster.kill(first)
        mentioned = MetadataRequest(topics=[MetadataRequest.MetadataRequestTopic(name="new")])
        async with Client(follower.bootstrap_servers) as client:
            response = await client.send(mentioned)
        assert [topic.error_code for topic in response.topics] == [ErrorCode.NONE]
        assert follower.metadata.image.controller_id != first
