"""Connectors in the console: those of real workers in this process, users' rights, and those of failing workers."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from parley import Broker
from parley.pipeline.connect.distributed.serving import standalone
from parley.pipeline.connect.worker_config import STANDALONE, WorkerConfig
from parley.tools.cli.invocation import CommandError
from parley.tools.console.preparation import Wanted, prepared
from tests.pipeline.connect.rest.test_login import SECRET, jaas_file
from tests.pipeline.connect.workers import (
    RunningWorker,
    counter,
    file_sink,
    file_source,
    lines,
    now_ms,
    settings,
    standalone_worker,
    until,
)
from tests.support.certificates import Authority
from tests.tools.console import few_rights
from tests.tools.console.conftest import Browser, browsing

pytestmark = pytest.mark.slow


@asynccontextmanager
async def at_workers(bootstrap: str, *urls: str, **more: Any) -> AsyncIterator[Browser]:
    """A browser at a console of the cluster and these workers."""
    wanted = Wanted(bootstrap=bootstrap, listen="http://127.0.0.1:0", connect_urls=urls, **more)
    async with browsing(prepared(wanted).settings) as browser:
        yield browser


async def created(worker: RunningWorker, name: str, config: Any) -> None:
    assert (await worker.ask("PUT", f"/connectors/{name}/config", config)).status_code == 201


async def test_connectors_are_shown_and_changed(stored_broker: tuple[Broker, str], tmp_path: Path) -> None:
    bootstrap = stored_broker[0].bootstrap_servers
    (tmp_path / "in.txt").write_text("one\ntwo\n")
    async with standalone_worker(bootstrap, tmp_path) as worker, at_workers(bootstrap, worker.url) as browser:
        await created(worker, "in", file_source(tmp_path / "in.txt", "connected"))
        await created(worker, "out", file_sink(tmp_path / "out.txt", "connected"))
        repaired = str(tmp_path / "repaired")
        await created(worker, "bad", counter("counted", 5, counter="c", fail_at=0, repaired=repaired))
        await lines(tmp_path / "out.txt", 2)
        await worker.reaches("bad", "RUNNING", "FAILED")

        async def listed() -> dict[str, Any]:
            return {one["name"]: one for one in (await browser.get("connectors"))["items"]}

        found = await until(listed, lambda found: found["out"]["lag"] == 0)
        assert {name: (one["type"], one["state"], one["failed"]) for name, one in found.items()} == {
            "bad": ("source", "RUNNING", 1), "in": ("source", "RUNNING", 0), "out": ("sink", "RUNNING", 0),
        }  # fmt: skip
        assert "cannot count beyond 0" in found["bad"]["tasks"][0]["trace"]
        assert "config" not in found["bad"]
        troubled = (await browser.get("connectors", troubled=1))["items"]
        assert [one["name"] for one in troubled] == ["bad"]
        await browser.change("POST", "connectors/0/out/pause", {})
        await worker.reaches("out", "PAUSED", "PAUSED")
        assert (await listed())["out"]["state"] == "PAUSED"
        await browser.change("POST", "connectors/0/out/resume", {})
        await worker.reaches("out", "RUNNING", "RUNNING")
        (tmp_path / "repaired").touch()
        await browser.change("POST", "connectors/0/bad/restart-failed", {})
        await worker.reaches("bad", "RUNNING", "RUNNING")
        await browser.change("POST", "connectors/0/in/restart", {})
        await worker.reaches("in", "RUNNING", "RUNNING")
        for path in ("0/missing/pause", "1/in/pause", "0/in/delete", "0/%2E%2E/pause"):
            assert (await browser.try_change("POST", f"connectors/{path}", {})).status_code == 404, path
        async with at_workers(bootstrap, worker.url, read_only=True) as reader:
            assert (await reader.get("connectors"))["total"] == 3
            assert (await reader.try_change("POST", "connectors/0/in/pause", {})).status_code == 403


async def test_workers_in_trouble_do_not_hide_others(
    stored_broker: tuple[Broker, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("parley.tools.console.connectors_api._TIMEOUT_S", 2.0)
    bootstrap = stored_broker[0].bootstrap_servers

    async def hang(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read()
        writer.close()

    async with await asyncio.start_server(hang, "127.0.0.1", 0) as server:
        hanging = f"http://ann:secret@127.0.0.1:{server.sockets[0].getsockname()[1]}"
        async with standalone_worker(bootstrap, tmp_path) as worker:
            urls = ("http://127.0.0.1:1", hanging, worker.url)
            async with at_workers(bootstrap, *urls) as browser:
                found = await browser.get("connectors")
        server.close()
    errors = [one["error"] for one in found["workers"]]
    assert [error is None for error in errors] == [False, False, True]
    assert all("does not respond" in error for error in errors[:2])
    assert "secret" not in str(found)


async def test_a_login_and_tls_at_the_workers(stored_broker: tuple[Broker, str], tmp_path: Path) -> None:
    bootstrap = stored_broker[0].bootstrap_servers
    authority = Authority()
    trust = authority.write(tmp_path / "trust.pem")
    worker_settings = {
        "listeners": "https://127.0.0.1:0",
        "ssl.keystore.location": str(authority.issue("worker", "127.0.0.1").write_pem(tmp_path / "worker.pem")),
        "rest.extension.classes": "org.apache.kafka.connect.rest.basic.auth.extension.BasicAuthSecurityRestExtension",
        "java.security.auth.login.config": str(jaas_file(tmp_path)),
    }
    properties = {"connect.ssl.truststore.location": str(trust), "connect.basic.auth.user.info": f"alice:{SECRET}"}
    told = settings(bootstrap) | worker_settings | {"offset.storage.file.filename": str(tmp_path / "offsets")}
    async with standalone(WorkerConfig.parse(told, STANDALONE), now_ms) as (_, url):
        async with at_workers(bootstrap, url, properties=properties) as browser:
            assert (await browser.get("connectors"))["workers"][0]["error"] is None
        wrong = properties | {"connect.basic.auth.user.info": "alice:wrong"}
        async with at_workers(bootstrap, url, properties=wrong) as browser:
            assert "rejected the request" in (await browser.get("connectors"))["workers"][0]["error"]


async def test_a_user_needs_rights_on_the_cluster(tmp_path: Path) -> None:
    secured = few_rights.SecuredListener(tmp_path)
    more = {
        "listeners": "PLAINTEXT://127.0.0.1:0,SECURE://127.0.0.1:0",
        "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,SECURE:SASL_SSL",
        "inter.broker.listener.name": "PLAINTEXT",
    }
    async with Broker(secured.settings | more) as broker:
        await asyncio.to_thread(few_rights.populate, broker.bootstrap_servers)
        (address,) = (f"{one.host}:{one.port}" for one in broker.server.endpoints if one.listener == "SECURE")
        async with standalone_worker(broker.bootstrap_servers, tmp_path) as worker:
            await created(worker, "in", file_source(tmp_path / "in.txt", "mine"))
            for user, status in (("ann", 403), ("root", 200)):
                async with at_workers(address, worker.url, properties=secured.properties) as browser:
                    await browser.open()
                    await few_rights.log_in(browser, user, few_rights.PASSWORDS[user])
                    assert await few_rights.status(browser, "connectors") == status
                    assert await few_rights.status(browser, "connectors/0/in/pause", {}, "POST") == status


@pytest.mark.parametrize(
    ("url", "properties", "reason"),
    [
        ("worker:8083", {}, "must look like http://host:8083"),
        ("http://", {}, "must look like http://host:8083"),
        ("http://a:1", {"connect.basic.auth.user.info": "ann"}, "must be user:password"),
        ("https://a:1", {"connect.ssl.truststore.location": "/missing"}, "connect.ssl"),
    ],
)
def test_settings_that_cannot_be_used(url: str, properties: dict[str, str], reason: str) -> None:
    wanted = Wanted(bootstrap="a:1", listen="http://127.0.0.1:0", connect_urls=[url], properties=properties)
    with pytest.raises(CommandError, match=reason):
        prepared(wanted)


async def test_without_workers_there_are_no_connectors(stored_broker: tuple[Broker, str]) -> None:
    async with at_workers(stored_broker[0].bootstrap_servers) as browser:
        assert (await browser.open())["connectors"] is False
        assert (await browser.client.get("/api/connectors")).status_code == 404
