"""Schemas of values as users write them: Avro, JSON Schema, or Spark's DDL.

A text that begins with a brace, a bracket or a quotation mark is JSON: one with ``properties`` a JSON Schema, else an
Avro schema. Anything else is DDL (``id bigint, name string``), which Spark itself reads.
"""

from __future__ import annotations

import json
from typing import Any, Final

import pyarrow as pa

from parley.pipeline.load.columns import BadLayout
from parley.pipeline.load.value_reading import ValueSchema

_MICROS: Final = pa.timestamp("us", tz="UTC")
_AVRO: Final[dict[str, pa.DataType]] = {
    "null": pa.null(),
    "boolean": pa.bool_(),
    "int": pa.int32(),
    "long": pa.int64(),
    "float": pa.float32(),
    "double": pa.float64(),
    "bytes": pa.binary(),
    "string": pa.string(),
    "enum": pa.string(),
}
_LOGICAL: Final[dict[str, pa.DataType]] = {
    "date": pa.date32(),
    "timestamp-millis": _MICROS,
    "timestamp-micros": _MICROS,
    "local-timestamp-millis": pa.timestamp("us"),
    "local-timestamp-micros": pa.timestamp("us"),
    "time-millis": pa.time32("ms"),
    "time-micros": pa.time64("us"),
}
_JSON: Final[dict[str, pa.DataType]] = {
    "string": pa.string(),
    "integer": pa.int64(),
    "number": pa.float64(),
    "boolean": pa.bool_(),
}
_JSON_FORMATS: Final[dict[str, pa.DataType]] = {"date-time": _MICROS, "date": pa.date32()}


def read_schema(text: str) -> ValueSchema:
    """The schema that a text describes. Raises BadLayout; a DDL text needs a running Spark."""
    if not text.strip():
        raise BadLayout("the schema is empty")
    if text.strip()[0] not in '{["':
        return _from_ddl(text)
    try:
        parsed = json.loads(text)
    except ValueError as error:
        raise BadLayout(f"the schema is no JSON: {error}") from None
    try:
        if isinstance(parsed, dict) and "properties" in parsed:
            return ValueSchema(_json_type(parsed))
        return ValueSchema(_avro_type(parsed, {}), parsed)
    except (KeyError, TypeError, ValueError) as error:
        raise BadLayout(f"the schema cannot be used: {error}") from None


def _from_ddl(text: str) -> ValueSchema:
    from pyspark.errors import PySparkException
    from pyspark.sql.pandas.types import to_arrow_type
    from pyspark.sql.types import StructType

    try:
        return ValueSchema(to_arrow_type(StructType.fromDDL(text), timezone="UTC"))
    except PySparkException as error:
        raise BadLayout(f"the schema is neither JSON nor DDL: {error}") from None


def _avro_type(schema: Any, named: dict[str, pa.DataType]) -> pa.DataType:
    """The Arrow type of an Avro schema. Raises KeyError and ValueError."""
    if isinstance(schema, list):
        rest = [one for one in schema if one != "null"]
        if len(rest) != 1:
            raise ValueError("a union of several types has no column type")
        return _avro_type(rest[0], named)
    if isinstance(schema, str):
        found = _AVRO.get(schema) or named.get(schema)
        if found is None:
            raise ValueError(f"there is no type {schema}")
        return found
    kind = schema["type"]
    if "logicalType" in schema:
        if schema["logicalType"] == "decimal":
            return pa.decimal128(schema["precision"], schema.get("scale", 0))
        if schema["logicalType"] in _LOGICAL:
            return _LOGICAL[schema["logicalType"]]
    if kind == "record":
        made = pa.struct([(one["name"], _avro_type(one["type"], named)) for one in schema["fields"]])
    elif kind == "array":
        made = pa.list_(_avro_type(schema["items"], named))
    elif kind == "map":
        made = pa.map_(pa.string(), _avro_type(schema["values"], named))
    elif kind == "fixed":
        made = pa.binary(schema["size"])
    else:
        made = _avro_type(kind, named)
    if "name" in schema:
        named[schema["name"]] = made
        named[f"{schema.get('namespace', '')}.{schema['name']}"] = made
    return made


def _json_type(schema: Any) -> pa.DataType:
    """The Arrow type of a JSON Schema. Raises KeyError and ValueError."""
    kind = schema.get("type", "object" if "properties" in schema else None)
    if isinstance(kind, list):
        kinds = [one for one in kind if one != "null"]
        if len(kinds) != 1:
            raise ValueError(f"a value of several types ({', '.join(kinds)}) has no column type")
        kind = kinds[0]
    if kind == "object":
        if "properties" in schema:
            return pa.struct([(name, _json_type(one)) for name, one in schema["properties"].items()])
        return pa.map_(pa.string(), _json_type(schema["additionalProperties"]))
    if kind == "array":
        return pa.list_(_json_type(schema["items"]))
    if kind not in _JSON:
        raise ValueError(f"there is no type {kind}")
    return _JSON_FORMATS.get(schema.get("format", ""), _JSON[kind])
