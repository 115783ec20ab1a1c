"""Avro, either with the schema ids of a schema registry, or with one schema that writers and readers know.

With ``schema.registry.url``, a value is a zero byte, the id of its schema in four bytes, and the Avro data. Other Kafka
clients with a registry use the same format. Schemas are registered under ``<topic>-key`` and ``<topic>-value``. Without
a registry, all values have the schema ``avro.schema``: Avro's JSON, or the name of a file that contains it.
"""

from __future__ import annotations

import io
import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from parley.pipeline.connect.config import (
    BOOLEAN,
    HIGH,
    LIST,
    MEDIUM,
    PASSWORD,
    STRING,
    ConfigDef,
)
from parley.pipeline.connect.converters import Converter
from parley.pipeline.connect.converters.avro_schema import from_avro, to_avro
from parley.pipeline.connect.data import NO_VALUE, LogicalType, Schema, SchemaAndValue, SchemaType, Struct, check_value
from parley.pipeline.connect.errors import ConfigError, DataError, RetriableError
from parley.pipeline.connect.logical_types import TO_LOGICAL
from parley.pipeline.connect.text_values import infer_schema
from parley.pipeline.schemas.avro import expanded, without_logical
from parley.pipeline.schemas.avro_shape import AvroShape
from parley.pipeline.schemas.client import Client, RegistryAway, RegistryRefused, Settings, client_of, framed, unframed
from parley.pipeline.schemas.model import BadSchema, Loader, no_references
from parley.pipeline.schemas.model import Schema as Registered
from parley.pipeline.schemas.model import SchemaType as Language

_READ_HERE: Final = frozenset({"decimal", "uuid", "local-timestamp-millis", "local-timestamp-micros"})
"""Logical types that fastavro reads as their primitive types. Connect has only decimals, which ``_typed`` converts."""


class AvroConverter(Converter):
    """A converter of Avro data. See the module docstring."""

    config_def = (
        ConfigDef()
        .define("schema.registry.url", LIST, [], HIGH)
        .doc("Registries, tried in this order.")
        .define("basic.auth.user.info", PASSWORD, None, MEDIUM)
        .doc("user:password for registries.")
        .define("auto.register.schemas", BOOLEAN, True, MEDIUM)
        .doc("Register schemas that are new.")
        .define("avro.schema", STRING, None, HIGH)
        .doc("Without a registry: the schema, or its file.")
    )

    def configure(self, props: Mapping[str, Any], is_key: bool) -> None:
        super().configure(props, is_key)
        self._ending = "-key" if is_key else "-value"
        self._fixed: _Parsed | None = None
        self._registry: Client | None = None
        self._by_id: dict[int, _Parsed] = {}
        self._written: dict[tuple[str, Schema], tuple[int, _Parsed]] = {}
        if self.config["schema.registry.url"]:
            user = self.config["basic.auth.user.info"]
            login = {} if user is None else {"basic.auth.user.info": user.value}
            self._registry = client_of(Settings.of({"url": ",".join(self.config["schema.registry.url"]), **login}))
        elif self.config["avro.schema"]:
            self._fixed = _Parsed(Registered(Language.AVRO, _read_schema(self.config["avro.schema"])))
        else:
            raise ConfigError("Avro needs schema.registry.url, or avro.schema.")

    def from_connect(self, topic: str, schema: Schema | None, value: Any) -> bytes | None:
        if value is None:
            return None
        if self._fixed is not None:
            return self._fixed.write(value)
        schema = infer_schema(value) if schema is None else schema
        if schema is None:
            raise DataError(
                f"A value of topic {topic} has no schema, and none can be derived from {type(value).__name__}."
            )
        number, parsed = self._registered(topic + self._ending, schema)
        return framed(number) + parsed.write(value)

    def _registered(self, subject: str, schema: Schema) -> tuple[int, _Parsed]:
        known = self._written.get((subject, schema))
        if known is None:
            assert self._registry is not None
            avro = Registered(Language.AVRO, json.dumps(to_avro(schema)))
            resolve = self._registry.register if self.config["auto.register.schemas"] else self._registry.look_up
            with _registry_errors():
                known = self._written[subject, schema] = (resolve(subject, avro), _Parsed(avro))
        return known

    def to_connect(self, topic: str, data: bytes | None) -> SchemaAndValue:
        if data is None:
            return NO_VALUE
        if self._fixed is not None:
            return self._fixed.read(data, 0)
        try:
            number, begin = unframed(data)
        except ValueError as error:
            raise DataError(f"A value of topic {topic} cannot be read: {error}.") from None
        parsed = self._by_id.get(number)
        if parsed is None:
            assert self._registry is not None
            with _registry_errors():
                parsed = self._by_id[number] = _Parsed(self._registry.schema(number), self._registry.load)
        return parsed.read(data, begin)


@contextmanager
def _registry_errors() -> Iterator[None]:
    """Turn the registry's errors in the body of ``with`` into Connect's: RetriableError if the registry does not
    respond, DataError if it rejects a request or a schema is invalid.
    """
    try:
        yield
    except RegistryAway as error:
        raise RetriableError(str(error)) from None
    except (RegistryRefused, BadSchema) as error:
        raise DataError(str(error)) from None


def _read_schema(given: str) -> str:
    """Return the schema that is given as JSON or as the name of a file. Raises ConfigError."""
    try:
        text = given if given.lstrip()[:1] in ("{", "[", '"') else Path(given).read_text()
        json.loads(text)
        return text
    except (OSError, ValueError) as error:
        raise ConfigError(f"Invalid value {given} for configuration avro.schema: {error}") from None


class _Parsed:
    """An Avro schema, parsed for reading and writing."""

    def __init__(self, schema: Registered, load: Loader = no_references) -> None:
        names: dict[str, Any] = {}
        try:
            self._avro = expanded(schema, load, names)
            read_as = without_logical(self._avro, names, _READ_HERE)
            self.schema = from_avro(json.loads(schema.text))
        except (BadSchema, KeyError, ValueError) as error:
            raise DataError(f"The Avro schema cannot be used: {error}") from None
        try:
            self._read: Callable[[bytes, int], Any] | None = AvroShape(names).reader(self._avro, read_as)
        except BadSchema as error:
            self._read, self._unreadable = None, str(error)

    def write(self, value: Any) -> bytes:
        import fastavro

        out = io.BytesIO()
        try:
            check_value(self.schema, value)
            fastavro.schemaless_writer(out, self._avro, _plain(value))
        except (ValueError, TypeError, KeyError, AttributeError, OverflowError) as error:
            raise DataError(f"Failed to serialize Avro data: {error}") from None
        return out.getvalue()

    def read(self, data: bytes, pos: int) -> SchemaAndValue:
        if self._read is None:
            raise DataError(f"Failed to deserialize Avro data: {self._unreadable}")
        try:
            return SchemaAndValue(self.schema, _typed(self.schema, self._read(data, pos)))
        except ValueError as error:
            raise DataError(f"Failed to deserialize Avro data: {error}") from None


def _plain(value: Any) -> Any:
    """Return the value for fastavro: structs as dictionaries, maps with non-string keys as lists of entries."""
    match value:
        case Struct():
            return {name: _plain(one) for name, one in value.items()}
        case list() | tuple():
            return [_plain(one) for one in value]
        case dict() if not all(isinstance(key, str) for key in value):
            return [{"key": _plain(key), "value": _plain(one)} for key, one in value.items()]
        case dict():
            return {key: _plain(one) for key, one in value.items()}
        case bytearray() | memoryview():
            return bytes(value)
        case _:
            return value


def _typed(schema: Schema, value: Any) -> Any:
    """Return a value from fastavro in the form of its Connect schema."""
    if value is None:
        return None
    match schema.type:
        case SchemaType.STRUCT:
            made = Struct(schema)
            for one in schema.fields:
                made.values[one.name] = _typed(one.schema, value.get(one.name))
            return made
        case SchemaType.ARRAY:
            assert schema.value_schema is not None
            return [_typed(schema.value_schema, one) for one in value]
        case SchemaType.MAP:
            assert schema.key_schema is not None
            assert schema.value_schema is not None
            pairs = value.items() if isinstance(value, dict) else ((one["key"], one["value"]) for one in value)
            return {_typed(schema.key_schema, key): _typed(schema.value_schema, one) for key, one in pairs}
    return TO_LOGICAL[LogicalType.DECIMAL](schema, value) if schema.name == LogicalType.DECIMAL else value
