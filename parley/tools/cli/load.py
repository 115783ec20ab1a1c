"""``parley load``: export topics to files and tables, and import them again."""

from __future__ import annotations

import sys
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from parley.configuration.extras import how_to_install
from parley.tools.cli.app import App
from parley.tools.cli.byte_sizes import bytes_text
from parley.tools.cli.common_options import (
    DEFAULT_BOOTSTRAP,
    BootstrapServer,
    CommandConfig,
    client_properties,
    warn_ignored,
)
from parley.tools.cli.invocation import CommandError
from parley.tools.cli.spark import requires_library, start_spark

if TYPE_CHECKING:
    from parley.pipeline.client.cluster import Connection
    from parley.pipeline.load.columns import Layout
    from parley.pipeline.load.job import Loaded
    from parley.pipeline.tables.iceberg import IcebergPlace

FORMATS = ("parquet", "delta", "iceberg", "csv", "json")

app = App(
    "Export topics to folders of Parquet, CSV or JSON files or to Delta or Iceberg tables, in parallel on Spark.\n\n"
    "A run exports the records that are not in the folder yet, up to the end of the topic when it starts; run the "
    "command again for newer records. A killed run loses and duplicates nothing: the next run continues from its last "
    "commit. With --to-topic each row of the files becomes one record of a topic again.",
    examples=[
        ("parley load --topic orders --output /data/orders", "all new records, as Parquet"),
        (
            "parley load --topic orders --output /data/orders --format delta --value-format json "
            "--schema 'id bigint, at timestamp' --flat --partition-by day --event-time at",
            "a Delta table with the values' fields as columns, partitioned by the day of one field",
        ),
        (
            "parley load --topic orders --output shop.orders --format iceberg --catalog prod "
            "--catalog-property uri=http://catalog:8181",
            "an Iceberg table of a REST catalog",
        ),
        ("parley load --to-topic orders-again --input /data/orders", "import the files into a topic"),
    ],
)


@dataclass(frozen=True, slots=True)
class Options:
    """The options of ``parley load``, as given on the command line."""

    bootstrap_server: BootstrapServer = DEFAULT_BOOTSTRAP
    command_config: CommandConfig = None
    topic: Annotated[
        list[str], typer.Option("--topic", help="The topic to export; repeatable, then each topic gets its own folder.")
    ] = field(default_factory=list)
    output: Annotated[
        str,
        typer.Option("--output", help="The folder, or a URL such as s3://bucket/folder; for iceberg namespace.table."),
    ] = ""
    to_topic: Annotated[str, typer.Option("--to-topic", help="Import instead: the topic to send rows to.")] = ""
    input: Annotated[str, typer.Option("--input", help="With --to-topic: the folder with the files.")] = ""
    format: Annotated[str, typer.Option("--format", help=f"One of {', '.join(FORMATS)}.")] = "parquet"
    catalog: Annotated[
        str, typer.Option("--catalog", help="For iceberg: the catalog, by its name in PyIceberg's configuration.")
    ] = "default"
    catalog_property: Annotated[
        list[str],
        typer.Option("--catalog-property", help="For iceberg: a property of the catalog, key=value; repeatable."),
    ] = field(default_factory=list)
    key_format: Annotated[str, typer.Option("--key-format", help="binary, string or base64.")] = ""
    value_format: Annotated[
        str, typer.Option("--value-format", help="binary, string, base64, json, avro or avro-confluent.")
    ] = ""
    schema: Annotated[
        str, typer.Option("--schema", help="Schema of the values: Avro or JSON Schema (a file or text), or DDL.")
    ] = ""
    flat: Annotated[bool, typer.Option("--flat", help="Make each field of the value a column.")] = False
    bad_records: Annotated[
        str,
        typer.Option("--bad-records", help="What to do with values that do not fit the schema: fail, drop or keep."),
    ] = "fail"
    partition_by: Annotated[
        str | None, typer.Option("--partition-by", help="Partition the files by event time: year, month, day or hour.")
    ] = None
    event_time: Annotated[
        str | None,
        typer.Option("--event-time", help="The field with the event time; the record's timestamp unless given."),
    ] = None
    isolation_level: Annotated[str, typer.Option("--isolation-level", help="read_committed or read_uncommitted.")] = (
        "read_committed"
    )
    max_records_per_file: Annotated[
        int, typer.Option("--max-records-per-file", min=1, help="The maximum number of offsets per file.")
    ] = 1_000_000
    accept_data_loss: Annotated[
        bool,
        typer.Option("--accept-data-loss", help="Continue even if records were deleted before they were exported."),
    ] = False
    master: Annotated[str | None, typer.Option("--master", help="The Spark master; this machine unless given.")] = None
    conf: Annotated[list[str], typer.Option("--conf", help="A Spark setting key=value; repeatable.")] = field(
        default_factory=list
    )


@app.only_command_with(Options)
def load(options: Options) -> None:
    _check(options)
    with requires_library("parley load", how_to_install("spark")):
        from parley.pipeline.load.columns import BadLayout
        from parley.pipeline.load.manifest import LoadConflict
        from parley.pipeline.load.ranges import RecordsGone, TopicRecreated
        from parley.pipeline.load.spark_tasks import TaskFailed
        from parley.pipeline.spark.java import JavaMissing
        from parley.pipeline.spark.session import SparkFailed, SparkMissing, check_spark, stopped_at_the_end
    from parley.protocol.errors import KafkaError

    try:
        check_spark()
        _check_topics(options)
        with stopped_at_the_end(start_spark("parley load", options.master, options.conf)) as session:
            if options.to_topic:
                _import(session, options)
            else:
                _export(session, options)
    except KeyboardInterrupt:
        print("Interrupted: committed files stay. Run the command again for the rest.", file=sys.stderr)
        raise
    except (SparkMissing, SparkFailed, JavaMissing) as error:
        raise CommandError(str(error)) from error
    except RecordsGone as error:
        raise CommandError(f"{error}; --accept-data-loss continues without them.") from error
    except (BadLayout, LoadConflict, TopicRecreated, TaskFailed, ValueError) as error:
        raise CommandError(f"{error}.") from error
    except KafkaError as error:
        raise CommandError(f"{error.code.name}: {error.message}") from error
    except OSError as error:
        raise CommandError(f"The files cannot be read or written: {error}") from error


def _check(options: Options) -> None:
    exports, imports = bool(options.topic and options.output), bool(options.to_topic and options.input)
    if exports == imports or (options.topic and options.to_topic):
        raise CommandError("Name --topic and --output to export, or --to-topic and --input to import.")
    if options.format not in FORMATS:
        raise CommandError(f"--format must be one of {', '.join(FORMATS)}, not {options.format}.")
    if options.format == "iceberg" and (imports or len(options.topic) > 1):
        raise CommandError(
            "--format iceberg exports one topic into one table. To import rows of a table, read it with PyIceberg or "
            'Spark and write with format("parley").'
        )
    if any("=" not in one for one in options.catalog_property):
        raise CommandError("--catalog-property takes key=value, such as uri=http://catalog:8181.")
    if options.format in ("csv", "json") and "binary" in (options.key_format, options.value_format):
        raise CommandError(f"{options.format} files hold text only: use base64 for bytes.")
    if options.isolation_level not in ("read_committed", "read_uncommitted"):
        raise CommandError("--isolation-level must be read_committed or read_uncommitted.")
    if options.bad_records not in ("fail", "drop", "keep"):
        raise CommandError("--bad-records must be fail, drop or keep.")


def _connection(options: Options) -> Connection:
    from parley.pipeline.client.cluster import Connection
    from parley.protocol.security.client_security import SecurityProperties, is_security_key

    properties = client_properties(options.command_config)
    warn_ignored(name for name in properties if not is_security_key(name))
    security = SecurityProperties.of(properties)
    try:
        security.read()
    except ValueError as error:
        raise CommandError(f"--command-config: {error}.") from error
    return Connection(bootstrap=options.bootstrap_server, client_id="parley-load", security=security)


def _check_topics(options: Options) -> None:
    """Raise ``CommandError`` if a topic does not exist. Raises ``KafkaError`` if no broker responds."""
    from parley.pipeline.client.cluster import Cluster
    from parley.protocol.errors import ErrorCode, KafkaError

    with Cluster(_connection(options)) as cluster:
        cluster.contact()
        for topic in options.topic or [options.to_topic]:
            try:
                cluster.partitions([topic])
            except KafkaError as error:
                if error.code is not ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
                    raise
                raise CommandError(
                    f"Topic '{topic}' does not exist. `parley topics --list` shows the existing topics."
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


def _export(session: Any, options: Options) -> None:
    from parley.pipeline.client.cluster import Isolation
    from parley.pipeline.load.job import LoadSettings, load, on_spark
    from parley.pipeline.load.progress_topic import EXPORT
    from parley.pipeline.load.reporting import LoadReport
    from parley.pipeline.spark.session import parallelism

    layout = _layout(options)
    for topic in options.topic:
        settings = LoadSettings(
            _connection(options),
            topic,
            options.output if len(options.topic) == 1 else _below(options.output, topic),
            options.format,
            layout,
            Isolation[options.isolation_level.upper()],
            options.max_records_per_file,
            options.accept_data_loss,
            _iceberg(options),
        )
        with ExitStack() as stack:
            bar = _Bar(topic, stack)
            report = stack.enter_context(LoadReport(settings.connection, topic, settings.uri, EXPORT))
            at_once = max(2, parallelism(session))

            def on_progress(done: Loaded, bar: _Bar = bar, report: LoadReport = report) -> None:
                bar.show(done)
                report.show(done.offsets, done.wanted)

            done = load(settings, on_spark(session), at_once=at_once, on_progress=on_progress)
        print(
            f"{topic}: {done.records:,} records in {done.files:,} files ({bytes_text(done.size_bytes)}) "
            f"added to {settings.uri}."
        )


def _iceberg(options: Options) -> IcebergPlace | None:
    from parley.pipeline.tables.iceberg import IcebergPlace

    if options.format != "iceberg":
        return None
    pairs = (one.partition("=") for one in options.catalog_property)
    return IcebergPlace(options.catalog, tuple((key, value) for key, _, value in pairs), options.output)


def _below(output: str, topic: str) -> str:
    """Return the path of the topic's folder in the output. If the output is a URL, the settings after its question mark
    are kept."""
    place, mark, query = output.partition("?") if "://" in output else (output, "", "")
    return f"{place.rstrip('/')}/{topic}{mark}{query}"


def _import(session: Any, options: Options) -> None:
    from parley.pipeline.client.cluster import LATEST, Cluster, TopicPartition
    from parley.pipeline.load.files_to_topic import SendSettings, on_spark, send_files
    from parley.pipeline.load.progress_topic import IMPORT
    from parley.pipeline.load.reporting import LoadReport
    from parley.pipeline.load.row_count import RowCount

    connection = _connection(options)
    as_base64 = "base64" in (options.key_format, options.value_format)
    settings = SendSettings(connection, options.to_topic, options.input, options.format, as_base64)
    with LoadReport(connection, options.to_topic, options.input, IMPORT) as report:

        def begin(starts: dict[TopicPartition, int], files: list[str]) -> None:
            rows = RowCount(options.input, options.format, files)

            def sent(cluster: Cluster) -> tuple[int, int | None]:
                ends = cluster.offsets(dict.fromkeys(starts, LATEST))
                return sum(max(0, ends[place] - start) for place, start in starts.items()), rows.known

            report.measure = sent

        records = send_files(settings, on_spark(session), on_begin=begin)
    print(f"{records:,} records were sent to {options.to_topic}.")


class _Bar:
    """A progress bar over a topic's offsets, on standard error."""

    def __init__(self, topic: str, stack: ExitStack) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

        columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
        self._progress = stack.enter_context(Progress(*columns, console=Console(file=sys.stderr)))
        self._task = self._progress.add_task(topic, total=None)

    def show(self, done: Loaded) -> None:
        self._progress.update(self._task, total=done.wanted, completed=done.offsets)
