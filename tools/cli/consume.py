"""``parley consume``: print the records of a topic, as kafka-console-consumer does."""

from __future__ import annotations

import json
import signal
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, BinaryIO
from uuid import uuid4

import typer

from tools.cli.app import App
from tools.cli.options import DEFAULT_BOOTSTRAP, AsJson, BootstrapServer, client_properties
from tools.cli.running import CommandError, pairs

app = App(
    "Print records as they arrive: the value of each on a line of its own.\n\n"
    "Starts with what comes next; `--from-beginning` starts with the oldest record. Runs until it is interrupted, "
    "unless `--max-messages` or `--timeout-ms` ends it.",
    examples=[
        ("parley consume --topic greetings --from-beginning --max-messages 10", "prints the ten oldest records"),
        ("parley consume --topic greetings --group readers", "goes on where the group stopped the last time"),
        ("parley consume --topic greetings --partition 0 --offset -5", "the last five records of a partition, and on"),
        ("parley consume --topic greetings --from-beginning --json | jq .value", "records for another program"),
    ],
)


@dataclass(frozen=True, slots=True)
class RecordFormat:
    """How a record becomes a line: the properties of Kafka's default formatter, with its defaults."""

    print_timestamp: bool = False
    print_key: bool = False
    print_offset: bool = False
    print_epoch: bool = False
    print_partition: bool = False
    print_headers: bool = False
    print_value: bool = True
    key_separator: bytes = b"\t"
    line_separator: bytes = b"\n"
    headers_separator: bytes = b","
    null_literal: bytes = b"null"

    @classmethod
    def from_properties(cls, properties: dict[str, str]) -> RecordFormat:
        """Read ``print.key=true`` and the like; an unknown name is an error that lists the known ones."""
        values: dict[str, Any] = {}
        for name, text in properties.items():
            attribute = name.replace(".", "_")
            if attribute not in cls.__dataclass_fields__:
                known = ", ".join(f.replace("_", ".") for f in cls.__dataclass_fields__)
                raise CommandError(f"There is no formatter property '{name}'. There are: {known}.")
            is_flag = attribute.startswith("print_")
            values[attribute] = text.lower() == "true" if is_flag else text.encode().decode("unicode_escape").encode()
        return cls(**values)

    def line(self, message: Any) -> bytes:
        """The text of one record, its line end included."""
        parts: list[bytes] = []
        if self.print_timestamp:
            kind, timestamp = message.timestamp()
            name = {1: b"CreateTime:", 2: b"LogAppendTime:"}.get(kind)
            parts.append(b"NO_TIMESTAMP" if name is None else name + str(timestamp).encode())
        if self.print_partition:
            parts.append(b"Partition:%d" % message.partition())
        if self.print_offset:
            parts.append(b"Offset:%d" % message.offset())
        if self.print_epoch:
            parts.append(b"Epoch:%d" % (message.leader_epoch() if message.leader_epoch() is not None else -1))
        if self.print_headers:
            headers = message.headers() or []
            texts = [name.encode() + b":" + (self.null_literal if value is None else value) for name, value in headers]
            parts.append(self.headers_separator.join(texts) or b"NO_HEADERS")
        if self.print_key:
            parts.append(self.null_literal if message.key() is None else message.key())
        if self.print_value:
            parts.append(self.null_literal if message.value() is None else message.value())
        return self.key_separator.join(parts) + self.line_separator


def as_json(message: Any) -> bytes:
    """A record as one line of JSON; bytes that are no UTF-8 are shown with replacement characters."""
    _, timestamp = message.timestamp()
    record = {
        "topic": message.topic(),
        "partition": message.partition(),
        "offset": message.offset(),
        "timestamp": timestamp,
        "key": _text(message.key()),
        "value": _text(message.value()),
        "headers": {name: _text(value) for name, value in message.headers() or []},
    }
    return json.dumps(record, ensure_ascii=False).encode() + b"\n"


def _text(data: bytes | None) -> str | None:
    return None if data is None else data.decode(errors="replace")


@dataclass(frozen=True, slots=True)
class Limits:
    """When to stop; None for not on this account."""

    messages: int | None
    silence_ms: int | None


@dataclass(slots=True)
class Printed:
    """How many records were printed so far, whatever ends the printing."""

    count: int = 0


def print_records(
    consumer: Any, write: BinaryIO, line: Any, limits: Limits, printed: Printed, *, skip_errors: bool
) -> None:
    """Print until a limit is reached. Raises :class:`CommandError`."""
    quiet_since = time.monotonic()
    while limits.messages is None or printed.count < limits.messages:
        wait = (
            1.0 if limits.silence_ms is None else max(0.0, limits.silence_ms / 1000 - (time.monotonic() - quiet_since))
        )
        message = consumer.poll(min(wait, 1.0))
        if message is None:
            if limits.silence_ms is not None and (time.monotonic() - quiet_since) * 1000 >= limits.silence_ms:
                break
            write.flush()
            continue
        if message.error() is not None:
            if message.error().retriable() or skip_errors:
                print(f"Warning: {message.error().str()}", file=sys.stderr)
                continue
            raise CommandError(f"{message.error().str()}.")
        write.write(line(message))
        printed.count += 1
        quiet_since = time.monotonic()
    write.flush()


def _start(consumer: Any, topic: str, partition: int | None, offset: str, timeout: float) -> None:
    """Begin to read: the group's partitions, or one partition from a given offset."""
    from confluent_kafka import OFFSET_BEGINNING, OFFSET_END, TopicPartition

    if partition is None:
        consumer.subscribe([topic])
        return
    named = {"earliest": OFFSET_BEGINNING, "latest": OFFSET_END}
    if offset not in named and not offset.lstrip("-").isdigit():
        raise CommandError(f"--offset takes earliest, latest or a number, not '{offset}'.")
    at = named.get(offset)
    if at is None:
        at = int(offset)
        if at < 0:
            _, end = consumer.get_watermark_offsets(TopicPartition(topic, partition), timeout=timeout)
            at = max(0, end + at)
    consumer.assign([TopicPartition(topic, partition, at)])


@app.only_command()
def consume(
    topic: Annotated[str, typer.Option("--topic", help="Topic to read.")] = "",
    include: Annotated[
        str, typer.Option("--include", "--whitelist", help="Regular expression of topics to read.")
    ] = "",
    bootstrap_server: BootstrapServer = DEFAULT_BOOTSTRAP,
    from_beginning: Annotated[
        bool, typer.Option("--from-beginning", help="Start with the oldest record if the group has no offset yet.")
    ] = False,
    max_messages: Annotated[int | None, typer.Option("--max-messages", help="Stop after so many records.")] = None,
    timeout_ms: Annotated[int | None, typer.Option("--timeout-ms", help="Stop when nothing came for so long.")] = None,
    partition: Annotated[int | None, typer.Option("--partition", help="Read this partition only.")] = None,
    offset: Annotated[
        str, typer.Option("--offset", help="With --partition: earliest, latest, or an offset; -n is n from the end.")
    ] = "latest",
    group: Annotated[str, typer.Option("--group", help="Consumer group; its offsets are committed.")] = "",
    isolation_level: Annotated[
        str, typer.Option("--isolation-level", help="read_uncommitted, or read_committed to leave out aborted records.")
    ] = "read_uncommitted",
    consumer_property: Annotated[
        list[str],
        typer.Option("--consumer-property", "--command-property", help="Client setting key=value; repeatable."),
    ] = [],  # noqa: B006 - typer reads the default, nobody changes it
    consumer_config: Annotated[
        Path | None, typer.Option("--consumer.config", "--command-config", help="Properties file for the client.")
    ] = None,
    formatter_property: Annotated[
        list[str],
        typer.Option(
            "--property",
            "--formatter-property",
            help="What is printed, key=value: print.timestamp, print.key, print.offset, print.epoch, print.partition, "
            "print.headers, print.value, key.separator, line.separator, headers.separator, null.literal; repeatable.",
        ),
    ] = [],  # noqa: B006
    skip_message_on_error: Annotated[
        bool, typer.Option("--skip-message-on-error", help="Warn and go on where a record cannot be read.")
    ] = False,
    json_output: AsJson = False,
) -> None:
    from confluent_kafka import Consumer, KafkaException

    if bool(topic) == bool(include):
        raise CommandError("Name either --topic or --include.")
    if partition is not None and from_beginning:
        offset = "earliest"
    settings: dict[str, Any] = {
        "bootstrap.servers": bootstrap_server,
        "client.id": "console-consumer",
        "group.id": group or f"console-consumer-{uuid4().int % 100_000}",
        "auto.offset.reset": "earliest" if from_beginning else "latest",
        "enable.auto.commit": bool(group),
        "isolation.level": isolation_level,
        "enable.partition.eof": False,
        **client_properties(consumer_config),
        **pairs(consumer_property, "--consumer-property"),
    }
    line = as_json if json_output else RecordFormat.from_properties(pairs(formatter_property, "--property")).line
    try:
        consumer = Consumer(settings)
    except KafkaException as error:
        raise CommandError(f"The consumer cannot be set up: {error.args[0].str()}.") from error
    limits = Limits(max_messages, timeout_ms)
    printed = Printed()
    # A polite end counts what was printed and leaves the group, so that its other members need not wait for us.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        _start(consumer, topic or f"^({include})$", partition, offset, timeout=10)
        print_records(consumer, sys.stdout.buffer, line, limits, printed, skip_errors=skip_message_on_error)
    except KafkaException as error:
        raise CommandError(f"{error.args[0].str()}.") from error
    finally:
        consumer.close()
        print(f"Processed a total of {printed.count} messages", file=sys.stderr)
