"""Inspects, creates and changes tables of a database.

PostgreSQL widens a column with ``ALTER COLUMN TYPE``. SQLite has no such statement: there a new column gets the values
and then the name of the old column, unless the old column is in the primary key, is NOT NULL or has a default. In other
databases, columns must be widened by hand.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

import pyarrow as pa
import sqlalchemy as sa

from parley.pipeline.connect.connectors.sql.column_types import column_kind, sql_kind, sql_type
from parley.pipeline.connect.errors import ConnectError
from parley.pipeline.values.exact import fits

_STREAMED_ROWS: Final = 10_000


class MakingFailed(Exception):
    """Raised if a table or a column could not be created. ``cause`` is the database's error."""

    def __init__(self, cause: sa.exc.SQLAlchemyError) -> None:
        super().__init__(str(cause))
        self.cause = cause


class NeedsTableAlone(Exception):
    """Raised if the table must be changed. The caller must repeat the transaction, and lock the table exclusively from
    its start.
    """


@dataclass(frozen=True, slots=True)
class TableColumns:
    """A table as a target of ``Columns``. ``table`` is None if it does not exist yet."""

    name: str
    evolution_key: str | None
    connection: sa.Connection
    table: sa.Table | None

    def kinds(self) -> dict[str, Any]:
        """Return the Arrow types of the columns by name."""
        if self.table is None:
            return {}
        dialect = self.connection.dialect
        return {column.name: column_kind(column.type, dialect) or pa.string() for column in self.table.c}

    def fixed(self) -> list[str]:
        """Return the columns that would lose their key, NOT NULL or default if they were widened."""
        if self.table is None or self.connection.dialect.name != "sqlite":
            return []
        return [one.name for one in self.table.c if one.primary_key or not one.nullable or one.server_default]

    def column(self, kind: Any) -> Any:
        return sql_kind(kind)

    def stays_exact(self, name: str, kind: Any) -> bool:
        if self.table is None:
            return True
        column = self.table.c[name]
        wanted = sa.select(column).where(column.is_not(None))
        with self.connection.execute(wanted, execution_options={"yield_per": _STREAMED_ROWS}) as stored:
            return all(fits(value, kind) for value in stored.scalars())


def reflected(connection: sa.Connection, name: str) -> sa.Table:
    """Return the table's current definition in the database. Raises NoSuchTableError."""
    schema, bare = _parts(name)
    table = sa.Table(bare, sa.MetaData(), schema=schema, autoload_with=connection, resolve_fks=False)
    for column in table.c:
        if isinstance(column.type, sa.JSON):
            column.type.none_as_null = True
    return table


def locked(connection: sa.Connection, name: str, *, alone: bool) -> sa.Table | None:
    """Return the table, locked until the transaction ends; None if there is no such table. Raises SQLAlchemyError.

    No other transaction can change its columns. If ``alone`` is true, none can write to it either. SQLite needs no
    lock: it lets only one connection write, and this connection has already written.
    """
    schema, bare = _parts(name)
    if not sa.inspect(connection).has_table(bare, schema):
        return None
    if connection.dialect.name == "postgresql":
        mode = "ACCESS EXCLUSIVE" if alone else "ROW EXCLUSIVE"
        words = _table_words(connection, sa.Table(bare, sa.MetaData(), schema=schema))
        connection.exec_driver_sql(f"LOCK TABLE {words} IN {mode} MODE")
    return reflected(connection, name)


def _parts(name: str) -> tuple[str | None, str]:
    schema, _, bare = name.rpartition(".")
    return schema or None, bare


def make_table(
    connection: sa.Connection,
    name: str,
    kinds: Mapping[str, Any],
    keys: Sequence[str],
    fixed: Mapping[str, Any],
) -> None:
    """Create a table with columns for these Arrow types; ``fixed`` sets other types for some. Raises MakingFailed."""
    dialect = connection.dialect
    columns = [
        sa.Column(each, fixed.get(each) or sql_type(kind, dialect), primary_key=each in keys, autoincrement=False)
        for each, kind in kinds.items()
    ]
    schema, bare = _parts(name)
    table = sa.Table(bare, sa.MetaData(), *columns, schema=schema)
    making(partial(table.create, connection, checkfirst=True))


def add_columns(connection: sa.Connection, table: sa.Table, kinds: Mapping[str, Any]) -> None:
    """Add columns for these Arrow types. Raises MakingFailed."""
    for name, kind in kinds.items():
        words = f"{_quoted(connection, name)} {_type_words(connection, kind)}"
        added = f"ALTER TABLE {_table_words(connection, table)} ADD COLUMN {words}"
        making(partial(connection.exec_driver_sql, added))


def widen_columns(connection: sa.Connection, table: sa.Table, kinds: Mapping[str, Any]) -> None:
    """Change columns to wider Arrow types that hold all their values.

    Raises ConnectError if the database cannot widen a column, and SQLAlchemy's OperationalError if the connection may
    be the cause.
    """
    statements = _WIDENING.get(connection.dialect.name)
    if kinds and statements is None:
        raise ConnectError(
            f"columns of {table.name} must be widened, which is not automatic for this database: "
            f"widen {', '.join(kinds)} manually"
        )
    for name, kind in kinds.items():
        words = (_table_words(connection, table), _quoted(connection, name), _type_words(connection, kind))
        temporary = _quoted(connection, f"{name}_widened")
        try:
            for statement in statements or ():
                connection.exec_driver_sql(statement.format(*words, temporary))
        except (sa.exc.ProgrammingError, sa.exc.NotSupportedError, sa.exc.OperationalError) as error:
            if connection.dialect.name != "sqlite" and isinstance(error, sa.exc.OperationalError):
                raise
            raise ConnectError(f"the column {name} of {table.name} cannot be widened: {error.orig}") from error


_WIDENING: Final[Mapping[str, Sequence[str]]] = {
    "postgresql": ("ALTER TABLE {0} ALTER COLUMN {1} TYPE {2}",),
    "sqlite": (
        "ALTER TABLE {0} ADD COLUMN {3} {2}",
        "UPDATE {0} SET {3} = {1}",
        "ALTER TABLE {0} DROP COLUMN {1}",
        "ALTER TABLE {0} RENAME COLUMN {3} TO {1}",
    ),
}


def _table_words(connection: sa.Connection, table: sa.Table) -> str:
    """Return the table's name, quoted for ``exec_driver_sql``."""
    return connection.dialect.identifier_preparer.format_table(table)


def _quoted(connection: sa.Connection, name: str) -> str:
    """Return a name, quoted for ``exec_driver_sql``.

    It must not be passed to ``sa.text``, which would double a ``%`` again, and in which a colon would start a
    parameter.
    """
    return connection.dialect.identifier_preparer.quote(name)


def _type_words(connection: sa.Connection, kind: Any) -> str:
    words: str = sql_type(kind, connection.dialect).compile(dialect=connection.dialect)
    return words


def making(make: Callable[[], object]) -> None:
    """Call ``make``, which creates a table or columns. Raises MakingFailed if the database reports an error."""
    try:
        make()
    except sa.exc.SQLAlchemyError as error:
        raise MakingFailed(error) from error


def even_if_raced(work: Callable[[], None]) -> None:
    """Do the work, and repeat it once if creating a table or column fails: another task may have created it first.

    Raises SQLAlchemyError.
    """
    try:
        work()
    except MakingFailed:
        try:
            work()
        except MakingFailed as error:
            raise error.cause from error
