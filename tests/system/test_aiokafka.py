"""The Python client aiokafka: producing and consuming, groups, positions, and administration."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition
from aiokafka.admin import AIOKafkaAdminClient, NewPartitions, NewTopic
from aiokafka.admin.config_resource import ConfigResource, ConfigResourceType
from aiokafka.coordinator.assignors.roundrobin import RoundRobinPartitionAssignor
from aiokafka.coordinator.assignors.sticky.sticky_assignor import StickyPartitionAssignor
from aiokafka.errors import OffsetOutOfRangeError

from tests.system.running import BrokerProcess

WAIT_SECONDS = 60
TIMESTAMP = 1_700_000_000_000
MakeTopic = Callable[..., str]
MakeName = Callable[..., str]


@pytest.mark.parametrize("codec", [None, "gzip", "snappy", "lz4", "zstd"])
@pytest.mark.parametrize("idempotent", [False, True], ids=["plain", "idempotent"])
async def test_produce_and_consume(
    broker: BrokerProcess, new_topic: MakeTopic, codec: str | None, idempotent: bool
) -> None:
    topic = new_topic()
    values = [b"%d " % number * 20 for number in range(300)]
    async with AIOKafkaProducer(
        bootstrap_servers=broker.bootstrap_servers, compression_type=codec, enable_idempotence=idempotent, linger_ms=5
    ) as producer:
        sent = [
            await producer.send(topic, value, b"k", headers=[("h", b"x")], timestamp_ms=TIMESTAMP) for value in values
        ]
        offsets = [(await each).offset for each in sent]
    assert offsets == list(range(300))
    async with asyncio.timeout(WAIT_SECONDS):
        async with AIOKafkaConsumer(
            topic, bootstrap_servers=broker.bootstrap_servers, auto_offset_reset="earliest"
        ) as consumer:
            found = [await anext(consumer) for _ in values]
    assert [record.value for record in found] == values
    assert (found[0].key, found[0].timestamp, found[0].headers) == (b"k", TIMESTAMP, (("h", b"x"),))


@pytest.mark.parametrize("assignor", [RoundRobinPartitionAssignor, StickyPartitionAssignor])
async def test_groups(broker: BrokerProcess, new_topic: MakeTopic, new_name: MakeName, assignor: type) -> None:
    topic, group = new_topic(partitions=4), new_name("g")

    def member() -> AIOKafkaConsumer:
        return AIOKafkaConsumer(
            topic,
            bootstrap_servers=broker.bootstrap_servers,
            group_id=group,
            auto_offset_reset="earliest",
            enable_auto_commit=False,
            heartbeat_interval_ms=200,
            partition_assignment_strategy=[assignor],
        )

    async def shared(*members: AIOKafkaConsumer) -> None:
        while sorted(len(each.assignment()) for each in members) != [4 // len(members)] * len(members):
            for each in members:
                await each.getmany(timeout_ms=20)

    async with AIOKafkaProducer(bootstrap_servers=broker.bootstrap_servers) as producer:
        for number in range(8):
            await producer.send_and_wait(topic, b"%d" % number, partition=number % 4)
    async with asyncio.timeout(WAIT_SECONDS):
        async with member() as first:
            taken = [await anext(first) for _ in range(8)]
            assert sorted(record.value for record in taken) == [b"%d" % number for number in range(8)]
            await first.commit()
            async with member() as second:
                await shared(first, second)
            await shared(first)
        async with member() as later:
            assert [await later.committed(TopicPartition(topic, number)) for number in range(4)] == [2, 2, 2, 2]
            assert await later.getmany(timeout_ms=200) == {}


async def test_positions_and_times(broker: BrokerProcess, new_topic: MakeTopic) -> None:
    topic = new_topic()
    part = TopicPartition(topic, 0)
    async with AIOKafkaProducer(bootstrap_servers=broker.bootstrap_servers) as producer:
        for number in range(4):
            await producer.send_and_wait(topic, b"%d" % number, timestamp_ms=TIMESTAMP + number)
    async with (
        asyncio.timeout(WAIT_SECONDS),
        AIOKafkaConsumer(bootstrap_servers=broker.bootstrap_servers, auto_offset_reset="none") as consumer,
    ):
        consumer.assign([part])
        assert await consumer.beginning_offsets([part]) == {part: 0}
        assert await consumer.end_offsets([part]) == {part: 4}
        assert (await consumer.offsets_for_times({part: TIMESTAMP + 2}))[part].offset == 2
        consumer.seek(part, 3)
        assert (await anext(consumer)).value == b"3"
        consumer.seek(part, 77)
        with pytest.raises(OffsetOutOfRangeError):
            await consumer.getone()


async def test_administration(broker: BrokerProcess, new_name: MakeName) -> None:
    topic = new_name()
    admin = AIOKafkaAdminClient(bootstrap_servers=broker.bootstrap_servers)
    await admin.start()
    try:
        await admin.create_topics([NewTopic(topic, 2, 1, topic_configs={"retention.ms": "5000"})])
        assert topic in await admin.list_topics()
        await admin.create_partitions({topic: NewPartitions(3)})
        (described,) = await admin.describe_topics([topic])
        assert sorted(each["partition"] for each in described["partitions"]) == [0, 1, 2]
        (answer,) = await admin.describe_configs([ConfigResource(ConfigResourceType.TOPIC, topic)])
        configs = {entry[0]: entry[1] for entry in answer.resources[0][4]}
        assert configs["retention.ms"] == "5000"
        assert (await admin.describe_cluster())["brokers"]
        assert isinstance(await admin.list_consumer_groups(), list)
        await admin.delete_topics([topic])
        assert topic not in await admin.list_topics()
    finally:
        await admin.close()
