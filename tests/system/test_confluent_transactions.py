"""librdkafka's transactional producer and its readers of committed records."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition

from tests.system.running import BrokerProcess
from tests.system.test_confluent_produce import WAIT_SECONDS, producer_for, read, send

NewTopic = Callable[..., str]
NewName = Callable[..., str]
COMMITTED = {"isolation.level": "read_committed"}
UNCOMMITTED = {"isolation.level": "read_uncommitted"}


def begun(broker: BrokerProcess, transactional_id: str, **config: object) -> Producer:
    producer = producer_for(broker, transactional_id=transactional_id, linger_ms=5, **config)
    producer.init_transactions(WAIT_SECONDS)
    return producer


def values(broker: BrokerProcess, topic: str, config: dict[str, Any], partition: int = 0) -> list[bytes | None]:
    return [message.value() for message in read(broker, topic, partition=partition, config=config)]


def committed_values(broker: BrokerProcess, topic: str, count: int, partition: int = 0) -> list[bytes | None]:
    """Return the committed values when there are so many: a commit is confirmed before its markers are written."""
    while len(found := values(broker, topic, COMMITTED, partition)) < count:
        pass
    return found


def test_committed_and_aborted_transactions(broker: BrokerProcess, new_topic: NewTopic, new_name: NewName) -> None:
    topic = new_topic(partitions=2)
    producer = begun(broker, new_name())
    outcomes = ["commit", "abort", "commit", "abort", "abort", "commit"]
    for number, outcome in enumerate(outcomes):
        producer.begin_transaction()
        for partition in range(2):
            for each in range(20):
                producer.produce(topic, b"%d-%d" % (number, each), partition=partition)
        if outcome == "commit":
            producer.commit_transaction(WAIT_SECONDS)
        else:
            assert producer.flush(WAIT_SECONDS) == 0  # so that the records are in the log
            producer.abort_transaction(WAIT_SECONDS)
    committed = [b"%d-%d" % (number, each) for number in (0, 2, 5) for each in range(20)]
    everything = [b"%d-%d" % (number, each) for number in range(6) for each in range(20)]
    for partition in range(2):
        assert committed_values(broker, topic, len(committed), partition) == committed
        assert values(broker, topic, UNCOMMITTED, partition) == everything


def test_an_open_transaction_is_hidden_until_it_is_committed(
    broker: BrokerProcess, new_topic: NewTopic, new_name: NewName
) -> None:
    topic = new_topic()
    producer = begun(broker, new_name())
    producer.begin_transaction()
    producer.produce(topic, b"hidden", partition=0)
    assert producer.flush(WAIT_SECONDS) == 0
    send(producer_for(broker), topic, [b"behind it"], partition=0)
    assert values(broker, topic, COMMITTED) == []
    settings = {"bootstrap.servers": broker.bootstrap_servers, "group.id": new_name(), **COMMITTED}
    consumer = Consumer({**settings, "fetch.wait.max.ms": 50_000, "socket.timeout.ms": 60_000})
    consumer.assign([TopicPartition(topic, 0, 0)])
    assert consumer.poll(0.5) is None
    producer.commit_transaction(WAIT_SECONDS)
    message = consumer.poll(WAIT_SECONDS)  # its fetch waits at the broker for longer than this test
    assert message is not None
    assert message.value() == b"hidden"
    consumer.close()


def test_offsets_are_committed_with_the_transaction_or_not_at_all(
    broker: BrokerProcess, new_topic: NewTopic, new_name: NewName
) -> None:
    topic, group = new_topic(), new_name()
    send(producer_for(broker), topic, [b"in"], partition=0)
    consumer = Consumer({"bootstrap.servers": broker.bootstrap_servers, "group.id": group, **COMMITTED})
    consumer.assign([TopicPartition(topic, 0, 0)])
    producer = begun(broker, new_name())

    def committed() -> int:
        (found,) = consumer.committed([TopicPartition(topic, 0)], WAIT_SECONDS)
        return int(found.offset)

    none = committed()
    assert none < 0
    for offset, commits, expected in ((5, False, none), (6, True, 6), (7, False, 6), (8, True, 8)):
        producer.begin_transaction()
        producer.produce(topic, b"out", partition=0)
        position = [TopicPartition(topic, 0, offset)]
        producer.send_offsets_to_transaction(position, consumer.consumer_group_metadata(), WAIT_SECONDS)
        if commits:
            producer.commit_transaction(WAIT_SECONDS)
        else:
            producer.abort_transaction(WAIT_SECONDS)
        assert committed() == expected
    consumer.close()


def test_a_zombie_is_fenced(broker: BrokerProcess, new_topic: NewTopic, new_name: NewName) -> None:
    topic, transactional_id = new_topic(), new_name()
    zombie = begun(broker, transactional_id)
    zombie.begin_transaction()
    zombie.produce(topic, b"of the zombie", partition=0)
    assert zombie.flush(WAIT_SECONDS) == 0
    successor = begun(broker, transactional_id)  # aborts the transaction of the zombie
    successor.begin_transaction()
    successor.produce(topic, b"of the successor", partition=0)
    successor.commit_transaction(WAIT_SECONDS)
    zombie.produce(topic, b"too late", partition=0)
    with pytest.raises(KafkaException) as refused:
        zombie.commit_transaction(WAIT_SECONDS)
    assert refused.value.args[0].code() in (KafkaError._FENCED, KafkaError.INVALID_PRODUCER_EPOCH)
    assert committed_values(broker, topic, 1) == [b"of the successor"]
    assert values(broker, topic, UNCOMMITTED) == [b"of the zombie", b"of the successor"]
