"""``parley log-dirs``: show the brokers' log directories and the partitions in them, as kafka-log-dirs does.

``--space`` and ``--verify`` are Parley's own. They show the space of each directory, and the damaged records that the
brokers find when they read their logs again.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from parley.tools.cli.app import App
from parley.tools.cli.byte_sizes import bytes_text
from parley.tools.cli.cluster import describe as describe_cluster
from parley.tools.cli.cluster_client import check, on_cluster
from parley.tools.cli.common_options import (
    DEFAULT_BOOTSTRAP,
    CommandConfig,
    OnlyBootstrapServer,
    OutputFormat,
    broker_ids,
)
from parley.tools.cli.invocation import CommandError
from parley.tools.cli.output import Format, print_data
from parley.tools.cli.verify_logs import as_data as verified_data
from parley.tools.cli.verify_logs import as_lines, is_damaged, verified

if TYPE_CHECKING:
    from parley.protocol.client import Client

app = App(
    "Show the log directories of brokers and the size of each partition in them, or verify all data in them.",
    examples=[
        ("parley log-dirs --describe", "all partitions on all brokers"),
        (
            "parley log-dirs --describe --broker-list 1,2 --topic-list greetings --json",
            "one topic on two brokers, as JSON only",
        ),
        ("parley log-dirs --space", "total, used and free space of each log directory"),
        ("parley log-dirs --verify", "have all brokers read all their data, and list damaged records"),
    ],
)

VERSION: Final = 1


async def directories(
    client: Client, brokers: Sequence[int], topics: Sequence[str]
) -> tuple[list[int], dict[int, list[Any]]]:
    """Return the ids of all running brokers, and the log directories of each of ``brokers`` (all if empty).

    The directories list only these topics (all if empty). Raises ``CommandError`` if a broker is not running or rejects
    the request, and KafkaError if it does not respond.
    """
    from parley.protocol.messages.log_dirs import DescribeLogDirsRequest

    present = await _present(client, brokers)
    found = {}
    for broker in brokers or present:
        answer = await client.send(DescribeLogDirsRequest(topics=None), node=broker)
        check(answer.error_code, doing=f"Broker {broker}")
        found[broker] = answer.results
    return present, {broker: [_only(directory, topics) for directory in each] for broker, each in found.items()}


async def _present(client: Client, brokers: Sequence[int]) -> list[int]:
    """Return the ids of all running brokers. Raises ``CommandError`` if any of ``brokers`` is not among them."""
    present = sorted(broker.broker_id for broker in (await describe_cluster(client, fenced=False)).brokers)
    missing = [broker for broker in brokers if broker not in present]
    if missing:
        raise CommandError(
            f"The given brokers do not exist from --broker-list: {_numbers(missing)}. "
            f"Current existent brokers: {_numbers(present)}"
        )
    return present


def _only(directory: Any, topics: Sequence[str]) -> Any:
    if topics:
        directory.topics = [topic for topic in directory.topics if topic.name in topics]
    return directory


def as_data(found: Mapping[int, Sequence[Any]]) -> dict[str, object]:
    """Return the JSON data of kafka-log-dirs."""
    return {
        "brokers": [
            {"broker": broker, "logDirs": [_directory(one) for one in each]} for broker, each in sorted(found.items())
        ],
        "version": VERSION,
    }


def _directory(directory: Any) -> dict[str, object]:
    return {
        "partitions": [
            {
                "partition": f"{topic.name}-{one.partition_index}",
                "size": one.partition_size,
                "offsetLag": one.offset_lag,
                "isFuture": one.is_future_key,
            }
            for topic in directory.topics
            for one in topic.partitions
        ],
        "error": _error(directory.error_code),
        "logDir": directory.log_dir,
    }


def table_rows(found: Mapping[int, Sequence[Any]]) -> list[dict[str, object]]:
    """Return one row for each partition. A directory without partitions has one row without a partition."""
    rows: list[dict[str, object]] = []
    for broker, directories in sorted(found.items()):
        for found_in in map(_directory, directories):
            place = {"broker": broker, "logDir": found_in["logDir"], "state": found_in["error"] or "online"}
            partitions: Any = found_in["partitions"] or [
                {"partition": None, "size": 0, "offsetLag": None, "isFuture": False}
            ]
            rows += [{**place, **each} for each in partitions]
    return rows


def space_data(found: Mapping[int, Sequence[Any]]) -> list[dict[str, object]]:
    """Return the space of each log directory. A number is null if it is unknown to the broker."""
    return [
        {
            "broker": broker,
            "logDir": one.log_dir,
            "totalBytes": _known(one.total_bytes),
            "freeBytes": _known(one.usable_bytes),
            "partitionBytes": sum(each.partition_size for topic in one.topics for each in topic.partitions),
            "error": _error(one.error_code),
        }
        for broker, each in sorted(found.items())
        for one in sorted(each, key=lambda one: one.log_dir)
    ]


def space_lines(data: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return the space of each log directory as a table."""
    rows = [("BROKER", "LOG-DIR", "TOTAL", "FREE", "FREE%", "IN-LOGS", "STATE")]
    for one in data:
        total, free = one["totalBytes"], one["freeBytes"]
        percent = f"{100 * free / total:.0f}" if total and free is not None else "-"
        sizes = (_shown(total), _shown(free), percent, _shown(one["partitionBytes"]))
        rows.append((str(one["broker"]), one["logDir"], *sizes, one["error"] or "online"))
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return ["  ".join(map(str.ljust, row, widths)).rstrip() for row in rows]


def _known(size: int) -> int | None:
    return None if size < 0 else size


def _shown(size: int | None) -> str:
    return "-" if size is None else bytes_text(size)


def _error(code: int) -> str | None:
    from parley.protocol.errors import ErrorCode

    return ErrorCode(code).name if code else None


def _numbers(numbers: Sequence[int]) -> str:
    return ",".join(map(str, numbers))


@app.only_command()
def log_dirs(
    bootstrap_server: OnlyBootstrapServer = DEFAULT_BOOTSTRAP,
    describe: Annotated[bool, typer.Option("--describe", help="Describe the log directories.")] = False,
    verify: Annotated[
        bool,
        typer.Option(
            "--verify", help="Have the brokers read their logs again, and list damaged records; exit with 1 if any."
        ),
    ] = False,
    space: Annotated[
        bool, typer.Option("--space", help="Show the total and free space of each log directory.")
    ] = False,
    broker_list: Annotated[
        str, typer.Option("--broker-list", help="Broker ids such as 0,1,2; all brokers unless given.")
    ] = "",
    topic_list: Annotated[
        str, typer.Option("--topic-list", help="Topics such as foo,bar; all topics unless given.")
    ] = "",
    command_config: CommandConfig = None,
    output_format: OutputFormat = None,
) -> None:
    if [describe, verify, space].count(True) != 1:
        raise CommandError("Name exactly one of --describe, --space, --verify.")
    brokers = list(dict.fromkeys(broker_ids(broker_list, "--broker-list")))
    topics = [topic.strip() for topic in topic_list.split(",") if topic.strip()]
    if verify:
        _verify(bootstrap_server, command_config, brokers, topics, output_format)
        return
    _, found = on_cluster(bootstrap_server, command_config, lambda client: directories(client, brokers, topics))
    if space:
        data = space_data(found)
        if output_format:
            print_data(data, output_format)
        else:
            print("\n".join(space_lines(data)))
        return
    if output_format:
        data_of = table_rows if output_format is Format.TABLE else as_data
        print_data(data_of(found), output_format)
        return
    print("Querying brokers for log directories information")
    print(f"Received log directory information from brokers {_numbers(sorted(found))}")
    print(json.dumps(as_data(found), separators=(",", ":")))


def _verify(
    bootstrap: str,
    command_config: Path | None,
    brokers: Sequence[int],
    topics: Sequence[str],
    output_format: Format | None,
) -> None:
    """Print what the brokers find when they read their logs again. Exits with status 1 if records are damaged."""

    async def verify(client: Client) -> dict[int, Any]:
        present = await _present(client, brokers)
        return await verified(client, brokers or present, topics)

    data = verified_data(on_cluster(bootstrap, command_config, verify))
    if output_format:
        print_data(data, output_format)
    else:
        print("\n".join(as_lines(data)))
    if is_damaged(data):
        raise typer.Exit(1)
