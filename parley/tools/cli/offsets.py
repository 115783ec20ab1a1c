"""``parley offsets``: show the first or last offsets of partitions, or those at a time, as kafka-get-offsets does."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Final

import typer

from parley.protocol.topic_partition import TopicPartition
from parley.tools.cli.app import App
from parley.tools.cli.cluster_client import described, on_cluster
from parley.tools.cli.common_options import DEFAULT_BOOTSTRAP, BootstrapServer, CommandConfig, OutputFormat
from parley.tools.cli.invocation import CommandError
from parley.tools.cli.output import print_data

if TYPE_CHECKING:
    from parley.protocol.client import Client
    from parley.tools.cli.topic_offsets import FoundOffset

app = App(
    "Show an offset of each partition as topic:partition:offset.\n\n"
    "The latest offset is that of the next record. A time in ms finds the first record at or after that time; "
    "partitions without such a record are left out.",
    examples=[
        ("parley offsets --topic greetings", "the end of each partition"),
        ("parley offsets --topic greetings --time earliest", "the first offset of each partition"),
        (
            "parley offsets --topic-partitions 'greetings:0,events:2-5' --time 1735689600000",
            "the first offsets since a time",
        ),
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
"""The named positions and their numbers (KIP-734, KIP-1005)."""
_LATEST = -1
_PATTERN = re.compile(r"(?P<topic>[^:,]*)(?::(?:(?P<one>\d+)|(?P<low>\d*)-(?P<high>\d*))?)?")


@dataclass(frozen=True, slots=True)
class PartitionPattern:
    """A range of partitions of the topics that match. ``high`` is exclusive, or None for no limit."""

    fits_topic: Callable[[str], bool]
    low: int = 0
    high: int | None = None

    def matches(self, topic: str, partition: int) -> bool:
        return partition >= self.low and (self.high is None or partition < self.high) and self.fits_topic(topic)


def parse_time(text: str) -> int:
    """Parse a named position, its number, or a time in ms. Raises ``CommandError`` for anything else."""
    if text in TIMES:
        return TIMES[text]
    if not re.fullmatch(r"-?\d{1,18}", text) or int(text) < min(TIMES.values()):
        raise CommandError(f"--time takes {', '.join(TIMES)}, or a time in ms since 1970, not '{text}'.")
    return int(text)


def parse_patterns(text: str) -> list[PartitionPattern]:
    """Parse ``topic:0,topic:2-5,topic:3-,:-2``. Each part is a regular expression for topics (empty: all), and a
    partition or a range whose end is excluded. Raises ``CommandError`` for any other format."""
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
    """Return the offsets of the partitions for which ``wanted(topic, partition)`` is True, sorted by partition. Each
    result may contain an error code instead. Skips partitions without a leader, and prints a line for each. Raises
    ``CommandError`` if no partition is left."""
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
        raise CommandError("No partition matches. `parley topics --list` shows the existing topics.")
    return sorted((await list_offsets(client, partitions, time)).items())


@dataclass(frozen=True, slots=True)
class Options:
    """The options of ``parley offsets``, as given on the command line."""

    bootstrap_server: BootstrapServer = DEFAULT_BOOTSTRAP
    topic: Annotated[str, typer.Option("--topic", help="Regular expression of topics; all unless given.")] = ""
    partitions: Annotated[
        str, typer.Option("--partitions", help="Partition numbers, separated by commas; all unless given.")
    ] = ""
    topic_partitions: Annotated[
        str,
        typer.Option(
            "--topic-partitions",
            help="Topics with partitions, separated by commas: topic:1, topic:0-3 (without 3), topic:5-, :-3.",
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
    output_format: OutputFormat = None


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
    if options.output_format:
        rows = [
            {"topic": name, "partition": index, "offset": one.offset, "timestamp": one.timestamp}
            for (name, index), one in shown
        ]
        print_data(rows, options.output_format)
        return
    for (name, index), one in shown:
        print(f"{name}:{index}:{one.offset}")


def wanted_partitions(options: Options) -> Callable[[str, int], bool]:
    """Return a function that returns True for a topic and a partition if the options select them. Raises
    ``CommandError`` for malformed or contradictory options."""
    from parley.tools.cli.topics.describing import matching

    if options.topic_partitions and (options.topic or options.partitions):
        raise CommandError("--topic-partitions cannot be combined with --topic and --partitions.")
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
        raise CommandError(f"--partitions takes numbers separated by commas, not '{text}'.") from error
