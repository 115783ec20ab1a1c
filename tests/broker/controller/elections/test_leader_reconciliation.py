"""Elections that a controller left unfinished, or that a lower ``min.insync.replicas`` requires."""

from __future__ import annotations

from dataclasses import replace

from parley.broker.controller.elections.leader_reconciliation import reconcile_leaders
from parley.broker.metadata.types import NO_LEADER, PartitionState
from tests.broker.controller.clusters import TOPIC, balanced, image_with, min_isr_2

AWAY = PartitionState((1, 2, 3), (2, 1), 2, leader_epoch=5, partition_epoch=7)


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
