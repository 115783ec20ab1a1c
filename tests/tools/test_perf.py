"""``parley perf``: it measures producing, consuming and latency, and prints the figures as Kafka's tools do."""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import pty
import re
import subprocess
from datetime import UTC, datetime
from pathlib import Path
from random import Random

import pytest

from parley import Broker
from parley.tools.cli.invocation import CommandError
from parley.tools.cli.perf.consume import clock_text
from parley.tools.cli.perf.payloads import payloads
from parley.tools.cli.perf.progress import bar
from parley.tools.cli.perf.statistics import Totals, Window, percentile
from tests.support.preloaded import preloaded_command
from tests.tools.conftest import Parley

RATES = r"[\d.]+ records/sec \([\d.]+ MB/sec\), [\d.]+ ms avg latency, [\d.]+ ms max latency"


def test_produce_and_consume(parley: Parley, broker: Broker, topic: str) -> None:
    sent = parley(
        "perf", "produce", "--topic", topic, "--num-records", "500", "--record-size", "100", "--throughput", "-1",
        "--warmup-records", "100", "--producer-props", f"bootstrap.servers={broker.bootstrap_servers}", "linger.ms=5",
    )  # fmt: skip
    assert sent.code == 0, sent.err
    tail = r", \d+ ms 50th, \d+ ms 95th, \d+ ms 99th, \d+ ms 99.9th\."
    assert re.fullmatch(rf"500 records sent, {RATES}{tail}", sent.lines[-2])
    assert re.fullmatch(rf"400 steady state records sent, {RATES}{tail}", sent.lines[-1])

    read = parley(
        "perf", "consume", "--bootstrap-server", broker.bootstrap_servers, "--topic", topic, "--messages", "500"
    )
    assert read.code == 0, read.err
    head, row = read.lines
    assert head.startswith("start.time, end.time, data.consumed.in.MB, MB.sec, data.consumed.in.nMsg, nMsg.sec, ")
    cells = row.split(", ")
    assert len(cells) == len(head.split(", "))
    assert (cells[2], cells[4]) == (f"{500 * 100 / 1024 / 1024:.4f}", "500")
    assert re.fullmatch(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d:\d{3}", cells[0])


def test_as_json(parley: Parley, broker: Broker, topic: str) -> None:
    to = ("--bootstrap-server", broker.bootstrap_servers, "--topic", topic, "--num-records", "50", "--json")
    sent = json.loads(parley("perf", "produce", *to, "--throughput", "1000", "--payload-monotonic").out)
    assert (sent["records"], sent["failed"]) == (50, 0)
    assert sent["recordsPerSec"] < 1500
    read = json.loads(parley("perf", "consume", *to).out)
    assert read["records"] == 50


def test_latency(parley: Parley, broker: Broker, topic: str) -> None:
    typed = parley("perf", "latency", broker.bootstrap_servers, topic, "5", "all", "100")
    assert typed.code == 0, typed.err
    first, average, percentiles = typed.lines
    assert re.fullmatch(r"0\t[\d.]+", first)
    assert re.fullmatch(r"Avg latency: [\d.]+ ms", average)
    assert re.fullmatch(r"Percentiles: 50th = \d+, 99th = \d+, 99.9th = \d+", percentiles)


def test_latency_of_records_with_keys_and_headers(parley: Parley, broker: Broker, topic: str) -> None:
    """With named options, as since Kafka 4.2; the topic is created if it does not exist."""
    typed = parley(
        "perf", "latency", "--bootstrap-server", broker.bootstrap_servers, "--topic", f"new-{topic}", "--num-records",
        "3", "--producer-acks", "1", "--record-size", "10", "--record-key-size", "5", "--num-headers", "2",
        "--record-header-key-size", "3", "--record-header-size", "-1", "--json",
    )  # fmt: skip
    assert typed.code == 0, typed.err
    assert f'Topic "new-{topic}" does not exist. Will create topic' in typed.err
    assert json.loads(typed.out)["records"] == 3


def test_times_in_another_form() -> None:
    moment = datetime(2026, 1, 31, 8, 30, 5, 123_000, tzinfo=UTC)
    assert clock_text(moment) == "2026-01-31 08:30:05:123"
    assert clock_text(moment, "dd.MM.yyyy 'um' HH") == "31.01.2026 um 08"


def test_bar() -> None:
    assert bar(50, 100, "5 records/sec", 80) == f"[{'#' * 15}{'.' * 15}]  50% 50 of 100, 5 records/sec"
    assert len(bar(50, 100, "5 records/sec", 40)) == 39
    assert bar(7, 0, "", 80).startswith(f"[{'#' * 30}] 100%")


@pytest.mark.slow
def test_a_bar_on_a_terminal_and_lines_elsewhere(broker: Broker, topic: str) -> None:
    words = [
        "perf",
        "produce",
        "--bootstrap-server",
        broker.bootstrap_servers,
        "--topic",
        topic,
        "--num-records",
        "300",
    ]
    words += ["--record-size", "10", "--throughput", "400", "--reporting-interval", "100"]
    command = preloaded_command(*words)
    lines = subprocess.run(command, capture_output=True, text=True, check=True)
    assert lines.stderr == ""
    assert re.fullmatch(rf"\d+ records sent, {RATES}\.", lines.stdout.splitlines()[0])
    terminal, other_end = pty.openpty()
    with subprocess.Popen(command, stdout=other_end, stderr=other_end) as process:
        os.close(other_end)
        shown = b""
        with contextlib.suppress(OSError):  # the end of a terminal
            while part := os.read(terminal, 4096):
                shown += part
    os.close(terminal)
    assert process.returncode == 0
    assert b"% " in shown
    assert b" of 300, " in shown
    assert shown.count(b"records sent") == 1


def test_consume_waits_for_a_missing_topic(parley: Parley, broker: Broker) -> None:
    words = ("--topic", "never-made", "--num-records", "5", "--timeout", "500")
    typed = parley("perf", "consume", "--bootstrap-server", broker.bootstrap_servers, *words)
    assert (typed.code, "timeout (500 ms) exceeded" in typed.err) == (0, True)


def test_fewer_records_than_expected(parley: Parley, broker: Broker, topic: str) -> None:
    words = ("--topic", topic, "--num-records", "5", "--timeout", "200", "--hide-header")
    typed = parley("perf", "consume", "--bootstrap-server", broker.bootstrap_servers, *words)
    assert (typed.code, len(typed.lines)) == (0, 1)
    assert "timeout (200 ms) exceeded" in typed.err


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (("produce", "--topic", "t", "--num-records", "1", "--throughput", "-1"), "exactly one of --record-size"),
        (("produce", "--topic", "t", "--num-records", "0", "--throughput", "-1", "--record-size", "1"), "1 or more"),
        (("produce", "--topic", "t", "--num-records", "1", "--throughput", "1", "--record-size", "0"), "1 or more"),
        (
            ("produce", "--topic", "t", "--num-records", "1", "--throughput", "1", "--record-size", "1",
             "--producer-props", "acks=none"),
            "The client cannot be created",
        ),
        (("consume", "--num-records", "1"), "--topic or --include"),
        (("consume", "--num-records", "1", "--topic", "t", "--date-format", "yyyy-QQ"), "not 'Q'"),
        (("latency", "a:1", "t", "5", "0", "100"), "must be 1 or all"),
        (("latency", "a:1", "t", "5", "all"), "Five or six arguments"),
        (("latency", "a:1", "t", "many", "all", "1"), "must be numbers"),
        (("latency", "--bootstrap-server", "a:1", "--topic", "t"), "--num-records is missing"),
    ],
)  # fmt: skip
def test_impossible_requests_are_reported(parley: Parley, words: tuple[str, ...], reason: str) -> None:
    typed = parley("perf", *words)
    assert typed.code == 1
    assert reason in typed.err


def test_payloads(tmp_path: Path) -> None:
    assert list(itertools.islice(payloads(None, None, "", True), 3)) == [b"0", b"1", b"2"]
    (value, again) = itertools.islice(payloads(10, None, "", False), 2)
    assert (len(value), value) == (10, again)
    (tmp_path / "lines").write_text("a\nb\nc\n")
    some = set(itertools.islice(payloads(None, tmp_path / "lines", "\\n", False, Random(1)), 100))
    assert some == {b"a", b"b", b"c"}
    (tmp_path / "empty").write_text("")
    for path in ("none", "empty"):
        with pytest.raises(CommandError):
            payloads(None, tmp_path / path, "\\n", False)


def test_statistics() -> None:
    totals = Totals(Window(100.0), expected=1000)
    for latency in range(1000):
        totals.add(latency, 1024 * 1024)
    assert totals.line(110.0) == (
        "1000 records sent, 100.000000 records/sec (100.00 MB/sec), 499.50 ms avg latency, 999.00 ms max latency, "
        "500 ms 50th, 950 ms 95th, 990 ms 99th, 999 ms 99.9th."
    )
    assert totals.window.line(110.0) == (
        "1000 records sent, 100.0 records/sec (100.00 MB/sec), 499.5 ms avg latency, 999.0 ms max latency."
    )
    assert percentile([], 0.5) == 0


def test_only_some_of_many_latencies_are_kept() -> None:
    totals = Totals(Window(0.0), expected=2_000_000)
    for _ in range(100):
        totals.add(5, 1)
    assert len(totals._latencies) == 25
