"""The transform that sets a schema's name and version."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, TypeVar

from parley.pipeline.connect.config import HIGH, INT, STRING, ConfigDef
from parley.pipeline.connect.data import Struct
from parley.pipeline.connect.errors import DataError
from parley.pipeline.connect.records import ConnectRecord
from parley.pipeline.connect.transforms import REPLACE_NULLS, KeyOrValue, read

R = TypeVar("R", bound=ConnectRecord)


class SetSchemaMetadata(KeyOrValue):
    """Sets the name of a schema, its version, or both."""

    config_def = (
        ConfigDef()
        .define("schema.name", STRING, None, HIGH)
        .doc("Schema name to set.")
        .define("schema.version", INT, None, HIGH)
        .doc("Schema version to set.")
    ) + ConfigDef([REPLACE_NULLS])

    def apply(self, record: R) -> R | None:
        schema, value = self.schema_of(record), self.value_of(record)
        if schema is None:
            if value is None:
                return record
            raise DataError("Schema required for [updating schema metadata]")
        name, version = self.config["schema.name"], self.config["schema.version"]
        updated = replace(
            schema,
            name=schema.name if name is None else name,
            version=schema.version if version is None else version,
        )
        made: Any = value
        if isinstance(value, Struct):
            made = Struct(updated)
            for field in schema.fields:
                made.values[field.name] = read(value, field, self.config)
        return self.changed(record, updated, made)
