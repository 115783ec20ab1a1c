"""Requests to a controller that is replaced before it responds."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

import pytest

from parley.broker.config import BrokerConfig
from parley.broker.metadata.changes import ControllerElected, Delta
from parley.broker.metadata.current import Metadata
from parley.broker.metadata.image import MetadataImage
from parley.broker.network import peers
from parley.broker.network.peers import Peers
from parley.broker.security.inter_broker_security import InterBrokerSecurity
from parley.protocol.errors import ErrorCode, KafkaError
from parley.protocol.messages.replication import AlterPartitionRequest

REQUEST = AlterPartitionRequest(broker_id=3, broker_epoch=1, topics=[])


class Frozen(Peers):
    """Brokers that accept requests and never respond, unless ``last_word`` is set."""

    def __init__(self, metadata: Metadata) -> None:
        security = InterBrokerSecurity(lambda: BrokerConfig.from_properties({}))
        super().__init__(3, metadata, "PLAINTEXT", security, timeout_s=3600.0, connect_timeout_s=3600.0)
        self.asked = asyncio.Event()
        self.last_word: asyncio.Future[str] = asyncio.get_running_loop().create_future()

    async def ask(self, broker_id: int, *_: Any, **__: Any) -> Any:
        self.asked.set()
        return await self.last_word


def metadata_of(controller: int, epoch: int) -> Metadata:
    return Metadata(replace(MetadataImage("c"), controller_id=controller, controller_epoch=epoch))


async def test_a_replaced_controller_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(peers, "LAST_WORD_S", 0.01)
    metadata = metadata_of(1, 4)
    frozen = Frozen(metadata)
    asking = asyncio.ensure_future(frozen.ask_controller(REQUEST))
    await frozen.asked.wait()
    metadata.apply(Delta(5, 1, (ControllerElected(2, 5),)))
    with pytest.raises(KafkaError) as refused:
        await asking
    assert refused.value.code is ErrorCode.NOT_CONTROLLER


async def test_the_last_word_of_a_replaced_controller_counts() -> None:
    metadata = metadata_of(1, 4)
    frozen = Frozen(metadata)
    asking = asyncio.ensure_future(frozen.ask_controller(REQUEST))
    await frozen.asked.wait()
    metadata.apply(Delta(5, 1, (ControllerElected(2, 5),)))
    await asyncio.sleep(0)
    frozen.last_word.set_result("done")
    assert await asking == "done"
