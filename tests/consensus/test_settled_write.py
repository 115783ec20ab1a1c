"""Lost responses: what the recipes do after MaybeApplied and Unavailable."""

from __future__ import annotations

import asyncio
import itertools
import random
from collections.abc import Callable, Sequence
from functools import partial

import pytest

from parley.consensus.backend import ABSENT, At, Check, Delete, Entry, Op, Put, Revision, TxnResult
from parley.consensus.errors import BadConfig, Conflict, Fenced, MaybeApplied, Unavailable
from parley.consensus.memory import MemoryBackend, MemoryStore
from parley.consensus.recipes.keyvalue import KeyValue
from parley.consensus.recipes.settled_write import Writer, unwrap, wrap
from tests.support.virtual_time import run


class Faulty(MemoryBackend):
    """Follows a script with one letter for each write; after its end, every write succeeds.

    A: applied, response lost; L: request lost; U: unavailable; ``.``: no fault.
    """

    def __init__(self, store: MemoryStore, script: str = "") -> None:
        super().__init__(store)
        self.script = list(script)
        self.reads_fail = 0
        self.before_answer: Callable[[], object] = lambda: None

    async def txn(self, checks: Sequence[Check], ops: Sequence[Op]) -> TxnResult:
        fault = self.script.pop(0) if self.script else "."
        if fault == "U":
            raise Unavailable("scripted")
        if fault in "AL":
            self.lose_next_response(applied=fault == "A")
        try:
            return await super().txn(checks, ops)
        except MaybeApplied:
            self.before_answer()
            raise

    async def get(self, key: str, **options: object) -> Entry | None:
        if self.reads_fail:
            self.reads_fail -= 1
            raise Unavailable("scripted")
        return await super().get(key)


async def faulty(script: str = "", store: MemoryStore | None = None) -> Faulty:
    backend = Faulty(store or MemoryStore(), script)
    await backend.open()
    return backend


async def current(backend: MemoryBackend, key: str) -> bytes | None:
    entry = await backend.get(key)
    return unwrap(entry).value if entry else None


def test_the_envelope_is_readable_and_comes_back() -> None:
    stored = wrap(b"a\nb", ("0123456789abcdef",))
    assert stored == b"1 0123456789abcdef\na\nb"
    assert unwrap(Entry("k", stored, Revision(1))).value == b"a\nb"
    many = tuple(f"{n:016x}" for n in range(99))
    assert unwrap(Entry("k", wrap(b"", many), Revision(1))).nonces == many[:16]


@pytest.mark.parametrize(
    "foreign", [b"", b"hello", b"hello\nworld", b"0 00\nx", b"2 00\nx", b"1 " + b"0" * 272 + b"\n"]
)
def test_foreign_values_are_refused(foreign: bytes) -> None:
    with pytest.raises(BadConfig, match="another program"):
        unwrap(Entry("k", foreign, Revision(1)))


@pytest.mark.parametrize("script", ["A", "L", "LA", "LL", "LUA", "LUL", "LULULU"])
@pytest.mark.parametrize("reads_fail", [0, 3])
async def test_a_lost_response_is_settled(script: str, reads_fail: int) -> None:
    backend = await faulty(script)
    backend.reads_fail = reads_fail
    result = await Writer(backend).commit([Check("a", ABSENT)], [Put("a", b"1"), Put("b", b"2")])
    entry = await backend.get("a")
    assert entry is not None
    assert result.revisions[0] == entry.revision
    assert await current(backend, "b") == b"2"


async def test_unavailable_is_passed_on_when_nothing_was_sent() -> None:
    backend = await faulty("U")
    with pytest.raises(Unavailable):
        await Writer(backend).commit([], [Put("a", b"1")])
    assert await backend.get("a") is None


@pytest.mark.parametrize("script", ["A", "L"])
async def test_deletes_are_settled_by_reading_back(script: str) -> None:
    backend = await faulty()
    revision = await backend.put("a", b"")
    backend.script = list(script)
    await Writer(backend).commit([Check("a", At(revision))], [Delete("a")])
    assert await backend.get("a") is None


@pytest.mark.parametrize("script", ["A", "L"])
async def test_a_transaction_of_checks_only_is_sent_again(script: str) -> None:
    backend = await faulty(script)
    await Writer(backend).commit([Check("a", ABSENT)], [])


async def test_settling_gives_up_after_a_while() -> None:
    backend = await faulty("L")
    backend.reads_fail = 10_000
    with pytest.raises(MaybeApplied, match="not settled"):
        await Writer(backend, settle_s=0.05).commit([], [Put("a", b"1")])


class AlwaysOne(random.Random):
    """A random source that makes all pauses as long as possible."""

    def random(self) -> float:
        return 1.0


def test_settling_takes_half_a_minute_if_nothing_else_is_asked_for() -> None:
    async def settle() -> float:
        backend = await faulty("L")
        backend.reads_fail = 10_000
        began = asyncio.get_running_loop().time()
        with pytest.raises(MaybeApplied, match="not settled"):
            await Writer(backend, AlwaysOne()).commit([], [Put("a", b"1")])
        return asyncio.get_running_loop().time() - began

    assert run(settle()) == pytest.approx(30, abs=0.3)


def test_pauses_double_from_a_millisecond_to_a_quarter_of_a_second() -> None:
    async def pauses() -> list[float]:
        writer, times = Writer(MemoryBackend(MemoryStore()), AlwaysOne()), []
        for attempt in range(12):
            times.append(asyncio.get_running_loop().time())
            await writer.pause(attempt)
        return [after - before for before, after in itertools.pairwise([*times, asyncio.get_running_loop().time()])]

    doubled = [0.001, 0.002, 0.004, 0.008, 0.016, 0.032, 0.064, 0.128]
    assert run(pauses()) == pytest.approx([*doubled, 0.25, 0.25, 0.25, 0.25])


def test_a_write_is_settled_soon_after_the_store_can_be_read_again() -> None:
    async def settle() -> float:
        backend = await faulty("A")
        backend.reads_fail = 3
        began = asyncio.get_running_loop().time()
        await Writer(backend, AlwaysOne()).commit([], [Put("a", b"1")])
        return asyncio.get_running_loop().time() - began

    assert run(settle()) == pytest.approx(0.001 + 0.002 + 0.004)


async def test_a_nonce_has_64_random_bits() -> None:
    class AllBits(random.Random):
        def getrandbits(self, k: int, /) -> int:
            return (1 << k) - 1

    backend = await faulty()
    await Writer(backend, AllBits()).commit([], [Put("a", b"1")])
    entry = await backend.get("a")
    assert entry is not None
    assert unwrap(entry).nonces == ("f" * 16,)


async def test_a_write_among_too_many_later_ones_cannot_be_settled() -> None:
    """The later writes have displaced its nonce from the value, so nothing shows whether it was applied."""
    store = MemoryStore()
    kv = KeyValue(await faulty(".L", store))
    await kv.next_id("n")

    def compete() -> None:
        store.apply([], [Put("data/n", wrap(b"99", tuple(f"{number:016x}" for number in range(16))))])

    backend = kv._backend
    assert isinstance(backend, Faulty)
    backend.before_answer = compete
    with pytest.raises(MaybeApplied, match="other clients have written"):
        await kv.next_id("n")


async def test_an_overwritten_value_cannot_be_settled() -> None:
    store = MemoryStore()
    backend, other = await faulty("A", store), await faulty("", store)

    def overwrite() -> None:
        entry = store.get("a")
        assert entry is not None
        store.apply([], [Put("a", wrap(b"other", ("ff",)))])

    backend.before_answer = overwrite
    with pytest.raises(MaybeApplied, match="other clients have written"):
        await Writer(backend).commit([Check("a", ABSENT)], [Put("a", b"mine")])
    assert await current(other, "a") == b"other"


async def test_a_write_under_a_lost_guard_is_fenced() -> None:
    store = MemoryStore()
    backend = await faulty("", store)
    leader = await backend.put("leader", b"")
    backend.script = ["L"]
    backend.before_answer = partial(store.apply, [], [Delete("leader")])
    with pytest.raises(Fenced):
        await Writer(backend).commit([Check("leader", At(leader), fences=True)], [Put("a", b"1")])


@pytest.mark.parametrize("fault", ["A", "L"])
@pytest.mark.parametrize("others", [1, 5, 14])
async def test_update_knows_its_nonce_among_later_writes(fault: str, others: int) -> None:
    store = MemoryStore()
    kv, other = KeyValue(await faulty(f".{fault}", store)), KeyValue(await faulty("", store))
    backend = kv._backend
    assert isinstance(backend, Faulty)
    assert await kv.next_id("n") == 0
    competing: list[asyncio.Task[int]] = []

    def compete() -> None:
        for _ in range(others):
            entry = store.get("data/n")
            assert entry is not None
            old = unwrap(entry)
            nonce = f"{random.Random(len(competing)).getrandbits(64):016x}"
            competing.append(None)  # type: ignore[arg-type]
            store.apply([], [Put("data/n", wrap(b"%d" % (int(old.value) + 1), (nonce, *old.nonces)))])

    backend.before_answer = compete
    await kv.next_id("n")
    assert await other.next_id("n") == 2 + others  # every increment counted once


async def test_a_settled_update_of_a_known_value_returns_the_stored_revision() -> None:
    """The envelope then also contains the nonces of earlier writes, behind the nonce of this one."""
    kv = KeyValue(await faulty(".A"))
    await kv.update("n", lambda _: b"1")
    assert await kv.update("n", lambda _: b"2") == await kv.get("n")


async def test_increments_are_exact_under_random_faults() -> None:
    rng = random.Random(11)
    store = MemoryStore()
    await KeyValue(await faulty("", store)).next_id("n")

    async def increment(times: int) -> None:
        backend = await faulty("".join(rng.choice("AL....") for _ in range(200)), store)
        backend.delay_s = lambda: rng.random() * 0.0005
        kv = KeyValue(backend, rng)
        for _ in range(times):
            await kv.update("n", lambda value: b"%d" % (int(value or 0) + 1))

    await asyncio.gather(*(increment(25) for _ in range(6)))
    entry = await KeyValue(await faulty("", store)).get("n")
    assert entry is not None
    assert int(entry.value) == 1 + 6 * 25


async def test_a_conflict_of_another_client_is_passed_on() -> None:
    store = MemoryStore()
    backend = await faulty("", store)
    kv = KeyValue(backend)
    await kv.update("n", lambda _: b"1")
    stored = await backend.get("data/n")
    assert stored is not None
    nonces = unwrap(stored).nonces

    def compete() -> None:
        store.apply([], [Put("data/n", wrap(b"2", ("ee", *nonces)))])

    backend.script = ["L"]
    backend.before_answer = compete
    with pytest.raises(Conflict):
        await Writer(backend).commit(
            [Check("data/n", At(stored.revision))], [Put("data/n", b"3")], replaced={"data/n": nonces}
        )


class FailsTheReadAfterAConflict(Faulty):
    """A store that is unavailable for one read after each of the first few writes that it refuses."""

    conflicts = 0
    failures = 1

    async def txn(self, checks: Sequence[Check], ops: Sequence[Op]) -> TxnResult:
        try:
            return await super().txn(checks, ops)
        except Conflict:
            self.conflicts += 1
            self.reads_fail = 1 if self.conflicts <= self.failures else 0
            raise


async def test_a_refused_write_is_judged_again_if_the_store_was_unavailable_meanwhile() -> None:
    store = MemoryStore()
    backend = FailsTheReadAfterAConflict(store)
    await backend.open()
    revision = await backend.put("a", wrap(b"1", ("aa",)))
    backend.script = ["L"]
    backend.before_answer = partial(store.apply, [], [Put("a", wrap(b"2", ("ee", "aa")))])
    with pytest.raises(Conflict):
        await Writer(backend).commit([Check("a", At(revision))], [Put("a", b"3")], replaced={"a": ("aa",)})
    assert backend.conflicts == 2


def test_the_pauses_before_a_refused_write_is_judged_again_grow() -> None:
    async def judge() -> float:
        store = MemoryStore()
        backend = FailsTheReadAfterAConflict(store)
        backend.failures = 3
        await backend.open()
        revision = await backend.put("a", wrap(b"1", ("aa",)))
        backend.script = ["L"]
        backend.before_answer = partial(store.apply, [], [Put("a", wrap(b"2", ("ee", "aa")))])
        began = asyncio.get_running_loop().time()
        with pytest.raises(Conflict):
            await Writer(backend, AlwaysOne()).commit(
                [Check("a", At(revision))], [Put("a", b"3")], replaced={"a": ("aa",)}
            )
        return asyncio.get_running_loop().time() - began

    assert run(judge()) == pytest.approx(0.001 + 0.002 + 0.004)
