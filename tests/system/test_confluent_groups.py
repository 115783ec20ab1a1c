"""librdkafka, by confluent-kafka: consumer groups."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import pytest
from confluent_kafka import OFFSET_BEGINNING, OFFSET_END, Consumer, KafkaError, KafkaException, Message, TopicPartition
from confluent_kafka.admin import AdminClient

from tests.system.running import BrokerProcess
from tests.system.test_confluent_produce import BASE_TIMESTAMP, WAIT_SECONDS, producer_for, send

NewTopic = Callable[..., str]
NewName = Callable[..., str]


@contextmanager
def consumer(broker: BrokerProcess, group: str, **config: object) -> Iterator[Consumer]:
    settings = {
        "bootstrap.servers": broker.bootstrap_servers,
        "group.id": group,
        "auto.offset.reset": "earliest",
        "enable.auto.commit": False,
        "session.timeout.ms": 60_000,
        "heartbeat.interval.ms": 300,
        "fetch.wait.max.ms": 100,
        **{key if key == "on_commit" else key.replace("_", "."): value for key, value in config.items()},
    }
    made = Consumer(settings)
    try:
        yield made
    finally:
        made.close()


def take(consumer: Consumer, count: int) -> list[Message]:
    """Return the next ``count`` records."""
    found: list[Message] = []
    while len(found) < count:
        message = consumer.poll(WAIT_SECONDS)
        assert message is not None, f"nothing for {WAIT_SECONDS} s after {len(found)} records"
        assert message.error() is None, message.error()
        found.append(message)
    return found


def until(consumers: Sequence[Consumer], reached: Callable[[list[set[int]]], bool]) -> list[set[int]]:
    """Poll all consumers until the partitions of each are as wanted."""
    stop = threading.Event()
    timer = threading.Timer(WAIT_SECONDS, stop.set)
    timer.start()
    try:
        while True:
            for each in consumers:
                each.poll(0.05)
            held = [{part.partition for part in each.assignment()} for each in consumers]
            if reached(held):
                return held
            assert not stop.is_set(), f"after {WAIT_SECONDS} s the members have {held}"
    finally:
        timer.cancel()


def shared(partitions: int, members: int) -> Callable[[list[set[int]]], bool]:
    """Return True if each partition has exactly one member, and each member has partitions."""

    def check(held: list[set[int]]) -> bool:
        numbers = sorted(number for each in held for number in each)
        return numbers == list(range(partitions)) and all(held) and len(held) == members

    return check


def test_a_group_goes_on_where_it_committed(broker: BrokerProcess, new_topic: NewTopic, new_name: NewName) -> None:
    topic, group = new_topic(), new_name("g")
    send(producer_for(broker), topic, [b"%d" % number for number in range(10)])
    with consumer(broker, group) as first:
        first.subscribe([topic])
        take(first, 4)
        first.commit(asynchronous=False)
    with consumer(broker, group) as second:
        second.subscribe([topic])
        assert [message.value() for message in take(second, 6)] == [b"%d" % number for number in range(4, 10)]
        parts = second.committed([TopicPartition(topic, 0)], timeout=WAIT_SECONDS)
        assert [part.offset for part in parts] == [4]
        second.commit(offsets=[TopicPartition(topic, 0, 7, metadata="noted")], asynchronous=False)
        (part,) = second.committed([TopicPartition(topic, 0)], timeout=WAIT_SECONDS)
        assert (part.offset, part.metadata) == (7, "noted")


def test_asynchronous_and_automatic_commits(broker: BrokerProcess, new_topic: NewTopic, new_name: NewName) -> None:
    topic, group = new_topic(), new_name("g")
    send(producer_for(broker), topic, [b"x"] * 10)
    done = threading.Event()
    heard: list[object] = []

    def committed(error: object, parts: list[TopicPartition]) -> None:
        heard.append((error, [part.offset for part in parts]))
        done.set()

    with consumer(broker, group, on_commit=committed) as first:
        first.subscribe([topic])
        (message,) = take(first, 1)
        first.commit(message=message, asynchronous=True)
        while not done.is_set():
            first.poll(0.1)
        assert heard == [(None, [1])]
    automatic = new_name("g")
    with consumer(broker, automatic, enable_auto_commit=True, auto_commit_interval_ms=50) as second:
        second.subscribe([topic])
        take(second, 10)
    with consumer(broker, automatic) as third:
        (part,) = third.committed([TopicPartition(topic, 0)], timeout=WAIT_SECONDS)
        assert part.offset == 10


@pytest.mark.parametrize("strategy", ["range", "roundrobin", "cooperative-sticky"])
def test_members_share_come_and_go(
    broker: BrokerProcess, new_topic: NewTopic, new_name: NewName, strategy: str
) -> None:
    topic, group = new_topic(partitions=6), new_name("g")
    settings = {"partition_assignment_strategy": strategy}
    with consumer(broker, group, **settings) as first, consumer(broker, group, **settings) as second:
        first.subscribe([topic])
        until([first], shared(6, 1))
        second.subscribe([topic])
        until([first, second], shared(6, 2))
        with consumer(broker, group, **settings) as third:
            third.subscribe([topic])
            until([first, second, third], shared(6, 3))
        until([first, second], shared(6, 2))
        second.unsubscribe()
        until([first, second], lambda held: held == [set(range(6)), set()])


def test_nothing_is_lost_or_read_twice_over_rebalances(
    broker: BrokerProcess, new_topic: NewTopic, new_name: NewName
) -> None:
    topic, group = new_topic(partitions=4), new_name("g")
    values = [b"%d" % number for number in range(400)]
    send(producer_for(broker, sticky_partitioning_linger_ms=0, linger_ms=0), topic, values)
    found: list[bytes | None] = []
    with consumer(broker, group) as first:
        first.subscribe([topic])
        found += [message.value() for message in take(first, 50)]
        first.commit(asynchronous=False)
        # From here on the second has partitions too; a consumer commits only what it has read.
    with consumer(broker, group) as second, consumer(broker, group) as third:
        second.subscribe([topic])
        third.subscribe([topic])
        while len(found) < len(values):
            for each in (second, third):
                message = each.poll(0.05)
                if message is not None:
                    assert message.error() is None
                    found.append(message.value())
                    each.commit(message=message, asynchronous=False)
    assert sorted(found) == sorted(values)  # type: ignore[type-var]


def test_static_members_return_without_a_rebalance(
    broker: BrokerProcess, new_topic: NewTopic, new_name: NewName
) -> None:
    topic, group = new_topic(partitions=4), new_name("g")
    rebalances: list[str] = []

    def assigned(_: Consumer, parts: list[TopicPartition]) -> None:
        rebalances.append(f"+{len(parts)}")

    with consumer(broker, group, group_instance_id="one") as first:
        first.subscribe([topic], on_assign=assigned)
        with consumer(broker, group, group_instance_id="two") as second:
            second.subscribe([topic])
            before = until([first, second], shared(4, 2))
        seen = list(rebalances)
        with consumer(broker, group, group_instance_id="two") as again:
            again.subscribe([topic])
            after = until([first, again], shared(4, 2))
        assert after == before
        assert rebalances == seen


def test_seek_pause_and_positions(broker: BrokerProcess, new_topic: NewTopic, new_name: NewName) -> None:
    topic = new_topic(partitions=2)
    producer = producer_for(broker)
    for partition in (0, 1):
        send(producer, topic, [b"%d-%d" % (partition, number) for number in range(10)], partition=partition)
    with consumer(broker, new_name("g")) as reader:
        reader.assign([TopicPartition(topic, 0, OFFSET_BEGINNING), TopicPartition(topic, 1, OFFSET_BEGINNING)])
        take(reader, 20)
        assert [part.offset for part in reader.position(reader.assignment())] == [10, 10]
        reader.seek(TopicPartition(topic, 0, 7))
        assert [message.value() for message in take(reader, 3)] == [b"0-7", b"0-8", b"0-9"]
        reader.pause([TopicPartition(topic, 0)])
        send(producer, topic, [b"paused"], partition=0)
        send(producer, topic, [b"open"], partition=1)
        assert [message.value() for message in take(reader, 1)] == [b"open"]
        reader.resume([TopicPartition(topic, 0)])
        assert [message.value() for message in take(reader, 1)] == [b"paused"]
        assert reader.get_watermark_offsets(TopicPartition(topic, 0), timeout=WAIT_SECONDS) == (0, 11)
    with consumer(broker, new_name("g"), enable_partition_eof=True) as reader:
        reader.assign([TopicPartition(topic, 0, OFFSET_END)])
        message = reader.poll(WAIT_SECONDS)  # it has found the end
        assert message is not None
        error = message.error()
        assert error is not None
        assert (error.code(), message.offset()) == (KafkaError._PARTITION_EOF, 11)
        send(producer, topic, [b"new"], partition=0)
        assert [message.value() for message in take(reader, 1)] == [b"new"]


def test_offsets_for_times(broker: BrokerProcess, new_topic: NewTopic, new_name: NewName) -> None:
    topic = new_topic()
    producer = producer_for(broker, linger_ms=0)
    for number in range(5):
        send(producer, topic, [b"x"] * 2, timestamp=BASE_TIMESTAMP + 1000 * number)
    with consumer(broker, new_name("g")) as reader:
        wanted = [(-5000, 0), (0, 0), (1, 2), (1000, 2), (3999, 8), (4000, 8), (4001, -1)]
        for step, offset in wanted:
            asked = [TopicPartition(topic, 0, BASE_TIMESTAMP + step)]
            (part,) = reader.offsets_for_times(asked, timeout=WAIT_SECONDS)
            assert part.offset == offset, step


def test_patterns_find_topics_made_later(broker: BrokerProcess, admin: AdminClient, new_name: NewName) -> None:
    prefix = new_name("p")
    producer = producer_for(broker)
    send(producer, f"{prefix}-a", [b"a"])
    with consumer(broker, new_name("g"), topic_metadata_refresh_interval_ms=200) as reader:
        reader.subscribe([f"^{prefix}-.*"])
        assert [message.value() for message in take(reader, 1)] == [b"a"]
        reader.commit(asynchronous=False)
        send(producer, f"{prefix}-b", [b"b"])
        assert [message.value() for message in take(reader, 1)] == [b"b"]


def test_a_member_that_was_replaced_cannot_commit(
    broker: BrokerProcess, new_topic: NewTopic, new_name: NewName
) -> None:
    topic, group = new_topic(), new_name("g")
    send(producer_for(broker), topic, [b"x"])
    with consumer(broker, group) as first:
        first.subscribe([topic])
        take(first, 1)
        with (
            consumer(broker, group) as stranger,
            pytest.raises(KafkaException, match=r"UNKNOWN_MEMBER_ID|ILLEGAL_GENERATION|REBALANCE|STATE"),
        ):
            # Without joining, a commit to a group that has members is refused.
            stranger.commit(offsets=[TopicPartition(topic, 0, 1)], asynchronous=False)
        first.commit(asynchronous=False)
