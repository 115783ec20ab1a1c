"""Quotas from the client's side: librdkafka above its rates beside a client without quotas, and changes of topics."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator, Sequence

import pytest
from confluent_kafka import Consumer, Producer

from parley import Broker, Cluster
from parley.protocol.client import Client
from parley.protocol.errors import ErrorCode
from parley.protocol.messages.quotas import AlterClientQuotasRequest, DescribeClientQuotasRequest
from parley.protocol.messages.topics import (
    CreatePartitionsRequest,
    CreateTopicsRequest,
    CreateTopicsResponse,
    DeleteTopicsRequest,
)
from parley.protocol.schema import ZERO_UUID

RATE = 100_000
TOTAL = 600_000
MESSAGE = 20_000
SETTINGS = {"quota.window.num": "2", "num.partitions": "1"}
AT_LEAST_S = 0.8 * (TOTAL / RATE - 2)
"""The minimum time for the total at this rate, less the allowed burst, less 20 percent."""
WAIT_S = 60.0


async def limit(addresses: Sequence[str], client_id: str, **rates: float) -> None:
    """Set quotas of a client id, and wait until all brokers have them."""
    entity = AlterClientQuotasRequest.EntityData(entity_type="client-id", entity_name=client_id)
    ops = [AlterClientQuotasRequest.OpData(key=key, value=value, remove=False) for key, value in rates.items()]
    entry = AlterClientQuotasRequest.EntryData(entity=[entity], ops=ops)
    async with Client(addresses[0]) as client:
        response = await client.send(AlterClientQuotasRequest(entries=[entry], validate_only=False))
    assert [each.error_code for each in response.entries] == [0], response
    for address in addresses:
        async with Client(address) as client:
            while not (await client.send(DescribeClientQuotasRequest(components=[], strict=False))).entries:
                pass  # a broker that lags behind is not waited for


@pytest.fixture
def broker() -> Iterator[Broker]:
    with Broker(SETTINGS) as running:
        asyncio.run(limit([running.bootstrap_servers], "slow", producer_byte_rate=RATE, consumer_byte_rate=RATE))
        yield running


def produce(broker: Broker, client_id: str, total: int) -> tuple[float, list[float]]:
    """Produce bytes in requests of one or two messages. Returns how long it took, and the throttle times."""
    throttles: list[float] = []
    producer = Producer(
        {
            "bootstrap.servers": broker.bootstrap_servers,
            "client.id": client_id,
            "batch.size": 2 * MESSAGE,
            "max.in.flight": 1,
            "throttle_cb": lambda event: throttles.append(event.throttle_time),
        }
    )
    began = time.monotonic()
    for _ in range(total // MESSAGE):
        producer.produce("t", bytes(MESSAGE))
    assert producer.flush(WAIT_S) == 0
    return time.monotonic() - began, throttles


def consume(broker: Broker, client_id: str, total: int) -> tuple[float, list[float]]:
    """Consume bytes from the beginning. Returns how long it took, and the throttle times."""
    throttles: list[float] = []
    consumer = Consumer(
        {
            "bootstrap.servers": broker.bootstrap_servers,
            "client.id": client_id,
            "group.id": client_id,
            "auto.offset.reset": "earliest",
            "throttle_cb": lambda event: throttles.append(event.throttle_time),
        }
    )
    consumer.subscribe(["t"])
    began, left = time.monotonic(), total
    while left > 0 and time.monotonic() - began < WAIT_S:
        for message in consumer.consume(100, 0.1):
            assert message.error() is None
            left -= len(message.value() or b"")
    consumer.close()
    assert left <= 0
    return time.monotonic() - began, throttles


def test_librdkafka_produces_and_consumes_at_its_quota(broker: Broker) -> None:
    took_s, throttles = produce(broker, "slow", TOTAL)
    assert took_s >= AT_LEAST_S
    assert max(throttles, default=0.0) > 0
    _, throttles = produce(broker, "free", TOTAL)
    assert throttles == []
    took_s, throttles = consume(broker, "slow", TOTAL)
    assert took_s >= AT_LEAST_S
    assert max(throttles, default=0.0) > 0
    _, throttles = consume(broker, "free", TOTAL)
    assert throttles == []


# --- Changes of topics ---


def new(name: str) -> CreateTopicsRequest:
    topic = CreateTopicsRequest.CreatableTopic(
        name=name, num_partitions=3, replication_factor=1, assignments=[], configs=[]
    )
    return CreateTopicsRequest(topics=[topic])


async def create(address: str, client_id: str, name: str, version: int | None = None) -> CreateTopicsResponse:
    """Create a topic over a new connection, because a throttled connection would have to wait."""
    async with Client(address, client_id=client_id) as client:
        response: CreateTopicsResponse = await client.send(new(name), version=version)
    return response


async def test_every_broker_holds_a_client_to_its_quota_for_changes_of_topics() -> None:
    """The quota is for one partition in a hundred seconds, and the first change overdraws it."""
    async with Cluster(brokers=2) as cluster:
        addresses = [broker.bootstrap_servers for broker in cluster.brokers.values()]
        await limit(addresses, "busy", controller_mutation_rate=0.01)
        first, second = [await create(address, "busy", f"t{index}") for index, address in enumerate(addresses)]
        assert [topic.error_code for topic in first.topics] == [0]
        assert first.throttle_time_ms == 0
        assert [topic.error_code for topic in second.topics] == [ErrorCode.THROTTLING_QUOTA_EXCEEDED]
        assert 100_000 < second.throttle_time_ms < 300_000
        assert [topic.error_code for topic in (await create(addresses[1], "other", "t2")).topics] == [0]
        for request in (
            DeleteTopicsRequest(
                topics=[DeleteTopicsRequest.DeleteTopicState(name="t0", topic_id=ZERO_UUID)], timeout_ms=1000
            ),
            CreatePartitionsRequest(
                topics=[CreatePartitionsRequest.CreatePartitionsTopic(name="t0", count=5, assignments=None)],
                timeout_ms=1000,
                validate_only=False,
            ),
        ):
            for address in addresses:
                async with Client(address, client_id="busy") as client:
                    response = await client.send(request)
                (result,) = response.responses if isinstance(request, DeleteTopicsRequest) else response.results
                assert result.error_code == ErrorCode.THROTTLING_QUOTA_EXCEEDED
                assert response.throttle_time_ms > 0
        for index, address in enumerate(addresses):
            old = await create(address, "busy", f"old{index}", version=5)
            assert [topic.error_code for topic in old.topics] == [0], "the client would not understand a refusal"
            assert old.throttle_time_ms > 0
