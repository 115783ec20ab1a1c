"""``parley coordination`` on the embedded store of a running cluster, and of a stopped cluster."""

from __future__ import annotations

import asyncio
import itertools
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from parley import Cluster
from parley.consensus.errors import Unavailable
from parley.consensus.memory import MemoryBackend, MemoryStore
from parley.consensus.recipes.keyvalue import KeyValue
from parley.consensus.registry import create_backend
from parley.consensus.store_move.store_record import ROLLED_BACK_KEY
from parley.tools.coordination.store_fitness import Found, check
from tests.tools.conftest import Parley


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("cluster")


@pytest.fixture(scope="module")
def cluster(folder: Path) -> Iterator[Cluster]:
    with Cluster(brokers=2, data_dir=folder) as running:
        yield running


@pytest.fixture
def store(cluster: Cluster, folder: Path, parley: Parley) -> str:
    """Return the address of the cluster's current store."""
    told = parley("coordination", "migrate", "--status", "--json", "--bootstrap-server", cluster.bootstrap_servers)
    address: str = json.loads(told.out)["store"]
    return address


def test_status_shows_the_live_brokers(cluster: Cluster, store: str, parley: Parley, tmp_path: Path) -> None:
    config = tmp_path / "server.properties"
    config.write_text(f"coordination.url={store}\n")
    shown = json.loads(parley("coordination", "status", "--config", str(config), "--json").out)
    assert shown["state"] == "in charge"
    assert [each["broker"] for each in shown["members"]] == [1, 2]
    assert "State:        in charge\n" in parley("coordination", "status", "--coordination-url", store).out
    twice = parley("coordination", "status", store, "--coordination-url", store)
    assert (twice.code, "Name one store" in twice.err) == (1, True)
    assert shown["controller"] in (1, 2)
    assert shown["controllerEpoch"] >= 1
    assert shown["keys"]["data/brokers"]["count"] == 2
    assert {each["session"] for each in shown["members"]} <= set(shown["sessions"])
    assert shown["watches"]["count"] is None
    text = parley("coordination", "status", store).out
    assert f"Sessions:     {len(shown['sessions'])}\nWatches:      unknown (there is no server: each process" in text
    assert f"Cluster ID:   {shown['clusterId']}" in text
    assert f"Controller:   {shown['controller']} (epoch {shown['controllerEpoch']})" in text


def test_without_a_store_the_command_names_that_of_a_broker_without_a_file(
    parley: Parley, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    typed = parley("coordination", "status")
    assert (typed.code, typed.out) == (1, "")
    assert f"local://{tmp_path}/parley-data/coordination" in typed.err
    assert "not both" in parley("coordination", "status", "memory:", "--config", "b.properties").err


def test_status_tells_a_store_that_was_merely_opened_from_one_in_charge(parley: Parley, tmp_path: Path) -> None:
    opened, left = f"local://{tmp_path}/opened", f"local://{tmp_path}/left"
    asyncio.run(_put(opened, {}))
    asyncio.run(_put(left, {"k": b"v"}))
    assert "State:        empty\n" in parley("coordination", "status", opened).out
    assert json.loads(parley("coordination", "status", opened, "--json").out)["state"] == "empty"
    assert "State:        in charge\n" in parley("coordination", "status", left).out


@pytest.mark.slow
def test_a_cluster_is_moved_and_moved_back(cluster: Cluster, store: str, parley: Parley, tmp_path: Path) -> None:
    at = ("--bootstrap-server", cluster.bootstrap_servers)
    assert parley("topics", "--create", "--topic", "moved", *at).code == 0
    other = f"local://{tmp_path}/other"
    status = ("coordination", "migrate", "--status", *at)
    nothing = "Nothing was moved: the cluster already uses this store."
    same = parley("coordination", "migrate", "--to", store, *at)
    assert (same.code, same.out) == (0, f"{nothing} It uses {store}.\n"), same.err
    assert parley(*status).out == f"The cluster has never moved. It uses {store}.\n"
    moved = parley("coordination", "migrate", "--to", other, *at)
    assert moved.out == f"The cluster has moved. It uses {other}.\n", moved.err
    again = parley("coordination", "migrate", "--to", other, *at)
    assert (again.code, again.out) == (0, f"{nothing} It uses {other}.\n")
    assert parley(*status).out == moved.out, "the state, not the latest attempt"
    assert "State:        moved (latest move: " in parley("coordination", "status", store).out
    assert parley("topics", "--create", "--topic", "after", *at).code == 0
    left = parley("coordination", "dump", store)
    assert (left.code, left.out, "out of date; dump" in left.err) == (1, "", True)
    back = parley("coordination", "migrate", "--to", store, *at, "--json")
    assert json.loads(back.out)["state"] == "done"
    assert {"moved", "after"} <= set(parley("topics", "--list", *at).lines)


def test_a_move_that_makes_no_sense_is_refused(cluster: Cluster, store: str, parley: Parley, tmp_path: Path) -> None:
    at = ("--bootstrap-server", cluster.bootstrap_servers)
    full = f"local://{tmp_path}/full"
    asyncio.run(_put(full, {"k": b"v"}))
    for words, reason in (
        (("--to", full), "it is not empty: it contains keys such as data/k"),
        (("--to", "memory:"), "no two brokers would find the same one. Name a store that every broker reaches"),
        (("--to", "nowhere://x"), "unknown coordination store 'nowhere'"),
        (("--abort",), "No move is under way"),
        (("--abort", "--status"), "Name exactly one of --to, --status, --abort"),
        ((), "Name exactly one of --to, --status, --abort"),
    ):
        refused = parley("coordination", "migrate", *words, *at)
        assert refused.code == 1
        assert reason in refused.out + refused.err
    assert json.loads(parley("coordination", "migrate", "--status", "--json", *at).out)["store"] == store


async def _mark(url: str) -> bytes | None:
    async with create_backend(url) as backend:
        mark = await backend.get(ROLLED_BACK_KEY)
    return None if mark is None else mark.value


async def _put(url: str, values: dict[str, bytes]) -> None:
    async with create_backend(url) as backend:
        for key, value in values.items():
            await KeyValue(backend).put(key, value)


@pytest.mark.slow
def test_a_dump_is_restored_and_a_cluster_goes_on_with_it(parley: Parley, tmp_path: Path) -> None:
    lost, other = f"local://{tmp_path}/coordination", f"local://{tmp_path}/restored"
    dumped = tmp_path / "store.json"
    with Cluster(brokers=1, data_dir=tmp_path) as cluster:
        at = ("--bootstrap-server", cluster.bootstrap_servers)
        assert parley("topics", "--create", "--topic", "kept", *at).code == 0
        in_use = parley("coordination", "dump", lost)
        dumped.write_text(in_use.out)
        refused = parley("coordination", "restore", str(dumped), lost, "--overwrite")
        assert (refused.code, "brokers are running on this store" in refused.err) == (1, True)
    restored = parley("coordination", "restore", str(dumped), other)
    assert (restored.code, "Start all brokers" in restored.err) == (0, True)
    assert asyncio.run(_mark(other)) == b"restored from a dump", "the next controller does not rely on the store"
    assert json.loads(parley("coordination", "dump", other).out)["entries"] == json.loads(in_use.out)["entries"]
    again = parley("coordination", "restore", str(dumped), other)
    assert (again.code, "the store is not empty" in again.err) == (1, True)
    assert parley("coordination", "restore", str(dumped), other, "--overwrite").code == 0
    with Cluster({"coordination.url": other}, brokers=1, data_dir=tmp_path) as cluster:
        assert "kept" in parley("topics", "--list", "--bootstrap-server", cluster.bootstrap_servers).lines
        assert asyncio.run(_mark(other)) is None


def test_secrets_are_masked_unless_asked_for(parley: Parley, tmp_path: Path) -> None:
    store, other = f"local://{tmp_path}/a", f"local://{tmp_path}/b"
    settings = {"listener.name.x.ssl.keystore.password": "hush", "log.retention.ms": "1"}
    asyncio.run(_put(store, {"configs/broker/1": json.dumps(settings).encode(), "raw": b"\xff\x00"}))
    shown = parley("coordination", "dump", store)
    assert "hush" not in shown.out
    entries = json.loads(shown.out)["entries"]
    assert entries["data/configs/broker/1"] == {**settings, "listener.name.x.ssl.keystore.password": "<hidden>"}
    (tmp_path / "masked.json").write_text(shown.out)
    refused = parley("coordination", "restore", str(tmp_path / "masked.json"), other)
    assert (refused.code, "its secrets are masked" in refused.err) == (1, True)
    (tmp_path / "whole.json").write_text(parley("coordination", "dump", store, "--show-secrets").out)
    assert parley("coordination", "restore", str(tmp_path / "whole.json"), other).code == 0
    assert asyncio.run(_values(other)) == asyncio.run(_values(store))


async def _values(url: str) -> dict[str, bytes]:
    async with create_backend(url) as backend:
        return {entry.key: _same(entry.value) async for entry in KeyValue(backend).entries()}


def _same(value: bytes) -> Any:
    try:
        return json.loads(value)
    except ValueError:
        return value


@pytest.mark.parametrize(
    "text",
    ["no json", "[" * 100_000, "[]", "{}", '{"format": "parley-coordination-1", "entries": {"//": 1}}'],
)
def test_an_invalid_dump_is_not_restored(parley: Parley, tmp_path: Path, text: str) -> None:
    (tmp_path / "dump.json").write_text(text)
    refused = parley("coordination", "restore", str(tmp_path / "dump.json"), f"local://{tmp_path}/x")
    assert refused.code == 1
    assert len(refused.err.splitlines()) == 1


def test_no_dump_says_which_store_is_in_charge(parley: Parley, tmp_path: Path) -> None:
    store, dump = f"local://{tmp_path}/x", tmp_path / "dump.json"
    whole: dict[str, Any] = {"format": "parley-coordination-1", "identity": "0" * 32, "term": 0, "past": []}
    dump.write_text(json.dumps({**whole, "entries": {"data/a": 1, "charge/state": {"state": "moved"}}}))
    refused = parley("coordination", "restore", str(dump), store)
    assert (refused.code, "charge/state" in refused.err) == (1, True)
    dump.write_text(json.dumps({**whole, "entries": {"data/a": 1}}))
    assert parley("coordination", "restore", str(dump), store).code == 0


@pytest.mark.parametrize("command", ["status", "dump"])
def test_looking_at_an_empty_place_begins_nothing(parley: Parley, tmp_path: Path, command: str) -> None:
    looked = parley("coordination", command, f"local://{tmp_path}/none")
    assert (looked.code, looked.out) == (1, "")
    assert "it contains no Parley data" in looked.err
    assert not (tmp_path / "none").exists()


@pytest.mark.slow
def test_a_store_is_tried_and_left_as_it_was(parley: Parley, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for limit in ("GOOD_P99_S", "BAD_P99_S", "SLOW_NOTICE_S"):  # the speed of the disk is not the command's fault
        monkeypatch.setattr(f"parley.tools.coordination.store_fitness.{limit}", 60.0)
    store = f"local://{tmp_path}/store"
    asyncio.run(_put(store, {"k": b"1"}))
    tried = parley("coordination", "check", store)
    assert tried.code == 0
    assert "A cluster would run well on this store." in tried.out
    assert f"closed  only the owner of {tmp_path}/store can open it" in tried.lines
    (tmp_path / "store").chmod(0o755)
    config = tmp_path / "server.properties"
    config.write_text(f"coordination.url={store}\n")
    opened = parley("coordination", "check", "--config", str(config))
    assert (
        f"open    {tmp_path}/store has the mode 755: other users of this machine can open it: to close it, "
        in opened.out
    )
    shown = json.loads(parley("coordination", "check", store, "--json").out)["protection"]
    assert (shown["tree"]["state"], shown["connection"]["state"]) == ("open", "closed")
    assert json.loads(parley("coordination", "dump", store).out)["entries"] == {"data/k": 1}
    assert parley("coordination", "check", "nowhere://x").code == 1
    assert parley("coordination", "status").code == 1


def test_a_store_of_one_process_gets_a_remark(parley: Parley, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("parley.tools.coordination.store_fitness.BAD_P99_S", 60.0)
    tried = parley("coordination", "check", "memory:")
    assert (tried.code, "no other broker can use it" in tried.lines[-1]) == (0, True)


@pytest.mark.slow
async def test_a_store_that_violates_a_guarantee_has_problems() -> None:
    class Deaf(MemoryBackend):
        async def open_session(self, ttl_ms: int) -> Any:
            raise Unavailable("no session for you")

    backend = Deaf(MemoryStore())
    async with backend:
        calls = itertools.count()
        backend.delay_s = lambda: 0.0 if next(calls) % 20 else 0.15  # some are slow
        found = await check(backend, 0.0)
        assert not (await backend.list("", limit=10)).entries
    assert any("no session for you" in problem for problem in found.problems)
    assert found.verdict.startswith("A cluster would not run on this store: sessions: Unavailable")
    assert any("every change to a leader" in remark for remark in found.remarks)
    assert Found(remarks=["x"]).verdict == "A cluster would run on this store, but: x."
