"""Transforms: small changes to one record at a time, and the predicates that say which records (KIP-66, KIP-585).

`apply` answers a changed record (:func:`dataclasses.replace`), the same one, or None to drop it. A transform that works
on the key or on the value (``$Key``, ``$Value`` behind its name) is a :class:`KeyOrValue`. A value without a schema is
a ``dict``, with one a :class:`~parley.pipeline.connect.data.Struct`.
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

__all__ = ["REPLACE_NULLS", "KeyOrValue", "Predicate", "Side", "Transform", "as_map", "as_struct", "read"]

R = TypeVar("R", bound=ConnectRecord)

REPLACE_NULLS: Final = ConfigKey(
    name="replace.null.with.default",
    type=ConfigType.BOOLEAN,
    default=True,
    importance=Importance.MEDIUM,
    doc="Whether a field that is null stands for its default value.",
)
"""A key that all transforms of fields have (KIP-1040)."""


class Side(Enum):
    """The part of a record that a transform works on."""

    KEY = "Key"
    VALUE = "Value"


class Transform(ABC):
    """Changes records one by one. Made without arguments, then configured once."""

    config_def: ClassVar[ConfigDef] = ConfigDef()
    version: ClassVar[str] = "0"

    def configure(self, props: Mapping[str, Any]) -> None:
        """Called once, before `apply`. Raises ConfigError."""
        self.config = self.config_def.parse(props)

    @abstractmethod
    def apply(self, record: R) -> R | None:
        """The record as it goes on; None drops it. Raises DataError for one it cannot change."""

    def close(self) -> None:  # noqa: B027 - most have nothing to give back
        """Give back what it holds."""


class KeyOrValue(Transform):
    """A transform of the key, or of the value: `side` says which."""

    def __init__(self, side: Side = Side.VALUE) -> None:
        self.side = side

    def schema_of(self, record: ConnectRecord) -> Schema | None:
        return record.key_schema if self.side is Side.KEY else record.value_schema

    def value_of(self, record: ConnectRecord) -> Any:
        return record.key if self.side is Side.KEY else record.value

    def changed(self, record: R, schema: Schema | None, value: Any) -> R:
        """The record with another key, or value, and its schema."""
        if self.side is Side.KEY:
            return replace(record, key_schema=schema, key=value)
        return replace(record, value_schema=schema, value=value)


class Predicate(ABC):
    """Says of a record whether a transform concerns it."""

    config_def: ClassVar[ConfigDef] = ConfigDef()
    version: ClassVar[str] = "0"

    def configure(self, props: Mapping[str, Any]) -> None:
        """Called once, before `test`. Raises ConfigError."""
        self.config = self.config_def.parse(props)

    @abstractmethod
    def test(self, record: ConnectRecord) -> bool:
        """Whether the record is one of those meant."""

    def close(self) -> None:  # noqa: B027 - most have nothing to give back
        """Give back what it holds."""


def as_map(value: Any, purpose: str) -> dict[Any, Any]:
    """The value, if it is a map without a schema. Raises DataError otherwise."""
    if isinstance(value, dict):
        return value
    raise DataError(f"Only Map objects supported in absence of schema for [{purpose}], found: {_kind(value)}")


def as_struct(value: Any, purpose: str) -> Struct:
    """The value, if it is a struct. Raises DataError otherwise."""
    if isinstance(value, Struct):
        return value
    raise DataError(f"Only Struct objects supported for [{purpose}], found: {_kind(value)}")


def read(value: Struct, field: Field, config: Mapping[str, Any]) -> Any:
    """A field's value; its default in the place of null where the transform is configured so."""
    return value[field.name] if config[REPLACE_NULLS.name] else value.without_default(field.name)


def struct_like(schema: Schema, fields: Mapping[str, Schema]) -> Schema:
    """The schema of a struct with other fields, but otherwise as it was."""
    placed = tuple(Field(name, index, one) for index, (name, one) in enumerate(fields.items()))
    return replace(schema, fields=placed, default=None)


def _kind(value: Any) -> str:
    return "null" if value is None else type(value).__name__
