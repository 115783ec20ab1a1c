"""Damaged and missing records are fetched from other replicas and put in place, over real sockets."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from parley.broker.logging import growing_interval
from parley.broker.replication import damaged_partition
from parley.broker.replication.partition import Isolation, Partition
from parley.protocol.errors import ErrorCode, KafkaError
from parley.protocol.records.batch import build
from parley.protocol.records.batch_header import headers
from parley.protocol.records.record import Record
from parley.storage.damage.damaged_ranges import DamagedRange
from parley.storage.damage.mending import Mending
from parley.storage.log import Log
from parley.storage.log_config import LogConfig
from parley.storage.segment_names import LOG_SUFFIX
from tests.broker.replication.bench import Node, Nodes, batch, eventually, nodes, now_ms, values_of
from tests.storage.compaction.compactions import compacted, table

pytestmark = pytest.mark.slow

SMALL = LogConfig(segment_bytes=4096, min_insync_replicas=1)
"""Each segment holds a few batches."""
VALUES = [b"%03d" % number * 100 for number in range(100)]


async def filled(cluster: Nodes, replicas: list[int]) -> None:
    """Create the topic ``t`` with ``VALUES``, on many segments, and wait until every replica has them."""
    await cluster.create("t", replicas, config=SMALL)
    for value in VALUES:
        cluster[replicas[0]].partition("t").append(batch(value), acks=1, now_ms=now_ms())
    await eventually(lambda: all(cluster[each].log("t").high_watermark == len(VALUES) for each in replicas))


def segment_files(node: Node) -> list[Path]:
    return sorted((node.directory / "t-0").glob(f"*{LOG_SUFFIX}"))


def flip(path: Path, position: int) -> None:
    """Change eight bytes in a file."""
    with path.open("r+b") as file:
        file.seek(position)
        old = file.read(8)
        file.seek(position)
        file.write(bytes(byte ^ 0xFF for byte in old))


def error_of(node: Node, offset: int) -> ErrorCode | None:
    """Read as a consumer does. Returns the error, None if the records were read."""
    partition = node.partition("t")
    try:
        partition.read(offset, 1 << 20, isolation=Isolation.READ_UNCOMMITTED, min_one_batch=True).read()
    except KafkaError as error:
        return error.code
    return None


def verify(log: Log) -> None:
    """Read the whole log, as the scrubber does. Healing begins after the caller has looked at the damage."""
    for segment in log.segments:
        log.verify_segment(segment, 0, segment.size)


async def whole(node: Node) -> None:
    """Wait until a replica is healed, and check that it has all values."""
    log = node.log("t")
    await eventually(lambda: not log.damage and not node.healing._damaged)
    assert values_of(log) == VALUES


async def test_a_follower_with_flipped_bytes_is_healed(tmp_path: Path) -> None:
    async with nodes(tmp_path, 2) as cluster:
        await filled(cluster, [1, 2])
        await cluster[2].stop()
        victim = segment_files(cluster[2])[1]
        good = victim.read_bytes()
        flip(victim, 1000)
        await cluster.start(2)
        verify(cluster[2].log("t"))
        await whole(cluster[2])
        assert victim.read_bytes() == good
        assert cluster[2].healing.counts.ranges == 1


async def test_deleted_segments_of_a_follower_are_fetched_again(tmp_path: Path) -> None:
    async with nodes(tmp_path, 2) as cluster:
        await filled(cluster, [1, 2])
        await cluster[2].stop()
        files = segment_files(cluster[2])
        good = [path.read_bytes() for path in files]
        for path in (files[0], files[3]):
            path.unlink()
        await cluster.start(2)
        await whole(cluster[2])
        assert [path.read_bytes() for path in segment_files(cluster[2])] == good


@pytest.mark.parametrize("start", [7, 18], ids=["in the damaged batch", "in a later damaged batch"])
async def test_damage_around_the_log_start_is_healed(tmp_path: Path, start: int) -> None:
    """The leader refuses to serve offsets below its log start."""
    batches = [VALUES[at : at + 5] for at in range(0, len(VALUES), 5)]
    async with nodes(tmp_path, 2) as cluster:
        await cluster.create("t", [1, 2], config=SMALL)
        for values in batches:
            cluster[1].partition("t").append(batch(*values), acks=1, now_ms=now_ms())
        await eventually(lambda: cluster[2].log("t").high_watermark == len(VALUES))
        cluster[1].log("t").advance_log_start(start)
        await eventually(lambda: cluster[2].log("t").log_start_offset == start)
        await cluster[2].stop()
        victim = segment_files(cluster[2])[start // 15]
        for position in range(800, victim.stat().st_size, 1200):
            flip(victim, position)
        await cluster.start(2)
        log = cluster[2].log("t")
        verify(log)
        assert log.damage[0].first_offset < start
        await eventually(lambda: not log.damage and not cluster[2].healing._damaged)
        assert values_of(log) == values_of(cluster[1].log("t"))
        verify(log)
        assert not log.damage


@pytest.mark.parametrize("count", [1, 2])
async def test_the_first_batch_of_a_leader_epoch_is_healed_after_a_kill(tmp_path: Path, count: int) -> None:
    """Recovery learns the epoch from the second batch, or, if there is none, from ``appended-leader-epochs``."""
    async with nodes(tmp_path, 2) as cluster:
        await filled(cluster, [1, 2])
        for epoch in (1, 2):
            cluster.alter("t", leader=1, leader_epoch=epoch)
            for _ in range(count):
                cluster[1].partition("t").append(batch(b"of a later epoch"), acks=1, now_ms=now_ms())
        first = len(VALUES) + count
        await eventually(lambda: cluster[2].log("t").high_watermark == first + count)
        entries = cluster[1].log("t").leader_epochs.entries
        await cluster[2].stop(crash=True)
        active = segment_files(cluster[2])[-1]
        (at,) = (at for at, header in headers(active.read_bytes()) if header.base_offset == first)
        flip(active, at + 70)
        await cluster.start(2)
        log = cluster[2].log("t")
        assert [(each.first_offset, each.last_offset) for each in log.damage] == [(first, first)]
        await eventually(lambda: not log.damage and not cluster[2].healing._damaged)
        assert log.leader_epochs.entries == entries
        assert values_of(log) == values_of(cluster[1].log("t"))


@pytest.mark.parametrize("leads", [False, True])
async def test_an_altered_leader_epoch_is_healed_after_a_kill(tmp_path: Path, leads: bool) -> None:
    """No digest covers it in the active segment. A replica with it would wait, and the replicas would not follow it."""
    async with nodes(tmp_path, 2) as cluster:
        await filled(cluster, [1, 2])
        victim = 1 if leads else 2
        cluster.alter("t", leader=1, leader_epoch=1)
        for _ in range(3):
            cluster[1].partition("t").append(batch(b"of a later epoch"), acks=1, now_ms=now_ms())
        await eventually(lambda: cluster[2].log("t").high_watermark == 103)
        entries = cluster[1].log("t").leader_epochs.entries
        await cluster[victim].stop(crash=True)
        path = segment_files(cluster[victim])[-1]
        good = path.read_bytes()
        (at,) = (at for at, header in headers(good) if header.base_offset == 101)
        with path.open("r+b") as file:
            file.seek(at + 15)
            file.write(bytes([good[at + 15] ^ 0x20]))
        await cluster.start(victim)
        log = cluster[victim].log("t")
        assert [(each.first_offset, each.last_offset) for each in log.damage] == [(101, 101)]
        assert log.leader_epochs.entries == entries
        await eventually(lambda: not log.damage and not cluster[victim].healing._damaged)
        assert b"".join(path.read_bytes() for path in segment_files(cluster[victim]))[-len(good) :] == good
        assert cluster[victim].partition("t").leader_epoch == cluster[3 - victim].partition("t").leader_epoch


async def test_a_leader_with_damage_hands_over_first(tmp_path: Path) -> None:
    """Its consumers retry meanwhile, and it stays in the ISR."""
    async with nodes(tmp_path, 3) as cluster:
        await filled(cluster, [1, 2, 3])
        await cluster[1].stop()
        victim = segment_files(cluster[1])[1]
        flip(victim, 1000)
        await cluster.start(1)
        cluster.alter("t", leader=1)
        log = cluster[1].log("t")
        verify(log)
        damage = log.damage
        assert len(damage) == 1
        assert error_of(cluster[1], damage[0].first_offset) is ErrorCode.KAFKA_STORAGE_ERROR
        assert error_of(cluster[1], damage[0].last_offset + 1) is None
        await whole(cluster[1])
        assert cluster.state("t").leader == 2
        assert set(cluster.state("t").isr) == {1, 2, 3}
        assert cluster[1].healing.counts.handed_over == 1


async def test_a_leader_heals_from_a_replica_outside_the_isr(tmp_path: Path) -> None:
    async with nodes(tmp_path, 2) as cluster:
        await filled(cluster, [1, 2])
        await cluster[2].fetchers.close()  # it never joins the ISR again
        cluster.alter("t", isr=(1,))
        await cluster[1].stop()
        flip(segment_files(cluster[1])[1], 1000)
        await cluster.start(1)
        verify(cluster[1].log("t"))
        await whole(cluster[1])
        assert cluster.state("t").leader == 1


async def test_without_another_copy_the_damage_is_named_and_the_rest_is_served(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The records are fetched as soon as the other broker is back."""
    async with nodes(tmp_path, 2) as cluster:
        await filled(cluster, [1, 2])
        await cluster[2].stop()
        cluster.fence(2, fenced=True)
        await cluster[1].stop()
        flip(segment_files(cluster[1])[1], 1000)
        await cluster.start(1)
        node = cluster[1]
        verify(node.log("t"))
        (damage,) = node.log("t").damage
        await eventually(lambda: node.partition("t").has_no_copy(damage))
        assert not node.partition("t").is_lost(damage)
        assert error_of(node, damage.first_offset) is ErrorCode.CORRUPT_MESSAGE
        assert error_of(node, damage.last_offset + 1) is None
        named = next(record for record in caplog.records if "no intact copy" in record.getMessage())
        assert (named.levelname, named.__dict__["first_offset"]) == ("ERROR", damage.first_offset)
        assert named.__dict__["replicas"] == "broker 2: BROKER_NOT_AVAILABLE: it is down"
        await cluster.start(2)
        await whole(node)
        assert error_of(node, damage.first_offset) is None


async def test_records_are_lost_only_if_every_replica_of_the_assignment_lacks_them(tmp_path: Path) -> None:
    """Two replicas are damaged at the same place. The third may be intact, but is down, until it is removed."""
    async with nodes(tmp_path, 3) as cluster:
        await filled(cluster, [1, 2, 3])
        await cluster[3].stop()
        cluster.fence(3, fenced=True)
        for number in (1, 2):
            await cluster[number].stop()
            flip(segment_files(cluster[number])[1], 1000)
        for number in (1, 2):
            await cluster.start(number)
        for number in (1, 2):
            verify(cluster[number].log("t"))
        partition = cluster[1].partition("t")
        (damage,) = partition.log.damage
        await eventually(lambda: any(2 in each.lacked_by for each in partition.unhealed))
        assert not partition.is_lost(damage)
        cluster.alter("t", replicas=(1, 2), isr=(1, 2))
        assert partition.is_lost(damage)


async def test_the_only_replica_refuses_damaged_records_at_once(tmp_path: Path) -> None:
    async with nodes(tmp_path, 1) as cluster:
        await filled(cluster, [1])
        await cluster[1].stop()
        flip(segment_files(cluster[1])[1], 1000)
        await cluster.start(1)
        verify(cluster[1].log("t"))
        (damage,) = cluster[1].log("t").damage
        assert error_of(cluster[1], damage.first_offset) is ErrorCode.CORRUPT_MESSAGE
        assert values_of(cluster[1].log("t"), damage.last_offset + 1) == VALUES[damage.last_offset + 1 :]


async def test_two_damaged_replicas_heal_each_other(tmp_path: Path) -> None:
    async with nodes(tmp_path, 2) as cluster:
        await filled(cluster, [1, 2])
        for number, segment in ((1, 1), (2, 3)):
            await cluster[number].stop()
            flip(segment_files(cluster[number])[segment], 1000)
        for number in (1, 2):
            await cluster.start(number)
        for number in (1, 2):
            verify(cluster[number].log("t"))
        for number in (1, 2):
            await whole(cluster[number])


async def test_a_failure_of_this_broker_is_not_taken_for_a_missing_copy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    real, calls = Log.mend, iter([True])

    def mend(log: Log, damage: DamagedRange) -> Mending:
        if next(calls, False):
            raise KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, "the disk is full")
        return real(log, damage)

    monkeypatch.setattr(Log, "mend", mend)
    async with nodes(tmp_path, 2) as cluster:
        await filled(cluster, [1, 2])
        await cluster[2].stop()
        flip(segment_files(cluster[2])[1], 1000)
        await cluster.start(2)
        node = cluster[2]
        verify(node.log("t"))
        await eventually(lambda: any("interrupted" in record.getMessage() for record in caplog.records))
        assert not any(map(node.partition("t").has_no_copy, node.log("t").damage))
        cluster.fence(1, fenced=False)  # a registration makes it try again at once
        await whole(node)


async def test_healing_goes_on_after_an_unexpected_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    real, failures = Log.mend, iter([True])

    def mend(log: Log, damage: DamagedRange) -> Mending:
        if next(failures, False):
            raise ValueError("a bug")
        return real(log, damage)

    monkeypatch.setattr(Log, "mend", mend)
    async with nodes(tmp_path, 2) as cluster:
        await filled(cluster, [1, 2])
        await cluster[2].stop()
        flip(segment_files(cluster[2])[1], 1000)
        await cluster.start(2)
        verify(cluster[2].log("t"))
        await whole(cluster[2])
        said = [record for record in caplog.records if record.getMessage() == "healing a log failed"]
        assert [record.exc_info is not None for record in said] == [True]


async def test_a_range_that_cannot_be_replaced_does_not_keep_the_others_from_being_healed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(growing_interval, "FIRST_PAUSE_S", 3600.0)  # longer than this test takes anywhere
    real = Log.mend
    bad: list[DamagedRange] = []

    def mend(log: Log, damage: DamagedRange) -> Mending:
        if damage in bad:
            raise KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, "bad sector")
        return real(log, damage)

    async with nodes(tmp_path, 2) as cluster:
        await filled(cluster, [1, 2])
        await cluster[2].stop()
        files = segment_files(cluster[2])
        for path in (files[1], files[3]):
            flip(path, 1000)
        monkeypatch.setattr(Log, "mend", mend)
        await cluster.start(2)
        node = cluster[2]
        log = node.log("t")
        log.on_damage = lambda damage: None  # heal once all damage is known
        verify(log)
        first, _ = log.damage
        bad.append(first)
        node.healing.watch(node.partition("t"))
        await eventually(lambda: log.damage == (first,))
        (damaged,) = node.healing._damaged.values()

        def has_failed_repeatedly() -> bool:
            damaged.wakeup.set()
            return damaged.failures >= 4

        await eventually(has_failed_repeatedly)
        (named,) = [record for record in caplog.records if "interrupted" in record.getMessage()]
        assert (named.__dict__["first_offset"], named.__dict__["reason"]) == (
            first.first_offset,
            "KAFKA_STORAGE_ERROR: bad sector",
        )
        bad.clear()
        damaged.wakeup.set()
        await whole(node)


COMPACTED = LogConfig(
    segment_bytes=4096, min_insync_replicas=1, cleanup_policy=frozenset({"compact"}), delete_retention_ms=1000
)


async def compacted_otherwise(cluster: Nodes, replicas: list[int], config: LogConfig) -> dict[bytes, bytes]:
    """Write keys, and delete some. Compaction removes tombstones from the first replica, and the last is damaged where
    they were. Returns what is not deleted."""
    await cluster.create("t", replicas, config=config)
    leader, last = cluster[replicas[0]], replicas[-1]

    def put(key: int, value: bytes | None) -> None:
        data = build([Record(0, now_ms(), b"%03d" % key, value)])
        leader.partition("t").append(data, acks=1, now_ms=now_ms())

    for key in range(40):
        put(key, b"v" * 300)
    for key in range(20):
        put(key, None)
    for key in range(40, 60):
        put(key, b"w" * 300)
    await eventually(lambda: all(cluster[each].log("t").high_watermark == 80 for each in replicas))
    log = leader.log("t")
    await asyncio.to_thread(compacted, log, now_ms=now_ms())
    put(60, b"w" * 300)
    await eventually(lambda: all(cluster[each].log("t").high_watermark == 81 for each in replicas))
    log.roll()
    await asyncio.to_thread(compacted, log, now_ms=now_ms() + 10_000)
    assert log.tombstones_removed_up_to == 60
    await cluster[last].stop()
    victim = max(path for path in segment_files(cluster[last]) if int(path.stem) <= 45)
    flip(victim, victim.stat().st_size // 4)
    await cluster.start(last)
    return table(log)


async def test_a_follower_that_was_compacted_otherwise_fetches_its_log_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The leader has removed tombstones that the follower needs for values that it still has."""
    monkeypatch.setattr(damaged_partition, "RETRY_FIRST_S", 3600.0)
    monkeypatch.setattr(damaged_partition, "RETRY_MAX_S", 3600.0)
    async with nodes(tmp_path, 2) as cluster:
        expected = await compacted_otherwise(cluster, [1, 2], COMPACTED)
        node = cluster[2]
        node.log("t").on_damage = lambda damage: None  # heal once all damage is known
        verify(node.log("t"))
        assert node.log("t").damage
        node.healing.watch(node.partition("t"))
        await eventually(lambda: not node.log("t").damage and set(cluster.state("t").isr) == {1, 2})
        await eventually(lambda: node.log("t").high_watermark == 81)
        assert table(node.log("t")) == expected
        assert node.log("t").tombstones_removed_up_to == 60
        assert node.fetchers.truncations.metrics.started_over == 1
        await eventually(lambda: not node.healing._damaged and not node.partition("t").unhealed)
        assert any("a replica starts over: its log is damaged" in record.getMessage() for record in caplog.records)


@asynccontextmanager
async def removal_held(node: Node) -> AsyncIterator[asyncio.Event]:
    """Hold the next removal of a log at a node. Yields an event that is set when it is held."""
    held, go, remove = asyncio.Event(), asyncio.Event(), node.partitions.truncate

    async def wait(partition: Partition, truncate: Callable[[Log], None]) -> None:
        held.set()
        await go.wait()
        await remove(partition, truncate)

    node.partitions.truncate = wait  # type: ignore[method-assign]
    try:
        yield held
    finally:
        go.set()
        node.partitions.truncate = remove  # type: ignore[method-assign]


@pytest.mark.parametrize("is_member", [True, False])
async def test_a_replica_that_removes_its_log_does_not_join_the_isr_before_it_fetches(
    tmp_path: Path, is_member: bool
) -> None:
    """Its leader knows that it had everything a moment ago, and may even be about to add it."""
    async with nodes(tmp_path, 2, replica_lag_time_max_ms="3600000") as cluster:
        await compacted_otherwise(cluster, [1, 2], COMPACTED)
        await eventually(lambda: set(cluster.state("t").isr) == {1, 2})
        leader, node, decide = cluster[1], cluster[2], cluster[1].controller
        proposed, decided = asyncio.Event(), asyncio.Event()

        async def slow(request: Any) -> Any:
            proposed.set()
            await decided.wait()
            return await decide(request)

        node.log("t").on_damage = lambda damage: None  # heal once all damage is known
        verify(node.log("t"))
        if not is_member:
            leader.controller = slow
            cluster.alter("t", isr=(1,))
            await proposed.wait()  # node 2 joins as soon as the controller decides
        async with removal_held(node) as held:
            node.healing.watch(node.partition("t"))
            await held.wait()
            decided.set()
            await eventually(lambda: not leader.partition("t").followers.has_proposed_isr)
            leader.in_sync._check_all(leader.partition("t"), time.monotonic())
            leader.in_sync.outsider_changed(leader.partition("t"), 2)
            assert not leader.partition("t").followers.has_proposed_isr
            assert cluster.state("t").isr == (1,)
            end = leader.log("t").log_end_offset
            leader.partition("t").append(build([Record(0, now_ms(), b"061", b"x")]), acks=-1, now_ms=now_ms())
            assert leader.log("t").high_watermark == end + 1, "the high watermark does not wait for it either"
        await eventually(lambda: not node.log("t").damage and set(cluster.state("t").isr) == {1, 2})
        assert table(node.log("t")) == table(leader.log("t"))


async def test_a_replica_starts_over_only_under_the_leader_that_knows_of_it(tmp_path: Path) -> None:
    """It fetches from the new leader at once, which may add it to the ISR for that."""
    async with nodes(tmp_path, 3) as cluster:
        await cluster.create("t", [1, 2, 3])
        leader = cluster[1].partition("t")
        leader.append(batch(b"a"), acks=-1, now_ms=now_ms())
        await eventually(lambda: all(cluster[each].log("t").high_watermark == 1 for each in (1, 2, 3)))
        follower = cluster[3].partition("t")
        asked, go = asyncio.Event(), asyncio.Event()
        ended = asyncio.get_running_loop().create_future()

        async def leave() -> None:
            asked.set()
            await go.wait()
            follower.before_start_over = None
            ended.set_result(None)

        follower.before_start_over = leave
        await asked.wait()
        cluster.alter("t", isr=(1, 2), leader=2)
        cluster.deaf.add(3)  # it does not hear that it is in the ISR again
        await eventually(lambda: set(cluster.state("t").isr) == {1, 2, 3})
        go.set()
        await ended
        cluster.deaf.clear()
        cluster.tell()
        cluster[2].partition("t").append(batch(b"b"), acks=-1, now_ms=now_ms())
        await eventually(lambda: cluster[2].log("t").high_watermark == 2)
        assert values_of(follower.log) == [b"a", b"b"]
        assert cluster[3].fetchers.truncations.metrics.started_over == 0


async def refuse() -> None:
    raise KafkaError(ErrorCode.NOT_CONTROLLER)


async def test_a_member_of_a_small_isr_keeps_its_damaged_log(tmp_path: Path) -> None:
    """Everything but the damage is as safe as before. It fetches its log again as soon as the ISR may be smaller."""
    async with nodes(tmp_path, 2) as cluster:
        expected = await compacted_otherwise(cluster, [1, 2], replace(COMPACTED, min_insync_replicas=2))
        node = cluster[2]
        verify(node.log("t"))
        (damage,) = node.log("t").damage
        await eventually(lambda: node.partition("t").has_no_copy(damage))
        assert node.partition("t").before_start_over is None
        assert node.log("t").damage == (damage,)
        assert set(cluster.state("t").isr) == {1, 2}

        # The ISR was larger when the healing decided to start over.
        node.partition("t").before_start_over = partial(node.healing.leave_isr, node.partition("t"))
        await eventually(lambda: node.partition("t").before_start_over is None)
        assert node.log("t").damage == (damage,)
        assert set(cluster.state("t").isr) == {1, 2}
        node.partition("t").before_start_over = refuse
        cluster.fence(1, fenced=False)  # a registration makes it try again at once
        await eventually(lambda: node.partition("t").before_start_over is None)

        cluster.configs["t"] = node.log("t").config = COMPACTED
        cluster.fence(1, fenced=False)
        await eventually(lambda: not node.log("t").damage and 2 in cluster.state("t").isr)
        await eventually(lambda: node.log("t").high_watermark == 81)
        assert table(node.log("t")) == expected
