"""Requests for the controller while there is none: they wait for the next one, or fail and name the store.

Requests that the controller refuses to take from the forwarding broker fail, too, each in its own way.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Coroutine
from types import SimpleNamespace
from typing import Any
from uuid import uuid4

import pytest

from parley.broker.api import forwarding
from parley.broker.controller import controller, topic_auto_creation
from parley.broker.embedded.cluster import Cluster
from parley.broker.network.dispatch import Dispatcher
from parley.broker.network.request_context import ConnectedClient
from parley.broker.security.principal import user
from parley.broker.security.session import ClientSession
from parley.consensus.memory import MemoryBackend
from parley.protocol.client import Client
from parley.protocol.codec import decode_from, request_frame
from parley.protocol.errors import ErrorCode
from parley.protocol.messages import APIS
from parley.protocol.messages.configs import IncrementalAlterConfigsRequest
from parley.protocol.messages.envelope import EnvelopeRequest, EnvelopeResponse
from parley.protocol.messages.metadata import MetadataRequest
from parley.protocol.messages.topics import CreateTopicsRequest
from parley.tools.cli.metadata import view
from tests.broker.api.test_every_version import codes, filled, fit, name_topics_once
from tests.broker.memory_store import memory_backend

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
    return [memory_backend(broker.server.parts.store_move.store.backend) for broker in cluster.brokers.values()]


async def refusals(bootstrap_servers: str) -> list[tuple[int, str | None, float]]:
    """Return the error code, message and duration of creating a topic, and of changing the configuration."""
    found = []
    async with Client(bootstrap_servers) as client:
        for request in (TOPICS, CONFIGS):
            response, took_s = await timed(client.send(request))
            first = response.topics[0] if request is TOPICS else response.responses[0]
            found.append((first.error_code, first.error_message, took_s))
    return found


async def timed(work: Coroutine[Any, Any, Any]) -> tuple[Any, float]:
    """Return the result and its duration. Time during which the whole process was frozen does not count."""
    task, ticks = asyncio.ensure_future(work), 0
    while not task.done():
        await asyncio.wait({task}, timeout=TICK_S)
        ticks += 1
    return task.result(), ticks * TICK_S


@pytest.mark.slow
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
            # On a machine that stands still, the session may have ended before. No broker is elected without the store.
            while any(server.parts.lifecycle.controller.is_active for server in servers):  # noqa: ASYNC110
                await asyncio.sleep(TICK_S)
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


class Refusing:
    """The other brokers, whose controller does not know this broker's principal."""

    async def ask_elected_controller(self, request: Any, local: Any, **how: Any) -> EnvelopeResponse:
        assert isinstance(request, EnvelopeRequest)
        return EnvelopeResponse(error_code=ErrorCode.CLUSTER_AUTHORIZATION_FAILED)


class Settled:
    async def until_settled(self) -> None:
        pass


def dispatcher_of_a_stranger() -> Dispatcher:
    """Return the dispatcher of a broker whose requests the controller refuses."""
    peers: Any = Refusing()
    other: Any = SimpleNamespace(is_active=False)
    settled: Any = Settled()
    forwarding_ = forwarding.Forwarding(other, peers, settled, lambda: None, uses_envelopes=lambda: True)
    return Dispatcher(forwarding_.around(dict.fromkeys(forwarding.FORWARDED, unreached)), monotonic=lambda: 0.0)


def unreached(context: Any, request: Any) -> Any:
    raise AssertionError("the request was handled here")


async def responded(dispatcher: Dispatcher, api_key: int, version: int) -> Any:
    """Return the response to a plausible request, as the client decodes it."""
    request: Any = filled(APIS[api_key].request, version, uuid4())
    fit(request, version)
    name_topics_once(request, version)
    frame = b"".join(bytes(part) for part in request_frame(request, version, 7, "my-client"))
    client = ConnectedClient(ClientSession(user("alice"), "10.0.0.1", "OUT"), 5)
    context, work = dispatcher.handle(client, memoryview(frame)[4:], 0.0)
    assert isinstance(work, Awaitable)
    response: Any = await dispatcher.work(context, work)
    parts: Any = dispatcher.encode(context, response, 0.0)  # the work of a connection that ends returns a Disconnect
    kind = APIS[api_key].response
    data = b"".join(bytes(part) for part in parts)[8 + (kind.header_version(version) >= 1) :]
    return decode_from(kind, version, memoryview(data), 0)[0]


@pytest.mark.parametrize("api_key", sorted(forwarding.FORWARDED), ids=lambda key: APIS[key].name)
async def test_an_envelope_that_the_controller_refuses_ends_no_connection(
    api_key: int, caplog: pytest.LogCaptureFixture
) -> None:
    dispatcher = dispatcher_of_a_stranger()
    supported = APIS[api_key].request.VERSIONS
    for version in range(supported.min, supported.max + 1):
        response = await responded(dispatcher, api_key, version)
        assert set(codes(response)) - {ErrorCode.NONE} == {ErrorCode.UNKNOWN_SERVER_ERROR}, f"version {version}"
    assert "The brokers' principal needs ClusterAction on the cluster." in str(response)  # the last version has it
    line = next(record for record in caplog.records if record.name == forwarding.__name__)  # the next one is due in 5 s
    assert line.getMessage() == "the controller rejected a forwarded request"
    assert "needs ClusterAction" in line.__dict__["reason"]
