"""Brokers register, are fenced, lose disks, stop and leave: what happens to their partitions."""

from __future__ import annotations

from dataclasses import replace

import pytest

from parley.broker.controller.brokers import (
    fence_broker,
    hand_over_leadership,
    register_broker,
    take_replicas_offline,
    unregister_broker,
)
from parley.broker.controller.reassignment import Reassignment, alter_reassignments
from parley.broker.controller.stored_metadata import read_image, writes_for
from parley.broker.metadata.changes import BrokerRegistered, Change, PartitionChanged, TopicCreated
from parley.broker.metadata.image import MetadataImage
from parley.broker.metadata.types import NO_LEADER, BrokerRegistration, PartitionState, TopicImage
from parley.protocol.errors import ErrorCode, KafkaError
from parley.protocol.uuids import UUID
from tests.broker.controller import clusters
from tests.broker.controller.clusters import balanced, min_isr_2


def broker(broker_id: int, epoch: int = 1, incarnation: int = 1) -> BrokerRegistration:
    return BrokerRegistration(broker_id, epoch, UUID(int=incarnation), ())


def image_with(*partitions: PartitionState) -> MetadataImage:
    topic = TopicImage("t", UUID(int=9), partitions)
    brokers = {i: broker(i) for i in (1, 2)}
    changes: list[Change] = [TopicCreated(topic)]
    return replace(MetadataImage("c"), brokers=brokers).with_changes(changes)


def test_a_lost_broker_is_fenced_and_its_leaders_move() -> None:
    image = image_with(PartitionState((1, 2), (1, 2), 1), PartitionState((2,), (2,), 2))
    after = image.with_changes(fence_broker(image, 1, balanced).changes)
    assert after.brokers[1].fenced
    assert after.partition("t", 0) == PartitionState((1, 2), (2,), 2, 1, 1)
    assert after.partition("t", 1) == image.partition("t", 1)
    assert fence_broker(after, 1, balanced).changes == ()


def test_the_only_replica_leads_again_under_a_new_epoch() -> None:
    image = image_with(PartitionState((1,), (1,), 1, leader_epoch=4))
    gone = image.with_changes(fence_broker(image, 1, balanced).changes)
    assert gone.partition("t", 0) == PartitionState((1,), (), NO_LEADER, 5, 1, elr=(1,))
    back = gone.with_changes(register_broker(gone, broker(1, epoch=2, incarnation=2), None, balanced).changes)
    assert back.partition("t", 0) == PartitionState((1,), (1,), 1, 6, 2)
    assert back.brokers[1] == broker(1, epoch=2, incarnation=2)


def test_an_unnoticed_restart_counts_as_a_loss() -> None:
    image = image_with(PartitionState((1,), (1,), 1, leader_epoch=4))
    after = image.with_changes(register_broker(image, broker(1, epoch=2, incarnation=2), None, balanced).changes)
    state = after.partition("t", 0)
    assert state is not None
    assert (state.leader, state.leader_epoch) == (1, 6)


def test_a_registration_has_only_the_last_state_of_each_partition() -> None:
    image = image_with(
        PartitionState((1,), (1,), 1, 4), PartitionState((2,), (), NO_LEADER), PartitionState((1, 2), (1, 2), 1)
    )
    restarted = broker(1, epoch=2, incarnation=2)
    changes = register_broker(image, restarted, None, balanced).changes
    assert changes == (
        PartitionChanged("t", 0, PartitionState((1,), (1,), 1, 6, 2)),
        PartitionChanged("t", 2, PartitionState((1, 2), (2,), 2, 1, 1)),
        BrokerRegistered(replace(broker(1), fenced=True)),
        BrokerRegistered(restarted),
    )


def test_a_process_that_registers_again_keeps_its_partitions() -> None:
    image = image_with(PartitionState((1, 2), (1, 2), 1, leader_epoch=4))
    again = broker(1, epoch=2)
    assert register_broker(image, again, None, balanced).changes == (BrokerRegistered(again),)


def test_a_known_or_older_registration_changes_nothing() -> None:
    image = image_with(PartitionState((1,), (1,), 1))
    assert register_broker(image, broker(1), None, balanced).changes == ()
    newer = image.with_changes(register_broker(image, broker(1, epoch=3, incarnation=3), None, balanced).changes)
    assert register_broker(newer, broker(1, epoch=2, incarnation=2), None, balanced).changes == ()


def test_a_fenced_broker_returns_under_a_higher_epoch_only() -> None:
    image = image_with(PartitionState((1,), (1,), 1))
    gone = image.with_changes(fence_broker(image, 1, balanced).changes)
    assert register_broker(gone, broker(1), None, balanced).changes == ()
    back = gone.with_changes(register_broker(gone, broker(1, epoch=2), None, balanced).changes)
    assert not back.brokers[1].fenced


def test_a_replica_on_a_failed_disk_leaves_isr_and_elr_and_is_last_known() -> None:
    image = image_with(PartitionState((1, 2), (1,), 1, leader_epoch=4))
    image = image.with_changes(take_replicas_offline(image, 1, 1, [(UUID(int=9), 0)], balanced).changes)
    leaderless = PartitionState((1, 2), (), NO_LEADER, 5, 1, last_known_elr=(1,))
    assert image.partition("t", 0) == leaderless
    assert take_replicas_offline(image, 1, 1, [(UUID(int=9), 0)], balanced).changes == ()
    for broker_id in (1, 2):
        image = image.with_changes(fence_broker(image, broker_id, balanced).changes)
        image = image.with_changes(register_broker(image, broker(broker_id, epoch=2), None, balanced).changes)
        assert image.partition("t", 0) == leaderless


def test_a_returning_isr_member_leads_instead_of_a_replica_on_a_failed_disk() -> None:
    image = image_with(PartitionState((1, 2), (1, 2), 1))
    image = image.with_changes(fence_broker(image, 2, min_isr_2).changes)
    assert image.partition("t", 0) == PartitionState((1, 2), (1,), 1, 0, 1, elr=(2,))
    image = image.with_changes(take_replicas_offline(image, 1, 1, [(UUID(int=9), 0)], min_isr_2).changes)
    assert image.partition("t", 0) == PartitionState((1, 2), (), NO_LEADER, 1, 2, elr=(2,), last_known_elr=(1,))
    back = image.with_changes(register_broker(image, broker(2, epoch=2), None, min_isr_2).changes)
    assert back.partition("t", 0) == PartitionState((1, 2), (2,), 2, 2, 3)


def test_a_later_recovery_does_not_wait_for_a_disk_that_failed_under_a_leader() -> None:
    image = image_with(PartitionState((1, 2), (1, 2), 1), PartitionState((1, 2), (1,), 1, last_known_elr=(2,)))
    image = image.with_changes(
        take_replicas_offline(image, 2, 1, [(UUID(int=9), 0), (UUID(int=9), 1)], min_isr_2).changes
    )
    assert image.partition("t", 0) == PartitionState((1, 2), (1,), 1, 0, 1)
    assert image.partition("t", 1) == PartitionState((1, 2), (1,), 1, 0, 1)


@pytest.mark.parametrize("notices", [True, False])
def test_a_restarted_leader_gets_a_new_epoch_wherever_the_writes_are_cut_off(notices: bool) -> None:
    """However many of its writes the controller made that fenced the broker, or registered it again."""
    led = [PartitionState((1, 2), (1, 2), 1, 4), PartitionState((1,), (1,), 1, 4)]
    topics = [TopicImage(f"t{i}", UUID(int=10 + i), (led[i % 2],)) for i in range(4)]
    registered = [BrokerRegistered(broker(i)) for i in (1, 2)]
    before = MetadataImage("c").with_changes([*registered, *map(TopicCreated, topics)])
    begin = writes_for(before.changes_since(MetadataImage("c")), before, MetadataImage("c"))
    restarted = broker(1, epoch=2, incarnation=2)
    decision = fence_broker(before, 1, balanced) if notices else register_broker(before, restarted, None, balanced)
    writes = writes_for(decision.changes, before.with_changes(decision.changes), before)
    for count in range(len(writes) + 1):
        stored = {**begin, **dict(list(writes.items())[:count])}
        found = read_image("c", {key: value for key, value in stored.items() if value is not None})
        after = found.with_changes(register_broker(found, restarted, None, balanced).changes)
        for name, _, state in after.partitions():
            assert state.leader != 1 or state.leader_epoch > 4, (name, count)


# --- Brokers that stop, or leave for good ---

SHARED = PartitionState((1, 2), (1, 2), 1, 5, 7)
FOLLOWED = PartitionState((2, 1), (2, 1), 2, 5, 7)
ALONE = PartitionState((1, 2), (1,), 1, 5, 7)


def test_controlled_shutdown_moves_leaderships_and_returns_the_partitions_left_without_leader() -> None:
    image = clusters.image_with(SHARED, FOLLOWED, ALONE)
    decision = hand_over_leadership(image, 1, clusters.epoch_of(1), balanced)
    after = image.with_changes(decision.changes)
    assert decision.result == [(clusters.TOPIC, 2)]
    assert [state for _, _, state in after.partitions()] == [
        PartitionState((1, 2), (2,), 2, 6, 8),
        PartitionState((2, 1), (2,), 2, 5, 8),
        PartitionState((1, 2), (), NO_LEADER, 6, 8, elr=(1,)),
    ]
    assert after.brokers[1].fenced
    again = hand_over_leadership(after, 1, clusters.epoch_of(1), balanced)
    assert (again.changes, again.result) == ((), [(clusters.TOPIC, 2)])


@pytest.mark.parametrize(
    ("broker_id", "epoch", "error"),
    [
        (9, 1, ErrorCode.BROKER_ID_NOT_REGISTERED),
        (1, 10, ErrorCode.STALE_BROKER_EPOCH),
        (1, -1, ErrorCode.STALE_BROKER_EPOCH),  # a sender without the epoch is not the broker
    ],
)
def test_controlled_shutdown_with_a_wrong_id_or_epoch_is_refused(broker_id: int, epoch: int, error: ErrorCode) -> None:
    with pytest.raises(KafkaError) as raised:
        hand_over_leadership(clusters.image_with(SHARED), broker_id, epoch, balanced)
    assert raised.value.code is error


def test_an_unregistered_broker_remains_a_replica() -> None:
    image = clusters.image_with(FOLLOWED, fenced=[1])
    after = image.with_changes(unregister_broker(image, 1).changes)
    assert 1 not in after.brokers
    assert after.partition(clusters.TOPIC, 0) == FOLLOWED
    moved = after.with_changes(alter_reassignments(after, [Reassignment(clusters.TOPIC, 0, (2,))], balanced).changes)
    assert moved.partition(clusters.TOPIC, 0) == PartitionState((2,), (2,), 2, 5, 8)


def test_an_unregistered_broker_may_register_again() -> None:
    image = clusters.image_with(ALONE, fenced=[1])
    returning = replace(image.brokers[1], epoch=99)
    after = image.with_changes(unregister_broker(image, 1).changes)
    after = after.with_changes(register_broker(after, returning, None, balanced).changes)
    assert not after.brokers[1].fenced


@pytest.mark.parametrize(("broker_id", "error"), [(1, "INVALID_REQUEST"), (9, "BROKER_ID_NOT_REGISTERED")])
def test_a_live_or_unknown_broker_cannot_be_unregistered(broker_id: int, error: str) -> None:
    with pytest.raises(KafkaError) as raised:
        unregister_broker(clusters.image_with(SHARED), broker_id)
    assert raised.value.code is ErrorCode[error]
