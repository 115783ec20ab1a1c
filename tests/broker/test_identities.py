"""Ids that are given out once: of the cluster, of brokers, of producers."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from functools import partial
from pathlib import Path
from random import Random
from typing import Any

import pytest

from parley.broker.coordinators.producer_ids import BLOCK, ProducerIds
from parley.broker.membership.identity import (
    STORE_FILE,
    NoBrokerId,
    identify,
    read_identities,
    read_stores,
    remember_store,
)
from parley.consensus.backend import Backend
from parley.consensus.errors import Unavailable
from parley.consensus.recipes.keyvalue import KeyValue
from parley.consensus.registry import create_backend
from parley.protocol.errors import ErrorCode, KafkaError
from parley.storage.meta_properties import DirectoryIdentity


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


async def identity(backend: Backend, seed: int, found: Any = (), **options: Any) -> Any:
    given = {"broker_id": 1, "reserved_max": 1000, "may_generate": True, **options}
    return await identify(KeyValue(backend, Random(seed)), found, rng=Random(seed), **given)


async def test_the_first_broker_names_the_cluster(backend: Backend) -> None:
    first, *others = await asyncio.gather(*(identity(backend, seed) for seed in range(5)))
    everybody = [first, *others]
    assert len({each.cluster_id for each in everybody}) == 1
    assert [each.is_new for each in everybody].count(True) == 1
    assert len(first.cluster_id) == 22


async def test_a_data_directory_from_elsewhere_names_the_cluster(backend: Backend, tmp_path: Path) -> None:
    DirectoryIdentity("its-own-cluster-id-222", 5).write(tmp_path)
    found = read_identities([tmp_path / "missing", tmp_path])
    settled = await identity(backend, 1, found, broker_id=-1)
    assert (settled.cluster_id, settled.broker_id, settled.is_new) == ("its-own-cluster-id-222", 5, True)


async def test_broker_ids_are_generated_above_those_reserved(backend: Backend) -> None:
    ids = [(await identity(backend, seed, broker_id=-1, reserved_max=50)).broker_id for seed in range(3)]
    assert ids == [51, 52, 53]
    with pytest.raises(NoBrokerId):
        await identity(backend, 9, broker_id=-1, may_generate=False)


def test_directories_remember_every_store_they_have_belonged_to(tmp_path: Path) -> None:
    first, second = tmp_path / "first", tmp_path / "second"
    first.mkdir()
    second.mkdir()
    assert read_stores([first, second, tmp_path / "missing"]) == []
    remember_store([first, second], "a")
    remember_store([second], "b")  # the first one was away
    assert read_stores([first, second]) == ["b", "a"]
    remember_store([first, second], "b")
    assert (first / STORE_FILE).read_text() == "b\na\n"
    remember_store([first, second], "a")
    assert read_stores([first]) == ["a", "b"]
    remember_store([first, tmp_path / "missing"], "c")
    assert not (tmp_path / "missing").exists()
