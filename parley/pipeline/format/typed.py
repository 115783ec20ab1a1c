"""Typed columns: ``valueFormat`` and ``keyFormat`` with a schema registry, of the source and of the sink.

Rules:

1. The driver gets the reader's schema from the registry once, when a query is planned: the latest version, or the one
   that ``valueSchemaVersion`` names. It is the type of the column until the query is started again.
2. Tasks get the schema of each id in the data from the registry, and read the data into the reader's schema.
3. A value that cannot be read exactly fails the task (``mode`` FAILFAST) or is null (PERMISSIVE); the text names
   topic, partition and offset, and never the value.
4. The sink registers the schema of a column on the driver, before the first task runs.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from pyspark.sql.types import ArrayType, DataType, MapType, StructField, StructType, VariantType

from parley.pipeline.schemas.client import PREFIX, Settings, client_of
from parley.pipeline.schemas.model import BadSchema, Schema, SchemaType, inside
from parley.pipeline.schemas.rows import FORMATS, Typed, column_type, derived

if TYPE_CHECKING:
    import pyarrow as pa


_COLUMNS: Final = ("key", "value")
_MODES: Final = ("FAILFAST", "PERMISSIVE")
_log = logging.getLogger(__name__)


class BadValue(ValueError):
    """Raised if a value does not match its schema when it is read or written. The message never contains the value."""


@dataclass(frozen=True, slots=True)
class RequestedColumn:
    """What the options request for a column. ``version`` is None for the latest version."""

    column: str
    language: SchemaType
    settings: Settings
    subject: str
    version: int | None
    is_pinned: bool
    """True if the options name a version, or ``latest``. The sink then writes with that version and registers no
    schema.
    """
    is_permissive: bool


@dataclass(frozen=True, slots=True)
class TypedColumn:
    """A column as the tasks read or write it."""

    column: str
    typed: Typed
    is_permissive: bool = False


def requested_columns(options: Mapping[str, str], topic: str | None) -> tuple[RequestedColumn, ...]:
    """Read the options for typed columns. Raises ValueError.

    ``topic`` is the only topic of the query, which determines the default subjects; None if there are several.
    """
    given = {key.lower(): value.strip() for key, value in options.items()}
    formats = {column: given[f"{column}format"] for column in _COLUMNS if given.get(f"{column}format")}
    if not formats:
        return ()
    prefixed = {key.removeprefix(PREFIX): value for key, value in given.items() if key.startswith(PREFIX)}
    settings = Settings.of(prefixed)
    mode = given.get("mode", "FAILFAST").upper()
    if mode not in _MODES:
        raise ValueError(f"'mode' is {mode!r}; it must be FAILFAST or PERMISSIVE")
    found = []
    for column, text in formats.items():
        if text.lower() not in FORMATS:
            raise ValueError(f"'{column}Format' is {text!r}; it must be {', '.join(FORMATS)}")
        subject = given.get(f"{column}subject") or (f"{topic}-{column}" if topic else "")
        if not subject:
            raise ValueError(
                f"set '{column}Subject' to the subject of the {column}s: with several topics there is no default"
            )
        version = given.get(f"{column}schemaversion", "")
        if version and version != "latest" and not (version.isascii() and version.isdigit()):
            raise ValueError(f"'{column}SchemaVersion' is {version!r}; it must be a number or latest")
        number = int(version) if version and version != "latest" else None
        language = FORMATS[text.lower()]
        found.append(RequestedColumn(column, language, settings, subject, number, bool(version), mode == "PERMISSIVE"))
    return tuple(found)


# --- Reading ---


def columns_of(
    wanted: Sequence[RequestedColumn], given: StructType | None = None
) -> tuple[StructType, tuple[TypedColumn, ...]]:
    """Return the Spark types of the columns, and how tasks read them. Blocks, so only the driver calls it.

    ``given`` are the types that Spark has planned with. The newest version with these types is used, because a later
    version may have been registered since. Raises ValueError, and RegistryAway if no schema registry responds.
    """
    fields, columns = StructType(), []
    for one in wanted:
        planned = None if given is None or one.column not in given.names else given[one.column].dataType
        number, schema, kind = _version(one, planned)
        fields.add(StructField(one.column, kind, True))
        columns.append(TypedColumn(one.column, Typed(one.settings, schema, number), one.is_permissive))
    return fields, tuple(columns)


def _version(one: RequestedColumn, planned: DataType | None) -> tuple[int, Schema, DataType]:
    client = client_of(one.settings)
    versions = client.versions(one.subject) if one.version is None else [one.version]
    newest: tuple[int, Schema, DataType] | None = None
    for version in reversed(versions):
        number, schema = client.version(one.subject, version)
        if schema.type is not one.language:
            raise BadSchema(f"version {version} of {one.subject} is of type {schema.type}, not {one.language}")
        found = number, schema, _spark(column_type(one.settings, schema))
        if planned is None or found[2] == planned:
            return found
        newest = newest or found
    assert newest is not None, "an existing subject has a version"
    return newest


def _spark(kind: pa.DataType) -> DataType:
    from pyspark.sql.pandas.types import from_arrow_type

    made: DataType = from_arrow_type(kind, prefer_timestamp_ntz=True)
    return made


def typed_rows(batch: pa.RecordBatch, columns: Sequence[TypedColumn]) -> pa.RecordBatch:
    """Return the rows with values in place of bytes in these columns.

    Raises BadValue for a value that does not match its schema, unless the column is permissive. Raises RegistryAway if
    no schema registry responds: then the task must run again.
    """
    import pyarrow as pa

    for one in columns:
        at = batch.schema.get_field_index(one.column)

        def bad(row: int, error: ValueError, one: TypedColumn = one, batch: pa.RecordBatch = batch) -> None:
            topic, partition, offset = (batch.column(name)[row].as_py() for name in ("topic", "partition", "offset"))
            text = f"the {one.column} of {topic}-{partition} at offset {offset} cannot be read: {error}"
            if not one.is_permissive:
                raise BadValue(f"{text}. If the option 'mode' is PERMISSIVE, such values become null") from None
            _log.debug("%s", text)

        made = one.typed.read(batch.column(at).to_pylist(), bad)
        batch = batch.set_column(at, pa.field(one.column, made.type), made)
    return batch


# --- Writing ---


def sinks(wanted: Sequence[RequestedColumn], schema: StructType) -> tuple[TypedColumn, ...]:
    """Register the columns' schemas, and return how tasks write them. Blocks, so only the driver calls it.

    Raises ValueError, and RegistryAway if no schema registry responds.
    """
    made = []
    for one in wanted:
        if one.column not in schema.names:
            raise ValueError(f"'{one.column}Format' is set, but there is no column '{one.column}'")
        kind = _arrow(schema[one.column].dataType, one.column)
        if one.is_pinned:
            number, found, _ = _version(one, None)
        else:
            with inside(one.column):
                found = derived(one.settings, one.subject, one.language, kind)
            number = client_of(one.settings).register(one.subject, found)
            found = client_of(one.settings).schema(number)
        made.append(TypedColumn(one.column, Typed(one.settings, found, number)))
    return tuple(made)


def _arrow(kind: DataType, path: str) -> Any:
    """Return the Arrow type of a column or field. ``path`` is its name, for the ValueError that is raised if it cannot
    be written.
    """
    from pyspark.errors import PySparkTypeError
    from pyspark.sql.pandas.types import to_arrow_type

    for name, part in _parts(kind):
        _arrow(part, f"{path}.{name}")
    try:
        if not isinstance(kind, VariantType):  # in Arrow it would be a struct of its two binary parts
            return to_arrow_type(kind, timezone="UTC")
    except (PySparkTypeError, ValueError):
        pass
    raise ValueError(f"{path} is of type {kind.simpleString()}, which cannot be written: cast it, or leave it out")


def _parts(kind: DataType) -> list[tuple[str, DataType]]:
    if isinstance(kind, StructType):
        return [(field.name, field.dataType) for field in kind]
    if isinstance(kind, ArrayType):
        return [("element", kind.elementType)]
    return [("key", kind.keyType), ("value", kind.valueType)] if isinstance(kind, MapType) else []


def bytes_of(batch: pa.RecordBatch, columns: Sequence[TypedColumn]) -> pa.RecordBatch:
    """Return the rows with encoded bytes in place of values in these columns. Raises BadValue."""
    import pyarrow as pa

    for one in columns:
        at = batch.schema.get_field_index(one.column)
        try:
            made = one.typed.write(batch.column(at))
        except ValueError as error:
            raise BadValue(f"column '{one.column}' has a value that cannot be written: {error}") from None
        batch = batch.set_column(at, pa.field(one.column, pa.binary()), made)
    return batch
