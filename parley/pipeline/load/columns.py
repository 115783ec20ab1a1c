"""Turns records into rows: the columns of a loaded topic.

By default the columns are those of Spark's Kafka source, with keys and values as bytes. A ``Layout`` decides how keys
and values are read, and into which columns they go:

- ``binary``, ``string`` (UTF-8), ``base64``: one column.
- ``json``: a struct of the schema's fields. A field that the record lacks is null. Fields outside the schema are
  ignored.
- ``avro``: a datum of the Avro schema; ``avro-confluent``: a datum after a zero byte and the four bytes of a schema id,
  as with schema registries.

With ``flat``, the fields of the value's struct become columns, and the names of Kafka's columns begin with an
underscore. The event time is the record's timestamp or a field of the value. Rows without event time go to the folder
``NO_TIME``, which has Hive's name for such rows.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from parley.pipeline.client.decode import kafka_schema
from parley.pipeline.load.value_reading import NOT_FITTING, ValueSchema, jsonable, moment, reader
from parley.pipeline.values.json_text import dumps

FORMATS: Final = ("binary", "string", "base64", "json", "avro", "avro-confluent")
STRUCTURED: Final = frozenset({"json", "avro", "avro-confluent"})
CORRUPT: Final = "_corrupt"
"""The column for the bytes of unreadable values, if such records are kept."""
_MOMENT: Final = pa.timestamp("us", tz="UTC")
_NO_TIMESTAMP: Final = pa.scalar(-1000, _MOMENT)
"""The timestamp of records without one (Kafka stores -1 ms)."""
NO_TIME: Final = "__HIVE_DEFAULT_PARTITION__"
FOLDERS: Final[dict[str, tuple[tuple[str, str], ...]]] = {
    "year": (("year", "%Y"),),
    "month": (("month", "%Y-%m"),),
    "day": (("date", "%Y-%m-%d"),),
    "hour": (("date", "%Y-%m-%d"), ("hour", "%H")),
}
"""For each way to partition files: the columns after which the folders are named, and the formats of their values."""


class BadRecord(Exception):
    """Raised if a record's key or value does not match the schema. The message names the record and the reason."""


class BadLayout(ValueError):
    """Raised if the requested columns are impossible. The message says why."""


@dataclass(frozen=True)
class Layout:
    """The settings that decide how records become rows. Raises BadLayout if they contradict each other."""

    key_format: str = "binary"
    value_format: str = "binary"
    schema: ValueSchema | None = None
    flat: bool = False
    bad_records: str = "fail"
    """``fail``, ``drop``, or ``keep`` (with a null value, and the value's bytes in the column ``CORRUPT``)."""
    partition_by: str | None = None
    event_time: str | None = None
    text: bool = False
    """True if the file format has no nested columns and no bytes: nested values become JSON, and bytes base64."""

    def __post_init__(self) -> None:
        structured = self.value_format in STRUCTURED
        for kind in (self.key_format, self.value_format):
            if kind not in FORMATS:
                raise BadLayout(f"Unknown format '{kind}'. Available: {', '.join(FORMATS)}")
        if self.key_format in STRUCTURED:
            raise BadLayout(
                f"the format of keys must be one of {', '.join(one for one in FORMATS if one not in STRUCTURED)}"
            )
        if structured and self.schema is None:
            raise BadLayout(f"the value format {self.value_format} needs a schema")
        if self.value_format.startswith("avro") and (self.schema is None or self.schema.avro is None):
            raise BadLayout("Avro values need an Avro schema")
        if self.flat and not (structured and self.schema is not None and pa.types.is_struct(self.schema.type)):
            raise BadLayout("only values with fields can be flattened: use json or avro with a record schema")
        if self.partition_by is not None and self.partition_by not in FOLDERS:
            raise BadLayout(f"files cannot be partitioned by {self.partition_by}. Available: {', '.join(FOLDERS)}")
        if self.event_time is not None and not (structured and self._has(self.event_time)):
            raise BadLayout(f"the values have no field {self.event_time} for the event time")
        if self.event_time is not None and not _contains_time(self._field(self.event_time)):
            raise BadLayout(
                f"the field {self.event_time} of type {self._field(self.event_time)} does not contain a time"
            )
        names = [*self.columns.names, *self.folders]
        if double := {name for name in names if names.count(name) > 1}:
            raise BadLayout(f"two columns would be named {', '.join(sorted(double))}: rename the fields of the values")

    def _field(self, name: str) -> pa.DataType:
        assert self.schema is not None
        return self.schema.type.field(name).type

    def _has(self, name: str) -> bool:
        return self.schema is not None and self.schema.type.get_field_index(name) >= 0

    @cached_property
    def columns(self) -> pa.Schema:
        """The columns of the files, without those after which folders are named."""
        kafka = kafka_schema(include_headers=True)
        value = self.schema.type if self.schema and self.value_format in STRUCTURED else self._plain(self.value_format)
        plain = [
            ("key", self._plain(self.key_format)),
            ("value", value),
            *((one.name, one.type) for one in kafka if one.name not in ("key", "value", "headers")),
            ("headers", kafka.field("headers").type),
        ]
        if self.flat:
            plain = [
                *((one.name, one.type) for one in value),
                *((f"_{name}", kind) for name, kind in plain if name != "value"),
            ]
        if self.bad_records == "keep":
            plain.append((CORRUPT, pa.binary()))
        return pa.schema([(name, pa.string() if self.text and _no_text(kind) else kind) for name, kind in plain])

    def _plain(self, kind: str) -> pa.DataType:
        return pa.binary() if kind == "binary" else pa.string()

    @property
    def folders(self) -> tuple[str, ...]:
        """The columns after which folders are named."""
        return tuple(name for name, _ in FOLDERS[self.partition_by]) if self.partition_by else ()


def rows(layout: Layout, batch: pa.RecordBatch) -> Iterator[tuple[tuple[str, ...], pa.RecordBatch]]:
    """Yield the rows of decoded records: for each folder, its names and a batch of its rows.

    Raises BadRecord for an unreadable record, unless such records are dropped or kept.
    """
    keys = _text(layout.key_format, batch.column("key"), batch, "key")
    values, times, corrupt = _values(layout, batch)
    columns = {"key": keys, "value": values}
    columns |= {name: batch.column(name) for name in batch.schema.names if name not in columns}
    if layout.text:
        columns["headers"] = _headers_as_json(columns["headers"])
    if layout.event_time is None:
        times = pc.if_else(pc.equal(columns["timestamp"], _NO_TIMESTAMP), None, columns["timestamp"])
    if layout.flat:
        fields = {one.name: pc.struct_field(values, one.name) for one in values.type}
        columns = fields | {f"_{name}": column for name, column in columns.items() if name != "value"}
    if layout.bad_records == "keep":
        columns[CORRUPT] = pc.if_else(corrupt, batch.column("value"), None)
    names = layout.columns.names
    if layout.text:
        columns = {name: _as_text(column) if _no_text(column.type) else column for name, column in columns.items()}
    made = pa.record_batch([columns[name] for name in names], schema=layout.columns)
    if layout.bad_records == "drop":
        keep = pc.invert(corrupt)
        made, times = made.filter(keep), times.filter(keep)
    yield from _divided(layout, made, times)


def _text(kind: str, column: Any, batch: pa.RecordBatch, name: str) -> Any:
    if kind == "binary":
        return column
    if kind == "base64":
        return pa.array([None if one is None else base64.b64encode(one).decode() for one in column.to_pylist()])
    try:
        return column.cast(pa.string())
    except pa.ArrowInvalid:
        for row, one in enumerate(column.to_pylist()):
            try:
                (one or b"").decode()
            except UnicodeDecodeError as error:
                raise BadRecord(
                    f"the {name} of {_where(batch, row)} is not UTF-8 ({error.reason}): use the format base64"
                ) from None
        raise


def _where(batch: pa.RecordBatch, row: int) -> str:
    topic, partition, offset = (batch.column(name)[row].as_py() for name in ("topic", "partition", "offset"))
    return f"{topic}-{partition} at offset {offset}"


def _values(layout: Layout, batch: pa.RecordBatch) -> tuple[Any, Any, Any]:
    """Return three columns: the values; their event times, which are null unless a field contains them; and True for
    each unreadable value.
    """
    column = batch.column("value")
    if layout.value_format not in STRUCTURED:
        values = _text(layout.value_format, column, batch, "value")
        return values, pa.nulls(len(column), _MOMENT), pa.array([False] * len(column))
    assert layout.schema is not None
    found = _Reading(layout, batch, reader(layout.value_format, layout.schema))
    parts = list(found.parts(column.to_pylist(), 0))
    corrupt = pa.concat_arrays([pa.repeat(one.is_corrupt, len(one.values)) for one in parts])
    return *(pa.concat_arrays([one[at] for one in parts]) for at in range(2)), corrupt


class _Part(NamedTuple):
    """Consecutive rows: their values, their event times, and whether they are unreadable."""

    values: Any
    times: Any
    is_corrupt: bool


@dataclass(frozen=True, slots=True)
class _Reading:
    """Reads all values of a batch together. If that fails, it reads halves until it has found the unreadable values."""

    layout: Layout
    batch: pa.RecordBatch
    read: Callable[[list[bytes | None]], pa.Array]

    def parts(self, some: list[bytes | None], first: int) -> Iterator[_Part]:
        """Yield the parts of these values, the first of which belongs to row ``first``. Raises BadRecord for an
        unreadable value if ``bad_records`` is ``fail``.
        """
        try:
            values = self.read(some)
            yield _Part(values, _times(self.layout, values), is_corrupt=False)
        except NOT_FITTING as error:
            if len(some) > 1:
                half = len(some) // 2
                yield from self.parts(some[:half], first)
                yield from self.parts(some[half:], first + half)
                return
            if self.layout.bad_records == "fail":
                raise BadRecord(f"the value of {_where(self.batch, first)} does not fit the schema: {error}") from None
            assert self.layout.schema is not None
            yield _Part(pa.nulls(1, self.layout.schema.type), pa.nulls(1, _MOMENT), is_corrupt=True)


def _times(layout: Layout, values: pa.Array) -> pa.Array:
    """Return the event times of values: null unless a field contains them. Raises one of ``NOT_FITTING``."""
    if layout.event_time is None:
        return pa.nulls(len(values), _MOMENT)
    given = pc.struct_field(values, layout.event_time)
    if given.type == _MOMENT:
        return given
    return pa.array([None if one is None else moment(one) for one in given.to_pylist()], _MOMENT)


def _headers_as_json(headers: Any) -> Any:
    def one(some: list[dict[str, Any]] | None) -> str | None:
        if some is None:
            return None
        pairs = [[each["key"], header_value(each["value"])] for each in some]
        return json.dumps(pairs, ensure_ascii=False, separators=(",", ":"))

    return pa.array([one(some) for some in headers.to_pylist()], pa.string())


def _no_text(kind: pa.DataType) -> bool:
    return bool(pa.types.is_nested(kind) or pa.types.is_binary(kind) or pa.types.is_fixed_size_binary(kind))


def _as_text(column: Any) -> Any:
    """Turn nested values into JSON, and bytes into base64."""
    plain = [jsonable(one, column.type) for one in column.to_pylist()]
    found = [one if one is None or isinstance(one, str) else dumps(one) for one in plain]
    return pa.array(found, pa.string())


def _contains_time(kind: pa.DataType) -> bool:
    known = (pa.types.is_timestamp, pa.types.is_date, pa.types.is_integer, pa.types.is_floating, pa.types.is_string)
    return any(is_kind(kind) for is_kind in known)


def header_value(data: bytes | None) -> str | dict[str, str] | None:
    """Return the value of a header for JSON: a string, or ``{"base64": ...}`` if it is not UTF-8; None for null."""
    try:
        return None if data is None else data.decode()
    except UnicodeDecodeError:
        return {"base64": base64.b64encode(data or b"").decode()}


def _divided(layout: Layout, made: pa.RecordBatch, times: Any) -> Iterator[tuple[tuple[str, ...], pa.RecordBatch]]:
    if layout.partition_by is None or not made.num_rows:
        if made.num_rows:
            yield (), made
        return
    parts = [pc.fill_null(pc.strftime(times, format=pattern), NO_TIME) for _, pattern in FOLDERS[layout.partition_by]]
    names = pc.binary_join_element_wise(*parts, "/")
    for name in pc.unique(names).to_pylist():
        yield tuple(name.split("/")), made.filter(pc.equal(names, name))
