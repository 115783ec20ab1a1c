"""A rebalance of a large group changes its members together, not one by one: each change copies all of them."""

from __future__ import annotations

from typing import Any

from parley.broker.coordinators.groups.classic.membership import GroupMember, GroupState, Membership
from parley.broker.coordinators.groups.classic.rebalance import rebalance_timed_out, session, sync_timed_out
from parley.broker.coordinators.groups.group_records import decode_generation, group_record, restored
from tests.broker.coordinators.groups.grouped import empty_shard

MEMBERS = 200


class Ids(frozenset[str]):
    """Member ids that count how often they are copied with a change."""

    copies = 0

    def __sub__(self, other: Any) -> Any:
        type(self).copies += 1
        return Ids(super().__sub__(other))


def member(number: int) -> GroupMember:
    return GroupMember(f"m{number:03}", None, "client", "host", 60_000, 10_000, (("range", b""),))


def group(state: GroupState) -> Membership:
    Ids.copies = 0
    members = {each.member_id: each for each in map(member, range(MEMBERS))}
    return Membership(state, 0, 1, "consumer", "range", "m000", members)


def test_absent_members_and_unused_ids_go_together() -> None:
    shard = empty_shard()
    membership = group(GroupState.PREPARING_REBALANCE)
    membership.joining = frozenset({"m007"})
    membership.new = Ids(membership.members)
    membership.pending = Ids(f"p{number}" for number in range(MEMBERS))
    shard.find_or_create("g").membership = membership
    decision = rebalance_timed_out("g", shard, 0)
    assert decision.change is not None
    decision.change()
    after = shard.membership_of("g")
    assert (list(after.members), after.leader_id, after.pending) == (["m007"], "m007", frozenset())
    cancelled = {key for key, timer in decision.timers.items() if timer is None}
    expected = {("session", "g", each) for each in membership.members if each != "m007"}
    expected |= {("pending", "g", each) for each in membership.pending}
    assert cancelled == expected | {("rebalance", "g")}
    assert Ids.copies < 5, "not once for each member"


def test_members_that_do_not_sync_go_together() -> None:
    shard = empty_shard()
    membership = group(GroupState.COMPLETING_REBALANCE)
    membership.syncing = frozenset({"m007"})
    membership.new = Ids(membership.members)
    shard.find_or_create("g").membership = membership
    decision = sync_timed_out("g", shard, 0)
    assert decision.change is not None
    decision.change()
    after = shard.membership_of("g")
    assert (list(after.members), after.state) == (["m007"], GroupState.PREPARING_REBALANCE)
    assert Ids.copies < 5, "not once for each member"


def test_a_large_group_is_restored_as_it_was() -> None:
    membership = group(GroupState.STABLE)
    value = group_record("g", membership)[1]
    assert value is not None
    assert restored(decode_generation(value)).members == membership.members


def test_timers_of_long_ids_are_not_remembered() -> None:
    """A client may use many groups with ids of 32 KB. They are gone when the sessions end, and so are the timers."""
    assert session("g", member(1)) is session("g", member(1))
    long = "g" * 32_000
    assert session(long, member(1)) is not session(long, member(1))
    assert session(long, member(1)).keys() == {("session", long, "m001")}
