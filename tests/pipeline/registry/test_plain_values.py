"""Values of the schema languages as human-readable JSON, and hostile data."""

from __future__ import annotations

import io
import json
import threading
from decimal import Decimal
from typing import Any

import fastavro
import pytest

from parley.pipeline.schemas.model import BadSchema, Schema, SchemaType, no_references
from parley.pipeline.schemas.plain import VALUES_MAX, Read, reader

LIST = {"type": "record", "name": "L", "fields": [{"name": "next", "type": ["null", "L"]}]}
PROTO = """
syntax = "proto3";
import "google/protobuf/timestamp.proto";
enum Color { RED = 0; BLUE = 1; }
message Order {
  message Line { bool paid = 1; }
  int64 id = 1; optional string note = 2; Color color = 3; repeated Order parts = 4; map<int32, double> rates = 5;
  google.protobuf.Timestamp at = 6; bytes raw = 7;
}
"""


def avro(schema: Any) -> Read:
    return reader(Schema(SchemaType.AVRO, json.dumps(schema)), no_references)


def protobuf() -> Read:
    return reader(Schema(SchemaType.PROTOBUF, PROTO), no_references)


def test_avro_as_json() -> None:
    fields = {
        "amount": {"type": "bytes", "logicalType": "decimal", "precision": 12, "scale": 2},
        "at": {"type": "long", "logicalType": "timestamp-millis"},
        "day": {"type": "int", "logicalType": "date"},
        "raw": "bytes",
        "rate": "double",
        "either": ["null", "string", "long"],
        "tags": {"type": "map", "values": "boolean"},
    }
    schema = {"type": "record", "name": "R", "fields": [{"name": k, "type": v} for k, v in fields.items()]}
    row = {
        "amount": b"\x04\xd2",
        "at": 0,
        "day": 1,
        "raw": b"\xff",
        "rate": float("nan"),
        "either": 7,
        "tags": {"a": True},
    }
    plain = json.loads(json.dumps(schema).replace("logicalType", "was"))
    out = io.BytesIO()
    fastavro.schemaless_writer(out, plain, row)
    assert avro(schema)(out.getvalue(), 0) == {
        "amount": Decimal("12.34"), "at": "1970-01-01T00:00:00+00:00", "day": "1970-01-02", "raw": "/w==",
        "rate": "NaN", "either": 7, "tags": {"a": True},
    }  # fmt: skip
    with pytest.raises(ValueError, match="1 bytes are left over"):
        avro("int")(b"\2\0", 0)
    with pytest.raises(ValueError, match="ends too early"):
        avro("string")(b"\x80\x80\x80\x80\x80\x80\x01a", 0)


def test_protobuf_as_json() -> None:
    empty: dict[str, Any] = {"note": None, "color": "RED", "parts": [], "rates": {}, "at": None, "raw": ""}
    assert protobuf()(b"\0\x08\x07", 0) == {"id": 7, **empty}
    assert protobuf()(b"\0\x18\x05\x32\x02\x08\x01", 0) == {
        "id": 0, **empty, "color": 5, "at": "1970-01-01T00:00:01Z",
    }  # fmt: skip
    assert protobuf()(b"\x04\0\0\x08\x01", 0) == {"paid": True}
    for data in (b"", b"\0\xff", b"\2\x08\x01", b"\x08\0\0\0\0\0"):
        with pytest.raises(ValueError, match=r"place|message"):
            protobuf()(data, 0)
    first = reader(Schema(SchemaType.PROTOBUF, PROTO), no_references, is_framed=False)
    assert first(b"\x08\x07", 0)["id"] == 7


def test_json_keeps_properties_that_the_schema_does_not_name() -> None:
    read = reader(Schema(SchemaType.JSON, '{"type":"object","properties":{"a":{"type":"integer"}}}'), no_references)
    assert read(b'{"a":1,"b":[null]}', 0) == {"a": 1, "b": [None]}
    for data in (b"{", b"\xff", b"[" * 100_000):
        with pytest.raises(ValueError, match="JSON"):
            read(data, 0)


def test_deep_avro_overflows_no_stack() -> None:
    """The compiled reader of fastavro ends the process here."""
    assert avro(LIST)(b"\2\2\0", 0) == {"next": {"next": {"next": None}}}
    found: list[str] = []

    def read() -> None:
        with pytest.raises(ValueError, match="nested too deeply") as caught:
            avro(LIST)(b"\2" * 100_000 + b"\0", 0)
        found.append(str(caught.value))

    thread = threading.Thread(target=read)  # a thread has no more of a stack than the main one
    thread.start()
    thread.join()
    assert found


@pytest.mark.parametrize(
    "items", ["null", {"type": "record", "name": "E", "fields": []}, {"type": "fixed", "name": "F", "size": 0}]
)
def test_arrays_of_nothing_are_refused(items: Any) -> None:
    nested = {"type": "record", "name": "R", "fields": [{"name": "a", "type": {"type": "array", "items": items}}]}
    with pytest.raises(BadSchema, match="no bytes"):
        avro(["null", nested])


def test_a_value_has_a_bounded_number_of_parts() -> None:
    tree = {"type": "array", "items": "int"}
    out = io.BytesIO()
    fastavro.schemaless_writer(out, tree, [1] * VALUES_MAX)
    with pytest.raises(ValueError, match="more than 50,000 parts"):
        avro(tree)(out.getvalue(), 0)
    wide = "syntax='proto3'; message R { repeated W w = 1; } message W {" + "".join(
        f" int32 f{n} = {n};" for n in range(1, 600)
    )
    read = reader(Schema(SchemaType.PROTOBUF, wide + " }"), no_references)
    with pytest.raises(ValueError, match="more than 50,000 parts"):
        read(b"\0" + b"\x0a\0" * 100_000, 0)
