"""DescribeLogDirs: what lies where, and how much."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from broker import Broker
from protocol.client import Client
from protocol.errors import ErrorCode
from protocol.messages.log_dirs import DescribeLogDirsRequest
from protocol.messages.topics import CreateTopicsRequest
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
        written = broker.server.partitions.find("t", 2).append(batch(10), acks=1, now_ms=0)
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

        broker.server.logs.directories[1].fail(OSError("the disk is gone"))
        failed = await describe(client)
        assert [result.error_code for result in failed.results] == [ErrorCode.NONE, ErrorCode.KAFKA_STORAGE_ERROR]
