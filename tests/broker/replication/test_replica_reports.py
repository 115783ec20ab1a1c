"""GetReplicaLogInfo: a broker's reports about its logs to the controller."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from random import Random

import pytest

from parley.broker.metadata.changes import BrokerRegistered, PartitionChanged, TopicCreated
from parley.broker.metadata.types import NO_LEADER, PartitionState, TopicImage
from parley.broker.replication import replica_reports
from parley.broker.replication.replica_reports import ReplicaReports
from parley.broker.runtime.tasks import TaskSet
from parley.protocol.errors import ErrorCode
from parley.protocol.messages.replication import GetReplicaLogInfoRequest, GetReplicaLogInfoResponse
from parley.protocol.schema import ZERO_UUID
from parley.protocol.uuids import UUID
from parley.storage.log import Log
from parley.storage.log_config import LogConfig
from parley.storage.log_maintenance import MaintenanceIntervals
from parley.storage.log_manager import LogManager
from tests.broker.api.bench import NOW_MS, Bench, batch

TOPIC_ID, OTHER_ID, INCARNATION = UUID(int=7), UUID(int=8), UUID(int=9)
Asked = GetReplicaLogInfoRequest.TopicPartitions


class Reporter:
    """A broker's logs, and its hosted partitions without metadata."""

    def __init__(self, logs: LogManager, directory: Path) -> None:
        self.logs = logs
        self.bench = Bench(directory)
        self.registered_epoch = -1
        self.reports = ReplicaReports(1, logs, self.bench.partitions, INCARNATION, lambda: self.registered_epoch)

    def all(self, after: tuple[str, int] = ("", -1)) -> GetReplicaLogInfoResponse:
        request = GetReplicaLogInfoRequest(topic_partitions=None, after_topic=after[0], after_partition=after[1])
        return self.reports.page(request)

    def named(self, topic_id: UUID, *partitions: int) -> GetReplicaLogInfoResponse:
        return self.reports.page(
            GetReplicaLogInfoRequest(topic_partitions=[Asked(topic_id=topic_id, partitions=list(partitions))])
        )


@asynccontextmanager
async def reporter(tmp_path: Path, names: Sequence[str] = ("d0", "d1")) -> AsyncIterator[Reporter]:
    tasks = TaskSet()
    logs = LogManager(
        [tmp_path / name for name in names],
        default_config=LogConfig(segment_index_bytes=4096),
        now_ms=lambda: NOW_MS,
        random=Random(1),
        start_task=tasks.start,
        intervals=MaintenanceIntervals(),
    )
    await logs.open("cluster", 1)
    (tmp_path / "bench").mkdir(exist_ok=True)
    try:
        yield Reporter(logs, tmp_path / "bench")
    finally:
        await logs.close()
        await tasks.close()


def append(log: Log, count: int, epoch: int) -> None:
    log.append_as_leader(batch(count), leader_epoch=epoch, now_ms=NOW_MS)


async def test_every_log_is_reported_with_its_place_and_its_end(tmp_path: Path) -> None:
    async with reporter(tmp_path) as broker:
        log = await broker.logs.get_or_create("b", 1, topic_id=TOPIC_ID)
        append(log, 2, epoch=3)
        append(log, 1, epoch=5)
        log.high_watermark = 2
        log.begin_leading(6)  # nothing was written
        await broker.logs.get_or_create("a", 0, topic_id=OTHER_ID)
        response = broker.all()
        assert (response.broker_epoch, response.truncated, response.incarnation_id) == (-1, False, INCARNATION)
        empty, written = response.topic_partition_log_info_list
        assert (empty.topic_name, empty.topic_id) == ("a", OTHER_ID)
        assert (written.topic_name, written.topic_id) == ("b", TOPIC_ID)
        (info,) = written.partition_log_info
        assert (info.partition, info.error_code) == (1, ErrorCode.NONE)
        assert (info.last_written_leader_epoch, info.current_leader_epoch) == (5, 6)
        assert (info.high_watermark, info.log_end_offset) == (2, 3)
        assert info.directory_id == broker.logs.directory_of(log).id
        (info,) = empty.partition_log_info
        assert (info.last_written_leader_epoch, info.current_leader_epoch, info.log_end_offset) == (-1, -1, 0)


async def test_a_stored_epoch_counts_like_that_of_the_last_record(tmp_path: Path) -> None:
    async with reporter(tmp_path) as broker:
        log = await broker.logs.get_or_create("b", 1, topic_id=TOPIC_ID)
        append(log, 2, epoch=3)
        log.store_epoch(6)
        (info,) = broker.all().topic_partition_log_info_list[0].partition_log_info
        assert (info.last_written_leader_epoch, info.log_end_offset) == (6, 2)


async def test_a_log_without_topic_id_is_reported_by_its_name(tmp_path: Path) -> None:
    async with reporter(tmp_path) as broker:
        await broker.logs.get_or_create("old", 0)
        (topic,) = broker.all().topic_partition_log_info_list
        assert (topic.topic_name, topic.topic_id) == ("old", ZERO_UUID)


async def test_an_epoch_in_which_nothing_was_ever_written_does_not_count(tmp_path: Path) -> None:
    """A broker that has lost a partition may lead it without a record, before the controller learns of the loss."""
    async with reporter(tmp_path) as broker:
        log = await broker.logs.get_or_create("a", 0, topic_id=TOPIC_ID)
        log.leader_epochs.assign(6, 0)
        (info,) = broker.all().topic_partition_log_info_list[0].partition_log_info
        assert (info.last_written_leader_epoch, info.current_leader_epoch, info.log_end_offset) == (-1, 6, 0)


async def test_the_last_epoch_of_an_emptied_log_is_that_of_its_last_record(tmp_path: Path) -> None:
    async with reporter(tmp_path) as broker:
        log = await broker.logs.get_or_create("t", 0, topic_id=TOPIC_ID)
        append(log, 2, epoch=3)
        log.high_watermark = 2
        log.advance_log_start(2)
        (info,) = broker.all().topic_partition_log_info_list[0].partition_log_info
        assert (info.last_written_leader_epoch, info.log_end_offset) == (3, 2)


async def test_many_logs_come_in_pages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(replica_reports, "PAGE_LOGS", 2)
    monkeypatch.setattr(replica_reports, "PAGE_OF_ALL_LOGS", 2)
    async with reporter(tmp_path) as broker:
        for topic, index in (("a", 0), ("a", 1), ("b", 0), ("b", 2), ("b", 10)):
            await broker.logs.get_or_create(topic, index, topic_id=TOPIC_ID if topic == "a" else OTHER_ID)
        found, after, truncated = [], ("", -1), True
        while truncated:
            response = broker.all(after)
            page = [
                (topic.topic_name, info.partition)
                for topic in response.topic_partition_log_info_list
                for info in topic.partition_log_info
            ]
            found.append(page)
            after, truncated = page[-1], response.truncated
        assert found == [[("a", 0), ("a", 1)], [("b", 0), ("b", 2)], [("b", 10)]]
        assert broker.named(OTHER_ID, 0, 2, 10).truncated
        assert not broker.named(OTHER_ID, 0, 2).truncated


async def test_requested_partitions_are_reported_one_by_one(tmp_path: Path) -> None:
    async with reporter(tmp_path) as broker:
        log = await broker.logs.get_or_create("t", 0, topic_id=TOPIC_ID)
        append(log, 2, epoch=3)
        (topic,) = broker.named(TOPIC_ID, 0, 1).topic_partition_log_info_list
        assert topic.topic_id == TOPIC_ID
        assert [(info.partition, info.log_end_offset, info.error_code) for info in topic.partition_log_info] == [
            (0, 2, ErrorCode.NONE),
            (1, -1, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
        ]
        (other,) = broker.named(OTHER_ID, 0).topic_partition_log_info_list
        assert other.topic_id == OTHER_ID
        assert [info.error_code for info in other.partition_log_info] == [ErrorCode.UNKNOWN_TOPIC_OR_PARTITION]


async def test_a_log_without_topic_id_is_no_proof_of_absence(tmp_path: Path) -> None:
    """Until the metadata names the topic, the log may be the requested one."""
    async with reporter(tmp_path) as broker:
        append(await broker.logs.get_or_create("t", 0), 2, epoch=3)
        (topic,) = broker.named(TOPIC_ID, 0, 1).topic_partition_log_info_list
        assert [(info.error_code, info.log_end_offset) for info in topic.partition_log_info] == [
            (ErrorCode.UNKNOWN_TOPIC_ID, -1),
            (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, -1),
        ]
        state = PartitionState((2,), (2,), 2)
        broker.bench.change(TopicCreated(TopicImage("t", TOPIC_ID, (state,))))
        (topic,) = broker.named(TOPIC_ID, 0).topic_partition_log_info_list
        assert [info.log_end_offset for info in topic.partition_log_info] == [2]


async def test_logs_in_a_directory_that_is_offline_are_reported_as_such(tmp_path: Path) -> None:
    async with reporter(tmp_path, ["d0"]) as broker:
        await broker.logs.get_or_create("t", 0, topic_id=TOPIC_ID)
        directory = broker.logs.directories[0]
        broker.logs.failures.failed(directory, OSError(5, "Input/output error"))
        (topic,) = broker.all().topic_partition_log_info_list
        (info,) = topic.partition_log_info
        assert (info.error_code, info.log_end_offset, info.directory_id) == (
            ErrorCode.KAFKA_STORAGE_ERROR,
            -1,
            directory.id,
        )


async def test_the_epochs_of_a_hosted_partition_count(tmp_path: Path) -> None:
    async with reporter(tmp_path) as broker:
        topic_id = await broker.bench.create("t", replicas=(1, 2))
        broker.bench.alter("t", leader=2, leader_epoch=9)
        await broker.logs.get_or_create("t", 0, topic_id=topic_id)
        (info,) = broker.named(topic_id, 0).topic_partition_log_info_list[0].partition_log_info
        assert (info.last_written_leader_epoch, info.current_leader_epoch, info.partition_epoch) == (-1, 9, 1)


async def test_a_log_that_has_lost_committed_records_shows_it_until_it_is_in_sync_again(tmp_path: Path) -> None:
    async with reporter(tmp_path) as broker:
        broker.bench.metadata.subscribe(broker.reports.apply)
        topic_id = await broker.bench.create("t", replicas=(1, 2))  # in the ISR, as the controller has known it
        log = await broker.logs.get_or_create("t", 0, topic_id=topic_id)
        append(log, 2, epoch=3)
        broker.logs.unsettled.lost_below[log] = 5
        broker.logs.unsettled.note_power_cut(broker.logs.directory_of(log), {log})

        def high_watermark() -> int:
            info = broker.all().topic_partition_log_info_list[0].partition_log_info[0]
            assert info.may_be_cut_by_power == (info.high_watermark == 5)
            return info.high_watermark

        broker.bench.alter("t", leader=2)
        assert high_watermark() == 5
        known = broker.bench.metadata.image.brokers[1]
        state = replace(broker.bench.metadata.image.topics["t"].partitions[0], isr=(2,))
        broker.registered_epoch = 4
        arrived = BrokerRegistered(replace(known, epoch=4, incarnation_id=INCARNATION))
        broker.bench.change(arrived, PartitionChanged("t", 0, state))
        assert high_watermark() == 5
        broker.bench.alter("t", leader=NO_LEADER, isr=(1,))
        assert high_watermark() == 5
        broker.bench.alter("t", leader=2, isr=(2, 1))
        assert high_watermark() == 0
        broker.bench.alter("t", isr=(2,))
        assert high_watermark() == 0


async def test_a_new_log_in_place_of_a_lost_one_is_reported_as_missing_until_it_is_in_sync(tmp_path: Path) -> None:
    """A store that was rolled back may name this broker in the ISR at first."""
    async with reporter(tmp_path) as broker:
        broker.bench.metadata.subscribe(broker.reports.apply)
        known = broker.bench.metadata.image.brokers[1]
        broker.bench.change(BrokerRegistered(replace(known, epoch=4, incarnation_id=INCARNATION)))
        topic_id = await broker.bench.create("t", replicas=(1, 2))
        log = await broker.logs.get_or_create("t", 0, topic_id=topic_id, unproven_since=1)
        append(log, 2, epoch=3)

        def report() -> tuple[int, int]:
            (info,) = broker.named(topic_id, 0).topic_partition_log_info_list[0].partition_log_info
            return info.error_code, info.log_end_offset

        for isr, leader in (((1, 2), 1), ((), NO_LEADER), ((2,), 2)):
            assert report() == (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, 2)
            broker.bench.alter("t", isr=isr, leader=leader)
        broker.bench.alter("t", isr=(1, 2))
        assert report() == (ErrorCode.NONE, 2)
