"""From records to rows: what the columns of a loaded topic are.

Without more being said the columns are those of Spark's Kafka source, keys and values as bytes. A `Layout` says how
keys and values are read, and into which columns they go:

- ``binary``, ``string`` (UTF-8), ``base64``: one column.
- ``json``: a struct of the schema's fields; fields that a record lacks are null, others are left out.
- ``avro``: a datum of the Avro schema; ``avro-confluent``: after a zero byte and a schema's number of four bytes, which
  registries of schemas put before it.

With ``flat`` the fields of the value's struct are columns themselves, and those of Kafka have names that begin with an
underscore. Event time is the record's timestamp or a field of the value; a row without one belongs to the folder
`NO_TIME`, as Hive calls it.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, date, datetime
from functools import cached_property
from io import BytesIO
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from pipeline.decode import kafka_schema

FORMATS: Final = ("binary", "string", "base64", "json", "avro", "avro-confluent")
STRUCTURED: Final = frozenset({"json", "avro", "avro-confluent"})
CORRUPT: Final = "_corrupt"
"""The column with the bytes of values that could not be read, where such records are kept."""
NO_TIME: Final = "__HIVE_DEFAULT_PARTITION__"
_CONFLUENT_BYTES: Final = 5
FOLDERS: Final[dict[str, tuple[tuple[str, str], ...]]] = {
    "year": (("year", "%Y"),),
    "month": (("month", "%Y-%m"),),
    "day": (("date", "%Y-%m-%d"),),
    "hour": (("date", "%Y-%m-%d"), ("hour", "%H")),
}
"""The columns that folders are named after, and what stands in them."""


class BadRecord(Exception):
    """A record's key or value is not what the schema says; the text says which record, and why."""


class BadLayout(ValueError):
    """The columns asked for make no sense; the text says why."""


@dataclass(frozen=True, slots=True)
class ValueSchema:
    """The schema of a value: its type in Arrow, and for Avro its definition as parsed JSON."""

    type: pa.DataType
    avro: Any = None


@dataclass(frozen=True)
class Layout:
    """How records become rows. Raises BadLayout for what does not go together."""

    key_format: str = "binary"
    value_format: str = "binary"
    schema: ValueSchema | None = None
    flat: bool = False
    bad_records: str = "fail"
    """``fail``, ``drop`` or ``keep``: with null for the value, and its bytes in the column `CORRUPT`."""
    partition_by: str | None = None
    event_time: str | None = None
    text: bool = False
    """The file format has no nested columns and no bytes: headers become JSON, bytes strings."""

    def __post_init__(self) -> None:
        structured = self.value_format in STRUCTURED
        for kind in (self.key_format, self.value_format):
            if kind not in FORMATS:
                raise BadLayout(f"there is no format {kind}: take one of {', '.join(FORMATS)}")
        if self.key_format in STRUCTURED:
            raise BadLayout(f"keys are read as {', '.join(one for one in FORMATS if one not in STRUCTURED)}")
        if structured and self.schema is None:
            raise BadLayout(f"values as {self.value_format} need a schema")
        if self.value_format.startswith("avro") and (self.schema is None or self.schema.avro is None):
            raise BadLayout("values as Avro need an Avro schema")
        if self.flat and not (structured and self.schema is not None and pa.types.is_struct(self.schema.type)):
            raise BadLayout("only a value with fields can be made flat: take json or avro with a schema of a record")
        if self.partition_by is not None and self.partition_by not in FOLDERS:
            raise BadLayout(f"files are divided by one of {', '.join(FOLDERS)}, not by {self.partition_by}")
        if self.event_time is not None and not (structured and self._has(self.event_time)):
            raise BadLayout(f"the value has no field {self.event_time} to take the event time from")

    def _has(self, name: str) -> bool:
        return self.schema is not None and self.schema.type.get_field_index(name) >= 0

    @cached_property
    def columns(self) -> pa.Schema:
        """The columns of the files; those that name folders are not among them."""
        kafka = kafka_schema(include_headers=True)
        value = self.schema.type if self.schema and self.value_format in STRUCTURED else self._plain(self.value_format)
        plain = [
            ("key", self._plain(self.key_format)),
            ("value", value),
            *((one.name, one.type) for one in kafka if one.name not in ("key", "value", "headers")),
            ("headers", pa.string() if self.text else kafka.field("headers").type),
        ]
        if self.flat:
            plain = [
                *((one.name, one.type) for one in value),
                *((f"_{name}", kind) for name, kind in plain if name != "value"),
            ]
        return pa.schema([*plain, (CORRUPT, pa.binary())] if self.bad_records == "keep" else plain)

    def _plain(self, kind: str) -> pa.DataType:
        return pa.binary() if kind == "binary" else pa.string()

    @property
    def folders(self) -> tuple[str, ...]:
        """The columns that folders are named after."""
        return tuple(name for name, _ in FOLDERS[self.partition_by]) if self.partition_by else ()


def rows(layout: Layout, batch: pa.RecordBatch) -> Iterator[tuple[tuple[str, ...], pa.RecordBatch]]:
    """The rows of decoded records, as the layout wants them, each with the names of its folders.

    Raises BadRecord unless such records are dropped or kept.
    """
    keys = _text(layout.key_format, batch.column("key"), batch, "key")
    values, corrupt = _values(layout, batch)
    columns = {"key": keys, "value": values}
    columns |= {name: batch.column(name) for name in batch.schema.names if name not in columns}
    if layout.text:
        columns["headers"] = _as_json(columns["headers"])
    times = columns["timestamp"] if layout.event_time is None else pc.struct_field(values, layout.event_time)
    if layout.flat:
        fields = {one.name: pc.struct_field(values, one.name) for one in values.type}
        columns = fields | {f"_{name}": column for name, column in columns.items() if name != "value"}
    if layout.bad_records == "keep":
        columns[CORRUPT] = pc.if_else(corrupt, batch.column("value"), None)
    names = layout.columns.names
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
                    f"the {name} of {_where(batch, row)} is no UTF-8 ({error.reason}): read it as base64"
                ) from None
        raise


def _where(batch: pa.RecordBatch, row: int) -> str:
    topic, partition, offset = (batch.column(name)[row].as_py() for name in ("topic", "partition", "offset"))
    return f"{topic}-{partition} at offset {offset}"


def _values(layout: Layout, batch: pa.RecordBatch) -> tuple[Any, Any]:
    """The values as their column, and which of them could not be read."""
    column = batch.column("value")
    if layout.value_format not in STRUCTURED:
        return _text(layout.value_format, column, batch, "value"), pa.array([False] * len(column))
    assert layout.schema is not None
    read = _reader(layout.value_format, layout.schema)
    found: list[Any] = []
    corrupt: list[bool] = []
    for row, data in enumerate(column.to_pylist()):
        try:
            value = None if data is None else read(data)
            pa.scalar(value, layout.schema.type)
        except (ValueError, TypeError, LookupError, EOFError, pa.ArrowException) as error:
            if layout.bad_records == "fail":
                raise BadRecord(f"the value of {_where(batch, row)} does not fit the schema: {error}") from None
            found.append(None)
            corrupt.append(True)
        else:
            found.append(value)
            corrupt.append(False)
    return pa.array(found, layout.schema.type), pa.array(corrupt)


def _reader(kind: str, schema: ValueSchema) -> Callable[[bytes], Any]:
    if kind == "json":
        return lambda data: fitted(json.loads(data), schema.type)
    import fastavro

    parsed = fastavro.parse_schema(schema.avro)
    if kind == "avro":
        return lambda data: _datum(fastavro, parsed, data)

    def framed(data: bytes) -> Any:
        if data[:1] != b"\0" or len(data) < _CONFLUENT_BYTES:
            raise ValueError("it does not begin with a zero byte and a schema's number")
        return _datum(fastavro, parsed, data[_CONFLUENT_BYTES:])

    return framed


def _datum(fastavro: Any, schema: Any, data: bytes) -> Any:
    stream = BytesIO(data)
    value = fastavro.schemaless_reader(stream, schema, None)
    if stream.tell() != len(data):
        raise ValueError("bytes are left over behind the datum")
    return value


def fitted(value: Any, kind: pa.DataType) -> Any:
    """A value of JSON as one that Arrow takes for this type. Raises ValueError and TypeError."""
    if value is None:
        return None
    if pa.types.is_struct(kind):
        if not isinstance(value, dict):
            raise TypeError(f"an object is wanted, not {type(value).__name__}")
        return {one.name: fitted(value.get(one.name), one.type) for one in kind}
    if pa.types.is_list(kind):
        return [fitted(one, kind.value_type) for one in value]
    if pa.types.is_map(kind):
        return [(key, fitted(one, kind.item_type)) for key, one in value.items()]
    if pa.types.is_timestamp(kind):
        return moment(value)
    if pa.types.is_date(kind):
        return date.fromisoformat(value)
    if pa.types.is_string(kind) and not isinstance(value, str):
        return json.dumps(value, separators=(",", ":"), ensure_ascii=False)
    if pa.types.is_floating(kind) and isinstance(value, int):
        return float(value)
    return value


def moment(value: Any) -> datetime:
    """A moment from ISO 8601 (UTC where no zone is given) or milliseconds since 1970."""
    if isinstance(value, str):
        found = datetime.fromisoformat(value)
        return found if found.tzinfo else found.replace(tzinfo=UTC)
    return datetime.fromtimestamp(value / 1000, UTC)


def _as_json(headers: Any) -> Any:
    def one(some: list[dict[str, Any]] | None) -> str | None:
        if some is None:
            return None
        pairs = [[each["key"], _shown(each["value"])] for each in some]
        return json.dumps(pairs, ensure_ascii=False, separators=(",", ":"))

    return pa.array([one(some) for some in headers.to_pylist()], pa.string())


def _shown(data: bytes | None) -> str | None:
    return None if data is None else data.decode(errors="replace")


def _divided(layout: Layout, made: pa.RecordBatch, times: Any) -> Iterator[tuple[tuple[str, ...], pa.RecordBatch]]:
    if layout.partition_by is None or not made.num_rows:
        if made.num_rows:
            yield (), made
        return
    moments = _moments(times)
    parts = [pc.fill_null(pc.strftime(moments, format=pattern), NO_TIME) for _, pattern in FOLDERS[layout.partition_by]]
    names = pc.binary_join_element_wise(*parts, "/")
    for name in pc.unique(names).to_pylist():
        yield tuple(name.split("/")), made.filter(pc.equal(names, name))


def _moments(times: Any) -> Any:
    """Event times as timestamps: of milliseconds since 1970, of ISO 8601, or as they are."""
    if pa.types.is_timestamp(times.type):
        return times.cast(pa.timestamp("us", tz="UTC")) if times.type.tz is None else times
    if pa.types.is_integer(times.type):
        return pc.cast(times, pa.int64()).cast(pa.timestamp("ms", tz="UTC"))
    if pa.types.is_date(times.type):
        return times.cast(pa.timestamp("ms")).cast(pa.timestamp("ms", tz="UTC"))
    found = [None if one is None else moment(one) for one in times.to_pylist()]
    return pa.array(found, pa.timestamp("us", tz="UTC"))
