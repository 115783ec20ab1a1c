"""Compacted topics of whole brokers: clients read the same values as a dictionary holds, even while brokers
are killed."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from random import Random

import pytest
from confluent_kafka import Consumer, KafkaError, Message, Producer, TopicPartition

from tests.support.kafka_tools import output_of_tool
from tests.system.clusters import POLL_S, ClusterOfProcesses
from tests.system.conftest import watched
from tests.system.disk_faults import Hurt, damaged_disk
from tests.system.running import BrokerProcess
from tests.system.test_cluster import FREEZES, KILLS, kill_leader

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("compaction")]

WAIT_SECONDS = 120
CLEANER = {
    "log.cleaner.backoff.ms": "200",
    "log.flush.offset.checkpoint.interval.ms": "200",
}
"""Settings with which the broker compacts again soon after records were written."""
COMPACTED = {
    "cleanup_policy": "compact",
    "segment_ms": "200",
    "min_cleanable_dirty_ratio": "0.01",
    "delete_retention_ms": "1000",
    "min_insync_replicas": "2",
}
KEYS = 60
PARTITION = 0


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[ClusterOfProcesses]:
    cluster = ClusterOfProcesses(tmp_path, overrides=CLEANER)
    with cluster.running(), watched(*cluster.brokers.values()):
        yield cluster


class Writer:
    """Writes keys, and records the last acknowledged value of each. None stands for a tombstone."""

    def __init__(self, bootstrap_servers: str, topic: str) -> None:
        self.values: dict[bytes, bytes | None] = {}
        self.written = 0
        self.errors: list[KafkaError] = []
        self._topic = topic
        self._random = Random(1)
        settings = {
            "bootstrap.servers": bootstrap_servers,
            "enable.idempotence": True,
            "linger.ms": 1,
            "compression.type": "lz4",
            "message.timeout.ms": WAIT_SECONDS * 1000,
        }
        self._producer = Producer(settings)

    def write(self, count: int) -> None:
        """Write records, about a thousand per second, and wait until all are acknowledged."""
        for _ in range(count):
            key = b"key-%d" % self._random.randrange(KEYS)
            value = None if self._random.random() < 0.2 else b"value-%d" % self.written
            self._producer.produce(self._topic, value, key, PARTITION, on_delivery=self._delivered)
            self.written += 1
            self._producer.poll(0.001)
        assert self._producer.flush(WAIT_SECONDS) == 0
        assert not self.errors

    def _delivered(self, error: KafkaError | None, message: Message) -> None:
        if error is not None:
            self.errors.append(error)
            return
        key = message.key()
        assert isinstance(key, bytes)
        self.values[key] = message.value()  # records of a partition are acknowledged in their order

    @property
    def table(self) -> dict[bytes, bytes]:
        """The keys that were not deleted, and their values: what a reader should find."""
        return {key: value for key, value in self.values.items() if value is not None}


def read_table(bootstrap_servers: str, topic: str) -> tuple[dict[bytes, bytes], int]:
    """Read the topic from the beginning. Returns the values by key, and the number of records."""
    settings = {"bootstrap.servers": bootstrap_servers, "group.id": "reader", "enable.partition.eof": True}
    consumer = Consumer(settings)
    consumer.assign([TopicPartition(topic, PARTITION, 0)])
    table: dict[bytes, bytes] = {}
    count = 0
    try:
        while (message := consumer.poll(WAIT_SECONDS)) is not None:
            error = message.error()
            if error is not None:
                assert error.code() == KafkaError._PARTITION_EOF, error
                return table, count
            key, value = message.key(), message.value()
            assert isinstance(key, bytes)
            count += 1
            table.pop(key, None)
            if isinstance(value, bytes):
                table[key] = value
        raise AssertionError("no message")
    finally:
        consumer.close()


def segments(broker: BrokerProcess, topic: str) -> list[Path]:
    return sorted((broker.data / f"{topic}-{PARTITION}").glob("*.log"))


def wait_until_compacted(broker: BrokerProcess, writer: Writer, topic: str) -> None:
    """Wait until the log has few segments: those that compaction has merged, and the newest ones."""
    deadline = time.monotonic() + WAIT_SECONDS
    while len(segments(broker, topic)) > 4:
        assert time.monotonic() < deadline, f"{len(segments(broker, topic))} segments are left"
        writer.write(1)
        time.sleep(POLL_S)


def dumped_table(broker: BrokerProcess, topic: str) -> dict[bytes, bytes]:
    """Return the values by key in a broker's files, as Kafka's own tool reads them."""
    table: dict[bytes, bytes] = {}
    for path in segments(broker, topic):
        dumped = output_of_tool(
            "org.apache.kafka.tools.DumpLogSegments", "--deep-iteration", "--print-data-log", "--files", str(path)
        )
        assert not re.search("mismatch|isvalid: false|corrupt|exception", dumped, re.IGNORECASE)
        for key, value in re.findall(r" key: (\S+)(?: payload: (\S+))?$", dumped, re.MULTILINE):
            table.pop(key.encode(), None)
            if value not in ("", "null"):
                table[key.encode()] = value.encode()
    return table


def hurt_while_writing(cluster: ClusterOfProcesses, writer: Writer, topic: str, hurt: Hurt) -> None:
    """Inject a fault while records are written, and heal the cluster."""
    with ThreadPoolExecutor(1) as threads:
        writing = threads.submit(writer.write, 1500)
        hurt(cluster, topic)
        cluster.heal()
        writing.result()


def check_compacted(cluster: ClusterOfProcesses, writer: Writer, topic: str) -> None:
    """Check that all logs are compacted, and that a reader finds the last values."""
    for broker in cluster.brokers.values():
        wait_until_compacted(broker, writer, topic)
    cluster.wait_until_in_sync()  # the last records may be on two brokers only
    table, count = read_table(cluster.bootstrap_servers, topic)
    assert table == writer.table
    assert count < writer.written / 4


def test_a_compacted_topic_equals_a_dictionary_while_brokers_die(cluster: ClusterOfProcesses) -> None:
    topic = cluster.create_topic("keyed", 1, **COMPACTED)
    writer = Writer(cluster.bootstrap_servers, topic)
    writer.write(1500)
    for _ in range(3):
        hurt_while_writing(cluster, writer, topic, kill_leader)
    check_compacted(cluster, writer, topic)
    for broker in cluster.brokers.values():
        assert broker.stop() == 0
        assert dumped_table(broker, topic) == writer.table
        assert "set aside" not in broker.log()


@pytest.mark.soak
def test_a_compacted_topic_keeps_the_last_values_through_random_faults(
    cluster: ClusterOfProcesses, request: pytest.FixtureRequest
) -> None:
    rng = Random(request.config.getoption("--chaos-seed"))
    topic = cluster.create_topic("keyed", 1, **COMPACTED)
    writer = Writer(cluster.bootstrap_servers, topic)
    writer.write(1500)
    for _ in range(request.config.getoption("--chaos-rounds")):
        hurt_while_writing(cluster, writer, topic, rng.choice([*KILLS, *FREEZES, damaged_disk(rng)]))
    check_compacted(cluster, writer, topic)
