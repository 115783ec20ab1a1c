"""Checks of the election recipe on this store: one leader per epoch, and no write by a replaced leader."""

from __future__ import annotations

import asyncio
import random

from parley.consensus.backend import ABSENT, Backend, Changed, Put, Snapshot
from parley.consensus.conformance.harness import Peer
from parley.consensus.conformance.lab import LONG_TTL_MS, Lab, check, equal, refused, require
from parley.consensus.errors import AlreadyExists, Fenced
from parley.consensus.recipes.elections import Elections

KILLS = 100


async def _elections(client: Backend, ttl_ms: int = LONG_TTL_MS) -> Elections:
    return Elections(client, await client.open_session(ttl_ms), random.Random())


@check("election-hundred-kills", slow=True)
async def _kills(lab: Lab) -> None:
    """When random candidates are killed a hundred times, no epoch has two leaders, and epochs and leaders' writes only
    increase."""
    client = await lab.client()
    limits = client.capabilities
    ttl_ms = limits.ttl(LONG_TTL_MS if limits.crash_seen_ms_max is not None else 600)
    race = _Race(lab, ttl_ms)
    order: list[int] = []
    watching = asyncio.ensure_future(_epochs_written(client, order))
    try:
        await asyncio.gather(*(race.enter() for _ in range(4)))
        for kill in range(KILLS):
            # If only the TTL reveals a kill, waiting for a leader before every kill would take too long.
            if limits.crash_seen_ms_max is not None or kill % 10 == 0:
                await lab.within(240, race.led.wait(), f"a leader after {kill} kills")
            await race.kill_one()
        await lab.within(240, race.led.wait(), "a leader after the last kill")
    finally:
        watching.cancel()
        await asyncio.wait([watching])
    require(watching.cancelled(), f"watching the leaders' writes ended: {watching}")
    epochs = [epoch for epoch, _ in race.claims]
    equal(len(set(epochs)), len(epochs), f"the number of different epochs ({sorted(race.claims)})")
    require(order == sorted(order), f"the epochs of guarded writes decreased: {order}")
    equal(max(epochs) <= await Elections(client, await client.open_session(LONG_TTL_MS)).epoch("lead"), True, "epochs")
    lab.measured(f"leaders in {KILLS} kills", len(epochs), "")


class _Race:
    """Candidates of one election. One of them is killed repeatedly, and another takes its place."""

    def __init__(self, lab: Lab, ttl_ms: int) -> None:
        self.claims: list[tuple[int, str]] = []
        self.led = asyncio.Event()
        self._lab = lab
        self._ttl_ms = ttl_ms
        self._peers: dict[Peer, asyncio.Task[None]] = {}
        self._count = 0
        self._leader: Peer | None = None

    async def enter(self) -> None:
        self._count += 1
        peer = await self._lab.peer("lead", name=f"candidate-{self._count}", ttl_ms=self._ttl_ms)
        self._peers[peer] = asyncio.get_running_loop().create_task(self._listen(peer))

    async def kill_one(self) -> None:
        """Kill the leader half of the time, otherwise a random candidate, and start another in its place."""
        alive = list(self._peers)
        leader = self._leader if self._leader in self._peers else None
        peer = leader if leader is not None and self._lab.rng.random() < 0.5 else self._lab.rng.choice(alive)
        if peer is leader:
            self.led.clear()
        listening = self._peers.pop(peer)
        await asyncio.gather(peer.kill(), self.enter())
        await listening

    async def _listen(self, peer: Peer) -> None:
        while True:
            try:
                match await peer.said():
                    case ["leading", int(epoch), str(name)]:
                        self.claims.append((epoch, name))
                        self._leader = peer
                        self.led.set()
            except EOFError:
                return


async def _epochs_written(client: Backend, order: list[int]) -> None:
    async with client.watch("log") as watch:
        async for event in watch:
            entries = event.entries if isinstance(event, Snapshot) else ()
            entries = (event.entry,) if isinstance(event, Changed) else entries
            order.extend(int(entry.value.split()[0]) for entry in entries)


@check("election-one-at-a-time")
async def _one_at_a_time(lab: Lab) -> None:
    """Of many candidates that campaign concurrently, each leads once, in epochs that increase by one."""
    clients = [await lab.client() for _ in range(3)]
    everyone = [await _elections(client) for client in clients for _ in range(4)]
    leading = 0
    epochs: list[int] = []

    async def take_part(elections: Elections) -> None:
        nonlocal leading
        leadership = await elections.campaign("x", b"")
        leading += 1
        require(leading == 1, "there are two leaders at the same time")
        epochs.append(leadership.epoch)
        await elections.backend.txn([leadership.guard()], [Put("x", b"")])
        leading -= 1
        await leadership.resign()

    await lab.within(120, asyncio.gather(*map(take_part, everyone)), "every candidate leading once")
    equal(epochs, list(range(1, 13)), "the epochs")


@check("election-stale-leader-fenced")
async def _fenced(lab: Lab) -> None:
    """A leader that was stopped, replaced and resumed cannot write: Fenced, and nothing is applied."""
    client = await lab.client()
    elections = await _elections(client)
    for round_ in range(3):
        peer = await lab.peer("write_guarded", name=f"p{round_}", ttl_ms=LONG_TTL_MS)
        (epoch,) = await lab.said(peer, "leading")
        await lab.there(client, "state")
        await asyncio.sleep(lab.rng.random() * 0.05)
        await peer.stop()
        observed = await elections.leader("lead")
        require(observed is not None and observed.epoch == epoch, f"the leader of epoch {epoch} is not shown")
        successor = await lab.within(60, elections.campaign("lead", b"", depose=observed), "deposing a stopped leader")
        equal(successor.epoch, epoch + 1, "the epoch of the successor")
        await client.txn([successor.guard()], [Put("state", b"successor")])
        await peer.resume()
        equal(await lab.said(peer, "refused"), ["Fenced"], "the error of the resumed leader")
        entry = await client.get("state")
        equal(entry and entry.value, b"successor", "what the successor wrote")
        await successor.resign()


@check("election-deposing-is-safe")
async def _deposing(lab: Lab) -> None:
    """Deposing a live leader fences its writes immediately, is reported to it, and ends no other leadership."""
    one, two, three = [await lab.client() for _ in range(3)]
    first, second, third = await _elections(one), await _elections(two), await _elections(three)
    old = await first.campaign("x", b"one")
    await one.txn([old.guard()], [Put("state", b"old")])
    observed = await second.leader("x")
    equal(observed and (observed.candidate, observed.epoch), (b"one", old.epoch), "the leader that other clients see")
    async with refused(AlreadyExists, "a campaign without waiting while there is a leader"):
        await second.campaign("x", b"two", wait=False)
    new = await second.campaign("x", b"two", depose=observed)
    require(new.epoch > old.epoch, f"epoch {new.epoch} came after {old.epoch}")
    async with refused(Fenced, "a write of the deposed leader"):
        await one.txn([old.guard()], [Put("state", b"stale")])
    await two.txn([new.guard()], [Put("state", b"new")])
    await lab.within(30, old.lost.wait(), "the deposed leader noticing it")
    require(not first.session.lost.is_set(), "the deposed leader's session has ended with its leadership")
    async with refused(AlreadyExists, "deposing a leader that no longer leads"):
        await third.campaign("x", b"three", depose=observed, wait=False)
    require(not new.lost.is_set(), "the new leader was lost by a late deposing")
    entry = await three.get("state")
    equal(entry and entry.value, b"new", "the final value")


@check("election-resign")
async def _resign(lab: Lab) -> None:
    """A leader that resigns, or whose session is closed, has a successor within a second."""
    one, two = await lab.client(), await lab.client()
    first, second = await _elections(one), await _elections(two)
    loop = asyncio.get_running_loop()
    for _ in range(6):
        leadership = await first.campaign("x", b"")
        waiting = asyncio.ensure_future(second.campaign("x", b""))
        await asyncio.sleep(0.05)
        require(not waiting.done(), "there are two leaders at the same time")
        started = loop.time()
        await leadership.resign()
        successor = await lab.within(30, waiting, "the successor of a leader that resigned")
        lab.bounded("resign to next leader", loop.time() - started, 1000)
        equal(successor.epoch, leadership.epoch + 1, "the successor's epoch")
        require(leadership.lost.is_set(), "a leader that resigned still leads")
        first, second = second, first
        await successor.resign()
    leadership = await first.campaign("x", b"")
    waiting = asyncio.ensure_future(second.campaign("x", b""))
    await asyncio.sleep(0.05)
    started = loop.time()
    await first.session.close()
    await lab.within(30, waiting, "the successor of a leader whose session was closed")
    lab.bounded("session closed to next leader", loop.time() - started, 1000)
    require(leadership.lost.is_set(), "a leader whose session was closed still leads")


@check("election-epochs-outlive")
async def _outlive(lab: Lab) -> None:
    """The epoch outlives leaders, sessions and clients, and can be raised above the epochs of another store."""
    watcher = await lab.client()
    last = 0
    for round_ in range(6):
        client = await lab.client()
        elections = await _elections(client)
        leadership = await elections.campaign("x", b"", min_epoch=1000 if round_ == 3 else 0)
        require(leadership.epoch > last, f"epoch {leadership.epoch} came after {last}")
        equal(leadership.epoch >= 1000, round_ >= 3, f"epoch {leadership.epoch} is not below the requested minimum")
        last = leadership.epoch
        await client.close()
        require(leadership.lost.is_set(), "the leader of a closed client still leads")
    equal(await Elections(watcher, await watcher.open_session(LONG_TTL_MS)).epoch("x"), last, "the epoch kept")
    await watcher.put("unrelated", b"", expect=ABSENT)
