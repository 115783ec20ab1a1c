"""JSON Schema and Protobuf as rows, without Spark and without a registry."""

from __future__ import annotations

import datetime as dt
import json
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest

from parley.pipeline.schemas import avro_rows, json_rows, protobuf_rows
from parley.pipeline.schemas.model import BadColumn, BadSchema, Schema, SchemaType, no_references
from parley.pipeline.values.exact import DoesNotFit, exact_array, fitter


def json_schema(schema: Any) -> Schema:
    return Schema(SchemaType.JSON, json.dumps(schema))


def read_json(schema: Any, text: str) -> Any:
    own = json_schema(schema)
    value = json_rows.reader(own, own, no_references)(text.encode(), 0)
    return exact_array([value], json_rows.column_type(own, no_references)).to_pylist()[0]


ITEM = {
    "type": "object",
    "properties": {
        "n": {"type": "integer"},
        "x": {"oneOf": [{"type": "null"}, {"type": "number"}]},
        "tags": {"type": "array", "items": {"$ref": "#/definitions/tag"}},
        "map": {"type": "object", "additionalProperties": {"type": "boolean"}},
        "any": {},
    },
    "required": ["n"],
    "definitions": {"tag": {"type": "string"}},
}


def test_json_as_rows() -> None:
    text = '{"n":5,"x":2.5,"tags":["é"],"map":{"k":true},"any":[1,{"a":null}],"unnamed":1}'
    row = {"n": 5, "x": 2.5, "tags": ["é"], "map": [("k", True)], "any": '[1,{"a":null}]'}
    assert read_json(ITEM, text) == row
    assert read_json(ITEM, '{"n":5}') == {"n": 5, "x": None, "tags": None, "map": None, "any": None}
    for bad in ('{"n":5.5}', '{"n":"5"}', '{"n":9223372036854775808}', "[]", '{"n":5', '{"n":NaN}', '{"x":1e400}'):
        with pytest.raises(ValueError):  # noqa: PT011 - of several classes
            read_json(ITEM, bad)


def test_rows_as_json() -> None:
    own = json_schema({**ITEM, "additionalProperties": False})
    write = json_rows.writer(own, no_references)
    row = {"n": 5, "x": 0.1, "tags": ["é"], "map": [("k", True)], "any": None}
    assert json.loads(write(row)) == {"n": 5, "x": 0.1, "tags": ["é"], "map": {"k": True}}
    with pytest.raises(ValueError, match="required"):
        write({**row, "n": None})


PROTO = """
syntax = "proto3";
import "google/protobuf/timestamp.proto";
message Order {
  int64 id = 1; optional string note = 2; uint64 large = 3; repeated Item items = 4; map<string, int32> counts = 5;
  Kind kind = 6; google.protobuf.Timestamp at = 7; oneof one { bool a = 8; bytes b = 9; }
  message Item { string name = 1; }
  enum Kind { UNKNOWN = 0; SOLD = 1; }
}
"""
ORDER = Schema(SchemaType.PROTOBUF, PROTO)
ROW = {
    "id": -5, "note": None, "large": Decimal((1 << 64) - 1), "items": [{"name": "x"}], "counts": [("k", 3)],
    "kind": "SOLD", "at": dt.datetime(1969, 12, 31, 23, 59, 59, 999_999, dt.UTC), "a": None, "b": b"\xff",
}  # fmt: skip


@pytest.mark.slow
def test_protobuf_as_rows_and_back() -> None:
    kind = protobuf_rows.column_type(ORDER, no_references)
    data = protobuf_rows.writer(ORDER, no_references)(fitter(kind)(ROW))
    read = protobuf_rows.reader(ORDER, ORDER, no_references)
    assert exact_array([read(data, 0)], kind).to_pylist() == [ROW]
    newer = ORDER.with_text(PROTO.replace("int64 id = 1;", "int64 id = 1; string more = 20;"))
    assert protobuf_rows.reader(ORDER, newer, no_references)(data, 0)["more"] == ""
    for bad in (b"", b"\x02", b"\x02\x08", b"\x00\xff\xff", b"\xff" * 9):
        with pytest.raises(ValueError):  # noqa: PT011 - of several classes
            read(bad, 0)
    with pytest.raises(DoesNotFit, match="enum"):
        read(b"\0\x30\x09", 0)
    with pytest.raises(DoesNotFit, match="oneof"):
        protobuf_rows.writer(ORDER, no_references)({**ROW, "a": True})
    for name in ("id", "large", "items", "counts", "kind"):
        with pytest.raises(DoesNotFit, match="without presence") as refused:
            protobuf_rows.writer(ORDER, no_references)({**ROW, name: None})
        assert refused.value.path == name
    with pytest.raises(BadSchema, match="is recursive"):
        protobuf_rows.column_type(ORDER.with_text('syntax = "proto3"; message T { T next = 1; }'), no_references)


@pytest.mark.slow
def test_columns_become_messages() -> None:
    kind = pa.struct(
        {
            "a": pa.int64(),
            "b": pa.list_(pa.string()),
            "c": pa.struct({"d": pa.bool_()}),
            "e": pa.map_(pa.string(), pa.float64()),
            "at": pa.timestamp("us", tz="UTC"),
        }
    )
    first = ORDER.with_text(protobuf_rows.derived_text(kind, None, no_references))
    assert protobuf_rows.column_type(first, no_references) == kind
    row = {"a": 1, "b": ["x"], "c": {"d": None}, "e": [("k", 0.5)], "at": None}
    data = protobuf_rows.writer(first, no_references)(row)
    assert exact_array([protobuf_rows.reader(first, first, no_references)(data, 0)], kind).to_pylist() == [row]
    fewer = pa.struct({"new": pa.int32(), "c": kind.field("c").type})
    second = protobuf_rows.derived_text(fewer, first, no_references)
    assert "optional int32 new = 6;" in second
    assert " c = 3;" in second


@pytest.mark.slow
def test_structs_at_any_place_become_messages_with_names_of_their_own() -> None:
    inner = pa.struct({"value": pa.struct({"x": pa.int32()})})
    kind = pa.struct(
        {
            "value": inner,
            "Value": pa.struct({"y": pa.string()}),
            "ListMessage": pa.bool_(),
            "list": pa.list_(inner),
            "byName": pa.map_(pa.string(), pa.struct({"z": pa.float64()})),
            "byname": pa.map_(pa.string(), inner),
        }
    )
    derived = ORDER.with_text(protobuf_rows.derived_text(kind, None, no_references))
    assert protobuf_rows.column_type(derived, no_references) == kind
    row = {
        "value": {"value": {"x": 1}}, "Value": {"y": "é"}, "ListMessage": None, "list": [{"value": None}],
        "byName": [("k", {"z": 0.5})], "byname": [("k", {"value": {"x": 2}})],
    }  # fmt: skip
    data = protobuf_rows.writer(derived, no_references)(row)
    assert exact_array([protobuf_rows.reader(derived, derived, no_references)(data, 0)], kind).to_pylist() == [row]
    assert protobuf_rows.derived_text(kind, derived, no_references) == derived.text


@pytest.mark.slow
def test_fields_of_one_message_keep_it() -> None:
    first = ORDER.with_text(
        'syntax = "proto3"; message Row { Place from = 1; Place to = 2; } message Place { optional string town = 1; }'
    )
    kind = protobuf_rows.column_type(first, no_references)
    text = protobuf_rows.derived_text(kind, first, no_references)
    assert text.count("message Place ") == 1
    assert protobuf_rows.column_type(first.with_text(text), no_references) == kind
    wider = pa.struct({"from": kind.field("from").type, "to": pa.struct({"town": pa.string(), "street": pa.string()})})
    text = protobuf_rows.derived_text(wider, first, no_references)
    assert protobuf_rows.column_type(first.with_text(text), no_references) == wider


PLAIN = pa.struct({"x": pa.int32()})
LISTS = pa.struct({"a": pa.list_(pa.struct({"b": pa.list_(pa.list_(PLAIN))}))})


@pytest.mark.parametrize(
    ("rows", "kind", "named"),
    [
        (protobuf_rows, pa.int64(), "the column is of type int64, .* make a struct of it"),
        (protobuf_rows, pa.struct({"a b": pa.int64()}), "^a b has a name that Protobuf does not allow: rename it"),
        (protobuf_rows, LISTS, r"^a\.element\.b\.element is of type .* put it into a struct"),
        (protobuf_rows, pa.struct({"m": pa.map_(pa.string(), pa.list_(PLAIN))}), r"^m\.value is of type .* struct$"),
        (protobuf_rows, pa.struct({"m": pa.map_(pa.float64(), PLAIN)}), r"^m\.key is of type double, .* cast it"),
        (protobuf_rows, pa.struct({"p": pa.struct({"d": pa.date32()})}), r"^p\.d is of type date32\[day\], .* cast it"),
        (
            avro_rows,
            pa.struct({"p": pa.struct({"d": pa.uint8()})}),
            r"^p\.d is of type uint8, which Avro lacks: cast",
        ),
        (avro_rows, pa.struct({"p": pa.struct({"a b": pa.int64()})}), r"^p\.a b has a name that Avro does not allow"),
        (json_rows, pa.struct({"p": pa.struct({"d": pa.date32()})}), r"^p\.d is of type .*, which JSON lacks: cast it"),
    ],
)
def test_a_column_without_a_schema_is_named(rows: Any, kind: pa.DataType, named: str) -> None:
    with pytest.raises(BadColumn, match=named):
        rows.derived_text(kind, None, no_references)
