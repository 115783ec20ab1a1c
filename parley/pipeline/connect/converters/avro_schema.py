"""Converts Avro schemas to Connect schemas, and back.

Avro's logical types become those of Connect (decimal, date, time, timestamp) or, if Connect has no such type, their
primitive types. Microseconds are read, but not written: Connect's schemas have milliseconds. A union with null becomes
an optional schema; other unions are refused. INT8 and INT16, which Avro lacks, are marked with ``connect.type``. A map
whose keys are not strings is an array of records with a key and a value, as in other Kafka converters.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from parley.pipeline.connect import data
from parley.pipeline.connect.data import Field, LogicalType, Schema, SchemaType
from parley.pipeline.connect.errors import DataError

_RECORD: Final = "ConnectDefault"
_ENTRY: Final = "MapEntry"
_ENTRY_FIELDS: Final = ("key", "value")
_PRIMITIVES: Final[Mapping[str, Schema]] = {
    "boolean": data.BOOLEAN,
    "int": data.INT32,
    "long": data.INT64,
    "float": data.FLOAT32,
    "double": data.FLOAT64,
    "bytes": data.BYTES,
    "string": data.STRING,
}
_SMALL: Final = {"int8": data.INT8, "int16": data.INT16}
_LOGICAL: Final[Mapping[str, Schema]] = {
    "date": data.DATE,
    "time-millis": data.TIME,
    "time-micros": data.TIME,
    "timestamp-millis": data.TIMESTAMP,
    "timestamp-micros": data.TIMESTAMP,
}
_AVRO: Final[Mapping[SchemaType, Any]] = {
    SchemaType.INT8: {"type": "int", "connect.type": "int8"},
    SchemaType.INT16: {"type": "int", "connect.type": "int16"},
    SchemaType.INT32: "int",
    SchemaType.INT64: "long",
    SchemaType.FLOAT32: "float",
    SchemaType.FLOAT64: "double",
    SchemaType.BOOLEAN: "boolean",
    SchemaType.STRING: "string",
    SchemaType.BYTES: "bytes",
}
_AVRO_LOGICAL: Final[Mapping[str, Any]] = {
    LogicalType.DATE: {"type": "int", "logicalType": "date"},
    LogicalType.TIME: {"type": "int", "logicalType": "time-millis"},
    LogicalType.TIMESTAMP: {"type": "long", "logicalType": "timestamp-millis"},
}
_PRECISION: Final = 64


def to_avro(schema: Schema) -> Any:
    """Return the Avro schema as parsed JSON. Raises DataError."""
    return _to_avro(schema, {})


def _to_avro(schema: Schema, named: dict[str, Schema]) -> Any:
    made = _required(schema, named)
    return ["null", made] if schema.optional else made


def _required(schema: Schema, named: dict[str, Schema]) -> Any:
    if schema.name in _AVRO_LOGICAL:
        return _AVRO_LOGICAL[schema.name or ""]
    if schema.name == LogicalType.DECIMAL:
        scale = int(schema.parameters.get(LogicalType.SCALE, "0"))
        return {"type": "bytes", "logicalType": "decimal", "precision": _PRECISION, "scale": scale}
    match schema.type:
        case SchemaType.ARRAY:
            return {"type": "array", "items": _to_avro(_given(schema.value_schema), named)}
        case SchemaType.MAP:
            return _map_to_avro(_given(schema.key_schema), _given(schema.value_schema), named)
        case SchemaType.STRUCT:
            return _record_to_avro(schema, named)
    return _AVRO[schema.type]


def _map_to_avro(keys: Schema, values: Schema, named: dict[str, Schema]) -> Any:
    if keys.type is SchemaType.STRING and not keys.optional:
        return {"type": "map", "values": _to_avro(values, named)}
    fields = {"key": keys, "value": values}
    name = f"{_ENTRY}{len(named)}" if named else _ENTRY
    named[name] = keys
    entry = [{"name": one, "type": _to_avro(schema, named)} for one, schema in fields.items()]
    return {"type": "array", "items": {"type": "record", "name": name, "fields": entry}}


def _record_to_avro(schema: Schema, named: dict[str, Schema]) -> Any:
    name = schema.name or (f"{_RECORD}{len(named) + 1}" if named else _RECORD)
    known = named.get(name)
    if known is not None:
        if known.as_optional() != schema.as_optional():
            raise DataError(f"Two different schemas have the name {name}: in Avro, each needs its own name.")
        return name
    named[name] = schema
    fields = []
    for one in schema.fields:
        field: dict[str, Any] = {"name": one.name, "type": _to_avro(one.schema, named)}
        if one.schema.optional:
            field["default"] = None
        fields.append(field)
    made: dict[str, Any] = {"type": "record", "name": name, "fields": fields}
    if schema.version is not None:
        made["connect.version"] = schema.version
    if schema.doc is not None:
        made["doc"] = schema.doc
    return made


def from_avro(schema: Any) -> Schema:
    """Return the Connect schema for an Avro schema in parsed JSON. Raises DataError if Connect has no such type."""
    return _from_avro(schema, {})


def _from_avro(given: Any, named: dict[str, Schema]) -> Schema:
    if isinstance(given, list):
        kept = [one for one in given if one != "null"]
        if len(kept) != 1:
            raise DataError(
                f"An Avro union of {len(kept)} types has no Connect schema: only null and one type are possible."
            )
        inner = _from_avro(kept[0], named)
        return inner.as_optional() if len(kept) < len(given) else inner
    if isinstance(given, str):
        found = _PRIMITIVES.get(given) or named.get(given)
        if found is None:
            raise DataError(f"Unknown Avro type {given}.")
        return found
    if not isinstance(given, Mapping):
        raise DataError(f"{given!r} is not an Avro schema.")
    return _from_object(given, named)


def _from_object(given: Mapping[str, Any], named: dict[str, Schema]) -> Schema:
    kind, logical = given.get("type"), given.get("logicalType")
    if logical == "decimal":
        return data.decimal(int(given.get("scale", 0)))
    if logical in _LOGICAL:
        return _LOGICAL[str(logical)]
    match kind:
        case "record":
            return _from_record(given, named)
        case "enum":
            return _remember(given, data.STRING, named)
        case "fixed":
            return _remember(given, data.BYTES, named)
        case "array":
            items = _from_avro(given["items"], named)
            if _is_entry(items):
                return data.map_of(items.fields[0].schema, items.fields[1].schema)
            return data.array(items)
        case "map":
            return data.map_of(data.STRING, _from_avro(given["values"], named))
        case "int" if given.get("connect.type") in _SMALL:
            return _SMALL[given["connect.type"]]
    return _from_avro(kind, named)


def _from_record(given: Mapping[str, Any], named: dict[str, Schema]) -> Schema:
    fields = tuple(
        Field(one["name"], at, _from_avro(one["type"], named)) for at, one in enumerate(given.get("fields", ()))
    )
    name = _full_name(given)
    simple = name.rpartition(".")[2]
    schema = Schema(
        SchemaType.STRUCT,
        name=None if simple.startswith(_RECORD) else name,
        version=given.get("connect.version"),
        doc=given.get("doc"),
        fields=fields,
        parameters={_ENTRY: ""} if simple.startswith(_ENTRY) else {},
    )
    return _remember(given, schema, named)


def _full_name(given: Mapping[str, Any]) -> str:
    name, space = str(given.get("name", "")), given.get("namespace")
    return f"{space}.{name}" if space and "." not in name else name


def _remember(given: Mapping[str, Any], schema: Schema, named: dict[str, Schema]) -> Schema:
    named[str(given.get("name", ""))] = named[_full_name(given)] = schema
    return schema


def _is_entry(schema: Schema) -> bool:
    return _ENTRY in schema.parameters and tuple(one.name for one in schema.fields) == _ENTRY_FIELDS


def _given(schema: Schema | None) -> Schema:
    if schema is None:
        raise DataError("the schema of an array or a map lacks the schema of its elements")
    return schema
