"""AlterPartition: which changes of the ISR the controller grants."""

from __future__ import annotations

from dataclasses import replace

import pytest

from parley.broker.controller.isr_changes import IsrChange, IsrChangeOutcome, alter_partitions
from parley.broker.metadata.changes import PartitionChanged
from parley.broker.metadata.image import MetadataImage
from parley.broker.metadata.types import PartitionState
from parley.protocol.errors import ErrorCode, KafkaError
from parley.protocol.sentinels import NO_EPOCH
from parley.protocol.uuids import UUID
from tests.broker.controller.clusters import TOPIC_ID, balanced, epoch_of, image_with, min_isr_2

STATE = PartitionState((1, 2, 3), (1, 2), 1, leader_epoch=5, partition_epoch=7)


def wish(
    *isr: int, partition: int = 0, leader_epoch: int = 5, partition_epoch: int = 7, topic_id: UUID = TOPIC_ID
) -> IsrChange:
    return IsrChange(topic_id, partition, leader_epoch, partition_epoch, tuple((i, epoch_of(i)) for i in isr))


def asked(image: MetadataImage, *wishes: IsrChange, sender: int = 1) -> tuple[list[IsrChangeOutcome], MetadataImage]:
    decision = alter_partitions(image, sender, epoch_of(sender), wishes, balanced)
    return decision.result, image.with_changes(decision.changes)


def test_the_isr_grows_and_shrinks_without_a_new_leader_epoch() -> None:
    (outcome,), after = asked(image_with(STATE), wish(1, 2, 3))
    assert outcome.error is ErrorCode.NONE
    assert outcome.state == after.partition("t", 0) == PartitionState((1, 2, 3), (1, 2, 3), 1, 5, 8)
    (outcome,), after = asked(after, wish(1, partition_epoch=8))
    assert after.partition("t", 0) == PartitionState((1, 2, 3), (1,), 1, 5, 9)


def test_members_that_leave_a_small_isr_join_the_elr_until_it_is_large_enough_again() -> None:
    image = image_with(STATE)
    decision = alter_partitions(image, 1, 11, [wish(1)], min_isr_2)
    image = image.with_changes(decision.changes)
    assert image.partition("t", 0) == PartitionState((1, 2, 3), (1,), 1, 5, 8, elr=(2,))
    decision = alter_partitions(image, 1, 11, [wish(1, 3, partition_epoch=8)], min_isr_2)
    assert image.with_changes(decision.changes).partition("t", 0) == PartitionState((1, 2, 3), (1, 3), 1, 5, 9)


def test_the_same_isr_changes_nothing() -> None:
    decision = alter_partitions(image_with(STATE), 1, 11, [wish(1, 2)], balanced)
    assert decision.changes == ()
    assert decision.result[0].state is not None
    assert decision.result[0].state.partition_epoch == 7


@pytest.mark.parametrize(
    ("asking", "error"),
    [
        (wish(1, 2, 3, leader_epoch=4), ErrorCode.FENCED_LEADER_EPOCH),
        (wish(1, 2, 3, leader_epoch=6), ErrorCode.NOT_CONTROLLER),
        (wish(1, 2, 3, partition_epoch=6), ErrorCode.INVALID_UPDATE_VERSION),
        (wish(1, 2, 3, partition_epoch=8), ErrorCode.NOT_CONTROLLER),
        (wish(1, 2, 4), ErrorCode.INVALID_REQUEST),
        (wish(1, 2, 2), ErrorCode.INVALID_REQUEST),
        (wish(2, 3), ErrorCode.INVALID_REQUEST),
        (wish(), ErrorCode.INVALID_REQUEST),
        (wish(1, 2, 3, partition=2), ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
        (wish(1, 2, 3, topic_id=UUID(int=8)), ErrorCode.UNKNOWN_TOPIC_ID),
        (replace(wish(), isr=((1, 11), (2, 12), (3, 12))), ErrorCode.INELIGIBLE_REPLICA),
    ],
)
def test_an_invalid_isr_change_is_refused_alone(asking: IsrChange, error: ErrorCode) -> None:
    (refused, granted), after = asked(image_with(STATE, replace(STATE)), asking, wish(1, 2, 3, partition=1))
    assert refused.error is error
    assert after.partition("t", 0) == STATE
    assert granted.error is ErrorCode.NONE


def test_a_member_that_is_fenced_does_not_join() -> None:
    (outcome,), _ = asked(image_with(STATE, fenced=(3,)), wish(1, 2, 3))
    assert outcome.error is ErrorCode.INELIGIBLE_REPLICA


def test_the_broker_epoch_of_an_isr_member_is_optional() -> None:
    (outcome,), _ = asked(image_with(STATE), replace(wish(), isr=((1, 11), (3, NO_EPOCH))))
    assert outcome.error is ErrorCode.NONE


def test_only_the_leader_may_change_the_isr() -> None:
    (outcome,), _ = asked(image_with(STATE), wish(1, 2, 3), sender=2)
    assert outcome.error is ErrorCode.INVALID_REQUEST


@pytest.mark.parametrize("sender", [(1, 10), (1, 12), (1, -1), (9, 1)])
def test_a_sender_with_a_stale_broker_epoch_is_refused(sender: tuple[int, int]) -> None:
    with pytest.raises(KafkaError) as raised:
        alter_partitions(image_with(STATE), *sender, [wish(1)], balanced)
    assert raised.value.code is ErrorCode.STALE_BROKER_EPOCH


def test_two_changes_of_one_partition_apply_one_after_the_other() -> None:
    (first, second), after = asked(image_with(STATE), wish(1, 2, 3), wish(1))
    assert (first.error, second.error) == (ErrorCode.NONE, ErrorCode.INVALID_UPDATE_VERSION)
    assert after.partition("t", 0) == first.state


def test_the_last_added_replica_in_sync_ends_a_reassignment() -> None:
    moving = PartitionState((1, 4, 2), (1, 2), 1, 5, 7, adding=(4,), removing=(2,))
    (outcome,), after = asked(image_with(moving), wish(1, 2, 4))
    assert outcome.error is ErrorCode.NONE
    assert after.partition("t", 0) == PartitionState((1, 4), (1, 4), 1, 5, 8)


def test_a_reassignment_goes_on_until_all_are_in_sync() -> None:
    moving = PartitionState((4, 5, 1), (1,), 1, 5, 7, adding=(4, 5), removing=(1,))
    (outcome,), after = asked(image_with(moving), wish(1, 4))
    assert outcome.error is ErrorCode.NONE
    assert after.partition("t", 0) == replace(moving, isr=(1, 4), partition_epoch=8)


def test_a_leader_that_is_removed_hands_over_in_the_same_step() -> None:
    moving = PartitionState((4, 2, 1), (1, 2), 1, 5, 7, adding=(4,), removing=(1,))
    decision = alter_partitions(image_with(moving), 1, 11, [wish(1, 2, 4)], balanced)
    assert decision.result[0].error is ErrorCode.NEW_LEADER_ELECTED
    assert decision.changes == (PartitionChanged("t", 0, PartitionState((4, 2), (2, 4), 4, 6, 8)),)
