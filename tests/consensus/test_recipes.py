"""Key-value, elections, groups and listeners on both built-in stores."""

from __future__ import annotations

import asyncio
import dataclasses
import itertools
from collections.abc import AsyncIterator, Sequence
from typing import TYPE_CHECKING, Any

import pytest

from parley.consensus.backend import (
    ABSENT,
    PRESENT,
    At,
    Backend,
    Changed,
    Check,
    Delete,
    Entry,
    Event,
    Op,
    Put,
    Removed,
    Snapshot,
    Watch,
)
from parley.consensus.errors import (
    AlreadyExists,
    Closed,
    Conflict,
    Fenced,
    LeadershipLost,
    NotFound,
    SessionLost,
    TooLarge,
    TooManyOps,
    WrongStore,
)
from parley.consensus.memory import CAPABILITIES, MemoryBackend, MemoryStore
from parley.consensus.recipes.elections import Elections, Leader
from parley.consensus.recipes.groups import INCARNATIONS, Groups
from parley.consensus.recipes.keyvalue import KeyValue
from parley.consensus.recipes.listeners import KeyChange, Listeners, View
from parley.consensus.recipes.settled_write import wrap
from tests.consensus.test_settled_write import AlwaysOne
from tests.support.virtual_time import run

if TYPE_CHECKING:
    from tests.consensus.conftest import Connect


async def elections(backend: Backend, ttl_ms: int = 10_000) -> Elections:
    return Elections(backend, await backend.open_session(ttl_ms))


# KeyValue


async def test_keys_are_relative_and_values_plain(backend: Backend) -> None:
    kv = KeyValue(backend)
    revision = await kv.put("a/b", b"1")
    entry = await kv.get("a/b")
    assert entry is not None
    assert (entry.key, entry.value, entry.revision) == ("a/b", b"1", revision)
    await kv.put("a/b", b"2", expect=At(revision))
    with pytest.raises(Conflict) as caught:
        await kv.put("a/b", b"3", expect=At(revision))
    assert caught.value.key == "a/b"
    assert await kv.delete("a/b") is True
    assert await kv.delete("c", expect=At(await kv.put("c", b""))) is True
    assert await kv.delete("a/b") is False
    with pytest.raises(NotFound):
        await kv.delete("a/b", expect=PRESENT)


@pytest.mark.parametrize("guarding", ["a/leader", "z/leader"])
async def test_a_conflict_under_a_guard_names_the_relative_key(backend: Backend, guarding: str) -> None:
    """This holds whether the guard's key sorts before or after the other keys in the store."""
    guard = Check(guarding, At(await backend.put(guarding, b"")), fences=True)
    kv = KeyValue(backend)
    await kv.put("k", b"1", guard=guard)
    with pytest.raises(AlreadyExists) as refused:
        await kv.put("k", b"2", expect=ABSENT, guard=guard)
    assert refused.value.key == "k"
    await backend.delete(guarding)
    with pytest.raises(Fenced) as fenced:
        await kv.put("k", b"2", guard=guard)
    assert fenced.value.key == guarding


async def test_listing_all(backend: Backend) -> None:
    kv = KeyValue(backend)
    for n in range(7):
        await kv.put(f"t/{n}", b"%d" % n)
    page = await kv.list("t/", limit=3)
    assert [entry.key for entry in page.entries] == ["t/0", "t/1", "t/2"]
    assert page.next_after == "t/2"
    assert [entry.value async for entry in kv.entries("t/", page=3)] == [b"%d" % n for n in range(7)]


async def test_a_batch_is_never_split_silently() -> None:
    async with MemoryBackend(MemoryStore(dataclasses.replace(CAPABILITIES, txn_ops_max=10))) as backend:
        kv = KeyValue(backend)
        guard = Check("leader", ABSENT, fences=True)
        ops: list[Op] = [Put(f"k{n:02}", b"") for n in range(25)]
        with pytest.raises(TooManyOps):
            await kv.txn([], ops, guard=guard)
        assert (await kv.list()).entries == ()
        parts = list(kv.split(ops))
        assert [len(part) for part in parts] == [9, 9, 7]
        for part in parts:
            await kv.txn([], part, guard=guard)
        assert len((await kv.list()).entries) == 25
        with pytest.raises(ValueError, match="no room"):
            list(kv.split(ops, checks=10))


async def test_splitting_by_size() -> None:
    async with MemoryBackend(MemoryStore(dataclasses.replace(CAPABILITIES, txn_bytes_max=5000))) as backend:
        kv = KeyValue(backend)
        guard = Check("leader", ABSENT, fences=True)
        ops: list[Op] = [Put(f"k{n:02}", b"x" * 900) for n in range(10)] + [Delete("gone")]
        parts = list(kv.split(ops))
        assert len(parts) > 2
        for part in parts:
            await kv.txn([], part, guard=guard)
        with pytest.raises(TooLarge):
            next(
                iter(kv.split([*ops, Put("k", bytes(CAPABILITIES.value_bytes_max))]))
            )  # not when everything else is written


async def test_a_value_may_be_split_off_exactly_if_it_can_be_written() -> None:
    async with MemoryBackend(MemoryStore(dataclasses.replace(CAPABILITIES, value_bytes_max=1000))) as backend:
        kv = KeyValue(backend)
        fits = []
        for size in range(970, 1001):
            op = Put("k", bytes(size))
            try:
                await kv.txn([], [op])
            except TooLarge:
                with pytest.raises(TooLarge):
                    list(kv.split([op]))
            else:
                assert list(kv.split([op])) == [[op]]
                fits.append(size)
        assert 970 < max(fits) < 1000


async def test_a_page_has_at_most_a_thousand_entries_unless_the_caller_says_otherwise() -> None:
    store = MemoryStore()
    for number in range(1001):
        store.apply([], [Put(f"data/{number:04}", wrap(b"", ("aa",)))])
    async with MemoryBackend(store) as backend:
        kv = KeyValue(backend)
        page = await kv.list()
        assert (len(page.entries), page.next_after) == (1000, "0999")
        assert len([entry async for entry in kv.entries()]) == 1001


async def test_update(connect: Connect) -> None:
    one, two = KeyValue(await connect()), KeyValue(await connect())
    created = await one.update("a", lambda value: (value or b"") + b"x")
    assert created is not None
    assert created.value == b"x"

    async def add(kv: KeyValue) -> None:
        for _ in range(20):
            await kv.update("a", lambda value: (value or b"") + b"x")

    await asyncio.gather(add(one), add(two))
    entry = await one.get("a")
    assert entry is not None
    assert entry.value == b"x" * 41
    assert await one.update("a", lambda _: None) is None
    assert await one.get("a") is None
    assert await one.update("a", lambda _: None) is None


def test_update_pauses_longer_after_each_conflict() -> None:
    async def update() -> float:
        store, began = MemoryStore(), asyncio.get_running_loop().time()
        conflicts = iter(range(3))

        def change(value: bytes | None) -> bytes:
            for number in itertools.islice(conflicts, 1):
                store.apply([], [Put("data/k", wrap(b"%d" % number, ("aa",)))])
            return (value or b"") + b"x"

        async with MemoryBackend(store) as backend:
            entry = await KeyValue(backend, AlwaysOne()).update("k", change)
            assert entry is not None
            assert entry.value == b"2x"
        return asyncio.get_running_loop().time() - began

    assert run(update()) == pytest.approx(0.001 + 0.002 + 0.004)


async def test_update_raises_the_error_of_the_change(backend: Backend) -> None:
    def refuse(value: bytes | None) -> bytes:
        raise LookupError("no")

    with pytest.raises(LookupError):
        await KeyValue(backend).update("a", refuse)


async def test_ids_are_given_once(connect: Connect) -> None:
    clients = [KeyValue(await connect()) for _ in range(3)]

    async def take(kv: KeyValue) -> list[int]:
        return [await kv.next_id("ids", block=10, first=1000) for _ in range(10)]

    taken = [first for firsts in await asyncio.gather(*map(take, clients)) for first in firsts]
    assert sorted(taken) == list(range(1000, 1300, 10))


async def test_a_counter_is_raised_above_ids_that_are_in_use(backend: Backend) -> None:
    kv = KeyValue(backend)
    assert await kv.reserve_below("ids", 5) == 0
    assert await kv.next_id("ids", block=3) == 5
    assert await kv.reserve_below("ids", 8) is None
    assert await kv.reserve_below("ids", 9) == 8
    assert await kv.next_id("ids") == 9


async def test_watching_key_values(connect: Connect) -> None:
    one, two = KeyValue(await connect()), KeyValue(await connect())
    await one.put("t/1", b"a")
    async with two.watch("t/") as watch:
        snapshot = await anext(watch)
        assert isinstance(snapshot, Snapshot)
        assert [(entry.key, entry.value) for entry in snapshot.entries] == [("t/1", b"a")]
        await one.put("t/1", b"b")
        changed = await anext(watch)
        assert isinstance(changed, Changed)
        assert (changed.entry.key, changed.entry.value) == ("t/1", b"b")
        await one.delete("t/1")
        assert await anext(watch) == Removed("t/1")


# Elections


async def test_the_next_candidate_leads_when_the_leader_resigns(connect: Connect) -> None:
    one, two = await elections(await connect()), await elections(await connect())
    first = await one.campaign("controller", b"one")
    assert first.epoch == 1
    with pytest.raises(AlreadyExists):
        await two.campaign("controller", b"two", wait=False)
    waiting = asyncio.ensure_future(two.campaign("controller", b"two"))
    leader = await two.leader("controller")
    assert leader is not None
    assert (leader.candidate, leader.epoch) == (b"one", 1)
    assert not waiting.done()
    await first.resign()
    assert first.lost.is_set()
    second = await waiting
    assert second.epoch == 2
    await first.resign()
    assert not second.lost.is_set()
    with pytest.raises(LeadershipLost):
        first.require()
    second.require()


async def test_a_session_that_ends_ends_the_leadership(connect: Connect) -> None:
    one, two = await elections(await connect()), await elections(await connect())
    first = await one.campaign("controller", b"one")
    waiting = asyncio.ensure_future(two.campaign("controller", b"two"))
    await one.session.close()
    assert first.lost.is_set()
    assert (await waiting).epoch == 2
    with pytest.raises(SessionLost):
        await one.campaign("controller", b"one")


async def test_losing_the_session_ends_the_campaign(connect: Connect) -> None:
    one, two = await elections(await connect()), await elections(await connect())
    await one.campaign("controller", b"one")
    waiting = asyncio.ensure_future(two.campaign("controller", b"two"))
    await asyncio.sleep(0.01)
    await two.session.close()
    with pytest.raises(SessionLost):
        await waiting


async def test_deposing_fences_the_old_leader_at_once(connect: Connect) -> None:
    backend, other = await connect(), await connect()
    one, two = await elections(backend), await elections(other)
    first = await one.campaign("controller", b"one")
    kv = KeyValue(backend)
    await kv.put("state", b"1", guard=first.guard())
    observed = await two.leader("controller")
    second = await two.campaign("controller", b"two", depose=observed)
    assert second.epoch == 2
    with pytest.raises(Fenced):
        await kv.put("state", b"old", guard=first.guard())
    await KeyValue(other).put("state", b"2", guard=second.guard())
    await first.lost.wait()
    assert not one.session.lost.is_set()
    entry = await kv.get("state")
    assert entry is not None
    assert entry.value == b"2"


async def test_deposing_a_former_leader_is_an_ordinary_campaign(connect: Connect) -> None:
    one, two, three = [await elections(await connect()) for _ in range(3)]
    await one.campaign("controller", b"one")
    observed = await two.leader("controller")
    second = await two.campaign("controller", b"two", depose=observed)
    with pytest.raises(AlreadyExists):
        await three.campaign("controller", b"three", depose=observed, wait=False)
    waiting = asyncio.ensure_future(three.campaign("controller", b"three", depose=observed))
    await asyncio.sleep(0.01)
    assert not second.lost.is_set()
    await second.resign()
    assert (await waiting).epoch == 3


async def test_epochs_rise_from_min_epoch(connect: Connect) -> None:
    one = await elections(await connect())
    assert await one.epoch("controller") == 0
    first = await one.campaign("controller", b"", min_epoch=41)
    assert first.epoch == 41
    await first.resign()
    second = await one.campaign("controller", b"", min_epoch=7)
    assert second.epoch == 42
    assert await one.epoch("controller") == 42


async def test_elections_of_different_names_are_independent(backend: Backend) -> None:
    one = await elections(backend)
    names = ["controller", "controller/2", "controll"]
    won = [await one.campaign(name, name.encode()) for name in names]
    assert [leadership.epoch for leadership in won] == [1, 1, 1]
    for name in names:
        leader = await one.leader(name)
        assert leader is not None
        assert leader.candidate == name.encode()


class EndingWatch(Watch):
    """Ends with an error instead of its first event."""

    async def _next(self) -> Event:
        raise WrongStore("the store has been replaced")

    async def close(self) -> None:
        pass


class EndsFirstWatch(MemoryBackend):
    """A store whose first watch ends with an error."""

    ended = False

    def watch(self, prefix: str) -> Watch:
        if self.ended:
            return super().watch(prefix)
        self.ended = True
        return EndingWatch()


async def test_a_leader_that_cannot_watch_its_key_gives_up() -> None:
    async with EndsFirstWatch(MemoryStore()) as backend:
        leadership = await (await elections(backend)).campaign("controller", b"one")
        await asyncio.wait_for(leadership.lost.wait(), 30)


async def test_a_campaign_raises_the_error_that_ended_its_watch() -> None:
    store = MemoryStore()
    async with MemoryBackend(store) as one, EndsFirstWatch(store) as two:
        await (await elections(one)).campaign("controller", b"one")
        with pytest.raises(WrongStore):
            await asyncio.wait_for((await elections(two)).campaign("controller", b"two"), 30)


async def test_observing(connect: Connect) -> None:
    one, two = await elections(await connect()), await elections(await connect())
    seen: asyncio.Queue[Leader | None] = asyncio.Queue()

    async def observe() -> None:
        async for leader in two.observe("controller"):
            seen.put_nowait(leader)

    task = asyncio.ensure_future(observe())
    assert await seen.get() is None
    first = await one.campaign("controller", b"\xff1")
    leader = await seen.get()
    assert leader is not None
    assert (leader.candidate, leader.epoch) == (b"\xff1", 1)
    await first.resign()
    assert await seen.get() is None
    await two.backend.close()
    with pytest.raises(Closed):
        await task


async def test_many_candidates_never_share_an_epoch(connect: Connect) -> None:
    candidates = [await elections(await connect()) for _ in range(4)]
    epochs: list[int] = []

    async def run(candidate: Elections) -> None:
        for _ in range(5):
            leadership = await candidate.campaign("x", b"")
            epochs.append(leadership.epoch)
            await leadership.resign()

    await asyncio.gather(*map(run, candidates))
    assert epochs == sorted(set(epochs))
    assert len(epochs) == 20


# Groups


async def test_joining_and_leaving(connect: Connect) -> None:
    one, two = await connect(), await connect()
    first = Groups(one, await one.open_session(10_000))
    second = Groups(two, await two.open_session(10_000))
    a = await first.join("brokers", "1", b"\x00a")
    watch = second.watch("brokers")
    assert {name: member.data for name, member in (await anext(watch)).items()} == {"1": b"\x00a"}
    await second.join("brokers", "2/x", b"b")
    assert set(await anext(watch)) == {"1", "2/x"}
    assert set(await first.members("brokers")) == {"1", "2/x"}
    await a.leave()
    assert a.lost.is_set()
    assert set(await anext(watch)) == {"2/x"}
    await a.leave()
    assert (await first.join("brokers", "1", b"")).incarnation == 2


async def test_an_id_taken_is_refused_unless_replaced(connect: Connect) -> None:
    one, two = await connect(), await connect()
    first = Groups(one, await one.open_session(10_000))
    second = Groups(two, await two.open_session(10_000))
    old = await first.join("brokers", "1", b"old")
    with pytest.raises(AlreadyExists):
        await second.join("brokers", "1", b"new")
    observed = (await second.members("brokers"))["1"]
    new = await second.join("brokers", "1", b"new", replace=observed)
    assert (old.incarnation, new.incarnation) == (1, 2)
    await old.lost.wait()
    with pytest.raises(Fenced):
        await KeyValue(one).put("a", b"", guard=old.guard())
    with pytest.raises(AlreadyExists):
        await first.join("brokers", "1", b"again", replace=observed)
    await old.leave()
    assert (await first.members("brokers"))["1"].data == b"new"


async def test_incarnations_rise_from_min_incarnation(backend: Backend) -> None:
    """A store that was rolled back to an older state lacks the latest incarnations."""
    groups = Groups(backend, await backend.open_session(10_000))
    assert (await groups.join("g", "m", b"", min_incarnation=7)).incarnation == 7
    assert (await groups.join("g", "m", b"", min_incarnation=3)).incarnation == 8


async def test_joining_again_in_the_same_session(backend: Backend) -> None:
    groups = Groups(backend, await backend.open_session(10_000))
    first = await groups.join("g", "m", b"1")
    second = await groups.join("g", "m", b"2")
    assert second.incarnation == first.incarnation + 1
    await first.lost.wait()
    assert not second.lost.is_set()


class LateReader(MemoryBackend):
    """A client whose first read of some keys returns their previous values."""

    def __init__(self, store: MemoryStore) -> None:
        super().__init__(store)
        self.before: dict[str, Entry | None] = {}

    async def get(self, key: str, **options: object) -> Entry | None:
        return self.before.pop(key) if key in self.before else await super().get(key)


@pytest.mark.parametrize("existed", [False, True])
async def test_joining_is_tried_again_if_another_client_writes_meanwhile(existed: bool) -> None:
    store, counter = MemoryStore(), f"{INCARNATIONS}g/m"
    async with MemoryBackend(store) as one, LateReader(store) as two:
        groups = Groups(one, await one.open_session(10_000))
        await (await groups.join("g", "m", b"")).leave()
        two.before[counter] = await one.get(counter) if existed else None
        await (await groups.join("g", "m", b"")).leave()
        late = await Groups(two, await two.open_session(10_000)).join("g", "m", b"")
        assert late.incarnation == 3


async def test_members_end_with_their_session(connect: Connect) -> None:
    one, two = await connect(), await connect()
    membership = await Groups(one, await one.open_session(10_000)).join("g", "m", b"")
    groups = Groups(two, await two.open_session(10_000))
    watch = groups.watch("g")
    assert set(await anext(watch)) == {"m"}
    await one.close()
    assert membership.lost.is_set()
    assert await anext(watch) == {}


# Listeners


async def test_listening_gives_differences(connect: Connect) -> None:
    kv, listeners = KeyValue(await connect()), Listeners(await connect())
    await kv.put("t/1", b"a")
    seen: asyncio.Queue[Sequence[KeyChange]] = asyncio.Queue()
    listener = listeners.listen("data/t/", seen.put_nowait)
    (change,) = await seen.get()
    assert change.old is None
    assert change.new is not None
    assert (change.key, change.new.value) == ("data/t/1", b"a")
    await kv.put("t/1", b"b")
    (change,) = await seen.get()
    assert change.old is not None
    assert change.new is not None
    assert (change.old.value, change.new.value) == (b"a", b"b")
    await kv.delete("t/1")
    (change,) = await seen.get()
    assert change.new is None
    await listener.close()
    await listener.wait()
    await listener.close()


async def test_a_gap_shows_as_the_differences_it_hid() -> None:
    store = MemoryStore()
    async with MemoryBackend(store) as one, MemoryBackend(store) as two:
        kv = KeyValue(two)
        for key in ("same", "changed", "deleted"):
            await kv.put(key, b"1")
        following = Listeners(one).follow("data/")
        assert len(await anext(following)) == 3
        one.disconnect()
        await kv.put("changed", b"2")
        await kv.put("created", b"2")
        await kv.delete("deleted")
        one.reconnect()
        changes = {change.key: change for change in await anext(following)}
        assert set(changes) == {"data/changed", "data/created", "data/deleted"}
        assert changes["data/deleted"].new is None
        assert changes["data/created"].old is None


async def test_a_gap_that_hid_nothing_is_not_reported() -> None:
    store = MemoryStore()
    async with MemoryBackend(store) as one, MemoryBackend(store) as two, one.watch("") as probe:
        kv, theirs = KeyValue(two), Groups(two, await two.open_session(10_000))
        await theirs.join("g", "1", b"")
        first = await (await elections(two)).campaign("e", b"")
        watching = await one.open_session(10_000)
        following: list[AsyncIterator[Any]] = [
            Listeners(one).follow("data/"),
            Groups(one, watching).watch("g"),
            Elections(one, watching).observe("e"),
        ]
        for each in following:
            await anext(each)
        news = [asyncio.ensure_future(anext(each)) for each in following]
        one.disconnect()
        one.reconnect()
        while not isinstance(await anext(probe), Snapshot):
            pass
        await asyncio.sleep(0.01)
        assert not any(each.done() for each in news)
        await kv.put("k", b"")
        await theirs.join("g", "2", b"")
        await first.resign()
        changes, members, leader = await asyncio.gather(*news)
        assert [change.key for change in changes] == ["data/k"]
        assert set(members) == {"1", "2"}
        assert leader is None


async def test_an_empty_first_state_is_reported_too(backend: Backend) -> None:
    assert await anext(Listeners(backend).follow("data/none/")) == []


async def test_values_without_envelopes(backend: Backend) -> None:
    await backend.put("raw/1", b"plain")
    (change,) = await anext(Listeners(backend, unwrapped=False).follow("raw/"))
    assert change.new is not None
    assert change.new.value == b"plain"


async def test_a_listener_that_raises_ends(backend: Backend) -> None:
    def fail(changes: Sequence[KeyChange]) -> None:
        raise LookupError("no")

    with pytest.raises(LookupError):
        await Listeners(backend).listen("x", fail).wait()


async def test_a_listener_reports_its_end(connect: Connect) -> None:
    backend = await connect()
    listener = Listeners(backend).listen("x", lambda _: None)
    await asyncio.sleep(0.01)
    await backend.close()
    with pytest.raises(Closed):
        await listener.wait()


def test_a_view_ignores_changes_that_change_nothing() -> None:
    view = View()
    assert view.apply(Removed("a")) == []
    assert view.apply(Snapshot(())) == []
