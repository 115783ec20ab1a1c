"""Worker processes that are killed while their connectors are running."""

from __future__ import annotations

import asyncio
import signal
import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any
from uuid import uuid4

import httpx
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic

from parley import Broker
from tests.pipeline.connect.workers import Reader, file_sink, file_source, settings, until
from tests.support.preloaded import preloaded_command

PARTITIONS = 4
RECORDS = 20_000

pytestmark = [pytest.mark.slow, pytest.mark.system]


class WorkerProcess:
    """A process of ``parley connect distributed``."""

    def __init__(self, properties: Path) -> None:
        self.process = subprocess.Popen(
            preloaded_command("connect", "distributed", str(properties)),
            cwd=properties.parent,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        self.url = ""

    def ready(self) -> None:
        """Wait until the worker serves requests."""
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        assert line.startswith("Connect is ready: "), line
        self.url = line.split()[-1]

    @property
    def id(self) -> str:
        return self.url.removeprefix("http://").rstrip("/")

    def kill(self) -> None:
        """Kill the process (SIGKILL)."""
        self.process.send_signal(signal.SIGKILL)
        self.process.wait()


@pytest.fixture
def properties(connect_broker: Broker, tmp_path: Path) -> Path:
    group = f"kills-{uuid4().hex[:8]}"
    told = settings(connect_broker.bootstrap_servers) | {
        **{f"{what}.storage.topic": f"{group}-{what}" for what in ("config", "offset", "status")},
        **{f"{what}.storage.replication.factor": "-1" for what in ("config", "offset", "status")},
        "value.converter": "org.apache.kafka.connect.json.JsonConverter",
        "value.converter.schemas.enable": "false",
        "group.id": group,
        "heartbeat.interval.ms": "300",
        "session.timeout.ms": "1500",
        "scheduled.rebalance.max.delay.ms": "0",
        "exactly.once.source.support": "enabled",
    }
    path = tmp_path / "worker.properties"
    path.write_text("".join(f"{key}={value}\n" for key, value in told.items()))
    return path


@pytest.fixture
def workers(properties: Path) -> Iterator[list[WorkerProcess]]:
    """Yield two workers of a group. Workers that a test adds are ended with them."""
    started = [WorkerProcess(properties), WorkerProcess(properties)]
    try:
        for worker in started:
            worker.ready()
        yield started
    finally:
        for worker in started:
            worker.kill()


def produce(bootstrap: str, topic: str, start: int, end: int) -> None:
    producer = Producer({"bootstrap.servers": bootstrap, "linger.ms": 5})
    for number in range(start, end):
        producer.produce(topic, b'{"n": %d}' % number, partition=number % PARTITIONS)
        producer.poll(0)
    assert producer.flush(60) == 0


async def put(client: httpx.AsyncClient, name: str, config: Mapping[str, str]) -> None:
    """Configure a connector. Sessions here are short: a worker refuses (409) while its group rebalances."""
    await until(
        lambda: client.put(f"/connectors/{name}/config", json=dict(config)), lambda made: made.status_code in (200, 201)
    )


async def statuses(client: httpx.AsyncClient, name: str) -> dict[str, Any]:
    found: dict[str, Any] = (await client.get(f"/connectors/{name}/status")).json()
    return found


def where(status: dict[str, Any]) -> set[str]:
    """Wait until all tasks are running. Returns their workers."""
    tasks = status.get("tasks", [])
    return {one["worker_id"] for one in tasks} if {one["state"] for one in tasks} == {"RUNNING"} else set()


async def test_each_record_is_in_one_file_once(
    connect_broker: Broker, workers: list[WorkerProcess], properties: Path, tmp_path: Path
) -> None:
    bootstrap, topic = connect_broker.bootstrap_servers, f"t-{uuid4().hex[:8]}"
    admin = AdminClient({"bootstrap.servers": bootstrap})
    admin.create_topics([NewTopic(topic, PARTITIONS)])[topic].result(30)
    config = {
        "connector.class": "ParquetSink",
        "tasks.max": str(PARTITIONS),
        "topics": topic,
        "url": str(tmp_path / "out"),
        "flush.size": "500",
        "rotate.interval.ms": "50",
    }
    first, second = workers
    async with httpx.AsyncClient(base_url=first.url, timeout=60) as client:
        await put(client, "out", config)
        await until(lambda: statuses(client, "out"), lambda found: where(found) == {first.id, second.id})
    for number, victim in enumerate((first, second)):
        begin = number * RECORDS
        producing = asyncio.create_task(asyncio.to_thread(produce, bootstrap, topic, begin, begin + RECORDS))
        await has_more(tmp_path / "out", begin + 1)
        victim.kill()
        workers.append(WorkerProcess(properties))
        await asyncio.to_thread(workers[-1].ready)
        await producing
    await has_more(tmp_path / "out", 2 * RECORDS)
    table = await asyncio.to_thread(read, tmp_path / "out")
    assert sorted(table["n"].to_pylist()) == list(range(2 * RECORDS))
    places = list(zip(table["kafka_partition"].to_pylist(), table["kafka_offset"].to_pylist(), strict=True))
    assert len(set(places)) == len(places)


async def has_more(folder: Path, count: int) -> None:
    """Wait until the files contain this many rows."""
    await until(lambda: asyncio.to_thread(rows, folder), lambda found: found >= count)


def rows(folder: Path) -> int:
    return sum(pq.read_metadata(path).num_rows for path in folder.rglob("*.parquet"))


def read(folder: Path) -> pa.Table:
    return pa.concat_tables(pq.ParquetFile(path).read() for path in folder.rglob("*.parquet"))


async def test_each_line_is_seen_once_by_readers_of_committed_records(
    connect_broker: Broker, workers: list[WorkerProcess], properties: Path, tmp_path: Path
) -> None:
    source, topic = tmp_path / "in.txt", f"t-{uuid4().hex[:8]}"
    expected = [str(number) for number in range(RECORDS)]
    source.write_text("".join(f"{line}\n" for line in expected))
    bootstrap = connect_broker.bootstrap_servers
    admin = AdminClient({"bootstrap.servers": bootstrap})
    admin.create_topics([NewTopic(topic, 1)])[topic].result(30)
    config = {**file_source(source, topic, batch_size="50", exactly_once_support="required")}
    config["value.converter"] = "org.apache.kafka.connect.storage.StringConverter"
    async with httpx.AsyncClient(base_url=workers[0].url, timeout=60) as client:
        await put(client, "in", config)
    reader = Reader(bootstrap, topic)
    for part in (1, 2):
        await until(reader.read, lambda lines, part=part: len(lines) > part * RECORDS // 4)  # type: ignore[misc]
        living = {worker.id: worker for worker in workers if worker.process.poll() is None}
        async with httpx.AsyncClient(base_url=next(iter(living.values())).url, timeout=60) as client:
            busy = await until(
                lambda client=client: runs_on(client, "in"),  # type: ignore[misc]
                lambda found, living=living: found in living,  # type: ignore[misc]
            )
        living[busy].kill()
        workers.append(WorkerProcess(properties))
        await asyncio.to_thread(workers[-1].ready)
    assert await until(reader.read, lambda lines: len(lines) >= RECORDS) == expected
    reader.close()


async def runs_on(client: httpx.AsyncClient, name: str) -> str:
    """Wait until the connector's only task is running. Returns its worker."""
    return next(iter(where(await statuses(client, name))), "")


async def test_no_line_is_lost_when_the_leader_is_killed(
    connect_broker: Broker, workers: list[WorkerProcess], tmp_path: Path
) -> None:
    source, target, topic = tmp_path / "in.txt", tmp_path / "out.txt", f"t-{uuid4().hex[:8]}"
    source.write_text("".join(f'"{number}"\n' for number in range(RECORDS)))
    converters = {"value.converter": "org.apache.kafka.connect.storage.StringConverter"}
    first, second = workers
    async with httpx.AsyncClient(base_url=first.url, timeout=60) as client:
        await put(client, "in", {**file_source(source, topic, batch_size="200"), **converters})
        await put(client, "out", {**file_sink(target, topic), **converters})
    await until(lambda: asyncio.to_thread(seen, target), lambda found: len(found) > 0)
    first.kill()
    with source.open("a") as file:
        file.write('"the last"\n')
    wanted = {*(f'"{number}"' for number in range(RECORDS)), '"the last"'}
    await until(lambda: asyncio.to_thread(seen, target), lambda found: found == wanted)
    async with httpx.AsyncClient(base_url=second.url, timeout=60) as client:
        await until(lambda: statuses(client, "in"), lambda found: where(found) == {second.id})
        await until(lambda: statuses(client, "out"), lambda found: where(found) == {second.id})


def seen(path: Path) -> set[str]:
    """Return the lines of a file."""
    return set(path.read_text().splitlines()) if path.exists() else set()
