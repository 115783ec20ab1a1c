"""The transform that hides the values of fields (Kafka's ``MaskField``)."""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping
from decimal import Decimal, InvalidOperation
from typing import Any, Final, TypeVar

from parley.pipeline.connect.config import HIGH, LIST, LOW, STRING, ConfigDef, non_empty
from parley.pipeline.connect.data import Field, LogicalType, SchemaType, Struct
from parley.pipeline.connect.errors import DataError
from parley.pipeline.connect.records import ConnectRecord
from parley.pipeline.connect.transforms import REPLACE_NULLS, KeyOrValue, as_map, as_struct, read

R = TypeVar("R", bound=ConnectRecord)
_EPOCH: Final = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)
_LIMITS: Final = {SchemaType.INT8: 7, SchemaType.INT16: 15, SchemaType.INT32: 31, SchemaType.INT64: 63}


class MaskField(KeyOrValue):
    """Replaces the value of a field with an empty value of its type (0, false, an empty string) or a given value.

    As in Kafka, a tombstone is an error. Use the predicate ``RecordIsTombstone`` with ``negate`` to skip tombstones.
    """

    config_def = (
        ConfigDef()
        .define("fields", LIST, importance=HIGH, validator=non_empty)
        .doc("Fields to mask.")
        .define("replacement", STRING, None, LOW, validator=non_empty)
        .doc("The value that replaces numbers and strings.")
    ) + ConfigDef([REPLACE_NULLS])

    def configure(self, props: Mapping[str, Any]) -> None:
        super().configure(props)
        self._fields = frozenset(self.config["fields"])
        self._replacement: str | None = self.config["replacement"]

    def apply(self, record: R) -> R | None:
        value, schema = self.value_of(record), self.schema_of(record)
        if schema is None:
            given = as_map(value, "mask fields")
            masked = {name: self._mask(one) if name in self._fields else one for name, one in given.items()}
            return self.changed(record, None, masked)
        struct = as_struct(value, "mask fields")
        made = Struct(schema)
        for field in schema.fields:
            one = read(struct, field, self.config)
            made[field.name] = self._mask_typed(field, one) if field.name in self._fields else one
        return self.changed(record, schema, made)

    def _mask_typed(self, field: Field, value: Any) -> Any:
        """Return a masked value that is valid for the field's schema. Raises DataError."""
        masked = self._mask(value)
        kind = field.schema.type
        if field.schema.name == LogicalType.DECIMAL and isinstance(masked, Decimal):
            return masked.quantize(Decimal(1).scaleb(-int(field.schema.parameters[LogicalType.SCALE])))
        if kind in (SchemaType.FLOAT32, SchemaType.FLOAT64) and isinstance(masked, int):
            return float(masked)
        if kind in _LIMITS and isinstance(masked, int) and abs(masked) >= 1 << _LIMITS[kind]:
            raise DataError(f"The replacement {self._replacement} does not fit {kind.name}")
        return masked

    def _mask(self, value: Any) -> Any:
        if value is None:
            return None
        if self._replacement is not None:
            return self._replaced(value)
        return _null_of(value)

    def _replaced(self, value: Any) -> Any:
        assert self._replacement is not None
        kind = type(value)
        if kind not in (int, float, str, Decimal):
            raise DataError(f"Cannot mask value of type {kind.__name__} with custom replacement.")
        try:
            return kind(self._replacement)
        except (ValueError, InvalidOperation) as error:
            raise DataError(f"Unable to convert {self._replacement} to {kind.__name__}: {error}") from None


def _null_of(value: Any) -> Any:
    match value:
        case bool():
            return False
        case int():
            return 0
        case float():
            return 0.0
        case str():
            return ""
        case Decimal():
            return Decimal(0)
        case dt.datetime():
            return _EPOCH
        case dt.date():
            return _EPOCH.date()
        case dt.time():
            return dt.time()
        case list():
            return []
        case dict():
            return {}
    raise DataError(f"Cannot mask value of type: {type(value).__name__}")
