"""One value of a record read by its schema: JSON and Avro as what Arrow takes for a column. Decisions only.

JSON is read strictly where leniency would change data: 5.5 is no integer, ``"abc"`` no list. What is no text where a
text is wanted becomes its JSON; bytes are read as base64, as Spark reads them.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, date, datetime, time
from decimal import Decimal
from io import BytesIO
from math import isfinite
from typing import Any, Final

import pyarrow as pa

from parley.pipeline.json_text import dumps

NOT_FITTING: Final = (
    ValueError, TypeError, ArithmeticError, LookupError, EOFError, RecursionError, pa.ArrowException,
)  # fmt: skip
"""What reading a value raises that does not fit its schema."""
_CONFLUENT_BYTES: Final = 5
_LOGICAL_READ: Final = frozenset(
    {
        "date", "decimal", "local-timestamp-micros", "local-timestamp-millis", "time-micros", "time-millis",
        "timestamp-micros", "timestamp-millis",
    }
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class ValueSchema:
    """The schema of a value: its type in Arrow, and for Avro its definition as parsed JSON."""

    type: pa.DataType
    avro: Any = None


def reader(kind: str, schema: ValueSchema) -> Callable[[bytes], Any]:
    """What reads a value as ``json``, ``avro`` or ``avro-confluent``; it raises one of `NOT_FITTING`."""
    if kind == "json":
        exact = Decimal if _has_decimal(schema.type) else None
        return lambda data: fitted(json.loads(data, parse_float=exact), schema.type)
    import fastavro

    parsed = fastavro.parse_schema(_without_unread(schema.avro))
    if kind == "avro":
        return lambda data: _datum(fastavro, parsed, data)

    def framed(data: bytes) -> Any:
        if data[:1] != b"\0" or len(data) < _CONFLUENT_BYTES:
            raise ValueError("it does not begin with a zero byte and a schema's number")
        return _datum(fastavro, parsed, data[_CONFLUENT_BYTES:])

    return framed


def _has_decimal(kind: pa.DataType) -> bool:
    if pa.types.is_nested(kind):
        return any(_has_decimal(kind.field(each).type) for each in range(kind.num_fields))
    return bool(pa.types.is_decimal(kind))


def _without_unread(schema: Any) -> Any:
    """An Avro schema without the logical types whose columns have the type below them (a UUID's is string)."""
    if isinstance(schema, list):
        return [_without_unread(one) for one in schema]
    if not isinstance(schema, dict):
        return schema
    return {
        key: value if key in ("default", "symbols") else _without_unread(value)
        for key, value in schema.items()
        if key != "logicalType" or value in _LOGICAL_READ
    }


def _datum(fastavro: Any, schema: Any, data: bytes) -> Any:
    stream = BytesIO(data)
    value = fastavro.schemaless_reader(stream, schema, None)
    if stream.tell() != len(data):
        raise ValueError("bytes are left over behind the datum")
    return value


def fitted(value: Any, kind: pa.DataType) -> Any:
    """A value of JSON as one that Arrow takes for this type. Raises one of `NOT_FITTING`."""
    if value is None:
        return None
    if pa.types.is_struct(kind):
        _want(value, dict, "an object")
        return {one.name: fitted(value.get(one.name), one.type) for one in kind}
    if pa.types.is_list(kind):
        _want(value, list, "a list")
        return [fitted(one, kind.value_type) for one in value]
    if pa.types.is_map(kind):
        _want(value, dict, "an object")
        return [(key, fitted(one, kind.item_type)) for key, one in value.items()]
    return _plain(value, kind)


def _plain(value: Any, kind: pa.DataType) -> Any:
    if pa.types.is_timestamp(kind):
        return moment(value)
    if pa.types.is_date(kind):
        return date.fromisoformat(value)
    if pa.types.is_string(kind):
        if isinstance(value, str):
            return value
        return dumps(value, separators=(",", ":"))
    if pa.types.is_integer(kind) and not isinstance(value, bool) and isinstance(value, float | Decimal):
        if value != int(value):
            raise ValueError(f"an integer is wanted, not {value}")
        return int(value)
    if pa.types.is_floating(kind) and not isinstance(value, str | bool):
        return float(value)
    if pa.types.is_decimal(kind):
        return Decimal(_no_boolean(value))
    if pa.types.is_binary(kind):
        return base64.b64decode(value, validate=True)
    return _no_boolean(value) if not pa.types.is_boolean(kind) else value


def _want(value: Any, kind: type, name: str) -> None:
    if not isinstance(value, kind):
        raise TypeError(f"{name} is wanted, not {type(value).__name__}")


def _no_boolean(value: Any) -> Any:
    if isinstance(value, bool):
        raise TypeError("a boolean stands where none is wanted")
    return value


def moment(value: Any) -> datetime:
    """A moment in UTC, from ISO 8601 (UTC where no zone is given), milliseconds since 1970, or a date.

    Raises one of `NOT_FITTING`.
    """
    if isinstance(value, str):
        value = datetime.fromisoformat(value)
    elif isinstance(value, date) and not isinstance(value, datetime):
        value = datetime(value.year, value.month, value.day, tzinfo=UTC)
    if isinstance(value, datetime):
        return value.astimezone(UTC) if value.tzinfo else value.replace(tzinfo=UTC)
    return datetime.fromtimestamp(float(_no_boolean(value)) / 1000, UTC)


def jsonable(value: Any, kind: pa.DataType) -> Any:
    """A value of this type for `dumps`: bytes as base64, moments as ISO 8601, what is no number as text."""
    if value is None:
        return None
    if pa.types.is_struct(kind):
        return {one.name: jsonable(value[one.name], one.type) for one in kind}
    if pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind):
        return [jsonable(one, kind.value_type) for one in value]
    if pa.types.is_map(kind):
        return {key: jsonable(one, kind.item_type) for key, one in value}
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    if isinstance(value, datetime | date | time):
        return value.isoformat()
    is_json = isfinite(value) if isinstance(value, float) else isinstance(value, str | int | Decimal)
    return value if is_json else str(value)
