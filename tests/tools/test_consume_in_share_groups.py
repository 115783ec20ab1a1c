"""``parley consume --share``: which records are acknowledged, released or rejected, and then delivered again."""

from __future__ import annotations

import itertools
import json
import signal
import struct
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from confluent_kafka import Producer

from parley import Broker
from tests.support.kafka import JavaServer, java_command
from tests.tools.conftest import Parley, Typed

pytestmark = pytest.mark.slow

HEARTBEAT_MS = "100"
POLL_S = 0.1
_numbers = itertools.count()


@pytest.fixture(scope="module")
def sharing() -> Iterator[Broker]:
    """Yield a broker whose share consumers get their partitions within a tenth of a second."""
    settings = {f"group.share.{each}heartbeat.interval.ms": HEARTBEAT_MS for each in ("", "min.")}
    with Broker({**settings, "offsets.topic.num.partitions": "3"}) as running:
        yield running


@pytest.fixture
def group(parley: Parley, sharing: Broker) -> str:
    """Return the name of a new group, which begins with the oldest records."""
    name = f"workers-{next(_numbers)}"
    words = ("--entity-type", "groups", "--entity-name", name, "--add-config", "share.auto.offset.reset=earliest")
    assert parley("configs", "--bootstrap-server", sharing.bootstrap_servers, "--alter", *words).code == 0
    return name


Fill = Callable[..., str]
Consume = Callable[..., Typed]


@pytest.fixture
def fill(sharing: Broker) -> Fill:
    """Return a function that writes values to a topic, by default to a new one."""

    def filled(*values: bytes, topic: str = "") -> str:
        name = topic or f"jobs-{next(_numbers)}"
        producer = Producer({"bootstrap.servers": sharing.bootstrap_servers})
        for value in values:
            producer.produce(name, value)
        assert producer.flush(10) == 0
        return name

    return filled


@pytest.fixture
def consume(parley: Parley, sharing: Broker, group: str) -> Consume:
    """Return a function that consumes a topic with the group."""

    def typed(topic: str, *words: str) -> Typed:
        where = ("--bootstrap-server", sharing.bootstrap_servers, "--topic", topic, "--group", group)
        return parley("consume", "--share", *where, *words)

    return typed


DELIVERY = ("--property", "print.delivery=true")


def next_of(consume: Consume, fill: Fill, topic: str) -> list[str]:
    """Write one more record, and return the next one that is delivered."""
    fill(b"next", topic=topic)
    return consume(topic, "--max-messages", "1", *DELIVERY).lines


def test_records_that_were_not_printed_are_released(consume: Consume, fill: Fill) -> None:
    jobs = fill(b"0", b"1", b"2", b"3")
    first = consume(jobs, "--max-messages", "2", *DELIVERY, "--enable-systest-events")
    assert first.lines == ["Delivery:1\t0", "Delivery:1\t1", "shutdown_complete"]
    assert first.err == "Processed a total of 2 messages\n"
    assert consume(jobs, "--max-messages", "2", *DELIVERY).lines == ["Delivery:2\t2", "Delivery:2\t3"]
    assert next_of(consume, fill, jobs) == ["Delivery:1\tnext"]


def test_released_records_are_delivered_until_their_count_is_spent(consume: Consume, fill: Fill) -> None:
    jobs = fill(b"job")
    typed = consume(jobs, "--release", "--json", "--max-messages", "5")
    assert [json.loads(line)["deliveryCount"] for line in typed.lines] == [1, 2, 3, 4, 5]
    assert next_of(consume, fill, jobs) == ["Delivery:1\tnext"]


def test_rejected_records_are_not_delivered_again(consume: Consume, fill: Fill) -> None:
    jobs = fill(b"job")
    assert consume(jobs, "--reject", "--max-messages", "1").out == "job\n"
    assert next_of(consume, fill, jobs) == ["Delivery:1\tnext"]


def test_unreadable_records_are_rejected_only_if_that_is_wanted(consume: Consume, fill: Fill) -> None:
    jobs = fill(b"no number", struct.pack(">i", 7))
    numbers = ("--value-deserializer", "IntegerDeserializer")
    failed = consume(jobs, *numbers)
    assert (failed.code, failed.out) == (1, "")
    assert "Size of data received by IntegerDeserializer is not 4" in failed.err
    skipped = consume(jobs, *numbers, "--max-messages", "2", "--reject-message-on-error")
    assert (skipped.code, skipped.out) == (0, "7\n")
    assert f"Warning: skipping {jobs}-0 at offset 0" in skipped.err
    assert next_of(consume, fill, jobs) == ["Delivery:1\tnext"]


def test_a_missing_topic_is_waited_for(consume: Consume) -> None:
    typed = consume("missing", "--timeout-ms", "100")
    assert typed.code == 1
    assert "Warning: the topic 'missing' does not exist (UNKNOWN_TOPIC_OR_PARTITION); waiting for it." in typed.err
    assert "Error: The topic 'missing' does not exist. `parley topics --create --topic missing`" in typed.err


def test_a_new_group_that_begins_at_the_end_says_so(
    parley: Parley, sharing: Broker, fill: Fill, consume: Consume, group: str
) -> None:
    jobs = fill(b"job")
    note = "has not consumed topic '{}' before. It starts at the end"
    assert note.format(jobs) not in consume(jobs, "--max-messages", "1").err, "the group begins with the oldest record"
    where = ("--bootstrap-server", sharing.bootstrap_servers, "--topic", jobs, "--group", f"{group}-new")
    typed = parley("consume", "--share", *where, "--timeout-ms", "1000")
    assert (typed.code, note.format(jobs) in typed.err) == (0, True), typed.err
    assert f"--entity-name {group}-new --add-config share.auto.offset.reset=earliest" in typed.err


def test_a_group_of_another_type_is_named(parley: Parley, sharing: Broker, fill: Fill, group: str) -> None:
    jobs = fill(b"job")
    where = ("--bootstrap-server", sharing.bootstrap_servers, "--topic", jobs, "--group", group)
    assert parley("consume", *where, "--from-beginning", "--max-messages", "1").code == 0
    typed = parley("consume", "--share", *where)
    assert (typed.code, "The id belongs to a group of another type." in typed.err) == (1, True)
    assert "starts at the end" not in typed.err


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_member_leaves_the_group(
    consume: Consume, parley: Parley, sharing: Broker, group: str, fill: Fill, number: int
) -> None:
    """Printed records are acknowledged. The others are released immediately, not when their locks expire."""
    jobs = fill(*(b"%d" % each for each in range(100)))
    where = ("--bootstrap-server", sharing.bootstrap_servers)
    words = [sys.executable, "-u", "-m", "parley", "consume", "--share", *where, "--topic", jobs, "--group", group]
    with subprocess.Popen(words, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        first = process.stdout.readline()
        process.send_signal(number)
        printed = [int(line) for line in (first + process.stdout.read()).split()]
    assert printed == list(range(len(printed)))
    described = parley("share-groups", *where, "--describe", "--group", group, "--members")
    assert "has no active members" in described.err + described.out
    fill(b"next", topic=jobs)
    rest = consume(jobs, "--max-messages", str(101 - len(printed))).lines
    assert rest == [*(str(each) for each in range(len(printed), 100)), "next"]


@pytest.mark.system
def test_beside_kafkas_tool_each_record_is_printed_once(
    sharing: Broker, group: str, fill: Fill, tmp_path: Path
) -> None:
    """Parley's command and Kafka's are in one group. Each gets some of the records, and both leave at SIGTERM."""
    jobs = fill()
    where = ("--bootstrap-server", sharing.bootstrap_servers, "--topic", jobs, "--group", group)
    ours = JavaServer([sys.executable, "-m", "parley", "consume", "--share", *where], cwd=tmp_path)
    theirs = JavaServer(java_command("org.apache.kafka.tools.consumer.ConsoleShareConsumer", *where), cwd=tmp_path)
    sent = 0
    try:
        while not (printed(ours) and printed(theirs)):
            fill(*(b"%d" % each for each in range(sent, sent + 20)), topic=jobs)
            sent += 20
            time.sleep(POLL_S)
        while len(printed(ours) + printed(theirs)) < sent:
            time.sleep(POLL_S)
    finally:
        ours.stop()
        theirs.stop()
    assert sorted(printed(ours) + printed(theirs)) == list(range(sent))
    assert ours.lines[-1] == f"Processed a total of {len(printed(ours))} messages"


def printed(consumer: JavaServer) -> list[int]:
    """Return the records that a consumer has printed so far."""
    return [int(line) for line in tuple(consumer.lines) if line.isdecimal()]
