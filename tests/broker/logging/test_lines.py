"""The broker's own log: one line per event, no secrets, no blocking."""

from __future__ import annotations

import io
import json
import logging
import threading
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from parley.broker.config import BrokerConfig
from parley.broker.logging import lines as logs
from parley.broker.logging.lines import LineFormatter, LogWriter, secrets_in, start_logging


def record(event: str, *args: object, error: BaseException | None = None, **facts: Any) -> logging.LogRecord:
    exc_info = (type(error), error, error.__traceback__) if error else None
    made = logging.LogRecord("parley.broker.network", logging.WARNING, "", 0, event, args, exc_info)
    made.created = 1_700_000_000.5
    for name, value in facts.items():
        setattr(made, name, value)
    return made


TEXT = LineFormatter(as_json=False)
JSON = LineFormatter(as_json=True)


def test_a_line_of_text() -> None:
    assert TEXT.format(record("closed %d connections", 3, topic="a", reason="too large")) == (
        "time=2023-11-14T22:13:20.500Z level=warning logger=parley.broker.network "
        'event="closed 3 connections" topic=a reason="too large"'
    )


def test_a_line_of_json() -> None:
    assert json.loads(JSON.format(record("closed", topic="ä", count=3, directory=None))) == {
        "time": "2023-11-14T22:13:20.500Z",
        "level": "warning",
        "logger": "parley.broker.network",
        "event": "closed",
        "topic": "ä",
        "count": 3,
        "directory": None,
    }


def test_an_exception_is_part_of_the_line() -> None:
    try:
        raise KeyError("k")
    except KeyError as error:
        line = TEXT.format(record("failed", error=error))
    assert "exception=KeyError('k')" in line
    assert "traceback=" in line
    assert len(line.splitlines()) == 1


@pytest.mark.parametrize("value", ["", "a b", 'a"b', "a=b", "a\nlevel=error", "a\x1b[31m", "\u2028", "\udc80", "\x00"])
def test_a_value_cannot_pass_for_something_else(value: str) -> None:
    line = TEXT.format(record("e", client=value))
    assert line.isprintable()
    assert json.loads(line.partition("client=")[2]) == value


@given(st.text(), st.text())
def test_every_event_is_one_line(event: str, value: str) -> None:
    for lines in (TEXT, JSON):
        line = lines.format(record("%s", event, client=value))
        assert "\n" not in line
        assert "\r" not in line


def test_secrets_are_hidden_wherever_they_turn_up() -> None:
    config = BrokerConfig.from_properties(
        {
            "ssl.key.password": "hunter2",
            "listener.name.x.plain.sasl.jaas.config": 'password="pw"',
            "coordination.url": "zookeeper://user:s%40crt@host:2181/x",
        }
    )
    secrets = secrets_in(config)
    assert secrets == {"hunter2", 'password="pw"', "s%40crt", "s@crt"}
    for lines in (LineFormatter(as_json=False, secrets=secrets), LineFormatter(as_json=True, secrets=secrets)):
        line = lines.format(record("with hunter2 at %s", "zookeeper://user:s%40crt@host", given=["hunter2", "s@crt"]))
        assert not any(secret in line for secret in secrets)
        assert line.count("[hidden]") == 4


@pytest.fixture
def clean_root() -> Iterator[None]:
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    yield
    root.handlers[:] = handlers
    root.setLevel(level)


@pytest.mark.usefixtures("clean_root")
def test_starting_sends_the_process_log_to_the_stream() -> None:
    stream = io.StringIO()
    writer = start_logging(BrokerConfig.from_properties({"logging.format": "json", "logging.level": "error"}), stream)
    logging.getLogger("broker.x").warning("too small")
    logging.getLogger("broker.x").error("enough", extra={"topic": "a"})
    writer.close()
    (line,) = stream.getvalue().splitlines()
    assert json.loads(line)["topic"] == "a"


class StuckStream(io.StringIO):
    """Blocks in the first write until the test releases it."""

    def __init__(self) -> None:
        super().__init__()
        self.reached = threading.Event()
        self.let_go = threading.Event()

    def write(self, text: str) -> int:
        self.reached.set()
        self.let_go.wait()
        return super().write(text)


def test_a_stream_that_is_not_read_blocks_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logs, "WAITING_MAX", 4)
    stream = StuckStream()
    writer = LogWriter(stream)
    writer.setFormatter(TEXT)
    writer.handle(record("first"))
    stream.reached.wait()
    for number in range(10):
        writer.handle(record(f"e{number}"))  # would hang here
    stream.let_go.set()
    writer.close()
    events = [line.partition("event=")[2] for line in stream.getvalue().splitlines()]
    assert [event for event in events if "dropped" not in event] == ["first", "e0", "e1", "e2", "e3"]
    assert [event for event in events if "dropped" in event] == [
        '"the log was not read fast enough: lines were dropped" lines=6'
    ]


def test_a_closed_stream_ends_the_log_quietly() -> None:
    stream = io.StringIO()
    writer = LogWriter(stream)
    writer.setFormatter(TEXT)
    stream.close()
    writer.handle(record("nobody reads this"))
    writer.close()
