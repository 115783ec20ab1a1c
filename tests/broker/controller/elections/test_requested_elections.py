"""Elections on request."""

from __future__ import annotations

from collections.abc import Iterable

import pytest

from parley.broker.controller.broker_reports import BrokerReport, ReplicaReport
from parley.broker.controller.elections.leader_reconciliation import reconcile_leaders
from parley.broker.controller.elections.preferred_elections import elect_preferred_leaders, rebalance_to_preferred
from parley.broker.controller.elections.requested_elections import (
    ElectionOutcome,
    ElectionType,
    elect_unclean_leaders,
    needing_election,
)
from parley.broker.metadata.image import MetadataImage
from parley.broker.metadata.types import NO_LEADER, PartitionState
from parley.protocol.errors import ErrorCode
from tests.broker.controller.clusters import TOPIC, TOPIC_ID, balanced, image_with

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
