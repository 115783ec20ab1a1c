"""The transform that converts times between text, Unix time and the logical types."""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping
from typing import Any, Final, TypeVar

from parley.pipeline.connect import data
from parley.pipeline.connect.config import HIGH, LOW, MEDIUM, STRING, ConfigDef, one_of
from parley.pipeline.connect.data import LogicalType, Schema, SchemaType, Struct
from parley.pipeline.connect.errors import ConfigError, DataError
from parley.pipeline.connect.java_notation import JavaDateFormat
from parley.pipeline.connect.logical_types import from_millis, millis_of
from parley.pipeline.connect.records import ConnectRecord
from parley.pipeline.connect.transforms import REPLACE_NULLS, KeyOrValue, as_map, as_struct, read, struct_like

R = TypeVar("R", bound=ConnectRecord)

_TARGETS: Final[Mapping[str, Schema]] = {
    "string": data.STRING,
    "unix": data.INT64,
    "Date": data.DATE,
    "Time": data.TIME,
    "Timestamp": data.TIMESTAMP,
}
_FORMS: Final = {LogicalType.DATE: "Date", LogicalType.TIME: "Time", LogicalType.TIMESTAMP: "Timestamp"}
_NANOS_PER: Final = {"seconds": 10**9, "milliseconds": 10**6, "microseconds": 10**3, "nanoseconds": 1}
_NANOS_PER_MS: Final = 10**6
_EPOCH_DAY: Final = dt.date(1970, 1, 1)


class TimestampConverter(KeyOrValue):
    """Converts a field, or the whole key or value, from one form of a time to another."""

    config_def = (
        ConfigDef()
        .define("field", STRING, "", HIGH)
        .doc("The field containing the timestamp, or empty if the entire value is a timestamp.")
        .define("target.type", STRING, importance=HIGH, validator=one_of(*_TARGETS))
        .doc("The desired timestamp representation: string, unix, Date, Time, or Timestamp.")
        .define("format", STRING, "", MEDIUM)
        .doc("The format of timestamps as strings, a pattern of Java's SimpleDateFormat.")
        .define("unix.precision", STRING, "milliseconds", LOW, validator=one_of(*_NANOS_PER))
        .doc("The unit of Unix times: seconds, milliseconds, microseconds, or nanoseconds.")
    ) + ConfigDef([REPLACE_NULLS])

    def configure(self, props: Mapping[str, Any]) -> None:
        super().configure(props)
        self._target: str = self.config["target.type"]
        self._unit_ns = _NANOS_PER[self.config["unix.precision"]]
        form = self.config["format"]
        if self._target == "string" and not form:
            raise ConfigError("TimestampConverter requires format option to be specified when using string timestamps")
        self._format = JavaDateFormat(form) if form else None
        self._schemas: dict[Schema, Schema] = {}

    def apply(self, record: R) -> R | None:
        value, schema = self.value_of(record), self.schema_of(record)
        name = self.config["field"]
        if schema is None:
            return self._apply_plain(record, value, name)
        if not name:
            return self.changed(record, self._typed(schema), self._convert(value, _form_of(schema)))
        updated = self._schemas.get(schema)
        if updated is None:
            fields = {one.name: self._typed(one.schema) if one.name == name else one.schema for one in schema.fields}
            updated = self._schemas[schema] = struct_like(schema, fields)
        if value is None:
            return self.changed(record, updated, None)
        struct = as_struct(value, "converting timestamp formats")
        made = Struct(updated)
        for field in schema.fields:
            one = read(struct, field, self.config)
            made.values[field.name] = self._convert(one, _form_of(field.schema)) if field.name == name else one
        return self.changed(record, updated, made)

    def _apply_plain(self, record: R, value: Any, name: str) -> R:
        if not name:
            return self.changed(record, None, self._convert(value, _form_by_class(value)))
        if value is None:
            return record
        given = as_map(value, "converting timestamp formats")
        one = given.get(name)
        return self.changed(record, None, {**given, name: self._convert(one, _form_by_class(one))})

    def _typed(self, schema: Schema) -> Schema:
        target = _TARGETS[self._target]
        return target.as_optional() if schema.optional else target

    def _convert(self, value: Any, form: str) -> Any:
        if value is None:
            return None
        return self._as_target(self._moment(value, form))

    def _moment(self, value: Any, form: str) -> dt.datetime:
        match form:
            case "string":
                if self._format is None:
                    raise DataError("TimestampConverter requires format option to be specified for string timestamps")
                return self._format.parse(str(value))
            case "unix":
                if not isinstance(value, int):
                    raise DataError(f"Expected Unix timestamp to be an integer, but found {type(value).__name__}")
                return from_millis(value * self._unit_ns // _NANOS_PER_MS)
            case "Date":
                return dt.datetime.combine(value, dt.time(), tzinfo=dt.UTC)
            case "Time":
                return dt.datetime.combine(_EPOCH_DAY, value, tzinfo=dt.UTC)
        return value.replace(tzinfo=dt.UTC) if value.tzinfo is None else value  # type: ignore[no-any-return]

    def _as_target(self, moment: dt.datetime) -> Any:
        utc = moment.astimezone(dt.UTC)
        match self._target:
            case "string":
                assert self._format is not None
                return self._format.format(utc)
            case "unix":
                return millis_of(utc) * _NANOS_PER_MS // self._unit_ns
            case "Date":
                return utc.date()
            case "Time":
                return utc.time()
        return utc


def _form_of(schema: Schema) -> str:
    """Return the form of a schema's values. Raises DataError if they are not times."""
    if schema.name in _FORMS:
        return _FORMS[schema.name or ""]
    if schema.type is SchemaType.STRING:
        return "string"
    if schema.type is SchemaType.INT64:
        return "unix"
    raise DataError(f"Schema {schema!r} does not correspond to a known timestamp type format")


def _form_by_class(value: Any) -> str:
    match value:
        case None | str():
            return "string"
        case dt.datetime():
            return "Timestamp"
        case dt.date():
            return "Date"
        case dt.time():
            return "Time"
        case int() if not isinstance(value, bool):
            return "unix"
    raise DataError(f"TimestampConverter does not support {type(value).__name__} objects as timestamps")
