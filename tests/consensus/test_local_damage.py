"""Bits that flip in the files of the embedded store: no read returns another value than the one written."""

from __future__ import annotations

import random
import re
import shutil
import sqlite3
from collections import Counter
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from parley.consensus.backend import Delete, Entry, Event, Put
from parley.consensus.errors import DamagedStore
from parley.consensus.local.database import Database
from parley.consensus.local.latest_change import FILE as LATEST_FILE
from parley.consensus.local.latest_change import LatestChange
from parley.consensus.store_move.store_record import ROLLED_BACK_KEY
from tests.support.flipped_bits import each_bit_flipped

KEYS = 300
REMOVED = 60
IDENTITY = "f" * 32
Contents = tuple[dict[str, Entry | None], tuple[Entry, ...], tuple[Event, ...]]


def opened(directory: Path) -> Database:
    return Database(directory, expect_identity=None, new_identity=IDENTITY, boot="boot")


def fill(database: Database, rng: random.Random, keys: range) -> None:
    """Write keys one by one: small values, and values of several pages."""
    for number in keys:
        value = rng.randbytes(rng.choice((0, 20, 200, 200, 200, 200, 9000)))
        database.apply((), [Put(key(number), value)], now_ms=1000)
    database.sync()


def key(number: int) -> str:
    return f"topics/{number:04}"


def contents(database: Database) -> Contents:
    """Read everything in each way that a client can."""
    single = {key(number): database.get(key(number)) for number in range(KEYS + REMOVED)}
    listed: list[Entry] = []
    after = None
    while True:
        page = database.list("", 100, after)
        listed += page.entries
        if (after := page.next_after) is None:
            break
    events: list[Event] = []
    position = 0
    while True:
        position, more = database.changes("", position)
        if not more:
            break
        events += more
    return single, tuple(listed), tuple(events)


@dataclass(frozen=True)
class Files:
    """The files of a store, and what it contains."""

    database: bytes
    wal: bytes
    latest: bytes
    contents: Contents

    def put_into(self, directory: Path) -> None:
        shutil.rmtree(directory, ignore_errors=True)
        directory.mkdir()
        (directory / "store.db").write_bytes(self.database)
        if self.wal:
            (directory / "store.db-wal").write_bytes(self.wal)
        (directory / LATEST_FILE).write_bytes(self.latest)


def flipped(content: bytes, rng: random.Random) -> bytes:
    damaged = bytearray(content)
    damaged[rng.randrange(len(damaged))] ^= 1 << rng.randrange(8)
    return bytes(damaged)


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Files:
    directory = tmp_path_factory.mktemp("whole")
    database = opened(directory)
    fill(database, random.Random(1), range(KEYS + REMOVED))
    database.add_session("session", "process", 1_000_000, 1000)
    for number in range(REMOVED):
        database.apply((), [Delete(key(KEYS + number))], now_ms=1000)
    database.sync()
    whole = contents(database)
    database.close()
    return Files((directory / "store.db").read_bytes(), b"", (directory / LATEST_FILE).read_bytes(), whole)


def outcome(directory: Path, whole: Contents) -> str:
    """Open a store and read all of it. Returns when the damage was found, or "harmless"."""
    when = "at open"
    try:
        with closing(opened(directory)) as database:
            when = "at a read"
            assert contents(database) == whole
    except DamagedStore:
        return when
    return "harmless"


@pytest.mark.parametrize("flips", [300, pytest.param(5000, marks=pytest.mark.soak)])
def test_a_flipped_bit_in_the_database_is_found_or_harmless(files: Files, tmp_path: Path, flips: int) -> None:
    rng, outcomes = random.Random(3), Counter[str]()
    for _ in range(flips):
        damaged = Files(flipped(files.database, rng), b"", files.latest, files.contents)
        damaged.put_into(tmp_path / "store")
        outcomes[outcome(tmp_path / "store", files.contents)] += 1
    assert outcomes["at open"] > flips / 2


def test_a_name_of_a_table_that_is_no_text_any_more_is_damage(files: Files, tmp_path: Path) -> None:
    """Python cannot decode the message in which SQLite quotes it."""
    outcomes = Counter[str]()
    for match in re.finditer(rb"entries|sessions", files.database[:4096]):
        damaged = bytearray(files.database)
        damaged[match.start() + 1] ^= 0x80
        replace(files, database=bytes(damaged)).put_into(tmp_path / "store")
        outcomes[outcome(tmp_path / "store", files.contents)] += 1
    assert outcomes["at open"] > 10


@dataclass(frozen=True)
class History:
    """The files of a store whose processes were killed, and its entries after each change."""

    files: Files
    states: list[dict[str, Entry]]


def killed(directory: Path, *, is_checkpointed: bool) -> History:
    """Copy the files of a store that is in use. ``is_checkpointed``: the database has the contents of the WAL, too."""
    directory.mkdir()
    rng, states = random.Random(2), [dict[str, Entry]()]
    with closing(opened(directory)) as database, closing(sqlite3.connect(directory / "store.db")) as other:
        for number in range(KEYS):
            fill(database, rng, range(number % 90, number % 90 + 1))
            changed = database.get(key(number % 90))
            assert changed is not None
            states.append(states[-1] | {changed.key: changed})
            if number == KEYS // 2:
                other.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        if is_checkpointed:
            other.execute("PRAGMA wal_checkpoint(PASSIVE)")
        names = ("store.db", "store.db-wal", LATEST_FILE)
        database_file, wal, latest = ((directory / name).read_bytes() for name in names)
    return History(Files(database_file, wal, latest, ({}, (), ())), states)


@pytest.mark.parametrize("flips", [40, pytest.param(2000, marks=pytest.mark.soak)])
@pytest.mark.parametrize("is_checkpointed", [False, True])
def test_a_flipped_bit_in_the_wal_is_found_or_lost_writes_are_noticed(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, flips: int, is_checkpointed: bool
) -> None:
    """SQLite ends the WAL before a damaged part. The store then has an earlier state, marks this, and logs it."""
    history = killed(tmp_path / "whole", is_checkpointed=is_checkpointed)
    rng, outcomes = random.Random(4), Counter[str]()
    for _ in range(flips):
        damaged = replace(history.files, wal=flipped(history.files.wal, rng))
        damaged.put_into(tmp_path / "store")
        caplog.clear()
        try:
            with closing(opened(tmp_path / "store")) as database:
                found = {entry.key: entry for entry in database.list("", KEYS, None).entries}
        except DamagedStore:
            outcomes["found"] += 1
            continue
        mark = found.pop(ROLLED_BACK_KEY, None)
        assert found in history.states
        assert (mark is not None) == (found != history.states[-1]) == ("lost its latest changes" in caplog.text)
        outcomes["whole" if mark is None else "lost writes"] += 1
    assert outcomes["lost writes"] + outcomes["found"] > flips / 2


def test_a_flipped_bit_in_the_number_of_the_latest_change_means_no_lost_writes(files: Files, tmp_path: Path) -> None:
    files.put_into(tmp_path / "store")
    with closing(LatestChange(tmp_path / "store", IDENTITY)) as latest:
        assert latest.read() == KEYS + 2 * REMOVED
        for altered in each_bit_flipped(files.latest):
            (tmp_path / "store" / LATEST_FILE).write_bytes(altered)
            assert latest.read() == 0


def test_damage_under_an_open_store_is_found_when_a_row_is_read(files: Files, tmp_path: Path) -> None:
    files.put_into(tmp_path / "store")
    file = tmp_path / "store" / "store.db"
    entry = next(entry for entry in files.contents[1] if len(entry.value) == 200)
    with closing(opened(tmp_path / "store")) as database:
        content = bytearray(file.read_bytes())
        content[content.index(entry.value) + 100] ^= 1
        file.write_bytes(content)
        database._connection.execute("PRAGMA shrink_memory")
        with pytest.raises(DamagedStore, match=entry.key):
            database.get(entry.key)
        with pytest.raises(DamagedStore, match=entry.key):
            database.list("", KEYS, None)
        with pytest.raises(DamagedStore, match=entry.key):
            database.changes("", 0)


@pytest.mark.parametrize(
    "damage",
    [
        "UPDATE sessions SET renewed_ms = renewed_ms + 4096",
        "UPDATE sessions SET ttl_ms = 8",
        "UPDATE removed SET key = key || 'x' WHERE revision = (SELECT max(revision) FROM removed)",
        "UPDATE removed SET revision = revision + 1024 WHERE revision = (SELECT max(revision) FROM removed)",
        "UPDATE state SET sequence = sequence + 64",
        "UPDATE state SET floor = floor + 64",
        "UPDATE state SET total = total + 64",
    ],
)
def test_damage_to_other_rows_is_found_when_they_are_read(files: Files, tmp_path: Path, damage: str) -> None:
    files.put_into(tmp_path / "store")
    with closing(opened(tmp_path / "store")) as database:
        with closing(sqlite3.connect(tmp_path / "store" / "store.db")) as other, other:
            other.execute("DROP TRIGGER renewed_without_checksum")
            other.execute(damage)
        with pytest.raises(DamagedStore, match="damaged"):
            database.census() if "sessions" in damage else database.changes("", 0)
        if "state" in damage:
            with pytest.raises(DamagedStore, match="damaged"):
                database.apply((), [Put("a", b"")], now_ms=1000)
    with pytest.raises(DamagedStore, match="damaged"):
        opened(tmp_path / "store")


@pytest.mark.parametrize(
    "damage",
    [
        "DELETE FROM entries WHERE rowid = 7",
        "DELETE FROM removed WHERE revision = (SELECT max(revision) FROM removed)",
        "DELETE FROM sessions",
        "INSERT INTO removed SELECT key, 5, key_checksum + 5 FROM entries WHERE rowid = 7",
        "DROP INDEX entries_by_session",
    ],
)
def test_what_is_missing_or_too_much_is_found_at_the_next_open(files: Files, tmp_path: Path, damage: str) -> None:
    files.put_into(tmp_path / "store")
    with closing(sqlite3.connect(tmp_path / "store" / "store.db")) as other, other:
        other.execute(damage)
    with pytest.raises(DamagedStore, match="damaged"):
        opened(tmp_path / "store")


def test_a_write_does_not_hide_damage(files: Files, tmp_path: Path) -> None:
    """The checksums of a row and of the whole are changed by differences."""
    files.put_into(tmp_path / "store")
    with closing(opened(tmp_path / "store")) as database:
        with closing(sqlite3.connect(tmp_path / "store" / "store.db")) as other, other:
            other.execute("DELETE FROM entries WHERE key = ?", (key(7),))
        database.apply((), [Put(key(7), b"new"), Put(key(8), b"new"), Delete(key(9))], now_ms=1000)
    with pytest.raises(DamagedStore, match="missing"):
        opened(tmp_path / "store")
