"""``parley elect-leaders``: elect leaders of partitions, as kafka-leader-election does."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from parley.protocol.topic_partition import TopicPartition
from parley.tools.cli.app import App
from parley.tools.cli.cluster_client import TIMEOUT_MS, by_topic, check, described, on_cluster, until_ready
from parley.tools.cli.common_options import DEFAULT_BOOTSTRAP, BootstrapServer, CommandConfig, OutputFormat
from parley.tools.cli.invocation import FAILED, CommandError
from parley.tools.cli.json_input import member, read_plan
from parley.tools.cli.output import print_data

if TYPE_CHECKING:
    from parley.protocol.client import Client

app = App(
    "Elect leaders of partitions.\n\n"
    "A preferred election makes the first replica of a partition its leader again, if that replica is in sync. An "
    "unclean election gives a partition without a leader any replica on a running broker: records may be lost. "
    'The JSON file has the form {"partitions": [{"topic": "foo", "partition": 1}]}.',
    examples=[
        ("parley elect-leaders --election-type preferred --all-topic-partitions", "preferred leaders everywhere"),
        (
            "parley elect-leaders --election-type unclean --topic t --partition 0",
            "serve the partition again, even if records are lost",
        ),
    ],
)

ELECTION_TYPES: Final = {"preferred": 0, "unclean": 1}


@dataclass(frozen=True, slots=True)
class Outcome:
    """The result for one partition: the error code (0 if a leader was elected) and the broker's message."""

    partition: TopicPartition
    code: int
    message: str | None


def parse_partitions(entries: Sequence[dict[str, object]]) -> list[TopicPartition]:
    """Parse the partitions of a plan. Raises ``CommandError`` if an entry is wrong or repeated."""
    found = [(member(entry, "topic", str), member(entry, "partition", int)) for entry in entries]
    twice = sorted({f"{topic}-{index}" for topic, index in found if found.count((topic, index)) > 1})
    if twice:
        raise CommandError(f"Replica election data contains duplicate partitions: {','.join(twice)}.")
    return found


async def elect(client: Client, election_type: int, partitions: Sequence[TopicPartition] | None) -> list[Outcome]:
    """Elect leaders for these partitions, or for all if ``partitions`` is None. Raises ``CommandError`` if the whole
    request fails."""
    from parley.protocol.messages.elections import ElectLeadersRequest as Request

    chosen = [
        Request.TopicPartitions(topic=topic, partitions=indexes)
        for topic, indexes in by_topic(partitions or ()).items()
    ]
    request = Request(
        election_type=election_type,
        topic_partitions=None if partitions is None else chosen,
        timeout_ms=TIMEOUT_MS,
    )

    async def ask() -> Any:
        return await client.send(request, node=await client.controller())

    answer = await until_ready(ask, lambda answer: int(answer.error_code), TIMEOUT_MS)
    check(answer.error_code, doing="No leader was elected")
    outcomes = [
        Outcome((topic.topic, one.partition_id), one.error_code, one.error_message)
        for topic in answer.replica_election_results
        for one in topic.partition_result
    ]
    return sorted(outcomes, key=lambda outcome: outcome.partition)


def show(outcomes: Sequence[Outcome], election_type: str) -> None:
    """Print the results as kafka-leader-election does."""
    from parley.protocol.errors import ErrorCode

    def names(*codes: int) -> str:
        return ", ".join("{}-{}".format(*one.partition) for one in outcomes if one.code in codes)

    if elected := names(ErrorCode.NONE):
        print(f"Successfully completed leader election ({election_type.upper()}) for partitions {elected}")
    if right := names(ErrorCode.ELECTION_NOT_NEEDED):
        print(f"Valid replica already elected for partitions {right}")
    for one in failures(outcomes):
        where = "{}-{}".format(*one.partition)
        reason = described(one.code, one.message)
        print(f"Error completing leader election ({election_type.upper()}) for partition: {where}: {reason}")


def failures(outcomes: Sequence[Outcome]) -> list[Outcome]:
    """Return the partitions whose election failed. A partition that needed no election is not a failure."""
    from parley.protocol.errors import ErrorCode

    return [one for one in outcomes if one.code not in (ErrorCode.NONE, ErrorCode.ELECTION_NOT_NEEDED)]


def _chosen(
    topic: str, partition: int | None, all_topic_partitions: bool, path: Path | None
) -> list[TopicPartition] | None:
    """Return the partitions that the options name, or None for all. Raises ``CommandError`` for options that cannot be
    combined, or a malformed file."""
    if bool(topic) + all_topic_partitions + (path is not None) != 1:
        raise CommandError("Name exactly one of --topic, --all-topic-partitions, --path-to-json-file.")
    if topic and partition is None:
        raise CommandError("--topic needs --partition.")
    if not topic and partition is not None:
        raise CommandError("--partition needs --topic.")
    if path is not None:
        return parse_partitions(read_plan(path, "partitions"))
    return [(topic, partition)] if topic and partition is not None else None


@app.only_command()
def elect_leaders(
    election_type: Annotated[
        str, typer.Option("--election-type", help="preferred; or unclean, for partitions without a leader.")
    ],
    bootstrap_server: BootstrapServer = DEFAULT_BOOTSTRAP,
    all_topic_partitions: Annotated[
        bool, typer.Option("--all-topic-partitions", help="Elect for all partitions that need it.")
    ] = False,
    topic: Annotated[str, typer.Option("--topic", help="Elect for a partition of this topic.")] = "",
    partition: Annotated[int | None, typer.Option("--partition", help="The partition of --topic.")] = None,
    path_to_json_file: Annotated[
        Path | None,
        typer.Option(
            "--path-to-json-file", allow_dash=True, help="Elect for the partitions in this file; - for stdin."
        ),
    ] = None,
    command_config: CommandConfig = None,
    output_format: OutputFormat = None,
) -> None:
    kind = election_type.lower()
    if kind not in ELECTION_TYPES:
        raise CommandError(f"--election-type must be preferred or unclean, not '{election_type}'.")
    partitions = _chosen(topic, partition, all_topic_partitions, path_to_json_file)
    outcomes = on_cluster(
        bootstrap_server, command_config, lambda client: elect(client, ELECTION_TYPES[kind], partitions)
    )
    if output_format:
        print_data([_as_data(one) for one in outcomes], output_format)
    else:
        show(outcomes, kind)
    if failed := failures(outcomes):
        print(f"{len(failed)} replica(s) could not be elected", file=sys.stderr)
        raise typer.Exit(FAILED)


def _as_data(one: Outcome) -> dict[str, object]:
    topic, index = one.partition
    failed = bool(failures([one]))
    return {
        "topic": topic,
        "partition": index,
        "elected": one.code == 0,
        "error": described(one.code, one.message) if failed else None,
    }
