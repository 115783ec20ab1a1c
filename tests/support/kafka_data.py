"""Topics that Apache Kafka 3.9 stores in every way it supports, and what its own consumers read from them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from confluent_kafka import Consumer, KafkaError, Message, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, AlterConfigOpType, ConfigEntry, ConfigResource, NewTopic, ResourceType

from tests.support.kafka import Kafka4, KafkaWithZooKeeper

OVERRIDES = {
    # Only below protocol 3.0 does Kafka 3.9 still write the old message formats.
    "inter.broker.protocol.version": "2.8",
    "log.message.format.version": "2.8",
    "log.cleaner.backoff.ms": "100",
    "log.flush.start.offset.checkpoint.interval.ms": "100",
    "log.initial.task.delay.ms": "0",
}
AnyKafka = KafkaWithZooKeeper | Kafka4
SMALL_SEGMENTS = {"segment.bytes": "4000", "index.interval.bytes": "500", "retention.ms": "-1"}
TIMESTAMP = 1_790_000_000_000
LEGACY_CODECS = ("none", "gzip", "snappy", "lz4")
CODECS = (*LEGACY_CODECS, "zstd")
WAIT_SECONDS = 60


class Consumed(NamedTuple):
    """A record as a client reads it."""

    offset: int
    timestamp: int
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...]


def client(kafka: AnyKafka) -> dict[str, Any]:
    """Return settings for any client. It logs nothing, because stopped brokers are expected."""
    return {"bootstrap.servers": kafka.bootstrap_servers, "log_level": 0}


def create(kafka: AnyKafka, topic: str, **config: str) -> None:
    """Create a topic with one partition. Underscores in the names of ``config`` stand for dots."""
    small = SMALL_SEGMENTS
    if isinstance(kafka, Kafka4):  # which takes small ones by this name only (KIP-1030)
        small = {"internal.segment.bytes" if key == "segment.bytes" else key: value for key, value in small.items()}
    settings = {**small, **{key.replace("_", "."): value for key, value in config.items()}}
    admin = AdminClient(client(kafka))
    admin.create_topics([NewTopic(topic, 1, 1, config=settings)])[topic].result(WAIT_SECONDS)


def configure(kafka: AnyKafka, topic: str, key: str, value: str) -> None:
    """Change one setting of a topic."""
    admin = AdminClient(client(kafka))
    entry = ConfigEntry(key, value, incremental_operation=AlterConfigOpType.SET)
    resource = ConfigResource(ResourceType.TOPIC, topic, incremental_configs=[entry])
    for future in admin.incremental_alter_configs([resource]).values():
        future.result(WAIT_SECONDS)


def producer(kafka: AnyKafka, **config: Any) -> Producer:
    """Return a librdkafka producer. Underscores in the names of ``config`` stand for dots."""
    settings = {key.replace("_", "."): value for key, value in config.items()}
    return Producer({**client(kafka), "batch.num.messages": 20, **settings})


def produce(to: Producer, topic: str, count: int, *, size: int = 20, headers: bool = True) -> None:
    """Send ``count`` records and wait until all are written. Some have no key, value or headers."""
    failures: set[str] = set()

    def delivered(error: KafkaError | None, _message: Message) -> None:
        if error is not None:
            failures.add(error.str())

    for number in range(count):
        to.produce(
            topic,
            key=None if number % 7 == 3 else b"key-%d" % (number % 50),
            value=None if number % 11 == 5 else b"%d-" % number + b"v" * size,
            timestamp=TIMESTAMP + number,
            headers=[("n", b"%d" % number), ("none", None)] if headers and number % 3 == 0 else None,
            on_delivery=delivered,
        )
    assert to.flush(WAIT_SECONDS) == 0
    assert not failures, failures


def consume(kafka: AnyKafka, topic: str, *, committed: bool = False) -> list[Consumed]:
    """Return all records of the topic's only partition as librdkafka reads them; with ``committed``, committed records
    only."""
    consumer = Consumer(
        {
            **client(kafka),
            "group.id": "reader",
            "enable.auto.commit": False,
            "enable.partition.eof": True,
            "isolation.level": "read_committed" if committed else "read_uncommitted",
        }
    )
    try:
        return list(_records(consumer, topic))
    finally:
        consumer.close()


def _records(consumer: Consumer, topic: str) -> Iterator[Consumed]:
    while not _has_leader(consumer, topic):
        pass
    first, _ = consumer.get_watermark_offsets(TopicPartition(topic, 0), timeout=WAIT_SECONDS)
    consumer.assign([TopicPartition(topic, 0, first)])
    while True:
        message = consumer.poll(WAIT_SECONDS)
        assert message is not None, f"nothing from {topic} for {WAIT_SECONDS} s"
        error = message.error()
        if error is not None:
            assert error.code() == KafkaError._PARTITION_EOF, error
            return
        yield _consumed(message)


def _has_leader(consumer: Consumer, topic: str) -> bool:
    """Return True if the broker, which may have just started, serves the topic."""
    partitions = consumer.list_topics(topic, timeout=WAIT_SECONDS).topics[topic].partitions
    return 0 in partitions and partitions[0].leader >= 0


def _consumed(message: Message) -> Consumed:
    kind, timestamp = message.timestamp()
    offset, given = message.offset(), message.headers()
    assert offset is not None
    assert not isinstance(given, dict)
    headers = tuple((pair[0], pair[1]) for pair in given or ())
    return Consumed(offset, timestamp if kind else -1, message.key(), message.value(), headers)  # type: ignore[arg-type]


def write_everything(kafka: AnyKafka) -> None:
    """Write a topic for each way of storing records."""
    _codecs(kafka)
    if isinstance(kafka, KafkaWithZooKeeper):  # Kafka 4 writes no others (KIP-724)
        _old_formats(kafka)
    _transactions(kafka)
    _idempotent(kafka)
    _trimmed(kafka)
    _compacted(kafka)


def _codecs(kafka: AnyKafka) -> None:
    create(kafka, "codecs")
    create(kafka, "append.time_topic-x", message_timestamp_type="LogAppendTime")
    for codec in CODECS:
        produce(producer(kafka, compression_type=codec), "codecs", 200)
        produce(producer(kafka, compression_type=codec), "append.time_topic-x", 50)


def _old_formats(kafka: AnyKafka) -> None:
    for topic, version in (("magic-0", "0.9.0"), ("magic-1", "0.10.2")):
        create(kafka, topic, message_format_version=version)
        for codec in LEGACY_CODECS:
            produce(producer(kafka, compression_type=codec), topic, 100, headers=False)
    create(kafka, "magic-1-append-time", message_format_version="0.10.2", message_timestamp_type="LogAppendTime")
    produce(producer(kafka, compression_type="gzip"), "magic-1-append-time", 50, headers=False)
    create(kafka, "upgraded", message_format_version="0.9.0")
    for magic, version in enumerate(("0.9.0", "0.10.2", "2.8")):
        configure(kafka, "upgraded", "message.format.version", version)
        # The broker responds before it applies the change, and does not report when it has.
        while _last_magic(kafka.log_dir / "upgraded-0") != magic:
            produce(producer(kafka), "upgraded", 1, headers=False)
        for codec in ("none", "lz4"):
            produce(producer(kafka, compression_type=codec), "upgraded", 60, headers=version == "2.8")


def _last_magic(directory: Path) -> int:
    """Return the format of the last batch on disk, or -1 if there is none."""
    data = max(directory.glob("*.log")).read_bytes()
    position, magic = 0, -1
    while position < len(data):
        magic = data[position + 16]
        position += 12 + int.from_bytes(data[position + 8 : position + 12], "big")
    return magic


def _transactions(kafka: AnyKafka) -> None:
    create(kafka, "transactions")
    writers = [producer(kafka, transactional_id=f"t{number}", compression_type="lz4") for number in range(2)]
    for writer in writers:
        writer.init_transactions(WAIT_SECONDS)
    for round_number in range(6):
        for writer in writers:
            writer.begin_transaction()
            produce(writer, "transactions", 20)
        produce(producer(kafka), "transactions", 10)
        for number, writer in enumerate(writers):
            if (round_number + number) % 3 == 0:
                writer.abort_transaction(WAIT_SECONDS)
            else:
                writer.commit_transaction(WAIT_SECONDS)
    writers[0].begin_transaction()
    produce(writers[0], "transactions", 5)


def _idempotent(kafka: AnyKafka) -> None:
    create(kafka, "idempotent")
    for _ in range(3):
        produce(producer(kafka, enable_idempotence=True, batch_num_messages=10), "idempotent", 100)


def _trimmed(kafka: AnyKafka) -> None:
    create(kafka, "trimmed")
    produce(producer(kafka, batch_num_messages=10), "trimmed", 400)
    admin = AdminClient(client(kafka))
    for future in admin.delete_records([TopicPartition("trimmed", 0, 333)]).values():
        future.result(WAIT_SECONDS)
    while "trimmed 0 333" not in (kafka.log_dir / "log-start-offset-checkpoint").read_text():
        pass  # a crash before would bring the records back


def _compacted(kafka: AnyKafka) -> None:
    create(kafka, "compacted", cleanup_policy="compact", min_cleanable_dirty_ratio="0.01")
    writer = producer(kafka, batch_num_messages=10, enable_idempotence=True)
    checkpoint = kafka.log_dir / "cleaner-offset-checkpoint"
    sent = 0
    while "compacted 0" not in checkpoint.read_text():
        for number in range(200):
            # Some keys come once and stay, the others leave gaps.
            key = b"once-%d" % sent if number % 7 == 0 else b"%d" % (number % 20)
            writer.produce("compacted", key=key, value=b"%d" % number, timestamp=TIMESTAMP + number)
            sent += 1
        assert writer.flush(WAIT_SECONDS) == 0
    # Until the cleaner has reached the active segment it takes records away from those that read.
    active = max(int(path.stem) for path in (kafka.log_dir / "compacted-0").glob("*.log"))
    while f"compacted 0 {active}" not in checkpoint.read_text():
        pass


def cluster_id(log_dir: Path) -> str:
    """Return the cluster id from ``meta.properties``, read without any of our code."""
    lines = (log_dir / "meta.properties").read_text().splitlines()
    properties: Mapping[str, str] = dict(line.split("=", 1) for line in lines if "=" in line)
    return properties["cluster.id"]
