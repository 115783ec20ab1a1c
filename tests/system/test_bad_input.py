"""Invalid bytes lead to a protocol error or a closed connection, and a log line, and do not affect other clients."""

from __future__ import annotations

import os
import random
import socket
import ssl
import struct
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from itertools import count

import pytest
from confluent_kafka import Consumer, KafkaError, Message, Producer, TopicPartition

from parley.broker.network.listener import CLOSED_LOGGED_PER_SECOND
from parley.protocol.client import Client
from parley.protocol.codec import decode, request_frame
from parley.protocol.errors import ErrorCode
from parley.protocol.messages import APIS
from parley.protocol.messages.api_versions import ApiVersionsRequest, ApiVersionsResponse
from parley.protocol.messages.fetch import FetchRequest
from parley.protocol.messages.groups import HeartbeatRequest, JoinGroupRequest
from parley.protocol.messages.metadata import MetadataRequest, MetadataResponse
from parley.protocol.messages.offsets import ListOffsetsRequest
from parley.protocol.messages.produce import ProduceRequest
from parley.protocol.messages.topics import CreateTopicsRequest
from parley.protocol.records.batch import build
from parley.protocol.records.compression import Compression
from tests.support.ports import free_port
from tests.system.running import BrokerDied, BrokerProcess

WAIT_SECONDS = 60
FRAME_LIMIT = 100 * 1024 * 1024  # socket.request.max.bytes
TOPIC = "t"
TEST_SECONDS = 1.2 / CLOSED_LOGGED_PER_SECOND
"""The minimum duration of a test, so that a listener logs the connection that it closes in each test."""
SPARE_SOCKETS = 10  # the witness may connect again meanwhile


class Witness:
    """A producer and a consumer that continue while other clients misbehave, on connections that must not break."""

    def __init__(self, broker: BrokerProcess) -> None:
        self.trouble: list[KafkaError] = []
        self.received = 0
        self._news = threading.Condition()
        self._stop = threading.Event()
        config = {"bootstrap.servers": broker.bootstrap_servers, "error_cb": self.trouble.append, "log_level": 0}
        self._producer = Producer({**config, "linger.ms": 1})
        self._consumer = Consumer({**config, "group.id": "witness", "fetch.wait.max.ms": 50})
        self._consumer.assign([TopicPartition("witness", 0, 0)])
        self._threads = [threading.Thread(target=each) for each in (self._produce, self._consume)]
        for each in self._threads:
            each.start()

    def _delivered(self, error: KafkaError | None, _: Message) -> None:
        if error is not None:
            self.trouble.append(error)

    def _produce(self) -> None:
        for number in count():
            self._producer.produce("witness", b"%d" % number, partition=0, on_delivery=self._delivered)
            self._producer.poll(0)
            if self._stop.wait(0.005):
                break
        self._producer.flush(WAIT_SECONDS)
        self._producer.close()

    def _consume(self) -> None:
        while not self._stop.is_set():
            message = self._consumer.poll(0.1)
            if message is not None and message.error() is None:
                with self._news:
                    assert message.value() == b"%d" % self.received
                    self.received += 1
                    self._news.notify_all()
        self._consumer.close()

    def check(self) -> None:
        """Check that more records arrive, and that no client has reported an error."""
        with self._news:
            goal = self.received + 20
            assert self._news.wait_for(lambda: self.received >= goal, WAIT_SECONDS), "the witness receives nothing"
        assert not self.trouble, self.trouble[0]

    def close(self) -> None:
        self._stop.set()
        for each in self._threads:
            each.join()


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    port, flooded = free_port(), free_port()
    listeners = {
        "listeners": f"PLAINTEXT://127.0.0.1:{port},FLOODED://127.0.0.1:{flooded}",
        "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,FLOODED:PLAINTEXT",
    }
    broker = BrokerProcess(tmp_path_factory.mktemp("bad-input"), listeners, port=port)
    broker.start()
    yield broker
    assert broker.alive
    assert broker.stop() == 0
    assert "Traceback" not in broker.log()


@pytest.fixture(scope="module")
def witness(target: BrokerProcess) -> Iterator[Witness]:
    with Producer({"bootstrap.servers": target.bootstrap_servers}) as producer:
        producer.produce(TOPIC, b"0", partition=0)
        assert producer.flush(WAIT_SECONDS) == 0
        assert producer.list_topics("witness", timeout=WAIT_SECONDS)
    made = Witness(target)
    yield made
    made.close()


@pytest.fixture(autouse=True)
def _nobody_else_is_hurt(target: BrokerProcess, witness: Witness) -> Iterator[None]:
    began = time.monotonic()
    yield
    witness.check()
    assert target.alive
    threading.Event().wait(began + TEST_SECONDS - time.monotonic())


def connect(broker: BrokerProcess) -> socket.socket:
    return socket.create_connection(("127.0.0.1", broker.port), timeout=WAIT_SECONDS)


def flood(broker: BrokerProcess) -> socket.socket:
    """Connect to the listener for tests that close more connections than a listener logs."""
    port = int(broker.overrides["listeners"].rpartition(":")[2])
    return socket.create_connection(("127.0.0.1", port), timeout=WAIT_SECONDS)


def is_closed(sock: socket.socket) -> bool:
    """Return True if the broker closes the connection without a response."""
    try:
        return sock.recv(1) == b""
    except ConnectionResetError:
        return True


def answer(sock: socket.socket) -> bytes:
    """Return the next frame."""
    with sock.makefile("rb") as stream:
        size = stream.read(4)
        return stream.read(int.from_bytes(size, "big"))


def framed(body: bytes) -> bytes:
    return struct.pack(">i", len(body)) + body


def header(api_key: int, version: int, client_id: bytes = b"\x00\x01c") -> bytes:
    return struct.pack(">hhi", api_key, version, 7) + client_id


def closings(broker: BrokerProcess, start: int) -> list[str]:
    return [line for line in broker.log(start).splitlines() if "connection closed" in line]


METADATA = b"".join(bytes(part) for part in request_frame(MetadataRequest(topics=[]), 1, 7, "c"))

NONSENSE = {
    "http": (b"GET / HTTP/1.1\r\nHost: x\r\n\r\n", "HTTP"),
    "over the limit": (struct.pack(">i", FRAME_LIMIT + 1), "allowed"),
    "largest size": (b"\x7f\xff\xff\xff", "allowed"),
    "negative size": (struct.pack(">i", -5) + b"x" * 20, "-5"),
    "empty frame": (struct.pack(">i", 0) * 2, "request"),
    "half a header": (framed(b"\x00\x03\x00\x01\x00"), "request"),
    "unknown key": (framed(header(999, 0)), "999"),
    "negative key": (framed(header(-3, 0)), "-3"),
    "inter-broker key": (framed(header(4, 0)), "4"),
    "version too new": (framed(header(3, 99) + b"\x00" * 20), "v99"),
    "negative version": (framed(header(3, -1) + b"\x00" * 20), "v-1"),
    "ends early": (framed(header(3, 1) + b"\x00\x00\x00\x01\x00\x05ab"), "malformed"),
    "huge array": (framed(header(3, 1) + b"\x7f\xff\xff\xff"), "malformed"),
    "negative array": (framed(header(3, 1) + b"\xff\xff\xff\x00"), "malformed"),
    "huge compact array": (framed(header(3, 12) + b"\x00" + b"\xff\xff\xff\xff\x0f" + b"\x00" * 50), "malformed"),
    "endless varint": (framed(header(3, 12) + b"\x00" + b"\xff" * 60), "malformed"),
    "null name": (framed(header(0, 7) + b"\xff\xff\x00\x01\x00\x00\x00\x00\x00\x00\x00\x01\xff\xff"), "malformed"),
    "client id not utf-8": (framed(header(3, 1, b"\x00\x02\xff\xfe") + b"\x00\x00\x00\x00"), "client_id"),
    "client id too long": (framed(header(3, 1, b"\x7f\xffab")), "client_id"),
    "topic not utf-8": (framed(header(3, 1) + b"\x00\x00\x00\x01\x00\x02\xff\xfe"), "malformed"),
}


@pytest.mark.parametrize("name", NONSENSE)
def test_nonsense_closes_the_connection_with_one_line(target: BrokerProcess, name: str) -> None:
    sent, said = NONSENSE[name]
    start = target.log_size()
    with connect(target) as sock:
        sock.sendall(sent)
        assert is_closed(sock)
        assert said in line_about(target, start, sock)


def line_about(broker: BrokerProcess, start: int, sock: socket.socket) -> str:
    """Return the log line that explains why this connection was closed.

    A thread writes the log slightly later, and lines about earlier connections may come first.
    """
    port = sock.getsockname()[1]
    pause = threading.Event()
    for _ in range(int(WAIT_SECONDS / 0.02)):
        lines = [line for line in closings(broker, start) if f":{port} " in line]
        if lines:
            (line,) = lines
            return line
        pause.wait(0.02)
    pytest.fail(f"no log line about the connection from port {port}")


def test_tls_on_a_plain_port(target: BrokerProcess) -> None:
    start = target.log_size()
    context = ssl.create_default_context()
    with connect(target) as sock:
        with sock.dup() as ours, pytest.raises((ssl.SSLError, ConnectionResetError)):
            context.wrap_socket(ours, server_hostname="localhost")
        assert "TLS" in line_about(target, start, sock)


def test_requests_before_the_bad_one_are_answered(target: BrokerProcess) -> None:
    with connect(target) as sock:
        sock.sendall(METADATA + METADATA + framed(header(999, 0)) + METADATA)
        with sock.makefile("rb") as stream:
            everything = stream.read()
    size = int.from_bytes(everything[:4], "big")
    assert len(everything) == 2 * (size + 4)


def test_an_unknown_version_of_api_versions_is_answered_in_version_0(target: BrokerProcess) -> None:
    with connect(target) as sock:
        sock.sendall(framed(header(18, 99) + b"\x00\x04any\x04any\x00"))
        body = answer(sock)
        assert body[:4] == b"\x00\x00\x00\x07"
        told = decode(ApiVersionsResponse, 0, body, 4)
        assert told.error_code == ErrorCode.UNSUPPORTED_VERSION
        newest = {each.api_key: each.max_version for each in told.api_keys}[18]
        software = ApiVersionsRequest(client_software_name="x", client_software_version="1")
        sock.sendall(b"".join(bytes(part) for part in request_frame(software, newest, 8, "c")))
        told = decode(ApiVersionsResponse, newest, answer(sock), 4)
        assert told.error_code == ErrorCode.NONE
        assert len(told.api_keys) > 20


def test_random_bytes(target: BrokerProcess) -> None:
    chance = random.Random(4711)
    for _ in range(200):
        with flood(target) as sock, suppress(ConnectionResetError, BrokenPipeError):
            sock.sendall(chance.randbytes(chance.randrange(1, 3000)))
            sock.shutdown(socket.SHUT_WR)
            while sock.recv(65536):
                pass


def test_bodies_changed_at_random(target: BrokerProcess) -> None:
    """Well-framed requests of every API with a few random bytes get a response or a closed connection,
    never silence."""
    chance = random.Random(815)
    skipped = {11, 14, 1}  # a join, a sync and a fetch may wait for others by right
    for key in sorted(set(APIS) - skipped):
        cls = APIS[key].request
        for version in (cls.VERSIONS.min, cls.VERSIONS.max):
            try:
                frame = b"".join(bytes(part) for part in request_frame(cls.blank(), version, 7, "c"))
            except ValueError:
                continue  # cannot be blank in this version
            for _ in range(4):
                changed = bytearray(frame)
                for _ in range(chance.randrange(1, 4)):
                    changed[chance.randrange(8, len(changed))] = chance.randrange(256)
                with flood(target) as sock, suppress(ConnectionResetError, BrokenPipeError):
                    sock.sendall(changed)
                    sock.shutdown(socket.SHUT_WR)
                    while sock.recv(65536):
                        pass


def sockets(broker: BrokerProcess) -> int:
    """Return the number of sockets that the broker holds. Files that it opens itself do not count."""
    folder = f"/proc/{broker.pid}/fd"
    return sum(_target(f"{folder}/{each}").startswith("socket:") for each in os.listdir(folder))


def _target(descriptor: str) -> str:
    try:
        return os.readlink(descriptor)
    except FileNotFoundError:
        return ""


def settled(broker: BrokerProcess, wanted: int) -> int:
    """Return the number of sockets once it is back to ``wanted``, or when waiting for that times out."""
    with connect(broker) as last:  # connections are accepted in order: after this one, none waits
        last.sendall(METADATA)
        answer(last)
    pause = threading.Event()
    for _ in range(int(WAIT_SECONDS / 0.05)):
        held = sockets(broker)
        if held <= wanted:
            break
        pause.wait(0.05)
    return held


def test_half_frames_then_gone(target: BrokerProcess) -> None:
    before = sockets(target)
    for cut in range(1, len(METADATA)):
        for reset in (False, True):
            with connect(target) as sock:
                if reset:
                    sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                sock.sendall(METADATA[:cut])
    assert settled(target, before + SPARE_SOCKETS) <= before + SPARE_SOCKETS


def test_slow_clients_and_many_connections(target: BrokerProcess) -> None:
    before, memory = sockets(target), target.resident_bytes()
    slow = [connect(target) for _ in range(500)]
    for position in range(len(METADATA)):
        for sock in slow[position % 5 :: 5]:
            sock.sendall(METADATA[:1])
    for sock in slow:
        sock.close()
    assert settled(target, before + SPARE_SOCKETS) <= before + SPARE_SOCKETS
    assert target.resident_bytes() - memory < 50_000_000


def test_a_request_in_single_bytes_is_a_request(target: BrokerProcess) -> None:
    with connect(target) as sock:
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for position in range(len(METADATA)):
            sock.sendall(METADATA[position : position + 1])
        assert decode(MetadataResponse, 1, answer(sock), 4).brokers


def test_claimed_sizes_cost_no_memory(target: BrokerProcess) -> None:
    memory = target.resident_bytes()
    socks = [connect(target) for _ in range(60)]
    for sock in socks:
        sock.sendall(struct.pack(">i", FRAME_LIMIT) + header(0, 7) + b"\x00" * 1000)
    with connect(target) as sock:
        sock.sendall(METADATA)
        answer(sock)
    assert target.resident_bytes() - memory < 200_000_000
    for sock in socks:
        sock.close()


def test_answers_that_are_not_taken_stop_the_reading(target: BrokerProcess) -> None:
    memory = target.resident_bytes()
    every = b"".join(bytes(part) for part in request_frame(ApiVersionsRequest(), 0, 7, "c"))
    with connect(target) as sock:
        sock.settimeout(2)
        with suppress(TimeoutError):
            for _ in range(100_000):
                sock.sendall(every * 1000)
            pytest.fail("the broker reads what it cannot answer")
        assert target.resident_bytes() - memory < 100_000_000


def test_large_answers_to_small_requests_that_nobody_reads_stay_small(target: BrokerProcess) -> None:
    """A single read contains thousands of requests, whose responses are each a thousand times as long as
    the request."""
    part = FetchRequest.FetchPartition(partition=0, fetch_offset=0, partition_max_bytes=1 << 20)
    wanted = [FetchRequest.FetchTopic(topic="witness", partitions=[part])]
    fetch = FetchRequest(replica_id=-1, max_wait_ms=0, min_bytes=0, max_bytes=1 << 20, topics=wanted)
    everything = MetadataRequest(topics=None)
    memory = target.resident_bytes()
    socks = []
    for request, version in ((fetch, 4), (everything, 4)):
        frame = b"".join(bytes(part) for part in request_frame(request, version, 7, "c"))
        for _ in range(10):
            socks.append(connect(target))
            socks[-1].settimeout(0.2)
            with suppress(TimeoutError):
                socks[-1].sendall(frame * 20_000)
    assert target.resident_bytes() - memory < 50_000_000
    for sock in socks:
        sock.close()


def test_a_topic_named_over_and_over_is_answered_once(target: BrokerProcess) -> None:
    topics = [MetadataRequest.MetadataRequestTopic(name=TOPIC)] * 50_000
    with connect(target) as sock:
        sock.sendall(b"".join(bytes(part) for part in request_frame(MetadataRequest(topics=topics), 4, 7, "c")))
        assert len(decode(MetadataResponse, 4, answer(sock), 4).topics) == 1


def test_more_elements_than_any_request_has_close_the_connection(target: BrokerProcess) -> None:
    start = target.log_size()
    names = 100_000
    with connect(target) as sock:
        sock.sendall(framed(header(3, 1) + struct.pack(">i", names) + b"\x00\x01x" * names))
        assert is_closed(sock)
        assert "more elements than it may have up to topics" in line_about(target, start, sock)


def test_a_taken_metrics_port_is_named_by_its_key(new_broker: Callable[..., BrokerProcess]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(BrokerDied, match=r"metrics\.listener") as told:
            new_broker(**{"metrics.listener": f"127.0.0.1:{port}"}).start()
    assert f"127.0.0.1:{port}" in str(told.value)
    assert "--override metrics.listener=" in str(told.value)
    assert "--override listeners=" not in str(told.value)


# Requests that are well-formed, and wrong.


def produce(
    records: bytes | bytearray | None, *, topic: str = TOPIC, partition: int = 0, acks: int = -1
) -> ProduceRequest:
    part = ProduceRequest.PartitionProduceData(index=partition, records=records)
    data = ProduceRequest.TopicProduceData(name=topic, partition_data=[part])
    return ProduceRequest(acks=acks, timeout_ms=5000, topic_data=[data])


async def produced(broker: BrokerProcess, request: ProduceRequest, version: int = 9) -> ErrorCode:
    async with Client(broker.bootstrap_servers) as client:
        told = await client.send(request, version=version)
        return ErrorCode(told.responses[0].partition_responses[0].error_code)


def good(**options: object) -> bytearray:
    return build([(0, 1_700_000_000_000, b"k", b"value" * 5, ())] * 3, **options)  # type: ignore[arg-type]


def resealed(batch: bytearray) -> bytearray:
    import crc32c

    batch[17:21] = crc32c.crc32c(bytes(batch[21:])).to_bytes(4, "big")
    return batch


def patched(position: int, value: bytes, batch: bytearray | None = None) -> bytearray:
    batch = good() if batch is None else batch
    batch[position : position + len(value)] = value
    return resealed(batch)


def _flipped() -> bytearray:
    batch = good()
    batch[-3] ^= 0x55
    return batch


def _bomb(codec: Compression) -> bytearray:
    return build([(0, 1_700_000_000_000, None, bytes(1 << 20), ())] * 400, compression=codec)


BAD_BATCHES: dict[str, tuple[Callable[[], bytes | bytearray | None], set[ErrorCode]]] = {
    "flipped bit": (_flipped, {ErrorCode.CORRUPT_MESSAGE}),
    "cut short": (lambda: good()[:-5], {ErrorCode.CORRUPT_MESSAGE, ErrorCode.INVALID_RECORD}),
    "half a header": (lambda: good()[:30], {ErrorCode.CORRUPT_MESSAGE, ErrorCode.INVALID_RECORD}),
    "two batches": (lambda: good() + good(), {ErrorCode.INVALID_RECORD}),
    "magic 7": (lambda: patched(16, b"\x07"), {ErrorCode.CORRUPT_MESSAGE, ErrorCode.INVALID_RECORD}),
    "length 0": (lambda: patched(8, b"\x00\x00\x00\x00"), {ErrorCode.CORRUPT_MESSAGE}),
    "length huge": (lambda: patched(8, b"\x7f\xff\xff\xff"), {ErrorCode.CORRUPT_MESSAGE, ErrorCode.INVALID_RECORD}),
    "more records": (lambda: patched(57, b"\x00\x00\x00\x09"), {ErrorCode.INVALID_RECORD}),
    "fewer records": (lambda: patched(57, b"\x00\x00\x00\x01"), {ErrorCode.INVALID_RECORD}),
    "negative records": (lambda: patched(57, b"\xff\xff\xff\xff"), {ErrorCode.INVALID_RECORD}),
    "huge count": (lambda: patched(57, b"\x7f\xff\xff\xff"), {ErrorCode.INVALID_RECORD}),
    "offset delta": (lambda: patched(23, b"\x00\x00\x00\x50"), {ErrorCode.INVALID_RECORD}),
    "base offset": (lambda: patched(0, b"\x00\x00\x00\x00\x00\x00\x00\x09"), {ErrorCode.INVALID_RECORD}),
    "unknown codec": (lambda: patched(22, b"\x07"), {ErrorCode.UNSUPPORTED_COMPRESSION_TYPE, ErrorCode.INVALID_RECORD,
                                                   ErrorCode.CORRUPT_MESSAGE}),
    "not what the codec makes": (lambda: patched(22, b"\x04"), {ErrorCode.CORRUPT_MESSAGE, ErrorCode.INVALID_RECORD}),
    "control batch": (lambda: good(control=True), {ErrorCode.INVALID_RECORD}),
    "varint runs away": (lambda: patched(61, b"\xff" * 10), {ErrorCode.INVALID_RECORD, ErrorCode.CORRUPT_MESSAGE}),
    "sequence without epoch": (lambda: good(producer_id=5, producer_epoch=-1, base_sequence=0),
                               {ErrorCode.INVALID_RECORD, ErrorCode.INVALID_PRODUCER_EPOCH, ErrorCode.CORRUPT_MESSAGE}),
    "nothing": (lambda: b"", {ErrorCode.INVALID_RECORD, ErrorCode.CORRUPT_MESSAGE}),
    "null": (lambda: None, {ErrorCode.INVALID_RECORD, ErrorCode.CORRUPT_MESSAGE}),
}  # fmt: skip


@pytest.mark.parametrize("name", BAD_BATCHES)
async def test_bad_batches(target: BrokerProcess, name: str) -> None:
    make, allowed = BAD_BATCHES[name]
    end = log_end(target)
    assert await produced(target, produce(make())) in allowed
    assert log_end(target) == end
    assert await produced(target, produce(good())) == ErrorCode.NONE


async def test_a_torn_tail_is_left_out_as_in_kafka(target: BrokerProcess) -> None:
    end = log_end(target)
    assert await produced(target, produce(good() + b"torn")) == ErrorCode.NONE
    assert log_end(target) == end + 3


async def test_sequences(target: BrokerProcess) -> None:
    mine = {"producer_id": 987_654, "producer_epoch": 3}
    assert await produced(target, produce(good(**mine, base_sequence=0))) == ErrorCode.NONE
    end = log_end(target)
    assert await produced(target, produce(good(**mine, base_sequence=0))) == ErrorCode.NONE  # a repetition
    gap = produce(good(**mine, base_sequence=7))
    assert await produced(target, gap) == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    old = produce(good(producer_id=987_654, producer_epoch=2, base_sequence=3))
    assert await produced(target, old) == ErrorCode.INVALID_PRODUCER_EPOCH
    assert log_end(target) == end
    assert await produced(target, produce(good(**mine, base_sequence=3))) == ErrorCode.NONE
    assert log_end(target) == end + 3


def log_end(broker: BrokerProcess) -> int:
    consumer = Consumer({"bootstrap.servers": broker.bootstrap_servers, "group.id": "x", "log_level": 0})
    try:
        low, high = consumer.get_watermark_offsets(TopicPartition(TOPIC, 0), timeout=WAIT_SECONDS)
        assert low == 0
        return high
    finally:
        consumer.close()


@pytest.mark.parametrize("codec", [Compression.GZIP, Compression.ZSTD], ids=["gzip", "zstd"])
async def test_compressed_bombs(target: BrokerProcess, codec: Compression) -> None:
    """400 MB compressed to less than a megabyte are rejected, or checked piece by piece."""
    bomb = _bomb(codec)
    assert len(bomb) < 1_000_000
    memory = target.resident_bytes()
    await produced(target, produce(bomb))
    assert target.resident_bytes() - memory < 600_000_000


async def test_wrong_places(target: BrokerProcess) -> None:
    unknown = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert await produced(target, produce(good(), topic="nowhere")) == unknown
    assert await produced(target, produce(good(), partition=77)) == unknown
    assert await produced(target, produce(good(), partition=-1)) == unknown
    assert await produced(target, produce(good(), topic="../etc")) in (unknown, ErrorCode.INVALID_TOPIC_EXCEPTION)
    assert await produced(target, produce(good(), topic="")) in (unknown, ErrorCode.INVALID_TOPIC_EXCEPTION)
    assert await produced(target, produce(good(), acks=7)) == ErrorCode.INVALID_REQUIRED_ACKS
    assert not (target.data.parent / "etc-0").exists()


@pytest.mark.parametrize("offset", [-1, -7, 10**12, 2**63 - 1])
async def test_fetches_out_of_range(target: BrokerProcess, offset: int) -> None:
    part = FetchRequest.FetchPartition(partition=0, fetch_offset=offset, partition_max_bytes=1000)
    request = FetchRequest(max_wait_ms=0, min_bytes=1, topics=[FetchRequest.FetchTopic(topic=TOPIC, partitions=[part])])
    async with Client(target.bootstrap_servers) as client:
        told = await client.send(request, version=11)
    assert told.responses[0].partitions[0].error_code == ErrorCode.OFFSET_OUT_OF_RANGE


async def test_fetches_of_nothing_and_of_nonsense(target: BrokerProcess) -> None:
    async def fetched(topic: str, partition: int, max_bytes: int) -> int:
        part = FetchRequest.FetchPartition(partition=partition, fetch_offset=0, partition_max_bytes=max_bytes)
        topics = [FetchRequest.FetchTopic(topic=topic, partitions=[part])]
        async with Client(target.bootstrap_servers) as client:
            told = await client.send(FetchRequest(max_wait_ms=0, min_bytes=1, topics=topics), version=11)
        code: int = told.responses[0].partitions[0].error_code
        return code

    assert await fetched("nowhere", 0, 1000) == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert await fetched(TOPIC, 99, 1000) == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert await fetched(TOPIC, -1, 1000) == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert await fetched(TOPIC, 0, -1) in (ErrorCode.NONE, ErrorCode.INVALID_REQUEST)
    assert await fetched(TOPIC, 0, 0) == ErrorCode.NONE


async def test_groups_and_topics_that_cannot_be(target: BrokerProcess) -> None:
    protocol = JoinGroupRequest.JoinGroupRequestProtocol(name="range", metadata=b"")

    async def joined(group: str, session_ms: int) -> int:
        request = JoinGroupRequest(
            group_id=group, session_timeout_ms=session_ms, rebalance_timeout_ms=1000, member_id="",
            protocol_type="consumer", protocols=[protocol],
        )  # fmt: skip
        told = await client.send(request, version=3)
        code: int = told.error_code
        return code

    async with Client(target.bootstrap_servers) as client:
        await client.coordinator("g")
        assert await joined("", 10_000) == ErrorCode.INVALID_GROUP_ID
        assert await joined("g", 1) == ErrorCode.INVALID_SESSION_TIMEOUT
        assert await joined("g", 2**31 - 1) == ErrorCode.INVALID_SESSION_TIMEOUT
        beat = HeartbeatRequest(group_id="g", generation_id=3, member_id="nobody")
        assert (await client.send(beat, version=3)).error_code == ErrorCode.UNKNOWN_MEMBER_ID
        names = ["", ".", "..", "a/b", "a b", "\u00e9", "x" * 250, "a\x00b"]
        topics = [
            CreateTopicsRequest.CreatableTopic(
                name=name, num_partitions=1, replication_factor=1, assignments=[], configs=[]
            )
            for name in names
        ]
        told = await client.send(CreateTopicsRequest(topics=topics, timeout_ms=5000), version=5)
        assert {each.error_code for each in told.topics} == {ErrorCode.INVALID_TOPIC_EXCEPTION}
        part = ListOffsetsRequest.ListOffsetsPartition(partition_index=0, timestamp=-77)
        asked = ListOffsetsRequest.ListOffsetsTopic(name=TOPIC, partitions=[part])
        told = await client.send(ListOffsetsRequest(replica_id=-1, topics=[asked]), version=7)
        code = told.topics[0].partitions[0].error_code
        assert code in (ErrorCode.NONE, ErrorCode.INVALID_REQUEST, ErrorCode.UNSUPPORTED_VERSION)


def test_connections_from_one_address_are_limited(new_broker: Callable[..., BrokerProcess]) -> None:
    broker = new_broker(**{"max.connections.per.ip": "10"})
    broker.start()
    first = [connect(broker) for _ in range(10)]
    for sock in first:
        sock.sendall(METADATA)
        answer(sock)
    with connect(broker) as late:
        assert is_closed(late)
    first.pop().close()
    pause = threading.Event()
    for _ in range(int(WAIT_SECONDS / 0.05)):
        with connect(broker) as again, suppress(ConnectionError):
            again.sendall(METADATA)
            if answer(again):
                break
        pause.wait(0.05)
    else:
        pytest.fail("a place that was given back is not given out")
    for sock in first:
        sock.close()


def test_idle_connections_are_closed(new_broker: Callable[..., BrokerProcess]) -> None:
    broker = new_broker(**{"connections.max.idle.ms": "1000"})
    broker.start()
    with connect(broker) as silent, connect(broker) as slow:
        slow.sendall(METADATA[:7])
        assert is_closed(silent)
        assert is_closed(slow)


def test_smaller_frames_by_configuration(new_broker: Callable[..., BrokerProcess]) -> None:
    broker = new_broker(**{"socket.request.max.bytes": "1000"})
    broker.start()
    with connect(broker) as sock:
        sock.sendall(METADATA)
        answer(sock)
        sock.sendall(struct.pack(">i", 1001))
        assert is_closed(sock)
        assert "1001 bytes, 1000 are allowed" in line_about(broker, 0, sock)
