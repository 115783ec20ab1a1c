"""Elections on request, and elections that keep leadership on preferred replicas."""

from __future__ import annotations

import pytest

from parley.broker.controller.leader_elections import (
    ElectionType,
    elect_leaders,
    needing_election,
    rebalance_to_preferred,
    reconcile_leaders,
)
from parley.broker.metadata.image import MetadataImage
from parley.broker.metadata.types import NO_LEADER, PartitionState
from parley.protocol.errors import ErrorCode
from tests.broker.controller.clusters import TOPIC, always, image_with, never

AWAY = PartitionState((1, 2, 3), (2, 1), 2, leader_epoch=5, partition_epoch=7)
LEADERLESS = PartitionState((1, 2), (2,), NO_LEADER, leader_epoch=5, partition_epoch=7)


def elected(image: MetadataImage, kind: ElectionType, *wanted: int) -> tuple[dict[int, ErrorCode], MetadataImage]:
    decision = elect_leaders(image, kind, [(TOPIC, index) for index in wanted] or needing_election(image, kind))
    codes = {each.partition: each.error.code if each.error else ErrorCode.NONE for each in decision.result}
    return codes, image.with_changes(decision.changes)


def test_the_preferred_replica_takes_over_under_a_new_epoch() -> None:
    codes, after = elected(image_with(AWAY), ElectionType.PREFERRED, 0)
    assert codes == {0: ErrorCode.NONE}
    assert after.partition(TOPIC, 0) == PartitionState((1, 2, 3), (2, 1), 1, 6, 8)
    assert elected(after, ElectionType.PREFERRED, 0) == ({0: ErrorCode.ELECTION_NOT_NEEDED}, after.with_changes(()))


@pytest.mark.parametrize(
    "image",
    [image_with(AWAY, fenced=[1]), image_with(PartitionState((3, 2), (2,), 2)), image_with(LEADERLESS, fenced=[2])],
)
def test_a_preferred_replica_that_is_dead_or_out_of_sync_does_not_lead(image: MetadataImage) -> None:
    codes, after = elected(image, ElectionType.PREFERRED, 0)
    assert codes == {0: ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE}
    assert after.topics == image.topics


def test_an_unclean_election_takes_any_living_replica_where_there_is_no_leader() -> None:
    image = image_with(LEADERLESS, AWAY, PartitionState((2, 4), (2,), NO_LEADER), fenced=[2, 4])
    codes, after = elected(image, ElectionType.UNCLEAN, 0, 1, 2, 3)
    assert codes == {
        0: ErrorCode.NONE,
        1: ErrorCode.ELECTION_NOT_NEEDED,
        2: ErrorCode.ELIGIBLE_LEADERS_NOT_AVAILABLE,
        3: ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    }
    assert after.partition(TOPIC, 0) == PartitionState((1, 2), (1,), 1, 6, 8)


def test_an_election_for_all_partitions_returns_only_those_that_needed_one() -> None:
    image = image_with(AWAY, PartitionState((1, 2), (1, 2), 1), PartitionState((5, 2), (2,), 2), fenced=[5])
    codes, _ = elected(image, ElectionType.PREFERRED)
    assert codes == {0: ErrorCode.NONE, 2: ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE}


def test_an_unclean_election_prefers_replicas_that_are_not_being_added() -> None:
    moving = PartitionState((4, 1, 2), (2,), NO_LEADER, adding=(4,), removing=(1, 2))
    _, after = elected(image_with(moving, fenced=[2]), ElectionType.UNCLEAN, 0)
    state = after.partition(TOPIC, 0)
    assert state is not None
    assert (state.leader, state.isr) == (1, (1,))


def test_unclean_elections_that_are_allowed_later_are_held() -> None:
    image = image_with(LEADERLESS, PartitionState((3, 1), (3,), 3), fenced=[2])
    assert reconcile_leaders(image, never).changes == ()
    decision = reconcile_leaders(image, always)
    assert decision.result == 1
    assert image.with_changes(decision.changes).partition(TOPIC, 0) == PartitionState((1, 2), (1,), 1, 6, 8)


def test_changes_that_a_dead_controller_left_unfinished_are_finished() -> None:
    """The broker was fenced in one transaction; its partitions should have followed in another."""
    image = image_with(AWAY, PartitionState((2, 1), (1, 2), 1, 5, 7), fenced=[2])
    decision = reconcile_leaders(image, never)
    assert decision.result == 0
    after = image.with_changes(decision.changes)
    assert after.partition(TOPIC, 0) == PartitionState((1, 2, 3), (1,), 1, 6, 8)
    assert after.partition(TOPIC, 1) == PartitionState((2, 1), (1,), 1, 5, 8)


DISKLESS = PartitionState((1, 2), (1,), NO_LEADER, leader_epoch=5, partition_epoch=7)
"""What is left when the disk of the last replica in sync has failed; its broker lives."""


def test_an_unclean_election_rescues_a_partition_from_a_failed_disk() -> None:
    codes, after = elected(image_with(DISKLESS), ElectionType.UNCLEAN, 0)
    assert codes == {0: ErrorCode.NONE}
    assert after.partition(TOPIC, 0) == PartitionState((1, 2), (2,), 2, 6, 8)
    codes, _ = elected(image_with(DISKLESS, fenced=[2]), ElectionType.UNCLEAN, 0)
    assert codes == {0: ErrorCode.ELIGIBLE_LEADERS_NOT_AVAILABLE}


def test_no_election_chooses_a_replica_on_a_failed_disk() -> None:
    image = image_with(DISKLESS)
    codes, _ = elected(image, ElectionType.PREFERRED, 0)
    assert codes == {0: ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE}
    assert rebalance_to_preferred(image, 0, 9).changes == ()
    assert reconcile_leaders(image, never).changes == ()
    after = image.with_changes(reconcile_leaders(image, always).changes)
    assert after.partition(TOPIC, 0) == PartitionState((1, 2), (2,), 2, 6, 8)


def test_a_new_controller_tries_a_replica_on_a_failed_disk_once_more() -> None:
    """The previous controller may have been about to elect that replica."""
    image = image_with(DISKLESS)
    after = image.with_changes(reconcile_leaders(image, never, takes_over=True).changes)
    assert after.partition(TOPIC, 0) == PartitionState((1, 2), (1,), 1, 6, 8)


def test_leaderships_return_to_brokers_that_lead_too_few() -> None:
    home = PartitionState((1, 2), (1, 2), 1)
    image = image_with(AWAY, *[home] * 9)
    assert rebalance_to_preferred(image, 10, 100).changes == ()
    image = image_with(AWAY, AWAY, *[home] * 8)
    decision = rebalance_to_preferred(image, 10, 100)
    assert not decision.result
    after = image.with_changes(decision.changes)
    assert [state.leader for _, _, state in after.partitions()] == [1] * 10


def test_leaderships_return_in_limited_numbers_and_only_to_electable_replicas() -> None:
    moving = PartitionState((1, 2), (2, 1), 2, adding=(1,))
    lagging = PartitionState((1, 2), (2,), 2)
    image = image_with(AWAY, AWAY, moving, lagging)
    decision = rebalance_to_preferred(image, 0, 1)
    assert decision.result
    image = image.with_changes(decision.changes)
    decision = rebalance_to_preferred(image, 0, 1)
    assert not decision.result
    after = image.with_changes(decision.changes)
    assert [state.leader for _, _, state in after.partitions()] == [1, 1, 2, 2]
    assert rebalance_to_preferred(image_with(AWAY, fenced=[1]), 0, 9).changes == ()
