"""The embedded store, beyond the tests of all stores: in one process and in several."""

from __future__ import annotations

import asyncio
import os
import random
import shutil
import signal
import sqlite3
import stat
import subprocess
import sys
import threading
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

import pytest
import uvloop

from parley.consensus.backend import ABSENT, Backend, Changed, Put, Removed, Snapshot, Watch
from parley.consensus.errors import (
    BadConfig,
    Closed,
    DamagedStore,
    MaybeApplied,
    OlderStore,
    SessionLost,
    Unauthorized,
    Unavailable,
    WrongStore,
)
from parley.consensus.local import LocalBackend, database, latest_change
from parley.consensus.local.database import as_coordination_error
from parley.consensus.recipes.elections import Elections
from parley.consensus.recipes.keyvalue import KeyValue
from parley.consensus.session import SessionState
from parley.consensus.store_move.store_lookup import open_existing
from parley.consensus.store_move.store_record import ROLLED_BACK_KEY
from tests.support.descriptors import descriptors_left, open_descriptors
from tests.support.own_process import in_own_process

SCRIPT = Path(__file__).with_name("local_process.py")
ENVIRONMENT = os.environ | {"PYTHONPATH": str(SCRIPT.parents[2])}
Spawn = Callable[..., Awaitable["Child"]]


class Child:
    """A process running ``local_process.py``."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self.process = process

    async def said(self) -> list[str]:
        assert self.process.stdout is not None
        return (await self.process.stdout.readline()).decode().split()

    def signal(self, number: signal.Signals) -> None:
        with suppress(ProcessLookupError):  # a process that has lost its leadership may have ended
            self.process.send_signal(number)


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    return tmp_path / "coordination"


@pytest.fixture
async def backend(directory: Path) -> AsyncIterator[LocalBackend]:
    async with LocalBackend(directory) as opened:
        yield opened


@pytest.fixture
async def spawn(directory: Path) -> AsyncIterator[Spawn]:
    children: list[Child] = []

    async def start(role: str, number: int = 0) -> Child:
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            str(SCRIPT),
            role,
            str(directory),
            str(number),
            stdout=asyncio.subprocess.PIPE,
            env=ENVIRONMENT,
        )
        children.append(Child(process))
        return children[-1]

    yield start
    for child in children:
        if child.process.returncode is None:
            child.signal(signal.SIGKILL)
        await child.process.wait()


def wait_until_stopped(pid: int) -> None:
    status = Path(f"/proc/{pid}/stat")
    while status.read_text().rpartition(")")[2].split()[0] != "T":
        os.sched_yield()


def names(directory: Path) -> list[str]:
    return sorted(os.listdir(directory))


async def until_gone(backend: Backend, key: str) -> None:
    async with backend.watch(key) as watch:
        async for event in watch:
            if event == Removed(key) or (isinstance(event, Snapshot) and not event.entries):
                return


async def test_entries_outlive_the_process(directory: Path) -> None:
    async with LocalBackend(directory) as first:
        identity = first.identity
        revision = await first.put("a", b"1")
        session = await first.open_session(60_000)
        await first.put("b", b"1", session=session)
    async with LocalBackend(directory) as second:
        assert second.identity == identity
        entry = await second.get("a")
        assert entry is not None
        assert entry.revision == revision
        assert await second.get("b") is None


async def test_another_boot_ends_all_sessions(directory: Path, backend: LocalBackend) -> None:
    session = await backend.open_session(60_000)
    await backend.put("bound", b"", session=session)
    await backend.put("stays", b"")
    with sqlite3.connect(directory / "store.db") as connection:
        connection.execute("UPDATE state SET boot = 'another'")
    connection.close()
    async with LocalBackend(directory) as later:
        await later.put("x", b"")
        assert [entry.key for entry in (await later.list("", limit=9)).entries] == ["stays", "x"]
    await session.lost.wait()


@pytest.mark.parametrize("how", ["WAL deleted", "older copy"])
async def test_a_store_that_has_lost_its_latest_writes_says_so_and_uses_no_revision_twice(
    directory: Path, caplog: pytest.LogCaptureFixture, how: str
) -> None:
    async with LocalBackend(directory) as store:
        identity = store.identity
        await store.put("old", b"")
        with closing(sqlite3.connect(directory / "store.db")) as connection:
            if how == "WAL deleted":
                connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
                shutil.copy(directory / "store.db", directory / "copy")  # the content without the WAL
            else:
                with closing(sqlite3.connect(directory / "copy")) as copy:
                    connection.backup(copy)
        lost = [await store.put("lost", b"%d" % n) for n in range(3)]
    assert "lost its latest changes" not in caplog.text
    os.replace(directory / "copy", directory / "store.db")
    async with LocalBackend(directory) as store, LocalBackend(directory) as other:
        assert store.identity == other.identity == identity
        assert [vars(record)["lost"] for record in caplog.records if "lost its latest changes" in record.message] == [3]
        assert [each.key for each in (await store.list("", limit=9)).entries] == [ROLLED_BACK_KEY, "old"]
        assert await store.put("new", b"") not in lost
    caplog.clear()
    async with LocalBackend(directory) as store:
        assert await store.delete(ROLLED_BACK_KEY)
    assert not caplog.records, "it says so once"


async def test_a_store_that_is_rolled_back_in_place_is_refused_until_it_is_opened_again(directory: Path) -> None:
    """SQLite writes the older content into the same file."""
    async with LocalBackend(directory) as store:
        identity = store.identity
        with closing(sqlite3.connect(directory / "store.db")) as live, closing(sqlite3.connect(":memory:")) as copy:
            live.backup(copy)
            await store.put("lost", b"")
            session, watch = await store.open_session(60_000), store.watch("")
            await anext(watch)
            copy.backup(live)
        with pytest.raises(OlderStore, match="rolled back"):
            await store.get("lost")
        assert session.state is SessionState.LOST
        with pytest.raises(OlderStore):
            await anext(watch)
    async with LocalBackend(directory) as store:
        assert store.identity == identity
        assert [each.key for each in (await store.list("", limit=9)).entries] == [ROLLED_BACK_KEY]


async def test_damage_behind_the_first_row_is_named(directory: Path) -> None:
    """SQLite reads a page when it needs the row in it."""
    file = directory / "store.db"
    async with LocalBackend(directory) as store:
        for number in range(100):
            await store.put(f"k{number:03}", b"%03d" % number * 500)
    async with LocalBackend(directory) as store:
        content = bytearray(file.read_bytes())
        page_bytes = int.from_bytes(content[16:18], "big")
        page = content.index(b"077" * 100) // page_bytes * page_bytes
        content[page] ^= 0xFF  # the kind of the page
        file.write_bytes(content)
        assert store._thread is not None
        await store._thread.submit(lambda database: database._connection.execute("PRAGMA shrink_memory"))
        assert await store.get("k000") is not None
        with pytest.raises(DamagedStore, match="malformed"):
            await store.list("", limit=200)
    with pytest.raises(DamagedStore, match="damaged"):
        await LocalBackend(directory).open()


@pytest.mark.parametrize(
    "text",
    ["", "x", "another-store 99999", "{} 09999999999999999999"],
    ids=["empty", "damaged", "another store's", "impossible"],
)
async def test_an_unusable_note_of_the_latest_change_means_nothing(directory: Path, text: str) -> None:
    async with LocalBackend(directory) as store:
        await store.put("a", b"")
        identity = store.identity
    (directory / latest_change.FILE).write_text(text.format(identity))
    async with LocalBackend(directory) as store:
        assert await store.get(ROLLED_BACK_KEY) is None
        await store.put("b", b"")
        assert (directory / latest_change.FILE).read_text().split()[0] == store.identity


@pytest.mark.parametrize("how", ["its head", "all but its head", "everything"])
async def test_a_damaged_store_is_no_empty_one(directory: Path, how: str) -> None:
    """Not even a search that accepts any store reports it as empty: that would mislead the operator about the cause."""
    async with LocalBackend(directory) as store:
        identity = store.identity
    file = directory / "store.db"
    with closing(sqlite3.connect(file)) as connection:
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    content = file.read_bytes()
    page = 4096
    noise = random.Random(1).randbytes(len(content))
    file.write_bytes(
        {
            "its head": noise[:page] + content[page:],
            "all but its head": content[:page] + noise[page:],
            "everything": b"",
        }[how]
    )

    async def backend_at(url: str) -> LocalBackend:
        return LocalBackend(directory)

    with pytest.raises(DamagedStore, match="damaged"):
        await open_existing("local://", backend_at, expected=identity)


@pytest.mark.parametrize("how", ["deleted", "replaced", "overwritten"])
async def test_a_store_lost_underneath_is_noticed(directory: Path, backend: LocalBackend, how: str) -> None:
    await backend.put("a", b"")
    session = await backend.open_session(60_000)
    watch = backend.watch("")
    await anext(watch)
    if how == "overwritten":
        with sqlite3.connect(directory / "store.db") as connection:
            connection.execute("UPDATE state SET identity = 'another'")
            connection.execute("DELETE FROM entries")
        connection.close()
    else:
        shutil.rmtree(directory)
    if how == "replaced":
        async with LocalBackend(directory) as another:
            assert another.identity != backend.identity
    await session.lost.wait()  # without a call
    with pytest.raises(WrongStore):
        await anext(watch)
    for call in (backend.get("a"), backend.put("a", b""), backend.list("", limit=1), backend.open_session(1000)):
        with pytest.raises(WrongStore):
            await call


async def test_an_expected_store_is_never_created(directory: Path) -> None:
    backend = LocalBackend(directory)
    with pytest.raises(WrongStore):
        await backend.open(expect_identity="0" * 32)
    assert names(directory.parent) == []
    await backend.open()
    identity = backend.identity
    await backend.close()
    with pytest.raises(WrongStore):
        await LocalBackend(directory).open(expect_identity="0" * 32)
    again = LocalBackend(directory)
    await again.open(expect_identity=identity)
    await again.close()


@pytest.mark.parametrize("content", [b"garbage" * 1000, b"", b"SQLite format 3\0" + bytes(84)])
def test_a_file_that_is_not_a_store_is_refused(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "store.db").write_bytes(content)
    with pytest.raises((BadConfig, WrongStore)):
        asyncio.run(LocalBackend(tmp_path).open())
    assert (tmp_path / "store.db").read_bytes() == content


async def test_directories_that_cannot_work(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(BadConfig):
        await LocalBackend(tmp_path / "file").open()
    with pytest.raises((BadConfig, Unauthorized)):
        await LocalBackend(Path("/proc/none")).open()


def test_a_process_without_descriptors_is_no_fault_of_the_store(directory: Path) -> None:
    """The broker tries again instead of leaving the cluster."""
    in_own_process(lambda: asyncio.run(run_out_of_descriptors(directory)))


async def run_out_of_descriptors(directory: Path) -> None:
    missing = directory / "store.db"
    async with LocalBackend(directory) as backend:
        await backend.put("key", b"value")
        with descriptors_left(0):
            with pytest.raises(Unavailable):
                await LocalBackend(directory).open()
            with pytest.raises(sqlite3.OperationalError) as cannot_open:
                sqlite3.connect(missing)
            refused = as_coordination_error(cannot_open.value, missing, writing=False)
        assert isinstance(refused, Unavailable)
        assert "too many open files" in str(refused)
        assert isinstance(as_coordination_error(cannot_open.value, missing, writing=False), BadConfig)
        entry = await backend.get("key")
        assert entry is not None


async def test_odd_directory_names(tmp_path: Path) -> None:
    async with LocalBackend(tmp_path / "100%?a#b c") as backend:
        await backend.put("a", b"")
    assert names(tmp_path / "100%?a#b c") == ["live", "store.db", "store.latest"]


async def test_clients_that_open_at_once_create_one_store(directory: Path) -> None:
    clients = [LocalBackend(directory) for _ in range(8)]
    await asyncio.gather(*(client.open() for client in clients))
    assert len({client.identity for client in clients}) == 1
    for client in clients:
        await client.close()
    assert names(directory) == ["live", "store.db", "store.latest"]
    assert names(directory / "live") == []


async def test_a_store_that_another_process_has_locked_is_opened_once_the_lock_is_gone(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first process after a crash recovers the WAL under an exclusive lock, which takes long on a busy machine."""
    async with LocalBackend(directory) as before:
        await before.put("key", b"value")
    holder = sqlite3.connect(directory / "store.db", isolation_level=None, check_same_thread=False)
    holder.execute("PRAGMA locking_mode = EXCLUSIVE")
    holder.execute("UPDATE state SET sequence = sequence")
    found_locked = []

    def release(path: Path) -> None:
        found_locked.append(path)
        holder.close()

    monkeypatch.setattr(database, "resume_stopped_lock_holder", release)
    async with LocalBackend(directory) as opened:
        entry = await opened.get("key")
    assert entry is not None
    assert entry.value == b"value"
    assert len(found_locked) == 1


async def test_opening_and_closing_leaks_nothing(directory: Path) -> None:
    async with LocalBackend(directory) as other:
        await other.put("a", b"")

        def held() -> tuple[int, int]:
            threads = [thread.name for thread in threading.enumerate() if thread.name.startswith("coordination")]
            return open_descriptors(f"{directory}/"), len(threads)

        async with LocalBackend(directory) as once:
            await once.open_session(1000)
        before = held()
        for _ in range(50):
            async with LocalBackend(directory) as client:
                await client.open_session(1000)
        await asyncio.sleep(0)
        after = held()
        assert after[0] <= before[0] + 2
        assert after[1] <= before[1] + 2
        assert len((await other.list("", limit=9)).entries) == 1
    with sqlite3.connect(directory / "store.db") as connection:
        assert connection.execute("SELECT count(*) FROM sessions").fetchone() == (0,)
    connection.close()


@pytest.mark.slow
async def test_sessions_opened_and_closed_leave_nothing(directory: Path, backend: LocalBackend) -> None:
    for _ in range(1000):
        await (await backend.open_session(60_000)).close()
    assert backend._sessions == {}


async def test_a_new_store_is_for_its_owner_only(tmp_path: Path) -> None:
    old_mask = os.umask(0)
    try:
        async with LocalBackend(tmp_path / "new") as client:
            await client.put("a", b"1")
            made = [tmp_path / "new", *(tmp_path / "new").rglob("*")]
            names = {path.name for path in made}
            assert names >= {"new", "live", "store.db", "store.db-wal", "store.latest"}
            assert [path for path in made if stat.S_IMODE(path.stat().st_mode) & 0o077] == []
    finally:
        os.umask(old_mask)


async def test_a_stale_clock_cannot_keep_a_session(directory: Path) -> None:
    """The clock of a stopped process stands still; this test sets it by hand."""
    offset = 0.0
    loop = asyncio.get_running_loop()
    async with LocalBackend(directory, monotonic=lambda: loop.time() + offset) as other, LocalBackend(directory) as own:
        session = await own.open_session(60_000)
        await own.put("bound", b"", session=session)
        offset = 61.0
        await other.put("x", b"")  # any write expires sessions that are due
        assert await other.get("bound") is None
        with pytest.raises(SessionLost):
            await own.put("bound", b"", session=session)
        assert session.state is SessionState.LOST


async def test_many_calls_at_once(backend: LocalBackend) -> None:
    await asyncio.gather(*(backend.put(f"k/{n}", b"%d" % n, expect=ABSENT) for n in range(1000)))
    page = await backend.list("k/", limit=2000)
    assert len(page.entries) == 1000
    assert len({entry.revision for entry in page.entries}) == 1000


async def test_ten_thousand_keys(backend: LocalBackend) -> None:
    for start in range(0, 10_000, 1000):
        await backend.txn([], [Put(f"k/{n:05}", b"v") for n in range(start, start + 1000)])
    found, after = 0, None
    while True:
        page = await backend.list("k/", limit=700, after=after)
        found += len(page.entries)
        if (after := page.next_after) is None:
            break
    assert found == 10_000
    snapshot = await anext(backend.watch("k/"))
    assert isinstance(snapshot, Snapshot)
    assert len(snapshot.entries) == 10_000


async def test_a_burst_larger_than_one_read_arrives_whole(directory: Path, backend: LocalBackend) -> None:
    async with LocalBackend(directory) as other, other.watch("k/") as watch:
        await anext(watch)
        for start in range(0, 3000, 1000):
            await backend.txn([], [Put(f"k/{n}", b"") for n in range(start, start + 1000)])
        seen = {event.entry.key async for event in _take(watch, 3000)}
        assert len(seen) == 3000


async def _take(watch: Watch, count: int) -> AsyncIterator[Changed]:
    for _ in range(count):
        event = await anext(watch)
        assert isinstance(event, Changed)
        yield event


def test_on_uvloop(tmp_path: Path) -> None:
    async def run() -> None:
        async with LocalBackend(tmp_path / "c") as one, LocalBackend(tmp_path / "c") as two, two.watch("") as watch:
            await anext(watch)
            await one.put("a", b"")
            await anext(watch)
            session = await one.open_session(60_000)
            await one.put("b", b"", session=session)
            await anext(watch)
            await one.close()
            assert await anext(watch) == Removed("b")

    uvloop.run(run())


def test_a_closed_loop_does_not_hang_the_thread(tmp_path: Path) -> None:
    async def run() -> None:
        backend = LocalBackend(tmp_path / "c")
        await backend.open()
        put = asyncio.ensure_future(backend.put("a", b""))
        await asyncio.sleep(0)
        assert not put.done()

    asyncio.run(run())


async def test_a_failing_disk_leaves_writes_in_doubt_and_reads_unavailable(
    backend: LocalBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(descriptor: int) -> None:
        raise OSError("disk")

    monkeypatch.setattr("parley.consensus.local.database._sync", fail)
    write, read = asyncio.ensure_future(backend.put("a", b"")), asyncio.ensure_future(backend.get("a"))
    with pytest.raises(MaybeApplied):
        await write
    with pytest.raises(Unavailable):
        await read
    monkeypatch.undo()
    assert await backend.get("a") is not None


# Several processes


async def test_a_killed_process_is_noticed_at_once(spawn: Spawn, backend: LocalBackend) -> None:
    child = await spawn("hold", 3_600_000)
    assert await child.said() == ["leading", "1"]
    leadership = asyncio.ensure_future(Elections(backend, await backend.open_session(60_000)).campaign("x", b""))
    child.signal(signal.SIGKILL)
    assert (await leadership).epoch == 2  # the TTL is an hour


def test_a_killed_process_is_noticed_at_once_on_uvloop(directory: Path) -> None:
    async def kill_it_when_it_leads(process: subprocess.Popen[bytes]) -> None:
        async with LocalBackend(directory) as backend, backend.watch("elections/x/leader") as watch:
            event = await anext(watch)
            while not isinstance(event, Changed) and not (isinstance(event, Snapshot) and event.entries):
                event = await anext(watch)
            process.kill()
            assert await anext(watch) == Removed("elections/x/leader")

    command = [sys.executable, str(SCRIPT), "hold", str(directory), "3600000"]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, env=ENVIRONMENT) as process:
        uvloop.run(kill_it_when_it_leads(process))


async def test_a_process_killed_while_no_other_runs_is_noticed_on_opening(spawn: Spawn, directory: Path) -> None:
    child = await spawn("hold", 3_600_000)
    await child.said()
    child.signal(signal.SIGKILL)
    await child.process.wait()
    async with LocalBackend(directory) as backend:
        assert await backend.get("elections/x/leader") is None
        assert len(names(directory / "live")) == 1


async def test_a_stopped_process_loses_its_session_and_sees_that_first(spawn: Spawn, backend: LocalBackend) -> None:
    child = await spawn("hold", 300)
    await child.said()
    child.signal(signal.SIGSTOP)
    await until_gone(backend, "elections/x/leader")
    child.signal(signal.SIGCONT)
    assert await child.said() == ["lost"]


@pytest.mark.slow
@pytest.mark.parametrize("times", [8, pytest.param(40, marks=pytest.mark.soak)])
async def test_stopped_at_any_instant_of_writing_nothing_is_applied_afterwards(
    spawn: Spawn, backend: LocalBackend, times: int
) -> None:
    rng = random.Random(5)
    for _ in range(times):
        child = await spawn("write", 300)
        assert (await child.said())[0] == "leading"
        await asyncio.sleep(rng.random() * 0.2)
        child.signal(signal.SIGSTOP)
        await until_gone(backend, "elections/x/leader")
        last = await backend.get("last")
        assert await backend.get("bound") is None
        child.signal(signal.SIGCONT)
        said = await child.said()
        assert said[0] == "refused"
        assert said[2] == "lost" or said[1] == "Fenced"
        assert await backend.get("last") == last
        assert await backend.get("bound") is None
        await child.process.wait()


async def test_a_process_stopped_while_it_holds_the_lock_does_not_stop_the_others(
    spawn: Spawn, backend: LocalBackend
) -> None:
    child = await spawn("lock")
    assert await child.said() == ["locked"]
    wait_until_stopped(child.process.pid)
    await backend.put("a", b"")
    wait_until_stopped(child.process.pid)  # again, perhaps before it can report that it has unlocked the file
    child.signal(signal.SIGCONT)
    assert await child.said() == ["unlocked"]


@pytest.mark.slow
async def test_increments_of_several_processes_are_exact(spawn: Spawn, backend: LocalBackend) -> None:
    children = [await spawn("count", 50) for _ in range(4)]
    for child in children:
        assert await child.said() == ["counted"]
    entry = await KeyValue(backend).get("counter")
    assert entry is not None
    assert int(entry.value) == 200


@pytest.mark.slow
async def test_each_killed_leader_is_replaced(spawn: Spawn, backend: LocalBackend) -> None:
    """Each kill happens somewhere in a write. The store stays intact, and epochs rise by one."""
    rng = random.Random(3)
    waiting = await spawn("write", 3_600_000)
    assert await waiting.said() == ["leading", "1"]
    for epoch in range(2, 22):
        leading, waiting = waiting, await spawn("write", 3_600_000)
        await asyncio.sleep(rng.random() * 0.1)
        leading.signal(signal.SIGKILL)
        assert await waiting.said() == ["leading", str(epoch)]
    entry = await backend.get("last")
    assert entry is not None


async def test_closing_does_not_disturb_other_clients(directory: Path) -> None:
    first, second = LocalBackend(directory), LocalBackend(directory)
    await first.open()
    await second.open()
    await first.close()
    await second.put("a", b"")
    with pytest.raises(Closed):
        await first.get("a")
    await second.close()


async def test_a_read_that_fails_halfway_does_not_keep_its_old_state(tmp_path: Path) -> None:
    async with (
        LocalBackend.from_url(f"local://{tmp_path}/store") as one,
        LocalBackend.from_url(f"local://{tmp_path}/store") as two,
    ):
        assert one._thread is not None
        database: Any = one._thread._database
        execute = database._execute

        def failing(sql: str, parameters: Any, *, writing: bool) -> Any:
            if sql == "BEGIN":
                return execute(sql, parameters, writing=writing)
            raise Unavailable("the disk failed")

        database._execute = failing
        with pytest.raises(Unavailable):
            await one.list("", limit=1)
        database._execute = execute
        await two.put("key", b"value")
        entry = await one.get("key")
        assert entry is not None
        assert entry.value == b"value"
