"""Converters and Java's text forms, without Kafka's own classes (see test_against_kafka)."""

from __future__ import annotations

import datetime as dt
import json
from decimal import Decimal
from typing import Any

import pytest

from parley.pipeline.connect import data, text_values
from parley.pipeline.connect.converters import Converter
from parley.pipeline.connect.converters.json_converter import JsonConverter
from parley.pipeline.connect.data import Schema, SchemaAndValue, Struct, array, check_value, decimal, map_of, struct
from parley.pipeline.connect.errors import ConfigError, DataError
from parley.pipeline.connect.java_notation import JavaDateFormat, java_replacement, java_text
from parley.pipeline.connect.offset_stores import FileOffsetStore
from parley.pipeline.connect.plugins import Plugins
from parley.pipeline.connect.records import Header, SourceRecord
from parley.pipeline.connect.transforms import Transform

INNER = struct({"a": data.BOOLEAN}).as_optional()
EVERYTHING = struct(
    {
        "id": data.INT64,
        "name": data.OPTIONAL_STRING,
        "cost": decimal(2),
        "day": data.DATE,
        "hour": data.TIME,
        "moment": data.TIMESTAMP,
        "raw": data.OPTIONAL_BYTES,
        "ratio": data.FLOAT64,
        "tags": array(data.STRING),
        "counts": map_of(data.INT32, data.STRING),
        "inner": INNER,
    },
    name="everything",
    version=2,
)
VALUE = Struct(
    EVERYTHING,
    {
        "id": 1,
        "cost": Decimal("-12.30"),
        "day": dt.date(1969, 12, 31),
        "hour": dt.time(1, 2, 3, 4000),
        "moment": dt.datetime(2020, 1, 1, tzinfo=dt.UTC),
        "raw": b"\x00\xff",
        "ratio": float("inf"),
        "tags": ["a"],
        "counts": {5: "five"},
        "inner": Struct(INNER, {"a": True}),
    },
)


def converter(name: str, **config: str) -> Converter:
    made: Converter = Plugins().make(name, Converter)  # type: ignore[type-abstract]
    made.configure({key.replace("_", "."): value for key, value in config.items()}, False)
    return made


@pytest.mark.parametrize("config", [{}, {"decimal_format": "numeric"}])
def test_json_brings_everything_back(config: dict[str, str]) -> None:
    json_converter = converter("JsonConverter", **config)
    data_ = json_converter.from_connect("t", EVERYTHING, VALUE)
    found = json_converter.to_connect("t", data_)
    assert found.schema == EVERYTHING
    assert found.value == VALUE
    assert data_ is not None
    assert json.loads(data_)["payload"]["cost"] == (-12.3 if config else "+zI=")


@pytest.mark.parametrize(
    ("number", "text"),
    [(0.0, "0.0"), (1.5, "1.5"), (0.001, "0.001"), (1e-4, "1.0E-4"), (12345678.9, "1.23456789E7"), (1e7, "1.0E7"),
     (-1e300, "-1.0E300"), (float("nan"), "NaN"), (float("-inf"), "-Infinity")],
)  # fmt: skip
def test_numbers_as_java_prints_them(number: float, text: str) -> None:
    assert java_text(number) == text


def test_nothing_is_no_value_without_schemas() -> None:
    assert converter("JsonConverter", schemas_enable="false").to_connect("t", b"").value is None
    with pytest.raises(DataError):
        converter("JsonConverter").to_connect("t", b"")


def test_json_without_schemas() -> None:
    plain = converter("JsonConverter", schemas_enable="false")
    assert plain.to_connect("t", b'{"a": [1, 2.5, null]}').value == {"a": [1, 2.5, None]}
    assert plain.to_connect("t", None).value is None
    assert plain.from_connect("t", EVERYTHING.as_optional(), None) == b"null"
    assert plain.from_connect("t", None, None) is None
    assert plain.from_connect("t", None, {"d": Decimal("1.5"), "b": b"a"}) == b'{"d":"Dw==","b":"YQ=="}'
    with pytest.raises(DataError, match="requires"):
        converter("JsonConverter").to_connect("t", b'{"a": 1}')
    with pytest.raises(DataError):
        plain.from_connect("t", None, object())


def _enveloped(schema: str, payload: str) -> bytes:
    return f'{{"schema": {schema}, "payload": {payload}}}'.encode()


_DECIMAL = '{"type": "bytes", "name": "org.apache.kafka.connect.data.Decimal", "parameters": {"scale": "2"}}'
_TIMESTAMP = '{"type": "int64", "name": "org.apache.kafka.connect.data.Timestamp"}'
_DOUBLE = '{"type": "double"}'
_MAP = '{"type": "map", "keys": {"type": "int32"}, "values": {"type": "int32"}}'


@pytest.mark.parametrize(
    ("schema", "payload", "problem"),
    [
        (_DECIMAL, "1.255", "does not fit the scale"),
        (_DECIMAL, "1e999999999", "does not fit the scale"),
        (_DOUBLE, "9007199254740993", "an integer is not exactly representable as a double"),
        (_DOUBLE, '"5"', "a string is not a number"),
        (_TIMESTAMP, '"x"', "Invalid JSON for schema"),
        (_TIMESTAMP, "true", "Invalid JSON for schema"),
        (_MAP, "[[1, 2], [1, 3]]", "a duplicate key"),
    ],
)
def test_json_that_does_not_fit_its_schema_is_refused(schema: str, payload: str, problem: str) -> None:
    with pytest.raises(DataError, match=problem):
        converter("JsonConverter").to_connect("t", _enveloped(schema, payload))


@pytest.mark.parametrize(
    ("schema", "payload", "value"),
    [(_DECIMAL, "1.2", Decimal("1.20")), (_DECIMAL, "9" * 40, Decimal("9" * 40 + ".00")),
     (_DOUBLE, "1234567890123456800", 1234567890123456800.0), (_DOUBLE, '"-Infinity"', float("-inf"))],
)  # fmt: skip
def test_json_that_fits_its_schema_is_read(schema: str, payload: str, value: Any) -> None:
    """JavaScript programs write a double of 19 digits with zeros at its end."""
    assert converter("JsonConverter").to_connect("t", _enveloped(schema, payload)).value == value


def test_an_integer_that_is_no_double_is_no_value_of_a_double() -> None:
    check_value(data.FLOAT64, 1 << 60)
    for value in ((1 << 53) + 1, 10**400):
        with pytest.raises(DataError, match="not exactly representable as a double"):
            check_value(data.FLOAT64, value)


def test_a_string_that_looks_like_a_marked_decimal_stays_a_string() -> None:
    numeric = converter("JsonConverter", schemas_enable="false", decimal_format="NUMERIC")
    assert isinstance(numeric, JsonConverter)
    odd = '{"a":"12"}\\" \\\\'
    made = numeric.from_connect("t", None, {"s": odd, "d": Decimal("0.10")})
    assert made is not None
    assert json.loads(made) == {"s": odd, "d": 0.1}
    assert made.endswith(b'"d":0.10}')


@pytest.mark.parametrize(
    ("name", "schema", "value", "wire"),
    [
        ("org.apache.kafka.connect.storage.StringConverter", data.STRING, "ä", b"\xc3\xa4"),
        ("org.apache.kafka.connect.converters.ByteArrayConverter", data.BYTES, b"a", b"a"),
        ("ShortConverter", data.INT16, -2, b"\xff\xfe"),
        ("IntegerConverter", data.INT32, 1, b"\0\0\0\1"),
        ("LongConverter", data.INT64, 1, b"\0" * 7 + b"\1"),
        ("FloatConverter", data.FLOAT32, 0.5, b"?\0\0\0"),
        ("DoubleConverter", data.FLOAT64, 0.5, b"?\xe0" + b"\0" * 6),
        ("BooleanConverter", data.BOOLEAN, True, b"\1"),
    ],
)
def test_primitive_converters(name: str, schema: Schema, value: Any, wire: bytes) -> None:
    made = converter(name)
    assert made.from_connect("t", schema, value) == wire
    assert made.to_connect("t", wire).value == value
    assert made.to_connect("t", None).value is None


def test_bytes_that_a_converter_does_not_take() -> None:
    for name, wire in (("IntegerConverter", b"\0"), ("StringConverter", b"\xff"), ("JsonConverter", b"\xff")):
        with pytest.raises(DataError):
            converter(name).to_connect("t", wire)
    with pytest.raises(DataError):
        converter("IntegerConverter").from_connect("t", data.STRING, "a")


def test_transforms_are_found_by_kafkas_names_with_their_side() -> None:
    record = SourceRecord(topic="t", key={"a": 1}, value={"a": 2}, headers=(Header("h", "v"),))
    for side, expected in (("Key", (1, {"a": 2})), ("Value", ({"a": 1}, 2))):
        made: Transform = Plugins().make(f"ExtractField${side}", Transform)  # type: ignore[type-abstract]
        made.configure({"field": "a"})
        done = made.apply(record)
        assert done is not None
        assert (done.key, done.value) == expected
    for name in (
        "ExtractField",
        "parley.pipeline.connect.transforms.fields:ExtractField",
        "json:dumps",
        "absent.Class",
    ):
        with pytest.raises(ConfigError):
            Plugins().load(name, Transform)  # type: ignore[type-abstract]


def test_forms_of_java() -> None:
    moment = dt.datetime(2023, 7, 4, 15, 6, 7, 89_000, tzinfo=dt.UTC)
    for pattern, text in {
        "yyyy-MM-dd'T'HH:mm:ss.SSSX": "2023-07-04T15:06:07.089Z",
        "EEEE, d MMMM yy, h 'o''clock' a": "Tuesday, 4 July 23, 3 o'clock PM",
        "D k K": "185 15 3",
    }.items():
        assert JavaDateFormat(pattern).format(moment) == text
    assert JavaDateFormat("yyyy-MM-dd'T'HH:mm:ss.SSSX").parse("2023-07-04T17:06:07.089+02:00") == moment
    with pytest.raises(DataError):
        JavaDateFormat("yyyy").parse("none")
    with pytest.raises(ConfigError):
        JavaDateFormat("YYYY-ww")
    assert java_replacement(r"$1-${name}\$\\n") == r"\g<1>-\g<name>$\\n"


def test_offsets_in_a_file_outlive_the_worker(tmp_path: Any) -> None:
    store = FileOffsetStore(tmp_path / "offsets")
    store.start()
    store.store("c", [({"file": "a"}, {"position": 1}), ({"file": "b"}, {"position": 2})])
    store.store("c", [({"file": "b"}, None)])
    again = FileOffsetStore(tmp_path / "offsets")
    again.start()
    assert again.get("c", [{"file": "a"}, {"file": "b"}]) == [{"position": 1}, None]
    assert again.all("c") == [({"file": "a"}, {"position": 1})]
    assert again.all("other") == []


@pytest.mark.parametrize("number", [-(1 << 63), (1 << 63) - 1])
def test_the_limits_of_64_bits_are_integers_in_a_text(number: int) -> None:
    assert text_values.parse(str(number)) == SchemaAndValue(data.INT64, number)
