"""Stores of the embedded store's first format, which had no checksums, are upgraded when they are opened."""

from __future__ import annotations

import asyncio
import os
import random
import shutil
import signal
import sqlite3
from collections.abc import AsyncIterator
from contextlib import closing
from multiprocessing import get_context
from pathlib import Path

import pytest

from parley.consensus.backend import Changed, Entry, Removed, Revision, Snapshot
from parley.consensus.errors import BadConfig, DamagedStore, OlderStore, UsedByOlderVersion
from parley.consensus.local import LocalBackend
from parley.consensus.local.database import Database
from parley.consensus.local.sql import FIRST_FORMAT, FORMAT
from parley.consensus.local.upgrade import upgrade

FIRST_SCHEMA = """
PRAGMA journal_mode = WAL;
PRAGMA application_id = 0x50524C59;
PRAGMA user_version = 1;
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
IDENTITY = "e" * 32
KEYS = 200


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    """A store of the first format: entries, one of them of a session, and a deletion."""
    directory = tmp_path / "coordination"
    directory.mkdir()
    with closing(sqlite3.connect(directory / "store.db", isolation_level=None)) as store:
        store.executescript(FIRST_SCHEMA)
        store.execute("INSERT INTO state VALUES (1, ?, 'boot', 500, 100)", (IDENTITY,))
        store.executemany("INSERT INTO entries VALUES (?, ?, ?, ?)", entries())
        store.execute("INSERT INTO removed VALUES ('gone', 499)")
        store.execute("INSERT INTO sessions VALUES ('session', 'process', 10000, 5000)")
    return directory


def entries() -> list[tuple[str, bytes, int, str | None]]:
    rng = random.Random(6)
    rows = [(f"k/{number:03}", rng.randbytes(rng.choice((0, 50, 5000))), 101 + number, None) for number in range(KEYS)]
    return [*rows, ("bound", b"", 498, "session")]


def opened(directory: Path) -> Database:
    return Database(directory, expect_identity=IDENTITY, new_identity="", boot="boot")


def user_version(directory: Path) -> int:
    with closing(sqlite3.connect(directory / "store.db")) as store:
        return int(store.execute("PRAGMA user_version").fetchone()[0])


def require_all(database: Database) -> None:
    """Everything that the store contained is in it, and what it verifies at each open matches."""
    written = {key: Entry(key, value, Revision(revision), session) for key, value, revision, session in entries()}
    assert {entry.key: entry for entry in database.list("", 1000, None).entries} == written
    assert database.changes("", 497) == (500, [Changed(written["bound"]), Removed("gone")])
    assert isinstance(database.changes("", 99)[1][0], Snapshot)
    assert database.census().sessions == {"session": ("process", 15_000)}


def test_nothing_is_lost(directory: Path) -> None:
    for _ in range(2):
        with closing(opened(directory)) as database:
            require_all(database)
    assert user_version(directory) == FORMAT
    with closing(opened(directory)) as database:
        database.apply((), (), now_ms=15_000)
        assert database.get("bound") is None
        assert database.sequence == 501
    opened(directory).close()


@pytest.fixture
async def older_process(directory: Path) -> AsyncIterator[None]:
    """The named pipe of a process of the older version."""
    (directory / "live").mkdir()
    os.mkfifo(directory / "live" / "process")
    reader = os.open(directory / "live" / "process", os.O_RDONLY | os.O_NONBLOCK)
    yield
    os.close(reader)


async def test_a_store_that_an_older_version_has_open_is_left_alone(directory: Path, older_process: None) -> None:
    content = (directory / "store.db").read_bytes()
    with pytest.raises(UsedByOlderVersion, match="Stop all brokers that share this store"):
        await LocalBackend(directory).open()
    assert (directory / "store.db").read_bytes() == content
    assert user_version(directory) == FIRST_FORMAT


async def test_a_dead_process_of_the_older_version_prevents_nothing(directory: Path) -> None:
    (directory / "live").mkdir()
    os.mkfifo(directory / "live" / "process")
    async with LocalBackend(directory) as store:
        assert await store.get("k/000") is not None


async def test_processes_that_open_it_at_once_upgrade_it_once(directory: Path) -> None:
    clients = [LocalBackend(directory) for _ in range(8)]
    await asyncio.gather(*(client.open() for client in clients))
    assert {client.identity for client in clients} == {IDENTITY}
    for client in clients:
        await client.close()


@pytest.mark.parametrize(
    ("statement", "message"),
    [
        ("INSERT INTO sessions SELECT 'a', 'b', 1, 2 FROM state", "table sessions has 5 columns"),
        ("UPDATE sessions SET renewed_ms = 6000", "a newer version of Parley has upgraded the store"),
        ("INSERT INTO entries SELECT 'a', x'00', 501, NULL", "table entries has 6 columns"),
        ("INSERT OR REPLACE INTO removed SELECT 'a', 501", "table removed has 3 columns"),
    ],
)
def test_all_writes_of_an_older_version_that_has_opened_it_before_fail(
    directory: Path, statement: str, message: str
) -> None:
    """Every transaction of the older version contains all statements that insert, so it is refused as a whole."""
    with closing(sqlite3.connect(directory / "store.db", isolation_level=None)) as older:
        assert older.execute("SELECT value FROM entries WHERE key = 'bound'").fetchall() == [(b"",)]
        with closing(opened(directory)):
            assert older.execute("SELECT value FROM entries WHERE key = 'bound'").fetchall() == [(b"",)]
            with pytest.raises(sqlite3.Error, match=message):
                older.execute(statement)
        opened(directory).close()


def test_an_upgrade_that_is_killed_is_done_whole_or_not_at_all(directory: Path, tmp_path: Path) -> None:
    """It is killed before some of its statements, the first and the last among them. The next open completes it."""
    shutil.copytree(directory, tmp_path / "whole")
    statements: list[str] = []
    with closing(sqlite3.connect(tmp_path / "whole" / "store.db", isolation_level=None)) as connection:
        connection.set_trace_callback(statements.append)
        upgrade(connection, tmp_path / "whole" / "store.db")
    assert len(statements) > KEYS
    assert user_version(tmp_path / "whole") == FORMAT
    for count in (*range(1, len(statements), len(statements) // 10), len(statements)):
        copy = tmp_path / str(count)
        shutil.copytree(directory, copy)
        process = get_context("fork").Process(target=_upgrade_until, args=(copy, count))
        process.start()
        process.join()
        assert process.exitcode == -signal.SIGKILL
        assert user_version(copy) == FIRST_FORMAT
        with closing(opened(copy)) as database:
            require_all(database)


def _upgrade_until(directory: Path, count: int) -> None:
    """Upgrade, and be killed before this statement is run."""
    left = count

    def count_down(statement: str) -> None:
        nonlocal left
        left -= 1
        if not left:
            os.kill(os.getpid(), signal.SIGKILL)

    connection = sqlite3.connect(directory / "store.db", isolation_level=None)
    connection.set_trace_callback(count_down)
    upgrade(connection, directory / "store.db")


def test_a_damaged_store_is_not_upgraded(directory: Path) -> None:
    with closing(sqlite3.connect(directory / "store.db")) as store:
        store.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    with (directory / "store.db").open("r+b") as file:
        file.seek(-4096, os.SEEK_END)
        file.write(b"\xff" * 4096)
    with pytest.raises(DamagedStore):
        opened(directory)
    assert user_version(directory) == FIRST_FORMAT


def test_a_newer_format_is_refused(directory: Path) -> None:
    opened(directory).close()
    with closing(sqlite3.connect(directory / "store.db")) as store:
        store.execute(f"PRAGMA user_version = {3 << 16 | ~3 & 0xFFFF}")
    with pytest.raises(BadConfig, match="newer version"):
        opened(directory)


async def test_a_store_that_is_rolled_back_to_an_older_copy_in_place_is_opened_again(directory: Path) -> None:
    """SQLite writes the copy into the file that is open."""
    shutil.copy(directory / "store.db", directory / "copy.db")
    store = LocalBackend(directory)
    await store.open()
    with (
        closing(sqlite3.connect(directory / "copy.db")) as copy,
        closing(sqlite3.connect(directory / "store.db")) as live,
    ):
        copy.backup(live)
    with pytest.raises(OlderStore):
        await store.get("k/000")
    await store.close()
    async with LocalBackend(directory) as again:
        entry = await again.get("k/000")
        assert entry is not None
        assert entry.revision == Revision(101)
