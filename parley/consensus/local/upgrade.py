"""Upgrades an embedded store of the first format, which had no checksums, in one transaction.

A process of the older version would not write checksums. It refuses to open an upgraded store, because the number of
the format has changed. If such a process has the store open, its named pipe shows this, and the store is not upgraded.
If the process opens the store at the moment of the upgrade, all its writes fail.
"""

from __future__ import annotations

import sqlite3
from pathlib import Path

from parley.consensus.errors import DamagedStore, UsedByOlderVersion
from parley.consensus.local.checksums import TOTAL_MASK, entry_checksum, session_checksum, text_checksum
from parley.consensus.local.contents import verify_structure
from parley.consensus.local.other_processes import is_any_alive
from parley.consensus.local.sql import FIRST_FORMAT, FORMAT, TABLES

_SET_ASIDE = (
    "DROP INDEX entries_by_revision",
    "DROP INDEX entries_by_session",
    "DROP INDEX removed_by_revision",
    *(f"ALTER TABLE {table} RENAME TO old_{table}" for table in ("state", "entries", "removed", "sessions")),
)
_FORGET = tuple(f"DROP TABLE old_{table}" for table in ("state", "entries", "removed", "sessions"))


def upgrade(connection: sqlite3.Connection, path: Path) -> None:
    """Upgrade the store if this is still necessary, all or nothing. May raise sqlite3.Error.

    Raises UsedByOlderVersion if a process of the older version has the store open, and DamagedStore if the store is
    damaged.
    """
    connection.execute("BEGIN IMMEDIATE")
    try:
        if connection.execute("PRAGMA user_version").fetchone()[0] == FIRST_FORMAT:
            if is_any_alive(path.parent):
                raise UsedByOlderVersion(
                    f"{path} has the format of an older version of Parley, and a process of that version has it open. "
                    "Stop all brokers that share this store, then start them with the new version"
                )
            verify_structure(connection, path)
            try:
                _convert(connection)
            except (AttributeError, TypeError) as error:  # a value of another type, or no row of the state
                raise DamagedStore(f"{path} is damaged: {error}") from error
        connection.execute("COMMIT")
    finally:
        connection.rollback()


def _convert(connection: sqlite3.Connection) -> None:
    for statement in (*_SET_ASIDE, *TABLES):
        connection.execute(statement)
    total = 0
    for key, value, revision, session in connection.execute("SELECT key, value, revision, session FROM old_entries"):
        key_checksum = text_checksum(key)
        checksum = entry_checksum(key_checksum, value, session) + revision
        row = (key, value, revision, session, key_checksum, checksum)
        connection.execute("INSERT INTO entries VALUES (?, ?, ?, ?, ?, ?)", row)
        total += checksum & TOTAL_MASK
    for key, revision in connection.execute("SELECT key, revision FROM old_removed"):
        checksum = text_checksum(key) + revision
        connection.execute("INSERT INTO removed VALUES (?, ?, ?)", (key, revision, checksum))
        total += checksum & TOTAL_MASK
    for *start, renewed_ms in connection.execute("SELECT id, process, ttl_ms, renewed_ms FROM old_sessions"):
        checksum = session_checksum(*start)
        connection.execute("INSERT INTO sessions VALUES (?, ?, ?, ?, ?)", (*start, renewed_ms, checksum + renewed_ms))
        total += checksum & TOTAL_MASK
    total &= TOTAL_MASK
    identity, boot, sequence, floor = connection.execute(
        "SELECT identity, boot, sequence, floor FROM old_state"
    ).fetchone()
    checksum = text_checksum(identity) + sequence + floor + total
    state = (identity, boot, sequence, floor, total, checksum)
    connection.execute("INSERT INTO state VALUES (1, ?, ?, ?, ?, ?, ?)", state)
    for statement in _FORGET:
        connection.execute(statement)
    connection.execute(f"PRAGMA user_version = {FORMAT}")
