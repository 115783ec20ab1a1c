"""The etcd backend, beyond the tests of all stores: compaction, several servers, the outcome of refused writes."""

from __future__ import annotations

import asyncio
import os
import re
import shutil
import time
import urllib.request
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from email.utils import parsedate_to_datetime
from functools import partial
from pathlib import Path
from typing import TypeVar

import grpc
import pytest

from parley.consensus.backend import STALE, Changed, Entry, Event, Put, Removed, SessionState, Snapshot
from parley.consensus.errors import (
    BadConfig,
    CoordinationError,
    LimitExceeded,
    MaybeApplied,
    OlderStore,
    Retriable,
    SessionLost,
    Unauthorized,
    Unavailable,
    Unsupported,
    WrongStore,
)
from parley.consensus.etcd import EtcdBackend, etcd_pb2
from parley.consensus.etcd.address import parse
from parley.consensus.etcd.grpc_errors import Compacted, Fate, ResponseTooLarge, classify
from parley.consensus.etcd.grpc_methods import WATCH
from parley.consensus.etcd.server_connection import RequestFailed, ServerConnection
from tests.support.stores.etcd import EtcdServers, OwnEtcdHarness, etcd_servers

_T = TypeVar("_T")


@pytest.fixture(scope="module")
def server() -> Iterator[EtcdServers]:
    with etcd_servers() as servers:
        yield servers


@asynccontextmanager
async def harness_on(servers: EtcdServers) -> AsyncIterator[OwnEtcdHarness]:
    harness = OwnEtcdHarness(servers)
    await harness.start()
    try:
        yield harness
    finally:
        await harness.stop()


async def _until_answered(call: Callable[[], Awaitable[_T]]) -> _T:
    while True:
        try:
            return await call()
        except Retriable:
            await asyncio.sleep(0.05)


@pytest.mark.system
async def test_a_watch_continues_from_its_revision_and_after_compaction_with_a_snapshot(server: EtcdServers) -> None:
    async with harness_on(server) as harness:
        watching, writing = harness.client(), harness.client()
        await watching.open()
        await writing.open()
        watch = watching.watch("w/")
        assert await anext(watch) == Snapshot(())

        await harness.cut(watching)
        await writing.put("w/a", b"1")
        await writing.delete("w/a")
        await writing.put("w/b", b"1")
        await harness.restore(watching)
        events: list[Event] = [await anext(watch) for _ in range(3)]
        assert [type(event) for event in events] == [Changed, Removed, Changed], "nothing was missed"

        await harness.cut(watching)
        await writing.delete("w/b")
        revision = await writing.put("w/c", b"2")
        server.etcdctl("compact", str(revision.token))
        await harness.restore(watching)
        event = await anext(watch)
        assert isinstance(event, Snapshot)
        assert [entry.key for entry in event.entries] == ["w/c"]
        await watching.close()
        await writing.close()


@pytest.mark.system
async def test_deleting_the_whole_store_raises_wrong_store_and_reports_no_deletions(server: EtcdServers) -> None:
    async with harness_on(server) as harness:
        client = harness.client()
        await client.open()
        for n in range(5):
            await client.put(f"k/{n}", b"")
        session = await client.open_session(60_000)
        watch = client.watch("k/")
        await anext(watch)
        server.etcdctl("del", "--prefix", harness.address.prefix)
        with pytest.raises(WrongStore):
            await anext(watch)
        assert session.state is SessionState.LOST
        with pytest.raises(WrongStore):
            await client.get("k/1")
        await client.close()


@pytest.mark.system
async def test_a_store_put_back_to_an_older_state_is_refused_until_it_is_opened_again() -> None:
    with etcd_servers() as servers:
        async with EtcdBackend.from_url(f"{servers.url}/a") as client:
            data = servers.nodes[0].data
            backup = data.with_name("backup")
            await client.put("a", b"1")
            servers.kill()
            shutil.copytree(data, backup)
            servers.start()
            await _until_answered(lambda: client.put("a", b"2"))
            watch = client.watch("")
            await anext(watch)
            servers.kill()
            shutil.rmtree(data)
            backup.rename(data)
            servers.start()
            with pytest.raises(OlderStore, match="older state"):
                await _until_answered(lambda: client.get("a"))
            with pytest.raises(OlderStore):
                await anext(watch)
            with pytest.raises(OlderStore):
                await client.put("a", b"3")
        async with EtcdBackend.from_url(f"{servers.url}/a") as client:
            entry = await client.get("a")
            assert entry is not None
            assert entry.value == b"1"


async def test_a_stream_ends_with_its_connection_however_early() -> None:
    async with await asyncio.start_server(lambda reader, writer: None, "127.0.0.1", 0) as silent:
        address = "{}:{}".format(*silent.sockets[0].getsockname())
        link = ServerConnection(grpc.aio.insecure_channel(address), address)

        async def follow() -> None:
            async with link.stream(WATCH, etcd_pb2.WatchRequest()) as read:
                await read()

        following = asyncio.create_task(follow())
        await asyncio.sleep(0)
        await link.close()
        with pytest.raises(RequestFailed):
            await following


@pytest.mark.system
async def test_servers_that_are_away_are_passed_over(server: EtcdServers) -> None:
    there = server.url.removeprefix("etcd://")
    for _ in range(4):  # each client begins with a random server
        async with EtcdBackend.from_url(f"etcd://127.0.0.1:1,{there},[::1]:1/passed-over") as client:
            await client.put("a", b"")
    away = EtcdBackend.from_url("etcd://127.0.0.1:1")
    with pytest.raises(Unavailable, match=r"127\.0\.0\.1:1"):
        await away.open()
    await away.close()


@pytest.mark.system
async def test_a_server_with_lower_limits_is_refused_or_named_in_the_error() -> None:
    with etcd_servers(options=["--max-txn-ops=64"]) as servers, pytest.raises(Unsupported, match="max-txn-ops"):
        await EtcdBackend.from_url(servers.url).open()
    with etcd_servers(options=["--max-request-bytes=10000"]) as servers:
        async with EtcdBackend.from_url(servers.url) as client:
            with pytest.raises(LimitExceeded, match="max-request-bytes"):
                await client.put("a", bytes(20_000))
            assert await client.get("a") is None


@pytest.mark.system
async def test_a_full_database_leaves_a_write_in_doubt_and_allows_reads() -> None:
    with etcd_servers(options=[f"--quota-backend-bytes={1 << 20}"]) as servers:
        async with EtcdBackend.from_url(servers.url) as client:
            await client.put("a", b"1")
            with pytest.raises(MaybeApplied, match="defragment"):
                await asyncio.wait_for(_fill(client), 60)
            entry = await client.get("a")
            assert entry is not None
            assert entry.value == b"1"


async def _fill(client: EtcdBackend) -> None:
    while True:
        await client.put("big", bytes(100_000))


@pytest.mark.system
async def test_foreign_keys_are_not_taken_for_a_store(server: EtcdServers) -> None:
    server.etcdctl("put", "/other/data/key", "somebody's")
    with pytest.raises(BadConfig, match="no Parley store"):
        await EtcdBackend.from_url(f"{server.url}/other").open()


@pytest.mark.system
async def test_listings_larger_than_a_response_come_in_smaller_pages(server: EtcdServers) -> None:
    async with harness_on(server) as harness:
        client = harness.client()
        await client.open()
        for n in range(40):
            await client.put(f"big/{n:02}", bytes(1 << 20))
        page = await client.list("big/", limit=100)
        assert 0 < len(page.entries) < 40
        assert page.next_after == page.entries[-1].key
        event = await anext(client.watch("big/"))
        assert isinstance(event, Snapshot)
        assert len(event.entries) == 40
        await client.close()


@pytest.mark.system
@pytest.mark.skipif(
    "PARLEY_ETCD" in os.environ, reason="a server that is linked statically asks the kernel for the time"
)
def test_the_clock_that_tests_move_is_the_servers() -> None:
    with etcd_servers() as servers:
        for seconds in (3600, -3600, 0):
            servers.clock.move(seconds)
            with urllib.request.urlopen(f"http://{servers.hosts}/version") as answer:
                told = parsedate_to_datetime(answer.headers["Date"]).timestamp()
            assert abs(told - time.time() - seconds) < 60


@pytest.mark.slow
@pytest.mark.system
async def test_three_servers_go_on_without_their_leader() -> None:
    """Whether the leader is killed or stopped, sessions survive, watches continue, and confirmed writes remain."""
    with etcd_servers(3) as servers:
        async with EtcdBackend.from_url(servers.url) as client, EtcdBackend.from_url(servers.url) as other:
            session = await client.open_session(9_000)
            await client.put("bound", b"", session=session)
            watch = other.watch("n/")
            await anext(watch)
            faults: list[tuple[Callable[[int], None], Callable[[int], None]]] = [
                (servers.kill, servers.start),
                (servers.pause, servers.resume),
            ]
            for round_, (hurt, heal) in enumerate(faults):
                leader = servers.leader()
                await client.put(f"n/{round_}/before", b"")
                assert await anext(watch) == Changed(await _entry(other, f"n/{round_}/before"))
                hurt(leader)
                await _until_answered(partial(client.put, f"n/{round_}/after", b""))
                written = Changed(await _entry(other, f"n/{round_}/after"))
                while await asyncio.wait_for(anext(watch), 60) != written:
                    pass  # a put whose response was lost was repeated although it had been applied
                await _entry(other, f"n/{round_}/before")
                assert await other.get("bound", read=STALE)
                heal(leader)
                await asyncio.to_thread(servers.leader)
            assert await session.wait_for(SessionState.CONNECTED)
            assert [entry.key for entry in (await other.list("n/", limit=9)).entries] == [
                "n/0/after",
                "n/0/before",
                "n/1/after",
                "n/1/before",
            ]
            await client.txn([], [Put("bound", b"again", session)])


async def _entry(client: EtcdBackend, key: str) -> Entry:
    entry = await _until_answered(partial(client.get, key))
    assert entry is not None
    return entry


@pytest.mark.parametrize(
    ("code", "details", "fate"),
    [
        ("UNAVAILABLE", "failed to connect to all addresses; last error: ...", Fate.NOT_APPLIED),
        ("UNAVAILABLE", "etcdserver: no leader", Fate.NOT_APPLIED),
        ("RESOURCE_EXHAUSTED", "etcdserver: too many requests", Fate.NOT_APPLIED),
        ("UNAUTHENTICATED", "etcdserver: invalid auth token", Fate.NOT_APPLIED),
        ("INVALID_ARGUMENT", "etcdserver: revision of auth store is old", Fate.NOT_APPLIED),
        ("UNAVAILABLE", "Socket closed", Fate.UNKNOWN),
        ("UNAVAILABLE", "etcdserver: request timed out, possibly due to previous leader failure", Fate.UNKNOWN),
        ("UNAVAILABLE", "etcdserver: leader changed", Fate.UNKNOWN),
        ("UNAVAILABLE", "etcdserver: server stopped", Fate.UNKNOWN),
        ("DEADLINE_EXCEEDED", "Deadline Exceeded", Fate.UNKNOWN),
        ("RESOURCE_EXHAUSTED", "etcdserver: mvcc: database space exceeded", Fate.UNKNOWN),
        ("UNKNOWN", "a code that the client does not know", Fate.UNKNOWN),
    ],
)
def test_the_fate_of_a_write_for_each_error(code: str, details: str, fate: Fate) -> None:
    assert classify(grpc.StatusCode[code], details).fate is fate


@pytest.mark.parametrize(
    ("code", "details", "error"),
    [
        ("PERMISSION_DENIED", "etcdserver: permission denied", Unauthorized),
        ("INVALID_ARGUMENT", "etcdserver: user name is empty", Unauthorized),
        ("INVALID_ARGUMENT", "etcdserver: authentication failed, invalid user ID or password", Unauthorized),
        ("NOT_FOUND", "etcdserver: requested lease not found", SessionLost),
        ("OUT_OF_RANGE", "etcdserver: mvcc: required revision has been compacted", Compacted),
        ("RESOURCE_EXHAUSTED", "CLIENT: Received message larger than max (3 vs. 2)", ResponseTooLarge),
        ("RESOURCE_EXHAUSTED", "grpc: received message larger than max (3 vs. 2)", LimitExceeded),
        ("INVALID_ARGUMENT", "etcdserver: request is too large", LimitExceeded),
        ("INVALID_ARGUMENT", "etcdserver: too many operations in txn request", LimitExceeded),
        ("UNIMPLEMENTED", "unknown service etcdserverpb.KV", Unsupported),
    ],
)
def test_errors_that_repeating_does_not_help(code: str, details: str, error: type[Exception]) -> None:
    failure = classify(grpc.StatusCode[code], details)
    assert failure.fate is Fate.FINAL
    assert type(failure.error) is error


def test_addresses() -> None:
    plain = parse("etcd://h1,h2:1234,[::1]:5/a/b/", {})
    assert plain.endpoints == ("h1:2379", "h2:1234", "[::1]:5")
    assert (plain.prefix, plain.tls, plain.user) == ("/a/b", False, None)
    assert parse("etcd://h", {}).prefix == "/parley"
    secured = parse("etcd://h?user=u&password-file=/p&ca-file=/c", {"cert_file": "/x", "key_file": "/y"})
    assert (secured.user, str(secured.password_file), secured.tls, str(secured.key_file)) == ("u", "/p", True, "/y")
    assert parse("etcd://h?tls=true", {}).tls


@pytest.mark.parametrize(
    "url",
    [
        "etcd:",
        "etcd://",
        "etcd:h:2379",
        "http://h",
        "etcd://h:0",
        "etcd://h:x",
        "etcd://h:70000",
        "etcd://h,,g",
        "etcd://h h",
        "etcd://h/a//b",
        "etcd://h/ü",
        "etcd://h/" + "x" * 201,
        "etcd://h?nonsense=1",
        "etcd://h?user=u",
        "etcd://h?password-file=/p",
        "etcd://h?user=&password-file=/p",
        "etcd://h?cert-file=/c",
        "etcd://h?tls=yes",
        "etcd://h?tls=false&ca-file=/c",
    ],
)
def test_invalid_addresses(url: str) -> None:
    with pytest.raises(BadConfig):
        EtcdBackend.from_url(url)


def test_a_password_in_the_address_is_refused_and_not_repeated() -> None:
    with pytest.raises(BadConfig, match="password-file") as caught:
        EtcdBackend.from_url("etcd://user:secret@h:2379/p")
    assert "secret" not in str(caught.value)


async def test_a_file_that_is_not_there() -> None:
    client = EtcdBackend.from_url("etcd://127.0.0.1:1?user=u&password-file=/nowhere/at/all")
    with pytest.raises(BadConfig, match="/nowhere/at/all"):
        await client.open()
    assert issubclass(BadConfig, CoordinationError)


def test_the_generated_messages_are_those_of_the_definitions() -> None:
    written: set[tuple[str, str, int]] = set()
    message = ""
    for line in Path(etcd_pb2.__file__).with_name("etcd.proto").read_text(encoding="utf-8").splitlines():
        if found := re.match(r"message (\w+) {", line):
            message = found[1]
        elif found := re.match(r"\s+(?:repeated )?\w+ (\w+) = (\d+);", line):
            written.add((message, found[1], int(found[2])))
    messages = etcd_pb2.DESCRIPTOR.message_types_by_name
    generated = {(name, field.name, field.number) for name, each in messages.items() for field in each.fields}
    assert generated == written, "run the command at the head of parley/consensus/etcd/etcd.proto"
