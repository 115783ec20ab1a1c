"""When a damaged partition gives up leadership, which replicas it asks for records, and when it asks again."""

from __future__ import annotations

import pytest

from parley.broker.metadata.types import PartitionState
from parley.broker.metrics.catalogue.clients import TopicMetrics
from parley.broker.replication.damaged_partition import (
    HAND_OVER_PAUSE_S,
    RETRY_MAX_S,
    DamagedPartition,
    HealEvent,
    HealState,
    sources,
)
from parley.broker.replication.partition import Partition, Purgatories
from parley.broker.runtime.purgatory import Purgatory
from parley.broker.runtime.states import IllegalStep
from parley.protocol.uuids import UUID

LEADS = PartitionState((1, 2, 3), (1, 2), 1)


def damaged(state: PartitionState) -> DamagedPartition:
    partition = Partition(
        "t",
        UUID(int=7),
        0,
        broker_id=1,
        state=state,
        purgatories=Purgatories(Purgatory(), Purgatory()),
        counters=TopicMetrics(),
    )
    return DamagedPartition(partition, lambda: 0.0)


@pytest.mark.parametrize(
    ("state", "live", "expected"),
    [
        (LEADS, {1, 2, 3}, True),
        (LEADS, {1, 3}, False),
        (PartitionState((1, 2, 3), (1,), 1), {1, 2, 3}, False),
        (PartitionState((1, 2, 3), (1, 2), 2), {1, 2, 3}, False),
    ],
)
def test_a_leader_hands_over_to_another_live_member_of_the_isr(
    state: PartitionState, live: set[int], expected: bool
) -> None:
    assert damaged(state).must_hand_over(live, 1000.0) is expected


def test_a_leadership_that_returns_is_not_handed_over_again_at_once() -> None:
    partition = damaged(LEADS)
    partition.handed_over_s = 1000.0
    assert not partition.must_hand_over({1, 2}, 1000.0 + HAND_OVER_PAUSE_S - 1)
    assert partition.must_hand_over({1, 2}, 1000.0 + HAND_OVER_PAUSE_S)


def test_the_leader_is_asked_first_then_the_isr_then_the_others() -> None:
    state = PartitionState((1, 2, 3, 4, 5), (1, 4, 3), 4)
    assert sources(state, 1, {1, 2, 3, 4}) == [4, 3, 2]
    assert sources(state, 4, {1, 4}) == [1]
    assert sources(PartitionState((1,), (1,), 1), 1, {1, 2}) == []


def test_the_pause_between_two_attempts_grows_to_a_minute() -> None:
    partition = damaged(LEADS)
    pauses = []
    for partition.failures in range(1, 30):
        pauses.append(partition.retry_s)
    assert pauses[0] <= 1.0
    assert pauses == sorted(pauses)
    assert pauses[-1] == RETRY_MAX_S


def test_a_whole_log_is_not_healed_again() -> None:
    partition = damaged(LEADS)
    for event in (HealEvent.HAND_OVER, HealEvent.FETCH, HealEvent.FAIL, HealEvent.FETCH, HealEvent.HEAL):
        partition.step(event)
    assert partition.state is HealState.HEALED
    with pytest.raises(IllegalStep):
        partition.step(HealEvent.FETCH)
