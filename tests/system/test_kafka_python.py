"""kafka-python, with current protocol versions and those of the oldest brokers that it supports."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from kafka import KafkaAdminClient, KafkaConsumer, KafkaProducer, TopicPartition
from kafka.admin import NewPartitions, NewTopic
from kafka.errors import GroupIdNotFoundError, TopicAlreadyExistsError

from tests.system.running import BrokerProcess

WAIT_SECONDS = 60
TIMESTAMP = 1_700_000_000_000
OLD_VERSIONS = [(0, 9), (0, 10, 0), (0, 10, 1), (0, 10, 2), (0, 11), (1, 0), (1, 1), (2, 0), (2, 4)]
MakeTopic = Callable[..., str]
MakeName = Callable[..., str]


def take(consumer: KafkaConsumer, count: int) -> list[bytes]:
    found: list[bytes] = []
    while len(found) < count:
        polled = consumer.poll(WAIT_SECONDS * 1000)
        assert polled, f"nothing for {WAIT_SECONDS} s after {len(found)} records"
        found += [record.value for records in polled.values() for record in records]
    return found


@pytest.mark.parametrize("version", OLD_VERSIONS, ids=lambda version: ".".join(map(str, version)))
def test_old_protocols(
    broker: BrokerProcess, new_topic: MakeTopic, new_name: MakeName, version: tuple[int, ...]
) -> None:
    """Message formats 0, 1 and 2, and a group, with the requests of clients of that time."""
    topic, group = new_topic(), new_name("g")
    common = {"bootstrap_servers": broker.bootstrap_servers, "api_version": version}
    codecs = [None, "gzip", "snappy", "lz4"]
    sent: list[bytes] = []
    for codec in codecs:
        producer = KafkaProducer(
            **common, compression_type=codec, linger_ms=20, enable_idempotence=version >= (0, 11), acks="all"
        )
        values = [b"%s %d" % (str(codec).encode(), number) for number in range(20)]
        futures = [producer.send(topic, value, key=b"k", partition=0) for value in values]
        assert [future.get(WAIT_SECONDS).offset for future in futures] == list(range(len(sent), len(sent) + 20))
        producer.close()
        sent += values
    for part in (50, 30):
        consumer = KafkaConsumer(
            topic,
            **common,
            group_id=group,
            auto_offset_reset="earliest",
            enable_auto_commit=False,
            max_poll_records=10,
        )
        begun = consumer.committed(TopicPartition(topic, 0)) or 0
        assert take(consumer, part) == sent[begun : begun + part]
        consumer.commit()
        assert consumer.committed(TopicPartition(topic, 0)) == begun + part
        consumer.close()


def test_records_and_offsets(broker: BrokerProcess, new_topic: MakeTopic) -> None:
    topic = new_topic()
    producer = KafkaProducer(bootstrap_servers=broker.bootstrap_servers, compression_type="zstd", acks="all")
    for number in range(3):
        sent = producer.send(topic, b"v", b"k", headers=[("h", b"%d" % number)], timestamp_ms=TIMESTAMP + number * 1000)
        assert sent.get(WAIT_SECONDS).offset == number
    producer.close()
    consumer = KafkaConsumer(bootstrap_servers=broker.bootstrap_servers, enable_auto_commit=False)
    part = TopicPartition(topic, 0)
    consumer.assign([part])
    assert consumer.beginning_offsets([part]) == {part: 0}
    assert consumer.end_offsets([part]) == {part: 3}
    assert consumer.offsets_for_times({part: TIMESTAMP + 1})[part].offset == 1
    consumer.seek(part, 1)
    records = [record for batch in consumer.poll(WAIT_SECONDS * 1000).values() for record in batch]
    assert [(each.offset, each.timestamp, each.headers[0][1]) for each in records] == [
        (1, TIMESTAMP + 1000, b"1"),
        (2, TIMESTAMP + 2000, b"2"),
    ]
    consumer.close()


def test_two_members(broker: BrokerProcess, new_topic: MakeTopic, new_name: MakeName) -> None:
    topic, group = new_topic(partitions=4), new_name("g")
    settings = {
        "bootstrap_servers": broker.bootstrap_servers,
        "group_id": group,
        "heartbeat_interval_ms": 200,
        "auto_offset_reset": "earliest",
    }
    first, second = KafkaConsumer(topic, **settings), KafkaConsumer(topic, **settings)
    while len(first.assignment()) != 2 or len(second.assignment()) != 2:
        first.poll(50)
        second.poll(50)
    assert first.assignment() | second.assignment() == {TopicPartition(topic, number) for number in range(4)}
    second.close()
    while len(first.assignment()) != 4:
        first.poll(50)
    first.close()


def test_administration(broker: BrokerProcess, new_name: MakeName) -> None:
    topic = new_name()
    admin = KafkaAdminClient(bootstrap_servers=broker.bootstrap_servers)
    admin.create_topics([NewTopic(topic, num_partitions=2, replication_factor=1)])
    with pytest.raises(TopicAlreadyExistsError):
        admin.create_topics([NewTopic(topic, num_partitions=2, replication_factor=1)])
    assert topic in admin.list_topics()
    admin.create_partitions({topic: NewPartitions(3)})
    consumer = KafkaConsumer(bootstrap_servers=broker.bootstrap_servers)
    assert consumer.partitions_for_topic(topic) == {0, 1, 2}
    consumer.close()
    assert admin.describe_cluster()["cluster_id"]
    admin.delete_topics([topic])
    assert topic not in admin.list_topics()
    outcome = admin.delete_groups([new_name("g")])
    assert GroupIdNotFoundError.__name__ in str(outcome) or "GROUP_ID_NOT_FOUND" in str(outcome)
    admin.close()
