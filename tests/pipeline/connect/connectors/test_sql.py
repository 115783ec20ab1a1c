"""The SQL connectors on a real PostgreSQL server: they copy tables to topics, and topics to tables."""

from __future__ import annotations

import datetime as dt
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

from parley.pipeline.connect.connector import OffsetRange
from parley.pipeline.connect.connectors.sql.database import open_engine
from parley.pipeline.connect.connectors.sql.sink import SqlSinkConnector, SqlSinkTask
from parley.pipeline.connect.connectors.sql.source import SqlSourceConnector, SqlSourceTask
from parley.pipeline.connect.data import (
    BOOLEAN,
    BYTES,
    DATE,
    FLOAT64,
    INT32,
    INT64,
    OPTIONAL_STRING,
    STRING,
    TIME,
    TIMESTAMP,
    Struct,
    array,
    decimal,
    struct,
)
from parley.pipeline.connect.errors import ConfigError, ConnectError, DataError, RetriableError
from parley.pipeline.connect.records import SinkRecord, TopicPartition
from tests.pipeline.connect.connectors.postgresql import postgresql
from tests.pipeline.connect.connectors.tasks import StoredReader, polled, record, started

pytestmark = pytest.mark.slow

PARTITION = TopicPartition("t", 0)
MOMENT = dt.datetime(2026, 1, 2, 3, 4, 5, 678901, tzinfo=dt.UTC)


@pytest.fixture(scope="module")
def server() -> Iterator[str]:
    with postgresql() as url:
        yield url


@pytest.fixture(params=["postgresql", "sqlite"])
def url(request: pytest.FixtureRequest, server: str, tmp_path: Path) -> str:
    """Return an empty database."""
    if request.param == "sqlite":
        return f"jdbc:sqlite:{tmp_path / 'database'}"
    engine = open_engine(server, None, None)
    with engine.begin() as connection:
        connection.execute(sa.text("DROP SCHEMA public CASCADE"))
        connection.execute(sa.text("CREATE SCHEMA public"))
    engine.dispose()
    return server


def run(url: str, *statements: str) -> None:
    engine = open_engine(url, None, None)
    with engine.begin() as connection:
        for statement in statements:
            connection.execute(sa.text(statement))
    engine.dispose()


def select(url: str, statement: str) -> list[tuple[Any, ...]]:
    engine = open_engine(url, None, None)
    with engine.connect() as connection:
        found = [tuple(row) for row in connection.execute(sa.text(statement))]
    engine.dispose()
    return found


# Sources.


def source(url: str, offsets: StoredReader | None = None, **props: str) -> SqlSourceTask:
    config = {"connection.url": url, "topic.prefix": "db-", "poll.interval.ms": "0", "tables": "items"}
    config |= {key.replace("_", "."): value for key, value in props.items()}
    task = started(SqlSourceTask(), config, offsets=offsets or StoredReader())
    assert isinstance(task, SqlSourceTask)
    return task


def ids(task: SqlSourceTask, offsets: StoredReader | None = None) -> list[int]:
    """Return the ids of the new rows. Offsets are stored."""
    records = polled(task)
    for one in records:
        if offsets is not None:
            offsets.put(one)
    return [one.value["id"] for one in records]


def test_rows_that_are_added(url: str) -> None:
    run(url, "CREATE TABLE items (id INTEGER PRIMARY KEY, name VARCHAR(20))")
    run(url, *(f"INSERT INTO items VALUES ({number}, 'n{number}')" for number in range(1, 26)))
    offsets = StoredReader()
    config = {"mode": "incrementing", "incrementing_column_name": "id", "batch_max_rows": "10"}
    task = source(url, offsets, **config)
    assert ids(task, offsets) == list(range(1, 26))
    run(url, "INSERT INTO items VALUES (26, NULL)")
    [added] = polled(task)
    assert (added.topic, added.value["name"], added.source_offset) == ("db-items", None, {"incrementing": 26})
    assert added.source_partition == {"table": "items"}
    task.stop()
    again = source(url, offsets, **config)
    assert ids(again) == [26]  # it was not stored
    again.stop()


def test_rows_that_are_changed(url: str) -> None:
    kind = "TIMESTAMP WITH TIME ZONE" if "postgresql" in url else "DATETIME"
    run(url, f"CREATE TABLE items (id INTEGER PRIMARY KEY, changed {kind})")
    times = ["05.1", "05.1", "05.100001", "06", "06"]
    run(url, *(f"INSERT INTO items VALUES ({n}, '2026-01-02 03:04:{t}')" for n, t in enumerate(times)))
    for config in (
        {"mode": "timestamp", "timestamp_column_name": "changed"},
        {"mode": "timestamp+incrementing", "timestamp_column_name": "changed", "incrementing_column_name": "id"},
    ):
        offsets = StoredReader()
        task = source(url, offsets, batch_max_rows="2", **config)
        assert ids(task, offsets) == [0, 1, 2, 3, 4]
        assert ids(task, offsets) == []
        task.stop()
        run(url, "UPDATE items SET changed = '2026-01-02 03:04:07' WHERE id = 1")
        task = source(url, offsets, **config)
        assert ids(task) == [1]
        task.stop()
        run(url, "UPDATE items SET changed = '2026-01-02 03:04:05.1' WHERE id = 1")


def test_rows_of_one_time_are_never_left_out(url: str) -> None:
    run(url, "CREATE TABLE items (id INTEGER PRIMARY KEY, changed TIMESTAMP)")
    run(url, *(f"INSERT INTO items VALUES ({number}, '2026-01-02 03:04:05')" for number in range(5)))
    config = {"mode": "timestamp", "timestamp_column_name": "changed", "batch_max_rows": "2"}
    offsets = StoredReader()
    task = source(url, offsets, **config)
    first = task.poll()
    assert first is not None
    for one in first:
        offsets.put(one)
    task.stop()  # in the middle of the time
    task = source(url, offsets, **config)
    assert ids(task) == [0, 1, 2, 3, 4]
    task.stop()


def test_everything_again_and_a_query(url: str) -> None:
    run(url, "CREATE TABLE items (id INTEGER PRIMARY KEY, price NUMERIC(8, 2))", "INSERT INTO items VALUES (1, 2.5)")
    task = source(url, mode="bulk")
    [row] = polled(task)
    assert (row.value["price"], row.source_offset) == (Decimal("2.50"), {})
    assert ids(task) == [1]
    task.stop()
    query = "SELECT id, price * 2 AS twice FROM items"
    task = source(url, mode="incrementing", incrementing_column_name="id", query=query, topic_prefix="answers")
    [row] = polled(task)
    assert (row.topic, row.value["id"], row.value_schema) == ("answers", 1, None)
    assert float(row.value["twice"]) == 5.0
    task.stop()


def test_types_of_postgresql(server: str) -> None:
    run(
        server,
        "DROP TABLE IF EXISTS kinds",
        "CREATE TABLE kinds (small SMALLINT, big BIGINT, real DOUBLE PRECISION, money NUMERIC(10, 3), flag BOOLEAN, "
        "text TEXT, bytes BYTEA, day DATE, time TIME, local TIMESTAMP, moment TIMESTAMPTZ, json JSONB, id UUID)",
        "INSERT INTO kinds VALUES (1, 2, 0.5, 1.5, true, 'ä', '\\x00ff', '2026-01-02', '03:04:05', "
        "'2026-01-02 03:04:05.678901', '2026-01-02 04:04:05.678901+01', '{\"a\": [1]}', "
        "'00000000-0000-0000-0000-000000000001')",
    )
    task = source(server, mode="bulk", tables="kinds")
    [row] = polled(task)
    task.stop()
    row.value.validate()
    assert dict(row.value.items()) == {
        "small": 1,
        "big": 2,
        "real": 0.5,
        "money": Decimal("1.500"),
        "flag": True,
        "text": "ä",
        "bytes": b"\x00\xff",
        "day": dt.date(2026, 1, 2),
        "time": dt.time(3, 4, 5),
        "local": MOMENT,
        "moment": MOMENT,
        "json": '{"a": [1]}',
        "id": "00000000-0000-0000-0000-000000000001",
    }


def test_numbers_are_exact_or_name_their_column(server: str) -> None:
    exact = "12345678901234567890.123456789012345678"
    run(server, "DROP TABLE IF EXISTS items", "CREATE TABLE items (id INTEGER, n NUMERIC(38, 18), m NUMERIC)")
    run(server, f"INSERT INTO items VALUES (1, {exact}, 0.123456789)")
    task = source(server, mode="bulk")
    [row] = polled(task)
    assert (row.value["n"], row.value["m"]) == (Decimal(exact), Decimal("0.123456789"))
    run(server, "INSERT INTO items VALUES (2, 1, 0.1234567891)")
    with pytest.raises(ConnectError, match=r"column m of .* with 9 decimal places"):
        polled(task)
    task.stop()


def test_tables_are_divided(url: str) -> None:
    run(url, *(f"CREATE TABLE {name} (id INTEGER)" for name in "abc"))
    connector = SqlSourceConnector()
    connector.start({"connection.url": url, "mode": "bulk", "topic.prefix": "x", "table.blacklist": "b"})
    assert [one["tables"] for one in connector.task_configs(5)] == ["a", "c"]
    assert [one["tables"] for one in connector.task_configs(1)] == ["a,c"]


def test_a_missing_table_or_column_is_an_error(url: str) -> None:
    with pytest.raises(ConnectError, match="no table items"):
        source(url, mode="bulk")
    run(url, "CREATE TABLE items (id INTEGER)")
    with pytest.raises(ConnectError, match="no column nope"):
        source(url, mode="incrementing", incrementing_column_name="nope")
    with pytest.raises(ConnectError, match="query"):
        source(url, mode="bulk", query="SELECT nonsense FROM nowhere")


def test_modes_need_their_columns() -> None:
    def errors(**props: str) -> set[str]:
        given = {key.replace("_", "."): value for key, value in props.items()}
        found = SqlSourceConnector().validate({"connection.url": "sqlite://", "topic.prefix": "", **given})
        return {one.name for one in found if one.errors}

    assert errors(mode="incrementing") == {"incrementing.column.name"}
    assert errors(mode="timestamp+incrementing", incrementing_column_name="i") == {"timestamp.column.name"}
    assert errors(mode="bulk", timestamp_column_name="t") == {"timestamp.column.name"}
    assert errors(mode="bulk", query="q", table_whitelist="a") == {"query"}
    assert errors(mode="dance") == {"mode"}


def test_databases_that_are_none() -> None:
    with pytest.raises(ConfigError, match=r"connection\.url"):
        open_engine("nonsense", None, None)
    with pytest.raises(ConfigError, match=r"connection\.url"):
        open_engine("jdbc:unheardof://host/db", None, None)
    for connector in (SqlSinkConnector(), SqlSourceConnector()):  # reported before a task starts
        found = {
            one.name: one.errors for one in connector.validate({"connection.url": "jdbc:oracle:thin:@host:1521/x"})
        }
        assert "Could not parse" in found["connection.url"][0]
    with pytest.raises(RetriableError):
        source("jdbc:postgresql://127.0.0.1:9/x?user=u&connect_timeout=2", mode="bulk")


# Sinks.

SHAPE = struct({"id": INT32, "name": OPTIONAL_STRING})


def sink(url: str, **props: str) -> SqlSinkTask:
    config = {"connection.url": url, "auto.create": "true"}
    task = started(SqlSinkTask(), config | {key.replace("_", "."): value for key, value in props.items()})
    assert isinstance(task, SqlSinkTask)
    task.committed([PARTITION])
    return task


def rows(*values: tuple[int, str | None], start: int = 0) -> list[SinkRecord]:
    return [
        record(start + at, Struct(SHAPE, {"id": one, "name": name}), value_schema=SHAPE, key=one, key_schema=INT32)
        for at, (one, name) in enumerate(values)
    ]


def put(task: SqlSinkTask, records: list[SinkRecord], start: int = 0) -> None:
    task.put_range(OffsetRange("t", 0, start, start + len(records)), records)


def test_rows_and_offset_are_one_transaction(url: str) -> None:
    task = sink(url)
    put(task, rows((1, "a"), (2, None)))
    assert task.committed([PARTITION, TopicPartition("t", 1)]) == {PARTITION: 2}
    assert select(url, "SELECT id, name FROM t ORDER BY id") == [(1, "a"), (2, None)]
    bad = [*rows((3, "c"), start=2), record(3, "no row")]
    with pytest.raises(DataError, match="offset 3"):
        put(task, bad, 2)
    assert task.committed([PARTITION]) == {PARTITION: 2}
    assert len(select(url, "SELECT * FROM t")) == 2
    put(task, rows((3, "c"), start=2), 2)
    task.stop()
    assert sink(url).committed([PARTITION]) == {PARTITION: 3}


def test_who_comes_late_gives_up(url: str) -> None:
    late, other = sink(url), sink(url)
    put(other, rows((1, "a")))
    with pytest.raises(ConnectError, match="another task"):
        put(late, rows((1, "a")))
    assert select(url, "SELECT id FROM t") == [(1,)]


def test_rows_are_replaced_and_deleted(url: str) -> None:
    task = sink(url, insert_mode="upsert", pk_mode="record_key", pk_fields="id", delete_enabled="true")
    gone = record(4, None, key=2, key_schema=INT32)
    put(task, [*rows((1, "a"), (2, "b"), (1, "c"), (3, "d")), gone])
    assert select(url, "SELECT id, name FROM t ORDER BY id") == [(1, "c"), (3, "d")]
    task.stop()


def test_keys_of_a_value_and_of_kafka(url: str) -> None:
    task = sink(url, insert_mode="upsert", pk_mode="record_value", pk_fields="id", table_name_format="v_${topic}")
    put(task, rows((1, "a"), (1, "b")))
    assert select(url, "SELECT id, name FROM v_t") == [(1, "b")]
    task = sink(url, pk_mode="kafka", name="other", table_name_format="k")
    put(task, rows((1, "a"), (1, "b")))
    found = select(url, "SELECT __connect_topic, __connect_partition, __connect_offset, name FROM k ORDER BY 3")
    assert found == [("t", 0, 0, "a"), ("t", 0, 1, "b")]


def test_rows_are_changed(url: str) -> None:
    put(sink(url, pk_mode="record_value", pk_fields="id"), rows((1, "a"), (2, "b")))
    task = sink(url, name="second", insert_mode="update", pk_mode="record_value", pk_fields="id")
    put(task, rows((2, "new"), (9, "none")))
    assert select(url, "SELECT id, name FROM t ORDER BY id") == [(1, "a"), (2, "new")]


def test_types_come_back(url: str) -> None:
    values = {
        "id": 1,
        "big": 1 << 40,
        "real": 0.5,
        "flag": True,
        "text": "ä",
        "bytes": b"\x00\xff",
        "money": Decimal("1.25"),
        "day": MOMENT.date(),
        "time": dt.time(3, 4, 5),
        "moment": MOMENT,
        "list": ["a"],
    }
    kinds = (INT32, INT64, FLOAT64, BOOLEAN, STRING, BYTES, decimal(2), DATE, TIME, TIMESTAMP, array(STRING))
    schema = struct(dict(zip(values, kinds, strict=True)))
    task = sink(url, pk_mode="record_value", pk_fields="id")
    put(task, [record(0, Struct(schema, values), value_schema=schema)])
    task.stop()
    reading = source(url, mode="bulk", tables="t")
    [row] = polled(reading)
    reading.stop()
    assert dict(row.value.items()) == {**values, "list": '["a"]'}


def test_values_without_schema_and_new_columns(url: str) -> None:
    task = sink(url, auto_evolve="true")
    put(task, [record(0, {"a": 1, "b": "x"}), record(1, {"a": 2, "c": {"deep": True}})])
    put(task, [record(2, {"a": 3, "d": 0.5})], 2)
    assert select(url, "SELECT a, b, c, d FROM t ORDER BY a") == [
        (1, "x", None, None),
        (2, None, {"deep": True} if "postgresql" in url else '{"deep": true}', None),
        (3, None, None, 0.5),
    ]
    strict = sink(url, name="strict")
    with pytest.raises(ConnectError, match=r"lacks e; auto\.evolve"):
        put(strict, [record(0, {"e": 1})])


@pytest.mark.parametrize("name", ["100%", "%s", "%(x)s", "%%", ":p", "{0}", 'a"b', "x\\:y"])
def test_names_that_mean_something_to_a_driver(url: str, name: str) -> None:
    task = sink(url, auto_evolve="true", table_name_format=name)
    put(task, [record(0, {"a": 1}), record(1, {name: 2}), record(2, {name: 2.5})])
    put(task, [record(3, {name: None}), record(4, {name: 3})], 3)
    engine = open_engine(url, None, None)
    with engine.connect() as connection:
        table = sa.Table(name, sa.MetaData(), autoload_with=connection)
        rows = [tuple(row) for row in connection.execute(sa.select(table.c.a, table.c[name]))]
    engine.dispose()
    assert rows == [(1, None), (None, 2.0), (None, 2.5), (None, None), (None, 3.0)]


def test_tables_that_are_not_there(url: str) -> None:
    task = sink(url, auto_create="false")
    with pytest.raises(ConnectError, match=r"no table t; auto\.create"):
        put(task, rows((1, "a")))
    run(url, 'CREATE TABLE t (id INTEGER, name TEXT, "More" INTEGER DEFAULT 5)')
    put(task, rows((1, "a")))
    assert select(url, "SELECT * FROM t") == [(1, "a", 5)]


def test_tasks_that_begin_together_make_one_table(url: str) -> None:
    """Each task finds no table before the first task creates it."""
    tasks = [sink(url, name=f"{number}", auto_evolve="true") for number in range(4)]
    if url.startswith("jdbc:sqlite"):
        tasks = tasks[:1]  # it allows one writer at a time
    together = threading.Barrier(len(tasks))
    for task in tasks:
        task._reflected = _met(together, task._reflected)  # type: ignore[method-assign]
    for fields in (("id",), ("id", "more")):
        start = len(fields) - 1
        values = [record(start, dict.fromkeys(fields, number)) for number in range(len(tasks))]
        with ThreadPoolExecutor(len(tasks)) as pool:
            list(pool.map(lambda task, one: put(task, [one], one.original_kafka_offset), tasks, values))
    assert sorted(select(url, "SELECT id, more FROM t WHERE more IS NOT NULL")) == [(n, n) for n in range(len(tasks))]
    assert len(select(url, "SELECT * FROM t")) == 2 * len(tasks)


def _met(together: threading.Barrier, look: Any) -> Any:
    """Return a function that looks up a table; at their first calls, all callers wait for each other."""
    first = iter([True])

    def reflected(connection: sa.Connection, name: str, alone: bool) -> Any:
        try:
            return look(connection, name, alone)
        finally:
            if next(first, False):
                together.wait(30)

    return reflected


def test_settings_must_go_together() -> None:
    def errors(**props: str) -> set[str]:
        given = {key.replace("_", "."): value for key, value in props.items()}
        found = SqlSinkConnector().validate({"connection.url": "sqlite://", **given})
        return {one.name for one in found if one.errors}

    assert errors() == set()
    assert errors(insert_mode="upsert") == {"pk.mode"}
    assert errors(delete_enabled="true", pk_mode="record_value") == {"pk.mode"}
    assert errors(pk_mode="kafka", pk_fields="a,b") == {"pk.fields"}
