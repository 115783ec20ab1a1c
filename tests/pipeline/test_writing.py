"""Writing to a real broker; other clients read the records too."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pytest
from confluent_kafka import Consumer
from confluent_kafka import TopicPartition as Assigned

from parley import Broker
from parley.pipeline.client.cluster import LATEST, Cluster, Connection, TopicPartition
from parley.pipeline.client.decode import decode
from parley.pipeline.client.group_offsets import Committed, committed
from parley.pipeline.client.partitioner import partition_of
from parley.pipeline.client.writing import Producer, Writing, Written
from parley.protocol.errors import ErrorCode, KafkaError
from parley.protocol.messages.topics import CreateTopicsRequest
from parley.protocol.records.compression import Compression

PARTITIONS = 3


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    with Broker({"num.partitions": str(PARTITIONS)}) as broker:
        yield broker


@pytest.fixture
def cluster(broker: Broker) -> Iterator[Cluster]:
    with Cluster(Connection(bootstrap=broker.bootstrap_servers, api_timeout_ms=10_000)) as cluster:
        yield cluster


def read(cluster: Cluster, topic: str) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = []
    for number in range(PARTITIONS):
        partition = TopicPartition(topic, number)
        end = cluster.offsets({partition: LATEST})[partition]
        for fetched in cluster.fetch(partition, 0, end):
            rows += (row for batch in decode(fetched, 0, end, include_headers=True) for row in batch.to_pylist())
    return rows


def consumed(broker: Broker, topic: str, count: int) -> list[tuple[int, bytes | None, bytes | None, Any]]:
    """Return the records that librdkafka reads."""
    consumer = Consumer({"bootstrap.servers": broker.bootstrap_servers, "group.id": "none", "check.crcs": True})
    consumer.assign([Assigned(topic, number, 0) for number in range(PARTITIONS)])
    found: list[tuple[int, bytes | None, bytes | None, Any]] = []
    while len(found) < count:
        message = consumer.poll(30)
        assert message is not None
        assert message.error() is None
        found.append((message.partition() or 0, message.key(), message.value(), message.headers()))
    consumer.close()
    return found


@pytest.mark.slow
@pytest.mark.parametrize("codec", Compression)
def test_other_clients_read_the_written_records(broker: Broker, cluster: Cluster, codec: Compression) -> None:
    seeded = random.Random(codec)
    topic = f"written-{codec.name.lower()}"
    rows: list[dict[str, Any]] = [
        {
            "key": None if number % 5 == 0 else b"key %d" % (number % 50),
            "value": None if number % 7 == 0 else seeded.randbytes(seeded.randrange(200)),
            "headers": [("number", b"%d" % number), ("nothing", None)] if number % 3 == 0 else None,
        }
        for number in range(2000)
    ]
    kind = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
    schema = pa.schema([("key", pa.binary()), ("value", pa.binary()), ("headers", kind)])
    with Producer(cluster, Writing(compression=codec, batch_bytes=10_000, buffer_bytes=50_000)) as producer:
        for begin in range(0, 2000, 100):
            producer.write(pa.RecordBatch.from_pylist(rows[begin : begin + 100], schema), topic=topic)
    found = consumed(broker, topic, 2000)
    assert sorted(map(repr, ((row["key"], row["value"], row["headers"]) for row in rows))) == sorted(
        repr(one[1:]) for one in found
    )
    for key in {row["key"] for row in rows if row["key"] is not None}:
        theirs = [(number, value) for number, found_key, value, _ in found if found_key == key]
        assert {number for number, _ in theirs} == {partition_of(key, PARTITIONS)}
        assert [value for _, value in theirs] == [row["value"] for row in rows if row["key"] == key]


def test_columns_say_topic_and_partition(cluster: Cluster) -> None:
    rows = pa.RecordBatch.from_pydict(
        {
            "topic": ["one", "other", "one", "other"],
            "partition": pa.array([2, None, 0, 1], pa.int32()),
            "key": ["k"] * 4,
            "value": ["a", "b", "c", "d"],
        }
    )
    with Producer(cluster) as producer:
        producer.write(rows)
    assert [(row["partition"], row["value"]) for row in read(cluster, "one")] == [(0, b"c"), (2, b"a")]
    by_key = partition_of(b"k", PARTITIONS)
    assert sorted((row["partition"], row["value"]) for row in read(cluster, "other")) == sorted(
        [(1, b"d"), (by_key, b"b")]
    )


def test_flush_says_where_it_stands(cluster: Cluster) -> None:
    rows = pa.RecordBatch.from_pydict({"value": [b"x" * 90] * 100, "partition": [1] * 100})
    with Producer(cluster, Writing(batch_bytes=1000)) as producer:
        for _ in range(3):
            producer.write(rows, topic="flushed")
            producer.write(rows, topic="flushed")
            written = producer.flush()
        assert written == [Written(TopicPartition("flushed", 1), 400, 200)]
        assert producer.flush() == []


def test_rows_without_timestamp_get_the_time_of_writing(cluster: Cluster) -> None:
    with Producer(cluster, now_ms=lambda: 1_600_000_000_123) as producer:
        producer.write(pa.RecordBatch.from_pydict({"value": [b""]}), topic="stamped")
    assert [row["timestamp"].timestamp() for row in read(cluster, "stamped")] == [1_600_000_000.123]


@pytest.mark.parametrize(
    ("columns", "said"),
    [
        ({"key": [b""]}, "column 'value' is missing"),
        ({"value": [b""]}, "no topic is given"),
        ({"value": [b""], "topic": [None]}, "'topic' must be string"),
        ({"value": [b"", b""], "topic": ["t", None]}, "'topic' is null"),
        (
            {"value": [b""], "topic": ["t"], "partition": [PARTITIONS]},
            "'partition' contains 3; t has partitions 0 to 2",
        ),
        ({"value": [b""], "topic": ["t"], "partition": ["0"]}, "'partition' must be an integer"),
        ({"value": [1], "topic": ["t"]}, "'value' must be binary"),
    ],
)
def test_rows_that_cannot_be_written(cluster: Cluster, columns: dict[str, list[Any]], said: str) -> None:
    with pytest.raises(ValueError, match=said), Producer(cluster) as producer:
        producer.write(pa.RecordBatch.from_pydict(columns))


def test_batch_too_large_for_the_topic_is_an_error_and_the_producer_keeps_it(cluster: Cluster) -> None:
    rows = pa.RecordBatch.from_pydict({"value": [b"x" * 3_000_000]})
    producer = Producer(cluster)
    producer.write(rows, topic="small")
    for _ in range(2):
        with pytest.raises(KafkaError, match="writing to small-") as caught:
            producer.flush()
        assert caught.value.code is ErrorCode.MESSAGE_TOO_LARGE
    producer.close()


@pytest.mark.parametrize("codec", [Compression.NONE, Compression.LZ4])
def test_batches_larger_than_the_topic_allows_are_cut(cluster: Cluster, codec: Compression) -> None:
    """This makes topics writable whose ``max.message.bytes`` is smaller than our batches."""
    asked = CreateTopicsRequest.CreatableTopic(
        name=f"tight-{codec.name}",
        num_partitions=PARTITIONS,
        replication_factor=1,
        assignments=[],
        configs=[CreateTopicsRequest.CreatableTopicConfig(name="max.message.bytes", value="3000")],
    )
    controller = cluster.run(lambda client: client.controller())
    assert not cluster.send(CreateTopicsRequest(topics=[asked]), node=controller).topics[0].error_code
    values = [b"%d " % number + random.Random(number).randbytes(100) for number in range(1000)]
    rows = pa.RecordBatch.from_pydict({"value": values, "partition": [number % 2 for number in range(1000)]})
    with Producer(cluster, Writing(compression=codec)) as producer:
        for _ in range(2):
            producer.write(rows, topic=asked.name)
            written = producer.flush()
            assert sum(one.records for one in written) == 1000
    found = [(row["partition"], row["value"]) for row in read(cluster, asked.name)]
    assert found == [(number, value) for number in range(2) for value in 2 * values[number::2]]


def test_transactional_producer_says_so(cluster: Cluster) -> None:
    producer = Producer(cluster, Writing(transactional_id="t"))
    with pytest.raises(ValueError, match="between begin and commit"):
        producer.write(pa.RecordBatch.from_pydict({"value": [b""]}), topic="t")
    with pytest.raises(ValueError, match="transactional id"):
        Producer(cluster).begin()
    with pytest.raises(ValueError, match="no transaction is open"):
        producer.add_offsets("g", {})


def test_offsets_are_committed_with_a_transaction_or_not_at_all(cluster: Cluster) -> None:
    """Until the transaction ends, a reader of stable offsets must wait (KIP-447). Other readers see the previous
    offsets."""
    place = TopicPartition("copied", 0)

    def found(*, stable: bool = False) -> dict[TopicPartition, Committed]:
        return cluster.run(lambda client: committed(client, "copiers", stable=stable))

    def copy(producer: Producer, upto: int) -> None:
        producer.begin()
        producer.write(pa.RecordBatch.from_pydict({"value": [b"x"]}), topic=place.topic)
        producer.flush()
        producer.add_offsets("copiers", {place: Committed(upto, f"up to {upto}")})

    with Producer(cluster, Writing(transactional_id="copier")) as producer:
        copy(producer, 5)
        assert found() == {}
        producer.commit()
        copy(producer, 9)  # the previous transaction's markers are written, otherwise it could not begin
        assert found() == {place: Committed(5, "up to 5")}
        with pytest.raises(KafkaError) as caught:
            found(stable=True)
        assert caught.value.code is ErrorCode.UNSTABLE_OFFSET_COMMIT
        producer.abort()  # gets a new epoch once the markers are written
        assert found(stable=True) == {place: Committed(5, "up to 5")}


def test_a_transaction_of_offsets_only(cluster: Cluster) -> None:
    place = TopicPartition("copied", 0)
    with Producer(cluster, Writing(transactional_id="offsets only")) as producer:
        producer.partition_count(place.topic)
        producer.begin()
        producer.add_offsets("offsets only", {place: Committed(7)})
        assert producer.commit() == []
    while not (found := cluster.retry(lambda client: committed(client, "offsets only"))):
        pass  # the commit has its response before its markers are written
    assert found == {place: Committed(7)}
