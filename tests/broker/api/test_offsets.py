"""ListOffsets and OffsetForLeaderEpoch: every position, in every version that supports it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from parley.broker.api.offsets import OffsetsApi
from parley.protocol.errors import ErrorCode
from parley.protocol.messages.offsets import ListOffsetsRequest, ListOffsetsResponse, OffsetForLeaderEpochRequest
from tests.broker.api.bench import BROKER, NOW_MS, OTHER, Bench, batch, context

LATEST, EARLIEST, MAX_TIMESTAMP, EARLIEST_LOCAL, LATEST_TIERED, EARLIEST_PENDING = range(-1, -7, -1)
NEWEST = 11


class OffsetsBench(Bench):
    def __init__(self, directory: Path) -> None:
        super().__init__(directory)
        self.api = OffsetsApi(self.partitions)

    async def find(
        self,
        timestamp: int,
        *,
        topic: str = "t",
        version: int = NEWEST,
        replica_id: int = -1,
        isolation_level: int = 0,
        **fields: Any,
    ) -> ListOffsetsResponse.ListOffsetsPartitionResponse:
        asked = ListOffsetsRequest.ListOffsetsPartition(partition_index=0, timestamp=timestamp, **fields)
        wanted = ListOffsetsRequest.ListOffsetsTopic(name=topic, partitions=[asked])
        request = ListOffsetsRequest(replica_id=replica_id, topics=[wanted], isolation_level=isolation_level)
        answer = self.api.list_offsets(context(version, api_key=2), request)
        answer = await answer if asyncio.iscoroutine(answer) else answer
        return answer.topics[0].partitions[0]

    def epoch_end(self, epoch: int, *, topic: str = "t", current: int = -1) -> tuple[int, int, int]:
        asked = OffsetForLeaderEpochRequest.OffsetForLeaderPartition(
            partition=0, leader_epoch=epoch, current_leader_epoch=current
        )
        wanted = OffsetForLeaderEpochRequest.OffsetForLeaderTopic(topic=topic, partitions=[asked])
        answer = self.api.offset_for_leader_epoch(
            context(4, api_key=23), OffsetForLeaderEpochRequest(replica_id=-1, topics=[wanted])
        )
        found = answer.topics[0].partitions[0]
        return found.error_code, found.leader_epoch, found.end_offset


@pytest.fixture
async def bench(tmp_path: Path) -> AsyncIterator[OffsetsBench]:
    bench = OffsetsBench(tmp_path)
    yield bench
    await bench.tasks.close()


def append(bench: Bench, timestamp: int, count: int = 1) -> None:
    bench.partition("t").append(batch(count, timestamp=timestamp), acks=1, now_ms=NOW_MS)


async def test_each_special_timestamp_has_its_offset(bench: OffsetsBench) -> None:
    await bench.create("t")
    append(bench, 1000, 3)  # offsets 0 to 2 at 1000, 1001, 1002
    append(bench, 5000)
    append(bench, 3000)
    found = {t: await bench.find(t) for t in (EARLIEST, LATEST, EARLIEST_LOCAL, LATEST_TIERED, EARLIEST_PENDING)}
    assert {t: f.offset for t, f in found.items()} == {
        EARLIEST: 0,
        LATEST: 5,
        EARLIEST_LOCAL: 0,
        LATEST_TIERED: -1,
        EARLIEST_PENDING: -1,
    }
    assert all((f.error_code, f.timestamp) == (0, -1) for f in found.values())
    assert (found[EARLIEST].leader_epoch, found[LATEST].leader_epoch) == (0, 0)
    latest = await bench.find(MAX_TIMESTAMP)
    assert (latest.offset, latest.timestamp, latest.leader_epoch) == (3, 5000, 0)


async def test_a_timestamp_finds_the_first_record_that_is_not_older(bench: OffsetsBench) -> None:
    await bench.create("t")
    append(bench, 1000, 3)
    append(bench, 5000)
    append(bench, 3000)
    expected = {0: (0, 1000), 1000: (0, 1000), 1001: (1, 1001), 1003: (3, 5000), 5000: (3, 5000), 5001: (-1, -1)}
    for timestamp, result in expected.items():
        found = await bench.find(timestamp, version=1)
        assert (found.offset, found.timestamp) == result, timestamp


async def test_the_log_start_moves(bench: OffsetsBench) -> None:
    await bench.create("t")
    append(bench, 1000, 3)
    bench.partition("t").log.advance_log_start(2)
    assert (await bench.find(EARLIEST)).offset == 2
    assert (await bench.find(0)).offset == 2


async def test_clients_see_committed_records(bench: OffsetsBench) -> None:
    await bench.create("t", replicas=(BROKER, OTHER))
    append(bench, 1000, 3)
    assert (await bench.find(LATEST)).offset == 0
    assert (await bench.find(1000)).offset == -1
    assert (await bench.find(LATEST, replica_id=OTHER)).offset == 3
    bench.alter("t", leader=OTHER)
    bench.alter("t", leader=BROKER)
    assert (await bench.find(LATEST, version=4)).error_code == ErrorCode.LEADER_NOT_AVAILABLE
    assert (await bench.find(LATEST, version=5)).error_code == ErrorCode.OFFSET_NOT_AVAILABLE
    assert (await bench.find(EARLIEST)).error_code == ErrorCode.NONE


@pytest.mark.parametrize(
    ("position", "since"),
    [(MAX_TIMESTAMP, 7), (EARLIEST_LOCAL, 8), (LATEST_TIERED, 9), (EARLIEST_PENDING, 11), (-7, 12)],
)
async def test_positions_of_later_versions(bench: OffsetsBench, position: int, since: int) -> None:
    await bench.create("t")
    for version in range(1, NEWEST + 1):
        code = (await bench.find(position, version=version)).error_code
        assert code == (ErrorCode.NONE if version >= since else ErrorCode.UNSUPPORTED_VERSION)


async def test_version_0_lists_the_starts_of_segments(bench: OffsetsBench) -> None:
    await bench.create("t")
    for timestamp in (1000, 2000, 3000):
        append(bench, timestamp, 2)
        bench.partition("t").log.roll()
    append(bench, 4000)
    for timestamp, limit, starts in (
        (LATEST, 10, [7, 6, 4, 2, 0]),
        (LATEST, 1, [7]),
        (EARLIEST, 10, [0]),
        (2500, 10, [2, 0]),
        (500, 10, []),
        (LATEST, 0, []),
    ):
        found = await bench.find(timestamp, version=0, max_num_offsets=limit)
        assert found.old_style_offsets == starts


async def test_each_partition_has_its_own_error(bench: OffsetsBench) -> None:
    await bench.create("t")
    await bench.create("elsewhere", replicas=(OTHER,), leader=OTHER)
    assert (await bench.find(LATEST, topic="no")).error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert (await bench.find(LATEST, topic="elsewhere")).error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
    assert (await bench.find(LATEST, current_leader_epoch=3)).error_code == ErrorCode.UNKNOWN_LEADER_EPOCH
    asked = [ListOffsetsRequest.ListOffsetsPartition(partition_index=i, timestamp=LATEST) for i in (0, 0, 5)]
    wanted = ListOffsetsRequest.ListOffsetsTopic(name="t", partitions=asked)
    answer: Any = bench.api.list_offsets(context(1, api_key=2), ListOffsetsRequest(replica_id=-1, topics=[wanted]))
    assert [p.error_code for p in answer.topics[0].partitions] == [
        ErrorCode.INVALID_REQUEST,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    ]


async def test_where_epochs_end(bench: OffsetsBench) -> None:
    await bench.create("t")
    append(bench, 1000, 3)
    bench.alter("t", leader=BROKER)
    append(bench, 1000, 2)
    assert bench.epoch_end(0) == (0, 0, 3)
    assert bench.epoch_end(1) == (0, 1, 5)
    assert bench.epoch_end(2) == (0, -1, -1)
    assert bench.epoch_end(1, current=1) == (0, 1, 5)
    assert bench.epoch_end(1, current=0)[0] == ErrorCode.FENCED_LEADER_EPOCH
    assert bench.epoch_end(1, current=2)[0] == ErrorCode.UNKNOWN_LEADER_EPOCH
    assert bench.epoch_end(1, topic="no")[0] == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


async def test_readers_of_committed_records_see_the_log_up_to_the_first_open_transaction(bench: OffsetsBench) -> None:
    await bench.create("t")
    append(bench, NOW_MS - 10)
    bench.write_in_transaction("t", 7)
    append(bench, NOW_MS + 10)

    async def all_positions(isolation_level: int) -> list[int]:
        positions = (LATEST, EARLIEST, MAX_TIMESTAMP, NOW_MS - 10, NOW_MS, NOW_MS + 10)
        return [(await bench.find(each, isolation_level=isolation_level)).offset for each in positions]

    assert await all_positions(0) == [3, 0, 2, 0, 1, 2]
    assert await all_positions(1) == [1, 0, -1, 0, -1, -1]
    bench.end_transaction("t", 7)
    assert await all_positions(1) == [4, 0, 2, 0, 1, 2]
