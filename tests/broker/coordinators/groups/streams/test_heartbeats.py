"""Members of a streams group: what heartbeats return, step by step, without I/O."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from parley.broker.coordinators.decision import ProducerIdentity
from parley.broker.coordinators.groups.classic.member_decisions import Joiner
from parley.broker.coordinators.groups.classic_requests import join as classic_join
from parley.broker.coordinators.groups.offset_decisions import Committer, commit, commit_transactional, delete_group
from parley.broker.coordinators.groups.streams.configuration import SUBTOPOLOGIES_MAX, StatusCode
from parley.broker.coordinators.groups.streams.heartbeats import changes_nothing, heartbeat
from parley.broker.coordinators.groups.streams.streams_group import MemberState, StreamsGroupState
from parley.broker.coordinators.groups.streams.tasks import CurrentTasks, MemberTasks, still_has_any
from parley.broker.metadata.types import ConfigResource, ResourceType
from parley.protocol.errors import ErrorCode, KafkaError
from parley.protocol.messages.groups import JoinGroupRequest
from parley.protocol.messages.streams_groups import StreamsGroupHeartbeatResponse
from tests.broker.coordinators.groups.consumer.bench import context, with_topics
from tests.broker.coordinators.groups.grouped import at
from tests.broker.coordinators.groups.streams.bench import (
    COUNTS,
    GROUP,
    PLAIN,
    Request,
    StreamsBench,
    said,
    subtopology,
    topic,
    topology,
)


def statuses(response: StreamsGroupHeartbeatResponse) -> list[StatusCode]:
    return [StatusCode(each.status_code) for each in response.status or ()]


def code_of(call: Callable[[], object]) -> ErrorCode:
    with pytest.raises(KafkaError) as raised:
        call()
    return raised.value.code


def plain(**properties: str) -> StreamsBench:
    return StreamsBench(with_topics(a=4, store=4), **properties)


# --- Members ---


def test_a_settled_member_that_says_nothing_changes_nothing() -> None:
    group = plain()
    epoch = group.join("m").member_epoch
    group.heartbeat("m", epoch)  # the first heartbeat that finds the group looks at its topics

    def says(**fields: Any) -> bool:
        said: dict[str, Any] = {
            "group_id": GROUP,
            "member_id": "m",
            "member_epoch": epoch,
            "endpoint_information_epoch": 0,
        }
        return changes_nothing(Request(**(said | fields)), context(0), group.shard)

    assert says()
    assert not says(member_id="n")
    assert not says(member_epoch=epoch - 1)
    assert not says(endpoint_information_epoch=-1)
    assert not says(shutdown_application=True)
    assert not says(active_tasks=[])
    group.change_topics(a=4, store=4, other=1)
    assert not says()


@pytest.mark.parametrize(
    ("fact", "value"),
    [
        ("epoch", 100),
        ("is_delayed", True),
        ("shutdown_by", "m"),
        ("endpoint_epoch", 1),
        ("validated_epoch", -1),
        ("metadata_checked", False),
        ("configured", None),
        ("topology", None),
        ("last_settings", {"num.standby.replicas": "2"}),
        ("target_epoch", 100),
    ],
)
def test_a_member_is_not_settled_if_any_single_fact_of_its_group_is_not(fact: str, value: Any) -> None:
    group = plain()
    epoch = group.join("m").member_epoch
    group.heartbeat("m", epoch)
    heartbeat = Request(group_id=GROUP, member_id="m", member_epoch=epoch, endpoint_information_epoch=0)
    assert changes_nothing(heartbeat, context(0), group.shard)
    setattr(group.group, fact, value)
    assert not changes_nothing(heartbeat, context(0), group.shard)


def test_a_client_with_another_name_or_address_is_not_settled() -> None:
    group = plain()
    epoch = group.join("m").member_epoch
    group.heartbeat("m", epoch)
    details = group.group.members["m"].details
    heartbeat = Request(group_id=GROUP, member_id="m", member_epoch=epoch, endpoint_information_epoch=0)
    for changed in ({"client_id": "other"}, {"client_host": "/192.0.2.1"}, {"topology_epoch": -1}):
        group.group.members["m"] = replace(group.group.members["m"], details=replace(details, **changed))
        assert not changes_nothing(heartbeat, context(0), group.shard), changed


def test_a_member_has_all_tasks_and_gives_half_of_them_to_a_second_one() -> None:
    group = plain()
    first = group.join("m")
    assert (first.member_epoch, said(first.active_tasks)) == (2, {"0": [0, 1, 2, 3]})
    assert (said(first.standby_tasks), said(first.warmup_tasks), statuses(first)) == ({}, {}, [])
    second = group.join("n")
    assert (second.member_epoch, said(second.active_tasks)) == (3, {})  # m has them all
    assert group.group.state() is StreamsGroupState.RECONCILING

    told = group.owning("m", 2, {"0": [0, 1, 2, 3]})
    assert (told.member_epoch, said(told.active_tasks)) == (2, {"0": [0, 1]})
    assert group.heartbeat("m", 2).active_tasks is None  # it has not given them up yet
    assert group.heartbeat("n", 3).active_tasks is None
    done = group.owning("m", 2, {"0": [0, 1]})
    assert (done.member_epoch, done.active_tasks) == (3, None)
    assert said(group.heartbeat("n", 3).active_tasks) == {"0": [2, 3]}
    assert group.group.state() is StreamsGroupState.STABLE


def test_a_member_still_has_a_task_of_one_kind() -> None:
    some, others = {"0": frozenset({1, 2})}, {"0": frozenset({3}), "1": frozenset({1})}
    assert still_has_any(MemberTasks(active=some), CurrentTasks(active={"0": {2: 1}}))
    assert still_has_any(MemberTasks(standby=some), CurrentTasks(standby=some))
    assert still_has_any(MemberTasks(warmup=some), CurrentTasks(warmup=some))
    assert not still_has_any(MemberTasks(some, some, some), CurrentTasks(standby=others, warmup=others))


def test_a_member_that_leaves_or_is_silent_frees_its_tasks() -> None:
    group = plain()
    group.join("m")
    group.join("n")
    left = group.leave("m")
    assert left.member_epoch == -1
    assert (left.heartbeat_interval_ms, left.task_offset_interval_ms, left.acceptable_recovery_lag) == (0, 0, 0)
    assert said(group.heartbeat("n", 3).active_tasks) == {"0": [0, 1, 2, 3]}
    group.fire(("streams-session", GROUP, "n"))
    assert group.group.state() is StreamsGroupState.EMPTY
    assert not group.timers
    assert not group.group.owners.active
    assert code_of(lambda: group.heartbeat("n", 4)) is ErrorCode.UNKNOWN_MEMBER_ID


def test_a_member_that_does_not_give_up_its_tasks_in_time_is_removed() -> None:
    group = plain()
    group.join("m")
    group.join("n")
    group.owning("m", 2, {"0": [0, 1, 2, 3]})
    assert group.group.members["m"].progress.state is MemberState.UNREVOKED_TASKS
    assert all(timer.is_patient for timer in group.timers.values()), "a broker that was busy removes no member for it"
    group.fire(("streams-rebalance", GROUP, "m"))
    assert said(group.heartbeat("n", 3).active_tasks) == {"0": [0, 1, 2, 3]}


def test_foreign_epochs_are_fenced_except_that_of_a_lost_response() -> None:
    group = plain()
    group.join("m")
    group.join("n")
    group.owning("n", 3, {})
    for epoch in (7, 1):
        assert code_of(lambda epoch=epoch: group.heartbeat("m", epoch)) is ErrorCode.FENCED_MEMBER_EPOCH  # type: ignore[misc]
    group.owning("m", 2, {"0": [0, 1]})  # gives up two, and the response is lost
    assert group.group.members["m"].progress.epoch == 3
    assert group.owning("m", 2, {"0": [0, 1]}).member_epoch == 3
    assert code_of(lambda: group.owning("m", 2, {"0": [0, 3]})) is ErrorCode.FENCED_MEMBER_EPOCH
    assert code_of(lambda: group.heartbeat("m", 2)) is ErrorCode.FENCED_MEMBER_EPOCH
    assert code_of(lambda: group.owning("m", 3, {"0": [4]})) is ErrorCode.INVALID_REQUEST
    assert code_of(lambda: group.owning("m", 3, {"9": [0]})) is ErrorCode.INVALID_REQUEST


def test_a_member_may_still_have_a_task_whose_topic_was_made_again_with_fewer_partitions() -> None:
    group = plain()
    group.join("m")
    group.change_topics(a=2, store=2)
    assert said(group.owning("m", 2, {"0": [0, 1, 2, 3]}).active_tasks) == {"0": [0, 1]}
    assert code_of(lambda: group.owning("m", 2, {"0": [4]})) is ErrorCode.INVALID_REQUEST


def test_a_member_whose_response_was_lost_gets_its_tasks_again() -> None:
    group = plain()
    group.join("m")
    group.join("n")
    group.owning("m", 2, {"0": [0, 1, 2, 3]})  # lost: it is to give up two
    told = group.owning("m", 2, {"0": [0, 1, 2, 3]})
    assert (told.member_epoch, said(told.active_tasks)) == (2, {"0": [0, 1]})
    group.owning("m", 2, {"0": [0, 1]})
    group.owning("n", 3, {})  # lost: it gets two, in the same epoch
    assert said(group.owning("n", 3, {}).active_tasks) == {"0": [2, 3]}
    group.leave("n")
    group.heartbeat("m", 3)  # lost: it gets two, in the next epoch
    again = group.owning("m", 3, {"0": [0, 1]})
    assert (again.member_epoch, said(again.active_tasks)) == (4, {"0": [0, 1, 2, 3]})
    assert group.owning("m", 4, {"0": [0, 1, 2, 3]}).active_tasks is None


def test_a_group_has_a_maximum_size_and_only_members_that_join_make_it() -> None:
    group = plain(group_streams_max_size="1")
    assert code_of(lambda: group.heartbeat("m", 1)) is ErrorCode.GROUP_ID_NOT_FOUND
    assert code_of(lambda: group.leave("m")) is ErrorCode.GROUP_ID_NOT_FOUND
    group.join("m")
    assert code_of(lambda: group.join("n")) is ErrorCode.GROUP_MAX_SIZE_REACHED
    assert code_of(lambda: group.join("m")) is ErrorCode.GROUP_MAX_SIZE_REACHED, "as in Kafka"
    assert group.heartbeat("m", 2).member_epoch == 2
    assert not group.replayed().groups.keys() - {GROUP}


def test_an_epoch_counts_and_is_logged_when_its_records_are_written(caplog: pytest.LogCaptureFixture) -> None:
    group, begun = plain(), []
    group.shard.on_streams_epoch_begun = lambda: begun.append(group.now_ms)
    caplog.set_level("INFO")
    request = Request(
        group_id=GROUP,
        member_id="m",
        member_epoch=0,
        endpoint_information_epoch=-1,
        topology=PLAIN,
        process_id="p",
        rebalance_timeout_ms=60_000,
        active_tasks=[],
        standby_tasks=[],
        warmup_tasks=[],
    )
    decision = heartbeat(request, context(0), group.shard, group.now_ms)  # may be dropped, and made again in a turn
    assert (begun, caplog.messages) == ([], [])
    group.decide(lambda shard, now_ms: decision)
    assert decision.then is not None
    decision.then()
    assert (len(begun), caplog.messages) == (1, ["streams group has a new target assignment"])
    later = Request(group_id=GROUP, member_id="m", member_epoch=2, endpoint_information_epoch=-1)
    assert heartbeat(later, context(0), group.shard, group.now_ms).then is None


def test_members_receive_a_requested_shutdown_until_the_group_is_empty() -> None:
    group = plain()
    group.join("m")
    group.join("n")
    assert statuses(group.heartbeat("n", 3, shutdown_application=True)) == [StatusCode.SHUTDOWN_APPLICATION]
    assert statuses(group.heartbeat("m", 2)) == [StatusCode.SHUTDOWN_APPLICATION]
    group.leave("m")
    group.leave("n")
    assert statuses(group.join("m")) == []


def test_the_first_assignment_waits_for_more_members() -> None:
    group = plain(group_streams_initial_rebalance_delay_ms="3000")
    assert statuses(group.join("m")) == [StatusCode.ASSIGNMENT_DELAYED]
    assert (group.heartbeat("m", 1).member_epoch, group.timers["streams-delay", GROUP].delay_ms) == (1, 3000)
    assert said(group.join("n").active_tasks) == {}
    group.fire(("streams-delay", GROUP))
    assert [len(each.active["0"]) for each in group.group.targets.values()] == [2, 2]
    assert said(group.heartbeat("m", 1).active_tasks) == {"0": [0, 2]}
    assert said(group.heartbeat("n", 1).active_tasks) == {"0": [1, 3]}


def test_another_assignment_waits_for_its_interval() -> None:
    group = plain(group_streams_assignment_interval_ms="1000")
    group.join("m")
    assert statuses(group.join("n")) == [StatusCode.ASSIGNMENT_DELAYED]
    group.now_ms += 1000
    group.heartbeat("n", 2)
    assert group.group.target_epoch == 3


# --- Standby tasks and settings ---


def test_standby_tasks_follow_the_setting_and_are_never_beside_their_task() -> None:
    group = plain(group_streams_num_standby_replicas="1")
    first = group.join("m")
    assert said(first.standby_tasks) == {}  # there is no other program
    group.join("same", process="p-m")
    group.join("n")
    for _ in range(4):
        for member_id in ("m", "same", "n"):
            member = group.group.members[member_id]
            now = member.progress.assigned
            active = {each: sorted(tasks) for each, tasks in now.active.items()}
            standby = {each: sorted(tasks) for each, tasks in now.standby.items()}
            group.owning(member_id, member.progress.epoch, active, standby)
    assert group.group.state() is StreamsGroupState.STABLE
    owners = group.group.owners
    assert len(owners.active) == len(owners.standby) == 4
    assert all(owners.active[task] not in programs for task, programs in owners.standby.items())

    configs = {ConfigResource(ResourceType.GROUP, GROUP): {"streams.num.standby.replicas": "0"}}
    group.image = replace(group.image, configs=configs)
    epoch = group.group.epoch
    group.heartbeat("m", group.group.members["m"].progress.epoch)
    assert group.group.epoch == epoch + 1
    assert not any(target.standby for target in group.group.targets.values())


# --- The topology ---


def test_missing_internal_topics_are_named_and_the_group_is_ready_once_they_exist() -> None:
    group = StreamsBench(with_topics(a=3))
    joined = group.outcome(
        "m", 0, topology=COUNTS, process_id="p", rebalance_timeout_ms=1000, active_tasks=[], standby_tasks=[],
        warmup_tasks=[],
    )  # fmt: skip
    assert [(each.name, each.partitions) for each in joined.to_create] == [("r", 3), ("store", 3)]
    (status,) = joined.response.status or []
    assert status.status_code == StatusCode.MISSING_INTERNAL_TOPICS
    assert status.status_detail == "Internal topics are missing: r, store"
    assert group.group.state() is StreamsGroupState.NOT_READY
    assert said(joined.response.active_tasks) == {}
    group.change_topics(a=3, r=3, store=3)
    ready = group.outcome("m", 2)
    assert ready.to_create == ()
    assert statuses(ready.response) == []
    assert said(ready.response.active_tasks) == {"0": [0, 1, 2], "1": [0, 1, 2]}
    group.change_topics(r=3, store=3)
    assert statuses(group.heartbeat("m", 3)) == [StatusCode.MISSING_SOURCE_TOPICS]
    assert group.group.state() is StreamsGroupState.NOT_READY
    assert group.group.targets["m"].active == {}


def test_more_partitions_of_a_source_make_the_internal_topics_wrong() -> None:
    group = StreamsBench(with_topics(a=3, r=3, store=3))
    group.join("m", COUNTS)
    group.change_topics(a=4, r=3, store=3)
    response = group.heartbeat("m", 2)
    assert statuses(response) == [StatusCode.INCORRECTLY_PARTITIONED_TOPICS]
    assert "expected 4, found 3" in (response.status or [])[0].status_detail


JOINED = topology(subtopology("0", ["a", "b"], together=True))
FIXED = topology(
    subtopology("0", ["a"], sinks=("r",)), subtopology("1", ["b"], repartitions=(topic("r", 5),), together=True)
)
FLEXIBLE = topology(
    subtopology("0", ["a"], sinks=("r",)), subtopology("1", ["b"], repartitions=(topic("r"),), together=True)
)


@pytest.mark.parametrize(
    ("wanted", "topics", "expected"),
    [
        (JOINED, {"a": 2, "b": 2}, None),
        (JOINED, {"a": 2, "b": 3}, StatusCode.INCORRECTLY_PARTITIONED_TOPICS),
        (FIXED, {"a": 2, "b": 3}, StatusCode.INCORRECTLY_PARTITIONED_TOPICS),
        (FIXED, {"a": 2, "b": 5, "r": 5}, None),
        (FLEXIBLE, {"a": 2, "b": 3, "r": 3}, None),
        (FLEXIBLE, {"a": 2, "b": 3, "r": 2}, StatusCode.INCORRECTLY_PARTITIONED_TOPICS),
    ],
)
def test_topics_that_are_joined_must_have_equally_many_partitions(
    wanted: Request.Topology, topics: dict[str, int], expected: StatusCode | None
) -> None:
    response = StreamsBench(with_topics(**topics)).join("m", wanted)
    assert statuses(response) == ([] if expected is None else [expected])


LOOP = topology(
    subtopology("0", [], sinks=("s",), repartitions=(topic("r"),)),
    subtopology("1", [], sinks=("r",), repartitions=(topic("s"),)),
)
MANY = topology(*(subtopology(str(each), ["a"]) for each in range(SUBTOPOLOGIES_MAX + 1)))
OUT_OF_RANGE = subtopology("0", ["a"], together=True)
OUT_OF_RANGE.copartition_groups[0].source_topics = [1]


@pytest.mark.parametrize(
    ("wanted", "code"),
    [
        (LOOP, ErrorCode.STREAMS_INVALID_TOPOLOGY),
        (topology(subtopology("0", ["a"], repartitions=(topic("r"),))), ErrorCode.STREAMS_INVALID_TOPOLOGY),
        (topology(subtopology("0", [], changelogs=("store",))), ErrorCode.STREAMS_INVALID_TOPOLOGY),
        (MANY, ErrorCode.STREAMS_INVALID_TOPOLOGY),
        (topology(subtopology("0", ["a"], repartitions=(topic("r", 2**31 - 1),))), ErrorCode.STREAMS_INVALID_TOPOLOGY),
        (topology(OUT_OF_RANGE), ErrorCode.UNKNOWN_SERVER_ERROR),
        (topology(subtopology("0", ["a"]), subtopology("0", ["a"])), ErrorCode.UNKNOWN_SERVER_ERROR),
        (topology(subtopology("0", ["a"]), epoch=-1), ErrorCode.UNKNOWN_SERVER_ERROR),
        (topology(subtopology("0", ["a"], repartitions=(topic("r", -2),))), ErrorCode.UNKNOWN_SERVER_ERROR),
    ],
)
def test_a_topology_that_cannot_work_makes_no_group(wanted: Request.Topology, code: ErrorCode) -> None:
    group = StreamsBench(with_topics(a=4))
    assert code_of(lambda: group.join("m", wanted)) is code
    assert not group.log


def test_an_older_topology_is_stale_and_another_one_is_refused() -> None:
    group = plain()
    group.join("m", topology(*PLAIN.subtopologies, epoch=3))
    assert statuses(group.join("n", PLAIN)) == [StatusCode.STALE_TOPOLOGY]
    for other in (topology(*PLAIN.subtopologies, epoch=4), topology(subtopology("0", ["b"]), epoch=3)):
        assert code_of(lambda other=other: group.join("o", other)) is ErrorCode.INVALID_REQUEST  # type: ignore[misc]


def test_endpoints_show_the_partitions_of_their_tasks() -> None:
    group = StreamsBench(with_topics(a=2, store=2))
    assert group.join("m", user_endpoint=Request.Endpoint(host="h", port=1)).endpoint_information_epoch == 0
    second = group.join("n")
    (endpoint,) = second.partitions_by_user_endpoint or []
    assert (endpoint.user_endpoint.host, endpoint.user_endpoint.port) == ("h", 1)
    assert [(each.topic, each.partitions) for each in endpoint.active_partitions] == [("a", [0, 1])]


# --- The next coordinator ---


def test_the_next_coordinator_has_the_group_and_its_members_go_on() -> None:
    group = plain()
    group.join("m", user_endpoint=Request.Endpoint(host="h", port=1), rack_id="r", client_tags=[])
    group.join("n")
    group.owning("m", 2, {"0": [0, 1, 2, 3]})
    before = group.group
    group.reload()
    after = group.group
    for name in ("epoch", "metadata_hash", "validated_epoch", "topology", "members", "targets", "owners"):
        assert getattr(after, name) == getattr(before, name), name
    assert set(group.timers) == {
        ("streams-session", GROUP, "m"), ("streams-session", GROUP, "n"), ("streams-rebalance", GROUP, "m")
    }  # fmt: skip
    assert group.owning("m", 2, {"0": [0, 1]}).member_epoch == 3
    assert said(group.heartbeat("n", 3).active_tasks) == {"0": [2, 3]}


# --- Offsets and other protocols ---


def commit_as(group: StreamsBench, member_id: str, epoch: int, partition: int, version: int = 10) -> object:
    committer = Committer(GROUP, member_id, None, epoch, version)
    return group.decide(lambda shard, now_ms: commit(shard, committer, {("a", partition): at(5)}))


def test_members_commit_in_their_epoch_or_for_tasks_that_they_have_had_since() -> None:
    group = plain()
    group.join("m")
    commit_as(group, "m", 2, 3)
    group.join("n")
    group.owning("m", 2, {"0": [0, 1]})
    group.heartbeat("n", 3)
    commit_as(group, "m", 2, 0)
    assert code_of(lambda: commit_as(group, "m", 2, 3)) is ErrorCode.STALE_MEMBER_EPOCH
    assert code_of(lambda: commit_as(group, "m", 9, 0)) is ErrorCode.STALE_MEMBER_EPOCH
    assert code_of(lambda: commit_as(group, "x", 3, 0)) is ErrorCode.UNKNOWN_MEMBER_ID
    assert code_of(lambda: commit_as(group, "", -1, 0)) is ErrorCode.UNKNOWN_MEMBER_ID
    assert code_of(lambda: commit_as(group, "m", 3, 0, version=8)) is ErrorCode.UNSUPPORTED_VERSION
    producer = ProducerIdentity(1, 0)
    old = Committer(GROUP, "m", None, 2)
    offsets = {("a", 3): at(5)}

    def transactional() -> object:
        return group.decide(lambda shard, now_ms: commit_transactional(shard, old, producer, offsets))

    assert code_of(transactional) is ErrorCode.ILLEGAL_GENERATION


def test_a_group_without_members_is_deleted_or_becomes_a_classic_one() -> None:
    group = plain()
    group.join("m")

    def delete() -> object:
        return group.decide(lambda shard, now_ms: delete_group(shard, GROUP))

    def classic() -> object:
        kind = JoinGroupRequest
        protocols = [kind.JoinGroupRequestProtocol(name="range", metadata=b"")]
        request = kind(
            group_id=GROUP, session_timeout_ms=9000, member_id="", protocol_type="consumer", protocols=protocols
        )
        joiner = Joiner("c", "h", 3, "new")
        return group.decide(lambda shard, now_ms: classic_join(request, joiner, context(3), shard, now_ms))

    assert code_of(delete) is ErrorCode.NON_EMPTY_GROUP
    assert code_of(classic) is ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    group.leave("m")
    delete()
    assert not group.replayed().groups
    group.join("m")
    group.leave("m")
    classic()
    assert group.shard.groups[GROUP].is_classic
    assert code_of(lambda: group.join("m")) is ErrorCode.GROUP_ID_NOT_FOUND


def test_offsets_of_a_group_without_members_of_any_kind_are_kept() -> None:
    group = plain()
    commit_as(group, "", -1, 2)
    group.join("m")
    assert group.shard.groups[GROUP].offsets[("a", 2)].offset == 5
