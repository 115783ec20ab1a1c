from __future__ import annotations

import asyncio
import dataclasses
import gc
import random

import pytest

from parley.consensus.backend import Changed, Put, Snapshot
from parley.consensus.errors import Closed, MaybeApplied, SessionLost, TooManyOps, Unavailable, WrongStore
from parley.consensus.memory import CAPABILITIES, MemoryBackend, MemoryStore
from parley.consensus.session import SessionState
from tests.support.virtual_time import run


async def opened(store: MemoryStore) -> MemoryBackend:
    client = MemoryBackend(store)
    await client.open()
    return client


def test_a_client_cut_off_loses_its_session_and_the_others_see_it() -> None:
    async def be_cut_off() -> None:
        store = MemoryStore()
        one, two = await opened(store), await opened(store)
        session = await one.open_session(60)
        await one.put("a", b"", session=session)
        one.disconnect()
        assert session.state is SessionState.SUSPENDED
        with pytest.raises(Unavailable):
            await one.get("a")
        async with two.watch("a") as watch:
            await anext(watch)
            await anext(watch)  # Removed
        await session.lost.wait()
        one.reconnect()
        assert session.state is SessionState.LOST
        assert store.sessions == ()
        with pytest.raises(SessionLost):
            await one.put("a", b"", session=session)

    run(be_cut_off())  # a busy machine may be late by more than the TTL


async def test_reconnecting_in_time_keeps_the_session() -> None:
    one = await opened(MemoryStore())
    session = await one.open_session(10_000)
    one.disconnect()
    one.reconnect()
    assert session.state is SessionState.CONNECTED


async def test_reconnecting_is_a_new_snapshot() -> None:
    store = MemoryStore()
    one, two = await opened(store), await opened(store)
    watch = one.watch("")
    await anext(watch)
    one.disconnect()
    await two.put("a", b"1")
    waiting = asyncio.ensure_future(anext(watch))
    await asyncio.sleep(0.01)
    assert not waiting.done()
    one.reconnect()
    event = await waiting
    assert isinstance(event, Snapshot)
    assert [entry.key for entry in event.entries] == ["a"]


def test_sessions_are_renewed() -> None:
    async def outlive_the_ttl() -> None:
        store = MemoryStore()
        one = await opened(store)
        session = await one.open_session(30)
        await asyncio.sleep(0.12)
        assert session.state is SessionState.CONNECTED
        store.expire(session.id)
        assert session.state is SessionState.LOST

    run(outlive_the_ttl())  # a busy machine may be late by more than the TTL


@pytest.mark.parametrize("applied", [True, False])
async def test_a_response_can_be_lost(applied: bool) -> None:
    one = await opened(MemoryStore())
    one.lose_next_response(applied=applied)
    with pytest.raises(MaybeApplied):
        await one.put("a", b"")
    assert (await one.get("a") is not None) is applied
    await one.put("b", b"")  # only the next one


async def test_a_wiped_store_is_refused() -> None:
    store = MemoryStore()
    one = await opened(store)
    identity = one.identity
    session = await one.open_session(10_000)
    watch = one.watch("")
    await anext(watch)
    store.wipe()
    assert session.state is SessionState.LOST
    with pytest.raises(WrongStore):
        await one.get("a")
    with pytest.raises(WrongStore):
        await anext(watch)
    again = MemoryBackend(store)
    with pytest.raises(WrongStore):
        await again.open(expect_identity=identity)
    await again.open()
    assert again.identity != identity


async def test_delays() -> None:
    one = await opened(MemoryStore())
    delays: list[float] = []

    def delay() -> float:
        delays.append(0.0)
        return 0.0

    one.delay_s = delay
    await one.put("a", b"")
    assert len(delays) == 2


async def test_the_limits_of_another_store_can_be_tried() -> None:
    one = await opened(MemoryStore(dataclasses.replace(CAPABILITIES, txn_ops_max=2)))
    with pytest.raises(TooManyOps):
        await one.txn([], [Put(key, b"") for key in "abc"])


async def test_names_are_shared_and_private_stores_are_not() -> None:
    async with MemoryBackend.from_url("memory://shared") as one, MemoryBackend.from_url("memory://shared") as two:
        await one.put("a", b"")
        assert await two.get("a") is not None
        async with MemoryBackend.from_url("memory:") as other:
            assert await other.get("a") is None
    del one, two
    gc.collect()
    async with MemoryBackend.from_url("memory://shared") as later:
        assert await later.get("a") is None


async def test_the_same_calls_give_the_same_store() -> None:
    async def run() -> tuple[str, list[object]]:
        store = MemoryStore(rng=random.Random(7))
        one = await opened(store)
        session = await one.open_session(10_000)
        events: list[object] = []
        async with one.watch("") as watch:
            events.append(await anext(watch))
            await one.put("a", b"", session=session)
            events.append(await anext(watch))
            await one.close()
        return store.identity, events

    assert await run() == await run()


async def test_calls_before_open() -> None:
    one = MemoryBackend()
    with pytest.raises(Closed):
        await one.get("a")
    with pytest.raises(Closed):
        one.watch("")


async def test_a_watch_without_a_consumer_keeps_nothing() -> None:
    store = MemoryStore(removed_max=10)
    one = await opened(store)
    watch = one.watch("")
    await anext(watch)
    for n in range(1000):
        await one.put(f"k{n}", b"")
        await one.delete(f"k{n}")
    assert len(store._order) <= 21
    await one.put("a", b"1")
    event = await anext(watch)
    assert isinstance(event, Snapshot)
    await one.put("a", b"2")
    assert isinstance(await anext(watch), Changed)
