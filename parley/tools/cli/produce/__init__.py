"""``parley produce``: send each line of standard input as a record, as kafka-console-producer does."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

import typer

from parley.tools.cli.app import App
from parley.tools.cli.common_options import DEFAULT_BOOTSTRAP, BootstrapServer, Verbose, client_properties
from parley.tools.cli.invocation import CommandError, pairs
from parley.tools.cli.produce.line_reader import READERS, LineFormat, lines_of

app = App(
    "Send each line of standard input to a topic as one record.\n\n"
    "With `--property parse.key=true` a line is key, tab, value; `--property key.separator=:` sets another separator. "
    "The exit code is 1 if a record was not acknowledged.",
    examples=[
        ("echo hello | parley produce --topic greetings", "send one record"),
        ("parley produce --topic users --property parse.key=true --property key.separator=:", "lines are key:value"),
        ("parley produce --topic lines --compression-codec zstd < big.txt", "send the lines of a file, compressed"),
    ],
    optional_values={"--compression-codec": "gzip"},
)

_ACKS = ("all", "-1", "0", "1")


@dataclass(frozen=True, slots=True)
class Options:
    """The options of ``parley produce``, as given on the command line."""

    topic: Annotated[str, typer.Option("--topic", help="Topic to send to.")]
    bootstrap_server: BootstrapServer = DEFAULT_BOOTSTRAP
    producer_property: Annotated[
        list[str],
        typer.Option("--producer-property", "--command-property", help="Client setting key=value; repeatable."),
    ] = field(default_factory=list)
    producer_config: Annotated[
        Path | None, typer.Option("--producer.config", "--command-config", help="Properties file for the client.")
    ] = None
    line_reader: Annotated[str, typer.Option("--line-reader", help="Class that reads lines; only this one exists.")] = (
        "org.apache.kafka.tools.LineMessageReader"
    )
    reader_property: Annotated[
        list[str],
        typer.Option(
            "--property",
            "--reader-property",
            help="How to read lines, key=value: parse.key, key.separator, parse.headers, headers.delimiter, "
            "headers.separator, headers.key.separator, null.marker, ignore.error; repeatable.",
        ),
    ] = field(default_factory=list)
    reader_config: Annotated[
        Path | None, typer.Option("--reader-config", help="Properties file with the same settings as --property.")
    ] = None
    compression: Annotated[
        str,
        typer.Option(
            "--compression-codec", "--compression-type", help="none, gzip (without a value), snappy, lz4 or zstd."
        ),
    ] = "none"
    acks: Annotated[
        str,
        typer.Option(
            "--request-required-acks",
            help="0, 1 or all: the replicas that must have a record before it is acknowledged.",
        ),
    ] = "all"
    request_timeout_ms: Annotated[int, typer.Option("--request-timeout-ms", help="Timeout of a request, in ms.")] = (
        30_000
    )
    retries: Annotated[
        int | None, typer.Option("--message-send-max-retries", help="Maximum number of retries per record.")
    ] = None
    retry_backoff_ms: Annotated[int, typer.Option("--retry-backoff-ms", help="Pause before a retry, in ms.")] = 100
    linger_ms: Annotated[
        int, typer.Option("--timeout", help="How long to wait for more records of a batch, in ms.")
    ] = 5
    batch_size: Annotated[
        int, typer.Option("--batch-size", "--max-partition-memory-bytes", help="Maximum size of a batch in bytes.")
    ] = 16_384
    max_memory_bytes: Annotated[
        int, typer.Option("--max-memory-bytes", help="Maximum bytes of records that wait to be sent.")
    ] = 32 << 20
    max_block_ms: Annotated[
        int, typer.Option("--max-block-ms", help="Timeout of the first response from a broker, in ms.")
    ] = 5000
    metadata_expiry_ms: Annotated[
        int, typer.Option("--metadata-expiry-ms", help="Interval of metadata refreshes, in ms.")
    ] = 300_000
    socket_buffer_size: Annotated[
        int,
        typer.Option(
            "--socket-buffer-size", help="Size of the send buffer in bytes; 0 or -1 for the system's default."
        ),
    ] = 100 << 10
    sync: Annotated[bool, typer.Option("--sync", help="Wait for each record's acknowledgement before the next.")] = (
        False
    )
    verbose: Verbose = False


@app.only_command_with(Options)
def produce(options: Options) -> None:
    from confluent_kafka import Producer

    from parley.tools.cli import leaderless
    from parley.tools.cli.librdkafka import check_topic_name, connect, reach
    from parley.tools.cli.produce.sending import Sender, send_lines

    if options.line_reader not in READERS:
        raise CommandError(f"Unknown line reader '{options.line_reader}'. Use {READERS[0]}.")
    if options.acks not in _ACKS:
        raise CommandError(f"--request-required-acks takes all, -1, 0 or 1, not '{options.acks}'.")
    reading = {**client_properties(options.reader_config), **pairs(options.reader_property, "--reader-property")}
    form = LineFormat.from_properties(reading)
    check_topic_name(options.topic)
    own = settings(options)
    producer, connection = connect(Producer, own, verbose=options.verbose)
    topics = reach(producer, connection, timeout_s=max(1, options.max_block_ms) / 1000).topics
    leaderless_partitions = leaderless.ask(connection, topics[options.topic]) if options.topic in topics else ""
    leaderless.warn(leaderless_partitions)
    is_idempotent = str(own["enable.idempotence"]).lower() == "true"
    sender = Sender(producer, connection, options.topic, is_idempotent, warned=leaderless_partitions)
    send_lines(lines_of(sys.stdin.buffer), form, sender, sync=options.sync)


def settings(options: Options) -> dict[str, Any]:
    """Return the producer's settings. Options override the properties file, which overrides the defaults. Raises
    ``CommandError`` if a setting or the properties file cannot be parsed."""
    from parley.tools.cli.librdkafka import settings_of

    own = {
        "client.id": "console-producer",
        "compression.type": options.compression,
        "acks": options.acks,
        "request.timeout.ms": options.request_timeout_ms,
        "retry.backoff.ms": options.retry_backoff_ms,
        "retry.backoff.max.ms": max(1000, options.retry_backoff_ms),
        "linger.ms": options.linger_ms,
        "batch.size": options.batch_size,
        "queue.buffering.max.kbytes": max(1, options.max_memory_bytes // 1024),
        "metadata.max.age.ms": 3 * options.metadata_expiry_ms,
        "topic.metadata.refresh.interval.ms": options.metadata_expiry_ms,
        "socket.send.buffer.bytes": max(0, options.socket_buffer_size),
        **({} if options.retries is None else {"retries": options.retries}),
    }
    given = settings_of(own, options.producer_config, options.producer_property, "--producer-property")
    return {"enable.idempotence": _may_be_idempotent(given), **given, "bootstrap.servers": options.bootstrap_server}


def _may_be_idempotent(given: Mapping[str, Any]) -> bool:
    """Return True if no setting rules out idempotence, which is then enabled, as in Kafka's producer since 3.0
    (KIP-679)."""

    def setting(*names: str, default: str) -> str:
        return next((str(given[name]) for name in names if name in given), default)

    return (
        setting("acks", "request.required.acks", default="all") in ("all", "-1")
        and setting("retries", "message.send.max.retries", default="1") != "0"
        and setting("max.in.flight.requests.per.connection", "max.in.flight", default="5") in tuple("12345")
    )


__all__ = ["app", "lines_of", "produce", "settings"]
