"""``parley groups``: groups are listed, described, reset and deleted, and mistakes are reported."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest
from confluent_kafka import Consumer, TopicPartition

from parley import Broker
from parley.tools.cli.groups.describing import Committed, Coordinator, Group, Member, assigned
from parley.tools.cli.groups.listing import validate_regex
from parley.tools.cli.groups.partition_selection import parse_selection
from parley.tools.cli.groups.reset import parse_datetime, parse_duration, read_csv, target
from parley.tools.cli.groups.tables import as_data, members_table, offsets_table, state_table
from parley.tools.cli.invocation import CommandError
from tests.tools.conftest import Parley, Send

_numbers = itertools.count()


@pytest.fixture
def group(broker: Broker, topic: str, send: Send) -> str:
    """Return a group without members that has read 4 of 10 records in partition 0."""
    name = f"group-{next(_numbers)}"
    send(topic, [1_795_000_000_000 + number for number in range(10)])
    consumer = Consumer({"bootstrap.servers": broker.bootstrap_servers, "group.id": name, "enable.auto.commit": False})
    consumer.commit(offsets=[TopicPartition(topic, 0, 4)], asynchronous=False)
    consumer.close()
    return name


@contextmanager
def member(broker: Broker, topic: str, group: str, **settings: object) -> Iterator[Consumer]:
    """Run a member of the group that owns its partitions."""
    consumer = Consumer(
        {"bootstrap.servers": broker.bootstrap_servers, "group.id": group, "client.id": "reader", **settings}
    )
    got: list[object] = []
    consumer.subscribe([topic], on_assign=lambda _, partitions: got.append(partitions))
    while not got:
        consumer.poll(0.1)
    try:
        yield consumer
    finally:
        consumer.close()


def offset_of(on_broker: Parley, group: str) -> dict[int, int]:
    (described,) = json.loads(on_broker("groups", "--describe", "--group", group, "--json").out)
    return {one["partition"]: one["currentOffset"] for one in described["offsets"]}


def test_list(on_broker: Parley, group: str) -> None:
    assert group in on_broker("groups", "--list").lines
    head, *rows = on_broker("groups", "--list", "--state", "--type").lines
    assert head.split() == ["GROUP", "TYPE", "STATE"]
    assert f"{group:<25} {'Classic':<20} {'Empty':<20}" in rows
    assert group not in on_broker("groups", "--list", "--state", "stable").out
    assert group in [one["group"] for one in json.loads(on_broker("groups", "--list", "--json").out)]
    assert on_broker("groups", "--list", "--state", "happy").code == 1


def test_describe_offsets(on_broker: Parley, topic: str, group: str) -> None:
    described = on_broker("groups", "--describe", "--group", group)
    assert described.code == 0
    assert f"Consumer group '{group}' has no active members." in described.err
    head, row = described.lines[1:]
    assert head.split() == [
        "GROUP", "TOPIC", "PARTITION", "CURRENT-OFFSET", "LOG-END-OFFSET", "LAG", "CONSUMER-ID", "HOST", "CLIENT-ID",
    ]  # fmt: skip
    assert row.split() == [group, topic, "0", "4", "10", "6", "-", "-", "-"]


def test_describe_members(on_broker: Parley, broker: Broker, topic: str, group: str) -> None:
    with member(broker, topic, group, **{"group.instance.id": "one"}):
        head, row = on_broker("groups", "--describe", "--group", group, "--members", "--verbose").lines[1:]
        assert head.split()[:6] == [
            "GROUP", "CONSUMER-ID", "GROUP-INSTANCE-ID", "HOST", "CLIENT-ID", "#PARTITIONS",
        ]  # fmt: skip
        cells = row.split()
        assert (cells[0], cells[2], cells[4], cells[5]) == (group, "one", "reader", "2")
        assert f"{topic}:0,1" in cells
        head, row = on_broker("groups", "--describe", "--group", group, "--state").lines[1:]
        assert row.split() == [group, broker.bootstrap_servers, "(1)", "range", "Stable", "1"]
        rows = on_broker("groups", "--describe", "--group", group).lines[2:]
        assert [line.split()[2] for line in rows] == ["0", "1"]
        assert all(line.split()[-1] == "reader" for line in rows)


def test_a_group_that_does_not_exist(on_broker: Parley) -> None:
    typed = on_broker("groups", "--describe", "--group", "nobody")
    assert typed.code == 1
    assert "Consumer group 'nobody' does not exist" in typed.err


@pytest.mark.parametrize(
    ("to", "offset"),
    [
        (("--to-earliest",), 0),
        (("--to-latest",), 10),
        (("--to-current",), 4),
        (("--to-offset", "7"), 7),
        (("--to-offset", "700"), 10),
        (("--shift-by", "-3"), 1),
        (("--shift-by", "3"), 7),
        (("--shift-by", "-30"), 0),
        (("--to-datetime", "2026-11-18T11:06:40.003"), 3),
        (("--to-datetime", "2026-11-18T12:06:40.003+01:00"), 3),
        (("--to-datetime", "2040-01-01T00:00:00.000"), 10),
        (("--by-duration", "P1000D"), 0),
    ],
)
def test_reset(on_broker: Parley, topic: str, group: str, to: tuple[str, ...], offset: int) -> None:
    planned = on_broker("groups", "--reset-offsets", "--group", group, "--topic", f"{topic}:0", *to, "--dry-run")
    assert planned.code == 0
    assert planned.lines[1].split() == ["GROUP", "TOPIC", "PARTITION", "NEW-OFFSET"]
    assert planned.lines[2].split() == [group, topic, "0", str(offset)]
    assert offset_of(on_broker, group) == {0: 4}
    done = on_broker("groups", "--reset-offsets", "--group", group, "--all-topics", *to, "--execute")
    assert done.code == 0
    assert offset_of(on_broker, group) == {0: offset}


def test_reset_of_a_new_group(on_broker: Parley, topic: str) -> None:
    words = ("--reset-offsets", "--group", f"new-{topic}", "--topic", topic, "--to-earliest", "--execute")
    assert on_broker("groups", *words).code == 0
    assert offset_of(on_broker, f"new-{topic}") == {0: 0, 1: 0}


def test_a_reset_without_partitions_says_so(on_broker: Parley, topic: str) -> None:
    words = ("--reset-offsets", "--group", f"none-{topic}", "--all-topics", "--to-earliest", "--execute")
    typed = on_broker("groups", *words)
    assert (typed.code, typed.out) == (0, "")
    assert "No partitions to reset" in typed.err


def test_reset_from_an_exported_file(on_broker: Parley, topic: str, group: str, tmp_path: Path) -> None:
    words: tuple[str, ...] = ("--reset-offsets", "--group", group, "--topic", topic, "--to-latest", "--export")
    exported = on_broker("groups", *words)
    assert exported.out == f"{topic},0,10\n{topic},1,0\n"
    (tmp_path / "plan.csv").write_text(exported.out)
    words = ("--reset-offsets", "--group", group, "--from-file", str(tmp_path / "plan.csv"), "--execute")
    assert on_broker("groups", *words).code == 0
    assert offset_of(on_broker, group) == {0: 10, 1: 0}


def test_a_group_with_members_is_not_reset_or_deleted(
    on_broker: Parley, broker: Broker, topic: str, group: str
) -> None:
    with member(broker, topic, group):
        refused = on_broker(
            "groups", "--reset-offsets", "--group", group, "--topic", topic, "--to-earliest", "--execute"
        )
        assert refused.code == 1
        assert f"'{group}' is inactive, but the current state is Stable" in refused.err
        refused = on_broker("groups", "--delete", "--group", group)
        assert refused.code == 1
        assert "NON_EMPTY_GROUP" in refused.err
        refused = on_broker("groups", "--delete-offsets", "--group", group, "--topic", topic)
        assert refused.code == 1
        assert "GROUP_SUBSCRIBED_TO_TOPIC" in refused.out


def test_delete(on_broker: Parley, group: str) -> None:
    done = on_broker("groups", "--delete", "--group", group)
    assert (done.code, done.out) == (0, f"Deletion of requested consumer groups ('{group}') was successful.\n")
    assert group not in on_broker("groups", "--list").lines
    assert on_broker("groups", "--delete", "--group", group).code == 1


def test_delete_offsets(on_broker: Parley, topic: str, group: str) -> None:
    done = on_broker("groups", "--delete-offsets", "--group", group, "--topic", f"{topic}:0")
    assert done.code == 0
    assert done.lines[0] == f"Request succeeded for deleting offsets from group {group}."
    assert done.lines[3].split() == [topic, "0", "Successful"]
    missing = on_broker("groups", "--delete-offsets", "--group", group, "--topic", "nowhere")
    assert missing.code == 1


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (("--describe",), "--group or --all-groups"),
        (("--describe", "--group", "g", "--all-groups"), "--group or --all-groups"),
        (("--describe", "--group", "g", "--members", "--offsets"), "one of"),
        (("--list", "--members"), "--members needs --describe"),
        (("--reset-offsets", "--group", "g", "--topic", "t"), "exactly one of"),
        (("--reset-offsets", "--group", "g", "--topic", "t", "--to-latest", "--to-earliest"), "exactly one of"),
        (("--reset-offsets", "--group", "g", "--to-latest"), "--topic or --all-topics"),
        (("--reset-offsets", "--group", "g", "--topic", "t", "--to-latest", "--execute", "--dry-run"), "not both"),
        (("--reset-offsets", "--group", "g", "--topic", "nowhere", "--to-latest"), "Topic nowhere does not exist"),
        (("--delete-offsets", "--group", "g"), "needs --topic"),
        (("--delete-offsets", "--all-groups", "--topic", "t"), "one --group"),
        ((), "exactly one of"),
    ],
)
def test_impossible_requests_are_reported(on_broker: Parley, words: tuple[str, ...], reason: str) -> None:
    typed = on_broker("groups", *words)
    assert typed.code == 1
    assert reason in typed.err


def test_partition_selection() -> None:
    known = {"a": [0, 1, 2], "b": [0]}
    assert parse_selection(["a:0,2", "b"]).partitions(known) == [("a", 0), ("a", 2), ("b", 0)]
    assert parse_selection(["a:0", "a:1"]).partitions(known) == [("a", 0), ("a", 1)]
    with pytest.raises(CommandError, match="a has no partition 7"):
        parse_selection(["a:7"]).partitions(known)
    with pytest.raises(CommandError, match="--topic takes"):
        parse_selection(["a:x"])


@pytest.mark.parametrize(
    ("text", "ms"),
    [
        ("PT1H30M", 5_400_000),
        ("P1D", 86_400_000),
        ("P2DT3H4M5.5S", 183_845_500),
        ("PT0.001S", 1),
        ("-PT1S", -1000),
        ("pt1s", 1000),
    ],
)
def test_durations(text: str, ms: int) -> None:
    assert parse_duration(text) == ms
    assert target(by_duration=text, now_ms=10**12).number == 10**12 - ms


@pytest.mark.parametrize("text", ["", "P", "PT", "1H", "P1M", "P1Y", "PT1", "PTH"])
def test_invalid_durations(text: str) -> None:
    with pytest.raises(CommandError):
        parse_duration(text)


def test_times() -> None:
    assert parse_datetime("1970-01-01T00:00:01.500") == 1500
    assert parse_datetime("1970-01-01T01:00:00+01:00") == 0
    assert parse_datetime("1970-01-02T00:00:00Z") == 86_400_000
    with pytest.raises(CommandError):
        parse_datetime("yesterday")


def test_csv(tmp_path: Path) -> None:
    path = tmp_path / "plan.csv"
    path.write_text("t,0,5\ng,t,1,6\n\n")
    assert read_csv(path) == {None: {("t", 0): 5}, "g": {("t", 1): 6}}
    for wrong in ("t,0", "t,x,1", "t,0,-1", "a,b,c,d,e"):
        path.write_text(wrong)
        with pytest.raises(CommandError, match="line 1"):
            read_csv(path)


def test_regular_expressions_of_subscriptions(parley: Parley) -> None:
    assert parley("groups", "--validate-regex", "topic-[0-9]+").code == 0
    for wrong in ("(", "(?=a)", r"(a)\1"):
        with pytest.raises(CommandError):
            validate_regex(wrong)


def test_assignments_of_other_protocols_are_empty() -> None:
    assert assigned(b"") == {}
    assert assigned(b"\x00\x00\xff") == {}
    assert assigned(b"\x00\x00" + b"\x00\x00\x00\x01\x00\x01t\x00\x00\x00\x01\x00\x00\x00\x05\xff\xff\xff\xff") == {
        "t": [5]
    }
    later = b"\x00\x09" + b"\x00\x00\x00\x01\x00\x01t\x00\x00\x00\x01\x00\x00\x00\x05\xff\xff\xff\xff" + b"more"
    assert assigned(later) == {"t": [5]}


def test_tables_of_the_consumer_protocol() -> None:
    reader = Member("m" * 40, None, "c", "/h", {"t": [1, 0]}, 3, 4, {"t": [0]})
    group = Group(
        "g", "Stable", "uniform", Coordinator(1, "h", 1), [reader], {("t", 0): Committed(5, 2, "")}, {("t", 0): 9}, 3, 4
    )
    head, first, second = offsets_table(group, verbose=True)
    assert head.split()[3] == "LEADER-EPOCH"
    assert first.split()[:7] == ["g", "t", "0", "2", "5", "9", "4"]
    assert second.split()[:7] == ["g", "t", "1", "-", "-", "-", "-"]
    assert members_table(group)[1].split() == ["g", "m" * 40, "/h", "c", "2"]
    assert members_table(group, verbose=True)[1].split()[5:] == ["3", "t:0,1", "4", "t:0"]
    assert state_table(group, verbose=True)[1].split() == ["g", "h:1", "(1)", "uniform", "Stable", "3", "4", "1"]
    assert as_data(group)["coordinator"] == {"id": 1, "host": "h", "port": 1}
    assert (as_data(group)["groupEpoch"], as_data(group)["targetAssignmentEpoch"]) == (3, 4)
    (member,) = as_data(group)["members"]
    assert (member["epoch"], member["targetAssignment"], member["upgraded"]) == (3, {"t": [0]}, None)
    assert str(Coordinator(7)) == "(7)"
    static = replace(group, members=[reader, replace(reader, member_id="s", instance_id="one")])
    assert members_table(static)[1].split() == ["g", "m" * 40, "/h", "c", "2"], "blank, as Kafka's tool has it"
    assert members_table(static)[2].split() == ["g", "s", "one", "/h", "c", "2"]


def test_the_verbose_table_of_members_says_which_are_upgraded_while_not_all_are() -> None:
    new = Member("new", None, "c", "/h", {"t": [0]}, 3, 3, {"t": [0]}, upgraded=True)
    old = Member("old", None, "c", "/h", {"t": [1]}, 3, 3, {"t": [1]}, upgraded=False)
    group = Group("g", "Stable", "uniform", members=[new, old], epoch=3, target_epoch=3)
    head, first, second = members_table(group, verbose=True)
    assert [line.split()[-1] for line in (head, first, second)] == ["UPGRADED", "true", "false"]
    assert "UPGRADED" not in members_table(group)[0]
    assert "UPGRADED" not in members_table(replace(group, members=[new]), verbose=True)[0]
    assert "UPGRADED" not in members_table(replace(group, members=[old]), verbose=True)[0]


def test_share_groups_are_shown_with_the_others(on_broker: Parley, topic: str, group: str) -> None:
    share = f"share-{group}"
    on_broker("share-groups", "--reset-offsets", "--group", share, "--topic", topic, "--to-earliest", "--execute")
    listed = [line.split() for line in on_broker("groups", "--list", "--type", "--state").lines]
    assert [share, "Share", "Empty"] in listed
    assert [group, "Classic", "Empty"] in listed
    words = ("groups", "--describe", "--group", group, "--group", share)
    tables = [line.split() for line in on_broker(*words).lines if line.strip()]
    assert [group, topic, "0", "4", "10", "6", "-", "-", "-"] in tables
    assert ["GROUP", "TOPIC", "PARTITION", "START-OFFSET", "LAG"] in tables
    assert [share, topic, "0", "0", "10"] in tables
    assert [share, "Empty"] == [on_broker(*words, "--state").lines[-1].split()[at] for at in (0, 3)]
    described = {each["group"]: each for each in json.loads(on_broker(*words, "--json").out)}
    assert described[group]["offsets"][0]["currentOffset"] == 4
    assert described[share]["offsets"][0]["startOffset"] == 0
    on_broker("groups", "--delete", "--group", share)
    assert share not in on_broker("groups", "--list").lines
