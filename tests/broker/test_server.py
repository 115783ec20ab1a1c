"""A whole broker: start, stop, restart, and failures of the start."""

from __future__ import annotations

import asyncio
import socket
import urllib.request
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from parley.broker.config import BrokerConfig
from parley.broker.membership.known_stores import STORE_FILE
from parley.broker.server import BrokerServer
from parley.broker.startup.cluster_joining import join_cluster
from parley.broker.startup.composition import Parts, limit_connections
from parley.broker.startup.environment import Environment
from parley.protocol.client import Client
from parley.protocol.errors import ErrorCode
from parley.protocol.messages.fetch import FetchRequest
from parley.protocol.messages.metadata import MetadataRequest
from parley.protocol.messages.offsets import ListOffsetsRequest
from parley.protocol.messages.produce import ProduceRequest
from parley.protocol.messages.topics import CreateTopicsRequest
from parley.protocol.records.batch import build
from parley.protocol.records.record import Record
from parley.storage.clean_shutdown import CLEAN_SHUTDOWN_FILE
from parley.storage.log_directory import DirectoryInUse
from parley.storage.meta_properties import InconsistentBrokerId
from parley.storage.resource_exhaustion import MEMORY
from tests.support.http import HTTP_TIMEOUT_S
from tests.support.ports import free_port


def config(data_dir: Path, **settings: Any) -> BrokerConfig:
    return BrokerConfig.from_properties(
        {
            "listeners": "PLAINTEXT://127.0.0.1:0",
            "log.dirs": str(data_dir),
            "broker.id": "1",
            **{name.replace("_", "."): str(value) for name, value in settings.items()},
        }
    )


@asynccontextmanager
async def running(given: BrokerConfig) -> AsyncIterator[BrokerServer]:
    server = BrokerServer(given)
    await server.start()
    try:
        yield server
    finally:
        await server.stop()


async def create(client: Client, topic: str, *, replicas: int = 1) -> None:
    wanted = CreateTopicsRequest.CreatableTopic(
        name=topic, num_partitions=1, replication_factor=replicas, assignments=[], configs=[]
    )
    answer: Any = await client.send(CreateTopicsRequest(topics=[wanted], timeout_ms=20_000))
    assert answer.topics[0].error_code == ErrorCode.NONE


async def produce(client: Client, topic: str, values: list[bytes], *, node: int | None = None) -> int:
    records = build([Record(i, 1, None, value, ()) for i, value in enumerate(values)])
    data = ProduceRequest.PartitionProduceData(index=0, records=records)
    sent = ProduceRequest.TopicProduceData(name=topic, partition_data=[data])
    answer: Any = await client.send(ProduceRequest(acks=-1, timeout_ms=20_000, topic_data=[sent]), version=9, node=node)
    outcome = answer.responses[0].partition_responses[0]
    assert outcome.error_code == ErrorCode.NONE
    return int(outcome.base_offset)


async def end_offset(client: Client, topic: str, *, node: int | None = None) -> int:
    partition = ListOffsetsRequest.ListOffsetsPartition(partition_index=0, timestamp=-1)
    wanted = ListOffsetsRequest.ListOffsetsTopic(name=topic, partitions=[partition])
    answer: Any = await client.send(ListOffsetsRequest(replica_id=-1, topics=[wanted]), node=node)
    found = answer.topics[0].partitions[0]
    assert found.error_code == ErrorCode.NONE
    return int(found.offset)


async def test_a_second_start_finds_everything(tmp_path: Path) -> None:
    async with running(config(tmp_path)) as server, Client(server.bootstrap_servers) as client:
        cluster = server.identity.cluster_id
        await create(client, "t")
        assert await produce(client, "t", [b"a", b"b"]) == 0
    assert (tmp_path / ".kafka_cleanshutdown").exists()
    async with running(config(tmp_path)) as server, Client(server.bootstrap_servers) as client:
        assert server.identity.cluster_id == cluster
        assert await end_offset(client, "t") == 2
        assert await produce(client, "t", [b"c"]) == 2


async def test_a_generated_broker_id_is_kept(tmp_path: Path) -> None:
    ids = []
    for _ in range(2):
        async with running(config(tmp_path, broker_id=-1)) as server:
            ids.append(server.identity.broker_id)
    assert ids == [1001, 1001]


async def test_nothing_is_left_of_a_start_that_fails(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(OSError, match=f"cannot listen on 127.0.0.1:{port}"):
            await BrokerServer(config(tmp_path, listeners=f"PLAINTEXT://127.0.0.1:{port}")).start()
    async with running(config(tmp_path)):
        with pytest.raises(DirectoryInUse):
            await BrokerServer(config(tmp_path)).start()
    with pytest.raises(InconsistentBrokerId):
        await BrokerServer(config(tmp_path, broker_id=2)).start()
    async with running(config(tmp_path)):
        pass


async def test_a_stop_does_not_wait_for_long_polls(tmp_path: Path) -> None:
    async with running(config(tmp_path)) as server, Client(server.bootstrap_servers) as client:
        await create(client, "t")
        partition = FetchRequest.FetchPartition(partition=0, fetch_offset=0, partition_max_bytes=1000)
        topic = FetchRequest.FetchTopic(topic="t", partitions=[partition])
        poll = FetchRequest(max_wait_ms=600_000, min_bytes=1, topics=[topic])
        waiting = asyncio.ensure_future(client.send(poll, version=12, timeout=60))
        while not server.parts.purgatories.fetch.waiting:  # noqa: ASYNC110  the request is on its way through the kernel
            await asyncio.sleep(0.001)
        await server.stop()
        answer: Any = await waiting
        assert answer.responses[0].partitions[0].error_code == ErrorCode.NONE
        await server.stop()


async def test_listeners_advertise_their_own_addresses(tmp_path: Path) -> None:
    two = config(
        tmp_path,
        listeners="INSIDE://127.0.0.1:0,OUTSIDE://127.0.0.1:0",
        **{
            "listener.security.protocol.map": "INSIDE:PLAINTEXT,OUTSIDE:PLAINTEXT",
            "inter.broker.listener.name": "INSIDE",
            "advertised.listeners": "INSIDE://127.0.0.1:0,OUTSIDE://example.org:19092",
        },
    )
    async with running(two) as server:
        inside, outside = server.endpoints
        assert (outside.host, outside.port) == ("example.org", 19092)
        async with Client(server.bootstrap_servers) as client:
            answer: Any = await client.send(MetadataRequest(topics=[]))
            assert [(b.host, b.port) for b in answer.brokers] == [("127.0.0.1", inside.port)]
        port = server.serving.listeners[1].port
        assert port not in (inside.port, 19092)
        async with Client(f"127.0.0.1:{port}") as client:
            answer = await client.send(MetadataRequest(topics=[]))
            assert [(b.host, b.port) for b in answer.brokers] == [("example.org", 19092)]


async def test_a_broker_that_starts_knows_which_listeners_the_others_use(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The controller requests its report over one of them before the broker knows the cluster's metadata."""
    both = {
        "listeners": "INSIDE://127.0.0.1:0,SECURE://127.0.0.1:0",
        "listener.security.protocol.map": "INSIDE:PLAINTEXT,SECURE:PLAINTEXT",
        "coordination.url": f"local://{tmp_path}/store",
    }
    known: list[tuple[bool, bool]] = []

    async def join_later(environment: Environment, parts: Parts) -> None:
        known.append((bool(parts.metadata.image.brokers), "INSIDE" in parts.broker_listeners))
        await join_cluster(environment, parts)

    first = config(tmp_path / "1", **both, **{"inter.broker.listener.name": "INSIDE"})
    second = config(tmp_path / "2", **both, **{"inter.broker.listener.name": "SECURE", "broker.id": "2"})
    async with running(first):
        monkeypatch.setattr("parley.broker.server.join_cluster", join_later)
        async with running(second):
            assert known == [(False, True)]


async def test_metrics_are_served(tmp_path: Path) -> None:
    port = free_port()

    def get(path: str) -> str:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=HTTP_TIMEOUT_S) as answer:
            text: str = answer.read().decode()
            return text

    async with running(config(tmp_path, metrics_listener=f"127.0.0.1:{port}")) as server:
        async with Client(server.bootstrap_servers) as client:
            await create(client, "t")
            await produce(client, "t", [b"a", b"b"])
            text = await asyncio.to_thread(get, "/metrics")
        assert 'parley_topic_in_records_total{topic="t"} 2.0' in text
        assert 'parley_requests_total{api="Produce"} 1.0' in text
        assert 'parley_connections{listener="PLAINTEXT"}' in text
        assert "parley_leader_replicas 1.0" in text
        assert "parley_active_controller 1.0" in text
        assert 'parley_log_end_offset{partition="0",topic="t"} 2.0' in text
        assert '"status": "ready"' in await asyncio.to_thread(get, "/healthz")


async def test_limits_may_change_while_the_broker_runs(tmp_path: Path) -> None:
    async with running(config(tmp_path)) as server:
        assert server.parts.connection_quotas.limits.connections_per_ip == 2**31 - 1
        limit_connections(server.parts.connection_quotas, config(tmp_path, **{"max.connections.per.ip": 7}))
        assert server.parts.connection_quotas.limits.connections_per_ip == 7


async def test_a_broker_of_its_own_process_ends_when_memory_ran_out_in_the_middle_of_its_work(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(MEMORY, "lost_work", None)
    server = BrokerServer(config(tmp_path), owns_process=True)
    await server.start()
    async with Client(server.bootstrap_servers) as client:
        await create(client, "t")
        await produce(client, "t", [b"a"])
        assert server.exhaustion_checks is not None
        assert not server.starved
        monkeypatch.setattr(MEMORY, "lost_work", MemoryError())
        assert "ran out of memory in the middle of its work" in server.starved
        async with asyncio.timeout(30):
            await server.failed.wait()
    await server.give_up()
    await server.give_up()  # idempotent
    assert not server.health.report()[0]
    assert not (tmp_path / CLEAN_SHUTDOWN_FILE).exists(), "the next start reads the logs again"
    async with running(config(tmp_path)) as again, Client(again.bootstrap_servers) as client:
        assert again.exhaustion_checks is None, "an embedded broker does not end a process that is not its own"
        assert await produce(client, "t", [b"b"]) == 1


async def test_a_cluster_begins_with_the_topics_found_on_disk(tmp_path: Path) -> None:
    data, first, second = tmp_path / "data", tmp_path / "first", tmp_path / "second"
    before = config(data, **{"coordination.url": f"local://{first}"})
    async with running(before) as server, Client(server.bootstrap_servers) as client:
        await create(client, "t")
        await produce(client, "t", [b"a"])
        known = server.metadata.image.topics["t"].topic_id
    (data / STORE_FILE).unlink()  # as an operator does on purpose
    after = config(data, **{"coordination.url": f"local://{second}"})
    async with running(after) as server, Client(server.bootstrap_servers) as client:
        assert server.metadata.image.topics["t"].topic_id == known
        assert await produce(client, "t", [b"b"]) == 1


async def test_a_server_that_was_not_started_has_no_parts(tmp_path: Path) -> None:
    server = BrokerServer(config(tmp_path))
    for use in (lambda: server.parts, lambda: server.serving, lambda: server.identity):
        with pytest.raises(RuntimeError, match=r"wait until start\(\) has returned"):
            use()
    with pytest.raises(RuntimeError):
        await server.kill()
    await server.stop()
