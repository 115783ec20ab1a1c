"""Transforms of headers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, TypeVar

from parley.pipeline.connect.config import HIGH, LIST, STRING, ConfigDef, non_empty, one_of
from parley.pipeline.connect.data import Schema, Struct
from parley.pipeline.connect.errors import ConfigError, DataError
from parley.pipeline.connect.records import ConnectRecord, Header
from parley.pipeline.connect.text_values import parse
from parley.pipeline.connect.transforms import (
    REPLACE_NULLS,
    KeyOrValue,
    Transform,
    as_map,
    as_struct,
    read,
    struct_like,
)

R = TypeVar("R", bound=ConnectRecord)


class InsertHeader(Transform):
    """Inserts a header with a fixed value."""

    config_def = (
        ConfigDef()
        .define("header", STRING, importance=HIGH, validator=non_empty)
        .doc("The name of the header.")
        .define("value.literal", STRING, importance=HIGH)
        .doc("The value of the header. Its type is inferred from the text.")
    )

    def configure(self, props: Mapping[str, Any]) -> None:
        super().configure(props)
        found = parse(self.config["value.literal"])
        self._header = Header(self.config["header"], found.value, found.schema)

    def apply(self, record: R) -> R | None:
        return replace(record, headers=(*record.headers, self._header))


class DropHeaders(Transform):
    """Removes headers by name."""

    config_def = (
        ConfigDef()
        .define("headers", LIST, importance=HIGH, validator=non_empty)
        .doc("The names of the headers to remove.")
    )

    def apply(self, record: R) -> R | None:
        dropped = self.config["headers"]
        return replace(record, headers=tuple(one for one in record.headers if one.key not in dropped))


class HeaderFrom(KeyOrValue):
    """Copies fields into headers, or moves them there."""

    config_def = (
        ConfigDef()
        .define("fields", LIST, importance=HIGH, validator=non_empty)
        .doc("The names of the fields that become headers.")
        .define("headers", LIST, importance=HIGH, validator=non_empty)
        .doc("Header names, in the same order as the field names.")
        .define("operation", STRING, importance=HIGH, validator=one_of("move", "copy"))
        .doc("Either move, which removes the fields from the key or value, or copy.")
    ) + ConfigDef([REPLACE_NULLS])

    def configure(self, props: Mapping[str, Any]) -> None:
        super().configure(props)
        if len(self.config["fields"]) != len(self.config["headers"]):
            raise ConfigError("'fields' config must have the same number of elements as 'headers' config.")
        self._names = dict(zip(self.config["fields"], self.config["headers"], strict=True))
        self._moves = self.config["operation"] == "move"

    def apply(self, record: R) -> R | None:
        value, schema = self.value_of(record), self.schema_of(record)
        if schema is None:
            given = as_map(value, "header from")
            headers = [Header(name, given.get(field)) for field, name in self._names.items()]
            kept: Any = {name: one for name, one in given.items() if name not in self._names} if self._moves else given
            return self.changed(replace(record, headers=(*record.headers, *headers)), None, kept)
        struct = as_struct(value, "header from")
        added = tuple(self._header(schema, struct, field, name) for field, name in self._names.items())
        record = replace(record, headers=record.headers + added)
        return self.changed(record, *self._without(schema, struct)) if self._moves else record

    def _header(self, schema: Schema, struct: Struct, field: str, name: str) -> Header:
        found = schema.field(field)
        if found is None:
            raise DataError(f"Unknown field: {field}")
        return Header(name, read(struct, found, self.config), found.schema)

    def _without(self, schema: Schema, struct: Struct) -> tuple[Schema, Struct]:
        kept = [field for field in schema.fields if field.name not in self._names]
        updated = struct_like(schema, {field.name: field.schema for field in kept})
        made = Struct(updated)
        for field in kept:
            made.values[field.name] = read(struct, field, self.config)
        return updated, made
