"""Workers whose source tasks write exactly once (KIP-618), against a broker."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from confluent_kafka import Consumer, KafkaException, Producer
from confluent_kafka import KafkaError as ClientError

from parley import Broker
from parley.pipeline.client.cluster import Connection
from parley.pipeline.connect.distributed.leader_writes import TransactionalWrites, leader_id
from parley.protocol.errors import ErrorCode, KafkaError
from tests.pipeline.connect.workers import SAMPLE, RunningWorker, counter, group_worker, until

pytestmark = pytest.mark.slow

LONG_MS = "600000"


@pytest.fixture
def group() -> str:
    return f"once-{uuid4().hex[:8]}"


@pytest.fixture
async def worker(connect_broker: Broker, group: str) -> AsyncIterator[RunningWorker]:
    async with exactly_once_worker(connect_broker.bootstrap_servers, group) as running:
        yield running


def exactly_once_worker(bootstrap: str, group: str) -> Any:
    return group_worker(bootstrap, group, exactly_once_source_support="enabled", offset_storage_partitions="3")


def read(bootstrap: str, topic: str, isolation: str = "read_committed") -> list[tuple[str, str | None]]:
    """Return the keys and values of a topic that readers with this isolation level see now."""
    settings = {"bootstrap.servers": bootstrap, "group.id": uuid4().hex, "auto.offset.reset": "earliest"}
    consumer = Consumer({**settings, "enable.partition.eof": True, "isolation.level": isolation})
    partitions = len(consumer.list_topics(topic, timeout=60).topics[topic].partitions)
    consumer.subscribe([topic])
    found: list[tuple[str, str | None]] = []
    ended: set[int | None] = set()  # a partition that is written to meanwhile reports its end several times
    while len(ended) < partitions:
        message = consumer.poll(60)
        assert message is not None
        if (error := message.error()) is not None:
            if error.code() == ClientError._PARTITION_EOF:
                ended.add(message.partition())
            continue
        key, value = message.key(), message.value()
        assert key is not None
        found.append((str(key, "utf-8"), None if value is None else str(value, "utf-8")))
    consumer.close()
    return found


def numbers(bootstrap: str, topic: str, isolation: str = "read_committed") -> list[int]:
    return [int(key) for key, _ in read(bootstrap, topic, isolation)]


async def holds(bootstrap: str, topic: str, *committed: int) -> None:
    """Wait until readers of committed records see these records. A commit is confirmed before its markers
    are written."""
    expected = list(committed)
    await until(lambda: asyncio.to_thread(numbers, bootstrap, topic), lambda found: found == expected)


async def reaches_offset(worker: RunningWorker, name: str, *ends: int) -> None:
    """Wait until the offsets of the connector's counters are these."""

    async def look() -> list[int]:
        offsets = (await worker.get(f"/connectors/{name}/offsets"))["offsets"]
        return sorted(one["offset"]["next"] for one in offsets)

    await until(look, lambda found: found == sorted(ends))


async def test_records_of_a_task_that_fails_are_read_again_and_seen_once(
    connect_broker: Broker, worker: RunningWorker, group: str, tmp_path: Path
) -> None:
    bootstrap, repaired = connect_broker.bootstrap_servers, tmp_path / "repaired"
    config = counter(group, 25, fail_at=20, repaired=repaired, transaction_boundary="interval")
    config |= {"transaction.boundary.interval.ms": LONG_MS}
    await worker.ask("PUT", "/connectors/src/config", config)
    await worker.reaches("src", "RUNNING", "FAILED")
    assert await asyncio.to_thread(numbers, bootstrap, group) == []
    assert await asyncio.to_thread(numbers, bootstrap, group, "read_uncommitted") == list(range(20))
    assert (await worker.get("/connectors/src/offsets"))["offsets"] == []
    repaired.touch()
    await worker.ask("PUT", "/connectors/src/config", config | {"transaction.boundary": "poll"})
    await reaches_offset(worker, "src", 25)
    await holds(bootstrap, group, *range(25))


async def test_a_transaction_of_an_interval_is_committed_when_its_task_pauses(
    connect_broker: Broker, worker: RunningWorker, group: str
) -> None:
    bootstrap = connect_broker.bootstrap_servers
    config = counter(group, 30, transaction_boundary="interval", transaction_boundary_interval_ms=LONG_MS)
    await worker.ask("PUT", "/connectors/src/config", config)
    await until(
        lambda: asyncio.to_thread(numbers, bootstrap, group, "read_uncommitted"), lambda found: len(found) == 30
    )
    assert await asyncio.to_thread(numbers, bootstrap, group) == []
    await worker.ask("PUT", "/connectors/src/pause")
    await worker.reaches("src", "PAUSED", "PAUSED")
    await holds(bootstrap, group, *range(30))


async def test_a_connector_ends_its_transactions(connect_broker: Broker, worker: RunningWorker, group: str) -> None:
    bootstrap = connect_broker.bootstrap_servers
    config = counter(group, 25, connector_class=f"{SAMPLE}.Bounded", transaction_boundary="connector")
    made = await worker.ask("PUT", "/connectors/src/config", config)
    assert made.status_code == 201, made.text
    await reaches_offset(worker, "src", 20)
    await worker.ask("PUT", "/connectors/src/stop")
    await worker.reaches("src", "STOPPED")
    # the task aborted 5 to 7, and did not commit the records after 19
    await holds(bootstrap, group, *range(5), *range(8, 20))
    await reaches_offset(worker, "src", 20)


async def test_earlier_tasks_are_fenced_by_the_leader_whoever_starts_the_new_ones(
    connect_broker: Broker, worker: RunningWorker, group: str
) -> None:
    bootstrap = connect_broker.bootstrap_servers
    async with exactly_once_worker(bootstrap, group) as other:
        await other.ask("PUT", "/connectors/src/config", counter(group, 10, tasks_max=2))
        for one in (worker, other):
            await reaches_offset(one, "src", 10, 10)
        zombie = Producer({"bootstrap.servers": bootstrap, "transactional.id": f"{group}-src-1"})
        await asyncio.to_thread(zombie.init_transactions, 60)
        zombie.begin_transaction()
        zombie.produce(group, "by a zombie", "-1")
        await asyncio.to_thread(zombie.flush, 60)
        await worker.ask("PUT", "/connectors/src/config", counter(group, 20, tasks_max=1))
        await reaches_offset(worker, "src", 20, 10)
        with pytest.raises(KafkaException):
            await asyncio.to_thread(zombie.commit_transaction, 60)
        await other.ask("PUT", "/connectors/src/config", counter(group, 30, tasks_max=2))
        await reaches_offset(other, "src", 30, 30)
    expected = sorted([*range(30), *range(30)])
    await until(lambda: asyncio.to_thread(numbers, bootstrap, group), lambda found: sorted(found) == expected)
    counts = [value for key, value in await asyncio.to_thread(read, bootstrap, f"{group}-config") if key == FENCING]
    assert counts == ['{"task-count":2}', '{"task-count":1}', '{"task-count":2}']


FENCING = "tasks-fencing-src"


async def test_a_request_to_fence_is_signed_and_of_a_source(worker: RunningWorker, group: str) -> None:
    await worker.ask("PUT", "/connectors/src/config", counter(group, 1))
    assert (await worker.ask("PUT", "/connectors/src/fence")).status_code == 400


async def test_offsets_in_a_topic_of_their_own_are_changed_and_forgotten(
    connect_broker: Broker, worker: RunningWorker, group: str
) -> None:
    bootstrap = connect_broker.bootstrap_servers
    own = {"offsets.storage.topic": f"{group}-own"}
    await worker.ask("PUT", "/connectors/src/config", counter(group, 10) | own)
    await reaches_offset(worker, "src", 10)
    where = '["src",{"counter":"0"}]'
    assert (await asyncio.to_thread(read, bootstrap, f"{group}-own"))[-1] == (where, '{"next":10}')
    assert await asyncio.to_thread(read, bootstrap, f"{group}-offset") == []
    await worker.ask("PUT", "/connectors/src/stop")
    await worker.reaches("src", "STOPPED")
    wanted = {"offsets": [{"partition": {"counter": "0"}, "offset": {"next": 7}}]}
    altered = await worker.ask("PATCH", "/connectors/src/offsets", wanted)
    assert altered.status_code == 200, altered.text
    assert await worker.get("/connectors/src/offsets") == wanted
    await worker.ask("PUT", "/connectors/src/resume")
    await reaches_offset(worker, "src", 10)
    await holds(bootstrap, group, *range(10), 7, 8, 9)
    await worker.ask("PUT", "/connectors/src/stop")
    await worker.reaches("src", "STOPPED")
    reset = await worker.ask("DELETE", "/connectors/src/offsets")
    assert reset.status_code == 200, reset.text
    assert await worker.get("/connectors/src/offsets") == {"offsets": []}
    assert (await asyncio.to_thread(read, bootstrap, f"{group}-own"))[-1] == (where, None)
    configs = dict(await asyncio.to_thread(read, bootstrap, f"{group}-config"))
    assert json.loads(str(configs[FENCING])) == {"task-count": 0}


async def test_an_earlier_leader_cannot_write(connect_broker: Broker, group: str) -> None:
    bootstrap = connect_broker.bootstrap_servers
    lost: list[str] = []

    def leader(name: str) -> TransactionalWrites:
        connection = Connection(bootstrap=bootstrap)
        return TransactionalWrites(connection, group, leader_id(group), on_lost=lambda: lost.append(name))

    earlier, later = leader("earlier"), leader("later")
    try:
        with pytest.raises(KafkaError):
            await earlier.send([(b"before", b"it leads")])
        await earlier.claim()
        await earlier.send([(b"a", b"1"), (b"b", None)])
        await later.claim()
        with pytest.raises(KafkaError) as refused:
            await earlier.send([(b"a", b"2")])
        assert refused.value.code in (ErrorCode.PRODUCER_FENCED, ErrorCode.INVALID_PRODUCER_EPOCH)
        assert lost == ["earlier"]
        await later.send([(b"a", b"3")])
        await earlier.claim()
        await earlier.send([(b"a", b"4")])
    finally:
        await earlier.stop()
        await later.stop()
    expected = [("a", "1"), ("b", None), ("a", "3"), ("a", "4")]
    await until(lambda: asyncio.to_thread(read, bootstrap, group), lambda found: found == expected)
