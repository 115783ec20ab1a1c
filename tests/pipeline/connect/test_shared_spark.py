"""Workers of a group share one standalone Spark: each takes its share, and what has to wait says so."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from uuid import uuid4

import httpx
import pytest
from confluent_kafka.admin import AdminClient, NewTopic

from parley import Broker
from tests.pipeline.connect.test_kills import WorkerProcess, produce, properties, statuses
from tests.pipeline.connect.workers import file_sink, until
from tests.pipeline.standalone_spark import SETTINGS, standalone_spark

# In make test, test_hosts.py has tasks without a host, and test_spark_share.py the share of the cores.
pytestmark = [pytest.mark.spark, pytest.mark.soak, pytest.mark.timeout(1800)]

PARTITIONS = 4
RECORDS = 400
SPARK_SECONDS = 600
"""Three Sparks start, on a machine with much else to do."""
__all__ = ["properties"]


@pytest.fixture
def master(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """The address of a Spark with two workers of one core."""
    with standalone_spark(tmp_path, monkeypatch, workers=2, cores=1) as address:
        yield address


@pytest.fixture
def workers(properties: Path, master: str) -> Iterator[list[WorkerProcess]]:
    """Two workers of a group with a core each, and a third that finds none."""
    more = {**SETTINGS, "tasks.engine": "spark", "spark.master": master, "spark.hosts": "1"}
    more |= {"session.timeout.ms": "60000", "rebalance.timeout.ms": "300000"}  # nothing is taken for dead here
    with properties.open("a") as file:
        file.writelines(f"{key}={value}\n" for key, value in more.items())
    started: list[WorkerProcess] = []
    try:
        for _ in range(3):
            started.append(WorkerProcess(properties))
            started[-1].ready()
        yield started
    finally:
        for worker in started:
            worker.kill()


def test_two_workers_run_tasks_and_the_third_says_what_its_task_waits_for(
    workers: list[WorkerProcess], connect_broker: Broker, tmp_path: Path
) -> None:
    topic = f"shared-{uuid4().hex[:8]}"
    admin = AdminClient({"bootstrap.servers": connect_broker.bootstrap_servers})
    admin.create_topics([NewTopic(topic, PARTITIONS, 1)])[topic].result()
    produce(connect_broker.bootstrap_servers, topic, 0, RECORDS)
    asyncio.run(_share(workers, topic, tmp_path / "out"))


async def _share(workers: list[WorkerProcess], topic: str, out: Path) -> None:
    *_, third = workers
    async with httpx.AsyncClient(base_url=workers[0].url, timeout=60) as client:

        async def tasks() -> dict[str, tuple[str, str]]:
            """By worker the state of its task, and why."""
            found = await statuses(client, "sink")
            return {one["worker_id"]: (one["state"], one.get("trace") or "") for one in found.get("tasks", ())}

        config = file_sink(out, topic, tasks_max="3")
        # The workers may be sharing out their work just now.
        await until(partial(client.put, "/connectors/sink/config", json=dict(config)), lambda one: one.is_success)
        found = await until(
            tasks,
            lambda found: sorted(state for state, _ in found.values()) == ["RUNNING", "RUNNING", "UNASSIGNED"],
            SPARK_SECONDS,
        )
        state, reason = found[third.id]
        assert state == "UNASSIGNED"
        assert "no executor yet" in reason
        workers[1].process.terminate()  # its core becomes free, and its task another worker's
        await until(tasks, lambda found: third.id in found and found[third.id][0] == "RUNNING", SPARK_SECONDS)

        async def lines() -> set[str]:
            return set(await asyncio.to_thread(lambda: out.read_text().splitlines() if out.exists() else []))

        await until(lines, lambda found: len(found) == RECORDS, SPARK_SECONDS)
