"""Producers that outlive their tasks: which tasks share them, how long they live, and what fails with them."""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa
import pytest

from parley import read_topic
from parley.pipeline.client import writing
from parley.pipeline.client.cluster import Cluster, Connection
from parley.pipeline.client.decode import decode
from parley.pipeline.client.fetching import TopicPartition
from parley.pipeline.client.sending import ProducerId
from parley.pipeline.client.writing import Producer, Writing
from parley.pipeline.format import kept_producers as producers
from parley.pipeline.format.kept_producers import IDLE_S, KEPT_MAX, KeptProducers
from parley.protocol.records.batch_header import headers
from parley.tools.pytest_plugin import KafkaBroker


@pytest.fixture
def topic(kafka_broker: KafkaBroker, request: pytest.FixtureRequest) -> str:
    return kafka_broker.create_topic(request.node.name, partitions=1)


@pytest.fixture
def cluster(kafka_broker: KafkaBroker) -> Iterator[Cluster]:
    with Cluster(Connection(bootstrap=kafka_broker.bootstrap_servers)) as cluster:
        yield cluster


def values(*wanted: str) -> pa.RecordBatch:
    return pa.RecordBatch.from_pydict({"value": list(wanted)})


def writers(cluster: Cluster, topic: str, count: int) -> list[ProducerId]:
    """Return the producer of each batch of a topic with one partition and this many records, in log order."""
    found = []
    for fetched in cluster.fetch(TopicPartition(topic, 0), 0, count):
        assert sum(len(rows) for rows in decode(fetched)) > 0
        found += [ProducerId(one.producer_id, one.producer_epoch) for _, one in headers(fetched.records)]
    return found


def test_tasks_of_a_process_share_an_id_and_none_an_epoch(cluster: Cluster, topic: str) -> None:
    kept = KeptProducers()
    for number in range(40):
        with kept.use(cluster, Writing()) as producer:
            producer.write(values(f"{number}"), topic=topic)
    found = writers(cluster, topic, 40)
    assert found == [ProducerId(found[0].producer_id, number) for number in range(40)]


def test_a_task_that_wrote_nothing_takes_no_epoch(cluster: Cluster, topic: str) -> None:
    kept = KeptProducers()
    for rows in ([], ["a"], [], [], ["b"]):
        with kept.use(cluster, Writing()) as producer:
            producer.write(values(*rows), topic=topic)
    assert [one.epoch for one in writers(cluster, topic, 2)] == [0, 1]


def test_after_the_last_epoch_comes_another_id(cluster: Cluster, topic: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(writing, "_EPOCH_MAX", 1)
    kept = KeptProducers()
    for number in range(4):
        with kept.use(cluster, Writing()) as producer:
            producer.write(values(f"{number}"), topic=topic)
    found = writers(cluster, topic, 4)
    assert [one.epoch for one in found] == [0, 1, 0, 1]
    assert len({one.producer_id for one in found}) == 2


def test_the_producer_of_a_task_that_failed_is_not_kept(cluster: Cluster, topic: str) -> None:
    kept = KeptProducers()
    with pytest.raises(ValueError, match="no topic is given"), kept.use(cluster, Writing()) as producer:
        producer.write(values("given up"))
    assert len(kept) == 0
    with kept.use(cluster, Writing()) as another:
        another.write(values("written"), topic=topic)
    assert another is not producer
    assert read_topic(cluster.connection.bootstrap, topic).column("value").to_pylist() == [b"written"]


def test_two_users_at_once_have_a_producer_each(cluster: Cluster) -> None:
    kept = KeptProducers()
    with kept.use(cluster, Writing()) as one, kept.use(cluster, Writing()) as other:
        assert one is not other
        assert one.identity() != other.identity()
    assert len(kept) == 1


def test_few_are_kept_and_none_for_long(cluster: Cluster) -> None:
    now = 0.0
    kept = KeptProducers(lambda: now)
    for number in range(KEPT_MAX + 3):
        with kept.use(cluster, Writing(batch_bytes=1_000 + number)):
            now += 1
    assert len(kept) == KEPT_MAX
    now += 1
    with kept.use(cluster, Writing(batch_bytes=1_000 + 3)) as oldest:
        pass
    now += IDLE_S - 1
    with kept.use(cluster, Writing(batch_bytes=1_000 + 3)) as again:
        assert again is oldest
        assert len(kept) == 0
    assert len(kept) == 1


def test_a_fork_has_producers_of_its_own() -> None:
    assert producers._kept_by(1) is producers._kept_by(1)
    assert producers._kept_by(1) is not producers._kept_by(2)


def test_a_transactional_producer_is_not_renewed(cluster: Cluster) -> None:
    with Producer(cluster, Writing(transactional_id="mine")) as producer, pytest.raises(ValueError, match="epochs"):
        producer.renew()
