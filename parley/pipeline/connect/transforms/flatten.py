"""The transform that flattens nested structs and maps (Kafka's ``Flatten``)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeVar

from parley.pipeline.connect.config import MEDIUM, STRING, ConfigDef
from parley.pipeline.connect.data import Schema, SchemaType, Struct
from parley.pipeline.connect.records import ConnectRecord
from parley.pipeline.connect.transforms import KeyOrValue, as_map, as_struct, struct_like

R = TypeVar("R", bound=ConnectRecord)


class Flatten(KeyOrValue):
    """Names each innermost field after all levels above it, with a delimiter between the names.

    Arrays do not change. A field of an optional struct is optional too.
    """

    config_def = (
        ConfigDef()
        .define("delimiter", STRING, ".", MEDIUM)
        .doc(
            "Delimiter to insert between field names from the input record when generating field names for the output."
        )
    )

    def configure(self, props: Mapping[str, Any]) -> None:
        super().configure(props)
        self._delimiter: str = self.config["delimiter"]
        self._schemas: dict[Schema, Schema] = {}

    def apply(self, record: R) -> R | None:
        value, schema = self.value_of(record), self.schema_of(record)
        if value is None:
            return record
        if schema is None:
            flat: dict[str, Any] = {}
            self._flatten_map(as_map(value, "flattening"), "", flat)
            return self.changed(record, None, flat)
        updated = self._schemas.get(schema)
        if updated is None:
            fields: dict[str, Schema] = {}
            self._flatten_schema(schema, "", False, fields)
            updated = self._schemas[schema] = struct_like(schema, fields)
        made = Struct(updated)
        self._flatten_struct(schema, as_struct(value, "flattening"), "", made)
        return self.changed(record, updated, made)

    def _name(self, prefix: str, name: str) -> str:
        return prefix + self._delimiter + name if prefix else name

    def _flatten_map(self, value: dict[Any, Any], prefix: str, flat: dict[str, Any]) -> None:
        for name, one in value.items():
            full = self._name(prefix, str(name))
            if isinstance(one, dict):
                self._flatten_map(one, full, flat)
            else:
                flat[full] = one

    def _flatten_schema(self, schema: Schema, prefix: str, is_optional: bool, fields: dict[str, Schema]) -> None:
        for field in schema.fields:
            full = self._name(prefix, field.name)
            below = is_optional or field.schema.optional
            if field.schema.type is SchemaType.STRUCT:
                self._flatten_schema(field.schema, full, below, fields)
            else:
                fields[full] = field.schema.as_optional(field.schema.default) if below else field.schema

    def _flatten_struct(self, schema: Schema, value: Struct | None, prefix: str, made: Struct) -> None:
        for field in schema.fields:
            full = self._name(prefix, field.name)
            one = None if value is None else value[field.name]
            if field.schema.type is SchemaType.STRUCT:
                self._flatten_struct(field.schema, one, full, made)
            else:
                made.values[full] = one
