"""The records that groups write to the log, and how they are read."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from parley.broker.coordinators.groups.classic.membership import GroupMember, GroupState, Membership
from parley.broker.coordinators.groups.committed_offsets import (
    OFFSET_VALUE_VERSION,
    CommittedOffset,
    CommittedOffsets,
    is_plain,
)
from parley.broker.coordinators.groups.group_records import (
    OFFSET_WITH_EXPIRY_VALUE_VERSION,
    decode_offset,
    group_record,
    group_tombstone,
    offset_record,
    offset_tombstone,
)
from parley.protocol.sentinels import NO_EPOCH
from tests.broker.coordinators.groups.grouped import Replay, at


@pytest.mark.parametrize(
    ("expire_at_ms", "epoch_read", "version"),
    [(-1, 7, OFFSET_VALUE_VERSION), (0, NO_EPOCH, OFFSET_WITH_EXPIRY_VALUE_VERSION), (90, NO_EPOCH, 1)],
)
def test_only_an_offset_with_a_retention_of_its_own_is_written_in_the_old_version(
    expire_at_ms: int, epoch_read: int, version: int
) -> None:
    committed = CommittedOffset(5, 7, "m", 80, expire_at_ms)
    key, value = offset_record("g", ("t", 3), committed)
    assert value is not None
    assert (int.from_bytes(key[:2], "big"), int.from_bytes(value[:2], "big")) == (1, version)
    replay = Replay()
    replay.apply(key, value)
    assert replay.groups()[0].offsets == {("t", 3): committed._replace(leader_epoch=epoch_read, log_offset=0)}


NUMBERS = st.integers(-1, 2**63 - 1)


@given(
    st.builds(
        CommittedOffset, NUMBERS, st.integers(-1, 2**31 - 1), st.sampled_from(["", "m"]), NUMBERS, NUMBERS, NUMBERS
    )
)
def test_a_committed_offset_is_kept_as_it_is_and_as_its_record_says(committed: CommittedOffset) -> None:
    kept = CommittedOffsets({("t", 0): committed})
    assert kept == {("t", 0): committed}
    _, value = offset_record("g", ("t", 0), committed)
    assert value is not None
    assert is_plain(value) is (committed.metadata == "" and committed.expire_at_ms == -1)
    if is_plain(value):
        kept.set_plain(("t", 0), value, committed.log_offset)
        assert kept["t", 0] == committed == decode_offset(value, committed.log_offset)


def test_offsets_with_the_oldest_keys_are_read_and_records_without_keys_skipped() -> None:
    key, value = offset_record("g", ("t", 0), at(5))
    replay = Replay()
    replay.apply(b"\x00\x00" + key[2:], value)
    assert replay.groups()[0].offsets["t", 0].offset == 5
    for nothing in (b"", b"\x00"):
        replay.apply(nothing, value)
    assert replay.skipped == ["a record of __consumer_offsets has no key"] * 2


def test_a_tombstone_removes_one_offset_and_the_last_one_the_group() -> None:
    replay = Replay()
    for partition in (0, 1):
        replay.apply(*offset_record("g", ("t", partition), at(partition)))
    replay.apply(*offset_tombstone("g", ("t", 0)))
    assert [set(group.offsets) for group in replay.groups()] == [{("t", 1)}]
    replay.apply(*offset_tombstone("g", ("t", 1)))
    replay.apply(*offset_tombstone("absent", ("t", 1)))
    assert replay.groups() == []
    replay.apply(*group_record("g", Membership(generation=1)))
    assert [group.membership.generation for group in replay.groups()] == [1]
    replay.apply(*group_tombstone("g"))
    assert (replay.groups(), replay.skipped) == ([], [])


def test_the_largest_generation_that_has_a_successor_is_read() -> None:
    replay = Replay()
    replay.apply(*group_record("g", Membership(generation=(1 << 31) - 2)))
    assert [group.membership.generation for group in replay.groups()] == [(1 << 31) - 2]


@pytest.mark.parametrize("protocol_type", ["consumer", None])
def test_a_group_comes_back_as_it_was_written(protocol_type: str | None) -> None:
    group = Membership(GroupState.STABLE, 70, 5, protocol_type, "range", "a", assignments={"a": b"all", "b": b"some"})
    for name in ("b", "a"):
        group.add(GroupMember(name, f"i-{name}", "c", "h", 30, 20, (("range", name.encode()),)))
    replay = Replay(3)
    replay.apply(*group_record("g", group))
    (restored,) = replay.groups()
    found = restored.membership
    assert (restored.group_id, restored.partition, found.state, found.state_since_ms) == ("g", 3, GroupState.STABLE, 70)
    assert (found.generation, found.protocol_type, found.protocol) == (5, protocol_type, "range")
    assert (found.leader_id, found.static_ids) == ("a", {"i-b": "b", "i-a": "a"})
    assert [(m.member_id, m.client_id, m.client_host, m.session_timeout_ms) for m in found.members.values()] == [
        ("b", "c", "h", 20),
        ("a", "c", "h", 20),
    ]
    assert [(m.metadata_for("range"), m.metadata_for("other")) for m in found.members.values()] == [
        (b"b", b""),
        (b"a", b""),
    ]
    assert found.assignments == {"a": b"all", "b": b"some"}
    assert not found.new | found.joining | found.syncing


def test_a_member_without_a_rebalance_timeout_has_its_session_timeout_for_it() -> None:
    group = Membership(GroupState.STABLE, generation=1, protocol_type="consumer", protocol="range")
    for name, rebalance_ms in (("old", -1), ("zero", 0), ("new", 30)):
        group.add(GroupMember(name, None, "c", "h", rebalance_ms, 20, (("range", b""),)))
    replay = Replay()
    replay.apply(*group_record("g", group))
    (restored,) = replay.groups()
    found = restored.membership
    assert {member.member_id: member.rebalance_timeout_ms for member in found.members.values()} == {
        "old": 20,
        "zero": 0,
        "new": 30,
    }
