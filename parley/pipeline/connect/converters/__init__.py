"""Converters translate keys, values and headers between Connect's data and the bytes in a topic.

A converter is created without arguments, then configured once. ``configure(props, is_key)`` gets the keys after the
converter's prefix: ``value.converter.schemas.enable`` becomes ``schemas.enable``. A converter raises DataError for data
that it cannot convert, and RetriableError if a schema registry does not respond.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any, ClassVar

from parley.pipeline.connect.config import ConfigDef
from parley.pipeline.connect.data import Schema, SchemaAndValue
from parley.pipeline.connect.records import Header


class Converter(ABC):
    """Converts the keys or the values of a topic."""

    config_def: ClassVar[ConfigDef] = ConfigDef()
    version: ClassVar[str] = "0"

    def configure(self, props: Mapping[str, Any], is_key: bool) -> None:
        """Configure the converter. Called once, before any other method. Raises ConfigError."""
        self.config = self.config_def.parse(props)

    @abstractmethod
    def from_connect(self, topic: str, schema: Schema | None, value: Any) -> bytes | None:
        """Encode a value for a topic. Returns None for a record without this key or value. Raises DataError."""

    @abstractmethod
    def to_connect(self, topic: str, data: bytes | None) -> SchemaAndValue:
        """Decode bytes from a topic to a value and its schema. ``data`` is None if the record has no such key or value.
        Raises DataError.
        """

    def close(self) -> None:  # noqa: B027 - most hold nothing
        """Release all resources."""


class HeaderConverter(ABC):
    """Converts the values of headers."""

    config_def: ClassVar[ConfigDef] = ConfigDef()
    version: ClassVar[str] = "0"

    def configure(self, props: Mapping[str, Any], is_key: bool) -> None:
        """Configure the converter. Called once, before any other method. Raises ConfigError."""
        self.config = self.config_def.parse(props)

    @abstractmethod
    def from_header(self, topic: str, header: Header) -> bytes | None:
        """Encode the value of a record's header. Returns None for null. Raises DataError."""

    @abstractmethod
    def to_header(self, topic: str, key: str, data: bytes | None) -> Header:
        """Decode a record's header to its value and schema. ``data`` is None for null. Raises DataError."""

    def close(self) -> None:  # noqa: B027 - most hold nothing
        """Release all resources."""


class ConverterOfBoth(Converter, HeaderConverter):
    """A converter of record values that converts header values in the same way."""

    def from_header(self, topic: str, header: Header) -> bytes | None:
        return self.from_connect(topic, header.schema, header.value)

    def to_header(self, topic: str, key: str, data: bytes | None) -> Header:
        found = self.to_connect(topic, data)
        return Header(key, found.value, found.schema)
