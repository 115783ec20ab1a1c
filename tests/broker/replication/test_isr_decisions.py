"""The ISR that a leader proposes."""

from __future__ import annotations

import pytest

from parley.broker.metadata.types import BrokerRegistration, PartitionState
from parley.broker.replication.follower_progress import FetchClock, FollowerProgress
from parley.broker.replication.isr_decisions import LeaderSnapshot, wanted_isr
from parley.protocol.uuids import UUID

LAG_S = 10.0
BROKERS = {broker_id: BrokerRegistration(broker_id, 1, UUID(int=broker_id), ()) for broker_id in (1, 2)}


def test_a_follower_that_has_everything_but_no_longer_fetches_does_not_join() -> None:
    clock, follower = FetchClock(), FollowerProgress()
    clock.fetched(0.0)
    follower.fetched(5, 0, 5, clock)
    follower.broker_epoch = 1
    outside = PartitionState(replicas=(1, 2), isr=(1,), leader=1)

    def wanted(log_end: int, now_s: float) -> tuple[int, ...]:
        view = LeaderSnapshot(1, outside, {2: follower}, log_end, high_watermark=5, epoch_start_offset=0)
        return wanted_isr(view, BROKERS, now_s, LAG_S)

    assert wanted(5, LAG_S) == (1, 2)
    assert wanted(7, LAG_S) == (1, 2), "it has all that is committed"
    assert wanted(7, LAG_S + 1) is outside.isr, "it would be let go at once, and come in again, without end"


def test_a_follower_whose_session_dropped_the_partition_joins_with_another_fetch_only() -> None:
    clock, follower = FetchClock(), FollowerProgress()
    clock.fetched(0.0)
    follower.fetched(5, 0, 5, clock)
    follower.broker_epoch = 1
    outside = PartitionState(replicas=(1, 2), isr=(1,), leader=1)
    view = LeaderSnapshot(1, outside, {2: follower}, 5, high_watermark=5, epoch_start_offset=0)
    follower.session_ended()
    clock.fetched(1.0)
    assert wanted_isr(view, BROKERS, 1.0, LAG_S) is outside.isr, "the session fetches other partitions"
    follower.fetched(5, 0, 5, clock)
    assert wanted_isr(view, BROKERS, 1.0, LAG_S) == (1, 2)


def test_a_follower_whose_arrival_was_forgotten_joins_with_another_fetch_only() -> None:
    clock, follower = FetchClock(), FollowerProgress()
    clock.fetched(0.0)
    follower.fetched(5, 0, 5, clock)
    follower.broker_epoch = 1
    outside = PartitionState(replicas=(1, 2), isr=(1,), leader=1)
    view = LeaderSnapshot(1, outside, {2: follower}, 5, high_watermark=5, epoch_start_offset=0)
    follower.forget_arrival()
    clock.fetched(1.0)
    assert wanted_isr(view, BROKERS, 1.0, LAG_S) is outside.isr, "the session's other partitions are fetched"
    assert follower.log_end_offset == 5
    follower.fetched(5, 0, 5, clock)
    assert wanted_isr(view, BROKERS, 1.0, LAG_S) == (1, 2)


@pytest.mark.parametrize("leader", [1, 3])
def test_a_leader_never_lags_but_other_members_do_with_any_id(leader: int) -> None:
    inside = PartitionState(replicas=(1, 2, 3), isr=(leader, 2), leader=leader)
    view = LeaderSnapshot(leader, inside, {2: FollowerProgress()}, 5, high_watermark=5, epoch_start_offset=0)
    assert wanted_isr(view, BROKERS, LAG_S + 1, LAG_S) == (leader,)


def test_a_member_of_the_isr_that_drops_an_idle_partition_stays_a_member() -> None:
    clock, follower = FetchClock(), FollowerProgress()
    clock.fetched(0.0)
    follower.fetched(5, 0, 5, clock)
    inside = PartitionState(replicas=(1, 2), isr=(1, 2), leader=1)
    follower.session_ended()
    view = LeaderSnapshot(1, inside, {2: follower}, 6, high_watermark=5, epoch_start_offset=0)
    assert wanted_isr(view, BROKERS, LAG_S, LAG_S) is inside.isr
    assert wanted_isr(view, BROKERS, LAG_S + 1, LAG_S) == (1,), "it has not been caught up for that long"
