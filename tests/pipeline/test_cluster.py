"""Reading from a real broker with blocking calls."""

from __future__ import annotations

import asyncio
import pickle
import re
import socket
import threading
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import pyarrow as pa
import pytest
from confluent_kafka import Producer

from parley import Broker
from parley.pipeline.client.cluster import EARLIEST, LATEST, Cluster, Connection, OffsetOutOfRange, TopicPartition
from parley.pipeline.client.decode import decode
from parley.pipeline.client.fetching import Fetched, fetch_once
from parley.protocol.errors import ErrorCode, KafkaError
from parley.protocol.messages.topics import DeleteRecordsRequest
from tests.support.ports import free_port


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    with Broker({"num.partitions": "2"}) as broker:
        yield broker


@pytest.fixture
def cluster(broker: Broker) -> Iterator[Cluster]:
    with Cluster(Connection(bootstrap=broker.bootstrap_servers, api_timeout_ms=10_000)) as cluster:
        yield cluster


def produce(broker: Broker, topic: str, values: list[bytes], **config: object) -> None:
    producer = Producer({"bootstrap.servers": broker.bootstrap_servers, **config})
    for value in values:
        producer.produce(topic, value, partition=0)
    assert producer.flush(30) == 0


def read(cluster: Cluster, partition: TopicPartition, start: int, end: int, max_bytes: int = 1 << 20) -> pa.Table:
    return pa.Table.from_batches(
        batch
        for fetched in cluster.fetch(partition, start, end, max_bytes=max_bytes)
        for batch in decode(fetched, start, end)
    )


def test_all_that_was_written_is_read_in_small_answers(broker: Broker, cluster: Cluster) -> None:
    values = [b"%d" % number * 50 for number in range(3000)]
    produce(broker, "read", values, **{"batch.size": 4000, "linger.ms": 5})
    partition = TopicPartition("read", 0)
    assert cluster.partitions(["read"]) == {"read": (0, 1)}
    assert cluster.offsets({partition: EARLIEST}) == {partition: 0}
    assert cluster.offsets({partition: LATEST}) == {partition: 3000}
    table = read(cluster, partition, 10, 2990, max_bytes=20_000)
    assert table["offset"].to_pylist() == list(range(10, 2990))
    assert table["value"].to_pylist() == values[10:2990]


def test_pattern_matches_whole_names(broker: Broker, cluster: Cluster) -> None:
    produce(broker, "pattern-1", [b""])
    produce(broker, "not-pattern-1", [b""])
    assert cluster.partitions(re.compile("pattern-.")) == {"pattern-1": (0, 1)}


def test_unknown_topic_is_said(cluster: Cluster) -> None:
    with pytest.raises(KafkaError, match="absent") as caught:
        cluster.partitions(["absent"])
    assert caught.value.code is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


def test_offsets_by_time(broker: Broker, cluster: Cluster) -> None:
    producer = Producer({"bootstrap.servers": broker.bootstrap_servers})
    for number in range(10):
        producer.produce("times", b"", partition=0, timestamp=1_000_000_000_000 + number)
    producer.flush(30)
    partition, other = TopicPartition("times", 0), TopicPartition("times", 1)
    assert cluster.offsets({partition: 1_000_000_000_004, other: LATEST}) == {partition: 4, other: 0}
    assert cluster.offsets({partition: 1_000_000_000_011}) == {partition: -1}


def test_deleted_records_are_out_of_range(broker: Broker, cluster: Cluster) -> None:
    produce(broker, "deleted", [b""] * 20)
    partition = TopicPartition("deleted", 0)
    asked = DeleteRecordsRequest.DeleteRecordsPartition(partition_index=0, offset=7)
    topic = DeleteRecordsRequest.DeleteRecordsTopic(name="deleted", partitions=[asked])
    cluster.send(DeleteRecordsRequest(topics=[topic], timeout_ms=10_000))
    with pytest.raises(OffsetOutOfRange, match=r"deleted-0 has offsets 7 to 20, not 3: records before") as caught:
        list(cluster.fetch(partition, 3, 20))
    assert (caught.value.log_start, caught.value.log_end) == (7, 20)
    with pytest.raises(OffsetOutOfRange, match="truncated"):
        list(cluster.fetch(partition, 30, 40))


def test_works_inside_a_running_loop(cluster: Cluster) -> None:
    async def main() -> None:
        assert cluster.partitions([]) == {}

    asyncio.run(main())


def test_connection_travels(broker: Broker) -> None:
    connection = Connection(bootstrap=broker.bootstrap_servers)
    assert pickle.loads(pickle.dumps(connection)) == connection
    with pytest.raises(ValueError, match="host:port"):
        Connection(bootstrap="nowhere:x")


def threads_of_clusters() -> set[threading.Thread]:
    """Return the threads of clusters. Threads of the brokers that other tests run in this process do not count: they
    start at any time."""
    return {each for each in threading.enumerate() if each.name.startswith("cluster ")}


def test_cluster_that_is_closed_stays_closed(cluster: Cluster) -> None:
    assert cluster.partitions([]) == {}
    cluster.close()
    threads = threads_of_clusters()
    with pytest.raises(RuntimeError, match="closed"):
        cluster.partitions([])
    assert threads_of_clusters() <= threads
    cluster.close()


def test_an_address_without_a_listener_is_reported_immediately_and_soon_given_up(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("parley.pipeline.client.cluster.FIRST_CONTACT_S", 0.3)
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))  # and not listening
        bootstrap = f"127.0.0.1:{held.getsockname()[1]}"
        # The default of ten minutes is longer than this test may take.
        connection = Connection(bootstrap=bootstrap, api_timeout_ms=600_000)
        with Cluster(connection) as cluster, pytest.raises(KafkaError, match=f"cannot connect to {bootstrap}"):
            cluster.contact()
    said = [record.getMessage() for record in caplog.records if record.name == "parley.pipeline.client.cluster"]
    assert said == [f"no broker responds at {bootstrap}; trying for 0.3 s"]


def test_a_cluster_that_has_answered_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("parley.pipeline.client.cluster.FIRST_CONTACT_S", 0.0)
    with ExitStack() as stack:
        with Broker() as broker:
            cluster = stack.enter_context(Cluster(Connection(bootstrap=broker.bootstrap_servers)))
            cluster.contact()
        cluster.contact()  # the broker may come back: the next call that needs it finds out


def test_a_broker_that_starts_meanwhile_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("parley.pipeline.client.cluster.FIRST_CONTACT_S", 60.0)
    port = free_port()
    contacted = threading.Event()
    with Cluster(Connection(bootstrap=f"127.0.0.1:{port}")) as cluster:
        asking = threading.Thread(target=lambda: (cluster.contact(), contacted.set()))
        asking.start()
        with Broker({"listeners": f"PLAINTEXT://127.0.0.1:{port}"}):
            asking.join()
    assert contacted.is_set()


def test_a_fetch_is_retried_after_an_unknown_server_error(
    broker: Broker, cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    produce(broker, "moody", [b"v"])
    failures = [KafkaError(ErrorCode.UNKNOWN_SERVER_ERROR, "fetching moody-0 from offset 0")]

    async def fetch(*arguments: Any) -> Fetched:
        if failures:
            raise failures.pop()
        return await fetch_once(*arguments)

    monkeypatch.setattr("parley.pipeline.client.cluster.fetch_once", fetch)
    assert read(cluster, TopicPartition("moody", 0), 0, 1).num_rows == 1
    monkeypatch.setattr("parley.pipeline.client.cluster._UNKNOWN_ERROR_S", 0.0)
    failures.append(KafkaError(ErrorCode.UNKNOWN_SERVER_ERROR))
    with pytest.raises(KafkaError, match="UNKNOWN_SERVER_ERROR"):
        read(cluster, TopicPartition("moody", 0), 0, 1)
