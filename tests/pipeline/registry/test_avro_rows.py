"""Avro as rows: the columns contain what fastavro reads, and fastavro reads what is written from them."""

from __future__ import annotations

import datetime as dt
import io
import json
from decimal import Decimal
from typing import Any

import fastavro
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from parley.pipeline.schemas import avro as avro_schemas
from parley.pipeline.schemas import avro_rows
from parley.pipeline.schemas.model import BadSchema, Schema, SchemaType, no_references
from parley.pipeline.values.exact import DoesNotFit, exact_array

PLAIN: dict[str, st.SearchStrategy[Any]] = {
    "boolean": st.booleans(),
    "int": st.integers(-(1 << 31), (1 << 31) - 1),
    "long": st.integers(-(1 << 63), (1 << 63) - 1),
    "float": st.floats(width=32, allow_nan=False),
    "double": st.floats(allow_nan=False),
    "bytes": st.binary(max_size=8),
    "string": st.text(st.characters(codec="utf-8"), max_size=8),
}
FROM, TO = (dt.datetime(year, 6, 1, tzinfo=dt.UTC).replace(tzinfo=None) for year in (1, 9999))
DECIMAL = {"type": "bytes", "logicalType": "decimal", "precision": 10, "scale": 2}
LONG_DECIMAL = {"type": "bytes", "logicalType": "decimal", "precision": 38, "scale": 18}
LOGICAL: list[tuple[Any, st.SearchStrategy[Any]]] = [
    (LONG_DECIMAL, st.integers(1 - 10**38, 10**38 - 1).map(lambda whole: Decimal(f"{whole}E-18"))),
    (DECIMAL, st.decimals(-99_999_999, 99_999_999, places=2, allow_nan=False)),
    ({"type": "int", "logicalType": "date"}, st.dates()),
    (
        {"type": "long", "logicalType": "timestamp-micros"},
        st.datetimes(FROM, TO, timezones=st.just(dt.UTC)),
    ),
    ({"type": "long", "logicalType": "local-timestamp-micros"}, st.datetimes(FROM, TO)),
]
Typed = tuple[Any, st.SearchStrategy[Any]]
LEAVES: st.SearchStrategy[Typed] = st.sampled_from([*PLAIN.items(), *LOGICAL])


def nested(inner: st.SearchStrategy[Typed]) -> st.SearchStrategy[Typed]:
    return st.one_of(
        inner.map(lambda one: ({"type": "array", "items": one[0]}, st.lists(one[1], max_size=2))),
        inner.map(
            lambda one: ({"type": "map", "values": one[0]}, st.dictionaries(PLAIN["string"], one[1], max_size=2))
        ),
        inner.map(lambda one: (["null", one[0]], st.none() | one[1]) if not isinstance(one[0], list) else one),
    )


def record(*fields: Any, name: str = "R") -> dict[str, Any]:
    return {"type": "record", "name": name, "fields": [{"name": f"f{n}", "type": one} for n, one in enumerate(fields)]}


RECORDS = st.lists(st.recursive(LEAVES, nested, max_leaves=3), min_size=1, max_size=4).flatmap(
    lambda fields: st.tuples(
        st.just(record(*(one[0] for one in fields))),
        st.fixed_dictionaries({f"f{number}": one[1] for number, one in enumerate(fields)}),
    )
)


def schema(avro: Any) -> Schema:
    return Schema(SchemaType.AVRO, json.dumps(avro))


def encoded(avro: Any, value: Any) -> bytes:
    out = io.BytesIO()
    fastavro.schemaless_writer(out, fastavro.parse_schema(avro), value)
    return out.getvalue()


def plain(value: Any) -> Any:
    """Return a value of a column as fastavro would give it: maps of Arrow are lists of pairs."""
    if isinstance(value, list) and all(isinstance(one, tuple) for one in value):
        return {key: plain(one) for key, one in value}
    if isinstance(value, list):
        return [plain(one) for one in value]
    return {key: plain(one) for key, one in value.items()} if isinstance(value, dict) else value


def normal(value: Any) -> Any:
    """Return the value in a form in which Arrow's empty lists and maps are equal."""
    if isinstance(value, dict):
        return {key: normal(one) for key, one in value.items()} or []
    return [normal(one) for one in value] if isinstance(value, list) else value


@given(RECORDS)
def test_avro_is_read_and_written_as_by_fastavro(pair: tuple[Any, Any]) -> None:
    avro, value = pair
    own, data = schema(avro), encoded(avro, value)
    read = avro_rows.reader(own, own, no_references)(data, 0)
    column = exact_array([read], avro_rows.column_type(own, no_references)).to_pylist()[0]
    theirs: Any = fastavro.schemaless_reader(io.BytesIO(data), fastavro.parse_schema(avro), None)
    assert normal(plain(column)) == normal(theirs)
    assert avro_rows.writer(own, no_references)(column) == data


def read_as(written: Any, wanted: Any, value: Any) -> Any:
    return avro_rows.reader(schema(written), schema(wanted), no_references)(encoded(written, value), 0)


def test_evolution_reads_older_and_newer_schemas() -> None:
    old = record("int")
    new = {**old, "fields": [{"name": "f0", "type": "long"}, {"name": "f1", "type": "string", "default": "x"}]}
    assert read_as(old, new, {"f0": 1}) == {"f0": 1, "f1": "x"}
    narrowed = {**old, "fields": [{"name": "f1", "type": "string", "default": "x"}]}
    assert read_as(new, narrowed, {"f0": 1, "f1": "y"}) == {"f1": "y"}
    with pytest.raises(ValueError, match="damaged, or was written with another schema"):
        read_as(new, old, {"f0": 1, "f1": "y"})
    millis, micros = ({"type": "long", "logicalType": f"timestamp-{unit}"} for unit in ("millis", "micros"))
    with pytest.raises(BadSchema, match="values would change"):
        read_as(record(millis), record(micros), {"f0": 0})
    with pytest.raises(BadSchema, match="scale"):
        read_as(record(DECIMAL), record({**DECIMAL, "scale": 3}), {"f0": Decimal("1.00")})


def test_unions_are_structs_of_members() -> None:
    inner = record("int", name="Inner")
    avro = record(["null", "string", inner, "long"])
    own = schema(avro)
    kind = avro_rows.column_type(own, no_references)
    assert [one.name for one in kind.field("f0").type] == ["member0", "member1", "member2"]
    for value, member in (({"f0": 5}, {"member2": 5}), (("x"), {"member0": "x"}), ({"f0": 7}, {"member1": {"f0": 7}})):
        data = encoded(avro, {"f0": ("Inner", {"f0": 7}) if "member1" in member else next(iter(member.values()))})
        read = avro_rows.reader(own, own, no_references)(data, 0)
        assert read == {"f0": member}, value
        assert avro_rows.writer(own, no_references)(exact_array([read], kind).to_pylist()[0]) == data


@pytest.mark.parametrize(
    ("avro", "match"),
    [
        ({"type": "record", "name": "T", "fields": [{"name": "next", "type": ["null", "T"]}]}, "is recursive"),
        ({**DECIMAL, "precision": 40}, "38"),
        (["int", "long", "string"], "indistinguishable members"),
    ],
)
def test_avro_types_without_a_column_type_are_refused(avro: Any, match: str) -> None:
    with pytest.raises(BadSchema, match=match):
        avro_rows.column_type(schema(avro), no_references)


def test_bad_bytes_and_values_are_refused() -> None:
    own = schema(record("string"))
    for data in (b"", b"\x08abc", b"\x02ab", b"\xff" * 12):
        with pytest.raises(ValueError, match=r"damaged|left over"):
            avro_rows.reader(own, own, no_references)(data, 0)
    day = schema(record({"type": "int", "logicalType": "date"}))
    with pytest.raises(DoesNotFit):
        avro_rows.reader(day, day, no_references)(encoded(record("int"), {"f0": 1 << 30}), 0)


def test_a_few_bytes_cannot_announce_billions_of_values() -> None:
    """Even if the reader's schema omits the field, the data has to be skipped."""
    wanted = record("int")
    twice: Any = {"type": "record", "name": "R0", "fields": []}
    for n in range(1, 40):
        twice = record(twice, f"R{n - 1}", name=f"R{n}")
    for large, match in (({"type": "array", "items": "null"}, "no bytes"), (twice, "more than 50,000 fields")):
        with pytest.raises(BadSchema, match=match):
            avro_rows.reader(schema(record("int", large)), schema(wanted), no_references)


def test_deeply_nested_data_does_not_crash_the_reader() -> None:
    chain = {"type": "record", "name": "N", "fields": [{"name": "next", "type": ["null", "N"]}]}
    read = avro_rows.reader(schema(record("int", ["null", chain])), schema(record("int")), no_references)
    assert read(b"\2" + b"\2" * 20 + b"\0", 0) == {"f0": 1}
    with pytest.raises(ValueError, match="nested too deeply"):
        read(b"\2" + b"\2" * 1_000_000 + b"\0", 0)


def test_columns_become_schemas() -> None:
    inner = pa.list_(pa.struct([("c", pa.decimal128(5, 2))]))
    kind = pa.struct([("a", pa.int64()), ("b", inner), ("d", pa.map_(pa.string(), pa.bool_()))])
    own = schema(avro_rows.schema_text(kind, "Row", "space"))
    assert avro_rows.column_type(own, no_references) == kind
    value = {"a": None, "b": [{"c": Decimal("1.20")}, None], "d": [("x", None)]}
    data = avro_rows.writer(own, no_references)(value)
    assert exact_array([avro_rows.reader(own, own, no_references)(data, 0)], kind).to_pylist() == [value]


def test_a_text_that_is_not_json_is_refused_with_one_reason() -> None:
    text = Schema(SchemaType.AVRO, "{")
    with pytest.raises(BadSchema, match=r"^Invalid Avro schema: it is not JSON$"):
        avro_schemas.parsed(text, no_references)
    with pytest.raises(BadSchema, match=r"^The Avro schema cannot be used: it is not JSON$"):
        avro_schemas.expanded(text, no_references)


@pytest.mark.parametrize("text", ["12345678901234567890.123456789012345678", "-" + "9" * 20 + "." + "9" * 18])
def test_all_38_digits_of_a_decimal_come_back(text: str) -> None:
    own, value = schema(record(LONG_DECIMAL)), {"f0": Decimal(text)}
    data = avro_rows.writer(own, no_references)(value)
    whole = int(text.replace(".", ""))
    assert data == encoded(record("bytes"), {"f0": whole.to_bytes(16, "big", signed=True)})
    assert avro_rows.reader(own, own, no_references)(data, 0) == value
