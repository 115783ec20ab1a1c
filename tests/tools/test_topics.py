"""``parley topics``: topics are created, listed, described, altered and deleted, and mistakes are reported."""

from __future__ import annotations

import json

import pytest

from parley.protocol.uuids import UUID
from parley.tools.cli.invocation import CommandError
from parley.tools.cli.topics import parse_assignment
from parley.tools.cli.topics.describing import (
    PartitionDescription,
    TopicDescription,
    id_text,
    matching,
    partition_line,
    topic_line,
)
from tests.tools.conftest import Parley


def test_create_list_describe_delete(on_broker: Parley) -> None:
    made = on_broker("topics", "--create", "--topic", "story", "--partitions", "3", "--config", "retention.ms=60000")
    assert (made.code, made.out) == (0, "Created topic story.\n")
    assert "story" in on_broker("topics", "--list").lines

    described = on_broker("topics", "--describe", "--topic", "story")
    first, *partitions = described.lines
    assert first.startswith("Topic: story\tTopicId: ")
    assert first.endswith("\tPartitionCount: 3\tReplicationFactor: 1\tConfigs: retention.ms=60000")
    assert partitions == [
        f"\tTopic: story\tPartition: {index}\tLeader: 1\tReplicas: 1\tIsr: 1\tElr: \tLastKnownElr: "
        for index in range(3)
    ]

    gone = on_broker("topics", "--delete", "--topic", "story")
    assert (gone.code, gone.out) == (0, "")
    assert "story" not in on_broker("topics", "--list").lines


def test_a_topic_that_exists(on_broker: Parley, topic: str) -> None:
    again = on_broker("topics", "--create", "--topic", topic)
    assert again.code == 1
    assert "TOPIC_ALREADY_EXISTS" in again.err
    assert on_broker("topics", "--create", "--topic", topic, "--if-not-exists").code == 0


def test_a_topic_with_a_setting_without_effect_is_created_with_a_warning(on_broker: Parley, topic: str) -> None:
    done = on_broker("topics", "--create", "--topic", f"{topic}-t", "--config", "remote.storage.enable=true")
    assert done.code == 0
    assert "remote.storage.enable has no effect: Tiered storage is not supported." in done.err


@pytest.mark.parametrize("action", ["--describe", "--delete", "--alter"])
def test_a_topic_that_does_not_exist(on_broker: Parley, action: str) -> None:
    words = (action, "--topic", "nowhere", *(("--partitions", "4") if action == "--alter" else ()))
    missing = on_broker("topics", *words)
    assert missing.code == 1
    assert "Topic 'nowhere' does not exist" in missing.err
    assert on_broker("topics", *words, "--if-exists").code == 0


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (("--create", "--topic", "bad name"), "INVALID_TOPIC_EXCEPTION"),
        (("--create", "--topic", "t9", "--config", "foo=bar"), "INVALID_CONFIG"),
        (("--create", "--topic", "t9", "--replication-factor", "3"), "INVALID_REPLICATION_FACTOR"),
        (("--create", "--topic", "t9", "--partitions", "0"), "--partitions must be 1 or more"),
        (("--create",), "--create needs --topic"),
        (("--alter", "--topic", "t9"), "--alter needs --partitions"),
        (("--list", "--describe"), "exactly one"),
        (("--alter", "--topic", "t", "--partitions", "2", "--config", "a=b"), "parley configs"),
        (("--describe", "--topic", "("), "not a valid regular expression"),
        (
            ("--alter", "--topic", "t", "--partitions", "2", "--replication-factor", "1"),
            'Option "[replication-factor]" can\'t be used with option "[alter]"',
        ),
        (("--list", "--partitions", "2"), 'Option "[partitions]" can\'t be used with option "[list]"'),
        (("--describe", "--if-not-exists"), 'Option "[if-not-exists]" can\'t be used with option "[describe]"'),
        (
            ("--create", "--topic", "t", "--under-replicated-partitions"),
            'Option "[under-replicated-partitions]" can\'t be used with option "[create]"',
        ),
        (
            ("--create", "--topic", "t", "--replica-assignment", "1", "--replication-factor", "1"),
            'Option "[replica-assignment]" can\'t be used with option "[replication-factor]"',
        ),
        (
            ("--describe", "--topics-with-overrides", "--unavailable-partitions"),
            'Option "[topics-with-overrides]" can\'t be used with option "[unavailable-partitions]"',
        ),
    ],
)
def test_impossible_requests_are_reported(on_broker: Parley, words: tuple[str, ...], reason: str) -> None:
    typed = on_broker("topics", *words)
    assert typed.code == 1
    assert reason in typed.err


def test_more_partitions(on_broker: Parley, topic: str) -> None:
    assert on_broker("topics", "--alter", "--topic", topic, "--partitions", "4").code == 0
    assert len(on_broker("topics", "--describe", "--topic", topic).lines) == 5
    fewer = on_broker("topics", "--alter", "--topic", topic, "--partitions", "1")
    assert (fewer.code, "INVALID_PARTITIONS" in fewer.err) == (1, True)


def test_as_json(on_broker: Parley, topic: str) -> None:
    assert topic in json.loads(on_broker("topics", "--list", "--json").out)
    (described,) = json.loads(on_broker("topics", "--describe", "--topic", topic, "--json").out)
    assert described["topic"] == topic
    assert [one["leader"] for one in described["partitions"]] == [1, 1]


def test_selected_partitions_only(on_broker: Parley, topic: str) -> None:
    assert on_broker("topics", "--describe", "--topic", topic, "--under-replicated-partitions").out == ""
    assert on_broker("topics", "--describe", "--topic", topic, "--unavailable-partitions").out == ""
    at_minimum = on_broker("topics", "--describe", "--topic", topic, "--at-min-isr-partitions")
    assert [line.split("\t")[2] for line in at_minimum.lines] == ["Partition: 0", "Partition: 1"]


def test_topics_with_overrides(on_broker: Parley, topic: str) -> None:
    on_broker("configs", "--alter", "--topic", topic, "--add-config", "segment.bytes=1048576")
    shown = on_broker("topics", "--describe", "--topics-with-overrides")
    assert any(line.startswith(f"Topic: {topic}\t") for line in shown.lines)
    assert not any(line.startswith("\t") for line in shown.lines)


def test_replicas_by_hand(on_broker: Parley) -> None:
    made = on_broker("topics", "--create", "--topic", "by-hand", "--replica-assignment", "1,1,1")
    assert made.code == 0
    assert len(on_broker("topics", "--describe", "--topic", "by-hand").lines) == 4


def test_parse_assignment() -> None:
    assert parse_assignment("1:2,2:3") == [[1, 2], [2, 3]]
    for wrong in ("", "x", "1:1", "1:2,3"):
        with pytest.raises(CommandError):
            parse_assignment(wrong)


def test_matching_is_for_the_whole_name() -> None:
    assert matching("a,b.*")("bcd")
    assert not matching("a,b.*")("ab")
    assert matching("")("anything")


def test_lines_of_a_topic_in_trouble() -> None:
    partition = PartitionDescription(0, -1, [1, 2, 3], [1], adding=[3], removing=[2])
    topic = TopicDescription("t", UUID(int=0), [partition], {"a": "1", "b": "2,3"})
    assert topic_line(topic) == (
        "Topic: t\tTopicId: AAAAAAAAAAAAAAAAAAAAAA\tPartitionCount: 1\tReplicationFactor: 2\tConfigs: a=1,b=2,3"
    )
    assert partition_line("t", partition) == (
        "\tTopic: t\tPartition: 0\tLeader: none\tReplicas: 1,2,3\tIsr: 1"
        "\tAdding Replicas: 3\tRemoving Replicas: 2\tElr: N/A\tLastKnownElr: N/A"
    )


def test_ids_are_written_as_kafka_writes_them() -> None:
    assert id_text(UUID("99dc57a1-6b27-4f2b-a289-e00af3fe75e8")) == "mdxXoWsnTyuiieAK8_516A"
