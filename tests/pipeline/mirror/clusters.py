"""Two clusters, and mirrors between them that copy in this process."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from typing import Any

from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, Message, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, AlterConfigOpType, ConfigEntry, ConfigResource, NewTopic

from parley.pipeline.mirror.copying import Copied, Range, copy
from parley.pipeline.mirror.rounds import Mirror
from parley.pipeline.mirror.settings import from_mm2

Row = tuple[bytes | None, bytes | None, int, tuple[tuple[str, bytes | None], ...]]
"""Key, value, timestamp (ms) and headers of a record."""


def properties(a: str, b: str, **more: str) -> dict[str, str]:
    """Return an ``mm2.properties`` for mirroring from A to B. Underscores in the names of ``more`` stand for dots."""
    basic = {
        "clusters": "A, B",
        "A.bootstrap.servers": a,
        "B.bootstrap.servers": b,
        "A->B.enabled": "true",
        "emit.heartbeats.enabled": "false",
        "refresh.topics.interval.seconds": "3600",
    }
    return basic | {key.replace("_", "."): value for key, value in more.items()}


def in_process(ranges: list[Range]) -> Iterable[Copied]:
    """Copy ranges as Spark's tasks do, one after the other."""
    return [copy(one) for one in ranges]


def mirror(settings: Mapping[str, str]) -> Mirror:
    """Return a mirror that copies in this process."""
    return Mirror(from_mm2(settings), in_process, now_ms=lambda: int(time.time() * 1000))


def copy_once(settings: Mapping[str, str]) -> Mirror:
    """Start a mirror, copy all records, and end the mirror."""
    with mirror(settings) as running:
        running.copy(running.ends())
    return running


def create(bootstrap: str, name: str, partitions: int = 1, **config: str) -> str:
    """Create a topic."""
    admin = AdminClient({"bootstrap.servers": bootstrap, "log_level": 0})
    new = NewTopic(name, partitions, 1, config={key.replace("_", "."): value for key, value in config.items()})
    admin.create_topics([new])[name].result(30)
    return name


def produce(bootstrap: str, topic: str, rows: Iterable[Row], partition: int = 0, **config: object) -> None:
    """Send records to a partition."""
    producer = Producer({"bootstrap.servers": bootstrap, "linger.ms": 5, **config})
    for key, value, timestamp, headers in rows:
        producer.produce(topic, value, key, partition, timestamp=timestamp, headers=list(headers))
        producer.poll(0)
    assert producer.flush(30) == 0


def rows(number: int, first: int = 0, size: int = 100) -> list[Row]:
    """Return records of all kinds: with and without keys, values and headers."""
    return [
        (
            None if index % 3 == 0 else b"k%d" % (index % 7),
            None if index % 11 == 5 and index % 3 else b"%06d" % index + b"x" * size,
            1_700_000_000_000 + index,
            (("n", b"%d" % index), ("none", None)) if index % 5 == 0 else (),
        )
        for index in range(first, first + number)
    ]


def read(bootstrap: str, topic: str, partition: int = 0) -> list[Message]:
    """Return all messages that a partition contains now."""
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": "reader",
            "enable.auto.commit": False,
            "enable.partition.eof": True,
            "auto.offset.reset": "earliest",
        }
    )
    # Not by its watermarks: that call does not retry if the leader of a new topic is not known yet.
    consumer.assign([TopicPartition(topic, partition, OFFSET_BEGINNING)])
    found: list[Message] = []
    error: KafkaError | None = None
    while error is None:
        message = consumer.poll(60)
        assert message is not None, f"{topic}-{partition} has no end after {len(found)} records"
        error = message.error()
        if error is None:
            found.append(message)
    consumer.close()
    assert error.code() == KafkaError._PARTITION_EOF, error
    return found


def as_rows(messages: Iterable[Message]) -> list[Row]:
    """Return the messages in the form in which they were produced."""
    return [(one.key(), one.value(), one.timestamp()[1], _headers(one)) for one in messages]


def _headers(message: Message) -> tuple[tuple[str, bytes | None], ...]:
    found: Any = message.headers() or ()
    return tuple(found)


def settings_of(bootstrap: str, topic: str) -> dict[str, str]:
    """Return the settings of a topic."""
    resource = ConfigResource(ConfigResource.Type.TOPIC, topic)
    admin = AdminClient({"bootstrap.servers": bootstrap})
    found = admin.describe_configs([resource])[resource].result(30)
    return {name: entry.value for name, entry in found.items()}


def alter(bootstrap: str, topic: str, key: str, value: str) -> None:
    """Change a setting of a topic."""
    entry = ConfigEntry(key, value, incremental_operation=AlterConfigOpType.SET)
    resource = ConfigResource(ConfigResource.Type.TOPIC, topic, incremental_configs=[entry])
    admin = AdminClient({"bootstrap.servers": bootstrap})
    admin.incremental_alter_configs([resource])[resource].result(30)


def commit(bootstrap: str, group: str, offsets: Mapping[tuple[str, int], int]) -> None:
    """Commit offsets of a group."""
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": group})
    consumer.commit(offsets=[TopicPartition(*place, offset) for place, offset in offsets.items()], asynchronous=False)
    consumer.close()


def committed(bootstrap: str, group: str, places: Iterable[tuple[str, int]]) -> list[int]:
    """Return the offsets that a group has committed."""
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": group})
    found = consumer.committed([TopicPartition(*place) for place in places], timeout=30)
    consumer.close()
    return [one.offset for one in found]


def delete_records(bootstrap: str, topic: str, partition: int, offset: int) -> None:
    """Delete the records of a partition before an offset."""
    admin = AdminClient({"bootstrap.servers": bootstrap})
    place = TopicPartition(topic, partition, offset)
    admin.delete_records([place])[place].result(30)
