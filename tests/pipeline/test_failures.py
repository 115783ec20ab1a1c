"""Failures that readers and writers must survive: brokers die, logs lose records, disks return wrong bytes."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest

from parley import Cluster as Brokers
from parley.pipeline.client.cluster import Cluster, Connection, LogEnded, OffsetOutOfRange, TopicPartition
from parley.pipeline.client.decode import BadBatch, decode
from parley.pipeline.client.writing import Producer, Writing
from parley.protocol.errors import ErrorCode, KafkaError
from parley.protocol.messages.topics import CreateTopicsRequest, DeleteTopicsRequest
from parley.protocol.records.batch_header import headers
from parley.protocol.records.compression import Compression
from parley.tools.fault_proxy import FaultProxy
from tests.support.ports import free_port
from tests.system.running import BrokerProcess

pytestmark = pytest.mark.slow

VALUES = [f"{number} {'x' * 60}" for number in range(4000)]


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[BrokerProcess]:
    broker = BrokerProcess(tmp_path)
    broker.start()
    yield broker
    broker.kill()


@pytest.fixture
def cluster(broker: BrokerProcess) -> Iterator[Cluster]:
    with Cluster(Connection(bootstrap=broker.bootstrap_servers, api_timeout_ms=20_000)) as cluster:
        yield cluster


def rows(values: list[str]) -> pa.RecordBatch:
    return pa.RecordBatch.from_pydict({"value": values, "partition": [0] * len(values)})


def values(batches: list[pa.RecordBatch]) -> list[str]:
    return [value.decode() for batch in batches for value in batch.column("value").to_pylist()]


def create(cluster: Cluster, topic: str, replicas: int = 1) -> TopicPartition:
    asked = CreateTopicsRequest.CreatableTopic(
        name=topic, num_partitions=1, replication_factor=replicas, assignments=[], configs=[]
    )
    controller = cluster.run(lambda client: client.controller())
    answer = cluster.send(CreateTopicsRequest(topics=[asked]), node=controller)
    assert not answer.topics[0].error_code
    return TopicPartition(topic, 0)


def test_a_broker_that_crashes_and_comes_back_costs_nothing(broker: BrokerProcess, cluster: Cluster) -> None:
    partition = create(cluster, "crash")
    producer = Producer(cluster, Writing(batch_bytes=2000))
    producer.write(rows(VALUES[:2000]), topic="crash")
    producer.flush()
    reading = cluster.fetch(partition, 0, 4000, max_bytes=5000)
    found = list(decode(next(reading)))
    broker.kill()
    producer.write(rows(VALUES[2000:]), topic="crash")
    broker.start()
    producer.flush()
    producer.close()
    for fetched in reading:
        found += decode(fetched)
    assert values(found) == VALUES
    assert [offset for batch in found for offset in batch.column("offset").to_pylist()] == list(range(4000))


def test_connections_that_break_cost_nothing(tmp_path: Path) -> None:
    port = free_port()
    with FaultProxy("127.0.0.1", port) as link:
        through = f"127.0.0.1:{link.port}"
        broker = BrokerProcess(tmp_path, {"advertised.listeners": f"PLAINTEXT://{through}"}, port=port)
        broker.start()
        try:
            with Cluster(Connection(bootstrap=through)) as cluster:
                partition = create(cluster, "broken")
                # So few bytes in flight that the connection breaks both between and within requests.
                producer = Producer(cluster, Writing(batch_bytes=1000, buffer_bytes=1000, in_flight_bytes=8000))
                for begin in range(0, 4000, 100):
                    producer.write(rows(VALUES[begin : begin + 100]), topic="broken")
                    link.break_all()
                producer.flush()
                producer.close()
                found: list[pa.RecordBatch] = []
                for number, fetched in enumerate(cluster.fetch(partition, 0, 4000, max_bytes=4000)):
                    found += decode(fetched)
                    if number % 3 == 0:
                        link.break_all()
        finally:
            broker.kill()
    assert values(found) == VALUES


def test_leader_that_is_killed_is_followed_by_another() -> None:
    with Brokers(brokers=3) as brokers, Cluster(Connection(bootstrap=brokers.bootstrap_servers)) as cluster:
        partition = create(cluster, "moving", replicas=3)
        producer = Producer(cluster, Writing(batch_bytes=2000))
        producer.write(rows(VALUES[:2000]), topic="moving")
        producer.flush()
        reading = cluster.fetch(partition, 0, 4000, max_bytes=5000)
        found = list(decode(next(reading)))
        brokers.kill(cluster.run(lambda client: client.leader("moving", 0)))
        producer.write(rows(VALUES[2000:]), topic="moving")
        producer.flush()
        producer.close()
        for fetched in reading:
            found += decode(fetched)
    assert values(found) == VALUES


def test_position_in_a_recreated_topic_is_out_of_range(cluster: Cluster) -> None:
    partition = create(cluster, "anew")
    with Producer(cluster, Writing(batch_bytes=2000)) as producer:
        producer.write(rows(VALUES), topic="anew")
    reading = cluster.fetch(partition, 0, 4000, max_bytes=5000)
    next(reading)
    controller = cluster.run(lambda client: client.controller())
    cluster.send(DeleteTopicsRequest(topic_names=["anew"], timeout_ms=10_000), node=controller, version=5)
    create(cluster, "anew")
    with Producer(cluster) as producer:
        producer.write(rows(VALUES[:10]), topic="anew")
    with pytest.raises(OffsetOutOfRange, match=r"anew-0 has offsets 0 to 10, not \d+: the log was truncated"):
        list(reading)


def test_topic_that_is_deleted_ends_the_reading_soon(cluster: Cluster) -> None:
    partition = create(cluster, "gone")
    with pytest.raises(KafkaError) as caught:
        list(cluster.fetch(partition._replace(topic="never"), 0, 10))
    assert caught.value.code is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


def test_a_fetch_beyond_the_end_of_the_log_does_not_wait(cluster: Cluster) -> None:
    partition = create(cluster, "short")
    with Producer(cluster) as producer:
        producer.write(rows(VALUES[:10]), topic="short")
    reading = cluster.fetch(partition, 0, 11)
    assert next(reading).next_offset == 10
    with pytest.raises(LogEnded, match=r"short-0 ends at offset 10: the requested records were never written"):
        next(reading)


def test_no_broker_is_said() -> None:
    with (
        Cluster(Connection(bootstrap="127.0.0.1:1", api_timeout_ms=300)) as cluster,
        pytest.raises(KafkaError, match=r"no broker responds: cannot connect to 127.0.0.1:1"),
    ):
        cluster.partitions(["t"])


def test_last_batch_with_an_offset_that_the_disk_has_spoilt(broker: BrokerProcess, cluster: Cluster) -> None:
    """The batch's checksum does not cover the offset, and no batch follows that would be out of order."""
    partition = create(cluster, "far")
    with Producer(cluster, Writing(batch_bytes=2000)) as producer:
        producer.write(rows(VALUES[:100]), topic="far")
    (segment,) = (broker.data / "far-0").glob("*.log")
    data = bytearray(segment.read_bytes())
    pos, _ = list(headers(data))[-1]
    data[pos + 5] ^= 0xFF
    with segment.open("r+b") as file:
        file.write(data)
    with pytest.raises(
        KafkaError,
        match=r"far-0 contains a batch with impossible offsets .* beyond the end of the log: the log is corrupt",
    ):
        list(cluster.fetch(partition, 0, 100))


@pytest.mark.parametrize("codec", [Compression.NONE, Compression.GZIP])
def test_batch_that_the_disk_has_spoilt_is_named(broker: BrokerProcess, cluster: Cluster, codec: Compression) -> None:
    partition = create(cluster, "spoilt")
    with Producer(cluster, Writing(batch_bytes=2000, compression=codec)) as producer:
        producer.write(rows(VALUES[:1000]), topic="spoilt")
    (segment,) = (broker.data / "spoilt-0").glob("*.log")
    data = bytearray(segment.read_bytes())
    batches = list(headers(data))
    pos, header = batches[len(batches) // 2]
    data[pos + 80] ^= 0xFF
    with segment.open("r+b") as file:
        file.write(data)
    found: list[pa.RecordBatch] = []
    said = rf"spoilt-0 at offset {header.base_offset} cannot be read: a batch has checksum"
    with pytest.raises(BadBatch, match=said) as caught:
        found.extend(
            batch for fetched in cluster.fetch(partition, 0, 1000, max_bytes=4000) for batch in decode(fetched)
        )
    end = caught.value.next_offset
    assert end == header.next_offset
    for fetched in cluster.fetch(partition, end, 1000):
        found += decode(fetched, end)
    assert values(found) == VALUES[: header.base_offset] + VALUES[end:1000]


def test_log_that_is_no_log_is_named(broker: BrokerProcess, cluster: Cluster) -> None:
    partition = create(cluster, "rubbish")
    with Producer(cluster, Writing(batch_bytes=2000)) as producer:
        producer.write(rows(VALUES[:200]), topic="rubbish")
    (segment,) = (broker.data / "rubbish-0").glob("*.log")
    pos, header = list(headers(segment.read_bytes()))[3]
    with segment.open("r+b") as file:
        file.seek(pos + 16)
        file.write(b"\x07")  # a magic that there is not
    with pytest.raises(KafkaError, match=rf"rubbish-0 at offset {header.base_offset}"):
        list(cluster.fetch(partition, 0, 200, max_bytes=100_000))
