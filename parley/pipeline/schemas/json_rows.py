"""Converts values of JSON Schema to rows of Arrow, and back, exactly.

Columns: an object with properties is a struct; an object without properties whose additional properties have a schema
is a map; an array with a schema for its items is a list; integer is a long, number a double. ``null`` beside a type
makes it nullable. Anything else (mixed types, ``{}``) is a column of JSON text. In columns ``of_files`` it is rejected,
and the formats ``date-time`` and ``date`` are times. Properties that the reader's schema does not name are left out, as
in the other schema languages. Recursive schemas are rejected.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any, Final

import pyarrow as pa
from pyarrow import types

from parley.pipeline.schemas.json_schema import parsed
from parley.pipeline.schemas.model import BadColumn, BadSchema, Loader, Schema, inside
from parley.pipeline.values.exact import json_value
from parley.pipeline.values.json_text import dumps, loads

_PLAIN: Final = {"string": pa.string(), "integer": pa.int64(), "number": pa.float64(), "boolean": pa.bool_()}
_FORMATS: Final = {"date-time": pa.timestamp("us", tz="UTC"), "date": pa.date32()}
_DEEPEST: Final = 100
_DRAFT: Final = "http://json-schema.org/draft-07/schema#"

Column = tuple[Any, Callable[[Any], Any]]
"""The type of a column, and the function that converts a parsed value to the column's form."""


def _column(schema: Any, resolver: Any, deep: int = 0, *, of_files: bool = False) -> Column:
    if deep > _DEEPEST:
        raise BadSchema("The schema is recursive, which columns cannot represent")
    if isinstance(schema, dict) and isinstance(schema.get("$ref"), str):
        found = resolver.lookup(schema["$ref"])
        return _column(found.contents, found.resolver, deep + 1, of_files=of_files)
    if not isinstance(schema, dict):
        return _any(of_files)
    for name in ("oneOf", "anyOf"):
        if name in schema:
            rest = [one for one in schema[name] if not (isinstance(one, dict) and one.get("type") == "null")]
            return _column(rest[0], resolver, deep + 1, of_files=of_files) if len(rest) == 1 else _any(of_files)
    kinds = schema.get("type", "object" if "properties" in schema else None)
    named = [one for one in (kinds if isinstance(kinds, list) else [kinds]) if one != "null"]
    kind = named[0] if len(named) == 1 else None
    if of_files and kind in _PLAIN and schema.get("format") in _FORMATS:
        return _FORMATS[schema["format"]], _same
    if kind in _PLAIN:
        return _PLAIN[kind], _same
    if kind == "array" and isinstance(schema.get("items"), dict):
        column, convert = _column(schema["items"], resolver, deep + 1, of_files=of_files)
        return pa.list_(column), _each(convert)
    if kind == "object":
        return _object(schema, resolver, deep, of_files=of_files)
    return _any(of_files)


def _object(schema: Any, resolver: Any, deep: int, *, of_files: bool) -> Column:
    if schema.get("properties"):
        fields = {
            name: _column(one, resolver, deep + 1, of_files=of_files) for name, one in schema["properties"].items()
        }
        return pa.struct([(name, one[0]) for name, one in fields.items()]), _fields(fields)
    others = schema.get("additionalProperties")
    if isinstance(others, dict) and others:
        column, convert = _column(others, resolver, deep + 1, of_files=of_files)
        return pa.map_(pa.string(), column), _values(convert)
    return _any(of_files)


def _any(of_files: bool) -> Column:
    if of_files:
        raise BadSchema("A part of the schema has no type, or several types, which columns cannot represent")
    return pa.string(), lambda value: None if value is None else dumps(value, separators=(",", ":"))


def _same(value: Any) -> Any:
    return value


def _each(convert: Callable[[Any], Any]) -> Callable[[Any], Any]:
    return lambda values: [convert(one) for one in values] if isinstance(values, list) else values


def _values(convert: Callable[[Any], Any]) -> Callable[[Any], Any]:
    return lambda given: {k: convert(v) for k, v in given.items()} if isinstance(given, dict) else given


def _fields(fields: dict[str, Column]) -> Callable[[Any], Any]:
    def convert(value: Any) -> Any:
        if not isinstance(value, dict):
            return value  # null, or what does not fit
        return {name: one[1](value.get(name)) for name, one in fields.items()}

    return convert


def column_type(schema: Schema, load: Loader, *, of_files: bool = False) -> pa.DataType:
    """Return the type of a column for values of the schema. Raises BadSchema."""
    found = parsed(schema, load)
    return _column(found.schema, found.resolver, of_files=of_files)[0]


def reader(written: Schema, wanted: Schema, load: Loader) -> Callable[[bytes, int], Any]:
    """Return the function that reads JSON, from a position on, into the column of the ``wanted`` schema.

    JSON can be read without the schema with which it was written, so ``written`` is not used. Raises BadSchema. The
    function raises ValueError.
    """
    found = parsed(wanted, load)
    convert = _column(found.schema, found.resolver)[1]

    def read(data: bytes, begin: int) -> Any:
        try:
            return convert(loads(data[begin:]))
        except RecursionError:
            raise ValueError("the JSON is nested too deeply") from None
        except (UnicodeDecodeError, json.JSONDecodeError) as error:
            raise ValueError(f"it is not JSON: {type(error).__name__}") from None

    return read


def writer(schema: Schema, load: Loader) -> Callable[[Any], bytes]:
    """Return the function that encodes a value of the column. Raises BadSchema.

    The function raises ValueError if the schema does not allow the value.
    """
    from jsonschema.validators import Draft7Validator, validator_for

    found = parsed(schema, load)
    kind, _ = _column(found.schema, found.resolver)
    validator = validator_for(found.schema, default=Draft7Validator)(found.schema, registry=found.registry)
    convert = _back(kind)

    def write(value: Any) -> bytes:
        made = json_value(convert(value))
        error = next(validator.iter_errors(made), None)
        if error is not None:
            raise ValueError(f"the value does not fit its JSON schema: {error.validator} at {error.json_path}")
        return dumps(made, separators=(",", ":")).encode()

    return write


def _back(kind: Any) -> Callable[[Any], Any]:
    """Return the function that converts a column's value to JSON. It leaves out fields that are null."""
    if types.is_struct(kind):

        def fields(value: Any) -> Any:
            if value is None:
                return None
            return {one.name: inner[one.name](value[one.name]) for one in kind if value[one.name] is not None}

        inner = {one.name: _back(one.type) for one in kind}
        return fields
    if types.is_list(kind):
        each = _back(kind.value_type)
        return lambda values: None if values is None else [each(one) for one in values]
    if types.is_map(kind):
        item = _back(kind.item_type)
        return lambda pairs: None if pairs is None else {key: item(one) for key, one in dict(pairs).items()}
    return _same


def derived_text(kind: pa.DataType, before: Schema | None, load: Loader) -> str:
    """Return the text of a schema for a column: objects with optional properties and no others. Raises BadColumn."""
    return json.dumps({"$schema": _DRAFT, **_written(kind)})


def _written(kind: pa.DataType) -> dict[str, Any]:
    if types.is_integer(kind):
        return {"type": "integer"}
    if types.is_boolean(kind):
        return {"type": "boolean"}
    if types.is_floating(kind):
        return {"type": "number"}
    if types.is_string(kind):
        return {"type": "string"}
    if types.is_list(kind):
        return {"type": "array", "items": _nullable(kind.value_type)}
    if types.is_map(kind) and kind.key_type == pa.string():
        return {"type": "object", "additionalProperties": _nullable(kind.item_type)}
    if types.is_struct(kind):
        return {
            "type": "object",
            "properties": {one.name: _property(one) for one in kind},
            "additionalProperties": False,
        }
    raise BadColumn.of_type(kind, "JSON")


def _property(field: pa.Field) -> dict[str, Any]:
    with inside(field.name):
        return _nullable(field.type)


def _nullable(kind: pa.DataType) -> dict[str, Any]:
    return {"oneOf": [{"type": "null"}, _written(kind)]}
