"""``parley load``: topics to files and tables, and back."""

from __future__ import annotations

import sys
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from parley.tools.cli.app import App
from parley.tools.cli.byte_sizes import bytes_text
from parley.tools.cli.common_options import DEFAULT_BOOTSTRAP, BootstrapServer
from parley.tools.cli.invocation import CommandError
from parley.tools.cli.spark import said_if_missing, start_spark

if TYPE_CHECKING:
    from parley.pipeline.load.columns import Layout
    from parley.pipeline.load.job import Loaded

FORMATS = ("parquet", "delta", "csv", "json")

app = App(
    "Load topics into folders of Parquet, CSV or JSON files or into Delta tables, in parallel, on Spark.\n\n"
    "Only what is not there yet is loaded, up to where the topic ends when the command is started: run it again for "
    "what came since. A load that was killed leaves nothing double and nothing out: the next one goes on from its last "
    "commit. With --to-topic files become records of a topic again, each once.",
    examples=[
        ("parley load --topic orders --output /data/orders", "everything that is new, as Parquet"),
        (
            "parley load --topic orders --output /data/orders --format delta --value-format json "
            "--schema 'id bigint, at timestamp' --flat --partition-by day --event-time at",
            "a Delta table of the values' fields, divided by the day in one of them",
        ),
        ("parley load --to-topic orders-again --input /data/orders", "and back"),
    ],
)


@dataclass(frozen=True, slots=True)
class Options:
    """What the command takes."""

    bootstrap_server: BootstrapServer = DEFAULT_BOOTSTRAP
    topic: Annotated[
        list[str], typer.Option("--topic", help="What to load; repeatable: each to its own folder then.")
    ] = field(default_factory=list)
    output: Annotated[str, typer.Option("--output", help="The folder, or an address as s3://bucket/folder.")] = ""
    to_topic: Annotated[str, typer.Option("--to-topic", help="The other way: the topic to send rows to.")] = ""
    input: Annotated[str, typer.Option("--input", help="With --to-topic: the folder with the files.")] = ""
    format: Annotated[str, typer.Option("--format", help=f"One of {', '.join(FORMATS)}.")] = "parquet"
    key_format: Annotated[str, typer.Option("--key-format", help="binary, string or base64.")] = ""
    value_format: Annotated[
        str, typer.Option("--value-format", help="binary, string, base64, json, avro or avro-confluent.")
    ] = ""
    schema: Annotated[
        str, typer.Option("--schema", help="Of the values: an Avro or JSON Schema (a file or text), or DDL.")
    ] = ""
    flat: Annotated[bool, typer.Option("--flat", help="The fields of the value become columns.")] = False
    bad_records: Annotated[
        str, typer.Option("--bad-records", help="Values that do not fit the schema: fail, drop or keep.")
    ] = "fail"
    partition_by: Annotated[
        str | None, typer.Option("--partition-by", help="Divide files by event time: year, month, day or hour.")
    ] = None
    event_time: Annotated[
        str | None, typer.Option("--event-time", help="The field with it; the record's timestamp unless given.")
    ] = None
    isolation_level: Annotated[str, typer.Option("--isolation-level", help="read_committed or read_uncommitted.")] = (
        "read_committed"
    )
    max_records_per_file: Annotated[
        int, typer.Option("--max-records-per-file", min=1, help="A file has this many offsets at most.")
    ] = 1_000_000
    accept_data_loss: Annotated[
        bool, typer.Option("--accept-data-loss", help="Go on where records were deleted before they were loaded.")
    ] = False
    master: Annotated[str | None, typer.Option("--master", help="The Spark to run on; this machine unless given.")] = (
        None
    )
    conf: Annotated[list[str], typer.Option("--conf", help="A setting of Spark, key=value; repeatable.")] = field(
        default_factory=list
    )


@app.only_command_with(Options)
def load(options: Options) -> None:
    _check(options)
    with said_if_missing("parley load", "'parley-broker[spark]'"):
        from parley.pipeline.java import JavaMissing
        from parley.pipeline.load.columns import BadLayout
        from parley.pipeline.load.manifest import LoadConflict
        from parley.pipeline.load.ranges import RecordsGone, TopicMadeAnew
        from parley.pipeline.load.spark import TaskFailed
        from parley.pipeline.session import SparkFailed, SparkMissing, check_spark, stopped_at_the_end
    from parley.protocol.errors import KafkaError

    try:
        check_spark()
        _check_topics(options)
        with stopped_at_the_end(start_spark("parley load", options.master, options.conf)) as session:
            if options.to_topic:
                _back(session, options)
            else:
                _forth(session, options)
    except KeyboardInterrupt:
        print("Interrupted: what was committed stays; run it again for the rest.", file=sys.stderr)
        raise
    except (SparkMissing, SparkFailed, JavaMissing) as error:
        raise CommandError(str(error)) from error
    except RecordsGone as error:
        raise CommandError(f"{error}; --accept-data-loss goes on without them.") from error
    except (BadLayout, LoadConflict, TopicMadeAnew, TaskFailed, ValueError) as error:
        raise CommandError(f"{error}.") from error
    except KafkaError as error:
        raise CommandError(f"{error.code.name}: {error.message}") from error
    except OSError as error:
        raise CommandError(f"The files cannot be read or written: {error}") from error


def _check(options: Options) -> None:
    forth, back = bool(options.topic and options.output), bool(options.to_topic and options.input)
    if forth == back or (options.topic and options.to_topic):
        raise CommandError("Say what to load, --topic and --output, or the other way, --to-topic and --input.")
    if options.format not in FORMATS:
        raise CommandError(f"--format is one of {', '.join(FORMATS)}, not {options.format}.")
    if options.format in ("csv", "json") and "binary" in (options.key_format, options.value_format):
        raise CommandError(f"Files of {options.format} hold text: read bytes as base64.")
    if options.isolation_level not in ("read_committed", "read_uncommitted"):
        raise CommandError("--isolation-level is read_committed or read_uncommitted.")
    if options.bad_records not in ("fail", "drop", "keep"):
        raise CommandError("--bad-records is fail, drop or keep.")


def _check_topics(options: Options) -> None:
    """Raises CommandError for a topic that is not there, and KafkaError where no broker answers."""
    from parley.pipeline.cluster import Cluster, Connection
    from parley.protocol.errors import ErrorCode, KafkaError

    with Cluster(Connection(bootstrap=options.bootstrap_server, client_id="parley-load")) as cluster:
        cluster.contact()
        for topic in options.topic or [options.to_topic]:
            try:
                cluster.partitions([topic])
            except KafkaError as error:
                if error.code is not ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
                    raise
                raise CommandError(
                    f"Topic '{topic}' does not exist. `parley topics --list` shows those that do."
                ) from None


def _layout(options: Options) -> Layout:
    from parley.pipeline.load.columns import STRUCTURED, Layout
    from parley.pipeline.load.schemas import read_schema

    text = options.schema
    if text and not text.lstrip().startswith(("{", "[", '"')) and Path(text).is_file():
        text = Path(text).read_text()
    plain = "string" if options.format in ("csv", "json") else "binary"
    value_format = options.value_format or plain
    return Layout(
        key_format=options.key_format or plain,
        value_format=value_format,
        schema=read_schema(text) if text else None,
        flat=options.flat or (options.format == "csv" and value_format in STRUCTURED),
        bad_records=options.bad_records,
        partition_by=options.partition_by,
        event_time=options.event_time,
        text=options.format == "csv",
    )


def _forth(session: Any, options: Options) -> None:
    from parley.pipeline.cluster import Connection, Isolation
    from parley.pipeline.load.job import LoadSettings, load, on_spark

    layout = _layout(options)
    for topic in options.topic:
        settings = LoadSettings(
            Connection(bootstrap=options.bootstrap_server, client_id="parley-load"),
            topic,
            options.output if len(options.topic) == 1 else _below(options.output, topic),
            options.format,
            layout,
            Isolation[options.isolation_level.upper()],
            options.max_records_per_file,
            options.accept_data_loss,
        )
        with ExitStack() as stack:
            bar = _Bar(topic, stack)
            at_once = max(2, session.sparkContext.defaultParallelism)
            done = load(settings, on_spark(session), at_once=at_once, tell=bar.show)
        print(
            f"{topic}: {done.records:,} records in {done.files:,} files ({bytes_text(done.size_bytes)}) "
            f"are new in {settings.uri}."
        )


def _below(output: str, topic: str) -> str:
    """The topic's folder; an address may have settings behind a question mark."""
    place, mark, query = output.partition("?") if "://" in output else (output, "", "")
    return f"{place.rstrip('/')}/{topic}{mark}{query}"


def _back(session: Any, options: Options) -> None:
    from parley.pipeline.cluster import Connection
    from parley.pipeline.load.back import BackSettings, on_spark, send_back

    connection = Connection(bootstrap=options.bootstrap_server, client_id="parley-load")
    as_base64 = "base64" in (options.key_format, options.value_format)
    settings = BackSettings(connection, options.to_topic, options.input, options.format, as_base64)
    print(f"{send_back(settings, on_spark(session)):,} records were sent to {options.to_topic}.")


class _Bar:
    """A progress bar of a topic's offsets, on standard error."""

    def __init__(self, topic: str, stack: ExitStack) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

        columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
        self._progress = stack.enter_context(Progress(*columns, console=Console(file=sys.stderr)))
        self._task = self._progress.add_task(topic, total=None)

    def show(self, done: Loaded) -> None:
        self._progress.update(self._task, total=done.wanted, completed=done.offsets)
