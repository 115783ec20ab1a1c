"""Reassignments: how they begin, complete, are canceled, and are replaced by another one."""

from __future__ import annotations

from dataclasses import replace

import pytest

from parley.broker.controller.brokers import fence_broker
from parley.broker.controller.elections.election_rules import RulesOf
from parley.broker.controller.elections.leader_choice import elect_leader, recovered
from parley.broker.controller.isr_changes import IsrChange, alter_partitions
from parley.broker.controller.reassignment import Reassignment, alter_reassignments, list_reassignments
from parley.broker.metadata.image import MetadataImage
from parley.broker.metadata.types import NO_LEADER, PartitionState
from parley.protocol.errors import ErrorCode
from tests.broker.controller.clusters import TOPIC, TOPIC_ID, aggressive, balanced, epoch_of, image_with

STATE = PartitionState((1, 2, 3), (1, 2, 3), 1, leader_epoch=5, partition_epoch=7)


def moved(
    state: PartitionState | MetadataImage,
    *replicas: int,
    rules: RulesOf = balanced,
    fenced: tuple[int, ...] = (),
    factor_may_change: bool = True,
) -> tuple[ErrorCode, PartitionState]:
    image = state if isinstance(state, MetadataImage) else image_with(state, fenced=fenced)
    move = Reassignment(TOPIC, 0, replicas or None)
    decision = alter_reassignments(image, [move], rules, factor_may_change=factor_may_change)
    (outcome,) = decision.result
    after = image.with_changes(decision.changes).partition(TOPIC, 0)
    assert after is not None
    return outcome.error.code if outcome.error else ErrorCode.NONE, after


def test_a_reassignment_begins_with_all_replicas_in_the_order_of_the_target() -> None:
    error, after = moved(STATE, 4, 2, 5)
    assert error is ErrorCode.NONE
    assert after == PartitionState((4, 2, 5, 1, 3), (1, 2, 3), 1, 5, 8, adding=(4, 5), removing=(1, 3))
    assert list_reassignments(image_with(STATE, after), None) == [(TOPIC, 1, after)]
    assert list_reassignments(image_with(STATE, after), {TOPIC: [0, 1, 2], "other": [0]}) == [(TOPIC, 1, after)]


def test_a_reassignment_completes_when_the_added_replicas_are_in_sync() -> None:
    _, moving = moved(STATE, 4, 2, 5)
    image = image_with(moving)
    isr = tuple((i, epoch_of(i)) for i in (1, 2, 3, 4, 5))
    decision = alter_partitions(image, 1, epoch_of(1), [IsrChange(TOPIC_ID, 0, 5, 8, isr)], balanced)
    after = image.with_changes(decision.changes).partition(TOPIC, 0)
    assert after == PartitionState((4, 2, 5), (2, 4, 5), 4, 6, 9)


def test_removed_replicas_leave_at_once_if_another_one_is_in_sync() -> None:
    assert moved(STATE, 2, 3) == (ErrorCode.NONE, PartitionState((2, 3), (2, 3), 2, 6, 8))


def test_removed_replicas_stay_until_one_that_remains_is_in_sync() -> None:
    error, after = moved(replace(STATE, isr=(1,)), 2)
    assert error is ErrorCode.NONE
    assert after == PartitionState((2, 1, 3), (1,), 1, 5, 8, removing=(1, 3))


def test_a_new_order_changes_the_preference_but_not_the_leader() -> None:
    assert moved(STATE, 3, 2, 1) == (ErrorCode.NONE, PartitionState((3, 2, 1), (1, 2, 3), 1, 5, 8))
    assert moved(STATE, 1, 2, 3) == (ErrorCode.NONE, STATE)


def test_a_cancelled_reassignment_removes_the_replicas_it_added() -> None:
    _, moving = moved(STATE, 4, 5, 3)
    error, after = moved(replace(moving, isr=(1, 2, 3, 4)))
    assert error is ErrorCode.NONE
    assert (set(after.replicas), after.isr, after.leader) == ({1, 2, 3}, (1, 2, 3), 1)
    assert (after.adding, after.removing) == ((), ())


def test_only_a_reassignment_in_progress_can_be_cancelled() -> None:
    assert moved(STATE) == (ErrorCode.NO_REASSIGNMENT_IN_PROGRESS, STATE)


def test_a_second_target_replaces_the_first_one() -> None:
    _, moving = moved(STATE, 4, 2, 5)
    error, after = moved(moving, 1, 5, 3)
    assert error is ErrorCode.NONE
    assert after == PartitionState((1, 5, 3, 2), (1, 2, 3), 1, 5, 9, adding=(5,), removing=(2,))


def test_a_leader_that_only_the_first_target_wanted_hands_over() -> None:
    moving = PartitionState((4, 5, 1), (4, 1), 4, 5, 7, adding=(4, 5), removing=(1,))
    assert moved(moving) == (ErrorCode.NONE, PartitionState((1,), (1,), 1, 6, 8))


def test_a_reassignment_cannot_be_cancelled_if_records_would_be_lost() -> None:
    moving = PartitionState((4, 5, 1), (4,), 4, 5, 7, adding=(4, 5), removing=(1,))
    assert moved(moving) == (ErrorCode.INVALID_REPLICA_ASSIGNMENT, moving)
    assert moved(moving, rules=aggressive, fenced=(1,)) == (ErrorCode.INVALID_REPLICA_ASSIGNMENT, moving)
    assert moved(moving, rules=aggressive) == (ErrorCode.NONE, PartitionState((1,), (), NO_LEADER, 6, 8))


@pytest.mark.parametrize(("target", "fenced"), [((1, 1), ()), ((1, 9), ()), ((-1,), ())])
def test_an_invalid_target_is_refused(target: tuple[int, ...], fenced: tuple[int, ...]) -> None:
    assert moved(STATE, *target, fenced=fenced) == (ErrorCode.INVALID_REPLICA_ASSIGNMENT, STATE)


def test_an_empty_target_is_refused() -> None:
    decision = alter_reassignments(
        image_with(STATE), [Reassignment(TOPIC, 0, ()), Reassignment("x", 0, (1,))], balanced
    )
    codes = [outcome.error.code for outcome in decision.result if outcome.error]
    assert codes == [ErrorCode.INVALID_REPLICA_ASSIGNMENT, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION]


def test_a_change_of_the_replication_factor_can_be_forbidden() -> None:
    assert moved(STATE, 4, 5, factor_may_change=False) == (ErrorCode.INVALID_REPLICATION_FACTOR, STATE)
    _, moving = moved(STATE, 4, 5, 1, factor_may_change=False)
    assert moving.adding == (4, 5)
    error, _ = moved(moving, 3, 4, 2, factor_may_change=False)
    assert error is ErrorCode.NONE


def test_a_target_may_be_down() -> None:
    error, after = moved(STATE, 1, 2, 4, fenced=(4,))
    assert (error, after.adding) == (ErrorCode.NONE, (4,))


def test_a_leader_lost_during_a_reassignment_is_replaced_by_an_isr_member() -> None:
    _, moving = moved(STATE, 4, 5)
    image = image_with(moving)
    after = image.with_changes(fence_broker(image, 1, balanced).changes).partition(TOPIC, 0)
    assert after == PartitionState((4, 5, 1, 2, 3), (2, 3), 2, 6, 9, adding=(4, 5), removing=(1, 2, 3))


def test_a_recovery_completes_no_reassignment_but_later_growth_of_the_isr_does() -> None:
    """The replica that leaves may have records that the unclean leader lacks: its log must not be deleted yet."""
    moving = PartitionState((4, 1, 2), (), NO_LEADER, 5, 7, adding=(4,), removing=(1, 2), last_known_elr=(1,))
    led = recovered(moving, 4, unclean=True)
    assert led == PartitionState((4, 1, 2), (4,), 4, 6, 8, adding=(4,), removing=(1, 2), unclean_epoch=6)
    image = image_with(led)
    for other in (1, 2):
        assert fence_broker(image, other, balanced).changes[:-1] == (), "only the broker itself changes"
    grown = IsrChange(TOPIC_ID, 0, 6, 8, ((4, epoch_of(4)), (1, epoch_of(1))))
    decision = alter_partitions(image, 4, epoch_of(4), [grown], balanced)
    after = image.with_changes(decision.changes).partition(TOPIC, 0)
    assert after == PartitionState((4,), (4,), 4, 6, 9, unclean_epoch=6)
    assert moved(led, 4) == (ErrorCode.NONE, after), "an operator may give up the others"


def test_an_unclean_leader_that_restarts_completes_no_reassignment() -> None:
    moving = PartitionState((4, 1), (), NO_LEADER, 5, 7, adding=(4,), removing=(1,), last_known_elr=(1,))
    dead = elect_leader(recovered(moving, 4, unclean=True), {1}, 1)
    back = elect_leader(dead, {1, 4}, 1)
    assert (back.leader, back.replicas, back.adding, back.removing) == (4, (4, 1), (4,), (1,))
