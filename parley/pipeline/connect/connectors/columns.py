"""Records of a sink as an Arrow table: what columnar targets (Parquet, Delta) write.

A struct, or a JSON object without schema, becomes a column for each of its fields; any other value the column
``value``. Beside them, where wanted, stands where the record came from: ``kafka_key``, ``kafka_topic``,
``kafka_partition``, ``kafka_offset`` and ``kafka_timestamp``; a field of the value that has such a name counts more.

Records of one table may differ in their schemas: a field that some do not have is null in them, and numbers take the
wider type. What does not go together raises DataError.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import groupby
from typing import Any, Final

import pyarrow as pa

from parley.pipeline.connect.data import LogicalType, Schema, SchemaType, Struct
from parley.pipeline.connect.errors import DataError
from parley.pipeline.connect.records import SinkRecord

__all__ = ["arrow_type", "plain", "table_of"]

_DECIMAL_DIGITS: Final = 38
_SIMPLE: Final[Mapping[SchemaType, Callable[[], Any]]] = {
    SchemaType.INT8: pa.int8,
    SchemaType.INT16: pa.int16,
    SchemaType.INT32: pa.int32,
    SchemaType.INT64: pa.int64,
    SchemaType.FLOAT32: pa.float32,
    SchemaType.FLOAT64: pa.float64,
    SchemaType.BOOLEAN: pa.bool_,
    SchemaType.STRING: pa.string,
    SchemaType.BYTES: pa.binary,
}
_LOGICAL: Final[Mapping[str, Callable[[Schema], Any]]] = {
    LogicalType.DECIMAL: lambda schema: pa.decimal128(_DECIMAL_DIGITS, int(schema.parameters[LogicalType.SCALE])),
    LogicalType.DATE: lambda schema: pa.date32(),
    LogicalType.TIME: lambda schema: pa.time32("ms"),
    LogicalType.TIMESTAMP: lambda schema: pa.timestamp("ms", "UTC"),
}


def arrow_type(schema: Schema) -> Any:
    """The Arrow type of values of a schema."""
    logical = _LOGICAL.get(schema.name or "")
    if logical is not None:
        return logical(schema)
    if schema.type in _SIMPLE:
        return _SIMPLE[schema.type]()
    if schema.type is SchemaType.STRUCT:
        return pa.struct([pa.field(one.name, arrow_type(one.schema)) for one in schema.fields])
    if schema.value_schema is None:
        raise DataError(f"{schema!r} has no schema of its elements")
    if schema.type is SchemaType.ARRAY:
        return pa.list_(arrow_type(schema.value_schema))
    keys = pa.string() if schema.key_schema is None else arrow_type(schema.key_schema)
    return pa.map_(keys, arrow_type(schema.value_schema))


def plain(value: Any) -> Any:
    """A value without structs: dictionaries in their place."""
    if isinstance(value, Struct):
        return {name: plain(one) for name, one in value.items()}
    if isinstance(value, dict):
        return {key: plain(one) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [plain(one) for one in value]
    return value


def table_of(records: Sequence[SinkRecord], *, with_source: bool = True) -> pa.Table:
    """The records as a table, in their order. Raises DataError."""
    try:
        tables = [_table(schema, list(same)) for schema, same in groupby(records, key=lambda one: one.value_schema)]
        table = pa.concat_tables(tables, promote_options="permissive") if tables else pa.table({})
    except (pa.ArrowException, OverflowError, TypeError, ValueError) as error:
        raise DataError(f"the records do not make a table: {error}") from error
    if not with_source:
        return table
    for name, column in _source(records):
        if name not in table.column_names:
            table = table.append_column(name, column)
    return table


def _table(schema: Schema | None, records: Sequence[SinkRecord]) -> pa.Table:
    """Records of one schema. Tombstones have null in all columns."""
    values: list[Any] = [plain(one.value) for one in records]
    if schema is not None and schema.type is SchemaType.STRUCT:
        return _of_rows(values, pa.schema([pa.field(one.name, arrow_type(one.schema)) for one in schema.fields]))
    kinds = {type(one) for one in values} - {type(None)}
    if schema is None and kinds == {dict}:
        names = dict.fromkeys(name for row in values if row is not None for name in row)
        columns = {name: pa.array([None if row is None else row.get(name) for row in values]) for name in names}
        return pa.table(columns)
    kind = None if schema is None else arrow_type(schema)
    return pa.table({"value": pa.array(values, kind)})


def _of_rows(rows: Iterable[Mapping[str, Any] | None], schema: Any) -> pa.Table:
    listed = list(rows)
    columns = [
        pa.array([None if row is None else row.get(field.name) for row in listed], field.type) for field in schema
    ]
    return pa.table(columns, schema=schema)


def _source(records: Sequence[SinkRecord]) -> list[tuple[str, Any]]:
    """Where the records came from, a column for each part of it."""
    return [
        ("kafka_key", pa.array([_key_text(one.key) for one in records], pa.string())),
        ("kafka_topic", pa.array([one.original_topic for one in records], pa.string())),
        ("kafka_partition", pa.array([one.original_kafka_partition for one in records], pa.int32())),
        ("kafka_offset", pa.array([one.original_kafka_offset for one in records], pa.int64())),
        ("kafka_timestamp", pa.array([one.timestamp for one in records], pa.timestamp("ms", "UTC"))),
    ]


def _key_text(key: Any) -> str | None:
    """A key as text: text as it is, bytes as UTF-8, all else as JSON."""
    if key is None or isinstance(key, str):
        return key
    if isinstance(key, bytes):
        return key.decode(errors="replace")
    return json.dumps(plain(key), default=str, ensure_ascii=False)
