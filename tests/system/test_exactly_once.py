"""Exactly once with Apache Kafka's own programs, while brokers and clients are killed: compared record by record."""

from __future__ import annotations

import itertools
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition

from tests.support.kafka import ROOT, JavaServer, java_command
from tests.system.clusters import WAIT_SECONDS, ClusterOfProcesses, losing_nothing
from tests.system.conftest import watched

COPIER = "org.apache.kafka.tools.TransactionalMessageCopier"
STREAMS = str(Path(__file__).with_name("StreamsCounts.java"))
STREAMS_LIBS = ROOT / ".cache" / "kafka-streams-4.3.1"
PARTITIONS = 2
SETTINGS = {
    "transaction.state.log.num.partitions": "3",
    "transaction.state.log.replication.factor": "3",
    "transaction.state.log.min.isr": "2",
    "min.insync.replicas": "2",
    "group.streams.initial.rebalance.delay.ms": "0",
    "group.streams.min.heartbeat.interval.ms": "500",
    "group.streams.heartbeat.interval.ms": "500",
    "group.streams.min.session.timeout.ms": "6000",
    "group.streams.session.timeout.ms": "6000",
}


@pytest.fixture(scope="module")
def processes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ClusterOfProcesses]:
    cluster = ClusterOfProcesses(tmp_path_factory.mktemp("exactly-once"), overrides=SETTINGS)
    with cluster.running(), watched(*cluster.brokers.values()):
        yield cluster


@pytest.fixture
def cluster(processes: ClusterOfProcesses) -> ClusterOfProcesses:
    """Return the cluster, with all brokers running at the beginning of each test."""
    processes.heal()
    return processes


class Committed:
    """The committed records of a topic, by partition, in order."""

    def __init__(self, cluster: ClusterOfProcesses, topic: str) -> None:
        self.values: defaultdict[int, list[tuple[str, str]]] = defaultdict(list)
        self._consumer = Consumer(
            {
                "bootstrap.servers": cluster.bootstrap_servers,
                "group.id": "judge",
                "isolation.level": "read_committed",
                "enable.auto.commit": False,
                "auto.offset.reset": "earliest",
                "log_level": 0,
            }
        )
        self._topic = topic
        self._consumer.assign([TopicPartition(topic, index, 0) for index in range(PARTITIONS)])

    @property
    def count(self) -> int:
        return sum(map(len, self.values.values()))

    def wait_for(self, count: int, programs: Sequence[Program] = ()) -> None:
        """Read on until the topic contains this many records. Restarts programs that end meanwhile.

        Raises AssertionError if no record arrives for long.
        """
        quiet_since = time.monotonic()
        while self.count < count:
            for program in programs:
                program.start_again_if_ended()
            message = self._consumer.poll(1)
            if message is None or message.error() is not None:
                waited = time.monotonic() - quiet_since
                assert waited < 2 * WAIT_SECONDS, f"{self.count} of {count} records of {self._topic} after {waited} s"
                continue
            quiet_since = time.monotonic()
            key, value = (message.key() or b"").decode(), (message.value() or b"").decode()
            self.values[message.partition() or 0].append((key, value))

    def close(self) -> None:
        """Check that no more records arrive, and close the consumer."""
        message = self._consumer.poll(1)
        assert message is None or message.error() is not None, f"{self._topic} has more than {self.count} records"
        self._consumer.close()


def fill(cluster: ClusterOfProcesses, topic: str, records: Sequence[tuple[int, str, str]]) -> None:
    """Send records (partition, key, value), each once."""
    producer = Producer({"bootstrap.servers": cluster.bootstrap_servers, "enable.idempotence": True, "log_level": 0})
    for partition, key, value in records:
        producer.produce(topic, value, key, partition=partition)
        producer.poll(0)
    assert producer.flush(WAIT_SECONDS) == 0


class Program:
    """A Java program that can be killed and restarted."""

    def __init__(self, folder: Path, *command: str, more_libs: Path | None = None) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._command = java_command(*command, more_libs=more_libs)
        self._folder = folder
        self._process = JavaServer(self._command, cwd=folder)
        self.lines: list[str] = []

    def kill(self) -> None:
        """End the program immediately. Its output is kept."""
        self._process.kill()
        self.lines += self._process.lines

    def kill_and_start(self) -> None:
        self.kill()
        self._process = JavaServer(self._command, cwd=self._folder)

    def start_again_if_ended(self) -> None:
        """Restart a copier that ended. A copier ends after copying the initial content of its topic, or when it is
        fenced."""
        if self._process.ended:
            self.kill_and_start()


@contextmanager
def running(*programs: Program) -> Iterator[None]:
    """End the programs at the end of the context, and show their output if the test fails."""
    try:
        yield
    except BaseException as error:
        for program in programs:
            program.kill()
            error.add_note("\n".join(program.lines[-30:]))
        raise
    finally:
        for program in programs:
            program.kill()


def copier(cluster: ClusterOfProcesses, folder: Path, source: str, target: str, number: int) -> Program:
    """Return a copier between two topics: a group member that commits its offsets in its transactions."""
    words = {
        "--broker-list": cluster.bootstrap_servers,
        "--input-topic": source,
        "--input-partition": "0",
        "--output-topic": target,
        "--consumer-group": f"copiers-of-{source}",
        "--transactional-id": f"copier-{source}-{number}",
        "--transaction-size": "50",
        "--transaction-timeout": "10000",
    }
    flags = ("--group-mode", "--use-group-metadata", "--enable-random-aborts")
    return Program(folder, COPIER, *itertools.chain(*words.items()), *flags)


@pytest.mark.soak
@pytest.mark.parametrize(("hops", "count"), [(1, 1000), (2, 2000)])
def test_copiers_in_a_chain(
    cluster: ClusterOfProcesses, new_name: Callable[..., str], tmp_path: Path, hops: int, count: int
) -> None:
    """Two copiers run between each pair of topics. A broker is killed during each hop, a copier during the second."""
    topics = [cluster.create_topic(new_name(), PARTITIONS) for _ in range(hops + 1)]
    sent = [(number % PARTITIONS, f"k{number}", f"v{number}") for number in range(count)]
    fill(cluster, topics[0], sent)
    for hop, (source, target) in enumerate(itertools.pairwise(topics), 1):
        copiers = [copier(cluster, tmp_path, source, target, number) for number in range(PARTITIONS)]
        output = Committed(cluster, target)
        with running(*copiers):
            output.wait_for(len(sent) // 4, copiers)
            cluster.brokers[hop].kill()
            output.wait_for(len(sent) // 2, copiers)
            if hop == 2:  # the group waits 10 s for a copier that was killed: its session timeout is fixed
                copiers[0].kill_and_start()
            cluster.start_all()
            output.wait_for(len(sent), copiers)
        cluster.wait_until_in_sync()
    output.close()
    for partition in range(PARTITIONS):
        assert output.values[partition] == [(key, value) for at, key, value in sent if at == partition]


@pytest.mark.parametrize(
    "more", [pytest.param((), marks=pytest.mark.soak), ("group.protocol=streams",)], ids=["classic", "streams"]
)
def test_streams(
    cluster: ClusterOfProcesses, new_name: Callable[..., str], tmp_path: Path, more: tuple[str, ...]
) -> None:
    """Two instances of an application with exactly_once_v2: an instance and a broker are killed."""
    source, target = cluster.create_topic(new_name(), PARTITIONS), cluster.create_topic(new_name(), PARTITIONS)
    name = new_name("app")
    keys = 10
    sent = [(number % PARTITIONS, "", f"k{number % keys}:{number}") for number in range(2000)]
    instances = [
        Program(tmp_path, STREAMS, cluster.bootstrap_servers, name, source, target, f"{tmp_path}/{number}",
                *more, more_libs=STREAMS_LIBS)
        for number in range(2)
    ]  # fmt: skip
    output = Committed(cluster, target)
    with running(*instances):
        fill(cluster, source, sent[:1000])
        output.wait_for(200)
        cluster.brokers[cluster.leader(target)].kill()
        output.wait_for(500)
        instances[0].kill_and_start()
        cluster.start_all()
        fill(cluster, source, sent[1000:])
        output.wait_for(len(sent))
    output.close()
    expected = {f"k{key}": [value.partition(":")[2] for *_, value in sent[key::keys]] for key in range(keys)}
    found = defaultdict(list)
    for key, value in itertools.chain(*output.values.values()):
        found[key].append(value)
    assert found == {key: [f"{at}:{text}" for at, text in enumerate(texts, 1)] for key, texts in expected.items()}


@pytest.mark.soak
def test_transactions_of_librdkafka(cluster: ClusterOfProcesses, new_name: Callable[..., str]) -> None:
    """Producers are replaced repeatedly, while coordinators and leaders are killed.

    On a secured cluster, ``make test`` does the same.
    """
    with losing_nothing(cluster, new_name(), transactional=True) as running:
        for broker in cluster.brokers.values():
            running.wait_for_acknowledged(100)
            broker.kill()
            running.wait_for_acknowledged(100)
            cluster.start_all()
            cluster.wait_until_in_sync()
        running.wait_for_acknowledged(100)
