"""What a controller writes, and in which order, if its coordination store was set back."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from random import Random
from typing import Any

import pytest

from parley.broker.controller.controller import Controller
from parley.broker.controller.decision import Decision
from parley.broker.controller.elections.election_rules import ElectionRules
from parley.broker.controller.elections.unclean_recovery import UncleanRecovery
from parley.broker.controller.metadata_publisher import MetadataPublisher
from parley.broker.controller.stored_metadata import TERMS
from parley.broker.membership.store_set_back import StoreSetBack
from parley.broker.metadata.changes import Change, ConfigReplaced, TopicCreated
from parley.broker.metadata.current import Metadata
from parley.broker.metadata.image import MetadataImage
from parley.broker.metadata.terms import Term, contradicts, terms_from_bytes, terms_to_bytes
from parley.broker.metadata.types import (
    NO_LEADER,
    BrokerRegistration,
    ConfigResource,
    PartitionState,
    ResourceType,
    TopicImage,
)
from parley.broker.runtime.purgatory import Purgatory
from parley.consensus.memory import MemoryBackend, MemoryStore
from parley.consensus.recipes.elections import Elections
from parley.consensus.recipes.keyvalue import KeyValue
from parley.protocol.uuids import UUID

SEEN = Term(5, 2, 41)
MEMBER = BrokerRegistration(2, 1, UUID(int=2), (), seen=SEEN, seen_leader_epoch=11)


def changing(change: Change) -> Any:
    return lambda image: Decision((change,), None)


def counted(number: str) -> Any:
    return changing(ConfigReplaced(ConfigResource(ResourceType.TOPIC, "t"), {"count": number}))


async def test_the_store_keeps_the_sign_until_the_partitions_have_been_distrusted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Another change is committed in between. If the term ended then, the next controller would need the sign."""
    metadata = Metadata(replace(MetadataImage("c"), controller_epoch=SEEN.epoch))  # so the epoch is higher
    async with MemoryBackend(MemoryStore()) as backend:
        store = KeyValue(backend)
        await store.put(TERMS, terms_to_bytes([Term(5, 2, 40)]))  # the broker has seen one version more
        elections = Elections(backend, await backend.open_session(60_000), Random(1))
        controller = Controller(1, b"one", Random(1), metadata, MetadataPublisher(metadata, Purgatory()))
        term = asyncio.ensure_future(controller.run(elections, asyncio.Event().wait))  # type: ignore[arg-type]
        assert await metadata.until(lambda image: image.controller_id == 1, None)
        await controller.submit(changing(TopicCreated(TopicImage("t", UUID(int=9), (PartitionState((1,), (1,), 1),)))))

        async def is_contradicted() -> bool:
            stored = await store.get(TERMS)
            return stored is not None and contradicts(terms_from_bytes(stored.value), SEEN)

        async def next_id(self: KeyValue, key: str, block: int) -> int:
            await controller.submit(counted("1"))
            assert await is_contradicted()
            return 0

        monkeypatch.setattr(KeyValue, "next_id", next_id)
        metrics = UncleanRecovery(metadata, None, lambda *_: ElectionRules()).metrics  # type: ignore[arg-type]
        set_back = StoreSetBack(controller, metrics)
        await set_back.check_members([MEMBER])
        (state,) = metadata.image.topics["t"].partitions
        assert (state.leader, state.leader_epoch) == (NO_LEADER, 12)
        assert metrics.set_backs == 1
        await controller.submit(counted("2"))
        assert not await is_contradicted()
        await set_back.check_members([MEMBER])
        assert metrics.set_backs == 1
        term.cancel()
        await asyncio.wait({term})
