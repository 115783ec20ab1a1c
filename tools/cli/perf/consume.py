"""``parley perf consume``: how fast a topic gives records."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Annotated, Any
from uuid import uuid4

import typer

from tools.cli.options import DEFAULT_BOOTSTRAP, AsJson, BootstrapServer, client_properties
from tools.cli.perf.statistics import MIB
from tools.cli.running import CommandError, pairs

_AT_ONCE = 1000
_PARTS = "MB.sec, data.consumed.in.nMsg, nMsg.sec, rebalance.time.ms, fetch.time.ms, fetch.MB.sec, fetch.nMsg.sec"
_HEAD = f"start.time, end.time, data.consumed.in.MB, {_PARTS}"
_DETAILED_HEAD = f"time, threadId, data.consumed.in.MB, {_PARTS}"


@dataclass(slots=True)
class Tally:
    """What has been consumed; times in s of the performance counter."""

    started: float
    records: int = 0
    size_bytes: int = 0
    joined: float | None = None
    """When partitions were first assigned."""
    ended: float = 0.0
    """When the last record came."""

    def row(self, now: float, since: float, records: int, size_bytes: int) -> list[str]:
        """Volume and rates since a moment, in the columns of kafka-consumer-perf-test."""
        elapsed = max(now - since, 1e-9)
        joining_ms = ((self.joined or self.started) - self.started) * 1000
        fetch_ms = max((now - self.started) * 1000 - joining_ms, 0.001)
        return [
            f"{self.size_bytes / MIB:.4f}",
            f"{size_bytes / MIB / elapsed:.4f}",
            str(self.records),
            f"{records / elapsed:.4f}",
            f"{joining_ms:.0f}",
            f"{fetch_ms:.0f}",
            f"{self.size_bytes / MIB / (fetch_ms / 1000):.4f}",
            f"{self.records / (fetch_ms / 1000):.4f}",
        ]


def clock_text(moment: datetime) -> str:
    """A time as Kafka's tool prints it: 2026-01-31 08:30:00:123."""
    return f"{moment:%Y-%m-%d %H:%M:%S}:{moment.microsecond // 1000:03d}"


def read(
    consumer: Any, tally: Tally, wanted: int, timeout_ms: int, report_ms: int, report: Callable[[float], None]
) -> bool:
    """Read until enough records came; False when none came for ``timeout_ms``."""
    last = tally.started
    reported = tally.started
    while tally.records < wanted:
        messages = consumer.consume(_AT_ONCE, 0.1)
        now = time.perf_counter()
        for message in messages:
            if message.error() is not None:
                raise CommandError(f"{message.error().str()}.")
            tally.records += 1
            tally.size_bytes += len(message) + len(message.key() or b"")
        if messages:
            last = tally.ended = now
        elif (now - last) * 1000 >= timeout_ms:
            return False
        if (now - reported) * 1000 >= report_ms:
            report(now)
            reported = now
    return True


def consume(
    num_records: Annotated[int, typer.Option("--num-records", "--messages", help="How many records to read.")],
    topic: Annotated[str, typer.Option("--topic", help="Topic to read.")] = "",
    include: Annotated[str, typer.Option("--include", help="Regular expression of topics to read.")] = "",
    bootstrap_server: BootstrapServer = DEFAULT_BOOTSTRAP,
    group: Annotated[str, typer.Option("--group", help="Consumer group; a new one if left out.")] = "",
    fetch_size: Annotated[int, typer.Option("--fetch-size", help="Bytes of one partition in one fetch.")] = 1024 * 1024,
    socket_buffer_size: Annotated[int, typer.Option("--socket-buffer-size", help="Bytes of the receive buffer.")] = 2
    << 20,
    from_latest: Annotated[
        bool, typer.Option("--from-latest", help="Begin with what comes next, not with the oldest record.")
    ] = False,
    reporting_interval: Annotated[int, typer.Option("--reporting-interval", help="How often to print, in ms.")] = 5000,
    show_detailed_stats: Annotated[
        bool, typer.Option("--show-detailed-stats", help="Print a line for each reporting interval.")
    ] = False,
    hide_header: Annotated[
        bool, typer.Option("--hide-header", help="Leave the line with the column names out.")
    ] = False,
    timeout: Annotated[int, typer.Option("--timeout", help="How long records may stay away, in ms.")] = 10_000,
    print_metrics: Annotated[
        bool, typer.Option("--print-metrics", help="Print librdkafka's statistics at the end.")
    ] = False,
    consumer_config: Annotated[
        Path | None, typer.Option("--consumer.config", "--command-config", help="Properties file for the client.")
    ] = None,
    command_property: Annotated[
        list[str], typer.Option("--command-property", help="Client settings key=value, several in a row.")
    ] = [],  # noqa: B006 - typer reads the default, nobody changes it
    json_output: AsJson = False,
) -> None:
    """Read records and print the rate, as kafka-consumer-perf-test does."""
    from confluent_kafka import Consumer, KafkaException

    if bool(topic) == bool(include):
        raise CommandError("Name either --topic or --include.")
    settings: dict[str, Any] = {
        "bootstrap.servers": bootstrap_server,
        "client.id": "perf-consumer-client",
        "group.id": group or f"perf-consumer-{uuid4().int % 100_000}",
        "auto.offset.reset": "latest" if from_latest else "earliest",
        "max.partition.fetch.bytes": fetch_size,
        "socket.receive.buffer.bytes": socket_buffer_size,
        "check.crcs": False,
        **client_properties(consumer_config),
        **pairs(command_property, "--command-property"),
    }
    metrics: list[str] = []
    if print_metrics:
        settings |= {"statistics.interval.ms": 1000, "stats_cb": lambda text: metrics.__setitem__(slice(None), [text])}
    began = datetime.now().astimezone()
    tally = Tally(time.perf_counter())

    def assigned(consumer: Any, partitions: Any) -> None:
        if tally.joined is None:
            tally.joined = time.perf_counter()

    detailed = show_detailed_stats and not json_output
    seen = [tally.started, 0, 0]

    def report(now: float) -> None:
        if detailed:
            row = tally.row(now, seen[0], tally.records - int(seen[1]), tally.size_bytes - int(seen[2]))
            print(", ".join([clock_text(datetime.now().astimezone()), "0", *row]), flush=True)
        elif sys.stderr.isatty():
            print(f"\r{tally.records} of {num_records} records", end="", file=sys.stderr, flush=True)
        seen[:] = [now, tally.records, tally.size_bytes]

    if not hide_header and not json_output:
        print(_DETAILED_HEAD if detailed else _HEAD, flush=True)
    try:
        consumer = Consumer(settings)
        consumer.subscribe([topic or f"^({include})$"], on_assign=assigned)
        enough = read(consumer, tally, num_records, timeout, reporting_interval, report)
        consumer.close()
    except KafkaException as error:
        raise CommandError(f"{error.args[0].str()}.") from error
    if not enough:
        print(
            f"WARNING: Exiting before consuming the expected number of records: timeout ({timeout} ms) exceeded. "
            "You can use the --timeout option to increase the timeout.",
            file=sys.stderr,
        )
    _show(tally, began, detailed=detailed, as_json=json_output)
    for text in metrics:
        print(json.dumps(json.loads(text), indent=2))


def _show(tally: Tally, began: datetime, *, detailed: bool, as_json: bool) -> None:
    now = tally.ended or time.perf_counter()
    row = tally.row(now, tally.started, tally.records, tally.size_bytes)
    if as_json:
        names = ("mb", "mbPerSec", "records", "recordsPerSec", "rebalanceMs", "fetchMs", "fetchMbPerSec", "fetchPerSec")
        print(json.dumps(dict(zip(names, map(float, row), strict=True))))
    elif not detailed:
        print(", ".join([clock_text(began), clock_text(datetime.now().astimezone()), *row]))
