"""Metadata for clients while a broker fails."""

from __future__ import annotations

import asyncio
from dataclasses import replace

from parley.broker.api.failing_brokers import HOLD_S, LISTED_S, FailingBrokers
from parley.broker.metadata.changes import BrokerRegistered, Delta
from parley.broker.metadata.current import Metadata
from parley.broker.metadata.image import MetadataImage
from parley.broker.metadata.types import BrokerRegistration
from parley.protocol.uuids import UUID
from tests.support.virtual_time import run


class Cluster:
    """Two brokers, as a third one knows them."""

    def __init__(self) -> None:
        brokers = {i: BrokerRegistration(i, 1, UUID(int=i), ()) for i in (1, 2)}
        self.metadata = Metadata(MetadataImage("c", brokers=brokers))
        self.lost: dict[int, float] = {}
        self.failing_brokers = FailingBrokers(self.metadata, self.lost.get, lambda: True)
        self.metadata.subscribe(self.failing_brokers.apply)

    def lose(self, broker: int) -> None:
        self.lost[broker] = asyncio.get_running_loop().time()

    def change(self, broker: int, **values: object) -> None:
        image = self.metadata.image
        registration = replace(image.brokers[broker], **values)  # type: ignore[arg-type]
        self.metadata.apply(Delta(0, image.version + 1, (BrokerRegistered(registration),)))

    def listed(self) -> list[int]:
        return [broker.broker_id for broker in self.failing_brokers.listed(self.metadata.image)]


async def waited(cluster: Cluster) -> float:
    loop = asyncio.get_running_loop()
    began = loop.time()
    await cluster.failing_brokers.settled()
    return loop.time() - began


def test_nothing_waits_while_all_is_well() -> None:
    async def story() -> None:
        cluster = Cluster()
        assert await waited(cluster) == 0
        cluster.lose(1)
        await asyncio.sleep(HOLD_S)
        assert await waited(cluster) == 0

    run(story())


def test_a_question_waits_for_the_decision() -> None:
    async def story() -> None:
        cluster = Cluster()
        cluster.lose(1)
        asyncio.get_running_loop().call_later(0.1, lambda: cluster.change(1, fenced=True))
        assert round(await waited(cluster), 3) == 0.1
        assert await waited(cluster) == 0
        cluster.lose(2)
        asyncio.get_running_loop().call_later(0.2, lambda: cluster.change(2, epoch=2))
        assert round(await waited(cluster), 3) == 0.2

    run(story())


def test_but_not_for_ever() -> None:
    async def story() -> None:
        cluster = Cluster()
        cluster.lose(1)
        assert await waited(cluster) == HOLD_S

    run(story())


def test_a_broker_that_was_fenced_is_listed_for_a_while() -> None:
    async def story() -> None:
        cluster = Cluster()
        cluster.change(1, fenced=True)
        assert cluster.listed() == [1, 2]
        await asyncio.sleep(LISTED_S + 0.1)
        assert cluster.listed() == [2]
        cluster.change(1, fenced=False, epoch=2)
        assert cluster.listed() == [1, 2]

    run(story())
