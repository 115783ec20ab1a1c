"""The protection of committed records when a follower's log is truncated."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from parley.broker.config import BrokerConfig
from parley.broker.replication.partition import Partition
from parley.broker.replication.truncation_decisions import StartOver, Truncate
from parley.broker.replication.truncation_execution import TruncationRefused, Truncations
from parley.storage.log import Log
from tests.broker.api.bench import OTHER, Bench


async def not_asked(partition: Partition) -> None:
    raise AssertionError(f"{partition!r} need not leave")


def truncations_of(bench: Bench, leave: Callable[[Partition], Awaitable[None]] = not_asked) -> Truncations:
    return Truncations(bench.partitions, lambda: BrokerConfig.from_properties({}), leave)


async def refuse(bench: Bench, truncations: Truncations) -> None:
    """Create a topic with a committed record that its leader lacks, and try to truncate it away."""
    await bench.create("t")
    bench.write("t")
    bench.partition("t").log.high_watermark = 1
    bench.alter("t", leader=OTHER, replicas=(1, OTHER), isr=(OTHER,))
    for _ in range(2):
        with pytest.raises(TruncationRefused):
            await truncations.truncate(bench.partition("t"), Truncate(0), lambda: True)


async def test_a_refusal_of_a_deleted_topic_does_not_silence_that_of_its_successor(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    first, second = tmp_path / "first", tmp_path / "second"
    first.mkdir()
    second.mkdir()
    bench = Bench(first)
    truncations = truncations_of(bench)
    await refuse(bench, truncations)
    bench.delete("t")
    bench.logs.directory = second
    await refuse(bench, truncations)
    assert [line.levelno for line in caplog.records if "a replica stops following" in line.message] == [
        logging.ERROR
    ] * 2
    assert list(truncations._refusals) == [bench.partition("t")]
    await bench.tasks.close()


async def test_a_replica_that_lacks_removed_tombstones_gives_up_its_committed_records(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Its leader has them, as far as compaction has kept them."""
    bench = Bench(tmp_path)
    truncations = truncations_of(bench)
    await bench.create("t")
    bench.write("t")
    log = bench.partition("t").log
    log.high_watermark = 1
    bench.alter("t", leader=OTHER, replicas=(1, OTHER), isr=(OTHER,))
    for changes in ({"isr": (1, OTHER)}, {"isr": (OTHER,), "elr": (1,)}):
        bench.alter("t", **changes)
        with pytest.raises(TruncationRefused, match="keep their logs"):
            await truncations.truncate(bench.partition("t"), StartOver(5, 7), lambda: True)
    bench.alter("t", isr=(OTHER,), elr=())
    for removed_up_to in (7, 9):
        await truncations.truncate(bench.partition("t"), StartOver(5, removed_up_to), lambda: True)
        assert (log.log_start_offset, log.log_end_offset) == (5, 5)
        assert log.tombstones_removed_up_to == removed_up_to
    assert [line.levelno for line in caplog.records if "a replica starts over" in line.message] == [logging.WARNING], (
        "an empty log loses nothing"
    )
    await bench.tasks.close()


async def test_a_replica_leaves_the_last_known_elr_before_it_starts_over(tmp_path: Path) -> None:
    """Its emptied log must not prove later that nothing is missing."""
    bench = Bench(tmp_path)
    ends: list[int] = []

    async def leave(partition: Partition) -> None:
        ends.append(partition.log.log_end_offset)
        bench.alter("t", last_known_elr=())

    await bench.create("t")
    bench.write("t")
    bench.alter("t", leader=OTHER, replicas=(1, OTHER), isr=(OTHER,), last_known_elr=(1,))
    await truncations_of(bench, leave).truncate(bench.partition("t"), StartOver(5, 7), lambda: True)
    assert (ends, bench.partition("t").log.log_end_offset) == ([1], 5)
    await bench.tasks.close()


async def test_an_elected_broker_knows_when_its_log_is_no_longer_truncated(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench = Bench(tmp_path)
    await bench.create("t")
    bench.write("t")
    partition = bench.partition("t")
    log = partition.log
    bench.alter("t", leader=OTHER, replicas=(1, OTHER), isr=(1, OTHER))
    await bench.partitions.until_truncated(partition)
    may_truncate = asyncio.Event()
    at_end: list[tuple[bool, int]] = []

    async def cut(log: Log, truncate: Callable[[Log], None]) -> None:
        await may_truncate.wait()
        truncate(log)

    async def read() -> None:
        await bench.partitions.until_truncated(partition)
        at_end.append((partition.is_leader, log.log_end_offset))

    monkeypatch.setattr(bench.logs, "cut", cut)
    truncating = asyncio.ensure_future(bench.partitions.truncate(partition, lambda log: log.truncate_to(0)))
    await asyncio.sleep(0)  # it begins
    bench.alter("t", leader=1, replicas=(1, OTHER), isr=(1, OTHER))
    assert (partition.is_truncating, partition.is_leader) == (True, False), "it keeps its role until then"
    reading = asyncio.ensure_future(read())
    await asyncio.sleep(0)  # it begins
    may_truncate.set()
    await asyncio.gather(truncating, reading)
    assert at_end == [(True, 0)]
    await bench.tasks.close()
