"""The samples of a console in a file, so that its charts include the time before its start.

Rules:

1. The file is an SQLite database. It keeps every sample of the last hour, and the averages of each minute of the last
   week: a few megabytes for each cluster and user. Older data is deleted.
2. Several consoles may share a file. A sample belongs to a cluster and to the user who saw it, because users may see
   different topics. Of several samples in the same ``PERIOD_S``, the first is kept.
3. If the file cannot be used, a warning says so once, and the console has no history from before its start.
"""

from __future__ import annotations

import logging
import sqlite3
from contextlib import closing
from dataclasses import astuple, fields
from pathlib import Path
from typing import Final

from parley.tools.console.history import PERIOD_S, SAMPLES_MAX, Sample

HISTORY_FILE: Final = "console-history.sqlite"
_MINUTE_MS: Final = 60_000
_WEEK_MS: Final = 7 * 24 * 60 * _MINUTE_MS
_HOUR_MS: Final = 60 * _MINUTE_MS
_BUSY_S: Final = 2.0
_COLUMNS: Final = ", ".join(field.name for field in fields(Sample))
_SCHEMA: Final = """
CREATE TABLE IF NOT EXISTS {table} (
    cluster TEXT, user TEXT, slot INTEGER, at_ms INTEGER, records_per_s REAL, request_ms REAL, partitions INTEGER,
    under_replicated INTEGER, offline INTEGER, isr_changes INTEGER, brokers INTEGER,
    PRIMARY KEY (cluster, user, slot)
) WITHOUT ROWID
"""
_ROLL_UP: Final = """
INSERT OR REPLACE INTO minutes
SELECT cluster, user, at_ms / 60000, at_ms / 60000 * 60000, avg(records_per_s), round(avg(request_ms), 2),
    max(partitions), max(under_replicated), max(offline), sum(isr_changes), min(brokers)
FROM samples WHERE cluster = ? AND user = ? AND at_ms >= ? AND at_ms < ? GROUP BY at_ms / 60000
"""

_log = logging.getLogger(__name__)


class SampleFile:
    """The samples of one user of one cluster. Every method blocks, and may be called from any thread."""

    def __init__(self, folder: Path, cluster: str, user: str) -> None:
        self._path = folder / HISTORY_FILE
        self._key = (cluster, user)
        self._minute = 0
        self._is_usable = True

    def last_hour(self, now_ms: int) -> list[Sample]:
        """Return the samples of the last hour, oldest first. Returns an empty list if the file does not exist or cannot
        be read."""
        return self._read("samples", now_ms - _HOUR_MS)[-SAMPLES_MAX:]

    def minutes(self, since_ms: int) -> list[Sample]:
        """Return the averages of each minute since this time, oldest first. Returns an empty list if the file does not
        exist or cannot be read."""
        return self._read("minutes", since_ms)

    def add(self, sample: Sample) -> None:
        """Add a sample. The first sample of a minute also adds the averages of the minutes before it, and deletes data
        that is too old. If that fails, logs a warning once."""
        minute = sample.at_ms // _MINUTE_MS
        try:
            with closing(self._open()) as database, database:
                slot = int(sample.at_ms / (1000 * PERIOD_S))
                marks = ", ".join("?" * (3 + len(fields(Sample))))
                database.execute(
                    f"INSERT OR IGNORE INTO samples VALUES ({marks})", (*self._key, slot, *astuple(sample))
                )
                if minute != self._minute:
                    self._roll_up(database, sample.at_ms)
        except (sqlite3.Error, OSError) as error:
            self._failed(error)
        else:
            self._minute = minute

    def _roll_up(self, database: sqlite3.Connection, now_ms: int) -> None:
        this_minute = now_ms // _MINUTE_MS * _MINUTE_MS
        database.execute(
            _ROLL_UP, (*self._key, (now_ms - _HOUR_MS) // _MINUTE_MS * _MINUTE_MS + _MINUTE_MS, this_minute)
        )
        database.execute("DELETE FROM samples WHERE at_ms < ?", (now_ms - _HOUR_MS,))
        database.execute("DELETE FROM minutes WHERE at_ms < ?", (now_ms - _WEEK_MS,))

    def _read(self, table: str, since_ms: int) -> list[Sample]:
        if not self._path.exists():
            return []
        try:
            with closing(self._open()) as database:
                rows = database.execute(
                    f"SELECT {_COLUMNS} FROM {table} WHERE cluster = ? AND user = ? AND at_ms >= ? ORDER BY slot",
                    (*self._key, since_ms),
                ).fetchall()
        except (sqlite3.Error, OSError) as error:
            self._failed(error)
            return []
        return [Sample(*row) for row in rows]

    def _open(self) -> sqlite3.Connection:
        self._path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        database = sqlite3.connect(self._path, timeout=_BUSY_S)
        database.execute("PRAGMA journal_mode = WAL")
        database.execute("PRAGMA synchronous = OFF")
        for table in ("samples", "minutes"):
            database.execute(_SCHEMA.format(table=table))
        return database

    def _failed(self, error: Exception) -> None:
        if self._is_usable:
            _log.warning("the samples cannot be saved in %s: %s", self._path, error)
        self._is_usable = False
