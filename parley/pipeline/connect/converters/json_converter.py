"""JSON, with or without a schema for each value (Kafka's ``JsonConverter``).

With ``schemas.enable`` (the default), a value is ``{"schema": ..., "payload": ...}``, and the schema may be null.
Without it, the value is the payload alone. Bytes are base64. A map whose keys are strings is an object, any other map
is an array of pairs. Without a schema, whole numbers are read as INT64 and fractions as FLOAT64.
"""

from __future__ import annotations

import base64
import binascii
import json
import math
from collections.abc import Mapping
from decimal import Context, Decimal, DecimalException, Inexact, InvalidOperation
from typing import Any, Final

from parley.pipeline.connect.config import BOOLEAN, HIGH, INT, LOW, STRING, ConfigDef, one_of
from parley.pipeline.connect.converters import ConverterOfBoth, json_schema
from parley.pipeline.connect.data import NO_VALUE, LogicalType, Schema, SchemaAndValue, SchemaType, Struct, check_value
from parley.pipeline.connect.errors import DataError
from parley.pipeline.connect.logical_types import FROM_LOGICAL, TO_LOGICAL
from parley.pipeline.connect.text_values import infer_schema
from parley.pipeline.values.json_text import dumps, finite

_NOT_AN_ENVELOPE: Final = (
    'JsonConverter with schemas.enable requires "schema" and "payload" fields and may not contain additional fields. '
    "If you are trying to deserialize plain JSON data, set schemas.enable=false in your converter configuration."
)
_SCHEMAS_MAX: Final = 1000
_NO_NUMBERS: Final = frozenset({"NaN", "Infinity", "-Infinity"})
"""The doubles for which JSON has no numbers, as Kafka writes them."""
_EXACT: Final = Context(prec=1000, traps=[Inexact, InvalidOperation])

CONFIG: Final = (
    ConfigDef()
    .group("Schemas")
    .define("schemas.enable", BOOLEAN, True, HIGH, display_name="Enable Schemas")
    .doc("Include schemas within each of the serialized values and keys.")
    .define("schemas.cache.size", INT, _SCHEMAS_MAX, HIGH, display_name="Schema Cache Size")
    .doc("The maximum number of schemas that can be cached in this converter instance.")
    .group("Serialization")
    .define(
        "decimal.format",
        STRING,
        "BASE64",
        LOW,
        validator=one_of("BASE64", "NUMERIC", ignore_case=True),
        display_name="Decimal Format",
    )
    .doc("How decimals are written: BASE64 (the unscaled value's bytes) or NUMERIC (a number).")
    .group("Schemas")
    .define("replace.null.with.default", BOOLEAN, True, LOW, display_name="Replace null with default")
    .doc("Whether a field that is null is written as its default (KIP-581).")
)


class JsonConverter(ConverterOfBoth):
    config_def = CONFIG

    def configure(self, props: Mapping[str, Any], is_key: bool) -> None:
        super().configure(props, is_key)
        self._has_schemas: bool = self.config["schemas.enable"]
        self._numeric: bool = self.config["decimal.format"].upper() == "NUMERIC"
        self._fill_defaults: bool = self.config["replace.null.with.default"]
        self._cache_size: int = self.config["schemas.cache.size"]
        self._as_json: dict[Schema, dict[str, Any]] = {}
        self._as_schema: dict[str, Schema] = {}

    # To bytes.

    def from_connect(self, topic: str, schema: Schema | None, value: Any) -> bytes | None:
        if schema is None and value is None:
            return None
        made = self._to_json(schema, value)
        if self._has_schemas:
            made = {"schema": None if schema is None else self._schema_json(schema), "payload": made}
        try:
            return dumps(made, separators=(",", ":")).encode()
        except (TypeError, ValueError) as error:
            raise DataError(f"Converting to JSON failed for a value of topic {topic}: {error}") from error

    def _schema_json(self, schema: Schema) -> dict[str, Any]:
        known = self._as_json.get(schema)
        if known is None:
            known = json_schema.to_json(schema, self._to_json)
            if len(self._as_json) < self._cache_size:
                self._as_json[schema] = known
        return known

    def _to_json(self, schema: Schema | None, value: Any) -> Any:
        if value is None:
            return self._null(schema)
        if schema is None:
            return self._plain(value)
        if schema.name in FROM_LOGICAL:
            return self._logical(schema, value)
        if schema.type.is_primitive:
            check_value(schema, value)
        match schema.type:
            case SchemaType.STRUCT:
                if not isinstance(value, Struct):
                    raise DataError(f"Invalid type for a struct: {type(value).__name__}")
                return {one.name: self._to_json(one.schema, value.values.get(one.name)) for one in schema.fields}
            case SchemaType.ARRAY:
                return [self._to_json(schema.value_schema, one) for one in value]
            case SchemaType.MAP:
                pairs = [
                    (self._to_json(schema.key_schema, k), self._to_json(schema.value_schema, v))
                    for k, v in value.items()
                ]
                texts = schema.key_schema is not None and schema.key_schema.type is SchemaType.STRING
                return dict(pairs) if texts else pairs
            case SchemaType.BYTES:
                return base64.b64encode(value).decode()
            case SchemaType.FLOAT32 | SchemaType.FLOAT64:
                return _float(value)
            case _:
                return value

    def _null(self, schema: Schema | None) -> Any:
        if schema is None:
            return None
        if schema.default is not None and self._fill_defaults:
            return self._to_json(schema, schema.default)
        if schema.optional:
            return None
        raise DataError("Conversion error: null value for field that is required and has no default value")

    def _logical(self, schema: Schema, value: Any) -> Any:
        check_value(schema, value)
        if schema.name == LogicalType.DECIMAL and self._numeric:
            return value
        primitive = FROM_LOGICAL[schema.name or ""](schema, value)
        return base64.b64encode(primitive).decode() if isinstance(primitive, bytes) else primitive

    def _plain(self, value: Any) -> Any:
        """Convert a value without a schema, by its Python class. Raises DataError."""
        match value:
            case bool() | int() | str():
                return value
            case float():
                return _float(value)
            case bytes() | bytearray() | memoryview():
                return base64.b64encode(value).decode()
            case Struct():
                return self._to_json(value.schema, value)
            case Mapping():
                pairs = [(self._to_json(None, key), self._to_json(None, one)) for key, one in value.items()]
                return dict(pairs) if all(isinstance(key, str) for key in value) else pairs
            case list() | tuple():
                return [self._to_json(None, one) for one in value]
        schema = infer_schema(value)
        if schema is None:
            raise DataError(f"Python class {type(value).__name__} does not have corresponding schema type.")
        return self._logical(schema, value)

    # From bytes.

    def to_connect(self, topic: str, data: bytes | None) -> SchemaAndValue:
        if data is None or not (self._has_schemas or data.strip()):
            return NO_VALUE
        try:
            given = json.loads(data, parse_float=Decimal if self._has_schemas else finite)
        except (ValueError, RecursionError) as error:
            raise DataError(f"Converting bytes of topic {topic} from JSON failed: {error}") from None
        if not self._has_schemas:
            return SchemaAndValue(None, given)
        if not isinstance(given, dict) or given.keys() != {"schema", "payload"}:
            raise DataError(_NOT_AN_ENVELOPE)
        schema = None if given["schema"] is None else self._schema_of(given["schema"])
        return SchemaAndValue(schema, self._from_json(schema, given["payload"]))

    def _schema_of(self, given: Any) -> Schema:
        text = json.dumps(given, sort_keys=True)
        known = self._as_schema.get(text)
        if known is None:
            known = json_schema.from_json(given, self._from_json)
            if len(self._as_schema) < self._cache_size:
                self._as_schema[text] = known
        return known

    def _from_json(self, schema: Schema | None, given: Any) -> Any:
        if schema is None:
            return _plain_numbers(given)
        if given is None:
            if schema.default is not None and self._fill_defaults:
                return schema.default
            if schema.optional:
                return None
            raise DataError(f"Invalid null value for required {schema.type.name} field")
        value = self._typed(schema, given)
        if schema.name in TO_LOGICAL and not isinstance(value, Decimal):
            if isinstance(value, bool) or not isinstance(value, int | bytes):
                raise DataError(f"Invalid JSON for schema {schema!r}: {type(value).__name__}")
            value = TO_LOGICAL[schema.name or ""](schema, value)
        if schema.type.is_primitive:
            check_value(schema, value)
        return value

    def _typed(self, schema: Schema, given: Any) -> Any:
        match schema.type, given:
            case SchemaType.STRUCT, dict():
                made = Struct(schema)
                for one in schema.fields:
                    made.values[one.name] = self._from_json(one.schema, given.get(one.name))
                return made
            case SchemaType.ARRAY, list():
                return [self._from_json(schema.value_schema, one) for one in given]
            case SchemaType.MAP, dict() | list():
                return self._map(schema, given)
            case SchemaType.BYTES, _:
                return _bytes_of(schema, given)
            case ((SchemaType.FLOAT32 | SchemaType.FLOAT64), (Decimal() | int() | str())) if not isinstance(
                given, bool
            ):
                return _float_of(given)
            case _:
                return given

    def _map(self, schema: Schema, given: dict[str, Any] | list[Any]) -> dict[Any, Any]:
        pairs = list(given.items()) if isinstance(given, dict) else given
        if not all(isinstance(pair, list | tuple) and len(pair) == 2 for pair in pairs):
            raise DataError("Found invalid map entry instead of a pair")
        found = {self._from_json(schema.key_schema, k): self._from_json(schema.value_schema, v) for k, v in pairs}
        if len(found) < len(pairs):
            raise DataError("Found a map with a duplicate key")
        return found


def _float(value: float) -> float | str:
    """Return the number for JSON. NaN and infinities become their names, as Kafka writes them."""
    if math.isfinite(value):
        return value
    return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"


def _float_of(given: Decimal | int | str) -> float:
    """Return the double nearest to a fraction. For an integer, return the double whose shortest decimal form is this
    integer.

    Raises DataError if there is none, or if the number is too large.
    """
    if isinstance(given, str) and given not in _NO_NUMBERS:
        raise DataError("a string is not a number")
    try:
        found = float(given)
    except OverflowError:
        raise DataError("a number is too large for a double") from None
    if math.isinf(found) and not isinstance(given, str):
        raise DataError("a number is too large for a double")
    if isinstance(given, int) and Decimal(repr(found)) != given:
        raise DataError("an integer is not exactly representable as a double")
    return found


def _bytes_of(schema: Schema, given: Any) -> Any:
    """Decode bytes from base64, or return the decimal if it was written as a number. Raises DataError."""
    if schema.name == LogicalType.DECIMAL and isinstance(given, int | Decimal) and not isinstance(given, bool):
        try:
            return Decimal(given).quantize(
                Decimal(1).scaleb(-int(schema.parameters[LogicalType.SCALE])), context=_EXACT
            )
        except (DecimalException, KeyError, ValueError):
            raise DataError("a number does not fit the scale of the decimal's schema") from None
    try:
        return base64.b64decode(given, validate=True)
    except (binascii.Error, ValueError, TypeError):
        raise DataError("Invalid bytes field: it is not base64") from None


def _plain_numbers(given: Any) -> Any:
    """Return the value with floats instead of decimals, which need a schema."""
    match given:
        case Decimal():
            return _float_of(given)
        case list():
            return [_plain_numbers(one) for one in given]
        case dict():
            return {key: _plain_numbers(one) for key, one in given.items()}
        case _:
            return given
