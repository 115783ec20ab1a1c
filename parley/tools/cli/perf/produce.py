"""``parley perf produce``: measure how fast records can be produced, and how long acknowledgements take."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any
from uuid import uuid4

import typer

from parley.tools.cli.common_options import DEFAULT_BOOTSTRAP, OutputFormat, Verbose
from parley.tools.cli.invocation import FAILED, CommandError
from parley.tools.cli.librdkafka import Connection, connect, reach, reason_of, settings_of
from parley.tools.cli.output import Format, print_data
from parley.tools.cli.perf.metrics import Metrics
from parley.tools.cli.perf.payloads import payloads
from parley.tools.cli.perf.progress import Progress, on_terminal
from parley.tools.cli.perf.statistics import Totals, Window
from parley.tools.plurals import plural

_LAG_SLEEP_S = 0.001
_INIT_TRANSACTIONS_S = 30
_TRANSACTION_MS = 3000


@dataclass(frozen=True, slots=True)
class Options:
    """The options of ``parley perf produce``, as given on the command line."""

    topic: Annotated[str, typer.Option("--topic", help="Topic to send to.")]
    num_records: Annotated[int, typer.Option("--num-records", help="How many records to send.")]
    throughput: Annotated[
        float, typer.Option("--throughput", help="Maximum number of records per second; -1 for no limit.")
    ]
    bootstrap_server: Annotated[str, typer.Option("--bootstrap-server", help="Brokers to connect to first.")] = ""
    record_size: Annotated[int | None, typer.Option("--record-size", help="Size of each record in bytes.")] = None
    payload_file: Annotated[
        Path | None, typer.Option("--payload-file", help="Send parts of this file, chosen at random.")
    ] = None
    payload_delimiter: Annotated[
        str, typer.Option("--payload-delimiter", help="The delimiter between the parts of the payload file.")
    ] = "\\n"
    payload_monotonic: Annotated[bool, typer.Option("--payload-monotonic", help="Send rising numbers.")] = False
    producer_props: Annotated[
        list[str],
        typer.Option("--producer-props", "--command-property", help="Client settings: key=value key=value ..."),
    ] = field(default_factory=list)
    producer_config: Annotated[
        Path | None, typer.Option("--producer.config", "--command-config", help="Properties file for the client.")
    ] = None
    print_metrics: Annotated[
        bool, typer.Option("--print-metrics", help="Print librdkafka's statistics at the end.")
    ] = False
    transactional_id: Annotated[
        str, typer.Option("--transactional-id", help="Send in transactions with this transactional id.")
    ] = ""
    transaction_duration_ms: Annotated[
        int | None, typer.Option("--transaction-duration-ms", help="Commit each transaction after this time.")
    ] = None
    warmup_records: Annotated[
        int, typer.Option("--warmup-records", help="Number of first records to exclude from the steady-state results.")
    ] = 0
    reporting_interval: Annotated[
        int,
        typer.Option(
            "--reporting-interval", help="Interval of the reports, in ms; a terminal shows a progress bar instead."
        ),
    ] = 5000
    verbose: Verbose = False
    output_format: OutputFormat = None


@dataclass(frozen=True, slots=True)
class Load:
    """The load: the topic, the number of records, the rate in records per second (-1 for no limit), the number of
    warm-up records, the reporting interval and the duration of a transaction (0: no transactions)."""

    topic: str
    records: int
    per_second: float
    warmup_records: int
    report_ms: int
    transaction_ms: int


class Run:
    """A run, which sends a load with a librdkafka producer and counts the acknowledgements."""

    def __init__(self, producer: Any, connection: Connection, load: Load, *, quiet: bool) -> None:
        self._producer = producer
        self._connection = connection
        self._load = load
        self._quiet = quiet
        self.failures: list[str] = []
        now = time.perf_counter()
        self._window = Window(now)
        self._progress = Progress(load.records, not quiet and on_terminal())
        self.totals = Totals(Window(now), load.records)
        self.steady: Totals | None = None

    def send_all(self, values: Iterator[bytes]) -> None:
        """Send the load at its rate, in transactions if requested, and wait for all acknowledgements. If a record is
        not acknowledged, its error is added to ``failures``."""
        load = self._load
        started = time.perf_counter()
        if load.transaction_ms:
            self._producer.begin_transaction()
        transaction_began = started
        for number in range(load.records):
            self._send(next(values))
            now = time.perf_counter()
            if load.transaction_ms and (now - transaction_began) * 1000 >= load.transaction_ms:
                self._producer.commit_transaction()
                self._producer.begin_transaction()
                transaction_began = now
            if load.per_second > 0:
                self._hold_back(started + (number + 1) / load.per_second)
        if load.transaction_ms:
            self._producer.commit_transaction()
        self._producer.flush()
        self._progress.clear()

    def _hold_back(self, until: float) -> None:
        while (wait := until - time.perf_counter()) > _LAG_SLEEP_S:
            self._producer.poll(min(wait, 0.1))

    def _send(self, value: bytes) -> None:
        sent = time.perf_counter()

        def delivered(error: Any, message: Any) -> None:
            self._delivered(error, message, sent)

        while True:
            try:
                self._producer.produce(self._load.topic, value, on_delivery=delivered)
                self._producer.poll(0)
                return
            except BufferError:
                self._producer.poll(0.05)
                sent = time.perf_counter()

    def _delivered(self, error: Any, message: Any, sent: float) -> None:
        if error is not None:
            self.failures.append(error.str())
            return
        self._connection.on_response()
        now = time.perf_counter()
        latency_ms, size = int((now - sent) * 1000), len(message)
        if self.steady is None and self._load.warmup_records and self.totals.window.count >= self._load.warmup_records:
            self._say("In steady state.")
            left = self._load.records - self._load.warmup_records
            self.steady = Totals(Window(now), left, "steady state records sent")
        self.totals.add(latency_ms, size)
        self._window.add(latency_ms, size)
        if self.steady is not None:
            self.steady.add(latency_ms, size)
        self._report(now)

    def _report(self, now: float) -> None:
        if self._progress.is_shown:
            self._progress.update(now, self.totals.window.count, self._window.rates_text(now))
        if (now - self._window.started) * 1000 >= self._load.report_ms:
            if not self._progress.is_shown:
                self._say(self._window.line(now))
            self._window = Window(now)

    def _say(self, line: str) -> None:
        if not self._quiet:
            self._progress.clear()
            print(line, flush=True)


def produce(options: Options) -> None:
    """Measure producer throughput and latency, as kafka-producer-perf-test does."""
    from confluent_kafka import KafkaException, Producer

    if options.num_records < 1 or not 0 <= options.warmup_records < options.num_records:
        raise CommandError("--num-records must be 1 or more, and --warmup-records must be smaller.")
    values = payloads(options.record_size, options.payload_file, options.payload_delimiter, options.payload_monotonic)
    metrics = Metrics(options.print_metrics)
    own = {**settings(options), **metrics.settings()}
    in_transactions = "transactional.id" in own
    try:
        producer, connection = connect(Producer, own, verbose=options.verbose)
        reach(producer, connection)
        if in_transactions:
            producer.init_transactions(_INIT_TRANSACTIONS_S)
        run = Run(
            producer,
            connection,
            load(options, in_transactions=in_transactions),
            quiet=options.output_format is not None,
        )
        if options.warmup_records and not options.output_format:
            warmup = f"Warmup first {options.warmup_records} records."
            print(f"{warmup} The results of the steady state are also shown at the end.")
        run.send_all(values)
    except KafkaException as error:
        raise CommandError(reason_of(error.args[0])) from error
    _show(run, output_format=options.output_format)
    metrics.show()
    if run.failures:
        failed = f"{plural(len(run.failures), 'record')} not acknowledged; the last: {run.failures[-1]}."
        print(f"Error: {failed}", file=sys.stderr)
        raise typer.Exit(FAILED)


def settings(options: Options) -> dict[str, Any]:
    """Return the producer's settings. ``--bootstrap-server`` and ``--transactional-id`` override all others. Raises
    ``CommandError`` if a setting or the properties file cannot be parsed."""
    own = {"bootstrap.servers": DEFAULT_BOOTSTRAP, "client.id": "perf-producer-client"}
    given = settings_of(own, options.producer_config, options.producer_props, "--producer-props")
    if options.bootstrap_server:
        given["bootstrap.servers"] = options.bootstrap_server
    if options.transactional_id:
        given["transactional.id"] = options.transactional_id
    elif options.transaction_duration_ms is not None and "transactional.id" not in given:
        given["transactional.id"] = f"performance-producer-{uuid4()}"
    return given


def load(options: Options, *, in_transactions: bool) -> Load:
    """Get the load from the options. Raises ``CommandError`` if the transaction duration is not positive."""
    duration = _TRANSACTION_MS if options.transaction_duration_ms is None else options.transaction_duration_ms
    if duration < 1:
        raise CommandError("--transaction-duration-ms should be > 0")
    return Load(
        options.topic,
        options.num_records,
        options.throughput,
        options.warmup_records,
        options.reporting_interval,
        duration if in_transactions else 0,
    )


def _show(run: Run, *, output_format: Format | None) -> None:
    now = time.perf_counter()
    if output_format:
        steady = {"steadyState": run.steady.as_data(now)} if run.steady else {}
        print_data({**run.totals.as_data(now), "failed": len(run.failures), **steady}, output_format)
        return
    print(run.totals.line(now))
    if run.steady is not None:
        print(run.steady.line(now))
