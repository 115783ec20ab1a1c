"""Batches from another replica are accepted only if they belong in this replica's log."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from parley.broker.metadata.types import PartitionState
from parley.broker.metrics.catalogue.clients import TopicMetrics
from parley.broker.replication.partition import Partition, Purgatories
from parley.broker.replication.range_fetch import LackedRecords, checked_batches, fetch_batches
from parley.broker.runtime.purgatory import Purgatory
from parley.protocol.errors import ErrorCode, KafkaError
from parley.protocol.messages.fetch import FetchRequest, FetchResponse
from parley.protocol.records.batch import build
from parley.protocol.records.batch_header import read_header
from parley.protocol.records.batch_patch import assign
from parley.protocol.records.errors import CorruptRecord
from parley.protocol.records.record import Record
from parley.protocol.schema import Request
from parley.protocol.uuids import UUID
from parley.storage.leader_epoch_cache import LeaderEpochCache


def batch(offset: int, count: int, epoch: int = 0) -> bytes:
    data = build([Record(i, 1000, None, b"%d" % (offset + i), ()) for i in range(count)])
    assign(data, 0, read_header(data), offset, epoch, None)
    return bytes(data)


@pytest.fixture
def epochs(tmp_path: Path) -> LeaderEpochCache:
    """Epoch 0 from offset 0, epoch 3 from offset 20."""
    cache = LeaderEpochCache(tmp_path / "epochs")
    cache.assign(0, 0)
    cache.assign(3, 20)
    return cache


def test_the_batches_of_the_range_are_taken_and_no_others(epochs: LeaderEpochCache) -> None:
    data = batch(10, 5) + batch(15, 5) + batch(20, 5, 3) + batch(25, 5, 3)
    taken = checked_batches(data, 10, 24, epochs, has_gaps=False)
    assert taken.next_offset == 25
    assert taken.data == batch(10, 5) + batch(15, 5) + batch(20, 5, 3)


def test_a_batch_that_the_response_cuts_off_is_left_for_the_next_request(epochs: LeaderEpochCache) -> None:
    taken = checked_batches((batch(10, 5) + batch(15, 5))[:-1], 10, 19, epochs, has_gaps=False)
    assert (taken.next_offset, taken.data) == (15, batch(10, 5))


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (batch(10, 5, 1), "leader epoch 1"),
        (batch(10, 5) + batch(15, 10), "ends at offset 24"),
        (batch(12, 3), "begins at offset 12"),
        (batch(5, 10), "begins at offset 5"),
        (batch(10, 5)[:-1] + b"x", "checksum"),
        (batch(10, 5)[:-1], "no whole batch"),
        (batch(40, 5, 3), "no whole batch"),
    ],
)
def test_batches_that_do_not_fit_the_range_or_the_epochs_are_refused(
    epochs: LeaderEpochCache, data: bytes, why: str
) -> None:
    with pytest.raises(CorruptRecord, match=why):
        checked_batches(data, 10, 19, epochs, has_gaps=False)


def test_a_compacted_range_may_have_gaps(epochs: LeaderEpochCache) -> None:
    taken = checked_batches(batch(12, 3) + batch(18, 1), 10, 19, epochs, has_gaps=True)
    assert (taken.next_offset, taken.data) == (19, batch(12, 3) + batch(18, 1))
    nothing = checked_batches(batch(40, 5, 3), 10, 19, epochs, has_gaps=True)
    assert (nothing.next_offset, bytes(nothing.data)) == (20, b"")


def test_a_compacted_range_is_not_empty_because_its_first_batch_is_cut_off(epochs: LeaderEpochCache) -> None:
    with pytest.raises(CorruptRecord, match="no whole batch"):
        checked_batches(batch(10, 5)[:-1], 10, 19, epochs, has_gaps=True)


class Source:
    """Responds to fetches with one partition."""

    def __init__(self, **data: Any) -> None:
        self.data = data
        self.asked: list[FetchRequest] = []

    async def __call__(self, request: Request) -> Any:
        assert isinstance(request, FetchRequest)
        self.asked.append(request)
        data = FetchResponse.PartitionData(partition_index=0, high_watermark=20, **{"records": b"", **self.data})
        return FetchResponse(responses=[FetchResponse.FetchableTopicResponse(partitions=[data])])


class OpenPartition(Partition):
    """A partition whose log consists of its leader epochs."""

    leader_epochs: LeaderEpochCache
    log_start_offset = 4
    log_end_offset = 20

    @property
    def log(self) -> Any:
        return self


@pytest.fixture
def partition(epochs: LeaderEpochCache) -> Partition:
    made = OpenPartition(
        "t",
        UUID(int=7),
        0,
        broker_id=1,
        state=PartitionState((1, 2), (1, 2), 2, leader_epoch=3),
        purgatories=Purgatories(Purgatory(), Purgatory()),
        counters=TopicMetrics(),
    )
    made.leader_epochs = epochs
    return made


async def test_a_fetch_names_the_leader_epoch_and_no_replica(partition: Partition) -> None:
    source = Source(records=batch(10, 5))
    taken = await fetch_batches(source, partition, 10, 19, max_bytes=1000, has_gaps=False)
    assert taken.next_offset == 15
    (request,) = source.asked
    (asked,) = request.topics[0].partitions
    assert request.replica_state.replica_id == -1
    assert (asked.current_leader_epoch, asked.fetch_offset, asked.partition_max_bytes) == (3, 10, 1000)
    assert asked.log_start_offset == 4  # so that the other replica names the tombstones that it has removed


@pytest.mark.parametrize(("removed_up_to", "lacks_tombstones"), [(-1, False), (11, True)])
async def test_the_other_replica_tells_if_it_lacks_tombstones(
    partition: Partition, removed_up_to: int, lacks_tombstones: bool
) -> None:
    snapshot_id = FetchResponse.SnapshotId(end_offset=removed_up_to)
    source = Source(records=batch(10, 5), snapshot_id=snapshot_id)
    taken = await fetch_batches(source, partition, 10, 19, max_bytes=1000, has_gaps=True)
    assert taken.lacks_tombstones is lacks_tombstones


@pytest.mark.parametrize(
    ("data", "code", "lacks_them"),
    [
        ({"records": b""}, ErrorCode.OFFSET_NOT_AVAILABLE, False),
        ({"error_code": ErrorCode.OFFSET_OUT_OF_RANGE}, ErrorCode.OFFSET_OUT_OF_RANGE, True),
        ({"error_code": ErrorCode.CORRUPT_MESSAGE}, ErrorCode.CORRUPT_MESSAGE, True),
        ({"error_code": ErrorCode.KAFKA_STORAGE_ERROR}, ErrorCode.KAFKA_STORAGE_ERROR, False),
        ({"error_code": ErrorCode.UNKNOWN_LEADER_EPOCH}, ErrorCode.UNKNOWN_LEADER_EPOCH, False),
        ({"records": batch(10, 11)}, ErrorCode.CORRUPT_MESSAGE, False),  # compacted otherwise: it ends at 20
    ],
)
async def test_a_replica_without_the_records_is_an_error(
    partition: Partition, data: dict[str, Any], code: ErrorCode, lacks_them: bool
) -> None:
    """Only its own answer proves that it lacks them."""
    with pytest.raises(KafkaError) as raised:
        await fetch_batches(Source(**data), partition, 10, 19, max_bytes=1000, has_gaps=False)
    assert (raised.value.code, isinstance(raised.value, LackedRecords)) == (code, lacks_them)


async def test_a_replica_that_ends_behind_the_range_is_not_said_to_lack_it(partition: Partition) -> None:
    """It is asked for the next leader epoch first, which it may not have fetched yet."""
    partition.log_end_offset = 30  # type: ignore[attr-defined]
    source = Source(error_code=ErrorCode.OFFSET_OUT_OF_RANGE)
    with pytest.raises(KafkaError) as raised:
        await fetch_batches(source, partition, 10, 19, max_bytes=1000, has_gaps=False)
    assert source.asked[0].topics[0].partitions[0].fetch_offset == 20
    assert not isinstance(raised.value, LackedRecords)


async def test_a_fetch_that_is_throttled_is_sent_again(partition: Partition) -> None:
    source, put_off = Source(records=batch(10, 5)), [FetchResponse(responses=[], throttle_time_ms=1)] * 2

    async def ask(request: Request) -> Any:
        return put_off.pop() if put_off else await source(request)

    taken = await fetch_batches(ask, partition, 10, 19, max_bytes=1000, has_gaps=False)
    assert (taken.next_offset, put_off) == (15, [])


async def test_a_fetch_is_not_put_off_for_ever(partition: Partition) -> None:
    async def ask(request: Request) -> Any:
        return FetchResponse(responses=[], throttle_time_ms=1)

    with pytest.raises(KafkaError):
        await fetch_batches(ask, partition, 10, 19, max_bytes=1000, has_gaps=False)


@pytest.mark.parametrize(
    ("epoch", "last", "epoch_behind", "log_end", "refused"),
    [
        (1, 19, 3, 30, None),
        (3, 19, 3, 30, None),
        (3, 17, 3, 30, None),  # a compacted log has no batch between the range and offset 20
        (0, 19, 2, 30, "wrote offset 20 in leader epoch 2, this replica in 3"),
        (3, 19, None, 30, "offset 20 is not committed on the other broker yet"),
        (3, 19, None, 20, "wrote offset 10 in leader epoch 3, this replica in 0"),
    ],
)
async def test_an_epoch_that_began_in_the_range_is_taken_from_a_replica_that_agrees_behind_it(
    partition: Partition, epoch: int, last: int, epoch_behind: int | None, log_end: int, refused: str | None
) -> None:
    """Recovery could not read its first batch. An epoch without batches began behind the range."""
    partition.log_end_offset = log_end  # type: ignore[attr-defined]
    inside = Source(records=batch(10, last - 9, epoch))
    behind = Source(records=b"" if epoch_behind is None else batch(20, 5, epoch_behind))

    async def ask(request: Request) -> Any:
        assert isinstance(request, FetchRequest)
        return await (behind if request.topics[0].partitions[0].fetch_offset == 20 else inside)(request)

    fetch = fetch_batches(ask, partition, 10, last, max_bytes=1000, has_gaps=last < 19)
    if refused is None:
        assert (await fetch).data == batch(10, last - 9, epoch)
    else:
        with pytest.raises(KafkaError, match=refused):
            await fetch
