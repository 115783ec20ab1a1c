"""The roles of peers: each is a coroutine that takes a client, a function that sends a message to the check, and
arguments.

Every role begins with the message ``["ready"]``. Roles that race with each other then wait for the key ``go``.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Callable, Coroutine, Mapping
from typing import Any

from parley.consensus.backend import ABSENT, At, Backend, Changed, Check, Put, Session, SessionState, Snapshot
from parley.consensus.errors import AlreadyExists, Conflict, CoordinationError, Fenced, Lost, MaybeApplied, Retriable
from parley.consensus.recipes.elections import Elections

Say = Callable[[list[Any]], None]
_PAUSE_S = 0.01
_ROLES: dict[str, Callable[..., Coroutine[Any, Any, None]]] = {}


async def play(role: str, client: Backend, say: Say, arguments: Mapping[str, Any]) -> None:
    """Play a role until it ends."""
    await _ROLES[role](client, say, **arguments)


def _role(play_it: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., Coroutine[Any, Any, None]]:
    _ROLES[play_it.__name__] = play_it
    return play_it


async def _go(client: Backend) -> None:
    async with client.watch("go") as watch:
        async for event in watch:
            if isinstance(event, Changed) or (isinstance(event, Snapshot) and event.entries):
                return


@_role
async def hold(client: Backend, say: Say, key: str, ttl_ms: int) -> None:
    """Hold a key in a session, and report when the session is lost."""
    session = await client.open_session(ttl_ms)
    await client.put(key, b"held", session=session)
    say(["ready", session.id])
    await session.lost.wait()
    say(["lost"])


@_role
async def tell_time(client: Backend, say: Say) -> None:
    """Report the wall-clock time in seconds, repeatedly."""
    while True:
        say(["time", time.time()])
        await asyncio.sleep(0.02)


@_role
async def write_bound(client: Backend, say: Say, ttl_ms: int) -> None:
    """Write under a session as fast as possible until rejected. Report the error and whether the session is LOST."""
    session = await client.open_session(ttl_ms)
    say(["ready"])
    n = 0
    while True:
        n += 1
        try:
            await client.txn([], [Put("last", b"%d" % n), Put("bound", b"%d" % n, session)])
        except Retriable:
            await asyncio.sleep(_PAUSE_S)
        except CoordinationError as error:
            say(["refused", type(error).__name__, session.state is SessionState.LOST])
            return


@_role
async def increment(client: Backend, say: Say, key: str, times: int) -> None:
    """Increment a counter ``times`` times by compare-and-set."""
    say(["ready"])
    await _go(client)
    for _ in range(times):
        while True:
            entry = await client.get(key)
            try:
                if entry is None:
                    await client.put(key, b"1", expect=ABSENT)
                else:
                    await client.put(key, b"%d" % (int(entry.value) + 1), expect=At(entry.revision))
                break
            except (AlreadyExists, Conflict):
                continue
    say(["done"])


@_role
async def write_pairs(client: Backend, say: Say, times: int, name: str) -> None:
    """Write the same value to two keys in one transaction, repeatedly."""
    say(["ready"])
    await _go(client)
    for n in range(times):
        value = f"{name}-{n}".encode()
        await client.txn([], [Put("pair/left", value), Put("pair/right", value)])
    say(["done"])


@_role
async def write_ascending(client: Backend, say: Say, keys: int, times: int, name: str) -> None:
    """Write ascending numbers to keys of this peer, and delete every fourth key at the end."""
    say(["ready"])
    await _go(client)
    for n in range(1, times + 1):
        await asyncio.gather(*(client.put(f"w/{name}/{key}", b"%d" % n) for key in range(keys)))
    await asyncio.gather(*(client.delete(f"w/{name}/{key}") for key in range(0, keys, 4)))
    say(["done"])


@_role
async def write_volume(client: Backend, say: Say, size: int, times: int) -> None:
    """Overwrite a few keys with large values; also create and delete other keys."""
    say(["ready"])
    for start in range(0, times, 4):
        await asyncio.gather(*(client.put(f"v/{key}", bytes([key]) + b"%d" % start + bytes(size)) for key in range(4)))
        await client.put(f"v/gone/{start}", b"")
        await client.delete(f"v/gone/{start}")
    await client.put("v/end", b"")
    say(["done"])


@_role
async def record(client: Backend, say: Say, name: str, seed: int, keys: list[str], times: int) -> None:
    """Read and write at random. Report each operation, its times and its result (``conformance.linearizability``)."""
    rng = random.Random(seed)
    say(["ready"])
    await _go(client)
    for n in range(times):
        key = rng.choice(keys)
        words = await _recorded(client, rng, key, keys, f"{name}.{n}")
        say(["did", *words])
    say(["done"])


async def _recorded(client: Backend, rng: random.Random, key: str, keys: list[str], value: str) -> list[Any]:
    """Carry out one operation. Returns ``[called, returned, expects, writes, held]``, with None for unknown parts."""
    kind = rng.choice(["read", "read", "list", "put", "cas", "cas", "delete", "both"])
    called = time.monotonic()
    expects: dict[str, str | None] = {}
    writes: dict[str, str | None] = {}
    held: bool | None = True
    try:
        match kind:
            case "read":
                entry = await client.get(key)
                expects[key] = entry.value.decode() if entry else None
            case "list":
                page = await client.list("h/", limit=100)
                found = {entry.key: entry.value.decode() for entry in page.entries}
                expects.update((key, found.get(key)) for key in keys)
            case "put":
                writes[key] = value
                await client.put(key, value.encode())
            case "delete":
                writes[key] = None
                await client.delete(key)
            case "both":
                writes.update(dict.fromkeys(keys[:2], value))
                await client.txn([], [Put(key, value.encode()) for key in keys[:2]])
            case "cas":
                entry = await client.get(key)
                called = time.monotonic()
                expects[key] = entry.value.decode() if entry else None
                writes[key] = value
                await client.put(key, value.encode(), expect=At(entry.revision) if entry else ABSENT)
    except MaybeApplied:
        return [called, None, expects, writes, None]
    except (AlreadyExists, Conflict):
        held = False
    return [called, time.monotonic(), expects, writes, held]


@_role
async def lead(client: Backend, say: Say, name: str, ttl_ms: int, pause_s: float = 0.0) -> None:
    """Campaign forever. As the leader, report the epoch and write it under the guard, with a pause after each write."""
    say(["ready"])
    while True:
        session: Session | None = None
        try:
            session = await client.open_session(ttl_ms)
            leadership = await Elections(client, session, random.Random()).campaign("lead", name.encode())
            say(["leading", leadership.epoch, name])
            while not leadership.lost.is_set():
                await client.txn([leadership.guard()], [Put("log", f"{leadership.epoch} {name}".encode())])
                await asyncio.sleep(pause_s)
        except Fenced:
            say(["fenced"])
        except (Retriable, Lost):
            await asyncio.sleep(_PAUSE_S)
        if session is not None and session.state is not SessionState.LOST:
            try:
                await session.close()
            except Retriable:
                await asyncio.sleep(_PAUSE_S)


@_role
async def write_guarded(client: Backend, say: Say, name: str, ttl_ms: int) -> None:
    """Lead, write under the guard until rejected, and report the error."""
    session = await client.open_session(ttl_ms)
    leadership = await Elections(client, session, random.Random()).campaign("lead", name.encode())
    say(["leading", leadership.epoch])
    n = 0
    while True:
        n += 1
        try:
            await client.txn([leadership.guard(), Check("stop", ABSENT)], [Put("state", f"{name} {n}".encode())])
        except Retriable:
            await asyncio.sleep(_PAUSE_S)
        except CoordinationError as error:
            say(["refused", type(error).__name__])
            return
