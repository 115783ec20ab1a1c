"""The states of a group: the table allows what the protocol needs, and every other step raises."""

from __future__ import annotations

import asyncio
from itertools import product
from typing import Any

import pytest

from parley.broker.coordinators.groups.group import ENTERED_FROM, CommittedOffset, Group, GroupMember, GroupState
from parley.broker.coordinators.patient_timer import PatientTimer
from parley.broker.runtime.states import IllegalStep
from parley.protocol.messages.stored import GroupMetadataValue


def test_a_rebalance_and_its_repetition_are_legal() -> None:
    group = Group("g", 0)
    for name in ("PREPARING_REBALANCE", "COMPLETING_REBALANCE", "PREPARING_REBALANCE", "EMPTY", "DEAD"):
        group.enter(GroupState[name], now_ms=7)
    assert (group.state, group.state_since_ms) == (GroupState.DEAD, 7)


@pytest.mark.parametrize(
    ("before", "after"), [step for step in product(GroupState, GroupState) if step[0] not in ENTERED_FROM[step[1]]]
)
def test_an_illegal_step_raises(before: GroupState, after: GroupState) -> None:
    group = Group("g", 0, state=before)
    with pytest.raises(IllegalStep, match=f"{after.name} is not legal in the state {before.name}"):
        group.enter(after, now_ms=0)
    assert group.state is before


def member(member_id: str, *protocols: str, rebalance_timeout_ms: int = 1) -> GroupMember:
    return GroupMember(member_id, None, "c", "h", rebalance_timeout_ms, 1, tuple((name, b"") for name in protocols))


def group_of(*members: GroupMember) -> Group:
    group = Group("g", 0, protocol_type="consumer")
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
    group.remove(group.members["b"])
    assert group.leader_id == "a"
    group.remove(group.members["a"])
    assert group.leader_id == "c"
    group.remove(group.members["c"])
    assert group.leader_id is None


def test_a_group_is_unused_until_it_has_a_generation() -> None:
    group = Group("g", 0)
    assert group.is_unused
    group.generation = 1
    assert not group.is_unused


async def test_a_group_is_in_use_with_a_member_an_id_that_was_given_out_an_offset_or_a_record() -> None:
    groups = [Group("g", 0) for _ in range(5)]
    groups[0].add(member("a"))
    groups[1].pending["a"] = timer = PatientTimer(60, lambda: None)
    groups[2].offsets["t", 0] = CommittedOffset(1, -1, "", 0)
    groups[3].add_pending_offset(7, ("t", 0), CommittedOffset(1, -1, "", 0))
    groups[4].stored = GroupMetadataValue(protocol_type="", generation=0, protocol=None, leader=None, members=[])
    assert not any(group.is_unused for group in groups)
    assert Group("g", 0).is_unused
    assert not Group("g", 0, GroupState.STABLE).is_unused
    timer.cancel()


def test_a_pending_offset_is_found_without_a_walk_over_all_open_transactions() -> None:
    class Unwalkable(dict[int, Any]):
        def __iter__(self) -> Any:
            raise AssertionError("one request may ask for a thousand partitions, with thousands of open transactions")

        items = keys = values = __iter__

    offset = CommittedOffset(1, -1, "", 0)
    group = Group("g", 0, pending_offsets=Unwalkable())
    for producer_id, index in ((7, 0), (7, 1), (8, 0)):
        group.add_pending_offset(producer_id, ("t", index), offset)
    group.remove_pending_offset(7, ("t", 0))
    group.remove_pending_offset(7, ("t", 1))
    assert [group.has_pending_offset(("t", index)) for index in range(3)] == [True, False, False]
    assert group.partitions_in_log() == {("t", 0)}
    assert (7 in group.pending_offsets, group.pending_producers) == (False, {("t", 0): {8}})


async def test_all_have_joined_if_each_member_waits_and_no_id_is_given_out() -> None:
    group = group_of(member("a"), member("b"))
    assert not group.all_joined()
    assert not group.elect_joined_leader()
    group.members["b"].join_reply = asyncio.get_running_loop().create_future()
    assert not group.all_joined()
    assert group.elect_joined_leader()
    assert group.leader_id == "b", "the leader has not joined, the other one leads"
    group.members["a"].join_reply = asyncio.get_running_loop().create_future()
    assert group.all_joined()
    assert group.elect_joined_leader()
    assert group.leader_id == "b"
    group.pending["c"] = timer = PatientTimer(60, lambda: None)
    assert not group.all_joined()
    timer.cancel()


def test_a_static_member_that_restarts_keeps_its_place() -> None:
    group = group_of(member("a"), member("b"))
    one = group.members["a"]
    one.group_instance_id = "one"
    group.rename(one, "a2")
    assert (group.leader_id, list(group.members), group.static_ids) == ("a2", ["b", "a2"], {"one": "a2"})
    group.rename(group.members["b"], "b2")
    assert (group.leader_id, list(group.members), group.static_ids) == ("a2", ["a2", "b2"], {"one": "a2"})
    former = member("a")
    former.group_instance_id = "one"
    group.remove(former)
    assert group.static_ids == {"one": "a2"}, "the id belongs to the new process"
    group.remove(one)
    assert (group.leader_id, group.static_ids) == ("b2", {})
