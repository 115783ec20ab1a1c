"""``parley tail``: the last records by time, new records as they arrive, and lines that cannot control the terminal."""

from __future__ import annotations

import json
import signal
import subprocess
import threading
from collections.abc import Callable, Sequence
from types import SimpleNamespace

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewPartitions

from parley import Broker
from parley.tools.cli.invocation import CommandError
from parley.tools.cli.tail import parse_from
from parley.tools.cli.tail.lines import line, printable
from parley.tools.cli.topic_offsets import EARLIEST
from tests.support.preloaded import preloaded_command
from tests.tools.conftest import Parley

Put = Callable[..., None]


@pytest.fixture
def put(broker: Broker) -> Put:
    """Return a function that sends records (partition, timestamp, value) to a topic."""

    def delivered(error: object, _: object) -> None:
        assert error is None

    def put(topic: str, *records: tuple[int, int, str]) -> None:
        producer = Producer({"bootstrap.servers": broker.bootstrap_servers})
        for partition, timestamp, value in records:
            producer.produce(topic, value.encode(), partition=partition, timestamp=timestamp, on_delivery=delivered)
        producer.flush()

    return put


def _values(out: str) -> list[str]:
    return [json.loads(each)["value"] for each in out.splitlines()]


def test_the_last_records_of_all_partitions_by_time(on_broker: Parley, topic: str, put: Put) -> None:
    put(topic, (0, 1000, "a"), (1, 2000, "b"), (0, 3000, "c"), (1, 4000, "d"))
    assert _values(on_broker("tail", topic, "--no-follow", "--json").out) == ["a", "b", "c", "d"]
    assert _values(on_broker("tail", topic, "--no-follow", "--json", "-n", "3").out) == ["b", "c", "d"]
    assert on_broker("tail", topic, "--no-follow", "-n", "0").out == ""
    text = on_broker("tail", topic, "--no-follow", "-n", "1").out
    assert text == "1970-01-01 00:00:04.000  1:1  -  d\n"
    other = f"{topic}-other"
    assert on_broker("topics", "--create", "--topic", other).code == 0
    assert f"  {topic}-1:1  " in on_broker("tail", topic, other, "--no-follow", "-n", "1").out


def test_from_a_time(on_broker: Parley, topic: str, put: Put) -> None:
    put(topic, (0, 1000, "a"), (1, 2000, "b"), (0, 3000, "c"))
    words = ("tail", topic, "--no-follow", "--json", "--from")
    assert sorted(_values(on_broker(*words, "earliest").out)) == ["a", "b", "c"]
    assert sorted(_values(on_broker(*words, "1970-01-01T00:00:02").out)) == ["b", "c"]
    assert _values(on_broker(*words, "1h").out) == []


@pytest.mark.parametrize(
    ("text", "expected"),
    [("earliest", EARLIEST), ("30s", 70_000), ("1m", 40_000), ("1d", 0), ("1970-01-01T00:00:05+00:00", 5000)],
)
def test_where_to_begin(text: str, expected: int) -> None:
    assert parse_from(text, 100_000) == expected


def test_a_wrong_begin() -> None:
    with pytest.raises(CommandError, match="--from takes earliest, an age such as"):
        parse_from("yesterday", 0)


@pytest.mark.parametrize(
    ("words", "error"),
    [
        (("{topic}", "-n", "1", "--from", "1h"), "not both"),
        (("{topic}", "-n", "10001"), "-n takes a number from 0 to 10000"),
        (("no-such-topic",), "`parley topics --create --topic no-such-topic` creates it"),
    ],
)
def test_errors_name_the_next_step(on_broker: Parley, topic: str, words: Sequence[str], error: str) -> None:
    typed = on_broker("tail", *(word.format(topic=topic) for word in words))
    assert (typed.code, typed.out) == (1, "")
    assert error in typed.err


@pytest.mark.parametrize(
    ("data", "text"),
    [
        (b"plain \xc3\xa9", "plain é"),
        (b"two\nlines\t", r"two\nlines\t"),
        (b"\x1b[2J", r"\x1b[2J"),  # would clear the screen
        (b"\xff\x00", r"\xff\x00"),
        ("\u202egpj".encode(), r"\u202egpj"),  # would reverse the text direction
    ],
)
def test_nothing_is_left_that_a_terminal_interprets(data: bytes, text: str) -> None:
    assert printable(data) == text


def test_a_line_has_key_value_and_headers() -> None:
    message = SimpleNamespace(
        topic=lambda: "t",
        partition=lambda: 3,
        offset=lambda: 7,
        timestamp=lambda: (1, 1_764_072_000_123),
        key=lambda: b"k",
        value=lambda: None,
        headers=lambda: [("trace", b"1"), ("empty", None)],
    )
    assert line(message, with_topic=True) == b"2025-11-25 12:00:00.123  t-3:7  k  null  [trace=1, empty=null]\n"


@pytest.mark.slow
def test_new_records_and_new_partitions_are_followed(broker: Broker, topic: str, put: Put) -> None:
    put(topic, (0, 1000, "old"))
    words = ("tail", topic, "--bootstrap-server", broker.bootstrap_servers, "--color", "always")
    process = subprocess.Popen(preloaded_command(*words), stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        assert "\x1b[36m1970-01-01 00:00:01.000  0:0\x1b[0m  -  old" in process.stdout.readline()
        put(topic, (1, 2000, "new"))
        assert "1:0" in process.stdout.readline()
        admin = AdminClient({"bootstrap.servers": broker.bootstrap_servers})
        admin.create_partitions([NewPartitions(topic, 3)])[topic].result()
        while len(admin.list_topics(topic).topics[topic].partitions) < 3:
            pass
        put(topic, (2, 3000, "in a new partition"))
        assert "2:0" in process.stdout.readline()
        process.send_signal(signal.SIGINT)
        assert process.wait() == 130
    finally:
        process.kill()
        process.wait()


def test_without_following_records_that_arrive_meanwhile_are_left_out(
    on_broker: Parley, broker: Broker, topic: str
) -> None:
    """The number of records is exact although a producer keeps writing."""
    producer = Producer({"bootstrap.servers": broker.bootstrap_servers, "linger.ms": 0})
    producer.produce(topic, b"first", partition=0)
    producer.flush()
    stopping = threading.Event()

    def write() -> None:
        while not stopping.wait(0.001):
            producer.produce(topic, b"more", partition=0)
            producer.poll(0)

    writer = threading.Thread(target=write)
    writer.start()
    try:
        typed = on_broker("tail", topic, "--no-follow", "-n", "1")
        since = on_broker("tail", topic, "--no-follow", "--from", "earliest", "--json")
    finally:
        stopping.set()
        writer.join()
        producer.flush()
    assert len(typed.lines) == 1
    offsets = [json.loads(each)["offset"] for each in since.lines]
    assert offsets == list(range(len(offsets)))
