"""Verifies the contents of the embedded store's database when it is opened.

SQLite's own check finds pages and indexes that do not fit together. The checksums find a row that is damaged, and the
total of all checksums finds rows that are missing or outdated.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from parley.consensus.errors import DamagedStore
from parley.consensus.local.checksums import TOTAL_MASK, is_intact_entry, is_intact_removal, is_intact_session
from parley.consensus.local.sql import TABLES


def verify_structure(connection: sqlite3.Connection, path: object) -> None:
    """Raise DamagedStore if the pages of the database do not fit together. May raise sqlite3.Error."""
    found = str(connection.execute("PRAGMA integrity_check(1)").fetchone()[0])
    if found != "ok":
        raise DamagedStore(f"{path} is damaged: {' '.join(found.split())}")


def verify_contents(connection: sqlite3.Connection, path: object) -> None:
    """Raise DamagedStore if anything in the database is not as it was written. May raise sqlite3.Error.

    The connection must be in a transaction, so that all rows are read in the same state.
    """
    verify_structure(connection, path)
    schema = connection.execute("SELECT type, name, sql FROM sqlite_schema WHERE name NOT LIKE 'sqlite_%'")
    if set(schema) != _SCHEMA:
        raise DamagedStore(f"{path} is damaged: its tables are not those of a coordination store")
    sums = (
        *_sums(connection, path, "entries", "key, value, revision, session, key_checksum, checksum", is_intact_entry),
        *_sums(connection, path, "removed", "key, revision, checksum", is_intact_removal),
        *_sums(connection, path, "sessions", "id, process, ttl_ms, renewed_ms, checksum", is_intact_session),
    )
    (total,) = connection.execute("SELECT total FROM state").fetchone()
    if sum(sums) & TOTAL_MASK != total:
        raise DamagedStore(f"{path} is damaged: rows are missing or outdated")


def _sums(
    connection: sqlite3.Connection, path: object, table: str, columns: str, is_intact: Callable[[Sequence[Any]], bool]
) -> Iterator[int]:
    """Verify each row of a table, and yield its contribution to the total. Raises DamagedStore at a damaged row."""
    for row in connection.execute(f"SELECT {columns} FROM {table} NOT INDEXED"):
        if not is_intact(row):
            raise DamagedStore(f"{path} is damaged: a row in the table {table} does not match its checksum: {row[0]!r}")
        yield (row[-1] - row[-2] if table == "sessions" else row[-1]) & TOTAL_MASK


def _object(statement: str) -> tuple[str, str, str]:
    """Return the type, name and SQL text that ``sqlite_schema`` contains after this CREATE statement."""
    _, kind, name, *_ = statement.replace("(", " ").split()
    return kind.lower(), name, statement


_SCHEMA = {_object(statement) for statement in TABLES}
