"""``parley offsets``: the first, last or timed offsets of partitions, as kafka-get-offsets does."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Final

import typer

from parley.tools.cli.app import App
from parley.tools.cli.cluster_client import TopicPartition, described, on_cluster
from parley.tools.cli.common_options import DEFAULT_BOOTSTRAP, AsJson, BootstrapServer, CommandConfig
from parley.tools.cli.invocation import CommandError

if TYPE_CHECKING:
    from parley.protocol.client import Client
    from parley.tools.cli.topic_offsets import FoundOffset

app = App(
    "Show an offset of each partition as topic:partition:offset.\n\n"
    "The latest offset is that of the next record to come. A time in ms finds the first record at or after it; "
    "partitions without such a record are left out.",
    examples=[
        ("parley offsets --topic greetings", "where each partition ends"),
        ("parley offsets --topic greetings --time earliest", "where each partition begins"),
        ("parley offsets --topic-partitions 'greetings:0,events:2-5' --time 1735689600000", "from a moment on"),
    ],
)

TIMES: Final = {
    "latest": -1,
    "earliest": -2,
    "max-timestamp": -3,
    "earliest-local": -4,
    "latest-tiered": -5,
    "earliest-pending-upload": -6,
}
"""Positions by name (KIP-734, KIP-1005); a number may be given as well."""
_LATEST = -1
_PATTERN = re.compile(r"(?P<topic>[^:,]*)(?::(?:(?P<one>\d+)|(?P<low>\d*)-(?P<high>\d*))?)?")


@dataclass(frozen=True, slots=True)
class PartitionPattern:
    """Which partitions of which topics: ``high`` is exclusive, None where it is open."""

    fits_topic: Callable[[str], bool]
    low: int = 0
    high: int | None = None

    def matches(self, topic: str, partition: int) -> bool:
        return partition >= self.low and (self.high is None or partition < self.high) and self.fits_topic(topic)


def parse_time(text: str) -> int:
    """A named position or a number: a time in ms, or the number of a position. Raises :class:`CommandError`."""
    if text in TIMES:
        return TIMES[text]
    if not re.fullmatch(r"-?\d{1,18}", text) or int(text) < min(TIMES.values()):
        raise CommandError(f"--time takes {', '.join(TIMES)}, or a time in ms since 1970, not '{text}'.")
    return int(text)


def parse_patterns(text: str) -> list[PartitionPattern]:
    """``topic:0,topic:2-5,topic:3-,:-2``: an expression for the topic, then a number or a range without its end."""
    from parley.tools.cli.topics.describing import matching

    found = []
    for part in text.split(","):
        match = _PATTERN.fullmatch(part.strip())
        if match is None:
            raise CommandError(
                f"--topic-partitions takes topic, topic:1, topic:0-3, topic:5- or topic:-3, not '{part}'."
            )
        low = int(match["one"] or match["low"] or 0)
        high = low + 1 if match["one"] else int(match["high"]) if match["high"] else None
        found.append(PartitionPattern(matching(match["topic"]), low, high))
    return found


async def find(
    client: Client, wanted: Callable[[str, int], bool], time: int, *, exclude_internal: bool
) -> list[tuple[TopicPartition, FoundOffset]]:
    """The offsets of the partitions wanted, in order. A partition without a leader is told of, and left out."""
    from parley.tools.cli.topic_offsets import list_offsets

    metadata = await client.metadata()
    partitions = []
    for topic in metadata.topics:
        name = topic.name or ""
        if exclude_internal and topic.is_internal:
            continue
        for one in topic.partitions:
            if not wanted(name, one.partition_index):
                continue
            if one.leader_id < 0:
                print(f"Skip getting offsets for {name}-{one.partition_index}: it has no leader.", file=sys.stderr)
            else:
                partitions.append((name, one.partition_index))
    if not partitions:
        raise CommandError("No partition matches. `parley topics --list` shows the topics there are.")
    return sorted((await list_offsets(client, partitions, time)).items())


@dataclass(frozen=True, slots=True)
class Options:
    """The options of the command."""

    bootstrap_server: BootstrapServer = DEFAULT_BOOTSTRAP
    topic: Annotated[str, typer.Option("--topic", help="Regular expression of topics; all if left out.")] = ""
    partitions: Annotated[str, typer.Option("--partitions", help="Partition numbers by commas; all if left out.")] = ""
    topic_partitions: Annotated[
        str,
        typer.Option(
            "--topic-partitions",
            help="Topics with partitions by commas: topic:1, topic:0-3 (without 3), topic:5-, :-3.",
        ),
    ] = ""
    time: Annotated[
        str,
        typer.Option("--time", help="latest (-1), earliest (-2), max-timestamp (-3), or a time in ms since 1970."),
    ] = "latest"
    exclude_internal_topics: Annotated[
        bool, typer.Option("--exclude-internal-topics", help="Leave out topics such as __consumer_offsets.")
    ] = False
    command_config: CommandConfig = None
    json_output: AsJson = False


@app.only_command_with(Options)
def offsets(options: Options) -> None:
    at = parse_time(options.time)
    wanted = wanted_partitions(options)
    found = on_cluster(
        options.bootstrap_server,
        options.command_config,
        lambda client: find(client, wanted, at, exclude_internal=options.exclude_internal_topics),
    )
    for (name, index), one in found:
        if one.error:
            print(f"Skip getting offsets for {name}-{index}: {described(one.error)}", file=sys.stderr)
    shown = [(where, one) for where, one in found if not one.error and (one.offset >= 0 or at == _LATEST)]
    if options.json_output:
        rows = [
            {"topic": name, "partition": index, "offset": one.offset, "timestamp": one.timestamp}
            for (name, index), one in shown
        ]
        print(json.dumps(rows))
        return
    for (name, index), one in shown:
        print(f"{name}:{index}:{one.offset}")


def wanted_partitions(options: Options) -> Callable[[str, int], bool]:
    """Whether a partition is asked for. Raises :class:`CommandError` for options that contradict."""
    from parley.tools.cli.topics.describing import matching

    if options.topic_partitions and (options.topic or options.partitions):
        raise CommandError("--topic-partitions says it all; leave --topic and --partitions out.")
    numbers = _numbers(options.partitions)
    if options.topic_partitions:
        patterns = parse_patterns(options.topic_partitions)
    else:
        patterns = [PartitionPattern(matching(options.topic))]

    def wanted(name: str, partition: int) -> bool:
        in_numbers = not numbers or partition in numbers
        return in_numbers and any(pattern.matches(name, partition) for pattern in patterns)

    return wanted


def _numbers(text: str) -> frozenset[int]:
    try:
        return frozenset(int(part) for part in text.split(",") if part.strip())
    except ValueError as error:
        raise CommandError(f"--partitions takes numbers by commas, not '{text}'.") from error
