"""librdkafka, by confluent-kafka: records in and out."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any

import pytest
from confluent_kafka import (
    TIMESTAMP_CREATE_TIME,
    TIMESTAMP_LOG_APPEND_TIME,
    Consumer,
    KafkaError,
    Message,
    Producer,
    TopicPartition,
)

from tests.system.running import BrokerProcess

WAIT_SECONDS = 60
BASE_TIMESTAMP = 1_700_000_000_000
NewTopic = Callable[..., str]


def send(producer: Producer, topic: str, values: list[bytes], **options: Any) -> list[Message]:
    """Produce, and wait until every record is acknowledged. Returns the records as acknowledged."""
    sent: list[Message] = []
    errors: list[KafkaError] = []

    def delivered(error: KafkaError | None, message: Message) -> None:
        if error is None:
            sent.append(message)
        else:
            errors.append(error)

    for value in values:
        producer.produce(topic, value, on_delivery=delivered, **options)
    assert producer.flush(WAIT_SECONDS) == 0
    assert not errors, errors[0]
    return sent


def read(
    broker: BrokerProcess, topic: str, *, partition: int = 0, offset: int = 0, config: Mapping[str, Any] | None = None
) -> list[Message]:
    """Return all records of a partition from ``offset`` to its end."""
    settings = {"bootstrap.servers": broker.bootstrap_servers, "group.id": "nobody", "enable.partition.eof": True}
    consumer = Consumer({**settings, "enable.auto.commit": False, **(config or {})})
    try:
        consumer.assign([TopicPartition(topic, partition, offset)])
        found: list[Message] = []
        while True:
            message = consumer.poll(WAIT_SECONDS)
            assert message is not None, f"nothing for {WAIT_SECONDS} s after {len(found)} records"
            error = message.error()
            if error is not None:
                assert error.code() == KafkaError._PARTITION_EOF, error
                return found
            found.append(message)
    finally:
        consumer.close()


def producer_for(broker: BrokerProcess, **config: object) -> Producer:
    settings = {key.replace("_", "."): value for key, value in config.items()}
    return Producer({"bootstrap.servers": broker.bootstrap_servers, **settings})


@pytest.mark.parametrize("acks", ["0", "1", "all"])
@pytest.mark.parametrize("codec", ["none", "gzip", "snappy", "lz4", "zstd"])
def test_every_codec_and_every_acks(broker: BrokerProcess, new_topic: NewTopic, codec: str, acks: str) -> None:
    topic = new_topic()
    values = [b"%d " % number * 50 for number in range(500)]
    send(producer_for(broker, compression_type=codec, acks=acks, linger_ms=5), topic, values)
    found: list[Message] = []
    while len(found) < len(values):  # acks=0 is acknowledged before it is written
        found += read(broker, topic, offset=len(found))
    assert [message.value() for message in found] == values
    assert [message.offset() for message in found] == list(range(500))


def test_keys_headers_timestamps_and_nothing(broker: BrokerProcess, new_topic: NewTopic) -> None:
    topic = new_topic()
    producer = producer_for(broker)
    headers: list[tuple[str, str | bytes | None]] = [
        ("a", b"1"),
        ("a", b"2"),
        ("none", None),
        ("empty", b""),
        ("\u00e9", b"\x00\xff"),
    ]
    producer.produce(topic, b"v", b"k", timestamp=BASE_TIMESTAMP, headers=headers)
    producer.produce(topic, None, b"k", timestamp=BASE_TIMESTAMP + 1)
    producer.produce(topic, b"", b"", timestamp=BASE_TIMESTAMP + 2)
    producer.produce(topic, b"only", None, timestamp=BASE_TIMESTAMP - 5)
    assert producer.flush(WAIT_SECONDS) == 0
    found = read(broker, topic)
    assert [(message.key(), message.value()) for message in found] == [
        (b"k", b"v"), (b"k", None), (b"", b""), (None, b"only"),
    ]  # fmt: skip
    assert found[0].headers() == headers
    assert [message.timestamp() for message in found] == [
        (TIMESTAMP_CREATE_TIME, BASE_TIMESTAMP + step) for step in (0, 1, 2, -5)
    ]


@pytest.mark.parametrize("codec", ["none", "zstd"])
def test_append_time(broker: BrokerProcess, new_topic: NewTopic, codec: str) -> None:
    topic = new_topic(**{"message.timestamp.type": "LogAppendTime"})
    before = time.time_ns() // 1_000_000
    sent = send(producer_for(broker, compression_type=codec), topic, [b"a", b"b"], timestamp=BASE_TIMESTAMP)
    after = time.time_ns() // 1_000_000
    for message in [*sent, *read(broker, topic)]:
        kind, stamp = message.timestamp()
        assert kind == TIMESTAMP_LOG_APPEND_TIME
        assert before <= stamp <= after


def test_idempotent_producer_with_small_batches(broker: BrokerProcess, new_topic: NewTopic) -> None:
    topic = new_topic(partitions=3)
    producer = producer_for(broker, enable_idempotence=True, batch_num_messages=7, linger_ms=0)
    values = [b"%d" % number for number in range(2000)]
    for partition in range(3):
        send(producer, topic, values, partition=partition)
    for partition in range(3):
        assert [message.value() for message in read(broker, topic, partition=partition)] == values


def test_large_records(broker: BrokerProcess, new_topic: NewTopic) -> None:
    topic = new_topic(**{"max.message.bytes": "20000000"})
    values = [bytes([number]) * 8_000_000 for number in range(3)] + [b"small"]
    send(producer_for(broker, message_max_bytes=20_000_000), topic, values)
    assert [message.value() for message in read(broker, topic)] == values
    # A batch larger than all that the consumer asks for still comes, alone (KIP-74).
    small = {"fetch.message.max.bytes": 1000, "fetch.max.bytes": 1_000_000, "message.max.bytes": 1_000_000}
    assert [message.value() for message in read(broker, topic, config=small)] == values


def test_too_large_for_the_topic(broker: BrokerProcess, new_topic: NewTopic) -> None:
    topic = new_topic(**{"max.message.bytes": "1000"})
    errors: list[KafkaError | None] = []
    producer = producer_for(broker)
    producer.produce(topic, b"x" * 5000, on_delivery=lambda error, _: errors.append(error))
    assert producer.flush(WAIT_SECONDS) == 0
    assert [error.code() if error else None for error in errors] == [KafkaError.MSG_SIZE_TOO_LARGE]
    send(producer, topic, [b"fits"])


def test_topics_are_created_when_named_and_refused_when_illegal(
    broker: BrokerProcess, new_name: Callable[..., str]
) -> None:
    topic = new_name()
    send(producer_for(broker), topic, [b"first"])
    assert [message.value() for message in read(broker, topic)] == [b"first"]
    errors: list[KafkaError | None] = []
    producer = producer_for(broker, message_timeout_ms=30_000)
    producer.produce("no/such name", b"x", on_delivery=lambda error, _: errors.append(error))
    assert producer.flush(WAIT_SECONDS) == 0
    assert errors[0] is not None
    assert errors[0].code() in (KafkaError.TOPIC_EXCEPTION, KafkaError._UNKNOWN_TOPIC)


def test_compacted_topics_refuse_records_without_key(broker: BrokerProcess, new_topic: NewTopic) -> None:
    topic = new_topic(**{"cleanup.policy": "compact"})
    errors: list[KafkaError | None] = []
    producer = producer_for(broker)
    producer.produce(topic, b"x", on_delivery=lambda error, _: errors.append(error))
    assert producer.flush(WAIT_SECONDS) == 0
    assert [error.code() if error else None for error in errors] == [KafkaError.INVALID_RECORD]
    send(producer, topic, [b"x"], key=b"k")


def test_compression_by_the_topic(broker: BrokerProcess, new_topic: NewTopic) -> None:
    for codec in ("gzip", "snappy", "lz4", "zstd", "uncompressed"):
        topic = new_topic(**{"compression.type": codec})
        values = [b"%d" % number * 100 for number in range(100)]
        send(producer_for(broker, compression_type="lz4"), topic, values)
        assert [message.value() for message in read(broker, topic)] == values


def test_both_isolation_levels_read_all_where_nothing_is_transactional(
    broker: BrokerProcess, new_topic: NewTopic
) -> None:
    topic = new_topic()
    send(producer_for(broker), topic, [b"a", b"b"])
    for level in ("read_committed", "read_uncommitted"):
        assert len(read(broker, topic, config={"isolation.level": level})) == 2


def test_out_of_range_and_reset(broker: BrokerProcess, new_topic: NewTopic) -> None:
    topic = new_topic()
    send(producer_for(broker), topic, [b"a", b"b", b"c"])
    found = read(broker, topic, offset=1_000_000, config={"auto.offset.reset": "earliest"})
    assert [message.value() for message in found] == [b"a", b"b", b"c"]
    with pytest.raises(AssertionError, match=r"AUTO_OFFSET_RESET|out of range"):
        read(broker, topic, offset=1_000_000, config={"auto.offset.reset": "error"})


def test_a_long_poll_ends_with_the_first_record(broker: BrokerProcess, new_topic: NewTopic) -> None:
    topic = new_topic()
    send(producer_for(broker), topic, [b"before"])
    consumer = Consumer(
        {
            "bootstrap.servers": broker.bootstrap_servers,
            "group.id": "nobody",
            "fetch.wait.max.ms": 50_000,
            "socket.timeout.ms": 60_000,
        }
    )
    consumer.assign([TopicPartition(topic, 0, 0)])
    message = consumer.poll(WAIT_SECONDS)
    assert message is not None
    # The next fetch waits at the broker, longer than this test does.
    send(producer_for(broker), topic, [b"now"])
    message = consumer.poll(WAIT_SECONDS)
    assert message is not None
    assert message.value() == b"now"
    consumer.close()
