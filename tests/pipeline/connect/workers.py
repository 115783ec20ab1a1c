"""Connect workers in this process, and their REST APIs."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar
from uuid import uuid4

import httpx
from confluent_kafka import Consumer, TopicPartition

from parley.pipeline.connect.distributed.herder import Herder
from parley.pipeline.connect.distributed.serving import distributed, standalone
from parley.pipeline.connect.distributed.settings import DISTRIBUTED
from parley.pipeline.connect.worker_config import STANDALONE, WorkerConfig

SAMPLE = "tests.pipeline.connect.sample"
WAIT_SECONDS = 120.0
_POLL_SECONDS = 0.02

T = TypeVar("T")


def now_ms() -> int:
    """Return the current time of records and statuses, in milliseconds."""
    return time.time_ns() // 1_000_000


def settings(bootstrap: str, **more: str) -> dict[str, str]:
    """Return the configuration of every worker here. Underscores in names stand for dots."""
    told = {
        "bootstrap.servers": bootstrap,
        "listeners": "http://127.0.0.1:0",
        "key.converter": "org.apache.kafka.connect.storage.StringConverter",
        "value.converter": "org.apache.kafka.connect.storage.StringConverter",
        "offset.flush.interval.ms": "100",
    }
    return told | {key.replace("_", "."): value for key, value in more.items()}


@dataclass(frozen=True, slots=True)
class RunningWorker:
    """A worker, and a client of its REST API."""

    herder: Herder
    url: str
    client: httpx.AsyncClient

    async def ask(self, method: str, path: str, body: Any = None) -> httpx.Response:
        """Send a request, with a JSON body if one is given."""
        return await self.client.request(method, path, json=body)

    async def get(self, path: str) -> Any:
        """Return the JSON of a path, which must exist."""
        answer = await self.client.get(path)
        assert answer.status_code == 200, answer.text
        return answer.json()

    async def states(self, name: str) -> tuple[str, list[str]]:
        """Return the states of a connector and of its tasks; "" if there is none."""
        answer = await self.client.get(f"/connectors/{name}/status")
        if answer.status_code == 404:
            return "", []
        status = answer.json()
        return status["connector"]["state"], [task["state"] for task in status["tasks"]]

    async def reaches(self, name: str, connector: str, *tasks: str) -> None:
        """Wait until the connector and its tasks have these states."""
        await until(lambda: self.states(name), lambda found: found == (connector, list(tasks)))


async def until(look: Callable[[], Awaitable[T]], is_right: Callable[[T], bool], seconds: float = WAIT_SECONDS) -> T:
    """Repeat ``look`` until its result is right, for at most ``seconds``. Returns the result."""
    give_up = time.monotonic() + seconds
    while not is_right(found := await look()):
        assert time.monotonic() < give_up, f"still {found!r}"
        await asyncio.sleep(_POLL_SECONDS)
    return found


@asynccontextmanager
async def standalone_worker(bootstrap: str, folder: Path, **more: str) -> AsyncIterator[RunningWorker]:
    """Run a standalone worker with its offsets in a file of the folder."""
    told = settings(bootstrap, **more) | {"offset.storage.file.filename": str(folder / "offsets")}
    running = standalone(WorkerConfig.parse(told, STANDALONE), now_ms)
    async with running as (herder, url), _client(herder, url) as worker:
        yield worker


@asynccontextmanager
async def group_worker(
    bootstrap: str,
    group: str,
    client: httpx.AsyncClient | None = None,
    **more: str,
) -> AsyncIterator[RunningWorker]:
    """Run a worker of a group. The names of its topics contain the group's name.

    `client` sends the requests if the REST API requires a login.
    """
    told = {
        **{f"{what}.storage.topic": f"{group}-{what}" for what in ("config", "offset", "status")},
        **{f"{what}.storage.replication.factor": "-1" for what in ("config", "offset", "status")},
        "group.id": group,
        "heartbeat.interval.ms": "200",
        "session.timeout.ms": "30000",  # no worker is killed here, and none may be considered dead
        "scheduled.rebalance.max.delay.ms": "0",
        **settings(bootstrap, **more),
    }
    running = distributed(WorkerConfig.parse(told, DISTRIBUTED), now_ms)
    async with running as (herder, url), _client(herder, url, client) as worker:
        yield worker


@asynccontextmanager
async def _client(herder: Herder, url: str, client: httpx.AsyncClient | None = None) -> AsyncIterator[RunningWorker]:
    async with client or httpx.AsyncClient(timeout=WAIT_SECONDS) as client:
        client.base_url = httpx.URL(url)
        worker = RunningWorker(herder, url, client)
        await until(lambda: client.get("/health"), lambda answer: answer.status_code == 200)
        yield worker


def file_source(path: Path, topic: str, **more: str) -> Mapping[str, str]:
    """Return the configuration of a connector that reads a file."""
    config = {"connector.class": "FileStreamSource", "tasks.max": "1", "file": str(path), "topic": topic}
    return config | {key.replace("_", "."): value for key, value in more.items()}


def file_sink(path: Path, topics: str, **more: str) -> Mapping[str, str]:
    """Return the configuration of a connector that writes a file."""
    config = {"connector.class": "FileStreamSink", "tasks.max": "1", "file": str(path), "topics": topics}
    return config | {key.replace("_", "."): value for key, value in more.items()}


async def lines(path: Path, count: int) -> list[str]:
    """Wait until the file contains this many lines. Returns them."""

    def read() -> list[str]:
        return path.read_text().splitlines() if path.exists() else []

    return await until(lambda: asyncio.to_thread(read), lambda found: len(found) >= count)


def counter(topic: str, count: int, **more: object) -> dict[str, str]:
    """Return the configuration of a connector that counts; underscores stand for dots."""
    config = {"connector.class": f"{SAMPLE}.Counter", "topic": topic, "count": str(count)}
    return config | {key.replace("_", "."): str(value) for key, value in more.items()}


class Reader:
    """Reads the committed records of a topic with one partition."""

    def __init__(self, bootstrap: str, topic: str) -> None:
        self._consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": uuid4().hex})
        self._consumer.assign([TopicPartition(topic, 0, 0)])
        self._lines: list[str] = []

    async def read(self) -> list[str]:
        """Return the values so far."""
        messages = await asyncio.to_thread(self._consumer.consume, 1000, 0.1)
        self._lines += [str(one.value() or b"", "utf-8") for one in messages if one.error() is None]
        return self._lines

    def close(self) -> None:
        self._consumer.close()
