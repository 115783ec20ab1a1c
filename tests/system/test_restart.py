"""Stopping, killing and restarting a broker, and conditions under which it refuses to start."""

from __future__ import annotations

import shutil
import subprocess
import threading
from collections.abc import Callable
from itertools import count

import pytest
from confluent_kafka import KafkaError, Message, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, ConfigResource, NewTopic, ResourceType

from tests.system.clusters import until_served
from tests.system.running import BrokerProcess
from tests.system.test_confluent_groups import consumer, take
from tests.system.test_confluent_produce import WAIT_SECONDS, producer_for, read, send
from tests.system.test_lost_disks import LOSS

NewBroker = Callable[..., BrokerProcess]


def _admin(broker: BrokerProcess) -> AdminClient:
    return AdminClient({"bootstrap.servers": broker.bootstrap_servers, "log_level": 0})


def _state(broker: BrokerProcess) -> dict[str, object]:
    """Return what must be the same before and after."""
    admin = _admin(broker)
    metadata = admin.list_topics(timeout=WAIT_SECONDS)
    configs = {}
    for topic in ("kept", "other"):
        (future,) = admin.describe_configs([ConfigResource(ResourceType.TOPIC, topic)]).values()
        configs[topic] = {name: entry.value for name, entry in future.result(WAIT_SECONDS).items()}

    def state_of_group() -> str:
        (group,) = admin.describe_consumer_groups(["readers"]).values()
        return str(group.result(WAIT_SECONDS).state)

    with consumer(broker, "readers") as reader:
        asked = [TopicPartition("kept", number) for number in (0, 1)]
        committed = until_served(lambda: reader.committed(asked, timeout=WAIT_SECONDS))
    return {
        "cluster": metadata.cluster_id,
        "brokers": list(metadata.brokers),
        "topics": {name: sorted(topic.partitions) for name, topic in metadata.topics.items()},
        "configs": configs,
        "group": until_served(state_of_group),
        "committed": [(part.partition, part.offset, part.metadata) for part in committed],
        "records": [
            [
                (message.offset(), message.key(), message.value(), message.timestamp())
                for message in read(broker, topic, partition=partition, offset=offset)
            ]
            for topic, partition, offset in (("kept", 0, 100), ("other", 0, 0))
        ],
    }


def _fill(broker: BrokerProcess) -> None:
    admin = _admin(broker)
    topics = [NewTopic("kept", 2, 1, config={"retention.ms": "99000000"}), NewTopic("other", 1, 1)]
    for future in admin.create_topics(topics).values():
        future.result(WAIT_SECONDS)
    producer = producer_for(broker, compression_type="lz4")
    send(producer, "kept", [b"%d" % number for number in range(500)], key=b"k", partition=0)
    send(producer, "other", [b"%d" % number for number in range(50)])
    (deleted,) = admin.delete_records([TopicPartition("kept", 0, 100)]).values()
    deleted.result(WAIT_SECONDS)
    with consumer(broker, "readers") as reader:
        parts = [TopicPartition("kept", 0, 123, metadata="here"), TopicPartition("kept", 1, 0)]
        reader.commit(offsets=parts, asynchronous=False)


@pytest.mark.parametrize("how", ["stop", "kill"])
def test_everything_is_there_again(new_broker: NewBroker, how: str) -> None:
    broker = new_broker()
    broker.start()
    _fill(broker)
    before = _state(broker)
    for _ in range(2):
        code = getattr(broker, how)()
        assert code == (0 if how == "stop" else -9)
        broker.start()
        assert _state(broker) == before
    with consumer(broker, "readers") as reader:
        reader.subscribe(["kept"])
        assert take(reader, 1)[0].offset() == 123
    send(producer_for(broker), "kept", [b"more"], partition=0)
    assert read(broker, "kept", offset=500)[0].value() == b"more"


def test_a_stop_does_not_wait_for_idle_consumers(new_broker: NewBroker) -> None:
    broker = new_broker()
    broker.start()
    send(producer_for(broker), "t", [b"x"])
    with consumer(broker, "g", fetch_wait_max_ms=50_000, socket_timeout_ms=60_000) as reader:
        reader.subscribe(["t"])
        take(reader, 1)
        assert broker.stop() == 0


@pytest.mark.slow
def test_nothing_acknowledged_is_lost_or_doubled_by_kills(new_broker: NewBroker) -> None:
    broker = new_broker()
    broker.start()
    admin = _admin(broker)
    (created,) = admin.create_topics([NewTopic("t", 3, 1)]).values()
    created.result(WAIT_SECONDS)
    acknowledged: dict[int, list[tuple[int, bytes]]] = {0: [], 1: [], 2: []}
    failed: list[KafkaError] = []
    stop = threading.Event()

    def delivered(error: KafkaError | None, message: Message) -> None:
        if error is not None:
            failed.append(error)
        else:
            partition, offset, value = message.partition(), message.offset(), message.value()
            assert partition is not None
            assert offset is not None
            assert value is not None
            acknowledged[partition].append((offset, value))

    def produce() -> None:
        settings = {"enable.idempotence": True, "linger.ms": 1, "batch.num.messages": 50, "log_level": 0}
        backoff = {"reconnect.backoff.ms": 20, "reconnect.backoff.max.ms": 100, "retry.backoff.ms": 20}
        producer = Producer({"bootstrap.servers": broker.bootstrap_servers, **settings, **backoff})
        for number in count():
            if stop.is_set():
                break
            while len(producer) > 5000:
                producer.poll(0.01)
            producer.produce("t", b"%d" % number, partition=number % 3, on_delivery=delivered)
        assert producer.flush(WAIT_SECONDS) == 0

    producing = threading.Thread(target=produce)
    producing.start()
    for _ in range(5):
        goal = sum(map(len, acknowledged.values())) + 2000
        while sum(map(len, acknowledged.values())) < goal:
            assert producing.is_alive()
            stop.wait(0.01)
        broker.kill()
        broker.start()
    stop.set()
    producing.join()
    assert not failed, failed[0]
    for partition, sent in acknowledged.items():
        found = [(message.offset(), message.value()) for message in read(broker, "t", partition=partition)]
        assert found == sorted(sent)
        numbers = [int(value) for _, value in found]  # type: ignore[arg-type]
        assert numbers == list(range(partition, 3 * len(numbers) + partition, 3))


def _refusal(broker: BrokerProcess) -> str:
    """Return the error of a broker that refuses to start."""
    done = subprocess.run(broker.command(), capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 1, done
    assert "Traceback" not in done.stderr
    (line,) = [line for line in done.stderr.splitlines() if line.startswith("Error: ")]
    return line


def test_a_data_folder_has_one_broker(new_broker: NewBroker) -> None:
    first, second = new_broker(), new_broker()
    first.start()
    second.overrides["log.dirs"] = str(first.data)
    assert str(first.data) in _refusal(second)
    assert _admin(first).list_topics(timeout=WAIT_SECONDS)


def test_an_address_has_one_broker(new_broker: NewBroker) -> None:
    first, second = new_broker(), new_broker()
    first.start()
    second.overrides["listeners"] = first.overrides["listeners"]
    message = _refusal(second)
    assert str(first.port) in message
    assert "--override listeners=" in message


@pytest.mark.parametrize(
    ("key", "value", "hint"),
    [
        ("num.partitions", "many", "num.partitions"),
        ("log.segment.bytes", "-1", "log.segment.bytes"),
        ("listeners", "PLAINTEXT//nowhere", "listeners"),
        ("coordination.url", "gopher://x", "gopher"),
        ("log.cleanup.policy", "burn", "burn"),
    ],
)
def test_wrong_settings_are_named(new_broker: NewBroker, key: str, value: str, hint: str) -> None:
    broker = new_broker(**{key: value})
    assert hint in _refusal(broker)
    assert not broker.data.exists() or not any(broker.data.iterdir()) or key == "coordination.url"


@pytest.mark.parametrize("is_lost", [False, True])
def test_a_kill_right_after_the_creation_of_a_topic(new_broker: NewBroker, is_lost: bool) -> None:
    """No checkpoint lists the logs yet. If they are unused, nothing is lost; if a log was used, its directory is."""
    broker = new_broker()
    broker.start()
    admin = _admin(broker)
    for future in admin.create_topics([NewTopic("new", 3, 1)]).values():
        future.result(WAIT_SECONDS)
    if is_lost:
        send(producer_for(broker), "new", [b"lost"], partition=0)
    broker.kill()
    if is_lost:
        shutil.rmtree(broker.data / "new-0")
    started = broker.log_size()
    broker.start()
    for partition in range(3):
        send(producer_for(broker), "new", [b"kept"], partition=partition)
        assert [each.value() for each in read(broker, "new", partition=partition)] == [b"kept"]
    losses = [line for line in broker.log(started).splitlines() if LOSS in line]
    assert len(losses) == is_lost
