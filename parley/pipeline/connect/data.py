"""Connect's data: schemas, structs and logical types, with Kafka's names (KIP-26).

A value without a schema is any JSON-like Python value. With a schema, the schema's type decides:

======================  ================================================================================
INT8 .. INT64           ``int`` in the type's range
FLOAT32, FLOAT64        ``float`` (``int`` is accepted too)
BOOLEAN, STRING, BYTES  ``bool``, ``str``, ``bytes`` (``bytearray`` and ``memoryview`` are accepted too)
ARRAY, MAP              ``list``, ``dict``
STRUCT                  ``Struct``
======================  ================================================================================

A logical type is a primitive type with a name: Decimal (BYTES, ``decimal.Decimal``), Date (INT32, ``datetime.date``),
Time (INT32, ``datetime.time``) and Timestamp (INT64, ``datetime.datetime`` in UTC). ``None`` is a value of every
optional schema. Schemas never change. A struct is filled field by field, and checks each field.
"""

from __future__ import annotations

import dataclasses
import datetime as dt
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from decimal import Decimal
from enum import Enum
from types import MappingProxyType
from typing import Any, Final

from parley.pipeline.connect.errors import DataError


class SchemaType(Enum):
    """A schema's type. The value is its name in JSON."""

    INT8 = "int8"
    INT16 = "int16"
    INT32 = "int32"
    INT64 = "int64"
    FLOAT32 = "float"
    FLOAT64 = "double"
    BOOLEAN = "boolean"
    STRING = "string"
    BYTES = "bytes"
    ARRAY = "array"
    MAP = "map"
    STRUCT = "struct"

    @property
    def is_primitive(self) -> bool:
        return self not in (SchemaType.ARRAY, SchemaType.MAP, SchemaType.STRUCT)


class LogicalType:
    """The names of the logical types in schemas, and the parameter with a decimal's scale."""

    DECIMAL: Final = "org.apache.kafka.connect.data.Decimal"
    DATE: Final = "org.apache.kafka.connect.data.Date"
    TIME: Final = "org.apache.kafka.connect.data.Time"
    TIMESTAMP: Final = "org.apache.kafka.connect.data.Timestamp"
    SCALE: Final = "scale"


@dataclass(frozen=True, slots=True)
class Field:
    """A field of a struct: its name, its index, and the schema of its values."""

    name: str
    index: int
    schema: Schema


@dataclass(frozen=True, slots=True, eq=False)
class Schema:
    """The shape of a value. Use the constants and functions of this module, or the constructor.

    ``fields`` are the fields of a struct. ``value_schema`` is the schema of an array's elements or a map's values,
    ``key_schema`` that of a map's keys. Schemas with equal parts are equal. Raises DataError if the parts contradict
    each other.
    """

    type: SchemaType
    optional: bool = False
    default: Any = None
    name: str | None = None
    version: int | None = None
    doc: str | None = None
    parameters: Mapping[str, str] = dataclasses.field(default_factory=dict)
    fields: tuple[Field, ...] = ()
    key_schema: Schema | None = None
    value_schema: Schema | None = None
    _by_name: Mapping[str, Field] = dataclasses.field(default_factory=dict, init=False, repr=False)
    _hash: int = dataclasses.field(default=0, init=False, repr=False)

    def __post_init__(self) -> None:
        if self.type is SchemaType.ARRAY and self.value_schema is None:
            raise DataError("The schema of an array needs the schema of its elements.")
        if self.type is SchemaType.MAP and (self.key_schema is None or self.value_schema is None):
            raise DataError("The schema of a map needs the schemas of its keys and of its values.")
        by_name = {one.name: one for one in self.fields}
        if len(by_name) != len(self.fields):
            raise DataError(f"The schema {self.name or 'of a struct'} has two fields with the same name.")
        object.__setattr__(self, "_by_name", by_name)
        if self.default is not None:
            check_value(self, self.default)
        object.__setattr__(self, "_hash", hash((self.type, self.optional, self.name, self.version, self.fields)))

    def __eq__(self, other: object) -> bool:
        if self is other:
            return True
        return isinstance(other, Schema) and self._hash == other._hash and self._parts() == other._parts()

    def __hash__(self) -> int:
        return self._hash

    def __getstate__(self) -> tuple[Any, ...]:
        return (*self._parts()[:6], dict(self.parameters), *self._parts()[7:])

    def __setstate__(self, state: tuple[Any, ...]) -> None:
        Schema.__init__(self, *state)

    def _parts(self) -> tuple[Any, ...]:
        return (
            self.type,
            self.optional,
            self.default,
            self.name,
            self.version,
            self.doc,
            self.parameters,
            self.fields,
            self.key_schema,
            self.value_schema,
        )

    def field(self, name: str) -> Field | None:
        """Return the field with this name; None if there is none."""
        return self._by_name.get(name)

    def as_optional(self, default: Any = None) -> Schema:
        """Return this schema as an optional schema with this default."""
        return replace(self, optional=True, default=default)

    def named(self, name: str, version: int | None = None, doc: str | None = None) -> Schema:
        """Return this schema with this name, version and documentation. None removes a version or documentation."""
        return replace(self, name=name, version=version, doc=doc)

    def __repr__(self) -> str:
        inner = ", ".join(f"{one.name}: {one.schema!r}" for one in self.fields)
        name = f" {self.name}" if self.name else ""
        return f"<{self.type.name}{name}{'?' if self.optional else ''}{' ' + inner if inner else ''}>"


@dataclass(frozen=True, slots=True)
class SchemaAndValue:
    """A value and its schema, which is None if the value has none."""

    schema: Schema | None
    value: Any


NO_VALUE: Final = SchemaAndValue(None, None)

INT8: Final = Schema(SchemaType.INT8)
INT16: Final = Schema(SchemaType.INT16)
INT32: Final = Schema(SchemaType.INT32)
INT64: Final = Schema(SchemaType.INT64)
FLOAT32: Final = Schema(SchemaType.FLOAT32)
FLOAT64: Final = Schema(SchemaType.FLOAT64)
BOOLEAN: Final = Schema(SchemaType.BOOLEAN)
STRING: Final = Schema(SchemaType.STRING)
BYTES: Final = Schema(SchemaType.BYTES)
OPTIONAL_INT32: Final = INT32.as_optional()
OPTIONAL_INT64: Final = INT64.as_optional()
OPTIONAL_FLOAT64: Final = FLOAT64.as_optional()
OPTIONAL_BOOLEAN: Final = BOOLEAN.as_optional()
OPTIONAL_STRING: Final = STRING.as_optional()
OPTIONAL_BYTES: Final = BYTES.as_optional()
DATE: Final = Schema(SchemaType.INT32, name=LogicalType.DATE, version=1)
TIME: Final = Schema(SchemaType.INT32, name=LogicalType.TIME, version=1)
TIMESTAMP: Final = Schema(SchemaType.INT64, name=LogicalType.TIMESTAMP, version=1)


def decimal(scale: int) -> Schema:
    """Return the schema of decimals with this many digits after the point."""
    parameters = {LogicalType.SCALE: str(scale)}
    return Schema(SchemaType.BYTES, name=LogicalType.DECIMAL, version=1, parameters=parameters)


def struct(fields: Mapping[str, Schema], *, name: str | None = None, version: int | None = None) -> Schema:
    """Return the schema of structs with these fields, in this order."""
    placed = tuple(Field(one, index, schema) for index, (one, schema) in enumerate(fields.items()))
    return Schema(SchemaType.STRUCT, name=name, version=version, fields=placed)


def array(of: Schema) -> Schema:
    """Return the schema of lists of these values."""
    return Schema(SchemaType.ARRAY, value_schema=of)


def map_of(keys: Schema, values: Schema) -> Schema:
    """Return the schema of maps from these keys to these values."""
    return Schema(SchemaType.MAP, key_schema=keys, value_schema=values)


class Struct:
    """A record with the fields of its schema. ``struct["name"] = value`` checks the value against the field's schema.

    A field that was not set, or that is None, has its schema's default. Structs with equal schemas and values are
    equal. Raises DataError for an unknown field or a value that does not fit.
    """

    __slots__ = ("schema", "values")

    def __init__(self, schema: Schema, values: Mapping[str, Any] = MappingProxyType({})) -> None:
        """Create a struct with these values of fields. Raises DataError if ``schema`` is not that of a struct, or a
        value does not fit.
        """
        if schema.type is not SchemaType.STRUCT:
            raise DataError(f"A struct needs the schema of a struct, not {schema!r}.")
        self.schema = schema
        self.values: dict[str, Any] = {}
        for name, value in values.items():
            self[name] = value

    def __getitem__(self, name: str) -> Any:
        """Return the field's value; the schema's default if it was not set or is None. Raises DataError if the schema
        has no such field.
        """
        value = self.values.get(name)
        return value if value is not None else self._field(name).schema.default

    def __setitem__(self, name: str, value: Any) -> None:
        check_value(self._field(name).schema, value, name)
        self.values[name] = value

    def get(self, name: str, otherwise: Any = None) -> Any:
        """Return the field's value like ``struct[name]``; ``otherwise`` if the schema has no such field."""
        return self[name] if self.schema.field(name) else otherwise

    def without_default(self, name: str) -> Any:
        """Return the value to which the field was set; None if it was not set."""
        self._field(name)
        return self.values.get(name)

    def items(self) -> Iterator[tuple[str, Any]]:
        """Yield the fields' names and values in the schema's order, with defaults."""
        return ((one.name, self[one.name]) for one in self.schema.fields)

    def validate(self) -> None:
        """Raise DataError if a required field is missing."""
        for one in self.schema.fields:
            check_value(one.schema, self.values.get(one.name), one.name)

    def _field(self, name: str) -> Field:
        found = self.schema.field(name)
        if found is None:
            raise DataError(f"{name} is not a valid field name of {self.schema!r}")
        return found

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Struct):
            return NotImplemented
        return self.schema == other.schema and list(self.items()) == list(other.items())

    def __hash__(self) -> int:
        return hash(self.schema)

    def __repr__(self) -> str:
        return "Struct{" + ",".join(f"{name}={value}" for name, value in self.items() if value is not None) + "}"


_RANGES: Final = {
    SchemaType.INT8: 1 << 7,
    SchemaType.INT16: 1 << 15,
    SchemaType.INT32: 1 << 31,
    SchemaType.INT64: 1 << 63,
}
_FLOATS: Final = (SchemaType.FLOAT32, SchemaType.FLOAT64)
_CLASSES: Final[Mapping[SchemaType, tuple[type, ...]]] = {
    SchemaType.INT8: (int,),
    SchemaType.INT16: (int,),
    SchemaType.INT32: (int,),
    SchemaType.INT64: (int,),
    SchemaType.FLOAT32: (float, int),
    SchemaType.FLOAT64: (float, int),
    SchemaType.BOOLEAN: (bool,),
    SchemaType.STRING: (str,),
    SchemaType.BYTES: (bytes, bytearray, memoryview),
    SchemaType.ARRAY: (list, tuple),
    SchemaType.MAP: (dict,),
    SchemaType.STRUCT: (Struct,),
}
_LOGICAL_CLASSES: Final[Mapping[str, tuple[type, ...]]] = {
    LogicalType.DECIMAL: (Decimal,),
    LogicalType.DATE: (dt.date,),
    LogicalType.TIME: (dt.time,),
    LogicalType.TIMESTAMP: (dt.datetime,),
}


def check_value(schema: Schema, value: Any, name: str = "") -> None:
    """Raise DataError unless the value fits the schema. ``name`` is for the message."""
    if value is None:
        if schema.optional or schema.default is not None:
            return
        raise DataError(f'Invalid value: null used for required field: "{name}", schema type: {schema.type.name}')
    expected = _LOGICAL_CLASSES.get(schema.name or "", _CLASSES[schema.type])
    if not isinstance(value, expected) or (value.__class__ is bool and bool not in expected):
        where = f' for field: "{name}"' if name else ""
        raise DataError(f"Invalid Python object for schema {schema!r}{where}: {type(value).__name__}")
    _check_inside(schema, value, name)


def _check_inside(schema: Schema, value: Any, name: str) -> None:
    if schema.type in _RANGES and isinstance(value, int):
        limit = _RANGES[schema.type]
        if not -limit <= value < limit:
            raise DataError(
                f"{value} is out of the range of {schema.type.name}" + (f" in field {name}" if name else "")
            )
    elif schema.type in _FLOATS and isinstance(value, int) and not _is_double(value):
        raise DataError("an integer is not exactly representable as a double" + (f" in field {name}" if name else ""))
    elif schema.type is SchemaType.STRUCT:
        if value.schema is not schema and not _same_fields(value.schema, schema):
            raise DataError(f'Struct schemas do not match for field "{name}".')
    elif schema.type is SchemaType.ARRAY:
        assert schema.value_schema is not None
        for element in value:
            check_value(schema.value_schema, element, name)
    elif schema.type is SchemaType.MAP:
        assert schema.key_schema is not None
        assert schema.value_schema is not None
        for key, element in value.items():
            check_value(schema.key_schema, key, name)
            check_value(schema.value_schema, element, name)


def _is_double(value: int) -> bool:
    try:
        return float(value) == value
    except OverflowError:
        return False


def _same_fields(one: Schema, other: Schema) -> bool:
    """Return True if a struct of one schema can replace a struct of the other. Ignores whether the schemas are
    optional."""
    return one == other or replace(one, optional=other.optional, default=other.default) == other
