"""DescribeBackgroundWork: compaction, verification, healing, and the recovery of brokers that are starting."""

from __future__ import annotations

import asyncio
import threading
from itertools import count
from pathlib import Path

import pytest

from parley import Broker, Cluster
from parley.protocol.client import Client
from parley.protocol.messages.background_work import (
    COMPACTION,
    HEALING,
    RECOVERY,
    VERIFICATION,
    DescribeBackgroundWorkRequest,
    DescribeBackgroundWorkResponse,
)
from parley.protocol.messages.log_verification import VerifyLogsRequest
from parley.protocol.messages.topics import CreateTopicsRequest
from parley.protocol.records.batch import build
from parley.protocol.records.record import Record
from parley.storage import io_threads
from parley.storage.directory_loader import DirectoryLoader
from tests.broker.api.bench import batch
from tests.broker.network.harness import eventually

POLL_S = 0.02


async def create(client: Client, name: str, **configs: str) -> None:
    new = CreateTopicsRequest.CreatableTopic(
        name=name,
        num_partitions=1,
        replication_factor=1,
        assignments=[],
        configs=[
            CreateTopicsRequest.CreatableTopicConfig(name=key.replace("_", "."), value=value)
            for key, value in configs.items()
        ],
    )
    await client.send(CreateTopicsRequest(topics=[new], timeout_ms=10_000))


async def work_of(client: Client, kind: str) -> DescribeBackgroundWorkResponse.Work:
    """Wait for work of this kind, of which a part is done."""
    async with asyncio.timeout(30):
        while True:
            found: DescribeBackgroundWorkResponse = await client.send(DescribeBackgroundWorkRequest())
            for work in found.works:
                if work.kind == kind and (work.done or kind == HEALING):
                    return work
            await asyncio.sleep(POLL_S)


async def test_a_broker_without_work(tmp_path: Path) -> None:
    async with Broker(data_dir=str(tmp_path)) as broker, Client(broker.bootstrap_servers) as client:
        assert (await client.send(DescribeBackgroundWorkRequest())).works == []


async def test_a_compaction_shows_how_much_it_has_read(tmp_path: Path) -> None:
    settings = {"log.cleaner.io.max.bytes.per.second": "200000", "log.cleaner.backoff.ms": "10"}
    async with Broker(settings, data_dir=str(tmp_path)) as broker, Client(broker.bootstrap_servers) as client:
        await create(client, "t", cleanup_policy="compact", segment_bytes="1048576", min_cleanable_dirty_ratio="0.01")
        partition = broker.server.parts.partitions.find("t", 0)
        for number in range(40):
            partition.append(build([Record(0, 0, b"key-%d" % (number % 4), bytes(50_000))]), acks=1, now_ms=0)
        work = await work_of(client, COMPACTION)
        assert (work.broker_id, work.topic, work.partition_index) == (broker.server.identity.broker_id, "t", 0)
        assert work.log_dir == str(tmp_path)
        assert 0 < work.done < work.total
        assert work.total > 2 * 50_000 * 20  # each sealed segment is read twice
        assert work.elapsed_ms >= 0


async def test_a_verification_shows_how_much_is_verified(tmp_path: Path) -> None:
    settings = {"log.scrub.max.bytes.per.second": "1048576"}
    async with Broker(settings, data_dir=str(tmp_path)) as broker, Client(broker.bootstrap_servers) as client:
        await create(client, "t")
        partition = broker.server.parts.partitions.find("t", 0)
        for _ in range(6):
            partition.append(build([Record(0, 0, b"key", bytes(900_000))]), acks=1, now_ms=0)
        await client.send(VerifyLogsRequest(topics=["t"]))
        work = await work_of(client, VERIFICATION)
        assert (work.topic, work.log_dir, work.detail) == (None, str(tmp_path), "now t-0")
        assert 0 < work.done < work.total == partition.log.size_bytes


async def test_damage_without_a_copy_is_healing_in_progress(tmp_path: Path) -> None:
    async with Broker(data_dir=str(tmp_path)) as broker, Client(broker.bootstrap_servers) as client:
        await create(client, "t")
        for _ in range(20):
            broker.server.parts.partitions.find("t", 0).append(batch(100), acks=1, now_ms=0)
        path = tmp_path / "t-0" / "00000000000000000000.log"
        with path.open("r+b") as file:
            file.seek(path.stat().st_size // 2)
            byte = file.read(1)[0]
            file.seek(-1, 1)
            file.write(bytes([byte ^ 0xFF]))
        await client.send(VerifyLogsRequest(topics=["t"]))
        work = await work_of(client, HEALING)
        while "no live replica" not in work.detail:
            work = await work_of(client, HEALING)
        assert (work.topic, work.partition_index, work.done, work.total) == ("t", 0, 0, 1)


@pytest.mark.slow
async def test_the_controller_tells_about_a_broker_that_opens_its_logs(monkeypatch: pytest.MonkeyPatch) -> None:
    """The note is gone when the broker has started."""
    monkeypatch.setattr(io_threads, "PROGRESS_SECONDS", POLL_S)
    opened, all_opened, calls = DirectoryLoader._open, threading.Event(), count()

    def slowly(loader: DirectoryLoader, *args: object) -> object:
        if next(calls):  # not the first one; several threads open logs
            all_opened.wait(60)
        return opened(loader, *args)  # type: ignore[arg-type]

    async with Cluster(brokers=2) as cluster, Client(cluster.bootstrap_servers) as client:
        for name in ("t", "u", "v"):
            new = CreateTopicsRequest.CreatableTopic(
                name=name, num_partitions=1, replication_factor=2, assignments=[], configs=[]
            )
            await client.send(CreateTopicsRequest(topics=[new], timeout_ms=10_000))
        both = list(cluster.brokers.values())
        for broker in both:
            for name in ("t", "u", "v"):
                partition = broker.server.parts.partitions.find(name, 0)
                if partition.is_leader:
                    partition.append(batch(100), acks=1, now_ms=0)
        replicas = [broker.server.parts.partitions.find(name, 0) for name in ("t", "u", "v") for broker in both]
        # A log without records has no files, and is not opened.
        await eventually(lambda: all(replica.log.log_end_offset for replica in replicas))
        await cluster.kill(2)
        monkeypatch.setattr(DirectoryLoader, "_open", slowly)
        restarting = asyncio.ensure_future(cluster.restart(2))
        try:
            work = await work_of(client, RECOVERY)
        finally:
            all_opened.set()
            await restarting
        assert (work.broker_id, work.topic, work.log_dir, work.done) == (2, None, None, 1)
        assert work.total >= 2
        assert (await client.send(DescribeBackgroundWorkRequest())).works == []
