"""Producer ids are given out once, by whichever broker."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from functools import partial
from random import Random
from typing import Any

import pytest

from parley.broker.coordinators.producer_ids import BLOCK, ProducerIds
from parley.consensus.backend import Backend
from parley.consensus.errors import Unavailable
from parley.consensus.recipes.keyvalue import KeyValue
from parley.consensus.registry import create_backend
from parley.protocol.errors import ErrorCode, KafkaError


@pytest.fixture
async def backend() -> AsyncIterator[Backend]:
    async with create_backend("memory:") as opened:
        yield opened


async def test_producer_ids_are_given_out_once(backend: Backend) -> None:
    givers = [ProducerIds(partial(KeyValue, backend, Random(i))) for i in range(3)]
    taken = await asyncio.gather(*(givers[i % 3].take() for i in range(3 * BLOCK + 30)))
    assert len(set(taken)) == len(taken)
    assert min(taken) == 0
    again = ProducerIds(lambda: KeyValue(backend, Random(9)))
    assert await again.take() > max(taken), "also after a restart"


async def test_no_producer_id_while_the_store_is_away(backend: Backend) -> None:
    class Away:
        async def next_id(self, *args: Any, **options: Any) -> int:
            raise Unavailable("gone")

    stores: list[Any] = [Away(), KeyValue(backend, Random(1))]
    giver = ProducerIds(lambda: stores[0])
    with pytest.raises(KafkaError) as refused:
        await giver.take()
    assert refused.value.code == ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
    assert refused.value.code.retriable
    del stores[0]
    assert await giver.take() == 0
