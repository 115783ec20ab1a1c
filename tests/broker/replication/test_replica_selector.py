"""Consumers that read from the nearest replica."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from parley.broker.config import ConfigError
from parley.broker.replication import ConsumerView, RackAwareReplicaSelector, ReplicaView
from parley.broker.replication.replica_selector import load_selector
from parley.broker.security.principal import ANONYMOUS
from parley.protocol.messages.fetch import FetchRequest
from tests.broker.replication.bench import Nodes, batch, eventually, nodes, now_ms

KAFKAS = "org.apache.kafka.common.replica.RackAwareReplicaSelector"


def consumer(rack: str) -> ConsumerView:
    return ConsumerView(rack, "client", "127.0.0.1", ANONYMOUS, "PLAINTEXT")


def test_the_replica_furthest_ahead_in_the_consumers_rack_is_selected() -> None:
    leader = ReplicaView(1, "a", 100, 0.0, True)
    near, nearer, behind = (ReplicaView(2, "b", 90, 1.0, False), ReplicaView(3, "b", 90, 0.5, False), leader)
    selector = RackAwareReplicaSelector()
    replicas = [leader, near, nearer]
    assert selector.select("t", 0, consumer("b"), replicas) is nearer
    assert selector.select("t", 0, consumer("a"), replicas) is behind
    assert selector.select("t", 0, consumer("c"), replicas) is None
    assert selector.select("t", 0, consumer(""), replicas) is None
    assert selector.select("t", 0, consumer("b"), [ReplicaView(1, "b", 50, 0.0, True), near]).broker_id == 1  # type: ignore[union-attr]


@pytest.mark.parametrize(
    "name", [KAFKAS, "RackAwareReplicaSelector", "parley.broker.replication.RackAwareReplicaSelector"]
)
def test_the_selector_s_names(name: str) -> None:
    assert isinstance(load_selector(name), RackAwareReplicaSelector)


@pytest.mark.parametrize("name", [None, "", "org.apache.kafka.common.replica.LeaderSelector"])
def test_the_leader_by_default(name: str | None) -> None:
    assert load_selector(name) is None


@pytest.mark.parametrize("name", ["nonsense", "no.such.Class", "pathlib.Path", ".x", "uuid.UUID"])
def test_a_class_that_is_no_selector_is_refused(name: str) -> None:
    with pytest.raises(ConfigError, match=r"replica\.selector\.class"):
        load_selector(name)


def test_any_error_of_a_selector_is_one_of_the_configuration(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lines = ["class Selector:", "    select = print", "    def __init__(self): raise KeyError('zone')"]
    (tmp_path / "selector_that_fails.py").write_text("\n".join(lines))
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ConfigError, match="KeyError: 'zone'"):
        load_selector("selector_that_fails.Selector")


async def fetch(cluster: Nodes, broker_id: int, offset: int, **request: Any) -> Any:
    node = cluster[1]
    topic = FetchRequest.FetchTopic(
        topic_id=cluster.image.topics["t"].topic_id,
        partitions=[FetchRequest.FetchPartition(partition=0, fetch_offset=offset, partition_max_bytes=1 << 20)],
    )
    full: dict[str, Any] = {"max_wait_ms": 0, "min_bytes": 1, "topics": [topic], **request}
    answer = await node.peers.client(broker_id, "consumer").send(FetchRequest(**full))
    return answer.responses[0].partitions[0]


async def test_consumers_are_sent_to_their_rack(tmp_path: Path) -> None:
    async with nodes(tmp_path, 3, replica_selector_class=KAFKAS) as cluster:
        await cluster.create("t", [1, 2])
        leader = cluster[1].partition("t")
        leader.append(batch(b"a"), acks=-1, now_ms=now_ms())
        await eventually(lambda: leader.high_watermark == 1)
        sent = await fetch(cluster, 1, 0, rack_id="rack-2")
        assert (sent.preferred_read_replica, bytes(sent.records)) == (2, b"")
        for rack in ("rack-1", "rack-3", ""):
            here = await fetch(cluster, 1, 0, rack_id=rack)
            assert here.preferred_read_replica == -1
            assert here.records
        assert (await fetch(cluster, 2, 0, rack_id="rack-2")).records
        cluster.alter("t", isr=(1,))
        cluster.fence(2, fenced=True)
        assert (await fetch(cluster, 1, 0, rack_id="rack-2")).preferred_read_replica == -1, "not in sync"


async def test_followers_learn_the_high_watermark_at_once_with_a_selector(tmp_path: Path) -> None:
    an_hour = {"replica_fetch_wait_max_ms": "3600000", "replica_socket_timeout_ms": "3600000"}
    settings = {**an_hour, "replica_lag_time_max_ms": "3600000", "replica_selector_class": KAFKAS}
    async with nodes(tmp_path, 3, **settings) as cluster:
        await cluster.create("t", [1, 2, 3])
        waiting = fetch(cluster, 2, 0, rack_id="rack-2", max_wait_ms=3_600_000)
        cluster[1].partition("t").append(batch(b"a"), acks=-1, now_ms=now_ms())
        assert (await waiting).records
