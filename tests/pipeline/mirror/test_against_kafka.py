"""Apache Kafka as source and as target of a mirror: its log also rejects records that it already contains."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest
from confluent_kafka import Producer

from parley.pipeline.mirror.internal_records import OffsetSync
from tests.pipeline.mirror.clusters import (
    as_rows,
    commit,
    committed,
    copy_once,
    create,
    mirror,
    produce,
    properties,
    read,
    rows,
)
from tests.support.kafka import kafka_39_zk

pytestmark = [pytest.mark.system, pytest.mark.timeout(600)]


@pytest.fixture(scope="module")
def kafka(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Yield the bootstrap address of an Apache Kafka broker."""
    with kafka_39_zk(tmp_path_factory.mktemp("kafka"), {"auto.create.topics.enable": "false"}) as running:
        yield running.bootstrap_servers


def test_to_kafka_killed_again_and_again(a: str, kafka: str) -> None:
    create(a, "killed", 2)
    settings = properties(a, kafka, topics="killed")
    for first in range(0, 600, 200):
        produce(a, "killed", rows(200, first), 0)
        produce(a, "killed", rows(200, first), 1, **{"compression.type": "zstd"})
        running = mirror(settings)
        running.flows[0].prepare()
        running.copy(running.ends())
        running.flows[0].close()
    copy_once(settings)
    assert as_rows(read(kafka, "A.killed", 0)) == rows(600)
    assert as_rows(read(kafka, "A.killed", 1)) == rows(600)


def test_two_mirrors_to_kafka_at_once(a: str, kafka: str) -> None:
    create(a, "both")
    settings = properties(a, kafka, topics="both")
    copy_once(settings)
    with mirror(settings) as one, mirror(settings) as other:
        for first in range(0, 2000, 500):
            produce(a, "both", rows(500, first))
            with ThreadPoolExecutor(2) as both:
                assert len(list(both.map(lambda each: each.copy(each.ends()), (one, other)))) == 2
    assert as_rows(read(kafka, "A.both")) == rows(2000)


def transactions(bootstrap: str, topic: str) -> None:
    """Write ten committed records, five aborted records, and ten committed records."""
    producer = Producer({"bootstrap.servers": bootstrap, "transactional.id": topic})
    producer.init_transactions(60)
    for number, count in enumerate((10, 5, 10)):
        producer.begin_transaction()
        for key, value, timestamp, headers in rows(count, 100 * number):
            producer.produce(topic, value, key, 0, timestamp=timestamp, headers=list(headers))
        if number == 1:
            producer.flush(30)
            producer.abort_transaction(30)
        else:
            producer.commit_transaction(30)


@pytest.mark.parametrize("isolation", ["read_committed", "read_uncommitted"])
def test_transactions_of_kafka_and_the_groups_that_read_them(b: str, kafka: str, isolation: str) -> None:
    topic = create(kafka, f"transactions-{isolation}")
    transactions(kafka, topic)
    produce(kafka, topic, rows(10, 1000))
    # Offsets: 0-9 committed, 10 a marker, 11-15 aborted, 16 a marker, 17-26 committed, 27 a marker, 28-37 plain.
    groups = {"first": 4, "second": 20, "third": 38}
    for group, offset in groups.items():
        commit(kafka, f"{group}-{isolation}", {(topic, 0): offset})
    settings = properties(kafka, b, topics=topic) | {
        "consumer.isolation.level": isolation,
        "sync.group.offsets.enabled": "true",
    }
    for _ in range(2):
        running = mirror(settings)
        running.flows[0].prepare()
        running.copy(running.ends())
        running.flows[0].close()
    copy_once(settings)
    aborted = [] if isolation == "read_committed" else rows(5, 100)
    assert as_rows(read(b, f"A.{topic}")) == rows(10) + aborted + rows(10, 200) + rows(10, 1000)
    found = [committed(b, f"{group}-{isolation}", [(f"A.{topic}", 0)])[0] for group in groups]
    assert found == [4, 10 + len(aborted) + 3, 30 + len(aborted)]
    syncs = [OffsetSync.decode(one.key(), one.value()) for one in read(kafka, "mm2-offset-syncs.B.internal")]
    assert [each for each in syncs if each.topic == topic][-1].downstream == 29 + len(aborted)
