"""Transforms change one record at a time (KIP-66). Predicates select the records to change (KIP-585).

``apply`` returns a changed copy of the record, the same record, or None to drop it. A transform of either the key or
the value (``$Key`` or ``$Value`` after its name) is a ``KeyOrValue``. A value with fields is a ``Struct`` if it has a
schema, and a ``dict`` if it has none.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import replace
from enum import Enum
from typing import Any, ClassVar, Final, TypeVar

from parley.pipeline.connect.config import ConfigDef, ConfigKey, ConfigType, Importance
from parley.pipeline.connect.data import Field, Schema, Struct
from parley.pipeline.connect.errors import DataError
from parley.pipeline.connect.records import ConnectRecord

R = TypeVar("R", bound=ConnectRecord)

REPLACE_NULLS: Final = ConfigKey(
    name="replace.null.with.default",
    type=ConfigType.BOOLEAN,
    default=True,
    importance=Importance.MEDIUM,
    doc="Whether a null field is replaced by its default value.",
)
"""The key that all transforms of fields share (KIP-1040)."""


class Side(Enum):
    """The part of a record that a transform works on."""

    KEY = "Key"
    VALUE = "Value"


class Transform(ABC):
    """Changes records one by one. Created without arguments, then configured once."""

    config_def: ClassVar[ConfigDef] = ConfigDef()
    version: ClassVar[str] = "0"

    def configure(self, props: Mapping[str, Any]) -> None:
        """Configure the transform. Called once, before ``apply``. Raises ConfigError."""
        self.config = self.config_def.parse(props)

    @abstractmethod
    def apply(self, record: R) -> R | None:
        """Return the changed record, or None to drop it. Raises DataError if the record cannot be changed."""

    def close(self) -> None:  # noqa: B027 - most hold nothing
        """Release all resources."""


class KeyOrValue(Transform):
    """A transform of the key or of the value, depending on ``side``."""

    def __init__(self, side: Side = Side.VALUE) -> None:
        self.side = side

    def schema_of(self, record: ConnectRecord) -> Schema | None:
        return record.key_schema if self.side is Side.KEY else record.value_schema

    def value_of(self, record: ConnectRecord) -> Any:
        return record.key if self.side is Side.KEY else record.value

    def changed(self, record: R, schema: Schema | None, value: Any) -> R:
        """Return the record with a new key or value and its schema."""
        if self.side is Side.KEY:
            return replace(record, key_schema=schema, key=value)
        return replace(record, value_schema=schema, value=value)


class Predicate(ABC):
    """Decides whether a transform applies to a record."""

    config_def: ClassVar[ConfigDef] = ConfigDef()
    version: ClassVar[str] = "0"

    def configure(self, props: Mapping[str, Any]) -> None:
        """Configure the predicate. Called once, before ``test``. Raises ConfigError."""
        self.config = self.config_def.parse(props)

    @abstractmethod
    def test(self, record: ConnectRecord) -> bool:
        """Return True if the predicate matches the record."""

    def close(self) -> None:  # noqa: B027 - most hold nothing
        """Release all resources."""


def as_map(value: Any, purpose: str) -> dict[Any, Any]:
    """Return the value as a map without a schema. Raises DataError if it is not one. ``purpose`` is for the message."""
    if isinstance(value, dict):
        return value
    raise DataError(f"Only Map objects supported in absence of schema for [{purpose}], found: {_kind(value)}")


def as_struct(value: Any, purpose: str) -> Struct:
    """Return the value as a struct. Raises DataError if it is not one. ``purpose`` is for the message."""
    if isinstance(value, Struct):
        return value
    raise DataError(f"Only Struct objects supported for [{purpose}], found: {_kind(value)}")


def read(value: Struct, field: Field, config: Mapping[str, Any]) -> Any:
    """Return a field's value. If ``replace.null.with.default`` is set, returns the field's default instead of null."""
    return value[field.name] if config[REPLACE_NULLS.name] else value.without_default(field.name)


def struct_like(schema: Schema, fields: Mapping[str, Schema]) -> Schema:
    """Return the schema with these fields in place of its own, and without a default. All else stays the same."""
    placed = tuple(Field(name, index, one) for index, (name, one) in enumerate(fields.items()))
    return replace(schema, fields=placed, default=None)


def _kind(value: Any) -> str:
    return "null" if value is None else type(value).__name__
