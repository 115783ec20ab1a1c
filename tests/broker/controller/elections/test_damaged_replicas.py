"""Replicas with damaged logs hand over leadership, or leave the ISR to start over."""

from __future__ import annotations

import pytest

from parley.broker.controller.elections.damaged_replicas import elect_other_leaders, remove_damaged_replicas
from parley.broker.metadata.types import PartitionState
from parley.protocol.errors import ErrorCode, KafkaError
from parley.protocol.uuids import UUID
from tests.broker.controller.clusters import TOPIC, TOPIC_ID, balanced, epoch_of, image_with, min_isr_2

AWAY = PartitionState((1, 2, 3), (2, 1), 2, leader_epoch=5, partition_epoch=7)


def test_a_leader_with_a_damaged_log_hands_over_and_stays_in_the_isr() -> None:
    image = image_with(PartitionState((1, 2, 3), (1, 3, 2), 1, leader_epoch=5, partition_epoch=7), fenced=[2])
    decision = elect_other_leaders(image, 1, epoch_of(1), [(TOPIC_ID, 0), (TOPIC_ID, 0), (UUID(int=1), 0)], balanced)
    after = image.with_changes(decision.changes).partition(TOPIC, 0)
    assert after is not None
    assert (after.leader, after.leader_epoch, after.isr) == (3, 6, (1, 3))


@pytest.mark.parametrize(
    "state",
    [
        PartitionState((1, 2), (1,), 1),  # no other member
        PartitionState((1, 2), (1, 2), 2),  # it does not lead
        PartitionState((1, 4), (1, 4), 1),  # the other member is fenced
    ],
)
def test_a_damaged_log_moves_no_leadership_that_no_other_broker_can_take(state: PartitionState) -> None:
    image = image_with(state, fenced=[4])
    assert elect_other_leaders(image, 1, epoch_of(1), [(TOPIC_ID, 0)], balanced).changes == ()


def test_a_damaged_replica_that_starts_over_leaves_the_isr_and_the_elr() -> None:
    in_isr = PartitionState((1, 2, 3), (1, 3, 2), 2, leader_epoch=5, partition_epoch=7)
    in_elr = PartitionState((1, 2, 3), (2, 3), 2, leader_epoch=5, partition_epoch=7, elr=(1,))
    for state in (in_isr, in_elr):
        image = image_with(state)
        decision = remove_damaged_replicas(image, 1, epoch_of(1), [(TOPIC_ID, 0), (UUID(int=1), 0)], min_isr_2)
        after = image.with_changes(decision.changes).partition(TOPIC, 0)
        assert after is not None
        assert (after.leader, after.leader_epoch, set(after.isr), after.elr) == (2, 5, {2, 3}, ())
        assert after.partition_epoch == 8


def test_a_damaged_replica_outside_of_the_isr_that_starts_over_makes_proposals_outdated() -> None:
    """The leader may be about to add it. The ISR does not become smaller, so that it may be small already."""
    image = image_with(PartitionState((1, 2, 3), (2,), 2, leader_epoch=5, partition_epoch=7))
    decision = remove_damaged_replicas(image, 1, epoch_of(1), [(TOPIC_ID, 0)], min_isr_2)
    after = image.with_changes(decision.changes).partition(TOPIC, 0)
    assert after is not None
    assert (after.leader, after.leader_epoch, after.isr, after.partition_epoch) == (2, 5, (2,), 8)


def test_a_replica_that_starts_over_leaves_the_last_known_elr() -> None:
    image = image_with(PartitionState((1, 2, 3), (2,), 2, 5, 7, elr=(3,), last_known_elr=(1,)))
    decision = remove_damaged_replicas(image, 1, epoch_of(1), [(TOPIC_ID, 0)], min_isr_2)
    after = image.with_changes(decision.changes).partition(TOPIC, 0)
    assert after == PartitionState((1, 2, 3), (2,), 2, 5, 8, elr=(3,))


@pytest.mark.parametrize(
    "state",
    [
        PartitionState((1, 2, 3), (1, 2, 3), 1),  # it leads
        PartitionState((2, 3), (2, 3), 2),  # it is no replica
        PartitionState((1, 2, 3), (1, 2), 2),  # the ISR would be too small
        PartitionState((1, 2, 4), (1, 2, 4), 2),  # the third member is fenced
        PartitionState((1, 2, 3), (2,), 2, elr=(1, 3)),
    ],
)
def test_a_damaged_replica_stays_if_the_isr_would_be_too_small(state: PartitionState) -> None:
    image = image_with(state, fenced=[4])
    assert remove_damaged_replicas(image, 1, epoch_of(1), [(TOPIC_ID, 0)], min_isr_2).changes == ()


def test_a_broker_that_has_registered_again_since_hands_nothing_over() -> None:
    with pytest.raises(KafkaError) as raised:
        elect_other_leaders(image_with(AWAY), 2, epoch_of(2) - 1, [(TOPIC_ID, 0)], balanced)
    assert raised.value.code == ErrorCode.STALE_BROKER_EPOCH
