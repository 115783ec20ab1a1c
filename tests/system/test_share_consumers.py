"""The Java client's share consumers on a cluster whose brokers are killed (KIP-932)."""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest
from confluent_kafka import Producer

from tests.support.kafka import JavaServer, java_command
from tests.support.kafka_tools import output_of_tool
from tests.system.clusters import POLL_S, WAIT_SECONDS, ClusterOfProcesses
from tests.system.conftest import watched

pytestmark = [pytest.mark.slow, pytest.mark.system]

CONSUMER = "org.apache.kafka.tools.VerifiableShareConsumer"
SHARE_GROUPS = "org.apache.kafka.tools.consumer.group.ShareGroupCommand"
PARTITIONS = 3
NOT_CONFIRMED = "Failed to commit offset synchronously"
"""The consumer logs this if the leader dies before it responds to an acknowledgement."""
SETTINGS = {
    "offsets.topic.replication.factor": "3",
    "share.coordinator.state.topic.num.partitions": "2",
    "share.coordinator.state.topic.replication.factor": "3",
    "share.coordinator.state.topic.min.isr": "2",
    "group.share.record.lock.duration.ms": "5000",
    "group.share.min.record.lock.duration.ms": "1000",
    "min.insync.replicas": "2",
}


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ClusterOfProcesses]:
    cluster = ClusterOfProcesses(tmp_path_factory.mktemp("share-consumers"), overrides=SETTINGS)
    with cluster.running(), watched(*cluster.brokers.values()):
        yield cluster


class Member:
    """A share consumer that acknowledges what it receives, and prints each acknowledged offset."""

    def __init__(self, cluster: ClusterOfProcesses, folder: Path, group: str, topic: str) -> None:
        folder.mkdir()
        words = ("--bootstrap-server", cluster.bootstrap_servers, "--group-id", group, "--topic", topic)
        flags = ("--acknowledgement-mode", "sync", "--offset-reset-strategy", "earliest")
        self._process = JavaServer(java_command(CONSUMER, *words, *flags), cwd=folder)

    def acknowledged(self, *, confirmed: bool) -> Counter[tuple[int, int]]:
        """Return how often the leader has confirmed the acknowledgement of each record (partition, offset).

        Without ``confirmed``: how often it has not. It may still have stored it, if the leader died before its
        response.
        """
        found: Counter[tuple[int, int]] = Counter()
        for line in tuple(self._process.lines):
            event = json.loads(line) if line.startswith("{") else {}
            if event.get("name") == "offsets_acknowledged" and event["success"] is confirmed:
                found.update((each["partition"], offset) for each in event["partitions"] for offset in each["offsets"])
        return found

    def kill(self) -> list[str]:
        self._process.kill()
        return self._process.lines


def produce(cluster: ClusterOfProcesses, topic: str, numbers: Sequence[int]) -> None:
    """Send one record for each number, to all partitions in turn."""
    producer = Producer({"bootstrap.servers": cluster.bootstrap_servers, "enable.idempotence": True, "log_level": 0})
    for number in numbers:
        producer.produce(topic, str(number), partition=number % PARTITIONS)
        producer.poll(0)
    assert producer.flush(WAIT_SECONDS) == 0


def acknowledged(members: Sequence[Member], *, confirmed: bool) -> Counter[tuple[int, int]]:
    """How often members have acknowledged each record, with or without the leader's confirmation."""
    return sum((member.acknowledged(confirmed=confirmed) for member in members), Counter[tuple[int, int]]())


def until_acknowledged(members: Sequence[Member], count: int) -> None:
    """Wait until the members have acknowledged this many different records."""
    deadline = time.monotonic() + 2 * WAIT_SECONDS
    while True:
        found = len(acknowledged(members, confirmed=True).keys() | acknowledged(members, confirmed=False).keys())
        if found >= count:
            return
        assert time.monotonic() < deadline, f"{found} of {count} records are acknowledged"
        time.sleep(POLL_S)


def until_nothing_is_left(cluster: ClusterOfProcesses, group: str, sent: int) -> None:
    """Wait until the group has consumed all partitions. Acknowledgements that were not stored lead to redelivery."""
    words = ("--bootstrap-server", cluster.bootstrap_servers, "--describe", "--group", group, "--offsets")
    wanted = [[str(index), str(sent // PARTITIONS), "0"] for index in range(PARTITIONS)]
    deadline = time.monotonic() + WAIT_SECONDS
    while True:
        described = output_of_tool(SHARE_GROUPS, *words)
        rows = sorted(line.split()[2:] for line in described.splitlines() if line.startswith(group))
        if rows == wanted:
            return
        assert time.monotonic() < deadline, described
        time.sleep(POLL_S)


def test_acknowledged_records_are_not_delivered_again_after_kills(
    cluster: ClusterOfProcesses, new_name: Callable[..., str], tmp_path: Path
) -> None:
    """Leaders and share coordinators die: no record is acknowledged again, and none is left."""
    topic, group = cluster.create_topic(new_name(), PARTITIONS), new_name("group")
    members = [Member(cluster, tmp_path / str(number), group, topic) for number in range(2)]
    try:
        sent = 0
        for number, broker in cluster.brokers.items():
            produce(cluster, topic, range(sent, sent + 600))
            sent += 600
            until_acknowledged(members, sent - 300)
            broker.kill()
            produce(cluster, topic, range(sent, sent + 300))
            sent += 300
            until_acknowledged(members, sent)
            found = acknowledged(members, confirmed=True)
            assert set(found.values()) == {1}, f"broker {number} was killed: {found.most_common(3)}"
            cluster.start_all()
            cluster.wait_until_in_sync()
        until_nothing_is_left(cluster, group, sent)
    finally:
        lines = [line for member in members for line in member.kill()]
    assert not [line for line in lines if "ERROR" in line and NOT_CONFIRMED not in line]
