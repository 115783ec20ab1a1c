"""The console with Apache Kafka 4: everything except the coordination store."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest
from confluent_kafka import Consumer, TopicPartition

from parley.tools.console.settings import ConsoleSettings
from tests.support.kafka import Kafka4
from tests.tools.console.conftest import browsing

pytestmark = [pytest.mark.system, pytest.mark.timeout(300)]


@pytest.fixture
def kafka(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Kafka4]:
    running = Kafka4(tmp_path_factory.mktemp("kafka"))
    yield running
    running.close()


async def test_a_cluster_of_apache_kafka(kafka: Kafka4) -> None:
    async with browsing(ConsoleSettings(kafka.bootstrap_servers)) as browser:
        await browser.change("POST", "topics", {"name": "orders", "partitions": 2, "replicas": 1, "configs": {}})
        for number in range(3):
            body = {"value": f'{{"n": {number}}}', "partition": 1}
            assert await browser.change("POST", "topics/orders/messages", body) == {"partition": 1, "offset": number}
        found = await browser.get("topics/orders/messages", filter="value.n > 1")
        assert [(one["partition"], one["offset"]) for one in found["records"]] == [(1, 2)]
        consumer = Consumer({"bootstrap.servers": kafka.bootstrap_servers, "group.id": "billing"})
        committed = [TopicPartition("orders", 1, 1)]
        await asyncio.to_thread(consumer.commit, offsets=committed, asynchronous=False)
        await asyncio.to_thread(consumer.close)
        assert [one["lag"] for one in (await browser.get("groups/billing/detail"))["offsets"]] == [2]
        body = {"target": "to_latest", "execute": True}
        await browser.change("POST", "groups/billing/reset", body)
        assert [one["lag"] for one in (await browser.get("groups/billing/detail"))["offsets"]] == [0]
        overview = await browser.get("overview")
        assert [one["level"] for one in overview["health"]] == ["good"]
        assert overview["brokers"][0]["alive"]
        settings = {one["name"]: one for one in (await browser.get("configs/topic/orders"))["settings"]}
        assert settings["retention.ms"]["documentation"]
        for path in ("users", "quotas", "features", "log-dirs", "work", "transactions", "configs/broker/1"):
            await browser.get(path)
        assert (await browser.get("work"))["brokers"] is None
        assert (await browser.get("coordination"))["isParley"] is False
        assert (await browser.client.get("/api/coordination/tree")).status_code == 404
        assert (await browser.client.get("/api/acls")).json()["hasAuthorizer"] is False
