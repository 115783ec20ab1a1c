"""A Kafka Streams application with ``group.protocol=streams`` on a cluster whose brokers are killed (KIP-1071)."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from itertools import chain
from pathlib import Path

import pytest

from tests.support.kafka_tools import output_of_tool
from tests.system.clusters import POLL_S, WAIT_SECONDS, ClusterOfProcesses
from tests.system.conftest import watched
from tests.system.test_exactly_once import PARTITIONS, STREAMS, STREAMS_LIBS, Committed, Program, fill, running

pytestmark = [pytest.mark.slow, pytest.mark.system, pytest.mark.soak]  # test_exactly_once.py has a shorter test

STREAMS_GROUPS = "org.apache.kafka.tools.streams.StreamsGroupCommand"
KEYS = 10
SETTINGS = {
    "offsets.topic.num.partitions": "1",
    "offsets.topic.replication.factor": "3",
    "transaction.state.log.num.partitions": "3",
    "transaction.state.log.replication.factor": "3",
    "transaction.state.log.min.isr": "2",
    "default.replication.factor": "3",
    "min.insync.replicas": "2",
    "group.streams.initial.rebalance.delay.ms": "0",
    "group.streams.min.heartbeat.interval.ms": "500",
    "group.streams.heartbeat.interval.ms": "500",
    "group.streams.min.session.timeout.ms": "6000",
    "group.streams.session.timeout.ms": "6000",
    "group.streams.num.standby.replicas": "1",
}


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ClusterOfProcesses]:
    cluster = ClusterOfProcesses(tmp_path_factory.mktemp("streams"), overrides=SETTINGS)
    with cluster.running(), watched(*cluster.brokers.values()):
        yield cluster


def tool(cluster: ClusterOfProcesses, *words: str) -> str:
    return output_of_tool(STREAMS_GROUPS, "--bootstrap-server", cluster.bootstrap_servers, *words)


def until(reached: Callable[[], bool]) -> None:
    waited_since = time.monotonic()
    while not reached():
        assert time.monotonic() - waited_since < 2 * WAIT_SECONDS, "not reached"
        time.sleep(POLL_S)


def counted(sent: list[tuple[int, str, str]]) -> dict[str, list[str]]:
    """Return the application's expected output: each record of a key with its number."""
    found: defaultdict[str, list[str]] = defaultdict(list)
    for *_, value in sent:
        key, _, text = value.partition(":")
        found[key].append(f"{len(found[key]) + 1}:{text}")
    return found


def by_key(output: Committed) -> dict[str, list[str]]:
    found: defaultdict[str, list[str]] = defaultdict(list)
    for key, value in chain(*output.values.values()):
        found[key].append(value)
    return found


def test_an_application_scales_survives_kills_and_is_reset(
    cluster: ClusterOfProcesses, new_name: Callable[..., str], tmp_path: Path
) -> None:
    source, target = cluster.create_topic(new_name(), PARTITIONS), cluster.create_topic(new_name(), PARTITIONS)
    name = new_name("app")

    def instance(number: int) -> Program:
        words = (cluster.bootstrap_servers, name, source, target, f"{tmp_path}/{number}", "group.protocol=streams")
        return Program(tmp_path, STREAMS, *words, more_libs=STREAMS_LIBS)

    sent = [(number % PARTITIONS, "", f"k{number % KEYS}:{number}") for number in range(1200)]
    instances = [instance(0)]
    output = Committed(cluster, target)
    with running(*instances):
        fill(cluster, source, sent[:300])
        output.wait_for(300)
    instances = [instance(number) for number in range(3)]
    with running(*instances):
        until(lambda: tool(cluster, "--describe", "--group", name, "--members").count(name) >= 3)
        fill(cluster, source, sent[300:600])
        output.wait_for(450)
        cluster.brokers[cluster.leader("__consumer_offsets")].kill()
        output.wait_for(600)
        instances[0].kill_and_start()
        instances[2].kill()
        cluster.start_all()
        fill(cluster, source, sent[600:])
        output.wait_for(len(sent))
        until(lambda: "Stable" in tool(cluster, "--describe", "--group", name, "--state"))
    assert by_key(output) == counted(sent)

    until(lambda: "Empty" in tool(cluster, "--describe", "--group", name, "--state"))
    words = ("--reset-offsets", "--group", name, "--all-input-topics", "--to-earliest")
    tool(cluster, *words, "--delete-all-internal-topics", "--execute")
    before = output.count
    with running(instance(9)):
        output.wait_for(before + len(sent))
    output.close()
    twice = {key: [*texts, *texts] for key, texts in counted(sent).items()}
    assert by_key(output) == twice
    until(lambda: "Empty" in tool(cluster, "--describe", "--group", name, "--state"))
    tool(cluster, "--delete", "--group", name)
    assert name not in tool(cluster, "--list").split()
