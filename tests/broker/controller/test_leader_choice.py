"""The rule that chooses a partition's leader."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from parley.broker.controller.leader_choice import elect_leader
from parley.broker.metadata.types import NO_LEADER, PartitionState

STATE = PartitionState(replicas=(1, 2, 3), isr=(1, 2), leader=1, leader_epoch=5, partition_epoch=9)


def test_a_live_leader_stays() -> None:
    assert elect_leader(STATE, {1, 2, 3}) is STATE


def test_the_next_in_sync_replica_takes_over() -> None:
    assert elect_leader(STATE, {2, 3}) == PartitionState((1, 2, 3), (2,), 2, 6, 10)


def test_a_replica_out_of_sync_does_not_lead_unless_allowed() -> None:
    assert elect_leader(STATE, {3}) == PartitionState((1, 2, 3), (1, 2), NO_LEADER, 6, 10)
    assert elect_leader(STATE, {3}, unclean=True) == PartitionState((1, 2, 3), (3,), 3, 6, 10)


def test_the_last_members_of_the_isr_lead_again_when_they_return() -> None:
    orphan = elect_leader(STATE, set())
    assert orphan.isr == (1, 2)
    assert elect_leader(orphan, {2}).leader == 2


@given(
    isr=st.sets(st.integers(1, 4), min_size=1),
    leader=st.integers(-1, 4),
    live=st.sets(st.integers(1, 4)),
    unclean=st.booleans(),
)
def test_rules_that_hold_for_any_state(isr: set[int], leader: int, live: set[int], unclean: bool) -> None:
    state = PartitionState((1, 2, 3, 4), tuple(sorted(isr)), leader if leader in isr else NO_LEADER, 3, 3)
    new = elect_leader(state, live, unclean=unclean)
    assert new.isr, "the ISR never becomes empty"
    assert new.leader == NO_LEADER or (new.leader in live and new.leader in new.isr)
    assert (new.leader_epoch > state.leader_epoch) == (new.leader != state.leader)
    assert (new.partition_epoch > state.partition_epoch) == (new != state)
    if isr & live:
        assert new.leader in isr & live, "no record of the ISR is given up while one member lives"
    assert elect_leader(new, live, unclean=unclean) is new
