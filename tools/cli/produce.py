"""``parley produce``: one record for each line of standard input, as kafka-console-producer sends them."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, BinaryIO

import typer

from tools.cli.app import App
from tools.cli.options import DEFAULT_BOOTSTRAP, BootstrapServer, client_properties
from tools.cli.running import CommandError, pairs

app = App(
    "Send each line of standard input to a topic as one record.\n\n"
    "With `--property parse.key=true` a line is key, tab, value; `--property key.separator=:` names another "
    "separator. Ends with exit code 1 if any record was not acknowledged.",
    examples=[
        ("echo hello | parley produce --topic greetings", "sends one record"),
        ("parley produce --topic users --property parse.key=true --property key.separator=:", "lines are key:value"),
        ("parley produce --topic lines --compression-codec zstd < big.txt", "sends a file, compressed"),
    ],
)


@dataclass(frozen=True, slots=True)
class LineFormat:
    """How a line becomes a record: the properties of Kafka's line reader, with its defaults."""

    parse_key: bool = False
    key_separator: bytes = b"\t"
    parse_headers: bool = False
    headers_delimiter: bytes = b"\t"
    headers_separator: bytes = b","
    headers_key_separator: bytes = b":"
    null_marker: bytes | None = None
    ignore_error: bool = False

    @classmethod
    def from_properties(cls, properties: dict[str, str]) -> LineFormat:
        """Read ``parse.key=true`` and the like; an unknown name is an error that lists the known ones."""
        values: dict[str, Any] = {}
        for name, text in properties.items():
            attribute = name.replace(".", "_")
            if attribute not in cls.__dataclass_fields__:
                known = ", ".join(f.replace("_", ".") for f in cls.__dataclass_fields__)
                raise CommandError(f"There is no reader property '{name}'. There are: {known}.")
            is_flag = attribute in ("parse_key", "parse_headers", "ignore_error")
            values[attribute] = text.lower() == "true" if is_flag else text.encode().decode("unicode_escape").encode()
        return cls(**values)


@dataclass(frozen=True, slots=True)
class InputRecord:
    """What is sent for one line."""

    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...]


def parse_line(line: bytes, form: LineFormat, number: int) -> InputRecord:
    """A line as a record. Raises :class:`CommandError` where a separator is missing."""
    headers: tuple[tuple[str, bytes | None], ...] = ()
    key: bytes | None = None
    rest = line
    if form.parse_headers:
        text, found, rest = _split(rest, form.headers_delimiter, form, number, "headers delimiter")
        if found and text != form.null_marker:
            headers = tuple(_header(part, form, number) for part in text.split(form.headers_separator))
    if form.parse_key:
        text, found, rest = _split(rest, form.key_separator, form, number, "key separator")
        key = (None if text == form.null_marker else text) if found else None
    return InputRecord(key, None if rest == form.null_marker else rest, headers)


def _split(line: bytes, separator: bytes, form: LineFormat, number: int, what: str) -> tuple[bytes, bool, bytes]:
    first, found, rest = line.partition(separator)
    if found:
        return first, True, rest
    if form.ignore_error:
        return b"", False, line
    raise CommandError(f"No {what} found on line number {number}: {line.decode(errors='replace')!r}")


def _header(text: bytes, form: LineFormat, number: int) -> tuple[str, bytes | None]:
    key, found, value = text.partition(form.headers_key_separator)
    if not found and not form.ignore_error:
        raise CommandError(f"No header key separator found in pair {text.decode(errors='replace')!r} on line {number}")
    return key.decode(errors="replace"), None if not found or value == form.null_marker else value


def lines_of(stream: BinaryIO) -> Iterator[bytes]:
    """The lines without their ends; a prompt is shown where a person types them."""
    prompt = stream.isatty()
    while True:
        if prompt:
            print(">", end="", file=sys.stderr, flush=True)
        line = stream.readline()
        if not line:
            return
        yield line.removesuffix(b"\n").removesuffix(b"\r")


class Sender:
    """A librdkafka producer that counts what became of its records."""

    def __init__(self, settings: dict[str, str]) -> None:
        from confluent_kafka import KafkaException, Producer

        try:
            self._producer = Producer(settings)
        except KafkaException as error:
            raise CommandError(f"The producer cannot be set up: {error.args[0].str()}.") from error
        self._refused = KafkaException
        self.acknowledged = 0
        self.failures: list[str] = []

    def send(self, topic: str, record: InputRecord, *, wait: bool) -> None:
        """Queue a record, waiting for room; with ``wait`` until it is acknowledged."""
        while True:
            try:
                self._producer.produce(
                    topic, record.value, record.key, headers=list(record.headers), on_delivery=self._delivered
                )
                break
            except BufferError:
                self._producer.poll(0.1)
            except self._refused as error:
                raise CommandError(
                    f"A record was refused by the client: {error.args[0].str()}. "
                    "For larger records set --producer-property message.max.bytes=..."
                ) from error
        if wait:
            self._producer.flush()
        else:
            self._producer.poll(0)

    def _delivered(self, error: Any, message: Any) -> None:
        if error is None:
            self.acknowledged += 1
        else:
            self.failures.append(error.str())

    def finish(self) -> None:
        """Wait until every record is acknowledged or given up."""
        self._producer.flush()


def send_lines(lines: Iterable[bytes], topic: str, form: LineFormat, sender: Sender, *, sync: bool) -> None:
    """Send every line; raises :class:`CommandError` at the end if any was not acknowledged."""
    try:
        for number, line in enumerate(lines, start=1):
            sender.send(topic, parse_line(line, form, number), wait=sync)
    finally:
        sender.finish()
    if sender.failures:
        count = len(sender.failures)
        raise CommandError(f"{count} record(s) were not acknowledged; the last one: {sender.failures[-1]}.")


@app.only_command()
def produce(
    topic: Annotated[str, typer.Option("--topic", help="Topic to send to.")],
    bootstrap_server: BootstrapServer = DEFAULT_BOOTSTRAP,
    producer_property: Annotated[
        list[str],
        typer.Option("--producer-property", "--command-property", help="Client setting key=value; repeatable."),
    ] = [],  # noqa: B006 - typer reads the default, nobody changes it
    producer_config: Annotated[
        Path | None, typer.Option("--producer.config", "--command-config", help="Properties file for the client.")
    ] = None,
    reader_property: Annotated[
        list[str],
        typer.Option(
            "--property",
            "--reader-property",
            help="How lines are read, key=value: parse.key, key.separator, parse.headers, headers.delimiter, "
            "headers.separator, headers.key.separator, null.marker, ignore.error; repeatable.",
        ),
    ] = [],  # noqa: B006
    compression: Annotated[
        str, typer.Option("--compression-codec", "--compression-type", help="none, gzip, snappy, lz4 or zstd.")
    ] = "none",
    acks: Annotated[
        str,
        typer.Option("--request-required-acks", help="0, 1 or all: who must have a record before it counts as sent."),
    ] = "all",
    request_timeout_ms: Annotated[
        int, typer.Option("--request-timeout-ms", help="How long a broker may take.")
    ] = 30_000,
    retries: Annotated[
        int | None, typer.Option("--message-send-max-retries", help="How often a failed send is repeated.")
    ] = None,
    retry_backoff_ms: Annotated[int, typer.Option("--retry-backoff-ms", help="Pause before a repetition.")] = 100,
    linger_ms: Annotated[int, typer.Option("--timeout", help="How long records are gathered into a batch, in ms.")] = 5,
    batch_size: Annotated[
        int, typer.Option("--batch-size", "--max-partition-memory-bytes", help="Bytes of a batch.")
    ] = 16_384,
    sync: Annotated[
        bool, typer.Option("--sync", help="Wait for each record's acknowledgement before the next.")
    ] = False,
) -> None:
    settings = {
        "bootstrap.servers": bootstrap_server,
        "client.id": "console-producer",
        "compression.type": compression,
        "acks": acks,
        "request.timeout.ms": str(request_timeout_ms),
        "retry.backoff.ms": str(retry_backoff_ms),
        "linger.ms": str(linger_ms),
        "batch.size": str(batch_size),
        **({} if retries is None else {"retries": str(retries)}),
        **client_properties(producer_config),
        **pairs(producer_property, "--producer-property"),
    }
    form = LineFormat.from_properties(pairs(reader_property, "--property"))
    send_lines(lines_of(sys.stdin.buffer), topic, form, Sender(settings), sync=sync)
