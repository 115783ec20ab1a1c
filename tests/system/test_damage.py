"""Bytes flipped and segments deleted on the disks of whole brokers: repaired from other replicas, or rejected."""

from __future__ import annotations

import json
import os
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from confluent_kafka import Consumer, KafkaError, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from parley.tools.checker.trial import create
from tests.support.preloaded import preloaded_command
from tests.system.clusters import POLL_S, ClusterOfProcesses
from tests.system.conftest import watched
from tests.system.running import BrokerProcess

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("damage")]

WAIT_SECONDS = 60
VALUES = [b"%03d" % number + os.urandom(100_000) for number in range(40)]
"""Four segments of one mebibyte each."""
SEGMENT = {"segment.bytes": str(1 << 20)}


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[ClusterOfProcesses]:
    cluster = ClusterOfProcesses(tmp_path)
    with cluster.running(), watched(*cluster.brokers.values()):
        yield cluster


def fill(bootstrap_servers: str, topic: str) -> None:
    producer = Producer({"bootstrap.servers": bootstrap_servers, "acks": "all", "linger.ms": "0"})
    for value in VALUES:
        producer.produce(topic, value, partition=0)
        producer.poll(0)
    assert producer.flush(WAIT_SECONDS) == 0


def segments(broker: BrokerProcess, topic: str) -> list[Path]:
    return sorted((broker.data / f"{topic}-0").glob("*.log"))


def flip(path: Path) -> None:
    """Change eight bytes in the middle of a file."""
    with path.open("r+b") as file:
        file.seek(path.stat().st_size // 2)
        old = file.read(8)
        file.seek(-8, os.SEEK_CUR)
        file.write(bytes(byte ^ 0xFF for byte in old))


def read_from(bootstrap_servers: str, topic: str, offset: int) -> list[bytes] | KafkaError:
    """Return the values from ``offset`` to the end, or the first error."""
    settings = {"bootstrap.servers": bootstrap_servers, "group.id": "g", "enable.partition.eof": True}
    consumer = Consumer(settings)
    consumer.assign([TopicPartition(topic, 0, offset)])
    values = []
    try:
        while (message := consumer.poll(WAIT_SECONDS)) is not None:
            error = message.error()
            if error is None:
                values.append(message.value() or b"")
            elif error.code() == KafkaError._PARTITION_EOF:
                return values
            else:
                return error
        raise AssertionError("no message")
    finally:
        consumer.close()


def verify(bootstrap_servers: str, topic: str) -> tuple[int, list[dict[str, object]]]:
    """Run ``parley log-dirs --verify``. Returns its status, and the damage at all brokers."""
    words = ["log-dirs", "--verify", "--json", "--topic-list", topic, "--bootstrap-server", bootstrap_servers]
    done = subprocess.run(preloaded_command(*words), capture_output=True, text=True, check=False)
    assert done.stdout, done.stderr
    brokers = json.loads(done.stdout)["brokers"]
    return done.returncode, [damage for each in brokers for log in each["partitions"] for damage in log["damage"]]


def test_a_follower_is_healed_after_flipped_bytes_and_a_deleted_segment(cluster: ClusterOfProcesses) -> None:
    """Both happen while the follower is stopped cleanly. Afterwards its files are the same as before."""
    cluster.create_topic("t", segment_bytes=SEGMENT["segment.bytes"])
    fill(cluster.bootstrap_servers, "t")
    number = next(each for each in cluster.brokers if each != cluster.leader("t"))
    victim = cluster.brokers[number]
    assert victim.stop() == 0
    first, second, *_ = files = segments(victim, "t")
    assert len(files) >= 4
    before = [path.read_bytes() for path in files]
    first.unlink()
    flip(second)
    victim.start()
    cluster.wait_until_in_sync()
    while verify(cluster.bootstrap_servers, "t") != (0, []):
        time.sleep(POLL_S)
    assert [path.read_bytes() for path in segments(victim, "t")] == before
    for other in cluster.brokers.values():
        if other is not victim:
            other.stop()
    assert read_from(victim.bootstrap_servers, "t", 0) == VALUES


@pytest.mark.parametrize("end", [pytest.param(BrokerProcess.stop, marks=pytest.mark.soak), BrokerProcess.kill])
def test_the_only_copy_is_served_around_the_damage(
    new_broker: Callable[..., BrokerProcess], end: Callable[[BrokerProcess], int]
) -> None:
    """Bytes are flipped in an old segment, after a clean stop or a kill. The records around them are kept."""
    broker = new_broker()
    broker.start()
    create(AdminClient({"bootstrap.servers": broker.bootstrap_servers}), NewTopic("t", 1, 1, config=SEGMENT))
    fill(broker.bootstrap_servers, "t")
    end(broker)
    files = segments(broker, "t")
    flip(files[1])
    broker.start()
    status, damage = verify(broker.bootstrap_servers, "t")
    assert status == 1
    (only,) = damage
    first, last = int(str(only["firstOffset"])), int(str(only["lastOffset"]))
    assert int(files[1].stem) <= first <= last < int(files[2].stem)
    assert only["hasNoCopy"] is True
    assert read_from(broker.bootstrap_servers, "t", last + 1) == VALUES[last + 1 :]
    refused = read_from(broker.bootstrap_servers, "t", first)
    assert isinstance(refused, KafkaError)
    assert refused.name() == "INVALID_MSG"  # librdkafka's name of CORRUPT_MESSAGE
