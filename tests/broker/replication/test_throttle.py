"""Throttles: the rate, the throttled replicas, and that replicas in sync are never throttled."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from parley.broker.metadata.types import ResourceType
from parley.broker.replication.throttle import MeasuredRate, throttled_partitions
from tests.broker.replication.bench import Nodes, batch, eventually, nodes, now_ms

RECORD = 50_000
SLOW = "1000000"


def test_the_rate_is_measured_over_windows() -> None:
    rate = MeasuredRate(windows=10, window_s=1.0)
    assert rate.wait_s(100, 0.0) == 0.0
    rate.record(100, 0.0)
    assert rate.wait_s(100, 0.0) == 0.0
    rate.record(100, 0.5)
    assert rate.wait_s(100, 0.5) == 1.5, "200 bytes take 2 seconds"
    assert rate.wait_s(100, 2.0) == 0.0
    rate.record(1_000_000, 5.0)
    assert rate.wait_s(100, 6.0) == 4.0, "the first window is forgotten then"
    assert rate.wait_s(100, 15.0) == 0.0
    rate.record(1, 20.0)
    assert rate.wait_s(0, 20.0) == 10.0


@pytest.mark.parametrize(
    ("text", "partitions"),
    [("", set()), ("*", None), ("0:1, 3:1,4:2", {0, 3}), ("4:2", set()), ("1:1,*", None)],
)
def test_the_throttled_replicas_of_a_topic(text: str, partitions: set[int] | None) -> None:
    assert throttled_partitions(text, 1) == partitions


async def catch_up(cluster: Nodes) -> None:
    """Broker 2 has two megabytes to fetch, and is not in sync."""
    await cluster.create("t", [1, 2])
    await cluster[2].stop()
    cluster.alter("t", isr=(1,))
    for _ in range(40):
        cluster[1].partition("t").append(batch(os.urandom(RECORD)), acks=1, now_ms=now_ms())


@pytest.mark.parametrize("side", ["leader", "follower"])
async def test_a_replica_that_catches_up_is_throttled_until_it_is_in_sync(tmp_path: Path, side: str) -> None:
    limits = {"replica_fetch_max_bytes": "100000", "replication_quota_window_num": "2"}
    async with nodes(tmp_path, 2, **limits) as cluster:
        await catch_up(cluster)
        cluster.configure(ResourceType.BROKER, "", **{f"{side}_replication_throttled_rate": SLOW})
        cluster.configure(ResourceType.TOPIC, "t", **{f"{side}_replication_throttled_replicas": "*"})
        began = now_ms()
        await cluster.start(2)
        await eventually(lambda: cluster.state("t").isr == (1, 2))
        assert now_ms() - began > 500, "at the rate given it takes two seconds, less a burst of one"
        cluster.configure(ResourceType.BROKER, "", **{f"{side}_replication_throttled_rate": "1"})
        for _ in range(5):
            end = cluster[1].partition("t").append(batch(os.urandom(RECORD)), acks=-1, now_ms=now_ms()).last_offset
            await eventually(lambda end=end: cluster[1].log("t").high_watermark > end)  # type: ignore[misc]


async def test_other_replicas_are_not_throttled(tmp_path: Path) -> None:
    async with nodes(tmp_path, 2) as cluster:
        await catch_up(cluster)
        rates = {"leader_replication_throttled_rate": "1", "follower_replication_throttled_rate": "1"}
        cluster.configure(ResourceType.BROKER, "", **rates)
        lists = {"leader_replication_throttled_replicas": "1:1", "follower_replication_throttled_replicas": "0:1"}
        cluster.configure(ResourceType.TOPIC, "t", **lists)
        await cluster.start(2)
        await eventually(lambda: cluster.state("t").isr == (1, 2))
