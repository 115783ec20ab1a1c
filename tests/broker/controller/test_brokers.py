"""Brokers come and go: what that makes of the partitions they hold."""

from __future__ import annotations

from dataclasses import replace
from uuid import UUID

import pytest

from parley.broker.controller.brokers import broker_joined, broker_lost, replicas_lost
from parley.broker.controller.stored_metadata import read_image, writes_for
from parley.broker.metadata.changes import BrokerRegistered, Change, TopicCreated
from parley.broker.metadata.image import MetadataImage
from parley.broker.metadata.types import NO_LEADER, BrokerRegistration, PartitionState, TopicImage


def never(image: MetadataImage, topic: str) -> bool:
    return False


def always(image: MetadataImage, topic: str) -> bool:
    return True


def broker(broker_id: int, epoch: int = 1, incarnation: int = 1) -> BrokerRegistration:
    return BrokerRegistration(broker_id, epoch, UUID(int=incarnation), ())


def image_with(*partitions: PartitionState) -> MetadataImage:
    topic = TopicImage("t", UUID(int=9), partitions)
    brokers = {i: broker(i) for i in (1, 2)}
    changes: list[Change] = [TopicCreated(topic)]
    return replace(MetadataImage("c"), brokers=brokers).with_changes(changes)


def test_a_lost_broker_is_fenced_and_its_leaders_move() -> None:
    image = image_with(PartitionState((1, 2), (1, 2), 1), PartitionState((2,), (2,), 2))
    after = image.with_changes(broker_lost(image, 1, never).changes)
    assert after.brokers[1].fenced
    assert after.partition("t", 0) == PartitionState((1, 2), (2,), 2, 1, 1)
    assert after.partition("t", 1) == image.partition("t", 1)
    assert broker_lost(after, 1, never).changes == ()


def test_the_only_replica_leads_again_under_a_new_epoch() -> None:
    image = image_with(PartitionState((1,), (1,), 1, leader_epoch=4))
    gone = image.with_changes(broker_lost(image, 1, never).changes)
    assert gone.partition("t", 0) == PartitionState((1,), (1,), NO_LEADER, 5, 1)
    back = gone.with_changes(broker_joined(gone, broker(1, epoch=2, incarnation=2), never).changes)
    assert back.partition("t", 0) == PartitionState((1,), (1,), 1, 6, 2)
    assert back.brokers[1] == broker(1, epoch=2, incarnation=2)


def test_a_restart_nobody_noticed_counts_as_a_loss() -> None:
    image = image_with(PartitionState((1,), (1,), 1, leader_epoch=4))
    after = image.with_changes(broker_joined(image, broker(1, epoch=2, incarnation=2), never).changes)
    state = after.partition("t", 0)
    assert state is not None
    assert (state.leader, state.leader_epoch) == (1, 6)


def test_what_is_known_or_old_changes_nothing() -> None:
    image = image_with(PartitionState((1,), (1,), 1))
    assert broker_joined(image, broker(1), never).changes == ()
    newer = image.with_changes(broker_joined(image, broker(1, epoch=3, incarnation=3), never).changes)
    assert broker_joined(newer, broker(1, epoch=2, incarnation=2), never).changes == ()


def test_a_fenced_broker_returns_under_a_higher_epoch_only() -> None:
    image = image_with(PartitionState((1,), (1,), 1))
    gone = image.with_changes(broker_lost(image, 1, never).changes)
    assert broker_joined(gone, broker(1), never).changes == ()
    back = gone.with_changes(broker_joined(gone, broker(1, epoch=2), never).changes)
    assert not back.brokers[1].fenced


def test_who_lost_the_disk_is_no_candidate_until_it_registers_anew() -> None:
    image = image_with(PartitionState((1, 2), (1,), 1, leader_epoch=4))
    image = image.with_changes(replicas_lost(image, 1, 1, [(UUID(int=9), 0)], never).changes)
    leaderless = PartitionState((1, 2), (1,), NO_LEADER, 5, 1)
    assert image.partition("t", 0) == leaderless
    gone = image.with_changes(broker_lost(image, 2, never).changes)
    assert gone.partition("t", 0) == leaderless
    other_back = gone.with_changes(broker_joined(gone, broker(2, epoch=2, incarnation=2), never).changes)
    assert other_back.partition("t", 0) == leaderless
    rescued = gone.with_changes(broker_joined(gone, broker(2, epoch=2, incarnation=2), always).changes)
    assert rescued.partition("t", 0) == PartitionState((1, 2), (2,), 2, 6, 2)
    repaired = image.with_changes(broker_joined(image, broker(1, epoch=2, incarnation=2), never).changes)
    assert repaired.partition("t", 0) == PartitionState((1, 2), (1,), 1, 6, 2)


def test_the_next_member_in_sync_that_returns_leads_instead_of_a_failed_disk() -> None:
    image = image_with(PartitionState((1, 2), (1, 2), 1))
    image = image.with_changes([BrokerRegistered(replace(broker(2), fenced=True))])
    image = image.with_changes(replicas_lost(image, 1, 1, [(UUID(int=9), 0)], never).changes)
    back = image.with_changes(broker_joined(image, broker(2, epoch=2, incarnation=2), never).changes)
    assert back.partition("t", 0) == PartitionState((1, 2), (2,), 2, 2, 2)


@pytest.mark.parametrize("notices", [True, False])
def test_a_leader_that_restarts_never_goes_on_under_its_epoch_wherever_writes_are_cut_off(notices: bool) -> None:
    """However much of the writes a controller brought to the store that fenced it, or that took it in anew."""
    led = [PartitionState((1, 2), (1, 2), 1, 4), PartitionState((1,), (1,), 1, 4)]
    topics = [TopicImage(f"t{i}", UUID(int=10 + i), (led[i % 2],)) for i in range(4)]
    registered = [BrokerRegistered(broker(i)) for i in (1, 2)]
    before = MetadataImage("c").with_changes([*registered, *map(TopicCreated, topics)])
    begin = writes_for(before.changes_since(MetadataImage("c")), before, MetadataImage("c"))
    restarted = broker(1, epoch=2, incarnation=2)
    decision = broker_lost(before, 1, never) if notices else broker_joined(before, restarted, never)
    writes = writes_for(decision.changes, before.with_changes(decision.changes), before)
    for count in range(len(writes) + 1):
        stored = {**begin, **dict(list(writes.items())[:count])}
        found = read_image("c", {key: value for key, value in stored.items() if value is not None})
        after = found.with_changes(broker_joined(found, restarted, never).changes)
        for name, _, state in after.partitions():
            assert state.leader != 1 or state.leader_epoch > 4, (name, count)
