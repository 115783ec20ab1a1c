"""Filters that narrow a batch read: exactly the rows that Spark would keep, and fewer bytes."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest
from confluent_kafka import Producer
from hypothesis import given, settings
from hypothesis import strategies as st
from pyspark.sql.datasource import (
    DataSourceReader,
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    IsNotNull,
    IsNull,
    LessThan,
    LessThanOrEqual,
    Not,
    StringContains,
    StringEndsWith,
    StringStartsWith,
)

from parley.pipeline.client.cluster import Cluster, TopicPartition
from parley.pipeline.client.fetching import Fetched
from parley.pipeline.format.datasource import ParleyDataSource
from parley.pipeline.format.offset_decisions import Range
from parley.pipeline.format.pushdown import narrowing
from parley.pipeline.format.source import source_schema
from parley.tools.pytest_plugin import KafkaBroker
from tests.support.proportion import examples

pytestmark = pytest.mark.spark(java=False)

T0_MS = 1_700_000_000_000
Row = dict[str, Any]
MEANING: dict[type[Filter], Callable[[Any, Any], bool]] = {
    EqualTo: lambda found, value: found == value,
    GreaterThan: lambda found, value: found > value,
    GreaterThanOrEqual: lambda found, value: found >= value,
    LessThan: lambda found, value: found < value,
    LessThanOrEqual: lambda found, value: found <= value,
    In: lambda found, value: found in value,
    StringStartsWith: lambda found, value: found.startswith(value),
    StringEndsWith: lambda found, value: found.endswith(value),
    StringContains: lambda found, value: value in found,
}
COMPARISONS = (EqualTo, GreaterThan, GreaterThanOrEqual, LessThan, LessThanOrEqual)


def holds(each: Any, row: Row) -> bool:
    if isinstance(each, Not):
        return not holds(each.child, row)
    found = row[each.attribute[0]]
    if isinstance(each, IsNull | IsNotNull):
        return (found is None) is isinstance(each, IsNull)
    return MEANING[type(each)](found, each.value)


def moment(timestamp_ms: int, microseconds: int = 0) -> dt.datetime:
    return dt.datetime.fromtimestamp(timestamp_ms / 1000, dt.UTC) + dt.timedelta(microseconds=microseconds)


VALUES: dict[str, st.SearchStrategy[Any]] = {
    "topic": st.sampled_from(["a", "b", "ab", "z"]),
    "partition": st.integers(-1, 3),
    "offset": st.integers(-2, 14),
    "timestamp": st.builds(moment, st.integers(-2, 12), st.sampled_from([0, 1, 999])),
}


@st.composite
def filters(draw: st.DrawFn) -> Filter:
    column = draw(st.sampled_from(sorted(VALUES)))
    attribute = (column,)
    kind: Any = draw(st.sampled_from([*COMPARISONS, In, IsNull, IsNotNull, StringStartsWith]))
    made: Filter
    if kind in (IsNull, IsNotNull):
        made = kind(attribute)
    elif kind is In:
        made = In(attribute, tuple(draw(st.lists(VALUES[column], min_size=1, max_size=3))))
    elif kind is StringStartsWith:
        made = draw(st.sampled_from([StringStartsWith, StringEndsWith, StringContains]))(
            ("topic",), draw(VALUES["topic"])
        )
    else:
        made = kind(attribute, draw(VALUES[column]))
    return Not(made) if draw(st.booleans()) else made


LOG = st.lists(st.integers(-1, 10), max_size=10)


@settings(max_examples=examples(400))
@given(st.lists(filters(), max_size=4), st.dictionaries(st.sampled_from("ab"), st.lists(LOG, max_size=2), min_size=1))
def test_the_narrowed_read_and_the_remaining_filters_select_the_same_rows(
    given_filters: list[Filter], topics: dict[str, list[list[int]]]
) -> None:
    logs = {TopicPartition(topic, number): log for topic, of in topics.items() for number, log in enumerate(of)}
    every: list[Row] = [
        {"topic": place.topic, "partition": place.partition, "offset": offset, "timestamp": moment(timestamp_ms)}
        for place, log in logs.items()
        for offset, timestamp_ms in enumerate(log)
    ]
    found, left = narrowing(given_filters)
    read = found.applied(Range(place, 0, len(log)) for place, log in logs.items() if log)
    if found.since_ms is not None:
        since_ms = found.since_ms
        late = {place: [at for at, each in enumerate(log) if each >= since_ms] for place, log in logs.items()}
        read = [
            Range(one.partition, max(one.start, min(late[one.partition], default=one.end)), one.end) for one in read
        ]
    wanted = {(one.partition, offset) for one in read for offset in range(one.start, one.end)}
    rows = [row for row in every if (TopicPartition(row["topic"], row["partition"]), row["offset"]) in wanted]
    assert [row for row in rows if all(holds(each, row) for each in left)] == [
        row for row in every if all(holds(each, row) for each in given_filters)
    ]
    assert all(each in given_filters for each in left)


def test_filters_that_offsets_cannot_decide_are_left_to_spark() -> None:
    late = moment(T0_MS)
    unknown: Sequence[Filter] = [
        EqualTo(("key",), b""),
        EqualTo(("headers", "key"), "offset"),
        In(("offset",), (3, None)),
        Not(In(("partition",), (None,))),
        EqualTo(("offset",), True),
        EqualTo(("partition",), "1"),
        LessThan(("timestamp",), late),
        GreaterThan(("timestamp",), late.replace(tzinfo=None)),
        Not(EqualTo(("offset",), 3)),
    ]
    found, left = narrowing(unknown)
    assert (list(map(id, left)), found.first, found.since_ms) == (list(map(id, unknown)), 0, None)


@pytest.fixture
def fetched_bytes(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Yield a list of the number of bytes that each fetch of this process returns."""
    sizes: list[int] = []
    fetch = Cluster.fetch

    def counted(self: Cluster, *words: Any, **named: Any) -> Iterator[Fetched]:
        for one in fetch(self, *words, **named):
            sizes.append(len(one.records))
            yield one

    monkeypatch.setattr(Cluster, "fetch", counted)
    return sizes


def test_a_narrowed_read_fetches_less(kafka_broker: KafkaBroker, fetched_bytes: list[int]) -> None:
    topic = kafka_broker.create_topic("narrowed", partitions=2)
    with Producer({"bootstrap.servers": kafka_broker.bootstrap_servers, "batch.size": 16384}) as producer:
        for number in range(4000):
            at_ms = T0_MS + number // 2 * 1000 + number % 14 * 500  # out of order, like the records of many machines
            producer.produce(topic, b"%0500d" % number, partition=number % 2, timestamp=at_ms)
    cluster = {"kafka.bootstrap.servers": kafka_broker.bootstrap_servers, "subscribe": topic}
    source = ParleyDataSource({**cluster, "pushfilters": "true"})
    # Otherwise Spark refuses to read unless filter pushdown is enabled.
    plain: Any = ParleyDataSource(cluster).reader(source_schema(include_headers=False))
    assert plain.pushFilters.__func__ is DataSourceReader.pushFilters

    def read(*pushed: Filter) -> list[Row]:
        reader: Any = source.reader(source_schema(include_headers=False))
        left = reader.pushFilters(list(pushed))
        fetched_bytes.clear()
        rows = [row for task in reader.partitions() for batch in reader.read(task) for row in batch.to_pylist()]
        return [row for row in rows if all(holds(each, row) for each in left)]

    every = read()
    whole = sum(fetched_bytes)
    assert len(every) == 4000
    late = moment(T0_MS + 1_900_000)
    for pushed, share in (
        ([EqualTo(("partition",), 1)], 0.51),
        ([EqualTo(("partition",), 1), EqualTo(("offset",), 1000)], 0.08),
        ([GreaterThanOrEqual(("offset",), 1900)], 0.1),
        ([GreaterThan(("timestamp",), late)], 0.1),
        ([GreaterThan(("timestamp",), late), LessThan(("timestamp",), moment(T0_MS + 1_910_000))], 0.1),
        ([GreaterThan(("timestamp",), moment(T0_MS * 2))], 0),
        ([EqualTo(("topic",), "another")], 0),
    ):
        assert read(*pushed) == [row for row in every if all(holds(each, row) for each in pushed)]
        assert sum(fetched_bytes) <= share * whole, pushed
