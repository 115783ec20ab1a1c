"""What a transaction coordinator withholds if another broker may have replaced it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, cast

import pytest

from parley.broker.coordinators.decision import Decision, ProducerIdentity
from parley.broker.coordinators.producer_ids import ProducerIds
from parley.broker.coordinators.runtime import CoordinatorRuntime
from parley.broker.coordinators.transactions.coordinator import TransactionCoordinator
from parley.broker.coordinators.transactions.marker_sender import MarkerSender
from parley.broker.coordinators.transactions.shard import TransactionShard
from parley.protocol.errors import ErrorCode, KafkaError
from tests.broker.coordinators.transactions.driven_shard import ID, P0, P1, DrivenShard


class OneShard:
    """A runtime with one shard, in which decisions take effect at once."""

    def __init__(self, shard: DrivenShard) -> None:
        self._shard = shard

    def submit(
        self, key: str, decide: Callable[[TransactionShard, int], Decision[Any]], *, at_once: bool
    ) -> asyncio.Future[Any]:
        done: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        try:
            done.set_result(self._shard.submit(decide))
        except KafkaError as error:
            done.set_exception(error)
        return done

    def read(self, key: str, decide: Callable[[TransactionShard, int], Decision[Any]]) -> Any:
        decision = decide(self._shard.state, self._shard.now_ms)
        return None if decision.records else decision.reply


class NoMarkers:
    """Sends no markers."""

    def serve(self, runtime: object) -> None:
        pass


@pytest.mark.parametrize(
    ("is_unsure", "fenced", "not_added"),
    [
        (False, ErrorCode.PRODUCER_FENCED, None),
        (True, ErrorCode.NOT_COORDINATOR, ErrorCode.NOT_COORDINATOR),
    ],
)
async def test_a_coordinator_that_may_be_superseded_refuses_nothing_and_confirms_no_partition(
    is_unsure: bool, fenced: ErrorCode, not_added: ErrorCode | None
) -> None:
    shard = DrivenShard()
    coordinator = TransactionCoordinator(
        cast("CoordinatorRuntime[TransactionShard]", OneShard(shard)),
        cast(MarkerSender, NoMarkers()),
        cast(ProducerIds, None),
        lambda: shard.config,
        may_be_superseded=lambda: is_unsure,
    )
    producer = shard.initialize()
    await coordinator.add(ID, producer, frozenset({P0}), 0)
    if not is_unsure:
        assert await coordinator.verify(ID, producer, frozenset({P0})) == {P0: ErrorCode.NONE}
        assert coordinator.verify_at_once(ID, producer, frozenset({P0})) == {P0: ErrorCode.NONE}
    else:
        with pytest.raises(KafkaError) as refusal:
            await coordinator.verify(ID, producer, frozenset({P0}))
        with pytest.raises(KafkaError, match="may no longer be the coordinator"):
            coordinator.verify_at_once(ID, producer, frozenset({P0}))
        assert refusal.value.code is ErrorCode.NOT_COORDINATOR, "the new one may have ended the transaction"

    newer = ProducerIdentity(producer.producer_id, producer.producer_epoch + 1)
    with pytest.raises(KafkaError) as refusal:
        await coordinator.add(ID, newer, frozenset({P1}), 0)
    assert refusal.value.code is fenced

    verified = coordinator.verify(ID, producer, frozenset({P1}))
    if not_added is None:
        assert await verified == {P1: ErrorCode.TRANSACTION_ABORTABLE}
    else:
        with pytest.raises(KafkaError) as refusal:
            await verified
        assert refusal.value.code is not_added


async def test_partitions_added_before_version_2_are_stored_again() -> None:
    """The epoch does not tell the transaction from an earlier one that a superseded coordinator may have in mind."""
    shard = DrivenShard()
    producer = shard.initialize()
    for version, stored in ((0, 2), (2, 1)):
        before = len(shard.log)
        shard.add(producer, P0, version=version)
        shard.add(producer, P0, version=version)
        assert len(shard.log) - before == stored
        shard.end(producer, committed=False, version=0)
        shard.complete()
