"""A connection to the embedded store's SQLite database, used by one thread at a time. sql.py defines the tables.

Every write is one SQL statement, so that only C code runs while the write lock is held.
"""

from __future__ import annotations

import errno
import logging
import os
import sqlite3
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
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
    DamagedStore,
    DeletedStore,
    MaybeApplied,
    OlderStore,
    SessionLost,
    Unauthorized,
    Unavailable,
    WrongStore,
)
from parley.consensus.local.checksums import (
    entry_checksum,
    is_intact_entry,
    is_intact_removal,
    is_intact_session,
    session_checksum,
    text_checksum,
)
from parley.consensus.local.contents import verify_contents
from parley.consensus.local.latest_change import LatestChange
from parley.consensus.local.sql import (
    APPLICATION_ID,
    FIRST_FORMAT,
    FIRST_STATE,
    FORMAT,
    MARK_LOST_WRITES,
    OUTCOME,
    TABLES,
    TRANSACTION_TABLES,
)
from parley.consensus.local.stopped_lock_holder import resume_stopped_lock_holder
from parley.consensus.local.upgrade import upgrade
from parley.consensus.store_identity import require_identity, wrong_store
from parley.consensus.store_move.store_record import ROLLED_BACK_KEY
from parley.light_dataclasses import dataclass

_log = logging.getLogger(__name__)

FILE = "store.db"
_BUSY_MS = 250
_BUSY_ATTEMPTS = 20
_REMOVED_KEPT = 10_000
_FORGET_EVERY = 2000
_EVENTS_MAX = 250
_T = TypeVar("_T")
_sync = getattr(os, "fdatasync", os.fsync)
_KEY_END = "\x7f"  # sorts after every character that a key can contain
_STATE = "state.sequence, state.identity, state.checksum - state.sequence - state.floor - state.total"
_ENTRY = "key, value, revision, session, key_checksum, checksum"


@dataclass(frozen=True, slots=True)
class Applied:
    """The result of an applied transaction: the previous sequence number, and how many keys it deleted."""

    base: int
    deleted: int


@dataclass(frozen=True, slots=True)
class News:
    """The kinds of changes made through a connection since the previous ``take_news``: to entries, and to the set of
    sessions."""

    entries_changed: bool
    sessions_changed: bool


@dataclass(frozen=True, slots=True)
class Census:
    """The sessions in the store: for each id, the process, and the monotonic time in milliseconds of the expiry.

    ``sequence`` is the number of the newest change at that moment.
    """

    sequence: int
    sessions: dict[str, tuple[str, int]]


class Database:
    """A connection to the store in a directory. All methods block.

    ``identity`` is the identity of the store. ``sequence`` is the number of the newest change seen through this
    connection.
    """

    def __init__(self, directory: Path, *, expect_identity: str | None, new_identity: str, boot: str) -> None:
        """Connect, and create the store if it does not exist. Raises the errors of ``Backend.open``."""
        self._path = directory / FILE
        self._boot = boot
        self.sequence = 0
        self._entries_changed = False
        self._sessions_changed = False
        self._synced = -1
        self._forget_at = 0
        self._wal = -1
        self._latest: LatestChange | None = None
        try:
            if not self._path.exists():
                if expect_identity is not None:
                    raise wrong_store(None, expect_identity, str(self._path))
                _initialize(self._path, new_identity, boot)
            self._connection = self._connect()
        except sqlite3.Error as error:
            raise as_coordination_error(error, self._path, writing=False) from error
        except PermissionError as error:
            raise Unauthorized(str(error)) from error
        except OSError as error:
            raise BadConfig(str(error)) from error
        try:
            self.identity = self._identify(expect_identity)
            self._verify()
            self._notice_lost_writes()
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Close the connection. The last connection of all processes merges the WAL into the database file."""
        with suppress(sqlite3.Error):
            self._connection.close()
        if self._wal >= 0:
            os.close(self._wal)
            self._wal = -1
        if self._latest is not None:
            self._latest.close()
            self._latest = None

    def take_news(self) -> News:
        """Return the kinds of changes made through this connection since the last call."""
        news = News(self._entries_changed, self._sessions_changed)
        self._entries_changed = self._sessions_changed = False
        return news

    def sync(self) -> None:
        """Make all data written or read so far survive a power failure. Raises MaybeApplied if the disk fails."""
        if self._synced == self.sequence:
            return
        try:
            _sync(self._wal)
        except OSError as error:
            raise MaybeApplied(f"{self._path}-wal: {error}") from error
        self._synced = self.sequence
        if self._latest is not None:
            with suppress(OSError):  # this file only serves to detect lost writes
                self._latest.write(self.sequence)

    def apply(
        self,
        checks: Sequence[Check],
        ops: Sequence[Op],
        *,
        now_ms: int,
        dead_process: str | None = None,
        dead_session: str | None = None,
    ) -> Applied:
        """End the sessions that are past their TTL or declared dead, then carry out a transaction.

        Raises SessionLost, PreconditionFailed or Fenced if the transaction is rejected. The sessions have ended
        nevertheless.
        """
        self._connection.execute(
            "BEGIN"
        )  # of the temporary tables: it locks nothing, and takes less time than one for each row
        with self._connection:
            for table in ("checks", "ops", "failed", "applied", "ended"):
                self._connection.execute(f"DELETE FROM {table}")
            self._connection.executemany("INSERT INTO checks VALUES (?, ?, ?, ?)", _check_rows(checks))
            self._connection.executemany("INSERT INTO ops VALUES (?, ?, ?, ?, ?, ?)", _op_rows(ops))
        request = (self.identity, self._identity_checksum, self._boot, now_ms, dead_process, dead_session)
        self._write("INSERT INTO request VALUES (?, ?, ?, ?, ?, ?)", request)
        (ended, failed, base, deleted), *_ = self._read(OUTCOME)
        self._sessions_changed = self._sessions_changed or ended > 0
        if failed is not None:
            self.sequence = max(self.sequence, self._read("SELECT sequence FROM state")[0][0])
            raise self._failure(checks, failed)
        self.sequence = max(self.sequence, base + len(ops))
        self._entries_changed = self._entries_changed or len(ops) > 0
        self._forget_removed()
        return Applied(base, deleted)

    def add_session(self, session_id: str, process: str, ttl_ms: int, now_ms: int) -> None:
        """Add a session of this process. ``now_ms`` is the monotonic time at which it was requested."""
        checksum = session_checksum(session_id, process, ttl_ms)
        session = (session_id, process, ttl_ms, now_ms, checksum, self.identity, self._identity_checksum)
        self._write("INSERT INTO started VALUES (?, ?, ?, ?, ?, ?, ?)", session)
        self._sessions_changed = True

    def renew(self, session_id: str, now_ms: int) -> bool:
        """Renew a session at the monotonic time ``now_ms``. Returns False if the session has ended or expired."""
        sql = (
            "UPDATE sessions SET renewed_ms = ?1, checksum = checksum - renewed_ms + ?1 "
            "WHERE id = ?2 AND renewed_ms + ttl_ms >= ?1"
        )
        return self._write(sql, (now_ms, session_id)) == 1

    def census(self) -> Census:
        """Return the sessions in the store."""
        sql = "SELECT id, process, ttl_ms, renewed_ms, checksum FROM sessions"
        sequence, rows = self._at_once(lambda: self._read(sql))
        for row in rows:
            self._require(is_intact_session(row), row)
        return Census(sequence, {id: (process, ttl_ms + renewed_ms) for id, process, ttl_ms, renewed_ms, _ in rows})

    def get(self, key: str) -> Entry | None:
        """Return the entry of a key, or None."""
        sql = (
            f"SELECT {_STATE}, key, value, revision, session, key_checksum, entries.checksum "
            "FROM state LEFT JOIN entries ON key = ?"
        )
        rows = self._read(sql, (key,))
        self._saw(rows[0][:3] if rows else None)
        return self._entry(rows[0][3:]) if rows[0][3] is not None else None

    def list(self, prefix: str, limit: int, after: str | None) -> Page:
        """Return at most ``limit`` entries whose keys start with a prefix and come after ``after``, sorted."""
        sql = f"SELECT {_ENTRY} FROM entries WHERE key >= ? AND key < ? AND key > ? ORDER BY key LIMIT ?"

        def read() -> Sequence[Any]:
            return self._read(sql, (*_range(prefix), "" if after is None else after, limit + 1))

        rows = self._at_once(read)[1]
        entries = tuple(self._entry(row) for row in rows[:limit])
        return Page(entries, entries[-1].key if len(rows) > limit else None)

    def changes(self, prefix: str, position: int) -> tuple[int, Sequence[Event]]:
        """Return the last change to each key below a prefix since ``position``, and the position after these changes.

        Returns only the first changes if there are many: call again from the returned position until none is left.
        If the position is below ``floor``, returns a Snapshot, because deletions since then may have been forgotten.
        """
        bounds = _range(prefix)

        def read() -> tuple[int | None, Sequence[Any], Sequence[Any]]:
            floor = self._read("SELECT floor FROM state")[0][0]
            if position < floor:
                sql = f"SELECT {_ENTRY} FROM entries WHERE key >= ? AND key < ? ORDER BY key"
                return None, self._read(sql, bounds), ()
            window = (position, *bounds, _EVENTS_MAX)
            put = self._read(
                f"SELECT {_ENTRY} FROM entries INDEXED BY entries_by_revision "
                "WHERE revision > ? AND key >= ? AND key < ? ORDER BY revision LIMIT ?",
                window,
            )
            removed = self._read(
                "SELECT key, revision, checksum FROM removed INDEXED BY removed_by_revision "
                "WHERE revision > ? AND key >= ? AND key < ? ORDER BY revision LIMIT ?",
                window,
            )
            return floor, put, removed

        sequence, (floor, put, removed) = self._at_once(read)
        if floor is None:
            return sequence, (Snapshot(tuple(self._entry(row) for row in put)),)
        events: list[tuple[int, Event]] = [(row[2], Changed(self._entry(row))) for row in put]
        for row in removed:
            self._require(is_intact_removal(row), row)
            events.append((row[1], Removed(row[0])))
        events.sort(key=lambda event: event[0])
        if max(len(put), len(removed)) == _EVENTS_MAX:  # possibly truncated: both lists are complete only up to here
            events = events[:_EVENTS_MAX]
            sequence = events[-1][0]
        return sequence, [event for _, event in events]

    def check_in_place(self) -> None:
        """Raise DeletedStore if the file that was opened has been deleted or replaced."""
        try:
            found = os.stat(self._path)
        except OSError as error:
            raise DeletedStore(f"the store {self.identity} is no longer there: {error}") from error
        if (found.st_dev, found.st_ino) != self._inode or not os.fstat(self._wal).st_nlink:
            raise DeletedStore(f"{self._path} is no longer the store {self.identity}: the file was replaced")

    def _connect(self) -> sqlite3.Connection:
        quoted = str(self._path.absolute()).replace("%", "%25").replace("?", "%3f").replace("#", "%23")
        connection = sqlite3.connect(
            f"file:{quoted}?mode=rw",
            uri=True,
            timeout=_BUSY_MS / 1000,
            isolation_level=None,
            check_same_thread=False,
        )
        try:
            # The first process that connects after a crash recovers the WAL; meanwhile the database is locked.
            self._unlocked(lambda: self._prepare(connection), writing=False)
        except BaseException:
            connection.close()
            raise
        return connection

    def _prepare(self, connection: sqlite3.Connection) -> None:
        """Check the contents of the file, and create the connection's temporary tables, all or none."""
        connection.rollback()  # from the previous attempt
        application_id = connection.execute("PRAGMA application_id").fetchone()[0]
        form = connection.execute("PRAGMA user_version").fetchone()[0]
        require_format(application_id, form, self._path)
        if connection.execute("PRAGMA journal_mode").fetchone()[0] != "wal":
            raise DamagedStore(f"{self._path} is damaged: it is not in SQLite's WAL mode")
        if form == FIRST_FORMAT:
            upgrade(connection, self._path)
        connection.execute("PRAGMA synchronous = NORMAL")
        connection.execute("PRAGMA temp_store = MEMORY")
        connection.executescript(f"BEGIN; {TRANSACTION_TABLES}; COMMIT")

    def _identify(self, expected: str | None) -> str:
        rows = self._read(f"SELECT {_STATE} FROM state")
        if not rows:
            raise DamagedStore(f"{self._path} is damaged: it contains no identity")
        self.sequence, identity, self._identity_checksum = rows[0]
        self._require(type(identity) is str and text_checksum(identity) == self._identity_checksum, rows[0])
        require_identity(identity, expected, str(self._path))
        found = os.stat(self._path)
        self._inode = (found.st_dev, found.st_ino)
        self._wal = os.open(f"{self._path}-wal", os.O_RDWR)
        return str(identity)

    def _verify(self) -> None:
        """Raise DamagedStore if the database is damaged, before anything is written that depends on it."""
        self._at_once(lambda: self._unlocked(lambda: verify_contents(self._connection, self._path), writing=False))

    def _notice_lost_writes(self) -> None:
        """If the store has lost its latest changes, log this, mark the store, and continue with higher sequence
        numbers.

        This way, a new change never gets the revision of a lost one, and every watch starts with a Snapshot again.
        """
        try:
            self._latest = LatestChange(self._path.parent, self.identity)
            had = self._latest.read()  # before the database, which other processes may be writing
        except OSError as error:
            _log.warning(
                "the file store.latest cannot be used: lost writes will not be detected", extra={"reason": str(error)}
            )
            return
        has = self._read("SELECT sequence FROM state")[0][0]
        if had <= has:
            return
        _log.error(
            "the coordination store has lost its latest changes: store.db-wal was deleted, or store.db replaced by an "
            "older copy",
            extra={"path": str(self._path), "lost": had - has, "sequence": has},
        )
        mark, key_checksum = b"%d changes were lost" % (had - has), text_checksum(ROLLED_BACK_KEY)
        checksum = entry_checksum(key_checksum, mark, None)
        self._write(MARK_LOST_WRITES, (ROLLED_BACK_KEY, mark, had, key_checksum, checksum))
        self.sequence = self._read("SELECT sequence FROM state")[0][0]
        self.sync()

    def _read(self, sql: str, parameters: Sequence[Any] = ()) -> Sequence[Any]:
        return self._execute(sql, parameters, writing=False)[0]

    def _write(self, sql: str, parameters: Sequence[Any] = ()) -> int:
        return self._execute(sql, parameters, writing=True)[1]

    def _execute(self, sql: str, parameters: Sequence[Any], *, writing: bool) -> tuple[Sequence[Any], int]:
        """Run a statement to its end. Returns its rows, and the number of rows that it has changed."""

        def run() -> tuple[Sequence[Any], int]:
            try:
                cursor = self._connection.execute(sql, parameters)
                return cursor.fetchall(), cursor.rowcount  # SQLite may find damage at any row, not only at the first
            except sqlite3.OperationalError as error:
                if self._connection.execute("PRAGMA user_version").fetchone()[0] == FIRST_FORMAT:
                    raise OlderStore(f"{self._path} was rolled back to a copy made by an older version") from error
                raise

        return self._unlocked(run, writing=writing)

    def _unlocked(self, use: Callable[[], _T], *, writing: bool) -> _T:
        """Call ``use``, and repeat the call if another process has locked the database. Raises Unavailable if it
        remains locked."""
        for _ in range(_BUSY_ATTEMPTS):
            try:
                return use()
            except sqlite3.Error as error:
                if not _is_busy(error):
                    raise as_coordination_error(error, self._path, writing=writing) from error
            except UnicodeDecodeError as error:  # in a message of SQLite that quotes the damage
                raise DamagedStore(f"{self._path} is damaged: {error}") from error
            resume_stopped_lock_holder(Path(f"{self._path}-shm"))
        raise Unavailable(f"{self._path} is locked by another process")

    def _failure(self, checks: Sequence[Check], position: int) -> CoordinationError:
        if position < 0:
            return SessionLost("a put is bound to a session that has ended")
        revision = self._read("SELECT revision FROM failed WHERE position = ?", (position,))[0][0]
        error = violation(checks[position], None if revision is None else Revision(revision))
        assert error is not None
        return error

    def _at_once(self, read: Callable[[], _T]) -> tuple[int, _T]:
        """Run ``read`` on one state of the database. Returns the sequence number of that state and the result."""
        self._read("BEGIN")
        try:
            rows = self._read(f"SELECT {_STATE} FROM state")
            self._saw(rows[0] if rows else None)
            return rows[0][0], read()
        finally:
            self._end_reading()

    def _end_reading(self) -> None:
        """End the read transaction, even after an error, because an open one would keep showing its old state."""
        try:
            self._connection.rollback()
        except sqlite3.Error as error:
            raise as_coordination_error(error, self._path, writing=False) from error

    def _saw(self, state: tuple[int, str, int] | None) -> None:
        if state is None or state[1] != self.identity:
            raise self._overwritten()
        self._require(state[2] == self._identity_checksum, state)
        if state[0] < self.sequence:
            raise OlderStore(
                f"the store {self.identity} was rolled back to an older state: it had {self.sequence} changes and now "
                f"has {state[0]}"
            )
        self.sequence = state[0]

    def _entry(self, row: Sequence[Any]) -> Entry:
        self._require(is_intact_entry(row), row)
        key, value, revision, session, _, _ = row
        return Entry(key, value, Revision(revision), session)

    def _require(self, is_intact: bool, row: Sequence[Any]) -> None:
        if not is_intact:
            raise DamagedStore(f"{self._path} is damaged: a row does not match its checksum: {row[0]!r}")

    def _overwritten(self) -> WrongStore:
        return WrongStore(f"{self._path} is no longer the store {self.identity}: it was overwritten")

    def _forget_removed(self) -> None:
        if self.sequence >= self._forget_at:
            self._forget_at = self.sequence + _FORGET_EVERY
            self._write("INSERT INTO forget VALUES (?)", (self.sequence - _REMOVED_KEPT,))


def require_format(application_id: int, form: int, path: Path) -> None:
    """Check the application id and the format number in the header of a database file.

    Raises DamagedStore if they are missing or contradict each other, and BadConfig if they belong to another
    application or to a newer format.
    """
    is_parley, is_format = application_id == APPLICATION_ID, form == FIRST_FORMAT or form >> 16 == ~form & 0xFFFF
    if not application_id or is_parley != is_format:
        raise DamagedStore(f"{path} is damaged: it does not contain a coordination store")
    if not is_parley:
        raise BadConfig(f"{path} is not a coordination store")
    if form not in (FIRST_FORMAT, FORMAT):
        raise BadConfig(f"{path} was written by a newer version of Parley, whose format this version cannot read")


def _initialize(path: Path, identity: str, boot: str) -> None:
    """Create a store and put it in place in one step. Does nothing if another process has just done so.

    Only this user can read the file. SQLite gives the same permissions to the files that it creates next to it.
    """
    draft = path.with_name(f".{path.name}.{identity}")
    try:
        connection = sqlite3.connect(draft, isolation_level=None)
        try:
            draft.chmod(0o600)
            connection.execute("PRAGMA journal_mode = WAL")
            connection.execute("BEGIN")
            for statement in (f"PRAGMA application_id = {APPLICATION_ID}", f"PRAGMA user_version = {FORMAT}", *TABLES):
                connection.execute(statement)
            connection.execute(FIRST_STATE, (identity, boot, text_checksum(identity)))
            connection.execute("COMMIT")
        finally:
            connection.close()
        with suppress(FileExistsError):
            os.link(draft, path)
        sync_directory(path.parent)
    finally:
        draft.unlink(missing_ok=True)


def sync_directory(directory: Path) -> None:
    """Make the directory's entries durable, such as files just created in it. Raises OSError."""
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


def _op_rows(ops: Sequence[Op]) -> Iterator[tuple[int, str, bytes | None, str | None, int, int | None]]:
    for position, op in enumerate(ops, start=1):
        key_checksum = text_checksum(op.key)
        if isinstance(op, Put):
            value, session = bytes(op.value), op.session.id if op.session else None
            yield position, op.key, value, session, key_checksum, entry_checksum(key_checksum, value, session)
        else:
            yield position, op.key, None, None, key_checksum, None


def _range(prefix: str) -> tuple[str, str]:
    """Return the bounds of the keys that start with a prefix; the end is exclusive. Replaces lone surrogates in the
    prefix, which SQLite does not accept."""
    first = prefix.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    return first, first + _KEY_END


def _is_busy(error: sqlite3.Error) -> bool:
    return _code(error) in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED)


def _code(error: sqlite3.Error) -> int:
    """Return SQLite's primary code of an error, or ``SQLITE_ERROR`` if the error has no code, because Python could not
    convert a value."""
    return int(getattr(error, "sqlite_errorcode", sqlite3.SQLITE_ERROR)) & 0xFF


def as_coordination_error(error: sqlite3.Error, path: Path, *, writing: bool) -> CoordinationError:
    """Return the coordination error for an SQLite error. Failed statements were rolled back, except after I/O
    errors."""
    text = f"{path}: {error}"
    match _code(error):
        case sqlite3.SQLITE_READONLY | sqlite3.SQLITE_PERM | sqlite3.SQLITE_AUTH:
            return Unauthorized(text)
        case sqlite3.SQLITE_CORRUPT | sqlite3.SQLITE_NOTADB | sqlite3.SQLITE_ERROR | sqlite3.SQLITE_CONSTRAINT:
            return DamagedStore(f"the store is damaged or was replaced: {text}")
        case sqlite3.SQLITE_CANTOPEN:
            return Unavailable(f"{text}: too many open files") if _lacks_descriptors() else BadConfig(text)
        case sqlite3.SQLITE_IOERR if writing:
            return MaybeApplied(text)
        case _:
            return Unavailable(text)


def _lacks_descriptors() -> bool:
    """Return True if this process has run out of file descriptors, which SQLite reports like a file that cannot be
    opened."""
    try:
        os.close(os.open(os.devnull, os.O_RDONLY))
    except OSError as error:
        return error.errno in (errno.EMFILE, errno.ENFILE)
    return False
