"""What a controller writes, and in which order, if its coordination store was rolled back."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Collection
from contextlib import asynccontextmanager
from dataclasses import replace
from random import Random
from typing import Any

import pytest

from parley.broker.controller.controller import Controller, StoreChanged
from parley.broker.controller.decision import Decision
from parley.broker.controller.elections.election_rules import ElectionRules
from parley.broker.controller.elections.unclean_recovery import UncleanRecovery
from parley.broker.controller.metadata_publisher import MetadataPublisher
from parley.broker.controller.stored_metadata import TERMS
from parley.broker.membership.store_rollback import StoreRollback
from parley.broker.metadata.changes import Change, ConfigReplaced, Delta, TopicCreated
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
from parley.consensus.errors import MaybeApplied
from parley.consensus.memory import MemoryBackend, MemoryStore
from parley.consensus.recipes.elections import Elections
from parley.consensus.recipes.keyvalue import KeyValue
from parley.consensus.store_move.store_record import ROLLED_BACK_KEY
from parley.protocol.errors import KafkaError
from parley.protocol.uuids import UUID

PATIENCE_S = 20
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
        recovery = UncleanRecovery(metadata, None, lambda *_: ElectionRules())  # type: ignore[arg-type]
        rollback = StoreRollback(controller, lambda *_: ElectionRules(2), recovery)
        await rollback.check_members([MEMBER])
        (state,) = metadata.image.topics["t"].partitions
        assert (state.leader, state.leader_epoch) == (NO_LEADER, 12)
        assert recovery.metrics.set_backs == 1
        await controller.submit(counted("2"))
        assert not await is_contradicted()
        await rollback.check_members([MEMBER])
        assert recovery.metrics.set_backs == 1
        term.cancel()
        await asyncio.wait({term})


class Office:
    """A broker that ran before its term: it has a topic whose third replica is out of the ISR."""

    def __init__(self, backend: MemoryBackend) -> None:
        state = PartitionState((1, 2, 3), (1, 2), 1)
        image = MetadataImage("c", controller_id=2, controller_epoch=5, version=41)
        self.metadata = Metadata(image.with_changes([TopicCreated(TopicImage("t", UUID(int=9), (state,)))]))
        self.backend, self.store = backend, KeyValue(backend)
        self.controller = Controller(1, b"one", Random(1), self.metadata, MetadataPublisher(self.metadata, Purgatory()))
        recovery = UncleanRecovery(self.metadata, None, lambda *_: ElectionRules())  # type: ignore[arg-type]
        self.rollback = StoreRollback(self.controller, lambda *_: ElectionRules(2), recovery)

    @asynccontextmanager
    async def held(self, run_duties: Any = None) -> AsyncIterator[None]:
        """Campaign, and wait for the first term."""
        elections = Elections(self.backend, await self.backend.open_session(60_000), Random(1))
        serving = asyncio.ensure_future(self.controller.run(elections, run_duties or asyncio.Event().wait))  # type: ignore[arg-type]
        await self.term_above(5)
        yield
        serving.cancel()
        await asyncio.wait({serving})

    async def term_above(self, epoch: int) -> int:
        held = self.metadata.until(
            lambda image: image.controller_epoch > epoch and self.controller.is_active, PATIENCE_S
        )
        assert await held
        return self.metadata.image.controller_epoch

    async def write(self, terms: Collection[Term]) -> None:
        """Put a list of terms into the store that lacks what this controller has written."""
        await self.store.put(TERMS, terms_to_bytes(tuple(terms)))


@pytest.fixture
async def office() -> AsyncIterator[Office]:
    async with MemoryBackend(MemoryStore()) as backend:
        yield Office(backend)


def stored_topic(*isr: int) -> Any:
    state = PartitionState((1, 2, 3), isr, isr[0])
    return changing(TopicCreated(TopicImage("t", UUID(int=9), (state,))))


@pytest.mark.parametrize(
    ("member_has_seen", "awaited"), [(Term(5, 2, 42), (1, 2)), (Term(5, 2, 43), (1, 2, 3))], ids=["older", "newer"]
)
async def test_a_controller_distrusts_a_store_that_lacks_what_it_has_seen_itself(
    office: Office, member_has_seen: Term, awaited: tuple[int, ...]
) -> None:
    """No member reports more than the store contains, because all joined before the backup. A partition waits for the
    replicas in the ISR that this broker knows, unless another broker has seen later metadata."""
    await office.write([Term(5, 2, 40)])
    async with office.held():
        await office.controller.submit(stored_topic(1, 2, 3))

        async def members() -> list[BrokerRegistration]:
            return [replace(MEMBER, seen=member_has_seen)]

        await office.rollback.check_store(office.backend, members)
        (state,) = office.metadata.image.topics["t"].partitions
        assert (state.leader, state.isr, state.last_known_elr) == (NO_LEADER, (), awaited)
        assert office.controller.missing is None


async def test_a_controller_trusts_a_store_that_has_what_it_has_seen(office: Office) -> None:
    await office.write([Term(5, 2, 42)])
    async with office.held():
        assert office.controller.missing is None


async def test_a_new_process_that_has_applied_no_metadata_yet_does_not_distrust_the_store(office: Office) -> None:
    """Its first image contains only the epoch of the last controller that it has seen."""
    office.metadata.replace(MetadataImage("c", controller_epoch=5, version=-1), Delta(5, -1, ()))
    await office.write([Term(5, 2, 40)])
    async with office.held():
        assert office.controller.missing is None


async def test_a_mark_that_appears_during_a_term_ends_it(office: Office) -> None:
    async with office.held(lambda: office.rollback.until_rolled_back(office.backend)):
        epoch = office.metadata.image.controller_epoch
        mark = await office.backend.put(ROLLED_BACK_KEY, b"restored")
        assert await office.term_above(epoch) == epoch + 1
        assert (await office.backend.get(ROLLED_BACK_KEY)).revision == mark  # type: ignore[union-attr]


@pytest.mark.parametrize("is_deleted", [False, True])
async def test_a_list_of_terms_that_goes_back_during_a_term_is_noticed(office: Office, is_deleted: bool) -> None:
    async with office.held():
        watching = asyncio.ensure_future(office.rollback.until_rolled_back(office.backend))
        for number in "12":
            await office.controller.submit(counted(number))
        epoch = office.metadata.image.controller_epoch
        if is_deleted:
            await office.store.delete(TERMS)
        else:
            await office.write([Term(epoch, 1, 1)])
        with pytest.raises(StoreChanged):
            await asyncio.wait_for(watching, PATIENCE_S)


async def test_a_controller_writes_nothing_into_a_store_that_lacks_its_latest_write(office: Office) -> None:
    """Its session and its leadership are in the backup, so the guard of its writes holds."""
    async with office.held():
        await office.controller.submit(counted("1"))
        epoch = office.metadata.image.controller_epoch
        await office.write([Term(epoch, 1, 0)])
        with pytest.raises(KafkaError, match="NOT_CONTROLLER"):
            await office.controller.submit(counted("2"))
        await office.term_above(epoch)
        assert office.controller.missing is not None


async def test_a_write_whose_outcome_was_unknown_counts_as_its_own(
    office: Office, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with office.held():
        epoch, txn = office.metadata.image.controller_epoch, KeyValue.txn
        lost = iter([True])

        async def lose_response(self: KeyValue, *arguments: Any, **named: Any) -> Any:
            result = await txn(self, *arguments, **named)
            if next(lost, False):
                raise MaybeApplied("not settled")
            return result

        monkeypatch.setattr(KeyValue, "txn", lose_response)
        await office.controller.submit(counted("1"))
        await office.controller.submit(counted("2"))
        assert office.metadata.image.controller_epoch == epoch
