"""The garbage collector does not examine the objects of thousands of partitions again and again."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Iterator

import pytest

from parley.broker.metadata.changes import Delta, PartitionChanged, PartitionsAdded, TopicCreated
from parley.broker.metadata.image import MetadataImage
from parley.broker.metadata.types import PartitionState, TopicImage
from parley.broker.runtime.long_lived_objects import PARTITIONS_MIN, LongLivedObjects
from parley.protocol.uuids import UUID
from tests.support.virtual_time import run

STATE = PartitionState((1,), (1,), 1)
IMAGE = MetadataImage("")


def created(partitions: int) -> Delta:
    return Delta(1, 1, (TopicCreated(TopicImage("t", UUID(int=1), (STATE,) * partitions)),))


@pytest.fixture
def frozen(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """What was done to the objects of the process. Nothing is really done to those of the tests."""
    done: list[str] = []
    monkeypatch.setattr(gc, "freeze", lambda: done.append("freeze"))
    monkeypatch.setattr(gc, "unfreeze", lambda: done.append("unfreeze"))
    was_enabled = gc.isenabled()
    gc.enable()
    yield done
    if not was_enabled:
        gc.disable()


async def live(long_lived: LongLivedObjects, *deltas: Delta) -> None:
    for delta in deltas:
        long_lived.apply(delta, IMAGE)
        await asyncio.sleep(10)
    long_lived.close()


@pytest.mark.parametrize("owns_process", [True, False])
def test_thousands_of_new_partitions_become_permanent_until_an_embedded_broker_stops(
    frozen: list[str], owns_process: bool
) -> None:
    many = created(PARTITIONS_MIN)
    run(live(LongLivedObjects(owns_process=owns_process), created(PARTITIONS_MIN - 1), created(1), created(1), many))
    assert frozen == ["freeze", "freeze"] + ([] if owns_process else ["unfreeze"])


def test_a_small_broker_leaves_the_garbage_collector_alone(frozen: list[str]) -> None:
    run(live(LongLivedObjects(owns_process=False), created(PARTITIONS_MIN - 1)))
    assert frozen == []


def test_a_program_that_collects_no_garbage_is_left_alone(frozen: list[str]) -> None:
    gc.disable()
    run(live(LongLivedObjects(owns_process=False), created(PARTITIONS_MIN)))
    assert frozen == []


def test_a_delta_counts_partitions_that_are_created_or_change() -> None:
    changes = (*created(3).changes, PartitionsAdded("t", (STATE, STATE)), PartitionChanged("t", 0, STATE))
    assert Delta(1, 1, changes).partitions == 6
