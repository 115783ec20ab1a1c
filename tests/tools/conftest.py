"""Fixtures of the tools' tests: a broker, and functions that run commands in this process."""

from __future__ import annotations

import itertools
import os
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

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


_STDERR = 2
_LINES_OF_TESTS = re.compile(r"^%\d\|[^|]*\|[^|]*\|rdkafka#.*\n", re.MULTILINE)
"""The log lines of the tests' own clients, including those of earlier tests. The commands' clients do not use
librdkafka's default client id."""


@pytest.fixture
def parley(capfd: pytest.CaptureFixture[str]) -> Parley:
    """Return a function that runs ``parley ...`` in this process."""

    def typed(*words: str) -> Typed:
        capfd.readouterr()
        with pytest.raises(SystemExit) as ended:
            main(list(words))
        # capfd reads at the offset at which librdkafka's threads also write: it would miss what their lines replace.
        err = os.pread(_STDERR, os.fstat(_STDERR).st_size, 0).decode().lstrip("\0")
        out, _ = capfd.readouterr()
        return Typed(ended.value.code if isinstance(ended.value.code, int) else 0, out, _LINES_OF_TESTS.sub("", err))

    return typed


@pytest.fixture
def on_broker(parley: Parley, broker: Broker) -> Parley:
    """Return a function that runs a command with the broker's address after the command's name."""

    def typed(command: str, *words: str) -> Typed:
        return parley(command, "--bootstrap-server", broker.bootstrap_servers, *words)

    return typed


_PLAIN = "org.apache.kafka.common.security.plain.PlainLoginModule required"


@pytest.fixture
def broker_with_users() -> Iterator[Broker]:
    """Yield a broker with delegation tokens, on whose listener ``USERS`` the user alice may log in."""
    settings = {
        "listeners": "PLAINTEXT://127.0.0.1:0,USERS://127.0.0.1:0",
        "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,USERS:SASL_PLAINTEXT",
        "inter.broker.listener.name": "PLAINTEXT",
        "sasl.enabled.mechanisms": "PLAIN",
        "listener.name.users.plain.sasl.jaas.config": f'{_PLAIN} user_alice="a";',
        "delegation.token.secret.key": "the key",
    }
    with Broker(settings) as running:
        yield running


@pytest.fixture
def alice(broker_with_users: Broker, tmp_path: Path) -> tuple[str, ...]:
    """Return the options of a command that logs in as alice."""
    endpoints = broker_with_users.server.endpoints
    (address,) = (f"{each.host}:{each.port}" for each in endpoints if each.listener == "USERS")
    config = tmp_path / "alice.properties"
    config.write_text(
        "security.protocol=SASL_PLAINTEXT\nsasl.mechanism=PLAIN\n"
        f'sasl.jaas.config={_PLAIN} username="alice" password="a";\n'
    )
    return "--bootstrap-server", address, "--command-config", str(config)


_numbers = itertools.count()


@pytest.fixture
def topic(on_broker: Parley) -> str:
    """Return a new topic with two partitions."""
    name = f"topic-{next(_numbers)}"
    assert on_broker("topics", "--create", "--topic", name, "--partitions", "2").code == 0
    return name


Send = Callable[[str, Sequence[int]], None]


@pytest.fixture
def send(broker: Broker) -> Send:
    """Return a function that sends a record with each of the timestamps (ms) to partition 0 of a topic."""

    def sent(topic: str, timestamps: Sequence[int]) -> None:
        producer = Producer({"bootstrap.servers": broker.bootstrap_servers})
        for timestamp in timestamps:
            producer.produce(topic, b"value", partition=0, timestamp=timestamp)
        producer.flush()

    return sent
