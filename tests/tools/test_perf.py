"""``parley perf``."""

from __future__ import annotations

import itertools
import json
import re
from pathlib import Path
from random import Random

import pytest

from broker import Broker
from tools.cli.perf.payloads import payloads
from tools.cli.perf.statistics import Totals, Window, percentile
from tools.cli.running import CommandError

RATES = r"[\d.]+ records/sec \([\d.]+ MB/sec\), [\d.]+ ms avg latency, [\d.]+ ms max latency"


def test_produce_and_consume(parley, broker: Broker, topic: str) -> None:
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


def test_as_json(parley, broker: Broker, topic: str) -> None:
    to = ("--bootstrap-server", broker.bootstrap_servers, "--topic", topic, "--num-records", "50", "--json")
    sent = json.loads(parley("perf", "produce", *to, "--throughput", "1000", "--payload-monotonic").out)
    assert (sent["records"], sent["failed"]) == (50, 0)
    assert sent["recordsPerSec"] < 1500
    read = json.loads(parley("perf", "consume", *to).out)
    assert read["records"] == 50


def test_latency(parley, broker: Broker, topic: str) -> None:
    typed = parley("perf", "latency", broker.bootstrap_servers, topic, "5", "all", "100")
    assert typed.code == 0, typed.err
    first, average, percentiles = typed.lines
    assert re.fullmatch(r"0\t[\d.]+", first)
    assert re.fullmatch(r"Avg latency: [\d.]+ ms", average)
    assert re.fullmatch(r"Percentiles: 50th = \d+, 99th = \d+, 99.9th = \d+", percentiles)


def test_fewer_records_than_expected(parley, broker: Broker, topic: str) -> None:
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
             "--producer-props", "no.such=1"),
            "No such configuration property",
        ),
        (("consume", "--num-records", "1"), "--topic or --include"),
        (("latency", "a:1", "t", "5", "0", "100"), "must be 1 or all"),
    ],
)  # fmt: skip
def test_what_cannot_be_done_is_said(parley, words: tuple[str, ...], reason: str) -> None:
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


def test_of_many_latencies_some_are_kept() -> None:
    totals = Totals(Window(0.0), expected=2_000_000)
    for _ in range(100):
        totals.add(5, 1)
    assert len(totals._latencies) == 25
