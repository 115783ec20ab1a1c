"""The options of ``parley consume``."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated

import typer

from parley.tools.cli.common_options import DEFAULT_BOOTSTRAP, AsJson, BootstrapServer, Verbose


@dataclass(frozen=True, slots=True)
class Options:
    """The options of ``parley consume``, with the names of Kafka's console consumers."""

    topic: Annotated[str, typer.Option("--topic", help="Topic to read.")] = ""
    include: Annotated[str, typer.Option("--include", "--whitelist", help="Regular expression of topics to read.")] = ""
    bootstrap_server: BootstrapServer = DEFAULT_BOOTSTRAP
    from_beginning: Annotated[
        bool, typer.Option("--from-beginning", help="Start with the oldest record if the group has no offset yet.")
    ] = False
    max_messages: Annotated[int | None, typer.Option("--max-messages", help="Stop after this number of records.")] = (
        None
    )
    timeout_ms: Annotated[int | None, typer.Option("--timeout-ms", help="Stop if no record arrives for this long.")] = (
        None
    )
    partition: Annotated[int | None, typer.Option("--partition", help="Read this partition only.")] = None
    offset: Annotated[
        str | None,
        typer.Option(
            "--offset", help="With --partition: earliest, latest (default), an offset, or -n for n before the end."
        ),
    ] = None
    group: Annotated[
        str,
        typer.Option(
            "--group",
            help="Consumer group; its offsets are committed. With --share, the share group (console-share-consumer).",
        ),
    ] = ""
    share: Annotated[bool, typer.Option("--share", help="Consume as a member of a share group.")] = False
    reject: Annotated[
        bool, typer.Option("--reject", help="With --share: reject each record, so that it is not delivered again.")
    ] = False
    release: Annotated[
        bool, typer.Option("--release", help="With --share: release each record, so that it is delivered again.")
    ] = False
    reject_message_on_error: Annotated[
        bool,
        typer.Option(
            "--reject-message-on-error", help="With --share: reject a record that cannot be read, with a warning."
        ),
    ] = False
    isolation_level: Annotated[
        str | None,
        typer.Option(
            "--isolation-level", help="read_uncommitted (default), or read_committed to skip aborted records."
        ),
    ] = None
    consumer_property: Annotated[
        list[str],
        typer.Option("--consumer-property", "--command-property", help="Consumer setting key=value; repeatable."),
    ] = field(default_factory=list)
    consumer_config: Annotated[
        Path | None,
        typer.Option(
            "--consumer.config", "--consumer-config", "--command-config", help="Properties file for the client."
        ),
    ] = None
    formatter: Annotated[
        str,
        typer.Option(
            "--formatter",
            help="Class that formats records: DefaultMessageFormatter, LoggingMessageFormatter, "
            "NoOpMessageFormatter, OffsetsMessageFormatter, GroupMetadataMessageFormatter, "
            "TransactionLogMessageFormatter.",
        ),
    ] = "DefaultMessageFormatter"
    formatter_property: Annotated[
        list[str],
        typer.Option(
            "--property",
            "--formatter-property",
            help="What to print, key=value: print.timestamp, print.key, print.offset, print.delivery, print.epoch, "
            "print.partition, print.headers, print.value, key.separator, line.separator, headers.separator, "
            "null.literal, key.deserializer, value.deserializer, headers.deserializer; repeatable.",
        ),
    ] = field(default_factory=list)
    formatter_config: Annotated[
        Path | None, typer.Option("--formatter-config", help="Properties file with the same settings as --property.")
    ] = None
    key_deserializer: Annotated[
        str, typer.Option("--key-deserializer", help="Class that reads keys, such as LongDeserializer.")
    ] = ""
    value_deserializer: Annotated[
        str, typer.Option("--value-deserializer", help="Class that reads values, such as StringDeserializer.")
    ] = ""
    skip_message_on_error: Annotated[
        bool, typer.Option("--skip-message-on-error", help="Skip a record that cannot be read, with a warning.")
    ] = False
    enable_systest_events: Annotated[
        bool,
        typer.Option("--enable-systest-events", help="Print shutdown_complete at the end, for Kafka's system tests."),
    ] = False
    verbose: Verbose = False
    json_output: AsJson = False
