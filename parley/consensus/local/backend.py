"""The client of the embedded store in one process: its calls, its sessions and its watches."""

from __future__ import annotations

import asyncio
import errno
import math
import random
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Self, TypeVar

from parley.consensus.backend import (
    ANY,
    LINEARIZABLE,
    Backend,
    Capabilities,
    Check,
    Delete,
    Entry,
    Event,
    Expectation,
    Op,
    Page,
    Put,
    Read,
    Revision,
    Session,
    TxnResult,
    Watch,
    WatchCount,
)
from parley.consensus.errors import (
    BadConfig,
    Closed,
    CoordinationError,
    MaybeApplied,
    Retriable,
    SessionLost,
    Unauthorized,
    Unavailable,
    WrongStore,
)
from parley.consensus.local.database import Applied, Census, Database, News, sync_directory
from parley.consensus.local.database_thread import DatabaseThread
from parley.consensus.local.other_processes import ENTRIES_CHANGED, SESSIONS_CHANGED, OtherProcesses
from parley.consensus.local.protection import protection_of
from parley.consensus.local.session import LocalSession
from parley.consensus.local.watch import RETRY_S, LocalWatch
from parley.consensus.protection import Protection
from parley.consensus.store_identity import new_identity

CAPABILITIES = Capabilities(
    name="local",
    key_bytes_max=1024,
    value_bytes_max=1 << 20,
    txn_ops_max=1024,
    txn_bytes_max=8 << 20,
    list_limit_max=10_000,
    ttl_ms_min=300,
    ttl_ms_max=24 * 3600 * 1000,
    expiry_factor_max=2.0,
    crash_seen_ms_max=500,
)
_CENSUS_EVERY_S = 1.0  # finds changes that no other process has reported
_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
_T = TypeVar("_T")


class LocalBackend(Backend):
    """A client of the store in a directory, which is created if it does not exist. Several processes may share the
    store.

    ``monotonic`` returns seconds on a clock that all processes of the machine share. ``rng`` is the source of names;
    two clients must never generate the same name.
    """

    def __init__(
        self,
        directory: Path,
        *,
        monotonic: Callable[[], float] = time.monotonic,
        rng: random.Random | None = None,
    ) -> None:
        self._directory = directory
        self._monotonic = monotonic
        self._rng = rng or random.SystemRandom()
        self._process = ""
        self._thread: DatabaseThread | None = None
        self._others: OtherProcesses | None = None
        self._sessions: dict[str, LocalSession] = {}
        self._watches: dict[LocalWatch, None] = {}
        self._census_timer: asyncio.TimerHandle | None = None
        self._census_task: asyncio.Task[None] | None = None
        self._census_again = False
        self._seen = -1  # the sequence at the last census

    @classmethod
    def from_url(cls, url: str, **options: object) -> Self:
        scheme, _, path = url.partition(":")
        if scheme != "local" or options:
            raise BadConfig(f"{url!r} {options or ''}: expected local:///directory, without options")
        if path.startswith("//") and not path.startswith("///"):
            raise BadConfig(f"{url!r} names a host; expected local:///directory or local:relative/directory")
        if not path.strip("/"):
            raise BadConfig(f"{url!r} names no directory; expected local:///directory")
        return cls(Path(path.removeprefix("//")))

    @property
    def capabilities(self) -> Capabilities:
        return CAPABILITIES

    async def open(self, *, expect_identity: str | None = None) -> None:
        if self._thread is not None:
            return
        thread = DatabaseThread(self._on_own_news)
        identity, boot = new_identity(self._rng), _boot_id()
        self._process = self._random_name()  # new at each open, so that it is never mistaken for a dead process

        def connect() -> Database:
            if expect_identity is None:
                _make_directory(self._directory)
            return Database(self._directory, expect_identity=expect_identity, new_identity=identity, boot=boot)

        try:
            database = await thread.open(connect)
            self._others = OtherProcesses(self._directory, self._process, self._on_wake_up, self._on_death)
        except OSError as error:
            await thread.close()
            raise _as_coordination_error(error) from error
        except BaseException:
            await thread.close()
            raise
        self._thread = thread
        self._identity = database.identity
        try:
            await self._take_census()
            self._others.wake_up(SESSIONS_CHANGED)
        except BaseException:
            await self.close()
            raise
        self._schedule_census(_CENSUS_EVERY_S)

    async def close(self) -> None:
        await self._close(ending_sessions=True)

    async def abandon(self) -> None:
        await self._close(ending_sessions=False)

    async def _close(self, *, ending_sessions: bool) -> None:
        thread, others = self._thread, self._others
        if thread is None or others is None:
            return
        self._thread = self._others = None
        if self._census_timer:
            self._census_timer.cancel()
        if self._census_task:
            self._census_task.cancel()
        ends_sessions = ending_sessions and bool(self._sessions)
        self._lose_sessions()
        if ends_sessions:
            now_ms = self._now_ms()
            with suppress(CoordinationError):
                await thread.submit(lambda database: database.apply((), (), now_ms=now_ms, dead_process=self._process))
        if ending_sessions:
            others.wake_up(SESSIONS_CHANGED)
        others.close()
        await thread.close()
        self._wake_watches()

    async def open_session(self, ttl_ms: int) -> Session:
        ttl_ms = CAPABILITIES.ttl(ttl_ms)
        session_id = self._random_name()
        sent_at, now_ms = asyncio.get_running_loop().time(), self._now_ms()
        await self._run(lambda database: database.add_session(session_id, self._process, ttl_ms, now_ms))
        session = LocalSession(self, session_id, ttl_ms, sent_at)
        self._sessions[session_id] = session
        return session

    async def get(self, key: str, *, read: Read = LINEARIZABLE) -> Entry | None:
        CAPABILITIES.admit_key(key)
        return await self._read(lambda database: database.get(key))

    async def put(
        self, key: str, value: bytes, *, expect: Expectation = ANY, session: Session | None = None
    ) -> Revision:
        applied = await self._apply([Check(key, expect)], [Put(key, value, session)])
        return Revision(applied.base + 1)

    async def _delete(self, check: Check, delete: Delete) -> bool:
        return (await self._apply([check], [delete])).deleted > 0

    async def list(self, prefix: str, *, limit: int, after: str | None = None, read: Read = LINEARIZABLE) -> Page:
        limit = CAPABILITIES.admit_limit(limit)
        return await self._read(lambda database: database.list(prefix, limit, after))

    async def txn(self, checks: Sequence[Check], ops: Sequence[Op]) -> TxnResult:
        base = (await self._apply(checks, ops)).base
        revisions = (Revision(base + n) if isinstance(op, Put) else None for n, op in enumerate(ops, start=1))
        return TxnResult(tuple(revisions))

    def watch(self, prefix: str) -> Watch:
        if self._thread is None:
            raise Closed("the backend is not open")
        watch = LocalWatch(self, prefix)
        self._watches[watch] = None
        return watch

    async def watch_count(self) -> WatchCount:
        return WatchCount(None, "there is no server: each process reads the database and finds the changes itself")

    async def protection(self) -> Protection:
        if self._thread is None:
            raise Closed("the backend is not open")
        try:
            return await asyncio.to_thread(protection_of, self._directory)
        except OSError as error:
            raise Unavailable(str(error)) from error

    async def _run(self, job: Callable[[Database], _T]) -> _T:
        if self._thread is None:
            raise Closed("the backend is not open")
        try:
            return await self._thread.submit(job)
        except WrongStore:
            self._lose_sessions()
            raise

    async def _read(self, job: Callable[[Database], _T]) -> _T:
        try:
            return await self._run(job)
        except MaybeApplied as error:  # the disk failed: only the writes of the same batch are uncertain
            raise Unavailable(str(error)) from error

    async def _apply(self, checks: Sequence[Check], ops: Sequence[Op]) -> Applied:
        CAPABILITIES.admit(checks, ops)
        for op in ops:
            if isinstance(op, Put) and op.session:
                op.session.require()
        now_ms = self._now_ms()
        try:
            return await self._run(lambda database: database.apply(checks, ops, now_ms=now_ms))
        except SessionLost:
            with suppress(CoordinationError):
                await self._take_census()  # so that the session is LOST before the caller sees the error
            raise

    def _now_ms(self) -> int:
        return math.floor(self._monotonic() * 1000)

    def _random_name(self) -> str:
        return f"{self._rng.getrandbits(128):032x}"

    # --- For sessions and watches ---

    def send_renewal(self, session_id: str) -> asyncio.Future[bool] | None:
        """Start renewing a session (for ``session.Sessions``). Returns None if the backend is closed."""
        if self._thread is None:
            return None
        now_ms = self._now_ms()
        return self._thread.submit(lambda database: database.renew(session_id, now_ms))

    def forget(self, session_id: str) -> None:
        """Forget a session that is LOST, and end it in the store if it has not ended there (for
        ``session.Sessions``)."""
        self._sessions.pop(session_id, None)
        if self._thread is not None:
            now_ms = self._now_ms()
            ended = self._thread.submit(lambda database: database.apply((), (), now_ms=now_ms, dead_session=session_id))
            ended.add_done_callback(lambda future: future.cancelled() or future.exception())

    async def end(self, session_id: str) -> None:
        """End a session in the store, and delete its keys (for ``session.Sessions``)."""
        now_ms = self._now_ms()
        with suppress(Closed):
            await self._run(lambda database: database.apply((), (), now_ms=now_ms, dead_session=session_id))

    @property
    def is_open(self) -> bool:
        """True from ``open`` until ``close`` (for ``watch.ChangeSource``)."""
        return self._thread is not None

    async def changes(self, prefix: str, position: int) -> tuple[int, Sequence[Event]]:
        """Return the events below a prefix since ``position``, and the position reached (for
        ``watch.ChangeSource``)."""
        return await self._run(lambda database: database.changes(prefix, position))

    def forget_watch(self, watch: LocalWatch) -> None:
        """Forget a closed watch (for ``watch.ChangeSource``)."""
        self._watches.pop(watch, None)

    # --- News of other processes, and the census ---

    def _on_own_news(self, news: News) -> None:
        if self._others is not None:
            self._others.wake_up(SESSIONS_CHANGED if news.sessions_changed else ENTRIES_CHANGED)
        self._on_wake_up(news.sessions_changed)

    def _on_wake_up(self, sessions_changed: bool) -> None:
        self._wake_watches()
        if sessions_changed:
            self._start_census()

    def _on_death(self, process: str) -> None:
        self._start_census()

    def _start_census(self) -> None:
        """Start a census of the sessions. If a census is running, take another one after it."""
        if self._thread is None:
            return
        if self._census_task is not None and not self._census_task.done():
            self._census_again = True
            return
        self._census_task = asyncio.get_running_loop().create_task(
            self._take_census_until_current(), name="coordination census"
        )

    async def _take_census_until_current(self) -> None:
        self._census_again = True
        due_in_s = RETRY_S
        while self._census_again:
            self._census_again = False
            try:
                due_in_s = await self._take_census()
            except Retriable:
                due_in_s = RETRY_S
            except WrongStore:
                self._lose_sessions()
                self._wake_watches()
            except CoordinationError:
                return
        self._schedule_census(due_in_s)

    def _schedule_census(self, after_s: float) -> None:
        if self._census_timer:
            self._census_timer.cancel()
        if self._thread is not None:
            loop = asyncio.get_running_loop()
            self._census_timer = loop.call_later(min(after_s, _CENSUS_EVERY_S), self._start_census)

    async def _take_census(self) -> float:
        """End the sessions of dead processes and sessions past their TTL. Returns the seconds until the next session
        may expire."""
        census = await self._run(Database.census)
        others = self._others
        if others is None:
            raise Closed("the backend is closed")
        self._lose_ended(census)
        try:
            for process in others.scan():
                others.forget(process)
        except OSError as error:
            raise Unavailable(f"cannot see which processes are alive: {error}") from error
        dead = {process for process, _ in census.sessions.values()} - others.alive
        for process in dead:
            await self._run(partial(Database.apply, checks=(), ops=(), now_ms=self._now_ms(), dead_process=process))
        now_ms = self._now_ms()
        due_ms = min((due for process, due in census.sessions.values() if process not in dead), default=now_ms + 60_000)
        if due_ms <= now_ms:
            await self._run(lambda database: database.apply((), (), now_ms=now_ms))
        if census.sequence != self._seen:
            self._seen = census.sequence
            self._wake_watches()
        return max(due_ms - now_ms, 1) / 1000

    def _lose_ended(self, census: Census) -> None:
        for session_id, session in tuple(self._sessions.items()):
            if session_id not in census.sessions:
                session.lose()

    def _lose_sessions(self) -> None:
        for session in tuple(self._sessions.values()):
            session.lose()

    def _wake_watches(self) -> None:
        for watch in self._watches:
            watch.wake()


def _make_directory(directory: Path) -> None:
    """Create the directory durably and only for this user, because it will contain credentials.

    An existing directory keeps its permissions.
    """
    missing = [each for each in (directory, *directory.parents) if not each.exists()]
    try:
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        for each in missing:
            sync_directory(each.parent)
    except OSError as error:
        raise _as_coordination_error(error) from error


def _as_coordination_error(error: OSError) -> CoordinationError:
    if error.errno in (errno.EMFILE, errno.ENFILE, errno.ENOMEM):  # a fault of this process, which may be temporary
        return Unavailable(str(error))
    return Unauthorized(str(error)) if isinstance(error, PermissionError) else BadConfig(str(error))


def _boot_id() -> str:
    """Return the id of this boot of the machine, or "" on systems without such ids, where sessions end only by their
    TTLs."""
    try:
        return _BOOT_ID.read_text(encoding="ascii").strip()
    except OSError:
        return ""
