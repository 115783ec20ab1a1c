"""Avro, with a fixed schema or with a registry: the converter agrees with fastavro."""

from __future__ import annotations

import datetime as dt
import io
import json
import threading
from collections.abc import Iterator
from decimal import Decimal
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, ClassVar

import fastavro
import pytest

from parley.pipeline.connect import data
from parley.pipeline.connect.converters.avro import AvroConverter
from parley.pipeline.connect.converters.avro_schema import from_avro, to_avro
from parley.pipeline.connect.data import Struct, array, decimal, map_of, struct
from parley.pipeline.connect.errors import ConfigError, DataError, RetriableError

INNER = struct({"a": data.BOOLEAN}, name="inner").as_optional()
SCHEMA = struct(
    {
        "small": data.INT8,
        "id": data.INT64,
        "name": data.OPTIONAL_STRING,
        "cost": decimal(2),
        "day": data.DATE,
        "hour": data.TIME,
        "moment": data.TIMESTAMP,
        "raw": data.BYTES,
        "tags": array(data.OPTIONAL_STRING),
        "counts": map_of(data.STRING, data.INT32),
        "odd": map_of(data.INT32, data.STRING),
        "inner": INNER,
        "other": INNER,
    },
    name="org.example.everything",
    version=3,
)
VALUE = Struct(
    SCHEMA,
    {
        "small": 7,
        "id": 1,
        "cost": Decimal("-12.30"),
        "day": dt.date(1969, 12, 31),
        "hour": dt.time(1, 2, 3, 4000),
        "moment": dt.datetime(2020, 1, 1, tzinfo=dt.UTC),
        "raw": b"\x00\xff",
        "tags": ["a", None],
        "counts": {"x": 1},
        "odd": {5: "five"},
        "inner": Struct(INNER, {"a": True}),
    },
)


class Registry(BaseHTTPRequestHandler):
    """The part of a schema registry that converters use."""

    schemas: ClassVar[list[str]] = []

    def do_GET(self) -> None:
        number = int(self.path.partition("?")[0].rpartition("/")[2])
        self._answer(200 if number <= len(self.schemas) else 404, {"schema": self.schemas[number - 1 : number]})

    def do_POST(self) -> None:
        schema = json.loads(self.rfile.read(int(self.headers["Content-Length"])))["schema"]
        if schema not in self.schemas:
            if not self.path.partition("?")[0].endswith("/versions"):
                return self._answer(404, {"error_code": 40403, "message": "Schema not found"})
            self.schemas.append(schema)
        return self._answer(200, {"id": self.schemas.index(schema) + 1, "schema": schema})

    def _answer(self, code: int, body: Any) -> None:
        if isinstance(body.get("schema"), list):
            body = {"schema": "".join(body["schema"])}
        self.send_response(code)
        self.end_headers()
        self.wfile.write(json.dumps(body).encode())

    def log_message(self, format: str, *args: Any) -> None:
        return


@pytest.fixture
def registry() -> Iterator[str]:
    Registry.schemas.clear()
    with ThreadingHTTPServer(("127.0.0.1", 0), Registry) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


def converter(**config: str) -> AvroConverter:
    made = AvroConverter()
    made.configure({key.replace("_", "."): value for key, value in config.items()}, False)
    return made


def test_schemas_come_back_as_they_were() -> None:
    assert from_avro(to_avro(SCHEMA)) == SCHEMA


def test_a_registry_numbers_the_schemas(registry: str) -> None:
    made = converter(schema_registry_url=registry).from_connect("t", SCHEMA, VALUE)
    assert made is not None
    assert made[:5] == b"\0\0\0\0\1"
    avro = fastavro.parse_schema(json.loads(Registry.schemas[0]))
    read: Any = fastavro.schemaless_reader(io.BytesIO(made[5:]), avro, None)
    assert (read["cost"], read["odd"], read["inner"]) == (Decimal("-12.30"), [{"key": 5, "value": "five"}], {"a": True})
    found = converter(schema_registry_url=registry).to_connect("t", made)
    assert (found.schema, found.value) == (SCHEMA, VALUE)


def test_a_registry_that_refuses_or_is_away(registry: str) -> None:
    with pytest.raises(DataError, match="404"):
        converter(schema_registry_url=registry, auto_register_schemas="false").from_connect("t", SCHEMA, VALUE)
    with pytest.raises(DataError, match="404"):
        converter(schema_registry_url=registry).to_connect("t", b"\0\0\0\0\x09rest")
    with pytest.raises(RetriableError, match="No schema registry responds"):
        converter(schema_registry_url="http://127.0.0.1:1").to_connect("t", b"\0\0\0\0\1rest")
    two = converter(schema_registry_url=f"http://127.0.0.1:1,{registry}")
    assert two.from_connect("t", data.STRING, "a") == b"\0\0\0\0\1\2a"


def test_one_schema_for_all_values(tmp_path: Path) -> None:
    avro = {
        "type": "record",
        "name": "user",
        "namespace": "org.example",
        "fields": [
            {"name": "name", "type": "string"},
            {"name": "kind", "type": {"type": "enum", "name": "kind", "symbols": ["A", "B"]}},
            {"name": "other", "type": ["null", "kind"], "default": None},
        ],
    }
    (tmp_path / "user.avsc").write_text(json.dumps(avro))
    made = converter(avro_schema=str(tmp_path / "user.avsc"))
    out = io.BytesIO()
    fastavro.schemaless_writer(out, fastavro.parse_schema(avro), {"name": "Ada", "kind": "B", "other": "A"})
    found = made.to_connect("t", out.getvalue())
    assert dict(found.value.items()) == {"name": "Ada", "kind": "B", "other": "A"}
    assert made.from_connect("t", found.schema, found.value) == out.getvalue()
    for bad in (b"", b"\xff" * 20, out.getvalue() + b"\0"):
        with pytest.raises(DataError):
            made.to_connect("t", bad)


@pytest.mark.parametrize(
    ("logical", "primitive", "value"),
    [
        ({"type": "bytes", "logicalType": "decimal", "precision": 2, "scale": 1}, b"\x7f\xff\xff", Decimal("838860.7")),
        ({"type": "string", "logicalType": "uuid"}, "5ec0ded0-0000-4000-8000-000000000001", None),
        ({"type": "long", "logicalType": "local-timestamp-millis"}, 1, None),
        ({"type": "long", "logicalType": "timestamp-micros"}, 1, dt.datetime(1970, 1, 1, 0, 0, 0, 1, dt.UTC)),
    ],
)
def test_logical_types_have_their_exact_values(logical: dict[str, Any], primitive: Any, value: Any) -> None:
    """Values with more digits than the precision round-trip. Types that Connect lacks become their primitive types."""
    record = {"type": "record", "name": "r", "fields": [{"name": "a", "type": ["null", logical]}]}
    plain = {"type": "record", "name": "r", "fields": [{"name": "a", "type": ["null", logical["type"]]}]}
    out = io.BytesIO()
    fastavro.schemaless_writer(out, fastavro.parse_schema(plain), {"a": primitive})
    found = converter(avro_schema=json.dumps(record)).to_connect("t", out.getvalue())
    assert found.value["a"] == (primitive if value is None else value)
    assert found.schema is not None
    data.check_value(found.schema, found.value)


def test_unusable_avro_schemas_are_refused() -> None:
    for config in ({}, {"avro_schema": "{"}, {"avro_schema": "/absent"}):
        with pytest.raises(ConfigError):
            converter(**config)
    with pytest.raises(DataError, match="union"):
        converter(avro_schema='["int", "string"]')


def test_a_few_bytes_cannot_announce_billions_of_values() -> None:
    """Two bytes of data say that the array has 2^31 items, each of which takes none."""
    nulls = converter(avro_schema='{"type": "array", "items": {"type": "fixed", "name": "F", "size": 0}}')
    assert nulls.from_connect("t", None, [b"", b""]) == b"\4\0"
    with pytest.raises(DataError, match="an array whose items take no bytes"):
        nulls.to_connect("t", b"\xfe\xff\xff\xff\x0f\0")
