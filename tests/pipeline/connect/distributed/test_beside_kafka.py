"""A worker of Apache Kafka Connect in a group with ours: each reads what the other writes, and each of them leads in
turn."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from uuid import uuid4

import httpx
import pytest

from parley import Broker
from tests.pipeline.connect.workers import RunningWorker, file_source, group_worker, until
from tests.support.kafka import START_SECONDS, JavaServer, java_command
from tests.support.ports import free_port

pytestmark = [pytest.mark.slow, pytest.mark.system]

JSON = "org.apache.kafka.connect.json.JsonConverter"


@asynccontextmanager
async def kafkas_worker(bootstrap: str, group: str, support: str, folder: Path) -> AsyncIterator[httpx.AsyncClient]:
    """Run a Kafka Connect 4.3.1 worker in the group. Yields a client of its REST API. The worker has no connectors of
    its own."""
    port = free_port()
    told = {
        "bootstrap.servers": bootstrap,
        "group.id": group,
        "key.converter": JSON,
        "value.converter": JSON,
        "listeners": f"HTTP://127.0.0.1:{port}",
        "heartbeat.interval.ms": "300",
        "session.timeout.ms": "30000",
        "scheduled.rebalance.max.delay.ms": "0",
        "exactly.once.source.support": support,
        **{f"{what}.storage.topic": f"{group}-{what}" for what in ("config", "offset", "status")},
        **{f"{what}.storage.replication.factor": "1" for what in ("config", "offset", "status")},
    }
    properties = folder / "kafka.properties"
    properties.write_text("".join(f"{key}={value}\n" for key, value in told.items()))
    server = JavaServer(java_command("org.apache.kafka.connect.cli.ConnectDistributed", str(properties)), cwd=folder)
    try:
        async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}", timeout=60) as client:
            await until(lambda: _health(client), lambda status: status == 200, START_SECONDS)
            yield client
    finally:
        await asyncio.to_thread(server.kill)


async def _health(client: httpx.AsyncClient) -> int:
    try:
        return (await client.get("/health")).status_code
    except httpx.TransportError:
        return 0


@pytest.mark.parametrize("support", ["enabled", pytest.param("disabled", marks=pytest.mark.soak)])
async def test_one_group(connect_broker: Broker, tmp_path: Path, support: str) -> None:
    """This includes exactly-once sources: with them, the leaders write in transactions and fence each other."""
    bootstrap, group, source = connect_broker.bootstrap_servers, f"beside-{uuid4().hex[:8]}", tmp_path / "in.txt"
    source.write_text("a\nb\n")
    config = file_source(source, group)
    async with AsyncExitStack() as stack:
        ours = await stack.enter_async_context(group_worker(bootstrap, group, exactly_once_source_support=support))
        await ours.ask("PUT", "/connectors/src/config", config)
        await ours.reaches("src", "RUNNING", "RUNNING")
        async with kafkas_worker(bootstrap, group, support, tmp_path) as kafkas:
            await kafka_reads_and_asks(ours, kafkas, {**config, "name": "src"}, source)
            await stack.aclose()
            async with group_worker(bootstrap, group, exactly_once_source_support=support) as later:
                await ours_reads_and_asks(later, kafkas)


async def kafka_reads_and_asks(
    ours: RunningWorker, kafkas: httpx.AsyncClient, config: dict[str, str], source: Path
) -> None:
    """Our worker leads: Kafka's worker forwards requests to it."""
    assert (await kafkas.get("/connectors")).json() == ["src"]
    assert (await kafkas.get("/connectors/src/config")).json() == config
    ours_status, kafkas_status = await ours.get("/connectors/src/status"), await kafkas.get("/connectors/src/status")
    assert kafkas_status.json() == {**ours_status, "type": "unknown"}  # it does not have the class
    assert (await kafkas.put("/connectors/src/pause")).status_code == 202
    await ours.reaches("src", "PAUSED", "PAUSED")
    assert (await kafkas.put("/connectors/src/resume")).status_code == 202
    await ours.reaches("src", "RUNNING", "RUNNING")
    assert (await kafkas.post("/connectors/src/restart?includeTasks=true")).status_code == 202
    await ours.reaches("src", "RUNNING", "RUNNING")
    offsets = {"offsets": [{"partition": {"filename": str(source)}, "offset": {"position": 4}}]}
    await until(lambda: ours.get("/connectors/src/offsets"), lambda found: found == offsets)
    assert (await kafkas.put("/connectors/src/stop")).status_code == 204
    await ours.reaches("src", "STOPPED")
    reset = await kafkas.delete("/connectors/src/offsets")
    assert (reset.status_code, await ours.get("/connectors/src/offsets")) == (200, {"offsets": []})
    more = await kafkas.patch("/connectors/src/config", json={"more": "than this"})
    assert (more.status_code, more.json()["config"]["more"]) == (200, "than this")


async def ours_reads_and_asks(ours: RunningWorker, kafkas: httpx.AsyncClient) -> None:
    """Kafka's worker leads: our worker forwards requests to it."""
    assert (await ours.get("/connectors/src/config"))["more"] == "than this"
    assert await ours.get("/connectors/src/tasks") == []
    unknown = await ours.ask("PUT", "/connectors/new/config", {"connector.class": "FileStreamSource", "topic": "t"})
    assert unknown.status_code == 400, unknown.text  # Kafka's worker lacks the class
    assert (await ours.ask("PUT", "/connectors/none/stop")).json()["message"] == "Unknown connector none"
    assert (await ours.ask("DELETE", "/connectors/src")).status_code == 204
    await until(lambda: kafkas.get("/connectors"), lambda answer: answer.json() == [])
    await until(lambda: ours.get("/connectors"), lambda found: found == [])
