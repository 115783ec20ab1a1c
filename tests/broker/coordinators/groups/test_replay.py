"""Loading groups from arbitrary records: invalid records are skipped, and groups work with the rest."""

from __future__ import annotations

import asyncio

from hypothesis import example, given, settings
from hypothesis import strategies as st

from parley.broker.coordinators.decision import KeyValue
from parley.broker.coordinators.groups.classic.membership import GroupState, Membership
from parley.broker.coordinators.groups.committed_offsets import CommittedOffset
from parley.broker.coordinators.groups.group_records import group_record, offset_record
from parley.broker.coordinators.groups.offset_expiry import expired_offsets, subscribes_to
from parley.protocol.codec import encode_stored
from parley.protocol.messages.stored import GroupMetadataKey, GroupMetadataValue
from parley.protocol.records.batch import build
from tests.broker.coordinators.groups.classic.test_member_decisions import Bench
from tests.broker.coordinators.groups.grouped import Coordinated, Replay
from tests.support.proportion import examples
from tests.support.virtual_time import run

GENERATION_MAX = (1 << 31) - 1
LONGEST_SESSION_MS = 600_000
"""The longest session that a whole record has. A changed bit may make it longer."""
small = st.integers(-(1 << 31), GENERATION_MAX)
texts = st.text(max_size=5)
members = st.builds(
    GroupMetadataValue.MemberMetadata,
    member_id=texts,
    group_instance_id=st.none() | texts,
    client_id=texts,
    client_host=texts,
    rebalance_timeout=small,
    session_timeout=st.integers(-(1 << 31), LONGEST_SESSION_MS),
    subscription=st.binary(max_size=20),
    assignment=st.binary(max_size=5),
)
generations = st.builds(
    GroupMetadataValue,
    protocol_type=st.just("consumer") | texts,
    generation=small | st.integers(0, 3),
    protocol=st.none() | texts,
    leader=st.none() | texts,
    current_state_timestamp=st.integers(-(1 << 63), (1 << 63) - 1),
    members=st.lists(members, max_size=4),
)


@st.composite
def records(draw: st.DrawFn) -> KeyValue:
    """Return a record of a group or an offset, whole, cut, or with a byte changed, or arbitrary bytes."""
    if draw(st.booleans()):
        key = encode_stored(GroupMetadataKey(group=draw(texts)), 2)
        value = encode_stored(draw(generations), 3)
    else:
        committed = CommittedOffset(draw(small), draw(small), draw(texts), draw(small), draw(small))
        key, found = offset_record(draw(texts), (draw(texts), draw(small)), committed)
        value = found or b""
    parts = [bytearray(key), bytearray(value)]
    for part in parts:
        match draw(st.sampled_from(["whole", "whole", "cut", "changed", "bytes"])):
            case "cut":
                del part[draw(st.integers(0, len(part) - 1)) :]
            case "changed":
                part[draw(st.integers(0, len(part) - 1))] ^= 1 << draw(st.integers(0, 7))
            case "bytes":
                part[:] = draw(st.binary(max_size=30))
    return bytes(parts[0]), draw(st.sampled_from([bytes(parts[1]), None]))


def with_a_changed_bit() -> list[KeyValue]:
    """Return a group of two members, one of which has a session of 16,777 s."""
    short, long = (
        GroupMetadataValue.MemberMetadata(
            member_id=member_id,
            group_instance_id=None,
            client_id="",
            client_host="",
            rebalance_timeout=-1,
            session_timeout=session_ms,
            subscription=b"",
            assignment=b"",
        )
        for member_id, session_ms in (("short", 0), ("long", 1 << 24))
    )
    value = GroupMetadataValue(
        protocol_type="consumer",
        generation=0,
        protocol=None,
        leader="short",
        current_state_timestamp=0,
        members=[short, long],
    )
    return [(encode_stored(GroupMetadataKey(group="g"), 2), encode_stored(value, 3))]


GOOD = offset_record("good", ("t", 0), CommittedOffset(5, -1, "", 0))


@given(st.lists(records(), max_size=10))
@example(with_a_changed_bit())
@settings(max_examples=examples(300), deadline=None)
def test_valid_records_are_replayed_among_any_others(written: list[KeyValue]) -> None:
    replay = Replay()
    for key, value in written:
        replay.apply(key, value)
    replay.apply(*GOOD)
    groups = {group.group_id: group for group in replay.groups()}
    assert groups["good"].offsets["t", 0].offset == 5
    assert all(replay.skipped), "each names its reason"

    async def live() -> None:
        for group in groups.values():
            group_record(group.group_id, group.membership)
            expired_offsets(group, 1, 1)
            subscribes_to(group, "t")
        await outlive([*written, GOOD])

    run(live())


async def outlive(written: list[KeyValue]) -> None:
    """Let the sessions of the members found in the log expire, and let a new member join each group."""
    coordinated = Coordinated(properties={"group.initial.rebalance.delay.ms": "0"})
    for key, value in written:
        coordinated.log.append(build([(0, 0, key, value, ())]))
    shard = await coordinated.begin()
    members = [member for group in shard.groups.values() for member in group.membership.members.values()]
    longest_ms = max((member.session_timeout_ms for member in members), default=0)
    await asyncio.sleep(2 * max(longest_ms, LONGEST_SESSION_MS) / 1000)
    for group_id in filter(None, list(shard.groups)):
        bench = Bench(coordinated, shard, group_id)
        assert not bench.group.members
        assert bench.group.state is GroupState.EMPTY
        joined = await bench.join()
        assert bench.group.leader_id == joined.member_id
        assert (await bench.sync(joined, {joined.member_id: b"all"})).assignment == b"all"
    coordinated.groups.runtime.resign_all()


def test_a_generation_without_a_successor_is_skipped() -> None:
    for generation in (-1, GENERATION_MAX):
        replay = Replay()
        replay.apply(*group_record("g", Membership(generation=generation)))
        assert (replay.groups(), replay.skipped) == ([], [f"invalid generation {generation}"])
