"""Slow work of one kind does not delay work of another kind."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from parley import Broker
from parley.broker.runtime.threads import RECOVERING_MAX, Threads
from parley.protocol.client import Client
from parley.protocol.messages.offsets import ListOffsetsRequest
from tests.broker.test_server import create, produce


async def test_hanging_maintenance_leaves_the_threads_of_clients_free(tmp_path: Path) -> None:
    async with Broker(data_dir=tmp_path) as broker, Client(broker.bootstrap_servers) as client:
        await create(client, "t")
        await produce(client, "t", [b"x"])
        upkeep = broker.server.environment.threads.upkeep
        assert upkeep is not None
        hanging = threading.Event()
        waiting = [upkeep.submit(hanging.wait) for _ in range(100)]
        asked = ListOffsetsRequest.ListOffsetsPartition(partition_index=0, timestamp=0)
        topic = ListOffsetsRequest.ListOffsetsTopic(name="t", partitions=[asked])
        answer = await client.send(ListOffsetsRequest(replica_id=-1, topics=[topic]))  # by time: read in a thread
        assert answer.topics[0].partitions[0].offset == 0
        hanging.set()
        assert all(each.result() for each in waiting)


async def test_closing_ends_the_threads() -> None:
    executors = Threads.made(1)
    threads = []
    for executor in (executors.reads, executors.records, executors.upkeep):
        assert executor is not None
        threads.append(executor.submit(threading.current_thread).result())
    assert [thread.name.rpartition("_")[0] for thread in threads] == ["reads", "records", "upkeep"]
    await executors.close()
    assert not any(thread.is_alive() for thread in threads)


async def test_the_threads_of_a_recovery_are_bounded() -> None:
    threads = Threads.made(2**31 - 1)
    assert isinstance(threads.upkeep, ThreadPoolExecutor)
    assert threads.upkeep._max_workers == RECOVERING_MAX
    await threads.close()
