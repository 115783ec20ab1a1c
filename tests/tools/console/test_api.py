"""The console's API, with a broker in this process."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from confluent_kafka import Consumer, TopicPartition

from parley import Broker
from parley.broker.runtime.clock import SYSTEM_CLOCK
from parley.protocol.client import Client
from parley.protocol.messages.produce import ProduceRequest
from parley.protocol.records.batch import build
from parley.protocol.records.record import Record
from parley.tools.cli.store_client import store_address
from parley.tools.console import messages_api
from parley.tools.console.app import Console
from parley.tools.console.messages_api import RecordWindow
from parley.tools.console.overview_api import live
from parley.tools.console.record_reading import BY_NAME_VERSION_MAX
from parley.tools.console.settings import ConsoleSettings
from tests.tools.console.conftest import Browser, browsing

pytestmark = pytest.mark.slow


async def _topic(browser: Browser, name: str, partitions: int = 2, configs: Mapping[str, str] | None = None) -> str:
    body = {"name": name, "partitions": partitions, "replicas": 1, "configs": configs or {}}
    await browser.change("POST", "topics", body)
    return name


async def test_the_overview_says_that_all_is_well(browser: Browser) -> None:
    found = await browser.get("overview")
    assert [one["level"] for one in found["health"]] == ["good"]
    assert found["brokers"][0]["alive"]
    assert found["controller"] == found["brokers"][0]["id"]


async def test_a_topic_from_its_creation_to_its_deletion(browser: Browser) -> None:
    name = await _topic(browser, "life", configs={"retention.ms": "60000"})
    listed = await browser.get("topics", search="LIF")
    assert [(one["name"], one["partitions"], one["offline"]) for one in listed["items"]] == [(name, 2, 0)]
    sent = await browser.change("POST", f"topics/{name}/messages", {"key": "a", "value": "1", "headers": {"h": "x"}})
    assert sent == {"partition": 0, "offset": 0}
    await browser.change("POST", f"topics/{name}/partitions", {"count": 3})
    described = await browser.get(f"topics/{name}")
    assert [(one["index"], one["first"], one["end"]) for one in described["partitions"]] == [
        (0, 0, 1), (1, 0, 0), (2, 0, 0),
    ]  # fmt: skip
    assert await browser.change("POST", f"topics/{name}/delete-records", {"partition": 0, "offset": -1}) == {"first": 1}
    await browser.change("DELETE", f"topics/{name}")
    assert (await browser.client.get(f"/api/topics/{name}")).status_code == 404


async def test_lists_have_pages(browser: Browser) -> None:
    for number in range(5):
        await _topic(browser, f"paged-{number}", 1)
    first = await browser.get("topics", search="paged-", size=2)
    last = await browser.get("topics", search="paged-", size=2, page=99)
    assert (first["total"], first["pages"], [one["name"] for one in first["items"]]) == (5, 3, ["paged-0", "paged-1"])
    assert (last["page"], [one["name"] for one in last["items"]]) == (2, ["paged-4"])


async def test_settings_have_defaults_and_documentation(browser: Browser) -> None:
    name = await _topic(browser, "settings")
    await browser.change("PATCH", f"configs/topic/{name}", {"set": {"retention.ms": "1000"}})
    found = {one["name"]: one for one in (await browser.get(f"configs/topic/{name}"))["settings"]}
    one = found["retention.ms"]
    assert (one["value"], one["own"], bool(one["documentation"])) == ("1000", True, True)
    assert found["cleanup.policy"]["default"] == "delete"
    await browser.change("PATCH", f"configs/topic/{name}", {"remove": ["retention.ms"]})
    found = {one["name"]: one for one in (await browser.get(f"configs/topic/{name}"))["settings"]}
    assert not found["retention.ms"]["own"]


async def test_passwords_among_settings_are_not_sent(browser: Browser) -> None:
    broker = (await browser.get("overview"))["brokers"][0]["id"]
    found = (await browser.get(f"configs/broker/{broker}"))["settings"]
    assert any(one["sensitive"] for one in found)
    assert all(one["value"] is None for one in found if one["sensitive"])


async def _records(browser: Browser, name: str, **query: Any) -> list[tuple[int, str | None]]:
    found = await browser.get(f"topics/{name}/messages", **query)
    return [(one["offset"], one["value"].get("text")) for one in found["records"]]


async def test_records_from_every_place(browser: Browser) -> None:
    name = await _topic(browser, "records", 1)
    for number in range(10):
        await browser.change("POST", f"topics/{name}/messages", {"value": f'{{"n": {number}}}'})
    assert [at for at, _ in await _records(browser, name)] == list(range(9, -1, -1))
    assert [at for at, _ in await _records(browser, name, limit=3)] == [9, 8, 7]
    assert [at for at, _ in await _records(browser, name, **{"from": "earliest", "limit": 2})] == [0, 1]
    assert [at for at, _ in await _records(browser, name, **{"from": "offset", "value": 8})] == [8, 9]
    assert [at for at, _ in await _records(browser, name, **{"from": "time", "value": 1})] == list(range(10))
    assert await _records(browser, name, filter="value.n >= 8 and value.n != 9") == [(8, '{"n": 8}')]
    refused = await browser.client.get(f"/api/topics/{name}/messages", params={"filter": "open('/etc/passwd')"})
    assert refused.status_code == 400


async def _produce_in_one_batch(broker: Broker, name: str) -> None:
    async with Client(broker.bootstrap_servers) as client:
        batch = bytes(build([Record(0, 0, None, b"%d" % number) for number in range(3000)]))
        part = ProduceRequest.PartitionProduceData(index=0, records=batch)
        data = ProduceRequest.TopicProduceData(name=name, partition_data=[part])
        request = ProduceRequest(acks=-1, timeout_ms=10_000, topic_data=[data])
        sent = await client.send(request, node=await client.leader(name, 0), version=BY_NAME_VERSION_MAX)
        assert sent.responses[0].partition_responses[0].error_code == 0


async def test_a_search_stops_inside_a_batch(
    browser: Browser, stored_broker: tuple[Broker, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("parley.tools.console.messages_api.SCANNED_MAX", 1000)
    name = await _topic(browser, "one-batch", 1)
    await _produce_in_one_batch(stored_broker[0], name)
    query = {"filter": "value == 2500", "from": "earliest"}
    first = await browser.get(f"topics/{name}/messages", **query)
    assert (first["records"], first["scanned"], first["complete"], first["next"]) == ([], 1000, False, {"0": 1000})
    third = await browser.get(f"topics/{name}/messages", **query | {"from": "offset", "value": "2000"})
    assert ([one["offset"] for one in third["records"]], third["complete"]) == ([2500], True)


async def test_a_search_whose_time_is_over_before_its_first_record_is_decoded_still_shows_a_page(
    browser: Browser, stored_broker: tuple[Broker, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    name = await _topic(browser, "out-of-time", 1)
    await _produce_in_one_batch(stored_broker[0], name)
    passing, ticking = RecordWindow._passing, SYSTEM_CLOCK.monotonic

    def late(*given: Any) -> Any:
        clock = SimpleNamespace(monotonic=lambda: ticking() + messages_api.SCAN_S)
        monkeypatch.setattr(messages_api, "SYSTEM_CLOCK", clock)
        return passing(*given)

    monkeypatch.setattr(RecordWindow, "_passing", late)
    found = await browser.get(f"topics/{name}/messages", filter="offset < 2000", **{"from": "earliest"}, limit=400)
    assert (len(found["records"]), found["next"]) == (400, {"0": 400})
    monkeypatch.setattr(messages_api, "SYSTEM_CLOCK", SimpleNamespace(monotonic=ticking))
    found = await browser.get(f"topics/{name}/messages", filter="offset > 2000", **{"from": "earliest"})
    assert (found["records"], found["next"]) == ([], {"0": 500})


async def test_bytes_that_are_no_text(browser: Browser) -> None:
    from parley.tools.console.record_values import shown

    assert shown(b"\0\0\0\0\7avro") == {"kind": "binary", "base64": "AAAAAAdhdnJv", "schema": "schema 7", "bytes": 9}
    assert shown(None) == {"kind": "null", "bytes": 0}
    cut = shown("ä".encode() * 20_000)
    assert (cut["kind"], cut["cut"], cut["bytes"]) == ("text", True, 40_000)


async def test_the_tail_shows_new_records(browser: Browser, stored_broker: tuple[Broker, str]) -> None:
    from starlette.requests import Request

    from parley.tools.console.answers import ApiRequest
    from parley.tools.console.cluster_view import ClusterView
    from parley.tools.console.messages_api import RecordWindow

    name = await _topic(browser, "tail", 1)
    view = ClusterView(ConsoleSettings(stored_broker[0].bootstrap_servers))
    scope = Request({"type": "http", "query_string": b"", "headers": [], "path_params": {"name": name}}).scope
    events = RecordWindow(None).tail(view, ApiRequest(scope))
    assert (await anext(events))["records"] == []
    await browser.change("POST", f"topics/{name}/messages", {"value": "new"})
    async for event in events:
        if event["records"]:
            assert event["records"][0]["value"]["text"] == "new"
            break
    await events.aclose()  # type: ignore[attr-defined]
    await view.close()


async def test_samples_arrive_live(stored_broker: tuple[Broker, str]) -> None:
    from parley.tools.console.cluster_view import ClusterView
    from parley.tools.console.sampling import sample_forever

    view = ClusterView(ConsoleSettings(stored_broker[0].bootstrap_servers))
    sampling = asyncio.create_task(sample_forever(view, None))
    assert (await anext(live(view)))["brokers"] == 1
    assert view.history.as_data()[0]["offline"] == 0
    sampling.cancel()
    await view.close()


async def test_offsets_are_reset_after_a_preview(browser: Browser, stored_broker: tuple[Broker, str]) -> None:
    name = await _topic(browser, "reset", 1)
    for _ in range(3):
        await browser.change("POST", f"topics/{name}/messages", {"value": "x"})
    settings = {"bootstrap.servers": stored_broker[0].bootstrap_servers, "group.id": "readers"}
    consumer = Consumer(settings)
    await asyncio.to_thread(consumer.commit, offsets=[TopicPartition(name, 0, 3)], asynchronous=False)
    await asyncio.to_thread(consumer.close)
    found = await browser.get("groups/readers/detail")
    assert [(one["topic"], one["lag"]) for one in found["offsets"]] == [(name, 0)]
    assert "readers" in [one["name"] for one in (await browser.get("groups", search="read"))["items"]]
    preview = await browser.change("POST", "groups/readers/reset", {"target": "to_offset", "value": 1})
    assert preview == {"executed": False, "offsets": [{"topic": name, "partition": 0, "offset": 1}]}
    assert (await browser.get("groups/readers/detail"))["offsets"][0]["lag"] == 0
    await browser.change("POST", "groups/readers/reset", {"target": "to_offset", "value": 1, "execute": True})
    assert (await browser.get("groups/readers/detail"))["offsets"][0]["lag"] == 2
    await browser.change("POST", "groups/readers/delete")
    assert (await browser.client.get("/api/groups/readers/detail")).status_code == 404


async def test_the_coordination_store(browser: Browser, stored_broker: tuple[Broker, str]) -> None:
    found = await browser.get("coordination")
    assert found["move"]["state"] == "none"
    assert found["store"]["store"] == stored_broker[1]
    assert len(found["store"]["members"]) == 1
    assert found["latency"]
    top = await browser.get("coordination/tree")
    assert all(one["folder"] for one in top["children"] if one["key"].endswith("/"))
    keys = [one["key"] for one in top["children"]]
    assert keys == sorted(set(keys))
    pages = [await browser.get("coordination/tree", limit=1)]
    while pages[-1]["after"]:
        pages.append(await browser.get("coordination/tree", limit=1, after=pages[-1]["after"]))
    assert [one["key"] for page in pages for one in page["children"]] == keys
    refused = await browser.try_change("POST", "coordination/move", {"url": "nonsense"})
    assert refused.status_code == 409
    assert "nonsense" in refused.json()["error"]


async def test_quotas_users_features_directories(browser: Browser) -> None:
    await browser.change(
        "POST", "quotas", {"entity": [{"type": "user", "name": "ann"}], "quotas": {"producer_byte_rate": 1000}}
    )
    found = await browser.get("quotas")
    assert {"entity": [{"type": "user", "name": "ann"}], "quotas": {"producer_byte_rate": 1000.0}} in found["items"]
    await browser.change("POST", "users", {"user": "ann", "mechanism": "SCRAM-SHA-256", "password": "secret"})
    assert "ann" in [one["user"] for one in (await browser.get("users"))["items"]]
    assert (await browser.get("features"))["features"]
    assert (await browser.get("log-dirs"))["items"][0]["free"] > 0
    work = await browser.get("work")
    assert (work["items"], work["brokers"]) == ([], [])
    assert (await browser.get("transactions"))["total"] >= 0


async def test_every_refusal_is_an_error_and_never_a_traceback(browser: Browser) -> None:
    for path, query, status in (
        ("topics", {"page": "x"}, 400),
        ("topics", {"sort": "beauty"}, 400),
        ("configs/moon/a", {}, 404),
        ("topics/missing/messages", {}, 404),
        ("acls/why", {"operation": "FLY"}, 400),
        ("nothing", {}, 404),
    ):
        answer = await browser.client.get(f"/api/{path}", params=query)
        assert (answer.status_code, "error" in answer.json()) == (status, True), (path, answer.text)
    assert (await browser.try_change("POST", "topics", {"name": 1})).status_code == 400
    assert (await browser.try_change("POST", "topics", {"name": "bad name", "partitions": 1})).status_code == 400
    assert (await browser.try_change("POST", "topics", ["x" * 2_000_000])).status_code == 413
    for body in ({"set": 1}, {"remove": "ab"}, {"remove": None}, {"remove": 5}, {"remove": [5]}):
        assert (await browser.try_change("PATCH", "configs/topic/any", body)).status_code == 400, body
    taken = await browser.try_change("POST", "quotas", {"entity": [], "quotas": {}})
    assert taken.status_code == 400


async def test_a_cluster_that_is_away() -> None:
    async with browsing(ConsoleSettings("127.0.0.1:1")) as browser:
        answer = await browser.client.get("/api/overview")
    assert answer.status_code == 503


# --- Security ---


async def test_a_change_needs_the_token(browser: Browser) -> None:
    answer = await browser.client.post("/api/topics", json={"name": "stolen"}, headers={"x-csrf-token": "guess"})
    assert answer.status_code == 403


async def test_nothing_without_a_session(stored_broker: tuple[Broker, str]) -> None:
    async with browsing(ConsoleSettings(stored_broker[0].bootstrap_servers)) as browser:
        browser.client.cookies.clear()
        assert (await browser.client.get("/api/overview")).status_code == 401
        assert (await browser.client.get("/api/live")).status_code == 401


async def test_a_foreign_host_name_is_refused(browser: Browser) -> None:
    answer = await browser.client.get("/api/session", headers={"host": "evil.example:8090"})
    assert answer.status_code == 421
    assert (await browser.client.get("/", headers={"host": "10.1.2.3"})).status_code == 200


async def test_headers_and_cookie(browser: Browser) -> None:
    page = await browser.client.get("/")
    policy = page.headers["content-security-policy"]
    assert "default-src 'none'" in policy
    assert "unsafe" not in policy
    assert "<script>" not in page.text
    browser.client.cookies.clear()
    cookie = (await browser.client.get("/api/session")).headers["set-cookie"].lower()
    assert "httponly" in cookie
    assert "samesite=strict" in cookie


async def test_a_read_only_console_changes_nothing(stored_broker: tuple[Broker, str]) -> None:
    async with browsing(ConsoleSettings(stored_broker[0].bootstrap_servers, read_only=True)) as browser:
        assert (await browser.try_change("POST", "topics", {"name": "no"})).status_code == 403
        body = {"target": "to_latest", "execute": True}
        assert (await browser.try_change("POST", "groups/readers/reset", body)).status_code == 403
        previewed = await browser.try_change("POST", "groups/absent/reset", {"target": "to_latest"})
        assert previewed.status_code != 403


async def test_every_change_is_behind_the_token() -> None:
    """No route changes anything with GET, and every other route checks the token."""
    console = Console(ConsoleSettings("127.0.0.1:1"))
    browser_paths = [route for route in console._routes() if route.methods and route.methods - {"GET", "HEAD"}]
    async with browsing(ConsoleSettings("127.0.0.1:1")) as browser:
        for route in browser_paths:
            for method in (route.methods or set()) - {"GET", "HEAD"}:
                path = route.path
                for name, value in {"name:path": "x", "name": "x", "kind": "topic", "worker:int": "0"}.items():
                    path = path.replace(f"{{{name}}}", value)
                answer = await browser.client.request(method, path, json={})
                assert answer.status_code == 403, (method, path)
    await console.close()


async def test_users_have_their_own_rights(broker_with_users: Broker) -> None:
    (address,) = (f"{one.host}:{one.port}" for one in broker_with_users.server.endpoints if one.listener == "USERS")
    properties = {"security.protocol": "SASL_PLAINTEXT", "sasl.mechanism": "PLAIN"}
    async with browsing(ConsoleSettings(address, properties)) as browser:
        opened = await browser.open()
        assert opened["loginRequired"]
        assert (await browser.client.get("/api/overview")).status_code == 401
        refused = await browser.try_change("POST", "login", {"user": "alice", "password": "wrong"})
        assert (refused.status_code, "wrong" in refused.text) == (401, False)
        before = browser.client.cookies["parley_console"]
        opened = await browser.change("POST", "login", {"user": "alice", "password": "a"})
        assert (opened["user"], opened["loginRequired"]) == ("alice", False)
        assert browser.client.cookies["parley_console"] != before
        browser.token = opened["csrf"]
        assert (await browser.get("overview"))["brokers"][0]["alive"]
        assert (await browser.change("POST", "logout"))["loginRequired"]
        assert (await browser.client.get("/api/overview")).status_code == 401


async def test_an_idle_session_ends(stored_broker: tuple[Broker, str], monkeypatch: pytest.MonkeyPatch) -> None:
    async with browsing(ConsoleSettings(stored_broker[0].bootstrap_servers)) as browser:
        monkeypatch.setattr("parley.tools.console.sessions.IDLE_S", -1.0)
        assert (await browser.client.get("/api/overview")).status_code == 401


async def test_a_move_to_another_store(tmp_path: Path) -> None:
    here, there = f"local://{tmp_path / 'here'}", f"local://{tmp_path / 'there'}"
    with Broker({"coordination.url": here}) as broker:
        async with browsing(ConsoleSettings(broker.bootstrap_servers, store=store_address(here, None))) as browser:
            await browser.change("POST", "coordination/move", {"url": there})
            move = (await browser.get("coordination"))["move"]
            while move["state"] not in ("done", "failed", "aborted"):
                await asyncio.sleep(0.1)
                move = (await browser.get("coordination"))["move"]
            assert (move["state"], move["store"]) == ("done", there), move
