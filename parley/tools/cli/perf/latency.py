"""``parley perf latency``: measure the time from sending a record to receiving it, one record at a time."""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Annotated, Any
from uuid import uuid4

import typer

from parley.tools.cli.cluster_client import on_cluster
from parley.tools.cli.common_options import OutputFormat, Verbose, client_properties
from parley.tools.cli.invocation import CommandError
from parley.tools.cli.librdkafka import connect, reach, reason_of, translated
from parley.tools.cli.output import Format, print_data
from parley.tools.cli.perf.progress import Progress, on_terminal
from parley.tools.cli.perf.statistics import percentile

_RECEIVE_S = 60.0
_REPORT_EVERY = 1000
_PAUSE_S = 0.1
_POSITIONS = ("bootstrap_server", "topic", "num_records", "producer_acks", "record_size", "command_config")


@dataclass(frozen=True, slots=True)
class Options:
    """The options of ``parley perf latency``. They may also be positional, as Kafka required before 4.2."""

    positional: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[BOOTSTRAP TOPIC NUM_RECORDS ACKS RECORD_SIZE [PROPERTIES]]",
            help="The first options, without their names.",
        ),
    ] = None
    bootstrap_server: Annotated[str, typer.Option("--bootstrap-server", help="Brokers to connect to first.")] = ""
    topic: Annotated[str, typer.Option("--topic", help="The topic; no other producer should write to it.")] = ""
    num_records: Annotated[int, typer.Option("--num-records", help="How many records to send.")] = 0
    producer_acks: Annotated[
        str,
        typer.Option(
            "--producer-acks", help="1 or all: the replicas that must acknowledge a record before the next one is sent."
        ),
    ] = ""
    record_size: Annotated[int, typer.Option("--record-size", help="Size of a record in bytes.")] = 0
    command_config: Annotated[
        Path | None, typer.Option("--command-config", help="Properties file for the clients.")
    ] = None
    record_key_size: Annotated[int, typer.Option("--record-key-size", help="Size of a key in bytes; 0 for no key.")] = 0
    num_headers: Annotated[int, typer.Option("--num-headers", help="Number of headers per record.")] = 0
    record_header_key_size: Annotated[
        int, typer.Option("--record-header-key-size", help="Size of a header's key in bytes.")
    ] = 0
    record_header_size: Annotated[
        int, typer.Option("--record-header-size", help="Size of a header's value in bytes; -1 for null.")
    ] = 0
    verbose: Verbose = False
    output_format: OutputFormat = None


@dataclass(frozen=True, slots=True)
class Load:
    """The records to send, and the topic; sizes in bytes."""

    bootstrap_server: str
    topic: str
    num_records: int
    producer_acks: str
    record_size: int
    command_config: Path | None
    key_size: int
    headers: int
    header_key_size: int
    header_size: int


def load(options: Options) -> Load:
    """Get the load from the options. Raises ``CommandError`` if one is missing or wrong."""
    values: dict[str, Any] = {name: getattr(options, name) for name in _POSITIONS}
    if options.positional:
        if len(options.positional) not in (5, 6):
            raise CommandError(f"Five or six arguments are expected, not {len(options.positional)}.")
        values |= dict(zip(_POSITIONS, options.positional, strict=False))
    for name in _POSITIONS[:5]:
        if not values[name]:
            raise CommandError(f"--{name.replace('_', '-')} is missing.")
    try:
        values |= {name: int(values[name]) for name in ("num_records", "record_size")}
    except ValueError as error:
        raise CommandError("The number of records and their size must be numbers.") from error
    if values["command_config"] is not None:
        values["command_config"] = Path(values["command_config"])
    found = Load(
        **values,
        key_size=options.record_key_size,
        headers=options.num_headers,
        header_key_size=options.record_header_key_size,
        header_size=options.record_header_size,
    )
    _check(found)
    return found


def _check(wanted: Load) -> None:
    if wanted.producer_acks not in ("1", "all"):
        raise CommandError(f"The acknowledgement must be 1 or all, not {wanted.producer_acks}.")
    if wanted.num_records < 1 or wanted.record_size < 1:
        raise CommandError("The number of records and their size must be 1 or more.")
    if min(wanted.key_size, wanted.headers, wanted.header_key_size, wanted.header_size + 1) < 0:
        raise CommandError(
            "The sizes of keys and headers must be 0 or more, and the size of a header's value -1 or more."
        )


def ends_of(consumer: Any, topic: str, indexes: Sequence[int]) -> list[Any]:
    """Return the partitions of the topic, each with its end offset, for the consumer to start there. Raises
    KafkaException if an end offset cannot be read within a minute."""
    from confluent_kafka import TopicPartition

    ends = []
    for index in indexes:
        _, end = consumer.get_watermark_offsets(TopicPartition(topic, index), timeout=_RECEIVE_S)
        ends.append(TopicPartition(topic, index, end))
    return ends


def partitions_of(consumer: Any, connection: Any, wanted: Load) -> list[int]:
    """Return the numbers of the topic's partitions. Creates the topic if it does not exist, as Kafka's tool does.
    Raises ``CommandError`` if the topic cannot be used."""
    from parley.tools.cli.topics.changing import NewTopic, create

    found = reach(consumer, connection, wanted.topic).topics[wanted.topic]
    if found.error is None and found.partitions:
        return sorted(found.partitions)
    print(
        f'Topic "{wanted.topic}" does not exist. Will create topic with 1 partition(s) and replication factor = 1',
        file=sys.stderr,
    )
    new = NewTopic(wanted.topic, 1, 1, None, {})
    on_cluster(
        wanted.bootstrap_server,
        connection.security,
        lambda client: create(client, new, if_not_exists=True, verbose=False),
    )
    while (made := reach(consumer, connection, wanted.topic).topics[wanted.topic]).error is not None:
        if not made.error.retriable() and made.error.name() != "UNKNOWN_TOPIC_OR_PART":
            raise CommandError(f"The topic '{wanted.topic}' cannot be used: {made.error.str()}.")
        consumer.poll(_PAUSE_S)
    return sorted(made.partitions)


def round_trip(producer: Any, consumer: Any, topic: str, record: dict[str, Any]) -> float:
    """Send a record and wait until it is acknowledged and received. Returns the time in ms. Raises ``CommandError`` if
    it is not acknowledged, not received in time, or if another record is received."""
    failures: list[str] = []
    started = time.perf_counter()
    producer.produce(topic, **record, on_delivery=lambda error, _: failures.append(error.str()) if error else None)
    producer.flush()
    if failures:
        raise CommandError(f"The record was not acknowledged: {failures[0]}.")
    message = consumer.poll(_RECEIVE_S)
    elapsed_ms = (time.perf_counter() - started) * 1000
    if message is None:
        raise CommandError(f"The record was not received within {_RECEIVE_S:g} s.")
    if message.error() is not None:
        raise CommandError(f"{message.error().str()}.")
    if message.value() != record["value"] or message.key() != record["key"]:
        raise CommandError("Received a record other than the one sent: another producer is writing to the topic.")
    return elapsed_ms


def record_of(wanted: Load, random: Random) -> dict[str, Any]:
    """Return the arguments of ``produce`` for a record of random letters."""

    def letters(size: int) -> bytes:
        return bytes(random.choices(range(65, 91), k=size))

    headers = [
        (letters(wanted.header_key_size).decode(), None if wanted.header_size < 0 else letters(wanted.header_size))
        for _ in range(wanted.headers)
    ]
    key = letters(wanted.key_size) if wanted.key_size else None
    return {"value": letters(wanted.record_size), "key": key, "headers": headers}


def latency(options: Options) -> None:
    """Measure the latency from producer to consumer, as kafka-e2e-latency does."""
    from confluent_kafka import Consumer, KafkaException, Producer

    wanted = load(options)
    own = {**translated(client_properties(wanted.command_config)), "bootstrap.servers": wanted.bootstrap_server}
    reading = {"group.id": f"test-group-{uuid4()}", "enable.auto.commit": False, "auto.offset.reset": "latest"}
    try:
        consumer, connection = connect(Consumer, {**own, **reading, "fetch.wait.max.ms": 500}, verbose=options.verbose)
        partitions = partitions_of(consumer, connection, wanted)
        producer, _ = connect(Producer, {**own, "linger.ms": 0, "acks": wanted.producer_acks}, verbose=options.verbose)
        consumer.assign(ends_of(consumer, wanted.topic, partitions))
        consumer.poll(0)
        latencies = _measured(producer, consumer, wanted, quiet=options.output_format is not None)
        consumer.close()
    except KafkaException as error:
        raise CommandError(reason_of(error.args[0])) from error
    _show(latencies, output_format=options.output_format)


def _measured(producer: Any, consumer: Any, wanted: Load, *, quiet: bool) -> list[float]:
    """Measure the latency of each record, in ms."""
    random = Random(0)
    progress = Progress(wanted.num_records, on_terminal() and not quiet)
    latencies = []
    for number in range(wanted.num_records):
        latencies.append(round_trip(producer, consumer, wanted.topic, record_of(wanted, random)))
        if number % _REPORT_EVERY == 0 and not quiet:
            progress.clear()
            print(f"{number}\t{latencies[-1]}", flush=True)
        progress.update(time.perf_counter(), number + 1, f"{latencies[-1]:.1f} ms")
    progress.clear()
    return latencies


def _show(latencies: list[float], *, output_format: Format | None) -> None:
    ordered = sorted(int(one) for one in latencies)
    average = sum(latencies) / len(latencies)
    half, p99, p999 = (percentile(ordered, share) for share in (0.5, 0.99, 0.999))
    if output_format:
        print_data(
            {"avgMs": average, "p50Ms": half, "p99Ms": p99, "p999Ms": p999, "records": len(latencies)}, output_format
        )
        return
    print(f"Avg latency: {average:.4f} ms")
    print(f"Percentiles: 50th = {half}, 99th = {p99}, 99.9th = {p999}")
