"""``parley elect-leaders``: have partitions elect a leader, as kafka-leader-election does."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from parley.tools.cli.app import App
from parley.tools.cli.cluster_client import (
    TIMEOUT_MS,
    TopicPartition,
    by_topic,
    check,
    described,
    on_cluster,
    until_ready,
)
from parley.tools.cli.common_options import DEFAULT_BOOTSTRAP, AsJson, BootstrapServer, CommandConfig
from parley.tools.cli.invocation import FAILED, CommandError
from parley.tools.cli.json_input import member, read_plan

if TYPE_CHECKING:
    from parley.protocol.client import Client

app = App(
    "Have partitions elect a leader.\n\n"
    "A preferred election makes the first of a partition's replicas its leader again, if it is in sync. An unclean one "
    "gives a partition without a leader any replica that is alive: records may be lost. "
    'The JSON file has the form {"partitions": [{"topic": "foo", "partition": 1}]}.',
    examples=[
        ("parley elect-leaders --election-type preferred --all-topic-partitions", "leaders where they belong"),
        ("parley elect-leaders --election-type unclean --topic t --partition 0", "better some records than none"),
    ],
)

ELECTION_TYPES: Final = {"preferred": 0, "unclean": 1}


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of one partition: the error code (0: a leader was elected) and what the broker said."""

    partition: TopicPartition
    code: int
    message: str | None


def parse_partitions(entries: Sequence[dict[str, object]]) -> list[TopicPartition]:
    """The partitions of a plan. Raises :class:`CommandError`."""
    found = [(member(entry, "topic", str), member(entry, "partition", int)) for entry in entries]
    twice = sorted({f"{topic}-{index}" for topic, index in found if found.count((topic, index)) > 1})
    if twice:
        raise CommandError(f"Replica election data contains duplicate partitions: {','.join(twice)}.")
    return found


async def elect(client: Client, election_type: int, partitions: Sequence[TopicPartition] | None) -> list[Outcome]:
    """Elect for these partitions, or for all (None). Raises :class:`CommandError` where all of it fails."""
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
    check(answer.error_code, doing="No leader is elected")
    outcomes = [
        Outcome((topic.topic, one.partition_id), one.error_code, one.error_message)
        for topic in answer.replica_election_results
        for one in topic.partition_result
    ]
    return sorted(outcomes, key=lambda outcome: outcome.partition)


def show(outcomes: Sequence[Outcome], election_type: str) -> None:
    """Print in the form of kafka-leader-election."""
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
    """The partitions that have no leader from this election, though one was needed."""
    from parley.protocol.errors import ErrorCode

    return [one for one in outcomes if one.code not in (ErrorCode.NONE, ErrorCode.ELECTION_NOT_NEEDED)]


def _chosen(
    topic: str, partition: int | None, all_topic_partitions: bool, path: Path | None
) -> list[TopicPartition] | None:
    """The partitions asked for; None for all."""
    if bool(topic) + all_topic_partitions + (path is not None) != 1:
        raise CommandError("Name exactly one of --topic, --all-topic-partitions, --path-to-json-file.")
    if topic and partition is None:
        raise CommandError("--topic needs --partition.")
    if not topic and partition is not None:
        raise CommandError("--partition goes with --topic only.")
    if path is not None:
        return parse_partitions(read_plan(path, "partitions"))
    return [(topic, partition)] if topic and partition is not None else None


@app.only_command()
def elect_leaders(
    election_type: Annotated[
        str, typer.Option("--election-type", help="preferred, or unclean for partitions without a leader.")
    ],
    bootstrap_server: BootstrapServer = DEFAULT_BOOTSTRAP,
    all_topic_partitions: Annotated[
        bool, typer.Option("--all-topic-partitions", help="For every partition that needs it.")
    ] = False,
    topic: Annotated[str, typer.Option("--topic", help="For a partition of this topic.")] = "",
    partition: Annotated[int | None, typer.Option("--partition", help="The partition of --topic.")] = None,
    path_to_json_file: Annotated[
        Path | None,
        typer.Option("--path-to-json-file", allow_dash=True, help="For the partitions in this file; - for stdin."),
    ] = None,
    command_config: CommandConfig = None,
    json_output: AsJson = False,
) -> None:
    kind = election_type.lower()
    if kind not in ELECTION_TYPES:
        raise CommandError(f"--election-type is preferred or unclean, not '{election_type}'.")
    partitions = _chosen(topic, partition, all_topic_partitions, path_to_json_file)
    outcomes = on_cluster(
        bootstrap_server, command_config, lambda client: elect(client, ELECTION_TYPES[kind], partitions)
    )
    if json_output:
        print(json.dumps([_as_data(one) for one in outcomes]))
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
