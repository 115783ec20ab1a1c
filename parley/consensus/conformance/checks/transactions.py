"""Checks of transactions: several keys in one atomic step."""

from __future__ import annotations

import asyncio

from parley.consensus.backend import ABSENT, ANY, PRESENT, At, Check, Delete, Op, Put, Revision, Snapshot
from parley.consensus.conformance.lab import LONG_TTL_MS, Lab, check, equal, everything, refused, require
from parley.consensus.errors import AlreadyExists, Conflict, Fenced, NotFound, SessionLost
from parley.consensus.recipes.listeners import View


@check("txn-all-or-nothing")
async def _all_or_nothing(lab: Lab) -> None:
    """A transaction applies all its operations if all its checks hold on the state before it, otherwise none."""
    client = await lab.client()
    a = await client.put("a", b"1")
    await client.put("c", b"1")
    before = await everything(client)
    for last in (Check("a", ABSENT), Check("none", PRESENT), Check("none", At(a)), Check("c", At(a))):
        async with refused((AlreadyExists, NotFound, Conflict), f"a transaction with {last}"):
            await client.txn(
                [Check("a", At(a)), Check("b", ABSENT), last], [Put("a", b"x"), Put("z", b""), Delete("c")]
            )
        equal(await everything(client), before, "the store after a refused transaction")
        entry = await client.get("a")
        equal(entry and entry.revision, a, "the revision after a refused transaction")
    checks = [Check("a", At(a)), Check("b", ABSENT), Check("c", PRESENT), Check("d", ANY)]
    result = await client.txn(checks, [Put("b", b"2"), Delete("c"), Put("a", b"2"), Delete("none")])
    equal(await everything(client), {"a": b"2", "b": b"2"}, "the store after a transaction")
    equal(len(result.revisions), 4, "revisions of four operations")
    for n, key in ((0, "b"), (2, "a")):
        entry = await client.get(key)
        equal(entry and entry.revision, result.revisions[n], f"the revision of {key}")
    equal((result.revisions[1], result.revisions[3]), (None, None), "revisions of deletes")
    equal((await client.txn([Check("a", PRESENT)], [])).revisions, (), "a transaction of checks only")
    equal((await client.txn([], [])).revisions, (), "an empty transaction")


@check("txn-first-failure")
async def _first_failure(lab: Lab) -> None:
    """The error reports the first check, in the given order, that does not hold; for a guard it is Fenced."""
    client = await lab.client()
    revision = await client.put("a", b"")
    await client.put("b", b"")
    bad = {
        Check("b", ABSENT): AlreadyExists,
        Check("x", PRESENT): NotFound,
        Check("b", At(revision)): Conflict,
        Check("y", At(revision)): Conflict,
    }
    good = [Check("a", At(revision)), Check("none", ABSENT), Check("b", PRESENT)]
    for first, error in bad.items():
        rest = [other for other in bad if other != first]
        lab.rng.shuffle(rest)
        try:
            await client.txn([*good, first, *rest], [Put("c", b"")])
        except error as caught:
            equal(caught.key, first.key, "the key that the error names")
        else:
            require(False, f"{first} held")
        guard = Check(first.key, first.expect, fences=True)
        try:
            await client.txn([*good, guard, *rest], [Put("c", b"")])
        except Fenced as caught:
            equal(caught.key, first.key, "the guard that the error names")
        else:
            require(False, f"the guard {guard} held")
        async with refused(error, "a guard after the check that fails"):
            await client.txn([first, guard], [Put("c", b"")])
    equal(await client.get("c"), None, "a key of refused transactions")
    await client.txn([Check("a", At(revision), fences=True)], [Put("c", b"")])


@check("txn-sessions")
async def _sessions(lab: Lab) -> None:
    """A transaction that binds a key to a session that has ended is rejected as a whole, with SessionLost."""
    client = await lab.client()
    session, other = await client.open_session(LONG_TTL_MS), await client.open_session(LONG_TTL_MS)
    await client.txn([], [Put("bound", b"", session), Put("other", b"", other), Put("stays", b"")])
    await session.close()
    equal(sorted(await everything(client)), ["other", "stays"], "the keys after one session was closed")
    async with refused(SessionLost, "a transaction with a closed session"):
        await client.txn([], [Put("x", b""), Put("y", b"", other), Put("bound", b"", session), Delete("stays")])
    equal(sorted(await everything(client)), ["other", "stays"], "the keys after a refused transaction")


@check("txn-atomic-to-others")
async def _atomic_to_others(lab: Lab) -> None:
    """No client sees a transaction half applied: not in a listing, not in a Snapshot, and not in the final state of a
    watch."""
    client = await lab.client()
    peers = [await lab.peer("write_pairs", times=80, name=name) for name in "ab"]
    for peer in peers:
        await lab.said(peer, "ready")
    looks = 0
    async with client.watch("pair/") as long:
        await client.put("go", b"")
        done = asyncio.gather(*(lab.said(peer, "done") for peer in peers))
        while not done.done():
            page = await client.list("pair/", limit=10)
            _one_value({entry.key: entry.value for entry in page.entries})
            async with client.watch("pair/") as watch:
                event = await lab.within(30, anext(watch), "a Snapshot")
                require(isinstance(event, Snapshot), f"a watch began with {event}")
                assert isinstance(event, Snapshot)
                _one_value({entry.key: entry.value for entry in event.entries})
            looks += 1
            await asyncio.sleep(0)
        await done
        end = await everything(client, "pair/")
        _one_value(end)
        await lab.follow(long, View(), end)
    lab.measured("reads during the writes", looks, "")


def _one_value(pair: dict[str, bytes]) -> bytes | None:
    left, right = pair.get("pair/left"), pair.get("pair/right")
    equal(left, right, "two keys that are only ever written together")
    return left


@check("txn-check-sees-before")
async def _check_sees_before(lab: Lab) -> None:
    """One transaction can check and write the same key, and can move a value to another key."""
    client = await lab.client()
    async with client.watch("q/") as watch:
        await anext(watch)
        revision: Revision | None = await client.put("q/0", b"token")
        for n in range(20):
            assert revision is not None
            ops: list[Op] = [Delete(f"q/{n}"), Put(f"q/{n + 1}", b"token")]
            checks = [Check(f"q/{n}", At(revision)), Check(f"q/{n + 1}", ABSENT)]
            revision = (await client.txn(checks, ops)).revisions[1]
            async with refused(Conflict, "the same move once more"):
                await client.txn(checks, ops)
        view = View()
        await lab.follow(watch, view, {"q/20": b"token"})
    equal(await everything(client, "q/"), {"q/20": b"token"}, "the one key there is")
