"""Fixtures of the tools' tests: a broker, and functions that run commands in this process."""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import pytest
from confluent_kafka import Producer

from parley import Broker
from parley.tools.cli import main


@dataclass(frozen=True, slots=True)
class Typed:
    """The result of a command: exit code, standard output, standard error."""

    code: int
    out: str
    err: str

    @property
    def lines(self) -> list[str]:
        return self.out.splitlines()


Parley = Callable[..., Typed]


@pytest.fixture(scope="session")
def broker() -> Iterator[Broker]:
    with Broker(broker_id=1, offsets_topic_num_partitions=3, log_retention_ms=-1) as running:  # records are of any time
        yield running


_LINES_OF_TESTS = re.compile(r"^%\d\|[^|]*\|[^|]*\|rdkafka#.*\n", re.MULTILINE)
"""What clients of tests log, also those of earlier tests. Clients of commands have other ids than librdkafka's own."""


@pytest.fixture
def parley(capfd: pytest.CaptureFixture[str]) -> Parley:
    """A function that runs ``parley ...`` in this process."""

    def typed(*words: str) -> Typed:
        capfd.readouterr()
        with pytest.raises(SystemExit) as ended:
            main(list(words))
        out, err = capfd.readouterr()
        return Typed(ended.value.code if isinstance(ended.value.code, int) else 0, out, _LINES_OF_TESTS.sub("", err))

    return typed


@pytest.fixture
def on_broker(parley: Parley, broker: Broker) -> Parley:
    """A function that runs a command with the broker's address after the command's name."""

    def typed(command: str, *words: str) -> Typed:
        return parley(command, "--bootstrap-server", broker.bootstrap_servers, *words)

    return typed


_numbers = itertools.count()


@pytest.fixture
def topic(on_broker: Parley) -> str:
    """A new topic with two partitions."""
    name = f"topic-{next(_numbers)}"
    assert on_broker("topics", "--create", "--topic", name, "--partitions", "2").code == 0
    return name


Send = Callable[[str, Sequence[int]], None]


@pytest.fixture
def send(broker: Broker) -> Send:
    """A function that sends a record with each of the timestamps (ms) to partition 0 of a topic."""

    def sent(topic: str, timestamps: Sequence[int]) -> None:
        producer = Producer({"bootstrap.servers": broker.bootstrap_servers})
        for timestamp in timestamps:
            producer.produce(topic, b"value", partition=0, timestamp=timestamp)
        producer.flush()

    return sent
