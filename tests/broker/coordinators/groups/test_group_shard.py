"""Committed offsets and groups of a shard: what is valid, what is removed, and when. In virtual time."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from itertools import product
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from parley.broker.coordinators.decision import Decision, ProducerIdentity
from parley.broker.coordinators.groups import group_shard, offset_decisions
from parley.broker.coordinators.groups.classic.membership import GroupMember, GroupState, Membership
from parley.broker.coordinators.groups.classic.responses import code_for_members
from parley.broker.coordinators.groups.committed_offsets import CommittedOffset
from parley.broker.coordinators.groups.group import Group
from parley.broker.coordinators.groups.group_records import group_record, offset_record
from parley.broker.coordinators.groups.group_shard import GroupShard
from parley.broker.coordinators.groups.offset_decisions import Committer
from parley.broker.coordinators.runtime import NotCommittedInTime
from parley.broker.metadata.changes import Delta, TopicDeleted
from parley.broker.metadata.image import MetadataImage
from parley.protocol.errors import ErrorCode, KafkaError, MalformedMessage
from parley.protocol.messages.stored import GroupMetadataValue
from parley.protocol.schema import ZERO_UUID
from tests.broker.coordinators.groups.grouped import NOT_A_MEMBER, Coordinated, at, empty_shard
from tests.broker.coordinators.test_shard import code_of, turn
from tests.support.proportion import examples
from tests.support.virtual_time import run

PRODUCER = ProducerIdentity(7, 0)
T0, T1, U0 = ("t", 0), ("t", 1), ("u", 0)


def verified() -> None:
    """The transaction is still open."""


def test_of_two_commits_in_progress_the_later_one_in_the_log_counts() -> None:
    async def scenario() -> None:
        bench = Coordinated(follows=False)
        await bench.begin()
        commits = [bench.commit(0, offset) for offset in (10, 20)]
        await turn()
        bench.log.moves_to(2)
        await asyncio.gather(*commits)
        assert bench.offsets() == bench.in_log() == {T0: 20}

    run(scenario())


def test_a_commit_is_not_shown_before_the_replicas_have_it() -> None:
    async def scenario() -> None:
        bench = Coordinated(follows=False)
        await bench.begin()
        commit = bench.commit(0, 10)
        await asyncio.sleep(0)
        reading = bench.groups.read("g", lambda group: group is not None and group.offsets[T0].offset)
        await turn()
        assert not reading.done()
        bench.log.moves_to(1)
        assert await reading == 10
        await commit

    run(scenario())


@pytest.mark.parametrize("follows", [True, False])
def test_a_group_deleted_during_a_commit_is_deleted_in_the_log_too(follows: bool) -> None:
    async def scenario() -> None:
        bench = Coordinated(follows=follows)
        await bench.begin()
        commit = bench.commit(0, 10)
        deletion = asyncio.ensure_future(bench.groups.delete("g"))
        await turn()
        bench.log.moves_to(bench.log.end_offset)
        await asyncio.gather(commit, deletion)
        assert bench.groups.find("g") is None
        assert bench.in_log() == {}

    run(scenario())


def test_offsets_committed_after_the_tombstone_stay() -> None:
    async def scenario() -> None:
        bench = Coordinated(follows=False)
        await bench.begin()
        submitted = [bench.commit(0, 10), asyncio.ensure_future(bench.groups.delete("g")), bench.commit(0, 20)]
        await turn()
        bench.log.moves_to(bench.log.end_offset)
        await asyncio.gather(*submitted)
        assert bench.offsets() == bench.in_log() == {T0: 20}

    run(scenario())


def test_commits_in_progress_for_a_deleted_topic_are_removed_too() -> None:
    async def scenario() -> None:
        bench = Coordinated(follows=False)
        await bench.begin()
        submitted = [bench.commit(0, 10), bench.commit(0, 5, topic="u")]
        await turn()
        image = MetadataImage("c")
        for name in ("t", bench.topic.name):
            bench.groups.apply(Delta(1, 1, (TopicDeleted(name, ZERO_UUID),)), image)
        await turn()
        bench.log.moves_to(bench.log.end_offset)
        await asyncio.gather(*submitted)
        await turn()
        assert bench.offsets() == bench.in_log() == {U0: 5}

    run(scenario())


@pytest.mark.parametrize("committed_first", ["g", "h"])
def test_commits_for_a_new_topic_of_the_same_name_stay(committed_first: str) -> None:
    """The removal waits for the replicas group by group, and a group may have been told of the new topic by then."""

    async def scenario() -> None:
        bench = Coordinated(follows=False)
        await bench.begin()
        others = Committer("h", "", None, -1)
        producing = bench.groups.commit_transactional(others, PRODUCER, {T1: at(7)}, verified)
        old = [bench.commit(0, 10), *map(asyncio.ensure_future, (bench.groups.commit(others, {T0: at(10)}), producing))]
        await turn()
        removing = asyncio.ensure_future(bench.groups.on_topic_deleted("t"))
        await turn()
        committer = Committer(committed_first, "", None, -1)
        new = asyncio.ensure_future(bench.groups.commit(committer, {T0: at(20)}))
        await turn()
        while not removing.done():
            bench.log.moves_to(bench.log.end_offset)
            await turn()
        await asyncio.gather(*old, removing, new)
        shard = bench.groups.runtime.state_of(0)
        assert {group.group_id: group.offsets[T0].offset for group in shard.groups.values()} == {committed_first: 20}
        assert not shard.open_transactions
        again = empty_shard()
        bench.log.replay(again)
        assert lasting(again) == lasting(shard)

    run(scenario())


def test_many_offsets_are_removed_in_several_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(offset_decisions, "TOMBSTONES_MAX", 2)

    async def scenario() -> None:
        bench = Coordinated()
        await bench.begin()
        offsets = {("t", partition): at(1) for partition in range(5)}
        await bench.groups.commit(NOT_A_MEMBER, offsets)
        await bench.groups.on_topic_deleted("t")
        assert [len(rows) for rows in bench.log.rows()] == [5, 2, 2, 1]
        await bench.groups.commit(NOT_A_MEMBER, offsets)
        await asyncio.sleep(8 * 24 * 3600)
        group = bench.groups.find("g")
        assert group is not None
        await bench.groups.expire_group(group)
        assert [len(rows) for rows in bench.log.rows()[5:]] == [2, 2, 2], "the last tombstone is that of the group"
        assert bench.groups.find("g") is None

    run(scenario())


@pytest.mark.parametrize("deletes_group", [True, False])
def test_more_offsets_are_deleted_than_fit_in_a_batch(deletes_group: bool) -> None:
    """DeleteGroups and OffsetDelete: a group may have committed, over time, more than one batch of tombstones."""

    async def scenario() -> None:
        bench = Coordinated()
        await bench.begin()
        partitions = [("t", number) for number in range(50)]
        await bench.groups.commit(NOT_A_MEMBER, dict.fromkeys(partitions, at(1)))
        bench.log.batch_bytes_max = 300
        if deletes_group:
            await bench.groups.delete("g")
            assert bench.groups.find("g") is None
        else:
            codes = await bench.groups.delete_offsets("g", dict.fromkeys(partitions, ErrorCode.NONE))
            assert set(codes.values()) == {ErrorCode.NONE}
        assert bench.offsets() == bench.in_log() == {}
        assert len(bench.log.batches) > 5
        assert max(map(len, bench.log.batches[1:])) <= 300

    run(scenario())


def test_only_offsets_that_may_be_deleted_are() -> None:
    async def scenario() -> None:
        bench = Coordinated()
        await bench.begin()
        await bench.groups.commit(NOT_A_MEMBER, {T0: at(1), T1: at(2)})
        wanted = {T0: ErrorCode.TOPIC_AUTHORIZATION_FAILED, T1: ErrorCode.NONE}
        assert await bench.groups.delete_offsets("g", wanted) == wanted
        assert bench.offsets() == bench.in_log() == {T0: 1}

    run(scenario())


def test_offsets_that_cannot_be_removed_now_stay_and_are_named(caplog: pytest.LogCaptureFixture) -> None:
    async def scenario() -> None:
        bench = Coordinated()
        await bench.begin()
        await asyncio.gather(bench.commit(0, 5), bench.commit(0, 5, topic="u"))
        bench.log.unwritable = ErrorCode.NOT_ENOUGH_REPLICAS
        group = bench.groups.find("g")
        assert group is not None
        await bench.groups.on_topic_deleted("t")
        bench.groups._now_ms = lambda: 1 << 50
        await bench.groups.expire_group(group)
        assert bench.offsets() == {T0: 5, U0: 5}

    with caplog.at_level(logging.WARNING):
        run(scenario())
    assert [line.message for line in caplog.records] == [
        "offsets of a deleted topic remain",
        "expired offsets could not be removed",
    ]


def test_only_old_clients_commits_may_leave_the_group_unnamed() -> None:
    async def scenario() -> None:
        bench = Coordinated()
        await bench.begin()
        unnamed = Committer("", "", None, -1)
        bench.groups.check_commit(unnamed)
        await bench.groups.commit(unnamed, {T0: at(5)})
        assert await bench.groups.read("", lambda group: group is not None and list(group.offsets)) == [T0]
        for refused in (bench.groups.check_owned, bench.groups.find):
            with pytest.raises(KafkaError, match="INVALID_GROUP_ID"):
                refused("")
        for writing in (
            bench.groups.delete(""),
            bench.groups.delete_offsets("", {}),
            bench.groups.commit_transactional(unnamed, PRODUCER, {T0: at(5)}, verified),
        ):
            assert await code_of(writing) is ErrorCode.INVALID_GROUP_ID
        bench.groups.check_owned("g")

    run(scenario())


def test_changes_that_do_not_fit_a_record_fail_with_errors_that_clients_understand() -> None:
    async def scenario() -> None:
        bench = Coordinated()
        await bench.begin()
        await bench.commit(0, 10)
        bench.log.batch_bytes_max = 10
        assert await code_of(bench.groups.commit(NOT_A_MEMBER, {T0: at(1)})) is ErrorCode.INVALID_COMMIT_OFFSET_SIZE
        assert await code_of(bench.groups.delete("g")) is ErrorCode.UNKNOWN_SERVER_ERROR

    run(scenario())


def test_members_understand_why_their_generation_is_not_stored() -> None:
    assert code_for_members(NotCommittedInTime()) is ErrorCode.REBALANCE_IN_PROGRESS
    assert code_for_members(KafkaError(ErrorCode.MESSAGE_TOO_LARGE)) is ErrorCode.UNKNOWN_SERVER_ERROR
    assert code_for_members(KafkaError(ErrorCode.NOT_COORDINATOR)) is ErrorCode.NOT_COORDINATOR


@pytest.mark.parametrize(
    ("state", "expected"),
    [
        (GroupState.STABLE, ErrorCode.NON_EMPTY_GROUP),
        (GroupState.PREPARING_REBALANCE, ErrorCode.NON_EMPTY_GROUP),
    ],
)
def test_only_an_empty_group_can_be_deleted(state: GroupState, expected: ErrorCode) -> None:
    async def scenario() -> None:
        bench = Coordinated()
        (await bench.begin()).find_or_create("g").membership = Membership(state)
        assert await code_of(bench.groups.delete("g")) is expected
        assert await code_of(bench.groups.delete("absent")) is ErrorCode.GROUP_ID_NOT_FOUND
        assert not bench.log.batches

    run(scenario())


def test_a_group_with_an_id_given_out_or_a_commit_in_progress_does_not_expire() -> None:
    async def scenario() -> None:
        bench = Coordinated(follows=False)
        group = (await bench.begin()).find_or_create("g")
        group.membership = Membership(generation=1, pending=frozenset({"m"}))
        await bench.groups.expire_group(group)
        group.membership = Membership(generation=1)
        commit = asyncio.ensure_future(
            bench.groups.commit(NOT_A_MEMBER, {T0: at(10)._replace(commit_timestamp_ms=1 << 50)})
        )
        await turn()
        await bench.groups.expire_group(group)
        bench.log.moves_to(1)
        await commit
        assert len(bench.written()) == 1, "nothing but the commit"
        assert bench.groups.all() == [group]

    run(scenario())


def test_a_group_that_was_never_used_is_dropped() -> None:
    async def scenario() -> None:
        bench = Coordinated()
        shard = await bench.begin()
        joined = Membership(members={"m": GroupMember("m", None, "c", "h", 1, 1, ())})
        shard.change_membership("g", joined, [])
        group = shard.groups["g"]
        shard.change_membership("g", joined, [])
        assert bench.groups.find("g") is group
        shard.change_membership("g", Membership(), [])
        assert (shard.groups, group.membership.state) == ({}, GroupState.DEAD)
        again = shard.find_or_create("g")
        shard.drop_unused(group)
        assert bench.groups.find("g") is again

    run(scenario())


def test_members_are_restored_and_removed_with_their_shard() -> None:
    shard = empty_shard()
    stored = Membership(GroupState.STABLE, generation=3, protocol_type="consumer", protocol="range")
    stored.add(GroupMember("m", None, "c", "h", 1, 6_000, (("range", b""),)))
    shard.replay(*group_record("stored", stored), None, 0)
    shard.find_or_create("offsets only")
    assert shard.membership_of("stored").members == {}, "membership begins when all is loaded"
    timers = shard.loaded(0)
    assert {key: (timer.delay_ms, timer.is_patient) for key, timer in timers.items()} == {
        ("session", "stored", "m"): (6_000, True)
    }
    group = shard.groups["stored"]
    assert (group.membership.state, list(group.membership.members)) == (GroupState.STABLE, ["m"])
    shard.unloaded()
    assert (shard.groups, group.membership.state) == ({}, GroupState.DEAD)


def test_offsets_are_the_same_whether_their_key_is_known_or_not(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(group_shard, "KNOWN_MAX", 1)
    shard, again = empty_shard(), empty_shard()
    written = []
    for number, (group_id, topic, metadata) in enumerate(product("gh", "tu", ("", "m"))):
        for partition in (0, 300, -1):
            committed = CommittedOffset(number, 7, metadata, 80)
            written.append(offset_record(group_id, (topic, partition), committed))
    for offset, (key, value) in enumerate(written):
        shard.replay(key, value, None, offset)
    for offset, (key, value) in enumerate(written):
        again._known.clear()
        again.replay(key, value, None, offset)
    assert lasting(shard) == lasting(again)
    assert len(shard.groups["g"].offsets) == 6
    for value in (b"", b"\x00\x03", bytes(24), b"\x00\x03" + bytes(12) + b"\x00\x01" + bytes(8)):
        with pytest.raises(MalformedMessage):
            shard.replay(written[-1][0], value, None, 99)
    assert lasting(shard) == lasting(again)


# --- Transactions ---


async def transactional(bench: Coordinated, offsets: dict[tuple[str, int], int], producer: int = 7) -> None:
    found = {partition: at(offset) for partition, offset in offsets.items()}
    await bench.groups.commit_transactional(NOT_A_MEMBER, ProducerIdentity(producer, 0), found, verified)


async def end(bench: Coordinated, *, committed: bool, producer: int = 7) -> None:
    await bench.groups.runtime.append_marker(0, producer, 0, committed=committed, coordinator_epoch=0)


def test_offsets_in_a_transaction_count_from_its_commit_on() -> None:
    async def scenario() -> None:
        bench = Coordinated()
        shard = await bench.begin()
        await bench.commit(0, 5)
        await transactional(bench, {T0: 10, T1: 11})
        await transactional(bench, {U0: 12}, producer=8)
        group = shard.groups["g"]
        assert bench.offsets() == {T0: 5}
        assert [group.has_pending_offset(partition) for partition in (T0, T1, U0, ("u", 1))] == [
            True,
            True,
            True,
            False,
        ]
        await end(bench, committed=True)
        assert bench.offsets() == {T0: 10, T1: 11}
        assert not group.has_pending_offset(T0)
        await end(bench, committed=False, producer=8)
        await end(bench, committed=True, producer=9)
        assert bench.offsets() == bench.in_log() == {T0: 10, T1: 11}
        assert (shard.open_transactions, group.pending_offsets) == ({}, {})

    run(scenario())


def test_a_commit_after_that_in_the_transaction_counts_whenever_the_transaction_ends() -> None:
    async def scenario() -> None:
        bench = Coordinated()
        await bench.begin()
        await transactional(bench, {T0: 10, T1: 11})
        await bench.commit(0, 20)
        await end(bench, committed=True)
        assert bench.offsets() == bench.in_log() == {T0: 20, T1: 11}

    run(scenario())


def test_a_deleted_offset_or_group_is_deleted_in_open_transactions_too() -> None:
    async def scenario() -> None:
        bench = Coordinated()
        shard = await bench.begin()
        await transactional(bench, {T0: 10, T1: 11})
        codes = await bench.groups.delete_offsets("g", {T0: ErrorCode.NONE, U0: ErrorCode.UNKNOWN_TOPIC_OR_PARTITION})
        assert codes == {T0: ErrorCode.NONE, U0: ErrorCode.UNKNOWN_TOPIC_OR_PARTITION}
        assert shard.groups["g"].pending_offsets == {7: {T1: at(11)._replace(log_offset=1)}}
        await bench.groups.delete("g")
        assert (shard.groups, shard.open_transactions) == ({}, {})
        await end(bench, committed=True)
        assert bench.offsets() == bench.in_log() == {}

    run(scenario())


def test_an_aborted_transaction_leaves_no_group() -> None:
    async def scenario() -> None:
        bench = Coordinated()
        shard = await bench.begin()
        await transactional(bench, {T0: 10})
        group = shard.groups["g"]
        await bench.groups.expire_group(group)
        assert shard.groups == {"g": group}, "it may be committed yet"
        await end(bench, committed=False)
        assert shard.groups == {}

    run(scenario())


@pytest.mark.parametrize(("version", "code"), [(8, ErrorCode.ILLEGAL_GENERATION), (9, ErrorCode.GROUP_ID_NOT_FOUND)])
def test_a_member_of_a_group_that_does_not_exist_may_not_commit(version: int, code: ErrorCode) -> None:
    with pytest.raises(KafkaError) as raised:
        offset_decisions.commit(empty_shard(), Committer("g", "m", None, 0, version), {T0: at(1)})
    assert raised.value.code is code


@pytest.mark.parametrize("group_exists", [False, True])
def test_without_a_generation_any_member_id_may_commit_to_a_group_without_members(group_exists: bool) -> None:
    shard = empty_shard()
    if group_exists:
        shard.find_or_create("g")
    committer = Committer("g", "m", None, -1)
    assert offset_decisions.commit(shard, committer, {T0: at(1)}).records
    group = shard.find_or_create("g")
    group.membership = membership = Membership(generation=3)
    membership.add(GroupMember("other", None, "c", "h", 1, 1, ()))
    with pytest.raises(KafkaError) as raised:
        offset_decisions.commit(shard, committer, {T0: at(1)})
    assert raised.value.code is ErrorCode.UNKNOWN_MEMBER_ID


def test_the_offsets_of_unknown_partitions_are_not_found_even_if_a_member_reads_the_topic() -> None:
    shard = empty_shard()
    shard.find_or_create("g").membership = membership = Membership(generation=3, protocol_type="consumer")
    membership.add(GroupMember("m", None, "c", "h", 1, 1, ()))
    unknown = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    decision = offset_decisions.delete_offsets(shard, "g", {T0: ErrorCode.NONE, T1: unknown})
    assert decision.reply == {T0: ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC, T1: unknown}


def test_which_producers_may_commit_for_a_group() -> None:
    shard = empty_shard()

    def code(member: str, generation: int, instance: str | None = None) -> ErrorCode:
        committer = Committer("g", member, instance, generation)
        try:
            offset_decisions.commit_transactional(shard, committer, PRODUCER, {T0: at(1)})
        except KafkaError as error:
            return error.code
        return ErrorCode.NONE

    assert code("", -1) is ErrorCode.NONE
    assert code("", 3) is ErrorCode.ILLEGAL_GENERATION, "the group does not exist"
    assert code("", -1, "i") is ErrorCode.NONE, "its consumer is static, and assigns partitions itself"
    group = shard.find_or_create("g")
    group.membership = membership = Membership(generation=3)
    assert code("", -1, "i") is ErrorCode.NONE
    membership.add(GroupMember("m", "i", "c", "h", 1, 1, ()))
    for state in (GroupState.STABLE, GroupState.COMPLETING_REBALANCE, GroupState.PREPARING_REBALANCE):
        membership.state = state
        assert code("m", 3) is ErrorCode.NONE, "a transaction may end while the group rebalances"
    assert code("", -1) is ErrorCode.NONE, "a producer from before KIP-447"
    assert code("", -1, "j") is ErrorCode.UNKNOWN_MEMBER_ID
    assert code("m", 2) is ErrorCode.ILLEGAL_GENERATION
    assert code("other", 3) is ErrorCode.UNKNOWN_MEMBER_ID
    assert code("other", 3, "i") is ErrorCode.FENCED_INSTANCE_ID


def test_open_transactions_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(offset_decisions, "OPEN_TRANSACTIONS_MAX", 2)

    async def scenario() -> None:
        bench = Coordinated()
        await bench.begin()
        await transactional(bench, {T0: 10}, producer=1)
        await transactional(bench, {T0: 10}, producer=2)
        assert await code_of(transactional(bench, {T0: 10}, producer=3)) is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
        await transactional(bench, {T1: 10}, producer=2)
        await end(bench, committed=True, producer=1)
        await transactional(bench, {T0: 10}, producer=3)

    run(scenario())


# --- Any history ---

names = st.sampled_from(["g", "h"])
places = st.sampled_from([T0, T1, U0])
producers = st.integers(0, 2)
steps = st.one_of(
    st.tuples(st.just("commit"), names, places, st.integers(0, 99)),
    st.tuples(st.just("transaction"), names, places, producers),
    st.tuples(st.just("marker"), st.booleans(), producers, st.none()),
    st.tuples(st.just("store"), names, st.integers(0, 9), st.booleans()),
    st.tuples(st.just("delete offset"), names, places, st.none()),
    st.tuples(st.just("delete"), names, st.none(), st.none()),
    st.tuples(st.just("expire"), names, st.integers(0, 200), st.none()),
    st.tuples(st.just("forget"), names, st.just("t"), st.none()),
    st.tuples(st.just("restart"), st.none(), st.none(), st.none()),
)

Lasting = dict[str, tuple[GroupMetadataValue | None, dict[Any, CommittedOffset], dict[int, dict[Any, CommittedOffset]]]]


def lasting(shard: GroupShard) -> Lasting:
    """Return what the records of a shard say of each group: its generation, its offsets, and its pending offsets."""
    found = {name: (group.stored, dict(group.offsets), group.pending_offsets) for name, group in shard.groups.items()}
    return {name: kept for name, kept in found.items() if any(kept)}


def producers_by_partition(group: Group) -> dict[Any, set[int]]:
    pending = group.pending_offsets.items()
    return {
        place: {producer for producer, places in pending if place in places} for _, some in pending for place in some
    }


class Model:
    """The offsets as the rules of KIP-98 say, computed from the history alone."""

    def __init__(self) -> None:
        self.offsets: dict[tuple[str, Any], tuple[int, int]] = {}
        self.open: dict[int, dict[tuple[str, Any], tuple[int, int]]] = {}

    def forget(self, group: str, partition: Any) -> None:
        self.offsets.pop((group, partition), None)
        for pending in self.open.values():
            pending.pop((group, partition), None)

    def end(self, producer: int, committed: bool) -> None:
        for place, (number, offset) in self.open.pop(producer, {}).items():
            if committed and self.offsets.get(place, (-1, 0))[0] < number:
                self.offsets[place] = (number, offset)


@settings(deadline=None, max_examples=examples(200))
@given(st.lists(steps, max_size=30))
def test_replay_equals_live_and_offsets_follow_the_rules(script: list[tuple[str, Any, Any, Any]]) -> None:
    run(_play(script))


def storing(group_id: str, membership: Membership) -> Callable[[GroupShard, int], Decision[None]]:
    return lambda shard, now_ms: Decision(None, [group_record(group_id, membership)])


async def _play(script: list[tuple[str, Any, Any, Any]]) -> None:
    bench = Coordinated()
    shard, model = await bench.begin(), Model()
    for number, (what, one, two, three) in enumerate(script):
        committer = Committer(one, "", None, -1) if isinstance(one, str) else NOT_A_MEMBER
        group = shard.groups.get(one) if isinstance(one, str) else None
        match what:
            case "commit":
                if await code_of(bench.groups.commit(committer, {two: at(three)})) is ErrorCode.NONE:
                    model.offsets[one, two] = (number, three)
            case "transaction":
                await bench.groups.commit_transactional(
                    committer, ProducerIdentity(three, 0), {two: at(number)}, verified
                )
                model.open.setdefault(three, {})[one, two] = (number, number)
            case "marker":
                await end(bench, committed=one, producer=two)
                model.end(two, one)
            case "store":
                stored = Membership(generation=two, state_since_ms=3)
                if three:
                    stored.add(GroupMember("m", None, "c", "h", 1, 600_000, (("range", b""),)))
                await bench.groups.runtime.submit(one, storing(one, stored))
            case "delete offset":
                if await code_of(bench.groups.delete_offsets(one, {two: ErrorCode.NONE})) is ErrorCode.NONE:
                    model.forget(one, two)
            case "delete":
                if await code_of(bench.groups.delete(one)) is ErrorCode.NONE:
                    for place in (T0, T1, U0):
                        model.forget(one, place)
            case "forget":
                await bench.groups.on_topic_deleted(two)
                for name in ("g", "h"):
                    model.forget(name, T0)
                    model.forget(name, T1)
            case "expire":
                await asyncio.sleep(two * 3600)
                if group is not None and one in shard.groups:
                    before = set(group.offsets)
                    await bench.groups.expire_group(group)
                    for place in before - set(group.offsets):
                        model.forget(one, place)
            case "restart":
                bench.groups.runtime.on_elected(0, number + 2)
                await bench.groups.runtime.until_loaded(1)
                shard = bench.groups.runtime.state_of(0)
        again = empty_shard()
        assert bench.log.replay(again).skipped == 0
        assert lasting(again) == lasting(shard)
        assert again.open_transactions == shard.open_transactions
        for group in shard.groups.values():
            assert group.pending_producers == producers_by_partition(group)
        found = {
            (name, place): kept.offset
            for name, (_, offsets, _) in lasting(shard).items()
            for place, kept in offsets.items()
        }
        assert found == {place: offset for place, (_, offset) in model.offsets.items()}
    bench.groups.runtime.resign_all()
