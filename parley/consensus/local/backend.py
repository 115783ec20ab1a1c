"""One process's client of the embedded store: the calls, its sessions and its watches. The package has the rules."""

from __future__ import annotations

import asyncio
import math
import random
import time
from collections import deque
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
    Presence,
    Put,
    Read,
    Revision,
    Session,
    SessionState,
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
from parley.consensus.local.database import Applied, Census, Database
from parley.consensus.local.database_thread import Worker
from parley.consensus.local.other_processes import CHANGED, MOVED, Neighbours

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
_LOOK_S = 1.0  # how often to look for what nobody told us
_RETRY_S = 0.1
_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
_T = TypeVar("_T")


class LocalBackend(Backend):
    """A client of the store in a directory.

    :param directory: made if it does not exist; several processes may use it at once.
    :param monotonic: seconds on a clock that all processes of the machine share.
    :param rng: source of names; two clients must never draw the same.
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
        self._identity: str | None = None
        self._worker: Worker | None = None
        self._neighbours: Neighbours | None = None
        self._sessions: dict[str, _LocalSession] = {}
        self._watches: dict[_LocalWatch, None] = {}
        self._look_timer: asyncio.TimerHandle | None = None
        self._look_task: asyncio.Task[None] | None = None
        self._look_again = False
        self._seen = -1  # the sequence at the last census

    @classmethod
    def from_url(cls, url: str, **options: object) -> Self:
        scheme, _, path = url.partition(":")
        if scheme != "local" or options:
            raise BadConfig(f"{url!r} {options or ''}: expected local:///directory, without options")
        if path.startswith("//") and not path.startswith("///"):
            raise BadConfig(f"{url!r}: a host makes no sense; expected local:///directory or local:relative/directory")
        if not path.strip("/"):
            raise BadConfig(f"{url!r} names no directory; expected local:///directory")
        return cls(Path(path.removeprefix("//")))

    @property
    def capabilities(self) -> Capabilities:
        return CAPABILITIES

    @property
    def identity(self) -> str:
        if self._identity is None:
            raise Closed("the backend has not been opened")
        return self._identity

    async def open(self, *, expect_identity: str | None = None) -> None:
        if self._worker is not None:
            return
        worker = Worker(self._on_own_news)
        new_identity, boot = self._name(), _boot_id()
        self._process = self._name()  # a new one each time, so that nobody takes us for one who is gone

        def connect() -> Database:
            if expect_identity is None:
                _make_directory(self._directory)
            return Database(self._directory, expect_identity=expect_identity, new_identity=new_identity, boot=boot)

        try:
            database = await worker.open(connect)
            self._neighbours = Neighbours(self._directory, self._process, self._on_news, self._on_death)
        except OSError as error:
            await worker.close()
            raise _refused(error) from error
        except BaseException:
            await worker.close()
            raise
        self._worker = worker
        self._identity = database.identity
        try:
            await self._take_census()
            self._neighbours.tell(MOVED)
        except BaseException:
            await self.close()
            raise
        self._schedule_look(_LOOK_S)

    async def close(self) -> None:
        await self._close(ending_sessions=True)

    async def abandon(self) -> None:
        await self._close(ending_sessions=False)

    async def _close(self, *, ending_sessions: bool) -> None:
        worker, neighbours = self._worker, self._neighbours
        if worker is None or neighbours is None:
            return
        self._worker = self._neighbours = None
        if self._look_timer:
            self._look_timer.cancel()
        if self._look_task:
            self._look_task.cancel()
        ends_sessions = ending_sessions and bool(self._sessions)
        for session in tuple(self._sessions.values()):
            session.lose()
        if ends_sessions:
            now_ms = self._now_ms()
            with suppress(CoordinationError):
                await worker.submit(lambda database: database.apply((), (), now_ms=now_ms, dead_process=self._process))
        if ending_sessions:
            neighbours.tell(MOVED)
        neighbours.close()
        await worker.close()
        self._wake()

    async def open_session(self, ttl_ms: int) -> Session:
        ttl_ms = CAPABILITIES.ttl(ttl_ms)
        session_id = self._name()
        sent_at, now_ms = asyncio.get_running_loop().time(), self._now_ms()
        await self._run(lambda database: database.add_session(session_id, self._process, ttl_ms, now_ms))
        session = _LocalSession(self, session_id, ttl_ms, sent_at)
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

    async def delete(self, key: str, *, expect: Expectation = ANY) -> bool:
        if expect is Presence.ABSENT:
            raise ValueError("a delete cannot expect ABSENT")
        return (await self._apply([Check(key, expect)], [Delete(key)])).deleted > 0

    async def list(self, prefix: str, *, limit: int, after: str | None = None, read: Read = LINEARIZABLE) -> Page:
        if limit < 1:
            raise ValueError("the limit must be at least 1")
        limit = min(limit, CAPABILITIES.list_limit_max)
        return await self._read(lambda database: database.list(prefix, limit, after))

    async def txn(self, checks: Sequence[Check], ops: Sequence[Op]) -> TxnResult:
        base = (await self._apply(checks, ops)).base
        revisions = (Revision(base + n) if isinstance(op, Put) else None for n, op in enumerate(ops, start=1))
        return TxnResult(tuple(revisions))

    def watch(self, prefix: str) -> Watch:
        if self._worker is None:
            raise Closed("the backend is not open")
        watch = _LocalWatch(self, prefix)
        self._watches[watch] = None
        return watch

    async def watch_count(self) -> WatchCount:
        return WatchCount(
            None, "there is no server: each process reads the file, and looks for itself what has changed"
        )

    # For sessions and watches.

    async def _run(self, job: Callable[[Database], _T]) -> _T:
        if self._worker is None:
            raise Closed("the backend is not open")
        try:
            return await self._worker.submit(job)
        except WrongStore:
            self._lose_sessions()
            raise

    async def _read(self, job: Callable[[Database], _T]) -> _T:
        try:
            return await self._run(job)
        except MaybeApplied as error:  # the disk failed; that is in doubt for the writes of the same batch only
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
                await self._take_census()  # so that the session is LOST before anybody hears of it
            raise

    def _end_session(self, session_id: str) -> None:
        """Forget a session that is lost, and end it in the store in case that does not know yet."""
        self._sessions.pop(session_id, None)
        if self._worker is not None:
            now_ms = self._now_ms()
            ended = self._worker.submit(lambda database: database.apply((), (), now_ms=now_ms, dead_session=session_id))
            ended.add_done_callback(lambda future: future.cancelled() or future.exception())

    def _now_ms(self) -> int:
        return math.floor(self._monotonic() * 1000)

    def _name(self) -> str:
        return f"{self._rng.getrandbits(128):032x}"

    # News, deaths and the look that finds what nobody told.

    def _on_own_news(self, moved: bool) -> None:
        if self._neighbours is not None:
            self._neighbours.tell(MOVED if moved else CHANGED)
        self._on_news(moved)

    def _on_news(self, moved: bool) -> None:
        self._wake()
        if moved:
            self._look()

    def _on_death(self, process: str) -> None:
        self._look()

    def _look(self) -> None:
        """Take a census, now, or once more after the one that is under way."""
        if self._worker is None:
            return
        if self._look_task is not None and not self._look_task.done():
            self._look_again = True
            return
        self._look_task = asyncio.get_running_loop().create_task(self._look_until_current(), name="coordination census")

    async def _look_until_current(self) -> None:
        self._look_again = True
        due_in_s = _RETRY_S
        while self._look_again:
            self._look_again = False
            try:
                due_in_s = await self._take_census()
            except Retriable:
                due_in_s = _RETRY_S
            except WrongStore:
                self._lose_sessions()
                self._wake()
            except CoordinationError:
                return
        self._schedule_look(due_in_s)

    def _schedule_look(self, after_s: float) -> None:
        if self._look_timer:
            self._look_timer.cancel()
        if self._worker is not None:
            loop = asyncio.get_running_loop()
            self._look_timer = loop.call_later(min(after_s, _LOOK_S), self._look)

    async def _take_census(self) -> float:
        """Learn who is there; end the sessions of the dead and the silent. In how many seconds the next may be due."""
        census = await self._run(Database.census)
        neighbours = self._neighbours
        if neighbours is None:
            raise Closed("the backend is closed")
        self._drop_ended(census)
        try:
            for process in neighbours.scan():
                neighbours.forget(process)
        except OSError as error:
            raise Unavailable(f"cannot see who is alive: {error}") from error
        dead = {process for process, _ in census.sessions.values()} - neighbours.processes
        for process in dead:
            await self._run(partial(Database.apply, checks=(), ops=(), now_ms=self._now_ms(), dead_process=process))
        now_ms = self._now_ms()
        due_ms = min((due for process, due in census.sessions.values() if process not in dead), default=now_ms + 60_000)
        if due_ms <= now_ms:
            await self._run(lambda database: database.apply((), (), now_ms=now_ms))
        if census.sequence != self._seen:
            self._seen = census.sequence
            self._wake()
        return max(due_ms - now_ms, 1) / 1000

    def _drop_ended(self, census: Census) -> None:
        for session_id, session in tuple(self._sessions.items()):
            if session_id not in census.sessions:
                session.lose()

    def _lose_sessions(self) -> None:
        for session in tuple(self._sessions.values()):
            session.lose()

    def _wake(self) -> None:
        for watch in self._watches:
            watch.wake()


class _LocalSession(Session):
    def __init__(self, backend: LocalBackend, session_id: str, ttl_ms: int, sent_at: float) -> None:
        super().__init__(session_id, ttl_ms, sent_at)
        self._backend = backend
        self._renewal = self._loop.call_later(ttl_ms / 3000, self._renew)
        self.add_callback(self._on_change)

    def _renew(self) -> None:
        if self.state is SessionState.LOST or self._backend._worker is None:
            return
        self._renewal = self._loop.call_later(self.ttl_ms / 3000, self._renew)
        sent_at, now_ms = self._loop.time(), self._backend._now_ms()

        def on_answer(answer: asyncio.Future[bool]) -> None:
            if answer.cancelled():
                return
            if (error := answer.exception()) is None:
                if answer.result():
                    self.renewed(sent_at)
                else:
                    self.lose()
            elif not isinstance(error, Retriable):
                self.lose()

        self._backend._worker.submit(lambda database: database.renew(self.id, now_ms)).add_done_callback(on_answer)

    def _on_change(self, state: SessionState) -> None:
        if state is SessionState.LOST:
            self._renewal.cancel()
            self._backend._end_session(self.id)

    async def close(self) -> None:
        if self._state is SessionState.LOST:
            return
        self.lose()
        now_ms = self._backend._now_ms()
        with suppress(Closed):
            await self._backend._run(lambda database: database.apply((), (), now_ms=now_ms, dead_session=self.id))


class _LocalWatch(Watch):
    """Keeps only a position: what it has not yet delivered is in the store, so nothing grows while nobody iterates."""

    def __init__(self, backend: LocalBackend, prefix: str) -> None:
        self._backend = backend
        self._prefix = prefix
        self._position = -1  # behind every floor: begin with a Snapshot
        self._events: deque[Event] = deque()
        self._woken = asyncio.Event()
        self._closed = False

    def wake(self) -> None:
        """There may be something new."""
        self._woken.set()

    async def _next(self) -> Event:
        while True:
            if self._closed or self._backend._worker is None:
                raise Closed("the watch is closed")
            if self._events:
                return self._events.popleft()
            self._woken.clear()
            changes = partial(Database.changes, prefix=self._prefix, position=self._position)
            try:
                self._position, events = await self._backend._run(changes)
            except Retriable:
                await asyncio.sleep(_RETRY_S)
                continue
            self._events.extend(events)
            if not events:
                await self._woken.wait()

    async def close(self) -> None:
        self._closed = True
        self._backend._watches.pop(self, None)
        self.wake()


def _make_directory(directory: Path) -> None:
    try:
        directory.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise _refused(error) from error


def _refused(error: OSError) -> CoordinationError:
    return Unauthorized(str(error)) if isinstance(error, PermissionError) else BadConfig(str(error))


def _boot_id() -> str:
    """Names this boot of the machine; "" where the system has no such name and only the TTLs are left to go by."""
    try:
        return _BOOT_ID.read_text(encoding="ascii").strip()
    except OSError:
        return ""
