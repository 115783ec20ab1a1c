"""Six members of a consumer group (KIP-848) while brokers are killed and restarted.

Each record is delivered, and no partition has two owners.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition

from tests.system.clusters import POLL_S, WAIT_SECONDS, ClusterOfProcesses, until_served
from tests.system.conftest import watched
from tests.system.test_cluster import coordinator_of

pytestmark = [pytest.mark.slow, pytest.mark.system, pytest.mark.soak]

MEMBERS = 6
PARTITIONS = 12
PER_STEP = 120


class Members:
    """The members of a group, each in a thread, the partitions they own, and the records delivered to any of them."""

    def __init__(self, bootstrap_servers: str, group: str, topic: str) -> None:
        self.delivered: set[int] = set()
        self.owners: dict[int, int] = {}
        self.owned_twice: list[str] = []
        self.failed: list[BaseException] = []
        self._lock = threading.Lock()
        self._ends = threading.Event()
        self._config = {
            "bootstrap.servers": bootstrap_servers,
            "group.id": group,
            "group.protocol": "consumer",
            "auto.offset.reset": "earliest",
            "log_level": 0,
        }
        self._threads = [threading.Thread(target=self._run, args=(number, topic)) for number in range(MEMBERS)]

    def __enter__(self) -> Members:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ends.set()
        for thread in self._threads:
            thread.join()

    @property
    def all_share(self) -> bool:
        """Return True if each member owns its share of the partitions."""
        with self._lock:
            owners = list(self.owners.values())
        return sorted(owners) == sorted([*range(MEMBERS)] * (PARTITIONS // MEMBERS))

    def have(self, count: int) -> bool:
        """Return True if this many records were delivered."""
        with self._lock:
            return len(self.delivered) == count

    def wait_until(self, is_so: Callable[[], bool]) -> None:
        """Wait until the condition holds, or a member has failed."""
        while not is_so() and not self.failed:
            time.sleep(POLL_S)

    def _run(self, number: int, topic: str) -> None:
        consumer = Consumer(self._config)
        try:
            consumer.subscribe(
                [topic],
                on_assign=partial(self._assigned, number),
                on_revoke=partial(self._revoked, number),
                on_lost=partial(self._revoked, number),
            )
            while not self._ends.is_set():
                message = consumer.poll(0.2)
                if message is not None and message.error() is None:
                    with self._lock:
                        self.delivered.add(int(message.value() or b""))
            consumer.close()
        except BaseException as error:
            self.failed.append(error)
            raise

    def _assigned(self, number: int, _: Consumer, partitions: list[TopicPartition]) -> None:
        with self._lock:
            for each in partitions:
                owner = self.owners.setdefault(each.partition, number)
                if owner != number:
                    self.owned_twice.append(f"{each.partition}: member {owner} has it, member {number} gets it")
                self.owners[each.partition] = number

    def _revoked(self, number: int, _: Consumer, partitions: list[TopicPartition]) -> None:
        with self._lock:
            for each in partitions:
                if self.owners.get(each.partition) == number:
                    del self.owners[each.partition]


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[ClusterOfProcesses]:
    cluster = ClusterOfProcesses(tmp_path)
    with cluster.running(), watched(*cluster.brokers.values()):
        yield cluster


def kill_coordinator(cluster: ClusterOfProcesses, group: str) -> None:
    cluster.brokers[until_served(partial(coordinator_of, cluster, group))].kill()


def stop_coordinator(cluster: ClusterOfProcesses, group: str) -> None:
    cluster.brokers[until_served(partial(coordinator_of, cluster, group))].stop()


def restart_each(cluster: ClusterOfProcesses, group: str) -> None:
    for broker in cluster.brokers.values():
        broker.stop()
        broker.start()
        cluster.wait_until_in_sync()


def test_each_record_is_delivered_and_no_partition_has_two_owners(
    cluster: ClusterOfProcesses, new_name: Callable[..., str]
) -> None:
    topic, group = cluster.create_topic(new_name(), PARTITIONS, min_insync_replicas="2"), new_name("g")
    producer = Producer({"bootstrap.servers": cluster.bootstrap_servers, "acks": "all", "log_level": 0})
    sent = 0
    with Members(cluster.bootstrap_servers, group, topic) as members:
        for step in (kill_coordinator, stop_coordinator, restart_each, kill_coordinator):
            members.wait_until(lambda: members.all_share)
            for _ in range(PER_STEP):
                producer.produce(topic, b"%d" % sent, partition=sent % PARTITIONS)
                sent += 1
            step(cluster, group)
            assert producer.flush(WAIT_SECONDS) == 0
            cluster.start_all()
            cluster.wait_until_in_sync()
            members.wait_until(partial(members.have, sent))
        members.wait_until(lambda: members.all_share)
    assert not members.failed
    assert not members.owned_twice
    assert members.delivered == set(range(sent))
