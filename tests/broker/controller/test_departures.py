"""Brokers leave: for a while in good order, or for good."""

from __future__ import annotations

from dataclasses import replace

import pytest

from parley.broker.controller.brokers import broker_joined
from parley.broker.controller.departures import broker_leaving, unregister_broker
from parley.broker.controller.reassignment import Move, alter_reassignments
from parley.broker.metadata.types import NO_LEADER, PartitionState
from parley.protocol.errors import ErrorCode, KafkaError
from tests.broker.controller.clusters import TOPIC, epoch_of, image_with, never

SHARED = PartitionState((1, 2), (1, 2), 1, 5, 7)
FOLLOWED = PartitionState((2, 1), (2, 1), 2, 5, 7)
ALONE = PartitionState((1, 2), (1,), 1, 5, 7)


def test_what_others_can_lead_moves_and_the_rest_is_told() -> None:
    image = image_with(SHARED, FOLLOWED, ALONE)
    decision = broker_leaving(image, 1, epoch_of(1), never)
    after = image.with_changes(decision.changes)
    assert decision.result == [(TOPIC, 2)]
    assert [state for _, _, state in after.partitions()] == [
        PartitionState((1, 2), (2,), 2, 6, 8),
        PartitionState((2, 1), (2,), 2, 5, 8),
        PartitionState((1, 2), (1,), NO_LEADER, 6, 8),
    ]
    assert after.brokers[1].fenced
    again = broker_leaving(after, 1, epoch_of(1), never)
    assert (again.changes, again.result) == ((), [(TOPIC, 2)])


@pytest.mark.parametrize(
    ("broker_id", "epoch", "error"),
    [
        (9, 1, ErrorCode.BROKER_ID_NOT_REGISTERED),
        (1, 10, ErrorCode.STALE_BROKER_EPOCH),
        (1, -1, ErrorCode.STALE_BROKER_EPOCH),  # who does not know it is not the broker
    ],
)
def test_a_late_or_mistaken_farewell_changes_nothing(broker_id: int, epoch: int, error: ErrorCode) -> None:
    with pytest.raises(KafkaError) as raised:
        broker_leaving(image_with(SHARED), broker_id, epoch, never)
    assert raised.value.code is error


def test_a_broker_that_is_gone_is_forgotten_but_not_as_a_replica() -> None:
    image = image_with(FOLLOWED, fenced=[1])
    after = image.with_changes(unregister_broker(image, 1).changes)
    assert 1 not in after.brokers
    assert after.partition(TOPIC, 0) == FOLLOWED
    moved = after.with_changes(alter_reassignments(after, [Move(TOPIC, 0, (2,))], never).changes)
    assert moved.partition(TOPIC, 0) == PartitionState((2,), (2,), 2, 5, 8)


def test_a_broker_that_was_forgotten_may_come_back() -> None:
    image = image_with(ALONE, fenced=[1])
    returning = replace(image.brokers[1], epoch=99)
    after = image.with_changes(unregister_broker(image, 1).changes)
    after = after.with_changes(broker_joined(after, returning, never).changes)
    assert not after.brokers[1].fenced


@pytest.mark.parametrize(("broker_id", "error"), [(1, "INVALID_REQUEST"), (9, "BROKER_ID_NOT_REGISTERED")])
def test_who_lives_or_is_unknown_is_not_forgotten(broker_id: int, error: str) -> None:
    with pytest.raises(KafkaError) as raised:
        unregister_broker(image_with(SHARED), broker_id)
    assert raised.value.code is ErrorCode[error]
