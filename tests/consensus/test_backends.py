"""The behavior that all stores have in common. The conformance kit tests it in more depth."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

from parley.consensus.backend import (
    ABSENT,
    PRESENT,
    At,
    Backend,
    Changed,
    Check,
    Delete,
    Op,
    Put,
    Removed,
    Revision,
    Snapshot,
    Watch,
)
from parley.consensus.errors import (
    AlreadyExists,
    Closed,
    Conflict,
    Fenced,
    NotFound,
    SessionLost,
    TooLarge,
    TooManyOps,
)
from parley.consensus.session import SessionState

if TYPE_CHECKING:
    from tests.consensus.conftest import Connect


async def test_absence_is_a_value(backend: Backend) -> None:
    assert await backend.get("a") is None
    assert await backend.delete("a") is False
    page = await backend.list("", limit=10)
    assert page.entries == ()
    assert page.next_after is None


async def test_put_get_delete(backend: Backend) -> None:
    revision = await backend.put("a/b", b"1")
    entry = await backend.get("a/b")
    assert entry is not None
    assert (entry.key, entry.value, entry.revision, entry.session) == ("a/b", b"1", revision, None)
    assert await backend.delete("a/b") is True
    assert await backend.get("a/b") is None


async def test_expectations(backend: Backend) -> None:
    with pytest.raises(NotFound):
        await backend.put("a", b"", expect=PRESENT)
    with pytest.raises(Conflict):
        await backend.put("a", b"", expect=At(Revision(1)))
    with pytest.raises(NotFound):
        await backend.delete("a", expect=PRESENT)
    first = await backend.put("a", b"1", expect=ABSENT)
    with pytest.raises(AlreadyExists) as caught:
        await backend.put("a", b"2", expect=ABSENT)
    assert caught.value.key == "a"
    second = await backend.put("a", b"2", expect=At(first))
    with pytest.raises(Conflict):
        await backend.delete("a", expect=At(first))
    assert await backend.delete("a", expect=At(second)) is True
    with pytest.raises(Conflict):
        await backend.delete("a", expect=At(second))
    with pytest.raises(ValueError, match="ABSENT"):
        await backend.delete("a", expect=ABSENT)


async def test_a_recreated_key_has_a_new_revision(backend: Backend) -> None:
    seen = set()
    for _ in range(5):
        seen.add(await backend.put("a", b"same"))
        await backend.delete("a")
    assert len(seen) == 5


async def test_a_revision_of_another_store_never_matches(backend: Backend) -> None:
    await backend.put("a", b"")
    with pytest.raises(Conflict):
        await backend.put("a", b"", expect=At(Revision(("zxid", 1))))


async def test_transactions_apply_all_or_nothing(backend: Backend) -> None:
    a = await backend.put("a", b"1")
    await backend.put("c", b"1")
    result = await backend.txn([Check("a", At(a)), Check("b", ABSENT)], [Put("a", b"2"), Put("b", b"2"), Delete("c")])
    assert [(entry.key, entry.value) for entry in (await backend.list("", limit=9)).entries] == [
        ("a", b"2"),
        ("b", b"2"),
    ]
    entry = await backend.get("b")
    assert entry is not None
    assert result.revisions[1] == entry.revision
    assert result.revisions[2] is None
    with pytest.raises(Conflict):
        await backend.txn([Check("a", At(a))], [Put("z", b""), Delete("b")])
    assert len((await backend.list("", limit=9)).entries) == 2


async def test_the_first_failing_check_is_reported_and_guards_fence(backend: Backend) -> None:
    await backend.put("a", b"")
    with pytest.raises(AlreadyExists) as exists:
        await backend.txn([Check("b", ABSENT), Check("a", ABSENT), Check("c", PRESENT)], [])
    assert exists.value.key == "a"
    with pytest.raises(Fenced) as fenced:
        await backend.txn([Check("g", PRESENT, fences=True), Check("a", ABSENT)], [Put("x", b"")])
    assert fenced.value.key == "g"
    assert await backend.get("x") is None


async def test_illegal_calls_are_programming_errors(backend: Backend) -> None:
    for call in (
        backend.get("/a"),
        backend.put("", b""),
        backend.txn([], [Put("a", b""), Delete("a")]),
        backend.list("", limit=0),
    ):
        with pytest.raises(ValueError, match=r"key|limit"):
            await call


async def test_limits(backend: Backend) -> None:
    limits = backend.capabilities
    await backend.put("k", b"x" * limits.value_bytes_max)
    with pytest.raises(TooLarge) as large:
        await backend.put("k", b"x" * (limits.value_bytes_max + 1))
    assert (large.value.size, large.value.limit) == (limits.value_bytes_max + 1, limits.value_bytes_max)
    with pytest.raises(TooLarge):
        await backend.get("k" * (limits.key_bytes_max + 1))
    ops: list[Op] = [Put(f"t/{n}", b"") for n in range(limits.txn_ops_max + 1)]
    with pytest.raises(TooManyOps):
        await backend.txn([], ops)
    await backend.txn([], ops[:-1])
    half = limits.txn_bytes_max // 8
    with pytest.raises(TooLarge):
        await backend.txn([], [Put(f"u/{n}", b"x" * min(half, limits.value_bytes_max)) for n in range(9)])


async def test_listing_is_bytewise_and_paged(backend: Backend) -> None:
    keys = sorted({f"p/{n:x}" for n in range(150)} | {"p", "p-", "p/~", "p/A", "q"})
    step = backend.capabilities.txn_ops_max
    for start in range(0, len(keys), step):
        await backend.txn([], [Put(key, key.encode()) for key in keys[start : start + step]])
    found, after, pages = [], None, 0
    while True:
        page = await backend.list("p/", limit=40, after=after)
        found += [entry.key for entry in page.entries]
        pages += 1
        if (after := page.next_after) is None:
            break
    assert found == [key for key in keys if key.startswith("p/")]
    assert pages == 4
    exact = await backend.list("p/", limit=len(found))
    assert exact.next_after is None


async def test_a_session_carries_its_keys(connect: Connect) -> None:
    one, two = await connect(), await connect()
    session = await one.open_session(10_000)
    await one.put("a", b"1", session=session)
    await one.put("stays", b"1")
    entry = await two.get("a")
    assert entry is not None
    assert entry.session == session.id
    await session.close()
    assert session.state is SessionState.LOST
    assert await two.get("a") is None
    assert await two.get("stays") is not None
    with pytest.raises(SessionLost):
        await one.put("a", b"1", session=session)
    await session.close()


async def test_the_last_put_decides_the_session_of_a_key(connect: Connect) -> None:
    one, two = await connect(), await connect()
    first, second = await one.open_session(10_000), await two.open_session(10_000)
    for key in ("freed", "taken"):
        await one.put(key, b"", session=first)
    await two.put("freed", b"")
    await two.put("taken", b"", session=second)
    await first.close()
    assert [entry.key for entry in (await two.list("", limit=9)).entries] == ["freed", "taken"]
    await second.close()
    assert [entry.key for entry in (await two.list("", limit=9)).entries] == ["freed"]


async def test_closing_a_backend_ends_its_sessions_watches_and_calls(connect: Connect) -> None:
    one, two = await connect(), await connect()
    session = await one.open_session(10_000)
    await one.put("a", b"", session=session)
    watch = one.watch("")
    await anext(watch)
    waiting = asyncio.ensure_future(anext(watch))
    await asyncio.sleep(0)
    await one.close()
    with pytest.raises(Closed):
        await waiting
    with pytest.raises(StopAsyncIteration):
        await anext(watch)
    assert session.lost.is_set()
    assert await two.get("a") is None
    for call in (one.get("a"), one.put("a", b""), one.open_session(1000)):
        with pytest.raises(Closed):
            await call
    await one.close()


async def test_a_watch_starts_with_a_snapshot_and_then_reports_changes(connect: Connect) -> None:
    one, two = await connect(), await connect()
    await one.put("w/a", b"1")
    await one.put("other", b"1")
    async with two.watch("w/") as watch:
        snapshot = await anext(watch)
        assert isinstance(snapshot, Snapshot)
        assert [(entry.key, entry.value) for entry in snapshot.entries] == [("w/a", b"1")]
        revision = await one.put("w/b", b"2")
        changed = await anext(watch)
        assert isinstance(changed, Changed)
        assert (changed.entry.key, changed.entry.value, changed.entry.revision) == ("w/b", b"2", revision)
        await one.put("other", b"2")
        await one.delete("w/a")
        assert await anext(watch) == Removed("w/a")
        session = await one.open_session(10_000)
        await one.put("w/c", b"", session=session)
        assert isinstance(await anext(watch), Changed)
        await session.close()
        assert await anext(watch) == Removed("w/c")


@pytest.mark.parametrize("connect", ["memory", "local"], indirect=True)  # others may tell more
async def test_a_slow_watcher_gets_the_last_values_only(connect: Connect) -> None:
    one, two = await connect(), await connect()
    async with two.watch("w/") as watch:
        await anext(watch)
        for n in range(50):
            await one.put("w/a", b"%d" % n)
        await one.put("w/end", b"")
        values = []
        async for event in watch:
            assert isinstance(event, Changed)
            if event.entry.key == "w/end":
                break
            values.append(int(event.entry.value))
        assert values == sorted(values)
        assert values[-1] == 49
        assert len(values) < 50


@pytest.mark.parametrize("connect", ["memory", "local"], indirect=True)  # others may tell more
async def test_a_watcher_far_behind_gets_a_snapshot(backend: Backend) -> None:
    await backend.put("w/gone", b"")
    watch = backend.watch("w/")
    await anext(watch)
    await backend.delete("w/gone")
    await backend.put("w/here", b"")
    for round_ in range(25):  # more deletions than the store remembers
        keys = [f"x/{round_}/{n}" for n in range(1000)]
        await backend.txn([], [Put(key, b"") for key in keys])
        await backend.txn([], [Delete(key) for key in keys])
    event = await anext(watch)
    assert isinstance(event, Snapshot)
    assert [entry.key for entry in event.entries] == ["w/here"]
    await watch.close()


async def test_cancelling_loses_no_event(connect: Connect) -> None:
    one, two = await connect(), await connect()
    watch = two.watch("")
    await anext(watch)
    got: list[bytes] = []
    for n in range(30):
        await one.put("a", b"%d" % n)
        task = asyncio.ensure_future(anext(watch))
        for _ in range(n % 4):
            await asyncio.sleep(0)
        task.cancel()
        await asyncio.wait([task])
        if not task.cancelled():
            event = task.result()
            assert isinstance(event, Changed)
            got.append(event.entry.value)
    while not got or got[-1] != b"29":
        event = await anext(watch)
        assert isinstance(event, Changed)
        got.append(event.entry.value)
    await watch.close()


async def test_closing_a_watch_ends_it_once(backend: Backend) -> None:
    watch: Watch = backend.watch("")
    await anext(watch)
    waiting = asyncio.ensure_future(anext(watch))
    await asyncio.sleep(0.01)
    await watch.close()
    with pytest.raises(Closed):
        await waiting
    assert [event async for event in watch] == []


async def test_concurrent_clients_never_both_win(connect: Connect) -> None:
    clients = [await connect() for _ in range(3)]
    for round_ in range(20):
        results = await asyncio.gather(
            *(client.put(f"lock/{round_}", b"", expect=ABSENT) for client in clients), return_exceptions=True
        )
        assert sum(isinstance(result, Revision) for result in results) == 1


async def test_the_identity_is_kept_and_another_is_refused(connect: Connect) -> None:
    one, two = await connect(), await connect()
    assert one.identity == two.identity
    assert len(one.identity) == 32


async def test_sessions_of_an_abandoned_client_expire(backend: Backend, connect: Connect) -> None:
    other = await connect()
    session = await other.open_session(1500)
    await other.put("a", b"", session=session)
    async with backend.watch("a") as watch:
        await anext(watch)
        await other.abandon()
        assert session.state is SessionState.LOST
        assert isinstance(await anext(watch), Removed | Snapshot)
    assert await backend.get("a") is None
    with pytest.raises(Closed):
        await other.get("a")


async def test_servers_report_the_number_of_watches(connect: Connect) -> None:
    one = await connect()
    async with one.watch("a/") as first, one.watch("b/") as second:
        await anext(first)
        await anext(second)
        told = await one.watch_count()
        # The watches of one ZooKeeper client share one watch on the server. An embedded store has no count, and Consul
        # reports that from when the last query began.
        if (least := {"ZooKeeper": 1, "etcd": 2, "memory": 2}.get(one.capabilities.name)) is not None:
            while told.open is not None and told.open < least:  # a server may create a watch after its first entries
                told = await one.watch_count()
            assert told.open is not None
    assert told.source
