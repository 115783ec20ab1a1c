"""Checks of sessions: their duration, and the keys bound to them."""

from __future__ import annotations

import asyncio
import gc
import os
import threading
from concurrent.futures import ThreadPoolExecutor

from parley.consensus.backend import Backend, Put, Session, SessionState
from parley.consensus.conformance.lab import (
    LONG_TTL_MS,
    Lab,
    check,
    equal,
    everything,
    refused,
    require,
    resident_bytes,
)
from parley.consensus.errors import SessionLost, Unavailable


def _ttl(client: Backend, wanted_ms: int) -> int:
    return client.capabilities.ttl(wanted_ms)


@check("session-carries-its-keys")
async def _carries(lab: Lab) -> None:
    """Closing a session or its backend immediately deletes its keys, and no others; writes bound to it are rejected."""
    one, two, three = [await lab.client() for _ in range(3)]
    session = await one.open_session(LONG_TTL_MS)
    await two.put("stays", b"")
    for n in range(10):
        await one.put(f"s/{n}", b"%d" % n, session=session)
    entry = await two.get("s/3")
    equal(entry and (entry.value, entry.session), (b"3", session.id), "a bound key as another client sees it")
    equal(session.state, SessionState.CONNECTED, "the state of a fresh session")
    started = asyncio.get_running_loop().time()
    await session.close()
    equal(sorted(await everything(two)), ["stays"], "the keys after the session was closed")
    lab.measured("keys gone after close", (asyncio.get_running_loop().time() - started) * 1000, "ms")
    equal((session.state, session.lost.is_set()), (SessionState.LOST, True), "the closed session")
    async with refused(SessionLost, "a put bound to a closed session"):
        await one.put("s/3", b"", session=session)
    await session.close()
    later = await three.open_session(LONG_TTL_MS)
    await three.put("s/later", b"", session=later)
    await three.close()
    equal(sorted(await everything(two)), ["stays"], "the keys after a backend was closed")
    equal(later.state, SessionState.LOST, "a session of a closed backend")


@check("session-binding")
async def _binding(lab: Lab) -> None:
    """Each put sets the binding of its key: to another session, or to none."""
    one, two = await lab.client(), await lab.client()
    first, second = await one.open_session(LONG_TTL_MS), await two.open_session(LONG_TTL_MS)
    require(first.id != second.id, "two sessions have the same id")
    for key in ("kept", "freed", "taken", "bound-later"):
        await one.put(key, b"", session=None if key == "bound-later" else first)
    await two.put("freed", b"")
    await two.put("taken", b"", session=second)
    await one.put("bound-later", b"", session=first)
    bound = {entry.key: entry.session for entry in (await two.list("", limit=9)).entries}
    equal(bound, {"kept": first.id, "freed": None, "taken": second.id, "bound-later": first.id}, "the bindings")
    await first.close()
    equal(sorted(await everything(two)), ["freed", "taken"], "the keys after the first session")
    await second.close()
    equal(sorted(await everything(two)), ["freed"], "the keys after both sessions")


@check("session-many", slow=True)
async def _many(lab: Lab) -> None:
    """Hundreds of sessions that several clients open and close concurrently do not interfere with each other."""
    clients = [await lab.client() for _ in range(3)]
    sessions: list[Session] = []

    async def open_some(client: Backend, who: int) -> None:
        for n in range(60):
            session = await client.open_session(LONG_TTL_MS)
            await client.put(f"many/{who}/{n}", b"", session=session)
            sessions.append(session)
            short = await client.open_session(LONG_TTL_MS)
            await short.close()

    await asyncio.gather(*(open_some(client, n) for n, client in enumerate(clients)))
    await asyncio.sleep(0.1)
    states = [session.state for session in sessions]
    equal(states.count(SessionState.CONNECTED), 180, "sessions that are CONNECTED")
    equal(len({session.id for session in sessions}), 180, "ids of sessions")
    equal(len(await everything(clients[0], "many/")), 180, "keys of sessions")
    await asyncio.gather(*(session.close() for session in sessions))
    equal(await everything(clients[0]), {}, "keys of closed sessions")


@check("session-ttl")
async def _ttl_is_fitted(lab: Lab) -> None:
    """A TTL outside the declared bounds is adjusted to them; the shortest and the longest TTL work."""
    client = await lab.client()
    limits = client.capabilities
    require(0 < limits.ttl_ms_min <= limits.ttl_ms_max, "ttl_ms_min must be above 0 and at most ttl_ms_max")
    require(limits.ttl_ms_min <= 30_000 <= limits.ttl_ms_max, "a TTL of 30 s must be possible")
    require(limits.expiry_factor_max >= 1, "no store may expire a session before its TTL")
    requested = [(1, limits.ttl_ms_min), (1 << 40, limits.ttl_ms_max), (limits.ttl_ms_max, limits.ttl_ms_max)]
    for ttl_ms, expected in [*requested, (LONG_TTL_MS, _ttl(client, LONG_TTL_MS))]:
        before = asyncio.get_running_loop().time()
        session = await client.open_session(ttl_ms)
        equal(session.ttl_ms, expected, f"the TTL given for {ttl_ms} ms")
        safe_for = session.safe_until - before
        require(
            safe_for <= expected * 2 / 3000 + (asyncio.get_running_loop().time() - before), "safe_until is too late"
        )
        try:
            await client.put("t", b"", session=session)
        except SessionLost:  # on a machine that was stalled for longer than a short TTL
            lived = asyncio.get_running_loop().time() - before
            require(lived >= expected / 1000, f"a session of {expected} ms was lost after {lived * 1000:.0f} ms")
        await session.close()
        equal(await client.get("t"), None, "the key of a closed session")


@check("session-renewed", slow=True)
async def _renewed(lab: Lab) -> None:
    """A session is renewed automatically while its process runs."""
    client = await lab.client()
    session = await client.open_session(_ttl(client, 2000))
    await client.put("s", b"", session=session)
    first = session.safe_until
    lost = asyncio.ensure_future(session.lost.wait())
    await asyncio.wait([lost], timeout=2.3 * session.ttl_ms / 1000)
    lost.cancel()
    require(not session.lost.is_set(), "an idle session was lost")
    require(session.safe_until > first, "safe_until never moved")
    equal(session.state, SessionState.CONNECTED, "the state after two TTLs")
    require(await client.get("s"), "the key of the idle session was deleted")


@check("session-killed-process", slow=True)
async def _killed(lab: Lab) -> None:
    """The keys of a killed process are deleted within the declared bound."""
    client = await lab.client()
    limits = client.capabilities
    await client.open_session(LONG_TTL_MS)  # one session must expire even if another one lives on
    ttl_ms = _ttl(client, 600 if limits.crash_seen_ms_max is None else LONG_TTL_MS)
    bound_ms = limits.crash_seen_ms_max or ttl_ms * limits.expiry_factor_max
    for round_ in range(3):
        peer = await lab.peer("hold", key=f"held/{round_}", ttl_ms=ttl_ms)
        await lab.said(peer, "ready")
        require(await client.get(f"held/{round_}"), "the peer's key")
        started = asyncio.get_running_loop().time()
        await peer.kill()
        gone = await lab.gone(client, f"held/{round_}", bound_ms / 1000 + 30)
        lab.bounded("keys gone after SIGKILL", gone - started, bound_ms)


@check("session-stopped-process", slow=True)
async def _stopped(lab: Lab) -> None:
    """The session of a process that is stopped for longer than its TTL ends within the declared bound. The resumed
    process sees LOST, and none of its writes is applied."""
    client = await lab.client()
    ttl_ms = _ttl(client, 1500)
    for round_ in range(3):
        peer = await lab.peer("write_bound", ttl_ms=ttl_ms)
        await lab.said(peer, "ready")
        await lab.there(client, "bound")
        await asyncio.sleep(lab.rng.random() * 0.05)
        stopped = asyncio.get_running_loop().time()
        await peer.stop()
        gone = await lab.gone(client, "bound", ttl_ms * client.capabilities.expiry_factor_max / 1000 + 30)
        lab.bounded("keys gone after SIGSTOP", gone - stopped, ttl_ms * client.capabilities.expiry_factor_max)
        last = await client.get("last")
        await peer.resume()
        error, lost = await lab.said(peer, "refused")
        equal((error, lost), ("SessionLost", True), f"the error of the resumed process in round {round_}")
        equal(await client.get("last"), last, "the last write of the resumed process")
        equal(await client.get("bound"), None, "the key bound to the session it lost")


@check("session-cut-off")
async def _cut_off(lab: Lab) -> None:
    """A disconnected session is SUSPENDED by safe_until and LOST by its TTL, before the store ends it."""
    one, two = await lab.client(), await lab.client()
    session = await one.open_session(_ttl(one, 3000))
    await one.put("s", b"", session=session)
    states: list[SessionState] = []
    session.add_callback(states.append)
    loop = asyncio.get_running_loop()
    cut = loop.time()
    await lab.harness.cut(one)
    await session.wait_for(SessionState.SUSPENDED, SessionState.LOST)
    require(
        loop.time() <= session.safe_until + lab.harness.allowance_s, "the session was SUSPENDED only after safe_until"
    )
    found, over = await two.get("s"), session.safe_until + session.ttl_ms / 3000
    require(found or loop.time() >= over, "the store ended the session before its TTL had passed")
    await lab.within(session.ttl_ms / 1000 + lab.harness.allowance_s, session.lost.wait(), "LOST")
    lab.bounded("LOST seen by the client", loop.time() - cut, session.ttl_ms)
    equal(states, [SessionState.SUSPENDED, SessionState.LOST], "the states of a session that was cut off")
    gone = await lab.gone(two, "s", session.ttl_ms * one.capabilities.expiry_factor_max / 1000 + 30)
    require(gone >= session.safe_until, "the store ended the session before safe_until")
    lab.bounded("keys gone after cut", gone - cut, session.ttl_ms * one.capabilities.expiry_factor_max)
    await lab.harness.restore(one)
    equal(session.state, SessionState.LOST, "a lost session after the reconnection")
    async with refused(SessionLost, "a put bound to the lost session"):
        await one.put("s", b"", session=session)
    fresh = await _once_there(one)
    await one.put("s", b"", session=fresh)


async def _once_there(client: Backend) -> Session:
    """Open a session as soon as the store is reachable again."""
    while True:
        try:
            return await client.open_session(LONG_TTL_MS)
        except Unavailable:
            await asyncio.sleep(0.05)


@check("session-outlives-disconnection")
async def _outlives(lab: Lab) -> None:
    """A disconnection shorter than the TTL ends no session, deletes no key and loses no write."""
    one, two = await lab.client(), await lab.client()
    session = await one.open_session(LONG_TTL_MS)
    await one.put("s", b"", session=session)
    for round_ in range(3):
        await lab.harness.cut(one)
        await asyncio.sleep(0.05)
        await two.put("other", b"%d" % round_)
        await lab.harness.restore(one)
        await lab.within(60, session.wait_for(SessionState.CONNECTED), "CONNECTED after the reconnection")
        require(await two.get("s"), "the key of the session was deleted")
        entry = await one.get("other")
        equal(entry and entry.value, b"%d" % round_, "the value written meanwhile")
        await one.put("s", b"%d" % round_, session=session)


@check("session-leaks-nothing", slow=True)
async def _leaks(lab: Lab) -> None:
    """A thousand sessions, opened and closed, leave no file, task, thread, memory or key behind."""
    client, other = await lab.client(), await lab.client()

    async def rounds(count: int) -> None:
        for n in range(count):
            session = await client.open_session(LONG_TTL_MS)
            if n % 5 == 0:
                await client.txn([], [Put(f"s/{n}", b"x" * 100, session)])
            await session.close()

    await rounds(100)
    before, memory = _held(), resident_bytes()
    await rounds(1000)
    after, grown = _held(), resident_bytes() - memory
    for what, count in after.items():
        require(count <= before[what] + 3, f"{count - before[what]} {what} were left behind by 1,000 sessions")
    lab.measured("growth by 1,000 sessions", max(grown, 0) / 1024, "KiB", 8192)
    require(grown < 8 << 20, f"{grown >> 10} KiB were left behind by 1,000 sessions")
    equal(await everything(other), {}, "keys left behind")


@check("client-leaks-nothing")
async def _clients(lab: Lab) -> None:
    """Clients that are opened and closed again, with sessions and watches in use, leave nothing behind."""
    await _fill_executor()
    stays = await lab.client()

    async def rounds(count: int) -> None:
        for n in range(count):
            client = lab.harness.client()
            await client.open()
            session = await client.open_session(LONG_TTL_MS)
            await client.put(f"c/{n}", b"", session=session)
            await anext(client.watch("c/"))
            await client.close()

    await rounds(5)
    before = _held()
    await rounds(40)
    deadline = asyncio.get_running_loop().time() + 10 * lab.harness.patience
    while left := _left(before):
        require(asyncio.get_running_loop().time() < deadline, f"40 clients left {left} behind")
        await asyncio.sleep(0.1)  # on a busy machine a thread may need time to end
    equal(await everything(stays), {}, "keys left behind")


async def _fill_executor() -> None:
    """Give the loop a default executor whose threads have all been started.

    An executor adds threads when work arrives and no thread is idle. On a busy machine that may happen after any number
    of clients, and the threads would be counted as leaked.
    """
    count = min(32, (os.cpu_count() or 1) + 4)
    loop, barrier = asyncio.get_running_loop(), threading.Barrier(count)
    loop.set_default_executor(ThreadPoolExecutor(count, thread_name_prefix="asyncio"))
    await asyncio.gather(*(loop.run_in_executor(None, barrier.wait, 60) for _ in range(count)))


def _left(before: dict[str, int]) -> str:
    """Describe the counts that have grown by more than three; empty if there are none."""
    more = {what: count - before[what] for what, count in _held().items()}
    return ", ".join(f"{count} {what}" for what, count in more.items() if count > 3)


def _held() -> dict[str, int]:
    """Count the resources that a client may hold: files, tasks and threads."""
    gc.collect()
    tasks = len(asyncio.all_tasks())
    return {"files": len(os.listdir("/proc/self/fd")), "tasks": tasks, "threads": threading.active_count()}
