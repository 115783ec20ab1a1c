"""Consul with ACLs, with TLS, with three servers of which one fails, and with its default session TTL."""

from __future__ import annotations

import asyncio
import os
import random
import re
import shlex
import ssl
import subprocess
import time
import urllib.request
import uuid
from collections.abc import Iterator
from email.utils import parsedate_to_datetime
from pathlib import Path
from typing import Any

import pytest

from parley.consensus.backend import Changed, Put, SessionState, Snapshot, Watch
from parley.consensus.consul import ConsulBackend
from parley.consensus.consul.identity import ConsulIdentity
from parley.consensus.errors import BadConfig, Retriable, Unauthorized, WrongStore
from parley.consensus.recipes.keyvalue import KeyValue
from parley.consensus.recipes.listeners import View
from parley.consensus.recipes.settled_write import unwrap
from parley.tools.store_servers import consul_program
from tests.support.stores.consul import ConsulServers, consul_servers

pytestmark = pytest.mark.system
DOCUMENTED = Path(__file__).resolve().parents[2] / "docs" / "stores.md"
POLICY = 'key_prefix "parley/" { policy = "write" } session_prefix "" { policy = "write" }'


async def _refused(url: str, error: type[Exception]) -> None:
    client = ConsulBackend.from_url(url)
    with pytest.raises(error):
        await client.open()
    await client.close()


class Guarded:
    """A server that denies by default: a token must allow each operation."""

    def __init__(self, servers: ConsulServers, directory: Path) -> None:
        self.servers = servers
        self._directory = directory

    def ask(self, method: str, path: str, body: object = None) -> Any:
        return self.servers.ask(self.servers.nodes[0], path, method, body)

    def token(self, rules: str) -> str:
        name = f"t{uuid.uuid4().hex}"
        assert self.ask("PUT", "/v1/acl/policy", {"Name": name, "Rules": rules})
        secret: str = self.ask("PUT", "/v1/acl/token", {"Policies": [{"Name": name}]})["SecretID"]
        return secret

    def revoke(self, secret: str) -> None:
        tokens = self.ask("GET", "/v1/acl/tokens")
        for accessor in (each["AccessorID"] for each in tokens):
            if self.ask("GET", f"/v1/acl/token/{accessor}")["SecretID"] == secret:
                assert self.ask("DELETE", f"/v1/acl/token/{accessor}")

    def url(self, secret: str) -> str:
        file = self._directory / uuid.uuid4().hex
        file.write_text(secret)
        return f"{self.servers.url}&token-file={file}"


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Guarded]:
    secret = str(uuid.uuid4())
    acl = {"enabled": True, "default_policy": "deny", "tokens": {"master": secret, "agent": secret}}
    with consul_servers(settings={"acl": acl}, token=secret) as servers:
        yield Guarded(servers, tmp_path_factory.mktemp("tokens"))


async def test_a_token_that_may_write_keys_and_sessions_is_enough(guarded: Guarded) -> None:
    async with ConsulBackend.from_url(guarded.url(guarded.token(POLICY))) as client:
        session = await client.open_session(10_000)
        async with client.watch("a/") as watch:
            assert await anext(watch) == Snapshot(())
            await client.txn([], [Put("a/1", b"1", session), Put("a/2", b"2")])
            assert (await anext(watch)) != (await anext(watch))
        assert [entry.key for entry in (await client.list("a", limit=9)).entries] == ["a/1", "a/2"]


@pytest.mark.parametrize(
    "rules",
    [
        'session_prefix "" { policy = "write" }',
        'key_prefix "parley/" { policy = "read" } session_prefix "" { policy = "write" }',
        'key_prefix "parley/" { policy = "write" }',
        'key_prefix "other/" { policy = "write" } session_prefix "" { policy = "write" }',
    ],
)
async def test_a_token_that_may_not_is_refused_when_opening(guarded: Guarded, rules: str) -> None:
    async with ConsulBackend.from_url(guarded.url(guarded.token(POLICY))):
        await _refused(guarded.url(guarded.token(rules)), Unauthorized)


async def test_the_commands_of_the_documentation_make_such_a_token(guarded: Guarded) -> None:
    environment = {
        "CONSUL_HTTP_ADDR": f"127.0.0.1:{guarded.servers.nodes[0].port}",
        "CONSUL_HTTP_TOKEN": guarded.servers.token,
    }
    commands = [line for line in DOCUMENTED.read_text().splitlines() if line.startswith("consul acl ")]
    assert len(commands) == 2
    for command in commands:
        words = [consul_program(), *shlex.split(command)[1:]]
        said = (await asyncio.to_thread(_typed, words, environment)).stdout
    (secret,) = re.findall(r"SecretID: +(\S+)", said)
    url = guarded.url(secret)
    await _refused(url, Unauthorized)
    async with ConsulBackend.from_url(url.replace("?", "/parley/production?")) as client:
        await client.put("a", b"")


def _typed(words: list[str], environment: dict[str, str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(words, env=environment, check=True, capture_output=True, text=True)


async def test_without_a_token_or_with_an_unknown_one_nothing_opens(guarded: Guarded) -> None:
    await _refused(guarded.servers.url, Unauthorized)
    await _refused(guarded.url(str(uuid.uuid4())), Unauthorized)


async def test_other_tokens_can_neither_read_nor_change_the_tree(guarded: Guarded) -> None:
    async with ConsulBackend.from_url(guarded.url(guarded.token(POLICY))) as client:
        await client.put("secret", b"1")
        other = ConsulServers(guarded.servers.directory, guarded.servers.clock, guarded.servers.nodes)
        other.token = guarded.token('key_prefix "other/" { policy = "write" }')
        node = other.nodes[0]
        assert other.ask(node, "/v1/kv/parley/keys/secret") is None
        assert other.ask(node, "/v1/kv/parley/?recurse", "DELETE") is None
        assert other.ask(node, "/v1/kv/parley/keys/secret", "PUT", "x") is None
        assert await client.get("secret")


async def test_the_token_is_replaced_while_the_cluster_runs(guarded: Guarded) -> None:
    """The steps of docs/security.md: create a second token of the policy, restart the brokers one by one, delete the
    first token."""
    first, second = guarded.token(POLICY), guarded.token(POLICY)
    waits = ConsulBackend.from_url(guarded.url(first))  # the broker that is restarted last
    await waits.open()
    async with ConsulBackend.from_url(guarded.url(second)) as restarted:
        session = await restarted.open_session(600_000)
        async with waits.watch("rotated/") as watch:
            await anext(watch)
            await restarted.txn([], [Put("rotated/bound", b"1", session)])
            assert isinstance(await anext(watch), Changed)
        await waits.put("rotated/from-the-first", b"1")
        assert await restarted.get("rotated/from-the-first")
        await waits.close()
        guarded.revoke(first)
        await _refused(guarded.url(first), Unauthorized)
        await restarted.put("rotated/after", b"1")
        assert await restarted.get("rotated/bound"), "its session lives on"
        await session.close()


async def test_a_revoked_token_ends_watches_and_fails_every_call(guarded: Guarded) -> None:
    secret = guarded.token(POLICY)
    client = ConsulBackend.from_url(guarded.url(secret))
    await client.open()
    session = await client.open_session(1000)
    async with client.watch("") as watch:
        await anext(watch)
        guarded.revoke(secret)
        for call in (client.get("a"), client.put("a", b""), client.list("", limit=1), client.open_session(1000)):
            with pytest.raises(Unauthorized):
                await call
        async with ConsulBackend.from_url(guarded.url(guarded.token(POLICY))) as other:
            await other.put("news", b"")  # so that the watch looks
            with pytest.raises(Unauthorized):
                await asyncio.wait_for(_to_the_end(watch), 30)
    await asyncio.wait_for(session.lost.wait(), 30)
    await client.close()


async def _to_the_end(watch: Watch) -> None:
    async for _ in watch:
        pass


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("certificates")
    for arguments in (["ca", "create"], ["cert", "create", "-server"], ["cert", "create", "-client"]):
        subprocess.run([consul_program(), "tls", *arguments], cwd=folder, check=True, capture_output=True)
    (folder / "elsewhere").mkdir()
    subprocess.run([consul_program(), "tls", "ca", "create"], cwd=folder / "elsewhere", check=True, capture_output=True)
    return folder


async def test_tls_with_certificates_on_both_sides(certificates: Path) -> None:
    ca = certificates / "consul-agent-ca.pem"
    server, client = (certificates / f"dc1-{kind}-consul-0" for kind in ("server", "client"))
    context = ssl.create_default_context(cafile=str(ca))
    context.load_cert_chain(f"{client}.pem", f"{client}-key.pem")
    settings = {
        "ca_file": str(ca),
        "cert_file": f"{server}.pem",
        "key_file": f"{server}-key.pem",
        "verify_incoming": True,
    }
    with consul_servers(settings=settings, tls=context) as servers:
        ours = f"&cert-file={client}.pem&key-file={client}-key.pem"
        async with ConsulBackend.from_url(f"{servers.url}&ca-file={ca}{ours}") as backend:
            await backend.put("a", b"1")
            assert await backend.get("a")
        await _refused(f"{servers.url}&ca-file={ca}", BadConfig)
        await _refused(f"{servers.url}&tls=true", BadConfig)
        await _refused(servers.url, BadConfig)
        elsewhere = certificates / "elsewhere" / "consul-agent-ca.pem"
        await _refused(f"{servers.url}&ca-file={elsewhere}{ours}", BadConfig)
        await _refused(f"{servers.url}&ca-file={certificates / 'none'}", BadConfig)


@pytest.mark.slow
async def test_three_servers_go_on_without_their_leader_and_lose_nothing() -> None:
    with consul_servers(3) as servers:
        async with ConsulBackend.from_url(servers.url) as client, ConsulBackend.from_url(servers.url) as other:
            session = await other.open_session(30_000)
            await other.put("bound", b"", session=session)
            stop = asyncio.Event()
            counted = asyncio.create_task(_count(client, stop))
            async with other.watch("") as watch:
                await anext(watch)
                for fault in (servers.kill, servers.pause):
                    leader = await asyncio.to_thread(servers.leader)
                    await asyncio.to_thread(fault, leader)
                    await _advanced(client, 20)
                    if fault == servers.kill:
                        await asyncio.to_thread(servers.start, leader)
                    else:
                        servers.resume(leader)
                stop.set()
                total = await counted
                while True:
                    event = await asyncio.wait_for(anext(watch), 60)
                    entries = event.entries if isinstance(event, Snapshot) else [getattr(event, "entry", None)]
                    if any(entry and entry.key == "done" for entry in entries):
                        break
            found = await KeyValue(client, random.Random(1)).get("counter")
            assert found is not None
            assert int(found.value) == total
            await asyncio.wait_for(session.wait_for(SessionState.CONNECTED), 30)
            assert await client.get("bound")


async def _count(client: ConsulBackend, stop: asyncio.Event) -> int:
    keys, total = KeyValue(client, random.Random(2)), 0
    while not stop.is_set():
        try:
            await keys.update("counter", lambda value: b"%d" % (int(value or 0) + 1))
        except Retriable:
            await asyncio.sleep(0.1)
            found = await _once_answered(keys)
            assert found in (total, total + 1)
            total = found
            continue
        total += 1
    await client.put("done", b"")
    return total


async def _once_answered(keys: KeyValue) -> int:
    while True:
        try:
            entry = await keys.get("counter")
            return int(entry.value) if entry else 0
        except Retriable:
            await asyncio.sleep(0.1)


async def _advanced(client: ConsulBackend, by: int) -> None:
    """Wait until the counter has risen by this much."""
    target: int | None = None
    async with client.watch("data/counter") as watch:
        async for event in watch:
            match event:
                case Snapshot((entry,)) | Changed(entry):
                    value = int(unwrap(entry).value)
                    target = value + by if target is None else target
                    if value >= target:
                        return


@pytest.mark.slow
async def test_a_server_as_installed_ends_a_silent_session_within_twice_ten_seconds() -> None:
    with consul_servers(ttl_ms_min=10_000) as servers:
        url = f"consul://{servers.hosts}"
        async with ConsulBackend.from_url(url) as client:
            gone = ConsulBackend.from_url(url)
            await gone.open()
            session = await gone.open_session(1000)
            assert session.ttl_ms == 10_000
            await gone.put("held", b"", session=session)
            started = asyncio.get_running_loop().time()
            await gone.abandon()
            async with client.watch("held") as watch:
                while (event := await asyncio.wait_for(anext(watch), 60)) != Snapshot(()) and hasattr(event, "entries"):
                    pass
            assert 10 <= asyncio.get_running_loop().time() - started < 30


async def test_a_prefix_with_foreign_keys_is_refused() -> None:
    with consul_servers() as servers:
        node = servers.nodes[0]
        servers.ask(node, "/v1/kv/parley/somebody/else", "PUT", "x")
        await _refused(servers.url, BadConfig)
        servers.ask(node, "/v1/kv/other/identity", "PUT", "x")
        await _refused(f"consul://{servers.hosts}/other", BadConfig)
        client = ConsulBackend.from_url(f"consul://{servers.hosts}/third")
        with pytest.raises(WrongStore) as caught:
            await client.open(expect_identity="0" * 32)
        assert caught.value.found is None
        assert servers.ask(node, "/v1/kv/third/?keys") is None
        await client.open()
        with pytest.raises(WrongStore) as caught:
            await ConsulBackend.from_url(f"consul://{servers.hosts}/third").open(expect_identity="0" * 32)
        assert caught.value.found == client.identity
        await client.close()


async def test_a_client_overtaken_in_creating_the_store_uses_the_existing_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with consul_servers() as servers:
        slow, quick = ConsulBackend.from_url(servers.url), ConsulBackend.from_url(servers.url)
        read, overtaken = ConsulIdentity.read_identity, asyncio.Event()

        async def read_and_be_overtaken(storage: ConsulIdentity) -> str | None:
            found = await read(storage)
            if not overtaken.is_set():
                overtaken.set()
                await quick.open()
            return found

        monkeypatch.setattr(ConsulIdentity, "read_identity", read_and_be_overtaken)
        await slow.open()
        assert slow.identity == quick.identity
        await slow.close()
        await quick.close()


async def test_a_watch_starts_again_when_the_servers_are_restored_to_an_older_state() -> None:
    with consul_servers() as servers:
        address = f"http://127.0.0.1:{servers.nodes[0].port}/v1/snapshot"

        def snapshot(kept: bytes | None = None) -> bytes:
            request = urllib.request.Request(address, data=kept, method="PUT" if kept else "GET")
            with urllib.request.urlopen(request) as answer:
                saved: bytes = answer.read()
                return saved

        async with ConsulBackend.from_url(servers.url) as client:
            await client.put("a", b"old")
            kept = await asyncio.to_thread(snapshot)
            await client.put("a", b"new")
            await client.put("b", b"new")
            async with client.watch("") as watch:
                view = View()
                view.apply(await anext(watch))
                restoring = asyncio.create_task(asyncio.to_thread(snapshot, kept))
                while {key: entry.value for key, entry in view.entries.items()} != {"a": b"old"}:
                    view.apply(await asyncio.wait_for(anext(watch), 30))
                await restoring
                revision = await client.put("a", b"newer")
                while view.entries["a"].revision != revision:
                    view.apply(await asyncio.wait_for(anext(watch), 30))


async def test_a_watch_leaves_a_silent_agent_as_soon_as_a_call_does() -> None:
    with consul_servers(3) as servers:
        silent = next(number for number in range(3) if number != servers.leader())
        others = [number for number in range(3) if number != silent]
        first = [servers.nodes[number].port for number in (silent, *others)]
        url = f"consul://{','.join(f'127.0.0.1:{port}' for port in first)}?{servers.query}"
        elsewhere = f"consul://127.0.0.1:{servers.nodes[servers.leader()].port}?{servers.query}"
        async with ConsulBackend.from_url(url) as client, ConsulBackend.from_url(elsewhere) as other:
            await client.open_session(3000)  # renewed every second: this is that call
            async with client.watch("") as watch:
                view = View()
                view.apply(await anext(watch))
                await other.put("before", b"")
                while "before" not in view.entries:
                    view.apply(await asyncio.wait_for(anext(watch), 30))
                servers.pause(silent)
                await other.put("after", b"")
                while "after" not in view.entries:
                    view.apply(await asyncio.wait_for(anext(watch), 40))  # the query itself would wait for a minute
                servers.resume(silent)


@pytest.mark.skipif("PARLEY_CONSUL" in os.environ, reason="a server linked statically asks the kernel for the time")
def test_the_clock_that_tests_move_is_the_servers() -> None:
    with consul_servers() as servers:
        for seconds in (3600, -3600, 0):
            servers.clock.move(seconds)
            with urllib.request.urlopen(f"http://127.0.0.1:{servers.nodes[0].port}/v1/status/leader") as answer:
                told = parsedate_to_datetime(answer.headers["Date"]).timestamp()
            assert abs(told - time.time() - seconds) < 60
