"""Sinks store exactly what was sent, or they reject the record and name it, for any values in any order."""

from __future__ import annotations

import json
import shutil
import tempfile
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import sqlalchemy as sa
from deltalake import DeltaTable
from hypothesis import given, settings
from hypothesis import strategies as st
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.exceptions import CommitStateUnknownException

from parley.pipeline.connect.connector import ExactlyOnceSinkTask, OffsetRange
from parley.pipeline.connect.connectors.delta import DeltaSinkTask
from parley.pipeline.connect.connectors.iceberg import IcebergSinkTask
from parley.pipeline.connect.connectors.parquet import ParquetSinkTask
from parley.pipeline.connect.connectors.sql.database import open_engine
from parley.pipeline.connect.connectors.sql.sink import SqlSinkTask
from parley.pipeline.connect.connectors.sql.tables import reflected
from parley.pipeline.connect.converters.json_converter import JsonConverter
from parley.pipeline.connect.data import (
    BOOLEAN,
    BYTES,
    DATE,
    FLOAT32,
    FLOAT64,
    INT8,
    INT32,
    INT64,
    STRING,
    TIME,
    TIMESTAMP,
    Schema,
    Struct,
    array,
    decimal,
    map_of,
    struct,
)
from parley.pipeline.connect.errors import ConnectError, RetriableError
from parley.pipeline.connect.logical_types import from_millis
from parley.pipeline.connect.records import SinkRecord, TopicPartition
from parley.pipeline.load.columns import BadRecord, Layout, rows
from parley.pipeline.load.schemas import read_schema
from parley.pipeline.tables.iceberg import IcebergTable, opened
from tests.pipeline.connect.connectors.postgresql import postgresql
from tests.pipeline.connect.connectors.tasks import record, started
from tests.pipeline.exactness import is_same, values
from tests.pipeline.load.test_columns import batch
from tests.support.proportion import examples

pytestmark = pytest.mark.slow

Read = Callable[[], dict[tuple[int, int], dict[str, Any]]]


@dataclass
class Refusals:
    """Collects rejected records, as the runtime does if errors are tolerated."""

    errors: dict[tuple[int, int], str] = field(default_factory=dict)

    def report(self, refused: SinkRecord, error: BaseException) -> None:
        self.errors[refused.original_kafka_partition, refused.original_kafka_offset] = str(error)


@dataclass
class Place:
    """A target, a function that starts a task that writes to it, and one that reads all its rows by partition and
    offset."""

    begin: Callable[[Mapping[str, str]], ExactlyOnceSinkTask]
    read: Read
    refusals: Refusals = field(default_factory=Refusals)

    def start(self, **props: str) -> ExactlyOnceSinkTask:
        return self.begin({key.replace("_", "."): value for key, value in props.items()})


@pytest.fixture(scope="module")
def server() -> Iterator[str]:
    with postgresql() as url:
        yield url


@pytest.fixture
def place_of(server: str) -> Iterator[Callable[[str], Place]]:
    """Yield a function that creates an empty target of a kind."""
    folders: list[str] = []

    def make(kind: str) -> Place:
        folders.append(tempfile.mkdtemp(prefix="parley-exact-"))
        if kind == "delta":
            return _delta(folders[-1])
        if kind == "parquet":
            return _parquet(folders[-1])
        if kind == "iceberg":
            return _iceberg(folders[-1])
        return _database(server if kind == "postgresql" else f"jdbc:sqlite:{folders[-1]}/database")

    yield make
    for folder in folders:
        shutil.rmtree(folder)


def _delta(folder: str) -> Place:
    refusals = Refusals()

    def read() -> dict[tuple[int, int], dict[str, Any]]:
        if not DeltaTable.is_deltatable(folder):
            return {}
        return _by_place(DeltaTable(folder).to_pyarrow_table())

    return Place(lambda props: _task(DeltaSinkTask(), refusals, {"url": folder, **props}), read, refusals)


def _parquet(folder: str) -> Place:
    refusals = Refusals()

    def read() -> dict[tuple[int, int], dict[str, Any]]:
        found: dict[tuple[int, int], dict[str, Any]] = {}
        for path in Path(folder).rglob("*.parquet"):
            found |= _by_place(pq.read_table(path, partitioning=None))
        return found

    return Place(lambda props: _task(ParquetSinkTask(), refusals, {"url": folder, **props}), read, refusals)


def _iceberg(folder: str) -> Place:
    refusals, uri = Refusals(), f"sqlite:///{folder}/catalog"
    catalog = {"catalog.type": "sql", "catalog.uri": uri, "catalog.warehouse": f"file://{folder}/warehouse"}
    given = {**catalog, "table": "shop.t"}

    def read() -> dict[tuple[int, int], dict[str, Any]]:
        task = _task(IcebergSinkTask(), refusals, given)
        assert isinstance(task, IcebergSinkTask)
        if opened(task._place) is None:
            return {}
        return _by_place(task._place.load().load_table("shop.t").scan().to_arrow())

    return Place(lambda props: _task(IcebergSinkTask(), refusals, {**given, **props}), read, refusals)


def _by_place(table: pa.Table) -> dict[tuple[int, int], dict[str, Any]]:
    return {(row["kafka_partition"], row["kafka_offset"]): row for row in table.to_pylist()}


def _database(url: str) -> Place:
    refusals, engine = Refusals(), open_engine(url, None, None)
    with engine.begin() as connection:
        for name in ("t", "parley_connect_offsets"):
            connection.execute(sa.text(f"DROP TABLE IF EXISTS {name}"))

    def read() -> dict[tuple[int, int], dict[str, Any]]:
        with engine.connect() as connection:
            if not sa.inspect(connection).has_table("t"):
                return {}
            found = connection.execute(sa.select(reflected(connection, "t"))).mappings()
            return {(row["__connect_partition"], row["__connect_offset"]): dict(row) for row in found}

    def begin(props: Mapping[str, str]) -> ExactlyOnceSinkTask:
        given = {"connection.url": url, "auto.create": "true", "auto.evolve": "true", "pk.mode": "kafka", **props}
        task = _task(SqlSinkTask(), refusals, given)
        task.committed([])
        return task

    return Place(begin, read, refusals)


def _task(task: ExactlyOnceSinkTask, refusals: Refusals, props: Mapping[str, str]) -> ExactlyOnceSinkTask:
    begun: ExactlyOnceSinkTask = started(task, props, errant_records=refusals)
    return begun


def put(task: ExactlyOnceSinkTask, records: Sequence[SinkRecord]) -> None:
    first = records[0]
    task.put_range(
        OffsetRange("t", first.original_kafka_partition, first.kafka_offset, records[-1].kafka_offset + 1), records
    )


def check(place: Place, sent: Mapping[tuple[int, int], dict[str, Any]]) -> None:
    """Check that every row was stored as sent, or that its record was rejected and named."""
    read = place.read()
    refused = place.refusals.errors
    assert read.keys() | refused.keys() == sent.keys()
    assert not read.keys() & refused.keys()
    for where, row in read.items():
        fields = {name for name in row if not name.startswith(("kafka_", "__connect_"))}
        for name in fields | sent[where].keys():
            value = sent[where].get(name)
            assert is_same(value, row.get(name)), (name, value, row.get(name))
    for (partition, offset), text in refused.items():
        assert text.startswith(f"t-{partition} offset {offset}: ")


# Values of all kinds.


def without_schema(*, flat: bool) -> st.SearchStrategy[dict[str, Any]]:
    inside = values().filter(lambda one: not flat or not isinstance(one, list | dict)) if flat else values()
    return st.dictionaries(st.sampled_from(["a", "b"]), inside, max_size=2)


_TYPED: list[tuple[Schema, st.SearchStrategy[Any]]] = [
    (BOOLEAN, st.booleans()),
    (INT8, st.integers(-128, 127)),
    (INT32, st.integers(-(1 << 31), (1 << 31) - 1)),
    (INT64, st.integers(-(1 << 63), (1 << 63) - 1)),
    (FLOAT32, st.floats(width=32)),
    (FLOAT64, st.floats()),
    (STRING, st.text(max_size=3)),
    (BYTES, st.binary(max_size=3)),
    (decimal(2), st.decimals(-1000, 1000, places=2)),
    (decimal(4), st.decimals(-1000, 1000, places=4)),
    (DATE, st.dates()),
    (TIME, st.integers(0, 86_399_999).map(lambda ms: from_millis(ms).time())),
    (TIMESTAMP, st.integers(-(10**12), 10**13).map(from_millis)),
    (array(INT32), st.lists(st.integers(0, 9), max_size=2)),
    (array(FLOAT64), st.lists(st.floats(0, 9), max_size=2)),
    (map_of(STRING, INT64), st.dictionaries(st.text(max_size=2), st.integers(0, 1 << 62), max_size=2)),
]


@st.composite
def typed(draw: st.DrawFn) -> tuple[dict[str, Any], Schema]:
    """Return the fields of a struct, and its schema."""
    fields, schemas = {}, {}
    for name in draw(st.sets(st.sampled_from(["a", "b"]), min_size=1)):
        schema, value = draw(st.sampled_from(_TYPED))
        schemas[name] = schema.as_optional()
        fields[name] = draw(st.none() | value)
    return fields, struct(schemas)


def plain_rows(*, flat: bool = False) -> st.SearchStrategy[list[list[tuple[dict[str, Any], Schema | None]]]]:
    """Generate ranges of rows, some with a schema."""
    row = st.tuples(without_schema(flat=flat), st.none()) | typed()
    return st.lists(st.lists(row, min_size=1, max_size=4), min_size=1, max_size=4)


def has_no_json(value: Any) -> bool:
    """Return True if a value is stored as JSON and has parts that JSON writes as text, which `is_same`
    does not parse."""
    if not isinstance(value, list | dict):
        return False
    text = json.dumps(value, default=lambda _: "\0none\0")
    return any(mark in text for mark in ("\\u0000", "NaN", "Infinity"))


@pytest.mark.parametrize("kind", ["delta", "iceberg", "parquet", "sqlite", "postgresql"])
def test_a_sink_stores_exactly_the_sent_values_or_refuses_them(place_of: Callable[[str], Place], kind: str) -> None:
    is_database = kind in ("sqlite", "postgresql")

    @settings(max_examples=examples(40))
    @given(plain_rows(), st.booleans())
    def run(ranges: list[list[tuple[dict[str, Any], Schema | None]]], restarts: bool) -> None:
        place, sent, offset = place_of(kind), {}, 0
        task = place.start()
        for part in ranges:
            records = []
            for fields, schema in part:
                if is_database and any(map(has_no_json, fields.values())):
                    fields = {}
                value = fields if schema is None else Struct(schema, fields)
                records.append(record(offset, value, value_schema=schema))
                sent[0, offset] = fields
                offset += 1
            if restarts:
                task.stop()
                task = place.start()
            put(task, records)
        task.stop()
        check(place, sent)

    run()


@pytest.mark.parametrize("kind", ["delta", "iceberg", "sqlite", "postgresql"])
def test_without_evolution_columns_stay_as_they_are(place_of: Callable[[str], Place], kind: str) -> None:
    place = place_of(kind)
    first = {"i": 1, "d": 0.5, "s": "x", "b": True}
    put(place.start(), [record(0, first)])
    strict = {"schema_evolution": "false"} if kind in ("delta", "iceberg") else {"auto_evolve": "false"}
    task = place.start(**strict)
    later: list[dict[str, Any]] = [
        {"i": 5.5}, {"i": True}, {"i": "5"}, {"i": 1 << 63}, {"d": (1 << 53) + 1}, {"d": "x"}, {"s": 5}, {"b": 1},
        {"new": 1}, {"i": 5.0, "d": 2, "s": "", "b": False, "new": None},
    ]  # fmt: skip
    put(task, [record(1 + number, one) for number, one in enumerate(later)])
    check(place, {(0, number): one for number, one in enumerate([first, *later])})
    assert sorted(place.read()) == [(0, 0), (0, len(later))]
    key = next(iter(strict)).replace("_", ".")
    assert all(key in text for text in place.refusals.errors.values())


@pytest.mark.parametrize("kind", ["delta", "sqlite", "postgresql"])
def test_columns_are_widened(place_of: Callable[[str], Place], kind: str) -> None:
    place = place_of(kind)
    sent: list[dict[str, Any]] = [
        {"a": None, "b": 1, "c": (1 << 53) + 1},
        {"a": 1, "b": 5.5, "c": 0.5},
        {"a": 2.75, "b": (1 << 53), "c": Decimal("12.25")},
        {"a": -3, "c": 1 << 70},
    ]
    for offset, fields in enumerate(sent):
        put(place.start(), [record(offset, fields)])
    check(place, {(0, offset): fields for offset, fields in enumerate(sent)})
    assert not place.refusals.errors


def test_columns_of_iceberg_are_widened_without_writing_files_again(place_of: Callable[[str], Place]) -> None:
    place = place_of("iceberg")
    schemas = [struct({"x": INT32}), struct({"x": INT64, "y": STRING})]
    narrow = struct({"i": INT32, "f": FLOAT32, "d": decimal(2), "s": schemas[0]})
    wide = struct({"i": INT64, "f": FLOAT64, "d": decimal(2), "s": schemas[1], "n": BOOLEAN})
    first: dict[str, Any] = {"i": 1, "f": 0.5, "d": Decimal("1.25"), "s": {"x": 1}}
    second: dict[str, Any] = {"i": 1 << 40, "f": 0.1, "d": Decimal("2.50"), "s": {"x": 1 << 40, "y": "z"}, "n": True}
    for offset, (schema, fields) in enumerate(((narrow, first), (wide, second))):
        value = Struct(schema, {**fields, "s": Struct(schemas[offset], fields["s"])})
        put(place.start(), [record(offset, value, value_schema=schema)])
    # Iceberg cannot widen a column of integers to doubles: such a record is rejected and named.
    put(place.start(), [record(2, {"i": 2.5})])
    assert list(place.refusals.errors) == [(0, 2)]
    sent = {(0, 0): first, (0, 1): second, (0, 2): {"i": 2.5}}
    sent[0, 0]["s"] = {"x": 1, "y": None}
    check(place, sent)


def test_a_null_list_or_map_of_objects_is_null_in_the_files_of_iceberg(place_of: Callable[[str], Place]) -> None:
    """The files are read without pyiceberg, which reads null as an empty list, as it would write it."""
    place = place_of("iceberg")
    line = struct({"n": INT64})
    schema = struct({"lines": array(line).as_optional(), "by": map_of(STRING, line).as_optional()})
    one = Struct(line, {"n": 1})
    sent: list[dict[str, Any]] = [
        {"lines": [one], "by": {"k": one}},
        {"lines": None, "by": None},
        {"lines": [], "by": {}},
    ]
    records = [record(at, Struct(schema, fields), value_schema=schema) for at, fields in enumerate(sent)]
    task = place.start()
    put(task, records)
    assert isinstance(task, IcebergSinkTask)
    table = opened(task._place)
    assert table is not None
    [file] = Path(table.location.removeprefix("file://")).rglob("*.parquet")
    found = pq.ParquetFile(file).read()
    assert found["lines"].to_pylist() == [[{"n": 1}], None, []]
    assert found["by"].to_pylist() == [[("k", {"n": 1})], None, []]


def test_a_task_without_place_for_refused_records_fails_and_stores_nothing(place_of: Callable[[str], Place]) -> None:
    for kind in ("delta", "iceberg", "parquet", "sqlite", "postgresql"):
        place = place_of(kind)
        task = place.start()
        task.context.errant_records = None  # type: ignore[misc]
        with pytest.raises(ConnectError, match="t-0 offset 1: the field a has a boolean"):
            put(task, [record(0, {"a": 1}), record(1, {"a": True})])
        assert place.read() == {}


def test_a_column_that_divides_a_table_keeps_its_values(place_of: Callable[[str], Place]) -> None:
    place = place_of("delta")
    sent: list[dict[str, Any]] = [
        {"p": "x"}, {"p": "a/b=%c ä\0"}, {"p": ""}, {"p": None}, {"p": b"\xff"}, {"p": "__HIVE_DEFAULT_PARTITION__"}
    ]  # fmt: skip
    put(place.start(partition_columns="p"), [record(0, sent[0])])
    put(place.start(), [record(1 + offset, fields) for offset, fields in enumerate(sent[1:])])
    check(place, {(0, offset): fields for offset, fields in enumerate(sent)})
    assert sorted(place.refusals.errors) == [(0, 2), (0, 4), (0, 5)]


def test_a_column_of_sqlite_that_has_more_than_a_type_is_not_widened(tmp_path: Path) -> None:
    url, refusals = f"jdbc:sqlite:{tmp_path}/database", Refusals()
    engine = open_engine(url, None, None)
    made = "CREATE TABLE t (k BIGINT PRIMARY KEY, a BIGINT NOT NULL, b BIGINT DEFAULT 7, c BIGINT)"
    with engine.begin() as connection:
        connection.execute(sa.text(made))
    task = _task(SqlSinkTask(), refusals, {"connection.url": url, "auto.evolve": "true"})
    task.committed([])
    good = {"k": 1, "a": 1, "b": 1, "c": 1}
    odd = [{**good, "k": number, name: 2.5} for number, name in enumerate("kabc")]
    put(task, [record(offset, fields) for offset, fields in enumerate([good, *odd])])
    with engine.connect() as connection:
        table = reflected(connection, "t")
        stored = [dict(row) for row in connection.execute(sa.select(table)).mappings()]
    assert [{name: float(value) for name, value in row.items()} for row in stored] == [good, odd[3]]
    assert not table.c["a"].nullable
    assert table.c["b"].server_default is not None
    for offset, name in enumerate("kab", 1):
        assert f"t-0 offset {offset}: the field {name} has " in refusals.errors[0, offset]


# Two tasks, one table.


@pytest.mark.parametrize("kind", ["delta", "postgresql"])
def test_two_tasks_that_widen_one_table_lose_nothing(place_of: Callable[[str], Place], kind: str) -> None:
    """One task writes integers that doubles cannot represent, the other writes fractions."""
    place = place_of(kind)
    put(place.start(name="first"), [record(0, {"a": 1, "n": None}, partition=2)])
    sent: dict[tuple[int, int], dict[str, Any]] = {(2, 0): {"a": 1}}
    given: list[list[dict[str, Any]]] = [
        [{"a": (1 << 53) + 1 + number, "n": number} for number in range(5)],
        [{"a": number + 0.5, "n": 0.25} for number in range(5)],
    ]
    together, tasks = threading.Barrier(2), [place.start(name=f"task{number}") for number in range(2)]

    def work(partition: int) -> None:
        task = tasks[partition]
        together.wait()
        for offset, fields in enumerate(given[partition]):
            _put_until_done(task, [record(offset, fields, partition=partition)])
        task.stop()

    with ThreadPoolExecutor(2) as pool:
        list(pool.map(work, range(2)))
    for partition, of_it in enumerate(given):
        sent |= {(partition, offset): fields for offset, fields in enumerate(of_it)}
    check(place, sent)


def _put_until_done(task: ExactlyOnceSinkTask, records: Sequence[SinkRecord]) -> None:
    """Put a range as the runtime does: after a retriable error, put it again."""
    while True:
        try:
            put(task, records)
        except RetriableError:
            continue
        return


def test_a_commit_of_delta_between_look_and_widening_is_a_conflict(
    place_of: Callable[[str], Place], monkeypatch: pytest.MonkeyPatch
) -> None:
    place = place_of("delta")
    late, other = place.start(name="late"), place.start(name="other")
    assert isinstance(late, DeltaSinkTask)
    put(late, [record(0, {"a": 1})])
    rewrite = late._rewrite

    def rewrite_late(*given: Any) -> None:
        put(other, [record(0, {"a": (1 << 53) + 1}, partition=1)])  # no double
        monkeypatch.setattr(late, "_rewrite", rewrite)
        rewrite(*given)

    monkeypatch.setattr(late, "_rewrite", rewrite_late)
    with pytest.raises(RetriableError):
        put(late, [record(1, {"a": 5.5})])
    put(late, [record(1, {"a": 5.5})])
    check(place, {(0, 0): {"a": 1}, (1, 0): {"a": (1 << 53) + 1}, (0, 1): {"a": 5.5}})
    assert not place.refusals.errors


def test_a_commit_of_delta_between_widening_and_rows_is_looked_at(
    place_of: Callable[[str], Place], monkeypatch: pytest.MonkeyPatch
) -> None:
    place = place_of("delta")
    late, other = place.start(name="late"), place.start(name="other")
    assert isinstance(late, DeltaSinkTask)
    put(late, [record(0, {"a": 1, "b": 1})])
    rewrite = late._rewrite

    def rewrite_early(*given: Any) -> None:
        rewrite(*given)
        monkeypatch.setattr(late, "_rewrite", rewrite)
        put(other, [record(0, {"b": 0.5}, partition=1)])

    monkeypatch.setattr(late, "_rewrite", rewrite_early)
    odd = record(1, {"a": 5.5, "b": (1 << 53) + 1})
    with pytest.raises(RetriableError, match="columns b in the meantime"):
        put(late, [odd])
    put(late, [odd])
    check(place, {(0, 0): {"a": 1, "b": 1}, (1, 0): {"b": 0.5}, (0, 1): {"a": 5.5, "b": (1 << 53) + 1}})
    assert list(place.refusals.errors) == [(0, 1)]


def test_a_late_task_that_widened_a_delta_table_writes_no_range_again(
    place_of: Callable[[str], Place], monkeypatch: pytest.MonkeyPatch
) -> None:
    place = place_of("delta")
    late, successor = place.start(), place.start()
    assert isinstance(late, DeltaSinkTask)
    put(late, [record(0, {"a": 1})])
    rewrite = late._rewrite

    def rewrite_early(*given: Any) -> None:
        rewrite(*given)
        put(successor, [record(1, {"a": 5.5})])

    monkeypatch.setattr(late, "_rewrite", rewrite_early)
    with pytest.raises(ConnectError, match="written by another task: the table has it up to 2"):
        put(late, [record(1, {"a": 5.5})])
    assert DeltaTable(late._url).to_pyarrow_table().sort_by("kafka_offset")["a"].to_pylist() == [1, 5.5]


@pytest.mark.parametrize("of_other", [0, 1])
def test_a_delta_table_that_another_task_makes_meanwhile_is_looked_at(
    place_of: Callable[[str], Place], monkeypatch: pytest.MonkeyPatch, of_other: int
) -> None:
    """The other task writes the same range, or a range of another partition."""
    place = place_of("delta")
    late, other = place.start(), place.start()
    assert isinstance(late, DeltaSinkTask)
    make = late._make

    def make_late(*given: Any) -> None:
        put(other, [record(0, {"a": 5}, partition=of_other)])
        make(*given)

    monkeypatch.setattr(late, "_make", make_late)
    odd = record(0, {"a": 5.5})
    with pytest.raises(RetriableError):
        put(late, [odd])
    assert DeltaTable(late._url).to_pyarrow_table()["a"].to_pylist() == [5]
    if of_other == 0:
        with pytest.raises(ConnectError, match="written by another task"):
            put(late, [odd])
    else:
        put(late, [odd])
        check(place, {(0, 0): {"a": 5.5}, (1, 0): {"a": 5}})


def test_of_two_tasks_that_make_a_delta_table_at_once_one_begins_again(
    place_of: Callable[[str], Place], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The other task creates the table after the library has checked that it does not exist."""
    place = place_of("delta")
    late, other = place.start(), place.start()
    assert isinstance(late, DeltaSinkTask)
    make = late._make

    def make_late(rows: pa.Table, *given: Any) -> None:
        def batches() -> Iterator[pa.RecordBatch]:
            with ThreadPoolExecutor(1) as pool:
                pool.submit(put, other, [record(0, {"a": 5}, partition=1)]).result()
            yield from rows.to_batches()

        make(pa.RecordBatchReader.from_batches(rows.schema, batches()), *given)

    monkeypatch.setattr(late, "_make", make_late)
    with pytest.raises(RetriableError):
        put(late, [record(0, {"a": 5.5})])
    put(late, [record(0, {"a": 5.5})])
    check(place, {(0, 0): {"a": 5.5}, (1, 0): {"a": 5}})


# Connect and load.

_COLUMNS = {
    "i": ({"type": "integer"}, pa.int64()),
    "d": ({"type": "number"}, pa.float64()),
    "s": ({"type": "string"}, pa.string()),
    "b": ({"type": "boolean"}, pa.bool_()),
    "l": ({"type": "array", "items": {"type": "integer"}}, pa.list_(pa.int64())),
    "o": ({"properties": {"x": {"type": "number"}}}, pa.struct([("x", pa.float64())])),
}
_TEXTS = [
    "null", "1", "5.0", "5.5", "true", "false", '"x"', '"5"', "9007199254740993", "9223372036854775807",
    "9223372036854775808", "1e400", "0.1", "-0.0", "[]", "[1, 2.0]", "[1.5]", "[null]", '["1"]', '{"x": 1}',
    '{"x": 5.5}',    '{"x": "1"}', '{"x": 9007199254740993}', '{"x": null}', "1e3", '""', '"2026-01-02T03:04:05Z"',
]  # fmt: skip


@pytest.mark.parametrize("name", _COLUMNS)
def test_load_and_connect_store_or_refuse_the_same_values(place_of: Callable[[str], Place], name: str) -> None:
    place = place_of("delta")
    schema, kind = _COLUMNS[name]
    DeltaTable.create(
        _url(place), pa.schema([(name, kind), ("kafka_partition", pa.int32()), ("kafka_offset", pa.int64())])
    )
    layout = Layout(value_format="json", schema=read_schema(json.dumps({"properties": {name: schema}})), flat=True)
    converter = JsonConverter()
    converter.configure({"schemas.enable": "false"}, is_key=False)
    task = place.start(schema_evolution="false", metadata_columns="false")
    for offset, text in enumerate(_TEXTS):
        data = f'{{"{name}": {text}}}'.encode()
        try:
            loaded: Any = [row[name] for _, made in rows(layout, batch(data)) for row in made.to_pylist()]
        except BadRecord:
            loaded = "refused"
        try:
            fields = converter.to_connect("t", data).value
        except ConnectError:
            assert loaded == "refused", text
            continue
        put(task, [record(offset, {**fields, "kafka_partition": 0, "kafka_offset": offset})])
        row = place.read().get((0, offset))
        stored: Any = "refused" if row is None else [row[name]]
        assert repr(stored) == repr(loaded), text
        assert (row is None) is ((0, offset) in place.refusals.errors)


def _url(place: Place) -> str:
    task = place.start()
    assert isinstance(task, DeltaSinkTask)
    return task._url


def test_tasks_of_one_iceberg_table(place_of: Callable[[str], Place]) -> None:
    """Several tasks write to different partitions at the same time. A late task writes no range again, whatever was
    committed."""
    place = place_of("iceberg")
    late = place.start()
    with ThreadPoolExecutor(3) as threads:
        for done in [threads.submit(_put_all, place.start(), number) for number in range(3)]:
            done.result()
    partitions = [TopicPartition("t", number) for number in range(4)]
    assert place.start().committed(partitions) == dict.fromkeys(partitions[:3], 4)
    with pytest.raises(ConnectError, match="written by another task: the table has it up to 4"):
        put(late, [record(0, {"a": 1}, partition=1)])
    check(place, {(number, offset): {"a": number * 10 + offset} for number in range(3) for offset in range(4)})


def _put_all(task: ExactlyOnceSinkTask, partition: int) -> None:
    for offset in range(4):
        _put_until_done(task, [record(offset, {"a": partition * 10 + offset}, partition=partition)])


def test_a_commit_of_iceberg_between_look_and_commit_is_a_conflict(
    place_of: Callable[[str], Place], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without the conflict, the library would commit the same rows a second time, after those of the task that replaced
    this one."""
    place = place_of("iceberg")
    put(place.start(), [record(0, {"a": 1})])
    late, successor = place.start(), place.start()
    append = IcebergTable.append

    def append_late(self: IcebergTable, rows: pa.Table, offsets: Mapping[str, int]) -> None:
        monkeypatch.setattr(IcebergTable, "append", append)
        put(successor, [record(1, {"a": 2})])
        append(self, rows, offsets)

    monkeypatch.setattr(IcebergTable, "append", append_late)
    with pytest.raises(ConnectError, match="written by another task: the table has it up to 2"):
        put(late, [record(1, {"a": 2})])
    check(place, {(0, 0): {"a": 1}, (0, 1): {"a": 2}})


def test_a_commit_of_iceberg_whose_response_is_lost_counts(
    place_of: Callable[[str], Place], monkeypatch: pytest.MonkeyPatch
) -> None:
    place = place_of("iceberg")
    task = place.start()
    put(task, [record(0, {"a": 1})])
    commit = SqlCatalog.commit_table

    def lose(self: SqlCatalog, *words: Any, **named: Any) -> Any:
        monkeypatch.setattr(SqlCatalog, "commit_table", commit)
        commit(self, *words, **named)
        raise CommitStateUnknownException("no response")

    monkeypatch.setattr(SqlCatalog, "commit_table", lose)
    put(task, [record(1, {"a": 2})])
    check(place, {(0, 0): {"a": 1}, (0, 1): {"a": 2}})


def test_an_iceberg_table_that_was_rolled_back_or_has_forgotten(place_of: Callable[[str], Place]) -> None:
    """Offsets are rolled back with the rows, and other writers' commits do not hide them. If the snapshots with offsets
    have expired, the task fails."""
    place = place_of("iceberg")
    task = place.start()
    assert isinstance(task, IcebergSinkTask)
    for offset in range(3):
        put(task, [record(offset, {"a": offset})])
    partition = [TopicPartition("t", 0)]
    table = task._place.load().load_table("shop.t")
    table.append(pa.table({"a": pa.array([9], pa.int64())}))  # by another program
    assert task.committed(partition) == {TopicPartition("t", 0): 3}
    ours = [each.snapshot_id for each in table.refresh().snapshots()]
    with table.manage_snapshots() as managing:
        managing.set_current_snapshot(snapshot_id=ours[1])
    assert task.committed(partition) == {TopicPartition("t", 0): 2}
    with table.refresh().manage_snapshots() as managing:
        managing.set_current_snapshot(snapshot_id=ours[3])
    with table.refresh().maintenance.expire_snapshots() as expiring:
        expiring.by_ids(ours[:3])
    with pytest.raises(ConnectError, match=r"have expired.*remove the table's property parley\.writer"):
        task.committed(partition)
    assert place.start(name="another").committed(partition) == {}


ODD_NAMES: list[dict[str, Any]] = [
    {"a": 1}, {"A": 2}, {"a": 3, "s": {"x": 1}}, {"s": {"X": 2}}, {"s.x": 3}, {"": 4}, {"n\0ul": 5}, {"s": {"": 6}},
    {"a b,;{}()=\n\t\"'`": 7}, {"ä" * 40: 8}, {"__connect_partition": 9},
]  # fmt: skip


@pytest.mark.parametrize("kind", ["delta", "iceberg", "parquet", "sqlite", "postgresql"])
def test_names_that_a_target_cannot_have_are_refused_and_no_value_goes_elsewhere(
    place_of: Callable[[str], Place], kind: str
) -> None:
    place = place_of(kind)
    task = place.start()
    for offset, fields in enumerate(ODD_NAMES):
        put(task, [record(offset, fields)])
    check(place, {(0, offset): fields for offset, fields in enumerate(ODD_NAMES)})
    assert (
        sorted(offset for _, offset in place.refusals.errors)
        == {
            "delta": [1, 3, 6],
            "iceberg": [4, 5, 6, 7],
            "parquet": [],
            "sqlite": [1, 5, 6, 10],
            "postgresql": [5, 6, 9, 10],
        }[kind]
    )
