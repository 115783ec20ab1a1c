"""If the reader of the output exits (head, less), no command fails or prints a traceback."""

from __future__ import annotations

import itertools
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
from confluent_kafka import Producer

from parley import Broker
from parley.protocol.records.batch import build
from parley.protocol.records.record import Record
from parley.tools.cli import COMMANDS
from parley.tools.cli.docs import _parts_of

pytestmark = pytest.mark.system  # each case is a separate process

NEEDS_NO_BROKER = {
    "": ("--help",),
    "version": ("version",),
    "start": ("start", "--help"),
    "dump-log": ("dump-log", "--print-data-log", "--files", "{log}"),
}
AT_BROKER = {
    "topics": ("topics", "--describe"),
    "topics that are not there": ("topics", "--describe", "--topic", "none"),
    "produce": ("produce", "--topic", "closed"),
    "consume": ("consume", "--topic", "closed", "--from-beginning", "--max-messages", "2000"),
    "consume as json": ("consume", "--topic", "closed", "--from-beginning", "--max-messages", "2000", "--json"),
    "groups": ("groups", "--list", "--state"),
    "groups that are not there": ("groups", "--describe", "--group", "none"),
    "configs": ("configs", "--describe", "--topic", "closed", "--all"),
    "offsets": ("offsets",),
    "delete-records": ("delete-records", "--offset-json-file", "{plan}"),
    "perf produce": ("perf", "produce", "--topic", "closed", "--num-records", "10", "--record-size", "1",
                     "--throughput", "-1"),
    "perf consume": ("perf", "consume", "--topic", "closed", "--num-records", "10"),
    "perf latency": ("perf", "latency", "--topic", "lat", "--num-records", "2", "--producer-acks", "1",
                     "--record-size", "1"),
}  # fmt: skip
ENDS_WITH_1 = ("topics that are not there", "groups that are not there")
"""Commands that fail before they write anything."""


@pytest.fixture(scope="module")
def filled(broker: Broker) -> Broker:
    producer = Producer({"bootstrap.servers": broker.bootstrap_servers})
    for _ in range(2000):
        producer.produce("closed", b"x" * 100)
        producer.poll(0)
    producer.flush()
    return broker


@pytest.fixture
def files(tmp_path: Path) -> dict[str, Path]:
    log, plan = tmp_path / "00000000000000000000.log", tmp_path / "plan.json"
    log.write_bytes(bytes(build([Record(0, 1, None, b"v" * 100, ())] * 1000)))
    plan.write_text('{"partitions": [{"topic": "closed", "partition": 0, "offset": 0}]}')
    return {"log": log, "plan": plan}


def typed(words: list[str], unbuffered: str, output: str) -> tuple[int, str]:
    """Run a command whose standard output is closed. Returns its exit code and standard error."""
    read_end, write_end = os.pipe()
    os.close(read_end)
    command = [sys.executable, "-m", "parley", *words]
    environment = {**os.environ, "PYTHONUNBUFFERED": unbuffered}
    redirected = {"pipe": "", "closed": " >&-", "shared": " 2>&1"}[output]
    done = subprocess.run(
        ["bash", "-c", f'"$@"{redirected}', "bash", *command],
        input=b"", stdout=write_end, stderr=subprocess.PIPE, env=environment, check=False, timeout=60,
    )  # fmt: skip
    os.close(write_end)
    return done.returncode, done.stderr.decode()


def check(name: str, words: list[str], unbuffered: str, output: str) -> None:
    code, told = typed(words, unbuffered, output)
    assert "Traceback" not in told
    assert "Exception ignored" not in told
    assert "Broken pipe" not in told
    assert code == (1 if name in ENDS_WITH_1 and output != "shared" else 0), told


def test_all_commands_are_covered() -> None:
    tried = {words[0] for words in (*NEEDS_NO_BROKER.values(), *AT_BROKER.values())}
    assert {"start", "topics", "produce", "consume", "groups", "configs", "offsets", "delete-records"} <= tried
    assert {f"perf {part}" for part in _parts_of("perf")} <= set(AT_BROKER)
    assert tried - {"--help"} <= set(COMMANDS)


def ways(of_all: Sequence[str]) -> Iterator[object]:
    """Yield each command with each of the six kinds of output.

    ``make test`` runs those above, and ``make soak`` the help of all others: the same code prints it.
    """
    for name in of_all:
        for output, unbuffered in itertools.product(["pipe", "closed", "shared"], ["", "1"]):
            called = f"{name}-{'unbuffered' if unbuffered else 'buffered'}-{output}"
            marks = () if name in NEEDS_NO_BROKER else pytest.mark.soak
            yield pytest.param(name, unbuffered, output, id=called, marks=marks)


@pytest.mark.parametrize(
    ("name", "unbuffered", "output"),
    list(ways([*NEEDS_NO_BROKER, *(name for name in COMMANDS if name not in NEEDS_NO_BROKER)])),
)
def test_without_a_broker(name: str, unbuffered: str, output: str, files: dict[str, Path]) -> None:
    words = NEEDS_NO_BROKER.get(name, (name, "--help"))
    check(name, [word.format(**files) for word in words], unbuffered, output)


@pytest.mark.soak  # seconds of generating pages; `docs --help` is above
@pytest.mark.parametrize("unbuffered", ["", "1"])
@pytest.mark.parametrize("output", ["pipe", "closed", "shared"])
def test_the_check_of_the_pages(unbuffered: str, output: str) -> None:
    _, told = typed(["docs", "--check"], unbuffered, output)  # generated pages may be out of date in a working copy
    assert "Traceback" not in told
    assert "Exception ignored" not in told


@pytest.mark.parametrize(
    ("name", "unbuffered"),
    [
        pytest.param(name, word, id=f"{name}-{called}", marks=() if number % 2 == turn else pytest.mark.soak)
        for number, name in enumerate(AT_BROKER)
        for turn, (word, called) in enumerate([("", "buffered"), ("1", "unbuffered")])
    ],
)
def test_at_a_broker(name: str, unbuffered: str, filled: Broker, files: dict[str, Path]) -> None:
    words = [word.format(**files) for word in AT_BROKER[name]]
    check(name, [*words, "--bootstrap-server", filled.bootstrap_servers], unbuffered, "pipe")


def test_a_full_disk_is_reported() -> None:
    with open("/dev/full", "wb") as full:
        done = subprocess.run(
            [sys.executable, "-m", "parley", "version"], stdout=full, stderr=subprocess.PIPE, check=False
        )
    assert (done.returncode, done.stderr) == (1, b"Error: the output cannot be written: No space left on device.\n")
