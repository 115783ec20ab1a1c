"""When a group is in use, and what its open transactions have committed."""

from __future__ import annotations

from typing import Any

from parley.broker.coordinators.groups.classic.membership import GroupMember, GroupState, Membership
from parley.broker.coordinators.groups.committed_offsets import CommittedOffset
from parley.broker.coordinators.groups.group import Group
from parley.protocol.messages.stored import GroupMetadataValue


def test_a_group_is_unused_until_it_has_a_generation() -> None:
    group = Group("g", 0)
    assert group.is_unused
    group.membership = Membership(generation=1)
    assert not group.is_unused


def test_a_group_is_in_use_with_a_member_an_id_that_was_given_out_an_offset_or_a_record() -> None:
    groups = [Group("g", 0) for _ in range(5)]
    groups[0].membership = Membership(members={"m": GroupMember("m", None, "c", "h", 1, 1, ())})
    groups[1].membership = Membership(pending=frozenset({"m"}))
    groups[2].offsets["t", 0] = CommittedOffset(1, -1, "", 0)
    groups[3].add_pending_offset(7, ("t", 0), CommittedOffset(1, -1, "", 0))
    groups[4].stored = GroupMetadataValue(protocol_type="", generation=0, protocol=None, leader=None, members=[])
    assert not any(group.is_unused for group in groups)
    assert Group("g", 0).is_unused
    assert not Group("g", 0, Membership(GroupState.STABLE)).is_unused


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
