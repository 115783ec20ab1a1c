"""Sinks that write topics to Parquet files and Delta tables: each record is stored exactly once."""

from __future__ import annotations

import datetime as dt
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable
from pyarrow import fs

from parley.pipeline.connect.connector import ExactlyOnceSinkTask, OffsetRange
from parley.pipeline.connect.connectors import parquet as parquet_sink
from parley.pipeline.connect.connectors.columns import Columns, FileColumns, Refused, table_of
from parley.pipeline.connect.connectors.delta import DeltaSinkTask
from parley.pipeline.connect.connectors.parquet import ParquetSinkConnector, ParquetSinkTask
from parley.pipeline.connect.data import (
    BYTES,
    DATE,
    FLOAT64,
    INT8,
    INT32,
    INT64,
    OPTIONAL_STRING,
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
from parley.pipeline.connect.errors import ConnectError, DataError, RetriableError
from parley.pipeline.connect.records import SinkRecord, TopicPartition
from tests.pipeline.connect.connectors.tasks import record, started

PARTITION = TopicPartition("t", 0)
ROW = struct({"id": INT32, "name": OPTIONAL_STRING})


def rows(start: int, end: int, **more: Any) -> list[SinkRecord]:
    """Return a struct for each offset."""
    return [
        record(number, Struct(ROW, {"id": number, "name": f"n{number}"}), value_schema=ROW, **more)
        for number in range(start, end)
    ]


def table(records: list[SinkRecord], *, with_source: bool = False) -> pa.Table:
    """Return the records as a table of a file; it ends before the first rejected record."""

    def refuse(_: SinkRecord, error: Refused) -> None:
        raise error

    return table_of(records, Columns({}, FileColumns()), refuse, with_source=with_source)


def put(task: ExactlyOnceSinkTask, start: int, end: int) -> None:
    task.put_range(OffsetRange("t", 0, start, end), rows(start, end))


def test_types_of_columns() -> None:
    inner = struct({"x": INT64})
    schema = struct(
        {
            "tiny": INT8,
            "real": FLOAT64,
            "bytes": BYTES,
            "list": array(STRING),
            "map": map_of(STRING, INT32),
            "inner": inner,
            "money": decimal(2),
            "day": DATE,
            "time": TIME,
            "moment": TIMESTAMP,
        }
    )
    moment = dt.datetime(2026, 1, 2, 3, 4, 5, 6000, tzinfo=dt.UTC)
    values = {
        "tiny": 1,
        "real": 0.5,
        "bytes": b"b",
        "list": ["a"],
        "map": {"k": 1},
        "inner": Struct(inner, {"x": 7}),
        "money": Decimal("1.25"),
        "day": moment.date(),
        "time": moment.time(),
        "moment": moment,
    }
    made = table([record(5, Struct(schema, values), value_schema=schema, key="k", timestamp=1)], with_source=True)
    assert made.schema.field("tiny").type == pa.int8()
    assert made.schema.field("moment").type == pa.timestamp("ms", "UTC")
    [row] = made.to_pylist()
    assert row["inner"] == {"x": 7}
    assert row["map"] == [("k", 1)]
    assert row["money"] == Decimal("1.25")
    assert (row["day"], row["time"], row["moment"]) == (moment.date(), moment.time(), moment)
    assert (row["kafka_key"], row["kafka_topic"], row["kafka_partition"], row["kafka_offset"]) == ("k", "t", 0, 5)
    assert row["kafka_timestamp"] == dt.datetime(1970, 1, 1, 0, 0, 0, 1000, tzinfo=dt.UTC)


def test_values_without_schema() -> None:
    made = table([record(0, {"a": 1}), record(1, None), record(2, {"b": "x", "a": 2.5})])
    assert made.to_pylist() == [{"a": 1.0, "b": None}, {"a": None, "b": None}, {"a": 2.5, "b": "x"}]
    assert table([record(0, "x"), record(1, None)]).to_pylist() == [
        {"value": "x"},
        {"value": None},
    ]
    with pytest.raises(DataError):
        table([record(0, {"a": 1}), record(1, {"a": "text"})])


def test_schemas_that_change() -> None:
    wider = struct({"id": INT64, "more": STRING})
    records = [*rows(0, 1), record(1, Struct(wider, {"id": 1 << 40, "more": "m"}), value_schema=wider)]
    assert table(records).to_pylist() == [
        {"id": 0, "name": "n0", "more": None},
        {"id": 1 << 40, "name": None, "more": "m"},
    ]


def parquet(folder: Path, **more: str) -> ParquetSinkTask:
    task = started(ParquetSinkTask(), {"url": str(folder), **more})
    assert isinstance(task, ParquetSinkTask)
    return task


def test_a_file_says_its_range(tmp_path: Path) -> None:
    task = parquet(tmp_path)
    assert (task.range_records, task.range_ms) == (10_000, 10_000)
    assert task.committed([PARTITION]) == {}
    put(task, 0, 10)
    put(task, 10, 15)
    folder = tmp_path / "t" / "partition=0"
    assert sorted(path.name for path in folder.iterdir()) == ["t+0+0+10.parquet", "t+0+10+15.parquet"]
    table = pq.read_table(tmp_path / "t").sort_by("kafka_offset")
    assert table["id"].to_pylist() == table["kafka_offset"].to_pylist() == list(range(15))
    again = parquet(tmp_path)
    assert again.committed([PARTITION, TopicPartition("t", 1)]) == {PARTITION: 15}


def test_a_range_that_was_not_finished_is_not_seen(tmp_path: Path) -> None:
    task = parquet(tmp_path)
    put(task, 0, 10)
    (tmp_path / "t" / "partition=0" / ".t+0+10+20.parquet.tmp").write_bytes(b"PAR1 half")
    assert parquet(tmp_path).committed([PARTITION]) == {PARTITION: 10}
    put(parquet(tmp_path), 10, 20)
    assert pq.read_table(tmp_path / "t").num_rows == 20


def test_who_comes_late_gives_up(tmp_path: Path) -> None:
    for late, other in (
        (parquet(tmp_path / "a"), parquet(tmp_path / "a")),
        (delta(tmp_path / "b"), delta(tmp_path / "b")),
    ):
        put(late, 0, 5)
        put(other, 5, 10)
        with pytest.raises(ConnectError, match="another task"):
            put(late, 5, 8)
        assert other.committed([PARTITION]) == {PARTITION: 10}


def test_a_file_of_another_file_system_appears_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    elsewhere = fs.SubTreeFileSystem(str(tmp_path), fs.LocalFileSystem())
    monkeypatch.setattr(parquet_sink, "_opened", lambda url: (elsewhere, url))
    task = started(ParquetSinkTask(), {"url": "x"})
    assert isinstance(task, ParquetSinkTask)
    real = task._write

    def dies(path: str, content: pa.Buffer) -> None:
        real(path, content[:10])
        raise OSError("no space is left")

    monkeypatch.setattr(task, "_write", dies)
    with pytest.raises(RetriableError):
        put(task, 0, 10)
    assert task.committed([PARTITION]) == {}
    assert list((tmp_path / "x" / "t" / "partition=0").iterdir()) == []  # the next task deletes leftover files
    monkeypatch.setattr(task, "_write", real)
    put(task, 0, 10)
    assert task.committed([PARTITION]) == {PARTITION: 10}
    assert pq.read_table(tmp_path / "x" / "t").num_rows == 10


@pytest.mark.parametrize("end", [5, 8])
def test_one_of_two_concurrent_writers_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, end: int) -> None:
    late, other = parquet(tmp_path), parquet(tmp_path)
    check = late._check_is_next

    def look(offsets: OffsetRange) -> None:
        check(offsets)
        with pytest.raises(RetriableError):
            put(other, 0, 5)  # between the first task's check and its rename

    monkeypatch.setattr(late, "_check_is_next", look)
    put(late, 0, end)
    with pytest.raises(ConnectError, match="another task"):
        put(other, 0, 5)
    assert other.committed([PARTITION]) == {PARTITION: end}
    assert pq.read_table(tmp_path / "t").num_rows == end


def test_url_and_keys_are_checked() -> None:
    found = {one.name: one for one in ParquetSinkConnector().validate({"url": "nope://x", "flush.size": "0"})}
    assert "nope" in found["url"].errors[0]
    assert found["flush.size"].errors
    with pytest.raises(ConnectError, match="files define"):
        ParquetSinkConnector().alter_offsets({}, {PARTITION: 0})


def test_a_folder_by_its_url_and_no_metadata(tmp_path: Path) -> None:
    task = started(ParquetSinkTask(), {"url": tmp_path.as_uri(), "metadata.columns": "false", "parquet.codec": "zstd"})
    put(task, 0, 3)
    assert pq.read_table(tmp_path / "t", partitioning=None).column_names == ["id", "name"]


def delta(folder: Path, **more: str) -> DeltaSinkTask:
    task = started(DeltaSinkTask(), {"url": str(folder), **more})
    assert isinstance(task, DeltaSinkTask)
    return task


def test_rows_and_offset_are_one_commit(tmp_path: Path) -> None:
    task = delta(tmp_path)
    assert task.committed([PARTITION]) == {}
    put(task, 0, 10)
    put(task, 10, 15)
    other = TopicPartition("t", 1)
    assert delta(tmp_path).committed([PARTITION, other]) == {PARTITION: 15}
    table = DeltaTable(str(tmp_path)).to_pyarrow_table().sort_by("kafka_offset")
    assert table["id"].to_pylist() == list(range(15))
    assert started(DeltaSinkTask(), {"url": str(tmp_path), "name": "another"}).committed([PARTITION]) == {}


def test_new_fields_become_columns_where_that_is_wanted(tmp_path: Path) -> None:
    put(delta(tmp_path), 0, 1)
    wider = struct({"id": INT32, "name": OPTIONAL_STRING, "more": STRING})
    records = [record(1, Struct(wider, {"id": 1, "more": "m"}), value_schema=wider)]
    with pytest.raises(ConnectError, match=r"schema\.evolution"):
        delta(tmp_path, **{"schema.evolution": "false"}).put_range(OffsetRange("t", 0, 1, 2), records)
    delta(tmp_path).put_range(OffsetRange("t", 0, 1, 2), records)
    table = DeltaTable(str(tmp_path)).to_pyarrow_table().sort_by("kafka_offset")
    assert table["more"].to_pylist() == [None, "m"]


def test_a_value_that_does_not_fit_a_table_is_an_error(tmp_path: Path) -> None:
    put(delta(tmp_path), 0, 1)
    other: Schema = struct({"id": STRING})
    records = [record(1, Struct(other, {"id": "text"}), value_schema=other)]
    with pytest.raises(
        ConnectError,
        match="t-0 offset 1: the field id has a text, which cannot be stored exactly in its column of type int32",
    ):
        delta(tmp_path).put_range(OffsetRange("t", 0, 1, 2), records)
    assert delta(tmp_path).committed([PARTITION]) == {PARTITION: 1}
