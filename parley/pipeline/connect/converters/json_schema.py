"""Schemas as JSON, as in the field ``schema`` of the JSON converter's envelope."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, Final

from parley.pipeline.connect.data import Field, Schema, SchemaType
from parley.pipeline.connect.errors import DataError

_TYPES: Final = {one.value: one for one in SchemaType}

Convert = Callable[[Schema, Any], Any]


def to_json(schema: Schema, convert: Convert) -> dict[str, Any]:
    """Return the schema as JSON. ``convert`` converts a default value to JSON."""
    made: dict[str, Any] = {"type": schema.type.value}
    if schema.type is SchemaType.ARRAY:
        made["items"] = to_json(_given(schema.value_schema), convert)
    elif schema.type is SchemaType.MAP:
        made["keys"] = to_json(_given(schema.key_schema), convert)
        made["values"] = to_json(_given(schema.value_schema), convert)
    elif schema.type is SchemaType.STRUCT:
        made["fields"] = [{**to_json(one.schema, convert), "field": one.name} for one in schema.fields]
    made["optional"] = schema.optional
    parts = {"name": schema.name, "version": schema.version, "doc": schema.doc}
    made |= {name: value for name, value in parts.items() if value is not None}
    if schema.parameters:
        made["parameters"] = dict(schema.parameters)
    if schema.default is not None:
        made["default"] = convert(schema, schema.default)
    return made


def from_json(given: Any, convert: Convert) -> Schema:
    """Return the schema that the JSON describes. ``convert`` reads a default value from JSON. Raises DataError."""
    if not isinstance(given, Mapping) or not isinstance(given.get("type"), str):
        raise DataError("Schema must contain 'type' field")
    kind = _TYPES.get(given["type"])
    if kind is None:
        raise DataError(f"Unknown schema type: {given['type']}")
    parameters = given.get("parameters") or {}
    if not isinstance(parameters, Mapping):
        raise DataError("Invalid schema parameters: they must be an object of strings")
    schema = Schema(
        kind,
        optional=given.get("optional") is True,
        name=_text(given, "name"),
        version=_version(given),
        doc=_text(given, "doc"),
        parameters=_parameters(parameters),
        fields=_fields(given, convert) if kind is SchemaType.STRUCT else (),
        key_schema=from_json(given.get("keys"), convert) if kind is SchemaType.MAP else None,
        value_schema=_value_schema(given, kind, convert),
    )
    return schema if given.get("default") is None else _with_default(schema, convert(schema, given["default"]))


def _value_schema(given: Mapping[str, Any], kind: SchemaType, convert: Convert) -> Schema | None:
    name = {SchemaType.ARRAY: "items", SchemaType.MAP: "values"}.get(kind)
    return None if name is None else from_json(given.get(name), convert)


def _fields(given: Mapping[str, Any], convert: Convert) -> tuple[Field, ...]:
    fields = given.get("fields")
    if not isinstance(fields, list):
        raise DataError('Struct schema\'s "fields" argument is not an array.')
    made: list[Field] = []
    for one in fields:
        if not isinstance(one, Mapping) or not isinstance(one.get("field"), str):
            raise DataError("Struct schema's field name not specified properly")
        made.append(Field(one["field"], len(made), from_json(one, convert)))
    return tuple(made)


def _text(given: Mapping[str, Any], name: str) -> str | None:
    value = given.get(name)
    if value is not None and not isinstance(value, str):
        raise DataError(f"Invalid schema {name}: it must be a string")
    return value


def _version(given: Mapping[str, Any]) -> int | None:
    value = given.get("version")
    if value is not None and (not isinstance(value, int) or isinstance(value, bool)):
        raise DataError("Invalid schema version: it must be an integer")
    return value


def _parameters(given: Mapping[str, Any]) -> dict[str, str]:
    if not all(isinstance(one, str) for one in given.values()):
        raise DataError("Schema parameters must have string values.")
    return dict(given)


def _with_default(schema: Schema, default: Any) -> Schema:
    return replace(schema, default=default)


def _given(schema: Schema | None) -> Schema:
    if schema is None:
        raise DataError("the schema of an array or a map lacks the schema of its elements")
    return schema
