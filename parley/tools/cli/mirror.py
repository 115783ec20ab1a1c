"""``parley mirror``: copy topics from one cluster to another, as MirrorMaker does."""

from __future__ import annotations

import json
import logging
import signal
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from threading import Event
from typing import TYPE_CHECKING, Annotated, Any

import typer

from parley.configuration.extras import how_to_install
from parley.tools.cli.app import App
from parley.tools.cli.byte_sizes import bytes_text
from parley.tools.cli.common_options import AsJson, client_properties, warn_ignored
from parley.tools.cli.invocation import FAILED, CommandError
from parley.tools.cli.spark import requires_library, start_spark

if TYPE_CHECKING:
    from parley.pipeline.mirror.rounds import Mirror
    from parley.pipeline.mirror.settings import MirrorSettings

_TELL_S = 1.0

app = App(
    "Copy topics from one cluster to another on Spark, as MirrorMaker 2 does: topics with partitions and settings, "
    "complete records, translated offsets of consumer groups.\n\n"
    "An mm2.properties file, --source and --target, or the files and flags of the first MirrorMaker select what to "
    "copy. A mirror keeps no state on its own machine. If it is killed, it can be started again on any machine: it "
    "continues where it stopped, and copies no record twice unless another producer writes to the copied topics.",
    examples=[
        ("parley mirror mm2.properties", "all flows of a file, until Ctrl-C"),
        ("parley mirror --source a:9092 --target b:9092 --topics 'orders.*'", "some topics, named source.orders..."),
        ("parley mirror mm2.properties --once", "the present records only"),
        (
            "parley mirror --consumer.config a.properties --producer.config b.properties --whitelist 'orders.*'",
            "like the first MirrorMaker, which keeps the topics' names",
        ),
    ],
    many_values=["--clusters"],
)


@dataclass(frozen=True, slots=True)
class Options:
    """The options of ``parley mirror``, as given on the command line."""

    config: Annotated[
        Path | None, typer.Argument(metavar="[mm2.properties]", help="A configuration file of MirrorMaker 2.")
    ] = None
    clusters: Annotated[
        list[str], typer.Option("--clusters", help="Run only flows whose target is one of these clusters of the file.")
    ] = field(default_factory=list)
    source: Annotated[str, typer.Option("--source", help="Without a file: the brokers to copy from.")] = ""
    target: Annotated[str, typer.Option("--target", help="Without a file: the brokers to copy to.")] = ""
    command_config: Annotated[
        Path | None,
        typer.Option("--command-config", help="Without a file: properties file for the clients of both clusters."),
    ] = None
    source_alias: Annotated[
        str, typer.Option("--source-alias", help="The source cluster's name, which prefixes the copied topics.")
    ] = "source"
    target_alias: Annotated[str, typer.Option("--target-alias", help="The target cluster's name.")] = "target"
    topics: Annotated[str, typer.Option("--topics", help="Without a file: topics, by name or regular expression.")] = ""
    groups: Annotated[
        str, typer.Option("--groups", help="Without a file: consumer groups, by name or regular expression.")
    ] = ""
    sync_group_offsets: Annotated[
        bool, typer.Option("--sync-group-offsets", help="Without a file: commit translated offsets on the target.")
    ] = False
    consumer_config: Annotated[
        list[Path],
        typer.Option("--consumer.config", help="Consumer properties of the first MirrorMaker; one file per source."),
    ] = field(default_factory=list)
    producer_config: Annotated[
        Path | None,
        typer.Option("--producer.config", help="Producer properties of the first MirrorMaker, for the target."),
    ] = None
    include: Annotated[
        str,
        typer.Option("--include", "--whitelist", help="With --consumer.config: regular expression of topics to copy."),
    ] = ""
    exclude: Annotated[str, typer.Option("--exclude", "--blacklist", help="Topics to leave out.")] = ""
    num_streams: Annotated[
        int | None,
        typer.Option("--num.streams", help="With --consumer.config: the number of cores to use on this machine."),
    ] = None
    abort_on_send_failure: Annotated[
        str,
        typer.Option(
            "--abort.on.send.failure",
            help="true (default with --consumer.config): stop if a record is rejected; false: retry.",
        ),
    ] = ""
    ignored: Annotated[
        list[str],
        typer.Option("--offset.commit.interval.ms", help="Accepted for compatibility; offsets are written every 5 s."),
    ] = field(default_factory=list)
    new_consumer: Annotated[
        bool, typer.Option("--new.consumer", help="Accepted for compatibility; there is no other consumer.")
    ] = False
    once: Annotated[bool, typer.Option("--once", help="Copy the present records, then stop.")] = False
    interval_ms: Annotated[
        int, typer.Option("--interval-ms", min=10, help="Interval of the checks for new records, in ms.")
    ] = 500
    master: Annotated[str | None, typer.Option("--master", help="The Spark master; this machine unless given.")] = None
    checkpoint_dir: Annotated[
        str | None, typer.Option("--checkpoint-dir", help="Spark's checkpoint folder; a temporary one unless given.")
    ] = None
    conf: Annotated[list[str], typer.Option("--conf", help="A Spark setting key=value; repeatable.")] = field(
        default_factory=list
    )
    json_output: AsJson = False


@app.only_command_with(Options)
def mirror(options: Options) -> None:
    with requires_library("parley mirror", how_to_install("spark")):
        from parley.pipeline.mirror.job import MirrorFailed
        from parley.pipeline.mirror.settings import BadSettings
        from parley.pipeline.spark.java import JavaMissing
        from parley.pipeline.spark.session import SparkFailed, SparkMissing, check_spark
    from parley.protocol.errors import KafkaError

    logging.basicConfig(level=logging.WARNING, format="%(asctime)s %(levelname)s %(message)s", stream=sys.stderr)
    logging.getLogger("parley.pipeline.mirror").setLevel(logging.INFO)
    try:
        settings = _settings(options)
        warn_ignored(settings.ignored, "settings")
        check_spark()
        _check_clusters(settings)
        _run(settings, options)
    except KeyboardInterrupt:
        print("Interrupted before anything was copied.", file=sys.stderr)
        raise
    except BadSettings as error:
        raise CommandError(f"{error}.") from error
    except (SparkMissing, SparkFailed, JavaMissing) as error:
        raise CommandError(str(error)) from error
    except MirrorFailed as error:
        raise CommandError(f"Spark failed: {error}") from error
    except KafkaError as error:
        raise CommandError(f"A cluster cannot be mirrored: {error.code.name}: {error.message}") from error


def _settings(options: Options) -> MirrorSettings:
    from parley.pipeline.mirror.settings import from_mm1, from_mm2

    ways = [options.config is not None, bool(options.source or options.target), bool(options.consumer_config)]
    if sum(ways) != 1:
        raise CommandError(
            "Name what to copy in exactly one way: an mm2.properties file, --source and --target, or --consumer.config."
        )
    if options.command_config is not None and not (options.source or options.target):
        raise CommandError("--command-config needs --source and --target; other files say how to reach each cluster.")
    if options.consumer_config:
        if options.producer_config is None:
            raise CommandError("--consumer.config needs --producer.config, the properties of the target.")
        consumers = [client_properties(path) for path in options.consumer_config]
        return from_mm1(consumers, client_properties(options.producer_config), options.include, options.exclude)
    if options.config is not None:
        return from_mm2(client_properties(options.config), options.clusters)
    return from_mm2(_flags(options))


def _flags(options: Options) -> Mapping[str, str]:
    """Return the configuration of MirrorMaker 2 that corresponds to ``--source``, ``--target`` and the related options.
    Raises ``CommandError`` unless both are given, or if ``--command-config`` cannot be read."""
    from parley.protocol.security.client_security import is_security_key

    if not options.source or not options.target:
        raise CommandError("--source and --target require each other: name both.")
    clients = client_properties(options.command_config)
    warn_ignored(name for name in clients if not is_security_key(name))
    a, b = options.source_alias, options.target_alias
    found = {
        **{key: value for key, value in clients.items() if is_security_key(key)},
        "clusters": f"{a},{b}",
        f"{a}.bootstrap.servers": options.source,
        f"{b}.bootstrap.servers": options.target,
        f"{a}->{b}.enabled": "true",
        "emit.heartbeats.enabled": "false",
        f"{a}->{b}.emit.heartbeats.enabled": "true",
        "sync.group.offsets.enabled": "true" if options.sync_group_offsets else "false",
    }
    topics, groups = options.topics or options.include, options.groups
    chosen = {"topics": topics, "topics.exclude": options.exclude, "groups": groups}
    return found | {key: value for key, value in chosen.items() if value}


def _check_clusters(settings: MirrorSettings) -> None:
    """Raise ``CommandError`` if any of the clusters does not respond, or rejects the client."""
    from parley.pipeline.client.cluster import Cluster, Connection
    from parley.protocol.errors import KafkaError

    for one in dict.fromkeys(end for flow in settings.flows for end in (flow.source, flow.target)):
        connection = Connection(bootstrap=one.bootstrap, client_id="parley-mirror", security=one.security)
        with Cluster(connection) as cluster:
            try:
                cluster.contact()
            except KafkaError as error:
                text = f"Cluster {one.alias} cannot be mirrored: {error.code.name}: {error.message}"
                raise CommandError(text) from error


def _run(settings: MirrorSettings, options: Options) -> None:
    from parley.pipeline.spark.session import stopped_at_the_end

    master = options.master or (f"local[{options.num_streams},4]" if options.num_streams else None)
    with stopped_at_the_end(start_spark("parley mirror", master, options.conf)) as session:
        over = Event()
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, lambda *_: over.set())
        _mirror(session, settings, options, over)


def _mirror(session: Any, settings: MirrorSettings, options: Options, over: Event) -> None:
    from parley.pipeline.mirror.job import run

    show = _Progress(options.json_output)
    aborts = (options.abort_on_send_failure or ("true" if options.consumer_config else "false")) == "true"

    def watch(mirror: Mirror) -> None:
        show(mirror)
        if aborts and any(flow.problems for flow in mirror.copying):
            over.set()

    done = run(
        session,
        settings,
        now_ms=lambda: int(time.time() * 1000),
        over=over,
        on_progress=watch,
        interval_ms=options.interval_ms,
        once=options.once,
        checkpoint_dir=options.checkpoint_dir,
    )
    show(done, last=True)
    refused = [f"{place}: {problem}" for flow in done.copying for place, problem in flow.problems.items()]
    if aborts and refused:
        raise CommandError(
            f"Some records were rejected: {refused[0]}. --abort.on.send.failure=false continues without them."
        )
    if options.once and any(flow.lag for flow in done.copying):
        raise typer.Exit(FAILED)


class _Progress:
    """The progress display of a mirror. It prints at most once a second, and only if the progress has changed."""

    def __init__(self, as_json: bool, clock: Callable[[], float] = time.monotonic) -> None:
        self._as_json, self._clock = as_json, clock
        self._shown_at = clock()
        self._shown: dict[str, tuple[int, int, int]] = {}

    def __call__(self, mirror: Mirror, last: bool = False) -> None:
        now = self._clock()
        if not last and now < self._shown_at + _TELL_S:
            return
        passed, self._shown_at = max(now - self._shown_at, 1e-3), now
        for one in mirror.progress():
            before = self._shown.get(one.flow, (0, 0, 0))
            after = (one.records, one.size_bytes, one.lag)
            if after == before and not last:
                continue
            self._shown[one.flow] = after
            rate = (one.records - before[0]) / passed
            bytes_rate = (one.size_bytes - before[1]) / passed
            if self._as_json:
                told = {
                    "flow": one.flow,
                    "topics": one.topics,
                    "records": one.records,
                    "bytes": one.size_bytes,
                    "lag": one.lag,
                    "recordsPerSec": round(rate),
                    "bytesPerSec": round(bytes_rate),
                }
                print(json.dumps(told), flush=True)
            else:
                print(
                    f"{one.flow}  {one.topics} topics  {one.records:,} records copied, {bytes_text(one.size_bytes)}  "
                    f"{rate:,.0f}/s  {bytes_text(round(bytes_rate))}/s  lag {one.lag:,}",
                    flush=True,
                )
