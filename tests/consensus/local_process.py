"""A separate process that uses an embedded store, controlled by tests: ``python local_process.py ROLE DIRECTORY
[TTL_MS]``.

It prints a line for each event. Roles: ``hold`` holds a leadership; ``write`` writes under it as fast as possible;
``count`` increments a counter as often as requested; ``lock`` is stopped while it holds SQLite's write lock.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sqlite3
import sys
from pathlib import Path

from parley.consensus.backend import Put
from parley.consensus.errors import CoordinationError, Fenced, SessionLost
from parley.consensus.local import LocalBackend
from parley.consensus.recipes.elections import Elections, Leadership
from parley.consensus.recipes.keyvalue import KeyValue
from parley.consensus.session import Session


def say(*words: object) -> None:
    print(*words, flush=True)


async def lead(backend: LocalBackend, ttl_ms: int) -> tuple[Session, Leadership]:
    """Win the leadership. Returns the session and the leadership under it. If the session expires first, as it may on a
    machine under load, try again with a new session."""
    while True:
        session = await backend.open_session(ttl_ms)
        try:
            leadership = await Elections(backend, session).campaign("x", b"")
        except SessionLost:
            continue
        say("leading", leadership.epoch)
        return session, leadership


async def hold(backend: LocalBackend, ttl_ms: int) -> None:
    _, leadership = await lead(backend, ttl_ms)
    await leadership.lost.wait()
    say("lost")


async def write(backend: LocalBackend, ttl_ms: int) -> None:
    session, leadership = await lead(backend, ttl_ms)
    n = 0
    while True:
        n += 1
        try:
            await backend.txn([leadership.guard()], [Put("last", b"%d" % n), Put("bound", b"%d" % n, session)])
        except (Fenced, SessionLost) as error:
            say("refused", type(error).__name__, "lost" if session.lost.is_set() else "unaware")
            return


async def count(backend: LocalBackend, times: int) -> None:
    kv = KeyValue(backend)
    for _ in range(times):
        await kv.update("counter", lambda value: b"%d" % (int(value or 0) + 1))
    say("counted")


def lock(directory: Path) -> None:
    connection = sqlite3.connect(directory / "store.db", isolation_level=None)
    connection.execute("BEGIN IMMEDIATE")
    connection.execute("UPDATE state SET boot = boot")
    say("locked")
    os.kill(os.getpid(), signal.SIGSTOP)
    connection.execute("COMMIT")
    say("unlocked")
    signal.pause()


async def main(role: str, directory: Path, number: int) -> None:
    async with LocalBackend(directory) as backend:
        try:
            await {"hold": hold, "write": write, "count": count}[role](backend, number)
        except CoordinationError as error:
            say("failed", repr(error))


if __name__ == "__main__":
    if sys.argv[1] == "lock":
        lock(Path(sys.argv[2]))
    else:
        asyncio.run(main(sys.argv[1], Path(sys.argv[2]), int(sys.argv[3])))
