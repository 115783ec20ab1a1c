"""Decodes values of any schema to values of JSON, for people.

Rules: a value is decoded with the schema with which it was written. Times are ISO texts, bytes are base64, decimals
stay ``Decimal``, an enum is a name, or a number if its schema does not know it. The size of the data bounds a reader's
work: Avro arrays whose items take no bytes are refused, and a value has at most ``VALUES_MAX`` parts. Avro records that
contain themselves are decoded by fastavro's reader in Python, because its compiled reader overflows the stack.
"""

from __future__ import annotations

import base64
import datetime as dt
import io
import json
import math
from collections.abc import Callable, Mapping
from decimal import Decimal
from typing import Any, Final

from parley.pipeline.schemas.avro import NAMED, PRIMITIVES, expanded
from parley.pipeline.schemas.json_schema import parsed
from parley.pipeline.schemas.model import BadSchema, Loader, Schema, SchemaType
from parley.pipeline.schemas.protobuf import in_order, is_map, message_at, messages_of, place_of

__all__ = ["VALUES_MAX", "Read", "reader"]

VALUES_MAX: Final = 50_000
"""The maximum number of parts of a value: what a person can still use, and a few megabytes."""

Read = Callable[[bytes, int], Any]
"""Decodes data from a position on. Raises ValueError with the reason."""


def reader(schema: Schema, load: Loader, *, is_framed: bool = True) -> Read:
    """Return the function that decodes data of a schema. Blocks. Raises BadSchema, and the errors of ``load``.

    In framed data, a Protobuf message is preceded by its place in the file; otherwise it is the file's first.
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
            raise ValueError(f"it is not a message {kind.DESCRIPTOR.full_name}") from None
        return _Parts().message(message)

    return read


def _avro(schema: Schema, load: Loader) -> Read:
    import fastavro
    from fastavro import _read_py

    names: dict[str, Any] = {}
    tree = expanded(schema, load, names)
    shape = _Shape(names)
    if shape.has_endless_arrays(tree):
        raise BadSchema("The Avro schema has an array whose items take no bytes, so its data has no bound")
    decode = (_read_py if shape.contains_itself(tree) else fastavro).schemaless_reader

    def read(data: bytes, begin: int) -> Any:
        stream = io.BytesIO(data)
        stream.seek(begin)
        try:
            value = decode(stream, tree, None)
        except RecursionError:
            raise ValueError("the data is nested too deeply") from None
        except Exception as error:  # malformed bytes can make the reader raise any error
            reason = "it ends too early" if isinstance(error, EOFError) else f"{type(error).__name__}, {error}"
            raise ValueError(f"the data is damaged, or was written with another schema ({reason})") from None
        if stream.tell() != len(data):
            raise ValueError(f"{len(data) - stream.tell()} bytes are left over")
        return _Parts().value(value)

    return read


class _Shape:
    """Questions about an Avro schema with these named types."""

    def __init__(self, names: Mapping[str, Any]) -> None:
        self._names = names

    def contains_itself(self, root: Any) -> bool:
        """Return True if a named type is part of itself."""
        open_names: set[str] = set()
        done: set[str] = set()

        def visit(node: Any) -> bool:
            name = node["name"] if isinstance(node, dict) and node["type"] in NAMED else ""
            if name in done or name in open_names:
                return name in open_names
            if name:
                open_names.add(name)
            found = any(visit(one) for one in self._parts(node))
            if name:
                open_names.remove(name)
                done.add(name)
            return found

        return visit(self._resolved(root))

    def has_endless_arrays(self, root: Any) -> bool:
        """Return True if an array has items that take no bytes: a few bytes of data could announce billions of them."""
        done: set[str] = set()

        def visit(node: Any) -> bool:
            if isinstance(node, dict) and node["type"] in NAMED:
                if node["name"] in done:
                    return False
                done.add(node["name"])
            if isinstance(node, dict) and node["type"] == "array" and self._is_empty(node["items"], set()):
                return True
            return any(visit(one) for one in self._parts(node))

        return visit(self._resolved(root))

    def _is_empty(self, given: Any, within: set[str]) -> bool:
        """Return True if a value of the type takes no bytes."""
        node = self._resolved(given)
        if not isinstance(node, dict):
            return isinstance(node, str) and node == "null"
        if node["type"] == "fixed":
            return bool(node["size"] == 0)
        if node["type"] in ("record", "error"):
            if node["name"] in within:
                return False
            inner = within | {node["name"]}
            return all(self._is_empty(one["type"], inner) for one in node["fields"])
        return node["type"] not in ("array", "map", "enum") and self._is_empty(node["type"], within)

    def _parts(self, node: Any) -> list[Any]:
        if isinstance(node, list):
            return [self._resolved(one) for one in node]
        if not isinstance(node, dict):
            return []
        if "fields" in node:
            return [self._resolved(one["type"]) for one in node["fields"]]
        inner = node.get("items", node.get("values", node["type"] if node["type"] not in NAMED else None))
        return [] if inner is None else [self._resolved(inner)]

    def _resolved(self, node: Any) -> Any:
        return self._names.get(node, node) if isinstance(node, str) and node not in PRIMITIVES else node


class _Parts:
    """Converts one value, and counts its parts. The methods raise ValueError if there are too many."""

    def __init__(self) -> None:
        self._left = VALUES_MAX

    def value(self, given: Any) -> Any:
        """Return a value of fastavro or of JSON."""
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
        """Return a Protobuf message. A field with presence is null if it is not set."""
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
