"""What can die under a worker's connectors on Spark dies: a host of tasks, and Spark's Java."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from uuid import uuid4

import httpx
import pytest
from confluent_kafka.admin import AdminClient, NewTopic

from parley import Broker
from tests.pipeline.connect.test_kills import WorkerProcess, produce, properties, statuses, where
from tests.pipeline.connect.workers import file_sink, file_source, until

# In make test, test_spark.py kills a host in the middle of a query.
pytestmark = [pytest.mark.spark, pytest.mark.soak, pytest.mark.timeout(900)]

ROOT = Path(__file__).parents[3]
PARTITIONS = 4
RECORDS = 2_000
PAIRS = 3
RANGES = 2
SPARK_SECONDS = 300
"""Spark starts Java, and Java its hosts: on a machine with much else to do that takes minutes."""
__all__ = ["properties"]


def descendants(pid: int) -> dict[int, str]:
    """The processes that a process has begun, and theirs: their command lines."""
    listed = subprocess.run(["ps", "-eo", "pid=,ppid=,args="], capture_output=True, text=True, check=True).stdout
    rows = [(int(one), int(above), args) for one, above, args in (line.split(None, 2) for line in listed.splitlines())]
    found: dict[int, str] = {}
    level = {pid}
    while level:
        below = {one: args for one, above, args in rows if above in level}
        found |= below
        level = set(below)
    return found


def javas(worker: WorkerProcess) -> list[int]:
    """Spark's processes of Java."""
    return [one for one, args in descendants(worker.process.pid).items() if "java" in args.split()[0]]


def hosts(worker: WorkerProcess) -> list[int]:
    """The processes with tasks: those that Spark's daemon for Python has begun."""
    daemons = [one for one, args in descendants(worker.process.pid).items() if "pyspark.daemon" in args]
    return [one for daemon in daemons for one in descendants(daemon)]


def configured(folder: Path, topic: str) -> dict[str, dict[str, str]]:
    """Files through topics into files, and sinks that write each record of a topic once."""
    text = {"value.converter": "org.apache.kafka.connect.storage.StringConverter"}
    found = {}
    for number in range(PAIRS):
        lines = f"{topic}-{number}"
        found[f"in{number}"] = {**file_source(folder / f"in{number}", lines), **text}
        found[f"out{number}"] = {**file_sink(folder / f"out{number}", lines), **text}
    for number in range(RANGES):
        (folder / f"ranges{number}").mkdir()
        found[f"ranges{number}"] = {
            "connector.class": "tests.pipeline.connect.sample.Ranges",
            "topics": topic,
            "tasks.max": "2",
            "folder": str(folder / f"ranges{number}"),
            "records": "100",
            **text,
        }
    return found


@dataclass
class Flow:
    """What goes in, and what must come out."""

    bootstrap: str
    topic: str
    folder: Path
    end: int = 0

    async def goes_on(self, after: str) -> None:
        """More goes in, and comes out: lines at least once, the records of the topic once."""
        await asyncio.to_thread(produce, self.bootstrap, self.topic, self.end, self.end + RECORDS)
        self.end += RECORDS
        for number in range(PAIRS):
            with (self.folder / f"in{number}").open("a") as file:
                file.write(f"{after}\n")
        for number in range(RANGES):
            look = partial(asyncio.to_thread, self.written, number)
            found = await until(look, lambda found: len(found) >= self.end, SPARK_SECONDS)
            assert sorted(found) == list(range(self.end))
        for number in range(PAIRS):
            read = partial(asyncio.to_thread, (self.folder / f"out{number}").read_text)
            await until(read, lambda found: f"{after}\n" in found, SPARK_SECONDS)

    def written(self, number: int) -> list[int]:
        """The numbers in the ranges that a connector of `sample` has written."""
        files = (self.folder / f"ranges{number}").glob("*.range")
        return [json.loads(value)["n"] for file in files for _, value in json.loads(file.read_text())]


async def test_all_that_dies_is_begun_anew(connect_broker: Broker, properties: Path, tmp_path: Path) -> None:
    bootstrap, topic = connect_broker.bootstrap_servers, f"t-{uuid4().hex[:8]}"
    with properties.open("a") as file:
        file.write(f"tasks.engine=spark\nspark.master=local[2,4]\nspark.hosts=2\nplugin.path={ROOT}\n")
    admin = AdminClient({"bootstrap.servers": bootstrap})
    admin.create_topics([NewTopic(topic, PARTITIONS)])[topic].result(30)
    flow = Flow(bootstrap, topic, tmp_path)
    worker = WorkerProcess(properties)
    try:
        await asyncio.to_thread(worker.ready)
        async with httpx.AsyncClient(base_url=worker.url, timeout=SPARK_SECONDS) as client:
            for name, config in configured(tmp_path, topic).items():
                assert (await client.put(f"/connectors/{name}/config", json=config)).status_code == 201
            await flow.goes_on("begun")
            await until(partial(asyncio.to_thread, hosts, worker), lambda found: len(found) == 2)
            os.kill(hosts(worker)[0], signal.SIGKILL)
            await flow.goes_on("a host was killed")
            [java] = javas(worker)
            os.kill(java, signal.SIGKILL)
            await flow.goes_on("Java was killed")
            assert javas(worker) != [java]
            await until(lambda: statuses(client, "ranges0"), lambda found: where(found) == {worker.id}, SPARK_SECONDS)
    finally:
        below = descendants(worker.process.pid)
        worker.kill()
        for one in below:
            kill(one)


def kill(process: int) -> None:
    with suppress(ProcessLookupError):
        os.kill(process, signal.SIGKILL)
