"""The transform that changes the type of some fields, or of the whole key or value (Kafka's ``Cast``)."""

from __future__ import annotations

import base64
import datetime as dt
import math
import struct as packing
from collections.abc import Callable, Mapping
from decimal import Decimal, InvalidOperation
from typing import Any, Final, TypeVar

from parley.pipeline.connect.config import HIGH, LIST, ConfigDef
from parley.pipeline.connect.data import Field, LogicalType, Schema, SchemaType, Struct
from parley.pipeline.connect.errors import ConfigError, DataError
from parley.pipeline.connect.logical_types import FROM_LOGICAL
from parley.pipeline.connect.records import ConnectRecord
from parley.pipeline.connect.text_values import infer_schema, to_text
from parley.pipeline.connect.transforms import REPLACE_NULLS, KeyOrValue, as_map, as_struct, read, struct_like

R = TypeVar("R", bound=ConnectRecord)

_TARGETS: Final[Mapping[str, SchemaType]] = {
    "int8": SchemaType.INT8,
    "int16": SchemaType.INT16,
    "int32": SchemaType.INT32,
    "int64": SchemaType.INT64,
    "float32": SchemaType.FLOAT32,
    "float64": SchemaType.FLOAT64,
    "boolean": SchemaType.BOOLEAN,
    "string": SchemaType.STRING,
}
_BITS: Final = {SchemaType.INT8: 8, SchemaType.INT16: 16, SchemaType.INT32: 32, SchemaType.INT64: 64}
_TIMES: Final = (LogicalType.DATE, LogicalType.TIME, LogicalType.TIMESTAMP)


class Cast(KeyOrValue):
    """Changes types as Java does: fractions are truncated, and numbers too large for their type lose their
    upper bits."""

    config_def = (
        ConfigDef()
        .define("spec", LIST, importance=HIGH)
        .doc(
            "Fields and the types to cast them to, as field1:type,field2:type; or one type for the whole. Types "
            "are int8, int16, int32, int64, float32, float64, boolean and string."
        )
    ) + ConfigDef([REPLACE_NULLS])

    def configure(self, props: Mapping[str, Any]) -> None:
        super().configure(props)
        self._fields: dict[str, SchemaType] = {}
        self._whole: SchemaType | None = None
        for spec in self.config["spec"]:
            field, colon, name = spec.rpartition(":")
            target = _TARGETS.get(name.strip().lower())
            if target is None:
                raise ConfigError(f"Invalid value {spec} for configuration spec: Invalid cast type: {name}")
            if colon:
                self._fields[field.strip()] = target
            elif len(self.config["spec"]) > 1:
                raise ConfigError(
                    "Cast transformations that specify a type to cast the entire value to may only do that."
                )
            else:
                self._whole = target
        if not self.config["spec"]:
            raise ConfigError("Must specify at least one field to cast.")
        self._schemas: dict[Schema, Schema] = {}

    def apply(self, record: R) -> R | None:
        value, schema = self.value_of(record), self.schema_of(record)
        if value is None:
            return record
        if self._whole is not None:
            return self._apply_whole(record, schema, value, self._whole)
        if schema is None:
            given = as_map(value, "cast types")
            cast = {k: _cast(one, self._fields[k], None) if k in self._fields else one for k, one in given.items()}
            return self.changed(record, None, cast)
        struct = as_struct(value, "cast types")
        updated = self._schemas.get(schema)
        if updated is None:
            updated = self._schemas[schema] = struct_like(schema, {one.name: self._field(one) for one in schema.fields})
        made = Struct(updated)
        for field in schema.fields:
            one = read(struct, field, self.config)
            target = self._fields.get(field.name)
            made.values[field.name] = one if target is None else _cast(one, target, field.schema)
        return self.changed(record, updated, made)

    def _apply_whole(self, record: R, schema: Schema | None, value: Any, target: SchemaType) -> R:
        cast = _cast(value, target, schema)
        return self.changed(record, None if schema is None else _typed(schema, target), cast)

    def _field(self, field: Field) -> Schema:
        target = self._fields.get(field.name)
        return field.schema if target is None else _typed(field.schema, target)


def _typed(schema: Schema, target: SchemaType) -> Schema:
    """Return the schema of a cast value. It stays optional or required, and its default is cast too."""
    default = None if schema.default is None else _cast(schema.default, target, schema)
    return Schema(target, optional=schema.optional, default=default, doc=schema.doc)


def _cast(value: Any, target: SchemaType, schema: Schema | None) -> Any:
    if value is None:
        return None
    inferred = infer_schema(value) if schema is None else schema
    if target is SchemaType.STRING:
        return _text(value)
    if inferred is not None and inferred.name in _TIMES and isinstance(value, dt.date | dt.time):
        value = FROM_LOGICAL[inferred.name](inferred, value)
    if not isinstance(value, bool | int | float | str | Decimal):
        raise DataError(f"Cast transformation does not support casting from {type(value).__name__} to {target.name}.")
    try:
        return _CASTS[target](value)
    except (ValueError, InvalidOperation, OverflowError) as error:
        raise DataError(
            f"Value ({value}) was out of range for the requested type, or is not a number: {error}"
        ) from None


def _text(value: Any) -> str:
    if isinstance(value, bytes | bytearray | memoryview):
        return base64.b64encode(value).decode()
    return to_text(value)


def _to_integer(bits: int) -> Callable[[Any], int]:
    limit = 1 << (bits - 1)

    def cast(value: Any) -> int:
        if isinstance(value, str):
            number = int(value)
            if not -limit <= number < limit:
                raise ValueError(f"it does not fit {bits} bits")
            return number
        if isinstance(value, float):
            value = 0 if math.isnan(value) else max(-(1 << 63), min((1 << 63) - 1, value))
        number = int(value)
        return (number + limit) % (2 * limit) - limit

    return cast


def _to_float32(value: Any) -> float:
    """Return the nearest value of a 32-bit float."""
    number = float(value)
    try:
        return float(packing.unpack("f", packing.pack("f", number))[0])
    except OverflowError:
        return math.copysign(math.inf, number)


def _to_boolean(value: Any) -> bool:
    if not isinstance(value, str):
        return bool(value != 0)
    if value.lower() not in ("true", "false"):
        raise ValueError("it is neither true nor false")
    return value.lower() == "true"


_CASTS: Final[Mapping[SchemaType, Callable[[Any], Any]]] = {
    **{kind: _to_integer(bits) for kind, bits in _BITS.items()},
    SchemaType.FLOAT32: _to_float32,
    SchemaType.FLOAT64: float,
    SchemaType.BOOLEAN: _to_boolean,
}
