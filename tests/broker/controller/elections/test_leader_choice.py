"""The rule that chooses a partition's leader."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from parley.broker.controller.elections.leader_choice import elect_leader, next_partition_state, recovered
from parley.broker.metadata.types import NO_LEADER, UNASSIGNED_DIRECTORY, PartitionState
from parley.protocol.uuids import UUID

STATE = PartitionState(replicas=(1, 2, 3), isr=(1, 2), leader=1, leader_epoch=5, partition_epoch=9)


def test_a_live_leader_stays() -> None:
    assert elect_leader(STATE, {1, 2, 3}, 2) is STATE


def test_the_next_in_sync_replica_takes_over_and_a_small_isr_leaves_an_elr() -> None:
    assert elect_leader(STATE, {2, 3}, 1) == PartitionState((1, 2, 3), (2,), 2, 6, 10)
    assert elect_leader(STATE, {2, 3}, 2) == PartitionState((1, 2, 3), (2,), 2, 6, 10, elr=(1,))


def test_a_replica_out_of_sync_does_not_lead() -> None:
    assert elect_leader(STATE, {3}, 1) == PartitionState((1, 2, 3), (), NO_LEADER, 6, 10, elr=(1, 2))


def test_a_member_of_the_elr_leads_when_it_returns() -> None:
    orphan = elect_leader(STATE, set(), 2)
    assert elect_leader(orphan, {2}, 2) == PartitionState((1, 2, 3), (2,), 2, 7, 11, elr=(1,))
    assert elect_leader(orphan, {2}, 1) == PartitionState((1, 2, 3), (2,), 2, 7, 11)


def test_min_insync_replicas_counts_no_further_than_the_replicas() -> None:
    alone = PartitionState((1, 2), (1,), 1, elr=(2,))
    assert elect_leader(alone, {1, 2}, 9) is alone
    assert elect_leader(PartitionState((1,), (), NO_LEADER, elr=(1,)), {1}, 2) == PartitionState((1,), (1,), 1, 1, 1)


def test_suspect_replicas_are_last_known_once_the_isr_is_too_small() -> None:
    first = elect_leader(STATE, {1, 2}, 2, suspect=(1,))
    assert first == PartitionState((1, 2, 3), (2,), 2, 6, 10, last_known_elr=(1,))
    assert elect_leader(first, {1, 2}, 2, lost=(1,)).last_known_elr == ()
    assert elect_leader(first, {2}, 2).last_known_elr == (), "no recovery waits for broker 1 once it is dead"
    assert elect_leader(first, {1}, 2) == PartitionState((1, 2, 3), (), NO_LEADER, 7, 11, elr=(2,), last_known_elr=(1,))
    assert elect_leader(first, {1, 2}, 1).last_known_elr == (), "min.insync.replicas was lowered"
    back = replace(first, isr=(2, 3))
    assert next_partition_state(first, back, {2, 3}, 2) == PartitionState((1, 2, 3), (2, 3), 2, 6, 11)
    assert next_partition_state(first, replace(first, isr=(1, 2)), {1, 2}, 3).last_known_elr == (), "it is in the ISR"
    assert elect_leader(STATE, {1, 2}, 1, suspect=(1,)).last_known_elr == (), "broker 2 commits alone"
    orphan = elect_leader(elect_leader(STATE, set(), 2), {1}, 2, suspect=(1,))
    assert orphan == PartitionState((1, 2, 3), (), NO_LEADER, 6, 11, elr=(2,), last_known_elr=(1,))
    both = elect_leader(orphan, {1, 2}, 2, suspect=(2,))
    assert both == PartitionState((1, 2, 3), (), NO_LEADER, 6, 12, last_known_elr=(1, 2))
    assert elect_leader(both, {1, 2, 3}, 2, lost=(1,)).last_known_elr == (2,)


def test_a_recovery_makes_one_replica_the_whole_isr() -> None:
    orphan = PartitionState((1, 2, 3), (), NO_LEADER, 6, 12, last_known_elr=(1, 2))
    assert recovered(orphan, 2, unclean=False) == PartitionState((1, 2, 3), (2,), 2, 7, 13)
    assert recovered(orphan, 3, unclean=True) == PartitionState((1, 2, 3), (3,), 3, 7, 13, unclean_epoch=7)


def test_directories_follow_the_replicas() -> None:
    one, two = UUID(int=11), UUID(int=12)
    state = PartitionState((1, 2), (1, 2), 1, directories=(one, two))
    moved = next_partition_state(state, replace(state, replicas=(3, 2), isr=(2,)), {2, 3}, 1)
    assert moved.directories == (UNASSIGNED_DIRECTORY, two)
    assert next_partition_state(state, replace(state, replicas=(3,), isr=()), {3}, 1).directories == ()


few = st.sets(st.integers(1, 4))


@given(isr=few, elr=few, leader=st.integers(-1, 4), live=few, suspect=few, lost=few, min_isr=st.integers(1, 5))
def test_rules_that_hold_for_any_state(
    isr: set[int], elr: set[int], leader: int, live: set[int], suspect: set[int], lost: set[int], min_isr: int
) -> None:
    led = leader if leader in isr else NO_LEADER
    state = PartitionState((1, 2, 3, 4), tuple(sorted(isr)), led, 3, 3, elr=tuple(sorted(elr - isr)))
    new = elect_leader(state, live, min_isr, suspect=suspect, lost=lost)
    eligible = (isr | elr) - suspect - lost
    assert new.leader == NO_LEADER or (new.leader in live and new.leader in new.isr)
    assert (new.leader == NO_LEADER) == (not eligible & live)
    assert set(new.isr) <= eligible & live
    assert not set(new.isr) & set(new.elr)
    assert set(new.elr) == (set() if len(new.isr) >= min(min_isr, 4) else eligible - set(new.isr))
    remembered = ((isr | elr) & suspect) - lost
    if len(new.isr) >= min(min_isr, 4) or NO_LEADER == state.leader != new.leader:
        remembered = set()
    assert set(new.last_known_elr) == (remembered if new.leader == NO_LEADER else remembered & live)
    assert (new.leader_epoch > state.leader_epoch) == (new.leader != state.leader)
    assert (new.partition_epoch > state.partition_epoch) == (new != state)
    assert elect_leader(new, live, min_isr) is new
