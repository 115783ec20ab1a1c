"""The internal topics of workers."""

from __future__ import annotations

import asyncio

import pytest

from parley import Broker
from parley.pipeline.connect.distributed.topics import TopicPlan, prepare
from parley.pipeline.connect.errors import ConnectError
from parley.protocol.client import Client


async def prepared(bootstrap: str, replicas: int) -> int:
    async with Client(bootstrap) as client:
        return await prepare(client, TopicPlan("connect-offsets", "offset.storage.topic", 25, replicas, {}))


def test_one_broker_has_no_three_replicas_and_the_settings_are_named() -> None:
    with Broker() as broker:
        with pytest.raises(ConnectError) as refused:
            asyncio.run(prepared(broker.bootstrap_servers, 3))
        text = str(refused.value)
        assert "With one broker set config.storage.replication.factor=1, offset.storage.replication.factor=1" in text
        assert ".." not in text
        assert asyncio.run(prepared(broker.bootstrap_servers, 1)) == 25
