"""DescribeLogDirs and AlterReplicaLogDirs: replicas by directory, their sizes, and moves between directories."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from parley import Broker
from parley.protocol.client import Client
from parley.protocol.errors import ErrorCode
from parley.protocol.messages.log_dirs import AlterReplicaLogDirsRequest, DescribeLogDirsRequest
from parley.protocol.messages.topics import CreateTopicsRequest, DeleteTopicsRequest
from parley.protocol.records.batch import records
from parley.protocol.records.batch_header import headers
from parley.storage.log import Log
from parley.storage.log_directory import LogDirectory
from tests.broker.api.bench import batch


async def describe(client: Client, **request: Any) -> Any:
    return await client.send(DescribeLogDirsRequest(**{"topics": None, **request}))


async def test_partitions_are_listed_by_directory(tmp_path: Path) -> None:
    directories = [tmp_path / "a", tmp_path / "b"]
    given = {"log.dirs": ",".join(map(str, directories))}
    async with Broker(given) as broker, Client(broker.bootstrap_servers) as client:
        topic = CreateTopicsRequest.CreatableTopic(
            name="t", num_partitions=4, replication_factor=1, assignments=[], configs=[]
        )
        await client.send(CreateTopicsRequest(topics=[topic], timeout_ms=1000))
        written = broker.server.parts.partitions.find("t", 2).append(batch(10), acks=1, now_ms=0)
        answer = await describe(client)
        assert [result.log_dir for result in answer.results] == [str(path.resolve()) for path in directories]
        assert all(0 < result.usable_bytes <= result.total_bytes for result in answer.results)
        sizes = {
            partition.partition_index: partition.partition_size
            for result in answer.results
            for topic in result.topics
            for partition in topic.partitions
        }
        assert sizes == {0: 0, 1: 0, 2: written.size_bytes, 3: 0}
        assert [sum(len(topic.partitions) for topic in result.topics) for result in answer.results] == [2, 2]

        wanted = [DescribeLogDirsRequest.DescribableLogDirTopic(topic="t", partitions=[2, 9])]
        narrowed = await describe(client, topics=wanted)
        found = [p.partition_index for r in narrowed.results for t in r.topics for p in t.partitions]
        assert found == [2]

        broker.server.parts.logs.directories[1].fail(OSError("the disk is gone"))
        failed = await describe(client)
        assert [result.error_code for result in failed.results] == [ErrorCode.NONE, ErrorCode.KAFKA_STORAGE_ERROR]


async def test_a_log_that_is_deleted_meanwhile_is_left_out(tmp_path: Path) -> None:
    """The log of a deleted topic is gone before the handler reaches its partition, which still refers to the log."""
    async with Broker(data_dir=str(tmp_path)) as broker, Client(broker.bootstrap_servers) as client:
        await create(client, 2)
        await broker.server.parts.logs.delete("t", 0)
        assert broker.server.parts.partitions.find("t", 0).is_open
        answer = await describe(client)
        assert (answer.error_code, answer.results[0].error_code) == (ErrorCode.NONE, ErrorCode.NONE)
        assert set(await places(client)) == {(tmp_path.name, 1, False)}


# Moves.


def to(path: Path, *indexes: int, topic: str = "t") -> AlterReplicaLogDirsRequest.AlterReplicaLogDir:
    named = AlterReplicaLogDirsRequest.AlterReplicaLogDirTopic(name=topic, partitions=list(indexes))
    return AlterReplicaLogDirsRequest.AlterReplicaLogDir(path=str(path), topics=[named])


async def alter(client: Client, *dirs: AlterReplicaLogDirsRequest.AlterReplicaLogDir) -> list[int]:
    answer = await client.send(AlterReplicaLogDirsRequest(dirs=list(dirs)))
    return [partition.error_code for topic in answer.results for partition in topic.partitions]


async def create(client: Client, partitions: int = 1) -> None:
    topic = CreateTopicsRequest.CreatableTopic(
        name="t", num_partitions=partitions, replication_factor=1, assignments=[], configs=[]
    )
    assert (await client.send(CreateTopicsRequest(topics=[topic], timeout_ms=1000))).topics[0].error_code == 0


async def places(client: Client) -> dict[tuple[str, int, bool], int]:
    """Return the replicas: directory, partition, and whether it is a future replica, mapped to its lag."""
    return {
        (Path(result.log_dir).name, partition.partition_index, partition.is_future_key): partition.offset_lag
        for result in (await describe(client)).results
        for topic in result.topics
        for partition in topic.partitions
    }


async def moved(client: Client, expected: set[tuple[str, int, bool]]) -> None:
    while set(await places(client)) != expected:  # noqa: ASYNC110
        await asyncio.sleep(0.01)


def values(log: Log) -> list[bytes]:
    data, offset = b"", log.log_start_offset
    while offset < log.log_end_offset:
        part = bytes(log.read(offset, 1 << 20, up_to=log.log_end_offset).read())
        data += part
        offset = [header.next_offset for _, header in headers(part)][-1]
    return [bytes(record.value or b"") for position, _ in headers(data) for record in records(data, position)]


@pytest.mark.slow
async def test_a_replica_moves_while_it_is_written_to(tmp_path: Path) -> None:
    given = {"log.dirs": f"{tmp_path / 'a'},{tmp_path / 'b'}", "log.segment.bytes": str(1 << 20)}
    async with Broker(given) as broker, Client(broker.bootstrap_servers) as client:
        await create(client)
        partition = broker.server.parts.partitions.find("t", 0)
        stop, written = asyncio.Event(), 0

        async def write() -> None:
            nonlocal written
            while not stop.is_set():
                partition.append(batch(5, size=1000), acks=-1, now_ms=0)
                written += 5
                await asyncio.sleep(0.001)

        writing = asyncio.ensure_future(write())
        for home, other in (("a", "b"), ("b", "a")) * 2:
            await moved(client, {(home, 0, False)})
            assert await alter(client, to(tmp_path / other, 0)) == [0]
            await moved(client, {(other, 0, False)})
            assert partition.log.directory.parent.name == other
        stop.set()
        await writing
        assert partition.log.log_end_offset == partition.high_watermark == written
        assert len(values(partition.log)) == written
    async with Broker(given) as broker:
        assert broker.server.parts.partitions.find("t", 0).log.log_end_offset == written


async def test_a_replica_is_wanted_back_while_its_old_log_is_set_aside(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    given = {"log.dirs": f"{tmp_path / 'a'},{tmp_path / 'b'}"}
    async with Broker(given) as broker, Client(broker.bootstrap_servers) as client:
        await create(client)
        logs, reached, go_on = broker.server.parts.logs, asyncio.Event(), asyncio.Event()
        retire = logs.copies.retire

        async def slow(log: Log, directory: LogDirectory) -> None:
            reached.set()
            await go_on.wait()
            await retire(log, directory)

        monkeypatch.setattr(logs.copies, "retire", slow)
        assert await alter(client, to(tmp_path / "b", 0)) == [0]
        await reached.wait()
        assert await alter(client, to(tmp_path / "a", 0)) == [0]
        go_on.set()
        await moved(client, {("a", 0, False)})
        assert len(logs.online()) == 2


async def test_moves_that_make_no_sense(tmp_path: Path) -> None:
    given = {"log.dirs": f"{tmp_path / 'a'},{tmp_path / 'b'}"}
    async with Broker(given) as broker, Client(broker.bootstrap_servers) as client:
        await create(client)
        assert await alter(client, to(tmp_path / "c", 0)) == [ErrorCode.LOG_DIR_NOT_FOUND]
        assert await alter(client, to(Path("a"), 0)) == [ErrorCode.LOG_DIR_NOT_FOUND]
        assert await alter(client, to(tmp_path / "b", 0, 9)) == [0, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION]
        assert await alter(client, to(tmp_path / "b", 0, topic="no")) == [ErrorCode.UNKNOWN_TOPIC_OR_PARTITION]
        broker.server.parts.logs.directories[1].fail(OSError("the disk is gone"))
        assert await alter(client, to(tmp_path / "b", 0)) == [ErrorCode.KAFKA_STORAGE_ERROR]


SLOW = {"replica.alter.log.dirs.io.max.bytes.per.second": "1"}


async def test_a_move_is_throttled_shown_and_given_up(tmp_path: Path) -> None:
    given = {"log.dirs": f"{tmp_path / 'a'},{tmp_path / 'b'}", **SLOW}
    async with Broker(given) as broker, Client(broker.bootstrap_servers) as client:
        await create(client)
        broker.server.parts.partitions.find("t", 0).append(batch(3, size=1000), acks=1, now_ms=0)
        await alter(client, to(tmp_path / "b", 0))
        await moved(client, {("a", 0, False), ("b", 0, True)})
        await alter(client, to(tmp_path / "a", 0))
        await moved(client, {("a", 0, False)})


async def test_a_move_goes_on_after_a_restart(tmp_path: Path) -> None:
    given = {"log.dirs": f"{tmp_path / 'a'},{tmp_path / 'b'}"}
    async with Broker({**given, **SLOW}) as broker, Client(broker.bootstrap_servers) as client:
        await create(client)
        broker.server.parts.partitions.find("t", 0).append(batch(3, size=1000), acks=1, now_ms=0)
        await alter(client, to(tmp_path / "b", 0))
        await moved(client, {("a", 0, False), ("b", 0, True)})
    async with Broker(given) as broker, Client(broker.bootstrap_servers) as client:
        await moved(client, {("b", 0, False)})
        assert broker.server.parts.partitions.find("t", 0).log.log_end_offset == 3


async def test_a_topic_is_deleted_while_it_moves(tmp_path: Path) -> None:
    given = {"log.dirs": f"{tmp_path / 'a'},{tmp_path / 'b'}", **SLOW, "log.segment.delete.delay.ms": "0"}
    async with Broker(given) as broker, Client(broker.bootstrap_servers) as client:
        await create(client)
        broker.server.parts.partitions.find("t", 0).append(batch(3, size=1000), acks=1, now_ms=0)
        await alter(client, to(tmp_path / "b", 0))
        await moved(client, {("a", 0, False), ("b", 0, True)})
        await client.send(DeleteTopicsRequest(topic_names=["t"], timeout_ms=1000), version=5)
        while broker.server.parts.logs.copies.in_progress:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        await create(client)
        assert await alter(client, to(tmp_path / "b", 0)) == [0]
