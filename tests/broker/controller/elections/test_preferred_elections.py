"""Elections that keep leadership on preferred replicas."""

from __future__ import annotations

from parley.broker.controller.elections.preferred_elections import rebalance_to_preferred
from parley.broker.metadata.types import PartitionState
from tests.broker.controller.clusters import balanced, image_with

AWAY = PartitionState((1, 2, 3), (2, 1), 2, leader_epoch=5, partition_epoch=7)


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
