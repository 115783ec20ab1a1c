"""The conditions that a rolling restart must wait for."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from parley.broker.replication.rolling_restart import needed, out_of_sync
from parley.storage.log_config import LogConfig
from tests.broker.api.bench import BROKER, OTHER, Bench

TWO_IN_SYNC = replace(LogConfig(), min_insync_replicas=2)


async def test_replicas_that_have_not_caught_up(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    await bench.create("a", replicas=(OTHER, BROKER), leader=OTHER)
    await bench.create("b", 2, replicas=(OTHER, BROKER), leader=OTHER)
    assert out_of_sync(bench.partitions, BROKER) == []
    bench.alter("b", 1, isr=(OTHER,))
    assert out_of_sync(bench.partitions, BROKER) == ["b-1"]
    bench.alter("a", isr=(BROKER,), leader=BROKER)
    assert out_of_sync(bench.partitions, BROKER) == ["b-1"], "the other broker's replica is not this one's affair"
    bench.alter("b", 1, adding=(BROKER,))
    assert out_of_sync(bench.partitions, BROKER) == []
    await bench.tasks.close()


async def test_partitions_that_need_this_broker(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    await bench.create("three", replicas=(BROKER, OTHER, 3), config=TWO_IN_SYNC)
    await bench.create("two", replicas=(BROKER, OTHER), config=TWO_IN_SYNC)
    await bench.create("one", config=TWO_IN_SYNC)
    assert needed(bench.partitions, BROKER) == [], "what has no replica to spare at its best is not waited for"
    bench.alter("three", isr=(BROKER, OTHER))
    assert needed(bench.partitions, BROKER) == ["three-0"]
    bench.alter("three", isr=(OTHER,))
    assert needed(bench.partitions, BROKER) == [], "it has already too few replicas, and this one is none of them"
    await bench.tasks.close()
