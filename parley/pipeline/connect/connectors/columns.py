"""Converts a sink's records to rows of typed columns, for Parquet files, Delta and Iceberg tables, and databases.

A struct, or a JSON object without a schema, has a column for each field. Any other value is the column ``value``. If
enabled, further columns contain the record's source: ``kafka_key``, ``kafka_topic``, ``kafka_partition``,
``kafka_offset`` and ``kafka_timestamp``. A field of the value with one of these names takes precedence.

``Columns`` takes rows in order and applies the rule of ``parley.pipeline.values``: a value is stored exactly, in a
column that is widened if necessary, or its record is refused. The first value with a known type creates a column.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Protocol

import pyarrow as pa

from parley.pipeline.connect.connector import SinkTask
from parley.pipeline.connect.data import LogicalType, Schema, SchemaType, Struct
from parley.pipeline.connect.errors import DataError
from parley.pipeline.connect.logical_types import from_millis
from parley.pipeline.connect.records import SinkRecord
from parley.pipeline.values.exact import UNKNOWN, DoesNotFit, fits, fitter, json_value, kind_of
from parley.pipeline.values.json_text import dumps
from parley.pipeline.values.names import ANY_NAMES, NameRule
from parley.pipeline.values.widening import DIGITS_MAX, Fractions, is_always_exact, settled, widened

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
    LogicalType.DECIMAL: lambda schema: pa.decimal128(DIGITS_MAX, int(schema.parameters[LogicalType.SCALE])),
    LogicalType.DATE: lambda schema: pa.date32(),
    LogicalType.TIME: lambda schema: pa.time32("ms"),
    LogicalType.TIMESTAMP: lambda schema: pa.timestamp("ms", "UTC"),
}
_SOURCE: Final[Mapping[str, Any]] = {
    "kafka_key": pa.string(),
    "kafka_topic": pa.string(),
    "kafka_partition": pa.int32(),
    "kafka_offset": pa.int64(),
    "kafka_timestamp": pa.timestamp("ms", "UTC"),
}
_NULL_FOLDERS: Final = ("", "__HIVE_DEFAULT_PARTITION__")
"""Values of partition columns that readers interpret as null."""


class Refused(DataError):
    """Raised if a value of a record cannot be stored exactly. The message names the record and the field."""


@dataclass(frozen=True, slots=True)
class Row:
    """The values of a record by column name, and the types that its schema declares for them."""

    record: SinkRecord
    values: Mapping[str, Any]
    declared: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class StoredRow:
    """A row to store: the values of its columns, without nulls."""

    row: Row
    values: Mapping[str, Any]


class Target(Protocol):
    """The table or file to which the rows are written."""

    @property
    def name(self) -> str:
        """The target's name for messages, for example ``table orders``."""
        ...

    @property
    def evolution_key(self) -> str | None:
        """The config that would allow new and wider columns; None if they are allowed."""
        ...

    def column(self, kind: Any) -> Any:
        """Return the target's type for values of an Arrow type; None if the target has none."""
        ...

    def stays_exact(self, name: str, kind: Any) -> bool:
        """Return True if all stored values of a column are exact in the wider type."""
        ...


@dataclass(frozen=True, slots=True)
class FileColumns:
    """A new file, with the columns that its rows need."""

    name: str = "a Parquet file"
    evolution_key: str | None = None

    def column(self, kind: Any) -> Any:
        return kind

    def stays_exact(self, name: str, kind: Any) -> bool:
        return True  # the file is still empty


class Columns:
    """The columns that a target needs for its rows, while the rows are added. This class writes nothing."""

    def __init__(
        self,
        stored: Mapping[str, Any],
        target: Target,
        *,
        required: Iterable[str] = (),
        dividing: Iterable[str] = (),
        fixed: Iterable[str] = (),
        widens: Callable[[Any, Any], bool] = lambda old, new: True,
        names: NameRule = ANY_NAMES,
    ) -> None:
        """Start with the columns that the target has now.

        ``stored`` maps them to their types; ``required`` names those that allow no nulls. ``fixed`` columns are never
        widened. ``widens`` returns True if the target can widen one type to another. ``names`` is the rule for column
        names. ``dividing`` are the partition columns: their values are stored as text, so bytes are refused, as are
        texts that readers take for null.
        """
        self.kinds: dict[str, Any] = dict(stored)
        self._stored = dict(stored)
        self._target = target
        self._required = frozenset(required)
        self._dividing = frozenset(dividing)
        self._fixed = frozenset(fixed)
        self._widens = widens
        self._names = names
        self._rows: list[tuple[Row, dict[str, Any]]] = []
        self._changed: set[str] = set()
        """Columns whose type has changed since some of the rows were added."""
        self._stays_exact: dict[tuple[str, Any], bool] = {}

    def add(self, row: Row) -> None:
        """Add a row. Raises Refused if a value does not fit; the row is then not added."""
        grown: dict[str, Any] = {}
        stored: dict[str, Any] = {}
        for name in self._required:
            if row.values.get(name) is None:
                raise self._refused(row, name, DoesNotFit("null", self.kinds[name]))
        for name in self._dividing:
            value = row.values.get(name)
            if isinstance(value, bytes | bytearray | memoryview) or value in _NULL_FOLDERS:
                text = f"the field {name} has {kind_of(value)}, which would be indistinguishable from null"
                raise Refused(f"{place(row.record)}: {text}, because {self._target.name} is partitioned by it")
        for name, value in row.values.items():
            kind = self.kinds.get(name, UNKNOWN)
            if value is None and kind != UNKNOWN:
                continue
            try:
                if kind == UNKNOWN:
                    raise DoesNotFit(kind_of(value), kind)
                stored[name] = fitter(kind)(value)
            except DoesNotFit as error:
                needed = self._grown(row, name, error)
                if needed is not None:
                    grown[name] = needed
                    stored[name] = fitter(needed)(value)
        if grown and (problem := self._names.problem({**self.kinds, **grown})) is not None:
            raise Refused(f"{place(row.record)}: {problem} in {self._target.name}")
        self._changed |= {name for name in grown if self.kinds.get(name, UNKNOWN) != UNKNOWN}
        self.kinds |= grown
        self._rows.append((row, stored))

    def _grown(self, row: Row, name: str, error: DoesNotFit) -> Any:
        """Return the wider type that a column needs for a value; None if the value is null and no column need be
        created. Raises Refused.
        """
        value, declared = row.values[name], row.declared.get(name)
        is_new = name not in self._stored
        if value is None and (declared is None or not is_new or self._target.evolution_key):
            return None
        if self._target.evolution_key or name in self._fixed:
            raise self._refused(row, name, error, is_lacking=is_new)
        for fractions in Fractions:
            try:
                needed = widened(self.kinds.get(name, UNKNOWN), value, declared, fractions)
            except DoesNotFit as found:
                error = found if error.kind == UNKNOWN else error
                continue
            kind = self._target.column(needed)
            if kind is None and value is None:
                return None
            if kind is None:
                given, target = kind_of(value), self._target.name
                raise Refused(f"{place(row.record)}: the field {name} has {given}, for which {target} has no type")
            if fits(value, kind) and self._keeps(name, kind):
                return kind
        raise self._refused(row, name, error)

    def _keeps(self, name: str, kind: Any) -> bool:
        """Return True if the column can be widened to this type, and all stored and added values are exact in it."""
        stored = self._stored.get(name, UNKNOWN)
        if stored != UNKNOWN and not self._widens(stored, kind):
            return False
        if is_always_exact(self.kinds.get(name, UNKNOWN), kind):
            return True
        if not all(fits(row.values.get(name), kind) for row, _ in self._rows):
            return False
        if is_always_exact(stored, kind):
            return True
        if (name, kind) not in self._stays_exact:
            self._stays_exact[name, kind] = self._target.stays_exact(name, kind)
        return self._stays_exact[name, kind]

    def _refused(self, row: Row, name: str, error: DoesNotFit, *, is_lacking: bool = False) -> Refused:
        key = self._target.evolution_key
        if is_lacking:
            return Refused(f"{place(row.record)}: {self._target.name} lacks {name}; {key}=true adds columns")
        error = error.below(name)
        is_unknown = error.kind == UNKNOWN
        column = (
            "for which no column can be created"
            if is_unknown
            else f"which cannot be stored exactly in its column of type {error.kind}"
        )
        hint = f"; {key}=false keeps the column as it is" if key else ""
        return Refused(f"{place(row.record)}: the field {error.path} has {error.given}, {column}{hint}")

    def finish(self, refuse: Callable[[SinkRecord, Refused], None]) -> list[StoredRow]:
        """Return the rows to store, in order. Call this once, after the last ``add``: it also decides the final
        ``kinds``.

        Calls ``refuse`` for each record whose values do not fit the final types. Raises what ``refuse`` raises.
        """
        for name, kind in self.kinds.items():
            if kind != self._stored.get(name) and kind != settled(kind):
                self.kinds[name] = settled(kind)
                self._changed.add(name)
        self.kinds = {name: kind for name, kind in self.kinds.items() if kind != UNKNOWN or name in self._stored}
        changed = {name: fitter(self.kinds.get(name, UNKNOWN)) for name in self._changed}
        found = []
        for row, stored in self._rows:
            try:
                for name in changed.keys() & row.values.keys():
                    stored[name] = self._again(row, name, changed[name])
                if not self.kinds:
                    raise Refused(f"{place(row.record)}: no field has a value, so no column can be created")
            except Refused as error:
                refuse(row.record, error)
                continue
            found.append(StoredRow(row, {name: value for name, value in stored.items() if value is not None}))
        return found

    def _again(self, row: Row, name: str, fit: Callable[[Any], Any]) -> Any:
        try:
            return fit(row.values[name])
        except DoesNotFit as error:
            raise self._refused(row, name, error) from None

    @property
    def widened(self) -> dict[str, Any]:
        """The new types of present columns that were widened, by name."""
        return {name: self.kinds[name] for name, kind in self._stored.items() if self.kinds[name] != kind}

    @property
    def added(self) -> dict[str, Any]:
        """The types of new columns, by name."""
        return {name: kind for name, kind in self.kinds.items() if name not in self._stored}


def refusing(task: SinkTask) -> Callable[[SinkRecord, Refused], None]:
    """Return a function that passes refused records to the task's reporter (KIP-610), or raises Refused without one."""
    reporter = task.context.errant_records

    def refuse(record: SinkRecord, error: Refused) -> None:
        if reporter is None:
            raise error
        reporter.report(record, error)

    return refuse


def planned(rows: Iterable[Row], columns: Columns, refuse: Callable[[SinkRecord, Refused], None]) -> list[StoredRow]:
    """Add all rows, and return the rows to store. Passes refused records to ``refuse``, and raises what it raises."""
    for row in rows:
        try:
            columns.add(row)
        except Refused as error:
            refuse(row.record, error)
    return columns.finish(refuse)


def arrow_type(schema: Schema) -> Any:
    """Return the Arrow type for values of a schema. Raises DataError if there is none."""
    logical = _LOGICAL.get(schema.name or "")
    if logical is not None:
        try:
            return logical(schema)
        except (KeyError, ValueError) as error:
            raise DataError(f"{schema!r} has no column type: {error}") from None
    if schema.type in _SIMPLE:
        return _SIMPLE[schema.type]()
    if schema.type is SchemaType.STRUCT:
        return pa.struct([pa.field(each.name, arrow_type(each.schema)) for each in schema.fields])
    if schema.value_schema is None:
        raise DataError(f"{schema!r} has no schema of its elements")
    if schema.type is SchemaType.ARRAY:
        return pa.list_(arrow_type(schema.value_schema))
    keys = pa.string() if schema.key_schema is None else arrow_type(schema.key_schema)
    return pa.map_(keys, arrow_type(schema.value_schema))


def plain(value: Any) -> Any:
    """Return a value with dictionaries instead of structs. A timestamp without a time zone is taken as UTC."""
    if isinstance(value, Struct):
        return {name: plain(each) for name, each in value.items()}
    if isinstance(value, dict):
        return {key: plain(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [plain(each) for each in value]
    if isinstance(value, dt.datetime) and value.tzinfo is None:
        return value.replace(tzinfo=dt.UTC)
    return value


def fields_of(value: Any, schema: Schema | None) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the fields of a value as columns, and the types that its schema declares for them. Raises DataError."""
    if schema is not None and schema.type is SchemaType.STRUCT:
        declared = _declared(schema)
    else:
        declared = {} if schema is None else {"value": arrow_type(schema)}
    found = plain(value)
    if value is None:
        return dict.fromkeys(declared), declared
    has_fields = isinstance(value, Struct) or (schema is None and isinstance(value, dict) and _has_names(value))
    return (found if has_fields else {"value": found}), declared


def _has_names(value: Mapping[Any, Any]) -> bool:
    return all(isinstance(name, str) for name in value)


def _declared(schema: Schema) -> dict[str, Any]:
    return {each.name: arrow_type(each.schema) for each in schema.fields}


def row_of(record: SinkRecord, *, with_source: bool) -> Row:
    """Return the record as a row. All value columns of a tombstone are null. Raises Refused and DataError."""
    values, declared = fields_of(record.value, record.value_schema)
    if not with_source:
        return Row(record, values, declared)
    source = {name: each for name, each in _source(record).items() if name not in values}
    return Row(record, {**values, **source}, {**_SOURCE, **declared})


def table_of(
    records: Sequence[SinkRecord],
    columns: Columns,
    refuse: Callable[[SinkRecord, Refused], None],
    *,
    with_source: bool = True,
) -> pa.Table:
    """Return the records as a table with all columns of the target, old and new, in order. Passes refused records to
    ``refuse``.

    Raises what ``refuse`` raises, and DataError if a schema has no column types.
    """
    rows = []
    for record in records:
        try:
            rows.append(row_of(record, with_source=with_source))
        except Refused as error:
            refuse(record, error)
    stored = planned(rows, columns, refuse)
    arrays = {name: pa.array([each.values.get(name) for each in stored], kind) for name, kind in columns.kinds.items()}
    return pa.table(arrays, schema=pa.schema(list(columns.kinds.items())))


def _source(record: SinkRecord) -> dict[str, Any]:
    """Return the columns with the record's source. Raises Refused."""
    try:
        moment = None if record.timestamp is None else from_millis(record.timestamp)
        key = _key_text(record.key)
    except (DataError, UnicodeDecodeError, TypeError, ValueError):
        raise Refused(
            f"{place(record)}: the column kafka_key cannot hold its key exactly, or kafka_timestamp its timestamp; "
            "metadata.columns=false leaves these columns out"
        ) from None
    where = (record.original_topic, record.original_kafka_partition, record.original_kafka_offset)
    return dict(zip(_SOURCE, (key, *where, moment), strict=True))


def _key_text(key: Any) -> str | None:
    """Return a key as text: text unchanged, bytes decoded as UTF-8, anything else as JSON; None for None.

    Raises ValueError if bytes are not UTF-8, or if JSON has no form for the key.
    """
    if key is None or isinstance(key, str):
        return key
    if isinstance(key, bytes):
        return key.decode()
    return dumps(json_value(plain(key)))


def place(record: SinkRecord) -> str:
    """Return the partition and offset of a record, for messages."""
    return f"{record.original_topic}-{record.original_kafka_partition} offset {record.original_kafka_offset}"
