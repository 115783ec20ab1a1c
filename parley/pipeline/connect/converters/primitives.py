"""Converters of one type each: text, bytes, numbers, booleans. They use the formats of Kafka's converters."""

from __future__ import annotations

import struct as packing
from collections.abc import Mapping
from typing import Any, ClassVar

from parley.pipeline.connect import data
from parley.pipeline.connect.config import HIGH, STRING, ConfigDef
from parley.pipeline.connect.converters import ConverterOfBoth
from parley.pipeline.connect.data import Schema, SchemaAndValue, SchemaType
from parley.pipeline.connect.errors import ConfigError, DataError
from parley.pipeline.connect.text_values import to_text


class StringConverter(ConverterOfBoth):
    """Writes any value as text. Reads text as values of the optional string schema."""

    config_def = (
        ConfigDef().define("converter.encoding", STRING, "UTF-8", HIGH).doc("The encoding of the text in the topic.")
    )

    def configure(self, props: Mapping[str, Any], is_key: bool) -> None:
        super().configure(props, is_key)
        self._encoding = self.config["converter.encoding"]
        try:
            "".encode(self._encoding)
        except LookupError:
            raise ConfigError(f"Invalid value {self._encoding} for configuration converter.encoding") from None

    def from_connect(self, topic: str, schema: Schema | None, value: Any) -> bytes | None:
        if value is None:
            return None
        return (value if isinstance(value, str) else to_text(value)).encode(self._encoding)

    def to_connect(self, topic: str, data_: bytes | None) -> SchemaAndValue:
        try:
            return SchemaAndValue(data.OPTIONAL_STRING, None if data_ is None else data_.decode(self._encoding))
        except UnicodeDecodeError as error:
            raise DataError(f"Failed to deserialize string in topic {topic}: {error}") from None


class ByteArrayConverter(ConverterOfBoth):
    """Passes bytes on unchanged."""

    def from_connect(self, topic: str, schema: Schema | None, value: Any) -> bytes | None:
        if schema is not None and schema.type is not SchemaType.BYTES:
            raise DataError(f"Invalid schema type for ByteArrayConverter: {schema.type.name}")
        if value is None or isinstance(value, bytes | bytearray | memoryview):
            return None if value is None else bytes(value)
        raise DataError(f"ByteArrayConverter is not compatible with objects of type {type(value).__name__}")

    def to_connect(self, topic: str, data_: bytes | None) -> SchemaAndValue:
        return SchemaAndValue(data.OPTIONAL_BYTES, data_)


class _NumberConverter(ConverterOfBoth):
    """A converter of big-endian numbers of a fixed width."""

    schema: ClassVar[Schema]
    form: ClassVar[packing.Struct]

    def from_connect(self, topic: str, schema: Schema | None, value: Any) -> bytes | None:
        if schema is not None and schema.type is not self.schema.type:
            raise DataError(f"Invalid schema type for {type(self).__name__}: {schema.type.name}")
        data.check_value(self.schema, value)
        return None if value is None else self.form.pack(value)

    def to_connect(self, topic: str, data_: bytes | None) -> SchemaAndValue:
        if data_ is not None and len(data_) != self.form.size:
            raise DataError(
                f"a value of {len(data_)} bytes in topic {topic}: {type(self).__name__} expects {self.form.size}"
            )
        return SchemaAndValue(self.schema, None if data_ is None else self.form.unpack(data_)[0])


class ShortConverter(_NumberConverter):
    schema = data.INT16.as_optional()
    form = packing.Struct(">h")


class IntegerConverter(_NumberConverter):
    schema = data.OPTIONAL_INT32
    form = packing.Struct(">i")


class LongConverter(_NumberConverter):
    schema = data.OPTIONAL_INT64
    form = packing.Struct(">q")


class FloatConverter(_NumberConverter):
    schema = data.FLOAT32.as_optional()
    form = packing.Struct(">f")


class DoubleConverter(_NumberConverter):
    schema = data.OPTIONAL_FLOAT64
    form = packing.Struct(">d")


class BooleanConverter(_NumberConverter):
    schema = data.OPTIONAL_BOOLEAN
    form = packing.Struct(">?")
