"""Throttled clients: the response is sent immediately, the connection is not read, and no other connection waits."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Mapping
from contextlib import AbstractAsyncContextManager
from typing import Any

import pytest

from parley.broker.network.configured_limits import UNLIMITED
from parley.broker.network.connection import Connection
from parley.broker.network.listener import Listener
from parley.broker.network.refused_connections import HELD_MAX, RefusedConnections
from parley.broker.network.request_context import Handler, MaybeResponse, RequestContext
from parley.broker.quotas.connection_rates import ConnectionRates
from parley.broker.quotas.rates import Windows
from parley.protocol.codec import request_frame
from parley.protocol.messages.metadata import MetadataRequest, MetadataResponse
from parley.protocol.messages.produce import ProduceRequest, ProduceResponse
from tests.broker.network.harness import RawClient, eventually, produce, serving

METADATA = MetadataRequest(topics=[])
FOREVER_S = 3600.0


class Throttling:
    """Throttles the client "greedy", for ever."""

    def __init__(self) -> None:
        self.is_active = True
        self.charged: list[RequestContext] = []

    def _throttle_s(self, context: RequestContext) -> float:
        return FOREVER_S if context.client_id == "greedy" else 0.0

    def received(self, context: RequestContext, now_s: float) -> float:
        return self._throttle_s(context)

    def charge(self, context: RequestContext, response: MaybeResponse, now_s: float) -> tuple[MaybeResponse, float]:
        self.charged.append(context)
        return response, self._throttle_s(context)


def no_metadata(context: RequestContext, request: Any) -> MetadataResponse:
    return MetadataResponse(brokers=[], topics=[])


def throttled(
    throttling: Throttling, routes: Mapping[int, Handler] | None = None
) -> AbstractAsyncContextManager[Listener]:
    return serving(routes or {3: no_metadata}, throttling=throttling)


async def greedy_client(listener: Listener) -> tuple[RawClient, Connection]:
    before = set(listener._connections)
    client = await RawClient.connect(listener)
    client.client_id = "greedy"
    await eventually(lambda: len(listener._connections) > len(before))
    (connection,) = set(listener._connections) - before
    return client, connection


async def test_a_throttled_client_gets_its_response_at_once_and_is_then_not_read_from() -> None:
    throttling = Throttling()
    async with throttled(throttling) as listener:
        greedy, connection = await greedy_client(listener)
        other = await RawClient.connect(listener)
        await greedy.ask(METADATA, 1)
        assert listener.throttled_connections == 1
        await greedy.send(METADATA, 1)
        for _ in range(3):
            await other.ask(METADATA, 1)
        assert [context.client_id for context in throttling.charged] == ["greedy", "test", "test", "test"]
        connection._unmute()
        await greedy.answer(MetadataRequest, 1)
        await greedy.close()
        await other.close()
        connection._unmute()  # until then the broker cannot know that the client has disconnected
        await eventually(lambda: not listener._connections)
        assert listener.throttled_connections == 0
        assert listener.dispatcher.routes[3].metrics.throttle_seconds == 2 * FOREVER_S


async def test_requests_that_have_arrived_already_wait_too() -> None:
    throttling = Throttling()
    async with throttled(throttling) as listener:
        greedy, connection = await greedy_client(listener)
        for number in range(3):
            await greedy.send(METADATA, 1, number)
        for number in range(3):
            assert (await greedy.answer(MetadataRequest, 1))[0] == number
            assert len(throttling.charged) == number + 1
            connection._unmute()
        await greedy.close()


def large_frame() -> bytes:
    """Return a produce request that is received into its own memory."""
    return b"".join(request_frame(produce(records=b"x" * 1_000_000), 7, 9, "greedy"))


def produced(context: RequestContext, request: Any) -> ProduceResponse:
    return ProduceResponse(responses=[])


async def test_a_large_request_that_holds_memory_already_is_handled_and_no_other() -> None:
    throttling = Throttling()
    async with throttled(throttling, {0: produced, 3: no_metadata}) as listener:
        greedy, connection = await greedy_client(listener)
        first, large = b"".join(request_frame(METADATA, 1, 1, "greedy")), large_frame()
        greedy.writer.write(first + large[:300_000])
        await greedy.answer(MetadataRequest, 1)
        await eventually(lambda: listener.load.request_bytes_held > 0)
        assert listener.throttled_connections == 1
        greedy.writer.write(large[300_000:] + first)
        assert (await greedy.answer(ProduceRequest, 7))[0] == 9
        assert listener.load.request_bytes_held == 0
        other = await RawClient.connect(listener)
        for _ in range(3):
            await other.ask(METADATA, 1)
        assert [context.api_key for context in throttling.charged[:2]] == [3, 0]
        assert {context.client_id for context in throttling.charged[2:]} == {"test"}, "the next request waits"
        connection._unmute()
        await greedy.answer(MetadataRequest, 1)
        await greedy.close()
        await other.close()


async def test_a_throttled_client_does_not_keep_memory_that_others_wait_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("parley.broker.network.connection.RECEIVING_USUAL_S", 0.0)
    monkeypatch.setattr("parley.broker.network.load.CHECK_S", 0.01)
    handlers = {0: produced, 3: no_metadata}
    async with serving(handlers, throttling=Throttling(), queued_bytes=1_500_000) as listener:
        greedy, _ = await greedy_client(listener)
        small = b"".join(request_frame(METADATA, 1, 1, "greedy"))
        greedy.writer.write(2 * small + large_frame()[:300_000])  # the second request must wait, and what is behind it
        await greedy.answer(MetadataRequest, 1)
        await eventually(lambda: listener.load.request_bytes_held > 0)
        other = await RawClient.connect(listener)
        await other.ask(produce(records=b"x" * 1_000_000), 7)
        assert await greedy.is_closed()
        assert listener.load.request_bytes_held == 0
        await greedy.close()
        await other.close()


async def test_a_shorter_throttle_does_not_end_a_longer_one() -> None:
    async with throttled(Throttling()) as listener:
        greedy, connection = await greedy_client(listener)
        await greedy.ask(METADATA, 1)
        until = connection._mute
        connection._throttle(1.0)
        assert connection._mute is until
        connection._throttle(2 * FOREVER_S)
        assert connection._mute is not until
        assert listener.throttled_connections == 1
        await greedy.close()


async def test_behind_a_waiting_produce_request_that_exceeds_the_quota_none_begins() -> None:
    throttling, waiting = Throttling(), asyncio.Queue[asyncio.Future[Any]]()

    def produce(context: RequestContext, request: Any) -> asyncio.Future[Any]:
        future = asyncio.get_running_loop().create_future()
        waiting.put_nowait(future)
        return future

    async with throttled(throttling, {0: produce}) as listener:
        greedy, connection = await greedy_client(listener)
        request = ProduceRequest(acks=-1, timeout_ms=1000, topic_data=[])
        await greedy.send(request, 3, 1)
        await greedy.send(request, 3, 2)
        first = await waiting.get()
        assert listener.throttled_connections == 1
        first.set_result(ProduceResponse(responses=[]))
        assert (await greedy.answer(ProduceRequest, 3))[0] == 1
        assert waiting.empty()
        connection._unmute()
        (await waiting.get()).set_result(ProduceResponse(responses=[]))
        assert (await greedy.answer(ProduceRequest, 3))[0] == 2
        await greedy.close()


async def test_a_listener_stops_although_clients_are_throttled() -> None:
    async with throttled(Throttling()) as listener:
        greedy, _ = await greedy_client(listener)
        await greedy.ask(METADATA, 1)
    assert await greedy.is_closed()
    assert listener.throttled_connections == 0
    await greedy.close()


async def test_the_time_of_a_handler_that_waits_is_that_of_its_steps() -> None:
    clock, step = [0.0], asyncio.Event()

    async def handle(context: RequestContext, request: Any) -> MetadataResponse:
        clock[0] += 0.25
        await step.wait()
        clock[0] += 0.5
        try:
            await asyncio.wait_for(asyncio.Event().wait(), 0)
        except TimeoutError:
            clock[0] += 1.0
        return MetadataResponse(brokers=[], topics=[])

    throttling = Throttling()
    async with throttled(throttling, {3: handle}) as listener:
        listener.dispatcher.monotonic = lambda: clock[0]
        client = await RawClient.connect(listener)
        await client.send(METADATA, 1)
        await eventually(lambda: clock[0] == 0.25)
        clock[0] += 100.0  # other work
        step.set()
        await client.answer(MetadataRequest, 1)
        assert throttling.charged[-1].busy_s == 1.75
        await client.close()


async def test_no_quota_is_asked_while_there_is_none() -> None:
    throttling = Throttling()
    throttling.is_active = False
    async with throttled(throttling) as listener:
        greedy, _ = await greedy_client(listener)
        await greedy.ask(METADATA, 1)
        await greedy.ask(METADATA, 1)
        assert throttling.charged == []
        await greedy.close()


class Broken(Throttling):
    """Raises for every request."""

    def _throttle_s(self, context: RequestContext) -> float:
        raise TypeError("a broken quota")


async def test_a_quota_that_cannot_be_computed_costs_no_response(caplog: pytest.LogCaptureFixture) -> None:
    async def at_once(context: RequestContext, request: Any) -> MetadataResponse:
        return MetadataResponse(brokers=[], topics=[])

    def later(context: RequestContext, request: Any) -> asyncio.Future[Any]:
        future = asyncio.get_running_loop().create_future()
        future.get_loop().call_soon(future.set_result, ProduceResponse(responses=[]))
        return future

    async with throttled(Broken(), {0: later, 3: at_once}) as listener:
        client = await RawClient.connect(listener)
        for _ in range(2):
            await client.ask(METADATA, 1)
            await client.ask(ProduceRequest(acks=-1, timeout_ms=1000, topic_data=[]), 3)
        await client.close()
    assert "a request was not counted for quotas" in caplog.text


# --- Addresses that connect too fast ---


async def test_a_connection_beyond_the_rate_of_its_address_is_not_served_and_closed() -> None:
    rates = ConnectionRates(Windows(2, 1.0), {"127.0.0.1": 3.0}.get)
    async with serving({}, rates_by_host=rates, monotonic=lambda: 100.0) as listener:
        served = [await RawClient.connect(listener) for _ in range(3)]
        await eventually(lambda: len(listener) == 3)
        refused = await RawClient.connect(listener)
        await eventually(lambda: listener.metrics.rate_closed == 1)
        assert len(listener) == 3, "it counts for no limit"
        assert await refused.is_closed()
        for client in (*served, refused):
            await client.close()


async def test_a_listener_that_stops_closes_the_connections_that_it_holds() -> None:
    held = RefusedConnections()
    ours, theirs = socket.socketpair()
    held.hold(ours, FOREVER_S, UNLIMITED)
    held.close()
    held.close()
    assert theirs.recv(1) == b""
    theirs.close()


@pytest.mark.parametrize(("connections_max", "kept"), [(30, 3), (19, 1), (5, 1)])
async def test_a_process_with_few_descriptors_holds_few_sockets(connections_max: int, kept: int) -> None:
    held, pairs = RefusedConnections(), [socket.socketpair() for _ in range(4)]
    for ours, _ in pairs:
        held.hold(ours, FOREVER_S, connections_max)
    assert len(held) == kept
    held.close()
    for _, theirs in pairs:
        theirs.close()


async def test_sockets_that_are_not_served_make_room_before_clients_do() -> None:
    async with serving({}) as listener:
        client = await RawClient.connect(listener)
        await eventually(lambda: len(listener) == 1)
        ours, theirs = socket.socketpair()
        listener.quotas.hold(ours, FOREVER_S)
        listener.quotas.close_least_active()
        assert theirs.recv(1) == b""
        assert len(listener.evictable()) == 1, "the client stays"
        listener.quotas.close_least_active()
        await eventually(lambda: len(listener) == 0)
        theirs.close()
        await client.close()


async def test_the_sockets_that_are_held_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    assert HELD_MAX >= 100
    monkeypatch.setattr("parley.broker.network.refused_connections.HELD_MAX", 2)
    held, pairs = RefusedConnections(), [socket.socketpair() for _ in range(3)]
    for ours, _ in pairs:
        held.hold(ours, FOREVER_S, UNLIMITED)
    assert len(held) == 2
    assert pairs[0][1].recv(1) == b"", "the socket that was held for longest is closed"
    held.close()
    for _, theirs in pairs:
        theirs.close()
