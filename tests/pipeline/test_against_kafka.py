"""Apache Kafka as the reference: we read all its storage formats as its own clients do, and its clients read what we
write."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pyarrow as pa
import pytest

from parley.pipeline.client.cluster import EARLIEST, LATEST, Cluster, Connection, Isolation, TopicPartition
from parley.pipeline.client.decode import decode
from parley.pipeline.client.group_offsets import Committed, committed
from parley.pipeline.client.writing import Producer, Writing
from parley.pipeline.mirror.appending import new_producer
from parley.pipeline.mirror.copying import Anchor, Range, copy
from parley.protocol.errors import ErrorCode, KafkaError
from parley.protocol.records.compression import Compression
from tests.support.kafka import KAFKA_3, KafkaWithZooKeeper, kafka_39_zk
from tests.support.kafka_data import OVERRIDES, Consumed, consume, create, produce, producer, write_everything
from tests.support.kafka_tools import output_of_tool

pytestmark = pytest.mark.slow

TOPICS = [
    "codecs", "append.time_topic-x", "magic-0", "magic-1", "magic-1-append-time", "upgraded", "transactions",
    "idempotent", "trimmed", "compacted",
]  # fmt: skip
FENCED = (ErrorCode.INVALID_PRODUCER_EPOCH, ErrorCode.PRODUCER_FENCED)
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


@pytest.fixture(scope="module")
def kafka(tmp_path_factory: pytest.TempPathFactory) -> Iterator[KafkaWithZooKeeper]:
    directory = tmp_path_factory.mktemp("kafka")
    with kafka_39_zk(directory, OVERRIDES) as kafka:
        write_everything(kafka)
        yield kafka
    shutil.rmtree(directory)


@pytest.fixture
def cluster(kafka: KafkaWithZooKeeper) -> Iterator[Cluster]:
    with Cluster(Connection(bootstrap=kafka.bootstrap_servers)) as cluster:
        yield cluster


def bounds(cluster: Cluster, topic: str, isolation: Isolation) -> tuple[TopicPartition, int, int]:
    partition = TopicPartition(topic, 0)
    start = cluster.offsets({partition: EARLIEST})[partition]
    return partition, start, cluster.offsets({partition: LATEST}, isolation)[partition]


def read(cluster: Cluster, topic: str, isolation: Isolation, max_bytes: int) -> pa.Table:
    partition, start, end = bounds(cluster, topic, isolation)
    return pa.Table.from_batches(
        batch
        for fetched in cluster.fetch(partition, start, end, isolation, max_bytes=max_bytes)
        for batch in decode(fetched, start, end, include_headers=True)
    )


def as_consumed(table: pa.Table) -> list[Consumed]:
    return [
        Consumed(
            row["offset"],
            (row["timestamp"] - EPOCH) // timedelta(milliseconds=1),
            row["key"],
            row["value"],
            tuple((one["key"], one["value"]) for one in row["headers"] or ()),
        )
        for row in table.to_pylist()
    ]


@pytest.mark.parametrize("max_bytes", [1500, 1 << 20])
@pytest.mark.parametrize("isolation", Isolation)
@pytest.mark.parametrize("topic", TOPICS)
def test_rows_are_those_of_librdkafka(
    kafka: KafkaWithZooKeeper, cluster: Cluster, topic: str, isolation: Isolation, max_bytes: int
) -> None:
    table = read(cluster, topic, isolation, max_bytes)
    expected = consume(kafka, topic, committed=isolation is Isolation.READ_COMMITTED)
    assert as_consumed(table) == expected
    assert len(expected) >= 50
    if topic != "upgraded":
        kinds = {"magic-0": -1, "append.time_topic-x": 1, "magic-1-append-time": 1}
        assert table["timestampType"].unique().to_pylist() == [kinds.get(topic, 0)]


@pytest.mark.parametrize("topic", TOPICS)
def test_mirrored_batches_hold_the_same_records(kafka: KafkaWithZooKeeper, cluster: Cluster, topic: str) -> None:
    target = f"copy-of-{topic}"
    create(kafka, target)
    partition, start, end = bounds(cluster, topic, Isolation.READ_COMMITTED)
    begin = start + 7
    wanted = Range(
        flow=0,
        source=cluster.connection,
        target=cluster.connection,
        partition=partition,
        remote=TopicPartition(target, 0),
        anchor=Anchor(begin, 0, new_producer(cluster)),
        end=end,
        reach=end,
        isolation=Isolation.READ_COMMITTED,
    )
    for so_far in ((begin + end) // 2, end, end):  # as if killed twice: nothing records what was copied before
        assert not copy(replace(wanted, end=so_far)).problem
    source = [one for one in consume(kafka, topic, committed=True) if one.offset >= begin]
    found = consume(kafka, target)
    assert [one[1:] for one in found] == [one[1:] for one in source]
    assert [one.offset for one in found] == list(range(len(source)))


def test_a_compaction_between_two_copies_leaves_nothing_out(kafka: KafkaWithZooKeeper, cluster: Cluster) -> None:
    """The remaining records of a compaction are in another topic, with an aborted transaction in place of the removed
    records. The last copied record has an equal after records that were not copied."""
    for topic in ("before", "after", "of-both"):
        create(kafka, topic)
    with Producer(cluster) as producer:
        producer.write(rows("taken", "on"), topic="before")
    with Producer(cluster, Writing(transactional_id="compaction")) as producer:
        producer.begin()
        producer.write(rows("aborted"), topic="after")
        producer.flush()
        producer.abort()
    with Producer(cluster) as producer:
        producer.write(rows("x", "y", "z", "on"), topic="after")
    before, after, both = (TopicPartition(topic, 0) for topic in ("before", "after", "of-both"))
    anchor, connection = Anchor(0, 0, new_producer(cluster)), cluster.connection
    wanted = Range(0, connection, connection, before, both, anchor, 2, 2, Isolation.READ_COMMITTED)
    assert not copy(wanted).problem
    done = copy(replace(wanted, partition=after, end=6, reach=6))
    assert (done.problem, done.anchor.upstream) == ("", 6)
    assert values(consume(kafka, "of-both")) == [b"taken", b"on", b"x", b"y", b"z", b"on"]


def rows(*values: str) -> pa.RecordBatch:
    return pa.RecordBatch.from_pydict({"value": list(values)})


def values(found: list[Consumed]) -> list[bytes | None]:
    return [one.value for one in found]


def test_only_committed_records_are_seen(kafka: KafkaWithZooKeeper, cluster: Cluster) -> None:
    create(kafka, "ours")
    producer = Producer(cluster, Writing(transactional_id="ours", compression=Compression.LZ4))
    for number in range(4):
        producer.begin()
        producer.write(rows(f"a{number}", f"b{number}"), topic="ours")
        producer.flush()
        producer.write(rows(f"c{number}"), topic="ours")
        if number % 2:
            producer.abort()
        else:
            producer.commit()
    producer.begin()
    producer.commit()  # of nothing
    producer.close()
    assert values(consume(kafka, "ours", committed=True)) == [b"a0", b"b0", b"c0", b"a2", b"b2", b"c2"]
    table = read(cluster, "ours", Isolation.READ_COMMITTED, 1000)
    assert as_consumed(table) == consume(kafka, "ours", committed=True)
    assert [one for one in values(consume(kafka, "ours")) if one in (b"a1", b"b1")] == [b"a1", b"b1"]


def test_offsets_are_committed_with_a_transaction(kafka: KafkaWithZooKeeper, cluster: Cluster) -> None:
    create(kafka, "offsets")
    place = TopicPartition("offsets", 0)
    with Producer(cluster, Writing(transactional_id="offsets")) as producer:
        for upto, is_committed in ((5, True), (9, False)):
            producer.begin()
            producer.write(rows("copied"), topic=place.topic)
            producer.flush()
            producer.add_offsets("copiers", {place: Committed(upto, "note")})
            if is_committed:
                producer.commit()
            else:
                producer.abort()
    while not (found := cluster.retry(lambda client: committed(client, "copiers", stable=True))):
        pass  # the commit is confirmed before its markers are written
    assert found == {place: Committed(5, "note")}


def test_where_a_log_ends_is_where_its_readers_can_read_to(cluster: Cluster) -> None:
    """The end is requested from the leader as debugging consumers do. Everything is replicated here."""
    partition, _, end = bounds(cluster, "transactions", Isolation.READ_UNCOMMITTED)
    assert cluster.settled([partition]) == {partition: end}


def test_transaction_left_open_is_aborted_at_the_end(kafka: KafkaWithZooKeeper, cluster: Cluster) -> None:
    create(kafka, "left")
    with Producer(cluster, Writing(transactional_id="left")) as producer:
        producer.begin()
        producer.write(rows("never"), topic="left")
        producer.flush()
    partition = TopicPartition("left", 0)
    # The broker responds before the marker is in the log.
    while cluster.offsets({partition: LATEST}, Isolation.READ_COMMITTED)[partition] < 2:
        pass
    assert consume(kafka, "left", committed=True) == []


def test_newer_producer_of_an_id_fences_the_older(kafka: KafkaWithZooKeeper, cluster: Cluster) -> None:
    create(kafka, "fenced")
    writing = Writing(transactional_id="fenced")
    with Producer(cluster, writing) as newer:
        with Producer(cluster, writing) as older:
            older.begin()
            older.write(rows("left open"), topic="fenced")
            older.flush()
            newer.begin()
            older.write(rows("late"), topic="fenced")
            with pytest.raises(KafkaError) as caught:
                older.commit()
            assert caught.value.code in FENCED
            with pytest.raises(KafkaError) as caught:
                older.abort()
            assert caught.value.code in FENCED
        newer.write(rows("new"), topic="fenced")
        newer.commit()
    assert values(consume(kafka, "fenced", committed=True)) == [b"new"]


def test_a_throttled_reader_waits_and_loses_nothing(kafka: KafkaWithZooKeeper) -> None:
    def configure(*change: str) -> None:
        entity = ("--entity-type", "clients", "--entity-name", "throttled")
        words = ("--bootstrap-server", kafka.bootstrap_servers, "--alter", *entity, *change)
        output_of_tool("kafka.admin.ConfigCommand", *words, version=KAFKA_3)

    # More than the rate allows within the ten seconds over which Kafka measures it.
    create(kafka, "large")
    produce(producer(kafka), "large", 2000, size=60)
    configure("--add-config", "consumer_byte_rate=15500")
    connection = Connection(bootstrap=kafka.bootstrap_servers, client_id="throttled")
    with Cluster(connection) as cluster:
        table = read(cluster, "large", Isolation.READ_UNCOMMITTED, 20_000)
    assert as_consumed(table) == consume(kafka, "large")
