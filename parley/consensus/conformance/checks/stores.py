"""Checks of the store as a whole: identity, wiping, restarts, the wall clock."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from functools import partial
from typing import TypeVar

from parley.consensus.backend import ABSENT, At, Backend, Put, Session, SessionState, Snapshot
from parley.consensus.conformance.harness import Peer
from parley.consensus.conformance.lab import LONG_TTL_MS, Lab, check, equal, everything, refused, require
from parley.consensus.errors import Closed, CoordinationError, WrongStore
from parley.consensus.recipes.elections import Elections
from parley.consensus.recipes.listeners import View

_T = TypeVar("_T")


def _calls(client: Backend, session: Session | None = None) -> dict[str, Callable[[], Awaitable[object]]]:
    return {
        "get": lambda: client.get("a"),
        "put": lambda: client.put("a", b"", session=session),
        "delete": lambda: client.delete("a"),
        "list": lambda: client.list("", limit=10),
        "txn": lambda: client.txn([], [Put("b", b"")]),
        "open_session": lambda: client.open_session(LONG_TTL_MS),
    }


@check("store-closed")
async def _closed(lab: Lab) -> None:
    """Every call before open and after close raises Closed; closing twice, or without open, does nothing."""
    unopened = lab.harness.client()
    opened = await lab.client()
    await opened.put("a", b"")
    await unopened.close()
    await opened.close()
    await opened.close()
    for client, when in ((unopened, "before open"), (opened, "after close")):
        for name, call in _calls(client).items():
            async with refused(Closed, f"{name} {when}"):
                await call()
        async with refused(Closed, f"watch {when}"):
            await anext(client.watch(""))
    reopened = await lab.client()
    equal(await everything(reopened), {"a": b""}, "the store after its clients were closed")


@check("store-identity")
async def _identity(lab: Lab) -> None:
    """A store keeps one identity, the same for all clients, and rejects a client that expects another."""
    one = await lab.client()
    identity = one.identity
    require(isinstance(identity, str) and len(identity) >= 16, f"{identity!r} is not a random name")
    equal((await lab.client()).identity, identity, "the identity that another client sees")
    await one.close()
    equal((await lab.client()).identity, identity, "the identity after closing")
    right, wrong = lab.harness.client(), lab.harness.client()
    await right.open(expect_identity=identity)
    await right.close()
    async with refused(WrongStore, "opening a store that is not the one expected"):
        try:
            await wrong.open(expect_identity="0" * 32)
        except WrongStore as error:
            equal(error.found, identity, "the identity in the error")
            raise
    await wrong.close()
    many = [lab.harness.client() for _ in range(4)]
    await asyncio.gather(*(client.open() for client in many))
    equal({client.identity for client in many}, {identity}, "the identities seen by clients that open at the same time")
    for client in many:
        await client.close()


@check("store-wiped-is-refused")
async def _wiped(lab: Lab) -> None:
    """Clients that knew a wiped store reject it with WrongStore, and never mistake it for a new, empty one."""
    client, idle = await lab.client(), await lab.client()
    identity = client.identity
    await client.put("a", b"1")
    session, other = await client.open_session(LONG_TTL_MS), await idle.open_session(LONG_TTL_MS)
    await client.put("bound", b"", session=session)
    await lab.harness.wipe()
    for again in ("first", "second"):
        for name, call in _calls(client).items():
            async with refused(WrongStore, f"{name} on a wiped store, {again} time"):
                await lab.within(60, call(), f"a response to {name}")
    for each in (session, other):
        await lab.within(60, each.lost.wait(), "the end of a session whose store was wiped")
    late = lab.harness.client()
    async with refused(WrongStore, "opening a wiped store while expecting the old identity"):
        await late.open(expect_identity=identity)
    await late.close()
    fresh = await lab.client()
    require(fresh.identity != identity, "the wiped store kept its identity")
    equal(await everything(fresh), {}, "a wiped store opened without an expected identity")
    await fresh.put("a", b"new")
    for name, call in _calls(client).items():
        async with refused(WrongStore, f"{name} on a store with another identity"):
            await lab.within(60, call(), f"a response to {name}")
    equal(await everything(fresh), {"a": b"new"}, "the new store after calls of the old store's clients")


@check("store-restarted")
async def _restarted(lab: Lab) -> None:
    """A restart of the server loses nothing that it confirmed; clients, sessions and watches recover by themselves."""
    one, two = await lab.client(), await lab.client()
    revision = await one.put("r/a", b"1")
    session = await one.open_session(LONG_TTL_MS)
    await one.put("r/bound", b"", session=session)
    identity = one.identity
    async with two.watch("r/") as watch:
        view = View()
        event = await lab.within(30, anext(watch), "a Snapshot")
        require(isinstance(event, Snapshot), f"a watch began with {event}")
        view.apply(event)
        for round_ in range(3):
            await one.put("r/last", b"%d" % round_)
            before = await everything(one)
            await lab.harness.restart()
            equal(await _answered(lab, lambda: everything(two)), before, "the store after a restart")
            entry = await _answered(lab, lambda: one.get("r/a"))
            equal(entry and entry.revision, revision, "a revision after a restart")
            await lab.within(60, session.wait_for(SessionState.CONNECTED), "the session being CONNECTED again")
            revision = await _answered(lab, partial(one.put, "r/a", b"1", expect=At(revision)))
            await one.put("r/bound", b"%d" % round_, session=session)
            await lab.follow(watch, view, await everything(one, "r/"))
    equal((await lab.client()).identity, identity, "the identity after restarts")


async def _answered(lab: Lab, call: Callable[[], Awaitable[_T]]) -> _T:
    """Repeat a call until the store is reachable. Returns its result."""

    async def repeat() -> _T:
        while True:
            try:
                return await call()
            except CoordinationError as error:
                require(not isinstance(error, WrongStore), f"a restarted store was taken for another one: {error}")
                await asyncio.sleep(0.05)

    return await lab.within(60, repeat(), "a response after a restart")


@check("store-wall-clock", slow=True)
async def _wall_clock(lab: Lab) -> None:
    """Moving the wall clock by an hour, either way, ends no session, keeps none alive and deposes no leader."""
    client = await lab.client()
    limits = client.capabilities
    held_ms, ttl_ms = limits.ttl(5000), limits.ttl(1500)
    holder = await lab.peer("hold", key="held", ttl_ms=held_ms)
    leader = await lab.peer("lead", name="leader", ttl_ms=LONG_TTL_MS, pause_s=0.05)
    clock = await lab.peer("tell_time")
    await lab.said(holder, "ready")
    await lab.said(leader, "ready")
    (epoch, _) = await lab.said(leader, "leading")
    own = await client.open_session(LONG_TTL_MS)
    await client.put("own", b"", session=own)
    for seconds in (3600.0, -3600.0, 0.0):
        await lab.harness.move_wall_clock(seconds)
        await lab.within(30, _until_moved(clock, seconds), f"the wall clock {seconds} s off in a peer")
        await _one_more(lab, client, ttl_ms)
        for key in ("held", "own"):
            require(await client.get(key), f"{key} was deleted with the clock {seconds} s off")
        await client.put("written", b"%d" % seconds)
    equal(await Elections(client, own).epoch("lead"), epoch, "the epoch after the clock was moved")
    equal(own.state, SessionState.CONNECTED, "a session after the clock was moved")
    await holder.kill()
    bound_ms = limits.crash_seen_ms_max or held_ms * limits.expiry_factor_max
    await lab.gone(client, "held", bound_ms / 1000 + lab.harness.allowance_s)


async def _until_moved(clock: Peer, seconds: float) -> None:
    while True:
        words = await clock.said()
        if abs(words[1] - seconds - _true_time()) < 600:
            return


_TRUE_TIME_OFFSET = time.time() - time.monotonic()


def _true_time() -> float:
    return _TRUE_TIME_OFFSET + time.monotonic()


async def _one_more(lab: Lab, client: Backend, ttl_ms: int) -> None:
    """The session of a process that starts with a moved clock and is then stopped expires in time."""
    key = "one-more"
    peer = await lab.peer("hold", key=key, ttl_ms=ttl_ms)
    await lab.said(peer, "ready")
    started = asyncio.get_running_loop().time()
    await peer.stop()
    bound_ms = ttl_ms * client.capabilities.expiry_factor_max
    gone = await lab.gone(client, key, bound_ms / 1000 + 30)
    lab.bounded("keys gone after SIGSTOP, clock moved", gone - started, bound_ms)
    await peer.kill()
    await client.put(key, b"", expect=ABSENT)
    await client.delete(key)
