"""Followers over real sockets: they copy their leader, truncate diverged logs, and survive failures."""

from __future__ import annotations

import asyncio
import logging
import os
import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from parley.broker.config import BrokerConfig
from parley.broker.metrics.catalogue.replication import FetcherMetrics
from parley.broker.metrics.registry import Metrics, Sample
from parley.broker.replication.fetcher import Fetcher
from parley.broker.replication.fetcher_assignment import FETCHERS_MAX, fetchers_per_leader
from parley.broker.replication.partition import Partition
from parley.broker.replication.truncation_decisions import step_for_range
from parley.protocol.errors import ErrorCode, KafkaError
from parley.protocol.messages.topics import DeleteRecordsRequest
from parley.protocol.records.batch import records
from parley.storage.cut_files import cut_files
from parley.storage.log import Log
from parley.storage.log_config import LogConfig
from tests.broker.replication.bench import Nodes, batch, eventually, nodes, now_ms, values_of
from tests.storage.logs import apply_retention


def write(partition: Partition, *values: bytes, acks: int = 1) -> None:
    partition.append(batch(*values), acks=acks, now_ms=now_ms())


async def committed(log: Log, end: int) -> None:
    """Wait until the high watermark is at ``end``."""
    await eventually(lambda: log.high_watermark == end)


async def agreed(cluster: Nodes, topic: str, end: int, *, index: int = 0) -> list[bytes]:
    """Wait until every running replica has its log end and high watermark at ``end``. Returns the values they hold."""
    logs = [node.log(topic, index) for node in cluster.nodes.values() if node.is_up]
    await eventually(lambda: all(log.log_end_offset == log.high_watermark == end for log in logs))
    first, *others = [values_of(log) for log in logs]
    assert all(other == first for other in others)
    return first


def fetcher_metrics(metrics: Metrics) -> list[Sample]:
    return next(samples for instruments, samples in metrics.snapshot() if instruments is FetcherMetrics)


async def test_followers_copy_their_leader(tmp_path: Path) -> None:
    async with nodes(tmp_path, 3) as cluster:
        await cluster.create("t", [1, 2, 3], partitions=3)
        for index in range(3):
            for number in range(20):
                write(cluster[1].partition("t", index), b"%d-%d" % (index, number), acks=-1)
        for index in range(3):
            assert await agreed(cluster, "t", 20, index=index) == [b"%d-%d" % (index, number) for number in range(20)]


async def test_a_broker_that_learns_late_of_its_registration_begins_to_fetch(tmp_path: Path) -> None:
    async with nodes(tmp_path, 2) as cluster:
        epoch, cluster[2].epoch = cluster[2].epoch, -1
        await cluster.create("t", [1, 2])
        write(cluster[1].partition("t"), b"x")
        await eventually(lambda: bool(cluster[2].fetchers._fetchers))
        cluster[2].epoch = epoch  # nothing else tells the fetcher
        await committed(cluster[2].log("t"), 1)


async def test_a_new_partition_does_not_wait_for_the_answer_under_way(tmp_path: Path) -> None:
    an_hour = {"replica_fetch_wait_max_ms": "3600000", "replica_socket_timeout_ms": "3600000"}
    async with nodes(tmp_path, 2, **an_hour, replica_lag_time_max_ms="3600000") as cluster:
        for number in range(3):
            await cluster.create(f"t{number}", [1, 2])
            write(cluster[1].partition(f"t{number}"), b"x")
            await committed(cluster[1].log(f"t{number}"), 1)


async def test_a_follower_flushes_records_before_the_leader_counts_them(tmp_path: Path) -> None:
    async with nodes(tmp_path, 2) as cluster:
        await cluster.create("t", [1, 2])
        log = cluster[2].log("t")
        log.config = replace(log.config, flush_messages=1)
        for end in range(1, 4):
            write(cluster[1].partition("t"), b"x", acks=-1)
            await committed(cluster[1].log("t"), end)
            assert log.recovery_point == end


async def test_more_records_than_fit_into_one_response_are_copied(tmp_path: Path) -> None:
    limits = {"replica_fetch_max_bytes": "20000", "replica_fetch_response_max_bytes": "50000"}
    async with nodes(tmp_path, 2, **limits) as cluster:
        await cluster.create("t", [1, 2], partitions=4)
        for index in range(4):
            for _ in range(30):
                write(cluster[1].partition("t", index), os.urandom(5000))
            write(cluster[1].partition("t", index), os.urandom(60_000))
        for index in range(4):
            assert len(await agreed(cluster, "t", 31, index=index)) == 31


async def test_a_partition_moves_to_its_new_leader(tmp_path: Path) -> None:
    async with nodes(tmp_path, 3) as cluster:
        await cluster.create("t", [1, 2, 3])
        write(cluster[1].partition("t"), b"first")
        await agreed(cluster, "t", 1)
        await cluster[1].stop()
        cluster.alter("t", leader=2, isr=(2, 3))
        write(cluster[2].partition("t"), b"second", acks=-1)
        assert await agreed(cluster, "t", 2) == [b"first", b"second"]
        await cluster.start(1)
        assert await agreed(cluster, "t", 2) == [b"first", b"second"]
        await eventually(lambda: cluster.state("t").isr == (2, 3, 1))


async def uncommitted(cluster: Nodes) -> None:
    """Let all three nodes have a record. Broker 2, which leads next, no longer knows that it is committed."""
    await cluster.create("t", [1, 2, 3], config=LogConfig(min_insync_replicas=2))
    write(cluster[1].partition("t"), b"a")
    await agreed(cluster, "t", 1)
    for node in (1, 2, 3):
        await cluster[node].stop(crash=True)
    for node in (2, 3):
        await cluster.start(node)
    assert [cluster[node].log("t").high_watermark for node in (2, 3)] == [0, 0]


async def test_followers_store_the_epoch_of_a_leader_that_commits_older_records(tmp_path: Path) -> None:
    async with nodes(tmp_path, 3) as cluster:
        await uncommitted(cluster)
        cluster.alter("t", leader=2, isr=(2, 3))
        epoch = cluster.state("t").leader_epoch
        await eventually(lambda: cluster[2].log("t").high_watermark == 1)
        assert [cluster[node].log("t").stored_epoch for node in (2, 3)] == [epoch, epoch]
        await cluster[3].stop(crash=True)
        await cluster.start(3)
        assert cluster[3].log("t").epochs_at_end == (0, epoch)
        await cluster.start(1)
        await eventually(lambda: cluster.state("t").isr == (2, 3, 1))
        assert cluster[1].log("t").stored_epoch == epoch, "it joins the ISR with the epoch"


async def test_a_follower_that_cannot_store_an_epoch_backs_off(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    refused = 0

    def refuse(log: Log, epoch: int) -> None:
        nonlocal refused
        refused += 1
        raise KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, "the disk is full")

    async with nodes(tmp_path, 3) as cluster:
        await uncommitted(cluster)
        with monkeypatch.context() as patch:
            patch.setattr(Log, "store_epoch", refuse)
            cluster.alter("t", leader=2, isr=(2, 3))
            await eventually(lambda: refused >= 3)
            assert cluster[2].log("t").high_watermark == 0
            (fetcher,) = cluster[3].fetchers._fetchers.values()
            assert fetcher.requests < 100
        await eventually(lambda: cluster[2].log("t").high_watermark == 1)


async def test_diverged_logs_are_truncated_to_where_they_agree(tmp_path: Path) -> None:
    async with nodes(tmp_path, 3) as cluster:
        await cluster.create("t", [1, 2, 3])
        write(cluster[1].partition("t"), b"a", b"b")
        await agreed(cluster, "t", 2)
        cluster.deaf = {2, 3}  # no follower reaches the old leader
        await cluster[2].stop()
        await cluster[3].stop()
        write(cluster[1].partition("t"), b"lost 1", b"lost 2", b"lost 3")
        await cluster[1].stop()
        cluster.deaf = set()
        cluster.alter("t", leader=2, isr=(2,))
        await cluster.start(2)
        write(cluster[2].partition("t"), b"c")
        await cluster.start(1)
        await cluster.start(3)
        assert await agreed(cluster, "t", 3) == [b"a", b"b", b"c"]
        log = cluster[1].log("t")
        assert log.leader_epochs.entries == cluster[2].log("t").leader_epochs.entries
        assert cluster[1].logs.directories[0].recovery_points.read()["t", 0] <= 2


async def test_a_leader_that_changes_during_a_truncation_is_followed_after_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cutting, go_on = threading.Event(), threading.Event()
    real = Log.truncate_to

    def truncate_to(log: Log, offset: int) -> None:
        cutting.set()
        go_on.wait()
        real(log, offset)

    async with nodes(tmp_path, 3) as cluster:
        await cluster.create("t", [1, 2, 3])
        write(cluster[1].partition("t"), b"a")
        await agreed(cluster, "t", 1)
        await cluster[1].fetchers.close()
        await cluster[2].fetchers.close()
        cluster.deaf = {3}
        cluster.alter("t", leader=2, isr=(1, 2))
        cluster.deaf = set()
        cluster[3].log("t").append_as_leader(batch(b"never committed"), leader_epoch=0, now_ms=now_ms())
        monkeypatch.setattr(Log, "truncate_to", truncate_to)
        cluster.tell()
        await eventually(cutting.is_set)
        cluster.alter("t", leader=1)
        cluster.alter("t", leader=1)
        partition = cluster[3].partition("t")
        assert partition.leader_epoch < cluster.state("t").leader_epoch
        go_on.set()
        write(cluster[1].partition("t"), b"b")
        await eventually(lambda: not partition.is_truncating and values_of(partition.log) == [b"a", b"b"])


async def test_a_follower_that_becomes_leader_before_its_truncation_keeps_its_log(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """From then on its log is the valid one: a response of the former leader must not change it."""
    cut = Fetcher._truncate_soon
    was_told = asyncio.Event()

    async with nodes(tmp_path, 3) as cluster:

        def elected_meanwhile(fetcher: Fetcher, *of: Any) -> None:
            cut(fetcher, *of)
            cluster.deaf = set()
            cluster.alter("t", leader=3)
            was_told.set()

        await cluster.create("t", [1, 2, 3])
        write(cluster[1].partition("t"), b"a")
        await agreed(cluster, "t", 1)
        await cluster[1].fetchers.close()
        await cluster[2].fetchers.close()
        cluster.deaf = {3}
        cluster.alter("t", leader=2)
        log = cluster[3].log("t")
        log.append_as_leader(batch(b"b"), leader_epoch=0, now_ms=now_ms())
        monkeypatch.setattr(Fetcher, "_truncate_soon", elected_meanwhile)
        cluster.deaf = set()
        cluster.tell()
        await was_told.wait()
        partition = cluster[3].partition("t")
        assert partition.is_leader
        await eventually(lambda: not any(task.get_name().startswith("truncation") for task in asyncio.all_tasks()))
        assert partition.epoch_start_offset == 2
        assert values_of(log) == [b"a", b"b"]


async def leader_without_committed_records(cluster: Nodes, *, unclean_epoch: int) -> None:
    """Broker 2 has one record and is elected, outside the ISR; broker 1, which has two more committed ones, comes
    back after that."""
    await cluster.create("t", [1, 2])
    write(cluster[1].partition("t"), b"a")
    await agreed(cluster, "t", 1)
    await cluster[2].stop()
    cluster.alter("t", isr=(1,))
    write(cluster[1].partition("t"), b"b", b"c")
    assert cluster[1].log("t").high_watermark == 3
    await cluster[1].stop()
    cluster.alter("t", leader=2, isr=(2,), unclean_epoch=unclean_epoch)
    await cluster.start(2)
    await cluster.start(1)


async def test_an_unclean_leader_s_shorter_log_counts(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async with nodes(tmp_path, 2) as cluster:
        await leader_without_committed_records(cluster, unclean_epoch=1)
        assert await agreed(cluster, "t", 1) == [b"a"]
        metrics = cluster[1].fetchers.truncations.metrics
        await eventually(lambda: metrics.truncations == 1)
        (file,) = cut_files(cluster[1].log("t").directory)
        assert [bytes(record.value or b"") for record in records(memoryview(file.path.read_bytes()), 0)] == [b"b", b"c"]
        assert (metrics.records, metrics.refused) == (2, 0)
        (line,) = [each for each in caplog.records if "committed records were removed" in each.message]
        assert line.levelno == logging.ERROR
        facts = vars(line)
        assert (facts["committed_records"], facts["kept"], facts["complete"]) == (2, str(file.path), True)


async def test_a_replica_keeps_committed_records_that_its_leader_lacks(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """No unclean election explains the loss. The replica follows again if the topic allows the loss."""
    async with nodes(tmp_path, 2) as cluster:
        await leader_without_committed_records(cluster, unclean_epoch=-1)
        metrics = cluster[1].fetchers.truncations.metrics
        await eventually(lambda: metrics.refused == 1)
        write(cluster[2].partition("t"), b"d")
        log = cluster[1].log("t")
        assert values_of(log) == [b"a", b"b", b"c"]
        assert not cut_files(log.directory)
        line = next(each for each in caplog.records if "a replica stops following" in each.message)
        assert line.levelno == logging.ERROR
        assert "unclean.leader.election.enable=true" in vars(line)["remedy"]
        log.config = replace(log.config, unclean_leader_election_enable=True)
        assert await agreed(cluster, "t", 2) == [b"a", b"d"]
        await eventually(lambda: metrics.truncations == 1)
        assert len(cut_files(log.directory)) == 1
        assert metrics.refused == 1


async def test_a_follower_behind_the_leaders_log_start_begins_again(tmp_path: Path) -> None:
    async with nodes(tmp_path, 2) as cluster:
        await cluster.create("t", [1, 2], config=LogConfig(segment_bytes=1000))
        write(cluster[1].partition("t"), b"a")
        await agreed(cluster, "t", 1)
        await cluster[2].stop()
        cluster.alter("t", isr=(1,))
        for _ in range(10):
            write(cluster[1].partition("t"), os.urandom(600))
        log = cluster[1].log("t")
        log.advance_log_start(8)
        apply_retention(log, now_ms())
        await cluster.start(2)
        await eventually(lambda: cluster[2].log("t").log_end_offset == 11)
        assert cluster[2].log("t").log_start_offset == 8
        assert values_of(cluster[2].log("t")) == values_of(log)


async def delete_records(cluster: Nodes, offset: int, *, timeout_ms: int = 60_000) -> tuple[int, int]:
    """Return the error and the low watermark."""
    asked = DeleteRecordsRequest.DeleteRecordsPartition(partition_index=0, offset=offset)
    topic = DeleteRecordsRequest.DeleteRecordsTopic(name="t", partitions=[asked])
    request = DeleteRecordsRequest(topics=[topic], timeout_ms=timeout_ms)
    answer = await cluster[2].peers.client(1).send(request)
    result = answer.topics[0].partitions[0]
    return result.error_code, result.low_watermark


async def test_deleted_records_are_deleted_at_followers(tmp_path: Path) -> None:
    async with nodes(tmp_path, 3) as cluster:
        await cluster.create("t", [1, 2, 3])
        for value in (b"a", b"b", b"c"):
            write(cluster[1].partition("t"), value)
        await agreed(cluster, "t", 3)
        assert await delete_records(cluster, 2) == (ErrorCode.NONE, 2)
        assert [node.log("t").log_start_offset for node in cluster.nodes.values()] == [2, 2, 2]
        await cluster[3].fetchers.close()
        assert await delete_records(cluster, 3, timeout_ms=1) == (ErrorCode.REQUEST_TIMED_OUT, -1)
        waiting = asyncio.ensure_future(delete_records(cluster, 3))
        cluster.fence(3, fenced=True)
        assert await waiting == (ErrorCode.NONE, 3)


async def test_a_partition_that_fails_stops_no_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = Log.append_as_follower

    def append(log: Log, batches: memoryview) -> object:
        if log.topic == "bad" and failing:
            raise KafkaError(ErrorCode.CORRUPT_MESSAGE)
        return real(log, batches)

    failing = True
    monkeypatch.setattr(Log, "append_as_follower", append)
    async with nodes(tmp_path, 2) as cluster:
        await cluster.create("bad", [1, 2])
        await cluster.create("good", [1, 2])
        for number in range(3):
            write(cluster[1].partition("bad"), b"x")
            write(cluster[1].partition("good"), b"x")
            await agreed(cluster, "good", number + 1)
        assert cluster[2].log("bad").log_end_offset == 0
        failing = False
        await agreed(cluster, "bad", 3)


@pytest.mark.parametrize(
    ("of", "name", "said"),
    [
        (Log, "truncate_to", "following a partition failed"),
        (Fetcher, "_start_over_where_needed", "fetching from a leader failed"),
    ],
)
async def test_a_follower_goes_on_after_an_unexpected_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, of: Any, name: str, said: str
) -> None:
    async with nodes(tmp_path, 2) as cluster:
        await cluster.create("t", [1, 2])
        write(cluster[1].partition("t"), b"a")
        await agreed(cluster, "t", 1)
        await cluster[1].stop()
        await cluster[2].fetchers.close()
        cluster[2].log("t").append_as_leader(batch(b"never committed"), leader_epoch=0, now_ms=now_ms())
        await cluster[2].stop()
        real, failures = getattr(of, name), iter([True])

        def failing(*arguments: Any) -> Any:
            if next(failures, False):
                raise ValueError("a bug")
            return real(*arguments)

        monkeypatch.setattr(of, name, failing)
        await cluster.start(1)
        cluster.alter("t", leader=1)
        write(cluster[1].partition("t"), b"b")
        await cluster.start(2)
        assert await agreed(cluster, "t", 2) == [b"a", b"b"]
        assert not next(failures, False)
        assert [record.exc_info is not None for record in caplog.records if record.getMessage() == said] == [True]


async def test_a_follower_outside_of_its_leaders_log_goes_on_after_an_unexpected_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    failures = iter([True])

    def failing(*arguments: int) -> Any:
        if next(failures, False):
            raise ValueError("a bug")
        return step_for_range(*arguments)

    monkeypatch.setattr("parley.broker.replication.fetcher.step_for_range", failing)
    async with nodes(tmp_path, 2) as cluster:
        await cluster.create("t", [1, 2])
        write(cluster[1].partition("t"), b"a")
        await agreed(cluster, "t", 1)
        await cluster[2].stop()
        cluster.alter("t", isr=(1,))
        for number in range(5):
            write(cluster[1].partition("t"), b"%d" % number)
        cluster[1].log("t").advance_log_start(4)
        await cluster.start(2)
        await eventually(lambda: cluster[2].log("t").log_end_offset == 6)
        assert values_of(cluster[2].log("t")) == [b"3", b"4"]
        assert [r.getMessage() for r in caplog.records].count("following a partition failed") == 1


async def test_partitions_that_fail_together_are_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """As when the disk of their leader is full."""
    monkeypatch.setattr("parley.broker.replication.fetch_failures.GATHERED_S", 0.2)
    async with nodes(tmp_path, 2) as cluster:
        await cluster.create("t", [1, 2], partitions=8)
        for index in range(8):
            write(cluster[1].partition("t", index), b"1")
            await agreed(cluster, "t", 1, index=index)
        for index in range(8):
            cluster[1].partition("t", index).lose_log()

        def lines() -> list[Any]:
            return [record for record in caplog.records if "cannot be fetched at the moment" in record.message]

        await eventually(lambda: sum(getattr(line, "partitions", 1) for line in lines()) == 8)
        assert len(lines()) < 8
        assert {line.reason for line in lines()} == {"KAFKA_STORAGE_ERROR"}


async def test_a_deleted_topic_is_followed_no_longer_and_its_successor_is(tmp_path: Path) -> None:
    async with nodes(tmp_path, 2) as cluster:
        await cluster.create("t", [1, 2])
        write(cluster[1].partition("t"), b"old")
        await agreed(cluster, "t", 1)
        cluster.delete("t")
        await cluster.create("t", [1, 2])
        write(cluster[1].partition("t"), b"new")
        assert await agreed(cluster, "t", 1) == [b"new"]


async def test_the_high_watermark_survives_a_restart(tmp_path: Path) -> None:
    async with nodes(tmp_path, 2) as cluster:
        await cluster.create("t", [1, 2])
        write(cluster[1].partition("t"), b"a")
        await agreed(cluster, "t", 1)
        await cluster[1].stop()
        await cluster[2].stop()
        await cluster.start(2)
        assert cluster[2].log("t").high_watermark == 1


def test_the_connections_to_a_leader_are_bounded() -> None:
    configured = {count: BrokerConfig.from_properties({"num.replica.fetchers": str(count)}) for count in (3, 2**31 - 1)}
    assert [fetchers_per_leader(config) for config in configured.values()] == [3, FETCHERS_MAX]


async def test_fetchers_are_as_many_as_configured(tmp_path: Path) -> None:
    async with nodes(tmp_path, 2, num_replica_fetchers="3") as cluster:
        await cluster.create("t", [1, 2], partitions=7)
        for index in range(7):
            write(cluster[1].partition("t", index), b"x")
            await agreed(cluster, "t", 1, index=index)
        assert cluster[1].sessions.sessions == 3
        found = dict(fetcher_metrics(cluster[2].metrics))
        assert sorted(found) == [("1", "0"), ("1", "1"), ("1", "2")]
        assert sum(values[0] for values in found.values()) == 7
        cluster.delete("t")
        assert not fetcher_metrics(cluster[2].metrics)
