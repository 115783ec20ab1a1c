"""Reads rows of tables, or of a query, as records for topics.

``mode`` selects how new rows are found:

========================  ============================================================================================
bulk                      all rows, again and again; no offsets
incrementing              rows whose column is greater than the greatest value so far: new rows only
timestamp                 rows whose time is later than the latest time so far: new and changed rows
timestamp+incrementing    both, to distinguish rows with the same time
========================  ============================================================================================

Delivery is at least once. With ``timestamp``, the offset of a row stays at the previous time until the last row with
the same time has been read. Therefore no row with the same time is ever skipped.
"""

from __future__ import annotations

import datetime as dt
import time
from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import sqlalchemy as sa

from parley.pipeline.connect.config import (
    HIGH,
    INT,
    LIST,
    LOW,
    MEDIUM,
    STRING,
    ConfigDef,
    ConfigValue,
    at_least,
    one_of,
)
from parley.pipeline.connect.connector import SourceConnector, SourceTask
from parley.pipeline.connect.connectors.sql.database import (
    CONNECTION,
    connect_schema,
    connect_value,
    failed,
    open_engine,
)
from parley.pipeline.connect.data import Schema, Struct, struct
from parley.pipeline.connect.errors import ConnectError
from parley.pipeline.connect.records import SourceRecord

_INCREMENTING: Final = "incrementing"
_TIMESTAMP: Final = "timestamp"
_NANOS: Final = "timestamp_nanos"
_BOTH: Final = f"{_TIMESTAMP}+{_INCREMENTING}"
_EPOCH: Final = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)
_VERSION: Final = "1.0"

Row = dict[Any, Any]
_Read = tuple[Row, dict[str, Any]]
"""A row and its source offset."""


@dataclass(slots=True)
class _Table:
    """A table or the query, and the offset of the last row read."""

    name: str
    topic: str
    relation: Any
    schema: Schema | None
    partition: Mapping[str, Any]
    seen: dict[str, Any] = field(default_factory=dict)
    due_s: float = 0.0
    rows: Generator[list[_Read], None, None] | None = None
    """The batches of the read in progress."""


class SqlSourceTask(SourceTask):
    """Reads its tables in turn, one batch per ``poll``."""

    version = _VERSION

    def start(self, props: Mapping[str, str]) -> None:
        self._config = config = SqlSourceConnector.config_def.parse(props)
        self._engine = open_engine(config["connection.url"], config["connection.user"], config["connection.password"])
        self._mode: str = config["mode"]
        self._id, self._time = config["incrementing.column.name"], config["timestamp.column.name"]
        self._tables = [self._table(name) for name in config["tables"]] if config["query"] is None else [self._query()]

    def _table(self, name: str) -> _Table:
        schema_name, _, bare = name.rpartition(".")
        try:
            relation = sa.Table(bare, sa.MetaData(), schema=schema_name or None, autoload_with=self._engine)
        except sa.exc.NoSuchTableError as error:
            raise ConnectError(f"there is no table {name} in the database") from error
        except sa.exc.SQLAlchemyError as error:
            raise failed(error, f"the table {name} cannot be inspected") from error
        fields = {
            column.name: connect_schema(column.type, optional=bool(column.nullable)) for column in relation.columns
        }
        return self._known(
            _Table(name, f"{self._config['topic.prefix']}{bare}", relation, struct(fields, name=bare), {"table": name})
        )

    def _query(self) -> _Table:
        relation = sa.text(self._config["query"]).columns(*self._columns()).subquery("query")
        return self._known(_Table("query", self._config["topic.prefix"], relation, None, {"query": "query"}))

    def _columns(self) -> list[Any]:
        """Return the columns of the query, from an empty result."""
        try:
            with self._engine.connect() as connection:
                statement = sa.text(f"SELECT * FROM ({self._config['query']}) AS query WHERE 1 = 0")
                return [sa.column(name) for name in connection.execute(statement).keys()]  # noqa: SIM118 - not a dict
        except sa.exc.SQLAlchemyError as error:
            raise failed(error, "the query cannot be run") from error

    def _known(self, table: _Table) -> _Table:
        for column in (self._id, self._time):
            if column is not None and column not in table.relation.c:
                raise ConnectError(f"{table.name} has no column {column}")
        table.seen = dict(self.context.offsets.offset(table.partition) or {})
        return table

    def poll(self) -> Sequence[SourceRecord] | None:
        for _ in self._tables:
            table = self._tables[0]
            batch = self._next(table)
            if batch:
                return [self._record(table, row, offset) for row, offset in batch]
            self._tables.append(self._tables.pop(0))  # the next table's turn
        return None

    def _next(self, table: _Table) -> list[_Read]:
        """Return the next rows of a table with their offsets; an empty list if the table is read to its end, or not due
        yet.
        """
        if table.rows is None:
            if time.monotonic() < table.due_s:
                return []
            table.rows = self._read(table)
        try:
            batch = next(table.rows, None)
        except sa.exc.SQLAlchemyError as error:
            table.rows = None
            raise failed(error, f"{table.name} cannot be read") from error
        if batch is None:
            table.rows = None
            table.due_s = time.monotonic() + self._config["poll.interval.ms"] / 1000
            return []
        table.seen = batch[-1][1]
        return batch

    def _read(self, table: _Table) -> Generator[list[_Read], None, None]:
        """Yield the new rows of the table in batches, each row with its offset."""
        size = self._config["batch.max.rows"]
        with self._engine.connect().execution_options(stream_results=True, max_row_buffer=size) as connection:
            rows = (dict(row) for row in connection.execute(self._statement(table)).mappings())
            offset = dict(table.seen)
            batch: list[_Read] = []
            row = next(rows, None)
            while row is not None:
                following = next(rows, None)
                if self._is_last_of_its_time(row, following):
                    offset = self._offset(row)
                batch.append((row, offset))
                if len(batch) == size:
                    yield batch
                    batch = []
                row = following
            if batch:
                yield batch

    def _is_last_of_its_time(self, row: Row, following: Row | None) -> bool:
        return self._mode != _TIMESTAMP or following is None or following[self._time] != row[self._time]

    def _statement(self, table: _Table) -> Any:
        relation = table.relation
        statement = sa.select(relation)
        if self._mode == "bulk":
            return statement
        id_column = None if self._id is None else relation.c[self._id]
        time_column = None if self._time is None else relation.c[self._time]
        last_id, last_time = table.seen.get(_INCREMENTING), _time_of(table.seen)
        if time_column is not None and last_time is not None:
            if getattr(time_column.type, "timezone", False) is False:
                last_time = last_time.replace(tzinfo=None)
            later: Any = time_column > last_time
            if id_column is not None and last_id is not None:
                later = sa.or_(later, sa.and_(time_column == last_time, id_column > last_id))
            statement = statement.where(later)
        elif time_column is None and last_id is not None:
            statement = statement.where(id_column > last_id)
        if time_column is not None:
            # Rows without a time have no place in the order, so neither they nor their changes could be found reliably.
            statement = statement.where(time_column.is_not(None))
        return statement.order_by(*(one for one in (time_column, id_column) if one is not None))

    def _offset(self, row: Row) -> dict[str, Any]:
        offset: dict[str, Any] = {}
        if self._id is not None:
            offset[_INCREMENTING] = int(row[self._id])
        if self._time is not None:
            moment = connect_value(row[self._time], None)
            micros = (moment - _EPOCH) // dt.timedelta(microseconds=1)
            offset[_TIMESTAMP], offset[_NANOS] = micros // 1000, micros % 1_000_000 * 1000
        return offset

    def _record(self, table: _Table, row: Row, offset: Mapping[str, Any]) -> SourceRecord:
        values: Any = {}
        for name, value in row.items():
            try:
                values[name] = connect_value(value, _schema_of(table.schema, name))
            except ConnectError as error:
                raise ConnectError(f"the column {name} of a row for topic {table.topic}: {error}") from None
        return SourceRecord(
            topic=table.topic,
            value_schema=table.schema,
            value=values if table.schema is None else Struct(table.schema, values),
            source_partition=table.partition,
            source_offset=offset,
        )

    def stop(self) -> None:
        for table in self._tables:
            if table.rows is not None:
                table.rows.close()
        self._engine.dispose()


def _schema_of(schema: Schema | None, name: str) -> Schema | None:
    found = None if schema is None else schema.field(name)
    return None if found is None else found.schema


def _time_of(seen: Mapping[str, Any]) -> dt.datetime | None:
    """Return the time of an offset, from its milliseconds and, if present, its nanoseconds within the second; None if
    the offset has no time.
    """
    if seen.get(_TIMESTAMP) is None:
        return None
    micros = int(seen.get(_NANOS, seen[_TIMESTAMP] % 1000 * 1_000_000)) // 1000
    return _EPOCH + dt.timedelta(seconds=seen[_TIMESTAMP] // 1000, microseconds=micros)


class SqlSourceConnector(SourceConnector):
    """A source that reads a database (see the module docstring). The tables are divided among tasks; a query has one
    task."""

    version = _VERSION
    task_class = SqlSourceTask
    config_def = CONNECTION + (
        ConfigDef()
        .define("mode", STRING, importance=HIGH, validator=one_of("bulk", _INCREMENTING, _TIMESTAMP, _BOTH))
        .doc(f"How new rows are found: bulk, {_INCREMENTING}, {_TIMESTAMP} or {_BOTH}.")
        .define("incrementing.column.name", STRING, None, MEDIUM)
        .doc("The column whose numbers only increase.")
        .define("timestamp.column.name", STRING, None, MEDIUM)
        .doc("The column with the time of a row's last change.")
        .define("table.whitelist", LIST, [], MEDIUM)
        .doc("The tables to read. If it is empty, all tables are read.")
        .define("table.blacklist", LIST, [], MEDIUM)
        .doc("The tables to exclude.")
        .define("query", STRING, None, MEDIUM)
        .doc("A query to run instead of reading tables. Its topic is the prefix alone.")
        .define("topic.prefix", STRING, importance=HIGH)
        .doc("The prefix of topic names. The table's name follows it.")
        .define("poll.interval.ms", INT, 5000, HIGH, validator=at_least(0))
        .doc("How long the connector waits before it reads a table again that it has read to the end, in ms.")
        .define("batch.max.rows", INT, 1000, LOW, validator=at_least(1))
        .doc("The largest number of rows in one batch.")
        .define("tables", LIST, [], LOW)
        .doc("The tables of one task. The connector sets this key.")
    )

    def task_configs(self, max_tasks: int) -> Sequence[Mapping[str, str]]:
        if self.props.get("query"):
            return [self.props]
        tables = self._tables()
        shares = [tables[number::max_tasks] for number in range(min(max_tasks, len(tables)))]
        return [{**self.props, "tables": ",".join(share)} for share in shares]

    def _tables(self) -> list[str]:
        config = self.config_def.parse(self.props)
        if config["table.whitelist"]:
            return list(config["table.whitelist"])
        engine = open_engine(config["connection.url"], config["connection.user"], config["connection.password"])
        try:
            return [
                name for name in sorted(sa.inspect(engine).get_table_names()) if name not in config["table.blacklist"]
            ]
        except sa.exc.SQLAlchemyError as error:
            raise failed(error, "the tables cannot be listed") from error
        finally:
            engine.dispose()

    def validate(self, props: Mapping[str, str]) -> list[ConfigValue]:
        found = {one.name: one for one in super().validate(props)}
        mode = found["mode"].value or ""
        for part in (_INCREMENTING, _TIMESTAMP):
            column = found[f"{part}.column.name"]
            if part in mode and not column.value:
                column.errors.append(f"Invalid value null for configuration {column.name}: mode {mode} needs it")
            if part not in mode and column.value:
                column.errors.append(f"Invalid value {column.value} for configuration {column.name}: mode is {mode}")
        if found["query"].value and found["table.whitelist"].value:
            found["query"].errors.append("Do not specify table filtering configs with 'query'.")
        return list(found.values())

    def alter_offsets(
        self, props: Mapping[str, str], offsets: Mapping[str, tuple[Mapping[str, Any], Mapping[str, Any] | None]]
    ) -> bool:
        for _, offset in offsets.values():
            known = {_INCREMENTING, _TIMESTAMP, _NANOS}
            if offset is not None and (
                offset.keys() - known or not all(isinstance(one, int) for one in offset.values())
            ):
                raise ConnectError(
                    f"An offset may contain only integers for {', '.join(sorted(known))}, but is {dict(offset)}"
                )
        return True
