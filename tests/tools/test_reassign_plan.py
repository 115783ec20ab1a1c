"""Reassignment plans: JSON, throttles, and the descriptions of their states."""

from __future__ import annotations

import json

import pytest

from parley.tools.cli.byte_sizes import bytes_text
from parley.tools.cli.invocation import CommandError
from parley.tools.cli.json_input import parse_plan
from parley.tools.cli.reassign.plan import Target, as_json, log_dir_moves, parse_assignment, plan_of, with_factor
from parley.tools.cli.reassign.throttles import (
    FOLLOWER_THROTTLED,
    LEADER_THROTTLED,
    Ongoing,
    brokers_of,
    moves,
    throttled_replicas,
)
from parley.tools.cli.reassign.verifying import (
    PartitionMove,
    Progress,
    ReplicaMove,
    partition_line,
    progress_line,
    replica_line,
)

WHERE = ("t", 0)


def entry(**values: object) -> dict[str, object]:
    return {"topic": "t", "partition": 0, "replicas": [1, 2], **values}


def test_a_plan_is_read_and_written_as_kafka_does() -> None:
    plan = parse_assignment([entry(partition=1, log_dirs=["any", "/data"]), entry()])
    assert plan[WHERE] == Target((1, 2), ("any", "any"))
    assert log_dir_moves(plan) == {("t", 1, 2): "/data"}
    assert as_json(plan) == (
        '{"version":1,"partitions":[{"topic":"t","partition":0,"replicas":[1,2],"log_dirs":["any","any"]},'
        '{"topic":"t","partition":1,"replicas":[1,2],"log_dirs":["any","/data"]}]}'
    )
    assert parse_assignment(json.loads(as_json(plan))["partitions"]) == plan


@pytest.mark.parametrize(
    ("entries", "reason"),
    [
        ([], "list cannot be empty"),
        ([entry(replicas=[])], "replica list cannot be empty"),
        ([entry(), entry()], "duplicate topic partitions: t-0"),
        ([entry(replicas=[3, 3])], "t-0 contains multiple entries for 3"),
        ([entry(replicas=["1"])], "broker ids"),
        ([entry(replicas=[True])], "broker ids"),
        ([entry(replicas=1)], '"replicas"'),
        ([entry(partition="0")], '"partition"'),
        ([entry(partition=False)], '"partition"'),
        ([{"partition": 0, "replicas": [1]}], '"topic"'),
        ([entry(log_dirs=["/a"])], "different from size of log dirs list"),
        ([entry(log_dirs=[1, 2])], "paths"),
    ],
)
def test_invalid_plans_are_refused(entries: list[dict[str, object]], reason: str) -> None:
    with pytest.raises(CommandError, match=reason):
        parse_assignment(entries)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("xx", "not valid JSON"),
        ("[]", "must be an object"),
        ('{"version": 2, "partitions": []}', "version 2"),
        ('{"partitions": 3}', "must be a list of objects"),
        ('{"partitions": [3]}', "must be a list of objects"),
    ],
)
def test_invalid_json_is_refused(text: str, reason: str) -> None:
    with pytest.raises(CommandError, match=reason):
        parse_plan(text, "partitions")


def test_throttles_apply_to_senders_and_receivers() -> None:
    plan = parse_assignment([entry(replicas=[3, 2]), entry(partition=1, replicas=[1, 2])])
    found = moves({}, plan, {WHERE: (1, 2), ("t", 1): (2, 3)})
    assert throttled_replicas(found) == {"t": {LEADER_THROTTLED: "0:1,0:2,1:2,1:3", FOLLOWER_THROTTLED: "0:3,1:1"}}
    assert brokers_of(found) == [1, 2, 3]


def test_a_partition_on_the_move_keeps_its_sources() -> None:
    ongoing = {WHERE: Ongoing(replicas=(3, 2, 1), adding=(3,), removing=(1,))}
    assert ongoing[WHERE].target == (3, 2)
    (move,) = moves(ongoing, parse_assignment([entry(replicas=[4, 2])]), {WHERE: (3, 2, 1)}).values()
    assert (move.sources, move.destinations) == ({1, 2}, {4})
    (move,) = moves(ongoing, {}, {}).values()
    assert (move.sources, move.destinations) == ({1, 2}, {3})


def test_the_rollback_plan_names_the_present_directories() -> None:
    assert plan_of({WHERE: (2, 1)}, {("t", 0, 1): "/data"}) == {WHERE: Target((2, 1), ("any", "/data"))}


def test_more_replicas_go_to_other_racks_and_to_the_emptiest_brokers() -> None:
    current = {("t", index): (1,) for index in range(3)}
    racks = {1: "a", 2: "a", 3: "b", 4: "b"}
    plan = with_factor(current, 2, racks)
    assert [target.replicas for target in plan.values()] == [(1, 3), (1, 4), (1, 3)]
    assert [target.replicas for target in with_factor(current, 3, dict.fromkeys((1, 2, 3, 4))).values()] == [
        (1, 2, 3), (1, 4, 2), (1, 3, 4),
    ]  # fmt: skip
    assert with_factor({("t", 0): (3, 1, 2)}, 2, racks)["t", 0].replicas == (3, 1)
    with pytest.raises(CommandError, match="factor of 5 cannot be reached"):
        with_factor(current, 5, racks)


def test_more_replicas_go_to_other_hosts_within_a_rack() -> None:
    hosts = {1: "m", 2: "m", 3: "n", 4: "n"}
    no_racks = dict.fromkeys(hosts)
    plan = with_factor({("t", index): (1,) for index in range(2)}, 2, no_racks, hosts)
    assert [target.replicas for target in plan.values()] == [(1, 3), (1, 4)]
    plan = with_factor({("t", 0): (1,)}, 2, {1: "a", 2: "b", 3: "a", 4: "a"}, hosts)
    assert plan["t", 0].replicas == (1, 2), "another rack is more important"


def test_states_of_partitions() -> None:
    moving = Ongoing((2, 1), (2,), (1,))
    assert partition_line(WHERE, PartitionMove((2, 1), (2,), moving)).endswith("t-0 is still in progress.")
    assert partition_line(WHERE, PartitionMove((2,), (2,), None)).endswith("t-0 is completed.")
    assert partition_line(WHERE, PartitionMove((1, 2), (2, 3), None)) == (
        "There is no active reassignment of partition t-0, but replica set is 1,2 rather than 2,3."
    )


@pytest.mark.parametrize(
    ("move", "text"),
    [
        (ReplicaMove("/a", None, "/a"), "Reassignment of replica t-0-1 completed successfully."),
        (ReplicaMove("/a", "/b", "/b"), "Reassignment of replica t-0-1 is still in progress."),
        (ReplicaMove("/a", "/c", "/b"), "Partition t-0 on broker 1 is being moved to log dir /c instead of /b."),
        (ReplicaMove("/a", None, "/b"), "Partition t-0 on broker 1 is not being moved from log dir /a to /b."),
        (ReplicaMove(None, None, "/b"), "Partition t-0 cannot be found in any live log directory on broker 1."),
    ],
)
def test_states_of_replicas(move: ReplicaMove, text: str) -> None:
    assert replica_line(("t", 0, 1), move) == text


def test_progress() -> None:
    assert progress_line(Progress(WHERE, 3, 1 << 20, 3 << 20)) == "  t-0: broker 3 has 1.0 MiB of 3.0 MiB (33 %)"
    assert progress_line(Progress(WHERE, 3, 0, 0)) == "  t-0: broker 3 has 0 B of 0 B (nothing to copy)"
    assert bytes_text(5 << 50) == "5120.0 TiB"
