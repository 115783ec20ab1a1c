"""Writes topics to tables of a database, each record once.

One transaction writes the rows of a range of offsets and the end of the range. The end is stored in the table
``offsets.table``, which is created if necessary. A restarted task reads its offsets from that table. A task that
another task has replaced finds newer offsets there and fails.

``insert.mode``: ``insert`` adds rows; ``upsert`` (PostgreSQL, SQLite, MySQL) adds or replaces rows by primary key;
``update`` changes existing rows. ``pk.mode`` selects the primary key: ``none``, ``kafka`` (topic, partition and
offset), ``record_key`` or ``record_value``, with ``pk.fields``.

A database rounds values that do not fit a column. Therefore each transaction locks the table's columns (``tables``),
reads their types, and converts each value to the type of its column by the rule of ``columns``, or refuses the record.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import groupby
from typing import Any, Final

import pyarrow as pa
import sqlalchemy as sa
from sqlalchemy.dialects import mysql, postgresql, sqlite

from parley.pipeline.connect.config import (
    BOOLEAN,
    HIGH,
    INT,
    LIST,
    MEDIUM,
    STRING,
    ConfigDef,
    ConfigValue,
    at_least,
    non_empty,
    one_of,
)
from parley.pipeline.connect.connector import ExactlyOnceSinkTask, OffsetRange, SinkConnector
from parley.pipeline.connect.connectors.columns import (
    Columns,
    Refused,
    Row,
    StoredRow,
    arrow_type,
    fields_of,
    place,
    plain,
    planned,
    refusing,
)
from parley.pipeline.connect.connectors.sql.column_types import sql_value
from parley.pipeline.connect.connectors.sql.database import CONNECTION, failed, open_engine
from parley.pipeline.connect.connectors.sql.tables import (
    NeedsTableAlone,
    TableColumns,
    add_columns,
    even_if_raced,
    locked,
    make_table,
    making,
    reflected,
    widen_columns,
)
from parley.pipeline.connect.data import Struct
from parley.pipeline.connect.errors import ConnectError, DataError
from parley.pipeline.connect.records import SinkRecord, TopicPartition
from parley.pipeline.values.exact import DoesNotFit, kind_of
from parley.pipeline.values.names import sql_names

_KAFKA_COLUMNS: Final = ("__connect_topic", "__connect_partition", "__connect_offset")
_KAFKA_TYPES: Final = (sa.String(249), sa.Integer(), sa.BigInteger())
_VERSION: Final = "1.0"


_KAFKA_KINDS: Final = (pa.string(), pa.int32(), pa.int64())
_Refusals = list[tuple[SinkRecord, Refused]]


@dataclass(frozen=True, slots=True)
class _Change:
    """The effect of a record on a table: its row is written, or the row with its key is deleted."""

    row: Row
    key: tuple[str, ...]
    is_deletion: bool = False


class SqlSinkTask(ExactlyOnceSinkTask):
    """Writes each range in one transaction."""

    version = _VERSION

    def start(self, props: Mapping[str, str]) -> None:
        self._config = config = SqlSinkConnector.config_def.parse(props)
        self.range_records = config["batch.size"]
        self._name = props.get("name", "")
        self._engine = open_engine(config["connection.url"], config["connection.user"], config["connection.password"])
        self._offsets = sa.Table(
            config["offsets.table"],
            sa.MetaData(),
            sa.Column("connector", sa.String(255), primary_key=True),
            sa.Column("topic", sa.String(249), primary_key=True),
            sa.Column("partition", sa.Integer, primary_key=True, autoincrement=False),
            sa.Column("next_offset", sa.BigInteger, nullable=False),
        )

    def committed(self, partitions: Sequence[TopicPartition]) -> Mapping[TopicPartition, int]:
        table = self._offsets
        wanted = sa.select(table.c.topic, table.c.partition, table.c.next_offset).where(table.c.connector == self._name)
        try:
            even_if_raced(lambda: making(partial(table.create, self._engine, checkfirst=True)))
            with self._engine.connect() as connection:
                found = {TopicPartition(topic, number): end for topic, number, end in connection.execute(wanted)}
        except sa.exc.SQLAlchemyError as error:
            raise failed(error, f"the offsets in {table.name} cannot be read") from error
        return {one: found[one] for one in partitions if one in found}

    def put_range(self, offsets: OffsetRange, records: Sequence[SinkRecord]) -> None:
        try:
            even_if_raced(partial(self._put, offsets, records))
        except sa.exc.SQLAlchemyError as error:
            raise failed(error, f"{offsets} cannot be written") from error

    def _put(self, offsets: OffsetRange, records: Sequence[SinkRecord]) -> None:
        try:
            self._put_once(offsets, records, alone=False)
        except NeedsTableAlone:  # start again: two tasks that both hold the table would wait for each other
            self._put_once(offsets, records, alone=True)

    def _put_once(self, offsets: OffsetRange, records: Sequence[SinkRecord], *, alone: bool) -> None:
        refusals: _Refusals = []
        with self._engine.begin() as connection:
            self._advance(connection, offsets)
            for name, of_it in groupby(records, key=self._table_name):
                changes = self._changes(of_it, refusals)
                if changes:
                    self._write(connection, name, changes, refusals, alone=alone)
            refuse = refusing(self)
            for record, error in refusals:
                refuse(record, error)

    def _advance(self, connection: sa.Connection, offsets: OffsetRange) -> None:
        """Store the end of the range as the next offset. Raises ConnectError if another task has written the range."""
        table = self._offsets
        mine = (
            (table.c.connector == self._name)
            & (table.c.topic == offsets.topic)
            & (table.c.partition == offsets.partition)
        )
        stored = connection.execute(sa.select(table.c.next_offset).where(mine).with_for_update()).scalar()
        if stored is not None and stored > offsets.start:
            raise ConnectError(f"{offsets} was written by another task: {table.name} has {stored}")
        if stored is None:
            values = {"connector": self._name, "topic": offsets.topic, "partition": offsets.partition}
            connection.execute(sa.insert(table).values(**values, next_offset=offsets.end))
        else:
            connection.execute(sa.update(table).where(mine).values(next_offset=offsets.end))

    # Rows.

    def _table_name(self, record: SinkRecord) -> str:
        return str(self._config["table.name.format"]).replace("${topic}", record.topic)

    def _changes(self, records: Iterable[SinkRecord], refusals: _Refusals) -> list[_Change]:
        found = []
        for record in records:
            try:
                change = self._change(record)
            except DataError as error:
                refusals.append((record, error if isinstance(error, Refused) else Refused(str(error))))
                continue
            if change is not None:
                found.append(change)
        return found

    def _change(self, record: SinkRecord) -> _Change | None:
        """Return the change for a record; None for a tombstone to skip. Raises DataError."""
        key, declared = self._key(record)
        if record.value is None:
            is_deletion = self._config["delete.enabled"]
            return _Change(Row(record, key, declared), tuple(key), is_deletion=True) if is_deletion else None
        if not isinstance(record.value, Struct | dict):
            raise Refused(f"{place(record)}: a row needs a struct or an object, not {kind_of(record.value)}")
        values, types = fields_of(record.value, record.value_schema)
        wanted = self._config["fields.whitelist"]
        columns = {name: each for name, each in values.items() if not wanted or name in wanted or name in key}
        differing = [name for name, each in key.items() if not _is_same_key(columns.get(name), each)]
        if differing:
            raise Refused(f"{place(record)}: the primary key and the value differ in {', '.join(differing)}")
        return _Change(Row(record, {**columns, **key}, {**types, **declared}), tuple(key))

    def _key(self, record: SinkRecord) -> tuple[dict[str, Any], dict[str, Any]]:
        """Return the columns of the primary key with their values, and their declared types. Raises DataError."""
        mode, fields = self._config["pk.mode"], self._config["pk.fields"]
        match mode:
            case "none":
                return {}, {}
            case "kafka":
                names = fields or _KAFKA_COLUMNS
                where = (record.original_topic, record.original_kafka_partition, record.original_kafka_offset)
                return dict(zip(names, where, strict=True)), dict(zip(names, _KAFKA_KINDS, strict=True))
            case "record_key":
                source, schema = record.key, record.key_schema
            case _:
                source, schema = record.value, record.value_schema
        if source is not None and not isinstance(source, Struct | dict):
            if len(fields) != 1:
                raise Refused(f"{place(record)}: pk.fields must name one column for a key that has no fields")
            return {fields[0]: plain(source)}, {} if schema is None else {fields[0]: arrow_type(schema)}
        values, declared = ({}, {}) if source is None else fields_of(source, schema)
        names = fields or list(values)
        missing = [name for name in names if values.get(name) is None]
        if missing or not names:
            raise Refused(f"{place(record)}: the primary key lacks {', '.join(missing) or 'any field'}")
        nested = [name for name in names if isinstance(values[name], dict | list)]
        if nested:
            raise Refused(f"{place(record)}: {', '.join(nested)} of the primary key must not be nested")
        return {name: values[name] for name in names}, {name: declared[name] for name in names if name in declared}

    # Tables.

    def _write(
        self, connection: sa.Connection, name: str, changes: Sequence[_Change], refusals: _Refusals, *, alone: bool
    ) -> None:
        """Apply the changes to one table, in order. Consecutive rows with the same columns share a statement.

        Raises ConnectError, and NeedsTableAlone if the table must be changed while other transactions may write to it.
        """
        table = self._reflected(connection, name, alone)
        if table is None and not self._config["auto.create"]:
            raise ConnectError(f"there is no table {name}; auto.create=true creates it")
        target = TableColumns(f"table {name}", self._evolution_key(table), connection, table)
        columns = Columns(target.kinds(), target, fixed=target.fixed(), names=sql_names(connection.dialect.name))
        rows = planned([change.row for change in changes], columns, lambda *refusal: refusals.append(refusal))
        if not rows:
            return
        if table is None or columns.added or columns.widened:
            self._define(connection, name, table, columns, changes[0].key, alone=alone)
            table = reflected(connection, name)
        of_row = {id(change.row): change for change in changes}
        ready = []
        for stored in rows:
            try:
                ready.append((of_row[id(stored.row)], _parameters(stored, table, columns, connection.dialect)))
            except Refused as error:
                refusals.append((stored.row.record, error))
        for (is_deletion, names), alike in groupby(ready, key=lambda one: (one[0].is_deletion, tuple(one[1]))):
            statement = self._deletion(table, names) if is_deletion else self._statement(connection, table, names)
            parameters = [{f"p_{name}": value for name, value in values.items()} for _, values in alike]
            if names:
                connection.execute(statement, parameters)
            for _ in parameters if not names else ():
                connection.execute(sa.insert(table))

    @staticmethod
    def _reflected(connection: sa.Connection, name: str, alone: bool) -> sa.Table | None:
        return locked(connection, name, alone=alone)

    def _evolution_key(self, table: sa.Table | None) -> str | None:
        return None if table is None or self._config["auto.evolve"] else "auto.evolve"

    def _define(
        self,
        connection: sa.Connection,
        name: str,
        table: sa.Table | None,
        columns: Columns,
        key: Sequence[str],
        *,
        alone: bool,
    ) -> None:
        """Create the table or change its columns. Raises NeedsTableAlone if other transactions may write to it."""
        if table is None:
            fixed = dict(zip(key, _KAFKA_TYPES, strict=True)) if self._config["pk.mode"] == "kafka" else {}
            make_table(connection, name, columns.kinds, key, fixed)
            return
        if not alone:
            raise NeedsTableAlone
        add_columns(connection, table, columns.added)
        widen_columns(connection, table, columns.widened)

    def _statement(self, connection: sa.Connection, table: sa.Table, names: tuple[str, ...]) -> Any:
        keys = self._key_names(table)
        values: dict[str, Any] = {name: sa.bindparam(f"p_{name}") for name in names}
        match self._config["insert.mode"]:
            case "insert":
                return sa.insert(table).values(values)
            case "upsert":
                make = _UPSERTS.get(connection.dialect.name)
                if make is None:
                    raise ConnectError(f"insert.mode=upsert is not supported for {connection.dialect.name}")
                return make(table, values, keys)
            case _:
                changed = {name: value for name, value in values.items() if name not in keys}
                return sa.update(table).where(*(table.c[name] == values[name] for name in keys)).values(changed)

    def _deletion(self, table: sa.Table, names: tuple[str, ...]) -> Any:
        return sa.delete(table).where(*(table.c[name] == sa.bindparam(f"p_{name}") for name in names))

    def _key_names(self, table: sa.Table) -> list[str]:
        if self._config["pk.mode"] == "kafka":
            return list(self._config["pk.fields"] or _KAFKA_COLUMNS)
        return list(self._config["pk.fields"] or (column.name for column in table.primary_key))

    def stop(self) -> None:
        self._engine.dispose()


def _parameters(stored: StoredRow, table: sa.Table, columns: Columns, dialect: sa.Dialect) -> dict[str, Any]:
    """Return the values of a row in the driver's form, including nulls. Raises Refused."""
    found = {}
    for name in stored.row.values:
        if name in columns.kinds:
            column = table.c[name]
            try:
                found[name] = sql_value(stored.values.get(name), column, columns.kinds[name], dialect)
            except DoesNotFit as error:
                what = f"{error.given}, which cannot be stored exactly in its column of type {error.kind}"
                raise Refused(f"{place(stored.row.record)}: the field {error.below(name).path} has {what}") from None
    return found


def _on_conflict(insert: Callable[[sa.Table], Any]) -> Callable[[sa.Table, Mapping[str, Any], list[str]], Any]:
    def make(table: sa.Table, values: Mapping[str, Any], keys: list[str]) -> Any:
        statement = insert(table).values(dict(values))
        changed = {name: statement.excluded[name] for name in values if name not in keys}
        if not changed:
            return statement.on_conflict_do_nothing(index_elements=keys)
        return statement.on_conflict_do_update(index_elements=keys, set_=changed)

    return make


def _on_duplicate_key(table: sa.Table, values: Mapping[str, Any], keys: list[str]) -> Any:
    statement = mysql.insert(table).values(dict(values))
    return statement.on_duplicate_key_update({name: statement.inserted[name] for name in values})


_UPSERTS: Final[Mapping[str, Callable[[sa.Table, Mapping[str, Any], list[str]], Any]]] = {
    "postgresql": _on_conflict(postgresql.insert),
    "sqlite": _on_conflict(sqlite.insert),
    "mysql": _on_duplicate_key,
    "mariadb": _on_duplicate_key,
}


def _is_same_key(value: Any, key: Any) -> bool:
    return value is None or (value == key and isinstance(value, bool) is isinstance(key, bool))


class SqlSinkConnector(SinkConnector):
    """A sink that writes to tables of a database. See the module docstring."""

    version = _VERSION
    task_class = SqlSinkTask
    config_def = CONNECTION + (
        ConfigDef()
        .define("insert.mode", STRING, "insert", HIGH, validator=one_of("insert", "upsert", "update"))
        .doc("How rows are written: insert, upsert or update.")
        .define("pk.mode", STRING, "none", HIGH, validator=one_of("none", "kafka", "record_key", "record_value"))
        .doc("The source of the primary key: none, kafka, record_key or record_value.")
        .define("pk.fields", LIST, [], MEDIUM)
        .doc("The columns of the primary key.")
        .define("table.name.format", STRING, "${topic}", MEDIUM, validator=non_empty)
        .doc("The name of a record's table. ${topic} stands for its topic.")
        .define("fields.whitelist", LIST, [], MEDIUM)
        .doc("The fields that become columns. If it is empty, all fields do.")
        .define("auto.create", BOOLEAN, False, MEDIUM)
        .doc("Whether to create a missing table.")
        .define("auto.evolve", BOOLEAN, False, MEDIUM)
        .doc("Whether to add and widen columns.")
        .define("delete.enabled", BOOLEAN, False, MEDIUM)
        .doc("Whether a record with a null value deletes the row of its key.")
        .define("batch.size", INT, 3000, MEDIUM, validator=at_least(1))
        .doc("The largest number of records in a transaction.")
        .define("offsets.table", STRING, "parley_connect_offsets", MEDIUM, validator=non_empty)
        .doc("The table in which the connector keeps the offset of each partition.")
    )

    def validate(self, props: Mapping[str, str]) -> list[ConfigValue]:
        found = {one.name: one for one in super().validate(props)}
        mode, pk_mode = found["insert.mode"].value, found["pk.mode"]
        if mode in ("upsert", "update") and pk_mode.value == "none":
            pk_mode.errors.append(f"Invalid value none for configuration pk.mode: insert.mode {mode} needs a key")
        if found["delete.enabled"].value and pk_mode.value != "record_key":
            pk_mode.errors.append(f"Invalid value {pk_mode.value} for configuration pk.mode: deletes need record_key")
        fields = found["pk.fields"]
        if pk_mode.value == "kafka" and fields.value and len(fields.value) != len(_KAFKA_COLUMNS):
            fields.errors.append("pk.fields must name three columns, for topic, partition and offset")
        return list(found.values())

    def alter_offsets(self, props: Mapping[str, str], offsets: Mapping[TopicPartition, int | None]) -> bool:
        raise ConnectError(
            "The database stores the connector's offsets, so they cannot be changed here: change the rows "
            "of its offsets.table."
        )
