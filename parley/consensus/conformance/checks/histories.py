"""Checks of recorded histories of concurrent clients, and of writes whose response was lost."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable
from functools import partial

from parley.consensus.backend import ABSENT, At, Backend, Put, TxnResult
from parley.consensus.conformance.lab import LONG_TTL_MS, Lab, check, equal, refused, require
from parley.consensus.conformance.linearizability import Operation, judge
from parley.consensus.errors import MaybeApplied
from parley.consensus.recipes.elections import Elections
from parley.consensus.recipes.groups import Groups
from parley.consensus.recipes.keyvalue import KeyValue


@check("history-linearizable")
async def _linearizable(lab: Lab) -> None:
    """One order of operations explains everything that several concurrent processes read and wrote."""
    client = await lab.client()
    keys = ["h/a", "h/b", "h/c"]
    peers = [
        await lab.peer("record", name=f"p{n}", seed=lab.rng.getrandbits(32), keys=keys, times=120) for n in range(4)
    ]
    for peer in peers:
        await lab.said(peer, "ready")
    await client.put("go", b"")
    history: list[Operation] = []
    for peer in peers:
        while (words := await lab.within(120, peer.said(), "a peer's record")) != ["done"]:
            history.append(Operation(*words[1:]))
    verdict = judge(history)
    require(
        verdict.linearizable,
        f"no order explains this history; after {verdict.explained} operations none of these can come next: "
        f"{verdict.stuck_at}",
    )
    lab.measured("operations in order", len(history), "")
    lab.measured("at once", _overlap(history), "")


def _overlap(history: list[Operation]) -> int:
    moments = [(operation.called, 1) for operation in history]
    moments += [(operation.returned, -1) for operation in history if operation.returned is not None]
    running, most = 0, 0
    for _, step in sorted(moments):
        running += step
        most = max(most, running)
    return most


@check("ambiguous-writes")
async def _ambiguous(lab: Lab) -> None:
    """A write whose response is lost raises MaybeApplied, never an error that claims to know the outcome."""
    client, other = await lab.client(), await lab.client()
    await client.put("gone", b"")
    session = await client.open_session(LONG_TTL_MS)
    for applied in (True, False):
        key = f"a/{applied}"
        revision = await client.put("present", b"")
        writes: list[Callable[[], Awaitable[object]]] = [
            partial(client.put, key, b""),
            partial(client.put, f"{key}/absent", b"", expect=ABSENT),
            partial(client.put, "present", b"new", expect=At(revision)),
            partial(client.put, f"{key}/bound", b"", session=session),
            partial(client.txn, [], [Put(f"{key}/x", b""), Put(f"{key}/y", b"")]),
            partial(client.delete, "gone"),
        ]
        for n, write in enumerate(writes):
            await lab.harness.lose_response(client, applied=applied)
            async with refused(MaybeApplied, f"write {n} with a lost response"):
                await lab.within(60, write(), "the error of a write with a lost response")
        made = ["absent", "bound", "x", "y"]
        expected = [key, *(f"{key}/{name}" for name in made)] if applied else []
        page = await other.list(key, limit=10)
        equal(
            [entry.key for entry in page.entries],
            expected,
            f"the keys after writes with lost responses, applied {applied}",
        )
        entry = await other.get("present")
        equal(
            entry and entry.value,
            b"new" if applied else b"",
            "the value after a conditional write with a lost response",
        )
        equal(await other.get("gone") is None, applied, "whether the key was deleted")
        await client.put("gone", b"")


@check("ambiguous-writes-settled")
async def _settled(lab: Lab) -> None:
    """The recipes settle lost responses by their nonces: counters stay exact, ids unique, and there is one leader and
    one member."""
    clients = [await lab.client() for _ in range(3)]
    counters = [KeyValue(client, random.Random(n)) for n, client in enumerate(clients)]
    ids: list[int] = [await counters[0].next_id("ids")]
    await counters[0].put("counter", b"0")
    rng = lab.rng

    async def lose(client: Backend) -> None:
        if rng.random() < 0.3:
            await lab.harness.lose_response(client, applied=rng.random() < 0.5)

    async def count(n: int) -> None:
        for _ in range(20):
            await lose(clients[n])
            await counters[n].update("counter", lambda value: b"%d" % (int(value or 0) + 1))
            await lose(clients[n])
            ids.append(await counters[n].next_id("ids"))

    await lab.within(240, asyncio.gather(*(count(n) for n in range(3))), "sixty increments with lost responses")
    entry = await counters[0].get("counter")
    equal(entry and entry.value, b"60", "the counter after 3 x 20 increments with lost responses")
    equal(sorted(ids), list(range(61)), "the ids reserved with lost responses")
    for n, client in enumerate(clients):
        session = await client.open_session(LONG_TTL_MS)
        await lab.harness.lose_response(client, applied=n % 2 == 0)
        leadership = await lab.within(60, Elections(client, session, random.Random(n)).campaign("x", b""), "leading")
        equal(leadership.epoch, n + 1, "the epoch of an election with a lost response")
        await client.txn([leadership.guard()], [])
        await lab.harness.lose_response(client, applied=n % 2 == 0)
        await leadership.resign()
        await lab.harness.lose_response(client, applied=n % 2 == 0)
        membership = await lab.within(60, Groups(client, session, random.Random(n)).join("g", "m", b""), "joining")
        equal(membership.incarnation, n + 1, "the incarnation of a member that joined with a lost response")
        await client.txn([membership.guard()], [])
        await membership.leave()
    result: TxnResult = await clients[0].txn([], [])
    equal(result.revisions, (), "an empty transaction after all others")
