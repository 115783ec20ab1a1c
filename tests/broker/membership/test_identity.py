"""The ids of the cluster and of its brokers: allocated once, or read from the data directories."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from random import Random
from typing import Any

import pytest

from parley.broker.membership.identity import NoBrokerId, identify, read_identities
from parley.consensus.backend import Backend
from parley.consensus.errors import EmptyStore
from parley.consensus.recipes.keyvalue import KeyValue
from parley.consensus.registry import create_backend
from parley.storage.meta_properties import DirectoryIdentity


@pytest.fixture
async def backend() -> AsyncIterator[Backend]:
    async with create_backend("memory:") as opened:
        yield opened


async def identity(backend: Backend, seed: int, found: Any = (), **options: Any) -> Any:
    given = {"broker_id": 1, "reserved_max": 1000, "may_generate": True, "may_begin": True, **options}
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


async def test_no_cluster_begins_in_a_store_that_has_had_one(backend: Backend) -> None:
    """The store has lost everything but its identity, as when the WAL of a young embedded store is deleted."""
    with pytest.raises(EmptyStore):
        await identity(backend, 1, may_begin=False)
    assert await KeyValue(backend).get("cluster") is None
    await identity(backend, 1)
    assert not (await identity(backend, 2, may_begin=False)).is_new
