"""The Consul backend without a server: addresses, the errors for refusals, the size of requests."""

from __future__ import annotations

import asyncio
import json
import random
from pathlib import Path

import pytest
from aiohttp import web

from parley.consensus.backend import At, Check, Delete, Presence, Put, Revision
from parley.consensus.consul import http_client
from parley.consensus.consul.address import PREFIX_BYTES_MAX, Address
from parley.consensus.consul.http_client import Client, refusal
from parley.consensus.consul.key_layout import KeyLayout
from parley.consensus.consul.store_requests import Store
from parley.consensus.consul.transactions import OPS_MAX, Refused, capabilities, plan_txn, refused
from parley.consensus.errors import (
    AlreadyExists,
    BadConfig,
    Conflict,
    CoordinationError,
    Fenced,
    MaybeApplied,
    NotFound,
    SessionLost,
    TooLarge,
    TooManyOps,
    Unauthorized,
    Unavailable,
    WrongStore,
)
from tests.support.stores.servers import free_ports

LAYOUT = KeyLayout("p" * PREFIX_BYTES_MAX)
IDENTITY = "0" * 32

REQUEST_BYTES_MAX = 512 * 1024
"""The largest transaction that Consul accepts (``txn_max_req_len``)."""


def test_addresses() -> None:
    assert Address.parse("consul://h", {}).endpoints == ("http://h:8500",)
    many = Address.parse("consul://h1:1,[::1]:2,10.0.0.1/some/folder/?tls=true&session-ttl-min-ms=500", {})
    assert many.endpoints == ("https://h1:1", "https://[::1]:2", "https://10.0.0.1:8501")
    assert (many.prefix, many.ttl_ms_min) == ("some/folder", 500)
    assert Address.parse("consul://h", {"ca_file": "/ca"}).endpoints == ("https://h:8501",)


@pytest.mark.parametrize(
    "url",
    [
        "consul://",
        "consul:h",
        "http://h",
        "consul://h:0",
        "consul://h:99999",
        "consul://h,",
        "consul://h/a//b",
        "consul://h/" + "p" * (PREFIX_BYTES_MAX + 1),
        "consul://h?token=secret-one",
        "consul://user:secret-one@h",
        "consul://h?cert-file=/c",
        "consul://h?tls=maybe",
        "consul://h?tls=false&ca-file=/ca",
        "consul://h?session-ttl-min-ms=1",
        "consul://h?token-file=",
        "consul://h?secret-one",
    ],
)
def test_invalid_addresses(url: str) -> None:
    with pytest.raises(BadConfig) as caught:
        Address.parse(url, {})
    assert "secret-one" not in str(caught.value)


def test_a_token_is_read_from_its_file_and_shown_nowhere(tmp_path: Path) -> None:
    file = tmp_path / "token"
    address = Address.parse(f"consul://h?token-file={file}", {})
    for wrong in (None, "", "\n", "a\0b"):
        if wrong is not None:
            file.write_text(wrong)
        with pytest.raises(BadConfig, match="token-file"):
            address.read_token()
    file.write_text("secret-one\n")
    assert address.read_token() == "secret-one"
    assert "secret-one" not in repr(address)


@pytest.mark.parametrize(
    ("status", "text", "writes", "meaning"),
    [
        (500, "No cluster leader", True, Unavailable),
        (500, "rpc error making call: node is not the leader", True, Unavailable),
        (500, "rpc error making call: leadership lost while committing log", True, MaybeApplied),
        (500, "rpc error making call: EOF", True, MaybeApplied),
        (500, "rpc error making call: EOF", False, Unavailable),
        (429, "Your IP is issuing too many concurrent connections", True, Unavailable),
        (503, "", True, Unavailable),
        (403, "Permission denied", True, Unauthorized),
        (403, "ACL not found", False, Unauthorized),
        (500, "rpc error making call: ACL not found", True, Unauthorized),
        (413, "Request body(533390 bytes) too large, max size: 524288 bytes. See ...", True, TooLarge),
        (413, "Transaction contains too many operations (65 > 64)", True, TooManyOps),
        (413, "", True, Unavailable),
    ],
)
def test_the_error_for_each_http_status(status: int, text: str, writes: bool, meaning: type[CoordinationError]) -> None:
    assert type(refusal(status, text, writes=writes)) is meaning


def _refused(checks: list[Check], ops: list[Put | Delete], *failures: tuple[int, str]) -> Refused:
    plan = plan_txn(LAYOUT, IDENTITY, checks, ops, random.Random(0))
    body = json.dumps({"Results": None, "Errors": [{"OpIndex": index, "What": what} for index, what in failures]})
    return refused(plan, body.encode())


def test_the_error_for_a_refused_transaction() -> None:
    at = Check("exists", At(Revision(5)))
    checks = [Check("any", Presence.ANY), Check("a", Presence.ABSENT), Check("b", Presence.PRESENT, fences=True), at]
    gone = (3, 'failed to check index, key "p/exists" doesn\'t exist')
    moved = (3, 'failed index check for key "p/exists", current modify index 7 != 5')
    for failures, meaning in (
        ([(0, 'key "x" doesn\'t exist'), (1, 'key "p/a" exists')], WrongStore),
        ([(2, 'key "p/b" doesn\'t exist'), (1, 'key "p/a" exists')], AlreadyExists),
        ([(2, 'key "p/b" doesn\'t exist'), gone], Fenced),
        ([gone], Conflict),
        ([moved], Conflict),
        ([(1, "Permission denied")], Unauthorized),
        ([(4, "something new")], Unavailable),
        ([], Unavailable),
        ([(99, "nothing of ours")], Unavailable),
    ):
        assert type(_refused(checks, [Delete("d")], *failures).error) is meaning
    assert "no longer exists" in str(_refused(checks, [], gone).error)
    assert "not at the expected revision" in str(_refused(checks, [], moved).error)
    assert type(_refused([Check("b", Presence.PRESENT)], [], (1, 'key "p/b" doesn\'t exist')).error) is NotFound


async def test_an_unknown_session_is_found_from_the_failed_operation() -> None:
    from parley.consensus.session import Session

    class Bound(Session):
        async def close(self) -> None:
            self.lose()

    session = Bound("some-id", 10_000, 0.0)
    found = _refused([], [Put("a", b"", session)], (2, 'invalid session "some-id"'))
    assert (type(found.error), found.session) == (SessionLost, session)
    await session.close()


async def test_a_leader_that_has_not_reached_the_end_of_its_log_ends_no_session() -> None:
    """Such a leader responds to a renewal with 404. A consistent read, which waits for the end of the log, finds the
    session."""
    sessions = [{"ID": "some-id", "TTL": "10s"}]

    async def renew(request: web.Request) -> web.Response:
        return web.Response(status=404, text="Session id 'some-id' not found")

    async def info(request: web.Request) -> web.Response:
        assert "consistent" in request.query
        return web.json_response(sessions)

    agent = web.Application()
    agent.add_routes([web.put("/v1/session/renew/some-id", renew), web.get("/v1/session/info/some-id", info)])
    runner = web.AppRunner(agent)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", free_ports(1)[0])
    await site.start()
    store = Store(Address.parse(site.name.replace("http", "consul"), {}), random.Random(0))
    await store._client.open()
    with pytest.raises(Unavailable):
        await store.renew_session("some-id", 10)
    sessions.clear()
    assert not await store.renew_session("some-id", 10)
    await store.close()
    await runner.cleanup()


@pytest.mark.parametrize(("writes", "meaning"), [(False, Unavailable), (True, MaybeApplied)])
async def test_a_response_without_an_end_is_refused(
    monkeypatch: pytest.MonkeyPatch, writes: bool, meaning: type[CoordinationError]
) -> None:
    monkeypatch.setattr(http_client, "RESPONSE_BYTES_MAX", 1 << 20)
    stopped = asyncio.Event()

    async def flood(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse()
        await response.prepare(request)
        try:
            while True:
                await response.write(bytes(1 << 16))
        finally:
            stopped.set()

    agent = web.Application()
    agent.add_routes([web.put("/v1/txn", flood)])
    runner = web.AppRunner(agent)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", free_ports(1)[0])
    await site.start()
    async with Client(Address.parse(site.name.replace("http", "consul"), {})) as client:
        with pytest.raises(meaning, match="a response of more than 1,048,576 bytes"):
            await client.call("PUT", "/v1/txn", b"[]", writes=writes)
        await asyncio.wait_for(stopped.wait(), 30)
    await runner.cleanup()


def test_the_heaviest_transactions_fit_into_a_request() -> None:
    limits = capabilities(10_000)
    long = [f"{n:02}{chr(34) * (limits.key_bytes_max - 2)}" for n in range(limits.txn_ops_max)]
    left = limits.txn_bytes_max - sum(map(len, long))
    heavy = [Put(key, bytes(left // len(long))) for key in long]
    checked = limits.txn_ops_max // 2
    mixed = [Put(key, b"") for key in long[checked:]]
    checks = [Check(key, At(Revision((1 << 64) - 2))) for key in long[:checked]]
    largest = [Put("k", bytes(limits.value_bytes_max))]
    for given, ops in (([], heavy), (checks, mixed), ([], largest)):
        limits.admit(given, ops)
        plan = plan_txn(LAYOUT, IDENTITY, given, ops, random.Random(0))
        assert len(plan.ops) <= OPS_MAX
        assert len(plan.body) <= REQUEST_BYTES_MAX
