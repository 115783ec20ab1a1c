"""The asyncio client with a small broker made of the same protocol parts, which can misbehave."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest
import uvloop

from parley.protocol.client import Address, Client, parse_bootstrap
from parley.protocol.codec import decode, response_frame
from parley.protocol.connection import RequestHeader, parse_request_header
from parley.protocol.errors import ErrorCode, KafkaError
from parley.protocol.messages import APIS
from parley.protocol.messages.api_versions import ApiVersionsResponse
from parley.protocol.messages.groups import (
    FindCoordinatorRequest,
    FindCoordinatorResponse,
    HeartbeatRequest,
    HeartbeatResponse,
)
from parley.protocol.messages.metadata import MetadataRequest, MetadataResponse
from parley.protocol.messages.produce import ProduceRequest
from tests.support.ports import free_port

HOST = "127.0.0.1"
Answer = Callable[[RequestHeader, Any], Any]


class Peer:
    """A broker that responds from a table: with a response, with raw bytes, or not at all (None)."""

    def __init__(self) -> None:
        self.versions = {3: (0, 12), 10: (0, 4), 12: (0, 4), 0: (3, 9)}
        self.api_versions_max = 4
        self.seen: list[RequestHeader] = []
        self.connections = 0
        self.answers: dict[int, Answer] = {3: self.metadata}
        self.leader = 7
        self.controller = 7

    async def start(self) -> None:
        self._server = await asyncio.start_server(self._serve, HOST, 0)
        self.port = self._server.sockets[0].getsockname()[1]
        self._writers: list[asyncio.StreamWriter] = []

    def hang_up(self) -> None:
        for writer in self._writers:
            writer.close()

    async def stop(self) -> None:
        self.hang_up()
        self._server.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        self._writers.append(writer)
        while True:
            try:
                size = int.from_bytes(await reader.readexactly(4))
                frame = await reader.readexactly(size)
            except (asyncio.IncompleteReadError, ConnectionError):
                return
            header = parse_request_header(frame)
            self.seen.append(header)
            answer: Any
            if header.api_key == 18:
                answer, version = self._api_versions(header)
            else:
                version = header.api_version
                request = decode(APIS[header.api_key].request, version, frame, header.body_offset)
                answer = self.answers[header.api_key](header, request)
            if isinstance(answer, bytes):
                writer.write(answer)
            elif answer is not None:
                writer.writelines(response_frame(answer, version, header.correlation_id))

    def _api_versions(self, header: RequestHeader) -> tuple[ApiVersionsResponse, int]:
        known = {18: (0, self.api_versions_max), **self.versions}
        keys = [
            ApiVersionsResponse.ApiVersion(api_key=key, min_version=low, max_version=high)
            for key, (low, high) in known.items()
        ]
        if header.api_version > self.api_versions_max:
            return ApiVersionsResponse(error_code=ErrorCode.UNSUPPORTED_VERSION, api_keys=keys), 0
        return ApiVersionsResponse(api_keys=keys), header.api_version

    def metadata(self, header: RequestHeader, request: MetadataRequest) -> MetadataResponse:
        part, topic = MetadataResponse.MetadataResponsePartition, MetadataResponse.MetadataResponseTopic
        known = part(partition_index=0, leader_id=self.leader, replica_nodes=[7], isr_nodes=[7])
        topics = []
        for asked in request.topics or []:
            there = asked.name == "there"
            code = 0 if there else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            topics.append(topic(error_code=code, name=asked.name, partitions=[known] if there else []))
        broker = MetadataResponse.MetadataResponseBroker(node_id=7, host=HOST, port=self.port)
        return MetadataResponse(brokers=[broker], controller_id=self.controller, topics=topics)


@pytest.fixture
async def peer() -> AsyncIterator[Peer]:
    made = Peer()
    await made.start()
    yield made
    await made.stop()


HEARTBEAT = HeartbeatRequest(group_id="g", generation_id=1, member_id="m")


async def test_the_highest_version_of_both_is_spoken(peer: Peer) -> None:
    async with Client([(HOST, peer.port)], client_id="tester") as client:
        await client.metadata(["there"])
        assert await client.version_for(MetadataRequest) == 12
    assert [(one.api_key, one.api_version) for one in peer.seen] == [(18, 4), (3, 12)]
    assert peer.seen[1].client_id == "tester"


async def test_a_broker_that_knows_only_old_api_versions(peer: Peer) -> None:
    peer.api_versions_max = 2
    async with Client(f"{HOST}:{peer.port}") as client:
        await client.metadata([])
    assert [(one.api_key, one.api_version) for one in peer.seen] == [(18, 4), (18, 2), (3, 12)]


async def test_apis_and_versions_that_the_broker_lacks_are_an_error(peer: Peer) -> None:
    peer.versions[0] = (3, 3)
    peer.versions[12] = (99, 100)
    async with Client(f"{HOST}:{peer.port}") as client:
        with pytest.raises(KafkaError, match=r"does not support CreateTopics") as raised:
            await client.send(APIS[19].request.blank())
        assert raised.value.code is ErrorCode.UNSUPPORTED_VERSION
        with pytest.raises(KafkaError, match=r"supports versions 99-100 of Heartbeat, but this client only 0-4"):
            await client.send(HEARTBEAT)
        with pytest.raises(ValueError, match="HeartbeatRequest v0: group_instance_id has a value"):
            await client.send(
                HeartbeatRequest(group_id="", generation_id=1, member_id="", group_instance_id="i"), version=0
            )


async def test_leaders_controllers_and_nodes(peer: Peer) -> None:
    async with Client(f"{HOST}:{peer.port}") as client:
        assert await client.controller() == 7
        assert await client.leader("there", 0) == 7
        asked = len(peer.seen)
        assert await client.leader("there", 0) == 7
        assert len(peer.seen) == asked, "known leaders are remembered"
        with pytest.raises(KafkaError, match="UNKNOWN_TOPIC_OR_PARTITION: elsewhere"):
            await client.leader("elsewhere", 0)
        with pytest.raises(KafkaError, match="there has no partition 5"):
            await client.leader("there", 5)
        peer.leader = peer.controller = -1
        with pytest.raises(KafkaError, match="LEADER_NOT_AVAILABLE: there-0"):
            await client.leader("there", 0, fresh=True)
        with pytest.raises(KafkaError, match="NOT_CONTROLLER"):
            await client.controller()
        with pytest.raises(KafkaError, match="BROKER_NOT_AVAILABLE: the cluster has no broker 8"):
            await client.send(HEARTBEAT, node=8)
        assert peer.connections == 1
        peer.answers[12] = lambda header, request: HeartbeatResponse(error_code=0)
        answers = await asyncio.gather(*(client.send(HEARTBEAT, node=7) for _ in range(50)))
        assert answers == [HeartbeatResponse(error_code=0)] * 50
        assert peer.connections == 2


@pytest.mark.parametrize("highest", [3, 4])
async def test_coordinators(peer: Peer, highest: int) -> None:
    peer.versions[10] = (0, highest)
    code = 0

    def answer(header: RequestHeader, request: FindCoordinatorRequest) -> FindCoordinatorResponse:
        if header.api_version < 4:
            assert request.key == "g"
            return FindCoordinatorResponse(error_code=code, node_id=7, host=HOST, port=peer.port)
        assert request.coordinator_keys == ["g"]
        found = FindCoordinatorResponse.Coordinator(key="g", node_id=7, host=HOST, port=peer.port, error_code=code)
        return FindCoordinatorResponse(coordinators=[found])

    peer.answers[10] = answer
    async with Client(f"{HOST}:{peer.port}") as client:
        assert await client.coordinator("g") == 7
        code = ErrorCode.COORDINATOR_NOT_AVAILABLE
        with pytest.raises(KafkaError, match="COORDINATOR_NOT_AVAILABLE"):
            await client.coordinator("g")


async def test_a_connection_ends_if_the_only_response_is_overdue(peer: Peer) -> None:
    peer.answers[12] = lambda header, request: None
    async with Client(f"{HOST}:{peer.port}") as client:
        with pytest.raises(KafkaError, match=r"no response to Heartbeat v4 from 127.0.0.1:\d+ within 0.05 s") as raised:
            await client.send(HEARTBEAT, timeout=0.05)
        assert raised.value.code is ErrorCode.REQUEST_TIMED_OUT
        peer.answers[12] = lambda header, request: HeartbeatResponse(error_code=2)
        assert (await client.send(HEARTBEAT)).error_code == 2
    assert peer.connections == 2


async def test_a_connection_stays_while_another_caller_waits(peer: Peer) -> None:
    held: list[RequestHeader] = []
    has_arrived = asyncio.Event()

    def late(header: RequestHeader, request: Any) -> Any:
        held.append(header)
        has_arrived.set()
        if len(held) < 3:
            return None
        responses = [
            response_frame(HeartbeatResponse(error_code=n), 4, each.correlation_id) for n, each in enumerate(held, 1)
        ]
        return b"".join(part for response in responses for part in response)

    peer.answers[12] = late
    async with Client(f"{HOST}:{peer.port}") as client:
        patient = asyncio.ensure_future(client.send(HEARTBEAT))
        await has_arrived.wait()
        with pytest.raises(KafkaError) as raised:
            await client.send(HEARTBEAT, timeout=0.05)
        assert raised.value.code is ErrorCode.REQUEST_TIMED_OUT
        assert (await client.send(HEARTBEAT)).error_code == 3, "each response belongs to its own request"
        assert (await patient).error_code == 1
    assert peer.connections == 1


async def test_requests_for_any_broker_wait_only_once_for_a_silent_broker(peer: Peer) -> None:
    """A broker stopped by SIGSTOP is silent: its connections stay open."""
    silent = Peer()
    await silent.start()
    silent.answers[3] = lambda header, request: None
    asked = MetadataRequest(topics=[])
    try:
        async with Client(f"{HOST}:{silent.port},{HOST}:{peer.port}") as client:
            with pytest.raises(KafkaError, match="no response to Metadata"):
                await client.send(asked, timeout=0.05)
            assert (await client.metadata([])).controller_id == 7
            peer.answers[3] = lambda header, request: None
            with pytest.raises(KafkaError, match=f"no response to Metadata v12 from {HOST}:{peer.port} "):
                await client.send(asked, timeout=0.05)
            silent.answers[3] = silent.metadata  # the broker responds again
            assert (await client.metadata([])).controller_id == 7
    finally:
        await silent.stop()


async def test_a_lost_connection_is_reported_and_made_again(peer: Peer) -> None:
    peer.answers[12] = lambda header, request: peer.hang_up()
    async with Client(f"{HOST}:{peer.port}") as client:
        with pytest.raises(KafkaError, match="the broker closed the connection") as raised:
            await client.send(HEARTBEAT)
        assert raised.value.code is ErrorCode.NETWORK_EXCEPTION
        assert (await client.metadata([])).controller_id == 7
    assert peer.connections == 2


async def test_garbage_ends_the_connection(peer: Peer) -> None:
    peer.answers[12] = lambda header, request: b"HTTP/1.1 400 Bad Request\r\n\r\n"
    async with Client(f"{HOST}:{peer.port}") as client:
        with pytest.raises(KafkaError, match="looks like HTTP"):
            await client.send(HEARTBEAT)
        peer.answers[12] = lambda header, request: b"\0\0\0\5" + header.correlation_id.to_bytes(4) + b"\0"
        with pytest.raises(KafkaError, match="HeartbeatResponse v4 ends early"):
            await client.send(HEARTBEAT)
        peer.answers[12] = lambda header, request: b"\0\0\0\4\x7f\0\0\0"
        with pytest.raises(KafkaError, match="instead of"):
            await client.send(HEARTBEAT)


async def test_a_produce_without_acks_returns_at_once(peer: Peer) -> None:
    peer.answers[0] = lambda header, request: None
    async with Client(f"{HOST}:{peer.port}") as client:
        assert await client.send(ProduceRequest(acks=0, timeout_ms=1, topic_data=[])) is None
        await client.metadata([])
    assert [one.api_key for one in peer.seen] == [18, 0, 3]


async def test_the_first_bootstrap_address_that_answers(peer: Peer) -> None:
    dead = free_port()
    async with Client(f"{HOST}:{dead},{HOST}:{peer.port}") as client:
        assert (await client.metadata([])).controller_id == 7
    with pytest.raises(KafkaError, match=f"no broker responds: cannot connect to {HOST}:{dead}: ") as raised:
        await Client([(HOST, dead)]).metadata()
    assert raised.value.code is ErrorCode.BROKER_NOT_AVAILABLE


async def test_a_request_waits_no_longer_for_a_connection_than_for_its_answer() -> None:
    with socket.create_server((HOST, 0)) as silent:
        client = Client([(HOST, silent.getsockname()[1])])
        with pytest.raises(KafkaError, match=r"no connection for Metadata within 0.05 s") as raised:
            await client.send(MetadataRequest(topics=[]), timeout=0.05)
        assert raised.value.code is ErrorCode.REQUEST_TIMED_OUT
        await client.close()


async def test_a_peer_that_never_speaks() -> None:
    with socket.create_server((HOST, 0)) as silent:
        port = silent.getsockname()[1]
        with pytest.raises(KafkaError, match=rf"127.0.0.1:{port} did not respond within 0.05 s"):
            await Client([(HOST, port)], connect_timeout=0.05).metadata()


async def test_closing_fails_requests_in_flight(peer: Peer) -> None:
    arrived = asyncio.Event()
    peer.answers[12] = lambda header, request: arrived.set()
    async with Client(f"{HOST}:{peer.port}") as client:
        waiting = asyncio.ensure_future(client.send(HEARTBEAT))
        await arrived.wait()
    with pytest.raises(KafkaError, match="NETWORK_EXCEPTION"):
        await waiting
    await client.close()


@pytest.mark.parametrize("new_loop", [asyncio.new_event_loop, uvloop.new_event_loop])
def test_on_either_event_loop(new_loop: Callable[[], asyncio.AbstractEventLoop]) -> None:
    async def talk() -> MetadataResponse:
        peer = Peer()
        await peer.start()
        async with Client(f"{HOST}:{peer.port}") as client:
            answer = await client.metadata(["there"])
        await peer.stop()
        return answer

    with asyncio.Runner(loop_factory=new_loop) as runner:
        assert runner.run(talk()).controller_id == 7


@pytest.mark.parametrize(
    ("text", "addresses"),
    [
        ("localhost", [Address("localhost", 9092)]),
        ("a:1, b:2,", [Address("a", 1), Address("b", 2)]),
        ("PLAINTEXT://a:1,OWN-NAME://[::1]", [Address("a", 1), Address("::1", 9092)]),
        ("[::1]:9,[::2]", [Address("::1", 9), Address("::2", 9092)]),
    ],
)
def test_bootstrap_lists(text: str, addresses: list[Address]) -> None:
    assert parse_bootstrap(text) == addresses
    assert parse_bootstrap(",".join(map(str, addresses))) == addresses


@pytest.mark.parametrize("text", ["", " , ", "a:b", "a:0", "a:65536", ":9092", "a:-1", "x://", "x://a:b"])
def test_bad_bootstrap_lists(text: str) -> None:
    with pytest.raises(ValueError, match=r"not host:port|no bootstrap address"):
        parse_bootstrap(text)


# --- Throttling (KIP-219) ---


def throttling(peer: Peer, throttle_ms: int) -> Answer:
    def answer(header: RequestHeader, request: MetadataRequest) -> MetadataResponse:
        response = peer.metadata(header, request)
        response.throttle_time_ms = throttle_ms
        return response

    return answer


async def test_a_throttled_client_waits_before_its_next_request(peer: Peer) -> None:
    peer.answers[3] = throttling(peer, 200)
    loop = asyncio.get_running_loop()
    async with Client([(HOST, peer.port)]) as client:
        began = loop.time()
        await client.metadata([])
        await client.metadata([])
        assert loop.time() - began > 0.19


async def test_the_time_limit_of_a_request_holds_while_the_client_is_throttled(peer: Peer) -> None:
    peer.answers[3] = throttling(peer, 3_600_000)
    async with Client([(HOST, peer.port)]) as client:
        await client.metadata([])
        sent = len(peer.seen)
        with pytest.raises(KafkaError) as raised:
            await client.send(MetadataRequest(topics=[]), timeout=0.01)
        assert raised.value.code is ErrorCode.REQUEST_TIMED_OUT
        assert "throttles this client" in raised.value.message
        assert len(peer.seen) == sent, "the request was not sent"
        waiting = asyncio.ensure_future(client.send(MetadataRequest(topics=[]), timeout=3600))
        await asyncio.sleep(0)
        peer.hang_up()
        with pytest.raises(KafkaError) as raised:
            await waiting
        assert raised.value.code is ErrorCode.NETWORK_EXCEPTION


async def test_an_old_broker_has_throttled_before_it_responds(peer: Peer) -> None:
    peer.api_versions_max = 1
    peer.answers[3] = throttling(peer, 3_600_000)
    async with Client([(HOST, peer.port)]) as client:
        await client.metadata([])
        await client.metadata([])
