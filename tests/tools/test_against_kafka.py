"""Kafka's tools and Parley's print the same about the same Parley broker and the same files."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition

from parley import Broker
from tests.support.kafka import JavaFailed
from tests.support.kafka_tools import output_of_tool
from tests.tools.conftest import Parley
from tests.tools.test_streams_groups import Application

pytestmark = pytest.mark.system

TOOLS = "org.apache.kafka.tools"


def fill(broker: Broker) -> None:
    """Create a topic with two partitions and several kinds of records, and a group that has read some of them."""
    to = {"bootstrap.servers": broker.bootstrap_servers}
    for settings in ({"compression.type": "gzip"}, {"enable.idempotence": True, "batch.size": 4096}):
        producer = Producer({**to, **settings})
        for number in range(200):
            value = b"v%d" % number * 100
            producer.produce("t", value, b"k", partition=number % 2, headers=[("h", b"x"), ("n", None)])
        producer.produce("t", None, b"k", partition=0)
        producer.flush()
    consumer = Consumer({**to, "group.id": "readers", "enable.auto.commit": False})
    consumer.commit(offsets=[TopicPartition("t", 0, 5), TopicPartition("t", 1, 200)], asynchronous=False)
    consumer.close()


@pytest.fixture(scope="module")
def kept() -> Iterator[Broker]:
    """Yield a broker with topics, records and a group."""
    with Broker(offsets_topic_num_partitions=1, num_partitions=2) as broker:
        fill(broker)
        yield broker


def kafka(broker: Broker, tool: str, *words: str) -> list[str]:
    return output_of_tool(f"{TOOLS}.{tool}", "--bootstrap-server", broker.bootstrap_servers, *words).splitlines()


def at(broker: Broker) -> tuple[str, str]:
    return "--bootstrap-server", broker.bootstrap_servers


def in_order(lines: list[str]) -> list[str]:
    """Sort topics and their settings, which Kafka's tool prints in no fixed order."""
    sorted_settings = [
        re.sub(r"(?<=Configs: ).*", lambda match: ",".join(sorted(match[0].split(","))), line) for line in lines
    ]
    return sorted(re.split(r"\n(?=Topic: )", "\n".join(sorted_settings)))


def test_topics(parley: Parley, kept: Broker) -> None:
    for words in (("--list",), ("--describe",), ("--describe", "--topic", "t"), ("--describe", "--exclude-internal")):
        ours = parley("topics", *at(kept), *words).lines
        assert in_order(ours) == in_order(kafka(kept, "TopicCommand", *words))


def test_offsets(parley: Parley, kept: Broker) -> None:
    for words in ((), ("--time", "earliest"), ("--time", "-3"), ("--topic-partitions", "t:0-1")):
        assert parley("offsets", *at(kept), *words).lines == kafka(kept, "GetOffsetShell", *words)


def test_groups(parley: Parley, kept: Broker) -> None:
    for words in (
        ("--list", "--state"),
        ("--describe", "--group", "readers"),
        ("--describe", "--group", "readers", "--verbose"),
        ("--describe", "--group", "readers", "--state", "--verbose"),
        ("--describe", "--group", "readers", "--members", "--verbose"),
        ("--reset-offsets", "--group", "readers", "--topic", "t", "--to-earliest", "--dry-run"),
    ):
        ours = parley("groups", *at(kept), *words).lines
        theirs = kafka(kept, "consumer.group.ConsumerGroupCommand", *words)
        assert sorted(filter(None, ours)) == sorted(
            line for line in theirs if line and "has no active members" not in line
        )


def test_records(parley: Parley, kept: Broker) -> None:
    serialization = "org.apache.kafka.common.serialization."
    for words in (
        (
            "--formatter-property",
            "print.key=true",
            "--formatter-property",
            "print.offset=true",
            "--formatter-property",
            "print.partition=true",
        ),
        (
            "--formatter-property",
            "print.headers=true",
            "--formatter-property",
            "key.separator=\\t|",
            "--formatter-property",
            "null.literal=-",
        ),
        ("--formatter-property", "print.value=false", "--formatter-property", "print.timestamp=true"),
        ("--key-deserializer", f"{serialization}StringDeserializer", "--formatter-property", "print.key=true"),
        ("--formatter", f"{TOOLS}.consumer.NoOpMessageFormatter"),
    ):
        of = ("--topic", "t", "--partition", "0", "--from-beginning", "--max-messages", "201", *words)
        assert parley("consume", *at(kept), *of).lines == kafka(kept, "consumer.ConsoleConsumer", *of)


def test_offsets_of_groups_as_records(parley: Parley, kept: Broker) -> None:
    """Line ends are ignored, because Kafka's formatter writes none."""
    of = ("--topic", "__consumer_offsets", "--partition", "0", "--from-beginning", "--max-messages", "2")
    words = (*of, "--formatter", f"{TOOLS}.consumer.OffsetsMessageFormatter")
    ours = parley("consume", *at(kept), *words).lines
    assert len(ours) == 2
    assert "".join(ours) == "".join(kafka(kept, "consumer.ConsoleConsumer", *words))


@pytest.mark.parametrize(
    "words",
    [
        ("--topic", "t", "--offset", "5"),
        ("--topic", "t", "--partition", "0", "--offset", "5", "--from-beginning"),
        ("--topic", "t", "--group", "a", "--command-property", "group.id=b"),
        ("--topic", "t", "--group", "a", "--partition", "0"),
        ("--topic", "t", "--from-beginning", "--command-property", "auto.offset.reset=latest"),
        ("--topic", "t", "--include", "t"),
    ],
)
def test_options_that_contradict(parley: Parley, kept: Broker, words: tuple[str, ...]) -> None:
    """The error messages are the same, and both exit codes are 1."""
    ours = parley("consume", *at(kept), *words)
    assert ours.code == 1
    with pytest.raises(JavaFailed) as theirs:
        kafka(kept, "consumer.ConsoleConsumer", *words)
    assert "exit code 1" in str(theirs.value)
    assert ours.err.removeprefix("Error: ").strip() in str(theirs.value)


def test_files(parley: Parley, tmp_path: Path) -> None:
    folder = tmp_path / "data"
    at_once = {"group.streams.initial.rebalance.delay.ms": "0", "group.streams.assignment.interval.ms": "0"}
    with Broker(at_once, data_dir=folder, offsets_topic_num_partitions=1, num_partitions=2) as broker:
        fill(broker)
        application = Application(broker, "t")
        application.join()
        application.leave()
    log = folder / "t-0" / "00000000000000000000.log"
    offsets = folder / "__consumer_offsets-0" / "00000000000000000000.log"
    for words in (
        ("--files", str(log)),
        ("--files", str(log), "--deep-iteration"),
        ("--files", str(log), "--print-data-log"),
        ("--files", f"{log.with_suffix('.index')},{log.with_suffix('.timeindex')}"),
        ("--files", f"{log.with_suffix('.index')},{log.with_suffix('.timeindex')}", "--index-sanity-check"),
        ("--files", str(next(log.parent.glob("*.snapshot")))),
        ("--files", str(offsets), "--offsets-decoder"),
    ):
        typed = parley("dump-log", *words)
        assert typed.code == 0, typed.err
        assert typed.lines == output_of_tool(f"{TOOLS}.DumpLogSegments", *words).splitlines()
