"""The writers of ``format("parley")`` against a real broker, without Spark's Java."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pytest
from confluent_kafka import Consumer
from confluent_kafka.admin import AdminClient, NewPartitions
from pyspark.sql.types import StringType, StructType

from parley import read_topic
from parley.pipeline.client.cluster import Cluster, Connection
from parley.pipeline.client.sending import ProducerId
from parley.pipeline.format.datasource import ParleyDataSource
from parley.pipeline.format.exactly_once import Epoch, leave, look_up
from parley.pipeline.format.options import OptionError, sink_options
from parley.pipeline.format.sink import Done, KafkaBatchWriter, _write
from parley.tools.pytest_plugin import KafkaBroker

pytestmark = pytest.mark.spark(java=False)

HEADERS = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))


@pytest.fixture
def topic(kafka_broker: KafkaBroker, request: pytest.FixtureRequest) -> str:
    return kafka_broker.create_topic(request.node.name.replace("[", "-").replace("]", ""), partitions=3)


def rows(first: int, count: int) -> pa.RecordBatch:
    numbers = range(first, first + count)
    return pa.RecordBatch.from_pydict(
        {
            "key": pa.array([f"k{number % 7}" if number % 5 else None for number in numbers], pa.string()),
            "value": pa.array([f"v{number}" if number % 11 else None for number in numbers], pa.string()),
            "headers": pa.array([[("h", b"1"), ("n", None)] if number % 2 else None for number in numbers], HEADERS),
            "timestamp": pa.array([0] * count, pa.timestamp("us")),  # as in Spark's sink: not for writing
            "other": pa.array(list(numbers)),
        }
    )


def write(
    broker: KafkaBroker, batches: Iterator[pa.RecordBatch] | list[pa.RecordBatch], epoch: Epoch | None, **options: str
) -> None:
    given = {"kafka.bootstrap.servers": broker.bootstrap_servers, **options}
    _write(iter(batches), sink_options(given), epoch)


def content(broker: KafkaBroker, topic: str) -> Counter[tuple[Any, ...]]:
    table = read_topic(broker.bootstrap_servers, topic, include_headers=True)
    columns = [table.column(name).to_pylist() for name in ("key", "value", "headers")]
    return Counter((key, value, str(headers)) for key, value, headers in zip(*columns, strict=True))


def once(broker: KafkaBroker, name: str, batches: list[pa.RecordBatch]) -> Counter[tuple[Any, ...]]:
    """Return the content of a topic that has received these rows once."""
    broker.create_topic(name)
    write(broker, batches, None, topic=name, deliveryGuarantee="at-least-once")
    return content(broker, name)


class Killed(Exception):
    pass


def write_and_die(broker: KafkaBroker, batches: list[pa.RecordBatch], epoch: Epoch, topic: str) -> None:
    """Write all of these rows, and end like a task that is killed before it is done."""
    there = read_topic(broker.bootstrap_servers, topic).num_rows

    def cut_short() -> Iterator[pa.RecordBatch]:
        yield from batches
        while read_topic(broker.bootstrap_servers, topic).num_rows == there:
            pass  # the writer has sent it, but does not report its arrival
        raise Killed

    options = sink_options({"kafka.bootstrap.servers": broker.bootstrap_servers, "topic": topic})
    with pytest.raises(Killed):
        _write(cut_short(), replace(options, writing=replace(options.writing, buffer_bytes=1)), epoch)


def test_all_columns_arrive(kafka_broker: KafkaBroker, topic: str) -> None:
    write(kafka_broker, [rows(0, 30)], None, topic=topic)
    found = content(kafka_broker, topic)
    assert sum(found.values()) == 30
    assert found[b"k1", b"v1", str([{"key": "h", "value": b"1"}, {"key": "n", "value": None}])] == 1
    assert found[None, None, "None"] == 1
    dates = read_topic(kafka_broker.bootstrap_servers, topic).column("timestamp").to_pylist()
    assert min(dates).year > 2000


def test_rows_say_their_topic_and_partition_and_the_option_wins(kafka_broker: KafkaBroker, topic: str) -> None:
    other = kafka_broker.create_topic(f"{topic}-other", partitions=3)
    batch = pa.RecordBatch.from_pydict(
        {
            "value": ["a", "b", "c", "d"],
            "topic": [topic, other, topic, topic],
            "partition": pa.array([2, 1, None, 0], pa.int32()),
        }
    )
    write(kafka_broker, [batch], Epoch("rows", 0, 5))
    found = read_topic(kafka_broker.bootstrap_servers, topic)
    where = dict(zip(found.column("value").to_pylist(), found.column("partition").to_pylist(), strict=True))
    assert (where[b"a"], where[b"d"], set(where)) == (2, 0, {b"a", b"c", b"d"})
    assert read_topic(kafka_broker.bootstrap_servers, other).column("partition").to_pylist() == [1]
    write(kafka_broker, [batch], None, topic=other, deliveryGuarantee="at-least-once")
    assert read_topic(kafka_broker.bootstrap_servers, other).num_rows == 5
    nameless = batch.set_column(1, "topic", pa.array([topic, None, topic, topic]))
    with pytest.raises(OptionError, match="'topic' is null in some rows"):
        write(kafka_broker, [nameless], None)


@pytest.mark.parametrize("reordered", [False, True], ids=["same-order", "other-order"])
def test_an_epoch_that_was_cut_short_is_completed(kafka_broker: KafkaBroker, topic: str, reordered: bool) -> None:
    """The task is killed after part of the epoch was acknowledged, and killed again when it is run again."""
    batches = [rows(0, 400), rows(400, 400), rows(300, 200)]  # some rows occur twice, and must be written twice
    epoch = Epoch("cut-short", 7, 1)
    write_and_die(kafka_broker, batches[:1], epoch, topic)
    write_and_die(kafka_broker, batches[:2], epoch, topic)
    again = (
        [batch.take(pa.array(range(len(batch) - 1, -1, -1))) for batch in reversed(batches)] if reordered else batches
    )
    write(kafka_broker, again, epoch, topic=topic)
    whole = once(kafka_broker, f"{topic}-once", batches)
    assert content(kafka_broker, topic) == whole
    write(kafka_broker, again, epoch, topic=topic)
    assert content(kafka_broker, topic) == whole
    write(kafka_broker, [rows(0, 10)], Epoch("cut-short", 8, 1), topic=topic)
    assert sum(content(kafka_broker, topic).values()) == sum(whole.values()) + 10


def test_a_header_that_is_null_is_said_each_time(kafka_broker: KafkaBroker, topic: str) -> None:
    nulls = pa.RecordBatch.from_pydict({"value": ["v"], "headers": pa.array([[None]], HEADERS)})
    write(kafka_broker, [rows(0, 1)], Epoch("null-header", 0, 0), topic=topic)
    for _ in range(2):
        with pytest.raises(ValueError, match="contains a null header"):
            write(kafka_broker, [nulls], Epoch("null-header", 0, 0), topic=topic)


def test_equal_rows_for_several_partitions_remain_distinct(kafka_broker: KafkaBroker, topic: str) -> None:
    """Each partition gets an equal row, and only the last of these rows was written."""
    epoch = Epoch("everywhere", 0, 0)

    def everywhere(*partitions: int) -> pa.RecordBatch:
        return pa.RecordBatch.from_pydict(
            {"value": ["tick"] * len(partitions), "partition": pa.array(partitions, pa.int32())}
        )

    write_and_die(kafka_broker, [everywhere(2)], epoch, topic)
    write(kafka_broker, [everywhere(0, 1, 2)], epoch, topic=topic)
    found = read_topic(kafka_broker.bootstrap_servers, topic)
    assert sorted(found.column("partition").to_pylist()) == [0, 1, 2]


def test_the_first_of_many_attempts_is_not_forgotten(kafka_broker: KafkaBroker, topic: str) -> None:
    """The first attempt wrote the rows. The others wrote nothing, as when a supervisor restarts a query all night."""
    epoch = Epoch("all-night", 3, 0)
    write_and_die(kafka_broker, [rows(0, 30)], epoch, topic)
    with Cluster(Connection(bootstrap=kafka_broker.bootstrap_servers)) as cluster:
        note = look_up(cluster, epoch)
        assert note is not None
        ids = (ProducerId(number, 0) for number in range(5000, 5700))
        leave(cluster, epoch, topic, replace(note, producers=(*note.producers, *ids)))
    write(kafka_broker, [rows(0, 30)], epoch, topic=topic)
    assert read_topic(kafka_broker.bootstrap_servers, topic).num_rows == 30


def test_an_epoch_is_known_after_changes_of_its_topics(kafka_broker: KafkaBroker, topic: str) -> None:
    """Between two attempts, the topics got more partitions, and the rows came in another order, with another topic's
    first."""
    other = kafka_broker.create_topic(f"{topic}-other", partitions=1)
    names = [topic, other, topic, other]
    batch = pa.RecordBatch.from_pydict({"value": ["a", "b", "c", "d"], "topic": names})
    epoch = Epoch("grown", 0, 2)
    write(kafka_broker, [batch], epoch)
    admin = AdminClient({"bootstrap.servers": kafka_broker.bootstrap_servers})
    for name in (topic, other):
        admin.create_partitions([NewPartitions(name, 7)])[name].result()
    write(kafka_broker, [batch.take(pa.array([3, 2, 1, 0]))], epoch)
    assert [read_topic(kafka_broker.bootstrap_servers, name).num_rows for name in (topic, other)] == [2, 2]


def test_tasks_and_epochs_remain_distinct(kafka_broker: KafkaBroker, topic: str) -> None:
    for epoch in (Epoch("q", 0, 0), Epoch("q", 0, 1), Epoch("q", 0, 4), Epoch("q", 1, 0), Epoch("r", 0, 0)):
        write(kafka_broker, [rows(0, 10)], epoch, topic=topic)
    assert read_topic(kafka_broker.bootstrap_servers, topic).num_rows == 50
    write(kafka_broker, [rows(0, 10)], Epoch("q", 0, 4), topic=topic)
    assert read_topic(kafka_broker.bootstrap_servers, topic).num_rows == 50


def test_rows_that_each_epoch_has_are_not_taken_for_those_of_the_one_before(
    kafka_broker: KafkaBroker, topic: str
) -> None:
    """One producer writes both epochs. The second is cut short and run again."""
    for number in range(3):
        write(kafka_broker, [rows(0, 30)], Epoch("same-rows", number, 0), topic=topic)
    write_and_die(kafka_broker, [rows(0, 10)], Epoch("same-rows", 3, 0), topic)
    write(kafka_broker, [rows(0, 30)], Epoch("same-rows", 3, 0), topic=topic)
    found = content(kafka_broker, topic)
    assert found == Counter(
        {row: 4 * count for row, count in once(kafka_broker, f"{topic}-once", [rows(0, 30)]).items()}
    )


def test_notes_that_stay_are_no_failure(
    kafka_broker: KafkaBroker, topic: str, caplog: pytest.LogCaptureFixture
) -> None:
    """The rows of a batch are written before its notes are deleted. Here the deletion fails, because the group has a
    member."""
    consumer = Consumer({"bootstrap.servers": kafka_broker.bootstrap_servers, "group.id": "parley-sink-x"})
    consumer.subscribe([topic])
    while not consumer.assignment():
        consumer.poll(0.1)
    given = {"kafka.bootstrap.servers": kafka_broker.bootstrap_servers, "topic": topic}
    KafkaBatchWriter(sink_options(given)).commit([Done("parley-sink-x"), Done("parley-sink-gone"), None])
    consumer.close()
    assert "stay until they expire: NON_EMPTY_GROUP" in caplog.text


def test_keys_go_where_other_clients_put_them(kafka_broker: KafkaBroker, topic: str) -> None:
    write(kafka_broker, [rows(0, 100)], None, topic=topic)
    table = read_topic(kafka_broker.bootstrap_servers, topic)
    keyed = {
        (key, partition)
        for key, partition in zip(table.column("key").to_pylist(), table.column("partition").to_pylist(), strict=True)
        if key is not None
    }
    assert len(keyed) == 7


SOURCE = {"kafka.bootstrap.servers": "localhost:9092", "topic": "t"}


@pytest.mark.parametrize(
    ("ddl", "given", "says"),
    [
        ({"v": "string"}, {}, "column 'value' is missing. Columns: v"),
        ({"value": "integer"}, {}, r"'value' is int; .*CAST\(value AS STRING\)"),
        ({"value": "string", "key": "long"}, {}, "'key' is bigint"),
        ({"value": "string"}, {"topic": ""}, "'topic' is empty"),
        ({"value": "string", "topic": "integer"}, {"topic": None}, "'topic' is int; it must be string"),
        ({"value": "string"}, {"topic": None}, "option 'topic', or add a column 'topic'"),
        ({"value": "string", "partition": "long"}, {}, "'partition' is bigint; it must be int"),
        ({"value": "string", "headers": "string"}, {}, "array<struct<key: string, value: binary>>"),
        ({"value": "string"}, {"kafka.bootstrap.servers": None}, "'kafka.bootstrap.servers' is missing"),
        ({"value": "string"}, {"kafka.compression.type": "rar"}, "none, gzip, snappy, lz4, zstd"),
        ({"value": "string"}, {"kafka.key.serializer": "x"}, "columns of bytes or text"),
        ({"value": "string"}, {"kafka.transactional.id": "x"}, "'transactionalIdPrefix'"),
        ({"value": "string"}, {"transactionalIdPrefix": " "}, "'transactionalIdPrefix' is empty"),
        (
            {"value": "string"},
            {"transactionalIdPrefix": "x", "deliveryGuarantee": "at-least-once"},
            "'transactionalIdPrefix' needs 'deliveryGuarantee' exactly-once",
        ),
        (
            {"value": "string"},
            {"kafka.security.protocol": "SSL", "kafka.ssl.truststore.location": "/nowhere"},
            "/nowhere cannot be read",
        ),
        ({"value": "string"}, {"deliveryGuarantee": "maybe"}, "at-least-once or exactly-once"),
    ],
)
def test_an_error_about_unwritable_rows_names_the_reason(
    ddl: Mapping[str, str], given: Mapping[str, str | None], says: str
) -> None:
    schema = StructType()
    for name, kind in ddl.items():
        schema.add(name, StringType() if kind == "string" else kind)
    options = {key: value for key, value in {**SOURCE, **given}.items() if value is not None}
    with pytest.raises(OptionError, match=says):
        ParleyDataSource(options).streamWriter(schema, False)


def test_a_topic_is_only_added_to() -> None:
    with pytest.raises(OptionError, match=r"mode\('append'\)"):
        ParleyDataSource(SOURCE).writer(StructType().add("value", "string"), True)


def test_a_stock_consumer_reads_the_written_records(kafka_broker: KafkaBroker, topic: str) -> None:
    for codec in ("none", "gzip", "snappy", "lz4", "zstd"):
        write(kafka_broker, [rows(0, 40)], None, topic=topic, **{"kafka.compression.type": codec})
    settings = {
        "bootstrap.servers": kafka_broker.bootstrap_servers, "group.id": topic, "auto.offset.reset": "earliest",
        "check.crcs": True,
    }  # fmt: skip
    consumer = Consumer(settings)
    consumer.subscribe([topic])
    try:
        found = [message for _ in range(200) for message in [consumer.poll(30)] if message is not None]
    finally:
        consumer.close()
    assert not any(message.error() for message in found)
    assert Counter(message.value() for message in found)[b"v1"] == 5
    assert AdminClient({"bootstrap.servers": kafka_broker.bootstrap_servers}).list_topics(topic).topics[topic]
