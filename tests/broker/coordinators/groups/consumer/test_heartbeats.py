"""Heartbeats of consumer groups, case by case, with Kafka's decisions."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import pytest

from parley.broker.coordinators.decision import Decision, ProducerIdentity
from parley.broker.coordinators.groups.background import BackgroundWork
from parley.broker.coordinators.groups.classic.membership import GroupState
from parley.broker.coordinators.groups.classic_requests import leave
from parley.broker.coordinators.groups.consumer import regexes
from parley.broker.coordinators.groups.consumer.consumer_group import ConsumerGroupState
from parley.broker.coordinators.groups.consumer.consumer_protocol import owned_partitions
from parley.broker.coordinators.groups.consumer.group_change import install_targets
from parley.broker.coordinators.groups.consumer.heartbeats import changes_nothing
from parley.broker.coordinators.groups.consumer.member import MemberState
from parley.broker.coordinators.groups.consumer.regexes import AGAIN_AFTER_MS, REGEXES_MAX, matching, next_turn
from parley.broker.coordinators.groups.consumer.sessions import session
from parley.broker.coordinators.groups.decided_targets import DecidedTargets
from parley.broker.coordinators.groups.group_shard import GroupShard
from parley.broker.coordinators.groups.offset_decisions import Committer, commit_transactional, delete_group
from parley.broker.runtime.tasks import TaskSet
from parley.protocol.codec import encode_stored
from parley.protocol.errors import ErrorCode, KafkaError
from parley.protocol.messages.consumer_groups import ConsumerGroupHeartbeatRequest
from parley.protocol.messages.groups import LeaveGroupRequest
from parley.protocol.messages.stored import ConsumerProtocolAssignment
from tests.broker.coordinators.groups.consumer.bench import (
    GROUP,
    REBALANCE_MS,
    ConsumerBench,
    context,
    matched,
    topic_id,
    with_topics,
)
from tests.broker.coordinators.groups.grouped import at


def bench(**properties: str) -> ConsumerBench:
    return ConsumerBench(with_topics(a=4), **properties)


def owned(*partitions: int, topic: str = "a") -> list[ConsumerGroupHeartbeatRequest.TopicPartitions]:
    kind = ConsumerGroupHeartbeatRequest.TopicPartitions
    return [kind(topic_id=topic_id(topic), partitions=list(partitions))] if partitions else []


def assignment(**partitions: list[int]) -> bytes:
    """Return the assignment of a member of the classic protocol, as its leader sends it."""
    kind = ConsumerProtocolAssignment
    parts = [kind.TopicPartition(topic=topic, partitions=each) for topic, each in partitions.items()]
    return encode_stored(kind(assigned_partitions=parts), 3)


def refused(code: ErrorCode, call: object, *args: object, **fields: object) -> None:
    with pytest.raises(KafkaError) as raised:
        call(*args, **fields)  # type: ignore[operator]
    assert raised.value.code is code


def test_a_settled_member_that_says_nothing_changes_nothing() -> None:
    group = bench()
    epoch = group.join("m", "a").member_epoch

    def says(**fields: Any) -> bool:
        said: dict[str, Any] = {"group_id": GROUP, "member_id": "m", "member_epoch": epoch}
        return changes_nothing(ConsumerGroupHeartbeatRequest(**(said | fields)), context(), group.shard)

    assert says()
    assert not says(member_id="n")
    assert not says(member_epoch=epoch - 1)
    assert not says(instance_id="i")
    assert not says(topic_partitions=[])
    assert not says(subscribed_topic_names=["a"])
    group.change_topics(a=4, b=1)
    assert not says()


@pytest.mark.parametrize(
    ("field", "detail", "value"),
    [
        ("rebalance_timeout_ms", "rebalance_timeout_ms", 0),
        ("server_assignor", "assignor", "range"),
        ("rack_id", "rack_id", "r2"),
        ("subscribed_topic_regex", "regex", "b.*"),
        ("subscribed_topic_names", "topics", ("b",)),
    ],
)
def test_a_heartbeat_may_change_a_single_detail(field: str, detail: str, value: Any) -> None:
    group = bench()
    epoch = group.join("m", "a").member_epoch
    before = group.group.members["m"].details
    group.heartbeat("m", epoch, **{field: value})
    assert group.group.members["m"].details == replace(before, **{detail: value})


def test_the_first_member_gets_everything() -> None:
    group = bench()
    response = group.join("m", "a")
    assert (response.member_id, response.member_epoch, response.heartbeat_interval_ms) == ("m", 2, 5_000)
    assert response.assignment is not None
    assert [each.partitions for each in response.assignment.topic_partitions] == [[0, 1, 2, 3]]
    assert group.group.state() is ConsumerGroupState.STABLE
    assert group.heartbeat("m", 2).assignment is None
    assert group.heartbeat("m", 2, topic_partitions=owned(0, 1, 2, 3)).assignment is None


def test_a_partition_is_given_to_another_member_only_when_the_first_no_longer_has_it() -> None:
    group = bench()
    group.join("m1", "a")
    second = group.join("m2", "a")
    assert second.assignment is not None
    assert second.assignment.topic_partitions == []
    assert group.progress("m2").state is MemberState.UNRELEASED_PARTITIONS
    told = group.heartbeat("m1", 2, topic_partitions=owned(0, 1, 2, 3))
    assert told.member_epoch == 2
    assert told.assignment is not None
    assert group.progress("m1").state is MemberState.UNREVOKED_PARTITIONS
    assert ("member-rebalance", GROUP, "m1") in group.timers
    assert group.heartbeat("m2", 3).assignment is None
    assert group.heartbeat("m1", 2, topic_partitions=owned(0, 1)).member_epoch == 3
    assert ("member-rebalance", GROUP, "m1") not in group.timers
    got = group.heartbeat("m2", 3)
    assert got.assignment is not None
    assert [each.partitions for each in got.assignment.topic_partitions] == [[2, 3]]
    assert group.group.state() is ConsumerGroupState.STABLE


def test_a_member_that_does_not_revoke_in_time_is_removed() -> None:
    group = bench()
    group.join("m1", "a")
    group.join("m2", "a")
    group.heartbeat("m1", 2)
    group.fire(("member-rebalance", GROUP, "m1"))
    assert list(group.group.members) == ["m2"]
    group.heartbeat("m2", 3)
    assert group.assigned("m2") == {"a": [0, 1, 2, 3]}
    refused(ErrorCode.UNKNOWN_MEMBER_ID, group.heartbeat, "m1", 2)


def test_a_silent_member_is_removed() -> None:
    group = bench()
    group.join("m", "a")
    group.fire(("member-session", GROUP, "m"))
    assert group.group.state() is ConsumerGroupState.EMPTY
    assert group.timers.keys() == set()


def test_a_member_that_missed_a_response_may_send_its_previous_epoch() -> None:
    group = bench()
    group.join("m1", "a")
    group.join("m2", "a")
    group.heartbeat("m1", 2, topic_partitions=owned(0, 1, 2, 3))
    group.heartbeat("m1", 2, topic_partitions=owned(0, 1))
    assert group.heartbeat("m1", 2, topic_partitions=owned(0, 1)).member_epoch == 3
    refused(ErrorCode.FENCED_MEMBER_EPOCH, group.heartbeat, "m1", 2, topic_partitions=owned(3))
    refused(ErrorCode.FENCED_MEMBER_EPOCH, group.heartbeat, "m1", 2)
    refused(ErrorCode.FENCED_MEMBER_EPOCH, group.heartbeat, "m1", 4)
    assert group.join("m1", "a").member_epoch == 3  # it joins again, and keeps what it has


def test_unknown_groups_and_members() -> None:
    group = bench()
    for epoch in (1, -1):
        refused(ErrorCode.GROUP_ID_NOT_FOUND, group.heartbeat, "m", epoch)
    group.join("m", "a")
    for epoch in (1, -1):
        refused(ErrorCode.UNKNOWN_MEMBER_ID, group.heartbeat, "x", epoch)
        refused(ErrorCode.UNKNOWN_MEMBER_ID, group.heartbeat, "x", epoch, instance_id="i")


def test_the_response_to_a_leaving_member_has_no_heartbeat_interval() -> None:
    group = bench()
    group.join("m", "a")
    left = group.heartbeat("m", -1)
    assert (left.member_epoch, left.heartbeat_interval_ms) == (-1, 0)


def test_topics_are_checked_once_until_they_change() -> None:
    group = bench()
    epoch = group.join("m", "a").member_epoch
    assert group.group.metadata_checked
    group.reload()
    assert not group.group.metadata_checked  # they may have changed while another broker coordinated the group
    assert group.heartbeat("m", epoch).member_epoch == epoch
    assert group.group.metadata_checked


def test_a_group_has_a_maximum_size() -> None:
    group = bench(group_consumer_max_size="1")
    group.join("m", "a")
    refused(ErrorCode.GROUP_MAX_SIZE_REACHED, group.join, "n", "a")
    assert group.join("m", "a").member_epoch == 2


def test_a_static_member_that_left_for_now_gets_its_partitions_back() -> None:
    group = bench()
    group.join("m1", "a", instance_id="i")
    refused(ErrorCode.UNRELEASED_INSTANCE_ID, group.join, "m2", "a", instance_id="i")
    assert group.heartbeat("m1", -2, instance_id="i").member_epoch == -2
    epoch = group.group.epoch
    back = group.join("m2", "a", instance_id="i")
    assert back.member_epoch == group.group.epoch == epoch  # nothing is assigned again
    assert group.assigned("m2") == {"a": [0, 1, 2, 3]}
    refused(ErrorCode.FENCED_INSTANCE_ID, group.heartbeat, "m1", epoch, instance_id="i")
    assert list(group.group.members) == ["m2"]
    assert set(group.progress("m2").assigned[topic_id("a")].values()) == {0}, "it may commit in any earlier epoch"


def test_other_topics_and_more_partitions_are_another_epoch() -> None:
    group = bench()
    group.join("m", "a", "b")
    group.change_topics(a=4, b=2)
    assert group.heartbeat("m", 2).member_epoch == 3
    assert group.assigned("m") == {"a": [0, 1, 2, 3], "b": [0, 1]}
    group.change_topics(a=5, b=2)
    assert group.heartbeat("m", 3).member_epoch == 4
    group.change_topics(a=5, b=2, other=1)
    assert group.heartbeat("m", 4).member_epoch == 4


def test_the_target_assignment_waits_for_the_interval() -> None:
    group = bench(group_consumer_assignment_interval_ms="1000")
    group.join("m1", "a")
    assert group.join("m2", "a").member_epoch == 2
    assert group.group.state() is ConsumerGroupState.ASSIGNING
    group.now_ms += 1_000
    group.fire(("assign", GROUP))
    assert group.group.target_epoch == 3
    assert group.targets() == {"m1": {"a": (0, 1)}, "m2": {"a": (2, 3)}}


def test_a_coordinator_whose_clock_is_behind_decides_at_once() -> None:
    group = bench(group_consumer_assignment_interval_ms="1000")
    group.join("m1", "a")
    group.now_ms -= 500_000
    group.join("m2", "a")
    assert group.group.target_epoch == 3
    assert group.targets() == {"m1": {"a": (0, 1)}, "m2": {"a": (2, 3)}}


def test_a_group_that_was_deleted_leaves_no_target_to_the_next_one_of_its_name() -> None:
    group = bench(group_consumer_assignment_interval_ms="1000")
    group.join("m1", "a")
    group.join("m2", "a")
    before = group.group
    for member in ("m1", "m2"):
        group.heartbeat(member, -1)
    group.decide(lambda shard, now_ms: delete_group(shard, GROUP))
    group.join("m3", "a")
    group.join("m4", "a")
    assert group.group.state() is ConsumerGroupState.ASSIGNING
    epoch, targets = group.group.epoch, group.targets()
    group.decide(partial(install_targets, before, epoch, {}, DecidedTargets({}, {})))
    assert (group.group.target_epoch, group.targets()) == (epoch - 1, targets)


def test_the_assignor_that_most_members_want_decides() -> None:
    group = bench()
    group.join("m1", "a", server_assignor="range")
    group.join("m2", "a")
    assert group.targets() == {"m1": {"a": (0, 1)}, "m2": {"a": (2, 3)}}


# --- Regular expressions ---


def test_a_coordinator_whose_clock_is_behind_matches_a_new_expression() -> None:
    group = ConsumerBench(with_topics(a=2, b=1))
    group.join("m1", subscribed_topic_regex="a.*")
    group.resolve()
    group.resolving.clear()
    group.now_ms -= 500_000
    group.join("m2", subscribed_topic_regex="b.*")
    assert group.resolving == [GROUP]
    group.resolve()
    assert set(group.group.regexes) == {"a.*", "b.*"}


def test_only_a_full_heartbeat_gets_the_assignment_again() -> None:
    group = ConsumerBench(with_topics(a=2))
    epoch = group.join("m", "a").member_epoch
    said = {"subscribed_topic_names": ["a"], "topic_partitions": []}
    assert group.heartbeat("m", epoch, **said).assignment is None
    assert group.heartbeat("m", epoch, rebalance_timeout_ms=REBALANCE_MS, **said).assignment is not None


def test_topics_that_a_member_gives_up_for_an_expression_without_match_go_to_others() -> None:
    group = ConsumerBench(with_topics(a=4))
    group.join("m1", subscribed_topic_regex="a.*")
    group.resolve()
    group.join("m2", "a")
    assert group.targets() == {"m1": {"a": (0, 1)}, "m2": {"a": (2, 3)}}
    group.now_ms += AGAIN_AFTER_MS + 1
    epoch = group.progress("m1").epoch
    group.heartbeat("m1", epoch, subscribed_topic_regex="z.*", rebalance_timeout_ms=REBALANCE_MS, topic_partitions=[])
    group.resolve()
    group.heartbeat("m2", group.progress("m2").epoch)
    assert group.targets()["m2"] == {"a": (0, 1, 2, 3)}


def test_a_regular_expression_is_matched_by_the_broker() -> None:
    group = ConsumerBench(with_topics(a=2, ab=1, b=1))
    assert group.join("m", subscribed_topic_regex="a.*").member_epoch == 1
    assert group.resolving == [GROUP]
    group.resolve()
    assert group.heartbeat("m", 1).member_epoch == 2
    assert group.assigned("m") == {"a": [0, 1], "ab": [0]}
    group.change_topics(a=2, ab=1, b=1, abc=1)
    group.resolving.clear()
    group.heartbeat("m", 2)
    assert group.resolving == []  # it was matched a moment ago
    group.now_ms += 10_001
    group.heartbeat("m", 2)
    assert group.resolving == [GROUP]
    group.resolve()
    group.heartbeat("m", 2)
    assert group.assigned("m") == {"a": [0, 1], "ab": [0], "abc": [0]}
    group.heartbeat("m", -1)
    assert group.group.regexes == {}


@pytest.mark.parametrize("regex", ["(", "a{2000}", "(?=a)", "x" * 2_049, "((a{100}){10}){10}", "(.?){1000}x", r"(a)\1"])
def test_a_regular_expression_that_is_invalid_or_too_large_is_refused(regex: str) -> None:
    group = bench()
    refused(ErrorCode.INVALID_REGULAR_EXPRESSION, group.join, "m", subscribed_topic_regex=regex)
    assert group.log == []


def test_heartbeats_do_not_prolong_the_rebalance_timeout() -> None:
    group = bench()
    group.join("m1", "a")
    group.join("m2", "a")
    group.heartbeat("m1", 2, topic_partitions=owned(0, 1, 2, 3))
    key = "member-rebalance", GROUP, "m1"
    timer = group.timers[key]
    group.heartbeat("m1", 2, topic_partitions=owned(0, 1, 2, 3))
    group.heartbeat("m1", 2)
    assert group.timers[key] is timer
    group.join("m1", "a")  # it has lost its partitions, so it has none to revoke
    assert key not in group.timers


def test_a_static_member_that_left_for_now_has_its_session_after_an_election() -> None:
    group = bench()
    group.join("m1", "a", instance_id="i")
    group.join("m2", "a")
    group.heartbeat("m1", 2, instance_id="i", topic_partitions=owned(0, 1, 2, 3))
    assert ("member-rebalance", GROUP, "m1") in group.timers
    group.heartbeat("m1", -2, instance_id="i")
    group.reload()
    assert ("member-rebalance", GROUP, "m1") not in group.timers
    assert ("member-session", GROUP, "m1") in group.timers


def test_a_member_has_one_instance_id() -> None:
    group = bench()
    for number in range(3):
        group.join("m", "a", instance_id=f"i{number}")
    assert group.group.static_ids == {"i2": "m"}


def test_timers_of_long_ids_are_not_remembered() -> None:
    assert session("g", "m" * 60, 10_000) is session("g", "m" * 60, 10_000)
    assert session("g", "m" * 128, 10_000) is not session("g", "m" * 128, 10_000)


def test_a_group_has_a_limit_of_regular_expressions() -> None:
    group = bench()
    for number in range(REGEXES_MAX):
        group.join(f"m{number}", subscribed_topic_regex=f"a{number}")
    refused(ErrorCode.INVALID_REGULAR_EXPRESSION, group.join, "m", subscribed_topic_regex="a")
    group.join("m", subscribed_topic_regex="a0")


def test_names_and_equal_sets_of_matches_are_kept_once() -> None:
    group = bench()
    group.join("m1", subscribed_topic_regex="a.*")
    group.join("m2", subscribed_topic_regex="a|b")
    group.resolve()
    first, second = group.group.regexes.values()
    assert first.topics == {"a"}
    assert first.topics is second.topics


def test_a_match_without_result_is_not_repeated_at_once() -> None:
    group = bench()
    group.join("m", subscribed_topic_regex="a")
    group.now_ms += 10_000
    group.heartbeat("m", 1)
    assert group.resolving == [GROUP]
    group.now_ms += 1
    group.heartbeat("m", 1)
    assert group.resolving == [GROUP, GROUP]


def test_an_expression_that_no_longer_compiles_matches_nothing_and_others_do() -> None:
    found = matched(["(", "a"], ["a", "b"])
    assert found.topics == {"(": frozenset(), "a": {"a"}}
    assert list(found.invalid) == ["("]


async def test_a_match_that_fits_in_no_record_leaves_the_others_alone(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(regexes, "TURN_MAX", 1)
    group = ConsumerBench(with_topics(a=1, b=1))
    group.join("m1", subscribed_topic_regex="a")
    group.join("m2", subscribed_topic_regex="a|b")

    def submit(_partition: int, decide: Callable[[GroupShard, int], Decision[None]]) -> asyncio.Future[None]:
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        if any(b"\x02b" in (value or b"") for _, value in decide(group.shard, group.now_ms).records):
            done.set_exception(KafkaError(ErrorCode.MESSAGE_TOO_LARGE, "too large"))
        else:
            group.decide(decide)
            done.set_result(None)
        return done

    tasks = TaskSet()
    work = BackgroundWork(submit, lambda _context, names: set(names), tasks, None)
    for _ in range(2):
        work.match(group.shard, GROUP, context())
        await asyncio.gather(*asyncio.all_tasks() - {asyncio.current_task()})
    await tasks.close()
    assert {regex: resolved.topics for regex, resolved in group.group.regexes.items()} == {"a": {"a"}, "a|b": set()}
    assert [each.message for each in caplog.records].count("a regular expression cannot be matched") == 1


def test_the_work_of_a_turn_is_bounded_over_all_expressions_and_topics(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(regexes, "TURN_MAX", 10)
    names = ["abcd", "abce", "abcf", "abcg"]
    turns = matching([".*", "abc."], names)
    taken = [next_turn(turns) for _ in range(6)]
    assert taken[:-1] == [None] * 5, "two names twice, and then one each"
    assert taken[-1] is not None
    assert taken[-1].topics == {".*": set(names), "abc.": set(names)}


def test_an_error_about_missing_re2_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "re2", None)
    with pytest.raises(KafkaError, match="Install the package google-re2"):
        matched(["never compiled before"], ["a"])


# --- Administrators and transactional producers ---


@pytest.mark.parametrize(("member_id", "instance"), [("", "i"), ("m", None), ("m", "i")])
def test_administrators_remove_members_of_the_consumer_protocol(member_id: str, instance: str | None) -> None:
    """As in Apache Kafka 4.3.1: Admin.removeMembersFromConsumerGroup sends LeaveGroup."""
    group = bench()
    group.join("m", "a", instance_id="i")
    group.join("n", "a")
    kind = LeaveGroupRequest.MemberIdentity
    identities = [kind(member_id=member_id, group_instance_id=instance), kind(member_id="x")]
    codes = group.decide(lambda shard, now_ms: leave(GROUP, identities, shard, now_ms))
    assert codes == [ErrorCode.NONE, ErrorCode.UNKNOWN_MEMBER_ID]
    assert list(group.group.members) == ["n"]
    refused(ErrorCode.UNKNOWN_MEMBER_ID, group.heartbeat, "m", 2, instance_id="i")


def test_a_producer_with_a_stale_member_epoch_gets_an_error_that_it_knows() -> None:
    """Only after ILLEGAL_GENERATION, producers abort their transaction and continue. STALE_MEMBER_EPOCH is fatal."""
    group = bench()
    group.join("m", "a")
    group.join("n", "a")
    group.heartbeat("m", 2, topic_partitions=owned(0, 1))

    def send(epoch: int, partition: int) -> None:
        committer, producer = Committer(GROUP, "m", None, epoch), ProducerIdentity(1, 0)
        offsets = {("a", partition): at(5)}
        group.decide(lambda shard, now_ms: commit_transactional(shard, committer, producer, offsets))

    send(3, 0)
    send(2, 0)
    refused(ErrorCode.ILLEGAL_GENERATION, send, 2, 3)
    refused(ErrorCode.ILLEGAL_GENERATION, send, 4, 0)


# --- From one protocol to the other ---


def test_a_classic_group_becomes_a_consumer_group_and_a_classic_group_again() -> None:
    group = ConsumerBench(with_topics(a=4))
    group.classic_join("", "a", instance="i1", new_id="c1")
    group.fire(("rebalance", GROUP))
    generation = group.shard.membership_of(GROUP).generation
    group.classic_sync("c1", generation, c1=b"")
    assert group.shard.membership_of(GROUP).state is GroupState.STABLE
    joined = group.join("m", "a")
    assert joined.member_epoch == group.group.epoch == generation + 1
    assert group.group.members["c1"].details.classic is not None
    assert not group.shard.membership_of(GROUP).members
    assert group.classic_heartbeat_of_static("c1", "i1", generation) is ErrorCode.REBALANCE_IN_PROGRESS
    again = group.classic_join("c1", "a", instance="i1")
    assert again is not None
    assert again.generation_id == generation + 1
    assert group.group.state() is ConsumerGroupState.STABLE
    group.heartbeat("m", -1)
    assert group.shard.consumer_group(GROUP) is None
    membership = group.shard.membership_of(GROUP)
    assert (membership.state, list(membership.members)) == (GroupState.PREPARING_REBALANCE, ["c1"])
    assert membership.generation == generation + 1
    group.reload()
    assert group.shard.membership_of(GROUP).state is GroupState.STABLE


def test_a_classic_member_joins_again_only_when_there_is_another_assignment() -> None:
    group = ConsumerBench(with_topics(a=4), group_consumer_assignment_interval_ms="1000")
    group.join("m1", "a")
    group.now_ms += 1_000
    group.classic_join("", "a", instance="i1", new_id="c1")
    joined = group.progress("c1").epoch
    group.now_ms += 500
    group.join("m2", "a")
    assert group.group.state() is ConsumerGroupState.ASSIGNING
    assert group.classic_heartbeat_of_static("c1", "i1", joined) is ErrorCode.NONE, "it would get nothing new yet"
    group.now_ms += 500
    group.fire(("assign", GROUP))
    assert group.classic_heartbeat_of_static("c1", "i1", joined) is ErrorCode.REBALANCE_IN_PROGRESS


@pytest.mark.parametrize(("policy", "may"), [("disabled", False), ("downgrade", False), ("upgrade", True)])
def test_the_policy_decides_about_upgrades(policy: str, may: bool) -> None:
    group = bench(group_consumer_migration_policy=policy)
    group.classic_join("", "a", instance="i1", new_id="c1")
    if may:
        assert group.join("m", "a").member_epoch >= 1
        assert ("join", GROUP, "c1") in group.released
    else:
        refused(ErrorCode.GROUP_ID_NOT_FOUND, group.join, "m", "a")


@pytest.mark.parametrize(("policy", "may"), [("Disabled", False), ("downgrade", True), ("upgrade", True)])
def test_the_policy_decides_whether_classic_members_join_a_consumer_group(policy: str, may: bool) -> None:
    """As in Apache Kafka 4.3.1."""
    group = bench(group_consumer_migration_policy=policy)
    group.join("m", "a")
    if may:
        group.classic_join("", "a", instance="i1", new_id="c1")
        assert "c1" in group.group.members
    else:
        refused(ErrorCode.INCONSISTENT_GROUP_PROTOCOL, group.classic_join, "", "a", instance="i1", new_id="c1")
        assert list(group.group.members) == ["m"]
        group.heartbeat("m", -1)
        group.classic_join("", "a", instance="i1", new_id="c1")
        assert list(group.shard.membership_of(GROUP).members) == ["c1"]


def test_a_group_without_members_takes_the_protocol_of_the_next_one() -> None:
    group = bench()
    group.join("m", "a")
    group.heartbeat("m", -1)
    group.classic_join("", "a", instance="i1", new_id="c1")
    assert group.shard.consumer_group(GROUP) is None
    assert list(group.shard.membership_of(GROUP).members) == ["c1"]


def test_a_group_of_another_kind_is_not_upgraded() -> None:
    group = bench()
    group.classic_join("", "a", instance="i1", new_id="c1", protocol_type="connect")
    refused(ErrorCode.GROUP_ID_NOT_FOUND, group.join, "m", "a")


def test_an_empty_classic_group_waits_for_no_client_that_only_got_an_id() -> None:
    group = bench()
    group.classic_join("", "a", new_id="c1")
    assert ("pending", GROUP, "c1") in group.timers
    assert group.join("m", "a").member_epoch == 2
    assert ("pending", GROUP, "c1") not in group.timers
    joined = group.classic_join("c1", "a")
    assert joined is not None
    assert joined.error_code is ErrorCode.NONE


def test_partitions_that_no_topic_can_have_do_not_prevent_an_upgrade() -> None:
    group = bench()
    group.classic_join("", "a", instance="i1", new_id="c1")
    group.fire(("rebalance", GROUP))
    generation = group.shard.membership_of(GROUP).generation
    group.classic_sync("c1", generation, c1=assignment(a=[-1, 1, -9]))
    group.join("m", "a")
    assert group.assigned("c1") == {"a": [1]}
    assert sorted(each for target in group.targets().values() for each in target["a"]) == [0, 1, 2, 3]


class CountedPartition(int):
    """A partition that counts how often a set looks at it."""

    looks = 0

    def __hash__(self) -> int:
        CountedPartition.looks += 1
        return super().__hash__()


def test_a_topic_that_is_named_often_takes_no_longer_than_one_that_is_named_once() -> None:
    CountedPartition.looks = 0
    named: list[tuple[str, list[int]]] = [("a", [CountedPartition(number)]) for number in range(500)]
    found = owned_partitions([*named, ("none", [1])], with_topics(a=500))
    assert found == {topic_id("a"): tuple(range(500))}
    assert CountedPartition.looks == 500


def test_a_member_that_changes_its_protocol_keeps_no_timer_of_the_other_one() -> None:
    group = bench()
    group.join("m", "a")
    group.classic_join("c", "a")
    assert ("member-sync", GROUP, "c") in group.timers
    group.classic_heartbeat("c", group.progress("c").epoch)
    group.join("c", "a")
    kinds = ("member-session", "member-rebalance", "member-join", "member-sync")
    assert [kind for kind in kinds if (kind, GROUP, "c") in group.timers] == ["member-session"]
    group.join("n", "a")
    group.heartbeat("m", group.progress("m").epoch, topic_partitions=owned(0, 1, 2, 3))
    assert ("member-rebalance", GROUP, "m") in group.timers
    group.classic_join("m", "a")
    assert ("member-rebalance", GROUP, "m") not in group.timers


@pytest.mark.parametrize("is_static", [False, True])
def test_a_group_that_is_too_large_for_a_classic_group_stays_a_consumer_group(is_static: bool) -> None:
    group = bench()
    group.join("m", "a", instance_id="i" if is_static else None)
    group.classic_join("c", "a")
    group.batch_bytes_max = 100
    if is_static:
        group.heartbeat("m", -2, instance_id="i")
        group.classic_join("", "a", instance="i", new_id="m")
    else:
        group.fire(("member-session", GROUP, "m"))
    assert sorted(group.group.members) == (["c", "m"] if is_static else ["c"])
    group.classic_join("c", "a")
    group.batch_bytes_max = 1 << 20
    group.join("n", "a")
    group.heartbeat("n", -1)
    assert group.shard.consumer_group(GROUP) is None
