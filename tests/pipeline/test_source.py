"""The readers of ``format("parley")`` against a real broker, called as Spark calls them, without Spark's JVM."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterator, Sequence
from itertools import chain
from typing import Any

import pyarrow as pa
import pytest
from confluent_kafka import Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewPartitions
from pyspark import cloudpickle
from pyspark.sql.datasource import InputPartition
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxRows, ReadMinRows

from parley.pipeline.format.datasource import ParleyDataSource
from parley.pipeline.format.options import OptionError
from parley.pipeline.format.source import DataLoss, KafkaBatchReader, KafkaStreamReader, source_schema
from parley.protocol.errors import ErrorCode, KafkaError
from parley.tools.pytest_plugin import KafkaBroker
from tests.pipeline.mirror.clusters import rows as records
from tests.pipeline.transactions import OpenTransaction, abort_transaction, commit_transaction, open_transaction

pytestmark = pytest.mark.spark(java=False)

T0_MS = 1_700_000_000_000


@pytest.fixture
def topic(kafka_broker: KafkaBroker, request: pytest.FixtureRequest) -> str:
    """Return a topic with 10 records in its first partition and 5 in its second, one per second from `T0_MS` on."""
    name = kafka_broker.create_topic(f"{request.node.name.replace('[', '-').replace(']', '')}", partitions=2)
    fill(kafka_broker, name, 0, 10)
    fill(kafka_broker, name, 1, 5)
    return name


def fill(broker: KafkaBroker, topic: str, partition: int, count: int, first: int = 0) -> None:
    with Producer({"bootstrap.servers": broker.bootstrap_servers}) as producer:
        for number in range(first, first + count):
            value = f"{partition}-{number}".encode()
            producer.produce(topic, value, partition=partition, timestamp=T0_MS + 1000 * number)


@pytest.fixture
def admin(kafka_broker: KafkaBroker) -> Iterator[AdminClient]:
    with AdminClient({"bootstrap.servers": kafka_broker.bootstrap_servers}) as client:
        yield client


Reader = Callable[..., Any]


@pytest.fixture
def reader(kafka_broker: KafkaBroker, topic: str) -> Reader:
    """Create a reader of the topic from options, as Spark does."""

    def made(*, streaming: bool = True, **options: str) -> KafkaBatchReader | KafkaStreamReader:
        given = {"kafka.bootstrap.servers": kafka_broker.bootstrap_servers, **options}
        if not {"subscribe", "subscribePattern", "assign"} & given.keys():
            given["subscribe"] = topic
        source = ParleyDataSource(given)
        read: Any = source.streamReader if streaming else source.reader
        result = read(source_schema(given.get("includeHeaders") == "true"))
        assert isinstance(result, KafkaStreamReader if streaming else KafkaBatchReader)
        return result

    return made


def rows(reader: KafkaBatchReader | KafkaStreamReader, tasks: list[InputPartition]) -> list[tuple[int, int]]:
    """Return the partition and offset of all rows, read by a pickled copy of the reader."""
    copy = pickle.loads(cloudpickle.dumps(reader))
    batches: Iterator[pa.RecordBatch] = (batch for task in tasks for batch in copy.read(task))
    return sorted(
        (row["partition"], row["offset"])
        for batch in batches
        for row in batch.select(["partition", "offset"]).to_pylist()
    )


def batch_rows(reader: KafkaBatchReader) -> list[tuple[int, int]]:
    return rows(reader, reader.partitions())


def spread(*numbers: tuple[int, Sequence[int]]) -> list[tuple[int, int]]:
    return [(partition, offset) for partition, offsets in numbers for offset in offsets]


def test_a_batch_contains_the_records_between_two_positions(reader: Reader, topic: str) -> None:
    assert batch_rows(reader(streaming=False)) == spread((0, range(10)), (1, range(5)))
    start, end = f'{{"{topic}": {{"0": 3, "1": -2}}}}', f'{{"{topic}": {{"0": 7, "1": -1}}}}'
    chosen = reader(streaming=False, startingOffsets=start, endingOffsets=end)
    assert batch_rows(chosen) == spread((0, range(3, 7)), (1, range(5)))
    assigned = reader(streaming=False, assign=f'{{"{topic}": [1]}}')
    assert batch_rows(assigned) == spread((1, range(5)))
    # The pattern matches part of the name, as in Spark; in Kafka's consumers it must match the whole name.
    assert batch_rows(reader(streaming=False, subscribePattern=topic[3:-3])) == spread((0, range(10)), (1, range(5)))
    assert batch_rows(reader(streaming=False, subscribePattern=f"^{topic[:-1]}$")) == []
    assert batch_rows(reader(streaming=False, subscribePattern="nothing-matches-.*")) == []


def test_offsets_outside_of_the_log_are_an_error(reader: Reader, topic: str) -> None:
    """As in Spark's Kafka source: a start offset after the end offset is an error, and offsets beyond the log's end
    count as lost."""
    late, short = f'{{"{topic}": {{"0": 11, "1": 0}}}}', f'{{"{topic}": {{"0": 2, "1": -1}}}}'
    for options in ({"startingOffsets": late}, {"startingOffsets": late, "endingOffsets": short}):
        with pytest.raises(OptionError, match=f"{topic}-0 would be read from offset 11 to (10|2), which is before it"):
            reader(streaming=False, failOnDataLoss="false", **options).partitions()
    beyond = {"endingOffsets": f'{{"{topic}": {{"0": 99, "1": 5}}}}'}
    with pytest.raises(DataLoss, match=f"{topic}-0 ends at offset 10.*offsets 10 to 98 cannot be read"):
        batch_rows(reader(streaming=False, **beyond))
    whole = spread((0, range(10)), (1, range(5)))
    assert batch_rows(reader(streaming=False, failOnDataLoss="false", **beyond)) == whole


def test_times_are_positions(reader: Reader, topic: str) -> None:
    between = reader(streaming=False, startingTimestamp=str(T0_MS + 2500), endingTimestamp=str(T0_MS + 4000))
    assert batch_rows(between) == spread((0, range(3, 4)), (1, range(3, 4)))
    late = {"startingTimestamp": str(T0_MS + 7000)}
    with pytest.raises(OptionError, match=f"no record of {topic}-1 is as late.*ByTimestampStrategy"):
        batch_rows(reader(streaming=False, **late))
    lenient = reader(streaming=False, **late, startingOffsetsByTimestampStrategy="latest")
    assert batch_rows(lenient) == spread((0, range(7, 10)))
    by_partition = f'{{"{topic}": {{"0": {T0_MS + 8000}, "1": {T0_MS + 4000}}}}}'
    assert batch_rows(reader(streaming=False, startingOffsetsByTimestamp=by_partition)) == [(0, 8), (0, 9), (1, 4)]


def test_tasks_are_as_many_as_asked_for(reader: Reader) -> None:
    every = spread((0, range(10)), (1, range(5)))
    many = reader(streaming=False, minPartitions="6")
    assert len(many.partitions()) == 6
    assert batch_rows(many) == every
    small = reader(streaming=False, maxRecordsPerPartition="4")
    assert len(small.partitions()) == 5
    assert batch_rows(small) == every


def test_options_that_do_not_fit_the_topic_say_how(reader: Reader, topic: str) -> None:
    one = f'{{"{topic}": {{"0": 3}}, "other": {{"0": 1}}}}'
    with pytest.raises(OptionError, match=rf"missing: {topic}-1, not there: other-0; -1 means latest"):
        reader(startingOffsets=one).initialOffset()
    with pytest.raises(OptionError, match=r"topic 'nothing' does not exist.*create it"):
        reader(streaming=False, subscribe="nothing").partitions()
    with pytest.raises(OptionError, match=f"'assign' names {topic}-7, which"):
        reader(streaming=False, assign=f'{{"{topic}": [1, 7]}}').partitions()
    with pytest.raises(OptionError, match="columns are fixed"):
        ParleyDataSource({"kafka.bootstrap.servers": "h", "subscribe": topic}).reader(source_schema(True))


def test_batches_are_limited_and_end_at_the_known_end_offsets(
    reader: Reader, topic: str, kafka_broker: KafkaBroker
) -> None:
    stream = reader(startingOffsets="earliest", maxOffsetsPerTrigger="6")
    limit = stream.getDefaultReadLimit()
    assert limit == ReadMaxRows(6)
    stream.prepareForTriggerAvailableNow()
    fill(kafka_broker, topic, 0, 50, first=10)  # partitions added after the query began
    position, seen = stream.initialOffset(), []
    while (end := stream.latestOffset(position, limit)) != position:
        batch = rows(stream, stream.partitions(position, end))
        assert 0 < len(batch) <= 7
        seen += batch
        position = end
    assert sorted(seen) == spread((0, range(10)), (1, range(5)))
    assert stream.reportLatestOffset() == {topic: {"0": 10, "1": 5}}
    other = reader(startingOffsets="earliest")
    assert other.getDefaultReadLimit() == ReadAllAvailable()
    assert other.latestOffset(other.initialOffset(), ReadAllAvailable())[topic] == {"0": 60, "1": 5}


def test_a_batch_waits_until_it_is_worth_it(reader: Reader, topic: str, kafka_broker: KafkaBroker) -> None:
    stream = reader(startingOffsets="earliest", minOffsetsPerTrigger="4", maxTriggerDelay="1m")
    clock = [0.0]
    stream._monotonic = lambda: clock[0]
    limit = stream.getDefaultReadLimit()
    assert limit == ReadMinRows(4)
    first = stream.latestOffset(stream.initialOffset(), limit)
    assert first[topic] == {"0": 10, "1": 5}
    fill(kafka_broker, topic, 0, 3, first=10)
    assert stream.latestOffset(first, limit) == first
    clock[0] = 60.0
    second = stream.latestOffset(first, limit)
    assert second == {topic: {"0": 13, "1": 5}}
    fill(kafka_broker, topic, 1, 4, first=5)
    assert stream.latestOffset(second, limit) == {topic: {"0": 13, "1": 9}}
    fill(kafka_broker, topic, 1, 1, first=9)
    assert stream.latestOffset({topic: {"0": 13, "1": 9}}, ReadAllAvailable()) == {topic: {"0": 13, "1": 10}}


def test_the_first_batch_is_the_same_after_a_restart(reader: Reader, topic: str, kafka_broker: KafkaBroker) -> None:
    """Spark stores the end of a batch. It requests the start of the first batch again, and `latest` has changed by
    then."""
    stream = reader()
    start = stream.initialOffset()
    assert stream.latestOffset(start, ReadAllAvailable()) == start
    fill(kafka_broker, topic, 0, 5, first=10)
    end = stream.latestOffset(start, ReadAllAvailable())
    assert [part for part in end.values() if part] == [{"0": 15, "1": 5}]  # all that Spark's own source reads from it
    restarted = reader()
    assert rows(restarted, restarted.partitions(restarted.initialOffset(), end)) == spread((0, range(10, 15)))
    assert restarted.latestOffset(end, ReadAllAvailable()) == end
    fill(kafka_broker, topic, 1, 1, first=5)
    after = restarted.latestOffset(end, ReadAllAvailable())
    assert after == {topic: {"0": 15, "1": 6}}
    assert rows(restarted, restarted.partitions(end, after)) == [(1, 5)]


def test_partitions_that_come_later_are_read_from_their_beginning(
    reader: Reader, topic: str, kafka_broker: KafkaBroker, admin: AdminClient
) -> None:
    stream = reader()
    start = stream.initialOffset()
    admin.create_partitions([NewPartitions(topic, 3)])[topic].result()
    fill(kafka_broker, topic, 2, 4)
    end = stream.latestOffset(start, ReadMaxRows(3))
    assert end[topic] == {"0": 10, "1": 5, "2": 3}
    assert rows(stream, stream.partitions(start, end)) == spread((2, range(3)))


@pytest.mark.parametrize("fails", [True, False], ids=["failing", "going-on"])
def test_records_deleted_under_a_query(
    reader: Reader, topic: str, kafka_broker: KafkaBroker, admin: AdminClient, fails: bool
) -> None:
    stream = reader(startingOffsets="earliest", failOnDataLoss=str(fails).lower())
    start = stream.initialOffset()
    end = stream.latestOffset(start, ReadAllAvailable())
    tasks = stream.partitions(start, end)
    admin.delete_records([TopicPartition(topic, 0, 4)])[TopicPartition(topic, 0)].result()
    if not fails:
        assert rows(stream, tasks) == spread((0, range(4, 10)), (1, range(5)))
        return
    with pytest.raises(DataLoss, match=f"{topic}-0 has offsets 4 to 10, not 0.*'failOnDataLoss' to false"):
        rows(stream, tasks)


@pytest.mark.parametrize("fails", [True, False], ids=["failing", "going-on"])
def test_a_topic_made_again_under_a_query(
    reader: Reader, topic: str, kafka_broker: KafkaBroker, admin: AdminClient, fails: bool
) -> None:
    stream = reader(startingOffsets="earliest", failOnDataLoss=str(fails).lower())
    start = stream.initialOffset()
    end = stream.latestOffset(start, ReadAllAvailable())
    admin.delete_topics([topic])[topic].result()
    kafka_broker.create_topic(topic, partitions=1)
    fill(kafka_broker, topic, 0, 2)
    after = stream.latestOffset(end, ReadAllAvailable())
    assert after == {topic: {"0": 2}}
    if not fails:
        assert stream.partitions(end, after) == []
        fill(kafka_broker, topic, 0, 1, first=2)
        later = stream.latestOffset(after, ReadAllAvailable())
        assert rows(stream, stream.partitions(after, later)) == [(0, 2)]
        return
    with pytest.raises(DataLoss, match=f"{topic}-1 no longer exists; .*from offset 5 on"):
        stream.partitions(end, after)


def test_a_topic_that_is_gone(reader: Reader, topic: str, kafka_broker: KafkaBroker, admin: AdminClient) -> None:
    strict, lenient = reader(startingOffsets="earliest"), reader(startingOffsets="earliest", failOnDataLoss="false")
    start = strict.initialOffset()
    assert lenient.initialOffset() == start
    admin.delete_topics([topic])[topic].result()
    with pytest.raises(OptionError, match=r"topic .* does not exist"):
        strict.latestOffset(start, ReadAllAvailable())
    end = lenient.latestOffset(start, ReadAllAvailable())
    assert lenient.partitions(start, end) == []


COMMITTED = {"kafka.isolation.level": "read_committed"}
VISIBLE = [10, 11, 12, 14, 15, 23, 24]
"""The offsets from 10 on that a reader of committed records sees in `transactional`."""


@pytest.fixture
def transactional(topic: str, kafka_broker: KafkaBroker) -> Iterator[OpenTransaction]:
    """Write transactions to the topic's first partition, and yield the last, which is open.

    Offsets: 10-12 committed, 13 a marker, 14-15 plain, 16-21 aborted, 22 a marker, 23-24 committed, 25 a marker, 26-28
    open.
    """
    bootstrap = kafka_broker.bootstrap_servers
    commit_transaction(bootstrap, topic, records(3))
    fill(kafka_broker, topic, 0, 2, first=10)
    abort_transaction(bootstrap, topic, records(6))
    commit_transaction(bootstrap, topic, records(2))
    transaction = open_transaction(bootstrap, topic, records(3))
    with transaction.producer:
        yield transaction


@pytest.mark.parametrize("size", ["1", "2", "3", "100"])
def test_tasks_that_begin_anywhere_read_committed_records(
    reader: Reader, topic: str, transactional: OpenTransaction, size: str
) -> None:
    """A task may begin inside a transaction, after its last record, or at its marker."""
    options = {"assign": f'{{"{topic}": [0]}}', "startingOffsets": f'{{"{topic}": {{"0": 10}}}}'}
    cut = {"maxRecordsPerPartition": size, "kafka.fetch.max.bytes": "1"}
    committed = reader(streaming=False, **options, **cut, **COMMITTED)
    assert batch_rows(committed) == spread((0, VISIBLE))
    everything = reader(streaming=False, **options, **cut)
    assert batch_rows(everything) == spread((0, [one for one in range(10, 29) if one not in (13, 22, 25)]))


def test_a_stream_of_committed_records_ends_before_an_open_transaction(
    reader: Reader, topic: str, transactional: OpenTransaction, kafka_broker: KafkaBroker
) -> None:
    """The limit of a batch counts offsets, including those of markers and aborted records, so some batches contain no
    rows."""
    stream = reader(assign=f'{{"{topic}": [0]}}', startingOffsets="earliest", maxOffsetsPerTrigger="2", **COMMITTED)
    limit = stream.getDefaultReadLimit()
    position = stream.initialOffset()
    batches: list[list[tuple[int, int]]] = []
    while (end := stream.latestOffset(position, limit)) != position:
        batches.append(rows(stream, stream.partitions(position, end)))
        position = end
    assert len(batches) == 13
    assert [] in batches
    assert list(chain(*batches)) == spread((0, range(10)), (0, VISIBLE))
    assert (position, stream.reportLatestOffset()) == ({topic: {"0": 26}}, {topic: {"0": 26}})
    fill(kafka_broker, topic, 0, 1, first=12)
    assert stream.latestOffset(position, limit) == position
    transactional.commit()
    end = stream.latestOffset(position, ReadAllAvailable())
    assert end == {topic: {"0": 31}}
    assert rows(stream, stream.partitions(position, end)) == spread((0, range(26, 30)))


def test_a_query_that_changes_to_committed_records_waits_for_the_transaction(
    reader: Reader, topic: str, transactional: OpenTransaction
) -> None:
    """Its position is beyond the last stable offset, although no record of the log is lost."""
    position = {topic: {"0": 28, "1": 5}}
    stream = reader(**COMMITTED)
    assert stream.latestOffset(position, ReadAllAvailable()) == position
    lost = {topic: {"0": 99, "1": 5}}
    end = stream.latestOffset(lost, ReadAllAvailable())
    with pytest.raises(DataLoss, match=f"{topic}-0 ends at offset 26, before 99"):
        stream.partitions(lost, end)
    transactional.abort()
    end = stream.latestOffset(position, ReadAllAvailable())
    assert end == {topic: {"0": 30, "1": 5}}
    assert rows(stream, stream.partitions(position, end)) == []


def test_a_batch_that_reaches_into_an_open_transaction_fails(
    reader: Reader, topic: str, transactional: OpenTransaction
) -> None:
    """Undecided records are not skipped, unlike lost records."""
    reach = {"assign": f'{{"{topic}": [0]}}', "endingOffsets": f'{{"{topic}": {{"0": 28}}}}'}
    options = {**reach, **COMMITTED, "failOnDataLoss": "false"}
    into = reader(streaming=False, **options, **{"kafkaConsumer.pollTimeoutMs": "200"})
    with pytest.raises(KafkaError, match=f"{topic}-0 from offset 26 on .*a transaction is still open") as caught:
        batch_rows(into)
    assert caught.value.code is ErrorCode.REQUEST_TIMED_OUT
    transactional.commit()
    patient = reader(streaming=False, **options)
    assert batch_rows(patient) == spread((0, range(10)), (0, VISIBLE), (0, (26, 27)))
