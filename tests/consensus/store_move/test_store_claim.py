"""At most one claimant gets a store, in every possible order of the steps of all claimants."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from random import Random

import pytest

from parley.consensus.backend import Backend, Check, Op, Put, TxnResult
from parley.consensus.errors import CannotMove, Closed, MaybeApplied, Moved, PreconditionFailed, SessionLost
from parley.consensus.memory import MemoryBackend, MemoryStore
from parley.consensus.recipes.keyvalue import KeyValue
from parley.consensus.recipes.settled_write import Writer
from parley.consensus.store_move.migration import Migration, Step, abandon_left_over
from parley.consensus.store_move.store_copy import content
from parley.consensus.store_move.store_in_charge import StoreInCharge
from parley.consensus.store_move.store_lookup import find_store
from parley.consensus.store_move.store_record import (
    DRIVER_KEY,
    IN_CHARGE_STATES,
    NO_RECORD,
    RECORD_KEY,
    StoreEvent,
    StoreLocation,
    StoreRecord,
    StoreState,
    read_record,
    write_record,
)
from tests.consensus.stepping import SteppedBackend, Steps, every_order

TTL_MS = 5000
NEW = "memory://new"


async def nobody() -> Iterable[str]:
    return ()


class Cluster:
    """A cluster in its own store, which contains a key, and from which it is about to move to the new store."""

    def __init__(self, name: str, new: MemoryStore) -> None:
        self.name = name
        self.url = f"memory://{name}"
        self.stores = {self.url: MemoryStore(), NEW: new}
        self.clients: list[SteppedBackend] = []

    async def backend_at(self, url: str) -> Backend:
        client = SteppedBackend(self.stores[url], self.name)
        self.clients.append(client)
        return client

    async def begin(self) -> None:
        await KeyValue(await find_store(self.url, self.backend_at)).put("of", self.name.encode())

    async def migration(
        self,
        move: str,
        steps: Steps | None,
        *,
        who: str = "",
        fails_at: Step | None = None,
        dies_at: int | None = None,
        everywhere: bool = False,
    ) -> Migration:
        """Create a move whose calls to the new store are steps until the copy; with ``everywhere``, all its calls are
        steps."""

        def on_step(step: Step, detail: str) -> None:
            if step is fails_at:
                raise ConnectionError("the network card burns")
            if step is Step.COPY and not everywhere:
                target.steps = None

        store = await find_store(self.url, self.backend_at)
        target = SteppedBackend(self.stores[NEW], who or self.name)
        self.clients.append(target)
        await target.open()
        target.steps = steps

        async def before(step: int) -> None:
            if step == dies_at:
                await target.close()
                await store.close()

        target.before = before
        session = await store.open_session(TTL_MS)
        if everywhere:
            assert isinstance(store.backend, SteppedBackend)
            store.backend.who, store.backend.steps = target.who, steps
        return Migration(store, session, target, NEW, move=move, members=nobody, on_step=on_step, rng=Random(1))

    async def move_there_and_back(self) -> None:
        """Move the cluster to the new store and back, so that the new store is one that the cluster has left."""
        await (await self.migration("there", None)).run()
        store = await find_store(self.url, self.backend_at)
        target = await self.backend_at(self.url)
        await target.open()
        session = await store.open_session(TTL_MS)
        await Migration(
            store,
            session,
            target,
            self.url,
            move="back",
            members=nobody,
            on_step=lambda *_: None,
            rng=Random(1),
        ).run()

    async def state(self) -> tuple[StoreRecord, dict[str, bytes]]:
        """Return the record and the content of the cluster's own store."""
        return await state_of(self.stores[self.url])

    async def close(self) -> None:
        for client in self.clients:
            client.steps = None
            await client.close()


async def state_of(store: MemoryStore) -> tuple[StoreRecord, dict[str, bytes]]:
    async with MemoryBackend(store) as client:
        found = {key: value.partition(b"\n")[2] for key, value in (await content(client)).items()}
        return (await read_record(client))[0], found


async def new_store(begun: bool) -> MemoryStore:
    """Return an empty store. With ``begun``, a cluster has started to use it but not written anything yet."""
    store = MemoryStore()
    if begun:
        async with MemoryBackend(store) as client:
            await write_record(Writer(client), NO_RECORD, StoreEvent.BEGIN, StoreRecord())
    return store


class Beginner:
    """A cluster that starts in the new store."""

    def __init__(self, store: MemoryStore, others: Cluster) -> None:
        self._stores = {NEW: store, others.url: others.stores[others.url]}
        self.written: dict[str, bytes] = {}
        self.has_moved = False
        self._clients: list[SteppedBackend] = []
        self._steps: Steps | None = None

    async def _backend_at(self, url: str) -> Backend:
        client = SteppedBackend(self._stores[url], "beginner")
        client.steps = self._steps
        self._clients.append(client)
        return client

    async def run(self, steps: Steps) -> None:
        """Find the store and write to it, until it turns out that the store belongs to another cluster."""
        self._steps = steps
        try:
            store = await find_store(NEW, self._backend_at)
            if store.url != NEW or (await state_of(self._stores[NEW]))[0].term:
                self.has_moved = True
                return
            for at in range(2):
                await KeyValue(store).put(f"mine-{at}", b"")
                self.written[f"data/mine-{at}"] = b""
        except Moved:
            self.has_moved = True

    async def close(self) -> None:
        for client in self._clients:
            client.steps = None
            await client.close()


async def moved(migration: Migration) -> bool:
    try:
        await migration.run()
    except (CannotMove, Closed):
        return False
    return True


@pytest.mark.parametrize("fails_at", [None, Step.CONNECT])
@pytest.mark.parametrize("begun", [False, True])
@pytest.mark.slow
async def test_a_cluster_that_begins_in_a_store_and_one_that_moves_there(begun: bool, fails_at: Step | None) -> None:
    ends = set()
    choices: list[int] = []
    for order in every_order(lambda: choices):  # noqa: B023
        store = await new_store(begun)
        cluster = Cluster("mover", store)
        await cluster.begin()
        beginner = Beginner(store, cluster)
        steps = Steps(order)
        migration = await cluster.migration("m", steps, fails_at=fails_at)
        has_moved: list[bool] = []

        async def move() -> None:
            has_moved.append(await moved(migration))  # noqa: B023

        await steps.run(move(), beginner.run(steps))
        choices = steps.choices
        await beginner.close()
        await cluster.close()
        ends.add((has_moved[0], beginner.has_moved))
        there, found = await state_of(store)
        record, kept = await cluster.state()
        assert kept == {"data/of": b"mover"}
        if has_moved[0]:
            assert (record.state, there.state) == (StoreState.MOVED, StoreState.IN_CHARGE), steps.taken
            assert found == kept, steps.taken
            assert beginner.has_moved, steps.taken
            assert not beginner.written, steps.taken
        else:
            assert record.state is StoreState.IN_CHARGE, steps.taken
            assert (there.state, there.other) == (StoreState.IN_CHARGE, None), steps.taken
            assert found == beginner.written, steps.taken
            assert len(beginner.written) == 2 or (beginner.has_moved and not beginner.written), steps.taken
    expected = {(False, False), (False, True)} if fails_at else {(False, False), (True, True)}
    assert ends == expected


@pytest.mark.parametrize("begun", [False, True])
@pytest.mark.slow
async def test_two_clusters_that_move_to_the_same_store(begun: bool) -> None:
    ends = set()
    choices: list[int] = []
    for order in every_order(lambda: choices):  # noqa: B023
        store = await new_store(begun)
        clusters = [Cluster("one", store), Cluster("two", store)]
        steps = Steps(order)
        results: dict[str, bool] = {}

        async def move(cluster: Cluster, migration: Migration) -> None:
            results[cluster.name] = await moved(migration)  # noqa: B023

        for each in clusters:
            await each.begin()
        await steps.run(*[move(each, await each.migration(each.name, steps)) for each in clusters])
        choices = steps.choices
        for each in clusters:
            await each.close()
        assert sum(results.values()) <= 1, steps.taken
        there, found = await state_of(store)
        assert there.state is StoreState.IN_CHARGE
        assert list(found.values()) == [name.encode() for name, won in results.items() if won], steps.taken
        for each in clusters:
            record, kept = await each.state()
            assert record.state is (StoreState.MOVED if results[each.name] else StoreState.IN_CHARGE), steps.taken
            assert kept == {"data/of": each.name.encode()}
        ends.add(tuple(sorted(results.items())))
    assert (("one", True), ("two", False)) in ends
    assert (("one", False), ("two", True)) in ends


@pytest.mark.parametrize("begun", [False, True])
@pytest.mark.parametrize("death", range(9))
@pytest.mark.slow
async def test_a_claimant_that_dies_at_any_step_blocks_no_writer(begun: bool, death: int) -> None:
    choices: list[int] = []
    for order in every_order(lambda: choices):  # noqa: B023
        store = await new_store(begun)
        cluster = Cluster("mover", store)
        await cluster.begin()
        beginner = Beginner(store, cluster)
        steps = Steps(order)
        migration = await cluster.migration("m", steps, dies_at=death)
        await steps.run(moved(migration), beginner.run(steps))
        choices = steps.choices
        await beginner.close()
        await cluster.close()
        there, found = await state_of(store)
        if (await cluster.state())[0].state is StoreState.MOVED:  # it has survived
            continue
        assert found == beginner.written, steps.taken
        if there.state is StoreState.CLAIMED:  # the pointers to a store in charge
            assert not beginner.written
            assert there.other == StoreLocation(cluster.url, cluster.stores[cluster.url].identity)
            continue
        assert there.state in (StoreState.IN_CHARGE, StoreState.FROZEN), steps.taken
        assert len(found) == 2, steps.taken
        async with MemoryBackend(store) as client:
            await KeyValue(StoreInCharge(client, NEW)).put("after", b"")


class Late(MemoryBackend):
    """A client whose next transaction is in flight until the test lets it arrive, even if its caller has given up."""

    def __init__(self, store: MemoryStore) -> None:
        super().__init__(store)
        self.is_slow = False
        self.in_time = 0
        """The number of transactions that pass before the slow one."""
        self.is_given_up = False
        """True if the client gives up waiting, so that it does not know the outcome."""
        self.is_on_its_way = asyncio.Event()
        self._sent: tuple[Sequence[Check], Sequence[Op]] = ((), ())

    async def txn(self, checks: Sequence[Check], ops: Sequence[Op]) -> TxnResult:
        self.in_time -= self.is_slow
        if not self.is_slow or self.in_time >= 0:
            return await super().txn(checks, ops)
        self.is_slow = False
        self._sent = checks, ops
        self.is_on_its_way.set()
        if self.is_given_up:
            raise MaybeApplied("no response")
        await asyncio.Event().wait()
        raise AssertionError

    def arrive(self) -> None:
        self.store.apply(*self._sent)


async def migration_of(
    client: MemoryBackend, new: MemoryBackend, move: str, on_step: Callable[[Step, str], None] = lambda *_: None
) -> Migration:
    await client.open()
    await new.open()
    store = StoreInCharge(client, "memory://old")
    session = await client.open_session(TTL_MS)
    return Migration(store, session, new, NEW, move=move, members=nobody, on_step=on_step, rng=Random(1))


async def prepared_late() -> tuple[Late, asyncio.Task[None], MemoryStore]:
    """Start a move whose first write is in flight."""
    old, new = MemoryStore(), MemoryStore()
    slow = Late(old)
    migration = await migration_of(slow, MemoryBackend(new), "late")
    await KeyValue(StoreInCharge(slow, "memory://old")).put("k", b"1")
    slow.is_slow = True
    moving = asyncio.ensure_future(migration.run())
    await slow.is_on_its_way.wait()
    return slow, moving, new


async def test_a_prepare_that_is_given_up_no_longer_arrives() -> None:
    slow, moving, _ = await prepared_late()
    moving.cancel()
    with pytest.raises(asyncio.CancelledError):
        await moving
    with pytest.raises(PreconditionFailed):
        slow.arrive()
    assert (await read_record(slow))[0].state is StoreState.IN_CHARGE
    await slow.close()


async def test_a_prepare_that_arrives_when_its_driver_has_died_does_not_hinder_the_next() -> None:
    slow, moving, new = await prepared_late()
    other, target = MemoryBackend(slow.store), MemoryBackend(new)
    migration = await migration_of(other, target, "next")
    assert not await abandon_left_over(StoreInCharge(other, "memory://old"), "by the next controller")
    slow.arrive()
    assert (await read_record(other))[0].state is StoreState.PREPARING
    await migration.run()
    assert (await read_record(other))[0].state is StoreState.MOVED
    assert (await read_record(target))[0].state is StoreState.IN_CHARGE
    moving.cancel()
    with suppress(asyncio.CancelledError):
        await moving
    for client in (slow, other, target):
        await client.close()


@pytest.mark.parametrize("is_sent_again", [False, True])
@pytest.mark.parametrize(("begun", "in_time"), [(False, 0), (True, 0), (True, 1)], ids=["claim", "hold", "held claim"])
async def test_a_claim_that_is_given_up_no_longer_arrives(begun: bool, in_time: int, is_sent_again: bool) -> None:
    """This holds for a claim that was never seen, and for one that was sent again, applied, and released."""

    def on_step(step: Step, detail: str) -> None:
        if step is Step.CONNECT:
            raise ConnectionError("the network card burns")

    store = await new_store(begun)
    old, slow = MemoryBackend(MemoryStore()), Late(store)
    migration = await migration_of(old, slow, "late", on_step)
    slow.is_slow, slow.in_time, slow.is_given_up = True, in_time, is_sent_again
    moving = asyncio.ensure_future(migration.run())
    await slow.is_on_its_way.wait()
    if not is_sent_again:
        moving.cancel()
    with pytest.raises(CannotMove if is_sent_again else asyncio.CancelledError):
        await moving
    with pytest.raises((PreconditionFailed, SessionLost)):
        slow.arrive()
    assert await state_of(store) == (StoreRecord(), {})
    await KeyValue(StoreInCharge(slow, NEW)).put("k", b"of a cluster that begins there")
    await slow.close()
    await old.close()


async def test_a_claim_is_given_up_as_soon_as_its_store_responds_again() -> None:
    store = await new_store(False)
    old, slow = MemoryBackend(MemoryStore()), Late(store)
    migration = await migration_of(old, slow, "late")
    slow.is_slow = True
    moving = asyncio.ensure_future(migration.run())
    await slow.is_on_its_way.wait()
    slow.disconnect()
    moving.cancel()
    await asyncio.wait({moving}, timeout=0.05)
    slow.reconnect()
    with pytest.raises(asyncio.CancelledError):
        await moving
    with pytest.raises(PreconditionFailed):
        slow.arrive()
    await slow.close()
    await old.close()


@pytest.mark.parametrize("has_moved_before", [False, True])
@pytest.mark.parametrize("sleeps", range(0, 12, 2))
async def test_a_driver_that_sleeps_through_a_later_move_takes_nothing_away(
    sleeps: int, has_moved_before: bool
) -> None:
    """Two drivers of one cluster: the earlier driver sleeps, and wakes up before any step of either driver."""
    for wakes in range(40):
        cluster = Cluster("mover", MemoryStore())
        await cluster.begin()
        if has_moved_before:
            await cluster.move_there_and_back()
        steps = Steps([1] * sleeps + [0] * wakes + [1] * 100)
        early = await cluster.migration("early", steps, who="z-early", everywhere=True)
        late = await cluster.migration("late", steps, who="late", everywhere=True)
        await steps.run(moved(early), moved(late))
        await cluster.close()
        there, found = await state_of(cluster.stores[NEW])
        record, kept = await cluster.state()
        assert kept == {"data/of": b"mover"}
        if record.state is StoreState.MOVED:
            assert (there.state, there.move) == (StoreState.IN_CHARGE, record.move), steps.taken
            assert found == kept, steps.taken
        else:  # one driver woke up after the other had begun, and both gave up
            assert record.state is StoreState.IN_CHARGE, steps.taken
            assert there.state not in IN_CHARGE_STATES or not found, steps.taken


async def test_a_store_that_is_held_by_a_claimant_is_not_claimed_by_another() -> None:
    store = await new_store(begun=True)
    one = MemoryBackend(store)
    await one.open()
    session = await one.open_session(TTL_MS)
    stored = await read_record(one)
    await write_record(Writer(one), stored, StoreEvent.FREEZE, stored.record.frozen(), Put(DRIVER_KEY, b"", session))
    cluster = Cluster("mover", store)
    await cluster.begin()
    with pytest.raises(CannotMove, match="another move is about to fill this store"):
        await (await cluster.migration("m", None)).run()
    await session.close()
    await (await cluster.migration("m", None)).run()
    assert (await one.get(RECORD_KEY)) is not None
    assert (await read_record(one))[0].state is StoreState.IN_CHARGE
    await one.close()
    await cluster.close()
