"""The clients of Apache Kafka 0.9, whose messages and requests are the oldest in use."""

from __future__ import annotations

import subprocess
from collections.abc import Callable

from tests.support.kafka import kafka_libs
from tests.system.running import BrokerProcess

OLD = "0.9.0.1"
ACKNOWLEDGED = ("--request-required-acks", "1", "--request-timeout-ms", "60000")
"""Settings of the console producer, which otherwise ends before its records are written, and resends after late
responses."""


def _java(main: str, *words: str, stdin: str = "") -> str:
    command = ["java", "-XX:TieredStopAtLevel=1", "-cp", kafka_libs(OLD), main, *words]
    done = subprocess.run(command, input=stdin, capture_output=True, text=True, timeout=100, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_old_and_the_new_producer_and_a_group(
    broker: BrokerProcess, new_topic: Callable[..., str], new_name: Callable[..., str]
) -> None:
    topic = new_topic()
    to = ("--broker-list", broker.bootstrap_servers, "--topic", topic, *ACKNOWLEDGED)
    _java("kafka.tools.ConsoleProducer", *to, "--old-producer", "--sync", stdin="a\nb\n")
    _java("kafka.tools.ConsoleProducer", *to, "--compression-codec", "gzip", stdin="c\nd\n")
    _java("kafka.tools.ConsoleProducer", *to, "--compression-codec", "lz4", stdin="e\nf\n")
    shown = _java(
        "kafka.tools.ConsoleConsumer", "--new-consumer", "--bootstrap-server", broker.bootstrap_servers,
        "--topic", topic, "--from-beginning", "--max-messages", "6",
    )  # fmt: skip
    assert shown.split() == ["a", "b", "c", "d", "e", "f"]


def test_the_simple_consumer(broker: BrokerProcess, new_topic: Callable[..., str]) -> None:
    topic = new_topic()
    to = ("--broker-list", broker.bootstrap_servers, "--topic", topic)
    _java("kafka.tools.ConsoleProducer", *to, *ACKNOWLEDGED, stdin="a\nb\nc\n")
    ends = _java("kafka.tools.GetOffsetShell", *to, "--time", "-1")
    assert ends.split() == [f"{topic}:0:3"]
    shown = _java(
        "kafka.tools.SimpleConsumerShell", *to, "--partition", "0", "--offset", "-2", "--max-messages", "3",
        "--no-wait-at-logend",
    )  # fmt: skip
    assert shown.split() == ["a", "b", "c"]
