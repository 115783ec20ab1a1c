"""Each producer id is allocated only once, whichever broker allocates it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from functools import partial
from pathlib import Path
from random import Random
from typing import Any

import pytest

from parley.broker.coordinators.producer_ids import (
    BLOCK,
    LOGGED_IDS_END,
    PRODUCER_IDS,
    ProducerIds,
    highest_producer_id,
)
from parley.broker.membership.remembered_epochs import ID_MAX, EpochFile, RememberedEpochs, read_remembered_epochs
from parley.consensus.backend import Backend
from parley.consensus.errors import Unavailable
from parley.consensus.recipes.keyvalue import KeyValue
from parley.consensus.registry import create_backend
from parley.protocol.errors import ErrorCode, KafkaError
from tests.storage.logs import append, open_log


@pytest.fixture
async def backend() -> AsyncIterator[Backend]:
    async with create_backend("memory:") as opened:
        yield opened


def epochs(*directories: Path) -> EpochFile:
    return EpochFile(directories, RememberedEpochs())


async def test_producer_ids_are_given_out_once(backend: Backend) -> None:
    givers = [ProducerIds(partial(KeyValue, backend, Random(i)), epochs()) for i in range(3)]
    taken = await asyncio.gather(*(givers[i % 3].take() for i in range(3 * BLOCK + 30)))
    assert len(set(taken)) == len(taken)
    assert min(taken) == 0
    again = ProducerIds(lambda: KeyValue(backend, Random(9)), epochs())
    assert await again.take() > max(taken), "also after a restart"


async def test_no_producer_id_while_the_store_is_away(backend: Backend) -> None:
    class Away:
        async def next_id(self, *args: Any, **options: Any) -> int:
            raise Unavailable("gone")

    stores: list[Any] = [Away(), KeyValue(backend, Random(1))]
    giver = ProducerIds(lambda: stores[0], epochs())
    with pytest.raises(KafkaError) as refused:
        await giver.take()
    assert refused.value.code == ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
    assert refused.value.code.retriable
    del stores[0]
    assert await giver.take() == 0


async def test_a_block_is_on_the_brokers_disk_before_its_first_id_is_allocated(
    backend: Backend, tmp_path: Path
) -> None:
    """A store that is rolled back to an older state later would give the block out again."""
    store = KeyValue(backend, Random(1))
    assert await ProducerIds(lambda: store, epochs(tmp_path)).take() == 0
    assert read_remembered_epochs([tmp_path]).producer_ids_end == BLOCK
    await store.put(PRODUCER_IDS, b"0")
    assert await store.reserve_below(PRODUCER_IDS, BLOCK) == 0
    assert await ProducerIds(lambda: store, epochs()).take() == BLOCK
    assert await store.reserve_below(PRODUCER_IDS, BLOCK) is None, "it is above that already"


async def test_no_producer_id_while_no_directory_takes_the_note_of_it(backend: Backend, tmp_path: Path) -> None:
    giver = ProducerIds(lambda: KeyValue(backend, Random(1)), epochs(tmp_path / "folder"))
    with pytest.raises(KafkaError) as refused:
        await giver.take()
    assert refused.value.code == ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
    (tmp_path / "folder").mkdir()
    assert await giver.take() == BLOCK


@pytest.mark.parametrize("forged", [LOGGED_IDS_END, ID_MAX, (1 << 63) - 2])
def test_an_id_that_no_broker_can_have_allocated_does_not_use_up_the_ids(tmp_path: Path, forged: int) -> None:
    """A client may put any id into its batches."""
    log = open_log(tmp_path)
    for producer_id in (3, forged, 5):
        append(log, b"x", producer_id=producer_id, producer_epoch=0, base_sequence=0)
    assert highest_producer_id([log]) == 5
    log.close()


async def test_a_counter_above_all_ids_is_refused_and_not_noted(backend: Backend, tmp_path: Path) -> None:
    store = KeyValue(backend, Random(1))
    await store.put(PRODUCER_IDS, b"%d" % (ID_MAX + 1 - BLOCK))
    with pytest.raises(KafkaError, match="Set it to one more than") as refused:
        await ProducerIds(lambda: store, epochs(tmp_path)).take()
    assert refused.value.code is ErrorCode.UNKNOWN_SERVER_ERROR
    assert read_remembered_epochs([tmp_path]) == RememberedEpochs()
