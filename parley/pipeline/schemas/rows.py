"""Converts values, after the id of their schema, to Arrow columns and back: the common part of all schema languages.

``Typed`` can be pickled. The functions for a schema are created once in a process. A value is stored exactly or
rejected (``parley.pipeline.values``): the errors are ValueErrors that say why, and never contain the value.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from types import ModuleType
from typing import Any, Final

import pyarrow as pa

from parley.pipeline.schemas import avro_rows, json_rows, protobuf_rows
from parley.pipeline.schemas.client import Settings, client_of, framed, unframed
from parley.pipeline.schemas.model import BadSchema, Schema, SchemaType
from parley.pipeline.values.exact import DoesNotFit, exact_array, fitter

FORMATS: Final = {"avro": SchemaType.AVRO, "json-schema": SchemaType.JSON, "protobuf": SchemaType.PROTOBUF}
_LANGUAGES: Final[dict[SchemaType, ModuleType]] = {
    SchemaType.AVRO: avro_rows,
    SchemaType.JSON: json_rows,
    SchemaType.PROTOBUF: protobuf_rows,
}
_CACHED: Final = 1000


def column_type(settings: Settings, schema: Schema) -> pa.DataType:
    """Return the type of a column for values of the schema. Raises BadSchema, RegistryRefused and RegistryAway."""
    return _LANGUAGES[schema.type].column_type(schema, client_of(settings).load)


def derived(settings: Settings, subject: str, language: SchemaType, kind: pa.DataType) -> Schema:
    """Return the schema for a column of this type. It keeps the names of the subject's latest version.

    Raises BadColumn, and the errors of ``column_type``.
    """
    latest = client_of(settings).latest(subject)
    before = None if latest is None or latest[1].type is not language else latest[1]
    text: str = _LANGUAGES[language].derived_text(kind, before, client_of(settings).load)
    return Schema(language, text)


@dataclass(frozen=True, slots=True)
class Typed:
    """A column of values with this schema. ``id`` is the schema's id, which precedes each encoded value."""

    settings: Settings
    schema: Schema
    id: int

    def read(self, values: Sequence[bytes | None], bad: Callable[[int, ValueError], None]) -> pa.Array:
        """Return the column of these encoded values. Raises RegistryAway, and what ``bad`` raises.

        Calls ``bad`` with the position of each value that cannot be read. If ``bad`` returns, the value becomes null.
        """
        kind, found = column_type_of(self.settings, self.schema), []
        for at, data in enumerate(values):
            value = None
            if data is not None:
                try:
                    number, begin = unframed(data)
                    value = _reader(self.settings, number, self.schema)(data, begin)
                except ValueError as error:
                    bad(at, error)
            found.append(value)
        try:
            return exact_array(found, kind)
        except DoesNotFit:
            return self._one_by_one(found, kind, bad)

    def _one_by_one(self, values: list[Any], kind: pa.DataType, bad: Callable[[int, ValueError], None]) -> pa.Array:
        fit = fitter(kind)
        for at, value in enumerate(values):
            try:
                values[at] = fit(value)
            except DoesNotFit as error:
                bad(at, error)
                values[at] = None
        return pa.array(values, kind)

    def write(self, column: pa.Array) -> pa.Array:
        """Return the column's values, encoded. Raises ValueError for the first value that the schema cannot represent,
        and RegistryAway.
        """
        fit, write = fitter(column_type_of(self.settings, self.schema)), _writer(self.settings, self.schema)
        head = framed(self.id)
        made = [None if one is None else head + write(fit(one)) for one in column.to_pylist()]
        return pa.array(made, pa.binary())


@lru_cache(_CACHED)
def column_type_of(settings: Settings, schema: Schema) -> pa.DataType:
    """Return the result of ``column_type``, which is computed once for each schema. Raises the errors of
    ``column_type``.
    """
    return column_type(settings, schema)


@lru_cache(_CACHED)
def _reader(settings: Settings, number: int, wanted: Schema) -> Callable[[bytes, int], Any]:
    client = client_of(settings)
    written = client.schema(number)
    if written.type is not wanted.type:
        raise BadSchema(f"its schema is of type {written.type}, not {wanted.type}")
    made: Callable[[bytes, int], Any] = _LANGUAGES[wanted.type].reader(written, wanted, client.load)
    return made


@lru_cache(_CACHED)
def _writer(settings: Settings, schema: Schema) -> Callable[[Any], bytes]:
    made: Callable[[Any], bytes] = _LANGUAGES[schema.type].writer(schema, client_of(settings).load)
    return made
