"""Checks of watches: a Snapshot, and then the changes."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import tracemalloc

from parley.consensus.backend import Backend, Changed, Delete, Event, Put, Removed, Snapshot, Watch
from parley.consensus.conformance.harness import Peer
from parley.consensus.conformance.lab import (
    LONG_TTL_MS,
    Lab,
    check,
    equal,
    everything,
    refused,
    require,
)
from parley.consensus.errors import Closed, CoordinationError, WrongStore
from parley.consensus.recipes.listeners import View


async def _begin(lab: Lab, watch: Watch) -> View:
    """Take the Snapshot with which a watch starts, and return it as a view."""
    view = View()
    event = await lab.within(30, anext(watch), "a Snapshot")
    require(isinstance(event, Snapshot), f"a watch began with {event}")
    view.apply(event)
    return view


@check("watch-begins-with-snapshot")
async def _begins(lab: Lab) -> None:
    """The first event is a sorted Snapshot of the keys below the prefix; the changes of these keys follow, and no
    others."""
    one, two = await lab.client(), await lab.client()
    async with two.watch("none/") as watch:
        equal(await lab.within(30, anext(watch), "a Snapshot"), Snapshot(()), "the first event below an empty prefix")
    keys = ["a", "a/", "a/b", "a/c", "a/c/d", "a0", "ab"]
    for key in keys:
        if not key.endswith("/"):
            await one.put(key, key.encode())
    for prefix in ("", "a", "a/", "a/c", "b", "ÿ", "\ud800"):
        async with two.watch(prefix) as watch:
            event = await lab.within(30, anext(watch), "a Snapshot")
            page = await one.list(prefix, limit=100)
            equal(event, Snapshot(page.entries), f"the first event below {prefix!r}")
    session = await one.open_session(LONG_TTL_MS)
    async with two.watch("a/") as watch:
        await _begin(lab, watch)
        revision = await one.put("a/e", b"\xff\0", session=session)
        await one.put("a", b"outside")
        await one.put("a0", b"outside")
        changed = await lab.within(30, anext(watch), "a change")
        require(isinstance(changed, Changed), f"a put was announced as {changed}")
        assert isinstance(changed, Changed)
        equal(changed.entry, await two.get("a/e"), "the entry announced")
        equal((changed.entry.revision, changed.entry.session), (revision, session.id), "its revision and session")
        await one.delete("a")
        await one.delete("a/b")
        equal(await lab.within(30, anext(watch), "a removal"), Removed("a/b"), "the next event")
        await session.close()
        equal(await lab.within(30, anext(watch), "a removal"), Removed("a/e"), "the event of a session's end")


@check("watch-loses-nothing")
async def _loses_nothing(lab: Lab) -> None:
    """Nothing is lost between the Snapshot and the changes: watches that start during writes reach the final state."""
    client = await lab.client()
    peers = await _writers(lab, 3, keys=8, times=25)
    done = asyncio.gather(*(lab.said(peer, "done") for peer in peers))
    async with contextlib.AsyncExitStack() as stack:
        watches: list[tuple[Watch, View]] = []
        await client.put("go", b"")
        while not done.done() or not watches:
            if len(watches) < 40:
                watch = await stack.enter_async_context(client.watch("w/"))
                view = await _begin(lab, watch)
                watches.append((watch, view))
            else:
                await asyncio.wait([done], timeout=0.05)
        await done
        truth = await everything(client, "w/")
        equal(len(truth), 3 * 6, "the keys that stay")
        for watch, view in watches:
            await lab.follow(watch, view, truth)
    lab.measured("watches begun during writes", len(watches), "")


async def _writers(lab: Lab, count: int, **arguments: int) -> list[Peer]:
    peers = [await lab.peer("write_ascending", name=f"p{n}", **arguments) for n in range(count)]
    for peer in peers:
        await lab.said(peer, "ready")
    return peers


@check("watch-order")
async def _order(lab: Lab) -> None:
    """The changes of a key arrive in order, none is invented, and the last one always arrives."""
    client = await lab.client()
    peers = await _writers(lab, 3, keys=8, times=25)
    last: dict[str, int] = {}
    view = View()
    changes = 0
    async with client.watch("w/") as watch:
        view.apply(await anext(watch))
        await client.put("go", b"")
        truth = {f"w/p{p}/{k}": b"25" for p in range(3) for k in range(8) if k % 4}
        while {key: entry.value for key, entry in view.entries.items()} != truth:
            event = await lab.within(60, anext(watch), "the next change")
            changes += 1
            for key, number in _numbers(event, last):
                require(number >= last.get(key, 0), f"{key} went from {last.get(key)} back to {number}")
                require(number <= 26, f"{key} became {number}, which no peer wrote")
                last[key] = number
            view.apply(event)
    for peer in peers:
        await lab.said(peer, "done")
    lab.measured("events for 606 changes", changes, "")


def _numbers(event: Event, last: dict[str, int]) -> list[tuple[str, int]]:
    """Return the number of each key in an event; 26 means that the key was deleted."""
    match event:
        case Changed(entry):
            return [(entry.key, int(entry.value))]
        case Removed(key):
            return [(key, 26)]
        case Snapshot(entries):
            present = {entry.key: int(entry.value) for entry in entries}
            return [(key, present.get(key, 26)) for key in last.keys() | present.keys()]


@check("watch-burst")
async def _burst(lab: Lab) -> None:
    """A burst of thousands of changes arrives completely."""
    one, two = await lab.client(), await lab.client()
    step = min(one.capabilities.txn_ops_max, 500)
    keys = [f"burst/{n:04}" for n in range(4000)]
    async with two.watch("burst/") as watch:
        view = await _begin(lab, watch)
        for start in range(0, len(keys), step):
            await one.txn([], [Put(key, key.encode()) for key in keys[start : start + step]])
        await lab.follow(watch, view, {key: key.encode() for key in keys}, 60)
        for start in range(0, len(keys) - 5, step):
            await one.txn([], [Delete(key) for key in keys[: len(keys) - 5][start : start + step]])
        await lab.follow(watch, view, {key: key.encode() for key in keys[-5:]}, 60)


@check("watch-many")
async def _many(lab: Lab) -> None:
    """A hundred watches of one client and a hundred of another all stay up to date at the same time."""
    one, two = await lab.client(), await lab.client()
    async with contextlib.AsyncExitStack() as stack:
        followed: list[tuple[Watch, View, str]] = []
        for n in range(200):
            prefix = f"many/{n % 20:02}/"
            watch = await stack.enter_async_context((one, two)[n % 2].watch(prefix))
            followed.append((watch, await _begin(lab, watch), prefix))
        for round_ in range(3):
            await asyncio.gather(*(one.put(f"many/{n:02}/key", b"%d" % round_) for n in range(20)))
            for watch, view, prefix in followed:
                await lab.follow(watch, view, {f"{prefix}key": b"%d" % round_})


@check("watch-slow-consumer", slow=True)
async def _slow_consumer(lab: Lab) -> None:
    """A watch without a consumer uses little memory: it keeps almost nothing of 32 MiB of changes."""
    client = await lab.client()
    size = min(client.capabilities.value_bytes_max // 2, 64 << 10)
    times = (32 << 20) // size
    writer = await lab.peer("write_volume", size=size, times=16)
    await lab.said(writer, "ready")
    async with client.watch("v/") as idle, client.watch("v/") as begun:
        view = await _begin(lab, begun)
        await lab.said(writer, "done")
        await _grown(lab, client)
        # Measure what Python has allocated, not the memory of the process, which may hold free space from before.
        tracemalloc.start()
        try:
            writer = await lab.peer("write_volume", size=size, times=times)
            await lab.said(writer, "ready")
            await lab.said(writer, "done", 240)
            await _grown(lab, client)
            grown, _ = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
        lab.measured("growth for 32 MiB not read", max(grown, 0) / (1 << 20), "MiB", 12)
        require(grown < 12 << 20, f"{grown >> 20} MiB were kept for watches without a consumer")
        truth = await everything(client, "v/", limit=10)
        await lab.follow(begun, view, truth)
        await lab.follow(idle, await _begin(lab, idle), truth)


async def _grown(lab: Lab, client: Backend) -> None:
    """Wait until pending events have arrived, and collect garbage."""
    await client.get("v/end")
    await asyncio.sleep(0.2)
    gc.collect()


@check("watch-outlives-disconnection")
async def _reconnect(lab: Lab) -> None:
    """A watch continues after a disconnection, and shows what changed in the meantime."""
    one, two = await lab.client(), await lab.client()
    for key in ("gone", "back", "kept", "new-value"):
        await one.put(f"r/{key}", b"1")
    async with two.watch("r/") as watch, two.watch("r/") as other:
        view, snapshots, second = await _begin(lab, watch), 0, await _begin(lab, other)
        for round_ in range(3):
            await lab.harness.cut(two)
            waiting = asyncio.ensure_future(anext(watch))
            value = b"%d" % round_
            await one.delete("r/gone")
            await one.delete("r/back")
            await one.put("r/back", value)
            await one.put("r/new-value", value)
            await one.put(f"r/made-{round_}", value)
            truth = await everything(one, "r/")
            await asyncio.sleep(0.05)
            await lab.harness.restore(two)
            event = await lab.within(60, waiting, "an event after the connection was back")
            snapshots += isinstance(event, Snapshot)
            view.apply(event)
            await lab.follow(watch, view, truth)
            await lab.follow(other, second, truth)
            revisions = {entry.key: entry.revision for entry in (await one.list("r/", limit=99)).entries}
            equal({key: entry.revision for key, entry in view.entries.items()}, revisions, "the revisions seen")
            await one.put("r/gone", b"again")
            await lab.follow(watch, view, truth | {"r/gone": b"again"})
            await lab.follow(other, second, truth | {"r/gone": b"again"})
    lab.measured("Snapshots after 3 disconnections", snapshots, "")


@check("watch-survives-cancelling")
async def _cancelling(lab: Lab) -> None:
    """Cancelling an anext loses no event."""
    one, two = await lab.client(), await lab.client()
    async with two.watch("c/") as watch:
        view = await _begin(lab, watch)
        for n in range(60):
            await one.put(f"c/{n}", b"")
            task = asyncio.ensure_future(anext(watch))
            for _ in range(n % 9):
                await asyncio.sleep(0)
            if n % 10 == 9:
                await asyncio.sleep(0.01)
            task.cancel()
            await asyncio.wait([task])
            if not task.cancelled():
                view.apply(task.result())
        await lab.follow(watch, view, await everything(one, "c/"))


@check("watch-ends-once")
async def _ends_once(lab: Lab) -> None:
    """A watch ends with exactly one exception: Closed if it or its backend is closed, WrongStore if the store was
    wiped."""

    async def ends(watch: Watch, pending: asyncio.Future[Event], error: type[CoordinationError], what: str) -> None:
        async with refused(error, what):
            await lab.within(30, pending, what)
        for _ in range(3):
            async with refused(StopAsyncIteration, f"iterating on after {what}"):
                await lab.within(30, anext(watch), f"the end after {what}")
        await watch.close()
        await watch.close()

    async def pending(client: Backend) -> tuple[Watch, asyncio.Future[Event]]:
        watch = client.watch("e/")
        await _begin(lab, watch)
        waiting = asyncio.ensure_future(anext(watch))
        await asyncio.sleep(0.02)
        return watch, waiting

    one, two = await lab.client(), await lab.client()
    watch, waiting = await pending(one)
    await watch.close()
    await ends(watch, waiting, Closed, "closing the watch")
    never_used = one.watch("e/")
    await never_used.close()
    async with refused(Closed, "a watch closed before it was used"):
        await anext(never_used)
    watch, waiting = await pending(one)
    await one.close()
    await ends(watch, waiting, Closed, "closing the backend")
    watch, waiting = await pending(two)
    await lab.harness.wipe()
    await ends(watch, waiting, WrongStore, "wiping the store")
