"""``parley top``: rates and lags from two samples of a cluster, and the screen that shows them."""

from __future__ import annotations

import json
import os
import pty
import signal
import sys
from dataclasses import replace

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition

from parley import Broker, Cluster
from parley.tools.cli.output import Format, formatted
from parley.tools.cli.top.figures import Figures, between
from parley.tools.cli.top.sampling import BrokerSample, GroupSample, PartitionSample, Sample
from tests.tools.conftest import Parley

PARTITION = PartitionSample(leader=1, is_under_replicated=False, end=100, size=1000)
GROUP = GroupSample("readers", "Stable", 40, 60)
BEFORE = Sample(
    10.0,
    (BrokerSample(1, "h:9092", True, 3, 3, 3000),),
    {("a", 0): PARTITION, ("a", 1): PARTITION, ("b", 0): PARTITION},
    (GROUP,),
    0,
)


def _after(**changes: object) -> Sample:
    return replace(BEFORE, at=12.0, **changes)  # type: ignore[arg-type]


def test_topics_are_sorted_by_rate() -> None:
    now = {**BEFORE.partitions, ("b", 0): replace(PARTITION, end=150)}
    figures = between(BEFORE, _after(partitions=now))
    assert [(one.topic, one.records_per_sec, one.size) for one in figures.topics] == [("b", 25.0, 1000), ("a", 0, 2000)]
    assert figures.records_per_sec == 25.0


def test_unknown_figures_have_no_number() -> None:
    now = {
        ("a", 0): PartitionSample(leader=-1, is_under_replicated=True, end=None, size=None),
        ("new", 0): PARTITION,  # created between the looks
        ("b", 0): replace(PARTITION, end=90),  # an unclean election has lost records
    }
    groups = (GroupSample("readers", "Stable", None, 0), GroupSample("new", "Stable", 5, 7))
    figures = between(BEFORE, _after(partitions=now, groups=groups))
    by_name = {one.topic: one for one in figures.topics}
    assert (by_name["a"].records_per_sec, by_name["a"].size) == (None, None)
    assert (by_name["a"].under_replicated, by_name["a"].without_leader) == (1, 1)
    assert (by_name["new"].records_per_sec, by_name["b"].records_per_sec) == (None, 0.0)
    assert [(one.group, one.lag, one.records_per_sec) for one in figures.groups] == [
        ("new", 5, None),
        ("readers", None, None),
    ]


def test_groups_are_sorted_by_lag() -> None:
    groups = (replace(GROUP, lag=30, committed=80), GroupSample("slow", "Empty", 500, 0))
    figures = between(BEFORE, _after(groups=groups))
    assert [(one.group, one.lag, one.records_per_sec) for one in figures.groups] == [
        ("slow", 500, None),
        ("readers", 30, 10.0),
    ]


def _many() -> Figures:
    partitions = {(f"t{number}", 0): PARTITION for number in range(100)}
    groups = tuple(GroupSample(f"g{number}", "Stable", 1, 1) for number in range(100))
    return between(BEFORE, _after(partitions=partitions, groups=groups))


def test_the_lines_fit_on_the_screen() -> None:
    lines = _many().lines(24)
    assert len(lines) <= 24
    assert any(line.startswith("t") for line in lines)
    assert any(line.startswith("g") for line in lines)
    assert len(_many().lines()) > 200


def test_once(on_broker: Parley, broker: Broker, topic: str) -> None:
    producer = Producer({"bootstrap.servers": broker.bootstrap_servers})
    for _ in range(10):
        producer.produce(topic, b"value", partition=0)
    producer.flush()
    group = f"of-{topic}"
    consumer = Consumer({"bootstrap.servers": broker.bootstrap_servers, "group.id": group})
    consumer.commit(offsets=[TopicPartition(topic, 0, 3)], asynchronous=False)
    consumer.close()
    data = json.loads(on_broker("top", "--interval", "0.1", "--json").out)
    (found,) = [one for one in data["topics"] if one["topic"] == topic]
    assert (found["partitions"], found["recordsPerSec"], found["withoutLeader"]) == (2, 0, 0)
    assert found["bytes"] > 0
    (lag,) = [one["lag"] for one in data["groups"] if one["group"] == group]
    assert lag == 7
    assert [(one["broker"], one["controller"]) for one in data["brokers"]] == [(1, True)]
    assert "__consumer_offsets" not in {one["topic"] for one in data["topics"]}
    internal = on_broker("top", "--interval", "0.1", "--json", "--internal").out
    assert "__consumer_offsets" in internal
    text = on_broker("top", "--interval", "0.1", "--once").out  # no terminal
    assert topic in text
    assert group in text


def test_dead_brokers_and_unhealthy_partitions_are_shown() -> None:
    assert between(BEFORE, BEFORE).lines()[:2] == ["1 broker, 3 partitions, 0 records/s, over 0.0 s", ""]
    brokers = (*BEFORE.brokers, BrokerSample(2, "h:9093", False, 0, 3, None, is_running=False))
    lines = between(BEFORE, _after(brokers=brokers, under_replicated=53, without_leader=1)).lines()
    assert lines[0].startswith("1 of 2 brokers, ")
    assert lines[1].startswith("partitions without a leader: 1, under-replicated: 53 (internal topics included)")
    assert any("h:9093" in line for line in lines)


@pytest.mark.slow
def test_a_killed_broker_is_listed(parley: Parley) -> None:
    with Cluster(brokers=2) as cluster:
        made = ("topics", "--create", "--topic", "t", "--bootstrap-server", cluster.bootstrap_servers)
        assert parley(*made).code == 0
        cluster.kill(2)
        words = ("top", "--interval", "0.1", "--json", "--bootstrap-server", cluster.brokers[1].bootstrap_servers)
        while (data := json.loads(parley(*words).out))["brokers"][1]["running"]:
            pass
    assert [(one["broker"], one["running"]) for one in data["brokers"]] == [(1, True), (2, False)]
    assert data["underReplicated"] >= 1


def test_a_wrong_interval(on_broker: Parley) -> None:
    assert "--interval takes 0.1 to 3600 seconds" in on_broker("top", "--interval", "0").err


def test_yaml_has_the_same(on_broker: Parley) -> None:
    assert formatted(_many().as_data(), Format.YAML).startswith("intervalMs: 2000\n")


@pytest.mark.slow
@pytest.mark.timeout(120)
def test_the_screen_is_drawn_and_left(broker: Broker, topic: str) -> None:
    """The live screen shows the topic. Ctrl-C restores the terminal."""
    words = ["parley", "top", "--bootstrap-server", broker.bootstrap_servers, "--interval", "0.2"]
    pid, terminal = pty.fork()
    if pid == 0:
        os.execve(sys.executable, [sys.executable, "-m", *words], {**os.environ, "TERM": "xterm", "LINES": "100000"})
    shown = b""

    def wait_for(text: bytes) -> None:
        nonlocal shown
        while text not in shown:
            shown += os.read(terminal, 65536)

    try:
        wait_for(b"\x1b[?1049h")
        wait_for(topic.encode())
        wait_for(b"\x1b[J")
        os.kill(pid, signal.SIGINT)
        wait_for(b"\x1b[?1049l")
        _, status = os.waitpid(pid, 0)
    finally:
        os.close(terminal)  # ends a command that is still running
    assert os.waitstatus_to_exitcode(status) == 130
