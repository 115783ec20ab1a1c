"""The conversion of records to rows: schemas, event time, values that do not fit."""

from __future__ import annotations

import json
from datetime import UTC, date, datetime
from decimal import Decimal
from io import BytesIO
from typing import Any
from uuid import UUID

import fastavro
import pyarrow as pa
import pytest

from parley.pipeline.client.decode import kafka_schema
from parley.pipeline.load.columns import NO_TIME, BadLayout, BadRecord, Layout, rows
from parley.pipeline.load.schemas import read_schema
from parley.pipeline.load.value_reading import ValueSchema, jsonable
from parley.pipeline.values.json_text import dumps

AVRO = {
    "type": "record",
    "name": "Order",
    "fields": [
        {"name": "id", "type": "long"},
        {"name": "name", "type": ["null", "string"], "default": None},
        {"name": "at", "type": {"type": "long", "logicalType": "timestamp-millis"}},
        {"name": "price", "type": {"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 2}},
        {"name": "tags", "type": {"type": "array", "items": "string"}},
    ],
}
JSON = {
    "type": "object",
    "properties": {
        "id": {"type": "integer"},
        "name": {"type": ["string", "null"]},
        "at": {"type": "string", "format": "date-time"},
        "tags": {"type": "array", "items": {"type": "string"}},
    },
}

CLASHES = read_schema(json.dumps({"properties": {"date": {"type": "string"}, "_corrupt": {"type": "string"}}}))
FLAT = {"value_format": "json", "schema": CLASHES, "flat": True}


def batch(*values: bytes | None, timestamps: list[int] | None = None) -> pa.RecordBatch:
    count = len(values)
    times = timestamps or [1_700_000_000_000] * count
    return pa.record_batch(
        [
            pa.array([b"k"] * count, pa.binary()),
            pa.array(values, pa.binary()),
            pa.array(["t"] * count),
            pa.array([0] * count, pa.int32()),
            pa.array(range(10, 10 + count), pa.int64()),
            pa.array([one * 1000 for one in times], pa.timestamp("us", tz="UTC")),
            pa.array([0] * count, pa.int32()),
            pa.array([[{"key": "h", "value": b"v"}]] * count, kafka_schema(include_headers=True).field("headers").type),
        ],
        schema=kafka_schema(include_headers=True),
    )


def loaded(layout: Layout, given: pa.RecordBatch) -> list[dict[str, Any]]:
    return [row for _, made in rows(layout, given) for row in made.to_pylist()]


def avro(**record: Any) -> bytes:
    out = BytesIO()
    fastavro.schemaless_writer(out, fastavro.parse_schema(AVRO), record)
    return out.getvalue()


def test_without_more_the_columns_are_those_of_sparks_source() -> None:
    assert Layout().columns == kafka_schema(include_headers=True)
    (row,) = loaded(Layout(), batch(b"\xff"))
    assert (row["key"], row["value"], row["offset"]) == (b"k", b"\xff", 10)


def test_strings_and_base64() -> None:
    layout = Layout(key_format="string", value_format="base64")
    (row,) = loaded(layout, batch(b"\xff"))
    assert (row["key"], row["value"]) == ("k", "/w==")
    with pytest.raises(BadRecord, match="the value of t-0 at offset 11 is not UTF-8"):
        loaded(Layout(value_format="string"), batch(b"good", b"\xff"))


def test_json_by_a_json_schema() -> None:
    layout = Layout(value_format="json", schema=read_schema(json.dumps(JSON)))
    first = {"id": 1, "name": "ä", "at": "2026-11-21T16:00:00Z", "tags": ["x"], "more": 0}
    found = loaded(layout, batch(json.dumps(first).encode(), b"{}", None))
    assert found[0]["value"] == {
        "id": 1, "name": "ä", "at": datetime(2026, 11, 21, 16, tzinfo=UTC), "tags": ["x"],
    }  # fmt: skip
    assert found[1]["value"] == {"id": None, "name": None, "at": None, "tags": None}
    assert found[2]["value"] is None


def test_avro_by_its_schema() -> None:
    at = datetime(2026, 11, 21, tzinfo=UTC)
    record: dict[str, Any] = {"id": 7, "name": None, "at": at, "price": Decimal("1.25"), "tags": []}
    schema = read_schema(json.dumps(AVRO))
    assert loaded(Layout(value_format="avro", schema=schema), batch(avro(**record)))[0]["value"] == record
    framed = b"\0\0\0\0\x05" + avro(**record)
    assert loaded(Layout(value_format="avro-confluent", schema=schema), batch(framed))[0]["value"] == record


@pytest.mark.parametrize(
    "bad",
    [
        b"no json", b'{"id": "x"}', b"[]", b"1", b'{"id": 5.5}', b'{"id": 1180591620717411303424}', b'{"id": true}',
        b'{"at": 1e30}', b'{"at": "9999-12-31T23:59:59-01:00"}', b'{"tags": "abc"}', b'{"tags": {"a": 1}}',
        b'{"tags": ' + b"[" * 100_000, b'{"name": "\\ud800"}',
    ],
)  # fmt: skip
def test_values_that_do_not_fit_are_named_dropped_or_kept(bad: bytes) -> None:
    schema = read_schema(json.dumps(JSON))
    given = batch(b'{"id": 1}', bad)
    with pytest.raises(BadRecord, match="the value of t-0 at offset 11 does not fit the schema"):
        loaded(Layout(value_format="json", schema=schema), given)
    dropped = loaded(Layout(value_format="json", schema=schema, bad_records="drop"), given)
    assert [row["offset"] for row in dropped] == [10]
    kept = loaded(Layout(value_format="json", schema=schema, bad_records="keep"), given)
    assert [(row["value"], row["_corrupt"]) for row in kept][1] == (None, bad)
    assert kept[0]["_corrupt"] is None


def test_avro_with_bytes_left_over_does_not_fit() -> None:
    schema = read_schema(json.dumps(AVRO))
    data = avro(id=7, name=None, at=datetime(2026, 11, 21, tzinfo=UTC), price=Decimal(1), tags=[]) + b"\0"
    with pytest.raises(BadRecord, match="left over"):
        loaded(Layout(value_format="avro", schema=schema), batch(data))


def test_fields_as_columns() -> None:
    layout = Layout(value_format="json", schema=read_schema(json.dumps(JSON)), flat=True)
    assert layout.columns.names[:5] == ["id", "name", "at", "tags", "_key"]
    (row,) = loaded(layout, batch(b'{"id": 3}'))
    assert (row["id"], row["_offset"], row["_topic"]) == (3, 10, "t")


def test_event_time_divides() -> None:
    hour = 3_600_000
    days = list(rows(Layout(partition_by="hour"), batch(b"a", b"b", b"c", timestamps=[0, hour, 1])))
    assert [(names, made.column("value").to_pylist()) for names, made in days] == [
        (("1970-01-01", "00"), [b"a", b"c"]),
        (("1970-01-01", "01"), [b"b"]),
    ]
    layout = Layout(value_format="json", schema=read_schema(json.dumps(JSON)), partition_by="month", event_time="at")
    found = list(rows(layout, batch(b'{"at": "2026-11-21"}', b"{}")))
    assert [names for names, _ in found] == [("2026-11",), (NO_TIME,)]


@pytest.mark.parametrize("kind", ["string", "number", "integer"])
@pytest.mark.parametrize("bad", ["garbage", 1e300, 253_402_300_800_000])
def test_an_event_time_that_is_none_does_not_fit(kind: str, bad: object) -> None:
    schema = read_schema(json.dumps({"properties": {"at": {"type": kind}}}))
    given = batch(json.dumps({"at": bad}).encode(), b"{}")
    settings: dict[str, Any] = {"value_format": "json", "schema": schema, "partition_by": "day", "event_time": "at"}
    with pytest.raises(BadRecord, match="the value of t-0 at offset 10"):
        loaded(Layout(**settings), given)
    kept = list(rows(Layout(**settings, bad_records="keep"), given))
    assert [(names, made.num_rows) for names, made in kept] == [((NO_TIME,), 2)]


def test_a_record_without_a_timestamp_has_no_event_time() -> None:
    found = list(rows(Layout(partition_by="day"), batch(b"a", b"b", timestamps=[-1, 0])))
    assert [names for names, _ in found] == [(NO_TIME,), ("1970-01-01",)]


def test_avro_of_logical_types() -> None:
    fields = {
        "u": {"type": "string", "logicalType": "uuid"},
        "local": {"type": "long", "logicalType": "local-timestamp-millis"},
        "day": {"type": "int", "logicalType": "date"},
        "other": {"type": "long", "logicalType": "of-nobody"},
        "m": {"type": "map", "values": {"type": "string", "logicalType": "uuid"}},
    }
    definition = {
        "type": "record",
        "name": "R",
        "fields": [{"name": one, "type": kind} for one, kind in fields.items()],
    }
    key = UUID(int=5)
    record = {"u": key, "local": datetime(2026, 1, 1), "day": date(2026, 1, 2), "other": 7, "m": {"k": key}}  # noqa: DTZ001
    out = BytesIO()
    fastavro.schemaless_writer(out, fastavro.parse_schema(definition), record)
    layout = Layout(value_format="avro", schema=read_schema(json.dumps(definition)))
    (row,) = loaded(layout, batch(out.getvalue()))
    assert row["value"] == {**record, "u": str(key), "m": [("k", str(key))]}


def test_in_a_text_nested_fields_are_json_and_bytes_are_base64() -> None:
    schema = ValueSchema(pa.struct([("tags", pa.list_(pa.string())), ("raw", pa.binary())]))
    layout = Layout("string", "json", schema, flat=True, bad_records="keep", text=True)
    good, bad = loaded(layout, batch(b'{"tags": ["a", "b"], "raw": "/w=="}', b"\xff"))
    assert (good["tags"], good["raw"], good["_corrupt"]) == ('["a", "b"]', "/w==", None)
    assert (bad["tags"], bad["raw"], bad["_corrupt"]) == (None, None, "/w==")


def test_decimals_of_json_are_exact() -> None:
    layout = Layout(value_format="json", schema=ValueSchema(pa.struct([("price", pa.decimal128(30, 2))])))
    (row,) = loaded(layout, batch(b'{"price": 123456789012345678901.25}'))
    assert row["value"] == {"price": Decimal("123456789012345678901.25")}


def test_decimals_keep_their_digits_in_json_too() -> None:
    price = Decimal("123456789012345678901.25")
    kind = pa.struct([("price", pa.decimal128(30, 2)), ("rest", pa.list_(pa.float64()))])
    data = b'{"price": 123456789012345678901.25, "rest": [0.10]}'
    (row,) = loaded(Layout(value_format="json", schema=ValueSchema(kind), text=True), batch(data))
    assert json.loads(row["value"], parse_float=Decimal) == {"price": price, "rest": [Decimal("0.1")]}
    assert dumps(jsonable({"price": price, "rest": None}, kind)) == f'{{"price": {price}, "rest": null}}'
    assert dumps([Decimal("-1e3"), Decimal("1e999999999"), Decimal("0.00")]) == "[-1000, 1E+999999999, 0.00]"


@pytest.mark.parametrize(
    ("settings", "text"),
    [
        ({"value_format": "xml"}, "Unknown format 'xml'"),
        ({"value_format": "json"}, "needs a schema"),
        ({"value_format": "avro", "schema": read_schema(json.dumps(JSON))}, "need an Avro schema"),
        ({"flat": True}, "can be flattened"),
        ({"partition_by": "week"}, "cannot be partitioned by"),
        ({"partition_by": "day", "event_time": "at"}, "no field at"),
        (
            {"value_format": "json", "schema": read_schema(json.dumps(JSON)), "event_time": "tags"},
            "does not contain a time",
        ),
        ({**FLAT, "partition_by": "day"}, "two columns would be named date"),
        ({**FLAT, "bad_records": "keep"}, "two columns would be named _corrupt"),
    ],
)
def test_an_invalid_layout_is_an_error(settings: dict[str, Any], text: str) -> None:
    with pytest.raises(BadLayout, match=text):
        Layout(**settings)


@pytest.mark.parametrize("text", ["", "{", '{"type": "no"}', '{"properties": {"a": {}}}'])
def test_a_schema_that_is_none_is_said(text: str) -> None:
    with pytest.raises(BadLayout):
        read_schema(text)
