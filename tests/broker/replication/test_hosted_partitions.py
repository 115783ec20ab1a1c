"""Hosted replicas: what they find on disk, and changes while their logs are being opened."""

from __future__ import annotations

import asyncio
import gc
import os
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from parley import Broker
from parley.broker.membership.joining import Joining
from parley.broker.metadata.changes import DeletedTopicsReplaced, Delta, PartitionChanged, TopicCreated
from parley.broker.metadata.image import MetadataImage
from parley.broker.metadata.types import PartitionState, ResourceType, TopicImage
from parley.broker.replication.hosted_partitions import OPENED_IN_A_TURN, REMOVED_AT_A_TIME
from parley.broker.replication.partition import Partition
from parley.broker.runtime.clock import SYSTEM_CLOCK
from parley.consensus.recipes.groups import Membership
from parley.protocol.client import Client
from parley.protocol.errors import ErrorCode
from parley.protocol.messages.configs import IncrementalAlterConfigsRequest
from parley.protocol.messages.offsets import ListOffsetsRequest
from parley.protocol.messages.produce import ProduceRequest
from parley.protocol.messages.topics import CreateTopicsRequest, DeleteTopicsRequest
from parley.protocol.records.batch import build
from parley.protocol.records.record import Record
from parley.protocol.uuids import UUID
from parley.storage.log import Log
from parley.storage.log_config import DAY_MS
from parley.storage.log_manager import LogManager
from parley.storage.new_log import NewLog
from tests.broker.api.bench import BROKER, OTHER, Bench
from tests.storage.logs import append


async def create(client: Client, topics: Mapping[str, int], **configs: str) -> None:
    """Create topics with the given number of partitions each."""
    entries = [
        CreateTopicsRequest.CreatableTopicConfig(name=key.replace("_", "."), value=value)
        for key, value in configs.items()
    ]
    wanted = [
        CreateTopicsRequest.CreatableTopic(
            name=name, num_partitions=partitions, replication_factor=1, assignments=[], configs=entries
        )
        for name, partitions in topics.items()
    ]
    answer: Any = await client.send(CreateTopicsRequest(topics=wanted, timeout_ms=5000))
    assert {topic.error_code for topic in answer.topics} == {ErrorCode.NONE}


async def produce(client: Client, topic: str, index: int = 0, *, timestamp: int = 1) -> int:
    data = ProduceRequest.PartitionProduceData(index=index, records=build([Record(0, timestamp, b"key", b"value", ())]))
    sent = ProduceRequest.TopicProduceData(name=topic, partition_data=[data])
    answer: Any = await client.send(ProduceRequest(acks=-1, timeout_ms=5000, topic_data=[sent]), version=9)
    return int(answer.responses[0].partition_responses[0].error_code)


async def offsets(client: Client, topic: str, partitions: int = 1, *, timestamp: int = -1) -> list[tuple[int, int]]:
    """Return the error code and the end offset of each partition (the start offset for a ``timestamp`` of -2)."""
    asked = [
        ListOffsetsRequest.ListOffsetsPartition(partition_index=index, timestamp=timestamp)
        for index in range(partitions)
    ]
    wanted = ListOffsetsRequest.ListOffsetsTopic(name=topic, partitions=asked)
    answer: Any = await client.send(ListOffsetsRequest(replica_id=-1, topics=[wanted]))
    found = sorted(answer.topics[0].partitions, key=lambda each: each.partition_index)
    return [(int(each.error_code), int(each.offset)) for each in found]


async def delete(client: Client, topic: str) -> None:
    answer: Any = await client.send(DeleteTopicsRequest(topic_names=[topic], timeout_ms=5000), version=5)
    assert answer.responses[0].error_code == ErrorCode.NONE


async def configure(client: Client, topic: str, key: str, value: str) -> None:
    alterable = IncrementalAlterConfigsRequest.AlterableConfig(name=key, config_operation=0, value=value)
    resource = IncrementalAlterConfigsRequest.AlterConfigsResource(
        resource_type=ResourceType.TOPIC, resource_name=topic, configs=[alterable]
    )
    answer: Any = await client.send(IncrementalAlterConfigsRequest(resources=[resource], validate_only=False))
    assert answer.responses[0].error_code == ErrorCode.NONE


class Gate:
    """Delays the creation of a topic's logs until the test allows it."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, topic: str) -> None:
        self.reached, self._opened = asyncio.Event(), asyncio.Event()
        get_or_create = LogManager.get_or_create

        async def held(manager: LogManager, name: str, index: int, **options: Any) -> Log:
            if name == topic and not self._opened.is_set():
                self.reached.set()
                await self._opened.wait()
            return await get_or_create(manager, name, index, **options)

        monkeypatch.setattr(LogManager, "get_or_create", held)

    def open(self) -> None:
        self._opened.set()


async def deletions() -> None:
    """Wait until every log deletion under way is done."""
    while running := [task for task in asyncio.all_tasks() if task.get_name().startswith("removal of")]:
        await asyncio.wait(running)


async def test_a_slow_registration_costs_no_records(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with Broker(data_dir=tmp_path) as broker, Client(broker.bootstrap_servers) as client:
        await create(client, {"kept": 1}, retention_ms="-1")
        assert await produce(client, "kept", timestamp=SYSTEM_CLOCK.wall_ms() - 8 * DAY_MS) == ErrorCode.NONE
    checked, loop = asyncio.Event(), asyncio.get_running_loop()
    join, pass_old_segments = Joining.join, Log.pass_old_segments

    async def slow_join(*args: Any) -> Membership:
        await checked.wait()
        return await join(*args)

    def noted(log: Log, now_ms: int) -> int | None:
        found = pass_old_segments(log, now_ms)
        loop.call_soon_threadsafe(checked.set)
        return found

    monkeypatch.setattr(Joining, "join", slow_join)
    monkeypatch.setattr(Log, "pass_old_segments", noted)
    again = Broker(data_dir=tmp_path, log_retention_check_interval_ms=1)
    async with again, Client(again.bootstrap_servers) as client:
        assert checked.is_set()
        assert await offsets(client, "kept", timestamp=-2) == [(ErrorCode.NONE, 0)]


@pytest.mark.slow
async def test_a_disk_that_is_missing_at_the_start_keeps_its_partitions(tmp_path: Path) -> None:
    good, bad = tmp_path / "good", tmp_path / "bad"
    disks = {"log.dirs": f"{good},{bad}"}
    async with Broker(disks) as broker, Client(broker.bootstrap_servers) as client:
        await create(client, {"t": 2})
        assert [await produce(client, "t", index) for index in range(2)] == [ErrorCode.NONE] * 2
        lost, kept = sorted(range(2), key=lambda index: (bad / f"t-{index}").is_dir(), reverse=True)
    bad.rename(tmp_path / "unplugged")
    bad.write_text("not a directory")
    async with Broker(disks) as broker, Client(broker.bootstrap_servers) as client:
        found = await offsets(client, "t", 2)
        assert found[lost][0] == await produce(client, "t", lost) == ErrorCode.KAFKA_STORAGE_ERROR
        assert found[kept] == (ErrorCode.NONE, 1)
        assert await produce(client, "t", kept) == ErrorCode.NONE
        await create(client, {"new": 1})
        assert await produce(client, "new") == ErrorCode.NONE
        assert not (good / f"t-{lost}").exists()
    bad.unlink()
    (tmp_path / "unplugged").rename(bad)
    async with Broker(disks) as broker, Client(broker.bootstrap_servers) as client:
        assert await produce(client, "t", lost) == ErrorCode.NONE
        assert await offsets(client, "t", 2) == [(ErrorCode.NONE, 2)] * 2


async def test_a_topic_deleted_while_it_opens_leaves_no_log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with Broker(data_dir=tmp_path) as broker, Client(broker.bootstrap_servers) as client:
        gate = Gate(monkeypatch, "t")
        async with Client(broker.bootstrap_servers) as creator:
            creating = asyncio.ensure_future(create(creator, {"t": 300}))
            await gate.reached.wait()
            await delete(client, "t")
            gate.open()
            await creating
        await deletions()
        assert broker.server.parts.logs.logs == []
        assert [name for name in os.listdir(tmp_path) if name.startswith("t-") and not name.endswith("-delete")] == []


async def test_a_topic_that_an_older_image_does_not_have_is_set_aside(tmp_path: Path) -> None:
    """The coordination store was restored under a running broker: the cluster has not deleted the topic."""
    async with Broker(data_dir=tmp_path) as broker, Client(broker.bootstrap_servers) as client:
        await create(client, {"old": 1, "deleted": 1})
        metadata = broker.server.metadata
        older = metadata.image
        await create(client, {"new": 1})
        assert await produce(client, "new") == ErrorCode.NONE
        await delete(client, "deleted")
        newer = metadata.image
        forgotten = replace(older, version=newer.version + 9, deleted_topics=newer.deleted_topics)
        changes = forgotten.changes_since(newer)
        metadata.replace(forgotten, Delta(newer.controller_epoch, forgotten.version, changes, continues_history=False))
        await deletions()
        (stray,) = [name for name in os.listdir(tmp_path) if name.endswith("-stray")]
        assert stray.startswith("new-0.")
        assert b"value" in (tmp_path / stray / "00000000000000000000.log").read_bytes()
        assert {log.topic for log in broker.server.parts.logs.logs} >= {"old"}


@pytest.mark.parametrize("continues", [True, False], ids=["reassignment", "restored store"])
async def test_a_replica_that_only_a_lost_history_has_is_set_aside(tmp_path: Path, continues: bool) -> None:
    """A finished reassignment removes the replica for good. A restored store has the replicas from before one.

    The partition epochs tell nothing: the controller may have raised those of the restored store before a broker learns
    of them.
    """
    async with Broker(data_dir=tmp_path) as broker, Client(broker.bootstrap_servers) as client:
        await create(client, {"t": 1})
        assert await produce(client, "t") == ErrorCode.NONE
        metadata, own = broker.server.metadata, broker.server.identity.broker_id
        after = PartitionState((77,), (77,), 77, leader_epoch=9, partition_epoch=1)
        before = replace(after, replicas=(own, 77), partition_epoch=0)
        for state, is_decided in ((before, True), (after, continues)):
            change, image = PartitionChanged("t", 0, state), metadata.image
            metadata.apply(Delta(image.controller_epoch, image.version + 1, (change,), is_decided))
        await deletions()
        kept = [name.rpartition("-")[2] for name in os.listdir(tmp_path) if name.startswith("t-0.")]
        assert kept == ["delete" if continues else "stray"]


async def test_a_topic_created_again_while_the_old_one_opens_keeps_its_records(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with Broker(data_dir=tmp_path) as broker, Client(broker.bootstrap_servers) as client:
        gate, x_opened, opened = Gate(monkeypatch, "big"), asyncio.Event(), Partition.opened

        def noted(partition: Partition, log: Log) -> None:
            opened(partition, log)
            if partition.topic == "x":
                x_opened.set()

        monkeypatch.setattr(Partition, "opened", noted)
        async with Client(broker.bootstrap_servers) as first, Client(broker.bootstrap_servers) as second:
            creating = asyncio.ensure_future(create(first, {"big": OPENED_IN_A_TURN, "x": 1}))
            await gate.reached.wait()  # no log of x has been opened so far
            await delete(client, "x")
            again = asyncio.ensure_future(create(second, {"x": 1}))
            await x_opened.wait()
            assert await produce(client, "x") == ErrorCode.NONE
            gate.open()
            await asyncio.gather(creating, again)
        await deletions()
        assert await offsets(client, "x") == [(ErrorCode.NONE, 1)]
        assert await produce(client, "x") == ErrorCode.NONE


async def test_partitions_that_are_being_opened_get_a_new_configuration(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with Broker(data_dir=tmp_path) as broker, Client(broker.bootstrap_servers) as client:
        gate = Gate(monkeypatch, "t")
        async with Client(broker.bootstrap_servers) as creator:
            creating = asyncio.ensure_future(create(creator, {"t": 2 * OPENED_IN_A_TURN}))
            await gate.reached.wait()
            await configure(client, "t", "retention.ms", "1234")
            gate.open()
            await creating
        assert [log.config.retention_ms for log in broker.server.parts.logs.logs] == [1234] * 2 * OPENED_IN_A_TURN


@pytest.mark.parametrize("was_deleted", [True, False])
async def test_the_log_of_another_topic_of_the_name_is_removed_only_if_that_topic_was_deleted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, was_deleted: bool
) -> None:
    """Its file with the topic id may be altered, or the store may have forgotten the topic."""
    async with Broker(data_dir=tmp_path) as broker, Client(broker.bootstrap_servers) as client:
        logs = broker.server.parts.logs
        monkeypatch.setattr(logs.strays, "was_deleted", lambda topic_id: was_deleted)
        other = await logs.get_or_create("x", 0, topic_id=UUID(int=7))
        append(other, b"of another topic")
        await create(client, {"x": 1})
        assert await produce(client, "x") == ErrorCode.NONE
        assert await offsets(client, "x") == [(ErrorCode.NONE, 1)]
        assert other not in logs.logs
        kept = [name for name in os.listdir(tmp_path) if name.startswith("x-0.")]
        assert [name.rpartition("-")[2] for name in kept] == ([] if was_deleted else ["stray"])
        for name in kept:
            assert b"of another topic" in (tmp_path / name / "00000000000000000000.log").read_bytes()


async def test_logs_of_a_deleted_topic_are_removed_a_few_at_a_time_and_its_name_can_be_used_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    delete_log, now, most = LogManager.delete, 0, 0

    async def counted(logs: LogManager, topic: str, partition: int, *, topic_id: UUID | None = None) -> bool:
        nonlocal now, most
        now, most = now + 1, max(most, now + 1)
        try:
            return await delete_log(logs, topic, partition, topic_id=topic_id)
        finally:
            now -= 1

    monkeypatch.setattr(LogManager, "delete", counted)
    count = 3 * REMOVED_AT_A_TIME + 1
    async with Broker(data_dir=tmp_path) as broker, Client(broker.bootstrap_servers) as client:
        await create(client, {"t": count})
        assert await produce(client, "t", count - 1) == ErrorCode.NONE
        await delete(client, "t")
        await create(client, {"t": count})
        assert await offsets(client, "t", count) == [(ErrorCode.NONE, 0)] * count
        assert await produce(client, "t", count - 1) == ErrorCode.NONE
    assert most == REMOVED_AT_A_TIME
    assert not [line for line in caplog.messages if "stray" in line]


@pytest.mark.parametrize("is_written", [False, True])
async def test_a_deleted_partition_leaves_no_work_to_the_garbage_collector(tmp_path: Path, is_written: bool) -> None:
    """Objects that refer to each other would stay in memory for good, if ``LongLivedObjects`` made them permanent."""
    async with Broker(data_dir=tmp_path) as broker, Client(broker.bootstrap_servers) as client:
        await create(client, {"freed": 1})
        if is_written:
            assert await produce(client, "freed") == ErrorCode.NONE
        gc.collect()
        gc.disable()
        try:
            await delete(client, "freed")
            await deletions()
            left = [each for each in gc.get_objects() if type(each) in (Partition, Log, NewLog)]
            assert [each for each in left if each.topic == "freed"] == []  # other tests may have left some
        finally:
            gc.enable()


async def test_a_process_does_not_lead_under_the_epoch_of_an_earlier_process(tmp_path: Path) -> None:
    """Its disk may be another one: the epoch would then start at two offsets."""
    bench = Bench(tmp_path)
    await bench.create("before")
    bench.write("before")
    bench.partitions.is_registered = lambda image: False
    await bench.create("new", replicas=(BROKER, OTHER))
    bench.alter("before", leader_epoch=1)
    assert [bench.partition(topic).is_leader for topic in ("new", "before")] == [False, False]
    assert bench.partition("new").log.leader_epochs.entries == ()
    assert [entry.epoch for entry in bench.partition("before").log.leader_epochs.entries] == [0]
    bench.partitions.is_registered = lambda image: True
    for topic in ("new", "before"):
        bench.alter(topic, leader=BROKER)  # the registration raises the epoch
        assert bench.partition(topic).is_leader
    assert bench.write("before") == 1
    assert [entry.epoch for entry in bench.partition("before").log.leader_epochs.entries] == [0, 2]
    await bench.tasks.close()


async def test_a_delta_looks_once_for_the_registration_however_many_partitions_it_changes(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    await bench.create("many", partitions=20)
    looked: list[MetadataImage] = []

    def is_registered(image: MetadataImage) -> bool:
        looked.append(image)
        return False

    bench.partitions.is_registered = is_registered
    states = bench.metadata.image.topics["many"].partitions
    bench.change(*(PartitionChanged("many", index, state) for index, state in enumerate(states)))
    assert looked == [bench.metadata.image]
    assert not any(bench.partition("many", index).is_leader for index in range(20))
    await bench.tasks.close()


async def test_a_topic_of_which_nothing_is_hosted_any_more_is_forgotten(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    await bench.create("t", 2)
    bench.alter("t", 0, replicas=(OTHER,), isr=(OTHER,), leader=OTHER)
    assert list(bench.partitions.by_topic["t"]) == [1]
    counted = bench.metrics.topic("t")
    bench.alter("t", 1, replicas=(OTHER,), isr=(OTHER,), leader=OTHER)
    assert bench.partitions.by_topic == {}
    assert bench.metrics.topic("t") is not counted
    await bench.tasks.close()


async def test_new_logs_are_unproven_unless_the_cluster_has_just_created_the_partition(tmp_path: Path) -> None:
    """Otherwise an earlier log of the replica was deleted or lost."""
    bench = Bench(tmp_path)
    await bench.create("new")
    await bench.create("moved", replicas=(BROKER, OTHER), leader=OTHER)
    assert bench.logs.unproven == {}
    both = PartitionState((BROKER, OTHER), (BROKER, OTHER), OTHER, partition_epoch=6)
    deleted = UUID(int=71)
    bench.change(
        DeletedTopicsReplaced((deleted,)),
        TopicCreated(TopicImage("lagging", UUID(int=72), (replace(both, isr=(OTHER,)),))),
    )
    bench.alter("moved", replicas=(OTHER,), isr=(OTHER,))
    bench.change(
        TopicCreated(TopicImage("deleted", deleted, (both,))),
        PartitionChanged("moved", 0, both),  # of the store's past: the partition has moved away since
    )
    await bench.partitions.until_opened()
    assert bench.logs.unproven == {("lagging", 0): 6, ("deleted", 0): 6, ("moved", 0): 6}
    bench.partitions.is_registered = lambda image: False
    await bench.create("unregistered")
    assert bench.logs.unproven["unregistered", 0] == 0
    await bench.tasks.close()
