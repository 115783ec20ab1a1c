"""The ZooKeeper backend, beyond the tests of all stores: its tree, dead keys, renewal of sessions."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Iterator
from contextlib import suppress

import pytest

from parley.consensus.backend import Changed, Put, Removed, Snapshot
from parley.consensus.errors import BadConfig, SessionLost
from parley.consensus.zookeeper import ZookeeperBackend
from parley.consensus.zookeeper.address import parse
from parley.consensus.zookeeper.connection import synchronous_client
from parley.consensus.zookeeper.consistent_reads import Reader
from parley.consensus.zookeeper.key_layout import decode, encode, entries_made
from parley.consensus.zookeeper.multi_requests import Data, MultiRead
from tests.support.stores.zookeeper import TTL_MS_MIN, ZookeeperServers, zookeeper_servers

pytestmark = pytest.mark.system


@pytest.fixture(scope="module")
def servers() -> Iterator[ZookeeperServers]:
    with zookeeper_servers() as servers:
        yield servers


@pytest.mark.parametrize("session", [None, "0123456789abcdef"])
@pytest.mark.parametrize("value", [b"", b"\0", b"value"])
def test_values_carry_their_session(value: bytes, session: str | None) -> None:
    assert decode(encode(value, session)) == (value, session)


@pytest.mark.parametrize(("made", "removed"), [(0, 0), (1, 0), (5, 3), (1 << 30, 100), ((1 << 31) - 1, 7)])
def test_entries_are_counted_in_zookeepers_units(made: int, removed: int) -> None:
    children = made - removed
    cversion = 2 * made - children  # as the server reports it, in 32 bits
    signed = (cversion + (1 << 31)) % (1 << 32) - (1 << 31)
    assert entries_made(signed, children) == made


def test_a_request_for_several_reads() -> None:
    assert MultiRead([Data("/a")]).serialize().hex() == "0000000400ffffffff000000022f6100" + "ffffffff01ffffffff"


async def test_the_tree_is_below_the_chroot_and_sessions_leave_nothing(servers: ZookeeperServers) -> None:
    url = f"{servers.url}/tree/of"
    async with ZookeeperBackend.from_url(url) as client:
        session = await client.open_session(60_000)
        await client.txn([], [Put("a/b", b"", session), Put("a/c", b"")])
        await session.close()
        await _until_swept(url, ["a c"])
    with synchronous_client(parse(url, {}).endpoint) as tool:
        assert tool.get_children("/tree/of") == ["parley"]
        assert set(tool.get_children("/tree/of/parley")) == {"identity", "keys", "log", "sessions"}
        assert tool.get_children("/tree/of/parley/sessions") == []


async def _until_swept(url: str, names: list[str]) -> None:
    def left() -> list[str]:
        address = parse(url, {})
        with synchronous_client(address.endpoint) as tool:
            buckets = tool.get_children(f"{address.root}/keys")
            return [name for bucket in buckets for name in tool.get_children(f"{address.root}/keys/{bucket}")]

    async with asyncio.timeout(30):
        while await asyncio.to_thread(left) != names:  # noqa: ASYNC110
            await asyncio.sleep(0.05)


async def test_a_foreign_tree_is_refused(servers: ZookeeperServers) -> None:
    url = f"{servers.url}/foreign"
    with synchronous_client(parse(url, {}).endpoint) as tool:
        tool.create("/foreign/parley", b"1", makepath=True)
    with pytest.raises(BadConfig, match="not a Parley store"):
        await ZookeeperBackend.from_url(url).open()


@pytest.mark.parametrize(("level", "written"), [(logging.DEBUG, True), (logging.ERROR, False)])
async def test_kazoo_logs_at_the_level_set_and_never_the_data(
    servers: ZookeeperServers, caplog: pytest.LogCaptureFixture, level: int, written: bool
) -> None:
    with caplog.at_level(level):
        caplog.handler.setLevel(logging.NOTSET)
        async with ZookeeperBackend.from_url(f"{servers.url}/logged-{level}") as client:
            await client.put("a", b"a-secret")
    assert bool([record for record in caplog.records if record.name == "parley.consensus.zookeeper.client"]) == written
    assert "a-secret" not in caplog.text


async def test_a_key_added_while_a_range_is_read_displaces_no_other(
    servers: ZookeeperServers, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A key missing from the Snapshot would never be reported, because it does not change afterwards."""
    async with ZookeeperBackend.from_url(f"{servers.url}/added") as client:
        await client.put("g/2", b"")
        names, added = Reader.names, asyncio.Event()

        async def names_and_then_another(reader: Reader, *, fresh: bool) -> tuple[list[str], int]:
            found = await names(reader, fresh=fresh)
            if not added.is_set():
                added.set()
                await client.put("g/1", b"")
            return found

        monkeypatch.setattr(Reader, "names", names_and_then_another)
        async with client.watch("g/") as watch:
            snapshot = await anext(watch)
        assert isinstance(snapshot, Snapshot)
        assert [entry.key for entry in snapshot.entries] == ["g/1", "g/2"]


async def test_the_change_log_is_trimmed_and_a_watch_behind_it_gets_a_snapshot(servers: ZookeeperServers) -> None:
    url = f"{servers.url}/trimmed"
    async with ZookeeperBackend.from_url(url) as client:
        async with client.watch("a") as watch:
            assert isinstance(await anext(watch), Snapshot)
            for start in range(0, 1536, 64):
                await asyncio.gather(*(client.put("a", b"%d" % n) for n in range(start, start + 64)))
            last = await client.get("a")
            assert last is not None
            async with asyncio.timeout(30):
                while not (isinstance(event := await anext(watch), Changed) and event.entry.value == last.value):
                    pass
        with synchronous_client(parse(url, {}).endpoint) as tool:
            async with asyncio.timeout(30):
                while len(tool.get_children("/trimmed/parley/log")) > 1024 + 128 + 1:  # noqa: ASYNC110
                    await asyncio.sleep(0.05)


async def test_the_session_of_a_hanging_event_loop_expires(servers: ZookeeperServers) -> None:
    url = f"{servers.url}/hung"
    holding, hang = threading.Event(), threading.Event()

    async def hold() -> None:
        client = ZookeeperBackend.from_url(url)
        await client.open()
        while not holding.is_set():
            with suppress(SessionLost):  # on a machine that was paused for the session's whole timeout
                await client.put("held", b"", session=await client.open_session(TTL_MS_MIN))
                holding.set()
        hang.wait(60)
        await client.abandon()

    thread = threading.Thread(target=lambda: asyncio.run(hold()))
    async with ZookeeperBackend.from_url(url) as client, client.watch("held") as watch:
        thread.start()
        try:
            assert await asyncio.to_thread(holding.wait, 30)
            async with asyncio.timeout(30):
                while await anext(watch) != Removed("held"):
                    pass
        finally:
            hang.set()
            await asyncio.to_thread(thread.join)
