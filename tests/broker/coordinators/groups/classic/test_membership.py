"""The states of a group, whose table allows exactly the steps of the protocol, and its members."""

from __future__ import annotations

from dataclasses import replace
from itertools import product

import pytest

from parley.broker.coordinators.groups.classic.membership import ENTERED_FROM, GroupMember, GroupState, Membership
from parley.broker.runtime.states import IllegalStep


def test_a_rebalance_and_its_repetition_are_legal() -> None:
    group = Membership()
    for name in ("PREPARING_REBALANCE", "COMPLETING_REBALANCE", "PREPARING_REBALANCE", "EMPTY", "DEAD"):
        group.enter(GroupState[name], now_ms=7)
    assert (group.state, group.state_since_ms) == (GroupState.DEAD, 7)


@pytest.mark.parametrize(
    ("before", "after"), [step for step in product(GroupState, GroupState) if step[0] not in ENTERED_FROM[step[1]]]
)
def test_an_illegal_step_raises(before: GroupState, after: GroupState) -> None:
    group = Membership(before)
    with pytest.raises(IllegalStep, match=f"{after.name} is not legal in the state {before.name}"):
        group.enter(after, now_ms=0)
    assert group.state is before


def member(member_id: str, *protocols: str, rebalance_timeout_ms: int = 1) -> GroupMember:
    return GroupMember(member_id, None, "c", "h", rebalance_timeout_ms, 1, tuple((name, b"") for name in protocols))


def group_of(*members: GroupMember) -> Membership:
    group = Membership(protocol_type="consumer")
    for each in members:
        group.add(each)
    return group


def test_members_vote_for_their_first_strategy_that_all_support() -> None:
    group = group_of(member("a", "x", "y", "z"), member("b", "z", "y"), member("c", "own", "z", "y"))
    assert group.choose_protocol() == "z"
    assert group.accepts("consumer", [("y", b"")])
    assert not group.accepts("consumer", [("x", b"")]), "not all support it"
    assert not group.accepts("connect", [("y", b"")])
    assert not group.accepts("consumer", [("own", b"")], instead_of="c"), "the others do not support it"
    assert group_of(member("a", "x")).accepts("connect", [("own", b"")], instead_of="a"), "there are no others"


def test_the_rebalance_takes_as_long_as_the_slowest_member_may() -> None:
    group = group_of(member("a", rebalance_timeout_ms=5), member("b", rebalance_timeout_ms=7), member("c"))
    assert group.rebalance_timeout_ms() == 7


def test_another_member_leads_when_the_leader_leaves() -> None:
    group = group_of(member("a"), member("b"), member("c"))
    assert group.leader_id == "a"
    group.remove([group.members["b"]])
    assert group.leader_id == "a"
    group.remove([group.members["a"]])
    assert group.leader_id == "c"
    group.remove([group.members["c"]])
    assert group.leader_id is None
    group = group_of(member("a"), member("b"), replace(member("c"), group_instance_id="one"), member("d"))
    group.remove([group.members["b"], group.members["a"]])
    assert (group.leader_id, list(group.members), group.static_ids) == ("c", ["c", "d"], {"one": "c"})
    group.remove([])
    assert list(group.members) == ["c", "d"]


def test_all_have_joined_if_each_member_waits_and_no_id_is_given_out() -> None:
    group = group_of(member("a"), member("b"))
    assert not group.all_joined()
    assert not group.elect_joined_leader()
    group.joining |= {"b"}
    assert not group.all_joined()
    assert group.elect_joined_leader()
    assert group.leader_id == "b", "the leader has not joined, the other one leads"
    group.joining |= {"a"}
    assert group.all_joined()
    assert group.elect_joined_leader()
    assert group.leader_id == "b"
    group.pending |= {"c"}
    assert not group.all_joined()


def test_a_static_member_that_restarts_keeps_its_place() -> None:
    group = group_of(replace(member("a"), group_instance_id="one"), member("b"))
    group.assignments = {"a": b"1", "b": b"2"}
    restarted = replace(member("a2"), group_instance_id="one")
    group.put_in_place(restarted, "a")
    assert (group.leader_id, list(group.members), group.static_ids) == ("a2", ["b", "a2"], {"one": "a2"})
    assert group.assignments == {"a2": b"1", "b": b"2"}
    group.put_in_place(member("b2"), "b")
    assert (group.leader_id, list(group.members), group.static_ids) == ("a2", ["a2", "b2"], {"one": "a2"})
    group.remove([replace(member("a"), group_instance_id="one")])
    assert group.static_ids == {"one": "a2"}, "the id belongs to the new process"
    group.remove([restarted])
    assert (group.leader_id, group.static_ids) == ("b2", {})


def test_a_copy_changes_alone() -> None:
    group = group_of(replace(member("a"), group_instance_id="one"))
    before = repr(group)
    changed = group.copy()
    assert changed == group
    changed.enter(GroupState.PREPARING_REBALANCE, 5)
    changed.add(replace(member("b"), group_instance_id="two"))
    changed.remove([group.members["a"]])
    changed.joining |= {"b"}
    assert repr(group) == before
