"""Schemas and structs: which values fit, which are rejected, and pickling."""

from __future__ import annotations

import datetime as dt
import pickle
from decimal import Decimal
from typing import Any

import pytest

from parley.pipeline.connect import data
from parley.pipeline.connect.data import Schema, SchemaType, Struct, array, check_value, decimal, map_of, struct
from parley.pipeline.connect.errors import DataError

PERSON = struct(
    {"name": data.STRING, "age": data.OPTIONAL_INT32, "town": data.STRING.as_optional("Ulm")}, name="person"
)


def test_a_struct_reads_as_it_was_filled_and_as_its_defaults() -> None:
    person = Struct(PERSON, {"name": "Ada"})
    assert dict(person.items()) == {"name": "Ada", "age": None, "town": "Ulm"}
    assert person.without_default("town") is None
    assert person.get("unknown", 1) == 1
    assert person == Struct(PERSON, {"name": "Ada", "town": "Ulm"})
    with pytest.raises(DataError, match="shoe is not a valid field name"):
        person["shoe"]
    with pytest.raises(DataError, match='null used for required field: "name"'):
        Struct(PERSON).validate()


def test_schemas_are_equal_by_their_parts_and_can_be_pickled() -> None:
    assert pickle.loads(pickle.dumps(PERSON)) == PERSON
    assert hash(PERSON.as_optional()) != hash(PERSON)
    assert PERSON.as_optional() != PERSON
    assert pickle.loads(pickle.dumps(Struct(PERSON, {"name": "Ada"}))) == Struct(PERSON, {"name": "Ada"})
    assert decimal(2) != decimal(3)


@pytest.mark.parametrize(
    ("schema", "value"),
    [
        (data.INT8, 127),
        (data.INT64, -(1 << 63)),
        (data.FLOAT64, 1),
        (data.BYTES, bytearray(b"a")),
        (array(data.STRING), ["a"]),
        (map_of(data.STRING, data.OPTIONAL_INT32), {"a": None}),
        (data.DATE, dt.date(2020, 1, 1)),
        (data.TIMESTAMP, dt.datetime(2020, 1, 1, tzinfo=dt.UTC)),
        (decimal(1), Decimal("1.5")),
        (data.OPTIONAL_STRING, None),
    ],
)
def test_values_that_fit(schema: Schema, value: Any) -> None:
    check_value(schema, value)


@pytest.mark.parametrize(
    ("schema", "value"),
    [
        (data.INT8, 128),
        (data.INT32, True),
        (data.INT32, 1.0),
        (data.STRING, b"a"),
        (data.STRING, None),
        (array(data.STRING), ["a", 1]),
        (map_of(data.STRING, data.INT32), {1: 1}),
        (data.DATE, 5),
        (decimal(1), 1.5),
        (PERSON, {"name": "Ada"}),
        (PERSON, Struct(struct({"name": data.STRING}))),
    ],
)
def test_values_that_do_not(schema: Schema, value: Any) -> None:
    with pytest.raises(DataError):
        check_value(schema, value)


def test_schemas_that_make_no_sense() -> None:
    for parts in ({"type": SchemaType.ARRAY}, {"type": SchemaType.MAP}, {"type": SchemaType.INT8, "default": "a"}):
        with pytest.raises(DataError):
            Schema(**parts)
