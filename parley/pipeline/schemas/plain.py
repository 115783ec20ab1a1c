"""Decodes values of any schema to values of JSON, for display.

Rules: a value is decoded with the schema with which it was written. Times are ISO texts, bytes are base64, decimals
stay ``Decimal``, an enum is a name, or a number if its schema does not know it. The size of the data bounds a reader's
work: Avro schemas without such a bound are refused (``avro_shape``), and a value has at most ``VALUES_MAX`` parts.
"""

from __future__ import annotations

import base64
import datetime as dt
import json
import math
from collections.abc import Callable
from decimal import Decimal
from typing import Any, Final

from parley.pipeline.schemas.avro import expanded
from parley.pipeline.schemas.avro_shape import AvroShape
from parley.pipeline.schemas.json_schema import parsed
from parley.pipeline.schemas.model import BadSchema, Loader, Schema, SchemaType
from parley.pipeline.schemas.protobuf import in_order, is_map, message_at, messages_of, place_of

VALUES_MAX: Final = 50_000
"""The maximum number of parts of a value. More would not help a reader; this many take a few megabytes."""

Read = Callable[[bytes, int], Any]
"""A function that decodes data, from a position on. It raises ValueError with the reason."""


def reader(schema: Schema, load: Loader, *, is_framed: bool = True) -> Read:
    """Return the function that decodes data of a schema. Blocks. Raises BadSchema, and the errors of ``load``.

    In framed data, the position of a Protobuf message in its file precedes the message. Other data is of the file's
    first message.
    """
    match schema.type:
        case SchemaType.AVRO:
            return _avro(schema, load)
        case SchemaType.JSON:
            parsed(schema, load)
            return _json
        case SchemaType.PROTOBUF:
            return _protobuf(schema, load, is_framed=is_framed)


def _json(data: bytes, begin: int) -> Any:
    try:
        return _Parts().value(json.loads(data[begin:]))
    except RecursionError:
        raise ValueError("the JSON is nested too deeply") from None
    except (UnicodeDecodeError, json.JSONDecodeError) as error:
        raise ValueError(f"it is not JSON: {error}") from None


def _protobuf(schema: Schema, load: Loader, *, is_framed: bool) -> Read:
    from google.protobuf.message import DecodeError
    from google.protobuf.message_factory import GetMessageClass

    file = messages_of(schema, load)
    if not in_order(file):
        raise BadSchema("The schema has no message")

    kinds: dict[tuple[int, ...], Any] = {}

    def read(data: bytes, begin: int) -> Any:
        place, begin = place_of(data, begin) if is_framed else ((0,), begin)
        kind = kinds.get(place)
        if kind is None:
            kind = kinds[place] = GetMessageClass(message_at(file, place))
        try:
            message = kind.FromString(data[begin:])
        except DecodeError:
            raise ValueError(f"it is not a message of type {kind.DESCRIPTOR.full_name}") from None
        return _Parts().message(message)

    return read


def _avro(schema: Schema, load: Loader) -> Read:
    names: dict[str, Any] = {}
    tree = expanded(schema, load, names)
    decode = AvroShape(names).reader(tree, tree)
    return lambda data, begin: _Parts().value(decode(data, begin))


class _Parts:
    """Converts one value, and counts its parts. The methods raise ValueError if there are too many."""

    def __init__(self) -> None:
        self._left = VALUES_MAX

    def value(self, given: Any) -> Any:
        """Convert a value from fastavro or from JSON."""
        try:
            return self._converted(given)
        except RecursionError:
            raise ValueError("the data is nested too deeply") from None

    def _converted(self, given: Any) -> Any:
        self._count()
        match given:
            case dict():
                return {str(key): self._converted(one) for key, one in given.items()}
            case list() | tuple():
                return [self._converted(one) for one in given]
            case float() if not math.isfinite(given):
                return "NaN" if math.isnan(given) else "Infinity" if given > 0 else "-Infinity"
            case None | bool() | int() | float() | str() | Decimal():
                return given
            case bytes():
                return base64.b64encode(given).decode()
            case dt.datetime() | dt.date() | dt.time():
                return given.isoformat()
            case _:
                return str(given)

    def message(self, message: Any) -> dict[str, Any]:
        """Convert a Protobuf message. A field with presence is null if it is not set."""
        return {field.name: self._field(message, field) for field in message.DESCRIPTOR.fields}

    def _field(self, message: Any, field: Any) -> Any:
        if is_map(field):
            inner = field.message_type.fields_by_name["value"]
            return {str(key): self._one(one, inner) for key, one in getattr(message, field.name).items()}
        if field.is_repeated:
            return [self._one(one, field) for one in getattr(message, field.name)]
        if field.has_presence and not message.HasField(field.name):
            self._count()
            return None
        return self._one(getattr(message, field.name), field)

    def _one(self, value: Any, field: Any) -> Any:
        if field.message_type is not None:
            self._count()
            if field.message_type.full_name == "google.protobuf.Timestamp":
                return _instant(value)
            return self.message(value)
        if field.enum_type is not None and (known := field.enum_type.values_by_number.get(value)) is not None:
            value = known.name
        return self._converted(value)

    def _count(self) -> None:
        self._left -= 1
        if self._left < 0:
            raise ValueError(f"it has more than {VALUES_MAX:,} parts")


def _instant(value: Any) -> str:
    text: str = value.ToJsonString()  # raises ValueError beyond the years 1 to 9999
    return text
