"""A move between stores: whatever fails and whenever, exactly one store is in charge and nothing is lost."""

from __future__ import annotations

import asyncio
import itertools
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass, replace
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from parley.consensus.backend import ABSENT, PRESENT, Backend, Check, Entry, Put, Revision
from parley.consensus.errors import CannotMove, Closed, CoordinationError, Fenced, Moved, SessionLost, WrongStore
from parley.consensus.memory import CAPABILITIES, MemoryBackend, MemoryStore
from parley.consensus.recipes.elections import Elections
from parley.consensus.recipes.groups import Groups
from parley.consensus.recipes.keyvalue import KeyValue
from parley.consensus.recipes.settled_write import Writer, wrap
from parley.consensus.registry import backend_factory
from parley.consensus.store_move.migration import REPORTED_STEPS, Migration, Step, abandon_left_over, refusal
from parley.consensus.store_move.store_copy import content, leftovers
from parley.consensus.store_move.store_in_charge import StoreInCharge
from parley.consensus.store_move.store_lookup import find_store, find_successor, open_existing
from parley.consensus.store_move.store_record import (
    IN_CHARGE_STATES,
    READY_FOLDER,
    RECORD_KEY,
    StoreLocation,
    StoreRecord,
    StoreState,
    read_record,
)
from tests.support.proportion import examples

_numbers = itertools.count()
Hook = Callable[[Step], None]


def nothing(step: Step) -> None:
    """No fault."""


class Stores:
    """Memory stores by address, and the faults of their clients."""

    def __init__(self) -> None:
        self.kept: dict[str, MemoryStore] = {}
        self.clients: list[MemoryBackend] = []

    def new(self, store: MemoryStore | None = None) -> str:
        name = f"migration-{next(_numbers)}"
        self.kept[f"memory://{name}"] = (store or MemoryStore()).known_as(name)
        return f"memory://{name}"

    async def backend_at(self, url: str) -> Backend:
        client = MemoryBackend(self.kept[url])
        self.clients.append(client)
        return client

    async def find(self, url: str, known: Iterable[str] = ()) -> StoreInCharge:
        return await find_store(url, self.backend_at, known=list(known))

    async def in_charge(self) -> list[str]:
        """Return the stores in charge, according to the store records and the tombstones that lead to them.

        An abandoned, empty store has a record like that of a new cluster, and does not count.
        """
        found = []
        moves = set()
        for url in self.kept:
            record, _ = await self._record(url)
            if record.state is StoreState.MOVED:
                moves.add(record.move)
        for url in self.kept:
            record, _ = await self._record(url)
            begun = record.state in IN_CHARGE_STATES and (record.move or await self._keys(url))
            if begun or (record.state is StoreState.CLAIMED and record.move in moves):
                found.append(url)
        return found

    async def _record(self, url: str):  # type: ignore[no-untyped-def]
        async with await self.backend_at(url) as backend:
            return await read_record(backend)

    async def _keys(self, url: str) -> list[str]:
        async with await self.backend_at(url) as backend:
            return await leftovers(backend)

    async def close(self) -> None:
        for client in self.clients:
            await client.close()


@pytest.fixture
async def stores() -> AsyncIterator[Stores]:
    made = Stores()
    yield made
    await made.close()


@dataclass
class Driver:
    """The driver of a move, with its own connections."""

    source: StoreInCharge
    target: MemoryBackend
    migration: Migration
    steps: list[Step]

    def die(self) -> None:
        """Disconnect from everything, as if killed."""
        assert isinstance(self.source.backend, MemoryBackend)
        self.source.backend.disconnect()
        self.target.disconnect()


async def driver(
    stores: Stores,
    source: str,
    target: str,
    *,
    fault: Callable[[Driver, Step], None] = lambda driver, step: None,
    members: Callable[[], Awaitable[Iterable[str]]] | None = None,
    ttl_ms: int = 2000,
) -> Driver:
    async def nobody() -> Iterable[str]:
        return ()

    def on_step(step: Step, detail: str) -> None:
        made.steps.append(step)
        fault(made, step)

    store = await stores.find(source)
    other = await stores.backend_at(target)
    await other.open()
    session = await store.open_session(ttl_ms)
    assert isinstance(other, MemoryBackend)
    migration = Migration(
        store,
        session,
        other,
        target,
        move=f"{next(_numbers)}",
        members=members or nobody,
        on_step=on_step,
        rng=Random(1),
    )
    made = Driver(store, other, migration, [])
    return made


async def fill(store: StoreInCharge, keys: int = 30) -> None:
    """Write what a cluster leaves in a store: keys, a counter, a leader, and members, some of which have left."""
    values = KeyValue(store)
    for at in range(keys):
        await values.put(f"topics/t{at}", b"%d" % at)
    await values.next_id("ids", block=10)
    session = await store.open_session(5000)
    await Elections(store, session).campaign("controller", b"me")
    await Groups(store, session).join("brokers", "1", b"one")
    await session.close()


async def until_preparing(store: StoreInCharge) -> None:
    async with store.watch(RECORD_KEY) as watch:
        async for _ in watch:
            if (await read_record(store))[0].state is StoreState.PREPARING:
                return


async def test_lasting_content_is_copied_and_counters_keep_rising(stores: Stores) -> None:
    old, new = stores.new(), stores.new()
    store = await stores.find(old)
    await fill(store)
    before = await content(store)
    one = await driver(stores, old, new)
    await one.migration.run()
    assert one.steps == list(REPORTED_STEPS)
    assert await stores.in_charge() == [new]
    found = await stores.find(old)
    assert found.identity == one.target.identity
    assert await content(found) == before
    session = await found.open_session(5000)
    assert (await Elections(found, session).campaign("controller", b"me")).epoch == 2
    assert (await Groups(found, session).join("brokers", "1", b"one")).incarnation == 2
    assert await KeyValue(found).next_id("ids") == 10


async def test_a_store_that_has_moved_refuses_writes(stores: Stores) -> None:
    old, new = stores.new(), stores.new()
    asleep = await stores.find(old)
    await KeyValue(asleep).put("k", b"1")
    session = await asleep.open_session(5000)
    elections = Elections(asleep, session)
    leadership = await elections.campaign("controller", b"me")
    before = await content(asleep)
    await (await driver(stores, old, new)).migration.run()
    with pytest.raises(Moved):
        await KeyValue(asleep).put("k", b"2", guard=leadership.guard())
    with pytest.raises(Moved):
        await KeyValue(asleep).next_id("ids")
    with pytest.raises(Moved):
        await Groups(asleep, session).join("brokers", "1", b"")
    with pytest.raises(Moved):
        await asleep.delete("data/k")
    assert await content(asleep) == before
    awake = await find_successor(asleep, stores.backend_at)
    assert (await KeyValue(awake).get("k")).value == b"1"  # type: ignore[union-attr]


async def test_a_store_that_has_moved_does_not_stay_open_if_it_cannot_be_used(stores: Stores) -> None:
    old, new = stores.new(), stores.new()
    await (await driver(stores, old, new)).migration.run()
    backend = await stores.backend_at(old)
    with pytest.raises(Moved):
        await StoreInCharge(backend, old).open()
    with pytest.raises(Closed):
        await backend.get("k")


async def test_writers_wait_while_the_store_is_frozen_and_go_on_when_the_move_is_given_up(stores: Stores) -> None:
    old, new = stores.new(), stores.new()
    writer = await stores.find(old)
    waiting: list[asyncio.Task[object]] = []

    def fault(driver: Driver, step: Step) -> None:
        if step is Step.COMMIT:
            waiting.append(asyncio.ensure_future(KeyValue(writer).put("k", b"held")))
            raise ConnectionError("the network card burns")

    with pytest.raises(CannotMove, match="burns"):
        await (await driver(stores, old, new, fault=fault)).migration.run()
    await waiting[0]
    assert await stores.in_charge() == [old]
    assert (await read_record(writer))[0].note == "the network card burns"
    async with await stores.backend_at(new) as emptied:
        assert not await leftovers(emptied)
        assert (await read_record(emptied))[0] == StoreRecord()


@pytest.mark.slow
@pytest.mark.parametrize("step", list(REPORTED_STEPS))
async def test_a_driver_that_dies_leaves_one_store_in_charge(stores: Stores, step: Step) -> None:
    old, new = stores.new(), stores.new()
    await fill(await stores.find(old))

    def fault(driver: Driver, now: Step) -> None:
        if now is step:
            driver.die()

    dying = await driver(stores, old, new, fault=fault)
    with suppress(CoordinationError):
        await dying.migration.run()
    found = await stores.find(old)
    await KeyValue(found).put("after", b"all")  # waits until the dead driver's session has expired
    in_charge = await stores.in_charge()
    assert in_charge == [found.url]
    assert in_charge == [new if step in (Step.TAKE, Step.DONE) else old]
    before = await content(found)
    await abandon_left_over(found, "by the next driver")
    again = await driver(stores, found.url, new if in_charge == [old] else old)
    await again.migration.run()
    assert len(await stores.in_charge()) == 1
    assert await content(await stores.find(old)) == before, "what a first attempt left behind is no hindrance"


@pytest.mark.parametrize("step", list(REPORTED_STEPS))
@pytest.mark.parametrize("applied", [True, False])
async def test_a_lost_response_at_any_step_is_settled(stores: Stores, step: Step, applied: bool) -> None:
    old, new = stores.new(), stores.new()
    await fill(await stores.find(old))
    before = await content(await stores.find(old))

    def fault(driver: Driver, now: Step) -> None:
        if now is step:
            assert isinstance(driver.source.backend, MemoryBackend)
            driver.source.backend.lose_next_response(applied=applied)
            driver.target.lose_next_response(applied=applied)

    moving = await driver(stores, old, new, fault=fault)
    with suppress(CannotMove):  # the outcome of the copy is unknown: the move is abandoned
        await moving.migration.run()
    (in_charge,) = await stores.in_charge()
    found = await stores.find(old)
    assert found.url == in_charge
    assert await content(found) == before


async def test_a_frozen_driver_cannot_commit_over_later_writes(stores: Stores) -> None:
    old, new = stores.new(), stores.new()
    writer = await stores.find(old)
    await KeyValue(writer).put("k", b"1")
    held = asyncio.Event()

    class Sleeper(Migration):
        async def _copy(self, step: Step) -> None:
            await super()._copy(step)
            if step is Step.COPY_REST:
                self._session.lose()
                stores.kept[old].expire(self._session.id)
                await KeyValue(writer).put("k", b"2")
                held.set()

    one = await driver(stores, old, new)
    one.migration.__class__ = Sleeper
    with pytest.raises(CannotMove):
        await one.migration.run()
    assert held.is_set()
    assert await stores.in_charge() == [old]
    assert (await KeyValue(await stores.find(new)).get("k")) is None


async def test_members_must_be_able_to_use_the_new_store(stores: Stores) -> None:
    old, new = stores.new(), stores.new()
    member = await stores.find(old)
    session = await member.open_session(5000)

    async def members() -> Iterable[str]:
        return ["1"]

    async def say(error: str) -> None:
        await until_preparing(member)
        move = (await read_record(member))[0].move
        said = json.dumps({"move": move, "error": error}).encode()
        await Writer(member.backend).commit([], [Put(f"{READY_FOLDER}1", said, session)])

    refused = await driver(stores, old, new, members=members, ttl_ms=5000)
    with pytest.raises(CannotMove, match=r"^broker 1 cannot use the new store: no route"):
        await asyncio.gather(refused.migration.run(), say("no route"))
    assert await stores.in_charge() == [old]
    accepted = await driver(stores, old, new, members=members, ttl_ms=5000)
    await asyncio.gather(accepted.migration.run(), say(""))
    assert await stores.in_charge() == [new]


async def test_a_move_can_be_given_up_until_it_is_committed(stores: Stores) -> None:
    old, new = stores.new(), stores.new()

    async def members() -> Iterable[str]:
        return ["nobody"]

    moving = asyncio.ensure_future((await driver(stores, old, new, members=members, ttl_ms=5000)).migration.run())
    store = await stores.find(old)
    await until_preparing(store)
    moving.cancel()
    with pytest.raises(asyncio.CancelledError):
        await moving
    assert (await read_record(store))[0].state is StoreState.IN_CHARGE
    assert await stores.in_charge() == [old]


async def test_a_move_there_and_back_and_to_a_third_store(stores: Stores) -> None:
    first, second, third = stores.new(), stores.new(), stores.new()
    asleep = await stores.find(first)
    await fill(asleep)
    before = await content(asleep)
    identities = {first: asleep.identity}
    for source, target in itertools.pairwise((first, second, third, second, first, third)):
        await (await driver(stores, source, target)).migration.run()
        found = await stores.find(target)
        identities[target] = found.identity
        assert await content(found) == before
    for url in (first, second, third):
        assert (await stores.find(url)).url == third
        for known in identities.values():
            assert (await stores.find(url, [known])).url == third
    with pytest.raises(Moved):
        await KeyValue(asleep).put("k", b"")
    assert (await find_successor(asleep, stores.backend_at)).url == third


async def test_is_move_done_whichever_version_wrote_the_record(stores: Stores) -> None:
    def as_before(record: StoreRecord) -> StoreRecord:
        fields = json.loads(record.to_bytes())
        del fields["came_by"]
        return StoreRecord.from_entry(
            Entry(RECORD_KEY, wrap(json.dumps(fields).encode(), ("0" * 16,)), Revision(1), None)
        )

    first, second = stores.new(), stores.new()
    await (await driver(stores, first, second)).migration.run()
    for url in (first, second):
        record, _ = await stores._record(url)
        assert record.is_move_done
        assert as_before(record).is_move_done
    back = record.preparing("back", StoreLocation(first, record.past[0]))
    for each in (back, back.frozen(), back.abandoned("it burns")):
        assert not each.is_move_done
        assert not as_before(each).is_move_done
    assert back.abandoned("it burns").came_by == record.came_by
    assert not StoreRecord().is_move_done


async def test_a_client_that_slept_through_a_move_there_and_back_notices_it(stores: Stores) -> None:
    first, second = stores.new(), stores.new()
    asleep = await stores.find(first)
    await (await driver(stores, first, second)).migration.run()
    await (await driver(stores, second, first)).migration.run()
    with pytest.raises(Moved):
        await KeyValue(asleep).put("k", b"")
    assert (await find_successor(asleep, stores.backend_at)).url == first


async def test_a_store_of_another_cluster_is_not_filled(stores: Stores) -> None:
    old, other, new = stores.new(), stores.new(), stores.new()
    await KeyValue(await stores.find(other)).put("k", b"theirs")
    with pytest.raises(CannotMove, match="it is not empty: it contains keys such as data/k"):
        await (await driver(stores, old, other)).migration.run()
    await (await driver(stores, other, new)).migration.run()
    for taken in (other, new):
        with pytest.raises(CannotMove):
            await (await driver(stores, old, taken)).migration.run()
    with pytest.raises(CannotMove, match="already uses this store"):
        await (await driver(stores, old, old)).migration.run()
    assert set(await stores.in_charge()) == {old, new}


async def test_a_store_that_is_too_small_is_refused(stores: Stores) -> None:
    old, new = stores.new(), stores.new(MemoryStore(replace(CAPABILITIES, value_bytes_max=1000)))
    await KeyValue(await stores.find(old)).put("large", bytes(2000))
    with pytest.raises(CannotMove, match="cannot take it: the value of data/large"):
        await (await driver(stores, old, new)).migration.run()
    assert await stores.in_charge() == [old]


async def test_a_store_with_narrow_transactions_takes_it_in_parts(stores: Stores) -> None:
    old, new = stores.new(), stores.new(MemoryStore(replace(CAPABILITIES, txn_ops_max=4)))
    await fill(await stores.find(old))
    before = await content(await stores.find(old))
    await (await driver(stores, old, new)).migration.run()
    assert await content(await stores.find(old)) == before


async def test_data_of_a_store_is_not_used_with_an_unrelated_one(stores: Stores) -> None:
    old, new, other = stores.new(), stores.new(), stores.new()
    identity = (await stores.find(old)).identity
    await (await driver(stores, old, new)).migration.run()
    after = (await stores.find(new)).identity
    assert (await stores.find(new, [identity])).url == new, "slept through the move, and was given the new address"
    with pytest.raises(WrongStore):
        await stores.find(other, [identity])
    forgotten = stores.kept[old]
    forgotten.apply([], [Put(RECORD_KEY, wrap(StoreRecord().to_bytes(), ("0" * 16,)))])  # as if restored from a backup
    with pytest.raises(WrongStore):
        await stores.find(old, [after, identity])


async def test_looking_at_an_empty_store_leaves_it_empty(stores: Stores, tmp_path) -> None:  # type: ignore[no-untyped-def]
    with pytest.raises(WrongStore):
        await open_existing(f"local://{tmp_path}/none", backend_factory({}))
    assert not (tmp_path / "none").exists()


async def test_a_guard_that_does_not_hold_is_not_taken_for_a_move(stores: Stores) -> None:
    store = await stores.find(stores.new())
    with pytest.raises(Fenced) as fenced:
        await store.txn(
            [Check("missing", ABSENT), Check("gone", ABSENT), Check("leader", PRESENT, fences=True)], [Put("k", b"")]
        )
    assert fenced.value.key == "leader"
    session = await store.open_session(1000)
    await session.close()
    with pytest.raises(SessionLost):
        await store.put("k", b"", session=session)


def test_refusal_of_a_store_that_is_in_use() -> None:
    own = StoreRecord(past=("before",), begun=2)
    theirs = StoreRecord(StoreState.CLAIMED, other=StoreLocation("x", "elsewhere"))
    assert refusal(StoreRecord(), "t", "s", own, []) is None
    assert refusal(StoreRecord(), "t", "s", own, ["data/k"])
    assert refusal(theirs, "t", "s", own, [])
    assert refusal(replace(theirs, other=StoreLocation("x", "s")), "t", "s", own, ["data/k"]) is None
    assert refusal(replace(theirs, other=StoreLocation("x", "before")), "t", "s", own, ["data/k"]) is None
    assert refusal(replace(theirs, other=StoreLocation("x", "s"), begun=2), "t", "s", own, [])
    assert refusal(StoreRecord(StoreState.MOVED), "before", "s", own, ["data/k"]) is None
    assert refusal(StoreRecord(StoreState.MOVED), "t", "s", own, [])


@given(
    sizes=st.lists(st.integers(0, 400), max_size=40),
    ops_max=st.integers(2, 10),
    bytes_max=st.integers(600, 2000),
)
def test_parts_hold_everything_in_order_within_the_limits(sizes: list[int], ops_max: int, bytes_max: int) -> None:
    limits = replace(CAPABILITIES, key_bytes_max=50, txn_ops_max=ops_max, txn_bytes_max=bytes_max)
    ops = [Put(f"k{at}", bytes(size)) for at, size in enumerate(sizes)]
    made = list(limits.parts(ops))
    assert [op for part in made for op in part] == ops
    for part in made:
        limits.admit([Check("c" * 50, ABSENT)], part)


@settings(max_examples=examples(80), deadline=None)
@given(
    crash=st.sampled_from([None, *Step]),
    seed=st.integers(0, 1 << 30),
    writers=st.integers(1, 4),
)
def test_counters_never_go_back_under_writers_and_crashes(crash: Step | None, seed: int, writers: int) -> None:
    asyncio.run(_counting(crash, seed, writers))


async def _counting(crash: Step | None, seed: int, writers: int) -> None:
    """Writers take numbers during a move that may crash. No number is given out twice, whichever store it came from."""
    stores, rng = Stores(), Random(seed)
    old, new = stores.new(), stores.new()
    taken: list[int] = []
    enough = asyncio.Event()

    async def write() -> None:
        store = await stores.find(old)
        assert isinstance(store.backend, MemoryBackend)
        store.backend.delay_s = lambda: rng.random() * 0.002
        while not enough.is_set():
            await asyncio.sleep(rng.random() * 0.001)
            try:
                taken.append(await KeyValue(store).next_id("ids"))
            except Moved:
                store = await find_successor(store, stores.backend_at)

    def fault(driver: Driver, step: Step) -> None:
        if step is crash:
            driver.die()

    tasks = [asyncio.ensure_future(write()) for _ in range(writers)]
    moving = await driver(stores, old, new, fault=fault, ttl_ms=50)
    moving.target.delay_s = lambda: rng.random() * 0.002
    with suppress(CoordinationError):
        await moving.migration.run()
    before = len(taken)
    while len(taken) < before + 5:
        await asyncio.wait(tasks, timeout=0.01)
        assert not any(task.done() for task in tasks)
    enough.set()
    await asyncio.gather(*tasks)
    assert sorted(taken) == list(range(len(taken)))
    (in_charge,) = await stores.in_charge()
    assert (await KeyValue(await stores.find(in_charge)).next_id("ids")) == len(taken)
    await stores.close()
