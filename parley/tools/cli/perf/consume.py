"""``parley perf consume``: measure how fast records can be consumed."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Annotated, Any, Final
from uuid import uuid4

import typer

from parley.tools.cli.common_options import DEFAULT_BOOTSTRAP, BootstrapServer, OutputFormat, Verbose
from parley.tools.cli.invocation import CommandError
from parley.tools.cli.librdkafka import WAITED_FOR, connect, reach, reason_of, settings_of
from parley.tools.cli.output import print_data
from parley.tools.cli.perf.metrics import Metrics
from parley.tools.cli.perf.progress import DRAW_MS, Progress, on_terminal
from parley.tools.cli.perf.statistics import MIB

_AT_ONCE = 1000
_PARTS = "MB.sec, data.consumed.in.nMsg, nMsg.sec, rebalance.time.ms, fetch.time.ms, fetch.MB.sec, fetch.nMsg.sec"
_HEAD = f"start.time, end.time, data.consumed.in.MB, {_PARTS}"
_DETAILED_HEAD = f"time, threadId, data.consumed.in.MB, {_PARTS}"
DATE_FORMAT: Final = "yyyy-MM-dd HH:mm:ss:SSS"
_DATE_LETTERS: Final = {
    "y": "%Y", "M": "%m", "d": "%d", "H": "%H", "h": "%I", "m": "%M", "s": "%S", "a": "%p", "E": "%a", "D": "%j",
    "z": "%Z", "Z": "%z",
}  # fmt: skip
"""The supported letters of Java's SimpleDateFormat, in addition to S for milliseconds."""


@dataclass(frozen=True, slots=True)
class Options:
    """The options of ``parley perf consume``, as given on the command line."""

    num_records: Annotated[int, typer.Option("--num-records", "--messages", help="How many records to read.")]
    topic: Annotated[str, typer.Option("--topic", help="Topic to read.")] = ""
    include: Annotated[str, typer.Option("--include", help="Regular expression of topics to read.")] = ""
    bootstrap_server: BootstrapServer = DEFAULT_BOOTSTRAP
    group: Annotated[str, typer.Option("--group", help="Consumer group; a new one unless given.")] = ""
    fetch_size: Annotated[int, typer.Option("--fetch-size", help="Maximum bytes of one partition in a fetch.")] = (
        1024 * 1024
    )
    socket_buffer_size: Annotated[
        int, typer.Option("--socket-buffer-size", help="Size of the receive buffer in bytes.")
    ] = 2 << 20
    from_latest: Annotated[
        bool, typer.Option("--from-latest", help="Start at the end of the topic, not with the oldest record.")
    ] = False
    date_format: Annotated[
        str, typer.Option("--date-format", help="Format of times, in the letters of Java's SimpleDateFormat.")
    ] = DATE_FORMAT
    reporting_interval: Annotated[int, typer.Option("--reporting-interval", help="Interval of the reports, in ms.")] = (
        5000
    )
    show_detailed_stats: Annotated[
        bool, typer.Option("--show-detailed-stats", help="Print a line for each reporting interval.")
    ] = False
    hide_header: Annotated[bool, typer.Option("--hide-header", help="Do not print the column names.")] = False
    timeout: Annotated[int, typer.Option("--timeout", help="Stop if no record arrives for this long, in ms.")] = 10_000
    print_metrics: Annotated[
        bool, typer.Option("--print-metrics", help="Print librdkafka's statistics at the end.")
    ] = False
    consumer_config: Annotated[
        Path | None, typer.Option("--consumer.config", "--command-config", help="Properties file for the client.")
    ] = None
    command_property: Annotated[
        list[str], typer.Option("--command-property", help="Client settings: key=value key=value ...")
    ] = field(default_factory=list)
    verbose: Verbose = False
    output_format: OutputFormat = None


@dataclass(slots=True)
class Tally:
    """The amount consumed so far. Times are seconds of ``time.perf_counter``."""

    started: float
    records: int = 0
    size_bytes: int = 0
    joined: float | None = None
    """The time of the first assignment."""
    ended: float = 0.0
    """The time at which the last record arrived."""

    def row(self, now: float, since: float, records: int, size_bytes: int) -> list[str]:
        """Return the volume and rates, as the columns of kafka-consumer-perf-test. ``records`` and ``size_bytes`` are
        the amounts read from the time ``since`` to ``now``."""
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


def clock_text(moment: datetime, form: str = DATE_FORMAT) -> str:
    """Format a time by a pattern with the letters of Java's SimpleDateFormat, by default as 2026-01-31 08:30:00:123.

    Each field has one fixed form: except for ``S``, the number of letters has no effect (``yy`` is 2026, ``MMM`` is
    01). Raises ``CommandError`` for an unsupported letter.
    """
    parts = []
    at = 0
    while at < len(form):
        letter = form[at]
        if letter == "'":  # quoted text is printed as it is
            end = form.find("'", at + 1) % (len(form) + 1)
            parts.append(form[at + 1 : end])
            at = end + 1
            continue
        end = at + len(form[at:]) - len(form[at:].lstrip(letter))
        if letter == "S":
            parts.append(f"{moment.microsecond // 1000:0{end - at}d}")
        elif letter in _DATE_LETTERS:
            parts.append(moment.strftime(_DATE_LETTERS[letter]))
        elif letter.isalpha():
            raise CommandError(f"--date-format supports the letters S{''.join(_DATE_LETTERS)}, not '{letter}'.")
        else:
            parts.append(form[at:end])
        at = end
    return "".join(parts)


def read(
    consumer: Any, tally: Tally, wanted: int, timeout_ms: int, report_ms: int, report: Callable[[float], None]
) -> bool:
    """Read until ``wanted`` records have arrived. Returns False if no message arrives for ``timeout_ms``. Calls
    ``report`` with the time every ``report_ms``. Raises ``CommandError`` if the consumer reports an error."""
    last = tally.started
    reported = tally.started
    while tally.records < wanted:
        messages = consumer.consume(_AT_ONCE, 0.1)
        now = time.perf_counter()
        for message in messages:
            if message.error() is not None and message.error().name() in WAITED_FOR:
                continue
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


@dataclass(slots=True)
class Report:
    """The progress report: a line per interval, a progress bar on a terminal, or nothing."""

    tally: Tally
    wanted: int
    date_format: str
    detailed: bool
    progress: Progress
    since: float
    records: int = 0
    size_bytes: int = 0

    def __call__(self, now: float) -> None:
        row = self.tally.row(
            now, self.since, self.tally.records - self.records, self.tally.size_bytes - self.size_bytes
        )
        if self.detailed:
            moment = clock_text(datetime.now().astimezone(), self.date_format)
            print(", ".join([moment, "0", *row]), flush=True)
        else:
            self.progress.update(now, self.tally.records, f"{row[3]} records/sec ({row[1]} MB/sec)")
        self.since, self.records, self.size_bytes = now, self.tally.records, self.tally.size_bytes


def consume(options: Options) -> None:
    """Measure consumer throughput, as kafka-consumer-perf-test does."""
    from confluent_kafka import Consumer, KafkaException

    if bool(options.topic) == bool(options.include):
        raise CommandError("Name either --topic or --include.")
    detailed = options.show_detailed_stats and not options.output_format
    began = datetime.now().astimezone()
    clock_text(began, options.date_format)
    metrics = Metrics(options.print_metrics)
    consumer, connection = connect(Consumer, {**settings(options), **metrics.settings()}, verbose=options.verbose)
    try:
        reach(consumer, connection)
        if not options.hide_header and not options.output_format:
            print(_DETAILED_HEAD if detailed else _HEAD, flush=True)
        tally, enough = _measured(consumer, options, detailed=detailed)
    except KafkaException as error:
        raise CommandError(reason_of(error.args[0])) from error
    finally:
        consumer.close()
    if not enough:
        print(
            f"WARNING: Exiting before consuming the expected number of records: timeout ({options.timeout} ms) "
            "exceeded. You can use the --timeout option to increase the timeout.",
            file=sys.stderr,
        )
    _show(
        tally, [clock_text(one, options.date_format) for one in (began, datetime.now().astimezone())], detailed, options
    )
    metrics.show()


def _measured(consumer: Any, options: Options, *, detailed: bool) -> tuple[Tally, bool]:
    """Consume as the options say. Returns the tally, and False if too few records arrived before the timeout."""
    tally = Tally(time.perf_counter())

    def assigned(consumer: Any, partitions: Any) -> None:
        if tally.joined is None:
            tally.joined = time.perf_counter()

    progress = Progress(options.num_records, on_terminal() and not detailed and not options.output_format)
    report = Report(tally, options.num_records, options.date_format, detailed, progress, tally.started)
    consumer.subscribe([options.topic or f"^({options.include})$"], on_assign=assigned)
    report_ms = DRAW_MS if progress.is_shown else options.reporting_interval
    enough = read(consumer, tally, options.num_records, options.timeout, report_ms, report)
    progress.clear()
    return tally, enough


def settings(options: Options) -> dict[str, Any]:
    """Return the consumer's settings. Options override the properties file, which overrides the defaults. Raises
    ``CommandError`` if a setting or the properties file cannot be parsed."""
    own = {
        "client.id": "perf-consumer-client",
        "auto.offset.reset": "latest" if options.from_latest else "earliest",
        "max.partition.fetch.bytes": options.fetch_size,
        "socket.receive.buffer.bytes": options.socket_buffer_size,
        "check.crcs": False,
        "group.id": f"perf-consumer-{uuid4().int % 100_000}",
    }
    given = settings_of(own, options.consumer_config, options.command_property, "--command-property")
    named = {"group.id": options.group} if options.group else {}
    return {**given, **named, "bootstrap.servers": options.bootstrap_server}


def _show(tally: Tally, times: list[str], detailed: bool, options: Options) -> None:
    now = tally.ended or time.perf_counter()
    row = tally.row(now, tally.started, tally.records, tally.size_bytes)
    if options.output_format:
        names = ("mb", "mbPerSec", "records", "recordsPerSec", "rebalanceMs", "fetchMs", "fetchMbPerSec", "fetchPerSec")
        numbers = dict(zip(names, map(float, row), strict=True))
        print_data({**numbers, "records": tally.records}, options.output_format)
    elif not detailed:
        print(", ".join([*times, *row]))
