"""Reads values of records by their schema, from JSON or Avro, into columns. Pure decisions, no I/O.

JSON has no types for some values, so the schema decides what a string or number means: a timestamp (ISO 8601, or
milliseconds), a date, a decimal, bytes (base64). The result must be an exact value of its column
(``parley.pipeline.values.exact``), as in Connect's sinks: 5.5 is not an integer, and 5 is not a string.
"""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import MAXYEAR, MINYEAR, UTC, date, datetime, time, timedelta
from decimal import Decimal
from math import isfinite
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from parley.pipeline.schemas import avro_rows
from parley.pipeline.schemas.client import unframed
from parley.pipeline.schemas.model import Schema, no_references
from parley.pipeline.values.exact import exact_array, number_of
from parley.pipeline.values.json_text import finite

NOT_FITTING: Final = (
    ValueError, TypeError, ArithmeticError, LookupError, EOFError, RecursionError, pa.ArrowException,
)  # fmt: skip
"""The exceptions that mean that a value does not fit its schema."""
_BYTE_ORDER_MARK: Final = "\ufeff"
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_FINER_THAN_MICROSECONDS: Final = re.compile(r"[.,][0-9]{6}[0-9]*[1-9]")
_SHORTER_THAN_MICROSECONDS: Final = len("20261121T16.000000")


@dataclass(frozen=True, slots=True)
class ValueSchema:
    """The schema of a value: its Arrow type, and for Avro its definition."""

    type: pa.DataType
    avro: Schema | None = None


def reader(kind: str, schema: ValueSchema) -> Callable[[list[bytes | None]], pa.Array]:
    """Return a function that reads values encoded as ``json``, ``avro`` or ``avro-confluent`` into an array of the
    schema's type.

    The function raises one of ``NOT_FITTING`` if a value does not fit.
    """
    if kind == "json":
        read, typed = _json_reader(schema.type), _typed_column
    else:
        assert schema.avro is not None
        read, typed = _avro_reader(schema.avro, is_framed=kind == "avro-confluent"), None
    return lambda some: exact_array([None if data is None else read(data) for data in some], schema.type, typed)


def _json_reader(kind: pa.DataType) -> Callable[[bytes], Any]:
    decoder = json.JSONDecoder(parse_float=Decimal if _has_decimal(kind) else finite)
    scan: Callable[[str, int], tuple[Any, int]] = json.scanner.make_scanner(decoder)  # type: ignore[attr-defined]

    def read(data: bytes) -> Any:
        text = data.decode().lstrip(_BYTE_ORDER_MARK)
        try:
            value, end = scan(text, 0)
        except StopIteration:
            end = -1
        return value if end == len(text) else decoder.decode(text)  # with space around it, or not JSON

    return read


def _avro_reader(schema: Schema, *, is_framed: bool) -> Callable[[bytes], Any]:
    read = avro_rows.reader(schema, schema, no_references, of_files=True)
    return lambda data: read(data, unframed(data)[1] if is_framed else 0)


def _has_decimal(kind: pa.DataType) -> bool:
    if pa.types.is_nested(kind):
        return any(_has_decimal(kind.field(each).type) for each in range(kind.num_fields))
    return bool(pa.types.is_decimal(kind))


def _typed_column(values: Sequence[Any], kind: pa.DataType) -> Any:
    """Convert JSON values to the schema's type, as ``_typed`` does. Arrow converts columns of times as a whole."""
    if pa.types.is_timestamp(kind) and set(map(type, values)) <= {str, type(None)}:
        try:
            found = pa.array(values, pa.string()).cast(kind)
        except (pa.ArrowException, UnicodeEncodeError):
            pass  # Arrow knows fewer forms of ISO 8601
        else:
            years = pc.min_max(pc.year(found)).as_py()
            if years["min"] is None or (years["min"] >= MINYEAR and years["max"] <= MAXYEAR):
                return found
    return [_typed(value, kind) for value in values]


def _typed(value: Any, kind: pa.DataType) -> Any:
    """Convert a JSON value to the form of the schema's type. A value of another shape stays unchanged: the rule in
    ``values`` then rejects it.
    """
    if isinstance(value, dict) and pa.types.is_struct(kind):
        return {one.name: _typed(value.get(one.name), one.type) for one in kind}
    if isinstance(value, list) and pa.types.is_list(kind):
        return [_typed(one, kind.value_type) for one in value]
    if isinstance(value, dict) and pa.types.is_map(kind):
        return {key: _typed(one, kind.item_type) for key, one in value.items()}
    if pa.types.is_floating(kind) and isinstance(value, Decimal):
        return finite(str(value))
    if pa.types.is_timestamp(kind) and isinstance(value, str | int | float | Decimal):
        return _timestamp(value, has_zone=kind.tz is not None)
    if not isinstance(value, str):
        return value
    if pa.types.is_date(kind):
        return date.fromisoformat(value)
    if pa.types.is_decimal(kind):
        return Decimal(value)
    if pa.types.is_binary(kind):
        return base64.b64decode(value, validate=True)
    return value


def _timestamp(value: Any, *, has_zone: bool) -> datetime:
    if isinstance(value, str) and not has_zone:
        return _from_iso(value)
    found = moment(value)
    return found if has_zone else found.replace(tzinfo=None)


def _from_iso(text: str) -> datetime:
    """Parse a time in ISO 8601. Raises ValueError for a malformed time, and if digits would be lost."""
    if len(text) > _SHORTER_THAN_MICROSECONDS and _FINER_THAN_MICROSECONDS.search(text):
        raise ValueError("a time must not be finer than microseconds")
    return datetime.fromisoformat(text)


def moment(value: Any) -> datetime:
    """Parse a time in UTC: from ISO 8601 (UTC if it has no zone), from milliseconds since 1970, or from a date.

    Raises one of ``NOT_FITTING``.
    """
    if isinstance(value, str):
        value = _from_iso(value)
    elif isinstance(value, date) and not isinstance(value, datetime):
        value = datetime(value.year, value.month, value.day, tzinfo=UTC)
    if isinstance(value, datetime):
        return value.astimezone(UTC) if value.tzinfo else value.replace(tzinfo=UTC)
    ms = number_of(value)
    if ms is None or ms * 1000 != int(ms * 1000):
        raise ValueError("a time in milliseconds must have at most three decimal places")
    return _EPOCH + timedelta(microseconds=int(ms * 1000))


def jsonable(value: Any, kind: pa.DataType) -> Any:
    """Convert a value of this type for ``dumps``: bytes to base64, times to ISO 8601, NaN and infinity to text."""
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
