"""The hot paths of a broker, and the work that each takes.

The requests come through a socket to brokers in this process. A path is taken several times. The smallest amount of
work counts, because the other amounts may include periodic work of the broker.
"""

from __future__ import annotations

import asyncio
import itertools
import socket
import tempfile
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

from bench.small_requests import error_of
from parley.broker.config import BrokerConfig
from parley.broker.config.presets import EMBEDDED, of_cluster
from parley.broker.metadata.image import DELETED_TOPICS_KEPT
from parley.broker.runtime.clock import SYSTEM_CLOCK
from parley.broker.server import BrokerServer
from parley.protocol.client import Client
from parley.protocol.connection import ClientConnection
from parley.protocol.messages.fetch import FetchRequest
from parley.protocol.messages.group_offsets import OffsetCommitRequest
from parley.protocol.messages.groups import HeartbeatRequest, JoinGroupRequest, SyncGroupRequest
from parley.protocol.messages.metadata import MetadataRequest
from parley.protocol.messages.produce import ProduceRequest
from parley.protocol.messages.topics import CreateTopicsRequest, DeleteTopicsRequest
from parley.protocol.records.batch import build
from parley.protocol.records.record import Record
from parley.protocol.schema import Request, Response
from parley.protocol.uuids import UUID
from tests.hot_paths.counting import Counter
from tests.support.fast_folder import fast_folder

WARM_UPS = 3
TIMES = 4
SETTLING_TURNS = 30
"""Turns of the event loop after the response, in which the broker completes its work. It counts."""
FEW_EVENTS = {"offsets.topic.num.partitions": "1", "coordination.session.timeout.ms": "300000"}
"""Settings of the brokers, so that no session expires on a busy machine."""
RECORDS = 200
"""The records of a large batch."""
MANY = 500
"""The partitions of a large fetch."""
CREATED = 100
"""The topics that a request creates."""
ACKS_ALL, TIMEOUT_MS, MAX_BYTES = -1, 60_000, 1 << 20
WIDE, NARROW, REPLICATED, GROUP = "wide", "narrow", "replicated", "group"
PRODUCE, FETCH, COMMIT, HEARTBEAT, JOIN, SYNC, METADATA, CREATE, DELETE = 11, 16, 8, 4, 3, 5, 12, 7, 5
"""The versions of the requests that are sent: such as clients of this time send, except for JoinGroup, which takes two
requests in later versions."""


class SlowedClock:
    """The clock of the brokers and of their event loop, which is slow while work is counted.

    Counting makes a broker slow. With the real time, periodic work would fall into each path, and other clients would
    get a turn in the middle of it.
    """

    wall_ms = staticmethod(SYSTEM_CLOCK.wall_ms)

    def __init__(self) -> None:
        self._since = self._then = SYSTEM_CLOCK.monotonic()
        self._rate = 1.0

    def monotonic(self) -> float:
        return self._then + (SYSTEM_CLOCK.monotonic() - self._since) * self._rate

    @contextmanager
    def slowed(self) -> Iterator[None]:
        """Let a tenth of the time pass."""
        self._change(0.1)
        try:
            yield
        finally:
            self._change(1.0)

    def _change(self, rate: float) -> None:
        now = self.monotonic()
        self._since, self._then, self._rate = SYSTEM_CLOCK.monotonic(), now, rate


CLOCK = SlowedClock()


class Loop(asyncio.SelectorEventLoop):
    """An event loop whose timers follow ``CLOCK``."""

    def time(self) -> float:
        return CLOCK.monotonic()


@asynccontextmanager
async def brokers(count: int) -> AsyncIterator[list[BrokerServer]]:
    """Run brokers with a store in memory."""
    async with AsyncExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="parley-hot-paths-", dir=fast_folder())))
        started = []
        for broker_id in range(1, count + 1):
            (data := folder / f"broker-{broker_id}").mkdir()
            own = {
                "broker.id": str(broker_id),
                "log.dirs": str(data),
                "coordination.url": f"memory://hot-paths-of-{count}",
            }
            settings = {**EMBEDDED, **of_cluster(count), **FEW_EVENTS, **own}
            server = BrokerServer(BrokerConfig.from_properties(settings), clock=CLOCK)
            await server.start()
            stack.push_async_callback(server.stop)
            started.append(server)
        yield started


class Caller:
    """A client with one connection, whose own work does not count."""

    def __init__(self, bootstrap: str) -> None:
        host, _, port = bootstrap.rpartition(":")
        self._socket = socket.create_connection((host, int(port)))
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._socket.setblocking(False)
        self._connection = ClientConnection("hot-paths", 1 << 28)

    def close(self) -> None:
        self._socket.close()

    async def ask(self, request: Request, version: int, counter: Counter | None = None) -> Any:
        """Send a request and return its response. The counter counts what the brokers do meanwhile."""
        _, pieces = self._connection.send(request, version)
        frame = b"".join(pieces)
        if counter is None:
            return self._decoded(await self._exchange(frame))
        with CLOCK.slowed(), counter:
            received = await self._exchange(frame)
            for _ in range(SETTLING_TURNS):
                await asyncio.sleep(0)
        return self._decoded(received)

    async def _exchange(self, frame: bytes) -> bytes:
        loop = asyncio.get_running_loop()
        await loop.sock_sendall(self._socket, frame)
        received = b""
        while len(received) < 4 or len(received) < 4 + int.from_bytes(received[:4]):
            piece = await loop.sock_recv(self._socket, 1 << 20)
            assert piece, "the broker has closed the connection"
            received += piece
        return received

    def _decoded(self, received: bytes) -> Response:
        found: list[Response] = []
        while received:
            room = self._connection.get_buffer(len(received))
            count = min(len(room), len(received))
            room[:count] = received[:count]
            received = received[count:]
            found += [response for _, response in self._connection.buffer_updated(count)]
        return found[0]


async def least(caller: Caller, make: Callable[[], Request], version: int, times: int = TIMES) -> int:
    """Send requests, and return the least work that one took."""
    counters = [Counter() for _ in range(times)]
    for counter in (*[None] * WARM_UPS, *counters):
        response = await caller.ask(make(), version, counter)
        assert not error_of(response), f"error {error_of(response)} in {response}"
    return min(counter.work for counter in counters)


def produce(topic: str, records: int = 1, partitions: int = 1) -> ProduceRequest:
    """Return a request that appends a batch to each partition."""
    batch = build([Record(number, 1_700_000_000_000, b"key", b"x" * 100, ()) for number in range(records)])
    data = [ProduceRequest.PartitionProduceData(index=index, records=batch) for index in range(partitions)]
    wanted = ProduceRequest.TopicProduceData(name=topic, partition_data=data)
    return ProduceRequest(acks=ACKS_ALL, timeout_ms=TIMEOUT_MS, topic_data=[wanted])


def fetch(topic: UUID, partitions: Sequence[int], offset: int) -> FetchRequest:
    """Return a request for the records from an offset, outside a session."""
    wanted = [
        FetchRequest.FetchPartition(partition=index, fetch_offset=offset, partition_max_bytes=MAX_BYTES)
        for index in partitions
    ]
    topics = [FetchRequest.FetchTopic(topic_id=topic, partitions=wanted)]
    return FetchRequest(max_wait_ms=0, min_bytes=0, topics=topics)


def commit(group: str, member: str, generation: int) -> OffsetCommitRequest:
    """Return a request that commits an offset."""
    kind = OffsetCommitRequest
    offset = kind.OffsetCommitRequestPartition(partition_index=0, committed_offset=1, committed_metadata="")
    topics = [kind.OffsetCommitRequestTopic(name=WIDE, partitions=[offset])]
    return kind(group_id=group, generation_id_or_member_epoch=generation, member_id=member, topics=topics)


async def create(bootstrap: str, topic: str, partitions: int, replicas: int) -> UUID:
    """Create a topic, and wait until every partition has a leader. Returns its id."""
    wanted = CreateTopicsRequest.CreatableTopic(
        name=topic, num_partitions=partitions, replication_factor=replicas, assignments=[], configs=[]
    )
    async with Client(bootstrap) as client:
        response = await client.send(CreateTopicsRequest(topics=[wanted], timeout_ms=TIMEOUT_MS))
        assert not error_of(response), response
        await client.coordinator(GROUP)
        found = await client.metadata([topic])
    return found.topics[0].topic_id


async def join(caller: Caller, group: str, counter: Counter | None = None) -> tuple[str, int]:
    """Join a group as its only member. Returns the member's id and the generation."""
    protocol = JoinGroupRequest.JoinGroupRequestProtocol(name="range", metadata=b"topics")
    joining = JoinGroupRequest(
        group_id=group,
        session_timeout_ms=TIMEOUT_MS,
        rebalance_timeout_ms=TIMEOUT_MS,
        member_id="",
        protocol_type="consumer",
        protocols=[protocol],
    )
    joined = await caller.ask(joining, JOIN, counter)
    assert not joined.error_code, joined
    share = SyncGroupRequest.SyncGroupRequestAssignment(member_id=joined.member_id, assignment=b"partitions")
    syncing = SyncGroupRequest(
        group_id=group,
        generation_id=joined.generation_id,
        member_id=joined.member_id,
        protocol_type="consumer",
        protocol_name="range",
        assignments=[share],
    )
    synced = await caller.ask(syncing, SYNC, counter)
    assert not synced.error_code, synced
    return joined.member_id, joined.generation_id


async def join_work(caller: Caller) -> int:
    """Return the least work of a group's first member to join and to get its assignment."""
    counters = [Counter() for _ in range(TIMES)]
    for number, counter in enumerate((*[None] * WARM_UPS, *counters)):
        await join(caller, f"group-{number}", counter)
    return min(counter.work for counter in counters)


async def of_one_broker() -> dict[str, int]:
    """Return the work of the paths that one broker takes alone."""
    async with brokers(1) as (broker,):
        address = broker.bootstrap_servers
        topic = await create(address, WIDE, MANY, 1)
        await create(address, NARROW, 1, 1)
        caller = Caller(address)
        try:
            member, generation = await join(caller, GROUP)
            await caller.ask(produce(WIDE, 1, MANY), PRODUCE)
            described = [MetadataRequest.MetadataRequestTopic(name=NARROW)]
            heartbeat = HeartbeatRequest(group_id=GROUP, generation_id=generation, member_id=member)
            one, many = [1], range(MANY)
            return {
                "produce of one record": await least(caller, lambda: produce(WIDE), PRODUCE),
                "produce of 200 records": await least(caller, lambda: produce(WIDE, RECORDS), PRODUCE),
                "fetch that finds nothing": await least(caller, lambda: fetch(topic, one, 1), FETCH),
                "fetch of one partition": await least(caller, lambda: fetch(topic, one, 0), FETCH),
                "fetch of 500 partitions": await least(caller, lambda: fetch(topic, many, 0), FETCH, times=2),
                "commit of one offset": await least(caller, lambda: commit(GROUP, member, generation), COMMIT),
                "heartbeat": await least(caller, lambda: heartbeat, HEARTBEAT),
                "metadata of one topic": await least(caller, lambda: MetadataRequest(topics=described), METADATA),
                "join of a group": await join_work(caller),
                "creation of 100 topics": await creation_work(caller),
            }
        finally:
            caller.close()


async def of_two_brokers() -> dict[str, int]:
    """Return the work of a leader and of its follower for a record: append, fetch, append, and the next fetch."""
    async with brokers(2) as (first, second):
        await create(first.bootstrap_servers, REPLICATED, 1, 2)
        async with Client(first.bootstrap_servers) as client:
            leader = first if await client.leader(REPLICATED, 0) == 1 else second
        caller = Caller(leader.bootstrap_servers)
        try:
            return {"replication of one record": await least(caller, lambda: produce(REPLICATED), PRODUCE)}
        finally:
            caller.close()


def new_topics(prefix: str) -> CreateTopicsRequest:
    """Return a request for topics of one partition."""
    topics = [
        CreateTopicsRequest.CreatableTopic(
            name=f"{prefix}-{number}", num_partitions=1, replication_factor=1, assignments=[], configs=[]
        )
        for number in range(CREATED)
    ]
    return CreateTopicsRequest(topics=topics, timeout_ms=TIMEOUT_MS)


async def creation_work(caller: Caller) -> int:
    """Return the least work of creating topics, in a cluster that remembers as many deleted topics as it can."""
    for number in range(DELETED_TOPICS_KEPT // CREATED):
        request = new_topics(f"deleted-{number}")
        await caller.ask(request, CREATE)
        names = [topic.name for topic in request.topics]
        await caller.ask(DeleteTopicsRequest(topic_names=names, timeout_ms=TIMEOUT_MS), DELETE)
    numbers = itertools.count()
    return await least(caller, lambda: new_topics(f"created-{next(numbers)}"), CREATE, times=2)


def measured() -> dict[str, int]:
    """Return the work of each path."""
    found: dict[str, int] = {}
    for paths in (of_one_broker, of_two_brokers):
        with asyncio.Runner(loop_factory=Loop) as runner:
            found |= runner.run(paths())
    return found
