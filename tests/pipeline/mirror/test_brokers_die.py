"""A mirror between clusters whose brokers die."""

from __future__ import annotations

import threading

import pytest
from confluent_kafka.admin import AdminClient, NewTopic

from parley import Cluster
from parley.pipeline.mirror.copying import Copied, Range, copy
from parley.pipeline.mirror.rounds import Mirror
from parley.pipeline.mirror.settings import from_mm2
from tests.pipeline.mirror.clusters import as_rows, create, mirror, produce, properties, read, rows

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

SETTINGS = {"auto.create.topics.enable": "false", "group.initial.rebalance.delay.ms": "0"}


def leaders(bootstrap: str, topic: str) -> list[int]:
    """Return the leader of each partition; -1 if there is none."""
    admin = AdminClient({"bootstrap.servers": bootstrap, "log_level": 0})
    partitions = admin.list_topics(topic, timeout=60).topics[topic].partitions
    return [partitions[number].leader for number in sorted(partitions)]


def leader(bootstrap: str, topic: str) -> int:
    number = -1
    while number < 0:
        number = leaders(bootstrap, topic)[0]
    return number


def test_leaders_that_die_in_the_middle_cost_no_record_and_double_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("parley.pipeline.mirror.flow.COPIED_AT_ONCE", 500)
    with Cluster(SETTINGS, brokers=3) as source, Cluster(SETTINGS, brokers=3) as target:
        admin = AdminClient({"bootstrap.servers": source.bootstrap_servers, "log_level": 0})
        admin.create_topics([NewTopic("orders", 1, 3)])["orders"].result(60)
        produce(source.bootstrap_servers, "orders", rows(10_000, size=4000))
        settings = properties(source.bootstrap_servers, target.bootstrap_servers) | {"replication.factor": "3"}
        with mirror(settings) as running:
            rounds = 0

            def hurt() -> None:
                nonlocal rounds
                rounds += 1
                if rounds == 2:
                    victim = leader(target.bootstrap_servers, "A.orders")
                    threading.Thread(target=target.kill, args=(victim,)).start()
                elif rounds == 5:
                    victim = leader(source.bootstrap_servers, "orders")
                    threading.Thread(target=source.kill, args=(victim,)).start()

            ends = running.ends()
            while running.progress()[0].records < 10_000:
                running.copy(ends, hurt)
        assert rounds > 5
        assert as_rows(read(target.bootstrap_servers, "A.orders")) == rows(10_000, size=4000)


def test_a_partition_without_a_leader_delays_only_one_round(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("parley.pipeline.mirror.flow.PATIENCE_MS", 3000)
    monkeypatch.setattr("parley.pipeline.mirror.flow.HELD_BACK_MS", 0)
    asked: list[list[int]] = []

    def looking(ranges: list[Range]) -> list[Copied]:
        asked.append([one.partition.partition for one in ranges])
        return [copy(one) for one in ranges]

    with Cluster(SETTINGS, brokers=3) as source, Cluster(SETTINGS, brokers=1) as target:
        create(source.bootstrap_servers, "orders", 3)
        lead = leader(source.bootstrap_servers, "orders")
        for number in range(3):
            produce(source.bootstrap_servers, "orders", rows(10), number)
        settings = from_mm2(properties(source.bootstrap_servers, target.bootstrap_servers))
        with Mirror(settings, looking, now_ms=lambda: 1) as running:
            ends = running.ends()
            for number in {1, 2, 3} - {lead}:
                source.kill(number)
            while leaders(source.bootstrap_servers, "orders") != [lead, -1, -1]:
                pass
            running.copy(ends)
            assert len(asked[0]) == 3
            asked.clear()
            running.copy(ends)
        assert asked == []
        assert as_rows(read(target.bootstrap_servers, "A.orders")) == rows(10)
