"""librdkafka, by confluent-kafka: administration."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from concurrent.futures import Future
from typing import Any, TypeVar

import pytest
from confluent_kafka import (
    Consumer,
    ConsumerGroupState,
    ConsumerGroupTopicPartitions,
    ConsumerGroupType,
    KafkaError,
    KafkaException,
    TopicCollection,
    TopicPartition,
)
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewPartitions,
    NewTopic,
    OffsetSpec,
    ResourceType,
)

from tests.system.running import BrokerProcess
from tests.system.test_confluent_groups import consumer, shared, take, until
from tests.system.test_confluent_produce import BASE_TIMESTAMP, WAIT_SECONDS, producer_for, read, send

T = TypeVar("T")
MakeTopic = Callable[..., str]
MakeName = Callable[..., str]


def only(futures: Mapping[Any, Future[T]]) -> T:
    (future,) = futures.values()
    return future.result(WAIT_SECONDS)


def refused(futures: Mapping[Any, Future[Any]]) -> int:
    """Return the code of the error in the only response."""
    with pytest.raises(KafkaException) as caught:
        only(futures)
    code: int = caught.value.args[0].code()
    return code


def topic_resource(
    topic: str, key: str | None = None, value: str | None = None, *, delete: bool = False
) -> ConfigResource:
    how = AlterConfigOpType.DELETE if delete else AlterConfigOpType.SET
    entries = [ConfigEntry(key, value, incremental_operation=how)] if key else None
    return ConfigResource(ResourceType.TOPIC, topic, incremental_configs=entries)


def test_topics_come_grow_and_go(admin: AdminClient, new_name: MakeName) -> None:
    name = new_name()
    assert only(admin.create_topics([NewTopic(name, 2, 1)])) is None
    assert refused(admin.create_topics([NewTopic(name, 2, 1)])) == KafkaError.TOPIC_ALREADY_EXISTS
    assert refused(admin.create_topics([NewTopic(new_name(), 2, 3)])) == KafkaError.INVALID_REPLICATION_FACTOR
    assert refused(admin.create_topics([NewTopic(new_name(), 0, 1)])) in (
        KafkaError.INVALID_PARTITIONS, KafkaError._INVALID_ARG,
    )  # fmt: skip
    assert refused(admin.create_topics([NewTopic("a b", 1, 1)])) == KafkaError.TOPIC_EXCEPTION
    wrong = NewTopic(new_name(), 1, 1, config={"retention.ms": "soon"})
    assert refused(admin.create_topics([wrong])) == KafkaError.INVALID_CONFIG
    unborn = new_name()
    only(admin.create_topics([NewTopic(unborn, 2, 1)], validate_only=True))
    assert unborn not in admin.list_topics(timeout=WAIT_SECONDS).topics
    only(admin.create_partitions([NewPartitions(name, 5)]))
    assert sorted(admin.list_topics(name, timeout=WAIT_SECONDS).topics[name].partitions) == [0, 1, 2, 3, 4]
    assert refused(admin.create_partitions([NewPartitions(name, 5)])) == KafkaError.INVALID_PARTITIONS
    described = only(admin.describe_topics(TopicCollection([name])))
    assert [part.id for part in described.partitions] == [0, 1, 2, 3, 4]
    assert all(part.leader is not None and len(part.isr) == 1 for part in described.partitions)
    assert not described.is_internal
    only(admin.delete_topics([name]))
    assert refused(admin.delete_topics([name])) == KafkaError.UNKNOWN_TOPIC_OR_PART
    assert refused(admin.describe_topics(TopicCollection([name]))) == KafkaError.UNKNOWN_TOPIC_OR_PART
    only(admin.create_topics([NewTopic(name, 1, 1)]))
    again = only(admin.describe_topics(TopicCollection([name])))
    assert str(again.topic_id) != str(described.topic_id)


def test_configs(admin: AdminClient, new_topic: MakeTopic) -> None:
    topic = new_topic(**{"retention.ms": "1000"})

    def value(key: str) -> tuple[str | None, bool]:
        entry = only(admin.describe_configs([topic_resource(topic)]))[key]
        return entry.value, entry.is_default

    assert value("retention.ms") == ("1000", False)
    assert value("cleanup.policy") == ("delete", True)
    only(admin.incremental_alter_configs([topic_resource(topic, "segment.ms", "5000")]))
    only(admin.incremental_alter_configs([topic_resource(topic, "retention.ms", delete=True)]))
    assert value("segment.ms") == ("5000", False)
    assert value("retention.ms") == ("604800000", True)
    appended = ConfigEntry("cleanup.policy", "compact", incremental_operation=AlterConfigOpType.APPEND)
    only(admin.incremental_alter_configs([ConfigResource(ResourceType.TOPIC, topic, incremental_configs=[appended])]))
    assert set((value("cleanup.policy")[0] or "").split(",")) == {"delete", "compact"}
    bad = topic_resource(topic, "segment.ms", "-7")
    assert refused(admin.incremental_alter_configs([bad])) == KafkaError.INVALID_CONFIG
    missing = topic_resource("no-such-topic", "segment.ms", "7000")
    assert refused(admin.incremental_alter_configs([missing])) == KafkaError.UNKNOWN_TOPIC_OR_PART
    whole = ConfigResource(ResourceType.TOPIC, topic, set_config={"max.message.bytes": "5000"})
    only(admin.alter_configs([whole]))
    assert value("max.message.bytes") == ("5000", False)
    assert value("segment.ms") == ("604800000", True)


def test_configs_of_the_broker(admin: AdminClient) -> None:
    broker_id = str(next(iter(admin.list_topics(timeout=WAIT_SECONDS).brokers)))
    resource = ConfigResource(ResourceType.BROKER, broker_id)
    entries = only(admin.describe_configs([resource]))
    assert entries["log.dirs"].is_read_only
    assert entries["log.retention.hours"].value == "168"
    changed = ConfigEntry("message.max.bytes", "2000000", incremental_operation=AlterConfigOpType.SET)
    back = ConfigEntry("message.max.bytes", None, incremental_operation=AlterConfigOpType.DELETE)
    only(
        admin.incremental_alter_configs([ConfigResource(ResourceType.BROKER, broker_id, incremental_configs=[changed])])
    )
    assert only(admin.describe_configs([resource]))["message.max.bytes"].value == "2000000"
    only(admin.incremental_alter_configs([ConfigResource(ResourceType.BROKER, broker_id, incremental_configs=[back])]))
    assert only(admin.describe_configs([resource]))["message.max.bytes"].value == "1048588"


def test_groups(broker: BrokerProcess, admin: AdminClient, new_topic: MakeTopic, new_name: MakeName) -> None:
    topic, group = new_topic(partitions=2), new_name("g")
    send(producer_for(broker), topic, [b"x"] * 10, partition=0)
    with consumer(broker, group, client_id="reader", group_instance_id="i1") as reader:
        reader.subscribe([topic])
        take(reader, 5)
        until([reader], shared(2, 1))
        reader.commit(asynchronous=False)
        listed = admin.list_consumer_groups(states={ConsumerGroupState.STABLE}).result(WAIT_SECONDS)
        assert group in {each.group_id for each in listed.valid}
        assert all(each.type in (ConsumerGroupType.CLASSIC, ConsumerGroupType.UNKNOWN) for each in listed.valid)
        described = only(admin.describe_consumer_groups([group]))
        assert described.state == ConsumerGroupState.STABLE
        assert described.partition_assignor == "range"
        (member,) = described.members
        assert (member.client_id, member.group_instance_id) == ("reader", "i1")
        assert {part.partition for part in member.assignment.topic_partitions} == {0, 1}
        assert refused(admin.delete_consumer_groups([group])) == KafkaError.NON_EMPTY_GROUP
        moved = ConsumerGroupTopicPartitions(group, [TopicPartition(topic, 0, 1)])
        try:
            (part,) = only(admin.alter_consumer_group_offsets([moved])).topic_partitions
            error = part.error
        except KafkaException as raised:
            error = raised.args[0]
        assert error.code() == KafkaError.UNKNOWN_MEMBER_ID


def test_offsets_of_an_empty_group(
    broker: BrokerProcess, admin: AdminClient, new_topic: MakeTopic, new_name: MakeName
) -> None:
    topic, group = new_topic(), new_name("g")
    with consumer(broker, group) as reader:
        reader.commit(offsets=[TopicPartition(topic, 0, 3)], asynchronous=False)
    moved = ConsumerGroupTopicPartitions(group, [TopicPartition(topic, 0, 7)])
    only(admin.alter_consumer_group_offsets([moved]))
    found = only(admin.list_consumer_group_offsets([ConsumerGroupTopicPartitions(group)]))
    assert [(part.topic, part.partition, part.offset) for part in found.topic_partitions] == [(topic, 0, 7)]
    assert only(admin.describe_consumer_groups([group])).state == ConsumerGroupState.EMPTY
    only(admin.delete_consumer_groups([group]))
    assert refused(admin.delete_consumer_groups([group])) == KafkaError.GROUP_ID_NOT_FOUND


def test_records_are_deleted(broker: BrokerProcess, admin: AdminClient, new_topic: MakeTopic) -> None:
    topic = new_topic()
    send(producer_for(broker, batch_num_messages=3), topic, [b"%d" % number for number in range(10)])
    assert only(admin.delete_records([TopicPartition(topic, 0, 4)])).low_watermark == 4
    assert [message.value() for message in read(broker, topic, offset=4)] == [b"%d" % n for n in range(4, 10)]
    assert refused(admin.delete_records([TopicPartition(topic, 0, 99)])) == KafkaError.OFFSET_OUT_OF_RANGE
    assert only(admin.delete_records([TopicPartition(topic, 0, -1)])).low_watermark == 10
    with_reset = {"auto.offset.reset": "earliest"}
    assert read(broker, topic, config=with_reset) == []


def test_offsets_are_listed(broker: BrokerProcess, admin: AdminClient, new_topic: MakeTopic) -> None:
    topic = new_topic()
    for step in (0, 5000, 2000):
        send(producer_for(broker), topic, [b"x"] * 2, timestamp=BASE_TIMESTAMP + step)

    def offset(spec: OffsetSpec) -> tuple[int, int]:
        found = only(admin.list_offsets({TopicPartition(topic, 0): spec}))
        return found.offset, found.timestamp

    assert offset(OffsetSpec.earliest())[0] == 0
    assert offset(OffsetSpec.latest())[0] == 6
    assert offset(OffsetSpec.for_timestamp(BASE_TIMESTAMP + 1)) == (2, BASE_TIMESTAMP + 5000)
    assert offset(OffsetSpec.max_timestamp())[1] == BASE_TIMESTAMP + 5000
    assert offset(OffsetSpec.for_timestamp(BASE_TIMESTAMP + 9000))[0] == -1
    assert refused(admin.list_offsets({TopicPartition(topic, 9): OffsetSpec.latest()})) in (
        KafkaError.UNKNOWN_TOPIC_OR_PART, KafkaError._NOENT,
    )  # fmt: skip


def test_the_cluster_is_described(broker: BrokerProcess, admin: AdminClient) -> None:
    described = admin.describe_cluster(include_authorized_operations=True).result(WAIT_SECONDS)
    (node,) = described.nodes
    assert f"{node.host}:{node.port}" == broker.bootstrap_servers
    assert described.controller is not None
    assert described.controller.id == node.id
    assert described.cluster_id is not None
    assert len(described.cluster_id) == 22
    assert Consumer({"bootstrap.servers": broker.bootstrap_servers, "group.id": "x"}).list_topics(
        timeout=WAIT_SECONDS
    ).cluster_id == described.cluster_id  # fmt: skip
