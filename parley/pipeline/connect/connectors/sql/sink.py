"""Topics into tables of a database, each record once.

The rows of a range of offsets and the end of the range are written in one transaction: the end into a row of the table
`offsets.table`, which is made if it is not there. A task that comes back asks that table; one that is late, because
another has taken its place, finds more there than it expects and gives up.

``insert.mode``: ``insert`` adds rows; ``upsert`` (PostgreSQL, SQLite, MySQL) adds or replaces by the primary key;
``update`` changes rows that are there. ``pk.mode`` says what the primary key is: ``none``, ``kafka`` (topic, partition
and offset), ``record_key`` or ``record_value``, with ``pk.fields``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import groupby
from typing import Any, Final

import sqlalchemy as sa
from sqlalchemy.dialects import mysql, postgresql, sqlite

from parley.pipeline.connect.config import ConfigDef, ConfigType, ConfigValue, Importance, at_least, non_empty, one_of
from parley.pipeline.connect.connector import ExactlyOnceSinkTask, OffsetRange, SinkConnector
from parley.pipeline.connect.connectors.columns import plain
from parley.pipeline.connect.connectors.sql.database import (
    CONNECTION,
    failed,
    open_engine,
    sql_type,
    sql_type_of,
    sql_value,
)
from parley.pipeline.connect.data import Schema, SchemaType, Struct
from parley.pipeline.connect.errors import ConnectError, DataError
from parley.pipeline.connect.records import SinkRecord, TopicPartition

__all__ = ["SqlSinkConnector", "SqlSinkTask"]

_KAFKA_COLUMNS: Final = ("__connect_topic", "__connect_partition", "__connect_offset")
_KAFKA_TYPES: Final = (sa.String(249), sa.Integer(), sa.BigInteger())
_VERSION: Final = "1.0"
_HIGH, _MEDIUM = Importance.HIGH, Importance.MEDIUM


@dataclass(frozen=True, slots=True)
class _Row:
    """What a record does to a table: the columns of its key, and all of them; None: the row is deleted."""

    key: Mapping[str, Any]
    columns: Mapping[str, Any] | None
    types: Mapping[str, Any]


class SqlSinkTask(ExactlyOnceSinkTask):
    """Writes a transaction for each range that it is given."""

    version = _VERSION

    def start(self, props: Mapping[str, str]) -> None:
        self._config = config = SqlSinkConnector.config_def.parse(props)
        self.range_records = config["batch.size"]
        self._name = props.get("name", "")
        self._engine = open_engine(config["connection.url"], config["connection.user"], config["connection.password"])
        self._tables: dict[str, sa.Table] = {}
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
            _even_if_raced(lambda: _making(partial(table.create, self._engine, checkfirst=True)))
            with self._engine.connect() as connection:
                found = {TopicPartition(topic, number): end for topic, number, end in connection.execute(wanted)}
        except sa.exc.SQLAlchemyError as error:
            raise failed(error, f"the offsets in {table.name} cannot be read") from error
        return {one: found[one] for one in partitions if one in found}

    def put_range(self, offsets: OffsetRange, records: Sequence[SinkRecord]) -> None:
        try:
            _even_if_raced(partial(self._put, offsets, records))
        except sa.exc.SQLAlchemyError as error:
            raise failed(error, f"{offsets} cannot be written") from error

    def _put(self, offsets: OffsetRange, records: Sequence[SinkRecord]) -> None:
        try:
            with self._engine.begin() as connection:
                self._advance(connection, offsets)
                for name, of_it in groupby(records, key=self._table_name):
                    rows = [row for row in map(self._row, of_it) if row is not None]
                    if rows:
                        self._write(connection, self._table(connection, name, rows), rows)
        except (sa.exc.SQLAlchemyError, _MakingFailed):
            self._tables.clear()  # what was made in the transaction is not there
            raise

    def _advance(self, connection: sa.Connection, offsets: OffsetRange) -> None:
        """Put the end of the range where the next one must begin. Raises ConnectError if another task was there."""
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

    def _row(self, record: SinkRecord) -> _Row | None:
        """What a record does; None for a tombstone that is left out. Raises DataError."""
        key, types = self._key(record)
        if record.value is None:
            if self._config["delete.enabled"]:
                return _Row(key, None, types)
            return None
        if not isinstance(record.value, Struct | dict):
            raise DataError(f"{_place(record)}: a row is made of a struct or a JSON object, not {record.value!r:.100}")
        values = plain(record.value)
        types = {**_types(record.value_schema, values), **types}
        wanted = self._config["fields.whitelist"]
        columns = {name: sql_value(one) for name, one in values.items() if not wanted or name in wanted or name in key}
        return _Row(key, {**columns, **key}, types)

    def _key(self, record: SinkRecord) -> tuple[dict[str, Any], dict[str, Any]]:
        """The columns of the primary key with their values, and their types. Raises DataError."""
        mode, fields = self._config["pk.mode"], self._config["pk.fields"]
        match mode:
            case "none":
                return {}, {}
            case "kafka":
                names = fields or _KAFKA_COLUMNS
                place = (record.original_topic, record.original_kafka_partition, record.original_kafka_offset)
                return dict(zip(names, place, strict=True)), dict(zip(names, _KAFKA_TYPES, strict=True))
            case "record_key":
                source, schema = record.key, record.key_schema
            case _:
                source, schema = record.value, record.value_schema
        if source is not None and not isinstance(source, Struct | dict):
            if len(fields) != 1:
                raise DataError(f"{_place(record)}: pk.fields must name one column for a key that has no fields")
            return {fields[0]: sql_value(source)}, {fields[0]: sql_type(schema) if schema else sql_type_of(source)}
        values = {} if source is None else plain(source)
        names = fields or list(values)
        missing = [name for name in names if values.get(name) is None]
        if missing or not names:
            raise DataError(f"{_place(record)}: the primary key lacks {', '.join(missing) or 'any field'}")
        types = _types(schema, values)
        return {name: sql_value(values[name]) for name in names}, {name: types[name] for name in names}

    # Tables.

    def _table(self, connection: sa.Connection, name: str, rows: Sequence[_Row]) -> sa.Table:
        """The table, made or given the columns that it lacks where that is allowed. Raises ConnectError."""
        table = self._tables.get(name)
        if table is None:
            table = self._looked_up(connection, name, rows)
        needed = {column: row.types[column] for row in rows for column in (row.columns or row.key)}
        missing = {column: kind for column, kind in needed.items() if column not in table.c}
        if missing:
            if not self._config["auto.evolve"]:
                raise ConnectError(f"table {name} lacks {', '.join(missing)}; auto.evolve=true adds columns")
            self._add_columns(connection, table, missing)
            table = self._reflected(connection, name)
        self._tables[name] = table
        return table

    def _looked_up(self, connection: sa.Connection, name: str, rows: Sequence[_Row]) -> sa.Table:
        try:
            return self._reflected(connection, name)
        except sa.exc.NoSuchTableError:
            if not self._config["auto.create"]:
                raise ConnectError(f"there is no table {name}; auto.create=true makes it") from None
        kinds = {column: kind for row in rows for column, kind in row.types.items()}
        keys = set(rows[0].key)
        columns = [sa.Column(one, kind, primary_key=one in keys, autoincrement=False) for one, kind in kinds.items()]
        schema, _, bare = name.rpartition(".")
        table = sa.Table(bare, sa.MetaData(), *columns, schema=schema or None)
        _making(partial(table.create, connection, checkfirst=True))
        return table

    @staticmethod
    def _reflected(connection: sa.Connection, name: str) -> sa.Table:
        schema, _, bare = name.rpartition(".")
        return sa.Table(bare, sa.MetaData(), schema=schema or None, autoload_with=connection)

    @staticmethod
    def _add_columns(connection: sa.Connection, table: sa.Table, missing: Mapping[str, Any]) -> None:
        preparer = connection.dialect.identifier_preparer
        for column, kind in missing.items():
            words = f"{preparer.quote(column)} {kind.compile(dialect=connection.dialect)}"
            added = sa.text(f"ALTER TABLE {preparer.format_table(table)} ADD COLUMN {words}")
            _making(partial(connection.execute, added))

    def _write(self, connection: sa.Connection, table: sa.Table, rows: Sequence[_Row]) -> None:
        """Write rows in their order, those together that say the same columns."""
        for (is_deleted, names), alike in groupby(rows, key=_shape):
            statement = self._deletion(table, names) if is_deleted else self._statement(connection, table, names)
            connection.execute(statement, [_parameters(row) for row in alike])

    def _statement(self, connection: sa.Connection, table: sa.Table, names: tuple[str, ...]) -> Any:
        keys = self._key_names(table)
        values: dict[str, Any] = {name: sa.bindparam(f"p_{name}") for name in names}
        match self._config["insert.mode"]:
            case "insert":
                return sa.insert(table).values(values)
            case "upsert":
                make = _UPSERTS.get(connection.dialect.name)
                if make is None:
                    raise ConnectError(f"insert.mode=upsert is not known for {connection.dialect.name}")
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


class _MakingFailed(Exception):
    """A table or a column could not be made; `cause` is the database's error."""

    def __init__(self, cause: sa.exc.SQLAlchemyError) -> None:
        super().__init__(str(cause))
        self.cause = cause


def _making(make: Callable[[], object]) -> None:
    """Raises _MakingFailed."""
    try:
        make()
    except sa.exc.SQLAlchemyError as error:
        raise _MakingFailed(error) from error


def _even_if_raced(work: Callable[[], None]) -> None:
    """Do it, once more if a table cannot be made: another task that makes the same one has done so by then.

    Raises SQLAlchemyError.
    """
    try:
        work()
    except _MakingFailed:
        try:
            work()
        except _MakingFailed as error:
            raise error.cause from error


def _shape(row: _Row) -> tuple[bool, tuple[str, ...]]:
    return row.columns is None, tuple(row.key if row.columns is None else row.columns)


def _parameters(row: _Row) -> dict[str, Any]:
    return {f"p_{name}": value for name, value in (row.key if row.columns is None else row.columns).items()}


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


def _types(schema: Schema | None, values: Mapping[str, Any]) -> dict[str, Any]:
    """The types of columns for the fields of a value."""
    if schema is not None and schema.type is SchemaType.STRUCT:
        return {one.name: sql_type(one.schema) for one in schema.fields}
    return {name: sql_type_of(one) for name, one in values.items()}


def _place(record: SinkRecord) -> str:
    return f"{record.original_topic}-{record.original_kafka_partition} offset {record.original_kafka_offset}"


class SqlSinkConnector(SinkConnector):
    """See the module."""

    version = _VERSION
    task_class = SqlSinkTask
    config_def = CONNECTION + (
        ConfigDef()
        .define(
            "insert.mode",
            ConfigType.STRING,
            "insert",
            _HIGH,
            "insert, upsert or update.",
            validator=one_of("insert", "upsert", "update"),
        )
        .define(
            "pk.mode",
            ConfigType.STRING,
            "none",
            _HIGH,
            "What the primary key is: none, kafka, record_key or record_value.",
            validator=one_of("none", "kafka", "record_key", "record_value"),
        )
        .define("pk.fields", ConfigType.LIST, [], _MEDIUM, "The columns of the primary key.")
        .define(
            "table.name.format",
            ConfigType.STRING,
            "${topic}",
            _MEDIUM,
            "The table of a record; ${topic} is its topic.",
            validator=non_empty,
        )
        .define("fields.whitelist", ConfigType.LIST, [], _MEDIUM, "The fields that become columns; none: all.")
        .define("auto.create", ConfigType.BOOLEAN, False, _MEDIUM, "Whether a table that is not there is made.")
        .define("auto.evolve", ConfigType.BOOLEAN, False, _MEDIUM, "Whether columns that are not there are added.")
        .define("delete.enabled", ConfigType.BOOLEAN, False, _MEDIUM, "Whether a record without value deletes its row.")
        .define(
            "batch.size",
            ConfigType.INT,
            3000,
            _MEDIUM,
            "How many records a transaction has at most.",
            validator=at_least(1),
        )
        .define(
            "offsets.table",
            ConfigType.STRING,
            "parley_connect_offsets",
            _MEDIUM,
            "The table that says how far each partition has come.",
            validator=non_empty,
        )
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
            "The database says how far this connector has come, so its offsets cannot be changed here: change the rows "
            "of its offsets.table."
        )
