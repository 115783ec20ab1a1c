"""The coordination store is restored to an older state than the brokers know."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from itertools import count

import pytest

from parley import Cluster
from parley.broker.coordinators.producer_ids import BLOCK
from parley.consensus.backend import Backend, Delete, Entry, Put
from parley.consensus.registry import create_backend
from parley.consensus.store_copy import everything
from parley.protocol.client import Client
from parley.protocol.messages.producers import InitProducerIdRequest

_names = count()
SETTINGS = {"coordination.session.timeout.ms": "2000", "replica.lag.time.max.ms": "2000"}
PATIENCE_S = 30


@pytest.fixture
def url() -> str:
    return f"memory://restored-{next(_names)}"


@pytest.fixture
async def store(url: str) -> AsyncIterator[Backend]:
    async with create_backend(url) as backend:
        yield backend


async def backup(store: Backend) -> list[Entry]:
    """Everything that lasts in the store, as a snapshot of the store's server has it."""
    return [entry for entry in await everything(store) if entry.session is None]


async def set_back(store: Backend, old: list[Entry]) -> None:
    """Put the store back to the state of the backup, without its sessions."""
    ops = [Delete(entry.key) for entry in await everything(store)]
    for part in store.capabilities.parts(ops):
        await store.txn((), part)
    for part in store.capabilities.parts([Put(entry.key, entry.value) for entry in old]):
        await store.txn((), part)


async def kill_all(cluster: Cluster) -> None:
    for broker_id in cluster.brokers:
        await cluster.kill(broker_id)


async def start(cluster: Cluster, *broker_ids: int) -> None:
    """Start the brokers at the same time, and wait until each of them is in the cluster."""
    async with asyncio.timeout(PATIENCE_S):
        await asyncio.gather(*(cluster.restart(broker_id) for broker_id in broker_ids))


def running(cluster: Cluster) -> list[int]:
    return [broker_id for broker_id, broker in cluster.brokers.items() if broker.is_running]


async def next_controller(cluster: Cluster, epoch: int) -> int:
    """Wait until every running broker knows a controller above this epoch. Returns its epoch."""
    for broker_id in running(cluster):
        metadata = cluster.brokers[broker_id].server.metadata
        assert await metadata.until(
            lambda image: image.controller_epoch > epoch and image.controller_id > 0, PATIENCE_S
        )
    return max(cluster.brokers[each].server.metadata.image.controller_epoch for each in running(cluster))


def controller_of(cluster: Cluster, broker_id: int) -> int:
    """Return the controller that this broker knows."""
    return cluster.brokers[broker_id].server.metadata.image.controller_id


async def producer_id(cluster: Cluster, broker_id: int) -> int:
    async with Client(cluster.brokers[broker_id].bootstrap_servers) as client:
        answer = await client.send(InitProducerIdRequest(transactional_id=None, transaction_timeout_ms=0))
    assert answer.error_code == 0
    return int(answer.producer_id)


async def test_epochs_and_ids_go_on_above_all_that_the_brokers_have_seen(url: str, store: Backend) -> None:
    async with Cluster(SETTINGS, brokers=3, coordination_url=url) as cluster:
        given = [await producer_id(cluster, broker_id) for broker_id in (1, 2, 3)]
        old = await backup(store)
        epoch = await next_controller(cluster, 0)
        for _ in range(3):
            controller = controller_of(cluster, running(cluster)[0])
            await cluster.kill(controller)
            epoch = await next_controller(cluster, epoch)
            await start(cluster, controller)
            given.append(await producer_id(cluster, controller))
        before = dict(cluster.brokers[1].server.metadata.image.brokers)
        await kill_all(cluster)
        await set_back(store, old)
        await start(cluster, 1, 2, 3)
        assert await next_controller(cluster, epoch) > epoch
        after = cluster.brokers[1].server.metadata.image.brokers
        assert all(after[broker_id].epoch > before[broker_id].epoch for broker_id in (1, 2, 3))
        again = [await producer_id(cluster, broker_id) for broker_id in (1, 2, 3)]
        assert min(again) >= max(given) // BLOCK * BLOCK + BLOCK, "above every block that was taken before"


async def test_a_controller_that_missed_the_latest_terms_takes_an_epoch_above_them(url: str, store: Backend) -> None:
    """The first broker that starts was down since before the backup. It takes office, and learns of the terms later."""
    async with Cluster(SETTINGS, brokers=3, coordination_url=url) as cluster:
        epoch, controller = await next_controller(cluster, 0), controller_of(cluster, 1)
        stale, *others = sorted(cluster.brokers, key=lambda broker_id: broker_id == controller)
        await cluster.kill(stale)
        old = await backup(store)
        for _ in range(2):
            controller = controller_of(cluster, others[0])
            await cluster.kill(controller)
            epoch = await next_controller(cluster, epoch)
            await start(cluster, controller)
        await kill_all(cluster)
        await set_back(store, old)
        await start(cluster, stale)
        assert cluster.brokers[stale].server.metadata.image.controller_epoch <= epoch
        await start(cluster, *others)
        assert await next_controller(cluster, epoch) > epoch
