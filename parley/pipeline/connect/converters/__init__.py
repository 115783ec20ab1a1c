"""Converters: between a record's key, value or headers as Connect has them and the bytes in a topic.

A converter is made without arguments and then configured once: `configure(props, is_key)` gets the keys that stand
behind its name (``value.converter.schemas.enable`` is ``schemas.enable``). It raises
:class:`~parley.pipeline.connect.errors.DataError` for what it cannot convert; nothing else about it may fail.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any, ClassVar

from parley.pipeline.connect.config import ConfigDef
from parley.pipeline.connect.data import Schema, SchemaAndValue
from parley.pipeline.connect.records import Header

__all__ = ["Converter", "HeaderConverter"]


class Converter(ABC):
    """Converts keys or values of a topic."""

    config_def: ClassVar[ConfigDef] = ConfigDef()
    version: ClassVar[str] = "0"

    def configure(self, props: Mapping[str, Any], is_key: bool) -> None:
        """Called once, before anything else. Raises ConfigError."""
        self.config = self.config_def.parse(props)

    @abstractmethod
    def from_connect(self, topic: str, schema: Schema | None, value: Any) -> bytes | None:
        """The bytes for a topic."""

    @abstractmethod
    def to_connect(self, topic: str, data: bytes | None) -> SchemaAndValue:
        """What bytes from a topic mean."""

    def close(self) -> None:  # noqa: B027 - most have nothing to give back
        """Give back what it holds."""


class HeaderConverter(ABC):
    """Converts the values of headers."""

    config_def: ClassVar[ConfigDef] = ConfigDef()
    version: ClassVar[str] = "0"

    def configure(self, props: Mapping[str, Any], is_key: bool) -> None:
        """Called once, before anything else. Raises ConfigError."""
        self.config = self.config_def.parse(props)

    @abstractmethod
    def from_header(self, topic: str, header: Header) -> bytes | None:
        """The bytes for a record's header."""

    @abstractmethod
    def to_header(self, topic: str, key: str, data: bytes | None) -> Header:
        """What the bytes of a header mean."""

    def close(self) -> None:  # noqa: B027 - most have nothing to give back
        """Give back what it holds."""


class ConverterOfBoth(Converter, HeaderConverter):
    """A converter that treats the value of a header as it treats the value of a record."""

    def from_header(self, topic: str, header: Header) -> bytes | None:
        return self.from_connect(topic, header.schema, header.value)

    def to_header(self, topic: str, key: str, data: bytes | None) -> Header:
        found = self.to_connect(topic, data)
        return Header(key, found.value, found.schema)
