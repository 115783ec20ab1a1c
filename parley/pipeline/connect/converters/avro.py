"""Avro: with a schema registry's numbers before each value, or with one schema that both ends know.

With ``schema.registry.url`` a value is a zero byte, the number of its schema in four bytes, and the datum: what Kafka's
other clients with a registry write and read. Schemas are registered under ``<topic>-key`` and ``<topic>-value``.
Without a registry all values are data of ``avro.schema``, which is Avro's JSON, or the name of a file with it.
"""

from __future__ import annotations

import base64
import io
import json
import struct as packing
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from parley.pipeline.connect.config import ConfigDef, ConfigType, Importance, Password
from parley.pipeline.connect.converters import Converter
from parley.pipeline.connect.converters.avro_schema import from_avro, to_avro
from parley.pipeline.connect.data import NO_VALUE, Schema, SchemaAndValue, SchemaType, Struct, check_value
from parley.pipeline.connect.errors import ConfigError, DataError, RetriableError
from parley.pipeline.connect.text_values import infer_schema

__all__ = ["AvroConverter"]

_HEAD: Final = packing.Struct(">bI")
_TIMEOUT_S: Final = 10.0
_ANSWER_BYTES_MAX: Final = 1 << 24
_TYPE: Final = "application/vnd.schemaregistry.v1+json"
_NO_SERVICE: Final = 500


class AvroConverter(Converter):
    """See the module."""

    config_def = (
        ConfigDef()
        .define("schema.registry.url", ConfigType.LIST, [], Importance.HIGH, "Registries, tried in this order.")
        .define("basic.auth.user.info", ConfigType.PASSWORD, None, Importance.MEDIUM, "user:password for registries.")
        .define("auto.register.schemas", ConfigType.BOOLEAN, True, Importance.MEDIUM, "Register schemas that are new.")
        .define("avro.schema", ConfigType.STRING, None, Importance.HIGH, "Without a registry: the schema, or its file.")
    )

    def configure(self, props: Mapping[str, Any], is_key: bool) -> None:
        super().configure(props, is_key)
        self._ending = "-key" if is_key else "-value"
        self._fixed: _Parsed | None = None
        self._registry: _Registry | None = None
        self._by_id: dict[int, _Parsed] = {}
        self._written: dict[tuple[str, Schema], tuple[int, _Parsed]] = {}
        if self.config["schema.registry.url"]:
            self._registry = _Registry(self.config["schema.registry.url"], self.config["basic.auth.user.info"])
        elif self.config["avro.schema"]:
            self._fixed = _Parsed(_read_schema(self.config["avro.schema"]))
        else:
            raise ConfigError("Avro needs schema.registry.url, or avro.schema.")

    def from_connect(self, topic: str, schema: Schema | None, value: Any) -> bytes | None:
        if value is None:
            return None
        if self._fixed is not None:
            return self._fixed.write(value)
        schema = infer_schema(value) if schema is None else schema
        if schema is None:
            raise DataError(f"A value of topic {topic} has no schema, and none can be made of {type(value).__name__}.")
        number, parsed = self._registered(topic + self._ending, schema)
        return _HEAD.pack(0, number) + parsed.write(value)

    def _registered(self, subject: str, schema: Schema) -> tuple[int, _Parsed]:
        known = self._written.get((subject, schema))
        if known is None:
            assert self._registry is not None
            avro = to_avro(schema)
            number = self._registry.number_of(subject, avro, registers=self.config["auto.register.schemas"])
            known = self._written[subject, schema] = (number, _Parsed(avro))
        return known

    def to_connect(self, topic: str, data: bytes | None) -> SchemaAndValue:
        if data is None:
            return NO_VALUE
        if self._fixed is not None:
            return self._fixed.read(data, 0)
        if len(data) < _HEAD.size or data[0] != 0:
            raise DataError(f"A value of topic {topic} has no number of a schema before it.")
        number = _HEAD.unpack_from(data)[1]
        parsed = self._by_id.get(number)
        if parsed is None:
            assert self._registry is not None
            parsed = self._by_id[number] = _Parsed(self._registry.schema_of(number))
        return parsed.read(data, _HEAD.size)


def _read_schema(given: str) -> Any:
    """The schema in a text, or in the file that it names. Raises ConfigError."""
    try:
        text = given if given.lstrip()[:1] in ("{", "[", '"') else Path(given).read_text()
        return json.loads(text)
    except (OSError, ValueError) as error:
        raise ConfigError(f"Invalid value {given} for configuration avro.schema: {error}") from None


class _Parsed:
    """An Avro schema, ready to read and to write."""

    def __init__(self, avro: Any) -> None:
        import fastavro

        try:
            self._avro = fastavro.parse_schema(avro)
            self.schema = from_avro(avro)
        except (fastavro.schema.SchemaParseException, fastavro.schema.UnknownType, KeyError, ValueError) as error:
            raise DataError(f"The Avro schema cannot be used: {error}") from None

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
        import fastavro

        stream = io.BytesIO(data)
        stream.seek(pos)
        try:
            value = fastavro.schemaless_reader(stream, self._avro, None)
        except Exception as error:  # the reader raises whatever odd bytes lead to
            raise DataError(f"Failed to deserialize Avro data: {type(error).__name__}: {error}") from None
        if stream.tell() != len(data):
            raise DataError(f"Failed to deserialize Avro data: {len(data) - stream.tell()} bytes are left over")
        return SchemaAndValue(self.schema, _typed(self.schema, value))


def _plain(value: Any) -> Any:
    """What fastavro writes: structs and maps with odd keys are dictionaries and lists of entries."""
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
    """What was read, as the schema has it."""
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
    return value


class _Registry:
    """A schema registry, asked over HTTP."""

    def __init__(self, urls: list[str], user: Password | None) -> None:
        self._urls = [url.rstrip("/") for url in urls]
        self._headers = {"Content-Type": _TYPE, "Accept": _TYPE}
        if user is not None:
            self._headers["Authorization"] = "Basic " + base64.b64encode(user.value.encode()).decode()

    def schema_of(self, number: int) -> Any:
        """The schema with that number. Raises DataError, RetriableError."""
        return json.loads(self._ask(f"/schemas/ids/{number}")["schema"])

    def number_of(self, subject: str, schema: Any, *, registers: bool) -> int:
        """The number of the schema under the subject. Raises DataError where it is not there and not registered."""
        path = f"/subjects/{urllib.parse.quote(subject, safe='')}" + ("/versions" if registers else "")
        return int(self._ask(path, {"schema": json.dumps(schema)})["id"])

    def _ask(self, path: str, body: Any = None) -> Any:
        failures = []
        for url in self._urls:
            data = None if body is None else json.dumps(body).encode()
            request = urllib.request.Request(url + path, data, self._headers)
            try:
                with urllib.request.urlopen(request, timeout=_TIMEOUT_S) as answer:
                    return json.loads(answer.read(_ANSWER_BYTES_MAX))
            except urllib.error.HTTPError as error:
                text = error.read(1000).decode(errors="replace")
                if error.code < _NO_SERVICE:
                    raise DataError(f"The schema registry {url} refused {path}: {error.code} {text}") from None
                failures.append(f"{url}: {error.code} {text}")
            except (OSError, ValueError) as error:
                failures.append(f"{url}: {error}")
        raise RetriableError("No schema registry answers: " + "; ".join(failures))
