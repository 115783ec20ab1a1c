"""Elections on request, and elections that keep leadership on preferred replicas."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

import pytest

from parley.broker.controller.broker_reports import BrokerReport, ReplicaReport
from parley.broker.controller.elections.leader_elections import (
    ElectionOutcome,
    ElectionType,
    elect_other_leaders,
    elect_preferred_leaders,
    elect_unclean_leaders,
    needing_election,
    rebalance_to_preferred,
    reconcile_leaders,
    remove_damaged_replicas,
)
from parley.broker.metadata.image import MetadataImage
from parley.broker.metadata.types import NO_LEADER, PartitionState
from parley.protocol.errors import ErrorCode, KafkaError
from parley.protocol.uuids import UUID
from tests.broker.controller.clusters import TOPIC, TOPIC_ID, balanced, epoch_of, image_with, min_isr_2

AWAY = PartitionState((1, 2, 3), (2, 1), 2, leader_epoch=5, partition_epoch=7)
LEADERLESS = PartitionState((1, 2), (), NO_LEADER, leader_epoch=5, partition_epoch=7, elr=(2,))
INTACT = ReplicaReport(leader_epoch=4, log_end_offset=9, high_watermark=9)


def codes_of(outcomes: list[ElectionOutcome]) -> dict[int, ErrorCode]:
    return {each.partition: each.error.code if each.error else ErrorCode.NONE for each in outcomes}


def elected(image: MetadataImage, *wanted: int) -> tuple[dict[int, ErrorCode], MetadataImage]:
    """Hold preferred elections."""
    named = [(TOPIC, index) for index in wanted] or needing_election(image, ElectionType.PREFERRED)
    decision = elect_preferred_leaders(image, named, balanced)
    return codes_of(decision.result), image.with_changes(decision.changes)


def elected_uncleanly(
    image: MetadataImage, *wanted: int, reporting: Iterable[int] = ()
) -> tuple[dict[int, ErrorCode], MetadataImage]:
    """Hold unclean elections; the brokers of ``reporting`` have reported intact logs of all partitions."""
    replicas = {(TOPIC_ID, index): INTACT for index in wanted}
    reports = {i: BrokerReport(image.brokers[i].incarnation_id, replicas) for i in reporting}
    decision = elect_unclean_leaders(image, [(TOPIC, index) for index in wanted], reports, balanced)
    return codes_of(decision.result[0]), image.with_changes(decision.changes)


def test_the_preferred_replica_takes_over_under_a_new_epoch() -> None:
    codes, after = elected(image_with(AWAY), 0)
    assert codes == {0: ErrorCode.NONE}
    assert after.partition(TOPIC, 0) == PartitionState((1, 2, 3), (2, 1), 1, 6, 8)
    assert elected(after, 0) == ({0: ErrorCode.ELECTION_NOT_NEEDED}, after.with_changes(()))


@pytest.mark.parametrize(
    "image",
    [image_with(AWAY, fenced=[1]), image_with(PartitionState((3, 2), (2,), 2)), image_with(LEADERLESS, fenced=[2])],
)
def test_a_preferred_replica_that_is_dead_or_out_of_sync_does_not_lead(image: MetadataImage) -> None:
    codes, after = elected(image, 0)
    assert codes == {0: ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE}
    assert after.topics == image.topics


def test_an_unclean_election_takes_a_live_replica_that_has_reported_if_there_is_no_leader() -> None:
    lost = PartitionState((2, 4), (), NO_LEADER, last_known_elr=(2,))
    image = image_with(LEADERLESS, AWAY, lost, fenced=[2, 4])
    codes, after = elected_uncleanly(image, 0, 1, 2, 3, reporting=[1, 2])
    assert codes == {
        0: ErrorCode.NONE,
        1: ErrorCode.ELECTION_NOT_NEEDED,
        2: ErrorCode.ELIGIBLE_LEADERS_NOT_AVAILABLE,
        3: ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    }
    assert after.partition(TOPIC, 0) == PartitionState((1, 2), (1,), 1, 6, 8, unclean_epoch=6)


def test_an_election_for_all_partitions_returns_only_those_that_needed_one() -> None:
    image = image_with(AWAY, PartitionState((1, 2), (1, 2), 1), PartitionState((5, 2), (2,), 2), fenced=[5])
    codes, _ = elected(image)
    assert codes == {0: ErrorCode.NONE, 2: ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE}


def test_the_elr_follows_a_lower_min_insync_replicas() -> None:
    """Until then the leader does not advance the high watermark: the members of the ELR have all committed records."""
    small = PartitionState((1, 2), (1,), 1, 5, 7)
    image = image_with(replace(small, elr=(2,)), replace(small, last_known_elr=(2,)))
    assert reconcile_leaders(image, min_isr_2).changes == ()
    after = image.with_changes(reconcile_leaders(image, balanced).changes)
    assert [after.partition(TOPIC, index) for index in (0, 1)] == [replace(small, partition_epoch=8)] * 2


def test_changes_that_a_dead_controller_left_unfinished_are_finished() -> None:
    """The broker was fenced in one transaction; its partitions should have followed in another."""
    image = image_with(AWAY, PartitionState((2, 1), (1, 2), 1, 5, 7), fenced=[2])
    after = image.with_changes(reconcile_leaders(image, balanced).changes)
    assert after.partition(TOPIC, 0) == PartitionState((1, 2, 3), (1,), 1, 6, 8)
    assert after.partition(TOPIC, 1) == PartitionState((2, 1), (1,), 1, 5, 8)


def test_an_isr_of_dead_brokers_in_an_older_store_becomes_the_elr() -> None:
    image = image_with(PartitionState((1, 2), (2,), NO_LEADER, 5, 7), fenced=[2])
    after = image.with_changes(reconcile_leaders(image, balanced).changes)
    assert after.partition(TOPIC, 0) == PartitionState((1, 2), (), NO_LEADER, 5, 8, elr=(2,))


DISKLESS = PartitionState((1, 2), (), NO_LEADER, leader_epoch=5, partition_epoch=7, last_known_elr=(1,))
"""What is left when the disk of the last replica in sync has failed; its broker lives."""


def test_an_unclean_election_rescues_a_partition_from_a_failed_disk() -> None:
    codes, after = elected_uncleanly(image_with(DISKLESS), 0, reporting=[2])
    assert codes == {0: ErrorCode.NONE}
    assert after.partition(TOPIC, 0) == PartitionState((1, 2), (2,), 2, 6, 8, unclean_epoch=6)
    codes, _ = elected_uncleanly(image_with(DISKLESS, fenced=[2]), 0, reporting=[2])
    assert codes == {0: ErrorCode.ELIGIBLE_LEADERS_NOT_AVAILABLE}


def test_no_election_chooses_a_replica_on_a_failed_disk() -> None:
    image = image_with(DISKLESS)
    codes, _ = elected(image, 0)
    assert codes == {0: ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE}
    assert rebalance_to_preferred(image, 0, 9, balanced).changes == ()
    assert reconcile_leaders(image, balanced).changes == ()


def test_leaderships_return_to_brokers_that_lead_too_few() -> None:
    home = PartitionState((1, 2), (1, 2), 1)
    image = image_with(AWAY, *[home] * 9)
    assert rebalance_to_preferred(image, 10, 100, balanced).changes == ()
    image = image_with(AWAY, AWAY, *[home] * 8)
    decision = rebalance_to_preferred(image, 10, 100, balanced)
    assert not decision.result
    after = image.with_changes(decision.changes)
    assert [state.leader for _, _, state in after.partitions()] == [1] * 10


def test_leaderships_return_in_limited_numbers_and_only_to_electable_replicas() -> None:
    moving = PartitionState((1, 2), (2, 1), 2, adding=(1,))
    lagging = PartitionState((1, 2), (2,), 2)
    image = image_with(AWAY, AWAY, moving, lagging)
    decision = rebalance_to_preferred(image, 0, 1, balanced)
    assert decision.result
    image = image.with_changes(decision.changes)
    decision = rebalance_to_preferred(image, 0, 1, balanced)
    assert not decision.result
    after = image.with_changes(decision.changes)
    assert [state.leader for _, _, state in after.partitions()] == [1, 1, 2, 2]
    assert rebalance_to_preferred(image_with(AWAY, fenced=[1]), 0, 9, balanced).changes == ()


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
