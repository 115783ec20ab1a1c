"""A partition that is temporarily unreadable, while other partitions of the same broker are readable."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest

from parley import Broker
from parley.pipeline.client.cluster import Connection, Isolation, TopicPartition
from parley.pipeline.client.fetching import Fetched
from parley.pipeline.connect.tasks.feed import Feed, Inbox
from parley.protocol.errors import ErrorCode
from parley.protocol.messages.fetch import FetchResponse
from tests.pipeline.connect.driving import create, produce

WAIT_S = 60.0


@pytest.fixture
def feed(connect_broker: Broker) -> Iterator[Feed]:
    feed = Feed(Connection(bootstrap=connect_broker.bootstrap_servers), Isolation.READ_UNCOMMITTED)
    yield feed
    feed.close()


def test_a_partition_that_fails_holds_up_no_other(
    connect_broker: Broker, feed: Feed, monkeypatch: pytest.MonkeyPatch
) -> None:
    create(connect_broker.bootstrap_servers, "feed", 3)
    for partition in range(3):
        produce(connect_broker.bootstrap_servers, "feed", ["a"], partition=partition)
    real = feed._hand_over
    failures: list[TopicPartition] = []
    waited: list[bool] = []

    async def hand_over(client: Any, subscription: Any, data: FetchResponse.PartitionData) -> None:
        if subscription.partition.partition < 2 and len(failures) < 4:
            failures.append(subscription.partition)
            data.error_code = ErrorCode.NOT_LEADER_OR_FOLLOWER
        step = asyncio.ensure_future(real(client, subscription, data))
        await asyncio.sleep(0)
        waited.append(not step.done())
        await step

    monkeypatch.setattr(feed, "_hand_over", hand_over)
    inbox = Inbox()
    for partition in range(3):
        feed.subscribe(TopicPartition("feed", partition), 0, inbox)
    got: list[int] = []
    while len(got) < 3:
        found = inbox.take(WAIT_S)
        assert found is not None
        assert isinstance(found[1], Fetched)
        got.append(found[0].partition.partition)
    assert sorted(got) == [0, 1, 2]
    assert len(failures) == 4
    assert not any(waited), "the tasks of all other partitions wait for one"
