"""Transforms that insert, remove or rename fields, or build a key from them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import lru_cache
from typing import Any, Final, NamedTuple, TypeVar

from parley.pipeline.connect import data
from parley.pipeline.connect.config import (
    HIGH,
    LIST,
    MEDIUM,
    STRING,
    ConfigDef,
    non_empty,
    one_of,
)
from parley.pipeline.connect.data import Field, Schema, Struct
from parley.pipeline.connect.errors import ConfigError, DataError
from parley.pipeline.connect.logical_types import from_millis
from parley.pipeline.connect.records import ConnectRecord, SinkRecord
from parley.pipeline.connect.transforms import (
    REPLACE_NULLS,
    KeyOrValue,
    Transform,
    as_map,
    as_struct,
    read,
    struct_like,
)

_NULLS: Final = ConfigDef([REPLACE_NULLS])
_CACHE_MAX: Final = 16
"""The number of changed schemas that a transform keeps."""
R = TypeVar("R", bound=ConnectRecord)


class _Insertion(NamedTuple):
    """A field to insert. ``name?`` is optional, ``name!`` is required."""

    name: str
    is_optional: bool

    @classmethod
    def parse(cls, spec: str | None) -> _Insertion | None:
        if not spec:
            return None
        return cls(spec.rstrip("?!") if spec[-1] in "?!" else spec, not spec.endswith("!"))

    def schema(self, of: Schema) -> Schema:
        return of.as_optional() if self.is_optional else of


class InsertField(KeyOrValue):
    """Inserts fields from the record's metadata, or with a fixed value."""

    config_def = (
        ConfigDef()
        .define("topic.field", STRING, None, MEDIUM)
        .doc("The field that gets the topic. A final ! makes it required, a final ? optional.")
        .define("partition.field", STRING, None, MEDIUM)
        .doc("The field that gets the partition.")
        .define("offset.field", STRING, None, MEDIUM)
        .doc("The field that gets the offset. Only for sink connectors.")
        .define("timestamp.field", STRING, None, MEDIUM)
        .doc("The field that gets the timestamp.")
        .define("static.field", STRING, None, MEDIUM)
        .doc("The field that gets the static value.")
        .define("static.value", STRING, None, MEDIUM)
        .doc("The static value.")
    ) + _NULLS

    def configure(self, props: Mapping[str, Any]) -> None:
        super().configure(props)
        names = ("topic", "partition", "offset", "timestamp", "static")
        self._fields = {name: found for name in names if (found := _Insertion.parse(self.config[f"{name}.field"]))}
        if not self._fields:
            raise ConfigError("No field insertion configured")
        if "static" in self._fields and self.config["static.value"] is None:
            raise ConfigError("No value specified for static field: " + self._fields["static"].name)
        self._with_fields = lru_cache(_CACHE_MAX)(self._schema_with_fields)

    def apply(self, record: R) -> R | None:
        value, schema = self.value_of(record), self.schema_of(record)
        if value is None:
            return record
        if schema is None:
            added = {
                one.name: found for what, one in self._fields.items() if (found := self._of(record, what)) is not None
            }
            return self.changed(record, None, {**as_map(value, "field insertion"), **added})
        given = as_struct(value, "field insertion")
        updated = self._with_fields(schema)
        made = Struct(updated)
        for field in schema.fields:
            made.values[field.name] = read(given, field, self.config)
        for what, one in self._fields.items():
            found = self._of(record, what)
            made[one.name] = from_millis(found) if what == "timestamp" and found is not None else found
        return self.changed(record, updated, made)

    def _of(self, record: ConnectRecord, what: str) -> Any:
        if what == "offset":
            if not isinstance(record, SinkRecord):
                raise DataError("offset.field is for sink connectors only: a record of a source has no offset yet")
            return record.kafka_offset
        found = {
            "topic": record.topic,
            "partition": record.kafka_partition,
            "timestamp": record.timestamp,
            "static": self.config["static.value"],
        }
        return found[what]

    def _schema_with_fields(self, schema: Schema) -> Schema:
        kinds = {
            "topic": data.STRING,
            "partition": data.INT32,
            "offset": data.INT64,
            "timestamp": data.TIMESTAMP,
            "static": data.STRING,
        }
        added = {one.name: one.schema(kinds[what]) for what, one in self._fields.items()}
        return struct_like(schema, {**{field.name: field.schema for field in schema.fields}, **added})


class ReplaceField(KeyOrValue):
    """Removes fields or renames them."""

    config_def = (
        ConfigDef()
        .define("exclude", LIST, [], MEDIUM)
        .doc("Fields to exclude. This takes precedence over include.")
        .define("include", LIST, [], MEDIUM)
        .doc("Fields to keep. If it is empty, all fields are kept.")
        .define("renames", LIST, [], MEDIUM)
        .doc("Fields to rename, as old:new.")
    ) + _NULLS

    def configure(self, props: Mapping[str, Any]) -> None:
        super().configure(props)
        self._renames: dict[str, str] = {}
        for pair in self.config["renames"]:
            old, colon, new = pair.partition(":")
            if not colon or not old or not new or ":" in new:
                raise ConfigError(f"Invalid value {pair} for configuration renames: Invalid rename mapping: {pair}")
            self._renames[old.strip()] = new.strip()
        self._replaced = lru_cache(_CACHE_MAX)(self._replaced_schema)

    def _keeps(self, name: str) -> bool:
        included = self.config["include"]
        return name not in self.config["exclude"] and (not included or name in included)

    def apply(self, record: R) -> R | None:
        value, schema = self.value_of(record), self.schema_of(record)
        if value is None:
            return record
        if schema is None:
            given = as_map(value, "field replacement")
            kept = {self._renames.get(name, name): one for name, one in given.items() if self._keeps(name)}
            return self.changed(record, None, kept)
        struct = as_struct(value, "field replacement")
        updated = self._replaced(schema)
        made = Struct(updated)
        for field in schema.fields:
            if self._keeps(field.name):
                made.values[self._renames.get(field.name, field.name)] = read(struct, field, self.config)
        return self.changed(record, updated, made)

    def _replaced_schema(self, schema: Schema) -> Schema:
        kept = {self._renames.get(one.name, one.name): one.schema for one in schema.fields if self._keeps(one.name)}
        return struct_like(schema, kept)


def field_path(text: str, version: str) -> list[str]:
    """Return the names on the path to a field (KIP-821). In V2, dots separate the names, and backticks enclose names
    with dots; in V1, the text is a single name. Raises ConfigError if a backtick is not closed.
    """
    if version.upper() != "V2":
        return [text]
    steps, rest = [], text
    while rest:
        if rest[0] == "`":
            end = _closing(rest)
            if end < 0:
                raise ConfigError(f"Incomplete backtick pair in path: [{text}]")
            steps.append(rest[1:end].replace("\\`", "`"))
            rest = rest[end + 1 :].removeprefix(".")
        else:
            step, _, rest = rest.partition(".")
            steps.append(step)
    return steps


def _closing(text: str) -> int:
    """Return the index of the closing backtick, which ends the text or precedes a dot; -1 if there is none."""
    for at in range(1, len(text)):
        if text[at] == "`" and text[at - 1] != "\\" and (at + 1 == len(text) or text[at + 1] == "."):
            return at
    return -1


class ExtractField(KeyOrValue):
    """Replaces the whole key or value with one of its fields."""

    config_def = (
        ConfigDef()
        .define("field", STRING, importance=MEDIUM)
        .doc("Field name to extract.")
        .define("field.syntax.version", STRING, "V1", HIGH, validator=one_of("V1", "V2", ignore_case=True))
        .doc("V1 for a field's name; V2 for a path of names separated by dots.")
    ) + _NULLS

    def configure(self, props: Mapping[str, Any]) -> None:
        super().configure(props)
        self._path = field_path(self.config["field"], self.config["field.syntax.version"])

    def apply(self, record: R) -> R | None:
        schema, value = self.schema_of(record), self.value_of(record)
        if schema is None:
            for step in self._path:
                value = None if value is None else as_map(value, "field extraction").get(step)
            return self.changed(record, None, value)
        for step in self._path:
            field = schema.field(step)
            if field is None:
                raise DataError(f"Unknown field: {self.config['field']}")
            value = None if value is None else read(as_struct(value, "field extraction"), field, self.config)
            schema = field.schema
        return self.changed(record, schema, value)


class HoistField(KeyOrValue):
    """Wraps the whole key or value in one field."""

    config_def = (
        ConfigDef()
        .define("field", STRING, importance=MEDIUM)
        .doc("Field name for the single field that will be created.")
    )

    def apply(self, record: R) -> R | None:
        schema, value = self.schema_of(record), self.value_of(record)
        name = self.config["field"]
        if schema is None:
            return self.changed(record, None, {name: value})
        hoisted = data.struct({name: schema})
        made = Struct(hoisted)
        made.values[name] = value
        return self.changed(record, hoisted, made)


class ValueToKey(Transform):
    """Builds the key from some fields of the value."""

    config_def = (
        ConfigDef()
        .define("fields", LIST, importance=HIGH, validator=non_empty)
        .doc("Field names on the record value to extract as the record key.")
    ) + _NULLS

    def configure(self, props: Mapping[str, Any]) -> None:
        super().configure(props)
        self._fields: list[str] = self.config["fields"]

    def apply(self, record: R) -> R | None:
        if record.value_schema is None:
            value = as_map(record.value, "copying fields from value to key")
            return replace(record, key_schema=None, key={name: value.get(name) for name in self._fields})
        struct = as_struct(record.value, "copying fields from value to key")
        found = {name: _known(record.value_schema, name) for name in self._fields}
        schema = data.struct({name: field.schema for name, field in found.items()})
        key = Struct(schema)
        for name, field in found.items():
            key.values[name] = read(struct, field, self.config)
        return replace(record, key_schema=schema, key=key)


def _known(schema: Schema, name: str) -> Field:
    field = schema.field(name)
    if field is None:
        raise DataError(f"Field does not exist: {name}")
    return field
