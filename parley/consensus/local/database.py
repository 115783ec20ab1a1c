"""The state of the embedded store in SQLite: one connection, used by one thread at a time. See the package for why.

Every write is one statement, so that the write lock is held by C code only. ``sequence`` counts changes and gives the
revisions; ``removed`` remembers deletions for watchers, back to ``floor``.
"""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from parley.consensus.backend import (
    At,
    Changed,
    Check,
    Entry,
    Event,
    Op,
    Page,
    Presence,
    Put,
    Removed,
    Revision,
    Snapshot,
    violation,
)
from parley.consensus.errors import (
    BadConfig,
    CoordinationError,
    MaybeApplied,
    SessionLost,
    Unauthorized,
    Unavailable,
    WrongStore,
)
from parley.consensus.local.stopped_lock_holder import step_over_stopped_holder

FILE = "store.db"
_FORMAT = 1
_APPLICATION_ID = 0x50524C59
_BUSY_MS = 250
_BUSY_ATTEMPTS = 20
_REMOVED_KEPT = 10_000
_FORGET_EVERY = 2000
_EVENTS_MAX = 250
_T = TypeVar("_T")
_sync = getattr(os, "fdatasync", os.fsync)
_KEY_END = "\x7f"  # behind every character that a key can have

_SCHEMA = f"""
PRAGMA application_id = {_APPLICATION_ID};
PRAGMA user_version = {_FORMAT};
BEGIN;
CREATE TABLE state(one INTEGER PRIMARY KEY CHECK (one = 1), identity TEXT NOT NULL, boot TEXT NOT NULL,
                   sequence INTEGER NOT NULL, floor INTEGER NOT NULL);
CREATE TABLE entries(key TEXT NOT NULL UNIQUE, value BLOB NOT NULL, revision INTEGER NOT NULL, session TEXT);
CREATE INDEX entries_by_revision ON entries(revision);
CREATE INDEX entries_by_session ON entries(session) WHERE session IS NOT NULL;
CREATE TABLE removed(key TEXT PRIMARY KEY, revision INTEGER NOT NULL) WITHOUT ROWID;
CREATE INDEX removed_by_revision ON removed(revision);
CREATE TABLE sessions(id TEXT PRIMARY KEY, process TEXT NOT NULL, ttl_ms INTEGER NOT NULL,
                      renewed_ms INTEGER NOT NULL) WITHOUT ROWID;
COMMIT;
"""

# What a transaction asks for, and what became of it; then the two steps of carrying it out.
_REQUEST = """
CREATE TEMP TABLE checks(position INTEGER PRIMARY KEY, key TEXT, expect INTEGER, revision INTEGER);
CREATE TEMP TABLE ops(position INTEGER PRIMARY KEY, key TEXT, value BLOB, session TEXT);
CREATE TEMP TABLE failed(position INTEGER, revision INTEGER);
CREATE TEMP TABLE applied(base INTEGER, deleted INTEGER);
CREATE TEMP TABLE ended(id TEXT PRIMARY KEY);
CREATE TEMP TABLE request(identity TEXT, boot TEXT, now_ms INTEGER, dead_process TEXT, dead_session TEXT);
CREATE TEMP TRIGGER request_made AFTER INSERT ON request BEGIN
  SELECT RAISE(ABORT, 'identity') WHERE NOT EXISTS (SELECT 1 FROM state WHERE identity = new.identity);

  INSERT INTO ended SELECT id FROM sessions
    WHERE renewed_ms + ttl_ms <= new.now_ms OR process = new.dead_process OR id = new.dead_session
       OR new.boot <> (SELECT boot FROM state);
  INSERT OR REPLACE INTO removed
    SELECT key, (SELECT sequence FROM state) + row_number() OVER (ORDER BY key)
    FROM entries WHERE session IN (SELECT id FROM ended);
  UPDATE state SET sequence =
    sequence + (SELECT count(*) FROM entries WHERE session IN (SELECT id FROM ended))
    WHERE EXISTS (SELECT 1 FROM ended);
  DELETE FROM entries WHERE session IN (SELECT id FROM ended);
  DELETE FROM sessions WHERE id IN (SELECT id FROM ended);
  UPDATE state SET boot = new.boot WHERE boot <> new.boot;

  INSERT INTO failed SELECT -1, NULL FROM ops
    WHERE session IS NOT NULL AND session NOT IN (SELECT id FROM sessions);
  INSERT INTO failed SELECT c.position, e.revision FROM checks c LEFT JOIN entries e ON e.key = c.key
    WHERE CASE c.expect WHEN 0 THEN e.key IS NOT NULL WHEN 1 THEN e.key IS NULL ELSE e.revision IS NOT c.revision END;
  INSERT INTO applied
    SELECT sequence, (SELECT count(*) FROM ops JOIN entries USING (key) WHERE ops.value IS NULL)
    FROM state WHERE NOT EXISTS (SELECT 1 FROM failed);
END;
CREATE TEMP TRIGGER request_granted AFTER INSERT ON applied BEGIN
  INSERT OR REPLACE INTO removed
    SELECT key, new.base + position FROM ops WHERE value IS NULL AND key IN (SELECT key FROM entries);
  DELETE FROM entries WHERE key IN (SELECT key FROM ops WHERE value IS NULL);
  DELETE FROM removed WHERE key IN (SELECT key FROM ops WHERE value IS NOT NULL);
  INSERT INTO entries SELECT key, value, new.base + position, session FROM ops WHERE value IS NOT NULL
    ON CONFLICT (key) DO UPDATE SET value = excluded.value, revision = excluded.revision, session = excluded.session;
  UPDATE state SET sequence = new.base + (SELECT count(*) FROM ops) WHERE EXISTS (SELECT 1 FROM ops);
END;
CREATE TEMP TABLE forget(up_to INTEGER);
CREATE TEMP TRIGGER forget_removed AFTER INSERT ON forget BEGIN
  UPDATE state SET floor = new.up_to WHERE floor < new.up_to;
  DELETE FROM removed WHERE revision <= new.up_to;
END;
"""

_OUTCOME = """
SELECT (SELECT count(*) FROM ended), (SELECT min(position) FROM failed),
       (SELECT base FROM applied), (SELECT deleted FROM applied)
"""


@dataclass(frozen=True, slots=True)
class Applied:
    """A transaction that was applied: the revision before it, and how many of its deletes found something."""

    base: int
    deleted: int


@dataclass(frozen=True, slots=True)
class Census:
    """Who is there: for each session its process and when it is due to expire (monotonic milliseconds)."""

    sequence: int
    sessions: dict[str, tuple[str, int]]


class Database:
    """The connection. Open it by ``Database(directory, ...)``; all methods block.

    :ivar identity: of the store.
    :ivar sequence: of the newest change seen through this connection.
    """

    def __init__(self, directory: Path, *, expect_identity: str | None, new_identity: str, boot: str) -> None:
        """:raises WrongStore, BadConfig, Unauthorized, Unavailable: as ``Backend.open``."""
        self._path = directory / FILE
        self._boot = boot
        self.sequence = 0
        self._written = False
        self._moved = False
        self._synced = -1
        self._forget_at = 0
        self._wal = -1
        try:
            if not self._path.exists():
                if expect_identity is not None:
                    raise WrongStore(f"{self._path} does not exist, but the store {expect_identity} is expected there")
                _initialise(self._path, new_identity, boot)
            self._connection = self._connect()
        except sqlite3.Error as error:
            raise _translated(error, self._path, writing=False) from error
        except PermissionError as error:
            raise Unauthorized(str(error)) from error
        except OSError as error:
            raise BadConfig(str(error)) from error
        try:
            self.identity = self._identify(expect_identity)
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Close the connection; the last one of all processes folds the WAL into the file."""
        with suppress(sqlite3.Error):
            self._connection.close()
        if self._wal >= 0:
            os.close(self._wal)
            self._wal = -1

    def take_news(self) -> tuple[bool, bool]:
        """Whether entries were written, and whether sessions started or ended, since the last call."""
        news = self._written, self._moved
        self._written = self._moved = False
        return news

    def sync(self) -> None:
        """Make everything that was written or seen so far survive a power failure.

        :raises MaybeApplied: the disk failed.
        """
        if self._synced == self.sequence:
            return
        try:
            _sync(self._wal)
        except OSError as error:
            raise MaybeApplied(f"{self._path}-wal: {error}") from error
        self._synced = self.sequence

    def apply(
        self,
        checks: Sequence[Check],
        ops: Sequence[Op],
        *,
        now_ms: int,
        dead_process: str | None = None,
        dead_session: str | None = None,
    ) -> Applied:
        """End sessions that are due or named dead; then carry out a transaction.

        :raises SessionLost, PreconditionFailed, Fenced: nothing but the ending of sessions was done.
        """
        for table in ("checks", "ops", "failed", "applied", "ended", "request"):
            self._connection.execute(f"DELETE FROM {table}")
        self._connection.executemany("INSERT INTO checks VALUES (?, ?, ?, ?)", _check_rows(checks))
        self._connection.executemany("INSERT INTO ops VALUES (?, ?, ?, ?)", _op_rows(ops))
        request = (self.identity, self._boot, now_ms, dead_process, dead_session)
        self._write("INSERT INTO request VALUES (?, ?, ?, ?, ?)", request)
        (ended, failed, base, deleted), *_ = self._read(_OUTCOME)
        self._moved = self._moved or ended > 0
        if failed is not None:
            self.sequence = max(self.sequence, self._read("SELECT sequence FROM state")[0][0])
            raise self._failure(checks, failed)
        self.sequence = max(self.sequence, base + len(ops))
        self._written = self._written or len(ops) > 0
        self._forget_removed()
        return Applied(base, deleted)

    def add_session(self, session_id: str, process: str, ttl_ms: int, now_ms: int) -> None:
        """Start a session."""
        sql = "INSERT INTO sessions SELECT ?, ?, ?, ? FROM state WHERE identity = ?"
        if self._write(sql, (session_id, process, ttl_ms, now_ms, self.identity)) != 1:
            raise self._overwritten()
        self._moved = True

    def renew(self, session_id: str, now_ms: int) -> bool:
        """Put off the expiry of a session; False if it is over."""
        sql = "UPDATE sessions SET renewed_ms = ? WHERE id = ? AND renewed_ms + ttl_ms >= ?"
        return self._write(sql, (now_ms, session_id, now_ms)) == 1

    def census(self) -> Census:
        """Who is there."""
        sequence, rows = self._at_once(lambda: self._read("SELECT id, process, renewed_ms + ttl_ms FROM sessions"))
        return Census(sequence, {session: (process, due_ms) for session, process, due_ms in rows})

    def get(self, key: str) -> Entry | None:
        """The entry of a key."""
        sql = (
            "SELECT state.sequence, state.identity, key, value, revision, session "
            "FROM state LEFT JOIN entries ON key = ?"
        )
        rows = self._read(sql, (key,))
        self._saw(rows[0][:2] if rows else None)
        return _entry(rows[0][2:]) if rows[0][2] is not None else None

    def list(self, prefix: str, limit: int, after: str | None) -> Page:
        """A page of the keys that start with a prefix."""
        sql = (
            "SELECT key, value, revision, session FROM entries WHERE key >= ? AND key < ? AND key > ? "
            "ORDER BY key LIMIT ?"
        )

        def read() -> Sequence[Any]:
            return self._read(sql, (*_range(prefix), "" if after is None else after, limit + 1))

        rows = self._at_once(read)[1]
        entries = tuple(_entry(row) for row in rows[:limit])
        return Page(entries, entries[-1].key if len(rows) > limit else None)

    def changes(self, prefix: str, position: int) -> tuple[int, Sequence[Event]]:
        """What happened below a prefix since a position, last change of each key only, and the position reached."""
        bounds = _range(prefix)

        def read() -> tuple[int | None, Sequence[Any], Sequence[Any]]:
            floor = self._read("SELECT floor FROM state")[0][0]
            if position < floor:
                sql = "SELECT key, value, revision, session FROM entries WHERE key >= ? AND key < ? ORDER BY key"
                return None, self._read(sql, bounds), ()
            window = (position, *bounds, _EVENTS_MAX)
            put = self._read(
                "SELECT key, value, revision, session FROM entries INDEXED BY entries_by_revision "
                "WHERE revision > ? AND key >= ? AND key < ? ORDER BY revision LIMIT ?",
                window,
            )
            removed = self._read(
                "SELECT key, revision FROM removed INDEXED BY removed_by_revision "
                "WHERE revision > ? AND key >= ? AND key < ? ORDER BY revision LIMIT ?",
                window,
            )
            return floor, put, removed

        sequence, (floor, put, removed) = self._at_once(read)
        if floor is None:
            return sequence, (Snapshot(tuple(_entry(row) for row in put)),)
        events: list[tuple[int, Event]] = [(row[2], Changed(_entry(row))) for row in put]
        events += [(revision, Removed(key)) for key, revision in removed]
        events.sort(key=lambda event: event[0])
        if max(len(put), len(removed)) == _EVENTS_MAX:  # perhaps cut off: go as far as both are complete
            events = events[:_EVENTS_MAX]
            sequence = events[-1][0]
        return sequence, [event for _, event in events]

    def check_in_place(self) -> None:
        """Look whether the file is still the one that was opened.

        :raises WrongStore: it was deleted or replaced.
        """
        try:
            found = os.stat(self._path)
        except OSError as error:
            raise WrongStore(f"the store {self.identity} is gone: {error}") from error
        if (found.st_dev, found.st_ino) != self._inode or not os.fstat(self._wal).st_nlink:
            raise WrongStore(f"{self._path} is not the store {self.identity} any more: it was replaced")

    def _connect(self) -> sqlite3.Connection:
        quoted = str(self._path.absolute()).replace("%", "%25").replace("?", "%3f").replace("#", "%23")
        connection = sqlite3.connect(
            f"file:{quoted}?mode=rw",
            uri=True,
            timeout=_BUSY_MS / 1000,
            isolation_level=None,
            check_same_thread=False,
        )
        application_id = connection.execute("PRAGMA application_id").fetchone()[0]
        form = connection.execute("PRAGMA user_version").fetchone()[0]
        if application_id != _APPLICATION_ID or form != _FORMAT:
            connection.close()
            raise BadConfig(f"{self._path} is not a coordination store of this version")
        connection.execute("PRAGMA synchronous = NORMAL")
        connection.execute("PRAGMA temp_store = MEMORY")
        connection.executescript(_REQUEST)
        return connection

    def _identify(self, expected: str | None) -> str:
        rows = self._read("SELECT identity, sequence FROM state")
        if not rows:
            raise BadConfig(f"{self._path} is damaged: it has no identity")
        identity, self.sequence = rows[0]
        if expected not in (None, identity):
            raise WrongStore(f"{self._path} is the store {identity}, but {expected} is expected", found=identity)
        found = os.stat(self._path)
        self._inode = (found.st_dev, found.st_ino)
        self._wal = os.open(f"{self._path}-wal", os.O_RDWR)
        return str(identity)

    def _read(self, sql: str, parameters: Sequence[Any] = ()) -> Sequence[Any]:
        return self._execute(sql, parameters, writing=False).fetchall()

    def _write(self, sql: str, parameters: Sequence[Any] = ()) -> int:
        return self._execute(sql, parameters, writing=True).rowcount

    def _execute(self, sql: str, parameters: Sequence[Any], *, writing: bool) -> sqlite3.Cursor:
        for _ in range(_BUSY_ATTEMPTS):
            try:
                return self._connection.execute(sql, parameters)
            except sqlite3.Error as error:
                if not _is_busy(error):
                    raise _translated(error, self._path, writing=writing) from error
            step_over_stopped_holder(Path(f"{self._path}-shm"))
        raise Unavailable(f"{self._path} is locked by another process")

    def _failure(self, checks: Sequence[Check], position: int) -> CoordinationError:
        if position < 0:
            return SessionLost("a put is bound to a session that is over")
        revision = self._read("SELECT revision FROM failed WHERE position = ?", (position,))[0][0]
        error = violation(checks[position], None if revision is None else Revision(revision))
        assert error is not None
        return error

    def _at_once(self, read: Callable[[], _T]) -> tuple[int, _T]:
        """The result of several reads of one state, and the sequence of that state."""
        self._read("BEGIN")
        try:
            rows = self._read("SELECT sequence, identity FROM state")
            self._saw(rows[0] if rows else None)
            return rows[0][0], read()
        finally:
            self._end_reading()

    def _end_reading(self) -> None:
        """Whatever has failed: a read that stays open would show its state for ever."""
        try:
            self._connection.rollback()
        except sqlite3.Error as error:
            raise _translated(error, self._path, writing=False) from error

    def _saw(self, state: tuple[int, str] | None) -> None:
        if state is None or state[1] != self.identity:
            raise self._overwritten()
        self.sequence = max(self.sequence, state[0])

    def _overwritten(self) -> WrongStore:
        return WrongStore(f"{self._path} is not the store {self.identity} any more: it was overwritten")

    def _forget_removed(self) -> None:
        if self.sequence >= self._forget_at:
            self._forget_at = self.sequence + _FORGET_EVERY
            self._write("DELETE FROM forget")
            self._write("INSERT INTO forget VALUES (?)", (self.sequence - _REMOVED_KEPT,))


def _initialise(path: Path, identity: str, boot: str) -> None:
    """Make a new store and put it in place in one step; somebody else's is left alone if it is there first."""
    draft = path.with_name(f".{path.name}.{identity}")
    try:
        connection = sqlite3.connect(draft, isolation_level=None)
        try:
            connection.execute("PRAGMA journal_mode = WAL")
            connection.executescript(_SCHEMA)
            connection.execute("INSERT INTO state VALUES (1, ?, ?, 0, 0)", (identity, boot))
        finally:
            connection.close()
        with suppress(FileExistsError):
            os.link(draft, path)
        _sync_directory(path.parent)
    finally:
        draft.unlink(missing_ok=True)


def _sync_directory(directory: Path) -> None:
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _check_rows(checks: Sequence[Check]) -> Iterator[tuple[int, str, int, int | None]]:
    for position, check in enumerate(checks):
        match check.expect:
            case Presence.ABSENT:
                yield position, check.key, 0, None
            case Presence.PRESENT:
                yield position, check.key, 1, None
            case At(Revision(token=token)):
                yield position, check.key, 2, token if isinstance(token, int) else -1


def _op_rows(ops: Sequence[Op]) -> Iterator[tuple[int, str, bytes | None, str | None]]:
    for position, op in enumerate(ops, start=1):
        if isinstance(op, Put):
            yield position, op.key, bytes(op.value), op.session.id if op.session else None
        else:
            yield position, op.key, None, None


def _range(prefix: str) -> tuple[str, str]:
    """The first key that starts with a prefix and the end of all that do. SQLite takes no half of a surrogate pair."""
    first = prefix.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    return first, first + _KEY_END


def _entry(row: Sequence[Any]) -> Entry:
    key, value, revision, session = row
    return Entry(key, value, Revision(revision), session)


def _is_busy(error: sqlite3.Error) -> bool:
    return error.sqlite_errorcode & 0xFF in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED)


def _translated(error: sqlite3.Error, path: Path, *, writing: bool) -> CoordinationError:
    """What an SQLite error means to the caller. A statement that failed otherwise than by I/O was rolled back."""
    text = f"{path}: {error}"
    match getattr(error, "sqlite_errorcode", sqlite3.SQLITE_ERROR) & 0xFF:
        case sqlite3.SQLITE_READONLY | sqlite3.SQLITE_PERM | sqlite3.SQLITE_AUTH:
            return Unauthorized(text)
        case sqlite3.SQLITE_CORRUPT | sqlite3.SQLITE_NOTADB | sqlite3.SQLITE_ERROR | sqlite3.SQLITE_CONSTRAINT:
            return WrongStore(f"damaged, or not the store it was: {text}")
        case sqlite3.SQLITE_CANTOPEN:
            return BadConfig(text)
        case sqlite3.SQLITE_IOERR if writing:
            return MaybeApplied(text)
        case _:
            return Unavailable(text)
