"""Connections: order, back-pressure and limits; a misbehaving client harms only itself."""

from __future__ import annotations

import asyncio
import inspect
import itertools
import logging
import resource
import socket
import struct
import time
import tracemalloc
from collections.abc import Awaitable, Callable, Coroutine, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
import uvloop

from parley.broker.network import acceptor
from parley.broker.network.configured_limits import Limits, ListenerLimits
from parley.broker.network.connection import TURN_S, UNSENT_MAX, Connection, ConnectionState
from parley.broker.network.connection_quotas import ConnectionRate
from parley.broker.network.dispatch import ON_LOOP_ELEMENTS_MAX
from parley.broker.network.listener import CLOSED_LOGGED_PER_SECOND, Listener, bind
from parley.broker.network.load import Load
from parley.broker.network.request_context import Disconnect, RequestContext
from parley.broker.network.request_turns import ONLY_URGENT_S, SHARE_S, RequestTurns
from parley.broker.runtime.purgatory import Delayed
from parley.broker.runtime.states import IllegalStep
from parley.protocol.codec import request_frame
from parley.protocol.decoding import REQUEST_ELEMENTS_MAX
from parley.protocol.errors import ErrorCode, KafkaError
from parley.protocol.messages.api_versions import ApiVersionsRequest
from parley.protocol.messages.fetch import FetchRequest, FetchResponse
from parley.protocol.messages.groups import LeaveGroupRequest, SyncGroupRequest, SyncGroupResponse
from parley.protocol.messages.metadata import MetadataRequest, MetadataResponse
from parley.protocol.messages.produce import ProduceRequest, ProduceResponse
from parley.protocol.messages.topics import DeleteTopicsRequest
from parley.protocol.messages.transactions import EndTxnRequest, EndTxnResponse
from parley.protocol.schema import Request, Response
from parley.storage.resource_exhaustion import MEMORY
from tests.broker.network.harness import Clock, RawClient, eventually, produce, serving
from tests.support.descriptors import descriptors_left
from tests.support.own_process import in_own_process
from tests.support.ports import free_port

VERSIONS_3 = ApiVersionsRequest(client_software_name="test", client_software_version="1")
VERSIONS_0 = ApiVersionsRequest()
METADATA = MetadataRequest(topics=[])
METADATA_ANSWER = MetadataResponse(brokers=[], topics=[])
MEMORY_LEFT = 64 << 20
"""The number of bytes that a process without memory can still allocate."""
END_TXN = EndTxnRequest(transactional_id="id", producer_id=1, producer_epoch=0, committed=True)


def fetch() -> FetchRequest:
    return FetchRequest(max_wait_ms=0, min_bytes=0, topics=[])


def received(connection: Connection, request: Request, correlation_id: int = 1) -> None:
    """Have a connection read a request (version 1), as if the event loop had found it in the socket."""
    frame = b"".join(request_frame(request, 1, correlation_id, "test"))
    connection.get_buffer(-1)[: len(frame)] = frame
    connection.buffer_updated(len(frame))


class Held:
    """A handler that responds to each request when the test calls ``release``."""

    def __init__(self, answer: Any) -> None:
        self.answer = answer
        self.futures: list[asyncio.Future[Any]] = []
        self.begun = asyncio.Semaphore(0)

    def __call__(self, context: RequestContext, request: Any) -> Awaitable[Any]:
        future = asyncio.get_running_loop().create_future()
        self.futures.append(future)
        self.begun.release()
        return future

    async def wait_for(self, count: int) -> None:
        while len(self.futures) < count:
            await self.begun.acquire()

    def release(self, index: int) -> None:
        self.futures[index].set_result(self.answer)


async def test_an_api_versions_response_lists_the_routed_apis() -> None:
    async with serving({0: lambda context, request: None, 3: lambda context, request: None}) as listener:
        client = await RawClient.connect(listener)
        answer = await client.ask(VERSIONS_3, 3)
        assert [key.api_key for key in answer.api_keys] == [0, 3, 17, 18, 36]
        assert answer.error_code == 0
        await client.close()


async def test_a_turn_ends_although_each_read_brings_one_request() -> None:
    """uvloop reads from one connection several times before it serves another, and requests may be slow."""
    clock, begun = [0.0], []

    def slow(context: RequestContext, request: Any) -> EndTxnResponse:
        begun.append(context.correlation_id)
        clock[0] += TURN_S * 0.6
        return EndTxnResponse()

    async with serving({26: slow}, monotonic=lambda: clock[0]) as listener:
        client = await RawClient.connect(listener)
        await eventually(lambda: bool(listener._connections))
        (connection,) = listener._connections
        for number in range(6):
            received(connection, END_TXN, number)
        assert begun == [0, 1]
        for expected in range(6):
            assert (await client.answer(EndTxnRequest, 1))[0] == expected
        assert begun == [0, 1, 2, 3, 4, 5]
        await client.close()


@pytest.mark.parametrize(("asked", "at_once_max"), [(METADATA, 1), (END_TXN, 3)])
async def test_many_clients_do_not_keep_the_event_loop_from_other_work(asked: Request, at_once_max: int) -> None:
    """Slow requests of many connections, which all arrive at once, leave time for the broker's own tasks."""
    clock, begun, other_work = [0.0], [0], []

    def slow(context: RequestContext, request: Any) -> Response:
        begun[0] += 1
        clock[0] += SHARE_S * 0.4
        return METADATA_ANSWER if context.api_key == METADATA.API_KEY else EndTxnResponse()

    async with serving({asked.API_KEY: slow}, monotonic=lambda: clock[0]) as listener:
        clients = [await RawClient.connect(listener) for _ in range(9)]
        await eventually(lambda: len(listener._connections) == 9)
        for connection in listener._connections:
            for _ in range(2):
                received(connection, asked)
        while begun[0] < 18:
            other_work.append(begun[0])
            await asyncio.sleep(0)
        assert max(later - earlier for earlier, later in itertools.pairwise([0, *other_work, 18])) == at_once_max
        for client in clients:
            assert [(await client.answer(type(asked), 1))[0] for _ in range(2)] == [1, 1]
            await client.close()


async def test_a_commit_does_not_wait_for_the_requests_of_other_clients() -> None:
    """It begins when it is read, however many requests wait, unless the same client sent one of them before it."""
    clock, begun = [0.0], list[tuple[int, int]]()

    def slow(context: RequestContext, request: Any) -> Response:
        begun.append((context.api_key, context.correlation_id))
        clock[0] += ONLY_URGENT_S
        return METADATA_ANSWER if context.api_key == METADATA.API_KEY else EndTxnResponse()

    async with serving({3: slow, 26: slow}, monotonic=lambda: clock[0]) as listener:
        clients = [await RawClient.connect(listener) for _ in range(4)]
        await eventually(lambda: len(listener._connections) == 4)
        first, second, third, committer = listener._connections
        received(first, METADATA, 1)
        received(second, METADATA, 2)
        received(third, METADATA, 3)
        received(third, END_TXN, 4)
        received(committer, END_TXN, 5)
        assert begun == [(3, 1), (26, 5)]
        await eventually(lambda: len(begun) == 5)
        assert begun[2:] == [(3, 2), (3, 3), (26, 4)]
        for client in clients:
            await client.close()


async def test_a_client_is_read_on_while_a_single_request_waits_for_its_turn() -> None:
    """To pause and resume takes two system calls, and most clients send nothing before they have the response."""
    clock = [0.0]

    def slow(context: RequestContext, request: Any) -> Response:
        clock[0] += ONLY_URGENT_S
        return METADATA_ANSWER

    async with serving({3: slow}, monotonic=lambda: clock[0]) as listener:
        clients = [await RawClient.connect(listener) for _ in range(2)]
        await eventually(lambda: len(listener._connections) == 2)
        first, second = listener._connections
        received(first, METADATA, 1)
        received(second, METADATA, 2)
        assert second._reading
        received(second, METADATA, 3)
        assert not second._reading, "a client with two waiting requests sends no more of them into memory"
        assert [(await clients[1].answer(type(METADATA), 1))[0] for _ in range(2)] == [2, 3]
        assert second._reading
        for client in clients:
            await client.close()


async def test_an_error_in_one_turn_does_not_hold_up_the_others() -> None:
    turns, begun, errors = RequestTurns(), asyncio.Event(), []

    def fail() -> None:
        raise ValueError("a bug")

    asyncio.get_running_loop().set_exception_handler(lambda loop, context: errors.append(context["exception"]))
    turns.wait("a", fail)
    turns.wait("a", begun.set)
    await begun.wait()
    assert [type(error) for error in errors] == [ValueError]


def test_a_client_may_have_half_of_the_requests_in_progress() -> None:
    load = Load(5, -1)
    for client in ("eve", "eve", "eve"):
        assert load.has_room(client)
        load.begin(client)
    assert load.is_crowded
    assert not load.has_room("eve")
    for _ in range(2):
        assert load.has_room("alice")
        load.begin("alice")
    assert not load.has_room("bob")
    load.end("eve")
    assert load.has_room("eve")
    assert load.has_room("bob")


class Counting(ThreadPoolExecutor):
    """Counts what is done in threads."""

    calls = 0

    def submit(self, *args: Any, **kwargs: Any) -> Any:
        self.calls += 1
        return super().submit(*args, **kwargs)


def topics_asked(count: int) -> MetadataRequest:
    return MetadataRequest(topics=[MetadataRequest.MetadataRequestTopic(name=f"t{each}") for each in range(count)])


async def test_a_request_with_very_many_elements_is_decoded_and_its_response_encoded_in_a_thread() -> None:
    asked: list[int] = []

    async def answer(context: RequestContext, request: MetadataRequest) -> MetadataResponse:
        asked.append(len(request.topics or ()))
        return MetadataResponse(brokers=[], topics=[])

    executor = Counting(1)
    asyncio.get_running_loop().set_default_executor(executor)
    async with serving({3: answer}) as listener:
        client = await RawClient.connect(listener)
        await client.ask(topics_asked(ON_LOOP_ELEMENTS_MAX), 1)
        assert (asked, executor.calls) == ([1000], 0)
        await client.ask(topics_asked(ON_LOOP_ELEMENTS_MAX + 1), 1)
        assert (asked, executor.calls) == ([1000, 1001], 2)
        await client.send(topics_asked(REQUEST_ELEMENTS_MAX + 1), 1)
        assert await client.is_closed()
        assert executor.calls == 3
        await client.close()


async def test_an_error_of_a_request_with_very_many_elements_is_in_its_response() -> None:
    def refuse(context: RequestContext, request: LeaveGroupRequest) -> Any:
        raise KafkaError(ErrorCode.GROUP_AUTHORIZATION_FAILED)

    members = [LeaveGroupRequest.MemberIdentity(member_id=f"m{each}") for each in range(ON_LOOP_ELEMENTS_MAX + 1)]
    async with serving({LeaveGroupRequest.API_KEY: refuse}) as listener:
        client = await RawClient.connect(listener)
        response = await client.ask(LeaveGroupRequest(group_id="g", members=members), 3)
        assert response.error_code == ErrorCode.GROUP_AUTHORIZATION_FAILED
        await client.close()


async def test_unsupported_api_versions_is_answered_in_version_0() -> None:
    async with serving({}) as listener:
        client = await RawClient.connect(listener)
        client.writer.write(struct.pack(">ihhihB", 11, 18, 99, 7, -1, 0))
        correlation_id, answer = await client.answer(ApiVersionsRequest, 0)
        assert correlation_id == 7
        assert answer.error_code == ErrorCode.UNSUPPORTED_VERSION
        assert [(key.api_key, key.min_version, key.max_version) for key in answer.api_keys] == [(18, 0, 4)]
        assert (await client.ask(VERSIONS_0, 0)).error_code == 0
        await client.close()


async def test_bytes_after_a_request_are_ignored() -> None:
    """librdkafka 2.16 asks for all topics with an array count of the old form in a flexible version."""
    async with serving({}) as listener:
        client = await RawClient.connect(listener)
        client.writer.write(struct.pack(">ihhih", 10 + 3, 18, 0, 7, -1) + b"abc")
        correlation_id, answer = await client.answer(ApiVersionsRequest, 0)
        assert (correlation_id, answer.error_code) == (7, 0)
        await client.close()


@pytest.mark.parametrize("name", ["", "-librdkafka", "a b", "é"])
async def test_client_software_names_are_checked(name: str) -> None:
    async with serving({}) as listener:
        client = await RawClient.connect(listener)
        request = ApiVersionsRequest(client_software_name=name, client_software_version="1.0")
        assert (await client.ask(request, 3)).error_code == ErrorCode.INVALID_REQUEST
        await client.close()


GARBAGE = {
    "http": b"GET / HTTP/1.1\r\n\r\n",
    "tls": b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
    "negative size": struct.pack(">i", -1),
    "too large": struct.pack(">i", (100 << 20) + 1),
    "empty frame": struct.pack(">i", 0),
    "short header": struct.pack(">ihh", 4, 18, 0),
    "unknown key": struct.pack(">ihhih", 10, 999, 0, 1, -1),
    "negative key": struct.pack(">ihhih", 10, -5, 0, 1, -1),
    "unsupported version": struct.pack(">ihhih", 10, 3, 99, 1, -1),
    "negative version": struct.pack(">ihhih", 10, 3, -2, 1, -1),
    "client id past the end": struct.pack(">ihhih", 10, 3, 0, 1, 500),
    "negative client id": struct.pack(">ihhih", 10, 3, 0, 1, -7),
    "client id not utf-8": struct.pack(">ihhih1s", 11, 3, 0, 1, 1, b"\xff"),
    "no body": struct.pack(">ihhih", 10, 3, 0, 1, -1),
    "array bomb": struct.pack(">ihhihi", 14, 3, 0, 1, -1, 2**31 - 1),
    "compact array bomb": struct.pack(">ihhih", 17, 3, 12, 1, -1) + b"\x00\xff\xff\xff\xff\x0f\x00",
    "header tags cut": struct.pack(">ihhih", 11, 3, 12, 1, -1) + b"\x05",
}


@pytest.mark.parametrize("garbage", GARBAGE.values(), ids=GARBAGE.keys())
async def test_garbage_closes_its_connection_with_one_line(garbage: bytes, caplog: pytest.LogCaptureFixture) -> None:
    answer = MetadataResponse(brokers=[], topics=[])
    async with serving({3: lambda context, request: answer}) as listener:
        bystander, client = await RawClient.connect(listener), await RawClient.connect(listener)
        with caplog.at_level(logging.INFO):
            client.writer.write(garbage)
            assert await client.is_closed()
        assert len(caplog.records) == 1
        assert "Traceback" not in caplog.text
        assert (await bystander.ask(METADATA, 1)).topics == []
        assert listener.metrics.killed == 1
        await client.close()
        await bystander.close()


async def test_a_flood_of_garbage_does_not_flood_the_log(caplog: pytest.LogCaptureFixture) -> None:
    now = 100.0

    async def garbage(times: int) -> None:
        for _ in range(times):
            client = await RawClient.connect(listener)
            client.writer.write(b"garbage!")
            assert await client.is_closed()
            await client.close()

    async with serving({}, monotonic=lambda: now) as listener:
        await garbage(100)
        assert len(caplog.records) == CLOSED_LOGGED_PER_SECOND
        now += 1
        await garbage(1)
        assert listener.metrics.killed == 101
    *_, left_out, next_one = caplog.records
    assert (left_out.message, left_out.__dict__["count"]) == (
        "more connections were closed",
        100 - CLOSED_LOGGED_PER_SECOND,
    )
    assert next_one.message == "connection closed"
    assert len(caplog.records) == CLOSED_LOGGED_PER_SECOND + 2


async def test_frames_arrive_in_any_pieces() -> None:
    async with serving({}) as listener:
        client = await RawClient.connect(listener)
        frames = b"".join(b"".join(request_frame(VERSIONS_0, 0, i, "x" * i)) for i in range(20))
        for i in range(0, len(frames), 7):
            client.writer.write(frames[i : i + 7])
            await client.writer.drain()
            await asyncio.sleep(0)
        for i in range(20):
            assert (await client.answer(ApiVersionsRequest, 0))[0] == i
        await client.close()


async def test_large_frames_arrive_whole() -> None:
    seen: list[bytes] = []

    def handler(context: RequestContext, request: ProduceRequest) -> ProduceResponse:
        seen.append(bytes(request.topic_data[0].partition_data[0].records))  # type: ignore[arg-type]
        return ProduceResponse(responses=[])

    async with serving({0: handler}) as listener:
        client = await RawClient.connect(listener)
        payloads = [bytes([i]) * size for i, size in enumerate((5_000_000, 10, 200_000, 131_072, 0, 131_000))]
        for payload in payloads:
            await client.send(produce(records=payload), 3)
        for _ in payloads:
            await client.answer(ProduceRequest, 3)
        assert seen == payloads
        await client.close()


async def test_answers_keep_the_order_of_requests() -> None:
    held = Held(MetadataResponse(brokers=[], topics=[]))
    async with serving({3: held}) as listener:
        client = await RawClient.connect(listener)
        await client.send(METADATA, 1, 1)
        await client.send(VERSIONS_0, 0, 2)
        await client.send(METADATA, 1, 3)
        await held.wait_for(1)
        await asyncio.sleep(0.02)
        assert len(held.futures) == 1, "the next request begins when the previous one is answered"
        held.release(0)
        assert (await client.answer(MetadataRequest, 1))[0] == 1
        assert (await client.answer(ApiVersionsRequest, 0))[0] == 2
        await held.wait_for(2)
        held.release(1)
        assert (await client.answer(MetadataRequest, 1))[0] == 3
        await client.close()


async def test_waiting_produce_requests_are_pipelined_in_order() -> None:
    held = Held(ProduceResponse(responses=[]))
    async with serving({0: held}) as listener:
        client = await RawClient.connect(listener)
        for i in range(5):
            await client.send(produce(-1), 7, i)
        await client.send(VERSIONS_0, 0, 5)
        await held.wait_for(5)
        for i in (4, 2, 3, 1, 0):
            held.release(i)
        for i in range(5):
            assert (await client.answer(ProduceRequest, 7))[0] == i
        assert (await client.answer(ApiVersionsRequest, 0))[0] == 5
        await client.close()


async def test_produce_that_is_still_worked_on_is_not_overtaken() -> None:
    order: list[int] = []
    waiting = asyncio.Event()

    async def work(context: RequestContext) -> ProduceResponse:
        await waiting.wait()
        order.append(context.correlation_id)
        return ProduceResponse(responses=[])

    def handler(context: RequestContext, request: ProduceRequest) -> Any:
        if context.correlation_id == 0:
            return work(context)
        order.append(context.correlation_id)
        return ProduceResponse(responses=[])

    async with serving({0: handler}) as listener:
        client = await RawClient.connect(listener)
        await client.send(produce(), 7, 0)
        await client.send(produce(), 7, 1)
        await asyncio.sleep(0.02)
        waiting.set()
        assert [(await client.answer(ProduceRequest, 7))[0] for _ in range(2)] == [0, 1]
        assert order == [0, 1]
        await client.close()


async def test_work_may_end_with_a_future_behind_which_produce_goes_on() -> None:
    held = Held(ProduceResponse(responses=[]))

    async def work(context: RequestContext) -> Any:
        await asyncio.sleep(0)
        return held(context, None)

    async with serving({0: lambda context, request: work(context)}) as listener:
        client = await RawClient.connect(listener)
        await client.send(produce(-1), 7, 0)
        await client.send(produce(-1), 7, 1)
        await held.wait_for(2)
        held.release(1)
        held.release(0)
        assert [(await client.answer(ProduceRequest, 7))[0] for _ in range(2)] == [0, 1]
        await client.close()


async def test_a_handler_that_returns_no_response_sends_none() -> None:
    async with serving({0: lambda context, request: None}) as listener:
        client = await RawClient.connect(listener)
        await client.send(produce(0), 7, 1)
        await client.send(VERSIONS_0, 0, 2)
        assert (await client.answer(ApiVersionsRequest, 0))[0] == 2
        await client.close()


async def test_a_failing_handler_costs_one_response(caplog: pytest.LogCaptureFixture) -> None:
    def fails(context: RequestContext, request: Any) -> None:
        raise RuntimeError("boom")

    async def fails_later(context: RequestContext, request: Any) -> None:
        await asyncio.sleep(0)
        raise KafkaError(ErrorCode.FETCH_SESSION_ID_NOT_FOUND)

    async with serving({1: fails_later, 18: fails}) as listener:
        client = await RawClient.connect(listener)
        assert (await client.ask(VERSIONS_0, 0)).error_code == ErrorCode.UNKNOWN_SERVER_ERROR
        assert "boom" in caplog.text
        caplog.clear()
        answer: FetchResponse = await client.ask(fetch(), 12)
        assert answer.error_code == ErrorCode.FETCH_SESSION_ID_NOT_FOUND
        assert not caplog.records, "an error of the protocol is no failure of the broker"
        await client.close()


async def test_a_failure_that_is_repeated_is_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    def fails(context: RequestContext, request: Any) -> None:
        raise RuntimeError("boom")

    def nonsense(context: RequestContext, request: Any) -> FetchResponse:
        return FetchResponse(error_code="wrong", responses=[])  # type: ignore[arg-type]

    async with serving({1: nonsense, 18: fails}) as listener:
        client = await RawClient.connect(listener)
        for _ in range(50):
            assert (await client.ask(VERSIONS_0, 0)).error_code == ErrorCode.UNKNOWN_SERVER_ERROR
            assert (await client.ask(fetch(), 12)).error_code == ErrorCode.UNKNOWN_SERVER_ERROR
        assert sorted(caplog.messages) == ["ApiVersions failed", "Fetch failed"]
        await client.close()


async def test_an_error_that_the_response_cannot_carry_closes_the_connection() -> None:
    def fails(context: RequestContext, request: Any) -> None:
        raise RuntimeError("boom")

    def refuses(context: RequestContext, request: Any) -> None:
        raise Disconnect("cannot be answered")

    async with serving({20: fails, 0: refuses}) as listener:
        for request, version in ((DeleteTopicsRequest(timeout_ms=1), 1), (produce(0), 7)):
            client = await RawClient.connect(listener)
            await client.send(request, version)
            assert await client.is_closed()
            await client.close()


async def test_answers_given_before_garbage_are_sent() -> None:
    async with serving({}) as listener:
        client = await RawClient.connect(listener)
        client.writer.write(b"".join(request_frame(VERSIONS_0, 0, 1, "t")) + GARBAGE["unknown key"])
        assert (await client.answer(ApiVersionsRequest, 0))[0] == 1
        assert await client.is_closed()
        await client.close()


async def test_a_peer_that_does_not_read_stops_being_served() -> None:
    answer = SyncGroupResponse(error_code=0, assignment=bytes(300_000))
    request = SyncGroupRequest(group_id="g", generation_id=1, member_id="m", assignments=[])
    begun = 0

    def handler(context: RequestContext, request: Any) -> SyncGroupResponse:
        nonlocal begun
        begun += 1
        return answer

    async with serving({SyncGroupRequest.API_KEY: handler}) as listener:
        client = await RawClient.connect(listener)
        for i in range(200):
            client.writer.write(b"".join(request_frame(request, 0, i, "t")))
        for _ in range(50):
            await asyncio.sleep(0.005)
        assert begun < 100, "the socket's buffers are full long before"
        for i in range(200):
            assert (await client.answer(SyncGroupRequest, 0))[0] == i
        assert begun == 200
        await client.close()


LARGE = 100_000


def _large_metadata() -> MetadataResponse:
    broker = MetadataResponse.MetadataResponseBroker(node_id=1, host="h" * 10_000, port=1)
    return MetadataResponse(brokers=[broker] * (LARGE // 10_000), controller_id=1, topics=[])


def _large_fetch() -> FetchResponse:
    data = FetchResponse.PartitionData(partition_index=0, high_watermark=0, records=bytes(LARGE))
    topic = FetchResponse.FetchableTopicResponse(topic="t", partitions=[data])
    return FetchResponse(responses=[topic])


async def _metadata_later(context: RequestContext, request: Any) -> MetadataResponse:
    return _large_metadata()


@pytest.mark.parametrize(
    ("request_", "version", "handler"),
    [
        (METADATA, 1, lambda context, request: _large_metadata()),
        (METADATA, 1, _metadata_later),
        (fetch(), 4, lambda context, request: _large_fetch()),
    ],
    ids=["metadata", "metadata later", "fetch"],
)
async def test_responses_that_the_client_does_not_read_are_bounded(request_: Any, version: int, handler: Any) -> None:
    """One read holds some thousands of requests, each with a response a thousand times as long."""
    clock = Clock()
    async with serving({request_.API_KEY: handler}, idle_s=0.2, monotonic=clock) as listener:
        client = await RawClient.connect(listener)
        await client.ask(VERSIONS_0, 0)
        (connection,) = listener._connections
        frame = b"".join(request_frame(request_, version, 1, "test"))
        tracemalloc.start()
        client.writer.write(frame * 20_000)
        await eventually(lambda: connection._responses.sender.blocked)
        peak = 0
        for step in itertools.count():
            if step == 200:
                clock.start()
            if not listener.metrics.connections:  # idle long enough to be cut off
                break
            peak = max(peak, connection._responses.sender.held_bytes + connection._responses.unsent_bytes)
            await asyncio.sleep(0.001)
        _, most = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        assert peak <= UNSENT_MAX + 2 * LARGE
        assert most < 20 * UNSENT_MAX
        assert listener.metrics.idle_closed == 1
        client.writer.transport.abort()


async def test_the_time_in_which_a_client_does_not_take_its_responses_is_counted() -> None:
    now_s, count = [100.0], 200
    handlers = {1: lambda context, request: _large_fetch()}
    async with serving(handlers, monotonic=lambda: now_s[0]) as listener:
        metrics = listener.dispatcher.routes[1].metrics
        client = await RawClient.connect(listener)
        await client.ask(VERSIONS_0, 0)
        (connection,) = listener._connections
        client.writer.write(b"".join(request_frame(fetch(), 4, 1, "test")) * count)
        await eventually(lambda: connection._responses.sender.blocked)
        assert metrics.send_seconds == 0
        now_s[0] += 7
        for _ in range(count):
            await client.answer(FetchRequest, 4)
        assert metrics.send_seconds >= 7
        assert metrics.send_seconds % 7 == 0
        await client.close()


async def test_fetches_of_followers_are_counted_apart() -> None:
    def answered(context: RequestContext, request: FetchRequest) -> FetchResponse:
        context.is_from_follower = request.replica_id >= 0
        return FetchResponse(responses=[])

    async with serving({1: answered}) as listener:
        client = await RawClient.connect(listener)
        for replica in (-1, 2, 2):
            await client.ask(FetchRequest(replica_id=replica, max_wait_ms=0, min_bytes=0, topics=[]), 4)
        route = listener.dispatcher.routes[1]
        counted = [
            (each.requests, sum(each.total_time.buckets), each.response_bytes)
            for each in (route.metrics, route.follower_metrics)
        ]
        assert [each[:2] for each in counted] == [(1, 1), (2, 2)]
        assert counted[1][2] == 2 * counted[0][2]
        await client.close()


@pytest.mark.slow
async def test_a_client_with_many_requests_leaves_others_their_turn() -> None:
    asked = 0

    def slow(context: RequestContext, request: Any) -> MetadataResponse:
        nonlocal asked
        asked += 1
        until = time.monotonic() + 0.001
        while time.monotonic() < until:
            pass
        return MetadataResponse(brokers=[], controller_id=1, topics=[])

    async with serving({3: slow}) as listener:
        client, other = await RawClient.connect(listener), await RawClient.connect(listener)
        await other.ask(VERSIONS_0, 0)
        client.writer.write(b"".join(request_frame(METADATA, 1, 1, "test")) * 500)
        await eventually(lambda: asked > 0)
        await other.ask(VERSIONS_0, 0)
        assert asked < 250, "the other had to wait for all of them"
        for _ in range(500):
            await client.answer(MetadataRequest, 1)
        await client.close()
        await other.close()


async def test_the_load_limit_holds_back_other_connections() -> None:
    """A client may have half of the requests in progress."""
    started = asyncio.Semaphore(0)
    go_on = asyncio.Event()

    async def work(context: RequestContext, request: Any) -> MetadataResponse:
        started.release()
        await go_on.wait()
        return MetadataResponse(brokers=[], topics=[])

    async with serving({3: work}, queued_requests=4) as listener:
        clients = [await RawClient.connect(listener) for _ in range(5)]
        for client in clients:
            await client.send(METADATA, 1)
        await started.acquire()
        await started.acquire()
        await asyncio.sleep(0.02)
        assert listener.load.requests_in_progress == 2
        assert started.locked()
        go_on.set()
        for client in clients:
            await client.answer(MetadataRequest, 1)
            await client.close()
        assert listener.load.requests_in_progress == 0


async def test_large_requests_wait_for_memory() -> None:
    go_on = asyncio.Event()
    sizes: list[int] = []

    async def work(context: RequestContext, request: ProduceRequest) -> ProduceResponse:
        sizes.append(context.size_bytes)
        await go_on.wait()
        return ProduceResponse(responses=[])

    size = 1_000_000
    async with serving({0: work}, queued_bytes=2_500_000) as listener:
        clients = [await RawClient.connect(listener) for _ in range(4)]
        sending = [asyncio.ensure_future(client.send(produce(records=b"x" * size), 7)) for client in clients]
        small = await RawClient.connect(listener)
        await small.ask(VERSIONS_0, 0)
        await eventually(lambda: len(sizes) == 2)
        await small.ask(VERSIONS_0, 0)
        assert len(sizes) == 2, "two are all that fit"
        assert 2 * size < listener.load.request_bytes_held < 2 * size + 1000
        go_on.set()
        await asyncio.gather(*sending)
        for client in clients:
            await client.answer(ProduceRequest, 7)
        await eventually(lambda: not listener.load.request_bytes_held)
        alone = await RawClient.connect(listener)
        await alone.send(produce(records=b"x" * 5_000_000), 7)
        await alone.answer(ProduceRequest, 7)
        assert max(sizes) > 5_000_000, "a request larger than the limit is taken alone"
        await eventually(lambda: not listener.load.request_bytes_held)
        for client in (*clients, small, alone):
            await client.close()


async def test_memory_for_a_request_that_never_comes_is_given_back() -> None:
    async with serving({}, queued_bytes=2_000_000) as listener:
        begun, waiting = await RawClient.connect(listener), await RawClient.connect(listener)
        begun.writer.write(struct.pack(">i", 1_500_000) + b"x" * 200_000)
        await eventually(lambda: listener.load.request_bytes_held == 1_500_000)
        frame = b"".join(request_frame(VERSIONS_0, 0, 1, "t"))
        waiting.writer.write(frame + struct.pack(">i", 1_400_000) + b"x" * 200_000)
        await waiting.answer(ApiVersionsRequest, 0)
        assert listener.load.request_bytes_held == 1_500_000
        await begun.close()
        await eventually(lambda: listener.load.request_bytes_held == 1_400_000)
        await waiting.close()
        await eventually(lambda: not listener.load.request_bytes_held)


async def test_a_request_that_does_not_arrive_makes_room_for_others(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("parley.broker.network.connection.RECEIVING_USUAL_S", 0.0)
    monkeypatch.setattr("parley.broker.network.load.CHECK_S", 0.01)
    monkeypatch.setattr("parley.broker.network.connection.SLOW_BYTES_PER_S", 1 << 40)
    answer = ProduceResponse(responses=[])
    async with serving({0: lambda context, request: answer}, queued_bytes=2_000_000) as listener:
        stopped = await RawClient.connect(listener)
        stopped.writer.write(struct.pack(">i", 1_500_000) + b"x" * 200_000)
        await eventually(lambda: listener.load.request_bytes_held == 1_500_000)
        other = await RawClient.connect(listener)
        await other.ask(produce(records=b"x" * 1_000_000), 7)
        assert await stopped.is_closed()
        assert listener.load.request_bytes_held == 0
        await stopped.close()
        await other.close()
    assert [record.__dict__["reason"][:28] for record in caplog.records] == ["the request held memory for "]


async def test_time_in_which_the_broker_did_not_read_does_not_count_for_a_slow_request(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The loop stands still for an hour, and has not read yet what arrived meanwhile. Then the client is slow."""
    monkeypatch.setattr("parley.broker.network.load.CHECK_S", 3600.0)  # the test calls the checks
    clock = [100.0]
    async with serving({}, queued_bytes=2_000_000, monotonic=lambda: clock[0]) as listener:
        stopped, other = await RawClient.connect(listener), await RawClient.connect(listener)
        stopped.writer.write(struct.pack(">i", 1_500_000) + b"x" * 200_000)
        await eventually(lambda: listener.load.request_bytes_held == 1_500_000)
        other.writer.write(struct.pack(">i", 1_400_000) + b"x" * 200_000)
        await eventually(lambda: listener.load._is_short)
        monkeypatch.setattr("parley.broker.network.load.CHECK_S", 1.0)
        clock[0] += 3600
        (connection,) = listener.load._receivers
        listener.load._check_receivers()
        assert not connection.is_closed  # type: ignore[attr-defined]
        connection._reading = False  # type: ignore[attr-defined]  # at a limit of the broker
        for _ in range(20):
            listener.load._check_receivers()
        assert not connection.is_closed  # type: ignore[attr-defined]
        connection._reading = True  # type: ignore[attr-defined]
        for _ in range(10):
            listener.load._check_receivers()
        assert connection.is_closed  # type: ignore[attr-defined]
        assert await stopped.is_closed()
        await stopped.close()
        await other.close()


async def test_a_connection_that_is_closed_no_longer_lacks_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """The one that holds the memory may be slow again."""
    monkeypatch.setattr("parley.broker.network.load.CHECK_S", 3600.0)  # the test calls the checks
    async with serving({}, queued_bytes=2_000_000) as listener:
        holding, lacking = await RawClient.connect(listener), await RawClient.connect(listener)
        holding.writer.write(struct.pack(">i", 1_500_000) + b"x" * 200_000)
        await eventually(lambda: listener.load.request_bytes_held == 1_500_000)
        lacking.writer.write(struct.pack(">i", 1_400_000) + b"x" * 200_000)
        await eventually(lambda: listener.load._is_short)
        listener.load._check_receivers()
        assert listener.load._is_short
        await lacking.close()
        await eventually(lambda: len(listener._connections) == 1)
        listener.load._check_receivers()
        assert not listener.load._is_short
        await holding.close()


class CountingReceiver:
    """Counts the checks of slow requests."""

    def __init__(self) -> None:
        self.checks = asyncio.Semaphore(0)

    def count_receiving(self, seconds: float) -> None:
        self.checks.release()

    def close_if_slow(self) -> None:
        pass


async def test_requests_that_wait_for_memory_may_be_slow_while_nobody_holds_it_back(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A request whose handler works has been received: it is not the client that is slow."""
    monkeypatch.setattr("parley.broker.network.connection.RECEIVING_USUAL_S", 0.0)
    monkeypatch.setattr("parley.broker.network.load.CHECK_S", 0.01)
    go_on, counting = asyncio.Event(), CountingReceiver()

    async def work(context: RequestContext, request: ProduceRequest) -> ProduceResponse:
        await go_on.wait()
        return ProduceResponse(responses=[])

    async with serving({0: work}, queued_bytes=1_500_000) as listener:
        listener.load._receivers.add(counting)
        clients = [await RawClient.connect(listener) for _ in range(2)]
        sending = [asyncio.ensure_future(client.ask(produce(records=b"x" * 1_000_000), 7)) for client in clients]
        for _ in range(3):
            await counting.checks.acquire()
        go_on.set()
        await asyncio.gather(*sending)
        for client in clients:
            await client.close()


async def test_a_peer_that_takes_nothing_is_idle() -> None:
    data = FetchResponse.PartitionData(partition_index=0, high_watermark=0, records=bytes(30_000_000))
    answer = FetchResponse(responses=[FetchResponse.FetchableTopicResponse(topic="t", partitions=[data])])
    async with serving({1: lambda context, request: answer}, idle_s=0.3) as listener:
        client = await RawClient.connect(listener)
        await client.send(fetch(), 12)
        await eventually(lambda: listener.metrics.idle_closed == 1)
        await client.close()


@pytest.mark.parametrize("leave", ["eof", "reset"])
async def test_a_client_that_disconnects_while_its_response_waits_does_no_harm(
    leave: str, caplog: pytest.LogCaptureFixture
) -> None:
    held = Held(MetadataResponse(brokers=[], topics=[]))
    async with serving({3: held}) as listener:
        client = await RawClient.connect(listener)
        await client.send(METADATA, 1)
        await held.wait_for(1)
        if leave == "eof":
            client.writer.write_eof()
        else:
            client.writer.transport.abort()
        await eventually(lambda: not len(listener))
        held.release(0)
        await client.close()
        bystander = await RawClient.connect(listener)
        await bystander.ask(VERSIONS_0, 0)
        await bystander.close()
    assert not caplog.records


async def test_connections_beyond_the_limits_are_closed(caplog: pytest.LogCaptureFixture) -> None:
    async with serving({}, connections_per_ip=3) as listener:
        clients = [await RawClient.connect(listener) for _ in range(3)]
        for client in clients:
            await client.ask(VERSIONS_0, 0)
        refused = await RawClient.connect(listener)
        assert await refused.is_closed()
        assert "max.connections.per.ip" in caplog.records[0].reason  # type: ignore[attr-defined]
        await refused.close()
        await clients.pop().close()
        await eventually(lambda: len(listener) <= 2)
        again = await RawClient.connect(listener)
        await again.ask(VERSIONS_0, 0)
        for client in (*clients, again):
            await client.close()


async def test_connections_beyond_the_limit_of_the_broker_wait() -> None:
    async with serving({}, connections=1, connections_per_ip_overrides={"127.0.0.1": 5}) as listener:
        first, second = await RawClient.connect(listener), await RawClient.connect(listener)
        await first.ask(VERSIONS_0, 0)
        await second.send(VERSIONS_0, 0)
        await first.ask(VERSIONS_0, 0)
        assert listener.metrics.accepted == 1
        await first.close()
        await second.answer(ApiVersionsRequest, 0)
        third = await RawClient.connect(listener)
        await third.send(VERSIONS_0, 0)
        listener.quotas.limits = Limits(connections=2)
        await third.answer(ApiVersionsRequest, 0)
        await second.close()
        await third.close()


async def test_listeners_share_an_address_and_full_or_closed_ones_leave_it() -> None:
    """Connections to the shared address go to any listener that has a free place."""
    port = free_port()

    def shared() -> socket.socket:
        return bind("127.0.0.1", port, is_shared=True)

    async def connected() -> RawClient:
        client = RawClient(*await asyncio.open_connection("127.0.0.1", port))
        await client.ask(VERSIONS_0, 0)
        return client

    async def closed(client: RawClient) -> None:
        before = len(one) + len(other)
        await client.close()
        await eventually(lambda: len(one) + len(other) < before)

    async with serving({}, shared=shared, connections=2) as one, serving({}, shared=shared) as other:
        own = await RawClient.connect(one)
        await own.ask(VERSIONS_0, 0)
        clients = []
        while len(one) < 2 or not len(other):
            clients.append(await connected())
        accepted = one.metrics.accepted
        clients += [await connected() for _ in range(20)]
        assert (one.metrics.accepted, len(one)) == (accepted, 2), "it has no free place"
        await closed(own)
        while one.metrics.accepted == accepted:
            clients.append(await connected())
        await other.close(0)
        for client in clients:
            await client.close()
        await eventually(lambda: not len(one))
        for _ in range(5):
            await closed(await connected())


async def test_connections_between_brokers_take_the_place_of_idle_ones() -> None:
    async with serving({}, connections=2) as listener:
        quotas = listener.quotas
        quotas._inter_broker_listener = "INTERNAL"
        internal = Listener(
            "INTERNAL",
            listener.dispatcher,
            limits=listener.limits,
            load=listener.load,
            quotas=quotas,
            tasks=listener.tasks,
            monotonic=time.monotonic,
        )
        await internal.start(bind("127.0.0.1", 0), backlog=10)
        idle, busy = await RawClient.connect(listener), await RawClient.connect(listener)
        await idle.ask(VERSIONS_0, 0)
        await busy.ask(VERSIONS_0, 0)
        peer = await RawClient.connect(internal)
        await peer.ask(VERSIONS_0, 0)
        assert await idle.is_closed()
        await busy.ask(VERSIONS_0, 0)
        for client in (idle, busy, peer):
            await client.close()
        await internal.close(1)


async def test_connections_are_accepted_no_faster_than_allowed() -> None:
    now = 100.0
    limits = {"OTHER": ListenerLimits(connection_rate=1), "PLAINTEXT": ListenerLimits(connection_rate=20)}
    async with serving({}, monotonic=lambda: now, by_listener=limits) as listener:
        clients = [await RawClient.connect(listener) for _ in range(30)]
        await clients[19].ask(VERSIONS_0, 0)
        assert listener.metrics.accepted == 20
        now += 0.25
        await clients[24].ask(VERSIONS_0, 0)
        assert listener.metrics.accepted == 25
        now += 0.25
        await clients[29].ask(VERSIONS_0, 0)
        for client in clients:
            await client.close()


def test_a_rate_lets_the_connections_of_an_idle_second_come_at_once() -> None:
    rate = ConnectionRate()
    for _ in range(4):
        assert rate.wait_s(4, 100.0) == 0
        rate.take()
    assert rate.wait_s(4, 100.0) == 0.25
    assert rate.wait_s(4, 100.125) == 0.125
    assert rate.wait_s(4, 100.25) == 0
    rate.take()
    assert rate.wait_s(8, 100.25) == 0.125, "another limit counts from now on"
    assert rate.wait_s(4, 1000.0) == 0
    assert rate._left == 4


@pytest.mark.parametrize("new_loop", [uvloop.new_event_loop, asyncio.new_event_loop], ids=["uvloop", "asyncio"])
def test_without_a_descriptor_the_connection_that_is_idle_longest_gives_way(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, new_loop: Callable[[], asyncio.AbstractEventLoop]
) -> None:
    monkeypatch.setattr(acceptor, "SHORTAGE_PAUSE_S", 0.02)

    def run() -> None:
        with asyncio.Runner(loop_factory=new_loop) as runner:
            runner.run(connect_without_a_descriptor(caplog))

    in_own_process(run)


async def connect_without_a_descriptor(caplog: pytest.LogCaptureFixture) -> None:
    async with serving({}) as listener:
        idle, active = await RawClient.connect(listener), await RawClient.connect(listener)
        await idle.ask(VERSIONS_0, 0)
        await active.ask(VERSIONS_0, 0)
        waiting = socket.socket()
        waiting.setblocking(False)
        with descriptors_left(0):
            await asyncio.get_running_loop().sock_connect(waiting, ("127.0.0.1", listener.port))
            await eventually(lambda: listener.metrics.accepted == 3)
            await active.ask(VERSIONS_0, 0)
        assert await idle.is_closed()
        assert len(listener) == 2
        assert listener.metrics.evicted == 1
        assert len(caplog.records) == 1
        assert "ulimit" in caplog.text
        waiting.close()
        await active.close()


async def test_clients_but_not_brokers_are_disconnected_if_descriptors_run_short() -> None:
    held = Held(MetadataResponse(brokers=[], topics=[]))
    async with serving({3: held}) as listener:
        broker, idle, busy = [await RawClient.connect(listener) for _ in range(3)]
        broker.client_id = "broker-2"
        await broker.ask(VERSIONS_0, 0)
        await busy.send(METADATA, 1)
        await held.wait_for(1)
        await idle.ask(VERSIONS_0, 0)
        quotas = listener.quotas
        quotas.descriptors_max = 2
        quotas.keep_to_descriptors()
        assert await idle.is_closed(), "though it was active last"
        newcomer = await RawClient.connect(listener)
        assert await busy.is_closed(), "there is no idle one"
        await newcomer.ask(VERSIONS_0, 0)
        await broker.ask(VERSIONS_0, 0)
        await eventually(lambda: len(listener) == 2)
        assert listener.metrics.evicted == 2
        for client in (broker, idle, busy, newcomer):
            await client.close()


@pytest.mark.parametrize("new_loop", [uvloop.new_event_loop, asyncio.new_event_loop], ids=["uvloop", "asyncio"])
@pytest.mark.parametrize("first_bytes", [2 * MEMORY_LEFT, MEMORY_LEFT // 2], ids=["at its start", "as it arrives"])
def test_a_request_without_memory_closes_its_connection_alone(
    first_bytes: int, caplog: pytest.LogCaptureFixture, new_loop: Callable[[], asyncio.AbstractEventLoop]
) -> None:
    """uvloop crashes the process if a transport is closed while it asks for a buffer, which it does as a request
    arrives."""

    def run() -> None:
        with asyncio.Runner(loop_factory=new_loop) as runner:
            runner.run(send_without_memory(first_bytes, caplog))

    in_own_process(run)


async def send_without_memory(first_bytes: int, caplog: pytest.LogCaptureFixture) -> None:
    """Send more than the ``first_bytes`` of a request, which the connection receives into one buffer."""
    async with serving({}, request_bytes=8 * MEMORY_LEFT) as listener:
        large, other = await RawClient.connect(listener), await RawClient.connect(listener)
        await eventually(lambda: len(listener) == 2)
        for client in (large, other):
            await client.ask(VERSIONS_0, 0)
        for connection in listener._connections:
            connection._reader._first = first_bytes
        piece = bytes(1 << 20)
        with memory_left(MEMORY_LEFT):
            large.writer.write(struct.pack(">i", 8 * MEMORY_LEFT))
            with suppress(ConnectionError):
                for _ in range(first_bytes // len(piece) + 1):
                    large.writer.write(piece)
                    await large.writer.drain()
            assert await large.is_closed()
            await eventually(lambda: len(listener) == 1)
        await other.ask(VERSIONS_0, 0)
        assert caplog.text.count("connection closed") == 1
        assert caplog.records[0].__dict__["reason"] == "no memory for the request"
        assert listener.metrics.killed == 1
        for client in (other, large):
            await client.close()


@contextmanager
def memory_left(count: int) -> Iterator[None]:
    """Let this process allocate only ``count`` more bytes. Use it in a process of its own."""
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (pages * resource.getpagesize() + count, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))


async def test_a_handler_without_memory_closes_the_connection(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """No error code says that the broker has no memory; a client repeats a request whose connection has ended."""
    monkeypatch.setattr(MEMORY, "lost_work", None)

    def no_memory(context: RequestContext, request: Any) -> Any:
        raise MemoryError

    async with serving({3: no_memory}) as listener:
        client = await RawClient.connect(listener)
        await client.send(METADATA, 1)
        assert await client.is_closed()
        assert isinstance(MEMORY.lost_work, MemoryError)
        assert "the broker has run out of memory" in [record.__dict__.get("reason") for record in caplog.records]
        await client.close()


async def test_idle_connections_are_closed_and_busy_ones_are_not() -> None:
    held = Held(MetadataResponse(brokers=[], topics=[]))
    clock = Clock()
    async with serving({3: held}, idle_s=0.2, monotonic=clock) as listener:
        idle, waiting = await RawClient.connect(listener), await RawClient.connect(listener)
        await waiting.send(METADATA, 1)
        half_open = await RawClient.connect(listener)
        half_open.writer.write(b"\x00\x00")
        await held.wait_for(1)
        clock.start()
        assert await idle.is_closed()
        assert await half_open.is_closed()
        held.release(0)
        await waiting.answer(MetadataRequest, 1)
        assert await waiting.is_closed()
        assert listener.metrics.idle_closed == 3
        for client in (idle, waiting, half_open):
            await client.close()


async def test_a_client_that_disconnects_behind_a_waiting_response_is_noticed_when_it_is_idle() -> None:
    held = Held(MetadataResponse(brokers=[], topics=[]))
    clock = Clock()
    async with serving({3: held}, idle_s=0.2, monotonic=clock) as listener:
        gone, waiting = await RawClient.connect(listener), await RawClient.connect(listener)
        for client in (gone, waiting):
            await client.send(METADATA, 1, 1)  # nothing is read behind the second request, not even the end
        await held.wait_for(2)
        await gone.close()
        clock.start()
        await eventually(lambda: len(listener) == 1)
        await asyncio.sleep(0.3)
        assert len(listener) == 1, "the other client still waits"
        held.release(1)
        await waiting.close()


async def test_a_wait_that_begins_when_the_client_has_disconnected_is_given_up() -> None:
    gate, late = asyncio.Event(), Delayed[MetadataResponse]()

    async def handle(context: RequestContext, request: MetadataRequest) -> Delayed[MetadataResponse]:
        await gate.wait()
        return late

    async with serving({3: handle}) as listener:
        client = await RawClient.connect(listener)
        await client.send(METADATA, 1)
        await eventually(lambda: listener.load.requests_in_progress == 1)
        await client.close()
        await eventually(lambda: len(listener) == 0)
        gate.set()
        await eventually(late.cancelled)


async def test_a_request_that_is_cancelled_before_its_task_begins_leaves_no_coroutine_behind() -> None:
    """Python would warn that it was never awaited."""
    works: list[Coroutine[Any, Any, MetadataResponse]] = []

    def cancel() -> None:
        for task in asyncio.all_tasks():
            if task.get_name().startswith("Metadata"):
                task.cancel()

    def begin(context: RequestContext, request: Any) -> Awaitable[MetadataResponse]:
        asyncio.get_running_loop().call_soon(cancel)  # comes before the first step of the task
        works.append(_metadata_later(context, request))
        return works[0]

    async with serving({3: begin}) as listener:
        client = await RawClient.connect(listener)
        await client.send(METADATA, 1)
        assert await client.is_closed()
        assert inspect.getcoroutinestate(works[0]) == inspect.CORO_CLOSED
        await client.close()


async def test_closing_sends_pending_responses_and_begins_no_request() -> None:
    held = Held(MetadataResponse(brokers=[], topics=[]))
    async with serving({3: held}) as listener:
        client = await RawClient.connect(listener)
        await client.send(METADATA, 1, 1)
        await held.wait_for(1)
        await client.send(METADATA, 1, 2)
        closing = asyncio.ensure_future(listener.close(5))
        await asyncio.sleep(0.01)
        held.release(0)
        assert (await client.answer(MetadataRequest, 1))[0] == 1
        assert await client.is_closed()
        await closing
        assert len(held.futures) == 1
        with pytest.raises(OSError, match=r"refused|failed"):
            await RawClient.connect(listener)
        await client.close()


async def test_closing_does_not_wait_forever(caplog: pytest.LogCaptureFixture) -> None:
    held = Held(None)
    async with serving({3: held}) as listener:
        client = await RawClient.connect(listener)
        await client.send(METADATA, 1)
        await held.wait_for(1)
        await listener.close(0.05)
        assert caplog.messages == ["aborting connections at the end of the grace period"]
        assert await client.is_closed()
        await client.close()


@pytest.mark.slow
async def test_a_thousand_idle_connections_cost_little() -> None:
    async with serving({}) as listener:
        clients = [await RawClient.connect(listener) for _ in range(1000)]
        await eventually(lambda: len(listener) == 1000)
        for client in clients[::100]:
            await client.ask(VERSIONS_0, 0)
        held = sum(len(connection._reader._buffer) for connection in listener._connections)
        assert held <= 1000 * 4096
        for client in clients:
            client.writer.close()
        await eventually(lambda: not len(listener))
        assert listener.metrics.connections == 0


async def test_a_connection_takes_only_the_steps_of_its_table() -> None:
    async with serving({}) as listener:
        client = await RawClient.connect(listener)
        await client.ask(VERSIONS_0, 0)
        (connection,) = listener._connections
        connection.drain()
        assert connection._state is ConnectionState.CLOSING, "nothing is pending"
        connection.close("a reason")
        await eventually(lambda: not listener._connections)
        connection.close()
        connection.abort()
        with pytest.raises(IllegalStep, match="LOSE is not legal in the state LOST"):
            connection.connection_lost(None)
        await client.close()


@pytest.mark.parametrize("sent", [1, 3])
async def test_a_handler_learns_that_its_client_has_left(sent: int) -> None:
    """Also if the broker does not read from the client, because further requests of it wait."""
    asked: list[RequestContext] = []
    go_on = asyncio.Event()

    async def answer(context: RequestContext, request: MetadataRequest) -> MetadataResponse:
        asked.append(context)
        await go_on.wait()
        return METADATA_ANSWER

    async with serving({3: answer}) as listener:
        client = await RawClient.connect(listener)
        for _ in range(sent):
            await client.send(METADATA, 1)
        await eventually(lambda: len(asked) == 1)
        assert not asked[0].client.has_left()
        client.writer.close()
        await eventually(asked[0].client.has_left)
        go_on.set()
