"""Workers that form a group through a real broker, with connectors that run."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from confluent_kafka import Consumer
from confluent_kafka.admin import AdminClient, ConfigResource, NewTopic

from parley import Broker, Cluster
from parley.pipeline.connect.distributed import signing
from parley.pipeline.connect.distributed.protocol import PROTOCOLS, MemberState, encode_member
from parley.pipeline.connect.errors import ConnectError
from parley.protocol.client import Client
from parley.protocol.messages.groups import JoinGroupRequest, LeaveGroupRequest
from tests.pipeline.connect.distributed import hanging
from tests.pipeline.connect.workers import (
    WAIT_SECONDS,
    RunningWorker,
    file_sink,
    file_source,
    group_worker,
    lines,
    until,
)

pytestmark = pytest.mark.slow

SILENT_MS = 600_000
"""Longer than a test takes: the silent member's session does not expire, however slow the machine is."""


@pytest.fixture
def group() -> str:
    return f"group-{uuid4().hex[:8]}"


async def spread(worker: RunningWorker, name: str) -> set[str]:
    """Return the workers of a connector's tasks; all tasks must be running."""
    status = (await worker.client.get(f"/connectors/{name}/status")).json()
    states = [status.get("connector", {}).get("state"), *(task["state"] for task in status.get("tasks", []))]
    return {task["worker_id"] for task in status.get("tasks", [])} if set(states) == {"RUNNING"} else set()


async def spreads(worker: RunningWorker, name: str, hosts: set[str]) -> None:
    """Wait until the connector's tasks run on these workers."""
    await until(lambda: spread(worker, name), lambda found: found == hosts)


def host(worker: RunningWorker) -> str:
    return worker.url.removeprefix("http://").rstrip("/")


async def test_work_is_shared_and_moves_to_the_remaining_workers(
    connect_broker: Broker, group: str, tmp_path: Path
) -> None:
    bootstrap = connect_broker.bootstrap_servers
    async with group_worker(bootstrap, group) as one:
        async with group_worker(bootstrap, group) as other:
            for number, worker in enumerate((one, other)):  # one of them leads: the other forwards the request
                path = f"/connectors/snk{number}/config"
                made = await worker.ask("PUT", path, file_sink(tmp_path / "out", group, tasks_max="4"))
                assert made.status_code == 201
                assert made.headers["location"] == f"{worker.url}connectors/snk{number}"
            for worker in (one, other):
                await spreads(worker, "snk0", {host(one), host(other)})
                await spreads(worker, "snk1", {host(one), host(other)})
        await spreads(one, "snk0", {host(one)})
        await spreads(one, "snk1", {host(one)})


async def test_requests_reach_whoever_has_the_task(connect_broker: Broker, group: str, tmp_path: Path) -> None:
    bootstrap = connect_broker.bootstrap_servers
    async with group_worker(bootstrap, group) as one, group_worker(bootstrap, group) as other:
        await one.ask("PUT", "/connectors/snk/config", file_sink(tmp_path / "out", group, tasks_max="2"))
        both = {host(one), host(other)}
        await spreads(one, "snk", both)
        for worker in (one, other):
            for path in ("/tasks/0/restart", "/tasks/1/restart", "/restart"):
                answer = await worker.ask("POST", f"/connectors/snk{path}")
                assert answer.status_code == 204, answer.text
            await spreads(one, "snk", both)
            restarted = await worker.ask("POST", "/connectors/snk/restart?includeTasks=true")
            assert restarted.status_code == 202
            assert {task["state"] for task in restarted.json()["tasks"]} == {"RESTARTING"}
            await spreads(one, "snk", both)
            assert (await worker.ask("GET", "/connectors/none")).status_code == 404
            assert (await worker.ask("DELETE", "/connectors/none")).status_code == 404
        assert (await other.ask("PUT", "/connectors/snk/stop")).status_code == 204
        await one.reaches("snk", "STOPPED")
        await other.reaches("snk", "STOPPED")
        assert (await one.ask("DELETE", "/connectors/snk")).status_code == 204
        await until(lambda: other.get("/connectors"), lambda found: found == [])


async def test_configurations_survive_a_restart_of_all_workers(
    connect_broker: Broker, group: str, tmp_path: Path
) -> None:
    bootstrap, source, target = connect_broker.bootstrap_servers, tmp_path / "in.txt", tmp_path / "out.txt"
    source.write_text("a\nb\n")
    async with group_worker(bootstrap, group) as worker:
        await worker.ask("PUT", "/connectors/src/config", file_source(source, group))
        await worker.ask("PUT", "/connectors/snk/config", file_sink(target, group))
        await worker.ask("PUT", "/connectors/off/config", file_sink(tmp_path / "off.txt", group))
        await worker.reaches(
            "off", "RUNNING", "RUNNING"
        )  # the leader generates no task configurations for a paused connector
        await worker.ask("PUT", "/connectors/off/pause")
        assert await lines(target, 2) == ["a", "b"]
    with source.open("a") as file:
        file.write("c\n")
    async with group_worker(bootstrap, group) as worker:
        assert await lines(target, 3) == ["a", "b", "c"]  # the offsets of source and sink are still stored
        assert await worker.get("/connectors") == ["src", "snk", "off"]
        await worker.reaches("off", "PAUSED", "PAUSED")


async def test_records_are_kafkas(connect_broker: Broker, group: str, tmp_path: Path) -> None:
    bootstrap, source = connect_broker.bootstrap_servers, tmp_path / "in.txt"
    source.write_text("a\n")
    async with group_worker(bootstrap, group) as worker:
        await worker.ask("PUT", "/connectors/src/config", file_source(source, group))
        await until(lambda: worker.get("/connectors/src/offsets"), lambda found: found["offsets"] != [])
        await worker.ask("PUT", "/connectors/src/stop")
        await worker.reaches("src", "STOPPED")
        worker_id = host(worker)
    configs = dict(await asyncio.to_thread(read, bootstrap, f"{group}-config"))
    properties = json.loads(configs["connector-src"])["properties"]
    assert properties == {**file_source(source, group), "name": "src"}
    assert json.loads(configs["task-src-0"])["properties"]["file"] == str(source)
    assert configs["commit-src"] == '{"tasks":0}'
    assert configs["target-state-src"] == '{"state":"PAUSED","state.v2":"STOPPED"}'
    assert set(json.loads(configs["session-key"])) == {"key", "algorithm", "creation-timestamp"}
    offsets = await asyncio.to_thread(read, bootstrap, f"{group}-offset")
    assert offsets[-1] == (f'["src",{{"filename":"{source}"}}]', '{"position":2}')
    statuses = dict(await asyncio.to_thread(read, bootstrap, f"{group}-status"))
    said = json.loads(statuses["status-connector-src"])
    assert said.keys() == {"state", "trace", "worker_id", "generation", "version"}
    assert said["worker_id"] == worker_id
    topic = json.loads(statuses[f"status-topic-{group}:connector-src"])["topic"]
    assert topic.keys() == {"name", "connector", "task", "discoverTimestamp"}
    described = AdminClient({"bootstrap.servers": bootstrap}).list_topics(timeout=60).topics
    counts = {what: len(described[f"{group}-{what}"].partitions) for what in ("config", "offset", "status")}
    assert counts == {"config": 1, "offset": 25, "status": 5}
    assert {policy(bootstrap, f"{group}-{what}") for what in counts} == {"compact"}


def read(bootstrap: str, topic: str) -> list[tuple[str, str]]:
    """Return the keys and values of a topic, in the order of each partition; tombstones are left out."""
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": uuid4().hex,
            "auto.offset.reset": "earliest",
            "enable.partition.eof": True,
        }
    )
    consumer.subscribe([topic])
    partitions = len(consumer.list_topics(topic, timeout=60).topics[topic].partitions)
    found: list[tuple[str, str]] = []
    ended = 0
    while ended < partitions:
        message = consumer.poll(60)
        assert message is not None
        if message.error():
            ended += 1
            continue
        key, value = message.key(), message.value()
        if key is not None and value is not None:
            found.append((str(key, "utf-8"), str(value, "utf-8")))
    consumer.close()
    return found


def policy(bootstrap: str, topic: str) -> str:
    resource = ConfigResource(ConfigResource.Type.TOPIC, topic)
    admin = AdminClient({"bootstrap.servers": bootstrap})
    [described] = admin.describe_configs([resource]).values()
    return str(described.result(60)["cleanup.policy"].value)


async def test_only_workers_that_know_the_key_write_tasks(connect_broker: Broker, group: str, tmp_path: Path) -> None:
    async with group_worker(connect_broker.bootstrap_servers, group) as worker:
        await worker.ask("PUT", "/connectors/snk/config", file_sink(tmp_path / "out", group))
        await worker.reaches("snk", "RUNNING", "RUNNING")
        unsigned = await worker.ask("POST", "/connectors/snk/tasks", [{"a": "b"}])
        assert unsigned.status_code == 400
        body = b"[]"
        forged = await worker.client.post(
            "/connectors/snk/tasks",
            content=body,
            headers={"content-type": "application/json", **signing.sign(signing.new_key(0), body)},
        )
        assert (forged.status_code, forged.json()["message"]) == (
            403,
            "Internal request contained invalid signature.",
        )
        assert len(await worker.get("/connectors/snk/tasks")) == 1


@pytest.mark.parametrize("protocol", ["eager", "compatible"])
async def test_older_ways_to_share(connect_broker: Broker, group: str, tmp_path: Path, protocol: str) -> None:
    bootstrap = connect_broker.bootstrap_servers
    async with AsyncExitStack() as stack:
        workers = [
            await stack.enter_async_context(group_worker(bootstrap, group, connect_protocol=protocol)) for _ in range(2)
        ]
        config = file_sink(tmp_path / "out", group, tasks_max="4")
        for number, worker in enumerate(workers):
            await worker.ask("PUT", f"/connectors/snk{number}/config", config)
        hosts = {host(worker) for worker in workers}
        for number, worker in enumerate(workers):
            await spreads(worker, f"snk{number}", hosts)


def create(bootstrap: str, topic: NewTopic) -> None:
    admin = AdminClient({"bootstrap.servers": bootstrap})
    [made] = admin.create_topics([topic]).values()
    made.result(60)


async def test_a_topic_that_would_forget_is_refused(connect_broker: Broker, group: str) -> None:
    bootstrap = connect_broker.bootstrap_servers
    await asyncio.to_thread(create, bootstrap, NewTopic(f"{group}-status", 5))
    with pytest.raises(ConnectError, match=r"status.storage.topic.*required to have 'cleanup.policy=compact'"):
        async with group_worker(bootstrap, group):
            pass


async def test_configurations_of_several_partitions_are_refused(connect_broker: Broker, group: str) -> None:
    bootstrap = connect_broker.bootstrap_servers
    topic = NewTopic(f"{group}-config", 2, config={"cleanup.policy": "compact"})
    await asyncio.to_thread(create, bootstrap, topic)
    with pytest.raises(ConnectError, match=r"config.storage.topic.*single partition.*found 2"):
        async with group_worker(bootstrap, group):
            pass


async def test_no_broker_is_said(group: str) -> None:
    with pytest.raises(ConnectError, match="Are the brokers running"):
        async with group_worker("127.0.0.1:9", group):
            pass


async def test_a_sink_in_the_group_of_the_workers_is_refused(
    connect_broker: Broker, group: str, tmp_path: Path
) -> None:
    async with group_worker(connect_broker.bootstrap_servers, f"connect-{group}") as worker:
        made = await worker.ask("PUT", f"/connectors/{group}/config", file_sink(tmp_path / "out", "t"))
        assert made.status_code == 400
        assert "conflicts with Connect worker group" in made.json()["message"]


async def test_a_restart_of_the_broker_is_survived(tmp_path: Path, group: str) -> None:
    source, target = tmp_path / "in.txt", tmp_path / "out.txt"
    source.write_text("a\n")
    settings = {"group.min.session.timeout.ms": "500", "group.initial.rebalance.delay.ms": "0"}
    with Cluster(settings, brokers=1) as cluster:
        async with group_worker(cluster.bootstrap_servers, group) as worker:
            await worker.ask("PUT", "/connectors/src/config", file_source(source, group))
            await worker.ask("PUT", "/connectors/snk/config", file_sink(target, group))
            assert await lines(target, 1) == ["a"]
            [broker] = cluster.brokers
            await asyncio.to_thread(cluster.kill, broker)
            await asyncio.to_thread(cluster.restart, broker)
            with source.open("a") as file:
                file.write("b\n")
            assert (await lines(target, 2))[-1] == "b"
            await until(lambda: worker.client.get("/health"), lambda answer: answer.status_code == 200)


async def test_a_hanging_connector_delays_no_other(connect_broker: Broker, group: str, tmp_path: Path) -> None:
    bootstrap = connect_broker.bootstrap_servers
    hanging.LET_GO.clear()
    config = {"connector.class": f"{hanging.__name__}.Hanging", "topics": group}
    try:
        async with group_worker(bootstrap, group, task_shutdown_graceful_timeout_ms="0") as worker:
            for number in range(10):  # more than the threads of the pool here
                made = await worker.ask("PUT", f"/connectors/hangs{number}/config", config)
                assert made.status_code == 201, made.text
            await worker.ask("PUT", "/connectors/snk/config", file_sink(tmp_path / "out", group))
            await worker.reaches("snk", "RUNNING", "RUNNING")
            assert (await worker.ask("DELETE", "/connectors/hangs0")).status_code == 204
            await worker.ask("PUT", "/connectors/snk/pause")
            await worker.reaches("snk", "PAUSED", "PAUSED")
    finally:
        hanging.LET_GO.set()


@asynccontextmanager
async def silent_member(bootstrap: str, group: str) -> AsyncIterator[None]:
    """Have a member in the workers' group that does not respond: until it leaves, a rebalance waits for it."""
    metadata = encode_member(MemberState("http://127.0.0.1:9/", -1), PROTOCOLS["sessioned"])
    protocols = [JoinGroupRequest.JoinGroupRequestProtocol(name="sessioned", metadata=metadata)]
    member_id = ""
    async with Client(bootstrap, client_id="silent") as client:
        coordinator = await client.coordinator(group)
        for _ in range(2):  # the first response contains only the member id
            request = JoinGroupRequest(
                group_id=group,
                session_timeout_ms=SILENT_MS,
                rebalance_timeout_ms=SILENT_MS,
                member_id=member_id,
                protocol_type="connect",
                protocols=protocols,
            )
            answer = await client.send(request, node=coordinator, timeout=WAIT_SECONDS)
            member_id = answer.member_id
        assert answer.error_code == 0
        yield
        left = LeaveGroupRequest(group_id=group, members=[LeaveGroupRequest.MemberIdentity(member_id=member_id)])
        assert (await client.send(left, node=coordinator)).members[0].error_code == 0


async def test_requests_are_refused_during_a_rebalance(connect_broker: Broker, group: str, tmp_path: Path) -> None:
    bootstrap = connect_broker.bootstrap_servers
    async with group_worker(bootstrap, group) as worker:
        herder: Any = worker.herder
        herder._settings = replace(herder._settings, settle_ms=50)
        await worker.ask("PUT", "/connectors/snk/config", file_sink(tmp_path / "out", group))
        await worker.reaches("snk", "RUNNING", "RUNNING")
        restart = "/connectors/snk/restart"
        async with silent_member(bootstrap, group):
            herder._membership.rejoin()
            refused = await until(lambda: worker.ask("POST", restart), lambda found: found.status_code == 409)
            assert refused.json() == {
                "error_code": 409,
                "message": "Cannot complete request momentarily due to stale configuration (typically caused by a "
                "concurrent config change)",
            }
            for method, path in (
                ("POST", "/restart?includeTasks=true"),
                ("POST", "/tasks/0/restart"),
                ("PUT", "/stop"),
                ("PUT", "/config"),
                ("DELETE", ""),
            ):
                assert (await worker.ask(method, f"/connectors/snk{path}", {})).status_code == 409, path
            assert await worker.get("/connectors") == ["snk"]
        await until(lambda: worker.ask("POST", restart), lambda found: found.status_code == 204)
