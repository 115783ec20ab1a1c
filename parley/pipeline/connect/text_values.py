"""Converts values to text and back without a schema, as the simple header converter does (KIP-145).

Text becomes the narrowest type that fits: null, booleans, whole numbers (INT8 up to INT64, then Decimal), fractions
(FLOAT64), dates, times and timestamps in ISO 8601, arrays and maps in brackets. Anything else stays text.
"""

from __future__ import annotations

import base64
import datetime as dt
import json
import re
from collections.abc import Mapping
from decimal import Decimal
from typing import Any, Final

from parley.pipeline.connect import data
from parley.pipeline.connect.data import NO_VALUE, Schema, SchemaAndValue, Struct

_NUMBER: Final = re.compile(r"[+-]?[0-9]{1,100}")
_FRACTION: Final = re.compile(r"[+-]?[0-9]{0,50}\.?[0-9]{1,50}([eE][+-]?[0-9]{1,3})?")
_DATE: Final = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}")
_TIME: Final = re.compile(r"[0-9]{2}:[0-9]{2}:[0-9]{2}\.[0-9]{3}Z")
_TIMESTAMP: Final = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2}\.[0-9]{3}Z")
_TEXT_MAX: Final = 1 << 20
"""The maximum length of a string that is parsed. A longer one stays a string."""


def to_text(value: Any) -> str:
    """Return a value as text. Strings inside arrays and maps are quoted, so that ``parse`` restores them."""
    return value if isinstance(value, str) else _embedded(value)


def _embedded(value: Any) -> str:
    match value:
        case None:
            return "null"
        case bool():
            return "true" if value else "false"
        case str():
            return json.dumps(value, ensure_ascii=False)
        case bytes() | bytearray() | memoryview():
            return base64.b64encode(value).decode()
        case dt.datetime():
            moment = value.astimezone(dt.UTC) if value.tzinfo else value
            return f"{moment:%Y-%m-%dT%H:%M:%S}.{moment.microsecond // 1000:03}Z"
        case dt.time():
            return f"{value:%H:%M:%S}.{value.microsecond // 1000:03}Z"
        case dt.date():
            return value.isoformat()
        case list() | tuple():
            return "[" + ",".join(map(_embedded, value)) + "]"
        case dict():
            return "{" + ",".join(f"{_embedded(key)}:{_embedded(one)}" for key, one in value.items()) + "}"
        case Struct():
            return "{" + ",".join(f"{_embedded(key)}:{_embedded(one)}" for key, one in value.items()) + "}"
        case _:
            return str(value)


def parse(text: str | None) -> SchemaAndValue:
    """Return the value that a string stands for, and its schema. Never fails: anything unrecognized is text."""
    if text is None or text == "null":
        return NO_VALUE
    stripped = text.strip()
    if not stripped or len(text) > _TEXT_MAX:
        return SchemaAndValue(data.STRING, text)
    if stripped in ("true", "false"):
        return SchemaAndValue(data.BOOLEAN, stripped == "true")
    found = _number(stripped) or _moment(stripped) or _container(stripped)
    return found or SchemaAndValue(data.STRING, text)


def _number(text: str) -> SchemaAndValue | None:
    if _NUMBER.fullmatch(text):
        number = int(text)
        return SchemaAndValue(_narrowest(number), number if -(1 << 63) <= number < 1 << 63 else Decimal(number))
    if _FRACTION.fullmatch(text):
        return SchemaAndValue(data.FLOAT64, float(text))
    return None


def _narrowest(number: int) -> Schema:
    for schema, bits in ((data.INT8, 7), (data.INT16, 15), (data.INT32, 31), (data.INT64, 63)):
        if -(1 << bits) <= number < 1 << bits:
            return schema
    return data.decimal(0)


def _moment(text: str) -> SchemaAndValue | None:
    try:
        if _DATE.fullmatch(text):
            return SchemaAndValue(data.DATE, dt.date.fromisoformat(text))
        if _TIME.fullmatch(text):
            return SchemaAndValue(data.TIME, dt.time.fromisoformat(text[:-1]))
        if _TIMESTAMP.fullmatch(text):
            return SchemaAndValue(data.TIMESTAMP, dt.datetime.fromisoformat(text[:-1]).replace(tzinfo=dt.UTC))
    except ValueError:
        return None
    return None


def _container(text: str) -> SchemaAndValue | None:
    """Return an array, a map or a quoted string in JSON; None for anything else."""
    if text[0] not in '[{"':
        return None
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return None
    return SchemaAndValue(infer_schema(value), value)


def infer_schema(value: Any) -> Schema | None:
    """Return the schema of a value, by its Python class; None if it has no schema.

    These have no schema: None, an integer of more than 64 bits, an object of an unknown class, and a list or map that
    is empty or has elements of different types.
    """
    match value:
        case None:
            return None
        case bool():
            return data.BOOLEAN
        case int():
            return data.INT64 if -(1 << 63) <= value < 1 << 63 else None
        case float():
            return data.FLOAT64
        case str():
            return data.STRING
        case bytes() | bytearray() | memoryview():
            return data.BYTES
        case Decimal():
            exponent = value.as_tuple().exponent
            return data.decimal(-exponent) if isinstance(exponent, int) else None
        case dt.datetime():
            return data.TIMESTAMP
        case dt.date():
            return data.DATE
        case dt.time():
            return data.TIME
        case Struct():
            return value.schema
        case list() | tuple():
            element = _common(value)
            return None if element is None else data.array(element)
        case Mapping():
            keys, values = _common(value), _common(value.values())
            return None if keys is None or values is None else data.map_of(keys, values)
        case _:
            return None


def _common(values: Any) -> Schema | None:
    """Return the schema that all values except nulls share, optional if there are nulls; None if there is no such
    schema.
    """
    inferred = [infer_schema(one) for one in values]
    known = {one for one in inferred if one is not None}
    if len(known) != 1:
        return None
    schema = known.pop()
    missing = any(one is None for one in values)
    return schema.as_optional() if missing else schema if None not in inferred else None
